"""Recommendations and vectors of many users, computed block by block and written to a file.

Letters in shapes: u users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..corpus.layout import refuse_depth
from ..errors import DataError
from ..io.atomic import refuse_replacing
from ..io.console import progress_bar
from ..ranking.small_vectors import SmallVectors
from ..recommend.judge.full_catalogue import query_blocks
from ..recommend.judge.past_events import PastEvents
from ..recommend.train.entity_tables import entities
from ..task.run_files import ITEMS
from .asked_users import AskedUsers, users_of_histories, users_of_run
from .best_items import BestItems
from .diversity import refuse_diversity
from .recommender import Recommender
from .stored_histories import Codes
from .written_lists import refuse_ending, write_lists, write_parquet_tables

_VECTORS = "users.parquet"


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
    candidates: Any = None,
    exclude: Any = None,
    where: str | None = None,
    diversity: float = 0.0,
    histories: Any = None,
) -> dict[str, Any]:
    """Write the k best items of many users, as `Recommender.recommend` ranks them: columns user,
    rank, item and score.

    Ids have the type of the run's ids. A user has fewer rows if fewer items are left.

    Args:
        path: a .parquet, .csv or .jsonl file, which appears whole or not at all.
        users: a table with a column of ids, in a file or in memory, or a list of ids; None is all
            users that the run knows. Each id is taken once. Unknown users are counted, and
            recommended to by no history.
        now: the moment of the question, as in `Recommender.recommend`; with histories, by default
            the latest time of the run and of the histories.
        context: the context of all questions, as in `Recommender.recommend`.
        before: answer as at an earlier time, as in `Recommender.recommend`.
        overwrite: replace an earlier file.
        candidates: the only items to rank, for all users, as in `Recommender.recommend`.
        exclude: ids of items to leave out, for all users.
        where: a condition on the columns of the run's items, for all users.
        diversity: as in `Recommender.recommend`.
        histories: interactions of the users to recommend to, in place of `users`: a file or a
            folder, or an object, with the run's columns; columns of times, ratings, behaviours and
            contexts may be missing.

    Returns:
        The numbers of users, of unknown users, and of rows; the system that ranks; and notes for
        the reader.

    Raises:
        OutputError: another ending of the file, or the file exists, is in a run, or cannot be
            written.
        DataError: no user, a wrong id, a table that cannot be read, no such time, an unknown item,
            or a hybrid of a run without counts.
    """
    refuse_depth(k)
    refuse_diversity(diversity)
    refuse_ending(path)
    if users is not None and histories is not None:
        raise DataError("users and histories are given: histories name their users; give one")
    read = [each for each in (users, histories, candidates) if isinstance(each, str | Path)]
    refuse_replacing(path, overwrite, *read, models=[recommender.folder])
    moment = recommender.moment(now, before)
    chosen = recommender.chosen(candidates, exclude, where)
    counting = recommender.counting(hybrid)
    if histories is not None:
        audience = users_of_histories(recommender, histories, moment, context or {})
    else:
        within = recommender.within(context) if context else recommender
        audience = users_of_run(within, users, moment)
    best = BestItems(
        recommender.index,
        recommender.fingerprint,
        recommender.popularity,
        k,
        exclude_seen,
        counting,
        chosen,
        diversity,
    )
    written = write_lists(path, _lists(audience, best))
    notes = [] if chosen is None else list(chosen.notes)
    return {
        "output": str(path),
        "users": len(audience.ids),
        "unknown": audience.unknown,
        "rows": written,
        "ranked_by": "the vectors" if counting is None else counting.ranks,
        "notes": [*notes, *audience.notes],
    }


def _lists(audience: AskedUsers, best: BestItems) -> Iterator[pa.Table]:
    """Yield the best items of users, block by block: columns user, rank, item and score."""
    recommender = audience.recommender
    items = entities(recommender.folder / ITEMS).table["id"]
    with progress_bar("recommending", len(audience.ids), "user") as bar:
        for rows in query_blocks(len(audience.ids), len(items)):
            past = audience.past[rows]
            codes = audience.codes[rows].tolist()
            vectors = recommender.vectors_of(codes, past, audience.moment)
            scores, places, _ = best(vectors, past)
            user, rank = np.isfinite(scores).nonzero()
            columns = {
                "user": audience.ids.take(pa.array(user + rows.start)),
                "rank": pa.array(rank + 1, pa.int32()),
                "item": items.take(pa.array(places[user, rank])),
                "score": scores[user, rank],
            }
            yield pa.table(columns)
            bar.update(rows.stop - rows.start)


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

    written = write_parquet_tables(folder / _VECTORS, tables(), metadata)
    on_context = recommender.notes  # exports have no context
    notes = [note for note in recommender.notes_of(moment) if note not in on_context]
    return {"users": written, "notes": notes}


def _past(recommender: Recommender, codes: Codes, label: str) -> Iterator[tuple[slice, PastEvents]]:
    """Yield the rows and the past events of users, block by block, with a progress bar."""
    past = recommender.stored.rows(recommender.users.table["id"].take(pa.array(codes)))
    with progress_bar(label, len(codes), "user") as bar:
        for rows in query_blocks(len(codes), len(recommender.items.table)):
            yield rows, past[rows]
            bar.update(rows.stop - rows.start)
