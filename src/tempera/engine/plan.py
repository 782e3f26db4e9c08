"""Division of rows into micro-batches, and the choice of micro-batches with kept graphs.

Large batches lose most by padding, not by recomputation: texts of natural lengths, cut in order,
are padded to 2 to 4 times their tokens. Sorted by length, texts are hardly padded, and neither loss
nor gradient depend on the order.

Letters in shapes: n rows of a tower, r rows of a micro-batch, m distinct lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..arithmetic.abilities import sent
from ..errors import ConfigError, article
from ..parallel.distributed import CPU
from ..parallel.shards import part

# Multiplications that a GPU computes while a linear layer's kernels are launched, in half precision (True)
# and in float32. The figure of half precision is measured on an H100 with layers of MiniLM's size
# (bench/results/gpu_micro_batches.json), for which it is 67,800 tokens; for BERT's, 16,900.
_OF_A_LAUNCH = {True: 2e10, False: 5e9}
# Highest number of tokens, padding counted, of the short rows together that measure a footprint.
PROBE_TOKENS = 512


class FeaturesLike(Protocol):
    """Rows before the towers, for the step to measure, choose and concatenate."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> Self: ...

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row, [n]."""

    def to(self, device: torch.device) -> Any:
        """Return the rows as the tower takes them, on a device."""

    @classmethod
    def cat(cls, parts: Sequence[Any]) -> Self:
        """Return the rows of several parts, in order."""


@dataclass(frozen=True)
class PlainFeatures:
    """Features in a tensor, [n, ...], for towers of tensors; every row costs the same.

    >>> rows = PlainFeatures(torch.tensor([[1.0], [2.0]]))
    >>> rows[[1]].to(torch.device("cpu")), rows.lengths.tolist()
    (tensor([[2.]]), [1, 1])
    """

    tensor: Tensor

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, rows: Any) -> PlainFeatures:
        return PlainFeatures(self.tensor[rows])

    @property
    def lengths(self) -> Tensor:
        """1 for each row, [n]."""
        return torch.ones(len(self), dtype=torch.int64)

    def to(self, device: torch.device) -> Any:
        """Return the tensor, on a device."""
        return sent(self.tensor, device)

    @classmethod
    def cat(cls, parts: Sequence[PlainFeatures]) -> PlainFeatures:
        """Return the rows of several parts, in order."""
        return cls(torch.cat([part.tensor for part in parts]))


def embeddings_of(tower: torch.nn.Module, features: Any, rows: int) -> Tensor:
    """Return a tower's embeddings of the features of `rows` rows, [n, D].

    Raises:
        ConfigError: the tower does not return one vector of floating point numbers for each row.
    """
    made = tower(features)
    if isinstance(made, Tensor):
        if made.dim() == 2 and len(made) == rows and made.is_floating_point():
            return made
        what = f"{str(made.dtype).removeprefix('torch.')} of shape {list(made.shape)}"
    else:
        what = article(type(made).__name__)
    raise ConfigError(
        f"the tower {type(tower).__name__} makes {what} of {rows:,} rows: it has to return a tensor of floating point numbers, "
        "[rows, dimensions]"
    )


def start_tokens(device: torch.device, tower: torch.nn.Module, half: bool = False) -> int:
    """Return the cost of starting a micro-batch, in tokens: a CPU reads the weights again, a GPU
    launches hundreds of kernels.

    In half precision a CPU also casts weights and gradients, while a token costs less. On a GPU,
    the fewer weights a layer has, the more tokens fit the time of the launches.

    >>> start_tokens(torch.device("cuda"), torch.nn.Linear(500, 500), half=True)
    80000
    """
    if device.type == "cpu":
        return 192 if half else 32
    weights = [
        layer.weight.numel() for layer in tower.modules() if isinstance(layer, torch.nn.Linear)
    ]
    if not weights:
        return 16_384
    return int(_OF_A_LAUNCH[half] * len(weights) / sum(weights))


def pack(lengths: Tensor, budget: int, padded: bool, start_tokens: int = 32) -> list[Tensor]:
    """Return the rows of each micro-batch, of at most `budget` tokens or of one row, at the lowest
    cost.

    A padded micro-batch of r rows, the longest of width w, costs r w tokens, and `start_tokens`
    once. Among all ways to cut the rows sorted by length, dynamic programming over the distinct
    lengths finds the cheapest. Without padding a micro-batch costs its tokens, and rows stay in
    order.

    Args:
        lengths: tokens of each row, [n].
        budget: most tokens of a micro-batch, padding counted.
        padded: True if the tower pads its rows to the longest row.

    >>> [rows.tolist() for rows in pack(torch.tensor([3, 9, 3, 8, 1]), budget=18, padded=True, start_tokens=4)]
    [[4, 0, 2], [3, 1]]
    """
    if not len(lengths):
        return []
    widths = lengths.cpu().numpy().clip(1)
    if not padded:
        cuts = _cuts_in_order(widths, budget)
        return [torch.from_numpy(rows) for rows in np.split(np.arange(len(widths)), cuts)]
    order = np.argsort(widths, kind="stable")
    distinct, counts = np.unique(widths, return_counts=True)
    packed = []
    first = 0  # of the distinct lengths that are still to be packed
    for last in _cheapest_cuts(distinct, counts, budget, start_tokens):
        rows = int(counts[first:last].sum())
        height = max(1, budget // int(distinct[last - 1]))
        parts = np.array_split(order[:rows], -(-rows // height))
        packed += [torch.from_numpy(part.copy()) for part in parts]
        order = order[rows:]
        first = last
    return packed


def _cuts_in_order(widths: NDArray[np.int64], budget: int) -> list[int]:
    """Return the positions at which to cut rows, so that no part with several rows holds more than
    `budget` tokens."""
    cuts: list[int] = []
    ends = widths.cumsum()
    begin = 0
    passed = 0  # tokens before `begin`
    while True:
        fitting = int(np.searchsorted(ends, passed + budget, side="right"))
        begin = max(begin + 1, fitting)
        if begin >= len(widths):
            return cuts
        cuts.append(begin)
        passed = int(ends[begin - 1])


def _cheapest_cuts(
    distinct: NDArray[np.int64], counts: NDArray[np.int64], budget: int, start_tokens: int
) -> list[int]:
    """Return the ends of runs of distinct lengths, [<= m]; each run counts as padded to the run's
    largest length."""
    passed = np.concatenate([[0], counts.cumsum()])
    best = np.zeros(len(distinct) + 1)  # lowest cost of the first lengths
    begin = np.zeros(len(distinct) + 1, np.int64)  # of the last run at this cost
    for end, width in enumerate(distinct, 1):
        rows = passed[end] - passed[:end]  # of a run from each possible beginning
        cost = best[:end] + rows * width + start_tokens * -(-rows // max(1, budget // width))
        begin[end] = cost.argmin()
        best[end] = cost[begin[end]]
    ends = [len(distinct)]
    while begin[ends[-1]]:
        ends.append(int(begin[ends[-1]]))
    return ends[::-1]


@dataclass(frozen=True)
class Footprint:
    """The size of a tower's graph in bytes: linear r w + square r w^2, for r rows of width w; the
    square is the part of attention.

    Args:
        drops: False if the tower drew no dropout and did not attend when `Cache` measured it: its
            micro-batches are then embedded without the context of `dropout_on`.

    >>> Footprint(100.0, 0.5).bytes(rows=2, width=10)
    2100.0
    """

    linear: float
    square: float
    drops: bool = True

    @classmethod
    def through(cls, measured: Sequence[tuple[int, float, int]]) -> Footprint:
        """Return the non-negative footprint through one measurement (rows, width, bytes), or
        through two, the narrower first."""
        (r1, w1, b1), (r2, w2, b2) = measured[0], measured[-1]
        if w1 == w2:
            return cls(b2 / (r2 * w2), 0.0)
        square = max(0.0, (b2 / (r2 * w2) - b1 / (r1 * w1)) / (w2 - w1))
        return cls(max(0.0, b2 / (r2 * w2) - square * w2), square)

    def bytes(self, rows: int, width: float) -> float:
        """Return the bytes of one micro-batch; without padding, `width` is the mean length."""
        return self.linear * rows * width + self.square * rows * width * width

    def tokens(self, limit: float, width: float) -> int:
        """Return the number of tokens, in rows of a width, whose graph takes `limit` bytes."""
        return max(1, int(limit / max(self.linear + self.square * width, 1e-9)))


def keep(sizes: Sequence[float], tokens: Sequence[int], memory: float) -> list[bool]:
    """Return True for each micro-batch that keeps its graph: chosen by most tokens per byte, as
    long as the graph fits into what is left of `memory` bytes.

    >>> keep([40.0, 10.0, 50.0], [4, 2, 5], memory=60.0)
    [True, True, False]
    """
    kept = [False] * len(sizes)
    left = memory
    for i in sorted(range(len(sizes)), key=lambda i: sizes[i] / tokens[i]):
        if sizes[i] <= left:
            kept[i] = True
            left -= sizes[i]
    return kept


def probe_rows(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows that `footprint` measures: short rows of at most 512 padded tokens together,
    and the longest row.

    >>> [rows.tolist() for rows in probe_rows(torch.tensor([200, 3, 300, 100]))]
    [[1, 3], [2]]
    """
    order = lengths.argsort(stable=True)
    widths = lengths[order].clamp(min=1)
    short = order[: max(1, PROBE_TOKENS // int(widths[len(order) // 4]))]
    fitting = widths[: len(short)] * torch.arange(1, len(short) + 1) <= PROBE_TOKENS
    return short[: max(1, int(fitting.sum()))], order[-1:]


def footprint(
    tower: torch.nn.Module, probes: Sequence[FeaturesLike], padded: bool, device: torch.device = CPU
) -> Footprint:
    """Measure the footprint of a tower on probes of its own data, on the host: short rows and long
    rows.

    The probes' graphs are not kept, so measuring takes the memory of embedding a probe without
    gradient. The caller sets `drops`.
    """
    moved = [probe.to(device) for probe in probes]
    measured = []
    with torch.enable_grad():
        # A first graph, which may make storages that later graphs share, as weights in another
        # precision. [:] copies the rows: their own storage is not shared.
        shared = set(_saved(tower, moved[0][:], len(probes[0])))
        for tensor in [*tower.parameters(), *tower.buffers()]:
            shared.add(_storage(part(tensor)))
        for features, probe in zip(moved, probes, strict=True):
            saved = _saved(tower, features, len(probe))
            size = sum(number for storage, number in saved.items() if storage not in shared)
            lengths = probe.lengths
            width = max(1.0, float(lengths.max() if padded else lengths.double().mean()))
            measured.append((len(probe), width, size))
    return Footprint.through(measured)


def _saved(
    tower: torch.nn.Module, features: Any, rows: int, differentiates: bool = False
) -> dict[StorageWeakRef, int]:
    """Return the bytes of every storage kept by the graph of `tower(features)` for the backward
    pass, and of the result.

    A pack hook that returned the tensor would make a cycle that is never freed, so the hook drops
    the tensor. Only a tower with a backward pass within the forward pass, as for adversarial noise,
    needs the tensors.
    """
    saved: dict[StorageWeakRef, int] = {}

    def note(tensor: Tensor) -> Tensor | None:
        saved[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor.detach() if differentiates else None

    try:
        with torch.autograd.graph.saved_tensors_hooks(note, _unpacked):
            note(embeddings_of(tower, features, rows))
    except _LetGoError:
        return _saved(tower, features, rows, differentiates=True)
    return saved


class _LetGoError(Exception):
    """A needed tensor has not been kept."""


def _unpacked(tensor: Any) -> Any:
    if tensor is None:
        raise _LetGoError
    return tensor


def _storage(tensor: Tensor) -> StorageWeakRef:
    """Return the identity of a tensor's storage, without a hold on the memory."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
