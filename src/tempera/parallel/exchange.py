"""A batch as named columns, the form of rows on their way between processes.

The columns of a process are packed into one run of bytes, so that an exchange of sizes and an
exchange of bytes gather any batch.

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

# A memory is the same on all processes.
ROLES: tuple[Role, ...] = ("query", "doc", "negatives", "sampled")
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
# Rows, width (0 for vectors) and dtype of every column in NAMES, [f, 3]; dtype -1 for no column.
Header = list[list[int]]


@dataclass(frozen=True)
class Gathered(Batch[Tensor]):
    """A batch of all processes' rows, in the order of the processes, and the numbers of rows of each
    process."""

    counts: Mapping[Role, tuple[int, ...]] = field(default_factory=dict)


def leaf(rows: Tensor) -> Tensor:
    """Return embeddings cut off from their graph."""
    return rows.detach().requires_grad_()


def columns_of(batch: Batch[Tensor]) -> Columns:
    """Return the columns of a batch by name, in the order of NAMES."""
    columns: dict[str, Tensor | None] = {"query.weight": batch.weight, "query.answer": batch.answer}
    for role, side in batch.sides().items():
        for name in FIELDS:
            columns[f"{role}.{name}"] = getattr(side, name)
    if batch.known is not None:
        columns["query.known"] = batch.known.lengths
        columns["known.values"] = batch.known.values
    if batch.temperature is not None:
        columns["batch.temperature"] = torch.tensor([batch.temperature], dtype=torch.float64)
    present = {}
    for name in NAMES:
        column = columns.get(name)
        if column is not None:
            present[name] = column
    return present


def header_of(columns: Columns) -> Header:
    """Return the header by which another process reads the columns."""
    header = []
    for name in NAMES:
        column = columns.get(name)
        if column is None:
            header.append([0, 0, -1])
            continue
        if column.dtype not in DTYPES:
            raise DataError(
                f"{name} of a batch is {column.dtype}; only {', '.join(map(str, DTYPES))} can be exchanged between processes"
            )
        width = column.shape[1] if column.ndim == 2 else 0
        header.append([len(column), width, DTYPES.index(column.dtype)])
    return header


def column_offsets(header: Header) -> list[int]:
    """Return the position of each column in the bytes of its process, and the end of the last
    column, [f + 1]."""
    offsets = [0]
    for column in header:
        size = _bytes(column)
        offsets.append(offsets[-1] + size + -size % _ALIGNED)
    return offsets


def pack(columns: Columns, header: Header, into: Tensor) -> Tensor:
    """Write the columns as bytes into `into`, and return `into`."""
    for name, column, start in zip(NAMES, header, column_offsets(header), strict=False):
        size = _bytes(column)
        if size:
            numbers = columns[name].detach().to(into.device).contiguous()
            into[start : start + size] = numbers.view(torch.uint8).flatten()
    return into


def unpack(packed: Tensor, header: Header) -> Columns:
    """Return the columns with rows, as views of a process's bytes."""
    columns = {}
    for name, size, start in zip(NAMES, header, column_offsets(header), strict=False):
        count = _bytes(size)
        if not count:
            continue
        rows, width, dtype = size
        column = packed[start : start + count].view(DTYPES[dtype])
        columns[name] = column.view(rows, width) if width else column
    return columns


def check(headers: Sequence[Header]) -> None:
    """Check that all processes give the same columns for their rows; a process without rows needs no
    columns.

    Raises:
        DataError: columns differ, or there are no rows. Every process has the same headers and so
            the same error.
    """
    table = [dict(zip(NAMES, header, strict=True)) for header in headers]
    for name in NAMES[:-2]:
        role, _, column = name.partition(".")
        kinds: dict[
            str, list[str]
        ] = {}  # the processes that have rows, by the kind of their column
        for process, columns in enumerate(table):
            if columns[f"{role}.rows"][0]:
                _, width, dtype = columns[name]
                kinds.setdefault(_kind(width, dtype), []).append(str(process))
        if name == "query.rows" and not kinds:
            raise DataError("a batch needs at least one pair, but no process has one")
        if len(kinds) > 1:
            seen = ", ".join(
                f"{kind} on rank {' and '.join(processes)}" for kind, processes in kinds.items()
            )
            raise DataError(
                f"{column} of {role} differs between ranks: {seen}; all have to give the same"
            )


def join(parts: Sequence[Columns], rank: int, memory: Side[Tensor] | None) -> Gathered:
    """Return one batch from the columns of every process."""
    counts: dict[Role, tuple[int, ...]] = {}
    for role in ROLES:
        counts[role] = tuple(len(part.get(f"{role}.rows", ())) for part in parts)
    first = list(accumulate(counts["query"], initial=0))  # row of each process, [p + 1]
    columns: dict[str, list[Tensor]] = {}  # of all processes
    for part, at in zip(parts, first[:-1], strict=True):
        for name, column in part.items():
            columns.setdefault(name, []).append(_shift(name, column, at))
    whole = {name: torch.cat(ranks) for name, ranks in columns.items()}
    sides: dict[Any, Any] = {}
    for role in ROLES:
        if any(counts[role]):
            fields: dict[str, Any] = {name: whole.get(f"{role}.{name}") for name in FIELDS}
            fields["rows"] = leaf(fields["rows"])
            sides[role] = Side(**fields)
    known = None
    lengths = whole.get("query.known")
    if lengths is not None:
        known = Ragged(whole.get("known.values", lengths[:0]), from_lengths(lengths))
    temperatures = []
    for part in parts:
        temperature = part.get("batch.temperature")
        temperatures.append(None if temperature is None else float(temperature))
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
    """Return the bytes of a column, from its line of the header."""
    rows, width, dtype = column
    return rows * max(1, width) * DTYPES[dtype].itemsize


def _kind(width: int, dtype: int) -> str:
    """Return the name of a column's dtype and width."""
    if dtype < 0:
        return "none"
    name = str(DTYPES[dtype]).removeprefix("torch.")
    return f"{name} of width {width}" if width else name


def _shift(name: str, column: Tensor, first: int) -> Tensor:
    """Return owners, counted from the first row of all processes; -1 stays."""
    return torch.where(column < 0, column, column + first) if name.endswith(".owner") else column
