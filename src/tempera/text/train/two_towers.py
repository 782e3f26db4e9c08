"""A trained tower for queries beside documents with kept vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from ...errors import ConfigError
from ...io.console import logger
from ...task.rounds import LEARNING_RATE, TEMPERATURE, Open, Race, Round, over
from ...towers.pair import Embed, Tower, TowerOptions, batch_of, epochs_of
from ...towers.saved import embedded, fingerprint, model_folder
from .frozen import Frozen, HeadTower, IndexSide, KeptTowers, ModelSide

_RATES = (0.001, 0.003, 0.0003)
_TEMPERATURES = (0.05, 0.1)
OPEN = {TEMPERATURE: Open(beside=("objective.scale",)), LEARNING_RATE: Open()}


class QuerySide(TowerOptions, Protocol):
    """The options of a tower for queries."""

    def race(self, pairs: int, tokens: float) -> Race:
        """Return the settings to try, by the number of pairs and the tokens of the median
        document; called for kinds that leave options open."""


class DocSide(Protocol):
    """The options of documents with kept vectors."""

    def side(self, texts: Sequence[str], embed: Embed) -> Frozen:
        """Return the vectors of the documents; `embed` computes missing vectors."""


@dataclass(frozen=True)
class KeptIndex:
    """The vectors of an existing index, from any model: no document is embedded.

    Args:
        path: a run or its index, an export to FAISS or Parquet, or a file of vectors: .parquet with
            columns id and vector, .npy, or FAISS. A document is found by `data.doc_id`, or by the
            content in the index of a run on data without ids. No text is read, so that a column of
            ids may stand for the documents (`data.doc`).
        ids: ids of the vectors of a .npy or FAISS file, in the order of the vectors: a text file
            with an id a line, or .npy. None numbers the rows from 0.
    """

    path: str
    ids: str | None = None

    def side(self, texts: Sequence[str], embed: Embed) -> IndexSide:
        """Return the vectors of the index, and warn of unusual vectors."""
        side = IndexSide(Path(self.path), None if self.ids is None else Path(self.ids))
        for note in side.notes():
            logger.warning(note)
        return side


@dataclass(frozen=True)
class FrozenModel:
    """A saved, untrained model that embeds each document once.

    Args:
        model: folder of the model, or of its run.
        frozen: has to be true; `tower.sides` is for two trained towers.

    Raises:
        ConfigError: `frozen` is false.
    """

    model: str
    frozen: bool

    def __post_init__(self) -> None:
        if not self.frozen:
            raise ConfigError(
                "frozen is false, and both towers would train: use tower.kind=pretrained with tower.sides=two"
            )

    def side(self, texts: Sequence[str], embed: Embed) -> ModelSide:
        """Return the vectors of the model."""
        return ModelSide(model_folder(Path(self.model)), "doc", embed, texts)


@dataclass(frozen=True)
class Head:
    """A linear residual behind the query vectors of a saved model, with each query embedded once;
    the identity before training.

    Args:
        model: folder of the model of the documents, or of its run.
    """

    open: ClassVar[Mapping[str, Open]] = OPEN
    learning_rate: ClassVar[float] = _RATES[0]

    model: str

    def schedule(self, pairs: int, large: bool = False) -> tuple[int, float]:
        """Return a batch of all pairs, up to 1,024, and the epochs of about 200 steps."""
        batch = batch_of(pairs, 1, 32, 1024)
        return batch, epochs_of(pairs, 200 * batch, 1, 200)

    def race(self, pairs: int, tokens: float) -> Race:
        """Return three learning rates, each for a third of the steps, and then two temperatures."""
        rounds = (
            Round(3, over(LEARNING_RATE, _RATES)),
            Round(3, over(TEMPERATURE, _TEMPERATURES)),
        )
        return Race({TEMPERATURE: _TEMPERATURES[0], LEARNING_RATE: _RATES[0]}, rounds)

    def build(self, texts: Sequence[str], embed: Embed = embedded) -> Tower:
        """Raise ConfigError: a head alone has no documents."""
        raise ConfigError(
            "a head is for queries whose documents keep their vectors: give it as tower.query beside tower.doc"
        )

    def again(self, tower: Tower) -> HeadTower:
        """Return the head before training, on the same vectors."""
        assert isinstance(tower, HeadTower)
        return tower.again()

    def tower(self, doc: Frozen, texts: Sequence[str], embed: Embed) -> HeadTower:
        """Return the head that ends in the space of the documents."""
        model = model_folder(Path(self.model))
        stamp = getattr(doc, "stamp", None)
        if stamp is not None:
            own = fingerprint(model)
            if stamp.model != own:
                logger.warning(
                    f"the index holds vectors of another model ({stamp.model[:12]}; tower.query.model is {own[:12]}), so that the "
                    "untrained queries may rank at random in it"
                )
        return HeadTower(model, embed, texts, doc.width)


@dataclass(frozen=True)
class TwoTowers:
    """A trained tower for queries, and documents with kept vectors of the same width.

    Args:
        query: head, static, pretrained or transformer, with its options.
        doc: index: PATH, or a pretrained model with `frozen: true`.

    Raises:
        ConfigError: two widths.
    """

    query: QuerySide
    doc: DocSide

    @property
    def mixed_precision(self) -> str:
        """The precision of the queries' tower."""
        precision: str = getattr(self.query, "mixed_precision", "no")
        return precision

    @property
    def learning_rate(self) -> float:
        """The learning rate of the queries' tower."""
        return self.query.learning_rate

    def schedule(self, pairs: int, large: bool = False) -> tuple[int, float]:
        """Return the batch size and the epochs of the queries' tower."""
        return self.query.schedule(pairs, large)

    def race(self, pairs: int, tokens: float) -> Race:
        """Return the race of the queries' tower."""
        return self.query.race(pairs, tokens)

    def build(self, texts: Sequence[str], embed: Embed = embedded) -> KeptTowers:
        """Return the towers before training."""
        doc = self.doc.side(texts, embed)
        if isinstance(self.query, Head):
            return KeptTowers(self.query.tower(doc, texts, embed), doc)
        query = _of_queries(self.query.build(texts, embed))
        width = query.encode(query.features(texts[:1], None, "query"), "query").shape[1]
        if width != doc.width:
            raise ConfigError(
                f"tower.query embeds in {width} dimensions, but the documents have {doc.width}: choose another model or "
                "dimensions, or kind head, which ends in the width of the documents"
            )
        return KeptTowers(query, doc)

    def again(self, tower: Tower) -> KeptTowers:
        """Return towers before training that read texts as `tower` does."""
        assert isinstance(tower, KeptTowers)
        return KeptTowers(_of_queries(self.query.again(tower.query)), tower.doc)


def _of_queries(tower: Tower) -> Tower:
    """Return the tower of queries of a model that may have a tower for each role."""
    query = tower.of("query")
    assert isinstance(query, Tower)
    return query
