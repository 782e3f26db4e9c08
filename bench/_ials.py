"""Implicit-feedback ALS, a peer for interactions without an order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ials:
    """Implicit-feedback ALS (Hu et al. 2008), with the regularisation of Rendle et al. 2022.

    Minimises sum over taken pairs of (1 - <w, h>)^2, plus `unobserved` times the sum over all pairs
    of <w, h>^2, plus `regularisation` times the sum over users of (items taken + unobserved * all
    items) |w|^2, and the same over items.
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
