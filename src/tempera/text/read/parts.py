"""Files or splits named by a user for validation and test, read beside the training rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ...errors import DataError
from ...tables.kept_columns import aligned
from ...tables.saved_sets import PART_NAMES
from ...tables.streams import data_sets
from .pairs import TEST, TRAIN, VALIDATION, Pairs, with_shared_ids


class Named(Protocol):
    """A source with options for validation and test."""

    @property
    def validation(self) -> str | None:
        """File or split for validation."""

    @property
    def test(self) -> str | None:
        """File or split for the test."""


def named_parts(
    source: Named, train: str, folder: Path | None
) -> Iterator[tuple[int, str, Path | None]]:
    """Yield each named part, its name, and the folder of the rows; `train` names the training
    rows."""
    yield TRAIN, train, folder
    for part, name in ((VALIDATION, source.validation), (TEST, source.test)):
        if name is not None:
            yield part, name, folder and folder / f"part.{part}"


def parts_in_memory(data: Any, folder: Path | None) -> Iterator[tuple[int, Any, Path | None]]:
    """Yield each part of an object, and the folder of the rows.

    The parts of a DatasetDict are the splits, by name. Any other object is training rows.

    Raises:
        DataError: several splits, none of which is called train.
    """
    splits = data_sets(data)
    if len(splits) <= 1:
        rows = [*splits.values(), data]
        yield TRAIN, rows[0], folder
        return
    for part, part_name in ((TRAIN, "train"), (VALIDATION, "validation"), (TEST, "test")):
        names = [name for name in PART_NAMES[part_name] if name in splits]
        if names:
            yield part, splits[names[0]], folder and folder / f"part.{part}"
        elif part == TRAIN:
            raise DataError(
                f"data holds the splits {', '.join(splits)}, none of which is called train: hand over one of them"
            )


def joined(parts: Mapping[int, Pairs]) -> Pairs:
    """Return the rows of all parts, with a column `part` and the sums of dropped rows.

    A single part is returned unchanged.
    """
    if len(parts) == 1:
        (alone,) = parts.values()
        return alone
    tables = []
    dropped: Counter[str] = Counter()
    for part, pairs in parts.items():
        column = pa.array(np.full(len(pairs), part, np.uint8))
        tables.append(pairs.table.append_column("part", column))
        dropped.update(pairs.dropped)
    about = "\n".join(dict.fromkeys(pairs.about for pairs in parts.values()))
    table = with_shared_ids(pa.concat_tables(aligned(tables), promote_options="default"))
    return Pairs(table, dict(dropped), about=about)
