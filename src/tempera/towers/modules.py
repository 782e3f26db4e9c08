"""A sentence-transformers model as a tower: it pads, flattens or bags token ids, and its modules do
the rest.

Letters in shapes: n rows, w tokens of the longest of them, v tokens of all rows, D width of the
    embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
import xxhash
from torch import Tensor, nn

from ..arithmetic.abilities import without_cudnn_attention, without_dropout
from ..arithmetic.ragged import Ragged, from_lengths
from ..core.advice import refuse_batch_statistics
from ..core.batch import Role
from ..errors import ConfigError
from ..io.console import progress_bar, quietly
from ..layers.half import lowered
from .pair import Tower, Towers
from .prompts import prompt_among
from .similarities import Similarity

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TASKS: dict[Role, str] = {"query": "query", "doc": "document"}
# What flattened attention reads besides token ids.
_FLAT = {
    "position_ids",
    "seq_idx",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
}
# What forward makes again, or, for the token types of one text, may leave out.
_MADE = {"input_ids", "attention_mask", "offsets", "token_type_ids", *_FLAT}
_TOKENIZED_AT_ONCE = 1000
# Tokens that are encoded together. What a core holds near itself is fastest: of 512, 2,048 and
# 8,192 the first by 1.3x and 2.9x. In bf16, of which it holds more, it is 1,024: by 1.1x over 2,048
# (Zen 5), and by 1.05x to 1.2x over 512, 768 and 1,536 (AMX).
_ENCODED_AT_ONCE, _ENCODED_IN_HALF, _ENCODED_ON_DEVICE = 512, 1024, 65_536

Saving = Callable[["SentenceTransformer"], AbstractContextManager[Any]]


def tower_of(model: SentenceTransformer, saving: Saving = nullcontext, origin: str = "") -> Tower:
    """One tower if the model embeds queries and documents alike, or the tower of each.

    Args:
        model: is trained in place.
        saving: a context in which the model is as it is to be saved.
        origin: identifies the files and the options that the model was made from.

    Raises:
        ConfigError: a model whose layers look at the whole batch, or that reads more than token
            ids.
    """
    refuse_batch_statistics(model)
    query, doc = TextTower(model, "query", saving, origin), TextTower(model, "doc", saving, origin)
    return doc if query.constants == doc.constants else Towers(query, doc)


class TextTower(Tower):
    """Token ids of n rows to embeddings, [n, D], by the modules of a model.

    A transformer's rows are padded to the longest of those it is given, and without a mask where
    none is shorter; flash attention reads them one after the other; a static embedding takes them
    as bags. An empty text without special tokens has no tokens, and its row is as the model has it.

    Args:
        task: of a model with routes; None is that of the role.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        role: Role,
        saving: Saving = nullcontext,
        origin: str = "",
        task: str | None = None,
    ) -> None:
        super().__init__()
        self.model, self.saving, self.task = model, saving, task
        self.unit = is_unit(model)
        self.normalised = self.unit or model.similarity_fn_name != "dot"
        # Two texts of different length show what all rows have in common: padding, and what is no
        # tensor.
        probe = self._read(["", "a a a a a a a a"], role)
        self.constants = constants_of(probe, model)
        self.origin = origin and xxhash.xxh3_128_hexdigest(f"{origin} {self.constants}".encode())
        self.padded, self.typed = "attention_mask" in probe, "token_type_ids" in probe
        self._inputs = (
            self._padded if self.padded else self._flat if "cu_seq_lens_q" in probe else self._bags
        )
        self.pad, self.left, self.first = (
            0,
            False,
            int(probe["position_ids"].min()) if "position_ids" in probe else 0,
        )
        if self.padded:
            absent = probe["attention_mask"] == 0
            self.left = bool(absent[0, 0])
            self.pad = int(probe["input_ids"][absent][0]) if absent.any() else 0

    def features(
        self, texts: Sequence[str], progress: str | None = None, role: Role = "doc"
    ) -> Ragged:
        """Token ids of texts behind the prompt of their role, special tokens included, cut to the
        model's length; int32."""
        parts = [Ragged.of([])]
        with progress_bar(progress, len(texts), "text") as bar:
            for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
                block = list(texts[start : start + _TOKENIZED_AT_ONCE])
                parts.append(rows_of(self._read(block, role)))
                bar.update(len(block))
        return Ragged.cat([Ragged(part.values.int(), part.offsets) for part in parts])

    def forward(self, features: Ragged) -> Tensor:
        if not len(features):
            return next(self.parameters()).new_empty(0, self.width)
        inputs = self._inputs(replace(features, values=features.values.long()))
        if self.typed:
            inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        with without_cudnn_attention(features.values.device):
            embeddings: Tensor = self.model({**inputs, **self.constants})["sentence_embedding"]
        return embeddings[:, : self.width]

    def compare_by(self, similarity: Similarity) -> None:
        """Let the model compare, and be saved, by a similarity; where its vectors have length 1,
        both are one."""
        if not self.unit:
            self.model.similarity_fn_name = similarity
            self.normalised = similarity == "cosine"

    @property
    def width(self) -> int:
        """D."""
        width = self.model.get_embedding_dimension()
        assert width is not None
        return width

    @torch.no_grad()
    def encode(self, features: Ragged, role: Role = "doc", tokens: int | None = None) -> Tensor:
        """Vectors of rows, [n, D], as the saved model compares them; in blocks of rows of like
        length and at most `tokens`."""
        device = next(self.parameters()).device
        on_host = _ENCODED_AT_ONCE if self.reads == torch.float32 else _ENCODED_IN_HALF
        tokens = tokens or (on_host if device.type == "cpu" else _ENCODED_ON_DEVICE)
        vectors = torch.empty(len(features), self.width)
        order = features.lengths.cpu().argsort(stable=True)
        lengths = features.lengths.cpu()[order].clamp(min=1)
        end = len(order)
        with without_dropout(self), lowered(self, self.reads):
            while end:  # the longest first: memory is short at once or never
                start = max(0, end - max(1, tokens // int(lengths[end - 1])))
                rows = order[start:end]
                try:
                    part = self(features[rows].to(device)).float()
                    vectors[rows] = self._compared(part).cpu()
                except torch.OutOfMemoryError:
                    if len(rows) == 1:
                        raise
                    tokens = len(rows) // 2 * int(lengths[end - 1])
                    continue
                end = start
        return vectors

    def _compared(self, vectors: Tensor) -> Tensor:
        """Return vectors whose inner products are the model's similarity."""
        return F.normalize(vectors, dim=-1) if self.normalised else vectors

    def save(self, folder: Path) -> None:
        """Write the folder that `SentenceTransformer(folder)` opens."""
        with self.saving(self.model), quietly():
            self.model.save(str(folder), create_model_card=False)

    def _read(self, texts: list[str], role: Role) -> dict[str, Any]:
        read: dict[str, Any] = self.model.preprocess(
            texts, prompt=prompt_of(self.model, role), task=self.task or TASKS[role]
        )
        return read

    def _bags(self, rows: Ragged) -> dict[str, Any]:
        return {"input_ids": rows.values, "offsets": rows.offsets[:-1]}

    def _padded(self, rows: Ragged) -> dict[str, Any]:
        lengths, n = rows.lengths, len(rows)
        width = max(1, rows.longest)
        if width * n == len(rows.values):
            return {"input_ids": rows.values.view(n, width)}
        place = torch.arange(width, device=lengths.device)
        present = (
            place >= width - lengths[:, None] if self.left else place < lengths[:, None]
        )  # [n, w]
        ids = torch.full_like(present, self.pad, dtype=torch.int64).masked_scatter(
            present, rows.values
        )
        return {"input_ids": ids, "attention_mask": present.long()}

    def _flat(self, rows: Ragged) -> dict[str, Any]:
        lengths, ends = rows.lengths, rows.offsets.int()
        row = torch.arange(len(rows), device=lengths.device).repeat_interleave(lengths)  # [v]
        place = torch.arange(len(row), device=lengths.device) - rows.offsets[row] + self.first
        longest = rows.longest
        return {
            "input_ids": rows.values[None],
            "position_ids": place[None],
            "seq_idx": row[None].int(),
            **{
                "cu_seq_lens_q": ends,
                "cu_seq_lens_k": ends,
                "max_length_q": longest,
                "max_length_k": longest,
            },
        }


def is_unit(model: SentenceTransformer) -> bool:
    """Return whether all vectors of a model have length 1: whether it ends in a normalisation, or
    each of its routes does."""
    from sentence_transformers.sentence_transformer.modules import Normalize, Router

    if model.truncate_dim is not None:
        return False
    last: Any = model[-1]
    if isinstance(last, Router):
        routes: list[Any] = list(last.sub_modules.values())
        return all(isinstance(route[-1], Normalize) for route in routes)
    return isinstance(last, Normalize)


def read_in(tower: nn.Module, dtype: torch.dtype) -> None:
    """Let the transformers of a tower read texts in another precision; tables are looked up in
    their own."""
    for module in tower.modules():
        if isinstance(module, TextTower) and module._inputs != module._bags:
            module.reads = dtype


def prompt_of(model: SentenceTransformer, role: Role) -> str | None:
    """Return the prompts that `encode_query` and `encode_document` put before a text."""
    return prompt_among(model.prompts, model.default_prompt_name, role)


def constants_of(read: Mapping[str, Any], model: SentenceTransformer) -> dict[str, Any]:
    """Return what a model's `preprocess` gives beside token ids, which has to be the same for every
    row.

    Raises:
        ConfigError: there is more to a row than its token ids.
    """
    extra = [key for key, value in read.items() if isinstance(value, Tensor) and key not in _MADE]
    if extra or ("token_type_ids" in read and read["token_type_ids"].any()):
        raise ConfigError(
            f"the model reads {', '.join(extra) or 'token types'} besides token ids: take another one"
        )
    left_out = _MADE if _leaves_prompts_out(model) else _MADE | {"prompt_length"}
    return {key: value for key, value in read.items() if key not in left_out}


def rows_of(read: Mapping[str, Any]) -> Ragged:
    """Token ids of what a model's `preprocess` gives, without padding."""
    ids = read["input_ids"]
    if "offsets" in read:
        return Ragged(ids, torch.cat([read["offsets"], torch.tensor([len(ids)])]))
    if "cu_seq_lens_q" in read:
        return Ragged(ids[0], read["cu_seq_lens_q"].long())
    present = read["attention_mask"].bool()
    return Ragged(ids[present], from_lengths(present.sum(1)))


def _leaves_prompts_out(model: SentenceTransformer) -> bool:
    from sentence_transformers.sentence_transformer.modules import Pooling

    return any(
        isinstance(module, Pooling) and not module.include_prompt for module in model.modules()
    )
