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
# Options of a second training, which may learn held-out rows; sweeps and tuning refuse both.
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
        count: number of values, evenly spaced; None is every value of the range.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False
    step: float | None = None
    count: int | None = None

    @property
    def size(self) -> int | None:
        """Number of values.

        None without a count and a step, unless the range is of whole numbers on a linear scale.
        """
        if self.count is not None:
            return self.count
        if self.step is not None:
            return round((self.high - self.low) / self.step) + 1
        if self.whole and not self.log:
            return round(self.high - self.low) + 1
        return None

    @property
    def values(self) -> tuple[Any, ...]:
        """The low end, the values between the ends, and the high end, ascending; a range needs a
        `size`.

        Values between the ends are rounded: to whole numbers of a range of whole numbers, else to
        four significant digits on a log scale, and to six on a linear scale. A value is repeated if
        the count is larger than the number of whole numbers in the range.
        """
        last = (self.size or 2) - 1
        between = [self._between(i / last) for i in range(1, last)]
        return (self.low, *between, self.high)

    def _between(self, share: float) -> Any:
        """Return the value at a share of the way from low to high."""
        if self.log:
            exact = math.exp((1 - share) * math.log(self.low) + share * math.log(self.high))
        else:
            exact = (1 - share) * self.low + share * self.high
        if self.whole:
            return round(exact)
        return number(f"{exact:.4g}" if self.log else f"{exact:.6g}")


def parse(text: str) -> Range | tuple[Any, ...]:
    """Read a range, such as 0.01:1:log, or a list of YAML values divided by commas.

    Raises:
        ConfigError: the text is neither; the message shows the right spelling.

    >>> parse("0.01:1:log"), parse("0.01:1:log:3").values
    (Range(low=0.01, high=1, log=True, whole=False, step=None, count=None), (0.01, 0.1, 1))
    >>> parse("64,256"), parse("[],[log_q]"), parse("16:64:int:step 16").values
    ((64, 256), ([], ['log_q']), (16, 32, 48, 64))
    """
    match = _RANGE.fullmatch(text.strip())
    if match:
        low, high, kind, step, count = match.groups()
        return _range(text, low, high, kind, step, count)
    ends = _DOTS.fullmatch(text.strip())
    if ends:
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
    """Return the values of a list; a text that is a number becomes a number.

    Raises:
        ConfigError: no list, or a value is a range that is written as a mapping.
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
    """Return the number of a text or of a float, as int if whole; other values are returned as
    values of Python."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, str | float):
        return value
    try:
        result = float(value)
    except ValueError:
        return value
    if result.is_integer() and abs(result) < 1e15:
        return int(result)
    return result


def _range(text: str, low: str, high: str, kind: str, step: str | None, count: str | None) -> Range:
    """Return the range of a text that has been split into its parts."""
    if kind not in _KINDS:
        raise ConfigError(f"cannot read {text!r}; write {SPELLINGS}.{did_you_mean(kind, _KINDS)}")
    numbers = [number(part.strip()) for part in (low, high, step or "1", count or "2")]
    if any(isinstance(part, str) or not math.isfinite(part) for part in numbers):
        raise ConfigError(f"cannot read {text!r}: a range has finite numbers; write {SPELLINGS}")
    a, b, distance, size = numbers
    log = kind.endswith("log")
    whole = kind.startswith("int")
    if whole and not all(isinstance(part, int) for part in (a, b, distance)):
        raise ConfigError(f"cannot read {text!r}: a range of kind int has whole numbers")
    if a >= b or (log and a <= 0):
        need = "low must be lower than high"
        if log:
            need += ", and above 0"
        if b < a and (not log or b > 0):
            need += f"; write {high.strip()}:{low.strip()}:{kind}"
        raise ConfigError(f"cannot read {text!r}: {need}")
    if not isinstance(size, int) or size < 2:
        raise ConfigError(f"cannot read {text!r}: the count must be a whole number, and at least 2")
    if step and (log or not 0 < distance <= b - a):
        raise ConfigError(
            f"cannot read {text!r}: a step fits between low and high, and goes with linear or int only"
        )
    if step and not math.isclose((b - a) / distance, round((b - a) / distance), rel_tol=1e-9):
        raise ConfigError(f"cannot read {text!r}: steps of {distance} from {a} do not lead to {b}")
    return Range(
        low=a,
        high=b,
        log=log,
        whole=whole,
        step=distance if step else None,
        count=size if count else None,
    )
