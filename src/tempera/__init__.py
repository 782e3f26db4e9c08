"""Contrastive training of retrieval models (bi-encoders, two-towers), with first-class temperature tuning.

The names below are the public interface; each is loaded when it is first used, so that `import tempera` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from .core.ragged import Ragged as Ragged
    from .core.similarity import cosine as cosine
    from .core.similarity import dot as dot
    from .core.temperature import Temperature as Temperature
    from .errors import TemperaError as TemperaError
    from .experiments.result import Sweep as Sweep
    from .experiments.sweep import sweep as sweep
    from .experiments.trials import Tuning as Tuning
    from .experiments.tune import tune as tune
    from .integrations.sentence_transformers import ContrastiveLoss as ContrastiveLoss
    from .integrations.sentence_transformers import ObjectiveState as ObjectiveState
    from .mining.hard_negatives import Mining as Mining
    from .run.calibrate import calibrate as calibrate
    from .run.train import train as train
    from .run.verify import Proof as Proof
    from .run.verify import verify as verify
    from .text.evaluate import evaluate as evaluate
    from .text.mine import mine as mine

__version__ = "0.1.0"

_HOME = {
    "Run": "artifacts.run_folder",
    "Batch": "core.batch",
    "Side": "core.batch",
    "Hardness": "core.corrections",
    "LogQ": "core.corrections",
    "Margin": "core.corrections",
    "diagnose": "core.diagnose",
    "Guided": "core.masks",
    "KnownPositives": "core.masks",
    "SameId": "core.masks",
    "Matryoshka": "core.matryoshka",
    "Memory": "core.memory",
    "Objective": "core.objective",
    "gist": "core.presets",
    "gte": "core.presets",
    "hardness": "core.presets",
    "infonce": "core.presets",
    "mixed_negatives": "core.presets",
    "mnr": "core.presets",
    "pools": "core.presets",  # the module: its names, such as docs, say little alone
    "sampled_softmax": "core.presets",
    "simcse": "core.presets",
    "symmetric": "core.presets",
    "Ragged": "core.ragged",
    "cosine": "core.similarity",
    "dot": "core.similarity",
    "Temperature": "core.temperature",
    "TemperaError": "errors",
    "Sweep": "experiments.result",
    "sweep": "experiments.sweep",
    "Tuning": "experiments.trials",
    "tune": "experiments.tune",
    "ContrastiveLoss": "integrations.sentence_transformers",
    "ObjectiveState": "integrations.sentence_transformers",
    "Mining": "mining.hard_negatives",
    "calibrate": "run.calibrate",
    "train": "run.train",
    "Proof": "run.verify",
    "verify": "run.verify",
    "evaluate": "text.evaluate",
    "mine": "text.mine",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tempera' has no attribute {name!r}")
    # A function may have its module's name, so the module is imported before it is asked for its content.
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
