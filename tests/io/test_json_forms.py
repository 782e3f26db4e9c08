"""JSON: arrays, documents over several lines, tables as pandas writes them, NaN."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tempera.errors import ConfigError, DataError
from tempera.tables import tables
from tempera.tables.table_form import TableForm

ROWS = [{"q": "a", "d": "x"}, {"q": "b", "d": "y"}, {"q": "c", "d": "z"}]
Put = Callable[[str, str], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def write(name: str, content: str) -> Path:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return tmp_path / name

    return write


def read(path: Path, **form: Any) -> list[dict[str, Any]]:
    blocks = [*tables.blocks(path, TableForm(**form))]
    rows: list[dict[str, Any]] = tables.joined([block.table for block in blocks], "a").to_pylist()
    return rows


COLUMNS = {name: {str(i): row[name] for i, row in enumerate(ROWS)} for name in ("q", "d")}


@pytest.mark.parametrize(
    "content",
    [
        "\n".join(json.dumps(row, indent=2) for row in ROWS),
        "".join(map(json.dumps, ROWS)),
        json.dumps(ROWS, indent=1),
        json.dumps(ROWS),
        json.dumps(COLUMNS),
        json.dumps(COLUMNS, indent=1),
        json.dumps(
            {"columns": ["q", "d"], "index": [0, 1, 2], "data": [[*r.values()] for r in ROWS]}
        ),
        json.dumps({str(i): row for i, row in enumerate(ROWS)}),
        json.dumps({name: [row[name] for row in ROWS] for name in ("q", "d")}),
        json.dumps({"schema": {"fields": []}, "data": ROWS}),
        json.dumps({"info": {"slice": "0-9"}, "playlists": ROWS}, indent=4),
    ],
)
def test_documents_that_hold_a_table(put: Put, content: str) -> None:
    assert read(put("a.json", content)) == ROWS


def test_objects_over_several_lines_are_rows_of_lines_too(put: Put) -> None:
    assert read(put("a.jsonl", "\n\n".join(json.dumps(row, indent=2) for row in ROWS))) == ROWS
    assert read(put("b.jsonl", json.dumps(ROWS))) == ROWS


def test_rows_by_their_ids_keep_them(put: Put) -> None:
    path = put("a.json", json.dumps({"d1": {"text": "a"}, "d2": {"text": "b"}}))
    assert read(path) == [{"id": "d1", "text": "a"}, {"id": "d2", "text": "b"}]


@pytest.mark.parametrize(
    "row",
    [
        {"query": "a", "pos": ["x", "y"], "neg": ["z", "v"]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"query": "a", "passages": {"text": ["x", "y"]}},
    ],
)
def test_one_row_stays_one(put: Put, row: dict[str, Any]) -> None:
    assert read(put("a.jsonl", json.dumps(row))) == [row]
    assert read(put("a.json", json.dumps(row, indent=1))) == [row]


@pytest.mark.parametrize("kind", [".jsonl", ".json"])
def test_arrays_are_rows(put: Put, kind: str) -> None:
    lines = "\n".join(map(json.dumps, [["a", "x"], ["b", "y", "n"], ["c", None]]))
    expected = [
        {"column1": "a", "column2": "x", "column3": None},
        {"column1": "b", "column2": "y", "column3": "n"},
        {"column1": "c", "column2": None, "column3": None},
    ]
    assert read(put("a" + kind, lines)) == expected
    named = read(put("a" + kind, lines), columns=("q", "p", "n"))
    assert named[1] == {"q": "b", "p": "y", "n": "n"}
    with pytest.raises(ConfigError, match=r"names 2 columns, and row 2 of .* has 3 values"):
        read(put("a" + kind, lines), columns=("q", "p"))


def test_one_array_of_arrays(put: Put) -> None:
    content = json.dumps([["a", ["x"]], ["b", ["y", "z"]]], indent=1)
    assert read(put("a.json", content))[1] == {"column1": "b", "column2": ["y", "z"]}
    assert read(put("a.json", json.dumps([["a", "x"]]))) == [{"column1": "a", "column2": "x"}]


def test_lists_by_name_stay_lists(put: Put) -> None:
    assert read(put("a.jsonl", '{"set": ["a", "b"]}\n{"set": ["c"]}\n'))[1] == {"set": ["c"]}


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_missing(put: Put, name: str) -> None:
    rows = ['{"a": "NaN", "b": 1}', f'{{"a": {name}, "b": 2}}', '{"a": "y", "b": 3}']
    path = put("a.jsonl", "\n".join(rows))
    assert [row["a"] for row in read(path)] == ["NaN", None, "y"]
    assert [row["b"] for row in read(path)] == [1, 2, 3]
    assert [*tables.blocks(path)][-1].notes == ("NaN and Infinity are read as missing values",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "{'a': 1}",
            "row 1: not JSON: .*; it is as Python writes a dict: write rows with json.dumps",
        ),
        ('{"a": 1}\n{\n"a": }\n', "row 2: not JSON: "),
        ('["a"]\n{"a": 1}\n', "row 2: expected an array, as the first row is, not "),
        ('["a", "b"]\n["c", \n', "row 2: not JSON: "),
        ('{"a": NaN}\n{"a": \n', "row 2: not JSON: "),
        ("7\n", "row 1: expected an object of columns, not '7'"),
    ],
)
def test_faults_are_told_by_row(put: Put, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(put("a.jsonl", content))


def test_names_are_not_given_twice(put: Put) -> None:
    with pytest.raises(ConfigError, match=r"a\.jsonl names its own: leave it out"):
        read(put("a.jsonl", '{"a": 1}\n'), columns=("b",))
