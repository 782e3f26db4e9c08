"""Parts of similarities: pairs of words of static models add up to the score, as loops say."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tempera.artifacts.run_folder import Run
from tempera.corpus.index import write_index
from tempera.errors import DataError
from tempera.explain.static_words import terms
from tempera.explain.word_pairs import OTHER_TEXT, explain_pairs
from tempera.run.train import train
from tempera.towers.saved import load
from tempera.towers.static import Static, StaticTower
from tempera.towers.static_steps import StaticSteps

st = pytest.importorskip("sentence_transformers")

WITHIN = 1e-6
ODD = [
    "",
    "   ",
    "qqq zzz xxx",  # no known word
    "😀 🎉 kaban",
    "北京市 kaban 的地图",
    "kaban kaban kaban, the kaban",
    "Kaban KABAN kabanLocel locel_kaban 42",
    "a\ud800b kaban",
]


def sentences(count: int, seed: int, words: list[str]) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(count)]


@pytest.fixture(scope="module")
def words(pairs_file: Path) -> list[str]:
    rows = [json.loads(line) for line in pairs_file.read_text().splitlines()]
    return sorted({word for row in rows for text in row.values() for word in text.split()})


def static(words: list[str], weighted: bool = False, drop_repeats: bool = True) -> StaticTower:
    import torch

    torch.manual_seed(0)
    options = Static(32, 200, init="normal", token_weights=weighted, drop_repeats=drop_repeats)
    # Rare words are divided into several tokens.
    tower = options.build(sentences(300, 0, words) + ["locelmidor"] * 2 + ["北京市 的地图"] * 3)
    if tower.log_weights is not None:
        torch.nn.init.normal_(tower.log_weights, std=0.3)
    return tower


def save_plain(folder: Path, words: list[str]) -> None:
    static(words).save(folder)


def save_repeating(folder: Path, words: list[str]) -> None:
    static(words, drop_repeats=False).save(folder)


def save_weighted(folder: Path, words: list[str]) -> None:
    static(words, weighted=True).save(folder)


def save_cut(folder: Path, words: list[str]) -> None:
    static(words).save(folder)
    change(folder, truncate_dim=12)


def save_dot(folder: Path, words: list[str]) -> None:
    """Inner products of means, without a normalisation."""
    static(words).save(folder / "body")
    body = st.SentenceTransformer(str(folder / "body"), device="cpu")[0]
    st.SentenceTransformer(modules=[body], device="cpu", similarity_fn_name="dot").save(str(folder))


def save_with_prompts(folder: Path, words: list[str]) -> None:
    """Cosine without a module for it, with a prompt for queries."""
    static(words).save(folder / "body")
    body = st.SentenceTransformer(str(folder / "body"), device="cpu")[0]
    prompts = {"query": "the of ", "document": ""}
    st.SentenceTransformer(modules=[body], device="cpu", prompts=prompts).save(str(folder))


def save_with_head(folder: Path, words: list[str], bias: bool = True) -> None:
    """A linear layer with a bias behind the normalisation, as a query head has."""
    import torch
    from torch import nn

    from tempera.towers.composed import write_with_head

    static(words).save(folder.parent / f"{folder.name}-body")
    draw = torch.Generator().manual_seed(1)
    weight = nn.init.normal_(torch.empty(20, 32), generator=draw)
    shift = nn.init.normal_(torch.empty(20), generator=draw) * bias
    write_with_head(folder.parent / f"{folder.name}-body", weight, shift, folder)


def save_cut_with_head(folder: Path, words: list[str]) -> None:
    save_with_head(folder, words)
    change(folder, truncate_dim=7)


def save_routed(folder: Path, words: list[str]) -> None:
    """A head for queries, another model for documents."""
    import torch

    from tempera.towers.composed import write_routed

    def other(path: Path) -> None:
        torch.manual_seed(5)
        Static(20, 150, init="normal").build(sentences(200, 4, words)).save(path)

    write_routed(lambda path: save_with_head(path, words), other, folder)


def change(folder: Path, **settings: Any) -> None:
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


MODELS: dict[str, Callable[[Path, list[str]], None]] = {
    "plain": save_plain,
    "repeating": save_repeating,
    "weighted": save_weighted,
    "cut": save_cut,
    "dot": save_dot,
    "prompts": save_with_prompts,
    "head": save_with_head,
    "cut, head": save_cut_with_head,
    "routed": save_routed,
}


@pytest.mark.parametrize("kind", MODELS)
def test_pairs_of_words_add_up_to_the_similarity_of_the_model(
    kind: str, words: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / kind
    MODELS[kind](folder, words)
    texts = sentences(1000 - len(ODD), 1, words) + ODD
    queries = sentences(1000 - len(ODD), 2, words)[::-1] + ODD
    opened = st.SentenceTransformer(str(folder), device="cpu")
    known = ["?" if "\ud800" in text else text for text in queries]
    texts = ["?" if "\ud800" in text else text for text in texts]
    left = np.asarray(opened.encode_query(known), np.float64)
    right = np.asarray(opened.encode_document(texts), np.float64)
    if opened.similarity_fn_name != "dot":
        left /= np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-12)
        right /= np.maximum(np.linalg.norm(right, axis=1, keepdims=True), 1e-12)
    wanted = (left * right).sum(1)
    of_queries, of_documents = StaticSteps.read(folder, "query"), StaticSteps.read(folder, "doc")
    assert of_queries is not None and of_documents is not None
    for query, text, score in zip(known, texts, wanted.tolist(), strict=True):
        explanation = explain_pairs(terms(of_queries, query), terms(of_documents, text), score)
        total = sum(part.value for part in explanation.parts)
        assert abs(total - score) <= WITHIN * max(1, abs(score))
        assert explanation.exact and explanation.rest == pytest.approx(0, abs=WITHIN)
    served = load(folder)(known) @ load(folder, "doc")(texts).T
    np.testing.assert_allclose(np.diag(served), wanted, rtol=0, atol=1e-6)


def by_hand(folder: Path, query: str, text: str) -> dict[tuple[str, str], float]:
    """The value of each pair of tokens of a normalised model, in loops, with each token apart."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    table = load_file(folder / "model.safetensors")["embedding.weight"].astype(np.float64)
    tokens = []
    lengths = []
    for each in (query, text):
        encoding = tokenizer.encode(each, add_special_tokens=False)
        tokens.append(list(zip(encoding.tokens, encoding.ids)))
        total = [0.0] * table.shape[1]
        for number in encoding.ids:
            for place, value in enumerate(table[number]):
                total[place] += value
        lengths.append(math.sqrt(sum(value**2 for value in total)))
    values: dict[tuple[str, str], float] = defaultdict(float)
    for name, number in tokens[0]:
        for other, second in tokens[1]:
            product = sum(a * b for a, b in zip(table[number], table[second]))
            values[name, other] += product / lengths[0] / lengths[1]
    return values


def test_the_value_of_a_pair_is_that_of_its_tokens(words: list[str], tmp_path: Path) -> None:
    save_repeating(tmp_path / "model", words)
    steps = StaticSteps.read(tmp_path / "model", "doc")
    assert steps is not None
    query, text = "Kaban of the lodor", "lodor kaban the kaban"
    values = by_hand(tmp_path / "model", query, text)
    explanation = explain_pairs(terms(steps, query), terms(steps, text), 0.5)
    seen = {}
    for part in explanation.parts:
        fields = part.fields
        seen[fields["query_token"].lower(), fields["document_token"]] = part.value
    assert seen.keys() == values.keys()
    for pair, value in values.items():
        assert seen[pair] == pytest.approx(value, abs=1e-12)
    sizes = [abs(part.value) for part in explanation.parts]
    assert sizes == sorted(sizes, reverse=True)


def test_tokens_are_shown_as_the_words_of_the_text(words: list[str], tmp_path: Path) -> None:
    save_repeating(tmp_path / "model", words)
    steps = StaticSteps.read(tmp_path / "model", "doc")
    assert steps is not None
    text = "Kaban parseKaban, 😀 locelmidorx kaban"
    found = terms(steps, text)
    shown = {word.text: word for word in found.words}
    assert {"Kaban", "parse", "locelmidorx"} <= set(shown)
    assert shown["Kaban"].times == 3
    assert len(shown["locelmidorx"].tokens) > 1
    assert "".join(shown["locelmidorx"].tokens).startswith("lo")
    chinese = terms(steps, "北京市的地图")  # a run without spaces: each token is a word
    assert len(chinese.words) > 1
    assert all(len(word.tokens) == 1 for word in chinese.words)


def test_a_prompt_and_a_bias_are_parts_of_their_own(words: list[str], tmp_path: Path) -> None:
    save_with_prompts(tmp_path / "prompts", words)
    steps = StaticSteps.read(tmp_path / "prompts", "query")
    assert steps is not None
    assert [word.text for word in terms(steps, "kaban").words] == ["[prompt]", "kaban"]
    save_with_head(tmp_path / "head", words)
    steps = StaticSteps.read(tmp_path / "head", "query")
    assert steps is not None
    assert [word.text for word in terms(steps, "kaban").words] == ["kaban", "[bias]"]


def test_a_model_with_a_tanh_has_no_terms(words: list[str], tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    static(words).save(tmp_path / "body")
    body = st.SentenceTransformer(str(tmp_path / "body"), device="cpu")[0]
    modules = [body, Dense(32, 8), Normalize()]
    st.SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "tanh"))
    assert StaticSteps.read(tmp_path / "tanh", "query") is None


def test_one_known_side_explains_by_its_words(words: list[str], tmp_path: Path) -> None:
    save_plain(tmp_path / "model", words)
    steps = StaticSteps.read(tmp_path / "model", "query")
    assert steps is not None
    vector = load(tmp_path / "model", "doc")(["kaban the lodor"])[0]
    query = terms(steps, "kaban and lodor")
    score = float(query.rows.sum(0) @ vector.astype(np.float64))
    explanation = explain_pairs(query, vector, score)
    assert {part.label for part in explanation.parts} == {"kaban", "and", "lodor"}
    assert explanation.exact and abs(explanation.rest) < 1e-12
    assert "document_words" not in explanation.json()


def test_parts_of_another_text_are_not_called_exact(words: list[str], tmp_path: Path) -> None:
    save_plain(tmp_path / "model", words)
    steps = StaticSteps.read(tmp_path / "model", "query")
    assert steps is not None
    explanation = explain_pairs(terms(steps, "kaban"), terms(steps, "kaban"), 0.25)
    assert not explanation.exact and explanation.notes == (OTHER_TEXT,)
    assert explanation.rest == pytest.approx(-0.75)


@pytest.fixture(scope="module")
def run(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with learned weights of tokens and BM25; look, do not touch."""
    options: dict[str, Any] = {
        "data": {"source": "pairs", "path": str(pairs_file)},
        "tower": {"dimensions": 24, "vocabulary": 200, "init": "normal", "token_weights": True},
        "train": {"batch_size": 32, "max_steps": 40, "learning_rate": 0.03, "evaluations": 0},
        "evaluation": {"queries": 40, "validation": 40},
    }
    return train(options, tmp_path_factory.mktemp("runs") / "run").folder


def test_a_run_explains_its_hits(run: Path) -> None:
    opened = Run(run)
    hits = opened.search("the kaban of locel", k=10)
    explanations = opened.explain("the kaban of locel", hits)
    for hit, explanation in zip(hits, explanations, strict=True):
        assert explanation.exact and explanation.kind == "tokens"
        assert abs(hit.score - explanation.score) < WITHIN
        assert abs(sum(part.value for part in explanation.parts) - hit.score) < WITHIN
        assert opened.explain("the kaban of locel", hit.id) == explanation
        assert opened.explain("the kaban of locel", opened.document(hit.id)) == explanation
    words = explanations[0].json()["document_words"]
    assert " ".join(word["word"] for word in words) == " ".join(dict.fromkeys(hits[0].text.split()))


def test_a_cut_index_is_explained_by_its_own_scores(run: Path, tmp_path: Path) -> None:
    opened = Run(run)
    opened.export("parquet", tmp_path / "cut", width=9)
    hits = opened.search("kaban of locel", k=40, index=tmp_path / "cut")
    explanations = opened.explain("kaban of locel", hits, index=tmp_path / "cut")
    for hit, explanation in zip(hits, explanations, strict=True):
        assert explanation.exact
        assert abs(sum(part.value for part in explanation.parts) - hit.score) < WITHIN


@pytest.mark.parametrize("query", [text for text in ODD if text.strip()])
def test_odd_queries_and_documents_are_explained(run: Path, query: str, tmp_path: Path) -> None:
    opened = Run(run)
    documents = [text.replace("\ud800", "?") for text in ODD]
    import pyarrow as pa

    table = pa.table(
        {
            "doc_id": pa.array(range(len(ODD)), pa.int64()),
            "name": [""] * len(ODD),
            "place": [""] * len(ODD),
            "doc": documents,
        }
    )
    write_index(tmp_path / "odd", opened.encode(documents), table, opened.index.stamp)
    names = [str(number) for number in range(len(ODD))]
    for hybrid in (False, True):
        for explanation in opened.explain(query, names, hybrid, index=tmp_path / "odd"):
            assert explanation.exact
            total = sum(part.value for part in explanation.parts)
            if not hybrid:
                assert abs(total - explanation.score) < WITHIN
            assert total + explanation.rest == pytest.approx(explanation.score, abs=1e-12)
            assert json.loads(json.dumps(explanation.json()))["score"] == explanation.score
            assert explanation.line() and str(explanation)


def test_what_cannot_be_explained_is_said_in_one_line(run: Path) -> None:
    opened = Run(run)
    with pytest.raises(DataError, match=r"^no document of .* has the id 'nothing'$"):
        opened.explain("kaban", "nothing")
    with pytest.raises(DataError, match="the query is empty"):
        opened.explain(" ", opened.search("kaban", 1)[0])


def test_the_largest_pairs_alone_leave_the_others_in_the_rest(tiny_run: Path) -> None:
    run = Run(tiny_run)
    query = "kaban locel where is the"
    hits = run.search(query, 3)
    every = run.explain_each(query, hits)
    for whole, short in zip(every, run.explain_each(query, hits, most=2), strict=True):
        assert len(whole.parts) > 2 and short.parts == whole.parts[:2] and short.exact
        left_out = sum(part.value for part in whole.parts[2:])
        assert abs(short.rest - whole.rest - left_out) < WITHIN
