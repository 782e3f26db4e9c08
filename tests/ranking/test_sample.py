"""Smaller corpora keep what is relevant and say their bias; a budget keeps its share."""

from __future__ import annotations

import numpy as np
import pytest

from tempera.errors import ConfigError
from tempera.ranking.metrics import Relevant, evaluate
from tempera.ranking.nearest import top
from tempera.ranking.ranking import Ranking
from tempera.ranking.sample import Budget, sample_corpus

RELEVANT = Relevant(
    4, np.array([0, 1, 1, 3, 2]), np.array([30, 5, 30, 99, 0]), np.array([1.0, 2.0, 1.0, 3.0, 1.0])
)


def by_hand(ranked: np.ndarray, size: int, share: float) -> tuple[set[int], list[int]]:
    """Relevant documents, and those that a ranking adds, rank by rank."""
    kept = set(RELEVANT.doc.tolist())
    room, hard = int(share * max(0, size - len(kept))), []
    for rank in range(ranked.shape[1]):
        for query in range(len(ranked)):
            doc = int(ranked[query, rank])
            if doc >= 0 and doc not in kept and doc not in hard and len(hard) < room:
                hard.append(doc)
    return kept, hard


@pytest.mark.parametrize("size", [1, 4, 5, 9, 40, 100, 500])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_what_is_kept(size: int, share: float) -> None:
    ranked = np.stack([np.random.default_rng(q).permutation(100)[:12] for q in range(4)])
    ranked[1, 5:] = -1
    sample = sample_corpus(RELEVANT, 100, size, ranked, share)
    kept, hard = by_hand(ranked, size, share)
    docs = sample.docs.tolist()
    assert docs == sorted(set(docs)) and len(docs) == min(100, max(size, 4))
    assert kept | set(hard) <= set(docs)
    assert (sample.positives, sample.hardest) == (4, len(hard))
    # Judgements are the same documents, by their new places.
    assert sample.docs[sample.relevant.doc].tolist() == RELEVANT.doc.tolist()
    assert sample.relevant.query is RELEVANT.query and sample.relevant.gain is RELEVANT.gain


def test_random_documents_are_drawn_by_the_seed() -> None:
    samples = [sample_corpus(RELEVANT, 1000, 50, seed=seed).docs.tolist() for seed in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]
    drawn = np.concatenate(
        [sample_corpus(RELEVANT, 1000, 54, seed=seed).docs for seed in range(40)]
    )
    assert 450 < drawn.mean() < 520


def test_the_bias_is_the_difference_and_less_with_hard_documents() -> None:
    generator = np.random.default_rng(0)
    queries, docs = (generator.normal(size=(n, 8)).astype(np.float32) for n in (60, 2000))
    relevant = Relevant.of([[i * 7] for i in range(60)])
    docs[relevant.doc] += 0.7 * queries
    metrics = ["ndcg@10", "recall@10"]
    ranked = top(queries, docs, 20)[1]
    whole = Ranking.of(ranked, relevant, metrics)
    found = {}
    for name, ranking in (("random", None), ("hard", ranked)):
        sample = sample_corpus(relevant, 2000, 400, ranking)
        of_sample = top(queries, docs[sample.docs], 20)[1]
        found[name] = Ranking.of(of_sample, sample.relevant, metrics).bias(whole)
        small = evaluate(of_sample, sample.relevant, metrics)
        for metric, value in found[name].items():
            excess = (small[metric] - evaluate(ranked, relevant, metrics)[metric]).mean()
            assert value == pytest.approx(excess, abs=1e-12)
    assert found["random"]["ndcg@10"] > 2 * found["hard"]["ndcg@10"] >= 0
    everything = sample_corpus(relevant, 2000, 2000)
    ranked_again = top(queries, docs[everything.docs], 20)[1]
    again = Ranking.of(ranked_again, everything.relevant, metrics)
    assert again.bias(whole) == dict.fromkeys(metrics, 0)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_the_share_is_kept_whatever_an_evaluation_costs(share: float) -> None:
    generator, budget, training, done = np.random.default_rng(0), Budget(share), 0.0, 0
    budget.spend(5.0)  # of the untrained model
    for _ in range(4000):
        training += 1.0
        if budget.allows(training):
            cost = float(generator.uniform(3, 5))
            budget.spend(cost)
            done += 1
            # The estimate is the latest cost, so that the share may be passed by one difference of
            # costs.
            assert budget.spent - 2 <= share * (training + budget.spent)
    assert budget.spent / (training + budget.spent) == pytest.approx(share, rel=0.06) and done > 10


def test_ends_of_the_share() -> None:
    never, always = Budget(0), Budget(1)
    always.spend(100)
    assert not never.allows(1e9) and always.allows(0) and Budget(0.5).allows(0)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="from 0 to 1"):
            Budget(share)
    with pytest.raises(ConfigError, match="at least 1"):
        sample_corpus(RELEVANT, 100, 0)
    with pytest.raises(ConfigError, match="0 to 1"):
        sample_corpus(RELEVANT, 100, 5, share=2)
