"""The form of data that a path names: what is chosen, and the one line for what tells no form."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tempera.errors import DataError
from tempera.forms.data_form import source_of
from tempera.options.build import build, kind_of_tower
from tempera.options.names import describe
from tempera.options.yaml_options import Options, load
from tempera.recommend.read.interactions import Interactions
from tempera.recommend.train.features import Features
from tempera.run.train import default_output, with_rows
from tempera.text.read.sources import PairsFile
from tempera.towers.static import Static

Put = Callable[[str, str], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def write(name: str, content: str = "") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    return write


def options(path: Path, *overrides: str) -> dict[str, Any]:
    """The options of the data that differ from None and from nothing."""
    data = build(load(path, overrides)).resolved["data"]
    return {key: value for key, value in data.items() if value not in (None, [], "")}


def test_pairs_whatever_the_case_of_their_columns(put: Put) -> None:
    path = put("faq.csv", "Question,ANSWER,id\na,b,1\n")
    chosen = options(path)
    assert (chosen["source"], chosen["path"], chosen["metadata"]) == ("pairs", str(path), ["*"])
    assert options(path, "data.source=pairs", "data.metadata=[id]") == {
        **chosen,
        "metadata": ["id"],
    }
    config = build(load(None, [f"data.path={path}"]))
    assert config.resolved["data"] == build(load(path)).resolved["data"]
    pairs, _ = config.data.read()
    assert pairs.about.splitlines() == [
        f"{path}: pairs",
        "  Question  read as query  by its name",
        "  ANSWER    read as doc    by its name",
        "  id        kept           holds 1 alone",
    ]


def test_columns_that_are_named(put: Put) -> None:
    path = put("faq.csv", "asked,reply,year\na,b,1\n")
    assert options(path, "data.query=asked", "data.doc=reply", "data.metadata=[year]")[
        "metadata"
    ] == ["year", "*"]
    with pytest.raises(
        DataError,
        match=r"has the columns asked, reply, year, with no usual name for .* data.query=COLUMN",
    ):
        build(load(path))
    with pytest.raises(DataError, match=r"empty.json holds rows without columns: give each row"):
        build(load(put("empty.json", "{}")))
    inside = put(
        "inside.jsonl", '{"data": [{"query": "a", "doc": "b"}, {"query": "c", "doc": "d"}]}'
    )
    assert build(load(inside)).data.read()[0].texts("doc") == ["b", "d"]


LONG = "a text of many words that is the document"


@pytest.mark.parametrize(
    ("content", "overrides", "roles"),
    [
        (f"heading,section\nhow to read,{LONG}\n", [], ("heading", "section")),
        # alike: in their order
        (f"id,first,second,year\n7,{LONG},how to read a file,1999\n", [], ("first", "second")),
        # more than twice as long
        (f"section,heading\n{LONG} {LONG},how to read\n", [], ("heading", "section")),
        # the other has a usual name
        (f"question,solution,tag\nhow?,{LONG},x\n", [], (None, "solution")),
        (f"asked,reply,why\nhow?,{LONG},no words at all\n", ["data.query=asked", "data.metadata=[why]"], ("asked", "reply")),
        (f"query_id,heading,section\n1,how to read,{LONG}\n", ["data.query_id=query_id"], ("heading", "section")),
    ],
)  # fmt: skip
def test_columns_that_are_known_by_their_texts(
    put: Put, content: str, overrides: list[str], roles: tuple[str | None, str]
) -> None:
    path = put("faq.csv", content)
    assert options(path, *overrides)["source"] == "pairs"
    pairs, _ = build(load(path, overrides)).data.read()
    columns = asdict(pairs.source)  # type: ignore[call-overload]
    assert columns["query"] == (roles[0] or "question") and columns["doc"] == roles[1]
    assert pairs.texts("doc")[0].startswith(("a text", "how to"))


@pytest.mark.parametrize(
    "content",
    [
        f"user_id,title,review\nada,how to read,{LONG}\n",  # events of an item that is not known
        f"a,b,c\n{LONG},{LONG},{LONG}\n",
        f"a,b\ntwo words,{LONG}\n",
    ],
)
def test_columns_that_are_not_known_by_their_texts(put: Put, content: str) -> None:
    with pytest.raises(DataError, match=r"no.* usual .*for .*data.query=COLUMN"):
        build(load(put("faq.csv", content)))


def test_ids_alone_are_told(put: Put) -> None:
    for content in ("a,b\n1,2\n", "query_id,doc_id,score\nq1,d1,1\n"):
        with pytest.raises(DataError, match=r"holds ids or numbers alone, in .*: texts are needed"):
            build(load(put("faq.csv", content)))


def test_a_table_without_a_line_of_names_is_told(put: Put) -> None:
    path = put("pairs.tsv", "how do I reset the password of my account?\tby the link below\na\tb\n")
    with pytest.raises(
        DataError, match=r"or begin the file with a line of names, if its first line holds none$"
    ):
        build(load(path))
    with pytest.raises(
        DataError, match=r"name one with data.query=COLUMN, or begin the file with a line of names"
    ):
        PairsFile(str(path)).read()


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ("{i},b{j},{r},13000000{i:02d}", "user,item,rating,time"),
        ("2011-05-{d:02d}T01:02:03Z\tu{j}\tb{i}", "time,user,item"),
    ],
)
def test_names_are_proposed_for_a_table_without_them(put: Put, row: str, columns: str) -> None:
    lines = [row.format(i=i, j=i % 13 + 20, r=i % 5 + 1, d=i % 28 + 1) for i in range(60)]
    path = put("rows.csv", "\n".join(lines))
    with pytest.raises(DataError, match=r"rows\.csv has no line of names") as error:
        build(load(path))
    assert str(error.value).endswith(f"such as data.columns=[{columns}]")
    assert str(lines[0].replace("\t", ", ").replace(",", ", ")[:9]) in str(error.value).replace(
        ",  ", ", "
    )


def test_a_table_of_events_may_be_called_txt(put: Put) -> None:
    path = put("ml.txt", "".join(f"{i % 7} {i % 11}\n" for i in range(60)))
    with pytest.raises(DataError, match=r"such as data.columns=\[user,item\]"):
        build(load(path))
    assert options(path, "data.columns=[user,item]")["source"] == "interactions"


def test_ids_are_read_only_if_they_are_named(put: Put) -> None:
    path = put("faq.csv", "question,answer,doc_id\na,b,1\nc,d,\ne,f,1\n")
    assert len(build(load(path)).data.read()[0]) == 3
    assert options(path, "data.doc_id=doc_id")["doc_id"] == "doc_id"


@pytest.mark.parametrize(
    ("time", "split"), [("timestamp", "global_time"), ("position", "leave_last_out")]
)
def test_interactions(put: Put, time: str, split: str) -> None:
    config = build(load(put("events.csv", f"user_id,movieId,{time},device\n1,2,3,x\n")))
    assert isinstance(config.data, Interactions) and config.resolved["tower"]["kind"] == "features"
    assert split in describe(config.data.read().source)["interactions"]["split"]
    lines = [" ".join(line.split()) for line in config.data.read().about.split("\n")]
    assert lines[1:] == [
        "user_id read as user by its name; such as 1",
        "movieId read as item by its name; such as 2",
        f"{time} read as {'time' if time == 'timestamp' else time} by its name; always 3",
        "device not read always x",
    ]


def test_ratings_need_an_option(put: Put) -> None:
    with pytest.raises(
        DataError, match=r"add data.min_rating=4 .*, data.metadata=\[rating\] to take all rows"
    ):
        build(load(put("events.csv", "user_id,item_id,rating\n1,2,3\n1,3,5\n"))).data.read()


def test_a_beir_folder_and_its_splits(put: Put) -> None:
    folder = put("set/corpus.jsonl").parent
    for name in ("test", "dev"):
        put(f"set/qrels/{name}.tsv")
    with pytest.raises(
        DataError,
        match=r"has the splits dev, test, none of which is called train: give data.split=SPLIT",
    ):
        build(load(folder))
    assert options(folder, "data.split=dev", "data.test=test")["split"] == "dev"
    put("set/qrels/train.tsv")
    assert options(folder) == {
        **{
            "source": "beir",
            "path": str(folder),
            "split": "train",
            "validation": "dev",
            "test": "test",
            "corpus": "all",
        }
    }


def saved(folder: Path, rows: int) -> None:
    """Write a data set as `save_to_disk` does, with a file of a cache beside it."""
    folder.mkdir(parents=True)
    table = pa.table(
        {"anchor": [f"a{i}" for i in range(rows)], "positive": [f"b{i}" for i in range(rows)]}
    )
    names = [f"data-0000{i}-of-00002.arrow" for i in range(2)]
    for i, name in enumerate([*names, "cache-1.arrow"]):
        with pa.ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(table.slice(i * rows // 2, rows // 2))
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names]})
    )
    (folder / "dataset_info.json").write_text("{}")


def test_what_save_to_disk_has_written(tmp_path: Path) -> None:
    for name in ("train", "dev"):
        saved(tmp_path / "sets" / name, 6)
    train = tmp_path / "sets" / "train"
    assert build(load(train)).data.read()[0].texts("doc") == [f"b{i}" for i in range(6)]
    (tmp_path / "sets" / "dataset_dict.json").write_text('{"splits": ["dev", "train"]}')
    chosen = options(tmp_path / "sets")
    assert (chosen["path"], chosen["validation"]) == (str(train), str(tmp_path / "sets" / "dev"))
    with pytest.raises(DataError, match=f"holds 2 data sets; give one of them: .*, {train}"):
        build(load(tmp_path / "sets", ["data.source=pairs"])).data.read()
    (train / "state.json").write_text("[3]")
    with pytest.raises(DataError, match="is not of a data set that save_to_disk has written"):
        build(load(train))


def test_a_folder_has_the_form_of_most_of_its_files(put: Put, tmp_path: Path) -> None:
    put("README.md"), put("README.txt"), put(".git/a.md"), put(".git/b.md")
    put("a.csv", "query,doc\na,b\n")
    assert options(tmp_path)["source"] == "pairs"
    put("b.py"), put("c/d.py")
    assert options(tmp_path) == {
        "source": "installed_python",
        "roots": [str(tmp_path)],
        "max_characters": 4000,
    }
    put("e.md"), put("c/f.txt"), put("c/g.txt")
    assert options(tmp_path)["source"] == "text_files"


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file: .*none.csv"):
        build(load(tmp_path / "none.csv"))
    with pytest.raises(
        DataError,
        match=r"holds no file to read: give a folder of tables, .* of texts .* or of Python sources",
    ):
        build(load(tmp_path))
    (tmp_path / "a.js").write_text("let x = 1")
    with pytest.raises(
        DataError,
        match=r"set data\.source=documents data\.rule=heading to read other files of text",
    ):
        build(load(tmp_path))
    (tmp_path / "a.xlsx").write_text("x")
    with pytest.raises(DataError, match=r"cannot read .xlsx; give one of .parquet"):
        build(load(tmp_path / "a.xlsx"))


def test_tables_of_items_and_users_beside_the_interactions(put: Put, tmp_path: Path) -> None:
    put("log.csv", "user,item,time\n1,a,3\n1,b,4\n"), put("things.csv", "item,title\na,A\nb,B\n")
    put("people.csv", "user,age\n1,30\n")
    chosen = options(tmp_path)
    assert [Path(chosen[name]).name for name in ("path", "items", "users")] == [
        "log.csv",
        "things.csv",
        "people.csv",
    ]
    put("more.csv", "user,item,time\n2,a,3\n")
    with pytest.raises(
        DataError, match=r"has 2 tables of interactions \(log.csv, more.csv\): give"
    ):
        options(tmp_path)
    (tmp_path / "things.csv").unlink(), (tmp_path / "people.csv").unlink()
    assert "items" not in options(tmp_path) and options(tmp_path)["path"] == str(tmp_path)


def test_a_run_is_no_data(put: Put, tmp_path: Path) -> None:
    for name in ("config.yaml", "metrics.json", "pairs.csv"):
        put(name, "question,answer\na,b\n")
    with pytest.raises(
        DataError,
        match=r"is a run, not data: give data, or .*config\.yaml to train with its options again",
    ):
        build(load(tmp_path))


def test_a_run_lies_in_a_folder_of_the_name_of_its_data(tmp_path: Path) -> None:
    assert default_output(tmp_path / "my.pairs" / "faq.jsonl.gz") == Path("runs/faq")
    assert default_output("set.v1.csv") == Path("runs/set.v1") != default_output("set.v2.csv.zst")
    (tmp_path / "notes.2024").mkdir()
    assert default_output(tmp_path / "notes.2024") == Path("runs/notes.2024")
    assert default_output(tmp_path / "..") == Path("runs", tmp_path.parent.name)
    assert default_output(None) == default_output("/") == Path("runs/first")
    assert default_output("pairs.csv", "learn") == Path("runs/pairs-learn")


@pytest.mark.parametrize(
    ("names", "options", "source"),
    [
        (["user_id", "item_id"], {}, "interactions"),
        (["customer", "sku"], {"user": "customer", "item": "sku"}, "interactions"),
        (["customer", "sku"], {"source": "interactions"}, "interactions"),
        (["user_id", "item_id"], {"source": "given"}, "given"),
        (["query", "doc", "user_id", "item_id"], {}, "given"),
        (["a", "b"], {}, "given"),
    ],
)
def test_rows_of_python_are_interactions_by_their_columns(
    names: list[str], options: dict[str, str], source: str
) -> None:
    rows = pa.table({name: [1] for name in names})
    assert source_of(rows, options)["source"] == source
    assert kind_of_tower(with_rows(Options({"data": options}), rows)) is (
        Features if source == "interactions" else Static
    )


def pairs_of(word: str, count: int) -> str:
    return "question,answer\n" + "".join(
        f"who made {word} {i}?,they made {word} {i}\n" for i in range(count)
    )


@pytest.mark.parametrize(
    "files",
    [
        {"train.csv": "train", "dev.csv": "dev", "test.csv": "test"},
        {
            "data/train-00000-of-00002.csv": "train",
            "data/train-00001-of-00002.csv": "more",
            "data/test-00000-of-00001.csv": "test",
            "data/validation-00000-of-00001.csv": "dev",
        },
        {"train/a.csv": "train", "train/b.csv": "more", "valid/a.csv": "dev", "test/a.csv": "test"},
        {"faq_train.csv": "train", "faq_test.csv": "test", "faq_val.csv": "dev"},
    ],
)
def test_files_that_are_named_for_splits_are_splits(
    put: Put, tmp_path: Path, files: dict[str, str]
) -> None:
    for name, word in files.items():
        put(name, pairs_of(word, 5))
    pairs, _ = build(load(tmp_path)).data.read()
    words = [text.split()[2] for text in pairs.texts("query")]
    for part, expected in ((0, {"train", "more"}), (1, {"dev"}), (2, {"test"})):
        own = {word for word, of in zip(words, pairs.part) if of == part}
        assert own == expected & {*words}


def test_splits_that_one_path_cannot_name(put: Put, tmp_path: Path) -> None:
    for name in ("train.csv", "test.csv", "extra.csv"):
        put(name, pairs_of(name[:-4], 3))
    with pytest.raises(DataError, match=r"extra.csv, whose name tells none: give data.path="):
        build(load(tmp_path))
    (tmp_path / "extra.csv").unlink()
    put("b/train_of_b.csv", pairs_of("b", 3))
    with pytest.raises(DataError, match="no common name tells them: put the files of each split"):
        build(load(tmp_path))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("stars,rating\n1,2\n", "it shares none of them"),
        ("question,year\nwho?,1999\n", "it lacks answer"),
        ("answer,year\nwho?,1999\n", "it lacks question"),
    ],
)
def test_tables_of_other_columns_are_no_parts_of_one(
    put: Put, tmp_path: Path, other: str, why: str
) -> None:
    put("a.csv", pairs_of("it", 3)), put("b.csv", other)
    with pytest.raises(DataError, match=rf"b.csv has the columns .*: {why}, so they are no parts"):
        build(load(tmp_path)).data.read()
