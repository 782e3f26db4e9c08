"""A run with behaviours, dislikes and contexts: many users are answered as each is, and other
events are judged as its own."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.run_folder import Run
from tempera.errors import ConfigError, DataError
from tempera.recommend.judge import full_catalogue
from tempera.recommend.read.interactions import Interactions
from tempera.run.train import train

# A copy whose files may be changed, as of an earlier version: without their checksums.
UNCOMPARED = shutil.ignore_patterns("tempera-manifest.json")

USERS, ITEMS, CUT = 24, 15, 150
READ: dict[str, Any] = {
    **{
        "behaviour": "event",
        "targets": {"cart": 0.5, "buy": 1.0},
        "dislikes": ["skip"],
        "context": ["device", "price"],
    },
}


def interactions() -> pa.Table:
    draw, events = np.random.default_rng(5), ["view", "view", "cart", "buy", "buy", "skip"]
    columns: dict[str, list[Any]] = {
        name: [] for name in ("user", "item", "time", "event", "device", "price")
    }
    for user in range(USERS):
        for when in np.sort(draw.choice(200, 14, replace=False)).tolist():
            device = ["phone", "desk", None][draw.integers(3)]
            row = (
                f"u{user:02}",
                f"i{draw.integers(ITEMS):02}",
                when,
                events[draw.integers(6)],
                device,
                int(draw.integers(50)),
            )
            for values, value in zip(columns.values(), row):
                values.append(value)
    return pa.table(columns)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    events = interactions()
    share = float(
        (events.filter(pc.not_equal(events["event"], "skip"))["time"].to_numpy() >= CUT).mean()
    )
    protocols = {"test_share": share, "validation_share": 0, "least": 2, "rolling": 3}
    device, price = {"category": {"column": "device"}}, {"number": {"column": "price"}}
    options = {
        "data": {"source": "interactions", "split": {"global_time": protocols}, **READ},
        "tower": {
            "kind": "features",
            "dimensions": 8,
            "query": ["elapsed", device],
            "history": {"pools": [{"mean": {"last": 3}}], "context": [price]},
        },
        "train": {"batch_size": 20, "max_steps": 20, "evaluations": 0, "refit": "none"},
        "evaluation": {"metrics": ["hit@3", "ndcg@3"], "baselines": True},
    }
    return train(options, tmp_path_factory.mktemp("runs") / "run", data=events)


def damaged(run: Run, folder: Path, **columns: Any) -> Run:
    """The same run with other columns in its histories."""
    shutil.copytree(run.folder, folder, ignore=UNCOMPARED)
    table = parquet.read_table(folder / "histories.parquet")
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    parquet.write_table(table, folder / "histories.parquet")
    return Run(folder)


def test_a_context_that_the_towers_cannot_read_is_no_fault_of_the_run(tmp_path: Path) -> None:
    """A CSV has numbers as texts, and any text can be given for them."""
    events = interactions().select(["user", "item", "time", "price"])
    events = events.set_column(3, "price", events["price"].cast(pa.string()))
    options = {
        "data": {"source": "interactions", "context": ["price"]},
        "tower": {"kind": "features", "dimensions": 4, "query": [{"number": {"column": "price"}}]},
        "train": {"batch_size": 20, "max_steps": 1, "evaluations": 0, "refit": "none"},
        "evaluation": {"metrics": ["hit@3"], "baselines": False},
    }
    run = train(options, tmp_path / "run", data=events)
    assert run.recommend("u01", context={"price": "12"}).hits
    for given, read in (("abc", "'abc'"), ("", "''"), ("inf", "infinite")):
        says = f"^the context of a query does not fit the run: .* cannot read the column 'price', which is {read}: expected"
        with pytest.raises(DataError, match=says):
            run.recommend("u01", context={"price": given})


@pytest.mark.parametrize(("hybrid", "exclude_seen"), [(True, True), (False, True), (False, False)])
def test_many_users_are_answered_as_each_of_them(
    whole: Run, hybrid: bool, exclude_seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_catalogue, "_ROWS", (4, 7))  # users at once
    users = [*(f"u{user:02}" for user in range(USERS)), "nobody"]
    options: dict[str, Any] = {
        "hybrid": hybrid,
        "exclude_seen": exclude_seen,
        "k": ITEMS,
        "context": {"device": "desk"},
    }
    whole.recommend_all(tmp_path / "all.parquet", users, **options)
    rows = parquet.read_table(tmp_path / "all.parquet").to_pylist()
    expected = [(user, hit) for user in users for hit in whole.recommend(user, **options).hits]
    assert [(row["user"], row["rank"], row["item"]) for row in rows] == [
        (u, hit.rank, hit.id) for u, hit in expected
    ]
    np.testing.assert_allclose(
        [row["score"] for row in rows], [hit.score for _, hit in expected], atol=1e-5
    )
    for user in users if exclude_seen else ():  # by the definition
        own = interactions().filter(pc.equal(interactions()["user"], user)).to_pylist()
        left_out = {row["item"] for row in own if row["event"] != "view"}
        assert {row["item"] for row in rows if row["user"] == user} == {
            f"i{i:02}" for i in range(ITEMS)
        } - left_out


def test_the_context_of_the_query_and_those_of_histories_count(whole: Run, tmp_path: Path) -> None:
    recommender = whole.recommender
    of_users = recommender.vectors_of(
        range(USERS),
        recommender.stored.rows(recommender.users.table["id"][:-1]),
        recommender.moment(),
    )
    each = [
        recommender.vectors_of([user], recommender.past(user), recommender.moment())[0]
        for user in range(USERS)
    ]
    np.testing.assert_allclose(of_users, each, atol=1e-6)
    moment, past = recommender.moment(), recommender.past(0)
    blind = recommender.vectors_of([0], replace(past, contexts=None), moment)
    asked = recommender.within({"device": "desk"}).vectors_of([0], past, moment)
    assert np.abs(blind - each[0]).max() > 1e-3 and np.abs(asked - each[0]).max() > 1e-3
    whole.export("parquet", tmp_path / "out")
    table = parquet.read_table(tmp_path / "out" / "users.parquet")
    np.testing.assert_allclose(np.array(table["vector"].to_pylist()), of_users, atol=1e-6)
    with pytest.raises(
        ConfigError, match="a user tower with features of events cannot be exported"
    ):
        whole.export("onnx", tmp_path / "onnx")


def test_a_note_says_that_no_context_is_named(whole: Run, tmp_path: Path, tempera: Any) -> None:
    answer = tempera("recommend", whole.folder, "--all", "-o", tmp_path / "a.parquet")
    assert (
        answer.code == 0
        and "\nnote: the model reads what a user asks in, and it is not given" in answer.out
    )
    inside = tempera(
        "recommend",
        whole.folder,
        "--all",
        "-o",
        tmp_path / "b.parquet",
        "--context",
        "device=phone",
    )
    assert inside.code == 0 and "reads what a user asks in" not in inside.out
    assert (
        "\nnote: the model reads the time since the last event (elapsed); now is 199" in inside.out
    )
    unseen = tempera("recommend", whole.folder, "--user", "u01", "--context", "device=Phone")
    assert (
        "note: training has seen no device=Phone, which stands for an unknown one\n" in unseen.out
    )
    refused = tempera(
        "recommend", whole.folder, "--all", "-o", tmp_path / "c.parquet", "--context", "price=high"
    )
    assert (
        refused.code == 2
        and "context price: expected int64" in refused.err
        and refused.err.count("\n") == 1
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("contexts", 10_000, "names contexts"),
        ("targets", 3, "names targets"),
        ("aside", ITEMS, "names aside"),
    ],
)
def test_damaged_histories_are_one_line(
    whole: Run, name: str, value: int, says: str, tmp_path: Path
) -> None:
    lists = parquet.read_table(whole.folder / "histories.parquet")[name].to_pylist()
    wrong = pa.array([[value] * len(each) for each in lists], pa.large_list(pa.int32()))
    run = damaged(whole, tmp_path / "run", **{name: wrong})
    with pytest.raises(DataError, match=f"{says} that the run does not have: it is damaged"):
        run.recommend("u01")
    with pytest.raises(DataError, match=f"{says} that the run does not have: it is damaged"):
        run.recommend_all(tmp_path / "all.parquet")


def test_lists_of_other_lengths_are_damage(whole: Run, tmp_path: Path) -> None:
    lists = parquet.read_table(whole.folder / "histories.parquet")["targets"].to_pylist()
    short = damaged(
        whole,
        tmp_path / "run",
        targets=pa.array([each[1:] for each in lists], pa.large_list(pa.uint8())),
    )
    for ask in (
        lambda: short.recommend("u01"),
        lambda: short.recommend_all(tmp_path / "all.parquet"),
    ):
        with pytest.raises(DataError, match="has other targets than items: it is damaged"):
            ask()


@pytest.fixture
def earlier(whole: Run, tmp_path: Path) -> Run:
    """The same run, whose stored histories end before the test."""
    shutil.copytree(whole.folder, tmp_path / "earlier", ignore=UNCOMPARED)
    line = Interactions.of(interactions(), **{**READ, "dislikes": ("skip",)}).read()
    assert line.time is not None
    line = line.kept(line.time < CUT)
    aside = line.aside
    assert line.time is not None and line.target is not None and line.context is not None
    assert aside is not None and aside.time is not None
    users = np.repeat(np.arange(len(line.user_ids)), np.diff(aside.offsets))
    before = aside.time < CUT
    offsets = np.concatenate(
        [[0], np.bincount(users[before], minlength=len(line.user_ids)).cumsum()]
    )
    lists = {
        "items": (line.offsets, line.item),
        "targets": (line.offsets, line.target),
        "contexts": (line.offsets, line.context),
        "times": (line.offsets, line.time),
        "aside": (offsets, aside.item[before]),
        "aside_times": (offsets, aside.time[before]),
    }
    columns = {name: pa.LargeListArray.from_arrays(*values) for name, values in lists.items()}
    table = pa.table({"id": line.user_ids, **columns})
    parquet.write_table(table, tmp_path / "earlier" / "histories.parquet")
    return Run(tmp_path / "earlier")


def test_later_events_are_judged_as_the_run_judged_them(whole: Run, earlier: Run) -> None:
    later = interactions().filter(pc.greater_equal(interactions()["time"], CUT))
    finding, expected = earlier.evaluate(later), whole.results["protocols"]
    assert {name: len(events) for name, events in finding.events.test.items()} == {
        name: each["queries"] for name, each in expected["trained"].items()
    }
    for system, protocols in finding.json()["protocols"].items():
        for name, own in protocols.items():
            rows, theirs = (
                [
                    (
                        row["seen"],
                        row["which"],
                        row["queries"],
                        [each["mean"] for each in row["metrics"].values()],
                    )
                    for row in of
                ]
                for of in (own["rows"], expected[system][name]["rows"])
            )
            assert rows == theirs, (system, name)
    assert finding.metrics["trained"]["rolling"]["hit@3"] > 0 and not finding.cautions
    line, asked, rows = (
        finding.events.timeline,
        finding.events.test["rolling"],
        interactions().to_pylist(),
    )
    assert line.time is not None
    taken = [  # by the definition
        len(
            [
                r
                for r in rows
                if r["user"] == user and r["time"] < when and r["event"] in READ["targets"]
            ]
        )
        for user, when in zip(
            line.user_ids.take(pa.array(line.user_of(asked))).to_pylist(), line.time[asked].tolist()
        )
    ]
    assert finding.reached["trained"]["rolling"].lengths.tolist() == taken
    without = later.filter(pc.not_equal(later["event"], "cart"))  # a file may lack a behaviour
    assert len(earlier.evaluate(without).events.test["rolling"]) == len(
        finding.events.test["rolling"]
    )
    looked_at = later.filter(pc.equal(later["event"], "view"))
    with pytest.raises(
        DataError, match="no event of a behaviour that is evaluated is left that has a history"
    ):
        earlier.evaluate(looked_at)
    with pytest.raises(DataError, match=r"has no column 'device' for data\.context"):
        earlier.evaluate(later.drop_columns(["device"]))


def test_sessions_of_another_file_are_other_sessions(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    sessions = pa.table({"items": [[f"i{i}" for i in draw.integers(0, 9, 5)] for _ in range(20)]})
    options = {
        "data": {"source": "interactions", "split": "leave_last_out"},
        "tower": {"dimensions": 8, "history": {"pools": [{"mean": {"last": 3}}]}},
        "train": {"batch_size": 20, "max_steps": 3, "evaluations": 0, "refit": "none"},
        "evaluation": {"baselines": False, "validation": 0},
    }
    run = train(options, tmp_path / "run", data=sessions)
    finding = run.evaluate(sessions.slice(0, 3))
    assert finding.counts["known_users"] == 0 and finding.counts["queries"] == {"rolling": 12}
