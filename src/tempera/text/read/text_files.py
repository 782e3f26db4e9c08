"""Pairs made of texts: a heading, or else the first sentence, asks for the rest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...errors import DataError, quantity
from ...forms.text_endings import HTML, is_text_file
from ...io.untrusted import refuse_irregular
from ...tables.tables import visible_files
from .html_text import markdown
from .pairs import Pairs

_CODE = (
    ".py",
    ".js",
    ".ts",
    ".java",
    ".kt",
    ".go",
    ".rs",
    ".c",
    ".h",
    ".cc",
    ".cpp",
    ".hpp",
    ".cs",
    ".rb",
    ".php",
    ".swift",
    ".scala",
    ".sh",
    ".sql",
    ".r",
    ".jl",
    ".lua",
)
_ENDINGS = 5  # most endings that a message names
# Closing signs of a heading stand behind a space.
_HEADING = re.compile(r"#{1,6}[ \t]+(.*?)(?:(?:(?<=[ \t])|[ \t]+)#+)?[ \t]*")
# The line that opens a block of code; code between fences of one line is no block.
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`]*\Z)|~{3,})")
# Sentences of Chinese and Japanese end without a space behind them; of Hindi, with a danda before
# one.
_SENTENCE = re.compile(
    r"(.+?(?:[.!?…।][\"')\]]*(?=\s)|[。！？]++[」』”’）]*+))\s*(\S.*)", re.DOTALL
)
_TITLE = re.compile(r"([^\n]{1,120})\n[ \t]*\n(.*)", re.DOTALL)  # a line of its own
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_BETWEEN = re.compile(
    r"(?:(?<=[.!?…।。！？])|(?<=[.!?…।。！？][\"')\]」』”’）]))\s+|\n[ \t]*\n\s*"
    r"|(?:(?<=[。！？])|(?<=[。！？][」』”’）]))(?![」』”’）。！？\s]|\Z)"
)
# YAML, which a name and a colon begin; a text between two rules begins otherwise.
_MATTER = re.compile(
    r"\A---[ \t]*\n(?=(?:[ \t]*(?:#.*)?\n)*[\w\"'-]+[ \t]*:)(.*?\n)(?:---|\.\.\.)[ \t]*(?=\n|\Z)",
    re.DOTALL,
)
_TITLED = re.compile(r"^title:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_DIVIDERS = (
    (_PARAGRAPH, "\n\n"),
    (re.compile(r"\n"), "\n"),
    (_BETWEEN, " "),
    (re.compile(r"\s+"), " "),
)

# The making of pairs, as a run reports it.
HEADING_ASKS = "query = heading or first sentence, doc = what follows it"
_NOT_UTF8 = "files that are not UTF-8"
UNDIVIDED = "parts of files, such as a heading alone, of which no pair can be made"


class Section(NamedTuple):
    """A text of a file with heading and line."""

    heading: str  # behind the heading of the page; empty for a text without a heading
    text: str
    line: int


@dataclass(frozen=True)
class TextFiles:
    """Sections of .txt, .md and .html files: a heading, or else the first sentence, is the query of
    the text below.

    A query begins with the first heading of the page. Long sections are divided between paragraphs;
    the first sentence of a later part is the part's query.

    Args:
        path: a file, or a folder of files.
        max_characters: a longer section is divided.
    """

    path: str
    max_characters: Annotated[int, Field(gt=0)] = 2000

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return all pairs; evaluation may use every pair.

        Raises:
            DataError: no such file, or no text of two sentences.
        """
        files = files_of(Path(self.path), is_text_file)
        dropped = unread(Path(self.path), files)
        queries: list[str] = []
        docs: list[str] = []
        places: list[str] = []
        for heading, text, place in passages(files, self.max_characters, dropped):
            pair = pair_of(heading, text)
            if pair is None:
                dropped[UNDIVIDED] += 1
                continue
            query, doc = pair
            queries.append(query)
            docs.append(doc)
            places.append(place)
        if not queries:
            fault = f"{self.path} holds no text of two sentences, or of a heading and a sentence"
            for reason, count in dropped.items():
                if reason != UNDIVIDED:
                    fault += f", and {quantity(count, reason)}"
            only_encoding = dropped.keys() == {_NOT_UTF8}
            remedy = "save them as UTF-8" if only_encoding else "give more text"
            raise DataError(f"{fault}: {remedy}")
        pairs = Pairs.of(queries, docs, name=queries, place=places)
        about = f"{self.path} holds {quantity(len(files), 'text files')}, of which pairs are made: {HEADING_ASKS}"
        pairs = replace(pairs, dropped={**dropped, **pairs.dropped}, about=about)
        return pairs, np.ones(len(pairs), bool)


def passages(
    files: Iterable[Path], most: int, dropped: Counter[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the heading, which may be empty, the text and the place of each part of files; files
    not in UTF-8 are counted."""
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            dropped[_NOT_UTF8] += 1
            continue
        if file.suffix.lower() in HTML:
            text = markdown(text)
        file_sections: Iterable[Section] = sections(text)
        if is_code(file):
            file_sections = [Section("", text.strip("\n"), 1)]
        for section in file_sections:
            for heading, part in parts_of(section, most):
                yield heading, part, f"{file}:{section.line}"


def is_code(path: Path) -> bool:
    """Return True if a file is source code, by its extension."""
    return path.suffix.lower() in _CODE


def sections(text: str) -> Iterator[Section]:
    r"""Yield the text before the first heading of Markdown, and the text below each heading.

    Front matter and comments are left out; a title in front matter is the first heading.

    >>> [tuple(section) for section in sections("# Tea\n\n## Green\n\nSteep it.\n")]
    [('', '', 1), ('Tea', '', 1), ('Tea: Green', 'Steep it.', 3)]
    """
    text, page = _without_matter(text)
    heading = page
    start = 1
    lines: list[str] = []
    fence = ""  # the signs that opened a block of code
    for number, line in enumerate(text.split("\n"), 1):
        if fence:
            mark = line.strip()
            if set(mark) == {fence[0]} and len(mark) >= len(fence):
                fence = ""
        else:
            opening = _FENCE.match(line)
            if opening is not None:
                fence = opening[1]
        match = None if fence else _HEADING.fullmatch(line)
        if match is None:
            lines.append(line)
            continue
        yield Section(heading, "\n".join(lines).strip(), start)
        title = match[1]
        heading = title or page
        if page and title not in ("", page):
            heading = f"{page}: {title}"
        start = number
        lines = []
        page = page or title
    yield Section(heading, "\n".join(lines).strip(), start)


def _without_matter(text: str) -> tuple[str, str]:
    """Return Markdown with empty lines in place of front matter (YAML at the top) and comments, and
    the title in the front matter, or an empty text."""
    title = ""
    matter = _MATTER.match(text)
    titled = matter and _TITLED.search(matter[1])
    if titled:
        title = titled[1].strip("\"'")
    text = _MATTER.sub(_empty_lines, text)
    # Behind the last end no comment is complete, and each beginning would be followed to the end.
    end = text.rfind("-->") + 3 if "-->" in text else 0
    return _COMMENT.sub(_empty_lines, text[:end]) + text[end:], title


def _empty_lines(match: re.Match[str]) -> str:
    """Return as many ends of lines as a text has."""
    return "\n" * match[0].count("\n")


def parts_of(section: Section, most: int) -> Iterator[tuple[str, str]]:
    """Yield the parts of a section, divided between paragraphs, with their headings: the heading of
    the section for the first part, none for the further parts."""
    heading = section.heading
    for part in _divided(section.text, most, _DIVIDERS):
        if part:
            yield heading, part
            heading = ""


def _divided(text: str, most: int, dividers: Sequence[tuple[re.Pattern[str], str]]) -> list[str]:
    """Return parts of a text.

    Args:
        most: most characters of a part.
        dividers: patterns between pieces, with the signs for joining pieces to a part; too long a
            piece is divided by the next divider.
    """
    if not dividers:
        return [text[i : i + most] for i in range(0, len(text), most)]
    between, sign = dividers[0]
    parts: list[str] = []
    for piece in between.split(text):
        if parts and len(parts[-1]) + len(sign) + len(piece) <= most:
            parts[-1] += sign + piece
        elif len(piece) <= most:
            parts.append(piece)
        else:
            parts += _divided(piece, most, dividers[1:])
    return parts


def pair_of(heading: str, text: str) -> tuple[str, str] | None:
    """Return a query and its text, or None if the text cannot be divided.

    The query is the heading, or else a title in a line of its own, or else the first sentence.

    Args:
        heading: the heading of the text, or an empty text.
        text: the text.

    >>> pair_of("", "Steep it. Then wait."), pair_of("Green", "Steep it."), pair_of("", "Steep it.")
    (('Steep it.', 'Then wait.'), ('Green', 'Steep it.'), None)
    """
    if heading:
        return (heading, text) if text else None
    divided = _TITLE.fullmatch(text) or _SENTENCE.fullmatch(text)
    if divided is None:
        return None
    query, rest = divided.groups()
    return " ".join(query.split()), rest


def unread(path: Path, files: Collection[Path]) -> Counter[str]:
    """Return the number of unread files of a folder, by a reason with the endings of the files, the
    most frequent first.

    Args:
        files: the files that are read.
    """
    counts = Counter[str]()
    for file in set(visible_files(path)).difference(files):
        if file.is_file():
            counts[file.suffix.lower() or "none"] += 1
    if not counts:
        return Counter()
    endings = sorted(counts, key=lambda ending: (-counts[ending], ending))
    named = ", ".join(endings[:_ENDINGS])
    if len(endings) > _ENDINGS:
        named += ", ..."
    return Counter({f"files with other endings ({named})": counts.total()})


def files_of(path: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    """Return the wanted files of a folder, in order; of a file, the path itself.

    Raises:
        DataError: no such file.
    """
    refuse_irregular(path)
    if not path.exists():
        raise DataError(f"no such file: {path}")
    if path.is_file():
        return [path]
    return sorted(file for file in visible_files(path) if wanted(file) and file.is_file())
