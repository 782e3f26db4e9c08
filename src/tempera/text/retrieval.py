"""The task of text retrieval: pairs of texts, of which some queries are held out and asked."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..artifacts.card import TEXTS
from ..artifacts.index import write_index
from ..artifacts.report import Example, Hit, Words
from ..artifacts.report_tables import Table
from ..artifacts.stamp import Stamp
from ..build import Config, describe
from ..core.batch import Batch, Role
from ..core.matryoshka import Matryoshka
from ..core.ragged import Ragged
from ..engine.batches import Draws, Shuffled
from ..engine.digest import digest
from ..engine.distributed import ALONE, Group
from ..engine.loop import Training
from ..errors import ConfigError
from ..io.console import logger
from ..io.ids import content_ids
from ..mining.guide import CrossEncoder, Guide
from ..ranking.metrics import Relevant
from ..ranking.nearest import refuse_not_finite
from ..ranking.ranking import Part, Ranking, depth_of
from ..ranking.sample import Sample, sample_corpus
from ..ranking.spread import spread
from ..run.task import Judged, Sampler, Verdict
from ..towers.saved import fingerprint, load
from .catalogue import Catalogue, stored
from .embedder import TRAINED
from .lexical import Lexical
from .mixture import Mixture
from .pairs import Rows, Source
from .preview import summary
from .renewal import Renewal, checked
from .samplers import Mixed, NoDuplicates
from .split import Split, hold_out

BM25_TUNING_QUERIES = 500
SELF = "self"  # the guide that is the model in training


@dataclass
class Questions:
    """Held-out queries, by positions among the distinct texts of all pairs."""

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
        return self.split.pairs.texts("query", self.rows)


class Retrieval:
    """Texts of a source, read once as tokens and mapped in `cache`; vectors of a guide are kept in `vectors`,
    and those of the model itself, until the next, in `anew`."""

    kind, words = TEXTS, Words()

    def __init__(self, config: Config, cache: Path, vectors: Path, anew: Path | None = None) -> None:
        self.config, self.store, self.anew, options = config, vectors, anew or cache / "anew", config.train
        pairs, candidates = config.data.read(cache)
        self.source = config.resolved["data"]
        if pairs.source is not None:  # with the roles of its columns written down
            ((name, found),) = describe(pairs.source).items()
            self.source = {"source": name, **found}
        self.split = split = hold_out(pairs, candidates, config.evaluation)
        self.catalogue = catalogue = Catalogue.of(pairs)
        test = Questions.of(split, catalogue.query_of, catalogue.doc_of, split.test)
        validation = test
        if len(split.validation):
            validation = Questions.of(split, catalogue.query_of, catalogue.doc_of, split.validation)
        self.questions: dict[Part, Questions] = {"validation": validation, "test": test}
        self.sampler: Sampler = sampler(config.data, catalogue, split, options)
        self.tower = config.tower.build(catalogue.trained(split.train))
        self.queries = stored(
            lambda part: self.tower.features(part, "reading queries", "query"), catalogue.queries, cache / "tokens.0"
        )
        self.docs = stored(
            lambda part: self.tower.features(part, "reading documents", "doc"), catalogue.docs, cache / "tokens.1"
        )
        self._begin()

    def fresh(self, config: Config, cache: Path) -> Retrieval:
        """The same texts, split and tokens for another run."""
        other = copy.copy(self)
        other.config, other.anew = config, cache / "anew"
        other.sampler = sampler(config.data, self.catalogue, self.split, config.train)
        other.tower = config.tower.again(self.tower)
        other._begin()
        return other

    def _begin(self) -> None:
        """What a run trains on, before its first step."""
        options, catalogue = self.config.train, self.catalogue
        draws = Draws(options.sampled, options.sampled_power, options.seed)
        self.rows = catalogue.examples(self.split.train, self.queries, self.docs, draws)
        if isinstance(self.sampler, Mixed):
            self.rows = replace(self.rows, chance=self.sampler.chance, temperature=self.sampler.temperature)
        if options.guide is not None and options.guide != SELF:
            guide = Guide.of(Path(options.guide), catalogue.queries, catalogue.docs, self.store)
            self.rows = replace(self.rows, guide=guide)
        self._follow()
        self.sample: Sample | None = None  # of the corpus, once the untrained model has ranked it
        self.latest: tuple[int, NDArray[np.float32]] | None = (
            None  # the corpus embedded last, by weights of this digest
        )

    def _follow(self) -> None:
        """Have a cross-encoder judge the negatives; say what will follow the model."""
        options, mining = self.config.train, self.config.mining
        cross = None if mining.cross_encoder is None else CrossEncoder.of(Path(mining.cross_encoder), self.store)
        self.dropped = {**self.split.pairs.dropped, **self.split.dropped}
        if cross is not None and self.rows.negatives is not None:
            self.rows, count = checked(self.rows, self.catalogue, cross, mining.cross_margin)
            self.dropped["negatives that the cross-encoder scores like answers"] = count
        elif cross is not None and mining.every is None:
            raise ConfigError(
                "mining.cross_encoder judges negatives, and the data has none: set mining.every, or drop it"
            )
        objective = self.config.objective
        pools = objective.objective.pools if isinstance(objective, Matryoshka) else objective.pools
        if mining.every is not None and not any(role == "negatives" for pool in pools for _, role in pool.blocks):
            raise ConfigError("mining.every finds negatives, and no pool of the objective takes them: add negatives")
        every = options.guide_every if options.guide == SELF else None
        self.renewal: Renewal | None = None
        if every is not None or mining.every is not None:
            self.renewal = Renewal(self.catalogue, self.split.train, mining, every, self.anew, cross)

    def _read(self, group: Group, role: Role, rows: Rows) -> NDArray[np.float32]:
        """Unit vectors of distinct texts by the tower as it is now; each process reads its share."""
        tokens = self.queries if role == "query" else self.docs
        if len(rows) < group.size:
            return self.vectors(tokens, rows, role)
        mine = np.array_split(rows, group.size)[group.rank]
        return group.all_rows(torch.from_numpy(self.vectors(tokens, mine, role))).numpy()

    def refresh(self, step: int, group: Group = ALONE) -> dict[str, Any]:
        """Mine anew, and read the texts for the guide anew, where it is their turn."""
        if self.renewal is None:
            return {}
        self.rows, report = self.renewal(step, self.rows, partial(self._read, group))
        if report is None:
            return {}
        logger.info(f"mined before step {step + 1}: {report.lines()[0]}")
        return {"mined": asdict(report)}

    @property
    def chooses(self) -> bool:
        """Return True if validation has enough queries to choose by."""
        return self.split.chooses

    def counts(self) -> dict[str, Any]:
        """Count pairs, what is left out by reason, and the parts of the split."""
        split = self.split
        return {
            "pairs": len(split.pairs),
            "dropped": self.dropped,
            "train": len(split.train),
            "validation": split.queries(split.validation),
            "queries": split.queries(split.test),
            "corpus": len(split.corpus),
            **({"shared_documents": split.shared} if split.shared else {}),
        }

    def lines(self) -> list[str]:
        """Return the same as lines for people."""
        first, *rest = self.split.lines()
        return [first, *(f"left out: {count:,} {reason}" for reason, count in self.dropped.items()), *rest]

    def summary(self) -> dict[str, Any]:
        """Three rows, lengths, repeats, negatives a query."""
        return summary(self.catalogue, self.split.train, self.queries, self.docs)

    def content(self) -> Iterable[Tensor]:
        """Tokens of all texts, and which rows are trained on."""
        texts = (self.queries, self.docs)
        return (*(part for side in texts for part in (side.values, side.offsets)), torch.from_numpy(self.split.train))

    @property
    def width(self) -> int:
        """Of the embeddings."""
        return len(self.vectors(self.docs, self.catalogue.doc_of[:1])[0])

    @property
    def ranked(self) -> Rows:
        """The distinct documents that evaluation ranks."""
        return self.catalogue.doc_of[self.split.corpus]

    def batch(self, rows: Tensor, number: int) -> Batch[Ragged]:
        """Tokens of chosen pairs."""
        self.latest = None  # the tower is about to change: the memory is for the step
        return self.rows.batch(rows, number)

    def called(self, rows: Tensor) -> list[str]:
        """Places of pairs; the number of one that has no place, and the beginning of its query."""
        at = self.split.train[rows.numpy()]
        texts = zip(at, self.split.pairs.texts("place", at), self.split.pairs.texts("query", at), strict=True)
        return [f"{place or f'pair {row}'} ({' '.join(query.split())[:40]!r})" for row, place, query in texts]

    def judge(self, part: Part = "test", whole: bool = True) -> Verdict:
        """Ask the tower as it is now the queries of a part; without validation queries that is always the test.

        Args:
            part: "validation" to choose by, "test" to report on.
            whole: rank every document; False ranks the sample of `evaluation.corpus` where there is one. The
                sample is drawn when validation is first asked, from what the tower then confuses.
        """
        options, questions = self.config.evaluation, self.questions[part]
        sampling = options.corpus is not None and questions is self.questions["validation"]
        if sampling and not whole and self.sample is None:
            self.judge(part)
        sample = None if whole or not sampling else self.sample
        queries = self.vectors(self.queries, questions.query_of[questions.rows], "query")
        if sample is None:
            docs, relevant, corpus = self.ranked, questions.relevant, self.corpus
        else:
            docs, relevant = self.ranked[sample.docs], sample.relevant
            corpus = self.vectors(self.docs, docs)
        place = np.empty(len(self.docs), np.int64)
        place[docs] = np.arange(len(docs))
        answers = corpus[place[questions.doc_of[questions.rows]]]
        ranking = Ranking.by_vectors(queries, corpus, relevant, options.metrics)
        if options.corpus is not None and sampling and self.sample is None:
            seed = self.config.train.seed
            self.sample = sample_corpus(relevant, len(corpus), options.corpus, ranking.ranked, seed=seed)
            self.bias = self.sample.bias(queries, corpus, options.metrics, relevant)
        return Verdict(ranking, spread(queries, answers))

    @property
    def corpus(self) -> NDArray[np.float32]:
        """Unit vectors of the documents that evaluation ranks, embedded again only if the weights have changed."""
        weights = digest((*self.tower.parameters(), *self.tower.buffers()))
        if self.latest is None or self.latest[0] != weights:
            self.latest = weights, self.vectors(self.docs, self.ranked)
        return self.latest[1]

    def vectors(self, features: Ragged, rows: Rows, role: Role = "doc") -> NDArray[np.float32]:
        """Unit vectors of chosen rows."""
        vectors: NDArray[np.float32] = self.tower.encode(features[torch.from_numpy(rows)], role).numpy()
        refuse_not_finite(vectors, {"query": "queries", "doc": "documents"}[role])
        return vectors

    def baselines(self) -> dict[str, Judged]:
        """BM25, if it is asked for, tuned on training queries of the same corpus."""
        if not self.config.evaluation.bm25:
            return {}
        asked, split = self.questions["test"], self.split
        inside = np.isin(asked.doc_of[split.train], asked.doc_of[split.corpus])
        rows = split.train[inside]
        chosen = np.random.default_rng(self.config.train.seed).permutation(len(rows))[:BM25_TUNING_QUERIES]
        self.lexical = Lexical(split.pairs.texts("doc", split.corpus))
        if len(chosen):
            tuning = Questions.of(split, asked.query_of, asked.doc_of, rows[chosen])
            self.lexical.tune(tuning.queries, tuning.relevant)
        ranked = self.lexical.rank(asked.queries, depth_of(self.config.evaluation.metrics))
        return {"bm25": Ranking.of(ranked, asked.relevant, self.config.evaluation.metrics)}

    def rival(self, systems: Mapping[str, Judged]) -> str | None:
        """BM25, if it is asked for."""
        return "bm25" if "bm25" in systems else None

    def tables(self) -> list[Table]:
        """None."""
        return []

    def about(self) -> dict[str, Any]:
        """How BM25 was tuned, and how far scores on the way stand above those on the whole corpus."""
        found: dict[str, Any] = {"bm25": asdict(self.lexical.settings) if self.config.evaluation.bm25 else None}
        if self.sample is not None:
            found["sample"] = {"corpus": len(self.sample.docs), "hardest": self.sample.hardest, "bias": self.bias}
        return found

    def write(self, folder: Path) -> None:
        """Write every distinct document with its vector, and the ids of the training queries' contents."""
        vectors = self._all()
        stamp = Stamp(fingerprint(folder / "model"), vectors.shape[1])
        write_index(folder / "index", vectors, self.catalogue.table(), stamp)
        trained = content_ids(self.split.pairs.table["query"].take(pa.array(self.split.train)))
        np.save(folder / TRAINED, np.unique(trained), allow_pickle=False)

    def _all(self) -> NDArray[np.float32]:
        """Vectors of every distinct document; what has just been ranked is not read again."""
        corpus = self.corpus
        found = np.empty((len(self.docs), corpus.shape[1]), np.float32)
        found[self.ranked] = corpus
        if len(rest := np.setdiff1d(np.arange(len(self.docs)), self.ranked)):
            found[rest] = self.vectors(self.docs, rest)
        return found

    def reopened(self, folder: Path) -> float:
        """Save the tower and open it as a user would: the largest difference in any number of its vectors."""
        texts = self.catalogue.docs[: min(8, len(self.catalogue.docs))]
        self.tower.save(folder)
        here = self.tower.encode(self.tower.features(texts, None, "doc"), "doc").numpy()
        return float(np.abs(load(folder, "doc")(texts) - here).max())

    def examples(self, systems: Mapping[str, Judged], count: int = 10, shown: int = 5) -> list[Example]:
        """Held-out queries at random, with what was found."""
        asked, pairs, corpus = self.questions["test"], self.split.pairs, self.split.corpus
        trained, bm25 = systems["trained"], systems.get("bm25")
        assert isinstance(trained, Ranking) and isinstance(bm25, Ranking | None)
        rank = trained.first_right(asked.relevant)
        other = bm25.first_right(asked.relevant) if bm25 is not None else np.zeros_like(rank)
        right = asked.relevant.gains(trained.ranked) > 0
        queries = np.random.default_rng(self.config.train.seed).permutation(len(asked.rows))[:count]
        scores = self._scores(queries, trained.ranked[queries, :shown])
        examples = []
        for i, query in enumerate(queries):
            found = corpus[trained.ranked[query, :shown]]
            names, places = pairs.labels(found), pairs.texts("place", found)
            answers = corpus[asked.relevant.doc[asked.relevant.query == query]]
            examples.append(
                Example(
                    query=asked.queries[query],
                    answers=tuple(pairs.labels(answers)),
                    hits=tuple(
                        Hit(name, place, float(score), bool(good))
                        for name, place, score, good in zip(names, places, scores[i], right[query])
                    ),
                    baseline_rank=int(other[query]) or None,
                    rank=int(rank[query]) or None,
                )
            )
        return examples

    def _scores(self, queries: Rows, ranked: NDArray[np.int64]) -> NDArray[np.float32]:
        """Cosines of queries and what was ranked for them, [q, k]."""
        asked = self.questions["test"]
        a = self.vectors(self.queries, asked.query_of[asked.rows[queries]], "query")
        b = self.vectors(self.docs, asked.doc_of[self.split.corpus[ranked.ravel()]]).reshape(*ranked.shape, -1)
        cosines: NDArray[np.float32] = np.einsum("qd,qkd->qk", a, b)
        return cosines


def sampler(source: Source, catalogue: Catalogue, split: Split, options: Training) -> Shuffled | NoDuplicates | Mixed:
    """Return which of the training rows stand in which batch.

    Raises:
        ConfigError: a batch of more rows than there are to train on.
    """
    rows = split.train
    if options.batch_size > len(rows):
        raise ConfigError(
            f"train.batch_size is {options.batch_size} and the data has {len(rows)} pairs to train on: give a batch_size of at "
            f"most {len(rows)}, or more data, or hold out less: of {len(split.pairs):,} pairs, {split.held_out} are held out "
            "(evaluation.validation, evaluation.queries)"
        )
    if isinstance(source, Mixture):
        if options.batch_sampler != "shuffled":
            raise ConfigError("train.batch_sampler: no_duplicates is for one source, and data is a mixture; drop it")
        origin = catalogue.pairs.table["source"].to_numpy()[rows]
        return source.sampler(origin, options.batch_size, options.seed)
    if options.batch_sampler == "no_duplicates":
        return NoDuplicates(catalogue.keys(rows), options.batch_size, options.seed)
    return Shuffled(len(rows), options.batch_size, options.seed)
