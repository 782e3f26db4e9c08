"""The form of the data that a path names: pairs, interactions, a BEIR folder, texts or Python
sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from .errors import DataError
from .io.atomic import is_run
from .io.columns import headless
from .io.saved_sets import splits
from .io.table_form import table_form
from .io.tables import blocks, files_of, is_table, visible_files
from .recommend.interactions import TABLE as EVENTS
from .recommend.sessions import Sessions
from .text.beir import is_beir, split_names
from .text.roles import IDS, Roles, known_by_texts
from .text.roles import TABLE as PAIRS
from .text.text_files import is_text_file

_CALLED = {"query": "queries", "doc": "documents that answer"}
_USUAL = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


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
        return {**detected, **options, "metadata": [*named, *detected["metadata"]]}
    return {**detected, **options}


def source_of(data: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a `data:` section for rows of Python, which hold interactions or pairs,
    by the names of their columns.

    Options that name a source say it themselves; rows that do not tell their columns are pairs.

    >>> import pyarrow as pa
    >>> source_of(pa.table({"user_id": [1], "item_id": [7]}), {})
    {'metadata': ['*'], 'source': 'interactions'}
    """
    names = [str(name) for name in getattr(data, "column_names", getattr(data, "columns", ()))]
    if "source" in options:
        return {
            **options,
            "source": "interactions" if options["source"] == "interactions" else "given",
        }
    if PAIRS.suits(options, names) or not EVENTS.suits(options, names):
        return {**options, "source": "given"}
    return {"metadata": ["*"], **options, "source": "interactions"}


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
    form = _form(place)
    if form is None:
        raise DataError(
            f"{path} holds no file to read: give a folder of tables, such as .csv, .jsonl or .parquet, of texts (.txt, .md) "
            "or of Python sources; set data.source=documents data.rule=heading to read other files of text as documents"
        )
    if form == "table" and place.is_dir() and (tables := _interactions(place, options)):
        return tables
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
        return "texts" if is_text_file(path) else "table"
    files = (file for file in visible_files(path) if not file.name.lower().startswith("readme"))
    forms = {"python": lambda file: file.suffix == ".py", "texts": is_text_file, "table": is_table}
    counts = Counter(form for file in files for form, has in forms.items() if has(file))
    return max(counts, key=counts.__getitem__, default=None)


def _parts(path: str, names: Sequence[str], remedy: str) -> dict[str, str]:
    """Return which splits of a data set are train, validation and test; a single one is train."""
    parts = {
        part: next(name for name in usual if name in names)
        for part, usual in _USUAL.items()
        if {*usual} & {*names}
    }
    if len(names) == 1:
        parts = {"train": names[0]}
    if names and "train" not in parts:
        raise DataError(
            f"{path} has the splits {', '.join(names)}, none of which is called train: give {remedy}"
        )
    return parts


def _interactions(folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for one table of interactions beside tables of features; nothing if a
    folder holds others."""
    columns = {str(file): _columns(file, options) for file in files_of(folder)}
    events = [file for file, names in columns.items() if EVENTS.suits(options, names)]
    if len(columns) == 1 or len(events) != 1:
        return {}
    features = {
        f"{role}s": file
        for role in EVENTS.needed
        for file in columns
        if _is_about(role, columns[file])
    }
    return {"path": events[0], **features, **_of_table(events[0], options)}


def _is_about(role: str, names: Sequence[str]) -> bool:
    """Return whether a table has ids of users or items, and not of both."""
    return [each for each in EVENTS.needed if EVENTS.usual_columns(each, names)] == [role]


def _columns(path: Path, options: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns of a table, of whose rows some may be sessions."""
    names: list[str] = _first_rows(path, options).column_names
    return names


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
    if PAIRS.suits({**options, **by_texts}, names):  # texts are told apart by their content
        named = {role: name for role in IDS if (name := options.get(role))}
        return {
            "source": "pairs",
            **by_texts,
            "metadata": [*Roles(**named).told_by_content(names).metadata],
        }
    if EVENTS.suits(options, names):
        return {"source": "interactions", "metadata": ["*"]}
    if not names:
        raise DataError(f"{path} holds rows without columns: give each row its values by name")
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
