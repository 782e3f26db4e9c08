"""Times of events: which forms are read, and one line for those of two units or two meanings."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tempera.errors import DataError
from tempera.recommend.read.interactions import Interactions


def table(times: list[Any]) -> pa.Table:
    items = [f"i{k}" for k in range(len(times))]
    return pa.table({"user": [1] * len(times), "item": items, "time": times})


def moments(times: list[Any], **options: Any) -> list[datetime]:
    timeline = Interactions.of(table(times), **options).read()
    assert timeline.time is not None
    return [datetime.fromtimestamp(value / 1e6, UTC) for value in timeline.time.tolist()]


def refused(times: list[Any], **options: Any) -> str:
    with pytest.raises(DataError) as error:
        Interactions.of(table(times), **options).read()
    assert "\n" not in str(error.value)
    return str(error.value)


MORNING = datetime(2020, 1, 13, 7, 5, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "2020-01-13 07:05:09 UTC",
        "2020-01-13T07:05:09Z",
        "1/13/2020 7:05:09 AM",
        "13/01/2020 07:05:09",
        "13.01.2020 07:05:09",
        "January 13, 2020 07:05:09",
        "13-Jan-2020 07:05:09",
        "Mon Jan 13 09:05:09 +0200 2020",
        "Mon, 13 Jan 2020 07:05:09 GMT",
        "13/Jan/2020:07:05:09 +0000",
    ],
)
def test_dates_of_the_usual_forms_are_read(text: str) -> None:
    assert moments([text, text]) == [MORNING, MORNING]


def test_days_without_a_clock() -> None:
    assert moments(["09 24, 2021", "12 3, 2020"]) == [
        datetime(2020, 12, 3, tzinfo=UTC),
        datetime(2021, 9, 24, tzinfo=UTC),
    ]


def test_a_form_that_is_named() -> None:
    assert moments(["05/03/2011", "06/03/2011"], time_format="%d/%m/%Y")[0].month == 3
    assert "expected a date of the form '%d/%m/%Y'" in refused(
        ["05/03/2011", "05/13/2011"], time_format="%d/%m/%Y"
    )


def test_dates_of_two_meanings_are_asked_for() -> None:
    message = refused(["3/5/2011", "4/6/2011"])
    assert message.startswith("data, row 1: column 'time' is '3/5/2011', which has 2 meanings")
    assert "data.time_format='%m/%d/%Y' or data.time_format='%d/%m/%Y'" in message


def test_a_day_that_does_not_exist_is_named() -> None:
    assert refused(["3/5/2011", "30/2/2011", "31/3/2011"]).startswith(
        "data, row 2: column 'time' is '30/2/2011'; expected a date"
    )


@pytest.mark.parametrize(
    ("times", "row", "unit"),
    [
        ([1_305_079_189, 1_305_079_190, 1_305_079_191_000], 3, "milliseconds"),
        (["1305079189000", "1305079190", "1305079191000"], 2, "seconds"),
        ([1_305_079_189.5, 1.305e15, 1_305_079_191.5], 2, "microseconds"),
    ],
)
def test_times_of_two_units_are_refused(times: list[Any], row: int, unit: str) -> None:
    message = refused(times)
    assert message.startswith(f"data, row {row}: column 'time' is {times[row - 1]}"[:40])
    assert f"a time in {unit}, and others are in" in message


def test_units_are_compared_over_files(tmp_path: Path) -> None:
    for name, scale in (("a", 1), ("b", 1000)):
        rows = "".join(f"1,{name}{k},{(1_305_079_189 + k) * scale}\n" for k in range(3))
        (tmp_path / f"{name}.csv").write_text(f"user,item,time\n{rows}")
    with pytest.raises(DataError, match=r"b.csv, row 1: column 'time' is 1305079189000 \(3 such"):
        Interactions(path=str(tmp_path)).read()


@pytest.mark.parametrize("zero", [0, -1])
def test_zero_among_times_since_1970_is_no_time(zero: int) -> None:
    times = [1_305_079_189, zero, 1_305_079_191]
    message = refused(times)
    assert message.startswith(f"data, row 2: column 'time' is {zero}, unlike 1305079189: set data.")
    timeline = Interactions.of(table(times), missing_time="drop").read()
    assert len(timeline) == 2 and timeline.dropped == {"rows without a time": 1}
    assert refused(["1970-01-01", "2020-01-02"]).startswith("data, row 1: column 'time' is 1970-01")


@pytest.mark.parametrize("times", [[0, 1, 2], [-5.5, 0.0, 7e9], [10, 20_000_000_000, 7]])
def test_numbers_that_are_not_since_1970_stay_as_they_are(times: list[Any]) -> None:
    timeline = Interactions.of(table(times)).read()
    assert timeline.time is not None and timeline.time.tolist() == sorted(times)
