"""The state of a run, and its checkpoints: everything that the next step depends on, apart from the
seed and the data.

Which rows a step sees, what is drawn for it and the dropout of its towers follow from the seed and
the number of the step, so a checkpoint holds tensors and a handful of numbers. Nothing that could
be executed is written or read.
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
    left_out: int = 0  # of them in a row, until now, because they were not finite
    group: Group = ALONE  # the processes that train; the main one writes

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained; walking through the modules in every step would cost a
        tenth of a small one."""
        return [p for p in self.modules.parameters() if p.requires_grad]

    @cached_property
    def memories(self) -> list[Memory]:
        """The memories of the objective."""
        return [module for module in self.modules.modules() if isinstance(module, Memory)]

    @cached_property
    def tiles(self) -> dict[str, int]:
        """The scores of a tile, by type of device."""
        return next(
            (each.tiles for each in self.modules.modules() if isinstance(each, Objective)), {}
        )

    def save(self, folder: Path, beside: Mapping[str, bytes] | None = None) -> None:
        """Write a checkpoint that is whole or not there; one that `folder` holds is replaced.

        With towers that are divided among processes, all of them have to call; the main process
        writes. Its folder goes on with towers divided otherwise, or not at all.

        Args:
            folder: of the checkpoint.
            beside: other files that belong to it, by name.

        Raises:
            OutputError: the folder cannot be written; an earlier checkpoint in it stays.
        """
        moments = self.optimizer.state_dict()["state"]
        divided = {f"modules.{name}": value for name, value in self.modules.state_dict().items()}
        divided |= {
            f"optimizer.{i}.{name}": value
            for i, each in moments.items()
            for name, value in each.items()
        }
        tensors = {}
        for name, value in divided.items():
            everything = at_main(value, self.group)
            if (
                everything is not None
            ):  # a copy each: towers may share weights, and the format holds none twice
                tensors[name] = (
                    everything.detach().to("cpu", copy=not is_divided(value)).contiguous()
                )
        if not self.group.main:
            return
        data = save(tensors)
        numbers = {
            "format": FORMAT,
            "xxh3": xxhash.xxh3_128_hexdigest(
                data
            ),  # of the tensors, so that a flipped byte is noticed
            "step": self.step,
            "left_out": self.left_out,
            "scaler": self.scaler.state_dict(),
            "tiles": self.tiles,
            "cache": self.cache.sizes(),
        }
        content = {
            _TENSORS: data,
            _NUMBERS: json.dumps(numbers, indent=2).encode(),
            **(beside or {}),
        }
        with new_folder(folder) as stage:
            for name, each in content.items():
                (stage / name).write_bytes(each)

    def load(self, folder: Path) -> None:
        """Load a checkpoint of the same configuration, to resume from it.

        Raises:
            DataError: a folder that is no checkpoint, is damaged, or belongs to other towers.
        """
        tensors, numbers = _read(folder)
        try:
            own = self.modules.state_dict()
            weights = _below("modules.", tensors)
            self.modules.load_state_dict(
                {name: divided_as(value, own.get(name, value)) for name, value in weights.items()}
            )
            parameters = [p for each in self.optimizer.param_groups for p in each["params"]]
            moments: dict[int, dict[str, Tensor]] = {}
            for name, value in _below("optimizer.", tensors).items():
                number, _, what = name.partition(".")
                moments.setdefault(int(number), {})[what] = divided_as(
                    value, parameters[int(number)]
                )
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
            self.scaler.load_state_dict(numbers["scaler"])
            self.step, self.left_out = int(numbers["step"]), int(numbers["left_out"])
            self.tiles.update({kind: int(size) for kind, size in numbers.get("tiles", {}).items()})
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


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        numbers = read_json(folder / _NUMBERS)
        data = (folder / _TENSORS).read_bytes()
        tensors = load(data)
    except OSError as error:
        raise DataError(
            f"{folder} is not a checkpoint: {error.strerror} ({error.filename})"
        ) from None
    except Exception as error:  # whatever a damaged file makes of the readers
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
