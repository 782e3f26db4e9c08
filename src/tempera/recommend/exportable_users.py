"""The users' tower as one module from codes of items to vectors, for export to other runtimes.

Letters in shapes: n rows, w items of the longest history, i items, u users, P pools, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from .features import FeatureTowers
from .history import Attending, Attention, BagOfOthers, Max, Mean, Pooling

POOLINGS = "mean, max, attention, bag"


class UserModule(nn.Module):
    """Map histories, [n, w], and users, [n], to vectors as they are compared, [n, D].

    A history is a row of codes of items, the latest last, with -1 in front where others are longer. What towers make of
    the features of items and users is looked up: it is computed once, for all of them.

    Raises:
        ConfigError: no history, a pool that reads events one after the other, the time since the latest event, or features of
            events.
    """

    items: Tensor
    users: Tensor

    def __init__(self, tower: FeatureTowers, pools: Sequence[Pooling], items: int, users: int) -> None:
        super().__init__()
        past = tower.query.past
        other = [
            type(pool).__name__.lower() for pool in pools if not isinstance(pool, Mean | Max | Attention | BagOfOthers)
        ]
        waits, happened = tower.query.waiting is not None, tower.query.moment is not None or (past and past.happened)
        if past is None or other or waits or happened:
            what = (
                f"the pool {other[0]}" if other else "no history" if past is None else "the time since the latest event"
            )
            what = what if other or past is None or waits else "features of events"
            raise ConfigError(f"a user tower with {what} cannot be exported: pools may be {POOLINGS}")
        attending = iter(module for module in past.pools if isinstance(module, Attending))
        means = [pool for pool in pools if isinstance(pool, Mean)]
        self.pools = [*means, *(pool for pool in pools if not isinstance(pool, Mean))]  # in the order of `Past`
        self.attending = nn.ModuleList([next(attending) for pool in self.pools if isinstance(pool, Attention)])
        self.network, self.normalised = tower.query.network, tower.normalised
        features = tower.query.features
        self.asks_user = bool(len(features.encoders))
        with torch.no_grad():
            vectors = past.items(torch.arange(items))
            self.register_buffer("items", torch.cat([vectors, torch.zeros_like(vectors[:1])]))  # the last: no item
            self.register_buffer("users", features(torch.arange(users)) if self.asks_user else torch.empty(0))

    def forward(self, history: Tensor, user: Tensor | None = None) -> Tensor:
        filled = history >= 0
        x = self.items[torch.where(filled, history, self.items.shape[0] - 1)]  # [n, w, D]
        age = history.shape[1] - 1 - torch.arange(history.shape[1], device=history.device)  # [w]
        attending = iter(self.attending)
        parts = []
        for pool in self.pools:
            seen = filled & (age < pool.last)  # [n, w]
            if isinstance(pool, Mean):
                parts.append(_mean(x, seen * torch.pow(pool.decay, age.to(x.dtype))))
            elif isinstance(pool, BagOfOthers):
                parts.append(_mean(x, filled.to(x.dtype), pool.power))
            elif isinstance(pool, Max):
                lowest = torch.finfo(x.dtype).min
                largest = x.masked_fill(~seen[:, :, None], lowest).amax(1)
                parts.append(torch.where(seen.any(1, keepdim=True), largest, torch.zeros_like(largest)))
            else:
                module = next(attending)
                assert isinstance(module, Attending)
                logits = module.score(x).squeeze(-1) + module.age[age.clamp(max=pool.last - 1)]
                logits = logits.masked_fill(~seen, torch.finfo(x.dtype).min)
                parts.append(_mean(x, seen * (logits - logits.amax(1, keepdim=True)).exp()))
        if user is not None:
            parts.append(self.users[user])
        vectors = self.network(torch.cat(parts, 1))
        return F.normalize(vectors, dim=-1) if self.normalised else vectors


def _mean(x: Tensor, weights: Tensor, power: float = 1.0) -> Tensor:
    """Return weighted sums over w, over a power of the weights' sum, [n, w, D] -> [n, D]; 0 where all weights are 0."""
    mass = weights.sum(1, keepdim=True)
    return torch.matmul(weights[:, None], x)[:, 0] / torch.where(mass > 0, mass, 1.0) ** power
