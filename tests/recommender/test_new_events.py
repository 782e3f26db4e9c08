"""Events added to a run without training: what the run knows then is what it would have known from
the start, by plain loops over all rows."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.run_folder import Run
from tempera.errors import DataError, OutputError
from tempera.io import atomic
from tempera.io.atomic import staged
from tempera.io.manifest import first_fault
from tempera.recommend.judge.baselines import BASELINES, Observed
from tempera.recommend.judge.counts import COUNTS
from tempera.recommender.new_events import NOT_LEARNED, add_events
from tempera.recommender.recommender import Recommender
from tempera.run.train import train

ITEMS, USERS, EACH = 20, 30, 14
DEVICES = ("phone", "desk")
Row = dict[str, Any]


def interactions() -> list[Row]:
    """Users go round in circles of items; some times are equal, and all users go on to the end."""
    draw, rows = np.random.default_rng(9), list[Row]()
    for user in range(USERS):
        now = int(draw.integers(1000, 3000))
        start, step = int(draw.integers(ITEMS)), int(draw.choice([1, 3, 7]))
        for place in range(EACH):
            now += int(draw.choice([0, 40, 900, 20_000]))
            rows.append(
                {
                    "user": f"u{user:02}",
                    "item": f"i{(start + step * place) % ITEMS:02}",
                    "time": now,
                    "rating": int(draw.choice([1, 4, 5])),
                    "device": DEVICES[int(draw.integers(2))],
                    "action": str(draw.choice(["buy", "buy", "view"])),
                }
            )
    return rows


ROWS = interactions()
# Trained on: the first events of most users, without an event of some. Added: the other events,
# some of which come late, and users who are new.
OLD = [
    row
    for n, row in enumerate(ROWS)
    if n % EACH < 9
    and row["user"] < "u26"
    and row["user"] != "u10"
    and not (n % EACH == 4 and row["user"] < "u08")
]
NEW = [row for row in ROWS if row not in OLD]
DEVICE = {"category": {"column": "device"}}
AGES = {"history": {"pools": [{"ages": {"last": 4}}]}}
KINDS: dict[str, dict[str, Any]] = {
    "ratings": {
        "data": {"min_rating": 4},
        "tower": {**AGES, "query": ["elapsed", {"id": {"buckets": 4}}]},
        "columns": ("user", "item", "time", "rating"),
    },
    "dislikes": {
        "data": {"min_rating": 4, "dislikes": 1},
        "tower": AGES,
        "columns": ("user", "item", "time", "rating"),
    },
    "forgotten": {
        "data": {"min_rating": 4, "below_min_rating": "forget"},
        "tower": AGES,
        "columns": ("user", "item", "time", "rating"),
    },
    "context": {
        "data": {"context": ["device"]},
        "tower": {
            "history": {"pools": [{"mean": {"last": 4}}], "context": [DEVICE]},
            "query": ["elapsed", DEVICE],
        },
        "columns": ("user", "item", "time", "device"),
    },
    "behaviours": {
        "data": {"behaviour": "action", "targets": {"buy": 1}},
        "tower": AGES,
        "columns": ("user", "item", "time", "action"),
    },
    "dates": {"data": {}, "tower": {**AGES, "query": ["elapsed"]}, "columns": ("user", "item", "time")},
    "order": {"data": {}, "tower": AGES, "columns": ("user", "item")},
    "sets": {
        "data": {"ordered": False, "split": "random"},
        "tower": {"history": {"pools": [{"bag": {}}]}, "query_layers": []},
        "columns": ("user", "item"),
    },
}  # fmt: skip


def table(rows: list[Row], kind: str) -> pa.Table:
    written = pa.Table.from_pylist(rows).select(list(KINDS[kind]["columns"]))
    if kind == "dates":
        days = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=row["time"]) for row in rows]
        written = written.set_column(2, "time", pa.array(days, pa.timestamp("us", "UTC")))
    return written


Runs = Callable[[str], Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The run of each kind on the old events, trained when first asked for; do not touch."""
    base, made = tmp_path_factory.mktemp("runs"), dict[str, Path]()

    def run(name: str) -> Path:
        if name not in made:
            folder = base / name
            folder.mkdir()
            path = folder / "events.parquet"
            parquet.write_table(table(OLD, name), path)
            tower = {"kind": "features", "dimensions": 8, "query_layers": [12]}
            options = {
                "data": {"source": "interactions", "path": str(path), **KINDS[name]["data"]},
                "tower": {**tower, **KINDS[name]["tower"]},
                "objective": {"temperature": 0.1},
                "train": {"batch_size": 32, "max_steps": 30, "evaluations": 0, "refit": "all"},
                "evaluation": {"metrics": ["ndcg@10"], "baselines": True},
            }
            made[name] = train(options, folder / "run").folder
        return made[name]

    return run


@pytest.fixture
def copied(runs: Runs, tmp_path: Path) -> Runs:
    def copy(kind: str) -> Path:
        return Path(shutil.copytree(runs(kind), tmp_path / kind))

    return copy


def is_low(row: Row, kind: str) -> bool:
    return "rating" in KINDS[kind]["columns"] and row["rating"] < 4


def histories_at_once(kind: str, rows: list[Row]) -> dict[str, Row]:
    """What each user has met, from all rows, in plain loops."""
    timed = "time" in KINDS[kind]["columns"]
    histories: dict[str, Row] = {}
    seen = set()
    for _, row in sorted(
        enumerate(rows), key=lambda pair: (pair[1]["time"] if timed else 0, pair[0])
    ):
        own = histories.setdefault(
            row["user"], {"items": [], "times": [], "targets": [], "devices": [], "aside": []}
        )
        key = (row["user"], row["item"], row["time"] if timed else None)
        if is_low(row, kind):
            if kind != "forgotten":
                own["aside"].append(row["item"])
            continue
        if timed or kind == "sets":
            if (key, row["device"], row["action"]) in seen or (kind == "sets" and key in seen):
                continue
            seen |= {(key, row["device"], row["action"]), key}
        own["items"].append(row["item"])
        own["times"].append(row["time"])
        own["targets"].append(2 if row["action"] == "buy" else 0)
        own["devices"].append(row["device"])
    return {user: own for user, own in histories.items() if own["items"]}


def stored(run: Path) -> dict[str, Row]:
    """What a run holds of each user."""
    items = parquet.read_table(run / "model" / "items.parquet")["id"].to_pylist()
    contexts = None
    if (run / "model" / "contexts.parquet").is_file():
        contexts = parquet.read_table(run / "model" / "contexts.parquet").to_pylist()
    rows = {}
    for row in parquet.read_table(run / "histories.parquet").to_pylist():
        own = {"items": [items[code] for code in row["items"]]}
        own["aside"] = [items[code] for code in row.get("aside") or []]
        for name in ("times", "targets"):
            if name in row:
                own[name] = row[name]
        if contexts is not None and "device" in contexts[0]:
            own["devices"] = [contexts[code]["device"] for code in row["contexts"]]
        rows[row["id"]] = own
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_knows_what_it_would_have_known_from_the_start(copied: Runs, kind: str) -> None:
    run = copied(kind)
    facts = add_events(run, table(NEW, kind))
    expected = histories_at_once(kind, OLD + NEW)
    found = stored(run)
    assert sorted(found) == sorted(expected)
    new_users = {row["user"] for row in NEW} - {row["user"] for row in OLD}
    assert facts["new_users"] == len(new_users) == 5
    for user, own in found.items():
        if kind == "sets":
            assert sorted(own["items"]) == sorted(expected[user]["items"])
            continue
        assert own["items"] == expected[user]["items"], user
        assert sorted(own["aside"]) == sorted(expected[user]["aside"])
        if "times" in own and kind != "dates":
            assert own["times"] == expected[user]["times"]
        if "targets" in own:
            assert own["targets"] == expected[user]["targets"]
        if "devices" in own:
            assert own["devices"] == expected[user]["devices"]
    assert ("times" in found["u01"]) == ("time" in KINDS[kind]["columns"])
    assert ("targets" in found["u01"]) == (kind == "behaviours")
    assert ("devices" in found["u01"]) == (kind == "context")
    assert first_fault(run) is None
    # The items are counted over all events, and so is the table of counts, number by number.
    opened = Recommender(run)
    items = opened.item_ids.to_pylist()
    counts = Counter(item for own in expected.values() for item in own["items"])
    assert opened.popularity.tolist() == [counts[item] for item in items]
    assert facts["recounted"] and opened.counts is not None
    settings = Run(run).results["baselines"][opened.counts.system]
    baseline = type(BASELINES[opened.counts.system])(**settings)
    values = [items.index(item) for user in sorted(expected) for item in expected[user]["items"]]
    lengths = [len(expected[user]["items"]) for user in sorted(expected)]
    observed = Observed(
        np.array(values),
        np.concatenate([[0], np.cumsum(lengths)]),
        ITEMS,
        np.ones(len(values), bool),
    )
    weights = baseline.fit(observed).weights.toarray()
    assert np.array_equal(opened.counts.fitted.weights.toarray(), weights)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_that_of_the_same_run_with_all_histories_at_once(
    copied: Runs, runs: Runs, kind: str, tmp_path: Path
) -> None:
    """Events added in two steps, the later file first read, are answered as those of one step."""
    run, once = copied(kind), tmp_path / "once"
    shutil.copytree(runs(kind), once)
    middle = len(NEW) // 2
    add_events(run, table(NEW[:middle], kind))
    add_events(run, table(NEW[middle:], kind))
    add_events(once, table(NEW, kind))
    first, second = Run(run), Run(once)
    for user in ("u00", "u07", "u10", "u25", "u29", "nobody"):
        for hybrid in (True, False):
            for seen in (True, False):
                here, there = (
                    each.recommend(user, k=ITEMS, hybrid=hybrid, exclude_seen=seen)
                    for each in (first, second)
                )
                assert here == there and here.hits
    # The weights and the vectors are the old run's own files.
    for name in ("model/model.safetensors", "index/vectors.npy", "metrics.json"):
        assert (run / name).read_bytes() == (runs(kind) / name).read_bytes()


@pytest.mark.parametrize("kind", ["ratings", "context", "behaviours", "dislikes"])
def test_answers_are_those_of_an_evaluation_on_the_events(
    copied: Runs, runs: Runs, kind: str
) -> None:
    run = copied(kind)
    finding = Run(runs(kind)).evaluate(table(NEW, kind))
    line, events = finding.events.timeline, finding.events.test["rolling"]
    evaluated = finding.reached["trained"]["rolling"].ranks.top
    items = line.item_ids.to_pylist()
    add_events(run, table(NEW, kind))
    opened = Run(run)
    compared = 0
    for place in range(0, len(events), 5):
        event = int(events[place])
        (user,) = line.user_ids.take(pa.array(line.user_of(np.array([event])))).to_pylist()
        moment = int(line.time[event])
        same = [row for row in ROWS if (row["user"], row["time"]) == (user, moment)]
        latest = max((row["time"] for row in OLD if row["user"] == user), default=0)
        stale = [row for row in NEW if row["user"] == user and row["time"] <= latest]
        # An evaluation knows of earlier events of one time, and leaves out those of a time that the
        # run knows.
        if len(same) > 1 or stale:
            continue
        context = {"device": same[0]["device"]} if kind == "context" else None
        answer = opened.recommend(user, before=moment, context=context, k=ITEMS, hybrid=False)
        served = {hit.id: hit.score for hit in answer.hits}
        expected = [items[code] for code in evaluated[place].tolist() if code >= 0][:10]
        for here, there in zip(expected, list(served), strict=False):
            assert abs(served[here] - served[there]) < 1e-5, (user, moment)
        compared += 1
    assert compared > 5


def test_what_is_left_out_is_counted(copied: Runs, tmp_path: Path, tempera: Any) -> None:
    run = copied("ratings")
    latest = max(row["time"] for row in ROWS) + 5
    late = {"user": "u03", "item": "i04", "time": latest, "rating": 5}
    rows = [
        late,
        late,  # twice in the file
        {**late, "item": "i99"},  # no item of the run
        {**late, "user": "new", "rating": 1},  # takes nothing
        next(row for row in OLD if row["rating"] == 5),
        next(row for row in OLD if row["rating"] == 1),
        {**late, "user": "u04", "rating": 1},
    ]
    csv.write_csv(table(rows, "ratings"), tmp_path / "more.csv")
    answer = tempera("add-events", run, tmp_path / "more.csv", "--json")
    facts = answer.document
    assert facts["events"] == 2 and facts["users"] == 2 and facts["new_users"] == 0
    assert facts["seen_only"] == 1 and facts["latest"] == str(latest)
    assert list(facts["left_out"].values()) == [1, 1, 2, 1], facts["left_out"]
    assert NOT_LEARNED in facts["notes"]
    assert f"now is {latest}" in " ".join(Run(run).recommend("u03").notes)
    assert "i04" not in {hit.id for hit in Run(run).recommend("u04", k=ITEMS).hits}
    printed = tempera("add-events", run, tmp_path / "more.csv")
    assert printed.code == 2 and "no event is new" in printed.err and printed.err.count("\n") == 1
    csv.write_csv(table([{**late, "time": latest + 1}], "ratings"), tmp_path / "again.csv")
    printed = tempera("add-events", run, tmp_path / "again.csv")
    assert printed.out.startswith("1 event added, of 1 user (0 new)")
    assert "not learned: the weights" in printed.out


def test_what_cannot_be_added_is_one_line(
    copied: Runs, tmp_path: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_PATIENCE", 0.2)  # with another process that adds
    run = copied("ratings")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    late = {"user": "u03", "item": "i04", "time": 1 << 20, "rating": 5}
    for rows, says in (
        ([{**late, "time": 1 << 50}], "another unit"),
        (
            [{**late, "time": datetime(2026, 1, 1, tzinfo=UTC)}],
            "times are dates, and in .* they are",
        ),
        ([{**late, "item": "i99"}], "no event is new to .*, of 1: 1 event with an item"),
        ([{"user": "u03", "item": "i04"}], "has no column 'time'"),
    ):
        with pytest.raises(DataError, match=says):
            add_events(run, pa.Table.from_pylist(rows))
    with pytest.raises(DataError, match="no such file"):
        add_events(run, tmp_path / "none.csv")
    with pytest.raises(DataError, match="is a run on texts"):
        add_events(tiny_run, table(NEW, "ratings"))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    with staged(run, overwrite=True), pytest.raises(OutputError, match="another process"):
        add_events(run, table(NEW, "ratings"))


def test_ids_and_times_have_the_types_of_the_run(tmp_path: Path) -> None:
    numbers = [
        {**row, "user": int(row["user"][1:]), "item": int(row["item"][1:])} for row in ROWS[:200]
    ]
    old, new = numbers[:120], numbers[120:]
    path = tmp_path / "events.parquet"
    parquet.write_table(pa.Table.from_pylist(old).select(["user", "item", "time"]), path)
    options = {
        "data": {"source": "interactions", "path": str(path)},
        "tower": {"kind": "features", "dimensions": 4, "query": ["id"]},
        "train": {"batch_size": 16, "max_steps": 5, "evaluations": 0},
        "evaluation": {"metrics": ["ndcg@10"]},
    }
    run = train(options, tmp_path / "run").folder
    (tmp_path / "more.csv").write_text(
        "user,item,time\n"
        + "".join(f"{row['user']:04},{row['item']:03},{row['time']}.5\n" for row in new)
    )
    facts = add_events(run, tmp_path / "more.csv")
    assert facts["recounted"] is None and facts["new_users"] > 0
    read = parquet.read_table(run / "histories.parquet")
    assert pa.types.is_integer(read["id"].type)
    assert (
        read["id"].to_pylist() == parquet.read_table(run / "model/users.parquet")["id"].to_pylist()
    )
    with pytest.raises(DataError, match=r"the ids of the users of .* are int64"):
        add_events(run, pa.table({"user": ["bob"], "item": ["3"], "time": [9000]}))


def test_sessions_go_on_with_numbers_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    lists = [[f"i{(start + step) % 9}" for step in range(4)] for start in range(40)]
    path.write_text("".join(f'{{"items": {items}}}\n'.replace("'", '"') for items in lists))
    options = {
        "data": {"source": "interactions", "path": str(path)},
        "tower": {"kind": "features", "dimensions": 4, **AGES},
        "train": {"batch_size": 16, "max_steps": 5, "evaluations": 0},
        "evaluation": {"metrics": ["ndcg@10"]},
    }
    run = train(options, tmp_path / "run").folder
    before = stored(run)
    (tmp_path / "more.jsonl").write_text('{"items": ["i1", "i5"]}\n{"items": ["i7"]}\n')
    facts = add_events(run, tmp_path / "more.jsonl")
    assert facts["events"] == 3 and facts["new_users"] == 2
    after = stored(run)
    assert [own["items"] for own in after.values()] == [
        *(own["items"] for own in before.values()), ["i1", "i5"], ["i7"],
    ]  # fmt: skip


def test_new_items_and_events_take_turns(tmp_path: Path) -> None:
    """Items that come after events keep the counts of the events, and take part in later ones."""
    path, items = tmp_path / "events.parquet", tmp_path / "items.parquet"
    parquet.write_table(table(OLD, "order"), path)
    kinds = ["even", "odd"]
    names = [f"i{item:02}" for item in range(ITEMS + 2)]
    every = pa.table({"item": names, "kind": [kinds[item % 2] for item in range(ITEMS + 2)]})
    parquet.write_table(every.slice(0, ITEMS), items)
    options = {
        "data": {"source": "interactions", "path": str(path), "items": str(items)},
        "tower": {"kind": "features", "dimensions": 4, "doc": [{"category": {"column": "kind"}}], **AGES},
        "train": {"batch_size": 16, "max_steps": 5, "evaluations": 0, "refit": "all"},
        "evaluation": {"metrics": ["ndcg@10"], "baselines": True},
    }  # fmt: skip
    run = train(options, tmp_path / "run").folder
    add_events(run, table(NEW, "order"))
    counted = Recommender(run).popularity.tolist()
    parquet.write_table(every, items)
    opened = Run(run).add_items(items).recommender
    assert opened.popularity.tolist() == [*counted, 0, 0]
    later = (
        Run(run).add_events(pa.table({"user": ["u00", "x"], "item": ["i20", "i21"]})).recommender
    )
    assert later.popularity.tolist() == [*counted, 1, 1]
    assert later.counts is not None and len(later.counts.table()) == ITEMS + 2
    assert "i20" not in {hit.id for hit in Run(run).recommend("u00", k=30, hybrid=True).hits}


def test_counts_of_a_run_that_held_events_out_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    parquet.write_table(table(OLD, "ratings"), path)
    options = {
        "data": {"source": "interactions", "path": str(path), "min_rating": 4},
        "tower": {"kind": "features", "dimensions": 4, **AGES},
        "train": {"batch_size": 16, "max_steps": 5, "evaluations": 0, "refit": "none"},
        "evaluation": {"metrics": ["ndcg@10"], "baselines": True},
    }
    run = train(options, tmp_path / "run").folder
    before = parquet.read_table(run / COUNTS)
    facts = add_events(run, table(NEW, "ratings"))
    assert facts["recounted"] is False
    assert "counts.parquet is kept as it was" in facts["notes"][0]
    assert parquet.read_table(run / COUNTS).equals(before)
    assert Run(run).recommend("u28", hybrid=True).hits


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.long)])
def test_a_reader_sees_the_old_or_the_new(copied: Runs, kills: int) -> None:
    """The process that adds is killed at any time."""
    run = copied("ratings")
    draw = np.random.default_rng(4)
    start = time.perf_counter()
    add_events(run, table(NEW[:1], "ratings"))
    length = time.perf_counter() - start
    for number in range(kills):
        known = len(Recommender(run).users.table)
        more = {"user": f"n{number}", "item": "i03", "time": 90_000_000 + number, "rating": 5}
        child = os.fork()
        if child == 0:
            try:
                add_events(run, table([more], "ratings"))
            finally:
                os._exit(0)
        time.sleep(float(draw.uniform(0, 1.5 * length)))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        try:
            opened = Run(run)
        except DataError:  # killed between two renamings, which the next writer completes
            add_events(run, table([more], "ratings"))
            opened = Run(run)
        assert len(opened.recommender.users.table) - known in (0, 1)
        assert opened.recommend("u03", k=3).hits
        assert first_fault(run) is None
