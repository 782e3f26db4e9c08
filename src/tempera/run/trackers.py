"""Trackers: the numbers of log.jsonl, sent to TensorBoard, Weights & Biases, MLflow or trackio
while a run writes its log.

The trackers are Accelerate's. Nothing is sent unless `train.report_to` names a tracker, and only
numbers and the options of the run are sent.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
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
# the run's name, its id in MLflow, and of each tracker the step of the latest record of each kind
_SENT = "sent.json"
_KINDS = {"step": "train", "evaluation": "eval"}

Tell = Callable[[Mapping[str, Any]], None]


@contextmanager
def tracked(
    names: Sequence[str], output: Path, config: Mapping[str, Any], goes_on: bool
) -> Iterator[Tell]:
    """Start trackers for the block; yield a function that sends a record of the log.

    A record without a step is not sent, and neither is a record that a tracker received before an
    interruption. A tracker that fails on the way is left out from then on, with a message; the run
    and log.jsonl go on. MLflow and Weights & Biases record a block that has failed.

    Args:
        names: of Accelerate's trackers; none sends nothing.
        output: the run folder; files of trackers and their progress stand in `output`.trackers.
        config: every option of the run, sent at the start.
        goes_on: True if an interrupted run is resumed, which is the same run for the trackers.

    Raises:
        MissingLibrary: a tracker is not installed.
        TemperaError: a tracker does not start.
        OutputError: the folder cannot be written.
    """
    names = tuple(dict.fromkeys(names))
    trackers: dict[str, GeneralTracker] = {}
    folder = output.with_name(f"{output.name}.trackers")
    before = _read(folder / _SENT) if goes_on and names else {}
    # Runs that begin in one second may have folders of one name.
    sent = before or {
        "run": f"{output.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        "to": {},
    }

    def note() -> None:
        write_file(folder / _SENT, json.dumps(sent).encode())

    def tell(record: Mapping[str, Any]) -> None:
        event, step = record["event"], record.get("step")
        due = (
            []
            if step is None
            else [name for name in trackers if step > sent["to"][name].get(event, -1)]
        )
        for name in due:
            try:
                trackers[name].log(numbers(record), step=step)
            except Exception as error:
                del trackers[name]
                logger.warning(
                    f"train.report_to: {name} failed and is stopped: {_line(error)}; log.jsonl goes on"
                )
            else:
                sent["to"][name][event] = step
        if due:
            note()

    for name in names:
        require(name, f"train.report_to={name}")
    failure: BaseException | None = None
    try:
        for name in names:
            note()
            try:
                trackers[name] = started(name, folder, sent)
                if name not in sent["to"]:
                    trackers[name].store_init_configuration(flat(config))
            except Exception as error:  # of its own kinds, from no account to no network
                advice = (
                    "; a run that goes on may leave it out of train.report_to" if before else ""
                )
                raise TemperaError(
                    f"train.report_to: {name} cannot start: {_line(error)}{advice}"
                ) from None
            sent["to"].setdefault(name, {})
            note()
        yield tell
    except BaseException as error:
        failure = error
        raise
    finally:
        for name, tracker in trackers.items():
            try:
                finish(name, tracker, failure)
            except Exception as error:
                logger.warning(f"train.report_to: {name} did not finish properly: {_line(error)}")


def started(name: str, folder: Path, sent: dict[str, Any]) -> GeneralTracker:
    """Start a tracker of Accelerate, on the run that `sent` names; MLflow adds an id of the run."""
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # trackers ask it which process this is
    run, project = sent["run"], os.environ.get("WANDB_PROJECT", PROJECT)
    options: dict[str, dict[str, Any]] = {
        "tensorboard": {"run_name": run, "logging_dir": folder},
        "wandb": {
            "run_name": project,
            "id": run,
            "name": run,
            "resume": "allow",
            "dir": str(folder),
            "settings": {"console": "off"},  # what a run prints may quote its data
        },
        "mlflow": {"experiment_name": PROJECT, "run_id": sent.get("mlflow"), "run_name": run},
        "trackio": {"run_name": PROJECT, "name": run, "resume": "allow"},
    }
    tracker: GeneralTracker = LOGGER_TYPE_TO_CLASS[name](**options[name])
    tracker.start()
    if name == "mlflow":
        sent["mlflow"] = str(tracker.tracker.info.run_id)
    return tracker


def finish(name: str, tracker: GeneralTracker, failure: BaseException | None) -> None:
    """End the run of a tracker, and mark a stopped or failed run where the tracker can."""
    if failure is not None and name == "mlflow":
        import_module("mlflow").end_run("FAILED" if isinstance(failure, Exception) else "KILLED")
    elif failure is not None and name == "wandb":
        tracker.tracker.finish(exit_code=1)
    else:
        tracker.finish()


def _read(path: Path) -> dict[str, Any]:
    """Read the record of sent numbers; an empty record without a readable file, as for a new
    run."""
    with suppress(OSError, ValueError):
        sent = read_json(path)
        return sent if isinstance(sent, dict) and {"run", "to"} <= sent.keys() else {}
    return {}


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record, under names that every tracker accepts.

    >>> numbers({"event": "evaluation", "step": 5, "metrics": {"ndcg@10": 0.5, "hit@1, seen included": 0.25}})
    {'eval/ndcg_10': 0.5, 'eval/hit_1_seen_included': 0.25}
    >>> numbers({"event": "step", "step": 5, "steps": 9, "loss": 2.5, "grad_norm": None})
    {'train/loss': 2.5}
    """
    kind = _KINDS.get(record["event"], record["event"])
    rest = {
        name: value
        for name, value in record.items()
        if name not in ("event", "step", "steps", "metrics")
    }
    named = {**rest, **record.get("metrics", {})}
    values = ((name, value) for name, value in named.items() if isinstance(value, int | float))
    return {f"{kind}/{_accepted(name)}": value for name, value in values}


def _accepted(name: str) -> str:
    """Return a name without the signs that MLflow refuses."""
    return re.sub(r"[^\w./-]+", "_", name)


def flat(options: Mapping[str, Any], path: str = "") -> dict[str, str | float | bool]:
    """Return nested options by dotted names that every tracker accepts; all values but numbers
    become texts.

    >>> flat({"train": {"seed": 0, "report_to": ["wandb"]}, "data": {"targets": {"buy, now": 1.0}}})
    {'train.seed': 0, 'train.report_to': "['wandb']", 'data.targets.buy_now': 1.0}
    """
    values: dict[str, str | float | bool] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{path}{name}.")
        else:
            values[_accepted(f"{path}{name}")] = (
                value if isinstance(value, str | int | float) else str(value)
            )
    return values
