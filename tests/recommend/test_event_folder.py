"""Folders of interactions: which of their tables is what, and one line where that is not clear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tempera.errors import DataError
from tempera.forms.data_form import with_source

EVENTS = "user_id,item_id,timestamp\n1,7,1300000000\n1,8,1300000001\n2,7,1300000002\n"


def chosen(folder: Path, files: dict[str, str], **options: Any) -> dict[str, str]:
    """The names of the files that are read, by option."""
    for name, content in files.items():
        (folder / name).write_text(content)
    read = with_source(str(folder), options)
    roles = ("path", "items", "users", "validation", "test")
    return {role: Path(read[role]).name for role in roles if role in read}


def test_parts_by_the_names_of_files(tmp_path: Path) -> None:
    files = {"train.csv": EVENTS, "dev.csv": EVENTS, "test.csv": EVENTS}
    meta = "item_id,title\n7,a\n8,b\n"
    assert chosen(tmp_path, {**files, "meta.csv": meta}) == {
        "path": "train.csv",
        "validation": "dev.csv",
        "test": "test.csv",
        "items": "meta.csv",
    }


def test_two_parts(tmp_path: Path) -> None:
    files = {"my_training_events.csv": EVENTS, "my-valid-events.csv": EVENTS}
    assert chosen(tmp_path, files) == {
        "path": "my_training_events.csv",
        "test": "my-valid-events.csv",
    }


def test_the_table_of_ratings_among_others_and_the_items_with_titles(tmp_path: Path) -> None:
    rated = "userId,movieId,rating\n1,7,3\n1,8,5\n"
    files = {
        "ratings.csv": rated,
        "tags.csv": "userId,movieId,tag\n1,7,fun\n",
        "links.csv": "movieId,imdb\n7,1\n8,2\n",
        "movies.csv": "movieId,title\n7,a\n8,b\n",
        "properties.csv": "movieId,property,title\n7,color,red\n7,size,big\n",
    }
    read = chosen(tmp_path, files, min_rating=4)
    assert read == {"path": "ratings.csv", "items": "movies.csv"}


def test_several_tables_of_events_are_asked_for(tmp_path: Path) -> None:
    files = {"clicks.csv": EVENTS, "buys.csv": EVENTS.replace("timestamp", "date")}
    with pytest.raises(
        DataError, match=r"has 2 tables of interactions \(buys.csv, clicks.csv\): give"
    ):
        chosen(tmp_path, files)


def test_shards_are_one_table(tmp_path: Path) -> None:
    assert chosen(tmp_path, {"a.csv": EVENTS, "b.csv": EVENTS}) == {"path": tmp_path.name}


def test_users_and_items_in_two_tables_are_told(tmp_path: Path) -> None:
    files = {
        "orders.csv": "order_id,user_id\n1,1\n2,2\n",
        "order_products.csv": "order_id,product_id\n1,7\n1,8\n",
    }
    with pytest.raises(
        DataError, match=r"orders.csv has the users and order_products.csv the items"
    ):
        chosen(tmp_path, files)


def test_pairs_beside_a_table_of_users_are_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("query,doc,customer_id\na,b,1\n")
    (tmp_path / "b.csv").write_text("customer_id,item_id\n1,2\n")
    assert with_source(str(tmp_path), {})["source"] == "pairs"
