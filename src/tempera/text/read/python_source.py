"""Functions and classes of a Python source, with or without a docstring, and queries for code
without a docstring.

Indentation and brackets tell blocks, in a copy of the source with masked strings and comments: four
times as fast as a syntax tree, with the same result for every source without a syntax error.
"""

from __future__ import annotations

import ast
import re
import textwrap
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Row = tuple[str, str, str, int]  # name, query, code, line
Depths = NDArray[np.int32]  # number of open brackets at each position of a source

_NEWLINE = re.compile(
    r"\r\n?|\n"
)  # `str.splitlines` also splits at form feeds, which Python does not count as lines
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
# Without the possessive quantifiers, a string that is no docstring takes a time that doubles with
# each of its letters.
_LITERAL = r"[rRuU]?\"++(?:[ \t]*+[rRuU]?\"++)*+"
_DOCSTRING = re.compile(rf"\s*+({_LITERAL}|\((?:\s*+{_LITERAL})++\s*+\))[ \t]*+(?=[\n;]|\Z)")
_BLANK = re.compile(r"^[ \t]++$", re.MULTILINE)
_SPECIAL = re.compile(r"[\\\0\ud800-\udfff]")  # what a parser reads as something else, or refuses
_FIRST_PARAGRAPH = re.compile(r"\n\s*\n")
_NAME = re.compile(r"\A((?:async[ \t]+)?def[ \t]+)\w+")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))
_STEP = np.zeros(256, np.int8)  # what a character adds to the number of open brackets
for _opening, _closing in _BRACKETS:
    _STEP[[ord(_opening), ord(_closing)]] = 1, -1
_FEWEST_WORDS = 4  # of comments that ask for code
_LETTERS = 300  # of comments, at most
_FEWEST_LINES = 3  # of code that is asked for


class PythonSource:
    r"""A source, its copy with masked strings and comments, and its blocks.

    >>> next(PythonSource('def f(x):\n    "Double it."\n    return 2 * x\n').pairs())
    ('f', 'Double it.', 'def f(x):\n    return 2 * x', 1)
    """

    def __init__(self, text: str) -> None:
        if "\r" in text:
            text = _NEWLINE.sub("\n", text)
        if " \n" in text or "\t\n" in text:
            text = _BLANK.sub("", text)
        self.text = "\n" + text  # so that every line follows one
        self.all_comments = list[int]()  # where each comment begins
        self.masked = _OPAQUE.sub(self._mask, self.text)
        self.lines = self.text.split("\n")
        self.starts = [0, *accumulate(map((1).__add__, map(len, self.lines)))]
        self.depths = _depths(self.masked)
        self.blocks = _blocks(self.text, self.masked, self.depths)

    def line_of(self, position: int) -> int:
        """Return the number of the line of a position."""
        return bisect_right(self.starts, position) - 1

    def pairs(self) -> Iterator[Row]:
        """Yield every block with a docstring: qualified name, first paragraph, code without
        docstrings, line."""
        for block in self.blocks:
            if not block.documented:
                continue
            query = " ".join(_FIRST_PARAGRAPH.split(block.text.lstrip(), 1)[0].split())
            first = self.line_of(block.start)
            code = self._code(block, first, self.line_of(block.end - 1) + 1)
            if query and code:
                yield block.name, query, code, first

    def made(self) -> Iterator[Row]:
        r"""Yield queries for functions without a docstring, and the code without its name and lines
        of comments.

        A name of two words is a query, and so are comments of four words. Functions around or
        within a function with a docstring are left out, because the text of the docstring may be
        held out. A source with unmatched brackets has no such functions.

        >>> source = PythonSource('def read_date(text):\n    # Day first, as in Europe.\n    return int(text[:2])\n')
        >>> [row[1:3] for row in source.made()][1]
        ('Day first, as in Europe.', 'def (text):\n    return int(text[:2])')
        """
        for block, first, last in self._undocumented():
            if not block.asks:
                continue
            begin = bisect_left(self.comments, first)
            end = bisect_left(self.comments, last)
            inside = self.comments[begin:end]
            comments = [self.lines[i].strip().lstrip("#") for i in inside]
            kept = [self.lines[i] for i in range(first, last) if i not in inside]
            code = _NAME.sub(r"\1", _dedented(kept, block.indent).strip(), 1)
            words = " ".join(comments)[:_LETTERS].split()
            if len(_WORD.findall(block.own)) > 1:
                yield block.name, block.name, code, first
            if len(words) >= _FEWEST_WORDS:
                yield block.name, " ".join(words), code, first

    def unasked(self) -> Iterator[Row]:
        r"""Yield functions without a docstring, outside of functions, as `pairs` does, without a
        query.

        >>> list(PythonSource('class Date:\n    def read(text):\n        day = text[:2]\n        return int(day)\n').unasked())
        [('Date.read', '', 'def read(text):\n    day = text[:2]\n    return int(day)', 2)]
        """
        for block, first, last in self._undocumented():
            if not block.inner:
                yield block.name.replace(" ", "."), "", self._code(block, first, last), first

    def _undocumented(self) -> Iterator[tuple[_Block, int, int]]:
        """Yield functions without a docstring, with the number of the first line and of the line
        after the last; none if brackets do not match."""
        if any(self.masked.count(left) != self.masked.count(right) for left, right in _BRACKETS):
            return
        for block in self.blocks:
            if block.documented or block.is_class:
                continue
            end = block.end if block.end >= 0 else _end(self.masked, self.depths, block)
            first = self.line_of(block.start)
            last = self.line_of(end - 1) + 1
            if last - first >= _FEWEST_LINES:
                yield block, first, last

    def _code(self, block: _Block, first: int, last: int) -> str:
        """Return the lines of a block without docstrings."""
        kept = [line for line in self.bare[first:last] if line is not None]
        return _dedented(kept, block.indent).strip()

    @cached_property
    def bare(self) -> list[str | None]:
        """Return the lines without docstrings; None in the place of a docstring's own lines."""
        lines = list[str | None](self.lines)
        for block in self.blocks:
            if block.documented:
                begin, end = block.docstring
                first = self.line_of(begin)
                last = self.line_of(end - 1)
                lines[first : last + 1] = [None] * (last + 1 - first)
                # Of `def f(): "Text."` the definition stays.
                head = self.text[self.starts[first] : begin].rstrip()
                lines[first] = head or None
        return lines

    @cached_property
    def comments(self) -> list[int]:
        """Return the numbers of lines of a comment alone; lines of strings that look like comments
        are left out."""
        lines = list[int]()
        for position in self.all_comments:
            line = self.line_of(position)
            if not self.masked[self.starts[line] : position].strip(" \t"):
                lines.append(line)
        return lines

    def _mask(self, match: re.Match[str]) -> str:
        """Return quotes in place of a string, and spaces in place of a comment."""
        start, end = match.span()
        if self.text[start] != "#":
            return '"' * (end - start)
        self.all_comments.append(start)
        return " " * (end - start)


@dataclass
class _Block:
    """A function or class: its own name, start, end, and docstring, if any.

    The name is the qualified name; without a docstring, the names of the surrounding class and of
    the block.
    """

    own: str
    indent: int
    start: int
    is_class: bool
    # Known for blocks with a docstring or around a docstring, and for classes around blocks.
    end: int = -1
    docstring: tuple[int, int] = (0, 0)
    text: str = ""
    name: str = ""
    asks: bool = False  # a function without a docstring, neither in nor around a document
    inner: bool = False  # a function without a docstring in a function

    @property
    def documented(self) -> bool:
        """True with a docstring."""
        return self.docstring != (0, 0)


def _blocks(source: str, masked: str, depths: Depths) -> list[_Block]:
    """Return the blocks of a source, outer blocks first."""
    blocks = list[_Block]()
    around = list[_Block]()  # the blocks around the present head, and the present block
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
                    each.end = _end(masked, depths, each)
            outer = [each for each in around[:-1] if each.end < 0 or each.end > block.start]
            within = any(each.documented and not each.is_class for each in outer)
            block.asks = not (block.is_class or block.own.startswith("__") or within)
            block.inner = not all(each.is_class for each in outer)
            block.name = block.own
            if outer and outer[-1].is_class:
                block.name = f"{outer[-1].own} {block.own}"
            continue
        for each in around:
            if each.end < 0:
                each.end = _end(masked, depths, each)
        around = [outer for outer in around if outer.end > block.start]
        for each in around:
            each.asks = False  # it holds a document
        block.name = ".".join(outer.own for outer in around)
        block.docstring = place.span(1)
        block.text = text
    return blocks


def _depths(masked: str) -> Depths:
    """Return the number of open brackets before each character, and at the end."""
    # All brackets are of ASCII: other characters may become any other character.
    characters = np.frombuffer(masked.encode("latin-1", "replace"), np.uint8)
    depths = np.zeros(len(masked) + 1, np.int32)
    np.cumsum(_STEP[characters], out=depths[1:])
    return depths


def _colon(masked: str, start: int) -> int:
    """Return the position behind the colon of the head of a block."""
    simple = _SIMPLE_HEAD.match(masked, start)
    if simple is not None:
        return simple.end()
    depth = 0
    for sign in _SIGN.finditer(masked, start):
        if sign[0] == ":" and not depth:
            return sign.end()
        depth += (sign[0] in "([{") - (sign[0] in ")]}")
    return len(masked)


def _end(masked: str, depths: Depths, block: _Block) -> int:
    """Return the end of a block: of the last line before a line that is not indented more, outside
    brackets."""
    outdent = _outdent(block.indent)
    end = block.start
    while (line := outdent.search(masked, end)) is not None:
        end = line.start()
        if depths[end] == depths[block.start] and masked[end - 1] != "\\":
            break
        end += 1
    else:
        end = len(masked)
    return block.start + len(masked[block.start : end].rstrip())


@cache
def _outdent(indent: int) -> re.Pattern[str]:
    """Return the pattern of the beginning of a line that is not indented more."""
    return re.compile(rf"\n[ \t]{{0,{indent}}}\S")


def _text(literal: str) -> str | None:
    """Return the text of a docstring; None for bytes and formatted strings."""
    is_quoted = literal[:3] == '"""' and literal.find('"""', 3) == len(literal) - 3
    if is_quoted and not _SPECIAL.search(literal):
        return literal[3:-3]
    try:
        text = ast.literal_eval(literal)
    except (SyntaxError, ValueError):
        return None
    return text if isinstance(text, str) else None


def _dedented(lines: Sequence[str], indent: int) -> str:
    """Return lines, of which none is blank but not empty, as from `textwrap.dedent`, by the indent
    of the first line."""
    text = "\n".join(lines)
    if not indent:
        return text
    new_line = "\n" + lines[0][:indent]
    empty = lines.count("")  # the first line is not
    if text.count(new_line) < len(lines) - 1 - empty:
        return textwrap.dedent(text)
    return text.replace(new_line, "\n")[indent:]
