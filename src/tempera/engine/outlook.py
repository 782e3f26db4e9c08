"""Summary of a run before it begins: what each query is compared with, how the towers embed, how
much memory that takes."""

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
    """Describe what the rows of a batch are compared with, over all processes, before masks; `most`
    if it may have more rows.

    >>> from ..core.batch import Side
    >>> import torch
    >>> q, d = torch.eye(4), torch.eye(4)
    >>> print(negatives(Objective(), Batch(Side(q), Side(d)), Group()))
    4 pairs a batch on 1 process; each query is compared with 3 other documents
    """
    counts = {role: int(group.all_reduce_sum(len(side))) for role, side in batch.sides().items()}
    counts["memory"] = objective.memory.size if objective.memory is not None else 0
    parts: dict[str, list[str]] = {}
    names = {
        "query": "other queries",
        "doc": "other documents",
        "negatives": "hard negatives",
        "sampled": "sampled documents",
    }
    for anchor, candidate in (pair for pool in objective.pools for pair in pool.blocks):
        count = counts.get(candidate, 0) - (candidate in ("query", "doc"))
        if count > 0:
            name = names.get(candidate, "remembered documents")
            parts.setdefault(anchor, []).append(quantity(count, name))
    called = {"doc": "document"}
    compared = [
        f"each {called.get(anchor, anchor)} is compared with {', '.join(names)}"
        for anchor, names in sorted(parts.items(), reverse=True)
    ]
    processes = f"{group.size} process{'es' if group.size > 1 else ''}"
    limit = (
        f" (of at most {most:,}; batches differ by one pair at most)"
        if counts["query"] < most
        else ""
    )
    return "; ".join([f"{counts['query']:,} pairs a batch on {processes}{limit}", *compared])


def block(objective: Objective, batch: Batch[Any], rows: int) -> int:
    """Return the most scores that `rows` rows have with the candidates of one kind in a batch of
    all processes."""
    remembered = objective.memory.size if objective.memory is not None else 0
    return rows * max(remembered, *(len(side) for side in batch.sides().values()))


def memory(
    plan: Plan,
    modules: Iterable[nn.Module],
    scores: int,
    width: int,
    parts: Callable[[nn.Parameter], int] = lambda parameter: 1,
) -> dict[str, float]:
    """Return the expected bytes on this device at the peak of a step that holds so many bytes of
    scores at once.

    Args:
        parts: of which a device will keep one of a parameter that is still whole.
    """
    rows = sum(count for work in plan.works for count in work.counts)
    every = [inner for module in modules for inner in module.modules()]
    tables = {
        m.weight for m in every if isinstance(m, Table) and m.sparse
    }  # one number a row beside their own
    sizes = {p: part(p).nbytes / parts(p) for m in every for p in m.parameters(recurse=False)}
    return {
        "weights and optimiser": float(
            sum(
                size * (_ADAM if p.requires_grad and p not in tables else 1)
                for p, size in sizes.items()
            )
        ),
        "graphs of the towers": plan.peak_bytes,
        "embeddings and gradients": float(
            4 * 4 * rows * width
        ),  # rows, unit rows, and the gradient of each
        "scores": float(scores),
    }


def described(sizes: dict[str, float], capacity: float | None = None) -> str:
    """Return bytes by name as one line.

    >>> described({"scores": 2**20, "weights": 2**21}, capacity=2**30)
    'expected memory of a step 3 of 1,024 MiB: scores 1, weights 2'
    """
    parts = ", ".join(f"{name} {size / _MIB:,.0f}" for name, size in sizes.items())
    of = f" of {capacity / _MIB:,.0f}" if capacity else ""
    return f"expected memory of a step {sum(sizes.values()) / _MIB:,.0f}{of} MiB: {parts}"
