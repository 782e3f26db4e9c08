"""The result of a tuning: its trials, the best of them, a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..artifacts.pictures import label, number
from ..experiments.figures import NO_CHOICE, errors_and_cautions, figures, shown, squared
from ..experiments.record import Record
from ..io.console import aligned
from .space import Space

SHOWN = 10  # trials in the table, the best ones


@dataclass(frozen=True)
class Tuning:
    """A finished tuning. `str` is its table.

    Args:
        metric: by which trials are compared.
        space: what could be chosen.
        trials: those that came to an end of their own, by number.
        importance: each name's share in what makes trials good (PED-ANOVA, Watanabe et al. 2023);
            empty if too few are done.
        config: the best configuration, with every default visible; where validation asks too little
            to choose by, the one given.

    >>> from tempera import tune
    >>> result = tune("pairs.yaml", {"train.learning_rate": "0.01:0.1:log"}, trials=1, output="runs/tune")
    >>> 0.01 <= result.best.params["train.learning_rate"] <= 0.1
    True
    """

    folder: Path
    metric: str
    space: Space
    trials: tuple[Record, ...]
    importance: Mapping[str, float]
    config: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """Return the names of everything that could be chosen, in the order of the space."""
        return [field.name for field in self.space.fields]

    @property
    def best(self) -> Record | None:
        """Return the finished trial with the highest metric, the first of several; None if
        validation asks too little to choose."""
        return next(iter(eligible(self.trials)), None)

    def count(self, state: str) -> int:
        """Return the number of trials that ended in a state."""
        return sum(trial.state == state for trial in self.trials)

    @property
    def table(self) -> list[dict[str, Any]]:
        """Return a row for each trial, None where there is nothing."""
        return squared(
            [
                {
                    "trial": trial.number,
                    "state": trial.state,
                    self.metric: trial.value,
                    **{name: trial.params.get(name) for name in self.names},
                    **figures([trial]),
                    "worker": trial.worker,
                    "error": trial.error,
                }
                for trial in self.trials
            ]
        )

    @property
    def sentence(self) -> str:
        """Return how many trials ended how, and the setting of the best one."""
        counts = ", ".join(
            f"{self.count(state)} {state}" for state in ("finished", "pruned", "failed")
        )
        if self.best is None:
            return f"{counts}; {NO_CHOICE}"
        chosen = ", ".join(f"{name}={shown(value)}" for name, value in self.best.params.items())
        reached = f"{label(self.metric)} {number(self.best.value or 0.0)}"
        return f"{counts}; the best is trial {self.best.number} with {reached}: {chosen}"

    def __str__(self) -> str:
        lines = [["trial", label(self.metric), *self.names, "seconds"]]
        for trial in ranked(self.trials)[:SHOWN]:
            chosen = [
                shown(trial.params[name]) if name in trial.params else "" for name in self.names
            ]
            lines.append(
                [
                    str(trial.number),
                    number(trial.value or 0.0),
                    *chosen,
                    f"{trial.seconds or 0.0:.1f}",
                ]
            )
        return "\n".join([aligned(lines), *errors_and_cautions(self.trials), self.sentence])

    def json(self) -> dict[str, Any]:
        """Return the tuning as a JSON object; `best` is null if nothing was chosen."""
        best = self.best
        return {
            "output": str(self.folder.absolute()),
            "metric": self.metric,
            "best": best
            and {"trial": best.number, "value": best.value, "params": dict(best.params)},
            "importance": dict(self.importance),
            "trials": self.table,
            "config": dict(self.config),
            "sentence": self.sentence,
        }


def ranked(trials: Sequence[Record]) -> list[Record]:
    """Return the finished trials, the best one first, of equal ones the earlier."""
    return sorted(
        (trial for trial in trials if trial.done),
        key=lambda trial: (-(trial.value or 0.0), trial.number),
    )


def eligible(trials: Sequence[Record]) -> list[Record]:
    """Return the ranked trials; none if validation asks too little to choose one."""
    best = ranked(trials)
    return best if all(trial.chooses for trial in best) else []
