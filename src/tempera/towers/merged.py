"""Two models of one shape, and the models between them: interpolated weights (LM-Cocktail: Xiao et
al. 2023)."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import torch

from ..errors import DataError
from ..io.console import logger, quietly
from ..io.untrusted import refuse_unsafe
from .saved import Encode, encoder_of, model_folder, opened, similarity_of
from .similarities import Similarity
from .stamp import Kept


class Merged:
    """A model whose weights are `weight` of a trained model's and 1 - `weight` of its base's; the
    trained one at first.

    Args:
        trained: a model folder or a run folder.
        base: the model that it began with, or another one of its shape and tokenizer.
        device: reads texts.

    Raises:
        DataError: no model, or two models of different tokenizers or shapes.
    """

    def __init__(self, trained: Path, base: Path, device: torch.device | str = "cpu") -> None:
        self.folder, other, self.device = model_folder(trained), model_folder(base), device
        for folder in (self.folder, other):
            refuse_unsafe(folder)
        self.model, start = opened(self.folder), opened(other)
        both = f"{trained} and {base} cannot be merged"
        if self.model.tokenizer.get_vocab() != start.tokenizer.get_vocab():
            raise DataError(
                f"{both}: their tokenizers differ; give the model that {trained} began with"
            )
        if self.model.similarity_fn_name != start.similarity_fn_name:
            logger.warning(
                f"{base} compares by {start.similarity_fn_name}, and {trained} by {self.model.similarity_fn_name}: all weights are "
                f"judged, and the merged model compares, by {self.model.similarity_fn_name}"
            )
        self.ends = [
            {k: v.clone() for k, v in each.state_dict().items()} for each in (start, self.model)
        ]
        shapes = [{name: tuple(each.shape) for name, each in end.items()} for end in self.ends]
        if lost := sorted(dict(shapes[0].items() ^ shapes[1].items())):
            sizes = " and ".join(str(shape.get(lost[0], "missing")) for shape in reversed(shapes))
            own = (
                ""
                if lost[0] in shapes[0]
                else ", and a run with two towers, heads or adapters of its own has none"
            )
            raise DataError(
                f"{both}: their shapes differ ({lost[0]}: {sizes}); give the model that {trained} began with{own}"
            )
        if all(
            torch.equal(start, end)
            for start, end in zip(*(each.values() for each in self.ends), strict=True)
        ):
            raise DataError(
                f"{both}: their weights are the same, as where training has kept the untrained model"
            )

    def at(self, weight: float) -> None:
        """Set the weights: the base's at 0, the trained model's at 1; what is no floating point
        number stays as it is trained."""
        base, trained = self.ends
        mixed = {
            name: value
            if not value.is_floating_point() or weight == 1
            else base[name].to(value).lerp(value, weight)
            for name, value in trained.items()
        }
        with torch.no_grad():
            self.model.load_state_dict(mixed)

    @cached_property
    def similarity(self) -> Similarity:
        """The similarity that the trained model compares by, and every model between."""
        return similarity_of(self.folder)

    @cached_property
    def query(self) -> Encode:
        """The function from queries to vectors by the weights as they are set, [n, D]."""
        return encoder_of(self.model.to(self.device), "query", self.folder)

    @cached_property
    def doc(self) -> Encode:
        """The function from documents to vectors, [n, D]."""
        return encoder_of(self.model.to(self.device), "doc", self.folder)

    def save(self, folder: Path) -> None:
        """Write the folder that `SentenceTransformer(folder)` opens."""
        with quietly():
            self.model.save(str(folder), create_model_card=False)
        if (kept := Kept.read(self.folder)) is not None:
            kept.write(folder)
