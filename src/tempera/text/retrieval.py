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
from ..task.config import Config
from ..task.evaluation import Part
from ..task.rounds import Race
from ..task.showcase import Compared, DataFacts, RefitPlan, Searched, systems_of
from ..task.verdict import SystemScores, Verdict
from ..towers.pair import Tower
from ..towers.saved import model_folder
from .judge.held_out import HeldOutQueries
from .judge.text_showcase import TextShowcase
from .read.pairs import TEST, VALIDATION, Pairs
from .train.catalogue import Catalogue, stored
from .train.frozen import IndexSide
from .train.made_rows import SourceRows, takes_source
from .train.split import Split, hold_out
from .train.training_pairs import TextData, TrainingPairs, sampler_of


def _read_by(
    store: Path,
    half: bool,
    device: str,
    model: Path,
    role: Role,
    texts: Sequence[str],
    progress: str | None = None,
) -> StoredEmbeddings:
    """Return vectors of texts by a saved model, which are computed once for all runs that share the
    store."""
    return embed_by(
        model_folder(model), role, texts, store, progress=progress, half=half, device=device
    )


class TextTask:
    """Hold the parts of one run on texts: training pairs, held-out queries, and what is shown of
    it."""

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
        self.data = TrainingPairs(config, texts, sampler, tower, store)
        self.held_out = HeldOutQueries(config, self.data)
        self.showcase = TextShowcase(self.data, self.held_out)

    @classmethod
    def read(
        cls,
        config: Config,
        cache: Path,
        store: Path,
        phases: Phases | None = None,
    ) -> TextTask:
        """Read and divide the texts of a source, once, as tokens that are mapped in `cache`.

        Args:
            store: folder for the vectors of guides, shared by the runs beside this one.
            phases: counts the time for tokens.
        """
        if config.train.max_pairs is not None and config.train.refit not in ("none", "auto"):
            raise ConfigError(
                f"train.max_pairs limits the training pairs, and train.refit={config.train.refit} adds those that are held out: "
                "remove one of them"
            )
        pairs, candidates = config.data.read(cache)
        split = hold_out(pairs, candidates, config.evaluation, config.train.max_pairs)
        catalogue = Catalogue.of(pairs, split.withheld)
        config = config.settled(len(split.train), config.train.large_pays)
        sampler = sampler_of(
            config.data, catalogue, split, config.train
        )  # refuses before texts are read
        with (phases or Phases())("tokenise"):
            reads = partial(
                _read_by, store, config.train.mixed_precision == "bf16", config.train.device
            )
            tower: Tower = config.tower.build(catalogue.trained(split.train), reads)
            own = tower.normalised
            queries = stored(
                lambda part: tower.features(part, "reading queries", "query"),
                catalogue.queries,
                cache / "tokens.0",
            )
            docs = _documents(tower, catalogue, cache / "tokens.1")
            made = None
            if pairs.made is not None and takes_source(config, len(split.train)):
                rows = pairs.made.without(split.held_texts)
                made = _source_rows(tower, rows, cache)
        texts = TextData(split, catalogue, queries, docs, made)
        task = cls(config, texts, sampler, tower, store)
        if tower.normalised != own:
            logger.warning(_compared_anew(own))
        return task

    def race(self, config: Config) -> Race:
        """Return the settings that the tower tries on so many pairs."""
        race: Race = config.tower.race(len(self.data.texts.split.train), self.data.spans.length)
        return race

    @cached_property
    def facts(self) -> DataFacts:
        """The texts in numbers and sentences."""
        return self.showcase.facts()

    def compared(self, before: Verdict | None, after: Verdict | None) -> Compared:
        """Compare the trained tower with the untrained one, a teacher, and BM25."""
        systems: dict[str, SystemScores] = {}
        if before is not None and after is not None:
            systems = systems_of(before, self.held_out.baselines(), after)
        about = self.held_out.about()
        examples = self.showcase.examples(systems) if systems else []
        return Compared(systems, about, examples)

    def searched(self) -> Searched:
        """Return every document that is searched with its vector."""
        return self.showcase.searched()

    def again(self, config: Config, part: Part | None = None) -> TextTask:
        """Return another run on the same texts and tokens, before its training; with a part, it
        trains on the pairs of this part, too, and is judged as this one."""
        if part is not None:
            return self._extended_run(config, part)
        texts = self.data.texts
        config = config.settled(len(texts.split.train), config.train.large_pays)
        sampler = sampler_of(config.data, texts.catalogue, texts.split, config.train)
        return TextTask(config, texts, sampler, config.tower.again(self.data.tower), self.store)

    @property
    def refits(self) -> RefitPlan:
        """The parts that a training again may learn, and the pairs that it then has."""
        return RefitPlan(self._auto_parts, lambda part: len(self._extended(part).train))

    @property
    def _auto_parts(self) -> tuple[Part, ...]:
        """The test, after its evaluation, and all before it; validation alone where the user has
        named the test.

        Nothing is learned that the user has named for validation, nor beyond `train.max_pairs`; and
        two texts are no pair.
        """
        pairs = self.data.texts.split.pairs
        if self.limited or not pairs.paired or (pairs.part == VALIDATION).any():
            return ()
        return ("validation",) if (pairs.part == TEST).any() else ("test",)

    def _extended_run(self, config: Config, part: Part) -> TextTask:
        """Return a run that trains on the pairs of a part, too, with the same tokens, evaluated as
        this one."""
        split, catalogue = self._extended(part), self.data.texts.catalogue
        if len(split.withheld):  # else no row has a negative
            catalogue = Catalogue.of(split.pairs, split.withheld)
        texts = replace(self.data.texts, split=split, catalogue=catalogue)
        sampler = sampler_of(config.data, texts.catalogue, texts.split, config.train)
        task = TextTask(config, texts, sampler, config.tower.again(self.data.tower), self.store)
        task.held_out.follow(self.held_out)
        return task

    def _extended(self, part: Part) -> Split:
        return self.data.texts.split.extended(part)


def _compared_anew(by_cosine: bool) -> str:
    """Return that training, and all that follows it, compares by another similarity than the model
    was saved with."""
    before, after = ("cosine", "dot") if by_cosine else ("dot", "cosine")
    return (
        f"the pretrained model compares by {before}, and this run trains, judges, saves and searches by {after}: set "
        f"objective.similarity={before} to keep the model's own"
    )


def _source_rows(tower: Tower, rows: Pairs, cache: Path) -> SourceRows:
    """Read rows that a source has made."""
    reads = partial(tower.features, progress="reading made rows")
    queries = stored(partial(reads, role="query"), rows.view("query"), cache / "made.0")
    docs = stored(partial(reads, role="doc"), rows.view("doc"), cache / "made.1")
    return SourceRows(queries, docs, torch.tensor(rows.ids("query")), torch.tensor(rows.ids("doc")))


def _documents(tower: Tower, catalogue: Catalogue, path: Path) -> Ragged:
    """Return the documents as the tower reads them: their places in an index, or features of their
    texts."""
    doc = tower.of("doc")
    if isinstance(doc, IndexSide):
        return doc.named(catalogue.doc_ids, catalogue.docs)
    return stored(
        lambda part: tower.features(part, "reading documents", "doc"), catalogue.docs, path
    )
