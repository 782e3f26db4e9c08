"""First vectors of items are those of the definition, and lead a run to start where counting
stands."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tempera.core.frame import Frame
from tempera.errors import ConfigError
from tempera.recommend.read.division import LeaveLastOut
from tempera.recommend.read.timeline import Timeline
from tempera.recommend.train.cooccurrence import Cooccurrence
from tempera.recommend.train.encoders import Id
from tempera.recommend.train.features import Features
from tempera.recommend.train.training_events import EventData

ITEMS = 12


def timeline(users: int = 40) -> Timeline:
    draw = np.random.default_rng(0)
    user = np.repeat(np.arange(users), 7)
    item = (
        np.repeat(draw.integers(ITEMS, size=users), 7) + draw.integers(4, size=len(user))
    ) % ITEMS
    return Timeline.of(user.tolist(), item.tolist())


def information(line: Timeline, train: np.ndarray) -> np.ndarray:
    """PPMI by its definition, pair by pair."""
    counts = np.zeros((len(line.item_ids),) * 2)
    for begin, end in zip(line.offsets[:-1], line.offsets[1:]):
        own = [int(line.item[e]) for e in range(begin, end) if train[e]]
        for i in range(len(own)):
            for j in range(len(own)):
                if 1 <= abs(i - j) <= 5 and own[i] != own[j]:
                    counts[own[i], own[j]] += 1 / abs(i - j)
    rows, total = counts.sum(1), counts.sum()
    return np.array(
        [
            [
                max(0.0, math.log(c * total / (rows[i] * rows[j]))) if c else 0.0
                for j, c in enumerate(row)
            ]
            for i, row in enumerate(counts)
        ]
    )


def test_vectors_are_those_of_the_definition() -> None:
    line = timeline()
    train = LeaveLastOut()(line).train
    table, vectors = information(line, train), Cooccurrence(line, train)(ITEMS + 3).double().numpy()
    assert vectors.shape == (ITEMS, ITEMS + 3) and not vectors[:, ITEMS:].any()
    product = vectors @ vectors.T  # U S U' in some unit, whose square is that of the table
    unit = np.linalg.norm(table) / np.linalg.norm(product)
    assert np.allclose(
        (unit * product) @ (unit * product), table @ table, atol=1e-4 * np.abs(table @ table).max()
    )
    assert np.isclose((vectors**2).sum(1).mean(), 1, atol=1e-5)


def test_only_training_events_count() -> None:
    line = timeline()
    train = LeaveLastOut()(line).train
    changed = np.array(line.item)
    changed[~train] = (changed[~train] + 5) % ITEMS
    torch.manual_seed(0)
    own = Cooccurrence(line, train)(4)
    torch.manual_seed(0)
    items = line.item_ids.take(changed).to_pylist()
    other = Cooccurrence(Timeline.of(np.repeat(np.arange(40), 7).tolist(), items), train)(4)
    assert not np.array_equal(changed, line.item)
    ids = {item: code for code, item in enumerate(line.item_ids.to_pylist())}
    order = [ids[item] for item in Timeline.of([0] * len(line), items).item_ids.to_pylist()]
    assert torch.allclose((own @ own.T)[order][:, order], other @ other.T, atol=1e-4)


def test_items_begin_with_them() -> None:
    torch.manual_seed(0)
    line = timeline()
    events = EventData.of(line, LeaveLastOut()(line))
    towers = Features((Id(init="cooccurrence"),), dimensions=8).build(events.users, events.items)
    vectors = towers.encode(Frame({"item": torch.arange(len(line.item_ids))}))
    assert events.items.first is not None
    first = torch.nn.functional.normalize(events.items.first(8), dim=-1)
    assert (
        float((vectors @ vectors.T - first @ first.T).abs().max()) < 0.4
    )  # a tenth of the numbers is random
    random = (
        Features(dimensions=8)
        .build(events.users, events.items)
        .encode(Frame({"item": torch.arange(ITEMS)}))
    )
    assert float((random @ random.T - first @ first.T).abs().max()) > 0.8


def test_users_and_buckets_have_none() -> None:
    with pytest.raises(ConfigError, match=r"tower\.doc"):
        Features(query=(Id(init="cooccurrence"),))
    with pytest.raises(ConfigError, match="buckets 7"):
        Id(buckets=7, init="cooccurrence")
