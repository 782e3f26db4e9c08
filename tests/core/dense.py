"""The definition of the objective in whole matrices, differentiable by autograd: b x c tables, nothing saved, nothing in tiles.

Checked against the loops of `oracle`; gradients are checked against this. Letters in shapes: n rows, c candidates of a block.
"""

from __future__ import annotations

import torch
from oracle import MARGIN, STRENGTH, WEIGHT, Pair, Parts, groups, holds_positive
from torch import Tensor

from tempera.core.batch import Batch


def unit(x: Tensor) -> Tensor:
    """Rows of length 1."""
    return x / x.square().sum(1, keepdim=True).sqrt()


def losses(batch: Batch[Tensor], parts: Parts, t: Tensor | float) -> Tensor:
    """loss_i of every row, [n]."""
    n = len(batch)
    sides = batch.sides()
    softmaxes = groups(parts.pools, parts.partition)
    total = torch.zeros(n, dtype=torch.float64)
    for blocks in softmaxes:
        logits, is_positive, level = [], [], None
        for pair in blocks:
            if pair[1] not in sides:
                continue
            mine = torch.zeros(n, len(sides[pair[1]]), dtype=torch.bool)  # [n, c]
            if holds_positive(pair):
                mine |= place(batch, pair[1])[:, None] == torch.arange(mine.shape[1])
                if level is None and parts.numerator != "one":
                    mine |= same_id(batch, pair)
                    if batch.known is not None:
                        mine |= known(batch, pair)
            x = block(batch, parts, pair, mine, t)
            if holds_positive(pair) and level is None:
                own, at = x.masked_fill(~mine, 0.0), place(batch, pair[1])[:, None]
                level = {
                    "one": lambda own=own, at=at: own.gather(1, at)[:, 0],
                    "mean": lambda own=own, mine=mine: own.sum(1) / mine.sum(1),
                    "sum": lambda x=x, mine=mine: x.masked_fill(~mine, -torch.inf).logsumexp(1),
                }[parts.numerator]()
            logits.append(x)
            is_positive.append(mine)
        table, mine = torch.cat(logits, 1), torch.cat(is_positive, 1)
        if parts.hardest is not None:
            rivals = table.detach().masked_fill(mine, -torch.inf)
            order = rivals.argsort(1, descending=True).argsort(1)  # 0 for the highest
            table = table.masked_fill(~mine & (order >= parts.hardest), -torch.inf)
        assert level is not None
        total = total + (table.logsumexp(1) - level) / len(softmaxes)
    return total


def block(batch: Batch[Tensor], parts: Parts, pair: Pair, mine: Tensor, t: Tensor | float) -> Tensor:
    """Logits of a block, [n, c]; what is left out is -inf."""
    anchors, candidates = (batch.sides()[role].rows.double() for role in pair)
    anchors = anchors[place(batch, pair[0])]
    s = unit(anchors) @ unit(candidates).T if parts.similarity == "cosine" else anchors @ candidates.T
    x = s / t
    logq, own = batch.sides()[pair[1]].logq, owner(batch, pair)[None] == torch.arange(len(batch))[:, None]
    if parts.logq == "classic":
        x = x - WEIGHT * logq
    if parts.logq == "refined":
        x = x - torch.where(mine, 0.0, WEIGHT * logq)
    if parts.hardness and pair[0] == "query" and pair[1] != "query":
        on = {"all": torch.ones_like(own), "own": own, "others": ~own}[parts.hardness] & ~mine
        x = x + torch.where(on, STRENGTH * s.detach(), 0.0)
    if parts.margin:
        x = x - MARGIN * mine.double()
    out = torch.zeros_like(mine)
    if parts.same_id:
        out |= same_id(batch, pair)
    if parts.known:
        out |= known(batch, pair)
    if parts.guided:
        out |= guided(batch, parts.guided, pair)
    never = own if pair == ("doc", "negatives") else torch.zeros_like(own)
    if pair[0] == pair[1]:
        never = place(batch, pair[1])[:, None] == torch.arange(len(candidates))
    return x.masked_fill((out & ~mine) | never, -torch.inf)


def place(batch: Batch[Tensor], role: str) -> Tensor:
    """Where each row's own query or document stands, [n]."""
    if role == "query" or batch.answer is None:
        return torch.arange(len(batch))
    return (batch.answer[:, None] == batch.doc.ids).long().argmax(1)


def owner(batch: Batch[Tensor], pair: Pair) -> Tensor:
    """The row each candidate came with, [c]."""
    side = batch.sides()[pair[1]]
    if pair[1] == "query" or (pair[1] == "doc" and batch.answer is None):
        return torch.arange(len(side))
    return torch.full((len(side),), -1) if side.owner is None else side.owner


def same_id(batch: Batch[Tensor], pair: Pair) -> Tensor:
    """Candidates that are the row's query or document, [n, c]."""
    query, doc, ids = batch.query.ids, batch.doc.ids[place(batch, "doc")], batch.sides()[pair[1]].ids
    same_query = query[:, None] == query
    if pair[1] == "query":
        return same_query | (doc[:, None] == doc)
    if pair[1] == "doc":
        of = place(batch, "doc")[:, None] == torch.arange(len(ids))  # [n, c]
        return (same_query.double() @ of.double() > 0) | (doc[:, None] == ids)
    return doc[:, None] == ids


def known(batch: Batch[Tensor], pair: Pair) -> Tensor:
    """Candidates that are known to go with the row, [n, c]."""
    lists = [batch.known[[i]].values for i in range(len(batch))]
    ids = batch.doc.ids[place(batch, "doc")] if pair[1] == "query" else batch.sides()[pair[1]].ids
    answers = torch.stack([torch.isin(ids, values) for values in lists])  # [n, c]
    return answers | answers.T if pair[1] == "query" else answers


def guided(batch: Batch[Tensor], kind: str, pair: Pair) -> Tensor:
    """Candidates nearer to the anchor than the pair, [n, c]."""
    sides = batch.sides()
    vectors = {
        role: unit(side.rows.detach().double()) if kind == "self" else side.guide for role, side in sides.items()
    }
    p = (vectors["query"] @ vectors["doc"].T).gather(1, place(batch, "doc")[:, None])
    bound = {"absolute": p - 0.1, "relative": p - 0.2 * p.abs(), "self": p - 0.15 * p.abs()}[kind]
    return vectors[pair[0]][place(batch, pair[0])] @ vectors[pair[1]].T > bound
