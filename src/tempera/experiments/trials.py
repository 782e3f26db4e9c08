"""What a tuning has found: its trials, the best of them, a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifacts.pictures import label, number
from .space import Space

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

SHOWN = 10  # trials in the table, the best ones
_STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


@dataclass(frozen=True)
class Trial:
    """One setting that was tried."""

    number: int  # in the study; those that were left behind have numbers, too
    state: str  # finished, pruned, failed
    params: Mapping[str, Any]
    value: float | None  # the metric; of one that was pruned, at its last evaluation
    metrics: Mapping[str, float] = field(default_factory=dict)
    temperature: float | None = None  # at the end
    seconds: float | None = None
    error: str | None = None
    worker: str = ""
    on_the_way: Mapping[int, float] = field(default_factory=dict)  # by number of the evaluation

    @classmethod
    def of(cls, found: FrozenTrial) -> Trial:
        """As the study has it."""
        told = found.user_attrs.get("outcome", {})
        return cls(
            number=found.number,
            state=_STATES[found.state.name],
            params=found.params,
            value=found.value if found.state.name in ("COMPLETE", "PRUNED") else None,
            metrics=told.get("metrics", {}),
            temperature=told.get("temperature"),
            seconds=told.get("seconds"),
            error=told.get("error"),
            worker=found.user_attrs.get("worker", ""),
            on_the_way=found.intermediate_values,
        )

    @property
    def done(self) -> bool:
        """Whether it was made to its end."""
        return self.state == "finished"


@dataclass(frozen=True)
class Tuning:
    """A finished tuning. `str` is its table.

    Args:
        space: what could be chosen.
        trials: those that have come to an end of their own, by number.
        importance: the share of each name in what makes trials good (PED-ANOVA, Watanabe et al. 2023); empty if too few are done.
        config: the best configuration, with every default visible.

    >>> from tempera import tune
    >>> found = tune("pairs.yaml", {"train.learning_rate": "0.01:0.1:log"}, trials=1, output="runs/tune")
    >>> 0.01 <= found.best.params["train.learning_rate"] <= 0.1
    True
    """

    folder: Path
    metric: str
    space: Space
    trials: tuple[Trial, ...]
    importance: Mapping[str, float]
    config: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """Of everything that could be chosen, in the order of the space."""
        return [field.name for field in self.space.all]

    @property
    def best(self) -> Trial:
        """The finished trial with the highest metric; the first of several."""
        return ranked(self.trials)[0]

    def count(self, state: str) -> int:
        """Trials that have ended so."""
        return sum(trial.state == state for trial in self.trials)

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row a trial, None where there is nothing."""
        metrics = dict.fromkeys(name for trial in self.trials for name in trial.metrics)
        return [
            {
                "trial": trial.number,
                "state": trial.state,
                self.metric: trial.value,
                **{name: trial.params.get(name) for name in self.names},
                **{name: trial.metrics.get(name) for name in metrics if name != self.metric},
                "temperature at the end": trial.temperature,
                "seconds": trial.seconds,
                "worker": trial.worker,
                "error": trial.error,
            }
            for trial in self.trials
        ]

    @property
    def sentence(self) -> str:
        """How many trials ended how, and what the best one has."""
        counts = ", ".join(f"{self.count(state)} {state}" for state in ("finished", "pruned", "failed"))
        chosen = ", ".join(f"{name}={shown(value)}" for name, value in self.best.params.items())
        reached = f"{label(self.metric)} {number(self.best.value or 0.0)}"
        return f"{counts}; best is trial {self.best.number} with {reached}: {chosen}"

    def __str__(self) -> str:
        lines = [["trial", label(self.metric), *self.names, "seconds"]]
        for trial in ranked(self.trials)[:SHOWN]:
            chosen = [shown(trial.params[name]) if name in trial.params else "" for name in self.names]
            seconds = "" if trial.seconds is None else f"{trial.seconds:.1f}"
            lines.append([str(trial.number), number(trial.value or 0.0), *chosen, seconds])
        widths = [max(map(len, column)) for column in zip(*lines)]
        text = "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths)).rstrip() for line in lines)
        errors = dict.fromkeys(trial.error for trial in self.trials if trial.error)
        ends = [f"{self.count('failed')} failed: {error}" for error in list(errors)[:1]]
        return "\n".join([text, *ends, self.sentence])

    def json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "output": str(self.folder.absolute()),
            "metric": self.metric,
            "best": {"trial": self.best.number, "value": self.best.value, "params": dict(self.best.params)},
            "importance": dict(self.importance),
            "trials": self.table,
            "config": dict(self.config),
            "sentence": self.sentence,
        }


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Those that were made to their end, the best one first, of equal ones the earlier."""
    return sorted((trial for trial in trials if trial.done), key=lambda trial: (-(trial.value or 0.0), trial.number))


def shown(value: Any) -> str:
    """A value in a table."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
