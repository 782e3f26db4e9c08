"""Tasks for evaluating a model: a retrieval set, a table of pairs, or pairs that people graded.

Letters in shapes: q queries, c documents, r judgements, n graded pairs, D width.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import DataError
from ...forms.labels import is_scale_of_labels
from ...forms.proposed_roles import log_proposed
from ...forms.roles import UNTRAINED, WHOLE, Roles, refuse_roles
from ...forms.set_files import is_beir
from ...io.ids import content_ids, falling
from ...mining.embedder import Embedder, Vectors, encode_part
from ...parallel.distributed import ALONE, Group
from ...ranking.metrics import Relevant
from ...ranking.ranking import Ranking, depth_of
from ...tables.columns import plain
from ...tables.profile import ColumnProfile, profile
from ...tables.streams import stream
from ...tables.tables import TableBlock, blocks, joined
from ..read.beir import read_beir
from ..read.pairs import Pairs, Text
from ..read.rows import PairReader
from ..read.sources import Given, PairsFile
from .divided_ranking import ALIGNED, nearest_of_all, rows_of_all
from .hybrid import rank_by_both
from .lexical import Lexical, Settings
from .sts import METRICS, Agreement

Ints = NDArray[np.int64]

# Usual names of two texts of which neither asks for the other.
_SENTENCES = (
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("sentence_1", "sentence_2"),
    ("sent1", "sent2"),
    ("s1", "s2"),
    ("text_a", "text_b"),
)
_GRADED = "score"  # the name of a column of grades on any scale


@dataclass(frozen=True)
class RetrievalTask:
    """Hold queries, a corpus, and the documents that answer each query.

    Documents stand in falling order of ids: trec_eval's ranking of equal scores.
    """

    name: str
    queries: pa.Table  # id, text
    corpus: pa.Table  # id, text
    relevant: Relevant
    counts: dict[str, int]
    # True leaves out a document with the query's own text unless it is judged relevant.
    exclude_self: bool = False
    # Vectors of the documents, [c, D], where an index is searched and no model embeds documents.
    kept: Vectors | None = None
    # Settings of BM25 that a run has tuned on other queries; None are the usual settings.
    words: Settings | None = None
    # Pairs of a query and a document of one id, which are always left out, [e], each as query * c +
    # document.
    itself: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def of(
        cls,
        name: str,
        queries: pa.Table,
        corpus: pa.Table,
        relevant: Relevant,
        unused: dict[str, int],
    ) -> RetrievalTask:
        """Return a task with the corpus in order; `relevant` has positions in the given order."""
        order = falling(corpus["id"])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        counts = {
            "queries": len(queries),
            "documents": len(corpus),
            "judgements": len(relevant.doc),
        }
        counts.update(unused)
        ordered = corpus.take(pa.array(order))
        task = cls(name, queries, ordered, replace(relevant, doc=place[relevant.doc]), counts)
        counts = dict(counts)
        counts["queries that are a document"] = len(np.unique(task.own // len(corpus)))
        return replace(task, counts=counts)

    @classmethod
    def beir(cls, folder: str | Path, split: str = "test") -> RetrievalTask:
        """Read a BEIR folder; grades of 0 are not relevant."""
        rows = read_beir(folder, split)
        right = rows.grade > 0
        relevant = Relevant(
            len(rows.queries), rows.query[right], rows.doc[right], rows.grade[right]
        )
        query, doc = rows.itself()
        unused = dict(rows.unused)
        if len(query):
            unused["queries that are a document of their id, which is left out"] = len(query)
        name = f"{Path(folder).name}/{split}"
        task = cls.of(name, rows.queries, rows.corpus, relevant, unused)
        place = np.argsort(falling(rows.corpus["id"]))
        return replace(task, itself=query * len(rows.corpus) + place[doc])

    @classmethod
    def pairs(cls, path: str | Path, roles: Roles = UNTRAINED) -> RetrievalTask:
        """Read a table of pairs: each distinct query ranks every distinct document; missing ids
        are row numbers."""
        options = dict(vars(roles))
        options["path"] = str(path)
        options["keep"] = ()
        pairs, _ = PairsFile(**options).read()
        return cls.of_pairs(Path(path).name, pairs)

    @classmethod
    def of_pairs(cls, name: str, pairs: Pairs) -> RetrievalTask:
        """Return the task of pairs."""
        log_proposed(pairs.about)
        queries, query_of = _distinct(pairs, "query")
        docs, doc_of = _distinct(pairs, "doc")
        relevant = Relevant.of_pairs(len(queries), query_of, doc_of)
        return cls.of(name, queries, docs, relevant, dict(pairs.dropped))

    @property
    def ids(self) -> list[str]:
        """Ids of the queries."""
        ids: list[str] = self.queries["id"].to_pylist()
        return ids

    @cached_property
    def own(self) -> Ints:
        """Pairs of a query and an irrelevant document with the query's text, [e], each as query * c
        + document."""
        c = len(self.corpus)
        rows = defaultdict[int, list[int]](list)
        for row, text in enumerate(content_ids(self.corpus["text"]).tolist()):
            rows[text].append(row)
        equal = list[int]()
        for query, text in enumerate(content_ids(self.queries["text"]).tolist()):
            equal += [query * c + row for row in rows.get(text, ())]
        judged = self.relevant.query * c + self.relevant.doc
        return np.setdiff1d(np.array(equal, np.int64), judged[self.relevant.gain > 0])

    @cached_property
    def left_out(self) -> Ints:
        """Pairs of a query and a document that the query's ranking leaves out, [e], each as query *
        c + document."""
        if self.exclude_self:
            return np.union1d(self.itself, self.own)
        return self.itself

    @property
    def about_words(self) -> dict[str, Any]:
        """The settings of BM25, with True for tuned settings."""
        about: dict[str, Any] = asdict(self.words or Settings())
        about["tuned"] = self.words is not None
        return about

    def _depth(self, metrics: tuple[str, ...]) -> int:
        """Return the depth of rankings, with room for documents that are left out."""
        most = np.bincount(self.left_out // len(self.corpus)).max(initial=0)
        return depth_of(metrics) + int(most)

    def part(self, group: Group) -> slice:
        """Return the documents of a process among several."""
        return group.part(len(self.corpus), ALIGNED)

    def vectors(
        self, model: Embedder, docs: Vectors | None = None, group: Group = ALONE
    ) -> tuple[Vectors, Vectors]:
        """Return a model's vectors of the queries, [q, D], and of this process's documents, [m, D],
        unless these are given.

        Each process reads a part of the queries and of the documents.
        """
        part = group.part(len(self.queries))
        own = encode_part(model.query, self.queries["text"], "queries", part)
        queries = group.all_gather_array(own)
        if docs is not None:
            return queries, docs
        if self.kept is not None:
            return queries, self.kept[self.part(group)]
        return queries, encode_part(model.doc, self.corpus["text"], "documents", self.part(group))

    def by_vectors(
        self, vectors: tuple[Vectors, Vectors], metrics: tuple[str, ...], group: Group = ALONE
    ) -> Ranking:
        """Rank the whole corpus by the inner products of vectors, which are the model's
        similarity."""
        queries, docs = vectors
        ranked = nearest_of_all(queries, docs, len(self.corpus), self._depth(metrics), group)
        return self._judged(ranked, metrics)

    def by_words(
        self,
        vectors: tuple[Vectors, Vectors],
        weight: float,
        metrics: tuple[str, ...],
        group: Group = ALONE,
    ) -> tuple[Ranking, Ranking]:
        """Rank by BM25 alone, and by vectors and BM25 together.

        Each process ranks all documents for a part of the queries: it holds the index of words and
        the vectors of the whole corpus.
        """
        texts = self.queries["text"].to_pylist()
        depth = self._depth(metrics)
        words = Lexical(self.corpus["text"].to_pylist()).index(self.words or Settings())
        queries = vectors[0]
        docs = group.all_gather_array(vectors[1])

        def rank(part: slice) -> tuple[Ints, Ints]:
            ranked = rank_by_both(queries[part], docs, texts[part], words, [weight], depth)
            return ranked.words, ranked.fused[0]

        by_words, fused = rows_of_all(len(texts), rank, group)
        return self._judged(by_words, metrics), self._judged(fused, metrics)

    def _judged(self, ranked: Ints, metrics: tuple[str, ...]) -> Ranking:
        """Return a ranking with its metrics, after moving left-out documents to the end."""
        if len(self.left_out):
            pairs = np.arange(len(ranked))[:, None] * len(self.corpus) + ranked
            is_own = np.isin(pairs, self.left_out) & (ranked >= 0)
            last = np.argsort(is_own, axis=1, kind="stable")
            ranked = np.take_along_axis(np.where(is_own, -1, ranked), last, 1)
        return Ranking.of(ranked[:, : depth_of(metrics)], self.relevant, metrics)


def _distinct(pairs: Pairs, role: Text) -> tuple[pa.Table, Ints]:
    """Return the ids and texts of distinct texts, and the position of each pair's text among
    them."""
    first, position = pairs.distinct(role)
    numbers = pa.array(first + 1).cast(pa.large_string())
    ids = pc.coalesce(pairs.given(role).take(pa.array(first)), numbers)
    return pa.table({"id": ids, "text": pairs.texts(role, first)}), position


@dataclass(frozen=True)
class Graded:
    """Pairs of texts and people's grades of the pairs."""

    name: str
    first: pa.ChunkedArray  # [n]
    second: pa.ChunkedArray  # [n]
    grades: NDArray[np.float64]  # [n]

    @classmethod
    def table(cls, name: str, table: pa.Table, columns: tuple[str, str, str], where: str) -> Graded:
        """Read the rows of a table of graded pairs.

        Args:
            name: name of the task.
            table: all rows.
            columns: names of the columns of both texts and of the grade.
            where: name of the table in messages.
        """
        if len(table) < 2:
            raise DataError(
                f"{where} holds {len(table)} graded pairs; a correlation needs at least 2"
            )
        first, second, score = columns
        roles = {"first": (first,), "second": (second,), "score": (score,)}
        reader = PairReader(TableBlock(table, where), WHOLE, roles, Counter())
        sides = {"first": reader.texts("first", first), "second": reader.texts("second", second)}
        texts = list[pa.ChunkedArray]()
        for role, (side, rows, _) in sides.items():
            is_not_one = np.bincount(rows, minlength=len(table)) != 1
            reader.refuse(role, is_not_one, "does not hold one text")
            texts.append(pa.chunked_array([side]))
        grades = reader.numbers("score")
        if grades.min() == grades.max():
            raise DataError(
                f"{where}: every score is {grades[0]:g}, and a correlation needs scores that differ"
            )
        return cls(name, texts[0], texts[1], grades)

    @property
    def ids(self) -> list[str]:
        """Numbers of the rows, from 1."""
        return [str(row) for row in range(1, len(self.grades) + 1)]

    @property
    def counts(self) -> dict[str, int]:
        """The number of pairs."""
        return {"pairs": len(self.grades)}

    def judge(
        self, model: Embedder, metrics: tuple[str, ...] = METRICS, group: Group = ALONE
    ) -> Agreement:
        """Compare similarities of both sentences, embedded as documents, with the grades; each
        process embeds a part of the pairs."""
        part = group.part(len(self.grades))
        first = encode_part(model.doc, self.first, "sentences", part)
        second = encode_part(model.doc, self.second, "sentences", part)
        own = np.einsum("nd,nd->n", first, second, dtype=np.float64)
        return Agreement(group.all_gather_array(own), self.grades, model.similarity)


def read_task(data: Any, split: str = "test", roles: Roles | None = None) -> RetrievalTask | Graded:
    """Read a retrieval set, a table of graded pairs, or a table of pairs (always so with roles).

    Args:
        data: the path of a file or a folder, or a frame: any object with `__arrow_c_stream__`.
        split: split of a retrieval set.
        roles: roles of the columns of a table.

    Raises:
        DataError: other data, or a fault in the data, by row.
        ConfigError: roles for a retrieval set.
    """
    is_path = isinstance(data, str | Path)
    if is_path and is_beir(data):
        refuse_roles(data, roles)
        return RetrievalTask.beir(data, split)
    where = str(data) if is_path else "data"
    name = Path(data).name if is_path else where

    def read() -> Iterable[TableBlock]:
        return blocks(Path(data)) if is_path else stream(data)

    first = pa.table({})
    for block in read():
        if len(block.table):
            first = block.table
            break
    columns = graded_columns(first, where) if roles is None else None
    if columns is not None:
        tables = [block.table for block in read()]
        whole = joined(tables, f"{where}: a column changes its type on the way")
        return Graded.table(name, whole, columns, where)
    chosen = (roles or UNTRAINED).without_usual_ids(first.column_names)
    if is_path:
        return RetrievalTask.pairs(data, chosen)
    options = {each.name: getattr(chosen, each.name) for each in fields(Given)}
    pairs, _ = Given.of(data, **options).read()
    return RetrievalTask.of_pairs(name, pairs)


def graded_columns(rows: pa.Table, where: str) -> tuple[str, str, str] | None:
    """Return the columns of two sentences and of the grade of their similarity; None for a table
    without them.

    Grades are numbers called score, or a scale of another name with fractions or with more than
    three whole numbers: labels have at most three.

    >>> rows = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "similarity_score": [0.5, 4.75]}
    >>> graded_columns(pa.table(rows), "a.csv")
    ('sentence1', 'sentence2', 'similarity_score')
    >>> graded_columns(pa.table({**rows, "similarity_score": ["no", "yes"]}), "a.csv")
    """
    called = {plain(name): name for name in rows.column_names}
    texts = list[str]()
    for pair in _SENTENCES:
        if all(plain(name) in called for name in pair):
            texts = [called[plain(name)] for name in pair]
            break
    if not texts:
        return None
    columns = profile(rows.drop_columns(texts), where).columns
    if plain(_GRADED) in called:
        return texts[0], texts[1], called[plain(_GRADED)]
    scales = [name for name, column in columns.items() if _is_graded(column)]
    if len(scales) != 1:
        return None
    return texts[0], texts[1], scales[0]


def _is_graded(column: ColumnProfile) -> bool:
    """Return True for a scale of numbers with fractions, or with more values than labels have."""
    if not is_scale_of_labels(column) or column.scale is None:
        return False
    numbers = {float(value) for value in column.values}
    return len(numbers) > 3 or any(value != int(value) for value in numbers)
