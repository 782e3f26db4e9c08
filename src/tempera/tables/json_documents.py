"""Rows of a JSON document: an array, objects over several lines, and whole tables as written by
pandas and the like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Names of lists whose objects are the rounds of a conversation, which is a row.
_CONVERSATIONS = ("messages", "conversations", "conversation")
_KEY_COLUMN = "id"


def documents(text: str) -> list[Any]:
    """Return the JSON values of a text, with white space between the values.

    Raises:
        ValueError: something else stands in the text.

    >>> documents('{"a": 1} \\n {"a":\\n 2}')
    [{'a': 1}, {'a': 2}]
    """
    decoder = json.JSONDecoder()
    values = []
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
    """Return the rows of a document: the values of an array, the rows in an object, or the object
    itself.

    Args:
        document: a JSON value.
        whole_table: True if an object may hold a table, as in a file of one document: by columns or
            by rows, as pandas writes tables, or as a list of objects beside single values.

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
    for read_rows in (_names_and_rows, _objects_of_objects, _lists_of_columns, _only_list):
        rows = read_rows(document)
        if rows:
            return rows
    return [document]


def _names_and_rows(document: Mapping[str, Any]) -> list[Any]:
    """Return the rows of a table with a list of names and a list of rows; none of any other
    object."""
    names = document.get("columns")
    rows = document.get("data")
    if not (isinstance(names, list) and isinstance(rows, list)):
        return []
    if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        return []
    columns = [str(name) for name in names]
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _objects_of_objects(document: Mapping[str, Any]) -> list[Any]:
    """Return the rows of an object of objects with equal keys, which are columns or rows; none of
    any other object."""
    inner = list(document.values())
    if not all(isinstance(value, dict) and value for value in inner):
        return []
    keys = list(inner[0])
    if any(value.keys() != inner[0].keys() for value in inner):
        return []
    if all(key.isdigit() for key in keys):
        return [{name: column[key] for name, column in document.items()} for key in keys]
    if len(inner) == 1:
        return []
    are_numbered = list(document) == [str(i) for i in range(len(inner))]
    if are_numbered or _KEY_COLUMN in keys:
        return inner
    return [{_KEY_COLUMN: key} | row for key, row in document.items()]


def _lists_of_columns(document: Mapping[str, Any]) -> list[Any]:
    """Return the rows of an object of lists of one length; none of any other object."""
    columns = list(document.values())
    if len(columns) < 2 or not all(isinstance(column, list) for column in columns):
        return []
    n = len(columns[0])
    if n < 2 or any(len(column) != n for column in columns):
        return []
    return [{name: column[i] for name, column in document.items()} for i in range(n)]


def _only_list(document: Mapping[str, Any]) -> list[Any]:
    """Return the objects of the only list beside single values and descriptions; none of any other
    object."""
    lists = [name for name, value in document.items() if isinstance(value, list)]
    if len(lists) != 1 or lists[0] in _CONVERSATIONS:
        return []
    rows: list[Any] = document[lists[0]]
    if len(rows) < 2 or not all(isinstance(row, dict) for row in rows):
        return []
    return rows
