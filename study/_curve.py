"""A curve of the study, which is a metric over temperatures, and the format of figures on its
page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tempera.artifacts.pictures import number

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """A metric over temperatures, with everything else equal."""

    part: str
    title: str
    line: Mapping[str, Any]
    batch: int
    cosine: bool  # whether vectors are normalised
    option: str = ""

    @classmethod
    def all_of(cls, records: Mapping[str, Record]) -> list[Curve]:
        """Return the curves of all parts, except of towers that were not trained."""
        curves = []
        for name, record in records.items():
            for line in record["lines"]:
                batch = line["value"] if line["option"] == "train.batch_size" else record["batch"]
                option = (
                    ""
                    if line["option"] is None
                    else f"{line['option'].split('.')[1]} {shown(line['value'])}"
                )
                curves.append(cls(name, record["title"], line, batch, record["cosine"], option))
        return [curve for curve in curves if curve.line["value"] != 1e-9]

    @property
    def means(self) -> dict[float, float]:
        """Return the mean at each temperature."""
        return {point["temperature"]: point["mean"] for point in self.line["points"]}

    @property
    def top(self) -> float:
        """Return the best mean."""
        return self.means[self.line["best"]]

    def lost(self, temperature: float) -> float:
        """Return the share that the nearest temperature of the grid loses to the best one."""
        near = min(self.means, key=lambda t: abs(math.log(t / temperature)))
        return 1 - self.means[near] / self.top

    def holds(self, temperature: float) -> bool:
        """Return whether the nearest temperature of the grid is in the best region."""
        return min(self.means, key=lambda t: abs(math.log(t / temperature))) in self.line["region"]


def shown(value: Any) -> str:
    """Return a value as people write it."""
    if isinstance(value, list):
        return "+".join(shown(item) for item in value) or "none"
    if isinstance(value, dict):
        return "+".join(value)
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"{value:,g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "none" if value is None else str(value)


def interval(point: Mapping[str, Any]) -> str:
    """Return a mean, with its interval if there is one."""
    ends = "" if point["low"] is None else f" [{number(point['low'])}, {number(point['high'])}]"
    return f"{number(point['mean'])}{ends}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
