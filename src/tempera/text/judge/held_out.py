"""Held-out queries of a run on texts, and the ranking of their answers by a tower, by BM25, and by
both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import nn

from ...arithmetic.table import Table
from ...errors import DataError
from ...mining.embedder import among_trained, trained_on
from ...ranking.fusion import WEIGHTS, Fusion, rank_by_weight
from ...ranking.metrics import Relevant, evaluate, parsed
from ...ranking.ranking import Ranking, depth_of
from ...ranking.sample import Sample, sample_corpus
from ...ranking.small_vectors import by_precision, widths_of
from ...ranking.spread import normalised, spread
from ...task.config import Config
from ...task.evaluation import Part
from ...task.showcase import Looks
from ...task.verdict import FUSED, TEACHER, SystemScores, Verdict, main_metric
from ..read.pairs import Rows
from ..train.split import Split
from ..train.training_pairs import TrainingPairs
from .hybrid import scores_of_both
from .lexical import BM25, Floats, Lexical, best
from .other_data import InTraining, judged, read_tasks

HELD_OUT = "held_out"  # in metrics.json: the digest of what a run has held out
BY_TEXT = "held_out_by_text"  # in metrics.json: True, since texts are held out in whatever role
TUNING_QUERIES = 500  # of training for BM25, and of validation for its weight beside the tower
_SHARE = 1 / 8  # of the documents that training embeds: what the looks on the way may cost
_FREE = 1e11  # multiplications that the looks may cost in any case, a few seconds of a CPU


@dataclass
class Questions:
    """Hold queries and their answers, by positions among the distinct texts of all pairs."""

    split: Split
    query_of: Rows  # [n] the distinct query of each pair
    doc_of: Rows  # [n]
    rows: Rows  # [q] a pair for each distinct query
    relevant: Relevant

    @classmethod
    def of(cls, split: Split, query_of: Rows, doc_of: Rows, rows: Rows) -> Questions:
        """Return each distinct query of `rows` once; its answers are the documents it is paired
        with there."""
        distinct, first, inverse = np.unique(query_of[rows], return_index=True, return_inverse=True)
        place = np.full(int(doc_of.max()) + 1, -1)
        place[doc_of[split.corpus]] = np.arange(len(split.corpus))
        relevant = Relevant.of_pairs(
            len(distinct), inverse, place[doc_of[rows]], split.pairs.grades(rows)
        )
        return cls(split, query_of, doc_of, rows[first], relevant)

    @cached_property
    def queries(self) -> list[str]:
        """Texts, [q]: of several texts with one id the first, which alone is read."""
        first, _ = self.split.pairs.distinct("query")
        return self.split.pairs.texts("query", first[self.query_of[self.rows]])


class HeldOutQueries:
    """Evaluate the current tower of a run, BM25, and both together, on held-out queries."""

    def __init__(self, config: Config, data: TrainingPairs) -> None:
        self.options, self.seed, self.data, self.texts = (
            config.evaluation,
            config.train.seed,
            data,
            data.texts,
        )
        split = self.texts.split
        self.questions: dict[Part, Questions] = {"test": self._questions(split.test)}
        self.questions["validation"] = (
            self._questions(split.validation) if len(split.validation) else self.questions["test"]
        )
        self.corpus: int | None
        self.evaluations: int
        self.afford(config)
        self.sample: Sample | None = None  # of the corpus, once validation has been asked
        self.widths = config.widths
        self.bias: dict[str, float] = {}  # of scores on the sample
        self.first = self  # the run whose validation has chosen settings

    def afford(self, config: Config) -> None:
        """Choose how many documents are ranked during training, and how often, by the steps of a
        run, before its first look."""
        corpus = self.options.corpus
        self.corpus, self.evaluations = (
            _affordable(config, self.data)
            if corpus == "auto"
            else (corpus, config.train.evaluations)
        )

    def _questions(self, rows: Rows) -> Questions:
        return Questions.of(
            self.texts.split, self.texts.catalogue.query_of, self.texts.catalogue.doc_of, rows
        )

    @property
    def chooses(self) -> bool:
        """True if validation has enough queries to choose by."""
        return self.texts.split.chooses

    @property
    def looks(self) -> bool:
        """True if there are queries to ask during training."""
        return len(self.questions["validation"].rows) > 0

    def follow(self, other: HeldOutQueries) -> None:
        """Take over what validation has chosen for another run on the same texts, which this one
        may train on."""
        self.first = other.first

    @cached_property
    def words(self) -> BM25 | None:
        """The index of the ranked documents' words, tuned; None where nothing is compared with
        BM25."""
        if self.first is not self:
            return self.first.words
        if not self.options.bm25 or self.options.queries == 0:
            return None
        return self._tuned() if len(self.questions["test"].rows) else None

    @cached_property
    def fusion(self) -> Fusion:
        """The weight of the tower beside BM25 that is best on validation queries, if they are
        enough to choose by."""
        if self.first is not self:
            return self.first.fusion
        return Fusion() if self.words is None or not self.chooses else self._chosen(self.words)

    def begin(self, config: Config, draws: bool) -> Looks:
        """Plan the looks of a training by its steps.

        Args:
            draws: choose the documents that looks rank, among those that the tower confuses now.
        """
        self.afford(config)
        if draws and self.corpus is not None and self.sample is None:
            self.judge("validation")
        return Looks(self.evaluations, self.corpus)

    def judge(self, part: Part = "test", whole: bool = True) -> Verdict:
        """Evaluate the tower on the queries of a part; on the test if there are no validation
        queries.

        Args:
            part: "validation" to choose by, "test" to report on.
            whole: rank every document; False ranks the sample of `evaluation.corpus` where there is
                one. The sample is drawn when validation is first asked, from what the tower then
                confuses.
        """
        options, questions = self.options, self.questions[part]
        if not len(questions.rows):
            raise DataError(
                "no queries are held out: raise evaluation.queries or evaluation.validation above 0"
            )
        sampling = self.corpus is not None and questions is self.questions["validation"]
        if sampling and not whole and self.sample is None:
            self.judge(part)
        sample = None if whole or not sampling else self.sample
        queries = self._queries(questions)
        docs, relevant = self.texts.ranked, questions.relevant
        if sample is not None:
            docs, relevant = docs[sample.docs], sample.relevant
        corpus = self.data.remembered(docs)
        place = np.empty(len(self.texts.docs), np.int64)
        place[docs] = np.arange(len(docs))
        answers = corpus[place[questions.doc_of[questions.rows]]]
        ranking = Ranking.by_vectors(queries, corpus, relevant, options.metrics)
        if sampling and self.corpus is not None and self.sample is None:
            self.sample = sample_corpus(
                relevant, len(corpus), self.corpus, ranking.ranked, seed=self.seed
            )
            self.bias = self.sample.bias(queries, corpus, options.metrics, relevant)
        unit = self.data.tower.normalised
        cosines = (queries, answers) if unit else (normalised(queries), normalised(answers))
        verdict = Verdict(ranking, spread(*cosines))
        if part != "test" or not options.also:
            return verdict
        others = judged(InTraining(self.data.known), read_tasks(options.also), options.metrics)
        return replace(verdict, others=others)

    def _queries(self, questions: Questions) -> Floats:
        return self.data.remembered(questions.query_of[questions.rows], "query")

    def vectors(self) -> NDArray[np.float32]:
        """Return the vectors of the documents that are searched; what the same weights have just
        ranked is not embedded again."""
        return self.data.remembered(self.texts.catalogue.searched)

    def baselines(self) -> dict[str, SystemScores]:
        """Rank by the teacher if there is one; by BM25, and by the tower and BM25 together, if
        evaluation.bm25 asks for it."""
        teacher = self._teacher()
        index = self.words
        if index is None:
            return teacher
        test, names, depth, ranked = (
            self.questions["test"],
            self.options.metrics,
            depth_of(self.options.metrics),
            [],
        )

        def scores() -> Iterator[tuple[Floats, Floats]]:
            for vectors, words in self._scores(test, index):
                ranked.append(best(words, depth))
                yield vectors, words

        (fused,) = rank_by_weight(scores(), [self.fusion.weight], depth)
        rankings = {"bm25": np.concatenate(ranked), FUSED: fused}
        return {
            **teacher,
            **{system: Ranking.of(each, test.relevant, names) for system, each in rankings.items()},
        }

    def _teacher(self) -> dict[str, SystemScores]:
        """Rank by the vectors of the teacher, if there is one."""
        vectors, test = self.data.rows.teacher, self.questions["test"]
        if vectors is None or not len(test.rows):
            return {}
        queries, docs = (
            torch.from_numpy(test.query_of[test.rows]),
            torch.from_numpy(self.texts.ranked),
        )
        ranked = (vectors("query", queries).numpy(), vectors("doc", docs).numpy())
        return {TEACHER: Ranking.by_vectors(*ranked, test.relevant, self.options.metrics)}

    def _scores(self, questions: Questions, words: BM25) -> Iterator[tuple[Floats, Floats]]:
        """Yield the scores of the tower and of BM25 for some queries at a time."""
        return scores_of_both(self._queries(questions), self.data.corpus, questions.queries, words)

    def _tuned(self) -> BM25:
        """Return the index of the ranked documents' words, tuned on training queries that they
        answer, else on validation.

        Training queries that are made of documents are not asked: the whole documents, which are
            ranked, hold them.
        """
        split, test = self.texts.split, self.questions["test"]
        inside = (
            np.isin(test.doc_of[split.train], test.doc_of[split.corpus])
            & split.pairs.searched[split.train]
        )
        rows = split.train[inside] if split.pairs.paired and inside.any() else split.validation
        chosen = np.random.default_rng(self.seed).permutation(len(rows))[:TUNING_QUERIES]
        lexical = Lexical(split.pairs.texts("doc", split.corpus))
        if len(chosen):
            tuning = self._questions(rows[chosen])
            lexical.tune(tuning.queries, tuning.relevant)
        return lexical.index()

    def _chosen(self, words: BM25) -> Fusion:
        """Return the weight of the tower that is best on some validation queries."""
        rows = self.texts.split.validation
        of = self.texts.catalogue.query_of[rows]
        some = np.random.default_rng(self.seed).permutation(np.unique(of))[:TUNING_QUERIES]
        questions, metric = (
            self._questions(rows[np.isin(of, some)]),
            main_metric(self.options.metrics),
        )
        ranked = rank_by_weight(self._scores(questions, words), WEIGHTS, parsed(metric)[1])
        return Fusion.chosen(
            {
                w: evaluate(each, questions.relevant, [metric])[metric]
                for w, each in zip(WEIGHTS, ranked, strict=True)
            }
        )

    def words_of_all(self) -> BM25 | None:
        """Return the index of the words of the documents that are searched; None without BM25."""
        catalogue, ranked = self.texts.catalogue, self.texts.ranked
        if self.words is None:
            return None
        if np.array_equal(np.sort(ranked), catalogue.searched):
            return self.words.ordered(np.searchsorted(catalogue.searched, ranked))
        return Lexical(catalogue.docs.take(catalogue.searched)).index(self.words.settings)

    def about(self) -> dict[str, Any]:
        """Return what is held out, how BM25 and its weight were chosen, bias on the way, and the
        metrics of smaller vectors."""
        about: dict[str, Any] = {HELD_OUT: self.texts.split.digest, BY_TEXT: True}
        about |= {"bm25": None, "hybrid": None}
        if self.words is not None:
            about |= {"bm25": asdict(self.words.settings), "hybrid": asdict(self.fusion)}
        if self.sample is not None:
            about["sample"] = {
                "corpus": len(self.sample.docs),
                "hardest": self.sample.hardest,
                "bias": self.bias,
            }
        # Fewer and coarser numbers are those of unit vectors: inner products need the lengths.
        has_queries = self.options.queries != 0 and len(self.questions["test"].rows)
        if has_queries and self.data.tower.normalised:
            about["precisions"] = self._precisions()
        return about

    def learned_by(self, run: Path) -> int | None:
        """Return how many queries of the test a run was trained on, in whatever role; None for a
        folder that does not say."""
        if (known := trained_on(run)) is None:
            return None
        queries = pa.array(self.questions["test"].queries, pa.large_string())
        return int(among_trained(pa.chunked_array([queries]), known).sum())

    def _precisions(self) -> dict[str, Any]:
        test, corpus = self.questions["test"], self.data.corpus
        widths = widths_of(corpus.shape[1], self.widths)
        return by_precision(
            self._queries(test), corpus, test.relevant, self.options.metrics, widths, self.seed
        )


def _affordable(config: Config, data: TrainingPairs) -> tuple[int | None, int]:
    """Return how many documents are ranked during training, and how often on the way, so that this
    costs little beside training.

    None stands for all documents. A training row is counted as three documents: the backward pass
    costs twice the forward pass. The numbers depend on options and data alone, so that a resumed
    run and one on another machine take the same looks.
    """
    options, texts = config.train, data.texts
    tokens = len(texts.docs.values) / len(texts.docs)  # of a document
    doc: Any = data.tower.of("doc")
    each, wanted = _multiplications(doc) * tokens, options.evaluations
    if each == 0:  # looking up vectors costs nothing beside ranking
        return None, wanted
    rows = (
        options.steps(data.sampler.batches_per_epoch)
        * options.gradient_accumulation_steps
        * options.size
    )
    most = max(3 * _SHARE * rows, _FREE / each)  # documents of all looks
    held = texts.split.validation
    queries = (
        len(np.unique(texts.catalogue.query_of[held]))
        * len(texts.queries.values)
        / len(texts.queries)
        / tokens
    )
    least = 2 * len(np.unique(texts.catalogue.doc_of[held]))
    looks = min(
        wanted, max(0, int(most / (least + queries + 1)) - 1)
    )  # the first one ranks vectors that are known
    size = max(least, int(most / (looks + 1) - queries))
    if not looks or size >= len(
        texts.ranked
    ):  # the last look of all documents serves the run's index, too
        return None, looks
    return size, looks


def _multiplications(tower: nn.Module) -> int:
    """Return the multiplications of one token in a forward pass: the weights that are not looked up
    in a table."""
    modules = (
        module
        for module in tower.modules()
        if not isinstance(module, Table | nn.Embedding | nn.EmbeddingBag)
    )
    return sum(
        p.numel() for module in modules for p in module.parameters(recurse=False) if p.ndim > 1
    )
