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

from ...corpora.corpus_manifest import is_corpus
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
from .encoded_documents import EncodedDocuments


@dataclass(frozen=True)
class MiningTask:
    """Hold distinct queries and documents by content, and the pairs of a query and an answer.

    >>> task = MiningTask.of(["a", "b", "a"], ["x", "x ", "y"], ["a", "y"])
    >>> task.queries.texts, task.docs.texts, [side.tolist() for side in task.answers], task.itself.tolist()
    (['a', 'b'], ['x', 'y', 'a'], [[0, 0, 1], [0, 1, 0]], [2, -1])
    """

    queries: DistinctTexts
    docs: DistinctTexts
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
        queries, query_of = DistinctTexts.of(read.queries)
        docs, doc_of = DistinctTexts.of(read.answers + read.others, read.encoded)
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
            corpus: a table of documents or pairs, another BEIR folder, or an encoded corpus, with
                more candidates; documents of one id in both files are one document.
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
        if corpus is not None and is_corpus(corpus):
            encoded = EncodedDocuments.read(corpus)
            docs = (read.answers + read.others).by_id()
            _refuse_other_ids(path, docs, corpus, _by_id(encoded.own, encoded.contents))
            read = replace(read, encoded=encoded)
        elif corpus is not None:
            more = _beir(corpus, split).others if is_beir(corpus) else _Named(*documents(corpus))
            docs = (read.answers + read.others).by_id()
            _refuse_other_ids(path, docs, corpus, more.by_id())
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

    def by_id(self) -> tuple[Ints, Ints]:
        """Return the hashes of the distinct ids of texts, and the content of the first text of
        each."""
        head = _first_of_ids(self.own)
        of_head = given_ids(self.own.take(pa.array(head)))
        return of_head, content_ids(self.texts[i] for i in head)

    def __add__(self, other: _Named) -> _Named:
        return _Named(
            [*self.texts, *other.texts],
            pa.chunked_array([*self.own.chunks, *other.own.chunks], KIND),
        )


@dataclass(frozen=True)
class DistinctTexts:
    """Distinct texts, [u].

    Args:
        texts: those in memory, [m].
        ids: ids of the contents, [u].
        shown: ids of the source; a text without an id has the id of its content, [u].
        encoded: an encoded corpus.
        rows: of the encoded corpus whose texts follow those in memory, rising, [u - m].
        known: row of the encoded corpus with the content of each text in memory, or -1, [m].
    """

    texts: list[str]
    ids: Ints
    shown: pa.Array
    encoded: EncodedDocuments | None = None
    rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    known: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def take(self, positions: Ints) -> list[str]:
        """Return some of the texts."""
        if self.encoded is None:
            return [self.texts[position] for position in positions.tolist()]
        behind = np.unique(positions[positions >= len(self.texts)])
        texts = self.encoded.texts(self.rows[behind - len(self.texts)])
        text_at = dict(zip(behind.tolist(), texts, strict=True))
        taken = list[str]()
        for position in positions.tolist():
            if position < len(self.texts):
                taken.append(self.texts[position])
            else:
                taken.append(text_at[position])
        return taken

    @classmethod
    def of(
        cls, named: _Named, encoded: EncodedDocuments | None = None
    ) -> tuple[DistinctTexts, Ints]:
        """Return distinct texts, in order of first appearance, and the position of each text among
        the distinct texts, [n].

        Texts of equal content, or of the same id, count as a single text; the first is used. Those
        of an encoded corpus come last.
        """
        count = len(named.texts)
        own = named.own
        contents = content_ids(named.texts)
        if encoded is not None:
            own = pa.chunked_array([*own.chunks, *encoded.own.chunks], KIND)
            contents = np.append(contents, encoded.contents)
        has_id = np.flatnonzero(own.is_valid().to_numpy())
        used = np.arange(len(contents))  # [n] the text that is used for each text
        if len(has_id):
            head, which = distinct(given_ids(own.take(pa.array(has_id))))
            used[has_id] = has_id[head[which]]
        head, which = distinct(contents[used])
        ids = contents[used[head]]
        shown = pa.array(ids)
        if len(has_id):
            position, first = np.unique(which[has_id], return_index=True)
            row = np.full(len(head), -1)
            row[position] = has_id[first]
            shown_ids = own.combine_chunks().take(pa.array(row, mask=row < 0))
            shown = pc.coalesce(shown_ids, shown.cast(KIND))
        # A text that appears first is used for itself, so the texts rise.
        texts = [named.texts[i] for i in used[head[head < count]]]
        if encoded is None:
            return cls(texts, ids, shown), which
        rows = encoded.rows[head[head >= count] - count]
        at = places(ids[: len(texts)], encoded.contents)
        known = np.where(at < 0, -1, encoded.rows[at])
        return cls(texts, ids, shown, encoded, rows, known), which


@dataclass(frozen=True)
class _Read:
    """Hold the texts of files, with repeats."""

    queries: _Named
    answers: _Named  # row i answers query i
    others: _Named  # more documents, some of which may be answers
    left_out: Mapping[str, int] = field(default_factory=dict)
    encoded: EncodedDocuments | None = None  # documents behind all others


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


def _first_of_ids(own: pa.ChunkedArray) -> Ints:
    """Return the position of the first text with each id."""
    has_id = np.flatnonzero(own.is_valid().to_numpy())
    head, _ = distinct(given_ids(own.take(pa.array(has_id))))
    first: Ints = has_id[head]
    return first


def _by_id(own: pa.ChunkedArray, contents: Ints) -> tuple[Ints, Ints]:
    """Return the hashes of the distinct ids of texts, and the content of the first text of each."""
    head = _first_of_ids(own)
    return given_ids(own.take(pa.array(head))), contents[head]


def _refuse_other_ids(
    path: Path, docs: tuple[Ints, Ints], corpus: Path, more: tuple[Ints, Ints]
) -> None:
    """Raise DataError if most ids that two sources share have different texts, like row numbers.

    Args:
        docs: ids and contents, [n] each.
        more: ids and contents of the corpus.
    """
    ids, contents = docs
    more_ids, more_contents = more
    at = places(more_ids, ids)
    shared = at >= 0
    other = int((more_contents[shared] != contents[at[shared]]).sum())
    if 2 * other > shared.sum():
        raise DataError(
            f"{corpus}: {other:,} documents have an id that {path} gives to another text: make ids unique across both, or "
            "rename their column in one of them, so that content tells texts apart"
        )
