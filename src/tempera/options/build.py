"""Build a configuration from options: its parts, and what they ask of one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.corrections import LogQ
from ..core.objective import Objective
from ..io.console import logger
from ..recommend.read.interactions import Handed, Interactions
from ..task.config import Config as Config
from ..text.read.roles import UNTRAINED, Roles
from ..text.read.sources import Given
from ..text.train.made_rows import obstacle
from ..text.train.mined_again import MiningAgain
from ..text.train.two_towers import QuerySide, TwoTowers
from ..text.train.unpaired_texts import Documents
from ..towers.pair import TowerOptions
from . import yaml_options as configuration
from .builder import Builder, shown
from .forms import with_source
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
from .yaml_options import Options


def build(options: Options, data: Any = None) -> Config:
    """Check options and build their objects.

    Args:
        data: the source that is built already, whose section `options` lack.

    Raises:
        ConfigError: an unknown section, option or name, or a wrong value, with its place.
    """
    options = refuse_removed(options)
    builder = Builder(options)
    sections = {**dict.fromkeys(SECTIONS), **PLAIN}
    builder.refuse_unknown("", options.values, [*sections, RECIPE])
    if options.values.get(RECIPE, AUTO) not in (AUTO, "none"):
        builder.fail(RECIPE, f"is {shown(options.values[RECIPE])}; expected auto or none")
    made: dict[str, Any] = {}
    resolved: dict[str, Any] = {}
    for name, plain in sections.items():
        if name == "data" and data is not None:
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
            own, whole = (
                section.get("teacher", {}),
                {"weight": 1.0} if _is_unpaired(made["data"]) else {},
            )
            section["teacher"] = {**whole, **own} if isinstance(own, Mapping) else own
        if plain is not None:
            made[name] = builder.call(plain, section, name)
            resolved[name] = describe(made[name])
            continue
        kind, tag, default = SECTIONS[name]
        if name == "data" and section.get("path") is not None and tag not in section:
            builder.value(str, section["path"], "data.path")
            section = _with_source(section)
        if name == "tower":
            default = _default_tower(section, _is_events(made["data"]))
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
    config = Config(**made, resolved=resolved)
    _refuse_misfits(config, builder)
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
    if config.train.select != 1:
        if _is_events(config.data) or _is_unpaired(config.data):
            what = "interactions" if _is_events(config.data) else "documents without pairs"
            builder.fail("train.select", f"chooses among pairs of texts, and the data are {what}")
        if any(isinstance(each, LogQ) for each in config.base.corrections):
            builder.fail(
                "train.select",
                "changes how often a document comes, which log_q corrects for: give objective.corrections=[]",
            )
    _refuse_idle(config, builder)
    if config.train.made_rows not in ("auto", 0) and (why := obstacle(config)) is not None:
        builder.fail("train.made_rows", f"makes rows of documents, but {why}: give 0")
    if _is_unpaired(config.data):
        teacher = config.base.teacher
        if teacher is None:
            builder.fail(
                "train.teacher",
                "documents have no pairs: give the folder of an embedding model that teaches, or make pairs by data.rule",
            )
        if {teacher.weight, teacher.final} - {1.0, None}:
            builder.fail(
                "objective.teacher",
                "its weight has to be 1 throughout: documents have no pairs to train on",
            )
        if teacher.own:
            builder.fail(
                "objective.teacher",
                "documents have no answers and no negatives: use over: pools",
            )


def _refuse_idle(config: Config, builder: Builder) -> None:
    """Refuse options that would do nothing."""
    train, evaluation = config.train, config.evaluation
    if _is_events(config.data):
        whose, what = "models of texts", "interactions"
        idle = {
            "mining": config.mining != MiningAgain(),
            "train.teacher": train.teacher is not None,
            "train.guide": train.guide is not None,
            "evaluation.also": bool(evaluation.also),
            "evaluation.shared_documents": evaluation.shared_documents != "drop",
            "evaluation.corpus": evaluation.corpus not in ("auto", None),
            "train.batch_sampler": train.batch_sampler != "shuffled",
        }
    else:
        whose, what = "recommenders", "texts"
        idle = {
            "evaluation.cold_items": evaluation.cold_items > 0,
            "evaluation.baselines": evaluation.baselines,
        }
    for path in (path for path, is_idle in idle.items() if is_idle):
        builder.fail(path, f"is for {whose}, and the data are {what}")
    base = config.base
    pools = (*base.pools, *(base.teacher.pools if base.teacher else ()))
    if train.sampled and not any(
        candidate == "sampled" for pool in pools for _, candidate in pool.blocks
    ):
        builder.fail(
            "train.sampled",
            "draws candidates, but no pool of the objective has them: add sampled to objective.pools",
        )


def _is_events(data: Any) -> bool:
    """Return whether the data are interactions, in files or in an object that was handed over."""
    return isinstance(data, Interactions | Handed)


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
    return with_source(
        section["path"], {key: value for key, value in section.items() if key != "path"}
    )


def kind_of_tower(options: Options) -> Any:
    """Return the class of the options of the tower that is trained, by its name or else by the
    data; None if that is no name."""
    tower, data = (_section(options, name) for name in ("tower", "data"))
    interactions = (
        isinstance(data.get("path", ""), str) and _with_source(data).get("source") == "interactions"
    )
    chosen = PARTS[TowerOptions].get(
        tower.get(SECTIONS["tower"][1], _default_tower(tower, interactions))
    )
    if chosen is TwoTowers and isinstance(query := tower.get("query"), Mapping):
        return PARTS[QuerySide].get(name_and_options(QuerySide, query)[0])
    return chosen


def _default_tower(section: Mapping[str, Any], interactions: bool) -> str:
    """Return the kind of a tower that names none."""
    two = any(isinstance(section.get(side), Mapping) for side in ("query", "doc"))
    return "features" if interactions else "two" if two else SECTIONS["tower"][2]


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
    )
    resolved = {**made.resolved, "data": config.resolved["data"]}
    resolved["train"] = {
        **config.resolved["train"],
        **{key: resolved["train"][key] for key in _keys("train", values)},
    }
    return replace(made, resolved=resolved)


def _keys(section: str, values: Mapping[str, Any]) -> list[str]:
    return [path.partition(".")[2] for path in values if path.startswith(f"{section}.")]


def build_roles(options: Options) -> Roles | None:
    """Return roles of a table's columns from a `data:` section that names no source; None without
    options.

    Raises:
        ConfigError: an unknown or wrong option.

    >>> build_roles(Options({"data": {"query": "title"}})).query
    'title'
    """
    if not options.values:
        return None
    builder = Builder(options)
    builder.refuse_unknown("", options.values, ["data"])
    made: Given = builder.call(Given, {**vars(UNTRAINED), **options.values["data"]}, "data")
    return made
