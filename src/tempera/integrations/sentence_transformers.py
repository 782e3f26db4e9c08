"""Any objective as a loss for sentence-transformers' trainer, with gradient caching built in.

    loss = ContrastiveLoss(model, mnr(temperature=Temperature(0.05, learnable=True)))
    SentenceTransformerTrainer(model=model, train_dataset=pairs, loss=loss,
    callbacks=[ObjectiveState(loss)]).train()

`forward` embeds, scores, and leaves the gradient of every embedding; `backward` takes it through
the model:

    embed -> gather -> score | times the trainer's factor of the loss -> through the model ->
    average over processes

so that accumulation and gradient scalers reach the model and the temperature alike. Under
DistributedDataParallel the model is called without the wrapper, whose hooks then do nothing;
gradients are averaged here, at the moment of the wrapper's average.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, get_args

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..arithmetic.ragged import Ragged
from ..core.batch import Batch, Role, Side
from ..core.masks import Guided, KnownPositives, SameId
from ..core.matryoshka import Matryoshka
from ..core.objective import Objective, base_of
from ..core.presets import mnr
from ..core.similarity import cosine, exact
from ..core.temperature import Temperature
from ..engine.cache import Cache, Embedded, Mode
from ..errors import ConfigError, TemperaError, refuse_other, refuse_unknown
from ..io.require import require
from ..parallel.distributed import ALONE, Group
from ..parallel.shards import is_divided
from .citations import citations
from .trainer_columns import ColumnReader, Columns, Labels, ModelTowers

require("trainer", "sentence-transformers' trainer")
from transformers import TrainerCallback  # noqa: E402
from transformers.trainer_callback import ExportableState  # noqa: E402

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Rows that tell the memory of a row: 64 short rows and a long row, the same in every run, so that
# resumed runs cut alike.
_SHORT = 64
_SHORT_WIDTH = 8
_LONG_WIDTH = 128


class ContrastiveLoss(nn.Module):
    """An objective as the `loss` of a SentenceTransformerTrainer, or of a loop with `loss(features,
    labels).backward()`.

    Columns are query, document, and any number of negatives, as for MultipleNegativesRankingLoss;
    prompts, routers and evaluators work likewise. Ids of rows are hashes of tokens, so `SameId()`
    among the masks leaves duplicates out. An objective with a learned temperature, a schedule or a
    memory needs `ObjectiveState` in the trainer.

    Args:
        model: the model to train.
        objective: a preset or any composition; None is `mnr()`.
        guide: a model with the vectors for `Guided` masks.
        labels: meaning of a column of labels: "weight" is the weight of a row; "id" names the
            document, so that rows of equal labels are no negatives with `SameId` and are positives
            with `numerator`; "ignore" skips the column. None refuses the column.
        gather_across_devices: take negatives from all processes, and return the loss of all rows.
            All processes must then use the same loss in a step: give several data sets a common
            loss.
        cache: "auto" keeps the graphs that fit `cache_memory` and embeds the rest again; "never"
            keeps all, "always" none.
        cache_memory: bytes for kept graphs, or up to 1 a share of the free memory; None is 4 GiB on
            a CPU, 0.8 on a GPU.
        micro_batch_tokens: most tokens to embed together, padding counted; None is chosen by the
            memory.
        teacher: a model with the vectors for the objective's `Teacher`.

    Raises:
        ConfigError: the model or its wrapper cannot be trained with the loss; an objective of
        another kind, unknown labels or an unknown cache; a guide or a teacher without a use in the
        objective, or the model in training as either.
        DataError: the columns are not a query and a document, or lack data for a part of the
        objective.
        TemperaError: the loss is not finite.

    >>> from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    >>> model = SentenceTransformer("runs/first/model")
    >>> loss = ContrastiveLoss(model, mnr(temperature=0.05))
    >>> trainer = SentenceTransformerTrainer(model=model, train_dataset=pairs, loss=loss)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: SentenceTransformer,
        objective: Objective | Matryoshka | None = None,
        guide: SentenceTransformer | None = None,
        labels: Labels | None = None,
        gather_across_devices: bool = True,
        cache: Mode = "auto",
        cache_memory: float | None = None,
        micro_batch_tokens: int | None = None,
        teacher: SentenceTransformer | None = None,
    ) -> None:
        super().__init__()
        fits = isinstance(objective, Objective | Matryoshka | None)
        refuse_other(
            "objective", objective, fits, "an Objective such as mnr(temperature=0.05), or None"
        )
        if labels is not None:
            refuse_unknown("labels", labels, *get_args(Labels))
        refuse_unknown("cache", cache, *get_args(Mode))
        self.model: nn.Module = model
        self.objective = mnr() if objective is None else objective
        self._refuse_idle(model, guide, teacher)
        # The trainer decays no parameter that is named a bias, and a temperature that decays ends
        # at 1.
        self.temperature_bias = self.objective.temperature.log_scale
        self.guide = guide
        self.teacher = teacher
        for frozen in (guide, teacher):
            if frozen is not None:
                frozen.eval().requires_grad_(False)
        self.labels = labels
        self.gather_across_devices = gather_across_devices
        self.cache = cache
        self.cache_memory = cache_memory
        self.micro_batch_tokens = micro_batch_tokens
        self.saved = False  # True if checkpoints hold the objective
        self._number = next(_numbers)
        self._reader = ColumnReader(model, self.guide, labels, self.teacher)
        self._caches: dict[bool, Cache] = {}

    def _refuse_idle(
        self, model: nn.Module, guide: nn.Module | None, teacher: nn.Module | None
    ) -> None:
        """Refuse a guide or a teacher without a use in the objective, and the model in training as
        either, since the model would be frozen."""
        parts = self._parts
        guided = False
        for mask in parts.masks:
            is_known = isinstance(mask, SameId | KnownPositives | Guided)
            if not is_known or getattr(mask, "by", "") == "guide":
                guided = True  # a mask of the user may ask the guide
        for name, each, wanted, part in (
            ("guide", guide, guided, "masks=[Guided()], as gist() has it"),
            ("teacher", teacher, parts.teacher is not None, "teacher=Teacher()"),
        ):
            if each is not None and not wanted:
                raise ConfigError(
                    f"the objective never asks the {name}: give it {part}, or drop {name}="
                )
            if each is model:
                raise ConfigError(
                    f"the {name} is the model in training, and it would be frozen: give a copy of it"
                )

    def _apply(self, fn: Any, recurse: bool = True) -> ContrastiveLoss:
        """Leave the temperature on the host in float64, as `Temperature` does: the second name
        would move the temperature."""
        dial = self._parameters.pop("temperature_bias", None)
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            if dial is not None:  # else the temperature is fixed, and no parameter
                self._parameters["temperature_bias"] = dial
        return self

    def forward(
        self, sentence_features: Iterable[Mapping[str, Any]], labels: Tensor | None = None
    ) -> Tensor:
        """Return the weighted mean of all rows' losses, a scalar; `backward` takes its gradient
        through the model."""
        training = torch.is_grad_enabled()
        model = self._unwrapped()
        if training:
            self._refuse_lost_state(model)
        batch, towers = self._read(model, list(sentence_features), labels)
        world = _world(self._device)
        if training and not world.all_equal(self._number):
            raise ConfigError(
                "the processes use different losses in the same step, so that their gradients cannot be averaged: give all "
                "data sets one ContrastiveLoss, or train in one process"
            )
        group = world if self.gather_across_devices else ALONE
        embedded = self._cache(towers).embed(towers, batch, group)
        # Exact, since gradients are scaled before they are rounded.
        everyone = group.gather(embedded.batch.map(exact))
        # An evaluation before the first step does not resolve the temperature for good.
        passing = not training and self._dial.start == "auto"
        self._dial.resolve(len(everyone), normalised=self._parts.similarity == cosine)
        recalled = self.objective.recall(everyone)
        shares = everyone.shares()
        if training:
            losses, dial = self._propagate(recalled, shares)
        else:
            losses = self.objective(recalled)
        if passing:
            self._dial.forget()
        total = group.all_reduce_sum(float((losses * shares.to(losses)).sum()))
        loss = torch.tensor(_finite(total), device=self._device)
        if not training:
            return loss
        processes = world.size if group is world else 1
        passed = _Passed(embedded, group.reduce_scatter(everyone), dial, processes)
        self.objective.remember(everyone)
        loss.requires_grad_().register_hook(partial(self._backward, passed, world))  # type: ignore[no-untyped-call]
        return loss

    @property
    def temperature(self) -> float:
        """Return the current temperature of the softmax."""
        return self._dial.value

    @property
    def citation(self) -> str:
        """Return the BibTeX of the methods in the loss."""
        return citations(self._parts, matryoshka=self._parts is not self.objective)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings for sentence-transformers' model card."""
        parts = self._parts
        dial = self._dial
        config: dict[str, Any] = {
            "similarity": parts.similarity.name,
            "temperature": dial.start,
            "scale": None if dial.start == "auto" else 1 / dial.start,
            "learnable": dial.learnable,
            "pools": [pool.name for pool in parts.pools],
            "corrections": [repr(part) for part in parts.corrections],
            "masks": [repr(part) for part in parts.masks],
            "partition": parts.partition,
            "numerator": parts.numerator,
            "hardest": parts.hardest,
            "memory": None if parts.memory is None else parts.memory.size,
            "teacher": None if parts.teacher is None else repr(parts.teacher),
            "gather_across_devices": self.gather_across_devices,
            "cache": self.cache,
        }
        if isinstance(self.objective, Matryoshka):
            axes = ("widths", "weights", "precisions")
            for name in axes:
                config[name] = list(getattr(self.objective, name) or ())
        if self.guide is not None:
            config["guide"] = self.guide
        return config

    @property
    def calculate_loss(self) -> Any:
        """Refuse sentence-transformers' wrappers around a loss, which call the method.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "ContrastiveLoss cannot be wrapped by another loss; for MatryoshkaLoss, wrap the objective: "
            "ContrastiveLoss(model, tempera.Matryoshka(objective, widths=[...]))"
        )

    @property
    def uses_gradient_cache(self) -> bool:
        """True: the backward pass calls the model again, as sentence-transformers has to know."""
        return True

    @property
    def _parts(self) -> Objective:
        return base_of(self.objective)

    @property
    def _dial(self) -> Temperature:
        return self.objective.temperature

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _unwrapped(self) -> SentenceTransformer:
        """Return the model without the trainer's wrapper."""
        from sentence_transformers import SentenceTransformer

        alone = not isinstance(self.model, DistributedDataParallel)
        model = self.model if alone else self.model.module
        if not isinstance(model, SentenceTransformer):
            raise ConfigError(
                f"ContrastiveLoss trains a SentenceTransformer, alone or in DistributedDataParallel, not a "
                f"{type(model).__name__}: launch one process for each GPU (torchrun), and call model.compile(dynamic=True) "
                "instead of torch_compile=True"
            )
        if any(map(is_divided, model.parameters())):
            raise ConfigError(
                "ContrastiveLoss does not train models sharded by FSDP: use `tempera train` with train.fsdp=true"
            )
        if torch.is_grad_enabled() and alone and _world(self._device).size > 1:
            raise ConfigError(
                "several processes train one model in DistributedDataParallel: wrap it before the first step"
            )
        return model

    def _refuse_lost_state(self, model: SentenceTransformer) -> None:
        parts = self._parts
        follows_schedule = self._dial.final is not None
        if parts.teacher is not None and parts.teacher.final is not None:
            follows_schedule = True
        learns = any(p.requires_grad for p in parts.parameters())
        has_state = follows_schedule or parts.memory is not None or learns
        is_in_trainer = model.model_card_data.all_hyperparameters  # which a trainer leaves there
        if has_state and not self.saved and is_in_trainer:
            raise ConfigError(
                "this objective has a state of its own, which the trainer's checkpoints do not hold: give the trainer "
                "callbacks=[ObjectiveState(loss)]"
            )

    def _read(
        self, model: SentenceTransformer, columns: Columns, labels: Tensor | None
    ) -> tuple[Batch[Ragged], ModelTowers]:
        if self._reader.model is not model:  # the trainer has made another one
            self._reader = ColumnReader(model, self.guide, self.labels, self.teacher)
            self._caches = {}
        return self._reader.read(columns, labels)

    def _cache(self, towers: ModelTowers) -> Cache:
        """Return the cache for embedding the batch, with the current autocast, and without graphs
        outside training."""
        training = torch.is_grad_enabled()
        if training not in self._caches:
            mode = self.cache if training else "always"
            self._caches[training] = Cache(
                mode, self.cache_memory, self.micro_batch_tokens, self._device
            )
        cache = self._caches[training]
        kind = self._device.type
        cache.autocast = partial(
            _autocast, kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        )
        if any(tower not in cache.footprints for tower in towers.towers.values()):
            longest = self._reader.longest(_LONG_WIDTH)
            rows = Ragged.of([[0] * min(_SHORT_WIDTH, longest)] * _SHORT + [[0] * longest])
            owner = torch.zeros(len(rows), dtype=torch.int64)
            sides: dict[str, Any] = {}
            for role in _ROLES:
                sides[role] = Side(rows, owner=owner) if role in towers.towers else None
            cache.plan(towers, Batch(**sides))
        return cache

    def _propagate(
        self, batch: Batch[Tensor], shares: Tensor
    ) -> tuple[Tensor, list[tuple[nn.Parameter, Tensor]]]:
        """Return the losses, [b], and the gradients of the objective's parameters, kept for the
        backward pass."""
        learned = [p for p in self.objective.parameters() if p.requires_grad]
        earlier = [p.grad for p in learned]
        for p in learned:
            p.grad = None
        losses = self.objective.propagate(batch, shares)
        self._dial.collect()
        gradients = [(p, p.grad) for p in learned if p.grad is not None]
        for p, grad in zip(learned, earlier, strict=True):
            p.grad = grad
        return losses, gradients

    def _backward(self, passed: _Passed, world: Group, factor: Tensor) -> None:
        """Propagate to the model and the temperature, times the factor by which the loss was
        multiplied."""
        gradients = {}
        for role, grad in passed.home.items():
            gradients[role] = grad * (factor * passed.shared)
        passed.embedded.backward(gradients)
        for parameter, grad in passed.dial:
            earlier = parameter.grad
            parameter.grad = grad * (factor.to(grad.device) * passed.shared)
            _average([parameter], world)
            if earlier is not None:
                parameter.grad.add_(earlier)
        if (
            isinstance(self.model, DistributedDataParallel)
            and self.model.require_backward_grad_sync
        ):
            _average(self.model.module.parameters(), world)


class ObjectiveState(TrainerCallback, ExportableState):
    """Save the state of an objective in the trainer's checkpoints (`trainer_state.json`), and
    advance the schedule.

    Args:
        loss: the `loss` of the trainer: a `ContrastiveLoss`, or a mapping from names of data sets
            to losses.

    Raises:
        ConfigError: the checkpoint to resume from does not hold the objective.

    >>> from sentence_transformers import SentenceTransformer
    >>> loss = ContrastiveLoss(SentenceTransformer("runs/first/model"), mnr(Temperature(0.05, learnable=True)))
    >>> list(ObjectiveState(loss).losses)  # give it to the trainer: callbacks=[ObjectiveState(loss)]
    ['']
    """

    def __init__(self, loss: nn.Module | Mapping[str, nn.Module] | None = None) -> None:
        if loss is None:
            raise ConfigError(
                "ObjectiveState restores itself: leave restore_callback_states_from_checkpoint=False"
            )
        named = loss if isinstance(loss, Mapping) else {"": loss}
        self.losses = {
            name: each for name, each in named.items() if isinstance(each, ContrastiveLoss)
        }

    def state(self) -> dict[str, Any]:
        """Return the objective's tensors as safetensors in base64."""
        states = {
            name: safetensors.torch.save(loss.objective.state_dict())
            for name, loss in self.losses.items()
        }
        return {
            "args": {},
            "attributes": {name: base64.b64encode(kept).decode() for name, kept in states.items()},
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the objective from the trainer's checkpoint."""
        kept = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {})
        for name, loss in self.losses.items():
            loss.saved = True
            if name in kept:
                tensors = safetensors.torch.load(base64.b64decode(kept[name]))
                device = loss.objective.temperature.log_scale.device
                loss.objective.load_state_dict(
                    {key: tensor.to(device) for key, tensor in tensors.items()}
                )
            elif state.global_step:
                raise ConfigError(
                    f"the checkpoint of step {state.global_step} holds no objective, because it was written without "
                    "ObjectiveState: start a new run"
                )

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Advance the schedules of temperatures and teachers."""
        for loss in self.losses.values():
            loss.objective.advance(state.global_step / max(1, state.max_steps - 1))


_numbers = count()  # of losses, in the order of their making, which is the same in every process
_ROLES: tuple[Role, ...] = ("query", "doc", "negatives")


@dataclass
class _Passed:
    """Hold results of a forward pass for the backward pass."""

    embedded: Embedded
    home: dict[Role, Tensor]  # gradients of this process's embeddings
    dial: list[tuple[nn.Parameter, Tensor]]  # what the objective learns, and its gradient
    # Number of processes that share the rows of the loss: a sum over the processes is to survive an
    # average.
    shared: int


def _average(parameters: Iterable[nn.Parameter], world: Group) -> None:
    """Average gradients over all processes, in place, as DistributedDataParallel does."""
    several = [p for p in parameters if p.requires_grad]
    world.all_reduce_gradients(several)
    if world.size == 1:
        return
    for parameter in several:
        if parameter.grad is not None:
            parameter.grad.div_(world.size)


def _world(device: torch.device) -> Group:
    if not dist.is_available() or not dist.is_initialized():
        return ALONE
    return Group(dist.get_rank(), dist.get_world_size(), device)


@contextmanager
def _autocast(kind: str, dtype: torch.dtype, enabled: bool) -> Iterator[None]:
    """Restore the autocast of the forward pass for replays; weights cast without a graph are not
    reused with a graph."""
    torch.clear_autocast_cache()
    with torch.autocast(kind, dtype, enabled):
        yield
    torch.clear_autocast_cache()


def _finite(loss: float) -> float:
    if not math.isfinite(loss):
        raise TemperaError(f"the loss is {loss}: lower learning_rate or raise the temperature")
    return loss
