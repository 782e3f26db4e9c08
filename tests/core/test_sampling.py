"""What corrections are for: the gradient of a few sampled documents, averaged over draws, is that
of the whole corpus.

30 documents with Zipf popularity p, 6 queries, pairs drawn from a fixed table of probabilities. The
goal is the gradient of the expected loss with the softmax over all 30 documents. Errors are lengths
of differences over the goal's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
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
        """Gradient of the expected loss over the whole corpus where pairs have this chance, [(Q +
        K) * D]."""
        with torch.no_grad():
            slope = (self.queries @ self.docs.T).softmax(1) * chance.sum(
                1, keepdim=True
            ) - chance  # [Q, K]
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
    objective: Objective,
    rows: int,
    logq: Tensor,
    drawn: int = 0,
    proposal: Tensor | None = None,
    draws: int = 600,
) -> tuple[float, float]:
    """Error of the gradient averaged over draws of batches, and its standard error."""
    here, generator = world(), torch.Generator().manual_seed(1)
    ids = torch.arange(K)
    found = []
    for _ in range(draws):
        pairs = here.chance.flatten().multinomial(rows, replacement=True, generator=generator)
        query, doc = pairs // K, pairs % K
        extra = (
            proposal.multinomial(drawn, replacement=True, generator=generator) if drawn else ids[:0]
        )
        batch = Batch(
            Side(here.queries[query]),
            Side(here.docs[doc], ids=ids[doc], logq=logq[doc]),
            sampled=Side(here.docs[extra], ids=ids[extra], logq=logq[extra]),
        )
        grads = torch.autograd.grad(objective(batch).mean(), (here.queries, here.docs))
        # Less the whole corpus' gradient for the same pairs: its mean is the goal, and most of the
        # noise is gone.
        drawn_pairs = torch.bincount(pairs, minlength=Q * K).reshape(Q, K) / rows
        found.append(torch.cat([grad.flatten() for grad in grads]) - here.gradient(drawn_pairs))
    every, goal = torch.stack(found), here.gradient(here.chance)
    spread = every.var(0).sum().div(draws).sqrt()
    return float(every.mean(0).norm() / goal.norm()), float(spread / goal.norm())


def test_the_goal_is_the_gradient_of_the_full_softmax() -> None:
    here = world()
    losses = -(here.queries @ here.docs.T).log_softmax(1)
    grads = torch.autograd.grad((here.chance * losses).sum(), (here.queries, here.docs))
    torch.testing.assert_close(
        here.gradient(here.chance), torch.cat([grad.flatten() for grad in grads])
    )


def test_in_batch_negatives_converge_with_a_correction_and_not_without() -> None:
    logq = expected_logq(256, world().popularity)
    for objective in (REFINED, CLASSIC):
        off, noise = error(objective, 256, logq, draws=250)
        assert noise < 0.02 and off < 3 * noise
    for rows in (64, 256):  # a larger batch does not help
        off, noise = error(PLAIN, rows, logq, draws=80)
        assert noise < 0.05 and off > 0.4


def test_a_wrong_sign_or_half_a_correction_does_not_converge() -> None:
    logq = expected_logq(256, world().popularity)
    for weight, least in ((-1.0, 0.6), (0.5, 0.15)):
        for kind in ("classic", "refined"):
            objective = Objective(dot, 1.0, (pools.docs,), (LogQ(kind, weight),), (SameId(),))
            off, noise = error(objective, 256, logq, draws=60)
            assert noise < 0.03 and off > least


def of_one_row(objective: Objective, rows: int, draws: int = 600) -> tuple[Tensor, Tensor, Tensor]:
    """What a row with a given document sees of the corpus when the other rows are drawn; all
    queries are query 0.

    Returns, for each document, [K]: exp(loss) x exp(s+) over the sum of the corpus; its standard
    error; the error of the gradient of the query.
    """
    here, generator, ids = world(), torch.Generator().manual_seed(2), torch.arange(K)
    query, docs = here.queries[0].detach(), here.docs.detach()
    logq = expected_logq(rows - 1, here.popularity)
    weights = (docs @ query).exp()  # [K]
    goal = weights @ docs / weights.sum() - docs  # [K, D]
    seen, grads, ratios, squares = (
        torch.zeros(K, width, dtype=torch.float64) for width in (1, D, 1, 1)
    )
    for _ in range(draws):
        doc = here.popularity.multinomial(rows, replacement=True, generator=generator)
        leaf = query.expand(rows, -1).clone().requires_grad_()
        losses = objective(Batch(Side(leaf), Side(docs[doc], ids=ids[doc], logq=logq[doc])))
        ratio = (losses.detach().exp() * weights[doc] / weights.sum())[:, None]
        for total, value in (
            (seen, torch.ones_like(ratio)),
            (grads, torch.autograd.grad(losses.sum(), leaf)[0]),
            (ratios, ratio),
            (squares, ratio**2),
        ):
            total.index_add_(0, doc, value)
    mean = ratios / seen
    noise = ((squares / seen - mean**2) / seen).sqrt()
    return mean[:, 0], noise[:, 0], (grads / seen - goal).norm(dim=1) / goal.norm(dim=1)


@pytest.mark.long  # the gradient's mean is tested in the next one
def test_refined_counts_the_whole_corpus_whatever_the_positive() -> None:
    """Unbiased in the sum over the corpus; classic counts the positive 1 / q times, which is many
    where it is rare."""
    here = world()
    q = expected_logq(15, here.popularity).exp()
    rare = here.popularity.argsort()[:10]
    mean, noise, off = of_one_row(REFINED, 16)
    assert float(noise.max()) < 0.1 and float(((mean - 1).abs() / noise).max()) < 4
    classic = Objective(dot, 1.0, (pools.docs,), (LogQ(),), (SameId(),))
    mean, noise, classic_off = of_one_row(classic, 16)
    share = (here.docs @ here.queries[0]).softmax(0).detach()
    assert float(((mean / q - 1 - share * (1 / q - 1)).abs() / (noise / q)).max()) < 4
    assert float((mean / q)[rare].mean()) > 1.2
    assert float(off[rare].mean()) < 0.6 * float(classic_off[rare].mean())


def test_mixed_sampling_needs_the_expected_count_of_both_sources() -> None:
    uniform = torch.full((K,), 1 / K, dtype=torch.float64)
    both = expected_logq(32, world().popularity, 32, uniform)
    for objective in (REFINED, CLASSIC):
        off, noise = error(objective, 32, both, 32, uniform, draws=250)
        assert noise < 0.03 and off < 3 * noise
    for one in (
        expected_logq(32, world().popularity),
        expected_logq(0, world().popularity, 32, uniform),
    ):
        off, noise = error(REFINED, 32, one, 32, uniform, draws=160)
        assert noise < 0.05 and off > 4 * noise
