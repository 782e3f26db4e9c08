"""Pairs of docstrings and code from the installed Python, which every machine has.

Files are read as texts and never imported. The query is a docstring's first paragraph; the document is the
signature and body of the function or class without docstrings. Of functions without a docstring, rows are made that training
begins with: the name, or the comments, ask for the code. Parsing is shared out to worker processes; run as a
module, this file is such a worker: it reads paths from standard input and writes an Arrow stream to standard output.
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
import textwrap
import tokenize
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import DataError
from ..io.console import progress_bar
from .pairs import Pairs

File = tuple[str, str]  # the root and the path
Row = tuple[str, str, str, int]  # name, query, code, line

# A docstring stands first after a colon; files without one are not read further.
_MAYBE_DOCSTRING = re.compile(r":[ \t]*(?:#[^\n]*)?\s*\n\s*[rRuU]?[\"']")
_NEWLINE = re.compile(r"\r\n?|\n")  # `str.splitlines` also splits at form feeds, which Python does not count as lines
_OPAQUE = re.compile(  # strings and comments
    r'"""(?:[^\\"]+|\\.|"(?!""))*+"""'
    r"|'''(?:[^\\']+|\\.|'(?!''))*+'''"
    r'|"(?:[^"\\\n]+|\\.)*+"'
    r"|'(?:[^'\\\n]+|\\.)*+'"
    r"|#[^\n]*",
    re.DOTALL,
)
_HEAD = re.compile(r"\n([ \t]*)(async[ \t]+def|def|class)[ \t]+(\w+)")  # twice as fast as with ^
_SIMPLE_HEAD = re.compile(r"[^\n()\[\]{}:]*+(?:\([^()\[\]{}]*+\)[^\n()\[\]{}:]*+)?+:")
_SIGN = re.compile(r"[()\[\]{}:]")
_LITERAL = r"[rRuU]?\"+(?:[ \t]*[rRuU]?\"+)*"
_DOCSTRING = re.compile(rf"\s*({_LITERAL}|\((?:\s*{_LITERAL})+\s*\))[ \t]*(?=[\n;]|\Z)")
_BLANK = re.compile(r"^[ \t]++$", re.MULTILINE)
_SPECIAL = re.compile(r"[\\\0\ud800-\udfff]")  # what a parser reads as something else, or refuses
_FIRST_PARAGRAPH = re.compile(r"\n\s*\n")
_TEXTS = ("query", "doc", "name", "place", "root")
_SCHEMA = pa.schema([*((name, pa.large_string()) for name in _TEXTS), ("made", pa.bool_())])
_NAME = re.compile(r"\A((?:async[ \t]+)?def[ \t]+)\w+")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_FILES_A_BATCH = 100
_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))
_FEWEST_WORDS = 4  # of comments that ask for code
_LETTERS = 300  # of comments, at most
_FEWEST_LINES = 3  # of code that is asked for
_MOST_MADE = 2  # rows for each pair
_FEW_MADE = 1 << 15  # rows that are kept however few pairs there are


@dataclass(frozen=True)
class InstalledPython:
    """Functions and classes with a docstring, from the standard library and from site-packages.

    Args:
        roots: folders of Python files to read instead; evaluation then asks from all of them.
        workers: processes that parse; None is one a core.
        max_characters: longer documents are cut there.
    """

    roots: tuple[str, ...] = ()
    workers: int | None = None
    max_characters: int = 4000

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return all pairs; evaluation takes queries from the standard library, or from every root in `roots`."""
        roots = [Path(root).resolve() for root in self.roots] or installed_roots()
        for root in roots:
            if not root.is_dir():
                raise DataError(f"data.roots: no such folder: {root}")
        files = [(str(root), str(path)) for root in roots for path in python_files(root, others=roots)]
        if not files:
            raise DataError(f"no Python files under {', '.join(map(str, roots))}")
        table = _parse_all(files, self.workers or os.cpu_count() or 1)
        # Workers finish in any order; the order of roots and places makes the result the same on every run.
        rank = pc.index_in(table["root"], pa.array([str(root) for root in roots], pa.large_string()))
        order = [(name, "ascending") for name in ("rank", "place", "made", "query")]
        table = table.append_column("rank", rank).sort_by(order)
        table = table.set_column(
            _TEXTS.index("doc"), "doc", pc.utf8_slice_codeunits(table["doc"], 0, self.max_characters)
        )
        made, table = table.filter(table["made"]), table.filter(pc.invert(table["made"]))
        if not len(table):
            raise DataError(f"no function or class with a docstring in the {len(files)} files under {roots[0]}")
        pairs = Pairs.of(table["query"], table["doc"], table["name"], table["place"])
        most = max(_MOST_MADE * len(pairs), _FEW_MADE)
        made = made.take(pa.array(np.sort(np.random.default_rng(0).permutation(len(made))[:most])))
        pairs = replace(pairs, made=Pairs.of(made["query"], made["doc"], made["name"], made["place"]))
        about = f"{' and '.join(map(str, roots))} hold {len(files):,} Python files: query = docstring, doc = code"
        return replace(pairs, about=about), _asked(pairs, roots if self.roots else roots[:1], roots)


def _asked(pairs: Pairs, own: Sequence[Path], roots: Sequence[Path]) -> NDArray[np.bool_]:
    """Return which functions have one of `own` as their innermost root."""
    place, doc = pairs.table["place"], pairs.table["doc"]
    best, length = np.zeros(len(pairs), dtype=bool), np.zeros(len(pairs), dtype=np.int64)
    for root in roots:
        inside = pc.starts_with(place, pattern=f"{root}{os.sep}").to_numpy() & (len(str(root)) > length)
        best[inside], length[inside] = root in own, len(str(root))
    is_class: NDArray[np.bool_] = pc.match_substring_regex(doc, r"^class\b").to_numpy()
    return best & ~is_class


def installed_roots() -> list[Path]:
    """Return the folder of the standard library, then site-packages."""
    paths = sysconfig.get_paths()
    return list(dict.fromkeys(Path(paths[key]).resolve() for key in ("stdlib", "purelib", "platlib")))


def python_files(root: Path, others: Sequence[Path] = ()) -> Iterator[Path]:
    """Return Python files below a folder in a fixed order: none hidden, below another root, or in a site-packages of its own."""
    skip = {other.resolve() for other in others} - {root.resolve()}
    for folder, folders, files in os.walk(root):
        apart = ("site-packages", "dist-packages", "__pycache__")
        inner = {name for name in folders if name in apart or name.startswith(".")}
        folders[:] = sorted(n for n in folders if n not in inner and Path(folder, n).resolve() not in skip)
        own = (name for name in sorted(files) if name.endswith(".py") and not name.startswith("."))
        yield from (path for name in own if (path := Path(folder, name)).is_file())


def definitions(source: str) -> Iterator[Row]:
    r"""Yield every function and class with a docstring: qualified name, first paragraph, code without docstrings, line.

    Blocks are told by indentation and brackets in a copy of the source whose strings and comments are masked: four times as
    fast as a syntax tree, with the same result for every source that has one.

    >>> next(definitions('def f(x):\n    "Double it."\n    return 2 * x\n'))
    ('f', 'Double it.', 'def f(x):\n    return 2 * x', 1)
    """
    yield from _Source(source).pairs()


def unasked(source: str) -> Iterator[Row]:
    r"""Yield what asks for functions without a docstring, and their code without the name and lines of comments.

    The name asks if it has two words, and the comments if they have four. Functions that hold one with a docstring, or lie
    within one, are left out: its text may be held out.

    >>> [row[1:3] for row in unasked('def read_date(text):\n    # Day first, as in Europe.\n    return int(text[:2])\n')][1]
    ('Day first, as in Europe.', 'def (text):\n    return int(text[:2])')
    """
    yield from _Source(source).made()


class _Source:
    """A source, a copy of it whose strings and comments are masked, and its blocks."""

    def __init__(self, text: str) -> None:
        self.text = "\n" + (_NEWLINE.sub("\n", text) if "\r" in text else text)  # so that every line follows one
        self.masked = _OPAQUE.sub(_mask, self.text)
        self.lines = self.text.split("\n")
        self.starts = [0, *accumulate(map((1).__add__, map(len, self.lines)))]
        self.blocks = _blocks(self.text, self.masked)

    def line_of(self, position: int) -> int:
        """Return the number of the line that holds a position."""
        return bisect_right(self.starts, position) - 1

    def pairs(self) -> Iterator[Row]:
        """Yield the blocks with a docstring, and their code without any."""
        documented, lines = [block for block in self.blocks if block.documented], list[str | None](self.lines)
        for block in documented:
            first, end = self.line_of(block.docstring[0]), self.line_of(block.docstring[1] - 1) + 1
            # Of `def f(): "Text."` the definition stays.
            head = self.text[self.starts[first] : block.docstring[0]].rstrip()
            lines[first:end] = [head or None, *[None] * (end - first - 1)]
        for block in documented:
            query = " ".join(_FIRST_PARAGRAPH.split(block.text.lstrip(), 1)[0].split())
            first = self.line_of(block.start)
            kept = [line for line in lines[first : self.line_of(block.end - 1) + 1] if line is not None]
            code = _dedented(kept, block.indent).strip()
            if query and code:
                yield block.name, query, code, first

    def made(self) -> Iterator[Row]:
        """Yield what asks for functions without a docstring, and their code; nothing of a source whose brackets do not match."""
        if any(self.masked.count(left) != self.masked.count(right) for left, right in _BRACKETS):
            return
        for block in self.blocks:
            if not block.asks:
                continue
            end = block.end if block.end >= 0 else _end(self.masked, block)
            first, last = self.line_of(block.start), self.line_of(end - 1) + 1
            if last - first < _FEWEST_LINES:
                continue
            kept, comments = self.lines[first:last], list[str]()
            if inside := self.comments[bisect_left(self.comments, first) : bisect_left(self.comments, last)]:
                comments = [self.lines[i].strip().lstrip("#") for i in inside]
                kept = [line for i, line in enumerate(kept, first) if i not in inside]
            code = _NAME.sub(r"\1", _dedented(kept, block.indent).strip(), 1)
            words = " ".join(comments)[:_LETTERS].split()
            if len(_WORD.findall(block.own)) > 1:
                yield block.name, block.name, code, first
            if len(words) >= _FEWEST_WORDS:
                yield block.name, " ".join(words), code, first

    @cached_property
    def comments(self) -> list[int]:
        """Return the numbers of lines that hold a comment alone; lines of strings may only look like one."""
        spans = (match.span() for match in _COMMENT.finditer(self.text))
        return [self.line_of(start) for start, end in spans if not self.masked[start:end].strip()]


@dataclass
class _Block:
    """A function or class: its own name, where it starts and ends, and its docstring, if it has one.

    The name is the qualified one, or without a docstring that of the class around it and its own.
    """

    own: str
    indent: int
    start: int
    is_class: bool
    end: int = -1  # known for blocks with a docstring, for those around them, and for classes around others
    docstring: tuple[int, int] = (0, 0)
    text: str = ""
    name: str = ""
    asks: bool = False  # whether it is a function without a docstring that is no part of a document, and holds none

    @property
    def documented(self) -> bool:
        """True with a docstring."""
        return self.docstring != (0, 0)


def _blocks(source: str, masked: str) -> list[_Block]:
    """Return the blocks of a source, outer ones first."""
    blocks, around = list[_Block](), list[_Block]()
    for head in _HEAD.finditer(masked):
        block = _Block(head[3], len(head[1]), head.start(1), head[2] == "class")
        around = [outer for outer in around if outer.indent < block.indent]
        around.append(block)
        blocks.append(block)
        place = _DOCSTRING.match(masked, _colon(masked, head.end()))
        text = place and _text(source[slice(*place.span(1))])
        if place is None or text is None:
            for each in around[:-1]:
                if each.is_class and each.end < 0:
                    each.end = _end(masked, each)
            outer = [each for each in around[:-1] if each.end < 0 or each.end > block.start]
            within = any(each.documented and not each.is_class for each in outer)
            block.asks = not (block.is_class or block.own.startswith("__") or within)
            block.name = f"{outer[-1].own} {block.own}" if outer and outer[-1].is_class else block.own
            continue
        for each in around:
            each.end = each.end if each.end >= 0 else _end(masked, each)
        around = [outer for outer in around if outer.end > block.start]
        for each in around:
            each.asks = False  # it holds a document
        block.name = ".".join(outer.own for outer in around)
        block.docstring, block.text = place.span(1), text
    return blocks


def _mask(match: re.Match[str]) -> str:
    """Return quotes in place of a string, and spaces in place of a comment."""
    text = match[0]
    return (" " if text[0] == "#" else '"') * len(text)


def _colon(masked: str, start: int) -> int:
    """Return the position behind the colon that ends the head of a block."""
    if simple := _SIMPLE_HEAD.match(masked, start):
        return simple.end()
    depth = 0
    for sign in _SIGN.finditer(masked, start):
        if sign[0] == ":" and not depth:
            return sign.end()
        depth += (sign[0] in "([{") - (sign[0] in ")]}")
    return len(masked)


def _end(masked: str, block: _Block) -> int:
    """Return the end of a block: of the last line before one that is not indented more, outside brackets."""
    outdent = re.compile(rf"\n[ \t]{{0,{block.indent}}}\S")
    end = counted = block.start
    depths = [0] * len(_BRACKETS)
    while (line := outdent.search(masked, end)) is not None:
        end = line.start()
        for i, signs in enumerate(_BRACKETS):
            opened, closed = (masked.count(sign, counted, end) for sign in signs)
            depths[i] += opened - closed
        counted = end
        if not any(depths) and masked[end - 1] != "\\":
            break
        end += 1
    else:
        end = len(masked)
    return block.start + len(masked[block.start : end].rstrip())


def _text(literal: str) -> str | None:
    """Return the text of a docstring; None for bytes and formatted strings."""
    if literal[:3] == '"""' and literal.find('"""', 3) == len(literal) - 3 and not _SPECIAL.search(literal):
        return literal[3:-3]
    try:
        text = ast.literal_eval(literal)
    except (SyntaxError, ValueError):
        return None
    return text if isinstance(text, str) else None


def _dedented(lines: Sequence[str], indent: int) -> str:
    """Return what `textwrap.dedent` returns of lines of which the first has this indent."""
    margin, text = lines[0][:indent], _BLANK.sub("", "\n".join(lines))
    if re.search(rf"\n(?!\n|{margin}|\Z)", text):
        return textwrap.dedent(text)
    return text.replace("\n" + margin, "\n")[indent:]


def _parse_all(files: Sequence[File], workers: int) -> pa.Table:
    """Parse files in worker processes, largest first, and gather the rows."""
    by_size = sorted(files, key=lambda file: -os.stat(file[1]).st_size)
    workers = max(1, min(workers, len(files) // _FILES_A_BATCH))
    with progress_bar("reading Python files", len(files), "file") as bar:

        def ask(share: Sequence[File]) -> list[pa.RecordBatch]:
            parts = []
            for batch in _worker(share):
                parts.append(batch)
                bar.update(min(_FILES_A_BATCH, len(files) - bar.n))
            return parts

        with ThreadPoolExecutor(workers) as pool:
            shares = list(pool.map(ask, [by_size[i::workers] for i in range(workers)]))
        bar.update(len(files) - bar.n)
    return pa.Table.from_batches([batch for batches in shares for batch in batches], _SCHEMA)


def _worker(share: Sequence[File]) -> Iterator[pa.RecordBatch]:
    """Yield rows as a worker process sends them."""
    command = [sys.executable, "-P", "-m", __name__]  # -P: nothing in the current folder can pose as a module
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    whole = False
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError, pa.ArrowException):  # of a worker that ended early
            with process.stdin as stdin:
                stdin.write("\0".join(part for file in share for part in file).encode("utf-8", "surrogateescape"))
            with pa.ipc.open_stream(process.stdout) as stream:
                yield from stream
            whole = True
    if process.returncode or not whole:
        raise DataError(f"a process that parses Python files stopped with exit code {process.returncode}")


def _work(stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Parse, as one worker, the files named on standard input, a batch of rows for every `_FILES_A_BATCH` files."""
    warnings.simplefilter("ignore")  # invalid escapes in other people's files
    gc.disable()  # syntax trees hold no cycles, and the collector took a third of the time
    parts = stdin.read().decode("utf-8", "surrogateescape").split("\0")
    files = list(zip(parts[::2], parts[1::2], strict=True))
    with pa.ipc.new_stream(stdout, _SCHEMA) as stream:
        for start in range(0, len(files), _FILES_A_BATCH):
            rows = [row for root, path in files[start : start + _FILES_A_BATCH] for row in _rows(root, path)]
            columns = list(zip(*rows, strict=True)) or [()] * len(_SCHEMA)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
            stream.write_batch(pa.record_batch(arrays, schema=_SCHEMA))


def _rows(root: str, path: str) -> Iterator[tuple[str | bool, ...]]:
    try:
        with tokenize.open(path) as file:
            source = file.read()
        if not _MAYBE_DOCSTRING.search(source):
            return
        module = (
            os.path.splitext(path.removeprefix(os.path.join(root, "")))[0]
            .replace(os.sep, ".")
            .removesuffix(".__init__")
        )
        read = _Source(source)
        for rows, made in ((read.pairs(), False), (read.made(), True)):
            for name, query, code, line in rows:
                yield *map(_clean, (query, code, f"{module}.{name}", f"{path}:{line}", root)), made
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError, OSError):
        return  # not Python of this version, or unreadable: other people's file, not ours to report


def _clean(text: str) -> str:
    """Return text that Arrow can hold, with lone surrogates replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a word; its parent tells
    _work(sys.stdin.buffer, sys.stdout.buffer)
