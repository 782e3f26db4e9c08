"""A retrieval set in BEIR's layout (Thakur et al. 2021): corpus, queries, and graded judgements of
each split."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import DataError
from ..io.json_tables import json_tables, opened
from ..io.reader import BlockReader, reads_as
from ..io.tables import TableBlock, blocks_of, csv_tables, joined
from ..io.untrusted import inside
from .pairs import distinct

_TEXTS = {"id": ("_id",), "title": ("title",), "text": ("text",)}
UNNAMED = "queries that the split does not name"
_SCHEMA = pa.schema([(name, pa.string()) for (name,) in _TEXTS.values()])
_JUDGEMENTS = {"query": ("query-id",), "document": ("corpus-id",), "score": ("score",)}


@dataclass(frozen=True)
class Beir:
    """Hold the queries of one split, the corpus, and judgement i: document `doc[i]` has `grade[i]`
    for query `query[i]`.

    Every query has at least one document with a grade above 0; a document without judgement counts
    as not relevant.
    """

    corpus: pa.Table  # id, title, text
    queries: pa.Table  # id, title, text
    query: NDArray[np.int64]  # [r] rows of `queries`
    doc: NDArray[np.int64]  # [r] rows of `corpus`
    grade: NDArray[np.float64]  # [r] from 0
    every_query: pa.Table  # id, title, text of the queries of all splits
    unused: dict[str, int]  # what the files hold that is not part of the above, by its kind


def read_beir(folder: str | Path, split: str = "test", other: Beir | None = None) -> Beir:
    """Read corpus.jsonl, queries.jsonl and qrels/`split`.tsv, each plain or with .gz.

    A document's text is its title, a space, and its text. Rows are counted from 1, without blank
    lines and headers.

    Args:
        other: another split of the folder, whose texts are not read again.

    Raises:
        DataError: a missing file or split; by file and row: broken UTF-8 or JSON, a row without id
            or text, an id given twice, a judgement of an unknown query or document, a grade that is
            no number or below 0, two grades for one.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"no such folder: {folder}")
    corpus = texts_of(folder, "corpus") if other is None else other.corpus
    queries = texts_of(folder, "queries") if other is None else other.every_query
    inside(folder / "qrels", f"{split}.tsv")
    path = _file(folder / "qrels", f"{split}.tsv")
    query, doc, grade = _judgements(path, queries, corpus)
    kept = _unrepeated(query, doc, grade, path)
    answered = np.unique(query[kept & (grade > 0)])
    if not len(answered):
        raise DataError(f"{path} names no relevant document: give judgements with grades above 0")
    used, named = kept & np.isin(query, answered), np.unique(query)
    unused = {
        UNNAMED: len(queries) - len(named),
        "queries without a relevant document": len(named) - len(answered),
        "judgements of queries without a relevant document": int((kept & ~used).sum()),
        "repeated judgements": int((~kept).sum()),
    }
    place = np.searchsorted(answered, query[used])
    return Beir(
        corpus, queries.take(pa.array(answered)), place, doc[used], grade[used], queries, unused
    )


def write_beir(
    folder: Path,
    corpus: Mapping[str, str],
    queries: Mapping[str, str],
    judged: Mapping[str, tuple[Sequence[str], Sequence[str], Iterable[float]]],
) -> None:
    """Write a folder that `read_beir` reads.

    Args:
        corpus: texts by id; `queries` likewise.
        judged: of each split, queries, documents that answer them, by id, and grades, [r] each; a
            pair may stand there twice.

    Raises:
        DataError: an id that holds a tab or the end of a line, which divide the rows of judgements.
    """
    for key in chain(corpus, queries):
        if set(key) & set("\t\n\r"):
            raise DataError(
                f"{key!r} cannot be an id in a BEIR folder, whose judgements are divided by tabs: leave tabs out of ids"
            )
    for name, texts in (("corpus", corpus), ("queries", queries)):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for key, text in texts.items():
                file.write(
                    json.dumps({"_id": key, "title": "", "text": text}, ensure_ascii=False) + "\n"
                )
    (folder / "qrels").mkdir()
    for split, sides in judged.items():
        grades = {(query, doc): grade for query, doc, grade in zip(*sides, strict=True)}
        lines = (f"{query}\t{doc}\t{grade:.15g}" for (query, doc), grade in grades.items())
        rows = ["query-id\tcorpus-id\tscore", *lines]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def is_beir(path: str | Path) -> bool:
    """Return whether a folder looks like a BEIR set."""
    return any((Path(path) / f"corpus.jsonl{end}").is_file() for end in ("", ".gz"))


def split_names(folder: Path) -> list[str]:
    """Return the names of the splits that a BEIR folder has judgements for."""
    return sorted({path.name.partition(".")[0] for path in (folder / "qrels").glob("*.tsv*")})


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        try:
            if path.is_file():
                return path
        except OSError as error:  # a name that is too long
            raise DataError(f"no such file: {path}: {error.strerror}") from None
    others = sorted({path.name.partition(".")[0] for path in folder.glob(f"*{Path(name).suffix}*")})
    instead = "; give another split: " if name.endswith(".tsv") else "; there is "
    raise DataError(
        f"no such file: {folder / name}" + (instead + ", ".join(others) if others else "")
    )


def texts_of(folder: Path, name: str) -> pa.Table:
    """Read columns id, title and text, its title included, of the corpus or the queries; all ids
    differ, no text is blank."""
    path = _file(folder, f"{name}.jsonl")
    parts = [_texts_of(block) for block in blocks_of(path, partial(json_tables, schema=_SCHEMA))]
    if not parts:
        raise DataError(f"{path} holds no rows")
    table = joined(parts, str(path))
    first, which = distinct(table["id"].combine_chunks().dictionary_encode().indices.to_numpy())
    if len(first) < len(table):
        row = int((first[which] != np.arange(len(table))).argmax())
        name = table["id"][row].as_py()
        raise DataError(
            f"{path}, row {row + 1}: the id {name!r} repeats row {first[which[row]] + 1}; give every row its own id"
        )
    return table


def _texts_of(block: TableBlock) -> pa.Table:
    reader = BlockReader(block, _TEXTS, Counter())
    ids, texts = reader.ids("id"), reader.column("text")
    reader.refuse("text", texts.is_null().to_numpy(zero_copy_only=False), "is missing")
    title, text = (
        values.fill_null("").cast(pa.large_string()) for values in (reader.column("title"), texts)
    )
    title = pc.utf8_trim_whitespace(title)
    text = pc.utf8_trim_whitespace(
        pc.binary_join_element_wise(title, text, pa.scalar(" ", pa.large_string()))
    )
    blank = pc.equal(text, "").to_numpy(zero_copy_only=False)
    reader.refuse("text", blank, "has no text: remove the row and its judgements")
    return pa.table({"id": ids, "title": title, "text": text})


def _judgements(
    path: Path, queries: pa.Table, corpus: pa.Table
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Read the query, the document and the grade of every judgement; a header is left out."""
    with opened(path) as file:
        first = file.readline().decode("utf-8", "replace").split("\t")
    is_header = "id" in first[0].lower() and not reads_as(
        pa.float64(), pa.scalar(first[-1].strip())
    )
    names = () if is_header else [name for (name,) in _JUDGEMENTS.values()]
    parse = partial(csv_tables, names=names, sign="\t", quoted=False)
    parts = [_judged(block, queries, corpus) for block in blocks_of(path, parse)]
    if not parts:
        raise DataError(f"{path} holds no rows")
    query, doc, grade = (np.concatenate(column) for column in zip(*parts))
    return query, doc, grade


def _judged(
    block: TableBlock, queries: pa.Table, corpus: pa.Table
) -> tuple[NDArray[np.int64], ...]:
    if block.table.num_columns != len(_JUDGEMENTS):
        raise DataError(
            f"{block.file} has {block.table.num_columns} columns; expected query-id, corpus-id and score, separated by tabs"
        )
    table = block.table.rename_columns([name for (name,) in _JUDGEMENTS.values()])
    reader = BlockReader(TableBlock(table, block.file, block.first), _JUDGEMENTS, Counter())
    rows = []
    for role, texts in (("query", queries), ("document", corpus)):
        ids = reader.ids(role)
        at = pc.index_in(ids, value_set=texts["id"].combine_chunks())
        unknown = at.is_null().to_numpy(zero_copy_only=False)
        if unknown.any():
            reader.refuse(
                role,
                unknown,
                f"is {ids[int(unknown.argmax())].as_py()!r}, but no {role} has this id",
            )
        rows.append(at.to_numpy().astype(np.int64))
    grades = reader.numbers("score")
    reader.refuse("score", grades < 0, "is below 0")
    return *rows, grades


def _unrepeated(
    query: NDArray[np.int64], doc: NDArray[np.int64], grade: NDArray[np.float64], path: Path
) -> NDArray[np.bool_]:
    """Return which judgements are the first of their query and document, [r]."""
    _, first, inverse = np.unique(
        np.stack([query, doc]), axis=1, return_index=True, return_inverse=True
    )
    at = first[inverse.ravel()]
    if (other := grade != grade[at]).any():
        row = int(other.argmax())
        raise DataError(
            f"{path}, row {row + 1}: the grade is {grade[row]:g}, but row {at[row] + 1} gives the same pair {grade[at[row]]:g}"
        )
    kept: NDArray[np.bool_] = at == np.arange(len(at))
    return kept
