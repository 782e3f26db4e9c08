"""A recommender's table against the same numbers counted query by query."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tempera.errors import ConfigError, DataError
from tempera.ranking.compare import SCORES, bootstrap, compare
from tempera.recommend.judge.baselines import BASELINES, Observed, by_history
from tempera.recommend.judge.full_catalogue import Histories, rank
from tempera.recommend.judge.judgement import Recommended
from tempera.recommend.judge.leads import winner
from tempera.recommend.judge.popularity import Popularity, coverage, exposure, gini

ITEMS, QUERIES = 30, 60
NAMES = ("hit@3", "ndcg@5", "mrr@30")


def case(seed: int = 0) -> tuple[np.ndarray, np.ndarray, Histories, Popularity, np.ndarray]:
    """Scores, targets, histories of 0 to 130 items, popularity, and the user of each query."""
    generator = np.random.default_rng(seed)
    lengths = generator.choice([0, 1, 2, 5, 6, 20, 21, 130], QUERIES)
    seen = Histories.of(
        generator.integers(0, ITEMS, lengths.sum()), np.concatenate([[0], lengths.cumsum()])
    )
    scores = generator.integers(0, 9, (QUERIES, ITEMS)).astype(np.float32)
    counts = generator.integers(0, 50, ITEMS)
    return (
        scores,
        generator.integers(0, ITEMS, QUERIES),
        seen,
        Popularity(counts),
        generator.integers(0, 17, QUERIES),
    )


def judged(seed: int = 0, by_user: bool = False, k: int = 4) -> Recommended:
    scores, target, seen, popularity, users = case(seed)
    return Recommended.of(
        lambda rows: scores[rows].copy(),
        target,
        seen,
        popularity,
        NAMES,
        users if by_user else None,
        k,
    )


def test_systems_that_answer_alike_are_named_together() -> None:
    """As the vectors alone and both together, where these have a weight of 1; their difference of 0
    tells nothing."""
    trained, below = judged(0), judged(3)
    said = winner({"EASE": below, "trained": trained, "trained + counting": judged(0)}, "next")
    assert said.startswith(
        "trained and trained + counting are not shown to be the best on the test (next, 60 queries)"
    )
    assert said.endswith("] over EASE; EASE 0.133")
    alone = winner({"EASE": below, "trained": trained, "popularity": judged(3)}, "next")
    assert alone.startswith("trained is not") and alone.endswith(
        "] over EASE; EASE 0.133, popularity 0.133"
    )
    assert winner({"a": trained, "b": judged(0)}, "next").endswith(
        "+0.000 [-0.043, +0.043] over b; b 0.233"
    )


def test_every_row_is_the_mean_of_its_queries() -> None:
    scores, target, seen, popularity, _ = case()
    found = judged()
    ranks = rank(lambda rows: scores[rows].copy(), ITEMS, target, seen)
    tiers = popularity.tiers[target].tolist()
    lengths = seen.lengths.tolist()
    ranges = {
        "history 0": (0, 0),
        "history 1-5": (1, 5),
        "history 6-20": (6, 20),
        "history 21-100": (21, 100),
    }
    which = {"all": list(range(QUERIES))}
    which |= {
        name: [q for q in range(QUERIES) if tiers[q] == t]
        for t, name in enumerate(("head", "middle", "tail"))
    }
    which |= {
        name: [q for q in range(QUERIES) if a <= lengths[q] <= b] for name, (a, b) in ranges.items()
    }
    which["history 101+"] = [q for q in range(QUERIES) if lengths[q] > 100]
    assert (
        all(which.values()) and sum(len(v) for k, v in which.items() if "history" in k) == QUERIES
    )
    assert [(row.seen, row.which, row.queries) for row in found.rows] == [
        (seen, name, len(queries))
        for seen in ("excluded", "included")
        for name, queries in which.items()
    ]
    for row in found.rows:
        r = (ranks.excluded if row.seen == "excluded" else ranks.included)[
            which[row.which]
        ].tolist()
        expected = {
            "hit@3": sum(x <= 3 for x in r) / len(r),
            "ndcg@5": sum(1 / np.log2(x + 1) for x in r if x <= 5) / len(r),
            "mrr@30": sum(1 / x for x in r) / len(r),
        }
        assert {name: value.mean for name, value in row.metrics.items()} == pytest.approx(expected)
        assert all(value.low <= value.mean <= value.high for value in row.metrics.values())
    assert (ranks.excluded != ranks.included).any()


def test_intervals_are_of_queries_or_of_users() -> None:
    alone, together = judged(), judged(by_user=True)
    assert (
        list(alone.intervals())
        == list(alone.per_query)
        == [*NAMES, *(f"{name}, seen included" for name in NAMES)]
    )
    assert alone.metrics == {name: values.mean() for name, values in alone.per_query.items()}
    for name, found in alone.intervals().items():
        one = bootstrap(alone.per_query[name], draws=1000, bounds=SCORES)
        assert (found.mean, found.low, found.high) == pytest.approx((one.mean, one.low, one.high))
        other = together.intervals()[name]
        assert other.mean == pytest.approx(found.mean) and (other.low, other.high) != (
            found.low,
            found.high,
        )


def test_what_the_lists_hold() -> None:
    found = judged()
    top, popularity = found.ranks.top, found.popularity
    full = [row[row >= 0].tolist() for row in top]
    assert {len(row) for row in full} >= {1, 4}  # who has had everything is shown the item to find
    tiers = popularity.tiers.tolist()
    for tier, name in enumerate(("head", "middle", "tail")):
        share = [sum(tiers[i] == tier for i in row) / len(row) for row in full]
        assert found.lists[name].mean == pytest.approx(np.mean(share))  # type: ignore[union-attr]
    novelty = [np.mean([popularity.information[i] for i in row]) for row in full]
    assert found.lists["novelty"].mean == pytest.approx(np.mean(novelty))  # type: ignore[union-attr]
    shown = exposure(top, ITEMS)
    assert (found.lists["coverage"], found.lists["gini"]) == (coverage(shown), gini(shown))


def test_one_against_another() -> None:
    one, other = judged(0), judged(0)
    same = one.against(other)
    assert not any(found.real or found.difference.mean for found in same.values())
    scores, target, seen, popularity, users = case()
    scores[np.arange(QUERIES), target] += 5
    for by_user in (None, users):
        better = Recommended.of(
            lambda rows: scores[rows].copy(), target, seen, popularity, NAMES, by_user
        )
        found = better.against(one)["hit@3"]
        assert found.real and found.queries == QUERIES
        mean = (better.per_query["hit@3"] - one.per_query["hit@3"]).mean()
        assert found.difference.mean == pytest.approx(mean)
    per_user = [better.per_query["hit@3"][users == u].sum() for u in sorted(set(users.tolist()))]
    less = [one.per_query["hit@3"][users == u].sum() for u in sorted(set(users.tolist()))]
    scale = len(per_user) / QUERIES
    expected = compare({"x": np.array(per_user) * scale}, {"x": np.array(less) * scale}, 1000)["x"]
    assert found.p == expected.p and found.difference.low == pytest.approx(expected.difference.low)


def test_the_table_says_what_the_rows_say() -> None:
    found = judged()
    lines = str(found).splitlines()
    assert lines[0] == (
        "60 queries, 30 items; rank = 1 + items with a higher score + items with an equal score and a smaller code"
    )
    assert sum(line.startswith("seen items") for line in lines) == 2
    for row in found.rows:
        cell = f"{row.metrics['ndcg@5'].mean:.4f}".removeprefix("0")
        assert any(
            line.split()[: len(row.which.split())] == row.which.split() and cell in line
            for line in lines
        )
    assert f"  coverage of the catalogue        {found.lists['coverage']:.4f}" in lines
    assert "lists of 4" in lines and max(map(len, lines)) <= 132
    assert "lists of" not in str(judged(k=0))


def test_json() -> None:
    found = judged()
    document = json.loads(json.dumps(found.json()))
    assert {key: document[key] for key in ("queries", "items", "depth")} == {
        "queries": 60,
        "items": 30,
        "depth": 4,
    }
    first = document["rows"][0]
    assert (first["seen"], first["which"], first["queries"]) == ("excluded", "all", 60)
    assert first["metrics"]["hit@3"]["mean"] == found.per_query["hit@3"].mean()
    assert document["lists"]["gini"] == found.lists["gini"] and "low" in document["lists"]["tail"]
    assert json.loads(json.dumps(judged(k=0).json()))["lists"] == {}


def test_baselines_beside_a_model() -> None:
    generator = np.random.default_rng(0)
    item = generator.integers(0, ITEMS, 200).astype(np.int32)
    offsets = np.arange(0, 201, 10)
    train = np.tile(np.arange(10) < 9, 20)
    events = Observed(item, offsets, ITEMS, train)
    seen = Histories(item, offsets[:-1], offsets[1:] - 1)
    target = item[offsets[1:] - 1].astype(np.int64)
    popularity = Popularity(events.counts)
    found = {
        name: Recommended.of(
            by_history(baseline.fit(events), seen), target, seen, popularity, NAMES
        )
        for name, baseline in BASELINES.items()
    }
    assert len({tuple(system.ranks.excluded.tolist()) for system in found.values()}) == len(
        BASELINES
    )
    counts = np.bincount(item[train], minlength=ITEMS).astype(np.float32)
    ranks = rank(lambda rows: np.stack([counts] * (rows.stop - rows.start)), ITEMS, target, seen)
    assert found["popularity"].ranks.included.tolist() == ranks.included.tolist()
    assert events.counts.tolist() == counts.tolist()


def test_a_metric_that_does_not_exist_is_told_before_anything_is_scored() -> None:
    _, target, seen, popularity, _ = case()
    with pytest.raises(ConfigError, match="no metric 'auc@10'"):
        Recommended.of(lambda rows: pytest.fail("scored"), target, seen, popularity, ["auc@10"])


def test_no_queries() -> None:
    nothing = Histories.of(np.empty(0, np.int64), np.zeros(1, np.int64))
    with pytest.raises(DataError, match="no queries to evaluate a recommender on"):
        Recommended.of(
            lambda rows: pytest.fail("scored"), np.empty(0, np.int64), nothing, case()[3]
        )
