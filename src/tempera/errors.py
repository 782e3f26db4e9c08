"""Errors of users, each shown as one line."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from numbers import Integral

_LONGEST = 1000  # letters of a message, which may quote its input
_MOST = 10_000  # known words that are compared with one letter by letter
_LONG = 160  # letters of a value that a message shows
# Control characters, line ends, writing directions, surrogates: a terminal obeys or cannot show
# them.
_HIDDEN = {"Cc", "Cf", "Zl", "Zp", "Cs"}

_NOUN = re.compile(r"\b\w+s\b")
_VERBS = {"are": "is", "have": "has", "hold": "holds", "share": "shares", "answer": "answers"}
_VERB = re.compile(rf"(^ |\b(?:that|which|and) )({'|'.join(_VERBS)})\b")


class TemperaError(Exception):
    """A mistake in the input: shown as one line, without a traceback, with exit code 2.

    >>> str(TemperaError("no column 'a\x1b[31m\\nb'"))
    "no column 'a\\\\x1b[31m b'"
    """

    def __init__(self, message: str = "") -> None:
        line = one_line(message)
        half = _LONGEST // 2 - 3
        super().__init__(line if len(line) <= _LONGEST else f"{line[:half]} ... {line[-half:]}")


class ConfigError(TemperaError):
    """An unknown option, or a value that an option does not accept."""


class DataError(TemperaError):
    """Data that is missing, empty or malformed."""


class MissingLibrary(TemperaError):
    """An optional library that is not installed."""


class OutputError(TemperaError):
    """An output path that cannot be written to."""


def one_line(text: str) -> str:
    """Return a text as one line that is safe on a terminal: line ends become spaces, control
    characters are escaped.

    >>> print(one_line("a\x1b[2J\\nb"))
    a\\x1b[2J b
    """
    if text.isprintable():
        return text
    plain = "".join(" " if letter in "\n\r\t" else letter for letter in text)
    return "".join(
        ascii(x)[1:-1] if unicodedata.category(x) in _HIDDEN and x not in "\u200d\u200c" else x
        for x in plain
    )


def quantity(count: int, what: str) -> str:
    """Return a number of things, whose noun is given in the plural.

    >>> quantity(1, "queries that are a document"), quantity(2000, "repeated pairs"), quantity(1, "repeated pairs")
    ('1 query that is a document', '2,000 repeated pairs', '1 repeated pair')
    """
    if count == 1 and (noun := _NOUN.search(what)):
        one = re.sub("ies$", "ys", noun[0])[:-1]
        what = (
            what[: noun.start()]
            + one
            + _VERB.sub(lambda verb: verb[1] + _VERBS[verb[2]], what[noun.end() :])
        )
    return f"{count:,} {what}"


def with_article(noun: str) -> str:
    """Return a singular noun with its article.

    >>> with_article("item"), with_article("user"), with_article("doc")
    ('an item', 'a user', 'a doc')
    """
    return f"{'an' if noun[:1].lower() in {*'aeio'} else 'a'} {noun}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the nearest known word as a question, or an empty text.

    >>> did_you_mean("temprature", ["temperature", "pools"])
    ' Did you mean temperature?'
    >>> did_you_mean("lr", ["seed", "learning_rate"]), did_you_mean("epochs", ["num_train_epochs"])
    (' Did you mean learning_rate?', ' Did you mean num_train_epochs?')
    """
    near = nearest(word, list(known))
    return f" Did you mean {near}?" if near else ""


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that has the letters of this one as initials, is spelt like it, or
    holds it; None if there is none."""
    near = [name for name in known if word == "".join(part[:1] for part in name.split("_"))]
    alike = (
        known if len(known) <= _MOST else [name for name in known if name[:2] == word[:2]][:_MOST]
    )
    near += difflib.get_close_matches(word, alike, n=1, cutoff=0.6)
    near += [name for name in known if word in name and len(word) > 2]
    return near[0] if near else None


def refuse_unknown(name: str, value: object, *known: str) -> None:
    """Refuse a word that is none of those known.

    Raises:
        ConfigError: another word.

    >>> refuse_unknown("partition", "per-direction", "joint", "per_direction")
    Traceback (most recent call last):
    tempera.errors.ConfigError: partition is joint or per_direction, not 'per-direction'. Did you mean per_direction?
    """
    if value not in known:
        raise ConfigError(
            f"{name} is {' or '.join(known)}, not {value!r}.{did_you_mean(str(value), known)}"
        )


def is_whole(value: object) -> bool:
    """Return True for a whole number, of Python or of NumPy; truth values are none.

    >>> is_whole(3), is_whole(True), is_whole(2.5)
    (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def refuse_other(name: str, value: object, fits: bool, expected: str) -> None:
    """Refuse a value of another kind than is expected.

    Raises:
        ConfigError: one that does not fit.

    >>> refuse_other("masks", ["same_id"], False, "a list such as [SameId()]")
    Traceback (most recent call last):
    tempera.errors.ConfigError: masks is a list such as [SameId()], not ['same_id']
    """
    if not fits:
        shown = one_line(repr(value))
        raise ConfigError(
            f"{name} is {expected}, not {shown if len(shown) <= _LONG else shown[:_LONG] + '...'}"
        )
