"""Tempera trains retrieval models by contrast.

The names below are the public interface; each is loaded when it is first used, so that `import tempera` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .artifacts.run_folder import Run as Run
    from .core.batch import Batch as Batch
    from .core.batch import Side as Side
    from .core.diagnose import diagnose as diagnose
    from .core.matryoshka import Matryoshka as Matryoshka
    from .core.memory import Memory as Memory
    from .core.objective import Objective as Objective
    from .core.presets import gist as gist
    from .core.presets import gte as gte
    from .core.presets import hardness as hardness
    from .core.presets import mixed_negatives as mixed_negatives
    from .core.presets import mnr as mnr
    from .core.presets import sampled_softmax as sampled_softmax
    from .core.presets import simcse as simcse
    from .core.presets import symmetric as symmetric
    from .core.ragged import Ragged as Ragged
    from .core.temperature import Temperature as Temperature
    from .errors import TemperaError as TemperaError
    from .experiments.result import Sweep as Sweep
    from .experiments.sweep import sweep as sweep
    from .experiments.trials import Tuning as Tuning
    from .experiments.tune import tune as tune
    from .run.calibrate import calibrate as calibrate
    from .run.train import train as train
    from .run.verify import Proof as Proof
    from .run.verify import verify as verify
    from .text.evaluate import evaluate as evaluate

__version__ = "0.1.0"

_HOME = {
    "Batch": "core.batch",
    "Side": "core.batch",
    "Ragged": "core.ragged",
    "Objective": "core.objective",
    "Temperature": "core.temperature",
    "Memory": "core.memory",
    "Matryoshka": "core.matryoshka",
    "mnr": "core.presets",
    "symmetric": "core.presets",
    "gte": "core.presets",
    "gist": "core.presets",
    "simcse": "core.presets",
    "sampled_softmax": "core.presets",
    "mixed_negatives": "core.presets",
    "hardness": "core.presets",
    "diagnose": "core.diagnose",
    "TemperaError": "errors",
    "evaluate": "text.evaluate",
    "Run": "artifacts.run_folder",
    "train": "run.train",
    "Proof": "run.verify",
    "verify": "run.verify",
    "calibrate": "run.calibrate",
    "Sweep": "experiments.result",
    "sweep": "experiments.sweep",
    "Tuning": "experiments.trials",
    "tune": "experiments.tune",
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
