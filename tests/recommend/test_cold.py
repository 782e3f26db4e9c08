"""Items that training never sees: taken out as said, and ranked among themselves as loops rank
them."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import numpy as np
import pyarrow as pa
import pytest

from tempera.errors import DataError
from tempera.recommend.judge.cold import ColdItems
from tempera.recommend.judge.full_catalogue import Histories
from tempera.recommend.read.division import TEST, TRAIN, Division, GlobalTime, LeaveLastOut
from tempera.recommend.read.timeline import Timeline
from tempera.recommend.train.withheld import withhold

METRICS = ("hit@2", "ndcg@3")


def timeline(seed: int = 0, users: int = 25, items: int = 12) -> Timeline:
    draw = np.random.default_rng(seed)
    rows = [
        (user, item, draw.integers(100))
        for user in range(users)
        for item in draw.integers(0, items, 9)
    ]
    user, item, time = (list(column) for column in zip(*rows))
    made = Timeline.of(user, item, time=time, weight=draw.random(len(rows)).tolist())
    return replace(
        made, users=pa.table({"name": [f"n{user}" for user in made.user_ids.to_pylist()]})
    )


def events(timeline: Timeline) -> list[tuple[int, int, int, float, str]]:
    """Each event with everything that is known of it."""
    owner = timeline.user_of(np.arange(len(timeline)))
    assert timeline.time is not None and timeline.weight is not None and timeline.users is not None
    names = timeline.users["name"].to_pylist()
    ids = timeline.user_ids.to_pylist()
    return [
        (ids[u], int(i), int(t), float(w), names[u])
        for u, i, t, w in zip(owner.tolist(), timeline.item, timeline.time, timeline.weight)
    ]


@pytest.mark.parametrize("split", [GlobalTime(0.3, 0.2, least=1), LeaveLastOut()])
def test_training_does_without_the_items_and_all_else_stays(
    split: GlobalTime | LeaveLastOut,
) -> None:
    whole = timeline()
    before = split(whole)
    fewer, after, cold = withhold(whole, before, 0.25, seed=3)
    assert len(cold.items) == 3 and cold.whole is whole
    left = [
        (event, part)
        for event, part in zip(events(whole), before.part.tolist())
        if event[1] not in cold.items or part != TRAIN
    ]
    assert list(zip(events(fewer), after.part.tolist())) == left
    assert not np.isin(fewer.item[after.train], cold.items).any()
    for code, count in zip(cold.items, cold.counts):
        assert count == sum(
            event[1] == code and part == TRAIN
            for event, part in zip(events(whole), before.part.tolist())
        )
    for name, targets in before.test.items():  # the same events are asked
        assert [events(fewer)[e] for e in after.test[name]] == [events(whole)[e] for e in targets]
    for name, targets in before.validation.items():
        assert [events(fewer)[e] for e in after.validation[name]] == [
            events(whole)[e] for e in targets
        ]
    asked = [
        e
        for e in range(len(fewer))
        if fewer.item[e] in cold.items and after.part[e] == TEST and e not in fewer.offsets
    ]
    assert cold.targets.tolist() == asked
    assert (
        after.counts["interactions with items that are withheld"]
        == cold.counts.sum()
        == len(whole) - len(fewer)
    )
    again = withhold(whole, before, 0.25, seed=3)[2]
    other = withhold(whole, before, 0.25, seed=4)[2]
    assert again.items.tolist() == cold.items.tolist() != other.items.tolist()


def test_users_of_whom_nothing_is_left_go() -> None:
    whole = Timeline.of([1, 2, 2, 2, 3, 3, 3], list("abcaacb"))
    division = LeaveLastOut()(whole)
    seeds = {seed: withhold(whole, division, 0.5, seed)[0] for seed in (0, 1, 2, 3)}
    assert any(len(fewer.user_ids) == 2 for fewer in seeds.values())
    for fewer in seeds.values():
        assert (fewer.lengths > 0).all() and fewer.offsets[-1] == len(fewer)
        assert (len(fewer.user_ids) == 3) == (1 in fewer.user_ids.to_pylist())


def test_a_share_that_asks_nothing_is_refused() -> None:
    whole = timeline()
    with pytest.raises(DataError, match=r"evaluation.cold_items is 0\.01: it withholds 0 items"):
        withhold(whole, LeaveLastOut()(whole), 0.01, seed=0)


def queries(count: int = 30, items: int = 20) -> ColdItems:
    draw = np.random.default_rng(8)
    cold = np.sort(draw.permutation(items)[:6])
    offsets = np.concatenate([[0], draw.integers(1, 7, count).cumsum()])
    seen = Histories.of(draw.integers(0, items, offsets[-1]), offsets)
    return ColdItems(
        cold,
        draw.integers(1, 5, 6),
        draw.choice(cold, count),
        seen,
        METRICS,
        np.sort(draw.integers(0, 9, count)),
    )


def ranked(asked: ColdItems, query: int, scores: dict[int, float]) -> int:
    """The rank of the target among withheld items that the user has not taken, equal scores by
    code."""
    target = int(asked.target[query])
    taken = set(asked.seen.items[asked.seen.starts[query] : asked.seen.stops[query]].tolist()) - {
        target
    }
    order = sorted(
        (code for code in asked.items.tolist() if code not in taken), key=lambda c: (-scores[c], c)
    )
    return 1 + order.index(target)


def means(ranks: list[int]) -> dict[str, float]:
    return {
        "hit@2": float(np.mean([rank <= 2 for rank in ranks])),
        "ndcg@3": float(np.mean([1 / log2(rank + 1) if rank <= 3 else 0 for rank in ranks])),
    }


def test_events_that_are_no_targets_are_not_asked() -> None:
    """Views are histories of others; purchases alone, the targets of the largest weight, are
    evaluated."""
    whole = timeline()
    target = np.arange(len(whole)) % 3  # of which 2 is evaluated
    division = GlobalTime(0.3, 0.2, least=1)(whole)
    every = withhold(whole, division, 0.25, seed=3)[2]
    fewer, _, cold = withhold(
        replace(whole, target=target.astype(np.uint8)), division, 0.25, seed=3
    )
    assert cold.targets.tolist() == [
        e for e in every.targets.tolist() if fewer.target is not None and fewer.target[e] == 2
    ]
    assert 0 < len(cold.targets) < len(every.targets)


def test_withheld_items_are_ranked_among_themselves() -> None:
    asked, draw = queries(), np.random.default_rng(1)
    users, items = (draw.normal(size=(n, 4)).astype(np.float32) for n in (30, 20))
    by_model = [ranked(asked, q, dict(enumerate((items @ users[q]).tolist()))) for q in range(30)]
    counts = dict(zip(asked.items.tolist(), asked.counts.tolist()))
    by_count = [ranked(asked, q, counts) for q in range(30)]
    for found, ranks in ((asked.model(users, items), by_model), (asked.popularity(), by_count)):
        expected = means(ranks)
        assert list(found) == list(METRICS)
        for name in METRICS:
            assert found[name].mean == pytest.approx(expected[name], abs=1e-12)
            assert found[name].low <= found[name].mean <= found[name].high
            assert found[name].low < found[name].high


def test_chance_is_the_mean_of_all_orders() -> None:
    asked = queries()
    total: dict[str, float] = dict.fromkeys(METRICS, 0.0)
    for query in range(30):
        own = asked.seen.items[asked.seen.starts[query] : asked.seen.stops[query]].tolist()
        places = sum(
            code not in own or code == asked.target[query] for code in asked.items.tolist()
        )
        for name, mean in means(list(range(1, places + 1))).items():
            total[name] += mean / 30
    for name, found in asked.chance().items():
        assert found.mean == found.low == found.high == pytest.approx(total[name], abs=1e-12)


def test_an_event_without_a_history_is_not_asked() -> None:
    whole = Timeline.of([1, 1, 1, 2, 3, 3], list("aabaca"), time=[1, 2, 3, 9, 4, 9])
    division = Division(np.array([0, 0, 0, 2, 0, 2], np.uint8), {}, {})
    seed = next(seed for seed in range(99) if np.random.default_rng(seed).permutation(3)[0] == 0)
    fewer, _, cold = withhold(whole, division, 0.34, seed)
    assert cold.items.tolist() == [0] and fewer.item.tolist() == [1, 0, 2, 0]
    assert cold.targets.tolist() == [3]
    # The asked event of user 2 follows withheld ones only.
    division = Division(
        np.array([0, 1, 2, 0, 0, 2], np.uint8),
        {"last": np.array([1])},
        {"last": np.array([2, 5]), "next": np.array([5])},
    )
    whole = Timeline.of([1, 1, 1, 2, 2, 2], list("abcccb"))
    seed = next(
        seed for seed in range(99) if np.random.default_rng(seed).permutation(2)[0] == 1
    )  # of a and c, the latter
    with pytest.raises(DataError, match="none of which occurs"):
        withhold(
            whole.kept(np.arange(6) > 2), Division(np.array([0, 0, 2], np.uint8), {}, {}), 0.5, seed
        )
    fewer, moved, cold = withhold(whole, division, 0.5, seed)
    assert cold.items.tolist() == [2] and fewer.item.tolist() == [0, 1, 2, 1]
    assert {name: events.tolist() for name, events in moved.test.items()} == {
        "last": [2],
        "next": [],
    }
    assert moved.validation["last"].tolist() == [1] and cold.targets.tolist() == [2]
