"""What a tuning may choose: which options, over which values, and what a choice opens besides."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from .. import config as configuration
from ..errors import ConfigError, did_you_mean
from .grid import number
from .points import as_yaml

if TYPE_CHECKING:
    from optuna.trial import Trial

EXPECTED = (
    "low:high:log, low:high:linear, low:high:int or low:high:int:log, with `:step X` if wanted, or a list of choices"
)
_KINDS = {"log", "linear", "int", "int:log"}
_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included."""

    low: float
    high: float
    log: bool = False
    whole: bool = False
    step: float | None = None

    def suggest(self, trial: Trial, name: str) -> float:
        """A value that a study tries."""
        if self.whole:
            step = int(self.step or 1)
            return trial.suggest_int(name, int(self.low), int(self.high), step=step, log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)


@dataclass(frozen=True)
class Choices:
    """Some values; `opened` are the further fields that each of them has."""

    values: tuple[Any, ...]
    opened: tuple[tuple[Field, ...], ...]

    @property
    def labels(self) -> tuple[Any, ...]:
        """Values as a study can store them: lists and mappings as YAML."""
        return tuple(value if isinstance(value, _SCALARS) else as_yaml(value) for value in self.values)

    def suggest(self, trial: Trial, name: str) -> Any:
        """The label of a value that a study tries."""
        return trial.suggest_categorical(name, self.labels)


@dataclass(frozen=True)
class Field:
    """An option and what it may be."""

    field: str
    name: str  # in the study: the field, with what opens it where several choices open one of this name
    place: str  # where it was written; empty if in Python
    domain: Range | Choices


Pick = Callable[[Field], Any]  # the value of a field in the study


@dataclass(frozen=True)
class Space:
    """Fields in the order in which they were written."""

    fields: tuple[Field, ...]
    given: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any] | str | Path) -> Space:
        """Read a space: of each dotted field a range, a list of choices, or a mapping from choices to what they open.

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
            raise ConfigError(
                "the space has no field to choose" if isinstance(given, Mapping) else f"{given}: no field to choose"
            )
        counts = Counter(field.field for field in _flat(fields))
        several = {field for field, count in counts.items() if count > 1}
        return cls(_named(fields, several, ""), options.values)

    def ask(self, pick: Pick) -> dict[str, Any]:
        """Options with values, those that others open behind these."""
        return dict(_walk(self.fields, pick))

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The same from what a study has stored."""
        return self.ask(lambda field: params[field.name])

    @property
    def all(self) -> list[Field]:
        """With those that are opened."""
        return list(_flat(self.fields))

    @property
    def conditional(self) -> bool:
        """Whether some fields are opened by others."""
        return len(self.all) > len(self.fields)

    def places(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Where these fields were written."""
        return {field.field: field.place for field in self.all if field.field in values and field.place}

    def corners(self) -> list[dict[str, Any]]:
        """Settings in which every choice, and both ends of every range, come up once."""
        return _corners(self.fields)


def _fields(
    given: Mapping[Any, Any], path: str, options: configuration.Options, taken: frozenset[str] = frozenset()
) -> tuple[Field, ...]:
    """Fields of one level; `taken` are chosen by what is around it."""
    found = []
    for key, value in given.items():
        field, at = str(key), f"{path}.{key}" if path else str(key)
        place, inside = options.places.get(at, ""), taken | {str(other) for other in given}
        deeper = value.items() if isinstance(value, Mapping) else ()
        opened = {c: _fields(more, f"{at}.{c}", options, inside) for c, more in deeper if isinstance(more, Mapping)}
        try:
            found.append(Field(field, field, place, _domain(field, value, opened, taken)))
        except ConfigError as error:
            raise ConfigError(f"{field}: {error}" + (f" ({place})" if place else "")) from None
    return tuple(found)


def _domain(field: str, value: Any, opened: Mapping[Any, tuple[Field, ...]], taken: frozenset[str]) -> Range | Choices:
    """What one field may be; `opened` are the fields of its choices that have some."""
    if "." not in field or not all(field.split(".")) or "=" in field:
        raise ConfigError("an option has a section, such as objective.temperature")
    if field == "train.seed":
        raise ConfigError("a seed is noise, and nothing to choose")
    if field in taken:
        raise ConfigError("chosen twice, here and beside or around what opens this; keep one")
    if isinstance(value, str):
        return _range(value)
    if not isinstance(value, Mapping | Sequence):
        raise ConfigError(f"is {value!r}, and {EXPECTED} is expected")
    if not isinstance(value, Mapping):
        return _distinct(Choices(tuple(number(choice) for choice in value), ((),) * len(value)))
    for choice, more in value.items():
        if more is not None and not isinstance(more, Mapping):
            raise ConfigError(f"{choice} opens {more!r}, and a mapping of fields, or nothing, is expected")
    return _distinct(Choices(tuple(map(_choice, value)), tuple(opened.get(choice, ()) for choice in value)))


def _distinct(choices: Choices) -> Choices:
    labels = choices.labels
    if len(labels) < 2:
        raise ConfigError(f"has {len(labels)} choice, and at least 2 are expected")
    for i, label in enumerate(labels):
        if label in labels[:i]:
            raise ConfigError(f"has {label!r} twice; give it once")
    return choices


def _choice(key: Any) -> Any:
    """What stands before a colon: YAML has no lists there, so a text is read once more."""
    try:
        return number(yaml.safe_load(key)) if isinstance(key, str) else key
    except yaml.YAMLError:
        return key


def _range(text: str) -> Range:
    """Two numbers, and how they are gone through."""
    wrong = f"is {text!r}, and {EXPECTED} is expected"
    found = re.fullmatch(r"([^:]+):([^:]+):([a-z:]+?)(?::\s*step\s+([^:]+))?", text.strip())
    if found is None:
        raise ConfigError(wrong)
    low, high, kind, step = found.groups()
    if kind not in _KINDS:
        raise ConfigError(f"{wrong}.{did_you_mean(kind, _KINDS)}")
    numbers = [number(part.strip()) for part in (low, high, step or "1")]
    if any(isinstance(value, str) or not math.isfinite(value) for value in numbers):
        raise ConfigError(wrong)
    a, b, every = numbers
    log, whole = kind in ("log", "int:log"), kind.startswith("int")
    if whole and not all(isinstance(value, int) for value in numbers):
        raise ConfigError(f"is {text!r}, and whole numbers are expected")
    if not (a < b and (not log or a > 0) and (step is None or (not log and 0 < every <= b - a))):
        raise ConfigError(
            f"is {text!r}, and low < high is expected, above 0 with log, a step between them only without"
        )
    if step and not math.isclose((b - a) / every, round((b - a) / every), rel_tol=1e-9):
        raise ConfigError(f"is {text!r}, and steps of {every} from {a} do not lead to {b}")
    return Range(a, b, log, whole, every if step else None)


def _named(fields: Sequence[Field], several: set[str], opener: str) -> tuple[Field, ...]:
    """Fields that have a name of their own in the study."""
    found = []
    for field in fields:
        name = f"{field.field} ({opener})" if opener and field.field in several else field.field
        domain = field.domain
        if isinstance(domain, Choices):
            opened = (
                _named(more, several, f"{field.field}={label}") for label, more in zip(domain.labels, domain.opened)
            )
            domain = Choices(domain.values, tuple(opened))
        found.append(Field(field.field, name, field.place, domain))
    return tuple(found)


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
            yield from chain.from_iterable(_flat(more) for more in field.domain.opened)


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
    for i, own in enumerate(each):
        settings += [[*firsts[:i], setting, *firsts[i + 1 :]] for setting in own[1:]]
    return [{field: value for part in parts for field, value in part.items()} for parts in settings]
