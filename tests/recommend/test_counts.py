"""Counts and vectors fused against their definition, and the table that a run keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from scipy import sparse

from tempera.errors import DataError
from tempera.ranking.fusion import Fusion
from tempera.recommend.judge.baselines import ItemToItem, Observed, Transitions
from tempera.recommend.judge.counts import COUNTS, Counting, open_counts
from tempera.recommend.judge.full_catalogue import Histories
from tempera.towers.stamp import beside

DRAW = np.random.default_rng(3)
ITEMS, QUERIES = 6, 4
WEIGHTS = np.where(DRAW.random((ITEMS, ITEMS)) < 0.5, DRAW.random((ITEMS, ITEMS)), 0).astype(
    np.float32
)
VECTORS = DRAW.normal(size=(QUERIES, ITEMS + 1)).astype(
    np.float32
)  # an item is newer than the counts
ASKED = [[0, 2], [], [5, 1, 4], [3]]
HISTORIES = Histories.of(
    np.array([i for row in ASKED for i in row]), np.cumsum([0, *map(len, ASKED)])
)


def counting(**options: object) -> Counting:
    return replace(
        Counting("transitions", ItemToItem(sparse.csr_array(WEIGHTS), 2, 0.5), Fusion(0.3, 60)),
        **options,
    )


@pytest.mark.parametrize("weight", [None, 0.0, 0.6, 1.0])
def test_a_fused_score_is_the_weighted_mean_of_both_standardised(weight: float | None) -> None:
    def standardised(values: list[float]) -> list[float]:
        mean = sum(values) / len(values)
        deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
        return [(value - mean) / deviation if deviation else 0.0 for value in values]

    w, expected = 0.3 if weight is None else weight, []
    for row, history in zip(VECTORS.tolist(), ASKED):
        counts = [
            sum(0.5**g * float(WEIGHTS[i, j]) for g, i in enumerate(history[::-1][:2]))
            for j in range(ITEMS)
        ]
        both = zip(standardised(row), standardised([count**0.5 for count in [*counts, 0.0]]))
        expected.append(
            [w * first + (1 - w) * second for first, second in both]
            if history
            else standardised(row)
        )
    np.testing.assert_allclose(counting().fused(VECTORS, HISTORIES, weight), expected, atol=1e-5)
    newer = Histories.of(
        np.array([2, ITEMS, ITEMS + 4]), np.array([0, 2, 3])
    )  # of items that are newer than the counts
    kept = counting().fitted.scores(newer)
    np.testing.assert_allclose(kept, [0.5 * WEIGHTS[2], np.zeros(ITEMS)], atol=1e-7)
    blocks = counting().by_history(lambda rows: VECTORS[rows], HISTORIES, weight)
    assert np.array_equal(blocks(slice(1, 3)), counting().fused(VECTORS, HISTORIES, weight)[1:3])


@pytest.mark.parametrize(
    ("weight", "ranks"),
    [
        (0.0, "transitions alone"),
        (0.3, "the vectors and transitions together"),
        (1.0, "the vectors alone"),
    ],
)
def test_what_ranks_is_named_by_its_weight(weight: float, ranks: str) -> None:
    assert counting(fusion=Fusion(weight, 60)).ranks == ranks


@pytest.mark.parametrize(
    ("vectors", "best", "served"), [(0.3, 0.5, True), (0.6, 0.5, True), (0.9, 1.0, False)]
)
def test_both_are_served_only_if_validation_shows_them_to_be_better(
    vectors: float, best: float, served: bool
) -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 100)
    chosen = counting().chosen({0.0: noise + 0.2, 0.5: noise + 0.7, 1.0: noise + vectors})
    assert chosen.fusion == Fusion(best, 100) and chosen.served == served
    level = counting().chosen({0.0: noise, 0.5: noise + 0.7, 1.0: noise[::-1] + 0.7})
    assert level.fusion.weight == 0.5 and not level.served


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    item = DRAW.integers(0, ITEMS, 40).astype(np.int32)
    fitted = Transitions(last=None).fit(
        Observed(item, np.arange(0, 41, 8), ITEMS, np.ones(40, bool))
    )
    one = counting(fitted=fitted, served=True)
    parquet.write_table(one.table(), tmp_path / COUNTS)
    again = open_counts(tmp_path, ITEMS + 1, "own")
    assert again is not None and (again.system, again.fusion, again.served) == (
        "transitions",
        Fusion(0.3, 60),
        True,
    )
    assert np.array_equal(again.fused(VECTORS, HISTORIES), one.fused(VECTORS, HISTORIES))
    assert open_counts(tmp_path / "nothing", ITEMS, "own") is None
    parquet.write_table(beside(one.table(), "own"), tmp_path / COUNTS)
    assert open_counts(tmp_path, ITEMS, "own") is not None
    with pytest.raises(
        DataError,
        match=r"counts.parquet is of another run: it belongs to the model own, and the model",
    ):
        open_counts(tmp_path, ITEMS, "other")
    with pytest.raises(
        DataError, match=r"counts.parquet is damaged: it counts 6 items, and the run has 5"
    ):
        open_counts(tmp_path, ITEMS - 1, "own")


def test_damaged_tables_are_refused(tmp_path: Path) -> None:
    table = counting().table()
    wrong = table["items"].combine_chunks()
    items = pa.LargeListArray.from_arrays(
        wrong.offsets, pa.array(np.full(len(wrong.values), ITEMS, np.int32))
    )
    for damaged, why in (
        (table.set_column(0, "items", items), "names items or weights that cannot be"),
        (
            table.slice(0, 3).set_column(1, "weights", table["weights"].slice(1, 3)),
            "do not belong together",
        ),
        (table.replace_schema_metadata({}), "tempera.counts"),
    ):
        parquet.write_table(damaged, tmp_path / COUNTS)
        with pytest.raises(DataError, match=f"counts.parquet is damaged: .*{why}"):
            open_counts(tmp_path, ITEMS, "own")
