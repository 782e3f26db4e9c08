"""Where examples of docstrings run: a folder of pairs.jsonl, pairs.yaml that trains on them, and
what that left in runs/first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tempera.experiments.one_run import Report
    from tempera.experiments.record import Record

NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal", "ida", "jon")
OPTIONS = """
data: {source: pairs, path: pairs.jsonl}
tower: {dimensions: 16, vocabulary: 200}
train: {batch_size: 16, max_steps: 30, evaluations: 0}
evaluation: {queries: 20, validation: 0}
"""


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Draw no pictures, train the runs of sweeps and tunings in this process, and fork the
    processes of proofs.

    Pictures, and processes that load everything anew, take longer than the runs.
    """
    from functools import partial
    from importlib import import_module

    import torch

    from tempera.artifacts import pictures
    from tempera.experiments import runner, sweep
    from tempera.experiments.one_run import Trainings
    from tempera.tuning import learn, tune

    class Inline(runner.Worker):
        def run(self, job: dict[str, Any], report: Report) -> Record:
            return Trainings()(job, report)

    patch.setattr(pictures, "_svg", lambda *_: "<svg></svg>")
    patch.setattr(learn, "draw_learning_curve", lambda _: {})
    patch.setattr(sweep, "draw_sweep", lambda _: {})
    patch.setattr(tune, "draw_tuning", lambda _: {})
    patch.setattr(runner, "Worker", Inline)
    if torch.version.cuda is None:  # with CUDA a fork may get no gradients
        spawning = import_module(
            "torch.multiprocessing.spawn"
        )  # the package has a function of this name
        patch.setattr(spawning, "spawn", partial(spawning.start_processes, start_method="fork"))


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, made once."""
    from tempera import train

    folder = tmp_path_factory.mktemp("example")
    rows = [
        {"query": f"where is {a} of {b}", "doc": f"{b} keeps {a}"} for a in NAMES for b in NAMES
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "pairs.yaml").write_text(OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.chdir(folder)
        train("pairs.yaml", "runs/first")
    return folder


@pytest.fixture(autouse=True)
def beside_the_example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change into it, and take short cuts, for examples that name a file of it."""
    test = getattr(request.node, "dtest", None)
    if test is not None and any(
        "pairs." in line.source or "runs/" in line.source for line in test.examples
    ):
        shorten(monkeypatch)
        monkeypatch.chdir(request.getfixturevalue("example"))
