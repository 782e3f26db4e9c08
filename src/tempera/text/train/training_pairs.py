"""Training batches of a run on texts, with the vectors of a guide and a teacher, and with mined
negatives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...arithmetic.ragged import Ragged
from ...core.batch import Batch, Role
from ...core.similarity import cosine
from ...core.teacher import Teacher
from ...engine.batches import Draws, Examples, Sampler, Shuffled
from ...engine.training_options import Training
from ...errors import ConfigError
from ...io.console import logger
from ...mining.guide import CrossEncoder, Guide
from ...mining.guide_source import GuideSource
from ...mining.shortfall import Report
from ...parallel.distributed import ALONE, Group
from ...ranking.nearest import refuse_not_finite
from ...task.config import Config
from ...towers.pair import Tower
from ...towers.saved import similarity_of
from ..read.pairs import Rows, Source
from ..shards.shard_sampler import ShardSampler
from .catalogue import Catalogue
from .known_vectors import KnownVectors
from .made_rows import MadeRows, SourceRows, Spans
from .mined_again import checked, with_mined
from .mixture import Mixture
from .samplers import Mixed, NoDuplicates
from .split import Split


@dataclass(frozen=True)
class TextData:
    """Hold the texts of a source, divided, with their tokens. Runs on the same data share the
    texts.

    Args:
        queries: tokens of the distinct queries, [p].
        docs: tokens of the distinct documents, [u].
        made: rows made by the source of documents without a query.
    """

    split: Split
    catalogue: Catalogue
    queries: Ragged
    docs: Ragged
    made: SourceRows | None = None

    @property
    def ranked(self) -> Rows:
        """Positions of the distinct documents ranked by evaluation."""
        return self.catalogue.doc_of[self.split.corpus]


class TrainingPairs:
    """Make the batches of a run.

    Args:
        store: folder for the vectors of a guide, shared by all runs beside this run.
    """

    window = 0  # rows that are shuffled together; 0 is all
    note = ""  # on the reading of rows

    def __init__(
        self,
        config: Config,
        texts: TextData,
        sampler: Sampler,
        tower: Tower,
        store: Path,
    ) -> None:
        self.texts = texts
        self.sampler = sampler
        self.tower = tower
        tower.compare_by("cosine" if config.base.similarity == cosine else "dot")
        self.mining = config.mining
        self.cross: CrossEncoder | None = None
        if config.mining.cross_encoder is not None:
            self.cross = CrossEncoder.of(Path(config.mining.cross_encoder), store)
        self.dropped = dict(texts.split.pairs.dropped)
        self.dropped.update(texts.split.dropped)
        self.known = KnownVectors(tower, {"query": texts.queries, "doc": texts.docs}, store)
        self.rows = _rows(config, texts, sampler, store)
        if self.cross is not None:
            self._check_negatives(self.cross)
        self.spans = Spans(texts.docs, texts.catalogue, texts.split.train, config.train.seed)
        self.made = MadeRows.of(config, texts.made or self.spans)

    def _check_negatives(self, cross: CrossEncoder) -> None:
        """Remove the negatives of the data with a cross-encoder's score of an answer."""
        if self.rows.negatives is not None:
            margin = self.mining.cross_margin
            self.rows, count = checked(self.rows, self.texts.catalogue, cross, margin)
            self.dropped["negatives that the cross-encoder scores like answers"] = count
        elif not self.mining.again:
            raise ConfigError(
                "mining.cross_encoder needs negatives, but the data has none: set mining.again"
            )

    def batch(self, rows: Tensor, number: int) -> Batch[Ragged]:
        """Return the tokens of chosen pairs."""
        self.known.forget()  # a step may change the weights: free the vectors, whose memory it needs
        return self.rows.batch(rows, number)

    def batches(self, rows: Tensor, number: int, progress: float = 1.0) -> list[Batch[Ragged]]:
        """Return the tokens of chosen pairs, and at the beginning of the training those of made
        rows in a batch of their own."""
        batch = self.batch(rows, number)
        made = self.made.batch(batch, number, progress)
        if made is None:
            return [batch]
        return [batch, made]

    def vectors(self, rows: Rows, role: Role = "doc") -> NDArray[np.float32]:
        """Embed chosen queries or documents by the present tower, [.., D]; inner products compare
        the vectors."""
        tokens, texts = self.texts.docs, "documents"
        if role == "query":
            tokens, texts = self.texts.queries, "queries"
        encoded = self.tower.encode(tokens[torch.from_numpy(rows)], role)
        vectors: NDArray[np.float32] = encoded.numpy()
        refuse_not_finite(vectors, texts)
        return vectors

    def remembered(self, rows: Rows, role: Role = "doc") -> NDArray[np.float32]:
        """Return the same vectors, without computing a vector twice by the same weights."""
        return self.known(rows, role, self.vectors)

    @property
    def corpus(self) -> NDArray[np.float32]:
        """Vectors of the documents ranked by evaluation."""
        return self.remembered(self.texts.ranked, "doc")

    def mine(self, group: Group = ALONE) -> Report:
        """Mine negatives of every pair by the present tower and the options `mining`; all processes
        call this function, and share the reading."""
        read = partial(self._read, group)
        self.rows, report = with_mined(
            self.rows, self.texts.catalogue, self.texts.split.train, self.mining, self.cross, read
        )
        return report

    def _read(self, group: Group, role: Role, rows: Rows) -> NDArray[np.float32]:
        """Embed distinct texts by the present tower; each process reads a share of the texts."""
        if len(rows) < group.size:
            return self.vectors(rows, role)
        mine = np.array_split(rows, group.size)[group.rank]
        return group.all_gather(torch.from_numpy(self.vectors(mine, role))).numpy()

    def content(self) -> Iterable[Tensor]:
        """Yield the tokens of all texts, the positions of the training rows, and the withheld
        negatives; all processes, and a run that resumes, have to agree on them."""
        for side in (self.texts.queries, self.texts.docs):
            yield side.values
            yield side.offsets
        yield torch.from_numpy(self.texts.split.train)
        if self.texts.split.withheld.any():
            yield torch.from_numpy(self.texts.split.withheld)

    def origin(self) -> Iterable[Tensor]:
        """Yield the ids of all queries and documents, also of pairs without a part in this run:
        runs of an experiment compare the origin of their data by them."""
        pairs = self.texts.split.pairs
        yield torch.from_numpy(np.array(pairs.ids("query")))
        yield torch.from_numpy(np.array(pairs.ids("doc")))

    def called(self, rows: Tensor) -> list[str]:
        """Return the place, or else the number, of each pair, with the beginning of its query."""
        pairs = self.texts.split.pairs
        at = self.texts.split.train[rows.numpy()]
        places = []
        for row, place in zip(at, pairs.texts("place", at), strict=True):
            places.append(place or f"pair {row}")
        return named_rows(places, pairs.texts("query", at))


def named_rows(places: Sequence[str], queries: Sequence[str]) -> list[str]:
    """Return the place of each pair, with the beginning of its query."""
    names = []
    for place, query in zip(places, queries, strict=True):
        beginning = " ".join(query.split())[:40]
        names.append(f"{place} ({beginning!r})")
    return names


def _rows(config: Config, texts: TextData, sampler: Sampler, store: Path) -> Examples:
    """Return the training pairs of the data, with the vectors of a guide and a teacher."""
    options, catalogue = config.train, texts.catalogue
    draws = Draws(options.sampled, options.sampled_power, options.seed)
    rows = catalogue.examples(texts.split.train, texts.queries, texts.docs, draws)

    def read_by(model: str, name: str) -> Guide:
        return Guide.of(
            Path(model),
            catalogue.queries,
            catalogue.docs,
            store,
            name,
            half=options.mixed_precision == "bf16",
            device=options.device,
        )

    if isinstance(sampler, Mixed):
        rows = replace(rows, chance=sampler.chance, temperature=sampler.temperature)
    if options.guide is not None:
        rows = replace(rows, guide=read_by(options.guide, "the guide"))
    if config.base.teacher is not None:
        assert options.teacher is not None
        rows = replace(rows, teacher=read_by(options.teacher, "the teacher"))
        _warn_of_teachers_scale(config.base.teacher, options.teacher)
    return rows


def _warn_of_teachers_scale(teacher: Teacher, model: str) -> None:
    """Warn of a teacher with inner products at the default temperature, made for cosines."""
    if (
        teacher.temperature is not None
        or similarity_of(GuideSource.of(Path(model)).folder) == "cosine"
    ):
        return
    logger.warning(
        f"train.teacher={model} compares by inner product (dot), and its temperature, {1 / teacher.scales[1]:g}, is one for "
        "cosines: set objective.teacher.temperature (1 for similarities of some tens), and student_temperature for the student"
    )


def sampler_of(
    source: Source, catalogue: Catalogue, split: Split, options: Training
) -> Shuffled | NoDuplicates | Mixed | ShardSampler:
    """Return the sampler that puts training rows into batches.

    Raises:
        ConfigError: a batch of more rows than the training has.
    """
    rows, size = split.train, options.size
    count = split.trained_count
    if size > count > 1:  # for one row `refuse_size` has the better message
        raise ConfigError(
            f"train.batch_size is {size} and the data has {count} pairs to train on: give a batch_size of at "
            f"most {count}, or more data, or hold out less: of {split.count:,} pairs, {split.held_out} are held out "
            "(evaluation.validation, evaluation.queries)"
        )
    if split.shards is not None:
        return ShardSampler(split.shards, size, options.seed)
    if isinstance(source, Mixture):
        if options.batch_sampler != "shuffled":
            raise ConfigError(
                "train.batch_sampler: no_duplicates is for one source, but data is a mixture; remove it"
            )
        origin = catalogue.pairs.table["source"].to_numpy()[rows]
        return source.sampler(origin, size, options.seed)
    if options.batch_sampler == "no_duplicates":
        return NoDuplicates(catalogue.keys(rows), size, options.seed)
    return Shuffled(len(rows), size, options.seed)
