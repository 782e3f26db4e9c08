"""A recommender is asked again for what it has held out, beside another one; runs that are not asked
the same are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest

import tempera as package
from tempera.artifacts.run_folder import Run
from tempera.errors import ConfigError, DataError
from tempera.finished.held_out_events import evaluate_held_out_events
from tempera.run.train import train

USERS, ITEMS = 60, 25


def interactions(seed: int = 0) -> pa.Table:
    draw = np.random.default_rng(seed)
    rows = [
        (f"u{user:02}", f"i{(user + 3 * place) % ITEMS:02}", int(when), int(draw.integers(1, 6)))
        for user in range(USERS)
        for place, when in enumerate(np.sort(draw.integers(0, 10_000, 12)))
    ]
    return pa.table(dict(zip(("user", "item", "time", "rating"), map(list, zip(*rows)))))


def made(folder: Path, name: str, last: int, *options: str, data: pa.Table | None = None) -> Run:
    path = folder / f"{'other' if data is not None else 'events'}.parquet"
    if not path.exists():
        parquet.write_table(interactions() if data is None else data, path)
    given: dict[str, Any] = {
        "data": {"source": "interactions", "path": str(path), "min_rating": 2},
        "tower": {
            "kind": "features",
            "dimensions": 8,
            "query_layers": [],
            "history": {"pools": [{"mean": {"last": last}}]},
        },
        "objective": {"temperature": 0.1},
        "train": {"batch_size": 40, "max_steps": 30, "evaluations": 1, "learning_rate": 0.02},
        "evaluation": {"metrics": ["ndcg@10", "hit@3"], "baselines": True},
    }
    return train(given, folder / name, list(options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def one(folder: Path) -> Run:
    return made(folder, "one", 1, "train.refit=all")


@pytest.fixture(scope="module")
def long(folder: Path) -> Run:
    return made(folder, "long", 9)


def test_the_evaluated_model_reaches_what_the_run_says(one: Run, long: Run) -> None:
    assert (one.folder / "evaluated").is_dir() and not (long.folder / "evaluated").exists()
    for run in (one, long):
        finding = evaluate_held_out_events(run.folder)
        assert set(finding.metrics) == {"trained", "trained + counting"}
        for system, protocols in finding.metrics.items():
            for protocol, metrics in protocols.items():
                rows = run.results["protocols"][system][protocol]["rows"]
                for name in ("ndcg@10", "hit@3"):
                    assert metrics[name] == pytest.approx(
                        rows[0]["metrics"][name]["mean"], abs=1e-9
                    )


def test_two_runs_are_compared_question_by_question(one: Run, long: Run, tempera: Any) -> None:
    finding = evaluate_held_out_events(one.folder, long.folder)
    assert finding.beside is not None
    ours, theirs = (
        evaluate_held_out_events(run.folder).reached[served]
        for run, served in zip((one, long), finding.beside.served)
    )
    for protocol, metrics in finding.beside.comparisons.items():
        assert set(metrics) == {"ndcg@10", "hit@3"}
        a, b = ours[protocol].per_query["ndcg@10"], theirs[protocol].per_query["ndcg@10"]
        difference = metrics["ndcg@10"].difference
        assert difference.mean == pytest.approx(float((a - b).mean()), abs=1e-12)
        assert difference.low < difference.high and metrics["ndcg@10"].queries == len(a)
    answer = tempera("evaluate", one.folder, "--against", long.folder, "--json")
    assert answer.code == 0 and answer.document["verdicts"] == finding.verdicts()
    assert answer.document["against"] == str(long.folder)
    printed = tempera("evaluate", one.folder, "--against", long.folder).out
    assert all(" ".join(text.split()) in " ".join(printed.split()) for text in finding.verdicts())


def test_both_are_asked_for_the_events_of_a_file(one: Run, long: Run, tmp_path: Path) -> None:
    events = interactions(1)
    later = events.set_column(2, "time", pc.add(events["time"], 20_000))
    parquet.write_table(later, tmp_path / "later.parquet")
    finding = one.evaluate(tmp_path / "later.parquet", against=long.folder)
    alone = long.evaluate(tmp_path / "later.parquet")
    assert finding.beside is not None and finding.beside.run == long.folder
    mean = finding.beside.comparisons["rolling"]["ndcg@10"].difference.mean
    served = finding.beside.served
    assert mean == pytest.approx(
        finding.metrics[served[0]]["rolling"]["ndcg@10"]
        - alone.metrics[served[1]]["rolling"]["ndcg@10"],
        abs=1e-12,
    )
    systems = set(finding.per_query()["system"].to_pylist())
    assert f"{long.folder}: {served[1]}" in systems


def test_runs_that_are_not_asked_the_same_are_refused(
    one: Run, folder: Path, tiny_run: Path, tempera: Any
) -> None:
    rated = made(folder, "rated", 1, "data.min_rating=4")
    shares = made(folder, "shares", 1, "data.split.global_time.test_share=0.3")
    fewer = interactions()
    fewer = made(folder, "fewer", 1, data=fewer.filter(pc.not_equal(fewer["item"], "i03")))
    for other, says in (
        (rated, r"their next questions are others"),
        (shares, r"their next questions are others"),
        (fewer, r"their items are others \(25 and 24\)"),
    ):
        with pytest.raises(DataError, match=f"are not asked the same: {says}"):
            evaluate_held_out_events(one.folder, other.folder)
    with pytest.raises(DataError, match="name another recommender"):
        evaluate_held_out_events(one.folder, tiny_run)
    with pytest.raises(ConfigError, match="would be compared with itself"):
        evaluate_held_out_events(one.folder, one.folder)
    refused = tempera("evaluate", one.folder, "--against", rated.folder)
    assert refused.code == 2 and "are not asked the same" in refused.err.splitlines()[-1]


def test_data_that_have_changed_are_refused(tmp_path: Path) -> None:
    run = made(tmp_path, "run", 1)
    path = tmp_path / "events.parquet"
    parquet.write_table(interactions().slice(5), path)
    with pytest.raises(DataError, match=r"have changed since \(interactions: "):
        evaluate_held_out_events(run.folder)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read again"):
        evaluate_held_out_events(run.folder)
    handed = train(
        {
            "data": {"source": "interactions", "metadata": ["rating"]},
            "tower": {"dimensions": 8},
            "train": {"max_steps": 2, "batch_size": 40, "evaluations": 0},
            "evaluation": {"metrics": ["hit@3"]},
        },
        tmp_path / "handed",
        data=interactions(),
    )
    with pytest.raises(DataError, match="was trained on an object of Python, which is gone"):
        evaluate_held_out_events(handed.folder)


def test_the_public_function_takes_recommenders(one: Run, long: Run) -> None:
    finding = package.evaluate_held_out(one.folder, against=long.folder)
    assert finding.verdicts() == evaluate_held_out_events(one.folder, long.folder).verdicts()
    with pytest.raises(ConfigError, match="bm25 is for models of texts"):
        package.evaluate_held_out(one.folder, bm25=True)
