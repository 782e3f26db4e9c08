"""A run judged on other interactions: the figures are those of a run that held them out, and what
is left out is said."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.run_folder import Run
from tempera.errors import ConfigError, DataError
from tempera.run.train import train

# A copy whose files may be changed, as of an earlier version: without their checksums.
UNCOMPARED = shutil.ignore_patterns("tempera-manifest.json")

ITEMS, USERS, CUT = 20, 30, 160  # the cut is the moment at which the test begins
METRICS = ("hit@3", "ndcg@3")


def interactions() -> pa.Table:
    """Users begin at times of their own; some of them after the cut."""
    draw, rows = np.random.default_rng(3), []
    for user in range(USERS):
        times = draw.integers(5 * user, 200, 8)
        rows += [(f"u{user:02}", f"i{draw.integers(0, ITEMS):02}", int(when)) for when in times]
    return pa.table(
        {name: list(column) for name, column in zip(("user", "item", "time"), zip(*rows))}
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has held out its later events, with baselines and the time since the last
    event."""
    folder = tmp_path_factory.mktemp("runs")
    parquet.write_table(interactions(), folder / "events.parquet")
    events = interactions()["time"].to_numpy()
    share = float((events >= CUT).mean())
    options = {
        "data": {
            "source": "interactions",
            "path": str(folder / "events.parquet"),
            "split": {
                "global_time": {
                    "test_share": share,
                    "validation_share": 0,
                    "least": 2,
                    "rolling": 3,
                }
            },
        },
        "tower": {
            "kind": "features",
            "dimensions": 8,
            "query": ["elapsed"],
            "history": {"pools": [{"mean": {"last": 2}}, {"ages": {"last": 3}}]},
        },
        "objective": {"temperature": 0.2},
        "train": {"batch_size": 20, "max_steps": 20, "evaluations": 0},
        "evaluation": {"metrics": list(METRICS), "baselines": True},
    }
    return train(options, folder / "run")


@pytest.fixture
def earlier(whole: Run, tmp_path: Path) -> Path:
    """The same run, whose stored histories end before the test."""
    folder = tmp_path / "earlier"
    shutil.copytree(whole.folder, folder, ignore=UNCOMPARED)
    table = interactions().sort_by([("user", "ascending"), ("time", "ascending")])
    table = table.filter(pc.less(table["time"], CUT))
    codes = {
        name: code
        for code, name in enumerate(
            parquet.read_table(folder / "model/items.parquet")["id"].to_pylist()
        )
    }
    rows: dict[str, list[tuple[int, int]]] = {}
    for user, item, time in zip(*(table[name].to_pylist() for name in ("user", "item", "time"))):
        rows.setdefault(user, []).append((codes[item], time))
    items = pa.array(
        [[item for item, _ in row] for row in rows.values()], pa.large_list(pa.int32())
    )
    times = [[time for _, time in row] for row in rows.values()]
    parquet.write_table(
        pa.table({"id": [*rows], "items": items, "times": times}), folder / "histories.parquet"
    )
    return folder


def later(folder: Path, *more: tuple[str, str, int]) -> Path:
    table = interactions()
    table = table.filter(pc.greater_equal(table["time"], CUT))
    extra = pa.table(dict(zip(table.column_names, zip(*more)))) if more else table.slice(0, 0)
    parquet.write_table(pa.concat_tables([table, extra]), folder / "later.parquet")
    return folder / "later.parquet"


def test_figures_are_those_of_the_run_that_held_the_same_events_out(
    whole: Run, earlier: Path, tmp_path: Path
) -> None:
    expected = whole.results["protocols"]
    finding = Run(earlier).evaluate(later(tmp_path))
    assert [*finding.reached] == [
        "popularity",
        whole.results["counting"]["system"],
        "trained",
        "trained + counting",
    ]
    assert {name: len(events) for name, events in finding.events.test.items()} == {
        name: each["queries"] for name, each in expected["trained"].items()
    }
    protocols = finding.json()["protocols"]
    for system in finding.reached:
        for name in ("next", "rolling"):
            own, theirs = (
                [
                    (
                        row["seen"],
                        row["which"],
                        row["queries"],
                        [each["mean"] for each in row["metrics"].values()],
                    )
                    for row in figures[system][name]["rows"]
                ]
                for figures in (protocols, expected)
            )
            assert own == theirs, (system, name)
    assert finding.metrics["trained"]["rolling"]["hit@3"] > 0 and not finding.cautions


def test_what_cannot_be_asked_is_counted_and_said(
    whole: Run, earlier: Path, tmp_path: Path, tempera: Any
) -> None:
    before = interactions().filter(pc.less(interactions()["time"], CUT)).slice(0, 1).to_pylist()[0]
    file = later(
        tmp_path,
        ("u01", "new", 170),
        ("u02", "newer", 170),
        ("nobody", "i01", 1),
        tuple(before.values()),
    )
    answer = tempera(
        "evaluate", earlier, file, "--metrics", "hit@5", "--per-query", tmp_path / "each.csv"
    )
    assert (answer.code, answer.err) == (0, "")
    for text in (
        "left out: 2 interactions with 2 items that the run does not have",
        "left out: 1 interaction not later than what the run knows of their user",
        "\nrolling: ",
        "hit@5",
    ):
        assert text in answer.out, text
    assert (
        "nobody" not in (tmp_path / "each.csv").read_text()
        and "u29" in (tmp_path / "each.csv").read_text()
    )
    everything = tempera("evaluate", whole.folder, file, "--json")
    assert everything.code == 2 and "nothing can be asked of the" in everything.err
    for unit in (1000, 1e-4):
        table, other = parquet.read_table(file), tmp_path / f"{unit}.parquet"
        times = pc.multiply(table["time"].cast(pa.float64()), unit)
        parquet.write_table(
            table.set_column(table.column_names.index("time"), "time", times), other
        )
        refused = tempera("evaluate", earlier, other)
        assert refused.code == 2 and "another unit, or dates beside numbers" in refused.err
    refused = tempera("evaluate", earlier, file, "--bm25")
    assert refused.code == 2 and "--bm25 is for models of texts" in refused.err


def test_some_queries_drawn_at_random(earlier: Path, tmp_path: Path, tempera: Any) -> None:
    answer = tempera(
        "evaluate",
        earlier,
        later(tmp_path),
        "--queries",
        9,
        "--per-query",
        tmp_path / "each.parquet",
    )
    total = len(Run(earlier).evaluate(later(tmp_path)).events.test["rolling"])
    assert f", 9 of {total} rolling\n" in answer.out
    rows = parquet.read_table(tmp_path / "each.parquet").to_pylist()
    assert (
        len([row for row in rows if row["task"] == "rolling" and row["system"] == "trained"])
        == 9 * 4
    )


def test_a_text_is_one_metric(
    earlier: Path, tiny_run: Path, pairs_file: Path, tmp_path: Path
) -> None:
    for run, data in ((earlier, later(tmp_path)), (tiny_run, pairs_file)):
        finding, same = (
            Run(run).evaluate(data, metrics=metrics) for metrics in ("hit@2", ["hit@2"])
        )
        finding, same = ((each,) if run == earlier else each for each in (finding, same))
        assert finding[0].per_query().equals(same[0].per_query())
        metrics = finding[0].per_query()["metric"].to_pylist()
        assert {name.removesuffix(", seen included") for name in metrics} == {"hit@2"}
        with pytest.raises(ConfigError, match="no metric 'hits@2'"):
            Run(run).evaluate(data, metrics="hits@2")


def test_a_run_on_texts_is_evaluated_as_its_folder(
    tiny_run: Path, pairs_file: Path, tempera: Any
) -> None:
    (finding,) = Run(tiny_run).evaluate(pairs_file, metrics=["ndcg@10"])
    assert [*finding.systems] == [str(tiny_run)] and finding.comparisons == {}
    refused = tempera("evaluate", tiny_run, pairs_file, "--queries", 3)
    assert refused.code == 2 and "--queries is for recommenders" in refused.err


def test_tables_in_memory_and_columns_of_other_names(earlier: Path, tmp_path: Path) -> None:
    table = parquet.read_table(later(tmp_path))
    expected = Run(earlier).evaluate(table).metrics
    parquet.write_table(
        table.rename_columns(["user", "item", "seen_at"]), tmp_path / "named.parquet"
    )
    assert (
        Run(earlier).evaluate(tmp_path / "named.parquet", options=["data.time=seen_at"]).metrics
        == expected
    )
    with pytest.raises(DataError, match=r"has no column 'time' for data\.time"):
        Run(earlier).evaluate(tmp_path / "named.parquet")


@pytest.mark.parametrize(
    "option",
    [
        "data.users=u.csv",
        "data.items=i.csv",
        "data.test=t.csv",
        "data.validation=v.csv",
        "data.path=p.csv",
        "tower.dimensions=4",
    ],
)
def test_options_that_would_change_nothing_are_refused(
    earlier: Path, tmp_path: Path, option: str
) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"{option.split('=')[0]} stands in the run and cannot be given for its evaluation",
    ):
        Run(earlier).evaluate(later(tmp_path), options=[option])
    with pytest.raises(
        ConfigError, match=r"data.split of an evaluation on other interactions is global_time"
    ):
        Run(earlier).evaluate(later(tmp_path), options=["data.split=leave_last_out"])
    plain, long = (
        Run(earlier).evaluate(later(tmp_path), options=options).events.test["rolling"]
        for options in ((), ["data.split.global_time.rolling=99"])
    )
    assert len(long) > len(plain)


def test_histories_without_times_are_no_ground_for_the_time_since(
    earlier: Path, tmp_path: Path
) -> None:
    path = earlier / "histories.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns(["times"]), path)
    with pytest.raises(DataError, match="does not know when its histories ended"):
        Run(earlier).evaluate(later(tmp_path))
