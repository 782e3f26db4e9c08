"""Texts without pairs: every text is in one row, real queries or made ones judge, and a model is
distilled end to end."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.errors import ConfigError, DataError
from tempera.options.build import build
from tempera.options.yaml_options import Options
from tempera.task.evaluation import Evaluation
from tempera.text.read.keeper import Keeper
from tempera.text.read.pairs import RANKED, TEST, TRAIN, VALIDATION, Pairs
from tempera.text.read.sources import PairsFile
from tempera.text.read.text_files import HEADING_ASKS, UNDIVIDED
from tempera.text.train import unpaired_texts
from tempera.text.train.catalogue import Catalogue
from tempera.text.train.split import Split, hold_out
from tempera.text.train.unpaired_texts import Documents

TITLES, BODIES = (
    [f"Title {i}" for i in range(40)],
    [f"Sentence {i}. And more of {i}." for i in range(40)],
)


def table(path: Path, **columns: list[str]) -> str:
    parquet.write_table(pa.table(columns), path)
    return str(path)


def split_of(source: Documents) -> tuple[Pairs, Split]:
    pairs, candidates = source.read()
    return pairs, hold_out(pairs, candidates, Evaluation())


def rows(pairs: Pairs, part: int) -> list[tuple[str, str]]:
    at = np.flatnonzero(pairs.part == part)
    return list(zip(pairs.texts("query", at), pairs.texts("doc", at), strict=True))


def searched(pairs: Pairs) -> list[str]:
    """Return the documents that an index holds, by their numbers."""
    table = Catalogue.of(pairs).table()
    return sorted(table["doc"].to_pylist(), key=lambda text: int(text.split()[1].strip(".")))


def test_each_text_is_in_one_row_and_made_queries_judge(tmp_path: Path) -> None:
    pairs, split = split_of(Documents(table(tmp_path / "a.parquet", title=TITLES, text=BODIES)))
    wholes = [f"{title} {body}" for title, body in zip(TITLES, BODIES, strict=True)]
    trained = rows(pairs, TRAIN)
    assert Counter(text for row in trained for text in row) == Counter(wholes)
    assert len(split.train) == 20 and not pairs.paired
    made = rows(pairs, TEST) + rows(pairs, VALIDATION)
    assert len(made) == len(set(made)) == 8 and set(made) <= set(zip(TITLES, BODIES, strict=True))
    # A document of which a pair is made is ranked without its title; every other one as it is, and
    # once.
    cut = {f"{title} {body}" for title, body in made}
    corpus = pairs.texts("doc", split.corpus)
    assert sorted(corpus) == sorted({*wholes} - cut | {body for _, body in made})
    assert searched(pairs) == wholes  # but all of them are searched as they are
    assert {query for query, _ in rows(pairs, RANKED)} == {""}
    assert pairs.about.endswith(
        "40 documents and 0 queries without answers; validation on made queries (title or first sentence), "
        "test on made queries (title or first sentence); a pair to train on is any two of the texts, for a teacher to compare"
    )


def test_a_log_of_queries_is_the_first_text_of_rows(tmp_path: Path) -> None:
    real = table(
        tmp_path / "real.parquet",
        query=["asked 1", "asked 2"],
        answer=["Sentence 1. And more of 1.", "elsewhere"],
    )
    log = tmp_path / "log.txt"
    log.write_text("one\n\ntwo\nasked 1\none\n")
    texts = table(tmp_path / "a.parquet", text=BODIES)
    pairs, split = split_of(Documents(texts, queries=str(log), test=real, validation=real))
    queries = [query for query, _ in rows(pairs, TRAIN)]
    assert {"one", "two"} < set(queries) and "asked 1" not in queries  # that is judged by
    assert Counter(text for row in rows(pairs, TRAIN) for text in row) == Counter(
        [*BODIES, "one", "two"]
    )
    assert split.queries(split.test) == 2 and split.shared == 0
    assert set(pairs.texts("doc", split.corpus)) == {*BODIES, "elsewhere"}
    assert (
        "2 queries without answers; validation on real queries, test on real queries" in pairs.about
    )


def test_more_queries_than_documents_meet_documents_again(tmp_path: Path) -> None:
    log = table(tmp_path / "log.parquet", query=[f"query {i}" for i in range(30)])
    pairs, _ = split_of(
        Documents(table(tmp_path / "a.parquet", text=[f"word{i}" for i in range(8)]), queries=log)
    )
    trained = rows(pairs, TRAIN)
    assert sorted(query for query, _ in trained) == sorted(f"query {i}" for i in range(30))
    assert set(Counter(doc for _, doc in trained).values()) == {3, 4}


def test_a_table_of_pairs_loses_its_pairs_but_those_that_are_held_out(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", query=TITLES, doc=BODIES, score=["1"] * 40)
    pairs, split = split_of(Documents(path))
    real = dict(zip(TITLES, BODIES, strict=True))
    assert all(
        real[query] == doc for part in (TEST, VALIDATION) for query, doc in rows(pairs, part)
    )
    assert split.queries(split.test) == split.queries(split.validation) == 4
    same, candidates = PairsFile(path=str(path), metadata=("score",)).read()
    usual = hold_out(same, candidates, Evaluation())
    for part, own in (
        (TEST, usual.test),
        (VALIDATION, usual.validation),
    ):  # what `tempera train` on the table holds out
        assert {query for query, _ in rows(pairs, part)} == set(same.texts("query", own))
    held = {query for part in (TEST, VALIDATION) for query, _ in rows(pairs, part)}
    assert {query for query, _ in rows(pairs, TRAIN)} & {*TITLES} == {*TITLES} - held
    assert sum(real.get(query) == doc for query, doc in rows(pairs, TRAIN)) < 8


def test_a_beir_folder(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    for name, texts in {"corpus": BODIES, "queries": TITLES}.items():
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(
                json.dumps({"_id": str(i), "title": "", "text": text}) + "\n"
                for i, text in enumerate(texts)
            )
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n3\t7\t1\n")
    pairs, _ = split_of(Documents(str(tmp_path)))
    assert rows(pairs, TEST) == [(TITLES[3], BODIES[7])]
    assert {*TITLES} - {TITLES[3]} <= {query for query, _ in rows(pairs, TRAIN)}
    assert len(rows(pairs, VALIDATION)) == 4 and BODIES[7] in {
        doc for row in rows(pairs, TRAIN) for doc in row
    }


def test_titles_of_a_beir_folder_ask_for_their_texts(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    for name, titles in {"corpus": TITLES, "queries": [""] * 40}.items():
        lines = [
            {"_id": str(i), "title": title, "text": BODIES[i]} for i, title in enumerate(titles)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n3\t7\t1\n")
    pairs, _ = split_of(Documents(str(tmp_path), rule="heading"))
    trained = rows(pairs, TRAIN)
    assert len(trained) == 36 and set(trained) <= {*zip(TITLES, BODIES, strict=True)}
    assert (
        rows(pairs, TEST) == [(BODIES[3], f"{TITLES[7]} {BODIES[7]}")]
        and len(rows(pairs, VALIDATION)) == 4
    )


def test_files_of_texts_pages_and_code(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Tea\n\nSteep it.\n")
    (tmp_path / "b.html").write_text("<title>x</title><h2>Green</h2><p>Wait, then drink.</p>")
    (tmp_path / "c.py").write_text("# not a heading\nprint(1)\n")
    (tmp_path / "d.bin").write_bytes(b"\xff")
    texts = {text for row in rows(Documents(str(tmp_path)).read()[0], TRAIN) for text in row}
    assert {"Tea Steep it.", "x: Green Wait, then drink.", "# not a heading\nprint(1)"} <= texts


def test_titles_ask_for_their_texts_and_whole_documents_are_searched(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", title=TITLES, text=BODIES)
    pairs, split = split_of(Documents(path, rule="heading"))
    wholes = {f"{title} {body}" for title, body in zip(TITLES, BODIES, strict=True)}
    cut = {f"{title} {body}" for part in (TEST, VALIDATION) for title, body in rows(pairs, part)}
    trained = rows(pairs, TRAIN)
    assert len(cut) == 8 and len(trained) == 32 == len(split.train) and pairs.paired
    assert set(trained) <= {*zip(TITLES, BODIES, strict=True)}
    corpus = pairs.texts("doc", split.corpus)
    assert sorted(corpus) == sorted(
        {*wholes} - cut | {body for part in (TEST, VALIDATION) for _, body in rows(pairs, part)}
    )
    assert searched(pairs) == [
        f"{title} {body}" for title, body in zip(TITLES, BODIES, strict=True)
    ]
    assert f"pairs are made to train on: {HEADING_ASKS}; validation on made queries" in pairs.about
    read = Catalogue.of(pairs).trained(
        split.train
    )  # for the tokenizer: nothing of what is cut up to be held out
    assert not pairs.unasked.any() and not cut & {*read} and len(read) > 32


def test_documents_that_make_no_pair_are_counted_and_searched(tmp_path: Path) -> None:
    texts = ["One here. Two.", "One there. Two.", "alone", "alone", ""]
    pairs, candidates = Documents(
        table(tmp_path / "a.parquet", title=["", "", "", "", "T"], text=texts), rule="heading"
    ).read()
    assert pairs.dropped == {"repeated texts": 1, UNDIVIDED: 2}
    assert len(rows(pairs, TRAIN)) == 2 and candidates.tolist() == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert {*Catalogue.of(pairs).table()["doc"].to_pylist()} == {*texts[:3], "T"}


@pytest.mark.parametrize("rule", [None, "heading"])
def test_texts_that_differ_in_white_space_are_one(
    tmp_path: Path, rule: Literal["heading"] | None
) -> None:
    texts = [*BODIES, *(body.replace(". ", ".  ") for body in BODIES[::2])]
    pairs, split = split_of(Documents(table(tmp_path / "a.parquet", text=texts), rule=rule))
    assert pairs.dropped == {"repeated texts": 20}
    made = rows(pairs, TEST) + rows(pairs, VALIDATION)
    assert len(made) == 8 == len(split.test) + len(split.validation)
    ranked = pairs.texts("doc", split.corpus)
    assert len(ranked) == 40 and not [text for query, _ in made for text in ranked if query in text]
    assert len(searched(pairs)) == 40


def test_an_answer_is_known_whatever_its_white_space(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    docs = [{"_id": str(i), "title": f"T{i} ", "text": f"  One {i}.  Two {i}."} for i in range(80)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, docs)))
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "asked"}))
    judged = "".join(f"q\t{i}\t1\n" for i in range(39))
    (tmp_path / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    pairs, _ = split_of(Documents(str(tmp_path), rule="heading"))
    made = [int(query[1:]) for query, _ in rows(pairs, VALIDATION)]
    assert made and min(made) >= 39


def test_a_document_without_a_title_is_asked_for_by_its_first_sentence(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", title=[*TITLES[:30], *[""] * 10], text=BODIES)
    pairs, _ = split_of(Documents(path, rule="heading"))
    assert {*pairs.texts("name")} == {*TITLES[:30], ""}
    titled = {*zip(TITLES[:30], BODIES, strict=False)}
    untitled = {(f"Sentence {i}.", f"And more of {i}.") for i in range(30, 40)}
    trained = {*rows(pairs, TRAIN)}
    assert trained <= titled | untitled
    assert len(trained & titled) >= 20 and trained & untitled


def trained_on_made_pairs(
    folder: Path, count: int, steps: int, **tower: Any
) -> tuple[Any, list[str], list[str]]:
    """Train a static model on documents of one word that tells them apart; return the run, the
    words and the documents."""
    from tempera.run.train import train

    words = [f"{'abcdefgh'[i % 8]}word{i}" for i in range(count)]
    texts = [f"The {word} is here. Look, {word} again. Nothing else." for word in words]
    data = {
        "source": "documents",
        "path": table(folder / "a.parquet", text=texts),
        "rule": "heading",
    }
    options = {"data": data, "tower": {"kind": "static", **tower}, "train": {"max_steps": steps}}
    return train(options, folder / "run"), words, texts


def test_a_run_on_made_pairs_is_searched_and_calibrated(tmp_path: Path) -> None:
    from tempera.finished.calibrate import calibrate

    run, words, texts = trained_on_made_pairs(tmp_path, 400, 20, dimensions=32, vocabulary=1500)
    for hybrid in (False, True):  # vectors and words of the same documents, in the same order
        found = run.search(words[7], 1, hybrid=hybrid)
        assert found[0].preview == texts[7], hybrid
    assert len({hit.preview for hit in run.search(words[7], 1000)}) == 400
    assert calibrate(tmp_path / "run").about["found"] > 0.5


def test_texts_of_one_sentence_make_no_pairs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.rule=heading makes a pair of 0 of 2 documents"):
        Documents(table(tmp_path / "a.parquet", text=["one", "two"]), rule="heading").read()


def test_real_queries_in_columns_without_usual_names_are_told(tmp_path: Path) -> None:
    texts = table(
        tmp_path / "a.parquet", text=["one two. three.", "four. five six.", "seven. eight."]
    )
    real = table(tmp_path / "real.parquet", asked=["one"], told=["one two. three."])
    with pytest.raises(
        DataError, match="its columns are asked, told: rename those of the pairs to query and doc"
    ):
        Documents(texts, rule="heading", test=real).read()


def test_pairs_made_by_a_rule_need_no_teacher(tmp_path: Path) -> None:
    run, *_ = trained_on_made_pairs(tmp_path, 64, 3, dimensions=8, vocabulary=300)
    assert run.metrics["trained"]["ndcg@10"] > 0


def test_too_few_texts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fewer than two texts"):
        Documents(table(tmp_path / "a.parquet", text=["one", "one"])).read()


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({}, "train.teacher: documents have no pairs"),
        ({"train": {"teacher": "m"}, "objective": {"teacher": 0.5}}, "its weight has to be 1"),
        (
            {"train": {"teacher": "m"}, "objective": {"teacher": {"final": 0.0}}},
            "its weight has to be 1",
        ),
    ],
)
def test_documents_need_a_teacher(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(Options({"data": {"source": "documents", "path": "a"}, **sections}))


def test_a_rule_has_no_use_for_queries_without_answers() -> None:
    data = {"source": "documents", "path": "a", "rule": "heading", "queries": "log.txt"}
    with pytest.raises(ConfigError, match=r"data: queries without answers are for a teacher"):
        build(Options({"data": data}))


def test_documents_are_taught_alone() -> None:
    config = build(
        Options({"data": {"source": "documents", "path": "a"}, "train": {"teacher": "m"}})
    )
    assert config.base.teacher is not None and config.base.teacher.weight == 1
    assert config.settled(100).train.size == 100 and config.settled(10**6).train.size == 512
    assert [
        round(config.settled(n).train.steps(n // min(n, 512))) for n in (100, 51_200, 10**6)
    ] == [300, 300, 1953]


def test_a_model_is_distilled_and_trained_further(
    tiny_run: Path, pairs_file: Path, tmp_path: Path
) -> None:
    from tempera.experiments.distill import distill
    from tempera.run.train import train

    options = [
        "tower.dimensions=4",
        "tower.vocabulary=300",
        "train.max_steps=40",
        "train.learning_rate=0.02",
    ]
    run = distill(tiny_run, pairs_file, tmp_path / "small", [*options, "train.evaluations=1"])
    metrics = {name: each["ndcg@10"] for name, each in run.metrics.items()}
    assert metrics["untrained"] < metrics["trained"] and "teacher" in metrics
    assert (
        len([*(tmp_path / "vectors").iterdir()]) == 1
    )  # queries, documents and tokens are read alike
    tower: dict[str, Any] = {"kind": "pretrained", "model": str(tmp_path / "small")}
    further: Any = {
        "data": {"path": str(pairs_file)},
        "train": {"max_steps": 2},
        "evaluation": {"bm25": False},
    }
    opened = train({**further, "tower": tower}, tmp_path / "opened")
    assert (
        "learning_rate: 0.003" in (opened.folder / "config.yaml").read_text()
    )  # not a transformer's
    goes_on = train(
        {**further, "tower": {"kind": "static", "teacher": str(tmp_path / "small")}},
        tmp_path / "goes-on",
    )
    assert goes_on.metrics["untrained"] == pytest.approx(opened.metrics["untrained"])


@pytest.mark.parametrize("hardly", [0.0, 1.1])
def test_a_test_that_the_teacher_fails_is_told_and_compares_nothing(
    tiny_run: Path, pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hardly: float
) -> None:
    from tempera.experiments.distill import distill

    monkeypatch.setattr("tempera.run.publish._HARDLY", hardly)
    options = [
        "tower.dimensions=4",
        "tower.vocabulary=300",
        "train.max_steps=60",
        "train.learning_rate=0.00001",
    ]
    run = distill(
        tiny_run, pairs_file, tmp_path / "small", options
    )  # no better than untrained, and below BM25
    assert any("than BM25" in text or "below the untrained" in text for text in run.cautions) == (
        not hardly
    )
    reached = run.metrics["teacher"]["ndcg@10"]
    said = f"the teacher itself has ndcg@10 {reached:.3f} here, so this test tells next to nothing of what was learned from it: "
    assert (said + "judge by real queries (data.test=FILE)" in run.cautions) == bool(hardly)


def test_single_texts_ask_nothing(
    tiny_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No test is drawn among rows of any two texts, whatever is asked for; the run says why."""
    from tempera.experiments.distill import distill

    sentences = [f"word {i} of {i * i}" for i in range(40)]
    path = table(tmp_path / "lines.parquet", number=list(map(str, range(40))), sentence=sentences)
    options = ["tower.dimensions=4", "tower.vocabulary=300", "train.max_steps=3"]
    with caplog.at_level("INFO", logger="tempera"):
        run = distill(tiny_run, path, tmp_path / "small", [*options, "evaluation.queries=7"])
    assert run.metrics == {} and len(run.index.documents) == 40
    about = next(
        each.getMessage() for each in caplog.records if "lines.parquet holds" in each.getMessage()
    )
    assert "; no test, since there are no questions: " in about and "; ;" not in about
    assert any("0 validation and 0 test queries" in each.getMessage() for each in caplog.records)


@pytest.mark.parametrize(
    ("columns", "read"),
    [
        ({"sentence": ["a b", "c d"]}, "sentence"),
        ({"title": ["x", "y"], "sentence": ["a b", "c d"]}, "sentence"),
        ({"number": ["1", "2.5"], "Satz": ["a b", "c d"]}, "Satz"),
        ({"sentence": ["a b", "c d"], "comment": ["e", "f"]}, None),
    ],
)
def test_the_only_column_of_texts_needs_no_usual_name(
    columns: dict[str, list[str]], read: str | None, tmp_path: Path
) -> None:
    path = Path(table(tmp_path / "texts.parquet", **columns))
    if read is None:
        with pytest.raises(DataError, match=r"sentence, comment: name one with data\.text=COLUMN"):
            unpaired_texts._table(path, {"text": None, "title": None}, Keeper(()))
        return
    docs = unpaired_texts._table(path, {"text": None, "title": None}, Keeper(())).docs
    assert [doc.text for doc in docs] == columns[read]
    assert [doc.title for doc in docs] == columns.get("title", ["", ""])
    if "title" not in columns:
        assert unpaired_texts._log(path) == columns[read]


def test_a_log_is_read_whatever_its_lines_hold(tmp_path: Path) -> None:
    texts = table(tmp_path / "texts.parquet", text=[f"text {i} of {i * i}" for i in range(20)])
    logs = {
        "bom.txt": "\ufeffone\u2028line\r\n\n two\n".encode(),
        "latin.txt": "gr\u00fc\u00df".encode("latin-1"),
    }
    for name, content in logs.items():
        (tmp_path / name).write_bytes(content)
    assert unpaired_texts._log(tmp_path / "bom.txt") == ["one\u2028line", "two"]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "log.txt").write_text("three")
    assert unpaired_texts._log(tmp_path / "logs") == ["three"]
    (tmp_path / "empty").mkdir()
    for name, says in (
        ("latin.txt", "is not UTF-8"),
        ("none.txt", "no such file"),
        ("empty", "holds no table"),
    ):
        with pytest.raises(DataError, match=says):
            Documents(texts, queries=str(tmp_path / name)).read()


def test_texts_are_texts(tmp_path: Path) -> None:
    (tmp_path / "lists.jsonl").write_text('{"text": ["a b", "c"]}\n{"text": ["d"]}\n')
    with pytest.raises(
        DataError, match=r"lists.jsonl: column 'text' holds list<.*>; expected texts"
    ):
        Documents(str(tmp_path / "lists.jsonl")).read()
