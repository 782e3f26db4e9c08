"""One process that listens: the socket, the start, signals, and the end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import FrameType

import uvicorn

from ..errors import ConfigError, OutputError, quantity
from ..io.console import logger
from ..io.signals import heard_signals
from .application import Application
from .bounds import SECONDS, SECONDS_IDLE
from .connections import Connection
from .guard import Guard, in_address, is_loopback
from .opened_run import OpenedRun
from .replacement import open_all
from .shelf import Shelf

_SPARE = 5  # seconds for the last answers to be sent


class Listener(uvicorn.Server):
    """Serve runs until a signal comes; a second signal ends the process at once.

    Args:
        app: answers the requests.
        listening: the bound socket.
        started: is called when all runs are open.
    """

    def __init__(
        self, app: Application, listening: socket.socket, started: Callable[[], None] | None = None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=SECONDS_IDLE,
                timeout_graceful_shutdown=int(SECONDS) + _SPARE,
                backlog=1024,
            )
        )
        self.application = app
        self.listening = listening
        self.when_started = started
        self.failure: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve; return after the last answer.

        Raises:
            TemperaError: a run does not open.
        """
        super().run(sockets=[self.listening])
        if self.failure is not None:
            raise self.failure

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and open the runs meanwhile."""
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.application.start(self.loop)
        Thread(target=self._open, name="tempera-open", daemon=True).start()

    def _open(self) -> None:
        """Open all runs, in a thread of its own."""
        assert self.loop is not None
        try:
            runs = open_all(self.application.shelf.folders)
        except BaseException as error:
            self.loop.call_soon_threadsafe(self._fail, error)
            return
        self.loop.call_soon_threadsafe(self._ready, runs)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self.should_exit = True

    def _ready(self, runs: dict[str, OpenedRun]) -> None:
        self.application.ready(runs)
        if self.when_started is not None:
            self.when_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new requests, answer those in progress, and end."""
        self.application.shelf.is_stopping = True
        self.application.replacement.stop()
        await super().shutdown(sockets)
        self.application.stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at the first signal, and end at the second."""

        def stop(number: int, _: FrameType | None) -> None:
            if self.should_exit:
                os._exit(128 + number)  # every file is written whole, so nothing can be half
            self.should_exit = True
            logger.info("stopping: the requests in progress are answered first")

        earlier = {number: signal.signal(number, stop) for number in heard_signals()}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address; port 0 takes any free port.

    Raises:
        ConfigError: no such address.
        OutputError: the port is in use, or not allowed.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError, OverflowError):
        raise ConfigError(f"--host {host}: no such address") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise OutputError(
            f"--port {port} of {host} is not free ({error.strerror}): stop what listens there, or give "
            "another --port"
        ) from None
    return listening


def serve(
    folders: Sequence[Path],
    host: str = "127.0.0.1",
    port: int = 8000,
    names: Sequence[str] = (),
    token: str | None = None,
    writable: bool = False,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve runs until a signal comes; see `tempera serve`.

    Args:
        folders: of the runs.
        host: address to listen on.
        port: 0 for any free port.
        names: further names of the server.
        token: that requests have to bear.
        writable: True if requests may add documents.
        started: is called with the server's address when all runs are open.

    Raises:
        TemperaError: a run does not open, or the address is not free.
    """
    shelf = Shelf(folders)
    listening = bound(host, port)
    with listening:
        number = listening.getsockname()[1]
        guard = Guard(host, number, names, token)
        address = f"http://{in_address(host)}:{number}"
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        app = Application(shelf, guard, writable)

        def ready() -> None:
            runs = ", ".join(_described(run) for run in shelf.runs.values())
            if not is_loopback(host):
                logger.info(
                    "connections are not encrypted: put a proxy that speaks TLS before this server"
                )
            logger.info(f"serving {runs} at {address}")
            if started is not None:
                started(address)

        Listener(app, listening, ready).run()


def _described(run: OpenedRun) -> str:
    """Return a run with its size, for the first line."""
    if run.recommends:
        return f"{run.name} ({quantity(run.documents, 'items')})"
    what = "words and vectors" if run.has_words else "vectors"
    return f"{run.name} ({quantity(run.documents, 'documents')}, {what})"
