"""Arguments of public functions, held against their annotations, so that a wrong kind ends in a
line of its own."""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from .errors import article, is_whole, refuse_other

_LISTS = (Sequence, Iterable)
_NAMES = {
    type(None): "None",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    Mapping: "a mapping",
}


def refuse_other_kinds(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of another kind than a function's annotations name; what these do not name
    is taken as it is.

    Args:
        arguments: its `locals()`, while they are what it was called with.

    Raises:
        ConfigError: the first that does not fit.

    >>> def halved(width: int | None = None, roles: Sequence[str] = ()) -> None:
    ...     refuse_other_kinds(halved, locals())
    >>> halved(8, roles=["query"])
    >>> halved(roles="query")
    Traceback (most recent call last):
    tempera.errors.ConfigError: halved: roles is a list, each a text, not 'query'
    >>> halved(width=True)
    Traceback (most recent call last):
    tempera.errors.ConfigError: halved: width is a whole number or None, not True
    """
    for name, (hint, several) in _hints(function).items():
        for value in arguments[name] if several else (arguments[name],):
            refuse_other(f"{function.__name__}: {name}", value, fits(hint, value), kind(hint))


@cache
def _hints(function: Callable[..., Any]) -> dict[str, tuple[Any, bool]]:
    """Return the annotation of each argument, and whether it stands for any number of them."""
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    return {
        each.name: (hints[each.name], each.kind is each.VAR_POSITIONAL)
        for each in parameters
        if each.name in hints and each.kind is not each.VAR_KEYWORD
    }


def fits(hint: Any, value: object) -> bool:
    """Return False if a value is shown to be of another kind than an annotation names.

    Numbers of NumPy are numbers, truth values are none; a text is no list, nor is an array;
    whatever names a file to Python is a path.

    >>> fits(str | Path, "pairs.csv"), fits(str | Path, None), fits(Sequence[int], [1, 2.5]), fits(Literal["a", "b"], "b")
    (True, False, False, True)
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(each, value) for each in inner)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint in (int, float):
        return (
            is_whole(value)
            if hint is int
            else isinstance(value, Real) and not isinstance(value, bool)
        )
    if hint is Path:
        return isinstance(value, os.PathLike)
    if origin is tuple:  # of as many
        return (
            isinstance(value, tuple | list)
            and len(value) == len(inner)
            and all(map(fits, inner, value))
        )
    if origin in _LISTS:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return False
        if isinstance(value, Sequence | Set):
            return all(fits(inner[0], each) for each in value)
        return (
            origin is Iterable or inner[0] is Any
        )  # what can be read once; and arrays and columns of any kind
    known = origin or hint
    return (
        not isinstance(known, type)
        or getattr(known, "_is_protocol", False)
        or isinstance(value, known)
    )


def kind(hint: Any) -> str:
    """Return what an annotation takes, in words.

    >>> kind(str | Path | None), kind(Literal["no", "auto"]), kind(Sequence[float])
    ('a text, a path or None', 'no or auto', 'a list, each a number')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        *first, last = dict.fromkeys(kind(each) for each in inner)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is Literal:
        return " or ".join(str(each) for each in inner)
    if origin in _LISTS:
        return "a list" if inner[0] is Any else f"a list, each {kind(inner[0])}"
    known = origin or hint
    name = getattr(known, "__name__", str(known))
    return _NAMES.get(known, article(name))
