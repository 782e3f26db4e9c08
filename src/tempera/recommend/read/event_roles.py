"""Roles of the columns of interactions: by usual names, and by what the columns hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DataError
from ...tables.columns import Columns, RoleTable, plain
from ...tables.profile import ColumnProfile, TableProfile, profile
from ...tables.proposal import NOT_READ, Decision

# Usual names of the columns, without case and signs. user and item every table has.
USUAL: dict[str, tuple[str, ...]] = {
    "user": (
        *("user", "userid", "useridx", "uid", "username", "customer", "customerid", "visitorid"),
        *("reviewerid", "memberid", "accountid", "steamid", "session", "sessionid", "playlistid"),
    ),
    "item": (
        *("item", "itemid", "itemidx", "iid", "movie", "movieid", "product", "productid"),
        *("article", "articleid", "asin", "parentasin", "book", "bookid", "isbn"),
        *("track", "trackid", "trackuri", "song", "songid", "aid", "business", "businessid"),
        *("newsid", "gameid", "appid", "videoid", "animeid", "recipeid", "venueid", "poiid"),
        *("locationid", "gmapid", "skuid"),
        *("items", "itemids", "itemlist", "itemidlist", "sequence"),
    ),
    "time": (
        *("time", "timestamp", "datetime", "date", "ts", "unixreviewtime", "eventtime"),
        *("eventtimestamp", "createdat", "unixtime", "unixtimestamp"),
    ),
    "position": ("position", "order", "pos", "addtocartorder"),
    "weight": ("weight", "weights"),
    "rating": ("rating", "ratings", "stars", "score", "overall", "bookrating"),
    # such a column says what a row's user did, which is for the user of the package to name
    "behaviour": (),
}
TABLE = RoleTable(USUAL, ("user", "item"))

# One product under several ids: the general one is read.
_GENERAL = {"parentasin": "asin"}
_DISLIKES = frozenset(
    {
        *("no", "n", "false", "dislike", "disliked", "down", "thumbs_down", "thumbs down"),
        *("negative", "irrelevant", "not relevant", "bad", "skip", "skipped"),
    }
)
_GOOD = 0.8  # share of a scale's highest grade from which a row is taken
_OWNERS = 10  # users or items with several rows, that tell whose attribute a column is
_WIDEST = 60  # letters of an example
_SHOWN = 6  # values that a message names


def proposed(rows: pa.Table, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the options that a table of interactions is read with, besides those that are given.

    Columns without a role are not read. But a column of few values, which may be a label, and a
    column of dates where no other holds the times, are for the user to decide.

    Args:
        rows: the first of the table, one for each item.
        options: of the section `data` that are given.
        where: the name of the table in messages.

    Raises:
        DataError: a column of ratings, labels, behaviours or dates of which the options say
            nothing.

    >>> rows = pa.table({"user_id": [1, 1, 2], "asin": [7, 8, 7], "parent_asin": [7, 7, 7], "brand": ["x", "y", "x"]})
    >>> proposed(rows, {}, "log.csv")
    {'metadata': ['asin', '*']}
    """
    metadata = [*options.get("metadata", ())]
    if "*" in metadata:
        return {}
    names = rows.column_names
    metadata += [name for name in names if _is_special(name, names, options)]
    roles = _roles(names, {**options, "metadata": metadata})
    rating = roles.get("rating")
    of_table = profile(rows, where)
    usual = [
        name for role in USUAL if role != "rating" for name in TABLE.usual_columns(role, names)
    ]
    besides = {*roles.values(), *usual, *metadata, *options.get("context", ())}
    candidates = [
        name for name in of_table.could_be("label", "rating", "boolean") if name not in besides
    ]
    candidates = [name for name in candidates if not _belongs(rows, name, roles)]
    rating_option = dict[str, Any]()
    grades = options.get("min_rating") is not None or isinstance(
        options.get("dislikes"), int | float
    )
    if rating is not None and not grades:
        if of_table.columns[rating].distinct > 1:
            _ask_rating(rows, of_table.columns[rating], where)
        metadata.append(rating)  # one grade for all rows says nothing of any
    elif rating is None and grades:
        numbers = [
            name for name in candidates if of_table.columns[name].kinds & {"rating", "boolean"}
        ]
        if len(numbers) == 1:
            rating_option["rating"] = numbers[0]
    elif rating is None and "behaviour" not in roles and candidates:
        _ask_label(of_table, rows, candidates, where)
    if "time" not in roles and "position" not in roles and options.get("ordered") is not False:
        times = [name for name in of_table.could_be("time") if name not in besides]
        times = [
            name for name in times if not _belongs(rows, name, {"item": roles.get("item", "")})
        ]
        if times:
            _ask_time(of_table, times, where)
    return {**rating_option, "metadata": [*dict.fromkeys(metadata), "*"]}


def decided(
    of_table: TableProfile, columns: Columns, names: Sequence[str], made: Mapping[str, str]
) -> list[Decision]:
    """Return the role of every column, and the reason.

    Args:
        of_table: the first rows.
        columns: of each role.
        names: of all columns; some may stand in later files only.
        made: reasons of columns that the table does not have itself.
    """
    role_of = {name: role for role, of_role in columns.items() for name in of_role}
    decisions = []
    for name in names:
        role = role_of.get(name, NOT_READ)
        column = of_table.columns.get(name)
        if name in made or column is None:
            reason = made.get(name, "in some of the files")
        elif role == NOT_READ:
            reason = _holds(column)
        else:
            how = "by its name" if plain(name) in USUAL.get(role, ()) else f"by data.{role}"
            holds = _example(column) if role in TABLE.needed else _holds(column)
            reason = f"{how}; {holds}"
        decisions.append(Decision(name, role, reason))
    return decisions


def _holds(column: ColumnProfile) -> str:
    """Return a few words on what a column holds."""
    if column.distinct == 1:
        return f"always {column.values[0]}"
    if column.time_form is not None and "time" in column.kinds:
        return f"times ({column.time_form})"
    if column.kinds & {"label", "boolean"}:
        return _listed(column)
    if column.scale is not None and not column.kinds & {"id"}:
        return "{:g} to {:g}".format(*column.scale)
    return _example(column)


def _example(column: ColumnProfile) -> str:
    if not column.values:
        return "empty"
    value = column.values[0]
    return f"such as {value if len(value) <= _WIDEST else value[: _WIDEST - 3] + '...'}"


def _roles(names: Sequence[str], options: Mapping[str, Any]) -> dict[str, str]:
    """Return the column of each role that an option or a usual name gives, without those of
    metadata."""
    free = [name for name in names if name not in options["metadata"]]
    roles = {}
    for role in USUAL:
        usual = [options[role]] if options.get(role) else TABLE.usual_columns(role, free)
        if usual:
            roles[role] = usual[0]
    return roles


def _is_special(name: str, names: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Return whether a column has ids of variants of the items that another column has."""
    generals = [general for general, special in _GENERAL.items() if special == plain(name)]
    return options.get("item") is None and any(plain(each) in generals for each in names)


def _belongs(rows: pa.Table, name: str, roles: Mapping[str, str]) -> bool:
    """Return whether a column is an attribute of users or items: all rows of one have one value."""
    for role in ("user", "item"):
        owner = roles.get(role)
        if owner is None or owner not in rows.column_names or pa.types.is_nested(rows[name].type):
            continue
        pairs = pa.table({"owner": rows[owner], "value": rows[name].cast(pa.large_string())})
        counts = pairs.group_by("owner").aggregate(
            [("value", "count"), ("value", "count_distinct")]
        )
        several = counts.filter(pc.greater(counts["value_count"], 1))
        if len(several) < _OWNERS:
            continue
        if pc.mean(pc.equal(several["value_count_distinct"], 1)).as_py() > 0.95:
            return True
    return False


def _ask_rating(rows: pa.Table, column: ColumnProfile, where: str) -> NoReturn:
    """Ask for the use of a column of ratings."""
    name = column.name
    zeros = dict(column.frequent).get("0", 0) / max(1, column.rows)
    unset = ""
    if zeros > 0.3 and column.scale is not None and column.scale[1] >= 5:
        unset = f"; {zeros:.0%} of them are 0, which may mean that there is no rating"
    raise DataError(
        f"{where}: column {name!r} holds ratings ({_range(column)}), and low ones would train as positives, too{unset}: "
        f"add {_least(rows, column)}, data.metadata=[{name}] to take all rows, or data.weight={name} to count rows by "
        "their rating"
    )


def _ask_label(
    of_table: TableProfile, rows: pa.Table, names: Sequence[str], where: str
) -> NoReturn:
    """Ask for the use of a column that may be a label or tell what users did."""
    column = of_table.columns[min(names, key=lambda name: _likeness(of_table.columns[name]))]
    name, ways = column.name, []
    if column.kinds & {"rating", "boolean"}:
        ways.append(f"data.rating={name} {_least(rows, column)}")
    if "boolean" not in column.kinds:
        disliked = [value for value in column.values if value.lower() in _DISLIKES]
        if disliked:
            ways.append(
                f"data.behaviour={name} data.dislikes=[{','.join(disliked)}] if it says what users like"
            )
        ways.append(f"data.behaviour={name} if it says what users did")
    if column.scale is None and "boolean" not in column.kinds:
        ways.append(f"data.context=[{name}] if it says what that happened in")
    ways.append(f"data.metadata=[{','.join(names)}] to take every row, whatever it holds")
    raise DataError(
        f"{where}: column {name!r} holds {_listed(column)}, and all of these rows would train as taken items: give "
        f"{', '.join(ways[:-1])}, or {ways[-1]}"
    )


def _ask_time(of_table: TableProfile, names: Sequence[str], where: str) -> NoReturn:
    """Ask whether a column of dates holds the times."""
    column = of_table.columns[names[0]]
    choices = " or ".join(f"data.time={name}" for name in names)
    raise DataError(
        f"{where}: column {column.name!r} holds times, such as {column.values[0]}, and no column is read as the time, so that "
        f"events would be in the order of the rows: give {choices}, or data.metadata=[{','.join(names)}] if they are in order"
    )


_HINTS = ("label", "rating", "event", "behavio", "action", "type", "like", "click", "thumb")


def _likeness(column: ColumnProfile) -> int:
    """Return the place among words that a label's name holds, last without one."""
    return next((i for i, word in enumerate(_HINTS) if word in plain(column.name)), len(_HINTS))


def _least(rows: pa.Table, column: ColumnProfile) -> str:
    """Return the option that takes the rows of high grades, with a value that suits the scale."""
    least = good_grade(rows[column.name], column)
    return f"data.min_rating={least:g} to take those of {least:g} and more"


def good_grade(values: pa.ChunkedArray, column: ColumnProfile) -> float:
    """Return the grade from which the rows of a scale are taken: 1 of 0 and 1, 4 of 1 to 5, 8 of 1
    to 10, and the median of fractions."""
    if column.scale is None:
        return 1.0  # true and false
    highest = column.scale[1]
    numbers = values.cast(pa.large_string()).drop_null().cast(pa.float64())
    if (
        column.distinct > 2 * _SHOWN
        and not pc.all(pc.equal(pc.multiply(numbers, 2), pc.round(pc.multiply(numbers, 2)))).as_py()
    ):
        return float(f"{np.median(numbers.to_numpy()):.2g}")
    if highest < 1:
        return highest
    least = math.ceil(_GOOD * highest)
    if least <= highest:
        return least
    return float(f"{_GOOD * highest:.2g}")  # of fractions whose highest lies below the next whole


def _range(column: ColumnProfile) -> str:
    if column.scale is None:
        return _listed(column)
    return "{:g} to {:g}".format(*column.scale)


def _listed(column: ColumnProfile) -> str:
    """Return the values of a column, the most frequent ones first."""
    shown = column.values[:_SHOWN]
    if column.scale is not None:
        shown.sort(key=float)
    more = ", ..." if column.distinct > len(shown) else ""
    return ", ".join(shown) + more
