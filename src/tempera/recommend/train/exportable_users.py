"""The users' tower as one module from codes of items to vectors, for export to other runtimes.

Letters in shapes: n rows, w items of the longest history, i items, u users, P pools, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import ConfigError
from .features import FeatureTowers
from .pooled import Ageing, Attending
from .pooling import Ages, Attention, BagOfOthers, Max, Mean, Pooling

POOLINGS = "mean, max, ages, attention, bag"
_EXPORTED = Mean | Max | Ages | Attention | BagOfOthers


class UserModule(nn.Module):
    """Map histories, [n, w], users, [n], and the times since their last events, [n], to vectors for
    comparison, [n, D]; `inputs` names the inputs that the tower reads.

    A history is a row of codes of items, the latest last, with -1 in front of a shorter history.
    The vectors of the features of all items and users are computed once, and looked up.

    Raises:
        ConfigError: a pool that reads events one after the other, or features of events.
    """

    items: Tensor
    users: Tensor

    def __init__(
        self, tower: FeatureTowers, pools: Sequence[Pooling], items: int, users: int
    ) -> None:
        super().__init__()
        past = tower.query.past
        for pool in pools:
            if not isinstance(pool, _EXPORTED):
                raise ConfigError(
                    f"a user tower with the pool {type(pool).__name__.lower()} cannot be exported: pools may be {POOLINGS}"
                )
        if tower.query.moment is not None or (past and past.happened is not None):
            raise ConfigError(
                "a user tower with features of events cannot be exported: train one without features of "
                "data.context and data.behaviour"
            )
        # in the order of `Past`
        means: list[Pooling] = [pool for pool in pools if isinstance(pool, Mean)]
        self.pools = means + [pool for pool in pools if not isinstance(pool, Mean)]
        self.learned = nn.ModuleList()
        if past is not None:
            self.learned.extend(
                module for module in past.pools if isinstance(module, Attending | Ageing)
            )
        self.network, self.normalised = tower.query.network, tower.normalised
        features = tower.query.features
        self.waiting = tower.query.waiting
        inputs = []
        of_items = torch.empty(1, 0)
        of_users = torch.empty(0)
        with torch.no_grad():
            if past is not None:
                inputs.append("history")
                of_items = past.items(torch.arange(items))
            if len(features.encoders):
                inputs.append("user")
                of_users = features(torch.arange(users))
        if self.waiting is not None:
            inputs.append("elapsed")
        self.inputs = tuple(inputs)
        no_item = torch.zeros_like(of_items[:1])
        self.register_buffer("items", torch.cat([of_items, no_item]))
        self.register_buffer("users", of_users)

    def forward(
        self, first: Tensor, second: Tensor | None = None, third: Tensor | None = None
    ) -> Tensor:
        tensors = [tensor for tensor in (first, second, third) if tensor is not None]
        values = dict(zip(self.inputs, tensors, strict=True))
        parts: list[Tensor] = []
        if "history" in values:
            parts += self._pooled(values["history"])
        if "user" in values:
            parts.append(self.users[values["user"]])
        if self.waiting is not None:
            parts.append(self.waiting(values["elapsed"]))
        vectors = self.network(torch.cat(parts, 1))
        return F.normalize(vectors, dim=-1) if self.normalised else vectors

    def _pooled(self, history: Tensor) -> Iterator[Tensor]:
        """Yield the vectors of histories by each pool, [n, w] -> [n, D]."""
        filled = history >= 0
        x = self.items[torch.where(filled, history, self.items.shape[0] - 1)]  # [n, w, D]
        age = history.shape[1] - 1 - torch.arange(history.shape[1], device=history.device)  # [w]
        learned = iter(self.learned)
        for pool in self.pools:
            seen = filled & (age < pool.last)  # [n, w]
            if isinstance(pool, Mean):
                yield _mean(x, seen * torch.pow(pool.decay, age.to(x.dtype)))
            elif isinstance(pool, BagOfOthers):
                yield _mean(x, filled.to(x.dtype), pool.power)
            elif isinstance(pool, Max):
                lowest = torch.finfo(x.dtype).min
                largest = x.masked_fill(~seen[:, :, None], lowest).amax(1)
                yield torch.where(seen.any(1, keepdim=True), largest, torch.zeros_like(largest))
            else:
                module = next(learned)
                assert isinstance(module, Attending | Ageing)
                logits = module.age[age.clamp(max=pool.last - 1)].expand(seen.shape)
                if isinstance(module, Attending):
                    logits = logits + module.score(x).squeeze(-1)
                logits = logits.masked_fill(~seen, torch.finfo(x.dtype).min)
                yield _mean(x, seen * (logits - logits.amax(1, keepdim=True)).exp())


def _mean(x: Tensor, weights: Tensor, power: float = 1.0) -> Tensor:
    """Return weighted sums over w, over a power of the weights' sum, [n, w, D] -> [n, D]; 0 where
    all weights are 0."""
    mass = weights.sum(1, keepdim=True)
    return torch.matmul(weights[:, None], x)[:, 0] / torch.where(mass > 0, mass, 1.0) ** power
