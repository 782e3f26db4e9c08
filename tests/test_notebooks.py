"""The notebooks run from their first cell to their last, and say what their texts promise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def printed(path: Path, folder: Path) -> str:
    """Everything that the cells print, run in an empty folder."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    read: Any = nbformat.read(path, as_version=4)
    nbformat.validate(read)
    nbclient.NotebookClient(
        read, timeout=500, resources={"metadata": {"path": str(folder)}}
    ).execute()
    outputs = [output for cell in read.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(
        output.text
        for output in outputs
        if output.output_type == "stream" and output.name == "stdout"
    )


def scores(text: str) -> dict[str, float]:
    """nDCG@10 by system."""
    lines = [
        line.split()
        for line in text.splitlines()
        if line.split()[1:2] == ["nDCG@10"] and len(line.split()) == 3
    ]
    return {system: float(score) for system, _, score in lines}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(os.environ, "TQDM_DISABLE", "1")
    return tmp_path


@pytest.mark.long
def test_text(folder: Path) -> None:
    text = printed(next(path for path in NOTEBOOKS if path.stem == "text"), folder)
    found = scores(text)
    assert found["trained"] > found["untrained"]
    assert "objective.temperature" in text and "logistic" in text
    hits = [
        line.split("  ")
        for line in text.splitlines()
        if line[:2] in ("0.", "1.") and line[4:6] == "  "
    ]
    assert len(hits) == 6 and all(0 <= float(score) <= 1 for score, _ in hits)


@pytest.mark.long
def test_recommender(folder: Path) -> None:
    text = printed(next(path for path in NOTEBOOKS if path.stem == "recommender"), folder)
    found = scores(text)
    assert found["trained"] > max(found["untrained"], found["popularity"])
    assert [line.split()[1] for line in text.splitlines() if " queries " in line] == [
        "all",
        "head",
        "middle",
        "tail",
    ] * 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_not_kept(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
