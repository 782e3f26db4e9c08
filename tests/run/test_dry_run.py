"""A dry run tells what a run would do, and leaves nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tempera.run.dry_run import lines, rehearse


def test_a_dry_run_counts_what_the_run_would_read(
    tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"query": f"ask about {i % 50} now", "doc": "1 2 3 4 5 6 " * (i + 1)} for i in range(99)
    ]
    for i, row in enumerate(rows):
        row["negatives"] = [f"not {j} of {i}" for j in range(i % 3)]  # type: ignore[assignment]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[5]]))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    overrides = [
        *tiny,
        f"data.path={tmp_path}/a.jsonl",
        "tower.max_length=64",
        "evaluation.queries=5",
    ]
    found = rehearse(None, [*overrides, "train.batch_size=8"])
    assert found["dropped"] == {"repeated pairs": 1}
    train = found["pairs"]
    assert (
        80 < train < 99 and found["steps"] == 6 * -(-train // 8) and found["expected_seconds"] > 0
    )
    tokens, negatives = found["tokens"], found["negatives"]
    assert (
        tokens["doc"]["100%"] == 64 and 0.7 < tokens["doc"]["at_limit"] < 1
    )  # six a time: cut from eleven times on
    assert tokens["query"]["50%"] == 4 and (negatives["least"], negatives["most"]) == (0, 2)
    assert found["repeated"]["doc"] == 0 and 0.4 < found["repeated"]["query"] < 0.6
    first = found["rows"][0]
    number = int(first["place"].rpartition(" ")[2]) - 1
    assert first["query"]["text"] == rows[number]["query"] and len(first["negatives"]) == number % 3
    (of_docs,) = (line for line in lines(found) if line.startswith("tokens of doc"))
    assert of_docs.endswith(
        f"; {tokens['doc']['at_limit']:.2%} are as long as the longest, as where texts are cut"
    )
    found["tokens"]["doc"]["at_limit"] = 0.0
    assert not any("0.00% are as long" in line for line in lines(found))
    assert len(found["rows"]) == 3 and any(
        "hard negatives per row: 0 to 2" in line for line in lines(found)
    )
    left = [
        name for name in os.listdir(tmp_path / "temporary") if not name.startswith("torch")
    ]  # its own compile cache
    assert left == [] and sorted(os.listdir(tmp_path)) == ["a.jsonl", "temporary"]


def test_a_run_without_data_says_first_what_it_reads(
    tmp_path: Path, tempera: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempera.text.read.installed_python.installed_roots", lambda: [tmp_path])
    said = f"reading the code of the installed Python, {tmp_path}: tempera train FILE trains on your own pairs"
    end = f"tempera: no Python files under {tmp_path}"
    assert tempera("train", "--dry-run").err.splitlines()[-2:] == [said, end]
    assert tempera("train", "--output", tmp_path / "run").err.splitlines()[-2:] == [said, end]
    assert said not in tempera("train", "--dry-run", f"data.roots=[{tmp_path}]").err
