"""What a run on texts serves is what it was evaluated by: the same queries through `evaluate` and
through every way to an answer, the exports read by their own libraries alone.

Exact ways have the same documents in the same order, up to ties within 1e-5 of the score;
approximate ones find in the file, as it lies on the disk, what was reported of it.
"""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch

from tempera import evaluate_held_out
from tempera.artifacts.run_folder import Run
from tempera.corpus.index import Index
from tempera.errors import ConfigError
from tempera.ranking.nearest import top
from tempera.ranking.spread import normalised
from tempera.run.train import train
from tempera.text.judge.hybrid import weight_of
from tempera.towers.static import Static

from ..conftest import Command, made_once, small_options

st = pytest.importorskip("sentence_transformers")
parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

K = 10
PROMPTS = {"query": "the ", "document": ""}
Lists = dict[str, list[tuple[str, float]]]  # of each query, ids with scores, best first


def pretrained(folder: Path, similarity: str, rows: list[dict[str, str]]) -> Path:
    """A foreign model with prompts, of many lengths, that compares by a similarity."""
    torch.manual_seed(0)
    tower = Static(dimensions=16, vocabulary=300, init="normal").build(
        [" ".join(row.values()) for row in rows]
    )
    tower.embedding.weight.data *= torch.linspace(0.3, 3, len(tower.embedding.weight))[:, None]
    tower.save(folder.with_name("body"))
    body = st.SentenceTransformer(str(folder.with_name("body")), device="cpu")[0]
    model = st.SentenceTransformer(
        modules=[body], device="cpu", similarity_fn_name=similarity, prompts=PROMPTS
    )
    model.save(str(folder))
    return folder


TRANSFORMER = {
    "kind": "transformer",
    "layers": 1,
    "width": 16,
    "heads": 2,
    "vocabulary": 300,
    "max_length": 24,
}
HEAD = {"max_steps": 20, "batch_size": 32}


def written(kind: str, folder: Path, pairs: Path) -> None:
    """Train a run of a kind into a folder, with what it needs beside it."""
    options, base = small_options(pairs), folder.parent
    base.mkdir(parents=True, exist_ok=True)
    options["recipe"] = "none"
    options["evaluation"] = {"queries": 40, "validation": 60, "bm25": True}
    options["train"] |= {"refit": "none", "num_train_epochs": 2}
    name, _, similarity = kind.partition(" ")
    if name in ("pretrained", "head", "frozen"):
        rows = [json.loads(line) for line in pairs.read_text().splitlines()]
        model = str(pretrained(base / "foreign", similarity, rows))
        options["tower"] = {"kind": "pretrained", "model": model}
        options["objective"] = {"similarity": similarity, "temperature": 0.1}
        if similarity == "dot":
            options["objective"]["temperature"] = 1.0
    if name == "transformer":
        options["tower"] = TRANSFORMER
        options["train"] |= {"max_steps": 10, "learning_rate": 0.001}
    if name == "head":
        kept = base / "kept"
        train({**options, "train": options["train"] | {"max_steps": 2}}, kept)
        options["train"] |= HEAD
        options["tower"] = {
            "query": {"kind": "head", "model": str(kept)},
            "doc": {"index": str(kept)},
        }
    if name == "frozen":
        options["train"] |= HEAD
        options["tower"] = {
            "query": {"kind": "head", "model": model},
            "doc": {"kind": "pretrained", "model": model, "frozen": True},
        }
    train(options, folder)


@dataclass
class Served:
    """A run, what was evaluated of it, and the scores of all documents by its own files."""

    folder: Path

    @cached_property
    def run(self) -> Run:
        return Run(self.folder)

    @cached_property
    def finding(self) -> Any:
        return evaluate_held_out(self.folder, bm25=True)

    @cached_property
    def queries(self) -> list[str]:
        texts: list[str] = self.finding.task.queries["text"].to_pylist()
        return texts

    def evaluated(self, hybrid: bool = False) -> dict[str, list[str]]:
        """The first K documents of each query in the ranking that the metrics are of."""
        ids = self.finding.task.corpus["id"].to_pylist()
        ranked = list(self.finding.systems.values())[2 if hybrid else 0].ranked[:, :K]
        return {
            query: [ids[row] for row in rows] for query, rows in zip(self.queries, ranked.tolist())
        }

    @cached_property
    def model(self) -> Any:
        return st.SentenceTransformer(str(self.folder / "model"), device="cpu")

    @cached_property
    def metric(self) -> str:
        stamp = Index(self.folder / "index").stamp
        assert stamp is not None
        return stamp.metric

    def asked(self, vectors: Any) -> np.ndarray:
        """Vectors of queries as the metric of the run's index wants them."""
        raw: np.ndarray = np.asarray(vectors, np.float32)
        return raw if self.metric == "dot" else normalised(raw)

    @cached_property
    def vectors(self) -> np.ndarray:
        """Vectors of the queries by sentence-transformers."""
        return self.asked(self.model.encode_query(self.queries))

    @cached_property
    def scores(self) -> dict[str, dict[str, float]]:
        """The score of every document for each query, by sentence-transformers and the index's own
        file of vectors."""
        index = Index(self.folder / "index")
        ids = index.documents["id"].to_pylist()
        scores = self.vectors @ np.load(self.folder / "index" / "vectors.npy").T
        return {query: dict(zip(ids, row.tolist())) for query, row in zip(self.queries, scores)}

    def lists(self, scores: np.ndarray, ids: list[str]) -> Lists:
        """The first K of scores, [q, c]."""
        order = np.argsort(-scores, axis=1, kind="stable")[:, :K]
        return {
            query: [(ids[i], float(row[i])) for i in rows]
            for query, row, rows in zip(self.queries, scores, order)
        }


KINDS = ("static", "pretrained dot", "head cosine")
MORE = ("transformer", "pretrained cosine", "head dot", "frozen cosine", "frozen dot")


@pytest.fixture(
    scope="module",
    params=[*KINDS, *(pytest.param(kind, marks=pytest.mark.long) for kind in MORE)],
)
def served(request: Any, pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    kind = request.param
    folder = made_once(
        tmp_path_factory, kind.replace(" ", "-"), lambda path: written(kind, path, pairs_file)
    )
    return Served(folder)


def refuse_other_answers(
    served: Served, lists: Lists, scores: dict[str, dict[str, float]], hybrid: bool = False
) -> None:
    """Assert that lists are those that were evaluated, up to ties, with the scores of their
    documents."""
    evaluated = served.evaluated(hybrid)
    assert lists.keys() == evaluated.keys() and len(lists) >= 30
    for query, hits in lists.items():
        own, wanted = scores[query], evaluated[query]
        size = max(1.0, max(map(abs, own.values())))
        assert len(hits) == len(wanted) == K == len({each for each, _ in hits})
        for (served_id, score), evaluated_id in zip(hits, wanted, strict=True):
            assert own[served_id] == pytest.approx(score, abs=1e-5 * size)
            assert own[served_id] == pytest.approx(own[evaluated_id], abs=1e-5 * size)


def test_a_run_reports_what_it_is_evaluated_at_again(served: Served) -> None:
    system = next(iter(served.finding.systems.values()))
    for name, value in served.run.metrics["trained"].items():
        assert system.metrics[name] == pytest.approx(value, abs=1e-6)


def test_python_and_the_command_line_answer_as_evaluated(
    served: Served, tempera: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    hits = {query: served.run.search(query, K) for query in served.queries}
    lists = {query: [(hit.id, hit.score) for hit in each] for query, each in hits.items()}
    refuse_other_answers(served, lists, served.scores)

    def typed(*options: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(served.queries) + "\n"))
        return tempera("search", served.folder, "-k", K, *options).out

    documents = [json.loads(line) for line in typed("--json").splitlines()]
    answered = {
        each["query"]: [(hit["id"], hit["score"]) for hit in each["hits"]] for each in documents
    }
    refuse_other_answers(served, answered, served.scores)
    lines = [line for line in typed().splitlines() if line and not line.startswith("search:")]
    shown = [line.split()[1] for line in lines if line.split()[0].isdigit()]
    assert shown == [f"{score:.3f}" for each in lists.values() for _, score in each]


def test_a_hybrid_search_answers_as_evaluated_with_the_weight_that_validation_chose(
    served: Served, tempera: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = served.run.results
    assert document["hybrid"]["weight"] == weight_of(served.folder)
    whole = len(served.run.index.documents)
    scores, lists = {}, {}
    for query in served.queries:
        every = served.run.search(query, whole, hybrid=True)
        scores[query] = {hit.id: hit.score for hit in every}
        lists[query] = [(hit.id, hit.score) for hit in served.run.search(query, K, hybrid=True)]
    refuse_other_answers(served, lists, scores, hybrid=True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(served.queries) + "\n"))
    printed = tempera("search", served.folder, "-k", K, "--hybrid", "--json").out
    for line in map(json.loads, printed.splitlines()):
        assert [(hit["id"], hit["score"]) for hit in line["hits"]] == lists[line["query"]]


def test_sentence_transformers_alone_answers_as_evaluated(served: Served) -> None:
    if (served.folder / "model" / "kept_index.json").is_file():
        pytest.skip("its documents are vectors of an index")
    documents = served.run.index.documents
    docs = served.model.encode_document(documents["text"].to_pylist())
    similarities = served.model.similarity(served.model.encode_query(served.queries), docs)
    lists = served.lists(np.asarray(similarities), documents["id"].to_pylist())
    refuse_other_answers(served, lists, served.scores)


def test_a_table_of_vectors_answers_as_evaluated(served: Served, tmp_path: Path) -> None:
    served.run.export("parquet", tmp_path / "table")
    table = parquet.read_table(tmp_path / "table" / "vectors.parquet")
    docs = np.stack(table["vector"].to_numpy())
    lists = served.lists(served.vectors @ docs.T, table["id"].to_pylist())
    refuse_other_answers(served, lists, served.scores)


@pytest.mark.parametrize("width", [None, 8])
@pytest.mark.parametrize("kind", ["hnsw", "ivf_pq", "int8", "binary"])
def test_faiss_finds_in_the_file_what_was_reported(
    served: Served, kind: str, width: int | None, tmp_path: Path
) -> None:
    faiss = pytest.importorskip("faiss")
    if width is not None and served.metric == "dot":
        pytest.skip("inner products have no width")
    facts = served.run.export("faiss", tmp_path / "index", kind, width=width)
    index = faiss.read_index(str(tmp_path / "index" / "index.faiss"))
    vectors = np.load(served.folder / "index" / "vectors.npy")[:, :width]
    queries = served.vectors[:, :width]
    if width is not None:
        vectors, queries = (
            side / np.linalg.norm(side, axis=1, keepdims=True) for side in (vectors, queries)
        )

    def share(some: np.ndarray) -> float:
        found, exact = index.search(some, K)[1], top(some, vectors, K)[1]
        return float(np.mean([len({*a} & {*b}) / K for a, b in zip(found, exact)]))

    drawn = np.random.default_rng(0).permutation(len(vectors))[:200]
    assert share(np.ascontiguousarray(vectors[drawn])) == pytest.approx(facts["overlap@10"])
    assert share(np.ascontiguousarray(queries)) > facts["overlap@10"] - 0.2
    assert facts["overlap@10"] > {"hnsw": 0.99, "ivf_pq": 0.3, "int8": 0.9, "binary": 0.4}[kind]
    # More hits than usual are found, too.
    assert (index.search(queries, 100)[1] >= 0).mean() > (0.3 if kind == "ivf_pq" else 0.999)


def test_an_exported_network_answers_as_evaluated(served: Served, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from tokenizers import Tokenizer

    if served.folder.name.startswith(
        ("head", "frozen")
    ):  # a table with layers behind it, or routes
        with pytest.raises(ConfigError, match="no single network over token ids"):
            served.run.export("onnx", tmp_path / "onnx")
        return
    served.run.export("onnx", tmp_path / "onnx")
    about = json.loads((tmp_path / "onnx" / "tempera.json").read_text())
    tokenizer = Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=about["pad"])
    if about["max_length"] is not None:
        tokenizer.enable_truncation(about["max_length"])
    session = runtime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    assert [each.shape for each in session.get_inputs()] == [["batch", "sequence"]] * 2
    assert [each.shape[0] for each in session.get_outputs()] == ["batch"]
    rows = tokenizer.encode_batch(
        [about["prompts"]["query"] + query for query in served.queries],
        add_special_tokens=about["special_tokens"],
    )
    inputs = {
        "input_ids": np.array([row.ids for row in rows]),
        "attention_mask": np.array([row.attention_mask for row in rows]),
    }
    (vectors,) = session.run(None, inputs)
    docs = np.load(served.folder / "index" / "vectors.npy")
    ids = served.run.index.documents["id"].to_pylist()
    refuse_other_answers(served, served.lists(vectors @ docs.T, ids), served.scores)
    for query in served.queries[:5]:
        hits = served.run.search(query, K, onnx=tmp_path / "onnx")
        assert hits[0].id == served.run.search(query, 1)[0].id


def test_models_that_compare_by_inner_products_serve_inner_products(served: Served) -> None:
    """The harness would be blind if no run had vectors of several lengths."""
    lengths = np.linalg.norm(np.load(served.folder / "index" / "vectors.npy"), axis=1)
    by_dot = served.folder.name.endswith("dot")
    assert (served.metric == "dot") == by_dot
    assert (np.ptp(lengths) > 0.5) == by_dot
