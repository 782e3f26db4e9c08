"""Training on texts imports nothing of recommenders, and the other way round."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TEXTS = "query,doc\n" + "\n".join(
    f"question {i} of {i % 9},answer {i} to {i % 9}" for i in range(60)
)
EVENTS = "user,item,timestamp\n" + "\n".join(
    f"{i % 12},{(i * 7) % 10},{1_600_000_000 + 1_000 * i}" for i in range(120)
)
CODE = """
import sys
from tempera.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(*sorted(name for name in sys.modules if name.startswith("tempera.")))
"""


@pytest.mark.parametrize(
    ("rows", "own", "other"),
    [
        (TEXTS, "tempera.text.", "tempera.recommend."),
        (EVENTS, "tempera.recommend.", "tempera.text."),
    ],
    ids=["texts", "interactions"],
)
def test_the_default_command_imports_one_world(
    rows: str, own: str, other: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text(rows)
    arguments = ["train", "rows.csv", "--output", "run", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules = done.stdout.split()
    assert any(name.startswith(own) for name in modules)
    assert [name for name in modules if name.startswith(other)] == []
