"""Objectives in sentence-transformers' own training: its losses where they are right, the
definition where they are not."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("sentence_transformers")
pytest.importorskip("datasets")

import small
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer import losses as peer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.modules import Normalize, Router, StaticEmbedding
from sentence_transformers.util import dot_score
from small import Columns, learning, logged, texts, tiny, trainer, weights

from tempera.core import pools, presets
from tempera.core.batch import Batch, Side
from tempera.core.corrections import Hardness
from tempera.core.definition import defined_losses
from tempera.core.masks import Guided, SameId
from tempera.core.matryoshka import Matryoshka
from tempera.core.memory import Memory
from tempera.core.objective import Objective
from tempera.core.similarity import dot
from tempera.core.teacher import Teacher
from tempera.core.temperature import Temperature
from tempera.engine.cache import Embedded
from tempera.errors import ConfigError, DataError, TemperaError
from tempera.integrations.sentence_transformers import ContrastiveLoss, ObjectiveState
from tempera.towers.transformer import Transformer

ROOT = Path(__file__).parents[2]
ROWS = 12
DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


def features(
    model: Any, columns: Columns, prompts: Sequence[str | None] = (None,) * 4
) -> list[dict[str, Any]]:
    """What the trainer's collator makes of the columns."""
    return [model.preprocess(c, prompt=p) for c, p in zip(columns.values(), prompts, strict=False)]


def run(
    model: Any,
    make: Callable[[Any], nn.Module],
    columns: Columns,
    factor: float = 1.0,
    **given: Any,
) -> Any:
    """The loss, and the gradient of every parameter of a copy of the model, when the loss is
    multiplied by a factor."""
    model = copy.deepcopy(model).train()
    loss = make(model)
    torch.manual_seed(3)
    value = loss(features(model, columns, **given), None)
    (value * factor).backward()
    return value.detach().double(), {
        name: p.grad for name, p in model.named_parameters() if p.grad is not None
    }


def assert_same(found: Any, wanted: Any, rtol: float = 1e-6, atol: float = 1e-9) -> None:
    """The same loss, which ours gives in single precision, and the same gradients."""
    assert abs(float(found[0]) - float(wanted[0])) < 1e-5 * (1 + float(wanted[0]))
    assert found[1].keys() == wanted[1].keys() and len(wanted[1]) > 10
    assert max(float(grad.abs().max()) for grad in wanted[1].values()) > 1e-3
    torch.testing.assert_close(found[1], wanted[1], rtol=rtol, atol=atol)


# Equal to the peer's losses
# --------------------------------------------------------------------------------------------

MNR = peer.MultipleNegativesRankingLoss
EVERY = (*presets.FORWARD, pools.queries, pools.back_queries, pools.back_docs)
CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], nn.Module]]] = {
    "mnr": (presets.mnr, MNR),
    "scale": (lambda: presets.mnr(1 / 50), lambda m: MNR(m, scale=50.0)),
    "dot": (lambda: presets.mnr(1.0, similarity=dot), lambda m: MNR(m, scale=1.0, similarity_fct=dot_score)),
    "cached": (presets.mnr, lambda m: peer.CachedMultipleNegativesRankingLoss(m, mini_batch_size=5)),
    "symmetric": (presets.symmetric, peer.MultipleNegativesSymmetricRankingLoss),
    "cached symmetric": (presets.symmetric, lambda m: peer.CachedMultipleNegativesSymmetricRankingLoss(m, mini_batch_size=5)),
    "gte": (lambda: presets.gte(0.05), lambda m: MNR(m, directions=DIRECTIONS)),
    "hardness": (
        presets.hardness,
        lambda m: MNR(m, hardness_mode="in_batch_negatives", hardness_strength=9.0),
    ),
    "own hardness": (
        lambda: presets.mnr(corrections=(Hardness(5.0, "own"),)),
        lambda m: MNR(m, hardness_mode="hard_negatives", hardness_strength=5.0),
    ),
    "all hardness": (
        lambda: presets.mnr(corrections=(Hardness(5.0, "all"),)),
        lambda m: MNR(m, hardness_mode="all_negatives", hardness_strength=5.0),
    ),
    "matryoshka": (
        lambda: Matryoshka(presets.mnr(), widths=(32, 8), weights=(1.0, 0.5)),
        lambda m: peer.MatryoshkaLoss(m, MNR(m), matryoshka_dims=[32, 8], matryoshka_weights=[1.0, 0.5]),
    ),
    "cached matryoshka": (
        lambda: Matryoshka(presets.mnr(), widths=(32, 8)),
        lambda m: peer.MatryoshkaLoss(m, peer.CachedMultipleNegativesRankingLoss(m), matryoshka_dims=[32, 8]),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny()


@pytest.mark.parametrize("columns", [pytest.param(2, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_the_peers(model: Any, name: str, columns: int) -> None:
    ours, theirs = CASES[name]
    data = texts(ROWS, columns)
    wanted = run(model, theirs, data, factor=0.25)
    for cache in ("always", "never"):
        found = run(
            model,
            lambda m, c=cache: ContrastiveLoss(m, ours(), cache=c, micro_batch_tokens=40),
            data,
            factor=0.25,
        )
        assert_same(found, wanted)


@pytest.mark.parametrize("include_prompt", [True, False])
def test_prompts_are_read_as_the_peer_reads_them(model: Any, include_prompt: bool) -> None:
    model = copy.deepcopy(model)
    model[1].include_prompt = include_prompt
    prompts = ("the cat: ", "a mat of gold: ", "a mat of gold: ")
    found = run(
        model, lambda m: ContrastiveLoss(m, micro_batch_tokens=40), texts(ROWS, 3), prompts=prompts
    )
    assert_same(found, run(model, MNR, texts(ROWS, 3), prompts=prompts))
    plain = run(model, MNR, texts(ROWS, 3))
    assert abs(float(found[0] - plain[0])) > 1e-4


@pytest.mark.parametrize("vocabulary", [120, 40])
@pytest.mark.parametrize("kind", ["absolute", "relative"])
@pytest.mark.parametrize("cached", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_guide_leaves_out_what_the_peers_guide_leaves_out(
    model: Any, vocabulary: int, kind: Any, cached: bool
) -> None:
    guide = tiny(seed=1, vocabulary=vocabulary, dtype=torch.float32)
    assert (guide.tokenizer.get_vocab() == model.tokenizer.get_vocab()) == (vocabulary == 120)
    data = texts(ROWS, 3)
    objective = presets.gist(masks=(Guided(0.1, kind),))
    made = peer.CachedGISTEmbedLoss if cached else peer.GISTEmbedLoss
    wanted = run(model, lambda m: made(m, guide, margin_strategy=kind, margin=0.1), data)
    found = run(
        model, lambda m: ContrastiveLoss(m, objective, guide=guide, micro_batch_tokens=40), data
    )
    assert_same(found, wanted)
    unguided = run(model, lambda m: ContrastiveLoss(m, presets.gist(masks=())), data)
    assert abs(float(found[0] - unguided[0])) > 1e-3


def test_models_that_are_not_trained_stay_in_their_mode(model: Any) -> None:
    other, data = copy.deepcopy(model).float().eval(), texts(ROWS)
    run(model, lambda m: ContrastiveLoss(m, presets.gist(), guide=other), data)
    run(model, lambda m: ContrastiveLoss(m, presets.mnr(teacher=Teacher(0.5)), teacher=other), data)
    assert not any(module.training for module in other.modules())


def test_a_guide_that_finds_pairs_equal_makes_no_anchor_its_own_negative(model: Any) -> None:
    """The peer leaves the anchor itself in, against itself, where the guide finds the pair as close
    as that."""
    data = texts(ROWS)
    data["positive"][3] = data["anchor"][3]
    other = copy.deepcopy(model).float()
    found = run(model, lambda m: ContrastiveLoss(m, presets.gist(), guide=other), data)
    wanted = definition(model, presets.gist(), data, guide=other)
    theirs = run(model, lambda m: peer.GISTEmbedLoss(m, other), data)
    assert abs(float(found[0]) - wanted) < 1e-5 * (1 + wanted)
    assert abs(float(theirs[0]) - wanted) > 1e-3


# Equal to the definition
# -----------------------------------------------------------------------------------------------


def definition(
    model: Any, objective: Any, columns: Columns, guide: Any = None, **about: Any
) -> float:
    """Mean loss in plain loops; ids are those of the texts."""
    with torch.no_grad():
        rows = [model(each)["sentence_embedding"] for each in features(model, columns)]
    known = {
        text: i
        for i, text in enumerate(dict.fromkeys(t for column in columns.values() for t in column))
    }
    ids = [torch.tensor([known[text] for text in column]) for column in columns.values()]
    if guide is not None:
        guides = [
            torch.tensor(guide.encode(c, normalize_embeddings=True)) for c in columns.values()
        ]
    sides = [
        Side(r, i, guide=None if guide is None else guides[k])
        for k, (r, i) in enumerate(zip(rows, ids, strict=True))
    ]
    negatives = None
    if len(sides) > 2:
        owner = torch.arange(len(rows[0])).repeat(len(sides) - 2)
        guided = None if guide is None else torch.cat(guides[2:])
        negatives = Side(torch.cat(rows[2:]), torch.cat(ids[2:]), guide=guided, owner=owner)
    batch = Batch(sides[0], sides[1], negatives, **about)
    shares = batch.shares().tolist()
    return sum(
        share * loss for share, loss in zip(shares, defined_losses(objective, batch), strict=True)
    )


@pytest.mark.parametrize("numerator", ["one", "mean", "sum"])
def test_duplicates_are_known_by_their_tokens(model: Any, numerator: Any) -> None:
    data = texts(ROWS, 3)
    data["positive"][4] = data["positive"][7] = data["positive"][1]
    data["anchor"][2], data["negative"][5] = data["anchor"][3], data["positive"][6]
    objective = Objective(masks=(SameId(),), numerator=numerator, pools=EVERY)
    wanted = definition(model, objective, data)
    found = run(model, lambda m: ContrastiveLoss(m, objective), data)
    assert abs(float(found[0]) - wanted) < 1e-5
    assert abs(definition(model, Objective(pools=EVERY), data) - wanted) > 1e-3


@pytest.mark.parametrize("objective", [presets.mnr, presets.symmetric, presets.gte])
def test_the_temperature_learns_by_its_own_gradient_times_the_factor(
    model: Any, objective: Any
) -> None:
    """Where the peer leaves the factor of accumulation out (cached), or finds nan (GTE)."""
    data, step, factor = texts(ROWS, 3), 1e-4, 0.25
    made = objective(Temperature(0.07, learnable=True))
    loss = ContrastiveLoss(copy.deepcopy(model), made, micro_batch_tokens=40)
    for earlier in (0.0, 2.0):  # what is there already stays
        made.temperature.log_scale.grad = torch.tensor(earlier, dtype=torch.float64)
        (factor * loss(features(model, data), None)).backward()
        either = [definition(model, objective(0.07 * math.exp(d)), data) for d in (-step, step)]
        wanted = earlier + factor * (either[0] - either[1]) / (2 * step)
        assert abs(float(made.temperature.log_scale.grad) - wanted) < 1e-5
    assert abs(wanted - 2.0) > 1e-3


def test_labels_are_weights_or_ids_or_refused(model: Any) -> None:
    data = texts(ROWS)
    read = features(model, data)
    weight = torch.linspace(0, 2, ROWS)
    found = ContrastiveLoss(model, labels="weight")(read, weight)
    assert (
        abs(float(found.detach()) - definition(model, presets.mnr(), data, weight=weight.double()))
        < 1e-5
    )
    ids = torch.arange(ROWS) // 3
    objective = Objective(masks=(SameId(),), numerator="mean")
    found = ContrastiveLoss(model, objective, labels="id")(read, ids)
    same = {**data, "positive": [f"{text}" for text in data["positive"]]}
    with torch.no_grad():
        rows = [model(each)["sentence_embedding"] for each in features(model, same)]
    wanted = defined_losses(objective, Batch(Side(rows[0]), Side(rows[1], ids=ids)))
    assert abs(float(found) - sum(wanted) / ROWS) < 1e-5
    assert float(ContrastiveLoss(model, labels="ignore")(read, ids)) == float(
        ContrastiveLoss(model)(read, None)
    )
    for labels, given in ((None, ids), ("weight", None), ("id", weight)):
        with pytest.raises(DataError, match="labels"):
            ContrastiveLoss(model, labels=labels)(read, given)


def test_a_negative_that_is_a_document_of_the_batch_has_its_label(model: Any) -> None:
    data, ids = texts(ROWS, 3), torch.arange(ROWS) // 3
    data["negative"][:6] = data["positive"][6:]
    objective, read = Objective(masks=(SameId(),)), features(model, data)
    found = ContrastiveLoss(model, objective, labels="id")(read, ids)
    with torch.no_grad():
        rows = [model(each)["sentence_embedding"] for each in read]
    unknown = torch.arange(100, 100 + ROWS)
    mean = []
    for known in (torch.cat([ids[6:], unknown[6:]]), unknown):
        batch = Batch(
            Side(rows[0]), Side(rows[1], ids), Side(rows[2], known, owner=torch.arange(ROWS))
        )
        mean.append(float(sum(defined_losses(objective, batch))) / ROWS)
    assert abs(float(found.detach()) - mean[0]) < 1e-5 and mean[1] - mean[0] > 1e-2


# A teacher
# ------------------------------------------------------------------------------------------------------------


def test_a_teacher_of_another_width_is_read(model: Any) -> None:
    torch.manual_seed(1)
    words, data = [text for column in texts(40).values() for text in column], texts(ROWS, 3)
    teacher = (
        Transformer(layers=1, width=16, heads=2, vocabulary=60, max_length=24).build(words).model
    )
    student = copy.deepcopy(model).train()
    objective = presets.mnr(teacher=Teacher(0.6))
    loss = ContrastiveLoss(student, objective, teacher=teacher, micro_batch_tokens=40)
    value = loss(features(student, data), None)
    value.backward()
    with torch.no_grad():
        rows = [student(each)["sentence_embedding"] for each in features(student, data)]
    said = [
        torch.tensor(teacher.encode(column, normalize_embeddings=True)) for column in data.values()
    ]
    query, doc = (Side(rows[i], teacher=said[i]) for i in range(2))
    batch = Batch(query, doc, Side(rows[2], teacher=said[2], owner=torch.arange(ROWS)))
    assert (
        abs(float(value.detach()) - float(defined_losses(objective, batch).detach().mean())) < 1e-5
    )
    assert "hinton2015distilling" in loss.citation and "0.6" in loss.get_config_dict()["teacher"]


# How it is embedded
# ----------------------------------------------------------------------------------------------------


def test_replays_repeat_dropout() -> None:
    model = tiny(dropout=0.3)
    kept, replayed = (
        run(
            model, lambda m, c=c: ContrastiveLoss(m, cache=c, micro_batch_tokens=40), texts(ROWS, 3)
        )
        for c in ("never", "always")
    )
    assert_same(replayed, kept)
    assert (
        abs(float(kept[0] - run(tiny(), ContrastiveLoss, texts(ROWS, 3))[0])) > 1e-3
    )  # there was dropout


def test_two_losses_wait_for_their_backward_passes(model: Any) -> None:
    """Another batch between forward and backward changes nothing."""
    first, second = texts(ROWS), texts(5, seed=1)
    wanted = [run(model, ContrastiveLoss, data)[1] for data in (first, second)]
    model = copy.deepcopy(model).train()
    loss = ContrastiveLoss(model, cache="always")
    values = [loss(features(model, data), None) for data in (first, second)]
    (values[0] + values[1]).backward()
    for name, p in model.named_parameters():
        if name in wanted[0]:
            torch.testing.assert_close(
                p.grad, wanted[0][name] + wanted[1][name], rtol=1e-6, atol=1e-9
            )


def test_without_gradients_nothing_is_kept(model: Any) -> None:
    data = texts(ROWS)
    loss = ContrastiveLoss(model, presets.mnr(memory=Memory(4), pools=(pools.docs, pools.memory)))
    with torch.no_grad():
        value = loss(features(model, data), None)
    assert not value.requires_grad and loss.objective.memory.side() is None
    assert abs(float(value) - definition(model, presets.mnr(), data)) < 1e-5


def test_static_embeddings_train_too(model: Any) -> None:
    torch.manual_seed(0)
    static = StaticEmbedding(model.tokenizer.backend_tokenizer, embedding_dim=16)
    bags = SentenceTransformer(modules=[static], device="cpu").double()
    (found, ours), (wanted, theirs) = (
        run(bags, make, texts(ROWS, 3))
        for make in (lambda m: ContrastiveLoss(m, micro_batch_tokens=20), MNR)
    )
    assert abs(float(found - wanted)) < 1e-5
    (ours_of,), (theirs_of,) = ours.values(), theirs.values()
    torch.testing.assert_close(ours_of.to_dense(), theirs_of.to_dense(), rtol=1e-6, atol=1e-9)


def static(tokenizer: Any, seed: int = 0) -> StaticEmbedding:
    """Vectors of tokens, of which special ones are none."""
    torch.manual_seed(seed)
    return StaticEmbedding(tokenizer.backend_tokenizer, embedding_dim=32)


@pytest.mark.parametrize("trained", ["transformer", "static"])
def test_a_guide_of_one_vocabulary_reads_texts_with_its_own_special_tokens(
    model: Any, trained: str
) -> None:
    bags = SentenceTransformer(modules=[static(model.tokenizer)], device="cpu").double()
    student, guide = map(
        copy.deepcopy, (model, bags) if trained == "transformer" else (bags, model)
    )
    assert student.tokenizer.get_vocab() == guide.tokenizer.get_vocab()
    data, objective = texts(ROWS, 3), presets.gist()
    loss = ContrastiveLoss(student, objective, guide=guide)
    batch, _ = loss._reader.read(features(student, data), None)
    for side, column in zip((batch.query, batch.doc, batch.negatives), data.values(), strict=True):
        wanted = torch.tensor(guide.encode(column, normalize_embeddings=True))
        torch.testing.assert_close(side.guide, wanted, rtol=0, atol=1e-6, check_dtype=False)
    wanted_loss = definition(student, objective, data, guide=guide)
    assert abs(float(loss(features(student, data), None).detach()) - wanted_loss) < 1e-5 * (
        1 + wanted_loss
    )


@pytest.mark.parametrize("routes", [("query", "document"), ("short", "long")])
@pytest.mark.parametrize("places", [(0, 1, 1), (1, 1, 1), (1, 0, 1)])
def test_columns_go_the_routes_of_their_tasks(
    model: Any, routes: tuple[str, str], places: tuple[int, ...]
) -> None:
    """Bags beside a transformer."""
    both = [static(model.tokenizer)], list(copy.deepcopy(model).children())
    router = (
        Router.for_query_document(*both)
        if routes[0] == "query"
        else Router(dict(zip(routes, both)))
    )
    routed, found = SentenceTransformer(modules=[router], device="cpu").double(), []
    read = [routed.preprocess(c, task=routes[i]) for c, i in zip(texts(ROWS, 3).values(), places)]
    for make in (
        MNR,
        lambda m: ContrastiveLoss(m, cache="always", micro_batch_tokens=40),
        ContrastiveLoss,
    ):
        routed.zero_grad()
        loss = make(routed)([dict(column) for column in read], None)
        loss.backward()
        grads = {
            name: p.grad.to_dense().clone()
            for name, p in routed.named_parameters()
            if p.grad is not None
        }
        found.append((loss.detach(), grads))
    for ours in found[1:]:
        assert_same(ours, found[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_scaler_and_autocast_reach_every_replay(dtype: torch.dtype) -> None:
    model, data = tiny(dtype=torch.float32).train(), texts(ROWS, 3)
    wanted = run(model, MNR, data)[1]
    loss = ContrastiveLoss(
        model, presets.mnr(Temperature(0.05, learnable=True)), cache="always", micro_batch_tokens=40
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.0)
    seen: list[tuple[bool, bool]] = []
    model.register_forward_pre_hook(
        lambda *_: seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
    )
    with torch.autocast("cpu", dtype):
        value = loss(features(model, data), None)
    scaler.scale(value).backward()
    assert sum(kept for kept, _ in seen[3:]) > 3 and all(
        cast for _, cast in seen
    )  # the first embed probes, outside too
    scaled = loss.temperature_bias.grad.clone()
    scaler.unscale_(optimizer)
    assert abs(float(scaled / loss.temperature_bias.grad) - 2**10) < 1e-6
    for name, p in model.named_parameters():
        if name in wanted and float(wanted[name].norm()) > 1e-3:
            assert (
                float(torch.cosine_similarity(p.grad.flatten(), wanted[name].flatten(), 0)) > 0.98
            ), name


def test_gradients_are_scaled_before_they_are_rounded_to_half_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, seen = tiny(dtype=torch.float16), []
    backward = Embedded.backward
    monkeypatch.setattr(
        Embedded,
        "backward",
        lambda self, grads: (seen.extend(grads.values()), backward(self, grads)),
    )
    (ContrastiveLoss(model)(features(model, texts(ROWS)), None) * 2.0**10).backward()
    assert len(seen) == 2 and all(
        grad.dtype == torch.float32 and float(grad.norm()) > 1 for grad in seen
    )
    assert all(p.grad.dtype == torch.float16 for p in model.parameters() if p.grad is not None)


# In the trainer
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.long),
        {"gradient_accumulation_steps": 3},
        pytest.param({"bf16": True}, marks=pytest.mark.long),
    ],
)
def test_the_trainer_reaches_what_it_reaches_with_the_peers_loss(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    data, found = texts(24, 3), []
    held_out = Dataset.from_dict(texts(8, 3, seed=1))
    judge = EmbeddingSimilarityEvaluator(
        data["anchor"][:5], data["positive"][:5], [0.1, 0.2, 0.3, 0.4, 0.5], write_csv=False
    )
    for make in (MNR, lambda m: ContrastiveLoss(m, cache="always", micro_batch_tokens=40)):
        model = tiny(dtype=torch.float32)
        more = {
            "eval_dataset": held_out,
            "evaluator": judge,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "optim": "sgd",
            **options,
        }
        prompts = {"anchor": "the cat: ", "positive": "a mat: ", "negative": "a mat: "}
        trained = trainer(
            tmp_path, model, make(model), data, prompts=prompts, learning_rate=0.05, **more
        )
        trained.train()
        found.append((trained, weights(model)))
    close = {"rtol": 3e-2, "atol": 3e-2} if "bf16" in options else {"rtol": 1e-3, "atol": 1e-4}
    for name, count in (("loss", 4), ("eval_loss", 2), ("eval_spearman_cosine", 2)):
        theirs, ours = (logged(trained, name) for trained, _ in found)
        assert len(ours) == count
        if "spearman" not in name or "bf16" not in options:
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), **close)
    assert logged(found[1][0])[0] != logged(found[1][0])[-1]
    if "bf16" not in options:
        torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-3, atol=1e-5)


def test_checkpoints_hold_the_objective_and_resume_to_the_bit(tmp_path: Path) -> None:
    data, found = texts(36, 3), []
    options = {
        "save_strategy": "steps",
        "save_steps": 3,
        "max_steps": 5,
        "gradient_accumulation_steps": 2,
    }
    for resume in (None, str(tmp_path / "run" / "checkpoint-3")):
        model, loss = learning()
        folder = tmp_path / ("run" if resume is None else "resumed")
        trained = trainer(
            folder, model, loss, data, [ObjectiveState(loss)], learning_rate=0.01, **options
        )
        trained.train(resume_from_checkpoint=resume)
        found.append((weights(model), loss.objective.state_dict(), logged(trained)))
    whole, resumed = found
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)
    assert abs(loss.temperature - 0.05) > 1e-3
    assert sorted(loss.objective.state_dict()) == [
        "memory.ids",
        "memory.rows",
        "temperature.log_scale",
        "temperature.origin",
    ]
    SentenceTransformer(str(tmp_path / "run" / "checkpoint-3"), device="cpu").encode("the cat")


def test_what_checkpoints_would_lose_is_told_before_the_first_step(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    model, loss = learning()
    with pytest.raises(ConfigError, match=r"ObjectiveState\(loss\)"):
        trainer(tmp_path, model, loss, texts(24, 3)).train()
    fixed = ContrastiveLoss(model)
    trainer(tmp_path, model, fixed, texts(24, 3), **options).train()
    model, loss = learning()
    scheduled = ContrastiveLoss(model, presets.mnr(Temperature(0.1, final=0.02)))
    with pytest.raises(ConfigError, match="step 2 holds no objective"):
        trainer(tmp_path, model, scheduled, texts(24, 3), [ObjectiveState(scheduled)]).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        )
    with pytest.raises(ConfigError, match="restore_callback_states_from_checkpoint"):
        ObjectiveState()


def test_the_temperature_is_in_the_optimizer_without_decay_and_with_its_own_rate(
    tmp_path: Path,
) -> None:
    model, loss = learning()
    given = {"weight_decay": 0.1, "learning_rate_mapping": {"temperature": 0.5}}
    trained = trainer(tmp_path, model, loss, texts(24, 3), [ObjectiveState(loss)], **given)
    (group,) = [
        g
        for g in trained.create_optimizer().param_groups
        if any(p is loss.temperature_bias for p in g["params"])
    ]
    assert len(group["params"]) == 1 and group["weight_decay"] == 0.0 and group["lr"] == 0.5
    assert any(g["weight_decay"] == 0.1 and g["params"] for g in trained.optimizer.param_groups)


def test_schedules_and_automatic_temperatures_follow_the_trainer(tmp_path: Path) -> None:
    model = tiny(dtype=torch.float32)
    loss = ContrastiveLoss(model, presets.mnr(Temperature(0.1, final=0.02)))
    trainer(tmp_path, model, loss, texts(24), [ObjectiveState(loss)]).train()
    assert abs(loss.temperature - 0.02) < 1e-9
    loss = ContrastiveLoss(model, presets.mnr(Temperature("auto")))
    with torch.no_grad():  # an evaluation of three rows before the first step
        loss([model.preprocess(list(column)[:3]) for column in texts(24).values()], None)
    trainer(tmp_path, model, loss, texts(24)).train()
    assert abs(loss.temperature - 1 / math.log(6)) < 1e-9


def test_several_data_sets_have_a_loss_each(tmp_path: Path) -> None:
    model = tiny(dtype=torch.float32)
    losses = {
        "pairs": ContrastiveLoss(model, presets.symmetric(Temperature(0.05, learnable=True))),
        "triples": ContrastiveLoss(model, presets.mnr(Temperature(0.1, learnable=True))),
    }
    every = {**losses, "graded": peer.CoSENTLoss(model)}
    graded = {**texts(18, seed=2), "score": [i / 18 for i in range(18)]}
    sets = {"pairs": texts(18), "triples": texts(18, 3, seed=1), "graded": graded}
    data = {name: Dataset.from_dict(columns) for name, columns in sets.items()}
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path), max_steps=9, per_device_train_batch_size=6, learning_rate=0.01, save_steps=9, report_to=[], use_cpu=True,
        disable_tqdm=True,
    )  # fmt: skip
    SentenceTransformerTrainer(
        model, arguments, data, loss=every, callbacks=[ObjectiveState(every)]
    ).train()
    assert all(
        abs(loss.temperature - t) > 1e-4
        for loss, t in zip(losses.values(), (0.05, 0.1), strict=True)
    )
    kept = json.loads((tmp_path / "checkpoint-9" / "trainer_state.json").read_text())
    assert sorted(kept["stateful_callbacks"]["ObjectiveState"]["attributes"]) == [
        "pairs",
        "triples",
    ]


def test_the_model_card_tells_the_parts_and_cites_them(tmp_path: Path) -> None:
    model = tiny(dtype=torch.float32)
    guide = tiny(seed=1, dtype=torch.float32)
    loss = ContrastiveLoss(model, Matryoshka(presets.gist(), widths=(32, 8)), guide=guide)
    trainer(tmp_path, model, loss, texts(24), max_steps=1).train()
    model.save_pretrained(str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
    for told in (
        "tempera.integrations.sentence_transformers.ContrastiveLoss",
        "back_positives",
        "solatorio2024gistembed",
        "kusupati",
    ):
        assert told in card
    assert all(
        "tempera" not in module["type"]
        for module in json.loads((tmp_path / "saved" / "modules.json").read_text())
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes has come to."""
    folder = tmp_path_factory.mktemp("two")
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        small.__file__,
        str(folder),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=180, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.long
@pytest.mark.parametrize(("name", "given"), [("gathered", (8, 1, 22)), ("accumulated", (4, 2, 24))])
def test_two_processes_are_one(
    tmp_path: Path, two: list[dict[str, Any]], name: str, given: tuple[int, int, int]
) -> None:
    wanted = small.gathered(tmp_path, *given)
    for found in two:
        torch.testing.assert_close(found[name], wanted, rtol=1e-4, atol=1e-5)
    assert abs(wanted["temperature"] - 0.05) > 1e-4
    start = weights(tiny(dtype=torch.float32))
    assert max(float((wanted[key] - value).abs().max()) for key, value in start.items()) > 1e-3


@pytest.mark.long
def test_processes_with_a_data_set_each_average_as_with_the_peers_loss(
    two: list[dict[str, Any]],
) -> None:
    for found in two:
        torch.testing.assert_close(found["ours"], two[0]["peers"], rtol=1e-4, atol=1e-5)
        assert "the processes use different losses in the same step" in found["refused"]


# Mistakes
# --------------------------------------------------------------------------------------------------------------


def test_mistakes_are_told_in_a_line(model: Any) -> None:
    data = texts(ROWS, 3)
    read = features(model, data)
    with pytest.raises(DataError, match="a query and a document, but the data has 1"):
        ContrastiveLoss(model)(read[:1], None)
    with pytest.raises(DataError, match="guide"):
        ContrastiveLoss(model, presets.gist())(read, None)
    with pytest.raises(ConfigError, match=r"ContrastiveLoss\(model, tempera.Matryoshka"):
        peer.MatryoshkaLoss(model, ContrastiveLoss(model), matryoshka_dims=[8])(read, None)
    loss = ContrastiveLoss(model)
    loss.model = nn.DataParallel(model)
    with pytest.raises(ConfigError, match="not a DataParallel"):
        loss(read, None)
    broken = copy.deepcopy(model)
    nn.init.constant_(next(broken.parameters()), math.nan)
    with pytest.raises(TemperaError, match="the loss is nan"):
        ContrastiveLoss(broken)(read, None)
    pairs = [
        model.preprocess(data["anchor"]),
        {**read[1], "token_type_ids": torch.ones_like(read[1]["input_ids"])},
    ]
    with pytest.raises(ConfigError, match="token types"):
        ContrastiveLoss(model)(pairs, None)
    prefixed = copy.deepcopy(model)
    prefixed[1].include_prompt = False
    read = features(prefixed, texts(ROWS, 4), ("the: ", "cat: ", "cat: ", None))
    with pytest.raises(ConfigError, match="columns of negatives"):
        ContrastiveLoss(prefixed)(read, None)


# What the project says of it
# -------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_example_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "drop_in.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    before, after, start, end = map(float, re.findall(r"(\d\.\d+)", done.stdout.splitlines()[-1]))
    assert after > before + 0.2 and end != start == 0.05
    assert (
        len(
            SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(
                "how do I reset my invoice?"
            )
        )
        == 64
    )


def test_every_loss_of_the_peer_is_in_the_table() -> None:
    page = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    rows = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    names = [name for name in peer.__all__ if name.endswith(("Loss", "LossInBatchNegatives"))]
    assert len(names) > 25 and [name for name in names if f"`{name}" not in rows] == []


def test_lines_of_the_table_can_be_written(model: Any) -> None:
    """Every replacement is an expression over the names that the page imports."""
    page = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    (imports,) = re.findall(r"```python\n(from tempera.*?)```", page, re.S)
    names: dict[str, Any] = {"model": model, "guide": copy.deepcopy(model)}
    exec(compile(imports, "losses.md", "exec"), names)
    lines = [line.split("|")[2] for line in page.splitlines() if line.startswith("| `")]
    written = [code for line in lines for code in re.findall(r"`(ContrastiveLoss\(.*?\))`", line)]
    assert len(written) > 8
    for code in written:
        assert isinstance(eval(code, names), ContrastiveLoss), code


def test_the_temperature_stays_on_the_host_in_float64(model: Any) -> None:
    """The trainer moves the loss to a device, and a Mac's has no float64."""

    def to_device(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.float64:
            raise TypeError("this device has no float64")
        return tensor

    loss = ContrastiveLoss(copy.deepcopy(model).float(), presets.mnr(temperature=0.05))
    names = [name for name, _ in loss.named_parameters()]
    loss._apply(to_device)
    loss.objective.to(torch.bfloat16)
    loss.to(torch.bfloat16)
    assert loss.temperature == pytest.approx(0.05, abs=1e-12)
    assert loss.temperature_bias is loss.objective.temperature.log_scale
    assert sorted(name for name, _ in loss.named_parameters()) == sorted(names)


def test_a_guide_or_a_teacher_that_nothing_asks(model: Any) -> None:
    other = copy.deepcopy(model)
    with pytest.raises(ConfigError, match=r"^the objective never asks the guide: give it masks="):
        ContrastiveLoss(model, presets.mnr(), guide=other)
    with pytest.raises(ConfigError, match=r"^the objective never asks the guide"):
        ContrastiveLoss(model, Objective(masks=[SameId(), Guided(by="self")]), guide=other)
    with pytest.raises(ConfigError, match=r"^the objective never asks the teacher"):
        ContrastiveLoss(model, presets.mnr(), teacher=other)
    with pytest.raises(ConfigError, match=r"^the guide is the model in training"):
        ContrastiveLoss(model, presets.gist(), guide=model)
    assert all(p.requires_grad for p in model.parameters())
    ContrastiveLoss(model, presets.gist(), guide=other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"labels": "weights"},
            "labels is weight or id or ignore, not 'weights'. Did you mean weight?",
        ),
        ({"cache": "alway"}, "cache is auto or never or always, not 'alway'. Did you mean always?"),
        ({"cache": None}, "cache is auto or never or always, not None"),
        (
            {"objective": 0.05},
            "objective is an Objective such as mnr(temperature=0.05), or None, not 0.05",
        ),
        (
            {"objective": presets.mnr},
            "objective is an Objective such as mnr(temperature=0.05), or None, not <function mnr",
        ),
    ],
)
def test_options_that_are_not_known(model: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        ContrastiveLoss(model, **options)


def test_guides_of_models_with_routes(model: Any) -> None:
    """Tokens are compared on both routes; those of several vocabularies are no texts, and routes of
    other names are refused."""
    words = model.tokenizer
    routes = SentenceTransformer(
        modules=[
            Router.for_query_document(
                list(copy.deepcopy(model)), [static(words, 1).double(), Normalize()]
            )
        ],
        device="cpu",
    )
    guide = SentenceTransformer(modules=[static(words, 1).double(), Normalize()], device="cpu")
    data = texts(ROWS)
    reader = ContrastiveLoss(routes, presets.gist(), guide=guide)._reader
    columns = [
        routes.preprocess(data[name], task=task)
        for name, task in (("anchor", "query"), ("positive", "document"))
    ]
    batch, _ = reader.read(columns, None)
    for side, name in ((batch.query, "anchor"), (batch.doc, "positive")):
        wanted = guide.encode(data[name], normalize_embeddings=True)
        assert abs(side.guide.numpy() - wanted).max() < 1e-5
    other = [static(tiny(vocabulary=40).tokenizer).double(), Normalize()]
    several = SentenceTransformer(
        modules=[Router.for_query_document(list(copy.deepcopy(model)), other)], device="cpu"
    )
    with pytest.raises(ConfigError, match="whose routes have several tokenizers"):
        ContrastiveLoss(several, presets.gist(), guide=guide)
    named = SentenceTransformer(
        modules=[Router({"short": list(copy.deepcopy(model)), "long": other})], device="cpu"
    )
    with pytest.raises(ConfigError, match="no routes for queries and documents"):
        ContrastiveLoss(model, presets.gist(), guide=named)


@pytest.mark.parametrize(
    "names", [["q", "q_2", "q_2_x", "other"], ["a", "b", "negative", "negative_2"]]
)
def test_columns_may_begin_with_the_name_of_another(tmp_path: Path, names: list[str]) -> None:
    """The trainer hands the tokens of `negative_2` over with those of `negative`, too."""
    columns = list(texts(24, 4).values())
    losses = []
    for each in (names, ["one", "two", "three", "four"]):
        model = tiny()
        data = dict(zip(each, columns, strict=True))
        trained = trainer(tmp_path / each[0], model, ContrastiveLoss(model), data)
        trained.train()
        losses.append(logged(trained))
    assert losses[0] == losses[1] and len(losses[0]) == 4
