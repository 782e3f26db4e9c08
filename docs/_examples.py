"""Examples of docstrings as code on the API page."""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Fences the lines of each example, which are plain text to Markdown."""

    def on_object(self, *, obj: griffe.Object, **given: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """A docstring with each of its examples, up to the next empty line, in a fence.

    >>> print(fenced("A sum.\\n\\n>>> 1 + 1\\n2").replace("`", "'"))
    A sum.
    <BLANKLINE>
    '''pycon
    >>> 1 + 1
    2
    '''
    """
    blocks = text.split("\n\n")
    return "\n\n".join(
        f"```pycon\n{block}\n```" if block.startswith(">>> ") else block for block in blocks
    )
