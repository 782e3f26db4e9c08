"""A server in a thread of the tests, on a free port."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

JSON = {"content-type": "application/json"}


class Running:
    """A running server, with a client of it."""

    def __init__(self, listener: Any, port: int) -> None:
        self.listener = listener
        self.app = listener.application
        self.port = port
        self.address = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.address, timeout=30)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)


Serving = Callable[..., Any]


@contextmanager
def serving(*folders: Path, host: str = "127.0.0.1", **options: Any) -> Iterator[Running]:
    """Serve runs in a thread until the block ends."""
    from tempera.server.application import Application
    from tempera.server.guard import Guard
    from tempera.server.listening import Listener, bound
    from tempera.server.shelf import Shelf

    every = options.pop("every", 0.05)
    started = threading.Event()
    with bound(host, 0) as listening:
        port = listening.getsockname()[1]
        names, token = options.pop("names", ()), options.pop("token", None)
        app = Application(Shelf(folders), Guard(host, port, names, token), **options)
        app.replacement.every = every
        listener = Listener(app, listening, started.set)
        thread = threading.Thread(target=listener.run, daemon=True)
        thread.start()
        assert started.wait(60)
        running = Running(listener, port)
        try:
            yield running
        finally:
            running.client.close()
            listener.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def start() -> Serving:
    return serving


@pytest.fixture(scope="module")
def served(tiny_run: Path) -> Iterator[Running]:
    """A server of one run on texts."""
    with serving(tiny_run) as running:
        yield running


@pytest.fixture
def copied(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to change."""
    shutil.copytree(tiny_run, tmp_path / "copied")
    return tmp_path / "copied"


@pytest.fixture(scope="session")
def other_run(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same kind with other vectors; look, do not touch."""
    from tests.conftest import made_once, small_options

    from tempera.run.train import train

    options = small_options(pairs_file)
    options["evaluation"]["bm25"] = True
    options["train"]["seed"] = 11
    return made_once(tmp_path_factory, "other", lambda path: train(options, path))


@pytest.fixture(scope="session")
def kept_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has kept columns, with a calibration; look, do not touch."""
    import json

    from tests.conftest import made_once, planted, small_options

    from tempera.finished.calibrate import calibrate
    from tempera.run.train import train

    def make(path: Path) -> None:
        rows = []
        for number, row in enumerate(planted(300, seed=3)):
            columns = {"lang": ("de", "en")[number % 2], "year": 2000 + number % 30}
            rows.append({**row, **columns})
        pairs = path.with_name("kept.jsonl")
        pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        options = small_options(pairs)
        options["data"]["metadata"] = ["lang", "year"]
        options["evaluation"]["bm25"] = True
        train(options, path)
        calibrate(path)

    return made_once(tmp_path_factory, "kept", make)
