"""The optimiser, its schedule, and the norm of gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ..core.temperature import Temperature
from .distributed import Group
from .shards import is_divided, part

Schedule = Literal["linear", "cosine", "constant"]


def adam(
    modules: nn.Module, learning_rate: float, temperature_learning_rate: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019); the temperature has its own rate and no decay."""
    dials = [p for m in modules.modules() if isinstance(m, Temperature) for p in m.parameters() if p.requires_grad]
    dial_ids = {id(p) for p in dials}
    rest = [p for p in modules.parameters() if p.requires_grad and id(p) not in dial_ids]
    groups = [{"params": same, "lr": learning_rate, "weight_decay": weight_decay} for same in apart(rest)]
    if dials:
        groups.append({"params": dials, "lr": temperature_learning_rate, "weight_decay": 0.0})
    return torch.optim.AdamW([{**each, "initial_lr": each["lr"]} for each in groups], fused=True)


def apart(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters that are whole and, if there are any, those that `shard` divided: torch takes no list of both."""
    divided = [p for p in parameters if is_divided(p)]
    return [[p for p in parameters if not is_divided(p)], *([divided] if divided else [])]


def total_norm(parameters: Sequence[nn.Parameter], group: Group) -> Tensor:
    """The Euclidean norm of all gradients, the same on every process; each adds its part of those that are divided."""
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([grad for grad in grads if not is_divided(grad)])
    if not any(map(is_divided, parameters)):
        return norm
    mine = float(torch.nn.utils.get_total_norm([part(grad) for grad in grads if is_divided(grad)]))
    return (norm.double().square() + group.total(mine**2)).sqrt()


def clip(parameters: Sequence[nn.Parameter], norm: Tensor, most: float) -> None:
    """Scale gradients of a total `norm` down to `most`."""
    for same in apart(parameters):
        torch.nn.utils.clip_grads_with_norm_(same, most, norm)


def rate(step: int, steps: int, warmup_ratio: float, schedule: Schedule) -> float:
    """The share of the learning rate that step `step` of `steps` uses: a rise from 0, then the schedule's fall.

    >>> [round(rate(s, 10, 0.2, "linear"), 2) for s in range(10)]
    [0.5, 1.0, 1.0, 0.88, 0.75, 0.62, 0.5, 0.38, 0.25, 0.12]
    """
    warmup = math.ceil(steps * warmup_ratio)
    if step < warmup:
        return (step + 1) / warmup
    passed = (step - warmup) / max(1, steps - warmup)
    return {"linear": 1 - passed, "cosine": 0.5 * (1 + math.cos(math.pi * passed)), "constant": 1.0}[schedule]
