"""Options become objects: each is checked against the signature that takes it, and named with its
place if it is wrong.

There is no second declaration of options.
"""

from __future__ import annotations

import inspect
import math
import reprlib
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..core import masks
from ..core.matryoshka import Matryoshka
from ..core.objective import Objective
from ..core.temperature import Temperature
from ..errors import ConfigError, did_you_mean, nearest
from .names import AUTO, PARTS, PLAIN, SECTIONS, STATES, WRAPPER, hints_of, name_and_options
from .worlds import load_all
from .yaml_options import Options

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
_Precisions = tuple[typing.Literal["int8", "binary"], ...]
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


class Builder:
    """Make objects of options, and refuse what is wrong by its path and its place."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.open = {"train.learning_rate"}  # may be auto, which something else replaces

    def fail(self, path: str, text: str) -> typing.NoReturn:
        """Raise ConfigError with the path of the option and its place."""
        place = self.options.place(path)
        raise ConfigError(f"{path}: {text}" + (f" ({place})" if place else "")) from None

    def refuse_unknown(self, path: str, options: Mapping[Any, Any], known: Sequence[str]) -> None:
        """Refuse options that do not exist."""
        for key in options:
            if key not in known:
                load_all()
                full = f"{path}.{key}" if path else str(key)
                kind, tag, _ = SECTIONS.get(path, (None, "", ""))
                if others := [
                    name for name, make in PARTS.get(kind, {}).items() if key in hints_of(make)
                ]:
                    self.fail(
                        full,
                        f"this {tag} has no such option; it belongs to {path}.{tag}={' or '.join(others)}",
                    )
                takes = f"; {path or 'a configuration'} takes {', '.join(known) or 'no options'}"
                hint = did_you_mean(str(key), known) or ("" if path else _in_a_section(str(key)))
                self.fail(full, f"no such option{'.' if hint else takes}{hint}")

    def named(self, kind: Any, name: Any, path: str) -> Any:
        """Return the part of a kind by its name."""
        names = PARTS[kind]
        if not isinstance(name, str) or name not in names:
            load_all()
        if not isinstance(name, str) or name not in names:
            known = ", ".join(names) or "nothing to choose yet"
            self.fail(path, f"no {shown(name)}; there is {known}.{did_you_mean(str(name), names)}")
        return names[name]

    def call(
        self,
        make: Callable[..., Any],
        options: dict[Any, Any],
        path: str,
        besides: Sequence[str] = (),
    ) -> Any:
        """Call with options of its signature; names in `besides` are known to exist too."""
        if _makes_objective(make):
            options, besides = self._one_dial(options, path), (*besides, "scale", *WRAPPER)
        hints = hints_of(make)
        self.refuse_unknown(path, options, [*besides, *hints])
        for name, parameter in inspect.signature(make).parameters.items():
            if parameter.default is parameter.empty and name in hints and name not in options:
                self.fail(f"{path}.{name}", "is required")
        arguments = {
            key: self.value(hints[key], value, f"{path}.{key}") for key, value in options.items()
        }
        try:
            if _makes_objective(make) and "masks" not in arguments:
                arguments["masks"] = (
                    masks.SameId(),
                    *make(**arguments).masks,
                )  # the rows of a run always have ids
            return make(**arguments)
        except ConfigError as error:
            self.fail(path, str(error))

    def wrapped(self, objective: Objective, options: Mapping[str, Any]) -> Matryoshka:
        """Return an objective at several widths, a list of them or a mapping with their weights,
        and at several precisions."""
        widths, precisions = options["matryoshka"], options["precisions"]
        chosen = self.value(_Precisions, precisions or [], "objective.precisions")

        def nested(
            widths: tuple[int, ...] | None = None, weights: tuple[float, ...] | None = None
        ) -> Matryoshka:
            return Matryoshka(objective, widths, weights, chosen)

        values = (
            dict(widths)
            if isinstance(widths, Mapping)
            else {}
            if widths is None
            else {"widths": widths}
        )
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
            (kind for kind in STATES if hint is kind or kind in get_args(hint)),
            None,
        )
        if state is not None:
            if isinstance(value, state) or (value is None and type(None) in get_args(hint)):
                return value
            # One number, or a mapping of all options; the number sets the first option.
            first = next(iter(hints_of(state)))
            return self.call(
                state, dict(value) if isinstance(value, Mapping) else {first: value}, path
            )
        if get_origin(hint) is Sequence and _is_kind(get_args(hint)[0]):
            if not isinstance(value, Sequence) or isinstance(value, str):
                self.fail(path, f"is {shown(value)}; expected a list")
            return tuple(
                self.part(get_args(hint)[0], item, f"{path}[{i}]") for i, item in enumerate(value)
            )
        return self._checked(hint, value, path)

    def part(self, kind: Any, value: Any, path: str) -> Any:
        """Return a part from its name, or from a mapping of its name to its options."""
        name: Any = value
        options: Any = {}
        if isinstance(value, Mapping):
            name, options = name_and_options(kind, value)
            if name is None:
                self.fail(path, f"is {shown(value)}; expected one name with its options")
            options = {} if options is None else options  # `- same_id:` without options
        part = self.named(kind, name, path)
        if not inspect.isclass(part):
            if options:
                self.fail(path, f"{name} takes no options")
            return part
        if not isinstance(options, Mapping):
            self.fail(f"{path}.{name}", f"is {shown(options)}; expected a mapping of options")
        return self.call(part, dict(options), f"{path}.{name}")

    def _checked(self, hint: Any, value: Any, path: str) -> Any:
        if (
            isinstance(value, bool)
            and bool not in (hint, *get_args(hint))
            and get_origin(hint) is not typing.Literal
        ):
            self.fail(
                path, f"is {shown(value)}, but this option is not true or false"
            )  # would count as 1 or 0
        try:
            return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False)).validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            inner = "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
            words = [
                word
                for each in get_args(hint)
                if get_origin(each) is typing.Literal
                for word in get_args(each)
            ]
            example = f"[{value if value in words or not words else words[0]}]" + (
                ", or [] for none" if value == "none" else ""
            )
            words += [AUTO] if path in self.open and value != AUTO and AUTO not in words else []
            others = "".join(
                f" or {word}" for word in words if first["type"] != "literal_error" and not inner
            )
            if isinstance(value, str) and first["type"].startswith(("tuple", "list", "sequence")):
                others = f", such as {example}"
            self.fail(
                f"{path}{inner}", f"is {shown(first['input'])}; expected {_expected(first)}{others}"
            )


def _expected(error: Mapping[str, Any]) -> str:
    """Return what an option takes, from an error of pydantic."""
    kind, limits = error["type"], error.get("ctx", {})
    if kind in _LIMITS:
        return _LIMITS[kind].format(**limits)
    if kind == "literal_error":
        expected: str = limits["expected"]
        if " or " not in expected:
            return expected
        return f"one of {expected.replace(' or ', ', ')}"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    text: str = error["msg"]
    return _KINDS.get(kind.partition("_")[0], text[0].lower() + text[1:])


def _in_a_section(word: str) -> str:
    """Return the option of a section that a word without one may mean, as a question.

    >>> _in_a_section("lr"), _in_a_section("temperature"), _in_a_section("metric")
    (' Did you mean train.learning_rate?', ' Did you mean objective.temperature?', ' Did you mean evaluation.metrics?')
    """
    sections = {"objective": Objective, **PLAIN}
    options = {
        name: f"{section}.{name}"
        for section in reversed(sections)
        for name in hints_of(sections[section])
    }
    near = nearest(word, list(options))
    return f" Did you mean {options[near]}?" if near else ""


def shown(value: Any) -> str:
    """Return a value for a message as a configuration has it, shortened if it is long."""
    return str(value).lower() if isinstance(value, bool) else _SHORT.repr(value)


def _is_kind(hint: Any) -> bool:
    return isinstance(hint, typing.Hashable) and hint in PARTS


def _makes_objective(make: Any) -> bool:
    return make in PARTS[Objective].values()
