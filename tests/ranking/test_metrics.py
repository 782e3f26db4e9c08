"""Metrics against trec_eval and against their definitions in loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import pytrec_eval

from tempera.errors import ConfigError
from tempera.ranking.metrics import DEFAULT_METRICS, Relevant, evaluate
from tempera.ranking.ranking import Ranking
from tempera.task.evaluation import Evaluation

KINDS = ("ndcg", "mrr", "recall", "precision", "hit", "map")
TREC = {
    "ndcg": "ndcg_cut_{}",
    "recall": "recall_{}",
    "precision": "P_{}",
    "hit": "success_{}",
    "map": "map_cut_{}",
}
DEPTHS = (1, 2, 3, 5, 10, 20, 50)
Judged = list[dict[int, int]]  # the gain of each judged document, by query


def random_case(
    seed: int, queries: int = 12, corpus: int = 40, depth: int = 25
) -> tuple[np.ndarray, Judged]:
    """Rankings of different lengths, padded with -1, and graded judgements of one to thirty
    documents a query."""
    generator = np.random.default_rng(seed)
    ranked = np.stack([generator.permutation(corpus)[:depth] for _ in range(queries)])
    for row, length in enumerate(generator.integers(1, depth + 1, queries)):
        ranked[row, length:] = -1
    judged = []
    for _ in range(queries):
        docs = generator.choice(corpus, int(generator.integers(1, 30)), replace=False)
        judged.append({int(doc): int(generator.integers(1, 5)) for doc in docs})
    assert (ranked == -1).any() and len(judged) == queries
    return ranked, judged


def relevant_of(judged: Judged, seed: int = 0) -> Relevant:
    """Judgements in any order."""
    rows = [(query, doc, gain) for query, docs in enumerate(judged) for doc, gain in docs.items()]
    rows = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
    query, doc, gain = (np.array([row[i] for row in rows]) for i in range(3))
    return Relevant(len(judged), query, doc, gain.astype(np.float64))


def by_trec_eval(ranked: np.ndarray, judged: Judged, measures: set[str]) -> list[dict[str, float]]:
    runs = {
        str(q): {f"d{doc}": 1000.0 - rank for rank, doc in enumerate(row) if doc >= 0}
        for q, row in enumerate(ranked)
    }
    relevance = {
        str(q): {f"d{doc}": gain for doc, gain in docs.items()} for q, docs in enumerate(judged)
    }
    scores = pytrec_eval.RelevanceEvaluator(relevance, measures).evaluate(runs)
    assert len(scores) == len(ranked)
    return [scores[str(q)] for q in range(len(ranked))]


def by_definition(kind: str, k: int, row: np.ndarray, gains: dict[int, int]) -> float:
    """One query's metric, as its docstring says."""
    found = [gains.get(int(doc), 0) for doc in row[:k]]
    if kind == "ndcg":
        best = sorted(gains.values(), reverse=True)[:k]
        dcg, ideal = (
            sum(gain / math.log2(i + 2) for i, gain in enumerate(order)) for order in (found, best)
        )
        return dcg / ideal
    if kind == "mrr":
        return next((1 / (i + 1) for i, gain in enumerate(found) if gain), 0.0)
    if kind == "map":
        right = [i for i, gain in enumerate(found) if gain]
        return sum((j + 1) / (i + 1) for j, i in enumerate(right)) / len(gains)
    hits = sum(gain > 0 for gain in found)
    return {"recall": hits / len(gains), "precision": hits / k, "hit": float(hits > 0)}[kind]


@pytest.mark.parametrize("seed", range(6))
def test_trec_eval_agrees(seed: int) -> None:
    ranked, judged = random_case(seed)
    names = [f"{kind}@{k}" for kind in TREC for k in DEPTHS]
    ours = evaluate(ranked, relevant_of(judged), names)
    depths = ",".join(map(str, DEPTHS))
    theirs = by_trec_eval(
        ranked, judged, {f"{m}.{depths}" for m in ("ndcg_cut", "recall", "P", "success", "map_cut")}
    )
    assert list(ours) == names
    for name, values in ours.items():
        kind, _, k = name.partition("@")
        expected = [query[TREC[kind].format(k)] for query in theirs]
        np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12, err_msg=name)
    for k in DEPTHS:
        expected = [
            query["recip_rank"] for query in by_trec_eval(ranked[:, :k], judged, {"recip_rank"})
        ]
        np.testing.assert_allclose(
            evaluate(ranked, relevant_of(judged), [f"mrr@{k}"])[f"mrr@{k}"], expected
        )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_every_metric_is_what_it_says(seed: int, kind: str) -> None:
    ranked, judged = random_case(seed)
    for k in DEPTHS:
        (values,) = evaluate(ranked, relevant_of(judged), [f"{kind}@{k}"]).values()
        expected = [by_definition(kind, k, row, gains) for row, gains in zip(ranked, judged)]
        assert values.shape == (12,) and values.dtype == np.float64
        np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12)


def test_identities() -> None:
    ranked, judged = random_case(9)
    relevant = relevant_of(judged)
    names = [f"{kind}@{k}" for kind in KINDS for k in DEPTHS]
    scores = evaluate(ranked, relevant, names)
    # The order of the judgements changes nothing, nor does padding, nor what stands below the
    # depth.
    padded = np.pad(ranked, ((0, 0), (0, 7)), constant_values=-1)
    for other in (
        evaluate(ranked, relevant_of(judged, 1), names),
        evaluate(padded, relevant, names),
    ):
        for name in names:
            np.testing.assert_array_equal(scores[name], other[name])
    below = ranked.copy()
    below[:, 10:] = -1
    np.testing.assert_array_equal(
        evaluate(below, relevant, ["ndcg@10"])["ndcg@10"], scores["ndcg@10"]
    )
    # The best ranking has 1, and queries are judged apart.
    best = np.array([[*sorted(d, key=d.get, reverse=True), *[-1] * 40][:40] for d in judged])  # type: ignore[arg-type]
    for name in ("ndcg@10", "mrr@1", "map@50", "hit@1", "recall@50", "precision@1"):
        np.testing.assert_allclose(evaluate(best, relevant, [name])[name], 1)
    order = np.random.default_rng(0).permutation(len(ranked))
    turned = evaluate(ranked[order], relevant_of([judged[i] for i in order]), names)
    assert all(np.array_equal(turned[name], scores[name][order]) for name in names)


def test_gains_of_a_ranking() -> None:
    relevant = Relevant(3, np.array([2, 0, 0]), np.array([4, 0, 3]), np.array([1.0, 2.0, 3.0]))
    ranked = np.array([[3, 0, 7, -1], [4, 0, -1, -1], [-1, 4, 3, 9]])
    assert relevant.gains(ranked).tolist() == [[3, 2, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert relevant.counts().tolist() == [2, 0, 1]


def test_padding_is_not_taken_for_the_last_document_of_the_query_before() -> None:
    """-1 in row 1 lies where the last document of row 0 would, if rows were numbered through."""
    relevant = Relevant.of([[9], [0]])
    assert relevant.gains(np.array([[9, 0], [-1, -1]])).tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize("docs", [[[1], []], [[], []]])
def test_queries_without_relevant_documents_count_0(docs: list[list[int]]) -> None:
    scores = evaluate(
        np.array([[1, 2], [1, 2]]), Relevant.of(docs), [f"{kind}@2" for kind in KINDS]
    )
    assert len(scores) == len(KINDS)
    for values in scores.values():
        assert values[1] == 0 and (values[0] > 0) == bool(docs[0])


def test_rankings_that_are_empty() -> None:
    names = [f"{kind}@2" for kind in KINDS]
    for ranked in (np.full((2, 3), -1), np.empty((2, 0), np.int64)):
        assert [
            values.tolist()
            for values in evaluate(ranked, Relevant.of([[1], [0, 2]]), names).values()
        ] == [[0, 0]] * len(KINDS)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ndcg",
        "ndcg@",
        "ndcg@0",
        "ndcg@-1",
        "ndcg@1.5",
        "ndcg@ten",
        "ndcg@²",
        "NDCG@10",
        "@10",
        "auc@10",
    ],
)
def test_metrics_that_do_not_exist(name: str) -> None:
    message = f"no metric {name!r}; give one of ndcg, mrr, recall, precision, hit, map with a depth, such as ndcg@10"
    with pytest.raises(ConfigError) as error:
        evaluate(np.array([[0]]), Relevant.of([[0]]), ["ndcg@10", name])
    assert str(error.value) == message
    with pytest.raises(ConfigError) as error:  # an option tells it before anything is read
        Evaluation(metrics=("ndcg@10", name))
    assert str(error.value) == message
    assert Evaluation().metrics == DEFAULT_METRICS


def test_a_ranking_by_vectors() -> None:
    generator = np.random.default_rng(0)
    queries, docs = (generator.normal(size=(n, 4)).astype(np.float32) for n in (5, 150))
    relevant = Relevant.of([[i, 149] for i in range(5)])
    expected = np.argsort(-(queries @ docs.T), axis=1, kind="stable")
    for metrics, depth in (
        (("recall@10",), 100),
        (("recall@120", "ndcg@10"), 120),
        (("recall@500",), 150),
    ):
        ranking = Ranking.by_vectors(queries, docs, relevant, metrics)
        assert np.array_equal(ranking.ranked, expected[:, :depth])
        assert ranking.metrics == {
            name: values.mean() for name, values in ranking.per_query.items()
        }
        assert tuple(ranking.metrics) == metrics
    ranking = Ranking.by_vectors(queries, docs, relevant, ["recall@1"])
    places = [[*row.tolist()] for row in expected[:, :100]]
    wanted = [
        min([r.index(d) + 1 for d in (i, 149) if d in r], default=0) for i, r in enumerate(places)
    ]
    assert ranking.first_right(relevant).tolist() == wanted
    assert Ranking(np.array([[3, -1]]), {}).first_right(Relevant.of([[7]])).tolist() == [0]
