"""Counts of items among the events of training."""

from __future__ import annotations

import numpy as np
import pytest

from tempera.recommend.train import frequency as frequencies
from tempera.recommend.train.frequency import counted


@pytest.mark.parametrize("at_once", [7, 1 << 22])
def test_counted(at_once: int, monkeypatch) -> None:
    monkeypatch.setattr(frequencies, "_EVENTS", at_once)
    generator = np.random.default_rng(0)
    item, train = generator.integers(0, 20, 300).astype(np.int32), generator.random(300) < 0.7
    counts = [sum(1 for i, t in zip(item, train) if t and i == j) for j in range(25)]
    assert counted(item, train, 25).tolist() == counts
