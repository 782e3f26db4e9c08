"""The result of a tuning: its trials, the best of them, a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..artifacts.pictures import label, number
from ..experiments.figures import NO_CHOICE, cell, complete_rows, errors_and_cautions, figures
from ..experiments.record import Record
from ..io.console import aligned
from .space import Space

SHOWN = 10  # trials in the printed table, the best ones


@dataclass(frozen=True)
class Tuning:
    """A finished tuning. `str` is its table.

    Args:
        folder: the folder of its files.
        metric: the metric by which trials are compared.
        space: the options that were chosen from.
        trials: finished, pruned and failed trials, by number.
        importance: the share of each option's name in the quality of trials (PED-ANOVA, Watanabe et
            al. 2023); empty if too few trials are finished.
        config: the best configuration, with every default; the user's configuration if validation
            has too few queries to choose by.

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
        """Return the names of all options of the space, in its order."""
        return [field.name for field in self.space.fields]

    @property
    def best(self) -> Record | None:
        """Return the finished trial with the highest metric, the first of equal ones.

        None if no trial is finished, or if validation has too few queries to choose by.
        """
        best = eligible(self.trials)
        return best[0] if best else None

    def count(self, state: str) -> int:
        """Return the number of trials that ended in a state."""
        return sum(trial.state == state for trial in self.trials)

    @property
    def table(self) -> list[dict[str, Any]]:
        """Return a row for each trial; a cell without a value is None."""
        rows = []
        for trial in self.trials:
            row: dict[str, Any] = {
                "trial": trial.number,
                "state": trial.state,
                self.metric: trial.value,
            }
            for name in self.names:
                row[name] = trial.params.get(name)
            row.update(figures([trial]))
            row["worker"] = trial.worker
            row["error"] = trial.error
            rows.append(row)
        return complete_rows(rows)

    @property
    def sentence(self) -> str:
        """Return the number of trials in each state, and the setting of the best trial, in words."""
        states = ("finished", "pruned", "failed")
        counts = ", ".join(f"{self.count(state)} {state}" for state in states)
        if self.best is None:
            return f"{counts}; {NO_CHOICE}"
        chosen = ", ".join(f"{name}={cell(value)}" for name, value in self.best.params.items())
        score = f"{label(self.metric)} {number(self.best.value or 0.0)}"
        return f"{counts}; the best is trial {self.best.number} with {score}: {chosen}"

    def __str__(self) -> str:
        lines = [["trial", label(self.metric), *self.names, "seconds"]]
        for trial in ranked(self.trials)[:SHOWN]:
            cells = [str(trial.number), number(trial.value or 0.0)]
            for name in self.names:
                if name in trial.params:
                    cells.append(cell(trial.params[name]))
                else:
                    cells.append("")
            cells.append(f"{trial.seconds or 0.0:.1f}")
            lines.append(cells)
        text = [aligned(lines)]
        text += errors_and_cautions(self.trials)
        text.append(self.sentence)
        return "\n".join(text)

    def json(self) -> dict[str, Any]:
        """Return the tuning as a JSON object; `best` is null if nothing was chosen."""
        best = None
        if self.best is not None:
            best = {
                "trial": self.best.number,
                "value": self.best.value,
                "params": dict(self.best.params),
            }
        return {
            "output": str(self.folder.absolute()),
            "metric": self.metric,
            "best": best,
            "importance": dict(self.importance),
            "trials": self.table,
            "config": dict(self.config),
            "sentence": self.sentence,
        }


def ranked(trials: Sequence[Record]) -> list[Record]:
    """Return the finished trials, the best one first; of equal trials the earlier comes first."""
    done = [trial for trial in trials if trial.done]
    return sorted(done, key=lambda trial: (-(trial.value or 0.0), trial.number))


def eligible(trials: Sequence[Record]) -> list[Record]:
    """Return the ranked trials; none if validation has too few queries to choose a trial by."""
    best = ranked(trials)
    if all(trial.chooses for trial in best):
        return best
    return []
