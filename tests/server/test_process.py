"""`tempera serve` as a process: its start, its signals, its end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.test_guard import TOKEN
from tests.test_imports import UNNEEDED, loaded

LINE = re.compile(r"serving (.*) at (http://\S+)$")


class Process:
    """A server in a process of its own."""

    def __init__(self, *arguments: Any, python: tuple[str, ...] = (), **environment: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *python, "-m", "tempera", "serve", *map(str, arguments)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment},
        )
        self.lines: list[str] = []
        self.address = ""
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.lines.append(line.rstrip("\n"))
            if match := LINE.match(self.lines[-1]):
                self.address = match[2]
                break
        self.client = httpx.Client(base_url=self.address, timeout=60)

    def post(self, path: str, body: Any) -> Any:
        return self.client.post(path, json=body)

    def ended(self) -> tuple[int, str]:
        """The exit code, and what was written since the start."""
        self.client.close()
        _, err = self.popen.communicate(timeout=60)
        return self.popen.returncode, err


@contextmanager
def process(*arguments: Any, **options: Any) -> Iterator[Process]:
    server = Process(*arguments, "--port", "0", **options)
    try:
        yield server
    finally:
        server.popen.kill()
        server.popen.wait()


def test_a_static_run_is_served_without_torch(tiny_run: Path) -> None:
    with process(tiny_run, python=("-X", "importtime")) as server:
        assert server.post("/v1/search", {"query": "kaban", "k": 2}).status_code == 200
        assert server.post("/v1/search", {"query": "kaban", "hybrid": True}).status_code == 200
        assert server.post("/v1/embeddings", {"input": ["kaban"]}).status_code == 200
        assert server.client.get("/v1/models").status_code == 200
        assert server.client.get("/metrics").status_code == 200
        server.popen.terminate()
        code, err = server.ended()
    assert code == 0
    lines = [*server.lines, *err.splitlines()]
    seen = loaded("\n".join(lines))
    assert {"numpy", "tokenizers", "uvicorn"} <= seen
    assert sorted(seen & {*UNNEEDED, "fastapi"}) == []


@pytest.mark.long
def test_the_first_line_and_the_last(tiny_run: Path) -> None:
    with process(tiny_run) as server:
        assert server.lines[-1].startswith("serving tiny (")
        assert "documents, words and vectors) at http://127.0.0.1:" in server.lines[-1]
        assert len(server.lines) == 1
        server.popen.send_signal(signal.SIGINT)
        code, err = server.ended()
    assert code == 0
    assert err == "stopping: the requests in progress are answered first\n"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_progress_are_answered_before_the_end(
    tiny_run: Path, number: signal.Signals
) -> None:
    with process(tiny_run) as server:
        body = json.dumps({"query": "kaban", "k": 2}).encode()
        head = (
            f"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        port = int(server.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(head + body[:5])
            time.sleep(0.3)
            server.popen.send_signal(number)
            time.sleep(0.5)
            with pytest.raises(ConnectionRefusedError):  # no new connection
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
            connection.sendall(body[5:])
            answer = b""
            while part := connection.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200 ") and b"connection: close" in answer
        assert server.ended()[0] == 0


@pytest.mark.long
def test_a_second_signal_ends_at_once(tiny_run: Path) -> None:
    with process(tiny_run) as server:
        port = int(server.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(
                b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 30\r\n\r\n{"
            )
            time.sleep(0.3)
            server.popen.terminate()
            time.sleep(0.5)
            assert server.popen.poll() is None
            server.popen.terminate()
            assert server.popen.wait(5) == 143


@pytest.mark.long
def test_after_a_kill_it_answers_as_before(tiny_run: Path) -> None:
    answers = []
    for _ in range(2):
        with process(tiny_run) as server:
            answers.append(server.post("/v1/search", {"query": "kaban", "hybrid": True}).json())
            server.popen.kill()
            assert server.popen.wait(10) == -signal.SIGKILL
    assert answers[0] == answers[1]


@pytest.mark.long
def test_a_token_of_the_environment_or_of_a_file(tiny_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    for more in (["--token-file", file], []):
        environment = {} if more else {"TEMPERA_TOKEN": TOKEN}
        with process(tiny_run, "--host", "0.0.0.0", *more, **environment) as server:
            address = server.address.replace("0.0.0.0", "127.0.0.1")
            bearer = {"authorization": f"Bearer {TOKEN}"}
            assert httpx.get(f"{address}/v1/models").status_code == 401
            assert httpx.get(f"{address}/v1/models", headers=bearer).status_code == 200
            assert "TLS" in server.lines[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{run}", "--host", "0.0.0.0"], "needs a token"),
        (["{run}", "{run}"], "2 of the runs are named 'tiny'"),
        (["{run}", "nowhere"], "no such run: nowhere"),
        (["{run}", "--token-file", "nowhere"], "cannot be read"),
        (["{run}", "--allow-host", "http://a"], "no host"),
        (["{run}", "--host", "no such host"], "no such address"),
        (["{run}/model"], "is not a finished run"),
        (["{bad}"], "damaged"),
        (["{run}", "{bad}"], "damaged"),
    ],
)
def test_a_wrong_start_is_one_line(
    tempera: Any, tiny_run: Path, copied: Path, arguments: list[str], says: str
) -> None:
    bad = copied.rename(copied.with_name("bad"))
    (bad / "index" / "vectors.npy").write_bytes(b"nonsense")
    given = [each.format(run=tiny_run, bad=bad) for each in arguments]
    if "--host" not in given:
        given += ["--port", "0"]
    answer = tempera("serve", *given)
    assert answer.code == 2 and not answer.out
    (line,) = answer.err.splitlines()
    assert line.startswith("tempera: ") and says in line


def test_a_port_in_use_is_one_line(tempera: Any, tiny_run: Path, served: Any) -> None:
    answer = tempera("serve", tiny_run, "--port", served.port)
    assert answer.code == 2
    assert "is not free" in answer.err and "another --port" in answer.err


def test_the_name_of_a_run_is_that_of_its_folder(
    tiny_run: Path, other_run: Path, copied: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied / "model")
    with start(Path(".."), other_run) as server:
        models = server.get("/v1/models").json()["data"]
        assert [each["id"] for each in models] == ["copied", "other"]
        assert server.post("/v1/embeddings", {"input": "kaban"}).json()["model"] == "copied"
        answer = server.post("/v1/embeddings", {"input": "kaban", "model": "other"}).json()
        assert answer["model"] == "other"
        answer = server.post("/v1/embeddings", {"input": "kaban", "model": "third"})
        assert answer.status_code == 404
        assert answer.json()["error"]["message"].endswith("the models are: copied, other")


def test_probes_before_the_runs_are_open(
    tiny_run: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempera.server import listening

    gate = threading.Event()
    open_all = listening.open_all
    monkeypatch.setattr(
        listening, "open_all", lambda folders: (gate.wait(20), open_all(folders))[1]
    )
    seen = {}

    def probe(port: int) -> None:
        address = f"http://127.0.0.1:{port}"
        for path in ("/healthz", "/readyz", "/v1/models"):
            seen[path] = httpx.get(address + path).status_code
        body = {"query": "kaban"}
        answer = httpx.post(f"{address}/v1/search", json=body)
        seen["/v1/search"] = answer.status_code, answer.headers["retry-after"]
        gate.set()

    bound = listening.bound

    def noted(host: str, port: int) -> socket.socket:
        listener = bound(host, port)
        threading.Thread(target=probe, args=(listener.getsockname()[1],)).start()
        return listener

    monkeypatch.setattr(listening, "bound", noted)
    with start(tiny_run) as server:
        assert server.get("/readyz").status_code == 200
    assert seen == {"/healthz": 200, "/readyz": 503, "/v1/models": 503, "/v1/search": (503, "1")}


def test_a_run_may_lie_behind_a_link(
    tiny_run: Path, other_run: Path, tmp_path: Path, start: Any
) -> None:
    link = tmp_path / "current"
    link.symlink_to(tiny_run)
    with start(link) as server:
        before = server.post("/v1/embeddings", {"input": "kaban"}).json()
        new = tmp_path / "new"
        new.symlink_to(shutil.copytree(other_run, tmp_path / "next"))
        new.replace(link)
        end = time.monotonic() + 30
        while server.post("/v1/embeddings", {"input": "kaban"}).json() == before:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert server.get("/v1/models").json()["data"][0]["id"] == "current"
