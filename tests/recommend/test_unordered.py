"""Interactions without an order: their splits, the bag of a user's other items, and users with
several items to find."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pytest
import torch

from tempera.core.frame import Events
from tempera.engine.devices import Devices
from tempera.errors import ConfigError, DataError, TemperaError
from tempera.io.documents import JsonLines
from tempera.options.build import build
from tempera.options.yaml_options import of
from tempera.ranking.metrics import KINDS
from tempera.recommend.judge.full_catalogue import Histories, inner
from tempera.recommend.judge.judgement import Recommended
from tempera.recommend.judge.popularity import Popularity
from tempera.recommend.read.division import (
    TEST,
    TRAIN,
    VALIDATION,
    AtRandom,
    Fitting,
    GlobalTime,
    LeaveLastOut,
    NamedFiles,
)
from tempera.recommend.read.interactions import Interactions
from tempera.recommend.read.timeline import Timeline, timeline_of
from tempera.recommend.recommendation import InteractionTask
from tempera.recommend.train.history import History, Past
from tempera.recommend.train.pooling import BagOfOthers
from tempera.recommend.train.segments import Contexts, Segments
from tempera.recommend.train.visits import Visits
from tempera.run.fit import fit
from tempera.run.judge import judge
from tempera.run.prepare import prepare
from tempera.task.run_files import HISTORIES
from tempera.task.run_files import ITEMS as ITEMS_TABLE

ITEMS, USERS = 25, 30


def table(events: int = 400, seed: int = 0) -> pa.Table:
    """Rows in no order, of which many come twice."""
    draw = random.Random(seed)
    return pa.table(
        {
            "user": [draw.randrange(USERS) for _ in range(events)],
            "item": draw.choices(range(ITEMS), k=events),
        }
    )


def divided(split: Any = None, **options: Any) -> tuple[Timeline, Any]:
    line = Interactions.of(table(**options), ordered=False).read()
    division = (split or AtRandom(0.2, 0.2))(line)
    return division.timeline, division


def own(line: Timeline, user: int, *parts: int) -> list[int]:
    """The items of a user in these parts."""
    events = range(line.offsets[user], line.offsets[user + 1])
    assert line.part is not None
    return [int(line.item[k]) for k in events if line.part[k] in parts]


# Splits
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_events_drawn_at_random(seed: int) -> None:
    line, division = divided(AtRandom(0.3, 0.3, seed))
    distinct = {*zip(table()["user"].to_pylist(), table()["item"].to_pylist())}
    every = np.arange(len(line))
    assert sorted(zip(line.user_of(every).tolist(), line.item.tolist())) == sorted(
        distinct
    )  # each item once
    assert all(
        (np.diff(division.part[a:b].astype(int)) >= 0).all()
        for a, b in zip(line.offsets, line.offsets[1:])
    )
    assert all(own(line, user, TRAIN) for user in range(USERS))
    share = np.bincount(division.part, minlength=3) / len(line)
    assert abs(share[TEST] - 0.3) < 0.1 > abs(share[VALIDATION] - 0.3)
    for name, part in (("test", TEST), ("validation", VALIDATION)):
        asked = getattr(division, name)["users"]
        assert line.user_of(asked).tolist() == [
            user for user in range(USERS) if own(line, user, part)
        ]
        for event, user in zip(asked, line.user_of(asked)):
            begin, stop = (int(each[0]) for each in line.histories(np.array([event])))
            assert line.item[begin:stop].tolist() == own(
                line, user, *range(part)
            )  # all that is known by then
            assert line.item[event : int(line.answers(np.array([event]))[0])].tolist() == own(
                line, user, part
            )
    other, _ = divided(AtRandom(0.3, 0.3, seed + 1))
    assert other.item.tolist() != line.item.tolist()


def test_every_user_trains_though_nearly_all_is_tested() -> None:
    line, division = divided(AtRandom(0.98, 0.0))
    counts = [len(own(line, user, TRAIN)) for user in range(USERS)]
    assert min(counts) == 1 and sum(counts) < 1.4 * USERS
    assert not division.validation
    with pytest.raises(ConfigError, match="less than 1 together"):
        AtRandom(0.5, 0.5)


def put(path: Path, rows: list[tuple[Any, ...]], names: tuple[str, ...] = ("user", "item")) -> str:
    csv.write_csv(pa.table(dict(zip(names, map(list, zip(*rows))))), path)
    return str(path)


@pytest.mark.parametrize("timed", [False, True])
def test_without_a_file_of_validation_some_training_events_are_it(
    tmp_path: Path, timed: bool
) -> None:
    draw = random.Random(3)
    events = [
        (10 + user, 100 + draw.randrange(40), at)
        for user in range(30)
        for at in range(1 if user < 5 else 20)
    ]
    tests = [(10 + user, 200 + user, 50) for user in range(30)]
    paths = [
        put(
            tmp_path / f"{name}.csv",
            rows if timed else [row[:2] for row in rows],
            ("user", "item", "time"),
        )
        for name, rows in (("train", events), ("test", tests))
    ]
    line = Interactions(path=paths[0], test=paths[1]).read()
    division = line.source.split(line)
    assert division.timeline is not None
    line, before = (
        division.timeline,
        {user: {row[1] for row in events if row[0] == 10 + user} for user in range(30)},
    )
    for user in range(30):
        train, validation = own(line, user, TRAIN), own(line, user, VALIDATION)
        assert (
            train
            and {int(line.item_ids[item].as_py()) for item in (*train, *validation)} == before[user]
        )
        assert own(line, user, TEST) == [line.item_ids.to_pylist().index(str(200 + user))]
        if timed:
            latest = [item for of, item, _ in events if of == 10 + user][-1:] if user >= 5 else []
            assert [int(line.item_ids[item].as_py()) for item in validation] == latest
    share = np.mean(division.part[division.part < TEST] == VALIDATION)
    assert 0.03 < share < 0.2 and "data.validation names no file" in division.notes[0]
    asked = [user for user in range(30) if own(line, user, VALIDATION)]
    assert (
        line.user_of(division.validation["users"]).tolist() == asked
        and len(division.test["users"]) == 30
    )
    line = Interactions(path=paths[0], test=paths[1], split=NamedFiles(validation_share=0)).read()
    assert not NamedFiles(validation_share=0)(line).validation


@pytest.mark.parametrize("timed", [False, True])
def test_files_of_validation_and_test(tmp_path: Path, timed: bool) -> None:
    rows = {
        "train": [(1, "a", 5), (1, "b", 3), (2, "c", 1), (1, "a", 5)],
        "validation": [(1, "d", 2), (2, "a", 9)],
        "test": [(1, "e", 1), (1, "f", 0), (3, "a", 1), (1, "b", 8)],
    }
    kept = {name: [row if timed else row[:2] for row in each] for name, each in rows.items()}
    paths = {
        name: put(tmp_path / f"{name}.csv", each, ("user", "item", "time"))
        for name, each in kept.items()
    }
    line = Interactions(path=paths.pop("train"), **paths).read()
    assert (
        isinstance(line.source.split, NamedFiles) and line.ordered is line.source.ordered is timed
    )
    division = line.source.split(line)
    names = line.item_ids.to_pylist()
    assert division.counts == {"users without an event to train on": 1}
    assert line.user_of(division.test["users"]).tolist() == [
        0
    ]  # the third has no history to ask with
    (begin, stop), last = (
        line.histories(division.test["users"]),
        line.answers(division.test["users"]),
    )
    right = [names[i] for i in line.item[division.test["users"][0] : last[0]]]
    if timed:
        assert [names[i] for i in line.item[begin[0] : stop[0]]] == ["b", "a", "d"] and right == [
            "f",
            "e",
            "b",
        ]
        begin, stop = line.histories(np.arange(2))
        assert (stop - begin).tolist() == [0, 1]
    else:
        assert [names[i] for i in line.item[begin[0] : stop[0]]] == ["a", "b", "d"] and right == [
            "e",
            "f",
        ]
        assert line.dropped == {"repeated interactions": 2}


@pytest.mark.parametrize("timed", [False, True])
def test_a_test_that_repeats_the_other_files_is_told(tmp_path: Path, timed: bool) -> None:
    rows = {
        "train": [(1, "a", 5), (1, "b", 3), (2, "a", 1)],
        "validation": [(1, "d", 2), (2, "c", 9)],
        "test": [(1, "d", 2), (2, "c", 9)],
    }
    kept = {name: [row if timed else row[:2] for row in each] for name, each in rows.items()}
    paths = {
        name: put(tmp_path / f"{name}.csv", each, ("user", "item", "time"))
        for name, each in kept.items()
    }
    line = Interactions(path=paths.pop("train"), **paths).read()
    with pytest.raises(
        DataError,
        match=r"data\.test has no interaction of its own: .* \(2 repeated interactions left out\)",
    ):
        line.source.split(line)


def test_what_a_split_needs_is_said(tmp_path: Path) -> None:
    path = put(tmp_path / "train.csv", [(1, "a"), (1, "b")])
    with pytest.raises(ConfigError, match=r"data\.split=files and data\.test=FILE go together"):
        Interactions(path=path, split=NamedFiles()).read()
    with pytest.raises(ConfigError, match=r"data\.split=files and data\.test=FILE go together"):
        Interactions(path=path, test=path, split=AtRandom()).read()
    with pytest.raises(
        ConfigError, match=r"data\.validation names a file, and data\.test does not"
    ):
        Interactions(path=path, validation=path).read()
    line = Interactions(path=path, ordered=False).read()
    for split in (LeaveLastOut(), GlobalTime()):
        with pytest.raises(ConfigError, match="order"):
            split(line)


def test_the_split_follows_from_the_data() -> None:
    def choice(**columns: Any) -> Any:
        ordered = columns.pop("ordered", None)
        read = Interactions.of(
            pa.table({"user": [1] * 4, "item": [1, 2, 3, 4], **columns}), ordered=ordered
        ).read()
        return read.source.split

    assert isinstance(choice(time=[1, 2, 3, 4]), GlobalTime) and isinstance(
        choice(position=[1, 2, 3, 4]), LeaveLastOut
    )
    assert isinstance(choice(), LeaveLastOut) and isinstance(
        choice(time=[1, 2, 3, 4], ordered=False), AtRandom
    )
    assert isinstance(Interactions().split, Fitting)


# The bag of all other items
# ------------------------------------------------------------------------------------------


def visits(line: Timeline, train: np.ndarray) -> Visits:
    return Visits(line, train, Contexts(line, BagOfOthers.last))


def mean_of_others(line: Timeline, event: int, vectors: torch.Tensor, power: float) -> torch.Tensor:
    """In a loop: a training event's other items, or, of a later part, all that is known by then."""
    assert line.part is not None
    user, part = int(line.user_of(np.array([event]))[0]), int(line.part[event])
    items = own(line, user, *range(max(part, 1)))
    if part == TRAIN:
        items.remove(int(line.item[event]))
    total = torch.zeros(vectors.shape[1], dtype=vectors.dtype)
    for item in items:
        total = total + vectors[item]
    return total / max(1, len(items)) ** power


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_the_bag_leaves_out_exactly_the_item_that_is_asked_for(power: float) -> None:
    """Though rows come twice: against a loop in float64, packed, in any order, and cut into any
    parts."""
    line, division = divided()
    vectors = torch.randn(ITEMS, 5, dtype=torch.float64)
    past = Past(History((BagOfOthers(power),)), lambda codes: vectors[codes], 5).double()
    frame_of = visits(line, division.train).frame
    for events in (torch.arange(len(line)), torch.randperm(len(line))[:90]):
        frame = frame_of(events)
        right = torch.stack([mean_of_others(line, k, vectors, power) for k in events.tolist()])
        for part in (slice(None), torch.randperm(len(events))[:40], slice(7, 8)):
            chosen = frame[part]
            bag = past(chosen.columns["history"], chosen.columns["own"])
            torch.testing.assert_close(bag, right[part], rtol=1e-12, atol=1e-12)


def test_a_row_does_not_depend_on_the_item_that_it_asks_for() -> None:
    line, division = divided()
    vectors = torch.randn(ITEMS, 5, dtype=torch.float64, requires_grad=True)
    past = Past(History((BagOfOthers(),)), lambda codes: vectors[codes], 5)
    events = torch.from_numpy(np.flatnonzero(division.train))
    frame = visits(line, division.train).frame(events)
    bag = past(frame.columns["history"], frame.columns["own"])
    for row, event in enumerate(events.tolist()[::9]):
        (gradient,) = torch.autograd.grad(bag[row * 9].sum(), vectors, retain_graph=True)
        assert gradient[int(line.item[event])].abs().max() < 1e-12 < 1 + gradient.abs().max()


def test_items_that_dropout_takes_from_a_user_are_taken_from_the_others_alone() -> None:
    """The expectation is the bag without dropout, and a row's own item is in it neither kept nor
    dropped."""
    line, division = divided(events=60)
    vectors = torch.eye(ITEMS, dtype=torch.float64)
    past = Past(History((BagOfOthers(0.0, 0.5),)), lambda codes: vectors[codes], ITEMS)
    events = torch.from_numpy(np.flatnonzero(division.train))
    frame = visits(line, division.train).frame(events)
    torch.manual_seed(0)
    drawn = torch.stack([past(frame.columns["history"], frame.columns["own"]) for _ in range(400)])
    whole = past.eval()(frame.columns["history"], frame.columns["own"])
    assert set(drawn.unique().tolist()) == {0.0, 2.0} and set(whole.unique().tolist()) == {0.0, 1.0}
    assert (drawn.mean(0) - whole).abs().max() < 0.3
    assert (
        drawn[:, torch.arange(len(events)), torch.from_numpy(line.item[events.numpy()]).long()]
        .abs()
        .max()
        == 0
    )


def test_a_batch_reads_each_user_once() -> None:
    line, division = divided()
    made = visits(line, division.train)
    segments = Segments.of(line, division.train, 64, 0, 16)
    history = made.batch(next(segments(0, 1))).query.rows.columns["history"]
    assert isinstance(history, Events)
    users = len(torch.unique(history.start))
    assert users < len(history) / 2 and len(history.items) == sum(
        len(own(line, user, TRAIN))
        for user in {int(u) for u in line.user_of(next(segments(0, 1)).numpy())}
    )


# Users with several items to find
# ------------------------------------------------------------------------------------


def test_metrics_of_users_with_several_items_are_those_of_loops() -> None:
    """An evaluator in loops, in float64, over whole numbers, so that ties are many."""
    line, division = divided()
    draw = np.random.default_rng(0)
    users, items = (draw.integers(-2, 3, (n, 3)).astype(np.float32) for n in (USERS, ITEMS))
    events = division.test["users"]
    asked = line.user_of(events)
    query, target = Histories(line.item, events, line.answers(events)).pairs()
    seen = Histories(line.item, *line.histories(events))
    names = [f"{kind}@{k}" for kind in KINDS for k in (1, 3, 10, 40)]
    scores = inner(users[asked], items)
    reached = Recommended.of(
        scores, target, seen, Popularity(np.ones(ITEMS, int)), names, query=query
    )
    for row, user in enumerate(asked.tolist()):
        right, gone = own(line, user, TEST), own(line, user, TRAIN, VALIDATION)
        values = items.astype(np.float64) @ users[user].astype(np.float64)
        ranked = sorted({*range(ITEMS)} - {*gone}, key=lambda item: (-values[item], item))
        assert reached.ranks.top[row].tolist() == [*ranked, *[-1] * 10][:10]
        for k in (1, 3, 10, 40):
            hits = [place for place, item in enumerate(ranked[:k], 1) if item in right]
            gain, best = (
                sum(1 / np.log2(p + 1) for p in ps)
                for ps in (hits, range(1, min(k, len(right)) + 1))
            )
            expected = {
                "hit": float(bool(hits)),
                "recall": len(hits) / len(right),
                "precision": len(hits) / k,
                "mrr": 1 / hits[0] if hits else 0.0,
                "map": sum(i / p for i, p in enumerate(hits, 1)) / len(right),
                "ndcg": gain / best,
            }
            for kind, value in expected.items():
                assert reached.per_query[f"{kind}@{k}"][row] == pytest.approx(value, abs=1e-12), (
                    kind,
                    k,
                )
    assert {len(own(line, user, TEST)) for user in asked.tolist()} > {1, 2, 3}


# Whole runs
# ----------------------------------------------------------------------------------------------------------

TOWER = {"kind": "features", "dimensions": 16}
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "bag": ({"ordered": False}, {}, ""),
    "bag with dropout": (
        {"split": "random"},
        {"history": {"pools": [{"bag": {"dropout": 0.3}}]}},
        "",
    ),
    "id by id": ({"split": "random"}, {"history": None, "query": ["id"], "query_layers": []}, ""),
    "nothing held out": ({"split": "none"}, {}, ""),
    "in order": ({"split": "random", "ordered": True}, {}, ""),
    "windows": (
        {"ordered": False},
        {"history": {"pools": [{"mean": {"last": 5}}]}},
        "the pool bag is for interactions without",
    ),
    "bag in order": (
        {},
        {"history": {"pools": ["bag"]}},
        "the pool bag is for interactions without",
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_runs(name: str, tmp_path: Path) -> None:
    data, tower, message = RUNS[name]
    train = {"max_steps": 12, "batch_size": 64, "learning_rate": 0.02, "evaluations": 1}
    options = {
        "data": {"source": "interactions", **data},
        "tower": {**TOWER, **tower},
        "train": train,
    }
    config = build(of(options))
    config = replace(config, data=config.data.hand(table(600)))
    told = pytest.raises(TemperaError, match=message) if message else nullcontext()
    with JsonLines(tmp_path / "log.jsonl") as log, told:
        run = prepare(config, Devices(), tmp_path, log)
        fit(run)
        verdict = judge(run)
        assert (verdict is None) == (name == "nothing held out")
        assert verdict is None or verdict.ranking.metrics["recall@10"] > 0
        resolved = json.loads(json.dumps(run.config.resolved))
        if name == "bag":  # what the data have decided is written down
            assert resolved["tower"]["history"]["pools"][0].keys() == {"bag"}
            assert resolved["data"]["split"].keys() == {"random"}


@pytest.mark.parametrize("kind", ["random", "random without times", "files", "withheld"])
def test_what_a_run_keeps_of_users_in_parts_is_as_it_happened(kind: str, tmp_path: Path) -> None:
    """The latest last, and its time, whatever part an event was drawn for."""
    draw = random.Random(4)
    events = [
        (f"u{user}", f"i{draw.randrange(ITEMS)}", at) for user in range(USERS) for at in range(12)
    ]
    named = {"time": [7 * at for _, _, at in events]}
    named = {"position": [at for _, _, at in events]} if kind == "random without times" else named
    rows = pa.table(
        {"user": [row[0] for row in events], "item": [row[1] for row in events], **named}
    )
    data: dict[str, Any] = {"source": "interactions", "split": "random", "repeated": "keep"}
    if kind == "files":
        tests = pa.array([draw.random() < 0.3 for _ in events])
        parts = {"path": rows.filter(pc.invert(tests)), "test": rows.filter(tests)}
        for name, part in parts.items():
            csv.write_csv(part, tmp_path / f"{name}.csv")
        data |= {"split": "files", **{name: str(tmp_path / f"{name}.csv") for name in parts}}
    evaluation = {"cold_items": 0.2 if kind == "withheld" else 0}
    tower = {**TOWER, "history": {"pools": [{"mean": {"last": 1}}]}}
    config = build(
        of({"data": data, "tower": tower, "train": {"batch_size": 64}, "evaluation": evaluation})
    )
    config = config if kind == "files" else replace(config, data=config.data.hand(rows))
    task = InteractionTask.read(config, tmp_path / "cache")
    tables = [each.showcase.searched().tables for each in (task, task.again(config, "validation"))]
    for kept in tables:
        names = kept[ITEMS_TABLE]["id"].to_pylist()
        taken = {
            row["id"]: [names[item] for item in row["items"]] for row in kept[HISTORIES].to_pylist()
        }
        assert taken == {
            f"u{user}": [row[1] for row in events if row[0] == f"u{user}"] for user in range(USERS)
        }
        assert "position" in named or {
            times[-1] for times in kept[HISTORIES]["times"].to_pylist()
        } == {7 * 11}


def test_strict_times_need_parts_that_follow_each_other() -> None:
    rows = {
        "user": [1] * 9,
        "item": [*range(9)],
        "time": [*range(9)],
        "part": np.array([0] * 5 + [2] * 4, np.uint8),
    }
    mixed = {**rows, "time": [0, 2, 4, 6, 8, 1, 3, 5, 7]}
    NamedFiles(validation_share=0)(timeline_of(pa.table(rows), strict_time=True))
    for split, line in (
        (NamedFiles(0), timeline_of(pa.table(mixed), strict_time=True)),
        (
            AtRandom(0.4, 0.2),
            replace(Timeline.of([1] * 9, [*range(9)], time=[*range(9)]), strict_time=True),
        ),
    ):
        with pytest.raises(
            ConfigError, match=r"data\.strict_time=true needs times that rise .* data\.split"
        ):
            split(line)


# Peers
# ---------------------------------------------------------------------------------------------------------------


def test_als_solves_for_the_minimum_of_its_loss() -> None:
    path = Path(__file__).parents[2] / "bench" / "_ials.py"
    spec = importlib.util.spec_from_file_location("_ials", path)
    assert spec is not None and spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    sys.modules["_ials"] = bench
    spec.loader.exec_module(bench)
    peer = bench.Ials(dimensions=3, unobserved=0.3, regularisation=0.1, epochs=1)
    user, item = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 0, 2, 3])
    w, h = torch.zeros(3, 3).double().requires_grad_(), torch.randn(5, 3).double()
    solved = np.zeros((3, 3))
    peer.solve(solved, h.numpy(), bench.grouped(user, item, 3))
    with torch.no_grad():
        w.copy_(torch.from_numpy(solved))
    scores, taken = w @ h.T, torch.from_numpy(np.bincount(user))
    loss = ((1 - scores[user, item]) ** 2).sum() + 0.3 * (scores**2).sum()
    loss = loss + 0.1 * ((taken + 0.3 * 5) * w.square().sum(1)).sum()
    loss.backward()
    assert w.grad is not None and w.grad.abs().max() < 1e-10
    vectors = peer.fit(user, item, 3, 5)
    assert [each.shape for each in vectors] == [(3, 3), (5, 3)]
