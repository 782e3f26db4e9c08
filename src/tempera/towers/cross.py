"""A saved cross-encoder as a function of pairs of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..arithmetic.abilities import without_cudnn_attention
from ..errors import DataError
from ..io.documents import read_json
from ..io.require import require
from .saved import said

if TYPE_CHECKING:
    import torch

_SCORES = (
    "ForSequenceClassification",
    "ForCausalLM",
    "ForConditionalGeneration",
)  # architectures with a score
Judge = Callable[[Sequence[tuple[str, str]]], NDArray[np.float32]]


def load_cross_encoder(folder: Path, device: torch.device | str = "cpu") -> Judge:
    """Pairs of a query and a document to scores, [n], by a cross-encoder opened by
    sentence-transformers.

    Scores are the outputs of the cross-encoder's `predict`, after the model's own activation;
    higher is better.

    Raises:
        DataError: an unreadable model, or a model with several scores or without a trained score.
    """
    require("text", f"opening {folder}")
    _refuse_untrained(folder)
    from sentence_transformers import CrossEncoder

    try:
        model = CrossEncoder(str(folder), device=str(device), local_files_only=True)
    except Exception as error:  # whatever its modules raise
        raise DataError(
            f"{folder} is not a cross-encoder that sentence-transformers opens: {said(error)}"
        ) from None
    if model.num_labels != 1:
        raise DataError(
            f"{folder} gives {model.num_labels} numbers a pair, and one score is expected"
        )

    def judge(pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        with without_cudnn_attention(model.device):
            return np.asarray(model.predict(list(pairs), show_progress_bar=False), np.float32)

    return judge


def _refuse_untrained(folder: Path) -> None:
    """Refuse a model without a score of its own, for instance an embedding model:
    sentence-transformers would add a random score."""
    try:
        kinds = read_json(folder / "config.json")["architectures"] or []
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ):  # whoever opens the model says what is wrong with it
        return
    if kinds and not any(str(kind).endswith(_SCORES) for kind in kinds):
        raise DataError(
            f"{folder} is no cross-encoder: {kinds[0]} has no score of a pair that was trained, and a random one says nothing; "
            "give a model that was trained to score pairs"
        )
