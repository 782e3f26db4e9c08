"""Training again with negatives that the evaluated model mines (`mining.again`), against training
again without.

`python bench/mined_again.py [SEEDS] [FILES]` takes pairs from sets in the folder that TEMPERA_DATA
names, or from files of your own with the columns query and document, and keeps test queries from
them as `bench/recipe.py` does. `tempera train` without options trains on the rest, evaluates, and
trains again, also on what it held out (`train.refit`). A second run has the settings that the first
one has chosen, and mines no negatives. Differences of means over the seeds have 95 % intervals,
paired by query. CPU seconds are those of `refit`, and of the whole first run.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

import tempera
from _harness import Aim, finish, parser_of, table
from _sets import measured_sets, pairs_of, record_of, shown
from recipe import Judge
from tempera.ranking.compare import Floats
from tempera.towers.saved import EVALUATED, load

TESTED = ("captions", "parasci", "duplicates", "medquad", "nl2bash")


def measured(name: str, seeds: range) -> dict[str, Any]:
    """Return the scores, differences and CPU seconds of one set."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parquet.write_table(pairs_of(name), folder / "pairs.parquet")
        judge = Judge(folder / "pairs.parquet", folder)
        rows, given = judge.given(), folder / "given.parquet"
        parquet.write_table(rows, given)
        systems: dict[str, list[Floats]] = {}
        seconds: dict[str, list[float]] = {"with": [], "without": [], "run": []}
        for seed in seeds:
            began = time.process_time()
            run = tempera.train(str(given), folder / f"run-{seed}", [f"train.seed={seed}"])
            seconds["run"].append(time.process_time() - began)
            plain = tempera.train(
                run.folder / "config.yaml", folder / f"plain-{seed}", ["mining.again=0"]
            )
            judged = {"with": run.encode, "without": plain.encode}
            if run.results.get("refit"):
                judged |= {"evaluated": load(run.folder / EVALUATED)}
                for system, each in (("with", run), ("without", plain)):
                    seconds[system].append(each.results["seconds"]["refit"]["cpu"])
            for system, encode in judged.items():
                systems.setdefault(system, []).append(judge.scores(encode))
        means = {system: np.mean(each, axis=0) for system, each in systems.items()}
    return {
        "pairs": len(rows),
        "scores": {system: float(each.mean()) for system, each in means.items()},
        "with - without": shown(means["with"], means["without"]),
        "seconds": {system: float(np.mean(each)) for system, each in seconds.items() if each},
    }


def main() -> None:
    """Measure all sets, print the table and keep the figures."""
    parser = parser_of(__doc__ or "", seeds=2)
    parser.add_argument(
        "files",
        nargs="*",
        help="Parquet files of pairs, or names of sets; of the largest, 12,000 rows",
    )
    options = parser.parse_args()
    figures = measured_sets(
        options.files or TESTED, lambda name: measured(name, range(options.seeds))
    )
    differences = [each["with - without"] for each in figures.values()]
    table(
        ["set", "pairs", "without", "with", "difference", "interval", "CPU s", "without", "of"],
        [
            [
                name, each["pairs"], *(f"{each['scores'][key]:.3f}" for key in ("without", "with")),
                f"{each['with - without']['mean']:+.3f}", "[{low:+.3f}, {high:+.3f}]".format(**each["with - without"]),
                *(f"{each['seconds'].get(key, 0.0):.1f}" for key in ("with", "without", "run")),
            ]
            for name, each in figures.items()
        ],
    )  # fmt: skip
    aims = [
        Aim("sets on which it is shown worse", sum(each["high"] < 0 for each in differences), 0),
        Aim("share of sets on which it is shown better", float(np.mean([each["low"] > 0 for each in differences])), 0.5, True),
    ]  # fmt: skip
    finish(record_of("mined_again", options.files), figures, aims, ["torch"])


if __name__ == "__main__":
    main()
