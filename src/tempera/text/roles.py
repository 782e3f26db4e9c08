"""Roles of columns, by name and never by position."""

# Annotations are evaluated here: options are read from the signatures of subclasses in other
# modules.

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from ..errors import ConfigError, DataError
from ..io.columns import Columns, RoleTable, headless
from ..io.reader import is_text
from ..io.table_form import TableForm

# Usual names of the two roles that every table has.
QUERY_NAMES = ("query", "anchor", "question", "premise", "sentence1", "text1")
DOC_NAMES = (
    *(
        "doc",
        "document",
        "positive",
        "positives",
        "pos",
        "answer",
        "passage",
        "context",
        "hypothesis",
    ),
    *("sentence2", "text2", "positive_passages"),
)
# And of those that a table may have. A negatives column may be one of several, negative_1 ...
# negative_n.
USUAL: dict[str, tuple[str, ...]] = {
    "query": QUERY_NAMES,
    "doc": DOC_NAMES,
    "negatives": ("negatives", "negative", "neg", "hard_negatives", "negative_passages"),
    "query_id": ("query_id", "query-id", "qid"),
    "doc_id": (
        "doc_id",
        "document_id",
        "docid",
        "corpus-id",
        "positive_id",
        "positive_ids",
        "pos_id",
    ),
    "negative_ids": ("negative_ids", "neg_id", "neg_ids"),
    "weight": ("weight", "weights"),
    "score": (
        *(
            "score",
            "scores",
            "label",
            "labels",
            "relevance",
            "relevant",
            "grade",
            "grades",
            "similarity",
        ),
        "is_duplicate",
    ),
    "positive_scores": ("positive_scores", "pos_scores"),
    "negative_scores": ("negative_scores", "neg_scores"),
    "prompt": ("prompt",),
}
IDS = ("query_id", "doc_id", "negative_ids")
TABLE = RoleTable(
    USUAL,
    ("query", "doc"),
    {"negatives": re.compile(r"(negative|neg)_\d+")},
    unread=("negative_ranks",),
)

_GRADES = 6  # that a scale has at most
_GRADE, _ZERO = re.compile(r"(?i)[0-9](\.0*)?|10|true|false"), re.compile(r"(?i)0(\.0*)?|false")
_TOLD_BY = 1_000  # rows that tell what a column holds
# of the median text of a column that is known by its texts: names, ids and categories have fewer
_WORDS = 3


@dataclass(frozen=True, kw_only=True)
class Roles(TableForm):
    """Name the column of every role; a role without a name takes a usual one, and a column without
    role is an error.

    A document or negatives column holds a text or a list of texts (also of Tevatron's objects
    docid, title, text) in each row: every positive trains, as a pair of its own with all negatives
    of its row.

    Args:
        query: column of the queries.
        doc: column of the documents that answer.
        negatives: columns of documents that do not; their number may differ from row to row, and an
            empty cell is none.
        query_id: column of ids, text or integer, to tell queries apart in place of their content.
        doc_id: likewise of the documents, a list where doc holds lists.
        negative_ids: likewise of the negatives, in their order.
        weight: column of how much a row counts in the loss.
        score: column of how well the document answers; needs min_score.
        positive_scores: column of scores of the documents; used by negative_margin, and by
            train.teacher=columns.
        negative_scores: likewise of the negatives.
        prompt: column of instructions to put before the row's query.
        metadata: columns that are not read; ["*"] is all without a role.
        min_score: rows of a lower score are left out, and counted.
        negative_margin: negatives that score above the row's best positive less this are left out,
            and counted.
        identical: what to do with a document that equals its query: drop leaves it out, and counts
            it.
        missing_text: what to do with a row whose query or document is missing or blank: drop leaves
            it out, and counts it.
        query_prompt: put before every query of this source.
        doc_prompt: put before every document of this source.
    """

    query: str | None = None
    doc: str | None = None
    negatives: tuple[str, ...] | None = None
    query_id: str | None = None
    doc_id: str | None = None
    negative_ids: str | None = None
    weight: str | None = None
    score: str | None = None
    positive_scores: str | None = None
    negative_scores: str | None = None
    prompt: str | None = None
    metadata: tuple[str, ...] = ()
    min_score: float | None = None
    negative_margin: Annotated[float, Field(ge=0)] | None = None
    identical: Literal["refuse", "drop", "keep"] = "drop"
    missing_text: Literal["refuse", "drop"] = "drop"
    query_prompt: str = ""
    doc_prompt: str = ""

    def role_columns(self, names: Sequence[str], where: str) -> Columns:
        """Return the columns of every role that a table with these columns has; raises as
        `RoleTable.columns` does."""
        columns = TABLE.columns(self, names, where)
        if "score" in columns and self.min_score is None:
            name = columns["score"][0]
            raise UnsaidScoreError(
                f"{where}: column {name!r} holds scores or labels; without data.min_score even the lowest would train as "
                f"positives: give data.min_score, or if all rows are pairs that belong together, as those that are labelled "
                f"entailment, data.metadata=[{name}]"
            )
        return columns

    def told_by_content(self, names: Sequence[str]) -> Self:
        """Return roles that read no ids and no column without a role of a table with these columns,
        but those that are named.

        >>> Roles(doc_id="url").told_by_content(["query", "doc", "qid", "url", "year"]).metadata
        ('qid', '*')
        """
        ids = [
            name
            for role in IDS
            if getattr(self, role) is None
            for name in TABLE.usual_columns(role, names)
        ]
        return replace(self, metadata=(*self.metadata, *ids, "*"))


class UnsaidScoreError(DataError):
    """A table has scores or labels, and no option says which of its rows belong together."""


def grades_in(rows: pa.Table, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns that hold a few small numbers, 0 among them, as labels and grades do, with
    what they hold.

    >>> grades_in(pa.table({"rel": ["0", "2", "2"], "year": [2001, 2002, 2002], "stars": [5, 4, 5]}), ["rel", "year", "stars"])
    {'rel': ['0', '2']}
    """
    grades = {}
    for name in names:
        column, kind = rows[name], rows[name].type
        if any(
            is_one(kind)
            for is_one in (is_text, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        ):
            values = pc.unique(column.cast(pa.large_string())).drop_null().to_pylist()
            if (
                1 < len(values) <= _GRADES
                and all(map(_GRADE.fullmatch, values))
                and any(map(_ZERO.fullmatch, values))
            ):
                grades[name] = sorted(values)
    return grades


# Of tables that nothing is trained on: there, a query that is its own document is no fault, nor is
# a column without a role.
UNTRAINED = Roles(identical="keep", metadata=("*",))
WHOLE = Roles(identical="keep", missing_text="refuse")  # of columns of which no row may be left out


def known_by_texts(rows: pa.Table, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns for the roles of a pair that options and names leave open, where as many
    columns hold texts of some words.

    The first holds queries, unless its texts are twice as long.

    >>> rows = pa.table({"id": ["a"], "heading": ["Reading a file"], "section": ["Open it, and read it line by line."]})
    >>> known_by_texts(rows, {})
    {'query': 'heading', 'doc': 'section'}
    >>> known_by_texts(rows, {"query": "id"})
    {}
    """
    names = rows.column_names
    roles = [role for role in TABLE.needed if not TABLE.has(role, options, names)]
    if not roles or headless(names):
        return {}
    taken = {name for role in TABLE.usual for name in TABLE.usual_columns(role, names)}
    named = [
        name
        for option, value in options.items()
        if option in (*TABLE.usual, "metadata")
        for name in (value if isinstance(value, list | tuple) else [value])
    ]
    words = {
        name: _median_words(rows[name][:_TOLD_BY])
        for name in names
        if name not in taken and name not in named
    }
    texts = [name for name, median in words.items() if median >= _WORDS]
    if len(texts) != len(roles):
        return {}
    if len(texts) == 2 and words[texts[0]] > 2 * words[texts[1]]:
        texts.reverse()
    return dict(zip(roles, texts, strict=True))


def _median_words(column: pa.ChunkedArray) -> float:
    """Return the words of the median text of a column; 0 if it holds no texts."""
    if not is_text(column.type):
        return 0.0
    return float(pc.approximate_median(pc.count_substring_regex(column, r"\S+")).as_py() or 0)


def refuse_roles(path: object, roles: Roles | None) -> None:
    """Refuse options that would not be read."""
    if roles is not None:
        raise ConfigError(
            f"{path} is a BEIR folder, whose columns are fixed: remove the options data.ROLE"
        )
