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
from .modules import is_unit, prompt_of
from .pretrained import open_model
from .saved import similarity_of
from .sides import settings_of
from .similarities import Similarity, compared_by

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Write = Callable[[Path], None]


def write_copy(model: Path, folder: Path) -> None:
    """Write a saved model as it is, in single precision."""
    opened = open_model(str(model))
    with quietly():
        opened.save(str(folder), create_model_card=False)


def write_with_head(
    model: Path, weight: Tensor, bias: Tensor, folder: Path, similarity: Similarity = "cosine"
) -> None:
    """Write a saved model with a linear layer behind the vectors that it compares, and what a
    similarity needs: normalisation for cosine; weight [D, width], bias [D]."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    opened = open_model(str(model))
    body = _whole(opened)
    if not isinstance(body[-1], Normalize) and similarity_of(model) == "cosine":
        body.append(Normalize())
    head = Dense(
        weight.shape[1], weight.shape[0], True, nn.Identity(), init_weight=weight, init_bias=bias
    )
    end = [Normalize()] if similarity == "cosine" else []
    settings = {**_settings(opened), "similarity_fn_name": similarity}
    _write([*body, head, *end], settings, folder)


def write_routed(query: Write, doc: Write, folder: Path) -> None:
    """Write one model with a route for queries and one for documents, from functions that write the
    model of each."""
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
    doc_model = models[1]
    # Whatever the length of a query, the vectors of documents decide how they are to be compared.
    similarity = compared_by(doc_model.similarity_fn_name, is_unit(doc_model), folder)
    settings = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": similarity}
    _write([router], {**_settings(models[0]), **settings}, folder)


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
    if isinstance(modules[-1], Normalize) and model.similarity_fn_name != "dot":
        return [*modules, cut, Normalize()]
    return [*modules, cut]


def _settings(model: SentenceTransformer) -> dict[str, Any]:
    return {**settings_of(model), "truncate_dim": None}


def _write(modules: list[Any], settings: dict[str, Any], folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    with quietly():
        model = SentenceTransformer(modules=modules, **settings)
        model.save(str(folder), create_model_card=False)
