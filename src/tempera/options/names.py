"""The classes and functions behind the names of a configuration, and the way back from objects to
YAML."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from ..core import masks, presets, similarity
from ..core.corrections import Correction, Hardness, LogQ, Margin
from ..core.matryoshka import Matryoshka
from ..core.memory import Memory
from ..core.objective import Objective
from ..core.pools import POOLS, Pool
from ..core.teacher import Teacher
from ..core.temperature import Temperature
from ..engine.training_options import Training
from ..mining.again import MiningAgain
from ..task.evaluation import Evaluation
from ..task.showcase import Labels
from ..task.world import DataOptions
from ..towers.lora import Lora
from ..towers.pair import TowerOptions
from ..towers.pretrained import Pretrained
from ..towers.static import Static
from ..towers.transformer import Transformer

Parts = dict[Any, dict[str, Any]]
# The names of each kind of part, with the part itself or the class or function that makes the part.
# `worlds` adds the parts of texts and of interactions.
PARTS: Parts = {
    similarity.Similarity: {"cosine": similarity.cosine, "dot": similarity.dot},
    Pool: {pool.name: pool for pool in POOLS},
    Correction: {"log_q": LogQ, "hardness": Hardness, "margin": Margin},
    masks.Mask: {
        "same_id": masks.SameId,
        "known_positives": masks.KnownPositives,
        "guided": masks.Guided,
    },
    DataOptions: {},
    TowerOptions: {"static": Static, "pretrained": Pretrained, "transformer": Transformer},
    Objective: {
        **{preset.__name__: preset for preset in presets.PRESETS},
        "infonce": presets.infonce,
    },
}
# Classes of options that may be given as one number: it sets the first parameter.
STATES: list[Any] = [Temperature, Memory, Lora, Teacher]
# Sections of one part: its kind, the key that names it, and the default name.
SECTIONS: dict[str, tuple[Any, str, str]] = {
    "data": (DataOptions, "source", "installed_python"),
    "tower": (TowerOptions, "kind", "static"),
    "objective": (Objective, "preset", "mnr"),
}
WRAPPER = ("matryoshka", "precisions")  # options of an objective that a Matryoshka takes
# With `recipe: auto`, `tempera train` chooses the options in the tower's `open` that are not set.
RECIPE = "recipe"
AUTO = "auto"  # any other recipe keeps the defaults
# Sections without a choice.
PLAIN: dict[str, Any] = {
    "train": Training,
    "evaluation": Evaluation,
    "mining": MiningAgain,
    "card": Labels,
}


@cache
def hints_of(make: Callable[..., Any]) -> Mapping[str, Any]:
    """Return parameters and their annotations; a function with **kwargs, as a preset, also has the
    parameters of `Objective`."""
    target = make.__init__ if inspect.isclass(make) else make
    annotations = typing.get_type_hints(target, include_extras=True)
    hints = {}
    takes_all = False
    for parameter in inspect.signature(make).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_all = True
        else:
            hints[parameter.name] = annotations[parameter.name]
    if takes_all:
        for name, hint in hints_of(Objective).items():
            hints.setdefault(name, hint)
    return types.MappingProxyType(hints)


def name_and_options(kind: Any, value: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Return the name and the options of a part that is written as {kind: NAME, ...},
    {NAME: {...}}, or {NAME: TEXT, ...} with the first option as TEXT; (None, None) for any other
    mapping."""
    rest = dict(value)
    if "kind" in rest:
        return rest.pop("kind"), rest
    name: Any = next(iter(rest), None)
    for key in rest:
        if key in PARTS[kind]:
            name = key
            break
    options = rest.pop(name, None)
    part = PARTS[kind].get(name)
    is_text_of_part = isinstance(options, str) and inspect.isclass(part)
    if is_text_of_part:
        first = next(iter(hints_of(part)))
        return name, {first: options, **rest}
    if rest:
        return None, None
    return name, options


def options_of(made: Any) -> dict[str, Any]:
    """Return the options to build an equal part."""
    if isinstance(made, Objective):
        return {name: describe(getattr(made, name)) for name in hints_of(Objective)}
    if is_dataclass(made) and not isinstance(made, type):
        return {f.name: describe(getattr(made, f.name)) for f in fields(made)}
    return {}


def options_of_wrapper(made: Matryoshka) -> dict[str, Any]:
    """Return the options of widths and precisions."""
    options: dict[str, Any] = {}
    if made.widths is not None:
        options["matryoshka"] = {"widths": [*made.widths], "weights": [*made.weights]}
    if made.precisions:
        options["precisions"] = [*made.precisions]
    return options


def describe(value: Any) -> Any:
    """Return a value as YAML writes it: the name of a part, its name with its options, the options
    of another dataclass, a list of these, or the value itself."""
    # Temperature and Memory are modules and no dataclasses, so their options are no fields.
    if isinstance(value, Temperature):
        return {
            "value": value.start,
            "learnable": value.learnable,
            "final": value.final,
            "schedule": value.schedule,
            "floor": value.floor,
            "ceiling": value.ceiling,
        }
    if isinstance(value, Memory):
        return {"size": value.size}
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    for names in PARTS.values():
        for name, part in names.items():
            if part is value:
                return name
            if inspect.isclass(part) and type(value) is part:
                return {name: options_of(value)} if fields(part) else name
    if is_dataclass(value) and not isinstance(value, type | types.FunctionType):
        return options_of(value)
    return value
