"""Triton kernels of a softmax over similarities, none of which leaves the chip: for `fused`, and imported by nothing else.

Logits are recomputed wherever they are needed. Products are summed in float32, and no two programs write to one place, so that the
same input has the same bits again.

Letters in shapes: b anchors (rows), c candidates (columns), K pairs of ids, N rows and columns of a tile, D width, W the power of 2
from D on.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _vectors(vectors, places, count, D: tl.constexpr, W: tl.constexpr):
    """Load vectors by their places, [N, W]; what is not there is 0."""
    width = tl.arange(0, W)
    held = (places < count)[:, None] & (width < D)[None, :]
    return tl.load(vectors + places.to(tl.int64)[:, None] * D + width[None, :], mask=held, other=0.0)


@triton.jit
def _logits(
    anchors, candidates, rows, columns, b, c, scale, added, positive, bonus, row_ids, column_ids,
    K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return similarities, logits with -inf for what is left out, and True at the positives, [N, N] each."""
    if PRECISION == "ieee":
        anchors, candidates = anchors.to(tl.float32), candidates.to(tl.float32)
    similarities = tl.dot(anchors, tl.trans(candidates), input_precision=PRECISION)
    is_row, is_column = rows < b, columns < c
    x = similarities * scale + tl.load(added + columns, mask=is_column, other=0.0)[None, :]
    own = columns[None, :] == tl.load(positive + rows, mask=is_row, other=-1)[:, None]
    out = (rows < 0)[:, None] | (columns >= c)[None, :]
    for k in tl.static_range(K):
        mine = tl.load(row_ids + k * b + rows, mask=is_row, other=0)
        out = out | (mine[:, None] == tl.load(column_ids + k * c + columns, mask=is_column, other=0)[None, :])
    kept = x + tl.load(bonus + rows, mask=is_row, other=0.0)[:, None]
    return similarities, tl.where(own, kept, tl.where(out, float("-inf"), x)), own


@triton.jit
def log_sums(
    anchors, candidates, b, c, scale, added, positive, bonus, row_ids, column_ids, rest, level,
    K: tl.constexpr, D: tl.constexpr, W: tl.constexpr, N: tl.constexpr, TARGET: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the log-sum-exp of each row's logits but its target's, [b], and the target's logit, [b]; -inf and 0 without any."""
    rows = tl.program_id(0) * N + tl.arange(0, N)
    q = _vectors(anchors, rows, b, D, W)
    top = tl.full([N], -1e38, tl.float32)  # finite, so that a row without candidates has no inf - inf
    total = tl.zeros([N], tl.float32)
    target = tl.zeros([N], tl.float32)
    for start in range(0, c, N):
        columns = start + tl.arange(0, N)
        k = _vectors(candidates, columns, c, D, W)
        _, x, own = _logits(
            q, k, rows, columns, b, c, scale, added, positive, bonus, row_ids, column_ids, K, PRECISION
        )  # fmt: skip
        if TARGET:
            target += tl.sum(tl.where(own, x, 0.0), 1)
            x = tl.where(own, float("-inf"), x)
        higher = tl.maximum(top, tl.max(x, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher[:, None]), 1)
        top = higher
    tl.store(rest + rows, top + tl.log(total), mask=rows < b)
    tl.store(level + rows, target, mask=rows < b)


@triton.jit
def gradients(
    anchors, candidates, b, c, scale, added, positive, bonus, row_ids, column_ids, whole, missed, shares, grads, slopes,
    K: tl.constexpr, D: tl.constexpr, W: tl.constexpr, N: tl.constexpr, TARGET: tl.constexpr, PRECISION: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):  # fmt: skip
    """Store the gradients of candidates, [c, D], or else of anchors, [b, D], with what each row adds to that of the scale, [b].

    Args:
        whole: log-sum-exp of each row's logits over all its terms, [b].
        missed: probability of all but the target, [b].
        shares: of each row's loss in the total, [b].
    """
    mine = tl.program_id(0) * N + tl.arange(0, N)
    if BY_COLUMN:
        held = _vectors(candidates, mine, c, D, W)
        count = b
    else:
        held = _vectors(anchors, mine, b, D, W)
        count = c
    grad = tl.zeros([N, W], tl.float32)
    slope = tl.zeros([N], tl.float32)
    for start in range(0, count, N):
        others = start + tl.arange(0, N)
        if BY_COLUMN:
            rows, columns = others, mine
            passing = _vectors(anchors, others, b, D, W)
            q, k = passing, held
        else:
            rows, columns = mine, others
            passing = _vectors(candidates, others, c, D, W)
            q, k = held, passing
        similarities, x, own = _logits(
            q, k, rows, columns, b, c, scale, added, positive, bonus, row_ids, column_ids, K, PRECISION
        )  # fmt: skip
        g = tl.exp(x - tl.load(whole + rows, mask=rows < b, other=0.0)[:, None])
        if TARGET:
            g = tl.where(own, -tl.load(missed + rows, mask=rows < b, other=0.0)[:, None], g)
        g = tl.where((rows < b)[:, None], g * tl.load(shares + rows, mask=rows < b, other=0.0)[:, None], 0.0)
        if BY_COLUMN:
            grad += tl.dot(tl.trans(g), passing.to(tl.float32), input_precision=PRECISION)
        else:
            grad += tl.dot(g, passing.to(tl.float32), input_precision=PRECISION)
            slope += tl.sum(g * similarities, 1)
    width = tl.arange(0, W)
    if not BY_COLUMN:
        tl.store(slopes + mine, slope, mask=mine < b)
    end = c if BY_COLUMN else b
    places = mine.to(tl.int64)[:, None] * D + width[None, :]
    tl.store(grads + places, grad * scale, mask=(mine < end)[:, None] & (width < D)[None, :])
