"""The form of the data that a path names: pairs, interactions, a BEIR folder, texts or Python sources."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import DataError
from .io.saved_sets import splits
from .io.tables import blocks, is_table
from .recommend.interactions import TABLE as EVENTS
from .text.beir import is_beir, split_names
from .text.roles import TABLE as PAIRS
from .text.text_files import is_text_file

_USUAL = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


def source_options(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a `data:` section that reads a path, where `options` names no source.

    A folder is a BEIR set or one that `save_to_disk` has written, by the names of its files; else it has the form of most of
    its files: tables, texts or Python sources. A table holds pairs or interactions, by the names of its columns; columns
    without a role are not read.

    Args:
        path: the file or folder.
        options: the options of the section that are given, such as the names of columns.

    Raises:
        DataError: nothing to read, or a table whose columns tell no form.
    """
    place = Path(path)
    if is_beir(place):
        return {"source": "beir", "path": path, **_parts(split_names(place), "split", path)}
    if several := splits(place):
        parts = _parts([folder.name for folder in several], "path", path)
        parts = {key: str(place / name) for key, name in parts.items()}
        return {**parts, **_of_table(parts["path"], options)}
    form = _form(place)
    if form == "python":
        return {"source": "installed_python", "roots": [path]}
    return {"path": path, **({"source": "text_files"} if form == "texts" else _of_table(path, options))}


def _form(path: Path) -> str | None:
    """Return the form of a file, or that of most files in a folder; read-me files say nothing about it."""
    if not path.is_dir():
        return "texts" if is_text_file(path) else "table"
    files = (file for file in _files(path) if not file.name.lower().startswith("readme"))
    forms = {"python": lambda file: file.suffix == ".py", "texts": is_text_file, "table": is_table}
    counts = Counter(form for file in files for form, has in forms.items() if has(file))
    return max(counts, key=counts.__getitem__, default=None)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that are not hidden."""
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(here, name) for name in files if not name.startswith("."))


def _parts(names: Sequence[str], train: str, path: str) -> dict[str, str]:
    """Return the options that name the splits of a data set: `train` for the training part, validation and test."""
    parts = {
        part: next(name for name in usual if name in names) for part, usual in _USUAL.items() if {*usual} & {*names}
    }
    if len(names) == 1:
        parts = {"train": names[0]}
    if names and "train" not in parts:
        raise DataError(
            f"{path} has the splits {', '.join(names)}, none of which is called train: give data.{train}=SPLIT"
        )
    return {train if part == "train" else part: name for part, name in parts.items()}


def _of_table(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    names: list[str] = next((block.table.column_names for block in blocks(Path(path)) if len(block.table)), [])
    metadata = options.get("metadata") or []
    unread = {"metadata": [*metadata, "*"] if isinstance(metadata, list | tuple) else metadata}
    if PAIRS.suits(options, names):
        return {"source": "pairs", **unread}
    if EVENTS.suits(options, names):
        split = {} if EVENTS.has("time", options, names) else {"split": "leave_last_out"}
        return {"source": "interactions", **unread, **split}
    raise DataError(
        f"{path} has the columns {', '.join(names)}, and none of them has a usual name: name those of pairs with "
        "data.query=COLUMN data.doc=COLUMN, or those of interactions with data.user=COLUMN data.item=COLUMN"
    )
