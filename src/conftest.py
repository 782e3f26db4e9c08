"""Where examples of docstrings run: a folder of pairs.jsonl, pairs.yaml that trains on them, and what that left in runs/first."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal", "ida", "jon")
OPTIONS = """
data: {source: pairs, path: pairs.jsonl}
tower: {dimensions: 16, vocabulary: 200}
train: {batch_size: 16, max_steps: 30, evaluations: 0}
evaluation: {queries: 20}
"""


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, made once."""
    from tempera import train

    folder = tmp_path_factory.mktemp("example")
    rows = [{"query": f"where is {a} of {b}", "doc": f"{b} keeps {a}"} for a in NAMES for b in NAMES]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "pairs.yaml").write_text(OPTIONS)
    before = os.getcwd()
    os.chdir(folder)
    try:
        train("pairs.yaml", "runs/first")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture(autouse=True)
def beside_the_example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change into it, for examples that name a file of it."""
    test = getattr(request.node, "dtest", None)
    if test is not None and any("pairs." in line.source or "runs/" in line.source for line in test.examples):
        monkeypatch.chdir(request.getfixturevalue("example"))
