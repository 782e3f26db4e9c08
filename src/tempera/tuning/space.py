"""The space of a tuning: its options, their values, and the options that a choice opens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..experiments.ranges import (
    NEVER_AGAIN,
    OF_TRAINING_AGAIN,
    SPELLINGS,
    Range,
    listed,
    number,
    parse,
    refuse_mapping,
)
from ..options import yaml_options as configuration

if TYPE_CHECKING:
    from optuna.trial import Trial

_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Choices:
    """Some values.

    Raises:
        ConfigError: there are fewer than two, or one of them is there twice.
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        labels = self.labels
        if len(labels) < 2:
            raise ConfigError(f"has {len(labels)} choice; give at least 2")
        for i, label in enumerate(labels):
            if label in labels[:i]:
                raise ConfigError(f"has {label!r} twice; give it once")

    @property
    def labels(self) -> tuple[Any, ...]:
        """Return the values as a study can store them: as YAML lists, mappings, and what another
        value equals, as true does 1."""
        return tuple(
            value
            if isinstance(value, _SCALARS)
            and not any(value == x and type(value) is not type(x) for x in self.values)
            else configuration.inline(value)
            for value in self.values
        )


@dataclass(frozen=True)
class Field:
    """An option and its values.

    Args:
        field: the dotted option.
        name: of the option in the study: the field, and what opens it where several choices open a
            field of this name.
        place: file and line where it was written; empty if in Python.
        domain: its values.
        opener: place in the space of the field that opens this one, and the label of the choice
            that does; None is always open.
    """

    field: str
    name: str
    place: str
    domain: Range | Choices
    opener: tuple[int, Any] | None = None

    @property
    def ends(self) -> tuple[Any, ...]:
        """Return the lowest and the highest number of a range, or the labels of all choices."""
        return (
            self.domain.labels
            if isinstance(self.domain, Choices)
            else (self.domain.low, self.domain.high)
        )

    def value(self, stored: Any) -> Any:
        """Return the option's value for what a study stores."""
        domain = self.domain
        return domain.values[domain.labels.index(stored)] if isinstance(domain, Choices) else stored

    def suggest(self, trial: Trial) -> Any:
        """Return a number, or the label of a choice, for a trial of a study."""
        domain = self.domain
        if isinstance(domain, Choices):
            return trial.suggest_categorical(self.name, domain.labels)
        if domain.whole:
            step = int(domain.step or 1)
            return trial.suggest_int(
                self.name, int(domain.low), int(domain.high), step=step, log=domain.log
            )
        return trial.suggest_float(
            self.name, domain.low, domain.high, step=domain.step, log=domain.log
        )


@dataclass(frozen=True)
class Space:
    """Fields in the order in which they were written, those that a choice opens behind it."""

    fields: tuple[Field, ...]
    written: Mapping[str, Any]

    @classmethod
    def of(cls, space: Mapping[str, Any] | str | Path) -> Space:
        """Read a space: for each dotted field a range, a list of choices, or a mapping from choices
        to what they open.

        A range with a count is a list of so many choices.

        Raises:
            ConfigError: no such file, no fields, or values of another form.

        >>> kinds = {"static": {"tower.dimensions": [64, 256]}, "transformer": {"tower.layers": [2, 4]}}
        >>> space = Space.of({"objective.temperature": "0.01:1:log", "tower.kind": kinds})
        >>> space.values({"objective.temperature": 0.1, "tower.kind": "static", "tower.dimensions": 256})
        {'objective.temperature': 0.1, 'tower.kind': 'static', 'tower.dimensions': 256}
        """
        if isinstance(space, str | Path) and not configuration.is_yaml(Path(space)):
            raise ConfigError(f"{space} is no space: give a YAML file, whose name ends in .yaml")
        options, fields = configuration.of(space), list[Field]()
        _read(fields, options.values, "", options)
        if not fields:
            where = "the space" if isinstance(space, Mapping) else f"{space}: the space"
            raise ConfigError(f"{where} has no field to choose")
        counts = Counter(field.field for field in fields)
        for i, field in enumerate(fields):
            if field.opener is not None and counts[field.field] > 1:
                place, label = field.opener
                fields[i] = replace(field, name=f"{field.field} ({fields[place].name}={label})")
        return cls(tuple(fields), options.values)

    def ask(self, pick: Callable[[Field], Any]) -> dict[str, Any]:
        """Return options with values, those that others open behind these; `pick` returns what the
        study stores of a field."""
        stored: dict[int, Any] = {}
        for i, field in enumerate(self.fields):
            if field.opener is None or (
                field.opener[0] in stored and stored[field.opener[0]] == field.opener[1]
            ):
                stored[i] = pick(field)
        return {self.fields[i].field: self.fields[i].value(value) for i, value in stored.items()}

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return options with values from what a study has stored."""
        return self.ask(lambda field: params[field.name])

    @property
    def conditional(self) -> bool:
        """Tell if some fields are opened by others."""
        return any(field.opener for field in self.fields)

    def places(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return where these fields were written."""
        return {
            field.field: field.place
            for field in self.fields
            if field.field in values and field.place
        }

    def corners(self) -> list[dict[str, Any]]:
        """Return settings in which every choice, and both ends of every range, come up once."""
        settings: list[dict[str, Any]] = []
        for field in self.fields:
            for end in field.ends:
                fixed, opener = {field.name: end}, field.opener
                while opener is not None:
                    outer = self.fields[opener[0]]
                    fixed[outer.name], opener = opener[1], outer.opener
                setting = self.ask(lambda each, fixed=fixed: fixed.get(each.name, each.ends[0]))  # type: ignore[misc]
                if repr(setting) not in map(repr, settings):  # 1 == True
                    settings.append(setting)
        return settings


def _read(
    fields: list[Field],
    written: Mapping[Any, Any],
    path: str,
    options: configuration.Options,
    opener: tuple[int, Any] | None = None,
    around: frozenset[str] = frozenset(),
) -> None:
    """Append the fields of one level, and those that they open; `around` has the fields of the
    levels above."""
    for key, value in written.items():
        field, at = str(key), f"{path}.{key}" if path else str(key)
        place, i = options.places.get(at, ""), len(fields)
        try:
            domain = _domain(field, value, around)
        except ConfigError as error:
            raise ConfigError(f"{field}: {error}" + (f" ({place})" if place else "")) from None
        fields.append(Field(field, field, place, domain, opener))
        if isinstance(value, Mapping) and isinstance(domain, Choices):
            for (choice, opened), label in zip(value.items(), domain.labels, strict=True):
                _read(
                    fields,
                    opened or {},
                    f"{at}.{choice}",
                    options,
                    (i, label),
                    around | set(map(str, written)),
                )


def _domain(field: str, value: Any, around: frozenset[str]) -> Range | Choices:
    """Return the values of one field."""
    if "." not in field or not all(field.split(".")) or "=" in field:
        raise ConfigError("an option has a section, such as objective.temperature")
    if field == "train.seed":
        raise ConfigError("train.seed cannot be tuned")
    if field in OF_TRAINING_AGAIN:
        raise ConfigError(NEVER_AGAIN.format(field))
    if field in around:
        raise ConfigError("defined twice: here and in an enclosing branch")
    if isinstance(value, str):
        domain = parse(value)
        if isinstance(domain, Range) and domain.count is None:
            return domain
        value = domain.values if isinstance(domain, Range) else domain
    if not isinstance(value, Mapping | Sequence):
        raise ConfigError(f"cannot read {value!r}; write {SPELLINGS}")
    if not isinstance(value, Mapping):
        return Choices(listed(value))
    refuse_mapping(value)
    for choice, more in value.items():
        if more is not None and not isinstance(more, Mapping):
            raise ConfigError(
                f"the choice {choice} opens {more!r}; give a mapping of fields, or nothing"
            )
    return Choices(tuple(map(_choice, value)))


def _choice(key: Any) -> Any:
    """Return the choice that stands before a colon: YAML has no lists there, so a text is read once
    more."""
    try:
        return number(configuration.parse(key)) if isinstance(key, str) else key
    except ConfigError:
        return key
