"""Generate pages from the package and from the notebooks: `python docs/_pages.py` writes options.md
and the list of all options in `src/tempera/options/known_options.json` again."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import tempera
from tempera.cli import options as command_line
from tempera.core.matryoshka import Matryoshka
from tempera.core.memory import Memory
from tempera.core.objective import Objective
from tempera.core.teacher import Teacher
from tempera.core.temperature import Temperature
from tempera.options import known, worlds
from tempera.options import names as registry
from tempera.options.known import FIRST, KnownOption, OptionGroup
from tempera.recommend.read.division import Divide
from tempera.recommend.train.encoders import Feature, OfUser
from tempera.recommend.train.history import History
from tempera.recommend.train.pooling import Pooling
from tempera.text.read.pairs import Source
from tempera.text.train.two_towers import DocSide, QuerySide
from tempera.towers.lora import Lora

PAGE = Path(__file__).with_name("options.md")
NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PLAIN = registry.PLAIN
worlds.load_all()
STATES: tuple[Any, ...] = (Temperature, Memory, Teacher, Matryoshka, Lora, History)
# Kinds of parts that no section is named after.
KINDS: dict[str, Any] = {
    "similarity": registry.similarity.Similarity,
    "pool": registry.Pool,
    "correction": registry.Correction,
    "mask": registry.masks.Mask,
    "split": Divide,
    "feature": OfUser,
    "history pool": Pooling,
    "tower of queries": QuerySide,
    "tower of documents": DocSide,
}
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_TYPES = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    type(None): "none",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page of each notebook (a hook of MkDocs)."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook(path)))
    return files


def options() -> str:
    """Return the page of every option, section by section, from the signatures and docstrings."""
    lines = [
        "# Every option",
        "",
        "`tempera train --print-config` shows the options of a run; change them by `section.option=value` on the command line, or "
        "in a YAML file. This page is generated from the signatures that configurations are checked against.",
    ]
    for name, (kind, tag, default) in registry.SECTIONS.items():
        lines += ["", f"## {name}", ""]
        if kind is Objective:
            lines += _presets(default)
            lines += [
                "",
                *_table("Parts, which override those of the preset", Objective, "objective"),
            ]
            continue
        lines += [f"`{name}.{tag}` chooses one of the following; the default is `{default}`."]
        for part, make in registry.PARTS[kind].items():
            lines += ["", f"### {name}: {part}", "", *_table("", make, f"{name}: {part}")]
    for name, make in PLAIN.items():
        lines += ["", f"## {name}", "", *_table("", make, name)]
    lines += ["", "## Parts", "", "Write a part by its name, or as `name: {option: value}`."]
    for title, kind in KINDS.items():
        lines += ["", f"### {title}"]
        for part, make in registry.PARTS[kind].items():
            lines += [
                "",
                f"#### {title}: {part}",
                "",
                *(_table("", make, f"{title}: {part}") if inspect.isclass(make) else [about(make)]),
            ]
    for make in STATES:
        lines += ["", f"### {make.__name__.lower()}", "", *_table("", make, make.__name__.lower())]
    return "\n".join(lines) + "\n"


def known_groups(before: Sequence[OptionGroup], version: str) -> list[OptionGroup]:
    """Return all options in groups, from the signatures.

    Args:
        before: the list as it was, of which versions, reasons and benchmarks are kept.
        version: of the package, which brings the options that the list did not have.
    """
    earlier = {(group.title, option.name): option for group in before for option in group.options}
    groups = []

    def add(
        title: str, make: Any, section: str = "", choice: str = "", default: bool = False
    ) -> None:
        descriptions = described(make)
        options = []
        for name in registry.hints_of(make):
            if (make, name) == (Matryoshka, "objective"):
                continue
            plain_default = default_of(make, name).strip("`").replace("\\|", "|")
            if plain_default == "required":
                plain_default = "..."
            old = earlier.get((title, name))
            if old is None:
                old = KnownOption(name, "", "", since=version if before else FIRST)
            text = descriptions.get(name, "").replace("\\|", "|")
            options.append(dataclasses.replace(old, default=plain_default, text=text))
        if options:
            groups.append(OptionGroup(title, section, choice, default, tuple(options)))

    for section, (kind, tag, default) in registry.SECTIONS.items():
        if kind is Objective:
            presets = ", ".join(registry.PARTS[Objective])
            choice = f"{tag}={default} or one of {presets}"
            add(section, Objective, section, choice)
            continue
        for part, make in registry.PARTS[kind].items():
            add(f"{section}: {part}", make, section, f"{tag}={part}", part == default)
    for section, make in PLAIN.items():
        add(section, make, section)
    for title, kind in KINDS.items():
        for part, make in registry.PARTS[kind].items():
            if inspect.isclass(make):
                add(f"{title}: {part}", make)
    for make in STATES:
        add(make.__name__.lower(), make)
    return groups


def about(part: Any) -> str:
    """Return the description of a part without options."""
    blocks = getattr(part, "blocks", ())
    pairs = ", ".join(f"{anchor} against {candidate}" for anchor, candidate in blocks)
    return f"{pairs[0].upper()}{pairs[1:]}." if pairs else "No options."


def _presets(default: str) -> list[str]:
    names = registry.PARTS[Objective]
    rows = []
    for name, make in names.items():
        own = {
            n: p.default
            for n, p in inspect.signature(make).parameters.items()
            if p.kind is not p.VAR_KEYWORD
        }
        shown = ", ".join(f"`{n}` {shown_default(value)}" for n, value in own.items())
        rows.append(f"| `{name}` | {first_line(make)} | {shown} |")
    head = [
        f"`objective.preset` is one of these; the default is `{default}`.",
        "",
        "| preset | description | own options |",
    ]
    return [*head, "|---|---|---|", *rows]


def first_line(make: Any) -> str:
    """Return the first paragraph of a docstring."""
    return (inspect.getdoc(make) or "").split("\n\n")[0].replace("\n", " ")


def _table(title: str, make: Any, group_title: str) -> list[str]:
    examples = {}
    for group in known.groups():
        if group.title == group_title:
            examples = {option.name: option.example for option in group.options}
    hints = {
        n: hint
        for n, hint in registry.hints_of(make).items()
        if (make, n) != (Matryoshka, "objective")
    }
    descriptions = described(make)
    lines = [f"{title}:" if title else first_line(make), ""]
    if not hints:
        return lines[:1]
    lines += ["| option | type | default | example | description |", "|---|---|---|---|---|"]
    for name, hint in hints.items():
        example = examples.get(name, "").replace("|", "\\|")
        lines.append(
            f"| `{name}` | {taken(hint)} | {default_of(make, name)} | `{example}` | {descriptions.get(name, '')} |"
        )
    return lines


def described(make: Any) -> dict[str, str]:
    """Return the description of each parameter; those of a class override those of its bases."""
    descriptions: dict[str, str] = {}
    for each in reversed(inspect.getmro(make)) if inspect.isclass(make) else (make,):
        if each.__doc__ and each.__module__.startswith("tempera."):
            described_here = command_line.described(each.__doc__)
            descriptions |= {
                name: text.replace("|", "\\|") for name, text in described_here.items()
            }
    return descriptions


def default_of(make: Any, name: str) -> str:
    """Return the default of an option, as YAML."""
    if dataclasses.is_dataclass(make):
        (field,) = (field for field in dataclasses.fields(make) if field.name == name)
        if field.default_factory is not dataclasses.MISSING:
            return shown_default(field.default_factory())
    return shown_default(inspect.signature(make).parameters[name].default)


def shown_default(value: Any) -> str:
    """Return a default as YAML."""
    if value is inspect.Parameter.empty:
        return "required"
    text = (
        yaml.safe_dump(registry.describe(value), default_flow_style=True, width=10**6)
        .removesuffix("\n...\n")
        .strip()
    )
    return f"`{text}`".replace("|", "\\|")


def taken(hint: Any) -> str:
    """Return the type of an option, in words."""
    for title, kind in KINDS.items():
        if hint == kind or (title == "feature" and hint == Feature):
            return f"[{title}](#{title.replace(' ', '-')})"
    for name, (kind, _, _) in registry.SECTIONS.items():
        if hint == kind:
            return f"[{name}](#{name})"
    if hint == Source:
        return "[data](#data)"
    if hint in STATES:
        return f"[{hint.__name__.lower()}](#{hint.__name__.lower()})"
    if hint in _TYPES:
        return _TYPES[hint]
    return _composed(get_origin(hint), get_args(hint))


def _composed(origin: Any, parts: Sequence[Any]) -> str:
    if origin is Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin is Annotated:
        bounds = list(_bounds(parts[1:]))
        return f"{taken(parts[0])} {', '.join(bounds)}" if bounds else taken(parts[0])
    if origin in (tuple, Sequence):
        return f"list of {taken(parts[0])}"
    if origin is Callable:
        raise TypeError(f"a kind of part that has no title: {parts}")
    return " or ".join(taken(part) for part in parts)


def _bounds(metadata: Sequence[Any]) -> Iterator[str]:
    for field in metadata:
        for bound in getattr(field, "metadata", ()):
            for name, word in _BOUNDS.items():
                limit = getattr(bound, name, None)
                if limit is not None:
                    yield f"{word} {limit:g}"


def notebook(path: Path) -> str:
    """Return a notebook as a page: its texts and its code."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    parts.append(
        f"A test runs this page as `notebooks/{path.name}`; open that file in Jupyter to try more."
    )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(options(), encoding="utf-8")
    listed = list(known.groups()) if known.LIST.is_file() else []
    again = known_groups(listed, tempera.__version__)
    known.LIST.write_text(known.written(again), encoding="utf-8")
