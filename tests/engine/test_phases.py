"""Seconds of phases: each second belongs to the innermost phase, and earlier processes' are
added."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from tempera.engine import clock
from tempera.engine.clock import Phases


def test_each_second_is_that_of_the_innermost_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([(float(wall), wall / 2) for wall in range(0, 60, 10)])
    monkeypatch.setattr(clock, "_now", lambda: next(now))
    phases = Phases()
    with phases("train"), phases("evaluate"):
        pass
    assert phases.seconds() == {
        "train": {"wall": 20.0, "cpu": 10.0},
        "evaluate": {"wall": 10.0, "cpu": 5.0},
    }
    phases.add({"train": {"wall": 1.0, "cpu": 2.0}, "read": {"wall": 3.0, "cpu": 4.0}})
    assert phases.spent["train"] == (21.0, 12.0) and phases.spent["read"] == (3.0, 4.0)


def test_waiting_costs_no_cpu() -> None:
    phases = Phases()
    with phases("wait"):
        time.sleep(0.2)
    assert phases.seconds()["wait"]["wall"] >= 0.2 > 2 * phases.seconds()["wait"]["cpu"]


def test_the_peak_is_that_of_the_process_and_not_of_the_one_that_started_it() -> None:
    """Linux hands the peak of a process on to a process that it starts without a copy of its
    memory."""
    large = np.ones(2 << 30, np.uint8)  # torch with CUDA takes half as much
    code = "from tempera.engine.clock import peak_memory_bytes; print(peak_memory_bytes())"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert len(large) > int(said.stdout) > 50 << 20
