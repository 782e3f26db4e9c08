"""The README's Python example runs as it stands, its commands exist, and the map has every
module."""

import csv
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tempera.cli import EVERYWHERE, app

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TOPICS = [
    "password",
    "invoice",
    "delivery",
    "refund",
    "address",
    "subscription",
    "language",
    "warranty",
]
ACTIONS = [
    "reset",
    "change",
    "find",
    "cancel",
    "download",
    "renew",
    "delete",
    "share",
    "print",
    "explain",
    "check",
    "move",
]


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "answer"])
        for action in ACTIONS:
            for topic in TOPICS:
                answer = f"To {action} the {topic}, open {topic} and choose {action}."
                rows.writerow([f"how do I {action} my {topic}?", answer])
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    first, answer = capsys.readouterr().out.splitlines()
    assert re.match(r"[01]\.\d+ against BM25 [01]\.\d+$", first)
    assert "password" in answer


@pytest.mark.parametrize(
    "page", [README, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.stem
)
def test_every_command_exists_with_its_options(page: Path) -> None:
    commands: Any = vars(typer.main.get_command(app))["commands"]
    # A command is a line, and the lines behind each \ at its end; [ ] are around what may be left
    # out.
    for line in re.findall(
        r"(?<![\w./])tempera ((?:[^`\n\\]|\\\n)+)", page.read_text(encoding="utf-8")
    ):
        name, *words = line.split("  #")[0].replace("\\\n", " ").split()
        used = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", " ".join(words)))
        if name not in commands:
            assert not used, f"no command: tempera {line}"
            continue
        known = {
            option
            for field in commands[name].params
            for option in (*field.opts, *field.secondary_opts)
        }
        assert used <= known | {*EVERYWHERE, "--help"}, f"tempera {line}"


def test_the_map_names_every_module() -> None:
    spec = importlib.util.spec_from_file_location("tempera_map", ROOT / "docs" / "_map.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text(encoding="utf-8")
    assert module.page() == page, "python docs/_map.py writes the map again"
    package = ROOT / "src" / "tempera"
    rooms = {
        path.relative_to(package).parts[0].removesuffix(".py") for path in package.rglob("*.py")
    }
    assert rooms - {"__init__", "__main__"} == {name for floor in module.FLOORS for name in floor}
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for room in rooms - {"__init__", "__main__"}:
        assert re.search(rf"\b{room}\b", contributing), "the house on one screen has every room"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_a_first_page_has_at_most_900_words(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").split()) <= 900


def test_a_release_of_the_changelog_is_short() -> None:
    page = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for release in re.split(r"^## ", page, flags=re.M)[1:]:
        lines = re.findall(r"^- ", release, re.M)
        assert len(lines) <= 20, release.splitlines()[0]
