"""The towers that the recipe tries on interactions, and its values of the options left open.

Candidates are plain options, so that a new candidate is a line here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...tables.reader import is_list, is_text
from ...task.rounds import LEARNING_RATE, TEMPERATURE, Open, Race, Round, Setting
from .encoders import Entities

WINDOWS = [
    {"mean": {"last": 1}},
    {"mean": {"last": 2}},
    {"mean": {"last": 4, "decay": 0.9}},
    {"mean": {"last": 10, "decay": 0.9}},
    {"mean": {"last": 20}},
    {"mean": {"last": 50}},
]
_IDS = [{"id": {"init": "cooccurrence"}}]
_ID_ALONE = {"tower.doc": _IDS, "tower.dimensions": 128}
# The towers without features; a run whose validation is too small to choose takes the first.
TOWERS: dict[str, dict[str, Any]] = {
    "ages": {
        **_ID_ALONE,
        "tower.history": {"dropout": 0.4, "pools": [{"ages": {"last": 20}}]},
        "tower.query_layers": [],
        TEMPERATURE: 0.1,
        "train.sampled": 1024,
        LEARNING_RATE: 0.006,
    },
    "windows": {**_ID_ALONE, "tower.history": {"pools": WINDOWS}, "tower.dropout": 0.1},
    "transformer": {
        **_ID_ALONE,
        "tower.history": {
            "pools": [{"transformer": {"last": 20, "layers": 1, "heads": 2, "dropout": 0.3}}]
        },
        LEARNING_RATE: 0.002,
    },
}
_BAG = {
    "tower.query_layers": [],
    TEMPERATURE: 0.1,
    LEARNING_RATE: 0.01,
    "tower.dimensions": 64,
}
# The towers without features for interactions without an order.
UNORDERED: dict[str, dict[str, Any]] = {
    "bag": {**_BAG, "tower.doc": ["id"], "tower.history": {"pools": ["bag"]}},
    "bag, by co-occurrence": {**_BAG, "tower.doc": _IDS, "tower.history": {"pools": ["bag"]}},
    "id by id": {**_BAG, "tower.doc": ["id"], "tower.query": ["id"], "tower.history": None},
}
_PARTS = (
    "tower.doc",
    "tower.query",
    "tower.history",
    "tower.query_layers",
    "tower.doc_layers",
)
_LOSS = ("objective.preset", "objective.similarity")
_WITH_PARTS = (*_PARTS, "tower.dimensions", "tower.dropout", LEARNING_RATE, "train.sampled")
# Options without a value of the user: `Open(value, raced, beside)`.
OPEN = {
    **{name: Open(beside=_PARTS) for name in _WITH_PARTS},
    TEMPERATURE: Open(beside=("objective.scale", *_LOSS, *_PARTS)),
    "objective.corrections": Open(["log_q"], False, _LOSS),
    "objective.masks": Open(["same_id", "known_positives"], False, _LOSS),
    "evaluation.baselines": Open(True, False),
    "evaluation.validation": Open(5000, False),
    # Looks by time are noisy: with an end after looks without a gain, Grocery trained too little.
    "train.evaluations": Open(5, False, ("train.patience",)),
    "train.refit": Open("auto", False, _PARTS),
}
# Types of columns that a feature reads, beside texts and lists of texts or of whole numbers.
_READ = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
)
_MOST_STEPS = 3_000  # of a run, of which the rounds take a part
_SHARING = 5  # least mean number of entities that share a value of a category


def race_of(
    users: Entities, items: Entities, ordered: bool, timed: bool, happened: Entities | None = None
) -> Race:
    """Return the race of the towers for users and items.

    The first round trains every tower on ids alone, for a sixth of the run's steps. The second
    round trains the best two towers with and without features, for a sixth; without any feature
    there is no second round. The last round trains the best two settings for a fourth, and keeps
    the best setting.

    Args:
        users: features and training counts of the users.
        items: features and training counts of the items.
        ordered: True if the order of a user's events means something.
        timed: True if the events have times.
        happened: a sample of training events, a row for the context of each event; the features of
            contexts are read beside the features of the user.
    """
    known = TOWERS if ordered else UNORDERED
    towers = [Setting(values, name) for name, values in known.items()]
    of_items = features_of(items)
    of_users = features_of(users)
    if happened is not None:
        of_users += features_of(happened)
    if ordered and timed:
        of_users.append({"elapsed": {}})
    rounds = [Round(6, towers, keep=2)]
    if of_users or of_items:
        ids: list[Any] = _IDS if ordered else ["id"]
        features: dict[str, Any] = {"tower.doc": [*ids, *of_items]}
        if of_users:
            features["tower.query"] = of_users
        rounds.append(Round(6, [Setting({}), Setting(features, "features")], keep=2))
    rounds.append(Round(4))
    return Race({}, rounds, known[next(iter(known))], most_steps=_MOST_STEPS)


def features_of(entities: Entities) -> list[dict[str, Any]]:
    """Return the options of a feature for each column of a table, by the values of the entities
    seen in training.

        lists of texts or of whole numbers                      categories
        texts, some with | between values                       categories
        texts, booleans, whole numbers and decimals, with       category
            five entities a value or more, on average
        dates, other numbers, and texts that are all numbers    number in ten buckets
        other texts                                             text

    The ids, a column with a single distinct value (unless a list), and a column of empty lists have
    no feature.

    >>> table = pa.table({"id": ["a", "b"], "genres": ["x|y", "y"], "year": [1.5, 2.5], "title": ["some text", "more"]})
    >>> features_of(Entities(table, np.ones(2, int)))
    [{'categories': {'column': 'genres'}}, {'number': {'column': 'year', 'buckets': 10}}, {'text': {'column': 'title'}}]
    """
    known = entities.table.filter(pa.array(entities.known))
    features: list[dict[str, Any]] = []
    for name in known.column_names:
        if name == "id":
            continue
        kind = _kind(known[name].drop_null())
        if kind == "number":
            features.append({kind: {"column": name, "buckets": 10}})
        elif kind:
            features.append({kind: {"column": name}})
    return features


def _kind(values: pa.ChunkedArray) -> str:
    """Return the kind of feature that reads a column's values, without nulls; empty if the column
    is not worth a feature."""
    kind = values.type
    if is_list(kind):
        reads = is_text(kind.value_type) or pa.types.is_integer(kind.value_type)
        if reads and pc.count(pc.list_flatten(values)).as_py():
            return "categories"
        return ""
    if not is_text(kind) and not any(is_one(kind) for is_one in _READ):
        return ""
    distinct = pc.count_distinct(values).as_py()
    if distinct < 2:
        return ""
    if pa.types.is_temporal(kind):
        return "number"
    shared = distinct * _SHARING <= len(values)
    if is_text(kind):
        if pc.any(pc.match_substring(values, "|")).as_py():
            return "categories"
        if shared:
            return "category"
        return "number" if _is_number(values) else "text"
    if shared and not pa.types.is_floating(kind):
        return "category"
    return "number"


def _is_number(texts: pa.ChunkedArray) -> bool:
    """Return True if all texts are finite numbers."""
    try:
        return bool(np.isfinite(texts.cast(pa.float64()).to_numpy()).all())
    except pa.ArrowInvalid:
        return False
