"""Write the table of sizes in install.md, and licences.md, from the installed packages: `python
docs/_packages.py`, in an environment with every extra (`make setup`)."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
INSTALL, LICENCES = ROOT / "docs" / "install.md", ROOT / "docs" / "licences.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
BEGIN, END = "<!-- packages: python docs/_packages.py -->\n", "<!-- /packages -->\n"
USES = {
    "pictures": "charts in reports, pictures of sweeps, tunings, learning curves, calibrations",
    "text": "pretrained models, transformers, cross-encoders, sentence-transformers",
    "trainer": "`ContrastiveLoss` in sentence-transformers' trainer",
    "faiss": "FAISS exports, approximate search",
    "onnx": "ONNX exports",
    "lora": "`tower.lora`",
    "tune": "`tempera tune`",
    "duckdb": "filters (`--where`)",
    "serve": "`tempera serve`",
    "mcp": "`tempera mcp`",
    "ray": "`tempera encode --engine ray`",
    "mteb": "`tempera evaluate --mteb`",
}
# The words of a classifier or of a long licence, as the licence's identifier of SPDX.
IDENTIFIERS = {
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache License v2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "MIT License": "MIT",
    "BSD License": "BSD",
    "3-Clause BSD License": "BSD-3-Clause",
    "Python Software Foundation License": "PSF-2.0",
}
HEAD = """# Licences of dependencies

Tempera has the licence Apache 2.0. These are the packages that it installs, with their own
dependencies, and the licences that each states about itself. None of them has to be shipped with a
model or an index that you train.

`python docs/_packages.py` writes this page from the installed packages on Linux.

| package | version | licence | in |
|---|---|---|---|
"""


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of all packages that requirements install on this machine."""
    names = set()
    seen = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = (name, *sorted(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        if name == "tempera":
            own = [text for extra in requirement.extras for text in EXTRAS[extra]]
            waiting += [Requirement(text) for text in own]
            continue
        names.add(name)
        for text in importlib.metadata.requires(name) or ():
            inner = Requirement(text)
            for extra in ("", *requirement.extras):
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    waiting.append(inner)
                    break
    return names


def direct(requirements: Iterable[str]) -> list[str]:
    """Return requirements that this machine installs: those whose conditions it meets."""
    met = []
    for text in requirements:
        marker = Requirement(text).marker
        if marker is None or marker.evaluate({"extra": ""}):
            met.append(text)
    return met


def size(name: str) -> int:
    """Return the bytes of a package's files, with their bytecode."""
    total = 0
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if path.is_file():
            total += path.stat().st_size
    return total


def licence(name: str) -> str:
    """Return the licence that a package states: its expression, its classifiers, or its text."""
    metadata: Any = importlib.metadata.metadata(name)
    expression = metadata.get("License-Expression")
    if expression:
        return str(expression)
    stated = []
    for classifier in metadata.get_all("Classifier") or ():
        if classifier.startswith("License :: ") and not classifier.endswith("OSI Approved"):
            stated.append(classifier.rpartition(" :: ")[2])
    if not stated:
        stated = (metadata.get("License") or "not stated").strip().splitlines()[:1]
    return ", ".join(IDENTIFIERS.get(text, text) for text in stated)


def megabytes(names: Iterable[str]) -> str:
    """Return the size of packages in MB."""
    return f"{sum(map(size, names)) / 1e6:,.0f}"


def sizes() -> str:
    """Return the table of extras with their sizes, and the largest packages of each."""
    core = closure(PROJECT["dependencies"])
    rows = ["| extra | MB | for | largest |", "|---|---:|---|---|"]
    for extra, requirements in {"": [], **EXTRAS}.items():
        if extra == "dev":
            continue
        added = closure(direct(requirements)) - core if extra else core
        largest = sorted(added, key=size, reverse=True)[:3]
        shares = ", ".join(f"{name} {megabytes([name])}" for name in largest)
        title = f"`{extra}`" if extra else "core"
        use = USES[extra] if extra else "training, evaluating, searching, recommending"
        rows.append(f"| {title} | {megabytes(added)} | {use} | {shares} |")
    return "\n".join(rows) + "\n"


def licences() -> str:
    """Return the page of licences."""
    users: dict[str, list[str]] = {}
    for name in closure(PROJECT["dependencies"]):
        users[name] = ["core"]
    for extra, requirements in EXTRAS.items():
        if extra != "dev":
            for name in closure(direct(requirements)):
                if users.get(name) != ["core"]:
                    users.setdefault(name, []).append(f"`{extra}`")
    rows = []
    for name, where in sorted(users.items()):
        version = importlib.metadata.version(name)
        rows.append(f"| {name} | {version} | {licence(name)} | {', '.join(where)} |\n")
    return HEAD + "".join(rows)


def main() -> None:
    """Write both pages."""
    page = INSTALL.read_text(encoding="utf-8")
    pattern = f"{re.escape(BEGIN)}.*?{re.escape(END)}"
    page = re.sub(pattern, lambda _: BEGIN + sizes() + END, page, flags=re.S)
    INSTALL.write_text(page, encoding="utf-8")
    LICENCES.write_text(licences(), encoding="utf-8")


if __name__ == "__main__":
    main()
