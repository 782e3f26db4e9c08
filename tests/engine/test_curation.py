"""Rows that a guide chooses: the best by the definition, on any number of processes, and a step of them alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_step import towers
from torch import Tensor
from worlds import LAYOUTS, OBJECTIVES, Found, Layout, made, part, whole, world

from tempera.core import presets
from tempera.core.batch import Batch, take
from tempera.core.definition import defined_losses
from tempera.core.ragged import Ragged
from tempera.engine import loop
from tempera.engine.cache import Cache
from tempera.engine.curation import By, curated
from tempera.engine.distributed import ALONE, Group
from tempera.engine.loop import Training
from tempera.errors import ConfigError, DataError

LAYOUT = LAYOUTS[2]
UNTAUGHT = [
    name for name in OBJECTIVES if name in {p.__name__ for p in presets.PRESETS} | {"everything", "several positives"}
]


def best(objective: Any, modules: Any, batch: Batch[Ragged], share: float, by: By) -> list[int]:
    """The rows with the best scores, by the definition in loops; the towers are as they are judged."""
    guides: Any = batch.of({role: side.guide for role, side in batch.sides().items()})
    scores = -defined_losses(objective, guides)
    if by == "learnability":
        modules.eval()
        scores += defined_losses(
            objective, batch.of({role: modules.of(role)(side.rows) for role, side in batch.sides().items()})
        )
        modules.train()
    order = sorted(range(len(batch)), key=lambda row: -float(scores[row].detach()))
    return sorted(order[: max(2, round(share * len(batch)))])


@pytest.mark.parametrize("by", ["guide", "learnability"])
@pytest.mark.parametrize("name", UNTAUGHT)
def test_the_rows_with_the_best_scores_are_kept_with_all_that_is_known_of_them(name: str, by: By) -> None:
    objective, modules, batch = OBJECTIVES[name]().double(), towers(False, 0.3, torch.float64), whole(LAYOUT, 0)
    for share in (0.1, 0.5, 0.8):
        rows = best(objective, modules, batch, share, by)
        got, places = curated(modules, objective, batch, share, by, Cache())
        assert places is not None and places.tolist() == rows
        for role in ("query", "doc"):
            mine, all_rows = getattr(got, role), getattr(batch, role)
            for at, row in enumerate(rows):
                assert (
                    mine.rows[torch.tensor([at])].values.tolist() == all_rows.rows[torch.tensor([row])].values.tolist()
                )
            for known in ("ids", "logq", "guide", "teacher"):
                assert torch.equal(getattr(mine, known), getattr(all_rows, known)[rows])
        assert got.weight is not None and batch.weight is not None and torch.equal(got.weight, batch.weight[rows])
        assert len(got.sampled) == len(batch.sampled)  # type: ignore[arg-type]
        assert batch.negatives is not None and got.negatives is not None
        came = [(owner, list(map(int, ids))) for owner, ids in _owned(batch) if owner < 0 or owner in rows]
        kept = [(owner if owner < 0 else rows[owner], list(map(int, ids))) for owner, ids in _owned(got)]
        assert kept == came
    assert all(module.training for module in modules.modules())


def _owned(batch: Batch[Ragged]) -> list[tuple[int, Tensor]]:
    assert batch.negatives is not None and batch.negatives.owner is not None and batch.negatives.ids is not None
    return [(int(owner), ids) for owner, ids in zip(batch.negatives.owner, batch.negatives.ids[:, None], strict=True)]


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
    curating, plain = (loop.begin(towers(False, 0.3, torch.float64), presets.symmetric(0.3), options) for _ in range(2))
    rows = [best(presets.symmetric(0.3), towers(False, 0.3, torch.float64), each, 0.5, by) for each in batches]
    loop.take(curating, batches, 1, replace(options, guide="a model", select=0.5, select_by=by))
    loop.take(plain, [take(each, torch.tensor(own)) for each, own in zip(batches, rows, strict=True)], 1, options)
    pairs = zip(curating.modules.parameters(), plain.modules.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_a_share_of_1_is_the_batch_itself() -> None:
    batch = whole(LAYOUT, 0)
    assert curated(towers(False, 0.0, torch.float64), presets.mnr(), batch, 1.0, "guide", Cache(), ALONE) == (
        batch,
        None,
    )


def test_what_the_curator_lacks_is_told() -> None:
    with pytest.raises(ConfigError, match=r"train\.select chooses rows by another model: give train\.guide"):
        Training(select=0.5)
    with pytest.raises(ConfigError, match="by another model"):
        Training(select=0.5, guide="self")
    batch = whole(LAYOUT, 0)
    bare = replace(batch, doc=replace(batch.doc, guide=None))
    with pytest.raises(DataError, match=r"doc has none: give train\.guide=FOLDER"):
        curated(towers(False, 0.0, torch.float64), presets.mnr(), bare, 0.5, "guide", Cache())
