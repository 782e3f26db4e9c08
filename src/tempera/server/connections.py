"""A connection of HTTP that a slow or a greedy client cannot hold."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httptools
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


# Headers that ask for another protocol.
_OF_UPGRADE = (b"connection", b"upgrade", b"http2-settings")


class Connection(HttpToolsProtocol):
    """A connection whose headers are bounded in bytes and in time, and whose errors are JSON.

    A request may be answered before its body has arrived, as without a token. The rest of the body
    then counts as no header, and has as much time as headers have.

    A request that would rather speak another protocol, such as HTTP/2, is answered in HTTP/1.1.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unread = 0  # bytes of headers that have not ended
        self._slow: asyncio.TimerHandle | None = None
        self._in_headers = False  # of a request that has begun
        self._in_body = False  # of a request whose headers have ended
        self._is_upgrading = False  # the headers ask for another protocol

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
        self._unset_keepalive_if_required()
        was_in_body = self._in_body
        self._feed(data)
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._quicken()
            return
        if was_in_body and not self._in_body and not self._in_headers:
            # The body has ended after its answer: the next request may take its time.
            self._quicken()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
            return
        # The headers have not ended, or a body that is answered has not.
        if not was_in_body:
            self._unread += len(data)
        if self._unread > HEADERS:
            self._close(Refused(431, INVALID, f"the headers have more than {HEADERS:,} bytes"))
        elif self._slow is None:
            self._slow = self.loop.call_later(SECONDS_TO_SEND, self._close_slow)

    def _feed(self, data: bytes) -> None:
        """Parse a part of a request."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._is_upgrading = False
            self._feed_again(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _feed_again(self, rest: bytes) -> None:
        """Parse a request once more, without its wish for another protocol.

        The parser reads no body of such a request.
        """
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self.headers if name not in _OF_UPGRADE]
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def on_message_begin(self) -> None:
        """Note that headers begin."""
        self._in_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start to answer."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._is_upgrading = True
            return
        self._in_headers = False
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the body has ended."""
        if self._is_upgrading:
            return
        self._in_body = False
        super().on_message_complete()

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
        if self._in_body or not self._unread:
            self.transport.close()  # all is answered, or nothing was asked
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
