"""Rows of Python files: of functions and classes with a docstring, and of functions without one.

Run as a module, this file is a worker process: the worker reads paths from standard input and
writes an Arrow stream to standard output. It starts fast, because it imports little.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import signal
import sys
import tokenize
import warnings
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from .python_source import PythonSource

File = tuple[str, str]  # the root and the path
Row = tuple[str, ...]

BATCH = 100  # files of a batch of rows
# Columns of texts, and the kind of a row.
_COLUMNS = ("query", "doc", "name", "place", "root", "kind")
SCHEMA = pa.schema([(name, pa.large_string()) for name in _COLUMNS])
# Kinds of rows.
KINDS = {
    "pairs": PythonSource.pairs,
    "made": PythonSource.made,
    "unasked": PythonSource.unasked,
}
UNREAD = "unread"  # the kind of a row that stands for a file that cannot be read
# A docstring stands first after a colon; files without one are not read further.
_MAYBE_DOCSTRING = re.compile(r":[ \t]*(?:#[^\n]*)?\s*\n\s*[rRuU]?[\"']")


def work(stdin: BinaryIO, stdout: BinaryIO, kinds: Sequence[str], most_characters: int) -> None:
    """Parse the files named on standard input, as one worker, and write a batch of rows for every
    `BATCH` files; longer documents are cut to `most_characters`."""
    warnings.simplefilter("ignore")  # invalid escapes in other people's files
    gc.disable()  # syntax trees hold no cycles, and the collector took a third of the time
    parts = stdin.read().decode("utf-8", "surrogateescape").split("\0")
    files = list(zip(parts[::2], parts[1::2], strict=True))
    with pa.ipc.new_stream(stdout, SCHEMA) as stream:
        for start in range(0, len(files), BATCH):
            rows: list[Row] = []
            for root, path in files[start : start + BATCH]:
                rows += _rows_of_file(root, path, kinds)
            columns: dict[str, Sequence[str]] = dict(zip(_COLUMNS, zip(*rows), strict=False))
            columns["doc"] = [doc[:most_characters] for doc in columns.get("doc", ())]
            arrays = [_column(columns.get(name, ())) for name in _COLUMNS]
            stream.write_batch(pa.record_batch(arrays, schema=SCHEMA))


def _column(texts: Sequence[str]) -> pa.LargeStringArray:
    """Return a column of texts. Lone surrogates, of bytes without a meaning as text, are replaced.

    `pa.array` would load pandas, which takes longer than a hundred files.
    """
    written = [text.encode("utf-8", "replace") for text in texts]
    offsets = np.zeros(len(written) + 1, np.int64)
    np.cumsum([len(text) for text in written], out=offsets[1:])
    values = pa.py_buffer(b"".join(written))
    return pa.LargeStringArray.from_buffers(len(written), pa.py_buffer(offsets), values)


def _rows_of_file(root: str, path: str, kinds: Sequence[str]) -> list[Row]:
    """Return the rows of a file, each with the columns of `SCHEMA`.

    A file that cannot be read is a row of its own where the user has named the folder; of other
    people's files nothing is reported.
    """
    rows: list[Row] = []
    try:
        with tokenize.open(path) as file:
            text = file.read()
        if not _MAYBE_DOCSTRING.search(text) and "unasked" not in kinds:
            return rows
        stem, _ = os.path.splitext(path.removeprefix(os.path.join(root, "")))
        module = stem.replace(os.sep, ".").removesuffix(".__init__")
        source = PythonSource(text)
        for kind in kinds:
            for name, query, code, line in KINDS[kind](source):
                rows.append((query, code, f"{module}.{name}", f"{path}:{line}", root, kind))
        if not rows and "unasked" in kinds:
            compile(text, path, "exec", ast.PyCF_ONLY_AST)  # raises if the file is no Python
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError, OSError):
        # Not Python of this version, or unreadable.
        if "unasked" in kinds:
            rows.append(("", "", "", path, root, UNREAD))
    return rows


if __name__ == "__main__":
    # Ctrl-C ends a worker without a word; its parent reports.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    work(sys.stdin.buffer, sys.stdout.buffer, sys.argv[2:], int(sys.argv[1]))
