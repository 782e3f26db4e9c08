"""Who is answered: names of the server, origins, tokens; and that an error says nothing of the machine."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tempera.errors import ConfigError, DataError, OutputError
from tempera.server.guard import Guard
from tempera.server.refusals import TYPES, message_without_paths

TOKEN = "0123456789abcdef0123"
QUERY = {"query": "kaban", "k": 1}


def refused(answer: Any, status: int, *says: str) -> str:
    """The one line of a refusal, which must have every property of one."""
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert list(document) == ["error"] and set(document["error"]) == {"message", "type"}
    message: str = document["error"]["message"]
    assert document["error"]["type"] in TYPES
    assert "\n" not in message and len(message) < 300
    assert "Traceback" not in message and "/tmp" not in message and "/work" not in message
    for text in says:
        assert text in message, message
    return message


@pytest.mark.parametrize("host", ["127.0.0.1:{}", "localhost:{}", "[::1]:{}", "127.0.0.1"])
def test_the_names_of_this_machine_are_answered(served: Any, host: str) -> None:
    headers = {"host": host.format(served.port)}
    assert served.post("/v1/search", QUERY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{}", "127.0.0.1:1", "127.0.0.1.evil.example", "", "x" * 500],
)
def test_another_name_is_refused(served: Any, host: str) -> None:
    headers = {"host": host.format(served.port)}
    refused(served.post("/v1/search", QUERY, headers=headers), 403, "--allow-host")
    refused(served.get("/", headers=headers), 403)
    refused(served.get("/nowhere", headers=headers), 403)
    assert served.get("/healthz", headers=headers).status_code == 200  # of a probe


def test_a_page_of_another_site_is_refused(served: Any) -> None:
    own = f"http://127.0.0.1:{served.port}"
    assert served.post("/v1/search", QUERY, headers={"origin": own}).status_code == 200
    for origin in (
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        "http://localhost",  # another application, on port 80
        "https://127.0.0.1",
        f"ftp://127.0.0.1:{served.port}",
    ):
        answer = served.post("/v1/search", QUERY, headers={"origin": origin})
        refused(answer, 403, "another site")
        assert "access-control-allow-origin" not in answer.headers


def test_a_further_name_is_answered(tiny_run: Path, start: Any) -> None:
    with start(tiny_run, names=["search.example"]) as server:
        headers = {"host": "search.example", "origin": "https://search.example"}
        assert server.post("/v1/search", QUERY, headers=headers).status_code == 200
        refused(server.get("/v1/models", headers={"host": "other.example"}), 403)


def test_an_origin_leaves_out_the_usual_port_alone() -> None:
    from tempera.server.refusals import Refused

    usual = Guard("127.0.0.1", 80)
    usual.refuse_host({b"host": b"localhost", b"origin": b"http://localhost"})
    allowed = Guard("127.0.0.1", 8000, ["localhost"])
    allowed.refuse_host({b"host": b"localhost", b"origin": b"http://localhost"})
    other = Guard("127.0.0.1", 8000)
    other.refuse_host({b"host": b"localhost"})
    other.refuse_host({b"host": b"localhost:8000", b"origin": b"http://localhost:8000"})
    for guard, origin in ((usual, b"https://localhost"), (other, b"http://localhost")):
        with pytest.raises(Refused, match="another site"):
            guard.refuse_host({b"host": b"localhost", b"origin": origin})


def test_a_post_has_to_be_json(served: Any) -> None:
    content = json.dumps(QUERY)
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        answer = served.client.post("/v1/search", content=content, headers={"content-type": kind})
        assert answer.status_code == 200, kind
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=latin-1",
        "",
    ):
        answer = served.client.post("/v1/search", content=content, headers={"content-type": kind})
        refused(answer, 415, "application/json")
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    refused(served.client.post("/v1/search", content=content, headers=headers), 415)


def test_with_a_token_only_probes_and_the_page_are_open(tiny_run: Path, start: Any) -> None:
    with start(tiny_run, token=TOKEN) as server:
        assert server.get("/healthz").status_code == 200
        assert server.get("/readyz").status_code == 200
        assert server.get("/").status_code in (200, 404)
        good = {"authorization": f"Bearer {TOKEN}"}
        for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/users"):
            refused(server.get(path), 401)
        assert server.get("/v1/models", headers=good).status_code == 200
        for bad in (
            "",
            f"Bearer {TOKEN[:-1]}",
            f"Bearer {TOKEN}x",
            TOKEN,
            f"Basic {TOKEN}",
            "Bearer é",
        ):
            headers = [(b"authorization", bad.encode())]
            answer = server.post("/v1/search", QUERY, headers=headers)
            refused(answer, 401, "Bearer TOKEN")
            assert answer.headers["www-authenticate"] == "Bearer"
        assert server.post("/v1/search", QUERY, headers=good).status_code == 200


def test_other_machines_need_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(ConfigError, match="needs a token"):
            Guard(host, 8000)
        assert Guard(host, 8000, token=TOKEN).has_token
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        assert not Guard(host, 8000).has_token
    for token in ("", "short", "with space 0123456789", "ü" * 30):
        with pytest.raises(ConfigError, match="16"):
            Guard("127.0.0.1", 8000, token=token)
    for name in ("http://a", "a/b", "user@a", "", "ä"):
        with pytest.raises(ConfigError, match="no host"):
            Guard("127.0.0.1", 8000, [name])


def test_a_server_for_all_addresses_is_asked_by_any_of_its_numbers() -> None:
    guard = Guard("0.0.0.0", 8000, token=TOKEN)
    for host in (b"192.168.1.5:8000", b"[fe80::1]:8000", b"10.0.0.1", b"LOCALHOST:8000"):
        guard.refuse_host({b"host": host})
        guard.refuse_host({b"host": host, b"origin": b"http://" + host})
    from tempera.server.refusals import Refused

    for host in (b"evil.example", b"evil.example:8000", b"", b"1.2.3.4.evil.example", b"\xff"):
        with pytest.raises(Refused):
            guard.refuse_host({b"host": host})


def test_an_error_names_no_path(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    name = folder.name
    quoted = f"'{folder}'"
    assert message_without_paths(
        DataError(f"{folder} is a recommender: tempera recommend {quoted}"), folder
    ) == (f"{name} is a recommender: tempera recommend '{name}'")
    for path in (
        f"{folder}/index is damaged",
        f"{folder}.partial is being written",
        f"'{folder}2/index' is damaged",
        f"see {folder.parent}/other",
        f"see file://{folder.parent}/other",
        f"{folder.parent}",
        f"see {Path.cwd()}/config.yaml",
        f"{Path.home()}/data.csv is missing",
        f"{folder.parent / f'.{name}.lock'} is held",
        f".{name}.lock is held",
        f"{name}.replaced is in the way",
    ):
        assert message_without_paths(DataError(path), folder) is None
    relative = Path("runs/first")
    assert (
        message_without_paths(DataError("runs/first has no item 7"), relative)
        == "first has no item 7"
    )


def test_an_error_of_writing_names_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "faq"
    for file in ("faq.partial/index/vectors.npy", "faq/index/vectors.npy", "faq.partial/"):
        error = OutputError(f"cannot write {folder}: No space left on device ({tmp_path}/{file})")
        message = message_without_paths(error, folder)
        assert message == "cannot write faq: No space left on device", file


def test_a_text_of_a_client_is_no_path(tmp_path: Path) -> None:
    for line in (
        "where: expected a value after 'and' in \"url == '/docs/x' and and\"",
        "no document has the id '/docs/x'",
        "no document has the id '/faq/x'",
        "no document has the id 'C:\\\\docs'",
        "no document has the id '~/x'",
        "no user '/'",
    ):
        assert message_without_paths(DataError(line), tmp_path / "faq") == line


def test_paths_and_methods(served: Any) -> None:
    refused(served.get("/v1/nothing"), 404, "/openapi.json")
    refused(served.get("/../etc/passwd"), 404)
    refused(served.get("/%2e%2e/etc/passwd"), 404)
    answer = served.get("/v1/search")
    refused(answer, 405, "POST")
    assert answer.headers["allow"] == "POST"
    answer = served.client.request("OPTIONS", "/v1/search")
    refused(answer, 405)
    answer = served.client.delete("/v1/models")
    refused(answer, 405, "GET")
    assert answer.headers["allow"] == "GET, HEAD"


def test_a_fault_is_a_number_in_the_log(
    served: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    run = next(iter(served.app.shelf.runs.values())).run

    def broken(*_: Any, **__: Any) -> None:
        raise DataError(f"{run.folder}/index/vectors.npy is damaged")

    monkeypatch.setattr(run, "search_each", broken)
    message = refused(served.post("/v1/search", QUERY), 500, "internal error")
    number = message.split()[2].rstrip(":")
    assert any(number in line and "vectors.npy" in line for line in caplog.messages)
    monkeypatch.setattr(run, "search_each", lambda *_, **__: 1 / 0)
    refused(served.post("/v1/search", QUERY), 500, "internal error")
    monkeypatch.undo()
    assert served.post("/v1/search", QUERY).status_code == 200


def raw(served: Any, request: bytes) -> bytes:
    """The answer to some bytes, to the end of the connection or of the answer."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
            if b"\r\n\r\n" in answer and b"}}" in answer:
                break
    return answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: nonsense\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /v1/models HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
    ],
)
def test_what_is_not_http_is_refused(served: Any, request_bytes: bytes) -> None:
    answer = raw(served, request_bytes)
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer[:200]
    body = answer.partition(b"\r\n\r\n")[2]
    assert set(json.loads(body)["error"]) == {"message", "type"}
    assert served.get("/healthz").status_code == 200


def test_the_page_may_run_nothing_but_its_own_files(served: Any) -> None:
    from importlib.resources import files

    page = files("tempera.server") / "page"
    for path, name, kind in (
        ("/", "index.html", "text/html"),
        ("/page.js", "page.js", "text/javascript"),
        ("/page.css", "page.css", "text/css"),
    ):
        answer = served.get(path)
        assert answer.content == (page / name).read_bytes()
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        policy = answer.headers["content-security-policy"].split("; ")
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert not any("unsafe" in part or "*" in part or "http" in part for part in policy)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
