"""Names that users' scripts hold are frozen: commands, flags, options, Python names, paths of the
server, files of a run, and keys of JSON."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that writes the list."""
    pytest.importorskip("fastapi")
    spec = importlib.util.spec_from_file_location("tempera_face", ROOT / "docs" / "_face.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_name_is_gone_and_every_name_is_listed(
    script: ModuleType, tempera: Any, tmp_path: Path
) -> None:
    def ask(*words: object) -> Any:
        answer = tempera(*words, "--json")
        assert answer.code == 0, answer.err
        return answer.document

    frozen = json.loads(script.FILE.read_text(encoding="utf-8"))
    gone, new = script.differences(frozen, script.face(tmp_path, ask))
    assert not gone, (
        f"{gone} are gone or renamed: answer the old names for two releases (docs/stability.md); "
        "python docs/_face.py --remove drops names that were answered for so long"
    )
    assert not new, f"{new} are new: python docs/_face.py adds them to {script.FILE.name}"


def test_parameters_have_their_places(script: ModuleType) -> None:
    class Kind:
        """A class of the package, for the test."""

        __module__ = "tempera.test"
        width: int
        _hidden: int

        def of(self, query: str, k: int = 10, *, cold: bool = False) -> None:
            """Do nothing."""

        @staticmethod
        def made(path: str, *more: str, **options: int) -> None:
            """Do nothing."""

        @property
        def height(self) -> int:
            """The height."""
            return 1

    assert sorted(script._members("Kind", Kind)) == [
        "Kind.height",
        "Kind.made",
        "Kind.made **options",
        "Kind.made *more",
        "Kind.made 1 path",
        "Kind.of",
        "Kind.of * cold=",
        "Kind.of 1 query",
        "Kind.of 2 k=",
        "Kind.width",
    ]


def test_keys_are_paths(script: ModuleType) -> None:
    document = {"hits": [{"id": 1}, {"id": 2, "text": ""}], "metrics": {"trained": {"a@1": 0}}}
    document |= {"config": {"x": 1}, "difference": {"a@1": {"mean": 1}, "b@1": {"mean": 2}}}
    assert sorted(set(script.keys(document))) == [
        "config",
        "difference",
        "difference.METRIC",
        "difference.METRIC.mean",
        "hits",
        "hits[].id",
        "hits[].text",
        "metrics",
        "metrics.trained",
        "metrics.trained.a@1",
    ]
