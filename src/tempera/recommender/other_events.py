"""Evaluation of a trained recommender on interactions outside the training data, for example the
interactions of the next month."""

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
from ..parallel.distributed import ALONE, Group
from ..ranking.compare import Comparison
from ..ranking.metrics import listed
from ..recommend.judge.continued import Continued
from ..recommend.judge.full_catalogue import Histories, Scores, inner
from ..recommend.judge.judgement import Recommended
from ..recommend.judge.later_events import drawn, judge_events
from ..recommend.judge.leads import Reached, protocols_of, winner
from ..recommend.read.division import GlobalTime
from ..recommend.read.timeline import Events, Timeline
from ..recommend.train.encoders import Elapsed
from ..recommend.train.segments import Contexts
from ..recommend.train.visits import Visits
from ..task.verdict import COUNTED, OURS
from .further_events import data_of_run, in_contexts, read_further, refuse_another_unit
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
    """Hold another run's ranks on the same questions, and the lead of the evaluated run.

    Attributes:
        run: the other run.
        served: the system that answers in the evaluated run, and in the other run.
        reached: results of the other run's system, by protocol.
        comparisons: of both systems, by protocol and metric.
    """

    run: Path
    served: tuple[str, str]
    reached: Mapping[str, Recommended]
    comparisons: Mapping[str, Mapping[str, Comparison]]


@dataclass(frozen=True)
class EventsFinding:
    """Hold the evaluation of a run on held-out or other interactions, by system and protocol.

    Attributes:
        events: the questions.
        run: the evaluated run.
        served: the system that answers in the run.
        beside: another run on the same questions.
        counts: events, users, queries, and events left out by reason.
        lines: sentences on the data and the questions.
        cautions: sentences on data that make the figures misleading.
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
        means = {}
        for system, protocols in self.reached.items():
            means[system] = {name: each.metrics for name, each in protocols.items()}
        return means

    def against(self, other: EventsFinding) -> EventsFinding:
        """Return the finding with another run beside, compared query by query.

        Raises:
            DataError: different questions or items, so nothing can be compared.
        """
        for name in self.events.test:
            difference = self._difference(other, name)
            if difference:
                raise DataError(
                    f"{self.run} and {other.run} are not asked the same: {difference}; compare runs on "
                    "the same data with the same split and options of data and evaluation"
                )
        ours = self.reached[self.served]
        theirs = other.reached[other.served]
        comparisons: dict[str, dict[str, Comparison]] = {}
        for name in self.events.test:
            comparisons[name] = {}
            for metric, comparison in ours[name].against(theirs[name]).items():
                if metric in ours[name].names:
                    comparisons[name][metric] = comparison
        beside = Beside(other.run, (self.served, other.served), theirs, comparisons)
        return replace(self, beside=beside)

    def _difference(self, other: EventsFinding, name: str) -> str:
        """Return the difference between the questions of a protocol and another finding's; empty
        for the same questions."""
        if name not in other.events.test:
            return f"only the first has the protocol {name}"
        our_items = _ids(self.events.timeline.item_ids)
        their_items = _ids(other.events.timeline.item_ids)
        if not our_items.equals(their_items):
            return f"their items are others ({len(our_items):,} and {len(their_items):,})"
        have_same_users = self._users(name).equals(other._users(name))
        ours = self.reached[self.served][name].target
        theirs = other.reached[other.served][name].target
        if have_same_users and np.array_equal(ours, theirs):
            return ""
        counts = f"{len(self.events.test[name]):,} and {len(other.events.test[name]):,}"
        return f"their {name} questions are others ({counts})"

    def _users(self, name: str) -> pa.Array:
        """Return the id of the user of each question of a protocol, [q]."""
        timeline = self.events.timeline
        return _ids(timeline.user_ids).take(pa.array(timeline.user_of(self.events.test[name])))

    def verdicts(self) -> list[str]:
        """Return the comparisons with the other run in plain words; empty without another run."""
        if self.beside is None:
            return []
        ours = f"{self.run} ({self.beside.served[0]})"
        theirs = f"{self.beside.run} ({self.beside.served[1]})"
        sentences = []
        for protocol, metrics in self.beside.comparisons.items():
            for metric, comparison in metrics.items():
                sentences.append(f"{protocol}: {comparison.sentence(ours, theirs, metric)}")
        return sentences

    @property
    def winners(self) -> list[str]:
        """The best system of each protocol, in sentences; empty for one system alone."""
        if len(self.reached) < 2:
            return []
        sentences = []
        for name in self.events.test:
            systems = {system: protocols[name] for system, protocols in self.reached.items()}
            sentences.append(winner(systems, name))
        return sentences

    def json(self) -> dict[str, Any]:
        """Return a JSON object, with tables in the form of metrics.json."""
        document = {
            "counts": dict(self.counts),
            "notes": list(self.lines),
            "cautions": list(self.cautions),
            "metrics": self.metrics,
            "winners": self.winners,
            "protocols": protocols_of(self.reached),
        }
        if self.beside is None:
            return document
        comparisons = {}
        for protocol, metrics in self.beside.comparisons.items():
            comparisons[protocol] = {name: each.json() for name, each in metrics.items()}
        document["against"] = str(self.beside.run)
        document["served"] = list(self.beside.served)
        document["comparisons"] = comparisons
        document["verdicts"] = self.verdicts()
        return document

    def per_query(self) -> pa.Table:
        """Return every score: columns task (the protocol), query (the id of the user), system,
        metric, value."""
        every = dict(self.reached)
        if self.beside is not None:
            every[f"{self.beside.run}: {self.beside.served[1]}"] = self.beside.reached
        tables = []
        for system, protocols in every.items():
            for task, each in protocols.items():
                users = self._users(task).cast(pa.string())
                for metric, values in each.per_query.items():
                    columns = {
                        "task": [task] * len(values),
                        "query": users,
                        "system": [system] * len(values),
                        "metric": [metric] * len(values),
                        "value": pa.array(values, pa.float64()),
                    }
                    tables.append(pa.table(columns))
        return pa.concat_tables(tables)


def evaluate_events(
    recommender: Recommender,
    data: Any,
    metrics: str | Sequence[str] = (),
    queries: int | None = None,
    options: Sequence[str] = (),
    against: Recommender | None = None,
    group: Group = ALONE,
) -> EventsFinding:
    """Rank the run's items for later events of a file: by popularity, counts, vectors, and counts
    and vectors.

    The history of a user begins with the stored history, if the run knows the user, and goes on
    with the user's events of the file.

    Args:
        data: a file or a folder of interactions with the run's columns, or an object with
            interactions.
        metrics: names of metrics, ndcg@10 for example; empty for the metrics of the run.
        queries: largest number of queries of each protocol, drawn at random; None is all.
        options: overrides of the run's `data` section for reading the data, for example
            data.time=when.
        against: another run with the same questions; the served systems are compared query by
            query.
        group: processes that divide the questions, if each of them calls this with the same
            arguments.

    Raises:
        DataError: unreadable data, data without questions, or different questions for the two runs.
        ConfigError: an unknown option or metric.
    """
    if against is not None:
        questions = data, metrics, queries, options
        first = evaluate_events(recommender, *questions, group=group)
        return first.against(evaluate_events(against, *questions, group=group))
    for option in options:
        name = option.partition("=")[0].strip()
        if name in _OWN or not name.startswith("data."):
            raise ConfigError(
                f"{name} stands in the run and cannot be given for its evaluation: only how the data are read can, "
                "such as data.time=COLUMN"
            )
    config, source = data_of_run(recommender.folder, options)
    is_split_given = any(option.startswith("data.split") for option in options)
    if is_split_given and not isinstance(source.split, GlobalTime):
        raise ConfigError(
            "data.split of an evaluation on other interactions is global_time, with its least and rolling"
        )
    recommender, later = in_contexts(recommender, read_further(source, data, recommender.integers))
    ids = later.user_ids
    latest = recommender.stored.latest(ids)
    if latest is None and Elapsed() in recommender.options.query:
        raise DataError(
            f"{recommender.folder} does not know when its histories ended, which its tower's elapsed reads: train it again"
        )
    refuse_another_unit(later.time, recommender)
    events = Continued.of(
        later, recommender.item_ids, recommender.stored.rows(ids), latest, source.split
    )
    total = {name: len(each) for name, each in events.test.items()}
    if queries is not None:
        test = {}
        for name, each in events.test.items():
            test[name] = drawn(each, queries, config.evaluation.seed)
        events = replace(events, test=test)
    served = recommender if later.anonymous else recommender.with_users(later.user_ids)
    scores = {name: _systems(served, events.timeline, each) for name, each in events.test.items()}
    counts = recommender.items.count
    names = listed(metrics) or config.evaluation.metrics
    reached: dict[str, dict[str, Recommended]] = {}
    for system in next(iter(scores.values())):
        reached[system] = {}
        for name, systems in scores.items():
            reached[system][name] = judge_events(
                systems[system], events.test[name], events.timeline, counts, names, group=group
            )
    return _finding(recommender, later, events, total, reached)


def _systems(recommender: Recommender, timeline: Timeline, events: Events) -> dict[str, Scores]:
    """Return the scores of each system for events."""
    index = recommender.index
    counts = recommender.popularity.astype(np.float32)
    if index.stamp is not None:
        index.stamp.refuse_other(recommender.fingerprint, index.folder)
    vectors = inner(_vectors(recommender, timeline, events), index.vectors)
    systems: dict[str, Scores] = {
        "popularity": lambda rows: np.tile(counts, (rows.stop - rows.start, 1))
    }
    counting = recommender.counts
    if counting is None:
        systems["trained"] = vectors
        return systems
    starts, stops = timeline.histories(events)
    seen = Histories(timeline.item, starts, stops)
    fitted = counting.fitted
    newer = len(counts) - fitted.weights.shape[0]  # items without counts
    systems[counting.system] = lambda rows: np.pad(fitted.scores(seen[rows]), ((0, 0), (0, newer)))
    systems["trained"] = vectors
    systems[COUNTED] = counting.by_history(vectors, seen)
    return systems


def _vectors(recommender: Recommender, timeline: Timeline, events: Events) -> Floats:
    """Return the vectors of users before events, [q, D]."""
    history = recommender.options.history
    contexts = Contexts(timeline, history.last if history else 1, targets=1)
    visits = Visits(timeline, np.zeros(len(timeline), bool), contexts)
    columns = dict(visits.frame(torch.from_numpy(events)).columns)
    known = recommender.users.table["id"]
    codes = pc.index_in(timeline.user_ids, value_set=known).fill_null(len(known) - 1)
    users = codes.to_numpy().astype(np.int64)[timeline.user_of(events)]
    columns["user"] = torch.from_numpy(users)
    vectors: Floats = recommender.tower.encode(Frame(columns), "query").numpy()
    return vectors


def _finding(
    recommender: Recommender,
    later: Timeline,
    events: Continued,
    total: Mapping[str, int],
    reached: Reached,
) -> EventsFinding:
    """Return a finding with sentences on the data and the questions.

    Args:
        total: number of questions of each protocol, before a draw of some questions.
    """
    ids = events.timeline.user_ids
    known = pc.sum(pc.is_in(ids, value_set=recommender.users.table["id"])).as_py() or 0
    queries = {name: len(each) for name, each in events.test.items()}
    dropped = {**later.dropped, **events.left_out}
    left_out = {reason: count for reason, count in dropped.items() if count}
    counts = {
        "interactions": events.later,
        "users": len(ids),
        "known_users": known,
        "queries": queries,
        "left_out": left_out,
    }
    tests = []
    for name, count in queries.items():
        share = "" if count == total[name] else f" of {total[name]:,}"
        tests.append(f"{count:,}{share} {name}")
    lines = later.about.split("\n")
    lines.append(
        f"{events.later:,} interactions of {len(ids):,} users, {known:,} of whom the run knows; "
        f"test queries: {', '.join(tests)}"
    )
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
