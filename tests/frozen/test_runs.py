"""Run folders of earlier releases answer as they did."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tempera as package

FROZEN = Path(__file__).parent
RELEASES = sorted(path.name for path in FROZEN.iterdir() if (path / "answers.json").is_file())
CASES = [
    (release, name)
    for release in RELEASES
    for name in json.loads((FROZEN / release / "answers.json").read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that froze the runs."""
    path = FROZEN.parents[1] / "scripts" / "freeze_runs.py"
    spec = importlib.util.spec_from_file_location("tempera_freeze_runs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_of_this_tree_is_frozen() -> None:
    assert package.__version__ in RELEASES, "python scripts/freeze_runs.py freezes it"


@pytest.mark.parametrize(("release", "name"), CASES)
def test_a_run_of_an_earlier_release_answers_as_it_did(
    release: str,
    name: str,
    script: ModuleType,
    tempera: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / release
    shutil.copytree(FROZEN / release, folder)
    monkeypatch.chdir(folder)
    answers = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
    answer = tempera(*answers[name]["command"], "--json")
    assert answer.code == 0, answer.err
    figures, expected = script.figures(answer.document), answers[name]["figures"]
    if name == "evaluate":
        assert figures == pytest.approx(expected, abs=1e-4)
    else:
        assert [key for key, _ in figures] == [key for key, _ in expected]
        assert [score for _, score in figures] == pytest.approx(
            [score for _, score in expected], abs=1e-4
        )
