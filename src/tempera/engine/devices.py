"""Devices, processes and precision of a run, as launched.

The same program runs under `python`, `torchrun`, `accelerate launch` and `mpirun`, on CPUs (gloo)
and on torch's accelerator (CUDA and ROCm, XPU, MPS): Accelerate reads the launcher's environment
variables.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Literal

import torch
import torch.distributed as dist

from ..arithmetic.products import WORTH, mm
from ..errors import ConfigError
from ..io.console import silenced
from ..io.signals import hearing
from ..parallel.distributed import ALONE, CPU, Group
from .clock import fastest

Precision = Literal["no", "bf16", "fp16"]
Wanted = Literal["auto", "no", "bf16", "fp16"]
# Variables that launchers set in the environment: torchrun and accelerate, Intel MPI and MPICH,
# Open MPI, MVAPICH.
_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_YES = ("1", "true", "yes", "y", "on", "t")  # as accelerate reads its switches
_LIVING = 30 * 24 * 3600.0  # seconds, longer than any work
DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Devices:
    """The processes, device and precision of a run.

    >>> alone = Devices()
    >>> with alone.autocast():
    ...     (torch.eye(2) @ torch.eye(2)).dtype
    torch.float32
    >>> alone.scaler().get_scale()
    1.0
    """

    group: Group = ALONE
    mixed_precision: Precision = "no"

    def autocast(self) -> torch.autocast:
        """Return a context with the precision of the towers; the objective is always in float32."""
        kind = self.group.device.type
        if self.mixed_precision == "no":
            return torch.autocast(kind, enabled=False)
        return torch.autocast(kind, DTYPES[self.mixed_precision])

    def scaler(self) -> torch.amp.GradScaler:
        """Return a new gradient scaler, without effect and with scale 1 except in fp16."""
        return torch.amp.GradScaler(self.group.device.type, enabled=self.mixed_precision == "fp16")


def start(mixed_precision: Wanted = "no", device: str = "auto", timeout: float = 1800.0) -> Devices:
    """Join the processes of a launch, and take this process's device; once, at the start of a
    program.

    Args:
        mixed_precision: of the towers; fp16 scales gradients, and "auto" is chosen by
            `choose_precision`.
        device: to compute on: "cpu", "auto" for the accelerator if there is any, or a name, as
            cuda, cuda:1, xpu or mps.
        timeout: seconds to wait for other processes before an error. Gloo and the launchers notice
            at once the end of a process; the timeout is for hanging processes.

    Raises:
        ConfigError: an unknown device, or a precision missing on the device.
    """
    chosen = named(device)
    if not launched():  # importing accelerate takes 2 s
        if chosen.type != "cpu":
            torch.accelerator.set_device_index(chosen)
        return _checked(Group(device=chosen), mixed_precision)
    from accelerate import PartialState

    # Imported before there is a group: defaults of its functions would hold on to the group, and
    # its threads, for good.
    from torch.distributed.nn import functional  # noqa: F401

    cpu = chosen.type == "cpu"
    limit = timedelta(seconds=timeout)
    # The process waits for the others within C++, where Python hears no signal: with the default
    # handlers, a signal ends the program.
    with hearing(signal.SIG_DFL):
        state = PartialState(cpu=cpu, timeout=limit)
    hosts = None
    if dist.is_initialized():
        if dist.get_backend() == "gloo":
            # Gloo's threads abort a process that ends without leaving the others.
            atexit.register(stop)
        else:
            hosts = dist.new_group(timeout=limit, backend="gloo")
            atexit.register(_leave, hosts)
    own = chosen if cpu else state.device
    return _checked(Group(state.process_index, state.num_processes, own, hosts), mixed_precision)


def choose_precision(wanted: Wanted, group: Group = ALONE) -> Precision:
    """Return the precision of the towers: "auto" is bf16 if all processes measure that bf16 pays,
    and else float32."""
    if wanted != "auto":
        return wanted
    if group.all_reduce_max(bf16_gain(group.device) < WORTH):
        return "no"
    return "bf16"


@cache
def bf16_gain(device: torch.device) -> float:
    """Return the speed of a device's products in bf16 over their speed in float32; measured once,
    in about 0.05 s."""
    in_float32 = _seconds_of_product(device, torch.float32)
    in_bf16 = _seconds_of_product(device, torch.bfloat16)
    return in_float32 / in_bf16


def _seconds_of_product(device: torch.device, dtype: torch.dtype) -> float:
    size = 512 if device.type == "cpu" else 4096
    matrix = torch.ones(size, size, dtype=dtype, device=device)
    return fastest(lambda: mm(matrix[: size // 2], matrix), device, rounds=3)


def named(name: str) -> torch.device:
    """Return the device of a name; "auto" is the accelerator, if torch finds any.

    Raises:
        ConfigError: an unknown device.
    """
    try:
        wanted = None if name == "auto" else torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"train.device is {name!r}, which torch does not know: use auto, cpu, cuda, xpu or mps"
        ) from None
    on_cpu = wanted is not None and wanted.type == "cpu"
    if on_cpu or os.environ.get("ACCELERATE_USE_CPU", "").lower() in _YES:
        return CPU
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if wanted is None and accelerator is None:
        return CPU
    if accelerator is None or (wanted is not None and wanted.type != accelerator.type):
        has = "a CPU only" if accelerator is None else f"{accelerator.type} and a CPU"
        raise ConfigError(f"train.device is {name}, but torch finds {has} here: use auto, or cpu")
    index = None if wanted is None else wanted.index
    if index is None:
        index = torch.accelerator.current_device_index()
    count = torch.accelerator.device_count()
    if index >= count:
        raise ConfigError(
            f"train.device is {name}, but there are {count} of {accelerator.type}, counted from 0"
        )
    return torch.device(accelerator.type, index)


def launched() -> bool:
    """Return True if a launcher has started this process, also a single process."""
    return any(name in os.environ for name in _SIZES)


def _checked(group: Group, wanted: Wanted) -> Devices:
    device = group.device
    mixed_precision = choose_precision(wanted, group)
    if mixed_precision == "fp16" and device.type == "cpu":
        raise ConfigError(
            "mixed_precision: fp16 needs a GPU, but this process runs on a CPU; use bf16 or no"
        )
    if mixed_precision == "bf16" and device.type != "cpu":
        supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
        if supported is not None and not supported():
            raise ConfigError(f"mixed_precision: the device {device} has no bf16; use fp16 or no")
    return Devices(group, mixed_precision)


@contextmanager
def one_voice(group: Group) -> Iterator[None]:
    """Show progress and messages of the main process only; every process shows its errors."""
    if group.main:
        yield
        return
    with silenced(), open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        yield


@contextmanager
def joint_work() -> Iterator[Group]:
    """Give the processes of a launch to a block of work, which they divide and report with one
    voice; they part at its end.

    A process waits for the others without limit while they live: their parts may take hours.
    """
    group = start(timeout=_LIVING).group
    with one_voice(group):
        yield group
    stop()


def _leave(group: dist.ProcessGroup) -> None:
    if dist.is_initialized():
        dist.destroy_process_group(group)


def stop() -> None:
    """Leave the other processes, at the end of a program; without other processes, do nothing."""
    if not dist.is_initialized():
        return
    from accelerate import PartialState

    dist.destroy_process_group()
    gc.collect()  # cycles among divided modules hold on to the group
    PartialState._reset_state()
