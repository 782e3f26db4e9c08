"""The items of a run by their ids: the code of each id, and what a mistyped id may have meant.

Letters in shapes: n ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError, did_you_mean, is_whole, nearest
from ..recommend.read.feature_tables import texts_of
from ..recommend.train.entity_tables import titles_of
from .stored_histories import Codes


@dataclass(frozen=True)
class KnownItems:
    """Hold the items of a run, for lookups by id.

    Args:
        folder: of the run, for messages.
        table: the items, with ids as texts.
        integers: True if the ids are integers in the run's data.
    """

    folder: Path
    table: pa.Table
    integers: bool

    @cached_property
    def ids(self) -> pa.ChunkedArray:
        """Ids of the items as texts, [i]."""
        return self.table["id"].cast(pa.large_string())

    def texts(self, ids: Iterable[Any]) -> list[str]:
        """Return ids as texts in the run's spelling.

        Raises:
            DataError: an id other than a text or a whole number.
        """
        texts: list[str] = id_texts("item", ids, self.integers).to_pylist()
        return texts

    def places(self, texts: Sequence[str]) -> Codes:
        """Return the codes of items, [n]; -1 for ids unknown to the run."""
        at = pc.index_in(pa.array(texts, pa.large_string()), value_set=self.ids)
        places: Codes = at.fill_null(-1).to_numpy().astype(np.int64)
        return places

    def codes(self, texts: Sequence[str]) -> Codes:
        """Return the codes of items, [n].

        Raises:
            DataError: ids unknown to the run.
        """
        codes = self.places(texts)
        unknown = [name for name, code in zip(texts, codes.tolist()) if code < 0]
        if unknown:
            near = self.did_you_mean(unknown[0])
            raise DataError(f"no such item in {self.folder}: {', '.join(unknown)}.{near}")
        return codes

    def did_you_mean(self, text: str) -> str:
        """Return a question for the item with a similar id, or else with a similar title; empty
        without a similar item."""
        near = nearest(text, self.ids.to_pylist())
        if near is not None:
            return f" Did you mean {_quoted(near)}?"
        titles = [title.lower() for title in titles_of(self.table)]
        title = did_you_mean(text.lower(), titles).removeprefix(" Did you mean ").removesuffix("?")
        if not title:
            return ""
        return f" Did you mean {self.ids[titles.index(title)]} ({title})?"


def id_texts(role: str, ids: Iterable[Any], integers: bool) -> pa.Array:
    """Return ids as texts: "007" and 7.0 are 7 if the ids of the run are integers.

    Args:
        role: user or item, for messages.
        integers: True if the ids of the run are integers.

    Raises:
        DataError: an id other than a text or a whole number.

    >>> id_texts("item", ["007", 7.0, "a"], integers=True).to_pylist()
    ['7', '7', 'a']
    """
    return texts_of(pa.array([_text(role, each) for each in ids], pa.large_string()), integers)


def ids_of(ids: Any) -> list[Any] | None:
    """Return the ids of a list, an array or a column; None for anything else, for example a text or
    a table.

    >>> ids_of((3, "7")), ids_of("37"), ids_of(b"37"), ids_of({"user": [3, 7]}), ids_of(37)
    ([3, '7'], None, None, None, None)
    """
    if isinstance(ids, str | bytes | bytearray | memoryview | Mapping) or hasattr(ids, "columns"):
        return None
    try:
        return list(ids)
    except TypeError:
        return None


def _quoted(name: str) -> str:
    """Return an id as in a line of a CSV: in quotes if the id has a comma or outer spaces."""
    return f'"{name}"' if "," in name or name != name.strip() else name


def _text(role: str, name: Any) -> str:
    """Return an id of a user or an item as a text."""
    name = name.as_py() if isinstance(name, pa.Scalar) else name
    if isinstance(name, float | np.floating) and float(name).is_integer():
        name = int(name)
    if not (isinstance(name, str) or is_whole(name)):
        raise DataError(f"{role} {name!r} is no id: ids are texts or whole numbers")
    return str(name)
