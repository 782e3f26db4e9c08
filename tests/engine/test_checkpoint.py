"""A run that goes on from a checkpoint is the run that never stopped."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from safetensors.torch import load_file
from test_step import Attention, Shared
from torch import Tensor
from worlds import LAYOUTS

from tempera.core import presets
from tempera.core.memory import Memory
from tempera.core.pools import memory as memory_pool
from tempera.core.temperature import Temperature
from tempera.engine import loop
from tempera.engine.checkpoint import State
from tempera.engine.loop import train
from tempera.engine.training_options import Training
from tempera.errors import DataError
from tempera.parallel.digest import digest

STEPS = 4
OPTIONS = Training(
    learning_rate=0.02,
    cache_memory=5000.0,
    micro_batch_tokens=6,
    gradient_accumulation_steps=2,
    weight_decay=0.1,
)


def begun(dropout: float = 0.3, temperature: Any = None) -> State:
    torch.manual_seed(2)
    dial = temperature or Temperature(0.3, learnable=True)
    objective = presets.mnr(dial, pools=(*presets.FORWARD, memory_pool), memory=Memory(20))
    return loop.begin(Shared(Attention(dropout)), objective, OPTIONS)  # type: ignore[arg-type]


def taken(state: State, until: int) -> list[float]:
    """Losses of the steps up to `until`."""
    rows = [
        worlds.whole(LAYOUTS[2], seed, torch.float32) for seed in range(2 * state.step, 2 * STEPS)
    ]
    losses = []
    for progress in train(state, rows, STEPS, OPTIONS):
        losses.append(progress.loss)
        if progress.step == until:
            break
    return losses


def weights(state: State) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.modules.state_dict().items()}


DIALS = {"learned": None, "scheduled": Temperature(0.3, final=0.1)}


@cache
def uninterrupted(dial: str = "learned") -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights of all steps at once."""
    through = begun(temperature=DIALS[dial])
    return taken(through, STEPS), weights(through)


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after two steps."""
    first, folder = begun(), tmp_path_factory.mktemp("halfway") / "checkpoint"
    taken(first, 2)
    first.save(folder)
    return folder


def test_a_digest_is_of_the_numbers_whatever_their_strides() -> None:
    several = [
        torch.arange(6).reshape(2, 3).T,
        torch.zeros(3, dtype=torch.bfloat16),
        torch.tensor(3.0),
    ]
    assert digest(several) == 18016643459562861598  # which the checkpoints of earlier versions hold
    assert digest([torch.from_numpy(np.empty(0, np.int64)), *several]) == digest(
        [torch.empty(0), *several]
    )
    assert (
        digest([torch.tensor([5]).expand(3)[:1]])
        == digest([torch.tensor([5])])
        != digest([torch.tensor([6])])
    )
    assert digest([torch.arange(9)[4:5]]) == digest([torch.tensor([4])])


@pytest.mark.parametrize(("dial", "stop"), [("learned", 1), ("learned", 3), ("scheduled", 2)])
def test_resumed_is_uninterrupted(tmp_path: Path, stop: int, dial: str) -> None:
    losses, through = uninterrupted(dial)
    first = begun(temperature=DIALS[dial])
    before = taken(first, stop)
    first.save(tmp_path / "checkpoint")
    torch.manual_seed(99)
    second = begun(temperature=DIALS[dial])
    second.load(tmp_path / "checkpoint")
    assert second.step == stop
    assert before + taken(second, STEPS) == losses
    assert weights(second).keys() == through.keys() and len(through) > 10
    assert all(torch.equal(weights(second)[name], value) for name, value in through.items())
    assert "objective.memory.rows" in through


@pytest.mark.parametrize("lost", ["optimizer", "memory", "temperature", "step"])
def test_everything_in_it_is_needed(halfway: Path, lost: str) -> None:
    """Otherwise the test before this one would pass without it."""
    second = begun()
    fresh = {name: value.clone() for name, value in second.modules.state_dict().items()}
    second.load(halfway)
    if lost == "optimizer":
        second.optimizer.state.clear()
    elif lost == "step":
        second.step = 1
    else:
        kept = {
            name: value
            for name, value in weights(second).items()
            if not (lost == "memory" and "memory" in name)
        }
        if lost == "temperature":
            kept |= {name: value for name, value in fresh.items() if "temperature" in name}
        second.modules.load_state_dict(kept)
    taken(second, STEPS)
    assert any(
        not torch.equal(weights(second)[name], value) for name, value in uninterrupted()[1].items()
    )


def test_a_checkpoint_is_replaced_whole(tmp_path: Path) -> None:
    state, folder = begun(), tmp_path / "a" / "checkpoint"
    taken(state, 1)
    state.save(folder)
    taken(state, 2)
    state.save(folder)
    assert json.loads((folder / "state.json").read_text())["step"] == 2
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoint"]
    assert {path.name for path in folder.iterdir()} == {
        "state.json",
        "state.safetensors",
        "tempera-manifest.json",
    }


def test_how_the_towers_were_cut_goes_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = begun()
    taken(first, 1)
    first.cache.halve()
    assert "halved" in caplog.text
    first.save(tmp_path / "checkpoint")
    second = begun()
    second.load(tmp_path / "checkpoint")
    assert (second.cache.bytes, second.cache.tokens) == (2500.0, 3)
    taken(second, 2)
    assert list(second.cache.footprints.values()) == list(first.cache.footprints.values())


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
@pytest.mark.parametrize("how", ["missing", "cut", "empty", "noise"])
def test_damaged_ones_are_refused_in_one_line(tmp_path: Path, name: str, how: str) -> None:
    state, folder = begun(), tmp_path / "checkpoint"
    taken(state, 1)
    state.save(folder)
    data = (folder / name).read_bytes()
    if how == "missing":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(
            {"cut": data[: len(data) // 2], "empty": b"", "noise": bytes(range(256))}[how]
        )
    with pytest.raises(DataError, match="checkpoint") as caught:
        begun().load(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_one_flipped_bit_of_the_weights_is_noticed(tmp_path: Path) -> None:
    state, folder = begun(), tmp_path / "checkpoint"
    taken(state, 1)
    state.save(folder)
    data = bytearray((folder / "state.safetensors").read_bytes())
    data[-20] ^= 1
    (folder / "state.safetensors").write_bytes(data)
    with pytest.raises(
        DataError, match=r"damaged checkpoint: state\.safetensors is not as it was written"
    ):
        begun().load(folder)


def test_of_another_tower_is_refused(tmp_path: Path) -> None:
    state = begun()
    taken(state, 1)
    state.save(tmp_path / "checkpoint")
    other = loop.begin(Shared(torch.nn.Linear(2, 2)), presets.mnr(), OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="not a checkpoint of this configuration"):
        other.load(tmp_path / "checkpoint")


def test_shared_weights_are_read_back(tmp_path: Path) -> None:
    state = begun()
    taken(state, 1)
    state.save(tmp_path / "checkpoint")
    assert set(load_file(tmp_path / "checkpoint" / "state.safetensors")) > {
        "modules.towers.tower.words.weight"
    }
