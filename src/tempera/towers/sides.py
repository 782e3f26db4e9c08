"""Shared parts of the towers of queries and documents."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ..errors import ConfigError
from ..io.console import quietly

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Sides = Literal["one", "heads", "two"]


def divided(model: SentenceTransformer, sides: Sides) -> SentenceTransformer:
    """Return a model with a route for queries and a route for documents; before training, vectors
    are as before.

    Args:
        model: becomes the route for documents.
        sides: "one" leaves the model as it is; "heads" puts a linear layer, at first the identity,
            at the end of each route; "two" makes the query route a copy.

    Raises:
        ConfigError: the model has routes already.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Router

    if sides == "one":
        return model
    doc: list[Any] = list(model)
    if any(isinstance(module, Router) for module in doc):
        raise ConfigError(
            f"tower.sides is {sides}, and the model already has routes for queries and documents: drop it"
        )
    if sides == "two":
        query = copy.deepcopy(doc)
    else:
        normalises = isinstance(doc[-1], Normalize)
        body = doc[:-1] if normalises else doc
        with model.truncate_embeddings(None):
            width = model.get_embedding_dimension()
        assert width is not None
        query = list(body)
        doc = list(body)
        for route in (query, doc):
            head = Dense(width, width, False, nn.Identity(), init_weight=torch.eye(width))
            route.append(head)
            # Inner products need the lengths of the vectors.
            if normalises or model.similarity_fn_name != "dot":
                route.append(Normalize())
    router = Router.for_query_document(query, doc)
    with quietly():
        return SentenceTransformer(modules=[router], **settings_of(model))


def settings_of(model: SentenceTransformer) -> dict[str, Any]:
    """Return the settings of a model: prompts, similarity, and the width to which embeddings are
    cut."""
    return {
        "device": "cpu",
        "prompts": {name: prompt or "" for name, prompt in model.prompts.items()},
        "default_prompt_name": model.default_prompt_name,
        "similarity_fn_name": model.similarity_fn_name,
        "truncate_dim": model.truncate_dim,
    }
