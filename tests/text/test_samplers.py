"""Batches without duplicates and batches of several sources, against their definitions in loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tempera.arithmetic.ragged import Ragged
from tempera.errors import ConfigError
from tempera.text.train.samplers import Mixed, NoDuplicates, keys_of


def check(sampler: NoDuplicates, rows: list[list[int]], epoch: int = 0) -> int:
    """Every batch is as large as planned and shares nothing; how many rows the epoch leaves out."""
    size = sampler.batches_per_epoch
    batches = [batch.tolist() for batch in sampler(epoch * size, (epoch + 1) * size)]
    for batch, planned in zip(batches, sampler.sizes, strict=True):
        keys = [key for row in batch for key in set(rows[row])]
        assert len(batch) == len(set(batch)) == planned <= sampler.batch_size and len(keys) == len(
            set(keys)
        )
    assert max(map(len, batches)) - min(map(len, batches)) <= 1
    return len(rows) - len({row for batch in batches for row in batch})


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=8, max_size=60),
    st.integers(0, 3),
)
def test_no_two_rows_of_a_batch_share_a_key(rows: list[list[int]], epoch: int) -> None:
    try:
        sampler = NoDuplicates(Ragged.of(rows), 3, 5)
    except ConfigError:
        return
    check(sampler, rows, epoch)
    size = sampler.batches_per_epoch
    whole = [batch.tolist() for batch in sampler(0, 3 * size)]
    assert [batch.tolist() for batch in sampler(size + 1, 3 * size)] == whole[size + 1 :]


@pytest.mark.parametrize("count", [1000, 1003])
@pytest.mark.parametrize("most", [1, 3, 20, 48, 50])
def test_no_row_is_left_out(most: int, count: int) -> None:
    """In batches of 20 there are 50, or 51, so that up to 50 rows may share a document."""
    generator = np.random.default_rng(most)
    docs = generator.permutation(np.arange(count) // most)
    rows = [[10_000 + i, int(doc)] for i, doc in enumerate(docs)]
    sampler = NoDuplicates(Ragged.of(rows), 20, 0)
    assert sampler.batches_per_epoch == -(-count // 20)
    assert [check(sampler, rows, epoch) for epoch in range(20)] == [0] * 20


def test_rows_that_share_a_text_with_the_last_batch_change_places() -> None:
    """In five batches, five rows share a text: whatever the order, each batch has to hold one of
    them."""
    rows = [[0, i + 1] for i in range(5)] + [[100 + i] for i in range(5)]
    sampler = NoDuplicates(Ragged.of(rows), 2, 0)
    assert [check(sampler, rows, epoch) for epoch in range(50)] == [0] * 50


def test_a_text_that_a_row_holds_twice_counts_once() -> None:
    """Six batches, and a text in six rows."""
    rows = [[0, 0], *([0, i + 1] for i in range(5)), *([100 + i] for i in range(5))]
    sampler = NoDuplicates(Ragged.of(rows), 2, 0)
    assert sampler.batches_per_epoch == 6 and check(sampler, rows) == 0


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_fit_nowhere_do_not_end_a_run(seed: int) -> None:
    rows = [[100, 1], [101, 2], [102, 0], [103, 0, 2], [104, 1], [105, 1], [106, 0, 1], [107, 2, 3]]
    sampler = NoDuplicates(Ragged.of(rows), 3, seed)
    assert check(sampler, rows) + check(sampler, rows, 1) < 2 * len(rows)


def test_a_text_that_is_too_frequent_limits_the_epoch() -> None:
    rows = [
        [i, 1000 + min(i, 20)] for i in range(50)
    ]  # 30 rows with one text, and 20 without: in pairs, 20 batches
    sampler = NoDuplicates(Ragged.of(rows), 2, 0)
    assert sampler.batches_per_epoch == 20
    assert check(sampler, rows) == 10


def test_rows_that_share_too_much_cannot_be_a_batch() -> None:
    with pytest.raises(
        ConfigError, match=r"^train\.batch_size is 3, but too many of the 10 rows share a text"
    ):
        NoDuplicates(Ragged.of([[i, 100 + i % 2] for i in range(10)]), 3, 0)


def test_keys_of_rows() -> None:
    keys = keys_of(
        torch.tensor([1, 2, 3]),
        torch.tensor([4, 5, 6]),
        Ragged.of([[1, 0], [], [1]]),
        torch.tensor([7, 8]),
    )
    assert [keys[i : i + 1].values.tolist() for i in range(3)] == [[1, 4, 8, 7], [2, 5], [3, 6, 8]]


SOURCE = np.array([0] * 50 + [1] * 30 + [2] * 20)


@pytest.mark.parametrize("batches", ["mixed", "single"])
@pytest.mark.parametrize("weights", [None, (1.0, 1.0, 2.0), (0.0, 1.0, 3.0)])
def test_sources_come_by_weight_and_each_row_once_a_turn(batches, weights) -> None:
    sampler = Mixed(SOURCE, 10, 3, weights, batches)
    drawn = [batch.numpy() for batch in sampler(0, 400)]
    share = np.array(weights or (5, 3, 2), float)
    count = np.bincount(SOURCE[np.concatenate(drawn)], minlength=3)
    slack = 10 * (2 if batches == "single" else 0.5) + 1
    assert np.abs(count - 4000 * share / share.sum()).max() <= slack
    for s in range(3):
        rows = np.concatenate(drawn)[SOURCE[np.concatenate(drawn)] == s]
        seen = np.bincount(rows, minlength=100)[s == SOURCE]
        assert seen.max(initial=0) - seen.min(initial=10**9) <= 1
    if batches == "single":
        assert all(len(set(SOURCE[batch])) == 1 for batch in drawn)
    assert float(sampler.chance.sum()) == pytest.approx(1)
    assert np.allclose(np.bincount(SOURCE, sampler.chance.numpy()), share / share.sum())


@pytest.mark.parametrize("batches", ["mixed", "single"])
def test_a_mixture_resumes_anywhere(batches) -> None:
    sampler = Mixed(SOURCE, 7, 1, (1.0, 2.0, 1.5), batches)
    whole = [batch.tolist() for batch in sampler(0, 40)]
    assert all(len(batch) == 7 for batch in whole)
    for first in (1, 13, 39):
        assert [batch.tolist() for batch in sampler(first, 40)] == whole[first:]
    assert len(set(itertools.chain(*whole))) == 100


def test_a_source_that_cannot_fill_a_batch() -> None:
    with pytest.raises(ConfigError, match="a source has only 20 training pairs"):
        Mixed(SOURCE, 21, 0, None, "single")
    Mixed(SOURCE, 21, 0, None, "mixed")
