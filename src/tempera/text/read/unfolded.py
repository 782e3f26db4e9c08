"""Columns inside of columns: fields of records, elements of lists and rounds of chats, each named by
a path such as `messages.0.content`.

Letters in shapes: r rows of a table, e elements of all of its lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...tables.arrow_types import is_list, is_text
from ...tables.nested import at_path
from ...tables.tables import TableBlock

# Who speaks in a chat, by the names that chats give them.
SPEAKERS = {
    "user": ("user", "human", "prompter"),
    "assistant": ("assistant", "gpt", "bot", "model"),
}
_SPEAKER, _WORDS = ("role", "from", "speaker"), ("content", "value", "text")
FIRST, REST = "0", "1:"  # the steps to the first element of a list, and to the others
_DEEPEST = 4  # records inside one another that are looked into
_RANGE = re.compile(r"(\d+):")


@dataclass(frozen=True)
class Unfolding:
    """The columns of a table that are divided, in order.

    Args:
        repeated: columns of lists of records, of which each is made a row.
        paths: columns that are added, by their paths.
    """

    repeated: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        table: pa.Table,
        named: Sequence[str],
        query: str | None,
        query_names: Sequence[str],
        whole: bool,
    ) -> Unfolding:
        """Return how to unfold a table.

        Args:
            table: its first rows.
            named: columns that options name, among them paths.
            query: the column of the queries, if options name one.
            query_names: usual names of queries, which tell lists of records that are rows, as those
                of SQuAD's questions are.
            whole: whether to look into all records, lists of texts and chats, where no column is a
                query or a document by its name.
        """
        repeated = list[str]()
        top = any(name.lower() in query_names for name in table.column_names)
        while (name := _records(table, query_names)) is not None:
            inside = _is_inside(query, name) if query is not None else whole and not top
            if not inside:
                break
            repeated.append(name)
            table = _exploded(table, name)[0]
        paths = [name for name in named if name not in table.column_names and "." in name]
        if whole:
            for field in table.schema:
                paths += _paths_in(field.name, field.type, _DEEPEST)
        return cls(tuple(repeated), tuple(dict.fromkeys(paths)))

    def used(self, columns: Sequence[str]) -> Unfolding:
        """Return the unfolding that adds no other paths than those of some columns."""
        return replace(self, paths=tuple(path for path in self.paths if path in columns))

    def __call__(self, block: TableBlock) -> TableBlock:
        """Return a block with its columns divided; paths that it does not have are left out."""
        table, rows = block.table, np.arange(len(block.table))
        for name in self.repeated:
            if name in table.column_names:
                table, parents = _exploded(table, name)
                rows = rows[parents]
        for path in self.paths:
            column = column_at(table, path)
            if column is not None and path not in table.column_names:
                table = table.append_column(path, column)
        if self.repeated:
            origin = rows if block.origin is None else block.origin[rows]
            return replace(block, table=table, origin=origin)
        return replace(block, table=table)


def column_at(table: pa.Table, path: str) -> pa.ChunkedArray | None:
    """Return the values at a path, [r]; None if the table has nothing there.

    A path is one of `io.nested`, or ends with a number and a colon for the elements from there on,
    or with user or assistant for the first question of a chat and the answer to it.

    >>> chats = [[{"role": "user", "content": "why?"}, {"role": "assistant", "content": "so"}]]
    >>> table = pa.table({"messages": chats, "data": [{"title": "a"}], "set": [["x", "y", "z"]]})
    >>> for path in ("messages.1.content", "messages.user", "messages.content", "data.title", "set.1:", "set.x"):
    ...     column = column_at(table, path)
    ...     print(None if column is None else column.to_pylist())
    ['so']
    ['why?']
    [['why?', 'so']]
    ['a']
    [['y', 'z']]
    None
    """
    head, _, step = path.rpartition(".")
    if path in table.column_names or not (step in SPEAKERS or _RANGE.fullmatch(step)):
        return at_path(table, path)
    column = at_path(table, head)
    if column is None or not is_list(column.type):
        return None
    lists = _whole(column)
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    starts = np.concatenate([[0], counts.cumsum()])
    inside = pc.list_flatten(lists)
    if begin := _RANGE.fullmatch(step):
        kept = np.arange(len(inside)) - np.repeat(starts[:-1], counts) >= int(begin[1])
        rest = np.maximum(counts - int(begin[1]), 0)
        offsets = pa.array(np.concatenate([[0], rest.cumsum()]))
        values = inside.filter(pa.array(kept))
        return pa.chunked_array([pa.LargeListArray.from_arrays(offsets, values)])
    said = _rounds(inside.type) if pa.types.is_struct(inside.type) else None
    return None if said is None else pa.chunked_array([_spoken(step, inside, counts, *said)])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    values = column.combine_chunks()
    return pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values


def _rounds(kind: pa.DataType) -> tuple[str, str] | None:
    """Return the fields of who speaks and of what is said in the records of a chat; None if they
    are no chat."""
    names = [field.name for field in kind]
    who = next((name for name in _SPEAKER if name in names), None)
    what = next((name for name in _WORDS if name in names), None)
    if who is None or what is None or not is_text(kind.field(what).type):
        return None
    return (who, what) if is_text(kind.field(who).type) else None


def _spoken(
    step: str, rounds: pa.Array, counts: NDArray[np.int64], who: str, what: str
) -> pa.Array:
    """Return the first text of a user in each chat, or of the assistant after it, [r]."""
    speakers = pc.utf8_lower(pc.struct_field(rounds, [who]))
    texts, row_of = pc.struct_field(rounds, [what]), np.repeat(np.arange(len(counts)), counts)

    def first(speaker: str, after: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of the first round of a speaker after others, [r]; e if there is
        none."""
        said = pc.is_in(speakers, value_set=pa.array(SPEAKERS[speaker], speakers.type))
        at = np.flatnonzero(said.to_numpy(zero_copy_only=False))
        at = at[at > after[row_of[at]]]
        place = np.full(len(counts), len(rounds))
        rows, head = np.unique(row_of[at], return_index=True)
        place[rows] = at[head]
        return place

    place = first("user", np.full(len(counts), -1))
    if step == "assistant":
        place = first("assistant", place)
    return texts.take(pa.array(place, mask=place == len(rounds)))


def _is_inside(path: str, lists: str) -> bool:
    """Return whether a path leads into every record of a column of lists, and not into one."""
    head, _, rest = path.partition(f"{lists}.")
    return not head and bool(rest) and re.fullmatch(r"-?\d+:?", rest.partition(".")[0]) is None


def _records(table: pa.Table, query_names: Sequence[str]) -> str | None:
    """Return the first column of lists of records that hold queries; None if there is none."""
    for field in table.schema:
        if is_list(field.type) and _holds_queries(field.type.value_type, query_names, _DEEPEST):
            return str(field.name)
    return None


def _holds_queries(kind: pa.DataType, names: Sequence[str], depth: int) -> bool:
    if not pa.types.is_struct(kind) or not depth or _rounds(kind) is not None:
        return False
    inner = (field.type.value_type for field in kind if is_list(field.type))
    return any(field.name.lower() in names and is_text(field.type) for field in kind) or any(
        _holds_queries(each, names, depth - 1) for each in inner
    )


def _exploded(table: pa.Table, name: str) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return a table with a row for each record of a column of lists, and the row that each is of,
    [e]; the fields are columns called by their paths."""
    lists = _whole(table[name])
    rows = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    records, at = pc.list_flatten(lists), pa.array(rows)
    columns = {other: table[other].take(at) for other in table.column_names if other != name}
    for field in records.type:
        columns[f"{name}.{field.name}"] = pc.struct_field(records, [field.name])
    return pa.table(columns), rows


def _paths_in(name: str, kind: pa.DataType, depth: int) -> list[str]:
    """Return the paths of texts, and of lists of texts or numbers, inside of a column."""
    paths = list[str]()
    if not depth:
        return paths
    if pa.types.is_struct(kind):
        for field in kind:
            path = f"{name}.{field.name}"
            if _is_plain(field.type):
                paths.append(path)
            paths += _paths_in(path, field.type, depth - 1)
    elif is_list(kind) and pa.types.is_struct(kind.value_type):
        if _rounds(kind.value_type) is not None:
            paths += [f"{name}.{speaker}" for speaker in SPEAKERS]
        elif "text" not in [field.name for field in kind.value_type]:
            plain = [field.name for field in kind.value_type if _is_plain(field.type)]
            paths += [f"{name}.{field}" for field in plain]
    elif is_list(kind) and is_text(kind.value_type):
        paths += [f"{name}.{FIRST}", f"{name}.{REST}"]
    return paths


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether values are texts, numbers, or lists of them."""
    if is_list(kind):
        return _is_plain(kind.value_type)
    return is_text(kind) or not (pa.types.is_nested(kind) or pa.types.is_null(kind))
