"""A configuration built from options, part by part, with checks of the parts together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.corrections import LogQ
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
    describe,
    name_and_options,
    options_of,
    options_of_wrapper,
)
from .removed import refuse_removed, without_removed
from .worlds import load_all, world, world_of
from .yaml_options import Options


def build(options: Options, data: Any = None, of_data: World | None = None) -> Config:
    """Check options and build their objects.

    Args:
        data: a source that is built already, in place of a section `data` in `options`.
        of_data: the world of that source.

    Raises:
        ConfigError: an unknown section, option or name, or a wrong value, with its place.
    """
    options = refuse_removed(options)
    builder = Builder(options)
    builder.refuse_unknown("", options.values, [*SECTIONS, *PLAIN, RECIPE])
    recipe = options.values.get(RECIPE, AUTO)
    if recipe not in (AUTO, "none"):
        builder.fail(RECIPE, f"is {shown(recipe)}; expected auto or none")
    made: dict[str, Any] = {}
    resolved: dict[str, Any] = {}
    if of_data is None:
        section = _data_section(options, builder)
        of_data = world_of(section)
        _build_named(builder, "data", section, made, resolved)
    else:
        made["data"] = data

    section = _checked_section(options, "tower", builder)
    _, tag, _ = SECTIONS["tower"]
    section.setdefault(tag, of_data.default_tower(section))
    _build_named(builder, "tower", section, made, resolved)

    section = _checked_section(options, "objective", builder)
    teacher = section.get("teacher", {})
    if _section(options, "train").get("teacher") is not None and isinstance(teacher, Mapping):
        section["teacher"] = {**of_data.teacher_defaults(made["data"]), **teacher}
    widths = section.pop("matryoshka", None)
    precisions = section.pop("precisions", None)
    _build_named(builder, "objective", section, made, resolved)
    if widths is not None or precisions:
        made["objective"] = builder.wrapped(made["objective"], widths, precisions)
        resolved["objective"].update(options_of_wrapper(made["objective"]))

    for name, plain in PLAIN.items():
        section = _checked_section(options, name, builder)
        if name == "train":
            if section.get("learning_rate", AUTO) == AUTO:
                section["learning_rate"] = made["tower"].learning_rate
            section.setdefault("mixed_precision", getattr(made["tower"], "mixed_precision", "no"))
        made[name] = builder.call(plain, section, name)
        resolved[name] = describe(made[name])

    config = Config(
        data=made["data"],
        tower=made["tower"],
        objective=made["objective"],
        train=made["train"],
        evaluation=made["evaluation"],
        mining=made["mining"],
        card=made["card"],
        resolved=resolved,
        world=of_data,
    )
    _refuse_misfits(config, builder)
    of_data.refuse_misfits(config, builder.fail)
    return config


def _checked_section(options: Options, name: str, builder: Builder) -> dict[str, Any]:
    """Return a copy of a section, empty if missing; refuse any value but a mapping."""
    section = options.values.get(name)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        builder.fail(name, f"is {shown(section)}; expected a mapping of options")
    return dict(section)


def _data_section(options: Options, builder: Builder) -> dict[str, Any]:
    """Return a copy of the section `data`, with the source by its path."""
    section = _checked_section(options, "data", builder)
    if section.get("path") is None or "source" in section:
        return section
    builder.value(str, section["path"], "data.path")
    return _with_source(section)


def _build_named(
    builder: Builder,
    name: str,
    section: dict[str, Any],
    made: dict[str, Any],
    resolved: dict[str, Any],
) -> None:
    """Build the part of a section, and add the part and its options under the section's name."""
    kind, tag, default = SECTIONS[name]
    chosen = section.pop(tag, default)
    part = builder.named(kind, chosen, f"{name}.{tag}")
    if builder.options.values.get(RECIPE, AUTO) == AUTO:
        builder.open.update(getattr(part, "open", {}))
    made[name] = builder.call(part, section, name, besides=[tag])
    resolved[name] = {tag: chosen, **options_of(made[name])}


def options_of_run(run: Path, overrides: Sequence[str] = ()) -> Options:
    """Return the options in the record of a run folder, without removed options.

    A removed option with an effect is named in one line.

    Raises:
        ConfigError: the file is missing or damaged.
    """
    path = run / "config.yaml"
    options = configuration.load(path, overrides)
    kept, removed = without_removed(options.values)
    for name, value in removed.items():
        logger.warning(
            f"{path}: {name} was {value!r}, an option that this version no longer has; "
            "the run is read without it, and its training cannot be repeated"
        )
    return Options(kept, options.places)


def config_of_run(run: Path, overrides: Sequence[str] = ()) -> Config:
    """Return the configuration in the record of a run folder, see `options_of_run`."""
    return build(options_of_run(run, overrides))


def _refuse_misfits(config: Config, builder: Builder) -> None:
    """Refuse options that are right alone and wrong together."""
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
    """Return a section of a configuration; an empty section in place of any value but a mapping."""
    section = options.values.get(name)
    return section if isinstance(section, Mapping) else {}


def _with_source(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section `data` with the source by its path."""
    rest = dict(section)
    if "source" in section or section.get("path") is None:
        return rest
    path = rest.pop("path")
    return with_source(path, rest)


def kind_of_tower(options: Options) -> Any:
    """Return the class of the options of the tower to train, by name or else by the data; None for
    an unknown name."""
    tower = _section(options, "tower")
    data = _section(options, "data")
    if isinstance(data.get("path", ""), str):
        data = _with_source(data)
    of_data = world_of(data)
    _, tag, _ = SECTIONS["tower"]
    name = tower.get(tag, of_data.default_tower(tower))
    if not isinstance(name, str):
        return None
    if name not in PARTS[TowerOptions]:
        load_all()
    query = tower.get("query")
    if name == "two" and isinstance(query, Mapping):
        from ..text.train.two_towers import QuerySide

        query_name, _ = name_and_options(QuerySide, query)
        return PARTS[QuerySide].get(query_name)
    return PARTS[TowerOptions].get(name)


def with_options(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a configuration with a new objective and new values of some options, by dotted
    name."""
    sections = {}
    for name, section in config.resolved.items():
        if name != "data":
            sections[name] = dict(section)
    sections["train"] = describe(config.train)  # with the steps that a limit of time allows
    for path, value in values.items():
        name, _, key = path.partition(".")
        sections[name][key] = value
    made = build(Options(sections), config.data, config.world)
    train = dict(config.resolved["train"])
    for path in values:
        name, _, key = path.partition(".")
        if name == "train":
            train[key] = made.resolved["train"][key]
    resolved = {**made.resolved, "data": config.resolved["data"], "train": train}
    return replace(made, resolved=resolved)


def build_roles(options: Options) -> Any:
    """Return the roles of a table's columns from a `data:` section without a source; None without
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
