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
from .pooling import BagOfOthers, Causal

_BLOCK = 4096  # rows that are encoded at once
_LITTLE = 0.1  # of random weights beside those that a layer begins with


@dataclass(frozen=True)
class Features:
    """Embed users and items by their features as vectors of the same width.

    An item is the sum of its features' vectors, then a network; a user the pools of the items taken
    before and the sum of the user's own features, side by side, then a network.

    Args:
        doc: features of the items.
        query: features of the users themselves, and of the context in which they are asked.
        history: what users have taken before; None leaves it out.
        dimensions: width of all vectors.
        query_layers: widths of the hidden layers of the users' network; none makes it one linear
            layer, which begins as the mean of the pools, or nothing at all where there is one pool
            alone.
        doc_layers: the same of the items'; none leaves the sum as it is.
        dropout: share of the numbers that a network's input loses in training.
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
        if not self.doc:
            raise ConfigError("doc is empty; give at least one feature of the items, such as id")
        if not self.query and self.history is None:
            raise ConfigError("users have neither features nor a history: give query or history")
        if any(isinstance(feature, Id) and feature.init != "random" for feature in self.query):
            raise ConfigError(
                "tower.query: id with init cooccurrence is for items: put it into tower.doc"
            )
        if any(getattr(feature, "column", None) == "id" for feature in (*self.doc, *self.query)):
            raise ConfigError(
                "a feature reads the column 'id', as a run calls the ids themselves: give the feature id, or rename the column"
            )
        for heads in [
            pool.heads
            for pool in (self.history.pools if self.history else ())
            if isinstance(pool, Causal)
        ]:
            if self.dimensions % heads:
                raise ConfigError(
                    f"dimensions is {self.dimensions}, which {heads} heads of the transformer do not divide"
                )
        if any(isinstance(tower, Features) for tower in self.readers):
            raise ConfigError(
                "text.tower: features is not a text tower: give static, transformer or pretrained"
            )

    @property
    def readers(self) -> list[TowerOptions]:
        """The text towers among the features."""
        return [feature.tower for feature in (*self.doc, *self.query) if isinstance(feature, Text)]

    @property
    def is_bag(self) -> bool:
        """True if users are bags of items without an order."""
        return any(
            isinstance(pool, BagOfOthers) for pool in (self.history.pools if self.history else ())
        )

    def suited(self, ordered: bool) -> Features:
        """Return options that fit histories with an order, or without.

        Raises:
            ConfigError: pools that do not.
        """
        if self.history is None or all(
            isinstance(pool, BagOfOthers) != ordered for pool in self.history.pools
        ):
            return self
        if not ordered and self.history == History():  # the default
            return replace(self, history=History((BagOfOthers(),)), query_layers=())
        raise ConfigError(
            "tower.history: the pool bag is for interactions without an order (data.ordered=false), the others for those with one"
        )

    @property
    def learning_rate(self) -> float:
        """Default learning rate: 2e-3, or less if a text tower needs less."""
        return min([2e-3, *(tower.learning_rate for tower in self.readers)])

    def schedule(self, pairs: int, large: bool = False) -> tuple[int, float]:
        """Return a batch of about 125 an epoch, of 64 to 1,024 events, and 12 epochs for up to a
        million events to 3 of many.

        The batch has up to 2,048 events where users are bags.
        A text tower other than a static one trains for long: batches of up to 2,048 and 4 epochs.
        """
        if not all(isinstance(reader, Static) for reader in self.readers):
            return max(2, min(2048, pairs)), 4.0
        return batch_of(pairs, 125, 64, 2048 if self.is_bag else 1024), epochs_of(
            pairs, 12_000_000, 3, 12
        )

    def build(
        self, users: Entities, items: Entities, contexts: Entities | None = None
    ) -> FeatureTowers:
        """Return untrained towers for these users and items, and what events happened in."""
        return FeatureTowers(self, users, items, contexts)


class FeatureTowers(Encoder):
    """The tower of each role over frames with the columns user and history, or item."""

    padded = False

    def __init__(
        self, options: Features, users: Entities, items: Entities, contexts: Entities | None = None
    ) -> None:
        super().__init__()
        width, tables = options.dimensions, Tables()
        of_items = Sum([feature.encoder(items, "item", width, tables) for feature in options.doc])
        past = None
        if options.history is not None:
            shared = options.history.items == "shared"
            own = of_items if shared else Sum([Id().encoder(items, "history", width, Tables())])
            happened = _sum(options.history.features(contexts), contexts, width, tables)
            past = Past(options.history, own, width, happened)
        own_features = [feature for feature in options.query if not isinstance(feature, Elapsed)]
        moment = [feature for feature in own_features if _reads(feature, contexts)]
        if twice := next((feature for feature in moment if _reads(feature, users)), None):
            raise ConfigError(
                f"tower.query: the column {twice.column} is one of users and one of data.context: rename one"  # type: ignore[union-attr]
            )
        of_users = Sum(
            [
                feature.encoder(users, "user", width, tables)
                for feature in own_features
                if feature not in moment
            ]
        )
        self.doc = ItemTower(of_items, layers([width, *options.doc_layers, width], options.dropout))
        self.query = UserTower(
            past, of_users, _sum(moment, contexts, width, tables), width, options
        )
        self.normalised, self.width = True, width

    def of(self, role: Role) -> Embeds:
        """Return the tower that embeds a role."""
        return self.query if role == "query" else self.doc

    @torch.no_grad()
    def encode(self, features: Frame, role: Role = "doc") -> Tensor:
        """Return vectors of rows as they are compared, [n, D], on the CPU: of length 1 if
        `normalised`."""
        tower, device, parts = self.of(role), next(self.parameters()).device, []
        with without_dropout(self):
            for start in range(0, len(features), _BLOCK):
                vectors = tower(features[start : start + _BLOCK].to(device)).float()
                parts.append((F.normalize(vectors, dim=-1) if self.normalised else vectors).cpu())
        return torch.cat(parts) if parts else torch.empty(0, self.width)

    def save(self, folder: Path) -> None:
        """Write the weights; the tables of users and items are files beside them."""
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


def _sum(
    features: Sequence[Feature], contexts: Entities | None, width: int, tables: Tables
) -> Sum | None:
    """Return the sum of features of the context; None without features."""
    if not features or contexts is None:
        return None
    return Sum([feature.encoder(contexts, "event", width, tables) for feature in features])


def _reads(feature: Feature, entities: Entities | None) -> bool:
    """Return whether a feature reads a column that these entities have."""
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
        self.waiting = (
            Waiting(width)
            if any(isinstance(feature, Elapsed) for feature in options.query)
            else None
        )
        besides = bool(features.encoders) + (self.waiting is not None) + (moment is not None)
        inputs = (past.width if past else 0) + width * besides
        self.network = layers([inputs, *options.query_layers, width], options.dropout)
        if past and inputs > width and not options.query_layers:
            self._begin_at_the_mean(past.width // width)

    @torch.no_grad()
    def _begin_at_the_mean(self, pools: int) -> None:
        """Let one linear layer begin as the mean of the pools, to which the user's own features add
        little."""
        (linear,) = (module for module in self.network.modules() if isinstance(module, nn.Linear))
        linear.weight *= _LITTLE
        linear.bias.zero_()
        for block in linear.weight[:, : pools * linear.out_features].chunk(pools, 1):
            block += torch.eye(linear.out_features) / pools

    def forward(self, frame: Frame) -> Tensor:
        columns, parts = frame.columns, []
        if self.past is not None:
            parts.append(self.past(columns["history"], columns.get("own"), columns.get("contexts")))
        if len(self.features.encoders):
            parts.append(self.features(columns["user"]))
        if self.waiting is not None:
            parts.append(self.waiting(columns["elapsed"]))
        if self.moment is not None:
            parts.append(self.moment(columns["context"]))
        vectors: Tensor = self.network(torch.cat(parts, 1))
        return vectors


def layers(widths: Sequence[int], dropout: float) -> nn.Module:
    """Return linear layers of these widths with ReLU between them; no layer for two equal
    widths."""
    if len(widths) == 2 and widths[0] == widths[1]:
        return nn.Identity()
    parts: list[nn.Module] = [nn.Dropout(dropout)] if dropout else []
    for i, (a, b) in enumerate(pairwise(widths)):
        parts += [*([nn.ReLU()] if i else []), nn.Linear(a, b)]
    return nn.Sequential(*parts)
