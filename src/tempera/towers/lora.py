"""Low-rank adapters: a frozen transformer and a few trained matrices."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ..errors import ConfigError
from ..io.require import require
from .saved import said

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class Lora:
    """LoRA (Hu et al. 2021): every chosen linear layer W becomes W + alpha / rank B A, and only A
    and B are trained.

    Args:
        rank: of B A.
        alpha: the scale of B A; None is twice the rank.
        dropout: of the inputs of A.
        layers: names of the layers, as query and value; None is every linear layer of the
            transformer.
        merge: save a model of the usual kind, with B A added to W; otherwise the adapter alone, for
            a single tower; the adapter needs the model of its training.
    """

    rank: Annotated[int, Field(gt=0)] = 16
    alpha: Annotated[int, Field(gt=0)] | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    layers: tuple[str, ...] | None = None
    merge: bool = True

    def add_to(self, model: SentenceTransformer) -> None:
        """Freeze a model's transformers and add adapters without an effect yet.

        Raises:
            ConfigError: no transformer, no such layers, or an adapter alone where the adapter could
                not be opened again.
        """
        require("lora", "tower.lora")
        from peft import LoraConfig

        modules = transformers_of(model)
        if not modules:
            raise ConfigError("tower.lora is for transformers, and this model has none: drop it")
        if not self.merge and not set(model).issuperset(modules):
            raise ConfigError(
                "tower.lora.merge is false, and sentence-transformers opens no adapters of a model with routes for queries and "
                "documents: give true, or leave out what makes the routes (tower.sides)"
            )
        alpha = 2 * self.rank if self.alpha is None else self.alpha
        layers = "all-linear" if self.layers is None else list(self.layers)
        for module in modules:
            options = LoraConfig(
                r=self.rank, lora_alpha=alpha, lora_dropout=self.dropout, target_modules=layers
            )
            try:
                module.model.add_adapter(options)
            except ValueError as error:
                where = "tower.lora" if self.layers is None else "tower.lora.layers"
                raise ConfigError(f"{where}: {said(error)}") from None

    @contextmanager
    def saving(self, model: SentenceTransformer) -> Iterator[None]:
        """A context with the model in its form for saving; afterwards the adapters are as
        before."""
        modules = transformers_of(model) if self.merge else []
        bodies = [module.model for module in modules]
        try:
            for module, body in zip(modules, bodies, strict=True):
                module.model = merged(body)
            yield
        finally:
            for module, body in zip(modules, bodies, strict=True):
                module.model = body


def merged(body: Any) -> Any:
    """A copy of a transformer with the adapters added to the weights."""
    from peft.tuners.lora import LoraLayer

    whole = copy.deepcopy(body)
    for name, layer in list(whole.named_modules()):
        if isinstance(layer, LoraLayer):
            layer.merge()
            whole.set_submodule(name, layer.get_base_layer())
    whole._hf_peft_config_loaded = False  # or the library saves the adapter it no longer has
    return whole.requires_grad_(True)


def transformers_of(model: SentenceTransformer) -> list[Any]:
    """The transformer modules of a model, each once."""
    from sentence_transformers.sentence_transformer.modules import Transformer

    return [module for module in model.modules() if isinstance(module, Transformer)]
