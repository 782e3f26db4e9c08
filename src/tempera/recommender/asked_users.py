"""Users to recommend to, many at once: users of a run, or users with the histories of a file.

Letters in shapes: u users, e events of a file, i items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import DataError, quantity
from ..forms.event_roles import TABLE, USUAL
from ..options.build import options_of_run
from ..recommend.judge.full_catalogue import Histories
from ..recommend.judge.past_events import Moment, PastEvents
from ..recommend.read.feature_tables import KEY, keyed
from ..recommend.read.interactions import Interactions
from ..recommend.read.timeline import Timeline
from ..recommend.train.entity_tables import entities
from ..tables.nested import with_paths
from ..tables.streams import stream
from ..tables.tables import blocks
from ..task.run_files import USERS
from .further_events import data_of_run, left_out_of, read_further, refuse_another_unit
from .known_items import ids_of
from .recommender import Recommender
from .stored_histories import Codes

_UNKNOWN = "the run does not know {:,} of these users, who are recommended to by no history"
_REPLACED = "the histories given take the place of those of {}; what they have taken stays left out"
_AT_NOW = (
    "the model reads the time since the last event (elapsed), and the histories given have no "
    "times: their last events are taken to be now"
)


@dataclass(frozen=True)
class AskedUsers:
    """Hold users with their past events at a moment.

    Attributes:
        recommender: with rows for these users, and for the contexts of their events.
        ids: of the users, in the type of the run's ids if possible, [u].
        codes: of the users in the recommender, [u].
        past: of the users, u rows.
        moment: of the question; None without times.
        unknown: number of users whom the run does not know.
        notes: for the reader.
    """

    recommender: Recommender
    ids: pa.ChunkedArray
    codes: Codes
    past: PastEvents
    moment: Moment | None
    unknown: int
    notes: tuple[str, ...]


def users_of_run(recommender: Recommender, users: Any, moment: Moment | None) -> AskedUsers:
    """Return users with the histories that the run knows.

    Args:
        users: a table with a column of ids, in a file or in memory, or a list of ids; None is all
            users that the run knows. Each id is taken once.

    Raises:
        DataError: no user, a wrong id, or a table that cannot be read.
    """
    ids = entities(recommender.folder / USERS).table["id"]
    if users is not None:
        ids = _ids(recommender, users, ids.type)
    unknown = int((codes_of(recommender, ids) == len(recommender.users.table) - 1).sum())
    notes = [_UNKNOWN.format(unknown)] if unknown else []
    recommender = recommender.with_users(ids.cast(pa.large_string()))
    codes = codes_of(recommender, ids)
    everything = recommender.stored.rows(recommender.users.table["id"].take(pa.array(codes)))
    past = everything if moment is None else everything.until(moment)
    later = int(everything.items.lengths.sum() - past.items.lengths.sum())
    notes += recommender.notes_of(moment, later=later)
    return AskedUsers(recommender, ids, codes, past, moment, unknown, tuple(notes))


def users_of_histories(
    recommender: Recommender, histories: Any, moment: Moment | None, context: Mapping[str, Any]
) -> AskedUsers:
    """Return the users of a file, with the histories in the file.

    The events of a user whom the run knows take the place of the known history; what the user has
    taken, disliked or rated low stays left out. Events with items that the run does not have are
    left out and counted.

    Args:
        histories: a file or a folder of interactions, or an object with interactions, with the
            run's columns. Columns of times, ratings, behaviours and contexts may be missing.
        moment: of the question; if it is not named, the latest time of the run and the file.
        context: the context of all questions.

    Raises:
        DataError: a table that cannot be read, times in another unit than the run's, or no event
            with an item of the run.
    """
    _, options = data_of_run(recommender.folder)
    options, notes = _fitting(options, histories)
    later = read_further(options, histories, recommender.integers)
    refuse_another_unit(later.time, recommender)
    from_file, left_out = _past_of(later, recommender)
    for reason, count in left_out_of(later.dropped, options).items():
        notes.append(f"left out: {quantity(count, reason)}")
    unknown_items = left_out.sum()
    if unknown_items == len(left_out):
        raise DataError(
            f"no event of {_name(histories)} has an item of {recommender.folder}: its ids are like "
            f"{later.item_ids[0].as_py()!r}"
        )
    if unknown_items:
        absent = quantity(int(unknown_items), "events with an item that the run does not have")
        notes.append(f"left out: {absent}")
    if moment is not None and not moment.named and later.time is not None:
        latest = max(moment.now, float(later.time.max()))
        moment = replace(moment, now=latest)
    recommender = _in_contexts(recommender, later, context)
    ids = pa.chunked_array([later.user_ids])
    known_codes = codes_of(recommender, ids)
    is_known = known_codes < len(recommender.users.table) - 1
    recommender = recommender.with_users(ids)
    codes = codes_of(recommender, ids)
    past = from_file if moment is None else from_file.until(moment)
    later_events = int(from_file.items.lengths.sum() - past.items.lengths.sum())
    if is_known.any():
        notes.append(_REPLACED.format(quantity(int(is_known.sum()), "users whom the run knows")))
        stored = recommender.stored.rows(ids)
        past = _also_left_out(past, stored if moment is None else stored.until(moment))
    notes += recommender.notes_of(moment, later=later_events)
    if recommender.reads_elapsed and later.time is None:
        notes.append(_AT_NOW)
    with suppress(pa.ArrowInvalid):  # an id that does not fit the type of the run's ids
        ids = ids.cast(entities(recommender.folder / USERS).table["id"].type)
    unknown = int((~is_known).sum())
    return AskedUsers(recommender, ids, codes, past, moment, unknown, tuple(notes))


def codes_of(recommender: Recommender, ids: pa.ChunkedArray) -> Codes:
    """Return the codes of users, [u]; an unknown user has the last code of the run."""
    known = recommender.users.table["id"]
    at = pc.index_in(ids.cast(pa.large_string()), value_set=known).fill_null(len(known) - 1)
    codes: Codes = at.to_numpy().astype(np.int64)
    return codes


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


def _fitting(options: Interactions, histories: Any) -> tuple[Interactions, list[str]]:
    """Return the run's options for a table of histories, whose columns may have the usual names of
    roles or be missing, and the notes on missing columns."""
    is_path = isinstance(histories, str | Path)
    rows = blocks(Path(histories), options.form) if is_path else stream(histories)
    block = with_paths(next(rows), [*TABLE.chosen(vars(options)), *options.context])
    names = block.table.column_names
    changed: dict[str, Any] = {"metadata": ("*",), "weight": None}
    for role in ("user", "item", "time", "position", "rating", "behaviour"):
        if getattr(options, role) not in names:
            changed[role] = None
    changed["context"] = tuple(name for name in options.context if name in names)
    fitting = replace(options, **_without_uses(options, changed, names), **changed)
    notes = []
    for role in ("time", "rating", "behaviour"):
        column = getattr(options, role)
        if column is not None and not TABLE.has(role, vars(fitting), names):
            notes.append(f"the histories given have no column {column!r}: {_WITHOUT[role]}")
    for name in options.context:
        if name not in names:
            notes.append(f"the histories given have no column {name!r} of the context")
    return fitting, notes


_WITHOUT = {
    "time": "events are in the order of the rows",
    "rating": "every row is taken as an event that the user liked",
    "behaviour": "every row is taken as an event of a behaviour to predict",
}


def _without_uses(
    options: Interactions, changed: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """Return the options that need a column, without those whose column is missing."""
    with_columns = {**vars(options), **changed}
    uses: dict[str, Any] = {}
    if not TABLE.has("rating", with_columns, names):
        uses["min_rating"] = None
        if not isinstance(options.dislikes, tuple):
            uses["dislikes"] = None
    if changed.get("behaviour", options.behaviour) is None:
        uses["targets"] = None
        if isinstance(options.dislikes, tuple):
            uses["dislikes"] = None
    if not TABLE.has("time", with_columns, names):
        uses["strict_time"] = False
    return uses


def _past_of(later: Timeline, recommender: Recommender) -> tuple[PastEvents, NDArray[np.bool_]]:
    """Return the events of a file as past events of its users, u rows, and True for each event left
    out, with an item that the run does not have, [e].

    Contexts are numbered as `_in_contexts` numbers them.
    """
    at = recommender.known_items.places(later.item_ids.to_pylist())
    code = at[later.item]  # [e]
    kept = code >= 0
    offsets = np.concatenate([[0], kept.cumsum()])[later.offsets]
    rows = {"items": Histories.of(code[kept], offsets)}
    times: NDArray[Any] | None = later.time if later.ordered else None
    if times is not None:
        rows["times"] = Histories.of(times[kept], offsets)
    if later.target is not None:
        rows["targets"] = Histories.of(later.target[kept], offsets)
    if later.context is not None and recommender.contexts is not None:
        first = len(recommender.contexts.table) - 1
        rows["contexts"] = Histories.of(later.context[kept] + first, offsets)
    if later.aside is not None:
        aside = at[later.aside.item]
        stays = aside >= 0
        offsets = np.concatenate([[0], stays.cumsum()])[later.aside.offsets]
        rows["aside"] = Histories.of(aside[stays], offsets)
        aside_times: NDArray[Any] | None = later.aside.time if later.ordered else None
        if aside_times is not None:
            rows["aside_times"] = Histories.of(aside_times[stays], offsets)
    return PastEvents(**rows), ~kept


def _in_contexts(
    recommender: Recommender, later: Timeline, context: Mapping[str, Any]
) -> Recommender:
    """Return a recommender with the contexts of the events of a file, and the context of the
    questions."""
    if context:
        recommender = recommender.within(context)
    if recommender.contexts is None or later.contexts is None:
        return recommender
    of_query = recommender.contexts.table[-1:]
    contexts = {}
    for name in of_query.column_names:
        values: list[Any] = [None] * len(later.contexts)
        if name in later.contexts.column_names:
            values = later.contexts[name].to_pylist()
        contexts[name] = values + of_query[name].to_pylist()
    del contexts["id"]
    return recommender.with_contexts(contexts, len(later.contexts) + 1)


def _also_left_out(past: PastEvents, stored: PastEvents) -> PastEvents:
    """Return past events whose users are not recommended what their stored events leave out."""
    user, item = stored.left_out
    lengths = np.bincount(user, minlength=len(past))
    aside = Histories.of(item, np.concatenate([[0], lengths.cumsum()]))
    if past.aside is not None:
        aside = past.aside.joined(aside)
    return replace(past, aside=aside, aside_times=None)


def _name(histories: Any) -> str:
    return str(histories) if isinstance(histories, str | Path) else "the histories given"
