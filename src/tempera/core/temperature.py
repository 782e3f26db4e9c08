"""The temperature of the softmax: one dial, in one place."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..errors import ConfigError


class Temperature(nn.Module):
    """The temperature t of the softmax; similarities are multiplied by the scale 1/t.

    Learned as log(1/t), as CLIP does (Radford et al. 2021, section 2.5), so that it stays positive; kept within
    [floor, ceiling], from which it can return. No weight decay is applied to it.

    Args:
        value: t itself, or the value to start from; above 0.
        learnable: whether training moves it.
        floor: lowest t that training may reach. CLIP's is .01.
        ceiling: highest t that training may reach.

    Raises:
        ConfigError: a temperature of 0 or below, or outside [floor, ceiling] when it is learnable.

    >>> round(Temperature(0.05).value, 4), round(float(Temperature(0.05).scale()), 4)
    (0.05, 20.0)
    """

    def __init__(self, value: float = 0.05, learnable: bool = False, floor: float = 0.01, ceiling: float = 1.0) -> None:
        super().__init__()
        if not 0 < value < math.inf:
            raise ConfigError(_refusal(value))
        if learnable and not 0 < floor <= value <= ceiling:
            raise ConfigError(
                f"a learnable temperature starts within [floor, ceiling]: {floor} <= {value} <= {ceiling}"
            )
        self.floor, self.ceiling = floor, ceiling
        self.log_scale = nn.Parameter(torch.tensor(-math.log(value), dtype=torch.float64), requires_grad=learnable)

    @property
    def learnable(self) -> bool:
        """Whether training moves it."""
        return self.log_scale.requires_grad

    @property
    def value(self) -> float:
        """The temperature now."""
        return math.exp(-float(self.log_scale.detach()))

    def scale(self) -> Tensor:
        """1/t, a scalar with gradient if learnable; a value that left [floor, ceiling] is set back to its bound first."""
        if self.learnable:
            with torch.no_grad():
                self.log_scale.clamp_(-math.log(self.ceiling), -math.log(self.floor))
        return self.log_scale.exp()

    def extra_repr(self) -> str:
        return f"{self.value:.6g}, learnable={self.learnable}"


def _refusal(value: float) -> str:
    if math.isinf(value):
        return (
            "an infinite temperature, which is a scale of 0, makes every logit 0 and every loss log(candidates) whatever "
            "the embeddings, so nothing can be learned; give a temperature such as 0.05 (scale 20)"
        )
    return (
        f"the temperature must be above 0 and is {value}; usual values lie between 0.01 (scale 100) and 0.2 (scale 5)"
    )
