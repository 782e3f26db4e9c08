"""What a user can get wrong, told in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TemperaError(Exception):
    """A mistake in what was given: shown as one line, without a traceback, with exit code 2."""


class ConfigError(TemperaError):
    """An option that does not exist or a value that it cannot take."""


class DataError(TemperaError):
    """Data that is missing, empty or malformed."""


class OutputError(TemperaError):
    """A result that cannot be written where it was asked for."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The nearest known word as a question, or nothing.

    >>> did_you_mean("temprature", ["temperature", "pools"])
    ' Did you mean temperature?'
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]}?" if near else ""
