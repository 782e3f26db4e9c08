"""Read-only diagnosis of an objective on one batch, to explain its losses.

Letters in shapes: b rows of this device, r rows of a tile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from .batch import Batch, as_batch
from .matryoshka import Matryoshka
from .objective import Objective, autocast_off, base_of
from .pools import Block
from .row_losses import Tile
from .similarity import cosine
from .tiles import Term, Vectors, leave_out, tiles

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Diagnosis:
    """Each tensor has one number a row, [b]; rows without a negative have rank 1 and nan where a
    negative is needed.

    For a loss of several directions these are of its first softmax.
    """

    rank: Tensor  # of the positive among its negatives, from 1, by logit
    probability: Tensor  # of the positive
    effective_negatives: (
        Tensor  # exp of the entropy of the softmax over negatives: how many share the gradient
    )
    hardest_share: Tensor  # of the negatives' gradient, carried by the hardest one
    positive: Tensor  # similarity of the pair
    hardest: Tensor  # highest similarity of a negative
    random: Tensor  # similarity of the query to the document of another row drawn at random
    masked: dict[str, float]  # share of all candidates that each mask leaves out; never a positive
    alignment: (
        float  # mean squared distance of the unit vectors of a pair (Wang and Isola 2020, eq. 1)
    )
    uniformity: float  # log mean exp(-2 squared distance) of random documents (eq. 2)
    temperature: float

    def summary(self) -> dict[str, Any]:
        """Means, and quantiles of the similarities."""
        whole = ("rank", "probability", "effective_negatives", "hardest_share")
        means = {name: float(getattr(self, name).nanmean()) for name in whole}
        similarities = ("positive", "hardest", "random")
        quantiles = {
            f"{name}_{q:.0%}": float(getattr(self, name).nanquantile(q))
            for name in similarities
            for q in QUANTILES
        }
        rest = ("masked", "alignment", "uniformity", "temperature")
        return {
            **means,
            **quantiles,
            **{name: value for name, value in asdict(self).items() if name in rest},
        }

    def __str__(self) -> str:
        """Return the summary as tables."""
        values = self.summary()
        names = {"positive": "pair", "hardest": "hardest negative", "random": "random pair"}
        lines = [f"{'similarity of the':<26}" + "".join(f"{f'{q:.0%}':>8}" for q in QUANTILES)]
        for name, label in names.items():
            lines.append(
                f"{label:<26}" + "".join(f"{values[f'{name}_{q:.0%}']:8.3f}" for q in QUANTILES)
            )
        single = {
            name: value
            for name, value in values.items()
            if isinstance(value, float) and "%" not in name
        }
        single |= {f"left out by {mask}": share for mask, share in self.masked.items()}
        return "\n".join(
            [
                *lines,
                "",
                *(f"{name.replace('_', ' '):<26}{value:8.3f}" for name, value in single.items()),
            ]
        )

    def _repr_html_(self) -> str:
        return f"<pre>{self}</pre>"


def diagnose(
    objective: Objective | Matryoshka,
    queries: Batch[Tensor] | Tensor,
    documents: Tensor | None = None,
    seed: int = 0,
) -> Diagnosis:
    """Return what an objective sees in a batch of embeddings; nothing is changed.

    Args:
        objective: any; of a `Matryoshka` what its objective sees of whole embeddings.
        queries: embeddings, [b, D]; or a `Batch` with what the objective's parts need.
        documents: embeddings, [b, D], of which row i answers query i; None with a `Batch`.
        seed: seed of the rows that are compared at random.

    Raises:
        DataError: a part needs ids or other data that the batch does not have, there is no row, or
            embeddings are not finite.

    >>> diagnosis = diagnose(Objective(temperature=0.1), torch.eye(4), torch.eye(4))
    >>> diagnosis.rank.tolist(), round(float(diagnosis.effective_negatives.mean()), 3)
    ([1.0, 1.0, 1.0, 1.0], 3.0)
    >>> print(diagnosis)  # doctest: +ELLIPSIS
    similarity of the               5%     25%     50%     75%     95%
    pair                         1.000   1.000   1.000   1.000   1.000
    hardest negative             0.000   0.000   0.000   0.000   0.000
    random pair                  0.000   0.000   0.000   0.000   0.000
    <BLANKLINE>
    rank                         1.000
    probability                  1.000
    ...
    """
    batch = as_batch(queries, documents)
    if batch.local.stop <= batch.local.start:
        raise DataError("a batch without rows cannot be diagnosed: give at least one pair")
    with torch.no_grad(), autocast_off(batch.doc.rows):
        return _diagnosis(base_of(objective), batch, seed)


def _diagnosis(objective: Objective, batch: Batch[Tensor], seed: int) -> Diagnosis:
    problem, temperature = (
        objective.problem(batch, taught=False),
        batch.temperature or objective.temperature.value,
    )
    _refuse_not_finite(batch)
    if math.isnan(temperature):
        objective.temperature.scale()  # refuses it: an auto temperature without its value
    vectors = {role: objective.similarity(side.rows) for role, side in batch.sides().items()}
    columns: dict[str, list[Tensor]] = {
        name: [] for name in ("rank", "probability", "effective", "share", "hardest")
    }
    for tile in tiles(problem, vectors, 1 / temperature):
        if tile.group > 0:
            break
        own = tile.positives[tile.held][1][: tile.rows.stop - tile.rows.start]
        here = torch.arange(len(own), device=own.device)
        positive = tile.logits[tile.held][here, own].clone()  # [r]
        for logits, positives in zip(tile.logits, tile.positives, strict=True):
            logits[positives] = -torch.inf
        negatives = torch.cat(tile.logits, 1)  # [r, c]
        log_mass = negatives.logsumexp(1)
        p = (negatives - log_mass[:, None]).exp().nan_to_num()  # rows without negatives have none
        entropy = -(p * negatives.sub(log_mass[:, None]).masked_fill(p == 0, 0)).sum(1)
        some = log_mass > -torch.inf
        columns["rank"].append(1.0 + (negatives > positive[:, None]).sum(1))
        columns["probability"].append((positive - torch.logaddexp(positive, log_mass)).exp())
        columns["effective"].append(entropy.exp().where(some, torch.zeros_like(entropy)))
        columns["share"].append(p.amax(1).where(some, torch.full_like(entropy, math.nan)))
        columns["hardest"].append(_hardest_similarity(problem.groups[0].terms, vectors, tile))
    rank, probability, effective, share, hardest = (torch.cat(part) for part in columns.values())
    query, doc = objective.similarity(batch.query.rows), objective.similarity(batch.doc.rows)
    doc = doc[batch.answers]
    n = len(doc)
    generator = torch.Generator().manual_seed(seed)
    other = (torch.arange(n) + torch.randint(1, max(2, n), (n,), generator=generator)) % n
    units = [cosine(side) for side in (query, doc)]
    far = (units[1] - units[1][other]).square().sum(1)
    return Diagnosis(
        rank=rank,
        probability=probability,
        effective_negatives=effective,
        hardest_share=share,
        positive=(query * doc).sum(1)[batch.local],
        hardest=hardest,
        random=(query * doc[other]).sum(1)[batch.local]
        if n > 1
        else torch.full_like(hardest, math.nan),
        masked=_masked(objective, batch),
        alignment=float((units[0] - units[1]).square().sum(1).mean()),
        uniformity=float((-2 * far).exp().mean().log()),
        temperature=temperature,
    )


def _refuse_not_finite(batch: Batch[Tensor]) -> None:
    for role, side in batch.sides().items():
        _refuse_lost(
            side.rows, f"the {role} embeddings", "diagnose a batch of before the model has diverged"
        )
        for name in ("guide", "logq"):
            values = getattr(side, name)
            if values is not None:
                _refuse_lost(values, f"{name} of {role}", "look at what is known of these rows")


def _refuse_lost(values: Tensor, what: str, advice: str) -> None:
    wrong = ~values.isfinite().flatten(1).all(1) if values.dim() > 1 else ~values.isfinite()
    if wrong.any():
        raise DataError(
            f"{what} are not finite ({int(wrong.sum()):,} of {len(wrong):,} rows, the first is row "
            f"{int(wrong.int().argmax())}), and cannot be ranked: {advice}"
        )


def _hardest_similarity(group: Sequence[Term], vectors: Vectors, tile: Tile) -> Tensor:
    """The highest similarity, before corrections, of a candidate that is not left out and no
    positive, [r]."""
    best = []
    for term, anchors, logits in zip(group, tile.anchors, tile.logits, strict=True):
        similarities = anchors @ vectors[term.candidate].T
        best.append(similarities.masked_fill(logits == -torch.inf, -torch.inf).amax(1))
    top = torch.stack(best).amax(0)
    return top.masked_fill(top == -torch.inf, math.nan)


def _masked(objective: Objective, batch: Batch[Tensor]) -> dict[str, float]:
    """Return which share of the candidates of all pools each mask leaves out; positives are
    candidates that none leaves out."""
    sides = batch.sides()
    shares: dict[str, float] = {}
    blocks = [
        Block(batch, a, c)
        for pool in objective.pools
        for a, c in pool.blocks
        if c in sides and len(sides[c])
    ]
    for mask in objective.masks:
        left_out = total = 0
        for block in blocks:
            b, c = len(block.rows), len(block.candidates)
            exclusions, others = mask(block), objective.others(block)
            for start in range(0, b, height := max(1, objective.tile_size(block.device) // c)):
                tile = slice(start, min(start + height, b))
                table = torch.zeros(tile.stop - tile.start, c, device=block.device)
                kept = torch.zeros_like(table)
                for into, indices in ((table, exclusions), (kept, others)):
                    for index in indices:
                        leave_out(into, index(tile))
                table.masked_fill_(kept.isinf(), 0)
                for own in (block.positive, block.own if block.own_kind and block.paired else None):
                    if own is not None:
                        table[torch.arange(len(table)), own[tile]] = 0
                left_out += int(table.isinf().sum())
                total += table.numel()
        name = type(mask).__name__
        number = sum(type(each) is type(mask) for each in objective.masks[: len(shares)])
        shares[f"{name} {number + 1}" if number else name] = left_out / max(1, total)
    return shares
