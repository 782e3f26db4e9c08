"""Columns inside of columns: fields of records, elements of lists and rounds of chats, each with a
path for a name, for instance `messages.0.content`.

Letters in shapes: r rows of a table, e elements of all lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..tables.arrow_types import is_list, is_text
from ..tables.nested import at_path
from ..tables.tables import TableBlock

# Who speaks in a chat, by the names that chats give them.
SPEAKERS = {
    "user": ("user", "human", "prompter"),
    "assistant": ("assistant", "gpt", "bot", "model"),
}
# Fields of the rounds of a chat: the speaker, and the words.
_SPEAKER = ("role", "from", "speaker")
_WORDS = ("content", "value", "text")
# Steps of paths to the first element of a list, and to the further elements.
FIRST = "0"
REST = "1:"
_DEEPEST = 4  # most levels of records inside one another
_RANGE = re.compile(r"(\d+):")


@dataclass(frozen=True)
class Unfolding:
    """The columns of a table to divide, in order.

    Args:
        repeated: columns of lists of records; every record becomes a row.
        paths: paths of columns to add.
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
        """Return the unfolding of a table.

        Args:
            table: the first rows of the table.
            named: columns named by options, some by paths.
            query: the column of the queries by an option, if any.
            query_names: usual names of queries; a list of records with queries, as the questions of
                SQuAD are, is divided into rows.
            whole: True to look into all records, lists of texts and chats, where no column is a
                query or a document by its name.
        """
        repeated: list[str] = []
        has_query = any(name.lower() in query_names for name in table.column_names)
        name = _records(table, query_names)
        while name is not None:
            holds_query = whole and not has_query
            if query is not None:
                holds_query = _is_inside(query, name)
            if not holds_query:
                break
            repeated.append(name)
            table, _ = _exploded(table, name)
            name = _records(table, query_names)
        paths = [name for name in named if name not in table.column_names and "." in name]
        if whole:
            for field in table.schema:
                paths += _paths_in(field.name, field.type, _DEEPEST)
        return cls(tuple(repeated), tuple(dict.fromkeys(paths)))

    def used(self, columns: Sequence[str]) -> Unfolding:
        """Return the unfolding that adds only the paths among some columns."""
        return replace(self, paths=tuple(path for path in self.paths if path in columns))

    def __call__(self, block: TableBlock) -> TableBlock:
        """Return a block with its columns divided; paths not in the block are left out."""
        table = block.table
        rows = np.arange(len(table))
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
    """Return the values at a path, [r]; None if the table has no such path.

    A path is a path of `tables.nested`, or ends with a number and a colon for the elements of a
    list from that number on, or with user or assistant for the first question of a chat and the
    answer to the question.

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
    lists = _one_array(column)
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    inside = pc.list_flatten(lists)
    begin = _RANGE.fullmatch(step)
    if begin is not None:
        return pa.chunked_array([_elements_from(int(begin[1]), inside, counts)])
    if not pa.types.is_struct(inside.type):
        return None
    fields = _chat_fields(inside.type)
    if fields is None:
        return None
    return pa.chunked_array([_first_words(step, inside, counts, fields)])


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        return pa.concat_arrays(values.chunks)
    return values


def _elements_from(begin: int, elements: pa.Array, counts: NDArray[np.int64]) -> pa.Array:
    """Return lists of the elements from a position on, [r].

    Args:
        elements: of all lists, one after the other, [e].
        counts: number of elements of each list, [r].
    """
    starts = counts.cumsum() - counts
    position = np.arange(len(elements)) - np.repeat(starts, counts)  # [e] inside its list
    values = elements.filter(pa.array(position >= begin))
    left = np.maximum(counts - begin, 0)
    offsets = pa.array(np.concatenate([[0], left.cumsum()]))
    return pa.LargeListArray.from_arrays(offsets, values)


class _ChatFields(NamedTuple):
    """The fields of the rounds of a chat."""

    speaker: str
    words: str


def _chat_fields(kind: pa.DataType) -> _ChatFields | None:
    """Return the fields of the speaker and the words in the records of a chat; None if the records
    are no chat."""
    names = [field.name for field in kind]
    speakers = [name for name in _SPEAKER if name in names]
    words = [name for name in _WORDS if name in names]
    if not speakers or not words:
        return None
    fields = _ChatFields(speakers[0], words[0])
    if not all(is_text(kind.field(name).type) for name in fields):
        return None
    return fields


def _first_words(
    speaker: str, rounds: pa.Array, counts: NDArray[np.int64], fields: _ChatFields
) -> pa.Array:
    """Return the first words of the user in each chat, or of the assistant after them, [r].

    Args:
        speaker: user or assistant.
        rounds: of all chats, one after the other, [e].
        counts: number of rounds of each chat, [r].
    """
    speakers = pc.utf8_lower(pc.struct_field(rounds, [fields.speaker]))
    words = pc.struct_field(rounds, [fields.words])
    place = _first_round("user", speakers, counts, np.full(len(counts), -1))
    if speaker == "assistant":
        place = _first_round("assistant", speakers, counts, place)
    return words.take(pa.array(place, mask=place == len(rounds)))


def _first_round(
    speaker: str, speakers: pa.Array, counts: NDArray[np.int64], after: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the position of the first round of a speaker in each chat after an earlier round, [r];
    e for a chat without such a round.

    Args:
        speaker: user or assistant.
        speakers: the speaker of each round, [e].
        counts: number of rounds of each chat, [r].
        after: position of the earlier round, [r].
    """
    chat_of = np.repeat(np.arange(len(counts)), counts)
    speaks = pc.is_in(speakers, value_set=pa.array(SPEAKERS[speaker], speakers.type))
    at = np.flatnonzero(speaks.to_numpy(zero_copy_only=False))
    at = at[at > after[chat_of[at]]]
    place = np.full(len(counts), len(speakers))
    chats, first = np.unique(chat_of[at], return_index=True)
    place[chats] = at[first]
    return place


def _is_inside(path: str, lists: str) -> bool:
    """Return True if a path leads into every record of a column of lists, not into a single
    record."""
    head, _, rest = path.partition(f"{lists}.")
    if head or not rest:
        return False
    step = rest.partition(".")[0]
    return re.fullmatch(r"-?\d+:?", step) is None


def _records(table: pa.Table, query_names: Sequence[str]) -> str | None:
    """Return the first column of lists of records that hold queries; None if there is none."""
    for field in table.schema:
        if is_list(field.type) and _holds_queries(field.type.value_type, query_names, _DEEPEST):
            return str(field.name)
    return None


def _holds_queries(kind: pa.DataType, names: Sequence[str], depth: int) -> bool:
    """Return True if records have a text of a usual name of queries, or hold lists of records that
    have."""
    if not pa.types.is_struct(kind) or not depth or _chat_fields(kind) is not None:
        return False
    for field in kind:
        if field.name.lower() in names and is_text(field.type):
            return True
        if is_list(field.type) and _holds_queries(field.type.value_type, names, depth - 1):
            return True
    return False


def _exploded(table: pa.Table, name: str) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return a table with a row for each record of a column of lists, and the row of each record,
    [e]; the fields are columns called by their paths."""
    lists = _one_array(table[name])
    rows = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    records = pc.list_flatten(lists)
    columns = {}
    for other in table.column_names:
        if other != name:
            columns[other] = table[other].take(pa.array(rows))
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
        fields = list(kind.value_type)
        if _chat_fields(kind.value_type) is not None:
            paths += [f"{name}.{speaker}" for speaker in SPEAKERS]
        elif "text" not in [field.name for field in fields]:
            paths += [f"{name}.{field.name}" for field in fields if _is_plain(field.type)]
    elif is_list(kind) and is_text(kind.value_type):
        paths += [f"{name}.{FIRST}", f"{name}.{REST}"]
    return paths


def _is_plain(kind: pa.DataType) -> bool:
    """Return True if values are texts, numbers, or lists of texts or numbers."""
    if is_list(kind):
        return _is_plain(kind.value_type)
    return is_text(kind) or not (pa.types.is_nested(kind) or pa.types.is_null(kind))
