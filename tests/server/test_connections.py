"""Connections: what arrives after an early answer, and requests that ask for another protocol."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest

from tempera.server import bounds

QUERY = b'{"query": "kaban", "k": 1}'
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def head(path: str, length: int, *lines: str) -> bytes:
    """The headers of a POST with a body of some length."""
    every = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *lines]
    return "\r\n".join([*every, "", ""]).encode()


def one_answer(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the next answer."""
    text = b""
    while b"\r\n\r\n" not in text:
        part = connection.recv(65536)
        assert part, text
        text += part
    headers, _, body = text.partition(b"\r\n\r\n")
    (length,) = [
        int(line.split(b":")[1])
        for line in headers.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    while len(body) < length:
        body += connection.recv(65536)
    assert len(body) == length, body
    return int(headers.split()[1]), body


def opened(served: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=10)


@pytest.mark.parametrize("path", ["/nowhere", "/v1/models", "/v1/search"])  # 404, 405, 415
def test_a_body_after_its_answer_is_no_header(
    served: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempera.server import connections

    monkeypatch.setattr(connections, "SECONDS_TO_SEND", 0.5)
    body = b" " * (3 * bounds.HEADERS)
    with opened(served) as connection:
        connection.sendall(head(path, len(body)))
        assert one_answer(connection)[0] in (404, 405, 415)
        for start in range(0, len(body), 16384):
            connection.sendall(body[start : start + 16384])
            time.sleep(0.01)
        time.sleep(0.7)  # longer than headers may take
        connection.sendall(GET)
        assert one_answer(connection)[0] == 200
        connection.sendall(GET[:20])  # headers are still bounded
        assert one_answer(connection)[0] == 408
        assert connection.recv(1) == b""


def test_the_end_of_a_body_and_the_next_request_in_one_part(served: Any) -> None:
    body = b" " * (2 * bounds.HEADERS)
    with opened(served) as connection:
        connection.sendall(head("/nowhere", len(body)))
        assert one_answer(connection)[0] == 404
        connection.sendall(body + GET[:20])
        time.sleep(0.05)
        connection.sendall(GET[20:])
        assert one_answer(connection)[0] == 200


def test_a_body_after_its_answer_has_to_end(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tempera.server import connections

    monkeypatch.setattr(connections, "SECONDS_TO_SEND", 0.3)
    with opened(served) as connection:
        connection.sendall(head("/nowhere", 1000))
        assert one_answer(connection)[0] == 404
        connection.sendall(b" ")
        assert connection.recv(1) == b""  # closed, without another answer


@pytest.mark.parametrize("is_split", [False, True])
def test_a_request_for_http_2_is_answered_in_http_1(served: Any, is_split: bool) -> None:
    first = head(
        "/v1/search",
        len(QUERY),
        "Content-Type: application/json",
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
    )
    with opened(served) as connection:
        for _ in range(2):  # the connection goes on
            if is_split:
                connection.sendall(first[:70])
                time.sleep(0.05)
                connection.sendall(first[70:])
                time.sleep(0.05)
                connection.sendall(QUERY)
            else:
                connection.sendall(first + QUERY)
            status, body = one_answer(connection)
            assert status == 200 and len(json.loads(body)["results"][0]) == 1
        connection.sendall(
            GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
        )
        assert one_answer(connection)[0] == 200


def test_a_tunnel_is_refused(served: Any) -> None:
    with opened(served) as connection:
        connection.sendall(b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert 400 <= one_answer(connection)[0] < 500
    assert served.get("/healthz").status_code == 200
