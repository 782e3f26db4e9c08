"""The frozen list of options: equal to the signatures, and reasons for all that came later."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tempera
from tempera.errors import TemperaError
from tempera.options import known
from tempera.options.builder import Builder
from tempera.options.yaml_options import Options, parse

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    """The script that writes the list."""
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("_pages", ROOT / "docs" / "_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_has_every_option_of_the_signatures(pages: ModuleType) -> None:
    listed = list(known.groups())
    again = pages.known_groups(listed, tempera.__version__)
    assert known.written(again) == known.LIST.read_text(encoding="utf-8"), (
        "options differ from the frozen list: run python docs/_pages.py, and name the reason and the "
        "benchmark of a new option in known_options.json"
    )


def test_an_option_after_the_first_version_names_its_reason_and_its_benchmark() -> None:
    later = [
        (group.title, option)
        for group in known.groups()
        for option in group.options
        if option.since != known.FIRST
    ]
    for title, option in later:
        assert option.reason, f"{title}: {option.name} names no reason"
        assert (ROOT / option.bench).is_file(), f"{title}: {option.name} names no benchmark"


def test_a_new_option_gets_the_version_that_brings_it(pages: ModuleType) -> None:
    (first, *others) = known.groups()
    shorter = known.OptionGroup(
        first.title, first.section, first.choice, first.is_default, first.options[1:]
    )
    again = pages.known_groups([shorter, *others], "9.9")
    assert again[0].options[0].name == first.options[0].name
    assert again[0].options[0].since == "9.9"
    assert again[0].options[1].since == first.options[1].since


def parts_by_title(pages: ModuleType) -> dict[str, Any]:
    """The class or function behind each group of options."""
    registry = pages.registry
    parts: dict[str, Any] = {"objective": pages.Objective, **registry.PLAIN}
    for section, (kind, _, _) in registry.SECTIONS.items():
        if section != "objective":
            parts |= {f"{section}: {name}": make for name, make in registry.PARTS[kind].items()}
    for title, kind in pages.KINDS.items():
        parts |= {f"{title}: {name}": make for name, make in registry.PARTS[kind].items()}
    return parts | {make.__name__.lower(): make for make in pages.STATES}


def test_every_option_has_an_example_that_it_takes(pages: ModuleType) -> None:
    parts = parts_by_title(pages)
    refused = []
    for group in known.groups():
        hints = pages.registry.hints_of(parts[group.title])
        for option in group.options:
            try:
                value = parse(option.example)
                assert value is not None and option.example != option.default
                Builder(Options()).value(hints[option.name], value, option.name)
            except (AssertionError, TemperaError) as error:
                refused.append(f"{group.title}: {option.name}={option.example}: {error}")
    assert not refused, "\n" + "\n".join(refused)


def test_groups_survive_being_written_and_read() -> None:
    import json

    groups = list(known.groups())
    assert known.read(json.loads(known.written(groups))) == groups
