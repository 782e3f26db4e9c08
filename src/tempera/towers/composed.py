"""Saved models that are put together: a model behind which a layer stands, or one model for queries
and one for documents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..io.console import quietly
from .modules import prompt_of
from .pretrained import open_model
from .sides import settings_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Write = Callable[[Path], None]


def write_copy(model: Path, folder: Path) -> None:
    """Write a saved model as it is, in single precision."""
    _write(open_model(str(model)), folder)


def write_with_head(model: Path, weight: Tensor, bias: Tensor, folder: Path) -> None:
    """Write a saved model with a linear layer behind its unit vectors, and normalisation; weight
    [D, width], bias [D]."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    opened = open_model(str(model))
    body = _whole(opened)
    body += [] if isinstance(body[-1], Normalize) else [Normalize()]
    head = Dense(
        weight.shape[1], weight.shape[0], True, nn.Identity(), init_weight=weight, init_bias=bias
    )
    _write(SentenceTransformer(modules=[*body, head, Normalize()], **_settings(opened)), folder)


def write_routed(query: Write, doc: Write, folder: Path) -> None:
    """Write one model with a route for queries and one for documents, from functions that write the
    model of each."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Router

    with TemporaryDirectory() as place:
        models = []
        for name, write in (("query", query), ("doc", doc)):
            write(Path(place) / name)
            models.append(open_model(str(Path(place) / name)))
    router = Router.for_query_document(*(_whole(each) for each in models))  # type: ignore[arg-type]
    prompts = {
        "query": prompt_of(models[0], "query") or "",
        "document": prompt_of(models[1], "doc") or "",
    }
    settings = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    _write(SentenceTransformer(modules=[router], **{**_settings(models[0]), **settings}), folder)


def _whole(model: SentenceTransformer) -> list[Any]:
    """Return the modules of a model, with those that cut its vectors where `truncate_dim` did."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    modules: list[Any] = list(model)
    with model.truncate_embeddings(None):
        width = model.get_embedding_dimension()
    if model.truncate_dim is None or width is None or width <= model.truncate_dim:
        return modules
    cut = Dense(
        width,
        model.truncate_dim,
        False,
        nn.Identity(),
        init_weight=torch.eye(model.truncate_dim, width),
    )
    return [*modules, cut, *([Normalize()] if isinstance(modules[-1], Normalize) else [])]


def _settings(model: SentenceTransformer) -> dict[str, Any]:
    return {**settings_of(model), "truncate_dim": None}


def _write(model: SentenceTransformer, folder: Path) -> None:
    with quietly():
        model.save(str(folder), create_model_card=False)
