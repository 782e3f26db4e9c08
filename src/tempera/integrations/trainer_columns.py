"""Batches from the columns of token ids in sentence-transformers' trainer.

Letters in shapes: n rows of a column, D width of the guide's vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ..arithmetic.ragged import Ragged
from ..core.batch import Batch, Role, Side
from ..errors import ConfigError, DataError
from ..io.ids import mixed
from ..towers.modules import TASKS, TextTower, constants_of, rows_of, tower_of
from ..towers.pair import Tower

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Columns = Sequence[Mapping[str, Any]]
Labels = Literal["weight", "id", "ignore"]


@dataclass(frozen=True)
class ModelTowers:
    """The tower of each role of a batch."""

    towers: Mapping[Role, TextTower]

    def of(self, role: Role) -> TextTower:
        """Return the tower of a role."""
        return self.towers[role]


class GuideModel:
    """A guide or teacher for the texts of the model in training; with its own prompts where the
    guide has another tokeniser."""

    def __init__(self, guide: SentenceTransformer, model: SentenceTransformer) -> None:
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerBase

        try:
            self.tower: Tower = tower_of(guide)
        except ValueError as error:
            raise ConfigError(
                f"the guide has no routes for queries and documents: {error}"
            ) from None
        same_vocabulary = guide.tokenizer.get_vocab() == model.tokenizer.get_vocab()
        same_texts = same_vocabulary and _read_alike(guide, model)
        is_longer = (guide.max_seq_length or inf) >= (model.max_seq_length or inf)
        self.same_tokens = same_texts and is_longer
        if not self.same_tokens and _has_several_tokenizers(model):
            raise ConfigError(
                "the guide reads other tokens than the model, whose routes have several tokenizers: use a guide with these routes"
            )
        self.decode: Any = None
        if isinstance(model.tokenizer, PreTrainedTokenizerBase):
            self.decode = model.tokenizer.batch_decode
        elif isinstance(model.tokenizer, Tokenizer):
            self.decode = model.tokenizer.decode_batch
        if not self.same_tokens and self.decode is None:
            raise ConfigError(
                "the guide has another tokenizer than the model, and the model's tokenizer cannot decode tokens to texts: "
                "use a guide with the model's tokenizer"
            )

    def __call__(self, tokens: Ragged, role: Role) -> Tensor:
        """Return the vectors of a role's rows, [n, D], on the CPU."""
        if not self.same_tokens:
            values, ends = tokens.values.tolist(), tokens.offsets.tolist()
            rows = [values[start:end] for start, end in pairwise(ends)]
            tokens = self.tower.features(self.decode(rows, skip_special_tokens=True), role=role)
        return self.tower.encode(tokens, role)


class ColumnReader:
    """Make batches of columns: a query, the query's document, and negatives.

    Args:
        model: the model of the columns' tokens.
        guide: model with the vectors for `Guided`.
        labels: meaning of a column of labels, see `ContrastiveLoss`.
        teacher: model with the vectors for `Teacher`.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        guide: SentenceTransformer | None = None,
        labels: Labels | None = None,
        teacher: SentenceTransformer | None = None,
    ) -> None:
        self.model = model
        self.labels = labels
        self.guide = None if guide is None else GuideModel(guide, model)
        self.teacher = None if teacher is None else GuideModel(teacher, model)
        self.towers: list[TextTower] = []  # for each way of reading columns: by prompt, by task

    def longest(self, most: int) -> int:
        """Return the most tokens of a text that every route of the model reads, at most `most`."""
        lengths = [getattr(module, "max_seq_length", None) for module in self.model.modules()]
        return int(min([most, *(length for length in lengths if length)]))

    def read(self, columns: Columns, labels: Tensor | None) -> tuple[Batch[Ragged], ModelTowers]:
        """Return the batch, and the tower of each role.

        Raises:
            DataError: there are fewer than two columns, or labels without a meaning.
            ConfigError: columns of negatives have different prompts or tasks.
        """
        if len(columns) < 2:
            raise DataError(
                f"a contrastive loss needs a query and a document, but the data has {len(columns)} column(s) of texts"
            )
        columns = [_on_cpu(column) for column in own_keys(columns)]
        query = self._side(columns[:1], "query")
        doc = self._side(columns[1:2], "doc")
        negatives = None
        if columns[2:]:
            negatives = self._side(columns[2:], "negatives")
        towers: dict[Role, TextTower] = {
            "query": self._tower(columns[0], "query"),
            "doc": self._tower(columns[1], "doc"),
        }
        if columns[2:]:
            towers["negatives"] = self._tower(columns[2], "doc")
        batch = self._labelled(
            Batch(query, doc, negatives), None if labels is None else labels.cpu()
        )
        return batch, ModelTowers(towers)

    def _side(self, columns: Columns, role: Role) -> Side[Ragged]:
        for column in columns[1:]:
            if self._tower(column, "doc") is not self._tower(columns[0], "doc"):
                raise ConfigError(
                    "columns of negatives are read with different prompts or tasks: give all of "
                    "them the same in the trainer's prompts= and router_mapping="
                )
        rows = [rows_of(column) for column in columns]
        tokens = Ragged.cat(rows)
        read_as: Role = "query" if role == "query" else "doc"
        guide = None if self.guide is None else self.guide(tokens, read_as)
        teacher = None if self.teacher is None else self.teacher(tokens, read_as)
        owner = None
        if role == "negatives":
            owner = torch.arange(len(rows[0])).repeat(len(rows))
        return Side(tokens, ids=ids_of(tokens), guide=guide, owner=owner, teacher=teacher)

    def _tower(self, column: Mapping[str, Any], role: Role) -> TextTower:
        constants = constants_of(column, self.model)
        for tower in self.towers:
            if tower.constants == constants:
                return tower
        tower = TextTower(self.model, role, task=constants.get("task"))
        tower.constants = constants
        self.towers.append(tower)
        return tower

    def _labelled(self, batch: Batch[Ragged], labels: Tensor | None) -> Batch[Ragged]:
        if self.labels == "ignore" or (labels is None and self.labels is None):
            return batch
        if labels is None or self.labels is None:
            raise DataError(
                f"labels={self.labels!r}, but the data has {'no' if labels is None else 'a'} column of labels: give its "
                "meaning, 'weight' (how much a row counts), 'id' (rows of one label have the same document) or 'ignore'"
            )
        if labels.ndim != 1 or (self.labels == "id" and labels.is_floating_point()):
            raise DataError(
                f"labels={self.labels!r} takes a number a row, a whole one if an id: not {labels.dtype} {labels[0]}"
            )
        if self.labels == "weight":
            return replace(batch, weight=labels.double())
        return _named(batch, labels.long())


def _named(batch: Batch[Ragged], labels: Tensor) -> Batch[Ragged]:
    """Return a batch with labels for the ids of documents, and of negatives with a document's
    tokens."""
    assert batch.doc.ids is not None
    changed = replace(batch, doc=replace(batch.doc, ids=labels))
    if batch.negatives is None or batch.negatives.ids is None:
        return changed
    known = dict(zip(batch.doc.ids.tolist(), labels.tolist(), strict=True))
    ids = torch.tensor(
        [known.get(number, number) for number in batch.negatives.ids.tolist()], dtype=torch.int64
    )
    return replace(changed, negatives=replace(batch.negatives, ids=ids))


def _has_several_tokenizers(model: SentenceTransformer) -> bool:
    """Return True if routes of a model have different vocabularies, so that tokens alone do not
    identify texts."""
    vocabularies: list[Any] = []
    for module in model.modules():
        tokenizer: Any = getattr(module, "tokenizer", None)
        if module is not model and hasattr(tokenizer, "get_vocab"):
            vocabularies.append(tokenizer.get_vocab())
    return any(each != vocabularies[0] for each in vocabularies)


def _read_alike(one: SentenceTransformer, other: SentenceTransformer) -> bool:
    """Return True if two models make the same tokens of texts, special tokens included."""
    texts = ["", "A few words: of 12 letters, and more."]
    try:
        for task in TASKS.values():
            tokens = rows_of(one.preprocess(texts, task=task))
            others = rows_of(other.preprocess(texts, task=task))
            if not torch.equal(tokens.values, others.values):
                return False
            if not torch.equal(tokens.offsets, others.offsets):
                return False
    except ValueError:  # a model has routes of other names
        return False
    return True


def ids_of(tokens: Ragged) -> Tensor:
    """Return 64-bit hashes of rows of token ids, [n].

    >>> ids = ids_of(Ragged.of([[5, 6], [6, 5], [5, 6]]))
    >>> bool(ids[0] == ids[2]), bool(ids[0] == ids[1])
    (True, False)
    """
    row = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
    place = torch.arange(len(row)) - tokens.offsets[row]
    mixture = torch.from_numpy(mixed(tokens.values.long().numpy(), place.numpy()))
    return torch.zeros(len(tokens), dtype=torch.int64).index_add_(0, row, mixture)


def own_keys(columns: Columns) -> list[dict[str, Any]]:
    """Return columns without the keys of other columns.

    The trainer tells columns apart by the beginning of keys: keys of `negative_2` begin with
    `negative_`, too, and come a second time with `negative`, as `2_input_ids`.

    >>> ids = [torch.tensor([[1]]), torch.tensor([[2]])]
    >>> columns = [{"input_ids": ids[0], "2_input_ids": ids[1], "2_task": "x"}, {"input_ids": ids[1], "task": "x"}]
    >>> [list(column) for column in own_keys(columns)]
    [['input_ids'], ['input_ids', 'task']]
    """
    tokens = [column.get("input_ids") for column in columns]
    kept = []
    for column in columns:
        others = tuple(
            key.removesuffix("input_ids")
            for key, value in column.items()
            if key.endswith("_input_ids") and any(value is each for each in tokens)
        )
        kept.append({key: value for key, value in column.items() if not key.startswith(others)})
    return kept


def _on_cpu(column: Mapping[str, Any]) -> dict[str, Any]:
    """Return a column on the CPU, with a single number for the length of the prompt."""
    here = dict(column)
    for key, value in column.items():
        if isinstance(value, Tensor):
            here[key] = value.cpu()
    length = here.get("prompt_length")
    if isinstance(length, Tensor):
        here["prompt_length"] = int(length.flatten()[0])
    return here
