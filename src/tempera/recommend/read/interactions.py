"""Interactions of users with items, the data of a recommender, from files and from objects in
memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from ...errors import ConfigError, DataError, article, did_you_mean
from ...tables.arrays import gathered
from ...tables.columns import Columns, ColumnsSoFar
from ...tables.nested import with_paths
from ...tables.profile import TableProfile, profile
from ...tables.proposal import decision_table
from ...tables.streams import stream
from ...tables.table_form import TableForm
from ...tables.tables import TableBlock, blocks, files_of, is_table, is_written_as_text
from .aside import Aside
from .behaviours import aimed, refuse_unknown, usable_aside, with_contexts
from .division import TEST, TRAIN, VALIDATION, AtRandom, Divide, Fitting, NamedFiles, Undivided
from .event_roles import TABLE, USUAL, decided
from .event_times import EventTimes
from .events import BelowMinRating, events_of, in_context
from .feature_tables import aligned
from .sessions import Sessions
from .timeline import REPEATED, Timeline, timeline_of


@dataclass(frozen=True, kw_only=True)
class Interactions(TableForm):
    """Read rows of a user and an item, with or without a time, from a file, a folder of files or an
    object in memory.

    A role that is not given is found by its usual names; a column without role is an error. Rows of
    one user and one time are in the order of `position`, if there is one, and then as they stand in
    the file, files by name. Where the items are lists, a row holds several events in their order;
    without a user, every row is a session of a user of its own.

    Args:
        path: a .parquet, .arrow, .jsonl, .json, .csv or .tsv file or one of RecBole's (.inter), all
            but the first two also with .gz or .zst, or a folder of them.
        user: column of the users' ids, texts or integers.
        item: column of the items' ids.
        time: column of the times, numbers or dates; dates become microseconds since 1970, UTC.
        position: column of the order of a user's rows: among those of one time, or of all where
            there is no time.
        weight: column of how much a row counts in the loss.
        rating: column of grades; needs min_rating.
        behaviour: column of what the user did, such as view or buy, which histories then tell
            apart.
        targets: behaviours to predict, with their weights in the loss; None is all of them, with 1.
            Other ones stand in histories only. Those of the largest weight are evaluated; items
            taken by a target's behaviour are the seen ones.
        context: columns of what an event happened in, such as the device, which features of the
            tower may read.
        metadata: columns that are not read; ["*"] is all without a role.
        users: a table of the users' features, with a column of their ids.
        items: the same of the items.
        separator: what stands between the items of a row, where a row's list is one text.
        min_rating: rows of a lower rating are no interactions, and are counted: neither asked nor
            part of histories nor trained on.
        below_min_rating: "seen" keeps the items of these rows as seen: from then on they are not
            recommended to their user, as items are not that the user has taken. "forget" leaves
            such rows out as if they had never happened.
        dislikes: rows of at most this rating, or of these behaviours, are dislikes and no
            interactions: neither asked nor part of histories, they are hard negatives of their
            user, and count as seen. Dislikes of items that nobody takes, and of users who take
            nothing, are left out.
        negatives: dislikes of its user that an event has beside it in a batch, at most.
        missing_id: what to do with a row that has no user or no item, such as an order without a
            customer: drop counts them.
        missing_time: what to do with a row that has no time, or 0 among times since 1970: drop
            counts them.
        time_format: form of the dates, such as "%d/%m/%Y %H:%M" (as `datetime.strptime` has it);
            None finds it.
        repeated: what to do with a row of the same user, item, time and position as one before:
            drop counts them. An item of a list has its place there beside the row's time. "auto"
            drops them, but keeps rows of data without times and positions, where an item may be
            taken again, and says how many there are, unless every row has a copy.
        validation: a file of the interactions to choose by, with the columns of `path`.
        test: a file of the interactions to evaluate on, which a split by files needs.
        split: which events train, and which are asked. "auto" is files where `test` names one,
            random where there is no order, global_time where there are times, and leave_last_out
            where there is only an order.
        ordered: whether the order of a user's interactions means anything; without, a user has an
            item once, and is the set of the items taken. None is true, but for a split by files, by
            chance or none of data without times and positions.
        strict_time: histories leave out the events of the target's own time; without, they hold
            whatever stands before it, as published figures do. Where a split is by files or by
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
        if self.behaviour is None and (self.targets or isinstance(self.dislikes, tuple)):
            name = "targets" if self.targets else "dislikes"
            raise ConfigError(
                f"data.{name} names behaviours: say which column holds them, data.behaviour=COLUMN"
            )
        disliked = self.dislikes if isinstance(self.dislikes, tuple) else ()
        if both := next((name for name in disliked if name in (self.targets or ())), None):
            raise ConfigError(
                f"data.targets and data.dislikes both name {both!r}: name it in one of them"
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
        """Return a source with these options that reads objects in place of paths.

        Raises:
            ConfigError: an object and a path for the same.
        """
        for name, handed in (("path", data), ("users", users), ("items", items)):
            if handed is not None and getattr(self, name) is not None:
                raise ConfigError(
                    f"data.{name} is {getattr(self, name)}, but {article(type(handed).__name__)} is given too: keep one of them"
                )
        return Handed(self, data, users, items)

    def read(self, folder: Path | None = None, whole: bool = True) -> Timeline:
        """Return the timeline; with a folder, its arrays are written there and memory-mapped.

        Args:
            whole: these are all interactions that there are, among which every behaviour that an
                option names is found.

        Raises:
            ConfigError: no path.
            DataError: what cannot be read or used, with file, row and column.
        """
        if self.path is None:
            raise ConfigError("data.path is needed: the file or folder of interactions")
        tables = [_features(path, self.form) for path in (self.users, self.items)]
        return _timeline(
            {TRAIN: blocks(Path(self.path), self.form)}, self, folder, *tables, whole=whole
        )

    def role_columns(self, names: Sequence[str], where: str) -> Columns:
        """Return the columns of every role that a table with these columns has; raises as
        `RoleTable.columns` does."""
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
        of_roles = {
            name
            for role in USUAL
            for name in (getattr(self, role), *TABLE.usual_columns(role, names))
        }
        besides = (name for name in self.context if name not in of_roles)
        columns = TABLE.columns(replace(self, metadata=(*self.metadata, *besides)), names, where)
        if self.context:
            columns = {**columns, "context": self.context}
        by_rating = isinstance(self.dislikes, float | int)
        if "rating" in columns and self.min_rating is None and not by_rating:
            name = columns["rating"][0]
            raise DataError(
                f"{where}: column {name!r} holds ratings, and low ones would train as positives, too: add "
                f"data.min_rating=NUMBER to take those of at least so much (4 of 1 to 5), data.metadata=[{name}] to take all rows, "
                f"or data.weight={name} to count rows by their rating"
            )
        needs = "min_rating" if self.min_rating is not None else "dislikes" if by_rating else None
        if needs is not None and "rating" not in columns:
            for name in TABLE.usual_columns("rating", names):
                other = next(
                    (role for role, of_role in columns.items() if name in of_role), "metadata"
                )
                raise ConfigError(
                    f"{where}: column {name!r} is given as {other}, and data.{needs} needs it as the rating: "
                    f"leave out data.{needs}, or name another column with data.rating=COLUMN"
                )
            near = did_you_mean("rating", names)
            raise DataError(
                f"{where} has no column for data.{needs}: name one with data.rating=COLUMN.{near}"
            )
        return columns


@dataclass(frozen=True)
class Handed:
    """Hold options of interactions, and the objects that they apply to."""

    options: Interactions
    data: Any
    users: Any = None
    items: Any = None

    def read(self, folder: Path | None = None, whole: bool = True) -> Timeline:
        """Return the timeline of these objects, as `Interactions.read` does."""
        sources = ((self.users, self.options.users), (self.items, self.options.items))
        tables = [
            _features(path, self.options.form) if table is None else stream(table)
            for table, path in sources
        ]
        return _timeline({TRAIN: stream(self.data)}, self.options, folder, *tables, whole=whole)


def _features(path: str | None, form: TableForm) -> list[TableBlock] | None:
    """Return a table of features, in the encoding of the interactions; its columns are its own."""
    if path is None:
        return None
    encoding = form.encoding if is_written_as_text(Path(path)) else None
    return list(blocks(Path(path), TableForm(encoding=encoding)))


def _timeline(
    read: dict[int, Iterator[TableBlock]],
    options: Interactions,
    folder: Path | None,
    users: Iterable[TableBlock] | None,
    items: Iterable[TableBlock] | None,
    *,
    whole: bool,
) -> Timeline:
    dropped: Counter[str] = Counter()
    so_far = ColumnsSoFar(options.role_columns)
    where = options.path or "data"
    read |= {part: blocks(Path(path), options.form) for part, path in _named(options).items()}
    sessions = Sessions(TABLE, vars(options), dropped)
    times = EventTimes(options.missing_time, options.time_format)
    named = [*TABLE.chosen(vars(options)), *options.context]
    flat: dict[int, Iterator[TableBlock]] = {
        part: (sessions.flat(with_paths(block, named)) for block in each)
        for part, each in read.items()
    }
    of_table, flat[TRAIN] = _looked_at(flat[TRAIN], where)
    tables = (
        _of_part(
            part,
            events_of(
                block,
                so_far.columns,
                dropped,
                options.min_rating,
                times,
                options.dislikes,
                options.missing_id,
                options.below_min_rating,
            ),
            len(read) > 1,
        )
        for part, each in flat.items()
        for block in so_far.of(each)
    )
    events = gathered(
        tables, f"{where}: the files hold one column with different types", folder, "events"
    )
    columns = TABLE.options(
        {role: names for role, names in so_far.columns.items() if role != "context"}
    )
    if whole:
        listed = options.dislikes if isinstance(options.dislikes, tuple) else ()
        refuse_unknown(
            events, {"data.targets": options.targets or (), "data.dislikes": listed}, where
        )
    events = usable_aside(events, dropped, whole)
    _refuse_unusable(events, columns, dropped, where)
    events, contexts = with_contexts(aimed(events, options.targets))
    ordered = _ordered(options, columns)
    if options.strict_time and not (ordered and "time" in columns):
        raise ConfigError(
            "data.strict_time=true leaves out events of the same time, but "
            + (
                "data.ordered is false"
                if "time" in columns
                else f"{where} has no times: name their column with data.time"
            )
        )
    source = replace(options, **columns, ordered=ordered)
    fields = {
        "source": source,
        "strict_time": options.strict_time,
        "contexts": contexts,
        "anonymous": sessions.anonymous,
        "dated": "time" in columns and pa.types.is_timestamp(events["time"].type),
    }
    apart = {"time", "position"} & {*columns}
    if sessions.placed:  # rows and their items are in order as they are read
        apart -= {"position"}
        events = events.rename_columns(
            ["within" if name == "position" else name for name in events.column_names]
        )
    drops = options.repeated == "drop" or (options.repeated == "auto" and bool(apart))
    timeline = timeline_of(events, folder, drops, ordered, **fields)
    if isinstance(options.split, Fitting):
        timeline = replace(timeline, source=replace(source, split=options.split.choice(timeline)))
    notes = list[str]()
    if not drops and options.repeated == "auto" and (repeats := timeline.repeats).any():
        if timeline.is_copied(repeats):
            timeline = timeline.kept(~repeats)
            notes.append(
                "every row has a copy, so that repeated rows are left out (data.repeated=keep keeps them)"
            )
        else:
            notes.append(
                f"{int(repeats.sum()):,} rows repeat a user and an item, and are kept (data.repeated=drop leaves them out)"
            )
    aside = 0 if timeline.aside is None else len(timeline.aside.item)
    if len(timeline) + aside < len(events):
        dropped[REPEATED] = len(events) - len(timeline) - aside
    if folder is not None:
        for path in folder.glob("events.*.arrow"):
            path.unlink()
    ids = {"user": timeline.user_ids, "item": timeline.item_ids}
    features = {
        f"{role}s": aligned(table, ids[role], role, columns[role], USUAL[role], dropped)
        for role, table in (("user", users), ("item", items))
        if table is not None
    }
    if timeline.aside is not None:
        notes += _set_aside(timeline.aside, options)
    decisions = decided(of_table, so_far.columns, so_far.names, sessions.made)
    table = decision_table(decisions, f"{where}: interactions")
    if ordered and not {"time", "position"} & {*columns}:
        notes.append(
            "no column tells the time: events are taken in the order of the rows (data.ordered=false: without an order)"
        )
    notes += [
        f"{getattr(options, name) or name}: {name}, with {', '.join(each.column_names) or 'ids alone'}"
        for name, each in features.items()
    ]
    notes += _not_read(options)
    about = "\n".join([table, *so_far.notes, *notes])
    return replace(timeline, **features, dropped=dict(dropped), about=about)


def _looked_at(flat: Iterator[TableBlock], where: str) -> tuple[TableProfile, Iterator[TableBlock]]:
    """Return the profile of the first rows, and all blocks again."""
    first = list[TableBlock]()
    for block in flat:
        first.append(block)
        if len(block.table):
            break
    rows = first[-1].table if first else pa.table({})
    return profile(rows, where), chain(first, flat)


def _not_read(options: Interactions) -> list[str]:
    """Return a line on the tables that lie beside those of interactions and features, and are not
    read."""
    besides = [options.users, options.items, options.validation, options.test]
    if options.path is None or Path(options.path).is_dir():
        return []
    home = Path(options.path).parent
    if not any(name is not None and Path(name).parent == home for name in besides):
        return []
    known = [*files_of(Path(options.path)), *(Path(name) for name in besides if name is not None)]
    others = [
        file.name
        for file in sorted(home.iterdir())
        if file.is_file() and is_table(file) and file not in known
    ]
    return [f"not read in {home}: {', '.join(others)}"] if others else []


def _set_aside(aside: Aside, options: Interactions) -> list[str]:
    """Return the notes on dislikes and items rated low."""
    notes = []
    disliked = int(aside.disliked.sum())
    if disliked:
        notes.append(f"{disliked:,} dislikes are no interactions")
    if low := len(aside.item) - disliked:
        notes.append(
            f"{low:,} rows rated below {options.min_rating:g} train nothing, and their items count as "
            "seen (data.below_min_rating=forget forgets them)"
        )
    return notes


def _named(options: Interactions) -> dict[int, str]:
    """Return the files of validation and test."""
    files = {
        part: path
        for part, path in ((VALIDATION, options.validation), (TEST, options.test))
        if path is not None
    }
    if (TEST in files) != isinstance(options.split, NamedFiles) and not isinstance(
        options.split, Fitting
    ):
        raise ConfigError("data.split=files and data.test=FILE go together: give both, or neither")
    if VALIDATION in files and TEST not in files:
        raise ConfigError(
            "data.validation names a file, and data.test does not: name one there, too"
        )
    return files


def _of_part(part: int, events: pa.Table, several: bool) -> pa.Table:
    """Return events with a column of their part, if there are several."""
    return (
        events.append_column("part", pa.array(np.full(len(events), part, np.uint8)))
        if several
        else events
    )


def _ordered(options: Interactions, columns: Mapping[str, str]) -> bool:
    """Return whether the order of a user's interactions means anything."""
    by_order = not (options.test or isinstance(options.split, NamedFiles | AtRandom | Undivided))
    return (
        options.ordered
        if options.ordered is not None
        else by_order or bool({"time", "position"} & {*columns})
    )


def _refuse_unusable(
    events: pa.Table, columns: Mapping[str, str], dropped: Counter[str], where: str
) -> None:
    for name, column in zip(events.column_names, events.columns):
        if column.null_count and not name.startswith(in_context("")):
            raise DataError(
                f"{where}: only some of the files have a column for data.{name}: add it to the others"
            )
    if not len(events):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        raise DataError(f"{where}: no interactions are left: {reasons}")
    if "weight" in columns and not events["weight"].to_numpy().any():
        raise DataError(
            f"{where}: column {columns['weight']!r} is 0 in every row: give other weights"
        )
