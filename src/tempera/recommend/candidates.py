"""The towers that the recipe tries on interactions, and its values of what is left open.

Candidates are plain options, so that another one is a line here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..io.reader import is_text
from ..towers.rounds import LEARNING_RATE, TEMPERATURE, Open, Race, Round, Setting
from .encoders import Entities

WINDOWS = [
    *({"mean": {"last": last}} for last in (1, 2)),
    *({"mean": {"last": last, "decay": 0.9}} for last in (4, 10)),
    *({"mean": {"last": last}} for last in (20, 50)),
]
_CAUSAL = {"transformer": {"last": 50, "layers": 2, "heads": 2, "dropout": 0.3}}
# The towers without features of items; the first is the one of a run whose validation is too small to choose.
TOWERS: dict[str, dict[str, Any]] = {
    "windows": {"tower.history": {"pools": WINDOWS}, "tower.dimensions": 128, "tower.dropout": 0.1},
    "attention": {"tower.history": {"pools": [{"mean": {"last": 1}}, {"attention": {"last": 50}}]}},
    "transformer": {"tower.history": {"pools": [_CAUSAL]}, "tower.dimensions": 64, LEARNING_RATE: 0.001},
    "id by id": {"tower.query": ["id"], "tower.history": None},
}
_PARTS = tuple(f"tower.{part}" for part in ("doc", "query", "history", "query_layers", "doc_layers"))
_LOSS = ("objective.preset", "objective.similarity")
_LOOKS = ("train.evaluations", "train.patience")
OPEN = {
    **{
        part: Open(TOWERS["windows"].get(part), beside=_PARTS)
        for part in (*_PARTS, "tower.dimensions", "tower.dropout")
    },
    LEARNING_RATE: Open(beside=_PARTS),
    TEMPERATURE: Open(0.05, False, ("objective.scale", *_LOSS)),
    "objective.corrections": Open(["log_q"], False, _LOSS),
    "objective.masks": Open(["same_id", "known_positives"], False, _LOSS),
    "train.evaluations": Open(10, False, _LOOKS),
    "train.patience": Open(3, False, _LOOKS),
}
_FEW = 5  # entities that a value has on average, for a column of categories


def race_of(items: Entities) -> Race:
    """Return the towers for these items: each alone, the best two with and without features of the items, the best two for longer.

    All rounds together take about the steps of one run.
    """
    towers, own = [Setting(values, name) for name, values in TOWERS.items()], features_of(items)
    beside = [Setting({}), Setting({"tower.doc": ["id", *own]}, "features of the items")]
    features = [Round(12, beside, keep=2)] if own else []
    return Race({}, [Round(3 * len(towers), towers, keep=2), *features, Round(6)])


def features_of(entities: Entities) -> list[dict[str, Any]]:
    """Return features that read the columns of a table, by what the columns hold.

    Lists, and texts with | between values, are categories; texts and whole numbers of which many entities share a value are a
    category; other numbers and dates are a number in ten buckets; other texts are read as texts. Columns with one value tell
    nothing.

    >>> table = pa.table({"id": ["a", "b"], "genres": ["x|y", "y"], "year": [1.5, 2.5], "title": ["some text", "more"]})
    >>> features_of(Entities(table, np.ones(2, int)))
    [{'categories': {'column': 'genres'}}, {'number': {'column': 'year', 'buckets': 10}}, {'text': {'column': 'title'}}]
    """
    known = entities.table.filter(pa.array(entities.known))
    kinds = ((name, _kind(known[name].drop_null())) for name in known.column_names if name != "id")
    options = {"number": {"buckets": 10}}
    return [{kind: {"column": name, **options.get(kind, {})}} for name, kind in kinds if kind]


def _kind(values: pa.ChunkedArray) -> str:
    """Return the kind of feature that reads a column's values, without nulls; empty if they tell nothing."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return "categories"
    distinct = pc.count_distinct(values).as_py()
    if distinct < 2:
        return ""
    shared = distinct * _FEW <= len(values)
    if pa.types.is_temporal(values.type):
        return "number"
    if not is_text(values.type):
        return "number" if pa.types.is_floating(values.type) or not shared else "category"
    if pc.any(pc.match_substring(values, "|")).as_py():
        return "categories"
    return "category" if shared else "number" if _is_number(values) else "text"


def _is_number(texts: pa.ChunkedArray) -> bool:
    try:
        return bool(np.isfinite(texts.cast(pa.float64()).to_numpy()).all())
    except pa.ArrowInvalid:
        return False
