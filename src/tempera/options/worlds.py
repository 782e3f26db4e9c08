"""The worlds of texts and of interactions, each imported when a configuration needs the world: a
run on texts imports nothing of recommenders, and a run on interactions nothing of texts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ..task.world import INTERACTIONS, TEXTS, World
from .names import PARTS, STATES


@cache
def world(name: str) -> World:
    """Return the world of a name, and make the names of its parts known."""
    if name == INTERACTIONS:
        from ..recommend.interaction_world import WORLD
    else:
        from ..text.text_world import WORLD
    for kind, parts in WORLD.parts.items():
        PARTS.setdefault(kind, {}).update(parts)
    STATES.extend(WORLD.states)
    return WORLD


def world_of(section: Mapping[str, Any]) -> World:
    """Return the world of a section `data` by the source."""
    is_interactions = section.get("source") == "interactions"
    return world(INTERACTIONS if is_interactions else TEXTS)


def load_all() -> None:
    """Make the names of the parts of both worlds known, for messages and pages that list all
    parts."""
    world(TEXTS)
    world(INTERACTIONS)
