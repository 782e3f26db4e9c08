"""The ranks that a run reaches user by user, which its folder keeps no trace of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tempera.recommend.judge.later_events import LaterEvents


@contextmanager
def judged() -> Iterator[list[LaterEvents]]:
    """Collect the evaluation of each run on interactions that ends inside, with all its systems'
    ranks."""
    about, collected = LaterEvents.about, list[LaterEvents]()

    def keep(held_out: LaterEvents) -> dict[str, Any]:
        collected.append(held_out)
        return about(held_out)

    LaterEvents.about = keep  # type: ignore[assignment, method-assign]
    try:
        yield collected
    finally:
        LaterEvents.about = about  # type: ignore[method-assign]
