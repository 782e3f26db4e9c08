"""A recommender of a second, and a text retriever of less."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.experiments import sweep
from tempera.tuning import tune


@pytest.fixture
def recommender(tmp_path: Path) -> dict[str, Any]:
    """60 users who take items of one of three kinds in a random order."""
    draw = np.random.default_rng(5)
    rows = [
        (u, int(i), t)
        for u in range(60)
        for t, i in enumerate(draw.permutation(np.arange(u % 3, 30, 3))[:8])
    ]
    parquet.write_table(
        pa.table(dict(zip(("user", "item", "time"), zip(*rows)))), tmp_path / "taken.parquet"
    )
    return {
        "data": {
            "source": "interactions",
            "path": str(tmp_path / "taken.parquet"),
            "split": "leave_last_out",
        },
        "tower": {"kind": "features", "dimensions": 8, "query_layers": [16], "dropout": 0.1},
        "train": {"batch_size": 40, "max_steps": 6, "sampled": 5},
        "evaluation": {"metrics": ["hit@3"], "validation": 55},
    }


@pytest.fixture(scope="session")
def small(pairs_file: Path) -> dict[str, Any]:
    return {
        "data": {"source": "pairs", "path": str(pairs_file)},
        "tower": {"dimensions": 16, "vocabulary": 300, "init": "normal", "token_weights": False},
        "train": {"batch_size": 32, "num_train_epochs": 4, "seed": 5},
        "evaluation": {"queries": 40, "validation": 60, "bm25": False},
    }


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take longer than the runs."""
    for module in (sweep, tune):
        monkeypatch.setattr(module, "picture", lambda _: {})


@pytest.fixture
def validated() -> Callable[..., dict[str, float]]:
    """The metrics of a run's validation queries: after its last step, or at the step whose weights
    it saved."""

    def metrics(run: Any, saved: bool = False) -> dict[str, float]:
        records = map(json.loads, (run.folder / "log.jsonl").read_text().splitlines())
        looks = {
            record["step"]: record["metrics"]
            for record in records
            if record["event"] == "evaluation"
        }
        return looks[run.document.get("best", {}).get("step", max(looks)) if saved else max(looks)]

    return metrics
