"""Probabilities fitted to similarities, their errors, and thresholds, on queries apart from the
fit.

Letters in shapes: n pairs, q queries, k depth, D width, c documents, m bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, quantity
from .compare import Difference, bootstrap_columns, interval, resampled
from .metrics import Relevant
from .nearest import top
from .probability import MAPS, Floats, Logistic, Map, Mask, constant
from .ranking import LEAST_TO_CHOOSE

Ints = NDArray[np.int64]

FOLDS, BINS = 5, 10
LEAST = 10  # smallest number of queries, of relevant pairs, and of other pairs
ISOTONIC = (1000, 50)  # pairs, and pairs of each kind, from which an isotonic map is tried too
SUPPORT = 20  # smallest number of pairs above a threshold
BASE = "base rate"
Z = 1.959964  # half the width of a 95 % interval of the normal distribution


@dataclass(frozen=True)
class Scored:
    """Pairs with similarity and relevance."""

    scores: Floats  # [n]
    relevant: Mask  # [n]
    query: Ints  # [n] number of the query

    @classmethod
    def of_search(
        cls, queries: NDArray[np.float32], docs: NDArray[np.float32], relevant: Relevant, depth: int
    ) -> Scored:
        """Return the hits of a search: the `depth` nearest documents of each query, [q, D] and [c,
        D]."""
        scores, positions = top(queries, docs, depth)
        right = relevant.gains(positions) > 0
        query = np.repeat(np.arange(len(queries)), positions.shape[1])
        return cls(scores.ravel().astype(np.float64), right.ravel(), query)

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, rows: Mask) -> Scored:
        return Scored(self.scores[rows], self.relevant[rows], self.query[rows])

    @cached_property
    def kinds(self) -> tuple[int, int, int]:
        """The numbers of queries, of relevant pairs and of other pairs."""
        right = int(self.relevant.sum())
        return len(np.unique(self.query)), right, len(self) - right

    def check(self) -> None:
        """Refuse too few pairs.

        Raises:
            DataError: fewer than 10 queries, relevant pairs or other pairs.
        """
        queries, right, wrong = self.kinds
        counts = {
            "queries are": queries,
            "relevant pairs are": right,
            "irrelevant pairs are": wrong,
        }
        for what, count in counts.items():
            if count < LEAST:
                raise DataError(
                    f"{quantity(count, what)} too few to fit a probability: give at least {LEAST}, and some hundreds for narrow "
                    "intervals"
                )


@dataclass(frozen=True)
class Judgement:
    """Errors of probabilities, with bootstrap intervals over queries; lower is better."""

    log_loss: Difference
    brier: Difference
    ece: Difference  # expected calibration error


@dataclass(frozen=True)
class Bin:
    """Pairs of similar probability: their number, mean probability, and share of relevant pairs."""

    pairs: int
    probability: float
    relevant: Difference


@dataclass(frozen=True)
class Threshold:
    """The probability that reaches a target precision or recall; `threshold` is None if no
    probability does."""

    of: str  # precision or recall
    target: float
    best: float  # the highest value that any threshold reaches
    threshold: float | None = None
    cosine: float | None = None  # the lowest similarity with this probability
    precision: Difference | None = None
    recall: Difference | None = None
    stated: float | None = None  # the mean probability at or above the threshold

    def __str__(self) -> str:
        if self.threshold is None or self.precision is None or self.recall is None:
            best = f"{math.floor(1000 * self.best) / 1000:g}"
            return f"no threshold reaches {self.of} {self.target:g}; the best is {best}: ask for that, or for less"
        text = f"{self.of} {self.target:g}: threshold {self.threshold:.3g}"
        if self.cosine is not None:
            text += f" (similarity {self.cosine:.3f})"
        text += f": precision {_range(self.precision)}, recall {_range(self.recall)}"
        if self.stated is None or self.precision.low <= self.stated <= self.precision.high:
            return text
        wrong = "low" if self.stated < self.precision.low else "high"
        return f"{text}; the probabilities here are too {wrong}: {self.stated:.2f} in the mean"


@dataclass(frozen=True)
class FittedMap:
    """Fitted maps of scores to probabilities, and the chosen map."""

    chosen: str
    maps: dict[str, Map]
    judged: dict[str, Judgement]  # of each map, and of the base rate
    held_out: Floats  # [n] cross-fitted probabilities by the chosen map


def fit(pairs: Scored, folds: int = FOLDS, seed: int = 0) -> FittedMap:
    """Fit the maps that the data allow, and choose a map by log loss on queries apart from the fit.

    Queries are divided into folds; the pairs of each fold get probabilities from a map fitted to
    the other folds. The isotonic map needs 1,000 pairs with 50 of each kind. The isotonic map is
    chosen if the log loss is significantly lower than the log loss of the logistic map: if the 95 %
    bootstrap interval of the difference over queries is above 0. The returned maps are fitted to
    all pairs.

    Raises:
        DataError: too few pairs, or similarities that do not rise with relevance.
    """
    pairs.check()
    _, right, wrong = pairs.kinds
    few = len(pairs) < ISOTONIC[0] or min(right, wrong) < ISOTONIC[1]
    tried = dict(MAPS)
    if few:
        del tried["isotonic"]
    maps = {name: fit_map(pairs.scores, pairs.relevant) for name, fit_map in tried.items()}
    logistic = maps["logistic"]
    assert isinstance(logistic, Logistic)
    if logistic.slope <= 0:
        raise DataError(
            f"relevant pairs are not more similar than others (slope {logistic.slope:.3g}), so there is nothing to "
            "calibrate: check the labels, or use another model"
        )
    held_out = {BASE: cross_fitted(pairs, constant, folds, seed)}
    for name, fit_map in tried.items():
        held_out[name] = cross_fitted(pairs, fit_map, folds, seed)
    judged = {name: judge(pairs, p) for name, p in held_out.items()}
    chosen = "logistic"
    if not few:
        gain = losses(pairs, held_out["logistic"]) - losses(pairs, held_out["isotonic"])
        if bootstrap_columns(gain[:, None], pairs.query)[0].low > 0:
            chosen = "isotonic"
    return FittedMap(chosen, maps, judged, held_out[chosen])


def cross_fitted(
    pairs: Scored, fit_map: Callable[[Floats, Mask], Map], folds: int = FOLDS, seed: int = 0
) -> Floats:
    """Return probabilities by maps fitted to other queries, [n]."""
    distinct, at = np.unique(pairs.query, return_inverse=True)
    fold = (np.random.default_rng(seed).permutation(len(distinct)) % folds)[at]
    p = np.empty(len(pairs))
    for i in range(folds):
        others = pairs[fold != i]
        fitted = fit_map(others.scores, others.relevant)
        p[fold == i] = fitted(pairs.scores[fold == i])
    return p


def judge(pairs: Scored, p: Floats) -> Judgement:
    """Return the log loss -log P(label), the Brier score (P - label)^2, and the expected
    calibration error of probabilities, [n].

    The expected calibration error is the mean over pairs of |mean P - share relevant| of their bin,
    with bins of equal numbers of pairs (Nguyen and O'Connor 2015). Chance alone makes this error
    greater than 0, and greater again in a resample, so its interval is the basic bootstrap
    interval, reflected at the value (Davison and Hinkley 1997, section 5.2), cut at 0, and contains
    the value.
    """
    errors = np.stack([losses(pairs, p), (p - pairs.relevant) ** 2], 1)
    log_loss, brier = bootstrap_columns(errors, pairs.query)
    excess = _members(p) * (p - pairs.relevant)[:, None]  # [n, m]
    value = float(np.abs(excess.sum(0)).sum() / len(p))
    totals = resampled(np.column_stack([excess, np.ones(len(p))]), pairs.query)
    drawn = interval(value, np.abs(totals[:, :-1]).sum(1) / totals[:, -1], 0.95)
    low = min(value, max(0.0, 2 * value - drawn.high))
    high = max(value, 2 * value - drawn.low)
    return Judgement(log_loss, brier, Difference(value, low, high, drawn.confidence))


def losses(pairs: Scored, p: Floats) -> Floats:
    """Return -log of the probability of each label, [n]."""
    loss: Floats = -np.log(np.where(pairs.relevant, p, 1 - p))
    return loss


def bins(pairs: Scored, p: Floats) -> list[Bin]:
    """Return bins of pairs with similar probabilities, in ascending order."""
    member = _members(p)
    counts = member.sum(0)
    shares = _shares(pairs, member * pairs.relevant[:, None], member)
    means = (member * p[:, None]).sum(0) / counts
    return [
        Bin(int(count), float(mean), share)
        for count, mean, share in zip(counts, means, shares, strict=True)
    ]


def doubt(queries: int, judged: Mapping[str, Judgement], chosen: str) -> str | None:
    """Return the reason, as a sentence, for which thresholds would be chance; None without one."""
    if queries < LEAST_TO_CHOOSE:
        return f"{quantity(queries, 'queries are too few to choose by')}; give at least {LEAST_TO_CHOOSE}"
    if judged[chosen].log_loss.mean >= judged[BASE].log_loss.mean:
        return "these probabilities are no better than the base rate on queries that they were not fitted to; give more pairs"
    return None


def thresholds(
    pairs: Scored, fitted: FittedMap, precision: Sequence[float] = (), recall: Sequence[float] = ()
) -> list[Threshold]:
    """Return the lowest threshold for each target precision, and the highest for each target
    recall; no thresholds where `doubt` gives a reason.

    Precision is the share of relevant pairs among at least 20 pairs at or above the threshold.
    Recall is the share of the relevant pairs that are at or above the threshold. Both are counted
    on queries apart from the fit.
    """
    if doubt(pairs.kinds[0], fitted.judged, fitted.chosen):
        return []
    levels = np.array(sorted({float(f"{p:.3g}") for p in fitted.held_out}))
    every = np.sort(fitted.held_out)
    right = np.sort(fitted.held_out[pairs.relevant])
    above = len(every) - np.searchsorted(every, levels)
    hits = len(right) - np.searchsorted(right, levels)
    precisions = np.divide(hits, above, out=np.zeros(len(levels)), where=above >= SUPPORT)
    recalls = np.where(above > 0, hits / len(right), 0.0)
    chosen = []
    for target in precision:
        goal = Threshold("precision", target, float(precisions.max()))
        enough = levels[precisions >= target - 1e-12]
        chosen.append(_with_level(goal, enough[:1], pairs, fitted))
    for target in recall:
        goal = Threshold("recall", target, float(recalls.max()))
        enough = levels[recalls >= target - 1e-12]
        chosen.append(_with_level(goal, enough[-1:], pairs, fitted))
    return chosen


def _with_level(goal: Threshold, level: Floats, pairs: Scored, fitted: FittedMap) -> Threshold:
    """Return a threshold with the precision, recall and lowest cosine at a level, [1]; as it is
    without a level, [0]."""
    if not len(level):
        return goal
    threshold = float(level[0])
    kept = (fitted.held_out >= threshold).astype(np.float64)
    right = kept * pairs.relevant
    precision, recall = _shares(
        pairs, np.stack([right, right], 1), np.stack([kept, pairs.relevant], 1)
    )
    scores = np.sort(pairs.scores)
    enough = scores[fitted.maps[fitted.chosen](scores) >= threshold]
    return replace(
        goal,
        threshold=threshold,
        cosine=float(enough[0]) if len(enough) else None,
        precision=precision,
        recall=recall,
        stated=float(fitted.held_out[kept > 0].mean()),
    )


def _members(p: Floats) -> Floats:
    """Return 1 where a pair is in a bin and 0 elsewhere, [n, m].

    Equal probabilities share a bin, so the bins may be fewer, and of other sizes.
    """
    edges = np.quantile(p, np.arange(1, BINS) / BINS)
    number = np.unique(np.searchsorted(edges, p, side="right"), return_inverse=True)[1]
    return np.eye(int(number.max()) + 1)[number]


def _shares(pairs: Scored, part: Floats, whole: Floats) -> list[Difference]:
    """Return the sum of each column of `part` over the sum of the same column of `whole`, [n, m]
    each, with intervals over queries.

    The intervals are never narrower than for independent pairs (Wilson 1927), because resamples of
    relevant pairs alone do not vary.
    """
    count = part.shape[1]
    totals = resampled(np.column_stack([part, whole]), pairs.query)
    shares = []
    for i in range(count):
        over = totals[:, count + i]
        draws = totals[over > 0, i] / over[over > 0]  # some resamples are empty
        n = float(whole[:, i].sum())
        share = float(part[:, i].sum()) / n
        drawn = interval(share, draws, 0.95)
        middle = share + Z**2 / (2 * n)
        half = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
        low = min((middle - half) / (1 + Z**2 / n), drawn.low)
        high = max((middle + half) / (1 + Z**2 / n), drawn.high)
        shares.append(Difference(share, max(0.0, low), min(1.0, high), 0.95))
    return shares


def _range(share: Difference) -> str:
    """Return a share with its interval as text.

    >>> _range(Difference(0.9012, 0.88, 0.92, 0.95))
    '0.901 [0.880, 0.920]'
    """
    return f"{share.mean:.3f} [{share.low:.3f}, {share.high:.3f}]"
