"""The queue of a server: requests that wait are computed together.

All state belongs to the thread of the server's loop. One more thread computes what takes long, so
that the loop goes on to read and to answer. A light work is computed by the loop itself, together
with all light work that arrived in the same round of the loop: to wake a thread costs more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

from ..io.console import logger
from .bounds import SECONDS, WAITING, WAITING_TEXTS
from .refusals import SLOW, Refused, busy
from .works import Work

_SWEEP = 0.5  # seconds between two looks for requests that have waited too long


class Job:
    """The texts of one request, with the answers so far."""

    __slots__ = ("answers", "future", "items", "since", "taken")

    def __init__(self, items: Sequence[Any], future: asyncio.Future[list[Any]]) -> None:
        self.items = items
        self.future = future
        self.since = monotonic()
        self.taken = 0  # items that were given to a computation
        self.answers: list[Any] = []


# A job, and the first and the last of its items in a computation.
Share = tuple[Job, int, int]


class JointWork:
    """Compute the works of requests, many at a time.

    Args:
        observe: is called with the label of a work and the number of items of a computation.
    """

    def __init__(self, observe: Callable[[str, int], None]) -> None:
        self.observe = observe
        self.waiting: dict[Work, deque[Job]] = {}
        self.light: dict[Work, list[Job]] = {}
        self.running: list[Share] = []
        self.jobs = 0  # that wait
        self.items = 0  # of the jobs that wait
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._handed: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_busy = False
        self._sweeper: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread that computes."""
        self._loop = loop
        self._thread = Thread(target=self._compute, name="tempera-work", daemon=True)
        self._thread.start()
        self._sweep()

    def stop(self) -> None:
        """Stop the thread after its present computation."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._handed.put(None)

    def submit(self, work: Work, items: Sequence[Any]) -> asyncio.Future[list[Any]]:
        """Return the answers to come, one for each item.

        Raises:
            Refused: too much waits already.
        """
        assert self._loop is not None
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        job = Job(items, future)
        if work.is_light(items):
            if not self.light:
                self._loop.call_soon(self._light_round)
            self.light.setdefault(work, []).append(job)
            return future
        if self.jobs >= WAITING or (self.jobs and self.items + len(items) > WAITING_TEXTS):
            raise busy("the server has more to do than it can: try again in a second")
        self.jobs += 1
        self.items += len(items)
        self.waiting.setdefault(work, deque()).append(job)
        if not self._is_busy:
            self._is_busy = True
            # At the end of this round of the loop, when all that has arrived is in the queue.
            self._loop.call_soon(self._next)
        return future

    def call(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Return the result to come of a function that runs in the thread, between two
        computations."""
        assert self._loop is not None
        loop = self._loop
        future: asyncio.Future[Any] = loop.create_future()

        def run() -> None:
            try:
                result, error = function(), None
            except BaseException as caught:
                result, error = None, _as_fault(caught)
            loop.call_soon_threadsafe(_settle, future, result, error)

        self._handed.put(run)
        return future

    def _light_round(self) -> None:
        """Compute all light works of this round of the loop."""
        works = self.light
        self.light = {}
        for work, jobs in works.items():
            shares = [(job, 0, len(job.items)) for job in jobs]
            self._deliver(shares, _answers_of(work, shares), work)

    def _next(self) -> None:
        """Give the next computation to the thread: of the work that has waited longest, with a fair
        share of each of its jobs."""
        self.running = []
        while self.waiting:
            work = next(iter(self.waiting))
            shares = self._shares(work, self.waiting.pop(work))
            if shares:
                self.running = shares
                self._handed.put(partial(self._computed, work, shares))
                return
        self._is_busy = False

    def _shares(self, work: Work, jobs: deque[Job]) -> list[Share]:
        """Return the items of a computation; what is left goes to the end of the queue."""
        shares: list[Share] = []
        room = work.most
        part = max(1, work.most // max(1, min(len(jobs), work.most)))
        left: deque[Job] = deque()
        while jobs and room:
            job = jobs.popleft()
            if job.future.done():  # it has waited too long
                self._forget(job)
                continue
            stop = min(len(job.items), job.taken + min(part, room))
            shares.append((job, job.taken, stop))
            room -= stop - job.taken
            self.items -= stop - job.taken
            job.taken = stop
            if stop < len(job.items):
                left.append(job)
            else:
                self.jobs -= 1
        jobs.extend(left)
        if jobs:
            self.waiting[work] = jobs  # behind all other works
        return shares

    def _forget(self, job: Job) -> None:
        """Count out a job that is not computed."""
        self.jobs -= 1
        self.items -= len(job.items) - job.taken

    def _compute(self) -> None:
        """Compute, in the thread."""
        while True:
            task = self._handed.get()
            if task is None:
                return
            task()

    def _computed(self, work: Work, shares: list[Share]) -> None:
        """Compute a work in the thread, and bring the answers home."""
        answers = _answers_of(work, shares)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._finished, work, shares, answers)

    def _finished(self, work: Work, shares: list[Share], answers: Any) -> None:
        """Give the thread its next computation, and then answer the requests of this one."""
        self._next()
        self._deliver(shares, answers, work)

    def _deliver(self, shares: list[Share], answers: Any, work: Work) -> None:
        """Add answers to their jobs, and settle jobs that have all of theirs."""
        self.observe(work.label, sum(stop - start for _, start, stop in shares))
        position = 0
        for job, start, stop in shares:
            if isinstance(answers, Exception):
                _settle(job.future, None, answers)
                continue
            part = answers[position : position + stop - start]
            position += stop - start
            for answer in part:
                if isinstance(answer, Exception):
                    _settle(job.future, None, answer)
                    break
            job.answers += part
            if len(job.answers) == len(job.items):
                _settle(job.future, job.answers, None)

    def _sweep(self) -> None:
        """Refuse the requests that have waited too long."""
        assert self._loop is not None
        late = monotonic() - SECONDS
        waiting = [job for jobs in self.waiting.values() for job in jobs]
        for job in waiting + [job for job, _, _ in self.running]:
            if job.since < late:
                line = f"the answer took more than {SECONDS:g} seconds: ask for less, or try again"
                _settle(job.future, None, Refused(504, SLOW, line))
        self._sweeper = self._loop.call_later(_SWEEP, self._sweep)


def _items(shares: Sequence[Share]) -> list[Any]:
    """Return the items of all shares, in their order."""
    if len(shares) == 1:
        job, start, stop = shares[0]
        return list(job.items[start:stop])
    return [item for job, start, stop in shares for item in job.items[start:stop]]


def _answers_of(work: Work, shares: Sequence[Share]) -> Sequence[Any] | Exception:
    """Return the answer to each item of all shares, or the error of the only share."""
    answers = _answers(work, _items(shares))
    if not isinstance(answers, Exception) or len(shares) == 1:
        return answers
    # One request may be at fault: each is computed by itself.
    every: list[Any] = []
    for job, start, stop in shares:
        alone = _answers(work, list(job.items[start:stop]))
        if isinstance(alone, Exception):
            alone = [alone] * (stop - start)
        every += alone
    return every


def _answers(work: Work, items: list[Any]) -> Sequence[Any] | Exception:
    """Return the answer to each item, or the error of all."""
    try:
        return work(items)
    except BaseException as error:
        return _as_fault(error)


def _as_fault(error: BaseException) -> Exception:
    """Return an error that a future can take and that ends no thread.

    The other kinds, such as SystemExit, are wrapped.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Give a future its result or its error, unless it has one or is cancelled."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def log_fault(number: str, error: BaseException) -> None:
    """Write a fault to the log under its number; `--verbose` shows where it happened."""
    logger.error(f"internal error {number}: {type(error).__name__}: {error}")
    logger.debug("traceback of the error", exc_info=error)
