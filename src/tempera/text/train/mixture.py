"""A mixture of several sources of pairs, by weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...core.temperature import refuse_temperature
from ...errors import ConfigError, DataError, refuse_not_a_number
from ...io.ids import Ids, content_ids, mixed
from ...io.texts import Texts
from ..read.pairs import GIVEN, Pairs, Source, Text
from .catalogue import Catalogue
from .samplers import Mixed

_ROWS = 1 << 16  # rows that are copied at once


@dataclass(frozen=True)
class Mixture:
    """Mix rows of several sources by weight. A pair of two sources counts for the first source.

    Args:
        sources: sources with options of their own, prompts among them.
        weights: share of each source in the batches, in any unit; None is by rows.
        batches: "mixed" takes every batch from all sources, "single" each batch from one source.
        temperatures: temperature of each source's batches, for "single" batches; None is the
            temperature of the objective.
    """

    sources: Sequence[Source]
    weights: tuple[float, ...] | None = None
    batches: Literal["mixed", "single"] = "mixed"
    temperatures: tuple[float | None, ...] | None = None

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("a mixture needs at least one source")
        for name, values in (("weights", self.weights), ("temperatures", self.temperatures)):
            if values is not None and len(values) != len(self.sources):
                raise ConfigError(
                    f"{len(values)} {name} for {len(self.sources)} sources: give one for each source"
                )
        for weight in self.weights or ():
            refuse_not_a_number("weights: each", weight)
        if self.weights is not None and (min(self.weights) < 0 or not sum(self.weights)):
            raise ConfigError(
                f"weights are {list(self.weights)}: give numbers from 0, not all of them 0"
            )
        for temperature in self.temperatures or ():
            if temperature is not None:
                refuse_temperature(temperature)
        if self.temperatures is not None and self.batches != "single":
            raise ConfigError(
                "temperatures of sources need batches of one source: add batches: single"
            )

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return the pairs of all sources, and True for each pair for evaluation, by the source."""
        parts = list[Pairs]()
        may_ask = list[NDArray[np.bool_]]()  # of each part
        for i, source in enumerate(self.sources):
            pairs, candidates = source.read(folder and folder / str(i))
            parts.append(pairs)
            may_ask.append(candidates)
        for i in range(1, len(parts)):
            names = parts[i].table.column_names
            if any(name in names for name in GIVEN.values()):
                parts[i] = _apart(parts[i], parts[:i], i + 1)
        if not all(pairs.paired for pairs in parts):
            raise DataError(
                "documents in a mixture need a rule, which makes pairs of them: give rule: heading"
            )
        dropped = Counter[str]()
        for pairs in parts:
            dropped.update(pairs.dropped)

        def tables() -> Iterator[pa.Table]:
            for i, pairs in enumerate(parts):
                for start in range(0, len(pairs), _ROWS):
                    table = pairs.table.slice(start, _ROWS)
                    candidates = may_ask[i][start : start + _ROWS]
                    table = table.append_column("source", pa.array(np.full(len(table), i)))
                    yield table.append_column("asked", pa.array(candidates))

        sources = [
            pairs.source or source for source, pairs in zip(self.sources, parts, strict=True)
        ]
        store = folder and folder / "mixture"
        whole = Pairs.distinct_of(tables(), store, dropped, replace(self, sources=sources))
        made = [pairs.made.table for pairs in parts if pairs.made is not None]
        about = "\n".join(pairs.about for pairs in parts)
        whole = replace(whole, about=about, made=Pairs.distinct_of(made) if made else None)
        return whole, whole.table["asked"].to_numpy()

    def sampler(self, source: NDArray[np.int64], batch_size: int, seed: int) -> Mixed:
        """Return a sampler of batches; `source` is the position of each row's source, [n]."""
        return Mixed(source, batch_size, seed, self.weights, self.batches, self.temperatures)


def _apart(pairs: Pairs, earlier: Sequence[Pairs], salt: int) -> Pairs:
    """Return pairs with new ids for queries, documents and negatives whose id has another text in
    earlier pairs."""
    own = Catalogue.of(pairs)
    catalogues = [Catalogue.of(each) for each in earlier]
    roles: dict[Text, tuple[str, ...]] = {"query": ("query",), "doc": ("doc", "negatives")}
    for text, sides in roles.items():
        taken = [_with_another_text(own.distinct(text), each.distinct(text)) for each in catalogues]
        taken_ids = np.concatenate([np.empty(0, np.int64), *taken])
        if not len(taken_ids):
            continue
        for side in sides:
            ids, shown, _ = pairs.side(side)
            if len(ids):  # there may be no negatives
                is_taken = np.isin(ids, taken_ids)
                new_ids = np.where(is_taken, mixed(ids, salt), ids)
                new_shown = pc.if_else(pa.array(is_taken), None, shown.combine_chunks())
                pairs = pairs.with_ids(side, new_ids, pa.chunked_array([new_shown]))
    return pairs


def _with_another_text(own: tuple[Ids, Texts], other: tuple[Ids, Texts]) -> Ids:
    """Return the ids of different texts on two sides; each side has distinct ids with texts."""
    own_ids, own_texts = own
    other_ids, other_texts = other
    ids, own_at, other_at = np.intersect1d(
        own_ids, other_ids, assume_unique=True, return_indices=True
    )
    differs = content_ids(own_texts.take(own_at)) != content_ids(other_texts.take(other_at))
    different: Ids = ids[differs]
    return different
