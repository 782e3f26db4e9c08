"""The form of the data at a path: pairs, interactions, a BEIR folder, texts or Python sources."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from ..errors import DataError
from ..io.atomic import is_run
from ..tables.columns import headless
from ..tables.nested import with_paths
from ..tables.profile import ColumnProfile, TableProfile, profile
from ..tables.saved_sets import PART_NAMES, splits
from ..tables.separated import is_adjacency, is_separated
from ..tables.streams import data_sets, stream
from ..tables.table_form import table_form
from ..tables.tables import FEW, TableBlock, blocks, ending, files_of, is_table, visible_files
from .event_folder import folder_options
from .event_roles import TABLE as EVENTS
from .event_roles import proposed
from .proposed_roles import named_columns, proposed_roles, refuse_ids_alone, unfolding_of
from .roles import IDS, Roles
from .roles import TABLE as PAIRS
from .sessions import Sessions
from .set_files import are_judgements, first_text, is_beir, split_names
from .text_endings import is_text_file
from .unnamed_columns import event_names, is_scale, is_unnamed, refuse_no_events, refuse_prize

_SHOWN = 200  # letters of a row in a message
_CALLED = {"query": "queries", "doc": "documents that answer"}
_SHARD = re.compile(r"\d{5}-of-\d{5}|\d+")  # the number of a shard in the name of its file


def with_source(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a `data:` section for a path, where `options` names no source.

    A folder is a BEIR set or a set of `save_to_disk`, by the names of its files. Any other folder
    has the form of most of its files: tables, texts or Python sources. A table holds pairs or
    interactions, by the names of its columns. Tables of users and items may lie beside a table of
    interactions. Columns without a role are not read, and neither are ids of texts unless an
    option names them. Where names tell no form, two columns of texts with some words are a pair.

    Args:
        path: the file or folder.
        options: the given options of the section, for instance the names of columns.

    Raises:
        DataError: nothing to read, or a table whose columns tell no form.
    """
    detected = _detected(path, options)
    result = {**detected, **options}
    if options.get("in_shards") and result["source"] != "pairs":
        raise DataError(
            f"{path} is read as {result['source']}, and only pairs of texts are trained from shards: remove data.in_shards"
        )
    metadata = options.get("metadata")
    if "metadata" in detected and isinstance(metadata, list | tuple):
        result["metadata"] = list(dict.fromkeys([*metadata, *detected["metadata"]]))
    return result


def source_of(data: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a `data:` section for a Python object.

    The names of the columns tell interactions from pairs, unless `options` names the source. An
    object without names of columns holds pairs.

    >>> import pyarrow as pa
    >>> source_of(pa.table({"user_id": [1], "item_id": [7]}), {})
    {'source': 'interactions', 'metadata': ['*']}
    """
    result = dict(options)
    if "source" in options:
        if options["source"] != "interactions":
            result["source"] = "given"
        return result
    rows = _rows_of(data, options)
    names = [str(name) for name in rows.column_names]
    if PAIRS.suits(options, names) or not EVENTS.suits(options, names):
        result["source"] = "given"
        result["metadata"] = _unread_columns(options, names)
    else:
        result["source"] = "interactions"
        result.update(proposed(rows, options, "data"))
    return result


def _rows_of(data: Any, options: Mapping[str, Any]) -> pa.Table:
    """Return the first rows of an object, with a row for each event.

    An object that can be read only once gives the names of its columns, and no rows.
    """
    data = next(iter(data_sets(data).values()), data)
    if isinstance(data, Sized) and not isinstance(data, Mapping):
        with suppress(DataError):  # which reading reports, by what it expected
            return _by_event(next(stream(data)), options)
    names = getattr(data, "column_names", getattr(data, "columns", ())) or ()
    return pa.table({str(name): pa.nulls(0) for name in names})


def _detected(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a path and its files determine."""
    place = Path(path)
    if is_run(place):
        raise DataError(
            f"{path} is a run, not data: give data, or {place / 'config.yaml'} to train with its options again"
        )
    if is_beir(place):
        determined: dict[str, Any] = {"source": "beir", "path": path}
        if "split" not in options:
            parts = _parts(path, split_names(place), "data.split=SPLIT")
            determined.update(_with_train_as("split", parts))
        return determined
    saved = splits(place)
    if saved:
        parts = _parts(path, [folder.name for folder in saved], f"data.path={place / 'SPLIT'}")
        paths = {part: str(place / name) for part, name in parts.items()}
        return _with_train_as("path", paths) | _of_table(paths["train"], options)
    for file in sorted(visible_files(place))[:FEW] if place.is_dir() else [place]:
        refuse_prize(file)
    form = _form(place)
    if form is None:
        raise DataError(
            f"{path} holds no file to read: give a folder of tables, such as .csv, .jsonl or .parquet, of texts (.txt, .md) "
            "or of Python sources; set data.source=documents data.rule=heading to read other files of text as documents"
        )
    if form == "python":
        return {"source": "installed_python", "roots": [path]}
    if form == "table" and place.is_dir():
        tables = _interactions(place, options) or _split_pairs(path, options)
        if tables:
            return tables
    _refuse_trec(place)
    if form == "texts":
        return {"path": path, "source": "text_files"}
    return {"path": path} | _of_table(path, options)


def _refuse_trec(path: Path) -> None:
    """Refuse topics, documents and judgements in the forms of TREC, which look like texts."""
    files = list(visible_files(path)) if path.is_dir() else [path]
    plain = [file for file in files if not (is_table(file) or _is_read_me(file))]
    for file in sorted(plain)[:FEW]:
        start = first_text(file).strip().lower()
        if start.startswith(("<top>", "<doc>")):
            content = "topics or documents"
        elif are_judgements(file):
            content = "judgements"
        else:
            continue
        raise DataError(
            f"{file} holds {content} of TREC: give a folder of tables called corpus (of _id, title, text), queries (of _id, text) "
            "and qrels (which may be of TREC), for instance as corpus.jsonl, queries.jsonl and qrels.txt"
        )


def _is_read_me(file: Path) -> bool:
    return file.name.lower().startswith("readme")


def _form(path: Path) -> str | None:
    """Return the form of a file, or of most files in a folder, apart from read-me files."""
    if not path.is_dir():
        is_text = is_text_file(path) and not is_separated(path)
        return "texts" if is_text else "table"
    files = [file for file in visible_files(path) if not _is_read_me(file)]
    counts = Counter[str]()
    for file in files:
        if file.suffix == ".py":
            counts["python"] += 1
        if is_text_file(file):
            counts["texts"] += 1
        if is_table(file):
            counts["table"] += 1
    if not counts["table"] and 0 < len(files) <= FEW:
        separated = sum(map(is_separated, files))
        if 2 * separated >= len(files):
            return "table"
    return max(counts, key=counts.__getitem__, default=None)


def _parts(path: str, names: Sequence[str], remedy: str) -> dict[str, str]:
    """Return the splits of a data set for train, validation and test; a single split is train."""
    parts = dict[str, str]()
    for part, usual in PART_NAMES.items():
        named = [name for name in usual if name in names]
        if named:
            parts[part] = named[0]
    if len(names) == 1:
        parts = {"train": names[0]}
    if names and "train" not in parts:
        raise DataError(
            f"{path} has the splits {', '.join(names)}, none of which is called train: give {remedy}"
        )
    return parts


def _split_pairs(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for tables of pairs in files named for splits, or none."""
    files = _split_files(Path(path))
    if not files:
        return {}
    parts = _parts(path, list(files), f"data.path={path}/FILE")
    of_table = _of_table(files[parts["train"]], options)
    if of_table["source"] != "pairs":
        return {}
    paths = {part: files[name] for part, name in parts.items()}
    return _with_train_as("path", paths) | of_table


def _split_files(folder: Path) -> dict[str, str]:
    """Return the files of each split of a table, as one path for a split.

    The files, or their folders, are named for the splits; if fewer than two splits are named,
    there are none.

    Raises:
        DataError: files of a split that one path cannot name, or a file beside them that is named
            for no split.
    """
    splits = defaultdict[str, list[Path]](list)
    without_split = list[Path]()
    for file in files_of(folder):
        word = _split_word(file.relative_to(folder))
        if word is None:
            without_split.append(file)
        else:
            splits[word].append(file)
    if len(splits) < 2:
        return {}
    if without_split:
        beside = without_split[0].relative_to(folder)
        train = splits["train"][0] if "train" in splits else folder / "FILE"
        raise DataError(
            f"{folder} has files of the splits {', '.join(splits)}, and {beside}, whose name tells none: "
            f"give data.path={train} with data.validation and data.test, or move it elsewhere"
        )
    return {word: _one_path(folder, files) for word, files in splits.items()}


def _split_word(file: Path) -> str | None:
    """Return the word for a split in the name of a file or of its folders, inner folders first."""
    for name in reversed(file.parts):
        for word in re.split(r"[^a-z]+", name.lower()):
            if any(word in usual for usual in PART_NAMES.values()):
                return word
    return None


def _one_path(folder: Path, files: Sequence[Path]) -> str:
    """Return a path for all files of a split.

    The path is the only file, or the name of shards with * for their numbers, or the folder of
    the split.
    """
    if len(files) == 1:
        return str(files[0])
    patterns = set[str]()
    for file in files:
        name = re.sub(r"\*.*\*", "*", _SHARD.sub("*", file.name))
        patterns.add(str(file.parent / name))
    pattern = patterns.pop()
    if not patterns and files_of(Path(pattern)) == sorted(files):
        return pattern
    homes = {file.relative_to(folder).parts[0] for file in files}
    home = folder / homes.pop()
    if homes or not home.is_dir() or files_of(home) != sorted(files):
        names = ", ".join(str(file.relative_to(folder)) for file in files)
        raise DataError(
            f"{folder}: the files {names} are of one split, and no "
            "common name tells them: put the files of each split in a folder of its own"
        )
    return str(home)


def _interactions(folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for a table of interactions, or its parts, beside tables of features.

    A folder with a table of pairs, or without a table of interactions, has none.
    """
    tables = {file: _named_rows(file, options) for file in files_of(folder)}
    if any(PAIRS.suits(options, rows.column_names) for rows in tables.values()):
        return {}
    files = folder_options(tables, options, folder)
    if not files:
        return {}
    determined: dict[str, Any] = dict(files)
    if "test" in files and is_adjacency(Path(files["path"])):
        # A user's items without an order, as in the files of graph models, which ask for many at once.
        determined["ordered"] = False
    return determined | _of_table(files["path"], options)


def _named_rows(path: Path, options: Mapping[str, Any]) -> pa.Table:
    """Return the first rows of a table, with names for unnamed columns of clear roles."""
    rows = _first_rows(path, options)
    names = event_names(rows, str(path)) if is_unnamed(rows.column_names) else None
    return rows if names is None else rows.rename_columns(list(names))


def _first_rows(path: Path, options: Mapping[str, Any]) -> pa.Table:
    for block in blocks(path, table_form(options)):
        if len(block.table):
            return _by_event(block, options)
    return pa.table({})


def _by_event(block: TableBlock, options: Mapping[str, Any]) -> pa.Table:
    """Return a row of a block for each event, with the nested columns that options name."""
    named = [*EVENTS.chosen(options), *PAIRS.chosen(options)]
    return Sessions(EVENTS, options).flat(with_paths(block, named)).table


def _without_names(path: str, rows: pa.Table) -> str:
    """Return a message on a table without names: its first row, and likely names of columns."""
    columns = profile(rows, path).columns
    texts = [name for name, column in columns.items() if "text" in column.kinds]
    timed = any("time" in column.kinds for column in columns.values())
    if len(texts) > 1 and not timed:  # events may have titles
        names = _names_of_pairs(columns)
    else:
        names = _names_of_events(columns)
    first = ", ".join(str(column[0].as_py() or "") for column in rows.columns)
    return (
        f"{path} has no line of names, and begins with the row {first[:_SHOWN]}: name its columns in their order, "
        f"such as data.columns=[{','.join(names)}]"
    )


def _names_of_pairs(columns: Mapping[str, ColumnProfile]) -> list[str]:
    """Return likely names for the columns of pairs of texts."""
    free = iter(("query", "doc", "negative"))
    names = list[str]()
    for number, column in enumerate(columns.values(), 1):
        name = next(free, "") if "text" in column.kinds else ""
        names.append(name or f"other{number}")
    return names


def _names_of_events(columns: Mapping[str, ColumnProfile]) -> list[str]:
    """Return likely names for the columns of interactions."""
    free = iter(("user", "item"))
    names = list[str]()
    for number, column in enumerate(columns.values(), 1):
        name = ""
        if "time" in column.kinds and "time" not in names:
            name = "time"
        elif is_scale(column) and {"user", "item"} <= {*names} and "rating" not in names:
            name = "rating"
        elif "id" in column.kinds and "constant" not in column.kinds:
            name = next(free, "")
        names.append(name or f"other{number}")
    return names


def _pair_profile(
    path: str, rows: pa.Table, options: Mapping[str, Any]
) -> tuple[TableProfile, bool]:
    """Return the profile of a table, and True if its columns hold pairs of texts.

    In a table with a column of users or items, only names tell the columns of a pair.
    """
    table = unfolding_of(rows, options, guessed=True)(TableBlock(rows, path)).table
    events = any(EVENTS.has(role, options, rows.column_names) for role in EVENTS.needed)
    proposal = proposed_roles(table, options, path, by_names=events)
    return proposal.of_table, PAIRS.suits({**options, **proposal.options}, table.column_names)


def _unread_columns(options: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the columns without a role: named by `metadata`, unnamed ids, and all others."""
    ids = dict[str, Any]()
    for role in IDS:
        if options.get(role):
            ids[role] = options[role]
    unnamed = Roles(**ids).without_usual_ids(names).metadata
    return list(dict.fromkeys([*named_columns(options.get("metadata")), *unnamed]))


def _with_train_as(option: str, parts: Mapping[str, str]) -> dict[str, Any]:
    """Return the parts of a data set by their options; the option of train has its own name."""
    return {option if part == "train" else part: name for part, name in parts.items()}


def _of_table(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a table determines by the names and values of its columns."""
    rows = _first_rows(Path(path), options)
    names = rows.column_names
    if is_unnamed(names) and not EVENTS.suits(options, names):
        columns = event_names(rows, path)
        if columns is not None:
            roles = proposed(rows.rename_columns(list(columns)), options, path)
            return {"source": "interactions", "columns": [*columns], **roles}
    are_events = EVENTS.suits(options, names) and not PAIRS.suits(options, names)
    of_table, are_pairs = _pair_profile(path, rows, options)
    if are_events:
        return {"source": "interactions", **proposed(rows, options, path)}
    if are_pairs:  # texts are told apart by their content
        metadata = _unread_columns({**options, "metadata": None}, names)
        return {"source": "pairs", "metadata": metadata}
    if not names:
        raise DataError(f"{path} holds rows without columns: give each row its values by name")
    half = [role for role in EVENTS.needed if EVENTS.has(role, options, names)]
    if half and not any(PAIRS.has(role, options, names) for role in PAIRS.needed):
        _refuse_half(path, half[0], names)
    if is_unnamed(names) and len(names) > 1 and not ending(Path(path)).startswith(".json"):
        refuse_no_events(rows, path)
        raise DataError(_without_names(path, rows))
    refuse_ids_alone(of_table, path)
    raise DataError(_without_form(path, options, names))


def _without_form(path: str, options: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return a message on a table without usual names of pairs or of interactions."""
    missing = list[str]()
    for role, name in _CALLED.items():
        if not (options.get(role) or PAIRS.usual_columns(role, names)):
            missing.append(name)
    inside = ""
    if len(names) == 1:
        inside = (
            f", or, if the rows stand inside of {names[0]!r}, write them as an array of their own"
        )
    return (
        f"{path} has the columns {', '.join(names)}, with no usual name for {' or '.join(missing)}: name those "
        "of pairs with data.query=COLUMN data.doc=COLUMN, those of interactions with data.user=COLUMN data.item=COLUMN, or read "
        f"texts without pairs with data.source=documents{headless(names)}{inside}"
    )


def _refuse_half(path: str, role: str, names: Sequence[str]) -> NoReturn:
    """Refuse a table about users or items alone."""
    other = next(each for each in EVENTS.needed if each != role)
    raise DataError(
        f"{path} has a column of {role}s ({EVENTS.usual_columns(role, names)[0]}), and none whose name is usual for {other}s: "
        f"name one with data.{other}=COLUMN; or give the table as data.{role}s beside interactions; or name the columns of "
        f"pairs of texts with data.query=COLUMN data.doc=COLUMN. It has {', '.join(names)}"
    )
