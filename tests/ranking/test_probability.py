"""Maps from similarity to probability: against scikit-learn, SciPy, and every rising step function
there is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import optimize
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from tempera.ranking.probability import Isotonic, Logistic, constant, rising


def made(
    seed: int, n: int = 400, low: float = -0.2, high: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    scores = generator.uniform(low, high, n)
    place = (scores - low) / (high - low)
    return scores, generator.random(n) < 1 / (1 + np.exp(-(6 * place - 4)))


@pytest.mark.parametrize(("low", "high"), [(-0.2, 0.9), (0.9713, 0.9998), (-40.0, 55.0)])
def test_the_logistic_curve_is_that_of_scikit_learn(low: float, high: float) -> None:
    for seed in range(5):
        scores, relevant = made(seed, low=low, high=high)
        right, wrong = relevant.sum(), (~relevant).sum()
        target = np.where(
            relevant, (right + 1) / (right + 2), 1 / (wrong + 2)
        )  # as weights of both labels
        x = (np.tile(scores, 2) - low) / (high - low)
        label, weight = np.repeat([1, 0], len(scores)), np.concatenate([target, 1 - target])
        other = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(
            x[:, None], label, weight
        )
        slope = other.coef_[0, 0] / (high - low)
        found = Logistic.fit(scores, relevant)
        assert found.slope == pytest.approx(slope, rel=1e-5)
        assert found.intercept == pytest.approx(
            other.intercept_[0] - slope * low, rel=1e-5, abs=1e-5
        )


def test_no_other_curve_has_a_lower_loss() -> None:
    scores, relevant = made(7, 60)
    right, wrong = relevant.sum(), (~relevant).sum()

    def loss(slope: float, intercept: float) -> float:
        total = 0.0
        for score, is_right in zip(scores.tolist(), relevant.tolist()):
            p = 1 / (1 + np.exp(-(slope * score + intercept)))
            target = (right + 1) / (right + 2) if is_right else 1 / (wrong + 2)
            total -= target * np.log(p) + (1 - target) * np.log(1 - p)
        return total

    found = Logistic.fit(scores, relevant)
    least = loss(found.slope, found.intercept)
    for far in (1e-4, 1e-2, 1.0):
        for a, b in itertools.product((-far, 0, far), repeat=2):
            assert loss(found.slope + a, found.intercept + b) >= least


def test_separable_pairs_one_kind_and_one_score_have_finite_curves() -> None:
    scores = np.array([0.1, 0.2, 0.8, 0.9])
    apart = Logistic.fit(scores, scores > 0.5)
    assert 0 < apart.slope < 100 and 0 < apart(scores).min() < apart(scores).max() < 1
    none = Logistic.fit(scores, scores > 2)
    assert none(scores) == pytest.approx([1 / 6] * 4)
    level = Logistic.fit(np.full(6, 0.5), np.arange(6) < 2)
    assert level(np.array([0.5])) == pytest.approx([(2 * 3 / 4 + 4 * 1 / 6) / 6])


def test_probabilities_neither_overflow_nor_become_0() -> None:
    p = Logistic(1000.0, 0.0)(np.array([-0.5, 0.5]))
    assert p[0] == pytest.approx(np.exp(-500), rel=1e-9) and p[1] == 1


def test_constant_says_the_base_rate() -> None:
    scores, relevant = made(0)
    assert constant(scores, relevant)(scores) == pytest.approx(
        [(relevant.sum() + 1) / (len(scores) + 2)] * len(scores)
    )


def least_squares(values: list[float], weight: list[float]) -> list[float]:
    """The best of all rising functions that are level on consecutive blocks, every division being
    tried."""
    n, best, found = len(values), np.inf, []
    for cuts in itertools.product((False, True), repeat=n - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [n]
        start, fitted = 0, []
        for end in ends:
            mass = sum(weight[start:end])
            mean = sum(v * w for v, w in zip(values[start:end], weight[start:end])) / mass
            fitted += [mean] * (end - start)
            start = end
        error = sum(w * (v - f) ** 2 for v, w, f in zip(values, weight, fitted))
        if fitted == sorted(fitted) and error < best:
            best, found = error, fitted
    return found


def test_rising_is_the_best_of_all_rising_functions() -> None:
    generator = np.random.default_rng(0)
    for n in range(1, 9):
        for _ in range(6):
            values, weight = generator.random(n).round(1), generator.integers(1, 4, n).astype(float)
            start, value = rising(values, weight)
            whole = np.repeat(value, np.diff([*start, n]))
            assert whole.tolist() == pytest.approx(least_squares(values.tolist(), weight.tolist()))
            assert (np.diff(value) > 0).all()


def test_rising_is_that_of_scipy_on_many_values() -> None:
    generator = np.random.default_rng(1)
    values, weight = generator.random(3000) + np.linspace(0, 1, 3000), generator.random(3000) + 0.1
    start, value = rising(values, weight)
    expected = optimize.isotonic_regression(values, weights=weight)
    assert np.repeat(value, np.diff([*start, 3000])) == pytest.approx(expected.x)


def test_the_isotonic_map_is_that_of_scikit_learn_with_an_exception_at_each_end() -> None:
    for seed in range(5):
        scores, relevant = made(seed)
        scores = scores.round(2)  # many ties
        more = np.concatenate([scores, [scores.min(), scores.max()]])
        labels = np.concatenate([relevant, [True, False]]).astype(float)
        other = IsotonicRegression(out_of_bounds="clip").fit(more, labels)
        found = Isotonic.fit(scores, relevant)
        between = np.linspace(-1, 2, 1001)
        assert found(between) == pytest.approx(other.predict(between))
        p = found(between)
        assert p.min() > 0 and p.max() < 1 and (np.diff(p) >= 0).all()


def test_ends_that_are_all_alike_are_not_certain() -> None:
    scores = np.arange(30.0)
    p = Isotonic.fit(scores, scores >= 10)(scores)
    assert p[0] == pytest.approx(1 / 11) and p[-1] == pytest.approx(20 / 21)
    assert Isotonic.fit(np.full(6, 0.5), np.arange(6) < 2)(np.array([0.1])) == pytest.approx(
        [3 / 8]
    )
