"""Write map.md, the map of the package, from the first sentence of every module: `python
docs/_map.py`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "map.md"
FLOORS = (  # rooms and root modules, from the lowest floor to the highest
    ("errors",),
    ("arguments", "io"),
    ("tables", "ranking", "arithmetic"),
    ("forms", "core"),
    ("parallel",),
    ("layers",),
    ("engine",),
    ("task", "paper"),
    ("towers",),
    ("corpora",),
    ("mining",),
    ("text", "recommend"),
    ("options",),
    ("corpus",),
    ("exports",),
    ("recommender",),
    ("explain",),
    ("artifacts",),
    ("run", "finished"),
    ("experiments",),
    ("tuning",),
    ("server",),
    ("cli", "integrations"),
)
HEAD = """# The map of the package

Every module of `src/tempera` with its first sentence, from the lowest floor to the highest. A module
imports only from lower floors and from its own room, and never in a circle. `python docs/_map.py` writes this page.
"""


def sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<!\bal)\.(?:\s|$)", " ".join(text.split("\n\n")[0].split()))[0]


def lines(package: Path) -> Iterator[str]:
    """Yield the map of a package, floor by floor, a line for each module."""
    for floor, names in enumerate(FLOORS):
        for name in names:
            module, room = package / f"{name}.py", package / name
            if module.is_file():
                yield f"{floor}  {module.name:<32}{sentence(module)}"
            else:
                yield f"{floor}  {name + '/':<32}{sentence(room / '__init__.py')}"
                for path in sorted(room.rglob("*.py")):
                    if path.stem != "__init__":
                        place = str(path.relative_to(room))
                        yield f"     {place:<32}{sentence(path)}"


def page() -> str:
    """Return the page with the map of the package."""
    rows = "\n".join(lines(ROOT / "src" / "tempera"))
    return f"{HEAD}\n```text\n{rows}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
