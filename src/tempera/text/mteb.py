"""A saved model as MTEB asks for one (Muennighoff et al. 2023), version 2: `mteb.evaluate(MtebModel(folder), tasks)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..io.require import require
from .embedder import Model

Vectors = NDArray[np.float32]


class MtebModel:
    """MTEB's encoder protocol over a model folder or a run folder.

    Texts that a task calls queries get the model's prompt for queries; all others that for documents.

    Args:
        model: the folder; other arguments are MTEB's own and change nothing.

    Raises:
        DataError: no model there, or mteb is not installed.
    """

    def __init__(self, model: str | Path, revision: str | None = None, *, device: str | None = None, **_: Any) -> None:
        self.model = Model(str(model))
        self.revision = revision

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **_: Any,
    ) -> Vectors:
        """Unit vectors of all texts of all batches, [n, D]."""
        is_query = prompt_type is not None and str(getattr(prompt_type, "value", prompt_type)) == "query"
        texts = [text for batch in inputs for text in batch["text"]]
        return (self.model.query if is_query else self.model.doc)(texts)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines of all with all, a tensor [n, m]."""
        a, b = _unit(embeddings1), _unit(embeddings2)
        return a @ b.T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines row by row, a tensor [n]."""
        return (_unit(embeddings1) * _unit(embeddings2)).sum(-1)

    @cached_property
    def mteb_model_meta(self) -> Any:
        """What MTEB writes beside the scores."""
        require("mteb", "MTEB")
        from mteb.models import ModelMeta

        place = self.model.folder.resolve()
        name = place.parent.name if place.name == "model" else place.name
        about = {"name": f"tempera/{name}", "revision": self.revision, "similarity_fn_name": "cosine"}
        return ModelMeta.create_empty(overwrites={**about, "framework": ["Sentence Transformers"]})


def _unit(vectors: Any) -> Any:
    """Rows of length 1, a tensor [n, D]; a single vector is one row."""
    import torch

    rows = torch.as_tensor(vectors, dtype=torch.float32)
    return torch.nn.functional.normalize(rows if rows.ndim > 1 else rows[None], dim=-1)
