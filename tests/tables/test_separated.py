"""Separated values: what divides them, quotes that are part of values, and lines without names."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tempera.errors import ConfigError, DataError
from tempera.tables import separated, tables
from tempera.tables.table_form import TableForm

Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def write(content: str | bytes, name: str = "a.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def read(path: Path, **form: Any) -> list[list[str | None]]:
    """Rows of a file, the names first."""
    table = tables.joined([block.table for block in tables.blocks(path, TableForm(**form))], "a")
    return [table.column_names, *map(list, zip(*(c.to_pylist() for c in table.columns)))]


def notes(path: Path) -> str:
    return "; ".join([*tables.blocks(path)][-1].notes)


def refused(path: Path, **form: Any) -> str:
    with pytest.raises((DataError, ConfigError)) as error:
        read(path, **form)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", [".tsv", ".csv", ".tsv.gz", ".dat"])
@pytest.mark.parametrize("sign", ["\t", ";", ","])
@pytest.mark.parametrize("begins", ['"', '"No" and ', '"Yes"" or '])
def test_quotes_that_enclose_nothing_are_part_of_values(
    put: Put, kind: str, sign: str, begins: str
) -> None:
    rows = [["question", "answer"]]
    rows += [[f"q {i}", f"{begins}a {i}" if i % 7 == 3 else f"a {i}"] for i in range(60)]
    content = "\n".join(map(sign.join, rows)).encode()
    path = put(gzip.compress(content) if kind.endswith(".gz") else content, "a" + kind)
    assert read(path) == rows
    assert "double quotes are part of its values" in notes(path)


def test_one_quote_that_is_never_closed(put: Put) -> None:
    rows = [["question", "answer"], ["a", '"x'], *([str(i), f"y {i}"] for i in range(9))]
    assert read(put("\n".join(map("\t".join, rows)), "a.tsv")) == rows


def test_a_quote_that_another_row_closes_at_its_end(put: Put) -> None:
    rows = [["q", "a"], ["b", '"x'], ["c", "y"], ["d", "z"], ["e", 'a pipe of 5"'], ["f", "v"]]
    assert read(put("\n".join(map("\t".join, rows)), "a.tsv")) == rows


@pytest.mark.parametrize("sign", [",", "\t", ";"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
def test_texts_of_several_lines_in_quotes_are_read(put: Put, sign: str, quoting: Any) -> None:
    texts = ['Dear "friend",\nthank you; very\tmuch,\n\nbye', "one\ntwo", "plain", '"said"', "a, b"]
    rows = [["query", "doc"], *([f"q {i}", texts[i % 5]] for i in range(40))]
    content = io.StringIO(newline="")
    csv.writer(content, delimiter=sign, quoting=quoting, lineterminator="\r\n").writerows(rows)
    assert read(put(content.getvalue())) == rows


def test_a_value_that_swallows_rows_among_values_in_quotes_is_refused_by_row(put: Put) -> None:
    lines = ["query,doc", '"a, b",x', 'c,"y', "d,z", "e,v", 'f,"w and', "g,u", '"h, i",t']
    message = refused(put("\n".join(lines)))
    assert ", row 2: column 'doc' begins with a double quote and runs over 4 lines" in message
    tabs = ["a\tb\tc", '1\t"x\ty"\tz', "2\t3\t4\t5"]  # of which one has too many values
    assert ": row 2 has 4 values for 3 columns" in refused(put("\n".join(tabs), "a.tsv"))


def test_lines_alike_do_not_make_two_lines_of_a_text_rows(put: Put) -> None:
    assert read(put('query;doc\nwhat;that\n"what; is\nit";so\n'))[-1] == ["what; is\nit", "so"]


@pytest.mark.parametrize("sign", ["::", ";", "|", "\t", " ", "   ", ","])
@pytest.mark.parametrize("name", ["ratings.dat", "u.data", "events.txt", "a.item", "ratings"])
def test_what_divides_values_is_told_by_the_content(put: Put, sign: str, name: str) -> None:
    rows = [[str(i % 7), f"i{i % 11}", str(1_300_000_000 + i)] for i in range(30)]
    path = put("\n".join(map(sign.join, rows)) + "\n", name)
    assert read(path)[1:] == rows
    assert "called column1, column2, column3" in notes(path)
    assert separated.is_separated(path)


def test_many_blocks_of_two_colons(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separated, "BLOCK", 101)
    rows = [[str(i), "b:c", f"{i} d"] for i in range(60)]
    assert read(put("\n".join(map("::".join, rows)), "a.dat"))[1:] == rows


def test_lines_of_a_user_and_items(put: Put) -> None:
    path = put("0 5 7\n1 5\n 2  7 9 11\n3\n", "train.txt")
    assert separated.is_separated(path)
    assert read(path) == [
        ["user", "items"],
        ["0", ["5", "7"]],
        ["1", ["5"]],
        ["2", ["7", "9", "11"]],
        ["3", []],
    ]


def test_files_that_many_have_are_known_by_their_names(put: Put) -> None:
    rows = ["1::Am\u00e9lie (2001)::Comedy|Romance", "2::Heat (1995)::Action"]
    path = put("\n".join(rows).encode("latin-1"), "movies.dat")
    assert read(path)[0] == ["item", "title", "genres"]
    assert read(path)[1][1] == "Am\u00e9lie (2001)"
    assert "as MovieLens describes them" in notes(path)
    assert read(put("1\t2\t3\t881250949\n", "u.data"))[0] == ["user", "item", "rating", "time"]
    assert read(put("a\tb\n1\t2\n", "u.data"))[0] == ["a", "b"]  # another file of that name
    assert read(path, columns=("id", "name", "tags"))[0] == ["id", "name", "tags"]


@pytest.mark.parametrize(
    "text",
    [
        "One, two and three.\nFour, five and six.\n",
        "Just one line\n",
        "words here\nand there\n",
        "\0\1\t\2\n\3\t\4",
        "a b\nc d e\n",
    ],
)
def test_texts_are_no_tables(put: Put, text: str) -> None:
    path = put(text, "a.txt")
    assert not separated.is_separated(path)
    assert "a.txt: cannot read .txt" in refused(path)


def test_the_first_event_is_not_lost(put: Put) -> None:
    rows = [
        [f"user_{i % 5:06d}", f"2009-05-{1 + i % 28:02d}T23:08:57Z", f"Band {i}"] for i in range(40)
    ]
    assert read(put("\n".join(map("\t".join, rows)), "a.tsv"))[1:] == rows
    path = put("\n".join(map("\t".join, rows)), "b.tsv")
    assert read(path, columns=("user", "time", "item")) == [["user", "time", "item"], *rows]
    assert read(path, header=True) == rows
    assert read(path, header=False)[0] == ["column1", "column2", "column3"]
    assert refused(path, columns=("user", "item")) == (
        f"data.columns names 2 columns, and the first line of {path} has 3 values: "
        "name each column once, in their order"
    )


def test_names_take_the_place_of_a_line_of_names(put: Put) -> None:
    path = put("u,i,r\n1,7,4\n2,8,5\n")
    assert read(path, columns=("user", "item", "rating"))[:2] == [
        ["user", "item", "rating"],
        ["1", "7", "4"],
    ]
    both = put("a,b\nc,d\n")  # where nothing tells, the file has no names, since they are given
    assert read(both, columns=("x", "y")) == [["x", "y"], ["a", "b"], ["c", "d"]]
    assert read(both, columns=("x", "y"), header=True) == [["x", "y"], ["c", "d"]]
    assert read(both, columns=("a", "b")) == [["a", "b"], ["c", "d"]]


def test_one_line_of_numbers(put: Put) -> None:
    assert read(put("1\t5\t3\n", "a.tab")) == [["column1", "column2", "column3"], ["1", "5", "3"]]


def test_a_name_that_is_data_counts_rows_from_the_first_line(put: Put) -> None:
    assert ": row 3 has 1 value for 2 columns" in refused(put("1\t2\n3\t4\n5\n", "a.tsv"))


def test_recbole_files_without_types_are_separated_values(put: Put) -> None:
    assert read(put("user_id\titem_id\n1\t2\n", "a.inter")) == [["user_id", "item_id"], ["1", "2"]]


def test_options_of_texts_are_refused_where_a_file_holds_them_itself(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    assert "data.header is for tables that are written as text" in refused(
        tmp_path / "a.parquet", header=False
    )


def test_a_folder_of_files_without_known_names(tmp_path: Path) -> None:
    for part in "ab":
        (tmp_path / f"{part}.txt").write_text("1 2\n3 4\n")
    assert [file.name for file in tables.files_of(tmp_path)] == ["a.txt", "b.txt"]


def test_the_line_that_tells_excel_the_sign_is_refused(tmp_path: Path) -> None:
    for sign in (";", ","):
        path = tmp_path / "a.csv"
        path.write_text(f"sep={sign}\nquestion{sign}answer\na{sign}b\n")
        with pytest.raises(
            DataError, match=rf"its first line, 'sep={sign}', tells Excel .*: remove it"
        ):
            list(separated.csv_tables(path))
