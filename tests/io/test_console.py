"""Messages go to one logger and bars to terminals; the library prints nothing by itself."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from tempera.io.console import logger, progress_bar, silenced

SOURCE = Path(__file__).parents[2] / "src" / "tempera"


def test_only_the_command_line_prints() -> None:
    for path in SOURCE.rglob("*.py"):
        calls = [
            ast.unparse(n.func)
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Call)
        ]
        if path.parent.name != "cli":
            allowed = (
                path.name == "worker.py"
            )  # its standard output is a pipe to the process that has started it
            assert not {"tqdm.write", "warnings.warn"} & set(calls) and (
                allowed or "print" not in calls
            ), path
        if path.name != "console.py":
            assert "tqdm" not in calls, f"{path}: bars are made by io.console.progress_bar"


def test_a_bar_is_shown_on_a_terminal_only_and_not_where_it_is_turned_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shown(label: str) -> bool:
        with progress_bar(label, 3, "row") as bar:
            return not bar.disable

    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    assert not shown("reading")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert shown("reading") and not shown("")
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert not shown("reading")


def test_a_run_among_many_says_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    with silenced():
        logger.warning("inside")
        assert os.environ["TQDM_DISABLE"]
    logger.warning("behind")
    assert caplog.messages == ["behind"] and "TQDM_DISABLE" not in os.environ


def test_training_prints_nothing_and_logs_everything(
    options: dict[str, Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tempera.run.train import train

    monkeypatch.setattr(logger, "handlers", [])  # a command line in this process has left its own
    caplog.set_level("INFO", "tempera")
    quick = ["train.max_steps=1", "train.evaluations=0", "evaluation.bm25=false"]
    train(options, tmp_path / "run", quick)
    assert capfd.readouterr() == ("", "")
    assert caplog.messages[0].endswith("pairs.jsonl: pairs")
    assert caplog.messages[1] == "  query  read as query  by its name"
    assert caplog.messages[3].startswith("300 pairs: ")
