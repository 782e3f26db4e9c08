"""Build a configuration from options: its parts, and what they ask of one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.corrections import LogQ
from ..core.objective import Objective
from ..forms.data_form import with_source
from ..io.console import logger
from ..task.config import Config as Config
from ..task.world import TEXTS, World
from ..towers.pair import TowerOptions
from . import yaml_options as configuration
from .builder import Builder, shown
from .names import (
    AUTO,
    PARTS,
    PLAIN,
    RECIPE,
    SECTIONS,
    WRAPPER,
    describe,
    name_and_options,
    of_wrapper,
    options_of,
)
from .removed import refuse_removed, without_removed
from .worlds import load_all, world, world_of
from .yaml_options import Options


def build(options: Options, data: Any = None, of_data: World | None = None) -> Config:
    """Check options and build their objects.

    Args:
        data: the source that is built already, whose section `options` lack.
        of_data: the world of that source.

    Raises:
        ConfigError: an unknown section, option or name, or a wrong value, with its place.
    """
    options = refuse_removed(options)
    builder = Builder(options)
    sections = {**dict.fromkeys(SECTIONS), **PLAIN}
    builder.refuse_unknown("", options.values, [*sections, RECIPE])
    if options.values.get(RECIPE, AUTO) not in (AUTO, "none"):
        builder.fail(RECIPE, f"is {shown(options.values[RECIPE])}; expected auto or none")
    data_section = dict(_section(options, "data"))
    is_built = of_data is not None
    if of_data is None:
        if data_section.get("path") is not None and "source" not in data_section:
            builder.value(str, data_section["path"], "data.path")
            data_section = _with_source(data_section)
        of_data = world_of(data_section)
    made: dict[str, Any] = {}
    resolved: dict[str, Any] = {}
    for name, plain in sections.items():
        if name == "data" and is_built:
            made[name] = data
            continue
        section = options.values.get(name)
        if section is not None and not isinstance(section, Mapping):
            builder.fail(name, f"is {shown(section)}; expected a mapping of options")
        section = dict(section or {})
        if name == "train" and section.get("learning_rate", AUTO) == AUTO:
            section["learning_rate"] = made["tower"].learning_rate
        if name == "train":
            section.setdefault("mixed_precision", getattr(made["tower"], "mixed_precision", "no"))
        if name == "objective" and _section(options, "train").get("teacher") is not None:
            teacher = section.get("teacher", {})
            if isinstance(teacher, Mapping):
                section["teacher"] = {**of_data.teacher_defaults(made["data"]), **teacher}
        if plain is not None:
            made[name] = builder.call(plain, section, name)
            resolved[name] = describe(made[name])
            continue
        kind, tag, default = SECTIONS[name]
        if name == "data":
            section = data_section
        if name == "tower":
            default = of_data.default_tower(section)
        chosen = section.pop(tag, default)
        wrapper = {key: section.pop(key, None) for key in WRAPPER} if kind is Objective else {}
        part = builder.named(kind, chosen, f"{name}.{tag}")
        if options.values.get(RECIPE, AUTO) == AUTO:
            builder.open |= {*getattr(part, "open", {})}
        made[name] = builder.call(part, section, name, besides=[tag])
        resolved[name] = {tag: chosen, **options_of(made[name])}
        if wrapper and (wrapper["matryoshka"] is not None or wrapper["precisions"]):
            made[name] = builder.wrapped(made[name], wrapper)
            resolved[name] |= of_wrapper(made[name])
    config = Config(**made, resolved=resolved, world=of_data)
    _refuse_misfits(config, builder)
    of_data.refuse_misfits(config, builder.fail)
    return config


def options_of_run(run: Path, overrides: Sequence[str] = ()) -> Options:
    """Return the options that a run folder records, without those that this version does not have.

    An option that had an effect is named in one line.

    Raises:
        ConfigError: the file is missing or damaged.
    """
    path = run / "config.yaml"
    options = configuration.load(path, overrides)
    kept, others = without_removed(options.values)
    for name, value in others.items():
        logger.warning(
            f"{path}: {name} was {value!r}, an option that this version no longer has; "
            "the run is read without it, and its training cannot be repeated"
        )
    return Options(kept, options.places)


def config_of_run(run: Path, overrides: Sequence[str] = ()) -> Config:
    """Return the configuration that a run folder records, as `options_of_run` reads it."""
    return build(options_of_run(run, overrides))


def _refuse_misfits(config: Config, builder: Builder) -> None:
    """Refuse options that are right by themselves and wrong together."""
    if (config.base.teacher is None) != (config.train.teacher is None):
        builder.fail(
            "objective.teacher",
            "needs what teaches: give the folder of a model as train.teacher",
        )
    if config.train.select != 1 and any(isinstance(each, LogQ) for each in config.base.corrections):
        builder.fail(
            "train.select",
            "changes how often a document comes, which log_q corrects for: give objective.corrections=[]",
        )
    pools = list(config.base.pools)
    if config.base.teacher is not None:
        pools += config.base.teacher.pools
    candidates = {candidate for pool in pools for _, candidate in pool.blocks}
    if config.train.sampled and "sampled" not in candidates:
        builder.fail(
            "train.sampled",
            "draws candidates, but no pool of the objective has them: add sampled to objective.pools",
        )


def _section(options: Options, name: str) -> Mapping[str, Any]:
    """Return a section of a configuration; what is none will be refused."""
    section = options.values.get(name)
    return section if isinstance(section, Mapping) else {}


def _with_source(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `data:` section that names its source, which the path determines."""
    if "source" in section or section.get("path") is None:
        return dict(section)
    return with_source(
        section["path"], {key: value for key, value in section.items() if key != "path"}
    )


def kind_of_tower(options: Options) -> Any:
    """Return the class of the options of the tower that is trained, by its name or else by the
    data; None if that is no name."""
    tower, data = (_section(options, name) for name in ("tower", "data"))
    if isinstance(data.get("path", ""), str):
        data = _with_source(data)
    of_data = world_of(data)
    name = tower.get(SECTIONS["tower"][1], of_data.default_tower(tower))
    if not isinstance(name, str):
        return None
    if name not in PARTS[TowerOptions]:
        load_all()
    query = tower.get("query")
    if name == "two" and isinstance(query, Mapping):
        from ..text.train.two_towers import QuerySide

        return PARTS[QuerySide].get(name_and_options(QuerySide, query)[0])
    return PARTS[TowerOptions].get(name)


def with_options(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a configuration with other values of some options, by their dotted names; its
    objective is a new one."""
    sections = {name: dict(section) for name, section in config.resolved.items()}
    sections["train"] = describe(config.train)  # with what a limit of time has become
    for path, value in values.items():
        name, _, key = path.partition(".")
        sections[name][key] = value
    made = build(
        Options({name: section for name, section in sections.items() if name != "data"}),
        config.data,
        config.world,
    )
    resolved = {**made.resolved, "data": config.resolved["data"]}
    resolved["train"] = {
        **config.resolved["train"],
        **{key: resolved["train"][key] for key in _keys("train", values)},
    }
    return replace(made, resolved=resolved)


def _keys(section: str, values: Mapping[str, Any]) -> list[str]:
    return [path.partition(".")[2] for path in values if path.startswith(f"{section}.")]


def build_roles(options: Options) -> Any:
    """Return roles of a table's columns from a `data:` section that names no source; None without
    options.

    Raises:
        ConfigError: an unknown or wrong option.

    >>> build_roles(Options({"data": {"query": "title"}})).query
    'title'
    """
    from ..forms.roles import UNTRAINED
    from ..text.read.sources import Given

    if not options.values:
        return None
    world(TEXTS)
    builder = Builder(options)
    builder.refuse_unknown("", options.values, ["data"])
    made: Given = builder.call(Given, {**vars(UNTRAINED), **options.values["data"]}, "data")
    return made
