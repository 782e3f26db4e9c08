"""The definition that ships with the package, against the one that the tests have."""

from __future__ import annotations

import itertools

import oracle
import pytest
import torch

from tempera.core.definition import defined_losses
from tempera.core.matryoshka import Matryoshka

WHOLE = [*(oracle.made(seed) for seed in range(2)), oracle.made(2, shared=True)]


@pytest.mark.parametrize("seed", range(2))
def test_both_definitions_say_the_same(seed: int) -> None:
    for parts, data in zip(oracle.sampled(70 + seed, 60), itertools.cycle(WHOLE)):
        got = defined_losses(oracle.objective_of(parts), oracle.batch_of(data))
        assert got == pytest.approx(oracle.losses(data, parts), rel=1e-11, abs=1e-11), parts


def test_what_a_batch_does_not_have_is_not_missed() -> None:
    data = oracle.made(3, bare=True)
    for parts in oracle.sampled(80, 30, bare=True):
        got = defined_losses(oracle.objective_of(parts), oracle.batch_of(data))
        assert got == pytest.approx(oracle.losses(data, parts), rel=1e-11, abs=1e-11), parts


def test_widths_are_added() -> None:
    objective = Matryoshka(oracle.objective_of(oracle.Parts()), (2, 5), (0.5, 2.0))
    batch = oracle.batch_of(WHOLE[0])
    torch.testing.assert_close(torch.tensor(defined_losses(objective, batch), dtype=torch.float64), objective(batch))
