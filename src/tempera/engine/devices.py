"""Devices, processes and precision of a run, as it was launched.

The same program runs under `python`, `torchrun`, `accelerate launch` and `mpirun`, on CPUs (gloo) and CUDA (NCCL): Accelerate
reads what the launcher left in the environment.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from ..errors import ConfigError
from ..io.console import silenced
from .distributed import ALONE, Group

Precision = Literal["no", "bf16", "fp16"]
# What launchers leave in the environment: torchrun and accelerate, Intel MPI and MPICH, Open MPI, MVAPICH.
_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Devices:
    """The processes, device and precision that a run computes with.

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
        """Return a context with the precision of the towers; the objective stays in float32 in any case."""
        enabled = self.mixed_precision != "no"
        return torch.autocast(
            self.group.device.type, _DTYPES[self.mixed_precision] if enabled else None, enabled=enabled
        )

    def scaler(self) -> torch.amp.GradScaler:
        """Return a new gradient scaler; with another precision than fp16, one that does nothing and has scale 1."""
        return torch.amp.GradScaler(self.group.device.type, enabled=self.mixed_precision == "fp16")


def start(mixed_precision: Precision = "no", cpu: bool = False, timeout: float = 1800.0) -> Devices:
    """Join the processes that were launched together, and take this process's device; once, at the start of a program.

    Args:
        mixed_precision: of the towers; fp16 scales its gradients.
        cpu: compute on CPUs although there is a GPU.
        timeout: seconds that a process waits for the others before it ends with an error. A process that ends, or is
            killed, is noticed at once by gloo and by the launchers; this is for one that hangs.

    Raises:
        ConfigError: the device does not have the precision.
    """
    if not launched() and not torch.cuda.is_available():  # importing accelerate takes 2 s
        return _checked(Devices(mixed_precision=mixed_precision))
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    # Imported before there is a group: defaults of its functions would hold on to the group, and its threads, for good.
    from torch.distributed.nn import functional  # noqa: F401

    cpu = cpu or parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.cuda.is_available()
    state = PartialState(cpu=cpu, timeout=timedelta(seconds=timeout))
    device = torch.device("cpu") if cpu else state.device
    if dist.is_initialized() and dist.get_backend() == "gloo":
        atexit.register(stop)  # whatever ends the program: gloo's threads abort a process that has not left the others
    return _checked(Devices(Group(state.process_index, state.num_processes, device), mixed_precision))


def launched() -> bool:
    """Return True if a launcher has started this process, alone or with others."""
    return any(name in os.environ for name in _SIZES)


def _checked(devices: Devices) -> Devices:
    device, mixed_precision = devices.group.device, devices.mixed_precision
    if mixed_precision == "fp16" and device.type == "cpu":
        raise ConfigError("mixed_precision: fp16 needs a GPU, but this process runs on a CPU; use bf16 or no")
    if mixed_precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError(f"mixed_precision: {torch.cuda.get_device_name(device)} has no bf16; use fp16 or no")
    return devices


@contextmanager
def one_voice(group: Group) -> Iterator[None]:
    """Show progress and messages of the main process only; an error that ends a process is shown outside, for all of them."""
    if group.main:
        yield
        return
    with silenced(), open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        yield


def stop() -> None:
    """Leave the other processes, at the end of a program; does nothing in one that has none."""
    if not dist.is_initialized():
        return
    from accelerate import PartialState

    dist.destroy_process_group()
    PartialState._reset_state()
