"""Runs of a sweep side by side, each in a process that was forked from the one that has read the data.

For small towers, of which one leaves most of a machine idle. Every process computes with one thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import torch

from ..errors import ConfigError, TemperaError
from .outcome import Outcome
from .worker import follow

Attempt = Callable[[], Outcome]
_attempts: Sequence[Attempt] = ()  # of the process that forks: what they close over is not copied


def outcomes(attempts: Sequence[Attempt], jobs: int) -> Iterator[tuple[int, Outcome]]:
    """Make attempts, so many at once, and give each with its place as it ends.

    Raises:
        TemperaError: one of their processes was killed.
    """
    if jobs == 1:
        yield from ((place, attempt()) for place, attempt in enumerate(attempts))
        return
    global _attempts
    _attempts = attempts
    pool = ProcessPoolExecutor(jobs, get_context("fork"), _begin, (os.getpid(),))
    try:
        places = {pool.submit(_made, place): place for place in range(len(attempts))}
        for ended in as_completed(places):
            yield places[ended], ended.result()
    except BrokenProcessPool:
        raise TemperaError(
            f"one of {jobs} runs at once was killed, as a system does that is out of memory; the same command goes on: "
            "take fewer --jobs"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
        _attempts = ()


def check(jobs: int) -> None:
    """Refuse what cannot be.

    Raises:
        ConfigError: no job, or several on a GPU.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}, and at least 1 is expected")
    if jobs > 1 and torch.cuda.is_available():
        raise ConfigError(
            "--jobs forks processes, which cannot share a GPU: take 1, or hide it by CUDA_VISIBLE_DEVICES="
        )


def _begin(parent: int) -> None:
    torch.set_num_threads(1)  # the threads of the process that forked are not there
    threading.Thread(target=follow, args=(parent,), daemon=True).start()


def _made(place: int) -> Outcome:
    return _attempts[place]()
