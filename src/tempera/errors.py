"""Errors of users, each shown as one line."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from numbers import Integral

_LONGEST_MESSAGE = 1000  # letters of a message, which may quote its input
_MOST_WORDS = 10_000  # known words that are compared with a word letter by letter
_LONGEST_VALUE = 160  # letters of a value that a message shows
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
        if len(line) > _LONGEST_MESSAGE:
            half = _LONGEST_MESSAGE // 2 - 3
            line = f"{line[:half]} ... {line[-half:]}"
        super().__init__(line)


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
    return "".join(map(_visible, text))


def _visible(letter: str) -> str:
    if letter in "\n\r\t":
        return " "
    if unicodedata.category(letter) in _HIDDEN and letter not in "\u200d\u200c":
        return ascii(letter)[1:-1]
    return letter


def article(noun: str) -> str:
    """Return a noun in the singular with its article.

    >>> article("item"), article("user"), article("Ordered")
    ('an item', 'a user', 'an Ordered')
    """
    if noun.lower().startswith(("a", "e", "i", "o")):
        return f"an {noun}"
    return f"a {noun}"


def quantity(count: int, what: str) -> str:
    """Return a count with the noun of the counted things; the noun is given in the plural.

    >>> quantity(1, "queries that are a document"), quantity(2000, "repeated pairs"), quantity(1, "repeated pairs")
    ('1 query that is a document', '2,000 repeated pairs', '1 repeated pair')
    """
    noun = _NOUN.search(what)
    if count == 1 and noun is not None:
        before = what[: noun.start()]
        singular = re.sub("ies$", "ys", noun[0])[:-1]
        after = _VERB.sub(lambda verb: verb[1] + _VERBS[verb[2]], what[noun.end() :])
        what = before + singular + after
    return f"{count:,} {what}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the nearest known word as a question, or an empty text.

    >>> did_you_mean("temprature", ["temperature", "pools"])
    ' Did you mean temperature?'
    >>> did_you_mean("lr", ["seed", "learning_rate"]), did_you_mean("epochs", ["num_train_epochs"])
    (' Did you mean learning_rate?', ' Did you mean num_train_epochs?')
    """
    near = nearest(word, list(known))
    if not near:
        return ""
    return f" Did you mean {near}?"


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return a known word that is near to a word; None if there is none.

    First come known words whose initials are the word, then the word with the most similar
    spelling, and then known words that hold the word.
    """
    for name in known:
        if word == "".join(part[:1] for part in name.split("_")):
            return name
    compared = known
    if len(known) > _MOST_WORDS:
        compared = [name for name in known if name[:2] == word[:2]][:_MOST_WORDS]
    similar = difflib.get_close_matches(word, compared, n=1, cutoff=0.6)
    if similar:
        return similar[0]
    if len(word) > 2:
        for name in known:
            if word in name:
                return name
    return None


def refuse_unknown(name: str, value: object, *known: str) -> None:
    """Refuse a word that is not among the known words.

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


def refuse_not_a_number(name: str, value: float) -> None:
    """Refuse a number that is NaN or infinite.

    Raises:
        ConfigError: such a number.

    >>> refuse_not_a_number("margin: margin", float("nan"))
    Traceback (most recent call last):
    tempera.errors.ConfigError: margin: margin is a finite number, not nan
    """
    refuse_other(name, value, math.isfinite(value), "a finite number")


def refuse_other(name: str, value: object, fits: bool, expected: str) -> None:
    """Refuse a value of another kind than the expected kind.

    Args:
        name: of the argument or option.
        value: to check.
        fits: True if the value is of the expected kind.
        expected: the expected kind, in words.

    Raises:
        ConfigError: a value that does not fit.

    >>> refuse_other("masks", ["same_id"], False, "a list such as [SameId()]")
    Traceback (most recent call last):
    tempera.errors.ConfigError: masks is a list such as [SameId()], not ['same_id']
    """
    if fits:
        return
    shown = one_line(repr(value))
    if len(shown) > _LONGEST_VALUE:
        shown = shown[:_LONGEST_VALUE] + "..."
    raise ConfigError(f"{name} is {expected}, not {shown}")
