"""Pairs of docstrings and code from the installed Python, data on every machine.

Files are read as texts and never imported. The query is a docstring's first paragraph; the document
is the signature and body of the function or class without docstrings. Training begins with rows
made of functions without a docstring: the name, or the comments, ask for the code. In folders named
by a user, functions without a docstring are searched, too. Worker processes share the parsing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import DataError, quantity
from ...io.console import progress_bar
from ...tables.tables import visible_files
from . import python_rows
from .pairs import RANKED, TRAIN, Pairs
from .parts import joined
from .python_rows import BATCH, KINDS, SCHEMA, UNREAD, File
from .text_files import unread

_CANNOT = "Python files that cannot be read"
_UNREAD_FOLDERS = ("site-packages", "dist-packages", "__pycache__")
_MOST_MADE = 2  # most made rows for each pair
_FEW_MADE = 1 << 15  # made rows that are kept however few pairs there are


@dataclass(frozen=True)
class InstalledPython:
    """Functions and classes with a docstring, from the standard library and from site-packages.

    Args:
        roots: folders of Python files to read instead; evaluation then asks from all folders, and
            functions without a docstring are ranked and searched, too.
        workers: number of processes for parsing; None is a process a core.
        max_characters: most characters of a document; longer documents are cut.
    """

    roots: tuple[str, ...] = ()
    workers: int | None = None
    max_characters: int = 4000

    @property
    def folders(self) -> list[Path]:
        """The folders of `roots`, or else of the installed Python."""
        if not self.roots:
            return installed_roots()
        return [Path(root).resolve() for root in self.roots]

    @property
    def foreword(self) -> str | None:
        """The first line of a run if no data are named; None where `roots` are named."""
        if self.roots:
            return None
        where = " and ".join(map(str, self.folders))
        return f"reading the code of the installed Python, {where}: tempera train FILE trains on your own pairs"

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return all pairs; evaluation takes queries from the standard library, or from every root
        in `roots`."""
        roots = self.folders
        for root in roots:
            if not root.is_dir():
                raise DataError(f"data.roots: no such folder: {root}")
        files: list[File] = []
        for root in roots:
            files += [(str(root), str(path)) for path in python_files(root, others=roots)]
        if not files:
            raise DataError(f"no Python files under {', '.join(map(str, roots))}")
        table = self._rows(files, roots)
        unread_files = pc.sum(pc.equal(table["kind"], UNREAD)).as_py() or 0
        pairs = _pairs_of_kind(table, "pairs")
        if not len(pairs):
            and_unread = f"; of them {unread_files} cannot be read" if unread_files else ""
            raise DataError(
                f"no function or class with a docstring in the {len(files)} files under {roots[0]}{and_unread}"
            )
        most = max(_MOST_MADE * len(pairs), _FEW_MADE)
        made = _pairs_of_kind(table, "made", most)
        parts = {TRAIN: pairs}
        unasked = _pairs_of_kind(table, "unasked")
        if len(unasked):
            parts[RANKED] = replace(unasked, dropped={})
        pairs = joined(parts)
        dropped = dict(pairs.dropped)
        if unread_files:
            dropped[_CANNOT] = unread_files
        other_files = Counter[str]()
        for root in map(Path, self.roots):
            read = [file for file in visible_files(root) if file.suffix == ".py"]
            other_files += unread(root, read)
        dropped |= other_files
        holds = "hold" if len(roots) > 1 else "holds"
        about = f"{' and '.join(map(str, roots))} {holds} {quantity(len(files), 'Python files')}: query = docstring, doc = code"
        pairs = replace(pairs, made=made, about=about, dropped=dropped)
        asked_roots = roots if self.roots else roots[:1]
        return pairs, _is_function_of(asked_roots, pairs, roots)

    def _rows(self, files: Sequence[File], roots: Sequence[Path]) -> pa.Table:
        """Return the rows of all kinds from files, in no order, with the rank of their root."""
        kinds = [kind for kind in KINDS if self.roots or kind != "unasked"]
        workers = self.workers or os.cpu_count() or 1
        table = _parse_all(files, workers, kinds, self.max_characters)
        names = pa.array([str(root) for root in roots], pa.large_string())
        return table.append_column("rank", pc.index_in(table["root"], names))


def _pairs_of_kind(table: pa.Table, kind: str, most: int | None = None) -> Pairs:
    """Return the rows of a kind as pairs, in the order of roots and places; of more than `most`
    rows, `most` are drawn."""
    chosen = np.flatnonzero(pc.equal(table["kind"], kind).to_numpy())
    # Workers finish in any order; the sorted rows are the same on every run.
    keys = table.select(["rank", "place", "query"]).take(pa.array(chosen))
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names])
    chosen = chosen[order.to_numpy()]
    if most is not None:
        drawn = np.random.default_rng(0).permutation(len(chosen))[:most]
        chosen = chosen[np.sort(drawn)]
    # The texts are copied once: they are most of the memory.
    rows = table.select(["query", "doc", "name", "place"]).take(pa.array(chosen))
    return Pairs.of(rows["query"], rows["doc"], rows["name"], rows["place"])


def _is_function_of(
    chosen: Sequence[Path], pairs: Pairs, roots: Sequence[Path]
) -> NDArray[np.bool_]:
    """Return True for each function whose innermost root is one of the chosen roots, [n]."""
    is_chosen = np.zeros(len(pairs), dtype=bool)
    length = np.zeros(len(pairs), dtype=np.int64)  # of the innermost root so far
    for root in roots:
        inside = pc.starts_with(pairs.table["place"], pattern=f"{root}{os.sep}").to_numpy()
        inside = inside & (len(str(root)) > length)
        is_chosen[inside] = root in chosen
        length[inside] = len(str(root))
    is_class: NDArray[np.bool_]
    is_class = pc.match_substring_regex(pairs.table["doc"], r"^class\b").to_numpy()
    return is_chosen & ~is_class


def installed_roots() -> list[Path]:
    """Return the folder of the standard library, then site-packages."""
    paths = sysconfig.get_paths()
    roots = [Path(paths[key]).resolve() for key in ("stdlib", "purelib", "platlib")]
    return list(dict.fromkeys(roots))


def python_files(root: Path, others: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield the Python files below a folder in a fixed order, without hidden files and folders,
    other roots, and folders of site-packages."""
    skipped = {str(other.resolve()) for other in others} - {str(root.resolve())}
    # os.walk follows no links, so that the folders below a root are where its own path leads.
    beginning = len(str(root))
    real_root = str(root.resolve())
    for folder, folders, files in os.walk(root):
        real_folder = real_root + folder[beginning:]
        # os.walk goes on with the folders that are left in its list.
        kept = list[str]()
        for name in folders:
            if name in _UNREAD_FOLDERS or name.startswith("."):
                continue
            if os.path.join(real_folder, name) not in skipped:
                kept.append(name)
        folders[:] = sorted(kept)
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith("."):
                path = os.path.join(folder, name)
                if os.path.isfile(path):
                    yield Path(path)


def _parse_all(
    files: Sequence[File], workers: int, kinds: Sequence[str], most_characters: int
) -> pa.Table:
    """Parse files in worker processes, largest first, and gather the rows of some kinds."""
    by_size = sorted(files, key=lambda file: -os.stat(file[1]).st_size)
    workers = max(1, min(workers, len(files) // BATCH))
    with progress_bar("reading Python files", len(files), "file") as bar:

        def ask(share: Sequence[File]) -> list[pa.RecordBatch]:
            parts = []
            for batch in _worker(share, kinds, most_characters):
                parts.append(batch)
                bar.update(min(BATCH, len(files) - bar.n))
            return parts

        with ThreadPoolExecutor(workers) as pool:
            shares = list(pool.map(ask, [by_size[i::workers] for i in range(workers)]))
        bar.update(len(files) - bar.n)
    return pa.Table.from_batches([batch for batches in shares for batch in batches], SCHEMA)


def _worker(
    share: Sequence[File], kinds: Sequence[str], most_characters: int
) -> Iterator[pa.RecordBatch]:
    """Yield rows as a worker process sends them."""
    # -P: nothing in the current folder can pose as a module.
    module = python_rows.__name__
    command = [sys.executable, "-P", "-m", module, str(most_characters), *kinds]
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    names = "\0".join(f"{root}\0{path}" for root, path in share)
    is_complete = False
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError, pa.ArrowException):  # of a worker that ended early
            with process.stdin as stdin:
                stdin.write(names.encode("utf-8", "surrogateescape"))
            with pa.ipc.open_stream(process.stdout) as stream:
                yield from stream
            is_complete = True
    if process.returncode or not is_complete:
        raise DataError(
            f"a process that parses Python files stopped with exit code {process.returncode}"
        )
