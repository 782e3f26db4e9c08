"""The softmax in tiles of rows: losses and all gradients in one pass, without an autograd graph over scores.

For row i with logits l_ic over the candidates of one group of blocks, the target distribution y_i over its positives,
and the share w_i of its loss in the total,

    loss_i = log sum_c exp(l_ic) - l_i(y)        d total / d l_ic = w_i (softmax_ic - y_ic)

Two matrix products take that to anchors and candidates, so a tile costs three products, and memory is O(b D + tile c)
for any choice of pools, corrections, masks and numerator.

Letters in shapes: b rows of this device, r rows of a tile, c candidates of a block, k positives of a tile, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .corrections import Addition
from .matches import Index
from .pools import Exclusion

Numerator = Literal["one", "mean", "sum"]

# Scores held at once: 4 MiB of float32. Fewer make thin matrix products, more fall out of the cache.
TILE_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Term:
    """One block of the score matrix: which leaves it multiplies, what is added and what is left out."""

    anchor: int  # index of the anchors among the leaves, [b, D], already multiplied by the scale
    candidate: int  # index of the candidates, [c, D]
    positive: Tensor | None  # [b] column of each row's own positive
    others: tuple[Exclusion, ...]  # further positives, where the numerator counts them
    additions: tuple[Addition, ...]
    exclusions: tuple[Exclusion, ...]


@dataclass(frozen=True)
class Problem:
    """Everything a sweep needs besides the embeddings."""

    groups: tuple[tuple[Term, ...], ...]  # one softmax each; a row's loss is their mean
    temperature: float
    hardest: int | None = None
    numerator: Numerator = "one"
    tile_elements: int = TILE_ELEMENTS


@dataclass(frozen=True)
class Tile:
    """The logits of some rows against all candidates of a group; what is left out is -inf."""

    rows: slice
    group: int
    logits: list[Tensor]  # one [r, c] a term
    held: int  # the term with the positives,
    positives: tuple[Tensor, Tensor]  # their rows in the tile and columns, [k] each; the first r are the rows' own


def tiles(problem: Problem, leaves: Sequence[Tensor]) -> Iterator[Tile]:
    """Every tile of every group. The logits are good until the next tile is asked for."""
    for g, group in enumerate(problem.groups):
        rows, width = len(leaves[group[0].anchor]), sum(len(leaves[term.candidate]) for term in group)
        height = min(rows, max(1, problem.tile_elements // max(1, width)))
        scratch = [leaves[0].new_empty(height * len(leaves[term.candidate])) for term in group]
        held = next(i for i, term in enumerate(group) if term.positive is not None)
        for start in range(0, rows, height):
            tile = slice(start, min(start + height, rows))
            positives = [_positives(term, tile, len(leaves[term.candidate])) for term in group]
            parts = zip(group, scratch, positives, strict=True)
            logits = [_logits(problem, term, leaves, tile, out, kept) for term, out, kept in parts]
            if problem.hardest is not None:
                _keep_hardest(logits, positives, problem.hardest)
            yield Tile(tile, g, logits, held, positives[held])


def sweep(problem: Problem, leaves: Sequence[Tensor], shares: Tensor | None) -> tuple[Tensor, list[Tensor] | None]:
    """Losses, [b], and the gradients of sum(shares * losses) for every leaf; no gradients where `shares` is None."""
    losses = leaves[0].new_zeros(len(leaves[problem.groups[0][0].anchor]))
    grads = None if shares is None else [torch.zeros_like(leaf) for leaf in leaves]
    for tile in tiles(problem, leaves):
        level, target = _numerator(problem.numerator, tile)
        mass, top = exponentiate(tile.logits)
        losses[tile.rows] += (top + mass.log() - level) / len(problem.groups)
        if grads is None or shares is None:
            continue
        tile.logits[tile.held][tile.positives] -= target * mass[tile.positives[0]]
        factor = (shares[tile.rows] / (mass * len(problem.groups)))[:, None]  # [r, 1]
        for term, x in zip(problem.groups[tile.group], tile.logits, strict=True):
            grads[term.anchor][tile.rows].addcmul_(x @ leaves[term.candidate], factor)
            grads[term.candidate].addmm_(x.T, leaves[term.anchor][tile.rows] * factor)
    return losses, grads


def exponentiate(logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Turn logits into exp(logit - top) in place; their sum, [r], and the highest logit, [r]."""
    top = torch.stack([x.amax(1) if x.shape[1] else x.new_full((len(x),), -torch.inf) for x in logits]).amax(0)
    mass = torch.zeros_like(top)
    for x in logits:
        mass += x.sub_(top[:, None]).exp_().sum(1)
    return mass, top


def _numerator(kind: Numerator, tile: Tile) -> tuple[Tensor, Tensor]:
    """What a row's log-sum-exp is compared with, [r], and the target share of each positive, [k]."""
    rows, columns = tile.positives
    values = tile.logits[tile.held][rows, columns]  # [k]
    count = tile.rows.stop - tile.rows.start
    if kind == "one":
        return values, torch.ones_like(values)
    if kind == "mean":  # of log-probabilities: Khosla et al. 2020, eq. 2
        target = 1 / torch.bincount(rows, minlength=count).to(values)[rows]
        return values.new_zeros(count).index_add_(0, rows, values * target), target
    # log of the summed probability: Miech et al. 2020, eq. 1
    top = values.new_full((count,), -torch.inf).index_reduce_(0, rows, values, "amax")
    mass = values.new_zeros(count).index_add_(0, rows, (values - top[rows]).exp())
    level = top + mass.log()
    return level, (values - level[rows]).exp()


def _positives(term: Term, tile: slice, width: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of a tile's positives, each once, the rows' own first."""
    if term.positive is None:
        nothing = torch.empty(0, dtype=torch.int64)
        return nothing, nothing
    own = term.positive[tile]  # [r]
    here = torch.arange(len(own), device=own.device)
    if not term.others:
        return here, own
    found = [_pairs(other(tile)) for other in term.others]
    keys = torch.unique(torch.cat([rows * width + columns for rows, columns in found]))
    keys = keys[keys != here[keys // width] * width + own[keys // width]]
    return torch.cat([here, keys // width]), torch.cat([own, keys % width])


def _pairs(index: Index) -> tuple[Tensor, Tensor]:
    if isinstance(index, Tensor):
        rows, columns = index.nonzero(as_tuple=True)
        return rows, columns
    return index


def _logits(
    problem: Problem,
    term: Term,
    leaves: Sequence[Tensor],
    tile: slice,
    scratch: Tensor,
    positives: tuple[Tensor, Tensor],
) -> Tensor:
    """Logits of a tile, [r, c], in `scratch`: scale first, corrections next, masks last; positives always stay."""
    anchors, candidates = leaves[term.anchor][tile], leaves[term.candidate]
    out = scratch[: len(anchors) * len(candidates)].view(len(anchors), len(candidates))
    logits = torch.mm(anchors, candidates.T, out=out)
    rows, columns = positives
    kept = logits[rows, columns]  # [k]
    for addition in term.additions:
        if addition.candidate is not None:
            kept = kept + addition.candidate[columns].to(kept)
        if addition.positive is not None:
            kept = kept + addition.positive(rows + tile.start, columns).to(kept)
    pairwise = [a.pairwise(tile, logits * problem.temperature) for a in term.additions if a.pairwise is not None]
    for values in (*pairwise, *(a.candidate for a in term.additions if a.candidate is not None)):
        logits += values.to(logits)
    for exclusion in term.exclusions:
        logits[exclusion(tile)] = -torch.inf
    if len(rows):
        logits[rows, columns] = kept
    return logits


def _keep_hardest(logits: list[Tensor], positives: Sequence[tuple[Tensor, Tensor]], hardest: int) -> None:
    """Leave each row its positives and the `hardest` highest negatives of all blocks, in place."""
    values = torch.cat(logits, 1)
    starts = [sum(x.shape[1] for x in logits[:i]) for i in range(len(logits))]
    for (rows, columns), start in zip(positives, starts, strict=True):
        values[rows, columns + start] = -torch.inf
    chosen = values.topk(min(hardest, values.shape[1]), dim=1).indices
    left_out = torch.ones_like(values, dtype=torch.bool).scatter_(1, chosen, False)
    for x, (rows, columns), start in zip(logits, positives, starts, strict=True):
        part = left_out[:, start : start + x.shape[1]]
        part[rows, columns] = False
        x.masked_fill_(part, -torch.inf)
