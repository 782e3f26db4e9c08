"""Roles of columns, by name and never by position."""

# Annotations are evaluated here: options are read from the signatures of subclasses in other
# modules.

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field

from ..errors import ConfigError, DataError
from ..tables.columns import Columns, RoleTable
from ..tables.table_form import TableForm

# Usual names of the two roles that every table has.
QUERY_NAMES = ("query", "anchor", "question", "premise", "sentence1", "text1")
DOC_NAMES = (
    "doc",
    "document",
    "positive",
    "positives",
    "pos",
    "answer",
    "passage",
    "context",
    "hypothesis",
    "sentence2",
    "text2",
    "positive_passages",
    "positive_ctxs",
)
# Usual names of every role. Negatives may stand in several columns, negative_1 ... negative_n.
USUAL: dict[str, tuple[str, ...]] = {
    "query": QUERY_NAMES,
    "doc": DOC_NAMES,
    "negatives": (
        "negatives",
        "negative",
        "neg",
        "hard_negatives",
        "negative_passages",
        "hard_negative_ctxs",
        "negative_ctxs",
        "rejected",
    ),
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
        "score",
        "scores",
        "label",
        "labels",
        "relevance",
        "relevant",
        "grade",
        "grades",
        "similarity",
        "is_duplicate",
        "gold_label",
        "similarity_score",
        "relatedness_score",
        "is_relevant",
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


def _as_word(label: object) -> object:
    """Return a label as a text: YAML reads 0 as a number and true as a truth."""
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, int | float):
        return f"{label:g}"
    return label


Label = Annotated[str, BeforeValidator(_as_word)]


@dataclass(frozen=True, kw_only=True)
class Roles(TableForm):
    """Name the column of every role. A role without a name takes a column of a usual name, and a
    column without a role is an error.

    A column of documents or negatives holds a text or a list of texts (also of Tevatron's objects
    docid, title, text) in each row. Every document is a pair of its own, with all negatives of the
    row.

    Args:
        query: column of the queries.
        doc: column of the documents that answer the query.
        negatives: columns of documents without an answer to the query. The number of negatives may
            differ from row to row, and an empty cell is no negative.
        query_id: column of ids, text or integer, to tell queries apart in place of their content.
        doc_id: column of ids of the documents, of lists where doc holds lists.
        negative_ids: column of ids of the negatives, in the order of the negatives.
        weight: column of the weight of each row in the loss.
        score: column of labels or of scores of the document; needs min_score or positive_labels.
            Where doc holds lists, the column holds lists, and texts below min_score are negatives.
        positive_scores: column of scores of the documents; used by negative_margin.
        negative_scores: column of scores of the negatives; used by negative_margin.
        prompt: column of instructions to put before the query of the row.
        metadata: columns without a role, of which nothing is learned; ["*"] names all others.
        keep: columns to keep with the documents, for search to return. None keeps every column
            without a role whose values have at most 200 letters, [] keeps none. Where a document
            stands in several rows, the first row with a value counts.
        min_score: least score of a pair; rows of a lower score are left out and counted.
        positive_labels: values of the score column for rows of pairs, for instance entailment; rows
            of further values are left out and counted.
        negative_margin: negatives are left out and counted if their score is above the best score
            of the row's documents less the margin.
        identical: treatment of a document that equals its query; drop leaves the document out and
            counts the pair.
        missing_text: treatment of a row whose query or document is missing or blank; drop leaves
            the row out and counts the row.
        query_prompt: put before every query of the source.
        doc_prompt: put before every document of the source.
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
    keep: tuple[str, ...] | None = None
    min_score: float | None = None
    positive_labels: tuple[Label, ...] | None = None
    negative_margin: Annotated[float, Field(ge=0)] | None = None
    identical: Literal["refuse", "drop", "keep"] = "drop"
    missing_text: Literal["refuse", "drop"] = "drop"
    query_prompt: str = ""
    doc_prompt: str = ""

    def role_columns(self, names: Sequence[str], where: str) -> Columns:
        """Return the columns of each role, by the names of a table's columns.

        Raises as `RoleTable.columns` does, and UnsaidScoreError for a column of scores if no option
        names the scores of pairs.
        """
        columns = TABLE.columns(self, names, where)
        if "score" in columns and not self.says_labels:
            name = columns["score"][0]
            raise UnsaidScoreError(
                f"{where}: column {name!r} holds scores or labels, and even the lowest would train as positives: give "
                f"data.min_score or data.positive_labels, or if all rows are pairs that belong together, data.metadata=[{name}]"
            )
        return columns

    @property
    def says_labels(self) -> bool:
        """Return True if the options name the scores or labels of pairs."""
        return self.min_score is not None or self.positive_labels is not None

    def without_usual_ids(self, names: Sequence[str]) -> Self:
        """Return roles without columns of ids, unless an option names the column: content tells
        texts apart. Columns without a role are not read either.

        >>> Roles(doc_id="url").without_usual_ids(["query", "doc", "qid", "url", "year"]).metadata
        ('qid', '*')
        """
        unread = list(self.metadata)
        for role in IDS:
            if getattr(self, role) is None:
                unread += TABLE.usual_columns(role, names)
        return replace(self, metadata=(*unread, "*"))


class UnsaidScoreError(DataError):
    """A table has scores or labels, and no option names the scores or labels of pairs."""


# Roles of tables that nothing is trained on: there, a query that is its own document is no fault,
# nor is a column without a role, of which nothing is kept.
UNTRAINED = Roles(identical="keep", metadata=("*",), keep=())
# Roles of columns of which no row may be left out.
WHOLE = Roles(identical="keep", missing_text="refuse")


def refuse_roles(path: object, roles: Roles | None) -> None:
    """Refuse options of roles beside a BEIR folder, where roles are not read."""
    if roles is not None:
        raise ConfigError(
            f"{path} is a BEIR folder, whose columns are fixed: remove the options data.ROLE"
        )
