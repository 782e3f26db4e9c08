"""Dislikes against loops: what is left of the data, what training knows, what a batch holds, and
the loss of it."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tempera import train
from tempera.core import pools
from tempera.core.batch import divide
from tempera.core.corrections import LogQ
from tempera.core.masks import KnownPositives, SameId
from tempera.core.objective import Objective
from tempera.engine.batches import Draws
from tempera.errors import ConfigError, DataError
from tempera.recommend.read.division import AtRandom, GlobalTime, LeaveLastOut
from tempera.recommend.read.interactions import Interactions
from tempera.recommend.read.timeline import Timeline
from tempera.recommend.train.disliked import Disliked, known_dislikes
from tempera.recommend.train.segments import Contexts
from tempera.recommend.train.visits import Visits

USERS, ITEMS = 9, 14
Row = tuple[int, int, int, int]


def generated(seed: int = 0) -> list[Row]:
    """User, item, rating, time: each user rates at moments of his own, and some items twice."""
    draw = random.Random(seed)
    return [
        (user, draw.randrange(ITEMS), draw.randint(1, 5), 20 * user + 3 * at)
        for user in range(USERS)
        for at in range(draw.randint(5, 16))
    ]


def table(rows: list[Row], names: tuple[str, ...] = ("user", "item", "rating", "time")) -> pa.Table:
    return pa.table(dict(zip(names, map(list, zip(*rows)))))


def read(rows: list[Row], **options: Any) -> Timeline:
    return Interactions.of(table(rows), repeated="keep", **{"dislikes": 2, **options}).read()


@pytest.mark.parametrize("least", [None, 4])
def test_what_is_left_are_the_interactions_without_low_ratings(least: int | None) -> None:
    rows = generated()
    with_dislikes, without = (
        read(rows, min_rating=least),
        read(rows, dislikes=None, min_rating=least or 3),
    )
    for name in ("item", "offsets", "time"):
        assert np.array_equal(getattr(with_dislikes, name), getattr(without, name))
    assert with_dislikes.item_ids.equals(without.item_ids) and with_dislikes.user_ids.equals(
        without.user_ids
    )
    taken = {item for _, item, rating, _ in rows if rating >= (least or 3)}
    expected = [(u, i, t) for u, i, rating, t in rows if rating <= 2 and i in taken]
    aside = with_dislikes.aside
    assert aside is not None and aside.time is not None
    users = np.repeat(with_dislikes.user_ids.to_numpy(), np.diff(aside.offsets))
    items = with_dislikes.item_ids.to_numpy()[aside.item]
    every = list(zip(users.tolist(), items.tolist(), aside.time.tolist()))
    assert [event for event, is_one in zip(every, aside.disliked) if is_one] == expected
    low = [(u, i, t) for u, i, rating, t in rows if 2 < rating < (least or 3) and i in taken]
    assert [event for event, is_one in zip(every, aside.disliked) if not is_one] == low
    assert f"{len(expected)} dislikes are no interactions" in with_dislikes.about


def test_users_who_only_dislike_are_counted_as_such() -> None:
    taken = next(item for _, item, rating, _ in generated() if rating > 2)
    line = read([*generated(), (99, taken, 1, 3), (99, taken, 2, 4), (98, taken, 1, 3)])
    assert (
        line.dropped["dislikes of users who take nothing"] == 3
        and "repeated interactions" not in line.dropped
    )
    assert line.user_ids.equals(read(generated()).user_ids)


@pytest.mark.parametrize("part", [None, "validation"])
@pytest.mark.parametrize("split", [LeaveLastOut(), GlobalTime(0.3, 0.2)])
@pytest.mark.parametrize("seed", range(3))
def test_training_knows_what_was_disliked_before_the_rest(seed: int, split: Any, part: Any) -> None:
    line = read(generated(seed))
    division = split(line) if part is None else split(line).extended(part)
    known = known_dislikes(line, division.train)
    assert known is not None and line.aside is not None and line.time is not None
    last_of_all, trained = line.time[division.train].max(), set(line.item[division.train].tolist())
    for user in range(len(line.user_ids)):
        own = np.arange(line.offsets[user], line.offsets[user + 1])
        later = line.time[own][~division.train[own]]
        ends = later.min() if len(later) else math.inf
        liked = set(line.item[own][division.train[own]].tolist())
        span = range(line.aside.offsets[user], line.aside.offsets[user + 1])
        pairs = [(int(line.aside.time[k]), int(line.aside.item[k])) for k in span]
        expected = {
            item
            for time, item in pairs
            if time < ends and time <= last_of_all and item in trained - liked
        }
        assert known[user : user + 1].values.tolist() == sorted(expected)


def test_items_that_training_does_not_have_are_no_negatives() -> None:
    """Items 3 and 4 are held out, and so are those that cold items would be."""
    line = read(
        [
            (1, 1, 5, 1),
            (1, 2, 5, 2),
            (1, 3, 5, 3),
            (1, 4, 5, 4),
            *((2, item, 1, item) for item in (1, 3, 4)),
            (2, 2, 5, 9),
        ]
    )
    known = known_dislikes(line, LeaveLastOut()(line).train)
    assert known is not None and known.lengths.tolist() == [0, 1] and known.values.tolist() == [0]


def made(line: Timeline, most: int, **draws: float) -> Visits:
    train_mask = LeaveLastOut()(line).train
    known = known_dislikes(line, train_mask)
    assert known is not None
    return Visits(
        line, train_mask, Contexts(line, 4, 3), Draws(**draws), True, Disliked(known, most, seed=5)
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 5])
@pytest.mark.parametrize("most", [1, 3, 50])
def test_a_batch_brings_dislikes_of_its_own_users_with_their_chances(most: int, count: int) -> None:
    visits = made(read(generated(3)), most, count=count)
    assert visits.disliked is not None
    events = torch.from_numpy(np.flatnonzero(visits.train)[::2])
    batch = visits.batch(events, step=4)
    assert (
        batch.negatives is not None
        and batch.negatives.owner is not None
        and batch.negatives.ids is not None
    )
    users = visits.timeline.user_of(events.numpy())
    for row, user in enumerate(users.tolist()):
        own = batch.negatives.ids[batch.negatives.owner == row].tolist()
        known = visits.disliked.known[user : user + 1].values.tolist()
        assert len(own) == len(set(own)) == min(most, len(known)) and set(own) <= set(known)
    again = visits.batch(events, step=4).negatives
    assert again is not None and torch.equal(again.ids, batch.negatives.ids)  # type: ignore[arg-type]
    share = (
        np.bincount(visits.timeline.user_of(np.flatnonzero(visits.train)), minlength=USERS)
        / visits.train.sum()
    )
    brings = Counter[int]()
    for user in range(USERS):
        known = visits.disliked.known[user : user + 1].values.tolist()
        for item in known:
            brings[item] += share[user] * min(most, len(known)) / len(known)
    frequency = visits.counts / visits.counts.sum()
    uniform = 1 / np.count_nonzero(visits.counts)
    for side in batch.sides().values():
        if side is batch.query:
            continue
        assert side.ids is not None and side.logq is not None
        for item, logq in zip(side.ids.tolist(), side.logq.tolist()):
            there = (
                1
                - (1 - frequency[item]) ** len(events)
                * (1 - uniform * (frequency[item] > 0)) ** count
            )
            assert logq == pytest.approx(math.log(there + len(events) * brings[item]), abs=1e-5)
    parts = [
        divide(batch, part, 2) for part in range(2)
    ]  # the rows of two processes bring what those of one do
    assert sum(len(part.negatives) for part in parts if part.negatives is not None) == len(
        batch.negatives
    )


def test_the_draw_is_uniform_without_replacement() -> None:
    draw = Disliked(known_dislikes(line := read(generated(1)), np.ones(len(line), bool)), 2, seed=0)  # type: ignore[arg-type]
    user = int(draw.known.lengths.argmax())
    own, counts = draw.known[user : user + 1].values.tolist(), Counter[int]()
    for step in range(60):
        counts.update(draw(torch.full((20,), user), step)[0].tolist())
    assert sorted(counts) == own
    assert max(counts.values()) / min(counts.values()) < 1.35
    expected = draw.expected(torch.eye(USERS)[user], ITEMS)
    assert expected[own].tolist() == pytest.approx([2 / len(own)] * len(own))


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("masks", [(), (SameId(),), (SameId(), KnownPositives())])
def test_the_loss_is_that_of_its_definition(masks: tuple[Any, ...], weight: float) -> None:
    """The softmax over the items of the batch, the drawn ones and all dislikes, by loops over
    events in float64."""
    visits = made(read(generated(2)), 2, count=4)
    events = torch.from_numpy(np.flatnonzero(visits.train)[1::2])
    batch, t, line = visits.batch(events, step=1), 0.3, visits.timeline
    generator = torch.Generator().manual_seed(0)
    of_users, of_items = (
        torch.randn(n, 5, dtype=torch.float64, generator=generator) for n in (len(line), ITEMS)
    )
    embedded = batch.of(
        {
            role: of_users[events] if role == "query" else of_items[side.ids]  # type: ignore[index]
            for role, side in batch.sides().items()
        }
    )
    objective = Objective(
        temperature=t,
        pools=(pools.docs, pools.negatives, pools.sampled),
        masks=masks,
        corrections=[LogQ(weight=weight)],
    )
    found = objective(embedded)
    chance = {
        int(item): float(logq)
        for role, side in batch.sides().items()
        if role != "query"
        for item, logq in zip(side.ids, side.logq)  # type: ignore[arg-type]
    }
    cosine = (
        torch.nn.functional.normalize(of_users, dim=1)
        @ torch.nn.functional.normalize(of_items, dim=1).T
    )
    assert batch.negatives is not None and batch.negatives.owner is not None
    disliked = list(zip(batch.negatives.ids.tolist(), batch.negatives.owner.tolist()))  # type: ignore[union-attr]
    others = [
        *batch.doc.ids.tolist(),
        *([] if batch.sampled is None else batch.sampled.ids.tolist()),
    ]  # type: ignore[union-attr]
    for row, event in enumerate(events.tolist()):
        user, answer = int(line.user_of(np.array([event]))[0]), int(line.item[event])
        own = range(line.offsets[user], line.offsets[user + 1])
        liked = {int(line.item[k]) for k in own if visits.train[k]}
        of_user = {
            int(line.item[k])
            for k in events.tolist()
            if line.offsets[user] <= k < line.offsets[user + 1]
        }
        total = 0.0
        for item, owner in [*((item, None) for item in others), *disliked]:
            positive = owner is None and item == answer
            if not positive and masks and (item == answer or (owner is None and item in of_user)):
                continue
            if not positive and len(masks) == 2 and item in liked:
                assert owner != row  # what the row's own user dislikes is never masked
                continue
            total += math.exp(float(cosine[event, item]) / t - weight * chance[item])
        level = float(cosine[event, answer]) / t - weight * chance[answer]
        assert float(found[row]) == pytest.approx(math.log(total) - level, abs=1e-6)


def test_dislikes_go_along_where_events_are_left_out_or_moved() -> None:
    line = read(generated(4))
    left = np.random.default_rng(0).random(len(line)) < 0.6
    left[line.offsets[:-1]] = True
    left[: line.offsets[2]] = False  # two users go with their dislikes
    fewer = line.kept(left)
    assert fewer.aside is not None and line.aside is not None
    begin = line.aside.offsets[2]
    assert fewer.aside.item.tolist() == line.aside.item[begin:].tolist()
    place = [int(left[: line.aside.place[k]].sum()) for k in range(begin, len(line.aside.item))]
    assert fewer.aside.place.tolist() == place
    moved = AtRandom(0.3, 0)(line)
    assert moved.timeline is not None and moved.timeline.aside is line.aside


def test_dislikes_need_ratings_and_a_pool(tmp_path: Path) -> None:
    rows = generated()
    with pytest.raises(
        DataError, match=r"no column for data.dislikes: name one with data.rating=COLUMN"
    ):
        Interactions.of(table(rows).drop_columns(["rating"]), dislikes=2).read()
    with pytest.raises(
        DataError,
        match=r"no interactions are left: 2 rows, all of which are dislikes by data\.dislikes",
    ):
        read([(1, 1, 1, 1), (2, 3, 2, 1)])
    options = {"data": {"source": "interactions", "dislikes": 2}, "objective": {"pools": ["docs"]}}
    with pytest.raises(
        ConfigError, match=r"data.dislikes are negatives, but no pool .* add negatives"
    ):
        train(options, tmp_path / "run", data=table(rows))


def test_a_run_never_recommends_what_its_user_dislikes(tmp_path: Path) -> None:
    rows = generated(6)
    options = {
        "data": {
            "source": "interactions",
            "dislikes": 2,
            "negatives": 2,
            "split": "leave_last_out",
            "repeated": "keep",
        },
        "tower": {"dimensions": 8, "history": {"pools": [{"mean": {"last": 3}}]}},
        "objective": {"masks": ["same_id", "known_positives"], "corrections": ["log_q"]},
        "train": {"max_steps": 3, "batch_size": 16, "evaluations": 0, "refit": "none"},
        "evaluation": {"baselines": False, "validation": 0},
    }
    run = train(options, tmp_path / "run", data=table(rows))
    for user in range(USERS):
        liked = {item for u, item, rating, _ in rows if u == user and rating > 2}
        disliked = {item for u, item, rating, _ in rows if u == user and rating <= 2}
        assert disliked
        shown = {int(hit.id) for hit in run.recommend(user=user, k=ITEMS).hits}
        assert not shown & (liked | disliked)
        everything = {
            int(hit.id) for hit in run.recommend(user=user, k=ITEMS, exclude_seen=False).hits
        }
        assert shown == everything - liked - disliked
    assert (
        int(run.recommend(history=[int(run.recommend(user=0).hits[0].id)], k=1).hits[0].id) < ITEMS
    )
