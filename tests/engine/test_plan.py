"""How rows are cut: within the budget, in as few tokens as can be."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tempera.core.ragged import Ragged
from tempera.engine.cache import Cache, size_of
from tempera.engine.plan import Footprint, footprint, keep, pack

fixed = settings(max_examples=60, deadline=None, derandomize=True)
lengths = st.lists(st.integers(0, 40), min_size=1, max_size=60)


def cost(packed: list[list[int]], start: int) -> int:
    """Tokens of micro-batches whose rows have these lengths, padding and starts counted."""
    return sum(len(part) * max(part) + start for part in packed)


@fixed
@given(lengths, st.integers(1, 200), st.booleans(), st.integers(0, 50))
def test_every_row_once_within_the_budget(rows: list[int], budget: int, padded: bool, start: int) -> None:
    packed = pack(torch.tensor(rows), budget, padded, start)
    assert sorted(torch.cat(packed).tolist()) == list(range(len(rows)))
    for part in packed:
        found = [max(1, rows[i]) for i in part.tolist()]
        size = len(found) * max(found) if padded else sum(found)
        assert size <= budget or len(found) == 1


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=7), st.integers(6, 60), st.integers(0, 12))
def test_no_way_to_cut_at_lengths_is_cheaper(rows: list[int], budget: int, start: int) -> None:
    """Every way to cut the distinct lengths into runs, each run in as few micro-batches as the budget allows."""
    ordered = sorted(rows)
    distinct = sorted(set(rows))
    best = math.inf
    for cuts in itertools.product([False, True], repeat=len(distinct) - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [len(distinct)]
        total = 0
        for first, last in itertools.pairwise([0, *ends]):
            run = [length for length in ordered if length in distinct[first:last]]
            total += len(run) * run[-1] + start * -(-len(run) // (budget // run[-1]))
        best = min(best, total)
    packed = [[rows[i] for i in part.tolist()] for part in pack(torch.tensor(rows), budget, True, start)]
    assert cost(packed, start) <= best


def test_natural_lengths_are_hardly_padded() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = (torch.randn(2048, generator=draw) * 0.7 + 4).exp().long().clamp(8, 256)
    packed = pack(rows, 4096, True, 32)
    padded = sum(len(part) * int(rows[part].max()) for part in packed)
    assert padded <= 1.01 * int(rows.sum())
    as_they_come = sum(32 * int(part.max()) for part in rows.split(32))
    assert as_they_come > 2 * padded


def test_equal_lengths_stay_in_order() -> None:
    packed = pack(torch.full((10,), 4), 12, True)
    assert torch.cat(packed).tolist() == list(range(10)) and all(len(part) <= 3 for part in packed)


def test_no_rows_are_no_micro_batches() -> None:
    assert pack(torch.empty(0, dtype=torch.int64), 5, True) == pack(torch.empty(0, dtype=torch.int64), 5, False) == []


@fixed
@given(st.lists(st.tuples(st.floats(1, 100), st.integers(1, 50)), min_size=1, max_size=20), st.floats(0, 1000))
def test_what_is_kept_fits_and_nothing_cheaper_is_left(parts: list[tuple[float, int]], memory: float) -> None:
    sizes, tokens = [size for size, _ in parts], [count for _, count in parts]
    kept = keep(sizes, tokens, memory)
    total = sum(size for size, is_kept in zip(sizes, kept, strict=True) if is_kept)
    assert total <= memory
    for size, is_kept in zip(sizes, kept, strict=True):
        assert is_kept or total + size > memory


@pytest.mark.parametrize("square", [0.0, 0.25])
def test_the_footprint_is_found_through_two_measurements(square: float) -> None:
    truth = Footprint(8.0, square)
    measured = [(rows, width, int(truth.bytes(rows, width))) for rows, width in ((6, 4), (1, 40))]
    assert Footprint.through(measured) == truth
    assert Footprint.through(measured[:1]).bytes(6, 4) == truth.bytes(6, 4)
    assert truth.tokens(800.0, 10) == int(800 / (8 + 10 * square))


class Linear(torch.nn.Module):
    """Keeps 3 numbers a token for its backward pass: the words, and the two factors of a product."""

    padded = False

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Parameter(torch.ones(10, 1))

    def forward(self, features: Ragged) -> torch.Tensor:
        a = self.words[features.values]
        return torch.segment_reduce(a * a.exp(), "sum", lengths=features.lengths)


def test_the_footprint_counts_what_the_graph_keeps_without_the_weights() -> None:
    rows = Ragged.of([[1] * 100, [2] * 100, [3] * 400])
    found = footprint(Linear(), [rows[:2], rows[2:]], padded=False)
    per_token = found.bytes(1, 1000) / 1000
    assert found.square == 0 and 4 * 3 <= per_token <= 4 * 3 + 8 + 1  # indices are int64


@pytest.mark.parametrize(
    ("given", "want"),
    [("2GiB", 2 << 30), ("2gb", 2 << 30), ("512M", 512 << 20), ("1e6", 1e6), (0.5, 0.5), ("7 KiB", 7168)],
)
def test_sizes_have_units(given: object, want: float) -> None:
    assert size_of(given) == want


def test_memory_is_a_stated_amount_a_share_or_a_number() -> None:
    assert Cache().bytes == 4 << 30
    assert Cache(memory=1e6).bytes == 1e6
    half, all_of_it = Cache(memory=0.5).bytes, Cache(memory=1.0).bytes
    assert 0.8 < 2 * half / all_of_it < 1.25
