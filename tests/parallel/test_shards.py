"""Towers whose parameters are divided among processes: the same loss, gradients, norm, steps and
checkpoints as of whole ones."""

from __future__ import annotations

from functools import cache
from typing import Any

import dividing
import pytest
import sharded
import torch
import worlds
from sharded import CASES, MEASURED, MODES
from torch import Tensor, nn
from worlds import LAYOUTS, Found

from tempera.engine.devices import Devices
from tempera.engine.training_options import Training
from tempera.errors import ConfigError
from tempera.parallel.distributed import ALONE, Group
from tempera.parallel.shards import _apart, _layers, _units, refuse_compiled

SIZES = [2, pytest.param(4, marks=pytest.mark.long)]
EVERY_CASE = [
    pytest.param(*case, size, marks=pytest.mark.long if size > 2 else ())
    for size in LAYOUTS
    for case in CASES[size]
]


def processes(size: int) -> list[Found]:
    return sharded.found(size)


@cache
def alone(kind: str, size: int) -> Found:
    return sharded.alone(kind, LAYOUTS[size])


def off(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest element of all."""
    assert got.keys() == want.keys() and len(want) > 10
    largest = max(float(value.abs().max()) for value in want.values())
    assert largest > 0.01
    return max(float((got[name] - value).abs().max()) for name, value in want.items()) / largest


@pytest.mark.parametrize(("kind", "mode", "size"), EVERY_CASE)
def test_divided_towers_have_the_gradients_of_whole_ones(kind: str, mode: str, size: int) -> None:
    """With processes that have more rows than others, or none; against autograd in one process."""
    want = alone(kind, size)
    for process in processes(size):
        got = process["plain"][f"{kind} {mode}"]
        assert got["loss"] == pytest.approx(want["loss"], rel=1e-12)
        assert off(got["gradients"], want["gradients"]) <= 1e-12


@pytest.mark.parametrize("size", SIZES)
def test_processes_call_them_equally_often(size: int) -> None:
    """And a process that has nothing to do calls them as well."""
    calls = [
        {name: each["calls"] for name, each in process["plain"].items()}
        for process in processes(size)
    ]
    assert all(each == calls[0] for each in calls)
    for name, (without, graph) in calls[0].items():
        kind, mode = name.split()
        embedded = graph - MEASURED[kind]
        assert {
            "always": without == embedded,
            "auto": 0 < without < embedded,
            "never": without == 0,
        }[mode], name


def test_dropout_is_replayed() -> None:
    """Bitwise between everything kept and everything replayed; fillers draw nothing, so whole
    towers drop the same."""
    for process in processes(2):
        nothing, some, everything = (process["dropout"][mode] for mode in MODES)
        assert nothing["loss"] == some["loss"] == everything["loss"] == process["undivided"]["loss"]
        for name, grad in everything["gradients"].items():
            assert torch.equal(nothing["gradients"][name], grad), name
        assert off(some["gradients"], everything["gradients"]) <= 1e-14
        assert off(process["undivided"]["gradients"], everything["gradients"]) <= 1e-14
        assert off(process["plain"]["two never"]["gradients"], everything["gradients"]) > 0.01


def test_precision_of_divided_towers() -> None:
    """In bf16, near float32; gradients are summed in float32."""
    for process in processes(2):
        assert {grad.dtype for name, grad in process["bf16"].items() if "words" in name} == {
            torch.float32
        }
        assert 1e-4 < off(process["bf16"], process["float32"]) < 0.03


def test_training_of_divided_towers_is_that_of_whole_ones() -> None:
    """Norm, clipping and moments; resumed is uninterrupted, and a checkpoint goes on with towers
    that are not divided."""
    first, *others = [process["training"] for process in processes(2)]
    for run in (first, *others):
        assert (
            run["through"]["norms"] == first["through"]["norms"]
            and min(run["through"]["norms"]) > 0.5
        )
        assert run["through"]["norms"] == pytest.approx(run["undivided"]["norms"], rel=1e-12)
        for name, value in run["through"]["weights"].items():
            assert torch.equal(run["resumed"]["weights"][name], value), name
        for name in ("undivided", "resumed undivided"):
            assert off(run[name]["weights"], run["through"]["weights"]) <= 1e-11, name


@pytest.mark.parametrize("size", SIZES)
def test_every_process_keeps_its_part(size: int) -> None:
    """Rows of a parameter that the processes do not divide evenly, or that are fewer than they,
    count as well."""
    held = torch.tensor([process["parts"]["held"] for process in processes(size)])
    moments = torch.tensor([process["parts"]["moments"] for process in processes(size)])
    assert held.sum(0).tolist() == processes(size)[0]["parts"]["all"] and torch.equal(held, moments)
    assert held.sum(1).min() > 0 and held.sum(1).max() < 1.1 * held.sum() / size


def test_a_process_without_rows_of_a_recommender_keeps_pace() -> None:
    want = sharded.recommended(ALONE)
    for process in processes(2):
        got = process["recommended"]
        assert float(got["loss"]) == pytest.approx(float(want["loss"]), rel=1e-12)
        assert off(got["gradients"], want["gradients"]) < 1e-12


def test_gradients_of_a_tower_that_torch_divides_add_up_too() -> None:
    want = sharded.by_torch(ALONE)
    for process in processes(2):
        assert len(process["by torch"]) == len(want) == 4
        for got, grad in zip(process["by torch"], want, strict=True):
            torch.testing.assert_close(got, grad, rtol=1e-12, atol=1e-14)


def test_what_is_refused_is_said() -> None:
    for process in processes(2):
        assert process["nobody"] == "a batch needs at least one pair, but no process has one"
        one, full, memory = process["mistakes"]
        assert (
            one
            == "fsdp divides towers over processes, but there is only one: launch several with torchrun, or drop it"
        )
        if sharded.RESTARTS:
            assert (
                full
                == "out of memory even with one row at a time: lower the tower's max_length or size"
            )
        assert (
            memory.startswith("out of memory within a divided tower")
            and "install torch 2.13" in memory
        )


@pytest.mark.skipif(not sharded.RESTARTS, reason="such a step ends before torch 2.13")
def test_out_of_memory_within_divided_towers_halves_on_all_processes() -> None:
    """Wherever it happens, forward, backward or in a replay, and on whichever process; what comes
    out is undisturbed."""
    for process in processes(2):
        assert len(process["out of memory"]) >= 4
        for name, got in process["out of memory"].items():
            assert got["off"] <= 1e-12 and got["halved"] in (1, 2), name


@pytest.mark.slow
@pytest.mark.skipif(not sharded.RESTARTS, reason="such a step ends before torch 2.13")
@pytest.mark.parametrize("kind", ["one", "two", "heads", "tables"])
def test_every_moment_of_a_step_may_run_out_of_memory(kind: str) -> None:
    """On either process, also while footprints are measured; a second moment follows while the step
    begins again."""
    processes(2)  # loads what is forked
    work = (
        (dividing.out_of_memory, 1)
        if kind == "tables"
        else (sharded.out_of_memory, LAYOUTS[2], kind, 1)
    )
    for process in worlds.world(2, *work, seconds=900):
        assert len(process) >= 60
        for name, got in process.items():
            assert got["off"] <= 1e-12 and got["halved"] in (1, 2), name


def test_parts_in_common_are_divided_once() -> None:
    """The larger of two modules that share parameters is divided by its children, until none share
    any."""
    towers, _ = sharded.made("heads", 0.0)
    query: Any = towers.query
    doc: Any = towers.doc
    assert _apart([query, doc]) == [query.body, query.head, doc.head]
    assert _apart([query, query]) == [query]
    deep = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.Sequential(doc, nn.Tanh())]))
    assert _apart([deep, query]) == [deep[0], doc.body, doc.head, query.head]
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    with pytest.raises(
        ConfigError, match=r"fsdp cannot shard a parameter that several Linear share: drop fsdp"
    ):
        _apart([first, second])


def test_layers_are_the_members_of_the_outermost_lists() -> None:
    """But for those that share parameters with one another, which stay with the rest."""
    tied = nn.Linear(2, 2)
    inner = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2)]))
    several = nn.ModuleList([nn.Sequential(tied), inner, nn.Sequential(tied, nn.Tanh())])
    assert _layers(nn.Sequential(nn.Linear(2, 2), several)) == [inner]


def test_what_is_within_a_member_of_a_list_is_divided_with_it() -> None:
    """Also where the list has been taken apart, since towers share another member of it: a member
    calls its parts as it likes."""
    shared, block = nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2)])
    query = nn.Sequential(
        nn.ModuleList([nn.Sequential(nn.Tanh(), block), shared]),
        nn.Sequential(nn.ModuleList([nn.Linear(2, 2)])),
    )
    members: Any = query[0]
    assert _units([query, nn.Sequential(shared)]) == [members[0], shared, query[1][0][0], query[1]]


def test_options_that_divided_towers_do_not_go_with_are_refused() -> None:
    Training(fsdp=True).check(Devices(Group(0, 2)))
    with pytest.raises(
        ConfigError, match=r"^train\.fsdp divides towers over processes, but there is only one"
    ):
        Training(fsdp=True).check(Devices())
    with pytest.raises(ConfigError, match="fp16 needs: use mixed_precision bf16 or no"):
        Training(fsdp=True, mixed_precision="fp16").check(Devices(Group(0, 2)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_towers_are_refused() -> None:
    tower = nn.Sequential(nn.Linear(2, 2))
    tower[0].compile()
    with pytest.raises(ConfigError, match="drop torch_compile or fsdp"):
        refuse_compiled([tower])
