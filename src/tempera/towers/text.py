"""Any sentence-transformers model as a tower: transformer, pooling, dense, static, prompts.

Letters in shapes: n rows, w tokens of the longest of them, v tokens of all rows, D width of the embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from tqdm import tqdm

from ..core.batch import Role
from ..core.ragged import Ragged, from_lengths
from ..errors import ConfigError
from .pair import Tower, Towers
from .saved import said

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_TASKS: dict[Role, str] = {"query": "query", "doc": "document"}
_PROMPT_NAMES: dict[Role, tuple[str, ...]] = {"query": ("query",), "doc": ("document", "passage", "corpus")}
# What a model may read besides token ids, since forward makes it again (or, for token types of one text, leaves it out).
_KNOWN = {"input_ids", "attention_mask", "offsets", "token_type_ids"}
_TOKENIZED_AT_ONCE = 1000
# Tokens that are encoded together. What a core holds near itself is fastest: of 512, 2,048 and 8,192 the first by 1.3x and 2.9x.
_ENCODED_AT_ONCE = {"cpu": 512, "cuda": 65_536}


@dataclass(frozen=True)
class Pretrained:
    """A sentence-transformers model, by folder or by its name on the Hugging Face hub.

    Args:
        model: a local folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        max_length: longer texts are cut to this many tokens, special ones included; None is the model's own limit.
        query_prompt: what every query begins with; None is the model's own prompt for queries, if it has one.
        doc_prompt: what every document begins with; None is the model's own.
        trust_remote_code: run the code that comes with the model.

    Raises:
        ConfigError: no such model, or one that cannot be cut into micro-batches or reads more than token ids.
    """

    model: str
    max_length: Annotated[int, Field(gt=0)] | None = None
    query_prompt: str | None = None
    doc_prompt: str | None = None
    trust_remote_code: bool = False

    def build(self, texts: Sequence[str]) -> Tower:
        """The model as it was saved; `texts` teach it nothing yet."""
        model = open_model(self.model, self.trust_remote_code)
        if self.max_length is not None:
            _limit(model, self.max_length)
        given = {"query": self.query_prompt, "document": self.doc_prompt}
        model.prompts |= {name: prompt for name, prompt in given.items() if prompt is not None}
        return tower_of(model)


def open_model(name: str, trust_remote_code: bool = False) -> SentenceTransformer:
    """A model in single precision on the CPU.

    Raises:
        ConfigError: no sentence-transformers, or no such model.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise ConfigError("a text tower needs sentence-transformers: pip install 'tempera[text]'") from None
    folder = Path(name).expanduser()
    if not folder.is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ConfigError(f"no such model: there is no folder {name}")
    try:
        model = SentenceTransformer(
            str(folder) if folder.is_dir() else name, device="cpu", trust_remote_code=trust_remote_code
        )
    except Exception as error:  # whatever its modules, the hub or the tokenizer raise
        raise ConfigError(f"{name} is not a model that sentence-transformers opens: {said(error)}") from None
    return model.float()


def tower_of(model: SentenceTransformer) -> Tower:
    """One tower if the model embeds queries and documents alike, or the tower of each."""
    query, doc = TextTower(model, "query"), TextTower(model, "doc")
    return doc if query.constants == doc.constants else Towers(query, doc)


class TextTower(Tower):
    """Token ids of n rows to embeddings, [n, D], by the modules of a sentence-transformers model.

    Args:
        model: is trained in place.
        role: whose route and prompt a model that tells queries from documents takes.

    Raises:
        ConfigError: a model whose layers look at the whole batch, or that reads more than token ids.
    """

    def __init__(self, model: SentenceTransformer, role: Role) -> None:
        super().__init__()
        self.model, self.role = model, role
        _refuse_batch_statistics(model)
        # Of two texts of different length, what all rows have in common is seen: padding, and what is no tensor.
        probe = self._read(["", "a a a a a a a a"], role)
        self.constants = {key: value for key, value in probe.items() if not isinstance(value, Tensor)}
        if not (self.constants.get("prompt_length") and _leaves_prompts_out(model)):
            self.constants.pop("prompt_length", None)
        self.padded = "attention_mask" in probe
        extra = [key for key, value in probe.items() if isinstance(value, Tensor) and key not in _KNOWN]
        if extra or ("token_type_ids" in probe and probe["token_type_ids"].any()):
            raise ConfigError(
                f"the model reads {', '.join(extra) or 'token types'} besides token ids: take another one"
            )
        if self.padded:
            absent = probe["attention_mask"] == 0
            self.left = bool(absent[0, 0])
            self.pad = int(probe["input_ids"][absent][0]) if absent.any() else 0

    def features(self, texts: Sequence[str], progress: str | None = None, role: Role = "doc") -> Ragged:
        """Token ids of texts behind the prompt of their role, special tokens included, cut to the model's length; int32."""
        parts = [Ragged.of([])]
        with tqdm(total=len(texts), desc=progress, unit="text", disable=None if progress else True) as bar:
            for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
                block = list(texts[start : start + _TOKENIZED_AT_ONCE])
                parts.append(_rows(self._read(block, role)))
                bar.update(len(block))
        return Ragged.cat([Ragged(part.values.int(), part.offsets) for part in parts])

    def forward(self, features: Ragged) -> Tensor:
        if not len(features):
            return next(self.parameters()).new_empty(0, self.width)
        values = features.values.long()
        lengths, starts = features.lengths, features.offsets[:-1]
        inputs = self._padded(values, lengths) if self.padded else {"input_ids": values, "offsets": starts}
        embeddings: Tensor = self.model({**inputs, **self.constants})["sentence_embedding"]
        return embeddings[:, : self.width]

    @property
    def width(self) -> int:
        """D."""
        width = self.model.get_embedding_dimension()
        assert width is not None
        return width

    @torch.no_grad()
    def encode(self, features: Ragged, role: Role = "doc", tokens: int | None = None) -> Tensor:
        """Unit vectors of rows, [n, D], as the saved model gives them; in blocks of rows of like length and at most `tokens`."""
        training, device = self.training, next(self.parameters()).device
        tokens = tokens or _ENCODED_AT_ONCE[device.type]
        vectors = torch.empty(len(features), self.width)
        order = features.lengths.cpu().argsort(stable=True)
        lengths = features.lengths.cpu()[order].clamp(min=1)
        self.eval()
        end = len(order)
        while end:  # the longest first: memory is short at once or never
            start = max(0, end - max(1, tokens // int(lengths[end - 1])))
            rows = order[start:end]
            vectors[rows] = F.normalize(self(features[rows].to(device)).float(), dim=-1).cpu()
            end = start
        self.train(training)
        return vectors

    def save(self, folder: Path) -> None:
        """Write the folder that `SentenceTransformer(folder)` opens."""
        self.model.save(str(folder), create_model_card=False)

    def _read(self, texts: list[str], role: Role) -> dict[str, Any]:
        read: dict[str, Any] = self.model.preprocess(texts, prompt=prompt_of(self.model, role), task=_TASKS[role])
        return read

    def _padded(self, values: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        width = max(1, int(lengths.max()))
        if width * len(lengths) == len(values):  # without a mask attention takes its fastest way
            return {"input_ids": values.view(len(lengths), width)}
        place = torch.arange(width, device=values.device)
        present = place >= width - lengths[:, None] if self.left else place < lengths[:, None]  # [n, w]
        ids = torch.full_like(present, self.pad, dtype=torch.int64).masked_scatter(present, values)
        return {"input_ids": ids, "attention_mask": present.long()}


def prompt_of(model: SentenceTransformer, role: Role) -> str | None:
    """What `encode_query` and `encode_document` put before a text."""
    names = [name for name in (*_PROMPT_NAMES[role], model.default_prompt_name) if name in model.prompts]
    return model.prompts[names[0]] if names else None


def _rows(read: dict[str, Any]) -> Ragged:
    """Token ids without padding."""
    ids = read["input_ids"]
    if "offsets" in read:
        return Ragged(ids, torch.cat([read["offsets"], torch.tensor([len(ids)])]))
    present = read["attention_mask"].bool()
    return Ragged(ids[present], from_lengths(present.sum(1)))


def _limit(model: SentenceTransformer, max_length: int) -> None:
    positions = {} if model.config is None else model.config.to_dict()
    most = positions.get("max_position_embeddings")
    if most is not None and max_length > most > 0:
        raise ConfigError(f"max_length is {max_length} and the model has {most} positions: give at most {most}")
    try:
        model.max_seq_length = max_length
    except AttributeError:
        raise ConfigError("max_length is for transformers, and this model reads its texts whole: drop it") from None


def _leaves_prompts_out(model: SentenceTransformer) -> bool:
    from sentence_transformers.models import Pooling

    return any(isinstance(module, Pooling) and not module.include_prompt for module in model.modules())


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"the model's layer {name} is a {type(module).__name__}, whose result depends on which rows are embedded "
                "together: take a model without it"
            )
