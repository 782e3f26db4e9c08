"""One run of a sweep: a whole training, judged, and what its objective sees of a fixed batch afterwards."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..build import Config
from ..core.batch import Batch
from ..core.diagnose import diagnose
from ..engine.devices import start
from ..errors import OutputError, TemperaError
from ..io.atomic import write_file
from ..io.console import silenced
from ..io.documents import JsonLines, parsed
from ..run.fit import fit
from ..run.prepare import Prepared
from ..run.prepare import prepare as prepare_run
from ..run.task import RunTask
from ..towers.pair import Encoder

LAST = 0.1  # of the steps: the share whose mean loss and gradient norm are told
_ROWS = 256  # embedded at once


@dataclass(frozen=True)
class Outcome:
    """What one run came to; of one that failed, `error` says why and the rest is empty."""

    over: Mapping[str, Any]  # the values of the point
    start: float | None  # what a learned or scheduled temperature started from; None is a point of the grid
    seed: int
    data: str = ""  # which rows of which data: equal texts are the same
    final: float | None = None  # what a schedule ends at; None is no schedule
    error: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    per_query: Sequence[float] = ()  # of the sweep's metric
    temperature: float = math.nan  # at the end
    diagnosis: Mapping[str, float | None] = field(default_factory=dict)  # `Diagnosis.summary` of the fixed batch
    spread: Mapping[str, float] = field(default_factory=dict)  # cosines of held-out pairs and random pairs
    loss: float | None = None  # mean of the last steps
    grad_norm: float | None = None
    seconds: float = 0.0
    cautions: Sequence[str] = ()

    @property
    def key(self) -> str:
        """What tells runs of a sweep apart."""
        return key_of(self.over, self.start, self.final, self.seed)

    def json(self) -> dict[str, Any]:
        """As a JSON object: nan is null."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Outcome:
        """What `json` has written."""
        at = record["temperature"]
        return cls(**{**record, "temperature": math.nan if at is None else at})


def key_of(over: Mapping[str, Any], start: float | None, final: float | None, seed: int) -> str:
    """One text for one run.

    >>> key_of({"objective.temperature": 0.1}, None, None, 3)
    '[{"objective.temperature": 0.1}, null, null, 3]'
    """
    return json.dumps([over, start, final, seed], sort_keys=True, default=str)


def moving(start: float | None, final: float | None) -> str:
    """What a point beside the grid is called.

    >>> moving(0.1, None), moving(0.2, 0.02)
    ('learned from 0.1', 'scheduled from 0.2 to 0.02')
    """
    return f"learned from {start:g}" if final is None else f"scheduled from {start:g} to {final:g}"


def read_outcomes(path: Path) -> list[Outcome]:
    """The runs of an earlier sweep; none where there is no file.

    Raises:
        OutputError: a file that no sweep has written.
    """
    if not path.is_file():
        return []
    outcomes = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            outcomes.append(Outcome.of(parsed(line)))
        except (ValueError, TypeError, KeyError):
            raise OutputError(f"{path}:{number} is no run of a sweep; give another folder, or --overwrite") from None
    return outcomes


def write_outcomes(path: Path, outcomes: Iterable[Outcome]) -> None:
    """One JSON object a line; a kill leaves the old file or the new one."""
    lines = (json.dumps(outcome.json(), allow_nan=False, default=str) + "\n" for outcome in outcomes)
    write_file(path, "".join(lines).encode())


def prepare(config: Config, folder: Path, vectors: Path) -> RunTask:
    """Read, divide and tokenise the data of a configuration."""
    folder.mkdir(parents=True)
    with JsonLines(folder / "log.jsonl") as log:
        return prepare_run(config, start(config.train.mixed_precision), folder, log, vectors).task


def attempt(config: Config, task: RunTask, rows: Tensor, metric: str, folder: Path, empty: Outcome) -> Outcome:
    """One run; what goes wrong in it is told by the outcome.

    Args:
        config: of this run.
        task: data that have been read.
        rows: the fixed batch.
        folder: for what the run needs meanwhile; removed afterwards.
        empty: what is known of it beforehand.
    """
    try:
        with silenced():  # what each of many runs has to say is in its outcome
            return _outcome(config, task, rows, metric, folder, empty)
    except TemperaError as error:
        return replace(empty, error=str(error))
    except Exception as error:  # out of memory, and whatever else a point of a grid may provoke
        return replace(empty, error=f"{type(error).__name__}: {' '.join(str(error).split())}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _outcome(config: Config, task: RunTask, rows: Tensor, metric: str, folder: Path, empty: Outcome) -> Outcome:
    began = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    devices = start(config.train.mixed_precision)
    config.train.check(devices)
    quiet = replace(config, train=replace(config.train, evaluations=0))
    with JsonLines(folder / "log.jsonl") as log:
        prepared = prepare_run(quiet, devices, folder, log, shared=task)
        fit(prepared, looks=False)
    verdict = prepared.task.held_out.judge("validation")
    steps = [record for record in log.records if record["event"] == "step"]
    last = steps[-max(1, round(LAST * len(steps))) :]
    return replace(
        empty,
        metrics=verdict.ranking.metrics,
        per_query=verdict.ranking.per_query[metric].tolist(),
        temperature=config.objective.temperature.value,
        diagnosis=seen(prepared, rows),
        spread=verdict.spread.summary(),
        loss=_mean([record["loss"] for record in last]),
        grad_norm=_mean([record["grad_norm"] for record in last if record["grad_norm"] is not None]),
        seconds=round(time.perf_counter() - began, 3),
        cautions=[record["text"] for record in log.records if record["event"] == "caution"],
    )


def seen(prepared: Prepared, rows: Tensor) -> dict[str, Any]:
    """What the objective of a finished run sees of some of its rows, the towers as they are used: without dropout."""
    objective = prepared.config.base.cpu()
    batch = embedded(prepared.task.data.tower, prepared.task.data.batch(rows, 0))
    found = diagnose(objective, objective.recall(batch)).summary()
    masked = found.pop("masked")
    return {**found, **{f"masked_{name}": share for name, share in masked.items()}}


@torch.no_grad()
def embedded(tower: Encoder, batch: Batch[Any]) -> Batch[Tensor]:
    """A batch of features as embeddings, on the CPU, in float32."""
    tower.eval()
    device = next(tower.parameters()).device
    found = {}
    for role, side in batch.sides().items():
        starts = range(0, len(side), _ROWS)
        parts = [tower.of(role)(side.rows[at : at + _ROWS].to(device)).float().cpu() for at in starts]
        found[role] = torch.cat(parts)
    return batch.of(found)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _plain(value: Any) -> Any:
    """A value for JSON."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
