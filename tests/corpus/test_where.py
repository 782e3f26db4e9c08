"""A filter passes the rows of a plain loop, refuses whatever is no scalar expression, and leaves a
search exact."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("duckdb")

from tempera.artifacts.run_folder import Run
from tempera.corpus import index as index_module
from tempera.corpus import where as where_module
from tempera.corpus.index import Index, write_approximate, write_index
from tempera.corpus.where import LONGEST, passing
from tempera.errors import ConfigError, DataError, MissingLibrary
from tempera.io.atomic import write_manifest_again
from tempera.ranking.filtered import best_among, top_among

COUNT = 400
Row = dict[str, Any]


def table(count: int = COUNT) -> pa.Table:
    """Columns of every kind, each with a null now and then."""
    chance = np.random.default_rng(0)

    def some(values: list[Any]) -> list[Any]:
        return [None if chance.random() < 0.1 else value for value in values]

    days = [dt.date(2024, 1, 1) + dt.timedelta(int(day)) for day in chance.integers(0, 700, count)]
    moments = [dt.datetime(day.year, day.month, day.day, 12, tzinfo=dt.UTC) for day in days]
    langs = [("de", "en", "fr", "Straße")[i] for i in chance.integers(0, 4, count)]
    tags = [[("a", "b", "c")[i] for i in chance.integers(0, 3, 2)] for _ in range(count)]
    return pa.table(
        {
            "lang": pa.array(some(langs), pa.large_string()),
            "year": some([int(year) for year in chance.integers(2000, 2030, count)]),
            "price": some([float(price) for price in chance.integers(0, 100, count)]),
            "day": some(days),
            "moment": pa.array(some(moments), pa.timestamp("us", tz="UTC")),
            "open": some([bool(bit) for bit in chance.integers(0, 2, count)]),
            "tags": some(tags),
            "The Name": some([f"n{i}" for i in range(count)]),
        }
    )


EXPRESSIONS: list[tuple[str, Callable[[Row], Any]]] = [
    ("lang = 'de' and year >= 2024", lambda r: all_of(eq(r["lang"], "de"), ge(r["year"], 2024))),
    ("lang = 'de' or year >= 2024", lambda r: any_of(eq(r["lang"], "de"), ge(r["year"], 2024))),
    ("not (lang = 'de')", lambda r: r["lang"] is not None and r["lang"] != "de"),
    ("lang in ('de', 'fr')", lambda r: r["lang"] in ("de", "fr")),
    ("lang not in ('de', 'fr')", lambda r: r["lang"] in ("en", "Straße")),
    ("lang is null", lambda r: r["lang"] is None),
    ("lang is distinct from 'de'", lambda r: r["lang"] != "de"),
    ("LANG = 'Straße'", lambda r: r["lang"] == "Straße"),
    ("lang like 's%' or lang ilike 'S%'", lambda r: r["lang"] == "Straße"),
    ("length(lang) = 6", lambda r: r["lang"] == "Straße"),
    ("year between 2010 and 2012", lambda r: r["year"] in (2010, 2011, 2012)),
    ("year % 2 = 0", lambda r: r["year"] is not None and r["year"] % 2 == 0),
    ("price * 2 > 150.5", lambda r: r["price"] is not None and r["price"] > 75.25),
    ("coalesce(price, 0) < 5", lambda r: (r["price"] or 0) < 5),
    ("open", lambda r: r["open"]),
    ("open is not true", lambda r: not r["open"]),
    ("day >= '2025-06-01'", lambda r: ge(r["day"], dt.date(2025, 6, 1))),
    ("year(day) = 2025", lambda r: r["day"] is not None and r["day"].year == 2025),
    ("day - interval 1 month < date '2024-01-10'", lambda r: r["day"] and month_before(r["day"])),
    (
        "moment < '2024-03-01 12:00:00'",
        lambda r: r["moment"] and r["moment"] < dt.datetime(2024, 3, 1, 12, tzinfo=dt.UTC),
    ),
    ("list_contains(tags, 'a')", lambda r: r["tags"] and "a" in r["tags"]),
    ("'b' in tags", lambda r: r["tags"] and "b" in r["tags"]),
    ("list_has_any(tags, ['a', 'c'])", lambda r: r["tags"] and {"a", "c"} & set(r["tags"])),
    ("\"The Name\" = 'n7'", lambda r: r["The Name"] == "n7"),
    ("case when year > 2020 then open else false end", lambda r: ge(r["year"], 2021) and r["open"]),
    ("cast(year as varchar) = '2012'", lambda r: r["year"] == 2012),
    ("try_cast(lang as integer) is null", lambda r: True),
    ("true", lambda r: True),
    ("1 = 2", lambda r: False),
    ("year = 2012 -- the rest is a comment", lambda r: r["year"] == 2012),
]


def eq(value: Any, other: Any) -> bool | None:
    return None if value is None else value == other


def ge(value: Any, other: Any) -> bool | None:
    return None if value is None else value >= other


def all_of(*values: bool | None) -> bool:
    return all(value is True for value in values)


def any_of(*values: bool | None) -> bool:
    return any(value is True for value in values)


def month_before(day: dt.date) -> bool:
    """True if the day a month earlier, or else the last day of that month, is before 10 January
    2024."""
    year, month = (day.year, day.month - 1) if day.month > 1 else (day.year - 1, 12)
    return (year, month, day.day) < (2024, 1, 10)


@pytest.mark.parametrize(("expression", "passes"), EXPRESSIONS)
def test_the_rows_of_a_plain_loop_pass(expression: str, passes: Callable[[Row], Any]) -> None:
    rows = table().to_pylist()
    expected = [i for i, row in enumerate(rows) if passes(row)]
    assert passing(table(), expression).tolist() == expected


def test_a_large_table_in_many_chunks_keeps_its_order() -> None:
    parts = [
        pa.table({"number": np.arange(start, start + 7_000)}) for start in range(0, 70_000, 7_000)
    ]
    expected = np.arange(0, 70_000, 3)
    assert np.array_equal(passing(pa.concat_tables(parts), "number % 3 = 0"), expected)


# ---- expressions of strangers

HOSTILE = [
    # further statements, and statements in place of an expression
    "true) FROM documents; DROP TABLE documents; SELECT (1",
    "true) FROM documents; SELECT (true",
    "1) FROM documents WHERE (true",
    "true) FROM documents UNION SELECT (true",
    "true), (select 1",
    "select 1",
    "drop table documents",
    "attach '/tmp/x.db'",
    "copy documents to '/tmp/stolen.csv'",
    "install httpfs",
    "load httpfs",
    "set memory_limit='100GB'",
    "pragma version",
    "export database '/tmp/x'",
    # subqueries and tables
    "(select count(*) from documents) > 1",
    "exists (select 1 from read_csv('/etc/passwd'))",
    "year in (select 1)",
    "year = any (select 1)",
    "year = any([2020])",
    "lang = (from '/etc/passwd')",
    "(with x as (select 1) select true from x)",
    "(values (true))",
    "array(select 1) = [1]",
    # files, environment, settings, the clock, chance, other queries
    "read_text('/etc/passwd') is not null",
    "read_csv('/etc/passwd') is not null",
    "getenv('HOME') = 'x'",
    "getvariable('x') is null",
    "current_setting('memory_limit') = 'x'",
    "version() = 'x'",
    "current_query() = 'x'",
    "current_database() = 'x'",
    "current_user = 'x'",
    "parse_path('/etc/passwd') is null",
    "query('select 1') is null",
    "query_table('documents') is null",
    "now() > moment",
    "current_date > day",
    "today() > day",
    "age(day) is null",
    "random() > 0.5",
    "uuid() is null",
    "nextval('s') = 1",
    "setseed(0.5) is null",
    "sleep_ms(100000) is null",
    "write_log('x') is null",
    "json_execute_serialized_sql('x') is null",
    "error('x')",
    # more than scalar expressions
    "count(*) > 1",
    "max(year) > 1",
    "max(year) over () > 1",
    "row_number() over (order by year) = 1",
    "sum(distinct year) > 1",
    "count(year) filter (where open) > 1",
    "string_agg(lang, ',') = 'x'",
    "grouping(year) = 1",
    "unnest(tags) = 'a'",
    "*",
    "columns('year') > 1",
    "documents.* is null",
    "?",
    "$1",
    "$year > 1",
    "#1 > 2",
    "list_transform(tags, x -> x = 'a')[1]",
    "list_filter(tags, lambda x: x = 'a') = []",
    "[x for x in tags] = []",
    "list_reduce(tags, (x, y) -> x || y) = 'a'",
    "(year, lang) = (2000, 'a')",
    "{'a': year} is null",
    "year, lang",
    "year as x",
    "default",
    "lang = 'x' collate nocase",
    "main.lower(lang) = 'de'",
    "lang.lower() = 'de'",
    "documents.lang = 'de'",
    "rowid = 1",
    # texts that grow without bound
    "length(repeat('a', 10000000000)) > 1",
    "length(lpad('a', 2000000000, 'b')) > 1",
    "length(replace(replace(lang, 'e', 'eeeeeeeeee'), 'e', 'eeeeeeeeee')) > 1",
    "length(regexp_replace(lang, 'e', 'eeeeeeeeeeee', 'g')) > 1",
    "length(format('{:1000000000d}', year)) > 1",
    "length(printf('%1000000000d', year)) > 1",
    "length(hex(hex(hex(lang)))) > 1",
    "length(range(10000000000)) > 1",
    "length(generate_series(1, 10000000000)) > 1",
    "length(list_resize([1], 1000000000)) > 1",
    "length([[lang]::varchar]::varchar) > 1",
    "length(concat(['\\'], ['\\'])) > 1",
    "factorial(30) > 1",
    "10! > 1",
    "levenshtein(lang, lang) > 1",
    "'1e1000000000'::bignum is null",
    "lang::json is null",
    "lang::blob is null",
    "lang::enum('a') is null",
    "lang::main.foo is null",
    "lang::struct(a integer) is null",
    # depth
    "(" * 4_000,
    "(" * 3_000 + "true" + ")" * 900,
    "(" * 40 + "true" + ")" * 40 + "(" * 60,
    "not " * 900 + "true",
    "[" * 60 + "]" * 60 + " is null",
    "case when true then " * 60 + "true" + " end" * 60,
    "lower(" * 60 + "lang" + ")" * 60 + " = 'a'",
    "year" + " + 1" * 500 + " > 1",
    "lang = '" + "a" * LONGEST + "'",
    # no text, or none that ends
    "",
    "   ",
    ";",
    "--",
    "/*",
    "lang = 'de",
    'lang = "de',
    "lang = 'de' and",
    "lang = 'de')",
    "(lang = 'de'",
    "lang = $$de",
    "lang = 'de'\0",
    "lang = '\ud800'",
    "\x1b[31m = 1",
    "\u202elang = 'de'",
    # no truth value
    "1",
    "lang",
    "null",
    "year + 1",
    "tags",
    # other columns, types and values
    "langs = 'de'",
    'lang = "de"',
    "lang > 3 + tags",
    "cast(lang as integer) = 1",
    "year = 'two thousand'",
    "day = 'yesterday'",
    "lower(year, 1)",
    "lowr(lang) = 'de'",
    "regexp_matches(lang, '(')",
]


@pytest.mark.parametrize("expression", HOSTILE)
def test_whatever_is_no_filter_is_refused_in_one_line(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/secret/home")
    began = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        passing(table(), expression)
    line = str(caught.value)
    assert line.startswith("where") and line.isprintable() and len(line) <= 1000
    assert "/secret" not in line and "site-packages" not in line
    assert time.perf_counter() - began < 2


def test_no_file_is_read_even_if_the_parts_were_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of DuckDB refuse what the lists would let through by mistake."""
    (tmp_path / "secret.csv").write_text("a\n1\n")
    names = ("getenv", "current_setting", "query", "nextval")
    monkeypatch.setattr(where_module, "_FUNCTIONS", where_module._FUNCTIONS | set(names))
    monkeypatch.setattr(where_module, "_CLASSES", {*where_module._CLASSES, "SUBQUERY", "STAR"})
    for expression in (
        f"exists (select 1 from read_csv('{tmp_path / 'secret.csv'}'))",
        f"exists (select 1 from '{tmp_path / 'secret.csv'}')",
        "getenv('HOME') = 'x'",
    ):
        with pytest.raises(ConfigError):
            passing(table(), expression)


def test_a_slow_expression_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where_module, "_SECONDS", 0.3)
    long = pa.table({"a": pa.array(["x" * 200] * 1_000_000)})
    began = time.perf_counter()
    with pytest.raises(ConfigError, match=r"takes longer than 0\.3 seconds"):
        passing(long, " || ".join(["a"] * 20) + " = 'x'")
    assert time.perf_counter() - began < 5


def test_the_messages_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no kept column 'langs'.* Did you mean lang\?"):
        passing(table(), "langs = 'de'")
    with pytest.raises(ConfigError, match=r"no function 'lowr'\. Did you mean lower\?"):
        passing(table(), "lowr(lang) = 'de'")
    with pytest.raises(ConfigError, match=r"data\.keep"):
        passing(pa.table({}), "lang = 'de'")
    with pytest.raises(ConfigError, match="where is VARCHAR"):
        passing(table(), "lang")
    with pytest.raises(ConfigError, match=r"4,010 letters; expected at most 4,000"):
        passing(table(), "x" * 4_010)
    two = pa.table({"Lang": ["de"], "lang": ["en"]})
    assert passing(two, "Lang = 'de'").tolist() == passing(two, "lang = 'en'").tolist() == [0]
    with pytest.raises(ConfigError, match="write the name exactly"):
        passing(two, "LANG = 'de'")
    with pytest.raises(ConfigError, match="differ by case alone"):
        passing(two, "Lang = 'de' and lang = 'en'")
    monkeypatch.setattr("tempera.io.require.find_spec", lambda name: None)
    with pytest.raises(MissingLibrary, match=r"pip install 'tempera\[duckdb\]'"):
        passing(table(), "lang = 'de'")


# ---- searches


@pytest.mark.parametrize("count", [0, 1, 5, 30, 90, 120])
@pytest.mark.parametrize("queries", [1, 9])
def test_the_best_among_some_are_those_of_a_full_sort(count: int, queries: int) -> None:
    """Whole numbers have exact products, so that ties have the order of the documents."""
    chance = np.random.default_rng(count)
    docs = chance.integers(-3, 4, (120, 6)).astype(np.float32)
    asked = chance.integers(-3, 4, (queries, 6)).astype(np.float32)
    among = np.sort(chance.permutation(120)[:count])
    scores, positions = top_among(asked, docs, 10, among)
    for row, query in enumerate(asked):
        products = {int(i): sum(float(a) * float(b) for a, b in zip(query, docs[i])) for i in among}
        expected = sorted(products, key=lambda i: (-products[i], i))[:10]
        assert positions[row].tolist() == expected
        assert scores[row].tolist() == [products[i] for i in expected]
        _, same = best_among((asked[row] @ docs.T)[None], 10, among)
        assert same[0].tolist() == expected


@pytest.fixture(scope="module")
def kept_run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small run, with two columns kept beside each document."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    shutil.copytree(tiny_run, folder)
    index = Index(folder / "index")
    count = len(index.documents)
    table = pa.table(
        {
            "doc_id": index.documents["id"],
            "name": index.documents["name"],
            "place": index.documents["place"],
            "doc": index.documents["text"],
            "columns": pa.array(
                [{"lang": ("de", "en", None)[i % 3], "number": i} for i in range(count)]
            ),
        }
    )
    vectors, stamp = np.array(index.vectors), index.stamp
    shutil.rmtree(folder / "index")
    write_index(folder / "index", vectors, table, stamp)
    write_manifest_again(folder)
    return folder


WHERE = ["number < 3", "lang = 'de'", "lang is null or number >= 10", "number < 0", "true"]


@pytest.mark.parametrize("expression", WHERE)
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_search_finds_the_hits_of_a_whole_ranking_that_pass(
    kept_run: Path, expression: str, hybrid: bool
) -> None:
    """Also the scores: those of a hybrid search are standardised over all documents."""
    run = Run(kept_run)
    count = len(run.index.documents)
    queries = ["kaban lodor the", "mifin nugar", "zz"]
    whole = run.search(queries, count, hybrid=hybrid)
    several = run.search(queries, 7, hybrid=hybrid, where=expression)
    for query, ranking, hits in zip(queries, whole, several, strict=True):
        passed = [hit for hit in ranking if passes(hit.columns, expression)]
        assert len(hits) == min(7, len(passed))
        assert [hit.score for hit in hits] == pytest.approx(
            [hit.score for hit in passed[:7]], abs=1e-5
        )
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
        assert all(passes(hit.columns, expression) for hit in hits)
        if len({round(hit.score, 5) for hit in passed}) == len(passed):
            assert [hit.id for hit in hits] == [hit.id for hit in passed[:7]]
        single = run.search(query, 7, hybrid=hybrid, where=expression)
        assert {hit.id for hit in single} == {hit.id for hit in hits} or len(passed) > 7


def passes(columns: Any, expression: str) -> bool:
    lang, number = columns["lang"], columns["number"]
    return {
        "number < 3": number < 3,
        "lang = 'de'": lang == "de",
        "lang is null or number >= 10": lang is None or number >= 10,
        "number < 0": False,
        "true": True,
    }[expression]


def test_an_index_remembers_the_latest_filters(
    kept_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(columns: pa.Table, expression: str) -> Any:
        asked.append(expression)
        return passing(columns, expression)

    monkeypatch.setattr(index_module, "passing", counted)
    run = Run(kept_run)
    for _ in range(2):
        run.search("kaban", where="number < 3")
    assert asked == ["number < 3"]
    for number in range(33):
        run.passing(f"number < {number}")
    run.passing("number < 32")
    assert asked == ["number < 3", *[f"number < {number}" for number in range(33) if number != 3]]
    run.passing("number < 0")  # forgotten meanwhile
    assert asked[-1] == "number < 0"


def test_an_approximate_index_takes_no_filter(kept_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    write_approximate(tmp_path / "hnsw", Index(kept_run / "index"), "hnsw")
    with pytest.raises(DataError, match="needs an exact index"):
        Run(kept_run).search("kaban", index=tmp_path / "hnsw", where="number < 3")


def test_a_run_that_keeps_no_column_takes_no_filter(tiny_run: Path) -> None:
    with pytest.raises(ConfigError, match="no column of the data is kept"):
        Run(tiny_run).search("kaban", where="number < 3")


def test_the_command_line_says_how_many_documents_pass(tempera: Any, kept_run: Path) -> None:
    answer = tempera(
        "search", kept_run, "kaban lodor", "-k", "5", "--where", "number < 3", "--json"
    )
    assert answer.code == 0 and answer.document["passing"] == 3
    assert answer.document["where"] == "number < 3" and answer.document["notes"] == []
    assert sorted(hit["columns"]["number"] for hit in answer.document["hits"]) == [0, 1, 2]
    answer = tempera("search", kept_run, "kaban lodor", "--where", "number < 0")
    assert (answer.code, answer.out) == (0, "no document passes --where\n")
    answer = tempera("search", kept_run, "kaban lodor", "--where", "numbr < 0")
    assert answer.code == 2 and answer.err.count("\n") == 1 and "Did you mean number?" in answer.err
