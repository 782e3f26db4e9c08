"""What others may have left in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tempera.errors import DataError
from tempera.io.documents import parsed, read_json, read_json_lines
from tempera.io.untrusted import refuse_irregular, refuse_unsafe


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "model" / "vectors.npy"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    for refuses in (refuse_irregular, read_json, read_json_lines):
        with pytest.raises(DataError, match=r"vectors\.npy is not a regular file$"):
            refuses(pipe)
    with pytest.raises(DataError, match=r"vectors\.npy is not a regular file$"):
        refuse_unsafe(tmp_path)
    for path in (tmp_path, tmp_path / "none", tmp_path / "model" / "vectors.npy" / "x"):
        refuse_irregular(path)


def test_json_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"ä": 1}', encoding="utf-8")
    assert read_json(path) == {"ä": 1}
    path.write_text("1\n[2]\n")
    assert read_json_lines(path) == [1, [2]]
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed("[" * 100_000)
