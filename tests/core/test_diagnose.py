"""What `diagnose` reports, against the definition; and that it leaves no trace."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import examples
import pytest
import torch
from torch import Tensor

from tempera.core import pools, presets
from tempera.core.batch import Batch, Side
from tempera.core.corrections import LogQ
from tempera.core.definition import Definition, holds_positive
from tempera.core.diagnose import QUANTILES, Diagnosis, diagnose
from tempera.core.masks import Guided, KnownPositives, SameId
from tempera.core.matryoshka import Matryoshka
from tempera.core.memory import Memory
from tempera.core.objective import Objective
from tempera.core.similarity import cosine, dot
from tempera.core.temperature import Temperature
from tempera.errors import DataError

WHOLE = [*(examples.made(seed) for seed in range(2)), examples.made(2, shared=True)]
EACH_ROW = ("rank", "probability", "effective_negatives", "hardest_share", "positive", "hardest")


def expected(definition: Definition) -> list[dict[str, float]]:
    """What the first softmax shows of each row: its positive against all that is no positive of
    it."""
    blocks = definition.softmaxes()[0]
    held = next(block for block in blocks if holds_positive(block))
    similarities = {block: definition.similarities(block).tolist() for block in blocks}
    logits = {block: definition.logits(block, False).tolist() for block in blocks}
    own = definition.logits(held, True).tolist()
    candidates = {
        block: definition.negatives(block, definition.positives(block, several=block == held))
        for block in blocks
    }
    rows = []
    for i, place in enumerate(definition.places(held[1])):
        negatives = [
            (logits[b][i][c], similarities[b][i][c]) for b in blocks for c in candidates[b][i]
        ]
        if definition.objective.hardest is not None:
            negatives = sorted(negatives, reverse=True)[: definition.objective.hardest]
        positive, weights = own[i][place], [math.exp(logit) for logit, _ in negatives]
        shares = [weight / sum(weights) for weight in weights]
        rows.append(
            {
                "rank": 1 + sum(logit > positive for logit, _ in negatives),
                "probability": math.exp(positive) / (math.exp(positive) + sum(weights)),
                "effective_negatives": math.exp(-sum(p * math.log(p) for p in shares))
                if shares
                else 0.0,
                "hardest_share": max(shares, default=math.nan),
                "positive": similarities[held][i][place],
                "hardest": max((s for _, s in negatives), default=math.nan),
            }
        )
    return rows


@pytest.mark.parametrize("tile", [None, 60])
def test_each_number_of_each_row(tile: int | None) -> None:
    spans = itertools.cycle((None, range(2, 6)))
    for parts, data, span in zip(
        examples.sampled(400, 50 if tile is None else 25), itertools.cycle(WHOLE), spans
    ):
        objective = examples.objective_of(replace(parts, tile=tile))
        found = diagnose(objective, examples.batch_of(data, span=span))
        want = expected(Definition(objective, data, objective.temperature.scale()))
        want = want if span is None else want[span.start : span.stop]
        for name in EACH_ROW:
            got = getattr(found, name).tolist()
            assert got == pytest.approx(
                [row[name] for row in want], rel=1e-9, abs=1e-9, nan_ok=True
            ), (name, parts)
        assert found.temperature == pytest.approx(examples.T, rel=1e-12)


@pytest.mark.parametrize("data", WHOLE)
def test_the_share_that_each_mask_leaves_out(data: Batch[Tensor]) -> None:
    chosen = ("docs", "negatives", "sampled", "memory")
    masks = {"SameId": SameId(), "KnownPositives": KnownPositives(), "Guided": Guided(0.1)}
    objective = Objective(
        pools=[getattr(pools, name) for name in chosen],
        masks=list(masks.values()),
        memory=Memory(3),
        tile_elements=20,
    )
    whole = Definition(objective, data, objective.temperature.scale())
    found = diagnose(objective, examples.batch_of(data)).masked
    assert list(found) == list(masks)
    for name, mask in masks.items():
        alone = Definition(
            Objective(pools=objective.pools, masks=[mask], memory=Memory(3)), data, whole.scale
        )
        (blocks,) = whole.softmaxes()
        count = out = 0
        for block in blocks:
            positives = whole.positives(block, several=False)
            nothing, masked = whole.no_candidates(block), alone.masked(block)
            count += sum(len(data.sides()[block[1]]) - len(never) for never in nothing)
            out += sum(len(masked[i] - positives[i] - nothing[i]) for i in range(len(data)))
        assert found[name] == pytest.approx(out / count, rel=1e-12) and out
    counted = Objective(
        pools=objective.pools, masks=[KnownPositives()], numerator="mean", memory=Memory(3)
    )
    asked = Definition(counted, data, whole.scale)
    out = sum(
        len(
            asked.masked(block)[i]
            - asked.positives(block, several=True)[i]
            - whole.no_candidates(block)[i]
        )
        for block in asked.softmaxes()[0]
        for i in range(len(data))
    )
    assert diagnose(counted, examples.batch_of(data)).masked["KnownPositives"] == pytest.approx(
        out / count, rel=1e-12
    )
    assert out / count < found["KnownPositives"]
    assert diagnose(presets.mnr(), examples.batch_of(data)).masked == {}
    twice = diagnose(
        Objective(masks=[Guided(0.5), SameId(), Guided(0.0)]), examples.batch_of(data)
    ).masked
    each = [
        diagnose(Objective(masks=[Guided(margin)]), examples.batch_of(data)).masked["Guided"]
        for margin in (0.5, 0.0)
    ]
    assert (
        list(twice) == ["Guided", "SameId", "Guided 2"]
        and [twice["Guided"], twice["Guided 2"]] == each
    )


def random_documents(found: Diagnosis, batch: Batch[Tensor], objective: Objective) -> list[int]:
    """The document that each row's random similarity was taken with."""
    table = (
        Definition(objective, batch, objective.temperature.scale())
        .similarities(("query", "doc"))
        .tolist()
    )
    drawn = []
    for i, value in enumerate(found.random.tolist()):
        near = [j for j in range(len(batch)) if abs(table[i][j] - value) < 1e-12]
        assert len(near) == 1 and near[0] != i
        drawn += near
    return drawn


@pytest.mark.parametrize("kind", ["cosine", "dot"])
def test_alignment_and_uniformity(kind: str) -> None:
    data = WHOLE[0]
    batch, objective = examples.batch_of(data), Objective({"cosine": cosine, "dot": dot}[kind], 1.0)

    def unit(role: str, i: int) -> list[float]:
        return torch.nn.functional.normalize(data.sides()[role].rows[i], dim=0).tolist()

    def distance(a: list[float], b: list[float]) -> float:
        return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))

    seen = set()
    for seed in range(5):
        found = diagnose(objective, batch, seed=seed)
        aligned = [distance(unit("query", i), unit("doc", i)) for i in range(len(data))]
        assert found.alignment == pytest.approx(sum(aligned) / len(data), rel=1e-12)
        drawn = random_documents(found, batch, objective)
        apart = [
            math.exp(-2 * distance(unit("doc", i), unit("doc", j))) for i, j in enumerate(drawn)
        ]
        assert found.uniformity == pytest.approx(math.log(sum(apart) / len(data)), rel=1e-12)
        assert diagnose(objective, batch, seed=seed).random.equal(found.random)
        seen.add(tuple(drawn))
    assert len(seen) > 1


def test_a_row_without_negatives() -> None:
    batch = Batch(Side(torch.eye(2)[:1]), Side(torch.eye(2)[:1]))
    found = diagnose(presets.mnr(), batch)
    assert found.rank.tolist() == [1.0] and found.probability.tolist() == [1.0]
    assert found.effective_negatives.tolist() == [0.0]
    assert bool(found.hardest_share.isnan().all()) and bool(found.hardest.isnan().all())
    summary = found.summary()
    assert summary["rank"] == 1.0 and math.isnan(summary["hardest_50%"])


def test_the_summary_is_of_means_and_quantiles() -> None:
    found = diagnose(presets.mnr(masks=(SameId(),)), examples.batch_of(WHOLE[0]))
    summary = found.summary()
    for name in ("rank", "probability", "effective_negatives", "hardest_share"):
        assert summary[name] == pytest.approx(sum(getattr(found, name).tolist()) / len(WHOLE[0]))
    for name, q in itertools.product(("positive", "hardest", "random"), QUANTILES):
        assert summary[f"{name}_{q:.0%}"] == pytest.approx(float(getattr(found, name).quantile(q)))
    assert summary["masked"] == found.masked and summary["temperature"] == found.temperature
    assert summary["alignment"] == found.alignment and summary["uniformity"] == found.uniformity


def test_nothing_is_changed() -> None:
    batch = examples.batch_of(WHOLE[0], grad=True)
    objective = Objective(
        cosine,
        Temperature(0.1, learnable=True),
        (pools.docs, pools.negatives, pools.memory),
        (LogQ(),),
        (SameId(), Guided(by="self")),
        hardest=3,
        memory=Memory(9),
    )
    objective.remember(batch)
    state = {name: value.clone() for name, value in objective.state_dict().items()}
    rows = {role: side.rows.detach().clone() for role, side in batch.sides().items()}
    torch.manual_seed(3)
    random = torch.get_rng_state()
    found = diagnose(objective, batch)
    assert torch.get_rng_state().equal(random)
    assert list(state) == list(objective.state_dict())
    assert all(value.equal(state[name]) for name, value in objective.state_dict().items())
    assert all(
        side.rows.grad is None and side.rows.equal(rows[role])
        for role, side in batch.sides().items()
    )
    assert objective.temperature.log_scale.grad is None and torch.is_grad_enabled()
    assert not any(getattr(found, name).requires_grad for name in (*EACH_ROW, "random"))


def test_a_temperature_out_of_bounds_is_not_changed() -> None:
    dial = Temperature(0.02, learnable=True)
    with torch.no_grad():
        dial.log_scale.fill_(5.0)
    diagnose(presets.mnr(dial), examples.batch_of(WHOLE[0]))
    assert float(dial.log_scale.detach()) == 5.0


def test_a_pair_seen_from_both_sides_is_no_negative() -> None:
    """All directions in one softmax, pairs closer than anything else: the hardest negative is not
    the pair itself."""
    batch = Batch(Side(torch.eye(6)), Side(torch.eye(6)))
    found = diagnose(presets.gte(0.1), batch)
    assert found.hardest.tolist() == [0.0] * 6
    assert found.effective_negatives.tolist() == pytest.approx([4 * 5.0] * 6)


def test_autocast_does_not_lower_the_precision_of_what_is_seen() -> None:
    batch = examples.batch_of(examples.made(4, n=9), torch.float32)
    plain = diagnose(presets.mnr(), batch)
    with torch.autocast("cpu", torch.bfloat16):
        found = diagnose(presets.mnr(), batch)
    for name in EACH_ROW:
        torch.testing.assert_close(getattr(found, name), getattr(plain, name), rtol=1e-5, atol=1e-5)


def test_the_objective_of_all_widths_sees_whole_embeddings() -> None:
    objective, queries, docs = presets.mnr(), *torch.randn(2, 6, 8)
    nested = Matryoshka(objective, (4,))
    assert str(diagnose(nested, queries, docs)) == str(diagnose(objective, queries, docs))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_embeddings_that_are_not_finite_have_no_rank(value: float) -> None:
    docs = torch.eye(4)
    docs[2, 1] = value
    with pytest.raises(
        DataError, match=r"^the doc embeddings are not finite \(1 of 4 rows, the first is row 2\), "
    ):
        diagnose(presets.mnr(), torch.eye(4), docs)


def test_one_row_has_no_random_document() -> None:
    one = diagnose(presets.mnr(), torch.eye(2)[:1], torch.eye(2)[:1])
    assert (
        bool(one.random.isnan().all())
        and one.random.shape == (1,)
        and one.positive.tolist() == [1.0]
    )
    assert bool(diagnose(presets.mnr(), torch.eye(2), torch.eye(2)).random.isfinite().all())
