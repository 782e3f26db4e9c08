"""A server that is asked for more than it can: it refuses what has no room, answers what it accepted,
and keeps its memory."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.test_process import process

_TEXTS = [f"ka{letter}an lo{letter}el" for letter in "abcdefghijklmnop"]


def memory(number: int) -> int:
    """Resident bytes of a process."""
    fields = Path(f"/proc/{number}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def ask(address: str, end: float, statuses: Counter[int], faults: list[str]) -> None:
    """Ask in turns for hits, for vectors and for many vectors, and compare what can be."""
    with httpx.Client(base_url=address, timeout=60) as client:
        turn = 0
        while time.monotonic() < end:
            turn += 1
            path, body, count = (
                ("/v1/search", {"query": _TEXTS[turn % 16], "k": 3, "hybrid": "words"}, 1),
                ("/v1/embeddings", {"input": _TEXTS}, 16),
                ("/v1/search", {"query": _TEXTS[:8], "k": 100, "hybrid": True}, 8),
                ("/v1/embeddings", {"input": _TEXTS * 128}, 2048),
            )[turn % 4]
            answer = client.post(path, json=body)
            statuses[answer.status_code] += 1
            if answer.status_code == 200:
                document = answer.json()
                if len(document.get("results", document.get("data", []))) != count:
                    faults.append(f"{path}: {answer.text[:200]}")
            elif answer.status_code != 429 or answer.headers.get("retry-after") != "1":
                faults.append(f"{path}: {answer.status_code} {answer.text[:200]}")


def overload(run: Path, seconds: float, clients: int) -> None:
    """Ask a server by many clients who wait for nothing but their answers."""
    with process(run) as server:
        statuses: Counter[int] = Counter()
        faults: list[str] = []
        sizes = []
        for part in (0.3, 1.0):  # the memory after the first part is that of a warm server
            end = time.monotonic() + seconds * part
            threads = [
                threading.Thread(target=ask, args=(server.address, end, statuses, faults))
                for _ in range(clients)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            sizes.append(memory(server.popen.pid))
        metrics = server.client.get("/metrics").text.splitlines()
        measures = dict(line.rsplit(" ", 1) for line in metrics if not line.startswith("#"))
        assert not faults, faults[:3]
        assert statuses[200] > 0
        assert float(measures["tempera_busy_total"]) == statuses[429]
        assert float(measures["tempera_queue"]) == 0
        assert sizes[1] < 1.25 * sizes[0] + (32 << 20), sizes
        server.popen.terminate()
        assert server.ended()[0] == 0


@pytest.mark.long
def test_more_clients_than_it_can_answer(tiny_run: Path) -> None:
    overload(tiny_run, seconds=4, clients=12)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_minutes_of_overload(tiny_run: Path) -> None:
    overload(tiny_run, seconds=460, clients=40)


def test_a_full_queue_is_told_over_http(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tempera.server import application, joint_work

    before = served.get("/metrics").text
    monkeypatch.setattr(joint_work, "WAITING", 0)
    body = {"query": ["kaban"] * 20, "k": 3}  # too many for the loop of the server
    answer = served.post("/v1/search", body)
    assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["type"] == "rate_limit_error"
    monkeypatch.undo()
    assert served.post("/v1/search", body).status_code == 200
    monkeypatch.setattr(application, "REQUESTS", 0)
    assert served.post("/v1/search", body).status_code == 429
    monkeypatch.undo()

    def busy(text: str) -> float:
        (line,) = [line for line in text.splitlines() if line.startswith("tempera_busy_total ")]
        return float(line.rpartition(" ")[2])

    assert busy(served.get("/metrics").text) == busy(before) + 2
