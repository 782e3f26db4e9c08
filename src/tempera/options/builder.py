"""Objects made of options: each option is checked against the signature of the part, and a wrong
option is named with the place where it was written.

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
_SHORT.maxstring = 80
_SHORT.maxother = 80
_SHORT.maxlong = 80


class Builder:
    """Make objects of options, and refuse a wrong option by path and place."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.open = {"train.learning_rate"}  # options that may be auto

    def fail(self, path: str, text: str) -> typing.NoReturn:
        """Raise ConfigError with the path and the place of the option."""
        place = self.options.place(path)
        where = f" ({place})" if place else ""
        raise ConfigError(f"{path}: {text}{where}") from None

    def refuse_unknown(self, path: str, options: Mapping[Any, Any], known: Sequence[str]) -> None:
        """Refuse unknown options."""
        for key in options:
            if key not in known:
                self._fail_unknown(path, str(key), known)

    def _fail_unknown(self, path: str, key: str, known: Sequence[str]) -> typing.NoReturn:
        """Refuse an unknown option; name the parts with this option, or the nearest known
        option."""
        load_all()
        full = f"{path}.{key}" if path else key
        kind, tag, _ = SECTIONS.get(path, (None, "", ""))
        owners = [name for name, make in PARTS.get(kind, {}).items() if key in hints_of(make)]
        if owners:
            names = " or ".join(owners)
            self.fail(full, f"this {tag} has no such option; it belongs to {path}.{tag}={names}")
        hint = did_you_mean(key, known)
        if not hint and not path:
            hint = _in_a_section(key)
        if hint:
            self.fail(full, f"no such option.{hint}")
        takes = f"{path or 'a configuration'} takes {', '.join(known) or 'no options'}"
        self.fail(full, f"no such option; {takes}")

    def named(self, kind: Any, name: Any, path: str) -> Any:
        """Return the part of a kind by name."""
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
        """Call a class or function with checked options of its signature.

        Args:
            besides: names of further options of the section, unknown to `make`.
        """
        is_objective = make in PARTS[Objective].values()
        if is_objective:
            options = self._one_dial(options, path)
            besides = [*besides, "scale", *WRAPPER]
        hints = hints_of(make)
        self.refuse_unknown(path, options, [*besides, *hints])
        for name, parameter in inspect.signature(make).parameters.items():
            if parameter.default is parameter.empty and name in hints and name not in options:
                self.fail(f"{path}.{name}", "is required")
        arguments = {}
        for key, value in options.items():
            arguments[key] = self.value(hints[key], value, f"{path}.{key}")
        try:
            if is_objective and "masks" not in arguments:
                # The rows of a run always have ids.
                arguments["masks"] = (masks.SameId(), *make(**arguments).masks)
            return make(**arguments)
        except ConfigError as error:
            self.fail(path, str(error))

    def wrapped(self, objective: Objective, widths: Any, precisions: Any) -> Matryoshka:
        """Return an objective at several widths and precisions.

        Args:
            widths: a list of widths, or a mapping of widths and weights; None is the full width.
            precisions: a list of names; None is none.
        """
        chosen = self.value(_Precisions, precisions or [], "objective.precisions")

        def nested(
            widths: tuple[int, ...] | None = None, weights: tuple[float, ...] | None = None
        ) -> Matryoshka:
            return Matryoshka(objective, widths, weights, chosen)

        options: dict[Any, Any] = {}
        if isinstance(widths, Mapping):
            options = dict(widths)
        elif widths is not None:
            options = {"widths": widths}
        made: Matryoshka = self.call(nested, options, "objective.matryoshka")
        return made

    def _one_dial(self, options: dict[Any, Any], path: str) -> dict[Any, Any]:
        """Return options with the temperature 1 / scale in place of `scale`."""
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
        """Return a value in the form of a parameter by its annotation."""
        inner = get_args(hint)
        if _is_kind(hint):
            return self.part(hint, value, path)
        for state in STATES:
            if hint is not state and state not in inner:
                continue
            if isinstance(value, state) or (value is None and type(None) in inner):
                return value
            if isinstance(value, Mapping):
                return self.call(state, dict(value), path)
            first = next(iter(hints_of(state)))  # one number sets the first option
            return self.call(state, {first: value}, path)
        if get_origin(hint) is Sequence and _is_kind(inner[0]):
            if not isinstance(value, Sequence) or isinstance(value, str):
                self.fail(path, f"is {shown(value)}; expected a list")
            parts = []
            for place, item in enumerate(value):
                parts.append(self.part(inner[0], item, f"{path}[{place}]"))
            return tuple(parts)
        return self._checked(hint, value, path)

    def part(self, kind: Any, value: Any, path: str) -> Any:
        """Return a part from a name, or from a mapping of a name to options."""
        name: Any = value
        options: Any = {}
        if isinstance(value, Mapping):
            name, options = name_and_options(kind, value)
            if name is None:
                self.fail(path, f"is {shown(value)}; expected one name with its options")
            if options is None:  # `- same_id:` without options
                options = {}
        part = self.named(kind, name, path)
        if not inspect.isclass(part):
            if options:
                self.fail(path, f"{name} takes no options")
            return part
        if not isinstance(options, Mapping):
            self.fail(f"{path}.{name}", f"is {shown(options)}; expected a mapping of options")
        return self.call(part, dict(options), f"{path}.{name}")

    def _checked(self, hint: Any, value: Any, path: str) -> Any:
        """Return the value that pydantic reads by an annotation."""
        takes_bool = bool in (hint, *get_args(hint)) or get_origin(hint) is typing.Literal
        if isinstance(value, bool) and not takes_bool:  # would count as 1 or 0
            self.fail(path, f"is {shown(value)}, but this option is not true or false")
        try:
            return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False)).validate_python(value)
        except ValidationError as error:
            self._fail_value(error.errors(include_url=False)[0], hint, value, path)

    def _fail_value(
        self, error: Mapping[str, Any], hint: Any, value: Any, path: str
    ) -> typing.NoReturn:
        """Refuse a wrong value, with the values that the option takes."""
        inner = "".join(f"[{part}]" for part in error["loc"] if isinstance(part, int))
        words: list[str] = []
        for each in get_args(hint):
            if get_origin(each) is typing.Literal:
                words += get_args(each)
        others = ""
        if isinstance(value, str) and error["type"].startswith(("tuple", "list", "sequence")):
            item = value
            if words and value not in words:
                item = words[0]
            others = f", such as [{item}]"
            if value == "none":
                others += ", or [] for none"
        elif error["type"] != "literal_error" and not inner:
            if path in self.open and value != AUTO and AUTO not in words:
                words.append(AUTO)
            others = "".join(f" or {word}" for word in words)
        self.fail(
            f"{path}{inner}", f"is {shown(error['input'])}; expected {_expected(error)}{others}"
        )


def _expected(error: Mapping[str, Any]) -> str:
    """Return the values that an option takes, from an error of pydantic."""
    kind = error["type"]
    limits = error.get("ctx", {})
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
    """Return the option of a section that a word without a section may mean, as a question.

    >>> _in_a_section("lr"), _in_a_section("temperature"), _in_a_section("metric")
    (' Did you mean train.learning_rate?', ' Did you mean objective.temperature?', ' Did you mean evaluation.metrics?')
    """
    sections = {"objective": Objective, **PLAIN}
    options = {}
    for section in reversed(sections):
        for name in hints_of(sections[section]):
            options[name] = f"{section}.{name}"
    near = nearest(word, list(options))
    if not near:
        return ""
    return f" Did you mean {options[near]}?"


def shown(value: Any) -> str:
    """Return a value as a configuration writes it, shortened for a message."""
    if isinstance(value, bool):
        return str(value).lower()
    return _SHORT.repr(value)


def _is_kind(hint: Any) -> bool:
    return isinstance(hint, typing.Hashable) and hint in PARTS
