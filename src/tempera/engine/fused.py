"""The loss stage by fused kernels, on CUDA devices: losses and gradients without a score in memory, equal to those of `core.tiles`.

A row's loss is log(1 + exp(r - l)) with l the logit of its target and r the log-sum-exp of all others, so that a small loss and
its gradient keep their precision. FLOPs are 10 b c D, of which tiles take 6, but no score is written or read: that pays where D is
small. (Dao et al. 2022 for the sums, arXiv 2205.14135; Cheng et al. 2024 for contrastive ones, arXiv 2410.17243.)

Letters in shapes: b anchors, c candidates, K pairs of ids, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..core.abilities import widest
from ..core.matches import Listed, Matches
from ..core.tiles import Gradients, Problem, Term, Vectors, sweep
from ..io.console import logger

Kernel = Literal["auto", "torch", "triton"]
DEVICE = "cuda"
WARPS = 8  # of a program: with 4 its registers overflow
# The widest embeddings, and the bytes of one side of a tile: what registers hold, as compiled for compute capability 9.0.
LIMITS = {torch.bfloat16: (384, 1 << 15), torch.float32: (128, 1 << 13)}


def multiplied_in(mixed_precision: str) -> torch.dtype:
    """Return the precision of the vectors that the kernels multiply, by that of the towers."""
    return torch.bfloat16 if mixed_precision == "bf16" else torch.float32


@dataclass
class Fused:
    """A `core.tiles.sweep` by kernels; what they do not take goes to torch, and the log says why, once.

    Args:
        dtype: of the vectors that are multiplied; sums are float32.
    """

    dtype: torch.dtype = torch.float32
    said: set[str] = field(default_factory=set)

    def __call__(
        self, problem: Problem, vectors: Vectors, scale: float, shares: Tensor | None, learns: bool = True
    ) -> tuple[Tensor, Gradients | None]:
        """Return losses, [b], and the gradients of sum(shares * losses); no gradients where `shares` is None."""
        if (why := reason(problem, vectors, self.dtype)) is None:
            return _swept(problem, vectors, scale, shares, self.dtype)
        if why not in self.said:
            logger.info(f"train.kernel=triton: the loss stage stays with torch, since {why}")
            self.said.add(why)
        return sweep(problem, vectors, scale, shares, learns)


def reason(problem: Problem, vectors: Vectors, dtype: torch.dtype = torch.float32) -> str | None:
    """Return why the kernels do not take a problem, or None if they do.

    Args:
        dtype: of the vectors that are multiplied.

    >>> from tempera import Batch, Side, mnr
    >>> batch = Batch(Side(torch.eye(2)), Side(torch.eye(2)))
    >>> reason(mnr().problem(batch), {"query": torch.eye(2)})
    'they run on cuda devices, and this is cpu'
    """
    some = next(iter(vectors.values()))
    if some.device.type != DEVICE:
        return f"they run on {DEVICE} devices, and this is {some.device.type}"
    return "triton is not installed" if find_spec("triton") is None else unsuited(problem, some, dtype)


def unsuited(problem: Problem, some: Tensor, dtype: torch.dtype) -> str | None:
    """Return why the kernels take a problem on no device, or None if they take it.

    Args:
        some: vectors, [n, D].
        dtype: of the vectors that are multiplied.
    """
    return next(_causes(problem, some, dtype), None)


def _causes(problem: Problem, some: Tensor, dtype: torch.dtype) -> Iterator[str]:
    terms = [term for group in problem.groups for term in group.terms]
    width, widest_taken = some.shape[1], LIMITS[dtype][0]
    has, factors = (str(each).removeprefix("torch.") for each in (some.dtype, dtype))
    if some.dtype != torch.float32:
        yield f"they compute in float32, and the embeddings are {has}"
    if width > widest_taken:
        yield f"they pay up to a width of {widest_taken} in {factors}, and embeddings have {width}"
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


class _Bound:
    """One block of scores with everything that a kernel reads."""

    def __init__(self, term: Term, problem: Problem, vectors: Vectors, scale: float, target: bool) -> None:
        from . import kernels

        self.kernels, self.term = kernels, term
        self.anchors, self.candidates = vectors[term.anchor][problem.local], vectors[term.candidate]
        self.b, self.c, width = len(self.anchors), *self.candidates.shape
        added, bonus, positive = self._number(self.c), self._number(self.b), term.positive
        for addition in term.additions:
            if addition.candidate is not None:
                added += addition.candidate.to(added)
            if addition.positive is not None and positive is not None:
                here = torch.arange(self.b, device=positive.device)
                bonus += addition.positive(here, positive).to(bonus)
        if positive is None:
            positive = torch.full((self.b,), -1, device=bonus.device)
        ids = [each.ids for each in _matches(term) if each is not None and each.ids is not None]
        rows = columns = bonus  # not read
        if ids:
            rows, sides = torch.stack([own for own, _, _ in ids]), torch.full((len(ids), self.c), -2)
            for side, (_, matched, same) in zip(sides, ids, strict=True):
                side[matched] = same
            rows, columns = rows.to(bonus.device), sides.to(bonus.device)
        self.read = (self.anchors, self.candidates, self.b, self.c, scale, added, positive, bonus, rows, columns)
        room = 1 << max(4, (width - 1).bit_length())
        self.sizes: dict[str, Any] = {
            "K": len(ids),
            "D": width,
            "W": room,
            "N": block(room, self.anchors),
            "TARGET": target,
        }
        self.sizes["PRECISION"] = precision(self.anchors)

    def _number(self, *shape: int) -> Tensor:
        return torch.zeros(shape, device=self.anchors.device)

    def log_sums(self) -> tuple[Tensor, Tensor]:
        """Return the log-sum-exp of each row's logits but its target's, and the target's, [b] each."""
        rest, level = self._number(self.b), self._number(self.b)
        self.kernels.log_sums[self._grid(self.b)](*self.read, rest, level, **self.sizes, num_warps=WARPS)
        return rest, level

    def add_gradients(self, grads: dict[Any, Tensor], local: slice, *rows: Tensor) -> Tensor:
        """Add the gradients of both sides; return what each row adds to that of the scale, [b]."""
        slopes = self._number(self.b)
        for by_column, count in enumerate((self.b, self.c)):
            grad = self._number(count, self.sizes["D"])
            launch = self.kernels.gradients[self._grid(count)]
            launch(*self.read, *rows, grad, slopes, **self.sizes, BY_COLUMN=bool(by_column), num_warps=WARPS)
            side = grads[self.term.candidate] if by_column else grads[self.term.anchor][local]
            side += grad
        return slopes

    def _grid(self, count: int) -> tuple[int]:
        return (-(-count // self.sizes["N"]),)


def block(room: int, vectors: Tensor) -> int:
    """Return the rows and columns of a tile of vectors with room for so many numbers each."""
    return max(16, min(64, LIMITS[vectors.dtype][1] // (room * vectors.element_size())))


def precision(vectors: Tensor) -> str:
    """Return how numbers are multiplied: in three products, as float32, or in one of 10 bits, as torch may or vectors need."""
    full = vectors.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return "tf32x3" if full else "tf32"


def _swept(
    problem: Problem, vectors: Vectors, scale: float, shares: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Gradients | None]:
    some = next(iter(vectors.values()))
    factors = {role: side.to(dtype).contiguous() for role, side in vectors.items()}
    grads = {role: torch.zeros_like(side) for role, side in vectors.items()}
    losses = some.new_zeros(problem.local.stop - problem.local.start)
    slope = torch.zeros((), dtype=widest(some.device), device=some.device)
    for group in problem.groups:
        target = next(term for term in group.terms if term.positive is not None)
        blocks = [_Bound(term, problem, factors, scale, term is target) for term in group.terms]
        rests, levels = zip(*(block.log_sums() for block in blocks), strict=True)
        rest, level = torch.stack(rests).logsumexp(0), sum(levels)
        losses += group.share * softplus(rest - level)
        if shares is None:
            continue
        rows = torch.logaddexp(rest, level), torch.sigmoid(rest - level), shares.to(some) * group.share
        for each in blocks:
            slope += each.add_gradients(grads, problem.local, *rows).sum(dtype=slope.dtype)
    return losses, None if shares is None else Gradients(grads, slope)
