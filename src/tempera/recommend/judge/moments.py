"""The times of a run's data, as users write them, and as the run's histories hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import DataError
from .past_events import Moment

# A time so many times later than the latest time has another unit: a time in milliseconds is 1,000
# times the same time in seconds.
ANOTHER_UNIT = 300
_DATE = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class KnownTimes:
    """Hold the earliest and the latest time of all events that a run knows.

    Args:
        dated: the data had dates, which are read as microseconds since 1970 (UTC).

    >>> times = KnownTimes(10, 20)
    >>> times.moment("25"), times.moment(before=20)
    (Moment(now=25, before=None, named=True), Moment(now=20, before=20, named=True))
    """

    earliest: Any
    latest: Any
    dated: bool = False

    def moment(self, now: Any = None, before: Any = None) -> Moment:
        """Return the moment of a question: `now`, else `before`, else the time of the latest event.

        Raises:
            DataError: a value that is no time of the data's kind, or a `before` later than `now`.
        """
        if now is None and before is None:
            return Moment(self._code(self.latest), named=False)
        if before is None:
            return Moment(self.number("now", now))
        end = self.number("before", before)  # of the known events
        if now is None:
            return Moment(end, end)
        asked_at = self.number("now", now)
        if end > asked_at:
            raise DataError(
                f"before is {self.shown(end)}, which is later than now, {self.shown(asked_at)}"
            )
        return Moment(asked_at, end)

    def number(self, name: str, value: Any) -> float:
        """Return a time as in the histories: a number in the data's unit, or microseconds.

        Raises:
            DataError: a date where the data have numbers, the other way round, or another unit.
        """
        code = self._date(value) if self.dated else _number(value)
        if code is None:
            kind = "numbers"
            example = "a number"
            if self.dated:
                kind = "dates"
                example = "a date such as 2026-11-30 or 2026-11-30T09:15"
            raise DataError(
                f"{name} is {value!r}, but the times of the run are {kind}, {self._span}: give {example}"
            )
        low, high = self._code(self.earliest), self._code(self.latest)
        if not self.dated and low > 0 and not low / ANOTHER_UNIT <= code <= high * ANOTHER_UNIT:
            raise DataError(
                f"{name} is {value}, but the times of the run are {self._span}: give it in their unit"
            )
        return code

    def shown(self, code: float) -> str:
        """Return a time as in the data."""
        if not self.dated:
            return f"{code:.15g}"
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(code))
        return moment.isoformat(sep=" ", timespec="auto").removesuffix("+00:00") + " UTC"

    def length(self, pause: float) -> str:
        """Return a length of time in words, or as a number in the data's unit."""
        if not self.dated:
            return f"{pause:.15g}"
        return str(timedelta(seconds=int(pause) // 1_000_000))

    @property
    def _span(self) -> str:
        return f"{self.shown(self._code(self.earliest))} to {self.shown(self._code(self.latest))}"

    def _code(self, time: Any) -> float:
        code: float = _microseconds(time) if self.dated else time
        return code

    def _date(self, value: Any) -> float | None:
        """Return a date as microseconds since 1970; None for a value that is no date."""
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[us]").item()
        elif isinstance(value, pa.Scalar):
            value = value.as_py()
        if isinstance(value, date):  # and so is a datetime, also one of pandas
            return _microseconds(value)
        if not isinstance(value, str):
            return None
        for kind in (_DATE, pa.timestamp("us")):
            try:
                return int(pa.scalar(value.strip()).cast(kind).cast(pa.int64()).as_py())
            except pa.ArrowInvalid:
                continue
        return None


def _number(value: Any) -> float | None:
    """Return a finite number, also of a text; None for any other value."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, str):
        for kind in (int, float):
            try:
                value = kind(value)
                break
            except ValueError:
                continue
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        return None
    number: float = value.item() if isinstance(value, np.generic) else value  # type: ignore[assignment]
    return number if np.isfinite(number) else None


def _microseconds(value: date) -> int:
    """Return a date as microseconds since 1970; a date without a zone is in UTC, as in data."""
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def refuse_elapsed(options: Mapping[str, Any]) -> None:
    """Raise DataError for the option that `now` has replaced."""
    if "elapsed" in options:
        raise DataError(
            "elapsed was one pause for all users; give now=TIME instead, the moment of the question, "
            "from which each user's own pause is counted"
        )
