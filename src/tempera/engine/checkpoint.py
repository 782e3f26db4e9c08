"""The state of a run, and checkpoints: everything that decides the next step, apart from the seed
and the data.

The rows of a step, its draws and the dropout of its towers follow from the seed and the number of
the step, so a checkpoint holds tensors and a handful of numbers. Nothing executable is written or
read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors.torch import load, save
from torch import Tensor, nn

from ..core.memory import Memory
from ..core.objective import Objective
from ..errors import DataError
from ..io.atomic import new_folder
from ..io.documents import read_json
from ..parallel.distributed import ALONE, Group
from ..parallel.shards import at_main, divided_as, is_divided
from .cache import Cache

FORMAT = 2
_TENSORS, _NUMBERS = "state.safetensors", "state.json"


@dataclass
class State:
    """The state of a run between two steps."""

    modules: nn.ModuleDict  # towers and objective
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    cache: Cache
    step: int = 0  # optimiser steps that have been taken
    left_out: int = 0  # latest steps that were left out in a row, because they were not finite
    group: Group = ALONE  # the processes that train; the main process writes

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters; walking through the modules in every step would cost a tenth of a
        small step."""
        return [p for p in self.modules.parameters() if p.requires_grad]

    @cached_property
    def memories(self) -> list[Memory]:
        """The memories of the objective."""
        return [module for module in self.modules.modules() if isinstance(module, Memory)]

    @cached_property
    def tiles(self) -> dict[str, int]:
        """The scores of a tile, by type of device."""
        for module in self.modules.modules():
            if isinstance(module, Objective):
                return module.tiles
        return {}

    def save(self, folder: Path, beside: Mapping[str, bytes] | None = None) -> None:
        """Write a whole checkpoint, or none; an earlier checkpoint in `folder` is replaced.

        If towers are divided among processes, all processes have to call; the main process writes.
        The resuming towers may be divided otherwise, or not at all.

        Args:
            folder: of the checkpoint.
            beside: other files of the checkpoint, by name.

        Raises:
            OutputError: the folder cannot be written; an earlier checkpoint stays.
        """
        parts = {}
        for name, value in self.modules.state_dict().items():
            parts[f"modules.{name}"] = value
        for number, moments in self.optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                parts[f"optimizer.{number}.{name}"] = value
        tensors = {}
        for name, value in parts.items():
            whole = at_main(value, self.group)
            if whole is not None:
                # A copy each: towers may share weights, and the format holds no tensor twice.
                on_cpu = whole.detach().to("cpu", copy=not is_divided(value))
                tensors[name] = on_cpu.contiguous()
        if not self.group.main:
            return
        data = save(tensors)
        numbers = {
            "format": FORMAT,
            "xxh3": xxhash.xxh3_128_hexdigest(data),  # so that a flipped byte is noticed
            "step": self.step,
            "left_out": self.left_out,
            "scaler": self.scaler.state_dict(),
            "tiles": self.tiles,
            "cache": self.cache.sizes(),
        }
        files = {_TENSORS: data, _NUMBERS: json.dumps(numbers, indent=2).encode()}
        files.update(beside or {})
        with new_folder(folder) as stage:
            for name, content in files.items():
                (stage / name).write_bytes(content)

    def load(self, folder: Path) -> None:
        """Load a checkpoint of the same configuration, to resume from it.

        Raises:
            DataError: a folder that is no checkpoint, is damaged, or belongs to other towers.
        """
        tensors, numbers = _read(folder)
        try:
            self._load_tensors(tensors)
            self.scaler.load_state_dict(numbers["scaler"])
            self.step = int(numbers["step"])
            self.left_out = int(numbers["left_out"])
            for kind, size in numbers.get("tiles", {}).items():
                self.tiles[kind] = int(size)
            self.cache.resume(numbers["cache"])
        except (
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            ArithmeticError,
            RuntimeError,
        ) as error:
            first = " ".join(str(error).split())[:200]
            raise DataError(
                f"{folder} is not a checkpoint of this configuration: {first}"
            ) from None

    def _load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the weights of the modules and the moments of the optimiser."""
        own = self.modules.state_dict()
        weights = _below("modules.", tensors)
        self.modules.load_state_dict(
            {name: divided_as(value, own.get(name, value)) for name, value in weights.items()}
        )
        parameters: list[nn.Parameter] = []
        for group in self.optimizer.param_groups:
            parameters += group["params"]
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in _below("optimizer.", tensors).items():
            number, _, moment = name.partition(".")
            index = int(number)
            of_parameter = moments.setdefault(index, {})
            of_parameter[moment] = divided_as(value, parameters[index])
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, by the rest of the name."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the numbers of a checkpoint."""
    try:
        numbers = read_json(folder / _NUMBERS)
        data = (folder / _TENSORS).read_bytes()
        tensors = load(data)
    except OSError as error:
        raise DataError(
            f"{folder} is not a checkpoint: {error.strerror} ({error.filename})"
        ) from None
    except Exception as error:  # the readers of a damaged file raise anything
        raise DataError(
            f"{folder} is a damaged checkpoint: {' '.join(str(error).split())[:200]}"
        ) from None
    if not isinstance(numbers, dict) or numbers.get("format") != FORMAT:
        raise DataError(f"{folder} is a checkpoint of another version: start the run again")
    if numbers.get("xxh3") != xxhash.xxh3_128_hexdigest(data):
        raise DataError(
            f"{folder} is a damaged checkpoint: {_TENSORS} is not as it was written (its checksum differs)"
        )
    return tensors, numbers
