"""The optimiser, its schedule, and the norm of gradients; on a CPU, unread rows of a table take no
time.

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
_FEW = 0.25  # largest share of the rows of a table that is stepped faster apart from the others


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

    With "rowwise_adagrad", the gradients of tables become sparse, and `AdamWWithAdagrad` steps the
    tables.

    Args:
        table_learning_rate: of every `Table`; None is `learning_rate`, or 0.05 with row-wise
            Adagrad.

    Raises:
        ConfigError: row-wise Adagrad or a rate for tables, and no module is a `Table`.
    """
    trained = [p for p in modules.parameters() if p.requires_grad]
    dials: list[nn.Parameter] = []
    for module in modules.modules():
        if isinstance(module, Temperature):
            dials += [p for p in module.parameters() if p.requires_grad]
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
    if table_learning_rate is None:
        table_learning_rate = TABLE_RATE if rowwise else learning_rate
    groups: list[dict[str, Any]] = []

    def add(parameters: list[nn.Parameter], rate: float, decay: float) -> None:
        groups.append({"params": parameters, "lr": rate, "initial_lr": rate, "weight_decay": decay})

    with_own_group = {id(p) for p in dials + tables}
    rest = [p for p in trained if id(p) not in with_own_group]
    for whole_or_divided in apart(rest):
        add(whole_or_divided, learning_rate, weight_decay)
    if dials:
        add(dials, temperature_learning_rate, 0.0)
    # One group for each table: their order in a checkpoint does not depend on which are divided.
    for table in tables:
        add([table], table_learning_rate, 0.0 if rowwise else weight_decay)
    if rowwise:
        return AdamWWithAdagrad(groups, tables)
    return AdamWByRow(groups)


def set_sparse(modules: nn.Module, sparse: bool) -> list[nn.Parameter]:
    """Make the gradients of all embedding tables sparse or dense; return the trained parameters of
    the tables."""
    tables: dict[nn.Parameter, None] = {}
    for module in modules.modules():
        if isinstance(module, Table):
            module.sparse = sparse
            for parameter in module.parameters():
                if parameter.requires_grad:
                    tables[parameter] = None
    return list(tables)


class AdamWByRow(torch.optim.AdamW):
    """AdamW by torch, without work on rows of a table that no batch has read yet.

    The gradients and moments of unread rows are 0, so AdamW without weight decay does not change
    the rows. A vocabulary has tens or hundreds of thousands of rows, and a run on a few thousand
    texts reads few rows. `lookup` knows the rows read so far, on a CPU in one process.
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
            if group["weight_decay"] != 0:
                continue
            for p in group["params"]:
                rows = rows_of(p) if p in self.state else None  # the first step makes the moments
                if rows is None:
                    self._forget(p)
                elif self._step_rows(p, rows, group):
                    grads[p] = p.grad
                    p.grad = None  # AdamW passes over the table
        self._adamw()
        for p, grad in grads.items():
            p.grad = grad

    def _forget(self, table: Tensor) -> None:
        """Forget the read rows of a table: AdamW may write to any row now, and torch does not count
        these writes."""
        read = self.read.get(table)
        if read is not None and read.mask is not None:
            del self.read[table]

    def _step_rows(self, table: Tensor, rows: Tensor, group: Mapping[str, Any]) -> bool:
        """Step the rows that batches have read until now; return False, and do nothing, if the rows
        are not few.

        Args:
            rows: rows read by the batches of a step, [k].
        """
        assert table.grad is not None
        state = self.state[table]
        first = state["exp_avg"]
        second = state["exp_avg_sq"]
        read = self.read.get(table)
        if read is None or not read.is_valid_for(first):
            read = _RowsRead(first, first.any(1).logical_or_(second.any(1)))
            self.read[table] = read
        if read.mask is None:
            return False
        read.mask[rows[table.grad[rows].any(1)]] = True
        chosen = read.mask.nonzero()[:, 0]
        if len(chosen) > _FEW * len(table):
            read.mask = None
            return False
        weights_of_rows = table[chosen]
        first_of_rows = first[chosen]
        second_of_rows = second[chosen]
        beta1, beta2 = group["betas"]
        adamw(
            params=[weights_of_rows],
            grads=[table.grad[chosen]],
            exp_avgs=[first_of_rows],
            exp_avg_sqs=[second_of_rows],
            max_exp_avg_sqs=[],
            state_steps=[state["step"]],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=0.0,
            eps=group["eps"],
            maximize=False,
        )
        table.index_copy_(0, chosen, weights_of_rows)
        first.index_copy_(0, chosen, first_of_rows)
        second.index_copy_(0, chosen, second_of_rows)
        read.writes = first._version
        return True


@dataclass
class _RowsRead:
    """The rows of a table whose moments are not 0."""

    moments: Tensor
    mask: Tensor | None  # [rows]; None once the rows are not few, for they only grow
    writes: int = -1  # to the moments

    def __post_init__(self) -> None:
        self.writes = self.moments._version

    def is_valid_for(self, moments: Tensor) -> bool:
        """Return True if the moments are the same tensor, without a write from elsewhere."""
        if moments is not self.moments:
            return False
        return self.mask is None or moments._version == self.writes


class AdamWWithAdagrad(AdamWByRow):
    """AdamW, with row-wise Adagrad for tables, by sparse gradients and a separate learning rate."""

    def __init__(self, groups: list[dict[str, Any]], tables: Sequence[nn.Parameter]) -> None:
        super().__init__(groups)
        self.tables = tables
        # A scaler leaves out a whole step, and not only the part of AdamW.
        self._step_supports_amp_scaling = False

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient; the gradients of tables become None."""
        rates = {p: group["lr"] for group in self.param_groups for p in group["params"]}
        for table in self.tables:
            if table.grad is None:
                continue
            if not self.state[table]:
                sums = torch.zeros(len(table), dtype=table.dtype, device=table.device)
                self.state[table] = {"step": torch.tensor(0.0), "sum": divided_as(sums, table)}
            state = self.state[table]
            state["step"] += 1
            adagrad_rows(part(table), part(table.grad), part(state["sum"]), rates[table])
            table.grad = None  # AdamW passes over the table
        super().step()


def adagrad_rows(table: Tensor, grad: Tensor, sums: Tensor, rate: float) -> None:
    """Take a step of row-wise Adagrad, in place: a learning rate for each row, falling with the sum
    of squared gradients.

        sums_r += mean over the row of g^2;    table_r -= rate g_r / (sqrt(sums_r) + 1e-10)

    Rows without a gradient do not change. Adagrad (Duchi et al. 2011) with an accumulator for each
    row instead of each number, as DLRM (Naumov et al. 2019) and FBGEMM's EXACT_ROWWISE_ADAGRAD
    train tables.

    Args:
        table: [rows, D].
        grad: of the table, sparse; or dense, where a row of zeros is a row without a gradient.
        sums: accumulators of the rows, [rows].

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
    """Return a list of the whole parameters and, if there are any, a list of the parameters that
    `shard` divided: torch takes no list of both."""
    divided = [p for p in parameters if is_divided(p)]
    whole = [p for p in parameters if not is_divided(p)]
    return [whole, divided] if divided else [whole]


def total_norm(
    parameters: Sequence[nn.Parameter], group: Group, more: Sequence[Tensor] = ()
) -> Tensor:
    """Return the Euclidean norm of all gradients, the same on every process; each process adds its
    part of the divided gradients.

    Sparse gradients hold each row once, as `step` and `Group.all_reduce_gradients` leave them.

    Args:
        more: whole gradients not yet on a parameter.
    """
    whole = []
    divided = []
    for p in parameters:
        if p.grad is None:
            continue
        if is_divided(p):
            divided.append(_numbers(p.grad))
        else:
            whole.append(_numbers_reached(p))
    norm = torch.nn.utils.get_total_norm([*whole, *more])
    if not any(map(is_divided, parameters)):
        return norm
    mine = float(torch.nn.utils.get_total_norm(divided))
    return (norm.double().square() + group.all_reduce_sum(mine**2)).sqrt()


def clip(parameters: Sequence[nn.Parameter], norm: Tensor, most: float) -> None:
    """Scale gradients of a total `norm`, on the host, down to `most`: torch's formula."""
    factor = float((most / (norm + 1e-6)).clamp(max=1.0))
    if not factor < 1:  # also NaN
        return
    grads = []
    for p in parameters:
        if p.grad is None:
            continue
        done = scale(p, factor)  # of a table, by its read rows
        if not done:
            grads.append(_numbers(p.grad))
    if grads:
        torch._foreach_mul_(grads, factor)


def _numbers_reached(parameter: nn.Parameter) -> Tensor:
    """Return the numbers of a gradient, without the rows of a table that no batch has read."""
    rows = rows_of(parameter)
    assert parameter.grad is not None
    if rows is None:
        return _numbers(parameter.grad)
    return parameter.grad[rows]


def _numbers(grad: Tensor) -> Tensor:
    """Return the numbers of this process's part of a gradient, in place; the stored numbers of a
    sparse gradient."""
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
    if schedule == "linear":
        return 1 - passed
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * passed))
    return 1.0
