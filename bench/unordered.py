"""Peers for interactions without an order: implicit-feedback ALS, item-kNN and EASE, beside a run of Tempera's.

    python bench/unordered.py events.csv ials --dimensions 128 --unobserved 0.1 --regularisation 0.003

The defaults are item-kNN on Toys, from the folder that TEMPERA_DATA names. Interactions are divided at random
(`data.split=random`); every user is asked once, and all items to find count.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tempera.recommend.baselines import Ease, ItemKNN, Observed, Popular, by_history
from tempera.recommend.division import AtRandom, Division
from tempera.recommend.full_catalogue import Histories, Scores
from tempera.recommend.interactions import Interactions
from tempera.recommend.judgement import Recommended
from tempera.recommend.popularity import Popularity
from tempera.recommend.timeline import Timeline

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
METRICS = ("recall@20", "ndcg@20", "recall@10", "ndcg@10")


DATA = Path(os.environ.get("TEMPERA_DATA", "data"))


@dataclass(frozen=True)
class Ials:
    """Implicit-feedback ALS (Hu et al. 2008), with the regularisation of Rendle et al. 2022.

    Minimises sum over taken pairs of (1 - <w, h>)^2, plus `unobserved` times the sum over all pairs of <w, h>^2, plus
    `regularisation` times the sum over users of (items taken + unobserved * all items) |w|^2, and the same over items.
    """

    dimensions: int = 64
    unobserved: float = 0.1
    regularisation: float = 0.003
    epochs: int = 16
    seed: int = 0

    def fit(self, user: Ints, item: Ints, users: int, items: int) -> tuple[Floats, Floats]:
        """Return vectors of users and items."""
        draw, scale = np.random.default_rng(self.seed), 0.1 / np.sqrt(self.dimensions)
        w, h = (draw.normal(scale=scale, size=(count, self.dimensions)) for count in (users, items))
        of_users, of_items = grouped(user, item, users), grouped(item, user, items)
        for _ in range(self.epochs):
            self.solve(w, h, of_users)
            self.solve(h, w, of_items)
        return w, h

    def solve(self, own: Floats, other: Floats, taken: tuple[Ints, Ints]) -> None:
        """Set each own vector to the minimum where the others stay, in place."""
        gram = self.unobserved * (other.T @ other)
        values, offsets = taken
        eye = np.eye(len(gram))
        for row, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist())):
            x = other[values[start:stop]]
            weight = self.regularisation * (stop - start + self.unobserved * len(other))
            own[row] = np.linalg.solve(gram + x.T @ x + weight * eye, x.sum(0))


def grouped(key: Ints, value: Ints, count: int) -> tuple[Ints, Ints]:
    """Return the values of each key, one key after the other, and where each begins."""
    order = np.argsort(key, kind="stable")
    return value[order], np.concatenate([[0], np.bincount(key, minlength=count).cumsum()])


def evaluated(scores: Scores, timeline: Timeline, division: Division, part: str) -> dict[str, float]:
    """Return the metrics of a part's users."""
    events = getattr(division, part)["users"]
    query, target = Histories(timeline.item, events, timeline.answers(events)).pairs()
    seen = Histories(timeline.item, *timeline.histories(events))
    counts = np.bincount(timeline.item[division.train], minlength=len(timeline.item_ids))
    reached = Recommended.of(scores, target, seen, Popularity(counts), METRICS, query=query)
    return {name: round(reached.metrics[name], 4) for name in METRICS}


def main() -> None:
    """Print the metrics of one peer on validation and test, and its CPU seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", nargs="?", default=str(DATA / "toys/interactions.parquet"))
    parser.add_argument("peer", nargs="?", default="item-knn", choices=["ials", "item-knn", "ease", "popularity"])
    for name, default in (("dimensions", 64), ("epochs", 16), ("neighbours", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, value in (("unobserved", 0.1), ("regularisation", 0.003)):
        parser.add_argument(f"--{name}", type=float, default=value)
    options = parser.parse_args()
    timeline = Interactions(path=options.path, metadata=("*",), ordered=False).read()
    division = AtRandom()(timeline)
    assert division.timeline is not None
    timeline, began = division.timeline, time.process_time()
    observed = Observed(timeline.item, timeline.offsets, len(timeline.item_ids), division.train)
    if options.peer == "ials":
        peer = Ials(options.dimensions, options.unobserved, options.regularisation, options.epochs)
        user, item = timeline.user_of(np.flatnonzero(division.train)), timeline.item[division.train].astype(np.int64)
        w, h = (x.astype(np.float32) for x in peer.fit(user, item, len(timeline.user_ids), len(timeline.item_ids)))
        taste = {p: w[timeline.user_of(getattr(division, p)["users"])] for p in ("validation", "test")}
        scores = {p: (lambda rows, x=x: x[rows] @ h.T) for p, x in taste.items()}
    else:
        peers = {"item-knn": ItemKNN(options.neighbours, None), "popularity": Popular()}
        peers["ease"] = Ease(options.regularisation, None)
        fitted = peers[options.peer].fit(observed)
        scores = {
            p: by_history(fitted, Histories(timeline.item, *timeline.histories(getattr(division, p)["users"])))
            for p in ("validation", "test")
        }
    seconds = time.process_time() - began
    answer = {p: evaluated(scores[p], timeline, division, p) for p in ("validation", "test")}
    print(json.dumps({**vars(options), "cpu_seconds": round(seconds, 1), **answer}))


if __name__ == "__main__":
    main()
