"""Comparisons of recommenders that were asked the same queries: who is the best, and by how much the trained towers lead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..errors import quantity
from ..ranking.compare import Difference, bootstrap_columns
from ..ranking.verdict import OURS, main_metric
from .judgement import Recommended

Reached = Mapping[str, Mapping[str, Recommended]]  # by system and protocol


def protocols_of(reached: Reached) -> dict[str, dict[str, Any]]:
    """Return every protocol of every system as a JSON object, with the lead of the trained towers over the others."""
    trained = reached.get(OURS[1], {})
    return {
        system: {name: {**each.json(), **_lead(trained.get(name), each)} for name, each in protocols.items()}
        for system, protocols in reached.items()
    }


def winner(systems: Mapping[str, Recommended], protocol: str) -> str:
    """Return which of several systems is best in a protocol, and by how much, in a sentence."""
    metric = main_metric(next(iter(systems.values())).names)
    best, second, *_ = sorted(systems, key=lambda name: -systems[name].metrics[metric])
    d = _ahead(systems[best], systems[second])
    others = ", ".join(f"{name} {each.metrics[metric]:.3f}" for name, each in systems.items() if name != best)
    return (
        f"{best} is {'the best' if d.low > 0 else 'not shown to be the best'} on the test ({protocol}, "
        f"{quantity(len(systems[best].per_query[metric]), 'queries')}): {metric} "
        f"{systems[best].metrics[metric]:.3f}, {d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}] over {second}; {others}"
    )


def _lead(trained: Recommended | None, other: Recommended) -> dict[str, Any]:
    """Return the lead of the trained towers over another system, in the main metric."""
    if trained is None or trained is other:
        return {}
    return {"lead": {"metric": main_metric(trained.names), **asdict(_ahead(trained, other))}}


def _ahead(system: Recommended, other: Recommended) -> Difference:
    """Return the main metric of a system less that of another, with its interval over users."""
    first, second = (each.per_query[main_metric(system.names)] for each in (system, other))
    return bootstrap_columns((first - second)[:, None], system.users)[0]
