"""What corrections are for: the gradient of a few sampled documents, averaged over draws, is that of the whole corpus.

30 documents with Zipf popularity p, 6 queries, pairs drawn from a fixed table of probabilities. The goal is the gradient of
the expected loss with the softmax over all 30 documents. Errors are lengths of differences over the goal's length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from tempera.core import pools
from tempera.core.batch import Batch, Side
from tempera.core.corrections import LogQ, expected_logq
from tempera.core.masks import SameId
from tempera.core.objective import Objective
from tempera.core.similarity import dot

K, Q, D, SCALE = 30, 6, 4, 0.5
REFINED = Objective(dot, 1.0, (pools.docs, pools.sampled), (LogQ("refined"),), (SameId(),))
CLASSIC = Objective(dot, 1.0, (pools.docs, pools.sampled), (LogQ(),))
PLAIN = Objective(dot, 1.0, (pools.docs, pools.sampled), (), (SameId(),))


@dataclass(frozen=True)
class World:
    """Pairs, and the embeddings that are being trained."""

    chance: Tensor  # [Q, K] of each pair
    popularity: Tensor  # [K]
    queries: Tensor  # [Q, D]
    docs: Tensor  # [K, D]

    def gradient(self, chance: Tensor) -> Tensor:
        """Gradient of the expected loss over the whole corpus where pairs have this chance, [(Q + K) * D]."""
        with torch.no_grad():
            slope = (self.queries @ self.docs.T).softmax(1) * chance.sum(1, keepdim=True) - chance  # [Q, K]
            return torch.cat([(slope @ self.docs).flatten(), (slope.T @ self.queries).flatten()])


@cache
def world() -> World:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    popularity = 1 / torch.arange(1, K + 1, dtype=torch.float64)
    popularity = (popularity / popularity.sum())[torch.randperm(K, generator=generator)]
    chance = normal(Q, K).mul(1.5).softmax(0) * popularity
    queries, docs = (normal(count, D).mul(SCALE).requires_grad_() for count in (Q, K))
    return World(chance, popularity, queries, docs)


def error(
    objective: Objective, rows: int, logq: Tensor, drawn: int = 0, proposal: Tensor | None = None, draws: int = 600
) -> tuple[float, float]:
    """Error of the gradient averaged over draws of batches, and its standard error."""
    here, generator = world(), torch.Generator().manual_seed(1)
    ids = torch.arange(K)
    found = []
    for _ in range(draws):
        pairs = here.chance.flatten().multinomial(rows, replacement=True, generator=generator)
        query, doc = pairs // K, pairs % K
        extra = proposal.multinomial(drawn, replacement=True, generator=generator) if drawn else ids[:0]
        batch = Batch(
            Side(here.queries[query]),
            Side(here.docs[doc], ids=ids[doc], logq=logq[doc]),
            sampled=Side(here.docs[extra], ids=ids[extra], logq=logq[extra]),
        )
        grads = torch.autograd.grad(objective(batch).mean(), (here.queries, here.docs))
        # Less the whole corpus' gradient for the same pairs: its mean is the goal, and most of the noise is gone.
        drawn_pairs = torch.bincount(pairs, minlength=Q * K).reshape(Q, K) / rows
        found.append(torch.cat([grad.flatten() for grad in grads]) - here.gradient(drawn_pairs))
    every, goal = torch.stack(found), here.gradient(here.chance)
    spread = every.var(0).sum().div(draws).sqrt()
    return float(every.mean(0).norm() / goal.norm()), float(spread / goal.norm())
