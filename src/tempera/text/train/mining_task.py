"""Distinct queries and documents to mine negatives for, and the pairs of a query and an answer.

Letters in shapes: q queries, n texts, u distinct ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ...errors import ConfigError, DataError, refuse_other
from ...io.ids import content_ids, given_ids, places
from ...mining.search import Ints, Pairs
from ..read.beir import is_beir, read_beir
from ..read.pairs import KIND, distinct
from ..read.pairs import Pairs as Table
from ..read.proposed_roles import log_proposed
from ..read.roles import UNTRAINED, Roles, refuse_roles
from ..read.sources import PairsFile, documents


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
    def of(
        cls, queries: Sequence[str], docs: Sequence[str], corpus: Sequence[str] = ()
    ) -> MiningTask:
        """Return a task; row i says that `docs[i]` answers `queries[i]`; the corpus holds more
        documents."""
        return cls._of(_Read(_Named.of(queries), _Named.of(docs), _Named.of(corpus)))

    @classmethod
    def _of(cls, read: _Read) -> MiningTask:
        query, query_of = _Distinct.of(read.queries)
        doc, doc_of = _Distinct.of(read.answers + read.others)
        pairs = np.unique(query_of * len(doc.ids) + doc_of[: len(query_of)])
        return cls(
            query, doc, np.divmod(pairs, len(doc.ids)), places(query.ids, doc.ids), read.left_out
        )

    @classmethod
    def read(
        cls,
        path: Path,
        roles: Roles | None = None,
        corpus: Path | None = None,
        split: str = "train",
    ) -> MiningTask:
        """Read files: a table of pairs, whose answers and negatives are candidates, or a BEIR
        folder, all of whose documents are.

        Args:
            path: the table or the folder.
            roles: of the table's columns; texts of equal given id are the first of them.
            corpus: a table of documents or pairs, or another BEIR folder, whose documents are
                candidates too; documents that have an id in both are one.
            split: of BEIR folders.

        Raises:
            DataError: what cannot be read, by file, row and column; or a corpus whose ids are those
                of other documents.
            ConfigError: roles for a BEIR folder.
        """
        refuse_other("roles", roles, isinstance(roles, Roles | None), "a Roles or None")
        if split != "train" and not any(
            each is not None and is_beir(each) for each in (path, corpus)
        ):
            raise ConfigError(
                f"the split {split!r} is of a BEIR folder, and none is given: drop it"
            )
        read = _beir(path, split, roles) if is_beir(path) else _table(path, roles or UNTRAINED)
        if corpus is not None:
            more = _beir(corpus, split).others if is_beir(corpus) else _Named(*documents(corpus))
            _refuse_other_ids(path, read.answers + read.others, corpus, more)
            read = replace(read, others=read.others + more)
        return replace(cls._of(read), read_from=(path,) if corpus is None else (path, corpus))

    def key(self) -> str:
        """Hash of all texts, their ids and pairs."""
        whole = xxhash.xxh3_128()
        for array in (self.queries.ids, self.docs.ids, *self.answers):
            whole.update(np.ascontiguousarray(array).tobytes())
        for side in (self.queries, self.docs):
            if side.shown.type == KIND:
                whole.update(given_ids(side.shown).tobytes())
        return whole.hexdigest()


@dataclass(frozen=True)
class _Named:
    """Texts, [n], and their ids as the source has them, null for a text that has none."""

    texts: list[str]
    own: pa.ChunkedArray

    @classmethod
    def of(cls, texts: Sequence[str]) -> _Named:
        return cls(list(texts), pa.chunked_array([pa.nulls(len(texts), KIND)]))

    def __add__(self, other: _Named) -> _Named:
        return _Named(
            [*self.texts, *other.texts],
            pa.chunked_array([*self.own.chunks, *other.own.chunks], KIND),
        )


@dataclass(frozen=True)
class _Distinct:
    """Distinct texts, [u].

    Args:
        ids: of their content.
        shown: their ids as the source has them; those of their content for a text that has none.
    """

    texts: list[str]
    ids: Ints
    shown: pa.Array

    @classmethod
    def of(cls, named: _Named) -> tuple[_Distinct, Ints]:
        """Return distinct texts, in order of first appearance, and the position of each text among
        them, [n].

        Texts are one if their content is, or their id; the first one counts then.
        """
        known = np.flatnonzero(named.own.is_valid().to_numpy())
        first = np.arange(len(named.texts))  # text that stands for each
        if len(known):
            head, which = distinct(given_ids(named.own.take(pa.array(known))))
            first[known] = known[head[which]]
        content = content_ids(named.texts)[first]
        head, which = distinct(content)
        ids = content[head]
        shown = pa.array(ids)
        if len(known):
            of, at = np.unique(which[known], return_index=True)
            row = np.full(len(head), -1)
            row[of] = known[at]
            own = named.own.combine_chunks().take(pa.array(row, mask=row < 0))
            shown = pc.coalesce(own, shown.cast(KIND))
        return cls([named.texts[i] for i in first[head]], ids, shown), which


@dataclass(frozen=True)
class _Read:
    queries: _Named
    answers: _Named  # row i answers query i
    others: _Named  # documents that may be among them
    left_out: Mapping[str, int] = field(default_factory=dict)


def _beir(path: Path, split: str, roles: Roles | None = None) -> _Read:
    refuse_roles(path, roles)
    beir = read_beir(path, split)
    good = np.flatnonzero(beir.grade > 0)
    queries, answers = (
        beir.queries.take(pa.array(beir.query[good])),
        beir.corpus.take(pa.array(beir.doc[good])),
    )
    unused = {reason: count for reason, count in beir.unused.items() if count}
    query, answer, other = (
        _Named(side["text"].to_pylist(), side["id"].cast(KIND))
        for side in (queries, answers, beir.corpus)
    )
    return _Read(query, answer, other, unused)


def _table(path: Path, roles: Roles) -> _Read:
    pairs: Table = PairsFile(**{**vars(roles), "path": str(path)}).read()[0]
    log_proposed(pairs.about)
    sides = map(pairs.side, ("query", "doc", "negatives"))
    query, answer, other = (_Named(texts.to_pylist(), own) for _, own, texts in sides)
    return _Read(query, answer, other, pairs.dropped)


def _refuse_other_ids(path: Path, docs: _Named, corpus: Path, more: _Named) -> None:
    """Raise DataError where most ids that two sources share name other texts, as numbers do that
    begin anew in each file."""
    ids, contents = [], []
    for side in (docs, more):
        known = np.flatnonzero(side.own.is_valid().to_numpy())
        head = known[distinct(given_ids(side.own.take(pa.array(known))))[0]]
        ids.append(given_ids(side.own.take(pa.array(head))))
        contents.append(content_ids(side.texts[i] for i in head))
    at = places(ids[1], ids[0])
    shared = at >= 0
    other = int((contents[1][shared] != contents[0][at[shared]]).sum())
    if 2 * other > shared.sum():
        raise DataError(
            f"{corpus}: {other:,} documents have an id that {path} gives to another text: make ids unique across both, or "
            "rename their column in one of them, so that content tells texts apart"
        )
