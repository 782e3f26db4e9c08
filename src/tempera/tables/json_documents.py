"""Rows of a JSON document: an array, objects over several lines, and the forms in which pandas and
others write whole tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_ROUNDS = ("messages", "conversations", "conversation")  # lists of objects that are one row
_INDEX = "id"  # the column of the keys of rows


def documents(text: str) -> list[Any]:
    """Return the JSON values that a text holds one after the other, with white space between them.

    Raises:
        ValueError: something else stands in the text.

    >>> documents('{"a": 1} \\n {"a":\\n 2}')
    [{'a': 1}, {'a': 2}]
    """
    decoder, values = json.JSONDecoder(), []
    at = len(text) - len(text.lstrip())
    try:
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            values.append(value)
            while at < len(text) and text[at].isspace():
                at += 1
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return values


def rows_of_document(document: Any, whole_table: bool) -> list[Any]:
    """Return the rows of a document: of an array its values, of an object the rows that it holds,
    or the object itself.

    Args:
        whole_table: whether an object may hold a table, as files of one document do. It holds one
            by columns or by rows, as pandas writes them, or one list of objects beside single
            values.

    >>> rows_of_document({"q": {"0": "a", "1": "b"}, "d": {"0": "x", "1": "y"}}, True)
    [{'q': 'a', 'd': 'x'}, {'q': 'b', 'd': 'y'}]
    >>> rows_of_document({"columns": ["q"], "index": [0, 1], "data": [["a"], ["b"]]}, True)
    [{'q': 'a'}, {'q': 'b'}]
    >>> rows_of_document({"q": ["a", "b"], "d": ["x", "y"]}, True)
    [{'q': 'a', 'd': 'x'}, {'q': 'b', 'd': 'y'}]
    >>> rows_of_document({"q1": {"text": "a"}, "q2": {"text": "b"}}, True)
    [{'id': 'q1', 'text': 'a'}, {'id': 'q2', 'text': 'b'}]
    >>> rows_of_document({"version": 2, "data": [{"q": "a"}, {"q": "b"}]}, True)
    [{'q': 'a'}, {'q': 'b'}]
    """
    if isinstance(document, list):
        return document
    if not (isinstance(document, dict) and whole_table and document):
        return [document]
    for form in (_split, _by_keys, _by_columns, _inside):
        if rows := list(form(document)):
            return rows
    return [document]


def _split(document: Mapping[str, Any]) -> Iterator[Any]:
    """Yield rows of a table with its names in one list, and its rows in another."""
    names, rows = document.get("columns"), document.get("data")
    if not (isinstance(names, list) and isinstance(rows, list)):
        return
    if all(isinstance(row, list) and len(row) == len(names) for row in rows):
        yield from (dict(zip(map(str, names), row, strict=True)) for row in rows)


def _by_keys(document: Mapping[str, Any]) -> Iterator[Any]:
    """Yield rows of objects of objects, of which the outer ones are columns or rows."""
    inner = list(document.values())
    if not all(isinstance(value, dict) and value for value in inner):
        return
    keys = list(inner[0])
    if any(value.keys() != inner[0].keys() for value in inner):
        return
    if all(key.isdigit() for key in keys):
        yield from ({name: document[name][key] for name in document} for key in keys)
    elif len(inner) > 1:
        by_number = [*document] == [str(i) for i in range(len(inner))]
        named = not by_number and _INDEX not in keys
        yield from ({_INDEX: key, **row} if named else row for key, row in document.items())


def _by_columns(document: Mapping[str, Any]) -> Iterator[Any]:
    """Yield rows of an object of lists of one length."""
    columns = list(document.values())
    lists = all(isinstance(column, list) for column in columns)
    if lists and len(columns) > 1 and len({*map(len, columns)}) == 1 and len(columns[0]) > 1:
        yield from (dict(zip(document, row, strict=True)) for row in zip(*columns, strict=True))


def _inside(document: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the objects of the only list beside single values and descriptions."""
    lists = [name for name, value in document.items() if isinstance(value, list)]
    if len(lists) != 1 or lists[0] in _ROUNDS:
        return
    rows = document[lists[0]]
    if len(rows) > 1 and all(isinstance(row, dict) for row in rows):
        yield from rows
