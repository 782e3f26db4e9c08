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
from ..corpus.index import Found, Index, write_parquet
from ..corpus.layout import RunFolder, refuse_depth
from ..errors import DataError, one_line, quantity
from ..options.build import Config, build, options_of_run
from ..options.worlds import world
from ..options.yaml_options import Options
from ..recommend.judge.counts import Counting, open_counts
from ..recommend.judge.full_catalogue import Histories
from ..recommend.judge.past_events import Moment, PastEvents, nothing
from ..recommend.train.encoders import Category, Elapsed, Entities, Id
from ..recommend.train.entity_tables import entities, open_towers
from ..recommend.train.exportable_users import UserModule
from ..recommend.train.features import Features, FeatureTowers
from ..task.run_files import CONTEXTS, HISTORIES, ITEMS, USERS
from ..task.world import INTERACTIONS
from .added_counts import added_counts
from .best_items import BestItems
from .chosen_items import ChosenItems, chosen_items
from .diversity import refuse_diversity
from .known_items import KnownItems, id_texts, ids_of
from .onnx_users import just_now, write_users
from .similar_items import refuse_beside_similar, similar_items
from .stored_histories import Codes, StoredHistories

BLANK = (
    "the model knows nothing of a user without a history: items by their number of training events"
)
NOTHING_LEFT = "no item is left to recommend: the user has met all of them"
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
        lines = [f"note: {one_line(note)}" for note in self.notes]
        width = max((len(hit.id) for hit in self.hits), default=0)
        for hit in self.hits:
            name = one_line(hit.name)
            lines.append(f"{hit.rank:>3}  {hit.score:>7.3f}  {one_line(hit.id):<{width}}  {name}")
        return "\n".join(lines)


class Recommender(RunFolder):
    """Open a run's towers with its users, items and histories.

    Attributes:
        users: the users of the run, and in the last row an unknown user.
        items: the items of the run.
        contexts: the contexts of the run's events; the last two rows are an unknown context and the
            context of a query. None if the run has no contexts.
        integers: True for "user" and "item" if the ids are integers.
        tower: the towers for the users, items and contexts.
        has_context: True if the context of queries is known.
        unseen: a note on each category in the context of queries unseen in training.

    Raises:
        DataError: a folder without a recommender, or with parts of several.
    """

    users: Entities
    items: Entities
    contexts: Entities | None = None
    tower: FeatureTowers
    has_context = False
    unseen: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._refuse_other()
        self.config = _configuration(folder / "config.yaml")
        assert isinstance(self.config.tower, Features)
        self.options: Features = self.config.tower
        users = entities(folder / USERS)
        items = entities(folder / ITEMS)
        self.integers = {"user": _has_integers(users), "item": _has_integers(items)}
        self.users = _texts(users, "")
        self.items = _texts(items)
        if (folder / CONTEXTS).is_file():
            self.contexts = _texts(entities(folder / CONTEXTS), "", "")
        self.tower = self.load_towers(self.items)

    def _refuse_other(self) -> None:
        if (self.folder / "model" / "modules.json").is_file():
            raise DataError(
                f"{self.folder} is a run on texts, not a recommender: "
                f'tempera search {quote(str(self.folder))} "what you look for"'
            )
        if not self.recommends:
            raise DataError(f"{self.folder} is not a run of a recommender: {HISTORIES} is missing")

    def load_towers(self, items: Entities, added: str = "") -> FeatureTowers:
        """Return the saved towers for the recommender's users and contexts, and for some items.

        Args:
            added: the source of rows new to the run, for messages.
        """
        normalised = self.config.similarity.name == "cosine"
        weights = self.folder / "model" / "model.safetensors"
        return open_towers(
            self.options, normalised, self.users, items, weights, self.contexts, added
        )

    def within(self, context: Mapping[str, Any]) -> Recommender:
        """Return a recommender for queries in a context, for example {"device": "phone"}.

        Raises:
            DataError: a column missing in the run's contexts, or a value of another type.
        """
        columns: list[str] = []
        if self.contexts is not None:
            columns = [name for name in self.contexts.table.column_names if name != "id"]
        known = f"its contexts have {', '.join(columns)}"
        if not columns:
            known = "it knows no context (data.context)"
        for name in context:
            if name not in columns:
                raise DataError(f"{self.folder} has no context {name!r}: {known}")
        inside = self.with_contexts({name: [value] for name, value in context.items()}, 1)
        inside.has_context = True
        inside.unseen = self._unseen_categories(context)
        return inside

    def _unseen_categories(self, context: Mapping[str, Any]) -> tuple[str, ...]:
        """Return a note on each category of a context read by the towers and unseen in training."""
        assert self.contexts is not None
        read = {feature.column for feature in self.options.query if isinstance(feature, Category)}
        trained = pa.array(self.contexts.known[:-2])
        seen = self.contexts.table[:-2].filter(trained).combine_chunks()
        notes = []
        for name, value in context.items():
            if name not in read:
                continue
            category = _cast(seen.schema.field(name), [value])
            if not pc.is_in(category, value_set=seen[name])[0].as_py():
                notes.append(
                    f"training has seen no {name}={value}, which stands for an unknown one"
                )
        return tuple(notes)

    def with_contexts(self, contexts: Mapping[str, Any], rows: int) -> Recommender:
        """Return a recommender with further contexts in place of the last context, the context of a
        query.

        Args:
            contexts: some of the columns of the run's contexts.
            rows: number of values in each of the columns.

        Raises:
            DataError: a column of another type.
        """
        assert self.contexts is not None
        table = self.contexts.table
        columns = {}
        for field in table.schema:
            if field.name in contexts:
                columns[field.name] = _cast(field, contexts[field.name])
            elif field.name == "id":
                columns["id"] = pa.array([""] * rows, field.type)
            else:
                columns[field.name] = pa.nulls(rows, field.type)
        further = Entities(
            pa.concat_tables([table[:-1], pa.table(columns)]),
            np.append(self.contexts.count[:-1], [0] * rows),
        )
        return self._with_rows(self.users, further, "the context of a query")

    def with_users(self, ids: pa.Array | pa.ChunkedArray) -> Recommender:
        """Return a recommender with rows for users whom the run does not know, if the towers have
        vectors for buckets of ids; else the same recommender."""
        if not any(isinstance(feature, Id) and feature.buckets for feature in self.options.query):
            return self
        distinct = pc.unique(ids)
        new = distinct.filter(pc.invert(pc.is_in(distinct, value_set=self.users.table["id"])))
        if not len(new):
            return self
        known = Entities(self.users.table[:-1], self.users.count[:-1])
        return self._with_rows(_texts(known, *new.to_pylist(), ""), self.contexts)

    def _with_rows(
        self, users: Entities, contexts: Entities | None, added: str = ""
    ) -> Recommender:
        """Return a copy with new users and contexts, and with the saved towers for both.

        The towers look features up by row, so new rows need new towers.
        """
        changed = copy(self)
        changed.users = users
        changed.contexts = contexts
        changed.tower = changed.load_towers(self.items, added)
        return changed

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on a context not read by the towers, on a missing context that the towers read, or
        on unseen categories."""
        reads_context = self.tower.query.moment is not None
        if self.contexts is None or reads_context == self.has_context:
            return self.unseen
        return (_NO_FEATURE,) if self.has_context else (_NO_CONTEXT,)

    @property
    def reads_elapsed(self) -> bool:
        """True if the users' tower reads the time since the last event."""
        return Elapsed() in self.options.query

    def moment(self, now: Any = None, before: Any = None) -> Moment | None:
        """Return the moment of a question, by default the latest time of the data; None for data
        without times.

        Raises:
            DataError: an impossible time, or a time for data without times.
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
        """Return the notes on the context, and the notes on the moment of a question.

        Args:
            pause: the time since the user's last event, for a question of one user.
            later: number of events after the moment.
        """
        notes = list(self.notes)
        if later:
            notes.append(f"{quantity(later, 'later events')} of the history not known at that time")
        clock = self.stored.clock
        if clock is None or moment is None:
            return tuple(notes)
        if not self.reads_elapsed:
            if moment.named and not later:
                notes.append(_NO_ELAPSED)
            return tuple(notes)
        note = f"the model reads the time since the last event (elapsed); now is {clock.shown(moment.now)}"
        if not moment.named:
            note += ", the latest time of the data"
        if pause is not None and not math.isnan(pause):
            note += f": {clock.length(pause)} after it"
        notes.append(note)
        return tuple(notes)

    @cached_property
    def known_items(self) -> KnownItems:
        """The items of the run by their ids."""
        return KnownItems(self.folder, self.items.table, self.integers["item"])

    @cached_property
    def item_column(self) -> str:
        """Name of the column of items in the run's data; its configuration is read once, since
        reading takes ten times as long as recommending."""
        options = options_of_run(self.folder).values.get("data", {})
        return options.get("item") or "item"

    @property
    def item_ids(self) -> pa.ChunkedArray:
        """Ids of the items as texts, [i]."""
        return self.known_items.ids

    @property
    def popularity(self) -> NDArray[np.int64]:
        """Training events of each item, and the events that were added since, [i]."""
        return self.items.count.astype(np.int64) + self.added

    @cached_property
    def added(self) -> NDArray[np.int64]:
        """Events of each item that were added after training, [i]."""
        return added_counts(self.folder, len(self.items.table), self.fingerprint)

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
        candidates: Any = None,
        exclude: Any = None,
        where: str | None = None,
        similar: Any = None,
        diversity: float = 0.0,
    ) -> Recommendations:
        """Return the k best items for a user, for a history, for a user with another history than
        the run knows, or the items nearest to an item.

        A history given with a user takes the place of the history known to the run; the items taken
        by the user, or rated low, stay left out.

        Args:
            user: an id; a user whom the run does not know has the vector of the id's bucket or of
                unknown users.
            history: ids of items, the latest last; None takes the history known to the run.
            exclude_seen: leave out the items of the history, and all items known as taken, rated
                low or disliked by the user.
            index: an exported index to search instead of the run's own.
            now: the moment of the question, in the form of the data's times: a number in the same
                unit or a date. Later events are not known, and the time since the user's last
                event, if read by the towers, ends at the moment. None is the latest time of the
                data. The last event of a given history is at the moment of the question.
            hybrid: rank by counts and vectors together, with the run's chosen weight; scores are
                then weighted standard deviations above the mean of all items. None is True if the
                mixture was better than the vectors alone on validation, and no `index` is named.
            context: values of the columns of data.context for the question, for towers with context
                features.
            before: answer as at an earlier time, by the events before the time, as in the
                evaluation of an event at the time; `now` is the same time, too.
            candidates: the only items to rank: a list of ids, or a table with a column of ids, in a
                file or in memory. Unknown items of a table are left out, with a note.
            exclude: ids of items to leave out.
            where: a condition on the columns of the run's items, for example "genre = 'Drama'"; see
                `corpus.where.passing`.
            similar: the id of an item, in place of a user and a history: the items with the nearest
                vectors, by cosine.
            diversity: from 0, the best items, to 1, the items least alike; see
                `diversity.diverse`. Scores stay what they are, so they may rise in the list.

        Raises:
            DataError: neither user nor history, a wrong id, an item unknown to the run, a number
                out of range, a wrong time, an index of another model, a hybrid, a choice of items
                or a diversity with an approximate index, or a hybrid of a run without counts.
        """
        if context:
            if similar is not None:
                refuse_beside_similar(context=context)
            return self.within(context).recommend(
                user,
                history,
                k,
                exclude_seen,
                index,
                now,
                hybrid,
                None,
                before,
                candidates,
                exclude,
                where,
                None,
                diversity,
            )
        refuse_depth(k)
        refuse_diversity(diversity)
        if similar is not None:
            refuse_beside_similar(
                user=user, history=history, index=index, now=now, hybrid=hybrid, before=before
            )
            return self._similar(similar, k, self.chosen(candidates, exclude, where), diversity)
        if user is None and history is None:
            raise DataError("give a user, a history, or both")
        moment = self.moment(now, before)
        names = self.id_texts("user", [] if user is None else [user])
        code = _position(self.users.table["id"], names)
        everything = self.past(code)
        past = everything if moment is None else everything.until(moment)
        known = len(everything.items.items)
        later = known - len(past.items.items)  # events
        if history is not None:
            past = self._replaced(past, history)
            later = 0
        refuse_other_kinds(Recommender.recommend, locals())
        chosen = self.chosen(candidates, exclude, where)
        notes = [] if chosen is None else list(chosen.notes)
        if user is not None and code is None:
            notes.append(_unknown(user, history))
        if user is not None and history is not None and known:
            note = _REPLACED if exclude_seen else _KEPT
            notes.append(note.format(known, names[0].as_py()))
        if history is None:
            pauses = past.pauses(None if moment is None else moment.now)
            notes += self.notes_of(moment, float(pauses[0]), later)
        else:
            notes += self.notes_of(moment)
            if self.reads_elapsed:
                notes.append(_AT_NOW)
        counting = self.counting(hybrid, index)
        other = None if index is None else Index(Path(index))
        served = self.with_users(names)
        row = _position(served.users.table["id"], names)
        ranks_all = counting is None and chosen is None and not diversity
        hits = None
        if other is not None and ranks_all:
            hits = served._hits_of_index(other, row, past, k, exclude_seen, moment)
        if hits is None:
            searched = self.index if other is None or ranks_all else other
            best = BestItems(
                searched,
                self.fingerprint,
                self.popularity,
                k,
                exclude_seen,
                counting,
                chosen,
                diversity,
            )
            scores, codes, is_blank = best(served.vectors_of([row], past, moment), past)
            if is_blank[0]:
                notes.append(BLANK)
            left = np.isfinite(scores[0])
            hits = searched.hits(scores[0][left], codes[0][left])
        if not hits and (chosen is None or chosen.allowed.any()):
            notes.append(NOTHING_LEFT)
        asked_at = None
        if self.stored.clock is not None and moment is not None:
            asked_at = self.stored.clock.shown(moment.now)
        taken = int(past.items.lengths[0])
        return Recommendations(hits, taken, tuple(notes), asked_at)

    def question(
        self, user: Any, history: Sequence[Any] | None, moment: Moment | None
    ) -> tuple[Recommender, int | None, PastEvents]:
        """Return a recommender with a row for a user, the row, None for an unknown user, and the
        user's past events at a moment, or the history in place of them."""
        names = self.id_texts("user", [] if user is None else [user])
        past = self.past(_position(self.users.table["id"], names))
        if moment is not None:
            past = past.until(moment)
        if history is not None:
            past = self._replaced(past, history)
        served = self.with_users(names)
        return served, _position(served.users.table["id"], names), past

    def _similar(
        self, similar: Any, k: int, chosen: ChosenItems | None, diversity: float
    ) -> Recommendations:
        """Return the k items nearest to an item."""
        (item,) = self.codes(self.id_texts("item", [similar]).to_pylist()).tolist()
        if self.index.stamp is not None:
            self.index.stamp.refuse_other(self.fingerprint, self.index.folder)
        hits = similar_items(self.index, item, k, chosen, diversity)
        return Recommendations(hits, 0, () if chosen is None else chosen.notes)

    def _replaced(self, past: PastEvents, history: Sequence[Any]) -> PastEvents:
        """Return a given history as the past of one user; the items left out by `past` stay left
        out.

        Raises:
            DataError: a history other than a list of ids, or an item unknown to the run.
        """
        items = None if isinstance(history, AbstractSet) else ids_of(history)
        if items is None:
            raise DataError(
                f"history is {history!r}; expected a list of ids of items, the latest last"
            )
        taken = self.codes(self.id_texts("item", items).to_pylist())
        _, left_out = past.left_out
        return PastEvents(
            Histories.of(taken, np.array([0, len(taken)])),
            aside=Histories.of(left_out, np.array([0, len(left_out)])),
        )

    def _hits_of_index(
        self,
        index: Index,
        user: int | None,
        past: PastEvents,
        k: int,
        exclude_seen: bool,
        moment: Moment | None,
    ) -> list[Found] | None:
        """Return the k best items of a user by an exported index; None for a user of whom the model
        knows nothing.

        The index may be approximate, and cannot leave items out. More items are therefore searched
        for, and the seen items left out of the hits.
        """
        vector = self.vectors_of([user], past, moment)[0]
        if not past.items.lengths[0] and not vector.any():
            return None
        seen: set[str] = set()
        if exclude_seen:
            seen.update(self.item_ids.take(past.left_out[1]).to_pylist())
        nearest_hits = index.search(vector, k + len(seen), self.fingerprint)
        unseen = [hit for hit in nearest_hits if hit.id not in seen]
        return [replace(hit, rank=rank) for rank, hit in enumerate(unseen[:k], 1)]

    @cached_property
    def counts(self) -> Counting | None:
        """The run's table of counts, to recommend together with the vectors; None without a
        table."""
        return open_counts(self.folder, len(self.items.table), self.fingerprint)

    def counting(self, hybrid: bool | None, index: str | Path | None = None) -> Counting | None:
        """Return the counts to recommend with; None for the vectors alone."""
        if hybrid and self.counts is None:
            raise DataError(
                f"{self.folder} has no counts: a hybrid needs evaluation.baselines=true and a split with a test"
            )
        if hybrid is None:
            hybrid = index is None and self.counts is not None and self.counts.served
        return self.counts if hybrid else None

    @cached_property
    def stored(self) -> StoredHistories:
        """Past events of the run's users."""
        contexts = 0 if self.contexts is None else len(self.contexts.table) - 2
        return StoredHistories(
            self.folder / HISTORIES, self.fingerprint, len(self.items.table), contexts
        )

    def past(self, user: int | None) -> PastEvents:
        """Return the past events of a user, a single row; an empty row for an unknown user."""
        return nothing() if user is None else self.stored.of(self.users.table["id"][user])

    def id_texts(self, role: Literal["user", "item"], ids: Iterable[Any]) -> pa.Array:
        """Return ids as texts in the run's spelling: "007" and 7.0 are 7 if the ids of the run are
        integers.

        Raises:
            DataError: an id other than a text or a whole number.
        """
        return id_texts(role, ids, self.integers[role])

    def codes(self, ids: Sequence[str]) -> Codes:
        """Return the codes of items.

        Raises:
            DataError: ids unknown to the run.
        """
        return self.known_items.codes(ids)

    def chosen(
        self, candidates: Any = None, exclude: Any = None, where: str | None = None
    ) -> ChosenItems | None:
        """Return the items that may be recommended; None for all. See `chosen_items`.

        Raises:
            DataError: an id unknown to the run, no known candidate, or a condition that does not fit
                the columns of the items.
        """
        return chosen_items(self.known_items, candidates, exclude, where, self.item_column)

    def vectors_of(
        self, users: Sequence[int | None], past: PastEvents, moment: Moment | None
    ) -> NDArray[np.float32]:
        """Return the vectors of users with all past events, at a moment, [n, D]; None is an unknown
        user."""
        pauses = past.pauses(None if moment is None else moment.now)
        contexts = None if past.contexts is None else past.contexts.each
        return self.vectors(users, past.items.each, pauses, contexts)

    def vectors(
        self,
        users: Sequence[int | None],
        histories: Sequence[NDArray[np.integer]],
        pauses: NDArray[np.float32] | None = None,
        contexts: Sequence[NDArray[np.integer]] | None = None,
    ) -> NDArray[np.float32]:
        """Return the vectors of users with histories, [n, D], in the form for comparison.

        Args:
            users: codes of users; None is an unknown user.
            histories: codes of the items of each user, the latest last.
            pauses: the time since the last event of each history, nan for an empty history; None is
                0, an event at the present moment.
            contexts: codes of the contexts of the events of each history; None is not known.
        """
        frame = self.frame(users, histories, pauses, contexts)
        vectors: NDArray[np.float32] = self.tower.encode(frame, "query").numpy()
        return vectors

    def frame(
        self,
        users: Sequence[int | None],
        histories: Sequence[NDArray[np.integer]],
        pauses: NDArray[np.float32] | None = None,
        contexts: Sequence[NDArray[np.integer]] | None = None,
    ) -> Frame:
        """Return the columns that the users' tower reads, n rows; see `vectors`."""
        last = 0 if self.options.history is None else self.options.history.last
        history = _latest(histories, last)
        unknown = len(self.users.table) - 1
        columns: dict[str, Column] = {
            "user": torch.tensor([unknown if user is None else user for user in users]),
            "history": history,
            "elapsed": torch.from_numpy(just_now(histories) if pauses is None else pauses),
        }
        if self.contexts is not None:
            unknown_context = len(self.contexts.table) - 2
            query = len(self.contexts.table) - 1
            if contexts is None:
                contexts = [np.full(len(codes), unknown_context) for codes in histories]
            columns["contexts"] = _latest(contexts, last)
            columns["context"] = torch.full((len(users),), query)
        return Frame(columns)

    def export_users(self, folder: Path, probes: int = 64) -> dict[str, Any]:
        """Write the users' tower as ONNX and the items with vectors as Parquet; return facts about
        the export.

        Args:
            probes: number of users by whom the exported tower is compared with the saved tower.

        Raises:
            ConfigError: a tower without an export.
            DataError: a missing library.
            OutputError: the exported tower gives other vectors than the saved tower.
        """
        items = len(self.items.table)
        unknown = len(self.users.table) - 1
        pools = self.options.history.pools if self.options.history else ()
        module = UserModule(self.tower, pools, items, unknown + 1)
        moment = self.moment()
        now = None if moment is None else moment.now
        # An unknown user is compared without a history, and with a short history.
        users = [unknown, unknown]
        histories: list[NDArray[Any]] = [np.empty(0, np.int64), np.arange(min(3, items))]
        pauses = [math.nan, 0.0]
        for user in np.random.default_rng(0).permutation(unknown)[:probes].tolist():
            past = self.past(user)
            users.append(user)
            histories.append(past.items.each[0])
            pauses.append(past.pauses(now)[0])
        elapsed = np.array(pauses, np.float32)
        expected = self.vectors(users, histories, elapsed)
        worst = write_users(folder, module, self.fingerprint, histories, users, elapsed, expected)
        write_parquet(folder, self.index)
        return {"largest_difference": worst, "items": items, "tried_on": len(histories)}


def _has_integers(known: Entities) -> bool:
    return bool(pa.types.is_integer(known.table["id"].type))


def _texts(known: Entities, *others: str) -> Entities:
    """Return entities with ids as texts, followed by further ids without features."""
    table = known.table
    ids = table["id"].cast(pa.large_string())
    table = table.set_column(table.column_names.index("id"), "id", ids)
    new = {field.name: pa.nulls(len(others), field.type) for field in table.schema}
    new["id"] = pa.array(others, pa.large_string())
    return Entities(
        pa.concat_tables([table, pa.table(new)]), np.append(known.count, [0] * len(others))
    )


def _latest(histories: Sequence[NDArray[np.integer]], last: int) -> Events:
    """Return the latest codes of each history, at most `last` of each."""
    read = [codes[max(0, len(codes) - last) :] for codes in histories]
    lengths = [len(codes) for codes in read]
    stop = np.cumsum(lengths)
    codes = np.concatenate(read).astype(np.int64)
    return Events(torch.from_numpy(codes), torch.tensor(stop - lengths), torch.tensor(stop))


def _configuration(path: Path) -> Config:
    """Read the sections of a run's configuration about towers."""
    if not path.is_file():
        raise DataError(f"{path} is missing: the run is incomplete")
    options = options_of_run(path.parent)
    sections: dict[str, Any] = {}
    for name in ("tower", "objective"):
        if name in options.values:
            sections[name] = options.values[name]
    config = build(Options(sections, options.places), of_data=world(INTERACTIONS))
    if not isinstance(config.tower, Features):
        raise DataError(f"{path} does not describe a recommender: tower.kind has to be features")
    return config


def _cast(field: pa.Field, values: Any) -> pa.Array | pa.ChunkedArray:
    """Return values of a column of contexts in the type of the column, [n]."""
    try:
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            values = pa.array(values)
        return values.cast(field.type)
    except pa.ArrowException as error:
        raise DataError(f"context {field.name}: expected {field.type}: {error}") from None


def _position(ids: pa.ChunkedArray, names: pa.Array) -> int | None:
    """Return the position of the only name among ids; None for no name, an empty name, or an absent
    name."""
    if not len(names) or not names[0].as_py():
        return None
    position = int(pc.index(ids, names[0]).as_py())
    return None if position < 0 else position


def _unknown(user: Any, history: Sequence[Any] | None) -> str:
    """Return the note on a user whom the run does not know."""
    by = "no history" if history is None else "the history given"
    return f"user {str(user)!r} is unknown; recommended by {by}"
