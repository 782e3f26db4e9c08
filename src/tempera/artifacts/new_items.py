"""Addition of new items to a run by their features, without training."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ..core.frame import Frame
from ..errors import DataError
from ..io.atomic import staged
from ..io.manifest import MANIFEST, refuse_not_whole
from ..options.build import options_of_run
from ..recommend.judge.counts import COUNTS
from ..recommend.read.event_roles import USUAL
from ..recommend.read.feature_tables import KEY, by_id
from ..recommend.read.timeline import HISTORIES, ITEMS
from ..recommend.train.encoders import Entities, Id
from ..recommend.train.entity_tables import documents_of, entities, with_counts
from ..tables.reader import is_text, reads_as
from ..tables.tables import blocks
from ..task.showcase import Searched
from .index import write_searched
from .recommender import Recommender


def add_items(run: Path, path: Path) -> dict[str, Any]:
    """Append items to a run, with vectors by their features and the vector for unknown ids; nothing
    is trained.

    The run's tables and its index are replaced together or not at all, by one process at a time.
    Export indexes again afterwards.

    Args:
        run: of a recommender.
        path: a table with ids and the columns that the towers read; other columns of the run's
            items may be missing.

    Returns:
        The numbers of items added and left out (by reason), columns that are not the run's, and the
        number of all items.

    Raises:
        DataError: no recommender, or one that knows items by ids alone; a column that is missing or
            of another type; an id with two rows; no new item.
        OutputError: a run that cannot be written.
    """
    Recommender(run)  # refuses what is none before anything is written beside it
    refuse_not_whole(run)  # what is damaged would be copied, and have a right checksum then
    with staged(run, overwrite=True) as folder:
        return _added(run, path, folder)


def _added(run: Path, path: Path, folder: Path) -> dict[str, Any]:
    """Write the run with its new items into a folder, and return what `add_items` does."""
    recommender = Recommender(run)
    old, dropped = entities(run / ITEMS), Counter[str]()
    new, ignored = _new(path, recommender, old.table, dropped)
    items = Entities(
        pa.concat_tables([old.table, new]), np.append(old.count, np.zeros(len(new), np.int64))
    )
    tower = recommender.load_towers(items, str(path))
    index = recommender.index
    if index.stamp is not None:
        index.stamp.refuse_other(recommender.fingerprint, index.folder)
    arrived = tower.encode(Frame({"item": torch.arange(len(old.table), len(items.table))})).numpy()
    vectors = np.concatenate([index.vectors, arrived])
    tables = {ITEMS: with_counts(items), HISTORIES: recommender.stored.table}
    if (counting := recommender.counts) is not None:
        tables[COUNTS] = counting.table()
    shutil.copytree(run, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("index"))
    (folder / MANIFEST).unlink(missing_ok=True)  # of the run without them
    write_searched(folder, Searched(vectors, documents_of(items), tower.normalised, tables))
    return {
        "run": str(run),
        "added": len(new),
        "items": len(items.table),
        "left_out": dict(dropped),
        "columns_left_out": ignored,
    }


def _new(
    path: Path, recommender: Recommender, items: pa.Table, dropped: Counter[str]
) -> tuple[pa.Table, list[str]]:
    """Return the items that a run does not have, in the columns and types of its table, and the
    columns left out."""
    features = [feature for feature in recommender.options.doc if not isinstance(feature, Id)]
    if not features:
        raise DataError(
            f"{recommender.folder} knows items only by their ids, which say nothing of new items: train with "
            "tower.doc of texts, categories or numbers"
        )
    column = options_of_run(recommender.folder).values.get("data", {}).get("item") or "item"
    table = by_id(blocks(path), "item", column, USUAL["item"])
    needed = [feature.column for feature in features]
    missing = next((name for name in needed if name not in table.column_names), None)
    if missing is not None:
        raise DataError(
            f"{path} has no column {missing!r}, which the towers read; it has {_names(table) or 'ids alone'}"
        )
    ids = _cast(table, items.schema.field("id"), path).cast(
        pa.large_string()
    )  # "07" is 7 where the run has integers
    if len(pc.unique(ids)) < len(ids):
        name = next(name for name in ids.to_pylist() if pc.sum(pc.equal(ids, name)).as_py() > 1)
        raise DataError(f"{path} has two rows for the item {name}: keep one")
    known = pc.is_in(ids, value_set=recommender.item_ids.combine_chunks())
    if already := pc.sum(known).as_py():
        dropped["already in the run"] = already
    table = table.filter(pc.invert(known))
    if not len(table):
        raise DataError(f"{path} has no item that {recommender.folder} does not have already")
    columns = {field.name: _cast(table, field, path) for field in items.schema}
    return pa.table(columns, schema=items.schema), [
        n for n in table.column_names if n not in (KEY, *columns)
    ]


def _cast(table: pa.Table, field: pa.Field, path: Path) -> pa.ChunkedArray | pa.Array:
    """Return a column in the type that the run has; nulls if the table lacks it."""
    name = KEY if field.name == "id" else field.name
    if name not in table.column_names:
        return pa.nulls(len(table), field.type)
    values = table[name]
    try:
        if pa.types.is_timestamp(values.type) and is_text(field.type):
            values = values.cast(
                pa.timestamp("s"), safe=False
            )  # as the towers read times, in texts, too
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


def _names(table: pa.Table) -> str:
    return ", ".join(name for name in table.column_names if name != KEY)
