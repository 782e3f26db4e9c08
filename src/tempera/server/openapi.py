"""The documentation of the server, in the form of OpenAPI, written by FastAPI."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, Field

from .bodies import Body, DocumentsBody, EmbeddingsBody, RecommendBody, SearchBody


class HitAnswer(BaseModel):
    """A document, with the score of a query."""

    id: str = Field(examples=["faq-12"])
    score: float = Field(examples=[0.731])
    probability: float | None = Field(
        description="Of being an answer; null if the run is not calibrated.", examples=[0.92]
    )
    text: str = Field(examples=["Open Settings and choose Reset password."])
    name: str = Field(examples=[""])
    place: str = Field(examples=["faq.csv:12"])
    columns: dict[str, Any] = Field(examples=[{"lang": "en"}])
    explanation: dict[str, Any] | None = Field(None, description="Only if it was asked for.")


class HitsAnswer(BaseModel):
    """The hits of each query, best first."""

    model: str = Field(examples=["faq"])
    results: list[list[HitAnswer]]
    notes: list[str] = Field(examples=[[]])


class ItemAnswer(BaseModel):
    """An item that is recommended."""

    id: str = Field(examples=["50"])
    score: float = Field(examples=[1.27])
    name: str = Field(examples=["Star Wars (1977)"])
    text: str = Field(examples=[""])
    columns: dict[str, Any] = Field(examples=[{}])
    explanation: dict[str, Any] | None = Field(None, description="Only if it was asked for.")


class PastItem(BaseModel):
    """An item of a history."""

    id: str = Field(examples=["181"])
    name: str = Field(examples=["Return of the Jedi (1983)"])


class ItemsAnswer(BaseModel):
    """The items recommended, best first, and the history they follow from."""

    model: str = Field(examples=["movies"])
    results: list[ItemAnswer]
    notes: list[str] = Field(examples=[[]])
    history: list[PastItem]


class DocumentsAnswer(BaseModel):
    """The documents added, replaced and removed, and the number of all."""

    model: str = Field(examples=["faq"])
    added: int = Field(examples=[1])
    replaced: int = Field(examples=[0])
    removed: int = Field(examples=[1])
    documents: int = Field(examples=[12_000])
    notes: list[str] = Field(examples=[[]])


class OneEmbedding(BaseModel):
    """The vector of a text."""

    object: Literal["embedding"] = "embedding"
    index: int = Field(examples=[0])
    embedding: list[float] | str = Field(examples=[[0.12, -0.98]])


class Usage(BaseModel):
    """The number of words, in place of tokens."""

    prompt_tokens: int = Field(examples=[2])
    total_tokens: int = Field(examples=[2])


class EmbeddingsAnswer(BaseModel):
    """The vector of each text, in the form of OpenAI."""

    object: Literal["list"] = "list"
    data: list[OneEmbedding]
    model: str = Field(examples=["faq"])
    usage: Usage


class ServedModel(BaseModel):
    """A run, in the form of OpenAI."""

    id: str = Field(examples=["faq"])
    object: Literal["model"] = "model"
    created: int = Field(examples=[1_796_043_446])
    owned_by: str = Field(examples=["tempera"])
    kind: Literal["texts", "recommender"]
    documents: int = Field(examples=[120_000])
    calibrated: bool
    hybrid: bool
    columns: list[str] = Field(examples=[["lang"]])


class ServedModels(BaseModel):
    """All runs of the server."""

    object: Literal["list"] = "list"
    data: list[ServedModel]


class KnownUsers(BaseModel):
    """Users of a recommender."""

    model: str = Field(examples=["movies"])
    users: list[str] = Field(examples=[["196", "1962"]])


class Status(BaseModel):
    """The state of the server."""

    status: str = Field(examples=["ready"])


class ErrorLine(BaseModel):
    """The reason of a refusal."""

    message: str = Field(examples=["k: input should be less than or equal to 1000"])
    type: str = Field(examples=["invalid_request_error"])


class ErrorAnswer(BaseModel):
    """The answer to a request that is refused."""

    error: ErrorLine


# Path, method, body, answer, and examples of the body.
Post = tuple[str, type[Body], type[BaseModel], list[dict[str, Any]]]
_POSTS: tuple[Post, ...] = (
    (
        "/v1/search",
        SearchBody,
        HitsAnswer,
        [
            {"query": "how do I reset my password?", "k": 5},
            {"query": ["first query", "second query"], "hybrid": True},
        ],
    ),
    (
        "/v1/embeddings",
        EmbeddingsBody,
        EmbeddingsAnswer,
        [{"input": ["a text", "another text"], "encoding_format": "float"}],
    ),
    (
        "/v1/recommend",
        RecommendBody,
        ItemsAnswer,
        [{"user": "196", "k": 5}, {"history": ["50", "181"], "k": 5}],
    ),
)
_WRITES: Post = (
    "/v1/documents",
    DocumentsBody,
    DocumentsAnswer,
    [
        {
            "documents": [
                {"id": "faq-13", "text": "Ask an administrator.", "columns": {"lang": "en"}}
            ],
            "remove": ["faq-2"],
        }
    ],
)
_GETS: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("/v1/models", "The runs of the server.", ServedModels),
    ("/v1/users", "Users of a recommender whose ids begin with `prefix`.", KnownUsers),
    ("/healthz", "The process lives.", Status),
    ("/readyz", "All runs are open.", Status),
)
_PARAMETERS = [
    {"name": "prefix", "in": "query", "schema": {"type": "string"}},
    {"name": "limit", "in": "query", "schema": {"type": "integer", "default": 20}},
    {"name": "model", "in": "query", "schema": {"type": "string"}},
]
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "The request is refused."},
    "5XX": {"model": ErrorAnswer, "description": "The server cannot answer now."},
}


@cache
def document() -> Mapping[str, Any]:
    """Return the documentation of all endpoints."""
    app = FastAPI(title="Tempera", version=version("tempera"), description="Finished runs, served.")
    for path, body, answer, examples in (*_POSTS, _WRITES):
        _add_post(app, path, body, answer, examples)
    for path, about, answer in _GETS:
        more = {"parameters": _PARAMETERS} if path == "/v1/users" else None

        def get() -> None:
            """Answered by `application.py`."""

        app.add_api_route(
            path,
            get,
            methods=["GET"],
            summary=about,
            description=about,
            response_model=answer,
            responses=_ERRORS,
            openapi_extra=more,
            operation_id=path.strip("/").replace("/", "_"),
        )
    with warnings.catch_warnings():
        # Bodies are built when they are first used, and pydantic warns of FastAPI's alias for one.
        warnings.simplefilter("ignore")
        documented = app.openapi()
    for operations in documented["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # one of the 4XX, in their form
    schemas = documented["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    documented["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    documented["security"] = [{}, {"token": []}]
    return documented


def _add_post(
    app: FastAPI,
    path: str,
    body: type[Body],
    answer: type[BaseModel],
    examples: list[dict[str, Any]],
) -> None:
    """Document an endpoint with a body."""

    def post(content: Any) -> None:
        """Answered by `application.py`."""

    post.__annotations__["content"] = body
    about = body.__doc__ or ""
    app.add_api_route(
        path,
        post,
        methods=["POST"],
        summary=about,
        description=about,
        response_model=answer,
        responses=_ERRORS,
        openapi_extra={
            "requestBody": {
                "content": {
                    "application/json": {
                        "examples": {
                            f"example {number}": {"value": example}
                            for number, example in enumerate(examples, 1)
                        }
                    }
                }
            }
        },
        operation_id=path.strip("/").replace("/", "_"),
    )
