"""Comparisons of recommenders that were asked the same queries: who is the best, and by how much
the trained towers lead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ...errors import quantity
from ...ranking.compare import GAPS, Difference, bootstrap_columns
from ...ranking.ranking import FEW_QUERIES
from ...task.verdict import OURS, main_metric
from .judgement import Recommended

Reached = Mapping[str, Mapping[str, Recommended]]  # by system and protocol


def protocols_of(reached: Reached) -> dict[str, dict[str, Any]]:
    """Return every protocol of every system as a JSON object, with the lead of the trained towers
    over the others."""
    trained = reached.get(OURS[1], {})
    return {
        system: {
            name: {**each.json(), **_lead(trained.get(name), each)}
            for name, each in protocols.items()
        }
        for system, protocols in reached.items()
    }


def winner(systems: Mapping[str, Recommended], protocol: str) -> str:
    """Return which of several systems is best in a protocol, and by how much, in a sentence."""
    metric = main_metric(next(iter(systems.values())).names)
    best, *rest = sorted(systems, key=lambda name: -systems[name].metrics[metric])
    values = systems[best].per_query[metric]
    alike = [
        name for name in rest if np.array_equal(systems[name].per_query[metric], values)
    ]  # as with a weight of 1
    names = [best, *(alike if len(alike) < len(rest) else [])]
    rivals = [name for name in rest if name not in names]
    d = _ahead(systems[best], systems[rivals[0]])
    shown = d.low > 0 and len(values) >= FEW_QUERIES
    others = ", ".join(
        f"{name} {each.metrics[metric]:.3f}" for name, each in systems.items() if name in rivals
    )
    return (
        f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} {'the best' if shown else 'not shown to be the best'} on the "
        f"test ({protocol}, {quantity(len(values), 'queries')}): {metric} {systems[best].metrics[metric]:.3f}, {d.mean:+.3f} "
        f"[{d.low:+.3f}, {d.high:+.3f}] over {rivals[0]}; {others}"
    )


def _lead(trained: Recommended | None, other: Recommended) -> dict[str, Any]:
    """Return the lead of the trained towers over another system, in the main metric."""
    if trained is None or trained is other:
        return {}
    return {"lead": {"metric": main_metric(trained.names), **asdict(_ahead(trained, other))}}


def _ahead(system: Recommended, other: Recommended) -> Difference:
    """Return the main metric of a system less that of another, with its interval over users."""
    first, second = (each.per_query[main_metric(system.names)] for each in (system, other))
    return bootstrap_columns((first - second)[:, None], system.users, bounds=GAPS)[0]
