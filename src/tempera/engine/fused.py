"""The loss stage by fused kernels, on CUDA devices: losses and gradients of `core.tiles`, by
products in fp16 on tensor cores.

A row's loss is log(1 + exp(r - l)) with l the logit of its target and r the log-sum-exp of all
others. Its gradient by a logit x is the probability of the others, times exp(x - r), or -1 for the
target. So a small loss and its gradient keep their precision. A first kernel sums, a second kernel
stores the gradients as numbers between -1 and 1, and two products take the gradients to anchors and
candidates. The FLOPs are 8 b c D, against 6 b c D of tiles, but no score is written.

A number in float32 is held as two numbers in fp16, with 22 of the 24 bits, and a product becomes
three products, so that sums are as exact as in float32 (Markidis et al. 2018, arXiv 1803.04014).
Where towers compute in half precision, a single number in fp16 will do.

Letters in shapes: b anchors, r anchors of a tile, c candidates, K pairs of ids, B tiles of columns,
n vectors, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from ..arithmetic.abilities import widest
from ..core.matches import Listed, Matches
from ..core.tiles import Gradients, Problem, Term, Vectors, tile_losses
from ..errors import ConfigError, one_line
from ..io.console import logger

Kernel = Literal["auto", "torch", "triton"]
Reach = Literal["no", "run", "pay"]  # of the kernels on a device
# Runs a kernel, by its name, number of programs, arguments and sizes.
Launch = Callable[[str, int, Sequence[Any], Mapping[str, Any]], None]
DEVICE = "cuda"
_LOG2_E = math.log2(math.e)
TORCH = "2.8"  # the first version that multiplies fp16 into float32
# Scores of a step; with fewer, a step gains less than 3 ms on an H200, and compiling a kernel takes
# seconds.
MANY = 1 << 26
_LEAST = -1e38  # finite, so that a row without candidates has no inf - inf
# The largest number of vectors in fp16: sums of products stay in float32's range, and small numbers
# above fp16's smallest.
_LARGEST = 2.0**10
# 1 / temperature above which the rounding of a cosine in fp16 would move a logit by more than 0.02
_STEEP = 50.0
_COLUMNS = 1 << 16  # whose gradients are made at once
_TIMES = 2.0**14  # gradients by logits, which are between -1 and 1


@dataclass(frozen=True)
class Shape:
    """Sizes of a kernel: rows, columns and numbers of a tile, tiles of a strip, warps of a program
    and loads ahead.

    This shape was the fastest of four on an H200 for widths of 64 and 384. Several programs run
    side by side: some multiply while others raise powers.
    """

    M: int = 64
    N: int = 128
    C: int = 64
    HIGH: int = 8
    num_warps: int = 4
    num_stages: int = 3


SHAPE = Shape()


def launch(name: str, programs: int, arguments: Sequence[Any], sizes: Mapping[str, Any]) -> None:
    """Run a kernel."""
    from . import kernels  # needs Triton

    getattr(kernels, name)[(programs,)](*arguments, **sizes)


@dataclass
class Fused:
    """A `core.tiles.tile_losses` by kernels; torch computes unsuited problems, and the log says why,
    once.

    Args:
        parts: numbers in fp16 for each number of a vector: 2 is as exact as float32, 1 is half
            precision, and becomes 2 at temperatures below 0.02.
        least: scores below which torch computes, without a line in the log.
        launch: runs the kernels; a plan counts the launches instead.
    """

    parts: int = 2
    least: int = 0
    launch: Launch = field(default=launch, compare=False)
    said: set[str] = field(default_factory=set)
    works: bool | None = field(default=None, compare=False)  # None before their first call

    @property
    def score_bytes(self) -> int:
        """The bytes of a score's gradient; the score itself is not stored."""
        return 2 * self.parts

    def __call__(
        self,
        problem: Problem,
        vectors: Vectors,
        scale: float,
        shares: Tensor | None,
        learns: bool = True,
    ) -> tuple[Tensor, Gradients | None]:
        """Return losses, [b], and the gradients of sum(shares * losses); no gradients where
        `shares` is None."""
        result = self._by_kernels(problem, vectors, scale, shares, learns)
        if result is None:
            return tile_losses(problem, vectors, scale, shares, learns)
        return result

    def _by_kernels(
        self, problem: Problem, vectors: Vectors, scale: float, shares: Tensor | None, learns: bool
    ) -> tuple[Tensor, Gradients | None] | None:
        """Return losses and gradients by the kernels; None if torch has to compute."""
        rows = problem.local.stop - problem.local.start
        scores = rows * max(map(len, vectors.values()))
        if scores < self.least or self.works is False:
            return None
        why = reason(problem, vectors)
        if why is not None:
            if not self.least and why not in self.said:
                logger.info(f"train.kernel=triton: the loss stage stays with torch, since {why}")
                self.said.add(why)
            return None
        parts = self.parts if scale <= _STEEP else 2
        try:
            result = _losses_by_kernels(problem, vectors, scale, shares, learns, parts, self.launch)
        except torch.OutOfMemoryError:
            if not self.least:
                raise
            why = "the fused kernels need more memory than is left"
        except Exception as error:  # Triton raises anything where it cannot compile
            if self.works:
                raise
            why = f"the fused kernels do not run here: {one_line(str(error))}"
            if not self.least:
                raise ConfigError(f"train.kernel=triton: {why}; use train.kernel=torch") from error
        else:
            self.works = True
            return result
        self.works = False
        logger.warning(f"{why}; torch computes the loss stage")
        return None


def reach(device: torch.device) -> Reach:
    """Return the reach of the kernels on a device: they run on CUDA, and pay, as measured, on
    NVIDIA's devices of compute capability 9 (H100 and H200)."""
    if device.type != "cuda":
        return "no"
    nvidia = torch.version.hip is None
    if nvidia and torch.cuda.get_device_capability(device)[0] == 9:
        return "pay"
    return "run"


def parts_of(mixed_precision: str) -> int:
    """Return the count of fp16 numbers for each number of a vector, by the precision of the
    towers."""
    return 2 if mixed_precision == "no" else 1


def reason(problem: Problem, vectors: Vectors) -> str | None:
    """Return the reason for which the kernels refuse a problem; None for a suitable problem.

    >>> from tempera import Batch, Side, mnr
    >>> batch = Batch(Side(torch.eye(2)), Side(torch.eye(2)))
    >>> reason(mnr().problem(batch), {"query": torch.eye(2)})
    'they run on cuda devices, and this is cpu'
    """
    some = next(iter(vectors.values()))
    if some.device.type == "meta":  # of a plan for a CUDA device
        return unsuited(problem, some)
    if some.device.type != DEVICE:
        return f"they run on {DEVICE} devices, and this is {some.device.type}"
    if find_spec("triton") is None:
        return "triton is not installed"
    if torch.__version__ < TORCH:
        return f"they need torch {TORCH}, and this is {torch.__version__}"
    return unsuited(problem, some)


def unsuited(problem: Problem, some: Tensor) -> str | None:
    """Return the reason for which the kernels refuse a problem on every device; None for a suitable
    problem.

    Args:
        some: vectors, [n, D].
    """
    if some.dtype != torch.float32:
        return f"they compute in float32, and the embeddings are {str(some.dtype).removeprefix('torch.')}"
    if any(group.taught for group in problem.groups):
        return "a teacher's distributions are learned"
    if problem.numerator != "one":
        return f"the numerator is {problem.numerator}"
    if problem.hardest is not None:
        return f"only the {problem.hardest} hardest negatives count"
    terms = [term for group in problem.groups for term in group.terms]
    if any(addition.pairwise for term in terms for addition in term.additions):
        return "a correction is a function of each similarity"
    if any(term.anchor_rows is not None for term in terms):
        return "rows share documents"
    if any(ids is None for term in terms for ids in _excluded_ids(term)):
        return "a mask is more than one id for each row and each candidate"
    return None


def _excluded_ids(term: Term) -> list[Any]:
    """Return the ids of each exclusion of a term, or None for an exclusion of another form."""
    ids: list[Any] = []
    for exclusion in term.exclusions:
        several = exclusion.several if isinstance(exclusion, Listed) else (exclusion,)
        ids += [each.ids if isinstance(each, Matches) else None for each in several]
    return ids


class _Halves:
    """Vectors in fp16, in one part or two, times a power of 2 so that the largest number fills the
    range.

    Numbers 10,000 times smaller than the largest number have fewer bits than in float32.
    """

    def __init__(self, vectors: Tensor, parts: int) -> None:
        n, self.width = vectors.shape
        largest = vectors.abs().amax() if n else vectors.new_ones(())
        times = torch.exp2((_LARGEST / largest.clamp(min=1e-30)).log2().floor())
        self.unit = times.reciprocal()
        # The parts, side by side.
        shape = n, parts * self.width
        self.whole = torch.empty(shape, dtype=torch.float16, device=vectors.device)
        scaled = vectors * times
        for part in self.parts:
            part.copy_(scaled)
            scaled -= part

    def __getitem__(self, rows: slice) -> _Halves:
        """Return some of the vectors."""
        some = object.__new__(_Halves)
        some.width = self.width
        some.unit = self.unit
        some.whole = self.whole[rows]
        return some

    @property
    def parts(self) -> list[Tensor]:
        """The parts, [n, D] each."""
        starts = range(0, self.whole.shape[1], max(1, self.width))
        return [self.whole[:, start : start + self.width] for start in starts]

    @cached_property
    def anchors(self) -> Tensor:
        """The left factor of products with `candidates`, [n, W]: with two parts, high, low and high
        again."""
        parts = self.parts
        if len(parts) == 1:
            return self._side_by_side(parts)
        high, low = parts
        return self._side_by_side([high, low, high])

    @cached_property
    def candidates(self) -> Tensor:
        """The right factor of products with `anchors`, [n, W]: with two parts, high, high and
        low."""
        parts = self.parts
        if len(parts) == 1:
            return self._side_by_side(parts)
        high, low = parts
        return self._side_by_side([high, high, low])

    def _side_by_side(self, parts: list[Tensor]) -> Tensor:
        """Return parts in one matrix, padded to whole tiles, [n, W]."""
        wide = torch.cat(parts, 1)
        return pad(wide, (0, -wide.shape[1] % SHAPE.C))


def _product(x: list[Tensor], vectors: _Halves) -> Tensor:
    """Return the product of gradients in parts, [m, n] each, and vectors, [n, D], in float32, [m,
    D]."""
    width = vectors.width
    product = _times(x[0], vectors.whole)  # of one part; of two parts, high high and high low
    if len(x) == 2:
        low_high = _times(x[1], vectors.parts[0])
        product[:, :width] += low_high
        product[:, :width] += product[:, width:]
    return product[:, :width] * (vectors.unit / _TIMES)


def _times(x: Tensor, y: Tensor) -> Tensor:
    """Return the product of matrices of fp16, with sums in float32."""
    if x.device.type == "cpu":
        return x.float() @ y.float()
    return torch.mm(x, y, out_dtype=torch.float32)


class _Bound:
    """A block of scores with everything for a kernel; logits are to the base 2, less the base of
    the row."""

    def __init__(
        self,
        term: Term,
        anchors: Tensor,
        candidates: Tensor,
        halves: tuple[_Halves, _Halves],
        scale: float,
        base: Tensor,
        is_target: bool,
        launch: Launch,
    ) -> None:
        self.term = term
        self.anchors = anchors
        self.base = base
        self.c = len(candidates)
        self.is_target = is_target
        self.launch = launch
        self.left, self.right = halves
        self.scale = (scale * _LOG2_E) * (self.left.unit * self.right.unit)
        added = [
            each.candidate.to(anchors) for each in term.additions if each.candidate is not None
        ]
        self.is_added = bool(added) or self.c % SHAPE.N > 0
        self.added = sum(added, anchors.new_zeros(self.c)) * _LOG2_E
        self.positive = torch.full((len(anchors),), -1, dtype=torch.int32, device=anchors.device)
        self.kept = torch.full_like(base, -torch.inf)  # the target's logit is in no sum
        if term.positive is not None:
            self.positive = term.positive.to(self.positive)
            if not is_target:
                self.kept = _positive_logits(term, anchors, candidates, scale) * _LOG2_E - base
        ids = _excluded_ids(term)
        row_ids = torch.full((len(ids), len(anchors)), -1)
        column_ids = torch.full((len(ids), self.c), -2)
        for i, (own, matched, same) in enumerate(ids):
            row_ids[i] = own
            column_ids[i, matched] = same
        self.row_ids = row_ids.to(self.positive)
        self.column_ids = column_ids.to(self.positive)

    def log_sums(self, tile: slice) -> Tensor:
        """Return the logarithms of the sums of a tile's powers, without the targets, [B, r]."""
        sums = self.added.new_empty(-(-self.c // SHAPE.N), tile.stop - tile.start)
        self._launch("log_sums", tile, [sums], {"OWN": self.term.positive is not None})
        return sums

    def logit_gradients(self, tile: slice, rest: Tensor) -> list[Tensor]:
        """Return 2^(x - rest), and -1 for the target, times `_TIMES`, in parts, [r, c] each."""
        parts = len(self.left.parts)
        height = len(rest) + -len(rest) % SHAPE.M  # whole tiles
        width = self.c + -self.c % SHAPE.N
        x = torch.empty(parts, height, width, dtype=torch.float16, device=rest.device).unbind()
        outputs = [rest - math.log2(_TIMES), x[0], x[-1], width, -_TIMES]
        own = self.term.positive is not None and not self.is_target
        sizes = {"OWN": own, "TARGET": self.is_target, "PARTS": parts}
        self._launch("logit_gradients", tile, outputs, sizes)
        return [part[: len(rest), : self.c] for part in x]

    def _launch(
        self, name: str, tile: slice, outputs: Sequence[Any], sizes: Mapping[str, Any]
    ) -> None:
        """Run a kernel on a tile; `outputs` are its last arguments."""
        anchors = self.left.anchors[tile]
        programs = -(-len(anchors) // SHAPE.M) * -(-self.c // SHAPE.N)
        arguments = [
            anchors,
            self.right.candidates,
            len(anchors),
            self.c,
            self.scale,
            self.added,
            self.base[tile],
            self.positive[tile],
            self.kept[tile],
            self.row_ids[:, tile].contiguous(),
            self.column_ids,
            *outputs,
        ]
        all_sizes = {
            **sizes,
            "K": len(self.row_ids),
            "W": anchors.shape[1],
            "ADDED": self.is_added,
            **vars(SHAPE),
        }
        self.launch(name, programs, arguments, all_sizes)


def _positive_logits(term: Term, anchors: Tensor, candidates: Tensor, scale: float) -> Tensor:
    """Return the logits of a term's positives, [b]."""
    positive = term.positive
    assert positive is not None
    own: Tensor = scale * torch.linalg.vecdot(anchors, candidates[positive])
    for addition in term.additions:
        if addition.candidate is not None:
            own += addition.candidate[positive].to(own)
        if addition.positive is not None:
            rows = torch.arange(len(own), device=positive.device)
            own += addition.positive(rows, positive).to(own)
    return own


def _losses_by_kernels(
    problem: Problem,
    vectors: Vectors,
    scale: float,
    shares: Tensor | None,
    learns: bool,
    parts: int,
    launch: Launch,
) -> tuple[Tensor, Gradients | None]:
    """Return losses, [b], and gradients as `core.tiles.tile_losses` does."""
    some = next(iter(vectors.values()))
    local = problem.local
    halves = {role: _Halves(side, parts) for role, side in vectors.items()}
    mine = {role: (vectors[role][local], half[local]) for role, half in halves.items()}
    grads = {}
    if shares is not None:
        grads = {role: torch.zeros_like(side) for role, side in vectors.items()}
    rows = local.stop - local.start
    losses = some.new_zeros(rows)
    slope = torch.zeros((), dtype=widest(some.device), device=some.device)
    for group in problem.groups:
        target = next(term for term in group.terms if term.positive is not None)
        anchors = mine[target.anchor][0]
        base = _positive_logits(target, anchors, vectors[target.candidate], scale) * _LOG2_E
        blocks = []
        for term in group.terms:
            anchors, left = mine[term.anchor]
            sides = left, halves[term.candidate]
            candidates = vectors[term.candidate]
            is_target = term is target
            blocks.append(_Bound(term, anchors, candidates, sides, scale, base, is_target, launch))
        height = max(1, problem.tile_elements // sum(block.c for block in blocks))
        height = height - height % SHAPE.M or height
        for start in range(0, rows, height):
            tile = slice(start, min(start + height, rows))
            rest = _log_sum(torch.cat([block.log_sums(tile) for block in blocks]))
            above = rest / _LOG2_E  # the target's logit
            losses[tile] += group.share * softplus(above)
            if shares is None:
                continue
            factor = (shares[tile].to(some) * group.share * torch.sigmoid(above))[:, None]  # [r, 1]
            for block in blocks:
                of_candidates = grads[block.term.candidate]
                of_anchors = _add_gradients(
                    block, tile, rest.clamp(min=_LEAST), factor, scale, of_candidates
                )
                grads[block.term.anchor][local][tile].add_(of_anchors, alpha=scale)
                if learns:
                    slope += torch.vdot(of_anchors.flatten(), block.anchors[tile].flatten())
    if shares is None:
        return losses, None
    return losses, Gradients(grads, slope)


def _add_gradients(
    block: _Bound, tile: slice, rest: Tensor, factor: Tensor, scale: float, candidates: Tensor
) -> Tensor:
    """Add the gradients of a tile's candidates to `candidates`, [c, D]; return the gradients of the
    anchors, over `scale`, [r, D].

    The gradients of the logits take as much memory as the tile's scores, and are freed on return.
    """
    x = block.logit_gradients(tile, rest)
    scaled_anchors = _Halves(block.anchors[tile] * (factor * scale), len(x))
    for start in range(0, block.c, _COLUMNS):
        columns = slice(start, start + _COLUMNS)
        candidates[columns] += _product([part[:, columns].T for part in x], scaled_anchors)
    return _product(x, block.right) * factor


def _log_sum(x: Tensor) -> Tensor:
    """Return the logarithm of sums of powers from the logarithms of the powers, to the base 2, [B,
    r] -> [r]."""
    top = x.amax(0).clamp(min=_LEAST)
    return top + (x - top).exp2_().sum(0).log2_()
