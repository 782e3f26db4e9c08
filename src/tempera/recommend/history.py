"""Histories of users as vectors: several ways to look back, side by side, over histories that rows share.

Rows whose histories start at the same event are one sequence, read once: each row looks back from its own place in it.

Letters in shapes: n rows, s sequences, L events of the longest, E places that rows look back from, P pools, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ..core.frame import Events
from ..core.ragged import spread
from ..errors import ConfigError
from .encoders import Category, Entities, Feature
from .events import BEHAVIOUR

Count = Annotated[int, Field(gt=0)]
Decay = Annotated[float, Field(gt=0, le=1)]
_APART = (
    16  # events: all sequences are padded to the places of the deepest, so that a gap costs more than reading again
)


_SHORT = 4  # places: shorter sequences of a transformer are padded to these


@dataclass(frozen=True)
class Sequences:
    """Arrange events as one row for each sequence, counted from its end: place 0 is the latest event that a row has seen.

    Rows that share a start share a sequence, unless there is a gap of many events between the places they look back from.
    """

    events: Events

    @cached_property
    def _shared(self) -> tuple[Tensor, Tensor, Tensor]:
        """Start and end of each sequence, [s], and the sequence of each row, [n]; on the host, so that no device is waited for."""
        events = self.events.on_host
        order = (events.start * (events.stop.max() + 1) + events.stop).argsort()
        start, stop = events.start[order], events.stop[order]
        fresh = torch.ones_like(start, dtype=torch.bool)
        fresh[1:] = (start.diff() > 0) | (stop.diff() > _APART)
        first = fresh.nonzero()[:, 0]
        last = torch.cat([first[1:], first.new_tensor([len(start)])]) - 1
        return start[first], stop[last], torch.empty_like(order).index_copy_(0, order, fresh.cumsum(0) - 1)

    @cached_property
    def lengths(self) -> Tensor:
        """Events of each sequence, [s], on the host."""
        starts, ends, _ = self._shared
        return ends - starts

    @cached_property
    def _longest(self) -> int:
        return max(1, int(self.lengths.max()))

    @cached_property
    def _back(self) -> Tensor:
        _, ends, of = self._shared
        return (ends[of] - self.events.on_host.stop).clamp_max(self._longest - 1)

    @cached_property
    def of(self) -> Tensor:
        """The sequence of each row, [n]."""
        return self._shared[2].to(self.events.start.device)

    @cached_property
    def back(self) -> Tensor:
        """Place of each row in its sequence, [n]: the number of events after its history.

        An empty history has no place of its own, and looks back from the last.
        """
        return self._back.to(self.events.start.device)

    @cached_property
    def seen(self) -> Tensor:
        """Events of each row's history, [n]."""
        return self.events.stop - self.events.start

    @cached_property
    def places(self) -> Tensor:
        """Event at each place of each sequence, [s, L], L at least 1; -1 before the sequence begins."""
        starts, ends, _ = self._shared
        at = ends[:, None] - 1 - torch.arange(self._longest)
        return torch.where(at >= starts[:, None], at, -1).to(self.events.start.device)

    def rows(self, values: Tensor) -> Tensor:
        """Return the values of each row, [n, ...], from those of every place that rows look back from, [s, E, ...]."""
        return values.flatten(0, 1).index_select(0, self.of * values.shape[1] + self.back)

    @cached_property
    def allowed(self) -> Tensor:
        """Return whether a row that looks back from a place sees another one, [s, E, L]."""
        place = torch.arange(self.places.shape[1], device=self.places.device)
        return (place[None] >= place[:, None])[: self.depth] & (self.places >= 0)[:, None]

    @cached_property
    def depth(self) -> int:
        """Number E of places that rows look back from."""
        return int(self._back.max()) + 1


class Means(nn.Module):
    """Weighted means of the latest events: of age a, counted from 0, weight decay^a, and 0 from `last` on."""

    def __init__(self, means: Sequence[Mean]) -> None:
        super().__init__()
        self.last, self.decay = [mean.last for mean in means], [mean.decay for mean in means]

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Map [s, L, D] to [n, P D]."""
        band = self._band(sequences.depth, x.shape[1], x)  # [E P, L]
        sums = torch.matmul(band, x).view(len(x), sequences.depth, len(self.last), -1)
        return (sequences.rows(sums) / self._mass(sequences.seen, x)).flatten(1)

    def _band(self, depth: int, longest: int, like: Tensor) -> Tensor:
        age = torch.arange(longest, device=like.device) - torch.arange(depth, device=like.device)[:, None]  # [E, L]
        weights = [(age >= 0) & (age < last) for last in self.last]
        return torch.stack(
            [inside * decay ** age.clamp_min(0).to(like.dtype) for inside, decay in zip(weights, self.decay)], 1
        ).flatten(0, 1)

    def _mass(self, seen: Tensor, like: Tensor) -> Tensor:
        """Sum of the weights of each row, [n, P, 1]; 1 for an empty history."""
        counts = torch.stack([seen.clamp(1, last) for last in self.last], 1).to(like.dtype)
        decay = torch.tensor(self.decay, dtype=like.dtype, device=like.device)
        geometric = (1 - decay**counts) / (1 - decay).clamp_min(1e-12)
        return torch.where(decay < 1, geometric, counts)[:, :, None]


class Largest(nn.Module):
    """The largest of each number among the latest events."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Map [s, L, D] to [n, D]."""
        lowest = torch.finfo(x.dtype).min
        padded = x.masked_fill((sequences.places < 0)[:, :, None], lowest)
        padded = torch.cat([padded, padded.new_full((len(x), sequences.depth + self.last, x.shape[2]), lowest)], 1)
        windows = padded[:, : sequences.depth + self.last - 1].unfold(1, self.last, 1)  # [s, E, D, last]
        return sequences.rows(windows.amax(-1))


class Attending(nn.Module):
    """A mean of the latest events with weights learned from event and age (Bahdanau et al. 2015)."""

    def __init__(self, width: int, last: int) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1, bias=False))
        self.age = nn.Parameter(torch.zeros(last))

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Map [s, L, D] to [n, D]."""
        depth, last = sequences.depth, len(self.age)
        place = torch.arange(x.shape[1], device=x.device)
        age = place - place[:depth, None]  # [E, L]
        bias = self.age[age.clamp(0, last - 1)].masked_fill(age >= last, -torch.inf)
        logits = (self.score(x).squeeze(-1)[:, None] + bias).masked_fill(~sequences.allowed, -torch.inf)
        logits = logits.masked_fill((logits == -torch.inf).all(-1, keepdim=True), 0)
        pooled = torch.matmul(logits.softmax(-1), x)
        return sequences.rows(pooled)


class Ageing(nn.Module):
    """A mean of the latest events with a learned weight for each age, whatever the event; begun as decay^age."""

    def __init__(self, last: int, decay: float) -> None:
        super().__init__()
        self.age = nn.Parameter(math.log(decay) * torch.arange(last))

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Map [s, L, D] to [n, D]."""
        place = torch.arange(x.shape[1], device=x.device)
        age = place - place[: sequences.depth, None]  # [E, L]
        last = len(self.age)
        inside = (age >= 0) & (age < last)
        weights = self.age.exp()[age.clamp(0, last - 1)] * inside  # [E, L]
        mass = self.age.exp().cumsum(0)[sequences.seen.clamp(1, last) - 1]  # [n]
        return sequences.rows(torch.matmul(weights, x)) / mass[:, None]


class Others(nn.Module):
    """The sum of all other items of a user over a power of their number: each row's own item is taken from its user's sum."""

    def __init__(self, bag: BagOfOthers) -> None:
        super().__init__()
        self.power, self.dropout = bag.power, bag.dropout

    def forward(self, vectors: Tensor, which: Tensor, events: Events, own: Tensor | None) -> Tensor:
        """Map the vectors of distinct items, [d, D], and the one of each event, [e], to [n, D].

        Args:
            own: place of each row's own item in its history, [n]; -1, or None for all, where it is not there.
        """
        known = events.on_host
        beyond = known.stop.max() + 1
        spans, of = torch.unique(known.start * beyond + known.stop, return_inverse=True)
        begin, lengths = spans // beyond, spans % beyond - spans // beyond
        read = spread(begin, lengths)
        of, lengths, read = (each.to(vectors.device) for each in (of, lengths, read))
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
        """Map [s, L, D] to [n, D]."""
        lengths = (sequences.places >= 0).sum(1)
        forward = x.flip(1)
        # From the first event on: the places before the beginning are moved to the end.
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
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        s, length, width = x.shape
        q, k, v = self.mix(self.before(x)).view(s, length, 3, self.heads, -1).transpose(1, 3).unbind(2)
        # Written out, because torch's kernels differ with and without a graph, and a replay must repeat every bit.
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + bias  # [s, heads, L, L]
        mixed = self.drop(logits.softmax(-1)) @ v
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(s, length, width)))
        fed: Tensor = x + self.drop(self.feed(self.between(x)))
        return fed


class Transforming(nn.Module):
    """A causal transformer over the history, read at the latest event (Kang and McAuley 2018), with ages for positions."""

    def __init__(self, width: int, layers: int, heads: int, last: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(CausalLayer(width, heads, dropout) for _ in range(layers))
        self.age = nn.Parameter(torch.zeros(heads, last))
        self.drop, self.norm = nn.Dropout(dropout), nn.LayerNorm(width)

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Map [s, L, D] to [n, D]; sequences of similar length are read together, so that few places are empty."""
        longest, known = x.shape[1], sequences.places >= 0
        sizes = 2 ** sequences.lengths.clamp_min(_SHORT).log2().ceil().long()
        groups = [((sizes == size).nonzero()[:, 0], min(size, longest)) for size in torch.unique(sizes).tolist()]
        order = torch.cat([of for of, _ in groups]).argsort().to(x.device)
        parts = []
        for of, size in ((of.to(x.device), size) for of, size in groups):
            read = self._read(x[:, :size].index_select(0, of), known[:, :size].index_select(0, of))
            parts.append(F.pad(read, (0, 0, 0, longest - size)))
        states = torch.cat(parts).index_select(0, order)
        return sequences.rows(self.norm(states))

    def _read(self, x: Tensor, known: Tensor) -> Tensor:
        """Return the states at all places of some sequences, [s, L, D]; `known` tells which places hold an event, [s, L]."""
        place = torch.arange(x.shape[1], device=x.device)
        age = place - place[:, None]  # [L, L] how much older what is looked at is
        bias = self.age[:, age.clamp(0, self.age.shape[1] - 1)]  # [heads, L, L]
        visible = known[:, None] | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        bias = bias.masked_fill(~((age >= 0) & visible)[:, None], -torch.inf)  # [s, heads, L, L]
        x = self.drop(x)
        for block in self.blocks:
            x = block(x, bias.to(x.dtype))
        return x


@dataclass(frozen=True)
class Latest:
    """Number of events that a pool looks back on.

    Args:
        last: number of the latest events.
    """

    last: Count = 50


@dataclass(frozen=True)
class Mean(Latest):
    """The mean of the `last` events; the weight falls by `decay` with each event further back.

    Args:
        decay: what the weight is multiplied by; 1 weighs all alike.
    """

    decay: Decay = 1.0


@dataclass(frozen=True)
class Max(Latest):
    """The largest of each number among the `last` events."""


@dataclass(frozen=True)
class Attention(Latest):
    """A mean of the `last` events, with learned weights."""


@dataclass(frozen=True)
class Ages(Latest):
    """A mean of the `last` events with a learned weight for each age.

    Args:
        decay: what the weights begin with: each event further back counts less by it.
    """

    decay: Decay = 0.8


@dataclass(frozen=True)
class BagOfOthers:
    """All other items of a user, without an order: their sum over a power of their number; an event's own item is left out.

    Args:
        power: 1 is a mean, 0 a sum.
        dropout: share of the items that a user's sum loses in training.
    """

    power: Annotated[float, Field(ge=0, le=1)] = 0.5
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    last: ClassVar[int] = 1 << 40  # events that it looks back on: all


@dataclass(frozen=True)
class Gru(Latest):
    """A gated recurrent unit; `last` events before the first target of a run and those between them are read."""


@dataclass(frozen=True)
class Causal(Latest):
    """A causal transformer; `last` events before the first target of a run, and those between targets, are read.

    Args:
        layers: of attention and feed-forward.
        heads: of attention; divide the width.
        dropout: of hidden states and attention.
    """

    layers: Count = 2
    heads: Count = 2
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2


Pooling = Mean | Max | Ages | Attention | BagOfOthers | Gru | Causal
POOLINGS: dict[str, type] = {
    "mean": Mean,
    "max": Max,
    "ages": Ages,
    "attention": Attention,
    "bag": BagOfOthers,
    "gru": Gru,
    "transformer": Causal,
}
WINDOWS: tuple[Pooling, ...] = (Mean(1), Mean(3, 0.8), Mean(10, 0.9), Mean(50))


@dataclass(frozen=True)
class History:
    """The items that a user has taken before: pools of the vectors of these items, side by side.

    Args:
        pools: ways to look back.
        items: "shared" takes the items' vectors of the document tower; "own" a table that only histories use.
        targets: consecutive events of a user that share the reading of their history; more are faster and more alike.
        dropout: share of the numbers of the items' vectors that the pools lose in training.
        context: features of what past events happened in (data.context), added to their items' vectors; that of the behaviour is
            always there, if there is one.

    Raises:
        ConfigError: no pools, or a context beside a bag, which reads items alone.
    """

    pools: Sequence[Pooling] = WINDOWS
    items: Literal["shared", "own"] = "shared"
    targets: Count = 16
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    context: Sequence[Feature] = ()

    def __post_init__(self) -> None:
        if self.context and any(isinstance(pool, BagOfOthers) for pool in self.pools):
            raise ConfigError("context is for pools of an order: the bag reads items alone")
        if not self.pools:
            raise ConfigError("pools is empty: give at least one, such as mean, or leave history out")

    @property
    def last(self) -> int:
        """Events that the pools look back on."""
        return max(pool.last for pool in self.pools)

    def features(self, contexts: Entities | None) -> list[Feature]:
        """Return the features of past events beside their items, where these contexts are known.

        Raises:
            ConfigError: features without a context.
        """
        if self.context and contexts is None:
            raise ConfigError("tower.history.context reads columns of events: name them in data.context")
        named = [getattr(feature, "column", "") for feature in self.context]
        behaves = contexts is not None and BEHAVIOUR in contexts.table.column_names and BEHAVIOUR not in named
        return [*([Category(BEHAVIOUR)] if behaves else []), *self.context]


class Past(nn.Module):
    """Map events of rows to [n, P D]: the pools of a history, side by side, means before others; 0 for an empty history.

    Args:
        items: codes [e] to vectors [e, D].
        happened: the same of what events happened in, which is added to them.
    """

    def __init__(
        self, history: History, items: Callable[[Tensor], Tensor], width: int, happened: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.items, self.happened, self.width = items, happened, width * len(history.pools)
        self.drop = nn.Dropout(history.dropout)
        means = [pool for pool in history.pools if isinstance(pool, Mean)]
        self.pools = nn.ModuleList([Means(means)] if means else [])
        self.pools.extend(_module(pool, width) for pool in history.pools if not isinstance(pool, Mean))

    def forward(self, events: Events, own: Tensor | None = None, contexts: Events | None = None) -> Tensor:
        if not len(events):
            return self.items(events.items[:0]).new_zeros(0, self.width)
        if isinstance(self.pools[0], Others):
            distinct, which = _distinct(events)
            vectors = self.items(distinct)
            return torch.cat([pool(self.drop(vectors), which, events, own) for pool in self.pools], 1)
        sequences = Sequences(events)
        x = _looked_up(self.items, events, sequences.places)
        if self.happened is not None and contexts is not None:
            x = x + _looked_up(self.happened, contexts, sequences.places)
        x = self.drop(x)  # [s, L, D]
        pooled = torch.cat([pool(x, sequences) for pool in self.pools], 1)
        return pooled.masked_fill((sequences.seen == 0)[:, None], 0)


def _looked_up(vectors_of: Callable[[Tensor], Tensor], events: Events, places: Tensor) -> Tensor:
    """Return vectors of the events at some places, [s, L, D], each distinct code embedded once; 0 at the place -1."""
    distinct, which = _distinct(events)
    vectors = vectors_of(distinct)
    vectors = torch.cat([vectors, vectors.new_zeros(1, vectors.shape[1])])  # the last stands for no event
    which = torch.cat([which, which.new_full((1,), len(distinct))])
    return vectors.index_select(0, which[places].flatten()).view(*places.shape, vectors.shape[1])


def _distinct(events: Events) -> tuple[Tensor, Tensor]:
    """Return the distinct codes of events, and the place of each event's among them; found on the host."""
    distinct, which = torch.unique(events.on_host.items, return_inverse=True)
    return distinct.to(events.items.device), which.to(events.items.device)


def _module(pool: Pooling, width: int) -> nn.Module:
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
