"""Distinct queries and documents to mine negatives for, and the pairs of a query and an answer.

Letters in shapes: q queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import xxhash

from ..io.ids import content_ids, places
from ..mining.search import Ints, Pairs
from .beir import is_beir, read_beir
from .pairs import Pairs as Table
from .pairs import Text, distinct
from .roles import UNTRAINED, Roles, refuse_roles
from .sources import PairsFile, documents


@dataclass(frozen=True)
class MiningTask:
    """Hold distinct queries and documents by content, and the pairs of a query and an answer.

    >>> task = MiningTask.of(["a", "b", "a"], ["x", "x ", "y"], ["a", "y"])
    >>> task.queries.texts, task.docs.texts, [side.tolist() for side in task.answers], task.itself.tolist()
    (['a', 'b'], ['x', 'y', 'a'], [[0, 0, 1], [0, 1, 0]], [2, -1])
    """

    queries: _Distinct
    docs: _Distinct
    answers: Pairs  # by rising query, each pair once
    itself: Ints  # [q] the document that each query is, -1 for none
    left_out: Mapping[str, int] = field(default_factory=dict)  # of the rows of the files, by reason
    read_from: tuple[Path, ...] = ()  # the files and folders

    @classmethod
    def of(cls, queries: Sequence[str], docs: Sequence[str], corpus: Sequence[str] = ()) -> MiningTask:
        """Return a task; row i says that `docs[i]` answers `queries[i]`; the corpus holds more documents."""
        query, query_of = _Distinct.of(queries)
        doc, doc_of = _Distinct.of([*docs, *corpus])
        pairs = np.unique(query_of * len(doc.ids) + doc_of[: len(docs)])
        return cls(query, doc, np.divmod(pairs, len(doc.ids)), places(query.ids, doc.ids))

    @classmethod
    def read(
        cls, path: Path, roles: Roles | None = None, corpus: Path | None = None, split: str = "train"
    ) -> MiningTask:
        """Read files: a table of pairs, whose answers and negatives are candidates, or a BEIR folder, all of whose documents are.

        Args:
            path: the table or the folder.
            roles: of the table's columns; texts of equal given id are the first of them.
            corpus: a table of documents or pairs, or another BEIR folder, whose documents are candidates too.
            split: of BEIR folders.

        Raises:
            DataError: what cannot be read, by file, row and column.
            ConfigError: roles for a BEIR folder.
        """
        read = _beir(path, split, roles) if is_beir(path) else _table(path, roles or UNTRAINED)
        more = read.others
        if corpus is not None:
            more = [*more, *(_beir(corpus, split).others if is_beir(corpus) else documents(corpus))]
        files = (path,) if corpus is None else (path, corpus)
        return replace(cls.of(read.queries, read.answers, more), left_out=read.left_out, read_from=files)

    def key(self) -> str:
        """Hash of all texts and pairs."""
        whole = xxhash.xxh3_128()
        for array in (self.queries.ids, self.docs.ids, *self.answers):
            whole.update(np.ascontiguousarray(array).tobytes())
        return whole.hexdigest()


@dataclass(frozen=True)
class _Distinct:
    texts: list[str]
    ids: Ints

    @classmethod
    def of(cls, texts: Sequence[str]) -> tuple[_Distinct, Ints]:
        """Return distinct texts by content, in order of first appearance, and the position of each text among them."""
        ids = content_ids(texts)
        first, which = distinct(ids)
        return cls([texts[i] for i in first], ids[first]), which


@dataclass(frozen=True)
class _Read:
    queries: list[str]
    answers: list[str]  # row i answers query i
    others: list[str]  # documents that may be among them
    left_out: Mapping[str, int]


def _beir(path: Path, split: str, roles: Roles | None = None) -> _Read:
    refuse_roles(path, roles)
    beir = read_beir(path, split)
    good = np.flatnonzero(beir.grade > 0)
    queries, answers = beir.queries["text"].take(beir.query[good]), beir.corpus["text"].take(beir.doc[good])
    unused = {reason: count for reason, count in beir.unused.items() if count}
    return _Read(queries.to_pylist(), answers.to_pylist(), beir.corpus["text"].to_pylist(), unused)


def _table(path: Path, roles: Roles) -> _Read:
    pairs = PairsFile(**{**vars(roles), "path": str(path)}).read()[0]
    return _Read(_first(pairs, "query"), _first(pairs, "doc"), pairs.negative_texts.to_pylist(), pairs.dropped)


def _first(pairs: Table, role: Text) -> list[str]:
    """Return the text of each row, or of the first row with its id."""
    first, which = pairs.distinct(role)
    return pairs.texts(role, first[which])
