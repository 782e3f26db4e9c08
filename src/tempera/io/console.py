"""Messages and progress bars of work under way. The library prints nothing: messages go to the
logger `tempera`.

The command line shows the logger on standard error. In Python, `logging.basicConfig(level="INFO")`
shows the logger, and any handler redirects its messages. Bars appear on a terminal only, and never
while the environment variable TQDM_DISABLE is set.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it takes time to load
    from tqdm import tqdm

logger = logging.getLogger("tempera")
logger.addHandler(logging.NullHandler())


def bar_class() -> type[tqdm[Any]]:
    """Return the class of progress bars, which also writes lines above them."""
    from tqdm import tqdm

    # The lock is made first: a signal while tqdm makes it within `write` would end in an
    # AttributeError.
    tqdm.get_lock()  # type: ignore[no-untyped-call]
    return tqdm


def progress_bar(
    label: str | None,
    total: float | None,
    unit: str,
    initial: int = 0,
    iterable: Iterable[Any] | None = None,
) -> tqdm[Any]:
    """Return a progress bar for standard error, which shows nothing unless standard error is a
    terminal.

    Args:
        label: stands before the bar; without a label the bar shows nothing.
        total: units in all.
        unit: name of the counted things, in the singular.
        initial: units that were done before.
        iterable: is iterated over, and an item is a unit; without an iterable, call `update`.

    >>> list(progress_bar("reading", 3, "row", iterable="abc"))
    ['a', 'b', 'c']
    """
    disable = None if label and not os.environ.get("TQDM_DISABLE") else True
    return bar_class()(iterable, label, total, initial=initial, unit=unit, disable=disable)


def aligned(lines: Sequence[Sequence[str]], justify: Callable[[str, int], str] = str.rjust) -> str:
    """Return lines of cells as text, in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for line in lines:
        cells = map(justify, line, widths)
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


@contextmanager
def quietly() -> Iterator[None]:
    """Let transformers and sentence-transformers make, read and write models without progress bars
    and without advice to their callers; errors are still shown."""
    from transformers.utils import logging as bars

    loggers = [logging.getLogger(name) for name in ("sentence_transformers", "transformers")]
    levels = [each.level for each in loggers]
    had_bars = bars.is_progress_bar_enabled()
    for each in loggers:
        each.setLevel(logging.ERROR)
    bars.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
        if had_bars:
            bars.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def silenced(bars: bool = False) -> Iterator[None]:
    """Show no messages, and no bars unless `bars` is true, as in a run among many runs whose
    outcome the caller reports."""
    was_disabled = logger.disabled
    environment = os.environ.get("TQDM_DISABLE")
    logger.disabled = True
    if not bars:
        os.environ["TQDM_DISABLE"] = "1"
    try:
        yield
    finally:
        logger.disabled = was_disabled
        if environment is not None:
            os.environ["TQDM_DISABLE"] = environment
        elif not bars:
            del os.environ["TQDM_DISABLE"]
