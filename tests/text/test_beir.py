"""BEIR folders: what is read, and one line with file and row for whatever is wrong with them."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tempera.errors import DataError
from tempera.forms.set_files import is_beir
from tempera.text.read.beir import read_beir, write_beir

CORPUS: list[dict[str, Any]] = [
    {"_id": "d1", "title": "A title", "text": "and text", "metadata": {"url": [1]}},
    {"_id": "d2", "title": "", "text": " 漢字 \n"},
    {"_id": "10", "text": "without a title"},
    {"_id": "d4", "title": "only a title", "text": ""},
]
QUERIES: list[dict[str, Any]] = [{"_id": f"q{i}", "text": f"query {i}"} for i in range(5)]
JUDGED = [
    ("q3", "d1", "2"),
    ("q1", "10", "1"),
    ("q1", "d2", "0"),
    ("q2", "d4", "0"),
    ("q3", "d4", "0.5"),
]
HEADER = "query-id\tcorpus-id\tscore\n"


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def tsv(rows: list[tuple[str, ...]], header: str = HEADER) -> bytes:
    return (header + "".join("\t".join(row) + "\n" for row in rows)).encode()


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A folder; some of its files with another content."""

    def write(**changed: bytes) -> Path:
        (tmp_path / "qrels").mkdir(exist_ok=True)
        files = {"corpus": jsonl(CORPUS), "queries": jsonl(QUERIES), "test": tsv(JUDGED)} | changed
        for name, content in files.items():
            path = tmp_path / ("qrels/test.tsv" if name == "test" else f"{name}.jsonl")
            path.write_bytes(content)
        return tmp_path

    return write


def answers(folder: Path) -> dict[str, dict[str, float]]:
    """The judgements that were read, by ids."""
    found = read_beir(folder)
    query, doc = found.queries["id"].to_pylist(), found.corpus["id"].to_pylist()
    judged: dict[str, dict[str, float]] = {}
    for q, d, grade in zip(found.query, found.doc, found.grade, strict=True):
        judged.setdefault(query[q], {})[doc[d]] = float(grade)
    return judged


def test_what_is_there_is_read(write: Write) -> None:
    folder = write()
    found = read_beir(folder)
    assert found.corpus.to_pydict() == {
        "id": ["d1", "d2", "10", "d4"],
        "title": ["A title", "", "", "only a title"],
        "text": ["A title and text", "漢字", "without a title", "only a title"],
    }
    assert found.queries.to_pydict() == {
        "id": ["q1", "q3"],
        "title": ["", ""],
        "text": ["query 1", "query 3"],
    }
    assert answers(folder) == {"q3": {"d1": 2, "d4": 0.5}, "q1": {"10": 1, "d2": 0}}
    assert found.unused == {
        "queries that the split does not name": 2,
        "queries without a relevant document": 1,
        "judgements of queries without a relevant document": 1,
        "repeated judgements": 0,
    }
    assert is_beir(folder) and not is_beir(folder / "qrels")


def test_gzip_blank_lines_marks_and_no_header_change_nothing(write: Write) -> None:
    folder = write()
    before = answers(folder)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        content = (
            (folder / name).read_bytes().removeprefix(HEADER.encode()).replace(b"\n", b"\r\n\r\n")
        )
        (folder / name).unlink()
        (folder / f"{name}.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + content))
    assert is_beir(folder) and answers(folder) == before


def test_an_exact_repeat_is_counted(write: Write) -> None:
    found = read_beir(write(test=tsv([*JUDGED, JUDGED[0], JUDGED[0]])))
    assert found.unused["repeated judgements"] == 2 and len(found.query) == 4


FAULTS: list[tuple[dict[str, bytes], str]] = [
    (
        {"test": tsv([JUDGED[0], ("q1", "gone", "1"), ("q1", "away", "1")])},
        "qrels/test.tsv, row 2: column 'corpus-id' is 'gone', but no document has this id, as of 2 of 3 judgements (2 such rows)",
    ),
    (
        {"test": tsv([("", "d1", "1"), *JUDGED])},
        "qrels/test.tsv, row 1: column 'query-id' has no id",
    ),
    (
        {"test": tsv([("q9", "d1", "1")])},
        "qrels/test.tsv, row 1: column 'query-id' is 'q9', but no query has this id, as of 1 of 1 judgements",
    ),
    (
        {"test": tsv([*JUDGED, ("q1", "d1", "nan")])},
        "qrels/test.tsv, row 6: column 'score' has no number",
    ),
    (
        {"test": tsv([("q1", "d1", "inf")])},
        "qrels/test.tsv, row 1: column 'score' is infinite",
    ),
    (
        {"test": tsv([("q1", "d1", "yes")])},
        "qrels/test.tsv, row 1: column 'score' is 'yes'; expected a number",
    ),
    (
        {"test": tsv([("q1", "d1")])},
        "qrels/test.tsv: not a readable tsv file: row 1 has 2 values for 3 columns: give each row 3",
    ),
    (
        {"test": tsv([("q1", "d1", "0")])},
        "qrels/test.tsv names no relevant document: give judgements with grades above 0",
    ),
    ({"test": b""}, "qrels/test.tsv is empty"),
    (
        {"test": HEADER.encode() + b"q1\td\xff\t1\n"},
        "qrels/test.tsv, row 1: column 'corpus-id' is not UTF-8: save it as UTF-8",
    ),
    (
        {"corpus": jsonl([*CORPUS, CORPUS[1]])},
        "corpus.jsonl, row 5: the id 'd2' repeats row 2; give every row its own id",
    ),
    (
        {"corpus": jsonl([CORPUS[0], {"_id": "d9"}, {"_id": "d8", "text": " "}])},
        "corpus.jsonl: 2 of its 3 rows have no text: check that the text is in a column of this name",
    ),
    (
        {"corpus": jsonl([*CORPUS, {"_id": "d9", "text": "a", "title": 7}])},
        "corpus.jsonl, row 5: column 'title' holds number: write it as a text, such as \"7\"",
    ),
    (
        {"queries": jsonl([*QUERIES, {"_id": 7, "text": "a"}])},
        "queries.jsonl, row 6: column '_id' holds number: write it as a text, such as \"7\"",
    ),
    (
        {"corpus": jsonl([{"_id": 7, "text": "a"}])},
        "corpus.jsonl, row 1: column '_id' holds number: write it as a text, such as \"7\"",
    ),
    (
        {"corpus": jsonl([{"_id": ["d"], "text": "a"}])},
        "corpus.jsonl, row 1: column '_id' holds array: write it as a text, such as \"7\"",
    ),
    (
        {"queries": jsonl([*QUERIES, {"_id": "", "text": "a"}])},
        "queries.jsonl, row 6: column '_id' has no id",
    ),
    ({"queries": jsonl([*QUERIES, {"text": "a"}])}, "queries.jsonl, row 6: column '_id' has no id"),
    ({"queries": b"[1]\n"}, "queries.jsonl, row 1: expected an object of columns, not '[1]'"),
    (
        {"queries": jsonl(QUERIES) + b'{"_id": "q'},
        "queries.jsonl, row 6: not JSON: Unterminated string starting at: line 1 column 9 (char 8)",
    ),
    (
        {"queries": b'{"_id": "a", "text": "\xe4"}\n'},
        "queries.jsonl, row 1: not UTF-8: save it as UTF-8",
    ),
    ({"queries": b""}, "queries.jsonl is empty"),
]


@pytest.mark.parametrize(
    ("changed", "message"), FAULTS, ids=[message[:60] for _, message in FAULTS]
)
def test_faults_are_told_by_file_and_row(
    write: Write, changed: dict[str, bytes], message: str
) -> None:
    folder = write(**changed)
    with pytest.raises(DataError) as error:
        read_beir(folder)
    assert str(error.value) == f"{folder}/{message}"


def test_an_escape_that_is_no_character(write: Write) -> None:
    folder = write(queries=b'{"_id": "a", "text": "\\ud800"}\n')
    with pytest.raises(DataError, match=r"queries.jsonl, row 1: "):
        read_beir(folder)


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_a_truncated_gzip(write: Write, name: str) -> None:
    folder = write(
        corpus=jsonl([{"_id": f"d{i}", "text": os.urandom(9).hex()} for i in range(2000)])
    )
    content = gzip.compress((folder / name).read_bytes())
    (folder / name).unlink()
    (folder / f"{name}.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(
        DataError, match=rf"{name}.gz: not a readable \w+.gz file.*: Compressed file ended before"
    ):
        read_beir(folder)


def test_what_is_not_there(write: Write, tmp_path: Path) -> None:
    folder = write()
    with pytest.raises(DataError) as error:
        read_beir(folder, "dev")
    assert str(error.value) == f"no such file: {folder}/qrels/dev.tsv; give another split: test"
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(DataError) as error:
        read_beir(folder)
    assert str(error.value).startswith(f"no such file: {folder}/corpus.jsonl, and no other table")
    with pytest.raises(DataError, match="no such folder"):
        read_beir(tmp_path / "none")


def test_a_pair_judged_twice_is_written_with_the_highest_grade(tmp_path: Path) -> None:
    judged = (["q", "q", "q"], ["d", "e", "d"], [2.0, 1.0, 1.0])
    write_beir(tmp_path, {"d": "a text", "e": "another"}, {"q": "asks"}, {"test": judged})
    rows = (tmp_path / "qrels" / "test.tsv").read_text().splitlines()
    assert rows[1:] == ["q\td\t2", "q\te\t1"]
    assert read_beir(tmp_path).grade.tolist() == [2, 1]


def test_an_id_that_would_divide_a_row_of_judgements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'q\\t1' cannot be an id"):
        write_beir(tmp_path, {"d": "a text"}, {"q\t1": "asks"}, {"test": (["q\t1"], ["d"])})
    assert not list(tmp_path.iterdir())


def test_what_sets_hold_that_judges_nothing_is_left_out_and_counted(write: Write) -> None:
    """Grades of -1 and empty documents of TREC-COVID, two grades of one pair, ids of nothing."""
    blank = [{"_id": "d8", "title": " ", "text": "\t"}, {"_id": "d9"}, {"_id": "d7", "text": None}]
    judged = [*JUDGED, ("q1", "d4", "-1"), ("q3", "d1", "1"), ("q3", "d4", "3"), ("q1", "d9", "1")]
    folder = write(
        corpus=jsonl([*CORPUS, *blank]),
        queries=jsonl([*QUERIES, {"_id": "q9", "text": " "}]),
        test=tsv([*judged, ("q9", "d1", "1"), ("q1", "away", "1")]),
    )
    assert answers(folder) == {"q3": {"d1": 2, "d4": 3}, "q1": {"10": 1, "d2": 0, "d4": 0}}
    found = read_beir(folder)
    assert found.corpus["id"].to_pylist() == ["d1", "d2", "10", "d4"]
    assert {kind: count for kind, count in found.unused.items() if "quer" not in kind} == {
        "repeated judgements": 0,
        "lower ones of two grades of a pair": 2,
        "documents without a text": 3,
        "judgements below 0, which count as not relevant": 1,
    }
    assert found.unused["queries without a text"] == 1
    assert found.unused["judgements of a document or query without a text"] == 2
    assert found.unused["judgements of an unknown query or document"] == 1
    again = read_beir(folder, "test", found)  # of whose texts the first has told
    assert again.unused.items() < found.unused.items() and len(again.corpus) == 4
