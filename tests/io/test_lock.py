"""One process at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tempera.errors import OutputError
from tempera.io.lock import alone

HOLDER = """
import sys, time
from pathlib import Path
from tempera.io.lock import alone
with alone(Path(sys.argv[1]), "busy"):
    print("holds", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(path: Path, seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path, str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "holds\n"
    return process


def test_another_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = holder(path, 60)
    with pytest.raises(OutputError, match=r"^somebody is there$"), alone(path, "somebody is there"):
        pytest.fail("two hold it")
    process.kill()
    process.communicate()
    with alone(path, "somebody is there"):
        assert path.exists()
    assert not list(tmp_path.iterdir())


def test_who_is_patient_waits_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "lock"
    process = holder(path, 1)
    with caplog.at_level("INFO"), alone(path, "waiting for another process", patient=True):
        assert process.wait(timeout=10) == 0
    process.communicate()
    assert caplog.messages == ["waiting for another process"]


def test_a_file_of_somebody_else_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("packages")
    (tmp_path / "folder.lock").mkdir()
    for name in ("lock", "folder.lock"):
        with (
            pytest.raises(OutputError, match="holds something, so it is no lock"),
            alone(tmp_path / name, "busy"),
        ):
            pytest.fail("it is held")
    assert (tmp_path / "lock").read_text() == "packages" and (tmp_path / "folder.lock").is_dir()


def test_an_error_lets_go(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="inner"), alone(tmp_path / "a" / "lock", "busy"):
            raise ValueError("inner")
    assert not list((tmp_path / "a").iterdir())
