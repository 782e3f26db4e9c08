"""The endings of files that hold texts."""

from __future__ import annotations

from pathlib import Path

HTML = (".html", ".htm")
_SUFFIXES = (".txt", ".md", ".markdown", *HTML)


def is_text_file(path: Path) -> bool:
    """Return True if a file is plain text, Markdown or HTML, by its extension."""
    return path.suffix.lower() in _SUFFIXES
