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

_ROWS = 1 << 16  # that are copied at once


@dataclass(frozen=True)
class Mixture:
    """Mix rows of several sources by weight. A pair of two sources counts for the first of them.

    Args:
        sources: each with its own options, prompts among them.
        weights: share of each in the batches, in any unit; None is by rows.
        batches: "mixed" takes every batch from all sources, "single" each batch from one.
        temperatures: of each source's batches, which are then single; None is the objective's.
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
        """Return all pairs of all sources; evaluation may use those that it may use of each
        source."""
        read = [source.read(folder and folder / str(i)) for i, source in enumerate(self.sources)]
        for i in range(1, len(read)):
            if {*GIVEN.values()} & {*read[i][0].table.column_names}:
                read[i] = _apart(read[i][0], [pairs for pairs, _ in read[:i]], i + 1), read[i][1]
        if not all(pairs.paired for pairs, _ in read):
            raise DataError(
                "documents in a mixture need a rule, which makes pairs of them: give rule: heading"
            )
        dropped: Counter[str] = Counter()
        for pairs, _ in read:
            dropped.update(pairs.dropped)

        def tables() -> Iterator[pa.Table]:
            for i, (pairs, may_ask) in enumerate(read):
                for start in range(0, len(pairs), _ROWS):
                    table = pairs.table.slice(start, _ROWS)
                    for name, values in (
                        ("source", np.full(len(table), i)),
                        ("asked", may_ask[start : start + _ROWS]),
                    ):
                        table = table.append_column(name, pa.array(values))
                    yield table

        source = replace(
            self, sources=[pairs.source or own for own, (pairs, _) in zip(self.sources, read)]
        )
        whole = Pairs.distinct_of(tables(), folder and folder / "mixture", dropped, source)
        made = [pairs.made.table for pairs, _ in read if pairs.made is not None]
        about = "\n".join(pairs.about for pairs, _ in read)
        whole = replace(whole, about=about, made=Pairs.distinct_of(made) if made else None)
        return whole, whole.table["asked"].to_numpy()

    def sampler(self, source: NDArray[np.int64], batch_size: int, seed: int) -> Mixed:
        """Return a sampler of batches; `source` is the position of each row's source, [n]."""
        return Mixed(source, batch_size, seed, self.weights, self.batches, self.temperatures)


def _apart(pairs: Pairs, earlier: Sequence[Pairs], salt: int) -> Pairs:
    """Return pairs in which an id that has another text in earlier ones is another id, of a
    document or a negative, too."""
    own, catalogues = Catalogue.of(pairs), [Catalogue.of(each) for each in earlier]
    texts: tuple[tuple[Text, tuple[str, ...]], ...] = (
        ("query", ("query",)),
        ("doc", ("doc", "negatives")),
    )
    for text, roles in texts:
        taken = [_with_another_text(own.distinct(text), each.distinct(text)) for each in catalogues]
        others = np.concatenate([*taken, np.empty(0, np.int64)])
        for role in roles if len(others) else ():
            ids, shown, _ = pairs.side(role)
            if len(ids):  # of negatives, there may be none
                twice = np.isin(ids, others)
                unshared = pc.if_else(pa.array(twice), None, shown.combine_chunks())
                pairs = pairs.with_ids(
                    role, np.where(twice, mixed(ids, salt), ids), pa.chunked_array([unshared])
                )
    return pairs


def _with_another_text(own: tuple[Ids, Texts], other: tuple[Ids, Texts]) -> Ids:
    """Return the ids that both have, each for another text; distinct ids with their texts."""
    ids, *places = np.intersect1d(own[0], other[0], assume_unique=True, return_indices=True)
    contents = [
        content_ids(texts.take(at)) for (_, texts), at in zip((own, other), places, strict=True)
    ]
    shared: Ids = ids[contents[0] != contents[1]]
    return shared
