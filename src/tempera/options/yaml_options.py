"""The configuration of a run: YAML, dotted overrides, and the place of each option.

YAML is read by the core schema of version 1.2, in which only `true` and `false` are switches: `no`,
`on`, `off` and `yes` are words, `1:10` is a text and not 70, and `1e-3` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError
from ..io.manifest import refuse_damaged

COMMAND_LINE = "command line"
_MOST = 100_000  # largest number of values of a file, with aliases expanded
Place = Callable[[int], str]  # name of a line, counted from 0
# Patterns of the plain scalars of YAML 1.2, each with its possible first characters; 1_000 is a
# number here too.
_SCALARS = {
    "null": (r"null|Null|NULL|~|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)", list("-+0123456789")),
    "float": (
        r"[-+]?((0|[1-9][0-9_]*)?\.[0-9]+|(0|[1-9][0-9_]*)\.?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}


class _Loader(yaml.SafeLoader):
    """Reads plain scalars as YAML 1.2 does."""


# Few builds of PyYAML come without libyaml.
_Writer: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_Writer):  # type: ignore[misc]
    """Writes YAML with the same meaning in versions 1.1 and 1.2: texts that a version would read as
    another type are quoted.

    libyaml needs a quarter of the time of PyYAML's own writer, and quotes odd spaces rightly. It is
    not taken to read: of a file of a million brackets it overflows the stack.
    """


_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _SCALARS.items():
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(
            f"tag:yaml.org,2002:{_name}", re.compile(f"(?:{_pattern})\\Z"), _first
        )


@dataclass
class Options:
    """Nested options, and the place where each dotted key was written."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def place(self, path: str) -> str:
        """Return the place of an option, else of the nearest option around, else of an option
        below, else an empty text."""
        around = path
        while around:
            if around in self.places:
                return self.places[around]
            around = around[: max(around.rfind("."), around.rfind("["), 0)]
        return next((place for key, place in self.places.items() if key.startswith(f"{path}.")), "")


def load(path: Path | None, overrides: str | Iterable[str] = ()) -> Options:
    """Read a YAML file or start without options, and apply `dotted.key=value` overrides; values are
    YAML.

    A folder, or a file with another extension, is no configuration but `data.path`, the data to
    train on.

    Raises:
        ConfigError: a missing file, not YAML, a repeated key, an override without `=`, a second
            path of data by an override.

    >>> load(None, ["objective.temperature=0.1"]).values
    {'objective': {'temperature': 0.1}}
    """
    options = Options() if path is None else _read(path)
    overrides = [overrides] if isinstance(overrides, str) else list(overrides)
    twice = next((each for each in overrides if each.startswith("data.path=")), None)
    if twice is not None and options.places.get("data.path") == COMMAND_LINE:
        raise ConfigError(
            f"the data are given twice, as {path} and by {twice}: give one of them (options are SECTION.OPTION=VALUE)"
        )
    return _overridden(options, overrides)


def of(
    source: Options | Mapping[str, Any] | str | Path | None, overrides: str | Iterable[str] = ()
) -> Options:
    """Return options from options, a mapping (which is not changed), a YAML file or None, with
    overrides."""
    if isinstance(source, Options):
        return _overridden(Options(dict(source.values), dict(source.places)), overrides)
    if isinstance(source, Mapping):
        return _overridden(Options(dict(source)), overrides)
    return load(None if source is None else Path(source), overrides)


def dump(values: Mapping[str, Any]) -> str:
    """Return options as YAML, in the order of declaration."""
    text: str = yaml.dump(
        dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
    )
    return text


def parse(text: str) -> Any:
    """Read a value, written as in a file or after the `=` of an override.

    Raises:
        ConfigError: not YAML.

    >>> parse("[no, 1:10, 1e-3, true]")
    ['no', '1:10', 0.001, True]
    """
    return _parse(text, text, "", lambda line: f"line {line + 1}")[0]


def inline(value: Any) -> str:
    """Write a value in the form after the `=` of an override.

    >>> inline({"mixed_precision": "no", "widths": [32, 64]})
    "{mixed_precision: 'no', widths: [32, 64]}"
    """
    text: str = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=True,
        width=1 << 20,
    )
    return text.removesuffix("...\n").strip()


def is_yaml(path: Path) -> bool:
    """Return True if a path has an extension of YAML, and is no folder."""
    return path.suffix in ("", ".yaml", ".yml") and not path.is_dir()


def _read(path: Path) -> Options:
    try:
        if not is_yaml(path):
            return Options({"data": {"path": str(path)}}, {"data.path": COMMAND_LINE})
        refuse_damaged(path)
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None

    def place(line: int) -> str:
        return f"{path}:{line + 1}"

    values, places = _parse(text, str(path), "", place)
    if values is None:
        return Options()
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds {type(values).__name__}; expected a mapping of sections, such as data: and train:"
        )
    return Options(values, places)


def _parse(text: str, what: str, prefix: str, place: Place) -> tuple[Any, dict[str, str]]:
    """Return the values of YAML, and the place of each key below `prefix`."""
    places: dict[str, str] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if _size(node, {}) > _MOST:
            raise ConfigError(
                f"{what} expands to more than {_MOST:,} values by its aliases: write them out"
            )
        _locate(node, prefix, place, places, set())  # first, because constructing moves merged keys
        return None if node is None else loader.construct_document(node), places
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        where = f" ({place(error.problem_mark.line)})" if error.problem_mark else ""
        quotes = (
            ': * begins an alias, so write "*" within quotes'
            if error.context == "while scanning an alias"
            else ""
        )
        raise ConfigError(f"{what} is not YAML: {error.problem}{where}{quotes}") from None
    except (
        Exception
    ) as error:  # PyYAML's constructors let ValueError, KeyError, RecursionError and others through
        raise ConfigError(f"{what} is not YAML: {' '.join(str(error).split())}") from None


def _size(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Return the number of values of a node with expanded aliases; a node within itself counts
    once."""
    if id(node) not in known:
        known[id(node)] = 1
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        inner = [each for part in parts for each in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_size(each, known) for each in inner)
    return known[id(node)]


def _locate(
    node: yaml.Node | None, prefix: str, place: Place, places: dict[str, str], seen: set[int]
) -> None:
    """Record the place of every key below a node, once: aliases may repeat a node, even within
    itself."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path, here = (
                f"{prefix}.{key.value}" if prefix else str(key.value),
                place(key.start_mark.line),
            )
            if path in places:
                raise ConfigError(f"{path}: written twice, at {places[path]} and {here}")
            places[path] = here
            _locate(value, path, place, places, seen)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            places[f"{prefix}[{i}]"] = place(value.start_mark.line)
            _locate(value, f"{prefix}[{i}]", place, places, seen)


def _overridden(options: Options, overrides: str | Iterable[str]) -> Options:
    """Apply each override in turn, and replace the key with everything below."""
    for override in [overrides] if isinstance(overrides, str) else overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ConfigError(
                f"{override!r}: expected an override dotted.key=value, such as objective.temperature=0.1"
            )
        if "[" in key:
            raise ConfigError(
                f"{key}: an item of a list cannot be set; set {key[: key.index('[')]} as a whole"
            )
        text = (
            f'"{text}"' if text and not text.strip(" |") else text
        )  # the sign between the values of a list
        value, below = _parse(text, override, key, lambda _: COMMAND_LINE)
        _set(options.values, key, value)
        for path in [path for path in options.places if path.startswith((f"{key}.", f"{key}["))]:
            del options.places[path]
        options.places |= {key: COMMAND_LINE, **below}
    return options


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    here = values
    for i, parent in enumerate(parents):
        below = here.get(parent)
        if below is not None and not isinstance(below, Mapping):
            path = ".".join(parents[: i + 1])
            raise ConfigError(
                f"{key}: {path} is {below!r} and holds no options; set {path} as a whole"
            )
        here[parent] = dict(
            below or {}
        )  # a copy, because an alias or the caller may hold the same mapping
        here = here[parent]
    here[last] = value
