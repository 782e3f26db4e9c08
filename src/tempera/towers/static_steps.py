"""A saved static model as the steps from the vectors of tokens to the vector of a text.

Letters in shapes: v vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .saved import (
    StaticParts,
    is_static,
    kinds_of,
    open_with_library,
    prompts_of,
    similarity_of,
    static_parts,
    truncation,
)

if TYPE_CHECKING:  # it would load torch
    from ..core.batch import Role

_TASKS: dict[Role, str] = {"query": "query", "doc": "document"}  # as modules.TASKS, without torch


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer after the mean of the tokens' vectors."""

    weight: NDArray[np.float64]  # [out, in]
    bias: NDArray[np.float64] | None  # [out]


@dataclass(frozen=True)
class UnitLength:
    """A normalisation of the vector to length 1."""


Step = LinearLayer | UnitLength


@dataclass(frozen=True)
class StaticSteps:
    """The part of a saved static model that embeds queries or documents.

    The vector of a text is the mean of the vectors of the text's tokens, after all steps, cut to a
    width, and of length 1 for a comparison by cosine.

    Args:
        parts: tokenizer, and vectors of the tokens, [v, D].
        prompt: stands before each text.
        steps: follow the mean.
        width: number of the first columns to keep; None keeps all.
        unit: True for a comparison by cosine.
    """

    parts: StaticParts
    prompt: str
    steps: Sequence[Step]
    width: int | None
    unit: bool

    @classmethod
    def read(cls, folder: Path, role: Role) -> StaticSteps | None:
        """Return the part of a saved model for a role; None for a model with other modules than a
        static embedding, linear layers and normalisations.

        Raises:
            DataError: a damaged model.
        """
        if not is_static(folder) and kinds_of(folder)[:1] != ["Router"]:
            return None
        prompt = prompts_of(folder)[role]
        unit = similarity_of(folder) == "cosine"
        parts = static_parts(folder)
        if parts is not None and unit:  # without torch; the table is cut already
            return cls(parts, prompt, (), None, unit)
        return _opened(folder, role, prompt, unit)


def _opened(folder: Path, role: Role, prompt: str, unit: bool) -> StaticSteps | None:
    """Return the part of a model that sentence-transformers opens."""
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    modules = _modules(open_with_library(folder), role)
    if not modules or not isinstance(modules[0], StaticEmbedding):
        return None
    table = modules[0].embedding.weight.detach().numpy()
    steps: list[Step] = []
    for module in modules[1:]:
        step = _step(module)
        if step is None:
            return None
        steps.append(step)
    parts = StaticParts(modules[0].tokenizer, table)
    return StaticSteps(parts, prompt, steps, truncation(folder), unit)


def _modules(model: Any, role: Role) -> list[Any]:
    """Return the modules of an open model for the texts of a role; none if the model has no route
    with the name of the role."""
    from sentence_transformers.sentence_transformer.modules import Router

    modules: list[Any] = []
    for module in model:
        if not isinstance(module, Router):
            modules.append(module)
            continue
        if _TASKS[role] not in module.sub_modules:
            return []
        route: Any = module.sub_modules[_TASKS[role]]
        modules += list(route)
    return modules


def _step(module: Any) -> Step | None:
    """Return a module as a step; None for a module that is not linear."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize
    from torch.nn import Identity

    if isinstance(module, Normalize):
        return UnitLength()
    if not isinstance(module, Dense) or not isinstance(module.activation_function, Identity):
        return None
    if module.use_residual or module.module_input_name != module.module_output_name:
        return None
    weight = module.linear.weight.detach().double().numpy()
    bias = module.linear.bias
    return LinearLayer(weight, None if bias is None else bias.detach().double().numpy())
