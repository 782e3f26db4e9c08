"""Parts of BM25 and of hybrid searches, by the formula in loops."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tempera.artifacts.run_folder import Run
from tempera.explain.bm25_words import explain_words
from tempera.explain.explanation import Explanation
from tempera.run.train import train
from tempera.text.judge.lexical import BM25, Lexical, Settings

WORDS = [
    "run",
    "running",
    "runs",
    "cat",
    "cats",
    "dog",
    "the",
    "of",
    "a",
    "北京市",
    "parseDate",
    "42",
    "café",
]


def texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(0, 12))) for _ in range(count)]


def stemmed(text: str, settings: Settings) -> list[str]:
    import Stemmer

    from tempera.text.judge.lexical import words

    if not settings.stem:
        return words(text)
    return list(Stemmer.Stemmer("english").stemWords(words(text)))


def by_formula(docs: list[str], settings: Settings, query: str, document: int) -> float:
    """BM25 of Robertson and Zaragoza without the factor k1 + 1, as bm25s' lucene has it."""
    read = [stemmed(doc, settings) for doc in docs]
    mean = sum(max(1, len(doc)) for doc in read) / len(read)
    score = 0.0
    for word in stemmed(query, settings):
        holding = sum(word in doc for doc in read)
        times = read[document].count(word)
        idf = math.log(1 + (len(docs) - holding + 0.5) / (holding + 0.5))
        length = max(1, len(read[document])) / mean
        saturation = settings.k1 * (1 - settings.b + settings.b * length)
        score += idf * times / (times + saturation)
    return score


@pytest.mark.parametrize("settings", [Settings(), Settings(2.5, 0.4, True), Settings(0.9, 1.0)])
def test_words_add_up_to_the_score_of_bm25(settings: Settings) -> None:
    docs = texts(60, 0) + ["", "run run run"]
    index = Lexical(docs).index(settings)
    draw = random.Random(1)
    for query in [*texts(250, 2), "zzz unknown", "run run running run"]:
        for document in draw.sample(range(len(docs)), 4):
            explanation = explain_words(index, query, document, docs[document])
            served = index.scores([query])[0, document]
            assert np.float32(explanation.score) == served  # to the bit
            total = sum(part.value for part in explanation.parts)
            assert abs(total - served) < 1e-6
            assert total == pytest.approx(by_formula(docs, settings, query, document), abs=1e-5)


def test_a_word_is_counted_in_the_query_the_document_and_the_corpus() -> None:
    docs = ["a cat and cats", "the dog runs", "cats"]
    index = Lexical(docs).index(Settings(stem=True))
    explanation = explain_words(index, "cats, cat cats of", 0, docs[0])
    fields = {part.label: part.json() for part in explanation.parts}
    cats, cat, of = fields["cats"], fields["cat"], fields["of"]
    assert (cats["stem"], cats["in_query"], cats["in_document"], cats["documents"]) == (
        "cat",
        2,
        2,
        2,
    )
    assert cat["in_query"] == 1 and cats["value"] == pytest.approx(2 * cat["value"])
    assert (of["in_document"], of["documents"], of["value"]) == (0, 0, 0.0)


def test_documents_in_another_order_are_explained_alike() -> None:
    docs = texts(9, 5)
    places = np.array([3, 1, 0, 2, 8, 5, 6, 7, 4])
    index = Lexical(docs).index()
    moved: BM25 = index.ordered(places)
    for document in range(9):
        before = explain_words(index, "run cat 42", document, docs[document])
        assert explain_words(moved, "run cat 42", int(places[document]), docs[document]) == before


@pytest.fixture(scope="module")
def run(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options: dict[str, Any] = {
        "data": {"source": "pairs", "path": str(pairs_file)},
        "tower": {"dimensions": 24, "vocabulary": 200, "init": "normal", "token_weights": True},
        "train": {"batch_size": 32, "max_steps": 40, "learning_rate": 0.03, "evaluations": 0},
        "evaluation": {"queries": 40, "validation": 40},
    }
    return train(options, tmp_path_factory.mktemp("runs") / "run").folder


def standard(scores: list[float], place: int) -> tuple[float, float, float]:
    """The mean and deviation of scores, and the standardised score at a place, in loops."""
    mean = sum(scores) / len(scores)
    deviation = math.sqrt(sum((score - mean) ** 2 for score in scores) / len(scores))
    return mean, deviation, (scores[place] - mean) / deviation


def constant(explanation: Explanation) -> float:
    return -sum(half.weight * half.mean / half.deviation for half in explanation.halves)


def test_a_fused_score_is_that_of_both_systems(run: Path, pairs_file: Path) -> None:
    opened = Run(run)
    rows = [json.loads(line) for line in pairs_file.read_text().splitlines()]
    weight = json.loads((run / "metrics.json").read_text())["hybrid"]["weight"]
    docs = opened.index.documents["text"].to_pylist()
    ids = opened.index.documents["id"].to_pylist()
    words = Lexical(docs)
    settings = opened._words(opened.index).settings
    explained = 0
    draw = random.Random(3)
    for query in [row["query"] for row in rows[:50]]:
        vector = opened.encode([query])[0]
        similar = [float(vector @ each) for each in opened.index.vectors]
        lexical = [float(each) for each in words.index(settings).scores([query])[0]]
        places = draw.sample(range(len(docs)), 20)
        explanations = opened.explain(query, [ids[place] for place in places], hybrid=True)
        for place, explanation in zip(places, explanations, strict=True):
            explained += 1
            assert explanation.kind == "fused" and explanation.exact
            mean, _, first = standard(similar, place)
            _, other_deviation, second = standard(lexical, place)
            score = weight * first + (1 - weight) * second
            vectors, by_words = explanation.halves
            assert (vectors.system, by_words.system) == ("vectors", "words")
            assert vectors.weight == weight and by_words.weight == 1 - weight
            assert vectors.mean == pytest.approx(mean, abs=1e-6)
            assert by_words.deviation == pytest.approx(other_deviation, abs=1e-6)
            assert explanation.score == pytest.approx(score, abs=2e-6)
            total = sum(part.value for part in explanation.parts)
            assert abs(total + constant(explanation) - explanation.score) < 1e-6
            assert total + explanation.rest == pytest.approx(explanation.score, abs=1e-12)
            inner = sum(part.value for part in vectors.explanation.parts)
            assert inner == pytest.approx(similar[place], abs=1e-6)
    assert explained == 1000


def test_a_hybrid_hit_has_the_score_of_its_explanation(run: Path) -> None:
    opened = Run(run)
    hits = opened.search("kaban of locel", k=5, hybrid=True)
    for hit, explanation in zip(hits, opened.explain("kaban of locel", hits, hybrid=True)):
        assert explanation.score == pytest.approx(hit.score, abs=1e-12)
        document = explanation.json()
        names = [each["system"] for each in document["explanations"]]
        assert names == ["vectors", "words"]
        assert {part["system"] for part in document["parts"]} <= set(names)


def test_a_query_that_ranks_nothing_has_parts_of_one_system(run: Path) -> None:
    """No document has a word of the query: all scores of BM25 are equal, and add nothing."""
    opened = Run(run)
    name = opened.index.documents["id"][0].as_py()
    explanation = opened.explain("zzzzz qqqq", name, hybrid=True)
    assert explanation.halves[1].deviation == 0 and explanation.halves[1].factor == 0
    assert not [part for part in explanation.parts if part.fields["system"] == "words"]
