"""Every part in combination with every other, against the definition in loops: losses of each row
to 1e-10."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import examples
import pytest
import torch
from examples import CHOICES, Parts
from torch import Tensor

from tempera.core import tiles
from tempera.core.batch import Batch
from tempera.core.corrections import Margin
from tempera.core.definition import defined_losses
from tempera.core.objective import Objective
from tempera.core.similarity import dot

WHOLE = [*(examples.made(seed) for seed in range(2)), examples.made(2, shared=True)]
BARE = examples.made(3, bare=True)
UNKNOWN = replace(WHOLE[0], known=None)
SPANS = (None, None, range(0, 3), range(2, 6), range(6, 7))

MASKS = list(itertools.product(CHOICES["same_id"], CHOICES["known"], CHOICES["guided"]))
CORRECTIONS = list(itertools.product(CHOICES["logq"], CHOICES["hardness"], CHOICES["margin"]))


def wrong(
    combinations: Iterable[tuple[Batch[Tensor], Parts, range | None]],
) -> tuple[int, list[str]]:
    """Return how many combinations there are, and which are off by more than 1e-10."""
    off, count = [], 0
    for batch, parts, span in combinations:
        objective = examples.objective_of(parts)
        losses, expected = (
            objective(replace(batch, span=span)).tolist(),
            defined_losses(objective, batch).tolist(),
        )
        expected = expected if span is None else expected[span.start : span.stop]
        assert len(losses) == len(expected)
        count += 1
        pairs = zip(losses, expected, strict=True)
        if not all(math.isfinite(a) and abs(a - b) <= 1e-10 * max(1, abs(b)) for a, b in pairs):
            off.append(f"{parts} rows {span}: {losses}, not {expected}")
    return count, off


@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize("seed", examples.SEEDS)
def test_a_sample_of_all_combinations(
    seed: int, fills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of vectors that are filled up with zeros, as oneDNN takes large ones."""
    monkeypatch.setattr(tiles, "onednn_takes", lambda *_: fills)
    chosen = zip(examples.sampled(seed, 120), itertools.cycle(WHOLE), itertools.cycle(SPANS))
    count, found = wrong((data, parts, span) for parts, data, span in chosen)
    assert count == 120
    assert found == []


@pytest.mark.parametrize("data", [BARE, UNKNOWN], ids=["pairs only", "nothing known"])
def test_a_sample_with_less_data(data: Batch[Tensor]) -> None:
    count, found = wrong((data, parts, None) for parts in examples.sampled(10, 50, bare=True))
    assert count == 50
    assert found == []


def test_one_row_and_two() -> None:
    """A row alone has no in-batch negative."""
    for n in (1, 2):
        data = examples.made(20 + n, n=n)
        assert wrong((data, parts, None) for parts in examples.sampled(n, 25))[1] == []
    alone = examples.made(21, n=1, bare=True)
    assert Objective()(alone).tolist() == [0.0]


def test_a_margin_that_float32_cannot_hold() -> None:
    batch = BARE
    plain, moved = (Objective(dot, 1.0, corrections=c)(batch) for c in ((), (Margin(0.7),)))
    odds = torch.expm1(plain) * math.exp(0.7)
    torch.testing.assert_close(moved, torch.log1p(odds), rtol=1e-12, atol=1e-12)


def every_classic() -> Iterator[tuple[Batch[Tensor], Parts, range | None]]:
    """The whole product of the parts that peers have too."""
    extra = examples.subsets(("negatives", "sampled", "queries", "back_queries", "back_positives"))
    rest = itertools.product(
        CHOICES["similarity"], (None, "classic"), (None, "others"), (False, True), (False, True), (None, "absolute"),
        CHOICES["partition"], CHOICES["hardest"], CHOICES["tile"],
    )  # fmt: skip
    for pools, (
        similarity,
        logq,
        hardness,
        margin,
        ids,
        guide,
        partition,
        hardest,
        tile,
    ) in itertools.product(extra, rest):
        chosen = ("docs", *pools)
        parts = Parts(
            similarity,
            chosen,
            logq,
            hardness,
            margin,
            ids,
            False,
            guide,
            partition,
            "one",
            hardest,
            tile,
        )
        if parts.allowed:
            yield WHOLE[1], parts, None


@pytest.mark.slow
def test_every_combination_of_the_classic_parts() -> None:
    count, found = wrong(every_classic())
    assert count == 10_240
    assert found[:5] == []


def every(
    same_id: bool, known: bool, guided: str | None
) -> Iterator[tuple[Batch[Tensor], Parts, range | None]]:
    """All pools x all corrections; what is left is drawn."""
    draw = random.Random(f"{same_id} {known} {guided}")
    for pools, correction in itertools.product(CHOICES["pools"], CORRECTIONS):
        kind, partition, numerator, hardest = (
            draw.choice(CHOICES[name])
            for name in ("similarity", "partition", "numerator", "hardest")
        )
        tile = draw.choice((None, None, None, None, None, 100))
        parts = Parts(
            kind, pools, *correction, same_id, known, guided, partition, numerator, hardest, tile
        )
        parts = parts if parts.allowed else replace(parts, partition="joint")
        yield draw.choice(WHOLE), parts, draw.choice(SPANS)


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS, ids=["-".join(map(str, mask)) for mask in MASKS])
def test_every_combination_of_pools_corrections_and_masks(
    mask: tuple[bool, bool, str | None],
) -> None:
    count, found = wrong(every(*mask))
    assert count == 192 * 24
    assert found[:5] == []


@pytest.mark.parametrize("data", WHOLE)
def test_the_data_make_every_part_matter(data: Batch[Tensor]) -> None:
    """A part that changes nothing here would not be tested by the combinations."""
    base = Parts(pools=examples.POOLS)
    plain = examples.defined(data, base).tolist()

    def moved(**changes: object) -> int:
        changed = examples.defined(data, replace(base, **changes)).tolist()
        return sum(abs(a - b) > 1e-6 for a, b in zip(plain, changed, strict=True))

    for name, values in CHOICES.items():
        if name not in ("tile", "partition", "pools"):
            assert all(moved(**{name: value}) >= 2 for value in values[1:]), name
    for pool in examples.POOLS:
        assert moved(pools=tuple(name for name in examples.POOLS if name != pool)) >= 2, pool
    # Masked positives: what is left out somewhere is a positive elsewhere.
    both = replace(base, same_id=True, known=True)
    assert not examples.defined(data, both).equal(
        examples.defined(data, replace(both, numerator="mean"))
    )
    owners = data.negatives.owner.tolist()
    assert sorted(owners.count(i) for i in range(len(data))) == [0, 0, 1, 1, 2, 2, 3]
