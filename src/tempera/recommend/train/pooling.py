"""Ways to look back on a history, as options: means, the largest, attention, ages, a bag, and
layers that read in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

Count = Annotated[int, Field(gt=0)]
Decay = Annotated[float, Field(gt=0, le=1)]


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
        decay: factor of the weight; 1 weighs all events alike.
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
        decay: factor of the first weights for each event further back.
    """

    decay: Decay = 0.8


@dataclass(frozen=True)
class BagOfOthers:
    """The sum of all items of a user, without an order, over a power of the number of items; an
    event's own item is left out.

    Args:
        power: 1 is a mean, 0 a sum.
        dropout: share of the items that a user's sum loses in training.
    """

    power: Annotated[float, Field(ge=0, le=1)] = 0.5
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    last: ClassVar[int] = 1 << 40  # all events


@dataclass(frozen=True)
class Gru(Latest):
    """A gated recurrent unit, which reads `last` events before the first target of a run, and the
    events between targets."""


@dataclass(frozen=True)
class Causal(Latest):
    """A causal transformer, which reads `last` events before the first target of a run, and the
    events between targets.

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
