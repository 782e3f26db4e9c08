"""Options that a kind of tower leaves to the recipe, and the race that chooses them, in rounds of
settings side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

TEMPERATURE, LEARNING_RATE, DIMENSIONS = (
    "objective.temperature",
    "train.learning_rate",
    "tower.dimensions",
)
Values = Mapping[str, Any]  # of options, by their dotted names


@dataclass(frozen=True)
class Open:
    """Hold what the recipe does with an option that the user does not set.

    Args:
        value: its value before the data are read; None is the option's own default.
        raced: a race may choose it.
        beside: options of which none may be set either.
    """

    value: Any = None
    raced: bool = True
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """Hold values of options under a name; without a name, the values say enough."""

    values: Values
    name: str = ""

    def varied(self, other: Setting) -> Setting:
        """Return this setting with the values of another one.

        >>> Setting({"train.learning_rate": 0.1}, "windows").varied(Setting({"tower.doc": ["id"]}, "ids")).name
        'windows, ids'
        """
        return Setting(
            {**self.values, **other.values},
            ", ".join(name for name in (self.name, other.name) if name),
        )


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
        part: the steps are those of the run, divided by this.
        variations: each setting that the round before has kept is trained with each of these.
        keep: number of settings that go on; the last round keeps one.
        beyond: further values of the one option that the variations set. The next one is tried,
            too, as long as the best setting has the lowest or the highest value so far, and its
            lead is shown.
    """

    part: int
    variations: Sequence[Setting] = (Setting({}),)
    keep: int = 1
    beyond: Sequence[Setting] = ()

    def settings(self, kept: Sequence[Setting]) -> list[Setting]:
        """Return the settings of this round, from those that the round before has kept."""
        return [each.varied(variation) for each in kept for variation in self.variations]

    def next(self, best: Setting, *others: Setting) -> Setting | None:
        """Return the best setting with the next value beyond those that were tried; None if it lies
        between them.

        >>> at = over("x", (0.025, 0.035, 0.05, 0.1, 0.14))
        >>> edge = Round(3, at[2:4], beyond=[*at[:2], at[4]])
        >>> edge.next(at[2], at[3]), edge.next(at[3], at[2]), edge.next(at[2], at[1], at[3])
        (Setting(values={'x': 0.035}, name=''), Setting(values={'x': 0.14}, name=''), None)
        """
        (name,) = self.beyond[0].values
        value, tried = best.values[name], [each.values[name] for each in others]
        side = -1 if value < min(tried) else 1 if value > max(tried) else 0
        further = [each for each in self.beyond if side * (each.values[name] - value) > 0]
        return (
            best.varied(min(further, key=lambda each: abs(each.values[name] - value)))
            if further
            else None
        )


@dataclass(frozen=True)
class Race:
    """Hold the rounds by which options are chosen.

    Args:
        start: values of options before the first round.
        unproven: values that are taken where validation is too small to choose.
        factors: of options while settings are tried, where that costs less and tells them apart as
            well; none, unless the race sets all these.
    """

    start: Values
    rounds: Sequence[Round] = ()
    unproven: Values | None = None
    factors: Mapping[str, float] = field(default_factory=dict)

    def among(self, free: Collection[str]) -> Race:
        """Return the race for some of its options; settings that are equal in these become one.

        >>> Race({}, [Round(6, [Setting({"a": 1, "b": 1}), Setting({"a": 2, "b": 1})])]).among(["b"]).settings()
        [Setting(values={'b': 1}, name='')]
        """
        rounds = []
        for each in self.rounds:
            variations = [replace(one, values=_only(one.values, free)) for one in each.variations]
            distinct = [
                one
                for i, one in enumerate(variations)
                if one.values not in [v.values for v in variations[:i]]
            ]
            rounds.append(
                replace(
                    each,
                    variations=distinct,
                    beyond=[b for b in each.beyond if {*b.values} <= {*free}],
                )
            )
        unproven = None if self.unproven is None else _only(self.unproven, free)
        return Race(
            _only(self.start, free),
            rounds,
            unproven,
            self.factors if {*self.factors} <= {*free} else {},
        )

    def trial(self, values: Values) -> Values:
        """Return the values with which a setting is tried.

        >>> Race({"width": 1024, "rate": 0.3}, factors={"width": 0.5, "rate": 2.0}).trial({"width": 1024, "rate": 0.1})
        {'width': 512, 'rate': 0.2}
        """
        scaled = {
            name: type(values[name])(values[name] * factor)
            for name, factor in self.factors.items()
            if name in values
        }
        return {**values, **scaled}

    def settings(self) -> list[Setting]:
        """Return every setting that may win."""
        settings = [Setting(self.start)]
        for each in self.rounds:
            settings = replace(each, variations=[*each.variations, *each.beyond]).settings(settings)
        return settings


def _only(values: Values, names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}
