"""Proofs on the user's own configuration, data and machine: do training and saving compute their
definitions?"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..arguments import refuse_other_kinds
from ..arithmetic.ragged import Ragged
from ..core.batch import Batch, divide
from ..core.definition import defined_losses
from ..core.objective import base_of
from ..engine import loop
from ..engine.cache import Cache
from ..engine.curation import guides_of, judging, scored
from ..engine.devices import Devices, choose_precision
from ..engine.optim import set_sparse
from ..engine.step import step
from ..engine.training_options import Training
from ..io.console import logger
from ..io.documents import JsonLines
from ..options import yaml_options as configuration
from ..options.build import build
from ..options.yaml_options import Options
from ..parallel.distributed import Group
from .prepare import Prepared, prepare

PAIRS = 12  # of the user's data; the definition takes time that grows with their square
PROCESSES = 2
LEAST_LOSS = 0.01  # of the batch: the gradient in float32 is good to 1e-5 then
Result = tuple[float, dict[str, Tensor]]  # loss and gradients
Propagate = Callable[[Batch[Tensor], Tensor], Tensor]


@dataclass(frozen=True)
class Proof:
    """One check and its result.

    Args:
        name: the two sides that ought to be equal.
        difference: the largest relative difference, or "bitwise equal".
        bound: the largest difference allowed.
        passed: True if the difference is within the bound.

    >>> Proof("cached = whole, rows one by one", "1.6e-16", "<= 1e-09", True).passed
    True
    """

    name: str
    difference: str
    bound: str
    passed: bool


def verify(
    config: Options | Mapping[str, Any] | str | Path | None = None,
    overrides: str | Iterable[str] = (),
) -> list[Proof]:
    """Try the configuration on a small batch of its own data.

    Raises:
        TemperaError: wrong options, or no data.

    >>> proofs = verify("pairs.yaml")
    >>> [proof.name for proof in proofs if not proof.passed]
    []
    """
    refuse_other_kinds(verify, locals())
    options = configuration.of(config, overrides)
    with tempfile.TemporaryDirectory() as place:
        with JsonLines(Path(place) / "log.jsonl") as log:
            prepared = prepare(build(options), Devices(), Path(place), log)
        case = Case.of(prepared)
        return [proof for prove in PROOFS for proof in prove(case)]


@dataclass(frozen=True)
class Case:
    """Hold the towers and the objective of a configuration, and some of its data."""

    tower: Any
    objective: Any
    batches: list[Batch[Ragged]]
    options: Training
    reopened: Callable[
        [Path], float
    ]  # how far vectors are off when the tower is saved and opened again
    folder: Path

    @classmethod
    def of(cls, prepared: Prepared) -> Case:
        data, options = prepared.task.data, prepared.config.train
        # From all over each batch: neighbours may be one user's, whose rows are masked for one
        # another, and prove nothing.
        rows = [rows[:: max(1, len(rows) // PAIRS)][:PAIRS] for rows in data.sampler(0, 4)]
        batches = [data.batches(chosen, number)[0] for number, chosen in enumerate(rows)]
        options = replace(options, gradient_accumulation_steps=1, cache_memory=None)
        reopened = partial(prepared.config.world.reopened, prepared.task)
        case = cls(
            data.tower, prepared.config.objective, batches, options, reopened, prepared.folder
        )
        case.warm()
        return case

    def warm(self) -> None:
        """Raise the temperature until the batch has a loss: without a loss, the gradient is
        rounding and proves nothing."""
        dial = base_of(self.objective).temperature
        value, log_scale, ceiling = dial.value, dial.log_scale.item(), dial.ceiling
        loss = _whole(self, torch.float64)[0]
        while loss < LEAST_LOSS and dial.value <= 0.5:
            dial.ceiling = max(dial.ceiling, 2 * dial.value)
            with torch.no_grad():
                dial.log_scale.sub_(math.log(2))
            loss = _whole(self, torch.float64)[0]
        if loss < LEAST_LOSS:
            with torch.no_grad():
                dial.log_scale.fill_(log_scale)
            dial.ceiling = ceiling
            logger.info(
                "the batch has hardly a loss at any temperature: its gradients prove little"
            )
        elif dial.value != value:
            logger.info(
                f"the batch has hardly a loss at a temperature of {value:g}: it is checked at {dial.value:g}"
            )

    def fresh(self, dtype: torch.dtype = torch.float32, dropout: bool = False) -> tuple[Any, Any]:
        """Return copies of the towers and the objective, without gradients."""
        tower, objective = (copy.deepcopy(each).to(dtype) for each in (self.tower, self.objective))
        tower.train(dropout)
        set_sparse(tower, self.options.table_optimizer == "rowwise_adagrad")
        return tower, objective


def _objective(case: Case) -> Iterator[Proof]:
    """Compare losses and gradients with the definition's own, row by row in float64, where no step
    size can be wrong."""
    tower, objective = case.fresh(torch.float64)
    with torch.no_grad():
        batch = case.batches[0].of(
            {role: tower.of(role)(side.rows) for role, side in case.batches[0].sides().items()}
        )
    losses, gradients = _scored(objective, batch, objective.propagate)
    defined, wanted = _scored(objective, batch, partial(_defined, objective))
    yield _small("objective = its definition: losses", float((losses - defined).abs().max()), 1e-9)
    yield _small("objective = its definition: gradients", _gap(gradients, wanted), 1e-9)


def _scored(
    objective: Any, batch: Batch[Tensor], propagate: Propagate
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the losses of a batch, [n], and the gradients of its embeddings and of the objective's
    own parameters."""
    objective.zero_grad()
    leaves = batch.map(lambda rows: rows.detach().requires_grad_())
    losses = propagate(leaves, leaves.shares())
    rows: dict[str, Tensor] = {
        role: side.rows.grad for role, side in leaves.sides().items() if side.rows.grad is not None
    }
    return losses, {**rows, **_gradients(objective)}


def _defined(objective: Any, batch: Batch[Tensor], shares: Tensor) -> Tensor:
    losses = defined_losses(objective, batch)
    torch.autograd.backward([shares @ losses])
    return losses.detach()


def _cached(case: Case) -> Iterator[Proof]:
    whole = _whole(case, torch.float64)
    for name, cache in {
        "rows one by one": Cache("always", tokens=1),
        "kept and replayed": Cache(memory=2e5, tokens=256),
    }.items():
        yield _small(
            f"cached = whole, {name}", _off(_stepped(case, torch.float64, cache), whole), 1e-9
        )


def _replayed(case: Case) -> Iterator[Proof]:
    kept, again = (
        _stepped(case, torch.float32, Cache(mode, tokens=256), dropout=True)
        for mode in ("never", "always")
    )
    other = _stepped(case, torch.float32, Cache("never", tokens=256), dropout=True, seed=8)
    same = kept[0] == again[0] and all(
        torch.equal(kept[1][name], again[1][name]) for name in kept[1]
    )
    drawn = "dropout on" if other[0] != kept[0] else "the towers draw nothing"
    yield Proof(
        f"replayed = kept, {drawn}",
        "bitwise equal" if same else f"{_off(again, kept):.1e}",
        "bitwise",
        same,
    )


@torch.no_grad()
def _chosen(case: Case) -> Iterator[Proof]:
    """Compare the scores by which a guide chooses rows with the scores of the definition."""
    if case.options.select == 1:
        return
    (tower, objective), by = case.fresh(torch.float64), case.options.select_by
    base = judging(objective)
    base.teacher = None  # has no part in them
    guides = {role: rows.double() for role, rows in guides_of(case.batches[0]).items()}
    sides: Any = {
        role: replace(side, guide=guides[role]) for role, side in case.batches[0].sides().items()
    }
    batch = replace(case.batches[0], **sides)
    wanted = -defined_losses(base, batch.of(guides))
    if by == "learnability":
        wanted += defined_losses(
            base, batch.of({role: tower.of(role)(side.rows) for role, side in sides.items()})
        )
    scores, _ = scored(tower, objective, batch, by, Cache())
    yield _small(
        "scores of the guide's choice = their definition",
        float((scores - wanted).abs().max()),
        1e-9,
    )


def _processes(case: Case) -> Iterator[Proof]:
    from torch.multiprocessing.spawn import spawn

    tower, objective = case.fresh(torch.float64)
    whole = _stepped(case, torch.float64, Cache())
    store, place = case.folder / "store", str(case.folder)
    spawn(
        _one_process,
        (place, f"file://{store}", tower, objective, case.batches[0]),
        nprocs=PROCESSES,
    )  # type: ignore[no-untyped-call]
    for rank in range(PROCESSES):
        saved = load_file(case.folder / f"{rank}.safetensors")
        result = float(saved.pop("loss")), saved
        yield _small(f"{PROCESSES} processes = one, rank {rank}", _off(result, whole), 1e-9)


def _one_process(
    rank: int, folder: str, store: str, tower: Any, objective: Any, batch: Batch[Ragged]
) -> None:
    torch.set_num_threads(1)
    wait = timedelta(seconds=120)
    torch.distributed.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=PROCESSES, timeout=wait
    )
    group = Group(rank, PROCESSES)
    loss = step(tower, objective, divide(batch, rank, PROCESSES), Cache(), group)
    group.all_reduce_gradients([*tower.parameters(), *objective.parameters()])
    save_file(
        {"loss": torch.tensor(loss, dtype=torch.float64), **_gradients(tower, objective)},
        Path(folder) / f"{rank}.safetensors",
    )
    torch.distributed.destroy_process_group()


def _precision(case: Case) -> Iterator[Proof]:
    exact = _whole(case, torch.float64)
    yield _small(
        "float32 against float64", _off(_stepped(case, torch.float32, Cache()), exact), 1e-3
    )
    if (precision := choose_precision(case.options.mixed_precision)) != "no":
        lower = Cache(autocast=Devices(mixed_precision=precision).autocast)
        yield _small(
            f"{precision} against float64", _off(_stepped(case, torch.float32, lower), exact), 0.1
        )


def _saved(case: Case) -> Iterator[Proof]:
    yield _small("saved and loaded = in training", case.reopened(case.folder / "saved"), 1e-4)


def _resumed(case: Case) -> Iterator[Proof]:
    count = len(case.batches)
    through = _trained(case, range(count), None)
    _trained(case, range(count // 2), case.folder / "checkpoint")
    resumed = _trained(case, range(count // 2, count), case.folder / "checkpoint")
    same = all(torch.equal(through[name], resumed[name]) for name in through)
    off = max(
        float((through[name].double() - resumed[name].double()).abs().max()) for name in through
    )
    yield Proof(
        "resumed = uninterrupted", "bitwise equal" if same else f"{off:.1e}", "bitwise", same
    )


def _trained(case: Case, steps: range, folder: Path | None) -> dict[str, Tensor]:
    """Return the weights after some steps; steps from 0 on write a checkpoint into `folder`, and
    later steps resume from the checkpoint."""
    state = loop.begin(*case.fresh(), case.options)
    if folder is not None and steps.start:
        state.load(folder)
    rows = case.batches[steps.start :]
    for progress in loop.train(state, rows, len(case.batches), case.options):
        if progress.step == steps.stop:
            break
    if folder is not None and not steps.start:
        state.save(folder)
    return {name: value.clone() for name, value in state.modules.state_dict().items()}


PROOFS: tuple[Callable[[Case], Iterator[Proof]], ...] = (
    _objective,
    _cached,
    _replayed,
    _chosen,
    _processes,
    _precision,
    _saved,
    _resumed,
)


def _whole(case: Case, dtype: torch.dtype) -> Result:
    """Return loss and gradients by autograd through everything at once, with dense gradients."""
    tower, objective = case.fresh(dtype)
    set_sparse(tower, False)
    batch = case.batches[0]
    embedded = batch.of({role: tower.of(role)(side.rows) for role, side in batch.sides().items()})
    loss = (embedded.shares().to(dtype) * objective(embedded)).sum()
    loss.backward()
    return float(loss.detach()), _gradients(tower, objective)


def _stepped(
    case: Case, dtype: torch.dtype, cache: Cache, dropout: bool = False, seed: int = 7
) -> Result:
    tower, objective = case.fresh(dtype, dropout)
    torch.manual_seed(seed)
    return step(tower, objective, case.batches[0], cache), _gradients(tower, objective)


def _gradients(*modules: nn.Module) -> dict[str, Tensor]:
    named = [pair for module in modules for pair in module.named_parameters()]
    return {name: p.grad.to_dense().clone() for name, p in named if p.grad is not None}


def _off(result: Result, wanted: Result) -> float:
    """Return the larger of the differences of loss and gradients, each relative to the wanted one's
    size."""
    loss, gradients = wanted
    return max(abs(result[0] - loss) / max(1e-9, abs(loss)), _gap(result[1], gradients))


def _gap(gradients: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Return the length of the difference of two gradients, relative to the wanted one's."""
    if gradients.keys() != wanted.keys():
        return math.inf
    gap = math.hypot(
        *(float((gradients[name].double() - want.double()).norm()) for name, want in wanted.items())
    )
    return gap / max(1e-30, math.hypot(*(float(want.double().norm()) for want in wanted.values())))


def _small(name: str, gap: float, bound: float) -> Proof:
    return Proof(name, f"{gap:.1e}", f"<= {bound:.0e}", gap <= bound)
