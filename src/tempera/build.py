"""From options to objects: every name in a configuration, here only.

Options are checked against the signatures of what they configure; there is no second declaration of them.
"""

from __future__ import annotations

import inspect
import math
import reprlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from .config import Options
from .core import masks, presets, similarity
from .core.corrections import Correction, Hardness, LogQ, Margin
from .core.matryoshka import Matryoshka
from .core.memory import Memory
from .core.objective import Objective
from .core.pools import POOLS, Pool
from .core.temperature import Temperature
from .engine.loop import Training
from .errors import ConfigError, did_you_mean
from .ranking.ranking import Evaluation
from .ranking.showcase import Labels
from .recommend.division import Divide, GlobalTime, LeaveLastOut
from .recommend.encoders import FEATURES, Elapsed, Feature, OfUser
from .recommend.features import Features
from .recommend.history import POOLINGS, History, Pooling
from .recommend.interactions import Interactions
from .text.installed_python import InstalledPython
from .text.mixture import Mixture
from .text.pairs import Source
from .text.renewal import Anew
from .text.roles import Roles
from .text.sources import BeirFolder, Given, PairsFile
from .towers.lora import Lora
from .towers.pair import Options as TowerOptions
from .towers.pretrained import Pretrained
from .towers.static import Static
from .towers.transformer import Transformer

# What stands for a kind of part: its names, each with what it makes. A value is the part itself or makes it.
PARTS: dict[Any, dict[str, Any]] = {
    similarity.Similarity: {"cosine": similarity.cosine, "dot": similarity.dot},
    Pool: {pool.name: pool for pool in POOLS},
    Correction: {"log_q": LogQ, "hardness": Hardness, "margin": Margin},
    masks.Mask: {"same_id": masks.SameId, "known_positives": masks.KnownPositives, "guided": masks.Guided},
    Source: {
        "installed_python": InstalledPython,
        "pairs": PairsFile,
        "beir": BeirFolder,
        "given": Given,
        "mixture": Mixture,
        "interactions": Interactions,
    },
    TowerOptions: {"static": Static, "pretrained": Pretrained, "transformer": Transformer, "features": Features},
    Divide: {"global_time": GlobalTime, "leave_last_out": LeaveLastOut},
    Feature: dict(FEATURES),
    OfUser: {**FEATURES, "elapsed": Elapsed},
    Pooling: dict(POOLINGS),
    Objective: {**{preset.__name__: preset for preset in presets.PRESETS}, "infonce": presets.infonce},
}
# Sections name their part with a key of its own, and its default.
SECTIONS: dict[str, tuple[Any, str, str]] = {
    "data": (Source, "source", "installed_python"),
    "tower": (TowerOptions, "kind", "static"),
    "objective": (Objective, "preset", "mnr"),
}
# Sections that are one part.
PLAIN: dict[str, Any] = {"train": Training, "evaluation": Evaluation, "mining": Anew, "card": Labels}


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


@dataclass(frozen=True)
class Config:
    """Everything a run is made of, as objects, and as plain options with every default visible."""

    data: Source
    tower: TowerOptions
    objective: Objective | Matryoshka
    train: Training
    evaluation: Evaluation
    mining: Anew
    card: Labels
    resolved: dict[str, Any]

    @property
    def base(self) -> Objective:
        """The objective without its widths."""
        return self.objective.objective if isinstance(self.objective, Matryoshka) else self.objective

    @property
    def similarity(self) -> similarity.Similarity:
        """How vectors are compared."""
        return self.base.similarity


def build(options: Options) -> Config:
    """Check options and make what they describe.

    Raises:
        ConfigError: an unknown section, option or name, or a value it cannot take; says where it was written.
    """
    builder = _Builder(options)
    sections = {**dict.fromkeys(SECTIONS), **PLAIN}
    builder.refuse_unknown("", options.values, list(sections))
    made: dict[str, Any] = {}
    resolved: dict[str, Any] = {}
    for name, plain in sections.items():
        given = options.values.get(name)
        if given is not None and not isinstance(given, Mapping):
            builder.fail(name, f"is {_shown(given)}, and a mapping of options is expected")
        given = dict(given or {})
        if name == "train":
            given.setdefault("learning_rate", made["tower"].learning_rate)
        if plain is not None:
            made[name] = builder.call(plain, given, name)
            resolved[name] = describe(made[name])
            continue
        kind, tag, default = SECTIONS[name]
        chosen = given.pop(tag, default)
        wrapper = given.pop("matryoshka", None) if kind is Objective else None
        made[name] = builder.call(builder.named(kind, chosen, f"{name}.{tag}"), given, name, besides=[tag])
        resolved[name] = {tag: chosen, **_options_of(made[name])}
        if wrapper is not None:
            made[name] = builder.wrapped(made[name], wrapper, f"{name}.matryoshka")
            resolved[name]["matryoshka"] = {"widths": list(made[name].widths), "weights": list(made[name].weights)}
    return Config(**made, resolved=resolved)


def build_roles(options: Options) -> Roles | None:
    """Roles of a table's columns, from a `data:` section that names no source; None where there are no options.

    Raises:
        ConfigError: as above.

    >>> build_roles(Options({"data": {"query": "title"}})).query
    'title'
    """
    if not options.values:
        return None
    builder = _Builder(options)
    builder.refuse_unknown("", options.values, ["data"])
    made: Given = builder.call(Given, {"identical": "keep", **options.values["data"]}, "data")
    return made


class _Builder:
    def __init__(self, options: Options) -> None:
        self.options = options

    def fail(self, path: str, text: str) -> typing.NoReturn:
        """Raise, with the path of the option and where it was written."""
        place = self.options.place(path)
        raise ConfigError(f"{path}: {text}" + (f" ({place})" if place else "")) from None

    def refuse_unknown(self, path: str, given: Mapping[Any, Any], known: Sequence[str]) -> None:
        """Options that do not exist."""
        for key in given:
            if key not in known:
                full = f"{path}.{key}" if path else str(key)
                kind, tag, _ = SECTIONS.get(path, (None, "", ""))
                if others := [name for name, make in PARTS.get(kind, {}).items() if key in _hints(make)]:
                    self.fail(full, f"this {tag} has no such option; it belongs to {path}.{tag}={' or '.join(others)}")
                takes = f"; {path or 'a configuration'} takes {', '.join(known) or 'no options'}"
                hint = did_you_mean(str(key), known)
                self.fail(full, f"no such option{'.' if hint else takes}{hint}")

    def named(self, kind: Any, name: Any, path: str) -> Any:
        """The part of a kind with a name."""
        names = PARTS[kind]
        if not isinstance(name, str) or name not in names:
            known = ", ".join(names) or "nothing to choose yet"
            self.fail(path, f"no {_shown(name)}; there is {known}.{did_you_mean(str(name), names)}")
        return names[name]

    def call(self, make: Callable[..., Any], given: dict[Any, Any], path: str, besides: Sequence[str] = ()) -> Any:
        """Call with options that its signature takes; names `besides` them are known to exist."""
        if _makes_objective(make):
            given, besides = self._one_dial(given, path), (*besides, "scale", "matryoshka")
        hints = _hints(make)
        self.refuse_unknown(path, given, [*besides, *hints])
        for name, parameter in inspect.signature(make).parameters.items():
            if parameter.default is parameter.empty and name in hints and name not in given:
                self.fail(f"{path}.{name}", "is needed and not given")
        arguments = {key: self.value(hints[key], value, f"{path}.{key}") for key, value in given.items()}
        try:
            if _makes_objective(make) and "masks" not in arguments:
                arguments["masks"] = (masks.SameId(), *make(**arguments).masks)  # rows of a run always have ids
            return make(**arguments)
        except ConfigError as error:
            self.fail(path, str(error))

    def wrapped(self, objective: Objective, given: Any, path: str) -> Matryoshka:
        """An objective at several widths: a list of them, or a mapping with their weights."""

        def nested(widths: tuple[int, ...], weights: tuple[float, ...] | None = None) -> Matryoshka:
            return Matryoshka(objective, widths, weights)

        made: Matryoshka = self.call(nested, dict(given) if isinstance(given, Mapping) else {"widths": given}, path)
        return made

    def _one_dial(self, given: dict[Any, Any], path: str) -> dict[Any, Any]:
        """`scale` is accepted for 1 / temperature."""
        if "scale" not in given:
            return given
        if "temperature" in given:
            self.fail(f"{path}.scale", "scale is 1/temperature, and both are given; keep one")
        scale = self.value(float, given["scale"], f"{path}.scale")
        rest = {key: value for key, value in given.items() if key != "scale"}
        try:
            return {**rest, "temperature": Temperature(math.inf if scale == 0 else 1 / scale)}
        except ConfigError as error:
            self.fail(f"{path}.scale", f"{scale:g}: {error}")

    def value(self, hint: Any, value: Any, path: str) -> Any:
        """A value that a parameter with this annotation takes."""
        if _is_kind(hint):
            return self.part(hint, value, path)
        state = next(
            (kind for kind in (Temperature, Memory, Lora, History) if hint is kind or kind in get_args(hint)), None
        )
        if state is not None:
            if isinstance(value, state) or (value is None and type(None) in get_args(hint)):
                return value
            # One number, or a mapping of all options; the first option is what the number is for.
            first = next(iter(_hints(state)))
            return self.call(state, dict(value) if isinstance(value, Mapping) else {first: value}, path)
        if get_origin(hint) is Sequence and _is_kind(get_args(hint)[0]):
            if not isinstance(value, Sequence) or isinstance(value, str):
                self.fail(path, f"is {_shown(value)}, and a list is expected")
            return tuple(self.part(get_args(hint)[0], item, f"{path}[{i}]") for i, item in enumerate(value))
        return self._checked(hint, value, path)

    def part(self, kind: Any, value: Any, path: str) -> Any:
        """A part: its name, or a mapping from its name to its options."""
        name: Any = value
        given: Any = {}
        if isinstance(value, Mapping):
            if len(value) != 1:
                self.fail(path, f"is {_shown(value)}, and one name with its options is expected")
            name, given = next(iter(value.items()))
            given = {} if given is None else given  # `- same_id:` with nothing behind it
        found = self.named(kind, name, path)
        if not inspect.isclass(found):
            if given:
                self.fail(path, f"{name} takes no options")
            return found
        if not isinstance(given, Mapping):
            self.fail(f"{path}.{name}", f"is {_shown(given)}, and a mapping of options is expected")
        return self.call(found, dict(given), f"{path}.{name}")

    def _checked(self, hint: Any, value: Any, path: str) -> Any:
        if isinstance(value, bool) and bool not in (hint, *get_args(hint)):
            self.fail(path, f"is {str(value).lower()}, and this option is not a switch")  # lest it count as 1 or 0
        try:
            return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False)).validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            inner = "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
            text = first["msg"][0].lower() + first["msg"][1:]
            self.fail(f"{path}{inner}", f"{text}, and it is {_shown(first['input'])}")


def _shown(value: Any) -> str:
    """A value in a message: cut short where it is long."""
    return _SHORT.repr(value)


def _is_kind(hint: Any) -> bool:
    return isinstance(hint, typing.Hashable) and hint in PARTS


def _makes_objective(make: Any) -> bool:
    return make in PARTS[Objective].values()


@cache
def _hints(make: Callable[..., Any]) -> Mapping[str, Any]:
    """Parameters and their annotations; a preset's include every part of the objective it may replace."""
    target = make.__init__ if inspect.isclass(make) else make
    hints = typing.get_type_hints(target, include_extras=True)
    parameters = inspect.signature(make).parameters.values()
    named = {p.name: hints[p.name] for p in parameters if p.kind is not p.VAR_KEYWORD}
    rest = {} if len(named) == len(parameters) else {k: v for k, v in _hints(Objective).items() if k not in named}
    return types.MappingProxyType({**named, **rest})


def _options_of(made: Any) -> dict[str, Any]:
    """The options that make a part again."""
    if isinstance(made, Objective):
        return {name: describe(getattr(made, name)) for name in _hints(Objective)}
    if is_dataclass(made) and not isinstance(made, type):
        return {f.name: describe(getattr(made, f.name)) for f in fields(made)}
    return {}


def describe(value: Any) -> Any:
    """A value as it stands in YAML."""
    if isinstance(value, Temperature):
        options = {name: getattr(value, name) for name in ("final", "schedule", "floor", "ceiling")}
        return {"value": value.start, "learnable": value.learnable, **options}
    if isinstance(value, Memory):
        return {"size": value.size}
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    for names in PARTS.values():
        for name, part in names.items():
            if part is value:
                return name
            if inspect.isclass(part) and type(value) is part:
                return {name: _options_of(value)} if fields(part) else name
    if is_dataclass(value) and not isinstance(value, type | types.FunctionType):
        return _options_of(value)
    return value
