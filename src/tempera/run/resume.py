"""The checkpoints of a run, in OUTPUT.checkpoints/ beside the run's folder.

The same command resumes from the latest checkpoint, and ends with the same bits as an uninterrupted
run. Results from before the first checkpoint lie beside the checkpoints as notes.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import xxhash
import yaml
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save
from torch import Tensor

from ..engine.checkpoint import State
from ..engine.training_options import OF_A_MACHINE
from ..errors import DataError, OutputError
from ..io.atomic import write_file
from ..io.console import logger
from ..io.documents import first_event, parsed, read_json, read_json_lines
from ..io.manifest import first_fault
from ..io.signals import hearing
from ..io.untrusted import refuse_unsafe
from ..options.removed import without_removed

EVERY = 600.0  # seconds from one checkpoint to the next, where no number of steps is given
AGAIN = "the same command again"  # resumes, whatever its options are
_POSITION, _LOG, _BEST = "run.json", "log.jsonl", "best.safetensors"
_NOTES = "notes.json"
_OWN = "step-?????????*"  # folders of checkpoints
Weights = dict[str, Tensor]


@dataclass
class Position:
    """Hold the position of a run, apart from its state."""

    data: str  # digest of what is trained on, and of the towers before their training
    training: float = 0.0  # seconds
    evaluating: float = 0.0  # seconds of them
    look: float = 0.0  # seconds of the latest evaluation
    looks_left_out: int = 0  # by the budget
    best_step: int = 0  # of the look with the best validation
    best_value: float | None = None  # of the main metric then; None before the first look
    looks_since: int = 0  # that have not been better
    spent: dict[str, dict[str, float]] = field(default_factory=dict)  # seconds of each phase


class Checkpoints:
    """Write and read a run's checkpoints, in folders step-000000120/ and so on; each is complete or
    absent.

    Args:
        folder: made with the first checkpoint.
        config: every option of the run, which is resumed only with the same options.
        keep: number of the latest checkpoints to keep.
        steps: number of steps between checkpoints; None is by time.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, Any], keep: int = 1, steps: int | None = None
    ) -> None:
        self.folder, self.config, self.keep, self.steps = folder, _lasting(config), keep, steps
        self.saved = time.monotonic()  # the latest, or the beginning
        self.notes: dict[str, Any] = {}  # by name, from before the first checkpoint

    @property
    def latest(self) -> Path | None:
        """Return the checkpoint to resume from; None if there is none."""
        return max(self.folder.glob("step-?????????"), default=None)

    def begin(self, overwrite: bool = False) -> None:
        """Check that the run can be resumed, or clear the folder for a new one.

        A run of this configuration is resumed in any case.

        Args:
            overwrite: forget damaged checkpoints, and checkpoints of another configuration.

        Raises:
            OutputError: the checkpoints are of another configuration.
            DataError: the latest checkpoint is damaged, or a link leads out of the folder.
        """
        latest = self.latest
        if latest is None:
            self._begin_with_notes()
            return
        refuse_unsafe(self.folder)
        try:
            self._refuse_other(latest)
        except (DataError, OutputError) as error:
            if not overwrite:
                raise
            logger.info(f"{error}; it is forgotten (--overwrite)")
            self.forget()
            return
        self.notes = self._read_notes()

    @property
    def unfinished(self) -> Path | None:
        """The folder of an interrupted run of this configuration; None if there is none."""
        latest = self.latest
        if latest is None:
            return self.folder if self._read_notes() else None
        try:
            self._refuse_other(latest)
        except (DataError, OutputError):
            return None
        return self.folder

    def _refuse_other(self, latest: Path) -> None:
        """Raise OutputError or DataError unless a checkpoint is whole, and of this
        configuration."""
        if (fault := first_fault(latest)) is not None:
            raise _damaged(latest, fault)
        difference = _difference(self._about(latest).get("config"), self.config)
        if difference:
            raise OutputError(
                f"{self.folder} holds an interrupted run of another configuration ({difference}); "
                "give another --output, or --overwrite to forget it"
            )

    def _begin_with_notes(self) -> None:
        """Keep the notes of this configuration, and remove all else: no checkpoint is complete."""
        self.notes = self._read_notes()
        if self.notes:
            logger.info(f"going on with what {self.folder} has; remove it to begin anew")
        elif (self.folder / _NOTES).is_file():
            logger.info(f"{self.folder} has notes of another configuration, which are forgotten")
        self._remove(notes=not self.notes)

    def note(self, name: str, value: Any) -> None:
        """Keep a result from before the first checkpoint for a process that resumes the run; one
        process calls.

        Raises:
            OutputError: the folder cannot be written.
        """
        self.notes[name] = value
        self._write_notes()

    def _write_notes(self) -> None:
        written = json.dumps({"config": self.config, "notes": self.notes}, sort_keys=True)
        document = {"xxh3": _checksum(written.encode()), "written": written}
        write_file(self.folder / _NOTES, json.dumps(document).encode())

    def _read_notes(self) -> dict[str, Any]:
        """Return the notes of this configuration; none if the notes are damaged or of another
        configuration, and the results are then found again."""
        if not self.folder.is_dir():
            return {}
        try:
            document = parsed((self.folder / _NOTES).read_text(encoding="utf-8"))
            if document["xxh3"] != _checksum(document["written"].encode()):
                raise ValueError("its checksum differs")
            content = parsed(document["written"])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            logger.warning(f"{self.folder / _NOTES} is damaged and not used: {error}")
            return {}
        notes: dict[str, Any] = content["notes"]
        if _difference(content["config"], self.config):
            return {}
        return notes

    def record(self, event: str) -> dict[str, Any] | None:
        """Return the first record of an event in the log of the run to resume; None if there is
        none.

        Raises:
            DataError: the log is damaged.
        """
        if (folder := self.latest) is None:
            return None
        try:
            return first_event(read_json_lines(folder / _LOG), event)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise _damaged(folder, error) from None

    def due(self, step: int) -> bool:
        """Return True if a checkpoint is due after `step` steps."""
        return (
            time.monotonic() - self.saved >= EVERY if self.steps is None else step % self.steps == 0
        )

    def save(
        self,
        state: State,
        position: Position,
        log: Sequence[Mapping[str, Any]],
        best: Weights | None = None,
    ) -> None:
        """Write a checkpoint with the log so far, then remove older checkpoints; all processes
        call.

        Raises:
            OutputError: the folder cannot be written, or the disk is full; earlier checkpoints
                stay.
        """
        chosen = None if best is None else save(best)
        about = {
            "config": self.config,
            **asdict(position),
            "best": None if chosen is None else _checksum(chosen),
        }
        lines = "".join(json.dumps(record) + "\n" for record in log)
        try:
            state.save(
                self.folder / f"step-{state.step:09d}",
                {
                    _POSITION: json.dumps(about, indent=2).encode(),
                    _LOG: lines.encode(),
                    **({} if chosen is None else {_BEST: chosen}),
                },
            )
            for old in (
                sorted(self.folder.glob("step-?????????"))[: -self.keep] if state.group.main else []
            ):
                shutil.rmtree(old, ignore_errors=True)
        except OutputError as error:
            left = "from the beginning" if self.latest is None else f"from {self.latest}"
            raise OutputError(f"{error}; run {AGAIN} to resume {left}") from None
        self.saved = time.monotonic()

    def load(
        self, state: State, data: str
    ) -> tuple[Position, list[dict[str, Any]], Weights | None]:
        """Load the latest checkpoint into `state`; return the position, the log and the best
        weights of the run, or the beginning without a checkpoint.

        Raises:
            DataError: the checkpoint is damaged, or of other data.
        """
        if (folder := self.latest) is None:
            return Position(data), [], None
        about = self._about(folder)
        try:
            position = Position(**{name: about[name] for name in Position.__dataclass_fields__})
            log = read_json_lines(folder / _LOG)
            chosen = None if about["best"] is None else (folder / _BEST).read_bytes()
            if chosen is not None and _checksum(chosen) != about["best"]:
                raise ValueError(f"{_BEST} is not as it was written (its checksum differs)")
            best = None if chosen is None else tensors_of(chosen)
        except (OSError, ValueError, LookupError, SafetensorError) as error:
            raise _damaged(folder, error) from None
        if position.data != data:
            raise DataError(
                f"{folder} belongs to a run on other data, although the options are the same (pairs in "
                f"shards go on with as many processes as before); remove {self.folder} to begin anew"
            )
        state.load(folder)
        return position, log, best

    def forget(self) -> None:
        """Remove all checkpoints, and the folder if nothing else lies there."""
        self.notes = {}
        self._remove()

    def _remove(self, notes: bool = True) -> None:
        with suppress(FileNotFoundError):  # the other processes of a run remove it, too
            for path in list(self.folder.glob(_OWN)):
                shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            if notes:
                (self.folder / _NOTES).unlink(missing_ok=True)
            self.folder.rmdir()

    def _about(self, folder: Path) -> dict[str, Any]:
        try:
            about: dict[str, Any] = dict(read_json(folder / _POSITION))
        except (OSError, ValueError, TypeError) as error:
            raise _damaged(folder, error) from None
        return about


def _checksum(content: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(content)


def _damaged(folder: Path, error: Exception | str) -> DataError:
    return DataError(
        f"{folder} is a damaged checkpoint: {error}; remove it, or start again with --overwrite"
    )


def _lasting(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as JSON, without the options that may change when a run is resumed."""
    known: dict[str, Any] = parsed(json.dumps(config, default=str))
    reporting = ("save_steps", "save_total_limit", "skip_non_finite", "report_to", "ddp_timeout")
    # Fitted to what memory there is: equal up to rounding, and to what dropout draws.
    for name in (*reporting, *OF_A_MACHINE, "fsdp", "divide_tables"):
        known.get("train", {}).pop(name, None)
    known.pop("card", None)
    return known


def _difference(recorded: Any, now: Mapping[str, Any]) -> str:
    """Return the first option in which a recorded configuration differs; empty if none does.

    A removed option makes no difference at its old default.
    """
    if not isinstance(recorded, dict):
        return _first_difference(recorded, now, "")
    kept, others = without_removed(recorded)
    for name, value in others.items():
        return f"{name} was {_yaml(value)}, an option that this version no longer has"
    return _first_difference(kept, now, "")


def _first_difference(before: Any, now: Any, path: str) -> str:
    """Return the first option in which two values differ, by its dotted name; empty if none
    does."""
    if before == now:
        return ""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in [*now, *before]:
            name = f"{path}.{key}" if path else key
            difference = _first_difference(before.get(key), now.get(key), name)
            if difference:
                return difference
    return f"{path} was {_yaml(before)}, now {_yaml(now)}"


def _yaml(value: Any) -> str:
    """Return a value as YAML on a line."""
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


@dataclass
class Interruption:
    """Hold the signal to this process to stop, and the signal by which all processes stop; 0 is no
    signal."""

    number: int = 0
    agreed: int = 0


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Note Ctrl-C, SIGTERM and SIGHUP, and handle them as before when the block has ended; a second
    signal is handled at once.

    Signals reach the main thread only; in other threads nothing is noted.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before[number])
        if interruption.number:
            signal.raise_signal(number)
        interruption.number = number
        logger.info(
            f"{signal.Signals(number).name}: stopping after this step; repeat the signal to stop now"
        )

    with hearing(note) as before:
        yield interruption
    if last := interruption.agreed or interruption.number:
        signal.raise_signal(last)
