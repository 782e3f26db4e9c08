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


def of_metric(values: Sequence[float]) -> Difference:
    """Return the mean of a metric over seeds with Student's interval.

    The metric lies between 0 and 1, and so do the ends of its interval, which of two seeds would
    often go beyond.
    """
    whole = interval(values, CONFIDENCE)
    return replace(whole, low=max(whole.low, 0.0), high=min(whole.high, 1.0))


def figures(records: Sequence[Record], intervals: bool = False) -> dict[str, Any]:
    """Return the columns that tell of finished runs of one setting: their means, and intervals of
    the metrics if wanted."""
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for record in records for name in record.metrics):
        difference = of_metric([record.metrics[name] for record in records])
        ends = {f"{name} low": difference.low, f"{name} high": difference.high} if intervals else {}
        columns |= {name: difference.mean, **ends}
    columns["temperature at the end"] = mean(record.temperature for record in records)
    for name in dict.fromkeys(
        name for record in records for name in record.diagnosis if name != "temperature"
    ):
        columns[name] = mean(record.diagnosis.get(name) for record in records)
    for name in dict.fromkeys(name for record in records for name in record.spread):
        columns[f"held out {name}"] = mean(record.spread[name] for record in records)
    return {
        **columns,
        "loss": mean(record.loss for record in records),
        "gradient norm": mean(record.grad_norm for record in records),
        "seconds": mean(record.seconds for record in records),
    }


def mean(values: Iterable[float | None]) -> float:
    """Return the mean of the values that are there; nan if there are none."""
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def squared(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows that all have all columns: None where there is no number."""
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: finite(row.get(name)) for name in columns} for row in rows]


def csv_of(table: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a table as CSV; an empty cell is no number."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue().encode()


def errors_and_cautions(records: Sequence[Record]) -> list[str]:
    """Return a line that counts the failed runs and has the first error, and one for each kind of
    caution of the others."""
    errors = [record.error for record in records if record.error is not None]
    kinds = dict[str, list[str]]()
    for text in (text for record in records for text in record.cautions):
        kinds.setdefault(_NUMBERS.split(text, maxsplit=1)[0], []).append(text)
    counts = (
        f"caution in {len(texts)} of {len(records)} runs: {texts[0]}" for texts in kinds.values()
    )
    return [*([f"{len(errors)} failed: {errors[0]}"] if errors else []), *counts]


def shown(value: Any, digits: int = 4) -> str:
    """Return a value as it stands in a table."""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value).replace("'", "")
