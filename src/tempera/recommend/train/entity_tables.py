"""Users and items in a run's folder: tables with ids, features and counts, titles, and the towers
to read the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of

from ...errors import DataError
from ...io.manifest import refuse_damaged
from ...tables.tables import parquet_table, valid
from .encoders import Entities
from .features import Features, FeatureTowers

TITLES = ("title", "name")  # columns that an item is called by


def with_counts(known: Entities) -> pa.Table:
    """Return the table for `entities`: the last column is the count, under a name that no feature
    has."""
    name = "count"
    while name in known.table.column_names:
        name = f"training {name}"
    return known.table.append_column(name, pa.array(known.count))


def entities(path: Path) -> Entities:
    """Read the users or items of a run.

    Raises:
        DataError: no file at the path, or a file of another form.
    """
    try:
        table = parquet_table(path)
        if "id" not in table.column_names:  # names that are no text raise a ValueError here
            raise DataError(f"{path} is not readable: it has no column id")
        valid(table, str(path))
        count = table.column(table.num_columns - 1).to_numpy().astype(np.int64)
        return Entities(table.remove_column(table.num_columns - 1), count)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: the run is incomplete") from None
    except (OSError, pa.ArrowException, ValueError, IndexError) as error:
        raise DataError(f"{path} is not readable: {str(error).splitlines()[0]}") from None


def documents_of(items: Entities) -> pa.Table:
    """Return items in the columns of an index: doc_id, name, place, doc."""
    titles = pa.array(titles_of(items.table), pa.large_string())
    places = pa.array([""] * len(titles), pa.large_string())
    ids = items.table["id"].cast(pa.string())
    return pa.table({"doc_id": ids, "name": titles, "place": places, "doc": titles})


def open_towers(
    options: Features,
    normalised: bool,
    users: Entities,
    items: Entities,
    weights: Path,
    contexts: Entities | None = None,
    added: str = "",
) -> FeatureTowers:
    """Build the towers for given users and items, with saved weights.

    Args:
        normalised: vectors are compared by cosine.
        contexts: the contexts of events, if the run has any.
        added: the name of data new to the run, for example a file of items, for the message.

    Raises:
        DataError: weights of other towers, or no weights.
    """
    refuse_damaged(weights)
    try:
        tower = options.build(users, items, contexts)
        tower.load_state_dict(tensors_of(weights.read_bytes()))
    except DataError as error:
        what = f"the tables in {weights.parent} do not fit the run's config.yaml"
        if added:
            what = f"{added} does not fit the run"
        raise DataError(f"{what}: {error}") from None
    except FileNotFoundError:
        raise DataError(f"{weights} is missing: the run is incomplete") from None
    except (RuntimeError, SafetensorError) as error:
        what = str(error).strip().splitlines()[-1].strip()
        raise DataError(
            f"{weights} does not fit the run's config.yaml and the tables beside it: {what}"
        ) from None
    tower.normalised = normalised
    tower.eval()
    return tower


def item_names(table: pa.Table) -> pa.ChunkedArray:
    """Return the name of each item: its title, else its name, else its id.

    Raises:
        DataError: titles or names other than texts.
    """
    columns = [name for name in (*TITLES, "id") if name in table.column_names]
    return pc.coalesce(*(_as_text(table, name) for name in columns))


def _as_text(table: pa.Table, name: str) -> pa.ChunkedArray:
    try:
        return table[name].cast(pa.large_string())
    except pa.ArrowNotImplementedError:
        raise DataError(
            f"column {name} holds the items' names, but is {table[name].type}: rename it"
        ) from None


def titles_of(table: pa.Table) -> list[str]:
    """Return the names of items as a list."""
    titles: list[str] = item_names(table).to_pylist()
    return titles
