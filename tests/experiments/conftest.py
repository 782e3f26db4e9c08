"""A recommender of a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest


@pytest.fixture
def recommender(tmp_path: Path) -> dict[str, Any]:
    """30 users who take items of one of three kinds in a random order."""
    draw = np.random.default_rng(5)
    rows = [(u, int(i), t) for u in range(30) for t, i in enumerate(draw.permutation(np.arange(u % 3, 30, 3))[:8])]
    parquet.write_table(pa.table(dict(zip(("user", "item", "time"), zip(*rows)))), tmp_path / "taken.parquet")
    return {
        "data": {"source": "interactions", "path": str(tmp_path / "taken.parquet"), "split": "leave_last_out"},
        "tower": {"kind": "features", "dimensions": 8, "query_layers": [16], "dropout": 0.1},
        "train": {"batch_size": 40, "max_steps": 6, "sampled": 5},
        "evaluation": {"metrics": ["hit@3"], "validation": 12},
    }
