"""The softmax in tiles of rows: losses and all gradients in one pass, without an autograd graph over scores.

For row i with logits l_ic over the candidates of one group of blocks and the share w_i of its loss in the total,

    loss_i = log sum_c exp(l_ic) - l_i+        d total / d l_ic = w_i (softmax_ic - [c is the positive])

Two matrix products take that to anchors and candidates, so a tile costs three products and memory is
O(b D + tile c) for any choice of pools, corrections and masks.

Letters in shapes: b rows of this device, r rows of a tile, c candidates of a block, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from .corrections import Addition
from .masks import Exclusion

# Scores held at once: 4 MiB of float32, about what a core's own cache holds.
TILE_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Term:
    """One block of the score matrix: which leaves it multiplies, what is added and what is left out."""

    anchor: int  # index of the anchors, [b, D], already multiplied by the scale
    candidate: int  # index of the candidates, [c, D]
    positive: Tensor | None  # [b] column of each row's positive
    itself: Tensor | None  # [b] column of the anchor among candidates of its own kind
    additions: tuple[Addition, ...]
    exclusions: tuple[Exclusion, ...]


@dataclass(frozen=True)
class Problem:
    """Everything a sweep needs besides the embeddings."""

    groups: tuple[tuple[Term, ...], ...]  # one softmax each; a row's loss is their mean
    temperature: float
    hardest: int | None = None
    tile_elements: int = TILE_ELEMENTS


def sweep(problem: Problem, leaves: Sequence[Tensor], shares: Tensor | None) -> tuple[Tensor, list[Tensor] | None]:
    """Losses, [b], and the gradients of sum(shares * losses) for every leaf; no gradients where `shares` is None."""
    rows = len(leaves[problem.groups[0][0].anchor])
    losses = leaves[0].new_zeros(rows)
    grads = None if shares is None else [torch.zeros_like(leaf) for leaf in leaves]
    for group in problem.groups:
        width = sum(len(leaves[term.candidate]) for term in group)
        step = max(1, problem.tile_elements // max(1, width))
        scratch = [leaves[0].new_empty(min(step, rows) * len(leaves[term.candidate])) for term in group]
        for start in range(0, rows, step):
            tile = slice(start, min(start + step, rows))
            logits = [_logits(problem, term, leaves, tile, out) for term, out in zip(group, scratch, strict=True)]
            held = next(i for i, term in enumerate(group) if term.positive is not None)
            column = cast(Tensor, group[held].positive)[tile]
            if problem.hardest is not None:
                _keep_hardest(logits, group, tile, problem.hardest)
            here = torch.arange(len(column), device=column.device)
            positive = logits[held][here, column]  # [r]
            top = torch.stack([x.amax(1) for x in logits]).amax(0)  # [r]
            mass = torch.zeros_like(top)
            for x in logits:
                mass += x.sub_(top[:, None]).exp_().sum(1)
            losses[tile] += (top + mass.log() - positive) / len(problem.groups)
            if grads is None or shares is None:
                continue
            logits[held][here, column] -= mass
            factor = (shares[tile] / (mass * len(problem.groups)))[:, None]  # [r, 1]
            for term, x in zip(group, logits, strict=True):
                grads[term.anchor][tile].addcmul_(x @ leaves[term.candidate], factor)
                grads[term.candidate].addmm_(x.T, leaves[term.anchor][tile] * factor)
    return losses, grads


def _logits(problem: Problem, term: Term, leaves: Sequence[Tensor], tile: slice, scratch: Tensor) -> Tensor:
    """Logits of a tile, [r, c], in `scratch`: scale first, corrections next, masks last; the positive always stays."""
    anchors, candidates = leaves[term.anchor][tile], leaves[term.candidate]
    out = scratch[: len(anchors) * len(candidates)].view(len(anchors), len(candidates))
    logits = torch.mm(anchors, candidates.T, out=out)
    here = torch.arange(len(anchors), device=anchors.device)
    positive = None
    if term.positive is not None:
        positive = logits[here, term.positive[tile]]
        for addition in term.additions:
            if addition.positive is not None:
                positive = positive + addition.positive[tile]
    pairwise = [a.pairwise(tile, logits * problem.temperature) for a in term.additions if a.pairwise is not None]
    for values in (*pairwise, *(a.candidate for a in term.additions if a.candidate is not None)):
        logits += values
    for exclusion in term.exclusions:
        logits[exclusion(tile)] = -torch.inf
    if term.itself is not None:
        logits[here, term.itself[tile]] = -torch.inf
    if term.positive is not None and positive is not None:
        logits[here, term.positive[tile]] = positive
    return logits


def _keep_hardest(logits: list[Tensor], group: Sequence[Term], tile: slice, hardest: int) -> None:
    """Leave each row its positives and the `hardest` highest negatives of all blocks, in place."""
    negatives = [x.clone() for x in logits]
    here = torch.arange(len(logits[0]), device=logits[0].device)
    for x, term in zip(negatives, group, strict=True):
        if term.positive is not None:
            x[here, term.positive[tile]] = -torch.inf
    values = torch.cat(negatives, 1)
    chosen = values.topk(min(hardest, values.shape[1]), dim=1).indices
    rest = torch.ones_like(values, dtype=torch.bool).scatter_(1, chosen, False)
    for x, term, left_out in zip(logits, group, torch.split(rest, [x.shape[1] for x in logits], dim=1), strict=True):
        if term.positive is not None:
            left_out[here, term.positive[tile]] = False
        x.masked_fill_(left_out, -torch.inf)
