"""The softmax in tiles of rows: losses and all gradients in one pass, without an autograd graph
over scores.

For row i with logits l_ic over the candidates of one group of blocks, the target distribution y_i
over its positives, and the share w_i of its loss in the total,

    loss_i = log sum_c exp(l_ic) - l_i(y)        d total / d l_ic = w_i (softmax_ic - y_ic)

Two matrix products take that to anchors and candidates, so a tile costs three products, and memory
is O(b D + tile c) for any choice of pools, corrections, masks and numerator.

Letters in shapes: b rows of this device, n rows of all, r rows of a tile, c candidates of a block,
    k positives of a tile, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..arithmetic.abilities import free_bytes, sent, widest
from ..arithmetic.products import by_onednn, filled, mm, onednn_takes
from .batch import Role
from .corrections import Addition
from .matches import Index, Matches
from .pools import Exclusion
from .row_losses import Numerator, Tile, contrasted, divergence

# Scores held at once on a CPU: 4 MiB of float32. Fewer make thin matrix products, more fall out of
# the cache.
TILE_ELEMENTS = 1 << 20
_DEVICE_SHARE = (
    1 / 16
)  # of an accelerator's free memory: every tile costs it the same launches, whatever its height
SCORE_BYTES = 8  # of float32, and as much for what is made of it on the way


@dataclass(frozen=True)
class Term:
    """One block of the score matrix: which vectors it multiplies, what is added and what is left
    out."""

    anchor: Role
    candidate: Role
    positive: (
        Tensor | None
    )  # [b] column of each row's own positive; on the host if there are others
    others: tuple[Matches, ...]  # further positives, where the numerator counts them; on the host
    additions: tuple[Addition, ...]
    exclusions: tuple[Exclusion, ...]
    anchor_rows: Tensor | None = (
        None  # [b] where the anchors stand among their vectors; None: they are this device's rows
    )
    teacher: Callable[[slice], Tensor] | None = (
        None  # a teacher's logits of a tile, [r, c] or [r, k]
    )
    lists: Tensor | None = (
        None  # [b, k] the candidates of each row, of which some may be left out; None: all of them
    )


@dataclass(frozen=True)
class Softmax:
    """One softmax, whose target is the positives of its first term that has some; or what a teacher
    compares."""

    terms: tuple[Term, ...]
    share: float = 1.0  # of its loss in a row's
    taught: bool = False  # whether the logits are compared with a teacher's
    scale: float = 0.0  # 1/t of the student, where it is taught; else it is that of the sweep


@dataclass(frozen=True)
class Problem:
    """Everything a sweep needs besides the vectors."""

    groups: tuple[Softmax, ...]
    local: slice  # this device's rows, of the anchors
    hardest: int | None = None
    numerator: Numerator = "one"
    tile_elements: int = TILE_ELEMENTS


Vectors = Mapping[Role, Tensor]


def tile_elements(device: torch.device, free: float | None = None) -> int:
    """Return the scores that a tile holds on a device: 2^20 on a CPU, and a sixteenth of the free
    memory on an accelerator.

    Args:
        free: bytes of free memory; None asks the device.

    >>> tile_elements(torch.device("cpu"))
    1048576
    """
    if device.type == "cpu":
        return TILE_ELEMENTS
    return int((free or free_bytes(device)) * _DEVICE_SHARE / SCORE_BYTES)


def tiles(
    problem: Problem, vectors: Vectors, scale: float, filled_up: Vectors | None = None
) -> Iterator[Tile]:
    """Yield every tile of every group. The logits are valid until the next tile is requested.

    Args:
        filled_up: the vectors, and zeros after them that bring their number to one that recurs.
    """
    filled_up = filled_up or vectors
    first, rows = problem.local.start, problem.local.stop - problem.local.start
    device = next(iter(vectors.values())).device
    for g, group in enumerate(problem.groups):
        terms, taught, own_scale = (
            group.terms,
            group.taught,
            group.scale if group.taught else scale,
        )
        widths = [len(vectors[term.candidate]) for term in terms]
        candidates = [filled_up[term.candidate] for term in terms]
        held_at_once = sum(
            max(len(each), _listed(term, vectors))
            for term, each in zip(terms, candidates, strict=True)
        )
        height = min(rows, max(1, problem.tile_elements // max(1, held_at_once * (1 + taught))))
        scratch = [_aligned(each, height, len(each)) for each in candidates]
        held = next((i for i, term in enumerate(terms) if term.positive is not None), 0)
        for start in range(0, rows, max(1, height)):  # a device may have no rows
            tile = slice(start, min(start + height, rows))
            anchors = [vectors[term.anchor][_places(term, tile, first)] for term in terms]
            positives = [
                _positives(term, tile, width, device)
                for term, width in zip(terms, widths, strict=True)
            ]
            logits, whole, teacher = list[Tensor](), list[Tensor](), list[Tensor]()
            scaled, values = dict[Role, Tensor](), None
            for term, anchor, each, width, out, kept in zip(
                terms, anchors, candidates, widths, scratch, positives, strict=True
            ):
                if term.anchor not in scaled:
                    scaled[term.anchor] = anchor * own_scale
                whole.append(_products(term, scaled[term.anchor], each, tile, out))
                raw = whole[-1][:, :width] if term.lists is None else whole[-1]
                left_out: Iterable[Index] = (exclusion(tile) for exclusion in term.exclusions)
                if term.teacher is not None:
                    left_out = list(left_out)
                    target = term.teacher(tile).to(raw.dtype)
                    _adjust(target, term, tile, kept, 1.0, left_out)
                    teacher.append(target)
                own = _adjust(raw, term, tile, kept, 1 / own_scale, left_out)
                values = own if values is None else values
                logits.append(raw)
            if problem.hardest is not None and not taught:
                _keep_hardest(logits, positives, problem.hardest)
            yield Tile(
                tile, g, anchors, logits, whole, candidates, held, positives, values, teacher
            )


def _listed(term: Term, vectors: Vectors) -> int:
    """Return the numbers that a row's list takes while it is compared."""
    return 0 if term.lists is None else term.lists.shape[1] * vectors[term.candidate].shape[1]


def _products(term: Term, anchors: Tensor, candidates: Tensor, tile: slice, out: Tensor) -> Tensor:
    """Return the inner products of a tile's anchors with all candidates, [r, c]; or with those of
    their lists, [r, k]."""
    if term.lists is None:
        return mm(anchors, candidates.T, out[: len(anchors)])
    return (candidates[term.lists[tile]] @ anchors[:, :, None])[:, :, 0]


def _aligned(like: Tensor, height: int, width: int) -> Tensor:
    """Room for [height, width]: each row begins on a border of 64 bytes, without which products
    take up to twice as long."""
    return like.new_empty(height, width + -width % 16)[:, :width]


@dataclass(frozen=True)
class Gradients:
    """Gradients of the weighted sum of losses."""

    vectors: dict[Role, Tensor]  # like the vectors
    scale: Tensor  # a scalar on the device of the vectors


def sweep(
    problem: Problem, vectors: Vectors, scale: float, shares: Tensor | None, learns: bool = True
) -> tuple[Tensor, Gradients | None]:
    """Losses, [b], and the gradients of sum(shares * losses); no gradients where `shares` is None.
    No device is waited for.

    Args:
        learns: whether the gradient of the scale is needed; it is 0 without.
    """
    some = next(iter(vectors.values()))
    losses = some.new_zeros(problem.local.stop - problem.local.start)
    wide = {
        role: filled(each) if onednn_takes(each, len(losses)) else each
        for role, each in vectors.items()
    }
    sums = (
        {role: torch.zeros_like(each) for role, each in wide.items()} if shares is not None else {}
    )
    grads = {role: each[: len(vectors[role])] for role, each in sums.items()}
    first = problem.local.start
    scale_grad = torch.zeros((), dtype=widest(some.device), device=some.device)
    for tile in tiles(problem, vectors, scale, wide):
        group = problem.groups[tile.group]
        loss, mass = divergence(tile) if group.taught else contrasted(tile, problem.numerator)
        losses[tile.rows] += loss if group.share == 1 else loss * group.share
        if shares is None:
            continue
        factor = (shares[tile.rows] if group.share == 1 else shares[tile.rows] * group.share).div(
            mass
        )[:, None]  # [r, 1]
        own_scale = group.scale if group.taught else scale
        inward = factor * own_scale
        for term, anchors, x, candidates in zip(
            group.terms, tile.anchors, tile.filled, tile.candidates, strict=True
        ):
            towards = _towards(term, x, candidates, tile.rows).mul_(factor)  # of the scaled anchors
            if learns and not group.taught:
                scale_grad += torch.vdot(towards.flatten(), anchors.flatten())
            if term.anchor_rows is None:
                grads[term.anchor][_places(term, tile.rows, first)].add_(towards, alpha=own_scale)
            else:  # rows may share an anchor
                grads[term.anchor].index_add_(
                    0, term.anchor_rows[tile.rows], towards, alpha=own_scale
                )
            if term.lists is None:
                with by_onednn(x.T, pull := anchors * inward):
                    sums[term.candidate].addmm_(x.T, pull)
            else:
                each = x[:, :, None] * (anchors * inward)[:, None]  # [r, k, D]
                grads[term.candidate].index_add_(
                    0, term.lists[tile.rows].flatten(), each.flatten(0, 1)
                )
    return losses, None if shares is None else Gradients(grads, scale_grad)


Sweep = Callable[[Problem, Vectors, float, Tensor | None, bool], tuple[Tensor, Gradients | None]]


def _towards(term: Term, x: Tensor, candidates: Tensor, tile: slice) -> Tensor:
    """Return the gradients of a tile's anchors, [r, D], from those of their logits."""
    return (
        mm(x, candidates)
        if term.lists is None
        else (x[:, None] @ candidates[term.lists[tile]])[:, 0]
    )


def _places(term: Term, tile: slice, first: int) -> slice | Tensor:
    """Return the positions of a tile's anchors among the vectors of their role."""
    return (
        slice(first + tile.start, first + tile.stop)
        if term.anchor_rows is None
        else term.anchor_rows[tile]
    )


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
    return sent(torch.cat([here, keys // width]), device), sent(
        torch.cat([own, keys % width]), device
    )


def _adjust(
    logits: Tensor,
    term: Term,
    tile: slice,
    positives: tuple[Tensor, Tensor],
    temperature: float,
    left_out: Iterable[Index],
) -> Tensor | None:
    """Scaled similarities to logits, [r, c], in place: corrections first, masks last; positives
    always stay.

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
    if isinstance(index, Tensor) and index.dtype == torch.bool:
        logits.masked_fill_(index, -torch.inf)
    elif isinstance(index, Tensor):
        logits += index
    else:
        logits[index] = -torch.inf


def _keep_hardest(
    logits: list[Tensor], positives: Sequence[tuple[Tensor, Tensor]], hardest: int
) -> None:
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
