"""Features of users and items as vectors: each encoder looks up the feature of an entity by the
entity's code.

Letters in shapes: u entities of a kind, n rows, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from ...arithmetic.ragged import Ragged, spread
from ...arithmetic.table import Table
from ...errors import ConfigError, DataError
from ...tables.reader import is_text, reads_as
from ...towers.pair import Tower, TowerOptions
from ...towers.static import Static

Count = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
_POWERS = 62  # powers of 2 that divide passed times into classes
_ALIKE = 128  # texts of similar length that a padding tower reads at once
# factor of a random vector in each vector by co-occurrence: items without a co-occurrence differ
_NOISE = 0.1
UNKNOWN = 0  # row of a table for values that training has not seen
TEXT = pa.large_string()
_PARTS: Mapping[str, Callable[[pa.Array], pa.Array]] = {
    "year": pc.year,
    "month": pc.month,
    "day": pc.day,
    "weekday": pc.day_of_week,
    "hour": pc.hour,
}
# expected columns, for messages
_ONE = "expected one value; use categories for lists"
_SEVERAL = "expected lists, or texts with separators; use category for one value"
_NUMBER = "expected a number or null"


@dataclass(frozen=True)
class Entities:
    """Hold features of users or of items: a table with one row for each code, and the training
    count of each code."""

    table: pa.Table  # [u] with a column id
    count: NDArray[np.int64]  # [u] training events
    first: Callable[[int], Tensor] | None = None  # from a width to first vectors, [u, width]

    @property
    def known(self) -> NDArray[np.bool_]:
        """True for each entity seen in training, [u]."""
        return self.count > 0

    def column(self, name: str, feature: str, kind: pa.DataType, expected: str) -> pa.ChunkedArray:
        """Return a feature's column with values of a kind; times are seconds since 1970.

        Args:
            expected: the kind in words, for messages.

        Raises:
            DataError: no column of the name, or values of another kind.
        """
        if name not in self.table.column_names:
            raise DataError(
                f"tower: the feature {feature} needs a column {name!r}; the columns are {', '.join(self.table.column_names)}"
            )
        column = self.table[name]
        try:
            if pa.types.is_temporal(column.type):
                column = column.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
            return column.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            if not is_text(column.type):
                self.refuse(name, feature, str(column.type), expected)
            row = next(row for row, text in enumerate(column) if not reads_as(kind, text))
            self.refuse(name, feature, repr(column[row].as_py()), expected, row)

    def refuse(
        self, name: str, feature: str, what: str, expected: str, row: int | None = None
    ) -> NoReturn:
        """Raise DataError for a column unfit for a feature.

        Args:
            what: the contents unfit for the feature.
            row: the row of the contents; the message names the id of the row, unless empty or 0.
        """
        if row is not None:
            name_of_row = self.table["id"][row].as_py()
            if name_of_row:
                what += f" for {name_of_row!r}"
        raise DataError(
            f"tower: the feature {feature} cannot read the column {name!r}, which is {what}: {expected}"
        )


# A table of vectors and its values, by name; features that name the same table share the table.
Tables = dict[str, tuple[Table, pa.Array]]


class Lookup(nn.Module):
    """Look up a vector for each entity, by id or category; all unknown values share a vector.

    In training, a share `unknown` of a batch's entities has the unknown vector, too: the unknown
    vector learns to stand for new entities.
    """

    row_of: Tensor

    def __init__(self, row_of: Tensor, table: Table, unknown: float) -> None:
        super().__init__()
        self.table = table
        self.unknown = unknown
        self.register_buffer("row_of", row_of, persistent=False)  # [u]

    def forward(self, codes: Tensor) -> Tensor:
        rows = self.row_of[codes]
        if self.training and self.unknown:
            hidden = torch.rand(rows.shape, device=rows.device) < self.unknown
            rows = rows.masked_fill(hidden, UNKNOWN)
        vectors: Tensor = self.table(rows)
        return vectors


class Bag(nn.Module):
    """The mean of several vectors for each entity, a vector for each category; 0 for an empty
    bag."""

    values: Tensor
    offsets: Tensor

    def __init__(self, values: Tensor, offsets: Tensor, table: Table) -> None:
        super().__init__()
        self.table = table
        self.register_buffer("values", values, persistent=False)
        self.register_buffer("offsets", offsets, persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        starts = self.offsets[codes]
        lengths = self.offsets[codes + 1] - starts
        first = lengths.cumsum(0) - lengths
        return self.table.mean_of(self.values[spread(starts, lengths)], first)


class ScaledVector(nn.Module):
    """A vector times a number; a second vector for rows without the number."""

    values: Tensor

    def __init__(self, values: Tensor, width: int, missing: bool) -> None:
        super().__init__()
        numbers = torch.stack([values.nan_to_num(), values.isnan().float()], 1)  # [u, 2]
        self.register_buffer("values", numbers, persistent=False)
        self.weight = nn.Parameter(_normal(2, width) * torch.tensor([[1.0], [float(missing)]]))

    def forward(self, codes: Tensor) -> Tensor:
        return self.values[codes].to(self.weight.dtype) @ self.weight


@dataclass(frozen=True)
class Id:
    """A vector for each user or item.

    Args:
        table: name of the table; features with the same table share vectors. None is user or item.
        buckets: ids, new ids too, share this many vectors by hash; None gives each id a vector.
        unknown: share of a batch's entities that train the vector for unknown ids instead of the
            entity's vector; at 0 the vector for unknown ids is 0.
        init: the first vectors: "random", or by "cooccurrence", where items taken beside the same
            items begin near each other; cooccurrence is for items, without buckets.

    Raises:
        ConfigError: buckets with unknown or cooccurrence: in buckets, new ids have a vector, and
            ids share vectors.
    """

    table: str | None = None
    buckets: Count | None = None
    unknown: Share = 0.0
    init: Literal["random", "cooccurrence"] = "random"

    def __post_init__(self) -> None:
        if self.buckets is not None and self.unknown:
            raise ConfigError(
                f"id has buckets {self.buckets} and unknown {self.unknown:g}: with buckets, "
                "unknown ids have the vector of their bucket; set only one of the two"
            )
        if self.buckets is not None and self.init != "random":
            raise ConfigError(
                f"id has buckets {self.buckets} and init cooccurrence, which is of single ids: set only one"
            )

    def encoder(self, entities: Entities, role: str, width: int, tables: Tables) -> nn.Module:
        """Return an encoder of the entities; ids without a training event are unknown."""
        values = entities.column("id", "id", TEXT, _ONE)
        seen = values.filter(pa.array(entities.known))
        if self.buckets is not None:
            nobody = pc.equal(values, "").to_numpy(zero_copy_only=False)  # an empty id: no bucket
            seen = pa.array([f"{i} of {self.buckets}" for i in range(self.buckets)], TEXT)
            values = seen.take(pa.array(buckets_of(values, self.buckets), mask=nobody))
        table, row_of = _table(tables, self.table or role, width, seen, values, self.unknown > 0)
        if self.init == "cooccurrence" and entities.first is not None:
            known = torch.from_numpy(entities.known)
            rows = row_of[known]
            with torch.no_grad():
                table.weight[rows] = entities.first(width)[known] + _NOISE * table.weight[rows]
        return Lookup(row_of, table, self.unknown)


@dataclass(frozen=True)
class Category:
    """A vector for each value of a column; missing values, and values unseen in training, share a
    vector: 0 unless training has seen a missing value.

    Tables of the same name are shared by value: a user's favourite brand and the items of the brand
    have the same vector.

    Args:
        column: of the features of users or items.
        table: name of the table; None is the column's.
    """

    column: str
    table: str | None = None

    def encoder(self, entities: Entities, role: str, width: int, tables: Tables) -> nn.Module:
        """Return an encoder of the entities."""
        values = entities.column(self.column, "category", TEXT, _ONE)
        seen = values.filter(pa.array(entities.known))
        _refuse_none(len(seen) - seen.null_count, self.column, "value")
        name = self.table or self.column
        table, row_of = _table(tables, name, width, seen, values, seen.null_count > 0)
        return Lookup(row_of, table, 0.0)


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
        """Return an encoder of the entities."""
        lists = self._lists(entities).combine_chunks()
        values = lists.flatten()
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
        return _bag(tables, self, width, values, lengths.astype(np.int64), entities.known)

    def _lists(self, entities: Entities) -> pa.ChunkedArray:
        """Return a list of texts for each entity; an empty text is an empty list."""
        columns = entities.table.column_names
        if self.column not in columns or not is_text(entities.table[self.column].type):
            return entities.column(self.column, "categories", pa.large_list(TEXT), _SEVERAL)
        texts = entities.column(self.column, "categories", TEXT, _SEVERAL)
        parts = pc.split_pattern(pc.if_else(pc.equal(texts, ""), None, texts), self.separator)
        return parts.cast(pa.large_list(TEXT))


@dataclass(frozen=True)
class Number:
    """A number, normalised to mean 0 and deviation 1 in training, or in buckets of equal frequency.

    Missing numbers, nan too, have a separate vector if training has seen a missing number, and else
    the vector 0. Infinite numbers are refused.

    Args:
        column: of the features of users or items.
        buckets: number of buckets; None takes the number times a vector.
        scale: "log" takes log(1 + |x|) with the sign of x first.
    """

    column: str
    buckets: Count | None = None
    scale: Literal["linear", "log"] = "linear"

    def encoder(self, entities: Entities, role: str, width: int, tables: Tables) -> nn.Module:
        """Return an encoder of the entities."""
        values = entities.column(self.column, "number", pa.float64(), _NUMBER).to_numpy().copy()
        infinite = np.isinf(values)
        if infinite.any():
            entities.refuse(self.column, "number", "infinite", _NUMBER, int(infinite.argmax()))
        if self.scale == "log":
            values = np.sign(values) * np.log1p(np.abs(values))
        seen = values[entities.known & np.isfinite(values)]
        _refuse_none(len(seen), self.column, "number")
        missing = len(seen) < entities.known.sum()  # training has seen a missing number
        if self.buckets is None:
            normal = (values - seen.mean()) / (seen.std() if np.ptp(seen) else 1.0)
            normal = np.where(np.isfinite(normal), normal, np.nan)
            return ScaledVector(torch.from_numpy(normal).float(), width, missing)
        edges = np.unique(np.quantile(seen, np.linspace(0, 1, self.buckets + 1)[1:-1]))
        bucket = 1 + np.searchsorted(edges, values, side="right")
        row_of = np.where(np.isfinite(values), bucket, UNKNOWN)
        weight = _normal(len(edges) + 2, width)
        weight[UNKNOWN] *= missing
        return Lookup(torch.from_numpy(row_of), Table(len(weight), width, _weight=weight), 0.0)


@dataclass(frozen=True)
class Time:
    """The mean of the vectors of a time's parts, like the month and the weekday; 0 for a missing
    time.

    The age of a date is a number: `number: {column: ..., buckets: 10}` reads dates, too.

    Args:
        column: of the features of users or items: dates, texts of ISO dates, or seconds since 1970;
            in UTC.
        parts: the parts to read.
        table: name of the table; None is the column's.
    """

    column: str
    parts: Annotated[
        tuple[Literal["year", "month", "day", "weekday", "hour"], ...], Field(min_length=1)
    ]
    table: str | None = None

    def encoder(self, entities: Entities, role: str, width: int, tables: Tables) -> nn.Module:
        """Return an encoder of the entities; parts unseen in training share a vector."""
        times = entities.column(self.column, "time", pa.timestamp("s"), "expected a date")
        times = times.combine_chunks()
        u, p = len(times), len(self.parts)
        named = []
        for part in self.parts:
            values = _PARTS[part](times).cast(pa.string())
            named.append(pc.binary_join_element_wise(part, values, " ").cast(TEXT))
        valid = times.is_valid().to_numpy(zero_copy_only=False)
        # places in `named`, all parts of one entity after the other
        places = (np.arange(u)[:, None] + u * np.arange(p))[valid]
        values = pa.concat_arrays(named).take(pa.array(places.ravel()))
        return _bag(tables, self, width, values, valid * p, entities.known)


class TextEncoder(nn.Module):
    """A text tower's embedding of each entity's text."""

    values: Tensor
    offsets: Tensor

    def __init__(self, tower: Tower, texts: Ragged, width: int) -> None:
        super().__init__()
        self.tower = tower
        self.register_buffer("values", texts.values, persistent=False)
        self.register_buffer("offsets", texts.offsets, persistent=False)
        with torch.no_grad():
            own = self.tower.of("doc")(texts[:1]).shape[1]
        self.project = nn.Identity() if own == width else nn.Linear(own, width, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        tower = self.tower.of("doc")
        texts = Ragged(self.values, self.offsets)[codes]
        if tower.padded and len(codes) > _ALIKE:
            # Texts of similar length are read together, so that few places are padded.
            order = texts.lengths.argsort(stable=True)
            read = torch.cat([tower(texts[rows]) for rows in torch.split(order, _ALIKE)])
            read = read[order.argsort()]
        else:
            read = tower(texts)
        vectors: Tensor = self.project(read)
        return vectors


@dataclass(frozen=True)
class Text:
    """Embed a text by a text tower, trained together with all features.

    Args:
        column: of the features of users or items.
        tower: any tower of texts; the default is a bag of the words with two occurrences or more.
    """

    column: str
    tower: TowerOptions = field(default_factory=lambda: Static(64, 8_000, 64))

    def encoder(self, entities: Entities, role: str, width: int, tables: Tables) -> nn.Module:
        """Return an encoder of the entities; a tokenizer is trained on the texts of the entities
        seen in training."""
        texts = entities.column(self.column, "text", TEXT, "expected one text").fill_null("")
        tower = self.tower.build(texts.filter(pa.array(entities.known)).to_pylist())
        return TextEncoder(tower, tower.features(texts.to_pylist(), "reading texts"), width)


class Waiting(nn.Module):
    """A vector for each class of passed times, and a vector for rows without a time: class k holds
    the times t with 2^(k-1) <= t + 1 < 2^k."""

    powers: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(2 + _POWERS, width, _weight=_normal(2 + _POWERS, width))
        self.register_buffer("powers", 2.0 ** torch.arange(1 + _POWERS), persistent=False)

    def forward(self, elapsed: Tensor) -> Tensor:
        # Comparisons are exact; the rounding of a logarithm at 2^k would differ between runtimes.
        reached = elapsed.clamp_min(0).add(1)[:, None] >= self.powers  # nan reaches none
        vectors: Tensor = self.table(reached.sum(1))
        return vectors


@dataclass(frozen=True)
class Elapsed:
    """Embed the time from a user's latest event to the query, by powers of 2 of the data's unit of
    time.

    After a short time, the next item follows from the latest items. After a long time, the user
    begins anew, and the latest items say less about the next item.
    """


def _refuse_none(count: int, column: str, what: str) -> None:
    """Raise DataError if the count of a column's values in training is 0."""
    if not count:
        raise DataError(f"tower: column {column!r} has no {what} in training")


def _bag(
    tables: Tables,
    feature: Categories | Time,
    width: int,
    values: pa.Array,
    lengths: NDArray[np.int64],
    known: NDArray[np.bool_],
) -> Bag:
    """Return a bag of the values of each entity.

    Args:
        values: of all entities, one after the other.
        lengths: number of values of each entity, [u].
        known: True for the entities seen in training, [u].
    """
    seen = values.filter(pa.array(np.repeat(known, lengths)))
    _refuse_none(len(seen) - seen.null_count, feature.column, "value")
    name = feature.table or feature.column
    table, row_of = _table(tables, name, width, seen, values, seen.null_count > 0)
    offsets = np.concatenate([[0], lengths.cumsum()])
    return Bag(row_of, torch.from_numpy(offsets), table)


def buckets_of(ids: pa.ChunkedArray, buckets: int) -> NDArray[np.int64]:
    """Return the bucket of each id, the same on every machine; 7 and "7" are the same id. No id
    is null."""
    import xxhash

    texts = ids.cast(TEXT).cast(pa.large_binary()).to_pylist()
    return np.array([xxhash.xxh3_64_intdigest(text) % buckets for text in texts], np.int64)


def _table(
    tables: Tables,
    name: str,
    width: int,
    seen: pa.ChunkedArray,
    values: pa.ChunkedArray,
    trained: bool,
) -> tuple[Table, Tensor]:
    """Return a table with a row for each value seen in training, and the row of each value: unknown
    for values unseen in training.

    An existing table of the same name is enlarged, and keeps the rows of known values. The unknown
    vector of a new table is 0 unless `trained`: a random vector would be noise in the sum of an
    entity's features. With `trained`, the unknown vector is drawn at random, in an existing table,
    too.
    """
    table, known = tables.get(name, (Table(0, width), pa.array([], TEXT)))
    new = pc.unique(seen).drop_null()
    new = new.filter(pc.invert(pc.is_in(new, known)))
    known = pa.concat_arrays([known, new])
    weight = _normal(1 + len(known), width)
    old = len(table.weight)  # rows of the table so far
    own = int(trained)  # first row to keep: with `trained` the unknown vector is drawn anew
    weight[own:old] = table.weight[own:old].detach()
    if not old and not trained:
        weight[UNKNOWN] = 0
    table.weight = nn.Parameter(weight)
    table.num_embeddings = len(weight)
    tables[name] = table, known
    at = pc.index_in(values, value_set=known).fill_null(-1)
    return table, torch.from_numpy(at.to_numpy().astype(np.int64) + 1)


def _normal(rows: int, width: int) -> Tensor:
    """Return random vectors of about length 1, [rows, width]."""
    return nn.init.normal_(torch.empty(rows, width), std=1 / math.sqrt(width))


Feature = Id | Category | Categories | Number | Time | Text
OfUser = Id | Category | Categories | Number | Time | Text | Elapsed
FEATURES: Mapping[str, type] = {
    "id": Id,
    "category": Category,
    "categories": Categories,
    "number": Number,
    "time": Time,
    "text": Text,
}
