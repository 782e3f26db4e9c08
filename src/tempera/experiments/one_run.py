"""One training of a worker process: the only place of this room that knows how a run is made."""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.diagnose import diagnose
from ..engine.devices import start
from ..errors import ConfigError, TemperaError
from ..io.documents import JsonLines
from ..options.build import build
from ..options.yaml_options import Options
from ..parallel.digest import digest
from ..run.fit import fit
from ..run.judge import judge
from ..run.prepare import CACHE, Prepared, prepare
from ..run.publish import publish
from ..run.task import RunTask
from ..run.time_limit import limited
from ..towers.pair import Encoder
from .record import Record

LAST = 0.1  # share of the steps whose mean loss and gradient norm are recorded
_ROWS = 256  # embedded at once

Report = Callable[
    [float | None], bool
]  # is given the metric at an evaluation on the way; True ends the run


class Pruned(Exception):
    """Other runs were better at the same evaluation."""


@dataclass(frozen=True)
class ReadData:
    """Data that were read once, the rows of the fixed batch, a hash of it all, and one of what
    there is to read."""

    reference: Mapping[str, Any]
    task: RunTask
    batch: Tensor
    hash: str
    source: str


class Trainings:
    """Makes one run after the other, on data that are read again only when the options that they
    are read by change."""

    def __init__(self) -> None:
        self.data: ReadData | None = None

    def __call__(self, job: Mapping[str, Any], report: Report) -> Record:
        """Return the record of a run; an error in it is in the record.

        It is compared by the validation of the weights that it would save: those of its best look
        (`train.keep_best`), or of the last step where validation chooses nothing.

        Args:
            job: options, reference, record as in `PlannedRun`; folder of the run; cache for its
                data; vectors of guides; metric, and part of what is held out to measure it on; data
                and source, the hashes that they need to have, or empty; watched, to evaluate on the
                way in any case; publish, to leave a run folder if its value is above bar; threads
                of this process.
            report: is called at every evaluation on the way.
        """
        record, began = Record(**job["record"]), time.perf_counter()
        if job["threads"]:
            torch.set_num_threads(job["threads"])
        try:
            data = self.read(job)
            record = replace(record, data=data.hash, source=data.source)
            if job["data"] in ("", record.data) and job["source"] in ("", record.source):
                record = self._trained(job, record, report)
        except Pruned:
            record = replace(record, pruned=True)
        except TemperaError as error:
            record = replace(record, error=str(error))
        except Exception as error:  # out of memory, and whatever else a setting may provoke
            traceback.print_exc()
            record = replace(
                record, error=f"{type(error).__name__}: {' '.join(str(error).split())}"
            )
        return replace(record, seconds=round(time.perf_counter() - began, 3))

    def read(self, job: Mapping[str, Any]) -> ReadData:
        """Read, divide and tokenise the data of a run, unless the last run had the same."""
        if self.data is None or self.data.reference != job["reference"]:
            self.data = None
            cache = Path(job["cache"])
            shutil.rmtree(cache, ignore_errors=True)
            cache.mkdir(parents=True)
            config = build(Options(job["reference"]))
            with JsonLines(cache / "log.jsonl") as log:
                devices = start(config.train.mixed_precision, config.train.device)
                task = prepare(config, devices, cache, log, Path(job["vectors"])).task
            batch = next(iter(task.data.sampler(0, 1)))
            hashes = (
                f"{digest(each):016x}" for each in (task.data.content(), config.world.source(task))
            )
            self.data = ReadData(job["reference"], task, batch, *hashes)
        return self.data

    def _trained(self, job: Mapping[str, Any], record: Record, report: Report) -> Record:
        assert self.data is not None
        config, folder, metric = build(Options(job["options"])), Path(job["folder"]), job["metric"]
        devices = start(config.train.mixed_precision, config.train.device)
        config.train.check(devices)
        facts = self.data.task.facts
        choice = config.train.keep_best or config.train.patience is not None
        if not facts.has_looks:
            raise ConfigError(
                "nothing is held out to compare runs by: raise evaluation.validation or evaluation.queries above 0, and divide "
                "interactions by another data.split than none"
            )
        chooses = facts.chooses or config.evaluation.validation == 0
        if (
            chooses
            and not facts.chooses
            and config.train.keep_best
            and self.data.task.data.tower.guarded
        ):
            raise ConfigError(
                "evaluation.validation=0 leaves queries for kept documents untrained, since nothing shows that training helps: "
                "raise it above 0, or set train.keep_best=false"
            )
        listener = _watch(metric, lambda value: report(value) and chooses)
        with JsonLines(folder / "log.jsonl", listener) as log:
            prepared = limited(
                prepare(config, devices, folder, log, Path(job["vectors"]), shared=self.data.task)
            )
            before = judge(prepared) if job["publish"] else None
            fitted = fit(prepared, looks=job["watched"] or (facts.chooses and choice))
            verdict = prepared.task.held_out.judge(job["part"])
            value = verdict.ranking.metrics[metric]
            if before is not None and (job["bar"] is None or value > job["bar"]):
                once = replace(prepared, config=prepared.config.trained_with(refit="none"))
                publish(once, fitted, before, judge(prepared), once)
        shutil.rmtree(folder / CACHE, ignore_errors=True)
        return replace(
            record,
            value=value,
            chooses=chooses,
            metrics=verdict.ranking.metrics,
            per_query=verdict.ranking.per_query[metric].tolist(),
            temperature=config.objective.temperature.value,
            diagnosis=seen(prepared, self.data.batch),
            spread=verdict.spread.summary(),
            **ends(log.records),
        )


def _watch(metric: str, report: Report) -> Callable[[Mapping[str, Any]], None]:
    """Return a listener of a run's log that reports the evaluations between the first step and the
    last."""
    left = 0

    def watch(event: Mapping[str, Any]) -> None:
        nonlocal left
        if event["event"] == "step":
            left = event["steps"] - event["step"]
        looked = event["event"] == "evaluation" and event["step"] and left
        if looked and report(event["metrics"][metric]):
            raise Pruned
        if event["event"] == "evaluation left out":
            report(None)

    return watch


def ends(log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean loss and gradient norm of the last steps of a log, and its cautions."""
    steps = [event for event in log if event["event"] == "step"]
    last = steps[-max(1, round(LAST * len(steps))) :]
    norms = [event["grad_norm"] for event in last if event["grad_norm"] is not None]
    return {
        "loss": sum(event["loss"] for event in last) / len(last) if last else None,
        "grad_norm": sum(norms) / len(norms) if norms else None,
        "cautions": [event["text"] for event in log if event["event"] == "caution"],
    }


def seen(prepared: Prepared, batch: Tensor) -> dict[str, Any]:
    """Return what the objective of a finished run sees of some training rows, without dropout."""
    objective, data = prepared.config.base.cpu(), prepared.task.data
    embeddings = embedded(data.tower, data.batch(batch, 0))
    summary = diagnose(objective, objective.recall(embeddings)).summary()
    masked = summary.pop("masked")
    return {**summary, **{f"masked_{name}": share for name, share in masked.items()}}


@torch.no_grad()
def embedded(tower: Encoder, batch: Batch[Any]) -> Batch[Tensor]:
    """Return a batch of features as embeddings, on the CPU, in float32."""
    tower.eval()
    device = next(tower.parameters()).device
    embeddings = {}
    for role, side in batch.sides().items():
        starts = range(0, len(side), _ROWS)
        parts = [
            tower.of(role)(side.rows[at : at + _ROWS].to(device)).float().cpu() for at in starts
        ]
        embeddings[role] = torch.cat(parts)
    return batch.of(embeddings)
