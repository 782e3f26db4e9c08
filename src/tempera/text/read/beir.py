"""A retrieval set, in BEIR's layout (Thakur et al. 2021) or as other tables: corpus, queries, and
graded judgements of each split."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import DataError, quantity
from ...forms.set_files import Part, SetFiles, files_of_set, part_blocks
from ...io.untrusted import inside
from ...tables.kept_columns import aligned
from ...tables.reader import BlockReader, is_text
from ...tables.tables import joined
from ...tables.vector_files import COLUMNS
from .keeper import Keeper
from .pairs import distinct

UNNAMED = "queries that the split does not name"
# In place of the row of a text.
_UNKNOWN = -1  # no text has the id
_BLANK = -2  # the text is empty
_TEXT = pa.large_string()


@dataclass(frozen=True)
class Beir:
    """Hold the queries of one split, the corpus, and judgement i: document `doc[i]` has `grade[i]`
    for query `query[i]`.

    Every query has at least one document with a grade above 0; a document without judgement counts
    as not relevant.
    """

    corpus: pa.Table  # id, title, text, and columns if any are kept
    queries: pa.Table  # id, title, text
    query: NDArray[np.int64]  # [r] rows of `queries`
    doc: NDArray[np.int64]  # [r] rows of `corpus`
    grade: NDArray[np.float64]  # [r] from 0
    every_query: pa.Table  # id, title, text of the queries of all splits
    unused: dict[str, int]  # counts of texts and judgements that are left out, by their kind
    blank: Mapping[Part, pa.Array] = field(default_factory=dict)  # ids without a text

    def itself(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each query that is itself a document of the corpus, and the document, as rows of
        `queries` and of `corpus`, [e] each.

        A ranking leaves the document out for the query. A set with documents for queries (ArguAna)
        gives the query and the document the same id. In other sets a query and a document can have
        the same id by chance, as where both are numbered from 1. So the result is empty unless more
        than half of the documents contain the text of the query of the same id. A document judged
        to be relevant to the query of the same id stays in the ranking.
        """
        at = pc.index_in(self.queries["id"].cast(_TEXT), self.corpus["id"].combine_chunks())
        query = np.flatnonzero(at.is_valid().to_numpy(zero_copy_only=False))
        doc = at.drop_null().to_numpy().astype(np.int64)
        queries = self.queries["text"].take(pa.array(query)).to_pylist()
        docs = self.corpus["text"].take(pa.array(doc)).to_pylist()
        held = sum(
            _plain(query_text) in _plain(doc_text)
            for query_text, doc_text in zip(queries, docs, strict=True)
        )
        if 2 * held <= len(queries):
            return query[:0], doc[:0]
        right = self.grade > 0
        judged = self.query[right] * len(self.corpus) + self.doc[right]
        unjudged = ~np.isin(query * len(self.corpus) + doc, judged)
        return query[unjudged], doc[unjudged]


def _plain(text: str) -> str:
    """Return a text with single spaces, in lower case."""
    return " ".join(text.lower().split())


def read_beir(
    folder: str | Path,
    split: str = "test",
    other: Beir | None = None,
    keeper: Keeper | None = None,
) -> Beir:
    """Read the corpus, the queries and the judgements of a split, from tables of any kind.

    A document's text is its title, a space, and its text. Rows are counted from 1, without blank
    lines and headers. Left out and counted are empty texts with their judgements, judgements of
    unknown texts, the lower of two grades of a pair, repeated judgements, and queries without a
    relevant document. A grade below 0 counts as not relevant.

    Args:
        other: another split of the folder, read before; the texts are not read again.
        keeper: keeps columns of the corpus; None keeps none.

    Raises:
        DataError: a missing file or split; by file and row: broken UTF-8 or JSON, a row without id,
            an id given twice, a grade that is no number, judgements with mostly unknown queries or
            documents.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"no such folder: {folder}")
    files = files_of_set(folder)
    if other is None:
        corpus = _read_texts(folder, files, "corpus", keeper)
        queries = _read_texts(folder, files, "queries")
    else:
        corpus = _Texts(other.corpus, other.blank["corpus"])
        queries = _Texts(other.every_query, other.blank["queries"])
    inside(folder / "qrels", f"{split}.tsv")
    paths = files.qrels.get(split)
    if paths is None:
        _refuse_split(folder, split, files)
    judged = _judgements(paths, {"query": queries, "document": corpus})
    kept = _highest(judged)
    query, doc, grade = judged.query, judged.doc, judged.grade
    answered = np.unique(query[kept & (grade > 0)])
    if not len(answered):
        raise DataError(
            f"{paths[0]} names no relevant document: give judgements with grades above 0"
        )
    used = kept & np.isin(query, answered)
    named = np.unique(query)
    blank: dict[Part, pa.Array] = {"corpus": corpus.blank, "queries": queries.blank}
    unused = {
        UNNAMED: len(queries.table) - len(named),
        "queries without a relevant document": len(named) - len(answered),
        "judgements of queries without a relevant document": int((kept & ~used).sum()),
        "repeated judgements": int((~kept).sum()) - judged.unused["lower"],
    }
    faults = {
        "lower ones of two grades of a pair": judged.unused["lower"],
        # Reported once, with the first split that is read.
        "documents without a text": 0 if other else len(corpus.blank),
        "queries without a text": 0 if other else len(queries.blank),
        "judgements of a document or query without a text": judged.unused["blank"],
        "judgements of an unknown query or document": judged.unused["unknown"],
        "judgements below 0, which count as not relevant": judged.unused["negative"],
    }
    unused |= {kind: count for kind, count in faults.items() if count}
    return Beir(
        corpus=corpus.table,
        queries=queries.table.take(pa.array(answered)),
        query=np.searchsorted(answered, query[used]),
        doc=doc[used],
        grade=grade[used],
        every_query=queries.table,
        unused=unused,
        blank=blank,
    )


def write_beir(
    folder: Path,
    corpus: Mapping[str, str],
    queries: Mapping[str, str],
    judged: Mapping[str, tuple[Sequence[str], Sequence[str], Iterable[float]]],
) -> None:
    """Write a retrieval set for `read_beir`.

    Args:
        folder: an existing folder without qrels.
        corpus: texts by id.
        queries: texts by id.
        judged: judgements of each split: ids of queries, ids of documents, and grades, [r] each; of
            a pair judged twice, the highest grade counts, as in `read_beir`.

    Raises:
        DataError: an id with a tab or the end of a line: both divide the rows of judgements.
    """
    for key in chain(corpus, queries):
        if set(key) & set("\t\n\r"):
            raise DataError(
                f"{key!r} cannot be an id in a BEIR folder, whose judgements are divided by tabs: leave tabs out of ids"
            )
    for name, texts in (("corpus", corpus), ("queries", queries)):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for key, text in texts.items():
                row = {"_id": key, "title": "", "text": text}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    (folder / "qrels").mkdir()
    for split, (query_ids, doc_ids, grades) in judged.items():
        highest: dict[tuple[str, str], float] = {}
        for query, doc, grade in zip(query_ids, doc_ids, grades, strict=True):
            highest[query, doc] = max(grade, highest.get((query, doc), grade))
        lines = ["query-id\tcorpus-id\tscore"]
        lines += [f"{query}\t{doc}\t{grade:.15g}" for (query, doc), grade in highest.items()]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def texts_of(folder: Path, part: Part, keeper: Keeper | None = None) -> pa.Table:
    """Return columns id, title and text of the corpus or the queries; a text begins with its title.

    All ids differ, and no text is blank. The further columns that a keeper keeps are records.
    """
    return _read_texts(folder, files_of_set(folder), part, keeper).table


class _Texts(NamedTuple):
    """The texts of a corpus or of queries, and the ids of blank texts."""

    table: pa.Table  # id, title, text, and columns if any are kept
    blank: pa.Array  # [b] large_string


class _Judged(NamedTuple):
    """Judgements of known texts, [r], and counts of left-out and changed judgements, by kind."""

    query: NDArray[np.int64]
    doc: NDArray[np.int64]
    grade: NDArray[np.float64]
    unused: Counter[str]


def _refuse_split(folder: Path, split: str, files: SetFiles) -> NoReturn:
    """Refuse a split without judgements."""
    remedy = "add judgements: a header of query-id, corpus-id, score, then a line for each judgement, divided by tabs"
    if files.qrels:
        remedy = f"give another split: {', '.join(files.qrels)}"
    raise DataError(f"no such file: {folder / 'qrels' / f'{split}.tsv'}; {remedy}")


def _read_texts(folder: Path, files: SetFiles, part: Part, keeper: Keeper | None = None) -> _Texts:
    """Read the texts of the corpus or the queries; raises as `read_beir` does."""
    paths = files.corpus if part == "corpus" else files.queries
    if not paths:
        every = (*files.corpus, *files.queries, *chain(*files.qrels.values()), *files.others)
        names = ", ".join(sorted(str(path.relative_to(folder)) for path in every))
        raise DataError(
            f"{folder} holds a retrieval set without {part}, in {names}: add a table of {part}, such as {part}.jsonl, or give "
            "one file of pairs by its own name"
        )
    blocks: list[_ReadTexts] = []
    for path in paths:
        for block, columns in part_blocks(path, part, further=keeper is not None):
            if keeper is not None and not blocks:
                keeper.refuse_absent(block.table.column_names, block.table, str(path))
            texts = _texts_of(BlockReader(block, columns, Counter()), keeper)
            blocks.append(_ReadTexts(texts, path, block.first))
    if not blocks:
        raise DataError(f"{paths[0]} holds no rows")
    table = joined(aligned([block.texts for block in blocks]), str(paths[0]))
    if keeper is not None:
        table = keeper.settled(table)
    first, which = distinct(table["id"].combine_chunks().dictionary_encode().indices.to_numpy())
    if len(first) < len(table):
        _refuse_repeated(table, first[which], blocks)
        table = table.take(pa.array(first))
    blank = pc.equal(table["text"], "")
    ids = table["id"].filter(blank).combine_chunks()
    if 2 * len(ids) > len(table):
        raise DataError(
            f"{paths[0]}: {len(ids):,} of its {quantity(len(table), 'rows')} have no text: check that the text is in a "
            "column of this name"
        )
    if len(ids):
        table = table.filter(pc.invert(blank))
    return _Texts(table, ids)


class _ReadTexts(NamedTuple):
    """Texts of consecutive rows of a file."""

    texts: pa.Table  # id, title, text
    path: Path
    first: int  # number of the first row, counted from 1


def _refuse_repeated(
    table: pa.Table, first: NDArray[np.int64], blocks: Sequence[_ReadTexts]
) -> None:
    """Refuse an id that is repeated in a file, or in another file with another text; files of
    several splits may repeat a text with its id.

    Args:
        table: the rows of all blocks, [n].
        first: for each row, the first row with the same id, [n].
    """
    starts = np.cumsum([0, *(len(block.texts) for block in blocks)])
    texts = table["text"].to_pylist() if len(blocks) > 1 else []
    for row in np.flatnonzero(first != np.arange(len(table))).tolist():
        earlier_row = int(first[row])
        path, number = _place(row, blocks, starts)
        earlier_path, earlier_number = _place(earlier_row, blocks, starts)
        if path == earlier_path:
            where = ""
        elif texts[row] != texts[earlier_row]:
            where = f" of {earlier_path}"
        else:
            continue
        raise DataError(
            f"{path}, row {number}: the id {table['id'][row].as_py()!r} repeats row {earlier_number}{where}; give every row "
            "its own id"
        )


def _place(row: int, blocks: Sequence[_ReadTexts], starts: NDArray[np.int64]) -> tuple[Path, int]:
    """Return the file of a row of all blocks, and its number in the file; `starts` are the first
    rows of the blocks."""
    at = int(np.searchsorted(starts, row, side="right")) - 1
    return blocks[at].path, blocks[at].first + row - int(starts[at])


def _texts_of(reader: BlockReader, keeper: Keeper | None) -> pa.Table:
    """Return columns id, title and text of a block, and further columns as records; a missing text
    is empty."""
    ids = reader.ids("id").cast(_TEXT)
    texts = {}
    for role in ("title", "text"):
        if role in reader.columns:
            texts[role] = pc.utf8_trim_whitespace(_column(reader, role))
        else:
            texts[role] = pa.array([""] * len(ids), _TEXT)
    text = pc.utf8_trim_whitespace(
        pc.binary_join_element_wise(texts["title"], texts["text"], pa.scalar(" ", _TEXT))
    )
    columns = {"id": ids, "title": texts["title"], "text": text}
    if keeper is not None:
        with_role = {name for of_role in reader.columns.values() for name in of_role}
        kept = keeper.of(reader.block, with_role, reader.columns["text"])
        if kept is not None:
            columns[COLUMNS] = kept
    return pa.table(columns)


def _column(reader: BlockReader, role: str) -> pa.Array:
    """Return a column of texts, [r]; a missing text is empty."""
    values = reader.column(role)
    if not (is_text(values.type) or pa.types.is_null(values.type)):
        reader.refuse_type(reader.columns[role][0], values.type, "texts")
    return values.cast(_TEXT).fill_null("")


def _judgements(paths: Sequence[Path], texts: Mapping[str, _Texts]) -> _Judged:
    """Read the judgements of known texts.

    Raises:
        DataError: most judgements name an unknown query or document.
    """
    parts: list[list[NDArray[Any]]] = []
    unused = Counter[str]()
    total = 0
    unknown: tuple[BlockReader, str, NDArray[np.bool_]] | None = None  # the first, for the message
    for reader in _readers(paths):
        rows = {}
        for role, known in texts.items():
            rows[role] = _rows_of(reader, role, known)
            if unknown is None and (rows[role] == _UNKNOWN).any():
                unknown = reader, role, rows[role] == _UNKNOWN
        query = rows["query"]
        doc = rows["document"]
        grade = np.ones(len(reader.keep))
        if "score" in reader.columns:
            grade = reader.numbers("score")
        is_known = (query >= 0) & (doc >= 0)
        is_unknown = (query == _UNKNOWN) | (doc == _UNKNOWN)
        total += len(grade)
        unused["unknown"] += int(is_unknown.sum())
        unused["blank"] += int((~is_known & ~is_unknown).sum())
        unused["negative"] += int((grade[is_known] < 0).sum())
        parts.append([query[is_known], doc[is_known], grade[is_known]])
    if not parts:
        raise DataError(f"{paths[0]} holds no rows")
    if unknown is not None and 2 * unused["unknown"] > total:
        reader, role, which = unknown
        name = reader.ids(role)[int(which.argmax())].as_py()
        reader.refuse(
            role,
            which,
            f"is {name!r}, but no {role} has this id, as of {unused['unknown']:,} of {total:,} judgements",
        )
    query, doc, grade = (np.concatenate(column) for column in zip(*parts))
    return _Judged(query, doc, np.maximum(grade, 0), unused)


def _readers(paths: Sequence[Path]) -> Iterator[BlockReader]:
    """Yield a reader of each block of judgements."""
    for path in paths:
        for block, columns in part_blocks(path, "qrels"):
            yield BlockReader(block, columns, Counter())


def _rows_of(reader: BlockReader, role: str, texts: _Texts) -> NDArray[np.int64]:
    """Return the row of the text of each judgement, [r]: `_UNKNOWN` for an unknown id, `_BLANK` for
    the id of an empty text."""
    ids = reader.ids(role).cast(_TEXT)
    at = pc.index_in(ids, value_set=texts.table["id"].combine_chunks())
    rows: NDArray[np.int64] = at.fill_null(_UNKNOWN).to_numpy().astype(np.int64)
    blank = pc.is_in(ids, value_set=texts.blank).to_numpy(zero_copy_only=False)
    rows[blank] = _BLANK
    return rows


def _highest(judged: _Judged) -> NDArray[np.bool_]:
    """Return True for the first judgement of the highest grade of each query and document, [r].

    The number of judgements of a lower grade is written to `judged.unused`.
    """
    order = np.lexsort((-judged.grade, judged.doc, judged.query))
    query = judged.query[order]
    doc = judged.doc[order]
    grade = judged.grade[order]
    is_first = np.ones(len(order), bool)  # of its pair
    is_first[1:] = (query[1:] != query[:-1]) | (doc[1:] != doc[:-1])
    best = grade[is_first][np.cumsum(is_first) - 1]
    judged.unused["lower"] = int((grade < best).sum())
    kept = np.zeros(len(order), bool)
    kept[order[is_first]] = True
    return kept
