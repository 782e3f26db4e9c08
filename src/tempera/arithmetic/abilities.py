"""Abilities of a device, asked of torch and not guessed from the device's name; a missing ability
has a substitute.

A CPU is the host: nothing waits for a CPU, and torch is not asked about its abilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psutil
import torch
from torch import Tensor

X = TypeVar("X")

# Nothing waits for these. Meta tensors are shapes alone, by which the cost of a step is counted.
_HOSTED = ("cpu", "meta")
_CUDA = ("cuda",)  # torch calls ROCm so, too


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of an accelerator; None on a CPU, or where the device cannot be asked.

    Memory cached by torch counts as free, so that a second run in a process has the memory of the
    first.
    """
    if device.type == "cpu":
        return None
    try:
        reserved = torch.accelerator.memory_reserved(device)
        kept = reserved - torch.accelerator.memory_allocated(device)
        return int(torch.accelerator.get_memory_info(device)[0]) + kept
    except (RuntimeError, AttributeError):
        return None


def free_bytes(device: torch.device) -> int:
    """Return the free bytes of an accelerator, or of the machine where the device cannot be
    asked."""
    free = free_memory(device)
    return int(psutil.virtual_memory().available) if free is None else free


def widest(device: torch.device) -> torch.dtype:
    """Return float64, or float32 where the device has no float64 (MPS).

    >>> widest(torch.device("cpu"))
    torch.float64
    """
    if device.type == "cpu":
        return torch.float64
    try:
        return torch.empty(0, dtype=torch.float64, device=device).dtype
    except (TypeError, RuntimeError):
        return torch.float32


def has_sparse(device: torch.device) -> bool:
    """Return True if the device sums the rows of sparse gradients.

    >>> has_sparse(torch.device("cpu"))
    True
    """
    try:
        indices = torch.zeros(1, 0, dtype=torch.int64, device=device)
        values = torch.zeros(0, 1, device=device)
        torch.sparse_coo_tensor(indices, values, (1, 1), check_invariants=False).coalesce()
    except (NotImplementedError, RuntimeError):
        return False
    return True


def missing(device: torch.device) -> list[str]:
    """Name the missing abilities of a device, and the substitutes.

    >>> missing(torch.device("cpu"))
    []
    """
    if device.type == "cpu":
        return []
    lacks = {
        "no float64: sums of losses are float32": widest(device) == torch.float32,
        "no query of free memory: that of the machine is taken": free_memory(device) is None,
        "no sparse gradients: those of tables are dense": not has_sparse(device),
        "no timed events: seconds are the program's": event(device) is None,
    }
    return [text for text, is_lacking in lacks.items() if is_lacking]


def event(device: torch.device) -> torch.Event | None:
    """Return a mark to set in the work of a device, for timing; None where the device has no
    marks."""
    if device.type in _HOSTED:
        return None
    try:
        return torch.Event(device, enable_timing=True)
    except (NotImplementedError, RuntimeError):
        return None


def reseed(seed: int, device: torch.device) -> None:
    """Draw on the CPU and on a device from a seed: `torch.manual_seed` without its 2 to 4 ms of
    asking for other devices."""
    torch.default_generator.manual_seed(seed)
    if device.type not in _HOSTED:
        torch.get_device_module(device).manual_seed_all(seed)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draw random numbers from a seed in the block, and restore the generators afterwards."""
    on_host = device.type in _HOSTED
    kind = "cuda" if on_host else device.type  # of no devices
    with torch.random.fork_rng([] if on_host else [device], device_type=kind):
        reseed(seed, device)
        yield


def placed(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor in the dtype and on the device of another; the dtype changes first, since the
    device may not have the first dtype."""
    return sent(tensor.to(like.dtype), like.device)


def sent(rows: X, device: torch.device | str) -> X:
    """Return a tensor, or rows of several tensors, on a device; CUDA reads pinned memory of the host
    while the program goes on.

    Unpinned memory is copied when the device has done all its work, and the program waits for the
    copy.
    """
    here: Any = rows
    read_by_cuda = (
        isinstance(rows, Tensor)
        and rows.device.type == "cpu"
        and torch.device(device).type in _CUDA
    )
    if read_by_cuda and not here.requires_grad:
        return here.contiguous().pin_memory().to(device, non_blocking=True)  # type: ignore[no-any-return]
    return here.to(device)  # type: ignore[no-any-return]


@contextmanager
def without_dropout(module: Any) -> Iterator[None]:
    """Switch dropout off in the block; afterwards each module has the mode from before, also a
    module that is never trained."""
    training = [each for each in module.modules() if each.training]
    module.eval()
    try:
        yield
    finally:
        for each in training:
            each.training = True


@contextmanager
def without_cudnn_attention(device: torch.device) -> Iterator[None]:
    """Attend by torch's own kernels on CUDA: cuDNN, torch's choice on an H100, takes long to
    prepare for each new shape.

    Texts are cut by length, so nearly every micro-batch has a new shape.
    """
    allowed: bool = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(allowed and device.type not in _CUDA)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(allowed)
