"""Behaviours and contexts of events against loops: what is asked and trained, what histories hold,
what towers read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tempera import train
from tempera.core.frame import Events
from tempera.errors import ConfigError, DataError
from tempera.options import yaml_options as configuration
from tempera.options.build import build
from tempera.recommend.read import timeline as timelines
from tempera.recommend.read.division import AtRandom, GlobalTime, LeaveLastOut
from tempera.recommend.read.interactions import Interactions
from tempera.recommend.read.timeline import Timeline
from tempera.recommend.train.disliked import known_dislikes
from tempera.recommend.train.encoders import Category
from tempera.recommend.train.exportable_users import UserModule
from tempera.recommend.train.history import History
from tempera.recommend.train.pooling import BagOfOthers, Mean
from tempera.recommend.train.segments import Contexts, Segments
from tempera.recommend.train.training_events import EventData
from tempera.recommend.train.visits import Visits

USERS, ITEMS, TARGETS = 12, 9, {"cart": 0.25, "buy": 2.0}
Row = tuple[int, int, int, str, str | None]


def generated(seed: int = 0) -> list[Row]:
    """User, item, time, event, device."""
    draw = random.Random(seed)
    return [
        (
            user,
            draw.randrange(ITEMS),
            10 * at + user,
            draw.choice(["view", "view", "cart", "buy", "skip"]),
            draw.choice(["phone", "desk", None]),
        )
        for user in range(USERS)
        for at in range(draw.randint(1, 18))
    ]


def table(rows: list[Row]) -> pa.Table:
    return pa.table(dict(zip(("user", "item", "time", "event", "device"), map(list, zip(*rows)))))


def read(rows: list[Row], **options: Any) -> Timeline:
    given = {
        "behaviour": "event",
        "targets": TARGETS,
        "dislikes": ("skip",),
        "context": ("device",),
        **options,
    }
    return Interactions.of(table(rows), **given).read()


def told(line: Timeline) -> list[tuple[Any, ...]]:
    """User, item, time, behaviour, device of every event."""
    assert line.context is not None and line.contexts is not None and line.time is not None
    users = np.repeat(line.user_ids.to_numpy(), line.lengths).tolist()
    happened = line.contexts.take(pa.array(line.context)).to_pydict()
    items = line.item_ids.to_numpy()[line.item].tolist()
    return list(zip(users, items, line.time.tolist(), happened["behaviour"], happened["device"]))


@pytest.mark.parametrize("at_once", [1 << 20, 4])
def test_events_that_come_in_blocks_are_the_same(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelines, "_ROWS", at_once)
    rows = generated()
    whole = read(rows)
    blocks = pa.concat_tables([table(rows[start : start + 7]) for start in range(0, len(rows), 7)])
    given = {
        "behaviour": "event",
        "targets": TARGETS,
        "dislikes": ("skip",),
        "context": ("device",),
    }
    for folder in (None, tmp_path):
        line = Interactions.of(blocks, **given).read(folder)
        assert told(line) == told(whole)
        for name in ("item", "time", "target", "weight"):
            assert np.array_equal(getattr(line, name), getattr(whole, name)), name


def test_events_keep_what_they_happened_in_and_what_they_are_for() -> None:
    rows = generated()
    line = read(rows)
    kept = [row for row in rows if row[3] != "skip"]
    assert told(line) == sorted(kept, key=lambda row: (row[0], row[2]))
    assert line.weight is not None and line.target is not None and line.contexts is not None
    assert line.weight.tolist() == [TARGETS.get(event, 0) for *_, event, _ in told(line)]
    assert line.target.tolist() == [
        {"view": 0, "cart": 1, "buy": 2}[event] for *_, event, _ in told(line)
    ]
    assert len(line.contexts) <= 12  # each once
    every = read(rows, targets=None, dislikes=None)
    assert every.target is None and len(every) == len(rows)  # all are targets


@pytest.mark.parametrize("seed", range(3))
def test_the_last_bought_item_is_asked_and_what_follows_is_no_training(seed: int) -> None:
    line = read(generated(seed))
    division = LeaveLastOut()(line)
    events, asked = told(line), {"validation": [], "test": []}  # type: ignore[var-annotated]
    for user in range(len(line.user_ids)):
        own = range(line.offsets[user], line.offsets[user + 1])
        bought = [k for k in own if events[k][3] == "buy"]
        if len(bought) < 2 or bought[-2] == own[0]:
            assert not division.part[own[0] : own[-1] + 1].any()
            continue
        asked["validation"].append(bought[-2])
        asked["test"].append(bought[-1])
        assert [int(division.part[k]) for k in own] == [
            (k >= bought[-2]) + (k >= bought[-1]) for k in own
        ]
    assert (
        division.validation["last"].tolist() == asked["validation"]
        and division.test["last"].tolist() == asked["test"]
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_split_by_time_asks_for_the_best_target_only(seed: int) -> None:
    line = read(generated(seed))
    division = GlobalTime(0.4, 0, least=2, rolling=2)(line)
    events, following, rolling = told(line), [], []
    for user in range(len(line.user_ids)):
        own = range(line.offsets[user], line.offsets[user + 1])
        before = sum(division.part[k] == 0 for k in own)
        later = [k for k in own if division.part[k] == 2 and events[k][3] == "buy" and k > own[0]]
        following += later[:1] if before >= 2 else []
        rolling += later[:2]
    assert (
        division.test["next"].tolist() == following and division.test["rolling"].tolist() == rolling
    )


def test_targets_are_trained_on_and_everything_stands_in_histories() -> None:
    line = read(generated(1))
    division = LeaveLastOut()(line)
    data = EventData.of(line, division)
    assert line.target is not None and line.context is not None
    chosen = division.train & (line.target > 0)
    segments = Segments.of(line, chosen, 8, seed=0, targets=3)
    drawn = torch.cat(list(segments(0, segments.batches_per_epoch)))
    assert sorted(drawn.tolist()) == np.flatnonzero(chosen).tolist()
    visits = Visits(line, chosen, Contexts(line, 50, 3))
    frame = visits.frame(drawn)
    history, contexts, own = (frame.columns[name] for name in ("history", "contexts", "context"))
    assert (
        isinstance(history, Events)
        and isinstance(contexts, Events)
        and isinstance(own, torch.Tensor)
    )
    assert own.tolist() == line.context[drawn.numpy()].tolist()
    for row, event in enumerate(drawn.tolist()):
        begin = line.offsets[line.user_of(np.array([event]))[0]]
        for column, values in ((history, line.item), (contexts, line.context)):
            assert (
                column.items[column.start[row] : column.stop[row]].tolist()
                == values[begin:event].tolist()
            )
    taken, every = data.taken(drawn.numpy()), data.histories(drawn.numpy())
    for row in range(len(drawn)):
        span = range(every.starts[row], every.stops[row])
        assert taken.items[taken.starts[row] : taken.stops[row]].tolist() == [
            line.item[k] for k in span if line.target[k]
        ]
    assert visits.counts.tolist() == np.bincount(line.item[chosen], minlength=ITEMS).tolist()
    known = known_dislikes(line, division.train)
    assert known is not None and line.aside is not None
    looked_at = [k for k in np.flatnonzero(division.train) if line.target[k] == 0]
    users = line.user_of(np.array(looked_at))
    also = {(int(u), int(line.item[k])) for k, u in zip(looked_at, users)}
    pairs = {(u, i) for u in range(len(line.user_ids)) for i in known[u : u + 1].values.tolist()}
    assert also & pairs  # what was only looked at may be disliked


def test_contexts_go_along_where_events_are_left_out_or_moved() -> None:
    line = read(generated(2), dislikes=None)
    left = np.random.default_rng(0).random(len(line)) < 0.7
    left[line.offsets[:-1]] = True
    assert told(line.kept(left)) == [event for event, stays in zip(told(line), left) if stays]
    unordered = read(generated(2), targets=None, ordered=False)
    moved = AtRandom(0.3, 0)(unordered).timeline
    assert moved is not None and sorted(map(str, told(moved))) == sorted(map(str, told(unordered)))


@pytest.mark.parametrize("pool", ["mean", "transformer", "gru"])
def test_an_event_in_a_history_is_its_item_and_what_it_happened_in(pool: str) -> None:
    line = read(generated(3))
    data = EventData.of(line, LeaveLastOut()(line))
    history = {"pools": [{pool: {"last": 5}}], "context": [{"category": {"column": "device"}}]}
    tower: Any = {
        "kind": "features",
        "dimensions": 8,
        "history": history,
        "query": [{"category": {"column": "device"}}],
    }
    towers = (
        build(configuration.of({"tower": tower}))
        .tower.build(data.users, data.items, data.contexts)
        .eval()
    )
    past, moment = towers.query.past, towers.query.moment
    assert past is not None and past.happened is not None and moment is not None
    names = [type(encoder).__name__ for encoder in past.happened.encoders]
    assert names == ["Lookup", "Lookup"]  # of the behaviour, which is there unasked, and the device
    frame = Visits(line, data.division.train, Contexts(line, 5, 1)).frame(
        torch.arange(3, len(line), 7)
    )
    history_of, contexts = frame.columns["history"], frame.columns["contexts"]
    own = towers.encode(frame, "query")
    if pool == "mean":
        with pytest.raises(
            ConfigError,
            match="a user tower with features of events cannot be exported: train one without features of data",
        ):
            UserModule(towers, (Mean(last=5),), ITEMS, USERS)
    assert isinstance(history_of, Events) and isinstance(contexts, Events)
    vectors = past.items(history_of.items) + past.happened(
        contexts.items
    )  # by the definition: added, event by event
    one_each = Events(torch.arange(len(history_of.items)), history_of.start, history_of.stop)
    past.items, past.happened = torch.nn.Embedding.from_pretrained(vectors), None
    frame.columns["history"] = one_each  # type: ignore[index]
    assert torch.allclose(towers.encode(frame, "query"), own, atol=1e-6)


def test_a_bag_reads_items_alone_and_a_context_needs_columns() -> None:
    with pytest.raises(ConfigError, match="the bag reads items alone"):
        History((BagOfOthers(),), context=(Category("device"),))
    with pytest.raises(
        ConfigError,
        match=r"tower.history.context reads columns of events: name them in data.context",
    ):
        History(context=(Category("device"),)).features(None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": {"bay": 1.0}}, "names 'bay', but the behaviours are .* Did you mean buy?"),
        ({"dislikes": ("skipp",)}, "data.dislikes names 'skipp', but the behaviours are .*"),
        (
            {"context": ("devise",)},
            "has no column 'devise' for data.context; it has .* Did you mean device?",
        ),
        (
            {"behaviour": "device", "metadata": ("event",), "context": ()},
            "row .*: column 'device' names no behaviour",
        ),
        (
            {"behaviour": None},
            "data.targets names behaviours: say which column holds them, data.behaviour=COLUMN",
        ),
        ({"behaviour": None, "targets": None}, "data.dislikes names behaviours: say which column"),
        ({"targets": {"skip": 1.0}}, "data.targets and data.dislikes both name 'skip'"),
    ],
)
def test_faults_of_behaviours_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message) as error:
        read(generated(), **options)
    assert "\n" not in str(error.value)
    numbered = table(generated()).append_column("id", pa.array(range(len(generated()))))
    with pytest.raises(DataError, match=r"data.context names the column 'id', .*: rename it"):
        Interactions.of(numbered, context=("id",), metadata=("*",)).read()
    nested = table(generated()).append_column("tags", pa.array([[1]] * len(generated())))
    with pytest.raises(
        DataError,
        match=r"column 'tags' holds list.*; expected one value in each row, for data.context",
    ):
        Interactions.of(nested, context=("tags",), metadata=("*",)).read()


def test_a_run_reads_the_context_and_is_asked_in_one(tmp_path: Path) -> None:
    """On the phone the next item is bought, at the desk the one after it; one more item is only
    looked at."""
    draw, rows = random.Random(0), []
    for user in range(60):
        item = draw.randrange(ITEMS)
        rows.append((user, ITEMS, -1, "view", None))
        for at in range(8):
            device = draw.choice(["phone", "desk"])
            item = (item + (1 if device == "phone" else 2)) % ITEMS
            rows.append((user, item, at, "buy", device))
    rows[-1] = (*rows[-1][:4], "tablet")  # which is held out
    options: dict[str, Any] = {
        "data": {
            "source": "interactions",
            **{
                "behaviour": "event",
                "targets": {"buy": 1},
                "context": ["device"],
                "split": "leave_last_out",
            },
        },
        "tower": {
            "dimensions": 16,
            "query": [{"category": {"column": "device"}}],
            "history": {"pools": [{"mean": {"last": 1}}]},
        },
        "train": {
            "max_steps": 60,
            "batch_size": 64,
            "learning_rate": 0.03,
            "evaluations": 0,
            "refit": "none",
        },
        "evaluation": {"baselines": False, "validation": 0, "metrics": ["hit@1"]},
    }
    run = train(options, tmp_path / "run", data=table(rows))
    assert run.metrics["trained"]["hit@1, seen included"] > 0.9
    last, bought = (
        rows[8],
        {item for user, item, _, event, _ in rows if user == 0 and event == "buy"},
    )
    shown = {int(hit.id) for hit in run.recommend(user=0, k=99).hits}
    assert shown == set(range(ITEMS + 1)) - bought  # what was only looked at may still be bought
    answers = {
        device: run.recommend(user=last[0], exclude_seen=False, context={"device": device}, k=3)
        for device in ("phone", "desk")
    }
    firsts = {device: int(answer.hits[0].id) for device, answer in answers.items()}
    assert firsts["phone"] == (last[1] + 1) % ITEMS and firsts["desk"] == (last[1] + 2) % ITEMS
    assert (
        not answers["phone"].notes
        and "reads what a user asks in" in run.recommend(user=last[0]).notes[0]
    )
    assert not run.recommend(
        user=last[0], context={"device": None}
    ).notes  # as where items were looked at
    (note,) = run.recommend(user=last[0], context={"device": "tablet"}).notes
    assert note == "training has seen no device=tablet, which stands for an unknown one"
    with pytest.raises(
        DataError, match="has no context 'devic': its contexts have device, behaviour"
    ):
        run.recommend(user=last[0], context={"devic": "phone"})
