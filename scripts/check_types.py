"""Check the Python examples of the pages with mypy and pyright, against an installed wheel:
`python scripts/check_types.py PYTHON`.

PYTHON is the interpreter of an environment with the wheel and the extra `text`. mypy and pyright
run from this environment, and see the package as a user's own checks see it: through `py.typed`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/calibrate.md",
    "docs/choose-items.md",
    "docs/evaluation.md",
    "docs/explain.md",
    "docs/index.md",
    "docs/new-events.md",
    "docs/objective.md",
    "docs/python.md",
    "docs/recommend.md",
    "docs/temperature.md",
)


def examples(page: str) -> list[str]:
    """Return the Python examples of a page."""
    return re.findall(r"```python\n(.*?)```", page, re.S)


def write_examples(folder: Path) -> None:
    """Write a module for each page; an example may use names of those before it."""
    for name in PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        module = re.sub(r"\W", "_", Path(name).stem.lower())
        code = "\n\n".join(examples(page))
        if "import tempera\n" not in code:
            code = f"import tempera\n\n{code}"
        (folder / f"example_{module}.py").write_text(code, encoding="utf-8")


def main() -> None:
    """Run both, and end with the number of those that found a fault."""
    python = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as folder:
        write_examples(Path(folder))
        mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, folder]
        pyright = [sys.executable, "-m", "pyright", "--pythonpath", python, folder]
        failed = 0
        for command in (mypy, pyright):
            done = subprocess.run(command, cwd=folder)
            failed += done.returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
