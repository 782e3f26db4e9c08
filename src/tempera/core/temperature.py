"""The temperature of the softmax: one dial, in one place."""

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
    scheduled: `Temperature(0.1, final=0.02)` goes from one value to the other over the run,
        geometrically.
    learned: `Temperature(0.05, learnable=True)`, as log(1/t), as CLIP does (Radford et al. 2021,
    section 2.5), so that it stays positive; kept within [floor, ceiling], from which it can return.
    `tempera train` and `ContrastiveLoss` do not decay it; a loop of your own has to give it a group
    of its own in the optimiser, with `weight_decay=0`.
    auto: `Temperature("auto")` takes its value from the run's batch when it starts, see
        `starting_value`.

    Args:
        value: t itself, above 0, or what a schedule or training starts from, or "auto".
        learnable: whether training moves it.
        final: the value at the end of a scheduled run; None is no schedule.
        schedule: how a scheduled log t moves between the two.
        floor: lowest t that training may reach. CLIP's is 0.01.
        ceiling: highest t that training may reach.

    Raises:
        ConfigError: a temperature of 0 or below, outside [floor, ceiling] when learnable, learned
            and scheduled at once.

    >>> round(Temperature(0.05).value, 4), round(float(Temperature(0.05).scale()), 4)
    (0.05, 20.0)
    """

    owed: Tensor | None = None  # gradient of log_scale that is still on the device of the loss
    log_scale: Tensor  # log(1/t): a parameter if it learns, else a buffer
    origin: (
        Tensor  # what it started from, nan for an auto one that is not settled; part of the state
    )

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
        self.final, self.schedule = final, schedule
        self.floor, self.ceiling = floor, ceiling
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
        if learnable and not 0 < floor <= (floor if value == "auto" else value) <= ceiling:
            raise ConfigError(
                f"a learnable temperature starts within [floor, ceiling]: {floor} <= {value} <= {ceiling}"
            )
        known = math.nan if value == "auto" else -math.log(value)
        self.register_buffer(
            "origin", torch.tensor(math.nan if value == "auto" else value, dtype=torch.float64)
        )
        log_scale = torch.tensor(known, dtype=torch.float64)
        if learnable:
            self.log_scale = nn.Parameter(log_scale)
        else:  # which a model that freezes and unfreezes its parameters leaves as it is
            self.register_buffer("log_scale", log_scale)

    @property
    def learnable(self) -> bool:
        """Return True if training changes it."""
        return self.log_scale.requires_grad

    @property
    def start(self) -> float | Literal["auto"]:
        """The value it was given, or "auto" as long as that is not settled."""
        return "auto" if self.origin.isnan() else float(self.origin)

    @property
    def value(self) -> float:
        """The temperature now, within its bounds if it learns."""
        value = math.exp(-float(self.log_scale.detach()))
        return min(max(value, self.floor), self.ceiling) if self.learnable else value

    def scale(self) -> Tensor:
        """1/t, a scalar with gradient if learnable; a value that left [floor, ceiling] is set back
        to its bound first."""
        if self.log_scale.isnan():
            raise ConfigError(
                "the temperature is auto and has no value yet: call settle(candidates, normalised)"
            )
        if self.learnable:
            with torch.no_grad():
                self.log_scale.clamp_(-math.log(self.ceiling), -math.log(self.floor))
        return self.log_scale.exp()

    def receive(self, gradient: Tensor) -> None:
        """Add a gradient of the scale to that of its logarithm; one on another device is owed until
        `collect`, without a wait."""
        of_log = gradient * float(self.log_scale.detach().exp())
        self.owed = of_log if self.owed is None else self.owed + of_log
        if of_log.device == self.log_scale.device:
            self.collect()

    def collect(self) -> None:
        """Bring home the gradient that is owed, if there is one, which waits for its device."""
        if self.owed is not None:
            home, grad = self.owed.to(self.log_scale), self.log_scale.grad
            self.log_scale.grad, self.owed = home if grad is None else grad + home, None

    def _apply(self, fn: Any, recurse: bool = True) -> Temperature:
        """Stay on the host in float64, wherever the towers go: the host needs the number, and some
        devices have no float64."""
        return self

    def unsettle(self) -> None:
        """Forget the value of an auto temperature, which the next `settle` gives anew."""
        with torch.no_grad():
            self.origin.fill_(math.nan)
            self.log_scale.fill_(math.nan)

    def settle(self, candidates: int, normalised: bool) -> None:
        """Give an auto temperature its value; see `starting_value`. Every other keeps its own."""
        if self.log_scale.isnan():
            value = starting_value(candidates, normalised)
            if self.learnable:
                value = min(max(value, self.floor), self.ceiling)
            with torch.no_grad():
                self.origin.fill_(value)
                self.log_scale.fill_(-math.log(value))

    def advance(self, progress: float) -> None:
        """Follow the schedule to `progress` of the run, from 0 to 1; nothing happens without a
        schedule."""
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

    The scale is then the log-odds against a document that is drawn by chance, so that a cosine of 1
    can just make up for it. Kept within [0.01, 1].

    >>> round(starting_value(1024, normalised=True), 3)
    0.144
    """
    if not normalised:
        return 1.0
    return min(max(1 / math.log(max(2, candidates)), AUTO_BOUNDS[0]), AUTO_BOUNDS[1])


def refuse_temperature(value: float) -> None:
    """Raise ConfigError for what is no temperature, or has a scale that float32 cannot hold."""
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
