"""Pairs, their ids, and a held-out part that training has seen nothing of."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempera.errors import DataError
from tempera.text.pairs import Pairs, Split, content_id, hold_out

QUERIES, DOCS = "pqrstuvw", "abcdefgh"
TABLES = st.lists(st.tuples(st.sampled_from(QUERIES), st.sampled_from(DOCS), st.booleans()), min_size=1, max_size=40)


@pytest.mark.parametrize("other", ["a b", "a  b", " a b", "a b\n", "a\tb", "a\r\n\u2003b", "\u00a0a b\f"])
def test_white_space_makes_no_other_content(other: str) -> None:
    assert content_id(other) == content_id("a b")


@pytest.mark.parametrize("other", ["A b", "ab", "a b.", "a", "", "á b", "a \u0301b", "b a", "a\u200bb", "a \ud800 b"])
def test_anything_else_does(other: str) -> None:
    assert content_id(other) != content_id("a b")


def test_ids_are_64_bits_of_both_signs_and_stay_as_they_are() -> None:
    ids = np.array([content_id(str(i)) for i in range(1000)], np.int64)  # raises where one is out of range
    assert len(set(ids)) == 1000
    assert 400 < (ids < 0).sum() < 600
    assert (content_id("a b"), content_id("a  Größe")) == (19413690874342476, 6592092989220771891)


@pytest.mark.parametrize(
    "kind", [list, pa.array, lambda texts: pa.chunked_array([texts[:2], texts[2:]], pa.large_string())]
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


def table(rows) -> tuple[Pairs, np.ndarray]:
    """Distinct pairs and which of them are candidates."""
    distinct = list({(q, d): c for q, d, c in reversed(rows)}.items())
    pairs = Pairs.of([q for (q, _), _ in distinct], [d for (_, d), _ in distinct])
    assert len(pairs) == len(distinct)
    return pairs, np.array([c for _, c in distinct])


def check(split: Split, candidates: np.ndarray, queries: int) -> None:
    """What the docstrings promise, row by row."""
    query, doc = split.pairs.texts("query"), split.pairs.texts("doc")
    rows = range(len(split.pairs))
    train, asked, corpus = (part.tolist() for part in (split.train, split.asked, split.corpus))
    wanted = {query[i] for i in rows if candidates[i]}
    held = {query[i] for i in asked}
    assert train and asked and len(held) == min(queries, len(wanted) // 2)
    assert asked == [i for i in rows if candidates[i] and query[i] in held]
    held_docs = {doc[i] for i in asked}
    assert train == [i for i in rows if query[i] not in held and doc[i] not in held_docs]
    ranked = [doc[i] for i in corpus]
    assert len(ranked) == len(set(ranked)) and set(ranked) == {doc[i] for i in rows if candidates[i]}
    assert all(candidates[i] and doc.index(doc[i]) <= i for i in corpus) and corpus == sorted(corpus)


def may_fail(pairs: Pairs, candidates: np.ndarray, queries: int) -> bool:
    """Whether some choice of queries to hold out leaves nothing to ask or to train on."""
    rows = list(zip(pairs.texts("query"), pairs.texts("doc"), candidates.tolist()))
    wanted = {query for query, _, candidate in rows if candidate}
    for held in itertools.combinations(wanted, min(queries, len(wanted) // 2)):
        docs = {doc for query, doc, candidate in rows if candidate and query in held}
        if not held or all(query in held or doc in docs for query, doc, _ in rows):
            return True
    return False


@given(TABLES, st.integers(1, 6), st.integers(0, 5))
def test_no_training_row_shares_a_text_with_a_held_out_row(rows, queries: int, seed: int) -> None:
    pairs, candidates = table(rows)
    try:
        split = hold_out(pairs, candidates, queries, seed)
    except DataError:
        assert may_fail(pairs, candidates, queries)
        return
    check(split, candidates, queries)
    again = hold_out(pairs, candidates, queries, seed)
    assert all(np.array_equal(getattr(split, part), getattr(again, part)) for part in ("train", "asked", "corpus"))


def grid(queries: int = 60) -> tuple[Pairs, np.ndarray]:
    pairs = Pairs.of([f"q{i}" for i in range(queries)], [f"d{i // 2}" for i in range(queries)])
    return pairs, np.ones(queries, bool)


def asked(split: Split) -> set[str]:
    return set(split.pairs.texts("query", split.asked))


def test_the_seed_and_nothing_else_chooses() -> None:
    pairs, every = grid()
    order = np.random.default_rng(3).permutation(60)
    shuffled = Pairs(pairs.table.take(order))
    chosen = [asked(hold_out(pairs, every, 20, seed)) for seed in range(8)]
    assert [len(queries) for queries in chosen] == [20] * 8
    assert len(set(map(frozenset, chosen))) == 8
    assert [asked(hold_out(shuffled, every, 20, seed)) for seed in range(8)] == chosen
    for seed in range(8):
        check(hold_out(shuffled, every, 20, seed), every, 20)


@pytest.mark.parametrize("queries", [30, 31, 10**9])
def test_half_of_the_queries_at_most(queries: int) -> None:
    pairs = Pairs.of([f"q{i}" for i in range(61)], [f"d{i}" for i in range(61)])
    split = hold_out(pairs, np.ones(61, bool), queries, 0)
    assert len(asked(split)) == 30 and len(split.train) == 31


def test_only_candidates_are_asked_and_ranked() -> None:
    pairs, _ = grid()
    candidates = np.arange(60) < 20
    split = hold_out(pairs, candidates, 5, 0)
    check(split, candidates, 5)
    assert split.asked.max() < 20 and len(split.corpus) == 10 and split.train.max() == 59


@pytest.mark.parametrize(
    ("query", "doc", "candidates"),
    [
        ("", "", ""),
        ("p", "a", "1"),  # half of one query is none
        ("pp", "ab", "11"),
        ("pqr", "abc", "000"),
        ("pqr", "abc", "001"),
        ("pqrs", "aaaa", "1111"),  # every pair shares the document of a held-out one
    ],
)
def test_nothing_left_to_train_on_or_to_ask(query: str, doc: str, candidates: str) -> None:
    pairs = Pairs.of(list(query), list(doc))
    with pytest.raises(DataError) as error:
        hold_out(pairs, np.array([c == "1" for c in candidates], bool), 3, 0)
    asks = len({q for q, c in zip(query, candidates) if c == "1"})
    assert str(error.value) == (
        f"{len(pairs)} pairs with {asks} distinct queries cannot be divided into training and evaluation: "
        "give more data"
    )
