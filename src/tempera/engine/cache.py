"""Gradient caching: keep the graphs that fit the memory, and embed the remaining rows again when
gradients are known.

GradCache (Gao et al. 2021) embeds every row twice. Here a micro-batch is embedded twice only for
lack of memory:

    embed the rows to replay, without graph -> embed the rows to keep -> gradients of all embeddings
    -> backward through the kept graphs, which frees them -> replay the others, one at a time

so memory peaks at the larger of the kept graphs and a replayed micro-batch, and not at the sum.
Each micro-batch draws random numbers from its own seed, so a replay repeats dropout exactly. Draws
from numpy or `random` are not repeated, and make the gradients of a tower wrong.

All processes call a divided tower equally often: a process with fewer micro-batches embeds one row
more, throws the embedding away, and gives it the gradient 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from ..arithmetic.abilities import free_bytes, seeded
from ..arithmetic.derivatives import backward
from ..arithmetic.products import choose_onednn, onednn_pays
from ..core.advice import refuse_batch_statistics
from ..core.batch import Batch, Role
from ..errors import ConfigError, TemperaError, refuse_unknown
from ..io.console import logger
from ..layers.dropout import dropout_on
from ..layers.linear_layers import in_half
from ..layers.lookup import merge
from ..parallel.distributed import ALONE, Group
from .clock import Clock
from .micro_batches import Micro, Plan, Work, fillers
from .plan import Footprint, footprint, keep, pack, probe_rows, start_tokens

CPU_MEMORY = 4 << 30  # bytes for kept graphs; a stated amount, so that a run repeats exactly
GPU_MEMORY = 0.8  # of the free memory
CPU_MICRO_BATCH = 256 << 20  # bytes of one micro-batch's graph
GPU_MICRO_BATCH = 1 / 8  # of the memory for kept graphs
_MOST_HALVINGS = 16

_WEAK = ("footprints", "trained")  # attributes of a cache whose keys are weak references to towers
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size_of(value: Any) -> Any:
    """Return bytes from a number, or from a text with a unit of 1,024.

    >>> size_of("1.5GiB"), size_of("200 MB"), size_of(0.5)
    (1610612736.0, 209715200.0, 0.5)
    """
    if not isinstance(value, str):
        return value
    number = value.strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    try:
        return float(number.removesuffix(unit)) * _UNITS.get(unit, 1)
    except ValueError:
        raise ValueError("bytes, or a text such as 2GiB") from None


Size = Annotated[float, BeforeValidator(size_of), Field(gt=0)]
Mode = Literal["auto", "never", "always"]
Context = Callable[[], AbstractContextManager[Any]]


@dataclass
class Embedded:
    """An embedded batch, and the way back through the towers."""

    batch: Batch[Tensor]  # rows without graph
    plan: Plan
    cache: Cache
    group: Group = ALONE

    def backward(self, grads: Mapping[Role, Tensor | None]) -> None:
        """Add the gradients of the towers' parameters.

        Args:
            grads: gradients of each role's embeddings, [n, D]; zeros for a role without them.
        """
        for work in self.plan.works:
            assert work.embeddings is not None
            parts = work.embeddings.split_with_sizes(work.counts)
            sides = []
            for role, part in zip(work.roles, parts, strict=True):
                grad = grads.get(role)
                sides.append(torch.zeros_like(part) if grad is None else grad)
            work.grads = torch.cat(sides) if len(sides) > 1 else sides[0]
        has_graph = [self._backward_through(micro) for micro in reversed(self.plan.micros)]
        if has_graph and not any(has_graph):
            self._refuse_detached()

    def _backward_through(self, micro: Micro) -> bool:
        """Go backward through a micro-batch; return False for embeddings without graph, as from a
        frozen tower."""
        graph = micro.graph
        micro.graph = None
        if graph is None:
            with self.cache.replaying, torch.enable_grad(), self.cache.autocast():
                graph = micro.embed(self.cache.device)
        if graph.requires_grad:
            backward([graph], [micro.grads(graph.device).to(graph.dtype)])
            merge(micro.work.parameters)
        return graph.requires_grad

    def _refuse_detached(self) -> None:
        """Refuse towers with trainable weights and embeddings without a graph."""
        names = [
            type(work.tower).__name__
            for work in self.plan.works
            if any(p.requires_grad for p in work.parameters)
        ]
        if names:
            raise ConfigError(
                f"no gradient reaches the weights of {' and '.join(names)}: the embeddings have no graph, as after detach() or "
                "within no_grad()"
            )


@dataclass
class Cache:
    """Embeds batches with the towers of a run, and remembers the sizes of graphs.

    Args:
        mode: "auto" keeps the graphs that fit `memory`; "never" keeps all, so no row is embedded
            twice; "always" keeps none.
        memory: bytes for kept graphs, as a number or a text such as "2GiB", or, up to 1, a share of
            the free memory; None is 4 GiB on a CPU and 0.8 of the free memory on a GPU.
        tokens: most tokens of a micro-batch, padding counted; None is as many as fit 256 MiB of
            graph on a CPU, and 1/8 of `memory` on a GPU.
        device: device of the towers.
        autocast: context of the towers' forward passes.
        free: bytes of free memory on the device; None asks the device.
        half: True if towers multiply in half precision; None asks torch.

    Raises:
        ConfigError: an unknown mode, a wrong size, or a tower with layers over the whole batch: no
            batch can be cut then.

    >>> from tempera import Batch, Side, mnr, step
    >>> tower, batch = torch.nn.Linear(3, 2), Batch(Side(torch.randn(64, 3)), Side(torch.randn(64, 3)))
    >>> losses = [step(tower, mnr(0.05), batch, Cache(mode, tokens=8)) for mode in ("never", "always")]
    >>> torch.testing.assert_close(*losses)
    """

    mode: Mode = "auto"
    memory: float | str | None = None
    tokens: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    autocast: Context = nullcontext
    free: float | None = None
    half: bool | None = None

    def __post_init__(self) -> None:
        refuse_unknown("cache: mode", self.mode, *get_args(Mode))
        try:
            memory: float | None = size_of(self.memory)
        except ValueError as error:
            raise ConfigError(f"cache: memory is {error}, not {self.memory!r}") from None
        if memory is not None and not memory > 0:
            raise ConfigError(
                f"cache: memory is above 0, in bytes or as a share, not {memory}; None takes the usual"
            )
        self.memory = memory
        if self.tokens is not None and self.tokens < 1:
            raise ConfigError(
                f"cache: tokens of a micro-batch are 1 or more, not {self.tokens}; None takes what fits"
            )
        self.device = torch.device(self.device)
        on_gpu = self.device.type != "cpu"
        if memory is None:
            self.bytes = GPU_MEMORY * self._free() if on_gpu else float(CPU_MEMORY)
        else:
            self.bytes = memory * self._free() if memory <= 1 else memory
        self.micro_bytes = self.bytes * GPU_MICRO_BATCH if on_gpu else float(CPU_MICRO_BATCH)
        # The options as they were given: `halve` does not change them.
        self.wanted = [self.mode, self.memory, self.tokens, self.device.type]
        self.replaying = Clock(self.device)
        self.footprints: MutableMapping[nn.Module, Footprint] = WeakKeyDictionary()
        # Training mode of each tower, and the parameters that were trained, when it was measured.
        self.trained: MutableMapping[nn.Module, list[bool]] = WeakKeyDictionary()
        # Footprints of a checkpoint, in the order of use: towers are cut as before.
        self.known: list[Footprint] = []
        self.halved = 0

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        for name in _WEAK:
            state[name] = dict(state[name])  # weak references cannot be pickled
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for name in _WEAK:
            setattr(self, name, WeakKeyDictionary(state[name]))

    def _free(self) -> float:
        if self.free is not None:
            return self.free
        return free_bytes(self.device)

    def halve(self) -> None:
        """Halve micro-batches and kept graphs, after memory has run out.

        Raises:
            TemperaError: further halving cannot help.
        """
        self.halved += 1
        if self.halved > _MOST_HALVINGS:
            raise TemperaError(
                "out of memory even with one row at a time: lower the tower's max_length or size"
            )
        self.bytes /= 2
        self.micro_bytes /= 2
        if self.tokens is not None:
            self.tokens = max(1, self.tokens // 2)
        if self.mode == "never":
            self.mode = "auto"
        logger.warning(
            f"out of memory: micro-batches are halved, {self.halved} times so far; the batch is unchanged"
        )

    def sizes(self) -> dict[str, Any]:
        """Return the sizes for cutting batches, for a checkpoint."""
        return {
            "wanted": self.wanted,
            "mode": self.mode,
            "bytes": self.bytes,
            "micro_bytes": self.micro_bytes,
            "tokens": self.tokens,
            "footprints": [asdict(footprint) for footprint in self.footprints.values()],
            "onednn": onednn_pays(),
        }

    def resume(self, sizes: Mapping[str, Any]) -> None:
        """Cut batches and multiply as a run did before, by the `sizes` of a checkpoint.

        The cuts follow the options instead, if the options or the kind of device have changed
        since.
        """
        if "onednn" in sizes:  # checkpoints of earlier versions have no such entry
            choose_onednn(sizes["onednn"])
        if sizes["wanted"] != self.wanted:
            return
        self.mode = sizes["mode"]
        self.tokens = sizes["tokens"]
        self.bytes = float(sizes["bytes"])
        self.micro_bytes = float(sizes["micro_bytes"])
        self.known = [Footprint(**footprint) for footprint in sizes["footprints"]]

    def plan(self, towers: Any, batch: Batch[Any], group: Group = ALONE) -> Plan:
        """Cut a batch into micro-batches and choose the micro-batches with kept graphs; processes
        keep pace in divided towers."""
        works = _works(towers, batch)
        micros_of = [self._cut(work, group) for work in works]
        micros = [micro for own in micros_of for micro in own]
        self._choose_kept(micros)
        paced = []
        for work, own in zip(works, micros_of, strict=True):
            paced += own
            paced += fillers(work, own, group)
        return Plan(works, sorted(paced, key=lambda micro: micro.kept))

    def _choose_kept(self, micros: Sequence[Micro]) -> None:
        """Number the micro-batches, and choose the micro-batches with kept graphs."""
        if self.mode == "auto":
            sizes = [micro.bytes for micro in micros]
            tokens = [micro.tokens for micro in micros]
            kept = keep(sizes, tokens, self.bytes)
        else:
            kept = [self.mode == "never"] * len(micros)
        for number, micro in enumerate(micros):
            micro.number = number
            micro.kept = kept[number]

    def embed(self, towers: Any, batch: Batch[Any], group: Group = ALONE) -> Embedded:
        """Embed every side of a batch; rows come back in order."""
        return self.embed_plan(self.plan(towers, batch, group), batch, group)

    def embed_plan(self, plan: Plan, batch: Batch[Any], group: Group = ALONE) -> Embedded:
        """Embed every side of a batch in the micro-batches of its plan."""
        with_rows = [micro for micro in plan.micros if len(micro.index)]
        seeds = torch.randint(2**62, (len(with_rows),)).tolist()
        for micro in with_rows:
            micro.seed = seeds[micro.number]
        for kept in (False, True):
            # Two contexts: autocast keeps the weights that it casts, and weights that were cast
            # without a graph must not be part of a graph.
            with torch.set_grad_enabled(kept), self.autocast():
                for micro in plan.micros:
                    if micro.kept == kept:
                        embeddings = micro.embed(self.device)
                        micro.put(embeddings.detach())
                        micro.graph = embeddings if kept else None
        vectors: dict[Role, Tensor] = {}
        for work in plan.works:
            assert work.embeddings is not None
            parts = work.embeddings.split_with_sizes(work.counts)
            vectors.update(zip(work.roles, parts, strict=True))
        return Embedded(batch.of(vectors).to(self.device), plan, self, group)

    def _cut(self, work: Work, group: Group) -> list[Micro]:
        """Return the micro-batches of a tower's rows."""
        lengths = work.features.lengths.cpu()
        if not len(lengths) and not work.divided:
            work.embeddings = self._empty(work)
            return []
        size = self._footprint(work, group)
        work.drops = size.drops
        if not len(lengths):
            return []
        padded = work.padded
        widest = max(1.0, float(lengths.max() if padded else lengths.double().mean()))
        budget = self.tokens or size.tokens(self.micro_bytes, widest)
        start = start_tokens(self.device, work.tower, self.in_half())
        micros = []
        for index in pack(lengths, budget, padded, start):
            rows = len(index)
            if padded:
                width: float = max(1, int(lengths[index].max()))
            else:
                width = max(1, int(lengths[index].sum())) / rows
            micros.append(Micro(work, index, int(rows * width), size.bytes(rows, width)))
        return micros

    def in_half(self) -> bool:
        """Return True if towers multiply in half precision."""
        if self.half is not None:
            return self.half
        with self.autocast():
            return in_half(self.device)

    def _footprint(self, work: Work, group: Group) -> Footprint:
        """Return the footprint of a tower; measure an unknown footprint, and again if more of the
        tower is trained since."""
        trained = [work.tower.training]
        trained += [p.requires_grad for p in work.parameters]
        size = self.footprints.get(work.tower)
        if size is None and self.known:
            size = self.known.pop(0)
        elif size is None or _has_more(trained, self.trained.get(work.tower, trained)):
            size = self._measure(work)
            self.trained[work.tower] = trained
            if work.divided:  # with one footprint, few calls are needed to keep pace
                group.keep_pace()
                linear = float(group.all_reduce_max(math.ceil(size.linear)))
                square = float(group.all_reduce_max(math.ceil(size.square)))
                size = Footprint(linear, square)  # some process may have drawn
        self.footprints[work.tower] = size
        return size

    def _measure(self, work: Work) -> Footprint:
        """Measure the footprint of a tower on a few rows."""
        refuse_batch_statistics(work.tower)
        features = work.features if len(work.features) else work.spare
        probes = [features[index] for index in probe_rows(features.lengths.cpu())]
        dropout = dropout_on(self.device, work.modules)
        with seeded(0, self.device), dropout, self.autocast(), work.linear.cast_once(self.device):
            size = footprint(work.tower, probes, work.padded, self.device)
        return replace(size, drops=getattr(dropout, "has_drawn", True))

    @torch.no_grad()
    def _empty(self, work: Work) -> Tensor:
        """Return the embeddings of no rows, [0, D]."""
        with self.autocast():
            embeddings: Tensor = work.tower(work.features.to(self.device))
        return embeddings


def _works(towers: Any, batch: Batch[Any]) -> list[Work]:
    """Return the work of each tower in a batch; roles with a common tower are one work."""
    tower_of: Callable[[Role], Any] = getattr(towers, "of", lambda role: towers)
    roles_of: dict[int, list[Role]] = {}
    for role in batch.sides():
        roles_of.setdefault(id(tower_of(role)), []).append(role)
    return [Work.of(tower_of(roles[0]), roles, batch) for roles in roles_of.values()]


def _has_more(trained: Sequence[bool], before: Sequence[bool]) -> bool:
    """Return True if more parameters are trained than before."""
    return any(now and not then for now, then in zip(trained, before, strict=False))
