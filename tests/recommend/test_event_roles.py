"""Columns of interactions by what they hold: which are asked for, with advice that fits them."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.errors import DataError
from tempera.forms.event_roles import proposed
from tempera.options.build import build
from tempera.options.yaml_options import load
from tempera.recommend.read.timeline import Timeline

ROWS = 240


def table(**columns: Any) -> pa.Table:
    """Events of 12 users with 20 items, and further columns, of values that are drawn."""
    rows = {"user_id": [k % 12 for k in range(ROWS)], "item_id": [k % 20 for k in range(ROWS)]}
    draw = random.Random(1)
    more = {
        name: values if len(values) == ROWS else draw.choices(values, k=ROWS)
        for name, values in columns.items()
    }
    return pa.table({**rows, "timestamp": range(1_300_000_000, 1_300_000_000 + ROWS), **more})


def asked(rows: pa.Table, **options: Any) -> str:
    with pytest.raises(DataError) as error:
        proposed(rows, options, "log.csv")
    assert "\n" not in str(error.value)
    return str(error.value)


def read(rows: pa.Table, path: Path, *overrides: str) -> Timeline:
    parquet.write_table(rows, path)
    timeline: Timeline = build(load(path, overrides)).data.read()
    return timeline


@pytest.mark.parametrize(
    ("name", "values", "advice"),
    [
        ("rating", [1, 2, 3, 4, 5], "data.min_rating=4"),
        ("rating", [0.5, 1.5, 4.5, 5.0], "data.min_rating=4"),
        ("stars", list(range(1, 11)), "data.min_rating=8"),
        ("Book-Rating", [0, 0, 0, 7, 9, 10], "data.min_rating=8"),
        ("watch_ratio", [0.1, 0.4, 0.9, 1.7], "data.min_rating=1.4"),
        ("score", [0, 1], "data.min_rating=1"),
        ("label", [1.0, 0.0, 1.0], "data.rating=label data.min_rating=1"),
        ("is_click", [True, False, False], "data.rating=is_click data.min_rating=1"),
        ("liked", ["no", "yes", "yes"], "data.rating=liked data.min_rating=1"),
        ("feedback", [1, -1], "data.rating=feedback data.min_rating=1"),
        ("relevance", ["0", "1", "2"], "data.rating=relevance data.min_rating=2"),
        ("thumbs", ["up", "down"], "data.behaviour=thumbs data.dislikes=[down]"),
        ("event", ["view", "view", "buy"], "data.behaviour=event if it says what users did"),
        ("kind", ["a", "b", "c"], "data.context=[kind]"),
    ],
)
def test_a_column_of_few_values_is_asked_for(name: str, values: list[Any], advice: str) -> None:
    rows = table(**{name: values})
    message = asked(rows)
    assert message.startswith(f"log.csv: column '{name}' holds ") and advice in message
    assert f"data.metadata=[{name}]" in message
    assert proposed(rows, {"metadata": [name]}, "log.csv") == {"metadata": [name, "*"]}
    assert proposed(rows, {"metadata": ["*"]}, "log.csv") == {}
    texts = rows.set_column(3, name, rows[name].cast(pa.string()))
    assert advice in asked(texts)  # as a CSV has them


def test_shares_that_were_watched_are_asked_for() -> None:
    message = asked(table(watch_ratio=[k / 97 for k in range(ROWS)]))
    assert "data.rating=watch_ratio data.min_rating=1.2 to take those of 1.2 and more" in message


def test_zeros_that_may_be_no_ratings_are_told() -> None:
    message = asked(table(rating=[0, 0, 0, 7, 9, 10]))
    assert " of them are 0, which may mean that there is no rating" in message
    assert "may mean" not in asked(table(rating=[0, 1]))


def test_one_value_and_attributes_of_users_and_items_are_not_asked_for() -> None:
    users, items = [k % 12 for k in range(ROWS)], [k % 20 for k in range(ROWS)]
    rows = table(
        rating=[1] * ROWS,
        gender=["fm"[user % 2] for user in users],
        genre=[f"g{item % 4}" for item in items],
        released=[f"{1990 + item}-01-01" for item in items],
    )
    assert proposed(rows, {}, "log.csv") == {"metadata": ["rating", "*"]}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"min_rating": 1}, {"rating": "label", "metadata": ["*"]}),
        ({"dislikes": 0, "metadata": ["x"]}, {"rating": "label", "metadata": ["x", "*"]}),
        ({"behaviour": "label"}, {"metadata": ["*"]}),
        ({"context": ["label"]}, {"metadata": ["*"]}),
        ({"rating": "label", "min_rating": 1}, {"metadata": ["*"]}),
    ],
)
def test_options_answer_the_question(options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert proposed(table(label=[0, 1, 1]), options, "log.csv") == expected


@pytest.mark.parametrize("name", ["when", "date_added", "played on"])
@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S UTC", "%B %d, %Y"])
def test_times_without_a_usual_name_are_asked_for(name: str, form: str) -> None:
    start = datetime(2021, 3, 1)
    dates = [(start + timedelta(days=k)).strftime(form) for k in range(ROWS)]
    rows = table(**{name: dates}).drop_columns(["timestamp"])
    message = asked(rows)
    assert message.startswith(f"log.csv: column '{name}' holds times, such as ")
    assert f"give data.time={name}, or data.metadata=[{name}] if they are in order" in message
    for options in ({"time": name}, {"metadata": [name]}, {"ordered": False}):
        assert "*" in proposed(rows, options, "log.csv")["metadata"]


def test_the_general_id_of_an_item_is_read() -> None:
    rows = table(parent_asin=[f"p{k}" for k in range(9)]).rename_columns(
        ["user_id", "asin", "timestamp", "parent_asin"]
    )
    assert proposed(rows, {}, "log.csv") == {"metadata": ["asin", "*"]}
    assert proposed(rows, {"item": "asin"}, "log.csv") == {"metadata": ["*"]}


@pytest.mark.parametrize("values", [[True, False, False], ["yes", "no", "no"], ["True", "False"]])
def test_grades_may_be_words(values: list[Any], tmp_path: Path) -> None:
    rows = table(liked=values)
    timeline = read(rows, tmp_path / "a.parquet", "data.min_rating=1")
    high = sum(value in (True, "yes", "True") for value in rows["liked"].to_pylist())
    assert len(timeline) == high and timeline.dropped == {"rows below min_rating": ROWS - high}
    both = read(rows, tmp_path / "a.parquet", "data.behaviour=liked")
    assert both.contexts is not None and both.contexts["behaviour"].type == pa.large_string()
