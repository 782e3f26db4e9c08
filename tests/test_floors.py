"""A file imports only from the floors below its own; files stand in no circle; rooms keep to their
size; names are used once."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

import tempera

PACKAGE = Path(tempera.__file__).parent
# From the bottom up. A set is a room of modules and folders that may import each other; rooms of
# one floor may not. Names become objects (config, names, build) below what a finished run is on
# disk (artifacts): to open one is to read its options.
FLOORS: list[list[set[str]]] = [
    [{"errors"}],
    [{"arguments"}, {"io"}],
    [{"tables"}, {"ranking"}, {"arithmetic"}],
    [{"forms"}, {"core"}],
    [{"parallel"}],
    [{"layers"}],
    [{"engine"}],
    [{"task"}, {"paper"}],
    [{"towers"}],
    [{"corpora"}],
    [{"mining"}],
    [{"text"}, {"recommend"}],
    [{"options"}],
    [{"corpus"}],
    [{"exports"}],
    [{"recommender"}],
    [{"explain"}],
    [{"artifacts"}],
    [{"run", "finished"}],
    [{"experiments"}],
    [{"tuning"}],
    [{"server"}],
    # The package's own names are loaded when they are asked for.
    [{"cli", "integrations", "__main__", "__init__"}],
]
PLACE = {
    unit: (height, room)
    for height, floor in enumerate(FLOORS)
    for room, units in enumerate(floor)
    for unit in units
}
OPTIONAL = {
    "sentence_transformers": ("towers", "integrations"),
    "triton": ("engine",),
}  # imported by these rooms only

Module = tuple[str, ...]  # dotted name, in parts


def imports(source: str, module: Module) -> Iterator[tuple[int, Module]]:
    """Yield the line and absolute dotted name of everything that a module imports, wherever it
    stands in it.

    `from a import b` counts as a.b: b may be a module. `module` is the dotted name, with `__init__`
        for a package.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, tuple(name.name.split("."))) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= len(module), (
                f"{'.'.join(module)}:{node.lineno} imports from above the package"
            )
            start = module[: -node.level] if node.level else ()
            base = (*start, *(node.module.split(".") if node.module else ()))
            yield from ((node.lineno, (*base, name.name)) for name in node.names)


def arrows(source: str, module: Module) -> list[str]:
    """Return what is wrong with the imports of a module."""
    unit = module[1]
    if unit not in PLACE:
        return [f"{'.'.join(module)} stands on no floor"]
    height, room = PLACE[unit]
    wrong = []
    for line, name in imports(source, module):
        place = f"{'.'.join(module)}:{line}"
        if unit not in OPTIONAL.get(name[0], (unit,)):
            wrong.append(
                f"{place} imports {name[0]}, which only {' and '.join(OPTIONAL[name[0]])} may"
            )
        if name[0] != "tempera":
            continue
        other = name[1] if len(name) > 1 and name[1] in PLACE else "__init__"
        above, beside = PLACE[other]
        if above > height or (above == height and beside != room):
            wrong.append(
                f"{place} (floor {height}, {unit}) imports {'.'.join(name)} (floor {above}, {other})"
            )
    return wrong


def circles(sources: Mapping[Module, str]) -> list[list[str]]:
    """Return the circles of modules that import each other, directly or through others; every edge
    counts, late ones too."""
    graph = {module: set[Module]() for module in sources}
    for module, source in sources.items():
        for _, name in imports(source, module):
            targets = (name, name[:-1], (*name, "__init__"), (*name[:-1], "__init__"))
            graph[module] |= {next((each for each in targets if each in sources), module)} - {
                module
            }
    reached: dict[Module, set[Module]] = {}
    for start in graph:
        seen, waiting = set[Module](), list(graph[start])
        while waiting:
            if (module := waiting.pop()) not in seen:
                seen.add(module)
                waiting.extend(graph[module])
        reached[start] = seen
    groups = {
        frozenset(other for other in reached[m] if m in reached[other])
        for m in graph
        if m in reached[m]
    }
    return sorted(sorted(".".join(module) for module in group) for group in groups)


def twice(names: Iterable[str]) -> list[str]:
    """Return the names that are there more than once."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


@pytest.fixture(scope="module")
def sources() -> dict[Module, str]:
    """Every module of the package by its dotted name."""
    files = sorted(PACKAGE.rglob("*.py"))
    texts = {
        ("tempera", *file.relative_to(PACKAGE).with_suffix("").parts): file.read_text(
            encoding="utf-8"
        )
        for file in files
    }
    assert len(texts) > 30 and ("tempera", "core", "objective") in texts
    return texts


def test_no_module_imports_upwards_or_sideways(sources: dict[Module, str]) -> None:
    wrong = [text for name, source in sources.items() for text in arrows(source, name)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_a_folder_has_at_most_twenty_modules(sources: dict[Module, str]) -> None:
    folders = Counter(module[:-1] for module in sources if module[-1] != "__init__")
    assert {folder: count for folder, count in folders.items() if count > 20} == {}


def test_no_modules_stand_in_a_circle(sources: dict[Module, str]) -> None:
    assert circles(sources) == []


def test_no_file_and_no_class_has_the_name_of_another(sources: dict[Module, str]) -> None:
    assert twice(module[-1] for module in sources if not module[-1].startswith("__")) == []
    classes = (
        node.name
        for s in sources.values()
        for node in ast.walk(ast.parse(s))
        if isinstance(node, ast.ClassDef)
    )
    assert twice(classes) == []


def test_no_script_and_no_helper_of_tests_has_the_name_of_another() -> None:
    """They are imported by their bare names, so that one would stand for the other."""
    root = Path(__file__).parents[1]
    folders = root / "bench", root / "study", root / "tests"
    names = [file.stem for folder in folders for file in folder.rglob("*.py")]
    assert {"_harness", "study", "conftest"} <= set(names)
    assert twice(name for name in names if not name.startswith(("test_", "conftest"))) == []


def test_the_arrows_that_are_there_are_seen(sources: dict[Module, str]) -> None:
    """The check is of use only while it reads the imports that the package has."""
    seen = {
        name[:3] for _, name in imports(sources["tempera", "run", "fit"], ("tempera", "run", "fit"))
    }
    assert {
        ("tempera", "engine", "loop"),
        ("tempera", "core", "batch"),
        ("tempera", "run", "prepare"),
    } <= seen
    assert ("torch",) in seen


def test_a_circle_is_seen_however_long_and_however_late() -> None:
    planted = {
        ("tempera", "a"): "from . import b",
        ("tempera", "b"): "def f():\n    from .room.c import C",
        (
            "tempera",
            "room",
            "c",
        ): "from __future__ import annotations\nif True:\n    from ..a import A",
        ("tempera", "room", "d"): "from .c import C\nfrom ..errors import E",
        ("tempera", "errors"): "",
    }
    assert circles(planted) == [["tempera.a", "tempera.b", "tempera.room.c"]]
    assert circles({**planted, ("tempera", "b"): "from .errors import E"}) == []


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("core.objective", "from ..errors import ConfigError", 0),
        ("core.objective", "from . import pools\nfrom .batch import Batch", 0),
        ("core.objective", "from ..text.pairs import Pairs", 1),
        ("core.objective", "def f():\n    from ..towers import static", 1),
        ("core.objective", "import tempera.cli", 1),
        (
            "core.objective",
            "if TYPE_CHECKING:\n    from ..options import build\nfrom .. import errors",
            1,
        ),
        ("core.__init__", "from .batch import Batch", 0),
        ("core.__init__", "from ..engine import loop", 1),
        ("engine.step", "from ..towers import static", 1),
        ("mining.guide", "from ..ranking.nearest import top", 0),
        ("mining.guide", "from ..recommend.timeline import Timeline", 1),
        ("text.preview", "from ..recommend.visits import Visits", 1),
        ("recommend.interactions", "from ..text.pairs import Pairs", 1),
        ("ranking.nearest", "from ..text.pairs import Pairs", 1),
        ("corpus.index", "from ..mining import guide\nfrom ..options.build import build", 0),
        ("options.build", "from .yaml_options import Options\nfrom ..run.train import train", 1),
        ("options.yaml_options", "from . import build", 0),
        (
            "text.retrieval",
            "from ..options.build import Config\nfrom ..corpus.index import Index",
            2,
        ),
        ("run.train", "from ..artifacts.run_folder import Run\nfrom .. import experiments", 1),
        ("integrations.sentence_transformers", "from ..run.train import train", 0),
        ("integrations.sentence_transformers", "import sentence_transformers", 0),
        ("experiments.study", "from ..run.train import train\nfrom ..cli import app", 1),
        ("cli", "from .run.train import train", 0),
        ("cli.training", "from ..integrations.citations import cite", 0),
        ("run.train", "from .. import __version__", 1),
        ("towers.saved", "def f():\n    from sentence_transformers import SentenceTransformer", 0),
        ("ranking.nearest", "def f():\n    import sentence_transformers.util", 1),
        ("core.tiles", "import triton", 1),
        ("nowhere", "", 1),
    ],
)
def test_the_check_tells_up_from_down(module: str, source: str, wrong: int) -> None:
    assert len(arrows(source, ("tempera", *module.split(".")))) == wrong
