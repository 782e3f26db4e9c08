"""Two towers over features: users with their histories, and items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from ...arithmetic.abilities import without_dropout
from ...core.batch import Role
from ...core.frame import Frame
from ...errors import ConfigError
from ...task.rounds import Open
from ...towers.pair import Embeds, Encoder, TowerOptions, batch_of, epochs_of
from ...towers.static import Static
from .candidates import OPEN
from .encoders import Count, Elapsed, Entities, Feature, Id, OfUser, Share, Tables, Text, Waiting
from .history import History, Past
from .pooling import BagOfOthers, Causal, Pooling

_BLOCK = 4096  # rows that are encoded at once
_LITTLE = 0.1  # scale of the random weights of a layer that begins as a mean


@dataclass(frozen=True)
class Features:
    """Embed users and items by their features as vectors of the same width.

    An item is the sum of its features' vectors, then a network. A user is the pools of the items
    taken before and the sum of the user's own features, side by side, then a network.

    Args:
        doc: features of the items.
        query: features of the users themselves, and of the context of the question.
        history: the items that users have taken before; None leaves the history out.
        dimensions: width of all vectors.
        query_layers: widths of the hidden layers of the users' network. Without hidden layers the
            network is a single linear layer, with the mean of the pools as start, or no layer for a
            single pool alone.
        doc_layers: widths of the hidden layers of the items' network; none leaves the sum
            unchanged.
        dropout: share of the numbers of a network's input dropped in training.
    """

    open: ClassVar[Mapping[str, Open]] = OPEN

    doc: Sequence[Feature] = (Id(),)
    query: Sequence[OfUser] = ()
    history: History | None = field(default_factory=History)
    dimensions: Count = 64
    query_layers: tuple[Count, ...] = (256,)
    doc_layers: tuple[Count, ...] = ()
    dropout: Share = 0.0

    def __post_init__(self) -> None:
        features = [*self.doc, *self.query]
        if not self.doc:
            raise ConfigError("doc is empty; give at least one feature of the items, such as id")
        if not self.query and self.history is None:
            raise ConfigError("users have neither features nor a history: give query or history")
        for feature in self.query:
            if isinstance(feature, Id) and feature.init != "random":
                raise ConfigError(
                    "tower.query: id with init cooccurrence is for items: put it into tower.doc"
                )
        if any(getattr(feature, "column", None) == "id" for feature in features):
            raise ConfigError(
                "a feature reads the column 'id', as a run calls the ids themselves: give the feature id, or rename the column"
            )
        for pool in self._pools:
            if isinstance(pool, Causal) and self.dimensions % pool.heads:
                raise ConfigError(
                    f"dimensions is {self.dimensions}, which {pool.heads} heads of the transformer do not divide"
                )
        if any(isinstance(tower, Features) for tower in self.readers):
            raise ConfigError(
                "text.tower: features is not a text tower: give static, transformer or pretrained"
            )

    @property
    def _pools(self) -> Sequence[Pooling]:
        if self.history is None:
            return ()
        return self.history.pools

    @property
    def readers(self) -> list[TowerOptions]:
        """The text towers among the features."""
        return [feature.tower for feature in (*self.doc, *self.query) if isinstance(feature, Text)]

    @property
    def is_bag(self) -> bool:
        """True if users are bags of items without an order."""
        return any(isinstance(pool, BagOfOthers) for pool in self._pools)

    def suited(self, ordered: bool) -> Features:
        """Return the options for histories with an order, or for histories without an order.

        Raises:
            ConfigError: pools of the wrong kind.
        """
        if all(isinstance(pool, BagOfOthers) != ordered for pool in self._pools):
            return self
        if not ordered and self.history == History():  # the default
            return replace(self, history=History((BagOfOthers(),)), query_layers=())
        raise ConfigError(
            "tower.history: the pool bag is for interactions without an order (data.ordered=false), the others for those with one"
        )

    @property
    def learning_rate(self) -> float:
        """Default learning rate: 4e-3, or less if a text tower needs less."""
        rate = 4e-3
        for tower in self.readers:
            rate = min(rate, tower.learning_rate)
        return rate

    def schedule(self, pairs: int, large: bool = False) -> tuple[int, float]:
        """Return the default batch size and number of epochs for a number of events.

        An epoch has about 125 batches of 64 to 1,024 events, or up to 2,048 where users are bags.
        There are 6 epochs for up to a million events, and 2 for many.
        A text tower that is not static trains slowly: batches of up to 2,048 events and 4 epochs.
        """
        if not all(isinstance(reader, Static) for reader in self.readers):
            return max(2, min(2048, pairs)), 4.0
        largest = 2048 if self.is_bag else 1024
        return batch_of(pairs, 125, 64, largest), epochs_of(pairs, 6_000_000, 2, 6)

    def build(
        self, users: Entities, items: Entities, contexts: Entities | None = None
    ) -> FeatureTowers:
        """Return untrained towers for given users, items and contexts of events."""
        return FeatureTowers(self, users, items, contexts)


class FeatureTowers(Encoder):
    """The tower of each role over frames with the columns user and history, or item.

    Attributes:
        lasting: features of the users, in the order of their encoders.
        momentary: features of the context in which a user asks, in the order of their encoders.
    """

    padded = False

    def __init__(
        self, options: Features, users: Entities, items: Entities, contexts: Entities | None = None
    ) -> None:
        super().__init__()
        width = options.dimensions
        tables: Tables = {}
        of_items = Sum([feature.encoder(items, "item", width, tables) for feature in options.doc])
        past = None
        if options.history is not None:
            own = of_items
            if options.history.items == "own":
                own = Sum([Id().encoder(items, "history", width, {})])
            happened = _context_sum(options.history.features(contexts), contexts, width, tables)
            past = Past(options.history, own, width, happened)
        lasting: list[Feature] = []  # features of the users
        momentary: list[Feature] = []  # features of the context in which a user asks
        for feature in options.query:
            if isinstance(feature, Elapsed):
                continue
            if not _reads(feature, contexts):
                lasting.append(feature)
            elif _reads(feature, users):
                raise ConfigError(
                    f"tower.query: the column {feature.column} is one of users and one of data.context: rename one"  # type: ignore[union-attr]
                )
            else:
                momentary.append(feature)
        of_users = Sum([feature.encoder(users, "user", width, tables) for feature in lasting])
        self.doc = ItemTower(of_items, layers([width, *options.doc_layers, width], options.dropout))
        moment = _context_sum(momentary, contexts, width, tables)
        self.query = UserTower(past, of_users, moment, width, options)
        self.lasting = lasting
        self.momentary = momentary
        self.normalised = True
        self.width = width

    def of(self, role: Role) -> Embeds:
        """Return the tower of a role."""
        return self.query if role == "query" else self.doc

    @torch.no_grad()
    def encode(self, features: Frame, role: Role = "doc") -> Tensor:
        """Return vectors of rows for comparison, [n, D], on the CPU: of length 1 if
        `normalised`."""
        if not len(features):
            return torch.empty(0, self.width)
        tower = self.of(role)
        device = next(self.parameters()).device
        parts = []
        with without_dropout(self):
            for start in range(0, len(features), _BLOCK):
                vectors = tower(features[start : start + _BLOCK].to(device)).float()
                if self.normalised:
                    vectors = F.normalize(vectors, dim=-1)
                parts.append(vectors.cpu())
        return torch.cat(parts)

    def save(self, folder: Path) -> None:
        """Write the weights; the tables of users and items are files beside the weights."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {
            name: value.detach().cpu().clone().contiguous()
            for name, value in self.state_dict().items()
        }
        (folder / "model.safetensors").write_bytes(save(weights))


class Sum(nn.Module):
    """The sum of several encoders' vectors of the same entities."""

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, codes: Tensor) -> Tensor:
        total: Tensor = self.encoders[0](codes)
        for encoder in list(self.encoders)[1:]:
            total = total + encoder(codes)
        return total


def _context_sum(
    features: Sequence[Feature], contexts: Entities | None, width: int, tables: Tables
) -> Sum | None:
    """Return an encoder of contexts by the sum of their features; None without features."""
    if not features or contexts is None:
        return None
    return Sum([feature.encoder(contexts, "event", width, tables) for feature in features])


def _reads(feature: Feature, entities: Entities | None) -> bool:
    """Return True if the entities have the column of a feature."""
    return entities is not None and getattr(feature, "column", None) in entities.table.column_names


class ItemTower(nn.Module):
    """Map items to vectors, [n, D]."""

    padded = False

    def __init__(self, features: Sum, network: nn.Module) -> None:
        super().__init__()
        self.features, self.network = features, network

    def forward(self, frame: Frame) -> Tensor:
        vectors: Tensor = self.network(self.features(frame.columns["item"]))
        return vectors


class UserTower(nn.Module):
    """Map users to vectors, [n, D]."""

    padded = False

    def __init__(
        self, past: Past | None, features: Sum, moment: Sum | None, width: int, options: Features
    ) -> None:
        super().__init__()
        self.past, self.features, self.moment = past, features, moment
        self.waiting = None
        if any(isinstance(feature, Elapsed) for feature in options.query):
            self.waiting = Waiting(width)
        inputs = 0
        if past is not None:
            inputs += past.width
        if len(features.encoders):
            inputs += width
        if self.waiting is not None:
            inputs += width
        if moment is not None:
            inputs += width
        self.network = layers([inputs, *options.query_layers, width], options.dropout)
        if past is not None and inputs > width and not options.query_layers:
            self._begin_at_the_mean(past.width // width)

    @torch.no_grad()
    def _begin_at_the_mean(self, pools: int) -> None:
        """Set the linear layer to the mean of the pools, to which the user's own features add
        little."""
        (linear,) = (module for module in self.network.modules() if isinstance(module, nn.Linear))
        linear.weight *= _LITTLE
        linear.bias.zero_()
        for block in linear.weight[:, : pools * linear.out_features].chunk(pools, 1):
            block += torch.eye(linear.out_features) / pools

    def forward(self, frame: Frame) -> Tensor:
        columns = frame.columns
        parts = []
        if self.past is not None:
            own, contexts = columns.get("own"), columns.get("contexts")
            parts.append(self.past(columns["history"], own, contexts))
        if len(self.features.encoders):
            parts.append(self.features(columns["user"]))
        if self.waiting is not None:
            parts.append(self.waiting(columns["elapsed"]))
        if self.moment is not None:
            parts.append(self.moment(columns["context"]))
        vectors: Tensor = self.network(torch.cat(parts, 1))
        return vectors


def layers(widths: Sequence[int], dropout: float) -> nn.Module:
    """Return linear layers of given widths with ReLU in between; no layer for two equal widths."""
    if len(widths) == 2 and widths[0] == widths[1]:
        return nn.Identity()
    parts: list[nn.Module] = [nn.Dropout(dropout)] if dropout else []
    for i, (before, after) in enumerate(pairwise(widths)):
        if i > 0:
            parts.append(nn.ReLU())
        parts.append(nn.Linear(before, after))
    return nn.Sequential(*parts)
