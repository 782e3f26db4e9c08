"""The loss stage by fused kernels, on CUDA devices: losses and gradients of `core.tiles`, by
products in fp16 on tensor cores.

A row's loss is log(1 + exp(r - l)) with l the logit of its target and r the log-sum-exp of all
others. Its gradient by a logit x is the probability of the others, times exp(x - r), or -1 for the
target. So a small loss and its gradient keep their precision. One kernel sums, one stores these
numbers between -1 and 1, and two products take them to anchors and candidates. That is 8 b c D
FLOPs, of which tiles take 6, but no score is written.

A number in float32 is held as two in fp16, with 22 of its 24 bits, and a product of two such is
three products, so that sums are as exact as those of float32 (Markidis et al. 2018, arXiv
1803.04014). Where towers compute in half precision, one in fp16 will do.

Letters in shapes: b anchors, r anchors of a tile, c candidates, K pairs of ids, B tiles of columns,
    n vectors, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
Launch = Callable[
    [str, int, Sequence[Any], Mapping[str, Any]], None
]  # name, programs, arguments, sizes
DEVICE = "cuda"
_LOG2_E = math.log2(math.e)
TORCH = "2.8"  # which multiplies fp16 into float32
MANY = (
    1 << 26
)  # scores: with fewer a step gains less than 3 ms on an H200, and a kernel is compiled in seconds
_LEAST = -1e38  # finite, so that a row without candidates has no inf - inf
_LARGEST = (
    2.0**10
)  # of vectors in fp16: sums of products stay in float32's range, and small numbers above fp16's smallest
# 1 / temperature above which the rounding of a cosine in fp16 would move a logit by more than 0.02
_STEEP = 50.0
_COLUMNS = 1 << 16  # whose gradients are made at once
_TIMES = 2.0**14  # gradients by logits, which are between -1 and 1


@dataclass(frozen=True)
class Shape:
    """Sizes of a kernel: rows, columns and numbers of a tile, tiles of a strip, warps of a program
    and loads ahead.

    Of four shapes this one was the fastest on an H200 for widths of 64 and 384. Several of its
    programs run side by side, and one multiplies while another raises powers.
    """

    M: int = 64
    N: int = 128
    C: int = 64
    HIGH: int = 8
    num_warps: int = 4
    num_stages: int = 3


SHAPE = Shape()


def launch(name: str, programs: int, arguments: Sequence[Any], sizes: Mapping[str, Any]) -> None:
    """Run one of the kernels."""
    from . import kernels  # where Triton is not installed nothing comes here

    getattr(kernels, name)[(programs,)](*arguments, **sizes)


@dataclass
class Fused:
    """A `core.tiles.tile_losses` by kernels. A problem that they do not take goes to torch, and the
    log says why, once.

    Args:
        parts: numbers in fp16 that a number of a vector is multiplied as: 2 is as exact as float32,
            1 is half precision, which becomes 2 at temperatures below 0.02.
        least: scores below which torch computes, without a line in the log.
        launch: runs the kernels; a plan counts them.
    """

    parts: int = 2
    least: int = 0
    launch: Launch = field(default=launch, compare=False)
    said: set[str] = field(default_factory=set)
    works: bool | None = field(default=None, compare=False)  # None before their first call

    @property
    def score_bytes(self) -> int:
        """Return the bytes of a score's gradient, which alone is stored of it."""
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
        by_kernels = self._by_kernels(problem, vectors, scale, shares, learns)
        if by_kernels is None:
            return tile_losses(problem, vectors, scale, shares, learns)
        return by_kernels

    def _by_kernels(
        self, problem: Problem, vectors: Vectors, scale: float, shares: Tensor | None, learns: bool
    ) -> tuple[Tensor, Gradients | None] | None:
        """Return what the kernels compute; None if torch has to."""
        scores = (problem.local.stop - problem.local.start) * max(map(len, vectors.values()))
        if scores < self.least or self.works is False:
            return None
        if (why := reason(problem, vectors)) is not None:
            if not self.least and why not in self.said:
                logger.info(f"train.kernel=triton: the loss stage stays with torch, since {why}")
                self.said.add(why)
            return None
        try:
            parts = self.parts if scale <= _STEEP else 2
            result = _losses_by_kernels(problem, vectors, scale, shares, learns, parts, self.launch)
        except torch.OutOfMemoryError:
            if not self.least:
                raise
            why = "the fused kernels need more memory than is left"
        except (
            Exception
        ) as error:  # whatever Triton raises where it cannot compile, as without a C compiler
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
    """Return whether the kernels run on a device, and pay: as measured, on NVIDIA's of compute
    capability 9 (H100 and H200)."""
    if device.type != "cuda":
        return "no"
    return (
        "pay"
        if torch.version.hip is None and torch.cuda.get_device_capability(device)[0] == 9
        else "run"
    )


def parts_of(mixed_precision: str) -> int:
    """Return the numbers in fp16 that a number of a vector is multiplied as, by the precision of
    the towers."""
    return 2 if mixed_precision == "no" else 1


def reason(problem: Problem, vectors: Vectors) -> str | None:
    """Return why the kernels do not take a problem, or None if they do.

    >>> from tempera import Batch, Side, mnr
    >>> batch = Batch(Side(torch.eye(2)), Side(torch.eye(2)))
    >>> reason(mnr().problem(batch), {"query": torch.eye(2)})
    'they run on cuda devices, and this is cpu'
    """
    some = next(iter(vectors.values()))
    if some.device.type == "meta":  # of a plan for a device that has what they need
        return unsuited(problem, some)
    if some.device.type != DEVICE:
        return f"they run on {DEVICE} devices, and this is {some.device.type}"
    if find_spec("triton") is None:
        return "triton is not installed"
    if torch.__version__ < TORCH:
        return f"they need torch {TORCH}, and this is {torch.__version__}"
    return unsuited(problem, some)


def unsuited(problem: Problem, some: Tensor) -> str | None:
    """Return why the kernels take a problem on no device, or None if they take it.

    Args:
        some: vectors, [n, D].
    """
    return next(_causes(problem, some), None)


def _causes(problem: Problem, some: Tensor) -> Iterator[str]:
    terms = [term for group in problem.groups for term in group.terms]
    if some.dtype != torch.float32:
        yield f"they compute in float32, and the embeddings are {str(some.dtype).removeprefix('torch.')}"
    if any(group.taught for group in problem.groups):
        yield "a teacher's distributions are learned"
    if problem.numerator != "one":
        yield f"the numerator is {problem.numerator}"
    if problem.hardest is not None:
        yield f"only the {problem.hardest} hardest negatives count"
    if any(addition.pairwise for term in terms for addition in term.additions):
        yield "a correction is a function of each similarity"
    if any(term.anchor_rows is not None for term in terms):
        yield "rows share documents"
    if any(each is None or each.ids is None for term in terms for each in _matches(term)):
        yield "a mask is more than one id for each row and each candidate"


def _matches(term: Term) -> Iterator[Matches | None]:
    """Yield the matches that a term leaves out, and None for whatever else it does."""
    for exclusion in term.exclusions:
        several = exclusion.several if isinstance(exclusion, Listed) else (exclusion,)
        yield from (each if isinstance(each, Matches) else None for each in several)


class _Halves:
    """Vectors in fp16, in one part or two, times a power of 2 by which the largest number fills the
    range of both.

    Numbers that are 10,000 times smaller than the largest one have fewer bits than in float32.
    """

    def __init__(self, vectors: Tensor, parts: int) -> None:
        n, self.width = vectors.shape
        largest = vectors.abs().amax() if n else vectors.new_ones(())
        times = torch.exp2((_LARGEST / largest.clamp(min=1e-30)).log2().floor())
        self.unit = times.reciprocal()  # of what they are
        self.whole = torch.empty(
            n, parts * self.width, dtype=torch.float16, device=vectors.device
        )  # the parts, side by side
        scaled = vectors * times
        for part in self.parts:
            part.copy_(scaled)
            scaled -= part

    def __getitem__(self, rows: slice) -> _Halves:
        """Return some of the vectors."""
        some = object.__new__(_Halves)
        some.width, some.unit, some.whole = self.width, self.unit, self.whole[rows]
        return some

    @property
    def parts(self) -> list[Tensor]:
        """Return the parts, [n, D] each."""
        return [
            self.whole[:, i : i + self.width]
            for i in range(0, self.whole.shape[1], max(1, self.width))
        ]

    @cached_property
    def anchors(self) -> Tensor:
        """Return what is multiplied with `candidates`, [n, W]: of two parts, high, low and high
        again."""
        return self._wide(self.parts if len(self.parts) == 1 else [*self.parts, self.parts[0]])

    @cached_property
    def candidates(self) -> Tensor:
        """Return the parts that belong to those of `anchors`, [n, W]: of two, high, high and
        low."""
        return self._wide(self.parts if len(self.parts) == 1 else [self.parts[0], *self.parts])

    def _wide(self, parts: list[Tensor]) -> Tensor:
        wide = torch.cat(parts, 1)
        return pad(wide, (0, -wide.shape[1] % SHAPE.C))


def _product(x: list[Tensor], vectors: _Halves) -> Tensor:
    """Return the product of gradients in parts, [m, n] each, and vectors, [n, D], in float32, [m,
    D]."""
    high, *low = (
        _times(part, vectors.whole if i == 0 else vectors.parts[0]) for i, part in enumerate(x)
    )
    width = vectors.width
    for more in (*low, high[:, width:]) if low else ():
        high[:, :width] += more
    return high[:, :width] * (vectors.unit / _TIMES)


def _times(x: Tensor, y: Tensor) -> Tensor:
    """Return the product of matrices of fp16, whose sums are float32."""
    return (
        x.float() @ y.float() if x.device.type == "cpu" else torch.mm(x, y, out_dtype=torch.float32)
    )


class _Bound:
    """One block of scores with everything that a kernel reads; logits are to the base 2, less their
    row's base."""

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
        self.term, self.anchors, self.base, self.c = term, anchors, base, len(candidates)
        self.is_target, self.launch = is_target, launch
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
                self.kept = _level(term, anchors, candidates, scale) * _LOG2_E - base
        ids = [each.ids for each in _matches(term) if each is not None and each.ids is not None]
        rows, sides = torch.full((len(ids), len(anchors)), -1), torch.full((len(ids), self.c), -2)
        for row, side, (own, matched, same) in zip(rows, sides, ids, strict=True):
            row[:], side[matched] = own, same
        self.row_ids, self.column_ids = rows.to(self.positive), sides.to(self.positive)

    def log_sums(self, tile: slice) -> Tensor:
        """Return the logarithms of the sums of a tile's powers but the targets', [B, r]."""
        sums = self.added.new_empty(-(-self.c // SHAPE.N), tile.stop - tile.start)
        self._launch("log_sums", tile, sums, OWN=self.term.positive is not None)
        return sums

    def logit_gradients(self, tile: slice, rest: Tensor) -> list[Tensor]:
        """Return 2^(x - rest), and -1 for the target, in parts, [r, c] each; `_TIMES` as much."""
        (high, wide), parts = (
            (n + -n % of for n, of in ((len(rest), SHAPE.M), (self.c, SHAPE.N))),
            len(self.left.parts),
        )
        x = torch.empty(parts, high, wide, dtype=torch.float16, device=rest.device).unbind()
        own = self.term.positive is not None and not self.is_target
        outputs = (rest - math.log2(_TIMES), x[0], x[-1], wide, -_TIMES)
        self._launch("logit_gradients", tile, *outputs, OWN=own, TARGET=self.is_target, PARTS=parts)
        return [part[: len(rest), : self.c] for part in x]

    def _launch(self, name: str, tile: slice, *outputs: Any, **sizes: Any) -> None:
        anchors, candidates = self.left.anchors[tile], self.right.candidates
        programs = -(-len(anchors) // SHAPE.M) * -(-self.c // SHAPE.N)
        sizes |= {
            "K": len(self.row_ids),
            "W": anchors.shape[1],
            "ADDED": self.is_added,
            **vars(SHAPE),
        }
        rows = (
            self.base[tile],
            self.positive[tile],
            self.kept[tile],
            self.row_ids[:, tile].contiguous(),
        )
        read = (len(anchors), self.c, self.scale, self.added, *rows, self.column_ids)
        self.launch(name, programs, (anchors, candidates, *read, *outputs), sizes)


def _level(term: Term, anchors: Tensor, candidates: Tensor, scale: float) -> Tensor:
    """Return the logits of a term's positives, [b]."""
    positive = term.positive
    assert positive is not None
    own: Tensor = scale * torch.linalg.vecdot(anchors, candidates[positive])
    for addition in term.additions:
        if addition.candidate is not None:
            own += addition.candidate[positive].to(own)
        if addition.positive is not None:
            own += addition.positive(torch.arange(len(own), device=positive.device), positive).to(
                own
            )
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
    some, local = next(iter(vectors.values())), problem.local
    halves = {role: _Halves(side, parts) for role, side in vectors.items()}
    mine = {role: (vectors[role][local], half[local]) for role, half in halves.items()}
    grads = (
        {role: torch.zeros_like(side) for role, side in vectors.items()}
        if shares is not None
        else {}
    )
    rows = local.stop - local.start
    losses = some.new_zeros(rows)
    slope = torch.zeros((), dtype=widest(some.device), device=some.device)
    for group in problem.groups:
        target = next(term for term in group.terms if term.positive is not None)
        base = _level(target, mine[target.anchor][0], vectors[target.candidate], scale) * _LOG2_E
        blocks = []
        for term in group.terms:
            anchors, left = mine[term.anchor]
            sides = left, halves[term.candidate]
            blocks.append(
                _Bound(
                    term,
                    anchors,
                    vectors[term.candidate],
                    sides,
                    scale,
                    base,
                    term is target,
                    launch,
                )
            )
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
                towards = _add_gradients(
                    block, tile, rest.clamp(min=_LEAST), factor, scale, grads[block.term.candidate]
                )
                grads[block.term.anchor][local][tile].add_(towards, alpha=scale)
                if learns:
                    slope += torch.vdot(towards.flatten(), block.anchors[tile].flatten())
    return losses, None if shares is None else Gradients(grads, slope)


def _add_gradients(
    block: _Bound, tile: slice, rest: Tensor, factor: Tensor, scale: float, candidates: Tensor
) -> Tensor:
    """Add a tile's gradients by its candidates to those of all, [c, D]; return those by its
    anchors, over `scale`, [r, D].

    What is between them is as large as the tile's scores, and gone before the next is made.
    """
    x = block.logit_gradients(tile, rest)
    inward = _Halves(block.anchors[tile] * (factor * scale), len(x))
    for columns in (slice(i, i + _COLUMNS) for i in range(0, block.c, _COLUMNS)):
        candidates[columns] += _product([part[:, columns].T for part in x], inward)
    return _product(x, block.right) * factor


def _log_sum(x: Tensor) -> Tensor:
    """Return the logarithm to the base 2 of the sums of powers whose logarithms are given, [B, r]
    -> [r]."""
    top = x.amax(0).clamp(min=_LEAST)
    return top + (x - top).exp2_().sum(0).log2_()
