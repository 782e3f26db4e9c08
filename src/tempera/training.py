"""The main job: from a configuration to a trained, searchable retriever in one folder."""

from __future__ import annotations

import itertools
import resource
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from safetensors.torch import save as as_bytes
from tqdm import tqdm

from . import config as configuration
from .build import Config, build, describe
from .core.advice import cautions
from .core.batch import Batch, Role, divide
from .core.matryoshka import Matryoshka
from .core.objective import Objective
from .core.ragged import Ragged
from .core.similarity import cosine
from .data.batches import Draws, Shuffled
from .data.catalogue import Catalogue, stored
from .data.files import Given
from .data.mixture import Mixture
from .data.pairs import Rows, Source, Split, hold_out
from .data.samplers import Mixed, NoDuplicates
from .engine import loop, outlook
from .engine.devices import Devices, one_voice, start
from .errors import ConfigError, DataError, TemperaError
from .evaluation.compare import bootstrap
from .evaluation.lexical import Lexical
from .evaluation.ranking import Relevant
from .evaluation.retrieval import DEPTH, Ranking
from .evaluation.spread import Spread, spread
from .export.card import Card, render_card
from .export.index import write_index
from .export.report import Example, Hit, Report, render
from .export.save import JsonLines, staged, write_json
from .export.stamp import Stamp
from .mining.guide import Guide
from .run import Run
from .towers.saved import fingerprint

BM25_TUNING_QUERIES = 500
CACHE = "cache"  # texts and tokens, mapped; removed with the last step


def train(
    config: Mapping[str, Any] | str | Path | None = None,
    output: str | Path = "runs/first",
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    data: Any = None,
) -> Run:
    """Train a retriever and leave a run folder.

    Args:
        config: options as a mapping, a YAML file, or None for the default job: search in the installed Python's code.
        output: the folder to make: model/, index/, config.yaml, metrics.json, log.jsonl, report.html.
        overrides: dotted.key=value, as on the command line.
        overwrite: replace a run that `output` holds, once the new one is complete.
        data: rows to train on, in place of a source: a datasets.Dataset, a frame of pandas or polars, a table of pyarrow.
            The options of `data:` then say what its columns are.

    Raises:
        TemperaError: wrong options, no data, or an output that cannot be written.
    """
    options = configuration.of(config, overrides)
    if data is not None:
        options.values["data"] = {**options.values.get("data", {}), "source": "given"}
    resolved = build(options)
    if isinstance(resolved.data, Given):
        resolved = replace(resolved, data=resolved.data.hand(data))
    devices = start(resolved.train.mixed_precision, timeout=resolved.train.ddp_timeout)
    folders = staged(Path(output), overwrite) if devices.group.main else TemporaryDirectory()
    with one_voice(devices.group), folders as folder:
        Job(resolved, Path(folder), devices).run()
    devices.group.wait()
    return Run(Path(output), there=devices.group.main)


@dataclass
class _Task:
    """The retrieval task of a run, by positions among its distinct texts."""

    split: Split
    query_of: Rows  # [n] the distinct query of each pair
    doc_of: Rows  # [n]
    asked: Rows  # [q] a pair for each distinct held-out query
    relevant: Relevant

    @classmethod
    def of(cls, split: Split, query_of: Rows, doc_of: Rows, rows: Rows) -> _Task:
        """Ask each distinct query of `rows` once; its answers are the documents it is paired with there."""
        distinct, first, inverse = np.unique(query_of[rows], return_index=True, return_inverse=True)
        place = np.full(int(doc_of.max()) + 1, -1)
        place[doc_of[split.corpus]] = np.arange(len(split.corpus))
        relevant = Relevant(len(distinct), inverse, place[doc_of[rows]], np.ones(len(rows)))
        return cls(split, query_of, doc_of, rows[first], relevant)

    @cached_property
    def queries(self) -> list[str]:
        return self.split.pairs.texts("query", self.asked)


class Job:
    """One run, from its data to its folder."""

    def __init__(self, config: Config, folder: Path, devices: Devices) -> None:
        self.config, self.folder, self.devices = config, folder, devices
        self.seconds = {"data": 0.0, "train": 0.0, "evaluate": 0.0}
        torch.manual_seed(config.train.seed)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the wall-clock seconds of a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start

    def run(self) -> None:
        """Read, train, judge, save."""
        with JsonLines(self.folder / "log.jsonl") as self.log:
            with self.timed("data"):
                self.read()
            if not self.devices.group.main:  # one process judges and writes for all
                self.train()
                return
            with self.timed("evaluate"):
                untrained, untrained_spread = self.judge()
                self.log.write(event="evaluation", step=0, metrics=untrained.metrics)
            with self.timed("train"):
                self.train()
            with self.timed("evaluate"):
                trained, trained_spread = self.judge()
                self.log.write(event="evaluation", step=self.steps, metrics=trained.metrics)
                bm25 = self.bm25() if self.config.evaluation.bm25 else None
        systems = {"untrained": untrained, **({"bm25": bm25} if bm25 else {}), "trained": trained}
        self.save(systems, {"untrained": untrained_spread, "trained": trained_spread})

    def read(self) -> None:
        """Pairs, what is held out of them, and every distinct text as tokens, once."""
        cache, options = self.folder / CACHE, self.config.train
        pairs, candidates = self.config.data.read(cache)
        if pairs.source is not None:  # with the roles of its columns written down
            ((name, found),) = describe(pairs.source).items()
            self.config.resolved["data"] = {"source": name, **found}
        split = hold_out(pairs, candidates, self.config.evaluation.queries, options.seed)
        self.catalogue = catalogue = Catalogue.of(pairs)
        query_of, doc_of = catalogue.query_of, catalogue.doc_of
        self.task = _Task.of(split, query_of, doc_of, split.asked)
        self.rows = sampler(self.config.data, catalogue, split.train, options)
        lines = [
            f"{len(pairs):,} pairs: {len(split.train):,} to train on, {len(self.task.asked):,} held-out queries "
            f"against {len(split.corpus):,} documents",
            *(f"left out: {count:,} {reason}" for reason, count in pairs.dropped.items()),
        ]
        tqdm.write("\n".join(lines), file=sys.stderr)
        self.log.write(event="data", pairs=len(pairs), dropped=dict(pairs.dropped))
        texts = (catalogue.queries, catalogue.docs)
        self.tower = self.config.tower.build(catalogue.trained(split.train))
        read = (
            lambda part: self.tower.features(part, "reading queries", "query"),
            lambda part: self.tower.features(part, "reading documents", "doc"),
        )
        self.queries, self.docs = (stored(read[i], texts[i], cache / f"tokens.{i}") for i in (0, 1))
        self.examples = catalogue.examples(
            split.train, self.queries, self.docs, Draws(options.sampled, options.sampled_power, options.seed)
        )
        if isinstance(self.rows, Mixed):
            self.examples = replace(self.examples, chance=self.rows.chance)
        if options.guide is not None:
            guide = Guide.of(Path(options.guide), catalogue.queries, catalogue.docs, self.folder.parent / "vectors")
            self.examples = replace(self.examples, guide=guide)

    def train(self) -> None:
        """Optimiser steps, with the metrics on the way."""
        options, objective = self.config.train, self.config.objective
        base = self.settle()
        group, steps = self.devices.group, options.steps(self.rows.batches_per_epoch)
        self.steps = steps
        batches = self.batches(steps * options.gradient_accumulation_steps)
        self.tower.to(group.device)
        objective.to(group.device)
        self.agree()
        self.state = loop.begin(self.tower, objective, options, self.devices)
        first = next(batches)
        self.announce(base, first)
        pauses = loop.moments(steps, options.evaluations) if group.main else set()
        with tqdm(total=steps, desc="training", unit="step", disable=None if group.main else True) as bar:
            rows = itertools.chain([first], batches)
            for progress in loop.train(self.state, rows, steps, options, self.devices):
                self.log.write(event="step", **asdict(progress))
                dial = f"{progress.temperature:.4g} (scale {1 / progress.temperature:.4g})"
                bar.set_postfix(loss=f"{progress.loss:.3f}", temperature=dial)
                bar.update()
                if progress.step in pauses:
                    self.log.write(event="evaluation", step=progress.step, metrics=self.judge()[0].metrics)

    def agree(self) -> None:
        """Refuse processes that do not begin alike: their gradients would be summed all the same."""
        if self.devices.group.size == 1:
            return
        features = [tensor for side in (self.queries, self.docs) for tensor in (side.values, side.offsets)]
        content = xxhash.xxh3_64()
        for tensor in (*self.tower.parameters(), *features, torch.from_numpy(self.task.split.train)):
            content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        if not self.devices.group.alike(content.intdigest() >> 11):
            raise DataError(
                "the processes do not begin with the same data and weights; give every machine the same files"
            )

    def settle(self) -> Objective:
        """The objective without its widths, its automatic temperature settled; what cannot work is said."""
        options, objective = self.config.train, self.config.objective
        base = objective.objective if isinstance(objective, Matryoshka) else objective
        base.temperature.settle(options.batch_size + options.sampled, normalised=base.similarity == cosine)
        for caution in cautions(base):
            tqdm.write(f"caution: {caution}", file=sys.stderr)
            self.log.write(event="caution", text=caution)
        return base

    def batches(self, count: int) -> Iterator[Batch[Ragged]]:
        """This process's part of each batch of the run."""
        group = self.devices.group
        for number, rows in enumerate(self.rows(0, count)):
            yield divide(self.examples.batch(rows, number), group.rank, group.size)

    def announce(self, objective: Objective, batch: Batch[Ragged]) -> None:
        """Say what the run is about to do, before its first step."""
        group, together = self.devices.group, self.config.train.gradient_accumulation_steps
        plan = self.state.cache.plan(self.tower, batch)
        width = len(self.vectors(self.docs, self.task.doc_of[:1])[0])
        sizes = outlook.memory(plan, [self.tower, objective], objective.tile_elements, width)
        lines = [outlook.negatives(objective, batch, group), f"towers: {plan}", outlook.described(sizes)]
        if together > 1:
            lines.append(
                f"{together} batches a step: each is a softmax of its own, which averages gradients and adds no negatives"
            )
        if group.main:
            for line in lines:
                tqdm.write(line, file=sys.stderr)
            self.log.write(event="plan", text=lines, expected_bytes=sizes, replayed=plan.replayed)

    def judge(self) -> tuple[Ranking, Spread]:
        """The tower as it is now, asked the held-out queries."""
        task, metrics = self.task, self.config.evaluation.metrics
        queries = self.vectors(self.queries, task.query_of[task.asked], "query")
        corpus = self.vectors(self.docs, task.doc_of[task.split.corpus])
        answers = self.vectors(self.docs, task.doc_of[task.asked])
        ranking = Ranking.by_vectors(queries, corpus, task.relevant, metrics)
        return ranking, spread(queries, answers)

    def vectors(self, features: Ragged, rows: Rows, role: Role = "doc") -> NDArray[np.float32]:
        """Unit vectors of chosen rows."""
        vectors: NDArray[np.float32] = self.tower.encode(features[torch.from_numpy(rows)], role).numpy()
        if not np.isfinite(vectors).all():
            raise TemperaError("training has left embeddings that are not finite: lower train.learning_rate")
        return vectors

    def bm25(self) -> Ranking:
        """BM25 on the same task, tuned on training queries of the same corpus."""
        task, pairs = self.task, self.task.split.pairs
        docs = pairs.texts("doc", task.split.corpus)
        inside = np.isin(task.doc_of[task.split.train], task.doc_of[task.split.corpus])
        rows = task.split.train[inside]
        chosen = np.random.default_rng(self.config.train.seed).permutation(len(rows))[:BM25_TUNING_QUERIES]
        self.lexical = Lexical(docs)
        if len(chosen):
            tuning = _Task.of(task.split, task.query_of, task.doc_of, rows[chosen])
            self.lexical.tune(tuning.queries, tuning.relevant)
        ranked = self.lexical.rank(task.queries, DEPTH)
        return Ranking.of(ranked, task.relevant, self.config.evaluation.metrics)

    def save(self, systems: Mapping[str, Ranking], spreads: Mapping[str, Spread]) -> None:
        """Everything a run leaves."""
        self.tower.save(self.folder / "model")
        (self.folder / "objective.safetensors").write_bytes(as_bytes(self.config.objective.state_dict()))
        vectors = self.tower.encode(self.docs).numpy()
        stamp = Stamp(fingerprint(self.folder / "model"), vectors.shape[1])
        write_index(self.folder / "index", vectors, self.catalogue.table(), stamp)
        (self.folder / "config.yaml").write_text(configuration.dump(self.config.resolved), encoding="utf-8")
        metrics = self.metrics(systems, spreads)
        report = self.report(systems, spreads, metrics)
        shutil.rmtree(self.folder / CACHE, ignore_errors=True)  # what is mapped stays readable
        (self.folder / "report.html").write_text(render(report), encoding="utf-8")
        card = render_card(self.card(systems, metrics["data"]))
        (self.folder / "model" / "README.md").write_text(card, encoding="utf-8")
        write_json(self.folder / "metrics.json", metrics)

    def card(self, systems: Mapping[str, Ranking], data: Mapping[str, Any]) -> Card:
        """What the saved model's README.md says."""
        resolved = self.config.resolved
        source = {"source": str(resolved["data"].get("path") or resolved["data"]["source"])}
        counts = {name: f"{data[name]:,}" for name in ("pairs", "train", "queries", "corpus")}
        dropped = {f"left out: {reason}": f"{count:,}" for reason, count in data.get("dropped", {}).items()}
        return Card(
            title="A retrieval model",
            data={**source, **counts, **dropped},
            recipe=configuration.dump(resolved),
            metrics={name: system.intervals() for name, system in systems.items()},
            base_model=resolved["tower"].get("model"),
        )

    def metrics(self, systems: Mapping[str, Ranking], spreads: Mapping[str, Spread]) -> dict[str, Any]:
        """What metrics.json holds."""
        task = self.task
        return {
            "metrics": {name: system.metrics for name, system in systems.items()},
            "difference": {
                f"trained - {other}": {
                    metric: asdict(bootstrap(values, systems[other].per_query[metric]))
                    for metric, values in systems["trained"].per_query.items()
                }
                for other in systems
                if other != "trained"
            },
            "spread": {name: spread.summary() for name, spread in spreads.items()},
            "bm25": asdict(self.lexical.settings) if "bm25" in systems else None,
            "data": {
                "pairs": len(task.split.pairs),
                "dropped": dict(task.split.pairs.dropped),
                "train": len(task.split.train),
                "queries": len(task.asked),
                "corpus": len(task.split.corpus),
            },
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "replaying": round(self.state.cache.replaying.seconds() / self.seconds["train"], 4),
            "peak_memory_bytes": peak_memory_bytes(),
        }

    def report(
        self, systems: Mapping[str, Ranking], spreads: Mapping[str, Spread], metrics: Mapping[str, Any]
    ) -> Report:
        """What report.html shows."""
        trained, bm25 = systems["trained"], systems.get("bm25")
        difference = None
        if bm25 is not None and "ndcg@10" in trained.per_query:
            difference = bootstrap(trained.per_query["ndcg@10"], bm25.per_query["ndcg@10"])
        seconds = ", ".join(f"{name} {value:.0f}" for name, value in self.seconds.items())
        return Report(
            title="Tempera run",
            facts={
                "pairs found": f"{metrics['data']['pairs']:,}",
                "pairs trained on": f"{metrics['data']['train']:,}",
                "held-out queries": f"{metrics['data']['queries']:,}",
                "documents ranked": f"{metrics['data']['corpus']:,}",
                "seconds": seconds,
                "peak memory": f"{metrics['peak_memory_bytes'] / 2**20:,.0f} MiB",
                **({"BM25 settings": str(metrics["bm25"])} if bm25 is not None else {}),
            },
            systems=metrics["metrics"],
            difference=difference,
            log=self.log.records,
            spreads=spreads,
            examples=self.examples_of(trained, bm25),
            config=configuration.dump(self.config.resolved),
        )

    def examples_of(self, trained: Ranking, bm25: Ranking | None, count: int = 10, shown: int = 5) -> list[Example]:
        """Held-out queries at random, with what was found."""
        task, pairs = self.task, self.task.split.pairs
        rank = trained.first_right(task.relevant)
        other = bm25.first_right(task.relevant) if bm25 is not None else np.zeros_like(rank)
        right = task.relevant.gains(trained.ranked) > 0
        queries = np.random.default_rng(self.config.train.seed).permutation(len(task.asked))[:count]
        scores = self.scores(queries, trained.ranked[queries, :shown])
        examples = []
        for i, query in enumerate(queries):
            found = task.split.corpus[trained.ranked[query, :shown]]
            names, places = pairs.texts("name", found), pairs.texts("place", found)
            answers = task.split.corpus[task.relevant.doc[task.relevant.query == query]]
            examples.append(
                Example(
                    query=task.queries[query],
                    answers=tuple(a or b for a, b in zip(pairs.texts("name", answers), pairs.texts("place", answers))),
                    hits=tuple(
                        Hit(name or place, place, float(score), bool(good))
                        for name, place, score, good in zip(names, places, scores[i], right[query])
                    ),
                    baseline_rank=int(other[query]) or None,
                    rank=int(rank[query]) or None,
                )
            )
        return examples

    def scores(self, queries: Rows, ranked: NDArray[np.int64]) -> NDArray[np.float32]:
        """Cosines of queries and what was ranked for them, [q, k]."""
        task = self.task
        a = self.vectors(self.queries, task.query_of[task.asked[queries]], "query")
        b = self.vectors(self.docs, task.doc_of[task.split.corpus[ranked.ravel()]]).reshape(*ranked.shape, -1)
        cosines: NDArray[np.float32] = np.einsum("qd,qkd->qk", a, b)
        return cosines


def sampler(
    source: Source, catalogue: Catalogue, rows: Rows, options: loop.Training
) -> Shuffled | NoDuplicates | Mixed:
    """Which of the training rows stand in which batch."""
    if isinstance(source, Mixture):
        if options.batch_sampler != "shuffled":
            raise ConfigError("train.batch_sampler: no_duplicates is for one source, and data is a mixture; drop it")
        origin = catalogue.pairs.table["source"].to_numpy()[rows]
        return source.sampler(origin, options.batch_size, options.seed)
    if options.batch_sampler == "no_duplicates":
        return NoDuplicates(catalogue.keys(rows), options.batch_size, options.seed)
    return Shuffled(len(rows), options.batch_size, options.seed)


def peak_memory_bytes() -> int:
    """The most memory this process has held, and with it the largest of its workers."""
    return 1024 * sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
