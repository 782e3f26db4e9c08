"""A saved cross-encoder as a function of pairs of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..io.require import require
from .saved import said

if TYPE_CHECKING:
    import torch

Judge = Callable[[Sequence[tuple[str, str]]], NDArray[np.float32]]


def load_cross_encoder(folder: Path, device: torch.device | str = "cpu") -> Judge:
    """Pairs of a query and a document to scores, [n], by a cross-encoder that sentence-transformers opens.

    Scores are what its `predict` gives: after the model's own activation, higher is better.
    """
    require("text", f"opening {folder}")
    from sentence_transformers import CrossEncoder

    try:
        model = CrossEncoder(str(folder), device=str(device), local_files_only=True)
    except Exception as error:  # whatever its modules raise
        raise DataError(f"{folder} is not a cross-encoder that sentence-transformers opens: {said(error)}") from None
    if model.num_labels != 1:
        raise DataError(f"{folder} gives {model.num_labels} numbers a pair, and one score is expected")
    return lambda pairs: np.asarray(model.predict(list(pairs), show_progress_bar=False), np.float32)
