"""The commands of every tutorial run in its order, on small made-up data; the pictures are drawn
from their script."""

from __future__ import annotations

import importlib.util
import io
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tempera.cli import app

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
FIRST = ("index", "which-way", "python", "run-folder")
PAGES = [*TUTORIALS, *(ROOT / "docs" / f"{name}.md" for name in FIRST)]
CODE = ROOT / "src" / "tempera" / "core"
MOST_WORDS = 900
FEW_STEPS = ["recipe=none", "train.max_steps=4", "train.batch_size=16", "tower.dimensions=16"]
# What makes the commands of each page small, by the first words of a command.
SMALLER: dict[str, dict[str, list[str]]] = {
    "questions": {
        "python examples/make_questions.py": ["--rows", "160"],
        "tempera train": FEW_STEPS,
        "tempera sweep": ["train.max_steps=4", "train.batch_size=16", "tower.dimensions=16"],
    },
    "shop": {
        "python examples/make_shop.py": ["--customers", "120"],
        "tempera train shop/events.csv": FEW_STEPS,
        "tempera train shop": [*FEW_STEPS, "tower.doc=[{text: {column: title}}]"],
    },
    "code": {
        "tempera train": [*FEW_STEPS, "data.roots=[src]"],
        "tempera train --dry-run": ["data.roots=[src]"],
        "tempera train src": FEW_STEPS,
    },
}
SHORTER = {"=0.01,0.02,0.05,0.1,0.2,0.5": "=0.05,0.1", "--seeds 3": "--seeds 1"}


def commands(page: Path) -> list[str]:
    """Return the commands of a page: its indented lines that begin with a program, each with the
    lines that a backslash continues."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(r"^    ((?:python examples/|tempera |head ).*)$", text, re.M)


def small(page: Path, line: str) -> list[str]:
    """Return the words of a command at a small size, by the longest beginning that `SMALLER` has
    of it."""
    for long, short in SHORTER.items():
        line = line.replace(long, short)
    options: list[str] = []
    for start in sorted(SMALLER[page.stem], key=len):
        if f"{line} ".startswith(f"{start} "):
            options = SMALLER[page.stem][start]
    return [*shlex.split(line), *options]


def test_every_tutorial_is_tried() -> None:
    assert [page.stem for page in TUTORIALS] == sorted(SMALLER)


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_commands_of_a_tutorial_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(CODE, tmp_path / "src")
    monkeypatch.chdir(tmp_path)
    # A search without a query reads one from standard input.
    monkeypatch.setattr(sys, "stdin", io.StringIO("a query\n"))
    lines = commands(page)
    assert len(lines) >= 4
    for line in lines:
        program, *arguments = small(page, line)
        if program == "python":
            subprocess.run([sys.executable, "-B", *arguments], check=True, timeout=60)
        elif program == "tempera":
            app(arguments, standalone_mode=False)
        else:
            for path in arguments[1:]:
                assert Path(path).is_file()


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_the_options_of_every_training_exist(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.md").write_text("# A question\n\nAn answer of several words.\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text('def one():\n    """Return 1."""\n    return 1\n')
    (tmp_path / "shop").mkdir()
    events = "user,item,time\nu,i,1\nu,j,2\n"
    for path in ("events.csv", "shop/events.csv"):
        (tmp_path / path).write_text(events)
    for path in ("pairs.csv", "faq.csv"):
        (tmp_path / path).write_text("question,answer\nhow is that done,it is done like this\n")
    (tmp_path / "faq.yaml").write_text("data: {source: pairs, path: faq.csv}\n")
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"(?:^    |`)tempera (train\b[^`\n]*)", text, re.M)
    for line in lines:
        if "..." not in line:  # a command that the page has in full elsewhere
            app([*shlex.split(line), "--print-config"], standalone_mode=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pictures_of_a_page_exist(page: Path) -> None:
    for path in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / path).is_file(), path


def test_the_pictures_are_those_that_their_script_draws() -> None:
    spec = importlib.util.spec_from_file_location(
        "tempera_pictures", ROOT / "docs" / "_pictures.py"
    )
    assert spec is not None and spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    assert {path.stem for path in pictures.FOLDER.glob("*.svg")} == set(pictures.PICTURES)
    for name, draw in pictures.PICTURES.items():
        text = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert text == draw(), "python docs/_pictures.py draws the pictures again"
