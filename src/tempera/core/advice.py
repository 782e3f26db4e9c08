"""Warnings of choices bound to fail, given before a run."""

from __future__ import annotations

import torch
from torch import nn

from ..errors import ConfigError, article
from .objective import Objective
from .similarity import cosine


def cautions(
    objective: Objective, dtype: torch.dtype = torch.float32, normalised: bool = False
) -> list[str]:
    """Return the likely faults of an objective, one sentence each.

    Args:
        dtype: of the towers' embeddings.
        normalised: True if the towers return unit vectors: `dot` is a cosine then.

    >>> cautions(Objective(temperature=1.0))[0].split(":")[0]
    'cosine with temperature 1'
    """
    temperature = objective.temperature
    if temperature.start == "auto" and temperature.log_scale.isnan():
        return []
    bounded = objective.similarity == cosine or normalised
    t = min(temperature.value, temperature.final or temperature.value)
    lowest = min(t, temperature.floor) if temperature.learnable else t
    named = f"temperature {lowest:g}"
    if lowest < t and named != f"temperature {t:g}":
        named = f"a temperature that may fall to {lowest:g} (temperature.floor)"
    warnings = []
    if bounded and t >= 0.3 and not temperature.learnable:
        warnings.append(
            f"cosine with {named}: logits stay within {-1 / t:.3g} and {1 / t:.3g}, so every negative counts "
            f"about the same and the loss cannot fall far below log(candidates); usual values are 0.01 to 0.2"
        )
    if not bounded and lowest < 0.5:
        warnings.append(
            f"dot with {named} on embeddings that are not normalised: logits of unbounded size saturate "
            f"the softmax; use cosine, or a temperature near 1"
        )
    epsilon = torch.finfo(dtype).eps
    if bounded and epsilon / lowest > 1:
        warnings.append(
            f"{named} is below what {str(dtype).removeprefix('torch.')} embeddings hold: a rounding error "
            f"of {epsilon:.2g} in a cosine moves its logit by {epsilon / lowest:.2g}; usual values are 0.01 to 0.2"
        )
    return warnings


def refuse_batch_statistics(model: nn.Module) -> None:
    """Raise ConfigError for a layer with statistics of the whole batch: the embedding of a row
    would differ in every micro-batch.

    A layer in eval() with learned statistics looks at each row alone.
    """
    for name, module in model.named_modules():
        looks = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if looks and (module.training or not module.track_running_stats):
            raise ConfigError(
                f"the model's layer {name or 'itself'} is {article(type(module).__name__)}, whose result depends on which rows are "
                "embedded together, so a batch cannot be cut into micro-batches; use LayerNorm"
            )
