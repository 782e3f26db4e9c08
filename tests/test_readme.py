"""The README's Python example runs as it stands, and its map has every module."""

import json
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
PACKAGE = Path(__file__).parents[1] / "src" / "tempera"
TOPICS = ["password", "invoice", "delivery", "refund", "address", "subscription", "language", "warranty"]
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
    rows = [
        {
            "question": f"how do I {action} my {topic}?",
            "answer": f"To {action} the {topic}, open {topic} and choose {action}.",
        }
        for action in ACTIONS
        for topic in TOPICS
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    # 96 pairs leave 48 to train on; the example's batch is for more.
    example = example.replace('"batch_size": 64', '"batch_size": 16')
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    first, answer = capsys.readouterr().out.splitlines()
    assert re.match(r"[01]\.\d+ against BM25 [01]\.\d+$", first)
    assert "password" in answer


def test_the_file_map_names_every_module_in_its_folder() -> None:
    lines = (
        README.read_text(encoding="utf-8").partition("    src/tempera/\n")[2].partition("    tests/ ")[0].splitlines()
    )
    named: dict[str, set[str]] = {"": set()}
    folder = ""
    for line in lines:
        if line.startswith("      ") and line[6] != " ":
            head = line.split()[0]
            folder = head.rstrip("/") if head.endswith("/") else ""
        named.setdefault(folder, set()).update(re.findall(r"\w+", line))
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parent.as_posix().strip(".")
        assert path.stem in named[room] or path.stem.startswith("__"), path
