"""The frozen list of options: equal to the signatures, and reasons for all that came later."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import tempera
from tempera.options import known

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


def test_groups_survive_being_written_and_read() -> None:
    import json

    groups = list(known.groups())
    assert known.read(json.loads(known.written(groups))) == groups
