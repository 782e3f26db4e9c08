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

from ..errors import DataError, OutputError
from ..io.atomic import new_file, refuse_replacing
from ..io.console import progress_bar
from ..options.build import options_of_run
from ..ranking.small_vectors import SmallVectors
from ..recommend.judge.full_catalogue import query_blocks
from ..recommend.judge.past_events import Moment, PastEvents
from ..recommend.read.event_roles import USUAL
from ..recommend.read.feature_tables import KEY, keyed
from ..recommend.read.timeline import ITEMS, USERS
from ..recommend.train.entity_tables import entities
from ..tables.streams import stream
from ..tables.tables import blocks
from .layout import refuse_depth
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

    Ids have the type that the run has. A user has fewer rows where fewer items are left.

    Args:
        path: a .parquet file, which appears whole or not at all.
        users: a table with a column of ids, in a file or in memory, or a list of ids, each taken
            once; None is all users that the run knows. Users whom it does not know are counted, and
            recommended to by no history.
        now: the moment of the question, from which each user's pause is counted, as
            `Recommender.recommend` takes it.
        context: what all of them ask in.
        before: answer as at an earlier time, as `Recommender.recommend` does.
        overwrite: replace a file that is there.

    Returns:
        The numbers of users, of those whom the run does not know, and of rows; the system that
        ranks; and notes for the reader.

    Raises:
        OutputError: the file exists, is in a run, or cannot be written.
        DataError: no user, what is no id, a table that cannot be read, no such time, or a hybrid of
            a run without counts.
    """
    refuse_depth(k)
    if path.suffix != ".parquet":
        raise OutputError(
            f"cannot write recommendations to {path}; give a name that ends in .parquet"
        )
    read = [users] if isinstance(users, str | Path) else []
    refuse_replacing(path, overwrite, *read, models=[recommender.folder])
    moment = recommender.moment(now, before)
    recommender = recommender.within(context) if context else recommender
    counting, known = recommender.counting(hybrid), entities(recommender.folder / USERS).table["id"]
    ids = known if users is None else _ids(recommender, users, known.type)
    items = entities(recommender.folder / ITEMS).table["id"]
    unknown = int((_codes(recommender, ids) == len(recommender.users.table) - 1).sum())
    recommender = recommender.with_users(ids.cast(pa.large_string()))
    codes = _codes(recommender, ids)

    later = 0

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
    system = "the vectors" if counting is None else counting.ranks
    facts = {
        "output": str(path),
        "users": len(ids),
        "unknown": unknown,
        "rows": written,
        "ranked_by": system,
    }
    return {
        **facts,
        "notes": [
            *([_UNKNOWN.format(unknown)] if unknown else []),
            *recommender.notes_of(moment, later=later),
        ],
    }


def write_user_vectors(
    recommender: Recommender, folder: Path, width: int | None = None, now: Any = None
) -> dict[str, Any]:
    """Write users.parquet with the columns id and vector for all users that the run knows; return
    their number, and the notes on the moment at which they stand so.

    Args:
        now: the moment, as `Recommender.recommend` takes it: up to it the time since each user's
            last event is counted, for towers that read it.
        width: keep the first numbers of each vector, as an index that is narrowed to it keeps those
            of the items.
    """
    moment = recommender.moment(now)
    codes: Codes = np.arange(len(recommender.users.table) - 1)
    ids, index = recommender.users.table["id"], recommender.index
    width = index.vectors.shape[1] if width is None else width
    stamp = index.stamp and replace(
        index.stamp, dimensions=width, checksum=None
    )  # the checksum is of the items

    def tables() -> Iterator[pa.Table]:
        for rows, past in _past(recommender, codes, "embedding users"):
            known = past if moment is None else past.until(moment)
            users = recommender.vectors_of(codes[rows].tolist(), known, moment)
            vectors = SmallVectors(users, width)[:]
            column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), width)
            yield pa.table({"id": ids.take(pa.array(codes[rows])), "vector": column})

    written = _write(folder / _VECTORS, tables(), None if stamp is None else stamp.metadata())
    return {"users": written, "notes": _of_moment(recommender, moment)}


def _of_moment(recommender: Recommender, moment: Moment | None) -> list[str]:
    """Return the notes on a moment, without those on the context, which exports do not have."""
    without = set(recommender.notes)
    return [note for note in recommender.notes_of(moment) if note not in without]


def _ids(recommender: Recommender, users: Any, kind: pa.DataType) -> pa.ChunkedArray:
    """Return the ids of a table or a list, each once, in the type that the run has; as texts if
    they do not fit it."""
    if isinstance(users, str | Path) or hasattr(
        users, "columns"
    ):  # which frames and tables have, and no series
        options = options_of_run(recommender.folder).values.get("data", {})
        column = options.get("user") or "user"
        read = blocks(Path(users)) if isinstance(users, str | Path) else stream(users)
        spelling = recommender.integers["user"]
        texts = [
            keyed(block, "user", column, USUAL["user"], spelling)[KEY].unique() for block in read
        ]
    elif (names := ids_of(users)) is not None:
        texts = [recommender.id_texts("user", names)]
    else:
        raise DataError(
            f"there is no user to recommend to in {users!r}: give a table, its path, or a list of ids"
        )
    ids = pa.chunked_array([pa.chunked_array(texts).unique()])
    if not len(ids):
        raise DataError("there is no user to recommend to: give at least one")
    try:
        return ids.cast(kind)
    except pa.ArrowInvalid:
        return ids


def _codes(recommender: Recommender, ids: pa.ChunkedArray) -> Codes:
    """Return the codes of users, [u]; the last one of the run for those whom it does not know."""
    known = recommender.users.table["id"]
    at = pc.index_in(ids.cast(pa.large_string()), value_set=known).fill_null(len(known) - 1)
    codes: Codes = at.to_numpy().astype(np.int64)
    return codes


def _past(recommender: Recommender, codes: Codes, label: str) -> Iterator[tuple[slice, PastEvents]]:
    """Yield blocks of users with what they have done, with a progress bar."""
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
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= _ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
