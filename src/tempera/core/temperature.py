"""The temperature of the softmax: fixed, scheduled or learned."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import ConfigError, refuse_other, refuse_unknown

AUTO_BOUNDS = (0.01, 1.0)
_FLOAT32 = torch.finfo(torch.float32)
_USUAL = "usual values lie between 0.01 (scale 100) and 0.2 (scale 5)"


class Temperature(nn.Module):
    """The temperature t of the softmax; similarities are multiplied by the scale 1/t.

    fixed: `Temperature(0.05)`.
    scheduled: `Temperature(0.1, final=0.02)` goes geometrically from 0.1 to 0.02 over the run.
    learned: `Temperature(0.05, learnable=True)`, as log(1/t), as CLIP does (Radford et al. 2021,
    section 2.5), so that t stays positive; t is kept within [floor, ceiling] and can return from
    either bound. `tempera train` and `ContrastiveLoss` do not decay the parameter; a loop of your
    own has to give the parameter a separate group in the optimiser, with `weight_decay=0`.
    auto: `Temperature("auto")` takes a value from the batch at the start of the run, see
    `starting_value`.

    Args:
        value: t at the start of a schedule or of training, above 0; or "auto".
        learnable: whether training moves t.
        final: the value at the end of a scheduled run; None is no schedule.
        schedule: the path of a scheduled log t from `value` to `final`.
        floor: lowest t in training. CLIP's is 0.01.
        ceiling: highest t in training.

    Raises:
        ConfigError: a temperature of 0 or below, outside [floor, ceiling] when learnable, learned
            and scheduled at once.

    >>> round(Temperature(0.05).value, 4), round(float(Temperature(0.05).scale()), 4)
    (0.05, 20.0)
    """

    owed: Tensor | None = None  # gradient of log_scale that is still on the device of the loss
    log_scale: Tensor  # log(1/t): a parameter if it learns, else a buffer
    # The value at the start, nan for an auto temperature without a value; part of the state.
    origin: Tensor

    def __init__(
        self,
        value: float | Literal["auto"] = 0.05,
        learnable: bool = False,
        final: float | None = None,
        schedule: Literal["linear", "cosine"] = "linear",
        floor: float = 0.01,
        ceiling: float = 1.0,
    ) -> None:
        super().__init__()
        refuse_unknown("temperature: schedule", schedule, "linear", "cosine")
        self.final = final
        self.schedule = schedule
        self.floor = floor
        self.ceiling = ceiling
        if value != "auto":
            refuse_temperature(value)
        if final is not None:
            refuse_other(
                "temperature: final",
                final,
                str(final) != "auto",
                "a number, since auto is a value to begin with",
            )
            refuse_temperature(final)
        if learnable and final is not None:
            raise ConfigError(
                "a temperature is learned or follows a schedule, not both: drop learnable or final"
            )
        start = floor if value == "auto" else value
        if learnable and not 0 < floor <= start <= ceiling:
            raise ConfigError(
                f"a learnable temperature starts within [floor, ceiling]: {floor} <= {value} <= {ceiling}"
            )
        origin = math.nan if value == "auto" else value
        self.register_buffer("origin", torch.tensor(origin, dtype=torch.float64))
        log_scale = torch.tensor(-math.log(origin), dtype=torch.float64)
        if learnable:
            self.log_scale = nn.Parameter(log_scale)
        else:  # which a model that freezes and unfreezes its parameters leaves as it is
            self.register_buffer("log_scale", log_scale)

    @property
    def learnable(self) -> bool:
        """Return True if training changes the temperature."""
        return self.log_scale.requires_grad

    @property
    def start(self) -> float | Literal["auto"]:
        """The value at the start, or "auto" as long as an auto temperature has no value."""
        return "auto" if self.origin.isnan() else float(self.origin)

    @property
    def value(self) -> float:
        """The temperature now, within the bounds if learnable."""
        value = math.exp(-float(self.log_scale.detach()))
        if self.learnable:
            value = min(max(value, self.floor), self.ceiling)
        return value

    def scale(self) -> Tensor:
        """Return 1/t, a scalar, with gradient if learnable; a value outside [floor, ceiling] is set
        back to the bound first."""
        if self.log_scale.isnan():
            raise ConfigError(
                "the temperature is auto and has no value yet: call resolve(candidates, normalised)"
            )
        if self.learnable:
            with torch.no_grad():
                self.log_scale.clamp_(-math.log(self.ceiling), -math.log(self.floor))
        return self.log_scale.exp()

    def receive(self, gradient: Tensor) -> None:
        """Add a gradient of the scale to the gradient of its logarithm; a gradient on another
        device is owed until `collect`, without a wait."""
        of_log = gradient * float(self.log_scale.detach().exp())
        self.owed = of_log if self.owed is None else self.owed + of_log
        if of_log.device == self.log_scale.device:
            self.collect()

    def collect(self) -> None:
        """Add the owed gradient, if any, to `log_scale.grad`; the host waits for the device."""
        if self.owed is None:
            return
        grad = self.owed.to(self.log_scale)
        if self.log_scale.grad is not None:
            grad = self.log_scale.grad + grad
        self.log_scale.grad = grad
        self.owed = None

    def _apply(self, fn: Any, recurse: bool = True) -> Temperature:
        """Stay on the host in float64, wherever the towers go: the host needs the number, and some
        devices have no float64."""
        return self

    def forget(self) -> None:
        """Forget the value of an auto temperature; the next `resolve` gives another."""
        with torch.no_grad():
            self.origin.fill_(math.nan)
            self.log_scale.fill_(math.nan)

    def resolve(self, candidates: int, normalised: bool) -> None:
        """Set the value of an auto temperature; see `starting_value`. Any other temperature
        stays."""
        if self.log_scale.isnan():
            value = starting_value(candidates, normalised)
            if self.learnable:
                value = min(max(value, self.floor), self.ceiling)
            with torch.no_grad():
                self.origin.fill_(value)
                self.log_scale.fill_(-math.log(value))

    def advance(self, progress: float) -> None:
        """Follow the schedule to a share of the run, from 0 to 1; without a schedule nothing
        changes."""
        start = self.start
        if self.final is None or start == "auto":
            return
        share = progress if self.schedule == "linear" else (1 - math.cos(math.pi * progress)) / 2
        log_t = (1 - share) * math.log(start) + share * math.log(self.final)
        with torch.no_grad():
            self.log_scale.fill_(-log_t)

    def extra_repr(self) -> str:
        return f"{self.value:.6g}, learnable={self.learnable}"


def starting_value(candidates: int, normalised: bool) -> float:
    """Return a temperature to start from: 1 / log(candidates) for cosines, 1 for inner products.

    The scale 1/t is then the log-odds against a document drawn by chance, so that a cosine of 1
    just makes up for the odds. Kept within [0.01, 1].

    >>> round(starting_value(1024, normalised=True), 3)
    0.144
    """
    if not normalised:
        return 1.0
    return min(max(1 / math.log(max(2, candidates)), AUTO_BOUNDS[0]), AUTO_BOUNDS[1])


def refuse_temperature(value: float) -> None:
    """Raise ConfigError for a value that is no temperature, or has a scale beyond float32."""
    if isinstance(value, Tensor) and value.requires_grad:
        raise ConfigError(
            "a temperature is a number, and a tensor that learns would be copied: give Temperature(0.05, learnable=True)"
        )
    if not isinstance(value, Real | Tensor) or (isinstance(value, Tensor) and value.numel() != 1):
        raise ConfigError(f"a temperature is a number, or auto, and not {value!r}; {_USUAL}")
    if value == math.inf:
        raise ConfigError(
            "an infinite temperature, which is a scale of 0, makes every logit 0 and every loss log(candidates) whatever "
            "the embeddings, so nothing can be learned; give a temperature such as 0.05 (scale 20)"
        )
    if not value > 0:
        raise ConfigError(f"the temperature must be above 0 and is {value}; {_USUAL}")
    if not 1 / _FLOAT32.max <= value <= 1 / _FLOAT32.tiny:
        raise ConfigError(
            f"float32 cannot hold the scale of a temperature of {value:g}, which is 1/{value:g}; {_USUAL}"
        )
