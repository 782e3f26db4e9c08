"""The softmax in tiles of rows: losses and all gradients in one pass, without an autograd graph over scores.

For row i with logits l_ic over the candidates of one group of blocks, the target distribution y_i over its positives,
and the share w_i of its loss in the total,

    loss_i = log sum_c exp(l_ic) - l_i(y)        d total / d l_ic = w_i (softmax_ic - y_ic)

Two matrix products take that to anchors and candidates, so a tile costs three products, and memory is O(b D + tile c)
for any choice of pools, corrections, masks and numerator.

Letters in shapes: b rows of this device, n rows of all, r rows of a tile, c candidates of a block, k positives of a tile, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .abilities import free_memory, widest
from .batch import Role
from .corrections import Addition
from .matches import Index, Matches
from .pools import Exclusion

Numerator = Literal["one", "mean", "sum"]

# Scores held at once on a CPU: 4 MiB of float32. Fewer make thin matrix products, more fall out of the cache.
TILE_ELEMENTS = 1 << 20
_DEVICE_SHARE = 1 / 16  # of an accelerator's free memory: every tile costs it the same launches, whatever its height
_SCORE_BYTES = 8  # of float32, and as much for what is made of it on the way
_UNKNOWN_MEMORY = 8 << 30


# A share this small cannot be seen in a sum of either precision, and subnormal numbers take 40 times as long.
_INVISIBLE = 1e-30
_LOWEST = -70.0  # exp of this lies below
_LEFT_OUT = -1e30  # a logit that is left out, where it has to be finite


@dataclass(frozen=True)
class Term:
    """One block of the score matrix: which vectors it multiplies, what is added and what is left out."""

    anchor: Role
    candidate: Role
    positive: Tensor | None  # [b] column of each row's own positive; on the host if there are others
    others: tuple[Matches, ...]  # further positives, where the numerator counts them; on the host
    additions: tuple[Addition, ...]
    exclusions: tuple[Exclusion, ...]
    anchor_rows: Tensor | None = (
        None  # [b] where the anchors stand among their vectors; None: they are this device's rows
    )
    teacher: tuple[Tensor, Tensor] | None = (
        None  # a teacher's vectors of the anchors, [b, T], and the candidates, [c, T]
    )


@dataclass(frozen=True)
class Softmax:
    """One softmax. Its target is the positives of its first term that has some, or a teacher's softmax."""

    terms: tuple[Term, ...]
    share: float = 1.0  # of its loss in a row's
    scales: tuple[float, float] | None = (
        None  # 1/t of student and teacher; None is that of the sweep, without a teacher
    )


@dataclass(frozen=True)
class Problem:
    """Everything a sweep needs besides the vectors."""

    groups: tuple[Softmax, ...]
    local: slice  # this device's rows, of the anchors
    hardest: int | None = None
    numerator: Numerator = "one"
    tile_elements: int = TILE_ELEMENTS


@dataclass(frozen=True)
class Tile:
    """The logits of some rows against all candidates of a group; what is left out is -inf."""

    rows: slice  # counted from this device's first
    group: int
    anchors: list[Tensor]  # one [r, D] a term, not scaled
    logits: list[Tensor]  # one [r, c] a term
    held: int  # the term whose positives the loss is about
    # Rows in the tile and columns of each term's positives, [k] each; where there are any, the first r are the rows' own.
    positives: list[tuple[Tensor, Tensor]]
    values: Tensor | None  # [k] logits of the positives of the term held
    teacher: list[Tensor]  # one [r, c] a term that has one: the teacher's logits


Vectors = Mapping[Role, Tensor]


def tile_elements(device: torch.device) -> int:
    """Return the scores that a tile holds on a device: 2^20 on a CPU, and a sixteenth of the free memory on an accelerator.

    >>> tile_elements(torch.device("cpu"))
    1048576
    """
    if device.type == "cpu":
        return TILE_ELEMENTS
    return int((free_memory(device) or _UNKNOWN_MEMORY) * _DEVICE_SHARE / _SCORE_BYTES)


def tiles(problem: Problem, vectors: Vectors, scale: float) -> Iterator[Tile]:
    """Yield every tile of every group. The logits are valid until the next tile is requested."""
    first, rows = problem.local.start, problem.local.stop - problem.local.start
    device = next(iter(vectors.values())).device
    for g, group in enumerate(problem.groups):
        terms, taught = group.terms, group.scales is not None
        own_scale, teacher_scale = group.scales or (scale, 0.0)
        widths = [len(vectors[term.candidate]) for term in terms]
        height = min(rows, max(1, problem.tile_elements // max(1, sum(widths) * (1 + taught))))
        scratch = [_aligned(vectors[term.candidate], height, width) for term, width in zip(terms, widths, strict=True)]
        held = next((i for i, term in enumerate(terms) if term.positive is not None), 0)
        for start in range(0, rows, max(1, height)):  # a device may have no rows
            tile = slice(start, min(start + height, rows))
            anchors = [vectors[term.anchor][_places(term, tile, first)] for term in terms]
            positives = [_positives(term, tile, width, device) for term, width in zip(terms, widths, strict=True)]
            logits, teacher, scaled, values = [], list[Tensor](), dict[Role, Tensor](), None
            for term, anchor, out, kept in zip(terms, anchors, scratch, positives, strict=True):
                if term.anchor not in scaled:
                    scaled[term.anchor] = anchor * own_scale
                raw = torch.mm(scaled[term.anchor], vectors[term.candidate].T, out=out[: len(anchor)])
                left_out: Iterable[Index] = (exclusion(tile) for exclusion in term.exclusions)
                if term.teacher is not None:
                    left_out = list(left_out)
                    of_anchors, of_candidates = term.teacher
                    target = ((of_anchors[tile] * teacher_scale) @ of_candidates.T).to(raw.dtype)
                    _adjust(target, term, tile, kept, 1 / teacher_scale, left_out)
                    teacher.append(target)
                own = _adjust(raw, term, tile, kept, 1 / own_scale, left_out)
                values = own if values is None else values
                logits.append(raw)
            if problem.hardest is not None and not taught:
                _keep_hardest(logits, positives, problem.hardest)
            yield Tile(tile, g, anchors, logits, held, positives, values, teacher)


def _aligned(like: Tensor, height: int, width: int) -> Tensor:
    """Room for [height, width]: each row begins on a border of 64 bytes, without which products take up to twice as long."""
    return like.new_empty(height, width + -width % 16)[:, :width]


@dataclass(frozen=True)
class Gradients:
    """Gradients of the weighted sum of losses."""

    vectors: dict[Role, Tensor]  # like the vectors
    scale: Tensor  # a scalar on the device of the vectors


def sweep(
    problem: Problem, vectors: Vectors, scale: float, shares: Tensor | None, learns: bool = True
) -> tuple[Tensor, Gradients | None]:
    """Losses, [b], and the gradients of sum(shares * losses); no gradients where `shares` is None. No device is waited for.

    Args:
        learns: whether the gradient of the scale is needed; it is 0 without.
    """
    some = next(iter(vectors.values()))
    losses = some.new_zeros(problem.local.stop - problem.local.start)
    grads = {role: torch.zeros_like(vector) for role, vector in vectors.items()} if shares is not None else {}
    first = problem.local.start
    scale_grad = torch.zeros((), dtype=widest(some.device), device=some.device)
    for tile in tiles(problem, vectors, scale):
        group = problem.groups[tile.group]
        loss, mass = _taught(tile) if tile.teacher else _contrasted(tile, problem.numerator)
        losses[tile.rows] += loss if group.share == 1 else loss * group.share
        if shares is None:
            continue
        factor = (shares[tile.rows] if group.share == 1 else shares[tile.rows] * group.share).div(mass)[
            :, None
        ]  # [r, 1]
        own_scale = scale if group.scales is None else group.scales[0]
        inward = factor * own_scale
        for term, anchors, x in zip(group.terms, tile.anchors, tile.logits, strict=True):
            towards = (x @ vectors[term.candidate]).mul_(factor)  # [r, D] gradient of the scaled anchors
            if learns and group.scales is None:
                scale_grad += torch.vdot(towards.flatten(), anchors.flatten())
            if term.anchor_rows is None:
                grads[term.anchor][_places(term, tile.rows, first)].add_(towards, alpha=own_scale)
            else:  # rows may share an anchor
                grads[term.anchor].index_add_(0, term.anchor_rows[tile.rows], towards, alpha=own_scale)
            grads[term.candidate].addmm_(x.T, anchors * inward)
    return losses, None if shares is None else Gradients(grads, scale_grad)


def _contrasted(tile: Tile, numerator: Numerator) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, [r], and the mass of its softmax, [r]; its logits become their gradients times that mass."""
    level, target = _numerator(numerator, tile)
    mass, top = exponentiate(tile.logits)
    positives = tile.positives[tile.held]
    tile.logits[tile.held][positives] -= mass if target is None else target * mass[positives[0]]
    return top + mass.log() - level, mass


def _taught(tile: Tile) -> tuple[Tensor, Tensor]:
    """Return the same of a teacher: KL(P || Q) of each row, with gradients Q - P; 0 in a row that has no candidates.

    KL = sum_c P_c (log P_c - log Q_c),    P = p / sum p,    Q = q / sum q
    """
    student, teacher = _lowered(tile.logits), _lowered(tile.teacher)
    targets = [_shares(each.clone()) for each in teacher]
    gaps = [torch.linalg.vecdot(p, u.sub_(x)) for p, u, x in zip(targets, teacher, student, strict=True)]
    mass = _total([_shares(x).sum(1) for x in student])  # in place
    target_mass = _total([p.sum(1) for p in targets])
    for x, p in zip(student, targets, strict=True):
        x.sub_(p.mul_((mass / target_mass)[:, None]))
    return sum(gaps[1:], gaps[0]) / target_mass - (target_mass.log() - mass.log()), mass


def _lowered(logits: Sequence[Tensor]) -> Sequence[Tensor]:
    """Lower logits in place so that each row's highest is 0; what is left out is finite, and alike in all of them."""
    top = torch.stack([x.amax(1) for x in logits]).amax(0).clamp_min_(_LEFT_OUT)
    for x in logits:
        x.sub_(top[:, None]).clamp_min_(_LEFT_OUT)
    return logits


def _shares(lowered: Tensor) -> Tensor:
    """Return exp in place, and 0 for what cannot be seen in a sum."""
    return torch.threshold_(lowered.clamp_min_(_LOWEST).exp_(), _INVISIBLE, 0.0)


def _total(masses: Sequence[Tensor]) -> Tensor:
    """Return the sum of masses, [r], above 0 where a row has no candidates."""
    return sum(masses[1:], masses[0]).clamp_min(_INVISIBLE)


def _places(term: Term, tile: slice, first: int) -> slice | Tensor:
    """Return the positions of a tile's anchors among the vectors of their role."""
    return slice(first + tile.start, first + tile.stop) if term.anchor_rows is None else term.anchor_rows[tile]


def exponentiate(logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Turn logits into exp(logit - top) in place; their sum, [r], and the highest logit, [r]."""
    tops = [x.amax(1) for x in logits]
    top = tops[0] if len(tops) == 1 else torch.stack(tops).amax(0)
    masses = []
    for x in logits:
        x.sub_(top[:, None]).clamp_min_(_LOWEST).exp_()
        masses.append(torch.threshold_(x, _INVISIBLE, 0.0).sum(1))
    mass = masses[0]
    for more in masses[1:]:
        mass += more
    return mass, top


def _numerator(kind: Numerator, tile: Tile) -> tuple[Tensor, Tensor | None]:
    """Return the level that a row's log-sum-exp is compared with, [r], and the target share of each positive, [k]; None is 1."""
    rows, values = tile.positives[tile.held][0], tile.values
    assert values is not None
    count = tile.rows.stop - tile.rows.start
    if kind == "one":
        return values, None
    if kind == "mean":  # of log-probabilities: Khosla et al. 2020, eq. 2
        target = 1 / values.new_zeros(count).index_add_(0, rows, torch.ones_like(values))[rows]
        return values.new_zeros(count).index_add_(0, rows, values * target), target
    # log of the summed probability: Miech et al. 2020, eq. 1
    top = values.new_full((count,), -torch.inf).scatter_reduce_(0, rows, values, "amax")
    mass = values.new_zeros(count).index_add_(0, rows, (values - top[rows]).exp())
    level = top + mass.log()
    return level, (values - level[rows]).exp()


def _positives(term: Term, tile: slice, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of a tile's positives, each once, the rows' own first."""
    if term.positive is None:
        nothing = torch.empty(0, dtype=torch.int64)
        return nothing, nothing
    own = term.positive[tile]  # [r]
    here = torch.arange(len(own), device=own.device)
    if not term.others:
        return here, own
    pairs = [other(tile) for other in term.others]
    keys = torch.unique(torch.cat([rows * width + columns for rows, columns in pairs]))
    keys = keys[keys != here[keys // width] * width + own[keys // width]]
    return torch.cat([here, keys // width]).to(device), torch.cat([own, keys % width]).to(device)


def _adjust(
    logits: Tensor,
    term: Term,
    tile: slice,
    positives: tuple[Tensor, Tensor],
    temperature: float,
    left_out: Iterable[Index],
) -> Tensor | None:
    """Scaled similarities to logits, [r, c], in place: corrections first, masks last; positives always stay.

    Args:
        left_out: what each exclusion leaves out of the tile.

    Returns:
        The logits of the positives, [k]; None where the term has none.
    """
    rows, columns = positives
    kept = logits[rows, columns] if len(rows) else None  # [k]
    if kept is not None:
        for addition in term.additions:
            if addition.candidate is not None:
                kept = kept + addition.candidate[columns].to(kept)
            if addition.positive is not None:
                kept = kept + addition.positive(rows + tile.start, columns).to(kept.dtype)
    pairwise = [addition.pairwise for addition in term.additions if addition.pairwise is not None]
    raw = logits.clone() if len(pairwise) > 1 else logits
    for i, change in enumerate(pairwise):
        if i == 0:
            change(tile, logits, temperature)
        else:  # each correction is a function of the similarities, whatever the others have added
            changed = raw.clone()
            change(tile, changed, temperature)
            logits += changed.sub_(raw)
    for addition in term.additions:
        if addition.candidate is not None:
            logits += addition.candidate.to(logits)
    for index in left_out:
        leave_out(logits, index)
    if kept is not None and (term.additions or term.exclusions):
        logits[rows, columns] = kept
    return kept


def leave_out(logits: Tensor, index: Index) -> None:
    """Set what an exclusion names to -inf."""
    if isinstance(index, Tensor):
        logits += index
    else:
        logits[index] = -torch.inf


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
