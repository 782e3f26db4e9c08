"""A text of the test is in no training row, whatever its role, case, white space or Unicode form."""

from __future__ import annotations

import json
import os
import random
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from tempera.errors import DataError
from tempera.io.ids import content_ids, form, form_ids
from tempera.task.evaluation import Evaluation
from tempera.text.read.pairs import Pairs, Rows
from tempera.text.read.sources import BeirFolder, PairsFile
from tempera.text.train.catalogue import Catalogue
from tempera.text.train.mixture import Mixture
from tempera.text.train.split import HELD_OUT, SHARES_DOCUMENT, SHARES_QUERY, Split, hold_out
from tempera.text.train.unpaired_texts import Documents

SHARED = Path(os.environ.get("TEMPERA_DATA", Path(__file__).parents[3] / "shared" / "data"))
WRITTEN = (
    str,
    str.upper,
    lambda text: f"  {text.replace(' ', chr(9))}\n",
    lambda text: unicodedata.normalize("NFD", text),
    lambda text: "".join(chr(ord(c) + 0xFEE0) if c.isascii() and c.isalpha() else c for c in text),
)


def same(text: str) -> str:
    """The definition, in other words than the code's."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def texts_of(pairs: Pairs, rows: Rows, *roles: str) -> set[str]:
    return {same(text) for role in roles for text in pairs.texts(role, rows)}


def leaks(split: Split) -> set[str]:
    """Return the texts of the test and of validation that a training row holds in any role."""
    pairs, held = split.pairs, np.concatenate([split.test, split.validation])
    learned = texts_of(pairs, split.train, "query", "doc")
    catalogue = Catalogue.of(pairs, split.withheld)
    negatives = catalogue.negatives[torch.from_numpy(split.train)].values.numpy()
    learned |= {same(text) for text in catalogue.docs.take(negatives)}
    unknown = held[~split.known[held]]
    return learned & (texts_of(pairs, held, "query") | texts_of(pairs, unknown, "doc"))


def rows_with_copies(seed: int, count: int = 60) -> list[dict[str, Any]]:
    """Pairs with repeats, chains and reversals of others, each text written in any way."""
    draw = random.Random(seed)
    texts = [f"café ﬁ {number}" for number in range(2 * count)]

    def written(number: int) -> str:
        return draw.choice(WRITTEN)(texts[number])

    rows = []
    for number in range(count):
        query, doc = number, count + number
        if draw.random() < 0.3:
            doc = draw.choice([draw.randrange(count), draw.randrange(2 * count)])
        if draw.random() < 0.2:
            query, doc = doc, query
        if query != doc:
            negatives = [written(draw.randrange(2 * count)) for _ in range(draw.randrange(3))]
            rows.append({"query": written(query), "doc": written(doc), "negatives": negatives})
    return rows


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_the_form_of_a_text() -> None:
    texts = [same("café ﬁ"), " CAFÉ\tFI ", "cafe\u0301 fi", "ｃａｆé\u00a0ﬁ", "cafe fi", "", " "]
    assert [form(text) == "café fi" for text in texts] == [True] * 4 + [False] * 3
    column = pa.chunked_array([texts[:2], texts[2:], []], pa.large_string())
    assert form_ids(column).tolist() == content_ids(map(form, texts)).tolist()
    assert form_ids(column[3:]).tolist() == form_ids(column).tolist()[3:]
    separators = [f"a{chr(code)}B" for code in (9, 11, 12, 28, 31, 32)]  # to Python, white space
    assert len(set(form_ids(pa.array(separators)).tolist())) == 1


@pytest.mark.parametrize("seed", range(12))
def test_drawn_parts_lose_nothing_and_leak_nothing(seed: int, tmp_path: Path) -> None:
    pairs, candidates = PairsFile(written(tmp_path / "a.jsonl", rows_with_copies(seed))).read()
    split = hold_out(pairs, candidates, Evaluation(queries=6, validation=6, seed=seed))
    assert len(split.test) and len(split.validation) and not leaks(split)
    parts = [
        texts_of(pairs, rows, "query", "doc")
        for rows in (split.train, split.validation, split.test)
    ]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert {*split.dropped} <= {HELD_OUT} and split.dropped.get(HELD_OUT, 1)
    assert len(split.train) + len(split.validation) + len(split.test) == len(pairs)
    assert split.queries(split.test) <= 6 and split.queries(split.validation) <= 6
    more = split.extended("validation")
    assert len(more.train) == len(split.train) + len(split.validation)
    assert not leaks(Split(**{**vars(more), "validation": more.test}))
    kept = hold_out(
        pairs,
        candidates,
        Evaluation(queries=6, validation=6, seed=seed, shared_documents="keep"),
    )
    assert kept.known.all() and not leaks(kept)  # queries are held out all the same


@pytest.mark.parametrize("seed", range(6))
def test_named_parts_take_their_texts_out_of_training(seed: int, tmp_path: Path) -> None:
    rows = rows_with_copies(seed)
    files = {
        name: written(tmp_path / f"{name}.jsonl", part)
        for name, part in (("train", rows[:40]), ("validation", rows[40:48]), ("test", rows[48:]))
    }
    pairs, candidates = PairsFile(files["train"], files["validation"], files["test"]).read()
    split = hold_out(pairs, candidates, Evaluation())
    assert not leaks(split)
    held = np.concatenate([split.test, split.validation])
    queries, docs = (texts_of(pairs, held, role) for role in ("query", "doc"))
    lost = [0, 0]
    for at in np.flatnonzero(pairs.part == 0):
        own = texts_of(pairs, np.array([at]), "query", "doc")
        if own & queries:
            lost[0] += 1
        elif own & docs:
            lost[1] += 1
    validation = int((pairs.part == 1).sum()) - len(split.validation)  # it shares with the test
    assert split.dropped.get(SHARES_QUERY, 0) == lost[0] + validation
    assert split.dropped.get(SHARES_DOCUMENT, 0) == lost[1]
    assert len(split.train) == 40 - sum(lost) - (40 - int((pairs.part == 0).sum()))
    assert not leaks(Split(**{**vars(split.extended("validation")), "validation": split.test}))


def test_a_reversed_pair_of_a_beir_split_is_not_trained_on(tmp_path: Path) -> None:
    """The query of a test stands as a document, and its answer as a query, in other writing."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    docs = [{"_id": f"d{i}", "text": f"Answer {i}"} for i in range(9)]
    docs.append({"_id": "d9", "text": "QUESTION  0"})
    queries = [{"_id": f"q{i}", "text": f"Question {i}"} for i in range(9)]
    queries.append({"_id": "q9", "text": "answer\t0"})
    written(folder / "corpus.jsonl", docs)
    written(folder / "queries.jsonl", queries)
    for name, judged in (("test", [(0, 0)]), ("train", [(9, 9), *((i, i) for i in range(1, 9))])):
        rows = "".join(f"q{query}\td{doc}\t1\n" for query, doc in judged)
        (folder / "qrels" / f"{name}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    split = hold_out(*BeirFolder(str(folder), test="test").read(), Evaluation(validation=0))
    assert not leaks(split)
    assert len(split.train) == 8 and split.dropped == {SHARES_QUERY: 1}


def test_a_mixture_with_prompts_holds_out_what_stands_behind_them(tmp_path: Path) -> None:
    """One source holds every pair of another in reverse, each role behind a prompt of its own."""
    rows = [{"query": f"Question {i}", "doc": f"Answer {i}"} for i in range(40)]
    turned = [{"query": row["doc"].upper(), "doc": row["query"]} for row in rows]
    plain = PairsFile(written(tmp_path / "a.jsonl", rows))
    prompted = PairsFile(
        written(tmp_path / "b.jsonl", turned), query_prompt="ask: ", doc_prompt="read: "
    )
    split = hold_out(*Mixture([plain, prompted]).read(), Evaluation(queries=8, validation=8))
    numbers = [
        {text.lower().split()[-1] for text in split.pairs.texts("query", rows)}
        for rows in (split.train, split.validation, split.test)
    ]
    assert [len(part) for part in numbers] == [32, 4, 4] and len(set.union(*numbers)) == 40
    assert not split.dropped


def test_what_is_made_of_a_test_document_is_not_trained_on(tmp_path: Path) -> None:
    texts = [f"Title {i}. The rest of document {i}." for i in range(60)]
    parquet.write_table(pa.table({"text": texts}), tmp_path / "docs.parquet")
    test = written(
        tmp_path / "test.jsonl",
        [{"query": f"ask {i}", "doc": texts[i].upper()} for i in range(5)],
    )
    source = Documents(str(tmp_path / "docs.parquet"), test=test, rule="heading")
    split = hold_out(*source.read(), Evaluation())
    made_of = {text.split()[-1].rstrip(".") for text in split.pairs.texts("doc", split.train)}
    assert not made_of & {str(i) for i in range(5)} and len(split.train) > 40
    assert split.dropped[SHARES_DOCUMENT] == 5


def test_rows_of_one_large_group_stay_in_training() -> None:
    chain = [(f"c{i}", f"c{i + 1}") for i in range(100)]
    alone = [(f"q{i}", f"d{i}") for i in range(100)]
    pairs = Pairs.of(*zip(*chain + alone, strict=True))
    split = hold_out(pairs, np.ones(200, bool), Evaluation())
    assert split.queries(split.test) == split.queries(split.validation) == 20
    assert not leaks(split) and not split.dropped
    assert set(range(100)) <= {*split.train.tolist()}
    assert split.lines()[1] == (
        "100 pairs share texts in groups that are too large to hold out, and stay in training"
    )


def test_where_all_rows_are_one_group_queries_are_drawn_one_by_one() -> None:
    pairs = Pairs.of([f"c{i}" for i in range(100)], [f"C{i + 1}" for i in range(100)])
    split = hold_out(pairs, np.ones(100, bool), Evaluation())
    assert split.queries(split.test) == 10 and not leaks(split)
    assert len(split.train) + sum(split.dropped.values()) == 80
    assert "queries of test and validation are drawn one by one" in split.lines()[1]
    wanted = Evaluation(queries=10, validation=0)
    triplets = Pairs.of([f"q{i}" for i in range(99)], [f"d{i // 3}" for i in range(99)])
    split = hold_out(triplets, np.ones(99, bool), wanted)
    assert (
        split.queries(split.test) == 9
        and len(split.lines()) == 3
        and split.lines()[-1]
        == (
            "evaluation.queries is 10, but 9 queries are held out, in whole groups of pairs that share texts"
        )
    )


def test_a_query_of_a_large_group_is_no_more_likely_to_be_held_out() -> None:
    pairs = Pairs.of(
        [f"q{i}" for i in range(200)],
        [f"d{max(i, 100) // 5 if i >= 100 else 1000 + i}" for i in range(200)],
    )
    drawn = [
        hold_out(pairs, np.ones(200, bool), Evaluation(queries=20, validation=0, seed=seed)).test
        for seed in range(200)
    ]
    share = np.mean([(rows >= 100).mean() for rows in drawn])
    assert 0.4 < share < 0.55  # 0.8 where any query brings its group


@pytest.mark.parametrize("how", ["drawn", "named", "mixed"])
def test_documents_with_five_queries_each_count_as_known(how: str, tmp_path: Path) -> None:
    rows = [{"query": f"message {i}", "doc": f"reply {i % 7}"} for i in range(140)]
    rows.append({"query": "Reply 3", "doc": "reply 4"})  # a message that is a reply
    if how == "named":
        source: Any = PairsFile(
            written(tmp_path / "a.jsonl", rows[20:]),
            test=written(
                tmp_path / "b.jsonl", [*rows[:20], {"query": "MESSAGE 30", "doc": "reply 1"}]
            ),
        )
    else:
        source = PairsFile(written(tmp_path / "a.jsonl", rows))
    if how == "mixed":
        other = [{"query": f"q{i}", "doc": f"d{i}"} for i in range(60)]
        source = Mixture([source, PairsFile(written(tmp_path / "c.jsonl", other))])
    split = hold_out(*source.read(), Evaluation())
    assert not leaks(split) and len(split.test) >= 13
    replies = texts_of(split.pairs, split.test, "doc") & {f"reply {i}" for i in range(7)}
    assert len(replies) > 3 and replies <= texts_of(split.pairs, split.train, "doc")
    assert split.dropped == ({SHARES_QUERY: 1} if how == "named" else {})
    assert split.lines()[1] == (
        "141 queries ask for 7 documents, at least 5 for each on average: these documents count as known, and only queries are "
        "held out"
    )
    assert split.extended("validation").known is split.known


def test_four_queries_for_each_document_are_no_labels() -> None:
    pairs = Pairs.of([f"q{i}" for i in range(160)], [f"d{i // 4}" for i in range(160)])
    split = hold_out(pairs, np.ones(160, bool), Evaluation())
    assert not split.known.any() and not leaks(split) and not split.shared


def test_intents_have_pairs_left() -> None:
    path = SHARED / "intents" / "banking77_train.parquet"
    if not path.is_file():
        pytest.skip("no shared data")
    split = hold_out(*PairsFile(str(path), query="text", doc="label").read(), Evaluation())
    assert len(split.train) > 7_900 and not split.dropped and not leaks(split)
    assert "only queries are held out" in split.lines()[1]


def test_captions_lose_nothing_and_leak_nothing(tmp_path: Path) -> None:
    path = SHARED / "captions" / "pairs_train.parquet"
    if not path.is_file():
        pytest.skip("no shared data")
    parquet.write_table(parquet.read_table(path).slice(0, 8_000), tmp_path / "captions.parquet")
    source = PairsFile(str(tmp_path / "captions.parquet"), metadata=("group",))
    split = hold_out(*source.read(), Evaluation())
    assert not leaks(split) and not split.dropped
    assert min(split.queries(split.test), split.queries(split.validation)) > 790
    assert len(split.train) > 6_350


def test_a_small_table_that_cannot_be_divided_says_why() -> None:
    pairs = Pairs.of(["a", "b"], ["B", "A"])
    with pytest.raises(DataError, match="no pairs are left to train on"):
        hold_out(pairs, np.ones(2, bool), Evaluation(queries=1, validation=0))


def test_rows_that_a_source_has_made_hold_no_text_of_the_test() -> None:
    """Their text may be the query or the document of either part, in any writing."""
    pairs = Pairs.of([f"q{i}" for i in range(40)], [f"d{i}" for i in range(40)])
    made = Pairs.of(
        [f"Q{i}" for i in range(40)] + ["name"] * 40,
        [f"code {i}" for i in range(40)] + [f"D{i} " for i in range(40)],
    )
    split = hold_out(pairs, np.ones(40, bool), Evaluation(queries=5, validation=5))
    left = made.without(split.held_texts)
    held = np.concatenate([split.test, split.validation])
    assert len(left) == 80 - 20
    assert not texts_of(left, np.arange(60), "query", "doc") & texts_of(pairs, held, "query", "doc")


def test_a_learning_curve_draws_its_sizes_from_rows_without_a_text_of_the_test(
    tmp_path: Path,
) -> None:
    pairs, candidates = PairsFile(written(tmp_path / "a.jsonl", rows_with_copies(3, 200))).read()
    splits = [hold_out(pairs, candidates, Evaluation(), most) for most in (20, 60, None)]
    assert not any(leaks(split) for split in splits)
    assert {*splits[0].train} < {*splits[1].train} < {*splits[2].train}
    assert all(np.array_equal(split.test, splits[0].test) for split in splits)
