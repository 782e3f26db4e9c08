"""Lists for users whom a run has not seen, by a file of their histories: as each of them is asked,
and as an evaluation on the same file ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.run_folder import Run
from tempera.errors import DataError
from tempera.run.train import train

ITEMS, USERS, EACH = 30, 40, 12
DEVICES = ("phone", "desk")
Row = dict[str, Any]


def interactions() -> list[Row]:
    """Users go round in circles of items, with pauses of very different lengths."""
    draw, rows = np.random.default_rng(6), list[Row]()
    for user in range(USERS):
        now = int(draw.integers(1000, 3000))
        start, step = int(draw.integers(ITEMS)), int(draw.choice([1, 7]))
        for place in range(EACH):
            now += int(draw.choice([1, 40, 900, 20_000]))
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
NEW = [row for row in ROWS if row["user"] >= "u30"]  # users whom the runs have not seen
DEVICE = {"category": {"column": "device"}}
KINDS: dict[str, dict[str, Any]] = {
    "ratings": {
        "data": {"min_rating": 4},
        "tower": {"history": {"pools": [{"ages": {"last": 4}}]}, "query": ["elapsed", "id"]},
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
        "tower": {"history": {"pools": [{"mean": {"last": 4}}]}},
        "columns": ("user", "item", "time", "action"),
    },
}


def table(rows: list[Row], kind: str) -> pa.Table:
    return pa.Table.from_pylist(rows).select(list(KINDS[kind]["columns"]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """The run of each kind, trained on the first 30 users when first asked for; do not touch."""
    base, made = tmp_path_factory.mktemp("runs"), dict[str, Run]()

    def run(name: str) -> Run:
        if name not in made:
            folder = base / name
            folder.mkdir()
            old = [row for row in ROWS if row["user"] < "u30"]
            parquet.write_table(table(old, name), folder / "events.parquet")
            options = {
                "data": {
                    "source": "interactions",
                    "path": str(folder / "events.parquet"),
                    **KINDS[name]["data"],
                },
                "tower": {
                    "kind": "features",
                    "dimensions": 8,
                    "query_layers": [12],
                    **KINDS[name]["tower"],
                },
                "objective": {"temperature": 0.1},
                "train": {"batch_size": 32, "max_steps": 30, "evaluations": 0},
                "evaluation": {"metrics": ["ndcg@10"], "baselines": True},
            }
            made[name] = train(options, folder / "run")
        return made[name]

    return run


def lists(path: Path) -> dict[Any, dict[str, float]]:
    """The scores of the items of each user's list, in their order."""
    read: dict[Any, dict[str, float]] = {}
    for row in parquet.read_table(path).to_pylist():
        read.setdefault(row["user"], {})[row["item"]] = row["score"]
    return read


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_lists_are_those_of_an_evaluation(
    runs: Callable[[str], Run], kind: str, hybrid: bool, tmp_path: Path
) -> None:
    run = runs(kind)
    finding = run.evaluate(table(NEW, kind))
    line = finding.events.timeline
    events = finding.events.test["rolling"]
    system = "trained + counting" if hybrid else "trained"
    evaluated = finding.reached[system]["rolling"].ranks.top
    items = line.item_ids.to_pylist()
    compared = 0
    for place in range(0, len(events), 9):
        event = int(events[place])
        (user,) = line.user_ids.take(pa.array(line.user_of(np.array([event])))).to_pylist()
        time = int(line.time[event])
        before = [row for row in NEW if row["user"] == user and row["time"] < time]
        context = None
        if kind == "context":
            (context,) = (
                {"device": row["device"]}
                for row in NEW
                if row["user"] == user and row["time"] == time
            )
        facts = run.recommend_all(
            tmp_path / f"{place}.parquet",
            histories=table(before, kind),
            k=ITEMS,
            hybrid=hybrid,
            now=time,
            context=context,
        )
        assert facts["users"] == facts["unknown"] == 1
        (served,) = lists(tmp_path / f"{place}.parquet").values()
        expected = [items[code] for code in evaluated[place].tolist() if code >= 0][:10]
        best = list(served)[: len(expected)]
        for here, there in zip(expected, best, strict=True):
            assert abs(served[here] - served[there]) < 1e-5, (place, user)
        compared += 1
    assert compared > 5


def test_each_user_is_answered_as_by_the_history(
    runs: Callable[[str], Run], tmp_path: Path, tempera: Any
) -> None:
    run = runs("ratings")
    order = np.random.default_rng(1).permutation(len(NEW))
    shuffled = table([NEW[place] for place in order], "ratings")
    csv.write_csv(shuffled, tmp_path / "new.csv")
    answer = tempera(
        "recommend", run.folder, "--histories", tmp_path / "new.csv", "-o", tmp_path / "a.parquet",
        "-k", "5", "--json",
    )  # fmt: skip
    assert answer.document["users"] == answer.document["unknown"] == 10
    latest = max(row["time"] for row in ROWS)
    assert f"now is {latest}, the latest time of the data" in " ".join(answer.document["notes"])
    for user, served in lists(tmp_path / "a.parquet").items():
        own = [row for row in NEW if row["user"] == user]
        taken = [row["item"] for row in own if row["rating"] >= 4]
        low = [row["item"] for row in own if row["rating"] < 4]
        assert not set(served) & {*taken, *low}
        # Without times, the last event is taken to be now.
        untimed = pa.Table.from_pylist(own).select(["user", "item", "rating"])
        run.recommend_all(tmp_path / f"{user}.parquet", histories=untimed, k=ITEMS)
        (by_file,) = lists(tmp_path / f"{user}.parquet").values()
        alone = run.recommend(history=taken, exclude=low, k=ITEMS)
        assert list(by_file) == [hit.id for hit in alone.hits]
        np.testing.assert_allclose(
            list(by_file.values()), [hit.score for hit in alone.hits], atol=1e-5
        )


def test_histories_take_the_place_of_those_that_the_run_knows(
    runs: Callable[[str], Run], tmp_path: Path
) -> None:
    run = runs("behaviours")
    history = ["i03", "i04", "i25"]
    told = pa.table({"user": ["u07"] * 3 + ["new"], "item": [*history, "i03"]})
    facts = run.recommend_all(tmp_path / "a.parquet", histories=told, k=ITEMS)
    assert facts["users"] == 2 and facts["unknown"] == 1
    notes = "\n".join(facts["notes"])
    assert "take the place of those of 1 user whom the run knows" in notes
    assert "no column 'time': events are in the order of the rows" in notes
    assert "no column 'action'" in notes
    alone = run.recommend("u07", history, k=ITEMS)
    assert list(lists(tmp_path / "a.parquet")["u07"]) == [hit.id for hit in alone.hits]


def test_what_a_user_has_met_in_the_file_or_in_the_run_is_left_out(
    runs: Callable[[str], Run], tmp_path: Path
) -> None:
    run = runs("ratings")
    met = {row["item"] for row in ROWS if row["user"] == "u07"}
    low, taken = [f"i{item:02}" for item in range(ITEMS) if f"i{item:02}" not in met][:2]
    rows = [
        {"user": "u07", "item": low, "time": 9000, "rating": 1},
        {"user": "u07", "item": taken, "time": 9001, "rating": 5},
    ]
    run.recommend_all(tmp_path / "a.parquet", histories=pa.Table.from_pylist(rows), k=ITEMS)
    every = {f"i{item:02}" for item in range(ITEMS)}
    assert set(lists(tmp_path / "a.parquet")["u07"]) == every - met - {low, taken}


def test_items_that_the_run_does_not_have_are_counted(
    runs: Callable[[str], Run], tmp_path: Path
) -> None:
    run = runs("ratings")
    rows = [{**NEW[0], "rating": 5}, {**NEW[1], "item": "i99", "rating": 5}]
    facts = run.recommend_all(tmp_path / "a.parquet", histories=table(rows, "ratings"), k=4)
    assert "left out: 1 event with an item that the run does not have" in facts["notes"]
    only = table(rows[1:], "ratings")
    with pytest.raises(
        DataError, match=r"no event of .* has an item of .*: its ids are like 'i99'"
    ):
        run.recommend_all(tmp_path / "b.parquet", histories=only)
    with pytest.raises(DataError, match="users and histories are given"):
        run.recommend_all(tmp_path / "b.parquet", users=["u01"], histories=only)
    late = pa.table({"user": ["a"], "item": ["i03"], "time": [1 << 50], "rating": [5]})
    with pytest.raises(DataError, match="another unit"):
        run.recommend_all(tmp_path / "b.parquet", histories=late)
    assert not (tmp_path / "b.parquet").exists()


def test_rows_may_be_sessions(runs: Callable[[str], Run], tmp_path: Path) -> None:
    run = runs("behaviours")
    path = tmp_path / "sessions.jsonl"
    path.write_text('{"items": ["i01", "i02"]}\n{"items": ["i20"]}\n')
    run.recommend_all(tmp_path / "a.parquet", histories=path, k=ITEMS)
    read = lists(tmp_path / "a.parquet")
    assert len(read) == 2
    for session, history in zip(read, (["i01", "i02"], ["i20"]), strict=True):
        alone = run.recommend(history=history, k=ITEMS)
        assert list(read[session]) == [hit.id for hit in alone.hits]
