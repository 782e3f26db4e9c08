"""A stand-in for `tempera serve` that answers the page with made documents, by the server's contract.

`python tests/server/page_server.py 8123` runs it to look at the page by hand.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import tempera

PAGE = Path(tempera.__file__).parent / "server" / "page"
FILES = {"/": "index.html", "/page.js": "page.js", "/page.css": "page.css"}
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
OVERRIDE = "\u202e"  # right-to-left override
HOSTILE_TEXT = (
    "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script> "
    f"{OVERRIDE}desrever\u202c zero\u200bwidth bell\u0007 &lt;b&gt; telly"
)
# What a word means to the made model.
MEANING = {"telly": "television", "tv": "television", "frozen": "respond", "stuck": "respond"}


def document(name: str, text: str, **columns: Any) -> dict[str, Any]:
    """Return a document of the made corpus."""
    return {"name": name, "text": text, "columns": columns}


DOCUMENTS = [
    document(
        "When the television does not respond",
        "Hold the power button of the television set XE-417 for ten seconds.\nThen wait a minute "
        "and switch it on again. If it still does not respond, print the label of the order page.",
        url="https://help.example.org/television/respond",
        lang="en",
        year=2024,
    ),
    document(
        "Spare parts of the television",
        "Spare parts of the television set KV-822 are supplied for seven years after purchase.",
        url="http://parts.example.org/kv-822",
        lang="en",
        year=2019,
    ),
    document("", "A parent code limits the use of the television set by minors.", lang="en"),
    document(
        "The telly song",
        "A song about a telly that got stuck on one channel, and about the one who watched it.",
        lang="en",
        year=2011,
    ),
    document(
        "Stuck keys",
        "If keys of the keyboard are stuck, remove the crumbs with a brush.",
        lang="en",
        year=2023,
    ),
    document(
        "Schlafmodus",
        "Der Fernseher schaltet sich nach vier Stunden ab. \U0001f469\u200d\U0001f4bb "
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 ver\u200dborgen",
        lang="de",
    ),
    document(
        f"a{OVERRIDE}<b>bold</b>",
        HOSTILE_TEXT,
        url="javascript:document.title='broken'",
        data="data:text/html,<script>document.title='broken'</script>",
        spoof="https://user:secret@evil.example/telly",
        **{"<i>column</i>": f"{OVERRIDE}value"},
    ),
    document("w" * 10_000, "telly " + "x" * 10_000, url="https://example.org/" + "y" * 4_000),
]
for _number, _document in enumerate(DOCUMENTS):
    _document["id"] = f"doc-{_number}"
    _document["place"] = f"manual.csv row {_number + 1}"
DOCUMENTS[6]["id"] = f"<script>id{OVERRIDE}</script>"
DOCUMENTS[7]["id"] = "i" * 10_000

ITEMS = {
    "A1": "plain tent",
    "A2": "blue lamp",
    "A3": "gas stove",
    "A4": "sleeping bag",
    "A5": "rucksack",
    "A6": f"<b>mat</b>{OVERRIDE}",
}
FOLLOWS = {("A1", "A4"): 1.2, ("A1", "A3"): 0.6, ("A2", "A3"): 0.4, ("A2", "A4"): -0.15}
HISTORIES = {"C0037": ["A1", "A2"], "C0038": ["A5"], "D0001": []}


def tokens(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()


def by_vectors(query: str, text: str) -> dict[str, Any]:
    """Return the explanation of a made similarity: pairs of words that mean the same."""
    scale = 1 / math.sqrt(len(tokens(query)) * max(len(tokens(text)), 1))
    values: dict[tuple[str, str], float] = {(tokens(query)[0], "of"): -0.05 * scale}
    rest = 0.0
    for mine in tokens(query):
        for theirs in tokens(text):
            if MEANING.get(mine, mine) == MEANING.get(theirs, theirs):
                values[mine, theirs] = values.get((mine, theirs), 0) + 1.4 * scale
            else:
                rest += 0.01 * scale
    parts = []
    for (mine, theirs), value in values.items():
        parts.append({"query_token": mine, "document_token": theirs, "value": value})
    return {
        "kind": "tokens",
        "exact": True,
        "score": sum(values.values()) + rest,
        "parts": parts,
        "rest": rest,
        "notes": [],
    }


def by_words(query: str, text: str) -> dict[str, Any]:
    """Return the explanation of a made score of shared words."""
    parts = []
    for word in dict.fromkeys(tokens(query)):
        times = tokens(text).count(word)
        value = 1.5 + times / 4 if times else 0.0
        parts.append({"word": word, "in_document": times, "documents": 3, "value": value})
    return {
        "kind": "words",
        "exact": True,
        "score": sum(part["value"] for part in parts),
        "parts": parts,
        "rest": 0.0,
        "notes": [],
    }


def by_both(query: str, text: str) -> dict[str, Any]:
    """Return the explanation of the weighted sum of both, standardised."""
    halves = []
    parts = []
    score = 0.0
    for system, weight, mean, deviation, explanation in (
        ("vectors", 0.3, 0.2, 0.16, by_vectors(query, text)),
        ("words", 0.7, 0.5, 0.9, by_words(query, text)),
    ):
        halves.append(
            {
                "system": system,
                "weight": weight,
                "mean": mean,
                "deviation": deviation,
                "explanation": explanation,
            }
        )
        score += weight * (explanation["score"] - mean) / deviation
        for part in explanation["parts"]:
            value = weight / deviation * part["value"]
            parts.append({**part, "system": system, "value": value})
    return {
        "kind": "fused",
        "exact": True,
        "score": score,
        "parts": parts,
        "rest": score - sum(part["value"] for part in parts),
        "notes": ["parts are in units of the fused score"],
        "explanations": halves,
    }


def without_a_word(query: str, text: str) -> dict[str, Any]:
    """Return an approximate explanation, as that of a transformer."""
    whole = by_vectors(query, text)["score"]
    parts = [{"word": word, "value": whole / 10} for word in tokens(query)]
    rest = whole - sum(part["value"] for part in parts)
    return {
        "kind": "leave_one_out",
        "exact": False,
        "score": whole,
        "parts": parts,
        "rest": rest,
        "notes": ["an approximation: the score without each word of the query"],
    }


WAYS = {False: by_vectors, None: by_vectors, "words": by_words, True: by_both}


@dataclass
class Behaviour:
    """How the server answers, and what it was asked."""

    token: str = ""
    busy: int = 0  # number of requests that are answered by 429
    delay: float = 0.0  # seconds before an answer to a search
    requests: list[tuple[str, Any]] = field(default_factory=list)


def searched(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return status and answer of /v1/search."""
    query = body["query"]
    model = body["model"] or "help"
    where = body.get("where")
    if "broken" in query:
        return 500, {"error": {"message": "the model broke; see the log", "type": "server_error"}}
    if where and "=" not in where:
        message = f"where: {body['where']!r} is not a condition; expected such as lang = 'en'"
        return 400, {"error": {"message": message, "type": "invalid_request_error"}}
    explain = WAYS[body["hybrid"]]
    if model == "help-large" and explain is by_vectors:
        explain = without_a_word
    hits = []
    for each in DOCUMENTS:
        if where and f"lang = '{each['columns'].get('lang')}'" != where:
            continue
        explanation = explain(query, f"{each['name']}\n{each['text']}")
        probability = None
        if model == "help" and not body["hybrid"]:
            probability = 1 / (1 + math.exp(3 - 12 * explanation["score"]))
        hit = {**each, "score": explanation["score"], "probability": probability}
        if body.get("explain"):
            hit["explanation"] = explanation
        hits.append(hit)
    hits.sort(key=lambda hit: -hit["score"])
    if query == "nothing":
        hits = []
    notes = ["the model knows no word of the query"] if query == "qqq" else []
    return 200, {"model": model, "results": [hits[: body["k"]]], "notes": notes}


def recommended(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return status and answer of /v1/recommend."""
    user = body.get("user")
    history = body.get("history")
    if history is None:
        history = HISTORIES.get(user)
    notes = []
    if history is None:
        history = []
        notes.append(f"the run does not know user {user!r}; items come by their number of events")
    for event in history:
        if event not in ITEMS:
            error = {"message": f"no item has the id {event!r}", "type": "invalid_request_error"}
            return 400, {"error": error}
    hits = []
    for item, name in ITEMS.items():
        if item in history:
            continue
        parts = []
        for place, event in enumerate(reversed(history), 1):
            value = FOLLOWS.get((event, item), 0.1)
            parts.append({"event": event, "name": ITEMS[event], "place": place, "value": value})
        parts.append({"feature": "elapsed", "of": "question", "value": 0.02})
        score = sum(part["value"] for part in parts) + 0.05
        hit = {"id": item, "name": name, "text": name, "score": score, "columns": {"stock": 3}}
        if body.get("explain"):
            hit["explanation"] = {
                "kind": "events",
                "exact": True,
                "score": score,
                "parts": parts,
                "rest": 0.05,
                "notes": [],
            }
        hits.append(hit)
    hits.sort(key=lambda hit: -hit["score"])
    past = [{"id": item, "name": ITEMS[item]} for item in history]
    return 200, {"model": "shop", "results": hits[: body["k"]], "notes": notes, "history": past}


MODELS = [
    {
        "id": "help",
        "object": "model",
        "kind": "texts",
        "documents": len(DOCUMENTS),
        "calibrated": True,
        "hybrid": True,
        "columns": ["url", "lang", "year"],
    },
    {
        "id": "help-large",
        "object": "model",
        "kind": "texts",
        "documents": len(DOCUMENTS),
        "calibrated": False,
        "hybrid": False,
        "columns": ["url", "lang", "year"],
    },
    {
        "id": "shop",
        "object": "model",
        "kind": "recommender",
        "documents": len(ITEMS),
        "calibrated": False,
        "hybrid": False,
        "columns": ["stock"],
    },
]


class PageHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    behaviour: Behaviour

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""

    def answer(self, status: int, content: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Server-Timing", "app;dur=1.5")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def answer_json(self, status: int, document: Any, **headers: str) -> None:
        self.answer(status, json.dumps(document).encode(), "application/json", **headers)

    def refused(self) -> bool:
        """Answer a request without the token, or one too many."""
        behaviour = self.behaviour
        if behaviour.token and self.headers["Authorization"] != f"Bearer {behaviour.token}":
            error = {"message": "this server needs a token", "type": "authentication_error"}
            self.answer_json(401, {"error": error})
            return True
        if behaviour.busy and self.command == "POST":
            behaviour.busy -= 1
            error = {"message": "the queue is full", "type": "overloaded"}
            self.answer_json(429, {"error": error}, Retry_After="1")
            return True
        return False

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path in FILES:
            file = PAGE / FILES[url.path]
            self.answer(200, file.read_bytes(), f"{KINDS[file.suffix[1:]]}; charset=utf-8")
        elif self.refused():
            return
        elif url.path == "/v1/models":
            self.answer_json(200, {"object": "list", "data": MODELS})
        elif url.path == "/v1/users":
            prefix = parse_qs(url.query).get("prefix", [""])[0]
            users = [user for user in HISTORIES if user.startswith(prefix)]
            self.answer_json(200, {"users": users})
        else:
            error = {"message": f"{url.path}: no such address", "type": "not_found"}
            self.answer_json(404, {"error": error})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.behaviour.requests.append((self.path, body))
        if self.refused():
            return
        time.sleep(self.behaviour.delay)
        respond = {"/v1/search": searched, "/v1/recommend": recommended}[self.path]
        self.answer_json(*respond(body))


@contextmanager
def page_server(port: int = 0) -> Iterator[tuple[str, Behaviour]]:
    """Serve the page and made answers on loopback; its address, and how it behaves."""
    behaviour = Behaviour()
    handler = type("Handler", (PageHandler,), {"behaviour": behaviour})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/", behaviour
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    with page_server(int(sys.argv[1])) as (address, _):
        print(address, flush=True)
        threading.Event().wait()
