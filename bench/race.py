"""The race of `tempera train`, against full sweeps: is its choice within the noise of the best
setting, and what does it cost?

`python bench/race.py [PAIRS]` takes so many pairs of five sets in the folder that TEMPERA_DATA
names, each with both kinds of initial vectors of a static tower: ten cases. The sweep trains 30
settings in full, of six temperatures and five learning rates from a tenth to ten times the tower's
own; its best is the one with the highest validation score. The best rate at the race's temperature,
the race's setting and the default are compared with it, all trained in full, with 95 % intervals,
paired by query. The cost is the CPU seconds of race and run over those of the run alone, its
training and the evaluations on the way.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from _harness import Aim, arguments, finish, table
from _sets import DATA, SETS, pairs_of, shown
from tempera.engine.devices import start
from tempera.io.console import silenced
from tempera.io.documents import JsonLines
from tempera.options import yaml_options as config
from tempera.options.build import build
from tempera.ranking.compare import Floats
from tempera.run.fit import fit
from tempera.run.prepare import Prepared, prepare
from tempera.run.race import run_race, trained, with_setting
from tempera.run.recipe import opened
from tempera.task.rounds import LEARNING_RATE, TEMPERATURE

NAMES = ("nl2bash", "captions", "parasci", "nli", "duplicates")
TEMPERATURES = (0.02, 0.035, 0.05, 0.1, 0.14, 0.2)
FACTORS = (0.1, 1 / 3, 1.0, 10 / 3, 10.0)
METRIC = "ndcg@10"
SHOWN = (("temperature", "validation"), ("setting", "test"), ("default", "test"))
Setting = tuple[float, float]  # temperature and learning rate


def full(prepared: Prepared, setting: Setting, steps: int) -> tuple[Floats, Floats]:
    """Return the scores on validation and test of a setting that is trained in full."""
    task = trained(prepared, dict(zip((TEMPERATURE, LEARNING_RATE), setting, strict=True)), steps)
    validation, test = (
        task.held_out.judge(part).ranking.per_query[METRIC] for part in ("validation", "test")
    )
    return validation, test


def best_of(swept: dict[Setting, tuple[Floats, Floats]]) -> Setting:
    """Return the setting with the highest score on validation."""
    return max(swept, key=lambda each: float(swept[each][0].mean()))


def case(name: str, init: str, pairs: int, folder: Path) -> dict[str, Any]:
    """Return the sweep's best setting, the race's, their difference and the cost of one set and
    tower."""
    parquet.write_table(pairs_of(name, pairs), folder / "pairs.parquet")
    options, free = opened(
        config.of({"data": {"path": str(folder / "pairs.parquet")}, "tower": {"init": init}})
    )
    with JsonLines(folder / "log.jsonl") as log, silenced():
        prepared = prepare(build(options), start("no"), folder, log)
        race = prepared.task.race(prepared.config).among(free)
        prepared = with_setting(
            prepared, race.start
        )  # sweep and run have the width that it starts with
        steps = prepared.config.train.steps(prepared.task.data.sampler.batches_per_epoch)
        rate = prepared.config.train.learning_rate
        rates = [float(f"{rate * factor:.2g}") for factor in FACTORS]
        swept = {
            each: full(prepared, each, steps) for each in itertools.product(TEMPERATURES, rates)
        }
        began = time.process_time()
        chosen = run_race(prepared, race, steps)[1].values
        raced = time.process_time()
        fit(prepared)
        seconds = {"race": raced - began, "run": time.process_time() - raced}
    ours, default = (chosen[TEMPERATURE], chosen[LEARNING_RATE]), (0.05, rate)
    best = best_of(swept)
    beside = {
        "temperature": best_of({each: swept[each] for each in swept if each[0] == ours[0]}),
        "setting": ours,
        "default": default,
    }
    parts = ("validation", "test")
    return {
        "steps": steps, "queries": len(swept[best][0]), "best": best, "chosen": ours, "score": float(swept[ours][1].mean()),
        **{
            name: {part: shown(*pair) for part, *pair in zip(parts, swept[each], swept[best], strict=True)}
            for name, each in beside.items()
        },
        "seconds": seconds,
        "sweep": [[*each, *(float(scores.mean()) for scores in swept[each])] for each in swept],
    }  # fmt: skip


def main() -> None:
    """Measure all cases, print the table and keep the figures."""
    pairs = int(arguments(__doc__ or "", pairs=3000).pairs)
    figures: dict[str, Any] = {}
    for name, init in itertools.product(NAMES, ("ngrams", "normal")):
        if not (DATA / SETS[name][0]).is_file():
            print(f"{name}: {DATA / SETS[name][0]} is missing; set TEMPERA_DATA")
            continue
        with tempfile.TemporaryDirectory() as place:
            figures[f"{name}, {init}"] = case(name, init, pairs, Path(place))
        print(name, init, json.dumps(figures[f"{name}, {init}"]), file=sys.stderr, flush=True)
    costs = {
        name: 1 + each["seconds"]["race"] / each["seconds"]["run"] for name, each in figures.items()
    }
    table(
        ["case", "sweep's best", "race", METRIC, "its temperature, validation", "its setting, test", "default, test", "cost"],
        [
            [
                name, *("{:g}, {:g}".format(*each[key]) for key in ("best", "chosen")), f"{each['score']:.3f}",
                *("{mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**each[key][part]) for key, part in SHOWN), f"{costs[name]:.1f}",
            ]
            for name, each in figures.items()
        ],
    )  # fmt: skip
    below = {
        name: sum(each[name][part]["high"] < 0 for each in figures.values())
        for name, part in SHOWN[:2]
    }
    aims = [
        *(
            Aim(f"cases whose {name} is shown below the sweep's best", count, 1)
            for name, count in below.items()
        ),
        Aim("CPU of race and run over the run's, the most", max(costs.values()), 3),
    ]
    finish("race", figures, aims, ["torch"])


if __name__ == "__main__":
    main()
