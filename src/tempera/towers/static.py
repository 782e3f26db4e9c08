"""Static embeddings: a text is the mean of its tokens' vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import Tensor, nn

from ..core.batch import Role
from ..core.ragged import Ragged
from ..core.table import Table
from ..io.documents import write_json
from .pair import Tower
from .tokenizer import sample, tokenize, train_tokenizer


@dataclass(frozen=True)
class Static:
    """A static embedding trained from scratch, with a tokenizer trained on the corpus.

    Args:
        dimensions: width of the embeddings.
        vocabulary: pieces of the tokenizer.
        max_length: longer texts are cut to this many tokens.
    """

    learning_rate: ClassVar[float] = 0.03  # a token's vector is moved by few rows, so by much

    dimensions: Annotated[int, Field(gt=0)] = 256
    vocabulary: Annotated[int, Field(gt=0)] = 32_000
    max_length: Annotated[int, Field(gt=0)] = 256

    def build(self, texts: Sequence[str]) -> StaticTower:
        """An untrained tower whose tokenizer has read (an even sample of) the texts."""
        return StaticTower(train_tokenizer(sample(texts), self.vocabulary, self.max_length), self.dimensions)

    def again(self, tower: Tower) -> StaticTower:
        """An untrained tower with the tokenizer of another one."""
        assert isinstance(tower, StaticTower)
        return StaticTower(tower.tokenizer, self.dimensions)


class StaticTower(Tower):
    """Token ids of n rows to embeddings, [n, D]: the mean of each row's token vectors; 0 for an empty row."""

    padded = False

    def __init__(self, tokenizer: Tokenizer, dimensions: int) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.embedding = Table(tokenizer.get_vocab_size(), dimensions)
        nn.init.normal_(self.embedding.weight, std=1 / math.sqrt(dimensions))

    def forward(self, features: Ragged) -> Tensor:
        return self.embedding.mean_of(features.values, features.offsets[:-1])

    def features(self, texts: Sequence[str], progress: str | None = None, role: Role = "doc") -> Ragged:
        """Token ids of texts; queries and documents are read alike."""
        return tokenize(self.tokenizer, texts, progress)

    @torch.no_grad()
    def encode(self, features: Ragged, role: Role = "doc", block: int = 4096) -> Tensor:
        """Unit vectors of rows, [n, D], as the saved model gives them; 0 for an empty row."""
        device, starts = self.embedding.weight.device, range(0, len(features), block)
        parts = [F.normalize(self(features[start : start + block].to(device)), dim=-1).cpu() for start in starts]
        return torch.cat(parts) if parts else torch.empty(0, self.embedding.embedding_dim)

    def save(self, folder: Path) -> None:
        """Write the folder that `SentenceTransformer(folder)` opens."""
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"},
            {"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"},
        ]
        about = {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine", "prompts": {}}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "1_Normalize").mkdir(exist_ok=True)
        write_json(folder / "modules.json", modules)
        write_json(folder / "config_sentence_transformers.json", about)
        write_json(folder / "1_Normalize" / "config.json", {})
        # Both libraries can write files, but a full disk is then no OSError.
        (folder / "tokenizer.json").write_text(self.tokenizer.to_str(pretty=True), encoding="utf-8")
        weight = self.embedding.weight.detach().contiguous()
        (folder / "model.safetensors").write_bytes(save({"embedding.weight": weight}))
