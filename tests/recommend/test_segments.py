"""Runs of events that share a history: each event once an epoch, from the seed and the step
alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tempera.errors import ConfigError
from tempera.recommend.read.division import LeaveLastOut
from tempera.recommend.read.timeline import Timeline
from tempera.recommend.train.segments import Contexts, Segments

LENGTHS = [1, 40, 3, 16, 17, 5, 90, 2, 33, 8, 64, 31]


def timeline(lengths: list[int], **about) -> Timeline:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Timeline(None, None, offsets, np.zeros(offsets[-1], np.int32), **about)


def runs(events: list[int], user: list[int]) -> list[list[int]]:
    """Cut where an event does not follow the one before it."""
    found: list[list[int]] = []
    for k in events:
        if found and k == found[-1][-1] + 1 and user[k] == user[k - 1]:
            found[-1].append(k)
        else:
            found.append([k])
    return found


@pytest.mark.parametrize("targets", [1, 4, 16])
@pytest.mark.parametrize("batch_size", [2, 7, 64, 150])
def test_every_event_once_an_epoch(batch_size: int, targets: int) -> None:
    """No event waits for another epoch, and batches differ by at most one event."""
    counts = np.array(LENGTHS) - 1
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    segments = Segments(offsets, counts, batch_size, seed=3, targets=targets)
    training = [k for start, count in zip(offsets, counts) for k in range(start, start + count)]
    many = segments.batches_per_epoch
    assert many == math.ceil(len(training) / batch_size)
    for epoch in range(6):
        batches = [batch.tolist() for batch in segments(epoch * many, (epoch + 1) * many)]
        assert {len(batch) for batch in batches} <= {
            len(training) // many,
            -(-len(training) // many),
        }
        assert sorted(k for batch in batches for k in batch) == training


def test_runs_are_of_one_user_and_as_long_as_they_can_be() -> None:
    line = timeline([100] * 40)
    segments = Segments.of(line, np.ones(4000, bool), batch_size=4000, seed=0)
    user = line.user_of(np.arange(4000)).tolist()
    starts = []
    for (batch,) in (segments(epoch, epoch + 1) for epoch in range(20)):
        found = runs(batch.tolist(), user)
        short = [run for run in found if len(run) < 16]
        assert all(
            run[0] % 100 == 0 or run[-1] % 100 == 99 for run in short
        )  # at an end of its user
        assert len(found) <= 40 * 8
        starts += [run[0] % 100 for run in found if 0 < run[0] % 100 < 17]
    counts = np.bincount(starts, minlength=17)[1:]
    assert counts.min() > 20 and counts.max() < 90  # 800 users' first cuts, anywhere


def test_steps_are_reached_without_those_before() -> None:
    segments = Segments(np.array([0, 500, 900]), np.array([500, 400]), 32, seed=5)
    whole = [batch.tolist() for batch in segments(0, 3 * segments.batches_per_epoch)]
    for first in (0, 1, 27, 28, 29, 55, 83):
        assert [batch.tolist() for batch in segments(first, first + 1)] == [whole[first]]
    assert [batch.tolist() for batch in segments(20, 70)] == whole[20:70]
    assert whole[:28] != whole[28:56]
    other = Segments(np.array([0, 500, 900]), np.array([500, 400]), 32, seed=6)
    assert [batch.tolist() for batch in other(0, 28)] != whole[:28]


def test_held_out_events_are_not_given_out() -> None:
    line = Timeline.of([i // 10 for i in range(200)], list(range(200)))
    division = LeaveLastOut()(line)
    segments = Segments.of(line, division.train, 32, seed=0)
    given = torch.cat(list(segments(0, 50)))
    assert (
        division.train[given.numpy()].all() and len(given.unique()) == division.train.sum() == 160
    )


def test_a_batch_has_to_fit() -> None:
    with pytest.raises(ConfigError, match="has 5 pairs"):
        Segments(np.array([0, 5]), np.array([5]), 6, seed=0)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("last", "targets"), [(1, 1), (5, 4), (50, 16), (3, 16)])
def test_contexts(last: int, targets: int, strict: bool) -> None:
    """Against loops: a run is cut after so many targets; all of a piece start where the first of it
    does."""
    line = timeline(LENGTHS, time=np.arange(sum(LENGTHS)) // 3, strict_time=strict)
    user = line.user_of(np.arange(len(line))).tolist()
    generator = np.random.default_rng(0)
    pieces = [list(range(k, min(k + 20, len(line)))) for k in generator.integers(0, len(line), 30)]
    events = [k for piece in pieces for k in piece]
    start, stop = Contexts(line, last, targets)(torch.tensor(events))
    position = 0
    for run in runs(events, user):
        for i, k in enumerate(run):
            begin = int(line.offsets[user[k]])
            stops = {
                j: next(m for m in range(begin, j + 1) if m == j or (strict and m // 3 == j // 3))
                for j in run
            }
            lead = run[i - i % targets]
            assert stop[position] == stops[k] and start[position] == max(begin, stops[lead] - last)
            position += 1
    assert position == len(events)


def test_contexts_of_events_that_do_not_follow_each_other() -> None:
    line = timeline([10, 10])
    start, stop = Contexts(line, last=3)(torch.tensor([9, 4, 12, 10, 0, 19]))
    assert (start.tolist(), stop.tolist()) == ([6, 1, 10, 10, 0, 16], [9, 4, 12, 10, 0, 19])
    start, _ = Contexts(line, last=3)(torch.tensor([8, 9, 10, 11]))  # of two users
    assert start.tolist() == [5, 5, 10, 10]
