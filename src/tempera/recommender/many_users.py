"""Recommendations and vectors of many users, computed block by block and written as Parquet.

Letters in shapes: u users.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from ..corpus.layout import refuse_depth
from ..errors import DataError, OutputError
from ..forms.event_roles import USUAL
from ..io.atomic import new_file, refuse_replacing
from ..io.console import progress_bar
from ..options.build import options_of_run
from ..ranking.small_vectors import SmallVectors
from ..recommend.judge.full_catalogue import query_blocks
from ..recommend.judge.past_events import PastEvents
from ..recommend.read.feature_tables import KEY, keyed
from ..recommend.train.entity_tables import entities
from ..tables.streams import stream
from ..tables.tables import blocks
from ..task.run_files import ITEMS, USERS
from .recommender import Recommender, ids_of
from .stored_histories import Codes

_VECTORS = "users.parquet"
_UNKNOWN = "the run does not know {:,} of these users, who are recommended to by no history"
_ROWS = 1 << 17  # of a row group, at least


def write_recommendations(
    recommender: Recommender,
    path: Path,
    users: Any = None,
    k: int = 10,
    exclude_seen: bool = True,
    now: Any = None,
    hybrid: bool | None = None,
    context: Mapping[str, Any] | None = None,
    before: Any = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the k best items of many users, as `Recommender.recommend` ranks them: columns user,
    rank, item and score.

    Ids have the type of the run's ids. A user has fewer rows if fewer items are left.

    Args:
        path: a .parquet file, which appears whole or not at all.
        users: a table with a column of ids, in a file or in memory, or a list of ids; None is all
            users that the run knows. Each id is taken once. Unknown users are counted, and
            recommended to by no history.
        now: the moment of the question, as in `Recommender.recommend`.
        context: the context of all questions, as in `Recommender.recommend`.
        before: answer as at an earlier time, as in `Recommender.recommend`.
        overwrite: replace an earlier file.

    Returns:
        The numbers of users, of unknown users, and of rows; the system that ranks; and notes for
        the reader.

    Raises:
        OutputError: the file exists, is in a run, or cannot be written.
        DataError: no user, a wrong id, a table that cannot be read, no such time, or a hybrid of a
            run without counts.
    """
    refuse_depth(k)
    if path.suffix != ".parquet":
        raise OutputError(
            f"cannot write recommendations to {path}; give a name that ends in .parquet"
        )
    read = [users] if isinstance(users, str | Path) else []
    refuse_replacing(path, overwrite, *read, models=[recommender.folder])
    moment = recommender.moment(now, before)
    if context:
        recommender = recommender.within(context)
    counting = recommender.counting(hybrid)
    ids = entities(recommender.folder / USERS).table["id"]
    if users is not None:
        ids = _ids(recommender, users, ids.type)
    items = entities(recommender.folder / ITEMS).table["id"]
    unknown = int((_codes(recommender, ids) == len(recommender.users.table) - 1).sum())
    recommender = recommender.with_users(ids.cast(pa.large_string()))
    codes = _codes(recommender, ids)
    later = 0  # events that were not known at the moment

    def tables() -> Iterator[pa.Table]:
        nonlocal later
        for rows, past in _past(recommender, codes, "recommending"):
            known = past if moment is None else past.until(moment)
            later += int(past.items.lengths.sum() - known.items.lengths.sum())
            scores, best, _ = recommender.best(
                codes[rows].tolist(), known, k, exclude_seen, moment, counting, recommender.index
            )
            user, rank = np.isfinite(scores).nonzero()
            columns = {
                "user": ids.take(pa.array(user + rows.start)),
                "rank": pa.array(rank + 1, pa.int32()),
                "item": items.take(pa.array(best[user, rank])),
                "score": scores[user, rank],
            }
            yield pa.table(columns)

    with new_file(path) as partial:
        written = _write(partial, tables())
    notes = [_UNKNOWN.format(unknown)] if unknown else []
    notes += recommender.notes_of(moment, later=later)
    return {
        "output": str(path),
        "users": len(ids),
        "unknown": unknown,
        "rows": written,
        "ranked_by": "the vectors" if counting is None else counting.ranks,
        "notes": notes,
    }


def write_user_vectors(
    recommender: Recommender, folder: Path, width: int | None = None, now: Any = None
) -> dict[str, Any]:
    """Write users.parquet with the columns id and vector for all users that the run knows; return
    the number of users, and the notes on the moment of the vectors.

    Args:
        now: the moment of the vectors, as in `Recommender.recommend`.
        width: keep the first numbers of each vector, for an index of items with this width.
    """
    moment = recommender.moment(now)
    codes: Codes = np.arange(len(recommender.users.table) - 1)
    ids = recommender.users.table["id"]
    index = recommender.index
    if width is None:
        width = index.vectors.shape[1]
    metadata = None
    if index.stamp is not None:  # the checksum is of the items
        metadata = replace(index.stamp, dimensions=width, checksum=None).metadata()

    def tables() -> Iterator[pa.Table]:
        for rows, past in _past(recommender, codes, "embedding users"):
            known = past if moment is None else past.until(moment)
            users = recommender.vectors_of(codes[rows].tolist(), known, moment)
            vectors = SmallVectors(users, width)[:]
            column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), width)
            yield pa.table({"id": ids.take(pa.array(codes[rows])), "vector": column})

    written = _write(folder / _VECTORS, tables(), metadata)
    on_context = recommender.notes  # exports have no context
    notes = [note for note in recommender.notes_of(moment) if note not in on_context]
    return {"users": written, "notes": notes}


def _ids(recommender: Recommender, users: Any, kind: pa.DataType) -> pa.ChunkedArray:
    """Return the ids of a table or a list, each once, in the type of the run's ids; as texts if an
    id does not fit the type."""
    if isinstance(users, str | Path) or hasattr(users, "columns"):  # frames and tables, no series
        options = options_of_run(recommender.folder).values.get("data", {})
        column = options.get("user") or "user"
        spelling = recommender.integers["user"]
        table = blocks(Path(users)) if isinstance(users, str | Path) else stream(users)
        texts = [
            keyed(block, "user", column, USUAL["user"], spelling)[KEY].unique() for block in table
        ]
    else:
        names = ids_of(users)
        if names is None:
            raise DataError(
                f"there is no user to recommend to in {users!r}: give a table, its path, or a list of ids"
            )
        texts = [recommender.id_texts("user", names)]
    ids = pa.chunked_array([pa.chunked_array(texts).unique()])
    if not len(ids):
        raise DataError("there is no user to recommend to: give at least one")
    try:
        return ids.cast(kind)
    except pa.ArrowInvalid:
        return ids


def _codes(recommender: Recommender, ids: pa.ChunkedArray) -> Codes:
    """Return the codes of users, [u]; an unknown user has the last code of the run."""
    known = recommender.users.table["id"]
    at = pc.index_in(ids.cast(pa.large_string()), value_set=known).fill_null(len(known) - 1)
    codes: Codes = at.to_numpy().astype(np.int64)
    return codes


def _past(recommender: Recommender, codes: Codes, label: str) -> Iterator[tuple[slice, PastEvents]]:
    """Yield the rows and the past events of users, block by block, with a progress bar."""
    past = recommender.stored.rows(recommender.users.table["id"].take(pa.array(codes)))
    with progress_bar(label, len(codes), "user") as bar:
        for rows in query_blocks(len(codes), len(recommender.items.table)):
            yield rows, past[rows]
            bar.update(rows.stop - rows.start)


def _write(
    path: Path, tables: Iterator[pa.Table], metadata: dict[bytes, bytes] | None = None
) -> int:
    """Write tables of one schema, one after the other, as row groups that are not small; return the
    number of rows."""
    first = next(tables)
    total = 0
    with parquet.ParquetWriter(path, first.schema.with_metadata(metadata)) as writer:
        for group in _groups(chain([first], tables)):
            writer.write_table(group.replace_schema_metadata(metadata))
            total += len(group)
    return total


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables joined to groups of at least `_ROWS` rows; the last group may be smaller."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= _ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
