"""Files of a retrieval set in a folder: tables of any kind that hold a corpus, queries, and the
judgements of each split."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa

from ...errors import DataError
from ...io.documents import parsed
from ...tables.columns import Columns, plain
from ...tables.json_tables import json_tables, opened
from ...tables.tables import TableBlock, blocks_of, csv_tables, ending, is_table, visible_files

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
_FIRST = 1 << 24  # bytes of a first line
_LINES, _LONGEST = 50, 1 << 12  # lines, and their bytes, that tell judgements
_ALL = "all"  # the split of judgements that name none


@dataclass(frozen=True)
class SetFiles:
    """Hold the files of each part of a retrieval set, those of judgements by their split."""

    corpus: tuple[Path, ...] = ()
    queries: tuple[Path, ...] = ()
    qrels: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    others: tuple[Path, ...] = ()  # tables that are of no part

    @classmethod
    def of(cls, folder: Path) -> SetFiles | None:
        """Return the files of a folder; None if it holds no retrieval set.

        A folder of corpus.jsonl is one, whatever lies beside it. Any other one has tables whose
        names tell a corpus and queries or judgements, and whose columns do not speak against it.

        Raises:
            DataError: the folder holds several sets.
        """
        if not folder.is_dir():
            return None
        beir = tuple(
            path for end in ("", ".gz") if (path := folder / f"corpus.jsonl{end}").is_file()
        )[:1]
        files: dict[Part, list[Path]] = {"corpus": [], "queries": [], "qrels": []}
        unnamed = list[Path]()
        for path in sorted(visible_files(folder)):
            part = _part_of(path.relative_to(folder))
            if part is not None and (is_table(path) or (part == "qrels" and _is_judged(path))):
                files[part].append(path)
            elif is_table(path):
                unnamed.append(path)
        if not beir and not (files["corpus"] and (files["queries"] or files["qrels"])):
            return None
        if not beir and not all(suits(paths[0], part) for part, paths in files.items() if paths):
            return None
        if not beir:
            _refuse_several(folder, files["corpus"])
        judged = [path for path in unnamed if not files["qrels"] and suits(path, "qrels")]
        return cls(
            beir or tuple(files["corpus"]),
            _alike(folder, "queries", files["queries"]) if beir else tuple(files["queries"]),
            _by_split(folder, files["qrels"] or judged),
            tuple(path for path in unnamed if path not in judged),
        )


def part_blocks(path: Path, part: Part) -> Iterator[tuple[TableBlock, Columns]]:
    """Read a file of a retrieval set a block at a time, with the columns of its roles.

    Raises:
        DataError: as `io.tables.blocks_of` does, and for columns that are not of this part.
    """
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    names = _names(path)
    if part != "qrels" and _is_lines(path) and _columns(names, part).get("text", _TEXT) == _TEXT:
        read = blocks_of(path, partial(json_tables, schema=_TEXTS))
        for block in read:
            yield block, {name.removeprefix("_"): (name,) for name in _TEXTS.names}
        return
    if _is_separated(path) and any(names) and not _has_names(names, part):
        unnamed = _UNNAMED[part].get(len(names))
        if unnamed is None:
            many = " or ".join(map(str, _UNNAMED[part]))
            raise DataError(
                f"{path} has no line of names and {len(names)} columns; expected {many} for {part}, "
                f"or a first line such as {_first_line(part)}"
            )
        spaced = "\t" not in first_text(path)
        parse = (
            partial(_spaced, names=unnamed)
            if spaced
            else partial(csv_tables, names=unnamed, sign="\t", quoted=False)
        )
        read = blocks_of(path, parse)
    elif part == "qrels" and ".tsv" in ending(path):
        read = blocks_of(path, partial(csv_tables, sign="\t", quoted=False))
    else:
        read = blocks_of(path)
    for block in read:
        columns = _columns(block.table.column_names, part)
        missing = [role for role in _NEEDED[part] if role not in columns]
        if missing:
            raise DataError(
                f"{path} has the columns {', '.join(block.table.column_names)}; expected those of {part}, "
                f"such as {_first_line(part)}"
            )
        yield block, columns


def _part_of(path: Path) -> Part | None:
    """Return the part that the name of a file tells, or else that of the nearest folder."""
    for name in (path.name.partition(".")[0] + _ends(path), *map(str, path.parts[-2::-1])):
        words = re.split(r"[^a-z]+", name.lower())
        for part, usual in _WORDS.items():
            if {*usual} & {*words}:
                return part
    return None


def _ends(path: Path) -> str:
    """Return what stands between the name of a file and its extension: `queries.train.tsv`."""
    whole = path.name.lower()
    stem = whole.removesuffix(ending(path))
    return stem.removeprefix(whole.partition(".")[0])


def _is_judged(path: Path) -> bool:
    return path.suffix.lower() in _JUDGED


def _is_lines(path: Path) -> bool:
    return ".jsonl" in ending(path)


def _is_separated(path: Path) -> bool:
    return any(end in ending(path) for end in (".tsv", ".csv", ".tab", *_JUDGED))


def first_text(path: Path) -> str:
    """Return the first line of a file that is not blank; nothing of a file that is damaged, which
    its reader tells."""
    with suppress(OSError, EOFError, zlib.error), opened(path) as file:
        while line := file.readline(_FIRST):
            if text := line.decode("utf-8", "replace").removeprefix("\ufeff").strip("\r\n"):
                return text
    return ""


def _names(path: Path) -> list[str]:
    """Return the names of a table's columns; of separated values, the cells of the first line."""
    first = first_text(path) if _is_separated(path) or _is_lines(path) else ""
    if _is_lines(path):
        with suppress(ValueError, RecursionError):
            row = parsed(first)
            return list(row) if isinstance(row, dict) else []
        return []  # the reader tells the fault by its row
    if _is_separated(path):
        sign = "\t" if "\t" in first else ("," if ".csv" in ending(path) else None)
        return [cell.strip().strip('"') for cell in first.split(sign)]
    first_block = next(blocks_of(path), None)
    return [] if first_block is None else list(first_block.table.column_names)


def _has_names(names: list[str], part: Part) -> bool:
    """Return whether the cells of a first line are names of columns.

    Two of them are usual, for a word such as `text` may be a query's own.
    """
    return len(_columns(names, part)) > 1


def _columns(names: list[str], part: Part) -> Columns:
    """Return the column of each role that usual names tell."""
    columns: dict[str, tuple[str, ...]] = {}
    for role, usual in _USUAL[part].items():
        for word in usual:
            same = [name for name in names if plain(name) == plain(word)]
            if same and role not in columns:
                columns[role] = (same[0],)
    return columns


def suits(path: Path, part: Part) -> bool:
    """Return whether the columns of a table do not speak against a part."""
    names = _names(path)
    columns = _columns(names, part)
    if all(role in columns for role in _NEEDED[part]):
        return True
    named = any(_columns(names, each) for each in _WORDS)
    if not _is_separated(path) or named or len(names) not in _UNNAMED[part]:
        return False
    return part != "qrels" or names[-1].strip().lstrip("-").isdigit()


def are_judgements(path: Path) -> bool:
    """Return whether the first lines of a file are judgements as TREC writes them: a query, a
    column of 0 or Q0, a document, and a small grade."""
    with suppress(OSError, EOFError, zlib.error), opened(path) as file:
        lines = [file.readline(_LONGEST).decode("utf-8", "replace").split() for _ in range(_LINES)]
        rows = [line for line in lines if line]
        return bool(rows) and all(
            len(row) == 4 and row[1] in ("0", "Q0") and re.fullmatch(r"-?\d", row[3])
            for row in rows
        )
    return False


def _first_line(part: Part) -> str:
    return ", ".join(usual[0] for usual in _USUAL[part].values())


def _alike(folder: Path, name: str, paths: list[Path]) -> tuple[Path, ...]:
    """Return the one file that BEIR's layout names, if it is there, else all of them."""
    own = [
        path for path in paths if path in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz")
    ]
    return tuple(own[:1] or paths)


def _by_split(folder: Path, paths: list[Path]) -> dict[str, tuple[Path, ...]]:
    """Return the files of judgements by the name of their split; of several kinds of file for one
    split, the first counts."""
    splits = defaultdict[str, list[Path]](list)
    for path in paths:
        splits[_split_of(path)].append(path)
    kinds = {split: min(ending(path) for path in of_split) for split, of_split in splits.items()}
    return {
        split: tuple(path for path in of_split if ending(path) == kinds[split])
        for split, of_split in sorted(splits.items())
    }


def _split_of(path: Path) -> str:
    """Return the split that the name of a file of judgements tells.

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
    """Read values that spaces divide, as TREC writes judgements."""
    with opened(path) as file:
        rows = [
            line.split() for line in file.read().decode("utf-8-sig").splitlines() if line.strip()
        ]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise DataError(
                f"{path}, row {number} has {len(row)} values for {len(names)} columns; expected {', '.join(names)}"
            )
    yield pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})
