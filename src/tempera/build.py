"""Build objects from options; the only place that knows the names of a configuration.

Options are checked against the signatures of what they configure; there is no second declaration of them.
"""

from __future__ import annotations

import inspect
import math
import reprlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
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
from .core.teacher import Teacher
from .core.temperature import Temperature
from .engine.loop import COLUMNS, Training
from .errors import ConfigError, did_you_mean
from .forms import with_source
from .ranking.ranking import Evaluation
from .ranking.resolved import Config as Config
from .ranking.showcase import Labels
from .recommend.division import AtRandom, Divide, Fitting, GlobalTime, LeaveLastOut, NamedFiles, Undivided
from .recommend.encoders import FEATURES, Elapsed, Feature, OfUser
from .recommend.features import Features
from .recommend.history import History
from .recommend.interactions import Interactions
from .recommend.pooling import POOLINGS, Pooling
from .text.installed_python import InstalledPython
from .text.mixture import Mixture
from .text.pairs import Source
from .text.renewal import RepeatedMining
from .text.roles import Roles
from .text.sources import BeirFolder, Given, PairsFile
from .text.text_files import TextFiles
from .text.two_towers import DocSide, FrozenModel, Head, KeptIndex, QuerySide, TwoTowers
from .text.unpaired_texts import Documents
from .towers.lora import Lora
from .towers.pair import TowerOptions
from .towers.pretrained import Pretrained
from .towers.static import Static
from .towers.transformer import Transformer

# The names of each kind of part, with the part itself or the class or function that makes it.
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
        "text_files": TextFiles,
        "documents": Documents,
        "mixture": Mixture,
        "interactions": Interactions,
    },
    TowerOptions: {
        "static": Static,
        "pretrained": Pretrained,
        "transformer": Transformer,
        "features": Features,
        "two": TwoTowers,
    },
    QuerySide: {"head": Head, "static": Static, "pretrained": Pretrained, "transformer": Transformer},
    DocSide: {"index": KeptIndex, "pretrained": FrozenModel},
    Divide: {
        "auto": Fitting,
        "global_time": GlobalTime,
        "leave_last_out": LeaveLastOut,
        "files": NamedFiles,
        "random": AtRandom,
        "none": Undivided,
    },
    Feature: dict(FEATURES),
    OfUser: {**FEATURES, "elapsed": Elapsed},
    Pooling: dict(POOLINGS),
    Objective: {**{preset.__name__: preset for preset in presets.PRESETS}, "infonce": presets.infonce},
}
# Sections of one part: its kind, the key that names it, and the default name.
SECTIONS: dict[str, tuple[Any, str, str]] = {
    "data": (Source, "source", "installed_python"),
    "tower": (TowerOptions, "kind", "static"),
    "objective": (Objective, "preset", "mnr"),
}
_WRAPPER = ("matryoshka", "precisions")  # options of an objective that a Matryoshka takes
Precisions = tuple[typing.Literal["int8", "binary"], ...]
RECIPE, AUTO = "recipe", "auto"  # whether `tempera train` chooses what is open; the others keep defaults
# Sections without a choice.
PLAIN: dict[str, Any] = {"train": Training, "evaluation": Evaluation, "mining": RepeatedMining, "card": Labels}


# What an option takes, by the kinds of errors of pydantic.
_LIMITS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
}
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def build(options: Options) -> Config:
    """Check options and build their objects.

    Raises:
        ConfigError: an unknown section, option or name, or a wrong value, with its place.
    """
    builder = _Builder(options)
    sections = {**dict.fromkeys(SECTIONS), **PLAIN}
    builder.refuse_unknown("", options.values, [*sections, RECIPE])
    if options.values.get(RECIPE, AUTO) not in (AUTO, "none"):
        builder.fail(RECIPE, f"is {_shown(options.values[RECIPE])}; expected auto or none")
    made: dict[str, Any] = {}
    resolved: dict[str, Any] = {}
    for name, plain in sections.items():
        section = options.values.get(name)
        if section is not None and not isinstance(section, Mapping):
            builder.fail(name, f"is {_shown(section)}; expected a mapping of options")
        section = dict(section or {})
        if name == "train" and section.get("learning_rate", AUTO) == AUTO:
            section["learning_rate"] = made["tower"].learning_rate
        if name == "train":
            section.setdefault("mixed_precision", getattr(made["tower"], "mixed_precision", "no"))
        if name == "objective" and _section(options, "train").get("teacher") is not None:
            own, whole = section.get("teacher", {}), {"weight": 1.0} if _is_unpaired(made["data"]) else {}
            by = {"by": "scores"} if options.values["train"]["teacher"] == COLUMNS else {}
            section["teacher"] = {**whole, **by, **own} if isinstance(own, Mapping) else own
        if plain is not None:
            made[name] = builder.call(plain, section, name)
            resolved[name] = describe(made[name])
            continue
        kind, tag, default = SECTIONS[name]
        if name == "data" and section.get("path") is not None and tag not in section:
            builder.value(str, section["path"], "data.path")
            section = _with_source(section)
        if name == "tower":
            default = _default_tower(section, isinstance(made["data"], Interactions))
        chosen = section.pop(tag, default)
        wrapper = {key: section.pop(key, None) for key in _WRAPPER} if kind is Objective else {}
        made[name] = builder.call(builder.named(kind, chosen, f"{name}.{tag}"), section, name, besides=[tag])
        resolved[name] = {tag: chosen, **_options_of(made[name])}
        if wrapper and (wrapper["matryoshka"] is not None or wrapper["precisions"]):
            made[name] = builder.wrapped(made[name], wrapper)
            resolved[name] |= _of_wrapper(made[name])
    config = Config(**made, resolved=resolved)
    if (config.base.teacher is None) != (config.train.teacher is None):
        builder.fail(
            "objective.teacher", "needs what teaches: give the folder of a model, or columns, as train.teacher"
        )
    if config.base.teacher is not None and config.train.teacher == COLUMNS and config.base.teacher.by == "vectors":
        builder.fail("objective.teacher.by", "is vectors, but train.teacher is columns of scores: give scores")
    if config.train.teacher is not None and isinstance(config.data, Interactions):
        builder.fail("train.teacher", "is for models of texts, and the data are interactions")
    if config.train.select != 1:
        if isinstance(config.data, Interactions) or _is_unpaired(config.data):
            what = "interactions" if isinstance(config.data, Interactions) else "documents without pairs"
            builder.fail("train.select", f"chooses among pairs of texts, and the data are {what}")
        if any(isinstance(each, LogQ) for each in config.base.corrections):
            builder.fail(
                "train.select",
                "changes how often a document comes, which log_q corrects for: give objective.corrections=[]",
            )
    if config.evaluation.also and isinstance(config.data, Interactions):
        builder.fail("evaluation.also", "is for models of texts, and the data are interactions")
    if _is_unpaired(config.data):
        teacher = config.base.teacher
        if teacher is None or teacher.by != "vectors":
            builder.fail(
                "train.teacher",
                "documents have no pairs: give the folder of an embedding model that teaches, or make pairs by data.rule",
            )
        if {teacher.weight, teacher.final} - {1.0, None}:
            builder.fail("objective.teacher", "its weight has to be 1 throughout: documents have no pairs to train on")
        if teacher.own or teacher.loss == "margin_mse":
            builder.fail("objective.teacher", "documents have no answers and no negatives: use kl over pools, or align")
    return config


def _is_unpaired(data: Any) -> bool:
    """Return whether the data are texts without pairs, of which no rule makes any."""
    return isinstance(data, Documents) and data.rule is None


def _section(options: Options, name: str) -> Mapping[str, Any]:
    """Return a section of a configuration; what is none will be refused."""
    section = options.values.get(name)
    return section if isinstance(section, Mapping) else {}


def _with_source(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `data:` section that names its source, which the path determines."""
    if "source" in section or section.get("path") is None:
        return dict(section)
    return with_source(section["path"], {key: value for key, value in section.items() if key != "path"})


def kind_of_tower(options: Options) -> Any:
    """Return the class of the options of the tower that is trained, by its name or else by the data; None if that is no name."""
    tower, data = (_section(options, name) for name in ("tower", "data"))
    interactions = isinstance(data.get("path", ""), str) and _with_source(data).get("source") == "interactions"
    chosen = PARTS[TowerOptions].get(tower.get(SECTIONS["tower"][1], _default_tower(tower, interactions)))
    if chosen is TwoTowers and isinstance(query := tower.get("query"), Mapping):
        return PARTS[QuerySide].get(_named(QuerySide, query)[0])
    return chosen


def _default_tower(section: Mapping[str, Any], interactions: bool) -> str:
    """Return the kind of a tower that names none."""
    two = any(isinstance(section.get(side), Mapping) for side in ("query", "doc"))
    return "features" if interactions else "two" if two else SECTIONS["tower"][2]


def _named(kind: Any, value: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Return name and options of a part: {kind: NAME, ...}, {NAME: {...}}, or {NAME: TEXT, ...} with its first option."""
    rest = dict(value)
    if "kind" in rest:
        return rest.pop("kind"), rest
    name: Any = next((key for key in rest if key in PARTS[kind]), next(iter(rest), None))
    options, part = rest.pop(name, None), PARTS[kind].get(name)
    short = isinstance(options, str) and inspect.isclass(part)
    if short:
        return name, {next(iter(_hints(part))): options, **rest}
    return (None, None) if rest else (name, options)


def with_options(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a configuration with other values of some options, by their dotted names; its objective is a new one."""
    sections = {name: dict(section) for name, section in config.resolved.items()}
    sections["train"] = describe(config.train)  # with what a limit of time has become
    for path, value in values.items():
        name, _, key = path.partition(".")
        sections[name][key] = value
    made = build(Options({name: section for name, section in sections.items() if name != "data"}))
    resolved = {**made.resolved, "data": config.resolved["data"]}
    resolved["train"] = {**config.resolved["train"], **{key: resolved["train"][key] for key in _keys("train", values)}}
    return replace(made, data=config.data, resolved=resolved)


def _keys(section: str, values: Mapping[str, Any]) -> list[str]:
    return [path.partition(".")[2] for path in values if path.startswith(f"{section}.")]


def build_roles(options: Options) -> Roles | None:
    """Return roles of a table's columns from a `data:` section that names no source; None without options.

    Raises:
        ConfigError: an unknown or wrong option.

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
        """Raise ConfigError with the path of the option and its place."""
        place = self.options.place(path)
        raise ConfigError(f"{path}: {text}" + (f" ({place})" if place else "")) from None

    def refuse_unknown(self, path: str, options: Mapping[Any, Any], known: Sequence[str]) -> None:
        """Refuse options that do not exist."""
        for key in options:
            if key not in known:
                full = f"{path}.{key}" if path else str(key)
                kind, tag, _ = SECTIONS.get(path, (None, "", ""))
                if others := [name for name, make in PARTS.get(kind, {}).items() if key in _hints(make)]:
                    self.fail(full, f"this {tag} has no such option; it belongs to {path}.{tag}={' or '.join(others)}")
                takes = f"; {path or 'a configuration'} takes {', '.join(known) or 'no options'}"
                hint = did_you_mean(str(key), known)
                self.fail(full, f"no such option{'.' if hint else takes}{hint}")

    def named(self, kind: Any, name: Any, path: str) -> Any:
        """Return the part of a kind by its name."""
        names = PARTS[kind]
        if not isinstance(name, str) or name not in names:
            known = ", ".join(names) or "nothing to choose yet"
            self.fail(path, f"no {_shown(name)}; there is {known}.{did_you_mean(str(name), names)}")
        return names[name]

    def call(self, make: Callable[..., Any], options: dict[Any, Any], path: str, besides: Sequence[str] = ()) -> Any:
        """Call with options of its signature; names in `besides` are known to exist too."""
        if _makes_objective(make):
            options, besides = self._one_dial(options, path), (*besides, "scale", *_WRAPPER)
        hints = _hints(make)
        self.refuse_unknown(path, options, [*besides, *hints])
        for name, parameter in inspect.signature(make).parameters.items():
            if parameter.default is parameter.empty and name in hints and name not in options:
                self.fail(f"{path}.{name}", "is required")
        arguments = {key: self.value(hints[key], value, f"{path}.{key}") for key, value in options.items()}
        try:
            if _makes_objective(make) and "masks" not in arguments:
                arguments["masks"] = (masks.SameId(), *make(**arguments).masks)  # the rows of a run always have ids
            return make(**arguments)
        except ConfigError as error:
            self.fail(path, str(error))

    def wrapped(self, objective: Objective, options: Mapping[str, Any]) -> Matryoshka:
        """Return an objective at several widths, a list of them or a mapping with their weights, and at several precisions."""
        widths, precisions = options["matryoshka"], options["precisions"]
        chosen = self.value(Precisions, precisions or [], "objective.precisions")

        def nested(widths: tuple[int, ...] | None = None, weights: tuple[float, ...] | None = None) -> Matryoshka:
            return Matryoshka(objective, widths, weights, chosen)

        values = dict(widths) if isinstance(widths, Mapping) else {} if widths is None else {"widths": widths}
        made: Matryoshka = self.call(nested, values, "objective.matryoshka")
        return made

    def _one_dial(self, options: dict[Any, Any], path: str) -> dict[Any, Any]:
        """Return options in which `scale` is replaced by the temperature 1 / scale."""
        if "scale" not in options:
            return options
        if "temperature" in options:
            self.fail(f"{path}.scale", "scale is 1/temperature; give only one of them")
        scale = self.value(float, options["scale"], f"{path}.scale")
        rest = {key: value for key, value in options.items() if key != "scale"}
        try:
            return {**rest, "temperature": Temperature(math.inf if scale == 0 else 1 / scale)}
        except ConfigError as error:
            self.fail(f"{path}.scale", f"{scale:g}: {error}")

    def value(self, hint: Any, value: Any, path: str) -> Any:
        """Return a value as a parameter with this annotation takes it."""
        if _is_kind(hint):
            return self.part(hint, value, path)
        state = next(
            (kind for kind in (Temperature, Memory, Lora, History, Teacher) if hint is kind or kind in get_args(hint)),
            None,
        )
        if state is not None:
            if isinstance(value, state) or (value is None and type(None) in get_args(hint)):
                return value
            # One number, or a mapping of all options; the number sets the first option.
            first = next(iter(_hints(state)))
            return self.call(state, dict(value) if isinstance(value, Mapping) else {first: value}, path)
        if get_origin(hint) is Sequence and _is_kind(get_args(hint)[0]):
            if not isinstance(value, Sequence) or isinstance(value, str):
                self.fail(path, f"is {_shown(value)}; expected a list")
            return tuple(self.part(get_args(hint)[0], item, f"{path}[{i}]") for i, item in enumerate(value))
        return self._checked(hint, value, path)

    def part(self, kind: Any, value: Any, path: str) -> Any:
        """Return a part from its name, or from a mapping of its name to its options."""
        name: Any = value
        options: Any = {}
        if isinstance(value, Mapping):
            name, options = _named(kind, value)
            if name is None:
                self.fail(path, f"is {_shown(value)}; expected one name with its options")
            options = {} if options is None else options  # `- same_id:` without options
        part = self.named(kind, name, path)
        if not inspect.isclass(part):
            if options:
                self.fail(path, f"{name} takes no options")
            return part
        if not isinstance(options, Mapping):
            self.fail(f"{path}.{name}", f"is {_shown(options)}; expected a mapping of options")
        return self.call(part, dict(options), f"{path}.{name}")

    def _checked(self, hint: Any, value: Any, path: str) -> Any:
        if isinstance(value, bool) and bool not in (hint, *get_args(hint)):
            self.fail(path, f"is {str(value).lower()}, but this option is not true or false")  # would count as 1 or 0
        try:
            return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False)).validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            inner = "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
            self.fail(f"{path}{inner}", f"is {_shown(first['input'])}; expected {_expected(first)}")


def _expected(error: Mapping[str, Any]) -> str:
    """Return what an option takes, from an error of pydantic."""
    kind, limits = error["type"], error.get("ctx", {})
    if kind in _LIMITS:
        return _LIMITS[kind].format(**limits)
    if kind == "literal_error":
        return f"one of {limits['expected'].replace(' or ', ', ')}"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    text: str = error["msg"]
    return _KINDS.get(kind.partition("_")[0], text[0].lower() + text[1:])


def _shown(value: Any) -> str:
    """Return a value for a message, shortened if it is long."""
    return _SHORT.repr(value)


def _is_kind(hint: Any) -> bool:
    return isinstance(hint, typing.Hashable) and hint in PARTS


def _makes_objective(make: Any) -> bool:
    return make in PARTS[Objective].values()


@cache
def _hints(make: Callable[..., Any]) -> Mapping[str, Any]:
    """Return parameters and their annotations; those of a preset include every part that it may replace."""
    target = make.__init__ if inspect.isclass(make) else make
    hints = typing.get_type_hints(target, include_extras=True)
    parameters = inspect.signature(make).parameters.values()
    named = {p.name: hints[p.name] for p in parameters if p.kind is not p.VAR_KEYWORD}
    rest = {} if len(named) == len(parameters) else {k: v for k, v in _hints(Objective).items() if k not in named}
    return types.MappingProxyType({**named, **rest})


def _options_of(made: Any) -> dict[str, Any]:
    """Return the options that build an equal part."""
    if isinstance(made, Objective):
        return {name: describe(getattr(made, name)) for name in _hints(Objective)}
    if is_dataclass(made) and not isinstance(made, type):
        return {f.name: describe(getattr(made, f.name)) for f in fields(made)}
    return {}


def _of_wrapper(made: Matryoshka) -> dict[str, Any]:
    """Return the options of widths and precisions."""
    widths = {} if made.widths is None else {"matryoshka": {"widths": [*made.widths], "weights": [*made.weights]}}
    return {**widths, **({"precisions": [*made.precisions]} if made.precisions else {})}


def describe(value: Any) -> Any:
    """Return a value as it is written in YAML."""
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
