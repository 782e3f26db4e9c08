"""The rows and the cause that a loss or gradient that is not finite comes from; searched for only
after one has occurred.

Letters in shapes: b rows of this process, n rows of all processes, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Role
from ..errors import TemperaError
from ..parallel.distributed import Group
from ..parallel.shards import part
from .checkpoint import State
from .devices import Devices

_HUGE = 1e15  # weights of a tower that still learns are far below
_SHORT = 1e-6  # lengths of embeddings
_RATE = "lower train.learning_rate"
_KNOWN = {
    "logq": "frequencies (logq)",
    "guide": "vectors of the guide",
    "teacher": "vectors of the teacher",
}  # what is known of rows before they are embedded


@dataclass(frozen=True)
class Fault:
    """A step whose loss or gradient is not finite; its weights are as they were before it."""

    step: int  # counted from 1
    what: str  # is not finite
    rows: tuple[
        tuple[int, ...], ...
    ]  # places in each batch of the step, of all processes, that it comes from
    cause: str  # the likely one, and what to do


class NotFinite(TemperaError):
    """A run that a fault has ended."""

    def __init__(self, fault: Fault, rows: str = "", after: str = "") -> None:
        among = f", of {rows}" if rows else ""
        super().__init__(
            f"the {fault.what} of step {fault.step} is not finite{among}: {fault.cause}{after}"
        )
        self.fault = fault


def trace(
    state: State, batches: Sequence[tuple[Batch[Any], Tensor | None]], what: str, devices: Devices
) -> Fault:
    """Embed the batches of a step once more, and return what is not finite in them; all processes
    have to call.

    The same weights and random numbers as in the step are needed. Gradients of the objective's
    parameters are changed.

    Args:
        batches: rows of this process, and the places of all processes' rows in the batch that they
            were chosen from.
    """
    if name := broken(state.modules, devices.group):
        since = "before training has changed them" if not state.step else "from an earlier step"
        advice = "give another tower.model" if not state.step else _RATE
        return Fault(
            state.step + 1, what, (), f"weights of {name} are not finite, {since}: {advice}"
        )
    rows: list[tuple[int, ...]] = []
    causes: list[str] = []
    for batch, places in batches:
        flags, cause = _look(state, batch, devices)
        at = flags.nonzero()[:, 0]
        rows.append(tuple((at if places is None else places[at]).tolist()))
        causes += [cause] if cause else []
    return Fault(
        state.step + 1, what, tuple(rows), causes[0] if causes else _within(state.modules, devices)
    )


def _look(state: State, batch: Batch[Any], devices: Devices) -> tuple[Tensor, str | None]:
    """Return the rows of a batch that are to blame, [n], and why: by the first sign, from the
    towers to the loss."""
    group = devices.group
    objective: Any = state.modules["objective"]
    everyone = group.gather(state.cache.embed(state.modules["towers"], batch, group).batch)
    sides = {role: side.rows for role, side in everyone.sides().items()}
    lost = {role: ~rows.isfinite().all(1) for role, rows in sides.items()}
    if any(bool(flags.any()) for flags in lost.values()):
        return _pairs(everyone, lost), _of_embeddings(state.modules, lost, devices)
    remembering = objective.recall(everyone)
    losses = objective.propagate(remembering, everyone.shares())
    wrong = _everyones(~losses.isfinite(), group)
    if wrong.any():
        known, cause = _of_known(remembering)
        if cause is None:
            return wrong, _of_losses(objective, everyone)
        return (known if known.any() else wrong), cause
    grads = {role: ~grad.isfinite().all(1) for role, grad in group.reduce_scatter(everyone).items()}
    pulled = {role: _everyones(flags, group) for role, flags in grads.items()}
    if not any(bool(flags.any()) for flags in pulled.values()):
        return torch.zeros(len(everyone), dtype=torch.bool), None
    lengths = torch.cat(
        [
            rows[pulled[role]].detach().float().norm(dim=1)
            for role, rows in sides.items()
            if role in pulled
        ]
    )
    if float(lengths.min()) < _SHORT:
        cause = f"an embedding is {float(lengths.min()):.1g} long, and its gradient grows with 1 / length: {_RATE}"
        return _pairs(everyone, pulled), cause
    return _pairs(everyone, pulled), _of_temperature(
        objective
    ) or f"gradients overflow in the loss: {_RATE}"


def _pairs(batch: Batch[Tensor], flags: dict[Role, Tensor]) -> Tensor:
    """Return the pairs, [n], that own embeddings with a flag: as query, document or negative;
    samples belong to none."""
    flagged = flags["query"].cpu() | flags["doc"].cpu()[batch.answers.cpu()]
    if batch.negatives is not None and batch.negatives.owner is not None:
        owner = batch.negatives.owner.cpu()[flags["negatives"].cpu()]
        flagged[owner[owner >= 0]] = True
    return flagged


def _everyones(flags: Tensor, group: Group) -> Tensor:
    """Return the flags of all processes' rows, [n], from those of this one's, [b]."""
    return group.all_gather(flags[:, None].float().to(group.device))[:, 0].bool().cpu()


def _of_embeddings(modules: nn.Module, lost: dict[Role, Tensor], devices: Devices) -> str:
    which = " and ".join(f"{role} embeddings" for role, flags in lost.items() if flags.any())
    largest, name = max(
        (float(part(p.detach()).abs().max()), name)
        for name, p in modules.named_parameters()
        if p.numel()
    )
    if devices.mixed_precision == "fp16" and largest < _HUGE:
        return f"{which} are not finite, and fp16 ends at 65,504: take train.mixed_precision bf16"
    if largest > _HUGE:
        return f"{which} are not finite, for {name} has grown to {largest:.1g}: {_RATE}"
    return f"{which} are not finite, although the weights are: look at what is known of these rows, or {_RATE}"


def _of_temperature(objective: Any) -> str | None:
    value, epsilon = objective.temperature.value, torch.finfo(torch.float32).eps
    cause = f"gradients grow with 1 / temperature, and {value:.3g} is below the precision of a cosine, {epsilon:.1g}"
    return f"{cause}: raise objective.temperature" if value < epsilon else None


def _of_known(batch: Batch[Tensor]) -> tuple[Tensor, str | None]:
    """Return the pairs, [n], of which something is known that is not finite, and what that is: a
    frequency, or what a guide or a teacher says of them or of their negatives."""
    sides = batch.sides()
    for name, what in _KNOWN.items():
        values = {role: getattr(side, name) for role, side in sides.items()}
        lost = {
            role: torch.zeros(len(sides[role]), dtype=torch.bool)
            if each is None
            else ~each.isfinite().reshape(len(each), -1).all(1).cpu()
            for role, each in values.items()
        }
        wrong = []
        for role, flags in lost.items():
            if not flags.any():
                continue
            first = f" (the first is row {int(flags.int().argmax())})"
            wrong.append(f"{role} rows{first if role in ('sampled', 'memory') else ''}")
        if wrong:
            cause = f"the {what} of {' and '.join(wrong)} are not finite: look at the data"
            return _pairs(batch, lost), cause
    return torch.zeros(len(batch), dtype=torch.bool), None


def _of_losses(objective: Any, batch: Batch[Tensor]) -> str:
    sides = batch.sides()
    largest = max(float(side.rows.detach().abs().max()) for side in sides.values() if len(side))
    cause = f"products of embeddings with numbers up to {largest:.1g} overflow"
    return _of_temperature(objective) or f"{cause}: {_RATE}, or take similarity cosine"


def _within(modules: nn.ModuleDict, devices: Devices) -> str:
    """Return the cause where embeddings, losses and their gradients are finite: something within
    the towers is not."""
    if devices.mixed_precision == "fp16":
        return (
            "gradients overflow in fp16 however small their scale: take train.mixed_precision bf16"
        )
    names = [n for n, p in modules.named_parameters() if p.grad is not None and not _finite(p.grad)]
    cause = (
        f"gradients overflow within the towers ({', '.join(names[:3]) or 'their norm'}): {_RATE}"
    )
    return _of_temperature(modules["objective"]) or cause


def broken(modules: nn.Module, group: Group) -> str | None:
    """Return the name of the first parameter that is not finite, on any process; all processes have
    to call."""
    mine = next((name for name, p in modules.named_parameters() if not _finite(p.detach())), None)
    return (mine or "another process") if group.any(mine is not None) else None


def _finite(tensor: Tensor) -> bool:
    values = part(tensor)
    return bool((values.coalesce().values() if values.is_sparse else values).isfinite().all())
