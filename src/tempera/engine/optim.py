"""The optimiser, its schedule, and the norm of gradients; on a CPU, rows of a table that no batch
has read take no time.

Letters in shapes: k rows of a table that batches have read, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from inspect import unwrap
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.utils.weak import WeakTensorKeyDictionary

from ..arithmetic.abilities import has_sparse
from ..arithmetic.table import Table
from ..core.temperature import Temperature
from ..errors import ConfigError
from ..layers.lookup import rows_of, scale
from ..parallel.distributed import Group
from ..parallel.shards import divided_as, is_divided, part

Schedule = Literal["linear", "cosine", "constant"]
ForTables = Literal["adamw", "rowwise_adagrad"]
TABLE_RATE = 0.05  # of row-wise Adagrad; chosen on MovieLens among 0.02, 0.05, 0.1
_EPS = 1e-10  # of Adagrad
_FEW = (
    0.25  # of the rows of a table: more are stepped sooner with all others than picked out of them
)


def adam(
    modules: nn.Module,
    learning_rate: float,
    temperature_learning_rate: float,
    weight_decay: float,
    for_tables: ForTables = "adamw",
    table_learning_rate: float | None = None,
) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov and Hutter 2019) for all parameters; the temperature has its own
    rate and no decay.

    With "rowwise_adagrad" for tables, their gradients become sparse and `AdamWWithAdagrad` steps
    them.

    Args:
        table_learning_rate: of every `Table`; None is `learning_rate`, or 0.05 with row-wise
            Adagrad.

    Raises:
        ConfigError: row-wise Adagrad or a rate for tables, and no module is a `Table`.
    """
    trained = [p for p in modules.parameters() if p.requires_grad]
    dials = [
        p
        for m in modules.modules()
        if isinstance(m, Temperature)
        for p in m.parameters()
        if p.requires_grad
    ]
    rowwise = for_tables == "rowwise_adagrad"
    tables = set_sparse(modules, rowwise and all(map(has_sparse, {p.device for p in trained})))
    if rowwise and not tables:
        raise ConfigError(
            "table_optimizer is rowwise_adagrad, but the towers have no table of their own: drop it"
        )
    if table_learning_rate is not None and not tables:
        raise ConfigError(
            "table_learning_rate is given, but the towers have no table of their own: drop it"
        )
    table_rate = table_learning_rate or (TABLE_RATE if rowwise else learning_rate)
    apart_ids = {id(p) for p in (*dials, *tables)}
    rest = [p for p in trained if id(p) not in apart_ids]
    groups = [
        {"params": same, "lr": learning_rate, "weight_decay": weight_decay} for same in apart(rest)
    ]
    if dials:
        groups.append({"params": dials, "lr": temperature_learning_rate, "weight_decay": 0.0})
    decay = 0.0 if rowwise else weight_decay
    # A group each: they keep their order in a checkpoint whichever of them are divided.
    groups += [{"params": [table], "lr": table_rate, "weight_decay": decay} for table in tables]
    groups = [{**each, "initial_lr": each["lr"]} for each in groups]
    return AdamWWithAdagrad(groups, tables) if rowwise else AdamWByRow(groups)


def set_sparse(modules: nn.Module, sparse: bool) -> list[nn.Parameter]:
    """Make the gradients of all embedding tables sparse or dense; return the parameters of those
    that are trained."""
    tables: dict[nn.Parameter, None] = {}
    for module in modules.modules():
        if isinstance(module, Table):
            module.sparse = sparse
            tables |= {p: None for p in module.parameters() if p.requires_grad}
    return list(tables)


class AdamWByRow(torch.optim.AdamW):
    """AdamW by torch, and nothing else, which passes over the rows of a table that no batch has
    read yet.

    Their gradients and moments are 0, so that AdamW without weight decay leaves them as they are. A
    vocabulary has tens or hundreds of thousands, of which a run on a few thousand texts reads few.
    `lookup` knows which they are, on a CPU in one process.
    """

    # Around these torch imports its compiler, which takes a second of every run; no optimiser is
    # compiled here.
    add_param_group, zero_grad, state_dict, load_state_dict = (
        unwrap(getattr(torch.optim.AdamW, name))
        for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    )
    _adamw = unwrap(torch.optim.AdamW.step)

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, fused=True)
        self.read: MutableMapping[Tensor, _RowsRead] = WeakTensorKeyDictionary()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient."""
        grads = {}
        for group in self.param_groups:
            for p in group["params"] if group["weight_decay"] == 0 else []:
                rows = rows_of(p) if p in self.state else None  # the first step makes the moments
                if rows is None:
                    self._forget(p)
                elif self._picked(p, rows, group):
                    grads[p], p.grad = p.grad, None  # AdamW passes over it
        self._adamw()
        for p, grad in grads.items():
            p.grad = grad

    def _forget(self, table: Tensor) -> None:
        """Look for the rows anew next time: AdamW may reach any row now, and torch does not count
        what it writes."""
        read = self.read.get(table)
        if read is not None and read.mask is not None:
            del self.read[table]

    def _picked(self, table: Tensor, rows: Tensor, group: Mapping[str, Any]) -> bool:
        """Step the rows that have been read by now, [k]; return False, and do nothing, if they are
        not few."""
        assert table.grad is not None
        state, read = self.state[table], self.read.get(table)
        first, second = state["exp_avg"], state["exp_avg_sq"]
        if read is None or not read.holds(first):
            read = self.read[table] = _RowsRead(first, first.any(1).logical_or_(second.any(1)))
        if read.mask is None:
            return False
        read.mask[rows[table.grad[rows].any(1)]] = True
        chosen = read.mask.nonzero()[:, 0]
        if len(chosen) > _FEW * len(table):
            read.mask = None
            return False
        numbers, grad, of_first, of_second = (
            each[chosen] for each in (table, table.grad, first, second)
        )
        (beta1, beta2), steps = group["betas"], [state["step"]]
        rates = {
            "beta1": beta1,
            "beta2": beta2,
            "lr": group["lr"],
            "weight_decay": 0.0,
            "eps": group["eps"],
        }
        adamw(
            [numbers],
            [grad],
            [of_first],
            [of_second],
            [],
            steps,
            fused=True,
            amsgrad=False,
            maximize=False,
            **rates,
        )
        for whole, each in ((table, numbers), (first, of_first), (second, of_second)):
            whole.index_copy_(0, chosen, each)
        read.writes = first._version
        return True


@dataclass
class _RowsRead:
    """The rows of a table whose moments are not 0."""

    moments: Tensor
    mask: Tensor | None  # [rows]; None if they are not few, as they will not be again
    writes: int = -1  # to the moments

    def __post_init__(self) -> None:
        self.writes = self.moments._version

    def holds(self, moments: Tensor) -> bool:
        """Return True if the moments are the same ones, as they were."""
        return moments is self.moments and (self.mask is None or moments._version == self.writes)


class AdamWWithAdagrad(AdamWByRow):
    """AdamW, with row-wise Adagrad for tables, whose gradients are sparse and which have a learning
    rate of their own."""

    def __init__(self, groups: list[dict[str, Any]], tables: Sequence[nn.Parameter]) -> None:
        super().__init__(groups)
        self.tables = tables
        self._step_supports_amp_scaling = (
            False  # a scaler leaves a whole step out, not AdamW's part of it
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient; those of tables are used up."""
        rates = {p: group["lr"] for group in self.param_groups for p in group["params"]}
        for table in self.tables:
            if table.grad is None:
                continue
            if not self.state[table]:
                sums = torch.zeros(len(table), dtype=table.dtype, device=table.device)
                self.state[table] = {"step": torch.tensor(0.0), "sum": divided_as(sums, table)}
            self.state[table]["step"] += 1
            adagrad_rows(
                part(table), part(table.grad), part(self.state[table]["sum"]), rates[table]
            )
            table.grad = None  # AdamW passes over it
        super().step()


def adagrad_rows(table: Tensor, grad: Tensor, sums: Tensor, rate: float) -> None:
    """Row-wise Adagrad, in place: one learning rate a row, which falls with all that its gradients
    have been.

        sums_r += mean over the row of g^2;    table_r -= rate g_r / (sqrt(sums_r) + 1e-10)

    Rows that the gradient does not hold are not touched. Adagrad (Duchi et al. 2011) with the
    accumulator of a row in the place of its numbers', as DLRM (Naumov et al. 2019) and FBGEMM's
    EXACT_ROWWISE_ADAGRAD train tables.

    Args:
        table: [rows, D].
        grad: of the table, sparse; or dense, where rows of zeros are not touched.
        sums: one a row, [rows].

    >>> table, sums = torch.zeros(3, 2), torch.zeros(3)
    >>> grad = torch.tensor([[0.0, 0.0], [1.0, 7.0], [0.0, 0.0]]).to_sparse(1)
    >>> adagrad_rows(table, grad, sums, 0.1)
    >>> sums.tolist(), [round(number, 4) for number in table[1].tolist()]
    ([0.0, 25.0, 0.0], [-0.02, -0.14])
    """
    if not grad.is_sparse:  # of a device without sparse tensors; a row of zeros changes nothing
        sums += grad.square().mean(1)
        table -= grad / (sums.sqrt() + _EPS)[:, None] * rate
        return
    grad = grad.coalesce()
    rows, values = grad.indices()[0], grad.values()  # [k], [k, D]
    seen = sums[rows] + values.square().mean(1)
    sums[rows] = seen
    table.index_add_(0, rows, values / (seen.sqrt() + _EPS)[:, None], alpha=-rate)


def apart(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters that are whole and, if there are any, those that `shard` divided: torch takes no
    list of both."""
    divided = [p for p in parameters if is_divided(p)]
    return [[p for p in parameters if not is_divided(p)], *([divided] if divided else [])]


def total_norm(
    parameters: Sequence[nn.Parameter], group: Group, more: Sequence[Tensor] = ()
) -> Tensor:
    """Return the Euclidean norm of all gradients, the same on every process; each adds its part of
    those that are divided.

    Sparse ones hold each row once, as `step` and `Group.all_reduce_gradients` leave them.

    Args:
        more: gradients that are no parameter's yet, whole on every process.
    """
    reached = [p for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(
        [*(_reached(p) for p in reached if not is_divided(p)), *more]
    )
    if not any(map(is_divided, parameters)):
        return norm
    mine = float(
        torch.nn.utils.get_total_norm([_numbers(p.grad) for p in reached if is_divided(p)])
    )
    return (norm.double().square() + group.all_reduce_sum(mine**2)).sqrt()


def clip(parameters: Sequence[nn.Parameter], norm: Tensor, most: float) -> None:
    """Scale gradients of a total `norm`, which is on the host, down to `most`: torch's formula."""
    factor = float((most / (norm + 1e-6)).clamp(max=1.0))
    if factor < 1:
        grads = [
            _numbers(p.grad) for p in parameters if p.grad is not None and not scale(p, factor)
        ]
        if grads:
            torch._foreach_mul_(grads, factor)


def _reached(parameter: nn.Parameter) -> Tensor:
    """Return the numbers of a gradient, without the rows of a table that no lookup has added to."""
    rows = rows_of(parameter)
    assert parameter.grad is not None
    return _numbers(parameter.grad) if rows is None else parameter.grad[rows]


def _numbers(grad: Tensor | None) -> Tensor:
    """Return the numbers of this process's part of a gradient, in place; of a sparse one those that
    are stored."""
    assert grad is not None
    mine = part(grad)
    return mine.values() if mine.is_sparse else mine


def schedule_factor(step: int, steps: int, warmup_ratio: float, schedule: Schedule) -> float:
    """Return the factor of the learning rate in step `step` of `steps`: a rise to 1, then the
    schedule's fall.

    >>> [round(schedule_factor(s, 10, 0.2, "linear"), 2) for s in range(10)]
    [0.5, 1.0, 1.0, 0.88, 0.75, 0.62, 0.5, 0.38, 0.25, 0.12]
    """
    warmup = math.ceil(steps * warmup_ratio)
    if step < warmup:
        return (step + 1) / warmup
    passed = (step - warmup) / max(1, steps - warmup)
    return {
        "linear": 1 - passed,
        "cosine": 0.5 * (1 + math.cos(math.pi * passed)),
        "constant": 1.0,
    }[schedule]
