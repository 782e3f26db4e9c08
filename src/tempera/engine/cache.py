"""Gradient caching as a way to embed: keep the graph of what fits the memory, embed the rest again
when its gradient is known.

GradCache (Gao et al. 2021) embeds every row twice. Here a micro-batch is embedded twice only if its
graph does not fit:

    embed what will be replayed, without graph -> embed what is kept -> gradients of all embeddings
    -> backward through what is kept, which frees it -> replay the others, one at a time

so memory peaks at the kept graphs or at one replayed micro-batch, whichever is larger, and not at
their sum. Each micro-batch draws its random numbers from a seed of its own, so a replay repeats its
dropout exactly; a tower that draws from numpy or `random`, which are not repeated, gets wrong
gradients.

A tower whose parameters are divided among processes is called by all of them equally often: those
with fewer micro-batches fill up with one row whose embedding is thrown away and whose gradient is
0.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from ..arithmetic.abilities import free_bytes, seeded
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
GPU_MEMORY = 0.8  # of what is free
CPU_MICRO_BATCH = 256 << 20  # bytes of one micro-batch's graph
GPU_MICRO_BATCH = 1 / 8  # of the memory for kept graphs
_MOST_HALVINGS = 16

_WEAK = ("footprints", "trained")  # by tower, as long as it is there
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size_of(value: Any) -> Any:
    """Return bytes, also from a text with a unit of 1,024.

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
        """Add the gradients of the towers' parameters, given those of the embeddings; a role
        without one has zeros."""
        for work in self.plan.works:
            assert work.embeddings is not None
            parts = work.embeddings.split_with_sizes(work.counts)
            known = zip(parts, (grads.get(role) for role in work.roles), strict=True)
            sides = [torch.zeros_like(part) if grad is None else grad for part, grad in known]
            work.grads = torch.cat(sides) if len(sides) > 1 else sides[0]
        learnt = [self._back(micro) for micro in reversed(self.plan.micros)]
        if learnt and not any(learnt):
            self._refuse_detached()

    def _back(self, micro: Micro) -> bool:
        """Go backward through a micro-batch; return False if its embeddings have no graph, as those
        of a frozen tower."""
        graph, micro.graph = micro.graph, None
        if graph is None:
            with self.cache.replaying, torch.enable_grad(), self.cache.autocast():
                graph = micro.embed(self.cache.device)
        if graph.requires_grad:
            torch.autograd.backward([graph], [micro.grads(graph.device).to(graph.dtype)])
            merge(micro.work.parameters)
        return graph.requires_grad

    def _refuse_detached(self) -> None:
        """Refuse towers that have weights to train and make embeddings without a graph."""
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
    """Embeds batches with the towers of a run, and remembers the sizes of their graphs.

    Args:
        mode: "auto" keeps the graphs that fit `memory`; "never" keeps all, so no row is embedded
            twice; "always" keeps none.
        memory: bytes for kept graphs, as a number or a text such as "2GiB", or, up to 1, a share of
            the free memory; None is 4 GiB on a CPU and 0.8 of what is free on a GPU.
        tokens: most tokens of a micro-batch, padding counted; None is what 256 MiB hold on a CPU,
            1/8 of `memory` on a GPU.
        device: where the towers compute.
        autocast: a context in which the towers run.
        free: bytes of free memory on a device; None asks it.

    Raises:
        ConfigError: an unknown mode, a size that is none, or a tower whose layers look at the whole
            batch, which cannot be cut.

    >>> from tempera import Batch, Side, mnr, step
    >>> tower, batch = torch.nn.Linear(3, 2), Batch(Side(torch.randn(64, 3)), Side(torch.randn(64, 3)))
    >>> losses = [step(tower, mnr(0.05), batch, Cache(mode, tokens=8)) for mode in ("never", "always")]
    >>> torch.testing.assert_close(*losses)
    """

    mode: Mode = "auto"
    memory: float | None = None
    tokens: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    autocast: Context = nullcontext
    free: float | None = None

    def __post_init__(self) -> None:
        refuse_unknown("cache: mode", self.mode, *get_args(Mode))
        try:
            self.memory = size_of(self.memory)
        except ValueError as error:
            raise ConfigError(f"cache: memory is {error}, not {self.memory!r}") from None
        if self.memory is not None and not self.memory > 0:
            raise ConfigError(
                f"cache: memory is above 0, in bytes or as a share, not {self.memory}; None takes the usual"
            )
        if self.tokens is not None and self.tokens < 1:
            raise ConfigError(
                f"cache: tokens of a micro-batch are 1 or more, not {self.tokens}; None takes what fits"
            )
        self.device = torch.device(self.device)
        on_gpu = self.device.type != "cpu"
        if self.memory is None:
            self.bytes = GPU_MEMORY * self._free() if on_gpu else float(CPU_MEMORY)
        else:
            self.bytes = self.memory * self._free() if self.memory <= 1 else self.memory
        self.micro_bytes = self.bytes * GPU_MICRO_BATCH if on_gpu else float(CPU_MICRO_BATCH)
        self.wanted = [
            self.mode,
            self.memory,
            self.tokens,
            self.device.type,
        ]  # which `halve` leaves as they are
        self.replaying = Clock(self.device)
        # Of each tower, and what of it was trained when it was measured.
        self.footprints: MutableMapping[nn.Module, Footprint] = WeakKeyDictionary()
        self.trained: MutableMapping[nn.Module, list[bool]] = WeakKeyDictionary()
        self.known: list[
            Footprint
        ] = []  # of a checkpoint, by which towers are cut as they were; in the order of use
        self.halved = 0

    def __getstate__(self) -> dict[str, Any]:
        return {
            **vars(self),
            **{name: dict(vars(self)[name]) for name in _WEAK},
        }  # weak references cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({**state, **{name: WeakKeyDictionary(state[name]) for name in _WEAK}})

    def _free(self) -> float:
        return free_bytes(self.device) if self.free is None else self.free

    def halve(self) -> None:
        """Halve micro-batches and kept graphs, after memory has run out.

        Raises:
            TemperaError: they have been halved so often that halving again cannot help.
        """
        self.halved += 1
        if self.halved > _MOST_HALVINGS:
            raise TemperaError(
                "out of memory even with one row at a time: lower the tower's max_length or size"
            )
        self.bytes, self.micro_bytes = self.bytes / 2, self.micro_bytes / 2
        self.tokens = None if self.tokens is None else max(1, self.tokens // 2)
        self.mode = "auto" if self.mode == "never" else self.mode
        logger.warning(
            f"out of memory: micro-batches are halved, {self.halved} times so far; the batch is unchanged"
        )

    def sizes(self) -> dict[str, Any]:
        """Return what the cuts of a run follow from, for its checkpoint."""
        known = [asdict(each) for each in self.footprints.values()]
        sizes = {
            "mode": self.mode,
            "bytes": self.bytes,
            "micro_bytes": self.micro_bytes,
            "tokens": self.tokens,
        }
        return {"wanted": self.wanted, **sizes, "footprints": known, "onednn": onednn_pays()}

    def resume(self, sizes: Mapping[str, Any]) -> None:
        """Cut batches and multiply as a run did before; as the options say, if they or the kind of
        device have changed since."""
        if "onednn" in sizes:  # which earlier versions do not know
            choose_onednn(sizes["onednn"])
        if sizes["wanted"] == self.wanted:
            self.mode, self.tokens = sizes["mode"], sizes["tokens"]
            self.bytes, self.micro_bytes = float(sizes["bytes"]), float(sizes["micro_bytes"])
            self.known = [Footprint(**each) for each in sizes["footprints"]]

    def plan(self, towers: Any, batch: Batch[Any], group: Group = ALONE) -> Plan:
        """Cut a batch into micro-batches and choose those that keep their graph; processes keep
        pace in divided towers."""
        of: Callable[[Role], Any] = getattr(
            towers, "of", lambda role: towers
        )  # one tower for all roles
        roles: dict[int, list[Role]] = {}
        for role in batch.sides():
            roles.setdefault(id(of(role)), []).append(role)
        works = [Work.of(of(same[0]), same, batch) for same in roles.values()]
        cut = [self._cut(work, group) for work in works]
        micros = [micro for own in cut for micro in own]
        if self.mode == "auto":
            chosen = keep(
                [micro.bytes for micro in micros], [micro.tokens for micro in micros], self.bytes
            )
        else:
            chosen = [self.mode == "never"] * len(micros)
        for number, (micro, kept) in enumerate(zip(micros, chosen, strict=True)):
            micro.number, micro.kept = number, kept
        paced = [
            micro
            for work, own in zip(works, cut, strict=True)
            for micro in (*own, *fillers(work, own, group))
        ]
        return Plan(works, sorted(paced, key=lambda micro: micro.kept))

    def embed(self, towers: Any, batch: Batch[Any], group: Group = ALONE) -> Embedded:
        """Embed every side of a batch; rows come back in their order."""
        plan = self.plan(towers, batch, group)
        own = [micro for micro in plan.micros if len(micro.index)]
        seeds = torch.randint(2**62, (len(own),)).tolist()
        for micro in own:
            micro.seed = seeds[micro.number]
        for kept in (False, True):
            # A context each: autocast keeps the weights that it casts, and those cast without a
            # graph must not stand in one.
            with torch.set_grad_enabled(kept), self.autocast():
                for micro in plan.micros:
                    if micro.kept == kept:
                        embeddings = micro.embed(self.device)
                        micro.put(embeddings.detach())
                        micro.graph = embeddings if kept else None
        vectors: dict[Role, Tensor] = {}
        for work in plan.works:
            assert work.embeddings is not None
            vectors |= zip(work.roles, work.embeddings.split_with_sizes(work.counts), strict=True)
        return Embedded(batch.of(vectors).to(self.device), plan, self, group)

    def _cut(self, work: Work, group: Group) -> list[Micro]:
        """Return the micro-batches of a tower's rows."""
        lengths = work.features.lengths.cpu()
        if not len(lengths) and not work.divided:
            work.embeddings = self._empty(work)
            return []
        weight = self._footprint(work, group)
        work.drops = weight.drops
        if not len(lengths):
            return []
        padded = work.padded
        widest = max(1.0, float(lengths.max() if padded else lengths.double().mean()))
        budget = self.tokens or weight.tokens(self.micro_bytes, widest)
        start = start_tokens(self.device, work.tower, self.in_half())
        micros = []
        for index in pack(lengths, budget, padded, start):
            total = max(1, int(lengths[index].sum()))
            width = max(1, int(lengths[index].max())) if padded else total / len(index)
            tokens = int(len(index) * width)
            micros.append(Micro(work, index, tokens, weight.bytes(len(index), width)))
        return micros

    def in_half(self) -> bool:
        """Return whether towers multiply in half precision."""
        with self.autocast():
            return in_half(self.device)

    def _footprint(self, work: Work, group: Group) -> Footprint:
        trained = [work.tower.training, *(p.requires_grad for p in work.parameters)]
        size = self.footprints.get(work.tower)
        if size is None and self.known:
            size = self.known.pop(0)
        elif size is None or any(map(operator.gt, trained, self.trained.get(work.tower, trained))):
            refuse_batch_statistics(work.tower)
            features = work.features if len(work.features) else work.spare
            probes = [features[index] for index in probe_rows(features.lengths.cpu())]
            dropout = dropout_on(self.device, work.modules)
            with (
                seeded(0, self.device),
                dropout,
                self.autocast(),
                work.linear.cast_once(self.device),
            ):
                size = footprint(work.tower, probes, work.padded, self.device)
            size = replace(size, drops=getattr(dropout, "has_drawn", True))
            self.trained[work.tower] = trained
            if work.divided:  # equal micro-batches leave little to fill up
                group.keep_pace()
                linear, square = (
                    float(group.all_reduce_max(math.ceil(x))) for x in (size.linear, size.square)
                )
                size = Footprint(linear, square)  # some process may have drawn
        self.footprints[work.tower] = size
        return size

    @torch.no_grad()
    def _empty(self, work: Work) -> Tensor:
        with self.autocast():
            embeddings: Tensor = work.tower(work.features.to(self.device))
        return embeddings
