"""Pairs divided by query: no leak into training, sizes that suit the data, and a choice that has a
seed of its own. What counts as the same text is in test_held_out_texts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempera.errors import DataError
from tempera.task.evaluation import Evaluation
from tempera.text.read.pairs import TEST, TRAIN, VALIDATION, Pairs
from tempera.text.train.split import NOT_ASKED, SHARES_DOCUMENT, SHARES_QUERY, Split, hold_out

QUERIES, DOCS = "pqrstuvw", "abcdefgh"
TABLES = st.lists(
    st.tuples(st.sampled_from(QUERIES), st.sampled_from(DOCS), st.booleans()),
    min_size=1,
    max_size=40,
)
PARTS = ("train", "validation", "test", "corpus")


def table(rows) -> tuple[Pairs, np.ndarray]:
    """Distinct pairs and which of them are candidates."""
    distinct = list({(q, d): c for q, d, c in reversed(rows)}.items())
    pairs = Pairs.of([q for (q, _), _ in distinct], [d for (_, d), _ in distinct])
    assert len(pairs) == len(distinct)
    return pairs, np.array([c for _, c in distinct])


def one_to_one(count: int) -> tuple[Pairs, np.ndarray]:
    """Pairs that share nothing, and all of which are candidates."""
    return Pairs.of([f"q{i}" for i in range(count)], [f"d{i}" for i in range(count)]), np.ones(
        count, bool
    )


def two_to_one(queries: int = 60) -> tuple[Pairs, np.ndarray]:
    """Pairs of which each two share a document."""
    pairs = Pairs.of([f"q{i}" for i in range(queries)], [f"d{i // 2}" for i in range(queries)])
    return pairs, np.ones(queries, bool)


def named(rows: list[tuple[str, str, int]]) -> tuple[Pairs, np.ndarray]:
    """Pairs of which a source has named the part."""
    pairs = Pairs.of([q for q, _, _ in rows], [d for _, d, _ in rows])
    assert len(pairs) == len(rows)
    part = pa.array([code or None for _, _, code in rows], pa.uint8())
    return Pairs(pairs.table.append_column("part", part)), np.ones(len(rows), bool)


def queries_of(split: Split, part: str) -> set[str]:
    return set(split.pairs.texts("query", getattr(split, part)))


def docs_of(split: Split, part: str) -> set[str]:
    return set(split.pairs.texts("doc", getattr(split, part)))


def may_fail(pairs: Pairs, candidates: np.ndarray, queries: int) -> bool:
    """Return True if some choice of at most so many queries leaves nothing to ask or to train
    on."""
    rows = list(zip(pairs.texts("query"), pairs.texts("doc"), candidates.tolist()))
    wanted = {query for query, _, candidate in rows if candidate}
    for size in range(1, queries + 1):
        for held in itertools.combinations(wanted, size):
            docs = {doc for query, doc, candidate in rows if candidate and query in held}
            if all(query in held or doc in docs for query, doc, _ in rows):
                return True
    return len(wanted) < 2


@settings(deadline=None)
@given(
    TABLES,
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 5),
    st.sampled_from(["drop", "keep"]),
)
def test_no_training_row_shares_a_text_with_a_held_out_row(
    rows, queries: int, validation: int, seed: int, shared: Any
) -> None:
    pairs, candidates = table(rows)
    options = Evaluation(queries=queries, validation=validation, seed=seed, shared_documents=shared)
    try:
        split = hold_out(pairs, candidates, options)
    except DataError:
        assert may_fail(pairs, candidates, queries + validation)
        return
    parts = [queries_of(split, part) for part in ("train", "validation", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts))  # no query is in two parts
    assert len(parts[2]) <= queries and len(parts[1]) <= validation
    held = docs_of(split, "validation") | docs_of(split, "test")
    shares = [i for i in split.train if pairs.texts("doc", np.array([i]))[0] in held]
    assert split.shared == len(shares) and (split.known.all() or not shares)
    left_out = len(pairs) - len(split.train) - len(split.validation) - len(split.test)
    assert sum(split.dropped.values()) == left_out
    query = pairs.texts("query")
    for part in ("validation", "test"):  # every candidate pair of a query is there
        rows_of = getattr(split, part).tolist()
        assert rows_of == [
            i for i in range(len(pairs)) if candidates[i] and query[i] in queries_of(split, part)
        ]
    assert docs_of(split, "corpus") == {d for d, c in zip(pairs.texts("doc"), candidates) if c}


@pytest.mark.parametrize("kept", ["drop", "keep"])
def test_texts_that_differ_in_case_alone_are_shared(kept: Any) -> None:
    """Most towers read them alike. Of documents that may be shared, such pairs are kept, and
    counted."""
    queries, docs = [f"Straße {i}" for i in range(40)], [f"Doc {i}" for i in range(40)]
    queries += [f"straßE {i}" for i in range(20)] + [f"other {i}" for i in range(20)]
    docs += [f"other {i}" for i in range(20)] + [f"dOC {i}" for i in range(20, 40)]
    pairs = Pairs.of(queries, docs)
    split = hold_out(
        pairs, np.arange(80) < 40, Evaluation(queries=8, validation=8, shared_documents=kept)
    )
    held = {*queries_of(split, "test"), *queries_of(split, "validation")}
    assert len(held) == 16 and not {text.lower() for text in held} & {
        text.lower() for text in queries_of(split, "train")
    }
    both = {text.lower() for part in ("test", "validation") for text in docs_of(split, part)}
    sharing = sum(text.lower() in both for text in pairs.texts("doc", split.train))
    asked = [int(text.split()[1]) < 20 for text in held]
    assert split.dropped[SHARES_QUERY] == sum(asked)
    assert (sharing, split.dropped.get(SHARES_DOCUMENT, 0)) == (
        (0, 16 - sum(asked)) if kept == "drop" else (16 - sum(asked), 0)
    )
    assert split.shared == sharing


def test_the_seed_and_nothing_else_chooses() -> None:
    pairs, every = two_to_one()
    shuffled = Pairs(pairs.table.take(np.random.default_rng(3).permutation(60)))
    options = [Evaluation(queries=20, validation=10, seed=seed) for seed in range(8)]
    for part, count in (("test", 20), ("validation", 10)):
        chosen = [queries_of(hold_out(pairs, every, each), part) for each in options]
        assert [len(queries) for queries in chosen] == [count] * 8
        assert len(set(map(frozenset, chosen))) == 8
        assert [queries_of(hold_out(shuffled, every, each), part) for each in options] == chosen


def test_the_size_of_validation_does_not_move_the_test() -> None:
    pairs, every = one_to_one(200)
    tests = [
        queries_of(hold_out(pairs, every, Evaluation(queries=20, validation=n)), "test")
        for n in (0, 5, 50)
    ]
    assert tests[0] == tests[1] == tests[2]


@pytest.mark.parametrize(
    ("count", "given_options", "test", "validation"),
    [
        (5, {}, 1, 0),
        (60, {}, 6, 6),
        (3_000, {}, 300, 300),
        (40_000, {}, 1500, 1500),
        (61, {"queries": 10**9, "validation": 0}, 30, 0),  # half at most
        (61, {"queries": 10**9}, 30, 6),
        (61, {"queries": 20, "validation": 10**9}, 20, 20),  # half of the others
        (600, {"validation": 80}, 60, 80),
    ],
)
def test_sizes(count: int, given_options: dict[str, int], test: int, validation: int) -> None:
    split = hold_out(*one_to_one(count), Evaluation(**given_options))
    assert (split.queries(split.test), split.queries(split.validation)) == (test, validation)
    assert len(split.train) == count - test - validation and not split.dropped


@pytest.mark.parametrize(
    ("rows", "candidates", "held"),
    [(99_000, 8_300, 1500), (99_000, 4_000, 1000), (1_000, 900, 100)],
)
def test_shares_are_of_all_queries_and_at_most_a_quarter_of_the_candidates(
    rows, candidates, held
) -> None:
    pairs, _ = one_to_one(rows)
    split = hold_out(pairs, np.arange(rows) < candidates, Evaluation())
    assert split.queries(split.test) == split.queries(split.validation) == held
    assert max(split.test.max(), split.validation.max()) < candidates == len(split.corpus)


def test_parts_that_are_drawn_share_no_text_and_named_ones_may() -> None:
    pairs = Pairs.of(
        [f"q{i}" for i in range(40)],
        [f"d{i % 5}" for i in range(20)] + [f"e{i}" for i in range(20)],
    )
    split = hold_out(pairs, np.ones(40, bool), Evaluation(queries=10, validation=10, seed=1))
    parts = [docs_of(split, part) for part in ("train", "validation", "test")]
    assert sum(map(len, parts)) == 25 and not split.dropped
    split = hold_out(
        *named(
            [
                ("q", "d", TEST),
                ("r", "d", VALIDATION),
                *((f"t{i}", f"e{i}", TRAIN) for i in range(4)),
            ]
        ),
        Evaluation(),
    )
    assert docs_of(split, "validation") == docs_of(split, "test") == {"d"}


def test_pairs_that_share_a_text_are_held_out_together_and_it_is_said() -> None:
    pairs, every = two_to_one(600)
    split = hold_out(pairs, every, Evaluation(queries=60, validation=60))
    assert len(split.train) == 480 and split.dropped == {}
    assert split.lines() == [
        "600 pairs: 480 for training, 60 validation and 60 test queries against 300 documents",
        "120 of the held-out pairs share a text with a pair of another query: such pairs are held out together",
    ]
    kept = hold_out(pairs, every, Evaluation(queries=60, validation=60, shared_documents="keep"))
    shared = sum(
        doc in docs_of(kept, "test") | docs_of(kept, "validation")
        for doc in pairs.texts("doc", kept.train)
    )
    assert (len(kept.train), kept.shared, kept.dropped) == (480, shared, {}) and shared > 60
    assert kept.lines() == [
        "600 pairs: 480 for training, 60 validation and 60 test queries against 300 documents; "
        f"{shared} of the training pairs share a document with them"
    ]


def test_pairs_of_a_held_out_query_that_are_no_candidates_are_counted() -> None:
    pairs = Pairs.of(["p", "p", "q", "r"], ["a", "b", "c", "d"])
    split = hold_out(
        pairs, np.array([True, False, False, True]), Evaluation(queries=1, validation=0, seed=0)
    )
    test, other = ("p", {SHARES_QUERY: 1}) if queries_of(split, "test") == {"p"} else ("r", {})
    assert queries_of(split, "test") == {test} and split.dropped == other


@pytest.mark.parametrize(("validation", "chooses"), [(0, False), (49, False), (50, True)])
def test_fewer_than_fifty_queries_choose_nothing(validation: int, chooses: bool) -> None:
    split = hold_out(*one_to_one(400), Evaluation(validation=validation))
    assert split.chooses is chooses
    says = (
        f"{validation} validation queries are too few to choose by (at least 50): defaults are kept"
    )
    assert (says in split.lines()) is (validation == 49)


def test_a_part_with_fewer_queries_than_it_was_to_have_is_told() -> None:
    pairs, candidates = one_to_one(200)
    assert hold_out(pairs, candidates, Evaluation(queries=50, validation=60)).lines()[1:] == []
    said = hold_out(pairs, candidates, Evaluation(queries=150, validation=60)).lines()[1:]
    assert said == [
        "evaluation.queries is 150, but 100 queries are held out, at most half of those that are left",
        "evaluation.validation is 60, but 50 queries are held out, at most half of those that are left",
    ]
    rows = [(f"q{i}", f"d{i}", TEST if i < 70 else TRAIN) for i in range(200)]
    said = hold_out(*named(rows), Evaluation(queries=150, validation=60)).lines()[1:]
    assert said == ["evaluation.queries is 150, but the data names 70 queries"]


def test_named_rows_are_the_parts_that_they_are_named_for() -> None:
    rows = [(f"q{i}", f"d{i}", TRAIN) for i in range(20)]
    rows += [
        ("t0", "d0", TEST),
        ("t1", "x1", TEST),
        ("q5", "x5", TEST),
    ]  # d0 and q5 are in training too
    rows += [
        ("v0", "x1", VALIDATION),
        ("t1", "x9", VALIDATION),
        ("v2", "d7", VALIDATION),
    ]  # t1 is in the test too
    split = hold_out(*named(rows), Evaluation())
    assert queries_of(split, "test") == {"t0", "t1", "q5"} and docs_of(split, "test") == {
        "d0",
        "x1",
        "x5",
    }
    assert queries_of(split, "validation") == {"v0", "v2"}
    assert queries_of(split, "train") == {f"q{i}" for i in range(20)} - {"q0", "q5", "q7"}
    assert split.dropped == {SHARES_QUERY: 2, SHARES_DOCUMENT: 2}
    kept = hold_out(*named(rows), Evaluation(shared_documents="keep"))
    assert queries_of(kept, "train") == {f"q{i}" for i in range(20)} - {"q5"} and kept.shared == 2


def test_what_is_not_named_is_drawn_from_the_others() -> None:
    rows = [(f"q{i}", f"d{i}", TRAIN) for i in range(40)] + [
        (f"t{i}", f"x{i}", TEST) for i in range(10)
    ]
    split = hold_out(*named(rows), Evaluation(queries=4))
    assert split.queries(split.test) == 4 and queries_of(split, "test") < {
        f"t{i}" for i in range(10)
    }
    assert split.queries(split.validation) == 5 and queries_of(split, "validation") < {
        f"q{i}" for i in range(40)
    }
    assert len(split.train) == 35 and split.dropped == {NOT_ASKED: 6}


@pytest.mark.parametrize(
    ("query", "doc", "candidates", "says"),
    [
        ("", "", "", "0 pairs hold 0 distinct queries for evaluation"),
        (
            "p",
            "a",
            "1",
            "1 pair holds 1 distinct query for evaluation, too few to hold out one for the test: give more data",
        ),
        ("pqr", "abc", "000", "3 pairs hold 0 distinct queries for evaluation"),
        ("pqr", "abc", "001", "3 pairs hold 1 distinct query for evaluation"),
        (
            "pqrs",
            "aaaa",
            "1111",
            "no pairs are left to train on: of 4 pairs with 4 distinct queries and 1 distinct document, 0 validation and 1 test "
            "query are held out, and 3 are pairs that hold a document of validation or test: give more data, hold out "
            "fewer queries (evaluation.queries, evaluation.validation), or set evaluation.shared_documents=keep",
        ),
    ],
)
def test_nothing_left_to_train_on_or_to_ask(
    query: str, doc: str, candidates: str, says: str
) -> None:
    pairs = Pairs.of(list(query), list(doc))
    with pytest.raises(DataError) as error:
        hold_out(pairs, np.array([c == "1" for c in candidates], bool), Evaluation())
    assert str(error.value).startswith(says)
