"""The same numbers as sentence-transformers 6 and as the formula of TFRS `Retrieval`.

Peers are given the embeddings in place of models; everything is float64, and values and gradients
agree to 1e-10.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tempera.core import pools, presets
from tempera.core.batch import Batch, Side
from tempera.core.corrections import Hardness
from tempera.core.masks import Guided, SameId
from tempera.core.objective import Objective
from tempera.core.similarity import cosine

N, D = 12, 8
DIRECTIONS = {
    "query_to_query": pools.queries,
    "doc_to_query": pools.back_queries,
    "doc_to_doc": pools.back_docs,
}
HARDNESS = {
    None: None,
    "others": "in_batch_negatives",
    "own": "hard_negatives",
    "all": "all_negatives",
}


def columns(count: int, seed: int = 0) -> list[Tensor]:
    """Queries, documents and then one negative a row for each further column."""
    torch.manual_seed(seed)
    return [torch.randn(N, D, dtype=torch.float64, requires_grad=True) for _ in range(count)]


def batch_of(embs: list[Tensor], guides: list[Tensor] | None = None) -> Batch[Tensor]:
    """The columns as a batch."""
    query, doc, *hard = (
        Side(emb, guide=None if guides is None else guides[k]) for k, emb in enumerate(embs)
    )
    if not hard:
        return Batch(query, doc)
    guide = None if guides is None else torch.cat([side.guide for side in hard])
    rows, owner = torch.cat([side.rows for side in hard]), torch.arange(N).repeat(len(hard))
    return Batch(query, doc, Side(rows, guide=guide, owner=owner))


def assert_same(
    ours: Callable[[], Tensor], theirs: Callable[[], Tensor], leaves: list[Tensor]
) -> float:
    """The same mean loss and the same gradients; gives the loss."""
    found = []
    for run in (ours, theirs):
        for leaf in leaves:
            leaf.grad = None
        value = run()
        value.backward()
        found.append((value.detach(), [leaf.grad.clone() for leaf in leaves]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)
    assert all(float(grad.abs().max()) > 1e-6 for grad in found[0][1])
    return float(found[0][0])


# sentence-transformers: MultipleNegativesRankingLoss
# ---------------------------------------------------------------


@pytest.fixture(scope="module")
def peer() -> Any:
    return pytest.importorskip("sentence_transformers.sentence_transformer.losses")


CASES = [
    (chosen, partition)
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(DIRECTIONS, k) for k in range(4)
    )
    for partition in ("joint", "per_direction")
    if partition == "joint" or set(chosen) <= {"doc_to_query"}
]


@pytest.mark.parametrize("negatives", [0, 1, 2])
@pytest.mark.parametrize(("directions", "partition"), CASES)
def test_mnr_with_all_directions_partitions_and_hardness_modes(
    peer: Any, directions: tuple[str, ...], partition: str, negatives: int
) -> None:
    embs = columns(2 + negatives)
    seen = set()
    for (on, mode), strength in itertools.product(HARDNESS.items(), (9.0,)):
        objective = Objective(
            cosine,
            0.05,
            (*presets.FORWARD, *(DIRECTIONS[name] for name in directions)),
            (Hardness(strength, on),) if on else (),
            partition=partition,
        )
        loss = peer.MultipleNegativesRankingLoss(
            nn.Module(),
            scale=20.0,
            directions=("query_to_doc", *directions),
            partition_mode=partition,
            hardness_mode=mode,
            hardness_strength=strength,
        )
        seen.add(
            assert_same(
                lambda objective=objective: objective(batch_of(embs)).mean(),
                lambda loss=loss: loss.compute_loss_from_embeddings(embs, None),
                embs,
            )
        )
    assert len(seen) == (4 if negatives else 2)  # every mode was another loss


@pytest.mark.parametrize("negatives", [0, 2])
def test_presets_are_the_peers_losses(peer: Any, negatives: int) -> None:
    embs = columns(2 + negatives, seed=1)
    forward, both = ("query_to_doc",), ("query_to_doc", "doc_to_query")
    for ours, theirs in (
        (presets.mnr(), {"directions": forward}),
        (presets.simcse(), {"directions": forward}),
        (presets.symmetric(), {"directions": both, "partition_mode": "per_direction"}),
        (presets.gte(0.05), {"directions": ("query_to_doc", *DIRECTIONS)}),
        (presets.hardness(), {"hardness_mode": "in_batch_negatives", "hardness_strength": 9.0}),
    ):
        loss = peer.MultipleNegativesRankingLoss(nn.Module(), **theirs)
        assert_same(
            lambda ours=ours: ours(batch_of(embs)).mean(),
            lambda loss=loss: loss.compute_loss_from_embeddings(embs, None),
            embs,
        )


# sentence-transformers: GISTEmbedLoss
# ------------------------------------------------------------------------------


@pytest.fixture
def gist(peer: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    """The peer's loss of embeddings and guide vectors."""
    module = pytest.importorskip("sentence_transformers.sentence_transformer.losses.gist_embed")

    def loss(embs: list[Tensor], guides: list[Tensor], **options: Any) -> Tensor:
        given = {"model": embs, "guide": guides}
        monkeypatch.setattr(module, "embed_columns", lambda model, _: given[model])
        made = module.GISTEmbedLoss.__new__(module.GISTEmbedLoss)
        nn.Module.__init__(made)
        defaults = {
            "model": "model", "guide": "guide", "temperature": 0.01, "similarity_fct": nn.CosineSimilarity(dim=-1),
            "must_retokenize": False, "margin_strategy": "absolute", "margin": 0.0, "contrast_anchors": True,
            "contrast_positives": True, "gather_across_devices": False, "cross_entropy_loss": nn.CrossEntropyLoss(),
        }  # fmt: skip
        for name, value in {**defaults, **options}.items():
            setattr(made, name, value)
        return made([{}], None)

    return loss


def guides_of(embs: list[Tensor], alike: float = 0.5) -> list[Tensor]:
    """Unit vectors of each column; a document's is near its query's."""
    torch.manual_seed(7)
    query = torch.randn(N, 6, dtype=torch.float64)
    rest = [alike * query + torch.randn_like(query) for _ in embs[1:]]
    return [F.normalize(x, dim=1) for x in (query, *rest)]


@pytest.mark.parametrize("negatives", [0, 1])
@pytest.mark.parametrize(
    ("kind", "margin"),
    [("absolute", 0.0), ("absolute", 0.2), ("relative", 0.05), ("relative", 0.5)],
)
def test_gist(gist: Callable[..., Tensor], kind: str, margin: float, negatives: int) -> None:
    embs = columns(2 + negatives, seed=2)
    guides = guides_of(embs)
    ours = presets.gist(0.05, masks=(Guided(margin, kind),))
    value = assert_same(
        lambda: ours(batch_of(embs, guides)).mean(),
        lambda: gist(embs, guides, temperature=0.05, margin_strategy=kind, margin=margin),
        embs,
    )
    with torch.no_grad():
        assert (
            abs(value - float(presets.gist(0.05, masks=())(batch_of(embs)).mean())) > 0.1
        )  # the guide had a say
    if kind == "absolute":
        torch.testing.assert_close(
            presets.gist(0.05, margin)(batch_of(embs, guides)).mean(), torch.tensor(value).double()
        )


@pytest.mark.parametrize(("anchors", "positives"), [(False, False), (True, False), (False, True)])
def test_gist_without_one_of_its_kinds(
    gist: Callable[..., Tensor], anchors: bool, positives: bool
) -> None:
    embs = columns(3, seed=3)
    guides = guides_of(embs)
    chosen = (
        pools.docs,
        pools.negatives,
        *[pools.queries] * anchors,
        *[pools.back_positives] * positives,
    )
    ours = presets.gist(pools=chosen)
    theirs = {"contrast_anchors": anchors, "contrast_positives": positives}
    assert_same(
        lambda: ours(batch_of(embs, guides)).mean(), lambda: gist(embs, guides, **theirs), embs
    )


def test_an_anchor_that_its_guide_takes_for_its_pair_is_not_its_own_negative(
    gist: Callable[..., Tensor],
) -> None:
    """A documented difference: GIST drops an anchor from its own kind only where guide(self) = 1 >
    guide(pair)."""
    embs = columns(2, seed=4)
    exact = torch.eye(6, dtype=torch.float64).repeat(2, 1)[:N]  # guide(pair) is 1 without rounding
    guides = [exact, exact]
    ours = presets.gist(0.05)(batch_of(embs, guides))
    theirs = gist(embs, guides, temperature=0.05)
    assert float(theirs.detach() - ours.mean().detach()) > 1.0
    # Here are the same losses without the anchor and the document themselves, whose cosine of 1 the
    # peer counts.
    query, doc = (F.normalize(emb, dim=1) for emb in embs)
    every = (
        torch.cat(
            [
                query @ doc.T,
                *(x @ x.T - torch.diag(torch.full((N,), torch.inf)) for x in (query, doc)),
            ],
            1,
        )
        / 0.05
    )
    torch.testing.assert_close(ours, every.logsumexp(1) - every.diagonal(), rtol=1e-10, atol=1e-10)
    every = torch.cat([query @ doc.T, query @ query.T, doc @ doc.T], 1) / 0.05
    torch.testing.assert_close(
        theirs, F.cross_entropy(every, torch.arange(N)), rtol=1e-10, atol=1e-10
    )


# TFRS: tensorflow_recommenders.tasks.Retrieval, its body written out
# -----------------------------------------------


def retrieval(
    query: Tensor,
    docs: Tensor,
    temperature: float,
    probability: Tensor,
    ids: Tensor,
    hardest: int | None,
    weight: Tensor,
) -> Tensor:
    """Sum over rows of weight x cross entropy; the first rows of `docs` are the positives."""
    scores = query @ docs.T / temperature
    labels = torch.eye(len(query), len(docs), dtype=torch.float64)
    scores = scores - probability.log()  # SamplingProbablityCorrection
    same = (ids[: len(query), None] == ids).double()  # RemoveAccidentalHits
    scores = scores + (same - labels) * -1e100
    if hardest is not None:  # HardNegativeMining: the positive and the highest others
        _, order = (scores + labels * 1e300).topk(min(hardest + 1, scores.shape[1]), dim=1)
        scores, labels = scores.gather(1, order), labels.gather(1, order)
    return -(weight * (labels * scores.log_softmax(1)).sum(1)).sum()


@pytest.mark.parametrize("hardest", [None, 1, 5, 1000])
@pytest.mark.parametrize("extra", [0, 10])
@pytest.mark.parametrize("t", [0.5, 1.0])
def test_tfrs_with_logq_accidental_hits_sampled_hardest_and_weights(
    hardest: int | None, extra: int, t: float
) -> None:
    query, doc, *_ = columns(2, seed=5)
    torch.manual_seed(8)
    more = torch.randn(extra, D, dtype=torch.float64, requires_grad=True)
    ids, more_ids = torch.randint(0, 9, (N,)), torch.randint(0, 9, (extra,))
    probability = torch.rand(9, dtype=torch.float64) * 0.1
    weight = torch.rand(N, dtype=torch.float64)
    batch = Batch(
        Side(query),
        Side(doc, ids=ids, logq=probability[ids].log()),
        sampled=Side(more, ids=more_ids, logq=probability[more_ids].log()) if extra else None,
        weight=weight,
    )
    objective = presets.sampled_softmax(t, hardest=hardest)
    every = torch.cat([ids, more_ids])
    assert_same(
        lambda: (
            (batch.shares() * objective(batch)).sum() * weight.sum()
        ),  # TFRS sums where a mean is taken here
        lambda: retrieval(
            query, torch.cat([doc, more]), t, probability[every], every, hardest, weight
        ),
        [query, doc, more] if extra else [query, doc],
    )
    without = presets.sampled_softmax(t, hardest=hardest, masks=())(batch)
    assert not torch.allclose(without, objective(batch))  # there were accidental hits
    assert objective.masks == (SameId(),)
