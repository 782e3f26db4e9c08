"""Tasks for evaluating a model: a retrieval set, a table of pairs, or pairs that people graded.

Letters in shapes: q queries, c documents, r judgements, n graded pairs, D width.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import DataError
from ...io.ids import content_ids, falling
from ...mining.embedder import Embedder, Vectors, encode_all
from ...ranking.fusion import rank_by_weight
from ...ranking.metrics import Relevant
from ...ranking.nearest import nearest
from ...ranking.ranking import Ranking, depth_of
from ...tables.columns import plain
from ...tables.profile import ColumnProfile, profile
from ...tables.streams import stream
from ...tables.tables import TableBlock, blocks, joined
from ..read.beir import is_beir, read_beir
from ..read.labels import is_scale_of_labels
from ..read.pairs import TEXTS, Pairs
from ..read.proposed_roles import log_proposed
from ..read.roles import UNTRAINED, WHOLE, Roles, refuse_roles
from ..read.rows import PairReader
from ..read.sources import Given, PairsFile
from .hybrid import scores_of_both
from .lexical import Lexical, Settings
from .sts import METRICS, Agreement

Ints = NDArray[np.int64]

# Usual names of two texts of which neither asks for the other.
_SENTENCES = (
    *(("sentence1", "sentence2"), ("sentence_a", "sentence_b"), ("text1", "text2")),
    *(("sentence_1", "sentence_2"), ("sent1", "sent2"), ("s1", "s2"), ("text_a", "text_b")),
)
_GRADED = "score"  # the name of grades, whatever they are


@dataclass(frozen=True)
class RetrievalTask:
    """Hold queries, a corpus, and the documents that answer each query.

    Documents stand in falling order of their ids, so that equal scores are ranked as trec_eval
    ranks them.
    """

    name: str
    queries: pa.Table  # id, text
    corpus: pa.Table  # id, text
    relevant: Relevant
    counts: dict[str, int]
    # whether a document with the query's own text is left out unless it is judged relevant
    exclude_self: bool = False
    # Of the documents, [c, D], where queries are asked of an index and no model embeds documents.
    kept: Vectors | None = None
    words: Settings | None = (
        None  # of BM25, as a run has tuned them on other queries; None are the usual ones
    )
    # Pairs of a query and the document that it is, by their common id, [e], each as query * c +
    # document: always left out.
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
        """Put the corpus in order; `relevant` counts documents as they are given."""
        order = falling(corpus["id"])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        counts = {
            "queries": len(queries),
            "documents": len(corpus),
            "judgements": len(relevant.doc),
            **unused,
        }
        task = cls(
            name,
            queries,
            corpus.take(pa.array(order)),
            replace(relevant, doc=place[relevant.doc]),
            counts,
        )
        return replace(
            task,
            counts={
                **counts,
                "queries that are a document": len(np.unique(task.own // len(corpus))),
            },
        )

    @classmethod
    def beir(cls, folder: str | Path, split: str = "test") -> RetrievalTask:
        """Read a BEIR folder; grades of 0 are not relevant."""
        folder_rows = read_beir(folder, split)
        right = folder_rows.grade > 0
        relevant = Relevant(
            len(folder_rows.queries),
            folder_rows.query[right],
            folder_rows.doc[right],
            folder_rows.grade[right],
        )
        query, doc = folder_rows.itself()
        unused = dict(folder_rows.unused)
        if len(query):
            unused["queries that are a document of their id, which is left out"] = len(query)
        task = cls.of(
            f"{Path(folder).name}/{split}",
            folder_rows.queries,
            folder_rows.corpus,
            relevant,
            unused,
        )
        place = np.argsort(falling(folder_rows.corpus["id"]))
        return replace(task, itself=query * len(task.corpus) + place[doc])

    @classmethod
    def pairs(cls, path: str | Path, roles: Roles = UNTRAINED) -> RetrievalTask:
        """Read a table of pairs: each distinct query ranks every distinct document; ids that the
        table lacks are row numbers."""
        pairs, _ = PairsFile(**{**vars(roles), "path": str(path)}).read()
        return cls.of_pairs(Path(path).name, pairs)

    @classmethod
    def of_pairs(cls, name: str, pairs: Pairs) -> RetrievalTask:
        """Return the task of pairs that have been read."""
        log_proposed(pairs.about)
        sides, at = {}, {}
        for role in TEXTS:
            first, at[role] = pairs.distinct(role)
            numbers = pa.array(first + 1).cast(pa.large_string())
            ids = pc.coalesce(pairs.given(role).take(pa.array(first)), numbers)
            sides[role] = pa.table({"id": ids, "text": pairs.texts(role, first)})
        relevant = Relevant.of_pairs(len(sides["query"]), at["query"], at["doc"])
        return cls.of(name, sides["query"], sides["doc"], relevant, dict(pairs.dropped))

    @property
    def ids(self) -> list[str]:
        """Ids of the queries."""
        ids: list[str] = self.queries["id"].to_pylist()
        return ids

    @cached_property
    def own(self) -> Ints:
        """Pairs of a query and a document with its text that is not relevant to it, [e], each as
        query * c + document."""
        c, rows = len(self.corpus), defaultdict[int, list[int]](list)
        for row, text in enumerate(content_ids(self.corpus["text"]).tolist()):
            rows[text].append(row)
        texts = content_ids(self.queries["text"]).tolist()
        equal = np.array(
            [query * c + row for query, text in enumerate(texts) for row in rows.get(text, ())],
            np.int64,
        )
        return np.setdiff1d(
            equal, (self.relevant.query * c + self.relevant.doc)[self.relevant.gain > 0]
        )

    @cached_property
    def left_out(self) -> Ints:
        """Pairs of a query and a document that its ranking leaves out, [e], each as query * c +
        document."""
        return np.union1d(self.itself, self.own) if self.exclude_self else self.itself

    @property
    def about_words(self) -> dict[str, Any]:
        """Return the settings of BM25, and whether they have been tuned."""
        return {**asdict(self.words or Settings()), "tuned": self.words is not None}

    def _depth(self, metrics: tuple[str, ...]) -> int:
        """Return the depth to rank to, with room for what is left out of a ranking."""
        most = np.bincount(self.left_out // len(self.corpus)).max(initial=0)
        return depth_of(metrics) + int(most)

    def vectors(self, model: Embedder) -> tuple[Vectors, Vectors]:
        """Return a model's vectors of the queries, [q, D], and of the corpus, [c, D]."""
        queries = encode_all(model.query, self.queries["text"], "queries")
        docs = (
            encode_all(model.doc, self.corpus["text"], "documents")
            if self.kept is None
            else self.kept
        )
        return queries, docs

    def by_vectors(self, vectors: tuple[Vectors, Vectors], metrics: tuple[str, ...]) -> Ranking:
        """Rank the whole corpus by the inner products of vectors, which are the model's
        similarity."""
        return self._judged(nearest(*vectors, self._depth(metrics)), metrics)

    def by_words(
        self, vectors: tuple[Vectors, Vectors], weight: float, metrics: tuple[str, ...]
    ) -> tuple[Ranking, Ranking]:
        """Rank by BM25 alone, and by vectors and BM25 together."""
        texts, depth = self.queries["text"].to_pylist(), self._depth(metrics)
        words = Lexical(self.corpus["text"].to_pylist()).index(self.words or Settings())
        (fused,) = rank_by_weight(scores_of_both(*vectors, texts, words), [weight], depth)
        return self._judged(words.rank(texts, depth), metrics), self._judged(fused, metrics)

    def _judged(self, ranked: Ints, metrics: tuple[str, ...]) -> Ranking:
        if len(self.left_out):
            pairs = np.arange(len(ranked))[:, None] * len(self.corpus) + ranked
            is_own = np.isin(pairs, self.left_out) & (ranked >= 0)
            last = np.argsort(is_own, axis=1, kind="stable")
            ranked = np.take_along_axis(np.where(is_own, -1, ranked), last, 1)
        return Ranking.of(ranked[:, : depth_of(metrics)], self.relevant, metrics)


@dataclass(frozen=True)
class Graded:
    """Pairs of texts and the grades that people gave them."""

    name: str
    first: pa.ChunkedArray  # [n]
    second: pa.ChunkedArray  # [n]
    grades: NDArray[np.float64]  # [n]

    @classmethod
    def table(cls, name: str, table: pa.Table, columns: tuple[str, str, str], where: str) -> Graded:
        """Read the rows of a table of graded pairs.

        Args:
            name: of the task.
            table: all rows.
            columns: of both texts and of the grade.
            where: the name of the table in messages.
        """
        if len(table) < 2:
            raise DataError(
                f"{where} holds {len(table)} graded pairs; a correlation needs at least 2"
            )
        roles = {role: (column,) for role, column in zip(("first", "second", "score"), columns)}
        reader = PairReader(TableBlock(table, where), WHOLE, roles, Counter())
        sides = {role: reader.texts(role, roles[role][0]) for role in ("first", "second")}
        for role, (_, rows, _) in sides.items():
            reader.refuse(
                role, np.bincount(rows, minlength=len(table)) != 1, "does not hold one text"
            )
        first, second = (pa.chunked_array([texts]) for texts, _, _ in sides.values())
        grades = reader.numbers("score")
        if grades.min() == grades.max():
            raise DataError(
                f"{where}: every score is {grades[0]:g}, and a correlation needs scores that differ"
            )
        return cls(name, first, second, grades)

    @property
    def ids(self) -> list[str]:
        """Rows, from 1."""
        return [str(row) for row in range(1, len(self.grades) + 1)]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of pairs."""
        return {"pairs": len(self.grades)}

    def judge(self, model: Embedder, metrics: tuple[str, ...] = METRICS) -> Agreement:
        """Compare similarities of both sentences, embedded as documents, with the grades."""
        first, second = (
            encode_all(model.doc, column, "sentences") for column in (self.first, self.second)
        )
        similarities = np.einsum("nd,nd->n", first, second, dtype=np.float64)
        return Agreement(similarities, self.grades, model.similarity)


def read_task(data: Any, split: str = "test", roles: Roles | None = None) -> RetrievalTask | Graded:
    """Read a retrieval set, a table of graded pairs, or a table of pairs (always so with roles).

    Args:
        data: the path of a file or a folder, or a frame: whatever has `__arrow_c_stream__`.
        split: of a retrieval set.
        roles: of the columns of a table.

    Raises:
        DataError: none of these, or a fault in it, by row.
        ConfigError: roles for a retrieval set.
    """
    is_path = isinstance(data, str | Path)
    if is_path and is_beir(data):
        refuse_roles(data, roles)
        return RetrievalTask.beir(data, split)
    where = str(data) if is_path else "data"
    read = blocks(Path(data)) if is_path else stream(data)
    first = next((block.table for block in read if len(block.table)), pa.table({}))
    name = Path(data).name if is_path else where
    if roles is None and (columns := graded_columns(first, where)) is not None:
        tables = [block.table for block in (blocks(Path(data)) if is_path else stream(data))]
        whole = joined(tables, f"{where}: a column changes its type on the way")
        return Graded.table(name, whole, columns, where)
    chosen = (roles or UNTRAINED).without_usual_ids(first.column_names)
    if is_path:
        return RetrievalTask.pairs(data, chosen)
    known = {each.name: getattr(chosen, each.name) for each in fields(Given)}
    return RetrievalTask.of_pairs(name, Given.of(data, **known).read()[0])


def graded_columns(rows: pa.Table, where: str) -> tuple[str, str, str] | None:
    """Return the columns of two sentences and of the grade of how similar they are; None if a table
    has none.

    Grades are numbers called score, or a scale of another name: of fractions, or of more than three
    whole numbers, which labels have at most.

    >>> rows = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "similarity_score": [0.5, 4.75]}
    >>> graded_columns(pa.table(rows), "a.csv")
    ('sentence1', 'sentence2', 'similarity_score')
    >>> graded_columns(pa.table({**rows, "similarity_score": ["no", "yes"]}), "a.csv")
    """
    called = {plain(name): name for name in rows.column_names}
    pair = next((pair for pair in _SENTENCES if all(plain(name) in called for name in pair)), None)
    if pair is None:
        return None
    texts = [called[plain(name)] for name in pair]
    columns = profile(rows.drop_columns(texts), where).columns
    if plain(_GRADED) in called:
        return texts[0], texts[1], called[plain(_GRADED)]
    scales = [
        name
        for name, column in columns.items()
        if is_scale_of_labels(column) and column.scale is not None and _is_graded(column)
    ]
    return (texts[0], texts[1], scales[0]) if len(scales) == 1 else None


def _is_graded(column: ColumnProfile) -> bool:
    """Return whether numbers are more than labels of a few kinds."""
    numbers = {float(value) for value in column.values}
    return len(numbers) > 3 or any(value != int(value) for value in numbers)
