"""Bodies that do not fit: each is a 4xx with one line that names the field, and nothing else
happens."""

from __future__ import annotations

import json
import random
import socket
import time
from typing import Any

import pytest

from tempera.server import bounds

JSON = {"content-type": "application/json"}


def send(served: Any, content: bytes | str, path: str = "/v1/search") -> Any:
    return served.client.post(path, content=content, headers=JSON)


def refused(answer: Any, *says: str) -> None:
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:300])
    error = answer.json()["error"]
    assert set(error) == {"message", "type"}
    assert "\n" not in error["message"] and len(error["message"]) < 300, error
    assert "tempera" not in error["message"] and "pydantic" not in error["message"]
    for text in says:
        assert text in error["message"], error


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"kaban"', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"query": "kaban"} x', "not JSON"),
        (b'{"query": "kab\xff"}', "UTF-8"),
        (b'\xef\xbb\xbf{"query": "kaban"}', "not JSON"),
        (b'{"query": "kab\xed\xa0\x80"}', "UTF-8"),  # a surrogate in bytes
        (b'{"query": "kab\\ud800"}', "half a character"),
        (b'{"\\ud800": 1, "query": "kaban"}', "half a character"),
        (b'{"query": "kab\\u0000an"}', "query: expected a text with words, without"),
        (b'{"query": "kaban", "k": NaN}', "NaN"),
        (b'{"query": "kaban", "k": Infinity}', "Infinity"),
        (b'{"query": "kaban", "threshold": -Infinity}', "-Infinity"),
        (b'{"query": "kaban", "k": 1, "k": 2}', "k stands twice"),
        (b'{"query": "kaban", "\\u006b": 1, "k": 2}', "k stands twice"),
        (b'{"query": ' + b"[" * 100_000 + b"}", "nested too deeply"),
        (b'{"query": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "nested too deeply"),
        (b'{"query": "kaban", "k": ' + b"9" * 6000 + b"}", "not JSON"),
        (b'{"query": "kaban", "k": 99999999999999999999999}', "k: "),
        (b'{"query": "kaban", "k": 1e400}', "k: "),
        (b"{}", "query: missing"),
        (b'{"query": ""}', "query: expected a text with words"),
        (b'{"query": " \\n "}', "query: expected a text with words"),
        (b'{"query": []}', "query: "),
        (b'{"query": ["kaban", 3]}', "query[1]: "),
        (b'{"query": ["kaban", ""]}', "query[1]: expected a text with words"),
        (b'{"query": [["kaban"]]}', "query[0]: "),
        (b'{"query": null}', "query: expected a text or a list"),
        (b'{"query": {"a": 1}}', "query: expected a text or a list"),
        (b'{"query": 7}', "query: expected a text or a list"),
        (b'{"query": "kaban", "k": 0}', "k: "),
        (b'{"query": "kaban", "k": 1001}', "k: "),
        (b'{"query": "kaban", "k": "3"}', "k: "),
        (b'{"query": "kaban", "k": 3.0}', "k: "),
        (b'{"query": "kaban", "k": true}', "k: "),
        (b'{"query": "kaban", "k": null}', "k: "),
        (b'{"query": "kaban", "threshold": 1.5}', "threshold: "),
        (b'{"query": "kaban", "threshold": 0.5}', "threshold: "),  # the run is not calibrated
        (b'{"query": "kaban", "hybrid": 1}', "hybrid: "),
        (b'{"query": "kaban", "hybrid": "yes"}', "hybrid: "),
        (b'{"query": "kaban", "model": 3}', "model: "),
        (b'{"query": "kaban", "model": "../tiny"}', "no such model"),
        (b'{"query": "kaban", "model": ""}', "no such model"),
        (b'{"query": "kaban", "topk": 3}', "topk: no such field; known: query, k, "),
        (b'{"query": "kaban", "' + b"x" * 5000 + b'": 3}', "no such field"),
        (b'{"query": "kaban", "a\\nb\\u001b[31m": 3}', "a b\\x1b[31m: no such field"),
    ],
)
def test_a_body_that_does_not_fit_is_one_line(served: Any, content: bytes, says: str) -> None:
    refused(send(served, content), says)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input": [1, 2, 3]}, "input[0]: "),
        ({"input": [[1, 2]]}, "input[0]: "),
        ({"input": "kaban", "encoding_format": "hex"}, "encoding_format: "),
        ({"input": "kaban", "dimensions": 0}, "dimensions: "),
        ({"input": "kaban", "dimensions": "5"}, "dimensions: "),
        ({"input": ["kaban"] * (bounds.TEXTS + 1)}, "input: "),
        ({"input": "k" * (bounds.LETTERS + 1)}, "input: "),
        ({"input": ["kaban", "k" * (bounds.LETTERS + 1)]}, "input[1]: "),
    ],
)
def test_embeddings_that_do_not_fit_are_one_line(
    served: Any, body: dict[str, Any], says: str
) -> None:
    refused(served.post("/v1/embeddings", body), says)


def test_the_largest_requests_are_answered(served: Any) -> None:
    answer = served.post("/v1/embeddings", {"input": ["kaban"] * bounds.TEXTS})
    assert answer.status_code == 200 and len(answer.json()["data"]) == bounds.TEXTS
    assert served.post("/v1/embeddings", {"input": "k" * bounds.LETTERS}).status_code == 200
    assert served.post("/v1/search", {"query": ["kaban"] * 10, "k": 1000}).status_code == 200
    refused(served.post("/v1/search", {"query": ["kaban"] * 11, "k": 1000}), "k: ")


def test_a_large_body_is_refused(served: Any) -> None:
    content = json.dumps({"query": "k" * bounds.BODY})
    answer = send(served, content)
    assert answer.status_code == 413
    refused(answer, "bytes")

    def parts() -> Any:
        for _ in range(bounds.BODY // 65536 + 2):
            yield b" " * 65536

    answer = served.client.post("/v1/search", content=parts(), headers=JSON)  # chunked
    assert answer.status_code == 413
    assert served.app._bytes == 0 and served.app._requests == 0


def test_a_text_run_is_no_recommender(served: Any) -> None:
    refused(served.post("/v1/recommend", {"user": "7"}), "is a run on texts")
    refused(served.get("/v1/users?prefix=a"), "is a run on texts")


def mutated(generator: random.Random) -> bytes:
    """A valid body with some bytes changed, left out, repeated or put in."""
    body = {"query": ["kaban", "locel zugar"], "k": 3, "hybrid": False, "model": None}
    content = bytearray(json.dumps(body).encode())
    for _ in range(generator.randint(1, 4)):
        at = generator.randrange(len(content))
        kind = generator.randrange(4)
        if kind == 0:
            content[at] = generator.randrange(256)
        elif kind == 1:
            del content[at : at + generator.randint(1, 9)]
        elif kind == 2:
            content[at:at] = content[at : at + generator.randint(1, 20)]
        else:
            tokens = [
                b"NaN",
                b"1e999",
                b'"',
                b"{",
                b"[",
                b"\x00",
                b"\\ud83d",
                b'"k":',
                b"-0",
                b"null",
            ]
            content[at:at] = generator.choice(tokens)
        if not content:
            return b"{"
    return bytes(content)


def fits(content: bytes) -> bool:
    """Whether a body is one, by the standard library and plain rules."""
    try:
        pairs: list[Any] = []

        def noted(each: list[Any]) -> dict[str, Any]:
            pairs.append(each)
            return dict(each)

        value = json.loads(
            content.decode(), object_pairs_hook=noted, parse_constant=lambda _: 1 / 0
        )
    except (ValueError, ZeroDivisionError, RecursionError):
        return False
    if not isinstance(value, dict) or any(len(dict(each)) < len(each) for each in pairs):
        return False
    if not set(value) <= {"query", "k", "threshold", "where", "hybrid", "model", "explain"}:
        return False
    queries = value.get("query")
    queries = [queries] if isinstance(queries, str) else queries
    if not isinstance(queries, list) or not queries:
        return False
    for query in queries:
        if not isinstance(query, str) or "\0" in query or not query.strip():
            return False
        try:
            query.encode()
        except UnicodeEncodeError:
            return False
    k = value.get("k", 10)
    if type(k) is not int or not 1 <= k <= 1000:
        return False
    return value.get("hybrid") in (None, False, True) and value.get("model") in (None, "tiny")


def campaign(served: Any, count: int, seed: int) -> None:
    generator = random.Random(seed)
    outcomes = {True: 0, False: 0}
    for _ in range(count):
        content = mutated(generator)
        answer = send(served, content)
        outcomes[fits(content)] += 1
        if fits(content):
            assert answer.status_code == 200, content
        else:
            refused(answer)
    assert min(outcomes.values()) > 0
    assert served.get("/healthz").status_code == 200


def test_changed_bodies(served: Any) -> None:
    campaign(served, 200, 1)


@pytest.mark.slow
def test_two_thousand_changed_bodies(served: Any) -> None:
    campaign(served, 2500, 2)


def slowly(served: Any, *parts: bytes, pause: float = 0.0) -> bytes:
    """The answer to a request whose parts are sent with pauses, and which then ends no more."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def test_a_slow_client_is_let_go(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tempera.server import application, connections

    monkeypatch.setattr(connections, "SECONDS_TO_SEND", 0.3)
    monkeypatch.setattr(application, "SECONDS_TO_SEND", 0.3)
    assert slowly(served) == b""  # nothing is sent
    assert slowly(served, b"POST /v1/search HTTP/1.1\r\nHost:").startswith(b"HTTP/1.1 408 ")
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = slowly(served, head + b"Content-Length: 20\r\n\r\n{", pause=0.1)
    assert answer.startswith(b"HTTP/1.1 408 ")
    # The second request of a connection is no slower.
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = slowly(served, whole, b"GET /healthz HT", pause=0.1)
    assert answer.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 408 " in answer
    assert served.app._requests == 0


def test_headers_without_their_body_are_answered(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempera.server import application

    monkeypatch.setattr(application, "SECONDS_TO_SEND", 0.3)
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = slowly(served, head + b"Content-Length: 20\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 408 ") and b"connection: close" in answer.lower()
    assert served.app._requests == 0 and served.app._bytes == 0


def test_a_body_that_finds_no_room_is_refused(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tempera.server import application

    monkeypatch.setattr(application, "BODIES", 100_000)

    def parts() -> Any:
        for _ in range(10):
            yield b" " * 50_000

    answer = served.client.post("/v1/search", content=parts(), headers=JSON)
    assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
    assert served.app._bytes == 0
    assert served.post("/v1/search", {"query": "kaban"}).status_code == 200


def test_a_repeated_name_is_found_soon() -> None:
    from tempera.server.bodies import SearchBody, read_body
    from tempera.server.refusals import Refused

    names = [f'"n{number}": 1' for number in range(50_000)]
    content = ("{" + ", ".join([*names, names[-1]]) + "}").encode()
    began = time.process_time()
    with pytest.raises(Refused, match="n49999 stands twice"):
        read_body(content, SearchBody)
    assert time.process_time() - began < 5
