"""Documents to add to a run on texts, read from a table.

Letters in shapes: r rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError
from ..forms.roles import DOC_NAMES
from ..io.ids import content_ids, given_ids, mixed
from ..tables.arrow_types import is_text
from ..tables.columns import plain
from ..tables.streams import stream
from ..tables.tables import TableBlock, blocks, joined, refuse_repeated
from ..tables.vector_files import COLUMNS, KEY, TEXT

_STRING = pa.large_string()
_IDS = ("id", "_id", "doc_id", "document_id", "docid", "corpus-id")
_TITLES = ("title", "heading")
_WITH_TITLES = ("beir", "documents")  # sources whose documents begin with their titles
# Records whose fields are read as columns.
_RECORDS = (COLUMNS, "metadata")


@dataclass(frozen=True)
class NewDocuments:
    """Documents to write into an index, as an index holds them.

    Args:
        table: columns id, name, place, text, key, and, where the run keeps columns, `columns`, [r].
        ignored: columns of the data that the run does not keep.
        have_ids: True if the data have an id for any document; others have that of their content.
    """

    table: pa.Table
    ignored: tuple[str, ...] = ()
    have_ids: bool = False


def read_documents(data: Any, documents: pa.Table, options: Mapping[str, Any]) -> NewDocuments:
    """Return the documents of a table, in the columns of a run's index.

    Args:
        data: see `artifacts.new_documents.add_documents`.
        documents: of the run.
        options: of the run's data.
    """
    where = str(data) if isinstance(data, str | Path) else "data"
    table, places = _rows(data, where)
    fields = {field.name: field for field in _kept_fields(documents)}
    roles = _roles(table.column_names, options, fields, where, isinstance(data, list | tuple))
    texts = _texts(table, roles, options, where)
    ids, have_ids = _ids(table, roles, where)
    contents = content_ids(texts)
    prompt = options.get("doc_prompt") or ""
    if prompt:
        texts = pc.binary_join_element_wise(
            pa.scalar(prompt, _STRING), texts, pa.scalar("", _STRING)
        )
        contents = mixed(contents, content_ids([prompt] * len(texts)))
    shown = pc.coalesce(ids, pa.array(contents).cast(_STRING))
    keys = np.where(ids.is_valid().to_numpy(zero_copy_only=False), given_ids(ids), contents)
    _refuse_twice(shown, where)
    columns = {
        "id": shown,
        "name": _role_texts(table, roles.get("name"), where),
        "place": _place(places, ids),
        TEXT: texts,
        KEY: pa.array(keys, pa.int64()),
    }
    if fields:
        kept = [_as_kept(table, field, where) for field in fields.values()]
        columns[COLUMNS] = pa.StructArray.from_arrays(
            kept,
            fields=[pa.field(name, each.type) for name, each in zip(fields, kept, strict=True)],
        )
    taken = {*roles.values(), *fields}
    ignored = tuple(name for name in table.column_names if name not in taken)
    return NewDocuments(pa.table(columns), ignored, have_ids)


def _rows(data: Any, where: str) -> tuple[pa.Table, list[str]]:
    """Return all rows, with the fields of records of further values as columns, and the place of
    each row."""
    places: list[str] = []
    tables = []
    for block in _blocks(data):
        refuse_repeated(block.table.column_names, where)
        places += [block.place(row) for row in range(len(block.table))]
        tables.append(_without_records(block.table))
    return joined(tables, f"{where}: a column changes its type on the way").combine_chunks(), places


def _blocks(data: Any) -> Iterator[TableBlock]:
    """Return the rows of a file, a list of dicts or a table in memory."""
    if isinstance(data, str | Path):
        return blocks(Path(data))
    if isinstance(data, list | tuple):
        return iter([TableBlock(_of_dicts(data), "data")])
    return stream(data)


def _of_dicts(rows: Sequence[Any]) -> pa.Table:
    """Return dicts as a table; a key that a dict lacks is null there."""
    if not rows:
        raise DataError("data holds no rows")
    names: dict[str, None] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataError(f"data row {number} is {type(row).__name__}; expected a dict")
        names.update(dict.fromkeys(row))
    columns = {}
    for name in names:
        try:
            columns[str(name)] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"data: column {name!r} holds values of several types or of none: {reason}"
            ) from None
    return pa.table(columns)


def _without_records(table: pa.Table) -> pa.Table:
    """Return a table with the fields of its records of further values as columns; a column of the
    same name comes first."""
    for name in _RECORDS:
        if name not in table.column_names or not pa.types.is_struct(table[name].type):
            continue
        record = table[name]
        table = table.drop_columns([name])
        for field, values in zip(record.type, record.flatten(), strict=True):
            if field.name not in table.column_names:
                table = table.append_column(field.name, values)
    return table


def _roles(
    names: Sequence[str],
    options: Mapping[str, Any],
    kept: Mapping[str, Any],
    where: str,
    are_keys: bool = False,
) -> dict[str, str]:
    """Return the column of each role: as the run's data have it, else of a usual name.

    Args:
        names: of the columns.
        options: of the run's data.
        kept: names of the run's kept columns.
        where: source of the rows, for messages.
        are_keys: True if the names are the keys of dicts: a program that gives both "id" and "text"
            means these, whatever the columns of the run's data.

    Raises:
        DataError: no column of texts.
    """
    if are_keys and {"id", "text"} <= set(names):
        options = {**options, "doc": "text", "doc_id": "id"}
    chosen: dict[str, tuple[Any, ...]] = {
        "text": (options.get("doc"), options.get("text"), "text", *DOC_NAMES),
        "id": (options.get("doc_id"), *_IDS),
        "name": ("name",),
    }
    if options.get("source") in _WITH_TITLES:
        chosen["title"] = (options.get("title"), *_TITLES)
    roles: dict[str, str] = {}
    for role, candidates in chosen.items():
        free = [name for name in names if name not in roles.values()]
        if role == "name":
            free = [name for name in free if name not in kept]
        name = _first(candidates, free)
        if name is not None:
            roles[role] = name
    if "text" not in roles:
        raise DataError(
            f"{where} has no column of texts; expected id and text, and it has {', '.join(names)}"
        )
    return roles


def _first(candidates: Sequence[Any], names: Sequence[str]) -> str | None:
    """Return the first candidate among the names of columns, written exactly or, without case and
    signs, alike."""
    for candidate in candidates:
        if not isinstance(candidate, str):
            continue
        if candidate in names:
            return candidate
        for name in names:
            if plain(name) == plain(candidate):
                return name
    return None


def _texts(
    table: pa.Table, roles: Mapping[str, str], options: Mapping[str, Any], where: str
) -> pa.Array:
    """Return the whole text of each row, with its title in front where the run's documents have
    titles.

    Raises:
        DataError: a row without a text.
    """
    texts = _role_texts(table, roles["text"], where)
    if options.get("source") in _WITH_TITLES:
        titles = _role_texts(table, roles.get("title"), where)
        parts = [pc.utf8_trim_whitespace(each) for each in (titles, texts)]
        joined_texts = pc.binary_join_element_wise(*parts, pa.scalar(" ", _STRING))
        texts = pc.utf8_trim_whitespace(joined_texts)
    blank = pc.equal(pc.utf8_trim_whitespace(texts), "")
    if pc.any(blank).as_py():
        row = pc.index(blank, True).as_py() + 1
        raise DataError(f"{where} row {row}: column {roles['text']!r} has no text; remove the row")
    return texts


def _role_texts(table: pa.Table, name: str | None, where: str) -> pa.Array:
    """Return a column of texts; empty texts in place of nulls and of a missing column."""
    if name is None:
        return pa.array([""] * len(table), _STRING)
    values = _one_array(table[name])
    if not (is_text(values.type) or pa.types.is_null(values.type)):
        raise DataError(f"{where}: column {name!r} holds {values.type}; expected texts")
    return values.cast(_STRING).fill_null("")


def _ids(table: pa.Table, roles: Mapping[str, str], where: str) -> tuple[pa.Array, bool]:
    """Return the id of each row as a text, null without one, and True if any row has an id."""
    name = roles.get("id")
    if name is None:
        return pa.nulls(len(table), _STRING), False
    values = _one_array(table[name])
    kind = values.type
    if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise DataError(f"{where}: column {name!r} holds {kind}; expected ids, texts or integers")
    ids = values.cast(_STRING)
    ids = pc.if_else(pc.equal(ids, ""), pa.scalar(None, _STRING), ids)
    return ids, ids.null_count < len(ids)


def _refuse_twice(ids: pa.Array, where: str) -> None:
    """Raise DataError for an id with two rows."""
    counts = pc.value_counts(ids)
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        raise DataError(f"{where} has two rows for the document {twice[0].as_py()!r}: keep one")


def _place(places: list[str], ids: pa.Array) -> pa.Array:
    """Return the place of each row, with its id, if it has one."""
    plain_places = pa.array(places, _STRING)
    with_ids = pc.binary_join_element_wise(plain_places, ids, pa.scalar(", ", _STRING))
    return pc.coalesce(with_ids, plain_places)


def _kept_fields(documents: pa.Table) -> list[pa.Field]:
    """Return the kept columns of a run's documents."""
    if COLUMNS not in documents.column_names:
        return []
    return list(documents[COLUMNS].type)


def _as_kept(table: pa.Table, field: pa.Field, where: str) -> pa.Array:
    """Return a kept column in the type of the run's column; nulls if the table lacks it.

    Empty texts are null, as in the run.
    """
    if field.name not in table.column_names:
        return pa.nulls(len(table), field.type)
    values = _one_array(table[field.name])
    if is_text(values.type):
        empty = pc.equal(values, "")
        values = pc.if_else(empty, pa.scalar(None, values.type), values)
    if pa.types.is_null(field.type):  # no document of the run has a value
        return values
    try:
        is_finer = pa.types.is_timestamp(values.type) and pa.types.is_timestamp(field.type)
        return values.cast(field.type, safe=not is_finer)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{where}: column {field.name!r} holds {values.type}; expected {field.type}, as in the run: {reason}"
        ) from None


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return (
            pa.concat_arrays(combined.chunks) if combined.num_chunks else pa.nulls(0, column.type)
        )
    return combined
