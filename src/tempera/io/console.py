"""Messages and progress bars of work under way. The library prints nothing: messages go to one
logger, `tempera`.

The command line shows that logger on standard error. In Python, `logging.basicConfig(level="INFO")`
shows it, and any handler redirects it. Bars appear on a terminal only, and never while the
environment variable TQDM_DISABLE is set.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

logger = logging.getLogger("tempera")
logger.addHandler(logging.NullHandler())
tqdm.get_lock()  # type: ignore[no-untyped-call]  # made now: a signal while tqdm makes it within `write` would end in an AttributeError


def progress_bar(
    label: str | None,
    total: float | None,
    unit: str,
    initial: int = 0,
    iterable: Iterable[Any] | None = None,
) -> tqdm[Any]:
    """Return a progress bar for standard error, which shows nothing if that is no terminal.

    Args:
        label: stands before the bar; without one the bar shows nothing.
        total: units in all.
        unit: name of what is counted, in the singular.
        initial: units that were done before.
        iterable: is iterated over, one unit an item; without it, call `update`.

    >>> list(progress_bar("reading", 3, "row", iterable="abc"))
    ['a', 'b', 'c']
    """
    disable = None if label and not os.environ.get("TQDM_DISABLE") else True
    return tqdm(iterable, label, total, initial=initial, unit=unit, disable=disable)


def aligned(lines: Sequence[Sequence[str]], justify: Callable[[str, int], str] = str.rjust) -> str:
    """Return lines of cells as text, in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(justify, line, widths)).rstrip() for line in lines)


@contextmanager
def quietly() -> Iterator[None]:
    """Let transformers and sentence-transformers make, read and write models without progress bars
    and without advice on how to call them; errors are still shown."""
    from transformers.utils import logging as bars

    theirs = map(logging.getLogger, ("sentence_transformers", "transformers"))
    levels, shown = {each: each.level for each in theirs}, bars.is_progress_bar_enabled()
    for each in levels:
        each.setLevel(logging.ERROR)
    bars.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for each, level in levels.items():
            each.setLevel(level)
        if shown:
            bars.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def silenced(bars: bool = False) -> Iterator[None]:
    """Show no messages, and no bars unless asked for, as in a run among many whose outcome is
    reported by another."""
    before, logger.disabled = (logger.disabled, os.environ.get("TQDM_DISABLE")), True
    if not bars:
        os.environ["TQDM_DISABLE"] = "1"
    try:
        yield
    finally:
        logger.disabled, own = before
        if own is not None:
            os.environ["TQDM_DISABLE"] = own
        elif not bars:
            del os.environ["TQDM_DISABLE"]
