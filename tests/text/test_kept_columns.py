"""Columns without a role stay with the documents, whatever the form of the data; the oracle takes
the first value of each document in plain Python."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import tempera as library
from tempera.corpus.index import Index, write_index
from tempera.errors import DataError, TemperaError
from tempera.options.build import build
from tempera.options.yaml_options import load
from tempera.tables.kept_columns import aligned, first_values, plain_values, typed
from tempera.text.read.pairs import Pairs
from tempera.text.read.sources import Given, PairsFile
from tempera.text.train.catalogue import Catalogue
from tempera.text.train.mixture import Mixture
from tempera.text.train.unpaired_texts import Documents

from ..conftest import Command, planted, small_options

COUNT = 14
Row = dict[str, Any]
Kept = dict[str, Row]  # columns of each document, by its text


def rows() -> list[Row]:
    """Fourteen questions for seven documents; some values are missing, and one column is long."""
    result = []
    for i in range(COUNT):
        doc = i // 2
        result.append(
            {
                "question": f"how do I mend part {i}?",
                "answer": f"Take the brush of number {doc} and wait. Then clean it.",
                "url": None if i % 4 == 0 else f"https://help.example/{i}",
                "ticket": f"{doc + 12345:07}",
                "year": 2000 + i,
                "weight in kg": 812.5 + 90 * i,
                "day": dt.date(2024, 1, 1 + i),
                "body": "long " * (50 if i == COUNT - 1 else 1),
            }
        )
    return result


COLUMNS = ("url", "ticket", "year", "weight in kg", "day")


def oracle(every: list[Row], columns: tuple[str, ...] = COLUMNS) -> Kept:
    """The first value of each column of each document."""
    kept: Kept = {}
    for row in every:
        document = kept.setdefault(row["answer"], dict.fromkeys(columns))
        for name in columns:
            if document[name] is None:
                document[name] = row.get(name)
    return kept


def of_pairs(pairs: Pairs) -> Kept:
    """What an index would hold of the documents of pairs."""
    table = Catalogue.of(pairs).table()
    return dict(zip(table["doc"].to_pylist(), table["columns"].to_pylist(), strict=True))


def written(every: list[Row]) -> list[Row]:
    """Rows with dates as texts, for JSON and CSV."""
    return [{name: str(x) if name == "day" else x for name, x in row.items()} for row in every]


def as_csv(path: Path, every: list[Row], sign: str = ",") -> Path:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(every[0]), delimiter=sign)
        table.writeheader()
        table.writerows(every)
    return path


def as_lines(path: Path, every: list[Row]) -> Path:
    path.write_text("\n".join(map(json.dumps, written(every))), encoding="utf-8")
    return path


def as_parquet(path: Path, every: list[Row]) -> Path:
    parquet.write_table(pa.Table.from_pylist(every), path)
    return path


def as_arrow(path: Path, every: list[Row]) -> Path:
    table = pa.Table.from_pylist(every)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return path


def as_shards(path: Path, every: list[Row]) -> Path:
    path.mkdir()
    as_csv(path / "a.csv", every[:5])
    as_csv(path / "b.csv", every[5:])
    return path


def with_metadata(path: Path, every: list[Row]) -> Path:
    """JSON lines with some of the columns in a record."""
    inside = ("url", "ticket", "year", "weight in kg", "day")
    nested = []
    for row in written(every):
        others = {name: value for name, value in row.items() if name not in inside}
        nested.append({**others, "metadata": {name: row[name] for name in inside}})
    path.write_text("\n".join(map(json.dumps, nested)), encoding="utf-8")
    return path


def as_answers(path: Path, every: list[Row]) -> Path:
    """JSON lines whose answers are lists."""
    lists = [{**row, "answer": [row["answer"]]} for row in written(every)]
    path.write_text("\n".join(map(json.dumps, lists)), encoding="utf-8")
    return path


FILES: dict[str, tuple[str, Callable[[Path, list[Row]], Path]]] = {
    "csv": ("a.csv", as_csv),
    "csv, packed": ("a.csv.gz", as_csv),
    "semicolons": ("a.csv", lambda path, every: as_csv(path, every, ";")),
    "tabs": ("a.tsv", lambda path, every: as_csv(path, every, "\t")),
    "shards": ("shards", as_shards),
    "JSON lines": ("a.jsonl", as_lines),
    "JSON lines, lists": ("a.jsonl", as_answers),
    "JSON lines, a record": ("a.jsonl", with_metadata),
    "JSON": (
        "a.json",
        lambda path, every: path.write_text(json.dumps(written(every))) and path,  # type: ignore[dict-item]
    ),
    "Parquet": ("a.parquet", as_parquet),
    "Arrow": ("a.arrow", as_arrow),
}


@pytest.mark.parametrize("form", FILES)
def test_the_columns_of_every_file(form: str, tmp_path: Path) -> None:
    name, write = FILES[form]
    path = write(tmp_path / name, rows())
    source = build(load(path)).data
    pairs, _ = source.read(tmp_path / "cache")
    assert of_pairs(pairs) == oracle(rows())
    # They change nothing that is learned.
    without, _ = build(load(path, ["data.keep=[]"])).data.read()
    assert without.table == pairs.table.drop_columns("columns")
    named, _ = build(load(path, ["data.keep=[year,url]"])).data.read()
    assert of_pairs(named) == oracle(rows(), ("url", "year"))


@pytest.mark.parametrize("kind", ["pyarrow", "pandas", "polars", "datasets"])
def test_the_columns_of_objects(kind: str) -> None:
    if kind == "pyarrow":
        data: Any = pa.Table.from_pylist(rows())
    elif kind == "datasets":
        data = pytest.importorskip("datasets").Dataset.from_list(rows())
    else:
        data = pytest.importorskip(kind).DataFrame(rows())
    pairs, _ = Given.of(data, metadata=("*",)).read()
    assert of_pairs(pairs) == oracle(rows())


def set_of(folder: Path, every: list[Row], further: tuple[str, ...] = COLUMNS) -> Path:
    """A retrieval set of the rows: columns of a document are those of its first row."""
    (folder / "qrels").mkdir(parents=True)
    docs = list(oracle(every))
    lines = []
    for number, (doc, columns) in enumerate(oracle(every).items()):
        day = {"day": str(columns["day"])}
        inside = {"metadata": {"ticket": columns["ticket"]}, "tags": ["a"], "empty": {}}
        row = {"_id": f"d{number}", "title": "", "text": doc, **columns, **day, **inside}
        del row["ticket"]
        lines.append(json.dumps(row))
    lines.append(json.dumps({"_id": "alone", "text": "No question asks for it. Never.", "year": 7}))
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    queries = [json.dumps({"_id": f"q{i}", "text": row["question"]}) for i, row in enumerate(every)]
    (folder / "queries.jsonl").write_text("\n".join(queries))
    judged = [f"q{i}\td{docs.index(row['answer'])}\t1" for i, row in enumerate(every)]
    for split, lines in (("train", judged[:9]), ("test", judged[9:])):
        table = "\n".join(["query-id\tcorpus-id\tscore", *lines])
        (folder / "qrels" / f"{split}.tsv").write_text(table)
    return folder


ALONE = {**dict.fromkeys(COLUMNS), "year": 7}


def test_the_further_fields_of_a_corpus(tmp_path: Path) -> None:
    folder = set_of(tmp_path / "set", rows())
    expected = {**oracle(rows()), "No question asks for it. Never.": ALONE}
    options = ["data.source=beir", f"data.path={folder}", "data.test=test"]
    pairs, _ = build(load(None, options)).data.read(tmp_path / "cache")
    assert of_pairs(pairs) == expected
    named, _ = build(load(None, [*options, "data.keep=[ticket]"])).data.read()
    assert of_pairs(named) == {doc: {"ticket": kept["ticket"]} for doc, kept in expected.items()}
    none, _ = build(load(None, [*options, "data.keep=[]"])).data.read()
    assert none.table == pairs.table.drop_columns("columns")
    with pytest.raises(DataError, match=r"no column 'ulr' for data\.keep; .*Did you mean url\?"):
        build(load(None, [*options, "data.keep=[ulr]"])).data.read()


def test_a_corpus_of_msmarco_has_its_links(tmp_path: Path) -> None:
    (tmp_path / "collection.tsv").write_text("d0\thttp://a\tA\tsome text\nd1\t\tB\tanother one\n")
    (tmp_path / "queries.tsv").write_text("q0\twhat is it\n")
    (tmp_path / "qrels.tsv").write_text("q0\t0\td0\t1\n")
    pairs, _ = build(
        load(None, ["data.source=beir", f"data.path={tmp_path}", "data.split=all"])
    ).data.read()
    assert of_pairs(pairs) == {"A some text": {"url": "http://a"}, "B another one": {"url": None}}


def test_a_field_of_several_types_is_kept_as_texts(tmp_path: Path) -> None:
    folder = set_of(tmp_path / "set", rows())
    corpus = (folder / "corpus.jsonl").read_text().replace('"year": 2002', '"year": "about 2002"')
    corpus = corpus.replace('"year": 2006', '"year": [2006]')
    (folder / "corpus.jsonl").write_text(corpus)
    pairs, _ = build(load(None, ["data.source=beir", f"data.path={folder}"])).data.read()
    years = {doc: str(kept["year"]) for doc, kept in oracle(rows()).items()}
    years = {doc: {"2002": "about 2002", "2006": "[2006]"}.get(y, y) for doc, y in years.items()}
    assert {doc: kept["year"] for doc, kept in of_pairs(pairs).items() if doc in years} == years


@pytest.mark.parametrize("rule", [None, "heading"])
@pytest.mark.parametrize("form", ["csv", "Parquet", "set", "pairs"])
def test_the_columns_of_texts_without_pairs(form: str, rule: Any, tmp_path: Path) -> None:
    every = rows()
    if form == "set":
        expected = {**oracle(every), "No question asks for it. Never.": ALONE}
        path = set_of(tmp_path / "set", every)
    else:
        expected = oracle(every)
        if form == "pairs":
            path = as_csv(tmp_path / "a.csv", every)
        else:
            name, write = FILES[form]
            texts = [{**row, "text": row["answer"]} for row in every]
            for row in texts:
                del row["question"]
                del row["answer"]
            path = write(tmp_path / name, texts)
    pairs, _ = Documents(str(path), rule=rule).read()
    assert of_pairs(pairs) == expected
    without, _ = Documents(str(path), rule=rule, keep=()).read()
    assert without.table == pairs.table.drop_columns("columns")


def test_a_whole_document_has_the_columns_of_its_parts(tmp_path: Path) -> None:
    every = [
        {"title": f"Part {i}", "text": f"Sentence {i}. And more of {i}.", "ticket": f"t{i}"}
        for i in range(40)
    ]
    pairs, _ = Documents(str(as_csv(tmp_path / "a.csv", every)), rule="heading").read()
    assert not pairs.searched.all()
    expected = {f"{row['title']} {row['text']}": {"ticket": row["ticket"]} for row in every}
    assert of_pairs(pairs) == expected


def test_text_files_have_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One\n\nSome text. More.\n\n# Two\n\nOther text. More.\n")
    assert "columns" not in Documents(str(tmp_path), rule="heading").read()[0].table.column_names
    with pytest.raises(DataError, match=r"text files, which have no columns: leave out data\.keep"):
        Documents(str(tmp_path), rule="heading", keep=("url",)).read()


def test_a_mixture_has_the_columns_of_all_sources(tmp_path: Path) -> None:
    one, other = rows()[:7], rows()[7:]
    for row in one:
        row["lang"] = "de"
        del row["url"]
    for row in other:
        row["year"] = f"about {row['year']}"
    sources = [
        PairsFile(str(as_csv(tmp_path / "a.csv", one)), metadata=("*",)),
        PairsFile(str(as_lines(tmp_path / "b.jsonl", other)), metadata=("*",)),
        PairsFile(str(as_csv(tmp_path / "c.csv", rows()[:1])), metadata=("*",), keep=()),
    ]
    pairs, _ = Mixture(sources).read(tmp_path / "cache")
    columns = (*COLUMNS, "lang", "body")  # which is short in the first source
    for row in other:
        del row["body"]
    expected = oracle([*one, *other], columns)
    for kept in expected.values():
        kept["year"] = str(kept["year"])  # an integer in one source, a text in the other
    assert of_pairs(pairs) == expected


def test_columns_of_several_parts(tmp_path: Path) -> None:
    every = rows()
    for row in every[10:]:
        del row["url"]
    source = PairsFile(
        str(as_csv(tmp_path / "a.csv", every[:10])),
        validation=str(as_lines(tmp_path / "b.jsonl", every[10:])),
        metadata=("*",),
    )
    expected = oracle(every)
    assert of_pairs(source.read()[0]) == expected
    named = PairsFile(source.path, source.validation, metadata=("*",), keep=("url",))
    assert of_pairs(named.read()[0]) == {
        doc: {"url": kept["url"]} for doc, kept in expected.items()
    }


def test_negatives_have_no_columns_unless_they_are_documents(tmp_path: Path) -> None:
    every = rows()
    for i, row in enumerate(every):
        row["negative"] = "nobody asks for this" if i else every[-1]["answer"]
    kept = of_pairs(PairsFile(str(as_csv(tmp_path / "a.csv", every)), metadata=("*",)).read()[0])
    assert kept == {**oracle(rows()), "nobody asks for this": dict.fromkeys(COLUMNS)}


def test_columns_that_cannot_be_kept(tmp_path: Path) -> None:
    path = str(as_parquet(tmp_path / "a.parquet", [{**row, "tags": ["a"]} for row in rows()]))

    def read(*keep: str) -> Kept:
        return of_pairs(PairsFile(path, metadata=("*",), keep=keep).read()[0])

    with pytest.raises(DataError, match=r"no column 'uri' for data\.keep; it has .*Did you mean"):
        read("uri")
    with pytest.raises(DataError, match=r"'tags' holds list<.*only single values can be kept"):
        read("tags")
    with pytest.raises(DataError, match="'answer' holds the texts of the documents"):
        read("answer")
    assert read("question", "body") == oracle(rows(), ("question", "body"))


def test_two_hundred_letters_are_kept_and_one_more_is_not() -> None:
    table = pa.table(
        {"query": ["a", "b"], "doc": ["x", "y"], "short": ["ä" * 200, ""], "long": ["ä" * 201, ""]}
    )
    pairs, _ = Given.of(table, metadata=("*",)).read()
    assert of_pairs(pairs) == {"x": {"short": "ä" * 200}, "y": {"short": None}}
    lines = [line.split() for line in pairs.about.splitlines()]
    assert ["short", "kept"] in [line[:2] for line in lines]
    assert next(line for line in lines if line[0] == "long")[1:3] == ["not", "read"]
    assert "some of more than 200 letters" in pairs.about


def test_the_numbers_of_rows_of_pandas_are_no_column() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"query": ["a", "b", "c"], "doc": ["x", "y", "z"]})[1:]
    assert "columns" not in Given.of(frame, metadata=("*",)).read()[0].table.column_names


# ---- values


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["1", "-20", None], [1, -20, None]),
        (["0", "10"], [0, 10]),
        (["007", "8"], ["007", "8"]),
        (["+1"], ["+1"]),
        (["9" * 18], [10**18 - 1]),
        (["9" * 19], ["9" * 19]),
        (["1", "2.5"], [1.0, 2.5]),
        (["1.50", "2.25"], [1.5, 2.25]),
        (["1.5", "1.50"], ["1.5", "1.50"]),
        (["1.10", "1.9"], ["1.10", "1.9"]),
        (["-0.5", "2.0"], [-0.5, 2.0]),
        (["1e5"], ["1e5"]),
        (["NaN"], ["NaN"]),
        (["1 000"], ["1 000"]),
        (["2024-01-31", None], [dt.date(2024, 1, 31), None]),
        (["2024-02-31"], ["2024-02-31"]),
        (["0000-01-01"], ["0000-01-01"]),
        (["2024-01-31", "soon"], ["2024-01-31", "soon"]),
        (["2024-01-31 10:00:00"], [dt.datetime(2024, 1, 31, 10)]),
        (["2024-01-31T25:00:00"], ["2024-01-31T25:00:00"]),
        (["True"], ["True"]),
        ([None], [None]),
    ],
)
def test_texts_of_separated_values_get_a_type(texts: list[str | None], values: list[Any]) -> None:
    column = typed(pa.chunked_array([pa.array(texts, pa.large_string())]))
    assert column.to_pylist() == values
    assert [type(x) for x in column.to_pylist()] == [type(x) for x in values]


def test_no_two_texts_become_one_number() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        digits = generator.integers(0, 3, 3)
        texts = {
            f"{generator.integers(0, 3)}.{''.join(map(str, digits[: generator.integers(1, 4)]))}"
            for _ in range(4)
        }
        column = typed(pa.chunked_array([pa.array(sorted(texts), pa.large_string())]))
        assert len(set(column.to_pylist())) == len(texts)


def test_values_in_plain_types() -> None:
    far = 2**62
    day = dt.datetime(2024, 1, 31, 10, tzinfo=dt.UTC)
    kept = {
        "small": (pa.array([1], pa.int8()), [1]),
        "large": (pa.array([2**63], pa.uint64()), [str(2**63)]),
        "half": (pa.array([0.5], pa.float32()), [0.5]),
        "nan": (pa.array([float("nan"), 1.0]), [None, 1.0]),
        "truth": (pa.array([True, None]), [True, None]),
        "zone": (pa.array([day], pa.timestamp("s", "Europe/Berlin")), [day]),
        "nanoseconds": (
            pa.array([1001], pa.timestamp("ns")),
            [dt.datetime(1970, 1, 1, 0, 0, 0, 1)],
        ),
        "far": (pa.array([far, 0], pa.timestamp("us")), [None, dt.datetime(1970, 1, 1)]),
        "far day": (pa.array([2**30], pa.date32()), [None]),
        "last day": (pa.array([2_932_896, 2_932_897], pa.date32()), [dt.date(9999, 12, 31), None]),
        "first day": (pa.array([-719_162, -719_163], pa.date32()), [dt.date(1, 1, 1), None]),
        "time": (pa.array([3600], pa.time32("s")), [dt.time(1)]),
    }
    for name, (values, expected) in kept.items():
        plain = plain_values(values)
        assert plain is not None and plain.to_pylist() == expected, name
    never = [
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.array([b"\xff"]),
        pa.array([dt.timedelta(1)]),
        pa.array([far], pa.timestamp("s")),
    ]
    for values in never:
        assert plain_values(values) is None


def test_one_column_of_several_types() -> None:
    def table(values: pa.Array) -> pa.Table:
        return pa.table({"columns": pa.StructArray.from_arrays([values], ["x"])})

    def common(*columns: pa.Array) -> list[Any]:
        tables = aligned([table(column) for column in columns])
        return [row["x"] for part in tables for row in part["columns"].to_pylist()]

    moment = dt.datetime(2024, 1, 31, 10)
    assert common(pa.array([1]), pa.array([2.5])) == [1.0, 2.5]
    assert common(pa.array([1]), pa.array([True])) == ["1", "true"]
    days = pa.array([dt.date(2024, 1, 31)])
    moments = pa.array([moment], pa.timestamp("us"))
    assert common(days, moments) == [dt.datetime(2024, 1, 31), moment]
    texts = pa.array(["soon"], pa.large_string())
    assert common(moments, days.cast(pa.timestamp("us")), texts) == [
        "2024-01-31T10:00:00",
        "2024-01-31T00:00:00",
        "soon",
    ]
    assert common(days, texts) == ["2024-01-31", "soon"]
    assert common(pa.nulls(1), pa.array([7])) == [None, 7]


def test_the_first_value_of_every_group() -> None:
    generator = np.random.default_rng(0)
    for _ in range(30):
        n, groups = int(generator.integers(1, 40)), int(generator.integers(1, 9))
        group = generator.integers(0, groups, n)
        values = [None if x == 3 else int(x) for x in generator.integers(0, 4, n)]
        chunks = [values[: n // 2], values[n // 2 :]]
        rows = [pa.array([{"x": x} for x in part], pa.struct({"x": pa.int64()})) for part in chunks]
        columns, varying = first_values(pa.chunked_array(rows), group, groups)
        present: list[list[int]] = [[] for _ in range(groups)]
        for x, g in zip(values, group.tolist(), strict=True):
            if x is not None:
                present[g].append(x)
        assert columns.to_pylist() == [{"x": each[0] if each else None} for each in present]
        several = sum(len(set(each)) > 1 for each in present)
        assert varying == ({"x": several} if several else {})


# ---- a run, and what it answers


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    every = []
    for i, pair in enumerate(planted(120)):
        link = f"https://help.example/{i}" if i % 2 else "javascript:alert(1)"
        every.append(
            {
                "query": pair["query"],
                "doc": pair["doc"],
                "url": link,
                "ticket": f"SECRET-{i}",
                "year": 1900 + i,
                "day": dt.date(2024, 1, 1) + dt.timedelta(i),
                "price": 0.5 * i,
            }
        )
    path = as_csv(folder / "pairs.csv", every)
    options = small_options(path)
    options["data"]["metadata"] = ["*", "price"]
    library.train(options, folder / "run")
    return folder / "run"


def test_a_search_returns_the_columns(run: Path, tempera: Command) -> None:
    opened = library.Run(run)
    documents = opened.index.columns
    assert documents.column_names == ["url", "ticket", "year", "day", "price"]
    assert documents.schema.field("year").type == pa.int64()
    query = planted(120)[7]["query"]
    for hit in opened.search(query, k=5):
        i = int(hit.columns["ticket"].removeprefix("SECRET-"))
        assert hit.text == planted(120)[i]["doc"]
        assert hit.columns["year"] == 1900 + i
        assert hit.columns["day"] == dt.date(2024, 1, 1) + dt.timedelta(i)
        assert opened.document(hit.id).columns == hit.columns
    answer = tempera("search", run, query, "-k", 5, "--json").document
    for hit in answer["hits"]:
        i = hit["columns"]["year"] - 1900
        assert hit["columns"]["day"] == str(dt.date(2024, 1, 1) + dt.timedelta(i))
        assert hit["columns"]["price"] == 0.5 * i


def test_a_terminal_shows_the_link_in_place_of_the_row(run: Path, tempera: Command) -> None:
    out = tempera("search", run, planted(120)[7]["query"], "-k", 20).out
    assert "https://help.example/" in out and "pairs.csv row" in out
    assert "javascript" not in out


def test_the_run_says_what_it_keeps_and_its_card_holds_no_value(run: Path) -> None:
    results = json.loads((run / "metrics.json").read_text())
    assert list(results["data"]["kept"]) == ["url", "ticket", "year", "day", "price"]
    assert results["data"]["kept"]["year"] == 120 * 8
    for path in (*run.rglob("*.md"), run / "metrics.json", run / "report.html"):
        assert "SECRET" not in path.read_text()


# ---- an index on disk


def index_of(folder: Path, columns: pa.Array | None, text: str = "text") -> Path:
    """An index as it is written by hand."""
    table = pa.table({"id": ["1"], "name": [""], "place": ["a row 1"], text: ["some text"]})
    if columns is not None:
        table = table.append_column("columns", columns)
    folder.mkdir()
    np.save(folder / "vectors.npy", np.ones((1, 2), np.float32))
    with (
        pa.OSFile(str(folder / "documents.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    return folder


def test_an_index_of_an_earlier_version_opens(tmp_path: Path) -> None:
    index = Index(index_of(tmp_path / "index", None, text="preview"))
    (hit,) = index.search(np.ones(2, np.float32))
    assert (hit.text, hit.columns) == ("some text", {})
    assert index.columns.column_names == []


def test_columns_as_json(tmp_path: Path) -> None:
    values = {
        "day": pa.array([dt.date(2024, 1, 31)]),
        "moment": pa.array([dt.datetime(2024, 1, 31, 10, tzinfo=dt.UTC)]),
        "time": pa.array([dt.time(1)]),
        "nan": pa.array([float("nan")]),
        "infinite": pa.array([float("-inf")]),
        "price": pa.array([1.5]).cast(pa.decimal128(4, 2)),
        "flag": pa.array([True]),
        "none": pa.nulls(1),
        "tags": pa.array([[dt.date(2024, 1, 31)]]),
    }
    columns = pa.StructArray.from_arrays([*values.values()], [*values])
    (hit,) = Index(index_of(tmp_path / "index", columns)).search(np.ones(2, np.float32))
    assert json.loads(json.dumps(hit.json(), allow_nan=False))["columns"] == {
        "day": "2024-01-31",
        "moment": "2024-01-31T10:00:00+00:00",
        "time": "01:00:00",
        "nan": None,
        "infinite": None,
        "price": 1.5,
        "flag": True,
        "none": None,
        "tags": ["2024-01-31"],
    }


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (pa.array(["a"]), "columns is string; expected records"),
        (
            pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]),
            "columns has several columns called 'a'",
        ),
        (
            pa.StructArray.from_arrays([pa.array([2**62], pa.timestamp("us"))], ["day"]),
            "column 'day': ",
        ),
        (
            pa.StructArray.from_arrays([pa.array([[2**62]], pa.list_(pa.timestamp("us")))], ["x"]),
            "column 'x': ",
        ),
        (
            pa.StructArray.from_arrays([pa.array([0], pa.timestamp("us", "Mars/Phobos"))], ["day"]),
            "column 'day': ",
        ),
    ],
)
def test_damaged_columns_are_one_line(columns: pa.Array, message: str, tmp_path: Path) -> None:
    folder = index_of(tmp_path / "index", columns)
    with pytest.raises(TemperaError) as error:
        Index(folder)
    assert str(error.value).startswith(f"{folder} is not a readable index: {message}")
    assert "\n" not in str(error.value)


def test_an_index_without_columns_has_none(tmp_path: Path) -> None:
    pairs = Pairs.of(["a"], ["x"])
    write_index(tmp_path / "index", np.ones((1, 2)), Catalogue.of(pairs).table())
    assert Index(tmp_path / "index").columns.column_names == []
