"""JSON: what others wrote, and what the package writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from .untrusted import refuse_irregular


def parsed(text: str | bytes, constant: Callable[[str], Any] | None = None) -> Any:
    """Return what a JSON text holds.

    Args:
        constant: returns the value of NaN, Infinity and -Infinity, which are no JSON, by name; None
            is a number.

    Raises:
        ValueError: it is not JSON, or nested too deeply to be read.

    >>> parsed("[1, 2]")
    [1, 2]
    """
    try:
        return json.loads(text, parse_constant=constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not JSON in UTF-8.
        DataError: it is a pipe or a device.
    """
    refuse_irregular(path)
    return parsed(path.read_text(encoding="utf-8"))


def read_json_lines(path: Path) -> list[Any]:
    """Return what each line of a file of JSON lines holds; raises the errors of `read_json`."""
    refuse_irregular(path)
    return [parsed(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file in UTF-8, without their ends; blank ones, too.

    Raises:
        DataError: no such file, one that is not UTF-8, or a folder, a pipe or a device.
    """
    refuse_irregular(path)
    if not path.is_file():
        raise DataError(f"no such file: {path}")
    try:
        with path.open(encoding="utf-8-sig") as file:
            return [line.rstrip("\n") for line in file]
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8") from None


def first_event(log: Iterable[Mapping[str, Any]], event: str) -> dict[str, Any] | None:
    """Return the first record of an event in a log, without its name; None if there is none.

    >>> first_event([{"event": "step", "step": 1}, {"event": "recipe", "metric": "ndcg@10"}], "recipe")
    {'metric': 'ndcg@10'}
    """
    record = next((each for each in log if each["event"] == event), None)
    return (
        None
        if record is None
        else {name: value for name, value in record.items() if name != "event"}
    )


def write_json(path: Path, value: Any) -> None:
    """Write JSON with an indent of two spaces; a number that is not finite is an error."""
    path.write_text(
        json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )


class JsonLines:
    """A log of one JSON object a line, flushed at every line.

    Args:
        tell: is called with each new record.
    """

    def __init__(self, path: Path, tell: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self.records: list[dict[str, Any]] = []
        self.tell = tell
        self.file = path.open("w", encoding="utf-8")

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def go_on(self, records: list[dict[str, Any]]) -> None:
        """Replace what has been written by these records."""
        self.file.seek(0)
        self.file.truncate()
        self.records = []
        for record in records:
            self._append(record)

    def write(self, **record: Any) -> None:
        """Append one record."""
        self._append(record)
        if self.tell is not None:
            self.tell(record)

    def _append(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self.file.write(json.dumps(record, allow_nan=False) + "\n")
        self.file.flush()
