"""Interactions of users with items, the data of a recommender, from files and from objects in
memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import numpy as np
import pyarrow as pa
from pydantic import Field

from ...errors import ConfigError, DataError, article, did_you_mean
from ...forms.event_roles import TABLE, USUAL, decided
from ...forms.sessions import Sessions
from ...tables.arrays import gathered
from ...tables.columns import Columns, ColumnsSoFar
from ...tables.nested import with_paths
from ...tables.profile import TableProfile, profile
from ...tables.proposal import decision_table
from ...tables.streams import stream
from ...tables.table_form import TableForm
from ...tables.tables import TableBlock, blocks, files_of, is_table, is_written_as_text
from .aside import Aside
from .behaviours import refuse_unknown_behaviours, usable_aside, with_contexts, with_targets
from .division import TEST, TRAIN, VALIDATION, AtRandom, Divide, Fitting, NamedFiles, Undivided
from .event_times import EventTimes
from .events import BelowMinRating, events_of, in_context
from .feature_tables import aligned
from .timeline import REPEATED, Timeline, timeline_of


@dataclass(frozen=True, kw_only=True)
class Interactions(TableForm):
    """Read rows of a user and an item, with or without a time, from a file, a folder of files or an
    object in memory.

    A role without an option is found by the role's usual names; a column without role is an error.
    Rows of one user and one time are in the order of `position`, if there is any, and then of the
    file, files by name. Where the items are lists, a row holds several events in order; without a
    user, every row is the session of a new user.

    Args:
        path: a .parquet, .arrow, .jsonl, .json, .csv or .tsv file or a file of RecBole (.inter),
            all but the first two also with .gz or .zst, or a folder of files.
        user: column of the users' ids, texts or integers.
        item: column of the items' ids.
        time: column of the times, numbers or dates; dates become microseconds since 1970, UTC.
        position: column of the order of a user's rows of one time, or of all rows of the user
            without times.
        weight: column of the weight of each row in the loss.
        rating: column of grades; needs min_rating.
        behaviour: column of the user's actions, for example view or buy; histories tell actions
            apart.
        targets: behaviours to predict, with weights in the loss; None is all behaviours, with
            weight 1. Events of further behaviours stand in histories only. The behaviours of the
            largest weight are evaluated; items taken by a target's behaviour count as seen.
        context: columns of the circumstances of an event, for example the device, for features of
            the tower.
        metadata: columns not to read; ["*"] names all columns without a role.
        users: a table of the users' features, with a column of user ids.
        items: a table of the items' features, with a column of item ids.
        separator: sign between the items of a row, where a row's list is one text.
        min_rating: rows of a lower rating are no interactions, and are counted: not evaluated, not
            part of histories and not trained on.
        below_min_rating: "seen" keeps the items of rows below min_rating as seen: from then on not
            recommended to the same user, like items the user has taken. "forget" leaves the rows
            out entirely.
        dislikes: a rating, or behaviours. Rows of at most the rating, or of the behaviours, are
            dislikes and no interactions: not evaluated and not part of histories, but hard
            negatives of the same user and seen. Dislikes of items that nobody takes, and of users
            who take nothing, are left out.
        negatives: most dislikes of the same user beside an event in a batch.
        missing_id: treatment of a row without a user or an item, for example an order without a
            customer: drop leaves out and counts the row.
        missing_time: treatment of a row without a time, or with 0 among times since 1970: drop
            leaves out and counts the row.
        time_format: form of the dates, for example "%d/%m/%Y %H:%M" (codes of `datetime.strptime`);
            None finds the form.
        repeated: treatment of a row of the same user, item, time and position as an earlier row:
            drop leaves out and counts the row. An item of a list has a place in the list beside the
            row's time. "auto" drops such rows, but keeps rows of data without times and positions,
            where an item may be taken again, and says how many there are, unless every row has a
            copy.
        validation: a file of the interactions to choose by, with the columns of `path`.
        test: a file of the interactions to evaluate on, needed by a split by files.
        split: division into events to train on and events to evaluate. "auto" is files where `test`
            names a file, random where there is no order, global_time where there are times, and
            leave_last_out where there is only an order.
        ordered: False if the order of a user's interactions means nothing: then a user has an item
            once, and is the set of the items taken. None is true, but for a split by files, by
            chance or none of data without times and positions.
        strict_time: True leaves the events of the target's own time out of histories; False keeps
            everything before the target, as in published figures. Where a split is by files or by
            chance, times have to rise from part to part.
    """

    path: str | None = None
    user: str | None = None
    item: str | None = None
    time: str | None = None
    position: str | None = None
    weight: str | None = None
    rating: str | None = None
    behaviour: str | None = None
    targets: Mapping[str, Annotated[float, Field(gt=0)]] | None = None
    context: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    users: str | None = None
    items: str | None = None
    separator: str | None = None
    min_rating: float | None = None
    below_min_rating: BelowMinRating = "seen"
    dislikes: float | tuple[str, ...] | None = None
    negatives: Annotated[int, Field(ge=1)] = 1
    missing_id: Literal["refuse", "drop"] = "refuse"
    missing_time: Literal["refuse", "drop"] = "refuse"
    time_format: str | None = None
    repeated: Literal["auto", "drop", "keep"] = "auto"
    validation: str | None = None
    test: str | None = None
    split: Divide = field(default_factory=Fitting)
    ordered: bool | None = None
    strict_time: bool = False

    def __post_init__(self) -> None:
        disliked = self.dislikes if isinstance(self.dislikes, tuple) else ()
        targets = self.targets or {}
        if self.behaviour is None and (targets or isinstance(self.dislikes, tuple)):
            name = "targets" if targets else "dislikes"
            raise ConfigError(
                f"data.{name} names behaviours: say which column holds them, data.behaviour=COLUMN"
            )
        for name in disliked:
            if name in targets:
                raise ConfigError(
                    f"data.targets and data.dislikes both name {name!r}: name it in one of them"
                )

    @classmethod
    def of(cls, data: Any, users: Any = None, items: Any = None, **options: Any) -> Handed:
        """Return a source that reads objects: frames of pandas or polars, tables of pyarrow.

        >>> table = pa.table({"user_id": [7, 7], "movieId": ["x", "y"], "timestamp": [2, 1]})
        >>> timeline = Interactions.of(table).read()
        >>> timeline.user_ids.to_pylist(), timeline.item.tolist()
        ([7], [1, 0])
        """
        return cls(**options).hand(data, users, items)

    def hand(self, data: Any, users: Any = None, items: Any = None) -> Handed:
        """Return a source with the same options, to read objects in place of paths.

        Raises:
            ConfigError: an object and a path for the same table.
        """
        for name, handed in (("path", data), ("users", users), ("items", items)):
            if handed is not None and getattr(self, name) is not None:
                raise ConfigError(
                    f"data.{name} is {getattr(self, name)}, but {article(type(handed).__name__)} is given too: keep one of them"
                )
        return Handed(self, data, users, items)

    def read(self, folder: Path | None = None, whole: bool = True) -> Timeline:
        """Return the timeline; with a folder, the arrays are written there and memory-mapped.

        Args:
            whole: True if the source holds all interactions; then every behaviour named by an
                option has to be in the source.

        Raises:
            ConfigError: no path.
            DataError: unreadable or unusable data, with file, row and column.
        """
        if self.path is None:
            raise ConfigError("data.path is needed: the file or folder of interactions")
        users = _features(self.users, self.form)
        items = _features(self.items, self.form)
        events = blocks(Path(self.path), self.form)
        return _timeline(events, self, folder, users, items, whole=whole)

    def role_columns(self, names: Sequence[str], where: str) -> Columns:
        """Return the columns of each role, of a table with given column names.

        Raises like `RoleTable.columns`, and DataError or ConfigError for a context missing in the
        table, for ratings without an option for ratings, and for options without ratings.
        """
        self._refuse_context(names, where)
        of_roles = self._columns_of_roles(names)
        besides = [name for name in self.context if name not in of_roles]
        metadata = (*self.metadata, *besides)
        columns = TABLE.columns(replace(self, metadata=metadata), names, where)
        if self.context:
            columns = {**columns, "context": self.context}
        has_rating = "rating" in columns
        by_rating = isinstance(self.dislikes, float | int)
        if has_rating and self.min_rating is None and not by_rating:
            name = columns["rating"][0]
            raise DataError(
                f"{where}: column {name!r} holds ratings, and low ones would train as positives, too: add "
                f"data.min_rating=NUMBER to take those of at least so much (4 of 1 to 5), data.metadata=[{name}] to take all rows, "
                f"or data.weight={name} to count rows by their rating"
            )
        if not has_rating and self.min_rating is not None:
            _refuse_without_rating("min_rating", columns, names, where)
        if not has_rating and by_rating:
            _refuse_without_rating("dislikes", columns, names, where)
        return columns

    def _refuse_context(self, names: Sequence[str], where: str) -> None:
        """Refuse a context missing in the table, or with the reserved name of the contexts'
        numbers."""
        for name in self.context:
            if name not in names:
                near = did_you_mean(name, names)
                raise DataError(
                    f"{where} has no column {name!r} for data.context; it has {', '.join(names)}.{near}"
                )
        if "id" in self.context:
            raise DataError(
                f"{where}: data.context names the column 'id', as a run calls the numbers of contexts: rename it"
            )

    def _columns_of_roles(self, names: Sequence[str]) -> set[str | None]:
        """Return the columns named for a role by an option, or with a usual name of a role."""
        columns: set[str | None] = set()
        for role in USUAL:
            columns.add(getattr(self, role))
            columns.update(TABLE.usual_columns(role, names))
        return columns


@dataclass(frozen=True)
class Handed:
    """Hold options of interactions, and the objects to read by the options."""

    options: Interactions
    data: Any
    users: Any = None
    items: Any = None

    def read(self, folder: Path | None = None, whole: bool = True) -> Timeline:
        """Return the timeline of the objects, like `Interactions.read`."""
        users = self._features(self.users, self.options.users)
        items = self._features(self.items, self.options.items)
        return _timeline(stream(self.data), self.options, folder, users, items, whole=whole)

    def _features(self, table: Any, path: str | None) -> Iterable[TableBlock] | None:
        """Return a table of features: an object, or else the file of a path."""
        if table is None:
            return _features(path, self.options.form)
        return stream(table)


def _refuse_without_rating(
    option: str, columns: Columns, names: Sequence[str], where: str
) -> NoReturn:
    """Refuse an option in need of ratings for a table without a rating column."""
    for name in TABLE.usual_columns("rating", names):
        taken_by = "metadata"
        for role, of_role in columns.items():
            if name in of_role:
                taken_by = role
                break
        raise ConfigError(
            f"{where}: column {name!r} is given as {taken_by}, and data.{option} needs it as the rating: "
            f"leave out data.{option}, or name another column with data.rating=COLUMN"
        )
    near = did_you_mean("rating", names)
    raise DataError(
        f"{where} has no column for data.{option}: name one with data.rating=COLUMN.{near}"
    )


def _features(path: str | None, form: TableForm) -> list[TableBlock] | None:
    """Return a table of features, in the encoding of the interactions; no further option of the
    interactions applies."""
    if path is None:
        return None
    encoding = form.encoding if is_written_as_text(Path(path)) else None
    return list(blocks(Path(path), TableForm(encoding=encoding)))


def _timeline(
    training: Iterator[TableBlock],
    options: Interactions,
    folder: Path | None,
    users: Iterable[TableBlock] | None,
    items: Iterable[TableBlock] | None,
    *,
    whole: bool,
) -> Timeline:
    """Return the timeline of the events of all files, with the features of users and items.

    Args:
        training: the rows of data.path; the files of validation and test are opened here.
        folder: where the arrays are written, to be mapped.
        users: the table of the users' features.
        items: the table of the items' features.
        whole: see `Interactions.read`.
    """
    where = options.path or "data"
    dropped: Counter[str] = Counter()
    read = _read_events(training, options, folder, where, dropped)
    columns = read.role_options()
    events = _usable_events(read.events, options, columns, dropped, where, whole)
    timeline, notes = _arranged(events, read, options, columns, folder)
    aside = 0 if timeline.aside is None else len(timeline.aside.item)
    repeated = len(events) - len(timeline) - aside
    if repeated:
        dropped[REPEATED] = repeated
    if folder is not None:
        for path in folder.glob("events.*.arrow"):
            path.unlink()
    if users is not None:
        column = columns["user"]
        table = aligned(users, timeline.user_ids, "user", column, USUAL["user"], dropped)
        timeline = replace(timeline, users=table)
    if items is not None:
        column = columns["item"]
        table = aligned(items, timeline.item_ids, "item", column, USUAL["item"], dropped)
        timeline = replace(timeline, items=table)
    decisions = decided(read.of_table, read.so_far.columns, read.so_far.names, read.sessions.made)
    lines = [decision_table(decisions, f"{where}: interactions"), *read.so_far.notes, *notes]
    if timeline.aside is not None:
        lines += _notes_on_aside(timeline.aside, options)
    if timeline.ordered and not _has_order(columns):
        lines.append(
            "no column tells the time: events are taken in the order of the rows (data.ordered=false: without an order)"
        )
    for name, features in (("users", timeline.users), ("items", timeline.items)):
        if features is not None:
            names = ", ".join(features.column_names) or "ids alone"
            lines.append(f"{getattr(options, name) or name}: {name}, with {names}")
    lines += _notes_on_unread(options)
    return replace(timeline, dropped=dict(dropped), about="\n".join(lines))


@dataclass(frozen=True)
class EventRows:
    """Hold the events of a table in the order of the rows.

    Args:
        table: columns user, item and, where there are any, time, position, within, aside, target,
            and the context of the events.
        anonymous: True if users are rows of the table.
        drops: True if a row with the same user, item, time and position as an earlier row is left
            out.
        dropped: counts of rows left out, by reason.
    """

    table: pa.Table
    anonymous: bool
    drops: bool
    dropped: Mapping[str, int]


def read_rows(options: Interactions, data: Any = None) -> EventRows:
    """Return the events of a further table, before they are put in order.

    Args:
        data: an object to read in place of the path of the options.

    Raises:
        DataError: unreadable or unusable data, with file, row and column.
    """
    where = options.path or "data"
    dropped: Counter[str] = Counter()
    rows = stream(data) if options.path is None else blocks(Path(options.path), options.form)
    read = _read_events(rows, options, None, where, dropped)
    _refuse_absent_columns(read.events, where)
    events, drops = _told_apart(with_targets(read.events, options.targets), read, options)
    return EventRows(events, read.sessions.anonymous, drops, dropped)


@dataclass(frozen=True)
class _ReadEvents:
    """The events of all files in the order of the rows, with the columns read."""

    events: pa.Table
    so_far: ColumnsSoFar
    sessions: Sessions
    of_table: TableProfile  # of the first rows

    def role_options(self) -> dict[str, Any]:
        """Return the options for the columns of the roles, without the context."""
        columns = dict(self.so_far.columns)
        columns.pop("context", None)
        return TABLE.options(columns)


def _read_events(
    training: Iterator[TableBlock],
    options: Interactions,
    folder: Path | None,
    where: str,
    dropped: Counter[str],
) -> _ReadEvents:
    """Return the events of the training file and of further files named by options, an event for
    each item of a row."""
    files = {TRAIN: training}
    for part, path in _named_files(options).items():
        files[part] = blocks(Path(path), options.form)
    sessions = Sessions(TABLE, vars(options), dropped)
    named = [*TABLE.chosen(vars(options)), *options.context]
    rows = {part: _flat_rows(file, sessions, named) for part, file in files.items()}
    of_table, rows[TRAIN] = _profile_ahead(rows[TRAIN], where)
    so_far = ColumnsSoFar(options.role_columns)
    events = gathered(
        _events_of_parts(rows, so_far, options, dropped),
        f"{where}: the files hold one column with different types",
        folder,
        "events",
    )
    return _ReadEvents(events, so_far, sessions, of_table)


def _flat_rows(
    file: Iterable[TableBlock], sessions: Sessions, named: Sequence[str]
) -> Iterator[TableBlock]:
    """Yield the blocks of a file with one row for each item, and nested columns under flat
    names."""
    for block in file:
        yield sessions.flat(with_paths(block, named))


def _profile_ahead(
    rows: Iterator[TableBlock], where: str
) -> tuple[TableProfile, Iterator[TableBlock]]:
    """Return the profile of the first rows, and all blocks again."""
    first: list[TableBlock] = []
    for block in rows:
        first.append(block)
        if len(block.table):
            break
    table = first[-1].table if first else pa.table({})
    return profile(table, where), chain(first, rows)


def _events_of_parts(
    rows: Mapping[int, Iterable[TableBlock]],
    so_far: ColumnsSoFar,
    options: Interactions,
    dropped: Counter[str],
) -> Iterator[pa.Table]:
    """Yield the events of each block, with a column of the part if there are several parts."""
    times = EventTimes(options.missing_time, options.time_format)
    for part, part_rows in rows.items():
        for block in so_far.of(part_rows):
            events = events_of(
                block,
                so_far.columns,
                dropped,
                options.min_rating,
                times,
                options.dislikes,
                options.missing_id,
                options.below_min_rating,
            )
            if len(rows) > 1:
                parts = np.full(len(events), part, np.uint8)
                events = events.append_column("part", pa.array(parts))
            yield events


def _usable_events(
    events: pa.Table,
    options: Interactions,
    columns: Mapping[str, str],
    dropped: Counter[str],
    where: str,
    whole: bool,
) -> pa.Table:
    """Return the events without useless dislikes; refuse unknown behaviours and unusable events."""
    if whole:
        disliked = options.dislikes if isinstance(options.dislikes, tuple) else ()
        named = {"data.targets": options.targets or (), "data.dislikes": disliked}
        refuse_unknown_behaviours(events, named, where)
    events = usable_aside(events, dropped, whole)
    _refuse_absent_columns(events, where)
    if not len(events):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        raise DataError(f"{where}: no interactions are left: {reasons}")
    if "weight" in columns and not events["weight"].to_numpy().any():
        raise DataError(
            f"{where}: column {columns['weight']!r} is 0 in every row: give other weights"
        )
    return events


def _refuse_absent_columns(events: pa.Table, where: str) -> None:
    """Refuse files of which only some have a column of a role."""
    for name, column in zip(events.column_names, events.columns):
        if column.null_count and not name.startswith(in_context("")):
            raise DataError(
                f"{where}: only some of the files have a column for data.{name}: add it to the others"
            )


def _told_apart(
    events: pa.Table, read: _ReadEvents, options: Interactions
) -> tuple[pa.Table, bool]:
    """Return the events with the columns by which rows are told apart, and True if a row like an
    earlier row is left out."""
    columns = read.role_options()
    told_apart = _has_order(columns)
    if read.sessions.placed:
        # Places within rows order the items of one row, but do not tell rows apart.
        told_apart = "time" in columns
        names = ["within" if name == "position" else name for name in events.column_names]
        events = events.rename_columns(names)
    return events, options.repeated == "drop" or (options.repeated == "auto" and told_apart)


def _arranged(
    events: pa.Table,
    read: _ReadEvents,
    options: Interactions,
    columns: Mapping[str, Any],
    folder: Path | None,
) -> tuple[Timeline, list[str]]:
    """Return the events user by user and in order, with notes on repeated rows.

    Args:
        events: usable events in the order of the rows.
        columns: the column of each role.
    """
    events, contexts = with_contexts(with_targets(events, options.targets))
    ordered = _is_ordered(options, columns)
    _refuse_strict_time(options, ordered, columns)
    events, drops = _told_apart(events, read, options)
    dated = "time" in columns and pa.types.is_timestamp(events["time"].type)
    timeline = timeline_of(events, folder, drops, ordered, options.strict_time)
    source = replace(options, **columns, ordered=ordered)
    timeline = replace(
        timeline,
        source=source,
        contexts=contexts,
        anonymous=read.sessions.anonymous,
        dated=dated,
    )
    if isinstance(options.split, Fitting):
        source = replace(source, split=options.split.choice(timeline))
        timeline = replace(timeline, source=source)
    if drops or options.repeated != "auto":
        return timeline, []
    return _without_copies(timeline)


def _without_copies(timeline: Timeline) -> tuple[Timeline, list[str]]:
    """Return the timeline without repeated rows if every row has a copy, else unchanged, with a
    note on the repeated rows."""
    repeats = timeline.repeats
    if not repeats.any():
        return timeline, []
    if timeline.is_copied(repeats):
        note = "every row has a copy, so that repeated rows are left out (data.repeated=keep keeps them)"
        return timeline.kept(~repeats), [note]
    note = f"{int(repeats.sum()):,} rows repeat a user and an item, and are kept (data.repeated=drop leaves them out)"
    return timeline, [note]


def _notes_on_unread(options: Interactions) -> list[str]:
    """Return a line on unread tables in the folder of the interactions and of a further table that
    is read."""
    further = [options.users, options.items, options.validation, options.test]
    paths = [Path(name) for name in further if name is not None]
    if options.path is None or Path(options.path).is_dir():
        return []
    home = Path(options.path).parent
    if not any(path.parent == home for path in paths):
        return []
    known = [*files_of(Path(options.path)), *paths]
    tables = [file for file in sorted(home.iterdir()) if file.is_file() and is_table(file)]
    unread = [file.name for file in tables if file not in known]
    if not unread:
        return []
    return [f"not read in {home}: {', '.join(unread)}"]


def _notes_on_aside(aside: Aside, options: Interactions) -> list[str]:
    """Return the notes on dislikes and items rated low."""
    notes = []
    disliked = int(aside.disliked.sum())
    if disliked:
        notes.append(f"{disliked:,} dislikes are no interactions")
    low = len(aside.item) - disliked
    if low:
        notes.append(
            f"{low:,} rows rated below {options.min_rating:g} train nothing, and their items count as "
            "seen (data.below_min_rating=forget forgets them)"
        )
    return notes


def _named_files(options: Interactions) -> dict[int, str]:
    """Return the files of validation and test."""
    files = {}
    if options.validation is not None:
        files[VALIDATION] = options.validation
    if options.test is not None:
        files[TEST] = options.test
    by_files = isinstance(options.split, NamedFiles)
    if (TEST in files) != by_files and not isinstance(options.split, Fitting):
        raise ConfigError("data.split=files and data.test=FILE go together: give both, or neither")
    if VALIDATION in files and TEST not in files:
        raise ConfigError(
            "data.validation names a file, and data.test does not: name one there, too"
        )
    return files


def _has_order(columns: Mapping[str, str]) -> bool:
    """Return True if a column of times or positions orders the events."""
    return "time" in columns or "position" in columns


def _is_ordered(options: Interactions, columns: Mapping[str, str]) -> bool:
    """Return True if the order of a user's interactions means anything."""
    if options.ordered is not None:
        return options.ordered
    if _has_order(columns):
        return True
    return not (options.test or isinstance(options.split, NamedFiles | AtRandom | Undivided))


def _refuse_strict_time(options: Interactions, ordered: bool, columns: Mapping[str, str]) -> None:
    """Refuse data.strict_time of events without times or without an order."""
    if not options.strict_time or (ordered and "time" in columns):
        return
    reason = f"{options.path or 'data'} has no times: name their column with data.time"
    if "time" in columns:
        reason = "data.ordered is false"
    raise ConfigError(f"data.strict_time=true leaves out events of the same time, but {reason}")
