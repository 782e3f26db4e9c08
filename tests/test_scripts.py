"""The scripts beside the package call what the package has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("bench", "docs", "scripts", "study")
# What a script may get wrong, a line each, and what mypy says of the line.
FAULTS = {
    "import tempera.no_module": "import-not-found",
    "from tempera import no_name": "attr-defined",
    "from tempera.errors import NoError": "attr-defined",
    "tempera.no_function()": "attr-defined",
    "no_function()": "name-defined",
    "tempera.train(no_argument=1)": "call-arg",
    "tempera.train().no_member": "attr-defined",
    "tempera.Batch.no_member = 1": "attr-defined",
}


@pytest.mark.long
def test_scripts_use_names_attributes_and_arguments_that_exist(tmp_path: Path) -> None:
    """Many of them take hours, so that nothing else would show before someone repeats a figure."""
    pytest.importorskip("mypy")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("\n".join(FAULTS), encoding="utf-8")
    options = ["--config-file", "tests/scripts.ini", "--hide-error-context", "--no-pretty"]
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *FOLDERS, str(wrong)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in found.stdout.splitlines() if ": error: " in line]
    of_scripts = [line for line in errors if wrong.name not in line]
    assert of_scripts == [], "\n".join(of_scripts)
    # The check is of use only while it sees the faults that it is for.
    seen = [line.rpartition("[")[2].rstrip("]") for line in errors if wrong.name in line]
    assert seen == list(FAULTS.values()), found.stdout + found.stderr
