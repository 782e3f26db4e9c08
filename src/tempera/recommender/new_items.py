"""Addition of new items to a run by features, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ..core.frame import Frame
from ..corpus.index import write_searched
from ..errors import DataError
from ..forms.event_roles import USUAL
from ..io.atomic import renewed
from ..io.manifest import refuse_not_whole
from ..recommend.judge.counts import COUNTS
from ..recommend.read.feature_tables import KEY, by_id
from ..recommend.train.encoders import Entities, Id
from ..recommend.train.entity_tables import documents_of, entities, with_counts
from ..tables.reader import is_text, reads_as
from ..tables.tables import blocks
from ..task.run_files import ADDED, HISTORIES, ITEMS
from ..task.showcase import Searched
from .recommender import Recommender

# What is written anew: the index, and the tables with the items or their number.
_WRITTEN = ("index", ITEMS, HISTORIES, COUNTS, ADDED)


def add_items(run: Path, path: Path) -> dict[str, Any]:
    """Append items to a run, with vectors from features and the vector for unknown ids, without
    training.

    The run's tables and the run's index are replaced together or not at all, by one process at a
    time. Export indexes again afterwards.

    Args:
        run: of a recommender.
        path: a table with ids and the columns read by the towers; further columns of the run's
            items may be missing.

    Returns:
        The numbers of items added and left out (by reason), the columns unknown to the run, and the
            number of all items.

    Raises:
        DataError: no recommender, or a recommender that knows items by ids alone; a column missing
            or of another type; an id with two rows; no new item.
        OutputError: the run cannot be written.
    """
    Recommender(run)  # refuses another folder before anything is written beside it
    refuse_not_whole(run)
    with renewed(run, without=_WRITTEN) as folder:
        return _write_with_new_items(run, path, folder)


def _write_with_new_items(run: Path, path: Path, folder: Path) -> dict[str, Any]:
    """Write the run with the new items into a folder, and return the facts of `add_items`."""
    recommender = Recommender(run)
    old = entities(run / ITEMS)
    new, dropped, ignored = _read_new(path, recommender, old.table)
    counts = np.append(old.count, np.zeros(len(new), np.int64))
    items = Entities(pa.concat_tables([old.table, new]), counts)
    tower = recommender.load_towers(items, str(path))
    index = recommender.index
    if index.stamp is not None:
        index.stamp.refuse_other(recommender.fingerprint, index.folder)
    codes = torch.arange(len(old.table), len(items.table))
    new_vectors = tower.encode(Frame({"item": codes})).numpy()
    vectors = np.concatenate([index.vectors, new_vectors])
    tables = {ITEMS: with_counts(items), HISTORIES: recommender.stored.table}
    if recommender.counts is not None:
        tables[COUNTS] = recommender.counts.table()
    if recommender.added.any():
        added = np.append(recommender.added, np.zeros(len(new), np.int64))
        tables[ADDED] = pa.table({"count": added})
    write_searched(folder, Searched(vectors, documents_of(items), tower.normalised, tables))
    return {
        "run": str(run),
        "added": len(new),
        "items": len(items.table),
        "left_out": dropped,
        "columns_left_out": ignored,
    }


def _read_new(
    path: Path, recommender: Recommender, items: pa.Table
) -> tuple[pa.Table, dict[str, int], list[str]]:
    """Return the items new to a run, in the columns and types of the run's table; the number of
    items left out, by reason; and the columns left out."""
    features = [feature for feature in recommender.options.doc if not isinstance(feature, Id)]
    if not features:
        raise DataError(
            f"{recommender.folder} knows items only by their ids, which say nothing of new items: train with "
            "tower.doc of texts, categories or numbers"
        )
    table = by_id(blocks(path), "item", recommender.item_column, USUAL["item"])
    for feature in features:
        if feature.column not in table.column_names:
            columns = ", ".join(name for name in table.column_names if name != KEY)
            raise DataError(
                f"{path} has no column {feature.column!r}, which the towers read; it has {columns or 'ids alone'}"
            )
    # "07" is 7 if the ids of the run are integers.
    ids = _cast(table, items.schema.field("id"), path).cast(pa.large_string())
    if len(pc.unique(ids)) < len(ids):
        name = next(name for name in ids.to_pylist() if pc.sum(pc.equal(ids, name)).as_py() > 1)
        raise DataError(f"{path} has two rows for the item {name}: keep one")
    is_known = pc.is_in(ids, value_set=recommender.item_ids.combine_chunks())
    dropped = {}
    already = pc.sum(is_known).as_py()
    if already:
        dropped["already in the run"] = already
    table = table.filter(pc.invert(is_known))
    if not len(table):
        raise DataError(f"{path} has no item that {recommender.folder} does not have already")
    new = pa.table(
        {field.name: _cast(table, field, path) for field in items.schema}, schema=items.schema
    )
    ignored = [name for name in table.column_names if name != KEY and name not in new.column_names]
    return new, dropped, ignored


def _cast(table: pa.Table, field: pa.Field, path: Path) -> pa.ChunkedArray | pa.Array:
    """Return a column in the type of the run's column; nulls if the table lacks the column."""
    name = KEY if field.name == "id" else field.name
    if name not in table.column_names:
        return pa.nulls(len(table), field.type)
    values = table[name]
    try:
        if pa.types.is_timestamp(values.type) and is_text(field.type):
            # The towers read times in seconds, also times in texts.
            values = values.cast(pa.timestamp("s"), safe=False)
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if name == KEY and is_text(values.type):
            wrong = next(
                each.as_py() for each in pc.unique(values) if not reads_as(field.type, each)
            )
            raise DataError(
                f"{path}: the item id {wrong!r} is not {field.type}, as the ids of the run are"
            ) from None
        raise DataError(
            f"{path}: column {field.name!r} is {table[name].type}; expected {field.type} as in the run: {error}"
        ) from None
