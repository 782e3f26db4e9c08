"""Cautions at the end of a run: each fires on what it is about, and none on a healthy run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tempera.io.ids import content_ids
from tempera.options.build import build
from tempera.options.yaml_options import load
from tempera.ranking.compare import Difference
from tempera.recommend.judge.item_showcase import RECOMMENDER
from tempera.run.alarms import doubts
from tempera.run.publish import _ahead
from tempera.task.verdict import FUSED
from tempera.text.judge.text_showcase import TEXTS
from tempera.text.text_world import learned_also

from ..conftest import write_pairs

ABOVE = {"bm25": Difference(0.1, 0.05, 0.15, 0.95)}


def records(
    steps: int = 200, last: float = 1.0, values: tuple[float, ...] = (0.2, 0.4, 0.5, 0.5)
) -> list[dict[str, Any]]:
    """A log of steps whose loss falls evenly from 4, and of looks."""
    losses = [4 + (last - 4) * i / max(1, steps - 1) for i in range(steps)]
    taken = [{"event": "step", "step": i + 1, "loss": loss} for i, loss in enumerate(losses)]
    looks = [
        {"event": "evaluation", "step": 10 * i, "metrics": {"ndcg@10": value}}
        for i, value in enumerate(values)
    ]
    return [*taken, *looks]


def said(
    log: list[dict[str, Any]], rivals: dict[str, Difference] | None = None, *options: str
) -> list[str]:
    config = build(load(None, ["train.batch_size=64", *options]))
    return list(doubts(config, log, ABOVE if rivals is None else rivals, TEXTS))


@pytest.mark.parametrize(
    ("log", "rivals"),
    [
        (records(), None),
        (records(50), None),
        (records(), {}),
        (records(last=0.01), None),  # the loss is near 0, and validation has not fallen
        (records(last=0.01, values=(0.2, 0.5, 0.497)), None),  # as little as chance moves it
        (records(values=(0.2, 0.5, 0.4)), None),  # validation fell, and there is loss left
        (
            records(last=0.01, values=(0.5, 0.4, 0.3)),
            None,
        ),  # the untrained model is the best, which the run says itself
        (records(values=()), None),
    ],
)
def test_healthy_runs(log: list[dict[str, Any]], rivals: dict[str, Difference] | None) -> None:
    assert said(log, rivals) == []


def test_few_test_queries() -> None:
    config = build(load(None, ["train.batch_size=64"]))
    few = [
        list(doubts(config, records(), ABOVE, TEXTS, queries=queries)) for queries in (0, 1, 9, 10)
    ]
    says = (
        "all figures are of 1 test query, too few to tell one system from another: give more data"
    )
    assert few == [[], [says], [says.replace("1 test query", "9 test queries")], []]


def test_a_model_that_has_learned_before_needs_fewer_steps() -> None:
    options = None, "tower.kind=pretrained", "tower.model=models/x"
    assert said(records(15), *options) == []
    assert said(records(14), *options)[0].startswith(
        "the run took 14 optimiser steps, which is too few to learn much"
    )


def test_few_steps() -> None:
    assert said(records(4)) == [
        "the run took 4 optimiser steps, which is too few to learn much: train on more data, raise train.num_train_epochs, "
        "or lower train.batch_size"
    ]
    assert said(records(1), None, "train.max_steps=1", "train.batch_size=8")[0].endswith(
        "raise train.max_steps, or lower train.batch_size"
    )


def test_overfitting() -> None:
    (text,) = said(records(last=0.01, values=(0.2, 0.5, 0.45)))
    assert text.startswith(
        "the model overfitted: the loss fell to 0.01, and validation nDCG@10 from 0.500 after step 10 to 0.450; the best weights "
    )
    (text,) = said(records(last=0.01, values=(0.2, 0.5, 0.45)), None, "train.keep_best=false")
    assert "0.450; lower train.num_train_epochs" in text
    (text,) = said(records(40, last=0.01, values=(0.2, 0.5, 0.45)))
    assert (
        "too few to learn much" in text
    )  # which it is told alone: to train longer and shorter is no advice


@pytest.mark.parametrize(
    ("values", "unfinished"),
    [
        ((0.2, 0.40, 0.42, 0.45, 0.46, 0.47), True),
        ((0.2, 0.40, 0.42, 0.465, 0.466, 0.47), False),  # the last two fifths brought little
        ((0.2, 0.40, 0.42, 0.45, 0.47, 0.47), False),  # it ended before
        ((0.2, 0.5), False),
    ],
)
def test_a_run_that_validation_has_not_ended(values: tuple[float, ...], unfinished: bool) -> None:
    texts = said(records(values=values), None, "train.max_steps=200")
    rise = "validation nDCG@10 rose from 0.450 after step 30 to 0.470 at the end: a longer run may be better; raise "
    assert texts == [f"{rise}train.max_steps"] * unfinished
    assert said(records(values=values)) == [f"{rise}train.num_train_epochs"] * unfinished
    config = build(load(None, ["train.batch_size=64"]))
    assert not [
        *doubts(config, records(values=values), ABOVE, TEXTS, chooses=False)
    ]  # which is too few to tell


def test_patience_is_no_advice_where_validation_cannot_choose() -> None:
    log = records(last=0.01, values=(0.2, 0.5, 0.45))
    config = build(load(None, ["train.batch_size=64"]))
    texts = [
        next(iter(doubts(config, log, ABOVE, TEXTS, chooses=chooses))) for chooses in (True, False)
    ]
    assert ["train.patience=2" in text for text in texts] == [True, False]


@pytest.mark.parametrize(
    ("difference", "beginning"),
    [
        (
            Difference(-0.1, -0.15, -0.05, 0.95),
            "the trained model is worse than BM25: nDCG@10 -0.100 (95 % interval -0.150",
        ),
        (
            Difference(0.01, -0.02, 0.04, 0.95),
            "the trained model is not shown to be better than BM25: nDCG@10 +0.010",
        ),
    ],
)
def test_no_better_than_words(difference: Difference, beginning: str) -> None:
    (text,) = said(records(), {"popularity": ABOVE["bm25"], "bm25": difference})
    assert text.startswith(beginning)
    assert ("raise evaluation.queries" in text) == (difference.high > 0)


def test_a_few_queries_do_not_show_that_a_model_is_worse() -> None:
    """The interval of one query has no width."""
    config, below = (
        build(load(None, ["train.batch_size=64"])),
        {"bm25": Difference(-1.0, -1.0, -1.0, 0.95)},
    )
    few, text = doubts(config, records(), below, TEXTS, queries=1)
    assert few.startswith("all figures are of 1 test query, too few to tell")
    assert text.startswith("the trained model is not shown to be better than BM25: nDCG@10 -1.000")


def test_a_recommender_is_not_sent_to_a_pretrained_model() -> None:
    below = {"EASE": Difference(-0.01, -0.02, 0.01, 0.95)}
    (text,) = doubts(
        build(load(None, ["train.batch_size=64"])),
        records(),
        below,
        RECOMMENDER,
        "recommend with --hybrid",
    )
    assert text.endswith(
        "); train on more data, or for more epochs; until then, recommend with --hybrid"
    )


@pytest.mark.parametrize(
    ("both", "bm25", "ahead"),
    [(0.6, 0.55, True), (0.6, 0.6, True), (0.6, 0.65, False), (0.4, 0.3, False)],
)
def test_both_together_are_advised_where_neither_part_is_better(
    both: float, bm25: float, ahead: bool
) -> None:
    means = {"untrained": 0.2, "bm25": bm25, "trained": 0.5, FUSED: both}
    systems = {name: SimpleNamespace(metrics={"ndcg@10": mean}) for name, mean in means.items()}
    assert _ahead(cast(Any, systems), FUSED, "ndcg@10") == ahead
    assert not _ahead(cast(Any, {"trained": systems["trained"]}), FUSED, "ndcg@10")


def test_other_data_that_are_trained_on(tmp_path: Path) -> None:
    """Queries are compared by their contents; graded pairs have none."""
    rows = [{"query": f"question {i}", "doc": f"answer {i}"} for i in range(12)]
    known, new = (
        write_pairs(tmp_path / f"{name}.jsonl", part)
        for name, part in (("known", rows[:8]), ("new", rows[8:]))
    )
    graded = {"sentence1": ["question 1", "b"], "sentence2": ["c", "d"], "score": [0.0, 1.0]}
    parquet.write_table(pa.table(graded), tmp_path / "graded.parquet")
    also = [str(known), str(new), str(tmp_path / "graded.parquet")]
    trained = {"trained.npy": np.array(content_ids(["question 2", "question 3", "question 99"]))}
    assert [*learned_also(also, trained)] == [
        f"the run trains on 2 of the 8 queries of {known} (evaluation.also), so that the figures there are too good: give queries "
        "that it does not train on"
    ]
    assert [*learned_also(also, {})] == []
