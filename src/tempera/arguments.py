"""Arguments of public functions, compared with their annotations, so that an argument of a wrong
kind ends in one clear line."""

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
    """Refuse arguments of another kind than a function's annotations name; arguments without an
    annotation pass.

    Args:
        function: with annotations.
        arguments: the `locals()` of the function, before any local name is set.

    Raises:
        ConfigError: the first argument that does not fit.

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
    for name, (hint, has_several) in _hints(function).items():
        argument = arguments[name]
        for value in argument if has_several else [argument]:
            refuse_other(f"{function.__name__}: {name}", value, fits(hint, value), kind(hint))


@cache
def _hints(function: Callable[..., Any]) -> dict[str, tuple[Any, bool]]:
    """Return the annotation of each argument, and True if it stands for any number of
    arguments (`*arguments`)."""
    annotations = get_type_hints(function)
    hints = {}
    for each in inspect.signature(function).parameters.values():
        if each.name in annotations and each.kind is not each.VAR_KEYWORD:
            hints[each.name] = (annotations[each.name], each.kind is each.VAR_POSITIONAL)
    return hints


def fits(hint: Any, value: object) -> bool:
    """Return False if a value is shown to be of another kind than an annotation names.

    Numbers of NumPy are numbers, and truth values are no numbers. A text is no list, nor is an
    array. A path is an object by which Python opens a file, but no text.

    >>> fits(str | Path, "pairs.csv"), fits(str | Path, None), fits(Sequence[int], [1, 2.5]), fits(Literal["a", "b"], "b")
    (True, False, False, True)
    """
    origin = get_origin(hint)
    inner = get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(each, value) for each in inner)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint is int:
        return is_whole(value)
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, os.PathLike)
    if origin is tuple:
        if not isinstance(value, tuple | list) or len(value) != len(inner):
            return False
        return all(map(fits, inner, value))
    if origin in _LISTS:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return False
        if isinstance(value, Sequence | Set):
            return all(fits(inner[0], each) for each in value)
        # An iterator can be read once, so its items are not looked at; and arrays and columns pass
        # where any items do.
        return origin is Iterable or inner[0] is Any
    known = origin or hint
    if not isinstance(known, type) or getattr(known, "_is_protocol", False):
        return True
    return isinstance(value, known)


def kind(hint: Any) -> str:
    """Return the kind of value that an annotation takes, in words.

    >>> kind(str | Path | None), kind(Literal["no", "auto"]), kind(Sequence[float])
    ('a text, a path or None', 'no or auto', 'a list, each a number')
    """
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin in (Union, types.UnionType):
        kinds = list(dict.fromkeys(kind(each) for each in inner))
        if len(kinds) == 1:
            return kinds[0]
        return f"{', '.join(kinds[:-1])} or {kinds[-1]}"
    if origin is Literal:
        return " or ".join(str(each) for each in inner)
    if origin in _LISTS:
        if inner[0] is Any:
            return "a list"
        return f"a list, each {kind(inner[0])}"
    known = origin or hint
    name = getattr(known, "__name__", str(known))
    return _NAMES.get(known, article(name))
