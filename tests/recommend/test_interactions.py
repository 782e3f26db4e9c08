"""Interactions: what is read, in which order, and one line for whatever is wrong with them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.errors import ConfigError, DataError
from tempera.recommend.read import timeline as timelines
from tempera.recommend.read.interactions import Interactions
from tempera.recommend.read.timeline import Timeline


def rows_of(timeline: Timeline) -> dict[Any, list[tuple[Any, ...]]]:
    """Items with time and weight of each user, by the ids that were given."""
    items, found = timeline.item_ids.to_pylist(), {}
    for j, user in enumerate(timeline.user_ids.to_pylist()):
        events = range(timeline.offsets[j], timeline.offsets[j + 1])
        found[user] = [
            (
                items[timeline.item[k]],
                *([] if timeline.time is None else [timeline.time[k].item()]),
                *([] if timeline.weight is None else [timeline.weight[k].item()]),
            )
            for k in events
        ]
    return found


def generated(rows: int, seed: int) -> list[tuple[str, int, int, float]]:
    """User, item, time, weight: few times, so that most are tied."""
    draw = random.Random(seed)
    users, items = [f"u{i}" for i in range(40)], list(range(25))
    return [
        (draw.choice(users), draw.choice(items), draw.randrange(6), draw.randrange(8) / 4)
        for _ in range(rows)
    ]


def expected(rows: list[tuple[str, int, int, float]]) -> dict[Any, list[tuple[Any, ...]]]:
    """The definition: rows of each user, sorted by time, stable."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for user, *rest in rows:
        found.setdefault(user, []).append(tuple(rest))
    return {user: sorted(found[user], key=lambda row: row[1]) for user in sorted(found)}


def table(rows: list[tuple[str, int, int, float]]) -> pa.Table:
    return pa.table(dict(zip(("user_id", "movieId", "timestamp", "weight"), map(list, zip(*rows)))))


@pytest.fixture
def put(tmp_path: Path):
    def write(content: dict[str, Any] | str, name: str = "") -> str:
        path = tmp_path / (name or ("a.csv" if isinstance(content, str) else "a.parquet"))
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            parquet.write_table(pa.table(content), path)
        return str(path)

    return write


def refused(path: str, kind: type = DataError, **options: Any) -> str:
    """The message, one line, without the folder."""
    with pytest.raises(kind) as error:
        Interactions(path=path, **options).read()
    assert "\n" not in str(error.value)
    return str(error.value).replace(path, Path(path).name)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("at_once", [7, 1 << 20])
@pytest.mark.parametrize("kind", ["parquet", "csv", "folder", "arrow", "pandas"])
def test_rows_go_to_their_user_in_the_order_of_time(
    kind: str, at_once: int, mapped: bool, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(timelines, "_ROWS", at_once)
    rows = generated(500, 1)
    given, folder = table(rows), tmp_path / "in"
    folder.mkdir()
    if kind == "csv":
        pd.DataFrame(given.to_pydict()).to_csv(folder / "a.csv", index=False)
    for i, start in enumerate(range(0, 500, 90)):
        parquet.write_table(given.slice(start, 90), folder / f"{i}.parquet")
    parquet.write_table(given, tmp_path / "a.parquet")
    paths = {"parquet": tmp_path / "a.parquet", "csv": folder / "a.csv", "folder": folder}
    if kind in paths:
        if kind == "folder":
            (folder / "a.csv").unlink(missing_ok=True)
        source: Any = Interactions(path=str(paths[kind]), repeated="keep")
    else:
        source = Interactions.of(given if kind == "arrow" else given.to_pandas(), repeated="keep")
    timeline = source.read(tmp_path / "cache" if mapped else None)
    found = rows_of(timeline)
    if kind == "csv":  # whose ids are texts
        found = {
            user: [(int(item), *rest) for item, *rest in events] for user, events in found.items()
        }
    assert list(found) == list(expected(rows)) and found == expected(rows)
    assert (
        timeline.item.dtype == np.int32
        and timeline.time.dtype == np.int64
        and timeline.weight.dtype == np.float32
    )
    assert isinstance(timeline.item, np.memmap) == mapped
    if mapped:
        assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [
            "item.npy",
            "time.npy",
            "weight.npy",
        ]


def test_numbers_do_not_depend_on_the_order_of_rows() -> None:
    rows = [(f"u{i % 7}", f"i{i % 11}", i, 1.0) for i in range(60)]
    one = Interactions.of(table(rows)).read()
    other = Interactions.of(table(random.Random(0).sample(rows, 60))).read()
    assert one.user_ids.equals(other.user_ids) and one.item_ids.equals(other.item_ids)
    assert (one.item == other.item).all() and (one.time == other.time).all()


def test_ties_of_time_go_by_position_and_then_by_row(put) -> None:
    columns = {
        "user": [1] * 6,
        "item": list("abcdef"),
        "time": [5, 5, 5, 2, 2, 2],
        "position": [2, 1, 1, 0, 0, 9],
    }
    timeline = Interactions(path=put(columns)).read()
    assert [row[0] for row in rows_of(timeline)[1]] == ["d", "e", "f", "b", "c", "a"]
    assert not hasattr(timeline, "position")


def test_frames_that_leave_rows_out_bring_their_numbers_along(put) -> None:
    frame = pd.DataFrame(
        {"user": ["a", "a", "b", "a"], "item": ["x", "y", "y", "z"], "time": [1, 2, 3, 4]}
    )
    kept = frame[frame["user"] == "a"]
    assert "__index_level_0__" in pa.table(kept).column_names
    for source in (Interactions.of(kept), Interactions(path=put(kept))):
        assert rows_of(source.read()) == {"a": [("x", 1), ("y", 2), ("z", 4)]}


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"user": [], "item": []}), "data holds no rows"),
        (
            pd.DataFrame({"user": [1, "a"], "item": ["x", "y"]}),
            "data, row 2: column 'user' is 'a', after values like 1",
        ),
        (
            pd.DataFrame([[1, 2, 3]], columns=["user", "item", "user"]),
            "no table can be made of it: Duplicate column",
        ),
    ],
)
def test_frames_that_are_no_table_are_told(frame: pd.DataFrame, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        Interactions.of(frame).read()
    assert "\n" not in str(caught.value)


def test_an_order_only(put) -> None:
    timeline = Interactions(
        path=put({"user": [1, 1, 2, 1], "item": [3, 4, 5, 6], "position": [2, 1, 0, 0]})
    ).read()
    assert timeline.time is None and rows_of(timeline) == {1: [(6,), (4,), (3,)], 2: [(5,)]}
    timeline = Interactions(path=put({"user": [1, 1, 2, 1], "item": [3, 4, 5, 6]})).read()
    assert timeline.time is None and rows_of(timeline) == {1: [(3,), (4,), (6,)], 2: [(5,)]}


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2001-02-03", datetime(2001, 2, 3, tzinfo=UTC)),
        ("2001-02-03 04:05:06", datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)),
        (
            "2001-02-03T04:05:06+02:00",
            datetime(2001, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2))),
        ),
        ("2001-02-03T04:05:06Z", datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)),
    ],
)
def test_dates_are_microseconds_of_utc(put, text: str, moment: datetime) -> None:
    microseconds = round(moment.timestamp() * 1e6)
    (row,) = rows_of(Interactions(path=put(f"user,item,date\na,x,{text}\n")).read())["a"]
    assert row == ("x", microseconds)
    for kind in (pa.timestamp("ns"), pa.timestamp("ms", "Europe/Berlin")):
        column = pa.array([moment.astimezone(UTC).replace(tzinfo=None)]).cast(
            kind.unit and pa.timestamp(kind.unit)
        )
        path = put({"user": [1], "item": [1], "time": column.cast(pa.int64()).cast(kind)})
        assert Interactions(path=path).read().time.tolist() == [microseconds]


def test_dates_are_cut_to_microseconds(put) -> None:
    path = put(
        {
            "user": [1, 1],
            "item": [1, 2],
            "time": pa.array([1_000_000_999, 1_000_000_001], pa.timestamp("ns")),
        }
    )
    assert rows_of(Interactions(path=path).read()) == {1: [(1, 1_000_000), (2, 1_000_000)]}
    text = "user,item,time\na,x,1970-01-01 00:00:01.000000999\na,y,1970-01-01T00:00:01.000001001Z\n"
    for lines in (text.replace("Z", ""), text.replace("999", "999Z")):
        assert rows_of(Interactions(path=put(lines)).read()) == {
            "a": [("x", 1_000_000), ("y", 1_000_001)]
        }


def test_numbers_of_csv_are_whole_where_they_can_be(put) -> None:
    assert Interactions(path=put("user,item,time\na,x,5\n")).read().time.dtype == np.int64
    assert Interactions(path=put("user,item,time\na,x,5.5\n")).read().time.tolist() == [5.5]


def test_categories_are_ids() -> None:
    frame = pd.DataFrame(
        {"userID": pd.Categorical(["b", "a", "b"]), "item": [1, 2, 3], "time": [1, 2, 3]}
    )
    assert rows_of(Interactions.of(frame).read()) == {"a": [(2, 2)], "b": [(1, 1), (3, 3)]}


def test_rows_without_a_user_or_an_item_can_be_left_out(put) -> None:
    path = put("user,item,time\na,x,1\n,x,2\nb,,3\nb,y,4\n,y,5\n")
    assert refused(path) == (
        "a.csv, row 2: column 'user' has no id (2 such rows): set data.missing_id=drop to leave such rows out"
    )
    timeline = Interactions(path=path, missing_id="drop").read()
    assert rows_of(timeline) == {"a": [("x", 1)], "b": [("y", 4)]}
    assert timeline.dropped == {"rows without a user": 2, "rows without an item": 1}


def test_ratings_are_never_taken_for_weights(put) -> None:
    path = put({"user_id": [1, 1, 2], "item_id": [1, 2, 3], "rating": [3, 5, 4], "time": [1, 2, 3]})
    assert refused(path) == (
        "a.parquet: column 'rating' holds ratings, and low ones would train as positives, too: add data.min_rating=NUMBER "
        "to take those of at least so much (4 of 1 to 5), data.metadata=[rating] to take all rows, or data.weight=rating to "
        "count rows by their rating"
    )
    assert Interactions(path=path, metadata=("rating",)).read().weight is None
    assert Interactions(path=path, weight="rating").read().weight.tolist() == [3, 5, 4]
    timeline = Interactions(path=path, min_rating=4).read()
    assert rows_of(timeline) == {1: [(2, 2)], 2: [(3, 3)]} and timeline.dropped == {
        "rows below min_rating": 1
    }
    assert "no interactions are left: 3 rows below min_rating" in refused(path, min_rating=6)


def test_what_is_missing_is_named_or_counted(put) -> None:
    path = put(
        {"user": [1, 2, 3], "item": [1, 2, 3], "time": [1, None, 3], "rating": [5, None, None]}
    )
    assert refused(path, metadata=("rating",)) == (
        "a.parquet, row 2: column 'time' has no time: set data.missing_time=drop to leave such rows out"
    )
    timeline = Interactions(path=path, metadata=("rating",), missing_time="drop").read()
    assert rows_of(timeline) == {1: [(1, 1)], 3: [(3, 3)]} and timeline.dropped == {
        "rows without a time": 1
    }
    message = refused(path, missing_time="drop", min_rating=1)
    assert message == "a.parquet, row 3: column 'rating' has no number"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": ["a", None], "item": [1, 2]}, "a.parquet, row 2: column 'user' has no id"),
        ({"user": ["a", ""], "item": [1, 2]}, "a.parquet, row 2: column 'user' has no id"),
        (
            {"user": [1, 2], "item": [1.5, 2]},
            "a.parquet: column 'item' holds double; expected ids as texts or integers",
        ),
        (
            {"user": [1, 2], "item": [1, 2], "time": [1.0, np.nan]},
            "a.parquet, row 2: column 'time' has no time: set data.missing_time=drop to leave such rows out",
        ),
        (
            {"user": [1, 2], "item": [1, 2], "time": [np.inf, 1.0]},
            "a.parquet, row 1: column 'time' is infinite",
        ),
        (
            {"user": [1, 2], "item": [1, 2], "time": ["3", "soon"]},
            "a.parquet, row 2: column 'time' is 'soon'; expected numbers or dates of one form",
        ),
        (
            {"user": [1, 2], "item": [1, 2], "time": [True, False]},
            "a.parquet: column 'time' holds bool; expected numbers or dates",
        ),
        (
            {"user": [1, 2], "item": [1, 2], "weight": [1.0, -1.0]},
            "a.parquet, row 2: column 'weight' is below 0",
        ),
        (
            {"user": [1], "item": [1], "position": ["x"]},
            "a.parquet, row 1: column 'position' is 'x'; expected a number",
        ),
        (
            {"user": [1, 2, 3], "item": [1, 2, 3], "weight": [None, "1", "much"]},
            "a.parquet, row 3: column 'weight' is 'much'; expected a number",
        ),
        (
            {"user": [1], "item": [1], "weight": [[1]]},
            "a.parquet: column 'weight' holds list<element: int64>; expected a number",
        ),
        (
            {"user": [1, 2], "item": [1, 2], "weight": [1.0, np.inf]},
            "a.parquet, row 2: column 'weight' is infinite",
        ),
        (
            {"user": [1, 2], "item": [1, 2], "weight": [1.0, np.nan]},
            "a.parquet, row 2: column 'weight' has no number",
        ),
        (
            {"user": [1, 2], "item": [1, 2], "weight": ["1", "nan"]},
            "a.parquet, row 2: column 'weight' has no number",
        ),
        (
            {"user": [1], "item": [1], "genre": ["x"]},
            "a.parquet: column 'genre' has no usual name: give its role as data.ROLE=genre, one of user, item, time, "
            "position, weight, rating, behaviour, or declare it: data.metadata=[genre].",
        ),
        (
            {"user": [1], "item": [1], "time": [1], "timestamp": [1]},
            "a.parquet has 2 columns that are usual for a time: time, timestamp; choose with data.time=time "
            "data.metadata=[timestamp]",
        ),
        (
            {"item": [1], "who": [1]},
            "a.parquet has no column that is usual for a user (user, userid, useridx, uid, username, customer, "
            "customerid, visitorid, reviewerid, ...); it has item, who: name one with data.user=COLUMN",
        ),
    ],
)
def test_faults_are_named(put, columns: dict[str, Any], message: str) -> None:
    assert refused(put(columns)).startswith(message)


def test_weights_that_leave_nothing_to_learn_from_are_refused(put) -> None:
    table = {"user": ["a", "a"], "item": ["x", "y"], "time": [1, 2]}
    assert "column 'weight' is 0 in every row" in refused(put(table | {"weight": [0, 0]}))
    assert rows_of(Interactions(path=put(table | {"weight": [0, 2]})).read()) == {
        "a": [("x", 1, 0.0), ("y", 2, 2.0)]
    }


def test_wrong_columns_are_answered(put) -> None:
    path = put({"user": [1], "item": [1], "watched": [1]})
    assert "Did you mean watched?" in refused(path, time="watchd")
    message = refused(path, ConfigError, time="watched", weight="watched")
    assert message == "a.parquet: column 'watched' is given as time and as weight; keep one"
    assert "has no column for data.min_rating" in refused(path, time="watched", min_rating=1)
    graded = put({"user": [1], "item": [1], "ratng": [1]})
    assert "Did you mean ratng?" in refused(graded, min_rating=1, metadata=("*",))
    assert "Did you mean ratng?" in refused(graded, weight="rating")
    assert "Did you mean rating?" in refused(graded, min_rating=1)
    path = put({"who": [1], "item": [1]})
    assert "has no column that is usual for a user (user, userid, " in refused(
        path, metadata=("*",)
    )
    with pytest.raises(ConfigError, match="path is needed"):
        Interactions().read()


def test_a_column_is_taken_once(put) -> None:
    path = put({"user_id": [1], "movieId": [1], "time": [1]})
    assert refused(path, ConfigError, user="movieId") == (
        "a.parquet: column 'movieId' is given as user, and no other is usual for the item; it has user_id, movieId, time: "
        "give data.user another column, or name one with data.item=COLUMN"
    )
    assert "column 'user_id' is given as weight, and no other is usual for the user" in refused(
        path, ConfigError, weight="user_id"
    )
    assert "column 'user_id' is given as user and as item" in refused(
        path, ConfigError, user="user_id", item="user_id"
    )


def test_columns_that_two_colons_divide_are_read(put) -> None:
    timeline = Interactions(path=put("user::item::time\n1::x::3\n1::y::2\n")).read()
    assert timeline.item_ids.take(timeline.item).to_pylist() == ["y", "x"]
    assert "its values are divided by '::'" in timeline.about


@pytest.mark.parametrize("sign", [";", "\t", "|", "::"])
def test_a_name_may_hold_what_divides_other_tables(put, sign: str) -> None:
    assert "no column that is usual for a user" in refused(
        put(f"a{sign}b\none\n")
    )  # which a name may have


def test_rows_come_from_one_place(put) -> None:
    table = pa.table({"user": [1], "item": [1]})
    options = Interactions(path=put(table.to_pydict()))
    with pytest.raises(
        ConfigError, match=r"data.path is .*a.parquet, but a Table is given too: keep one"
    ):
        options.hand(table)
    with pytest.raises(ConfigError, match=r"data.items is .*items.csv, but a Table is given too"):
        Interactions(items="items.csv").hand(table, items=table)


def test_files_of_a_folder_have_to_agree(put, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put({"user": [1], "item": [1], "time": [1]}, "in/a.parquet")
    put({"user": [1], "item": [1], "time": ["2001-01-01"]}, "in/b.parquet")
    assert "the files hold one column with different types: " in refused(str(folder))
    put({"user": [1], "item": [1]}, "in/b.parquet")
    assert "column 'time' has no time" in refused(str(folder))
    put({"user": [1], "item": [1]}, "in/a.parquet")
    put({"user": [1], "item": [1], "time": [1]}, "in/b.parquet")
    assert "only some of the files have a column for data.time: add it to the others" in refused(
        str(folder)
    )
    put({"user": [1], "item": [1], "time": [2.5]}, "in/a.parquet")
    assert rows_of(Interactions(path=str(folder)).read(tmp_path / "cache")) == {
        1: [(1, 1.0), (1, 2.5)]
    }


def test_a_damaged_file_is_named(put, tmp_path: Path) -> None:
    path = Path(put({"user": list(range(1000)), "item": list(range(1000))}))
    path.write_bytes(path.read_bytes()[:-20])
    assert refused(str(path)).startswith("a.parquet: not a readable parquet file")


def test_files_whose_columns_of_a_role_differ_are_told_apart(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"user": [1], "item": [1]}), tmp_path / "a.parquet")
    parquet.write_table(pa.table({"user_id": [1], "item_id": [1]}), tmp_path / "b.parquet")
    message = r"b\.parquet has the columns user_id, item_id, and .*a\.parquet has user, item: "
    with pytest.raises(DataError, match=message):
        Interactions(path=str(tmp_path)).read()


def test_features_stand_beside_their_ids(put) -> None:
    items = put({"title": ["c", "a", "z"], "itemId": ["3", "1", "9"]}, "items.parquet")
    users = put("id,age\n5,20\n4,30\n", "users.csv")
    path = put({"user_id": [4, 5, 4], "item_id": [1, 2, 3]})
    timeline = Interactions(path=path, users=users, items=items).read()
    assert timeline.items.to_pylist() == [{"title": "a"}, {"title": None}, {"title": "c"}]
    assert (
        timeline.items["title"].type == pa.large_string()
    )  # a plain one holds no more than 2 GiB when rows are taken
    assert timeline.users.to_pylist() == [{"age": "30"}, {"age": "20"}]
    assert timeline.dropped == {
        "items without a row of features": 1,
        "rows of features of items without an interaction": 1,
    }
    frame = pd.DataFrame({"item_id": [2, 1, 3], "title": list("bac")})
    handed = Interactions.of(pa.table({"user": [1], "item_id": [2]}), items=frame).read()
    assert handed.items.to_pylist() == [{"title": "b"}]


def test_features_of_texts_that_are_integers_of_the_interactions(put) -> None:
    """Where ids are texts, "07" is another one than "7"."""
    items, events = (
        {"item": ["001", "+2", "x"], "title": ["a", "b", "c"]},
        {"user": [1, 1], "item": [1, 2]},
    )
    line = Interactions.of(pa.table(events), items=pa.table(items)).read()
    assert line.items is not None and line.items["title"].to_pylist() == ["a", "b"]
    assert line.dropped == {"rows of features of items without an interaction": 1}
    line = Interactions.of(pa.table({**events, "item": ["1", "x"]}), items=pa.table(items)).read()
    assert line.items is not None and line.items["title"].to_pylist() == [None, "c"]
    with pytest.raises(DataError, match="have two rows for item '1': give each item one row"):
        Interactions.of(
            pa.table(events), items=pa.table({"item": ["1", "01"], "title": ["a", "b"]})
        ).read()


def test_features_of_other_ids_are_refused(put) -> None:
    items = put({"item": ["x1", "x2"], "title": ["a", "b"]}, "items.parquet")
    message = refused(put({"user": [1, 1], "item": [1, 2]}), items=items)
    assert message.endswith(
        "no row for any item of the interactions: their ids are like 'x1', and those of the interactions like 1"
    )


def test_features_that_are_not_there_are_missed_before_the_interactions_are_read(
    put, tmp_path: Path
) -> None:
    path = put({"user": [1], "item": [None]})
    assert refused(path, users=str(tmp_path / "users.csv")) == f"no such file: {tmp_path}/users.csv"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (
            {"item": [1, 1], "x": [1, 2]},
            "the items' features (items.parquet) have two rows for item '1': give each item one row",
        ),
        ({"item": [1, None], "x": [1, 2]}, "items.parquet, row 2: column 'item' has no id"),
        (
            {"x": [1, 2]},
            "items.parquet has no column of item ids: name it 'item' as in the interactions; it has x",
        ),
    ],
)
def test_faults_of_features_are_named(
    put, tmp_path: Path, items: dict[str, Any], message: str
) -> None:
    found = refused(put({"user": [1], "item": [1]}), items=put(items, "items.parquet"))
    assert found.replace(f"{tmp_path}/", "") == message


def test_the_source_says_what_was_found(put) -> None:
    source = Interactions(path=put({"uid": [1], "asin": ["x"], "ts": [1]})).read().source
    assert (source.user, source.item, source.time, source.weight) == ("uid", "asin", "ts", None)


def test_strict_times_without_times_or_order_are_refused() -> None:
    events = table(generated(30, 3))
    for given, says in (
        ((events, {"ordered": False}), "but data.ordered is false"),
        ((events.drop_columns(["timestamp"]), {}), "but data has no times: name their column"),
    ):
        with pytest.raises(ConfigError, match=says):
            Interactions.of(given[0], **given[1], strict_time=True).read()


@pytest.mark.parametrize("strict", [False, True])
def test_histories_are_what_stands_strictly_before(strict: bool) -> None:
    timeline = Interactions.of(table(generated(300, 3)), strict_time=strict, repeated="keep").read()
    begin, stop = timeline.histories(np.arange(300))
    for k in range(300):
        user = int(timeline.user_of(np.array([k]))[0])
        own = range(timeline.offsets[user], timeline.offsets[user + 1])
        before = [j for j in own if (timeline.time[j] < timeline.time[k] if strict else j < k)]
        assert list(range(begin[k], stop[k])) == before


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        (
            "events.csv",
            'user,item,time\n"c","h","2020-01-01"\n"c","1","3"',
            "events.csv, row 2: column 'time' is '3'; expected an ISO date",
        ),
        (
            "events.csv",
            "user,item,time\nc,h,2020-01-01\nc,1,soon",
            "events.csv, row 2: column 'time' is 'soon'; expected an ISO date",
        ),
        (
            "events.jsonl",
            '{"user": 8, "item": 0, "time": [null, 0.7, 1' + "0" * 400 + "]}",
            "events.jsonl",
        ),
        (
            "events.jsonl",
            '{"user": 8, "item": 0, "time": 9007199254740993}\n{"user": 8, "item": 4, "time": 1180591620717411303424}',
            "events.jsonl",
        ),
    ],
)
def test_times_of_several_kinds_are_refused_in_one_line(
    tmp_path: Path, name: str, rows: str, message: str
) -> None:
    (tmp_path / name).write_text(rows)
    with pytest.raises(DataError) as error:
        Interactions(path=str(tmp_path / name)).read()
    assert message in str(error.value) and "\n" not in str(error.value)


def test_texts_that_are_not_utf8_in_one_of_two_columns_of_a_name(tmp_path: Path) -> None:
    wrong = pa.Array.from_buffers(
        pa.string(),
        2,
        [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xff\xfe")],
    )
    table = pa.Table.from_arrays(
        [wrong, pa.array(["a", "b"]), pa.array([1, 2])], names=["user", "user", "time"]
    )
    parquet.write_table(table, tmp_path / "events.parquet")
    with pytest.raises(DataError, match=r"events\.parquet, row 1: column 'user' is not UTF-8"):
        Interactions(path=str(tmp_path / "events.parquet")).read()


@pytest.mark.parametrize("folder", [None, "cache"])
def test_exact_repetitions_are_dropped_and_counted(put, tmp_path: Path, folder: str | None) -> None:
    """Rows written twice would make "the same item again" the answer to most queries."""
    rows = generated(300, 4)
    once = {(user, item, time) for user, item, time, _ in rows}
    path = put(
        {
            name: column.to_pylist()
            for name, column in zip(("user", "item", "time"), table(rows * 2).columns)
        }
    )
    timeline = Interactions(path=path).read(folder and tmp_path / folder)
    assert len(timeline) == len(once) and timeline.dropped == {
        "repeated interactions": 600 - len(once)
    }
    assert {
        (user, *event) for user, events in rows_of(timeline).items() for event in events
    } == once
    assert all(
        events == sorted(events, key=lambda event: event[1])
        for events in rows_of(timeline).values()
    )
    kept = Interactions(path=path, repeated="keep").read()
    assert len(kept) == 600 and kept.dropped == {}


def test_the_first_of_repeated_rows_stays_and_a_position_tells_rows_apart(put) -> None:
    columns = {"user": [1] * 3, "item": ["a"] * 3, "time": [5] * 3, "weight": [3.0, 2.0, 1.0]}
    assert rows_of(Interactions(path=put(columns)).read()) == {1: [("a", 5, 3.0)]}
    placed = columns | {"position": [0, 1, 1]}
    assert rows_of(Interactions(path=put(placed)).read()) == {1: [("a", 5, 3.0), ("a", 5, 2.0)]}
    assert (
        len(
            Interactions(
                path=put({name: placed[name] for name in ("user", "item", "position")})
            ).read()
        )
        == 2
    )
    untimed = {name: columns[name] for name in ("user", "item")}
    assert (
        len(Interactions(path=put(untimed)).read()) == 3
    )  # without a time, the same item again is no repetition


def test_repeated_rows_without_times_are_counted_and_said_and_left_out_where_the_log_is_a_copy(
    put,
) -> None:
    """Listening repeats are real; a log that holds every row twice is not."""
    draw = random.Random(0)
    rows = [(draw.randrange(5), draw.randrange(40)) for _ in range(120)]
    once = len({*rows})

    def read(rows: list[tuple[int, int]], **options: Any) -> Timeline:
        return Interactions(
            path=put(dict(zip(("user", "item"), map(list, zip(*rows))))), **options
        ).read()

    kept, left = read(rows), read(rows, repeated="drop")
    assert len(kept) == 120 and len(left) == once < 120
    assert f"\n{120 - once} rows repeat a user and an item, and are kept" in kept.about
    assert left.dropped == {"repeated interactions": 120 - once}
    distinct = sorted({*rows})
    for copied in (distinct * 2, [row for row in distinct for _ in range(3)]):
        timeline = read(copied)
        assert len(timeline) == once and "every row has a copy" in timeline.about
        assert len(read(copied, repeated="keep")) == len(copied)
    assert read(distinct).about.endswith(
        "the order of the rows (data.ordered=false: without an order)"
    )


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            {"rating": [1, 5]},
            {"weight": "rating", "min_rating": 2},
            "column 'rating' is given as weight, and data.min_rating",
        ),
        (
            {"stars": [1, 5]},
            {"metadata": ("stars",), "min_rating": 2},
            "'stars' is given as metadata, and data.min_rating",
        ),
        (
            {},
            {"metadata": ("user",)},
            "'user' is given as metadata, and no other.*take it out of data.meta",
        ),
    ],
)
def test_a_column_that_has_another_role_is_the_cause(
    columns: Any, options: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Interactions.of(pa.table({"user": [1, 2], "item": [1, 2], **columns}), **options).read()


def test_a_text_among_numbers_of_a_frame_is_named_with_its_row() -> None:
    frame = pd.DataFrame({"user": [1, 2, 3], "item": [1, 2, 3], "rating": [5, 4, "good"]})
    with pytest.raises(
        DataError,
        match=r"data, row 3: column 'rating' is 'good', after values like 5; expected values of one",
    ):
        Interactions.of(frame, min_rating=2).read()


def test_categories_of_times_and_weights_are_read() -> None:
    frame = pd.DataFrame({"user": [1, 1], "item": [1, 2]})
    frame["time"], frame["weight"] = pd.Categorical([7, 3]), pd.Categorical([0.5, 2.0])
    assert rows_of(Interactions.of(frame).read()) == {1: [(2, 3, 2.0), (1, 7, 0.5)]}


def test_ids_inside_of_records_are_named_by_their_path() -> None:
    table = pa.table({"user": [{"id": 1}], "item": [{"key": "a"}]})
    with pytest.raises(DataError, match=r"name it by its path, such as user\.id"):
        Interactions.of(table).read()
    options = {"user": "user.id", "item": "item.key", "metadata": ("*",)}
    read = Interactions.of(table, **options).read()
    assert read.user_ids.to_pylist() == [1] and read.item_ids.to_pylist() == ["a"]
