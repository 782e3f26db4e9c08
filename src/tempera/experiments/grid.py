"""Which values an option takes in a sweep, and the points that several options make."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import yaml

from ..errors import ConfigError

AXES = 2  # more cannot be drawn
EXPECTED = "FIELD=low:high:log:count, FIELD=low:high:linear:count or FIELD=a,b,c"


@dataclass(frozen=True)
class Axis:
    """The values of one option, in the order of the sweep.

    Raises:
        ConfigError: fewer than two values, or one of them twice.
    """

    field: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not all(part for part in self.field.split(".")) or "." not in self.field:
            raise ConfigError(f"--over {self.field}: an option has a section, such as objective.temperature")
        if self.field == "train.seed":
            raise ConfigError("--over train.seed: every point runs with several seeds anyhow; say how many by --seeds")
        if len(self.values) < 2:
            raise ConfigError(f"--over {self.field} has {len(self.values)} value, and at least 2 are expected")
        for i, value in enumerate(self.values):
            if value in self.values[:i]:
                raise ConfigError(f"--over {self.field} has {value!r} twice; give it once")

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


def parse(text: str) -> Axis:
    """An option and its values as they are given on the command line: a range, or a list in YAML.

    Raises:
        ConfigError: anything else.

    >>> parse("objective.temperature=0.01:1:log:3").values
    (0.01, 0.1, 1)
    >>> parse("train.batch_size=64,256").values, parse("objective.corrections=[],[log_q]").values
    ((64, 256), ([], ['log_q']))
    """
    field, equals, values = text.partition("=")
    if not equals or not field.strip() or not values.strip():
        raise ConfigError(f"--over {text}: expected {EXPECTED}")
    field = field.strip()
    parts = values.split(":")
    if len(parts) == 4 and parts[2] in ("log", "linear"):
        return Axis(field, _range(field, *parts))
    mistaken = ":" in values and not any(sign in values for sign in "{['\"")  # YAML would read 1:30 as 90
    try:
        found = None if mistaken else yaml.safe_load(f"[{values}]")
    except yaml.YAMLError:
        found = None
    if not found:
        raise ConfigError(f"--over {text}: expected {EXPECTED}")
    return Axis(field, tuple(number(value) for value in found))


def axes_of(over: Mapping[str, Any] | Iterable[str]) -> tuple[Axis, ...]:
    """The options to go over, from texts of the command line, or from fields with a text or a list of values each.

    Raises:
        ConfigError: none, too many, or one of them twice.
    """
    if isinstance(over, Mapping):
        axes = [
            parse(f"{field}={values}") if isinstance(values, str) else Axis(field, tuple(map(number, values)))
            for field, values in over.items()
        ]
    else:
        axes = [parse(text) for text in over]
    fields = [axis.field for axis in axes]
    if not 1 <= len(axes) <= AXES:
        raise ConfigError(f"--over is given for {len(axes)} options, and 1 or {AXES} are expected")
    if len(set(fields)) < len(fields):
        raise ConfigError(f"--over is given twice for {fields[0]}; give all its values at once")
    return tuple(axes)


def grid(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Every combination of values, the last option's changing first.

    >>> grid([Axis("train.batch_size", (8, 16)), Axis("tower.width", (1, 2))])[1]
    {'train.batch_size': 8, 'tower.width': 2}
    """
    return [
        dict(zip([axis.field for axis in axes], values, strict=True))
        for values in product(*(axis.values for axis in axes))
    ]


def _range(field: str, low: str, high: str, kind: str, count: str) -> tuple[Any, ...]:
    a, b, n = number(low), number(high), number(count)
    if not all(isinstance(value, int | float) for value in (a, b)) or not isinstance(n, int):
        raise ConfigError(f"--over {field}={low}:{high}:{kind}:{count}: expected two numbers and a count")
    if not (math.isfinite(a) and math.isfinite(b) and a < b and n >= 2 and (kind == "linear" or a > 0)):
        above = " above 0" if kind == "log" else ""
        raise ConfigError(
            f"--over {field}={low}:{high}:{kind}:{count}: expected low < high{above}, and at least 2 values"
        )
    shares = [i / (n - 1) for i in range(n)]
    if kind == "log":
        inner = [f"{math.exp((1 - s) * math.log(a) + s * math.log(b)):.4g}" for s in shares[1:-1]]
    else:
        inner = [f"{(1 - s) * a + s * b:.6g}" for s in shares[1:-1]]
    return (a, *map(number, inner), b)


def number(value: Any) -> Any:
    """A number that is written as one, a whole one as int; everything else as it is."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, str | float):
        return value
    try:
        found = float(value)
    except ValueError:
        return value
    return int(found) if found.is_integer() and abs(found) < 1e15 else found
