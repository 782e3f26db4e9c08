"""Distinct queries and documents to mine negatives for, and the pairs of a query and an answer.

Letters in shapes: q queries, n texts, u distinct texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ...errors import ConfigError, DataError, refuse_other
from ...forms.proposed_roles import log_proposed
from ...forms.roles import UNTRAINED, Roles, refuse_roles
from ...forms.set_files import is_beir
from ...io.ids import content_ids, given_ids, places
from ...mining.search import Ints, Pairs
from ..read.beir import read_beir
from ..read.pairs import KIND, distinct
from ..read.pairs import Pairs as Table
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
    itself: Ints  # [q] the document with the text of each query, -1 for none
    left_out: Mapping[str, int] = field(default_factory=dict)  # of the rows of the files, by reason
    read_from: tuple[Path, ...] = ()  # the files and folders

    @classmethod
    def of(
        cls, queries: Sequence[str], docs: Sequence[str], corpus: Sequence[str] = ()
    ) -> MiningTask:
        """Return a task in which `docs[i]` answers `queries[i]`; the corpus holds more
        documents."""
        return cls._of(_Read(_Named.of(queries), _Named.of(docs), _Named.of(corpus)))

    @classmethod
    def _of(cls, read: _Read) -> MiningTask:
        queries, query_of = _Distinct.of(read.queries)
        docs, doc_of = _Distinct.of(read.answers + read.others)
        pairs = np.unique(query_of * len(docs.ids) + doc_of[: len(query_of)])
        answers = np.divmod(pairs, len(docs.ids))
        return cls(queries, docs, answers, places(queries.ids, docs.ids), read.left_out)

    @classmethod
    def read(
        cls,
        path: Path,
        roles: Roles | None = None,
        corpus: Path | None = None,
        split: str = "train",
    ) -> MiningTask:
        """Read a table of pairs, with answers and negatives as candidates, or a BEIR folder, with
        all documents as candidates.

        Args:
            path: the table or the folder.
            roles: roles of the table's columns; of texts with one id, only the first is used.
            corpus: a table of documents or pairs, or another BEIR folder, with more candidates;
                documents of one id in both files are one document.
            split: split of BEIR folders.

        Raises:
            DataError: data that cannot be read, by file, row and column; or a corpus with the ids
                of other documents.
            ConfigError: roles for a BEIR folder.
        """
        refuse_other("roles", roles, isinstance(roles, Roles | None), "a Roles or None")
        paths = (path,) if corpus is None else (path, corpus)
        if split != "train" and not any(is_beir(each) for each in paths):
            raise ConfigError(
                f"the split {split!r} is of a BEIR folder, and none is given: drop it"
            )
        read = _beir(path, split, roles) if is_beir(path) else _table(path, roles or UNTRAINED)
        if corpus is not None:
            more = _beir(corpus, split).others if is_beir(corpus) else _Named(*documents(corpus))
            _refuse_other_ids(path, read.answers + read.others, corpus, more)
            read = replace(read, others=read.others + more)
        return replace(cls._of(read), read_from=paths)

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
    """Texts, [n], and the ids of the source, null for a text without an id."""

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
        ids: ids of the contents.
        shown: ids of the source; a text without an id has the id of its content.
    """

    texts: list[str]
    ids: Ints
    shown: pa.Array

    @classmethod
    def of(cls, named: _Named) -> tuple[_Distinct, Ints]:
        """Return distinct texts, in order of first appearance, and the position of each text among
        the distinct texts, [n].

        Texts of equal content, or of the same id, count as a single text; the first is used.
        """
        has_id = np.flatnonzero(named.own.is_valid().to_numpy())
        used = np.arange(len(named.texts))  # [n] the text that is used for each text
        if len(has_id):
            head, which = distinct(given_ids(named.own.take(pa.array(has_id))))
            used[has_id] = has_id[head[which]]
        contents = content_ids(named.texts)[used]
        head, which = distinct(contents)
        ids = contents[head]
        shown = pa.array(ids)
        if len(has_id):
            position, first = np.unique(which[has_id], return_index=True)
            row = np.full(len(head), -1)
            row[position] = has_id[first]
            own = named.own.combine_chunks().take(pa.array(row, mask=row < 0))
            shown = pc.coalesce(own, shown.cast(KIND))
        return cls([named.texts[i] for i in used[head]], ids, shown), which


@dataclass(frozen=True)
class _Read:
    """Hold the texts of files, with repeats."""

    queries: _Named
    answers: _Named  # row i answers query i
    others: _Named  # more documents, some of which may be answers
    left_out: Mapping[str, int] = field(default_factory=dict)


def _beir(path: Path, split: str, roles: Roles | None = None) -> _Read:
    """Return the texts of a BEIR folder, with the answers of a split."""
    refuse_roles(path, roles)
    beir = read_beir(path, split)

    def named(side: pa.Table) -> _Named:
        return _Named(side["text"].to_pylist(), side["id"].cast(KIND))

    good = np.flatnonzero(beir.grade > 0)
    queries = beir.queries.take(pa.array(beir.query[good]))
    answers = beir.corpus.take(pa.array(beir.doc[good]))
    unused = {reason: count for reason, count in beir.unused.items() if count}
    return _Read(named(queries), named(answers), named(beir.corpus), unused)


def _table(path: Path, roles: Roles) -> _Read:
    """Return the texts of a table of pairs."""
    options = dict(vars(roles))
    options["path"] = str(path)
    options["keep"] = ()
    pairs: Table = PairsFile(**options).read()[0]
    log_proposed(pairs.about)

    def named(role: Literal["query", "doc", "negatives"]) -> _Named:
        _, own, texts = pairs.side(role)
        return _Named(texts.to_pylist(), own)

    return _Read(named("query"), named("doc"), named("negatives"), pairs.dropped)


def _contents_by_id(side: _Named) -> tuple[Ints, Ints]:
    """Return the hashes of the distinct ids of texts, and the content of the first text of each."""
    has_id = np.flatnonzero(side.own.is_valid().to_numpy())
    head, _ = distinct(given_ids(side.own.take(pa.array(has_id))))
    first = has_id[head]
    return given_ids(side.own.take(pa.array(first))), content_ids(side.texts[i] for i in first)


def _refuse_other_ids(path: Path, docs: _Named, corpus: Path, more: _Named) -> None:
    """Raise DataError if most ids that two sources share have different texts, like row numbers."""
    ids, contents = _contents_by_id(docs)
    more_ids, more_contents = _contents_by_id(more)
    at = places(more_ids, ids)
    shared = at >= 0
    other = int((more_contents[shared] != contents[at[shared]]).sum())
    if 2 * other > shared.sum():
        raise DataError(
            f"{corpus}: {other:,} documents have an id that {path} gives to another text: make ids unique across both, or "
            "rename their column in one of them, so that content tells texts apart"
        )
