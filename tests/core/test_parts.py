"""Ragged rows, matches, the memory, Matryoshka widths and presets, each against the plainest thing
that it stands for."""

from __future__ import annotations

import io
import itertools
import pickle
import random
import re
from dataclasses import replace
from typing import Any

import examples
import pytest
import torch
from examples import Parts
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from tempera.arithmetic.ragged import Ragged, Shared, from_lengths, spread
from tempera.core import pools, presets
from tempera.core.batch import Batch, Side, take
from tempera.core.corrections import Hardness, LogQ
from tempera.core.definition import defined_losses
from tempera.core.masks import Guided, KnownPositives, SameId
from tempera.core.matches import match
from tempera.core.matryoshka import Matryoshka
from tempera.core.memory import Memory
from tempera.core.objective import Objective
from tempera.core.precisions import at_precision
from tempera.core.similarity import Similarity, cosine, dot
from tempera.core.teacher import Teacher
from tempera.core.temperature import Temperature
from tempera.errors import ConfigError, DataError

fixed = settings(max_examples=60, deadline=None, derandomize=True)
lists = st.lists(st.lists(st.integers(0, 6), max_size=5), max_size=8)


@pytest.mark.parametrize("teacher", [None, "own", "beside"])
def test_a_mask_may_answer_with_booleans(teacher: str | None) -> None:
    """True is what is left out, in lists and in whole blocks."""

    def mask(block: pools.Block) -> list[pools.Exclusion]:
        out = (
            torch.arange(len(block.rows) * len(block.candidates)).reshape(len(block.rows), -1) % 3
            == 1
        )
        return [lambda tile: out[tile]]

    def addends(block: pools.Block) -> list[pools.Exclusion]:
        return [lambda tile: torch.zeros(1).masked_fill(mask(block)[0](tile), -torch.inf)]

    losses = [
        Objective(masks=[each], teacher=examples.TEACHERS[teacher])(examples.made(0))
        for each in (mask, addends)
    ]
    assert losses[0].equal(losses[1])
    assert not losses[0].equal(Objective(teacher=examples.TEACHERS[teacher])(examples.made(0)))


# Ragged and matches
# ------------------------------------------------------------------------------------------------


def rows_of(ragged: Ragged) -> list[list[int]]:
    cuts = ragged.offsets.tolist()
    assert cuts[0] == 0 and cuts[-1] == len(ragged.values) and len(cuts) == len(ragged) + 1
    return [ragged.values[a:b].tolist() for a, b in itertools.pairwise(cuts)]


@fixed
@given(lists, lists, st.data())
def test_ragged_is_a_list_of_lists(
    rows: list[list[int]], more: list[list[int]], data: st.DataObject
) -> None:
    ragged = Ragged.of(rows)
    assert rows_of(ragged) == rows and ragged.lengths.tolist() == [len(row) for row in rows]
    assert ragged.values.dtype == ragged.offsets.dtype == torch.int64
    assert rows_of(Ragged.cat([ragged, Ragged.of(more), ragged])) == rows + more + rows
    assert rows_of(ragged.to("cpu")) == rows
    a, b = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
    assert rows_of(ragged[a:b]) == rows[a:b]
    keep = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    assert rows_of(ragged[torch.tensor(keep, dtype=torch.bool)]) == list(
        itertools.compress(rows, keep)
    )
    if rows:
        order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
        assert rows_of(ragged[torch.tensor(order, dtype=torch.int64)]) == [rows[i] for i in order]


@fixed
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=8))
def test_spread_counts_on_from_each_start(rows: list[tuple[int, int]]) -> None:
    starts, lengths = (torch.tensor([row[k] for row in rows], dtype=torch.int64) for k in (0, 1))
    assert spread(starts, lengths).tolist() == [
        start + k for start, length in rows for k in range(length)
    ]
    assert from_lengths(lengths).tolist() == [
        sum(length for _, length in rows[:k]) for k in range(len(rows) + 1)
    ]


@fixed
@given(lists, st.lists(st.integers(-1, 7), max_size=12), st.booleans(), st.booleans(), st.data())
def test_matches_are_all_equal_pairs(
    rows: list[list[int]], candidates: list[int], flat: bool, renamed: bool, data: st.DataObject
) -> None:
    if flat:
        rows = [[row[0] if row else 9] for row in rows]
    keys = torch.tensor([key for row in rows for key in row], dtype=torch.int64)
    columns = (
        data.draw(st.permutations(range(len(candidates))))
        if renamed
        else list(range(len(candidates)))
    )
    found = match(
        keys,
        torch.tensor(candidates, dtype=torch.int64),
        None if flat else Ragged.of(rows).offsets,
        torch.tensor(columns, dtype=torch.int64) if renamed else None,
    )
    start = data.draw(st.integers(0, len(rows)))
    tile = slice(start, data.draw(st.integers(start, len(rows))))
    got = list(zip(*(index.tolist() for index in found(tile)), strict=True))
    want = [
        (i, column)
        for i, row in enumerate(rows[tile])
        for key in row
        for column, candidate in zip(columns, candidates, strict=True)
        if candidate == key
    ]
    assert sorted(got) == sorted(want)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
@pytest.mark.parametrize("apart", [1, 40])  # by codes, and by a search
def test_integers_of_any_kind_are_ids_and_owners(dtype: torch.dtype, apart: int) -> None:
    torch.manual_seed(0)
    rows = torch.randn(3, 4, 5)
    said = torch.nn.functional.normalize(torch.randn(3, 4, 6), dim=2)
    ids, owner = torch.tensor([0, 3 * apart, apart, 0]), torch.tensor([1, 0, 3, 3])
    masked = presets.mnr(masks=[SameId(), KnownPositives()], corrections=[Hardness(5.0, "own")])
    losses = []
    for kind in (torch.int64, dtype):
        query = Side(rows[0], ids, teacher=said[0])
        doc = Side(rows[1, :3], ids[:3].to(kind), teacher=said[1, :3])
        negatives = Side(rows[2], ids.to(kind), owner=owner.to(kind), teacher=said[2])
        known = Ragged(ids.to(kind), torch.arange(5))
        batch = Batch(query, doc, negatives, known=known, answer=ids.clamp_max(apart).to(kind))
        taught, backward = (
            Objective(teacher=Teacher(over="own")),
            presets.gte(masks=[KnownPositives()]),
        )
        chosen = take(batch, torch.tensor([3, 1]))
        losses.append(
            torch.cat(
                [
                    masked(batch),
                    masked(chosen),
                    taught(batch),
                    backward(replace(batch, negatives=None)),
                ]
            )
        )
    assert losses[0].equal(losses[1]) and bool(losses[0].isfinite().all())


@fixed
@given(lists.filter(len), st.data())
def test_shared_rows_are_the_lists_they_name(rows: list[list[int]], data: st.DataObject) -> None:
    of = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9))
    shared = Shared(Ragged.of(rows), torch.tensor(of, dtype=torch.int64))
    want = [rows[i] for i in of]
    assert len(shared) == len(of) and shared.lengths.tolist() == [len(row) for row in want]
    assert rows_of(Ragged(shared.values, shared.offsets)) == want
    a, b = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    assert rows_of(shared[a:b].rows) == want[a:b] == rows_of(shared.to("cpu")[a:b].rows)


@pytest.mark.parametrize("numerator", ["one", "sum"])
@pytest.mark.parametrize("tile", [1, 40, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_known_lists_that_rows_share_leave_out_what_each_row_s_own_list_does(
    seed: int, tile: int, numerator: str
) -> None:
    data, draw = examples.made(seed, shared=seed % 2 == 0), random.Random(seed)
    lists = [data.known[[i]].values.tolist() for i in range(len(data))]
    of = [draw.randrange(3) for _ in lists]
    every = tuple(pool.name for pool in pools.POOLS)
    parts = Parts(pools=every, known=True, numerator=numerator, tile=tile)
    batch = replace(examples.batch_of(data), known=Shared(Ragged.of(lists[:3]), torch.tensor(of)))
    want = examples.defined(replace(data, known=Ragged.of([lists[i] for i in of])), parts)
    torch.testing.assert_close(examples.objective_of(parts)(batch), want, rtol=1e-12, atol=1e-12)


# Memory
# ------------------------------------------------------------------------------------------------------------


def documents(first: int, count: int, grad: bool = False) -> Side[Tensor]:
    """Documents first, first + 1, ..., recognisable in everything that is known of them."""
    numbers = torch.arange(first, first + count)
    rows = numbers[:, None].float() * torch.tensor([1.0, 10.0])
    vectors = numbers[:, None].float() + 0.5
    return Side(
        rows.requires_grad_(grad), numbers, numbers.float() / 4, vectors, teacher=vectors + 1
    )


def held(memory: Memory) -> list[int]:
    """The numbers of the documents that are remembered, of one mind in every field."""
    side = memory.side()
    assert side is not None and side.owner is None and not side.rows.requires_grad
    numbers = side.ids.tolist()
    for field in ("rows", "ids", "logq", "guide", "teacher"):
        assert getattr(side, field).equal(getattr(documents(numbers[0], len(numbers)), field))
    return numbers


@fixed
@given(st.integers(1, 6), st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_the_memory_is_a_queue(size: int, counts: list[int]) -> None:
    memory, seen = Memory(size), 0
    for count in counts:
        memory.push(documents(seen, count, grad=True))
        seen += count
        if seen:
            assert held(memory) == list(range(max(0, seen - size), seen))


def test_a_memory_keeps_its_own_copy() -> None:
    memory, given_rows = Memory(4), documents(0, 3)
    memory.push(given_rows)
    given_rows.rows.zero_()
    assert held(memory) == [0, 1, 2]


@pytest.mark.parametrize("how", ["torch", "safetensors"])
@pytest.mark.parametrize("pushed", [0, 2, 9])
def test_a_memory_survives_a_checkpoint(how: str, pushed: int) -> None:
    def made() -> Objective:
        dial = Temperature(0.1, learnable=True)
        return Objective(temperature=dial, pools=(pools.docs, pools.memory), memory=Memory(4))

    before, after = made(), made()
    if pushed:
        before.memory.push(documents(0, pushed))
    with torch.no_grad():
        before.temperature.log_scale.add_(0.125)
    if how == "torch":
        file = io.BytesIO()
        torch.save(before.state_dict(), file)
        state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    else:
        state = load(save(before.state_dict()))
    keys = set(state)
    after.load_state_dict(state)
    assert set(state) == keys  # loading takes nothing out of what it was given
    assert after.temperature.value == before.temperature.value != made().temperature.value
    if not pushed:
        assert after.memory.side() is None
        return
    assert held(after.memory) == held(before.memory)
    for memory in (before.memory, after.memory):  # and goes on in the same way
        memory.push(documents(pushed, 1))
    assert held(after.memory) == held(before.memory)[-4:] and held(after.memory)[-1] == pushed


def test_a_memory_that_had_content_forgets_it_on_loading_an_empty_one() -> None:
    memory = Memory(4)
    memory.push(documents(0, 2))
    memory.load_state_dict(Memory(4).state_dict())
    assert memory.side() is None


def test_without_logq_or_guide_there_is_none_to_remember() -> None:
    memory = Memory(3)
    memory.push(Side(torch.eye(2), ids=torch.tensor([1, 2])))
    assert memory.side().logq is None and memory.side().guide is None
    for name, more in (("ids", Side(torch.eye(2))), ("logq", documents(0, 1))):
        with pytest.raises(
            DataError, match=f"with and without {name} cannot be remembered together"
        ):
            Memory.push(memory, more)


def test_a_refused_push_changes_nothing() -> None:
    memory = Memory(9)
    memory.push(documents(0, 2))
    with pytest.raises(DataError):
        memory.push(Side(torch.eye(2)))
    assert held(memory) == [0, 1]


def test_an_objective_recalls_what_it_was_told_to_remember() -> None:
    data = examples.made(1)
    batch = replace(examples.batch_of(data, torch.float32), memory=None)
    objective = Objective(pools=(pools.docs, pools.memory), memory=Memory(20), masks=(SameId(),))
    assert objective.recall(batch).memory is None
    plain = Objective(pools=(pools.docs,), masks=(SameId(),))
    assert objective(objective.recall(batch)).equal(
        plain(batch)
    )  # nothing remembered is an empty pool
    objective.remember(batch)
    objective.remember(batch)
    recalled = objective.recall(batch)
    assert len(recalled.memory) == 2 * len(batch) and recalled.doc is batch.doc
    assert recalled.memory.rows[-len(batch) :].equal(batch.doc.rows)
    assert recalled.memory.logq[: len(batch)].equal(batch.doc.logq)
    sampled = Objective(pools=(pools.docs, pools.sampled), masks=(SameId(),))
    torch.testing.assert_close(
        objective(recalled), sampled(replace(batch, sampled=recalled.memory))
    )
    assert not torch.allclose(objective(recalled), plain(batch))
    assert plain.recall(batch) is batch
    plain.remember(batch)  # without a memory nothing happens


# Matryoshka
# --------------------------------------------------------------------------------------------------------


def cut(batch: Batch[Tensor], width: int) -> Batch[Tensor]:
    return examples.with_sides(batch, lambda side: replace(side, rows=side.rows[:, :width]))


@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 1.0)])
@pytest.mark.parametrize("seed", range(2))
def test_matryoshka_is_the_sum_over_slices(weights: tuple[float, ...] | None, seed: int) -> None:
    data, widths = examples.made(seed), (2, 3, 5)
    for parts in examples.sampled(300 + seed, 5):
        found = []
        for how in ("sum", "autograd", "propagate"):
            batch = examples.batch_of(data, grad=True)
            dial = Temperature(0.3, learnable=True)
            objective = examples.objective_of(parts, dial)
            nested = Matryoshka(objective, widths, weights)
            assert nested.temperature is dial
            if how == "sum":
                each = [
                    w * objective(cut(batch, d))
                    for w, d in zip(weights or (1, 1, 1), widths, strict=True)
                ]
                losses = sum(each)
            else:
                losses = (
                    nested(batch) if how == "autograd" else nested.propagate(batch, batch.shares())
                )
            if how != "propagate":
                (batch.shares() * losses).sum().backward()
            leaves = [
                batch.query.rows,
                batch.doc.rows,
                batch.negatives.rows,
                batch.sampled.rows,
                dial.log_scale,
            ]
            found.append(
                [
                    losses.detach(),
                    *(torch.zeros(1) if leaf.grad is None else leaf.grad for leaf in leaves),
                ]
            )
        for others in found[1:]:
            for a, b in zip(others, found[0], strict=True):
                if bool(a.any()) or bool(b.any()):
                    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_matryoshka_of_the_whole_width_is_the_objective() -> None:
    batch, objective = examples.batch_of(examples.made(2)), presets.mnr()
    assert Matryoshka(objective, (5,))(batch).equal(objective(batch))


def test_matryoshka_passes_the_memory_on() -> None:
    batch = examples.batch_of(examples.made(2))
    objective = Objective(pools=(pools.docs, pools.memory), memory=Memory(9))
    nested = Matryoshka(objective, (2, 5))
    nested.remember(batch)
    recalled = nested.recall(batch)
    assert recalled.memory.rows.equal(batch.doc.rows)
    torch.testing.assert_close(nested(recalled), objective(recalled) + objective(cut(recalled, 2)))


@pytest.mark.parametrize(("widths", "weights"), [((), None), ((0, 3), None), ((2, 3), (1.0,))])
def test_matryoshka_refuses(widths: tuple[int, ...], weights: tuple[float, ...] | None) -> None:
    with pytest.raises(ConfigError, match="one weight for each width of at least 1"):
        Matryoshka(Objective(), widths, weights)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"widths": 4}, "matryoshka: widths is a list of numbers such as [32, 64], or None, not 4"),
        (
            {"widths": ["4"]},
            "matryoshka: widths is a list of numbers such as [32, 64], or None, not ['4']",
        ),
        (
            {"widths": [4], "weights": 1.0},
            "matryoshka: weights is a list of numbers such as [32, 64], or None, not 1.0",
        ),
        ({"objective": 0.05}, "matryoshka: objective is an Objective such as mnr(), not 0.05"),
    ],
)
def test_parts_of_matryoshka_of_another_kind(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        Matryoshka(**{"objective": Objective(), **parts})


def test_precisions_are_added_as_they_are_defined() -> None:
    data = examples.made(3)
    for parts in examples.sampled(340, 6):
        found = []
        for how in ("defined", "autograd", "propagate"):
            batch = examples.batch_of(data, grad=True)
            nested = Matryoshka(
                examples.objective_of(parts), (2, 5), (0.5, 2.0), ("int8", "binary")
            )
            if how == "propagate":
                losses = nested.propagate(batch, batch.shares())
            else:
                losses = nested(batch) if how == "autograd" else defined_losses(nested, batch)
                (batch.shares() * losses).sum().backward()
            leaves = [batch.query.rows, batch.doc.rows, batch.negatives.rows, batch.sampled.rows]
            found.append(
                [
                    losses.detach(),
                    *(torch.zeros(1) if leaf.grad is None else leaf.grad for leaf in leaves),
                ]
            )
        for others in found[1:]:
            for a, b in zip(others, found[0], strict=True):
                if bool(a.any()) or bool(b.any()):
                    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("precision", ["int8", "binary"])
def test_the_gradient_of_a_rounded_row_is_that_at_what_it_is_rounded_to(precision: str) -> None:
    """Rounding counts as adding a constant: gradients are finite differences of the plain loss at
    the rounded rows."""
    queries, documents = (examples.made(4 + i).query.rows for i in range(2))
    objective = presets.mnr(0.3)
    rows = queries.clone().requires_grad_()
    only = Matryoshka(objective, precisions=(precision,))(rows, documents) - objective(
        rows, documents
    )
    only.sum().backward()
    at, others, step = at_precision(queries, precision), at_precision(documents, precision), 1e-6
    for place in [(0, 0), (3, 2), (6, 4)]:
        moved = torch.zeros_like(at)
        moved[place] = step
        slope = (objective(at + moved, others).sum() - objective(at - moved, others).sum()) / (
            2 * step
        )
        torch.testing.assert_close(rows.grad[place], slope, rtol=1e-7, atol=1e-9)


def test_a_precision_keeps_lengths_and_zeros() -> None:
    rows = torch.tensor([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert at_precision(rows, "float32") is rows
    assert at_precision(rows, "int8").tolist() == [
        [round(127 * 3 / 4) * 4 / 127, -4.0, 0.0],
        [0.0] * 3,
    ]
    torch.testing.assert_close(at_precision(rows, "binary").norm(dim=1), rows.norm(dim=1))
    assert at_precision(rows.bfloat16(), "int8").dtype == torch.float32


def test_matryoshka_refuses_an_unknown_precision() -> None:
    with pytest.raises(ConfigError, match="beside float32 are int8 and binary, not 'int4'"):
        Matryoshka(Objective(), (2,), precisions=("int4",))


def test_matryoshka_refuses_a_width_that_is_not_there() -> None:
    with pytest.raises(DataError, match="width 6 of embeddings that have 5 numbers"):
        Matryoshka(Objective(), (2, 6))(examples.batch_of(examples.made(2)))


# Presets
# -----------------------------------------------------------------------------------------------------------

FORWARD = ("docs", "negatives", "sampled")
LOGQ = {"corrections": (LogQ("classic", examples.WEIGHT),)}
PRESETS = {
    presets.mnr: (0.05, {}, Parts(pools=FORWARD)),
    presets.symmetric: (
        0.05,
        {},
        Parts(pools=(*FORWARD, "back_queries"), partition="per_direction"),
    ),
    presets.gte: (0.01, {}, Parts(pools=(*FORWARD, "queries", "back_queries", "back_docs"))),
    presets.gist: (
        0.01,
        {"margin": 0.1},
        Parts(pools=(*FORWARD, "queries", "back_positives"), guided="absolute"),
    ),
    presets.simcse: (0.05, {}, Parts(pools=("docs", "negatives"))),
    presets.sampled_softmax: (1.0, LOGQ, Parts("dot", FORWARD, logq="classic", same_id=True)),
    presets.mixed_negatives: (
        0.05,
        LOGQ,
        Parts("cosine", ("docs", "sampled"), logq="classic", same_id=True),
    ),
    presets.hardness: (
        0.05,
        {"strength": examples.STRENGTH},
        Parts(pools=FORWARD, hardness="others"),
    ),
}


@pytest.mark.parametrize("preset", presets.PRESETS, ids=lambda preset: preset.__name__)
def test_presets_are_their_parts(preset: object) -> None:
    temperature, options, parts = PRESETS[preset]
    assert preset().temperature.value == pytest.approx(temperature, rel=1e-14)
    data = examples.made(2)
    got = preset(examples.T, **options)(examples.batch_of(data))
    assert got.tolist() == pytest.approx(examples.defined(data, parts).tolist(), rel=1e-10)


@pytest.mark.parametrize("similarity", [cosine, dot])
def test_objectives_are_pickled(similarity: Similarity) -> None:
    objective = presets.mnr(similarity=similarity)
    assert pickle.loads(pickle.dumps(objective)).similarity == objective.similarity


def test_the_defaults_of_presets() -> None:
    assert (
        presets.sampled_softmax().corrections
        == presets.mixed_negatives().corrections
        == (LogQ("classic", 1.0),)
    )
    assert presets.sampled_softmax().masks == presets.mixed_negatives().masks == (SameId(),)
    assert presets.gist().masks == (Guided(0.0, "absolute", "guide"),)
    assert presets.hardness().corrections == (Hardness(9.0, "others"),)
    assert set(PRESETS) == set(presets.PRESETS)


@pytest.mark.parametrize("preset", presets.PRESETS, ids=lambda preset: preset.__name__)
def test_every_part_of_a_preset_can_be_replaced(preset: object) -> None:
    dial = Temperature(0.2, learnable=True)
    made = preset(
        dial,
        similarity=dot if preset().similarity is cosine else cosine,
        pools=(pools.docs, pools.memory),
        corrections=(),
        masks=(),
        partition="joint",
        numerator="mean",
        hardest=7,
        memory=Memory(3),
        tile_elements=64,
    )  # fmt: skip
    assert made.temperature is dial and made.similarity is not preset().similarity
    assert made.pools == (pools.docs, pools.memory) and made.corrections == made.masks == ()
    assert (made.partition, made.numerator, made.hardest, made.tile_elements) == (
        "joint",
        "mean",
        7,
        64,
    )


def test_rows_that_all_weigh_nothing_have_no_share() -> None:
    batch = Batch(Side(torch.eye(3)), Side(torch.eye(3)), weight=torch.zeros(3))
    assert batch.shares().tolist() == [0.0, 0.0, 0.0]
