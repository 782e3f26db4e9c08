"""Forms in which pairs of texts are published: each is read at the first try, or told in one line."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.errors import DataError
from tempera.options.build import build
from tempera.options.yaml_options import load
from tempera.text.judge.evaluate import evaluate
from tempera.text.judge.tasks import Graded, RetrievalTask, graded_columns, read_task
from tempera.text.read.pairs import Pairs
from tempera.text.read.sources import Given

COUNT = 12
Q = [f"how do I mend the old part {i}?" for i in range(COUNT)]
D = [f"To mend part {i}, take a brush of number {i + 9} and wait." for i in range(COUNT)]
N = [*D[5:], *D[:5]]  # what does not answer
Row = dict[str, Any] | list[Any]


def chat(i: int, who: str = "role", what: str = "content") -> list[dict[str, str]]:
    names = ("system", "user", "assistant") if who == "role" else ("system", "human", "gpt")
    return [
        {who: speaker, what: text}
        for speaker, text in zip((*names, names[1]), ("You help.", Q[i], D[i], "and then?"))
    ]


def rows_of(make: Callable[[int], Row]) -> list[Row]:
    return [make(i) for i in range(COUNT)]


def dpr(i: int) -> Row:
    """A row as DPR has it, whose titles are empty."""
    hard = (i + 5) % COUNT
    return {
        "question": Q[i],
        "answers": ["x"],
        "positive_ctxs": [{"title": "", "text": D[i], "score": 1000, "psg_id": str(i)}],
        "hard_negative_ctxs": [{"title": "", "text": N[i], "score": 3, "psg_id": str(hard)}],
        "negative_ctxs": [],
    }


def tevatron(i: int) -> Row:
    return {
        "query_id": f"q{i}",
        "query": Q[i],
        "positive_passages": [{"docid": f"d{i}", "text": D[i]}],
        "negative_passages": [{"docid": f"n{i}", "text": N[i]}],
    }


def selected(i: int) -> Row:
    passages = {"is_selected": [0, 1], "passage_text": [N[i], D[i]], "url": ["a", "b"]}
    return {"query": Q[i], "passages": passages, "query_type": "x"}


def preferred(i: int) -> Row:
    said = {"role": "user", "content": Q[i]}
    chats = ([said, {"role": "assistant", "content": text}] for text in (D[i], N[i]))
    return {"prompt": Q[i], **dict(zip(("chosen", "rejected"), chats))}


def squad(i: int) -> Row:
    answers = [{"text": "x", "answer_start": 0}]
    question = {"question": Q[i], "id": f"s{i}", "is_impossible": False, "answers": answers}
    return {"title": f"T{i}", "paragraphs": [{"context": D[i], "qas": [question]}]}


def code(i: int) -> Row:
    about = {"repo": "own/repo", "func_name": f"part_{i}", "partition": "train"}
    return {**about, "code": D[i], "docstring": Q[i], "docstring_tokens": Q[i].split()}


def response(i: int) -> Row:
    asked = {"timestamp": f"2026-01-{1 + i:02d}", "session_id": f"s{i}"}
    return {**asked, "user_query": Q[i], "response": D[i]}


FORMS: dict[str, list[Row]] = {
    "flag": rows_of(lambda i: {"query": Q[i], "pos": [D[i]], "neg": [N[i]], "pos_scores": [0.9]}),
    "tevatron": rows_of(tevatron),
    "dpr": rows_of(dpr),
    "ntuple": rows_of(lambda i: {"anchor": Q[i], "positive": D[i], "negative_1": N[i]}),
    "labelled": rows_of(lambda i: {"query": Q[i], "docs": [N[i], D[i]], "labels": [0, 1]}),
    "is_selected": rows_of(selected),
    "preferences": rows_of(lambda i: {"prompt": Q[i], "chosen": D[i], "rejected": N[i]}),
    "chats of preference": rows_of(preferred),
}
# Of which each row is a question and its answer, without negatives.
ANSWERS: dict[str, list[Row]] = {
    "query and pos": rows_of(lambda i: {"query": Q[i], "pos": [D[i]]}),
    "set": rows_of(lambda i: {"set": [Q[i], D[i]]}),
    "texts": rows_of(lambda i: {"texts": [Q[i], D[i]]}),
    "of any name": rows_of(lambda i: {"group": [Q[i], D[i]], "id": i}),
    "messages": rows_of(lambda i: {"messages": chat(i)}),
    "conversations": rows_of(lambda i: {"conversations": chat(i, "from", "value"), "id": f"c{i}"}),
    "alpaca": rows_of(lambda i: {"instruction": Q[i], "input": "", "output": D[i]}),
    "completion": rows_of(lambda i: {"prompt": Q[i], "completion": D[i]}),
    "response": rows_of(response),
    "SQuAD": rows_of(squad),
    "SQuAD, flat": rows_of(lambda i: {"id": f"s{i}", "title": f"T {i}", "context": D[i], "question": Q[i]}),
    "records": rows_of(lambda i: {"data": {"question": Q[i], "answer": D[i]}, "meta": {"n": i}}),
    "lists of records": rows_of(lambda i: {"page": f"p{i}", "faq": [{"question": Q[i], "answer": D[i]}]}),
    "answers": rows_of(lambda i: {"question": Q[i], "answer": [D[i]], "kind": None}),
    "code": rows_of(code),
    "papers": rows_of(lambda i: {"title": Q[i], "abstract": D[i], "citations": [Q[i - 1]], "year": 2000 + i}),
    "nomic": rows_of(lambda i: {"query": Q[i], "document": D[i], "metadata": {"pairs": [["x"]]}}),
    "a label that is 1": rows_of(lambda i: {"query": Q[i], "passage": D[i], "label": 1}),
}  # fmt: skip


def lines(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, *overrides: str) -> Pairs:
    pairs, _ = build(load(path, overrides)).data.read()
    return pairs


def learned(pairs: Pairs) -> pa.Table:
    """The columns of pairs that do not depend on the file: JSON tells dates from other texts."""
    others = {"place", "columns"} & {*pairs.table.column_names}
    return pairs.table.drop_columns([*others])


def negatives(pairs: Pairs) -> list[list[str]]:
    return pairs.table["negatives"].to_pylist()


@pytest.mark.parametrize("name", [*FORMS, *ANSWERS])
def test_a_form_is_read_at_the_first_try(tmp_path: Path, name: str) -> None:
    rows = {**FORMS, **ANSWERS}[name]
    path = lines(tmp_path / "a.jsonl", rows)
    pairs = read(path)
    assert pairs.texts("query") == Q and pairs.texts("doc") == D
    if name in FORMS:
        assert negatives(pairs) == [[text] for text in N]
    assert pairs.about.startswith(f"{path}: pairs\n  ")
    frame = pa.Table.from_pylist(rows)
    parquet.write_table(frame, tmp_path / "a.parquet")
    of_columns = read(tmp_path / "a.parquet")
    assert learned(of_columns) == learned(pairs)
    again, _ = pairs.source.read()  # type: ignore[union-attr]  # as a run reads its data again
    assert again.table == pairs.table
    handed = Given.of(frame, metadata=("*",)).read()[0]
    assert handed.texts("query") == Q and handed.texts("doc") == D


def test_values_without_names_stand_in_the_order_of_a_triple(tmp_path: Path) -> None:
    for rows in ([[*row] for row in zip(Q, D)], [[*row] for row in zip(Q, D, N)]):
        names = [f"column{i}" for i in range(1, len(rows[0]) + 1)]
        frame = pa.Table.from_pylist([dict(zip(names, row)) for row in rows])
        pairs = Given.of(frame, metadata=("*",)).read()[0]
        assert pairs.texts("query") == Q and pairs.texts("doc") == D
        if len(names) == 3:
            assert negatives(pairs) == [[text] for text in N]
        assert "column1  read as query" in pairs.about and "by its place" in pairs.about
    named = Given.of(frame.rename_columns(["a", "b", "c"]), metadata=("*",))
    with pytest.raises(DataError, match="no column that is usual for a query"):
        named.read()


def test_a_set_pairs_its_first_text_with_each_other_one(tmp_path: Path) -> None:
    rows: list[Row] = [{"set": [Q[0], D[0], D[1]]}, {"set": [Q[1], D[2]]}]
    pairs = read(lines(tmp_path / "a.jsonl", rows))
    assert list(zip(pairs.texts("query"), pairs.texts("doc"))) == [
        (Q[0], D[0]),
        (Q[0], D[1]),
        (Q[1], D[2]),
    ]


def test_records_become_rows_that_messages_name(tmp_path: Path) -> None:
    q = [{"question": text, "answers": []} for text in Q]
    first = [{"context": D[0], "qas": q[:2]}, {"context": D[2], "qas": [q[2]]}]
    rows: list[Row] = [
        {"title": "t", "paragraphs": first},
        {"title": "u", "paragraphs": [{"context": D[3], "qas": [q[3]]}]},
    ]
    pairs = read(path := lines(tmp_path / "a.jsonl", rows))
    assert list(zip(pairs.texts("query"), pairs.texts("doc"))) == [
        (Q[0], D[0]),
        (Q[1], D[0]),
        (Q[2], D[2]),
        (Q[3], D[3]),
    ]
    assert pairs.texts("place") == [f"{path} row {row}" for row in (1, 1, 1, 2)]
    assert "each record of paragraphs, paragraphs.qas is a row" in pairs.about
    named = ("data.query=paragraphs.qas.question", "data.doc=paragraphs.context")
    assert read(path, *named).table == pairs.table


def test_a_path_names_what_lies_inside(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"messages": chat(i), "meta": {"notes": [{"text": D[i], "by": "x"}]}} for i in range(COUNT)
    ]
    path = lines(tmp_path / "a.jsonl", rows)
    pairs = read(path, "data.query=messages.1.content", "data.doc=meta.notes.text")
    assert pairs.texts("query") == Q and pairs.texts("doc") == D
    assert "messages.1.content  read as query  an option" in pairs.about
    with pytest.raises(DataError, match=r"has no column 'messages\.9\.x' for data.query"):
        read(path, "data.query=messages.9.x", "data.doc=meta.notes.text")


def test_a_chat_begins_with_a_question(tmp_path: Path) -> None:
    """Greetings before it are no answers, and chats without an answer are left out."""
    hello = {"role": "assistant", "content": "Hello!"}
    rows: list[Row] = [
        {"messages": [hello, *chat(0)[1:]]},
        {"messages": [chat(1)[1]]},
        {"messages": []},
        {"messages": chat(2)},
    ]
    pairs = read(lines(tmp_path / "a.jsonl", rows))
    assert pairs.texts("query") == [Q[0], Q[2]] and pairs.texts("doc") == [D[0], D[2]]
    assert pairs.dropped == {"rows without a text": 2}


def test_lists_with_grades_need_a_bound_and_rows_without_an_answer_are_counted(
    tmp_path: Path,
) -> None:
    rows: list[Row] = [
        {"query": Q[i], "docs": [D[i], N[i]], "scores": [4.5, 0.5 + i]} for i in range(6)
    ]
    path = lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match=r"'scores' holds .*: give data.min_score=5, the upper"):
        read(path)
    pairs = read(path, "data.min_score=4")
    assert len(pairs) == 8 and negatives(pairs)[0] == [N[0]]
    none: list[Row] = [
        {"query": Q[i], "docs": [D[i], N[i]], "labels": [i % 2, 0]} for i in range(6)
    ]
    pairs = read(lines(tmp_path / "b.jsonl", none))
    assert pairs.texts("query") == [Q[1], Q[3], Q[5]]
    assert pairs.dropped == {"rows without a relevant text": 3}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"query_id": 7, "document_ids": [1, 2], "scores": [9.0, 1.0]}], "ids or numbers alone"),
        ([{"qid": 7, "pos": [1], "neg": {"bm25": [2], "mpnet": [3]}}], "ids or numbers alone"),
        ([{"instruction": "add these", "input": "1, 2", "output": "three"}], "'instruction' and 'input' ask together: write both"),
        ([{"query": Q[0], "answer": {"value": "x", "aliases": ["y"]}}], "name a field, data.doc=answer.value, answer.aliases"),
    ],
)  # fmt: skip
def test_what_is_no_pair_is_told(tmp_path: Path, rows: list[Row], says: str) -> None:
    with pytest.raises(DataError) as error:
        read(lines(tmp_path / "a.jsonl", rows))
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "cells",
    [
        ["['a text', 'another']"] * 11 + ["[]"],
        ['["a text"]'] * 11 + ["[]"],
        ["[a text, another one]"] * 12,
    ],
)
@pytest.mark.parametrize("column", ["doc", "negatives"])
def test_lists_that_are_written_as_text_are_told(
    tmp_path: Path, cells: list[str], column: str
) -> None:
    rows = {"query": Q, "doc": D, column: cells}
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*rows], *zip(*rows.values())])
    with pytest.raises(DataError, match="holds lists that are written as text"):
        read(tmp_path / "a.csv")


def test_documents_that_hold_their_query_are_told(tmp_path: Path) -> None:
    rows: list[Row] = [{"docstring": q, "code": f'def f():\n    """{q}"""'} for q in Q]
    about = read(lines(tmp_path / "a.jsonl", rows)).about
    assert "caution: most documents hold their own query word for word" in about
    assert "caution" not in read(lines(tmp_path / "b.jsonl", ANSWERS["answers"])).about


def test_topics_documents_and_judgements_of_trec_are_told_and_events_are_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "x").mkdir()
    topics = "".join(f"<top>\n<num> Number: {i}\n<title> {q}\n</top>\n" for i, q in enumerate(Q))
    docs = "".join(
        f"<DOC>\n<DOCNO> F-{i} </DOCNO>\n<TEXT>{d}</TEXT>\n</DOC>\n" for i, d in enumerate(D)
    )
    judged = "".join(f"{i} 0 F-{i} 1\n" for i in range(COUNT))
    for name, content in (("topics.txt", topics), ("docs.trec", docs), ("judged.txt", judged)):
        (tmp_path / "x" / name).write_text(content)
        with pytest.raises(DataError, match=f"{name} holds .* of TREC: give a folder of tables"):
            build(load(tmp_path / "x" / name))
    with pytest.raises(DataError, match=r"x/docs\.trec holds topics or documents of TREC"):
        build(load(tmp_path / "x"))
    events = "".join(f"{i % 4} {i} {1 + i % 5} {881250949 + i}\n" for i in range(COUNT))
    (tmp_path / "events.txt").write_text(events)
    with pytest.raises(DataError) as error:
        build(load(tmp_path / "events.txt"))
    assert "TREC" not in str(error.value)


def test_ids_in_place_of_texts_are_told(tmp_path: Path) -> None:
    rows: list[Row] = [{"query": f"q{i}", "pos": [f"d{i}"]} for i in range(COUNT)]
    about = read(lines(tmp_path / "a.jsonl", rows)).about
    assert "caution: queries and documents look like ids, and texts are needed" in about


SENTENCES = {"sentence1": Q, "sentence2": D}


def test_two_sentences_and_a_scale_are_graded(tmp_path: Path) -> None:
    grades = [round(5 * (i % 4) / 3, 2) for i in range(COUNT)]
    for name in ("score", "similarity_score", "how_close"):
        table = pa.table({**SENTENCES, name: grades, "year": [2012] * COUNT})
        parquet.write_table(table, tmp_path / "a.parquet")
        for data in (tmp_path / "a.parquet", table):
            task = read_task(data)
            assert isinstance(task, Graded) and task.grades.tolist() == grades
    assert graded_columns(pa.table({**SENTENCES, "label": [0, 1, 2] * 4}), "a") is None
    assert graded_columns(pa.table({**SENTENCES, "label": ["yes", "no"] * 6}), "a") is None
    assert graded_columns(pa.table({"query": Q, "doc": D, "score": grades}), "a") is None


def test_frames_are_evaluated_as_files_are(tmp_path: Path, tiny_run: Path) -> None:
    frame = pa.table({"heading": Q, "section": D, "id": [*range(COUNT)]})
    parquet.write_table(frame, tmp_path / "a.parquet")
    (of_frame,), (of_file,) = (
        evaluate(tiny_run, data, metrics=["mrr@10"]) for data in (frame, tmp_path / "a.parquet")
    )
    assert isinstance(of_frame.task, RetrievalTask)
    assert of_frame.systems[str(tiny_run)].per_query["mrr@10"].tolist() == (
        of_file.systems[str(tiny_run)].per_query["mrr@10"].tolist()
    )
