"""The held-out queries of a run on texts: which they are, and how well a tower and BM25 answer them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ranking.metrics import Relevant
from ..ranking.ranking import Part, Ranking, depth_of
from ..ranking.sample import Sample, sample_corpus
from ..ranking.spread import spread
from ..ranking.verdict import Sections, SystemScores, Verdict
from ..towers.pair import Tower
from .lexical import Lexical, Settings
from .pairs import Rows, Split
from .training_pairs import TextData

BM25_TUNING_QUERIES = 500


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
        """Ask each distinct query of `rows` once; its answers are the documents it is paired with there."""
        distinct, first, inverse = np.unique(query_of[rows], return_index=True, return_inverse=True)
        place = np.full(int(doc_of.max()) + 1, -1)
        place[doc_of[split.corpus]] = np.arange(len(split.corpus))
        relevant = Relevant(len(distinct), inverse, place[doc_of[rows]], np.ones(len(rows)))
        return cls(split, query_of, doc_of, rows[first], relevant)

    @cached_property
    def queries(self) -> list[str]:
        """Texts, [q]."""
        return self.split.pairs.texts("query", self.rows)


class HeldOutQueries:
    """Judge the tower of a run, as it is at that moment, and BM25."""

    chooses = False

    def __init__(self, config: Sections, texts: TextData, tower: Tower) -> None:
        self.options, self.seed, self.texts, self.tower = config.evaluation, config.train.seed, texts, tower
        self.asked = self._questions(texts.split.asked)
        self.sample: Sample | None = None  # of the corpus, once the untrained model has ranked it
        self.bias: dict[str, float] = {}  # of scores on the sample
        self.bm25: Settings | None = None  # once it is tuned
        self.latest: tuple[tuple[int, ...], NDArray[np.float32]] | None = None  # weights' versions; what they ranked

    def _questions(self, rows: Rows) -> Questions:
        return Questions.of(self.texts.split, self.texts.catalogue.query_of, self.texts.catalogue.doc_of, rows)

    def judge(self, part: Part = "test", whole: bool = True) -> Verdict:
        """Ask the tower the held-out queries; unless `whole`, in the sample of the corpus that evaluation.corpus asks for."""
        asked, options, ranked = self.asked, self.options, self.texts.ranked
        sample = None if whole else self.sample
        docs, relevant = (ranked, asked.relevant) if sample is None else (ranked[sample.docs], sample.relevant)
        queries = self.texts.vectors(self.tower, asked.query_of[asked.rows], "query")
        corpus = self.texts.vectors(self.tower, docs)
        place = np.empty(len(self.texts.docs), np.int64)
        place[docs] = np.arange(len(docs))
        answers = corpus[place[asked.doc_of[asked.rows]]]
        if sample is None:
            self.latest = self._weights(), corpus
        ranking = Ranking.by_vectors(queries, corpus, relevant, options.metrics)
        if options.corpus is not None and self.sample is None:
            self.sample = sample_corpus(relevant, len(corpus), options.corpus, ranking.ranked, seed=self.seed)
            self.bias = self.sample.bias(queries, corpus, options.metrics, relevant)
        return Verdict(ranking, spread(queries, answers))

    def vectors(self) -> NDArray[np.float32]:
        """Return the vectors of all distinct documents; what the same weights have just ranked is not read again."""
        everything = np.arange(len(self.texts.docs))
        if self.latest is None or self.latest[0] != self._weights():
            return self.texts.vectors(self.tower, everything)
        vectors = np.empty((len(everything), self.latest[1].shape[1]), np.float32)
        vectors[self.texts.ranked] = self.latest[1]
        if len(rest := np.setdiff1d(everything, self.texts.ranked)):
            vectors[rest] = self.texts.vectors(self.tower, rest)
        return vectors

    def _weights(self) -> tuple[int, ...]:
        """Return how often each weight was written, which tells whether the tower has changed."""
        return tuple(parameter._version for parameter in self.tower.parameters())

    def baselines(self) -> dict[str, SystemScores]:
        """Rank by BM25, if evaluation.bm25 asks for it, tuned on training queries of the same corpus."""
        if not self.options.bm25:
            return {}
        asked, split = self.asked, self.texts.split
        inside = np.isin(asked.doc_of[split.train], asked.doc_of[split.corpus])
        rows = split.train[inside]
        chosen = np.random.default_rng(self.seed).permutation(len(rows))[:BM25_TUNING_QUERIES]
        lexical = Lexical(split.pairs.texts("doc", split.corpus))
        if len(chosen):
            tuning = self._questions(rows[chosen])
            lexical.tune(tuning.queries, tuning.relevant)
        self.bm25 = lexical.settings
        ranked = lexical.rank(asked.queries, depth_of(self.options.metrics))
        return {"bm25": Ranking.of(ranked, asked.relevant, self.options.metrics)}

    def about(self) -> dict[str, Any]:
        """Return how BM25 was tuned, and how far scores on the way stand above those on the whole corpus."""
        about: dict[str, Any] = {"bm25": None if self.bm25 is None else asdict(self.bm25)}
        if self.sample is not None:
            about["sample"] = {"corpus": len(self.sample.docs), "hardest": self.sample.hardest, "bias": self.bias}
        return about
