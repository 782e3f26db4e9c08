"""The parts that texts add to a configuration, and the checks of options on texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..engine.clock import Phases
from ..task.config import Config
from ..task.world import TEXTS, DataOptions, Fail, World, refuse_idle
from ..towers.pair import TowerOptions
from ..towers.pretrained import Pretrained
from ..towers.static import Static
from ..towers.transformer import Transformer
from .read.installed_python import InstalledPython
from .read.pairs import Source
from .read.sources import BeirFolder, Given, PairsFile
from .read.text_files import TextFiles
from .retrieval import TextTask
from .train.made_rows import obstacle
from .train.mixture import Mixture
from .train.two_towers import DocSide, FrozenModel, Head, KeptIndex, QuerySide, TwoTowers
from .train.unpaired_texts import Documents

SOURCES = {
    "installed_python": InstalledPython,
    "pairs": PairsFile,
    "beir": BeirFolder,
    "given": Given,
    "text_files": TextFiles,
    "documents": Documents,
    "mixture": Mixture,
}


def default_tower(section: Mapping[str, Any]) -> str:
    """Return "two" for a section `tower` with a side of its own, else "static"."""
    has_sides = any(isinstance(section.get(side), Mapping) for side in ("query", "doc"))
    return "two" if has_sides else "static"


def read_task(
    config: Config, reading: Config, cache: Path, vectors: Path, phases: Phases
) -> TextTask:
    """Return the task of a run on texts.

    Args:
        config: of the run.
        reading: the same with the device and precision in which texts are read.
        cache: folder of the run for texts and tokens.
        vectors: folder for the vectors of guides.
        phases: seconds of the run.
    """
    return TextTask.read(reading, cache, vectors, phases)


def hand(options: Any, data: Any) -> Any:
    """Return options with the rows of Python that they describe."""
    return options.hand(data) if isinstance(options, Given) else options


def teacher_defaults(options: Any) -> dict[str, Any]:
    """Return the options of a teacher beside texts: the only loss, where texts have no pairs."""
    return {"weight": 1.0} if _is_unpaired(options) else {}


def refuse_misfits(config: Config, fail: Fail) -> None:
    """Refuse options that texts do not fit, and those of recommenders."""
    is_unpaired = _is_unpaired(config.data)
    if config.train.select != 1 and is_unpaired:
        fail(
            "train.select", "chooses among pairs of texts, and the data are documents without pairs"
        )
    idle = {
        "evaluation.cold_items": config.evaluation.cold_items > 0,
        "evaluation.baselines": config.evaluation.baselines,
    }
    refuse_idle(idle, "recommenders", "texts", fail)
    reason = obstacle(config)
    if config.train.made_rows not in ("auto", 0) and reason is not None:
        fail("train.made_rows", f"makes rows of documents, but {reason}: give 0")
    if is_unpaired:
        _refuse_without_teacher(config, fail)


def _refuse_without_teacher(config: Config, fail: Fail) -> None:
    """Refuse documents without pairs that nothing teaches, or that something else than the teacher
    should."""
    teacher = config.base.teacher
    if teacher is None:
        fail(
            "train.teacher",
            "documents have no pairs: give the folder of an embedding model that teaches, or make pairs by data.rule",
        )
    if {teacher.weight, teacher.final} - {1.0, None}:
        fail(
            "objective.teacher",
            "its weight has to be 1 throughout: documents have no pairs to train on",
        )
    if teacher.own:
        fail("objective.teacher", "documents have no answers and no negatives: use over: pools")


def _is_unpaired(options: Any) -> bool:
    """Return True if the data are texts without pairs, of which no rule makes any."""
    return isinstance(options, Documents) and options.rule is None


WORLD = World(
    name=TEXTS,
    parts={
        DataOptions: SOURCES,
        Source: SOURCES,
        TowerOptions: {"two": TwoTowers},
        QuerySide: {
            "head": Head,
            "static": Static,
            "pretrained": Pretrained,
            "transformer": Transformer,
        },
        DocSide: {"index": KeptIndex, "pretrained": FrozenModel},
    },
    default_tower=default_tower,
    read_task=read_task,
    hand=hand,
    teacher_defaults=teacher_defaults,
    refuse_misfits=refuse_misfits,
)
