"""The model that encodes a corpus: its folder, its fingerprint, and the tokens that it reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..io.require import require
from ..towers.saved import (
    Encode,
    fingerprint,
    is_static,
    load,
    model_folder,
    said,
    similarity_of,
)
from ..towers.similarities import Similarity
from ..towers.stamp import Stamp

if TYPE_CHECKING:
    from ..core.batch import Role

_LOCAL_RANK = "LOCAL_RANK"  # set by torchrun for each process of a machine


@dataclass
class ReadTokens:
    """The numbers of tokens that a model has read, alone and with their padding."""

    tokens: int = 0
    padded: int = 0

    def add(self, tokens: int, padded: int) -> None:
        """Count tokens that were read together."""
        self.tokens += tokens
        self.padded += padded

    @property
    def padding(self) -> float:
        """The share of padding in all that was read."""
        return 1 - self.tokens / self.padded if self.padded else 0.0


@dataclass
class EncodingModel:
    """A saved model, a run, or a model of the Hugging Face hub; its weights are loaded at first
    use.

    Args:
        name: folder of a saved model or of a run, or a name of the hub.
        role: of the texts.
        half: a transformer computes in bf16.

    Raises:
        DataError: there is no such model.
    """

    name: str
    role: Role = "doc"
    half: bool = False
    read: ReadTokens = field(default_factory=ReadTokens)

    @cached_property
    def folder(self) -> Path:
        """The folder of the model's files."""
        return folder_of_model(self.name)

    @cached_property
    def fingerprint(self) -> str:
        """The hash of all files with an influence on vectors."""
        return fingerprint(self.folder)

    @cached_property
    def similarity(self) -> Similarity:
        """The similarity of the model."""
        return similarity_of(self.folder)

    @cached_property
    def encode(self) -> Encode:
        """The function from n texts to vectors, [n, D]."""
        if is_static(self.folder):
            return load(self.folder, self.role, count=self.read.add)
        return load(self.folder, self.role, self.half, _device(), self.read.add)

    def open(self) -> None:
        """Load the weights."""
        _ = self.encode

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of n texts, [n, D]."""
        return self.encode(texts)

    def stamp(self, width: int, dtype: str) -> Stamp:
        """Return the facts about vectors of this model, for their readers."""
        is_unit = self.similarity == "cosine" and dtype != "int8"
        return Stamp(self.fingerprint, width, self.similarity, is_unit)


def folder_of_model(name: str) -> Path:
    """Return the folder of a saved model: the folder itself, that of a run, or that of a name of
    the hub in its cache; a model that the cache lacks is fetched.

    Raises:
        DataError: there is no such model.
    """
    place = Path(name).expanduser()
    if place.exists() or name.count("/") != 1 or name.startswith((".", "/", "~")):
        return model_folder(place)
    require("text", f"opening {name}", "huggingface_hub")
    from huggingface_hub import snapshot_download

    try:
        return model_folder(Path(snapshot_download(name, local_files_only=True)))
    except OSError:  # it is not in the cache
        pass
    try:
        return model_folder(Path(snapshot_download(name)))
    except DataError:
        raise
    except Exception as error:  # whatever the hub raises
        raise DataError(
            f"no such folder: {name}; and the Hugging Face hub does not give a model of that name: {said(error)}"
        ) from None


def _device() -> Any:
    """Return the device of this process: of the devices of a machine, torchrun gives one to each
    process."""
    import torch

    from ..engine.devices import named

    device = named("auto")
    if device.type == "cpu" or _LOCAL_RANK not in os.environ:
        return device
    number = int(os.environ[_LOCAL_RANK]) % torch.accelerator.device_count()
    return torch.device(device.type, number)
