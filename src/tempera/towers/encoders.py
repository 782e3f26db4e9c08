"""Features of users and items as vectors: each encoder looks up what it knows of an entity by the entity's code.

Letters in shapes: u entities of one kind, n rows, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from ..core.ragged import Ragged, spread
from ..errors import ConfigError, DataError
from .pair import Options, Tower
from .static import Static

Count = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
UNKNOWN = 0  # row of a table for what training has not seen


@dataclass(frozen=True)
class Entities:
    """What is known of users or of items: a table with one row for each code, and how often each is trained on."""

    table: pa.Table  # [u] with a column id
    count: NDArray[np.int64]  # [u] training events

    @property
    def known(self) -> NDArray[np.bool_]:
        """What training has seen, [u]."""
        return self.count > 0

    def column(self, name: str, feature: str) -> pa.ChunkedArray:
        """A feature's column."""
        if name not in self.table.column_names:
            raise DataError(
                f"tower: the feature {feature} needs a column {name!r}, and there are {', '.join(self.table.column_names)}"
            )
        return self.table[name]


Tables = dict[str, nn.Embedding]  # by name; features that name the same table share it


class Lookup(nn.Module):
    """One vector for each entity: that of its id or of its category; codes beyond those known have the unknown one.

    In training a share `unknown` of the rows have the unknown vector too, so that it learns to stand for new entities.
    """

    row_of: Tensor

    def __init__(self, row_of: Tensor, table: nn.Embedding, unknown: float) -> None:
        super().__init__()
        self.table, self.unknown = table, unknown
        self.register_buffer("row_of", row_of, persistent=False)  # [u]

    def forward(self, codes: Tensor) -> Tensor:
        rows = self.row_of[codes]
        if self.training and self.unknown:
            rows = rows.masked_fill(torch.rand(rows.shape, device=rows.device) < self.unknown, UNKNOWN)
        vectors: Tensor = self.table(rows)
        return vectors


class Bag(nn.Module):
    """The mean of several vectors for each entity: its categories; 0 for an empty bag."""

    values: Tensor
    offsets: Tensor

    def __init__(self, values: Tensor, offsets: Tensor, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table
        self.register_buffer("values", values, persistent=False)
        self.register_buffer("offsets", offsets, persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        starts, lengths = self.offsets[codes], self.offsets[codes + 1] - self.offsets[codes]
        first = lengths.cumsum(0) - lengths
        return nn.functional.embedding_bag(self.values[spread(starts, lengths)], self.table.weight, first, mode="mean")


class Linear(nn.Module):
    """A vector times a number, plus one for rows without the number."""

    values: Tensor

    def __init__(self, values: Tensor, width: int) -> None:
        super().__init__()
        numbers = torch.stack([values.nan_to_num(), values.isnan().float()], 1)  # [u, 2]
        self.register_buffer("values", numbers, persistent=False)
        self.weight = nn.Parameter(torch.randn(2, width) / math.sqrt(width))

    def forward(self, codes: Tensor) -> Tensor:
        return self.values[codes].to(self.weight.dtype) @ self.weight


@dataclass(frozen=True)
class Id:
    """A vector for each user or item.

    Args:
        table: name of the table; features with the same one share it. None is user or item.
        buckets: ids share this many vectors, by hash; None gives each its own.
        unknown: share of the rows that train the vector for unknown ids instead of their own.
    """

    table: str | None = None
    buckets: Count | None = None
    unknown: Share = 0.0

    def encoder(self, entities: Entities, role: str, width: int, tables: Tables) -> nn.Module:
        """For these entities; ids without a training event are unknown."""
        ids, row_of = entities.table["id"], np.zeros(len(entities.table), np.int64)
        if self.buckets is None:
            row_of[entities.known] = 1 + np.arange(int(entities.known.sum()))
        else:
            row_of[:] = 1 + buckets_of(ids, self.buckets)
        return Lookup(torch.from_numpy(row_of), _table(tables, self.table or role, row_of, width), self.unknown)


@dataclass(frozen=True)
class Category:
    """A vector for each value of a column; missing values, and those that training has not seen, share one.

    Args:
        column: of the features of users or items.
        table: name of the table; None is the column's.
    """

    column: str
    table: str | None = None

    def encoder(self, entities: Entities, role: str, width: int, tables: Tables) -> nn.Module:
        """For these entities."""
        values = entities.column(self.column, "category").cast(pa.string())
        row_of = _rows(values, values.filter(pa.array(entities.known)))
        return Lookup(torch.from_numpy(row_of), _table(tables, self.table or self.column, row_of, width), 0.0)


@dataclass(frozen=True)
class Categories:
    """The mean of the vectors of several values of a column: a list, or a text with separators.

    Args:
        column: of the features of users or items.
        separator: between the values of a text.
        table: name of the table; None is the column's.
    """

    column: str
    separator: str = "|"
    table: str | None = None

    def encoder(self, entities: Entities, role: str, width: int, tables: Tables) -> nn.Module:
        """For these entities."""
        lists = entities.column(self.column, "categories").combine_chunks()
        if pa.types.is_string(lists.type) or pa.types.is_large_string(lists.type):
            lists = pc.split_pattern(lists.fill_null(""), self.separator)
        values = lists.flatten().cast(pa.string())
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        row_of = _rows(pa.chunked_array([values]), values.filter(pa.array(np.repeat(entities.known, lengths))))
        offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]))
        return Bag(torch.from_numpy(row_of), offsets, _table(tables, self.table or self.column, row_of, width))


@dataclass(frozen=True)
class Number:
    """A number, normalised to mean 0 and deviation 1 of what is trained on, or in buckets of equal frequency.

    Args:
        column: of the features of users or items.
        buckets: how many; None takes the number times a vector.
        scale: "log" takes log(1 + |x|) with the sign of x first.
    """

    column: str
    buckets: Count | None = None
    scale: Literal["linear", "log"] = "linear"

    def encoder(self, entities: Entities, role: str, width: int, tables: Tables) -> nn.Module:
        """For these entities."""
        column = entities.column(self.column, "number")
        if pa.types.is_temporal(column.type):
            column = pc.cast(column.cast(pa.timestamp("s")), pa.int64())
        try:
            values = pc.cast(column, pa.float64()).to_numpy().copy()
        except pa.ArrowInvalid as error:
            raise DataError(f"tower: the feature number of column {self.column!r}: {error}") from None
        if self.scale == "log":
            values = np.sign(values) * np.log1p(np.abs(values))
        seen = values[entities.known & np.isfinite(values)]
        if not len(seen):
            raise DataError(f"tower: column {self.column!r} has no number that is trained on")
        if self.buckets is None:
            normal = (values - seen.mean()) / (seen.std() or 1.0)
            return Linear(torch.from_numpy(np.where(np.isfinite(normal), normal, np.nan)).float(), width)
        edges = np.unique(np.quantile(seen, np.linspace(0, 1, self.buckets + 1)[1:-1]))
        row_of = np.where(np.isfinite(values), 1 + np.searchsorted(edges, values, side="right"), UNKNOWN)
        table = nn.Embedding(len(edges) + 2, width)
        return Lookup(torch.from_numpy(row_of), _initial(table), 0.0)


class Reader(nn.Module):
    """A text tower's embedding of each entity's text."""

    values: Tensor
    offsets: Tensor

    def __init__(self, tower: Tower, texts: Ragged, width: int) -> None:
        super().__init__()
        self.tower = tower
        self.register_buffer("values", texts.values, persistent=False)
        self.register_buffer("offsets", texts.offsets, persistent=False)
        with torch.no_grad():
            own = tower(texts[:1]).shape[1]
        self.project = nn.Identity() if own == width else nn.Linear(own, width, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        vectors: Tensor = self.project(self.tower(Ragged(self.values, self.offsets)[codes]))
        return vectors


@dataclass(frozen=True)
class Text:
    """A text, through a text tower that is trained with the rest.

    Args:
        column: of the features of users or items.
        tower: any tower of texts; the default is a bag of the words that occur twice.
    """

    column: str
    tower: Options = field(default_factory=lambda: Static(64, 8_000, 64))

    def encoder(self, entities: Entities, role: str, width: int, tables: Tables) -> nn.Module:
        """For these entities; a tokenizer is trained on the texts of those that training has seen."""
        texts = pc.fill_null(entities.column(self.column, "text").cast(pa.string()), "")
        tower = self.tower.build(texts.filter(pa.array(entities.known)).to_pylist())
        return Reader(tower, tower.features(texts.to_pylist(), "reading texts"), width)


def buckets_of(ids: pa.ChunkedArray, buckets: int) -> NDArray[np.int64]:
    """The bucket of each id, the same on every machine; 7 and "7" are one id."""
    import xxhash

    texts = ids.cast(pa.string()).to_pylist()
    return np.array([xxhash.xxh3_64_intdigest(text) % buckets for text in texts], np.int64)


def _rows(values: pa.ChunkedArray, seen: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """The row of each value in a table: 1 and up for what was seen in training, else unknown."""
    known = pc.unique(seen).drop_null().sort()
    at = pc.index_in(values, value_set=known).fill_null(-1)
    rows: NDArray[np.int64] = at.to_numpy().astype(np.int64) + 1
    return rows


def _table(tables: Tables, name: str, row_of: NDArray[np.int64], width: int) -> nn.Embedding:
    """The table of a name, made with its first use."""
    rows = int(row_of.max(initial=UNKNOWN)) + 1
    found = tables.get(name)
    if found is None:
        found = tables[name] = _initial(nn.Embedding(rows, width))
    elif found.num_embeddings < rows:
        raise ConfigError(
            f"tower: two features share the table {name}, which has {found.num_embeddings} rows, and one of them needs "
            f"{rows}: give them tables of their own"
        )
    return found


def _initial(table: nn.Embedding) -> nn.Embedding:
    nn.init.normal_(table.weight, std=1 / math.sqrt(table.embedding_dim))
    return table


Feature = Id | Category | Categories | Number | Text
FEATURES: Mapping[str, type] = {
    "id": Id,
    "category": Category,
    "categories": Categories,
    "number": Number,
    "text": Text,
}
