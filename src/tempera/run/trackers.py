"""Trackers: the numbers of log.jsonl, sent to TensorBoard, Weights & Biases, MLflow or trackio as they are written.

Each is one of Accelerate's trackers. Nothing is sent unless `train.report_to` asks, and nothing else than numbers and the
options of the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TemperaError
from ..io.atomic import write_file
from ..io.console import logger
from ..io.documents import read_json
from ..io.require import require

if TYPE_CHECKING:  # importing it takes 2 s
    from accelerate.tracking import GeneralTracker

PROJECT = "tempera"  # unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME names another
_DELIVERY = "told.json"
_KINDS = {"step": "train", "evaluation": "eval"}


@dataclass
class Delivery:
    """Hold what trackers have received of a run; a resumed run sends the rest."""

    run: str  # its name there, with the time of its start
    ids: dict[str, str] = field(default_factory=dict)  # that trackers have given it
    last: dict[str, int] = field(default_factory=dict)  # step of the latest record of each kind


Tell = Callable[[Mapping[str, Any]], None]


def _tensorboard(folder: Path, delivery: Delivery) -> GeneralTracker:
    from accelerate.tracking import TensorBoardTracker

    return _started(TensorBoardTracker(delivery.run, folder))


def _wandb(folder: Path, delivery: Delivery) -> GeneralTracker:
    from accelerate.tracking import WandBTracker

    project = os.environ.get("WANDB_PROJECT", PROJECT)
    return _started(WandBTracker(project, id=delivery.run, name=delivery.run, resume="allow", dir=str(folder)))


def _mlflow(folder: Path, delivery: Delivery) -> GeneralTracker:
    from accelerate.tracking import MLflowTracker

    tracker = _started(MLflowTracker(PROJECT, run_id=delivery.ids.get("mlflow"), run_name=delivery.run))
    delivery.ids["mlflow"] = str(tracker.tracker.info.run_id)
    return tracker


def _trackio(folder: Path, delivery: Delivery) -> GeneralTracker:
    from accelerate.tracking import TrackioTracker

    return _started(TrackioTracker(PROJECT, name=delivery.run, resume="allow"))


def _started(tracker: GeneralTracker) -> GeneralTracker:
    tracker.start()
    return tracker


TRACKERS: dict[str, Callable[[Path, Delivery], GeneralTracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
}


@contextmanager
def tracked(names: Sequence[str], output: Path, config: Mapping[str, Any], goes_on: bool) -> Iterator[Tell]:
    """Start trackers for the block; yield a function that sends them a record of the log.

    A record without a step, and one that they received before the run was interrupted, is not passed on. A tracker that
    fails on the way is left out from then on, with a message; the run and its log.jsonl go on.

    Args:
        names: of `TRACKERS`; none sends nothing.
        output: the run folder; files of trackers, and the records they have received, are beside it in `output`.trackers.
        config: every option of the run, which they get at its start.
        goes_on: True if this run was interrupted, and is to be continued by them.

    Raises:
        MissingLibrary: a tracker that is not installed.
        TemperaError: one that does not start.
        OutputError: a folder that cannot be written.
    """
    if not names:
        yield lambda record: None
        return
    for name in names:
        require(name, f"train.report_to={name}")
    folder = output.with_name(f"{output.name}.trackers")
    trackers = _Trackers(folder, _read(folder / _DELIVERY) if goes_on else None, output.name)
    try:
        trackers.start(names, config)
        yield trackers
    finally:
        trackers.finish()


class _Trackers:
    """Run the trackers of one run."""

    def __init__(self, folder: Path, delivery: Delivery | None, name: str) -> None:
        self.folder, self.new = folder, delivery is None
        self.delivery = delivery or Delivery(f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
        self.running: dict[str, GeneralTracker] = {}

    def start(self, names: Sequence[str], config: Mapping[str, Any]) -> None:
        """Start each, with the options if the run is new to it."""
        from accelerate import PartialState

        PartialState()  # its trackers ask which process this is
        self.write()
        for name in names:
            try:
                self.running[name] = TRACKERS[name](self.folder, self.delivery)
                if self.new:
                    self.running[name].store_init_configuration(flat(config))
            except Exception as error:  # of its own kinds, from no account to no network
                raise TemperaError(f"train.report_to: {name} cannot start: {_line(error)}") from None
        self.write()

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Send a record to all trackers, unless it has no step or they have received it."""
        event, step = record["event"], record.get("step")
        if step is None or step <= self.delivery.last.get(event, -1):
            return
        values = numbers(record)
        for name, tracker in tuple(self.running.items()):
            try:
                tracker.log(values, step=step)
            except Exception as error:
                del self.running[name]
                logger.warning(f"train.report_to: {name} failed and is stopped: {_line(error)}; log.jsonl goes on")
        self.delivery.last[event] = step
        self.write()

    def finish(self) -> None:
        """Finish each tracker."""
        for name, tracker in self.running.items():
            try:
                tracker.finish()
            except Exception as error:
                logger.warning(f"train.report_to: {name} did not finish properly: {_line(error)}")

    def write(self) -> None:
        """Write the records that trackers have received."""
        write_file(self.folder / _DELIVERY, json.dumps(asdict(self.delivery)).encode())


def _read(path: Path) -> Delivery | None:
    """Read what trackers have received; None if no readable file says so, and the run is new to them."""
    with suppress(OSError, ValueError, TypeError):
        return Delivery(**read_json(path))
    return None


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record, under names that every tracker accepts.

    >>> numbers({"event": "evaluation", "step": 5, "metrics": {"ndcg@10": 0.5}})
    {'eval/ndcg_10': 0.5}
    >>> numbers({"event": "step", "step": 5, "steps": 9, "loss": 2.5, "grad_norm": None})
    {'train/loss': 2.5}
    """
    kind = _KINDS.get(record["event"], record["event"])
    rest = {name: value for name, value in record.items() if name not in ("event", "step", "steps", "metrics")}
    named = {**rest, **record.get("metrics", {})}
    numeric = {name: value for name, value in named.items() if isinstance(value, int | float)}
    return {f"{kind}/{name.replace('@', '_')}": value for name, value in numeric.items()}


def flat(options: Mapping[str, Any], path: str = "") -> dict[str, str | float | bool]:
    """Return nested options by dotted names, with values as text that are neither numbers nor texts.

    >>> flat({"train": {"seed": 0, "report_to": ["wandb"]}})
    {'train.seed': 0, 'train.report_to': "['wandb']"}
    """
    flattened: dict[str, str | float | bool] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            flattened |= flat(value, f"{path}{name}.")
        else:
            flattened[f"{path}{name}"] = value if isinstance(value, str | int | float) else str(value)
    return flattened
