"""Composed saved models: a model with a layer at the end, or a model of queries and a model of
documents."""

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
    """Write a saved model unchanged, in single precision."""
    saved = open_model(str(model))
    with quietly():
        saved.save(str(folder), create_model_card=False)


def write_with_head(
    model: Path, weight: Tensor, bias: Tensor, folder: Path, similarity: Similarity = "cosine"
) -> None:
    """Write a saved model with a linear layer at the end, after the compared vectors.

    For cosine, a normalisation follows.

    Args:
        model: folder of the saved model.
        weight: of the layer, [D, width].
        bias: of the layer, [D].
        folder: to write.
        similarity: of the new vectors.
    """
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    saved = open_model(str(model))
    modules = _whole(saved)
    if not isinstance(modules[-1], Normalize) and similarity_of(model) == "cosine":
        modules.append(Normalize())
    head = Dense(
        weight.shape[1], weight.shape[0], True, nn.Identity(), init_weight=weight, init_bias=bias
    )
    modules.append(head)
    if similarity == "cosine":
        modules.append(Normalize())
    settings = _settings(saved)
    settings["similarity_fn_name"] = similarity
    _write(modules, settings, folder)


def write_routed(query: Write, doc: Write, folder: Path) -> None:
    """Write a model with a route for queries and a route for documents.

    Args:
        query: writes the model of queries.
        doc: writes the model of documents.
        folder: to write.
    """
    from sentence_transformers.sentence_transformer.modules import Router

    with TemporaryDirectory() as temporary:
        query_folder = Path(temporary) / "query"
        query(query_folder)
        query_model = open_model(str(query_folder))
        doc_folder = Path(temporary) / "doc"
        doc(doc_folder)
        doc_model = open_model(str(doc_folder))
    router = Router.for_query_document(_whole(query_model), _whole(doc_model))
    settings = _settings(query_model)
    settings["prompts"] = {
        "query": prompt_of(query_model, "query") or "",
        "document": prompt_of(doc_model, "doc") or "",
    }
    settings["default_prompt_name"] = None
    # The length of a query's vector does not change a ranking, so the documents' model decides.
    settings["similarity_fn_name"] = compared_by(
        doc_model.similarity_fn_name, is_unit(doc_model), folder
    )
    _write([router], settings, folder)


def _whole(model: SentenceTransformer) -> list[Any]:
    """Return the modules of a model, and modules to cut vectors in place of `truncate_dim`."""
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
    ends_in_unit = isinstance(modules[-1], Normalize)
    modules.append(cut)
    if ends_in_unit and model.similarity_fn_name != "dot":
        modules.append(Normalize())
    return modules


def _settings(model: SentenceTransformer) -> dict[str, Any]:
    settings = settings_of(model)
    settings["truncate_dim"] = None
    return settings


def _write(modules: list[Any], settings: dict[str, Any], folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    with quietly():
        model = SentenceTransformer(modules=modules, **settings)
        model.save(str(folder), create_model_card=False)
