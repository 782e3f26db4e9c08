"""Every row once an epoch, in an order that the seed alone decides, in batches that differ by at
most one row."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tempera.arithmetic.ragged import Ragged
from tempera.engine.batches import Draws, Examples, Shuffled
from tempera.errors import ConfigError

ROWS, SIZE = 23, 4  # 6 batches an epoch, one of them of 3 rows


def rows_of(batches: list[torch.Tensor]) -> list[int]:
    assert all(len(batch) in (SIZE - 1, SIZE) and batch.dtype == torch.int64 for batch in batches)
    return torch.cat(batches).tolist()


@pytest.mark.parametrize(
    ("rows", "size"), [(23, 4), (24, 4), (4, 4), (2, 2), (1000, 3), (2257, 2048), (5, 4)]
)
def test_every_row_comes_once_in_an_epoch(rows: int, size: int) -> None:
    shuffled = Shuffled(rows, size, seed=0)
    count = shuffled.batches_per_epoch
    assert count == math.ceil(rows / size)
    for epoch in range(3):
        batches = list(shuffled(epoch * count, (epoch + 1) * count))
        assert sorted(torch.cat(batches).tolist()) == list(range(rows))
        lengths = {len(batch) for batch in batches}
        assert max(lengths) <= size and max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("first", range(12))
def test_a_resumed_run_sees_the_tail_of_the_whole(first: int) -> None:
    shuffled = Shuffled(ROWS, SIZE, seed=7)
    whole = list(shuffled(0, 12))
    assert len(rows_of(whole)) == 2 * ROWS
    assert [batch.tolist() for batch in shuffled(first, 12)] == [
        batch.tolist() for batch in whole[first:]
    ]


def test_epochs_and_seeds_differ_and_runs_do_not() -> None:
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        return tuple(rows_of(list(Shuffled(ROWS, SIZE, seed)(6 * epoch, 6 * epoch + 6))))

    orders = {(seed, epoch): order(seed, epoch) for seed in range(4) for epoch in range(4)}
    assert len(set(orders.values())) == 16
    assert tuple(range(ROWS)) not in orders.values()
    assert all(order(*key) == value for key, value in orders.items())


@pytest.mark.parametrize(
    ("rows", "size", "message"),
    [
        (
            10,
            11,
            "train.batch_size is 11 and the data has 10 pairs to train on: give a batch_size of at most 10",
        ),
        (
            0,
            2,
            "train.batch_size is 2 and the data has 0 pairs to train on: in-batch negatives need at least 2",
        ),
        (
            1,
            2,
            "train.batch_size is 2 and the data has 1 pair to train on: in-batch negatives need at least 2",
        ),
        (10, 1, "train.batch_size is 1, but in-batch negatives need at least 2 rows"),
        (10, 0, "train.batch_size is 0, but in-batch negatives need at least 2 rows"),
    ],
)
def test_batches_that_cannot_be(rows: int, size: int, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Shuffled(rows, size, 0)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_a_batch_holds_the_features_and_ids_of_its_rows() -> None:
    queries, docs = [[1, 2], [], [3]], [[4], [5, 6]]
    pairs = [(0, 0), (1, 1), (2, 1), (0, 1)]
    query, doc = (torch.tensor(side) for side in zip(*pairs))
    examples = Examples(Ragged.of(queries), Ragged.of(docs), query, doc, 100 + query, 200 + doc)
    assert len(examples) == 4
    batch = examples.batch(torch.tensor([3, 0, 2]))
    assert len(batch) == 3
    lists = {
        role: [side.rows[i : i + 1].values.tolist() for i in range(3)]
        for role, side in batch.sides().items()
    }
    assert lists == {"query": [[1, 2], [1, 2], [3]], "doc": [[5, 6], [4], [5, 6]]}
    assert batch.query.ids.tolist() == [100, 100, 102] and batch.doc.ids.tolist() == [201, 200, 201]
    assert batch.known is not None
    known = [sorted(batch.known[i : i + 1].values.tolist()) for i in range(3)]
    assert known == [
        [200, 201],
        [200, 201],
        [201],
    ]  # every document that a query is paired with, in the batch or not
    for side, counts in (
        (batch.query, [2, 2, 1]),
        (batch.doc, [3, 1, 3]),
    ):  # of the four pairs, in batches of three
        assert side.logq.tolist() == pytest.approx([math.log(3 * count / 4) for count in counts])


def with_negatives(**known: Any) -> Examples:
    """Three pairs of three queries and four documents, with 1, 2 and no negatives."""
    return Examples(
        Ragged.of([[1], [2], [3]]),
        Ragged.of([[4], [5], [6], [7]]),
        query=torch.tensor([2, 0, 1]),
        doc=torch.tensor([1, 1, 0]),
        query_ids=torch.tensor([12, 10, 11]),
        doc_ids=torch.tensor([21, 21, 20]),
        negatives=Ragged.of([[3], [0, 2], []]),
        all_ids=torch.arange(20, 24),
        **known,
    )


@pytest.mark.parametrize("model", ["guide", "teacher"])
def test_a_model_is_looked_up_for_every_side(model: str) -> None:
    """By the distinct query or document that stands in each row, of whatever role."""
    tables = {"query": torch.rand(3, 2), "doc": torch.rand(4, 2)}
    look_up = {model: lambda role, rows: tables["query" if role == "query" else "doc"][rows]}
    examples = with_negatives(draws=Draws(2), **look_up)
    batch = examples.batch(torch.tensor([1, 0]))
    assert batch.negatives is not None and batch.sampled is not None
    vectors = {role: getattr(side, model) for role, side in batch.sides().items()}
    torch.testing.assert_close(vectors["query"], tables["query"][[0, 2]])
    torch.testing.assert_close(vectors["doc"], tables["doc"][[1, 1]])
    torch.testing.assert_close(vectors["negatives"], tables["doc"][[0, 2, 3]])
    assert batch.sampled.ids is not None
    torch.testing.assert_close(vectors["sampled"], tables["doc"][batch.sampled.ids - 20])
    assert (
        getattr(replace(examples, **{model: None}).batch(torch.tensor([1, 0])).doc, model) is None
    )


def test_draws_follow_the_proposal() -> None:
    draws = Draws(20_000, power=0.5, seed=3)
    proposal = draws.proposal(torch.tensor([0.0, 0.1, 0.0, 0.4, 0.5, 0.0]))
    ends = draws.ends(proposal)
    drawn = draws(ends, 4)
    shares = drawn.bincount(minlength=6) / len(drawn)
    assert drawn.dtype == torch.int64 and shares[[0, 2, 5]].tolist() == [0, 0, 0]
    torch.testing.assert_close(
        shares, proposal.float(), atol=0.015, rtol=0
    )  # four standard deviations
    assert torch.equal(draws(ends, 4), drawn) and not torch.equal(draws(ends, 5), drawn)


def test_draws_follow_the_proposal_of_ten_million_documents() -> None:
    """Sums in float32 are off by a sixth there, by the place of a document, and leave rare ones
    out."""
    draws = Draws(400_000)
    ends = draws.ends(draws.proposal(torch.full((10_000_000,), 1e-7)))
    shares = draws(ends, 0).mul(8).floor_divide(10_000_000).bincount() / draws.count
    torch.testing.assert_close(
        shares, torch.full((8,), 1 / 8), atol=0.0021, rtol=0
    )  # four standard deviations
    frequency = 1 / torch.arange(1.0, 1_000_001.0)
    proposal = Draws(power=1.0).proposal(frequency)
    stretches = torch.diff(draws.ends(proposal), prepend=torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(stretches, proposal.double(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("sampled", [0, 6])
def test_the_rows_of_one_process_count_for_the_batch_of_all(sampled: int) -> None:
    """Twice the rows and draws are in the batch of two processes: each text is in it as often again."""
    tokens = Ragged.of([[1], [2], [3]])
    numbers = torch.tensor([0, 1, 1, 2])
    examples = Examples(tokens, tokens, numbers, numbers, numbers, numbers, Draws(sampled))
    rows = torch.tensor([1, 3])
    alone = examples.batch(rows)
    of_two = replace(examples, processes=2).batch(rows)
    for name in ("query", "doc", *(("sampled",) if sampled else ())):
        one, two = getattr(alone, name).logq, getattr(of_two, name).logq
        assert two.exp().tolist() == pytest.approx((2 * one.exp()).tolist())
