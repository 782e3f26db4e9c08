"""Similarities of transformers by leaving out words, and the command that shows explanations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tempera.artifacts.run_folder import Run
from tempera.explain.without_words import WithoutWords, passages_of
from tempera.run.train import train


@pytest.fixture(scope="module")
def run(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a tiny transformer; look, do not touch."""
    pytest.importorskip("sentence_transformers")
    options: dict[str, Any] = {
        "data": {"source": "pairs", "path": str(pairs_file)},
        "tower": {
            "kind": "transformer",
            "layers": 1,
            "width": 16,
            "heads": 2,
            "vocabulary": 200,
            "max_length": 16,
        },
        "train": {"batch_size": 16, "max_steps": 5, "evaluations": 0},
        "evaluation": {"queries": 20, "validation": 0, "bm25": True},
    }
    return train(options, tmp_path_factory.mktemp("runs") / "run").folder


def test_a_part_is_the_difference_that_a_word_makes(run: Path) -> None:
    opened = Run(run)
    query = "the kaban of locel"
    hits = opened.search(query, k=3)
    for hit, explanation in zip(hits, opened.explain(query, hits), strict=True):
        assert explanation.kind == "leave_one_out" and not explanation.exact
        assert explanation.score == pytest.approx(hit.score, abs=1e-6)
        document = opened.encode([hit.text])[0].astype(np.float64)
        vector = opened.encode([query])[0].astype(np.float64)
        values = {
            (part.fields["side"], part.fields["word"]): part.value for part in explanation.parts
        }
        words = query.split()
        for place, word in enumerate(words):
            rest = opened.encode([" ".join([*words[:place], *words[place + 1 :]])])[0]
            wanted = hit.score - float(rest.astype(np.float64) @ document)
            assert values.pop(("query", word)) == pytest.approx(wanted, abs=1e-5)
        words = hit.text.split()
        for place, word in enumerate(words):
            rest = opened.encode([" ".join([*words[:place], *words[place + 1 :]])])[0]
            wanted = hit.score - float(rest.astype(np.float64) @ vector)
            assert values.pop(("document", word)) == pytest.approx(wanted, abs=1e-5)
        assert not values
        total = sum(part.value for part in explanation.parts)
        assert total + explanation.rest == pytest.approx(explanation.score, abs=1e-12)
        (only_query,) = opened.explain(query, [hit], passages=0)
        assert {part.fields["side"] for part in only_query.parts} == {"query"}


def test_a_hybrid_of_a_transformer_is_an_approximation(run: Path) -> None:
    opened = Run(run)
    hit = opened.search("kaban of locel", k=1, hybrid=True)[0]
    explanation = opened.explain("kaban of locel", hit, hybrid=True)
    assert explanation.kind == "fused" and not explanation.exact
    assert explanation.score == pytest.approx(hit.score, abs=1e-6)
    vectors, words = explanation.halves
    assert not vectors.explanation.exact and words.explanation.exact


def test_a_long_document_is_left_out_in_passages() -> None:
    text = " ".join(f"w{number}" for number in range(1000))
    passages = passages_of(text, 64)
    assert len(passages) <= 64 and " ".join(passages) == text
    lengths = {len(passage.split()) for passage in passages[:-1]}
    assert lengths == {16}
    assert passages_of("") == [] and passages_of("  \n ") == []
    assert passages_of("北京 map?") == ["北", "京", "map?"]


def test_all_variants_are_embedded_at_once() -> None:
    calls = []

    def embed(texts: Any) -> np.ndarray:
        calls.append(list(texts))
        return np.ones((len(texts), 2), np.float32)

    without = WithoutWords("how to reset, reset", embed)
    assert calls == [[" to reset, reset", "how  reset, reset", "how to  reset", "how to reset, "]]
    parts = without.parts(np.array([0.25, 0.25], np.float32), 0.75, "query")
    assert [(part.label, part.value) for part in parts] == [
        ("how", 0.25),
        ("to", 0.25),
        ("reset", 0.25),
        ("reset", 0.25),
    ]
    assert WithoutWords("", embed).parts(np.ones(2, np.float32), 1.0, "query") == []
    assert len(calls) == 1


def test_the_command_explains_under_each_hit(tempera: Any, tiny_run: Path) -> None:
    answer = tempera("search", tiny_run, "kaban micel", "-k", "2", "--explain")
    lines = answer.out.splitlines()
    assert len(lines) == 4
    for line in lines[1::2]:
        assert line.startswith("    ") and " ~ " in line and "| rest " in line
        assert line.count("|") == 5
    plain = tempera("search", tiny_run, "kaban micel", "-k", "2").out.splitlines()
    assert lines[::2] == plain
    document = tempera("search", tiny_run, "kaban micel", "-k", "2", "--explain", "--json").document
    for hit in document["hits"]:
        explanation = hit["explanation"]
        assert explanation["kind"] == "tokens" and explanation["exact"]
        total = sum(part["value"] for part in explanation["parts"])
        assert total == pytest.approx(hit["score"], abs=1e-6)
        assert total + explanation["rest"] == pytest.approx(explanation["score"], abs=1e-12)
    hybrid = tempera("search", tiny_run, "kaban micel", "-k", "1", "--explain", "--hybrid").out
    assert " vectors: " in hybrid and " words: " in hybrid


def test_an_explanation_of_a_static_run_needs_no_torch(tiny_run: Path) -> None:
    code = (
        "import sys; from tempera import Run; run = Run(sys.argv[1]); "
        "run.explain('kaban', run.search('kaban', 3), hybrid=True); "
        "print('torch' in sys.modules, 'tempera.recommend' in sys.modules)"
    )
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_run)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
