"""Roles of the columns of interactions: by usual names, and by the values of the columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError
from ..tables.columns import Columns, RoleTable, plain
from ..tables.profile import ColumnProfile, TableProfile, profile
from ..tables.proposal import NOT_READ, Decision

# Usual names of the columns, without case and signs. user and item every table has.
USUAL: dict[str, tuple[str, ...]] = {
    "user": (
        "user",
        "userid",
        "useridx",
        "uid",
        "username",
        "customer",
        "customerid",
        "visitorid",
        "reviewerid",
        "memberid",
        "accountid",
        "steamid",
        "session",
        "sessionid",
        "playlistid",
    ),
    "item": (
        "item",
        "itemid",
        "itemidx",
        "iid",
        "movie",
        "movieid",
        "product",
        "productid",
        "article",
        "articleid",
        "asin",
        "parentasin",
        "book",
        "bookid",
        "isbn",
        "track",
        "trackid",
        "trackuri",
        "song",
        "songid",
        "aid",
        "business",
        "businessid",
        "newsid",
        "gameid",
        "appid",
        "videoid",
        "animeid",
        "recipeid",
        "venueid",
        "poiid",
        "locationid",
        "gmapid",
        "skuid",
        "items",
        "itemids",
        "itemlist",
        "itemidlist",
        "sequence",
    ),
    "time": (
        "time",
        "timestamp",
        "datetime",
        "date",
        "ts",
        "unixreviewtime",
        "eventtime",
        "eventtimestamp",
        "createdat",
        "unixtime",
        "unixtimestamp",
    ),
    "position": ("position", "order", "pos", "addtocartorder"),
    "weight": ("weight", "weights"),
    "rating": ("rating", "ratings", "stars", "score", "overall", "bookrating"),
    # A column of users' actions has no usual name: the option has to name it.
    "behaviour": (),
}
TABLE = RoleTable(USUAL, ("user", "item"))

# One product may have several ids: the column of the general id is read, not the special one.
_GENERAL = {"parentasin": "asin"}
_DISLIKES = (
    "no",
    "n",
    "false",
    "dislike",
    "disliked",
    "down",
    "thumbs_down",
    "thumbs down",
    "negative",
    "irrelevant",
    "not relevant",
    "bad",
    "skip",
    "skipped",
)
_GOOD = 0.8  # share of a scale's highest grade from which a row is taken
_OWNERS = 10  # fewest users or items with several rows, to tell whose attribute a column is
_WIDEST = 60  # most letters of an example
_SHOWN = 6  # values that a message names


def proposed(rows: pa.Table, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the further options for reading a table of interactions.

    Columns without a role are not read. But the user has to decide on a column of few values, which
    may be a label, and on a column of dates if no column is read as the time.

    Args:
        rows: the first rows of the table, a row for each item.
        options: the user's options of the section `data`.
        where: the name of the table in messages.

    Raises:
        DataError: a column of ratings, labels, behaviours or dates without an option.

    >>> rows = pa.table({"user_id": [1, 1, 2], "asin": [7, 8, 7], "parent_asin": [7, 7, 7], "brand": ["x", "y", "x"]})
    >>> proposed(rows, {}, "log.csv")
    {'metadata': ['asin', '*']}
    """
    metadata = list(options.get("metadata", ()))
    if "*" in metadata:
        return {}
    names = rows.column_names
    metadata += [name for name in names if _is_special(name, names, options)]
    roles = _roles(names, options, metadata)
    rating = roles.get("rating")
    of_table = profile(rows, where)
    known = {*roles.values(), *metadata, *options.get("context", ())}
    for role in USUAL:
        if role != "rating":
            known.update(TABLE.usual_columns(role, names))
    candidates = list[str]()
    for name in of_table.could_be("label", "rating", "boolean"):
        if name not in known and not _is_attribute(rows, name, roles):
            candidates.append(name)
    further: dict[str, Any] = {}
    reads_ratings = options.get("min_rating") is not None
    reads_ratings |= isinstance(options.get("dislikes"), int | float)
    if rating is not None and not reads_ratings:
        if of_table.columns[rating].distinct > 1:
            _ask_rating(rows, of_table.columns[rating], where)
        metadata.append(rating)  # one grade for all rows says nothing of any
    elif rating is None and reads_ratings:
        numbers = of_table.could_be("rating", "boolean")
        ratings = [name for name in candidates if name in numbers]
        if len(ratings) == 1:
            further["rating"] = ratings[0]
    elif rating is None and "behaviour" not in roles and candidates:
        _ask_label(of_table, rows, candidates, where)
    if "time" not in roles and "position" not in roles and options.get("ordered") is not False:
        of_item = {"item": roles.get("item", "")}
        times = list[str]()
        for name in of_table.could_be("time"):
            if name not in known and not _is_attribute(rows, name, of_item):
                times.append(name)
        if times:
            _ask_time(of_table, times, where)
    further["metadata"] = [*dict.fromkeys(metadata), "*"]
    return further


def decided(
    of_table: TableProfile, columns: Columns, names: Sequence[str], made: Mapping[str, str]
) -> list[Decision]:
    """Return the role of every column, and the reason.

    Args:
        of_table: the profile of the first rows.
        columns: the columns of each role.
        names: the names of all columns; some columns may stand in later files only.
        made: reasons of the columns made of the table, by name.
    """
    role_of: dict[str, str] = {}
    for role, of_role in columns.items():
        role_of |= dict.fromkeys(of_role, role)
    decisions = []
    for name in names:
        role = role_of.get(name, NOT_READ)
        column = of_table.columns.get(name)
        if name in made:
            reason = made[name]
        elif column is None:
            reason = "in some of the files"
        elif role == NOT_READ:
            reason = _contents(column)
        else:
            chosen = "by its name" if plain(name) in USUAL.get(role, ()) else f"by data.{role}"
            contents = _example(column) if role in TABLE.needed else _contents(column)
            reason = f"{chosen}; {contents}"
        decisions.append(Decision(name, role, reason))
    return decisions


def _contents(column: ColumnProfile) -> str:
    """Return a few words on the values of a column."""
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
    if len(value) > _WIDEST:
        value = value[: _WIDEST - 3] + "..."
    return f"such as {value}"


def _roles(
    names: Sequence[str], options: Mapping[str, Any], metadata: Sequence[str]
) -> dict[str, str]:
    """Return the column of each role, by an option, or by a usual name outside of metadata."""
    free = [name for name in names if name not in metadata]
    roles = {}
    for role in USUAL:
        usual = TABLE.usual_columns(role, free)
        if options.get(role):
            roles[role] = options[role]
        elif usual:
            roles[role] = usual[0]
    return roles


def _is_special(name: str, names: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Return True if a column has ids of variants of the items whose ids a further column has."""
    if options.get("item") is not None:
        return False
    generals = [general for general, special in _GENERAL.items() if special == plain(name)]
    return any(plain(each) in generals for each in names)


def _is_attribute(rows: pa.Table, name: str, roles: Mapping[str, str]) -> bool:
    """Return True if a column is an attribute of users or items: all rows of a user or of an item
    have one value."""
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
    column = of_table.columns[min(names, key=_hint_rank)]
    name = column.name
    ways = []
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


# Words in the names of labels, the clearest first.
_HINTS = ("label", "rating", "event", "behavio", "action", "type", "like", "click", "thumb")


def _hint_rank(name: str) -> int:
    """Return the position of the first hint in the name of a column; names without a hint rank
    last."""
    for rank, word in enumerate(_HINTS):
        if word in plain(name):
            return rank
    return len(_HINTS)


def _least(rows: pa.Table, column: ColumnProfile) -> str:
    """Return the option for rows of high grades, with a value to suit the scale."""
    least = good_grade(rows[column.name], column)
    return f"data.min_rating={least:g} to take those of {least:g} and more"


def good_grade(values: pa.ChunkedArray, column: ColumnProfile) -> float:
    """Return the least grade of rows to take: 1 of 0 and 1, 4 of 1 to 5, 8 of 1 to 10, and the
    median of fractions."""
    if column.scale is None:
        return 1.0  # true and false
    _, highest = column.scale
    numbers = values.cast(pa.large_string()).drop_null().cast(pa.float64())
    doubled = pc.multiply(numbers, 2)
    in_halves = pc.all(pc.equal(doubled, pc.round(doubled))).as_py()
    if column.distinct > 2 * _SHOWN and not in_halves:
        return float(f"{np.median(numbers.to_numpy()):.2g}")
    if highest < 1:
        return highest
    least = math.ceil(_GOOD * highest)
    if least <= highest:
        return least
    # Fractions, the highest of which lies below the next whole number.
    return float(f"{_GOOD * highest:.2g}")


def _range(column: ColumnProfile) -> str:
    if column.scale is None:
        return _listed(column)
    return "{:g} to {:g}".format(*column.scale)


def _listed(column: ColumnProfile) -> str:
    """Return the values of a column, the most frequent first; numbers are sorted."""
    shown = column.values[:_SHOWN]
    if column.scale is not None:
        shown.sort(key=float)
    more = ", ..." if column.distinct > len(shown) else ""
    return ", ".join(shown) + more
