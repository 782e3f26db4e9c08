"""Options that earlier versions had: ignored at their old default, otherwise named or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tempera
from tempera.errors import ConfigError
from tempera.options import removed
from tempera.options.build import build, config_of_run
from tempera.options.removed import without_removed
from tempera.options.yaml_options import Options
from tempera.run import resume

ROWS = pa.table(
    {
        "query": [f"question {i} of {i % 7}" for i in range(40)],
        "doc": [f"answer {i} to {i % 7}" for i in range(40)],
    }
)
SHORT = ["recipe=none", "train.max_steps=2", "train.batch_size=8", "train.refit=none"]


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that no version has had, so that the test does not depend on the true table."""
    monkeypatch.setitem(removed.REMOVED, "train.shuffle_twice", False)
    monkeypatch.setitem(removed.REMOVED, "data.sources.checked", None)


def test_at_its_old_default_it_is_ignored() -> None:
    config = build(Options({"train": {"shuffle_twice": False, "seed": 3}}))
    assert config.train.seed == 3
    assert "shuffle_twice" not in config.resolved["train"]


def test_at_another_value_it_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"train\.shuffle_twice.*was removed.*leave it out"):
        build(Options({"train": {"shuffle_twice": True}}))


def test_within_a_list_it_is_found() -> None:
    sources: list[dict[str, Any]] = [{"path": "a", "checked": None}, {"path": "b", "checked": 3}]
    kept, others = without_removed({"data": {"sources": sources}})
    assert kept == {"data": {"sources": [{"path": "a"}, {"path": "b"}]}}
    assert others == {"data.sources.checked": 3}


def test_a_run_opens_and_names_the_option_that_had_an_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tempera.train(output=tmp_path / "run", overrides=SHORT, data=ROWS)
    written = run.folder / "config.yaml"
    before = written.read_text()
    after = before.replace("\ntrain:\n", "\ntrain:\n  shuffle_twice: true\n")
    assert after != before
    written.write_text(after)
    (run.folder / "tempera-manifest.json").unlink()
    assert config_of_run(run.folder).train.seed == 0
    assert "train.shuffle_twice was True" in caplog.text


def test_resuming_compares_configurations_without_removed_defaults() -> None:
    now = {"train": {"seed": 0}}
    assert resume._difference({"train": {"seed": 0, "shuffle_twice": False}}, now) == ""
    difference = resume._difference({"train": {"seed": 0, "shuffle_twice": True}}, now)
    assert difference == "train.shuffle_twice was true, an option that this version no longer has"
    assert resume._difference({"train": {"seed": 1}}, now) == "train.seed was 1, now 0"
