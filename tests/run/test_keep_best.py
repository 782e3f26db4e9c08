"""The weights that are saved are those of the best look at validation; training ends when it has
not risen for a while."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from tempera.engine import loop
from tempera.errors import DataError
from tempera.run.fit import _Course
from tempera.run.train import train
from tempera.text.judge.held_out import HeldOutQueries

Weights = dict[str, torch.Tensor]
WORDS = [
    a + b for a in ("ka", "lo", "mi", "nu", "ra", "to") for b in ("ban", "cel", "dor", "fin", "gar")
]


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Half of the answers are right, and the rate is high: training overfits."""
    draw = random.Random(0)
    rows = []
    for i in range(400):
        words = draw.sample(WORDS, 4)
        doc = words if i % 2 else draw.sample(WORDS, 4)
        rows.append({"query": " ".join(words[:2]) + f" {i}", "doc": " ".join(doc)})
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "data": {"source": "pairs", "path": str(tmp_path / "pairs.jsonl")},
        "tower": {"dimensions": 16, "vocabulary": 300},
        "objective": {"temperature": {"value": 0.05, "learnable": True}},
        "train": {
            "batch_size": 32,
            "num_train_epochs": 8,
            "learning_rate": 0.2,
            "evaluations": 6,
            "save_steps": 5,
        },
        "evaluation": {"queries": 60, "validation": 60, "bm25": False},
    }


class Asked:
    """Note what the held-out queries are asked, and the tower's weights then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: list[str] = []
        self.looks: list[tuple[float, Weights]] = []
        judge = HeldOutQueries.judge

        def judging(held_out: HeldOutQueries, part: Any = "test", whole: bool = True) -> Any:
            verdict = judge(held_out, part, whole)
            self.parts.append(part)
            if part == "validation":
                weights = {
                    name: value.clone() for name, value in held_out.data.tower.state_dict().items()
                }
                self.looks.append((verdict.ranking.metrics["ndcg@10"], weights))
            return verdict

        monkeypatch.setattr(HeldOutQueries, "judge", judging)


def files(folder: Path) -> dict[str, bytes]:
    """All tensors that a run has saved."""
    ends = (".safetensors", ".npy")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in ends
    }


def metrics(folder: Path) -> Any:
    found = json.loads((folder / "metrics.json").read_text())
    return {
        name: value
        for name, value in found.items()
        if name not in {"seconds", "replaying", "peak_memory_bytes"}
    }


def stop_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    step, taken = loop.add_gradients, iter(range(10**9))

    def stopping(*given: Any) -> Any:
        if next(taken) == count:
            raise SystemError("killed")
        return step(*given)

    monkeypatch.setattr(loop, "add_gradients", stopping)


def test_the_best_look_is_saved_to_the_bit_and_the_test_is_asked_once_a_system(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    run = train(options, tmp_path / "run")
    assert asked.parts == ["test", *["validation"] * 8, "test"]
    values = [value for value, _ in asked.looks]
    best = values.index(max(values))
    assert 0 < best < 7, values  # it overfits: neither the untrained nor the last model is the best
    (saved,) = (run.folder / "model").rglob("*.safetensors")
    (weights,) = load_file(saved).values()
    assert any(torch.equal(weights, value) for value in asked.looks[best][1].values())
    assert not any(torch.equal(weights, value) for value in asked.looks[-1][1].values())
    steps = [
        r["step"]
        for line in (run.folder / "log.jsonl").read_text().splitlines()
        if "metrics" in (r := json.loads(line))
    ]
    found = metrics(run.folder)["best"]
    assert found == {
        "step": steps[best],
        "taken": steps[-1],
        "metric": "ndcg@10",
        "value": values[best],
    }


@pytest.mark.parametrize(
    "changes", [{}, {"train": {"patience": 2}}, {"evaluation": {"corpus": 130}}]
)
def test_a_run_that_is_killed_saves_the_same(
    changes: dict[str, dict[str, Any]],
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for section, values in changes.items():
        options[section] |= values
    whole = train(options, tmp_path / "whole")
    taken = metrics(whole.folder)["best"]["taken"]
    for count in (taken // 3, taken // 3 + 3, min(11, taken // 6)):
        with monkeypatch.context() as patch:
            stop_at(patch, count)
            with pytest.raises(SystemError):
                train(options, tmp_path / "run")
    run = train(options, tmp_path / "run")
    assert metrics(run.folder) == metrics(whole.folder)
    assert files(run.folder) == files(whole.folder)


def test_best_weights_that_were_changed_are_refused(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 11)
        with pytest.raises(SystemError):
            train(options, tmp_path / "run")
    (path,) = (tmp_path / "run.checkpoints").rglob("best.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"best\.safetensors: its checksum differs"):
        train(options, tmp_path / "run")


def test_patience_ends_a_run_that_does_not_rise(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    every = train(options, tmp_path / "every").metrics
    values = [value for value, _ in asked.looks]
    options["train"]["patience"] = 2
    run = train(options, tmp_path / "run")
    best = metrics(run.folder)["best"]
    looks = len(asked.looks) - len(values)
    assert (
        looks < len(values) and [value for value, _ in asked.looks[len(values) :]] == values[:looks]
    )
    assert max(values[: looks - 2]) == best["value"] >= max(values[looks - 2 : looks])
    assert best["taken"] < metrics(tmp_path / "every")["best"]["taken"] or every == run.metrics


def test_patience_counts_as_the_process_that_judges() -> None:
    """Validation rises at every second look, which the other process does not see."""
    judged = iter([0, 1, 0, 1, 0])

    class Main:
        main = False

        def all_reduce_max(self, mine: int) -> int:
            return max(mine, next(judged))

    course = Mock(
        spec=_Course, group=Main(), pauses={3}, state=Mock(step=3), position=Mock(looks_since=0)
    )
    course.options = Mock(patience=2)
    seen = []
    for _ in range(5):
        _Course.look(course)
        seen.append(course.position.looks_since)
    assert seen == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["train.keep_best=false"], "since train.keep_best is off"),
        (
            ["train.keep_best=false", "train.patience=1", "train.learning_rate=1.0e-9"],
            "training ended there: validation had not risen for 1 look (train.patience)",
        ),
        (["evaluation.validation=49"], "since validation has fewer than 50 queries"),
        (["evaluation.validation=0"], "since evaluation.validation is 0"),
        (
            ["evaluation.validation=49", "train.patience=1"],
            "so that train.patience could not end the training",
        ),
        (
            ["evaluation.validation=0", "train.patience=1"],
            "so that train.patience could not end the training",
        ),
    ],
)
def test_nothing_chosen_saves_the_last_weights_and_says_why(
    overrides: list[str],
    why: str,
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = Asked(monkeypatch)
    with caplog.at_level("INFO", "tempera"):
        run = train(options, tmp_path / "run", overrides)
    lines = [record.message for record in caplog.records if record.message.startswith("saved: ")]
    assert len(lines) == 1 and why in lines[0]
    (saved,) = (run.folder / "model").rglob("*.safetensors")
    (weights,) = load_file(saved).values()
    assert any(torch.equal(weights, value) for value in asked.looks[-1][1].values())
    assert "best" not in metrics(run.folder)


def test_nothing_held_out_is_never_evaluated(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    options["evaluation"] = {"queries": 0, "validation": 0}
    run = train(options, tmp_path / "run")
    assert asked.parts == [] and run.metrics == {}
    assert (
        run.results["data"]["train"] == 400
        and "not evaluated" in (run.folder / "report.html").read_text()
    )
    assert run.search(" ".join(WORDS[:2]), k=3)


def test_without_a_test_validation_chooses(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    options["evaluation"]["queries"] = 0
    run = train(options, tmp_path / "run")
    assert asked.parts == ["validation"] * 8 and run.metrics == {}
    assert run.results["best"]["value"] == max(value for value, _ in asked.looks)
