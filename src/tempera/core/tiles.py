"""The softmax in tiles of rows: losses and all gradients in one pass, without an autograd graph
over scores.

For row i with logits l_ic over the candidates of one group of blocks, the target distribution y_i
over the row's positives, and the share w_i of the row's loss in the total,

    loss_i = log sum_c exp(l_ic) - l_i(y)        d total / d l_ic = w_i (softmax_ic - y_ic)

Two matrix products take the gradient of the logits to anchors and candidates, so a tile costs three
products, and memory is O(b D + tile c) for any choice of pools, corrections, masks and numerator.

Letters in shapes: b rows of this device, n rows of all, r rows of a tile, c candidates of a block,
    w candidates with filling zeros, k positives of a tile, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..arithmetic.abilities import free_bytes, sent, widest
from ..arithmetic.products import by_onednn, filled, mm, onednn_takes
from .batch import Role
from .corrections import Addition
from .matches import Index, Matches
from .pools import Exclusion
from .row_losses import Numerator, Positives, cross_entropy, divergence

# Scores held at once on a CPU: 4 MiB of float32. Fewer make thin matrix products, more fall out of
# the cache.
TILE_ELEMENTS = 1 << 20
# Share of an accelerator's free memory: every tile costs the same launches, whatever its height.
_DEVICE_SHARE = 1 / 16
SCORE_BYTES = 8  # a score in float32, and as much again on the way to its gradient


@dataclass(frozen=True)
class Term:
    """A block of the score matrix: roles of the vectors, additions and exclusions.

    Args:
        positive: [b] the column of each row's own positive; on the host if there are further
            positives.
        others: further positives, where the numerator counts them; on the host.
        anchor_rows: [b] the positions of the anchors among the vectors; None takes this device's
            rows.
        teacher: the teacher's logits of a tile, [r, c] or [r, k].
        lists: [b, k] the candidates of each row, before exclusions; None takes all.
    """

    anchor: Role
    candidate: Role
    positive: Tensor | None
    others: tuple[Matches, ...]
    additions: tuple[Addition, ...]
    exclusions: tuple[Exclusion, ...]
    anchor_rows: Tensor | None = None
    teacher: Callable[[slice], Tensor] | None = None
    lists: Tensor | None = None


@dataclass(frozen=True)
class Softmax:
    """A softmax. The target is the positives of the first term with positives, or a teacher's
    distribution.

    Args:
        share: of the softmax in the loss of a row.
        taught: True if the target is a teacher's distribution.
        scale: 1/t of the student in a taught softmax; otherwise the objective's scale holds.
    """

    terms: tuple[Term, ...]
    share: float = 1.0
    taught: bool = False
    scale: float = 0.0


@dataclass(frozen=True)
class Problem:
    """Everything that the loss of a batch needs besides the vectors."""

    groups: tuple[Softmax, ...]
    local: slice  # this device's rows, of the anchors
    hardest: int | None = None
    numerator: Numerator = "one"
    tile_elements: int = TILE_ELEMENTS


Vectors = Mapping[Role, Tensor]


@dataclass(frozen=True)
class Scores:
    """The logits of a tile's rows against the candidates of a term; an excluded candidate has -inf.

    Args:
        anchors: [r, D] not scaled.
        candidates: [w, D] the candidates, and filling zeros.
        filled: [r, w] the logits, and filling columns of zeros.
        logits: [r, c] a view of `filled`.
        positives: the rows' positives among the candidates.
        teacher: [r, c] the teacher's logits, of a term with a teacher.
    """

    term: Term
    anchors: Tensor
    candidates: Tensor
    filled: Tensor
    logits: Tensor
    positives: Positives
    teacher: Tensor | None


@dataclass(frozen=True)
class Tile:
    """The scores of some rows for each term of a softmax."""

    rows: slice  # counted from this device's first
    scores: list[Scores]

    @property
    def held(self) -> Scores:
        """The scores with the positives of the loss: the first scores with positives."""
        for scores in self.scores:
            if scores.positives.logits is not None:
                return scores
        raise AssertionError("no term holds a positive")

    @property
    def logits(self) -> list[Tensor]:
        """The logits of every term, [r, c] each."""
        return [scores.logits for scores in self.scores]


@dataclass(frozen=True)
class Gradients:
    """Gradients of the weighted sum of losses."""

    vectors: dict[Role, Tensor]  # like the vectors
    scale: Tensor  # a scalar on the device of the vectors


LossPass = Callable[[Problem, Vectors, float, Tensor | None, bool], tuple[Tensor, Gradients | None]]


def tile_elements(device: torch.device, free: float | None = None) -> int:
    """Return the number of scores of a tile on a device: 2^20 on a CPU, and a sixteenth of the free
    memory on an accelerator.

    Args:
        free: bytes of free memory; None asks the device.

    >>> tile_elements(torch.device("cpu"))
    1048576
    """
    if device.type == "cpu":
        return TILE_ELEMENTS
    return int((free or free_bytes(device)) * _DEVICE_SHARE / SCORE_BYTES)


def tile_losses(
    problem: Problem, vectors: Vectors, scale: float, shares: Tensor | None, learns: bool = True
) -> tuple[Tensor, Gradients | None]:
    """Return the losses, [b], and the gradients of sum(shares * losses). No device is waited for.

    Args:
        scale: 1/t.
        shares: [b] the share of each row in the total; None computes no gradients.
        learns: True computes the gradient of the scale; False leaves 0.
    """
    device = next(iter(vectors.values())).device
    rows = problem.local.stop - problem.local.start
    losses = next(iter(vectors.values())).new_zeros(rows)
    wide = {}
    for role, each in vectors.items():
        wide[role] = filled(each) if onednn_takes(each, rows) else each
    sums: dict[Role, Tensor] = {}
    if shares is not None:
        sums = {role: torch.zeros_like(each) for role, each in wide.items()}
    scale_grad = torch.zeros((), dtype=widest(device), device=device)
    for softmax in problem.groups:
        own_scale = softmax.scale if softmax.taught else scale
        learns_scale = learns and not softmax.taught
        for tile in tiles(problem, softmax, vectors, own_scale, wide):
            loss, mass = _loss(tile, softmax, problem.numerator)
            losses[tile.rows] += loss if softmax.share == 1 else loss * softmax.share
            if shares is None:
                continue
            # The logits have become mass (softmax - y): the factor makes them w (softmax - y).
            share = shares[tile.rows]
            if softmax.share != 1:
                share = share * softmax.share
            factor = share.div(mass)[:, None]  # [r, 1]
            inward = factor * own_scale
            for scores in tile.scores:
                towards = _anchor_gradients(scores, tile.rows).mul_(factor)
                if learns_scale:
                    scale_grad += torch.vdot(towards.flatten(), scores.anchors.flatten())
                _add_to_anchors(sums, scores.term, tile.rows, problem.local, towards, own_scale)
                _add_to_candidates(sums, scores, tile.rows, inward)
    if shares is None:
        return losses, None
    grads = {role: each[: len(vectors[role])] for role, each in sums.items()}
    return losses, Gradients(grads, scale_grad)


def _loss(tile: Tile, softmax: Softmax, numerator: Numerator) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, [r], and the mass of the row's softmax, [r]; turn the logits
    into gradients times the mass."""
    if softmax.taught:
        teacher = [scores.teacher for scores in tile.scores if scores.teacher is not None]
        return divergence(tile.logits, teacher)
    held = tile.held
    return cross_entropy(tile.logits, held.logits, held.positives, numerator)


def _anchor_gradients(scores: Scores, tile: slice) -> Tensor:
    """Return the gradients of a tile's scaled anchors, [r, D], from the gradients of the logits."""
    if scores.term.lists is None:
        return mm(scores.filled, scores.candidates)
    return (scores.filled[:, None] @ scores.candidates[scores.term.lists[tile]])[:, 0]


def _add_to_anchors(
    sums: Vectors, term: Term, tile: slice, local: slice, towards: Tensor, scale: float
) -> None:
    """Add the gradients of a tile's scaled anchors, [r, D], to the gradients of the anchors."""
    if term.anchor_rows is None:
        sums[term.anchor][_shifted(tile, local.start)].add_(towards, alpha=scale)
    else:  # rows may share an anchor
        sums[term.anchor].index_add_(0, term.anchor_rows[tile], towards, alpha=scale)


def _add_to_candidates(sums: Vectors, scores: Scores, tile: slice, inward: Tensor) -> None:
    """Add the gradients of logits, times the anchors, times `inward`, [r, 1], to the gradients of
    candidates."""
    total = sums[scores.term.candidate]
    pull = scores.anchors * inward  # [r, D]
    if scores.term.lists is None:
        with by_onednn(scores.filled.T, pull):
            total.addmm_(scores.filled.T, pull)
    else:
        each = scores.filled[:, :, None] * pull[:, None]  # [r, k, D]
        total.index_add_(0, scores.term.lists[tile].flatten(), each.flatten(0, 1))


def tiles(
    problem: Problem,
    softmax: Softmax,
    vectors: Vectors,
    scale: float,
    filled_up: Vectors | None = None,
) -> Iterator[Tile]:
    """Yield every tile of a softmax. The logits are valid until the next tile is requested.

    Args:
        scale: 1/t of the softmax.
        filled_up: the vectors, and zeros up to a recurring number of rows.
    """
    filled_up = filled_up or vectors
    rows = problem.local.stop - problem.local.start
    held_at_once = 0  # scores of a row
    for term in softmax.terms:
        held_at_once += max(len(filled_up[term.candidate]), _list_numbers(term, vectors))
    if softmax.taught:
        held_at_once *= 2
    height = min(rows, max(1, problem.tile_elements // max(1, held_at_once)))
    scratch = []
    for term in softmax.terms:
        candidates = filled_up[term.candidate]
        scratch.append(_aligned(candidates, height, len(candidates)))
    for start in range(0, rows, max(1, height)):  # a device may have no rows
        tile = slice(start, min(start + height, rows))
        scaled: dict[Role, Tensor] = {}  # anchors of the tile, times the scale
        scores = []
        for term, out in zip(softmax.terms, scratch, strict=True):
            if term.anchor_rows is None:
                anchors = vectors[term.anchor][_shifted(tile, problem.local.start)]
            else:
                anchors = vectors[term.anchor][term.anchor_rows[tile]]
            if term.anchor not in scaled:
                scaled[term.anchor] = anchors * scale
            candidates = filled_up[term.candidate]
            width = len(vectors[term.candidate])
            products = _products(term, scaled[term.anchor], candidates, tile, out)
            scores.append(_scores(term, tile, anchors, candidates, products, width, scale))
        if problem.hardest is not None and not softmax.taught:
            _keep_hardest(scores, problem.hardest)
        yield Tile(tile, scores)


def _shifted(tile: slice, first: int) -> slice:
    """Return the rows of a tile among the rows of all devices."""
    return slice(first + tile.start, first + tile.stop)


def _list_numbers(term: Term, vectors: Vectors) -> int:
    """Return the memory of a row's list during the comparison, in numbers."""
    return 0 if term.lists is None else term.lists.shape[1] * vectors[term.candidate].shape[1]


def _aligned(like: Tensor, height: int, width: int) -> Tensor:
    """Room for [height, width]: each row begins on a border of 64 bytes; otherwise products take up
    to twice as long."""
    return like.new_empty(height, width + -width % 16)[:, :width]


def _products(term: Term, anchors: Tensor, candidates: Tensor, tile: slice, out: Tensor) -> Tensor:
    """Return the inner products of a tile's anchors with all candidates, [r, w]; or with the
    candidates of the rows' lists, [r, k]."""
    if term.lists is None:
        return mm(anchors, candidates.T, out[: len(anchors)])
    return (candidates[term.lists[tile]] @ anchors[:, :, None])[:, :, 0]


def _scores(
    term: Term,
    tile: slice,
    anchors: Tensor,
    candidates: Tensor,
    products: Tensor,
    width: int,
    scale: float,
) -> Scores:
    """Return the scores of a term: the products become logits, in place."""
    positives = _positives(term, tile, width, anchors.device)
    excluded: Iterable[Index] = (exclusion(tile) for exclusion in term.exclusions)
    logits = products if term.lists is not None else products[:, :width]
    teacher = None
    if term.teacher is not None:
        excluded = list(excluded)  # for the teacher's logits, and for the student's
        teacher = term.teacher(tile).to(logits.dtype)
        _adjust(teacher, term, tile, positives, 1.0, excluded)
    own = _adjust(logits, term, tile, positives, 1 / scale, excluded)
    positives = positives._replace(logits=own)
    return Scores(term, anchors, candidates, products, logits, positives, teacher)


def _positives(term: Term, tile: slice, width: int, device: torch.device) -> Positives:
    """Return rows and columns of a tile's positives, each once, the rows' own first."""
    if term.positive is None:
        nothing = torch.empty(0, dtype=torch.int64)
        return Positives(nothing, nothing)
    own = term.positive[tile]  # [r]
    here = torch.arange(len(own), device=own.device)
    if not term.others:
        return Positives(here, own)
    keys = []  # of a row and a column: row * width + column
    for other in term.others:
        rows, columns = other(tile)
        keys.append(rows * width + columns)
    distinct = torch.unique(torch.cat(keys))
    rows = distinct // width
    others = distinct[distinct != here[rows] * width + own[rows]]
    rows = torch.cat([here, others // width])
    columns = torch.cat([own, others % width])
    return Positives(sent(rows, device), sent(columns, device))


def _adjust(
    logits: Tensor,
    term: Term,
    tile: slice,
    positives: Positives,
    temperature: float,
    excluded: Iterable[Index],
) -> Tensor | None:
    """Turn scaled similarities into logits, [r, c], in place: corrections first, masks last;
    positives always stay.

    Args:
        excluded: candidates of the tile left out by each exclusion.

    Returns:
        The logits of the positives, [k]; None where the term has none.
    """
    rows, columns = positives.rows, positives.columns
    own = None
    if len(rows):
        own = _positive_logits(logits, term, tile, positives)
    pairwise = [addition.pairwise for addition in term.additions if addition.pairwise is not None]
    similarities = logits.clone() if len(pairwise) > 1 else logits
    for i, change in enumerate(pairwise):
        if i == 0:
            change(tile, logits, temperature)
        else:  # each correction is a function of the similarities, whatever the others have added
            changed = similarities.clone()
            change(tile, changed, temperature)
            logits += changed.sub_(similarities)
    for addition in term.additions:
        if addition.candidate is not None:
            logits += addition.candidate.to(logits)
    for index in excluded:
        leave_out(logits, index)
    if own is not None and (term.additions or term.exclusions):
        logits[rows, columns] = own
    return own


def _positive_logits(logits: Tensor, term: Term, tile: slice, positives: Positives) -> Tensor:
    """Return the logits of a tile's positives, [k], from scaled similarities."""
    rows, columns = positives.rows, positives.columns
    own = logits[rows, columns]
    for addition in term.additions:
        if addition.candidate is not None:
            own = own + addition.candidate[columns].to(own)
        if addition.positive is not None:
            own = own + addition.positive(rows + tile.start, columns).to(own.dtype)
    return own


def leave_out(logits: Tensor, index: Index) -> None:
    """Set the logits of excluded candidates to -inf."""
    if isinstance(index, Tensor) and index.dtype == torch.bool:
        logits.masked_fill_(index, -torch.inf)
    elif isinstance(index, Tensor):
        logits += index
    else:
        logits[index] = -torch.inf


def _keep_hardest(tile: list[Scores], hardest: int) -> None:
    """Leave each row the positives and the `hardest` highest negatives of all terms, in place."""
    negatives = torch.cat([scores.logits for scores in tile], 1)
    start = 0
    for scores in tile:
        rows, columns = scores.positives.rows, scores.positives.columns
        negatives[rows, columns + start] = -torch.inf
        start += scores.logits.shape[1]
    chosen = negatives.topk(min(hardest, negatives.shape[1]), dim=1).indices
    left_out = torch.ones_like(negatives, dtype=torch.bool).scatter_(1, chosen, False)
    start = 0
    for scores in tile:
        width = scores.logits.shape[1]
        part = left_out[:, start : start + width]
        part[scores.positives.rows, scores.positives.columns] = False
        scores.logits.masked_fill_(part, -torch.inf)
        start += width
