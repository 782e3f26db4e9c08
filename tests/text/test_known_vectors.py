"""Vectors of a run's texts: each is computed once by the same weights, and those of an untrained
model once for all runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tempera.arithmetic.ragged import Ragged
from tempera.options.build import build
from tempera.options.yaml_options import of
from tempera.text.judge.other_data import InTraining
from tempera.text.retrieval import TextTask
from tempera.text.train.known_vectors import KnownVectors
from tempera.towers.modules import TextTower, read_in
from tempera.towers.pretrained import Pretrained
from tempera.towers.transformer import Transformer

WORDS = ["kaban", "lodor", "mifin", "nugar", "zucel", "the", "tovo", "sipa"]


def sentences(count: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [f"{' '.join(draw.choice(WORDS, draw.integers(1, 7)))} {i}" for i in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sentence_transformers")
    torch.manual_seed(0)
    tower = Transformer(layers=1, width=16, heads=2, vocabulary=120, max_length=24).build(
        sentences(60, 0)
    )
    folder = tmp_path_factory.mktemp("model")
    tower.save(folder)
    return folder


def task_of(model: Path, folder: Path, name: str, seed: int = 0, **tower: Any) -> TextTask:
    """60 pairs of which some queries are documents, too, with a store of vectors in `folder`."""
    queries, docs = sentences(60, 0), [*sentences(50, 1), *sentences(60, 0)[:10]]
    order = np.random.default_rng(seed).permutation(60)
    path = folder / f"{name}.tsv"
    path.write_text(
        "query\tdoc\n" + "".join(f"{queries[i]}\t{docs[i]}\n" for i in order[: 60 - 20 * seed])
    )
    options = {
        "data": {"source": "pairs", "path": str(path)},
        "tower": {"kind": "pretrained", "model": str(model), **tower},
        "train": {"batch_size": 8, "max_steps": 2},
        "evaluation": {"queries": 20, "validation": 0, "bm25": False},
    }
    return TextTask.read(build(of(options)), folder / f"cache-{name}", folder / "vectors")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The tokens of every text that a model embeds from now on."""
    rows: list[tuple[int, ...]] = []
    encode = TextTower.encode

    def recorded(self: TextTower, features: Ragged, *rest: Any) -> torch.Tensor:
        rows.extend(tuple(features[[i]].values.tolist()) for i in range(len(features)))
        return encode(self, features, *rest)

    monkeypatch.setattr(TextTower, "encode", recorded)
    return rows


def test_the_untrained_model_reads_a_text_once_for_all_runs(
    model: Path, tmp_path: Path, read: list[tuple[int, ...]]
) -> None:
    first = task_of(model, tmp_path, "first")
    before = first.held_out.judge()
    assert len(read) == len(set(read)) > 60  # some queries are documents, too
    earlier = set(read)
    read.clear()
    again = task_of(model, tmp_path, "again")
    verdict = again.held_out.judge()
    assert read == [] and np.array_equal(again.data.corpus, first.data.corpus)
    assert verdict.ranking.metrics == before.ranking.metrics
    assert all(
        np.array_equal(verdict.ranking.per_query[name], each)
        for name, each in before.ranking.per_query.items()
    )

    other = task_of(model, tmp_path, "other", seed=1)  # fewer pairs, in another order and split
    other.held_out.judge()
    assert len(read) > 5 and not earlier & set(read)
    alone = other.data.vectors(other.data.texts.ranked)
    np.testing.assert_allclose(
        other.data.corpus, alone, rtol=0, atol=1e-6
    )  # embedded in other blocks


def test_weights_that_have_moved_read_again_and_those_that_are_restored_do_not(
    model: Path, tmp_path: Path, read: list[tuple[int, ...]]
) -> None:
    task = task_of(model, tmp_path, "moved")
    tower: Any = task.data.tower
    start = {name: value.clone() for name, value in tower.state_dict().items()}
    before = task.data.corpus
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter += 0.1 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(1)
            )
    read.clear()
    task.held_out.judge()
    assert len(read) == len(set(read)) > 60
    expected = tower.encode(task.data.texts.docs[torch.from_numpy(task.data.texts.ranked)]).numpy()
    np.testing.assert_allclose(task.data.corpus, expected, rtol=0, atol=1e-6)
    assert np.abs(task.data.corpus - before).max() > 0.01
    tower.load_state_dict(start)
    read.clear()
    assert np.array_equal(task.data.corpus, before) and read == []
    fused = torch.optim.AdamW(
        tower.parameters(), lr=0.1, fused=True
    )  # which leaves the versions of what it changes
    task.data.batch(torch.arange(4), 0)
    tower(task.data.texts.docs[torch.arange(4)]).square().sum().backward()
    fused.step()
    assert np.abs(task.data.corpus - before).max() > 0.01


def test_two_towers_of_one_model_keep_vectors_of_their_own(model: Path, tmp_path: Path) -> None:
    """A model saved with a route for queries that has moved away from that for documents, and texts
    that are both."""
    tower: Any = Pretrained(str(model), sides="two").build([])
    with torch.no_grad():
        for module in tower.query.model[0].sub_modules["query"]:
            for parameter in module.parameters():
                parameter += 0.2 * torch.randn(
                    parameter.shape, generator=torch.Generator().manual_seed(1)
                )
    tower.save(tmp_path / "routed")
    data = task_of(tmp_path / "routed", tmp_path, "routed").data
    texts = data.texts.queries
    known = KnownVectors(data.tower, {"query": texts, "doc": texts}, tmp_path / "store")
    roles: tuple[Any, ...] = ("query", "doc")
    for role in roles:
        expected = data.tower.encode(texts, role).numpy()
        some = known(
            np.arange(len(texts)), role, lambda rows, of: data.tower.encode(texts[rows], of).numpy()
        )
        np.testing.assert_allclose(some, expected, rtol=0, atol=1e-6)
    a, b = (data.tower.encode(texts, role) for role in roles)
    assert (a - b).abs().max() > 0.01


@pytest.mark.parametrize(
    "options",
    [
        {"max_length": 6},
        {"query_prompt": "kaban "},
        {"sides": "two"},
        {"sides": "heads"},
        {"lora": {"rank": 2}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_is_kept_is_what_the_options_give(
    model: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Behind a run without options, another one and its repetition, each against the tower
    itself."""
    if "lora" in options:
        pytest.importorskip("peft")
    tasks = [
        task_of(model, tmp_path, f"{i}", **each) for i, each in enumerate(({}, options, options))
    ]
    for task in tasks:
        test = task.held_out.questions["test"]
        for role, rows in (("query", test.query_of[test.rows]), ("doc", task.data.texts.ranked)):
            vectors = task.data.remembered(rows, role)  # type: ignore[arg-type]
            np.testing.assert_allclose(vectors, task.data.vectors(rows, role), rtol=0, atol=1e-6)  # type: ignore[arg-type]
    assert np.array_equal(tasks[1].data.corpus, tasks[2].data.corpus)


def test_other_data_are_read_once_by_the_untrained_model(
    model: Path, tmp_path: Path, read: list[tuple[int, ...]]
) -> None:
    texts = sentences(9, 5)
    known = [task_of(model, tmp_path, name).data.known for name in ("a", "b")]
    vectors = [InTraining(each).doc(texts) for each in known]
    assert len(read) == 9 and np.array_equal(*vectors)
    np.testing.assert_array_equal(
        known[0].tower.encode(known[0].tower.features(texts)).numpy(), vectors[0]
    )


def test_only_models_from_files_keep_vectors(model: Path, tmp_path: Path) -> None:
    origins = [
        Pretrained(str(model), **each).build([]).origin for each in ({}, {}, {"max_length": 6})
    ]
    assert origins[0] == origins[1] != origins[2] and origins[0]
    assert Pretrained(str(model), trust_remote_code=True).build([]).origin == ""
    scratch = Transformer(layers=1, width=16, heads=2, vocabulary=120, max_length=24).build(
        sentences(60, 0)
    )
    rows = scratch.features(["kaban lodor", "the"])
    known = KnownVectors(scratch, {"query": rows, "doc": rows}, tmp_path / "vectors")
    for _ in range(2):
        known(np.arange(2), "doc", lambda chosen, role: scratch.encode(rows[chosen], role).numpy())
    assert not (tmp_path / "vectors").exists()


def test_vectors_read_in_bf16_are_kept_apart(
    model: Path, tmp_path: Path, read: list[tuple[int, ...]]
) -> None:
    exact, low = (task_of(model, tmp_path, name).data for name in ("exact", "low"))
    read_in(low.tower, torch.bfloat16)
    vectors = [data.corpus for data in (exact, low)]
    read.clear()
    assert (
        low.corpus is vectors[1] and read == []
    )  # lending other weights has not changed the model's
    difference = np.abs(vectors[0] - vectors[1]).max()
    assert 1e-5 < difference < 0.05
    exact.known.forget()
    assert np.array_equal(exact.corpus, vectors[0])


def test_vectors_that_are_handed_over_are_moved_and_forgotten(
    model: Path, tmp_path: Path, read: list[tuple[int, ...]]
) -> None:
    data = task_of(model, tmp_path, "handed").data
    rows = data.texts.ranked
    before = data.remembered(rows).copy()
    order = np.random.default_rng(0).permutation(len(rows))
    read.clear()
    moved = data.known.handed_over(rows[order], "doc", data.vectors)
    assert np.array_equal(moved, before[order]) and read == [] and data.known.blocks == []
    data.tower.compare_by("cosine")
    some = data.known.handed_over(rows[:7], "doc", data.vectors)
    np.testing.assert_allclose(some, before[:7], rtol=0, atol=1e-6)
