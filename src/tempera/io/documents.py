"""JSON files of any origin, and JSON files of the package."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from .manifest import refuse_damaged
from .untrusted import refuse_irregular


def parsed(text: str | bytes, constant: Callable[[str], Any] | None = None) -> Any:
    """Return the value of a JSON text.

    Args:
        text: in JSON.
        constant: returns the value of NaN, Infinity and -Infinity, which are no JSON, by name; with
            None, they are numbers.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.

    >>> parsed("[1, 2]")
    [1, 2]
    """
    try:
        return json.loads(text, parse_constant=constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not JSON in UTF-8.
        DataError: the file is a pipe or a device, or differs from its manifest.
    """
    refuse_irregular(path)
    refuse_damaged(path)
    return parsed(path.read_text(encoding="utf-8"))


def read_json_lines(path: Path) -> list[Any]:
    """Return the value of each line of a file of JSON lines; raises the errors of `read_json`."""
    refuse_irregular(path)
    refuse_damaged(path)
    return [parsed(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file in UTF-8, without their ends, blank lines included.

    Raises:
        DataError: no such file, a file not in UTF-8, or a folder, a pipe or a device.
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
    """Return the first record of an event in a log, without the event's name; None without a record
    of the event.

    >>> first_event([{"event": "step", "step": 1}, {"event": "recipe", "metric": "ndcg@10"}], "recipe")
    {'metric': 'ndcg@10'}
    """
    for record in log:
        if record["event"] == event:
            return {name: value for name, value in record.items() if name != "event"}
    return None


def write_json(path: Path, value: Any) -> None:
    """Write JSON with an indent of two spaces; an infinite number, or NaN, is an error."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


class JsonLines:
    """A log with a JSON object on each line, flushed at every line.

    Args:
        path: of the file.
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
        """Replace the written records by new records."""
        self.file.seek(0)
        self.file.truncate()
        self.records = []
        for record in records:
            self._append(record)

    def write(self, **record: Any) -> None:
        """Append a record."""
        self._append(record)
        if self.tell is not None:
            self.tell(record)

    def _append(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self.file.write(json.dumps(record, allow_nan=False) + "\n")
        self.file.flush()
