"""Roles of columns, by name and never by position."""

# Annotations are evaluated here: options are read from the signatures of subclasses in other
# modules.

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field

from ...errors import ConfigError, DataError
from ...tables.columns import Columns, RoleTable
from ...tables.table_form import TableForm

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
    *("sentence2", "text2", "positive_passages", "positive_ctxs"),
)
# And of those that a table may have. A negatives column may be one of several, negative_1 ...
# negative_n.
USUAL: dict[str, tuple[str, ...]] = {
    "query": QUERY_NAMES,
    "doc": DOC_NAMES,
    "negatives": (
        *("negatives", "negative", "neg", "hard_negatives", "negative_passages"),
        *("hard_negative_ctxs", "negative_ctxs", "rejected"),
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
        *("is_duplicate", "gold_label", "similarity_score", "relatedness_score", "is_relevant"),
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
    """Return a label as a text: YAML reads 0 and true as a number and a truth."""
    if isinstance(label, bool):
        return str(label).lower()
    return f"{label:g}" if isinstance(label, int | float) else label


Label = Annotated[str, BeforeValidator(_as_word)]


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
        score: column of labels, or of how well the document answers; needs min_score or
            positive_labels. Where doc holds lists, a list, and texts below min_score are negatives.
        positive_scores: column of scores of the documents; used by negative_margin.
        negative_scores: likewise of the negatives.
        prompt: column of instructions to put before the row's query.
        metadata: columns that are not read; ["*"] is all without a role.
        min_score: rows of a lower score are left out, and counted.
        positive_labels: values of the score column, such as entailment, whose rows are pairs; rows
            of others are left out, and counted.
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
    positive_labels: tuple[Label, ...] | None = None
    negative_margin: Annotated[float, Field(ge=0)] | None = None
    identical: Literal["refuse", "drop", "keep"] = "drop"
    missing_text: Literal["refuse", "drop"] = "drop"
    query_prompt: str = ""
    doc_prompt: str = ""

    def role_columns(self, names: Sequence[str], where: str) -> Columns:
        """Return the columns of every role that a table with these columns has; raises as
        `RoleTable.columns` does."""
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
        """Return whether options say which scores or labels are those of pairs."""
        return self.min_score is not None or self.positive_labels is not None

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


# Of tables that nothing is trained on: there, a query that is its own document is no fault, nor is
# a column without a role.
UNTRAINED = Roles(identical="keep", metadata=("*",))
WHOLE = Roles(identical="keep", missing_text="refuse")  # of columns of which no row may be left out


def refuse_roles(path: object, roles: Roles | None) -> None:
    """Refuse options that would not be read."""
    if roles is not None:
        raise ConfigError(
            f"{path} is a BEIR folder, whose columns are fixed: remove the options data.ROLE"
        )
