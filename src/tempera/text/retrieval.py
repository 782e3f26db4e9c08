"""The task of text retrieval: pairs of texts to train on, with some queries held out for
evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import torch

from ..arithmetic.ragged import Ragged
from ..core.batch import Role
from ..engine.batches import Sampler
from ..engine.clock import Phases
from ..errors import ConfigError
from ..io.console import logger
from ..mining.embed import StoredEmbeddings, embed_by
from ..parallel.distributed import ALONE, Group
from ..task.config import Config
from ..task.evaluation import Part
from ..task.rounds import Race
from ..task.showcase import Compared, DataFacts, RefitPlan, Searched, compare_systems
from ..task.verdict import Verdict
from ..towers.pair import Tower
from ..towers.saved import model_folder
from .judge.held_out import HeldOutQueries
from .judge.text_showcase import TextShowcase
from .read.pairs import TEST, VALIDATION, Pairs, Text
from .shards.split_of_shards import is_in_shards, split_of_shards
from .shards.streamed_pairs import StreamedPairs
from .train.catalogue import Catalogue, stored
from .train.frozen import IndexSide
from .train.made_rows import SourceRows, takes_source
from .train.split import hold_out
from .train.training_pairs import TextData, TrainingPairs, sampler_of


class TextTask:
    """Hold the parts of a run on texts: training pairs, held-out queries, and the showcase."""

    def __init__(
        self,
        config: Config,
        texts: TextData,
        sampler: Sampler,
        tower: Tower,
        store: Path,
    ) -> None:
        self.store = store
        self.limited = config.train.max_pairs is not None
        of_run = TrainingPairs if texts.split.shards is None else StreamedPairs
        self.data = of_run(config, texts, sampler, tower, store)
        self.held_out = HeldOutQueries(config, self.data)
        self.showcase = TextShowcase(self.data, self.held_out)

    @classmethod
    def read(
        cls,
        config: Config,
        cache: Path,
        store: Path,
        phases: Phases | None = None,
        group: Group = ALONE,
    ) -> TextTask:
        """Read and divide the texts of a source, and keep their tokens in memory-mapped files in
        `cache`.

        Args:
            store: folder for the vectors of guides, shared by neighbouring runs.
            phases: clock that counts the time for tokens.
            group: the processes, which read pairs in shards together.

        Raises:
            ConfigError: a limit of the training pairs beside a training on the held-out pairs.
        """
        if config.train.max_pairs is not None and config.train.refit not in ("none", "auto"):
            raise ConfigError(
                f"train.max_pairs limits the training pairs, and train.refit={config.train.refit} adds those that are held out: "
                "remove one of them"
            )
        if is_in_shards(config.data):
            made_pairs = None
            split = split_of_shards(config.data, config.evaluation, group, cache)
        else:
            pairs, candidates = config.data.read(cache)
            made_pairs = pairs.made
            pairs = replace(pairs, made=None)  # the run needs the tokens of made rows alone
            split = hold_out(pairs, candidates, config.evaluation, config.train.max_pairs)
        catalogue = Catalogue.of(split.pairs, split.withheld)
        config = config.settled(split.trained_count, config.train.large_pays)
        # A batch that is too large is refused here, before texts are read.
        sampler = sampler_of(config.data, catalogue, split, config.train)
        half = config.train.mixed_precision == "bf16"
        device = config.train.device

        def embed(
            model: Path, role: Role, part: Sequence[str], progress: str | None = None
        ) -> StoredEmbeddings:
            """Embed texts by a saved model, once for all runs that share the store."""
            folder = model_folder(model)
            return embed_by(folder, role, part, store, progress=progress, half=half, device=device)

        with (phases or Phases())("tokenise"):
            tower: Tower = config.tower.build(catalogue.trained(split.train), embed)
            saved_by_cosine = tower.normalised
            queries = stored(
                lambda part: tower.features(part, "reading queries", "query"),
                catalogue.queries,
                cache / "tokens.0",
            )
            docs = _documents(tower, catalogue, cache / "tokens.1")
            made = None
            if made_pairs is not None and takes_source(config, len(split.train)):
                made = _source_rows(tower, made_pairs.without(split.held_texts), cache)
        texts = TextData(split, catalogue, queries, docs, made)
        task = cls(config, texts, sampler, tower, store)
        if tower.normalised != saved_by_cosine:
            logger.warning(_similarity_warning(saved_by_cosine))
        return task

    def race(self, config: Config) -> Race:
        """Return the tower's settings to try, by the number of pairs and the length of
        documents."""
        data = self.data
        race: Race = config.tower.race(data.texts.split.trained_count, data.spans.length)
        return race

    @cached_property
    def facts(self) -> DataFacts:
        """The texts in numbers and sentences."""
        return self.showcase.facts()

    def compared(self, before: Verdict | None, after: Verdict | None) -> Compared:
        """Compare the trained tower with the untrained tower, a teacher, and BM25."""
        held_out = self.held_out
        return compare_systems(
            before,
            after,
            partial(held_out.baselines, after),
            partial(held_out.about, after),
            self.showcase.examples,
        )

    def searched(self) -> Searched:
        """Return every searched document with its vector."""
        return self.showcase.searched()

    def again(self, config: Config, part: Part | None = None) -> TextTask:
        """Return a further run on the same texts and tokens, before training. With a part, the
        further run trains on the pairs of the part, too, with the same evaluation."""
        if part is not None:
            return self._extended_run(config, part)
        texts = self.data.texts
        config = config.settled(texts.split.trained_count, config.train.large_pays)
        return self._untrained(config, texts)

    @property
    def refits(self) -> RefitPlan:
        """The parts for a second training, and the number of pairs of the second training."""
        split = self.data.texts.split
        return RefitPlan(self._auto_parts, lambda part: split.extended(part).trained_count)

    @property
    def _auto_parts(self) -> tuple[Part, ...]:
        """Parts that may join the training after their evaluation.

        Validation joins with the test; validation joins alone where the user has named the test.
        Nothing joins where the user has named the validation, where `train.max_pairs` limits the
        training, where pairs are trained from shards, or where a row is any two texts and no pair.
        """
        pairs = self.data.texts.split.pairs
        if (
            self.data.texts.split.shards is not None
            or self.limited
            or not pairs.paired
            or (pairs.part == VALIDATION).any()
        ):
            return ()
        if (pairs.part == TEST).any():
            return ("validation",)
        return ("test",)

    def _extended_run(self, config: Config, part: Part) -> TextTask:
        """Return a run on the same tokens, with the pairs of a part added to training, and the same
        evaluation."""
        split = self.data.texts.split.extended(part)
        catalogue = self.data.texts.catalogue
        if len(split.withheld):  # the data have negatives, of which fewer are withheld now
            catalogue = Catalogue.of(split.pairs, split.withheld)
        texts = replace(self.data.texts, split=split, catalogue=catalogue)
        task = self._untrained(config, texts)
        task.held_out.follow(self.held_out)
        return task

    def _untrained(self, config: Config, texts: TextData) -> TextTask:
        """Return a run on texts with the tower before training."""
        sampler = sampler_of(config.data, texts.catalogue, texts.split, config.train)
        tower = config.tower.again(self.data.tower)
        return TextTask(config, texts, sampler, tower, self.store)


def _similarity_warning(saved_by_cosine: bool) -> str:
    """Return a warning of a similarity of the run unlike the similarity of the saved model."""
    before, after = "dot", "cosine"
    if saved_by_cosine:
        before, after = "cosine", "dot"
    return (
        f"the pretrained model compares by {before}, and this run trains, judges, saves and searches by {after}: set "
        f"objective.similarity={before} to keep the model's own"
    )


def _source_rows(tower: Tower, rows: Pairs, cache: Path) -> SourceRows:
    """Return the tokens and ids of rows made by a source."""

    def tokens(role: Text, path: Path) -> Ragged:
        return stored(
            lambda part: tower.features(part, "reading made rows", role), rows.view(role), path
        )

    queries = tokens("query", cache / "made.0")
    docs = tokens("doc", cache / "made.1")
    return SourceRows(queries, docs, torch.tensor(rows.ids("query")), torch.tensor(rows.ids("doc")))


def _documents(tower: Tower, catalogue: Catalogue, path: Path) -> Ragged:
    """Return the documents as the tower reads them: rows of an index, or features of texts."""
    doc = tower.of("doc")
    if isinstance(doc, IndexSide):
        return doc.named(catalogue.doc_ids, catalogue.docs)
    return stored(
        lambda part: tower.features(part, "reading documents", "doc"), catalogue.docs, path
    )
