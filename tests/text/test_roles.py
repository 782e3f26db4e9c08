"""Columns by role: lists of positives and negatives, ids, scores, prompts, other libraries'
layouts, objects, folders."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.errors import ConfigError, DataError
from tempera.io.ids import content_id
from tempera.text.read.pairs import Pairs
from tempera.text.read.sources import BeirFolder, Given, PairsFile


def given(rows: list[dict[str, Any]], **roles: Any) -> Pairs:
    return Given.of(pa.Table.from_pylist(rows), **roles).read()[0]


def shown(pairs: Pairs) -> list[tuple[str, str, list[str]]]:
    negatives = (
        pairs.table["negatives"].to_pylist()
        if "negatives" in pairs.table.column_names
        else [[]] * len(pairs)
    )
    return list(zip(pairs.texts("query"), pairs.texts("doc"), negatives))


def test_flag_embedding(tmp_path: Path) -> None:
    rows = [
        {
            "query": "a",
            "pos": ["x", "y"],
            "neg": ["u", "v", "w"],
            "pos_scores": [0.9, 0.5],
            "neg_scores": [0.1, 0.88, 0.7],
        },
        {
            "query": "b",
            "pos": ["z"],
            "neg": [],
            "pos_scores": [0.5],
            "neg_scores": [],
            "prompt": "ask: ",
        },
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    pairs, _ = PairsFile(str(tmp_path / "a.jsonl")).read()
    assert shown(pairs) == [
        ("a", "x", ["u", "v", "w"]),
        ("a", "y", ["u", "v", "w"]),
        ("ask: b", "z", []),
    ]
    close, _ = PairsFile(str(tmp_path / "a.jsonl"), negative_margin=0.05).read()
    assert shown(close)[0] == ("a", "x", ["u", "w"])
    assert close.dropped == {"negatives within negative_margin": 1}


def test_tevatron(tmp_path: Path) -> None:
    def passage(name: str) -> dict[str, str]:
        return {"docid": name, "title": f"t{name}", "text": f"of {name}"}

    row = {
        "query_id": "q1",
        "query": "a",
        "positive_passages": [passage("1")],
        "negative_passages": [passage("2"), passage("3")],
    }
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(json.dumps(row))
    pairs, _ = PairsFile(str(tmp_path / "a.jsonl.gz")).read()
    assert shown(pairs) == [("a", "t1 of 1", ["t2 of 2", "t3 of 3"])]
    other = given(
        [
            {
                "query": "c",
                "query_id": "q1",
                "doc": "t",
                "doc_id": 1,
                "negatives": ["u", "v"],
                "negative_ids": [2, 3],
            }
        ]
    )
    assert pairs.ids("doc") == other.ids("doc") and pairs.ids("query") == other.ids(
        "query"
    )  # 1 is "1"
    assert pairs.negatives[0].tolist() == other.negatives[0].tolist()
    assert pairs.ids("doc")[0] != content_id("t1 of 1")


def test_negatives_of_two_forms_have_the_ids_of_their_content(tmp_path: Path) -> None:
    """Objects with ids beside plain texts; and ids that are numbers in one column and texts in
    another."""
    row = {"query": "a", "doc": "x", "negative_1": {"docid": 5, "text": "u"}}
    for other in ("v", {"docid": "6", "text": "v"}):
        pairs = given([{**row, "negative_2": other}])
        assert shown(pairs) == [("a", "x", ["u", "v"])]
        by_content = other == "v"
        assert (pairs.negatives[0].tolist() == [content_id("u"), content_id("v")]) == by_content


def test_numbered_negatives_may_be_missing_and_those_that_answer_are_left_out() -> None:
    rows = [
        {"anchor": "a", "positive": "x", "negative_1": "u", "negative_2": None},
        {"anchor": "b", "positive": "y", "negative_1": " y", "negative_2": "v"},
        {"anchor": "c", "positive": "z", "negative_1": "c", "negative_2": None},
    ]
    pairs = given(rows)
    assert shown(pairs) == [("a", "x", ["u"]), ("b", "y", ["v"]), ("c", "z", [])]
    assert pairs.dropped == {"negatives that are a query or answer of the same row": 2}
    assert pairs.negatives[1].tolist() == [0, 1, 2, 2]


def test_mined_negatives() -> None:
    row = {
        "query_id": 5,
        "query": "a",
        "positive_ids": [7],
        "positives": ["x"],
        "positive_scores": [0.9],
    }
    mined = {
        "negative_ids": [8, 7],
        "negatives": ["u", "x "],
        "negative_scores": [0.8, 0.7],
        "negative_ranks": [3, 4],
    }
    pairs = given([{**row, **mined}])
    assert shown(pairs) == [("a", "x", ["u"])] and sum(pairs.dropped.values()) == 1


def test_repeats_are_counted_and_other_negatives_make_no_repeat() -> None:
    rows = [
        ("a", "x", ["u", "v"]),
        ("a", "x", ["v", "u"]),
        ("a ", "x", ["v"]),
        ("a", "x", []),
        ("a", "x", []),
    ]
    pairs = given([dict(zip(("query", "doc", "negatives"), row)) for row in rows])
    assert [n for _, _, n in shown(pairs)] == [["u", "v"], ["v"], []]
    assert pairs.dropped == {"repeated pairs": 2}


def test_scores_weights_and_identical_texts() -> None:
    rows = [
        {"sentence1": "a", "sentence2": b, "score": s, "weight": w}
        for b, s, w in [("x", 1, 1), ("y", 0.2, 2), ("a", 0.9, 3)]
    ]
    with pytest.raises(
        DataError,
        match=r"row 3: column 'sentence2' equals its query: set data.identical=drop, or keep",
    ):
        given(rows, min_score=0.5, identical="refuse")
    pairs = given(rows, min_score=0.5)
    assert pairs.texts("doc") == ["x"] and pairs.table["weight"].to_pylist() == [1]
    assert pairs.dropped == {"rows below min_score": 1, "rows whose document equals the query": 1}
    assert given(rows, metadata=("score",), identical="keep").texts("doc") == ["x", "y", "a"]


def test_prompts_stand_before_texts_and_make_other_ids() -> None:
    rows = [{"query": "a", "doc": "x", "negatives": ["y"]}]
    plain, behind = given(rows), given(rows, query_prompt="q: ", doc_prompt="d: ")
    assert shown(behind) == [("q: a", "d: x", ["d: y"])]
    assert not {*plain.ids("query"), *plain.ids("doc")} & {*behind.ids("query"), *behind.ids("doc")}


def test_columns_without_a_role_are_refused_and_the_roles_found_are_written_down() -> None:
    rows = [{"question": "a", "answer": "x", "negativ": "u", "topic": 1}]
    with pytest.raises(
        DataError, match=r"column 'negativ' has no usual name.* Did you mean negative\?$"
    ):
        given(rows)
    pairs = given(rows, negatives=("negativ",), metadata=("topic",))
    found = asdict(pairs.source)  # type: ignore[call-overload]
    assert (found["query"], found["doc"], found["negatives"]) == (
        "question",
        "answer",
        ("negativ",),
    )
    with pytest.raises(ConfigError, match="column 'answer' is given as doc and as negatives"):
        given(rows, doc="answer", negatives=("answer",), metadata=("*",))


def test_a_folder_of_shards_equals_one_file_and_is_mapped(tmp_path: Path) -> None:
    rows = [
        {"query": f"q{i}", "doc": f"d{i % 7}", "negatives": [f"n{j}" for j in range(i % 3)]}
        for i in range(50)
    ] * 2
    (tmp_path / "shards").mkdir()
    for i in range(5):
        parquet.write_table(
            pa.Table.from_pylist(rows[20 * i : 20 * i + 20]), tmp_path / "shards" / f"{i}.parquet"
        )
    before = pa.total_allocated_bytes()
    pairs, _ = PairsFile(str(tmp_path / "shards")).read(tmp_path / "cache")
    read = pa.total_allocated_bytes() - before
    assert (
        shown(pairs) == shown(given(rows))
        and len(pairs) == 50
        and pairs.dropped == {"repeated pairs": 50}
    )
    assert pairs.texts("place")[20] == f"{tmp_path}/shards/1.parquet row 1"
    assert read < 1 << 20
    assert pairs.texts("query", np.array([33, 2, 33])) == ["q33", "q2", "q33"]


def test_objects_of_other_libraries() -> None:
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    rows = [{"anchor": f"a{i}", "positive": f"x{i}"} for i in range(5)]
    data = datasets.Dataset.from_list(rows)
    expected = shown(given(rows))
    for one in (
        data,
        data.to_iterable_dataset(),
        pandas.DataFrame(rows),
        pa.Table.from_pylist(rows),
    ):
        assert shown(Given.of(one).read()[0]) == expected
    chosen = Given.of(data.select([3, 1])).read()[0]
    assert chosen.texts("query") == ["a3", "a1"]
    alone = datasets.DatasetDict({"train": data})
    assert shown(Given.of(alone).read()[0]) == expected
    several = datasets.DatasetDict(train=data.select([0, 1, 2]), test=data.select([3, 4]))
    pairs, _ = Given.of(several).read()
    assert shown(pairs) == expected and pairs.part.tolist() == [0, 0, 0, 2, 2]
    with pytest.raises(DataError, match="the splits a, b, none of which is called train"):
        Given.of(datasets.DatasetDict(a=data, b=data)).read()
    with pytest.raises(DataError, match="data is list, which gives no Arrow stream"):
        Given.of(rows).read()


def test_a_beir_folder(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(
        "".join(
            json.dumps({"_id": f"d{i}", "title": f"t{i}", "text": f"x{i}"}) + "\n" for i in range(3)
        )
    )
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "a"}) + "\n")
    (tmp_path / "qrels" / "train.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq\td0\t1\nq\td2\t2\nq\td1\t0\n"
    )
    pairs, _ = BeirFolder(str(tmp_path)).read()
    assert shown(pairs) == [("a", "t0 x0", []), ("a", "t2 x2", []), ("", "t1 x1", [])]
    assert pairs.texts("name") == [""] * 3 and not pairs.dropped
    judged, _ = BeirFolder(str(tmp_path), corpus="judged").read()
    assert shown(judged) == shown(pairs)[:2]
    assert judged.dropped == {
        "documents that answer no query, and are not searched (data.corpus=judged)": 1
    }


def test_integers_of_64_bits_are_ids_and_floating_ones_are_refused(tmp_path: Path) -> None:
    """Read as doubles, the ids of different documents would become one."""
    ids = [(1 << 63) + 10 * i for i in range(5)]
    rows = {"query": list("abcde"), "doc": list("vwxyz"), "doc_id": ids}
    assert (
        len(
            set(
                Given.of(pa.table({**rows, "doc_id": pa.array(ids, pa.uint64())}))
                .read()[0]
                .ids("doc")
            )
        )
        == 5
    )
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps(dict(zip(rows, row))) for row in zip(*rows.values()))
    )
    with pytest.raises(
        DataError,
        match=r"a.jsonl: column 'doc_id' holds double; .* write integers of more than 63 bits",
    ):
        PairsFile(str(tmp_path / "a.jsonl")).read()
    with pytest.raises(DataError, match="no table can be made of it: "):
        Given.of(
            pytest.importorskip("pandas").DataFrame(
                {**rows, "doc_id": [2**70 + i for i in range(5)]}
            )
        ).read()


def test_texts_that_share_an_id_are_counted() -> None:
    rows = [{"query": f"q{i}", "doc": f"text {i}", "doc_id": f"d{i // 3}"} for i in range(6)]
    assert given(rows).dropped == {"texts whose doc_id another text has": 4}
    assert given([{**row, "doc": f"text  {row['doc_id']} "} for row in rows]).dropped == {}


def test_rows_without_a_text_are_dropped_and_counted() -> None:
    rows = [
        {"query": "a", "doc": [None, " "], "negatives": ["u"]},
        {"query": None, "doc": ["y"], "negatives": ["u"]},
        {"query": "c", "doc": [], "negatives": ["u"]},
        {"query": "d", "doc": ["z"], "negatives": ["v"]},
    ]
    with pytest.raises(
        DataError,
        match=r"row 2: column 'query' has no text: set data.missing_text=drop to leave such rows out",
    ):
        given(rows, missing_text="refuse")
    pairs = given(rows)
    assert shown(pairs) == [("d", "z", ["v"])] and pairs.dropped == {"rows without a text": 3}


def test_of_several_answers_only_the_blank_ones_are_left_out() -> None:
    rows = [
        {
            "query": "a",
            "doc": ["x", " ", "y"],
            "doc_id": ["1", "2", "3"],
            "positive_scores": [0.9, None, 0.5],
        },
        {"query": "b", "doc": [" ", ""], "doc_id": ["4", None], "positive_scores": [0.1, 0.2]},
        {"query": "c", "doc": [None, "z"], "doc_id": [None, "5"], "positive_scores": [None, 0.7]},
        {
            "query": " ",
            "doc": ["v"],
            "doc_id": [None],
            "positive_scores": [None],
        },  # no id is missed where no text is
    ]
    pairs = given(rows)
    assert shown(pairs) == [("a", "x", []), ("a", "y", []), ("c", "z", [])]
    assert pairs.dropped == {"rows without a text": 2}
    assert pairs.table["given_doc_id"].to_pylist() == ["1", "3", "5"]
    with pytest.raises(
        DataError,
        match=r"row 1: column 'doc' has no text \(4 such rows\): set data.missing_text=drop",
    ):
        given(rows[:3], missing_text="refuse")


def test_categories_are_texts() -> None:
    table = pa.table(
        {"query": ["a", "b"], "doc": pa.array(["x", "x"]).dictionary_encode(), "topic": ["t", "t"]}
    )
    assert Given.of(table, metadata=("topic",)).read()[0].texts("doc") == ["x", "x"]
    several = pa.ListArray.from_arrays(
        pa.array([0, 2, 3]), pa.array(["x", "y", "x"]).dictionary_encode()
    )
    passages = pa.StructArray.from_arrays([pa.array(["v", "w"]).dictionary_encode()], ["text"])
    table = pa.table({"query": ["a", "b"], "doc": several, "negatives": passages})
    assert shown(Given.of(table).read()[0]) == [
        ("a", "x", ["v"]),
        ("a", "y", ["v"]),
        ("b", "x", ["w"]),
    ]
    views = pa.DictionaryArray.from_arrays(
        pa.array([0, 0, 0], pa.int8()), pa.array(["x"]).cast(pa.string_view())
    )
    table = pa.table(
        {"query": ["a", "b"], "doc": pa.ListArray.from_arrays(pa.array([0, 2, 3]), views)}
    )
    with pytest.raises(DataError, match=r"column 'doc' holds .*dictionary.*; expected texts"):
        Given.of(table).read()


def test_an_array_of_json(tmp_path: Path) -> None:
    rows = [{"query": f"q{i}", "doc": ["x", f"y{i}"]} for i in range(3)]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=2))
    assert shown(PairsFile(str(tmp_path / "a.json")).read()[0]) == shown(given(rows))
