"""Pairs of docstrings and code from the installed Python, which every machine has.

Files are read as texts and never imported. The query is a docstring's first paragraph; the document
is the signature and body of the function or class without docstrings. Of functions without a
docstring, rows are made that training begins with: the name, or the comments, ask for the code;
those of folders that a user names are searched, too. Parsing is shared out to worker processes; run
as a module, this file is such a worker: it reads paths from standard input and writes an Arrow
stream to standard output.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import DataError, quantity
from ...io.console import progress_bar
from ...io.texts import encodable
from ...tables.tables import visible_files
from .pairs import RANKED, TRAIN, Pairs
from .parts import joined
from .python_source import PythonSource
from .text_files import unread

File = tuple[str, str]  # the root and the path

# A docstring stands first after a colon; files without one are not read further.
_MAYBE_DOCSTRING = re.compile(r":[ \t]*(?:#[^\n]*)?\s*\n\s*[rRuU]?[\"']")
_TEXTS = ("query", "doc", "name", "place", "root")
_SCHEMA = pa.schema([*((name, pa.large_string()) for name in _TEXTS), ("kind", pa.string())])
_KINDS = {
    "pairs": PythonSource.pairs,
    "made": PythonSource.made,
    "unasked": PythonSource.unasked,
}  # of rows
_UNREAD, _CANNOT = "unread", "Python files that cannot be read"
_FILES_A_BATCH = 100
_MOST_MADE = 2  # rows for each pair
_FEW_MADE = 1 << 15  # rows that are kept however few pairs there are


@dataclass(frozen=True)
class InstalledPython:
    """Functions and classes with a docstring, from the standard library and from site-packages.

    Args:
        roots: folders of Python files to read instead; evaluation then asks from all of them, and
            functions without a docstring are ranked and searched, too.
        workers: processes that parse; None is one a core.
        max_characters: longer documents are cut there.
    """

    roots: tuple[str, ...] = ()
    workers: int | None = None
    max_characters: int = 4000

    @property
    def folders(self) -> list[Path]:
        """Return `roots`, or else the folders of the installed Python."""
        return [Path(root).resolve() for root in self.roots] or installed_roots()

    @property
    def foreword(self) -> str | None:
        """Return what a run says before it reads where nobody has named data; None where `roots`
        are named."""
        where = " and ".join(map(str, self.folders))
        text = f"reading the code of the installed Python, {where}: tempera train FILE trains on your own pairs"
        return None if self.roots else text

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return all pairs; evaluation takes queries from the standard library, or from every root
        in `roots`."""
        roots = self.folders
        for root in roots:
            if not root.is_dir():
                raise DataError(f"data.roots: no such folder: {root}")
        files = [
            (str(root), str(path)) for root in roots for path in python_files(root, others=roots)
        ]
        if not files:
            raise DataError(f"no Python files under {', '.join(map(str, roots))}")
        wanted = [kind for kind in _KINDS if self.roots or kind != "unasked"]
        table = _parse_all(files, self.workers or os.cpu_count() or 1, wanted)
        # Workers finish in any order; the order of roots and places makes the result the same on
        # every run.
        rank = pc.index_in(
            table["root"], pa.array([str(root) for root in roots], pa.large_string())
        )
        order = [(name, "ascending") for name in ("rank", "place", "kind", "query")]
        table = table.append_column("rank", rank).sort_by(order)
        table = table.set_column(
            _TEXTS.index("doc"),
            "doc",
            pc.utf8_slice_codeunits(table["doc"], 0, self.max_characters),
        )
        kinds = {kind: table.filter(pc.equal(table["kind"], kind)) for kind in _KINDS}
        lost = Counter({_CANNOT: pc.sum(pc.equal(table["kind"], _UNREAD)).as_py() or 0})
        if not len(kinds["pairs"]):
            and_lost = f"; of them {lost[_CANNOT]} cannot be read" if lost[_CANNOT] else ""
            raise DataError(
                f"no function or class with a docstring in the {len(files)} files under {roots[0]}{and_lost}"
            )
        pairs, unasked = _pairs(kinds["pairs"]), replace(_pairs(kinds["unasked"]), dropped={})
        most = max(_MOST_MADE * len(pairs), _FEW_MADE)
        chosen = np.sort(np.random.default_rng(0).permutation(len(kinds["made"]))[:most])
        made = _pairs(kinds["made"].take(pa.array(chosen)))
        pairs = joined({TRAIN: pairs, RANKED: unasked} if len(unasked) else {TRAIN: pairs})
        hold = "hold" if len(roots) > 1 else "holds"
        others = +lost
        for own in map(Path, self.roots):
            others += unread(own, [file for file in visible_files(own) if file.suffix == ".py"])
        about = f"{' and '.join(map(str, roots))} {hold} {quantity(len(files), 'Python files')}: query = docstring, doc = code"
        pairs = replace(pairs, made=made, about=about, dropped={**pairs.dropped, **others})
        return pairs, _asked(pairs, roots if self.roots else roots[:1], roots)


def _pairs(table: pa.Table) -> Pairs:
    return Pairs.of(table["query"], table["doc"], table["name"], table["place"])


def _asked(pairs: Pairs, own: Sequence[Path], roots: Sequence[Path]) -> NDArray[np.bool_]:
    """Return which functions have one of `own` as their innermost root."""
    place, doc = pairs.table["place"], pairs.table["doc"]
    best, length = np.zeros(len(pairs), dtype=bool), np.zeros(len(pairs), dtype=np.int64)
    for root in roots:
        inside = pc.starts_with(place, pattern=f"{root}{os.sep}").to_numpy() & (
            len(str(root)) > length
        )
        best[inside], length[inside] = root in own, len(str(root))
    is_class: NDArray[np.bool_] = pc.match_substring_regex(doc, r"^class\b").to_numpy()
    return best & ~is_class


def installed_roots() -> list[Path]:
    """Return the folder of the standard library, then site-packages."""
    paths = sysconfig.get_paths()
    return list(
        dict.fromkeys(Path(paths[key]).resolve() for key in ("stdlib", "purelib", "platlib"))
    )


def python_files(root: Path, others: Sequence[Path] = ()) -> Iterator[Path]:
    """Return Python files below a folder in a fixed order: none hidden, below another root, or in a
    site-packages of its own."""
    skip = {other.resolve() for other in others} - {root.resolve()}
    for folder, folders, files in os.walk(root):
        apart = ("site-packages", "dist-packages", "__pycache__")
        inner = {name for name in folders if name in apart or name.startswith(".")}
        folders[:] = sorted(
            n for n in folders if n not in inner and Path(folder, n).resolve() not in skip
        )
        own = (name for name in sorted(files) if name.endswith(".py") and not name.startswith("."))
        yield from (path for name in own if (path := Path(folder, name)).is_file())


def _parse_all(files: Sequence[File], workers: int, kinds: Sequence[str]) -> pa.Table:
    """Parse files in worker processes, largest first, and gather the rows of some kinds."""
    by_size = sorted(files, key=lambda file: -os.stat(file[1]).st_size)
    workers = max(1, min(workers, len(files) // _FILES_A_BATCH))
    with progress_bar("reading Python files", len(files), "file") as bar:

        def ask(share: Sequence[File]) -> list[pa.RecordBatch]:
            parts = []
            for batch in _worker(share, kinds):
                parts.append(batch)
                bar.update(min(_FILES_A_BATCH, len(files) - bar.n))
            return parts

        with ThreadPoolExecutor(workers) as pool:
            shares = list(pool.map(ask, [by_size[i::workers] for i in range(workers)]))
        bar.update(len(files) - bar.n)
    return pa.Table.from_batches([batch for batches in shares for batch in batches], _SCHEMA)


def _worker(share: Sequence[File], kinds: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield rows as a worker process sends them."""
    command = [
        sys.executable,
        "-P",
        "-m",
        __name__,
        *kinds,
    ]  # -P: nothing in the current folder can pose as a module
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    whole = False
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError, pa.ArrowException):  # of a worker that ended early
            with process.stdin as stdin:
                stdin.write(
                    "\0".join(part for file in share for part in file).encode(
                        "utf-8", "surrogateescape"
                    )
                )
            with pa.ipc.open_stream(process.stdout) as stream:
                yield from stream
            whole = True
    if process.returncode or not whole:
        raise DataError(
            f"a process that parses Python files stopped with exit code {process.returncode}"
        )


def _work(stdin: BinaryIO, stdout: BinaryIO, kinds: Sequence[str]) -> None:
    """Parse, as one worker, the files named on standard input, a batch of rows for every
    `_FILES_A_BATCH` files."""
    warnings.simplefilter("ignore")  # invalid escapes in other people's files
    gc.disable()  # syntax trees hold no cycles, and the collector took a third of the time
    parts = stdin.read().decode("utf-8", "surrogateescape").split("\0")
    files = list(zip(parts[::2], parts[1::2], strict=True))
    with pa.ipc.new_stream(stdout, _SCHEMA) as stream:
        for start in range(0, len(files), _FILES_A_BATCH):
            rows = [
                row
                for root, path in files[start : start + _FILES_A_BATCH]
                for row in _rows(root, path, kinds)
            ]
            columns = list(zip(*rows, strict=True)) or [()] * len(_SCHEMA)
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)
            ]
            stream.write_batch(pa.record_batch(arrays, schema=_SCHEMA))


def _rows(root: str, path: str, kinds: Sequence[str]) -> Iterator[tuple[str, ...]]:
    try:
        with tokenize.open(path) as file:
            source = file.read()
        if not _MAYBE_DOCSTRING.search(source) and "unasked" not in kinds:
            return
        module = (
            os.path.splitext(path.removeprefix(os.path.join(root, "")))[0]
            .replace(os.sep, ".")
            .removesuffix(".__init__")
        )
        read, empty = PythonSource(source), True
        for kind in kinds:
            for name, query, code, line in _KINDS[kind](read):
                empty = False
                yield (
                    *map(encodable, (query, code, f"{module}.{name}", f"{path}:{line}", root)),
                    kind,
                )
        if empty and "unasked" in kinds:
            compile(source, path, "exec", ast.PyCF_ONLY_AST)  # tells why nothing was read
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError, OSError):
        # Not Python of this version, or unreadable; of other people's files nobody is told.
        if "unasked" in kinds:
            yield "", "", "", encodable(path), root, _UNREAD


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # Ctrl-C ends a worker without a word; its parent tells
    _work(sys.stdin.buffer, sys.stdout.buffer, sys.argv[1:])
