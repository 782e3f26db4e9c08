"""Runs as tools of an assistant: search and recommend over the Model Context Protocol (MCP)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import orjson
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field, ValidationError

from ..errors import TemperaError, quantity
from ..io.console import logger
from .bodies import Body, RecommendBody, SearchBody, line_of
from .opened_run import OpenedRun
from .refusals import Refused, message_without_paths
from .replacement import Replacement, open_all
from .shelf import Shelf
from .works import Question, Recommending, Search, recommendations_json, search_json

_MOST = 100  # hits of a call, which an assistant has to read

Query = Annotated[str, Field(description="What to look for, in words.")]
Count = Annotated[int, Field(description="Number of results.", ge=1, le=_MOST)]
ModelName = Annotated[
    str | None, Field(description="Name of one of the collections; the first without.")
]
Hybrid = Annotated[bool, Field(description="Rank by exact words, too.")]
User = Annotated[str | None, Field(description="Id of a user.")]
History = Annotated[
    list[str] | None, Field(description="Ids of items taken before, the latest last.")
]


class Tools:
    """The tools of some runs.

    Args:
        shelf: the runs, open.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._one_at_a_time = Lock()

    def search(
        self, query: Query, k: Count = 5, model: ModelName = None, hybrid: Hybrid = False
    ) -> dict[str, Any]:
        """Search documents by meaning; each hit has an id, a score and the whole text."""

        def answer() -> bytes:
            body = _body(SearchBody, query=query, k=k, model=model, hybrid=hybrid)
            run = self.shelf.get(body.model, recommends=False)
            work = Search(run, body.k, None, None, hybrid and run.has_words)
            answers = self._computed(run, lambda: work([query]))
            return search_json(run.name, answers)

        return _answer(answer)

    def recommend(
        self,
        user: User = None,
        history: History = None,
        k: Count = 5,
        model: ModelName = None,
    ) -> dict[str, Any]:
        """Recommend items to a user, or by a history of items."""

        def answer() -> bytes:
            body = _body(RecommendBody, user=user, history=history, k=k, model=model)
            run = self.shelf.get(body.model, recommends=True)
            question = Question(user, history, {"k": body.k})
            (answered,) = self._computed(run, lambda: Recommending(run)([question]))
            if isinstance(answered, TemperaError):
                raise _refusal(run, answered)
            if isinstance(answered, Exception):
                raise answered
            return recommendations_json(run.name, answered)

        return _answer(answer)

    def _computed(self, run: OpenedRun, compute: Callable[[], Any]) -> Any:
        """Return a result of a run; calls that come together wait for each other."""
        try:
            with self._one_at_a_time:
                return compute()
        except TemperaError as error:
            raise _refusal(run, error) from None


def _body(kind: type[Body], **fields: Any) -> Any:
    """Return the fields of a call as the body of a request, with its bounds."""
    try:
        return kind(**fields)
    except ValidationError as error:
        raise ToolError(line_of(error, kind)) from None


def _refusal(run: OpenedRun, error: TemperaError) -> Exception:
    """Return an error of a run as the line of a call, if the line names no file."""
    message = message_without_paths(error, run.folder)
    return error if message is None else ToolError(message)


def _answer(answer: Callable[[], bytes]) -> dict[str, Any]:
    """Return an answer as an object."""
    try:
        value: dict[str, Any] = orjson.loads(answer())
    except Refused as refused:
        raise ToolError(str(refused)) from None
    return value


def tools_of(shelf: Shelf) -> MCPServer[Any]:
    """Return the server of the tools that the runs of a shelf have."""
    about = []
    for run in shelf.runs.values():
        what = "items to recommend" if run.recommends else "documents to search"
        about.append(f"{run.name}: {quantity(run.documents, what)}")
    server: MCPServer[Any] = MCPServer(
        "tempera", instructions=f"Collections: {'; '.join(about)}", log_level="ERROR"
    )
    tools = Tools(shelf)
    if any(not run.recommends for run in shelf.runs.values()):
        server.add_tool(tools.search, structured_output=True)
    if any(run.recommends for run in shelf.runs.values()):
        server.add_tool(tools.recommend, structured_output=True)
    return server


def serve_tools(folders: Sequence[Path]) -> None:
    """Answer over standard input and output until the input ends; see `tempera mcp`.

    Raises:
        TemperaError: a run does not open.
    """
    shelf = Shelf(folders)
    shelf.runs = open_all(shelf.folders)
    shelf.is_ready = True
    server = tools_of(shelf)
    logging.getLogger("tempera").propagate = False  # the package above has put a handler there
    replacement = Replacement(
        lambda: dict(shelf.runs), lambda run: shelf.runs.update({run.name: run}), lambda _: None
    )
    replacement.start()
    logger.info(f"serving tools of {', '.join(shelf.runs)} over standard input and output")
    server.run("stdio")
    replacement.stop()
