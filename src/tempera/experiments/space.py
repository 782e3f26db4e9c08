"""The space of a tuning: its options, their values, and the options that a choice opens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import config as configuration
from ..errors import ConfigError
from .ranges import SPELLINGS, Range, listed, number, parse, refuse_mapping

if TYPE_CHECKING:
    from optuna.trial import Trial

_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Choices:
    """Some values; `opened` are the further fields that each of them has.

    Raises:
        ConfigError: there are fewer than two, or one of them is there twice.
    """

    values: tuple[Any, ...]
    opened: tuple[tuple[Field, ...], ...]

    def __post_init__(self) -> None:
        labels = self.labels
        if len(labels) < 2:
            raise ConfigError(f"has {len(labels)} choice; give at least 2")
        for i, label in enumerate(labels):
            if label in labels[:i]:
                raise ConfigError(f"has {label!r} twice; give it once")

    @property
    def labels(self) -> tuple[Any, ...]:
        """Return the values as a study can store them: lists and mappings as YAML."""
        return tuple(value if isinstance(value, _SCALARS) else configuration.inline(value) for value in self.values)


@dataclass(frozen=True)
class Field:
    """An option and its values.

    Args:
        field: the dotted option.
        name: of the option in the study: the field, and what opens it where several choices open a field of this name.
        place: file and line where it was written; empty if in Python.
        domain: its values.
    """

    field: str
    name: str
    place: str
    domain: Range | Choices

    def suggest(self, trial: Trial) -> Any:
        """Return a value, or the label of a choice, for a trial of a study."""
        domain = self.domain
        if isinstance(domain, Choices):
            return trial.suggest_categorical(self.name, domain.labels)
        if domain.whole:
            step = int(domain.step or 1)
            return trial.suggest_int(self.name, int(domain.low), int(domain.high), step=step, log=domain.log)
        return trial.suggest_float(self.name, domain.low, domain.high, step=domain.step, log=domain.log)


Pick = Callable[[Field], Any]  # the value of a field in the study


@dataclass(frozen=True)
class Space:
    """Fields in the order in which they were written."""

    fields: tuple[Field, ...]
    given: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any] | str | Path) -> Space:
        """Read a space: for each dotted field a range, a list of choices, or a mapping from choices to what they open.

        A range with a count is a list of so many choices.

        Raises:
            ConfigError: no such file, no fields, or values of another form.

        >>> kinds = {"static": {"tower.dimensions": [64, 256]}, "transformer": {"tower.layers": [2, 4]}}
        >>> space = Space.of({"objective.temperature": "0.01:1:log", "tower.kind": kinds})
        >>> space.values({"objective.temperature": 0.1, "tower.kind": "static", "tower.dimensions": 256})
        {'objective.temperature': 0.1, 'tower.kind': 'static', 'tower.dimensions': 256}
        """
        options = configuration.of(given)
        fields = _fields(options.values, "", options)
        if not fields:
            where = "the space" if isinstance(given, Mapping) else f"{given}: the space"
            raise ConfigError(f"{where} has no field to choose")
        counts = Counter(field.field for field in _flat(fields))
        several = {field for field, count in counts.items() if count > 1}
        return cls(_named(fields, several, ""), options.values)

    def ask(self, pick: Pick) -> dict[str, Any]:
        """Return options with values, those that others open behind these."""
        return dict(_walk(self.fields, pick))

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return options with values from what a study has stored."""
        return self.ask(lambda field: params[field.name])

    @property
    def all(self) -> list[Field]:
        """Return all fields, with those that are opened."""
        return list(_flat(self.fields))

    @property
    def conditional(self) -> bool:
        """Tell if some fields are opened by others."""
        return len(self.all) > len(self.fields)

    def places(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return where these fields were written."""
        return {field.field: field.place for field in self.all if field.field in values and field.place}

    def corners(self) -> list[dict[str, Any]]:
        """Return settings in which every choice, and both ends of every range, come up once."""
        return _corners(self.fields)


def _fields(
    given: Mapping[Any, Any], path: str, options: configuration.Options, around: frozenset[str] = frozenset()
) -> tuple[Field, ...]:
    """Return the fields of one level; `around` has those of the levels above."""
    fields = []
    for key, value in given.items():
        field, at = str(key), f"{path}.{key}" if path else str(key)
        place, inside = options.places.get(at, ""), around | {str(other) for other in given}
        deeper = value.items() if isinstance(value, Mapping) else ()
        opened = {c: _fields(more, f"{at}.{c}", options, inside) for c, more in deeper if isinstance(more, Mapping)}
        try:
            fields.append(Field(field, field, place, _domain(field, value, opened, around)))
        except ConfigError as error:
            raise ConfigError(f"{field}: {error}" + (f" ({place})" if place else "")) from None
    return tuple(fields)


def _domain(field: str, value: Any, opened: Mapping[Any, tuple[Field, ...]], around: frozenset[str]) -> Range | Choices:
    """Return the values of one field; `opened` are the fields of its choices that have some."""
    if "." not in field or not all(field.split(".")) or "=" in field:
        raise ConfigError("an option has a section, such as objective.temperature")
    if field == "train.seed":
        raise ConfigError("train.seed cannot be tuned")
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
        return Choices(listed(value), ((),) * len(value))
    refuse_mapping(value)
    for choice, more in value.items():
        if more is not None and not isinstance(more, Mapping):
            raise ConfigError(f"the choice {choice} opens {more!r}; give a mapping of fields, or nothing")
    return Choices(tuple(map(_choice, value)), tuple(opened.get(choice, ()) for choice in value))


def _choice(key: Any) -> Any:
    """Return the choice that stands before a colon: YAML has no lists there, so a text is read once more."""
    try:
        return number(configuration.parse(key)) if isinstance(key, str) else key
    except ConfigError:
        return key


def _named(fields: Sequence[Field], several: set[str], opener: str) -> tuple[Field, ...]:
    """Give each field a name of its own in the study."""
    named = []
    for field in fields:
        domain = field.domain
        if isinstance(domain, Choices):
            opened = (_named(more, several, f"{field.field}={c}") for c, more in zip(domain.labels, domain.opened))
            domain = replace(domain, opened=tuple(opened))
        name = f"{field.field} ({opener})" if opener and field.field in several else field.field
        named.append(replace(field, name=name, domain=domain))
    return tuple(named)


def _walk(fields: Sequence[Field], pick: Pick) -> Iterator[tuple[str, Any]]:
    for field in fields:
        value, domain = pick(field), field.domain
        if isinstance(domain, Range):
            yield field.field, value
            continue
        i = domain.labels.index(value)
        yield field.field, domain.values[i]
        yield from _walk(domain.opened[i], pick)


def _flat(fields: Sequence[Field]) -> Iterator[Field]:
    for field in fields:
        yield field
        if isinstance(field.domain, Choices):
            yield from chain.from_iterable(map(_flat, field.domain.opened))


def _corners(fields: Sequence[Field]) -> list[dict[str, Any]]:
    each = []
    for field in fields:
        domain = field.domain
        if isinstance(domain, Range):
            each.append([{field.field: domain.low}, {field.field: domain.high}])
            continue
        opened = zip(domain.values, domain.opened)
        each.append([{field.field: value, **inner} for value, more in opened for inner in _corners(more)])
    firsts = [settings[0] for settings in each]
    settings = [firsts]
    for i, others in enumerate(each):
        settings += [[*firsts[:i], setting, *firsts[i + 1 :]] for setting in others[1:]]
    return [{field: value for part in parts for field, value in part.items()} for parts in settings]
