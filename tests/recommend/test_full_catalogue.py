"""Ranks in the whole catalogue against sorting every score in plain loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tempera.errors import ConfigError, DataError
from tempera.ranking.metrics import KINDS, Relevant, evaluate
from tempera.recommend.judge import full_catalogue as catalogue
from tempera.recommend.judge.full_catalogue import Histories, Ranks, inner, metrics_of, rank
from tempera.recommend.judge.later_events import judge_events
from tempera.recommend.read.interactions import Interactions


def histories(rows: list[list[int]]) -> Histories:
    lengths = [len(row) for row in rows]
    return Histories.of(
        np.array([i for row in rows for i in row], np.int32), np.cumsum([0, *lengths])
    )


def random_case(
    seed: int, q: int = 37, c: int = 29
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[list[int]]]:
    """Small whole numbers, so that products are exact and ties many; items come twice, and targets
    are seen before."""
    generator = np.random.default_rng(seed)
    queries, items = (generator.integers(-2, 3, (n, 3)).astype(np.float32) for n in (q, c))
    target = generator.integers(0, c, q)
    seen = [generator.integers(0, c, generator.integers(0, 2 * c)).tolist() for _ in range(q)]
    seen[0], seen[1] = [], list(range(c)) * 2
    assert any(t in row for t, row in zip(target.tolist(), seen))
    return queries, items, target, seen


def loops(queries: np.ndarray, items: np.ndarray, out: list[set[int]]) -> list[list[int]]:
    """All items that are not out, by falling score and then by code, in float64."""
    scores = queries.astype(np.float64) @ items.astype(np.float64).T
    return [
        sorted((j for j in range(len(items)) if j not in o), key=lambda j: (-s[j], j))
        for s, o in zip(scores, out)
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("cells", "least"), [(1 << 22, 16), (150, 1), (1, 1), (1, 5)])
def test_ranks_and_lists(
    monkeypatch: pytest.MonkeyPatch, seed: int, cells: int, least: int
) -> None:
    monkeypatch.setattr(catalogue, "_CELLS", cells)
    monkeypatch.setattr(catalogue, "_ROWS", (least, 1024))
    queries, items, target, seen = random_case(seed)
    out = [set(row) - {t} for row, t in zip(seen, target.tolist())]
    whole, left = loops(queries, items, [set()] * len(target)), loops(queries, items, out)
    for k in (0, 1, 7, 29, 50):
        found = rank(inner(queries, items), 29, target, histories(seen), k)
        assert found.included.tolist() == [
            row.index(t) + 1 for row, t in zip(whole, target.tolist())
        ]
        assert found.excluded.tolist() == [
            row.index(t) + 1 for row, t in zip(left, target.tolist())
        ]
        depth = min(k, 29)
        assert found.top.tolist() == [[*row, *[-1] * 29][:depth] for row in left]
        assert found.items == 29


def test_rows_of_histories_may_overlap() -> None:
    events = np.array([3, 1, 4, 1, 5, 9], np.int32)
    rows = Histories(events, np.array([0, 0, 4, 2]), np.array([3, 6, 4, 5]))
    assert rows.lengths.tolist() == [3, 6, 0, 3] and len(rows) == 4
    each, items = rows.pairs()
    assert [items[each == row].tolist() for row in range(4)] == [
        [3, 1, 4],
        [3, 1, 4, 1, 5, 9],
        [],
        [4, 1, 5],
    ]
    each, items = rows[1:].last(2).pairs()
    assert [items[each == row].tolist() for row in range(3)] == [[5, 9], [], [1, 5]]
    apart = histories([[3, 1, 4], [3, 1, 4, 1, 5, 9], [], [4, 1, 5]])
    scores, target = (
        np.random.default_rng(0).normal(size=(4, 10)).astype(np.float32),
        np.array([4, 2, 0, 9]),
    )
    one, other = (
        rank(lambda part: scores[part].copy(), 10, target, seen, 5) for seen in (rows, apart)
    )
    for name in ("excluded", "included", "top"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert (one.excluded != one.included).any()


def test_metrics_of_ranks_are_those_of_the_lists() -> None:
    queries, items, target, seen = random_case(7, 60, 40)
    names = [f"{kind}@{k}" for kind in KINDS for k in (1, 2, 3, 5, 10, 40)]
    found = rank(inner(queries, items), 40, target, histories(seen), 40)
    expected = evaluate(found.top, Relevant.of([[t] for t in target.tolist()]), names)
    ours = metrics_of(found.excluded, names)
    assert list(ours) == names
    for name in names:
        np.testing.assert_allclose(ours[name], expected[name], rtol=1e-14, err_msg=name)
    nothing_seen = rank(inner(queries, items), 40, target, histories([[]] * 60), 40)
    included = evaluate(nothing_seen.top, Relevant.of(target[:, None].tolist()), names)
    for name, values in metrics_of(found.included, names).items():
        np.testing.assert_allclose(values, included[name], rtol=1e-14, err_msg=name)
    assert np.array_equal(metrics_of(found.excluded, ["mrr@40"])["mrr@40"], 1 / found.excluded)
    with pytest.raises(ConfigError, match="no metric 'auc@3'"):
        metrics_of(found.excluded, ["auc@3"])


def test_what_was_seen_and_is_to_be_found_again_is_ranked_once() -> None:
    """Users who take an item again: each metric is that of the list without what was seen and is
    not to be found."""
    scores = np.array([[0.1, 0.9, 0.8, 0.85], [0.4, 0.3, 0.2, 0.1]], np.float32)
    seen = histories([[0, 1], [3, 0]])
    target, of = np.array([1, 2, 2]), np.array([0, 0, 1])
    ranks = rank(lambda rows: scores[rows].copy(), 4, target, seen, 4, of=of)
    assert (ranks.excluded.tolist(), ranks.included.tolist()) == ([1, 3, 2], [1, 3, 3])
    assert ranks.top.tolist() == [[1, 3, 2, -1], [1, 2, -1, -1]]


def test_an_item_that_comes_twice_in_the_test_is_one_to_find(tmp_path: Path) -> None:
    for name, items in (("train", "ab"), ("test", "bbc")):
        rows = "".join(f"u,{item},{at + 10 * (name == 'test')}\n" for at, item in enumerate(items))
        (tmp_path / f"{name}.csv").write_text("user,item,time\n" + rows)
    line = Interactions(path=str(tmp_path / "train.csv"), test=str(tmp_path / "test.csv")).read()
    (test,) = line.source.split(line).test.values()
    scores = np.array([[0.1, 0.9, 0.8]], np.float32)
    names = ("ndcg@10", "map@10", "precision@1", "recall@10")
    judged = judge_events(
        lambda rows: scores[: rows.stop - rows.start].copy(),
        test,
        line,
        np.ones(3, np.int64),
        names,
    )
    assert all(0 < float(values.max()) <= 1 for values in judged.per_query.values())
    assert {name: float(judged.per_query[name][0]) for name in names[:3]} == pytest.approx(
        dict.fromkeys(names[:3], 1.0)
    )


def test_what_is_given_stays_as_it_is_and_scratch_is_used_again() -> None:
    queries, items, target, seen = random_case(1)
    before = queries.copy(), items.copy()
    scores = inner(queries, items)
    first = scores(slice(0, 20)).base
    one, other = (rank(scores, 29, target, histories(seen), 5) for _ in range(2))
    assert np.array_equal(one.top, other.top) and np.array_equal(one.excluded, other.excluded)
    assert (
        scores(slice(3, 7)).base is scores(slice(9, 10)).base is not first
    )  # grown once, to 37 rows
    assert np.array_equal(queries, before[0]) and np.array_equal(items, before[1])


def test_no_queries_and_one_item() -> None:
    found = rank(
        inner(np.empty((0, 3), np.float32), np.ones((5, 3), np.float32)),
        5,
        np.empty(0, np.int64),
        histories([]),
        3,
    )
    assert found.excluded.shape == found.included.shape == (0,) and found.top.shape == (0, 3)
    alone = rank(
        inner(np.ones((1, 3), np.float32), np.ones((1, 3), np.float32)),
        1,
        np.array([0]),
        histories([[0]]),
        3,
    )
    assert (alone.excluded[0], alone.included[0], alone.top.tolist()) == (1, 1, [[0]])


def ranked(scores: np.ndarray, target: list[int], seen: list[list[int]]) -> Ranks:
    return rank(
        lambda rows: scores[rows].copy(), scores.shape[1], np.array(target), histories(seen)
    )


def test_mistakes() -> None:
    scores = np.zeros((3, 4), np.float32)
    for target, seen, message in (
        ([0, 1], [[], [], []], "2 targets, but 3 histories; expected one history for each target"),
        ([0, 4, 1], [[], [], []], "target 1 is item 4; expected 0 to 3"),
        ([0, 2, 1], [[], [2, -1], []], "history item 1 is item -1; expected 0 to 3"),
    ):
        with pytest.raises(DataError) as error:
            ranked(scores, target, seen)
        assert str(error.value) == message


def test_a_model_that_diverged_is_not_given_the_first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_CELLS", 1)
    monkeypatch.setattr(catalogue, "_ROWS", (2, 2))
    scores = np.zeros((5, 4), np.float32)
    scores[3, 2] = np.nan
    with pytest.raises(DataError) as error:
        ranked(scores, [0] * 5, [[]] * 5)
    assert str(error.value) == "scores of query 3 are NaN: the model has diverged"
    vectors = np.ones((4, 2), np.float32)
    vectors[2, 1] = np.inf
    with pytest.raises(
        DataError, match=r"the embeddings of items are not finite .*, the first is row 2"
    ):
        inner(np.ones((1, 2), np.float32), vectors)
