"""Cheap evaluation during training: a smaller corpus with a known bias, and a budget of time.

Letters in shapes: q queries, c documents, s sampled documents, K depth of a ranking, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .metrics import Relevant

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Sample:
    """A part of a corpus with every relevant document; scores on the sample are too high, by
    `Ranking.bias`."""

    docs: Ints  # [s] positions in the corpus, rising
    relevant: Relevant  # by positions in `docs`
    positives: int  # distinct relevant documents among them
    hardest: int  # documents taken from the top of a ranking


def sample_corpus(
    relevant: Relevant,
    corpus: int,
    size: int,
    ranked: Ints | None = None,
    share: float = 0.5,
    seed: int = 0,
) -> Sample:
    """Return a sample of every relevant document, the hardest documents of a ranking, and random
    documents, `size` in all.

    Args:
        corpus: number of documents.
        size: documents to keep; all relevant documents are kept even if they are more.
        ranked: a ranking of the whole corpus, [q, K], padded with -1: its documents, rank by rank
            over all queries, fill up to `share` of the places that are left by the relevant
            documents. They make the sample less biased than random documents do.
        share: largest share of these places that the ranking fills.
        seed: seed of the random documents.

    Raises:
        ConfigError: a size below 1, or a share outside 0 to 1.

    >>> sample = sample_corpus(Relevant.of([[7]]), 10, 3, np.array([[2, 7, 5]]), share=1.0)
    >>> sample.docs.tolist(), sample.relevant.doc.tolist()
    ([2, 5, 7], [2])
    """
    if size < 1:
        raise ConfigError(f"size is {size}, but a sample needs at least 1 document")
    if not 0 <= share <= 1:
        raise ConfigError(
            f"share is {share:g}, but the share of hardest documents must be from 0 to 1"
        )
    chosen = np.zeros(corpus, bool)
    chosen[relevant.doc] = True
    positives = int(chosen.sum())
    hardest = 0
    if ranked is not None:
        by_rank = ranked.T.ravel()
        distinct, first = np.unique(by_rank[by_rank >= 0], return_index=True)
        distinct = distinct[np.argsort(first)]  # in the order of their best rank
        most = int(share * max(0, size - positives))
        hard = distinct[~chosen[distinct]][:most]
        chosen[hard] = True
        hardest = len(hard)
    rest = np.flatnonzero(~chosen)
    missing = max(0, size - int(chosen.sum()))
    chosen[np.random.default_rng(seed).permutation(rest)[:missing]] = True
    docs = np.flatnonzero(chosen)
    in_sample = replace(relevant, doc=np.searchsorted(docs, relevant.doc))
    return Sample(docs, in_sample, positives, hardest)


@dataclass
class Budget:
    """A limit of the time for evaluation, as a share of the time for evaluation and training
    together.

    Args:
        share: from 0 (never) to 1 (always).
        spent: seconds of evaluation until now.
        cost: seconds of the latest evaluation, 0 before the first; the expected cost of the next.

    >>> budget = Budget(0.1)
    >>> budget.spend(10.0)
    >>> budget.allows(100.0), budget.allows(200.0)
    (False, True)
    """

    share: float = 0.1
    spent: float = 0.0
    cost: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(
                f"share is {self.share:g}, but an evaluation budget must be from 0 to 1"
            )

    def allows(self, training: float) -> bool:
        """Return True if one more evaluation, after `training` seconds of training, stays within
        the share."""
        after = self.spent + self.cost
        return self.share > 0 and after <= self.share * (training + after)

    def spend(self, seconds: float) -> None:
        """Count an evaluation."""
        self.spent += seconds
        self.cost = seconds
