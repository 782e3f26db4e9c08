"""Frequencies against counts, and the streaming estimate against its algorithm in loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tempera.errors import ConfigError
from tempera.io.ids import mixed
from tempera.recommend import frequency as frequencies
from tempera.recommend.frequency import StreamingFrequency, counted


def zipf(items: int) -> np.ndarray:
    share = 1 / np.arange(1, items + 1)
    return share / share.sum()


@pytest.mark.parametrize("at_once", [7, 1 << 22])
def test_counted(at_once: int, monkeypatch) -> None:
    monkeypatch.setattr(frequencies, "_EVENTS", at_once)
    generator = np.random.default_rng(0)
    item, train = generator.integers(0, 20, 300).astype(np.int32), generator.random(300) < 0.7
    counts = [sum(1 for i, t in zip(item, train) if t and i == j) for j in range(25)]
    assert counted(item, train, 25).tolist() == counts


@pytest.mark.parametrize("initial", [None, 50.0])
@pytest.mark.parametrize("hashes", [1, 3])
def test_the_stream_is_estimated_as_the_algorithm_says(hashes: int, initial: float | None) -> None:
    slots, rate = 13, 0.1
    estimate = StreamingFrequency(slots, hashes, rate, initial)
    generator = np.random.default_rng(1)
    a = np.zeros((hashes, slots))
    b = np.full((hashes, slots), initial or 0.0)
    seen = np.zeros((hashes, slots))

    def slot(item: int, row: int) -> int:
        return int(mixed(np.array([item]), row).view(np.uint64)[0]) % slots

    for t in range(1, 61):
        batch = generator.choice(9, 4, p=zipf(9))
        estimate.update(torch.from_numpy(batch))
        for row in range(hashes):
            for s in {slot(item, row) for item in batch}:
                seen[row, s] += 1
                step = rate if initial else max(rate, 1 / seen[row, s])
                b[row, s] = (1 - step) * b[row, s] + step * (t - a[row, s])
                a[row, s] = t
    expected = [
        1 / max(1, max(b[row, slot(i, row)] if seen[row, slot(i, row)] else 61 for row in range(hashes)))
        for i in range(12)
    ]
    found = estimate.inclusion(torch.arange(12))
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_a_steady_stream_is_estimated_as_it_is_counted() -> None:
    generator = np.random.default_rng(0)
    share, rows, steps = zipf(300), 32, 3000
    estimate = StreamingFrequency(1 << 16, rate=0.005)
    item = generator.choice(300, (steps, rows), p=share)
    for batch in torch.from_numpy(item):
        estimate.update(batch)
    held = np.array([(item == i).any(1).mean() for i in range(300)])
    items = torch.arange(300)
    error = np.abs(np.log(estimate.inclusion(items).numpy() / held))
    assert error.mean() < 0.08 and error.max() < 0.35
    exact = counted(item.ravel(), np.ones(item.size, bool), 300) / steps
    rare = held < 0.9
    error = np.abs(np.log(estimate.expected(items, rows).numpy() / exact))[rare]
    assert rare.sum() > 295 and error.mean() < 0.08


def test_a_drifting_stream_is_followed() -> None:
    """The items' shares are turned round half way; counts of the whole do not see it."""
    generator = np.random.default_rng(0)
    share, rows, steps = zipf(50), 8, 1500
    estimate = StreamingFrequency(1 << 12, rate=0.05)
    before, after = (generator.choice(50, (steps, rows), p=p) for p in (share, share[::-1]))
    for batch in torch.from_numpy(np.concatenate([before, after])):
        estimate.update(batch)
    now = 1 - (1 - share[::-1]) ** rows
    found = estimate.inclusion(torch.arange(50)).numpy()
    assert np.abs(np.log(found / now)).mean() < 0.2
    whole = 1 - (1 - (share + share[::-1]) / 2) ** rows
    assert np.abs(np.log(whole / now)).mean() > 0.5


def test_several_hashes_are_nearer_where_slots_are_few() -> None:
    generator = np.random.default_rng(0)
    share, rows = zipf(2000), 32
    item = generator.choice(2000, (600, rows), p=share)
    truth, errors = 1 - (1 - share) ** rows, []
    for hashes in (1, 2, 4):
        estimate = StreamingFrequency(2000, hashes)
        for batch in torch.from_numpy(item):
            estimate.update(batch)
        found = estimate.inclusion(torch.arange(2000)).numpy()
        errors.append(np.abs(np.log(found / truth)).mean())
    assert errors[0] > errors[1] > errors[2]


def test_the_state_is_kept() -> None:
    one = StreamingFrequency(64)
    for step in range(9):
        one.update(torch.arange(step))
    two = StreamingFrequency(64)
    two.load_state_dict(one.state_dict())
    for estimate in (one, two):
        estimate.update(torch.tensor([3, 5]))
    assert torch.equal(one.inclusion(torch.arange(12)), two.inclusion(torch.arange(12)))


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="rate in"):
        StreamingFrequency(rate=0)
