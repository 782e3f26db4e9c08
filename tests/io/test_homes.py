"""What has one home in io/ is done nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tempera

PACKAGE = Path(tempera.__file__).parent
HOMES = {
    r"\bos\.(replace|rename|fsync)\b": "atomic",
    r"\b(fcntl|flock|filelock|msvcrt)\b": "lock",
    r"\bjson\.loads?\b": "documents",
    r"\bpip install\b": "require",
}
# A driver of a database is no extra; a picture's text is no file; pages for people; a manifest,
# with which documents are compared.
ALLOWED = {
    "pip install": {"tuning/study.py"},
    "json.loads": {"artifacts/card.py", "io/manifest.py"},
}


@pytest.mark.parametrize("pattern", HOMES)
def test_what_has_a_home_is_done_there_alone(pattern: str) -> None:
    elsewhere = [
        f"{name}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if (name := path.relative_to(PACKAGE).as_posix()) != f"io/{HOMES[pattern]}.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (hit := re.search(pattern, line)) and name not in ALLOWED.get(hit[0], ())
    ]
    assert not elsewhere, "\n".join(elsewhere)


def test_extras_are_those_of_the_project() -> None:
    import tomllib

    from tempera.io.require import EXTRAS

    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    assert EXTRAS.keys() == project["optional-dependencies"].keys() - {"dev"}
