"""What a release promises agrees with itself: versions, findings, licences, workflows."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import tempera

ROOT = Path(__file__).parents[1]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def script(path: str) -> ModuleType:
    """A script of the checkout, which is no part of the package."""
    spec = importlib.util.spec_from_file_location(f"tempera_{Path(path).stem}", ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert project["version"] == tempera.__version__ == citation["version"]
    assert citation["license"] == "Apache-2.0" and "Apache License" in text_of("LICENSE")
    assert f"Tempera {tempera.__version__}," in text_of("docs/comparison.md")


def test_every_finding_is_listed_with_the_version_that_it_pins() -> None:
    page = text_of("docs/findings.md")
    scripts = sorted((ROOT / "findings").glob("*.sh"))
    assert scripts
    for path in scripts:
        (row,) = [line for line in page.splitlines() if f"`findings/{path.name}`" in line]
        (pinned,) = re.findall(r"^# \S+ ([\d.]+) \(seen on", path.read_text("utf-8"), re.M)
        assert f"| {pinned} |" in row
        assert f"=={pinned}" in path.read_text("utf-8")
    assert page.count("`findings/") == len(scripts) + page.count("`findings/NAME")


def test_every_package_is_listed_with_its_licence() -> None:
    packages = script("docs/_packages.py")
    page = text_of("docs/licences.md")
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", text_of("constraints.txt").lower(), re.M))
    for requirement in packages.direct(packages.PROJECT["dependencies"]):
        name = Requirement(requirement).name.lower()
        here = version(name).split("+")[0]
        if here != pinned[name]:
            pytest.skip(f"the page is of constraints.txt, with {name} {pinned[name]}, not {here}")
    listed = dict(re.findall(r"^\| (\S+) \| \S+ \| ([^|]+) \|", page, re.M))
    needed = set(packages.closure(packages.PROJECT["dependencies"]))
    for extra, requirements in packages.EXTRAS.items():
        if extra != "dev":
            needed |= packages.closure(packages.direct(requirements))
    assert needed <= listed.keys(), "python docs/_packages.py writes the page again"
    for name, licence in listed.items():
        assert licence != "not stated", name
        assert not re.search(r"\bA?GPL", licence), f"{name}: {licence}"


def test_every_extra_has_its_size_and_its_trial() -> None:
    packages, trials = script("docs/_packages.py"), text_of("scripts/try_packages.py")
    page = text_of("docs/install.md")
    core = int(re.findall(r"^\| core \| ([\d,]+) \|", page, re.M)[0].replace(",", ""))
    assert core <= 1500, "MB of the core with the CPU build of torch"
    for extra in packages.EXTRAS.keys() - {"dev"}:
        assert f"| `{extra}` | " in page
        assert f'    "{extra}": (' in trials


def test_workflows_name_what_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.M))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        document: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        commands = []
        jobs = []
        for job in document["jobs"].values():
            jobs += job.get("strategy", {}).get("matrix", {}).get("job", [])
            commands += [step["run"] for step in job["steps"] if "run" in step]
        lines = "\n".join(commands)
        for name in re.findall(r"\b(?:scripts|docs|tests)/[\w/]+\.py", lines):
            assert (ROOT / name).is_file(), f"{path.name}: {name}"
        for target in [*re.findall(r"\bmake ([\w-]+)", lines), *jobs]:
            bench = target.removeprefix("bench-")
            known = target in targets or (ROOT / "bench" / f"{bench}.py").is_file()
            assert known, f"{path.name}: make {target}"


def test_pages_for_assistants_name_what_exists() -> None:
    import typer.main

    from tempera.cli import EVERYWHERE, app
    from tempera.options import known

    every: Any = vars(typer.main.get_command(app))["commands"]
    # A part, such as the index of `tower of documents: index`, is chosen by its name.
    options = {group.title.rpartition(": ")[2] for group in known.groups()}
    for group in known.groups():
        options |= {option.name for option in group.options}
    for name in ("SKILL.md", "llms.txt"):
        page = text_of(name)
        for line in re.findall(r"tempera ([a-z-]+[^`\n]*)", page):
            command, *words = line.split()
            if command not in every:
                continue  # a sentence about Tempera
            flags = {flag for field in every[command].params for flag in field.opts}
            for word in words:
                if word.startswith("--"):
                    assert word in flags | {*EVERYWHERE, "--help"}, f"{name}: tempera {line}"
        for named in re.findall(r"`tempera ([a-z-]+)", page):
            assert named in every, f"{name}: tempera {named}"
        for dotted in re.findall(
            r"\b((?:data|tower|objective|train|evaluation)(?:\.(?!md\b)\w+)+)", page
        ):
            assert dotted.rpartition(".")[2] in options, f"{name}: {dotted}"
        for target in re.findall(r"\]\(([^)]+)\)", page):
            assert (ROOT / target).is_file(), f"{name}: {target}"
        for path in re.findall(r"\b(?:docs|tests)/[\w./-]+\w", page):
            assert (ROOT / path).is_file(), f"{name}: {path}"


def test_lines_of_a_page_that_a_reader_types() -> None:
    lines = script("scripts/readme_lines.py")
    page = (
        "    pip install .  # all\n```python\n    x = 1\n```\n| x | `tempera train a.csv`, `b` |\n"
    )
    assert list(lines.typed_lines(page)) == ["pip install .", "tempera train a.csv"]
    assert lines.run_line("make demo", Path(), Path()) == lines.LEFT_OUT["make"]
    with pytest.raises(SystemExit, match=r"not a line that readme_lines\.py knows"):
        lines.run_line("curl example.org", Path(), Path())
    typed = list(lines.typed_lines(text_of("README.md")))
    assert sum(line.startswith("tempera ") for line in typed) >= 8
