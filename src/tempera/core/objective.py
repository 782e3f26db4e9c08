"""The one objective: cross entropy of the positive against everything its pools hold.

For row i with positive similarity s+, temperature t, and candidates c of its pools that no mask leaves out,

    loss_i = log sum_c exp(s_ic / t + corrections_ic) - (s+_i / t + corrections_i+)

Each part is free of the others, and every combination of them runs through the same tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import ConfigError, DataError
from . import pools as P
from .batch import Batch
from .corrections import Correction
from .masks import Mask
from .similarity import Similarity, cosine
from .temperature import Temperature
from .tiles import Problem, Term, sweep


class Objective(nn.Module):
    """Contrastive losses of a batch, one number a row. Presets choose these parts for methods with a name.

    Args:
        similarity: `cosine` or `dot`.
        temperature: a number, or a `Temperature` (which may learn).
        pools: who stands in the denominator; one of them must hold the positive (docs, or back_queries).
        corrections: terms added to the logits.
        masks: candidates that are left out; never a row's own positive. A row whose every negative is left out has loss 0.
        partition: "joint" is one softmax over all pools; "per_direction" is one for each direction, averaged.
        hardest: keep only this many highest negatives of each row; None keeps all.

    Raises:
        ConfigError: a direction without a positive.
        DataError: a part needs ids or other data that the batch does not have.

    >>> from tempera.core.batch import Batch, Side
    >>> eye = torch.eye(3)
    >>> objective = Objective(temperature=1.0)
    >>> [round(loss, 4) for loss in objective(Batch(Side(eye), Side(eye))).tolist()]
    [0.5514, 0.5514, 0.5514]
    """

    def __init__(
        self,
        similarity: Similarity = cosine,
        temperature: float | Temperature = 0.05,
        pools: Sequence[P.Pool] = (P.docs, P.negatives, P.sampled),
        corrections: Sequence[Correction] = (),
        masks: Sequence[Mask] = (),
        partition: Literal["joint", "per_direction"] = "joint",
        hardest: int | None = None,
    ) -> None:
        super().__init__()
        self.similarity = similarity
        self.temperature = temperature if isinstance(temperature, Temperature) else Temperature(temperature)
        self.pools, self.corrections, self.masks = tuple(pools), tuple(corrections), tuple(masks)
        self.partition, self.hardest = partition, hardest
        if hardest is not None and hardest < 1:
            raise ConfigError(f"hardest keeps at least 1 negative and is {hardest}; None keeps all")
        for name, blocks in self._groups().items():
            if not any(_holds(pair) for pair in blocks):
                raise ConfigError(f"no pool holds the positive {name}: {_ADVICE[self.partition]}")

    def forward(self, batch: Batch[Tensor]) -> Tensor:
        """Losses of this device's rows, [b], differentiable for every embedding and the temperature."""
        problem, leaves = self._prepare(batch)
        losses: Tensor = _Losses.apply(problem, *leaves)  # type: ignore[no-untyped-call]
        return losses

    def propagate(self, batch: Batch[Tensor], shares: Tensor) -> Tensor:
        """Losses, [b], and the gradients of sum(shares * losses), added to `.grad`, in one pass over the scores.

        The embeddings must be leaves that require gradients; the temperature's parameter is reached too.
        """
        with torch.enable_grad():
            problem, leaves = self._prepare(batch)
        with torch.no_grad():
            losses, grads = sweep(problem, leaves, shares.to(leaves[0]))
        assert grads is not None
        reached = [(leaf, grad) for leaf, grad in zip(leaves, grads, strict=True) if leaf.requires_grad]
        if reached:
            torch.autograd.backward([leaf for leaf, _ in reached], [grad for _, grad in reached])
        return losses

    def _groups(self) -> dict[str, list[tuple[Any, Any]]]:
        """Blocks (anchor role, candidate role) of each softmax."""
        groups: dict[str, list[tuple[Any, Any]]] = {}
        for anchor, candidate in (pair for pool in self.pools for pair in pool.blocks):
            direction = f"{anchor}>{'query' if candidate == 'query' else 'doc'}"
            groups.setdefault(f"in {direction}" if self.partition == "per_direction" else "at all", []).append(
                (anchor, candidate)
            )
        return groups

    def _prepare(self, batch: Batch[Tensor]) -> tuple[Problem, list[Tensor]]:
        """The sweep's problem, and its leaves: scaled anchors and candidates, joined to the embeddings by autograd."""
        scale = self.temperature.scale()
        vectors = {role: self.similarity(side.rows) for role, side in batch.sides().items()}
        leaves: list[Tensor] = []
        index: dict[tuple[str, str], int] = {}

        def leaf(role: Any, kind: Literal["anchor", "candidate"]) -> int:
            if (role, kind) not in index:
                index[role, kind] = len(leaves)
                vector = vectors[role]
                leaves.append(vector[batch.local] * scale.to(vector.dtype) if kind == "anchor" else vector)
            return index[role, kind]

        groups = []
        for blocks in self._groups().values():
            terms = []
            for anchor, candidate in blocks:
                if candidate not in vectors:
                    continue
                block = P.Block(batch, anchor, candidate)
                terms.append(
                    Term(
                        leaf(anchor, "anchor"),
                        leaf(candidate, "candidate"),
                        block.positive,
                        block.itself,
                        tuple(correction(block) for correction in self.corrections),
                        tuple(exclusion for mask in self.masks for exclusion in mask(block)),
                    )
                )
            groups.append(tuple(terms))
        widths = {vector.shape[1] for vector in vectors.values()}
        if len(widths) > 1:
            raise DataError(f"embeddings of one batch have one width, and these have {sorted(widths)}")
        return Problem(tuple(groups), float(1 / scale.detach()), self.hardest), leaves


_ADVICE = {"joint": "add docs or back_queries to pools", "per_direction": "drop that pool or choose partition joint"}


def _holds(pair: tuple[str, str]) -> bool:
    return pair in (("query", "doc"), ("doc", "query"))


class _Losses(torch.autograd.Function):
    """Losses whose gradient is a second sweep, since a row's share in the total is known only in the backward pass."""

    @staticmethod
    def forward(ctx: Any, problem: Problem, *leaves: Tensor) -> Tensor:
        ctx.problem = problem
        ctx.save_for_backward(*leaves)
        return sweep(problem, leaves, None)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        leaves = ctx.saved_tensors
        grads = sweep(ctx.problem, leaves, grad)[1]
        assert grads is not None
        return (None, *grads)
