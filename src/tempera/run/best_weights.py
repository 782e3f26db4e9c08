"""The choice of the weights of a run by its looks at validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import quantity
from ..ranking.ranking import LEAST_TO_CHOOSE
from ..task.verdict import main_metric
from .prepare import Prepared
from .resume import Position, Weights


class BestWeights:
    """Keep the weights of the best look at validation, on the CPU.

    Args:
        prepared: the run.
        position: of the run; its best step and value are updated.
        chooses: True if validation is large enough to choose weights by.
        weights: the best weights of an interrupted run; None before the first look, or where no
            weights are chosen.
    """

    def __init__(
        self, prepared: Prepared, position: Position, chooses: bool, weights: Weights | None
    ) -> None:
        self.prepared = prepared
        self.options = prepared.config.train
        self.position = position
        self.chooses = chooses
        self.weights = weights

    def weigh(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the present weights if their validation is the best so far."""
        position = self.position
        value = metrics[main_metric(metrics)]
        if position.best_value is not None and value <= position.best_value:
            position.looks_since += 1
            return
        position.best_step = step
        position.best_value = value
        position.looks_since = 0
        if self.options.keep_best:
            self.weights = _trained_tensors(self._saved_modules())

    def restore(self, last: int) -> None:
        """Bring the best weights back into the tower and the objective after the last step."""
        if self.weights is not None and self.step(last) != last:
            self._saved_modules().load_state_dict(self.weights, strict=False)

    def step(self, last: int) -> int:
        """Return the step of the saved weights, where `last` is the last step."""
        if self.weights is None:
            return last
        return self.position.best_step

    def choice(self, last: int) -> dict[str, Any]:
        """Return the step of the saved weights with the validation of that step; an empty dict if
        validation has not chosen."""
        if self.weights is None:
            return {}
        return {
            "step": self.position.best_step,
            "taken": last,
            "metric": main_metric(self.prepared.config.evaluation.metrics),
            "value": self.position.best_value,
        }

    @property
    def is_stale(self) -> bool:
        """True if validation has not risen for as many looks as train.patience allows."""
        patience = self.options.patience
        return patience is not None and self.position.looks_since >= patience

    def explanation(self, last: int, planned: int) -> str:
        """Return a line about the saved weights, with the reason for them.

        Args:
            last: number of the last step.
            planned: steps of the run unless validation ends it.
        """
        choice = self.choice(last)
        if choice:
            return (
                f"saved: the weights of step {choice['step']:,} of {last:,}, with the best "
                f"validation, {choice['metric']} {choice['value']:.3f}"
            )
        if self.chooses:
            why = "train.keep_best is off"
        elif self.prepared.config.evaluation.validation != 0:
            why = f"validation has fewer than {LEAST_TO_CHOOSE} queries or events"
        else:
            why = "evaluation.validation is 0"
        if self.options.patience is not None and not self.chooses:
            why += ", so that train.patience could not end the training"
        elif self.is_stale and last < planned:
            looks = quantity(self.position.looks_since, "looks")
            why += f"; training ended there: validation had not risen for {looks} (train.patience)"
        return f"saved: the weights of the last step, {last:,}, since {why}"

    def _saved_modules(self) -> nn.ModuleDict:
        """Return the tower and the objective, as the run saves them."""
        tower: Any = self.prepared.task.data.tower
        return nn.ModuleDict({"tower": tower, "objective": self.prepared.config.objective})


def _trained_tensors(modules: nn.Module) -> Weights:
    """Return copies on the CPU of the weights and buffers, without frozen weights."""
    frozen = set()
    for name, parameter in modules.named_parameters():
        if not parameter.requires_grad:
            frozen.add(name)
    copies: dict[str, Tensor] = {}
    for name, value in modules.state_dict().items():
        if name not in frozen:
            copies[name] = value.detach().to("cpu", copy=True).contiguous()
    return copies
