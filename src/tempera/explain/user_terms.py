"""A user's past events and features as terms of the user's vector, for towers that are linear in
them.

Letters in shapes: l events, P pools, n terms, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..arithmetic.abilities import without_dropout
from ..core.frame import Events, Frame
from ..recommend.train.features import FeatureTowers
from ..recommend.train.history import Past
from ..recommend.train.pooled import Ageing, Means, Others
from ..recommend.train.sequences import Sequences
from .static_words import Rows, of_length_one

HIDDEN = (
    "the users' network has hidden units: the parts are those of the units that are on for this "
    "user, and add up exactly"
)


@dataclass(frozen=True)
class Origin:
    """The origin of a term of a user's vector.

    Args:
        place: of a past event, counted from the end: 1 is the latest; None for no event.
        name: of a feature.
        of: owner of the feature: user, question, context, or model.
    """

    place: int | None = None
    name: str = ""
    of: str = ""


@dataclass(frozen=True)
class UserTerms:
    """The terms of a user's vector: the rows, [n, D], add up to the vector."""

    origins: Sequence[Origin]  # [n]
    rows: Rows  # [n, D]
    has_hidden_units: bool = False


@torch.no_grad()
def user_terms(towers: FeatureTowers, frame: Frame) -> UserTerms | None:
    """Return the terms of a user's vector; None for a tower with a pool that is not linear in the
    events.

    The input of the users' network is a sum of inputs, one for each event and each feature, with 0
    in the places of the others. Means, ages, windows and bags are linear in the events. A linear
    network maps the sum to the sum of its images, and adds its bias. A hidden unit that is off maps
    all inputs to 0, and one that is on is linear. The normalisation is one factor for all terms.

    Args:
        towers: with the users' tower.
        frame: columns of one row.
    """
    tower = towers.query
    columns: Any = frame.columns
    if tower.past is not None and not all(map(_is_linear, tower.past.pools)):
        return None
    origins: list[Origin] = []
    inputs: list[list[Tensor]] = []  # blocks of the input of the network, of each term
    widths: list[int] = []  # of the blocks
    with without_dropout(towers):
        if tower.past is not None:
            widths.append(tower.past.width)
            events = _events(tower.past, columns["history"], columns.get("contexts"))
            for i, vector in enumerate(events):
                origins.append(Origin(place=len(events) - i))
                inputs.append([vector])
        if len(tower.features.encoders):
            widths.append(towers.width)
            for feature, encoder in zip(towers.lasting, tower.features.encoders, strict=True):
                origins.append(Origin(name=getattr(feature, "column", "id"), of="user"))
                inputs.append(_after(widths, encoder(columns["user"])[0]))
        if tower.waiting is not None:
            widths.append(towers.width)
            origins.append(Origin(name="elapsed", of="question"))
            inputs.append(_after(widths, tower.waiting(columns["elapsed"])[0]))
        if tower.moment is not None:
            widths.append(towers.width)
            for feature, encoder in zip(towers.momentary, tower.moment.encoders, strict=True):
                origins.append(Origin(name=getattr(feature, "column", "id"), of="context"))
                inputs.append(_after(widths, encoder(columns["context"])[0]))
    whole = torch.zeros(len(inputs), sum(widths), dtype=torch.float64)
    for row, blocks in zip(whole, inputs, strict=True):
        vector = torch.cat(blocks)
        row[: len(vector)] = vector
    matrix, bias, has_hidden_units = _network_at(tower.network, whole.sum(0))
    rows = (whole @ matrix.T).numpy()
    if bias.any():
        origins.append(Origin(name="bias", of="model"))
        rows = np.concatenate([rows, bias[None].numpy()])
    if towers.normalised:
        rows = of_length_one(rows)
    return UserTerms(origins, rows, has_hidden_units)


def _is_linear(pool: nn.Module) -> bool:
    return isinstance(pool, Means | Ageing | Others)


def _after(widths: Sequence[int], vector: Tensor) -> list[Tensor]:
    """Return zeros in place of the blocks before the last, and a vector in the last block."""
    return [vector.new_zeros(sum(widths[:-1])), vector]


def _events(past: Past, events: Events, contexts: Events | None) -> Tensor:
    """Return the term of each event, the latest last, in the pools side by side, [l, P D]."""
    if not len(events.items):
        return torch.zeros(0, past.width, dtype=torch.float64)
    vectors = past.items(events.items).double()  # [l, D]
    if past.happened is not None and contexts is not None:
        vectors = vectors + past.happened(contexts.items).double()
    weights = torch.cat([_weights(pool, events) for pool in past.pools])  # [P, l]
    return (weights.T[:, :, None] * vectors[:, None]).flatten(1)


def _weights(pool: nn.Module, events: Events) -> Tensor:
    """Return the weight of each event in a linear pool, the latest last, [P, l]: the derivative of
    the pool's output by the vector of the event, in a width of 1."""
    count = len(events.items)
    exact = copy.deepcopy(pool).double()
    sequences = Sequences(events)

    def pooled(x: Tensor) -> Tensor:
        """Map the events, the latest last, [l], to the pools, [P]."""
        if isinstance(exact, Others):
            pools: Tensor = exact(x[:, None], torch.arange(count), events, None)[0]
        else:
            no_event = x.new_zeros(1)
            pools = exact(torch.cat([x, no_event])[:, None], sequences)[0]
        return pools

    with torch.enable_grad():
        ones = torch.ones(count, dtype=torch.float64)
        jacobian: Any = torch.autograd.functional.jacobian
        weights: Tensor = jacobian(pooled, ones)  # [P, l]
    return weights


def _network_at(network: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Return the matrix and the bias by which a network maps one input, and True if the network
    has hidden units.

    >>> layers = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    >>> inputs = torch.tensor([0.5, -1.0], dtype=torch.float64)
    >>> matrix, bias, _ = _network_at(layers, inputs)
    >>> torch.allclose(matrix @ inputs + bias, layers(inputs))
    True
    """
    matrix = torch.eye(len(inputs), dtype=torch.float64)
    bias = torch.zeros(len(inputs), dtype=torch.float64)
    has_hidden_units = False
    for module in network.children():
        if isinstance(module, nn.Linear):
            weight = module.weight.double()
            matrix = weight @ matrix
            bias = weight @ bias + module.bias.double()
        elif isinstance(module, nn.ReLU):
            has_hidden_units = True
            is_on = (matrix @ inputs + bias > 0).double()
            matrix = is_on[:, None] * matrix
            bias = is_on * bias
        else:
            assert isinstance(module, nn.Dropout)  # off
    return matrix, bias, has_hidden_units
