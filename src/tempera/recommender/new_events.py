"""Addition of new events to a run without training: histories, seen items, users, contexts, counts.

Letters in shapes: e new events, h events of the histories, u users, i items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from ..corpus.index import write_stamp
from ..errors import DataError, quantity
from ..io.atomic import renewed
from ..io.manifest import refuse_not_whole
from ..recommend.judge.counts import COUNTS
from ..recommend.judge.full_catalogue import Histories
from ..recommend.judge.past_events import PastEvents
from ..recommend.read.aside import ASIDE, TAKEN
from ..recommend.read.behaviours import with_contexts
from ..recommend.read.feature_tables import texts_of
from ..recommend.read.interactions import EventRows, read_rows
from ..recommend.train.encoders import Entities
from ..recommend.train.entity_tables import entities, with_counts
from ..task.run_files import ADDED, CONTEXTS, HISTORIES, USERS
from ..towers.saved import fingerprint
from ..towers.stamp import beside
from .further_events import data_of_run, left_out_of, refuse_another_unit, without_files
from .recommender import Recommender
from .recounted import recounted
from .stored_histories import Codes

_UNKNOWN_ITEM = "events with an item that the run does not have: add it with tempera add-items"
_KNOWN = "events that the run knows already"
_REPEATED = "repeated interactions"
_NOTHING_TAKEN = "events of new users who take nothing"
_UNTIMED = (
    "the events have no times: they follow those that the run knows, and events that were added "
    "before are not recognised"
)
NOT_LEARNED = (
    "not learned: the weights and the vectors of the items, the weight of counts beside vectors, "
    "and the figures of the run are those of its training; train again to learn from these events"
)


@dataclass(frozen=True)
class NewEvents:
    """Hold the events of a file in the codes of a run, user by user, the earliest first.

    Attributes:
        user: codes of users, known and new, [e].
        item: codes of items, [e].
        aside: True for each event that is disliked or rated low, [e].
        columns: time, target and context of each event, as far as they are known, [e] each.
        user_ids: ids of the new users, as texts, in rising order.
        contexts: the new contexts, in the columns of the run's contexts; None without contexts.
        left_out: events left out, by reason.
        dated: True if times were dates; None without times.
    """

    user: Codes
    item: Codes
    aside: NDArray[np.bool_]
    columns: Mapping[str, NDArray[Any]]
    user_ids: pa.Array
    contexts: pa.Table | None
    left_out: Mapping[str, int]
    dated: bool | None

    def __len__(self) -> int:
        return len(self.item)

    def only(self, kept: NDArray[np.bool_], reason: str) -> NewEvents:
        """Return the events where `kept` is True, [e]; the other events are counted by a reason."""
        left_out = dict(self.left_out)
        if not kept.all():
            left_out[reason] = left_out.get(reason, 0) + int((~kept).sum())
        return replace(
            self,
            user=self.user[kept],
            item=self.item[kept],
            aside=self.aside[kept],
            columns={name: values[kept] for name, values in self.columns.items()},
            left_out=left_out,
        )


def add_events(run: Path, data: Any) -> dict[str, Any]:
    """Add the events of a file to the histories of a run, without training.

    Users go on from the new events, what they have met is left out, and the latest time of the data
    moves. New users have the vector of unknown users, or of their id's bucket, with their history.
    The run's tables are replaced together or not at all, by one process at a time. Where there are
    new users or contexts, export indexes and towers again afterwards.

    Args:
        run: of a recommender.
        data: a file or a folder of interactions, or an object with interactions, with the run's
            columns. Events with items that the run does not have, and events that the run knows
            already, with the same user, item and time, are left out and counted.

    Returns:
        The numbers of events, of events that are rated low or disliked and only count as seen, of
        users with new events and of new users; events left out, by reason; the latest time of the
        data; under `recounted` True if the table of counts is that of old and new events, None for
        a run without counts; and notes for the reader.

    Raises:
        DataError: no recommender, data that cannot be read, times of another kind or unit than the
            run's, or no new event.
        OutputError: the run cannot be written.
    """
    Recommender(run)  # refuses another folder before anything is written beside it
    refuse_not_whole(run)
    with renewed(run) as folder:
        return _write_with_new_events(run, data, folder)


def _write_with_new_events(run: Path, data: Any, folder: Path) -> dict[str, Any]:
    """Write the run with the new events into a folder, and return the facts of `add_events`."""
    recommender = Recommender(run)
    events = _usable(recommender, read_new_events(recommender, data))
    users = _with_new_users(recommender, events)
    past = _stored_past(recommender, users)
    histories = _extended(past, events, recommender.stored.clock is not None)
    notes = []
    counting = recommender.counts
    again = None
    if counting is not None:
        ids = users.table["id"]
        again = recounted(run, counting, past.items, histories.items, ids, len(recommender.added))
        if again is None:
            notes.append(
                f"{COUNTS} is kept as it was: the run does not hold all that it was counted from, "
                "so counts do not know the new events"
            )
    if len(events.user_ids) or (events.contexts is not None and len(events.contexts)):
        _ = recommender.index  # is readable, since its stamp is written again
        changed = {USERS: users}
        if events.contexts is not None:
            changed[CONTEXTS] = _with_new_contexts(run, events.contexts)
    else:
        changed = {}
    added = np.bincount(events.item[~events.aside], minlength=len(recommender.items.table))
    tables = {
        HISTORIES: _table(users.table["id"], histories, recommender, events),
        ADDED: pa.table({"count": recommender.added + added}),
    }
    if counting is not None:
        tables[COUNTS] = (again or counting).table()
    _write(folder, changed, tables)
    clock = recommender.stored.clock
    if clock is None:
        notes.append(_UNTIMED)
    return {
        "run": str(run),
        "events": len(events),
        "seen_only": int(events.aside.sum()),
        "users": len(np.unique(events.user)),
        "new_users": len(events.user_ids),
        "left_out": dict(events.left_out),
        "latest": None if clock is None else clock.shown(_latest(histories)),
        "recounted": None if counting is None else again is not None,
        "notes": [*notes, NOT_LEARNED],
    }


def read_new_events(recommender: Recommender, data: Any) -> NewEvents:
    """Return the events of a file that the run could know: in the codes of the run.

    Raises:
        DataError: data that cannot be read, or times of another kind or unit than the run's.
    """
    _, config = data_of_run(recommender.folder)
    options = replace(without_files(config), metadata=("*",))
    if isinstance(data, str | Path):
        options = replace(options, path=str(data))
    rows = read_rows(options, data)
    table = rows.table
    dated = None
    if "time" in table.column_names:
        dated = pa.types.is_timestamp(table["time"].type)
        _refuse_other_times(recommender, table["time"], dated)
    user, new_ids = _user_codes(recommender, rows)
    items = texts_of(table["item"], recommender.integers["item"])
    item = pc.index_in(items, value_set=recommender.item_ids).fill_null(-1).to_numpy()
    aside = np.zeros(len(table), bool)
    if ASIDE in table.column_names:
        aside = table[ASIDE].to_numpy() != TAKEN
    columns = {}
    for name in ("time", "target", "position", "within"):
        if name in table.column_names:
            values = table[name]
            if pa.types.is_timestamp(values.type):
                values = values.cast(pa.int64())
            columns[name] = values.to_numpy()
    table, contexts = with_contexts(table)
    if contexts is not None and recommender.contexts is not None:
        place, contexts = _context_codes(recommender, contexts)
        columns["context"] = place[table["context"].to_numpy()]
    left_out = left_out_of(rows.dropped, options)
    events = NewEvents(
        user, item.astype(np.int64), aside, columns, new_ids, contexts, left_out, dated
    )
    keys = [columns[name] for name in ("within", "position", "time") if name in columns]
    order = np.lexsort([*keys, user])
    events = replace(
        events,
        user=user[order],
        item=events.item[order],
        aside=aside[order],
        columns={name: values[order] for name, values in columns.items()},
    )
    if rows.drops or not options.ordered:
        names = list(columns) if options.ordered else []
        events = events.only(_first_of_each(events, names), _REPEATED)
    return events


def _first_of_each(events: NewEvents, names: list[str]) -> NDArray[np.bool_]:
    """Return True for each event that is unlike every earlier event in user, item, being set aside
    and some columns, [e]."""
    alike = [events.user, events.item, events.aside, *(events.columns[name] for name in names)]
    order = np.lexsort(alike)  # stable: of equal events the first comes first
    same = np.logical_and.reduce([key[order[1:]] == key[order[:-1]] for key in alike])
    first = np.ones(len(events), bool)
    first[order[1:][same]] = False
    return first


def _user_codes(recommender: Recommender, rows: EventRows) -> tuple[Codes, pa.Array]:
    """Return the user of each row: the code of a known user, or a number after the known users'
    for a new user, [e]; and the ids of the new users in rising order.

    Raises:
        DataError: an id of another type than the run's.
    """
    known = recommender.users.table["id"][:-1]
    ids = rows.table["user"]
    if rows.anonymous:  # the same numbers are other sessions in the run
        highest = pc.max(known.cast(pa.int64())).as_py() if recommender.integers["user"] else None
        if highest is None:
            raise DataError(
                f"the rows are sessions without a user, and the users of {recommender.folder} have names: "
                "give a column of users"
            )
        ids = pc.add(ids.cast(pa.int64()), highest)
    texts = texts_of(ids, recommender.integers["user"])
    distinct = pc.unique(texts)
    new = distinct.filter(pc.invert(pc.is_in(distinct, value_set=known)))
    typed = _in_type_of_run(recommender, new)
    new = new.take(pc.array_sort_indices(typed))
    known_and_new = pa.chunked_array([*known.chunks, new])
    codes: Codes = pc.index_in(texts, value_set=known_and_new).to_numpy().astype(np.int64)
    return codes, new


def _in_type_of_run(recommender: Recommender, ids: pa.Array) -> pa.Array:
    """Return ids of users, texts, in the type of the run's ids."""
    kind = entities(recommender.folder / USERS).table["id"].type
    try:
        return ids.cast(kind)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"the ids of the users of {recommender.folder} are {kind}, and the new events have others: {error}"
        ) from None


def _refuse_other_times(recommender: Recommender, times: pa.ChunkedArray, dated: bool) -> None:
    """Raise DataError for times of another kind or another unit than the run's."""
    clock = recommender.stored.clock
    if clock is None:
        return
    if clock.dated != dated:
        kinds = ("numbers", "dates")
        raise DataError(
            f"times are {kinds[dated]}, and in {recommender.folder} they are {kinds[clock.dated]}: "
            "give times as the run was trained on them"
        )
    numbers = times.cast(pa.int64()) if dated else times
    refuse_another_unit(numbers.to_numpy(), recommender)


def _context_codes(recommender: Recommender, contexts: pa.Table) -> tuple[Codes, pa.Table]:
    """Return the code of each context of a file, of a known context or a number after the known
    contexts' for a new one; and the new contexts in the columns of the run."""
    assert recommender.contexts is not None
    known = recommender.contexts.table[:-2]
    names = [name for name in known.column_names if name != "id"]
    columns = {}
    for name in names:
        kind = known.schema.field(name).type
        columns[name] = pa.nulls(len(contexts), kind)
        if name in contexts.column_names:
            columns[name] = contexts[name].cast(kind)
    typed = pa.table(columns)
    place_of = {
        tuple(row.values()): code for code, row in enumerate(known.select(names).to_pylist())
    }
    codes = np.empty(len(contexts), np.int64)
    new = []
    for row, context in enumerate(typed.to_pylist()):
        key = tuple(context.values())
        if key not in place_of:
            place_of[key] = len(place_of)
            new.append(row)
        codes[row] = place_of[key]
    return codes, typed.take(pa.array(new, pa.int64()))


def _usable(recommender: Recommender, events: NewEvents) -> NewEvents:
    """Return the events that are new to the run, with items of the run, of users who take
    something.

    Raises:
        DataError: no new event.
    """
    total = len(events)
    events = events.only(events.item >= 0, _UNKNOWN_ITEM)
    events = events.only(~_is_known(recommender, events), _KNOWN)
    known_users = len(recommender.users.table) - 1
    takes = np.zeros(known_users + len(events.user_ids), bool)
    takes[:known_users] = True
    takes[events.user[~events.aside]] = True
    events = events.only(takes[events.user], _NOTHING_TAKEN)
    if not len(events):
        reasons = "; ".join(quantity(count, what) for what, count in events.left_out.items())
        raise DataError(f"no event is new to {recommender.folder}, of {total:,}: {reasons}")
    return _numbered_again(events, known_users)


def _numbered_again(events: NewEvents, known_users: int) -> NewEvents:
    """Return the events with new users numbered without those who have no event left."""
    is_left = np.zeros(len(events.user_ids), bool)
    is_new = events.user >= known_users
    is_left[events.user[is_new] - known_users] = True
    number = known_users + np.cumsum(is_left) - 1
    user = events.user.copy()
    user[is_new] = number[user[is_new] - known_users]
    return replace(events, user=user, user_ids=events.user_ids.filter(pa.array(is_left)))


def _is_known(recommender: Recommender, events: NewEvents) -> NDArray[np.bool_]:
    """Return True for each new event with the user, item and time of an event that the run knows,
    [e]; without an order, with the user and the item of one."""
    _, config = data_of_run(recommender.folder)
    past = _stored_past(recommender, None)
    names = []
    if config.ordered:
        if past.times is None or "time" not in events.columns or config.repeated == "keep":
            return np.zeros(len(events), bool)
        names = ["time"]
    known = np.zeros(len(events), bool)
    for is_aside in (False, True):
        lists = past.aside if is_aside else past.items
        times = past.aside_times if is_aside else past.times
        here = np.flatnonzero(events.aside == is_aside)
        if lists is None or (names and times is None):
            continue
        user, item = lists.pairs()
        old = [user, item]
        new = [events.user[here], events.item[here]]
        if names:
            assert times is not None
            old.append(times.values)
            new.append(events.columns["time"][here])
        known[here] = _are_among(new, old)
    return known


def _are_among(new: list[NDArray[Any]], old: list[NDArray[Any]]) -> NDArray[np.bool_]:
    """Return True for each row of some columns that is a row of other columns."""
    code = np.zeros(len(new[0]) + len(old[0]), np.int64)
    for first, second in zip(new, old, strict=True):
        values, place = np.unique(np.concatenate([first, second]), return_inverse=True)
        code = np.unique(code * len(values) + place, return_inverse=True)[1]
    return np.isin(code[: len(new[0])], code[len(new[0]) :])


def _with_new_users(recommender: Recommender, events: NewEvents) -> Entities:
    """Return the users of the run, followed by the new users, without features and training."""
    old = entities(recommender.folder / USERS)
    new = {field.name: pa.nulls(len(events.user_ids), field.type) for field in old.table.schema}
    new["id"] = _in_type_of_run(recommender, events.user_ids)
    table = pa.concat_tables([old.table, pa.table(new, schema=old.table.schema)])
    return Entities(table, np.append(old.count, np.zeros(len(events.user_ids), np.int64)))


def _with_new_contexts(run: Path, contexts: pa.Table) -> Entities:
    """Return the contexts of the run, followed by new contexts, without training."""
    old = entities(run / CONTEXTS)
    first = len(old.table)
    columns = {name: contexts[name] for name in contexts.column_names}
    columns["id"] = pa.array(range(first, first + len(contexts)))
    fields = [(field.name, field.type) for field in old.table.schema]
    new = pa.table({name: columns[name].cast(kind) for name, kind in fields})
    table = pa.concat_tables([old.table, new.cast(old.table.schema)])
    return Entities(table, np.append(old.count, np.zeros(len(contexts), np.int64)))


def _stored_past(recommender: Recommender, users: Entities | None) -> PastEvents:
    """Return the past events of the run's users, and empty rows for the new users, [u]."""
    ids = recommender.users.table["id"][:-1]
    if users is not None:
        ids = users.table["id"].cast(pa.large_string())
    return recommender.stored.rows(ids)


def _extended(past: PastEvents, events: NewEvents, timed: bool) -> PastEvents:
    """Return the past events of all users with the new events, in the order of times; of equal
    times, and without times, the new events are the later ones.

    Args:
        past: of the known and the new users, u rows.
        timed: True if the run knows the times of its events.
    """
    lists = dict[str, Histories]()
    taken = ~events.aside
    order, offsets = _order(past.items, past.times, events, taken, timed)
    columns = {"items": (past.items, events.item)}
    if timed and past.times is not None:
        columns["times"] = (past.times, events.columns["time"])
    if past.targets is not None:
        columns["targets"] = (past.targets, events.columns["target"])
    if past.contexts is not None:
        columns["contexts"] = (past.contexts, events.columns["context"])
    for name, (old, new) in columns.items():
        lists[name] = Histories.of(np.concatenate([old.values, new[taken]])[order], offsets)
    if past.aside is not None or events.aside.any():
        nothing = Histories.of(np.empty(0, np.int32), np.zeros(len(past) + 1, np.int64))
        aside = past.aside or nothing
        times = past.aside_times or nothing
        order, offsets = _order(aside, times, events, events.aside, timed)
        seen = np.concatenate([aside.values, events.item[events.aside]])
        lists["aside"] = Histories.of(seen[order], offsets)
        if timed and (past.aside_times is not None or past.aside is None):
            later = events.columns["time"][events.aside]
            lists["aside_times"] = Histories.of(
                np.concatenate([times.values.astype(later.dtype), later])[order], offsets
            )
    return PastEvents(**lists)


def _order(
    old: Histories,
    times: Histories | None,
    events: NewEvents,
    chosen: NDArray[np.bool_],
    timed: bool,
) -> tuple[Codes, Codes]:
    """Return the order of old and then some new events, user by user, [h], and the offsets of the
    users, [u + 1]."""
    user = np.concatenate([old.pairs()[0], events.user[chosen]])
    keys = [user]
    if timed and times is not None and len(times.values) == len(old.pairs()[0]):
        keys.insert(0, np.concatenate([times.values, events.columns["time"][chosen]]))
    lengths = np.bincount(user, minlength=len(old))
    return np.lexsort(keys), np.concatenate([[0], lengths.cumsum()])


_TYPES = {"items": pa.int32(), "aside": pa.int32(), "contexts": pa.int32(), "targets": pa.uint8()}


def _table(
    ids: pa.ChunkedArray, past: PastEvents, recommender: Recommender, events: NewEvents
) -> pa.Table:
    """Return past events in the form of the file of histories."""
    clock = recommender.stored.clock
    columns = {"id": ids}
    for name, lists in vars(past).items():
        if lists is None:
            continue
        values = pa.array(lists.items)
        if name in _TYPES:
            values = values.cast(_TYPES[name])
        elif clock is not None and clock.dated:
            values = values.cast(pa.int64()).cast(pa.timestamp("us", "UTC"))
        offsets = np.concatenate([lists.starts[:1], lists.stops])
        columns[name] = pa.LargeListArray.from_arrays(offsets, values)
    return pa.table(columns)


def _latest(past: PastEvents) -> float:
    """Return the latest time of all past events."""
    latest = []
    for lists in (past.times, past.aside_times):
        if lists is not None and len(lists.items):
            latest.append(lists.items.max())
    number: float = max(latest).item()
    return number


def _write(folder: Path, changed: Mapping[str, Entities], tables: Mapping[str, pa.Table]) -> None:
    """Replace tables in the copy of a run.

    Args:
        changed: tables beside the weights, by name, which give the model another fingerprint.
        tables: tables that name the fingerprint, by name.
    """
    for name in (*changed, *tables):
        (folder / name).unlink(missing_ok=True)  # a link is the file of the run, too
    for name, known in changed.items():
        parquet.write_table(with_counts(known), folder / name, write_page_checksum=True)
    model = fingerprint(folder / "model")
    if changed:
        write_stamp(folder / "index", model)
    for name, table in tables.items():
        parquet.write_table(beside(table, model), folder / name, write_page_checksum=True)
