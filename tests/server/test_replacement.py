"""A run that is replaced on disk is taken over without a lost request; one that does not open is
refused, and the old one goes on."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tempera import Run

BODY = {"query": "kaban locel", "k": 3, "hybrid": True}
TEXT = {"input": "kaban locel"}


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def swap(folder: Path, new: Path) -> None:
    """Put a copy of a run in the place of another, as one process would that publishes runs."""
    staged = folder.with_name("staged")
    old = folder.with_name("old")
    shutil.copytree(new, staged)
    folder.rename(old)
    staged.rename(folder)
    shutil.rmtree(old)


def count(server: Any, name: str) -> int:
    """A counter of the only run."""
    for line in server.get("/metrics").text.splitlines():
        if line.startswith(f"{name}{{"):
            return int(float(line.rpartition(" ")[2]))
    raise AssertionError(name)


def answers_of(folder: Path) -> tuple[list[str], list[float]]:
    """The ids of hits and the vector that a run answers."""
    run = Run(folder)
    hits = run.search(BODY["query"], 3, hybrid=True)
    return [hit.id for hit in hits], run.encode([TEXT["input"]])[0].tolist()


def replace_under_load(
    start: Any, copied: Path, tiny_run: Path, other_run: Path, times: int, clients: int
) -> int:
    """Replace a run by another and back while clients ask; return the number of their requests."""
    known = [answers_of(tiny_run), answers_of(other_run)]
    assert known[0] != known[1]
    faults: list[str] = []
    asked = [0] * clients
    done = threading.Event()

    def ask(number: int, address: str) -> None:
        with httpx.Client(base_url=address, timeout=30) as client:
            while not done.is_set():
                hits = client.post("/v1/search", json=BODY)
                vector = client.post("/v1/embeddings", json=TEXT)
                asked[number] += 2
                if hits.status_code != 200 or vector.status_code != 200:
                    faults.append(hits.text + vector.text)
                    continue
                ids = [hit["id"] for hit in hits.json()["results"][0]]
                if ids not in [each[0] for each in known]:
                    faults.append(f"hits of neither run: {ids}")
                floats = vector.json()["data"][0]["embedding"]
                if not any(
                    max(abs(a - b) for a, b in zip(floats, each[1])) < 1e-6 for each in known
                ):
                    faults.append("a vector of neither run")

    with start(copied) as server:
        threads = [
            threading.Thread(target=ask, args=(number, server.address)) for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        for turn in range(1, times + 1):
            swap(copied, (other_run, tiny_run)[turn % 2 == 0])
            wait_for(lambda: count(server, "tempera_run_replaced_total") == turn)  # noqa: B023
            now = server.post("/v1/embeddings", TEXT).json()["data"][0]["embedding"]
            assert now == pytest.approx(known[turn % 2][1], abs=1e-6)
        done.set()
        for thread in threads:
            thread.join(30)
        assert count(server, "tempera_run_refused_total") == 0
    assert not faults, faults[:3]
    assert min(asked) > 0
    return sum(asked)


def test_a_run_is_replaced_under_load(
    start: Any, copied: Path, tiny_run: Path, other_run: Path
) -> None:
    replace_under_load(start, copied, tiny_run, other_run, times=4, clients=3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_is_replaced_two_hundred_times(
    start: Any, copied: Path, tiny_run: Path, other_run: Path
) -> None:
    replace_under_load(start, copied, tiny_run, other_run, times=200, clients=8)


def test_a_damaged_run_is_refused_once_and_the_old_one_goes_on(
    start: Any, copied: Path, other_run: Path, caplog: Any
) -> None:
    with start(copied) as server:
        before = server.post("/v1/search", BODY).json()
        bad = copied.with_name("bad")
        shutil.copytree(other_run, bad)
        vectors = (bad / "index" / "vectors.npy").read_bytes()
        (bad / "index" / "vectors.npy").write_bytes(vectors[:-4] + b"\0\0\1\0")
        swap(copied, bad)
        wait_for(lambda: count(server, "tempera_run_refused_total") == 1)
        assert any("refused" in line and "damaged" in line for line in caplog.messages)
        time.sleep(0.3)
        assert count(server, "tempera_run_refused_total") == 1  # once for each state
        assert server.post("/v1/search", BODY).json() == before
        assert server.get("/readyz").status_code == 200
        swap(copied, other_run)
        wait_for(lambda: count(server, "tempera_run_replaced_total") == 1)
        assert server.post("/v1/search", BODY).json() != before


def test_a_run_that_is_copied_file_by_file_is_taken_over_at_its_end(
    start: Any, copied: Path, tiny_run: Path, other_run: Path
) -> None:
    known = [answers_of(tiny_run)[0], answers_of(other_run)[0]]
    with start(copied) as server:
        for path in sorted(other_run.rglob("*")):
            if path.is_file():
                # A new file under the old name, as cp --remove-destination and rsync write it.
                new = copied / path.relative_to(other_run)
                new.with_name("new.partial").write_bytes(path.read_bytes())
                new.with_name("new.partial").replace(new)
                time.sleep(0.03)
                hits = server.post("/v1/search", BODY).json()["results"][0]
                assert [hit["id"] for hit in hits] in known
        wait_for(lambda: count(server, "tempera_run_replaced_total") >= 1)
        hits = server.post("/v1/search", BODY).json()["results"][0]
        assert [hit["id"] for hit in hits] == known[1]


def test_a_run_that_vanishes_is_waited_for(start: Any, copied: Path, other_run: Path) -> None:
    with start(copied) as server:
        before = server.post("/v1/search", BODY).json()
        shutil.rmtree(copied)
        time.sleep(0.3)
        assert server.post("/v1/search", BODY).json() == before
        assert server.post("/v1/search", {"query": "zz qq", "k": 2}).status_code == 200
        assert count(server, "tempera_run_refused_total") == 0
        shutil.copytree(other_run, copied.with_name("staged"))
        copied.with_name("staged").rename(copied)
        wait_for(lambda: count(server, "tempera_run_replaced_total") == 1)
        assert server.post("/v1/search", BODY).json() != before
