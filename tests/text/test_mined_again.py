"""Negatives that the model mines, against loops, and a cross-encoder that checks them; and how a
run looks at what is held out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tempera.errors import ConfigError
from tempera.mining.guide import CrossEncoder
from tempera.mining.vectors import Store
from tempera.options import yaml_options as configuration
from tempera.options.build import build
from tempera.run.train import train
from tempera.text.retrieval import TextTask

WORDS = ["ka", "ban", "zu", "mori", "tel", "fin", "gar", "hos", "lup", "dem"]


def options(folder: Path, negatives: bool = False, **sections: Any) -> dict[str, Any]:
    """80 pairs of two to three words; some queries have two answers, some are a document."""
    draw = np.random.default_rng(0)
    rows = []
    for i in range(80):
        query = f"{' '.join(draw.choice(WORDS, 2))} {i}" if i < 65 else rows[i - 60]["query"]
        row: dict[str, Any] = {"query": query, "doc": f"{' '.join(draw.choice(WORDS, 3))} {i}"}
        if negatives:
            row["negatives"] = [f"{word} {i}" for word in draw.choice(WORDS, i % 3)]
        rows.append(row)
    for i in range(3, 60, 9):
        rows[i]["doc"] = rows[i + 1]["query"]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "data": {"source": "pairs", "path": str(folder / "pairs.jsonl")},
        "tower": {"dimensions": 8, "vocabulary": 120},
        "train": {"batch_size": 10, "max_steps": 9, "evaluations": 0},
        "evaluation": {"queries": 10, "validation": 0, "bm25": False},
    }
    return {
        name: {**given.get(name, {}), **sections.get(name, {})} for name in {**given, **sections}
    }


def name_each_text(path: Path) -> None:
    """Give every row ids of its own, and some documents the text of another."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for i, row in enumerate(rows):
        row |= {
            "query_id": f"q{i}",
            "doc_id": f"d{i}",
            "doc": rows[i - 20]["doc"] if 40 < i < 46 else row["doc"],
        }
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def task_of(given: dict[str, Any], folder: Path) -> TextTask:
    torch.manual_seed(3)
    return TextTask.read(build(configuration.of(given)), folder / "cache", folder / "vectors")


def move(task: TextTask) -> None:
    """As training would."""
    with torch.no_grad():
        for parameter in task.data.tower.parameters():
            parameter += 0.3 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(1)
            )


def mined(task: TextTask) -> list[list[str]]:
    """The negatives of every training pair."""
    own = task.data.rows.negatives
    assert own is not None
    return [
        [task.data.texts.catalogue.docs[int(doc)] for doc in own[[i]].values]
        for i in range(len(own))
    ]


def by_loops(task: TextTask, count: int, skip: int, depth: int, margin: float) -> list[list[str]]:
    """Documents of training rows by float64 cosines, without answers and the query itself, skipped
    and filtered."""
    pairs, rows = task.data.texts.split.pairs, task.data.texts.split.train
    asked, docs = pairs.texts("query", rows), pairs.texts("doc", rows)
    distinct = list(dict.fromkeys(docs))
    vectors = {
        text: task.data.tower.encode(task.data.tower.features([text], None, role), role)[0]
        .numpy()
        .astype(np.float64)
        for role, texts in (("query", asked), ("doc", distinct))
        for text in texts
    }
    found = []
    for query in asked:
        answers = {d for q, d in zip(asked, docs) if q == query}
        score = {doc: float(vectors[query] @ vectors[doc]) for doc in distinct}
        ranked = sorted(
            (d for d in distinct if d not in answers and d != query), key=lambda d: -score[d]
        )
        least = min(score[doc] for doc in answers)
        good = [d for d in ranked[skip:depth] if score[d] <= least - margin * abs(least)]
        found.append(good[:count])
    return found


@pytest.mark.parametrize("own_ids", [False, True])
def test_negatives_are_mined_by_the_model_as_it_is(tmp_path: Path, own_ids: bool) -> None:
    """With ids of the data, too, by which equal texts are told apart: an answer of the query is
    none of its negatives."""
    mining = {"again": 3, "skip": 1, "depth": 12, "relative_margin": 0.02}
    given = options(tmp_path, mining=mining)
    if own_ids:
        name_each_text(tmp_path / "pairs.jsonl")
        given["data"] |= {"query_id": "query_id", "doc_id": "doc_id"}
    task = task_of(given, tmp_path)
    texts = [
        set(task.data.texts.split.pairs.texts(role, task.data.texts.split.train))
        for role in ("query", "doc")
    ]
    itself, expected = texts[0] & texts[1], list[list[list[str]]]()
    for _ in range(2):
        report = task.data.mine()
        expected.append(by_loops(task, 3, 1, 12, 0.02))
        assert report.itself == len(itself) > 2
        assert report.kept == sum(len({*row}) for row in by_query(task, expected[-1]))
        assert mined(task) == expected[-1]
        move(task)
    assert expected[0] != expected[1] and any(len(row) == 3 for row in expected[1])
    batch = task.data.batch(torch.arange(10), 8)
    assert (
        batch.negatives is not None
        and batch.negatives.ids is not None
        and batch.negatives.owner is not None
    )
    chosen = [text for row in expected[1][:10] for text in row]
    ids = [
        int(task.data.texts.catalogue.doc_ids[list(task.data.texts.catalogue.docs).index(text)])
        for text in chosen
    ]
    assert batch.negatives.ids.tolist() == ids
    catalogue, rows = task.data.texts.catalogue, task.data.texts.split.train
    if own_ids:
        assert len(set(catalogue.queries[:])) < len(catalogue.queries) and len(
            set(catalogue.docs[:])
        ) < len(catalogue.docs)
    for role, side in (
        ("query", batch.query),
        ("doc", batch.doc),
    ):  # equal texts have one id in training
        texts, known = task.data.texts.split.pairs.texts(role, rows[:10]), side.ids
        assert known is not None and len(set(zip(texts, known.tolist()))) == len(set(texts)) == len(
            set(known.tolist())
        )
    assert batch.negatives.owner.tolist() == [
        i for i, row in enumerate(expected[1][:10]) for _ in row
    ]


def by_query(task: TextTask, rows: list[list[str]]) -> list[list[str]]:
    """The negatives of each distinct query."""
    queries = task.data.texts.catalogue.trained_on(task.data.texts.split.train)[0].tolist()
    return list(dict(zip(queries, rows, strict=True)).values())


def test_an_exact_index_finds_the_same(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    mining = {"again": 3, "depth": 40}
    tasks = [
        task_of(options(tmp_path, mining=mining | more), tmp_path / str(more))
        for more in ({}, {"faiss": "Flat"})
    ]
    for task in tasks:
        task.data.mine()
    assert mined(tasks[0]) == mined(tasks[1]) and any(mined(tasks[0]))


def test_what_is_held_out_is_not_mined(tmp_path: Path) -> None:
    """What has been a negative in the data is a candidate."""
    task = task_of(options(tmp_path, True, mining={"again": 2}), tmp_path)
    own = mined(task)
    assert task.data.mine().kept > 0 and mined(task) != own
    everything = {text for row in mined(task) for text in row}
    assert everything & {text for row in own for text in row}
    held_out = {*task.data.texts.split.pairs.texts("doc", task.data.texts.split.test)}
    assert not everything & held_out


def lengths(seen: list[tuple[str, str]]) -> Callable[[list[tuple[str, str]]], np.ndarray]:
    """A cross-encoder that prefers short documents."""

    def judge(pairs: list[tuple[str, str]]) -> np.ndarray:
        seen.extend(pairs)
        return np.array([-len(doc) for _, doc in pairs], np.float32)

    return judge


def test_a_cross_encoder_judges_all_negatives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    store = Store(tmp_path / "scores", "pairs")
    monkeypatch.setattr(
        CrossEncoder, "of", lambda model, folder: CrossEncoder(store, lambda: lengths(seen))
    )
    every = options(
        tmp_path,
        True,
        mining={"again": 4, "cross_encoder": "x", "relative_margin": None},
    )
    plain = mined(task_of(options(tmp_path, True), tmp_path / "plain"))
    task = task_of(every, tmp_path / "judged")
    docs = task.data.texts.split.pairs.texts("doc", task.data.texts.split.train)
    kept = [
        [text for text in row if -len(text) <= -len(doc) + 1e-3] for row, doc in zip(plain, docs)
    ]
    assert mined(task) == kept != plain
    reason = "negatives that the cross-encoder scores like answers"
    assert (
        task.showcase.facts().counts["dropped"][reason]
        == sum(map(len, plain)) - sum(map(len, kept))
        > 0
    )
    task.data.mine()
    queries = task.data.texts.split.pairs.texts("query", task.data.texts.split.train)
    for row, query in zip(mined(task), queries):
        shortest = max(len(doc) for q, doc in zip(queries, docs) if q == query)
        assert all(len(text) >= shortest for text in row)
    count = len(seen)
    assert count == len(set(seen))
    move(task)
    again = task_of(every, tmp_path / "again")
    again.data.mine()
    assert len(seen) == count  # scores are kept by pair
    with pytest.raises(
        ConfigError, match=r"mining\.cross_encoder needs negatives, but the data has none"
    ):
        task_of(options(tmp_path, mining={"cross_encoder": "x"}), tmp_path / "none")


def test_a_run_keeps_to_its_budget(tmp_path: Path) -> None:
    given = options(
        tmp_path,
        train={"evaluations": 3},
        evaluation={"budget": 0.0, "corpus": 20},
    )
    runs = [train(given, tmp_path / name) for name in "ab"]
    logs = [
        [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
        for run in runs
    ]
    losses = [[record["loss"] for record in log if record["event"] == "step"] for log in logs]
    assert losses[0] == losses[1] and len(losses[0]) == 9
    assert sum(record["event"] == "evaluation left out" for record in logs[0]) == 3
    assert runs[0].results["evaluations_left_out"] == 3
    assert runs[0].results["sample"]["corpus"] == 20 and set(
        runs[0].results["sample"]["bias"]
    ) == set(runs[0].metrics["trained"])
    arrays = {path.name for path in runs[0].folder.rglob("*.npy")}
    assert arrays == {
        "vectors.npy",
        "trained.npy",
    }  # of the index and of the training queries, and none of the way


@pytest.mark.parametrize("validation", [0, 8])
def test_looks_on_the_way_rank_the_sample(tmp_path: Path, validation: int) -> None:
    task = task_of(options(tmp_path, evaluation={"corpus": 25, "validation": validation}), tmp_path)
    before = task.held_out.judge("validation").ranking
    assert before.ranked.max() >= 25 and task.held_out.sample is None
    part = task.held_out.judge("validation", whole=False).ranking
    assert task.held_out.sample is not None and len(task.held_out.sample.docs) == 25
    assert part.ranked.max() < 25 and len(part.ranked) == (validation or 10)
    for metric, value in part.metrics.items():
        assert (
            value - before.metrics[metric] == pytest.approx(task.held_out.bias[metric])
            and value >= before.metrics[metric]
        )
    if validation:
        assert task.held_out.judge("test", whole=False).ranking.ranked.max() >= 25


def test_a_look_without_a_sample_draws_it(tmp_path: Path) -> None:
    verdicts = []
    for asks in (["validation"], []):
        task = task_of(options(tmp_path, evaluation={"corpus": 25, "validation": 8}), tmp_path)
        for part in asks:
            task.held_out.judge(part)
        verdicts.append(task.held_out.judge("validation", whole=False).ranking)
    assert verdicts[0].metrics == verdicts[1].metrics and verdicts[1].ranked.max() < 25


def test_each_part_asks_its_own_queries_and_the_corpus_is_embedded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(options(tmp_path, evaluation={"validation": 8}), tmp_path)
    counts: list[int] = []
    vectors = task.data.vectors

    def counted(rows: np.ndarray, role: Any = "doc") -> np.ndarray:
        counts.append(len(rows))
        return vectors(rows, role)

    monkeypatch.setattr(task.data, "vectors", counted)
    first = [len(task.held_out.judge(part).ranking.ranked) for part in ("test", "validation")]
    assert first == [10, 8] and sorted(counts) == [8, 10, len(task.data.texts.split.corpus)]
    move(task)  # nothing but the weights says so
    counts.clear()
    moved = task.held_out.judge("validation").ranking
    fresh = task_of(options(tmp_path, evaluation={"validation": 8}), tmp_path / "other")
    move(fresh)
    assert sorted(counts) == [8, len(task.data.texts.split.corpus)]
    assert moved.ranked.tolist() == fresh.held_out.judge("validation").ranking.ranked.tolist()


def test_texts_without_a_word_for_the_tower_are_counted(tmp_path: Path) -> None:
    given = options(tmp_path)
    path = Path(given["data"]["path"])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for i in range(3):
        rows[i]["query"] = "\u2192" * (i + 1)
    rows[9]["doc"] = "\u2192"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert task_of(given, tmp_path).showcase.facts().lines[-1] == (
        "the tower reads no word of 3 queries and 1 document: nothing is learned from them, and what they find is chance"
    )


def test_a_document_that_nobody_asks_for_brings_no_query_without_a_word(tmp_path: Path) -> None:
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    texts = [f"{word} text of number {i}" for i, word in enumerate("abcdefghijklmnopqrst")]
    for name, count in (("corpus", 20), ("queries", 18)):
        lines = (json.dumps({"_id": f"{i}", "text": text}) for i, text in enumerate(texts[:count]))
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    judged = "\n".join(f"{i}\t{i}\t1" for i in range(18))
    (folder / "qrels" / "train.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}\n")
    given = options(tmp_path)
    sections = {"data": {"source": "beir", "path": str(folder)}, "train": {"batch_size": 4}}
    task = task_of({**given, **sections}, tmp_path)
    lines = task.showcase.facts().lines
    assert len(task.data.texts.catalogue.queries) == 19 and not any(
        "reads no word" in line for line in lines
    )


def test_counts_and_first_lines_say_how_the_pairs_are_divided(tmp_path: Path) -> None:
    task = task_of(options(tmp_path, evaluation={"validation": 8}), tmp_path)
    counts = task.showcase.facts().counts
    assert (counts["pairs"], counts["queries"], counts["validation"]) == (
        80,
        10,
        8,
    ) and not task.held_out.chooses
    lost = (
        80
        - counts["train"]
        - len(task.data.texts.split.test)
        - len(task.data.texts.split.validation)
    )
    assert sum(counts["dropped"].values()) == lost
    wanted = f"80 pairs: {counts['train']} for training, 8 validation and 10 test queries"
    assert any(line.startswith(wanted) for line in task.showcase.facts().lines)
    assert (
        task.showcase.facts().lines[-1]
        == "8 validation queries are too few to choose by (at least 50): defaults are kept"
    )


def test_a_batch_that_is_too_large_says_what_is_held_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        task_of(options(tmp_path, train={"batch_size": 64}, evaluation={"validation": 8}), tmp_path)
    assert re.fullmatch(
        r"train\.batch_size is 64 and the data has (\d+) pairs to train on: give a batch_size of at most \1, or more data, or "
        r"hold out less: of 80 pairs, 8 validation and 10 test queries are held out \(evaluation\.validation, "
        r"evaluation\.queries\)",
        str(error.value),
    )


def test_looks_of_a_tower_that_multiplies_cost_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short runs look at all documents once, at their end; longer ones at a sample, as often as is
    wanted; tables look at all."""
    monkeypatch.setattr("tempera.text.judge.held_out._FREE", 0.0)
    bert = {"kind": "transformer", "width": 16, "heads": 2, "layers": 1, "vocabulary": 300}
    plans = {}
    for steps in (2, 60, 10**6):
        train = {"max_steps": steps, "evaluations": 4}
        made = options(tmp_path, evaluation={"validation": 8, "corpus": "auto"}, train=train)
        held_out = task_of({**made, "tower": bert}, tmp_path / str(steps)).held_out
        plans[steps] = held_out.corpus, held_out.evaluations
    assert plans[2] == (None, 0) and plans[10**6] == (None, 4)
    size, looks = plans[60]
    assert size is not None and 16 <= size < 75 and looks == 4
    made = options(
        tmp_path, evaluation={"validation": 8}, train={"max_steps": 60, "evaluations": 4}
    )
    static = task_of(made, tmp_path / "static").held_out
    assert (static.corpus, static.evaluations) == (None, 4)


def test_batches_without_duplicates_hold_each_text_once_whatever_its_ids(tmp_path: Path) -> None:
    given = options(tmp_path)
    name_each_text(tmp_path / "pairs.jsonl")
    given["data"] |= {"query_id": "query_id", "doc_id": "doc_id"}
    given["train"]["batch_sampler"] = "no_duplicates"
    task = task_of(given, tmp_path)
    pairs, train = task.data.texts.split.pairs, task.data.texts.split.train
    texts = list(zip(pairs.texts("query", train), pairs.texts("doc", train)))
    assert len({query for query, _ in texts}) < len(texts) > len({doc for _, doc in texts})
    for rows in task.data.sampler(0, 30):
        held = [texts[i] for i in rows.tolist()]
        assert len({query for query, _ in held}) == len({doc for _, doc in held}) == len(held) > 1
