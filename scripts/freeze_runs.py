"""Freeze two small run folders of this version, with their answers: `python scripts/freeze_runs.py`.

A release runs this once. The folders go to `tests/frozen/VERSION`, where tests open them with every
later version and compare the answers.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import tempera

ROOT = Path(__file__).parents[1]
# Pages for people, of no influence on any answer.
FOR_PEOPLE = ("report.html", "model/README.md")
QUESTIONS = {
    "search": ("search", "text", "how do I clean the kettle?", "-k", "5"),
    "search hybrid": ("search", "text", "how do I open the radio?", "-k", "5", "--hybrid"),
    "evaluate": ("evaluate", "text", "questions.jsonl"),
    "recommend user": ("recommend", "shop", "--user", "u1", "-k", "5"),
    "recommend history": ("recommend", "shop", "--history", "i3,i4", "-k", "5"),
}


def face() -> ModuleType:
    """Return the script that knows the small runs."""
    spec = importlib.util.spec_from_file_location("tempera_face", ROOT / "docs" / "_face.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def command(folder: Path, *words: str) -> Any:
    """Run a command of `tempera` in a folder, and return its JSON document."""
    line = [sys.executable, "-m", "tempera", *words, "--json"]
    done = subprocess.run(line, cwd=folder, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def figures(document: Any) -> Any:
    """Return the figures of an answer that every later version has to repeat."""
    if "hits" in document:
        return [[hit["id"], round(hit["score"], 5)] for hit in document["hits"]]
    (task,) = document["tasks"]
    (system,) = task["systems"].values()
    return {name: round(interval["mean"], 5) for name, interval in system.items()}


def main() -> None:
    """Train both runs, and write them with their answers."""
    script = face()
    folder = ROOT / "tests" / "frozen" / tempera.__version__
    folder.mkdir(parents=True)
    script.write_data(folder)
    held_out = ("evaluation.queries=12", "evaluation.validation=0")
    command(folder, "train", "questions.jsonl", *script.SMALL, *held_out, "--output", "text")
    split = "data.split=leave_last_out"
    command(folder, "train", "visits.csv", *script.SMALL, split, "--output", "shop")
    for run in ("text", "shop"):
        shutil.rmtree(folder / f"{run}.checkpoints", ignore_errors=True)
        for name in FOR_PEOPLE:
            (folder / run / name).unlink()
    answers = {}
    for name, words in QUESTIONS.items():
        answers[name] = {"command": words, "figures": figures(command(folder, *words))}
    text = json.dumps(answers, indent=1, ensure_ascii=False) + "\n"
    (folder / "answers.json").write_text(text, encoding="utf-8")
    print(f"{folder}: commit it with the release")


if __name__ == "__main__":
    main()
