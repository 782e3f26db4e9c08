"""Batches of one run on texts, with the vectors of a guide and a teacher, and with negatives that
the model mines."""

from __future__ import annotations

from collections.abc import Iterable
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
from ...mining.shortfall import Report
from ...parallel.distributed import ALONE, Group
from ...ranking.nearest import refuse_not_finite
from ...task.config import Config
from ...towers.pair import Tower
from ...towers.saved import model_folder, similarity_of
from ..read.pairs import Rows, Source
from .catalogue import Catalogue
from .known_vectors import KnownVectors
from .made_rows import MadeRows, SourceRows, Spans
from .mined_again import checked, with_mined
from .mixture import Mixture
from .samplers import Mixed, NoDuplicates
from .split import Split


@dataclass(frozen=True)
class TextData:
    """Hold the texts of a source, divided, with their tokens. Runs on the same data share it.

    Args:
        queries: tokens of the distinct queries, [p].
        docs: and of the documents, [u].
        made: rows that the source has made of other documents.
    """

    split: Split
    catalogue: Catalogue
    queries: Ragged
    docs: Ragged
    made: SourceRows | None = None

    @property
    def ranked(self) -> Rows:
        """Positions of the distinct documents that evaluation ranks."""
        return self.catalogue.doc_of[self.split.corpus]


class TrainingPairs:
    """Make the batches of one run.

    Args:
        store: folder for the vectors of a guide, which all runs beside this one share.
    """

    def __init__(
        self,
        config: Config,
        texts: TextData,
        sampler: Sampler,
        tower: Tower,
        store: Path,
    ) -> None:
        self.texts, self.sampler, self.tower = texts, sampler, tower
        tower.compare_by("cosine" if config.base.similarity == cosine else "dot")
        catalogue = texts.catalogue
        self.mining, self.cross = config.mining, _cross_encoder(config, store)
        self.dropped = {**texts.split.pairs.dropped, **texts.split.dropped}
        self.known = KnownVectors(tower, {"query": texts.queries, "doc": texts.docs}, store)
        self.rows = _rows(config, texts, sampler, store)
        if self.cross is not None and self.rows.negatives is not None:
            self.rows, count = checked(self.rows, catalogue, self.cross, self.mining.cross_margin)
            self.dropped["negatives that the cross-encoder scores like answers"] = count
        if self.cross is not None and self.rows.negatives is None and not self.mining.again:
            raise ConfigError(
                "mining.cross_encoder needs negatives, but the data has none: set mining.again"
            )
        self.spans = Spans(texts.docs, catalogue, texts.split.train, config.train.seed)
        self.made = MadeRows.of(config, texts.made or self.spans)

    def batch(self, rows: Tensor, number: int, progress: float = 1.0) -> Batch[Ragged]:
        """Return the tokens of chosen pairs, followed by made rows at the beginning of the
        training."""
        self.known.forget()  # the memory is for the step
        return self.made.batch(self.rows.batch(rows, number), number, progress)

    def vectors(self, rows: Rows, role: Role = "doc") -> NDArray[np.float32]:
        """Return vectors of chosen queries or documents by the tower as it is now, [.., D], which
        are compared by inner products."""
        tokens = self.texts.queries if role == "query" else self.texts.docs
        vectors: NDArray[np.float32] = self.tower.encode(
            tokens[torch.from_numpy(rows)], role
        ).numpy()
        refuse_not_finite(vectors, {"query": "queries", "doc": "documents"}[role])
        return vectors

    def remembered(self, rows: Rows, role: Role = "doc") -> NDArray[np.float32]:
        """Return the same vectors, of which only those are computed that the weights of now have
        not given yet."""
        return self.known(rows, role, self.vectors)

    @property
    def corpus(self) -> NDArray[np.float32]:
        """Vectors of the documents that evaluation ranks."""
        return self.remembered(self.texts.ranked, "doc")

    def mine(self, group: Group = ALONE) -> Report:
        """Give every pair negatives that the tower mines as it is now, by the options `mining`; all
        processes call, and share the reading."""
        read = partial(self._read, group)
        self.rows, report = with_mined(
            self.rows, self.texts.catalogue, self.texts.split.train, self.mining, self.cross, read
        )
        return report

    def _read(self, group: Group, role: Role, rows: Rows) -> NDArray[np.float32]:
        """Return vectors of distinct texts by the tower as it is now; each process reads its
        share."""
        if len(rows) < group.size:
            return self.vectors(rows, role)
        mine = np.array_split(rows, group.size)[group.rank]
        return group.all_gather(torch.from_numpy(self.vectors(mine, role))).numpy()

    def content(self) -> Iterable[Tensor]:
        """Yield the tokens of all texts, which rows are trained on, and the negatives that no row
        has."""
        for side in (self.texts.queries, self.texts.docs):
            yield from (side.values, side.offsets)
        yield torch.from_numpy(self.texts.split.train)
        if self.texts.split.withheld.any():
            yield torch.from_numpy(self.texts.split.withheld)

    def source(self) -> Iterable[Tensor]:
        """Yield the ids of all queries and documents."""
        pairs = self.texts.split.pairs
        yield from (torch.from_numpy(np.array(pairs.ids(role))) for role in ("query", "doc"))

    def called(self, rows: Tensor) -> list[str]:
        """Return the place, or else the number, of each pair, with the beginning of its query."""
        at, pairs = self.texts.split.train[rows.numpy()], self.texts.split.pairs
        names = zip(at, pairs.texts("place", at), pairs.texts("query", at), strict=True)
        return [
            f"{place or f'pair {row}'} ({' '.join(query.split())[:40]!r})"
            for row, place, query in names
        ]


def _rows(config: Config, texts: TextData, sampler: Sampler, store: Path) -> Examples:
    """Return the training pairs as the data have them, with the vectors of a guide and a teacher."""
    options, catalogue = config.train, texts.catalogue
    draws = Draws(options.sampled, options.sampled_power, options.seed)
    rows = catalogue.examples(texts.split.train, texts.queries, texts.docs, draws)

    def read_by(model: str, called: str) -> Guide:
        columns = catalogue.queries, catalogue.docs
        half = options.mixed_precision == "bf16"
        return Guide.of(Path(model), *columns, store, called, half=half, device=options.device)

    if isinstance(sampler, Mixed):
        rows = replace(rows, chance=sampler.chance, temperature=sampler.temperature)
    if options.guide is not None:
        rows = replace(rows, guide=read_by(options.guide, "the guide"))
    if config.base.teacher is not None:
        assert options.teacher is not None
        rows = replace(rows, teacher=read_by(options.teacher, "the teacher"))
        if note := _teachers_scale(config.base.teacher, options.teacher):
            logger.warning(note)
    return rows


def _teachers_scale(teacher: Teacher, model: str) -> str | None:
    """Return what to set where a teacher's similarities have another scale than the default
    temperature is for; None where there is nothing to set."""
    by_cosine = similarity_of(model_folder(Path(model))) == "cosine"
    if by_cosine or teacher.temperature is not None:
        return None
    return (
        f"train.teacher={model} compares by inner product (dot), and its temperature, {1 / teacher.scales[1]:g}, is one for "
        "cosines: set objective.teacher.temperature (1 for similarities of some tens), and student_temperature for the student"
    )


def _cross_encoder(config: Config, store: Path) -> CrossEncoder | None:
    """Return the cross-encoder that checks negatives, if one does."""
    folder = config.mining.cross_encoder
    return None if folder is None else CrossEncoder.of(Path(folder), store)


def sampler_of(
    source: Source, catalogue: Catalogue, split: Split, options: Training
) -> Shuffled | NoDuplicates | Mixed:
    """Return the sampler that puts training rows into batches.

    Raises:
        ConfigError: a batch of more rows than there are to train on.
    """
    rows, size = split.train, options.size
    if size > len(rows) > 1:
        raise ConfigError(
            f"train.batch_size is {size} and the data has {len(rows)} pairs to train on: give a batch_size of at "
            f"most {len(rows)}, or more data, or hold out less: of {split.count:,} pairs, {split.held_out} are held out "
            "(evaluation.validation, evaluation.queries)"
        )
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
