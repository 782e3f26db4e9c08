"""The space of a tuning: options, the values of each option, and options that depend on a
choice."""

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
    """A list of values.

    Raises:
        ConfigError: there are fewer than two values, or a value is there twice.
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
        """Return the values as a study can store them.

        Lists, mappings, and values equal to a value of another type (1 and true) become YAML.
        """
        return tuple(self._label(value) for value in self.values)

    def _label(self, value: Any) -> Any:
        if not isinstance(value, _SCALARS):
            return configuration.inline(value)
        if any(value == other and type(value) is not type(other) for other in self.values):
            return configuration.inline(value)
        return value


@dataclass(frozen=True)
class Field:
    """An option and the values of the option.

    Args:
        field: the dotted option.
        name: name of the option in the study: the field, with the opener if several choices open a
            field of the same name.
        place: file and line where the field was written; empty if in Python.
        domain: the values of the option.
        opener: index of a field in the space, and label of the choice of that field, to open this
            field; None is always open.
    """

    field: str
    name: str
    place: str
    domain: Range | Choices
    opener: tuple[int, Any] | None = None

    @property
    def ends(self) -> tuple[Any, ...]:
        """Return the lowest and the highest number of a range, or the labels of all choices."""
        if isinstance(self.domain, Choices):
            return self.domain.labels
        return (self.domain.low, self.domain.high)

    def value(self, stored: Any) -> Any:
        """Return the option's value for a stored number or label."""
        if isinstance(self.domain, Choices):
            return self.domain.values[self.domain.labels.index(stored)]
        return stored

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
    """Fields in the order of writing; the fields opened by a choice follow the choice."""

    fields: tuple[Field, ...]
    written: Mapping[str, Any]

    @classmethod
    def of(cls, space: Mapping[str, Any] | str | Path) -> Space:
        """Read a space from a mapping or a YAML file.

        Each dotted field has a range, a list of choices, or a mapping from choices to the fields
        opened by each choice. A range with a count of n is a list of n choices.

        Raises:
            ConfigError: no such file, no fields, or values of another form.

        >>> kinds = {"static": {"tower.dimensions": [64, 256]}, "transformer": {"tower.layers": [2, 4]}}
        >>> space = Space.of({"objective.temperature": "0.01:1:log", "tower.kind": kinds})
        >>> space.values({"objective.temperature": 0.1, "tower.kind": "static", "tower.dimensions": 256})
        {'objective.temperature': 0.1, 'tower.kind': 'static', 'tower.dimensions': 256}
        """
        if isinstance(space, str | Path) and not configuration.is_yaml(Path(space)):
            raise ConfigError(f"{space} is no space: give a YAML file, whose name ends in .yaml")
        options = configuration.of(space)
        fields: list[Field] = []
        _read(fields, options.values, "", options)
        if not fields:
            where = "the space" if isinstance(space, Mapping) else f"{space}: the space"
            raise ConfigError(f"{where} has no field to choose")
        counts = Counter(field.field for field in fields)
        for i, field in enumerate(fields):
            if field.opener is not None and counts[field.field] > 1:
                index, label = field.opener
                fields[i] = replace(field, name=f"{field.field} ({fields[index].name}={label})")
        return cls(tuple(fields), options.values)

    def ask(self, pick: Callable[[Field], Any]) -> dict[str, Any]:
        """Return the chosen value of each open option.

        Args:
            pick: returns the stored number or label of a field; called in the order of the space,
                for open fields only.
        """
        stored: dict[int, Any] = {}
        values: dict[str, Any] = {}
        for i, field in enumerate(self.fields):
            if field.opener is not None:
                index, label = field.opener
                if index not in stored or stored[index] != label:
                    continue
            stored[i] = pick(field)
            values[field.field] = field.value(stored[i])
        return values

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of each open option from the parameters of a trial in a study."""
        return self.ask(lambda field: params[field.name])

    @property
    def conditional(self) -> bool:
        """Return True if a field is open only for some choice."""
        return any(field.opener for field in self.fields)

    def written_at(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return file and line of options; empty for options from Python."""
        return {
            field.field: field.place
            for field in self.fields
            if field.field in values and field.place
        }

    def corners(self) -> list[dict[str, Any]]:
        """Return settings to cover every choice, and both ends of every range, at least once."""
        settings: list[dict[str, Any]] = []
        for field in self.fields:
            for end in field.ends:
                setting = self._setting_with(field, end)
                if repr(setting) not in map(repr, settings):  # by repr, since 1 == True
                    settings.append(setting)
        return settings

    def _setting_with(self, field: Field, end: Any) -> dict[str, Any]:
        """Return a setting with an open field that has a stored value.

        All further fields have the first choice or the lowest number.
        """
        fixed = {field.name: end}
        opener = field.opener
        while opener is not None:
            index, label = opener
            outer = self.fields[index]
            fixed[outer.name] = label
            opener = outer.opener
        return self.ask(lambda other: fixed.get(other.name, other.ends[0]))


def _read(
    fields: list[Field],
    written: Mapping[Any, Any],
    path: str,
    options: configuration.Options,
    opener: tuple[int, Any] | None = None,
    around: frozenset[str] = frozenset(),
) -> None:
    """Append the fields of a level, each field followed by the fields that the field opens.

    Args:
        fields: the list to append to.
        written: the level as written in the file.
        path: dotted path of the level in the file; empty at the top.
        options: the whole file, with the line of each path.
        opener: the choice that opens the level.
        around: names of the fields in the levels above.
    """
    inside = around | {str(key) for key in written}
    for key, value in written.items():
        field = str(key)
        at = f"{path}.{key}" if path else field
        place = options.places.get(at, "")
        index = len(fields)
        try:
            domain = _domain(field, value, around)
        except ConfigError as error:
            line = f" ({place})" if place else ""
            raise ConfigError(f"{field}: {error}{line}") from None
        fields.append(Field(field, field, place, domain, opener))
        if isinstance(value, Mapping) and isinstance(domain, Choices):
            for (choice, opened), label in zip(value.items(), domain.labels, strict=True):
                level = f"{at}.{choice}"
                _read(fields, opened or {}, level, options, (index, label), inside)


def _domain(field: str, value: Any, around: frozenset[str]) -> Range | Choices:
    """Return the values of a field."""
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
        if not isinstance(domain, Range):
            value = domain
        elif domain.count is None:
            return domain
        else:
            value = domain.values
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
    """Return the choice before a colon.

    YAML has no lists before a colon, so a text is parsed once more.
    """
    if not isinstance(key, str):
        return key
    try:
        return number(configuration.parse(key))
    except ConfigError:
        return key
