"""Lists of items in a row, RecBole's files and tables without names: what is read, and one line for
whatever is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.errors import DataError, TemperaError
from tempera.forms.data_form import with_source
from tempera.options import yaml_options as configuration
from tempera.recommend.read.division import GlobalTime, LeaveLastOut
from tempera.recommend.read.interactions import Interactions
from tempera.recommend.read.timeline import Timeline

LISTS = [["a", "b", "a"], ["c", "b"], [], ["b", "a", "c", "d"]]


def taken(timeline: Timeline) -> dict[Any, list[Any]]:
    items = timeline.item_ids.take(pa.array(timeline.item)).to_pylist()
    users = timeline.user_ids.to_pylist()
    return {
        user: items[timeline.offsets[j] : timeline.offsets[j + 1]] for j, user in enumerate(users)
    }


def test_every_row_of_items_is_a_session_of_nobody(tmp_path: Path) -> None:
    table = pa.table({"items": LISTS, "time": [9, 8, 7, 6]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    timeline = Interactions(path=str(tmp_path / "a.parquet")).read()
    assert taken(timeline) == {1: LISTS[0], 2: LISTS[1], 4: LISTS[3]}
    assert timeline.dropped == {"rows without an item": 1} and timeline.time is not None
    assert timeline.time.tolist() == [9] * 3 + [8] * 2 + [6] * 4
    assert "  session   read as user      each row is one of a user of its own" in timeline.about
    assert LeaveLastOut()(timeline).test["last"].tolist() == [2, 8]
    assert len(GlobalTime(0.3, 0)(timeline).test["rolling"]) == 2
    again = timeline.source.read()  # the source with its roles decided, as a run saves it
    assert taken(again) == taken(timeline)


def test_lists_of_a_user_follow_each_other_and_times_go_along() -> None:
    table = pa.table(
        {"user": [7, 8, 7], "items": [[3, 1], [5], [4, 2]], "time": [[10, 30], [1], [20, 20]]}
    )
    timeline = Interactions.of(table).read()
    assert taken(timeline) == {7: [3, 4, 2, 1], 8: [5]}
    without = Interactions.of(table.drop_columns(["time"])).read()
    assert taken(without) == {7: [3, 1, 4, 2], 8: [5]}


def test_rows_of_items_that_come_twice_are_repeated_interactions() -> None:
    lists = [["a", "b", "a"], ["a", "b", "a"], ["c", "d"], ["c"], ["d", "c"]]
    table = pa.table({"user": [1] * 5, "items": lists, "time": [5, 5, 6, 7, 6]})
    timeline = Interactions.of(table).read()
    assert taken(timeline) == {1: ["a", "b", "a", "c", "d", "d", "c", "c"]}
    assert timeline.dropped == {"repeated interactions": 3}
    kept = Interactions.of(table, repeated="keep").read()
    assert len(kept) == 11 and taken(kept)[1][6:] == ["c", "d", "d", "c", "c"]
    flat = pa.table({"user": [1] * 6, "items": list("ababcc"), "time": [5, 5, 5, 5, 6, 6]})
    rows = pa.table(
        {"user": [1] * 4, "items": [["a", "b"], ["a", "b"], ["c"], ["c"]], "time": [5, 5, 6, 6]}
    )
    assert (
        taken(Interactions.of(rows).read())
        == taken(Interactions.of(flat).read())
        == {1: ["a", "b", "c"]}
    )


def test_rows_of_items_without_times_are_kept_and_counted_unless_all_are_copies() -> None:
    baskets = pa.table({"user": [1, 1, 2], "items": [["a", "b"], ["c", "a"], ["a"]]})
    timeline = Interactions.of(baskets).read()
    assert taken(timeline) == {1: ["a", "b", "c", "a"], 2: ["a"]} and timeline.ordered
    assert "1 rows repeat a user and an item, and are kept" in timeline.about
    dropping = Interactions.of(baskets, repeated="drop").read()
    assert taken(dropping) == {1: ["a", "b", "c"], 2: ["a"]} and dropping.dropped == {
        "repeated interactions": 1
    }
    rows = [[f"i{(user + at) % 12}" for at in range(6)] for user in range(20)]
    copied = pa.table(
        {
            "user": [user for user in range(20) for _ in (0, 1)],
            "items": [x for x in rows for _ in (0, 1)],
        }
    )
    timeline = Interactions.of(copied).read()
    assert taken(timeline) == dict(enumerate(rows)) and "every row has a copy" in timeline.about


@pytest.mark.parametrize("sign", [" ", "|"])
def test_texts_are_lists_when_a_separator_is_named(sign: str, tmp_path: Path) -> None:
    lines = ["basket"] + [sign.join(items) for items in LISTS if items]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    options = configuration.load(None, [f"data.separator={sign}"]).values["data"] | {
        "item": "basket"
    }
    timeline = Interactions(path=str(tmp_path / "a.csv"), **options).read()
    assert list(taken(timeline).values()) == [items for items in LISTS if items]
    assert with_source(str(tmp_path / "a.csv"), options)["source"] == "interactions"


def test_recbole_files_are_read_by_their_types(tmp_path: Path) -> None:
    (tmp_path / "a.inter").write_text(
        'user_id:token\titem_id:token\ttimestamp:float\nu\t"x\t2.5\nu\ty\t1\n'
    )
    (tmp_path / "a.item").write_text("item_id:token\ttitle:token_seq\ny\tTwo words\n")
    found = with_source(str(tmp_path), {})
    assert Path(found["path"]).name == "a.inter" and Path(found["items"]).name == "a.item"
    timeline = Interactions(path=found["path"], items=found["items"]).read()
    assert taken(timeline) == {"u": ["y", '"x']} and timeline.items is not None
    assert timeline.items["title"].to_pylist() == [None, ["Two", "words"]]
    (tmp_path / "b.inter").write_text("item_id_list:token_seq\nx y\ny x z\n")
    assert taken(Interactions(path=str(tmp_path / "b.inter")).read()) == {
        1: ["x", "y"],
        2: ["y", "x", "z"],
    }


def test_a_table_whose_first_row_is_numbers_has_columns_by_number(tmp_path: Path) -> None:
    (tmp_path / "a.tab").write_text("1\t5\t3\n1\t6\t2\n")
    timeline = Interactions(
        path=str(tmp_path / "a.tab"), user="column1", item="column2", time="column3"
    ).read()
    assert taken(timeline) == {"1": ["6", "5"]}
    with pytest.raises(
        DataError,
        match=r"a.tab has no line of names, and begins with the row 1, 5, 3: name its columns in their order, "
        r"such as data.columns=\[",
    ):
        with_source(str(tmp_path / "a.tab"), {})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"items": LISTS[:2], "time": [[1, 2, 3], [1]]},
            "data, row 2: column 'time' has 1 values, and 'items' has 2: ",
        ),
        ({"items": [["a"], ["b", None]]}, "data, row 2: column 'items' has no id"),
        ({"items": [[1.5]]}, "data: column 'items' holds double; expected ids"),
        (
            {"items": [["a"], ["b"]], "time": ["x", "y"]},
            "data, row 1: column 'time' is 'x'; expected numbers or",
        ),
        ({"items": [[], []]}, "data: no interactions are left: 2 rows without an item"),
    ],
)
def test_faults_of_lists_are_one_line(table: dict[str, Any], message: str) -> None:
    with pytest.raises(TemperaError) as error:
        Interactions.of(pa.table(table)).read()
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_file_of_recbole_needs_types(tmp_path: Path) -> None:
    (tmp_path / "a.inter").write_text("user_id\titem_id:token\nu\tx\n")
    with pytest.raises(
        DataError, match="column 'user_id' has no type: call it NAME:TYPE, with one of token, float"
    ):
        Interactions(path=str(tmp_path / "a.inter")).read()
    assert np.array_equal(Interactions.of(pa.table({"items": [["a", "b"]]})).read().item, [0, 1])


@pytest.mark.parametrize(("longest_first", "window"), [(False, 2), (False, 50), (True, 50)])
def test_a_history_and_the_item_after_it_are_events_once(
    longest_first: bool, window: int, tmp_path: Path
) -> None:
    whole = {"7": ["a", "b", "c", "a", "d"], "8": ["c", "b"], "9": ["d", "d", "a"]}
    rows = [
        f"{user}\t{' '.join(items[max(0, k - window) : k])}\t{items[k]}\n"
        for user, items in whole.items()
        for k in sorted(range(1, len(items)), reverse=longest_first)
    ]
    path = tmp_path / "a.inter"
    path.write_text("user_id:token\titem_id_list:token_seq\titem_id:token\n" + "".join(rows))
    options = with_source(str(path), {})
    timeline = Interactions(**{k: v for k, v in options.items() if k != "source"}).read()
    assert taken(timeline) == whole and timeline.time is None
    again = timeline.source.read()
    assert taken(again) == whole


def test_parts_of_running_histories_ask_for_what_follows(tmp_path: Path) -> None:
    head = "user_id:token\titem_id_list:token_seq\titem_id:token\n"
    parts = {"train": "1\ta\tb\n1\ta b\tc\n", "valid": "1\ta b c\td\n", "test": "1\ta b c d\te\n"}
    for name, rows in parts.items():
        (tmp_path / f"x.{name}.inter").write_text(head + rows)
    options = with_source(str(tmp_path), {})
    assert {name: Path(options[name]).name for name in ("path", "validation", "test")} == {
        "path": "x.train.inter",
        "validation": "x.valid.inter",
        "test": "x.test.inter",
    }
    timeline = Interactions(**{k: v for k, v in options.items() if k != "source"}).read()
    assert taken(timeline) == {"1": ["a", "b", "c", "d", "e"]}
    assert timeline.part is not None and timeline.part.tolist() == [0, 0, 0, 1, 2]


def test_running_histories_out_of_order_are_refused() -> None:
    table = pa.table({"user": [1, 1], "items": [["a", "b"], ["b", "x"]], "item": ["c", "d"]})
    with pytest.raises(
        DataError, match=r"data, row 2: column 'items' does not go on from .*: sort"
    ):
        Interactions.of(table).read()
    timed = table.append_column("time", pa.array([3, 4]))
    with pytest.raises(DataError, match=r"column 'time' tells the time of 'item' and not those of"):
        Interactions.of(timed).read()
    alone = Interactions.of(timed, item="item", metadata=["*"]).read()
    assert taken(alone) == {1: ["c", "d"]}


@pytest.mark.parametrize("form", ["['{}', '{}']", '["{}", "{}"]', "[{}, {}]", "[{} {}]"])
def test_lists_that_are_written_as_texts(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = ["user,items"]
    for user, items in (("u", ("a", "b")), ("v", ("c", "a"))):
        lines.append(f'{user},"{form.format(*items).replace(chr(34), chr(34) * 2)}"')
    path.write_text("\n".join([*lines, "w,[]"]) + "\n")
    timeline = Interactions(path=str(path)).read()
    assert taken(timeline) == {"u": ["a", "b"], "v": ["c", "a"]}
    assert timeline.dropped == {"rows without an item": 1}
    with path.open("a") as file:
        file.write("x,one\n")
    with pytest.raises(DataError, match=r"a.csv, row 4: column 'items' is 'one', and other rows"):
        Interactions(path=str(path)).read()


def test_lists_of_objects_are_sessions() -> None:
    events = [[{"aid": 3, "ts": 20}, {"aid": 1, "ts": 10}], [{"aid": 1, "ts": 5}], []]
    table = pa.table({"session": [7, 8, 9], "events": events})
    timeline = Interactions.of(table).read()
    assert taken(timeline) == {7: [1, 3], 8: [1]}
    lists = pa.table(
        {
            "name": ["x"],
            "tracks": [[{"track_uri": "t2", "name": "s"}, {"track_uri": "t1", "name": "s"}]],
        }
    )
    playlists = Interactions.of(lists, metadata=("*",)).read()
    assert taken(playlists) == {1: ["t2", "t1"]} and playlists.anonymous
