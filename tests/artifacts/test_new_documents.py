"""Documents that are added to a run are found as if the index had been made of all of them, and
whoever searches meanwhile sees the run of before or the run afterwards."""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.document_rows import read_documents
from tempera.artifacts.new_documents import add_documents
from tempera.artifacts.run_folder import Run
from tempera.corpus.index import Index, write_index
from tempera.errors import DataError, OutputError
from tempera.io import atomic
from tempera.io.atomic import write_manifest_again
from tempera.io.manifest import first_fault
from tempera.run.train import train
from tempera.text.judge.hybrid import open_words
from tempera.text.judge.lexical import Lexical
from tempera.towers.saved import load
from tempera.towers.stamp import Stamp

from ..conftest import WORDS, small_options

Row = dict[str, Any]
QUERIES = ["kaban lodor the", "mifin nugar", "new words of razu", "zz"]


def texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.sample(WORDS, 4)) for _ in range(count)]


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """A run whose documents have ids d0, d1, ... and two kept columns."""
    folder = tmp_path / "run"
    shutil.copytree(tiny_run, folder)
    index = Index(folder / "index")
    count = len(index.documents)
    days = [dt.date(2024, 1, 1) + dt.timedelta(i) for i in range(count)]
    columns = {
        "lang": pa.array([("de", "en", None)[i % 3] for i in range(count)]),
        "day": pa.array(days, pa.date32()),
    }
    table = pa.table(
        {
            "doc_id": index.documents["id"].cast(pa.int64()),
            "given_doc_id": pa.array([f"d{i}" for i in range(count)], pa.large_string()),
            "name": index.documents["name"],
            "place": index.documents["place"],
            "doc": index.documents["text"],
            "columns": pa.StructArray.from_arrays(list(columns.values()), list(columns)),
        }
    )
    vectors, stamp = np.array(index.vectors), index.stamp
    shutil.rmtree(folder / "index")
    write_index(folder / "index", vectors, table, stamp)
    write_manifest_again(folder)
    return folder


def rows_of(run: Path) -> list[Row]:
    """What a run holds, document by document."""
    index = Run(run).index
    rows = index.documents.select(["id", "name", "text"]).to_pylist()
    columns = index.columns.to_pylist() or [{} for _ in rows]
    for row, vector, kept in zip(rows, np.array(index.vectors), columns, strict=True):
        row.update(vector=vector.tobytes(), **kept)
    return rows


def refused(*arguments: Any, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        add_documents(*arguments)
    assert str(caught.value).isprintable()


# ---- the same as an index made at once


def test_after_any_additions_a_run_is_as_if_made_at_once(run: Path) -> None:
    """Against a list of rows that is changed by hand; the vectors of new texts, and all scores, to
    the bit."""
    draw = random.Random(0)
    encode = load(run / "model", "doc")
    expected = rows_of(run)
    supply = iter(texts(200, 1))
    for step in range(12):
        known = [row["id"] for row in expected]
        changed = draw.sample(known, 3)
        new = [f"new{step}.{i}" for i in range(draw.randrange(4))]
        leaving = draw.sample([name for name in known if name not in changed], draw.randrange(4))
        data = []
        for name in draw.sample([*changed, *new], len(changed) + len(new)):
            row: Row = {"id": name, "text": next(supply)}
            if draw.random() < 0.5:
                row["lang"] = draw.choice(["de", "fr", ""])
            if draw.random() < 0.5:
                row["day"] = f"2025-01-{draw.randrange(10, 29)}"
            data.append(row)
        facts = add_documents(run, data, leaving)
        assert (facts["added"], facts["replaced"], facts["removed"]) == (len(new), 3, len(leaving))
        # By hand.
        expected = [row for row in expected if row["id"] not in leaving]
        for row in data:
            day = dt.date.fromisoformat(row["day"]) if "day" in row else None
            whole = {
                "id": row["id"],
                "name": "",
                "text": row["text"],
                "vector": encode([row["text"]])[0].tobytes(),
                "lang": row.get("lang") or None,
                "day": day,
            }
            at = [i for i, each in enumerate(expected) if each["id"] == row["id"]]
            if at:
                expected[at[0]] = whole
            else:
                expected.append(whole)
        assert rows_of(run) == expected and facts["documents"] == len(expected)
    assert first_fault(run) is None
    opened = Run(run)
    index = opened.index
    words = open_words(run, index.documents["text"], opened.fingerprint)
    at_once = Lexical([row["text"] for row in expected]).index(words.settings)
    assert np.array_equal(words.scores(QUERIES), at_once.scores(QUERIES))
    vectors = np.stack([np.frombuffer(row["vector"], np.float32) for row in expected])
    for query, hits in zip(QUERIES, opened.search(QUERIES, 20), strict=True):
        products = vectors @ opened.encode([query])[0]
        assert [hit.score for hit in hits] == pytest.approx(np.sort(products)[::-1][:20], abs=1e-6)


def test_two_additions_are_one(run: Path, tmp_path: Path) -> None:
    """The files of the index, to the bit; and where the encoder meets other batches."""
    other = tmp_path / "other"
    shutil.copytree(run, other)
    rows = [{"id": f"n{i}", "text": text} for i, text in enumerate(texts(30, 2))]
    add_documents(run, rows)
    for start in range(0, 30, 7):
        add_documents(other, rows[start : start + 7])
    one, two = Run(run), Run(other)
    assert np.array_equal(np.array(one.index.vectors), np.array(two.index.vectors))
    for name in ("id", "text", "key", "columns"):
        assert one.index.documents[name].to_pylist() == two.index.documents[name].to_pylist()
    assert (run / "words.parquet").read_bytes() == (other / "words.parquet").read_bytes()
    for hybrid in (False, True):
        hits = [found.search(QUERIES, 50, hybrid=hybrid) for found in (one, two)]
        scores = [[(hit.id, hit.score) for each in found for hit in each] for found in hits]
        assert scores[0] == scores[1]


def test_a_text_that_stays_keeps_its_vector(run: Path) -> None:
    """The one that training gave it, which differs from that of the saved model by rounding."""
    before = rows_of(run)
    add_documents(run, [{"id": "d3", "text": before[3]["text"], "lang": "it"}])
    after = rows_of(run)
    assert after[3]["lang"] == "it" and after[3]["vector"] == before[3]["vector"]
    assert [row for row in after if row["id"] != "d3"] == before[:3] + before[4:]


def test_equal_texts_rank_by_position(run: Path) -> None:
    add_documents(run, [{"id": name, "text": "kaban lodor mifin"} for name in ("y", "x")])
    add_documents(run, [{"id": "d7", "text": "kaban lodor mifin"}])
    hits = Run(run).search("kaban lodor mifin", 3)
    assert [hit.id for hit in hits] == ["d7", "y", "x"]


@pytest.mark.long
def test_a_transformer_embeds_new_documents_as_all_at_once(
    pairs_file: Path, tmp_path: Path
) -> None:
    options = small_options(pairs_file)
    options["tower"] = {"kind": "transformer", "layers": 1, "width": 16, "heads": 2}
    options["tower"] |= {"vocabulary": 300, "max_length": 24}
    options["train"] = {"batch_size": 32, "max_steps": 3, "evaluations": 0}
    run = train({**options, "recipe": "none"}, tmp_path / "run").folder
    rows = [{"id": f"n{i}", "text": text} for i, text in enumerate(texts(20, 3))]
    add_documents(run, rows[:1])
    add_documents(run, rows[1:])
    index = Run(run).index
    every = load(run / "model", "doc")(index.documents["text"].to_pylist())
    assert np.abs(np.array(index.vectors) - every).max() < 1e-6


def test_documents_without_ids_have_those_of_their_content(tiny_run: Path, tmp_path: Path) -> None:
    """As in training: an equal text is the same document, and numbers beside such ids are the
    user's."""
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    before = rows_of(run)
    facts = add_documents(run, [{"text": before[5]["text"]}, {"text": "a new text"}])
    assert (facts["added"], facts["replaced"]) == (1, 1)
    assert "key" not in Run(run).index.documents.column_names
    after = rows_of(run)
    assert after[:-1] == before and after[-1]["id"].lstrip("-").isdigit()
    add_documents(run, [{"id": 7, "text": "with an id"}], remove=[after[-1]["id"]])
    last = rows_of(run)
    assert [row["id"] for row in last] == [*[row["id"] for row in before], "7"]
    assert len(set(Run(run).index.keys.to_pylist())) == len(last)
    assert Run(run).document("7").place == "data row 1, 7"


# ---- what is read


def test_tables_of_all_kinds(run: Path, tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "kaban", "lang": "de", "day": "2025-05-05", "url": "u"}]
    (tmp_path / "rows.csv").write_text("id,text,lang,day,url\na,kaban,de,2025-05-05,u\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows[0]) + "\n")
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    nested = [
        {"id": "a", "text": "kaban", "columns": {"lang": "de", "day": "2025-05-05", "url": 1}}
    ]
    other_names = pa.table({"_id": ["a"], "Document": ["kaban"], "LANG": ["x"], "lang": ["de"]})
    for data in (
        *[tmp_path / f"rows.{ending}" for ending in ("csv", "jsonl", "parquet")],
        rows,
        pa.Table.from_pylist(rows),
        nested,
    ):
        facts = add_documents(run, data)
        assert facts["columns_left_out"] == ["url"]
        last = rows_of(run)[-1]
        assert (last["id"], last["text"], last["lang"]) == ("a", "kaban", "de")
        assert last["day"] == dt.date(2025, 5, 5)
        add_documents(run, remove=["a"])
    assert add_documents(run, other_names)["columns_left_out"] == ["LANG"]
    assert rows_of(run)[-1]["lang"] == "de" and rows_of(run)[-1]["day"] is None


def test_the_columns_of_the_training_data_are_the_usual_ones(
    pairs_file: Path, tmp_path: Path
) -> None:
    """Also a prompt, which training has put before every document."""
    pairs = [json.loads(line) for line in pairs_file.read_text().splitlines()]
    rows = pa.table(
        {
            "asked": [row["query"] for row in pairs],
            "body": [row["doc"] for row in pairs],
            "ticket": [f"T{i}" for i in range(len(pairs))],
        }
    )
    parquet.write_table(rows, tmp_path / "rows.parquet")
    options = small_options(tmp_path / "rows.parquet")
    options["data"] |= {"query": "asked", "doc": "body", "doc_id": "ticket", "doc_prompt": "doc: "}
    options["train"] = {"batch_size": 32, "max_steps": 2, "evaluations": 0}
    run = train({**options, "recipe": "none"}, tmp_path / "run").folder
    before = rows_of(run)
    assert before[0]["text"].startswith("doc: ")
    facts = add_documents(run, rows.slice(0, 5))
    assert facts["replaced"] == 5 and facts["added"] == 0 and rows_of(run) == before
    keys = Run(run).index.keys.to_pylist()
    add_documents(run, [{"text": "other", "doc_id": "T0", "body": "the body"}])
    assert rows_of(run)[0]["text"] == "doc: the body" and Run(run).index.keys.to_pylist() == keys


def test_the_keys_of_dicts_come_before_the_columns_of_the_training_data(run: Path) -> None:
    """A kept column may have the name that the run's data had for the text or the id."""
    documents = Run(run).index.documents
    rows = [{"id": "X", "text": "hello", "url": "http://z"}]
    for options in ({"doc_id": "url"}, {"doc": "url"}):
        (row,) = read_documents(rows, documents, options).table.to_pylist()
        assert (row["id"], row["text"]) == ("X", "hello")
    (row,) = read_documents([{"reply": "hello"}], documents, {"doc": "reply"}).table.to_pylist()
    assert row["text"] == "hello"


def test_titles_stand_before_texts_where_they_do_in_the_run(tmp_path: Path) -> None:
    rows = [{"title": f"About {w}", "text": f"  {w} is a word. And so on."} for w in WORDS]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {
        "data": {"source": "documents", "path": str(tmp_path / "docs.jsonl"), "rule": "heading"},
        "tower": {"dimensions": 8, "vocabulary": 100},
        "train": {"batch_size": 8, "max_steps": 2, "evaluations": 0},
        "evaluation": {"queries": 4, "validation": 0},
        "recipe": "none",
    }
    run = train(options, tmp_path / "run").folder
    before = rows_of(run)
    facts = add_documents(run, tmp_path / "docs.jsonl")
    assert (facts["added"], facts["replaced"]) == (0, len(WORDS))
    assert [row["text"] for row in rows_of(run)] == [row["text"] for row in before]


# ---- what is refused


@pytest.mark.parametrize(
    ("data", "remove", "says"),
    [
        (None, [], "nothing to do"),
        ([], [], "data holds no rows"),
        ([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], [], "two rows for the document 'a'"),
        ([{"text": "x"}, {"text": " x"}], [], "two rows for the document"),
        ([{"id": "a", "txt": "x"}], [], "no column of texts; expected id and text"),
        ([{"id": "a", "text": "x"}, {"id": "b", "text": " \n"}], [], "row 2: column 'text' has no"),
        ([{"id": "a", "text": None}], [], "has no text"),
        ([{"id": "a", "text": 5}], [], "column 'text' holds int64; expected texts"),
        ([{"id": 1.5, "text": "x"}], [], "column 'id' holds double; expected ids"),
        ([{"id": "a", "text": "x", "day": "soon"}], [], "column 'day' .* expected date32"),
        ([{"id": "a", "text": "x", "lang": [1]}], [], "column 'lang' .* expected string"),
        ([{"id": "a", "text": "x"}, "b"], [], "row 2 is str; expected a dict"),
        ([{"id": "a", "text": "x"}, {"id": 5, "text": "x"}], [], "column 'id' holds values of sev"),
        ([{"id": "a", "text": "\ud800"}], [], "column 'text' holds values"),
        ([{"id": "d0", "text": "x"}], ["d0"], "'d0' is both to be added and to be removed"),
        (None, ["d0", "d99999"], r"has the id 'd99999', to be removed\. Did you mean d"),
        (None, [f"d{i}" for i in range(300)], "no document of .* would be left"),
        (5, [], "data is int"),
    ],
)
def test_a_wrong_change_is_refused_and_changes_nothing(
    run: Path, data: Any, remove: list[str], says: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    refused(run, data, remove, says=says)
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_other_runs_are_refused(run: Path, tmp_path: Path) -> None:
    row = [{"id": "a", "text": "x"}]
    refused(tmp_path / "nothing", row, says="no such run")
    refused(run / "model", row, says="without documents to search")

    def changed(change: Callable[[Path], object], says: str) -> None:
        other = tmp_path / "other"
        shutil.copytree(run, other)
        change(other)
        write_manifest_again(other)
        refused(other, row, says=says)
        shutil.rmtree(other)

    def restamped(folder: Path, stamp: Stamp | None, preview: bool = False) -> None:
        path = folder / "index" / "documents.arrow"
        table = pa.ipc.open_file(path).read_all()
        if preview:
            table = table.rename_columns(
                [{"text": "preview"}.get(n, n) for n in table.column_names]
            )
        table = table.replace_schema_metadata(None if stamp is None else stamp.metadata())
        path.unlink()
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)

    stamp = Run(run).index.stamp
    assert stamp is not None
    changed(lambda f: (f / "histories.parquet").touch(), "tempera add-items .* tempera add-events")
    changed(lambda f: (f / "model" / "kept_index.json").write_text("{}"), "embeds queries alone")
    changed(lambda f: restamped(f, None), "does not hold the whole vectors of one model")
    other = Stamp("0" * 32, stamp.dimensions, checksum=stamp.checksum)
    changed(lambda f: restamped(f, other), "holds vectors of another model")
    cut = Stamp(stamp.model, 64, checksum=stamp.checksum)
    changed(lambda f: restamped(f, cut), "vectors cut to 16 of 64")
    changed(lambda f: restamped(f, stamp, preview=True), "is of version 0.1")
    changed(lambda f: (f / "words.parquet").write_bytes(b"PAR1"), "words.parquet is damaged")


def test_damage_is_not_written_again(run: Path) -> None:
    path = run / "index" / "vectors.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refused(run, [{"id": "a", "text": "x"}], says="is damaged")
    model = run / "report.html"
    model.write_text("changed")
    assert first_fault(run) is not None


def test_one_process_writes_at_a_time(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_PATIENCE", 0.1)
    with atomic.renewed(run), pytest.raises(OutputError, match="another process is writing to"):
        add_documents(run, [{"id": "a", "text": "x"}])


FULL = (
    (np, "save"),
    (parquet, "write_table"),
    (pa, "OSFile"),
    (os, "link"),
    (os, "fsync"),
    (Path, "mkdir"),
)


@pytest.mark.parametrize(("owner", "name"), FULL)
def test_a_full_disk_changes_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    before = rows_of(run)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(owner, name, full)
    with pytest.raises(OutputError, match="No space left on device"):
        add_documents(run, [{"id": "a", "text": "x"}])
    monkeypatch.undo()
    assert rows_of(run) == before and first_fault(run) is None
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    assert add_documents(run, [{"id": "a", "text": "x"}])["added"] == 1


# ---- what it costs, and what is said


def test_files_that_stay_are_shared(run: Path) -> None:
    (run / "export" / "parquet").mkdir(parents=True)
    (run / "export" / "parquet" / "vectors.parquet").write_text("1")
    inodes = {path: path.stat().st_ino for path in run.rglob("*") if path.is_file()}
    facts = add_documents(run, [{"id": "a", "text": "x"}])
    changed = {
        p.relative_to(run).as_posix() for p, inode in inodes.items() if p.stat().st_ino != inode
    }
    assert changed == {
        "index/documents.arrow",
        "index/vectors.npy",
        "words.parquet",
        "tempera-manifest.json",
    }
    assert any("holds the documents of before" in line for line in facts["not_learned"])


def test_the_command_line(tempera: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text('id,text,url\n"a,1",kaban lodor,u\nd1,mifin,v\n')
    (tmp_path / "old.txt").write_text("d7\nd8\n")
    answer = tempera("add-documents", run, tmp_path / "new.csv", "--remove", "d5, d6")
    assert answer.code == 0 and answer.err == ""
    lines = answer.out.splitlines()
    assert lines[0] == "1 added, 1 replaced, 2 removed; the run has 299 documents"
    assert lines[1] == "left out: column 'url', which the run does not keep"
    assert all(line.startswith("not learned: ") for line in lines[2:]) and len(lines) > 3
    more = ("--remove", '"a,1"', "--remove-file", tmp_path / "old.txt", "--json")
    document = tempera("add-documents", run, *more).document
    assert (document["removed"], document["documents"]) == (3, 296)
    answer = tempera("add-documents", run)
    assert answer.code == 2 and "nothing to do" in answer.err and answer.err.count("\n") == 1
    assert tempera("search", run, "mifin", "-k", "1", "--json").document["hits"][0]["id"] == "d1"


def test_a_run_goes_on_after_documents_were_added(run: Path) -> None:
    again = Run(run).add_documents([{"id": "a", "text": "kaban lodor"}], remove=["d0"])
    assert again.document("a").text == "kaban lodor"
    with pytest.raises(DataError, match="has the id 'd0'"):
        again.document("d0")


def test_a_static_run_takes_documents_without_torch(run: Path, cold: Any, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("id,text\na,kaban lodor\n")
    answer = cold("add-documents", run, tmp_path / "new.csv", python=["-X", "importtime"])
    assert answer.code == 0 and "1 added" in answer.out
    assert not any(line.split("|")[-1].strip() == "torch" for line in answer.err.splitlines())


# ---- while others read

VERSIONS = {
    version: [
        {"id": "x", "text": f"kaban lodor {version} mifin"},
        {"id": "y", "text": f"{version} {version} nugar"},
        *[{"id": f"{version}{i}", "text": f"{version} kaban {i}"} for i in range(2)],
    ]
    for version in ("razu", "tovi")
}
OTHER = {"razu": "tovi", "tovi": "razu"}


Answers = dict[bool, str]


def answers(run: Run) -> Answers:
    """The hits of some queries, by both and by vectors."""
    found = {}
    for hybrid in (True, False):
        hits = run.search(QUERIES[:2], 400, hybrid=hybrid)
        documents = [hit.json() for each in hits for hit in each]
        found[hybrid] = json.dumps(documents, default=str)
    return found


def each_is_whole(found: Answers, expected: dict[str, Answers]) -> bool:
    """True if each answer is of one version; two questions may meet two."""
    return all(found[hybrid] in [of[hybrid] for of in expected.values()] for hybrid in found)


def change(run: Path, version: str) -> None:
    remove = [f"{OTHER[version]}{i}" for i in range(2)]
    known = set(Run(run).index.documents["id"].to_pylist())
    add_documents(run, VERSIONS[version], [name for name in remove if name in known])


def prepared(run: Path) -> dict[str, Answers]:
    """The answers of both versions, with none of them being written."""
    expected = {}
    for version in ("razu", "tovi", "razu"):
        change(run, version)
        expected[version] = answers(Run(run))
    assert expected["razu"] != expected["tovi"]
    return expected


def forked(work: Callable[[], None]) -> int:
    """Run in a process of its own: its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def kills(run: Path, count: int) -> tuple[int, dict[str, int]]:
    """End a process at any moment while it adds documents, and read all the while: how many were
    ended, and which version was left how often."""
    expected = prepared(run)
    draw = random.Random(0)
    began = time.perf_counter()
    change(run, "tovi")
    change(run, "razu")
    # Follows the machine's load, so that about half of the changes end by themselves.
    longest = time.perf_counter() - began
    version, seen, killed = "razu", {"razu": 0, "tovi": 0}, 0
    steady = Run(run)  # opened part by part, while the folder is replaced
    for _ in range(count):
        child = forked(partial(change, run, OTHER[version]))
        killer = Timer(draw.uniform(0, longest), os.kill, (child, signal.SIGKILL))
        killer.start()
        ended = 0
        while not ended:
            assert each_is_whole(answers(Run(run)), expected)
            if draw.random() < 0.2:
                steady = Run(run)
                steady.search("kaban", 3)
            else:
                assert each_is_whole(answers(steady), expected)
            # Not reaped before the killer has ended, so that the number stays the child's.
            if not killer.is_alive():
                ended, status = os.waitpid(child, os.WNOHANG)
        assert status in (0, signal.SIGKILL)
        if status == 0:
            longest /= 1.3
        else:
            killed += 1
            longest *= 1.3
        now = answers(Run(run))
        (version,) = [name for name, each in expected.items() if each == now]
        seen[version] += 1
        assert first_fault(run) is None
    change(run, OTHER[version])
    assert answers(Run(run)) == expected[OTHER[version]]
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    return killed, seen


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open folders, of Linux")
@pytest.mark.parametrize("after", range(1, 12))
def test_a_process_killed_while_it_removes_the_earlier_run_blocks_nobody(
    run: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Each file may be the last one that was removed."""
    removed = []
    for name in ("unlink", "rmdir"):
        real = getattr(os, name)

        def counted(path: Any, *arguments: Any, real: Any = real, **named: Any) -> None:
            place = named.get("dir_fd")
            folder = os.fspath(path) if place is None else os.readlink(f"/proc/self/fd/{place}")
            if ".replaced" in folder:
                removed.append(path)
                if len(removed) >= after:
                    os._exit(9)
            real(path, *arguments, **named)

        monkeypatch.setattr(os, name, counted)
    child = forked(partial(change, run, "razu"))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 9)
    monkeypatch.undo()
    change(run, "tovi")
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_readers_see_the_run_of_before_or_afterwards(run: Path) -> None:
    killed, _ = kills(run, 10)
    assert killed


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.long
def test_a_hundred_kills(run: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool) -> None:
    if not exchanges:
        monkeypatch.setattr(atomic, "exchange", lambda one, other: False)
    killed, seen = kills(run, 100)
    assert killed > 20 and min(seen.values()) > 0


def test_parts_of_two_states_never_meet(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vectors are open, and the folder is replaced before or while the words are opened."""
    from tempera.text.judge import hybrid

    expected = prepared(run)
    opened = Run(run)
    assert opened.search("kaban", 3)
    change(run, "tovi")
    assert answers(opened) == expected["tovi"]
    for name in ("open_words", "weight_of"):
        real = getattr(hybrid, name)
        times = []

        def in_between(*arguments: Any, real: Any = real, times: list[int] = times) -> Any:
            times.append(1)
            if len(times) > 1:
                return real(*arguments)
            change(run, "razu")
            result = real(*arguments)
            change(run, "tovi")
            change(run, "razu")
            return result

        opened = Run(run)
        opened.search("kaban", 3)
        with monkeypatch.context() as patch:
            patch.setattr(hybrid, name, in_between)
            assert answers(opened) == expected["razu"]
        assert len(times) > 1
        change(run, "tovi")


def test_a_run_finds_what_was_added_to_it(run: Path) -> None:
    opened = Run(run)
    opened.search("kaban")
    added = opened.add_documents([{"id": "new", "text": "kaban unheard of"}])
    assert added is opened and opened.document("new").text == "kaban unheard of"


def test_an_older_export_is_noted(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened = Run(run)
    opened.export("parquet")
    folder = run / "export" / "parquet"
    opened.search("kaban", index=folder)
    assert not caplog.records
    opened.add_documents([{"id": "new", "text": "kaban unheard of"}])
    opened.search("kaban", index=folder)
    assert "export again" in caplog.text
