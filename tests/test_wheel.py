"""A wheel of the package, installed into an empty environment, is whole: it trains, searches and
writes its report."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, folder: Path) -> str:
    """Run a command outside the checkout, and return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment that holds the wheel; dependencies are read from
    this one's folder."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(
        ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(
        *pip,
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        "dist",
        ".",
        folder=folder,
    )
    (wheel,) = (folder / "dist").glob("tempera-*.whl")
    venv.create(folder / "empty", with_pip=False)
    python = folder / "empty" / "bin" / "python"
    run(*pip, "--python", python, "install", "--quiet", "--no-deps", wheel, folder=folder)
    packages = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder
        ).strip()
    )
    # A path file adds the folder itself and reads no path files in it, so that the editable package
    # stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.long
def test_the_wheel_trains_and_searches(python: Path, tmp_path: Path, pairs_file: Path) -> None:
    where = run(python, "-c", "import tempera; print(tempera.__file__)", folder=tmp_path)
    assert Path(where).is_relative_to(python.parents[1])
    tempera = python.with_name("tempera")
    small = (
        "train.batch_size=32",
        "train.max_steps=20",
        "tower.dimensions=16",
        "evaluation.queries=30",
    )
    run(
        tempera,
        "train",
        "data.source=pairs",
        f"data.path={pairs_file}",
        *small,
        "--output",
        "first",
        folder=tmp_path,
    )
    assert "ndcg@10" in (tmp_path / "first" / "report.html").read_text(encoding="utf-8").lower()
    assert run(tempera, "search", "first", "kaban", folder=tmp_path).strip()
