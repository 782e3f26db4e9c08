"""The form of the data that a path names: pairs, interactions, a BEIR folder, texts or Python
sources."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from .errors import DataError
from .io.adjacency import is_adjacency
from .io.atomic import is_run
from .io.columns import headless
from .io.saved_sets import splits
from .io.streams import stream
from .io.table_form import table_form
from .io.tables import blocks, files_of, is_table, is_table_by_content, visible_files
from .recommend.event_folder import PARTS, folder_options
from .recommend.event_roles import TABLE as EVENTS
from .recommend.event_roles import proposed
from .recommend.sessions import Sessions
from .recommend.unnamed_columns import (
    GROUPLENS_ENCODING,
    event_names,
    is_grouplens,
    is_unnamed,
    known_names,
    refuse_prize,
    refuse_unnamed,
)
from .text.beir import is_beir, split_names
from .text.roles import IDS, Roles, known_by_texts
from .text.roles import TABLE as PAIRS
from .text.text_files import is_text_file

_CALLED = {"query": "queries", "doc": "documents that answer"}
_FEW = 20  # files of a folder that are looked at, whatever they are called
_SHARD = re.compile(r"\d{5}-of-\d{5}|\d+")  # the number of a shard in the name of its file


def with_source(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a `data:` section that reads a path, where `options` names no source.

    A folder is a BEIR set or one that `save_to_disk` has written, by the names of its files; else
    it has the form of most of its files: tables, texts or Python sources. A table holds pairs or
    interactions, by the names of its columns, and tables of users and items may lie beside the one
    of interactions. Columns without a role are not read, and neither are ids of texts unless an
    option names them. Where names tell no form, two columns that hold texts of some words are a
    pair's.

    Args:
        path: the file or folder.
        options: the options of the section that are given, such as the names of columns.

    Raises:
        DataError: nothing to read, or a table whose columns tell no form.
    """
    detected = _detected(path, options)
    if "metadata" in detected and isinstance(named := options.get("metadata"), list | tuple):
        metadata = [*dict.fromkeys([*named, *detected["metadata"]])]
        return {**detected, **options, "metadata": metadata}
    return {**detected, **options}


def source_of(data: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a `data:` section for rows of Python, which hold interactions or pairs,
    by the names of their columns.

    Options that name a source say it themselves; rows that do not tell their columns are pairs.

    >>> import pyarrow as pa
    >>> source_of(pa.table({"user_id": [1], "item_id": [7]}), {})
    {'source': 'interactions', 'metadata': ['*']}
    """
    if "source" in options:
        return {
            **options,
            "source": "interactions" if options["source"] == "interactions" else "given",
        }
    rows = _rows_of(data, options)
    names = [str(name) for name in rows.column_names]
    if PAIRS.suits(options, names) or not EVENTS.suits(options, names):
        return {**options, "source": "given"}
    return {**options, "source": "interactions", **proposed(rows, options, "data")}


def _rows_of(data: Any, options: Mapping[str, Any]) -> pa.Table:
    """Return the first rows of an object, one for each event; of those that can be read but once,
    the names of the columns."""
    if isinstance(data, Sized) and not isinstance(data, Mapping):
        with suppress(DataError):  # which reading reports, by what it expected
            return Sessions(EVENTS, options).flat(next(stream(data))).table
    names = getattr(data, "column_names", getattr(data, "columns", ())) or ()
    return pa.table({str(name): pa.nulls(0) for name in names})


def _detected(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the path and what it holds determine."""
    place = Path(path)
    if is_run(place):
        raise DataError(
            f"{path} is a run, not data: give data, or {place / 'config.yaml'} to train with its options again"
        )
    if is_beir(place):
        if "split" in options:
            return {"source": "beir", "path": path}
        parts = _parts(path, split_names(place), "data.split=SPLIT")
        return {"source": "beir", "path": path, **_renamed(parts, "split")}
    if several := splits(place):
        parts = _parts(path, [folder.name for folder in several], f"data.path={place / 'SPLIT'}")
        paths = {part: str(place / name) for part, name in parts.items()}
        return {**_renamed(paths, "path"), **_of_table(paths["train"], options)}
    refuse_prize(place)
    form = _form(place)
    if form is None:
        raise DataError(
            f"{path} holds no file to read: give a folder of tables, such as .csv, .jsonl or .parquet, of texts (.txt, .md) "
            "or of Python sources; set data.source=documents data.rule=heading to read other files of text as documents"
        )
    if form == "table" and place.is_dir() and (tables := _interactions(place, options)):
        return tables
    if form == "table" and place.is_dir() and (files := _split_files(place)):
        parts = _parts(path, list(files), f"data.path={path}/FILE")
        of_table = _of_table(files[parts["train"]], options)
        if of_table["source"] == "pairs":
            paths = {part: files[name] for part, name in parts.items()}
            return {**_renamed(paths, "path"), **of_table}
    if form == "python":
        return {"source": "installed_python", "roots": [path]}
    return {
        "path": path,
        **({"source": "text_files"} if form == "texts" else _of_table(path, options)),
    }


def _form(path: Path) -> str | None:
    """Return the form of a file, or that of most files in a folder; read-me files say nothing about
    it."""
    if not path.is_dir():
        return "texts" if is_text_file(path) and not is_table_by_content(path) else "table"
    files = [file for file in visible_files(path) if not file.name.lower().startswith("readme")]
    if 0 < len(files) <= _FEW and all(map(is_table_by_content, files)):
        return "table"
    forms = {"python": lambda file: file.suffix == ".py", "texts": is_text_file, "table": is_table}
    counts = Counter(form for file in files for form, has in forms.items() if has(file))
    return max(counts, key=counts.__getitem__, default=None)


def _parts(path: str, names: Sequence[str], remedy: str) -> dict[str, str]:
    """Return which splits of a data set are train, validation and test; a single one is train."""
    parts = {
        part: next(name for name in usual if name in names)
        for part, usual in PARTS.items()
        if {*usual} & {*names}
    }
    if len(names) == 1:
        parts = {"train": names[0]}
    if names and "train" not in parts:
        raise DataError(
            f"{path} has the splits {', '.join(names)}, none of which is called train: give {remedy}"
        )
    return parts


def _split_files(folder: Path) -> dict[str, str]:
    """Return the files of each split of a table whose files, or their folders, are named for
    splits, as one path; nothing where fewer than two splits are named.

    Raises:
        DataError: files of a split that one path cannot name, or a file beside them that is named
            for no split.
    """
    words = {word for usual in PARTS.values() for word in usual}
    splits, others = defaultdict[str, list[Path]](list), list[Path]()
    for file in files_of(folder):
        names = (file.name, *file.relative_to(folder).parts[-2::-1])
        found = (word for name in names for word in re.split(r"[^a-z]+", name.lower()))
        word = next((word for word in found if word in words), None)
        (others if word is None else splits[word]).append(file)
    if len(splits) < 2:
        return {}
    if others:
        raise DataError(
            f"{folder} has files of the splits {', '.join(splits)}, and {others[0].relative_to(folder)}, whose name tells none: "
            f"give data.path={splits['train'][0] if 'train' in splits else folder / 'FILE'} with data.validation and data.test, "
            "or move it elsewhere"
        )
    return {word: _one_path(folder, files) for word, files in splits.items()}


def _one_path(folder: Path, files: Sequence[Path]) -> str:
    """Return a path that stands for some files: the file itself, or the name of shards with * for
    their numbers."""
    if len(files) == 1:
        return str(files[0])
    patterns = {
        str(file.parent / re.sub(r"\*.*\*", "*", _SHARD.sub("*", file.name))) for file in files
    }
    pattern = patterns.pop()
    if patterns or files_of(Path(pattern)) != sorted(files):
        homes = {file.relative_to(folder).parts[0] for file in files}
        home = folder / homes.pop()
        if homes or not home.is_dir() or files_of(home) != sorted(files):
            raise DataError(
                f"{folder}: the files {', '.join(str(file.relative_to(folder)) for file in files)} are of one split, and no "
                "common name tells them: put the files of each split in a folder of its own"
            )
        return str(home)
    return pattern


def _interactions(folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for a table of interactions, or its parts, beside tables of features;
    nothing if a folder holds others."""
    tables = {file: _named_rows(file, options) for file in files_of(folder)}
    if any(PAIRS.suits(options, rows.column_names) for rows in tables.values()):
        return {}
    files = folder_options(tables, options, folder)
    if not files:
        return {}
    path = Path(files["path"])
    encoding = dict[str, str]()
    if "encoding" not in options and any(is_grouplens(Path(file)) for file in files.values()):
        encoding = {"encoding": GROUPLENS_ENCODING}
    # A user's items without an order, as in the files of graph models, which ask for many at once.
    unordered = {"ordered": False} if "test" in files and is_adjacency(path) else {}
    return {**files, **encoding, **unordered, **_of_table(files["path"], {**options, **encoding})}


def _named_rows(path: Path, options: Mapping[str, Any]) -> pa.Table:
    """Return the first rows of a table, with names for columns that have none, where these are
    clear."""
    encoding = {"encoding": GROUPLENS_ENCODING} if is_grouplens(path) else {}
    rows = _first_rows(path, {**encoding, **options})
    if not is_unnamed(rows.column_names):
        return rows
    names = known_names(path, rows.num_columns) or event_names(rows, path)
    return rows if names is None else rows.rename_columns(list(names))


def _first_rows(path: Path, options: Mapping[str, Any]) -> pa.Table:
    read = blocks(path, table_form(options))
    first = next((block for block in read if len(block.table)), None)
    return pa.table({}) if first is None else Sessions(EVENTS, options).flat(first).table


def _by_texts(rows: pa.Table, options: Mapping[str, Any]) -> dict[str, str]:
    """Return columns of pairs that are known by their texts; rows of a user or an item are no
    pairs."""
    events = any(EVENTS.has(role, options, rows.column_names) for role in EVENTS.needed)
    return {} if events else known_by_texts(rows, options)


def _renamed(parts: Mapping[str, str], train: str) -> dict[str, str]:
    return {train if part == "train" else part: name for part, name in parts.items()}


def _of_table(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    rows = _first_rows(Path(path), options)
    names, by_texts = rows.column_names, _by_texts(rows, options)
    told = by_texts or any(each.suits(options, names) for each in (PAIRS, EVENTS))
    if is_unnamed(names) and not told:
        columns = event_names(rows, Path(path))
        if columns is None or not EVENTS.suits(options, columns):
            refuse_unnamed(rows, Path(path))
        named_rows = rows.rename_columns(list(columns))
        roles = proposed(named_rows, options, path)
        return {"source": "interactions", "columns": [*columns], **roles}
    if PAIRS.suits({**options, **by_texts}, names):  # texts are told apart by their content
        named = {role: name for role in IDS if (name := options.get(role))}
        return {
            "source": "pairs",
            **by_texts,
            "metadata": [*Roles(**named).told_by_content(names).metadata],
        }
    if EVENTS.suits(options, names):
        return {"source": "interactions", **proposed(rows, options, path)}
    if not names:
        raise DataError(f"{path} holds rows without columns: give each row its values by name")
    half = [role for role in EVENTS.needed if EVENTS.has(role, options, names)]
    if half and not any(PAIRS.has(role, options, names) for role in PAIRS.needed):
        _refuse_half(path, half[0], names)
    missing = [
        name
        for role, name in _CALLED.items()
        if not (options.get(role) or PAIRS.usual_columns(role, names))
    ]
    raise DataError(
        f"{path} has the columns {', '.join(names)}, with no usual name for {' or '.join(missing)}: name those "
        "of pairs with data.query=COLUMN data.doc=COLUMN, those of interactions with data.user=COLUMN data.item=COLUMN, or read "
        f"texts without pairs with data.source=documents{headless(names)}"
        + (
            f", or, if the rows stand inside of {names[0]!r}, write them as an array of their own"
            if len(names) == 1
            else ""
        )
    )


def _refuse_half(path: str, role: str, names: Sequence[str]) -> NoReturn:
    """Refuse a table that is about users or items alone."""
    other = next(each for each in EVENTS.needed if each != role)
    raise DataError(
        f"{path} has a column of {role}s ({EVENTS.usual_columns(role, names)[0]}), and none whose name is usual for {other}s: "
        f"name one with data.{other}=COLUMN; or give the table as data.{role}s beside interactions; or name the columns of "
        f"pairs of texts with data.query=COLUMN data.doc=COLUMN. It has {', '.join(names)}"
    )
