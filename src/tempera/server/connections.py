"""A connection of HTTP that a slow or a greedy client cannot hold."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .bounds import CONNECTIONS, HEADERS, SECONDS_TO_SEND
from .refusals import BUSY, INVALID, SLOW, Refused

if TYPE_CHECKING:
    from asyncio import Transport

_REASONS = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}


class Connection(HttpToolsProtocol):
    """A connection whose headers are bounded in bytes and in time, and whose errors are JSON."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unread = 0  # bytes of headers that have not ended
        self._slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            self._close(Refused(503, BUSY, "the server has too many connections: try again"))
            return
        self._slow = self.loop.call_later(SECONDS_TO_SEND, self._close_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let a connection go."""
        self._quicken()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            if self._slow is not None:
                self._quicken()
            return
        # The headers have not ended.
        self._unread += len(data)
        if self._unread > HEADERS:
            self._close(Refused(431, INVALID, f"the headers have more than {HEADERS:,} bytes"))
        elif self._slow is None and not self.transport.is_closing():
            self._slow = self.loop.call_later(SECONDS_TO_SEND, self._close_slow)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._close(Refused(400, INVALID, "the request is not HTTP"))

    def _quicken(self) -> None:
        """Stop the clock of the headers."""
        self._unread = 0
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _close_slow(self) -> None:
        self._slow = None
        if self.cycle is not None and not self.cycle.response_complete:
            return
        if not self._unread:
            self.transport.close()  # nothing was asked
            return
        line = f"the headers did not arrive within {SECONDS_TO_SEND:g} seconds"
        self._close(Refused(408, SLOW, line))

    def _close(self, refused: Refused) -> None:
        """Answer by an error, and close the connection."""
        if self.transport.is_closing():
            return
        body = refused.body()
        reason = _REASONS[refused.status]
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (refused.status, reason, len(body), body)
        )
        self.transport.close()
