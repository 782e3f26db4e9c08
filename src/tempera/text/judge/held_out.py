"""Evaluation of a run on its held-out queries: answers ranked by the tower, by BM25, and by both
together."""

from __future__ import annotations

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
from ...ranking.fusion import WEIGHTS, Fusion
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
from ..train.training_pairs import TextData, TrainingPairs
from .hybrid import CANDIDATES, nearest_docs, rank_by_both
from .lexical import BM25, Floats, Ints, Lexical
from .other_data import InTraining, judged, read_tasks

HELD_OUT = "held_out"  # in metrics.json: the digest of what a run has held out
BY_TEXT = "held_out_by_text"  # in metrics.json: True, since texts are held out in whatever role
TUNING_QUERIES = 500  # of training for BM25, and of validation for its weight beside the tower
_SHARE = 1 / 8  # cost of all evaluations during training, of the cost of the training
_FREE = 1e11  # multiplications of these evaluations that are always allowed, seconds of a CPU
_COMPARED = 1.5e8  # comparisons of these evaluations that are always allowed, seconds of a CPU
_CELLS = 100_000_000  # scores of the queries that draw a sample; at least so many queries:
_FEWEST = 100


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
        """Return each distinct query of `rows` once; the documents of its rows are its answers."""
        distinct, first, inverse = np.unique(query_of[rows], return_index=True, return_inverse=True)
        place = np.full(int(doc_of.max()) + 1, -1)
        place[doc_of[split.corpus]] = np.arange(len(split.corpus))
        relevant = Relevant.of_pairs(
            len(distinct), inverse, place[doc_of[rows]], split.pairs.grades(rows)
        )
        return cls(split, query_of, doc_of, rows[first], relevant)

    @cached_property
    def queries(self) -> list[str]:
        """Texts of the queries, [q]. Of several texts with one id, only the first is read."""
        first, _ = self.split.pairs.distinct("query")
        return self.split.pairs.texts("query", first[self.query_of[self.rows]])


class HeldOutQueries:
    """Evaluate the current tower of a run, BM25, and both together, on held-out queries."""

    def __init__(self, config: Config, data: TrainingPairs) -> None:
        self.options = config.evaluation
        self.seed = config.train.seed
        self.widths = config.widths
        self.data = data
        self.texts = data.texts
        split = self.texts.split
        test = self._questions(split.test)
        validation = self._questions(split.validation) if len(split.validation) else test
        self.questions: dict[Part, Questions] = {"test": test, "validation": validation}
        self.corpus: int | None
        self.evaluations: int
        self.afford(config)
        self.sample: Sample | None = None  # of the corpus, for looks
        self.bias: dict[str, float] = {}  # of scores on the sample
        self.first = self  # the run whose validation has chosen settings
        self.earlier: HeldOutQueries | None = None  # of the run that this run trains again

    def afford(self, config: Config) -> None:
        """Choose the number of documents ranked during training, and of evaluations, by the steps
        of a run, before the first evaluation."""
        corpus = self.options.corpus
        if corpus == "auto":
            self.corpus, self.evaluations = _affordable(config, self.data)
        else:
            self.corpus = corpus
            self.evaluations = config.train.evaluations

    def _questions(self, rows: Rows) -> Questions:
        catalogue = self.texts.catalogue
        return Questions.of(self.texts.split, catalogue.query_of, catalogue.doc_of, rows)

    @property
    def chooses(self) -> bool:
        """True if validation has enough queries to choose by."""
        return self.texts.split.chooses

    @property
    def looks(self) -> bool:
        """True if there are queries to ask during training."""
        return len(self.questions["validation"].rows) > 0

    def follow(self, other: HeldOutQueries) -> None:
        """Take over the settings chosen by another run on validation, since the present run may
        train on validation."""
        self.first = other.first
        self.earlier = other

    @cached_property
    def words(self) -> BM25 | None:
        """The tuned index of the ranked documents' words; None if the run is not compared with
        BM25."""
        if self.first is not self:
            return self.first.words
        if not self.options.bm25 or self.options.queries == 0:
            return None
        if not len(self.questions["test"].rows):
            return None
        return self._tuned()

    @cached_property
    def fusion(self) -> Fusion:
        """The best weight of the tower beside BM25 on validation queries, if there are enough
        queries."""
        if self.first is not self:
            return self.first.fusion
        if self.words is None or not self.chooses:
            return Fusion()
        return self._chosen(self.words)

    def begin(self, config: Config, draws: bool) -> Looks:
        """Plan the looks of a training by the number of steps.

        Args:
            draws: choose the documents for looks among the documents confused by the present tower.
        """
        self.afford(config)
        if draws and self.corpus is not None and self.sample is None:
            self._draw_sample(self.corpus)
        return Looks(self.evaluations, self.corpus)

    def _draw_sample(self, size: int) -> None:
        """Draw the documents that looks rank: relevant documents, documents that the present tower
        confuses with the relevant documents of some queries, and random documents. Where some
        queries are left, the bias of the sample is measured on other queries than these."""
        metrics = self.options.metrics
        questions = self.questions["validation"]
        relevant = questions.relevant
        docs = self.data.corpus
        count = max(_FEWEST, _CELLS // len(docs))
        order = np.random.default_rng(self.seed).permutation(len(questions.rows))
        some, others = order[:count], order[count : 2 * count]
        if not len(others):
            others = some
        queries = self._queries(questions)
        near = nearest_docs(queries[some], docs, depth_of(metrics))
        self.sample = sample_corpus(relevant, len(docs), size, near, seed=self.seed)
        ranked = nearest_docs(queries[others], docs, depth_of(metrics))
        whole = Ranking.of(ranked, relevant.of_queries(others), metrics)
        of_others = self.sample.relevant.of_queries(others)
        small = Ranking.by_vectors(queries[others], docs[self.sample.docs], of_others, metrics)
        self.bias = small.bias(whole)

    def judge(self, part: Part = "test", whole: bool = True) -> Verdict:
        """Evaluate the tower on the queries of a part; on the test if there are no validation
        queries.

        Args:
            part: "validation" to choose by, "test" to report on.
            whole: True ranks every document, False only the sample of `evaluation.corpus`. The first
                ranking of a sample draws the sample.

        Raises:
            DataError: no queries are held out.
        """
        metrics, questions = self.options.metrics, self.questions[part]
        if not len(questions.rows):
            raise DataError(
                "no queries are held out: raise evaluation.queries or evaluation.validation above 0"
            )
        queries = self._queries(questions)
        docs, relevant = self.texts.ranked, questions.relevant
        if self.corpus is not None and questions is self.questions["validation"] and not whole:
            if self.sample is None:
                self._draw_sample(self.corpus)
            assert self.sample is not None
            docs, relevant = docs[self.sample.docs], self.sample.relevant
        corpus = self.data.remembered(docs)
        place = np.empty(len(self.texts.docs), np.int64)
        place[docs] = np.arange(len(docs))
        answers = corpus[place[questions.doc_of[questions.rows]]]
        depth = depth_of(metrics)
        near = nearest_docs(queries, corpus, max(depth, CANDIDATES if part == "test" else 0))
        ranking = Ranking.of(near[:, :depth], relevant, metrics)
        if not self.data.tower.normalised:
            queries = normalised(queries)
            answers = normalised(answers)
        verdict = Verdict(ranking, spread(queries, answers), nearest=near)
        also = self.options.also
        if part != "test" or not also:
            return verdict
        others = judged(InTraining(self.data.known), read_tasks(also), metrics)
        return replace(verdict, others=others)

    def _queries(self, questions: Questions) -> Floats:
        return self.data.remembered(questions.query_of[questions.rows], "query")

    def vectors(self) -> NDArray[np.float32]:
        """Return the vectors of the searched documents, after all evaluations; documents just
        ranked by the same weights are not embedded again."""
        if self.earlier is not None:
            self.earlier.data.known.forget()
        data = self.data
        return data.known.handed_over(self.texts.catalogue.searched, "doc", data.vectors)

    def baselines(self, trained: Verdict | None = None) -> dict[str, SystemScores]:
        """Rank the test by the teacher if the run has a teacher; and with evaluation.bm25 by BM25,
        and by the tower and BM25 together.

        Args:
            trained: the verdict on the present tower; None compares it anew.
        """
        test, metrics = self.questions["test"], self.options.metrics
        systems: dict[str, SystemScores] = {}
        teacher = self.data.rows.teacher
        if teacher is not None and len(test.rows):
            queries = teacher("query", torch.from_numpy(test.query_of[test.rows])).numpy()
            docs = teacher("doc", torch.from_numpy(self.texts.ranked)).numpy()
            systems[TEACHER] = Ranking.by_vectors(queries, docs, test.relevant, metrics)
        index = self.words
        if index is None:
            return systems
        ranked = rank_by_both(
            self._queries(test),
            self.data.corpus,
            test.queries,
            index,
            [self.fusion.weight],
            depth_of(metrics),
            None if trained is None else trained.nearest,
        )
        systems["bm25"] = Ranking.of(ranked.words, test.relevant, metrics)
        systems[FUSED] = Ranking.of(ranked.fused[0], test.relevant, metrics)
        return systems

    def _tuned(self) -> BM25:
        """Return the index of the ranked documents' words, tuned on training queries with a ranked
        answer, else on validation.

        Training queries made of documents tune nothing: the ranked whole documents hold the words
        of the queries.
        """
        split, doc_of = self.texts.split, self.texts.catalogue.doc_of
        rows = split.validation
        if split.pairs.paired:
            has_ranked = np.isin(doc_of[split.train], doc_of[split.corpus])
            suited = split.train[has_ranked & split.pairs.searched[split.train]]
            if len(suited):
                rows = suited
        chosen = np.random.default_rng(self.seed).permutation(len(rows))[:TUNING_QUERIES]
        lexical = Lexical(split.pairs.view("doc", split.corpus))
        if len(chosen):
            tuning = self._questions(rows[chosen])
            lexical.tune(tuning.queries, tuning.relevant)
        return lexical.index()

    def _chosen(self, words: BM25) -> Fusion:
        """Return the best weight of the tower beside BM25 on some validation queries."""
        rows = self.texts.split.validation
        query = self.texts.catalogue.query_of[rows]
        drawn = np.random.default_rng(self.seed).permutation(np.unique(query))[:TUNING_QUERIES]
        questions = self._questions(rows[np.isin(query, drawn)])
        metric = main_metric(self.options.metrics)
        _, depth = parsed(metric)
        ranked = rank_by_both(
            self._queries(questions), self.data.corpus, questions.queries, words, WEIGHTS, depth
        )
        values = {}
        for weight, ranking in zip(WEIGHTS, ranked.fused, strict=True):
            values[weight] = evaluate(ranking, questions.relevant, [metric])[metric]
        return Fusion.chosen(values)

    def words_of_all(self) -> BM25 | None:
        """Return the index of the searched documents' words; None without BM25."""
        catalogue, ranked = self.texts.catalogue, self.texts.ranked
        if self.words is None:
            return None
        if np.array_equal(np.sort(ranked), catalogue.searched):
            return self.words.ordered(np.searchsorted(catalogue.searched, ranked))
        return Lexical(catalogue.docs.chosen(catalogue.searched)).index(self.words.settings)

    def about(self, trained: Verdict | None = None) -> dict[str, Any]:
        """Return the facts of the evaluation for metrics.json: the digest of the held-out texts,
        the settings of BM25 and its weight, the bias of the sample, the metrics of smaller
        vectors.

        Args:
            trained: the verdict on the present tower; None without held-out data.
        """
        about: dict[str, Any] = {
            HELD_OUT: self.texts.split.digest,
            BY_TEXT: True,
            "bm25": None,
            "hybrid": None,
        }
        if self.words is not None:
            about["bm25"] = asdict(self.words.settings)
            about["hybrid"] = asdict(self.fusion)
        if self.sample is not None:
            about["sample"] = {
                "corpus": len(self.sample.docs),
                "hardest": self.sample.hardest,
                "bias": self.bias,
            }
        # Fewer and coarser numbers are those of unit vectors: inner products need the lengths.
        has_queries = self.options.queries != 0 and len(self.questions["test"].rows)
        if has_queries and self.data.tower.normalised:
            near = None if trained is None else trained.nearest
            about["precisions"] = self._precisions(near)
        return about

    def learned_by(self, run: Path) -> int | None:
        """Return the number of test queries among the training texts of a run, in any role; None
        for a folder without a record of training texts."""
        trained = trained_on(run)
        if trained is None:
            return None
        queries = pa.array(self.questions["test"].queries, pa.large_string())
        return int(among_trained(pa.chunked_array([queries]), trained).sum())

    def _precisions(self, near: Ints | None) -> dict[str, Any]:
        """Return the metrics of the test by vectors of fewer dimensions and coarser numbers.

        Args:
            near: the documents nearest to each query, [q, k]; None ranks all documents.
        """
        test, corpus = self.questions["test"], self.data.corpus
        widths = widths_of(corpus.shape[1], self.widths)
        return by_precision(
            self._queries(test),
            corpus,
            test.relevant,
            self.options.metrics,
            widths,
            self.seed,
            near,
        )


def _affordable(config: Config, data: TrainingPairs) -> tuple[int | None, int]:
    """Return the number of documents ranked during training, None for all, and the number of
    evaluations on the way, for a small cost beside the training.

    A training row is counted as three documents: the backward pass costs twice the forward pass.
    Both numbers depend on options and data alone: a resumed run, or a run elsewhere, evaluates
    alike.
    """
    options, texts = config.train, data.texts
    doc_tokens = len(texts.docs.values) / len(texts.docs)  # mean length
    doc: Any = data.tower.of("doc")
    doc_cost = _multiplications(doc) * doc_tokens
    steps = options.steps(data.sampler.batches_per_epoch)
    rows = steps * options.gradient_accumulation_steps * options.size
    held = texts.split.validation
    if doc_cost == 0:  # looking up vectors costs nothing beside ranking
        return _ranked_at_little_cost(config, texts, rows * options.size)
    most = max(3 * _SHARE * rows, _FREE / doc_cost)  # documents of all evaluations together
    # Queries are counted as documents of their length.
    query_tokens = len(np.unique(texts.catalogue.query_of[held])) * len(texts.queries.values)
    queries = query_tokens / len(texts.queries) / doc_tokens
    least = 2 * len(np.unique(texts.catalogue.doc_of[held]))
    # The first evaluation embeds nothing: it ranks vectors that are known.
    possible = max(0, int(most / (least + queries + 1)) - 1)
    evaluations = min(options.evaluations, possible)
    size = max(least, int(most / (evaluations + 1) - queries))
    # Where all documents are ranked, the last evaluation also embeds them for the run's index.
    if not evaluations or size >= len(texts.ranked):
        return None, evaluations
    return size, evaluations


def _ranked_at_little_cost(
    config: Config, texts: TextData, compared: int
) -> tuple[int | None, int]:
    """Return the same as `_affordable` for a tower whose vectors are looked up: the cost is the
    comparison of vectors, and choosing the best of them costs as much again.

    Args:
        compared: pairs of a query and a document that the training compares.
    """
    evaluations = config.train.evaluations
    held = texts.split.validation
    if not len(held):
        held = texts.split.test
    queries = len(np.unique(texts.catalogue.query_of[held]))
    least = 2 * len(np.unique(texts.catalogue.doc_of[held]))
    most = max(_SHARE / 2 * compared, _COMPARED)
    size = max(least, int(most / (evaluations + 1) / max(1, queries)))
    return (None if size >= len(texts.ranked) else size), evaluations


def _multiplications(tower: nn.Module) -> int:
    """Return the multiplications of a token in a forward pass: the weights outside of tables."""
    count = 0
    for module in tower.modules():
        if isinstance(module, Table | nn.Embedding | nn.EmbeddingBag):
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.ndim > 1:
                count += parameter.numel()
    return count
