"""A batch as named columns, the form in which its rows travel between processes.

Everything that is known of a process's rows, packed into one run of bytes, so that one exchange of
sizes and one of bytes gather a batch, whatever it holds.

Letters in shapes: p processes, f columns of a batch, n rows of all processes, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..arithmetic.ragged import Ragged, from_lengths
from ..core.batch import Batch, Role, Side
from ..errors import DataError

ROLES: tuple[Role, ...] = (
    "query",
    "doc",
    "negatives",
    "sampled",
)  # a memory is the same on all processes
FIELDS = ("rows", "ids", "logq", "guide", "owner", "teacher")
NAMES = (
    *(f"{role}.{name}" for role in ROLES for name in FIELDS),
    "query.weight",
    "query.answer",
    "query.known",
    "known.values",
    "batch.temperature",
)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int64, torch.int32)
_ALIGNED = 16  # bytes; every column begins where any dtype may

Columns = dict[str, Tensor]
Header = list[
    list[int]
]  # rows, width (0 for vectors) and dtype of every column that can be, [f, 3]; no column has dtype -1


@dataclass(frozen=True)
class Gathered(Batch[Tensor]):
    """A batch of all processes' rows, in the order of the processes, and how many each of them
    brought."""

    counts: Mapping[Role, tuple[int, ...]] = field(default_factory=dict)


def leaf(rows: Tensor) -> Tensor:
    """Return embeddings cut off from the graph that made them."""
    return rows.detach().requires_grad_()


def columns_of(batch: Batch[Tensor]) -> Columns:
    """Return everything a batch knows of its rows, by name, without what is None."""
    columns: dict[str, Tensor | None] = {"query.weight": batch.weight, "query.answer": batch.answer}
    for role, side in batch.sides().items():
        columns |= {f"{role}.{name}": getattr(side, name) for name in FIELDS}
    if batch.known is not None:
        columns |= {"query.known": batch.known.lengths, "known.values": batch.known.values}
    if batch.temperature is not None:
        columns["batch.temperature"] = torch.tensor([batch.temperature], dtype=torch.float64)
    return {name: column for name in NAMES if (column := columns.get(name)) is not None}


def header_of(columns: Columns) -> Header:
    """Return what another process needs to read the columns."""
    header = []
    for name in NAMES:
        if (column := columns.get(name)) is None:
            header.append([0, 0, -1])
        elif column.dtype not in DTYPES:
            raise DataError(
                f"{name} of a batch is {column.dtype}; only {', '.join(map(str, DTYPES))} can be exchanged between processes"
            )
        else:
            header.append(
                [
                    len(column),
                    column.shape[1] if column.ndim == 2 else 0,
                    DTYPES.index(column.dtype),
                ]
            )
    return header


def places(header: Header) -> list[int]:
    """Return the position at which each column begins in the bytes of its process, and the end of
    the last one, [f + 1]."""
    return list(
        accumulate((-(-size // _ALIGNED) * _ALIGNED for size in map(_bytes, header)), initial=0)
    )


def pack(columns: Columns, header: Header, into: Tensor) -> Tensor:
    """Write the columns as bytes into `into`, and return it."""
    for name, column, start in zip(NAMES, header, places(header), strict=False):
        if size := _bytes(column):
            into[start : start + size] = (
                columns[name].detach().to(into.device).contiguous().view(torch.uint8).flatten()
            )
    return into


def unpack(packed: Tensor, header: Header) -> Columns:
    """Return the columns that have rows, as views of a process's bytes."""
    columns = {}
    for name, (rows, width, dtype), start in zip(NAMES, header, places(header), strict=False):
        if size := _bytes([rows, width, dtype]):
            column = packed[start : start + size].view(DTYPES[dtype])
            columns[name] = column.view(rows, width) if width else column
    return columns


def check(headers: Sequence[Header]) -> None:
    """Check that all processes give the same columns for their rows; those without rows need none.

    Raises:
        DataError: they do not, or there are no rows. Every process has the same headers and so the
            same error.
    """
    table = [dict(zip(NAMES, header, strict=True)) for header in headers]
    for name in NAMES[:-2]:
        role, _, column = name.partition(".")
        with_rows = {
            process: each[name] for process, each in enumerate(table) if each[f"{role}.rows"][0]
        }
        if name == "query.rows" and not with_rows:
            raise DataError("a batch needs at least one pair, but no process has one")
        kinds: dict[str, list[str]] = {}
        for process, (_, width, dtype) in with_rows.items():
            kinds.setdefault(_kind(width, dtype), []).append(str(process))
        if len(kinds) > 1:
            seen = ", ".join(
                f"{kind} on rank {' and '.join(processes)}" for kind, processes in kinds.items()
            )
            raise DataError(
                f"{column} of {role} differs between ranks: {seen}; all have to give the same"
            )


def join(parts: Sequence[Columns], rank: int, memory: Side[Tensor] | None) -> Gathered:
    """Return one batch from the columns of every process."""
    counts = {role: tuple(len(part.get(f"{role}.rows", ())) for part in parts) for role in ROLES}
    first = list(accumulate(counts["query"], initial=0))  # row of each process, [p + 1]
    shifted = [
        {name: _shift(name, column, at) for name, column in part.items()}
        for part, at in zip(parts, first)
    ]
    whole = {
        name: torch.cat(ranks)
        for name in NAMES
        if (ranks := [part[name] for part in shifted if name in part])
    }
    sides: dict[Any, Any] = {}
    for role in [role for role in ROLES if any(counts[role])]:
        fields = {name: whole[f"{role}.{name}"] for name in FIELDS if f"{role}.{name}" in whole}
        sides[role] = Side(**{**fields, "rows": leaf(fields["rows"])})
    known = None
    if (lengths := whole.get("query.known")) is not None:
        known = Ragged(whole.get("known.values", lengths[:0]), from_lengths(lengths))
    temperatures = [
        None if (x := part.get("batch.temperature")) is None else float(x) for part in parts
    ]
    if len(set(temperatures)) > 1:
        raise DataError(
            f"temperature of a batch differs between ranks: {temperatures}; all have to give the same"
        )
    return Gathered(
        **sides,
        memory=memory,
        weight=whole.get("query.weight"),
        answer=whole.get("query.answer"),
        known=known,
        span=range(first[rank], first[rank + 1]),
        temperature=temperatures[rank],
        counts={role: counts[role] for role in sides},
    )


def _bytes(column: Sequence[int]) -> int:
    rows, width, dtype = column
    return rows * max(1, width) * DTYPES[dtype].itemsize


def _kind(width: int, dtype: int) -> str:
    if dtype < 0:
        return "none"
    return str(DTYPES[dtype]).removeprefix("torch.") + (f" of width {width}" if width else "")


def _shift(name: str, column: Tensor, first: int) -> Tensor:
    """Return owners, counted from the first row of all processes; -1 stays."""
    return torch.where(column < 0, column, column + first) if name.endswith(".owner") else column
