"""Pairs from plain text, Markdown and HTML: a heading, or else the first sentence, with the text that follows it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..io.untrusted import refuse_irregular
from .html_text import markdown
from .pairs import Pairs

_HTML = (".html", ".htm")
_SUFFIXES = (".txt", ".md", ".markdown", *_HTML)
_CODE = (
    *(".py", ".js", ".ts", ".java", ".kt", ".go", ".rs", ".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".rb", ".php"),
    *(".swift", ".scala", ".sh", ".sql", ".r", ".jl", ".lua"),
)
_HEADING = re.compile(r"#{1,6}[ \t]+(.*?)[ \t#]*")
_FENCE = re.compile(r"[ \t]*(```|~~~)")
_SENTENCE = re.compile(r"(.+?[.!?…][\"')\]]*)\s+(\S.*)", re.DOTALL)
_TITLE = re.compile(r"([^\n]{1,120})\n[ \t]*\n(.*)", re.DOTALL)  # a line of its own
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")


class Section(NamedTuple):
    """A text of a file, its heading with that of the page before it, empty without one, and its line."""

    heading: str
    text: str
    line: int


@dataclass(frozen=True)
class TextFiles:
    """Sections of .txt, .md and .html files: a heading, or else the first sentence, is the query of the text that follows it.

    A heading stands behind the first one of its page. Long sections are divided between paragraphs, and the later parts
    are asked for by their first sentence, as in the inverse cloze task (Lee et al. 2019).

    Args:
        path: a file, or a folder of them.
        max_characters: a longer section is divided.
    """

    path: str
    max_characters: int = 2000

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return all pairs; evaluation may use every one of them.

        Raises:
            DataError: no such file, or no text of two sentences.
        """
        files, dropped, rows = files_of(Path(self.path), is_text_file), Counter[str](), []
        for heading, text, place in passages(files, self.max_characters, dropped):
            if pair := pair_of(heading, text):
                rows.append((*pair, pair[0], place))
        if not rows:
            raise DataError(
                f"{self.path} holds no text of two sentences, or of a heading and a sentence: give more text"
            )
        pairs = Pairs.of(*zip(*rows, strict=True))
        about = f"{self.path} holds {len(files):,} text files: query = heading or first sentence, doc = what follows it"
        return replace(pairs, dropped={**dropped, **pairs.dropped}, about=about), np.ones(len(pairs), bool)


def passages(files: Iterable[Path], most: int, dropped: Counter[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the heading, which may be empty, the text and the place of each part of files; those that are not UTF-8 are counted."""
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            dropped["files that are not UTF-8"] += 1
            continue
        text = markdown(text) if file.suffix.lower() in _HTML else text
        for section in [Section("", text.strip("\n"), 1)] if is_code(file) else sections(text):
            yield from ((*part, f"{file}:{section.line}") for part in parts_of(section, most))


def is_text_file(path: Path) -> bool:
    """Return whether a file is plain text or Markdown, by its extension."""
    return path.suffix.lower() in _SUFFIXES


def is_code(path: Path) -> bool:
    """Return whether a file is source code, by its extension."""
    return path.suffix.lower() in _CODE


def sections(text: str) -> Iterator[Section]:
    r"""Yield what stands below each heading of Markdown, and what stands before the first.

    >>> [tuple(section) for section in sections("# Tea\n\n## Green\n\nSteep it.\n")]
    [('', '', 1), ('Tea', '', 1), ('Tea: Green', 'Steep it.', 3)]
    """
    page, heading, start, lines, fenced = "", "", 1, list[str](), False
    for number, line in enumerate(text.split("\n"), 1):
        fenced ^= bool(_FENCE.match(line))
        title = None if fenced else _HEADING.fullmatch(line)
        if title is None:
            lines.append(line)
            continue
        yield Section(heading, "\n".join(lines).strip(), start)
        heading, start, lines = f"{page}: {title[1]}" if page else title[1], number, []
        page = page or title[1]
    yield Section(heading, "\n".join(lines).strip(), start)


def pairs_of(section: Section, most: int) -> Iterator[tuple[str, str]]:
    """Yield the query of each part of a section, and its text.

    >>> list(pairs_of(Section("", "Steep it. Then wait.\\n\\nDrink it. Now.", 1), 25))
    [('Steep it.', 'Then wait.'), ('Drink it.', 'Now.')]
    """
    for heading, part in parts_of(section, most):
        if pair := pair_of(heading, part):
            yield pair


def parts_of(section: Section, most: int) -> Iterator[tuple[str, str]]:
    """Yield the parts of a section, divided between paragraphs, the first of them with the heading."""
    parts: list[str] = []
    for paragraph in _PARAGRAPH.split(section.text):
        for piece in [paragraph] if len(paragraph) <= most else paragraph.split("\n"):
            if parts and len(parts[-1]) + len(piece) <= most:
                parts[-1] += f"\n\n{piece}"
            else:
                parts.append(piece)
    for i, part in enumerate(filter(None, parts)):
        yield ("" if i else section.heading), part


def pair_of(heading: str, text: str) -> tuple[str, str] | None:
    """Return the heading of a text, or else its first sentence, and what follows; None for a text of one sentence.

    >>> pair_of("", "Steep it. Then wait."), pair_of("Green", "Steep it."), pair_of("", "Steep it.")
    (('Steep it.', 'Then wait.'), ('Green', 'Steep it.'), None)
    """
    if heading:
        return heading, text
    divided = _TITLE.fullmatch(text) or _SENTENCE.fullmatch(text)
    return None if divided is None else (" ".join(divided[1].split()), divided[2])


def files_of(path: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    """Return the files of a folder that are wanted, in order; of anything else, the path itself.

    Raises:
        DataError: no such file.
    """
    refuse_irregular(path)
    if not path.exists():
        raise DataError(f"no such file: {path}")
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and wanted(file))
