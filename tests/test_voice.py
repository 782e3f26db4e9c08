"""The voice of the project: docstrings say what is returned or done, names are nouns, and numbers
have a leading zero."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tempera"
CLEAN = {
    path.stem
    for path in PACKAGE.iterdir()
    if path.suffix == ".py" or (path / "__init__.py").is_file()
}  # every room and root module
RIDDLES = {
    "what",
    "how",
    "whether",
    "where",
    "which",
    "who",
    "of",
    "as",
    "with",
}  # docstrings begin with none of them
PARTICIPLES = {"found", "given", "told", "there", "asked"}  # no names for what is held
BARE = re.compile(r"(?:^|[\s(\[|*±])[-+]?\.\d+(?![\dfge%])")  # .504, but not the format .3f
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").iterdir()),
]


def riddles(tree: ast.Module) -> Iterator[str]:
    """Yield docstrings of modules and of public definitions that begin with the next noun's
    pronoun."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = (
                "" if getattr(node, "name", "").startswith("_") else ast.get_docstring(node) or ""
            )
            if text.split(maxsplit=1)[:1] and re.split(r"\W", text)[0].lower() in RIDDLES:
                yield f"{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"


def unnamed_results(tree: ast.Module) -> Iterator[str]:
    """Yield docstrings, private ones too, that return a pronoun in place of a noun."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if re.match(r"Return (what|those|which|whether|how|whatever|such)\b", text):
                yield f"{node.lineno}: {text.splitlines()[0]}"


def participles(tree: ast.Module) -> Iterator[str]:
    """Yield names that are assigned, looped over or taken as arguments, and say nothing of what
    they hold."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and node.id in PARTICIPLES
        ):
            yield f"{node.lineno}: {node.id} = ..."
        if isinstance(node, ast.arg) and node.arg in PARTICIPLES:
            yield f"{node.lineno}: {node.arg} is an argument"


def bare_numbers(tree: ast.Module) -> Iterator[str]:
    """Yield strings, docstrings among them, with a number that begins with its point."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and BARE.search(node.value)
        ):
            yield f"{node.lineno}: {node.value[:80]}"


def faults(paths: Iterable[Path], *rules: Callable[[ast.Module], Iterator[str]]) -> list[str]:
    """Return the faults of modules by the rules, with their places."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    return [
        f"{path.relative_to(ROOT)}:{fault}"
        for path, tree in trees.items()
        for rule in rules
        for fault in rule(tree)
    ]


@pytest.mark.parametrize("room", sorted(CLEAN))
def test_docstrings_and_names(room: str) -> None:
    paths = (
        [PACKAGE / f"{room}.py"]
        if (PACKAGE / f"{room}.py").is_file()
        else sorted((PACKAGE / room).rglob("*.py"))
    )
    assert paths
    wrong = faults(paths, riddles, unnamed_results, participles)
    assert not wrong, "\n" + "\n".join(wrong)


def test_numbers_in_code_have_a_leading_zero() -> None:
    folders = (PACKAGE, ROOT / "study", ROOT / "bench")
    wrong = faults((path for folder in folders for path in folder.rglob("*.py")), bare_numbers)
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_numbers_on_pages_have_a_leading_zero(page: Path) -> None:
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    wrong = [f"{page.name}:{number}: {line}" for number, line in lines if BARE.search(line)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_rules_see_what_they_look_for() -> None:
    source = 'def f(given):\n    """Whether it is so."""\n    for found in given:\n        print("nDCG .504")\n'
    tree = ast.parse(source)
    assert len(list(riddles(tree))) == 1
    assert len(list(participles(tree))) == 2
    assert len(list(bare_numbers(tree))) == 1
    fine = ast.parse('"""Return 0.504."""\nfeatures = [".jsonl", "a.5", "{:.3f}"]\n')
    assert not [*riddles(fine), *participles(fine), *bare_numbers(fine)]
