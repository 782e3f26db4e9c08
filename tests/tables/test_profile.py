"""Profiles of tables: what columns could be, forms of times, and names that are data."""

from __future__ import annotations

import datetime
import decimal
import random
import uuid

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tempera.tables.arrow_types import decoded
from tempera.tables.profile import profile
from tempera.tables.proposal import NOT_READ, Decision, decision_table

ROWS = 240


def kinds(values: list[object] | pa.Array) -> set[str]:
    return set(profile(pa.table({"a": values}), "a").columns["a"].kinds)


def over(*values: object, rows: int = ROWS) -> list[object]:
    return [values[i % len(values)] for i in range(rows)]


@pytest.mark.parametrize(
    "values",
    [
        ("yes", "no"),
        (1, -1),
        ("0.0", "0.5", "1.0"),
        (True, False),
        ("true", "false"),
        ("entailment", "neutral", "contradiction"),
        ("Relevant", "Not at all relevant"),
        (0.25, 0.5),
    ],
)
def test_few_values_are_labels(values: tuple[object, ...]) -> None:
    assert "label" in kinds(over(*values))


def test_many_values_are_no_labels() -> None:
    assert "label" not in kinds([f"item {i % 13}" for i in range(ROWS)])
    assert "label" not in kinds([f"c{i}" for i in range(12)])  # more than a tenth of the rows
    assert "label" in kinds(["no", "yes", "no"])  # words that are labels in any number of rows
    assert "label" not in kinds(over("2024-01-01", "2024-01-02"))  # few days are no labels


@pytest.mark.parametrize(
    ("values", "form"),
    [
        ([1_300_000_000 + i for i in range(30)], "seconds"),
        ([str(1_300_000_000_123 + i) for i in range(30)], "milliseconds"),
        ([1_300_000_000_000_123.0 + i for i in range(30)], "microseconds"),
        ([f"2024-01-{1 + i:02d} 03:04:05 UTC" for i in range(30)], "iso"),
        ([f"2024-01-{1 + i:02d}T03:04:05.351Z" for i in range(30)], "iso"),
        ([f"1/{1 + i}/2024 3:04:05 PM" for i in range(30)], "%m/%d/%Y %I:%M:%S %p"),
        ([f"{1 + i}.01.2024" for i in range(30)], "%d.%m.%Y"),
        ([f"{1 + i}/01/2024" for i in range(30)], "%d/%m/%Y"),
        ([f"{1 + i:02d}-Jan-1995" for i in range(30)], "%d-%b-%Y"),
        ([f"January {1 + i}, 2024" for i in range(30)], "%b %d, %Y"),
        (
            [f"Mon Aug {1 + i:02d} 13:08:45 +0200 2008" for i in range(30)],
            "%a %b %d %H:%M:%S %z %Y",
        ),
        ([f"202401{1 + i:02d}" for i in range(30)], "%Y%m%d"),
        ([datetime.date(2024, 1, 1 + i) for i in range(30)], "date"),
    ],
)
def test_times_are_known_by_their_form(values: list[object], form: str) -> None:
    column = profile(pa.table({"a": values}), "a").columns["a"]
    assert column.time_forms == (form,)
    assert "time" in column.kinds


@pytest.mark.parametrize(
    "values", [over(1_300_000_000), list(range(ROWS)), [f"v1.{i}.0" for i in range(9)], ["3:04:05"]]
)
def test_other_values_are_no_times(values: list[object]) -> None:
    assert "time" not in kinds(values)


@pytest.mark.parametrize(
    "values",
    [
        ["['a', 'b']", "[]", "['c']"],
        ["[a, b]", "[]", "[c]"],
        ["[1, 2]", "[3]", ""],
        ['["a"]', "[]"],
        [["a"], ["b", "c"]],
    ],
)
def test_lists_are_known_also_where_they_are_texts(values: list[object]) -> None:
    assert "list" in kinds(values)


def test_texts_in_brackets_are_no_lists() -> None:
    assert "list" not in kinds(["[deleted]", "[removed]"])
    assert "list" not in kinds(["[a, b]", "a sentence, of words"])


def test_ratings_have_a_scale() -> None:
    column = profile(pa.table({"a": over("0.5", "5.0", "3.0", "")}), "a").columns["a"]
    assert column.scale == (0.5, 5.0)
    assert column.kinds == {"number", "rating", "label"}
    assert (column.blanks, column.distinct, column.rows) == (ROWS // 4, 3, ROWS)
    assert "rating" in kinds([i / 7 for i in range(ROWS)])  # similarities, say
    assert "rating" not in kinds(list(range(ROWS)))


def test_texts_ids_links_and_constants() -> None:
    assert kinds([f"how do I wash a thing of {i}?" for i in range(ROWS)]) == {"text"}
    assert kinds([f"これは{i}つの文です" for i in range(ROWS)]) >= {"text"}
    assert kinds([f"B00{i:07d}" for i in range(ROWS)]) == {"id"}
    assert kinds([f"https://a.example/{i}" for i in range(ROWS)]) == {"url"}
    assert kinds(over(1)) == {"constant", "id", "number"}
    assert kinds(over(None)) == set()


def test_measures_are_those_of_a_sample_of_the_whole_table() -> None:
    column = profile(pa.table({"a": ["x"] * 5_000 + ["a b c"] * 5_001}), "a").columns["a"]
    assert (column.rows, column.distinct, column.whole) == (2_000, 2, False)
    assert column.values == ["a b c", "x"]
    assert column.frequent[0][1] + column.frequent[1][1] == 2_000
    assert profile(pa.table({"a": ["x"]}), "a").columns["a"].whole


@pytest.mark.parametrize(
    "values",
    [
        pa.array([uuid.UUID(int=7).bytes], pa.binary(16)),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"\1" * 16], pa.binary(16))),
        pa.array([decimal.Decimal("1.50")]),
        pa.array(["a"]).dictionary_encode(),
        pa.array(["a"], pa.string_view()),
        pa.array([b"\xff\xfe"]),
        pa.array([datetime.timedelta(1)]),
        pa.array([datetime.time(1)]),
        pa.array([2**62], pa.timestamp("ns", "Europe/Berlin")),
        pa.array([2**62], pa.timestamp("s")),  # of a year that Python does not have
        pa.array([[2**62]], pa.list_(pa.timestamp("s"))),
        pa.array([{"a": [1]}]),
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
        pa.array([1.5, float("nan"), float("inf")], pa.float16()),
        pa.array([2**64 - 1], pa.uint64()),
        pa.array([[1]], pa.list_view(pa.int64())),
        pc.run_end_encode(pa.array(["a"])),
        pa.array([None]),
        pa.array([], pa.string()),
        pa.array([], pa.list_(pa.string())),
    ],
    ids=lambda values: str(values.type),
)
def test_any_type_has_a_profile(values: pa.Array) -> None:
    column = profile(pa.table({"a": values}), "a").columns["a"]
    assert column.rows == len(values)
    there = pc.invert(pc.is_null(values, nan_is_null=True)).to_pylist()
    assert column.distinct == sum(there)
    many = pa.concat_arrays([values] * 3_000)  # of which a sample is taken
    assert profile(pa.table({"a": many}), "a").columns["a"].distinct == sum(there)


def test_categories_of_rare_types_become_their_values() -> None:
    """Bytes that are texts in one part of a table alone stay bytes in all of it."""
    values = [decimal.Decimal(1), None, decimal.Decimal(3)]
    table = pa.table(
        {
            "number": pa.array(values).dictionary_encode(),
            "bytes": pa.array([b"x", None, b"y"]).dictionary_encode(),
        }
    )
    assert decoded(table).to_pydict() == {"number": [1, None, 3], "bytes": ["x", None, "y"]}
    for parts in ([b"x"], [b"\xff"]), ([b"\xff"], [b"x"]):
        plain = pa.chunked_array([pa.array(part) for part in parts])
        coded = pa.chunked_array([pa.array(part).dictionary_encode() for part in parts])
        mixed = decoded(pa.table({"plain": plain, "coded": coded}))
        whole = [*parts[0], *parts[1]]
        assert mixed.to_pydict() == {"plain": whole, "coded": whole}


def test_no_columns() -> None:
    assert profile(pa.table({}), "a").columns == {}


def hashes(count: int) -> list[str]:
    draw = random.Random(7)
    return [f"{draw.getrandbits(160):040x}" for _ in range(count)]


def first_line_as_names(*columns: list[object]) -> bool:
    """Return whether a table is headless whose first row has become its names."""
    texts = [[str(value) for value in column] for column in columns]
    names = [column[0] for column in texts]
    return profile(pa.table([column[1:] for column in texts], names=names), "a").headless


def test_data_as_names() -> None:
    count = list(range(60))
    dates = [f"2010-10-{1 + i % 28:02d}T19:44:01Z" for i in count]
    sentences = [f"A man is playing with thing {i} in the garden." for i in count]
    assert first_line_as_names([f"user_{i % 9:06d}" for i in count], dates, sentences)
    assert first_line_as_names([f"{i % 9}" for i in count], dates)
    assert first_line_as_names(hashes(60), ["SOAKIMP12A8C13" + str(1000 + i) for i in count])
    assert first_line_as_names(hashes(60), over("1", "2", "4", rows=60))
    assert first_line_as_names(sentences, sentences[::-1])  # pairs of sentences without grades
    assert first_line_as_names(sentences, over("entailment", "neutral", rows=60))
    assert first_line_as_names(["A1K", "B2C", "D3E"] * 20, [str(4.5)] * 60)


def test_names_as_names() -> None:
    count = range(60)
    texts = [f"how do I wash thing {i} at home?" for i in count]
    for names, columns in [
        (["question", "answer"], [texts, texts]),
        (["user", "1", "2"], [[*count], [*count], [*count]]),  # one column of each item
        (["word", "meaning"], [["a", "word", "b"], ["one", "two", "three"]]),
        (["year 1", "n"], [["a b", "c d"], ["1", "2"]]),
        (["Which of these things do you like?", "n"], [texts, over("1", "2", rows=60)]),
        (["", "question"], [[*count], texts]),
        (["time"], [["2024-01-01", "2024-01-02"]]),
    ]:
        table = pa.table([[str(value) for value in column] for column in columns], names=names)
        assert not profile(table, "a").headless, names


def test_decisions_are_one_aligned_table() -> None:
    decisions = [
        Decision("label", NOT_READ, "holds yes and no"),
        Decision("a\nb" + "c" * 60, "query", "by its name"),
        Decision("", NOT_READ, "numbers of rows"),
    ]
    lines = decision_table(decisions, "faq.csv: pairs").splitlines()
    assert lines[0] == "faq.csv: pairs"
    assert lines[1].startswith("  a bccc")
    assert "...  read as query  by its name" in lines[1]
    assert lines[2].split() == ["label", "not", "read", "holds", "yes", "and", "no"]
    assert lines[3].startswith("  a column without a name  ")
    assert (
        len(
            {
                line.index(reason)
                for line, reason in zip(lines[1:], ["by its", "holds", "numbers of"])
            }
        )
        == 1
    )
