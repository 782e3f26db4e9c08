"""Pairs from files: what is read, and one line for whatever is wrong with them."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.errors import ConfigError, DataError
from tempera.io.ids import given_ids
from tempera.tables import json_tables, separated
from tempera.tables import tables as readers
from tempera.text.read.pairs import Pairs
from tempera.text.read.sources import DOC_NAMES, QUERY_NAMES, Given, PairsFile
from tempera.text.read.text_files import TextFiles

ROWS = [("how, far", "as far as\nyou go"), ('a "b" c', "Größe 漢字"), (" padded ", "x")]
KINDS = [".parquet", ".arrow"] + [
    kind + end for kind in (".jsonl", ".json", ".csv", ".tsv") for end in ("", ".gz", ".zst")
]
OTHERS = [
    kind + end
    for kind in (".tab", ".dat", ".data", ".inter", ".user", ".item")
    for end in ("", ".gz", ".zst")
]


def encode(
    rows: list[tuple[str, str]], kind: str, names: tuple[str, str] = ("query", "doc")
) -> bytes:
    """Rows in a format, written by other means than those that read it where there are some."""
    if kind in (".parquet", ".arrow"):
        sink, table = (
            pa.BufferOutputStream(),
            pa.table({name: list(column) for name, column in zip(names, zip(*rows))}),
        )
        if kind == ".parquet":
            parquet.write_table(table, sink)
        else:
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
        return sink.getvalue().to_pybytes()
    sign = "\t" if ".tsv" in kind else ","
    if "json" in kind:
        text = "".join(json.dumps(dict(zip(names, row))) + "\n" for row in rows)
    else:
        quoted = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in [names, *rows]]
        text = "".join(sign.join(row) + "\r\n" for row in quoted)
    if kind.endswith(".zst"):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as packed:
            packed.write(text.encode())
        return sink.getvalue().to_pybytes()
    return gzip.compress(text.encode(), mtime=0) if kind.endswith(".gz") else text.encode()


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, bytes], str]:
    def write(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return write


def read(path: str, **options: Any) -> Pairs:
    pairs, asked = PairsFile(path, **options).read()
    assert asked.tolist() == [True] * len(pairs)
    return pairs


def refused(path: str, **options: Any) -> str:
    """The message, a line that says which file it is about, without the folder."""
    with pytest.raises(DataError) as error:
        PairsFile(path, **options).read()
    message = str(error.value)
    assert "\n" not in message and path in message
    return message.replace(path, Path(path).name)


@pytest.mark.parametrize("kind", KINDS)
def test_every_format(put, kind: str) -> None:
    path = put("pairs.of.two" + kind, encode(ROWS, kind))
    pairs = read(path)
    assert list(zip(pairs.texts("query"), pairs.texts("doc"))) == ROWS
    assert pairs.texts("place") == [f"{path} row {row}" for row in (1, 2, 3)]


def test_upper_case_extensions_byte_order_marks_and_repeated_rows(put) -> None:
    pairs = read(put("A.CSV", b"\xef\xbb\xbf" + encode([ROWS[0], ROWS[1], ROWS[0]], ".csv")))
    assert list(zip(pairs.texts("query"), pairs.texts("doc"))) == ROWS[:2]


def test_large_strings_and_more_columns_than_two(put, tmp_path: Path) -> None:
    columns = {"n": [1, 2], "doc": pa.array(["x", "y"], pa.large_string()), "query": ["a", "b"]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert read(str(tmp_path / "a.parquet"), metadata=("n",)).texts("doc") == ["x", "y"]
    rows = b'{"query": "a", "doc": "x"}\n\n{"more": 1, "doc": "y", "query": "b"}\n'
    late = read(put("a.jsonl", rows), metadata=("*",))
    assert late.texts("query") == ["a", "b"]


@pytest.mark.parametrize("kind", [".jsonl", ".csv"])
def test_texts_of_megabytes(put, kind: str) -> None:
    long = [("a" * 3_000_000, "b"), ("c", "d" * 3_000_000)]
    pairs = read(put("long" + kind, encode(long, kind)))
    assert list(zip(pairs.texts("query"), pairs.texts("doc"))) == long


@pytest.mark.parametrize("kind", [".jsonl", ".csv"])
@pytest.mark.parametrize("block", [100, 101, 127, 1000])
def test_a_block_may_end_anywhere(
    put, monkeypatch: pytest.MonkeyPatch, kind: str, block: int
) -> None:
    monkeypatch.setattr(json_tables, "BLOCK", block)
    monkeypatch.setattr(separated, "BLOCK", block)
    rows = [(f"query,\n\n{i}", f'"doc"\n{i}\n') for i in range(50)]
    pairs = read(put("a" + kind, encode(rows, kind)))
    assert list(zip(pairs.texts("query"), pairs.texts("doc"))) == rows


@pytest.mark.parametrize("kind", ["s", "ls", "li", "ln", "lls", "lln", "los", "ols", "oln", "lon"])
def test_json_lines_are_what_python_reads(put, kind: str) -> None:
    """Texts, numbers and nulls in lists and objects: Arrow alone loses the nulls that a first list
    begins with."""
    draw = random.Random(kind)

    def value(kind: str) -> Any:
        if kind == "n" or draw.random() < 0.35:
            return None
        if kind == "s":
            return draw.choice(["", "a", "null", "\u6f22"])
        if kind == "i":
            return draw.randint(-5, 5)
        if kind[0] == "l":
            return [value(kind[1:]) for _ in range(draw.randint(0, 3))]
        return {"x": value(kind[1:]), "y": value("s")}

    for _ in range(40):
        rows = [{"a": value(kind), "b": value("ls")} for _ in range(draw.randint(1, 4))]
        path = put("rows.jsonl", "\n".join(map(json.dumps, rows)).encode())
        assert [
            row for block in readers.blocks(Path(path)) for row in block.table.to_pylist()
        ] == rows


def test_a_table_whose_columns_change_their_type_is_refused(put) -> None:
    path = put("rows.jsonl", b'{"a": [1]}\n{"a": [2]}\n{"a": ["x"]}')
    with pytest.raises(DataError, match=r"rows\.jsonl: a column changes its type on the way: "):
        readers.read_table(Path(path))


def test_texts_that_look_like_something_else_stay_texts(put) -> None:
    rows = [("1", "2020-01-01"), ("word", "NA"), ("null", "word")]
    pairs = read(put("a.csv", encode(rows, ".csv")))
    assert list(zip(pairs.texts("query"), pairs.texts("doc"))) == rows


@pytest.mark.parametrize("query", ["query", "anchor", "question", "premise", "sentence1", "text1"])
@pytest.mark.parametrize(
    "doc",
    [
        "doc",
        "document",
        "positive",
        "answer",
        "passage",
        "context",
        "hypothesis",
        "sentence2",
        "text2",
    ],
)
def test_usual_names_of_columns(put, query: str, doc: str) -> None:
    path = put("a.jsonl", json.dumps({"other": "z", doc: "x", query: "a"}).encode())
    pairs = read(path, metadata=("other",))
    assert (pairs.texts("query"), pairs.texts("doc")) == (["a"], ["x"])


def test_of_two_usual_names_one_has_to_be_chosen(put) -> None:
    path = put("a.csv", b"answer,question,anchor\n1a,2a,3a\n")
    assert refused(path) == (
        "a.csv has 2 columns that are usual for a query: question, anchor; "
        "choose with data.query=question data.metadata=[anchor]"
    )
    assert read(path, query="anchor", metadata=("question",)).texts("query") == ["3a"]
    chosen = read(path, query="answer", doc="question", metadata=("anchor",))
    assert [chosen.texts(role) for role in ("query", "doc")] == [["1a"], ["2a"]]


NAMES = "a.csv has no column that is usual for a {} ({}); it has {}: name one with data.{}=COLUMN"


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_columns_that_another_sign_divides_are_read(put, sign: str) -> None:
    rows = ["query;doc", "what;that", "what, now;that, here", '"what; is\nit";\'so;']
    got = read(put("a.csv", "\n".join(rows).replace("'so;", "so").replace(";", sign).encode()))
    assert got.texts("query") == ["what", "what, now", f"what{sign} is\nit"]
    assert got.texts("doc") == ["that", "that, here", "so"]


@pytest.mark.parametrize(
    ("row", "query"), [('"what; now";that', "what; now"), ('a 5" pipe;that', 'a 5" pipe')]
)
def test_the_separator_within_quotes_does_not_hide_it(put, row: str, query: str) -> None:
    assert read(put("a.csv", f"query;doc\n{row}\n".encode())).texts("query") == [query]


@pytest.mark.parametrize("kind", [".csv", ".jsonl"])
def test_other_encodings_are_read(put, kind: str) -> None:
    rows = [("wo ist das Caf\u00e9?", "drau\u00dfen, \u201edort\u201c")]
    line = json.dumps(dict(zip(("query", "doc"), rows[0])), ensure_ascii=False)
    text = encode(rows, kind).decode() if kind == ".csv" else line
    marked = read(put("a" + kind, text.encode("utf-16")))
    assert (marked.texts("query"), marked.texts("doc")) == ([rows[0][0]], [rows[0][1]])
    assert "a" + kind + ": it is in UTF-16" in marked.about
    named = read(put("b" + kind, text.encode("cp1252")), encoding="cp1252")
    assert (named.texts("query"), named.texts("doc")) == ([rows[0][0]], [rows[0][1]])
    assert "data.encoding=latin-1" in refused(put("c" + kind, f"{text}\u00e9".encode("cp1252")))
    assert refused(put("d" + kind, text.encode("cp1252")), encoding="ascii")
    wrong = refused(put("e" + kind, text.encode("cp1252") + b"\xff"), encoding="shift_jis")
    assert " is not in shift_jis: " in wrong
    with pytest.raises(ConfigError, match="no encoding is called 'latin-99'"):
        read(put("f" + kind, text.encode()), encoding="latin-99")


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        ("qery,doc", {}, NAMES.format("query", ", ".join(QUERY_NAMES), "qery, doc", "query")),
        (
            "query,reply",
            {},
            NAMES.format("doc", ", ".join(DOC_NAMES[:9]) + ", ...", "query, reply", "doc"),
        ),
        (
            "title,body",
            {"query": "titel"},
            "a.csv has no column 'titel' for data.query; it has title, body. Did you mean title?",
        ),
        (
            "query,body",
            {"doc": "xyz"},
            "a.csv has no column 'xyz' for data.doc; it has query, body.",
        ),
        ("query,doc", {"doc": ""}, "a.csv has no column '' for data.doc; it has query, doc."),
        (
            "query,doc,query",
            {},
            "a.csv has 2 columns named 'query'; give each column a name of its own",
        ),
        (
            "query,doc,doc",
            {"doc": "doc"},
            "a.csv has 2 columns named 'doc'; give each column a name of its own",
        ),
    ],
)
def test_columns_that_are_not_there(
    put, header: str, options: dict[str, str], message: str
) -> None:
    row = ",".join("x" * (1 + header.count(",")))
    assert refused(put("a.csv", f"{header}\n{row}\n".encode()), **options) == message


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", b'query,doc\na,b\n" ",c\nx,\n', ", row 2: column 'query' has no text"),
        (
            "a.csv",
            b'query,doc\na,b\nc,"\t\n"\nx,\n',
            ", row 2: column 'doc' has no text (2 such rows)",
        ),
        (
            "a.jsonl",
            b'{"query":"a","doc":"b"}\n{"query":null,"doc":"c"}\n',
            ", row 2: column 'query' has no text",
        ),
        (
            "a.jsonl",
            b'{"query":"a","doc":"b"}\n{"query":"c"}\n',
            ", row 2: column 'doc' has no text",
        ),
        (
            "a.jsonl",
            '{"query":"a","doc":"\u00a0\u2028"}\n'.encode(),
            ", row 1: column 'doc' has no text",
        ),
        ("a.json", b'{"query":null,"doc":"b"}\n', ", row 1: column 'query' has no text"),
        ("a.json", b'{"query":1,"doc":"b"}\n', ": column 'query' holds int64; expected texts"),
        (
            "a.csv",
            "query,doc\nx,y\né,b\n".encode("latin-1"),
            ", row 2: column 'query' is not UTF-8",
        ),
        ("a.csv", f"query,doc\nx,{'y' * 200_000}\né,b\n".encode("latin-1"), " is not UTF-8"),
        (
            "a.csv",
            b'query,doc\n\na,"b\nc"\na,b,c\n',
            ": not a readable csv file: row 2 has 3 values for 2 columns",
        ),
        (
            "a.csv",
            b"query,doc\na,b\nc\n",
            ": not a readable csv file: row 2 has 1 value for 2 columns",
        ),
        ("a.tsv", b"1\t2\n3\t4\n5\n", ": not a readable tsv file: row 3 has 1 value for 2 columns"),
        (
            "a.json",
            b"{}",
            " has no column that is usual for a query (query, anchor, question, premise, sentence1, text1); it has no columns",
        ),
        (
            "a.jsonl",
            b'{"query":["a","b"],"doc":"b"}\n',
            ", row 1: column 'query' has several texts",
        ),
        (
            "a.jsonl",
            b'{"query":"a","doc":{"body":"b"}}\n',
            ": column 'doc' holds struct<body: string>; expected texts",
        ),
        (
            "a.jsonl",
            b'{"query":"e","doc":"b"}\n' + '{"query":"é","doc":"b"}'.encode("latin-1"),
            ", row 2: not UTF-8",
        ),
        (
            "a.jsonl",
            b'{"query":"a","doc":"b"}\n{"query":1,"doc":"b"}\n',
            ", row 2: column 'query' holds number, and string before: give every row values of one kind",
        ),
        ("a.jsonl", b'{"query":"\\ud800","doc":"b"}\n', ", row 1: "),
        (
            "a.csv",
            b"query,doc\n" + b"a,\"['b', 'c']\"\n" * 9 + b'd,"[""e""]"\n',
            ", row 1: column 'doc' holds lists that are written as text, as all rows do: write lists as JSON lines or Parquet",
        ),
        ("a.jsonl", b'{"query":"a","doc":"b"}\n\noops\n', ", row 2: not JSON: "),
        ("a.jsonl", b'{"query":"a","doc":', ", row 1: not JSON: "),
        (
            "a.jsonl",
            b'[["a","b"],\n{"query":"a","doc":"b"}]',
            ", row 2: expected an array, as the first row is, not '{",
        ),
        (
            "a.json",
            b'[{"query":"a","doc":"b"}, 3]',
            ", row 2: expected an object of columns, not '3'",
        ),
        ("a.json", b'[{"query":"a","doc":"b"}', ": not JSON: "),
        ("a.jsonl", b'{"query":"a","doc":["b",""]}', ", row 1: column 'doc' has no text"),
        ("a.jsonl", b'{"query":"a","doc":[]}', ", row 1: column 'doc' has no text"),
        (
            "a.csv",
            b"query,doc\na,b\nc, c\n",
            ", row 2: column 'doc' equals its query: set data.identical",
        ),
        ("a.jsonl", b'{"query":"a","doc":"b","neg":["c",""]}', ", row 1: column 'neg' has no text"),
        ("a.csv", b"query,doc,weight\na,b,1\nc,d,nan\n", ", row 2: column 'weight' has no number"),
        ("a.csv", b"query,doc,weight\na,b,1\nc,d,-1\n", ", row 2: column 'weight' is below 0"),
        (
            "a.csv",
            b"query,doc,weight\na,b,much\n",
            ", row 1: column 'weight' is 'much'; expected a number",
        ),
        (
            "a.csv",
            b"query,doc,score\na,b,1\n",
            ": column 'score' holds 1, as labels or grades, and rows of each would train as positives: give",
        ),
        *(
            (
                "a.csv",
                f"query,doc,{name}\na,b,1\n".encode(),
                f": column '{name}' holds 1, as labels or grades",
            )
            for name in ("relevance", "grade", "similarity", "is_duplicate")
        ),
        ("a.csv", b"query,doc,doc_id\na,b,1\nc,d,\n", ", row 2: column 'doc_id' has no id"),
        (
            "a.jsonl",
            b'{"query":"a","pos":["b","c"],"pos_scores":[1],"neg":["d"]}',
            ", row 1: column 'pos_scores' has 1 values for 2 texts",
        ),
        ("a.csv", b"query,doc\na,b\nx,y,z\n", ": not a readable csv file: "),
        ("a.csv", b"\n\n", ": not a readable csv file: "),
        ("a.csv", gzip.compress(b"query,doc\na,b\n", mtime=0), ": not a readable csv file: "),
        ("a.csv.gz", b"query,doc\na,b\n", ": not a readable csv.gz file: "),
        ("a.jsonl.gz", b'{"query":"a","doc":"b"}', ": not a readable jsonl.gz file: "),
        ("a.csv.gz", gzip.compress(b"", mtime=0), ": not a readable csv.gz file: "),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0), " holds no rows"),
        ("a.parquet", b"query,doc\na,b\n", ": not a readable parquet file: "),
    ],
)
def test_content_that_cannot_be_used(put, name: str, content: bytes, rows: str) -> None:
    assert refused(put(name, content), missing_text="refuse", identical="refuse").startswith(
        f"{name}{rows}"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "a.csv is empty"),
        ("a.csv.gz", b"", "a.csv.gz is empty"),
        ("a.parquet", b"", "a.parquet is empty"),
        ("a.csv", b"query,doc\n", "a.csv holds no rows"),
        ("a.csv", b"any,names\r\n", "a.csv holds no rows"),
        ("a.jsonl", b"\n\n", "a.jsonl holds no rows"),
    ],
)
def test_files_without_rows(put, name: str, content: bytes, message: str) -> None:
    assert refused(put(name, content)) == message


def test_a_parquet_file_without_rows(put) -> None:
    path = put("a.parquet", b"")
    parquet.write_table(
        pa.table({"query": pa.array([], pa.string()), "doc": pa.array([], pa.string())}), path
    )
    assert refused(path) == "a.parquet holds no rows"


@pytest.mark.parametrize(
    "name", ["a.txt", "a", "a.gz", "a.parquet.gz", "a.tar.gz", "csv", "a.csv.zip", "a.xls"]
)
def test_extensions_that_are_not_known(put, name: str) -> None:
    kind = {"a.gz": ".gz", "a.csv.zip": ".zip"}.get(name, name[1:] or "")
    kind = "a file without extension" if name in ("a", "csv") else kind
    assert (
        refused(put(name, b"one, two\nand three, or four, lines\n"))
        == f"{name}: cannot read {kind}; give one of {', '.join(KINDS + OTHERS)}"
    )


def test_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "nowhere.csv")
    for name in ("nowhere.csv", "nowhere", "link.csv", "folder.csv/a.csv"):
        assert refused(str(tmp_path / name)) == f"no such file: {Path(name).name}"


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv")
    assert refused(str(tmp_path / "rows.csv")) == "rows.csv is not a regular file"


def test_a_folder_may_be_called_as_a_file(tmp_path: Path) -> None:
    """As those that Spark and Dask write."""
    folder = tmp_path / "pairs.parquet"
    folder.mkdir()
    assert "holds no table" in refused(str(folder))
    for i in range(2):
        parquet.write_table(
            pa.table({"query": [f"q{i}"], "doc": [f"d{i}"]}), folder / f"part-{i}.parquet"
        )
    assert list(read(str(folder)).texts("doc")) == ["d0", "d1"]


@pytest.mark.parametrize("kind", [".csv.gz", ".jsonl.gz", ".parquet", ".arrow", ".jsonl.zst"])
def test_damaged_files(put, kind: str) -> None:
    """Cut short anywhere, or with any eighth byte and its neighbours overwritten: read as before,
    or refused in a line."""
    content = encode(ROWS * 40, kind)
    every = [content[:end] for end in range(1, len(content), 1 + len(content) // 40)]
    flipped = [
        content[:at] + b"\xff" * 4 + content[at + 4 :]
        for at in range(0, len(content), 1 + len(content) // 80)
    ]
    refusals: list[str] = []
    for damaged in [*every, *flipped]:
        path = put("a" + kind, damaged)
        try:
            PairsFile(path).read()
        except DataError as error:
            refusals.append(str(error))
    assert len(refusals) > 90 and all(
        "\n" not in message and path in message for message in refusals
    )
    assert len(every) > 30 and refused(put("b" + kind, content[:-9])).startswith(
        f"b{kind}: not a readable {kind[1:]} file: "
    )


def test_the_module_needs_no_other_to_be_imported_first(put) -> None:
    path = put("a.jsonl", encode(ROWS, ".jsonl"))
    code = f"from tempera.text.read.sources import PairsFile; print(len(PairsFile({path!r}).read()[0]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"


def test_texts_of_polars_are_texts(put, tmp_path: Path) -> None:
    view = pa.string_view()
    table = pa.table(
        {
            "query": pa.array(["a b", "c d"], view),
            "doc": pa.array(["e f", "g h"], view),
            "negatives": pa.array([["x y"], ["z"]], pa.large_list(view)),
        }
    )
    with pa.ipc.new_file(str(tmp_path / "polars.arrow"), table.schema) as file:
        file.write_table(table)
    for pairs in (PairsFile(str(tmp_path / "polars.arrow")).read()[0], Given.of(table).read()[0]):
        assert pairs.texts("doc") == ["e f", "g h"] and pairs.negative_texts.to_pylist() == [
            "x y",
            "z",
        ]
    category = pa.DictionaryArray.from_arrays(
        pa.array([1, None, 0], pa.uint32()), pa.array(["a", "b"], view)
    )
    assert readers.decoded(pa.table({"query": category}))["query"].to_pylist() == ["b", None, "a"]
    fixed = pa.array([["a"], ["b"]], pa.list_(view, 1))
    assert readers.decoded(pa.table({"doc": fixed}))["doc"].type == pa.list_(pa.large_string())
    vectors = pa.table({"vector": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))})
    assert readers.decoded(vectors) == vectors
    plain = pa.table(
        {"query": ["a b"], "doc": pa.array([["e f", "g h"]], pa.list_(pa.string(), 2))}
    )
    assert len(Given.of(plain).read()[0]) == 2
    kind = pa.list_(pa.struct([("docid", view), ("text", view)]))
    decoded = readers.decoded(
        pa.table({"positives": pa.array([[{"docid": "1", "text": "t"}]], kind)})
    )
    assert decoded["positives"].type.value_type.field("text").type == pa.large_string()
    assert decoded["positives"].to_pylist() == [[{"docid": "1", "text": "t"}]]


def test_hidden_files_are_not_read(tmp_path: Path) -> None:
    for name in ("pairs.csv", ".pairs.csv", ".ipynb_checkpoints/pairs.csv", "part/b.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"query,doc\n{name} a,{name} b\n")
    assert PairsFile(str(tmp_path)).read()[0].texts("query") == ["pairs.csv a", "part/b.csv a"]


def test_runs_in_the_folder_of_their_data_are_not_read(tmp_path: Path) -> None:
    runs = (f"runs/a{end}" for end in ("", ".partial", ".replaced", ".checkpoints", ".trackers"))
    kept = {"pairs.csv": "query,doc\na,b\n", "part.a/metrics.json": '{"query": "c", "doc": "d"}'}
    made = {
        f"{folder}/{name}": ""
        for folder in runs
        for name in ("config.yaml", "metrics.json", "log.jsonl", "README.md")
    }
    for name, content in {**kept, **made}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    pairs = PairsFile(str(tmp_path)).read()[0]
    assert sorted(pairs.texts("query")) == ["a", "c"]
    (tmp_path / "page.md").write_text("# Tea\n\nHow to make it. And how to drink it.\n")
    pages = TextFiles(str(tmp_path)).read()[0]
    assert {place.rpartition(":")[0] for place in pages.texts("place")} == {
        str(tmp_path / "page.md")
    }
    assert pages.dropped == {"files with other endings (.csv, .json)": 2}


def test_a_blank_negative_is_none_and_its_row_stays(tmp_path: Path) -> None:
    columns = {
        "query": ["a b", "c d"],
        "doc": ["e f", "g h"],
        "negative_1": ["m n", ""],
        "negative_2": [" ", "o p"],
    }
    pairs = Given.of(pa.table(columns)).read()[0]
    assert (
        len(pairs) == 2 and pairs.negative_texts.to_pylist() == ["m n", "o p"] and not pairs.dropped
    )
    lists = {
        **{name: columns[name] for name in ("query", "doc")},
        "negatives": [["x", "", None, "y"], [""]],
    }
    pairs = Given.of(pa.table(lists)).read()[0]
    assert len(pairs) == 2 and pairs.negative_texts.to_pylist() == ["x", "y"] and not pairs.dropped
    scored = {"negatives": [["x", "", "y"], ["z"]], "negative_ids": [["1", "2", "3"], ["4"]]}
    scored |= {"negative_scores": [[0.1, 0.2, 0.3], [0.4]], "positive_scores": [1.0, 1.0]}
    pairs = Given.of(
        pa.table({**{name: columns[name] for name in ("query", "doc")}, **scored})
    ).read()[0]
    assert pairs.negative_texts.to_pylist() == ["x", "y", "z"]
    assert pairs.negatives[0].tolist() == given_ids(pa.array(["1", "3", "4"])).tolist()
    scored["negative_scores"] = [[0.1, 0.3], [0.4]]  # of those alone that are not blank
    del scored["negative_ids"]
    pairs = Given.of(
        pa.table({**{name: columns[name] for name in ("query", "doc")}, **scored}),
        negative_margin=0.75,
    ).read()[0]
    assert pairs.negative_texts.to_pylist() == ["x"]  # 0.3 of 1 and 0.4 of 1 are close


@pytest.mark.parametrize("names", [("a.jsonl", "b.csv"), ("b.jsonl", "a.csv")])
def test_some_files_of_a_folder_may_lack_negatives(tmp_path: Path, names: tuple[str, str]) -> None:
    row = {"query": "a b", "doc": "e f", "negatives": ["x", "y"], "negative_scores": [0.5, 0.25]}
    (tmp_path / names[0]).write_text(json.dumps(row) + "\n")
    (tmp_path / names[1]).write_text("query,doc\nc d,g h\n")
    pairs = PairsFile(str(tmp_path)).read()[0]
    assert sorted(pairs.texts("query")) == ["a b", "c d"] and pairs.negative_texts.to_pylist() == [
        "x",
        "y",
    ]


def test_a_compressed_file_may_shout(put) -> None:
    assert read(put("pairs.csv.GZ", encode(ROWS, ".csv.gz"))).texts("query") == [
        query for query, _ in ROWS
    ]


def test_two_columns_of_one_name_are_refused(put) -> None:
    with pytest.raises(
        DataError, match="2 columns named 'query'; give each column a name of its own"
    ):
        readers.read_table(Path(put("pairs.csv", b"query,query\na,b\n")))


def test_ids_that_begin_anew_in_each_file_are_refused(tmp_path: Path) -> None:
    for name, start in (("train", 0), ("test", 40)):
        rows = [
            {"query": f"query {i}", "doc": f"text {i}", "n": i - start}
            for i in range(start, start + 30)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"path": str(tmp_path / "train.jsonl"), "test": str(tmp_path / "test.jsonl")}
    for option in ("query_id", "doc_id"):
        with pytest.raises(
            DataError,
            match=rf"30 rows of .* have a 'n' that another file gives .* leave data.{option} out",
        ):
            PairsFile(**given, **{option: "n"}).read()
    assert len(PairsFile(**given, metadata=["n"]).read()[0]) == 60
    assert (
        len(PairsFile(**{**given, "test": given["path"]}, doc_id="n", metadata=["*"]).read()[0])
        == 60
    )


def test_prompts_that_the_model_does_not_keep_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("query,doc\na,b\n")
    about = PairsFile(str(tmp_path / "a.csv"), query_prompt="q: ").read()[0].about
    assert about.endswith(
        "each query begins with 'q: ': so has a search to begin, since the saved model does not add it"
    )
    (tmp_path / "b.csv").write_text("query,doc,prompt\na,b,p\n")
    assert "begins with its row's prompt" in PairsFile(str(tmp_path / "b.csv")).read()[0].about
    assert "begin" not in PairsFile(str(tmp_path / "a.csv"), doc_prompt="d: ").read()[0].about


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("query,doc,rel\na,b,0\nc,d,2\n", {"metadata": ("rel", "*")}, ""),
        ("query,doc,rel\na,b,0\nc,d,2\n", {"score": "rel", "min_score": 1.0}, ""),
        ("query,doc,same\na,b,yes\nc,d,no\n", {"positive_labels": ("yes",)}, ""),
        ("query,doc,year\na,b,0\nc,d,2001\n", {}, ""),
        ("query,doc,rel\na,b,0\nc,d,0\n", {}, ""),
        (
            "query,doc\na,b\nc,d\n",
            {"min_score": 1.0},
            "data.min_score leaves nothing out, for no column holds scores",
        ),
    ],
)
def test_labels_that_nobody_reads_are_told(
    content: str,
    options: dict[str, Any],
    says: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "pairs.csv").write_text(content)
    PairsFile(path=str(tmp_path / "pairs.csv"), **{"metadata": ("*",), **options}).read()
    assert says in caplog.text if says else not caplog.text


NLI = ["premise", "hypothesis", "gold_label"]


@pytest.mark.parametrize(
    ("names", "values", "gives", "right"),
    [
        (NLI, ["entailment", "neutral", "-"], "positive_labels=[entailment]", ["entailment"]),
        (NLI, [0, 1, 2], "positive_labels=[0], as labels of inference have it", [0]),
        (["query", "doc", "x"], ["relevant", "irrelevant"], "positive_labels=[relevant]", ["relevant"]),
        (["query", "doc", "ok"], ["yes", "no"], "positive_labels=[yes]", ["yes"]),
        (["query", "doc", "thumbs_up"], ["true", "false"], "positive_labels=[true]", ["true"]),
        (["query", "doc", "vote"], [1, -1], "min_score=1;", [1]),
        (["query", "doc", "rel"], [0, 2], "min_score=2, the upper fifth of 0 to 2", [2]),
        (["sentence1", "sentence2", "x"], [0.5, 4.25, 3.8], "min_score=4, the upper", [4.25]),
        (["sentence1", "sentence2", "x"], [0.05, 0.97], "min_score=0.8, the upper", [0.97]),
        (["query", "doc", "stars"], [1, 5, 3], "min_score=4, the upper fifth of 1 to 5", [5]),
        (["query", "doc", "type"], ["relevant", "bad"], "positive_labels=[relevant]", ["relevant"]),
        (["question", "context", "is_impossible"], ["False", "True"], "positive_labels=[False]", ["False"]),
        (["heading", "section", "x"], ["0", "1"], "min_score=1;", ["1"]),
    ],
)  # fmt: skip
def test_a_column_of_few_values_or_grades_is_a_label_until_the_user_says_otherwise(
    put, names: list[str], values: list[Any], gives: str, right: list[Any]
) -> None:
    labels = (values * 6)[:6]
    rows = [f"how do I mend {i}?,you mend {i} by hand,{label}" for i, label in enumerate(labels)]
    path = put("a.csv", "\n".join([",".join(names), *rows]).encode())
    said = refused(path, metadata=("*",))
    assert f"column {names[2]!r} holds " in said and f": give data.{gives}" in said
    assert said.endswith(f"data.metadata=[{names[2]}]")
    assert len(read(path, metadata=(names[2], "*"))) == 6
    option, _, value = gives.rstrip(";").partition(",")[0].partition("=")
    chosen: Any = (value.strip("[]"),) if option == "positive_labels" else float(value)
    pairs = read(path, metadata=("*",), **{option: chosen})
    expected = [f"how do I mend {i}?" for i, label in enumerate(labels) if label in right]
    assert pairs.texts("query") == expected


def test_words_of_descriptions_and_a_single_label_are_no_labels(put) -> None:
    rows = ["query,doc,category,label", *(f"a {i},b {i},{'xy'[i % 2]},1" for i in range(40))]
    pairs = read(put("a.csv", "\n".join(rows).encode()), metadata=("*",))
    assert len(pairs) == 40 and "label     kept           holds 1 alone" in pairs.about
    zero = put("b.csv", "\n".join(rows).replace(",1", ",0").encode())
    assert "column 'label' holds 0" in refused(zero, metadata=("*",))


def test_a_label_that_is_single_in_the_first_rows_alone_is_told(put, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    put("shards/a.csv", b"query,doc,label\na,b,1\n")
    put("shards/b.csv", b"query,doc,label\nc,d,0\n")
    said = refused(str(tmp_path / "shards"), metadata=("*",))
    assert "column 'label' holds 1 at first, and 0 in " in said


def test_labels_are_compared_as_they_are_meant(put) -> None:
    rows = b"query,doc,label\na,b,1.0\nc,d,YES \ne,f,\ng,h,0\n"
    pairs = read(put("a.csv", rows), positive_labels=("1", "yes"))
    assert pairs.texts("query") == ["a", "c"] and pairs.dropped == {"rows of other labels": 2}
    with pytest.raises(ConfigError, match="both say which rows are pairs: give one of them"):
        read(put("a.csv", rows), positive_labels=("1",), min_score=1)
