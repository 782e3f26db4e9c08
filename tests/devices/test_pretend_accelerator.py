"""Runs `on_*.py`, the tests on the pretend accelerator, in one process.

An accelerator has to be there before the first backward pass of a process, and afterwards autograd
has threads, with which no process can be forked that goes backward: other tests do that.

To run one of them: TEMPERA_TESTS=pretend pytest -o python_files='on_*.py' tests/devices -k name
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

VARIANTS = [
    "not slow and not long",
    pytest.param("long and not slow", marks=pytest.mark.long),
    pytest.param("slow", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("marked", VARIANTS)
def test_everything_works_on_a_pretend_accelerator(marked: str) -> None:
    folder = Path(__file__).parent
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "python_files=on_*.py",
        "-m",
        marked,
        str(folder),
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    ended = subprocess.run(
        command,
        cwd=folder.parents[1],
        env=environment | {"TEMPERA_TESTS": "pretend"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, f"{ended.stdout[-8000:]}\n{ended.stderr[-2000:]}"
