"""How far probabilities can be trusted, and which of them to take as a threshold; always on queries that they were not fitted to.

Letters in shapes: n pairs, q queries, k depth, D width, c documents, m bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .compare import Difference, bootstrap_columns, interval, resampled
from .metrics import Relevant
from .nearest import top
from .probability import MAPS, Floats, Logistic, Map, Mask, constant

Ints = NDArray[np.int64]

FOLDS, BINS = 5, 10
LEAST = 10  # queries, pairs that are relevant, and pairs that are not
ISOTONIC = (1000, 50)  # pairs, and pairs of each kind, from which on any rising function is tried
SUPPORT = 20  # pairs that have to stand above a threshold
BASE = "base rate"
Z = 1.959964  # of 95 % of a normal distribution


@dataclass(frozen=True)
class Scored:
    """Pairs with their similarity and whether they are relevant."""

    scores: Floats  # [n]
    relevant: Mask  # [n]
    query: Ints  # [n] pairs of one query have one number

    @classmethod
    def shown(cls, queries: NDArray[np.float32], docs: NDArray[np.float32], relevant: Relevant, depth: int) -> Scored:
        """What a search shows: the `depth` nearest documents of each query, [q, D] and [c, D]."""
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
        """How many queries, relevant pairs, and pairs that are not there are."""
        right = int(self.relevant.sum())
        return len(np.unique(self.query)), right, len(self) - right

    def check(self) -> None:
        """Raise DataError where there is too little to fit a probability to."""
        for count, what in zip(self.kinds, ("queries", "pairs that are relevant", "pairs that are not"), strict=True):
            if count < LEAST:
                raise DataError(
                    f"{count} {what} are too few to tell a probability by: at least {LEAST} are needed, and some hundreds "
                    "for narrow intervals"
                )


@dataclass(frozen=True)
class Judgement:
    """Errors of probabilities, with bootstrap intervals over queries; all are better when lower."""

    log_loss: Difference
    brier: Difference
    ece: Difference  # expected calibration error


@dataclass(frozen=True)
class Bin:
    """Pairs of like probability: how many, their mean probability, and the share of them that is relevant."""

    pairs: int
    probability: float
    relevant: Difference


@dataclass(frozen=True)
class Threshold:
    """The probability from which on a stated precision or recall is reached; without one, how far it goes."""

    of: str  # precision or recall
    target: float
    best: float  # the highest that any threshold reaches
    threshold: float | None = None
    cosine: float | None = None  # the lowest similarity with this probability
    precision: Difference | None = None
    recall: Difference | None = None

    def __str__(self) -> str:
        if self.threshold is None or self.precision is None or self.recall is None:
            return (
                f"no threshold reaches {self.of} {self.target:g}; the best is {math.floor(1000 * self.best) / 1000:g}"
            )
        cosine = "" if self.cosine is None else f" (cosine {self.cosine:.3f})"
        found = ", ".join(f"{name} {_range(getattr(self, name))}" for name in ("precision", "recall"))
        return f"{self.of} {self.target:g}: threshold {self.threshold:.3g}{cosine}: {found}"


@dataclass(frozen=True)
class Fitted:
    """A map of scores to probabilities, chosen among those that were tried."""

    chosen: str
    maps: dict[str, Map]
    judged: dict[str, Judgement]  # each map, and the base rate
    held_out: Floats  # [n] probabilities by the chosen map, of queries that it was not fitted to


def fit(pairs: Scored, folds: int = FOLDS, seed: int = 0) -> Fitted:
    """Fit the maps that the data allow, and choose by the log loss on queries that they were not fitted to.

    Queries are divided into folds; the pairs of each fold get their probabilities from a map that is fitted to the others.
    The isotonic map needs 1,000 pairs with 50 of each kind, and is chosen if its log loss is lower than the logistic one's
    by more than chance: if the 95 % bootstrap interval of their difference over queries is above 0. What is kept is fitted to all.

    Raises:
        DataError: too few pairs, or similarities that do not rise with relevance.
    """
    pairs.check()
    _, right, wrong = pairs.kinds
    few = len(pairs) < ISOTONIC[0] or min(right, wrong) < ISOTONIC[1]
    tried = {name: make for name, make in MAPS.items() if not (few and name == "isotonic")}
    maps = {name: make(pairs.scores, pairs.relevant) for name, make in tried.items()}
    if (slope := Logistic.fit(pairs.scores, pairs.relevant).slope) <= 0:
        raise DataError(
            f"relevant pairs are not more similar than others (slope {slope:.3g}): there is nothing to calibrate"
        )
    held_out = {name: cross_fitted(pairs, make, folds, seed) for name, make in {BASE: constant, **tried}.items()}
    judged = {name: judge(pairs, p) for name, p in held_out.items()}
    chosen = "logistic"
    if not few:
        gain = losses(pairs, held_out["logistic"]) - losses(pairs, held_out["isotonic"])
        chosen = "isotonic" if bootstrap_columns(gain[:, None], pairs.query)[0].low > 0 else chosen
    return Fitted(chosen, maps, judged, held_out[chosen])


def cross_fitted(pairs: Scored, make: Callable[[Floats, Mask], Map], folds: int = FOLDS, seed: int = 0) -> Floats:
    """Probabilities by maps that are fitted to other queries, [n]."""
    distinct, at = np.unique(pairs.query, return_inverse=True)
    fold = (np.random.default_rng(seed).permutation(len(distinct)) % folds)[at]
    p = np.empty(len(pairs))
    for i in range(folds):
        others = pairs[fold != i]
        p[fold == i] = make(others.scores, others.relevant)(pairs.scores[fold == i])
    return p


def judge(pairs: Scored, p: Floats) -> Judgement:
    """Log loss -log P(what is so), Brier score (P - what is so)^2, and the expected calibration error of probabilities, [n].

    The last one is the mean over pairs of |mean P - share relevant| of their bin, bins holding as many pairs each (Nguyen and
    O'Connor 2015). Chance alone makes it greater than 0, and greater again in a resample: its interval is the basic one,
    which is reflected at the value (Davison and Hinkley 1997, section 5.2), not below 0, and holds the value.
    """
    log_loss, brier = bootstrap_columns(np.stack([losses(pairs, p), (p - pairs.relevant) ** 2], 1), pairs.query)
    member = _members(p)
    excess = member * (p - pairs.relevant)[:, None]
    value = float(np.abs(excess.sum(0)).sum() / len(p))
    totals = resampled(np.column_stack([excess, np.ones(len(p))]), pairs.query)
    found = interval(value, np.abs(totals[:, :-1]).sum(1) / totals[:, -1], 0.95)
    low, high = min(value, max(0.0, 2 * value - found.high)), max(value, 2 * value - found.low)
    return Judgement(log_loss, brier, Difference(value, low, high, found.confidence))


def losses(pairs: Scored, p: Floats) -> Floats:
    """-log of the probability that was given to what is so, [n]."""
    loss: Floats = -np.log(np.where(pairs.relevant, p, 1 - p))
    return loss


def bins(pairs: Scored, p: Floats) -> list[Bin]:
    """Pairs of like probability together, by rising probability."""
    member = _members(p)
    counts, right = member.sum(0), member * pairs.relevant[:, None]
    shares = _shares(pairs, right, member)
    means = (member * p[:, None]).sum(0) / counts
    return [Bin(int(n), mean, share) for n, mean, share in zip(counts, means.tolist(), shares, strict=True)]


def thresholds(
    pairs: Scored, fitted: Fitted, precision: Sequence[float] = (), recall: Sequence[float] = ()
) -> list[Threshold]:
    """The lowest threshold of each stated precision, and the highest of each stated recall.

    Precision is the share of relevant pairs among those at or above the threshold, of which there are at least 20; recall
    the share of the relevant pairs that are at or above it. Both are counted on queries that the map was not fitted to.
    """
    levels = np.array(sorted({float(f"{p:.3g}") for p in fitted.held_out}))
    rising = np.sort(fitted.held_out)
    right = np.sort(fitted.held_out[pairs.relevant])
    above, hits = (len(side) - np.searchsorted(side, levels) for side in (rising, right))
    share = np.divide(hits, above, out=np.zeros(len(levels)), where=above >= SUPPORT)
    wanted = [("precision", target, share, 0) for target in precision]
    wanted += [("recall", target, np.where(above > 0, hits / len(right), 0.0), -1) for target in recall]
    found = []
    for name, target, reached, which in wanted:
        enough = levels[reached >= target - 1e-12]
        level = float(enough[which]) if len(enough) else None
        found.append(_threshold(pairs, fitted, Threshold(name, target, float(reached.max())), level))
    return found


def _threshold(pairs: Scored, fitted: Fitted, asked: Threshold, level: float | None) -> Threshold:
    """What is reached at a level."""
    if level is None:
        return asked
    kept = (fitted.held_out >= level).astype(np.float64)
    right = kept * pairs.relevant
    precision, recall = _shares(pairs, np.stack([right, right], 1), np.stack([kept, pairs.relevant], 1))
    scores = np.sort(pairs.scores)
    enough = scores[fitted.maps[fitted.chosen](scores) >= level]
    cosine = float(enough[0]) if len(enough) else None
    return Threshold(asked.of, asked.target, asked.best, level, cosine, precision, recall)


def _members(p: Floats) -> Floats:
    """Whether each pair is in each bin, [n, m]; equal probabilities are in one, so that bins may be fewer or of other sizes."""
    edges = np.quantile(p, np.arange(1, BINS) / BINS)
    found = np.unique(np.searchsorted(edges, p, side="right"), return_inverse=True)[1]
    return np.eye(int(found.max()) + 1)[found]


def _shares(pairs: Scored, part: Floats, whole: Floats) -> list[Difference]:
    """Sums of the columns of `part` over those of `whole`, [n, m] each, with intervals over queries.

    They are never narrower than those of independent pairs (Wilson 1927): resamples of nothing but right ones are all alike.
    """
    count = part.shape[1]
    totals = resampled(np.column_stack([part, whole]), pairs.query)
    found = []
    for i in range(count):
        over = totals[:, count + i]
        draws = totals[over > 0, i] / over[over > 0]  # a resample may hold none
        n = float(whole[:, i].sum())
        share = float(part[:, i].sum()) / n
        drawn = interval(share, draws, 0.95)
        middle, half = (share + Z**2 / (2 * n)), Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
        low, high = ((middle - half) / (1 + Z**2 / n), (middle + half) / (1 + Z**2 / n))
        found.append(Difference(share, max(0.0, min(low, drawn.low)), min(1.0, max(high, drawn.high)), 0.95))
    return found


def _range(found: Difference) -> str:
    """A share with its interval.

    >>> _range(Difference(0.9012, 0.88, 0.92, 0.95))
    '0.901 [0.880, 0.920]'
    """
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"
