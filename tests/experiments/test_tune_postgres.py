"""Four workers on one PostgreSQL, one killed in a trial: all trials end, none is lost, none is made
twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tempera.options import yaml_options as configuration

optuna = pytest.importorskip("optuna")
pytest.importorskip("psycopg")
TRIALS = 12


def program(name: str) -> str | None:
    """Where a program of PostgreSQL is; Debian keeps them off the path."""
    places = [
        os.environ.get("PATH", ""),
        *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)),
    ]
    return shutil.which(name, path=os.pathsep.join(places))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL with its own folder, on a free port."""
    initdb, postgres = program("initdb"), program("postgres")
    if initdb is None or postgres is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    folder = tmp_path_factory.mktemp("postgres")
    root = os.getuid() == 0  # as whom it refuses to run
    if root and (
        shutil.which("runuser") is None
        or subprocess.run(["id", "postgres"], capture_output=True).returncode
    ):
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres to run it as")
    before = ["runuser", "-u", "postgres", "--"] if root else []
    if root:
        shutil.chown(folder, "postgres")
        for above in folder.parents[:3]:
            above.chmod(above.stat().st_mode | 0o011)  # so that this user comes to its folder
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data, trust = str(folder / "data"), ["--auth=trust", "--username=tempera", "--no-sync"]
    subprocess.run([*before, initdb, "-D", data, *trust], check=True, capture_output=True, cwd="/")
    options = [
        "-p",
        str(port),
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        f"unix_socket_directories={folder}",
    ]
    with (folder / "messages.txt").open("w") as messages:
        process = subprocess.Popen(
            [*before, postgres, "-D", data, *options], stdout=messages, stderr=messages, cwd="/"
        )
        until(lambda: answers(port), 60)
        yield f"postgresql://tempera@127.0.0.1:{port}/postgres"
        for below in (
            psutil.Process(process.pid).children() if root else [psutil.Process(process.pid)]
        ):
            below.send_signal(signal.SIGINT)  # a fast shutdown
        process.wait(timeout=60)


def answers(port: int) -> bool:
    import psycopg

    try:
        psycopg.connect(f"postgresql://tempera@127.0.0.1:{port}/postgres").close()
    except psycopg.OperationalError:
        return False
    return True


def until(what: Callable[[], Any], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_four_workers_share_a_study_and_one_is_killed(
    server: str, pairs_file: Path, tmp_path: Path
) -> None:
    given = {
        "data": {"source": "pairs", "path": str(pairs_file)},
        "tower": {"dimensions": 16, "vocabulary": 300},
        "train": {"batch_size": 32, "max_steps": 12, "evaluations": 1},
        "evaluation": {"queries": 40, "validation": 0, "bm25": False},
    }
    (tmp_path / "config.yaml").write_text(configuration.dump(given))
    (tmp_path / "space.yaml").write_text(
        "objective.temperature: 0.02:2:log\ntrain.learning_rate: 1e-3:0.1:log\n"
    )
    shared = [
        "--space",
        "space.yaml",
        "--trials",
        str(TRIALS),
        "--storage",
        server,
        "--study",
        "four",
    ]
    command = [
        sys.executable,
        "-m",
        "tempera",
        "tune",
        "config.yaml",
        *shared,
        "--lost-after",
        "5",
        "--keep",
        "0",
        "--json",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    files = [(tmp_path / f"{name}.json").open("w") for name in "abcd"]
    workers = [
        subprocess.Popen(
            [*command, "--output", name],
            cwd=tmp_path,
            stdout=file,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        for name, file in zip("abcd", files, strict=True)
    ]
    victim = workers[0]
    until(
        lambda: list((tmp_path / "a" / "trials").glob("*/log.jsonl")) or victim.poll() is not None
    )
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert [worker.wait(timeout=240) for worker in workers] == [-signal.SIGKILL, 0, 0, 0]
    for file in files:
        file.close()
    study = optuna.load_study(study_name="four", storage=server)
    states = [trial.state.name for trial in study.trials]
    assert states.count("RUNNING") == states.count("WAITING") == 0
    done = [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]
    assert len(done) == TRIALS  # none lost, none too many
    assert len({json.dumps(trial.params) for trial in done}) == TRIALS  # none made twice
    lost = [trial for trial in study.trials if trial.state.name == "FAIL"]
    killed = [trial for trial in lost if trial.user_attrs.get("worker", "").endswith("/a")]
    assert len(killed) == 1 and killed[0].params in [
        trial.params for trial in done
    ]  # tried again by another
    assert all(
        trial.params == {} for trial in lost if trial is not killed[0]
    )  # asked for at the same moment, and dropped
    documents = [json.loads((tmp_path / f"{name}.json").read_text()) for name in "bcd"]
    assert all(len(document["trials"]) == TRIALS for document in documents)
    assert len({json.dumps(document["best"]) for document in documents}) == 1
