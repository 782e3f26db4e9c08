"""Documents that are added over HTTP: found by the next request, whole, and only by who may."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.test_guard import TOKEN, refused
from tests.server.test_replacement import count

from tempera import Run
from tempera.errors import ConfigError, OutputError

NEW = {"id": "new", "text": "a walrus plays the zither"}


@pytest.fixture
def writable(copied: Path, start: Any) -> Iterator[Any]:
    with start(copied, token=TOKEN, writable=True) as server:
        server.client.headers["authorization"] = f"Bearer {TOKEN}"
        yield server


def ids(server: Any, query: str, hybrid: Any = "words") -> list[str]:
    body = {"query": query, "k": 3, "hybrid": hybrid}
    return [hit["id"] for hit in server.post("/v1/search", body).json()["results"][0]]


def test_added_documents_are_found_and_removed_ones_are_not(writable: Any, copied: Path) -> None:
    before = writable.get("/v1/models").json()["data"][0]["documents"]
    assert ids(writable, "walrus zither") == []
    answer = writable.post("/v1/documents", {"documents": [NEW]})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "model": "copied",
        "added": 1,
        "replaced": 0,
        "removed": 0,
        "documents": before + 1,
        "notes": [],
    }
    # Found by the very next request, by words and by vectors, and by whoever opens the folder.
    assert ids(writable, "walrus zither") == ["new"]
    assert "new" in ids(writable, NEW["text"], hybrid=False)
    assert Run(copied).document("new").text == NEW["text"]
    assert writable.get("/v1/models").json()["data"][0]["documents"] == before + 1
    assert count(writable, "tempera_run_replaced_total") == 1

    body = {"documents": [{**NEW, "text": "a walrus sleeps"}, {"id": "2", "text": "a lute"}]}
    answer = writable.post("/v1/documents", body).json()
    assert (answer["added"], answer["replaced"], answer["documents"]) == (1, 1, before + 2)
    assert ids(writable, "zither") == [] and ids(writable, "lute") == ["2"]

    answer = writable.post("/v1/documents", {"remove": ["new", "2"]}).json()
    assert (answer["removed"], answer["documents"]) == (2, before)
    assert ids(writable, "walrus") == []


def test_documents_that_do_not_fit_change_nothing(writable: Any, copied: Path) -> None:
    state = sorted((path, path.stat().st_ino) for path in copied.rglob("*"))
    for body, says in (
        ({}, "documents: missing"),
        ({"documents": []}, "documents: missing"),
        ({"documents": [{"id": "1"}]}, "documents[0].text: missing"),
        ({"documents": [{"text": "a"}]}, "documents[0].id: missing"),
        ({"documents": [{"id": "1", "text": " "}]}, "documents[0].text: expected a text"),
        ({"documents": [{"id": 1, "text": "a"}]}, "documents[0].id: "),
        (
            {"documents": [{"id": "1", "text": "a", "vector": [1]}]},
            "documents[0].vector: no such field; known: id, ",
        ),
        ({"documents": [{"id": "1", "text": "a", "columns": {"a": [1]}}]}, "documents[0].columns"),
        ({"documents": [{"id": "1", "text": "a"}] * 2}, "1"),
        ({"remove": ["nowhere"]}, "nowhere"),
        ({"remove": ["a"], "model": "other"}, "no such model"),
    ):
        answer = writable.post("/v1/documents", body)
        refused(answer, answer.status_code, says)
        assert answer.status_code in (404, 422), (body, answer.text)
    assert sorted((path, path.stat().st_ino) for path in copied.rglob("*")) == state


def test_only_a_writable_server_with_a_token_is_written_to(tiny_run: Path, start: Any) -> None:
    with pytest.raises(ConfigError, match="--writable"), start(tiny_run, writable=True):
        pass
    with start(tiny_run, token=TOKEN) as server:
        refused(server.post("/v1/documents", {"documents": [NEW]}), 401)
        bearer = {"authorization": f"Bearer {TOKEN}"}
        answer = server.post("/v1/documents", {"documents": [NEW]}, headers=bearer)
        refused(answer, 403, "--writable")


def test_a_full_disk_leaves_the_run_as_it_was(
    writable: Any, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempera.artifacts import new_documents

    def full(*_: Any, **__: Any) -> None:
        raise OutputError(f"{copied} cannot be written: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(new_documents, "add_documents", full)
        answer = writable.post("/v1/documents", {"documents": [NEW]})
        refused(answer, 507, "copied cannot be written: No space left")
    assert ids(writable, "walrus") == []
    assert writable.post("/v1/documents", {"documents": [NEW]}).status_code == 200
    assert ids(writable, "walrus") == ["new"]


def test_searches_go_on_while_documents_are_added(writable: Any) -> None:
    done = threading.Event()
    faults: list[str] = []
    asked = []

    def ask() -> None:
        while not done.is_set():
            answer = writable.post("/v1/search", {"query": "walrus", "k": 9, "hybrid": "words"})
            asked.append(1)
            if answer.status_code != 200:
                faults.append(answer.text)
                return
            hits = answer.json()["results"][0]
            # The documents of a request are there together, or not at all.
            if len({hit["text"].split()[-1] for hit in hits}) > 1 or len(hits) not in (0, 3):
                faults.append(str(hits))

    thread = threading.Thread(target=ask)
    thread.start()
    for turn in range(4):
        rows = [{"id": str(i), "text": f"walrus number {turn}"} for i in range(3)]
        assert writable.post("/v1/documents", {"documents": rows}).status_code == 200
    done.set()
    thread.join(30)
    assert not faults, faults[0]
    assert len(asked) > 4


def test_writers_wait_for_each_other(writable: Any) -> None:
    answers = []

    def add(number: int) -> None:
        body = {"documents": [{"id": f"w{number}", "text": f"walrus {number}"}]}
        answers.append(writable.post("/v1/documents", body).status_code)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [200] * 4
    body = {"query": "walrus", "k": 9, "hybrid": "words"}
    hits = writable.post("/v1/search", body).json()["results"][0]
    assert sorted(hit["id"] for hit in hits) == ["w0", "w1", "w2", "w3"]


def test_an_id_that_looks_like_a_path_is_named(writable: Any) -> None:
    answer = writable.post("/v1/documents", {"remove": ["/docs/x"]})
    refused(answer, 422, "/docs/x")
