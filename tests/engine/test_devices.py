"""Several processes against one: the same batch, loss and gradients, however the rows are
divided."""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import Any

import pytest
import torch
import worlds
from worlds import LAYOUTS, found

from tempera.errors import TemperaError
from tempera.parallel.distributed import Group

SIZES = [2, pytest.param(4, marks=pytest.mark.long)]


@cache
def wanted(name: str, size: int, dtype: torch.dtype) -> dict[str, Any]:
    return worlds.alone(name, LAYOUTS[size], dtype)


def close(got: dict[str, Any], want: dict[str, Any], tolerance: float) -> None:
    assert set(got) == set(want) and any(name.endswith("log_scale") for name in want)
    assert len([name for name in want if not name.endswith("alignment")]) == 8
    seen = [float(grad.abs().max()) > 1e-4 for name, grad in want.items() if name != "losses"]
    assert (
        sum(seen) >= len(seen) - 1
    )  # moving all documents changes no difference of inner products
    largest = max(float(grad.abs().max()) for name, grad in want.items() if name != "losses")
    for name, value in want.items():
        expected = torch.as_tensor(value).double()
        size = float(expected.abs().max()) if name == "losses" else largest
        assert (
            float((torch.as_tensor(got[name]).double() - expected).abs().max()) <= tolerance * size
        ), name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", worlds.OBJECTIVES)
def test_processes_find_what_one_finds(name: str, size: int) -> None:
    """Every process has the loss of all rows, and the same gradients after adding up."""
    for process in found(size):
        close(process["float64"][name], wanted(name, size, torch.float64), 1e-12)
        close(process["float32"][name], wanted(name, size, torch.float32), 1e-6)


@pytest.mark.parametrize("name", worlds.OBJECTIVES)
def test_one_process_is_a_group_as_well(name: str) -> None:
    layout = worlds.Layout((9,), (5,), (4,))
    close(worlds._together(Group(), layout, torch.float64, name), worlds.alone(name, layout), 1e-12)


def test_memory_that_runs_out_in_an_exchange_is_no_lost_process() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA"), Group().together("an exchange"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    lost = r"rank 0 of 1 lost the other ranks during an exchange \(gone\)"
    with pytest.raises(TemperaError, match=lost), Group().together("an exchange"):
        raise RuntimeError("gone")
    with pytest.raises(TemperaError, match=lost), Group().together("an exchange"):
        raise RuntimeError("[/__w/gloo/transport/tcp/pair.cc:553] gone\nand more")


@pytest.mark.parametrize("size", SIZES)
def test_everything_known_of_a_row_is_gathered_in_order(size: int) -> None:
    layout = LAYOUTS[size]
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        want = worlds.facts(worlds.dense(worlds.whole(layout, 0), dtype))
        assert int((want["negatives.owner"] >= 0).sum()) > 1 and len(want["known.values"]) > 3
        for rank, process in enumerate(found(size)):
            got = process["gathered"][str(dtype)]
            start, stop = got.pop("span"), None
            assert (
                start == [sum(layout.pairs[:rank]), sum(layout.pairs[: rank + 1])] and stop is None
            )
            counts = {
                "query": layout.pairs,
                "doc": layout.pairs,
                "negatives": layout.negatives,
                "sampled": layout.sampled,
            }
            assert got.pop("counts") == {role: list(n) for role, n in counts.items()}
            assert set(got) == set(want)
            for name, value in want.items():
                assert got[name].dtype == value.dtype and got[name].equal(value), (rank, name)


@pytest.mark.parametrize("size", SIZES)
def test_gradients_come_home_summed_to_the_process_of_their_rows(size: int) -> None:
    layout = LAYOUTS[size]
    factor = size * (size + 1) // 2
    counts = {
        "query": layout.pairs,
        "doc": layout.pairs,
        "negatives": layout.negatives,
        "sampled": layout.sampled,
    }
    for rank, process in enumerate(found(size)):
        for dtype, home in process["home"].items():
            for role, n in counts.items():
                first = list(accumulate(n, initial=0))[rank]
                rows = torch.arange(first, first + n[rank]) * (0 if role == "doc" else factor)
                assert str(home[role].dtype) == dtype and home[role].shape == (n[rank], 3)
                assert home[role].double().equal(rows.double()[:, None].expand(-1, 3)), (rank, role)


@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_parameters_are_summed_where_any_process_has_one(size: int) -> None:
    factor = size * (size + 1) / 2
    want = {
        "all": factor,
        "some": 2.0 * size,
        "none": None,
        "double": 3 * factor,
        "large": 4 * factor,
        "scalar": 5 * factor,
    }
    for process in found(size):
        assert process["added"] == {
            name: None if value is None else [value, value] for name, value in want.items()
        }


@pytest.mark.parametrize("size", SIZES)
def test_processes_agree(size: int) -> None:
    for rank, process in enumerate(found(size)):
        rows = [[float(other)] * 2 for other in range(size) for _ in range(other + 1)]
        some = [[1.0, 1.0]] * max(1, size * (size - 1) // 2)
        assert process["agreed"] == [
            True,
            False,
            size * size / 2,
            10 * (size - 1),
            rank == 0,
            True,
            False,
            rows,
            some,
        ]


@pytest.mark.long
def test_what_processes_do_not_know_alike_is_the_same_error_on_all() -> None:
    processes = [process["refusals"] for process in found(4)]
    assert len(processes[0]) == 6 and all(process == processes[0] for process in processes)
    same = "all have to give the same"
    assert processes[0] == [  # process 1 has no pairs, so it needs no ids
        f"ids of doc differs between ranks: none on rank 0, int64 on rank 2 and 3; {same}",
        f"rows of query differs between ranks: float32 of width 3 on rank 0, float64 of width 3 on rank 2 and 3; {same}",
        f"guide of query differs between ranks: float32 of width 2 on rank 0, float64 of width 3 on rank 2 and 3; {same}",
        f"weight of query differs between ranks: none on rank 0, float64 on rank 2 and 3; {same}",
        f"temperature of a batch differs between ranks: [0.1, None, None, None]; {same}",
        "a batch needs at least one pair, but no process has one",
    ]
