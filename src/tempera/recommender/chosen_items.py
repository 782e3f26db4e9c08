"""The items that may be recommended: candidates, without excluded items, where the items' columns
pass a condition.

Letters in shapes: i items, a items that may be recommended.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, quantity
from ..forms.event_roles import USUAL
from ..recommend.read.feature_tables import KEY, keyed
from ..tables.streams import stream
from ..tables.tables import blocks
from .known_items import KnownItems, ids_of


@dataclass(frozen=True)
class ChosenItems:
    """Hold the items that may be recommended.

    Attributes:
        allowed: True for each item that may be recommended, [i].
        notes: for the reader, on candidates that the run does not know, and on a choice of nothing.
    """

    allowed: NDArray[np.bool_]
    notes: tuple[str, ...] = ()


def chosen_items(
    items: KnownItems,
    candidates: Any = None,
    exclude: Any = None,
    where: str | None = None,
    column: str = "item",
) -> ChosenItems | None:
    """Return the items that may be recommended; None for all items.

    Args:
        items: of the run.
        candidates: a list of ids, or a table with a column of ids, in a file or in memory. Ids in a
            table that the run does not know are left out and counted, since a catalogue has newer
            items than the run.
        exclude: a list of ids to leave out.
        where: a condition on the columns of the run's items, see `corpus.where.passing`.
        column: name of the column of ids in a table of candidates.

    Raises:
        DataError: an id unknown to the run, no known candidate, or a condition that does not fit
            the columns.
    """
    excluded = [] if exclude is None else _listed("exclude", exclude)
    if candidates is None and not excluded and where is None:
        return None
    notes = []
    allowed = np.ones(len(items.table), bool)
    if candidates is not None:
        codes, note = _candidates(items, candidates, column)
        allowed[:] = False
        allowed[codes] = True
        notes += note
    allowed[items.codes(items.texts(excluded))] = False
    if where is not None:
        from ..corpus.where import passing

        passes = np.zeros(len(allowed), bool)
        passes[passing(items.table, where)] = True
        allowed &= passes
    if not allowed.any():
        notes.append("no item is left to recommend by the candidates, exclude and where given")
    return ChosenItems(allowed, tuple(notes))


def _candidates(
    items: KnownItems, candidates: Any, column: str
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the codes of candidates, and the notes on those that the run does not know."""
    is_table = isinstance(candidates, str | Path) or hasattr(candidates, "columns")
    if not is_table:
        listed = _listed("candidates", candidates)
        if not listed:
            raise DataError("candidates is an empty list: give at least one id, or leave it out")
        return items.codes(items.texts(listed)), []
    texts: list[str] = []
    rows = blocks(Path(candidates)) if isinstance(candidates, str | Path) else stream(candidates)
    for block in rows:
        ids = keyed(block, "item", column, USUAL["item"], items.integers)[KEY]
        texts += ids.unique().to_pylist()
    texts = list(dict.fromkeys(texts))
    codes = items.places(texts)
    unknown = [text for text, code in zip(texts, codes.tolist()) if code < 0]
    where = candidates if isinstance(candidates, str | Path) else "the table of candidates"
    if not texts:
        raise DataError(f"{where} has no candidates: give at least one id")
    if len(unknown) == len(texts):
        near = items.did_you_mean(unknown[0])
        raise DataError(
            f"{where} has no item of {items.folder}: its ids are like {unknown[0]!r}.{near}"
        )
    if not unknown:
        return codes, []
    note = (
        f"{len(unknown):,} of {quantity(len(texts), 'candidates')} are unknown to the run and left "
        f"out, such as {unknown[0]!r}"
    )
    return codes[codes >= 0], [note]


def _listed(name: str, ids: Any) -> list[Any]:
    """Return the ids of a list.

    Raises:
        DataError: anything but a list of ids.
    """
    listed = ids_of(ids)
    if listed is None:
        raise DataError(f"{name} is {ids!r}; expected a list of ids of items")
    return listed
