"""The table of a sweep or a tuning: its columns, as text and as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..ranking.compare import Difference
from ..ranking.ranking import LEAST_TO_CHOOSE
from .noise import interval
from .record import Record, finite

CONFIDENCE = 0.95
NO_CHOICE = f"validation asks fewer than {LEAST_TO_CHOOSE} queries or events, which choose nothing: the default stands"

_NUMBERS = re.compile(r"\d")


def metric_interval(values: Sequence[float]) -> Difference:
    """Return the mean of a metric over seeds with Student's interval, cut to 0 to 1.

    A metric lies between 0 and 1, but the interval of two seeds would often go beyond.
    """
    whole = interval(values, CONFIDENCE)
    return replace(whole, low=max(whole.low, 0.0), high=min(whole.high, 1.0))


def figures(records: Sequence[Record], intervals: bool = False) -> dict[str, Any]:
    """Return the columns of a setting: means over its finished runs.

    Args:
        records: the finished runs.
        intervals: add the ends of the interval of each metric.
    """
    columns: dict[str, Any] = {}
    for name in _names(record.metrics for record in records):
        values = [record.metrics[name] for record in records if name in record.metrics]
        difference = metric_interval(values)
        columns[name] = difference.mean
        if intervals:
            columns[f"{name} low"] = difference.low
            columns[f"{name} high"] = difference.high
    columns["temperature at the end"] = mean(record.temperature for record in records)
    for name in _names(record.diagnosis for record in records):
        if name != "temperature":
            columns[name] = mean(record.diagnosis.get(name) for record in records)
    for name in _names(record.spread for record in records):
        columns[f"held out {name}"] = mean(record.spread.get(name) for record in records)
    columns["loss"] = mean(record.loss for record in records)
    columns["gradient norm"] = mean(record.grad_norm for record in records)
    columns["seconds"] = mean(record.seconds for record in records)
    return columns


def _names(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of all mappings, each name once, in the order of their first use."""
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def mean(values: Iterable[float | None]) -> float:
    """Return the mean of the values that are neither None nor nan; nan if there are none."""
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def complete_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows that all have all columns: None where there is no finite number."""
    columns = _names(rows)
    return [{name: finite(row.get(name)) for name in columns} for row in rows]


def csv_of(table: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a table as CSV; an empty cell is no number."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue().encode()


def errors_and_cautions(records: Sequence[Record]) -> list[str]:
    """Return lines for people about the failures and cautions of runs.

    One line counts the failed runs and has the first error. One line for each kind of caution
    counts the runs and has the first text; texts that are alike up to a number are of one kind.
    """
    lines = []
    errors = [record.error for record in records if record.error is not None]
    if errors:
        lines.append(f"{len(errors)} failed: {errors[0]}")
    kinds: dict[str, list[str]] = {}
    for record in records:
        for text in record.cautions:
            kind = _NUMBERS.split(text, maxsplit=1)[0]
            kinds.setdefault(kind, []).append(text)
    total = len(records)
    lines += [f"caution in {len(texts)} of {total} runs: {texts[0]}" for texts in kinds.values()]
    return lines


def cell(value: Any, digits: int = 4) -> str:
    """Return a value as a cell of a table: a float with so many digits."""
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return str(value).replace("'", "")
