"""Mined negatives against plain loops in float64, with every filter in every combination."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tempera.arithmetic import products
from tempera.errors import ConfigError, DataError
from tempera.mining import search
from tempera.mining.hard_negatives import Mining, mine
from tempera.mining.search import Candidates, Search, by_faiss, exact
from tempera.mining.shortfall import Report
from tempera.ranking.nearest import top

QUERIES, DOCS = 23, 70


def data(seed: int) -> dict[str, Any]:
    """Small whole numbers, so that products are exact, ties are many, and scores are of both
    signs."""
    generator = np.random.default_rng(seed)
    queries = generator.integers(-2, 3, (QUERIES, 4)).astype(np.float32)
    docs = generator.integers(-2, 3, (DOCS, 4)).astype(np.float32)
    counts = generator.integers(1, 5, QUERIES)
    pairs = sorted(
        {(q, int(d)) for q in range(QUERIES) for d in generator.integers(0, DOCS, counts[q])}
    )
    itself = np.where(generator.random(QUERIES) < 0.3, generator.integers(0, DOCS, QUERIES), -1)
    judged = generator.integers(-4, 9, (QUERIES, DOCS)).astype(np.float32)
    return {"queries": queries, "docs": docs, "pairs": pairs, "itself": itself, "judged": judged}


def loops(
    given: dict[str, Any], options: Mining, itself: bool, cross: bool
) -> tuple[list[list[tuple]], Report]:
    """Document, score and rank of each negative, and the report, by the definition."""
    queries, docs = given["queries"].astype(np.float64), given["docs"].astype(np.float64)
    found, total = [], Counter()
    dropped = Counter({"absolute margin": 0} if options.absolute_margin is not None else {})
    dropped.update({"relative margin": 0} if options.relative_margin is not None else {})
    dropped.update({"cross-encoder": 0} if cross else {})
    short_by: Counter[str] = Counter()
    for q in range(QUERIES):
        answers = [d for other, d in given["pairs"] if other == q]
        score = [float(sum(queries[q][i] * doc[i] for i in range(4))) for doc in docs]
        out = {*answers, *([int(given["itself"][q])] if itself else [])}
        ranked = [d for d in sorted(range(DOCS), key=lambda d: (-score[d], d)) if d not in out]
        inside = list(enumerate(ranked, 1))[options.skip : options.depth]
        lowest, lowest_judged = (
            min(score[d] for d in answers),
            min(float(given["judged"][q, d]) for d in answers),
        )
        good, lost = [], Counter()
        for rank, d in inside:
            if (
                options.absolute_margin is not None
                and score[d] > lowest - options.absolute_margin + 1e-4
            ):
                lost["absolute margin"] += 1
            elif options.relative_margin is not None and (
                score[d] > lowest - options.relative_margin * abs(lowest) + 1e-4
                or (options.relative_margin > 0 and score[d] == lowest)
            ):
                lost["relative margin"] += 1
            elif (
                cross
                and given["judged"][q, d]
                > lowest_judged - options.cross_margin * abs(lowest_judged) + 1e-4
            ):
                lost["cross-encoder"] += 1
            else:
                good.append((d, score[d], rank))
        found.append(good[: options.negatives])
        dropped.update(lost)
        total.update(
            queries=1, answers=len(answers), itself=int(itself and given["itself"][q] >= 0), candidates=len(inside),
            spare=max(0, len(good) - options.negatives), kept=len(found[-1]),
            short=int(len(good) < options.negatives), empty=int(not good),
        )  # fmt: skip
        if len(good) < options.negatives:
            most = max(dropped, key=lambda name: lost[name], default="ranks")
            short_by["ranks" if len(inside) < options.negatives else most] += 1
    return found, Report(**total, dropped=dict(dropped), short_by=dict(short_by))


COMBINATIONS = [
    *itertools.product((0, 3), (12, 200), (None, 1.0), (None, 0.25), (None, 0.5), (False, True)),
]


@pytest.mark.parametrize(("skip", "depth", "absolute", "relative", "cross", "itself"), COMBINATIONS)
def test_every_combination_of_filters(
    monkeypatch: pytest.MonkeyPatch,
    skip: int,
    depth: int,
    absolute: float | None,
    relative: float | None,
    cross: float | None,
    itself: bool,
) -> None:
    given = data(depth + skip)
    options = Mining(6, skip, depth, absolute, relative, 0.0 if cross is None else cross)
    expected, report = loops(given, options, itself, cross is not None)
    pairs = np.array(given["pairs"]).T
    asked: list[tuple[int, int]] = []

    def judge(wanted: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        asked.extend(zip(*(side.tolist() for side in wanted)))
        return given["judged"][wanted]

    for block in (4, 1000):
        monkeypatch.setattr("tempera.mining.hard_negatives.BLOCK", block)
        monkeypatch.setattr("tempera.ranking.nearest._WIDTH", block)
        mined = mine(
            given["queries"],
            given["docs"],
            (pairs[0], pairs[1]),
            options,
            given["itself"] if itself else None,
            None if cross is None else judge,
        )
        got = [
            [(d, s, r) for d, s, r in zip(*row) if d >= 0]
            for row in zip(mined.positions.tolist(), mined.scores.tolist(), mined.ranks.tolist())
        ]
        assert got == expected
        assert mined.report == report
        assert (
            (mined.positions < 0).tolist()
            == np.isneginf(mined.scores).tolist()
            == (mined.ranks == 0).tolist()
        )
        assert mined.answer_scores.tolist() == [
            float(given["queries"][q] @ given["docs"][d]) for q, d in given["pairs"]
        ]
    if absolute is not None or relative is not None:  # what a margin has refused is not judged
        assert len(set(asked)) < QUERIES * (min(depth, DOCS) - skip)


def test_the_whole_of_a_small_corpus_may_be_answers() -> None:
    mined = mine(
        np.eye(2),
        np.eye(2),
        (np.array([0, 0, 1]), np.array([0, 1, 0])),
        Mining(2, 0, 2, relative_margin=None),
    )
    assert mined.positions.tolist() == [[-1, -1], [1, -1]]
    assert (mined.report.short, mined.report.empty, mined.report.short_by) == (2, 1, {"ranks": 2})


def test_no_queries() -> None:
    none = np.empty(0, np.int64)
    mined = mine(np.empty((0, 2)), np.eye(2), (none, none), Mining(2))
    assert mined.positions.shape == (0, 2) and mined.report == Report()


def test_ninety_five_percent_of_the_answer() -> None:
    docs = np.array([[0.8], [0.7601], [0.7599], [-0.5]])
    mined = mine(np.ones((1, 1)), docs, (np.array([0]), np.array([0])), Mining(3))
    assert mined.positions.tolist() == [[2, 3, -1]] and mined.report.dropped == {
        "relative margin": 1
    }


def test_a_margin_lies_below_an_answer_of_negative_score() -> None:
    docs = np.array([[-0.5], [-0.51], [-0.53]])
    mined = mine(np.ones((1, 1)), docs, (np.array([0]), np.array([0])), Mining(2))
    assert mined.positions.tolist() == [[2, -1]]


@pytest.mark.parametrize(
    ("margin", "found"), [(0.05, [2, -1, -1]), (0.0, [0, 2, -1]), (None, [1, 0, 2])]
)
def test_what_scores_as_an_answer_of_score_0_is_no_negative(
    margin: float | None, found: list[int]
) -> None:
    """Of which every share is 0."""
    docs = np.array([[0.0], [0.1], [-0.2], [0.0]])
    mined = mine(
        np.ones((1, 1)), docs, (np.array([0]), np.array([3])), Mining(3, relative_margin=margin)
    )
    assert mined.positions.tolist() == [found]


@pytest.mark.parametrize("options", [Mining(6, 3, 12, 1.0, 0.25), Mining(4, relative_margin=None)])
def test_faiss_finds_what_all_products_find(options: Mining) -> None:
    pytest.importorskip("faiss")
    generator = np.random.default_rng(0)
    queries, docs = (generator.normal(size=(n, 8)).astype(np.float32) for n in (40, 90))
    answers = np.arange(40), generator.integers(0, 90, 40)
    itself = generator.integers(-1, 90, 40)
    plain = mine(queries, docs, answers, options, itself)
    faiss = mine(queries, docs, answers, options, itself, search=by_faiss(docs, "Flat"))
    assert np.array_equal(plain.positions, faiss.positions) and np.array_equal(
        plain.ranks, faiss.ranks
    )
    assert plain.report == faiss.report


def test_refusals() -> None:
    with pytest.raises(DataError, match=r"1 query has no answer, such as query 1"):
        mine(np.eye(2), np.eye(2), (np.array([0]), np.array([0])), Mining(1))
    with pytest.raises(
        ConfigError, match="negatives is 5, but the ranks 8 to 10 hold only 3 documents"
    ):
        Mining(5, 7, 10)
    pytest.importorskip("faiss")
    with pytest.raises(ConfigError, match="FAISS cannot build the index 'Nonsense'"):
        by_faiss(np.eye(2, dtype=np.float32), "Nonsense")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"relative_margin": math.nan},
            "relative_margin is nan; give a finite number of at most 1",
        ),
        ({"relative_margin": 4.0}, "relative_margin is 4; give a finite number of at most 1"),
        ({"absolute_margin": -0.5}, "absolute_margin is -0.5; give a finite number of at least 0"),
        (
            {"absolute_margin": math.inf},
            "absolute_margin is inf; give a finite number of at least 0",
        ),
        ({"cross_margin": -math.inf}, "cross_margin is -inf; give a finite number"),
        ({"negatives": 2.5}, "negatives is a whole number, not 2.5"),
        ({"skip": True}, "skip is a whole number, not True"),
        ({"depth": None}, "depth is a whole number, not None"),
        ({"relative_margin": "5 %"}, "relative_margin is a number or None, not '5 %'"),
    ],
)
def test_what_is_no_number_and_margins_that_drop_everything_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        Mining(**options)  # type: ignore[arg-type]
    assert str(error.value) == message


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("by", [exact, Candidates])
def test_exact_search_of_ties_duplicates_and_zeros_in_arrays_that_are_only_read(
    by: Callable[[Any], Search], dtype: type
) -> None:
    generator = np.random.default_rng(0)
    docs = generator.integers(-2, 3, (4100, 8)).astype(
        dtype
    )  # more than a block; products are exact
    docs[::7], docs[4090:] = 0, docs[:10]
    queries = np.concatenate([docs[:20], np.zeros((1, 8))]).astype(np.float32)
    docs.flags.writeable = queries.flags.writeable = False
    without = np.arange(20), np.arange(20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of arrays that it could write to
        scores, positions = by(docs)(queries, 30, without)
    whole = queries.astype(np.float64) @ docs.T.astype(np.float64)
    whole[without] = -np.inf
    best = [sorted(range(len(row)), key=lambda i: (-row[i], i))[:30] for row in whole.tolist()]
    assert positions.tolist() == best
    assert scores.tolist() == np.take_along_axis(whole, positions, 1).tolist()


@pytest.mark.parametrize("spread", [1.0, 0.05, 1e-3, 1e-5])
@pytest.mark.parametrize("width", [5, 96])
def test_candidates_in_bf16_end_in_the_nearest_of_all(spread: float, width: int) -> None:
    """Documents that differ by less than bf16 can tell, of lengths from 0.01 to 100, some of them
    left out."""
    generator = np.random.default_rng(11)
    docs = generator.normal(size=width) + spread * generator.normal(size=(3000, width))
    docs *= 10 ** generator.uniform(-2, 2, (3000, 1)) if spread == 1.0 else 1.0
    docs = docs.astype(np.float32)
    queries = (docs[:40] + 0.1 * generator.normal(size=(40, width))).astype(np.float32)
    without = (
        np.repeat(np.arange(40), 3),
        np.sort(generator.integers(0, 3000, (40, 3)), axis=1).ravel(),
    )
    whole = queries.astype(np.float64) @ docs.T.astype(np.float64)
    whole[without] = -np.inf
    size = (
        2e-6 * np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(docs, axis=1).max()
    )  # of a sum in float32
    for k in (1, 20, 2990, 3000):
        scores, positions = Candidates(docs)(queries, k, without)
        best = -np.sort(-whole, axis=1)[:, :k]
        there = np.isfinite(best)
        assert (positions >= 0).tolist() == there.tolist()
        assert all(len({*row[row >= 0]}) == (row >= 0).sum() for row in positions)
        best[~there] = 0
        right = np.where(there, np.take_along_axis(whole, positions, 1), 0)
        assert (np.abs(right - best) <= size).all()
        assert (np.abs(np.where(there, scores, 0) - best) <= size).all() and np.isneginf(
            scores[~there]
        ).all()


NOTHING = np.empty(0, np.int64), np.empty(0, np.int64)


def hidden_by_its_factors() -> tuple[Any, Any]:
    """Query and last document round to numbers whose product is 1 lower; it is the longest by
    far."""
    size = np.repeat(np.float32([1 + 2**-8 - 2**-12, 1 + 2**-8 + 2**-12]), 64)
    docs = np.zeros((106, 128), np.float32)
    docs[:5, 0], docs[5:105, 0], docs[105] = (
        -0.25,
        -0.9375,
        size * np.repeat(np.float32([1, -1]), 64),
    )
    return docs, size[None]


def hidden_by_its_score() -> tuple[Any, Any]:
    """The last document's score of 64.498 is rounded to 64, as that of 100 others, for which that
    is exact."""
    docs = np.ones((106, 66), np.float32)
    docs[:, 64:] = 0
    docs[:5, 64], docs[105, 64] = 0.40625, 0.2490234375
    docs[105, :64] += 2**-8 - 2**-16
    return docs, np.ones((1, 66), np.float32)


@pytest.mark.parametrize("factor", [1.0, 2.0**-80])
@pytest.mark.parametrize("hidden", [hidden_by_its_factors, hidden_by_its_score])
def test_a_document_that_rounding_puts_behind_all_candidates_is_found(
    hidden: Callable[[], tuple[Any, Any]], factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_AT_ONCE", 8)
    docs, queries = hidden()
    docs *= np.float32(factor)
    scores, positions = Candidates(docs)(queries, 5, NOTHING)
    assert positions.tolist() == [[105, 0, 1, 2, 3]]
    np.testing.assert_allclose(
        scores, -np.sort(-queries.astype(float) @ docs.T.astype(float))[:, :5], rtol=1e-4
    )


def test_equal_documents_whose_rounded_scores_differ_come_in_their_order() -> None:
    docs = np.zeros((200, 3), np.float32)
    docs[0] = [1 + 2**-9, 1, 2**-8 + 2**-9]
    docs[1] = [1 + 2**-8 + 2**-10, 1 - 2**-8 - 2**-10 + 2**-9, 2**-8 + 2**-9]
    scores, positions = Candidates(docs)(np.ones((1, 3), np.float32), 2, NOTHING)
    assert positions.tolist() == [[0, 1]] and scores.tolist() == [[2 + 2**-7] * 2]


def test_few_queries_are_searched_again_where_documents_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten queries stand where 500 documents are nearly one, the others among documents that bf16
    tells apart."""
    generator = np.random.default_rng(12)
    docs = generator.normal(size=(6000, 64))
    docs[:500] = docs[0] + 1e-5 * generator.normal(size=(500, 64))
    docs = (docs / np.linalg.norm(docs, axis=1, keepdims=True)).astype(np.float32)
    again: list[int] = []

    def counted(queries: Any, *rest: Any, **options: Any) -> Any:
        again.append(len(queries))
        return top(queries, *rest, **options)

    monkeypatch.setattr(search, "top", counted)
    find = Candidates(docs)
    find(docs[np.r_[:10, 1000:1200]], 20, NOTHING)
    assert again[0] == 210 and 10 <= again[1] < 40 and find.pays
    find(docs[:30], 20, NOTHING)
    assert again[2:] == [30, 30] and not find.pays


@pytest.mark.parametrize(
    ("gain", "width", "k", "rounded"),
    [(9.0, 256, 10, True), (1.0, 256, 10, False), (9.0, 255, 10, False), (9.0, 256, 11, False)],
)
def test_candidates_are_for_wide_vectors_many_documents_and_fast_bf16(
    gain: float, width: int, k: int, rounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "bf16_gain", lambda _: gain)
    taken: list[int] = []
    monkeypatch.setattr(Candidates, "__call__", lambda *given: taken.append(given[2]))
    docs = np.zeros((9_766, width), np.float32)  # times 256 just above ten times 250,000
    exact(docs)(docs[:1], k, NOTHING)
    assert taken == ([k] if rounded else [])


def test_candidates_that_prove_nothing_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "bf16_gain", lambda _: 9.0)
    monkeypatch.setattr(search, "_MANY", 1)
    own, taken = Candidates.__call__, list[int]()

    def counted(self: Candidates, queries: Any, *rest: Any) -> Any:
        taken.append(len(queries))
        return own(self, queries, *rest)

    monkeypatch.setattr(Candidates, "__call__", counted)
    docs = np.ones((400, 256), np.float32)
    docs[:, 0] += np.arange(400) / 100  # of which bf16 sees steps of 2 in a score
    find = exact(docs)
    for queries in (8, 9):
        assert find(docs[:queries], 3, NOTHING)[1].tolist() == [[399, 398, 397]] * queries
    assert taken == [8]


@pytest.mark.parametrize("gain", [9.0, 0.0])
def test_both_products_find_what_the_definition_finds(
    gain: float, onednn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By oneDNN and by MKL, of documents in more than one block, in half precision, and with pairs
    to leave out."""
    monkeypatch.setattr(products, "onednn_gain", lambda: gain)
    generator = np.random.default_rng(5)
    docs = generator.normal(size=(12_000, 24)).astype(np.float16)
    queries = generator.normal(size=(30, 24)).astype(np.float32)
    without = np.arange(30), (queries.astype(np.float64) @ docs.T.astype(np.float64)).argmax(1)
    want = queries.astype(np.float64) @ docs.T.astype(np.float64)
    want[without] = -np.inf
    scores, positions = exact(docs)(queries, 7, without)
    assert (positions == np.argsort(-want, axis=1)[:, :7]).all() and onednn == ["oneDNN"] * (
        3 if gain else 0
    )
    np.testing.assert_allclose(scores, np.take_along_axis(want, positions, 1), rtol=1e-5)


def test_no_queries_have_arrays_of_the_same_kinds() -> None:
    none = np.empty(0, np.int64)
    mined = mine(np.empty((0, 2)), np.eye(2), (none, none), Mining(2))
    assert mined.positions.dtype == mined.ranks.dtype == np.int64 and mined.answer_scores.shape == (
        0,
    )
    assert mined.scores.dtype == mined.answer_scores.dtype == np.float32


@pytest.mark.parametrize("factory", ["PQ4x4", "IVF4,PQ4x4", "SQ4"])
def test_an_index_that_compresses_scores_exactly_and_no_negative_violates_a_margin(
    factory: str,
) -> None:
    """Half of the documents are near copies of others, which a compressed score does not tell
    apart."""
    pytest.importorskip("faiss")
    generator = np.random.default_rng(3)
    docs = np.repeat(generator.normal(size=(320, 8)), 2, axis=0) + 0.02 * generator.normal(
        size=(640, 8)
    )
    queries = docs[:80] + 0.2 * generator.normal(size=(80, 8))
    docs, queries = (
        np.float32(each / np.linalg.norm(each, axis=1, keepdims=True)) for each in (docs, queries)
    )
    answers, whole = (
        (np.arange(80), np.arange(80)),
        queries.astype(np.float64) @ docs.T.astype(np.float64),
    )
    find = by_faiss(docs, factory)
    scores, positions = find(queries, 20, answers)
    there = positions >= 0
    assert (
        there.sum() > 1000
        and np.isneginf(scores[~there]).all()
        and (scores[:, :-1] >= scores[:, 1:]).all()
    )
    np.testing.assert_allclose(
        scores[there], np.take_along_axis(whole, positions, 1)[there], rtol=0, atol=1e-6
    )
    assert not (positions == np.arange(80)[:, None]).any()
    mined = mine(queries, docs, answers, Mining(5, relative_margin=0.05), search=find)
    rows, columns = np.nonzero(mined.positions >= 0)
    true, own = whole[rows, mined.positions[rows, columns]], whole[rows, rows]
    assert len(rows) > 300 and (true <= own - 0.05 * np.abs(own) + 1e-6).all()
    np.testing.assert_allclose(mined.scores[rows, columns], true, rtol=0, atol=1e-6)


@pytest.mark.parametrize("factory", ["IVF16,Flat", "IVF8,SQ8"])
def test_an_index_that_finds_too_few_is_to_blame_and_not_the_ranks(factory: str) -> None:
    pytest.importorskip("faiss")
    docs = np.random.default_rng(0).normal(size=(640, 8)).astype(np.float32)
    docs /= np.linalg.norm(docs, axis=1, keepdims=True)
    queries, answers = docs[:50], (np.arange(50), np.arange(50))
    options = Mining(100, depth=400, relative_margin=None)
    report = mine(queries, docs, answers, options, search=by_faiss(docs, factory)).report
    assert report.short == 50 and report.short_by == {"search": 50}
    assert any("search exactly (no --faiss)" in line for line in report.lines())
    exact = mine(queries, docs, answers, options).report
    assert exact.short == 0 and exact.short_by == {}
    few = mine(queries, docs[:90], answers, options).report
    assert few.short_by == {"ranks": 50}
