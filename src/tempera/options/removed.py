"""Options of earlier versions: at the old default, a configuration means the same without the
removed option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from .yaml_options import Options

# The dotted name of each option with its old default; lists are passed through, so that
# `data.sources.pairs.generated` is the option of every table of pairs in a mixture.
REMOVED: dict[str, Any] = {
    "train.backward": 1.0,
    "data.generated": False,
    "data.found_within": 10,
    "data.found_by": "bm25",
    "data.sources.pairs.generated": False,
    "data.sources.pairs.found_within": 10,
    "data.sources.pairs.found_by": "bm25",
    "objective.teacher.by": "vectors",
    "objective.teacher.loss": "kl",
    "train.guide_every": 1000,
    "mining.every": None,
    "mining.negatives": 10,
}


def refuse_removed(options: Options) -> Options:
    """Return the options without removed options, all of which have to be at their old defaults.

    Raises:
        ConfigError: a removed option at another value, or options nested too deeply.
    """
    try:
        kept, others = without_removed(options.values)
    except RecursionError:
        raise ConfigError(
            "the options are nested too deeply, or hold themselves by an alias of YAML: write them out"
        ) from None
    for name, value in others.items():
        place = options.place(name)
        where = f" ({place})" if place else ""
        raise ConfigError(f"{name}: is {value!r}, but this option was removed: leave it out{where}")
    return Options(kept, dict(options.places))


def without_removed(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options without removed options, and the removed options with a value other than
    the old default, by dotted name.

    >>> without_removed({"train": {"seed": 1}})
    ({'train': {'seed': 1}}, {})
    """
    others: dict[str, Any] = {}
    kept: dict[str, Any] = _kept(values, "", others)
    return kept, others


def _kept(value: Any, path: str, others: dict[str, Any]) -> Any:
    """Return a copy of a value without removed options, and add removed options not at their old
    default to `others`."""
    if isinstance(value, Mapping):
        kept = {}
        for key, inner in value.items():
            name = f"{path}.{key}" if path else str(key)
            if name not in REMOVED:
                kept[key] = _kept(inner, name, others)
            elif inner != REMOVED[name]:
                others[name] = inner
        return kept
    if isinstance(value, list):
        return [_kept(inner, path, others) for inner in value]
    return value
