"""The server as an ASGI application: one layer, from the headers of a request to its answer.

FastAPI writes the documentation (`openapi.py`). It does not stand between a request and its answer,
since it takes longer than an answer by a static model.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any
from urllib.parse import parse_qs

from ..errors import ConfigError, OutputError, TemperaError
from ..io.console import logger
from .bodies import DocumentsBody, EmbeddingsBody, RecommendBody, SearchBody, read_body
from .bounds import (
    BODIES,
    BODY,
    CHANGES,
    EXPLAINED,
    EXPLAINED_LETTERS,
    HITS,
    LARGE,
    PART,
    PAUSE,
    REQUESTS,
    SECONDS,
    SECONDS_TO_READ,
    SECONDS_TO_SEND,
)
from .guard import Guard, refuse_other_content
from .joint_work import JointWork, log_fault
from .measured import CONTENT_TYPE, Measured
from .opened_run import OpenedRun
from .page_files import SECURITY, page_file
from .refusals import (
    FAULT,
    INVALID,
    NOT_FOUND,
    PERMISSION,
    SLOW,
    Headers,
    Refused,
    busy,
    fault,
    invalid,
    message_without_paths,
    unready,
)
from .replacement import Replacement
from .shelf import Shelf
from .works import (
    Embedding,
    Question,
    Recommending,
    Search,
    Work,
    as_json,
    cut,
    embeddings_json,
    recommendations_json,
    search_json,
)

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

_JSON: Headers = [
    (b"content-type", b"application/json"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
]
_OTHER = "other"  # in place of the path of a request that no endpoint has
_MOST_USERS = 100
# Fields of a question to a recommender that its run takes as they are.
_OPTIONS = ("k", "now", "candidates", "exclude", "where", "similar", "diversity")


@dataclass(frozen=True)
class Answer:
    """An answer of HTTP."""

    body: bytes
    headers: Headers
    status: int = 200


def json_answer(content: Any) -> Answer:
    """Return an answer in JSON; bytes are JSON already."""
    body = content if isinstance(content, bytes) else as_json(content)
    return Answer(body, _JSON)


@dataclass(frozen=True)
class Endpoint:
    """The handlers of the requests to one path.

    Args:
        path: of the requests.
        post: answers the content of a POST.
        get: answers the query string of a GET.
        is_open: True if no token is needed.
        any_host: True if the name of the server is of no matter, as for a probe.
    """

    path: str
    post: Callable[[bytes], Awaitable[Answer]] | None = None
    get: Callable[[bytes], Awaitable[Answer]] | None = None
    is_open: bool = False
    any_host: bool = False

    @property
    def methods(self) -> str:
        """The methods that the path has."""
        return "POST" if self.get is None else "GET, HEAD"


class Application:
    """Answer the requests of HTTP about some runs.

    Args:
        shelf: the runs.
        guard: lets requests pass.
        writable: True if requests may add documents.

    Raises:
        ConfigError: a writable server without a token.
    """

    def __init__(self, shelf: Shelf, guard: Guard, writable: bool = False) -> None:
        if writable and not guard.has_token:
            raise ConfigError(
                "--writable lets requests change the runs, which needs a token: set TEMPERA_TOKEN, or "
                "give --token-file FILE"
            )
        self.shelf = shelf
        self.guard = guard
        self.writable = writable
        self.replacement = Replacement(
            lambda: dict(shelf.runs),
            self._take,
            lambda name: self.measured.refused[name].inc(),
        )
        self._writers = ThreadPoolExecutor(1, "tempera-write")  # one change at a time
        self._changes = 0  # that wait or are made
        self._loop: asyncio.AbstractEventLoop | None = None
        self.endpoints = {each.path: each for each in self._endpoints()}
        self.work = JointWork(lambda label, items: self.measured.observe_batch(label, items))
        self.measured = Measured(
            (*self.endpoints, _OTHER), tuple(shelf.folders), lambda: self.work.jobs
        )
        self._requests = 0
        self._bytes = 0  # of bodies in memory

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to compute."""
        self._loop = loop
        self.work.start(loop)

    def ready(self, runs: dict[str, OpenedRun]) -> None:
        """Take the runs, now open, and look from now on whether they are replaced."""
        self.shelf.runs = runs
        self.shelf.is_ready = True
        self.replacement.start()
        assert self._loop is not None
        for run in runs.values():
            self._loop.call_later(PAUSE, self.work.call, partial(_warm, run))

    def stop(self) -> None:
        """Stop to compute."""
        self.work.stop()
        self._writers.shutdown(wait=False)

    def _take(self, run: OpenedRun) -> None:
        """Take over a run in a thread of its own: requests from now on ask the new one."""
        assert self._loop is not None
        taken = Event()

        def swap() -> None:
            self.shelf.runs[run.name] = run
            self.measured.replaced[run.name].inc()
            taken.set()

        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(swap)
            taken.wait(SECONDS)  # the next look has to see the new run

    def _endpoints(self) -> list[Endpoint]:
        return [
            Endpoint("/v1/search", post=self.search),
            Endpoint("/v1/embeddings", post=self.embeddings),
            Endpoint("/v1/recommend", post=self.recommend),
            Endpoint("/v1/documents", post=self.documents),
            Endpoint("/v1/models", get=self.models),
            Endpoint("/v1/users", get=self.users),
            Endpoint("/healthz", get=self.healthz, is_open=True, any_host=True),
            Endpoint("/readyz", get=self.readyz, is_open=True, any_host=True),
            Endpoint("/metrics", get=self.metrics),
            Endpoint("/openapi.json", get=self.openapi),
            Endpoint("/", get=page_of("index.html"), is_open=True),
            Endpoint("/page.js", get=page_of("page.js"), is_open=True),
            Endpoint("/page.css", get=page_of("page.css"), is_open=True),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        began = perf_counter()
        path = scope["path"]
        endpoint = self.endpoints.get(path)
        self._requests += 1
        try:
            answer = await self._answer(endpoint, scope, receive)
        except Refused as refused:
            answer = self._refusal(refused)
        except Exception as error:
            answer = self._refusal(_fault(error))
        finally:
            self._requests -= 1
        headers = [
            *answer.headers,
            (b"content-length", b"%d" % len(answer.body)),
            (b"server-timing", b"app;dur=%.1f" % (1000 * (perf_counter() - began))),
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if len(answer.body) <= LARGE or scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": answer.body})
        else:
            await self._send_large(answer.body, send)
        label = _OTHER if endpoint is None else path
        self.measured.latency[label].observe(perf_counter() - began)

    async def _send_large(self, body: bytes, send: Send) -> None:
        """Send a large body in parts, so that it waits here, where it is counted, and not in the
        buffers of a client that does not read.

        Raises:
            TimeoutError: the client reads too slowly; the connection is then closed.
        """
        self._bytes += len(body)
        try:
            async with asyncio.timeout(SECONDS_TO_READ):
                for start in range(0, len(body), PART):
                    part = body[start : start + PART]
                    is_last = start + PART >= len(body)
                    await send(
                        {"type": "http.response.body", "body": part, "more_body": not is_last}
                    )
        finally:
            self._bytes -= len(body)

    def _refusal(self, refused: Refused) -> Answer:
        """Return the answer to a refused request, and count it."""
        self.measured.errors[refused.kind].inc()
        if refused.status == 429:
            self.measured.refused_busy.inc()
        return Answer(refused.body(), _JSON + refused.headers, refused.status)

    async def _answer(self, endpoint: Endpoint | None, scope: Scope, receive: Receive) -> Answer:
        """Return the answer to a request.

        Raises:
            Refused: a stranger, another site, an unknown path, or a request that does not fit.
        """
        headers = dict(scope["headers"])
        if endpoint is None or not endpoint.any_host:
            self.guard.refuse_host(headers)
        if endpoint is None:
            raise Refused(404, NOT_FOUND, "no such path; /openapi.json lists the paths")
        method = scope["method"]
        if method == "POST" and endpoint.post is not None:
            self.guard.refuse_stranger(headers)
            refuse_other_content(headers)
            return await self._posted(endpoint.post, headers, receive)
        if method in ("GET", "HEAD") and endpoint.get is not None:
            if not endpoint.is_open:
                self.guard.refuse_stranger(headers)
            return await endpoint.get(scope["query_string"])
        raise Refused(
            405,
            INVALID,
            f"{endpoint.path} answers {endpoint.methods}",
            [(b"allow", endpoint.methods.encode())],
        )

    async def _posted(
        self,
        post: Callable[[bytes], Awaitable[Answer]],
        headers: Mapping[bytes, bytes],
        receive: Receive,
    ) -> Answer:
        """Read the body of a request, and answer it."""
        if self.shelf.is_stopping:
            raise unready("the server is stopping")
        if self._requests > REQUESTS or self._bytes > BODIES:
            raise _full()
        content = await self._read(receive)
        if len(content) > BODY:
            raise _too_large()
        self._bytes += len(content)
        try:
            return await post(content)
        finally:
            self._bytes -= len(content)

    async def _read(self, receive: Receive) -> bytes:
        """Return the whole body of a request.

        Raises:
            Refused: the body arrives too slowly, or there is no room for it.
        """
        parts: list[bytes] = []
        size = 0  # of the parts
        has_room = True
        try:
            async with asyncio.timeout(SECONDS_TO_SEND):
                has_more = True
                while has_more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise invalid("the client has gone", 400)
                    has_more = message.get("more_body", False)
                    # What is not kept is read to its end: few clients read an answer before that.
                    if size > BODY or not has_room:
                        continue
                    part = message.get("body", b"")
                    parts.append(part)
                    size += len(part)
                    self._bytes += len(part)
                    if self._bytes > BODIES:
                        has_room = False
                        parts.clear()
                        self._bytes -= size
                        size = 0
        except TimeoutError:
            raise Refused(
                408,
                SLOW,
                f"the body did not arrive within {SECONDS_TO_SEND:g} seconds",
                [(b"connection", b"close")],
            ) from None
        finally:
            self._bytes -= size
        if not has_room:
            raise _full()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _done(self, run: OpenedRun, work: Work, items: Any) -> list[Any]:
        """Return the answer to each item.

        Raises:
            Refused: the run cannot answer; the line names no path.
        """
        try:
            return await self.work.submit(work, items)
        except TemperaError as error:
            raise _refusal(run, error) from None

    async def search(self, content: bytes) -> Answer:
        """Answer with the hits of each query."""
        body = read_body(content, SearchBody)
        run = self.shelf.get(body.model, recommends=False)
        queries = [body.query] if isinstance(body.query, str) else body.query
        if len(queries) * body.k > HITS:
            raise invalid(f"k: times the number of queries it may be {HITS:,} at most")
        hybrid = body.hybrid or False
        if hybrid and not run.has_words:
            raise invalid(f"hybrid: {run.name} has no index of words (evaluation.bm25 writes it)")
        if body.where is not None and not run.columns:
            raise invalid(f"where: {run.name} has kept no columns")
        if body.threshold is not None and not run.is_calibrated:
            raise invalid(
                f"threshold: {run.name} is not calibrated, so its hits have no probability"
            )
        if body.threshold is not None and hybrid:
            raise invalid("threshold: it is for similarities, and a hybrid search has none")
        if body.explain and len(queries) * body.k > EXPLAINED:
            raise invalid(f"explain: k times the number of queries is {EXPLAINED} at most")
        if body.explain and max(map(len, queries)) > EXPLAINED_LETTERS:
            raise invalid(f"explain: a query has {EXPLAINED_LETTERS:,} letters at most")
        work = Search(run, body.k, body.threshold, body.where, hybrid, body.explain)
        answers = await self._done(run, work, queries)
        return Answer(search_json(run.name, answers), _JSON)

    async def embeddings(self, content: bytes) -> Answer:
        """Answer with the vector of each text."""
        body = read_body(content, EmbeddingsBody)
        run = self.shelf.get(body.model, recommends=False)
        texts = [body.input] if isinstance(body.input, str) else body.input
        width = body.dimensions
        if width is not None and width > run.width:
            raise invalid(f"dimensions: the vectors of {run.name} have {run.width}")
        vectors = await self._done(run, Embedding(run), texts)
        if width is not None and width < run.width:
            vectors = cut(vectors, width)
        words = sum(len(text.split()) for text in texts)
        as_base64 = body.encoding_format == "base64"
        return Answer(embeddings_json(run.name, vectors, as_base64, words), _JSON)

    async def recommend(self, content: bytes) -> Answer:
        """Answer with items for a user."""
        body = read_body(content, RecommendBody)
        run = self.shelf.get(body.model, recommends=True)
        if body.user is None and body.history is None and body.similar is None:
            raise invalid("user: missing; give a user, a history, or both, or a similar item")
        options = {name: value for name in _OPTIONS if (value := getattr(body, name)) is not None}
        if body.explain and (body.k > EXPLAINED or body.similar is not None):
            raise invalid(f"explain: for a user or a history, with k of {EXPLAINED} at most")
        question = Question(body.user, body.history, options, body.explain)
        (answer,) = await self._done(run, Recommending(run), [question])
        return Answer(recommendations_json(run.name, answer), _JSON)

    async def documents(self, content: bytes) -> Answer:
        """Add documents to a run, and remove others; the answer follows when they are found."""
        if not self.writable:
            raise Refused(403, PERMISSION, "this server changes nothing: start it with --writable")
        body = read_body(content, DocumentsBody)
        run = self.shelf.get(body.model, recommends=False)
        if not body.documents and not body.remove:
            raise invalid("documents: missing; give documents to add, or ids to remove")
        if self._changes >= CHANGES:
            raise busy("other documents are being added: try again in a second")
        rows = [row.model_dump(exclude_unset=True) for row in body.documents]
        change = partial(_add_documents, rows, body.remove)
        self._changes += 1
        try:
            facts = await asyncio.get_running_loop().run_in_executor(
                self._writers, self.replacement.changed, run.name, change
            )
        except TemperaError as error:
            raise _refusal(run, error) from None
        finally:
            self._changes -= 1
        return json_answer({"model": run.name, **facts})

    async def models(self, _: bytes) -> Answer:
        """Answer with the runs."""
        self.shelf.get(None)
        data = [run.facts for run in self.shelf.runs.values()]
        return json_answer({"object": "list", "data": data})

    async def users(self, query: bytes) -> Answer:
        """Answer with users of a recommender whose ids begin with a prefix."""
        query_fields = parse_qs(query.decode("utf-8", "replace"))
        name = query_fields.get("model", [None])[0]
        run = self.shelf.get(name, recommends=True)
        limit = query_fields.get("limit", ["20"])[0]
        is_short = len(limit) <= 9  # Python reads no number with thousands of digits
        if not (is_short and limit.isdecimal() and 1 <= int(limit) <= _MOST_USERS):
            raise invalid(f"limit: expected a whole number from 1 to {_MOST_USERS}")
        prefix = query_fields.get("prefix", [""])[0]
        names = await self.work.call(lambda: run.users(prefix, int(limit)))
        return json_answer({"model": run.name, "users": names})

    async def healthz(self, _: bytes) -> Answer:
        """Answer that the process lives."""
        return json_answer(b'{"status":"ok"}')

    async def readyz(self, _: bytes) -> Answer:
        """Answer that all runs are open."""
        if self.shelf.is_stopping:
            raise unready("the server is stopping")
        if not self.shelf.is_ready:
            raise unready("the runs are being opened")
        return json_answer(b'{"status":"ready"}')

    async def metrics(self, _: bytes) -> Answer:
        """Answer with the measures of the server."""
        for name, run in self.shelf.runs.items():
            self.measured.documents[name].set(run.documents)
        return Answer(self.measured.text(), [(b"content-type", CONTENT_TYPE)])

    async def openapi(self, _: bytes) -> Answer:
        """Answer with the documentation of all endpoints."""
        from .openapi import document

        return json_answer(await self.work.call(document))


def _warm(run: OpenedRun) -> None:
    """Open the rest of a run; a fault comes up again with the first request that meets it."""
    try:
        run.warm_rest()
    except Exception as error:
        logger.error(f"{run.name}: {error}")


def _add_documents(rows: list[dict[str, Any]], remove: list[str], folder: Path) -> dict[str, Any]:
    """Add documents to the run in a folder, and return the facts of it."""
    from ..artifacts.new_documents import add_documents

    facts = add_documents(folder, rows or None, remove)
    names = ("added", "replaced", "removed", "documents")
    notes = [f"column {name} is not kept by the run" for name in facts["columns_left_out"]]
    return {name: facts[name] for name in names} | {"notes": notes}


def _refusal(run: OpenedRun, error: TemperaError) -> Exception:
    """Return the refusal of a request that a run cannot answer, or the error itself if its message
    names a file."""
    message = message_without_paths(error, run.folder)
    if message is None:
        return error
    if isinstance(error, OutputError):
        return Refused(507, FAULT, message)
    return invalid(message)


def page_of(name: str) -> Callable[[bytes], Awaitable[Answer]]:
    """Return the handler of a file of the page."""

    async def answer(_: bytes) -> Answer:
        file = page_file(name)
        if file is None:
            raise Refused(404, NOT_FOUND, "this installation has no page")
        content, kind = file
        return Answer(content, [(b"content-type", kind), *SECURITY])

    return answer


def _full() -> Refused:
    return busy("the server has more to do than it can: try again in a second")


def _too_large() -> Refused:
    line = f"the body has more than {BODY:,} bytes: send fewer texts at a time"
    return Refused(413, INVALID, line)


def _fault(error: Exception) -> Refused:
    """Write a fault to the log, and return the answer that names its number."""
    number = secrets.token_hex(4)
    log_fault(number, error)
    return fault(number)
