"""Options of a configuration by section, for `tempera train --help`.

They are read from the source of what a configuration describes, from signatures and docstrings:
    importing it takes seconds.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import nearest

_PACKAGE = Path(__file__).parents[1]
_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n     .*)*)", re.M)
_END = re.compile(r"(?<=[a-z)\]`%])[.;:] |\.$")  # of the first statement of an explanation
Place = tuple[str, str]  # a module of this package, and a name in it


def described(docstring: str | None) -> dict[str, str]:
    """Return what the `Args:` of a docstring say of each parameter, each in one line.

    >>> described("Do it.\\n\\nArgs:\\n    depth: ranks that\\n        are read.\\n\\nRaises:\\n    OSError: none.")
    {'depth': 'ranks that are read.'}
    """
    arguments = inspect.cleandoc(docstring or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    return {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(arguments)}


def lines() -> Iterator[str]:
    """Yield the sections of a configuration, each option with its default and one line of
    explanation."""
    parts = {ast.unparse(kind): parts for kind, parts in _items("PARTS")}
    for section, choice in _items("SECTIONS"):
        kind, tag, default = (ast.unparse(part).strip("'") for part in choice.elts)
        if kind == "Objective":  # presets are functions that choose parts of this class
            presets = ", ".join(preset.id for preset in _find(("core.presets", "PRESETS"))[1].elts)
            yield f"\n{section.value}, with {section.value}.{tag}={default} or one of {presets}:"
            yield from _options(section.value, kind)
            continue
        for name, part in zip(parts[kind].keys, parts[kind].values, strict=True):
            yield f"\n{section.value}, with {section.value}.{tag}={name.value}{' (default)' * (name.value == default)}:"
            yield from _options(section.value, part.id)
    for section, part in _items("PLAIN"):
        yield f"\n{section.value}:"
        yield from _options(section.value, part.id)


def meant(word: str) -> list[str]:
    """Return the options of a configuration that a word is the name of, or else is near to, with
    their sections.

    >>> meant("--temperature"), meant("--batch-size"), meant("--train.max_steps"), meant("--epochs"), meant("--zzz")
    (['objective.temperature'], ['train.batch_size'], ['train.max_steps'], ['train.num_train_epochs'], [])
    """
    word = word.strip("-").replace("-", "_")
    known = [line.partition("=")[0].strip() for line in lines() if line.startswith("  ")]
    names = [name.partition(".")[2] for name in known]
    word = word if word in (*known, *names) else nearest(word, names) or ""
    return list(
        dict.fromkeys(full for full, name in zip(known, names, strict=True) if word in (full, name))
    )


def _items(table: str) -> list[tuple[Any, Any]]:
    syntax = _find(("options.names", table))[1]
    return list(zip(syntax.keys, syntax.values, strict=True))


def _options(section: str, part: str) -> Iterator[str]:
    for name, (default, text) in _parameters(("options.names", part)).items():
        yield f"  {f'{section}.{name}={default}':<40}  {_END.split(text)[0]}"


def _parameters(place: Place) -> dict[str, tuple[str, str]]:
    """Return the default and the explanation of each parameter of a class, those of its bases
    first."""
    module, made = _find(place)
    known: dict[str, tuple[str, str]] = {}
    for base in made.bases:
        known |= _parameters((module, base.id)) if ast.unparse(base) in _names(module) else {}
    texts = described(ast.get_docstring(made))
    for node in made.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            required = [None] * (len(node.args.args) - len(node.args.defaults))
            values = list(
                zip([argument.arg for argument in node.args.args], [*required, *node.args.defaults])
            )[1:]
        elif isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
            values = [(ast.unparse(node.target), node.value)]
        else:
            continue
        known |= {name: (_default(module, value), texts.get(name, "")) for name, value in values}
    return known


def _default(module: str, value: ast.expr | None) -> str:
    """Return a default as YAML has it; `...` stands for a required one."""
    try:
        if isinstance(value, ast.Name):
            return _default(*_find((module, value.id))) or value.id
        plain = ast.literal_eval(value) if value else "..."
    except ValueError:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain)


def _find(place: Place) -> tuple[str, Any]:
    """Return the module that defines a name, through the imports that lead there, and the syntax of
    what it stands for."""
    target = _names(place[0])[place[1]]
    return _find(target) if isinstance(target, tuple) else (place[0], target)


@cache
def _names(module: str) -> dict[str, Any]:
    """Return what a module defines, as syntax, and what it imports of this package, as places."""
    names: dict[str, Any] = {}
    for node in ast.parse(
        (_PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    ).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            home = ".".join([*module.split(".")[: -node.level], node.module or ""])
            names |= {alias.asname or alias.name: (home, alias.name) for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names[
                ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
            ] = node.value
    return names
