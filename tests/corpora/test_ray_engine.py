"""Ray schedules the shards of an encoding, and changes no byte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tempera.artifacts.encoded_corpus import encode
from tempera.errors import MissingLibrary

from ..conftest import Command
from .test_encoding import shards_in
from .test_interrupted import refused


def test_ray_is_named_where_it_is_missing(
    tiny_run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempera.io import require as module

    real = module.find_spec
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "ray" else real(name))
    with pytest.raises(
        MissingLibrary, match=r"--engine ray needs ray: pip install 'tempera\[ray\]'"
    ):
        encode(tiny_run, corpus, tmp_path / "out", engine="ray")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of Ray on this machine: a head and a worker, with a CPU each."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    try:
        yield
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ray_writes_the_bytes_of_one_process(
    cluster: None, tiny_run: Path, corpus: Path, tmp_path: Path, tempera: Command
) -> None:
    encode(tiny_run, corpus, tmp_path / "whole")
    encode(tiny_run, corpus, tmp_path / "ray", engine="ray", workers=2)
    assert shards_in(tmp_path / "ray") == shards_in(tmp_path / "whole")
    (tmp_path / "ray" / "records" / "part-0.json").unlink()
    (tmp_path / "ray" / "shards" / "part-1.parquet").unlink()
    encode(tiny_run, corpus, tmp_path / "ray", engine="ray")
    assert shards_in(tmp_path / "ray") == shards_in(tmp_path / "whole")
    # An error of a task is one line.
    (corpus / "zzz.jsonl").write_text('{"_id": 1, "text": 2}\n')
    refused(
        tempera("encode", tiny_run, corpus, "-o", tmp_path / "out", "--engine", "ray"),
        "column 'text' holds int64; expected texts",
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_task_of_a_killed_process_of_ray_is_done_again(
    cluster: None, tiny_run: Path, corpus: Path, tmp_path: Path
) -> None:
    encode(tiny_run, corpus, tmp_path / "whole")
    kill = (
        "import os, signal, sys, time, psutil\n"
        "for _ in range(600):\n"
        "    time.sleep(0.02)\n"
        "    for process in psutil.Process(os.getppid()).children(recursive=True):\n"
        "        if process.name().startswith('ray::MapWorker'):\n"
        "            os.kill(process.pid, signal.SIGKILL); sys.exit()\n"
    )
    killer = subprocess.Popen([sys.executable, "-c", kill])
    encode(tiny_run, corpus, tmp_path / "ray", engine="ray", workers=2)
    assert killer.wait() == 0
    assert shards_in(tmp_path / "ray") == shards_in(tmp_path / "whole")
