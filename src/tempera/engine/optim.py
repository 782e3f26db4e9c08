"""The optimiser and its schedule."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

from ..core.temperature import Temperature

Schedule = Literal["linear", "cosine", "constant"]


def adam(
    modules: nn.Module, learning_rate: float, temperature_learning_rate: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019); the temperature has its own rate and no decay."""
    dials = [p for m in modules.modules() if isinstance(m, Temperature) for p in m.parameters() if p.requires_grad]
    dial_ids = {id(p) for p in dials}
    rest = [p for p in modules.parameters() if p.requires_grad and id(p) not in dial_ids]
    groups = [{"params": rest, "lr": learning_rate, "weight_decay": weight_decay}]
    if dials:
        groups.append({"params": dials, "lr": temperature_learning_rate, "weight_decay": 0.0})
    return torch.optim.AdamW(groups, fused=True)


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
