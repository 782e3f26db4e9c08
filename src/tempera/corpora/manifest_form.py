"""The form of the files that describe a folder of vectors: values that a damaged file would have
otherwise are refused by name, before anything is read by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import DataError
from ..io.untrusted import inside
from ..towers.similarities import Similarity

Stored = Literal["float32", "float16", "int8"]  # types of the numbers of stored vectors
WIDEST = 1 << 24  # the largest width that is believed

_SHOWN = 40  # letters of a value in a message

Kind = tuple[Callable[[Any], bool], str]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_width(value: Any) -> bool:
    return type(value) is int and 0 < value <= WIDEST


def _is_text(value: Any) -> bool:
    """Return True for a text that can be written; names of files may hold any bytes."""
    try:
        return isinstance(value, str) and value.encode("utf-8", "surrogateescape") is not None
    except UnicodeEncodeError:
        return False


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


_TEXT: Kind = _is_text, "a text"
_TEXTS: Kind = _are_texts, "a list of texts"
_COUNT: Kind = _is_count, "a count"
_WIDTH: Kind = _is_width, "a positive count"
_PLAN: Mapping[tuple[str, str], Kind] = {
    ("model", "name"): _TEXT,
    ("model", "fingerprint"): _TEXT,
    ("model", "similarity"): (lambda value: value in get_args(Similarity), "a similarity"),
    ("options", "text"): (lambda value: _are_texts(value) and bool(value), "the names of columns"),
    ("options", "id"): (lambda value: value is None or _is_text(value), "the name of a column"),
    ("options", "columns"): _TEXTS,
    ("options", "dtype"): (lambda value: value in get_args(Stored), "a type of numbers"),
    ("options", "role"): (lambda value: value in ("doc", "query"), "doc or query"),
    ("options", "half"): (lambda value: isinstance(value, bool), "true or false"),
}
_RECORD: Mapping[tuple[str, ...], Kind] = {
    ("name",): _TEXT,
    ("rows",): _COUNT,
    ("groups",): _COUNT,
    ("blank",): _COUNT,
    ("width",): _COUNT,
    ("input", "size"): _COUNT,
    ("input", "xxh3"): _TEXT,
    ("input", "state"): _TEXT,
    ("output", "size"): _COUNT,
    ("output", "xxh3"): _TEXTS,
}


def refuse_other_plan(plan: Mapping[str, Any], where: str) -> None:
    """Raise DataError for a plan with a value that is missing, or of another kind."""
    _refuse_other_values(plan, _PLAN, where)
    inputs = plan.get("inputs")
    if not isinstance(inputs, dict):
        raise DataError(f"{where} is damaged: it names no inputs; restore it from a copy")
    for name, about in inputs.items():
        _refuse_outside(name, where)
        _refuse_other_values(
            {name: about}, {(name, "address"): _TEXT, (name, "size"): _COUNT}, where
        )


def refuse_other_manifest(manifest: Mapping[str, Any], where: str) -> None:
    """Raise DataError for a manifest with a value that is missing, or of another kind."""
    _refuse_other_values(manifest, {**_PLAN, ("model", "dimensions"): _WIDTH}, where)
    shards = manifest.get("shards")
    if not isinstance(shards, list):
        raise DataError(f"{where} is damaged: it names no shards; restore it from a copy")
    for shard in shards:
        _refuse_other_values(
            {"shard": shard}, {("shard", "name"): _TEXT, ("shard", "rows"): _COUNT}, where
        )
        _refuse_outside(shard["name"], where)


def refuse_other_record(record: Mapping[str, Any], where: str) -> None:
    """Raise DataError for a record of a shard with a value that is missing, or of another kind."""
    _refuse_other_values(record, _RECORD, where, "remove it, and encode the shard again")


def _refuse_other_values(
    document: Mapping[str, Any],
    kinds: Mapping[Any, Kind],
    where: str,
    remedy: str = "restore it from a copy",
) -> None:
    for path, (is_right, words) in kinds.items():
        value = _value(document, path)
        if not is_right(value):
            shown = repr(value)[:_SHOWN]
            raise DataError(
                f"{where} is damaged: {'.'.join(path)} is {shown}; expected {words}: {remedy}"
            )


def _value(document: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of names; None where there is none."""
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _refuse_outside(name: str, where: str) -> None:
    """Raise DataError for a shard whose files would lie outside of the folder."""
    try:
        inside(Path(where).parent, name)
    except DataError as error:
        raise DataError(f"{where} is damaged: {error}") from None
