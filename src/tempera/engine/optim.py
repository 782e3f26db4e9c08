"""The optimiser, its schedule, and the norm of gradients.

Letters in shapes: k rows of a table that a batch has read, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.abilities import has_sparse
from ..core.table import Table
from ..core.temperature import Temperature
from ..errors import ConfigError
from .distributed import Group
from .shards import divided_as, is_divided, part

Schedule = Literal["linear", "cosine", "constant"]
ForTables = Literal["adamw", "rowwise_adagrad"]
TABLE_RATE = 0.05  # of row-wise Adagrad; chosen on MovieLens among 0.02, 0.05, 0.1
_EPS = 1e-10  # of Adagrad


def adam(
    modules: nn.Module,
    learning_rate: float,
    temperature_learning_rate: float,
    weight_decay: float,
    for_tables: ForTables = "adamw",
    table_learning_rate: float | None = None,
) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov and Hutter 2019) for all parameters; the temperature has its own rate and no decay.

    With "rowwise_adagrad" for tables, their gradients become sparse and `AdamWWithAdagrad` steps them.

    Args:
        table_learning_rate: of every `Table`; None is `learning_rate`, or 0.05 with row-wise Adagrad.

    Raises:
        ConfigError: row-wise Adagrad or a rate for tables, and no module is a `Table`.
    """
    trained = [p for p in modules.parameters() if p.requires_grad]
    dials = [p for m in modules.modules() if isinstance(m, Temperature) for p in m.parameters() if p.requires_grad]
    rowwise = for_tables == "rowwise_adagrad"
    tables = set_sparse(modules, rowwise and all(map(has_sparse, {p.device for p in trained})))
    if rowwise and not tables:
        raise ConfigError("table_optimizer is rowwise_adagrad, but the towers have no table of their own: drop it")
    if table_learning_rate is not None and not tables:
        raise ConfigError("table_learning_rate is given, but the towers have no table of their own: drop it")
    table_rate = table_learning_rate or (TABLE_RATE if rowwise else learning_rate)
    apart_ids = {id(p) for p in (*dials, *tables)}
    rest = [p for p in trained if id(p) not in apart_ids]
    groups = [{"params": same, "lr": learning_rate, "weight_decay": weight_decay} for same in apart(rest)]
    if dials:
        groups.append({"params": dials, "lr": temperature_learning_rate, "weight_decay": 0.0})
    decay = 0.0 if rowwise else weight_decay
    # A group each: they keep their order in a checkpoint whichever of them are divided.
    groups += [{"params": [table], "lr": table_rate, "weight_decay": decay} for table in tables]
    groups = [{**each, "initial_lr": each["lr"]} for each in groups]
    return AdamWWithAdagrad(groups, tables) if rowwise else torch.optim.AdamW(groups, fused=True)


def set_sparse(modules: nn.Module, sparse: bool) -> list[nn.Parameter]:
    """Make the gradients of all embedding tables sparse or dense; return the parameters of those that are trained."""
    tables: dict[nn.Parameter, None] = {}
    for module in modules.modules():
        if isinstance(module, Table):
            module.sparse = sparse
            tables |= {p: None for p in module.parameters() if p.requires_grad}
    return list(tables)


class AdamWWithAdagrad(torch.optim.AdamW):
    """AdamW, with row-wise Adagrad for tables, whose gradients are sparse and which have a learning rate of their own."""

    def __init__(self, groups: list[dict[str, Any]], tables: Sequence[nn.Parameter]) -> None:
        super().__init__(groups, fused=True)
        self.tables = tables
        self._step_supports_amp_scaling = False  # a scaler leaves a whole step out, not AdamW's part of it

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
            adagrad_rows(part(table), part(table.grad), part(self.state[table]["sum"]), rates[table])
            table.grad = None  # AdamW passes over it
        super().step()


def adagrad_rows(table: Tensor, grad: Tensor, sums: Tensor, rate: float) -> None:
    """Row-wise Adagrad, in place: one learning rate a row, which falls with all that its gradients have been.

        sums_r += mean over the row of g^2;    table_r -= rate g_r / (sqrt(sums_r) + 1e-10)

    Rows that the gradient does not hold are not touched. Adagrad (Duchi et al. 2011) with the accumulator of a row in the
    place of its numbers', as DLRM (Naumov et al. 2019) and FBGEMM's EXACT_ROWWISE_ADAGRAD train tables.

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
    """Parameters that are whole and, if there are any, those that `shard` divided: torch takes no list of both."""
    divided = [p for p in parameters if is_divided(p)]
    return [[p for p in parameters if not is_divided(p)], *([divided] if divided else [])]


def total_norm(parameters: Sequence[nn.Parameter], group: Group, more: Sequence[Tensor] = ()) -> Tensor:
    """Return the Euclidean norm of all gradients, the same on every process; each adds its part of those that are divided.

    Sparse ones hold each row once, as `step` and `Group.all_reduce_gradients` leave them.

    Args:
        more: gradients that are no parameter's yet, whole on every process.
    """
    reached = [p for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([*(_numbers(p.grad) for p in reached if not is_divided(p)), *more])
    if not any(map(is_divided, parameters)):
        return norm
    mine = float(torch.nn.utils.get_total_norm([_numbers(p.grad) for p in reached if is_divided(p)]))
    return (norm.double().square() + group.all_reduce_sum(mine**2)).sqrt()


def clip(parameters: Sequence[nn.Parameter], norm: Tensor, most: float) -> None:
    """Scale gradients of a total `norm`, which is on the host, down to `most`: torch's formula."""
    factor = float((most / (norm + 1e-6)).clamp(max=1.0))
    grads = [_numbers(p.grad) for p in parameters if p.grad is not None]
    if factor < 1 and grads:
        torch._foreach_mul_(grads, factor)


def _numbers(grad: Tensor | None) -> Tensor:
    """Return the numbers of this process's part of a gradient, in place; of a sparse one those that are stored."""
    assert grad is not None
    mine = part(grad)
    return mine.values() if mine.is_sparse else mine


def schedule_factor(step: int, steps: int, warmup_ratio: float, schedule: Schedule) -> float:
    """Return the factor of the learning rate in step `step` of `steps`: a rise from 0, then the schedule's fall.

    >>> [round(schedule_factor(s, 10, 0.2, "linear"), 2) for s in range(10)]
    [0.5, 1.0, 1.0, 0.88, 0.75, 0.62, 0.5, 0.38, 0.25, 0.12]
    """
    warmup = math.ceil(steps * warmup_ratio)
    if step < warmup:
        return (step + 1) / warmup
    passed = (step - warmup) / max(1, steps - warmup)
    return {"linear": 1 - passed, "cosine": 0.5 * (1 + math.cos(math.pi * passed)), "constant": 1.0}[schedule]
