"""A recommender opened from its run folder: recommendations, vectors, and export of the user tower.

Letters in shapes: n rows, u users, i items, w items of a history, D width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from ..arguments import refuse_other_kinds
from ..core.frame import Column, Events, Frame
from ..errors import DataError, did_you_mean, is_whole, nearest, one_line, quantity
from ..options.build import Config, build, options_of_run
from ..options.yaml_options import Options
from ..ranking.nearest import top_of
from ..recommend.judge.counts import Counting, open_counts
from ..recommend.judge.full_catalogue import Histories
from ..recommend.judge.past_events import Moment, PastEvents, nothing
from ..recommend.read.feature_tables import texts_of
from ..recommend.read.timeline import CONTEXTS, HISTORIES, ITEMS, USERS
from ..recommend.train.encoders import Category, Elapsed, Entities, Id
from ..recommend.train.entity_tables import entities, open_towers, titles_of
from ..recommend.train.exportable_users import UserModule
from ..recommend.train.features import Features, FeatureTowers
from .index import Found, Index, write_parquet
from .layout import RunFolder, refuse_depth
from .onnx_users import just_now, write_users
from .stored_histories import Codes, StoredHistories

BLANK = (
    "the model knows nothing of a user without a history: items by their number of training events"
)
_NO_CONTEXT = (
    "the model reads what a user asks in, and it is not given: name it with --context NAME=VALUE"
)
_NO_FEATURE = "the model has no feature that reads the context of a query"
_NO_ELAPSED = "the model has no feature that reads the time since the last event (elapsed)"
_AT_NOW = (
    "the model reads the time since the last event (elapsed), and the history given has no times: "
    "its last event is taken to be now"
)
_REPLACED = (
    "the history given takes the place of the {:,} events that the run knows of user {!r}; what the "
    "user has taken stays left out"
)
_KEPT = (
    "the history given takes the place of the {:,} events that the run knows of user {!r}, and "
    "nothing is left out"
)


@dataclass(frozen=True)
class Recommendations:
    """Hold the items recommended to a user, best first, and notes for the reader."""

    hits: list[Found]
    history: int  # number of items that it is based on
    notes: tuple[str, ...] = ()
    now: str | None = None  # the moment of the question, as the data have times; None without times

    def __str__(self) -> str:
        width = max((len(hit.id) for hit in self.hits), default=0)
        hits = (
            f"{hit.rank:>3}  {hit.score:>7.3f}  {one_line(hit.id):<{width}}  {one_line(hit.name)}"
            for hit in self.hits
        )
        return "\n".join([*(f"note: {note}" for note in map(one_line, self.notes)), *hits])


class Recommender(RunFolder):
    """Open a run's towers with its users, items and histories.

    Raises:
        DataError: a folder that holds no recommender, or parts of several.
    """

    users: Entities
    items: Entities
    tower: FeatureTowers
    has_context = False  # whether queries are asked in a context that is known
    unseen: tuple[
        str, ...
    ] = ()  # a note on each category of this context that training has not seen

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._refuse_other()
        self.config = _configuration(folder / "config.yaml")
        assert isinstance(self.config.tower, Features)
        self.options: Features = self.config.tower
        users, items = (entities(folder / name) for name in (USERS, ITEMS))
        self.integers = {
            "user": _has_integers(users),
            "item": _has_integers(items),
        }  # whether ids are
        self.users = _texts(users, "")  # the last is one whom the run does not know
        self.items = _texts(items)
        happened = folder / CONTEXTS
        # The last two are an event of which nothing is known, and the one that is asked.
        self.contexts: Entities | None = (
            _texts(entities(happened), "", "") if happened.is_file() else None
        )
        self.tower = self.opened(self.items)

    def _refuse_other(self) -> None:
        if (self.folder / "model" / "modules.json").is_file():
            raise DataError(
                f"{self.folder} is a run on texts, not a recommender: "
                f'tempera search {quote(str(self.folder))} "what you look for"'
            )
        if not self.recommends:
            raise DataError(f"{self.folder} is not a run of a recommender: {HISTORIES} is missing")

    def opened(self, items: Entities, added: str = "") -> FeatureTowers:
        """Return the saved towers, for the run's users and these items; `added` says what the run
        did not have."""
        normalised = self.config.similarity.name == "cosine"
        weights = self.folder / "model" / "model.safetensors"
        return open_towers(
            self.options, normalised, self.users, items, weights, self.contexts, added
        )

    def within(self, context: Mapping[str, Any]) -> Recommender:
        """Return the same recommender for queries in a context, such as {"device": "phone"}.

        Raises:
            DataError: a column that the run's contexts do not have, or a value of another type.
        """
        known = (
            []
            if self.contexts is None
            else [name for name in self.contexts.table.column_names if name != "id"]
        )
        if self.contexts is None or (
            unknown := next((name for name in context if name not in known), None)
        ):
            what = (
                f"its contexts have {', '.join(known)}"
                if known
                else "it knows no context (data.context)"
            )
            raise DataError(
                f"{self.folder} has no context {next(iter(context)) if not known else unknown!r}: {what}"
            )
        other = self.among({name: [value] for name, value in context.items()}, 1)
        other.has_context = True
        read = {feature.column for feature in self.options.query if isinstance(feature, Category)}
        seen = self.contexts.table[:-2].filter(pa.array(self.contexts.known[:-2])).combine_chunks()
        other.unseen = tuple(
            f"training has seen no {name}={value}, which stands for an unknown one"
            for name, value in context.items()
            if name in read
            and not pc.is_in(_cast(seen.schema.field(name), [value]), value_set=seen[name])[
                0
            ].as_py()
        )
        return other

    def among(self, contexts: Mapping[str, Any], rows: int) -> Recommender:
        """Return the same recommender with further contexts at the end, in place of the one of a
        query.

        Args:
            contexts: some of the columns of the run's contexts, each with so many rows.

        Raises:
            DataError: a column of another type.
        """
        assert self.contexts is not None
        table, count = self.contexts.table, self.contexts.count
        named = {"id": [""] * rows, **contexts}
        columns = {
            f.name: _cast(f, named[f.name]) if f.name in named else pa.nulls(rows, f.type)
            for f in table.schema
        }
        other = copy(self)
        other.contexts = Entities(
            pa.concat_tables([table[:-1], pa.table(columns)]), np.append(count[:-1], [0] * rows)
        )
        other.tower = other.opened(self.items, "the context of a query")
        return other

    def meeting(self, ids: pa.Array | pa.ChunkedArray) -> Recommender:
        """Return the same recommender with rows for users whom the run does not know, if their ids
        have vectors of buckets."""
        if not any(isinstance(feature, Id) and feature.buckets for feature in self.options.query):
            return self
        distinct = pc.unique(ids)
        new = distinct.filter(pc.invert(pc.is_in(distinct, value_set=self.users.table["id"])))
        if not len(new):
            return self
        other = copy(self)
        other.users = _texts(
            Entities(self.users.table[:-1], self.users.count[:-1]), *new.to_pylist(), ""
        )
        other.tower = other.opened(self.items)
        return other

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes where the towers read no context of a query, and it is known, or the other way
        round, and on unseen categories."""
        if self.contexts is None or (self.tower.query.moment is not None) == self.has_context:
            return self.unseen
        return (_NO_FEATURE if self.has_context else _NO_CONTEXT,)

    @property
    def reads_elapsed(self) -> bool:
        """True if the users' tower reads the time since the last event."""
        return Elapsed() in self.options.query

    def moment(self, now: Any = None, before: Any = None) -> Moment | None:
        """Return the moment of a question, by default the latest time of the data; None for data
        without times.

        Raises:
            DataError: a time that cannot be, or one for data without times.
        """
        clock = self.stored.clock
        if clock is not None:
            return clock.moment(now, before)
        if self.reads_elapsed:
            raise DataError(
                f"{self.folder} does not know when its events happened, which its tower's elapsed "
                "reads: train it again"
            )
        if now is not None or before is not None:
            name = "before" if now is None else "now"
            raise DataError(
                f"{name} is given, but the interactions of {self.folder} have no times: leave it out"
            )
        return None

    def notes_of(
        self, moment: Moment | None, pause: float | None = None, later: int = 0
    ) -> tuple[str, ...]:
        """Return the notes, with those on the moment of the question.

        Args:
            pause: the time since the last event, of a question of one user.
            later: events that were not known at the moment.
        """
        notes, clock = list(self.notes), self.stored.clock
        if later:
            notes.append(f"{quantity(later, 'later events')} of the history not known at that time")
        if clock is None or moment is None:
            return tuple(notes)
        if not self.reads_elapsed:
            return (*notes, _NO_ELAPSED) if moment.named and not later else tuple(notes)
        which = "" if moment.named else ", the latest time of the data"
        since = "" if pause is None or math.isnan(pause) else f": {clock.length(pause)} after it"
        notes.append(
            "the model reads the time since the last event (elapsed); now is "
            f"{clock.shown(moment.now)}{which}{since}"
        )
        return tuple(notes)

    @cached_property
    def item_ids(self) -> pa.ChunkedArray:
        """Ids of the items as texts, [i]."""
        return self.items.table["id"].cast(pa.large_string())

    def recommend(
        self,
        user: Any = None,
        history: Sequence[Any] | None = None,
        k: int = 10,
        exclude_seen: bool = True,
        index: str | Path | None = None,
        now: Any = None,
        hybrid: bool | None = None,
        context: Mapping[str, Any] | None = None,
        before: Any = None,
    ) -> Recommendations:
        """Return the k best items for a user, for a history, or for a user with another history
        than the run knows.

        A history that is given with a user takes the place of the one that the run knows; what the
        user has taken, or rated low, stays left out.

        Args:
            user: an id; one that the run does not know has the vector of its bucket or of unknown
                users.
            history: ids of items, the latest last; None takes all that the run knows of the user.
            exclude_seen: leave out what the history holds, and what the user is known to have taken,
                rated low or disliked.
            index: an exported index to search instead of the run's own.
            now: the moment of the question, as the data have times: a number in their unit or a
                date. The time since the user's last event, for towers that ask for it, is counted
                up to it, and events later than it are not known. None is the latest time of the
                data. The last event of a history that is given is at this moment.
            hybrid: rank by counts and vectors together, with the weight that the run has chosen;
                scores are then weighted standard deviations above the mean of all items. None does
                so where validation has shown it to be better than the vectors alone, and no `index`
                is named.
            context: what the user asks in, by column of data.context, for towers that ask for it.
            before: answer as at an earlier time, of which only the events before it are known, as
                an evaluation asks for the event that came then; `now` is this time, too.

        Raises:
            DataError: neither user nor history, what is no id, an item that is not in the run, a
                number out of range, no such time, an index of another model, a hybrid of a run
                without counts or with an approximate index.
        """
        if context:
            inside = self.within(context)
            return inside.recommend(
                user, history, k, exclude_seen, index, now, hybrid, None, before
            )
        if user is None and history is None:
            raise DataError("give a user, a history, or both")
        refuse_depth(k)
        moment = self.moment(now, before)
        names = self.named("user", [] if user is None else [user])
        code, met = _place(self.users.table["id"], names), self.meeting(names)
        past, row = self.past(code), _place(met.users.table["id"], names)
        known = len(past.items.items)
        past = past if moment is None else past.until(moment)
        later, replaced = known - len(past.items.items), ""
        if history is not None:
            if isinstance(history, AbstractSet) or (items := ids_of(history)) is None:
                raise DataError(
                    f"history is {history!r}; expected a list of ids of items, the latest last"
                )
            own = self.codes(self.named("item", items).to_pylist())
            aside = past.left_out[1]
            if user is not None and known:
                replaced = (_REPLACED if exclude_seen else _KEPT).format(known, names[0].as_py())
            past = PastEvents(
                Histories.of(own, np.array([0, len(own)])),
                aside=Histories.of(aside, np.array([0, len(aside)])),
            )
            later = 0
        refuse_other_kinds(Recommender.recommend, locals())
        pauses = past.pauses(None if moment is None else moment.now)
        pause = None if history is not None else float(pauses[0])
        notes = self.notes_of(moment, pause, later)
        if history is not None and self.reads_elapsed:
            notes = (*notes, _AT_NOW)
        notes = (replaced, *notes) if replaced else notes
        clock, shown = self.stored.clock, None
        if clock is not None and moment is not None:
            shown = clock.shown(moment.now)
        if user is not None and code is None:
            notes = (_unknown(user, history), *notes)
        counting, taken = self.counting(hybrid, index), int(past.items.lengths[0])
        other = None if index is None else Index(Path(index))
        vector = (
            met.vectors_of([row], past, moment)[0]
            if other is not None and counting is None
            else None
        )
        if other is not None and vector is not None and (taken or vector.any()):
            seen = set(self.item_ids.take(past.left_out[1]).to_pylist()) if exclude_seen else set()
            hits = other.search(vector, k + len(seen), self.fingerprint)
            hits = [hit for hit in hits if hit.id not in seen][:k]
            return Recommendations(
                [replace(hit, rank=rank) for rank, hit in enumerate(hits, 1)], taken, notes, shown
            )
        place = self.index if other is None or counting is None else other
        scores, codes, blank = met.best([row], past, k, exclude_seen, moment, counting, place)
        if blank[0]:
            notes = (*notes, BLANK)
        left = np.isfinite(scores[0])
        return Recommendations(place.hits(scores[0][left], codes[0][left]), taken, notes, shown)

    def best(
        self,
        users: Sequence[int | None],
        past: PastEvents,
        k: int,
        exclude_seen: bool,
        moment: Moment | None,
        counting: Counting | None,
        place: Index,
    ) -> tuple[NDArray[np.float32], Codes, NDArray[np.bool_]]:
        """Return scores and codes of the k best items of each user, [n, k], and of whom the model
        knows nothing, [n].

        Where fewer items are left, scores are -inf. A user of whom the model knows nothing gets
        items by their number of training events.
        """
        vectors = self.vectors_of(users, past, moment)
        seen = past.left_out if exclude_seen else None
        if counting is None:
            scores, codes = place.nearest(vectors, k, self.fingerprint, seen)
        else:
            scores, codes = _best(
                counting.fused(place.scores(vectors, self.fingerprint), past.items), k, seen
            )
        blank = (past.items.lengths == 0) & ~vectors.any(1)
        if blank.any():
            counts = np.repeat(self.items.count[None].astype(np.float32), len(blank), 0)
            scores[blank], codes[blank] = (each[blank] for each in _best(counts, k, seen))
        return scores, codes, blank

    @cached_property
    def counts(self) -> Counting | None:
        """The run's table of counts, which recommends together with the vectors; None without
        one."""
        return open_counts(self.folder, len(self.items.table), self.fingerprint)

    def counting(self, hybrid: bool | None, index: str | Path | None = None) -> Counting | None:
        """Return the counts to recommend with; None for the vectors alone."""
        if hybrid and self.counts is None:
            raise DataError(
                f"{self.folder} has no counts: a hybrid needs evaluation.baselines=true and a split with a test"
            )
        served = index is None and self.counts is not None and self.counts.served
        return self.counts if hybrid or (hybrid is None and served) else None

    @cached_property
    def stored(self) -> StoredHistories:
        """Past events of the run's users."""
        contexts = 0 if self.contexts is None else len(self.contexts.table) - 2
        return StoredHistories(
            self.folder / HISTORIES, self.fingerprint, len(self.items.table), contexts
        )

    def past(self, user: int | None) -> PastEvents:
        """Return what a user has done, one row; nothing for an unknown user."""
        return nothing() if user is None else self.stored.of(self.users.table["id"][user])

    def named(self, role: Literal["user", "item"], names: Iterable[Any]) -> pa.Array:
        """Return ids as the run has them, as texts: where it has integers, "007" and 7.0 are 7.

        Raises:
            DataError: what is neither a text nor a whole number.
        """
        return texts_of(
            pa.array([_text(role, name) for name in names], pa.large_string()), self.integers[role]
        )

    def codes(self, ids: Sequence[str]) -> Codes:
        """Return the codes of items.

        Raises:
            DataError: ids that are not in the run.
        """
        at = pc.index_in(pa.array(ids, pa.large_string()), value_set=self.item_ids)
        unknown = [name for name, code in zip(ids, at.to_pylist()) if code is None]
        if unknown:
            near = nearest(unknown[0], self.item_ids.to_pylist())
            near = self._titled(unknown[0]) if near is None else f" Did you mean {_quoted(near)}?"
            raise DataError(f"no such item in {self.folder}: {', '.join(unknown)}.{near}")
        codes: Codes = at.to_numpy().astype(np.int64)
        return codes

    def _titled(self, text: str) -> str:
        """Return the item with a similar title, as a question."""
        titles = [title.lower() for title in titles_of(self.items.table)]
        near = did_you_mean(text.lower(), titles).removeprefix(" Did you mean ").removesuffix("?")
        return f" Did you mean {self.item_ids[titles.index(near)]} ({near})?" if near else ""

    def vectors_of(
        self, users: Sequence[int | None], past: PastEvents, moment: Moment | None
    ) -> NDArray[np.float32]:
        """Return vectors of users by all that they have done, [n, D], as they stand at a moment;
        None is an unknown user."""
        return self.vectors(
            users,
            past.items.each,
            past.pauses(None if moment is None else moment.now),
            None if past.contexts is None else past.contexts.each,
        )

    def vectors(
        self,
        users: Sequence[int | None],
        histories: Sequence[NDArray[np.integer]],
        pauses: NDArray[np.float32] | None = None,
        contexts: Sequence[NDArray[np.integer]] | None = None,
    ) -> NDArray[np.float32]:
        """Return vectors of users with their histories, [n, D], as they are compared; None is an
        unknown user.

        Args:
            pauses: the time since the last event of each history, nan where there is none; None is
                0, an event of this moment.
            contexts: what the events of each history happened in; None is not known.
        """
        last = 0 if self.options.history is None else self.options.history.last
        read = [codes[max(0, len(codes) - last) :] for codes in histories]
        stop = np.cumsum([len(codes) for codes in read])
        start = stop - [len(codes) for codes in read]
        unknown = len(self.users.table) - 1
        history = Events(
            torch.from_numpy(np.concatenate(read).astype(np.int64)),
            torch.tensor(start),
            torch.tensor(stop),
        )
        columns: dict[str, Column] = {
            "user": torch.tensor([unknown if user is None else user for user in users]),
            "history": history,
            "elapsed": torch.from_numpy(just_now(histories) if pauses is None else pauses),
        }
        if self.contexts is not None:
            nobody, query = len(self.contexts.table) - 2, len(self.contexts.table) - 1
            happened = (
                [np.full(len(codes), nobody) for codes in histories]
                if contexts is None
                else contexts
            )
            happened = [codes[max(0, len(codes) - last) :] for codes in happened]
            events = torch.from_numpy(np.concatenate(happened).astype(np.int64))
            columns["contexts"] = Events(events, history.start, history.stop)
            columns["context"] = torch.full((len(users),), query)
        vectors: NDArray[np.float32] = self.tower.encode(Frame(columns), "query").numpy()
        return vectors

    def export_users(self, folder: Path, probes: int = 64) -> dict[str, Any]:
        """Write the users' tower as ONNX and the items with their vectors as Parquet; return facts
        about the export.

        Raises:
            ConfigError: a tower that cannot be exported.
            DataError: a library that is not installed.
            OutputError: what was written gives other vectors than the tower.
        """
        known, history = len(self.users.table) - 1, self.options.history
        module = UserModule(
            self.tower, history.pools if history else (), len(self.items.table), known + 1
        )
        users = np.random.default_rng(0).permutation(known)[:probes].tolist()
        histories: list[NDArray[Any]] = [
            np.empty(0, np.int64),
            np.arange(min(3, len(self.items.table))),
        ]
        moment = self.moment()
        past = [self.past(user) for user in users]
        histories += [each.items.each[0] for each in past]
        pauses = [each.pauses(None if moment is None else moment.now)[0] for each in past]
        elapsed = np.array([math.nan, 0.0, *pauses], np.float32)
        users = [known, known, *users]
        expected = self.vectors(users, histories, elapsed)
        worst = write_users(folder, module, self.fingerprint, histories, users, elapsed, expected)
        write_parquet(folder, self.index)
        return {
            "largest_difference": worst,
            "items": len(self.items.table),
            "tried_on": len(histories),
        }


def _has_integers(known: Entities) -> bool:
    return bool(pa.types.is_integer(known.table["id"].type))


def _texts(known: Entities, *others: str) -> Entities:
    """Return entities with their ids as texts, followed by others without features."""
    table, text = known.table, pa.large_string()
    table = table.set_column(table.column_names.index("id"), "id", table["id"].cast(text))
    new = {field.name: pa.nulls(len(others), field.type) for field in table.schema} | {
        "id": pa.array(others, text)
    }
    return Entities(
        pa.concat_tables([table, pa.table(new)]), np.append(known.count, [0] * len(others))
    )


def _configuration(path: Path) -> Config:
    """Read the sections of a run's configuration that define its towers."""
    if not path.is_file():
        raise DataError(f"{path} is missing: the run is incomplete")
    options = options_of_run(path.parent)
    sections: dict[str, Any] = {
        name: options.values[name] for name in ("tower", "objective") if name in options.values
    }
    config = build(Options(sections, options.places))
    if not isinstance(config.tower, Features):
        raise DataError(f"{path} does not describe a recommender: tower.kind has to be features")
    return config


def _cast(field: pa.Field, values: Any) -> pa.Array | pa.ChunkedArray:
    """Return values of a column of contexts in its type, [n]."""
    try:
        return (
            values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        ).cast(field.type)
    except pa.ArrowException as error:
        raise DataError(f"context {field.name}: expected {field.type}: {error}") from None


def _quoted(name: str) -> str:
    """Return an id as a line of a CSV has it: in quotes if it has a comma or outer spaces."""
    return f'"{name}"' if "," in name or name != name.strip() else name


def ids_of(ids: Any) -> list[Any] | None:
    """Return what a list, an array or a column of ids holds; None for anything else, such as a text
    or a table.

    >>> ids_of((3, "7")), ids_of("37"), ids_of(b"37"), ids_of({"user": [3, 7]}), ids_of(37)
    ([3, '7'], None, None, None, None)
    """
    if isinstance(ids, str | bytes | bytearray | memoryview | Mapping) or hasattr(ids, "columns"):
        return None
    try:
        return list(ids)
    except TypeError:
        return None


def _text(role: str, name: Any) -> str:
    """Return an id of a user or an item as a text."""
    name = name.as_py() if isinstance(name, pa.Scalar) else name
    if isinstance(name, float | np.floating) and float(name).is_integer():
        name = int(name)
    if not (isinstance(name, str) or is_whole(name)):
        raise DataError(f"{role} {name!r} is no id: ids are texts or whole numbers")
    return str(name)


def _best(
    scores: NDArray[np.float32], k: int, without: tuple[Codes, Codes] | None
) -> tuple[NDArray[np.float32], Codes]:
    """Return the k best scores of each row, which may be written over, and their codes; -inf for
    the pairs left out."""
    if without is not None:
        scores[without] = -np.inf
    return top_of(scores, k)


def _place(ids: pa.ChunkedArray, names: pa.Array) -> int | None:
    """Return the position of an id, the only one; None if there is none, it is empty, or it is
    absent."""
    at = pc.index(ids, names[0]).as_py() if len(names) and names[0].as_py() else -1
    return None if at < 0 else int(at)


def _unknown(user: Any, history: Sequence[Any] | None) -> str:
    by = "no history" if history is None else "the history given"
    return f"user {str(user)!r} is unknown; recommended by {by}"
