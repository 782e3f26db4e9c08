"""Where losses and gradients that are not finite are traced to, on one process and on two."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from worlds import LAYOUTS, Pair, begun, faulty, whole, world

from tempera.core import presets
from tempera.core.masks import Guided
from tempera.core.pools import docs
from tempera.core.teacher import Teacher
from tempera.core.temperature import Temperature
from tempera.engine import loop
from tempera.engine.devices import Devices
from tempera.engine.faults import NotFinite, trace
from tempera.engine.training_options import Training
from tempera.errors import DataError
from tempera.parallel.distributed import ALONE

LAYOUT = LAYOUTS[2]
OPTIONS = Training(learning_rate=0.02)


def first_words(role: str) -> list[int]:
    batch = whole(LAYOUT, 0, torch.float32)
    rows = batch.sides()[role].rows  # type: ignore[index]
    return [int(rows.values[at]) for at in rows.offsets[:-1]]


def owners(word: int) -> list[int]:
    """Pairs whose document begins with a word, or one of whose negatives does: the tower of
    documents reads both."""
    batch = whole(LAYOUT, 0, torch.float32)
    assert batch.negatives is not None and batch.negatives.owner is not None
    found = {i for i, first in enumerate(first_words("doc")) if first == word}
    negatives = zip(batch.negatives.owner.tolist(), first_words("negatives"), strict=True)
    return sorted(found | {owner for owner, first in negatives if first == word and owner >= 0})


def test_a_query_is_found_on_any_process() -> None:
    word = first_words("query")[7]  # of the second process
    expected = [i for i, first in enumerate(first_words("query")) if first == word]
    alone = faulty(ALONE, "query", word, math.nan)
    assert alone["rows"].tolist() == expected
    assert (
        "the loss of step 1 is not finite: query embeddings are not finite, although"
        in alone["message"]
    )
    for found in world(2, faulty, "query", word, math.nan):
        assert found["rows"].tolist() == expected and found["message"] == alone["message"]


def test_documents_and_negatives_lead_to_their_pairs() -> None:
    for word in set(first_words("doc")):
        found = faulty(ALONE, "doc", word, math.inf)
        assert found["rows"].tolist() == owners(word) and "doc" in found["message"]


def test_weights_that_are_lost_come_first() -> None:
    state = begun()
    batch = whole(LAYOUT, 0, torch.float32)
    with torch.no_grad():
        state.modules["towers"].doc.layer.bias[0] = math.nan  # type: ignore[union-attr, index, operator]
    found = trace(state, [(batch, None)], "loss", Devices())
    assert found.cause.startswith(
        "weights of towers.doc.layer.bias are not finite, before training has changed them"
    )
    state.step = 3
    assert trace(state, [(batch, None)], "loss", Devices()).cause.endswith(
        "from an earlier step: lower train.learning_rate"
    )


def test_a_frequency_that_is_not_finite() -> None:
    batch = whole(LAYOUT, 0, torch.float32)
    assert batch.doc.logq is not None
    batch.doc.logq[2] = math.nan
    state = loop.begin(Pair(), presets.sampled_softmax(), OPTIONS)  # type: ignore[arg-type]
    found = trace(state, [(batch, None)], "loss", Devices())
    assert found.cause == "the frequencies (logq) of doc rows are not finite: look at the data"


@pytest.mark.parametrize(
    ("role", "name"),
    [("negatives", "guide"), ("doc", "guide"), ("query", "teacher"), ("sampled", "guide")],
)
def test_what_is_known_of_a_row_and_not_finite_names_the_row(role: str, name: str) -> None:
    """Every row of the batch is compared with it, but one brought it along."""
    batch = whole(LAYOUT, 0, torch.float32)
    side: Any = batch.sides()[role]  # type: ignore[index]
    getattr(side, name)[2, 0] = math.nan
    parts: dict[str, Any] = {
        "guide": {"masks": [Guided(0.1)]},
        "teacher": {"teacher": Teacher(0.5, pools=(docs,))},
    }[name]
    state = loop.begin(Pair(), presets.mnr(**parts), OPTIONS)  # type: ignore[arg-type]
    found = trace(state, [(batch, None)], "loss", Devices())
    first = " (the first is row 2)" if role == "sampled" else ""
    assert found.cause == (
        f"the vectors of the {name} of {role} rows{first} are not finite: look at the data"
    )
    if role != "sampled":
        owner = int(side.owner[2]) if role == "negatives" else 2
        assert found.rows == ((owner,),)


def test_a_step_that_is_left_out_changes_no_weight() -> None:
    """The run without its bad batch, but for the schedule and the moments' age."""
    batches = [whole(LAYOUT, seed, torch.float32) for seed in (0, 2, 3)]
    options = Training(
        learning_rate=0.02, skip_non_finite=1, warmup_ratio=0, lr_scheduler_type="constant"
    )
    assert batches[1].weight is not None
    batches[1].weight[0] = math.nan
    torch.manual_seed(2)
    state = loop.begin(Pair(), presets.mnr(Temperature(0.3, learnable=True)), options)  # type: ignore[arg-type]
    seen = []
    for progress in loop.train(state, batches, 3, options):
        seen.append({name: value.clone() for name, value in state.modules.state_dict().items()})
        assert (progress.fault is not None) == (progress.step == 2)
        assert state.left_out == int(progress.step == 2)
    assert all(torch.equal(value, seen[1][name]) for name, value in seen[0].items())
    torch.manual_seed(2)
    other = loop.begin(Pair(), presets.mnr(Temperature(0.3, learnable=True)), options)  # type: ignore[arg-type]
    for _ in loop.train(other, [batches[0], batches[2]], 2, options):
        pass
    ours, theirs = state.modules.state_dict(), other.modules.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_fp16_that_overflows_at_any_scale_ends() -> None:
    """An overflow lowers the scale, and is no fault; at the lowest it is one."""
    batch = whole(LAYOUT, 0, torch.float32)
    state = begun()
    state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-12)
    state.scaler.scale(torch.zeros(()))  # as a run begins
    towers: Any = state.modules["towers"]
    towers.query.layer.weight.register_hook(lambda grad: grad * math.inf)
    run = loop.train(state, [batch] * 9, 9, OPTIONS, _Half())
    assert [next(run).grad_norm, next(run).grad_norm] == [None, None]
    with pytest.raises(
        NotFinite, match="the gradient of step 3 is not finite: gradients overflow in fp16"
    ):
        next(run)
    assert state.step == 2


def test_batches_that_end_before_the_steps_are_told() -> None:
    state, batch = begun(), whole(LAYOUT, 0, torch.float32)
    with pytest.raises(
        DataError, match="the batches end before step 2 of 3: give more batches, or fewer steps"
    ):
        list(loop.train(state, [batch], 3, OPTIONS))
    assert state.step == 1


class _Half(Devices):
    """As with fp16, but for its precision, which a CPU need not have."""

    def __init__(self) -> None:
        super().__init__(mixed_precision="fp16")

    def autocast(self) -> Any:
        return torch.autocast("cpu", enabled=False)
