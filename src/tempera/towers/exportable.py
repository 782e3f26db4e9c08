"""A saved model as one module from padded token ids to unit vectors: what other runtimes can take
over.

Letters in shapes: n rows, w tokens of the longest of them, D width.
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
from .saved import prompts_of, read_static, truncation


@dataclass(frozen=True)
class Exportable:
    """A module that takes input_ids and attention_mask, [n, w] each, and how texts become these."""

    module: nn.Module
    tokenizer: str  # tokenizer.json
    max_length: int | None  # None is the tokenizer's own
    special_tokens: bool
    pad: int
    prompts: dict[str, str]  # of query and doc


class _Static(nn.Module):
    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding(table.shape[0], table.shape[1], _weight=table)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.unsqueeze(-1).to(self.embedding.weight.dtype)  # [n, w, 1]
        # The mean of a row without tokens is 0, as that of an embedding bag.
        return F.normalize(
            (self.embedding(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1), dim=-1
        )


class _Text(nn.Module):
    def __init__(self, model: nn.Module, width: int | None) -> None:
        super().__init__()
        self.model, self.width = model, width

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        outputs = self.model({"input_ids": input_ids, "attention_mask": attention_mask})
        return F.normalize(outputs["sentence_embedding"][:, : self.width], dim=-1)


def exportable(folder: Path) -> Exportable:
    """The model in a sentence-transformers folder, its pooling and normalisation included.

    Raises:
        ConfigError: a model that does not go from token ids to one vector by itself, such as one
            with a router.
    """
    refuse_unsafe(folder)
    modules = read_json(folder / "modules.json")
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    prompts = prompts_of(folder)
    if kinds[0] == "StaticEmbedding" and set(kinds[1:]) <= {"Normalize"}:
        path = inside(folder, modules[0]["path"])
        table = torch.from_numpy(read_static(path)[1])[:, : truncation(folder)].contiguous()
        tokenizer = (path / "tokenizer.json").read_text(encoding="utf-8")
        return Exportable(_Static(table).eval(), tokenizer, None, False, 0, prompts)
    model = open_model(str(folder)).eval()
    fast = getattr(model.tokenizer, "backend_tokenizer", None)
    if fast is None or kinds[0] == "Router":
        raise ConfigError(
            f"{folder} cannot be exported: a model of {', '.join(kinds)} is no single network over token ids"
        )
    pad = model.tokenizer.pad_token_id or 0
    return Exportable(
        _Text(model, model.truncate_dim).eval(),
        fast.to_str(),
        model.max_seq_length,
        True,
        pad,
        prompts,
    )


def example(vocabulary: int) -> tuple[Tensor, Tensor]:
    """Two rows of four tokens, the second one shorter."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    return torch.arange(8).reshape(2, 4) % max(1, vocabulary) * mask, mask
