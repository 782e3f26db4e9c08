"""A file imports only from the floors below its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tempera

PACKAGE = Path(tempera.__file__).parent
# From the bottom up. A room is a set of modules and folders that may import each other; rooms of one floor may not.
FLOORS: list[list[set[str]]] = [
    [{"errors", "untrusted"}],
    [{"core"}],
    [{"data"}, {"towers"}, {"engine"}],
    [{"evaluation"}],
    [{"mining"}, {"export"}],
    [{"config", "build"}],
    [
        {
            "training",
            "checkpoints",
            "leaving",
            "alarms",
            "task",
            "retrieval",
            "recommendation",
            "serving",
            "arrivals",
            "run",
            "verification",
            "rehearsal",
        },
        {"integrations"},
    ],
    [{"tuning"}],
    [{"cli", "__main__"}, {"__init__"}],  # the package's own names are loaded when they are asked for
]
PLACE = {
    unit: (height, room) for height, floor in enumerate(FLOORS) for room, units in enumerate(floor) for unit in units
}


def imports(source: str, module: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and absolute dotted name, as parts, of everything that a module imports, wherever it stands in it.

    `from a import b` counts as a.b: b may be a module. `module` is the dotted name, with `__init__` for a package.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, tuple(name.name.split("."))) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= len(module), f"{'.'.join(module)}:{node.lineno} imports from above the package"
            start = module[: -node.level] if node.level else ()
            base = (*start, *(node.module.split(".") if node.module else ()))
            yield from ((node.lineno, (*base, name.name)) for name in node.names)


def arrows(source: str, module: tuple[str, ...]) -> list[str]:
    """What is wrong with the imports of a module."""
    unit = module[1]
    if unit not in PLACE:
        return [f"{'.'.join(module)} stands on no floor"]
    height, room = PLACE[unit]
    wrong = []
    for line, name in imports(source, module):
        place = f"{'.'.join(module)}:{line}"
        if name[0] == "sentence_transformers" and unit not in ("towers", "integrations"):
            wrong.append(f"{place} imports sentence_transformers, which only towers and integrations may")
        if name[0] != "tempera":
            continue
        other = name[1] if len(name) > 1 and name[1] in PLACE else "__init__"
        above, beside = PLACE[other]
        if above > height or (above == height and beside != room):
            wrong.append(f"{place} (floor {height}, {unit}) imports {'.'.join(name)} (floor {above}, {other})")
    return wrong


def modules() -> dict[tuple[str, ...], Path]:
    """Every module of the package by its dotted name."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {("tempera", *file.relative_to(PACKAGE).with_suffix("").parts): file for file in files}


def test_no_module_imports_upwards_or_sideways() -> None:
    found = modules()
    assert len(found) > 30 and ("tempera", "core", "objective") in found
    wrong = [text for name, file in found.items() for text in arrows(file.read_text(encoding="utf-8"), name)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_arrows_that_are_there_are_seen() -> None:
    """The check is of use only while it reads the imports that the package has."""
    text = modules()["tempera", "training"].read_text(encoding="utf-8")
    seen = {name[:3] for _, name in imports(text, ("tempera", "training"))}
    assert {("tempera", "config"), ("tempera", "engine", "loop"), ("tempera", "core", "batch")} <= seen
    assert ("torch",) in seen


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("core.objective", "from ..errors import ConfigError", 0),
        ("core.objective", "from . import pools\nfrom .batch import Batch", 0),
        ("core.objective", "from ..data.pairs import Pairs", 1),
        ("core.objective", "def f():\n    from ..towers import static", 1),
        ("core.objective", "import tempera.cli", 1),
        ("core.objective", "if TYPE_CHECKING:\n    from .. import build, errors", 1),
        ("core.__init__", "from .batch import Batch", 0),
        ("core.__init__", "from ..engine import loop", 1),
        ("data.files", "from ..towers.static import Static", 1),
        ("engine.step", "from ..data import batches", 1),
        ("evaluation.search", "from ..data.pairs import Pairs", 0),
        ("export.index", "from ..mining import guide", 1),
        ("build", "from .config import Options\nfrom .training import train", 1),
        ("config", "from . import build", 0),
        ("training", "from .run import Run\nfrom . import tuning", 1),
        ("integrations.sentence_transformers", "from ..training import train", 1),
        ("integrations.sentence_transformers", "import sentence_transformers", 0),
        ("tuning.study", "from ..training import train\nfrom ..cli import app", 1),
        ("cli", "from .training import train", 0),
        ("run", "from . import __version__", 1),
        ("towers.saved", "def f():\n    from sentence_transformers import SentenceTransformer", 0),
        ("evaluation.search", "def f():\n    import sentence_transformers.util", 1),
        ("nowhere", "", 1),
    ],
)
def test_the_check_tells_up_from_down(module: str, source: str, wrong: int) -> None:
    assert len(arrows(source, ("tempera", *module.split(".")))) == wrong
