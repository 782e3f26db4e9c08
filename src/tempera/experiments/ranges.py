"""One grammar for the values of an option: a range, or a list."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError, did_you_mean
from ..options import yaml_options as configuration

SPELLINGS = (
    "low:high:log, low:high:linear, low:high:int or low:high:int:log, each with :COUNT for evenly spaced values or "
    ":step X if needed, or a list a,b,c"
)
OF_TRAINING_AGAIN = ("train.refit", "mining.again")
NEVER_AGAIN = "runs are compared by what is held out, so none is trained on it again: leave {} to `tempera train`"
_KINDS = {"log", "linear", "int", "int:log"}
_DOTS = re.compile(r"([-+.\de]*\d)\.\.+([-+.\de]+)")  # as other languages write a range
_RANGE = re.compile(r"([^:,]+):([^:,]+):([a-z:]+?)(?::\s*(?:step\s+([^:]+)|([^:]*\d[^:]*)))?")


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included.

    Args:
        log: equal ratios count as equal distances.
        whole: whole numbers only.
        step: distance of neighbours; None is any distance.
        count: number of values, evenly spaced; None is all of them.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False
    step: float | None = None
    count: int | None = None

    @property
    def size(self) -> int | None:
        """Number of values; None if it is not limited."""
        if self.count is not None or (self.step is None and (self.log or not self.whole)):
            return self.count
        return round((self.high - self.low) / (self.step or 1)) + 1

    @property
    def values(self) -> tuple[Any, ...]:
        """All values, of a range whose size is limited; those between the ends are written with
        four or six digits."""
        a, b, last = self.low, self.high, (self.size or 2) - 1
        digits = ".4g" if self.log else ".6g"

        def between(share: float) -> Any:
            exact = (
                math.exp((1 - share) * math.log(a) + share * math.log(b))
                if self.log
                else (1 - share) * a + share * b
            )
            return round(exact) if self.whole else number(f"{exact:{digits}}")

        return (a, *(between(i / last) for i in range(1, last)), b)


def parse(text: str) -> Range | tuple[Any, ...]:
    """Read a range or, in YAML, a list.

    Raises:
        ConfigError: the text is neither; the message shows the right spelling.

    >>> parse("0.01:1:log"), parse("0.01:1:log:3").values
    (Range(low=0.01, high=1, log=True, whole=False, step=None, count=None), (0.01, 0.1, 1))
    >>> parse("64,256"), parse("[],[log_q]"), parse("16:64:int:step 16").values
    ((64, 256), ([], ['log_q']), (16, 32, 48, 64))
    """
    if match := _RANGE.fullmatch(text.strip()):
        return _range(text, *match.groups())
    if ends := _DOTS.fullmatch(text.strip()):
        raise ConfigError(
            f"cannot read {text!r}; write {ends[1]}:{ends[2]}:log or {ends[1]}:{ends[2]}:linear"
        )
    values: Any = None
    if ":" not in text or any(sign in text for sign in "{['\""):  # 1:30 is a range without its kind
        try:
            values = configuration.parse(f"[{text}]")
        except ConfigError:
            values = None
    if not values:
        raise ConfigError(f"cannot read {text!r}; write {SPELLINGS}")
    return listed(values)


def listed(values: Any) -> tuple[Any, ...]:
    """Return values as they are meant: numbers as numbers.

    Raises:
        ConfigError: no list, or one of them is a range that is written as a mapping.
    """
    if not isinstance(values, Iterable):
        raise ConfigError(f"{values!r} is one value: give a list, [{values}]")
    for value in values:
        refuse_mapping(value)
    return tuple(number(value) for value in values)


def refuse_mapping(value: Any) -> None:
    """Refuse a range that is written as a mapping, and show its right spelling.

    >>> refuse_mapping({"low": 0.01, "high": 0.2, "log": True})
    Traceback (most recent call last):
        ...
    tempera.errors.ConfigError: cannot read {'low': 0.01, 'high': 0.2, 'log': True}; write 0.01:0.2:log
    """
    if isinstance(value, Mapping) and {"low", "high"} <= value.keys():
        kind = "log" if value.get("log") else "linear"
        raise ConfigError(f"cannot read {dict(value)}; write {value['low']}:{value['high']}:{kind}")


def number(value: Any) -> Any:
    """Return a number for a text that is one, a whole number as int; return everything else
    unchanged."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, str | float):
        return value
    try:
        result = float(value)
    except ValueError:
        return value
    return int(result) if result.is_integer() and abs(result) < 1e15 else result


def _range(text: str, low: str, high: str, kind: str, step: str | None, count: str | None) -> Range:
    if kind not in _KINDS:
        raise ConfigError(f"cannot read {text!r}; write {SPELLINGS}.{did_you_mean(kind, _KINDS)}")
    numbers = [number(part.strip()) for part in (low, high, step or "1", count or "2")]
    if any(isinstance(part, str) or not math.isfinite(part) for part in numbers):
        raise ConfigError(f"cannot read {text!r}: a range has finite numbers; write {SPELLINGS}")
    a, b, distance, size = numbers
    log, whole = kind.endswith("log"), kind.startswith("int")
    if whole and not all(isinstance(part, int) for part in (a, b, distance)):
        raise ConfigError(f"cannot read {text!r}: a range of kind int has whole numbers")
    if not (a < b and (not log or a > 0)):
        right = (
            f"; write {high.strip()}:{low.strip()}:{kind}" if b < a and (not log or b > 0) else ""
        )
        raise ConfigError(
            f"cannot read {text!r}: low must be lower than high{', and above 0' if log else ''}{right}"
        )
    if not isinstance(size, int) or size < 2:
        raise ConfigError(f"cannot read {text!r}: the count must be a whole number, and at least 2")
    if step and (log or not 0 < distance <= b - a):
        raise ConfigError(
            f"cannot read {text!r}: a step fits between low and high, and goes with linear or int only"
        )
    if step and not math.isclose((b - a) / distance, round((b - a) / distance), rel_tol=1e-9):
        raise ConfigError(f"cannot read {text!r}: steps of {distance} from {a} do not lead to {b}")
    return Range(a, b, log, whole, distance if step else None, size if count else None)
