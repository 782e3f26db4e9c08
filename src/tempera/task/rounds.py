"""Options that a kind of tower leaves to the recipe, and the rounds of the race."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

TEMPERATURE = "objective.temperature"
LEARNING_RATE = "train.learning_rate"
DIMENSIONS = "tower.dimensions"
Values = Mapping[str, Any]  # of options, by their dotted names


@dataclass(frozen=True)
class Open:
    """The recipe's choice for an option without a value of the user.

    Args:
        value: the recipe's value before the data are read; None is the option's default.
        raced: True if a race may choose the option.
        beside: further options; the recipe leaves the option alone if the user sets any of them.
    """

    value: Any = None
    raced: bool = True
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """Hold values of options under a name, which may be empty."""

    values: Values
    name: str = ""

    def varied(self, other: Setting) -> Setting:
        """Return the setting with the values of another setting.

        >>> Setting({"train.learning_rate": 0.1}, "windows").varied(Setting({"tower.doc": ["id"]}, "ids")).name
        'windows, ids'
        """
        names = [name for name in (self.name, other.name) if name]
        return Setting({**self.values, **other.values}, ", ".join(names))


def over(option: str, values: Iterable[Any]) -> list[Setting]:
    """Return a setting for each value of an option.

    >>> [each.values for each in over("objective.temperature", (0.05, 0.1))]
    [{'objective.temperature': 0.05}, {'objective.temperature': 0.1}]
    """
    return [Setting({option: value}) for value in values]


@dataclass(frozen=True)
class Round:
    """Train settings for a part of the run's steps, and keep the best.

    Args:
        part: divisor of the run's steps: 6 is a sixth of the steps.
        variations: each setting of the round before is trained with each variation.
        keep: number of settings that go on; 1 in the last round.
        beyond: further values of the only option of the variations. The next value is tried, too,
            as long as the best setting has the lowest or the highest value so far, and a
            significant lead.
    """

    part: int
    variations: Sequence[Setting] = (Setting({}),)
    keep: int = 1
    beyond: Sequence[Setting] = ()

    def settings(self, kept: Sequence[Setting]) -> list[Setting]:
        """Return the settings of the round.

        Args:
            kept: settings kept by the round before.
        """
        return [setting.varied(variation) for setting in kept for variation in self.variations]

    def next(self, best: Setting, *others: Setting) -> Setting | None:
        """Return the best setting with the next value beyond the tried values; None if the best
        value is not the lowest or highest of the tried values, or no value lies beyond.

        >>> at = over("x", (0.025, 0.035, 0.05, 0.1, 0.14))
        >>> edge = Round(3, at[2:4], beyond=[*at[:2], at[4]])
        >>> edge.next(at[2], at[3]), edge.next(at[3], at[2]), edge.next(at[2], at[1], at[3])
        (Setting(values={'x': 0.035}, name=''), Setting(values={'x': 0.14}, name=''), None)
        """
        (name,) = self.beyond[0].values
        value = best.values[name]
        tried = [setting.values[name] for setting in others]
        if value < min(tried):
            further = [setting for setting in self.beyond if setting.values[name] < value]
        elif value > max(tried):
            further = [setting for setting in self.beyond if setting.values[name] > value]
        else:
            return None
        if not further:
            return None
        return best.varied(min(further, key=lambda setting: abs(setting.values[name] - value)))


@dataclass(frozen=True)
class Race:
    """Hold the rounds of the choice of options.

    Args:
        start: values of options before the first round.
        rounds: the rounds, in order.
        unproven: values of a run with a validation too small to choose by.
        factors: the factor by which a trial multiplies the value of an option, such as half the
            width at twice the learning rate; a smaller model costs less, and ranks the settings
            alike. `among` drops all factors if the user has set an option with a factor.
        most_steps: of the run, of which each round takes a part: on more data the settings differ
            by more than chance sooner.
        score: gives the main metric of each validation query by the task of a trained setting, [q];
            None is that of its tower alone.
    """

    start: Values
    rounds: Sequence[Round] = ()
    unproven: Values | None = None
    factors: Mapping[str, float] = field(default_factory=dict)
    most_steps: int = 6_000
    score: Callable[[Any], NDArray[np.float64]] | None = None

    def among(self, free: Collection[str]) -> Race:
        """Return the race for the free options alone; variations with equal values become one
        variation.

        >>> Race({}, [Round(6, [Setting({"a": 1, "b": 1}), Setting({"a": 2, "b": 1})])]).among(["b"]).settings()
        [Setting(values={'b': 1}, name='')]
        """
        return replace(
            self,
            start=_only(self.start, free),
            rounds=[_round_among(each, free) for each in self.rounds],
            unproven=None if self.unproven is None else _only(self.unproven, free),
            factors=self.factors if set(self.factors) <= set(free) else {},
        )

    def trial(self, values: Values) -> Values:
        """Return the values for the trial of a setting.

        >>> Race({"width": 1024, "rate": 0.3}, factors={"width": 0.5, "rate": 2.0}).trial({"width": 1024, "rate": 0.1})
        {'width': 512, 'rate': 0.2}
        """
        scaled = dict(values)
        for name, factor in self.factors.items():
            if name in values:
                value = values[name]
                scaled[name] = type(value)(value * factor)
        return scaled

    def settings(self) -> list[Setting]:
        """Return all settings that may win."""
        settings = [Setting(self.start)]
        for each in self.rounds:
            whole = replace(each, variations=[*each.variations, *each.beyond])
            settings = whole.settings(settings)
        return settings


def _round_among(whole: Round, free: Collection[str]) -> Round:
    """Return a round for the free options alone, with distinct variations."""
    variations: list[Setting] = []
    for variation in whole.variations:
        values = _only(variation.values, free)
        if values not in [kept.values for kept in variations]:
            variations.append(replace(variation, values=values))
    beyond = [setting for setting in whole.beyond if set(setting.values) <= set(free)]
    return replace(whole, variations=variations, beyond=beyond)


def _only(values: Values, names: Collection[str]) -> dict[str, Any]:
    """Return the values of some options."""
    return {name: value for name, value in values.items() if name in names}
