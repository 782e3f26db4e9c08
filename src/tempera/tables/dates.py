"""Dates written as texts or numbers: the form of a column's values, and the times."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..io.later import compute as pc

ISO = "iso"  # 2024-01-15, with or without a time, a zone, or " UTC"
UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_EARLIEST = 631_152_000  # seconds of 1990
_LATEST = 4_102_444_800  # seconds of 2100
_DAYS = {  # %b reads whole names of months, too
    "/": ("%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d"),
    ".": ("%d.%m.%Y", "%Y.%m.%d"),
    "-": ("%Y-%m-%d", "%d-%m-%Y", "%m-%d-%Y", "%d-%b-%Y"),
    " ": ("%b %d, %Y", "%d %b %Y", "%m %d, %Y", "%b %d %Y"),
}
_HOURS = (
    "",
    *(f"{before}{hours}" for hours in ("%H:%M:%S", "%H:%M") for before in (" ", "T", ", ")),
    *(f"{before}{hours}" for hours in ("%I:%M:%S %p", "%I:%M %p") for before in (" ", ", ")),
)
_FURTHER = (
    "%a %b %d %H:%M:%S %z %Y",  # of Twitter
    "%a, %d %b %Y %H:%M:%S %z",  # of mails
    "%a, %d %b %Y %H:%M:%S",
    "%d/%b/%Y:%H:%M:%S %z",  # of web servers
    "%a %b %d %H:%M:%S %Y",
    "%Y%m%d%H%M%S",
    "%Y%m%d",
)
_DATES = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
_FINER = (pa.timestamp("ns"), pa.timestamp("ns", "UTC"))  # cut to microseconds


def date_forms(texts: pa.Array) -> tuple[str, ...]:
    """Return the forms in which every text is a date: "iso", or formats of strptime.

    Nulls fit any form. Several forms are returned where the values do not tell days from months.

    >>> date_forms(pa.array(["1/15/2024 3:04:05 PM", "2/3/2024 11:00:00 AM"]))
    ('%m/%d/%Y %I:%M:%S %p',)
    >>> date_forms(pa.array(["01/02/2024", "03/04/2024"]))
    ('%m/%d/%Y', '%d/%m/%Y')
    >>> date_forms(pa.array(["2024-01-15 03:04:05 UTC"])), date_forms(pa.array(["soon"]))
    (('iso',), ())
    """
    texts = texts.drop_null()
    if not len(texts):
        return ()
    if not pc.match_substring_regex(texts, r"^\W*\w+\W+\w|^\d{8,14}$")[0].as_py():
        return ()
    first = texts[:1]  # tells most forms apart
    if _are_dates(first, ISO):
        return (ISO,) if _are_dates(texts, ISO) else ()
    possible = [form for form in _possible_forms(first[0].as_py()) if _are_dates(first, form)]
    return tuple(form for form in possible if _are_dates(texts, form))


def _are_dates(texts: pa.Array, form: str) -> bool:
    return bool(dates(texts, form).null_count == 0)


def dates(texts: pa.Array, form: str) -> pa.Array:
    """Return the times of texts in microseconds of UTC; null where a text is not of the form.

    Args:
        form: "iso", or a format of strptime.

    >>> dates(pa.array(["2024-01-15T12:00:00+01:00", "15.1.2024"]), ISO).to_pylist()
    [datetime.datetime(2024, 1, 15, 11, 0), None]
    """
    plain = pc.replace_substring_regex(texts, r"\s*(UTC|GMT)$", "")
    if form != ISO:
        times = pc.strptime(plain, format=form, unit="us", error_is_null=True).cast(_DATES[0])
        valid = pc.and_(_in_years(times), pc.invert(_is_carried(plain, times, form)))
        return pc.if_else(valid, times, None)
    for kind in (*_DATES, *_FINER):
        try:
            return plain.cast(kind).cast(_DATES[0], safe=False)
        except pa.ArrowException:
            continue
    times = [_iso(text) for text in plain.to_pylist()]
    return pa.array(times, pa.int64()).cast(_DATES[0])


def epoch_unit(numbers: pa.Array) -> str | None:
    """Return the unit in which nine of ten numbers are a time between 1990 and 2100, counted since
    1970; None without a fitting unit.

    >>> epoch_unit(pa.array([1_300_000_000.0, 1_300_000_060.0])), epoch_unit(pa.array([1_300_000_000_123]))
    ('seconds', 'milliseconds')
    >>> epoch_unit(pa.array([1, 2, 3]))
    """
    values = numbers.drop_null().to_numpy(zero_copy_only=False)
    if not len(values):
        return None
    for unit in UNITS:
        if is_of_unit(values, unit).mean() >= 0.9:
            return unit
    return None


def is_of_unit(numbers: NDArray[Any], unit: str) -> NDArray[np.bool_]:
    """Return True for each number that is a time between 1990 and 2100, counted in a unit since
    1970, [n].

    >>> is_of_unit(np.array([1_300_000_000, 7]), "seconds").tolist()
    [True, False]
    """
    per_second = UNITS[unit]
    within: NDArray[np.bool_] = numbers >= _EARLIEST * per_second
    within &= numbers < _LATEST * per_second
    return within


def _possible_forms(text: str) -> Iterator[str]:
    """Yield the formats of strptime that a text may have, by the signs in the text."""
    yield from _FURTHER
    for sign, days in _DAYS.items():
        if sign in text:
            for day in days:
                for hours in _HOURS:
                    yield day + hours


def _in_years(times: pa.Array) -> pa.Array:
    """Return True for each time of a year from 1900 to 2200, [n]; %Y takes 24 for a year, too."""
    years = pc.year(times)
    return pc.and_(pc.greater_equal(years, 1900), pc.less_equal(years, 2200))


def _is_carried(texts: pa.Array, times: pa.Array, form: str) -> pa.Array:
    """Return True for each text with a day beyond the end of the month, [n]; Arrow takes 31
    February for 3 March."""
    early = pc.fill_null(pc.less_equal(pc.day(times), 3), False)
    carried = np.zeros(len(texts), bool)
    for row in np.flatnonzero(early.to_numpy(zero_copy_only=False)):
        carried[row] = not _is_date(texts[row].as_py(), form)
    return pa.array(carried)


def _is_date(text: str, form: str) -> bool:
    for each in (form, form.replace("%b", "%B")):  # Arrow's %b reads whole names, too
        try:
            datetime.strptime(text.strip(), each)
        except ValueError:
            continue
        return True
    return False


def _iso(text: str | None) -> int | None:
    """Return the microseconds of a date, for a column of dates and other texts; None for any other
    text."""
    if text is None:
        return None
    for kind in _DATES:
        try:
            microseconds: int = pa.scalar(text).cast(kind).value
        except pa.ArrowException:
            continue
        return microseconds
    return None
