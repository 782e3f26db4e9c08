"""A retrieval set in BEIR's layout (Thakur et al. 2021): corpus, queries, and graded judgements of each split."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import DataError
from ..io.documents import parsed
from ..io.tables import opened, refuse_fatal, whole_lines
from ..io.untrusted import inside

_BLOCK = 1 << 24  # bytes that are parsed at once; a longer row cannot be read
_SCHEMA = pa.schema([("_id", pa.string()), ("title", pa.string()), ("text", pa.string())])


@dataclass(frozen=True)
class Beir:
    """Queries of one split, the corpus, and judgement i: document `doc[i]` has `grade[i]` for query `query[i]`.

    Every query has at least one document with a grade above 0; a document without judgement counts as not relevant.
    """

    corpus: pa.Table  # id, text
    queries: pa.Table  # id, text
    query: NDArray[np.int64]  # [r] rows of `queries`
    doc: NDArray[np.int64]  # [r] rows of `corpus`
    grade: NDArray[np.float64]  # [r] from 0
    unused: dict[str, int]  # what was there and is not part of the above, by its kind


def read_beir(folder: str | Path, split: str = "test") -> Beir:
    """Read corpus.jsonl, queries.jsonl and qrels/`split`.tsv, each plain or with .gz.

    A document's text is its title, a space, and its text. Rows are lines of a file, from 1.

    Raises:
        DataError: a missing file or split; by file and row: broken UTF-8 or JSON, a row without id or text, an id given
            twice, a judgement of an unknown query or document, a grade that is no number or below 0, two grades for one.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"no such folder: {folder}")
    corpus, queries = (_texts(_file(folder, f"{name}.jsonl")) for name in ("corpus", "queries"))
    inside(folder / "qrels", f"{split}.tsv")
    path = _file(folder / "qrels", f"{split}.tsv")
    lines, query_ids, doc_ids, grade = _judgements(path)
    query = _rows(query_ids, queries, "query", path, lines)
    doc = _rows(doc_ids, corpus, "document", path, lines)
    kept = _unrepeated(query, doc, grade, path, lines)
    asked = np.unique(query[kept & (grade > 0)])
    if not len(asked):
        raise DataError(f"{path} names no relevant document: give judgements with grades above 0")
    used = kept & np.isin(query, asked)
    unused = {
        "queries without a relevant document": len(queries) - len(asked),
        "judgements of queries without a relevant document": int((kept & ~used).sum()),
        "repeated judgements": int((~kept).sum()),
    }
    place = np.searchsorted(asked, query[used])
    return Beir(corpus, queries.take(pa.array(asked)), place, doc[used], grade[used], unused)


def is_beir(path: str | Path) -> bool:
    """Whether a folder looks like a BEIR set."""
    return any((Path(path) / f"corpus.jsonl{end}").is_file() for end in ("", ".gz"))


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        try:
            if path.is_file():
                return path
        except OSError as error:  # a name that is too long
            raise DataError(f"no such file: {path}: {error.strerror}") from None
    there = sorted({path.name.partition(".")[0] for path in folder.glob(f"*{Path(name).suffix}*")})
    raise DataError(f"no such file: {folder / name}" + (f"; there is {', '.join(there)}" if there else ""))


def _texts(path: Path) -> pa.Table:
    """Columns id and text; all ids differ, and no text is blank."""
    import pyarrow.json as reader

    try:
        with opened(path) as file:
            for lines in whole_lines(file, path):
                refuse_fatal(lines, path, 1)
    except (OSError, EOFError, zlib.error) as error:
        _fail(path, str(error))
    options = reader.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore")
    try:
        with pa.input_stream(str(path)) as stream:  # decompresses by extension
            table = reader.read_json(stream, reader.ReadOptions(block_size=_BLOCK), options)
        table.validate(full=True)  # the reader passes on texts that are not UTF-8
    except (pa.ArrowException, OSError) as error:
        _fail(path, str(error).splitlines()[0])
    title, text = (pc.fill_null(table[name], "").cast(pa.large_string()) for name in ("title", "text"))
    text = pc.utf8_trim_whitespace(pc.binary_join_element_wise(title, text, pa.scalar(" ", pa.large_string())))
    ids = table["_id"]
    blank = pc.any(pc.equal(text, "")).as_py() or pc.any(pc.equal(pc.fill_null(ids, ""), "")).as_py()
    if blank or table["text"].null_count or pc.count_distinct(ids).as_py() < len(ids):
        _fail(path, "a row without id or text, or an id given twice")
    return pa.table({"id": ids, "text": text})


def _fail(path: Path, otherwise: str) -> NoReturn:
    """Raise what is wrong with the first faulty row; reading line by line is slow, and only for files with a fault."""
    rows: dict[str, int] = {}
    for line, text in _lines(path):
        place = f"{path}, row {line}"
        try:
            row = parsed(text)
            text.encode() and json.dumps(row, ensure_ascii=False).encode()  # an escape may stand for no character
        except ValueError as error:
            raise DataError(f"{place}: not JSON: {error}") from None
        _check(row, place)
        if row["_id"] in rows:
            raise DataError(f"{place}: the id {row['_id']!r} is that of row {rows[row['_id']]} too; give each its own")
        rows[row["_id"]] = line
    raise DataError(f"{path} is empty" if not rows else f"{path}: {otherwise}")


def _check(row: Any, place: str) -> None:
    if not isinstance(row, dict):
        raise DataError(f"{place}: {type(row).__name__}, and an object with _id, title and text is expected")
    for key in ("_id", "text"):
        if not isinstance(row.get(key), str):
            given = f"holds {type(row[key]).__name__}" if key in row else "is missing"
            raise DataError(f"{place}: {key} {given}, and a text is expected")
    if not isinstance(row.get("title", ""), str | None):
        raise DataError(f"{place}: title holds {type(row['title']).__name__}, and a text is expected")
    if not row["_id"]:
        raise DataError(f"{place}: _id is empty")
    if not f"{row.get('title') or ''}{row['text']}".strip():
        raise DataError(f"{place}: the id {row['_id']!r} has no text; leave it out, also of the judgements")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1."""
    line = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for line, content in enumerate(file, 1):
                text = content.decode("utf-8-sig" if line == 1 else "utf-8").rstrip("\r\n")
                if text.strip():
                    yield line, text
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, row {line}: not UTF-8 (byte {error.start + 1}: {error.reason})") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read after row {line}: {error}") from None


def _judgements(path: Path) -> tuple[list[int], list[str], list[str], NDArray[np.float64]]:
    """Line, query id, document id and grade of every judgement; a header is left out."""
    lines: list[int] = []
    pairs: list[list[str]] = []
    grades: list[float] = []
    for line, text in _lines(path):
        fields = text.split("\t")
        if len(fields) != 3:
            raise DataError(
                f"{path}, row {line}: {len(fields)} fields, and query-id, corpus-id, score, divided by tabs, are expected"
            )
        try:
            grade = float(fields[2])
        except ValueError:
            if not lines and "id" in fields[0].lower():
                continue  # the header
            raise DataError(f"{path}, row {line}: the score is {fields[2]!r}, and a number is expected") from None
        if not 0 <= grade < math.inf:
            raise DataError(f"{path}, row {line}: the score is {fields[2]}, and a grade of at least 0 is expected")
        lines.append(line)
        pairs.append(fields)
        grades.append(grade)
    return lines, [pair[0] for pair in pairs], [pair[1] for pair in pairs], np.array(grades, np.float64)


def _rows(ids: list[str], table: pa.Table, what: str, path: Path, lines: list[int]) -> NDArray[np.int64]:
    found = pc.index_in(pa.array(ids, pa.string()), value_set=table["id"].combine_chunks())
    missing = pc.is_null(found).to_numpy(zero_copy_only=False)
    if missing.any():
        first = int(missing.argmax())
        raise DataError(
            f"{path}, row {lines[first]}: no {what} has the id {ids[first]!r} ({int(missing.sum())} such rows)"
        )
    rows: NDArray[np.int64] = found.to_numpy().astype(np.int64)
    return rows


def _unrepeated(
    query: NDArray[np.int64], doc: NDArray[np.int64], grade: NDArray[np.float64], path: Path, lines: list[int]
) -> NDArray[np.bool_]:
    """Which judgements are the first of their query and document, [r]."""
    _, first, inverse = np.unique(np.stack([query, doc]), axis=1, return_index=True, return_inverse=True)
    at = first[inverse.ravel()]
    if (other := grade != grade[at]).any():
        row = int(other.argmax())
        raise DataError(
            f"{path}, row {lines[row]}: grade {grade[row]:g} for what row {lines[at[row]]} gives {grade[at[row]]:g}"
        )
    kept: NDArray[np.bool_] = at == np.arange(len(at))
    return kept
