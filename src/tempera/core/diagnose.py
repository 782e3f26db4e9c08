"""Read-only diagnosis of an objective on one batch, to explain its losses.

Letters in shapes: b rows of this device, r rows of a tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from .batch import Batch, as_batch
from .masks import Mask
from .matryoshka import Matryoshka
from .objective import Objective, autocast_off, base_of
from .pools import Block
from .similarity import cosine
from .tiles import Tile, Vectors, leave_out, tiles

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Diagnosis:
    """Ranks, probabilities and similarities of the pairs of a batch, by the first softmax of an
    objective.

    Each tensor has one number a row, [b]. A row without negatives has rank 1, and nan in the
    columns that need a negative.
    """

    rank: Tensor  # of the positive among its negatives, from 1, by logit
    probability: Tensor  # of the positive
    # exp of the entropy of the softmax over negatives: the number that shares the gradient
    effective_negatives: Tensor
    hardest_share: Tensor  # of the negatives' gradient, carried by the hardest one
    positive: Tensor  # similarity of the pair
    hardest: Tensor  # highest similarity of a negative
    random: Tensor  # similarity of the query to the document of another row drawn at random
    masked: dict[str, float]  # share of all candidates that each mask leaves out; never a positive
    # Wang and Isola 2020: mean squared distance of the unit vectors of a pair (eq. 1), and
    # log mean exp(-2 squared distance) of random documents (eq. 2)
    alignment: float
    uniformity: float
    temperature: float

    def summary(self) -> dict[str, Any]:
        """Return the means of the columns, and quantiles of the similarities."""
        summary: dict[str, Any] = {}
        for name in ("rank", "probability", "effective_negatives", "hardest_share"):
            summary[name] = float(getattr(self, name).nanmean())
        for name in ("positive", "hardest", "random"):
            for q in QUANTILES:
                summary[f"{name}_{q:.0%}"] = float(getattr(self, name).nanquantile(q))
        summary["masked"] = dict(self.masked)
        for name in ("alignment", "uniformity", "temperature"):
            summary[name] = getattr(self, name)
        return summary

    def __str__(self) -> str:
        """Return the summary as tables."""
        values = self.summary()
        lines = [f"{'similarity of the':<26}" + "".join(f"{f'{q:.0%}':>8}" for q in QUANTILES)]
        labels = {"positive": "pair", "hardest": "hardest negative", "random": "random pair"}
        for name, label in labels.items():
            cells = [f"{values[f'{name}_{q:.0%}']:8.3f}" for q in QUANTILES]
            lines.append(f"{label:<26}" + "".join(cells))
        lines.append("")
        for name, value in values.items():
            if isinstance(value, float) and "%" not in name:
                lines.append(f"{name.replace('_', ' '):<26}{value:8.3f}")
        for mask, share in self.masked.items():
            lines.append(f"{f'left out by {mask}':<26}{share:8.3f}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{self}</pre>"


def diagnose(
    objective: Objective | Matryoshka,
    queries: Batch[Tensor] | Tensor,
    documents: Tensor | None = None,
    seed: int = 0,
) -> Diagnosis:
    """Return the diagnosis of an objective on a batch of embeddings; nothing is changed.

    Args:
        objective: any; a `Matryoshka` is diagnosed by its objective on whole embeddings.
        queries: embeddings, [b, D]; or a `Batch` with the data of the objective's parts.
        documents: embeddings, [b, D]; row i answers query i. None with a `Batch`.
        seed: seed of the random pairs.

    Raises:
        DataError: a part needs data, such as ids, missing in the batch; there is no row; or
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
    problem = objective.problem(batch, taught=False)
    temperature = batch.temperature or objective.temperature.value
    _refuse_not_finite(batch)
    if math.isnan(temperature):
        objective.temperature.scale()  # refuses it: an auto temperature without its value
    vectors = {role: objective.similarity(side.rows) for role, side in batch.sides().items()}
    parts: dict[str, list[Tensor]] = {}
    for tile in tiles(problem, problem.groups[0], vectors, 1 / temperature):
        for name, values in _of_tile(tile, vectors).items():
            parts.setdefault(name, []).append(values)
    columns: dict[str, Any] = {name: torch.cat(part) for name, part in parts.items()}
    query = objective.similarity(batch.query.rows)
    doc = objective.similarity(batch.doc.rows)[batch.answers]
    n = len(doc)
    generator = torch.Generator().manual_seed(seed)
    other = (torch.arange(n) + torch.randint(1, max(2, n), (n,), generator=generator)) % n
    random = torch.full_like(columns["hardest"], math.nan)
    if n > 1:
        random = (query * doc[other]).sum(1)[batch.local]
    query_units, doc_units = cosine(query), cosine(doc)
    near = (query_units - doc_units).square().sum(1)
    far = (doc_units - doc_units[other]).square().sum(1)
    return Diagnosis(
        **columns,
        positive=(query * doc).sum(1)[batch.local],
        random=random,
        masked=_masked(objective, batch),
        alignment=float(near.mean()),
        uniformity=float((-2 * far).exp().mean().log()),
        temperature=temperature,
    )


def _of_tile(tile: Tile, vectors: Vectors) -> dict[str, Tensor]:
    """Return the columns of a diagnosis from logits, [r] each; positives are excluded from the
    logits afterwards."""
    held = tile.held
    own = held.positives.columns[: tile.rows.stop - tile.rows.start]
    here = torch.arange(len(own), device=own.device)
    positive = held.logits[here, own].clone()  # [r]
    for scores in tile.scores:
        scores.logits[scores.positives.rows, scores.positives.columns] = -torch.inf
    negatives = torch.cat(tile.logits, 1)  # [r, c]
    log_mass = negatives.logsumexp(1)
    p = (negatives - log_mass[:, None]).exp().nan_to_num()  # rows without negatives have none
    entropy = -(p * negatives.sub(log_mass[:, None]).masked_fill(p == 0, 0)).sum(1)
    some = log_mass > -torch.inf
    return {
        "rank": 1.0 + (negatives > positive[:, None]).sum(1),
        "probability": (positive - torch.logaddexp(positive, log_mass)).exp(),
        "effective_negatives": entropy.exp().where(some, torch.zeros_like(entropy)),
        "hardest_share": p.amax(1).where(some, torch.full_like(entropy, math.nan)),
        "hardest": _hardest_similarity(tile, vectors),
    }


def _refuse_not_finite(batch: Batch[Tensor]) -> None:
    for role, side in batch.sides().items():
        _refuse_lost(
            side.rows, f"the {role} embeddings", "diagnose a batch of before the model has diverged"
        )
        for name in ("guide", "logq"):
            values = getattr(side, name)
            if values is not None:
                _refuse_lost(values, f"{name} of {role}", "look at the data of these rows")


def _refuse_lost(values: Tensor, what: str, advice: str) -> None:
    wrong = ~values.isfinite().flatten(1).all(1) if values.dim() > 1 else ~values.isfinite()
    if wrong.any():
        raise DataError(
            f"{what} are not finite ({int(wrong.sum()):,} of {len(wrong):,} rows, the first is row "
            f"{int(wrong.int().argmax())}), and cannot be ranked: {advice}"
        )


def _hardest_similarity(tile: Tile, vectors: Vectors) -> Tensor:
    """Return the highest similarity, before corrections, of an unmasked negative, [r].

    Positives are excluded from the tile's logits already.
    """
    best = []
    for scores in tile.scores:
        similarities = scores.anchors @ vectors[scores.term.candidate].T
        left_out = scores.logits == -torch.inf
        best.append(similarities.masked_fill(left_out, -torch.inf).amax(1))
    top = torch.stack(best).amax(0)
    return top.masked_fill(top == -torch.inf, math.nan)


def _masked(objective: Objective, batch: Batch[Tensor]) -> dict[str, float]:
    """Return the share of the candidates of all pools that each mask leaves out; positives are
    candidates that no mask leaves out."""
    sides = batch.sides()
    blocks = []
    for pool in objective.pools:
        for anchor, candidate in pool.blocks:
            if candidate in sides and len(sides[candidate]):
                blocks.append(Block(batch, anchor, candidate))
    shares: dict[str, float] = {}
    for mask in objective.masks:
        left_out = 0
        total = 0
        for block in blocks:
            left_out += _left_out(objective, mask, block)
            total += len(block.rows) * len(block.candidates)
        name = type(mask).__name__
        earlier = [each for each in objective.masks[: len(shares)] if type(each) is type(mask)]
        if earlier:
            name = f"{name} {len(earlier) + 1}"
        shares[name] = left_out / max(1, total)
    return shares


def _left_out(objective: Objective, mask: Mask, block: Block) -> int:
    """Return the number of candidates of a block, positives and the rows' own aside, that a mask
    leaves out."""
    b = len(block.rows)
    c = len(block.candidates)
    exclusions = mask(block)
    others = objective.others(block)
    count = 0
    height = max(1, objective.tile_size(block.device) // c)
    for start in range(0, b, height):
        tile = slice(start, min(start + height, b))
        table = torch.zeros(tile.stop - tile.start, c, device=block.device)
        for exclusion in exclusions:
            leave_out(table, exclusion(tile))
        kept = torch.zeros_like(table)
        for positives in others:
            leave_out(kept, positives(tile))
        table.masked_fill_(kept.isinf(), 0)
        here = torch.arange(len(table))
        if block.positive is not None:
            table[here, block.positive[tile]] = 0
        if block.own_kind and block.paired:
            table[here, block.own[tile]] = 0
        count += int(table.isinf().sum())
    return count
