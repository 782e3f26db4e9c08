"""A sentence-transformers model as a tower: the tower pads, flattens or bags token ids, and the
model's modules do the rest.

Letters in shapes: n rows, w tokens of the longest row, v tokens of all rows, D width of the
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
# Inputs of flattened attention besides token ids.
_FLAT = {
    "position_ids",
    "seq_idx",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
}
# Inputs that `forward` makes again, or, for the token types of one text, may leave out.
_MADE = {"input_ids", "attention_mask", "offsets", "token_type_ids"} | _FLAT
_TOKENIZED_AT_ONCE = 1000
# Tokens that are encoded together. A block that fits a core's cache is fastest: 512 tokens by 1.3x
# over 2,048 and by 2.9x over 8,192. The cache holds more tokens in bf16: 1,024 is faster by 1.1x
# than 2,048 (Zen 5), and by 1.05x to 1.2x than 512, 768 and 1,536 (AMX).
_ENCODED_AT_ONCE = 512
_ENCODED_IN_HALF = 1024
_ENCODED_ON_DEVICE = 65_536

Saving = Callable[["SentenceTransformer"], AbstractContextManager[Any]]


def tower_of(model: SentenceTransformer, saving: Saving = nullcontext, origin: str = "") -> Tower:
    """Return a single tower if the model embeds queries and documents alike, or a tower of each
    role.

    Args:
        model: is trained in place.
        saving: a context in which the model is as it is to be saved.
        origin: identifies the files and the options that the model was made from.

    Raises:
        ConfigError: a model with layers across the batch, or with more inputs than token ids.
    """
    refuse_batch_statistics(model)
    query = TextTower(model, "query", saving, origin)
    doc = TextTower(model, "doc", saving, origin)
    if query.constants == doc.constants:
        return doc
    return Towers(query, doc)


class TextTower(Tower):
    """Token ids of n rows to embeddings, [n, D], by the modules of a model.

    A transformer's rows are padded to the longest row; rows of equal length have no mask. Flash
    attention reads row after row without padding; a static embedding takes the rows as bags. An
    empty text without special tokens has no tokens, and the model decides its embedding.

    Args:
        model: is trained in place.
        role: of the texts; decides the prompt.
        saving: a context in which the model is as it is to be saved.
        origin: identifies the files and the options that the model was made from.
        task: of a model with routes; None is the task of the role.
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
        self.model = model
        self.saving = saving
        self.task = task
        self.unit = is_unit(model)
        self.normalised = self.unit or model.similarity_fn_name != "dot"
        # Two texts of different length show how rows are padded, and the values that are no
        # tensors, which are the same for all rows.
        probe = self._read(["", "a a a a a a a a"], role)
        self.constants = constants_of(probe, model)
        self.origin = origin
        if origin:
            with_constants = f"{origin} {self.constants}"
            self.origin = xxhash.xxh3_128_hexdigest(with_constants.encode())
        self.padded = "attention_mask" in probe
        self.typed = "token_type_ids" in probe
        self.pad = 0  # token id of padding
        self.left = False  # whether padding stands before the tokens
        self.first = 0  # position of a row's first token
        if self.padded:
            self._inputs = self._padded
            absent = probe["attention_mask"] == 0
            self.left = bool(absent[0, 0])
            if absent.any():
                self.pad = int(probe["input_ids"][absent][0])
        elif "cu_seq_lens_q" in probe:
            self._inputs = self._flat
        else:
            self._inputs = self._bags
        if "position_ids" in probe:
            self.first = int(probe["position_ids"].min())

    def features(
        self, texts: Sequence[str], progress: str | None = None, role: Role = "doc"
    ) -> Ragged:
        """Return the token ids of texts behind the prompt of their role, special tokens included,
        cut to the model's length; int32."""
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
        inputs.update(self.constants)
        with without_cudnn_attention(features.values.device):
            embeddings: Tensor = self.model(inputs)["sentence_embedding"]
        return embeddings[:, : self.width]

    def compare_by(self, similarity: Similarity) -> None:
        """Let the model compare, and be saved, by a similarity; for vectors of length 1, both
        similarities are the same."""
        if not self.unit:
            self.model.similarity_fn_name = similarity
            self.normalised = similarity == "cosine"

    @property
    def width(self) -> int:
        """The width of the embeddings, D."""
        width = self.model.get_embedding_dimension()
        assert width is not None
        return width

    @torch.no_grad()
    def encode(
        self,
        features: Ragged,
        role: Role = "doc",
        tokens: int | None = None,
        count: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """Return the vectors of rows, [n, D], as compared by the saved model.

        Rows of like length are encoded together, in blocks of at most `tokens` tokens. `count` is
        called for each block with its tokens, and with its tokens and padding.
        """
        device = next(self.parameters()).device
        if not tokens:
            tokens = self._block_size(device)
        vectors = torch.empty(len(features), self.width)
        order = features.lengths.cpu().argsort(stable=True)
        lengths = features.lengths.cpu()[order].clamp(min=1)
        end = len(order)
        with without_dropout(self), lowered(self, self.reads):
            while end:  # the longest first: memory is short at once or never
                longest = int(lengths[end - 1])
                start = max(0, end - max(1, tokens // longest))
                rows = order[start:end]
                try:
                    part = self(features[rows].to(device)).float()
                    if self.normalised:
                        part = F.normalize(part, dim=-1)
                    vectors[rows] = part.cpu()
                except torch.OutOfMemoryError:
                    if len(rows) == 1:
                        raise
                    tokens = len(rows) // 2 * longest
                    continue
                if count is not None:
                    read = int(lengths[start:end].sum())
                    count(read, len(rows) * longest if self.padded else read)
                end = start
        return vectors

    def _block_size(self, device: torch.device) -> int:
        """Return the number of tokens to encode together on a device."""
        if device.type != "cpu":
            return _ENCODED_ON_DEVICE
        if self.reads == torch.float32:
            return _ENCODED_AT_ONCE
        return _ENCODED_IN_HALF

    def save(self, folder: Path) -> None:
        """Write the folder that `SentenceTransformer(folder)` opens."""
        with self.saving(self.model), quietly():
            self.model.save(str(folder), create_model_card=False)

    def _read(self, texts: list[str], role: Role) -> dict[str, Any]:
        """Return the inputs of the model, made of texts by sentence-transformers."""
        prompt = prompt_of(self.model, role)
        task = self.task or TASKS[role]
        inputs: dict[str, Any] = self.model.preprocess(texts, prompt=prompt, task=task)
        return inputs

    def _bags(self, rows: Ragged) -> dict[str, Any]:
        return {"input_ids": rows.values, "offsets": rows.offsets[:-1]}

    def _padded(self, rows: Ragged) -> dict[str, Any]:
        n = len(rows)
        width = max(1, rows.longest)
        if width * n == len(rows.values):
            return {"input_ids": rows.values.view(n, width)}
        lengths = rows.lengths[:, None]
        position = torch.arange(width, device=lengths.device)
        # [n, w]
        present = position >= width - lengths if self.left else position < lengths
        padding = torch.full_like(present, self.pad, dtype=torch.int64)
        ids = padding.masked_scatter(present, rows.values)
        return {"input_ids": ids, "attention_mask": present.long()}

    def _flat(self, rows: Ragged) -> dict[str, Any]:
        device = rows.offsets.device
        row = torch.arange(len(rows), device=device).repeat_interleave(rows.lengths)  # [v]
        position = torch.arange(len(row), device=device) - rows.offsets[row] + self.first
        ends = rows.offsets.int()
        longest = rows.longest
        return {
            "input_ids": rows.values[None],
            "position_ids": position[None],
            "seq_idx": row[None].int(),
            "cu_seq_lens_q": ends,
            "cu_seq_lens_k": ends,
            "max_length_q": longest,
            "max_length_k": longest,
        }


def is_unit(model: SentenceTransformer) -> bool:
    """Return True if all vectors of a model have length 1: if the model, or each of its routes,
    ends in a normalisation."""
    from sentence_transformers.sentence_transformer.modules import Normalize, Router

    if model.truncate_dim is not None:
        return False
    last: Any = model[-1]
    if isinstance(last, Router):
        routes: list[Any] = list(last.sub_modules.values())
        return all(isinstance(route[-1], Normalize) for route in routes)
    return isinstance(last, Normalize)


def read_in(tower: nn.Module, dtype: torch.dtype) -> None:
    """Let the transformers of a tower read texts in a precision; tables keep their precision."""
    for module in tower.modules():
        if isinstance(module, TextTower) and module._inputs != module._bags:
            module.reads = dtype


def prompt_of(model: SentenceTransformer, role: Role) -> str | None:
    """Return the prompt that `encode_query` or `encode_document` puts before a text."""
    return prompt_among(model.prompts, model.default_prompt_name, role)


def constants_of(inputs: Mapping[str, Any], model: SentenceTransformer) -> dict[str, Any]:
    """Return the inputs common to all rows, from all inputs of a model's `preprocess`.

    Raises:
        ConfigError: a row has more than token ids.
    """
    extra = [key for key, value in inputs.items() if isinstance(value, Tensor) and key not in _MADE]
    if extra or ("token_type_ids" in inputs and inputs["token_type_ids"].any()):
        raise ConfigError(
            f"the model reads {', '.join(extra) or 'token types'} besides token ids: take another one"
        )
    constants = {key: value for key, value in inputs.items() if key not in _MADE}
    if not _leaves_prompts_out(model):
        constants.pop("prompt_length", None)
    return constants


def rows_of(inputs: Mapping[str, Any]) -> Ragged:
    """Return the token ids of rows, without padding, from the inputs of a model's `preprocess`."""
    ids = inputs["input_ids"]
    if "offsets" in inputs:
        return Ragged(ids, torch.cat([inputs["offsets"], torch.tensor([len(ids)])]))
    if "cu_seq_lens_q" in inputs:
        return Ragged(ids[0], inputs["cu_seq_lens_q"].long())
    present = inputs["attention_mask"].bool()
    return Ragged(ids[present], from_lengths(present.sum(1)))


def _leaves_prompts_out(model: SentenceTransformer) -> bool:
    """Return True if a module of a model pools tokens without the tokens of the prompt."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    poolings = [module for module in model.modules() if isinstance(module, Pooling)]
    return not all(pooling.include_prompt for pooling in poolings)
