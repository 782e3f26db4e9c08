"""What is loaded before it is needed: nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

HEAVY = {
    "torch",
    "transformers",
    "sentence_transformers",
    "optuna",
    "faiss",
    "numpy",
    "pyarrow",
    "matplotlib",
    "pydantic",
    "pandas",
    "scipy",
    "rich",
    "tqdm",
}
# What neither a search in a static run needs nor a server of one.
UNNEEDED = HEAVY - {"numpy", "pyarrow", "pydantic", "rich", "tqdm"}


def loaded(importtime: str) -> set[str]:
    """Top packages in the report of `python -X importtime`."""
    lines = [line for line in importtime.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


def python(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return loaded(done.stderr)


def test_a_heavy_library_would_be_seen() -> None:
    assert "numpy" in python("def f():\n    import numpy.linalg\nf()")


def test_importing_the_package_loads_no_heavy_library() -> None:
    seen = python("import tempera")
    assert "tempera" in seen
    assert sorted(seen & HEAVY) == []


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_loads_no_heavy_library(cold: Any, arguments: list[str]) -> None:
    answer = cold(*arguments, python=["-X", "importtime"])
    assert answer.code == 0
    assert "Commands:" in answer.out and "train" in answer.out and "search" in answer.out
    seen = loaded(answer.err)
    assert {"tempera", "typer"} <= seen
    assert sorted(seen & HEAVY) == []


@pytest.mark.parametrize("arguments", [["train", "--help"], ["search", "--help"], ["nonsense"]])
def test_reading_the_command_line_loads_what_typer_loads_only(
    cold: Any, arguments: list[str]
) -> None:
    answer = cold(*arguments, python=["-X", "importtime"])
    assert answer.code == (2 if arguments == ["nonsense"] else 0)
    assert (
        sorted(loaded(answer.err) & (HEAVY - {"pydantic"})) == []
    )  # typer checks arguments with pydantic


@pytest.mark.parametrize("options", [[], ["--json", "--explain"], ["--hybrid"]])
def test_search_in_a_static_run_loads_no_torch(
    cold: Any, tiny_run: Path, options: list[str]
) -> None:
    answer = cold("search", tiny_run, "kaban", *options, python=["-X", "importtime"])
    assert answer.code == 0 and answer.out
    seen = loaded(answer.err)
    assert {"numpy", "tokenizers"} <= seen
    assert sorted(seen & {*UNNEEDED, "rich", "tqdm", "filelock"}) == []
    # Parts of Arrow that take as long as the search.
    parts = {"pyarrow.compute", "pyarrow.parquet", "pyarrow.dataset"}
    if not options and int(pa.__version__.split(".")[0]) >= 26:  # which loads them when needed
        assert [name for name in parts if f" {name}\n" in answer.err] == []


TRAINED = """
import sys
import tempera
options = {{
    "recipe": "none",
    "data": {{"source": "pairs", "path": {path!r}}},
    "tower": {{"kind": "static", "dimensions": 8, "vocabulary": 300}},
    "train": {{"max_steps": 2, "refit": "all"}},
    "evaluation": {{"queries": 20, "validation": 0}},
}}
tempera.train(options, {output!r})
assert "torch._dynamo" not in sys.modules
"""


def test_a_run_does_without_the_compiler(pairs_file: Path, tmp_path: Path) -> None:
    """Torch imports it around an optimiser's methods, for a second."""
    code = TRAINED.format(path=str(pairs_file), output=str(tmp_path / "run"))
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=True)
