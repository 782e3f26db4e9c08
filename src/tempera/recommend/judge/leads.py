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
UNTRAINED, TRAINED = OURS[:2]  # the towers before training, and after it


def protocols_of(reached: Reached) -> dict[str, dict[str, Any]]:
    """Return every protocol of every system as a JSON object, with the lead of the trained towers
    over the other systems."""
    trained = reached.get(TRAINED, {})
    documents: dict[str, dict[str, Any]] = {}
    for system, protocols in reached.items():
        documents[system] = {}
        for name, scores in protocols.items():
            document = scores.json()
            if name in trained and trained[name] is not scores:
                lead = _lead(trained[name], scores)
                document["lead"] = {"metric": main_metric(trained[name].names), **asdict(lead)}
            documents[system][name] = document
    return documents


def winner(systems: Mapping[str, Recommended], protocol: str) -> str:
    """Return a sentence: the best system of a protocol, and its lead over the next.

    Systems with the scores of the best for every query, as vectors with a weight of 1 have, are
    named with the best.
    """
    metric = main_metric(next(iter(systems.values())).names)
    best, *rest = sorted(systems, key=lambda name: -systems[name].metrics[metric])
    values = systems[best].per_query[metric]
    alike = [name for name in rest if np.array_equal(systems[name].per_query[metric], values)]
    if len(alike) == len(rest):
        alike = []
    names = [best, *alike]
    rivals = [name for name in rest if name not in names]
    lead = _lead(systems[best], systems[rivals[0]])
    verb = "is" if len(names) == 1 else "are"
    claim = "not shown to be the best"
    if lead.low > 0 and len(values) >= FEW_QUERIES:
        claim = "the best"
    others = ", ".join(
        f"{name} {scores.metrics[metric]:.3f}" for name, scores in systems.items() if name in rivals
    )
    return (
        f"{' and '.join(names)} {verb} {claim} on the test ({protocol}, {quantity(len(values), 'queries')}): "
        f"{metric} {systems[best].metrics[metric]:.3f}, {lead.mean:+.3f} [{lead.low:+.3f}, {lead.high:+.3f}] "
        f"over {rivals[0]}; {others}"
    )


def _lead(system: Recommended, other: Recommended) -> Difference:
    """Return the main metric of a system less that of another, with its interval over users."""
    metric = main_metric(system.names)
    difference = system.per_query[metric] - other.per_query[metric]
    return bootstrap_columns(difference[:, None], system.users, bounds=GAPS)[0]
