"""The contracts of a run: its stages, and the members that it asks of its task."""

from __future__ import annotations

import ast
from pathlib import Path

from tempera.run import task, train

MOST_MEMBERS = 15


def members(protocol: ast.ClassDef) -> list[str]:
    """Return the attributes and methods that a protocol declares."""
    names = []
    for node in protocol.body:
        if isinstance(node, ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.append(ast.unparse(node.target))
    return names


def test_a_task_is_asked_for_fifteen_members_at_most() -> None:
    tree = ast.parse(Path(task.__file__).read_text(encoding="utf-8"))
    protocols = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert [protocol.name for protocol in protocols] == ["Data", "HeldOut", "RunTask"]
    names = [name for protocol in protocols for name in members(protocol)]
    assert 0 < len(names) <= MOST_MEMBERS, names


def test_a_run_is_one_list_of_stages() -> None:
    assert [stage.__name__ for stage in train.STAGES] == [
        "read",
        "measure_limit",
        "choose",
        "limit",
        "judge_untrained",
        "fit_tower",
        "refit_on_validation",
        "judge_trained",
        "refit_on_test",
        "publish_folder",
    ]


def test_the_room_of_runs_names_no_world() -> None:
    folder = Path(train.__file__).parent
    for path in folder.glob("*.py"):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert not module.startswith(("text", "recommend")), f"{path.name}:{node.lineno}"
