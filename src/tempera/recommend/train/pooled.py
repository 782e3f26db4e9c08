"""Ways to look back on a history, as modules: each maps the vectors of sequences' events to a
vector for each row.

Letters in shapes: n rows, e events, s sequences, L events of the longest, E places that rows look
    back from, D width. The last vector of [e + 1, D] stands for no event.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...arithmetic.abilities import placed, sent
from ...arithmetic.ragged import spread
from ...core.frame import Events
from .pooling import Ages, Attention, BagOfOthers, Causal, Gru, Max, Mean, Pooling
from .sequences import AlikeLengths, Sequences, vectors_at


class Means(nn.Module):
    """Weighted means of the latest events: of age a, counted from 0, weight decay^a, and 0 from
    `last` on."""

    def __init__(self, means: Sequence[Mean]) -> None:
        super().__init__()
        self.means = means

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Map [e + 1, D] to [n, P D]."""
        pooled = []
        for group in sequences.groups:
            band = self._band(group.depth, group.places.shape[1], x)  # [E P, L]
            pooled.append(_banded(band, group, x, len(self.means)))
        return (sequences.of_groups(pooled) / self._mass(sequences.seen, x)).flatten(1)

    def _band(self, depth: int, longest: int, like: Tensor) -> Tensor:
        """Return the weight of each event for each place that rows look back from, [E P, L]."""
        place = torch.arange(longest, device=like.device)
        age = place - place[:depth, None]  # [E, L]
        power = age.clamp_min(0).to(like.dtype)
        weights = []
        for mean in self.means:
            inside = (age >= 0) & (age < mean.last)
            weights.append(inside * mean.decay**power)
        return torch.stack(weights, 1).flatten(0, 1)

    def _mass(self, seen: Tensor, like: Tensor) -> Tensor:
        """Return the sum of the weights of each row, [n, P, 1]; 1 for an empty history."""
        counts = torch.stack([seen.clamp(1, mean.last) for mean in self.means], 1).to(like.dtype)
        decays = [mean.decay for mean in self.means]
        if all(decay == 1 for decay in decays):
            return counts[:, :, None]
        decay = placed(torch.tensor(decays, dtype=torch.float64), like)
        geometric = (1 - decay**counts) / (1 - decay).clamp_min(1e-12)
        return torch.where(decay < 1, geometric, counts)[:, :, None]


def _banded(band: Tensor, group: AlikeLengths, x: Tensor, pools: int) -> Tensor:
    """Return sums of a group's events, weighted by how far a row looks back: [n, P, D] of the
    group's rows.

    Args:
        band: weights of the places for each place that rows look back from, and each of P pools,
            [E P, L].
        x: [e + 1, D].
    """
    count = len(group.places)
    # One product for all sequences, in place of a small one for each.
    read = vectors_at(group.places.T, x).flatten(1)  # [L, s D]
    sums = torch.mm(band, read).view(-1, x.shape[1])  # [E P s, D]
    pool = torch.arange(pools, device=x.device)
    at = (group.back[:, None] * pools + pool) * count + group.of[:, None]  # [n, P]
    return sums.index_select(0, at.flatten()).view(*at.shape, -1)


class Largest(nn.Module):
    """The largest of each number among the latest events."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Map [e + 1, D] to [n, D]."""
        x = sequences.padded(x)
        lowest = torch.finfo(x.dtype).min
        depth = sequences.depth
        known = x.masked_fill((sequences.places < 0)[:, :, None], lowest)
        padding = x.new_full((len(x), depth + self.last, x.shape[2]), lowest)
        padded = torch.cat([known, padding], 1)[:, : depth + self.last - 1]
        windows = padded.unfold(1, self.last, 1)  # [s, E, D, last]
        return sequences.rows(windows.amax(-1))


class Attending(nn.Module):
    """A mean of the latest events with weights learned from event and age (Bahdanau et al.
    2015)."""

    def __init__(self, width: int, last: int) -> None:
        super().__init__()
        self.score = nn.Sequential(
            nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1, bias=False)
        )
        self.age = nn.Parameter(torch.zeros(last))

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Map [e + 1, D] to [n, D]."""
        x = sequences.padded(x)
        last = len(self.age)
        place = torch.arange(x.shape[1], device=x.device)
        age = place - place[: sequences.depth, None]  # [E, L]
        bias = self.age[age.clamp(0, last - 1)].masked_fill(age >= last, -torch.inf)
        logits = self.score(x).squeeze(-1)[:, None] + bias  # [s, E, L]
        logits = logits.masked_fill(~sequences.allowed, -torch.inf)
        # An empty history has no logits to weigh by.
        logits = logits.masked_fill((logits == -torch.inf).all(-1, keepdim=True), 0)
        pooled = torch.matmul(logits.softmax(-1), x)
        return sequences.rows(pooled)


class Ageing(nn.Module):
    """A mean of the latest events with a learned weight for each age, whatever the event; the
    weights begin as decay^age."""

    def __init__(self, last: int, decay: float) -> None:
        super().__init__()
        self.age = nn.Parameter(math.log(decay) * torch.arange(last))

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Map [e + 1, D] to [n, D]."""
        last = len(self.age)
        pooled = []
        for group in sequences.groups:
            place = torch.arange(group.places.shape[1], device=x.device)
            age = place - place[: group.depth, None]  # [E, L]
            inside = (age >= 0) & (age < last)
            weights = self.age.exp()[age.clamp(0, last - 1)] * inside  # [E, L]
            pooled.append(_banded(weights, group, x, 1)[:, 0])
        mass = self.age.exp().cumsum(0)[sequences.seen.clamp(1, last) - 1]  # [n]
        return sequences.of_groups(pooled) / mass[:, None]


class Others(nn.Module):
    """The sum of all items of a user but the row's own item, over a power of the number of
    items."""

    def __init__(self, bag: BagOfOthers) -> None:
        super().__init__()
        self.power, self.dropout = bag.power, bag.dropout

    def forward(self, vectors: Tensor, which: Tensor, events: Events, own: Tensor | None) -> Tensor:
        """Map the vectors of distinct items, [d, D], and the item of each event, [e], to [n, D].

        Args:
            own: place of each row's own item in the row's history, [n]; -1 where the history does
                not hold the own item, None where no history does.
        """
        known = events.on_host
        # Rows with the same history share one sum.
        beyond = known.stop.max() + 1
        spans, of = torch.unique(known.start * beyond + known.stop, return_inverse=True)
        begin, end = spans // beyond, spans % beyond
        device = vectors.device
        read = sent(spread(begin, end - begin), device)
        lengths = sent(end - begin, device)
        of = sent(of, device)
        first = lengths.cumsum(0) - lengths
        which = which[read]
        weight = torch.ones_like(which, dtype=vectors.dtype)
        if self.training and self.dropout:
            weight = F.dropout(weight, self.dropout)
        sums = F.embedding_bag(which, vectors, first, mode="sum", per_sample_weights=weight)[of]
        count = lengths[of]
        if own is not None and len(which):
            at = (first[of] + own).clamp(0, len(which) - 1)
            inside = own >= 0
            sums = sums - vectors[which[at]] * (weight[at] * inside)[:, None]
            count = count - inside.long()
        scale: Tensor = count.clamp_min(1).to(sums.dtype) ** self.power
        return sums.masked_fill((count == 0)[:, None], 0) / scale[:, None]


class Recurrent(nn.Module):
    """The state of a gated recurrent unit after the latest event (Cho et al. 2014)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.unit = nn.GRU(width, width, batch_first=True)

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Map [e + 1, D] to [n, D]."""
        x = sequences.padded(x)
        lengths = (sequences.places >= 0).sum(1)
        forward = x.flip(1)
        # Each sequence begins at place 0: the places before its first event are moved to the end.
        place = torch.arange(x.shape[1], device=x.device)
        order = (place + (x.shape[1] - lengths)[:, None]) % x.shape[1]
        states = self.unit(forward.gather(1, order[:, :, None].expand_as(forward)))[0]
        at = (lengths[sequences.of] - 1 - sequences.back).clamp_min(0)
        rows: Tensor = states.flatten(0, 1).index_select(0, sequences.of * x.shape[1] + at)
        return rows


class CausalLayer(nn.Module):
    """One layer of a transformer that normalises first, with causal attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.between = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, bias: Tensor, wanted: Tensor | None = None) -> Tensor:
        """Map the states at all places, [s, L, D], to the next states, [s, L, D]; or to the states
        at some of the places alone, [n, D].

        Args:
            bias: added to the logits of attention, [s, heads, L, L].
            wanted: places among the s L of all sequences, [n].
        """
        s, length, width = x.shape
        mixed = self.mix(self.before(x)).view(s, length, 3, self.heads, -1)
        q, k, v = mixed.transpose(1, 3).unbind(2)  # [s, heads, L, D / heads] each
        # Written out, because torch's kernels differ with and without a graph, and a replay must
        # repeat every bit.
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + bias  # [s, heads, L, L]
        attended = (self.drop(logits.softmax(-1)) @ v).transpose(1, 2).reshape(s, length, width)
        if wanted is not None:
            attended = attended.flatten(0, 1).index_select(0, wanted)
            x = x.flatten(0, 1).index_select(0, wanted)
        x = x + self.drop(self.out(attended))
        fed: Tensor = x + self.drop(self.feed(self.between(x)))
        return fed


class Transforming(nn.Module):
    """A causal transformer over the history, read at the latest event (Kang and McAuley 2018), with
    ages for positions."""

    def __init__(self, width: int, layers: int, heads: int, last: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(CausalLayer(width, heads, dropout) for _ in range(layers))
        self.age = nn.Parameter(torch.zeros(heads, last))
        self.drop = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Map [e + 1, D] to [n, D]."""
        states = [self._read(x, group) for group in sequences.groups]
        normed: Tensor = self.norm(sequences.of_groups(states))
        return normed

    def _read(self, events: Tensor, group: AlikeLengths) -> Tensor:
        """Return the states that the rows of a group look back from, [n, D]; the last layer
        computes no others."""
        x = vectors_at(group.places, events)  # [s, L, D]
        known = group.places >= 0
        place = torch.arange(x.shape[1], device=x.device)
        age = place - place[:, None]  # [L, L] of an event, as seen from each place
        bias = self.age[:, age.clamp(0, self.age.shape[1] - 1)]  # [heads, L, L]
        visible = known[:, None] | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        bias = bias.masked_fill(~((age >= 0) & visible)[:, None], -torch.inf)  # [s, heads, L, L]
        bias = bias.to(x.dtype)
        wanted = group.of * x.shape[1] + group.back
        x = self.drop(x)
        for block in self.blocks[:-1]:
            x = block(x, bias)
        states: Tensor = self.blocks[-1](x, bias, wanted)
        return states


def module_of(pool: Pooling, width: int) -> nn.Module:
    """Return the module of a pool other than a mean, which are computed together."""
    if isinstance(pool, Max):
        return Largest(pool.last)
    if isinstance(pool, Ages):
        return Ageing(pool.last, pool.decay)
    if isinstance(pool, Attention):
        return Attending(width, pool.last)
    if isinstance(pool, BagOfOthers):
        return Others(pool)
    if isinstance(pool, Gru):
        return Recurrent(width)
    assert isinstance(pool, Causal)
    return Transforming(width, pool.layers, pool.heads, pool.last, pool.dropout)
