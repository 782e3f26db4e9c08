"""The parts of a configuration for texts, and the checks of options on texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..engine.clock import Phases
from ..mining.embedder import run_of
from ..mining.search import index_of
from ..mining.shortfall import Report
from ..parallel.distributed import Group
from ..task.config import Config
from ..task.world import TEXTS, DataOptions, Fail, World, refuse_idle
from ..towers.pair import TowerOptions
from ..towers.pretrained import Pretrained
from ..towers.saved import EVALUATED
from ..towers.static import Static
from ..towers.transformer import Transformer
from .judge.held_out import HeldOutQueries
from .judge.other_data import among, read_tasks
from .read.installed_python import InstalledPython
from .read.pairs import Source
from .read.sources import BeirFolder, Given, PairsFile
from .read.text_files import TextFiles
from .retrieval import TextTask
from .shards.split_of_shards import is_in_shards
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
    config: Config, reading: Config, cache: Path, vectors: Path, phases: Phases, group: Group
) -> TextTask:
    """Return the task of a run on texts.

    Args:
        config: of the run.
        reading: the configuration with the device and precision for reading texts.
        cache: folder of the run for texts and tokens.
        vectors: folder for the vectors of guides.
        phases: seconds of the run.
        group: the processes.
    """
    return TextTask.read(reading, cache, vectors, phases, group)


def hand(options: Any, data: Any) -> Any:
    """Return options with the described rows of Python."""
    return options.hand(data) if isinstance(options, Given) else options


def teacher_defaults(options: Any) -> dict[str, Any]:
    """Return the options of a teacher beside texts: the only loss, where texts have no pairs."""
    return {"weight": 1.0} if _is_unpaired(options) else {}


def refuse_misfits(config: Config, fail: Fail) -> None:
    """Refuse options that texts do not fit, and options of recommenders."""
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
    if is_in_shards(config.data):
        _refuse_whole_data(config, fail)


def _refuse_whole_data(config: Config, fail: Fail) -> None:
    """Refuse options that need all pairs in memory, for pairs that are trained from shards."""
    train = config.train
    why = "and pairs in shards (data.in_shards) are read a window of rows at a time"
    if train.guide is not None:
        fail("train.guide", f"needs its vectors of all texts, {why}: remove it")
    if train.teacher is not None:
        fail("train.teacher", f"needs its vectors of all texts, {why}: remove it")
    if train.batch_sampler != "shuffled":
        fail("train.batch_sampler", f"{train.batch_sampler} plans with all rows, {why}: remove it")
    if train.max_pairs is not None:
        fail("train.max_pairs", f"draws among all pairs, {why}: give fewer shards")
    if train.refit in ("validation", "all"):
        fail(
            "train.refit", f"{train.refit} adds held-out pairs to those in memory, {why}: give none"
        )
    if config.mining.cross_encoder is not None:
        fail("mining.cross_encoder", f"judges the negatives of all pairs, {why}: remove it")
    if isinstance(config.tower, TwoTowers):
        fail("tower", f"keeps vectors of all documents, {why}: train a tower for both sides")
    if config.data.keep:
        fail(
            "data.keep",
            f"keeps columns of all documents, {why}: remove it, and name them in tempera encode --columns",
        )


def _refuse_without_teacher(config: Config, fail: Fail) -> None:
    """Refuse documents without pairs and without a teacher, or with a way of training other than by
    a teacher."""
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
    """Return True if the data are texts without pairs and without a rule for making pairs."""
    return isinstance(options, Documents) and options.rule is None


def preview(task: TextTask) -> dict[str, Any]:
    """Return three training rows, lengths, repeats, and negatives of a query."""
    return task.showcase.preview()


def origin(task: TextTask) -> Iterable[Tensor]:
    """Return the ids of all queries and documents of a task."""
    return task.data.origin()


def trained_on(task: TextTask) -> dict[str, NDArray[np.int64]]:
    """Return the ids of the forms of all texts of the training rows, in whatever role."""
    return task.showcase.trained_on()


def reopened(task: TextTask, folder: Path) -> float:
    """Save the tower and open it as a user would; return the largest difference in any number of a
    vector."""
    return task.showcase.reopened(folder)


def cautions(task: TextTask, config: Config) -> Iterator[str]:
    """Yield cautions on test queries learned by the run, or by a model at its beginning."""
    yield from learned_before(config, task.held_out)
    if config.evaluation.also:  # without which no content is computed
        yield from learned_also(config.evaluation.also, trained_on(task))


def learned_before(config: Config, held_out: HeldOutQueries) -> Iterator[str]:
    """Yield a caution for each earlier run with queries of the test among its training texts: a run
    whose model is the beginning or the teacher of training."""
    counts = dict[Path, int]()
    for run in (run_of(Path(each)) for each in config.begins_with):
        count = held_out.learned_by(run)
        if count is not None:
            counts[run] = count
    side = getattr(config.tower, "doc", None)
    index = run_of(Path(side.path)) if isinstance(side, KeptIndex) else None
    for run, count in counts.items():
        if count:
            before, again = run / EVALUATED, "train it with train.refit=none"
            # RUN/evaluated has no documents to search.
            other = (
                f"{again}, and take its index"
                if run == index
                else f"take {before}, which was not, or {again}"
            )
            yield (
                f"{run}, which this model begins with or learns from, was trained on {count:,} of the test queries, so that the "
                "figures are too good: "
                + (
                    other
                    if held_out.learned_by(before) == 0
                    else "give queries that it has not seen"
                )
            )


def learned_also(paths: Sequence[str], trained: Mapping[str, NDArray[np.int64]]) -> Iterator[str]:
    """Yield a caution for each set of `evaluation.also` with queries among the training texts."""
    known = np.concatenate([np.empty(0, np.int64), *trained.values()])
    for path, (count, queries) in among(read_tasks(paths), known).items():
        yield (
            f"the run trains on {count:,} of the {queries:,} queries of {path} (evaluation.also), so that the figures there are "
            "too good: give queries that it does not train on"
        )


def mines(task: TextTask, config: Config) -> bool:
    """Return True if the tower mines negatives before a second training.

    Raises:
        ConfigError: `mining.faiss` is no index that FAISS knows.
    """
    mining = config.mining
    wanted = mining.again > 0 and config.base.uses_negatives and config.train.teacher is None
    if not wanted or task.data.rows.negatives is not None or task.data.window:
        return False
    if mining.faiss is not None:  # a wrong one is refused before the training
        index_of(mining.faiss, task.data.vectors(np.zeros(1, np.int64)).shape[1])
    return True


def mine(task: TextTask, group: Group) -> Report:
    """Give every training pair negatives mined by the present tower."""
    return task.data.mine(group)


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
    preview=preview,
    origin=origin,
    trained_on=trained_on,
    reopened=reopened,
    cautions=cautions,
    mines=mines,
    mine=mine,
)
