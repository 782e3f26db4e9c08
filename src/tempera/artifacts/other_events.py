"""Evaluation of a trained recommender on interactions that it was not trained on, such as those of
the next month."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from ..core.frame import Frame
from ..errors import ConfigError, DataError, quantity
from ..options.build import config_of_run
from ..ranking.compare import Comparison
from ..ranking.metrics import listed
from ..recommend.judge.continued import Continued
from ..recommend.judge.full_catalogue import Histories, Scores, inner
from ..recommend.judge.judgement import Recommended
from ..recommend.judge.later_events import drawn, judge_events
from ..recommend.judge.leads import Reached, protocols_of, winner
from ..recommend.read.division import GlobalTime, Undivided
from ..recommend.read.feature_tables import texts_of
from ..recommend.read.interactions import Interactions
from ..recommend.read.timeline import Events, Timeline
from ..recommend.train.encoders import Elapsed
from ..recommend.train.segments import Contexts
from ..recommend.train.visits import Visits
from ..task.verdict import COUNTED, OURS
from .moments import ANOTHER_UNIT
from .recommender import Recommender

Floats = NDArray[np.float32]
_OWN = {f"data.{name}" for name in ("source", "path", "users", "items", "validation", "test")}


@dataclass(frozen=True)
class Asked:
    """Hold the questions of an evaluation: events of a timeline, by protocol."""

    timeline: Timeline
    test: Mapping[str, Events]


@dataclass(frozen=True)
class Beside:
    """Hold another run's ranks on the same questions, and how far the evaluated one is ahead.

    Attributes:
        served: the systems by which each of both answers, the evaluated one first.
        comparisons: of these, by protocol and metric.
    """

    run: Path
    served: tuple[str, str]
    reached: Mapping[str, Recommended]  # what it serves, by protocol
    comparisons: Mapping[str, Mapping[str, Comparison]]


@dataclass(frozen=True)
class EventsFinding:
    """Hold the evaluation of a run on held-out or other interactions, by system and protocol.

    Attributes:
        events: the questions.
        run: the evaluated run.
        served: the system by which it answers.
        beside: another run on the same questions.
        counts: events, users and queries, and what was left out, by reason.
        lines: what was read, left out and asked, in sentences.
        cautions: what makes the figures misleading, in sentences.
    """

    events: Asked
    reached: Reached
    counts: Mapping[str, Any]
    lines: tuple[str, ...]
    cautions: tuple[str, ...]
    run: Path
    served: str
    beside: Beside | None = None

    @property
    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """Means over the queries, by system and protocol."""
        return {
            system: {name: each.metrics for name, each in protocols.items()}
            for system, protocols in self.reached.items()
        }

    def against(self, other: EventsFinding) -> EventsFinding:
        """Return the same with another run beside it, query by query.

        Raises:
            DataError: questions or items that differ, so that nothing would be compared.
        """
        for name, events in self.events.test.items():
            if differs := self._differs(other, name, events):
                raise DataError(
                    f"{self.run} and {other.run} are not asked the same: {differs}; compare runs on "
                    "the same data with the same split and options of data and evaluation"
                )
        ours, theirs = self.reached[self.served], other.reached[other.served]
        comparisons = {
            name: {
                metric: comparison
                for metric, comparison in ours[name].against(theirs[name]).items()
                if metric in ours[name].names
            }
            for name in self.events.test
        }
        beside = Beside(other.run, (self.served, other.served), theirs, comparisons)
        return replace(self, beside=beside)

    def _differs(self, other: EventsFinding, name: str, events: Events) -> str:
        """Return in what the questions of a protocol are others in another finding; empty if they
        are the same."""
        if (theirs := other.events.test.get(name)) is None:
            return f"only the first has the protocol {name}"
        if not _ids(self.events.timeline.item_ids).equals(_ids(other.events.timeline.item_ids)):
            counts = [len(each.events.timeline.item_ids) for each in (self, other)]
            return "their items are others ({:,} and {:,})".format(*counts)
        users = [
            _ids(line.user_ids).take(pa.array(line.user_of(which)))
            for line, which in ((self.events.timeline, events), (other.events.timeline, theirs))
        ]
        ours, others = (each.reached[each.served][name].target for each in (self, other))
        alike = users[0].equals(users[1]) and np.array_equal(ours, others)
        return (
            ""
            if alike
            else f"their {name} questions are others ({len(events):,} and {len(theirs):,})"
        )

    def verdicts(self) -> list[str]:
        """Return comparisons with the other run in plain words; none without one."""
        if (beside := self.beside) is None:
            return []
        ours, theirs = (
            f"{run} ({served})" for run, served in zip((self.run, beside.run), beside.served)
        )
        return [
            f"{protocol}: {comparison.sentence(ours, theirs, metric)}"
            for protocol, metrics in beside.comparisons.items()
            for metric, comparison in metrics.items()
        ]

    @property
    def winners(self) -> list[str]:
        """The best system of each protocol, in sentences; none where there is one system alone."""
        if len(self.reached) < 2:
            return []
        protocols = {
            name: {system: each[name] for system, each in self.reached.items()}
            for name in self.events.test
        }
        return [winner(systems, name) for name, systems in protocols.items()]

    def json(self) -> dict[str, Any]:
        """Return a JSON object, with the tables in the form that metrics.json has them."""
        facts = {
            "counts": dict(self.counts),
            "notes": list(self.lines),
            "cautions": list(self.cautions),
        }
        document = {
            **facts,
            "metrics": self.metrics,
            "winners": self.winners,
            "protocols": protocols_of(self.reached),
        }
        if (beside := self.beside) is None:
            return document
        comparisons = {
            protocol: {metric: comparison.json() for metric, comparison in metrics.items()}
            for protocol, metrics in beside.comparisons.items()
        }
        return {
            **document,
            "against": str(beside.run),
            "served": list(beside.served),
            "comparisons": comparisons,
            "verdicts": self.verdicts(),
        }

    def per_query(self) -> pa.Table:
        """Return columns task, query, system, metric, value: the protocol, and the id of the
        user."""
        timeline, tables = self.events.timeline, []
        every = dict(self.reached)
        if self.beside is not None:
            every[f"{self.beside.run}: {self.beside.served[1]}"] = self.beside.reached
        for system, protocols in every.items():
            for task, each in protocols.items():
                users = timeline.user_ids.take(
                    pa.array(timeline.user_of(self.events.test[task]))
                ).cast(pa.string())
                for metric, values in each.per_query.items():
                    names = {"task": task, "query": users, "system": system, "metric": metric}
                    columns = {
                        key: [v] * len(values) if isinstance(v, str) else v
                        for key, v in names.items()
                    }
                    tables.append(pa.table({**columns, "value": pa.array(values, pa.float64())}))
        return pa.concat_tables(tables)


def evaluate_events(
    recommender: Recommender,
    data: Any,
    metrics: str | Sequence[str] = (),
    queries: int | None = None,
    options: Sequence[str] = (),
    against: Recommender | None = None,
) -> EventsFinding:
    """Rank the run's items for later events of a file: by popularity, counts, vectors, and counts
    and vectors.

    Users whom the run knows have their stored histories in front; the others begin with their
    events of the file.

    Args:
        data: a file or a folder of interactions with the columns that the run was trained on, or an
            object that holds them.
        metrics: names such as ndcg@10; none are those of the run.
        queries: largest number of queries of each protocol, drawn at random; None is all.
        options: overrides of the run's `data` section, of how the data are read, such as
            data.time=when.
        against: another run, which is asked the same; what both serve is compared query by query.

    Raises:
        DataError: data that cannot be read, of which nothing can be asked, or of which another run
            is asked something else.
        ConfigError: an option or a metric that does not exist.
    """
    if against is not None:
        first = evaluate_events(recommender, data, metrics, queries, options)
        return first.against(evaluate_events(against, data, metrics, queries, options))
    for option in options:
        name = option.partition("=")[0].strip()
        if name in _OWN or not name.startswith("data."):
            raise ConfigError(
                f"{name} stands in the run and cannot be given for its evaluation: only how the data are read can, "
                "such as data.time=COLUMN"
            )
    config = config_of_run(recommender.folder, options)
    assert isinstance(config.data, Interactions)
    if any(option.startswith("data.split") for option in options) and not isinstance(
        config.data.split, GlobalTime
    ):
        raise ConfigError(
            "data.split of an evaluation on other interactions is global_time, with its least and rolling"
        )
    recommender, later = _in_contexts(recommender, _read(config.data, data, recommender.integers))
    latest = recommender.stored.latest(ids := later.user_ids)
    if latest is None and Elapsed() in recommender.options.query:
        raise DataError(
            f"{recommender.folder} does not know when its histories ended, which its tower's elapsed reads: train it again"
        )
    _refuse_another_unit(later, recommender)
    events = Continued.of(
        later, recommender.item_ids, recommender.stored.rows(ids), latest, config.data.split
    )
    total = {name: len(each) for name, each in events.test.items()}
    if queries is not None:
        test = {
            name: drawn(each, queries, config.evaluation.seed) for name, each in events.test.items()
        }
        events = replace(events, test=test)
    met = recommender if later.anonymous else recommender.with_users(later.user_ids)
    scores = {name: _systems(met, events.timeline, each) for name, each in events.test.items()}
    counts, names = recommender.items.count, listed(metrics) or config.evaluation.metrics
    reached = {
        system: {
            name: judge_events(systems[system], events.test[name], events.timeline, counts, names)
            for name, systems in scores.items()
        }
        for system in next(iter(scores.values()))
    }
    return _described(recommender, later, events, total, reached)


def _read(options: Interactions, data: Any, integers: Mapping[str, bool]) -> Timeline:
    """Return the timeline of other data, read as those of the run were, with ids as texts as the
    run has them."""
    absent: dict[str, Any] = dict.fromkeys(("path", "users", "items", "validation", "test"))
    source = replace(options, **absent, split=Undivided())
    named = replace(source, path=str(data)) if isinstance(data, str | Path) else source.hand(data)
    later = named.read(whole=False)
    if later.anonymous:  # the same numbers are other sessions in the run
        names = [f"session {name}" for name in later.user_ids.to_pylist()]
        later = replace(later, user_ids=pa.array(names, pa.large_string()))
    users, items = (
        texts_of(getattr(later, f"{role}_ids"), integers[role]) for role in ("user", "item")
    )
    return replace(later, user_ids=users, item_ids=items)


def _refuse_another_unit(later: Timeline, recommender: Recommender) -> None:
    """Raise DataError where times are hundreds of those that the run knows, or the other way round:
    nothing would be compared."""
    known = recommender.stored.times
    if (
        later.time is None
        or known is None
        or min(known[0], middle := float(np.median(later.time))) <= 0
    ):
        return
    if max(middle / known[1], known[0] / middle) > ANOTHER_UNIT:
        own = float(later.time.min()), float(later.time.max())
        spans = ["{:,.0f} to {:,.0f}".format(*span) for span in (own, known)]
        raise DataError(
            f"times are {spans[0]} here, and {spans[1]} in the histories of {recommender.folder}: another unit, or dates beside "
            "numbers (dates are read as microseconds since 1970); give times as the run was trained on them"
        )


def _in_contexts(recommender: Recommender, later: Timeline) -> tuple[Recommender, Timeline]:
    """Return a recommender that knows what the events of a timeline happened in, and the timeline
    with its numbers."""
    if recommender.contexts is None or later.contexts is None or later.context is None:
        return recommender, replace(later, context=None)
    names = recommender.contexts.table.column_names
    happened = {name: later.contexts[name] for name in later.contexts.column_names if name in names}
    first = len(recommender.contexts.table) - 1
    return recommender.with_contexts(happened, len(later.contexts)), replace(
        later, context=later.context + first
    )


def _systems(recommender: Recommender, timeline: Timeline, events: Events) -> dict[str, Scores]:
    """Return the scores of each system for events."""
    index, counts = recommender.index, recommender.items.count.astype(np.float32)
    if index.stamp is not None:
        index.stamp.refuse_other(recommender.fingerprint, index.folder)
    vectors = inner(_vectors(recommender, timeline, events), index.vectors)
    systems: dict[str, Scores] = {
        "popularity": lambda rows: np.tile(counts, (rows.stop - rows.start, 1))
    }
    if (counting := recommender.counts) is None:
        return {**systems, "trained": vectors}
    seen, fitted = Histories(timeline.item, *timeline.histories(events)), counting.fitted
    newer = len(counts) - fitted.weights.shape[0]  # items without counts
    systems[counting.system] = lambda rows: np.pad(fitted.scores(seen[rows]), ((0, 0), (0, newer)))
    return {**systems, "trained": vectors, COUNTED: counting.by_history(vectors, seen)}


def _vectors(recommender: Recommender, timeline: Timeline, events: Events) -> Floats:
    """Return the vectors of users as they stand before events, [q, D]."""
    history = recommender.options.history
    contexts = Contexts(timeline, history.last if history else 1, targets=1)
    frame = Visits(timeline, np.zeros(len(timeline), bool), contexts).frame(
        torch.from_numpy(events)
    )
    known = recommender.users.table["id"]
    codes = pc.index_in(timeline.user_ids, value_set=known).fill_null(len(known) - 1)
    user = torch.from_numpy(codes.to_numpy().astype(np.int64)[timeline.user_of(events)])
    vectors: Floats = recommender.tower.encode(
        Frame({**frame.columns, "user": user}), "query"
    ).numpy()
    return vectors


def _described(
    recommender: Recommender,
    later: Timeline,
    events: Continued,
    total: Mapping[str, int],
    reached: Reached,
) -> EventsFinding:
    """Return a finding with what was read, left out and asked."""
    ids = events.timeline.user_ids
    known = pc.is_in(ids, value_set=recommender.users.table["id"])
    users = {"users": len(ids), "known_users": pc.sum(known).as_py() or 0}
    queries = {name: len(each) for name, each in events.test.items()}
    left_out = {
        reason: count for reason, count in {**later.dropped, **events.left_out}.items() if count
    }
    counts = {"interactions": events.later, **users, "queries": queries, "left_out": left_out}
    of = {
        name: "" if count == total[name] else f" of {total[name]:,}"
        for name, count in queries.items()
    }
    tests = ", ".join(f"{count:,}{of[name]} {name}" for name, count in queries.items())
    text = "{interactions:,} interactions of {users:,} users, {known_users:,} of whom the run knows; test queries: "
    lines = [*later.about.split("\n"), text.format(**counts) + tests]
    lines += [f"left out: {quantity(count, reason)}" for reason, count in left_out.items()]
    cautions = []
    untimed = later.time is None or recommender.stored.latest(ids) is None
    if untimed and 2 * events.again > events.later:
        cautions.append(
            f"{events.again:,} of {events.later:,} interactions are with an item that the history of their user holds already: "
            "if the run was trained on these interactions, give others"
        )
    served = COUNTED if recommender.counting(None) else OURS[1]
    return EventsFinding(
        Asked(events.timeline, events.test),
        reached,
        counts,
        tuple(lines),
        tuple(cautions),
        recommender.folder,
        served,
    )


def _ids(ids: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return ids as texts."""
    texts = ids.cast(pa.large_string())
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
