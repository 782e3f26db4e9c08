"""The record of a run: the same for a sweep and a tuning."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import OutputError
from ..io.atomic import write_file
from ..io.documents import read_json_lines


@dataclass(frozen=True)
class Record:
    """One run: setting and results. A failed run has an `error` and no results.

    Args:
        params: the options that differ between runs, with the values of the run.
        seed: seed of the weights and of the order of the training rows.
        start: first value of a temperature learned or scheduled beside the grid of a sweep; else
            None.
        final: last value of a schedule; None is no schedule.
        number: number of a trial in the study.
        worker: machine and folder of the worker behind the run.
        reading: hash of the options for reading data.
        data: hash of the data; equal texts are the same data.
        origin: hash of the options for the origin of the data.
        source: hash of all data at the origin, also of data not read by the run.
        error: message of a failed run.
        pruned: True if the run was stopped on the way, because other trials were better.
        value: the metric to compare runs by; of a pruned run, at the last evaluation.
        chooses: False if validation has fewer than 50 queries or events, too few to choose by.
        on_the_way: the compared metric at each evaluation on the way; None for an evaluation left
            out for lack of budget.
        metrics: all metrics, on the queries to compare runs by.
        per_query: the compared metric of each query.
        temperature: temperature at the end of training.
        diagnosis: figures of the objective on the fixed batch, see `tempera.diagnose`.
        spread: cosines of held-out pairs and of random pairs.
        loss: mean of the last tenth of the steps.
        grad_norm: mean of the last tenth of the steps, before clipping.
        seconds: wall-clock time.
        cautions: the run's warnings.
    """

    params: Mapping[str, Any]
    seed: int = 0
    start: float | None = None
    final: float | None = None
    number: int = 0
    worker: str = ""
    reading: str = ""
    data: str = ""
    origin: str = ""
    source: str = ""
    error: str | None = None
    pruned: bool = False
    value: float | None = None
    chooses: bool = True
    on_the_way: Sequence[float | None] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    per_query: Sequence[float] = ()
    temperature: float | None = None
    diagnosis: Mapping[str, float | None] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    loss: float | None = None
    grad_norm: float | None = None
    seconds: float | None = None
    cautions: Sequence[str] = ()

    @property
    def state(self) -> str:
        """The state of the run: finished, pruned or failed."""
        if self.error is not None:
            return "failed"
        return "pruned" if self.pruned else "finished"

    @property
    def done(self) -> bool:
        """Return True if the run is finished, neither pruned nor failed."""
        return self.state == "finished"

    @property
    def point(self) -> str:
        """The setting without the seed as JSON: runs of one point of a sweep have equal texts."""
        return json.dumps([self.params, self.start, self.final], sort_keys=True, default=str)

    @property
    def key(self) -> str:
        """The setting with the seed: each run of a sweep has a text of its own.

        >>> Record({"objective.temperature": 0.1}, seed=3).key
        '[{"objective.temperature": 0.1}, null, null] 3'
        """
        return f"{self.point} {self.seed}"

    @property
    def name(self) -> str:
        """The setting as a text for people.

        >>> Record({}, seed=3, start=0.2, final=0.02).name
        'scheduled from 0.2 to 0.02, seed 3'
        """
        params = ", ".join(f"{field}={value}" for field, value in self.params.items())
        return f"{params or name_beside_grid(self.start, self.final)}, seed {self.seed}"

    def json(self) -> str:
        """Return one line of JSON; a number that is not finite is null."""
        return json.dumps(finite(asdict(self)), allow_nan=False, default=str)


def name_beside_grid(start: float | None, final: float | None) -> str:
    """Return the name of a point beside the grid.

    >>> name_beside_grid(0.1, None), name_beside_grid(0.2, 0.02)
    ('learned from 0.1', 'scheduled from 0.2 to 0.02')
    """
    if final is None:
        return f"learned from {start:g}"
    return f"scheduled from {start:g} to {final:g}"


def finite(value: Any) -> Any:
    """Return a value for JSON: None in place of numbers that are not finite."""
    if isinstance(value, Mapping):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_records(path: Path) -> list[Record]:
    """Return the records of an earlier sweep; none if there is no file.

    Raises:
        OutputError: the file was not written by a sweep.
    """
    if not path.is_file():
        return []
    try:
        return [_record(line) for line in read_json_lines(path)]
    except (ValueError, TypeError):
        raise OutputError(
            f"{path} was not written by a sweep; give another folder, or --overwrite"
        ) from None


def _record(line: Any) -> Record:
    """Return the record of a line.

    Raises:
        ValueError: a value of another kind, or a run without options.
        TypeError: an unknown or missing value.
    """
    record = Record(**line)
    if not record.params and record.start is None:
        raise ValueError("a run without options")
    json.dumps(line, ensure_ascii=False).encode()  # texts that are none are a ValueError
    checked: Record = _kinds().validate_python(vars(record))
    return checked


@cache
def _kinds() -> Any:
    """Return the check of the kinds of all values of a record."""
    from pydantic import TypeAdapter  # takes time to load

    return TypeAdapter(Record)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write one JSON object a line; a kill leaves the old file or the new one."""
    write_file(path, "".join(f"{record.json()}\n" for record in records).encode())
