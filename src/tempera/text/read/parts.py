"""Files or splits that a user names for validation and test, read beside those to train on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ...errors import DataError
from ...tables.saved_sets import PART_NAMES
from ...tables.streams import data_sets
from .pairs import TEST, TRAIN, VALIDATION, Pairs, with_shared_ids


class Named(Protocol):
    """A source whose options may name validation and test."""

    @property
    def validation(self) -> str | None:
        """File or split for validation."""

    @property
    def test(self) -> str | None:
        """File or split for the test."""


def named_parts(
    source: Named, train: str, folder: Path | None
) -> Iterator[tuple[int, str, Path | None]]:
    """Return each part that is named, its name, and the folder of its rows; `train` names the
    training rows."""
    yield TRAIN, train, folder
    for part, name in ((VALIDATION, source.validation), (TEST, source.test)):
        if name is not None:
            yield part, name, folder and folder / f"part.{part}"


def parts_in_memory(data: Any, folder: Path | None) -> Iterator[tuple[int, Any, Path | None]]:
    """Return each part of an object, and the folder of its rows: of a DatasetDict its splits, by
    their names; of another object itself, as training rows.

    Raises:
        DataError: several splits, none of which is called train.
    """
    splits = data_sets(data)
    if len(splits) <= 1:
        yield TRAIN, next(iter(splits.values()), data), folder
        return
    for part, called in ((TRAIN, "train"), (VALIDATION, "validation"), (TEST, "test")):
        name = next((name for name in PART_NAMES[called] if name in splits), None)
        if name is not None:
            yield part, splits[name], folder and folder / f"part.{part}"
        elif part == TRAIN:
            raise DataError(
                f"data holds the splits {', '.join(splits)}, none of which is called train: hand over one of them"
            )


def joined(parts: Mapping[int, Pairs]) -> Pairs:
    """Return the rows of all parts, with a column `part`; rows that were dropped are added up.

    A single part is returned as it is.
    """
    if len(parts) == 1:
        return next(iter(parts.values()))
    tables = [
        pairs.table.append_column("part", pa.array(np.full(len(pairs), part, np.uint8)))
        for part, pairs in parts.items()
    ]
    dropped: Counter[str] = Counter()
    for pairs in parts.values():
        dropped.update(pairs.dropped)
    about = "\n".join(dict.fromkeys(pairs.about for pairs in parts.values()))
    table = with_shared_ids(pa.concat_tables(tables, promote_options="default"))
    return Pairs(table, dict(dropped), about=about)
