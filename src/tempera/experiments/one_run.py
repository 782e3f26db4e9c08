"""One training of a worker process: the only module of the room to know how a run is made."""

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

LAST = 0.1  # share of the steps, the last ones, whose mean loss and gradient norm are recorded
_ROWS = 256  # rows that are embedded at once

# Called with the metric at an evaluation on the way, None for an evaluation that the budget left
# out; True ends the run.
Report = Callable[[float | None], bool]


class Pruned(Exception):
    """Other runs were better at the same evaluation."""


@dataclass(frozen=True)
class ReadData:
    """Data read once, for all runs with equal options of reading.

    Args:
        reference: the options of reading, see `PlannedRun`.
        task: the prepared task.
        batch: rows of the fixed batch.
        hash: hash of the data read by a run.
        source: hash of all data at the origin.
    """

    reference: Mapping[str, Any]
    task: RunTask
    batch: Tensor
    hash: str
    source: str


class Trainings:
    """Makes one run after the other; data are read again only when the options of reading change."""

    def __init__(self) -> None:
        self.data: ReadData | None = None

    def __call__(self, job: Mapping[str, Any], report: Report) -> Record:
        """Make a run, and return the record of the run; the record of a failed run holds the error.

        Runs are compared by the validation of the weights to be saved: the weights of the best look
        (`train.keep_best`), or of the last step where validation chooses nothing.

        Args:
            job: options, reference and record as in `PlannedRun`; folder of the run; cache, a
                folder for the run's data; vectors, a folder for embeddings of guides; metric, and
                the part of the held-out queries to measure the metric on; data and source, the
                expected hashes or empty texts; watched, to evaluate on the way in any case;
                publish, to leave a run folder if the run's value is above bar; threads of this
                process.
            report: called at every evaluation on the way.
        """
        record = Record(**job["record"])
        began = time.perf_counter()
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
            message = " ".join(str(error).split())
            record = replace(record, error=f"{type(error).__name__}: {message}")
        return replace(record, seconds=round(time.perf_counter() - began, 3))

    def read(self, job: Mapping[str, Any]) -> ReadData:
        """Read, divide and tokenise the data of a run, unless the last run had the same."""
        reference = job["reference"]
        if self.data is not None and self.data.reference == reference:
            return self.data
        self.data = None  # frees the memory of the earlier data
        cache = Path(job["cache"])
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        config = build(Options(reference))
        with JsonLines(cache / "log.jsonl") as log:
            devices = start(config.train.mixed_precision, config.train.device)
            task = prepare(config, devices, cache, log, Path(job["vectors"])).task
        self.data = ReadData(
            reference=reference,
            task=task,
            batch=next(iter(task.data.sampler(0, 1))),
            hash=f"{digest(task.data.content()):016x}",
            source=f"{digest(config.world.origin(task)):016x}",
        )
        return self.data

    def _trained(self, job: Mapping[str, Any], record: Record, report: Report) -> Record:
        """Train on the data, and return the record with the results."""
        assert self.data is not None
        config = build(Options(job["options"]))
        folder = Path(job["folder"])
        metric = job["metric"]
        devices = start(config.train.mixed_precision, config.train.device)
        config.train.check(devices)
        facts = self.data.task.facts
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
        # Weights are chosen on the way by the validation, if it has enough queries.
        follows_validation = config.train.keep_best or config.train.patience is not None
        looks = job["watched"] or (facts.chooses and follows_validation)
        # Every evaluation is reported; a validation that chooses nothing ends no run.
        listener = _watch(metric, lambda value: report(value) and chooses)
        with JsonLines(folder / "log.jsonl", listener) as log:
            prepared = limited(
                prepare(config, devices, folder, log, Path(job["vectors"]), shared=self.data.task)
            )
            before = judge(prepared) if job["publish"] else None
            fitted = fit(prepared, looks=looks)
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
            diagnosis=diagnosis_of(prepared, self.data.batch),
            spread=verdict.spread.summary(),
            **summary_of(log.records),
        )


def _watch(metric: str, report: Report) -> Callable[[Mapping[str, Any]], None]:
    """Return a listener of a run's log, to report the evaluations between the first step and the
    last step.

    The listener raises Pruned if the report says so.
    """
    left = 0  # steps until the end of training

    def watch(event: Mapping[str, Any]) -> None:
        nonlocal left
        kind = event["event"]
        if kind == "step":
            left = event["steps"] - event["step"]
        elif kind == "evaluation" and event["step"] and left:
            if report(event["metrics"][metric]):
                raise Pruned
        elif kind == "evaluation left out":
            report(None)

    return watch


def summary_of(log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return fields of a record from a log: loss and grad_norm of the last steps, and cautions."""
    steps = [event for event in log if event["event"] == "step"]
    last = steps[-max(1, round(LAST * len(steps))) :]
    losses = [event["loss"] for event in last]
    norms = [event["grad_norm"] for event in last if event["grad_norm"] is not None]
    return {
        "loss": sum(losses) / len(losses) if losses else None,
        "grad_norm": sum(norms) / len(norms) if norms else None,
        "cautions": [event["text"] for event in log if event["event"] == "caution"],
    }


def diagnosis_of(prepared: Prepared, batch: Tensor) -> dict[str, Any]:
    """Return the diagnosis of a finished run's objective on some training rows, without dropout."""
    objective = prepared.config.base.cpu()
    data = prepared.task.data
    embeddings = embedded(data.tower, data.batches(batch, 0)[0])
    summary = diagnose(objective, objective.recall(embeddings)).summary()
    masked = summary.pop("masked")
    for name, share in masked.items():
        summary[f"masked_{name}"] = share
    return summary


@torch.no_grad()
def embedded(tower: Encoder, batch: Batch[Any]) -> Batch[Tensor]:
    """Return a batch of features as embeddings, on the CPU, in float32."""
    tower.eval()
    device = next(tower.parameters()).device
    embeddings = {}
    for role, side in batch.sides().items():
        tower_of_role = tower.of(role)
        parts = []
        for begin in range(0, len(side), _ROWS):
            rows = side.rows[begin : begin + _ROWS].to(device)
            parts.append(tower_of_role(rows).float().cpu())
        embeddings[role] = torch.cat(parts)
    return batch.of(embeddings)
