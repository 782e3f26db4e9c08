"""Pairs from a file: Parquet, JSON lines (plain or gzip) or CSV."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import DataError, did_you_mean
from .pairs import Pairs

# Usual names of the two roles, in the order in which they are looked for.
QUERY_NAMES = ("query", "anchor", "question", "premise", "sentence1", "text1")
DOC_NAMES = ("doc", "document", "positive", "answer", "passage", "context", "hypothesis", "sentence2", "text2")

_BLOCK = 1 << 24  # bytes that are parsed at once; a longer row cannot be read


@dataclass(frozen=True)
class PairsFile:
    """Rows of a query and a document that answers it.

    Args:
        path: a .parquet, .jsonl, .jsonl.gz, .json, .csv or .csv.gz file.
        query: column of the queries; None takes the first usual name that is there.
        doc: column of the documents; None likewise.
    """

    path: str
    query: str | None = None
    doc: str | None = None

    def read(self) -> tuple[Pairs, NDArray[np.bool_]]:
        """All pairs; evaluation may ask every one of them."""
        table = read_table(Path(self.path))
        if not len(table):
            raise DataError(f"{self.path} holds no rows: an empty data set cannot be trained on")
        query = _column(table, self.query, QUERY_NAMES, "query", self.path)
        doc = _column(table, self.doc, DOC_NAMES, "doc", self.path)
        columns = {role: _texts(table, name, self.path) for role, name in (("query", query), ("doc", doc))}
        places = [f"{self.path}:{row}" for row in range(1, len(table) + 1)]
        pairs = Pairs.of(columns["query"], columns["doc"], place=places)
        return pairs, np.ones(len(pairs), dtype=bool)


def read_table(path: Path) -> pa.Table:
    """Every row of a file, all texts valid UTF-8."""
    if not path.is_file():
        raise DataError(f"no such file: {path}")
    kind = "".join(path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:]).lower()
    if kind not in _READERS:
        raise DataError(f"{path}: cannot read {kind or 'a file without extension'}; give one of {', '.join(_READERS)}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: an empty data set cannot be trained on")
    try:
        table = _READERS[kind](path)
        table.validate(full=True)  # a reader passes on texts that are not UTF-8
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable {kind.lstrip('.')} file: {str(error).splitlines()[0]}") from None
    return table


def _parquet(path: Path) -> pa.Table:
    import pyarrow.parquet as parquet

    return parquet.read_table(path)


def _json(path: Path) -> pa.Table:
    import pyarrow.json as json

    with pa.input_stream(str(path)) as stream:  # decompresses by extension
        return json.read_json(stream, json.ReadOptions(block_size=_BLOCK))


def _csv(path: Path) -> pa.Table:
    import pyarrow.csv as csv

    with pa.input_stream(str(path)) as stream:
        return csv.read_csv(stream, csv.ReadOptions(block_size=_BLOCK), csv.ParseOptions(newlines_in_values=True))


_READERS = {
    ".parquet": _parquet,
    ".jsonl": _json,
    ".jsonl.gz": _json,
    ".json": _json,
    ".csv": _csv,
    ".csv.gz": _csv,
}


def _column(table: pa.Table, asked: str | None, usual: tuple[str, ...], role: str, path: str) -> str:
    names = table.column_names
    if asked is not None and asked not in names:
        hint = did_you_mean(asked, names)
        raise DataError(f"{path} has no column {asked!r} for data.{role}; it has {', '.join(names)}.{hint}")
    found = asked or next((name for name in usual if name in names), None)
    if found is None:
        raise DataError(
            f"{path} has no column that is usual for a {role} ({', '.join(usual)}); "
            f"it has {', '.join(names)}: name one with data.{role}=COLUMN"
        )
    if names.count(found) > 1:
        raise DataError(f"{path} has {names.count(found)} columns named {found!r}; give each column a name of its own")
    return found


def _texts(table: pa.Table, name: str, path: str) -> pa.ChunkedArray:
    column = table[name]
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise DataError(f"{path}: column {name!r} holds {column.type}, and texts are expected")
    blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(column), ""), True).to_numpy()
    if blank.any():
        raise DataError(
            f"{path}: column {name!r} has no text in row {int(blank.argmax()) + 1} ({int(blank.sum())} such rows)"
        )
    return column.cast(pa.large_string())
