"""Files of a retrieval set in a folder: tables of any kind, with a corpus, queries, and the
judgements of each split."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa

from ..errors import DataError
from ..io.documents import parsed
from ..tables.columns import Columns, plain
from ..tables.json_tables import json_tables, opened
from ..tables.tables import TableBlock, blocks_of, csv_tables, ending, is_table, visible_files

Part = Literal["corpus", "queries", "qrels"]

# Words in the name of a file, or else of a folder that it lies in, which tell its part.
_WORDS: dict[Part, tuple[str, ...]] = {
    "qrels": ("qrels", "qrel", "judgements", "judgments"),
    "queries": ("queries", "topics", "query"),
    "corpus": ("corpus", "collection", "documents", "docs", "passages"),
}
# Usual names of the columns of each part, the most telling first.
_USUAL: dict[Part, dict[str, tuple[str, ...]]] = {
    "corpus": {
        "id": ("_id", "docid", "doc_id", "corpus_id", "document_id", "passage_id", "pid", "psg_id"),
        "title": ("title",),
        "text": ("text", "contents", "content", "passage", "passage_text", "body", "document"),
    },
    "queries": {
        "id": ("_id", "query_id", "qid", "topic_id"),
        "title": ("title",),
        "text": ("text", "query", "question"),
    },
    "qrels": {
        "query": ("query-id", "qid", "topic_id", "topic"),
        "document": ("corpus-id", "docid", "doc_id", "document_id", "passage_id", "pid"),
        "score": ("score", "relevance", "rel", "label", "grade", "relevance_score"),
    },
}
_NEEDED: dict[Part, tuple[str, ...]] = {
    "corpus": ("id", "text"),
    "queries": ("id", "text"),
    "qrels": ("query", "document"),
}
# Names of the columns of separated values without a line of names, by their number: those of MS
# MARCO and of TREC.
_UNNAMED: dict[Part, dict[int, tuple[str, ...]]] = {
    "corpus": {2: ("_id", "text"), 4: ("_id", "url", "title", "text")},
    "queries": {2: ("_id", "text")},
    "qrels": {
        2: ("query-id", "corpus-id"),
        3: ("query-id", "corpus-id", "score"),
        4: ("query-id", "iteration", "corpus-id", "score"),
    },
}
_TEXTS = pa.schema([(name, pa.string()) for name in ("_id", "title", "text")])
_TEXT = ("text",)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_JUDGED = (".txt", ".qrels", ".qrel")  # further ends of the names of judgements
_FIRST = 1 << 24  # most bytes of a first line
_LINES = 50  # first lines, by which judgements are known
_LONGEST = 1 << 12  # most bytes of each of these lines
_ALL = "all"  # the split of judgements whose file names no split


@dataclass(frozen=True)
class SetFiles:
    """Hold the files of each part of a retrieval set, the files of judgements by their split."""

    corpus: tuple[Path, ...] = ()
    queries: tuple[Path, ...] = ()
    qrels: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    others: tuple[Path, ...] = ()  # tables that are of no part

    @classmethod
    def of(cls, folder: Path) -> SetFiles | None:
        """Return the files of a folder; None without a retrieval set.

        A folder with corpus.jsonl is a retrieval set, with any further files. Another folder is a
        set if tables have names of a corpus and of queries or judgements, and columns that fit the
        names.

        Raises:
            DataError: the folder holds several sets.
        """
        if not folder.is_dir():
            return None
        files: dict[Part, list[Path]] = {"corpus": [], "queries": [], "qrels": []}
        unnamed: list[Path] = []
        for path in sorted(visible_files(folder)):
            part = _part_of(path.relative_to(folder))
            if part is not None and (is_table(path) or (part == "qrels" and _is_judged(path))):
                files[part].append(path)
            elif is_table(path):
                unnamed.append(path)
        corpus = _beir_file(folder, "corpus")
        if corpus is not None:
            queries = _beir_file(folder, "queries")
            files["corpus"] = [corpus]
            if queries is not None and queries in files["queries"]:
                files["queries"] = [queries]
        else:
            if not files["corpus"] or not (files["queries"] or files["qrels"]):
                return None
            if not all(suits(paths[0], part) for part, paths in files.items() if paths):
                return None
            _refuse_several(folder, files["corpus"])
        judged = files["qrels"]
        if not judged:
            judged = [path for path in unnamed if suits(path, "qrels")]
        others = tuple(path for path in unnamed if path not in judged)
        return cls(tuple(files["corpus"]), tuple(files["queries"]), _by_split(judged), others)


def part_blocks(
    path: Path, part: Part, *, further: bool = False
) -> Iterator[tuple[TableBlock, Columns]]:
    """Read a file of a retrieval set a block at a time, with the columns of its roles.

    Args:
        further: True to read the further columns of JSON lines, too.

    Raises:
        DataError: as `tables.blocks_of` does, and for columns of another part.
    """
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    names = _names(path)
    if part != "qrels" and _is_lines(path) and _columns(names, part).get("text", _TEXT) == _TEXT:
        text_columns = {name.removeprefix("_"): (name,) for name in _TEXTS.names}
        read = partial(json_tables, schema=_TEXTS, further=further)
        for block in blocks_of(path, read):
            yield block, text_columns
        return
    if _is_separated(path) and any(names) and not _has_names(names, part):
        tables = _blocks_without_names(path, part, len(names))
    elif part == "qrels" and ".tsv" in ending(path):
        tables = blocks_of(path, partial(csv_tables, sign="\t", quoted=False))
    else:
        tables = blocks_of(path)
    for block in tables:
        columns = _columns(block.table.column_names, part)
        if not all(role in columns for role in _NEEDED[part]):
            raise DataError(
                f"{path} has the columns {', '.join(block.table.column_names)}; expected those of {part}, "
                f"such as {_first_line(part)}"
            )
        yield block, columns


def _blocks_without_names(path: Path, part: Part, width: int) -> Iterator[TableBlock]:
    """Read separated values without a line of names, of so many columns."""
    names = _UNNAMED[part].get(width)
    if names is None:
        expected = " or ".join(map(str, _UNNAMED[part]))
        raise DataError(
            f"{path} has no line of names and {width} columns; expected {expected} for {part}, "
            f"or a first line such as {_first_line(part)}"
        )
    if "\t" in first_text(path):
        return blocks_of(path, partial(csv_tables, names=names, sign="\t", quoted=False))
    return blocks_of(path, partial(_spaced, names=names))


def _part_of(path: Path) -> Part | None:
    """Return the part by the name of a file, or else by the name of the nearest folder."""
    folders = reversed(path.parts[:-1])
    for name in (_name_without_ending(path), *folders):
        words = re.split(r"[^a-z]+", name.lower())
        for part, usual in _WORDS.items():
            if not set(usual).isdisjoint(words):
                return part
    return None


def _name_without_ending(path: Path) -> str:
    """Return the name of a file without its ending: `queries.train` of `queries.train.tsv`."""
    name = path.name.lower()
    first = name.partition(".")[0]
    return first + name.removesuffix(ending(path)).removeprefix(first)


def _is_judged(path: Path) -> bool:
    return path.suffix.lower() in _JUDGED


def _is_lines(path: Path) -> bool:
    return ".jsonl" in ending(path)


def _is_separated(path: Path) -> bool:
    return any(end in ending(path) for end in (".tsv", ".csv", ".tab", *_JUDGED))


def first_text(path: Path) -> str:
    """Return the first line of a file with content; nothing of a damaged file, because the reader
    reports the damage."""
    with suppress(OSError, EOFError, zlib.error), opened(path) as file:
        line = file.readline(_FIRST)
        while line:
            text = line.decode("utf-8", "replace").removeprefix("\ufeff").strip("\r\n")
            if text:
                return text
            line = file.readline(_FIRST)
    return ""


def _names(path: Path) -> list[str]:
    """Return the names of a table's columns; of separated values, the cells of the first line."""
    if _is_lines(path):
        with suppress(ValueError, RecursionError):
            row = parsed(first_text(path))
            return list(row) if isinstance(row, dict) else []
        return []  # the reader reports the fault by its row
    if _is_separated(path):
        first = first_text(path)
        sign = None  # white space
        if "\t" in first:
            sign = "\t"
        elif ".csv" in ending(path):
            sign = ","
        return [cell.strip().strip('"') for cell in first.split(sign)]
    for block in blocks_of(path):
        return list(block.table.column_names)
    return []


def _has_names(names: list[str], part: Part) -> bool:
    """Return True if the cells of a first line are names of columns.

    Two cells have to be usual names, since a single word such as `text` may be a query.
    """
    return len(_columns(names, part)) > 1


def _columns(names: list[str], part: Part) -> Columns:
    """Return the column of each role, by a usual name."""
    columns: dict[str, tuple[str, ...]] = {}
    for role, usual in _USUAL[part].items():
        for word in usual:
            same = [name for name in names if plain(name) == plain(word)]
            if same and role not in columns:
                columns[role] = (same[0],)
    return columns


def suits(path: Path, part: Part) -> bool:
    """Return True if the columns of a table do not speak against a part."""
    names = _names(path)
    columns = _columns(names, part)
    if all(role in columns for role in _NEEDED[part]):
        return True
    named = any(_columns(names, each) for each in _WORDS)
    if not _is_separated(path) or named or len(names) not in _UNNAMED[part]:
        return False
    return part != "qrels" or names[-1].strip().lstrip("-").isdigit()


def are_judgements(path: Path) -> bool:
    """Return True if the first lines of a file are judgements as TREC writes them: a query, a
    column of 0 or Q0, a document, and a small grade."""
    with suppress(OSError, EOFError, zlib.error), opened(path) as file:
        lines = [file.readline(_LONGEST).decode("utf-8", "replace").split() for _ in range(_LINES)]
        rows = [line for line in lines if line]
        return bool(rows) and all(map(_is_judgement, rows))
    return False


def _is_judgement(row: Sequence[str]) -> bool:
    """Return True if a row is a judgement as TREC writes it."""
    if len(row) != 4:
        return False
    _, iteration, _, grade = row
    return iteration in ("0", "Q0") and re.fullmatch(r"-?\d", grade) is not None


def _first_line(part: Part) -> str:
    return ", ".join(usual[0] for usual in _USUAL[part].values())


def _beir_file(folder: Path, part: Part) -> Path | None:
    """Return the file of a part by BEIR's layout; None without a file."""
    for name in (f"{part}.jsonl", f"{part}.jsonl.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def _by_split(paths: list[Path]) -> dict[str, tuple[Path, ...]]:
    """Return the files of judgements by the name of their split; if a split has files of several
    kinds, the files of the first kind."""
    splits = defaultdict[str, list[Path]](list)
    for path in paths:
        splits[_split_of(path)].append(path)
    files = {}
    for split, of_split in sorted(splits.items()):
        kind = min(ending(path) for path in of_split)
        files[split] = tuple(path for path in of_split if ending(path) == kind)
    return files


def _split_of(path: Path) -> str:
    """Return the split by the name of a file of judgements.

    >>> [_split_of(Path(name)) for name in ("qrels/dev_2.tsv", "qrels.train.tsv", "test-00000-of-00001.parquet", "qrels.txt")]
    ['dev_2', 'train', 'test', 'all']
    """
    whole = path.name
    stem = _SHARD.sub("", whole[: len(whole) - len(ending(path))])
    words = "|".join(_WORDS["qrels"])
    return re.sub(rf"(?i)(^|[._-])({words})(?=[._-]|$)", "", stem).strip("._-") or _ALL


def _refuse_several(folder: Path, corpora: list[Path]) -> None:
    """Refuse a folder of several sets, each with a corpus in a folder of its own."""
    homes = sorted({str(path.parent) for path in corpora})
    if len(homes) > 1:
        raise DataError(
            f"{folder} holds {len(homes)} retrieval sets, with a corpus in each of {', '.join(homes)}: "
            "give the folder of one of them"
        )


def _spaced(path: Path, names: tuple[str, ...]) -> Iterator[pa.Table]:
    """Read values between spaces, as TREC writes judgements."""
    with opened(path) as file:
        lines = file.read().decode("utf-8-sig").splitlines()
    rows = [line.split() for line in lines if line.strip()]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise DataError(
                f"{path}, row {number} has {len(row)} values for {len(names)} columns; expected {', '.join(names)}"
            )
    yield pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})


def is_beir(path: str | Path) -> bool:
    """Return True if a folder holds a retrieval set: a corpus, and queries or judgements."""
    return SetFiles.of(Path(path)) is not None


def split_names(folder: Path) -> list[str]:
    """Return the names of the splits of a retrieval set with judgements."""
    return sorted(files_of_set(folder).qrels)


def files_of_set(folder: Path) -> SetFiles:
    """Return the files of a retrieval set; raises DataError for any other folder."""
    files = SetFiles.of(folder)
    if files is None:
        raise DataError(
            f"no such file: {folder / 'corpus.jsonl'}, and no other table of a corpus beside queries or qrels"
        )
    return files
