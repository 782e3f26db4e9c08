"""The options of a sweep, and the points on the grid of the options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from ..errors import ConfigError
from .ranges import NEVER_AGAIN, OF_TRAINING_AGAIN, SPELLINGS, Range, listed, parse

TEMPERATURE = "objective.temperature"
MOST_AXES = 2  # more cannot be drawn


@dataclass(frozen=True)
class Axis:
    """An option of a sweep with values in the order of the sweep.

    Raises:
        ConfigError: the option has no section, or there are fewer than two values, no limit to the
            values, or the same value twice.

    >>> Axis.parse("objective.temperature=0.01:1:log:3").values
    (0.01, 0.1, 1)
    >>> Axis.of("train.batch_size", [64, 256]).size
    2
    """

    field: str
    domain: Range | tuple[Any, ...]

    def __post_init__(self) -> None:
        if "." not in self.field or not all(self.field.split(".")):
            raise ConfigError(
                f"--over {self.field}: an option has a section, such as objective.temperature"
            )
        if self.field == "train.seed":
            raise ConfigError(
                "--over train.seed: every point runs with several seeds anyway; set their number by --seeds"
            )
        if self.field in OF_TRAINING_AGAIN:
            raise ConfigError(f"--over {self.field}: {NEVER_AGAIN.format(self.field)}")
        if self.size < 2:
            raise ConfigError(
                f"--over {self.field} has {self.size} value; a sweep needs at least 2"
            )

    @classmethod
    def parse(cls, text: str) -> Axis:
        """Read FIELD=VALUES, as on the command line."""
        field, equals, values = text.partition("=")
        if not equals or not field.strip() or not values.strip():
            raise ConfigError(f"--over {text}: write FIELD=VALUES, where VALUES are {SPELLINGS}")
        return cls.of(field.strip(), values)

    @classmethod
    def of(cls, field: str, values: Any) -> Axis:
        """Make an axis of a text or a list of values."""
        try:
            if isinstance(values, str):
                domain = parse(values)
            elif isinstance(values, Mapping):
                domain = listed([values])
            else:
                domain = listed(values)
            if isinstance(domain, Range) and domain.size is None:
                raise ConfigError(f"a sweep needs a count; write {values}:8 for 8 values")
        except ConfigError as error:
            raise ConfigError(f"--over {field}: {error}") from None
        return cls(field, domain)

    @property
    def size(self) -> int:
        """Number of values, counted without making the values."""
        if isinstance(self.domain, Range):
            return self.domain.size or 0
        return len(self.domain)

    @cached_property
    def values(self) -> tuple[Any, ...]:
        """All values, each once."""
        values = self.domain.values if isinstance(self.domain, Range) else self.domain
        seen = set()
        for value in values:
            if repr(value) in seen:  # by repr, since 1 == True
                raise ConfigError(f"--over {self.field} has {value!r} twice; give it once")
            seen.add(repr(value))
        return values

    @property
    def numeric(self) -> bool:
        """Return True if all values are numbers."""
        return all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in self.values
        )


def axes_of(over: Mapping[str, Any] | Iterable[str]) -> tuple[Axis, ...]:
    """Return the options of a sweep, from texts of the command line or from a mapping of fields to
    values.

    Raises:
        ConfigError: there is no option, there are too many, or the same option twice.
    """
    if isinstance(over, Mapping):
        axes = [Axis.of(field, values) for field, values in over.items()]
    elif isinstance(over, str):
        axes = [Axis.parse(over)]
    else:
        axes = [Axis.parse(text) for text in over]
    if not 1 <= len(axes) <= MOST_AXES:
        raise ConfigError(f"--over is given for {len(axes)} options; give 1 or {MOST_AXES}")
    if len({axis.field for axis in axes}) < len(axes):
        raise ConfigError(f"--over is given twice for {axes[0].field}; give all its values at once")
    return tuple(axes)


def grid(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Return every combination of values; the values of the last option change first.

    >>> grid(axes_of(["train.batch_size=8,16", "tower.width=1,2"]))[1]
    {'train.batch_size': 8, 'tower.width': 2}
    """
    fields = [axis.field for axis in axes]
    combinations = product(*(axis.values for axis in axes))
    return [dict(zip(fields, values, strict=True)) for values in combinations]
