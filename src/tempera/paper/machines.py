"""Devices on paper: the rates of operations, from data sheets or measured here.

Rates are of dense numbers and one device, without sparsity. Sources, of 2026:

- h100, h200: NVIDIA's H100 and H200 data sheets, SXM: 67 TFLOP/s float32, 989 bf16; 3.35 and 4.8 TB/s; NVLink 900 GB/s both ways
  together.
- l4: NVIDIA's L4 data sheet: 30.3 TFLOP/s float32, 121 bf16 (half of the figure with sparsity); 300 GB/s; PCIe 4 x16, 64 GB/s both
  ways.
- a10g: NVIDIA's A10G data sheet: 35 TFLOP/s float32, 70 bf16; 600 GB/s; PCIe 4 x16.
- m3: Apple's specification has 100 GB/s and no FLOP/s: 10 cores x 128 lanes x 2 x 1.4 GHz. Of 24 GB, Metal takes two thirds.

No data sheet has the cost of a launch. 5 microseconds are the time of a Python program to start an
operation of torch; on the machine itself the cost is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..arithmetic.abilities import free_memory
from ..arithmetic.products import WORTH, by_onednn, mm
from ..arithmetic.ragged import Ragged
from ..arithmetic.table import Table
from ..core.batch import Batch, Role, Side
from ..core.objective import Objective
from ..engine.clock import fastest, several
from ..engine.devices import Precision, Wanted
from ..engine.fused import Reach, reach
from ..engine.loop import begin, train
from ..engine.training_options import Training
from ..parallel.distributed import CPU
from .cost import Call, Kind, Operation, Stage, real
from .stages import step_on_paper

_F32, _BF16, _F16 = torch.float32, torch.bfloat16, torch.float16
_STEPS = 12
# Products of two matrices, which are their last arguments.
_PRODUCTS_OF_TWO = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_}
_NEAR = 1 << 20  # numbers that fill the caches nearest to a core
Clock = Callable[[], float]
LIMITS = ("compute", "bandwidth", "launches", "network")


@dataclass(frozen=True)
class Machine:
    """A device, by its rates, for the least time of an operation.

    Args:
        flops: of products a second, by the precision of the factors.
        bandwidth: of the memory, in bytes a second.
        launch: seconds to start an operation.
        memory: bytes; None is a CPU, with micro-batches of a set size.
        network: bytes a second from device to device.
        kernels: reach of the fused kernels of the loss stage.
        timed: measured seconds of a call of each kind of operation; see `timed`.

    >>> H100 = MACHINES["h100"]
    >>> H100.limits(Operation("mm", torch.float32, 67 * 10**12, 0))
    {'compute': 1.0, 'bandwidth': 0.0, 'launches': 5e-06, 'network': 0.0}
    """

    name: str
    flops: Mapping[torch.dtype, float]
    bandwidth: float
    launch: float = 5e-6
    memory: float | None = None
    network: float = 0.0
    kernels: Reach = "no"
    timed: Mapping[Kind, float] = field(default_factory=dict)

    def precision(self, wanted: Wanted) -> Precision:
        """Return the precision of the towers: "auto" is bf16 if bf16 pays."""
        if wanted != "auto":
            return wanted
        pays = self.flops[_BF16] >= WORTH * self.flops[_F32]
        return "bf16" if pays else "no"

    def limits(self, operation: Operation) -> dict[str, float]:
        """Return the seconds of an operation on each part of the machine."""
        similar = _BF16 if operation.dtype == _F16 else _F32
        rate = self.flops.get(operation.dtype, self.flops[similar])
        return {
            "compute": operation.flops / rate,
            "bandwidth": operation.bytes / self.bandwidth,
            "launches": self.launch,
            "network": operation.sent / self.network if operation.sent else 0.0,
        }

    def seconds(self, stage: Stage) -> dict[str, float]:
        """Return the seconds of a stage by limit: each operation takes the time of the slowest
        part."""
        total = dict.fromkeys(LIMITS, 0.0)
        for operation, count in stage.operations.items():
            parts = self.limits(operation)
            slowest = max(parts, key=lambda name: parts[name])
            measured_seconds = self.timed.get(operation.kind)
            if measured_seconds is not None:
                total[slowest] += count * stage.times * measured_seconds
                total["launches"] += count * stage.calls * self.launch
            elif slowest == "launches":
                total[slowest] += count * stage.calls * parts[slowest]
            else:
                total[slowest] += count * stage.times * parts[slowest]
        return total


def _gpu(
    name: str,
    float32: float,
    half: float,
    bandwidth: float,
    memory: float,
    network: float,
    kernels: Reach,
) -> Machine:
    flops = {_F32: float32 * 1e12, _BF16: half * 1e12}
    return Machine(
        name, flops, bandwidth * 1e9, memory=memory * 1e9, network=network * 1e9, kernels=kernels
    )


MACHINES = {
    machine.name: machine
    for machine in (
        _gpu("h100", 67, 989, 3350, 80, 450, "pay"),
        _gpu("h200", 67, 989, 4800, 141, 450, "pay"),
        _gpu("l4", 30.3, 121, 300, 24, 32, "run"),
        _gpu("a10g", 35, 70, 600, 24, 32, "run"),
        _gpu("m3", 3.6, 3.6, 100, 16, 0, "no"),
    )
}


class Small(nn.Module):
    """A tower with operations so small that only their number counts."""

    padded = False

    def __init__(self) -> None:
        super().__init__()
        self.table = Table(8, 8)
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))
        )

    def of(self, role: Role) -> Small:
        """Return this tower."""
        return self

    def forward(self, features: Ragged) -> Tensor:
        means = self.table.mean_of(features.values.long(), features.offsets[:-1])
        vectors: Tensor = self.layers(means[:, None])
        return vectors[:, 0]


def measured(device: torch.device, clock: Clock = time.perf_counter) -> Machine:
    """Return this machine: the rate of products, the bandwidth and the cost of a launch, each
    measured by a few short runs."""
    on_cpu = device.type == "cpu"
    largest = 512 if on_cpu else 4096
    flops = {dtype: _rate(dtype, largest, device, clock) for dtype in (_F32, _BF16)}
    numbers = torch.zeros(1 << 22 if on_cpu else 1 << 26, device=device)
    few = torch.zeros(8, device=device)
    bandwidth = 2 * numbers.nbytes / fastest(lambda: numbers.mul_(0.5), device, clock)
    launch = fastest(lambda: [few.mul_(0.5) for _ in range(100)], device, clock) / 100
    free = free_memory(device)
    memory = None if free is None else float(free)
    machine = Machine("this machine", flops, bandwidth, launch, memory, kernels=reach(device))
    if not on_cpu:
        return machine
    return replace(machine, launch=_launch(machine, clock))


def _rate(dtype: torch.dtype, largest: int, device: torch.device, clock: Clock) -> float:
    """Return the FLOPs a second of products of square matrices, as large as `largest` or large
    enough for a millisecond."""
    side = 256
    seconds = 0.0
    while seconds < 1e-3 and side < largest:
        side *= 2
        square = torch.ones(side, side, dtype=dtype, device=device)
        seconds = fastest(partial(mm, square, square), device, clock)
    return 2 * side**3 / seconds


def _launch(machine: Machine, clock: Clock) -> float:
    """Return the seconds of the program for each operation of a step, measured by a step of small
    operations."""
    rows = Ragged.of([[i] for i in range(8)])
    towers = Small()
    objective = Objective()
    options = Training(micro_batch_tokens=4)
    batch = Batch(Side(rows), Side(rows))
    paper = step_on_paper(towers, objective, batch, options)
    steps = train(begin(towers, objective, options), [batch] * (_STEPS + 1), _STEPS + 1, options)
    whole = fastest(lambda: next(steps), CPU, clock, _STEPS)
    alone = replace(machine, launch=0.0, timed=timed(paper.examples, CPU, clock))
    spent = sum(sum(alone.seconds(stage).values()) for stage in paper.stages.values())
    launches = sum(stage.launches for stage in paper.stages.values())
    return max(machine.launch, (whole - spent) / launches)


def timed(
    examples: Mapping[Kind, tuple[Operation, Call]],
    device: torch.device,
    clock: Clock = time.perf_counter,
) -> dict[Kind, float]:
    """Return the seconds of a call of each kind of operation, the median of a few calls: a step is
    not lucky with all operations.

    Other numbers fill the cache nearest to a core before each call, as in a step.
    """
    with torch.no_grad(), torch.random.fork_rng([]):
        return {kind: _call(call, device, clock) for kind, (_, call) in examples.items()}


def _call(call: Call, device: torch.device, clock: Clock) -> float:
    """Return the median seconds of a few calls."""
    op, args, kwargs = call
    args, kwargs = tree_map(partial(real, device=device), (args, kwargs))
    quickly = by_onednn(*args[-2:]) if op.overloadpacket in _PRODUCTS_OF_TWO else nullcontext()
    with quickly:
        far = torch.empty(_NEAR, device=device).zero_
        return median(several(lambda: op(*args, **kwargs), device, clock, before=far))
