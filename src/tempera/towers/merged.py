"""Two models of the same shape, and the models between both: interpolated weights (LM-Cocktail:
Xiao et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import DataError
from ..io.console import logger, quietly
from ..io.untrusted import refuse_unsafe
from .saved import Encode, encoder_of, model_folder, open_with_library, similarity_of
from .similarities import Similarity
from .stamp import Kept


class Merged:
    """A model with `weight` times the weights of a trained model plus 1 - `weight` times the
    weights of the base; at first, with the weights of the trained model.

    Args:
        trained: a model folder or a run folder.
        base: the model at the beginning of training, or any model of the same shape and tokenizer.
        device: reads texts.

    Raises:
        DataError: no model, or two models of different tokenizers or shapes.
    """

    def __init__(self, trained: Path, base: Path, device: torch.device | str = "cpu") -> None:
        self.folder = model_folder(trained)
        base_folder = model_folder(base)
        self.device = device
        refuse_unsafe(self.folder)
        refuse_unsafe(base_folder)
        self.model = open_with_library(self.folder)
        base_model = open_with_library(base_folder)
        both = f"{trained} and {base} cannot be merged"
        if self.model.tokenizer.get_vocab() != base_model.tokenizer.get_vocab():
            raise DataError(
                f"{both}: their tokenizers differ; give the model that {trained} began with"
            )
        similarity = self.model.similarity_fn_name
        if similarity != base_model.similarity_fn_name:
            logger.warning(
                f"{base} compares by {base_model.similarity_fn_name}, and {trained} by {similarity}: all weights are "
                f"judged, and the merged model compares, by {similarity}"
            )
        self.base = _copied(base_model)
        self.trained = _copied(self.model)
        base_shapes = _shapes(self.base)
        shapes = _shapes(self.trained)
        differing = sorted(dict(base_shapes.items() ^ shapes.items()))
        if differing:
            name = differing[0]
            sizes = f"{shapes.get(name, 'missing')} and {base_shapes.get(name, 'missing')}"
            own = ""
            if name not in base_shapes:
                own = ", and a run with two towers, heads or adapters of its own has none"
            raise DataError(
                f"{both}: their shapes differ ({name}: {sizes}); give the model that {trained} began with{own}"
            )
        if all(torch.equal(self.base[name], value) for name, value in self.trained.items()):
            raise DataError(
                f"{both}: their weights are the same, as where training has kept the untrained model"
            )

    def at(self, weight: float) -> None:
        """Set the weights: the base's at 0, the trained model's at 1; tensors of whole numbers stay
        as trained."""
        mixed = dict(self.trained)
        if weight != 1:
            for name, value in self.trained.items():
                if value.is_floating_point():
                    mixed[name] = self.base[name].to(value).lerp(value, weight)
        with torch.no_grad():
            self.model.load_state_dict(mixed)

    @cached_property
    def similarity(self) -> Similarity:
        """The similarity of the trained model, and of every model between."""
        return similarity_of(self.folder)

    @cached_property
    def query(self) -> Encode:
        """The function from queries to vectors, [n, D], by the present weights."""
        return encoder_of(self.model.to(self.device), "query", self.folder)

    @cached_property
    def doc(self) -> Encode:
        """The function from documents to vectors, [n, D]."""
        return encoder_of(self.model.to(self.device), "doc", self.folder)

    def save(self, folder: Path) -> None:
        """Write the folder that `SentenceTransformer(folder)` opens."""
        with quietly():
            self.model.save(str(folder), create_model_card=False)
        kept = Kept.read(self.folder)
        if kept is not None:
            kept.write(folder)


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in weights.items()}
