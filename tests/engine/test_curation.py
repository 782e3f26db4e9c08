"""Rows that a guide chooses: the best by the definition, on any number of processes, and a step of
them alone."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_step import towers
from torch import Tensor
from worlds import (
    LAYOUTS,
    OBJECTIVES,
    Cut,
    Found,
    Layout,
    Pair,
    Tower,
    gradients,
    made,
    part,
    whole,
    world,
)

from tempera.arithmetic.ragged import Ragged
from tempera.core import presets
from tempera.core.batch import Batch, take
from tempera.core.definition import defined_losses
from tempera.core.masks import Guided
from tempera.core.objective import base_of
from tempera.engine import loop
from tempera.engine.cache import Cache
from tempera.engine.curation import By, as_many, curated
from tempera.engine.faults import NotFinite
from tempera.engine.step import step
from tempera.engine.training_options import Training
from tempera.errors import ConfigError, DataError
from tempera.parallel.distributed import ALONE, Group

LAYOUT = LAYOUTS[2]
UNTAUGHT = [
    name
    for name in OBJECTIVES
    if name
    in {p.__name__ for p in presets.PRESETS} | {"everything", "several positives", "matryoshka"}
]


def best(objective: Any, modules: Any, batch: Batch[Ragged], share: float, by: By) -> list[int]:
    """The rows with the best scores, by the definition in loops; the towers are as they are
    judged."""
    guides: Any = batch.of({role: side.guide for role, side in batch.sides().items()})
    objective = base_of(copy.deepcopy(objective))
    objective.masks = tuple(mask for mask in objective.masks if not isinstance(mask, Guided))
    scores = -defined_losses(objective, guides)
    if by == "learnability":
        modules.eval()
        scores += defined_losses(
            objective,
            batch.of({role: modules.of(role)(side.rows) for role, side in batch.sides().items()}),
        )
        modules.train()
    order = sorted(range(len(batch)), key=lambda row: -float(scores[row].detach()))
    return sorted(order[: max(2, round(share * len(batch)))])


@pytest.mark.parametrize("by", ["guide", "learnability"])
@pytest.mark.parametrize("name", UNTAUGHT)
def test_the_rows_with_the_best_scores_are_kept_with_all_that_is_known_of_them(
    name: str, by: By
) -> None:
    objective, modules, batch = (
        OBJECTIVES[name]().double(),
        towers(False, 0.3, torch.float64),
        whole(LAYOUT, 0),
    )
    for share in (0.1, 0.5, 0.75):
        rows = best(objective, modules, batch, share, by)
        got, places = curated(modules, objective, batch, share, by, Cache())
        assert places is not None and places.tolist() == rows
        for role in ("query", "doc"):
            mine, all_rows = getattr(got, role), getattr(batch, role)
            for at, row in enumerate(rows):
                assert (
                    mine.rows[torch.tensor([at])].values.tolist()
                    == all_rows.rows[torch.tensor([row])].values.tolist()
                )
            for known in ("ids", "logq", "guide", "teacher"):
                assert torch.equal(getattr(mine, known), getattr(all_rows, known)[rows])
        assert (
            got.weight is not None
            and batch.weight is not None
            and torch.equal(got.weight, batch.weight[rows])
        )
        assert len(got.sampled) == len(batch.sampled)  # type: ignore[arg-type]
        assert batch.negatives is not None and got.negatives is not None
        came = [
            (owner, list(map(int, ids)))
            for owner, ids in _owned(batch)
            if owner < 0 or owner in rows
        ]
        kept = [
            (owner if owner < 0 else rows[owner], list(map(int, ids))) for owner, ids in _owned(got)
        ]
        assert kept == came
    assert all(module.training for module in modules.modules())


def _owned(batch: Batch[Ragged]) -> list[tuple[int, Tensor]]:
    assert (
        batch.negatives is not None
        and batch.negatives.owner is not None
        and batch.negatives.ids is not None
    )
    return [
        (int(owner), ids)
        for owner, ids in zip(batch.negatives.owner, batch.negatives.ids[:, None], strict=True)
    ]


def _chosen(group: Group, layout: Layout, by: By) -> Found:
    modules, objective = made("symmetric", torch.float64)
    mine = part(whole(layout, 0), layout, group.rank)
    got, places = curated(modules, objective, mine, 0.5, by, Cache(), group)
    assert places is not None
    return {"rows": places, "queries": got.query.rows.values, "weight": got.weight}


@pytest.mark.parametrize("by", ["guide", "learnability"])
@pytest.mark.parametrize("size", [2, 4])
def test_several_processes_choose_the_rows_that_one_does(size: int, by: By) -> None:
    layout = LAYOUTS[size]
    batch = whole(layout, 0)
    modules, objective = made("symmetric", torch.float64)
    got, places = curated(modules, objective, batch, 0.5, by, Cache())
    found = world(size, _chosen, layout, by)
    assert places is not None and all(torch.equal(each["rows"], places) for each in found)
    assert torch.equal(torch.cat([each["queries"] for each in found]), got.query.rows.values)
    assert torch.equal(torch.cat([each["weight"] for each in found]), got.weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["guide", "learnability"])
def test_a_step_is_that_of_the_chosen_rows_alone_to_the_bit(by: By) -> None:
    """Dropout is on, two batches are accumulated, and micro-batches are embedded twice."""
    batches = [whole(LAYOUT, seed) for seed in (0, 2)]
    options = Training(gradient_accumulation_steps=2, cache="always", micro_batch_tokens=6)
    curating, plain = (
        loop.begin(towers(False, 0.3, torch.float64), presets.symmetric(0.3), options)
        for _ in range(2)
    )
    rows = [
        best(presets.symmetric(0.3), towers(False, 0.3, torch.float64), each, 0.5, by)
        for each in batches
    ]
    loop.take(curating, batches, 1, replace(options, guide="a model", select=0.5, select_by=by))
    loop.take(
        plain,
        [take(each, torch.tensor(own)) for each, own in zip(batches, rows, strict=True)],
        1,
        options,
    )
    pairs = zip(curating.modules.parameters(), plain.modules.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_what_a_run_embeds_with_is_as_it_was_after_a_choice() -> None:
    options = Training(guide="a model", select=0.5, select_by="learnability")
    state = loop.begin(towers(False, 0.3, torch.float64), presets.symmetric(0.3), options)
    loop.take(state, [whole(LAYOUT, 0)], 1, options)
    assert state.cache.mode == "auto"
    assert state.modules.training and all(module.training for module in state.modules.modules())
    fresh = loop.begin(towers(False, 0.3, torch.float64), presets.symmetric(0.3), options)
    fresh.cache.plan(fresh.modules["towers"], whole(LAYOUT, 0))
    assert list(state.cache.footprints.values()) == list(
        fresh.cache.footprints.values()
    )  # of graphs with dropout


def test_running_out_of_memory_in_a_choice_is_learned_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = [1000]

    class Small(Tower):
        def forward(self, features: Ragged) -> Tensor:
            if len(features) > limits[-1]:
                raise torch.OutOfMemoryError("no memory")
            return super().forward(features)

    pair, cache = Pair(), Cache(tokens=24)
    pair.query, pair.doc = Small(), Small()
    pair.double()
    cache.plan(pair, whole(LAYOUT, 0))
    limits.append(4)
    for _ in range(2):
        got, _ = curated(pair, presets.mnr(0.3), whole(LAYOUT, 0), 0.5, "learnability", cache)
    assert len(got) == 4 and 0 < cache.halved == caplog.text.count("out of memory")


def test_rows_that_weigh_nothing_come_last() -> None:
    batch = whole(LAYOUT, 0)
    assert batch.weight is not None
    kept = curated(*made("mnr", torch.float64), batch, 0.5, "guide", Cache())[1]  # type: ignore[call-arg]
    assert kept is not None
    batch.weight[kept] = 0.0
    _, places = curated(*made("mnr", torch.float64), batch, 0.5, "guide", Cache())  # type: ignore[call-arg]
    assert places is not None and not set(places.tolist()) & set(kept.tolist())


def test_a_mask_by_the_guide_does_not_change_its_choice() -> None:
    batch, chosen = whole(LAYOUT, 0), []
    for masks in ((), (Guided(),), (Guided(0.5),)):
        objective = presets.mnr(0.3, masks=masks).double()
        chosen.append(curated(Pair(), objective, batch, 0.5, "guide", Cache())[1])
        assert objective.masks == masks
    assert torch.equal(chosen[0], chosen[1]) and torch.equal(chosen[0], chosen[2])  # type: ignore[arg-type]


def test_a_fault_names_the_rows_of_the_batch_that_was_chosen_from() -> None:
    batch = whole(LAYOUT, 0, torch.float32)
    plain = Pair()
    _, places = curated(plain, presets.mnr(0.3), batch, 0.5, "guide", Cache())
    assert places is not None
    firsts = [int(batch.query.rows.values[at]) for at in batch.query.rows.offsets[:-1]]
    word = firsts[int(places[-1])]
    pair: Any = Pair()
    pair.query = Cut(pair.query, word, math.nan)
    options = Training(guide="a model", select=0.5)
    with pytest.raises(NotFinite) as caught:
        loop.take(loop.begin(pair, presets.mnr(0.3), options), [batch], 1, options)
    assert caught.value.fault.rows == (
        tuple(row for row in places.tolist() if firsts[row] == word),
    )
    assert caught.value.fault.rows != (
        tuple(at for at, row in enumerate(places.tolist()) if firsts[row] == word),
    )


def _without_rows(group: Group, layout: Layout) -> Found:
    modules, objective = made("mnr", torch.float64)
    batch = replace(part(whole(layout, 0), layout, group.rank), negatives=None, sampled=None)
    batch = take(batch, torch.arange(len(batch) if group.rank == 0 else 0))
    loss = step(modules, objective, batch, Cache("always"), group)
    group.all_reduce_gradients([*modules.parameters(), *objective.parameters()])
    return {"loss": torch.tensor(loss), **gradients(modules)}


def test_a_process_that_is_left_without_rows_takes_part_in_a_step() -> None:
    layout = Layout((9, 9), (1, 0), (1, 0))
    alone = _without_rows(ALONE, layout)
    for found in world(2, _without_rows, layout):
        torch.testing.assert_close(found, alone, rtol=1e-9, atol=1e-12)


def test_a_batch_of_one_row_has_one_to_choose() -> None:
    batch = take(whole(LAYOUT, 0), torch.tensor([0]))
    assert (
        len(as_many(batch, 0.5))
        == len(curated(Pair(), presets.mnr(), batch, 0.5, "guide", Cache())[0])
        == 1
    )


def test_a_share_of_1_is_the_batch_itself() -> None:
    batch = whole(LAYOUT, 0)
    assert curated(
        towers(False, 0.0, torch.float64), presets.mnr(), batch, 1.0, "guide", Cache(), ALONE
    ) == (
        batch,
        None,
    )


def test_what_the_curator_lacks_is_told() -> None:
    with pytest.raises(
        ConfigError, match=r"train\.select chooses rows by another model: give train\.guide"
    ):
        Training(select=0.5)
    with pytest.raises(
        ConfigError, match=r"select_by=learnability chooses rows, but train\.select is 1"
    ):
        Training(guide="a model", select_by="learnability")
    batch = whole(LAYOUT, 0)
    bare = replace(batch, doc=replace(batch.doc, guide=None))
    with pytest.raises(DataError, match=r"doc has none: give train\.guide=FOLDER"):
        curated(towers(False, 0.0, torch.float64), presets.mnr(), bare, 0.5, "guide", Cache())


def test_a_guide_that_is_not_finite_chooses_no_rows() -> None:
    modules, objective = made("symmetric", torch.float64)
    batch = whole(LAYOUT, 0)
    assert batch.negatives is not None and batch.negatives.guide is not None
    batch.negatives.guide[1, 0] = math.nan
    with pytest.raises(
        DataError, match="those of 1 negatives rows are not finite, the first is row 1"
    ):
        curated(modules, objective, batch, 0.5, "guide", Cache())
