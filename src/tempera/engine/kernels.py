"""Triton kernels of a softmax over similarities, with all scores kept on the chip: for `fused`, and
imported by nothing else.

Each program multiplies one tile of anchors and candidates, in fp16 with sums in float32, and
reduces the logits or stores their gradients. No two programs write to the same place, so that the
same input has the same bits again. There are b c logits, so that every instruction on a logit
counts: logits are to the base 2, the base of a device's powers, and work on rows is left to torch.

Letters in shapes: b anchors (rows), c candidates (columns), K pairs of ids, W width; M rows, N
columns and C numbers of a tile, B tiles of columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

LEAST = tl.constexpr(-1e38)  # finite, so that a row without candidates has no inf - inf


@triton.jit
def _logits(
    anchors, candidates, b, c, scale, added, base, positive, kept, row_ids, column_ids,
    K: tl.constexpr, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, C: tl.constexpr, HIGH: tl.constexpr,
    ADDED: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """Return a tile's number among the tiles of the same rows, the rows, the columns, logits, and
    True at the positives, [M, N] each.

    A logit is less the row's `base`, near the row's largest logits, so that large logits keep their
    distances. The logit is -inf for an excluded candidate, and with OWN `kept` for a row's
    positive. Without ADDED nothing is added, and all tiles are whole.

    Programs go down HIGH tiles before going on to the right: the inputs stay in the cache
    meanwhile.
    """
    height, width = tl.cdiv(b, M), tl.cdiv(c, N)
    strip = tl.program_id(0) // (HIGH * width) * HIGH
    high, place = tl.minimum(height - strip, HIGH), tl.program_id(0) % (HIGH * width)
    block = place // high
    rows, columns = (strip + place % high) * M + tl.arange(0, M), block * N + tl.arange(0, N)
    numbers = tl.arange(0, C)
    left = anchors + tl.minimum(rows, b - 1).to(tl.int64)[:, None] * W + numbers[None, :]
    right = candidates + tl.minimum(columns, c - 1).to(tl.int64)[None, :] * W + numbers[:, None]
    x = tl.zeros([M, N], tl.float32)
    for _ in range(0, W, C):
        x = tl.dot(tl.load(left), tl.load(right), x)
        left += C
        right += C
    near = tl.load(base + rows, mask=rows < b, other=0.0)[:, None]
    if ADDED:
        x = (
            x * tl.load(scale)
            + tl.load(added + columns, mask=columns < c, other=float("-inf"))[None, :]
            - near
        )
    else:
        x = x * tl.load(scale) - near
    for k in tl.static_range(K):
        mine = tl.load(row_ids + k * b + rows, mask=rows < b, other=-1)
        theirs = tl.load(column_ids + k * c + columns, mask=columns < c, other=-2)
        x = tl.where(mine[:, None] == theirs[None, :], float("-inf"), x)
    own = columns[None, :] == tl.load(positive + rows, mask=rows < b, other=-1)[:, None]
    if OWN:
        x = tl.where(own, tl.load(kept + rows, mask=rows < b, other=0.0)[:, None], x)
    return block, rows, columns, x, own


@triton.jit
def log_sums(
    anchors, candidates, b, c, scale, added, base, positive, kept, row_ids, column_ids, sums,
    K: tl.constexpr, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, C: tl.constexpr, HIGH: tl.constexpr,
    ADDED: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """Store the logarithm of each row's sum of powers in each tile, [B, b]."""
    block, rows, _, x, _ = _logits(
        anchors, candidates, b, c, scale, added, base, positive, kept, row_ids, column_ids, K, W, M, N, C, HIGH,
        ADDED, OWN,
    )  # fmt: skip
    top = tl.maximum(tl.max(x, 1), LEAST)
    total = tl.sum(tl.exp2(x - top[:, None]), 1)
    tl.store(sums + block.to(tl.int64) * b + rows, top + tl.log2(total), mask=rows < b)


@triton.jit
def logit_gradients(
    anchors, candidates, b, c, scale, added, base, positive, kept, row_ids, column_ids, rest, high, low, stride, target,
    K: tl.constexpr, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, C: tl.constexpr, HIGH: tl.constexpr,
    ADDED: tl.constexpr, OWN: tl.constexpr, TARGET: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Store 2^(x - rest), at most -`target`, for each logit, and with TARGET `target` for a row's
    positive, in whole tiles.

    Gradients are stored in one or two parts of fp16.
    """
    _, rows, columns, x, own = _logits(
        anchors, candidates, b, c, scale, added, base, positive, kept, row_ids, column_ids, K, W, M, N, C, HIGH,
        ADDED, OWN,
    )  # fmt: skip
    g = tl.minimum(
        tl.exp2(x - tl.load(rest + rows, mask=rows < b, other=float("inf"))[:, None]), -target
    )
    if TARGET:
        g = tl.where(own, target, g)
    places = rows.to(tl.int64)[:, None] * stride + columns[None, :]
    upper = g.to(tl.float16)
    tl.store(high + places, upper)
    if PARTS == 2:
        tl.store(low + places, (g - upper.to(tl.float32)).to(tl.float16))
