"""Filters of documents or items: one scalar expression of DuckDB over the kept columns.

An expression may come from a stranger. DuckDB's own parser reads the expression, and every part has
to be on the lists below; a part that is on none of the lists is refused. DuckDB then evaluates the
same text without files, network, extensions and settings, in bounded memory and time.

Letters in shapes: c documents, p documents that pass.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import ConfigError, did_you_mean, one_line
from ..io.documents import parsed
from ..io.later import compute as pc
from ..io.require import require

LONGEST = 4_000  # letters of an expression
_DEPTH = 50  # of brackets, and of parts inside of parts
_SECONDS = 5.0  # in which an expression is evaluated
_MEMORY = "512MB"
_SHOWN = 200  # letters of DuckDB's message
_TABLE = "documents"
_BEFORE = "SELECT ("  # and then the expression

_CLASSES = {
    "BETWEEN",
    "CASE",
    "CAST",
    "COLUMN_REF",
    "COMPARISON",
    "CONJUNCTION",
    "CONSTANT",
    "FUNCTION",
    "OPERATOR",
    "TYPE",
}
_OPERATORS = {
    "ARRAY_EXTRACT",
    "COMPARE_IN",
    "COMPARE_NOT_IN",
    "OPERATOR_COALESCE",
    "OPERATOR_IS_NOT_NULL",
    "OPERATOR_IS_NULL",
    "OPERATOR_NOT",
    "STRUCT_EXTRACT",
}
# Functions of their arguments alone. Functions whose text may be many times as long as their
# arguments (repeat, replace, lpad, hex, format), slow functions (levenshtein), and functions of the
# clock, of chance, of settings or of files are missing.
# fmt: off
_FUNCTIONS = frozenset({
    # arithmetic and comparison
    "+", "-", "*", "/", "//", "%", "^", "**", "&", "|", "<<", ">>", "~", "@", "abs", "ceil",
    "ceiling", "even", "exp", "floor", "fmod", "greatest", "if", "isfinite", "isinf", "isnan",
    "least", "ln", "log", "log10", "log2", "mod", "nullif", "pow", "power", "round", "sign",
    "signbit", "sqrt", "trunc", "xor",
    # texts
    "||", "~~", "!~~", "~~*", "!~~*", "~~~", "^@", "char_length", "character_length", "contains",
    "ends_with", "ilike_escape", "instr", "lcase", "left", "len", "length", "like_escape", "lower",
    "ltrim", "not_ilike_escape", "not_like_escape", "position", "prefix", "regexp_extract",
    "regexp_full_match", "regexp_matches", "reverse", "right", "rtrim", "starts_with",
    "strip_accents", "strlen", "strpos", "substr", "substring", "suffix", "trim", "ucase", "upper",
    # times
    "date_diff", "date_part", "date_sub", "date_trunc", "datediff", "datepart", "datesub",
    "datetrunc", "day", "dayname", "dayofmonth", "dayofweek", "dayofyear", "decade", "epoch",
    "epoch_ms", "epoch_ns", "epoch_us", "hour", "isodow", "isoyear", "last_day", "make_date",
    "make_time", "make_timestamp", "microsecond", "millisecond", "minute", "month", "monthname",
    "quarter", "second", "strftime", "strptime", "to_days", "to_hours", "to_microseconds",
    "to_milliseconds", "to_minutes", "to_months", "to_quarters", "to_seconds", "to_weeks",
    "to_years", "try_strptime", "week", "weekday", "weekofyear", "year", "yearweek",
    # lists
    "&&", "@>", "<@", "array_contains", "array_extract", "array_has", "array_has_all",
    "array_has_any", "array_length", "array_position", "list_contains", "list_element",
    "list_extract", "list_has", "list_has_all", "list_has_any", "list_position", "list_value",
    "struct_extract",
})
_TYPES = frozenset({
    "BIGINT", "BOOL", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "HUGEINT", "INT", "INTEGER",
    "INTERVAL", "NUMERIC", "REAL", "SMALLINT", "TEXT", "TIME", "TIMESTAMP", "TIMESTAMP_MS",
    "TIMESTAMP_NS", "TIMESTAMP_S", "TINYINT", "UBIGINT", "UHUGEINT", "UINTEGER", "USMALLINT",
    "UTINYINT", "VARCHAR",
})
# fmt: on
# The words for parts that are refused, by class; other classes are named as DuckDB names them.
_REFUSED = {
    "COLLATE": "collation; compare by lower(...), or by strip_accents(...)",
    "LAMBDA": "lambda",
    "PARAMETER": "parameter; write the value",
    "POSITIONAL_REFERENCE": "number of a column; write the column's name",
    "STAR": "*; write the names of columns",
    "SUBQUERY": "subquery",
    "WINDOW": "window function",
}
# Settings of DuckDB for an expression of a stranger. The last one locks all of them.
_SETTINGS = (
    f"SET memory_limit = '{_MEMORY}'",
    f"SET max_expression_depth = {_DEPTH}",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def passing(columns: pa.Table, expression: str) -> NDArray[np.int64]:
    """Return the positions of the rows for which an expression is true, ascending, [p].

    A row for which the expression is null does not pass. Times with a time zone are compared in
    UTC.

    Args:
        columns: the kept columns, [c].
        expression: a boolean expression of DuckDB over the columns.

    Raises:
        ConfigError: no column is kept, or the expression is no such expression, names another
            column, or takes too long.
        MissingLibrary: DuckDB is not installed.

    >>> columns = pa.table({"lang": ["de", "en", "de", None], "year": [2023, 2024, 2025, 2026]})
    >>> passing(columns, "lang = 'de' and year >= 2024").tolist()
    [2]
    """
    _refuse_text(expression)
    if not columns.num_columns:
        raise ConfigError(
            "where is a filter of kept columns, and no column of the data is kept: train with "
            "data.keep=[NAME, ...]"
        )
    require("duckdb", "a filter of documents (where)")
    import duckdb

    statement = f"{_BEFORE}{expression}\n) FROM {_TABLE}"
    with duckdb.connect(":memory:", config={"threads": 1}) as database:
        for setting in _SETTINGS:
            database.execute(setting)
        with _as_one_line(duckdb), _interrupted(database):
            tree = _parsed(database, statement, expression)
            database.register(_TABLE, _read_columns(columns, tree))
            database.execute(statement)
            kind = str(database.description[0][1]).strip('"')
            if kind not in ("BOOLEAN", "BOOL", "bool"):
                raise ConfigError(
                    f"where is {kind}: {_quoted(expression)}; expected true or false for each document, "
                    "as of \"lang = 'de'\""
                )
            (truths,) = database.fetchnumpy().values()
    positions: NDArray[np.int64] = np.flatnonzero(np.ma.filled(truths, False)).astype(np.int64)
    return positions


def _refuse_text(expression: Any) -> None:
    """Raise ConfigError for an expression that is no text, is empty, or that a parser needs long to
    read."""
    if not isinstance(expression, str):
        raise ConfigError(f"where is {expression!r}; expected a text such as \"lang = 'de'\"")
    if not expression.strip():
        raise ConfigError("where is empty; expected an expression such as \"lang = 'de'\"")
    if len(expression) > LONGEST:
        raise ConfigError(
            f"where has {len(expression):,} letters; expected at most {LONGEST:,}: shorten it"
        )
    if "\0" in expression or any("\ud800" <= letter <= "\udfff" for letter in expression):
        raise ConfigError("where holds letters that are no text; expected an expression in Unicode")
    # The parser takes seconds and gigabytes for some thousand brackets that are never closed.
    depth = 0
    for letter in expression:
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if depth > _DEPTH:
            raise _too_deep()


def _too_deep() -> ConfigError:
    return ConfigError(
        f"where is nested too deeply; expected at most {_DEPTH} levels: several values are shorter as "
        "lang in ('de', 'en')"
    )


@contextmanager
def _as_one_line(duckdb: Any) -> Iterator[None]:
    """Raise ConfigError, in one line, where DuckDB refuses an expression or is interrupted."""
    try:
        yield
    except duckdb.InterruptException:
        raise ConfigError(
            f"where takes longer than {_SECONDS:g} seconds: give a simpler expression"
        ) from None
    except duckdb.OutOfMemoryException:
        raise ConfigError(
            f"where needs more than {_MEMORY} of memory: give a simpler expression"
        ) from None
    except duckdb.Error as error:
        if "expression depth" in str(error):
            raise _too_deep() from None
        raise ConfigError(f"where cannot be evaluated: {_first_line(error)}") from None


def _first_line(error: object) -> str:
    """Return the beginning of a message of DuckDB, without the kind of the error."""
    line = str(error).strip().split("\n")[0]
    _, colon, rest = line.partition(" Error: ")
    line = one_line(rest if colon else line).strip()
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


@contextmanager
def _interrupted(database: Any) -> Iterator[None]:
    """Interrupt the block's evaluation when the time is over."""
    timer = threading.Timer(_SECONDS, database.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be at work on the connection, which is closed next


def _parsed(database: Any, statement: str, expression: str) -> Mapping[str, Any]:
    """Return the tree of an expression by DuckDB's parser, with allowed parts only.

    Raises:
        ConfigError: the text is no expression, or has a part that is not allowed.
    """
    try:
        database.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement])
        ((text,),) = database.fetchall()
        document = parsed(text)
    except ValueError:
        raise _too_deep() from None
    if document["error"]:
        message = str(document.get("error_message", ""))
        if "expression depth" in message:
            raise _too_deep()
        raise ConfigError(f"where is no expression: {_syntax_error(document, message, expression)}")
    tree = _only_expression(document)
    if tree is None:
        raise ConfigError(
            f"where is one expression, such as \"lang = 'de'\", and no statement; {_quoted(expression)} was given"
        )
    for part in _parts(tree):
        _refuse_part(part)
    return tree


def _syntax_error(document: Mapping[str, Any], message: str, expression: str) -> str:
    """Return the message of a syntax error, in words for an expression without a statement around
    it."""
    position = str(document.get("position", ""))
    end = len(_BEFORE.encode()) + len(expression.encode())
    if position.isdigit() and int(position) >= end:
        return f"{_quoted(expression)} ends too early, or its brackets do not match"
    return f"{_first_line(message)} in {_quoted(expression)}"


def _only_expression(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the tree of the expression in a statement; None if the statement is another one than
    the one around the expression."""
    if len(document["statements"]) != 1:
        return None
    node = document["statements"][0]["node"]
    table = node.get("from_table") or {}
    is_alone = (
        node.get("type") == "SELECT_NODE"
        and table.get("type") == "BASE_TABLE"
        and table.get("table_name") == _TABLE
        and len(node["select_list"]) == 1
        and not (node.get("cte_map") or {}).get("map")
    )
    others = ("modifiers", "where_clause", "group_expressions", "group_sets", "having", "sample")
    if not is_alone or any(node.get(name) for name in (*others, "qualify")) or table.get("sample"):
        return None
    tree: Mapping[str, Any] = node["select_list"][0]
    return tree


def _parts(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every part of an expression."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            if "class" in value:
                yield value
            waiting.extend(value.values())


def _refuse_part(part: Mapping[str, Any]) -> None:
    """Raise ConfigError for a part of an expression that is on none of the lists."""
    kind = part["class"]
    if kind not in _CLASSES:
        what = _REFUSED.get(kind, str(kind).lower())
        raise ConfigError(f"where is a scalar expression and takes no {what}")
    if kind == "OPERATOR" and part["type"] not in _OPERATORS:
        raise ConfigError(f"where takes no operator {part['type'].lower()}")
    if kind == "FUNCTION":
        _refuse_function(part)
    if kind == "CAST":
        _refuse_cast(part)


def _refuse_function(part: Mapping[str, Any]) -> None:
    """Raise ConfigError for a function that is not on the list, or that is called as more than a
    scalar function."""
    name = str(part["function_name"]).lower()
    # Until DuckDB 2, the parser calls a list in brackets main.list_value(...).
    is_literal = name == "list_value" and part.get("schema") == "main"
    if (part.get("schema") and not is_literal) or part.get("catalog"):
        raise ConfigError(f"where calls functions without a prefix; write {name}(...)")
    if name not in _FUNCTIONS:
        known = sorted(each for each in _FUNCTIONS if each[0].isalpha())
        raise ConfigError(f"where takes no function {name!r}.{did_you_mean(name, known)}")
    orders = (part.get("order_bys") or {}).get("orders")
    if part.get("distinct") or part.get("filter") or part.get("export_state") or orders:
        raise ConfigError(f"where takes scalar functions only; write {name}(...) alone")
    if name == "list_value":
        _refuse_list(part)


def _refuse_list(part: Mapping[str, Any]) -> None:
    """Raise ConfigError for a list of other parts than values: a text of lists in lists would be
    twice as long with each level."""
    for each in _parts(part):
        if each is not part and each["class"] not in ("CAST", "CONSTANT", "TYPE"):
            raise ConfigError("where takes lists of plain values, such as ['a', 'b']")


def _refuse_cast(part: Mapping[str, Any]) -> None:
    """Raise ConfigError for a cast to another type than a plain one."""
    # A type is a part of its own since DuckDB 2, and was an object with an id before.
    kind = part.get("type_expr")
    if kind is None:
        kind = {"type_name": part["cast_type"]["id"]}
    name = str(kind["type_name"]).upper()
    if name not in _TYPES or kind.get("schema") or kind.get("catalog"):
        raise ConfigError(
            f"where casts to plain types such as INTEGER, DOUBLE, VARCHAR and DATE, not to {name}"
        )


def _read_columns(columns: pa.Table, tree: Any) -> pa.Table:
    """Return the columns that an expression names, as DuckDB finds them.

    DuckDB takes no notice of case; a column whose name is written exactly comes first.

    Raises:
        ConfigError: no such column, or two columns that DuckDB cannot tell apart.
    """
    taken: dict[str, str] = {}
    for part in _parts(tree):
        if part["class"] != "COLUMN_REF":
            continue
        word = part["column_names"][0]
        name = _column(columns.column_names, word)
        if taken.setdefault(word.lower(), name) != name:
            raise ConfigError(
                f"where names the columns {taken[word.lower()]!r} and {name!r}, which differ by case alone: "
                "name one of them"
            )
    if not taken:  # an expression of constants: the number of rows counts
        return pa.table({"_": pa.nulls(len(columns), pa.bool_())})
    return pa.table({name: _plain(columns[name]) for name in sorted(set(taken.values()))})


def _column(names: list[str], word: str) -> str:
    """Return the kept column that a word names."""
    if word in names:
        return word
    alike = [name for name in names if name.lower() == word.lower()]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise ConfigError(
            f"where: {word!r} may be {' or '.join(map(repr, alike))}; write the name exactly"
        )
    known = ", ".join(names[:20])
    raise ConfigError(
        f"where: no kept column {word!r}; kept are {known}.{did_you_mean(word, names)} A text stands in "
        "single quotes, as in lang = 'de'"
    )


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose times have no time zone, for which DuckDB needs an extension."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return pc.cast(column, pa.timestamp(column.type.unit))
    return column


def _quoted(expression: str) -> str:
    """Return the beginning of an expression, for a message."""
    text = one_line(expression.strip())
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
