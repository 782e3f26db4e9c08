"""Lists of neighbours: a user and his items in each line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tempera.build import build
from tempera.config import load
from tempera.errors import ConfigError, DataError
from tempera.io.tables import read_table

LINES = "0 5 7 9\n1 7\n2\n3 9 5\n"


def test_each_line_is_a_user_with_items(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text(LINES)
    assert read_table(path).to_pydict() == {
        "user": ["0", "1", "2", "3"],
        "items": [["5", "7", "9"], ["7"], [], ["9", "5"]],
    }
    timeline = build(load(path)).data.read()
    assert timeline.item_ids.take(timeline.item).to_pylist() == ["5", "7", "9", "7", "9", "5"]
    assert timeline.dropped == {"rows without an item": 1}
    assert "each line holds a user and his items" in timeline.about


def test_parts_of_a_folder_have_no_order(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(LINES)
    (tmp_path / "test.txt").write_text("0 8 1\n1 5\n3 7 1 8\n")
    source = build(load(tmp_path)).data
    assert (source.ordered, Path(source.test).name) == (False, "test.txt")
    timeline = source.read()
    assert timeline.part.tolist() == [0, 0, 0, 2, 2, 0, 2, 0, 0, 2, 2, 2]


def test_what_is_no_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text(LINES * 40 + "4 x\n")
    with pytest.raises(
        DataError, match=r"train.txt, row 161: expected whole numbers between spaces"
    ):
        read_table(path)
    path.write_text(LINES)
    with pytest.raises(
        ConfigError, match=r"data.columns is for tables with columns, and each line"
    ):
        build(load(path, ["data.columns=[a,b]"]))
    path.write_text("a text of words\n2 3\n")
    with pytest.raises(DataError):
        build(load(path)).data.read()
