"""Labels and grades of pairs: the columns of labels, and advice on the values for pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..tables.columns import plain
from ..tables.profile import ColumnProfile

# Names of columns that describe rows. Their words are no labels of pairs, unless the words are
# those of labels.
_DESCRIPTIONS = frozenset({
    "category", "categories", "topic", "topics", "subtopic", "language", "lang", "locale",
    "country", "region", "domain", "dataset", "source", "split", "partition", "subset", "genre",
    "type", "kind", "task", "author", "year", "month", "day", "version", "license", "file",
    "filename", "section", "chapter", "subject", "tag", "tags", "format", "answertype",
    "questiontype", "querytype", "model", "product", "department", "repo",
})  # fmt: skip
# Words of pairs that belong together, the clearest first.
_RIGHT = (
    "entailment", "relevant", "highly relevant", "perfect", "positive", "duplicate", "yes",
    "true", "match", "similar", "paraphrase", "good", "correct", "helpful", "up", "like", "y",
)  # fmt: skip
# Words of pairs that do not belong together.
_WRONG = frozenset({
    "contradiction", "neutral", "irrelevant", "not relevant", "negative", "no", "false",
    "bad", "incorrect", "unhelpful", "down", "dislike", "different", "n", "not_relevant",
})  # fmt: skip
# Names of columns in which a true value says that a pair does not belong together.
_NEGATED = ("is_impossible", "irrelevant", "is_negative", "is_spam", "unanswerable", "thumbs_down")
_INFERENCE = {"premise", "hypothesis"}
# Names of columns that number rows.
_NUMBERS = frozenset(
    {"index", "idx", "row", "rank", "position", "page", "number", "no", "unnamed0"}
)
_FEWEST = 3  # rows in which different whole numbers may be grades
_TOPS = (1, 2, 3, 4, 5, 6, 7, 10, 20, 100)  # of usual scales
_SHARE = 0.8  # of a scale from which on pairs belong together


def is_scale_of_labels(column: ColumnProfile) -> bool:
    """Return True if a column holds labels or grades, by which the texts of some rows may not
    belong together; numbers of rows and ids are no labels."""
    name = plain(column.name.split(".")[-1])
    if not name or name.endswith("id") or name in _NUMBERS:
        return False
    values = column.rows - column.blanks
    numbered = "id" in column.kinds and column.distinct == values and values > _FEWEST
    return column.distinct > 1 and not numbered and bool(column.kinds & {"label", "rating"})


def is_description(column: ColumnProfile) -> bool:
    """Return True if a column has a usual name of descriptions, and holds no usual words of
    labels."""
    words = {value.lower() for value in column.values}
    of_labels = words & ({*_RIGHT} | _WRONG) or "boolean" in column.kinds
    return plain(column.name.split(".")[-1]) in _DESCRIPTIONS and not of_labels


def is_wrong(column: ColumnProfile) -> bool:
    """Return True if the only value of a column says that no pair belongs together."""
    word = column.values[0].lower()
    if column.scale is not None:
        return column.scale[1] <= 0
    return word in _WRONG


def advice(column: ColumnProfile, names: Sequence[str]) -> str:
    """Return options that tell the rows that belong together, as the values of a column suggest.

    Args:
        column: the column of labels or grades.
        names: the names of the table's columns.

    >>> import pyarrow as pa
    >>> from tempera.tables.profile import profile
    >>> def of(values, names=()): return advice(profile(pa.table({"x": values}), "").columns["x"], names)
    >>> of(["entailment", "neutral"]), of(["yes", "no"]), of([0, 1]), of([1, -1])
    ('data.positive_labels=[entailment]', 'data.positive_labels=[yes]', 'data.min_score=1', 'data.min_score=1')
    >>> of([0, 1, 2], ["premise", "hypothesis", "x"])
    'data.positive_labels=[0], as labels of inference have it (0 is entailment)'
    >>> of([0.0, 2.5, 4.8]), of([0.1, 0.97])
    ('data.min_score=4, the upper fifth of 0 to 5', 'data.min_score=0.8, the upper fifth of 0 to 1')
    """
    negated = plain(column.name.split(".")[-1]) in map(plain, _NEGATED)
    if column.scale is None:
        return _advice_on_words(column, negated)
    values = sorted(column.values)
    low, high = column.scale
    if math.isinf(low) or math.isinf(high):
        return "data.min_score=LEAST"  # a score that is too large for a number tells no scale
    known = {plain(name.split(".")[-1]) for name in names}
    numbers = {float(value) for value in values}
    if negated and numbers <= {0, 1}:
        return "data.positive_labels=[0]"
    if numbers <= {-1, 0, 1, 2} and {0, 1, 2} <= numbers | {-1, 1} and known >= _INFERENCE:
        return "data.positive_labels=[0], as labels of inference have it (0 is entailment)"
    if numbers <= {-1, 0, 1}:
        return "data.min_score=1"
    has_fractions = any(value != int(value) for value in numbers)
    bottom = 1 if low >= 1 and not has_fractions else min(0, low)
    tops = [top for top in _TOPS if high <= top]
    top = tops[0] if tops else math.ceil(high)
    least = _SHARE * top
    if not has_fractions or top > 1:
        least = math.ceil(least)
    inference = ""
    if numbers <= {-1, 0, 1, 2}:
        inference = " (data.positive_labels=[0] if 0 is entailment)"
    return f"data.min_score={least:g}, the upper fifth of {bottom:g} to {top:g}{inference}"


def _advice_on_words(column: ColumnProfile, negated: bool) -> str:
    """Return the option for labels that are words; in a negated column, a pair belongs together if
    the label is false."""
    words = {value.lower(): value for value in sorted(column.values)}
    right = ("false", "no", "n") if negated else _RIGHT
    for word in right:
        if word in words:
            return f"data.positive_labels=[{words[word]}]"
    return (
        f"data.positive_labels=[...] with those of {', '.join(sorted(column.values))} that say so"
    )
