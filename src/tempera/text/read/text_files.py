"""Pairs that are made of texts: a heading, or else the first sentence, asks for the rest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...errors import DataError, quantity
from ...io.untrusted import refuse_irregular
from ...tables.tables import visible_files
from .html_text import markdown
from .pairs import Pairs

_HTML = (".html", ".htm")
_SUFFIXES = (".txt", ".md", ".markdown", *_HTML)
_CODE = (
    *(
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
    ),
    *(".swift", ".scala", ".sh", ".sql", ".r", ".jl", ".lua"),
)
_ENDINGS = 5  # that are named
_HEADING = re.compile(
    r"#{1,6}[ \t]+(.*?)(?:(?:(?<=[ \t])|[ \t]+)#+)?[ \t]*"
)  # signs at the end stand behind a space
_FENCE = re.compile(
    r"[ \t]*(`{3,}(?=[^`]*\Z)|~{3,})"
)  # opens a block; what it holds in its own line is no block
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

# How pairs are made of texts, as a run tells it.
HEADING_ASKS = "query = heading or first sentence, doc = what follows it"
_NOT_UTF8 = "files that are not UTF-8"
UNDIVIDED = "parts of files, such as a heading alone, of which no pair can be made"


class Section(NamedTuple):
    """A text of a file, its heading with that of the page before it, empty without one, and its
    line."""

    heading: str
    text: str
    line: int


@dataclass(frozen=True)
class TextFiles:
    """Sections of .txt, .md and .html files: a heading, or else the first sentence, is the query of
    the text that follows it.

    A heading stands behind the first one of its page. Long sections are divided between paragraphs,
    and the later parts are asked for by their first sentence.

    Args:
        path: a file, or a folder of them.
        max_characters: a longer section is divided.
    """

    path: str
    max_characters: Annotated[int, Field(gt=0)] = 2000

    def read(self, folder: Path | None = None) -> tuple[Pairs, NDArray[np.bool_]]:
        """Return all pairs; evaluation may use every one of them.

        Raises:
            DataError: no such file, or no text of two sentences.
        """
        files, rows = files_of(Path(self.path), is_text_file), []
        dropped = unread(Path(self.path), files)
        for heading, text, place in passages(files, self.max_characters, dropped):
            if pair := pair_of(heading, text):
                rows.append((*pair, pair[0], place))
            else:
                dropped[UNDIVIDED] += 1
        if not rows:
            raise DataError(
                f"{self.path} holds no text of two sentences, or of a heading and a sentence"
                + "".join(
                    f", and {quantity(count, what)}"
                    for what, count in dropped.items()
                    if what != UNDIVIDED
                )
                + (": save them as UTF-8" if dropped.keys() == {_NOT_UTF8} else ": give more text")
            )
        pairs = Pairs.of(*zip(*rows, strict=True))
        about = f"{self.path} holds {quantity(len(files), 'text files')}, of which pairs are made: {HEADING_ASKS}"
        return replace(pairs, dropped={**dropped, **pairs.dropped}, about=about), np.ones(
            len(pairs), bool
        )


def passages(
    files: Iterable[Path], most: int, dropped: Counter[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the heading, which may be empty, the text and the place of each part of files; those
    that are not UTF-8 are counted."""
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            dropped[_NOT_UTF8] += 1
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

    Front matter and comments are left out; a title in front matter is the first heading.

    >>> [tuple(section) for section in sections("# Tea\n\n## Green\n\nSteep it.\n")]
    [('', '', 1), ('Tea', '', 1), ('Tea: Green', 'Steep it.', 3)]
    """
    text, page = _without_matter(text)
    heading, start, lines, fence = page, 1, list[str](), ""
    for number, line in enumerate(text.split("\n"), 1):
        if fence:
            fence = (
                fence if set(mark := line.strip()) != {fence[0]} or len(mark) < len(fence) else ""
            )
        elif opening := _FENCE.match(line):
            fence = opening[1]
        title = None if fence else _HEADING.fullmatch(line)
        if title is None:
            lines.append(line)
            continue
        yield Section(heading, "\n".join(lines).strip(), start)
        apart = page and title[1] not in ("", page)
        heading, start, lines = f"{page}: {title[1]}" if apart else title[1] or page, number, []
        page = page or title[1]
    yield Section(heading, "\n".join(lines).strip(), start)


def _without_matter(text: str) -> tuple[str, str]:
    """Return Markdown with empty lines for its front matter (the YAML before it) and its comments,
    and the title that it gives."""
    matter = _MATTER.match(text)
    title = matter and _TITLED.search(matter[1])
    for each in (_MATTER, _COMMENT):
        text = each.sub(lambda match: "\n" * match[0].count("\n"), text)
    return text, title[1].strip("\"'") if title else ""


def parts_of(section: Section, most: int) -> Iterator[tuple[str, str]]:
    """Yield the parts of a section, divided between paragraphs, the first of them with the
    heading."""
    for i, part in enumerate(filter(None, _divided(section.text, most, *_DIVIDERS))):
        yield ("" if i else section.heading), part


def _divided(text: str, most: int, *dividers: tuple[re.Pattern[str], str]) -> list[str]:
    """Return parts of at most so many characters, divided where the first divider is; longer pieces
    by the next ones."""
    if not dividers:
        return [text[i : i + most] for i in range(0, len(text), most)]
    (between, sign), *finer = dividers
    parts = list[str]()
    for piece in between.split(text):
        if parts and len(parts[-1]) + len(sign) + len(piece) <= most:
            parts[-1] += sign + piece
        else:
            parts += [piece] if len(piece) <= most else _divided(piece, most, *finer)
    return parts


def pair_of(heading: str, text: str) -> tuple[str, str] | None:
    """Return a query and the text that it asks for, or None if the text cannot be divided.

    The query is the heading, or else a title in a line of its own, or else the first sentence.

    Args:
        heading: of the text; may be empty.
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
    """Return the number of a folder's other files, as a reason that names their endings, the most
    frequent first."""
    others = Counter(
        f.suffix.lower() or "none" for f in {*visible_files(path)} - {*files} if f.is_file()
    )
    endings = sorted(others, key=lambda end: (-others[end], end))
    named = ", ".join(endings[:_ENDINGS] + ["..."] * (len(endings) > _ENDINGS))
    return Counter({f"files with other endings ({named})": others.total()} if others else {})


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
    return sorted(file for file in visible_files(path) if wanted(file) and file.is_file())
