"""Pairs, their ids, and what is left of repeated ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempera.text.read.pairs import Pairs, content_id

QUERIES, DOCS = "pqrstuvw", "abcdefgh"
TABLES = st.lists(
    st.tuples(st.sampled_from(QUERIES), st.sampled_from(DOCS), st.booleans()),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize(
    "other", ["a b", "a  b", " a b", "a b\n", "a\tb", "a\r\n\u2003b", "\u00a0a b\f"]
)
def test_white_space_makes_no_other_content(other: str) -> None:
    assert content_id(other) == content_id("a b")


@pytest.mark.parametrize(
    "other", ["A b", "ab", "a b.", "a", "", "á b", "a \u0301b", "b a", "a\u200bb", "a \ud800 b"]
)
def test_anything_else_does(other: str) -> None:
    assert content_id(other) != content_id("a b")


def test_ids_are_64_bits_of_both_signs_and_stay_as_they_are() -> None:
    ids = np.array(
        [content_id(str(i)) for i in range(1000)], np.int64
    )  # raises where one is out of range
    assert len(set(ids)) == 1000
    assert 400 < (ids < 0).sum() < 600
    assert (content_id("a b"), content_id("a  Größe")) == (19413690874342476, 6592092989220771891)


@pytest.mark.parametrize(
    "kind",
    [list, pa.array, lambda texts: pa.chunked_array([texts[:2], texts[2:]], pa.large_string())],
)
def test_the_first_of_every_repeated_pair_is_kept(kind) -> None:
    query, doc = ["a", "b", " a", "a", "b", "a"], ["x", "x", "x\n", "y", "x", "y"]
    pairs = Pairs.of(kind(query), kind(doc), kind(list("123456")), kind(list("uvwxyz")))
    columns = ["query", "doc", "name", "place"]
    assert [tuple(row[c] for c in columns) for row in pairs.table.to_pylist()] == [
        ("a", "x", "1", "u"),
        ("b", "x", "2", "v"),
        ("a", "y", "4", "x"),
    ]
    assert pairs.ids("query").tolist() == [content_id(text) for text in "aba"]
    assert pairs.ids("doc").tolist() == [content_id(text) for text in "xxy"]
    assert len(pairs) == 3


def test_texts_of_all_rows_or_of_some() -> None:
    pairs = Pairs.of(["a", "b", "c"], ["x", "y", "z"])
    assert pairs.texts("query") == ["a", "b", "c"]
    assert pairs.texts("doc", np.array([2, 0, 2])) == ["z", "x", "z"]
    assert pairs.texts("name") == ["", "", ""]


@settings(deadline=None)
@given(TABLES)
def test_distinct_texts_come_in_the_order_of_their_first_rows(rows) -> None:
    pairs = Pairs.of([q for q, _, _ in rows], [d for _, d, _ in rows])
    for role in ("query", "doc"):
        texts = pairs.texts(role)
        first, which = pairs.distinct(role)
        assert [texts[row] for row in first] == list(dict.fromkeys(texts))
        assert [texts[first[i]] for i in which] == texts
        assert all(texts.index(texts[row]) == row for row in first)
