"""Contrastive training of retrieval models (bi-encoders, two-towers), with first-class temperature
tuning.

The names below are the public interface; each is loaded when it is first used, so that `import
tempera` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arithmetic.ragged import Ragged as Ragged
    from .artifacts.encoded_corpus import EncodedCorpus as EncodedCorpus
    from .artifacts.encoded_corpus import encode as encode
    from .artifacts.run_folder import Run as Run
    from .core import pools as pools
    from .core.batch import Batch as Batch
    from .core.batch import Side as Side
    from .core.corrections import Hardness as Hardness
    from .core.corrections import LogQ as LogQ
    from .core.corrections import Margin as Margin
    from .core.diagnose import diagnose as diagnose
    from .core.masks import Guided as Guided
    from .core.masks import KnownPositives as KnownPositives
    from .core.masks import SameId as SameId
    from .core.matryoshka import Matryoshka as Matryoshka
    from .core.memory import Memory as Memory
    from .core.objective import Objective as Objective
    from .core.presets import gist as gist
    from .core.presets import gte as gte
    from .core.presets import hardness as hardness
    from .core.presets import infonce as infonce
    from .core.presets import mixed_negatives as mixed_negatives
    from .core.presets import mnr as mnr
    from .core.presets import sampled_softmax as sampled_softmax
    from .core.presets import simcse as simcse
    from .core.presets import symmetric as symmetric
    from .core.similarity import cosine as cosine
    from .core.similarity import dot as dot
    from .core.teacher import Teacher as Teacher
    from .core.temperature import Temperature as Temperature
    from .engine.cache import Cache as Cache
    from .engine.step import step as step
    from .errors import TemperaError as TemperaError
    from .experiments.distill import distill as distill
    from .experiments.result import Sweep as Sweep
    from .experiments.sweep import sweep as sweep
    from .finished.calibrate import calibrate as calibrate
    from .finished.held_out_set import evaluate_held_out as evaluate_held_out
    from .finished.held_out_set import export_held_out as export_held_out
    from .finished.merge import merge as merge
    from .integrations.sentence_transformers import ContrastiveLoss as ContrastiveLoss
    from .integrations.sentence_transformers import ObjectiveState as ObjectiveState
    from .mining.hard_negatives import Mining as Mining
    from .run.recipe import train as train
    from .run.verify import Proof as Proof
    from .run.verify import verify as verify
    from .text.judge.by_mteb import evaluate_mteb as evaluate_mteb
    from .text.judge.evaluate import evaluate as evaluate
    from .text.train.mine import mine as mine
    from .tuning.learn import learn as learn
    from .tuning.learning_curve import LearningCurve as LearningCurve
    from .tuning.trials import Tuning as Tuning
    from .tuning.tune import tune as tune

__version__ = "0.2.0"

# by the module that defines them; `pools` is a module itself, whose names say little alone
_NAMES = {
    "artifacts.encoded_corpus": "EncodedCorpus encode",
    "artifacts.run_folder": "Run",
    "core.batch": "Batch Side",
    "core.corrections": "Hardness LogQ Margin",
    "core.diagnose": "diagnose",
    "core.masks": "Guided KnownPositives SameId",
    "core.matryoshka": "Matryoshka",
    "core.memory": "Memory",
    "core.objective": "Objective",
    "core.presets": "gist gte hardness infonce mixed_negatives mnr pools sampled_softmax simcse symmetric",
    "arithmetic.ragged": "Ragged",
    "core.similarity": "cosine dot",
    "core.teacher": "Teacher",
    "core.temperature": "Temperature",
    "engine.cache": "Cache",
    "engine.step": "step",
    "errors": "TemperaError",
    "experiments.distill": "distill",
    "tuning.learn": "learn",
    "tuning.learning_curve": "LearningCurve",
    "run.recipe": "train",
    "experiments.result": "Sweep",
    "experiments.sweep": "sweep",
    "tuning.trials": "Tuning",
    "tuning.tune": "tune",
    "integrations.sentence_transformers": "ContrastiveLoss ObjectiveState",
    "mining.hard_negatives": "Mining",
    "finished.calibrate": "calibrate",
    "finished.held_out_set": "evaluate_held_out export_held_out",
    "finished.merge": "merge",
    "run.verify": "Proof verify",
    "text.judge.by_mteb": "evaluate_mteb",
    "text.judge.evaluate": "evaluate",
    "text.train.mine": "mine",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = ["__version__", *_HOME]


if not TYPE_CHECKING:  # so that a type checker refuses a name that is not among those above

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'tempera' has no attribute {name!r}")
        # A function may have its module's name, so the module is imported before it is asked for its
        # content.
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
