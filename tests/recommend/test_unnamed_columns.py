"""Tables of interactions without a line of names: what is read whole, and what is asked for."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tempera.errors import DataError
from tempera.options.build import build
from tempera.options.yaml_options import load
from tempera.recommend.read.timeline import Timeline

Row = Callable[[int, int, int, int], str]
ROWS = 300


def events() -> list[tuple[int, int, int, int]]:
    draw = random.Random(3)
    return [
        (draw.randrange(1, 31), draw.randrange(1, 26), draw.randrange(1, 6), 1_300_000_000 + 60 * k)
        for k in range(ROWS)
    ]


def written(path: Path, row: Row, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row(*each)}\n" for each in events()), encoding=encoding)
    return path


def read(path: Path, *overrides: str) -> Timeline:
    timeline: Timeline = build(load(None, [f"data.path={path}", *overrides])).data.read()
    return timeline


def asked(path: Path, *overrides: str) -> str:
    with pytest.raises(DataError) as error:
        read(path, *overrides)
    assert "\n" not in str(error.value)
    return str(error.value).replace(str(path), path.name)


def pairs(timeline: Timeline) -> list[tuple[Any, Any]]:
    users = timeline.user_ids.take(timeline.user_of(range(len(timeline)))).to_pylist()  # type: ignore[arg-type]
    return sorted(zip(users, timeline.item_ids.take(timeline.item).to_pylist(), strict=True))


@pytest.mark.parametrize("sign", ["\t", ",", "::", "|", " "])
@pytest.mark.parametrize("name", ["u.data", "log.dat", "log.txt", "log"])
def test_users_items_ratings_and_times_are_read_whole(name: str, sign: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, lambda *row: sign.join(map(str, row)))
    assert "data.min_rating=4" in asked(path)
    timeline = read(path, "data.metadata=[rating]")
    assert pairs(timeline) == sorted((str(u), str(i)) for u, i, _, _ in events())
    assert timeline.time is not None and timeline.time.min() == 1_300_000_000
    low = sum(rating < 4 for _, _, rating, _ in events())
    assert read(path, "data.min_rating=4").dropped == {"rows below min_rating": low}


def test_ids_of_amazon_tell_users_from_items(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", lambda u, i, r, t: f"B{i:09d},A{u:013d},{r}.0,{t}")
    timeline = read(path, "data.metadata=[rating]")
    assert pairs(timeline)[0][0].startswith("A") and len(timeline.item_ids) == 25


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        (lambda u, i, r, t: f"user_{u:04d}\t2020-01-{r:02d}T07:00:00Z\ts{i}", "user,time,item"),
        (lambda u, i, r, t: f"{u:040x}\tSO{i}\t{r}", "user,item,rating"),
        (lambda u, i, r, t: f"{u}\t2020-01-{r:02d}T07:00:00Z\t{30 + i / 77:.6f}\t{i}", "user,time,other3,item"),
    ],
)  # fmt: skip
def test_other_tables_are_asked_for_and_lose_no_row(row: Row, columns: str, tmp_path: Path) -> None:
    path = written(tmp_path / "checkins.txt", row)
    message = asked(path)
    assert message.startswith("checkins.txt has no line of names, and begins with the row ")
    assert message.endswith(f"data.columns=[{columns}]")
    more = ["data.metadata=[rating]"] if "rating" in columns else []
    timeline = read(path, f"data.columns=[{columns}]", "data.repeated=keep", *more)
    assert len(timeline) == ROWS


def test_columns_may_be_named_by_their_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", lambda u, i, r, t: f"x{i}\ty{u}\t{t}")
    options = ["data.user=column2", "data.item=column1", "data.time=column3"]
    assert read(path, *options).user_ids[0].as_py().startswith("y")


def test_a_matrix_features_of_advertisements_and_impressions_are_told(tmp_path: Path) -> None:
    matrix = written(tmp_path / "m.csv", lambda u, i, r, t: ",".join(["99", str(r)] * 15))
    assert "30 columns: if they are a matrix with a row for each user" in asked(matrix)
    clicks = written(tmp_path / "c.txt", lambda u, i, r, t: "\t".join(["0", f"{t % 977:08x}"] * 15))
    assert "if they are features of one label" in asked(clicks)
    shown = written(tmp_path / "b.tsv", lambda u, i, r, t: f"{t}\tU{u}\tN{i}-1 N{r}-0 N7-0")
    assert "column3 holds impressions such as 'N" in asked(shown)
    prize = tmp_path / "combined.txt"
    prize.write_text("7:\n1488844,3,2005-09-06\n822109,5,2005-05-13\n")
    assert "the line '7:' names the item of the lines below it" in asked(prize)


def test_a_folder_of_grouplens(tmp_path: Path) -> None:
    folder = written(tmp_path / "ml" / "ratings.dat", lambda *row: "::".join(map(str, row))).parent
    titles = [f"{i}::Café {i} (1995)::Drama|War" for i in range(1, 26)]
    (folder / "movies.dat").write_text("\n".join(titles), encoding="latin-1")
    users = [f"{u}::F::25::7::0{u:04d}" for u in range(1, 31)]
    (folder / "users.dat").write_text("\n".join(users), encoding="latin-1")
    timeline = read(folder, "data.min_rating=4")
    assert timeline.items is not None and timeline.users is not None
    at = timeline.item_ids.to_pylist().index("7")
    assert timeline.items["title"][at].as_py() == "Café 7 (1995)"
    assert timeline.users.column_names == ["gender", "age", "occupation", "zip_code"]
    assert f"{folder / 'movies.dat'}: items, with title, genres" in timeline.about


def test_items_without_names_have_ids_first_and_titles(tmp_path: Path) -> None:
    log = written(tmp_path / "log.tsv", lambda u, i, r, t: f"{u}\t{i}\t{t}")
    items = tmp_path / "things.tsv"
    items.write_text("".join(f"{i}\t{i * 7}\ta long film of {i} days\n" for i in range(1, 26)))
    timeline = read(log, f"data.items={items}")
    assert timeline.items is not None and timeline.items.column_names == ["column2", "title"]
    assert timeline.items["title"][0].as_py() == "a long film of 1 days"


def test_a_table_of_items_alone_is_told(tmp_path: Path) -> None:
    path = tmp_path / "movies.csv"
    path.write_text("movieId,year\n1,1995\n2,1996\n")
    assert "or give the table as data.items beside interactions" in asked(path)
