"""Probabilities of made pairs against the ones they were drawn by; errors and thresholds against
loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tempera.errors import DataError
from tempera.ranking.calibration import (
    BASE,
    Scored,
    bins,
    cross_fitted,
    doubt,
    fit,
    judge,
    thresholds,
)
from tempera.ranking.metrics import Relevant
from tempera.ranking.probability import Floats, Logistic, Mask

Curve = Callable[[np.ndarray], np.ndarray]


def curve(scores: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-(12 * scores - 8)))


def stairs(scores: np.ndarray) -> np.ndarray:
    return np.select([scores < 0.3, scores < 0.6], [0.02, 0.5], 0.55)


def made(
    seed: int, queries: int = 200, each: int = 10, p: Curve = curve
) -> tuple[Scored, np.ndarray]:
    """Pairs, and the probabilities that their labels were drawn by."""
    generator = np.random.default_rng(seed)
    scores = generator.uniform(0, 1, queries * each)
    true = p(scores)
    query = generator.permutation(np.repeat(np.arange(queries), each))
    return Scored(scores, generator.random(len(scores)) < true, query), true


@pytest.mark.parametrize("p", [curve, stairs])
def test_bins_hold_the_probability_that_labels_were_drawn_by(p: Curve) -> None:
    held, said, count = 0, 0, 0
    for seed in range(10):
        pairs, true = made(seed, p=p)
        found = fit(pairs).held_out
        edges = np.quantile(found, np.arange(1, 10) / 10)
        number = np.unique(np.searchsorted(edges, found, side="right"), return_inverse=True)[1]
        for i, each in enumerate(bins(pairs, found)):
            inside = number == i
            assert each.pairs == inside.sum()
            assert each.probability == pytest.approx(found[inside].mean())
            assert each.relevant.mean == pytest.approx(pairs.relevant[inside].mean())
            held += each.relevant.low <= true[inside].mean() <= each.relevant.high
            said += each.relevant.low - 0.01 <= each.probability <= each.relevant.high + 0.01
            count += 1
    assert held / count > 0.88
    assert said / count > 0.85


def test_probabilities_are_near_those_that_labels_were_drawn_by() -> None:
    pairs, true = made(0, 1000)
    found = fit(pairs)
    assert found.chosen == "logistic"
    assert found.maps["logistic"].slope == pytest.approx(12, rel=0.06)
    assert np.abs(found.held_out - true).max() < 0.03


def test_the_isotonic_map_is_chosen_where_no_logistic_curve_fits() -> None:
    pairs, true = made(0, 500, p=stairs)
    found = fit(pairs)
    assert found.chosen == "isotonic"
    assert np.abs(found.held_out - true).mean() < 0.04
    assert (
        found.judged["isotonic"].log_loss.mean
        < found.judged["logistic"].log_loss.mean
        < found.judged[BASE].log_loss.mean
    )


def test_few_pairs_are_not_given_the_isotonic_map() -> None:
    assert set(fit(made(0, 99)[0]).maps) == {"logistic"}
    assert set(fit(made(0, 100)[0]).maps) == {"logistic", "isotonic"}
    pairs, _ = made(0, 200)
    rare = pairs.relevant & (np.cumsum(pairs.relevant) <= 49)
    assert set(fit(Scored(pairs.scores, rare, pairs.query)).maps) == {"logistic"}


def test_a_query_never_stands_on_both_sides() -> None:
    pairs, _ = made(0, 37, 6)
    query_of = dict(zip(pairs.scores.tolist(), pairs.query.tolist()))
    times = dict.fromkeys(range(37), 0)

    class Spy:
        def __init__(self, scores: Floats, relevant: Mask) -> None:
            self.seen = {query_of[score] for score in scores.tolist()}

        def __call__(self, scores: Floats) -> Floats:
            asked = {query_of[score] for score in scores.tolist()}
            assert not asked & self.seen and asked | self.seen == set(range(37))
            for query in asked:
                times[query] += 1
            return np.full(len(scores), 0.5)

    assert (cross_fitted(pairs, Spy) == 0.5).all()  # type: ignore[arg-type]
    assert set(times.values()) == {1}


def test_errors_are_those_of_loops() -> None:
    pairs, p = made(3, 40)
    p = np.clip(p.round(1), 0.1, 0.9)  # ties, which stay in one bin
    found = judge(pairs, p)
    n = len(pairs)
    log_loss = brier = 0.0
    edges = np.quantile(p, [i / 10 for i in range(1, 10)])
    sums: dict[int, float] = {}
    for value, right in zip(p.tolist(), pairs.relevant.tolist()):
        log_loss -= math.log(value) if right else math.log(1 - value)
        brier += (value - right) ** 2
        number = sum(edge <= value for edge in edges)
        sums[number] = sums.get(number, 0.0) + value - right
    assert found.log_loss.mean == pytest.approx(log_loss / n)
    assert found.brier.mean == pytest.approx(brier / n)
    assert found.ece.mean == pytest.approx(sum(map(abs, sums.values())) / n)
    for error in (found.log_loss, found.brier, found.ece):
        assert 0 <= error.low <= error.mean <= error.high


def test_the_calibration_error_of_wrong_probabilities_is_found_and_of_right_ones_is_near_0() -> (
    None
):
    pairs, p = made(0, 1000)
    assert judge(pairs, p).ece.low < 0.005
    wrong = judge(pairs, np.clip(p * 0.5 + 0.25, 0, 1)).ece
    true = np.abs(p - (p * 0.5 + 0.25)).mean()
    assert wrong.low < true < wrong.high and wrong.low > 0.1


def test_intervals_are_over_queries() -> None:
    pairs, p = made(0, 50)
    tenfold = Scored(*(np.repeat(part, 10) for part in (pairs.scores, pairs.relevant, pairs.query)))
    once, again = judge(pairs, p), judge(tenfold, np.repeat(p, 10))
    assert (again.brier.low, again.brier.high) == pytest.approx((once.brier.low, once.brier.high))
    pairs_alone = judge(Scored(pairs.scores, pairs.relevant, np.arange(len(pairs))), p)
    assert again.ece.high - again.ece.low > 0.8 * (once.ece.high - once.ece.low) > 0
    assert pairs_alone.ece != once.ece and pairs_alone.brier != once.brier


def test_thresholds_are_those_of_loops_and_hold_on_new_pairs() -> None:
    held, count = 0, 0
    for seed in range(25):
        pairs, _ = made(seed)
        fitted = fit(pairs)
        new, _ = made(1000 + seed, 3000)
        p = fitted.maps[fitted.chosen](new.scores)
        for found in thresholds(pairs, fitted, [0.9], [0.8]):
            assert (
                found.threshold is not None
                and found.precision
                and found.recall
                and found.cosine is not None
            )
            right = [q for q, y in zip(fitted.held_out.tolist(), pairs.relevant.tolist()) if y]
            above = [q for q in fitted.held_out.tolist() if q >= found.threshold]
            hits = [q for q in right if q >= found.threshold]
            assert found.precision.mean == pytest.approx(len(hits) / len(above))
            assert found.recall.mean == pytest.approx(len(hits) / len(right))
            assert getattr(found, found.of).mean >= found.target
            assert found.stated == pytest.approx(np.mean(above))
            too_low = replace(found, stated=found.precision.low - 0.01)
            assert str(too_low).endswith(
                f"; the probabilities here are too low: {too_low.stated:.2f} in the mean"
            )
            assert "too high" in str(replace(found, stated=1.01)) and "too" not in str(
                replace(found, stated=None)
            )
            kept = (p >= found.threshold).sum()
            kept_right = (new.relevant & (p >= found.threshold)).sum()
            for reached, truth in (
                (found.precision, kept_right / kept),
                (found.recall, kept_right / new.relevant.sum()),
            ):
                held += reached.low <= truth <= reached.high
                count += 1
            assert (fitted.maps[fitted.chosen](np.array([found.cosine])) >= found.threshold).all()
    assert held / count > 0.88


def test_no_other_threshold_is_lower_for_a_precision_or_higher_for_a_recall() -> None:
    pairs, _ = made(1, 60)
    fitted = fit(pairs)
    precise, complete = thresholds(pairs, fitted, [0.85], [0.7])
    assert precise.threshold is not None and complete.threshold is not None
    for level in np.unique([float(f"{p:.3g}") for p in fitted.held_out]).tolist():
        above = fitted.held_out >= level
        if level < precise.threshold:
            assert pairs.relevant[above].mean() < 0.85
        if level > complete.threshold:
            assert (pairs.relevant & above).sum() / pairs.relevant.sum() < 0.7


def test_a_threshold_that_is_impossible_is_said_with_the_best_there_is() -> None:
    pairs, _ = made(0, p=lambda scores: 0.1 + 0.4 * scores)
    fitted = fit(pairs)
    (found,) = thresholds(pairs, fitted, [0.99])
    assert found.threshold is None and found.precision is None
    best = max(
        pairs.relevant[fitted.held_out >= level].mean()
        for level in {float(f"{p:.3g}") for p in fitted.held_out}
        if (fitted.held_out >= level).sum() >= 20
    )
    assert found.best == pytest.approx(best)
    assert (
        str(found)
        == f"no threshold reaches precision 0.99; the best is {math.floor(1000 * best) / 1000:g}: ask for that, or for less"
    )


def test_what_search_shows_is_what_loops_find() -> None:
    generator = np.random.default_rng(0)
    queries, docs = (
        generator.normal(size=(7, 4)).astype(np.float32),
        generator.normal(size=(30, 4)).astype(np.float32),
    )
    answers = [{1, 2}, {3}, {4}, {5}, {6}, {7}, {29}]
    pairs = Scored.of_search(queries, docs, Relevant.of([sorted(a) for a in answers]), 5)
    at = 0
    for i, query in enumerate(queries):
        scores = {j: float(query @ doc) for j, doc in enumerate(docs)}
        for j in sorted(scores, key=lambda j: -scores[j])[:5]:
            assert pairs.scores[at] == pytest.approx(scores[j], rel=1e-5)
            assert pairs.relevant[at] == (j in answers[i]) and pairs.query[at] == i
            at += 1
    assert at == len(pairs)


def test_shares_of_0_and_1_have_wilsons_interval() -> None:
    pairs = Scored(np.arange(400.0), np.arange(400) >= 200, np.arange(400))
    low, high = (each for each in bins(pairs, np.where(pairs.relevant, 0.9, 0.1)))
    z2 = 1.959964**2
    assert (low.relevant.low, low.relevant.high) == pytest.approx((0, z2 / (200 + z2)), abs=1e-6)
    assert (high.relevant.low, high.relevant.high) == pytest.approx((200 / (200 + z2), 1), abs=1e-6)


def test_too_few_pairs_and_similarities_that_say_nothing_are_refused() -> None:
    pairs, _ = made(0)
    with pytest.raises(DataError, match="9 queries are too few"):
        fit(pairs[pairs.query < 9])
    with pytest.raises(DataError, match="0 relevant pairs are too few"):
        fit(Scored(pairs.scores, np.zeros(len(pairs), bool), pairs.query))
    with pytest.raises(DataError, match="0 irrelevant pairs are too few"):
        fit(Scored(pairs.scores, np.ones(len(pairs), bool), pairs.query))
    with pytest.raises(DataError, match="relevant pairs are not more similar than others"):
        fit(Scored(-pairs.scores, pairs.relevant, pairs.query))


def test_the_same_pairs_give_the_same_numbers() -> None:
    pairs, _ = made(0)
    one, other = fit(pairs), fit(pairs)
    assert one.judged == other.judged and one.maps == other.maps
    assert thresholds(pairs, one, [0.9]) == thresholds(pairs, other, [0.9])
    assert isinstance(one.maps["logistic"], Logistic)


def test_few_queries_and_a_map_that_says_nothing_advise_no_threshold() -> None:
    for queries in (49, 50):
        pairs, _ = made(0, queries)
        fitted = fit(pairs)
        assert doubt(queries, fitted.judged, fitted.chosen) == (
            None if queries == 50 else "49 queries are too few to choose by; give at least 50"
        )
        assert len(thresholds(pairs, fitted, [0.5], [0.5])) == (2 if queries == 50 else 0)
    found = []
    for seed in range(20):
        pairs, _ = made(seed, 60, 2, lambda scores: np.full(len(scores), 0.3))
        try:
            fitted = fit(pairs)
        except DataError:  # by chance relevant pairs are less similar
            continue
        worse = fitted.judged["logistic"].log_loss.mean >= fitted.judged[BASE].log_loss.mean
        assert worse == (not thresholds(pairs, fitted, [0.3]))
        assert worse == (
            "no better than the base rate" in (doubt(60, fitted.judged, fitted.chosen) or "")
        )
        found.append(worse)
    assert {*found} == {True, False}
