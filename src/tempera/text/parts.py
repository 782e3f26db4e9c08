"""Files or splits that a user names for validation and test, read beside those to train on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from ..errors import DataError
from .pairs import TEST, TRAIN, VALIDATION, Pairs, named_alike


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


# Usual names of the splits of a data set.
_SPLITS = {
    TRAIN: ("train", "training"),
    VALIDATION: ("validation", "valid", "val", "dev", "eval"),
    TEST: ("test",),
}


def splits_of(names: Sequence[str], where: str) -> dict[int, str]:
    """Return which splits of a data set are of which part; a single one is to train on.

    Raises:
        DataError: several splits, none of which is called train.

    >>> splits_of(["test", "train"], "data")
    {0: 'train', 2: 'test'}
    """
    parts = {
        part: next(name for name in usual if name in names)
        for part, usual in _SPLITS.items()
        if {*usual} & {*names}
    }
    if len(names) == 1:
        parts = {TRAIN: names[0]}
    if TRAIN not in parts:
        raise DataError(
            f"{where} holds several data sets ({', '.join(map(str, names))}), none of which is called train: hand over one of "
            "them, or name the splits train, validation and test"
        )
    return parts


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
    about = "\n".join(pairs.about for pairs in parts.values())
    table = named_alike(pa.concat_tables(tables, promote_options="default"))
    return Pairs(table, dict(dropped), about=about)
