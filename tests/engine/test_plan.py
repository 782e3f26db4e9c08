"""How rows are cut: within the budget, in as few tokens as can be."""

from __future__ import annotations

import gc
import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tempera import mnr
from tempera.arithmetic.ragged import Ragged
from tempera.core.batch import Batch, Side
from tempera.engine.cache import Cache, size_of
from tempera.engine.devices import start
from tempera.engine.plan import Footprint, footprint, keep, pack, probe_rows, start_tokens
from tempera.engine.training_options import Training
from tempera.layers import linear_layers
from tempera.paper import stages
from tempera.paper.cost import META, Operation, Stage
from tempera.paper.machines import MACHINES
from tempera.paper.stages import step_on_paper
from tempera.towers.transformer import Transformer

fixed = settings(max_examples=60, deadline=None, derandomize=True)
lengths = st.lists(st.integers(0, 40), min_size=1, max_size=60)


def cost(packed: list[list[int]], start: int) -> int:
    """Tokens of micro-batches whose rows have these lengths, padding and starts counted."""
    return sum(len(part) * max(part) + start for part in packed)


@fixed
@given(lengths, st.integers(1, 200), st.booleans(), st.integers(0, 50))
def test_every_row_once_within_the_budget(
    rows: list[int], budget: int, padded: bool, start: int
) -> None:
    packed = pack(torch.tensor(rows), budget, padded, start)
    assert sorted(torch.cat(packed).tolist()) == list(range(len(rows)))
    for part in packed:
        found = [max(1, rows[i]) for i in part.tolist()]
        size = len(found) * max(found) if padded else sum(found)
        assert size <= budget or len(found) == 1


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=7), st.integers(6, 60), st.integers(0, 12))
def test_no_way_to_cut_at_lengths_is_cheaper(rows: list[int], budget: int, start: int) -> None:
    """Every way to cut the distinct lengths into runs, each run in as few micro-batches as the
    budget allows."""
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
    packed = [
        [rows[i] for i in part.tolist()] for part in pack(torch.tensor(rows), budget, True, start)
    ]
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
    assert (
        pack(torch.empty(0, dtype=torch.int64), 5, True)
        == pack(torch.empty(0, dtype=torch.int64), 5, False)
        == []
    )


@fixed
@given(
    st.lists(st.tuples(st.floats(1, 100), st.integers(1, 50)), min_size=1, max_size=20),
    st.floats(0, 1000),
)
def test_what_is_kept_fits_and_nothing_cheaper_is_left(
    parts: list[tuple[float, int]], memory: float
) -> None:
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
    """Keeps 3 numbers a token for its backward pass: the words, and the two factors of a
    product."""

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
    [
        ("2GiB", 2 << 30),
        ("2gb", 2 << 30),
        ("512M", 512 << 20),
        ("1e6", 1e6),
        (0.5, 0.5),
        ("7 KiB", 7168),
    ],
)
def test_sizes_have_units(given: object, want: float) -> None:
    assert size_of(given) == want


def test_memory_is_a_stated_amount_a_share_or_a_number() -> None:
    assert Cache().bytes == 4 << 30
    assert Cache(memory=1e6).bytes == 1e6
    half, all_of_it = Cache(memory=0.5).bytes, Cache(memory=1.0).bytes
    assert 0.8 < 2 * half / all_of_it < 1.25


@pytest.mark.parametrize(
    "rows", [[2] * 23 + [256], [300, 3, 200], [900, 800], [0, 0, 4], list(range(1, 400))]
)
def test_short_probes_hold_at_most_512_padded_tokens(rows: list[int]) -> None:
    lengths = torch.tensor(rows)
    short, long = (lengths[probe] for probe in probe_rows(lengths))
    assert len(short) == 1 or len(short) * int(short.max()) <= 512
    assert int(short.max()) <= int(long) == max(rows) and len(long) == 1


class Living(TorchDispatchMode):
    """Counts the bytes of what operations have made beside a tower's weights: those still held, and
    the most at once."""

    def __init__(self, tower: torch.nn.Module) -> None:
        super().__init__()
        self.weights = {
            StorageWeakRef(each.untyped_storage())
            for each in [*tower.parameters(), *tower.buffers()]
        }
        self.made: dict[StorageWeakRef, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.made[StorageWeakRef(tensor.untyped_storage())] = (
                    tensor.untyped_storage().nbytes()
                )
        self.peak = max(self.peak, self.bytes)
        return result

    @property
    def bytes(self) -> int:
        own = {storage: size for storage, size in self.made.items() if storage not in self.weights}
        self.made = {storage: size for storage, size in own.items() if not storage.expired()}
        return sum(self.made.values())


@pytest.fixture
def one_long_text() -> tuple[Any, Batch[Ragged]]:
    """Six layers with dropout, and 24 pairs of which one has 256 tokens."""
    pytest.importorskip("sentence_transformers")
    texts = [f"how to mend roof {i}" for i in range(47)] + ["roof " * 300]
    tower = Transformer(
        layers=6, width=64, heads=4, vocabulary=60, max_length=256, dropout=0.1
    ).build(texts)
    queries, docs = tower.features(texts[:24]), tower.features(texts[24:])
    assert int(docs.lengths.max()) == 256
    return tower.train(), Batch(Side(queries), Side(docs))


def tensors_alive() -> int:
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def test_planning_twenty_times_leaves_nothing_behind(
    one_long_text: tuple[Any, Batch[Ragged]],
) -> None:
    tower, batch = one_long_text
    Cache().plan(tower, batch)  # libraries allocate once
    process = psutil.Process()
    objects, resident = tensors_alive(), process.memory_info().rss
    with Living(tower) as living:
        for _ in range(20):
            Cache().plan(tower, batch)
            assert living.bytes <= 1024  # views of the batch itself
    assert tensors_alive() == objects
    assert process.memory_info().rss - resident < 16 << 20


def test_planning_takes_less_memory_than_it_announces(
    one_long_text: tuple[Any, Batch[Ragged]],
) -> None:
    tower, batch = one_long_text
    with Living(tower) as living:
        plan = Cache().plan(tower, batch)
    assert 0 < living.peak < plan.peak_bytes / 4, f"{living.peak:,} of {plan.peak_bytes:,} bytes"


def test_the_plan_announces_what_the_step_takes(one_long_text: tuple[Any, Batch[Ragged]]) -> None:
    tower, batch = one_long_text
    cache = Cache("never")
    planned = cache.plan(tower, batch).peak_bytes
    with Living(tower) as living:
        embedded = cache.embed(tower, batch)
        held = living.bytes
    assert abs(planned / held - 1) < 0.1, f"{planned:,} of {held:,} bytes"
    assert embedded.plan.peak_bytes == planned


def test_a_start_costs_a_gpu_more_tokens_of_small_layers_and_of_half_precision() -> None:
    gpu, narrow, wide = torch.device("cuda"), torch.nn.Linear(300, 300), torch.nn.Linear(600, 600)
    for half in (False, True):
        assert start_tokens(gpu, narrow, half) == pytest.approx(
            4 * start_tokens(gpu, wide, half), abs=4
        )
        both = torch.nn.Sequential(narrow, torch.nn.Embedding(9, 9), wide)
        assert (
            start_tokens(gpu, wide, half)
            < start_tokens(gpu, both, half)
            < start_tokens(gpu, narrow, half)
        )
    assert start_tokens(gpu, narrow, True) == pytest.approx(4 * start_tokens(gpu, narrow), abs=4)
    assert (
        start_tokens(gpu, torch.nn.Embedding(9, 9)) == 16_384
        and start_tokens(torch.device("cpu"), wide) == 32
    )
    assert (
        start_tokens(torch.device("cpu"), wide, half=True)
        == start_tokens(torch.device("cpu"), narrow, True)
        == 192
    )


@pytest.mark.parametrize(("precision", "half"), [("no", False), ("bf16", True)])
def test_a_cache_knows_half_precision_on_paper_too(precision: Any, half: bool) -> None:
    options = Training(mixed_precision=precision)
    assert Cache(autocast=start(precision).autocast).in_half() == half
    for device, free in ((META, 1e10), (torch.device("cpu"), None)):
        assert stages._cache(options, device, free).in_half() == half


def test_a_step_on_paper_counts_the_products_of_a_cpu_in_half_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """oneDNN makes them, a bias included: as many as in float32, but for the rows that fill them up
    to numbers that recur."""
    monkeypatch.setattr(linear_layers, "onednn_pays", lambda: False)
    torch.manual_seed(0)
    tower: Any = Transformer(layers=1, width=64, heads=2, vocabulary=40, max_length=64).build(
        ["a b c d e"] * 9
    )
    batch = Batch(*(Side(Ragged.of([[1, 2, 3, 4]] * 128)) for _ in range(2)))
    flops, kinds = [], []
    for precision in ("no", "bf16"):
        paper = step_on_paper(tower, mnr(), batch, Training(mixed_precision=precision))
        counts = [paper.stages[name].operations.items() for name in (stages.FIRST, stages.BACKWARD)]
        flops += [sum(each.flops * count for each, count in stage) for stage in counts]
        kinds.append({each.name for each in paper.stages[stages.FIRST].operations})
    assert flops[0] <= flops[2] <= 1.1 * flops[0] and flops[1] <= flops[3] <= 1.1 * flops[1]
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():  # by this processor
        assert "_linear_pointwise" in kinds[1] - kinds[0]


def test_some_micro_batches_stand_for_all_by_number_and_by_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A CPU counts few of them: launches go by their number, products and what the program computes
    by their tokens."""
    tower: Any = Transformer(layers=1, width=16, heads=2, vocabulary=40, max_length=64).build(
        ["a b c d e"] * 9
    )
    batch = Batch(*(Side(Ragged.of([[1] * (61 - i) for i in range(40)])) for _ in range(2)))
    stages_of, towers = [], [stages.FIRST, stages.BACKWARD]
    for most in (4, 1000):
        monkeypatch.setitem(stages.MICROS, "cpu", most)
        paper = step_on_paper(
            tower, mnr(), batch, Training(micro_batch_tokens=128, gradient_accumulation_steps=2)
        )
        stages_of.append([paper.stages[name] for name in towers])
    assert len(paper.plan.micros) == 32
    for some, every in zip(*stages_of, strict=True):
        assert (every.times, every.calls, some.calls) == (
            2,
            2,
            16,
        ) and some.times > 1.1 * some.calls
        assert some.launches == pytest.approx(every.launches, rel=0.08)
        assert some.total("flops") == pytest.approx(every.total("flops"), rel=0.08)
        assert some.host == some.times * some.host_once > 0


def test_a_machine_starts_operations_as_often_as_they_are_called() -> None:
    machine = replace(MACHINES["h100"], launch=1.0)
    small, large = (Operation("mm", torch.float32, flops * 67 * 10**12, 0) for flops in (0, 100))
    stage = Stage(Counter([small, large]), times=3, calls=2)
    assert machine.seconds(stage) == {"compute": 300, "bandwidth": 0, "launches": 2, "network": 0}
    assert sum(replace(machine, timed={large.kind: 7.0}).seconds(stage).values()) == 2 + 3 * 7 + 2
