"""A saved model as a module from padded token ids to the compared vectors, for other runtimes.

Letters in shapes: n rows, w tokens of the longest row, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..io.documents import read_json
from ..io.untrusted import inside, refuse_unsafe
from .pretrained import open_model
from .saved import prompts_of, read_static, similarity_of, truncation
from .similarities import Similarity


@dataclass(frozen=True)
class Exportable:
    """Hold a module with the inputs input_ids and attention_mask, [n, w] each, and the reading of
    texts to inputs."""

    module: nn.Module
    tokenizer: str  # tokenizer.json
    max_length: int | None  # None is the tokenizer's own
    special_tokens: bool
    pad: int
    prompts: dict[str, str]  # of query and doc
    similarity: Similarity  # the meaning of the vectors' inner products


class _Static(nn.Module):
    """The mean of tokens' vectors, cut to a width.

    Vectors are normalised before the cut if the model ends in a normalisation, and after the cut if
    the model compares by cosine.
    """

    def __init__(
        self, table: Tensor, normalises: bool, width: int | None, similarity: Similarity
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(table.shape[0], table.shape[1], _weight=table)
        self.normalises = normalises
        self.width = width
        self.similarity = similarity

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.unsqueeze(-1).to(self.embedding.weight.dtype)  # [n, w, 1]
        # The mean of a row without tokens is 0, as in an embedding bag.
        vectors = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        if self.normalises:
            vectors = F.normalize(vectors, dim=-1)
        return _compared(vectors[:, : self.width], self.similarity)


class _Text(nn.Module):
    def __init__(self, model: nn.Module, width: int | None, similarity: Similarity) -> None:
        super().__init__()
        self.model = model
        self.width = width
        self.similarity = similarity

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        outputs = self.model({"input_ids": input_ids, "attention_mask": attention_mask})
        return _compared(outputs["sentence_embedding"][:, : self.width], self.similarity)


def _compared(vectors: Tensor, similarity: Similarity) -> Tensor:
    """Return vectors whose inner products are a similarity, [n, D]."""
    if similarity == "cosine":
        return F.normalize(vectors, dim=-1)
    return vectors


def exportable(folder: Path) -> Exportable:
    """Return the model in a sentence-transformers folder, its pooling and normalisation included.

    Raises:
        ConfigError: the model does not go from token ids to a vector by itself, as with a router.
    """
    refuse_unsafe(folder)
    modules = read_json(folder / "modules.json")
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    prompts = prompts_of(folder)
    similarity = similarity_of(folder)
    if kinds[0] == "StaticEmbedding" and set(kinds[1:]) <= {"Normalize"}:
        path = inside(folder, modules[0]["path"])
        table = torch.from_numpy(read_static(path).table).contiguous()
        static = _Static(table, "Normalize" in kinds, truncation(folder), similarity)
        return Exportable(
            static.eval(),
            tokenizer=(path / "tokenizer.json").read_text(encoding="utf-8"),
            max_length=None,
            special_tokens=False,
            pad=0,
            prompts=prompts,
            similarity=similarity,
        )
    model = open_model(str(folder)).eval()
    fast = getattr(model.tokenizer, "backend_tokenizer", None)
    if fast is None or kinds[0] == "Router":
        raise ConfigError(
            f"{folder} cannot be exported: a model of {', '.join(kinds)} is no single network over token ids"
        )
    return Exportable(
        _Text(model, model.truncate_dim, similarity).eval(),
        tokenizer=fast.to_str(),
        max_length=model.max_seq_length,
        special_tokens=True,
        pad=model.tokenizer.pad_token_id or 0,
        prompts=prompts,
        similarity=similarity,
    )


def example(vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return the ids and the mask, [2, 4] each, of a row of four tokens and a row of three."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    ids = torch.arange(8).reshape(2, 4) % max(1, vocabulary)
    return ids * mask, mask
