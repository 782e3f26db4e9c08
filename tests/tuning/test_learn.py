"""A learning curve trains on nested parts of the pairs, asks the same test each time, and goes on
by a power law."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tempera.errors import ConfigError
from tempera.experiments import one_run
from tempera.experiments.record import Record
from tempera.experiments.result import Point
from tempera.tuning.learn import halves, learn
from tempera.tuning.learning_curve import LearningCurve, PowerLaw, resampled_scores

pytestmark = pytest.mark.usefixtures("inline")
SIZES = np.array([100.0, 200, 400, 800])


def test_a_power_law_is_found_and_goes_on() -> None:
    truth = [0.8 - 3 * SIZES**-0.35, 0.1 * np.log(SIZES), np.full(4, 0.4), 0.9 - 0.1 * SIZES / 800]
    law = PowerLaw.fit(SIZES, np.array(truth))
    assert law.exponent[:2] == pytest.approx([0.35, 0.0])
    more = [0.8 - 3 * 1600**-0.35, 0.1 * np.log(1600), 0.4]
    assert law.at(1600)[:3] == pytest.approx(more, abs=1e-9)
    assert law.slope[3] == 0  # more pairs are never expected to harm


def test_a_law_that_changes_is_fitted_to_the_largest_sizes_too() -> None:
    scores = np.tile([0.3, 0.3, 0.3, 0.4], (200, 1))
    laws = PowerLaw.of_resamples(SIZES, scores)
    assert (
        laws.slope.shape == (200,) and len(np.unique(laws.slope.round(6))) == 2
    )  # of three sizes, and of four
    assert len(np.unique(PowerLaw.of_resamples(SIZES[1:], scores[:, 1:]).slope.round(6))) == 1


def test_a_resample_draws_the_same_queries_for_all_sizes_and_seeds_for_each() -> None:
    draw = np.random.default_rng(0)
    queries = draw.random((1, 60))
    one = resampled_scores([queries, queries + 0.1], draws=300)
    assert one[0] == pytest.approx([queries.mean(), queries.mean() + 0.1])
    assert one[:, 1] - one[:, 0] == pytest.approx(np.full(301, 0.1))
    seeds = np.array([[0.4], [0.6]]) + np.zeros(
        (2, 60)
    )  # nothing but their noise: the error of the mean is 0.1
    assert resampled_scores([seeds], draws=4000)[1:].std() == pytest.approx(0.1, rel=0.05)


def curve(sizes: list[int], queries: int = 40) -> LearningCurve:
    draw = np.random.default_rng(1)
    asked = draw.normal(0, 0.1, queries)
    points = []
    for size in sizes:
        scores = 0.1 * np.log(size) + asked + draw.normal(0, 0.02, queries)
        record = Record(
            {"train.max_pairs": size},
            per_query=scores.tolist(),
            metrics={"ndcg@10": float(scores.mean())},
        )
        points.append(Point((record,)))
    return LearningCurve(Path("out"), "ndcg@10", (0,), tuple(points), 1000)


def test_the_gain_has_an_interval_that_holds_it() -> None:
    made = curve([500, 4000, 1000, 2000])
    assert made.sizes == (500, 1000, 2000, 4000)
    gain = made.gain
    assert gain is not None and gain.low < 0.1 * np.log(5000 / 4000) < gain.high < 0.03
    last = made.sentence.splitlines()[-1]
    assert last.startswith("by extrapolation: 1,000 more pairs (4,000 -> 5,000): +0.0")
    assert last.count("+0.0") == 3 and "nDCG@10 [" in last
    assert (
        made.json()["gain"]["mean"] == gain.mean and str(made).splitlines()[1].split()[0] == "500"
    )


def test_no_score_is_expected_above_1() -> None:
    draw = np.random.default_rng(2)
    points = []
    for size, score in ((100, 0.8), (200, 0.88), (400, 0.95), (800, 0.99)):
        noise = draw.normal(0, 0.02, 3)  # of three seeds
        runs = [
            Record(
                {"train.max_pairs": size}, per_query=[score + off] * 40, metrics={"ndcg@10": score}
            )
            for off in noise
        ]
        points.append(Point(tuple(runs)))
    made = LearningCurve(Path("out"), "ndcg@10", (0, 1, 2), tuple(points), 10**6)
    assert made.law is not None and made.law.level.max() + made.law.slope.max() > 1, (
        "the law alone would go on"
    )
    assert made.gain is not None and made.gain.low >= 0
    assert (
        made.scores[:, -1].mean() + made.gain.high <= 1 + 0.02
        and max(each.high for each in made.intervals) <= 1
    )
    assert float(made.law.at(10**6).max()) == 1


def test_two_sizes_are_not_extrapolated() -> None:
    made = curve([500, 1000])
    assert made.gain is None and made.json()["gain"] is None
    assert made.sentence.splitlines()[-1] == (
        "2 sizes cannot be extrapolated: a power law has three parameters; give at least 3 with --sizes"
    )


def test_sizes_are_halved_down_to_fifty() -> None:
    assert halves(4000) == [125, 250, 500, 1000, 2000, 4000]
    assert halves(120) == [60, 120] and halves(30) == [30]


def test_sizes_train_on_nested_pairs_and_ask_the_same_test(
    small: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    splits = []
    inner = one_run.Trainings.read

    def watched(self: Any, job: Any) -> Any:
        read = inner(self, job)
        splits.append(read.task.data.texts.split)
        return read

    monkeypatch.setattr(one_run.Trainings, "read", watched)
    overrides = ["train.batch_size=16", "train.max_steps=2"]
    made = learn(small, [40, 80, 160], 100, 1, tmp_path / "out", overrides)
    assert [len(split.train) for split in splits] == [40, 80, 160]
    assert set(splits[0].train) < set(splits[1].train) < set(splits[2].train)
    assert all(np.array_equal(split.test, splits[0].test) for split in splits)
    assert all(np.array_equal(split.corpus, splits[0].corpus) for split in splits)
    tests = splits[0].queries(splits[0].test)
    assert [len(record.per_query) for record in made.records] == [tests] * 3
    assert made.sizes == (40, 80, 160) and made.gain is not None
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "points.csv",
        "points.jsonl",
        "learn.svg",
        "learn.png",
    }
    caplog.clear()
    learn(small, [40, 80], 100, 1, tmp_path / "out", overrides)  # nothing is made again
    assert len(splits) == 3
    assert (
        caplog.messages[0]
        == "no gain of more pairs can be estimated from 2 of --sizes: give at least 3"
    )


@pytest.mark.parametrize(
    ("options", "sizes", "message"),
    [
        (
            {"evaluation": {"queries": 0}},
            [],
            "evaluation.queries is 0, but a learning curve is measured on test queries",
        ),
        ({}, [50, 4000], "--sizes 50,4000: give numbers from 2 to"),
        (
            {},
            [50, 50],
            "--sizes 50 is one size; a learning curve needs two sizes or more, such as --sizes ",
        ),
        (
            {"train": {"max_pairs": 2}},
            [],
            "the data leave 2 of .* pairs to train on; a learning curve .*: give more pairs",
        ),
        (
            {"train": {"refit": "all"}},
            [],
            "train.refit is all, which trains on held-out pairs, too",
        ),
        (
            {"train": {"max_pairs": 60}},
            [],
            "half of 60 training pairs is below 50; .* such as --sizes 30,60",
        ),
        (
            {"data": {"source": "interactions", "path": "x"}, "tower": {"kind": "features"}},
            [],
            "needs pairs of texts",
        ),
    ],
)
def test_what_has_no_curve_is_refused(
    small: dict[str, Any], tmp_path: Path, options: dict[str, Any], sizes: list[int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        learn({**small, **options}, sizes, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_interactions_have_no_number_of_pairs(recommender: dict[str, Any], tmp_path: Path) -> None:
    from tempera.run.train import train

    with pytest.raises(
        ConfigError,
        match=r"train.max_pairs is for pairs of texts, and data has interactions: remove it",
    ):
        train(recommender, tmp_path / "out", ["train.max_pairs=50"])
