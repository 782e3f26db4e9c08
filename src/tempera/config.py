"""The configuration of a run: YAML, dotted overrides, and where each option was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .errors import ConfigError

COMMAND_LINE = "command line"


@dataclass
class Options:
    """Options as they were given, nested, and where each dotted key was written."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def place(self, path: str) -> str:
        """Where an option, or the nearest one around it, was written; empty if nowhere."""
        while path:
            if path in self.places:
                return self.places[path]
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return ""


def load(path: Path | None, overrides: Sequence[str] = ()) -> Options:
    """Read a YAML file, if given, and apply `dotted.key=value` overrides; values are YAML.

    Raises:
        ConfigError: no such file, not YAML, a key given twice, an override without `=`.

    >>> load(None, ["objective.temperature=0.1"]).values
    {'objective': {'temperature': 0.1}}
    """
    options = Options() if path is None else _read(path)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"{override!r}: an override is dotted.key=value, such as objective.temperature=0.1")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"{override!r}: {text!r} is not a YAML value") from None
        _set(options, key, value)
    return options


def of(mapping: Mapping[str, Any]) -> Options:
    """Options given as a mapping from Python."""
    return Options(dict(mapping))


def dump(values: Mapping[str, Any]) -> str:
    """Options as YAML, in the order in which they are declared."""
    text: str = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=100)
    return text


def _read(path: Path) -> Options:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no such configuration file: {path}") from None
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if node is None:
        return Options()
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds {type(values).__name__}, and a mapping of sections is expected")
    options = Options(values)
    _locate(node, "", path, options.places)
    return options


def _locate(node: yaml.Node, prefix: str, file: Path, places: dict[str, str]) -> None:
    """Remember the line of every key below a node."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = f"{prefix}.{key.value}" if prefix else str(key.value)
            if path in places:
                raise ConfigError(f"{path}: given twice, at {places[path]} and {file}:{key.start_mark.line + 1}")
            places[path] = f"{file}:{key.start_mark.line + 1}"
            _locate(value, path, file, places)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            places[f"{prefix}[{i}]"] = f"{file}:{value.start_mark.line + 1}"
            _locate(value, f"{prefix}[{i}]", file, places)


def _set(options: Options, key: str, value: Any) -> None:
    *parents, last = key.split(".")
    here = options.values
    for i, parent in enumerate(parents):
        below = here.setdefault(parent, {})
        if not isinstance(below, dict):
            path = ".".join(parents[: i + 1])
            raise ConfigError(f"{key}: {path} is {below!r} and holds no options; set {path} as a whole")
        here = below
    here[last] = value
    options.places[key] = COMMAND_LINE
