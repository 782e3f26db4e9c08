"""The similarity of a saved model, as saved by sentence-transformers, in terms of inner
products."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from ..errors import DataError
from ..io.console import logger

# Inner products of vectors of length 1, or of vectors as the model gives them.
Similarity = Literal["cosine", "dot"]


def compared_by(name: str | None, unit: bool, folder: Path) -> Similarity:
    """Return the similarity for a name of sentence-transformers.

    Args:
        name: None is sentence-transformers' own, cosine.
        unit: all vectors of the model have length 1, and dot is a cosine.
        folder: of the model, for messages.

    Raises:
        DataError: a similarity by which nothing is ranked here.

    >>> compared_by("dot", False, Path("model")), compared_by("dot", True, Path("model"))
    ('dot', 'cosine')
    """
    if name in (None, "cosine") or (unit and name == "dot"):
        return "cosine"
    if name == "dot":
        return "dot"
    if unit and name == "euclidean":
        _say_that_cosine_ranks_alike(folder)
        return "cosine"
    raise DataError(
        f"{folder} compares by {name} (similarity_fn_name in its config_sentence_transformers.json), and documents are ranked "
        "by cosine or dot here: write one of these there if it suits the model, or rank with sentence-transformers"
    )


@cache
def _say_that_cosine_ranks_alike(folder: Path) -> None:
    logger.warning(
        f"{folder} compares by euclidean distance: its vectors have length 1, so cosine ranks the same, and scores are cosines"
    )
