"""Roles of the columns of a table of texts, proposed from what the columns are called and what they
hold: the one place where they are guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DataError
from ...io.console import logger
from ...tables.arrow_types import is_list, is_text
from ...tables.columns import plain
from ...tables.profile import ColumnProfile, TableProfile, profile
from ...tables.proposal import NOT_READ, Decision
from .labels import is_description, is_scale_of_labels
from .roles import IDS, TABLE
from .unfolded import FIRST, REST, SPEAKERS, Unfolding

_SAMPLE = 2_000  # rows that tell what a column holds
_WORDS = 3  # of the median text of a column that is known by its texts
# Names that tell a role where no column has a usual one, the most telling first. A name is the last
# step of a path, or its first one.
_FURTHER: dict[str, tuple[str, ...]] = {
    "query": (
        *("user_query", "search_query", "query_text", "prompt", "instruction", "user", "claim"),
        *("docstring", "input"),
    ),
    "doc": (
        *("completion", "chosen", "response", "output", "assistant", "passage_text"),
        *("passages", "docs", "documents", "evidence", "code", "reply"),
    ),
}
_SPEAKS = {"query": "user", "doc": "assistant"}  # in a chat
_DIVIDED = ("instruction", "input")  # columns that ask together
_FURTHER_LABELS = ("is_selected",)
_NUMBERED = re.compile(r"column(\d+)")  # of files without a line of names
_DIGIT = re.compile(r"\d")
BY_NAME, OPTION = "by its name", "an option"
BY_TEXTS, BY_PLACE = "by its texts", "by its place"
TOGETHER, GRADED = "texts that belong together", "few values, or grades"


@dataclass(frozen=True)
class ProposedRoles:
    """Hold options of `Roles` that a table proposes, and the reason for each.

    Args:
        options: columns by role, and values of other options.
        reasons: by role.
        of_table: what the columns hold.
    """

    options: dict[str, Any]
    reasons: dict[str, str]
    of_table: TableProfile = field(repr=False)

    def decisions(
        self,
        columns: Mapping[str, tuple[str, ...]],
        names: Sequence[str],
        options: Mapping[str, Any],
    ) -> list[Decision]:
        """Return a decision for each column of a table.

        Args:
            columns: of each role.
            names: of all columns.
            options: that the user has given.
        """
        role_of = {name: role for role, of_role in columns.items() for name in of_role}
        heads = {name.partition(".")[0] for name in role_of if name.partition(".")[0] in names}
        decisions = []
        for name in names:
            if name in heads and name not in role_of:
                continue  # told by what is read of it
            role = role_of.get(name)
            if role is None:
                decisions.append(Decision(name, NOT_READ, self._held(name)))
            elif options.get(role):
                decisions.append(Decision(name, role, OPTION))
            else:
                decisions.append(Decision(name, role, self.reasons.get(role, BY_NAME)))
        return decisions

    def _held(self, name: str) -> str:
        """Return a description of what a column holds."""
        column = self.of_table.columns.get(name)
        if column is None or column.rows == column.blanks:
            return "holds nothing"
        if "constant" in column.kinds:
            return f"holds {column.values[0]} alone"
        for kind, what in _HELD.items():
            if kind in column.kinds:
                return what.format(", ".join(sorted(column.values)))
        return ""


_HELD = {
    "label": "holds {}",
    "time": "holds times",
    "url": "holds links",
    "id": "holds ids",
    "list": "holds lists",
    "rating": "holds numbers",
    "number": "holds numbers",
    "text": "holds texts",
}


def unfolding_of(rows: pa.Table, options: Mapping[str, Any], guessed: bool) -> Unfolding:
    """Return how the columns of a table are divided before roles are proposed: paths that options
    name and, where a query or a document has no column by its name, all that lie inside of others.

    Args:
        rows: the first ones.
        options: of `Roles` that are given.
        guessed: whether roles are proposed that no option names.
    """
    named = TABLE.chosen(options)
    is_open = guessed and not TABLE.suits(options, rows.column_names)
    return Unfolding.of(rows, named, options.get("query"), TABLE.usual["query"], is_open)


def proposed_roles(
    rows: pa.Table, options: Mapping[str, Any], where: str = "data", *, by_names: bool = False
) -> ProposedRoles:
    """Return the roles that the first rows of a table propose beside those that options name.

    A role has the column that options name, else one of a usual name, of a further name, or that
    holds texts: of as many columns of texts as roles are open, the first holds queries, unless its
    texts are twice as long. A file of columns without names has its query, its document and its
    negatives in this order. Lists of texts hold a query and the documents that belong with it.
    Beside a pair, a column of few different values or of grades is its score.

    Args:
        rows: the first ones.
        options: of `Roles` that are given.
        where: the name of the table in messages.
        by_names: whether names alone tell a role.

    >>> rows = pa.table({"id": ["a"], "heading": ["Reading a file"], "section": ["Open it, and read it line by line."]})
    >>> proposed_roles(rows, {}).options
    {'query': 'heading', 'doc': 'section'}
    >>> proposed_roles(rows, {"query": "id"}).options
    {}
    """
    rows = rows.slice(0, _SAMPLE)
    of_table = profile(rows, where)
    table = _Columns(of_table, options)
    proposal: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for role in table.open_roles():
        name = table.further(role, taken=list(proposal.values()))
        if name is not None:
            proposal[role], reasons[role] = name, BY_NAME
    missing = [role for role in table.open_roles() if role not in proposal]
    if missing and not by_names:
        for propose in (table.in_order, table.listed, table.by_texts):
            columns = propose(missing, list(proposal.values()))
            if columns:
                proposal |= columns
                reasons |= dict.fromkeys(columns, _REASONS.get(propose.__name__, BY_TEXTS))
                break
    table.refuse_divided(proposal, where)
    rejected = [name for name in table.free if _is_rejected(name)]
    if rejected and not options.get("negatives"):
        proposal["negatives"], reasons["negatives"] = rejected, BY_NAME
    pair = {**_pair(options, of_table, proposal)}
    if len(pair) == 2:
        scores = table.score(rows, pair)
        reasons |= dict.fromkeys(scores, GRADED)
        proposal |= scores
    return ProposedRoles(proposal, reasons, of_table)


_REASONS = {"in_order": BY_PLACE, "listed": TOGETHER}


def _pair(
    options: Mapping[str, Any], of_table: TableProfile, proposal: Mapping[str, Any]
) -> dict[str, str]:
    """Return the columns of the query and the document, as far as they are known."""
    pair = {}
    for role in TABLE.needed:
        usual = TABLE.usual_columns(role, list(of_table.columns))
        name = options.get(role) or proposal.get(role) or (usual[0] if usual else None)
        if name is not None:
            pair[role] = name
    return pair


class _Columns:
    """The columns of a table that options leave open."""

    def __init__(self, of_table: TableProfile, options: Mapping[str, Any]) -> None:
        self.options = options
        self.names = list(of_table.columns)
        roles = (*TABLE.usual, "metadata")
        named = {
            name
            for option in roles
            for name in named_columns(options.get(option))
            if option != "metadata" or name != "*"
        }
        self.of_table = of_table
        self.free = {name: column for name, column in of_table.columns.items() if name not in named}

    def open_roles(self) -> list[str]:
        """Return the roles of a pair without a column that is named or has a usual name."""
        names = list(self.free)
        return [
            role
            for role in TABLE.needed
            if not (self.options.get(role) or TABLE.usual_columns(role, names))
        ]

    def further(self, role: str, taken: Sequence[str]) -> str | None:
        """Return the column of texts whose name is further usual for a role; a usual name may be a
        step of its path."""
        usual = (*TABLE.usual[role], *_FURTHER[role])
        for word in usual:
            for name, column in self.free.items():
                steps = name.split(".")
                if steps[-1] in SPEAKERS and steps[-1] != _SPEAKS[role]:
                    continue
                called = plain(word) in (plain(steps[-1]), plain(steps[0]))
                is_free = name not in taken and (len(steps) > 1 or not _is_used(name))
                if called and is_free and _holds_texts(column):
                    return name
        return None

    def refuse_divided(self, proposal: Mapping[str, Any], where: str) -> None:
        """Refuse to take a part of a question for the whole one."""
        part, other = _DIVIDED
        column = self.free.get(other)
        if proposal.get("query") != part or column is None or _is_used(other):
            return
        if 10 * (column.rows - column.blanks) > column.rows:
            raise DataError(
                f"{where}: {part!r} and {other!r} ask together: write both as one column, or give data.query={part} "
                f"data.metadata=[{other}] to leave {other!r} out"
            )

    def in_order(self, missing: Sequence[str], taken: Sequence[str]) -> dict[str, Any]:
        """Return the roles of columns without names, in their order."""
        if not all(map(_NUMBERED.fullmatch, self.names)) or len(missing) < 2 or taken:
            return {}
        texts = [
            name
            for name, column in self.free.items()
            if _holds_texts(column) and not _are_codes(column)
        ]
        if len(texts) < 2 or texts != self.names[: len(texts)]:
            return {}
        first, second, *others = texts
        negatives = {"negatives": others} if others and not self.options.get("negatives") else {}
        return {"query": first, "doc": second, **negatives}

    def listed(self, missing: Sequence[str], taken: Sequence[str]) -> dict[str, Any]:
        """Return the first text of the only column of lists as the query, and the others as its
        documents, where no other column holds texts."""
        heads = [name for name in self.free if f"{name}.{FIRST}" in self.free and "." not in name]
        besides = [
            name
            for name, column in self.free.items()
            if "." not in name
            and name not in heads
            and (is_list(column.type) or (is_text(column.type) and "text" in column.kinds))
        ]
        if len(missing) < 2 or taken or len(heads) != 1 or besides:
            return {}
        return {"query": f"{heads[0]}.{FIRST}", "doc": f"{heads[0]}.{REST}"}

    def by_texts(self, missing: Sequence[str], taken: Sequence[str]) -> dict[str, Any]:
        """Return columns of texts of some words for as many roles; the longer texts answer."""
        if self.of_table.headless:
            return {}
        usual = {
            name
            for role in TABLE.usual
            for name in TABLE.usual_columns(role, list(self.free))
            if role not in missing
        }
        words = {
            name: column.words
            for name, column in self.free.items()
            if name not in usual
            and name not in taken
            and is_text(column.type)
            and not name.endswith(f".{FIRST}")  # of a list, whose other texts would be lost
        }
        texts = [name for name, median in words.items() if median >= _WORDS]
        if len(texts) != len(missing):
            return {}
        if len(texts) == 2 and words[texts[0]] > 2 * words[texts[1]]:
            texts.reverse()
        return dict(zip(missing, texts, strict=True))

    def score(self, rows: pa.Table, pair: Mapping[str, str]) -> dict[str, Any]:
        """Return the column that says which rows or texts belong together; nothing without one."""
        if self.options.get("score"):
            return {}
        free = {name: column for name, column in self.free.items() if name not in pair.values()}
        if pair["doc"] in rows.column_names and is_list(rows[pair["doc"]].type):
            for name in free:
                if _labels_of(rows, pair["doc"], name) and _is_label_name(name):
                    within = {str(value) for value in _flat(rows[name])} <= {*"01", "True", "False"}
                    least = {"min_score": 1.0} if within and not _has_bound(self.options) else {}
                    return {"score": name, **least}
        if TABLE.usual_columns("score", list(free)):
            return {}  # by its name
        for name, column in free.items():
            if is_scale_of_labels(column) and not is_description(column):
                return {"score": name}
        return {}


def log_proposed(about: str) -> None:
    """Log the table of decisions of data that nothing is trained on, if it has more than usual
    names and options."""
    if any(reason in about for reason in (BY_TEXTS, BY_PLACE, TOGETHER, GRADED)):
        logger.info(about)


def refuse_ids_alone(of_table: TableProfile, where: str) -> None:
    """Refuse a table that holds ids or numbers of queries and documents, and no texts."""
    columns = of_table.columns
    if columns and not any(_may_hold_texts(column) for column in columns.values()):
        names = ", ".join(columns)
        raise DataError(
            f"{where} holds ids or numbers alone, in {names}: texts are needed; give a table with the texts in place of their "
            "ids, or a folder that holds them as tables called corpus, queries and qrels (a line of query-id, corpus-id, score)"
        )


def _may_hold_texts(column: ColumnProfile) -> bool:
    """Return whether some values of a column are texts of several words, or records that have
    texts."""
    kind = column.type
    if is_list(kind) and is_text(kind.value_type):
        return column.words > 1
    if pa.types.is_nested(kind):
        return _has_texts(kind)
    if not is_text(kind) or column.scale is not None or column.time_forms:
        return False
    named = any(TABLE.usual_columns(role, [column.name]) for role in IDS)
    numbered = all(map(_DIGIT.search, column.values))  # q1, FT911-3
    return "text" in column.kinds or not (named or numbered or "boolean" in column.kinds)


def _has_texts(kind: pa.DataType) -> bool:
    """Return whether there are texts inside of lists and records."""
    if pa.types.is_struct(kind):
        return any(_has_texts(field.type) for field in kind)
    return _has_texts(kind.value_type) if is_list(kind) else is_text(kind)


def _holds_texts(column: ColumnProfile) -> bool:
    """Return whether a column holds texts or lists of them: some words, or any word that is no
    number, no time and no link."""
    kind = column.type
    if is_list(kind):
        inner = kind.value_type
        if pa.types.is_struct(inner):
            return "text" in [each.name for each in inner]
        return is_text(inner)
    if not is_text(kind) or column.kinds & {"time", "url", "boolean"}:
        return False
    values = column.rows - column.blanks
    return column.scale is None and (column.distinct > 1 or values == 1)


def _are_codes(column: ColumnProfile) -> bool:
    """Return whether a column holds single words with digits, as ids of users and products are."""
    return column.words <= 1 and bool(column.values) and all(map(_DIGIT.search, column.values))


def _is_used(name: str) -> bool:
    """Return whether the name of a column is usual for a role that takes no text of a pair."""
    return any(TABLE.usual_columns(role, [name]) for role in (*IDS, "weight", "score"))


def _is_rejected(name: str) -> bool:
    """Return whether a column holds the answers of chats that are negatives."""
    head, _, leaf = name.partition(".")
    return leaf == _SPEAKS["doc"] and bool(TABLE.usual_columns("negatives", [head]))


def _is_label_name(name: str) -> bool:
    leaf = name.split(".")[-1]
    usual = {plain(word) for word in (*TABLE.usual["score"], *_FURTHER_LABELS)}
    return plain(leaf) in usual


def _labels_of(rows: pa.Table, doc: str, name: str) -> bool:
    """Return whether a column holds a number for each text of a column of lists."""
    column = rows[name]
    if not is_list(column.type):
        return False
    inner = column.type.value_type
    if not (
        pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)
    ):
        return False
    counts = [pc.fill_null(pc.list_value_length(each), 0) for each in (rows[doc], column)]
    return bool(pc.all(pc.equal(counts[0].cast(pa.int64()), counts[1].cast(pa.int64()))).as_py())


def _flat(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = pc.unique(pc.list_flatten(column)).to_pylist()
    return values


def _has_bound(options: Mapping[str, Any]) -> bool:
    return options.get("min_score") is not None or bool(options.get("positive_labels"))


def named_columns(value: Any) -> Sequence[str]:
    """Return the columns that an option of a role names."""
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (str(value),)
