"""The rows and the cause of a loss or gradient that is not finite, searched for afterwards.

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
# Fields of a side that are known before its rows are embedded.
_KNOWN = {
    "logq": "frequencies (logq)",
    "guide": "vectors of the guide",
    "teacher": "vectors of the teacher",
}


@dataclass(frozen=True)
class Fault:
    """A step with a loss or gradient that is not finite; the weights are unchanged."""

    step: int  # counted from 1
    what: str  # the loss or the gradient
    # To blame in each accumulated batch: positions among the rows of all processes; () for weights.
    rows: tuple[tuple[int, ...], ...]
    cause: str  # the likely cause, and a remedy


class NotFinite(TemperaError):
    """The end of a run by a fault.

    Args:
        fault: the step, the rows and the cause.
        rows: words for the rows to blame.
        after: a remedy at the end of the message.
    """

    def __init__(self, fault: Fault, rows: str = "", after: str = "") -> None:
        among = f", of {rows}" if rows else ""
        super().__init__(
            f"the {fault.what} of step {fault.step} is not finite{among}: {fault.cause}{after}"
        )
        self.fault = fault


def trace(
    state: State, batches: Sequence[tuple[Batch[Any], Tensor | None]], what: str, devices: Devices
) -> Fault:
    """Embed the batches of a step once more, and return the rows and the cause of the fault; all
    processes have to call.

    The caller has restored the random numbers and the memory of the step; the weights are
    unchanged. Gradients of the objective's parameters are changed.

    Args:
        batches: of each accumulated batch, this process's rows, and the positions of the chosen
            rows in the batch of all processes; None if all rows are taken (`curated`).
        what: "loss" or "gradient": the quantity that is not finite.
    """
    name = broken(state.modules, devices.group)
    if name is not None:
        remedy = "before training has changed them: give another tower.model"
        if state.step:
            remedy = f"from an earlier step: {_RATE}"
        return Fault(state.step + 1, what, (), f"weights of {name} are not finite, {remedy}")
    rows: list[tuple[int, ...]] = []
    first_cause = None
    for batch, positions in batches:
        flags, cause = _blamed_rows(state, batch, devices)
        blamed = flags.nonzero()[:, 0]
        if positions is not None:
            blamed = positions[blamed]
        rows.append(tuple(blamed.tolist()))
        first_cause = first_cause or cause
    cause = first_cause or _cause_within_towers(state.modules, devices)
    return Fault(state.step + 1, what, tuple(rows), cause)


def _blamed_rows(state: State, batch: Batch[Any], devices: Devices) -> tuple[Tensor, str | None]:
    """Return True for the rows to blame in a batch, [n], and the cause: embeddings, losses and
    gradients of embeddings are searched in this order, and the first that is not finite decides."""
    group = devices.group
    objective: Any = state.modules["objective"]
    everyone = group.gather(state.cache.embed(state.modules["towers"], batch, group).batch)
    sides = {role: side.rows for role, side in everyone.sides().items()}
    lost = {role: ~rows.isfinite().all(1) for role, rows in sides.items()}
    if any(bool(flags.any()) for flags in lost.values()):
        return _pairs_of(lost, everyone), _cause_in_embeddings(state.modules, lost, devices)
    remembering = objective.recall(everyone)
    losses = objective.propagate(remembering, everyone.shares())
    wrong = _of_all_processes(~losses.isfinite(), group)
    if wrong.any():
        known, cause = _cause_in_known(remembering)
        if cause is None:
            return wrong, _cause_in_losses(objective, everyone)
        # Sampled and memory rows belong to no pair.
        return (known if known.any() else wrong), cause
    lost = {}
    for role, grad in group.reduce_scatter(everyone).items():
        lost[role] = _of_all_processes(~grad.isfinite().all(1), group)
    if not any(bool(flags.any()) for flags in lost.values()):
        return torch.zeros(len(everyone), dtype=torch.bool), None
    lengths = [sides[role][flags].detach().float().norm(dim=1) for role, flags in lost.items()]
    shortest = float(torch.cat(lengths).min())
    if shortest < _SHORT:
        cause = (
            f"an embedding is {shortest:.1g} long, and its gradient grows with 1 / length: {_RATE}"
        )
    else:
        cause = _cause_in_temperature(objective) or f"gradients overflow in the loss: {_RATE}"
    return _pairs_of(lost, everyone), cause


def _pairs_of(flags: dict[Role, Tensor], batch: Batch[Tensor]) -> Tensor:
    """Return True for the pairs, [n], whose query, document or negative has a flag; samples belong
    to no pair."""
    flagged = flags["query"].cpu() | flags["doc"].cpu()[batch.answers.cpu()]
    if batch.negatives is not None and batch.negatives.owner is not None:
        owner = batch.negatives.owner.cpu()[flags["negatives"].cpu()]
        flagged[owner[owner >= 0]] = True
    return flagged


def _of_all_processes(flags: Tensor, group: Group) -> Tensor:
    """Return the flags of all processes' rows, [n], from the flags of this process's rows, [b]."""
    return group.all_gather(flags[:, None].float().to(group.device))[:, 0].bool().cpu()


def _cause_in_embeddings(modules: nn.Module, lost: dict[Role, Tensor], devices: Devices) -> str:
    """Return the cause of infinite or NaN embeddings."""
    roles = " and ".join(f"{role} embeddings" for role, flags in lost.items() if flags.any())
    largest, name = max(
        (float(part(p.detach()).abs().max()), name)
        for name, p in modules.named_parameters()
        if p.numel()
    )
    if devices.mixed_precision == "fp16" and largest < _HUGE:
        return f"{roles} are not finite, and fp16 ends at 65,504: take train.mixed_precision bf16"
    if largest > _HUGE:
        return f"{roles} are not finite, for {name} has grown to {largest:.1g}: {_RATE}"
    return f"{roles} are not finite, although the weights are: look at the data of these rows, or {_RATE}"


def _cause_in_temperature(objective: Any) -> str | None:
    """Return the cause if the temperature is too low for float32; otherwise None."""
    value = objective.temperature.value
    epsilon = torch.finfo(torch.float32).eps
    if not value < epsilon:  # also for NaN
        return None
    return (
        f"gradients grow with 1 / temperature, and {value:.3g} is below the precision of a cosine, "
        f"{epsilon:.1g}: raise objective.temperature"
    )


def _cause_in_known(batch: Batch[Tensor]) -> tuple[Tensor, str | None]:
    """Return True for the pairs with a known value that is not finite, [n], and the cause; None if
    all known values are finite. Sampled and memory rows belong to no pair: because of them there
    may be a cause without a pair.

    Known values are frequencies, and vectors of a guide or a teacher, of the pair or the pair's
    negatives.
    """
    sides = batch.sides()
    for name, what in _KNOWN.items():
        lost = {}
        wrong = []
        for role, side in sides.items():
            values = getattr(side, name)
            if values is None:
                lost[role] = torch.zeros(len(side), dtype=torch.bool)
                continue
            flags = ~values.isfinite().reshape(len(values), -1).all(1).cpu()
            lost[role] = flags
            if flags.any():
                rows = f"{role} rows"
                if role in ("sampled", "memory"):
                    rows += f" (the first is row {int(flags.int().argmax())})"
                wrong.append(rows)
        if wrong:
            cause = f"the {what} of {' and '.join(wrong)} are not finite: look at the data"
            return _pairs_of(lost, batch), cause
    return torch.zeros(len(batch), dtype=torch.bool), None


def _cause_in_losses(objective: Any, batch: Batch[Tensor]) -> str:
    """Return the cause of infinite or NaN losses of finite embeddings."""
    cause = _cause_in_temperature(objective)
    if cause is not None:
        return cause
    sides = batch.sides()
    largest = max(float(side.rows.detach().abs().max()) for side in sides.values() if len(side))
    return (
        f"products of embeddings with numbers up to {largest:.1g} overflow: {_RATE}, or take "
        "similarity cosine"
    )


def _cause_within_towers(modules: nn.ModuleDict, devices: Devices) -> str:
    """Return the cause where embeddings, losses and their gradients are finite, by the gradients of
    the towers, which are summed over processes."""
    if devices.mixed_precision == "fp16":
        return (
            "gradients overflow in fp16 however small their scale: take train.mixed_precision bf16"
        )
    cause = _cause_in_temperature(modules["objective"])
    if cause is not None:
        return cause
    names = [n for n, p in modules.named_parameters() if p.grad is not None and not _finite(p.grad)]
    return f"gradients overflow within the towers ({', '.join(names[:3]) or 'their norm'}): {_RATE}"


def broken(modules: nn.Module, group: Group) -> str | None:
    """Return the name of the first parameter that is not finite, on any process; all processes have
    to call."""
    mine = None
    for name, parameter in modules.named_parameters():
        if not _finite(parameter.detach()):
            mine = name
            break
    if not group.any(mine is not None):
        return None
    return mine or "another process"


def _finite(tensor: Tensor) -> bool:
    """Return True if all numbers of a tensor are finite, or of this process's part of a divided
    one."""
    values = part(tensor)
    if values.is_sparse:
        values = values.coalesce().values()
    return bool(values.isfinite().all())
