"""The queue: requests that wait are computed together, each gets its own answer, and a full queue says so."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tempera.errors import DataError
from tempera.server import joint_work
from tempera.server.joint_work import JointWork
from tempera.server.refusals import Refused


@dataclass(frozen=True)
class Upper:
    """Texts in capitals, a computation after the other as the test lets them go."""

    name: str = "a"
    light: bool = False
    most: int = field(default=4, compare=False)
    gate: Any = field(default=None, compare=False)
    seen: list[list[str]] = field(default_factory=list, compare=False)
    label = "search"

    def is_light(self, items: Sequence[str]) -> bool:
        return self.light

    def __call__(self, items: Sequence[str]) -> list[str]:
        if self.gate is not None:
            self.gate.wait(10)
        self.seen.append(list(items))
        if "bad" in items:
            raise DataError("bad")
        return [item.upper() for item in items]


def joint(story: Any) -> list[tuple[str, int]]:
    """Run a story with a queue; return what the queue observed."""
    observed: list[tuple[str, int]] = []

    async def run() -> None:
        work = JointWork(lambda label, items: observed.append((label, items)))
        work.start(asyncio.get_running_loop())
        await asyncio.wait_for(story(work), 20)
        assert work.jobs == 0 and work.items == 0 and not work.waiting and not work.light
        work.stop()

    asyncio.run(run())
    return observed


def test_light_work_of_one_round_is_one_computation_in_the_loop() -> None:
    upper = Upper(light=True)
    threads = []

    async def story(work: JointWork) -> None:
        futures = [work.submit(Upper(light=True, seen=upper.seen), [text]) for text in "abc"]
        futures.append(work.submit(Upper("other", True, seen=upper.seen), ["d"]))
        assert await asyncio.gather(*futures) == [["A"], ["B"], ["C"], ["D"]]
        threads.append(threading.active_count())

    assert joint(story) == [("search", 3), ("search", 1)]
    assert upper.seen == [["a", "b", "c"], ["d"]]


def test_what_waits_is_computed_together_with_fair_shares() -> None:
    gate = threading.Event()
    seen: list[list[str]] = []

    async def story(work: JointWork) -> None:
        def submit(*items: str, name: str = "a") -> Any:
            return work.submit(Upper(name, gate=gate, seen=seen), items)

        first = submit("x")
        await asyncio.sleep(0.05)  # it is being computed
        long = submit(*"0123456789")
        short = [submit("a"), submit("b")]
        other = submit("y", name="other")
        assert work.jobs == 4 and work.items == 13
        gate.set()
        assert await first == ["X"]
        assert await other == ["Y"]
        assert await asyncio.gather(*short) == [["A"], ["B"]]
        assert not long.done()
        assert await long == list("0123456789")

    joint(story)
    assert seen == [
        ["x"],
        ["0", "a", "b"],
        ["y"],
        ["1", "2", "3", "4"],
        ["5", "6", "7", "8"],
        ["9"],
    ]


def test_requests_of_one_round_that_go_to_the_thread_are_together() -> None:
    seen: list[list[str]] = []

    async def story(work: JointWork) -> None:
        futures = [work.submit(Upper(seen=seen), [text]) for text in "abc"]
        await asyncio.gather(*futures)

    joint(story)
    assert seen == [["a", "b", "c"]]


@pytest.mark.parametrize("light", [False, True])
def test_one_request_at_fault_leaves_the_others_alone(light: bool) -> None:
    async def story(work: JointWork) -> None:
        futures = [work.submit(Upper(light=light), [text]) for text in ("a", "bad", "b")]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert answers[0] == ["A"] and answers[2] == ["B"]
        assert isinstance(answers[1], DataError)

    joint(story)


def test_a_long_request_at_fault_is_counted_out() -> None:
    async def story(work: JointWork) -> None:
        with pytest.raises(DataError):
            await work.submit(Upper(), ["bad", *"0123456789"])
        assert await work.submit(Upper(), ["a"]) == ["A"]

    joint(story)


def test_a_full_queue_refuses_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_work, "WAITING", 3)
    monkeypatch.setattr(joint_work, "WAITING_TEXTS", 10)
    gate = threading.Event()

    async def story(work: JointWork) -> None:
        running = work.submit(Upper(gate=gate), ["x"])
        await asyncio.sleep(0.05)
        large = work.submit(Upper(gate=gate), list("0123456789ab"))  # alone it always fits
        with pytest.raises(Refused) as full:
            work.submit(Upper(gate=gate), ["a"])
        assert full.value.status == 429 and full.value.headers == [(b"retry-after", b"1")]
        gate.set()
        await asyncio.gather(running, large)
        gate.clear()
        futures = [work.submit(Upper(gate=gate), ["x"])]
        await asyncio.sleep(0.05)
        futures += [work.submit(Upper(gate=gate), [text]) for text in "abc"]
        with pytest.raises(Refused):
            work.submit(Upper(gate=gate), ["d"])
        gate.set()
        assert await asyncio.gather(*futures) == [["X"], ["A"], ["B"], ["C"]]

    joint(story)


def test_a_request_that_waits_too_long_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_work, "SECONDS", 0.2)
    monkeypatch.setattr(joint_work, "_SWEEP", 0.05)
    gate = threading.Event()
    seen: list[list[str]] = []

    async def story(work: JointWork) -> None:
        running = work.submit(Upper(gate=gate, seen=seen), ["x"])
        await asyncio.sleep(0.02)
        waiting = work.submit(Upper(gate=gate, seen=seen), ["a"])
        for future in (running, waiting):
            with pytest.raises(Refused) as late:
                await future
            assert late.value.status == 504
        gate.set()
        assert await work.submit(Upper(gate=gate, seen=seen), ["b"]) == ["B"]

    joint(story)
    assert seen == [["x"], ["b"]]  # the one that waited is not computed


def test_a_function_is_called_between_two_computations() -> None:
    async def story(work: JointWork) -> None:
        assert await work.call(lambda: 3) == 3
        with pytest.raises(ZeroDivisionError):
            await work.call(lambda: 1 / 0)
        assert await work.submit(Upper(), ["a"]) == ["A"]

    joint(story)


def test_many_requests_from_many_tasks() -> None:
    async def story(work: JointWork) -> None:
        async def client(number: int) -> None:
            for turn in range(20):
                texts = [f"t{number}.{turn}.{i}" for i in range(number % 7 + 1)]
                light = number % 2 == 0
                assert await work.submit(Upper(light=light), texts) == [t.upper() for t in texts]

        await asyncio.gather(*map(client, range(30)))

    began = time.monotonic()
    joint(story)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration])
def test_a_computation_that_would_end_the_thread_is_a_fault(
    light: bool, kind: type[BaseException]
) -> None:
    class Ending(Upper):
        def __call__(self, items: Sequence[str]) -> list[str]:
            raise kind("the end")

    def ending() -> None:
        raise kind("the end")

    async def story(work: JointWork) -> None:
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: the end"):
            await work.submit(Ending(light=light), ["a"])
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: the end"):
            await work.call(ending)
        assert await work.submit(Upper(), ["a"]) == ["A"]

    joint(story)
