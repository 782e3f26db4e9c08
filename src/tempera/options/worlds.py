"""The worlds of texts and of interactions, each imported when a configuration needs it, so that a
run on texts imports nothing of recommenders and the other way round."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ..task.world import INTERACTIONS, TEXTS, World
from .names import PARTS, STATES


@cache
def world(name: str) -> World:
    """Return the world of this name, whose parts are then known by their names."""
    if name == INTERACTIONS:
        from ..recommend.interaction_world import WORLD
    else:
        from ..text.text_world import WORLD
    for kind, parts in WORLD.parts.items():
        PARTS.setdefault(kind, {}).update(parts)
    STATES.extend(WORLD.states)
    return WORLD


def world_of(section: Mapping[str, Any]) -> World:
    """Return the world of a section `data`, by its source."""
    is_interactions = section.get("source") == "interactions"
    return world(INTERACTIONS if is_interactions else TEXTS)


def load_all() -> None:
    """Make the parts of both worlds known, for a message that names them or a page that lists
    them."""
    world(TEXTS)
    world(INTERACTIONS)
