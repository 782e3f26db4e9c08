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

from ..errors import DataError
from ..forms.set_files import is_beir, split_names
from ..io.atomic import is_run
from ..tables.columns import headless
from ..tables.nested import with_paths
from ..tables.profile import TableProfile, profile
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
from .set_files import are_judgements, first_text
from .text_endings import is_text_file
from .unnamed_columns import event_names, is_scale, is_unnamed, refuse_no_events, refuse_prize

_SHOWN = 200  # letters of a row in a message
_CALLED = {"query": "queries", "doc": "documents that answer"}
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
        return {**options, "source": "given", "metadata": _unnamed(options, names)}
    return {**options, "source": "interactions", **proposed(rows, options, "data")}


def _rows_of(data: Any, options: Mapping[str, Any]) -> pa.Table:
    """Return the first rows of an object, one for each event; of those that can be read but once,
    the names of the columns."""
    data = next(iter(data_sets(data).values()), data)
    if isinstance(data, Sized) and not isinstance(data, Mapping):
        with suppress(DataError):  # which reading reports, by what it expected
            return _by_event(next(stream(data)), options)
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
    for file in sorted(visible_files(place))[:FEW] if place.is_dir() else [place]:
        refuse_prize(file)
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
    if form != "python":
        _refuse_trec(place)
    if form == "python":
        return {"source": "installed_python", "roots": [path]}
    return {
        "path": path,
        **({"source": "text_files"} if form == "texts" else _of_table(path, options)),
    }


def _refuse_trec(path: Path) -> None:
    """Refuse topics, documents and judgements in the forms of TREC, which look like texts."""
    files = visible_files(path) if path.is_dir() else iter([path])
    plain = [
        file for file in files if not (is_table(file) or file.name.lower().startswith("readme"))
    ]
    for file in sorted(plain)[:FEW]:
        start = first_text(file).strip()
        is_trec = start.lower().startswith(("<top>", "<doc>"))
        if is_trec or are_judgements(file):
            what = "judgements" if not is_trec else "topics or documents"
            raise DataError(
                f"{file} holds {what} of TREC: give a folder of tables called corpus (of _id, title, text), queries (of _id, text) "
                "and qrels (which may be of TREC), for instance as corpus.jsonl, queries.jsonl and qrels.txt"
            )


def _form(path: Path) -> str | None:
    """Return the form of a file, or that of most files in a folder; read-me files say nothing about
    it."""
    if not path.is_dir():
        return "texts" if is_text_file(path) and not is_separated(path) else "table"
    files = [file for file in visible_files(path) if not file.name.lower().startswith("readme")]
    forms = {"python": lambda file: file.suffix == ".py", "texts": is_text_file, "table": is_table}
    counts = Counter(form for file in files for form, has in forms.items() if has(file))
    few = not counts["table"] and 0 < len(files) <= FEW
    if few and 2 * sum(map(is_separated, files)) >= len(files):
        return "table"
    return max(counts, key=counts.__getitem__, default=None)


def _parts(path: str, names: Sequence[str], remedy: str) -> dict[str, str]:
    """Return which splits of a data set are train, validation and test; a single one is train."""
    parts = {
        part: next(name for name in usual if name in names)
        for part, usual in PART_NAMES.items()
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
    words = {word for usual in PART_NAMES.values() for word in usual}
    splits, others = defaultdict[str, list[Path]](list), list[Path]()
    for file in files_of(folder):
        names = (file.name, *file.relative_to(folder).parts[-2::-1])
        parts_of_names = (part for name in names for part in re.split(r"[^a-z]+", name.lower()))
        word = next((part for part in parts_of_names if part in words), None)
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
    # A user's items without an order, as in the files of graph models, which ask for many at once.
    unordered = {"ordered": False} if "test" in files and is_adjacency(Path(files["path"])) else {}
    return {**files, **unordered, **_of_table(files["path"], options)}


def _named_rows(path: Path, options: Mapping[str, Any]) -> pa.Table:
    """Return the first rows of a table, with names for columns that have none, where these are
    clear."""
    rows = _first_rows(path, options)
    names = event_names(rows, str(path)) if is_unnamed(rows.column_names) else None
    return rows if names is None else rows.rename_columns(list(names))


def _first_rows(path: Path, options: Mapping[str, Any]) -> pa.Table:
    read = blocks(path, table_form(options))
    first = next((block for block in read if len(block.table)), None)
    return pa.table({}) if first is None else _by_event(first, options)


def _by_event(block: TableBlock, options: Mapping[str, Any]) -> pa.Table:
    """Return the rows of a block, one for each event, with what options name by a path."""
    named = [*EVENTS.chosen(options), *PAIRS.chosen(options)]
    return Sessions(EVENTS, options).flat(with_paths(block, named)).table


def _without_names(path: str, rows: pa.Table) -> str:
    """Return a message on a table without names: its first row, and names that its values may
    have."""
    columns = profile(rows, path).columns
    texts = [name for name, column in columns.items() if "text" in column.kinds]
    timed = any("time" in column.kinds for column in columns.values())
    is_of_texts = len(texts) > 1 and not timed  # events may have titles
    free = iter(("query", "doc", "negative") if is_of_texts else ("user", "item"))
    grade = "score" if is_of_texts else "rating"
    names = list[str]()
    for number, (name, column) in enumerate(columns.items(), 1):
        called = ""
        if is_of_texts:
            called = next(free, "") if name in texts else ""
        elif "time" in column.kinds and "time" not in names:
            called = "time"
        elif is_scale(column) and {"user", "item"} <= {*names} and grade not in names:
            called = grade
        elif "id" in column.kinds and "constant" not in column.kinds:
            called = next(free, "")
        names.append(called or f"other{number}")
    first = ", ".join(str(column[0].as_py() or "") for column in rows.columns)
    return (
        f"{path} has no line of names, and begins with the row {first[:_SHOWN]}: name its columns in their order, "
        f"such as data.columns=[{','.join(names)}]"
    )


def _pair(path: str, rows: pa.Table, options: Mapping[str, Any]) -> tuple[TableProfile, bool]:
    """Return what the columns of a table hold, and whether they hold pairs of texts; rows of a user
    or an item are told by their names alone."""
    table = unfolding_of(rows, options, guessed=True)(TableBlock(rows, path)).table
    events = any(EVENTS.has(role, options, rows.column_names) for role in EVENTS.needed)
    proposal = proposed_roles(table, options, path, by_names=events)
    return proposal.of_table, PAIRS.suits({**options, **proposal.options}, table.column_names)


def _unnamed(options: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return columns that are not read: those that options name so, ids that they do not name, and
    all without a role."""
    named = {role: name for role in IDS if (name := options.get(role))}
    others = Roles(**named).without_usual_ids(names).metadata
    return [*dict.fromkeys([*named_columns(options.get("metadata")), *others])]


def _renamed(parts: Mapping[str, str], train: str) -> dict[str, str]:
    return {train if part == "train" else part: name for part, name in parts.items()}


def _of_table(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    rows = _first_rows(Path(path), options)
    names = rows.column_names
    if is_unnamed(names) and not EVENTS.suits(options, names):
        columns = event_names(rows, path)
        if columns is not None:
            roles = proposed(rows.rename_columns(list(columns)), options, path)
            return {"source": "interactions", "columns": [*columns], **roles}
    are_events = EVENTS.suits(options, names) and not PAIRS.suits(options, names)
    of_table, are_pairs = _pair(path, rows, options)
    if are_pairs and not are_events:  # texts are told apart by their content
        return {"source": "pairs", "metadata": _unnamed({**options, "metadata": None}, names)}
    if are_events:
        return {"source": "interactions", **proposed(rows, options, path)}
    if not names:
        raise DataError(f"{path} holds rows without columns: give each row its values by name")
    half = [role for role in EVENTS.needed if EVENTS.has(role, options, names)]
    if half and not any(PAIRS.has(role, options, names) for role in PAIRS.needed):
        _refuse_half(path, half[0], names)
    if is_unnamed(names) and len(names) > 1 and not ending(Path(path)).startswith(".json"):
        refuse_no_events(rows, path)
        raise DataError(_without_names(path, rows))
    refuse_ids_alone(of_table, path)
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
