"""Roles of the columns of a table of texts, proposed from the names and the values of the columns.
Roles are guessed nowhere else."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError
from ..io.console import logger
from ..tables.arrow_types import is_list, is_text
from ..tables.columns import plain
from ..tables.profile import ColumnProfile, TableProfile, profile
from ..tables.proposal import KEPT, NOT_READ, Decision
from .labels import is_description, is_scale_of_labels
from .roles import IDS, TABLE
from .unfolded import FIRST, REST, SPEAKERS, Unfolding

_SAMPLE = 2_000  # first rows, of which the profile is made
_WORDS = 3  # least words of the median text of a column that is known by its texts
# Names that tell a role where no column has a usual name, the most telling first. Either the last
# or the first step of a path may have the name.
_FURTHER: dict[str, tuple[str, ...]] = {
    "query": (
        "user_query",
        "search_query",
        "query_text",
        "prompt",
        "instruction",
        "user",
        "claim",
        "docstring",
        "input",
    ),
    "doc": (
        "completion",
        "chosen",
        "response",
        "output",
        "assistant",
        "passage_text",
        "passages",
        "docs",
        "documents",
        "evidence",
        "code",
        "reply",
    ),
}
_SPEAKS = {"query": "user", "doc": "assistant"}  # in a chat
_DIVIDED = ("instruction", "input")  # columns that ask together
_FURTHER_LABELS = ("is_selected",)
_NUMBERED = re.compile(r"column(\d+)")  # of files without a line of names
_DIGIT = re.compile(r"\d")
# Reasons of decisions.
BY_NAME = "by its name"
OPTION = "an option"
BY_TEXTS = "by its texts"
BY_PLACE = "by its place"
TOGETHER = "texts that belong together"
GRADED = "few values, or grades"


@dataclass(frozen=True)
class ProposedRoles:
    """Hold options of `Roles` by the content of a table, and the reason for each role.

    Args:
        options: columns by role, and values of further options.
        reasons: by role.
        of_table: the profile of the table.
    """

    options: dict[str, Any]
    reasons: dict[str, str]
    of_table: TableProfile = field(repr=False)

    def decisions(
        self,
        columns: Mapping[str, tuple[str, ...]],
        names: Sequence[str],
        options: Mapping[str, Any],
        kept: Collection[str] = (),
        left_out: Mapping[str, str] = MappingProxyType({}),
    ) -> list[Decision]:
        """Return a decision for each column of a table.

        Args:
            columns: the columns of each role.
            names: the names of all columns.
            options: the options of the user.
            kept: columns that are kept with the documents.
            left_out: reasons for which columns are not kept.
        """
        role_of: dict[str, str] = {}
        for role, of_role in columns.items():
            role_of |= dict.fromkeys(of_role, role)
        heads = {name.partition(".")[0] for name in role_of}
        decisions = []
        for name in names:
            if name in heads and name not in role_of:
                continue  # its parts that are read have decisions of their own
            if name not in role_of:
                role = KEPT if name in kept else NOT_READ
                contents = self._contents(name)
                if name in left_out:
                    contents = f"{contents}, {left_out[name]}".removeprefix(", ")
                decisions.append(Decision(name, role, contents))
                continue
            role = role_of[name]
            reason = OPTION if options.get(role) else self.reasons.get(role, BY_NAME)
            decisions.append(Decision(name, role, reason))
        return decisions

    def _contents(self, name: str) -> str:
        """Return a description of the values of a column."""
        column = self.of_table.columns.get(name)
        if column is None or column.rows == column.blanks:
            return "holds nothing"
        if "constant" in column.kinds:
            return f"holds {column.values[0]} alone"
        for kind, description in _DESCRIPTIONS.items():
            if kind in column.kinds:
                return description.format(", ".join(sorted(column.values)))
        return ""


_DESCRIPTIONS = {
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
    """Return the unfolding of nested columns before roles are proposed.

    The unfolding opens the paths named by options and, where no column has a usual name of the
    query or the document, all paths.

    Args:
        rows: the first rows.
        options: options of `Roles` that the user has set.
        guessed: True to propose roles without an option.
    """
    named = TABLE.chosen(options)
    is_open = guessed and not TABLE.suits(options, rows.column_names)
    return Unfolding.of(rows, named, options.get("query"), TABLE.usual["query"], is_open)


def proposed_roles(
    rows: pa.Table, options: Mapping[str, Any], where: str = "data", *, by_names: bool = False
) -> ProposedRoles:
    """Return the roles by the first rows of a table, beside the roles of options.

    A role has the column of its option, or else a column of a usual name, of a further name, or of
    texts. If as many columns of texts are left as roles, the first column holds queries, unless the
    texts of the first column are twice as long. In a file of columns without names the order is
    query, document, negatives. A list of texts holds a query and its documents. Beside a pair, a
    column of few different values or of grades is the score of the pair.

    Args:
        rows: the first rows.
        options: options of `Roles` that the user has set.
        where: the name of the table in messages.
        by_names: True if names alone tell a role.

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
            proposal[role] = name
            reasons[role] = BY_NAME
    missing = [role for role in table.open_roles() if role not in proposal]
    if missing and not by_names:
        columns, reason = table.by_values(missing, list(proposal.values()))
        proposal |= columns
        reasons |= dict.fromkeys(columns, reason)
    table.refuse_divided(proposal, where)
    rejected = [name for name in table.free if _is_rejected(name)]
    if rejected and not options.get("negatives"):
        proposal["negatives"] = rejected
        reasons["negatives"] = BY_NAME
    pair = _pair(options, of_table, proposal)
    if len(pair) == len(TABLE.needed):
        scores = table.score(rows, pair)
        proposal |= scores
        reasons |= dict.fromkeys(scores, GRADED)
    return ProposedRoles(proposal, reasons, of_table)


def _pair(
    options: Mapping[str, Any], of_table: TableProfile, proposal: Mapping[str, Any]
) -> dict[str, str]:
    """Return the columns of the query and the document, as far as known."""
    pair = {}
    for role in TABLE.needed:
        usual = TABLE.usual_columns(role, list(of_table.columns))
        if options.get(role):
            pair[role] = options[role]
        elif proposal.get(role):
            pair[role] = proposal[role]
        elif usual:
            pair[role] = usual[0]
    return pair


class _Columns:
    """The columns of a table without a role by options."""

    def __init__(self, of_table: TableProfile, options: Mapping[str, Any]) -> None:
        self.options = options
        self.names = list(of_table.columns)
        self.of_table = of_table
        taken = {name for name in named_columns(options.get("metadata")) if name != "*"}
        for role in TABLE.usual:
            taken.update(named_columns(options.get(role)))
        self.free = {name: column for name, column in of_table.columns.items() if name not in taken}

    def open_roles(self) -> list[str]:
        """Return the roles of a pair without a column by an option or a usual name."""
        return [role for role in TABLE.needed if not TABLE.has(role, self.options, list(self.free))]

    def further(self, role: str, taken: Sequence[str]) -> str | None:
        """Return the column of texts that has a usual or further name of a role; the name may be a
        step of the path."""
        for word in (*TABLE.usual[role], *_FURTHER[role]):
            for name, column in self.free.items():
                steps = name.split(".")
                if steps[-1] in SPEAKERS and steps[-1] != _SPEAKS[role]:
                    continue
                if plain(word) not in (plain(steps[-1]), plain(steps[0])):
                    continue
                is_free = name not in taken and (len(steps) > 1 or not _is_used(name))
                if is_free and _holds_texts(column):
                    return name
        return None

    def refuse_divided(self, proposal: Mapping[str, Any], where: str) -> None:
        """Refuse to take a part of a question for the whole question."""
        part, other = _DIVIDED
        column = self.free.get(other)
        if proposal.get("query") != part or column is None or _is_used(other):
            return
        if 10 * (column.rows - column.blanks) > column.rows:
            raise DataError(
                f"{where}: {part!r} and {other!r} ask together: write both as one column, or give data.query={part} "
                f"data.metadata=[{other}] to leave {other!r} out"
            )

    def by_values(self, missing: Sequence[str], taken: Sequence[str]) -> tuple[dict[str, Any], str]:
        """Return columns for roles without a name, by values, and the reason; no column if nothing
        fits.

        Args:
            missing: roles without a column.
            taken: columns with a role by their names.
        """
        if len(missing) == len(TABLE.needed) and not taken:
            columns = self._in_order()
            if columns:
                return columns, BY_PLACE
            columns = self._of_a_list()
            if columns:
                return columns, TOGETHER
        return self._by_texts(missing, taken), BY_TEXTS

    def _in_order(self) -> dict[str, Any]:
        """Return the roles of columns without names, in their order."""
        if not all(map(_NUMBERED.fullmatch, self.names)):
            return {}
        texts = []
        for name, column in self.free.items():
            if _holds_texts(column) and not _are_codes(column):
                texts.append(name)
        if len(texts) < 2 or texts != self.names[: len(texts)]:
            return {}
        roles: dict[str, Any] = {"query": texts[0], "doc": texts[1]}
        if len(texts) > 2 and not self.options.get("negatives"):
            roles["negatives"] = texts[2:]
        return roles

    def _of_a_list(self) -> dict[str, Any]:
        """Return the first text of the only column of lists as the query, and the further texts as
        its documents, if no further column holds texts."""
        heads = []
        for name, column in self.free.items():
            if "." in name:
                continue
            if f"{name}.{FIRST}" in self.free:
                heads.append(name)
            elif is_list(column.type) or (is_text(column.type) and "text" in column.kinds):
                return {}
        if len(heads) != 1:
            return {}
        return {"query": f"{heads[0]}.{FIRST}", "doc": f"{heads[0]}.{REST}"}

    def _by_texts(self, missing: Sequence[str], taken: Sequence[str]) -> dict[str, Any]:
        """Return columns of texts of some words for as many roles; the longer texts answer."""
        if self.of_table.headless:
            return {}
        used = set(taken)
        for role in TABLE.usual:
            if role not in missing:
                used.update(TABLE.usual_columns(role, list(self.free)))
        texts = []
        for name, column in self.free.items():
            # The first texts of lists are passed over: the further texts would be lost.
            if name in used or not is_text(column.type) or name.endswith(f".{FIRST}"):
                continue
            if column.words >= _WORDS:
                texts.append(name)
        if len(texts) != len(missing):
            return {}
        if len(texts) == 2 and self.free[texts[0]].words > 2 * self.free[texts[1]].words:
            texts.reverse()
        return dict(zip(missing, texts, strict=True))

    def score(self, rows: pa.Table, pair: Mapping[str, str]) -> dict[str, Any]:
        """Return the column of scores or labels of a pair, with the least score if the values tell
        a least score; nothing without a column."""
        if self.options.get("score"):
            return {}
        free = {name: column for name, column in self.free.items() if name not in pair.values()}
        doc = pair["doc"]
        if doc in rows.column_names and is_list(rows[doc].type):
            for name in free:
                if not (_labels_of(rows, doc, name) and _is_label_name(name)):
                    continue
                labels = {
                    str(value) for value in pc.unique(pc.list_flatten(rows[name])).to_pylist()
                }
                if labels <= {"0", "1", "True", "False"} and not _has_bound(self.options):
                    return {"score": name, "min_score": 1.0}
                return {"score": name}
        if TABLE.usual_columns("score", list(free)):
            return {}  # the name gives the column its role
        for name, column in free.items():
            if is_scale_of_labels(column) and not is_description(column):
                return {"score": name}
        return {}


def log_proposed(about: str) -> None:
    """Log the table of decisions of data without training, if a decision rests on more than usual
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
    """Return True if some values of a column are texts of several words, or records with texts."""
    kind = column.type
    if is_list(kind) and is_text(kind.value_type):
        return column.words > 1
    if pa.types.is_nested(kind):
        return _has_texts(kind)
    if not is_text(kind) or column.scale is not None or column.time_forms:
        return False
    if "text" in column.kinds:
        return True
    named = any(TABLE.usual_columns(role, [column.name]) for role in IDS)
    numbered = all(map(_DIGIT.search, column.values))  # q1, FT911-3
    return not (named or numbered or "boolean" in column.kinds)


def _has_texts(kind: pa.DataType) -> bool:
    """Return True if a type is of texts, or of lists or records with texts inside."""
    if pa.types.is_struct(kind):
        return any(_has_texts(field.type) for field in kind)
    if is_list(kind):
        return _has_texts(kind.value_type)
    return is_text(kind)


def _holds_texts(column: ColumnProfile) -> bool:
    """Return True if a column holds texts or lists of texts: some words, or any word but a number,
    a time or a link."""
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
    """Return True if a column holds single words with digits, as ids of users and products are."""
    return column.words <= 1 and bool(column.values) and all(map(_DIGIT.search, column.values))


def _is_used(name: str) -> bool:
    """Return True if the name of a column is usual for a role without texts of a pair."""
    return any(TABLE.usual_columns(role, [name]) for role in (*IDS, "weight", "score"))


def _is_rejected(name: str) -> bool:
    """Return True if a column holds rejected answers of chats."""
    head, _, leaf = name.partition(".")
    return leaf == _SPEAKS["doc"] and bool(TABLE.usual_columns("negatives", [head]))


def _is_label_name(name: str) -> bool:
    leaf = name.split(".")[-1]
    return bool(TABLE.usual_columns("score", [leaf])) or plain(leaf) in map(plain, _FURTHER_LABELS)


def _labels_of(rows: pa.Table, doc: str, name: str) -> bool:
    """Return True if a column holds a number for each text of a column of lists."""
    column = rows[name]
    if not is_list(column.type):
        return False
    inner = column.type.value_type
    is_number = pa.types.is_integer(inner) or pa.types.is_floating(inner)
    if not (is_number or pa.types.is_boolean(inner)):
        return False
    texts = pc.fill_null(pc.list_value_length(rows[doc]), 0).cast(pa.int64())
    numbers = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64())
    return bool(pc.all(pc.equal(texts, numbers)).as_py())


def _has_bound(options: Mapping[str, Any]) -> bool:
    """Return True if options name the scores or labels of pairs."""
    return options.get("min_score") is not None or bool(options.get("positive_labels"))


def named_columns(value: Any) -> Sequence[str]:
    """Return the columns of an option for a role."""
    if value is None:
        return ()
    if isinstance(value, list | tuple):
        return value
    return (str(value),)
