"""The frozen list of all options, in `known_options.json`.

`python docs/_pages.py` writes the list from the signatures of all parts, and a test fails where
list and signatures differ. An option added after version 0.1 names a reason and a benchmark.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..io.documents import parsed

LIST = Path(__file__).with_name("known_options.json")
FIRST = "0.1"  # the version whose options need no reason


@dataclass(frozen=True)
class KnownOption:
    """An option.

    Args:
        name: of the parameter.
        default: as YAML; `...` where the option is required.
        text: the explanation.
        example: a value to write after `=`, as YAML.
        since: the first version with the option.
        reason: the reason to offer the option; required after the first version.
        bench: the benchmark that shows the use, for example bench/recipe.py; required after the
            first version.
    """

    name: str
    default: str
    text: str
    example: str = ""
    since: str = FIRST
    reason: str = ""
    bench: str = ""


@dataclass(frozen=True)
class OptionGroup:
    """The options of a section, or of a part that a section or an option chooses.

    Args:
        title: unique, for example "data: pairs" or "mask: guided".
        section: of the configuration; empty for parts inside of an option.
        choice: the option that chooses the group, for example source=pairs; empty without a choice.
        is_default: True if the group is the default of the section.
        options: in the order of declaration.
    """

    title: str
    section: str
    choice: str
    is_default: bool
    options: tuple[KnownOption, ...]


@cache
def groups() -> tuple[OptionGroup, ...]:
    """Return all groups of options, in the order of the options page."""
    return tuple(read(parsed(LIST.read_text(encoding="utf-8"))))


def read(document: Any) -> list[OptionGroup]:
    """Return the groups of a document of `written`."""
    all_groups = []
    for group in document:
        options = tuple(KnownOption(**option) for option in group["options"])
        all_groups.append(OptionGroup(**{**group, "options": options}))
    return all_groups


def written(all_groups: list[OptionGroup]) -> str:
    """Return groups as JSON, an option a line."""
    blocks = []
    for group in all_groups:
        head = {key: value for key, value in asdict(group).items() if key != "options"}
        rows = [json.dumps(_without_empty(option), ensure_ascii=False) for option in group.options]
        body = ",\n    ".join(rows)
        opening = json.dumps(head, ensure_ascii=False)[:-1]
        blocks.append(f'  {opening}, "options": [\n    {body}\n  ]}}')
    return "[\n" + ",\n".join(blocks) + "\n]\n"


def _without_empty(option: KnownOption) -> dict[str, str]:
    """Return the fields of an option without empty fields."""
    plain = asdict(option)
    if option.since == FIRST:
        del plain["since"]
    for name in ("reason", "bench"):
        if not plain[name]:
            del plain[name]
    return plain
