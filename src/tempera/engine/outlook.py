"""Summary of a run before it begins: the negatives of a query, and the memory of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from ..arithmetic.table import Table
from ..core.batch import Batch
from ..core.objective import Objective
from ..errors import quantity
from ..parallel.distributed import Group
from ..parallel.shards import part
from .micro_batches import Plan

_MIB = 1 << 20
_ADAM = 4  # a parameter, its gradient, and AdamW's two moments


def negatives(objective: Objective, batch: Batch[Any], group: Group, most: int = 0) -> str:
    """Describe the candidates of each row of a batch, over all processes, before masks.

    Args:
        most: largest number of rows of a batch.

    >>> from ..core.batch import Side
    >>> import torch
    >>> q, d = torch.eye(4), torch.eye(4)
    >>> print(negatives(Objective(), Batch(Side(q), Side(d)), Group()))
    4 pairs a batch on 1 process; each query is compared with 3 other documents
    """
    counts = {role: int(group.all_reduce_sum(len(side))) for role, side in batch.sides().items()}
    counts["memory"] = _remembered(objective)
    names = {
        "query": "other queries",
        "doc": "other documents",
        "negatives": "hard negatives",
        "sampled": "sampled documents",
    }
    candidates: dict[str, list[str]] = {}
    for pool in objective.pools:
        for anchor, candidate in pool.blocks:
            count = counts.get(candidate, 0)
            if candidate in ("query", "doc"):
                count -= 1  # the positive, or the row itself
            if count > 0:
                name = names.get(candidate, "remembered documents")
                candidates.setdefault(anchor, []).append(quantity(count, name))
    processes = f"{group.size} process{'es' if group.size > 1 else ''}"
    text = f"{counts['query']:,} pairs a batch on {processes}"
    if counts["query"] < most:
        text += f" (of at most {most:,}; batches differ by one pair at most)"
    for kind in sorted(candidates, reverse=True):
        row = "document" if kind == "doc" else kind
        text += f"; each {row} is compared with {', '.join(candidates[kind])}"
    return text


def block(objective: Objective, batch: Batch[Any], rows: int) -> int:
    """Return the largest number of scores of `rows` rows with the candidates of one kind in a batch
    of all processes."""
    candidates = [len(side) for side in batch.sides().values()]
    return rows * max(_remembered(objective), *candidates)


def _remembered(objective: Objective) -> int:
    """Return the number of documents in the objective's memory."""
    return 0 if objective.memory is None else objective.memory.size


def memory(
    plan: Plan,
    modules: Iterable[nn.Module],
    scores: int,
    width: int,
    parts: Callable[[nn.Parameter], int] = lambda parameter: 1,
) -> dict[str, float]:
    """Return the expected bytes on this device at the peak of a step, by use.

    Args:
        scores: bytes of the scores held at once.
        width: of the embeddings.
        parts: number of parts of a divided parameter.
    """
    rows = sum(sum(work.counts) for work in plan.works)
    sizes: dict[nn.Parameter, float] = {}
    sparse = set()
    for module in modules:
        for inner in module.modules():
            if isinstance(inner, Table) and inner.sparse:
                sparse.add(inner.weight)
            for p in inner.parameters(recurse=False):
                sizes[p] = part(p).nbytes / parts(p)
    weights = 0.0
    for p, size in sizes.items():
        by_adam = p.requires_grad and p not in sparse  # Adagrad has one number a row of a table
        weights += _ADAM * size if by_adam else size
    return {
        "weights and optimiser": weights,
        "graphs of the towers": plan.peak_bytes,
        # Rows and unit rows, and the gradients of both.
        "embeddings and gradients": float(4 * 4 * rows * width),
        "scores": float(scores),
    }


def described(sizes: dict[str, float], capacity: float | None = None) -> str:
    """Return bytes by use as one line.

    >>> described({"scores": 2**20, "weights": 2**21}, capacity=2**30)
    'expected memory of a step 3 of 1,024 MiB: scores 1, weights 2'
    """
    parts = ", ".join(f"{name} {size / _MIB:,.0f}" for name, size in sizes.items())
    of = f" of {capacity / _MIB:,.0f}" if capacity else ""
    return f"expected memory of a step {sum(sizes.values()) / _MIB:,.0f}{of} MiB: {parts}"
