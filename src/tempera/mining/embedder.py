"""A saved model whose embeddings are evaluated.

Letters in shapes: n texts, D width.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..engine.devices import named, settled
from ..errors import ConfigError, DataError
from ..io.console import progress_bar
from ..io.ids import Ids, content_ids, form_ids
from ..io.manifest import refuse_damaged
from ..parallel.distributed import Group
from ..ranking.nearest import refuse_not_finite
from ..towers.saved import TRAINED, Encode, model_folder, similarity_of
from ..towers.similarities import Similarity
from .embed import read_by

Vectors = NDArray[np.float32]
Reading = Literal["auto", "no", "bf16"]  # precisions of texts that are read

_BLOCK = 10_000  # texts that are encoded at once


class Embedder(Protocol):
    """Functions from texts to vectors, [n, D], for each role; their inner products are the model's
    similarity."""

    @property
    def similarity(self) -> Similarity:
        """Return the similarity that the model compares by."""

    @property
    def query(self) -> Encode:
        """Embed queries."""

    @property
    def doc(self) -> Encode:
        """Embed documents."""


@dataclass(frozen=True)
class Model:
    """A saved model, by its folder or by the run that holds it; nothing is loaded before it is
    used.

    Args:
        path: the folder.
        half: a transformer computes in bf16.
        device: of a transformer, by its name; "auto" is the accelerator that torch finds, or else
            the CPU.

    Raises:
        DataError: the folder holds no model.
    """

    path: str
    half: bool = False
    device: str = "auto"
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", model_folder(Path(self.path)))

    def trained_on(self, queries: pa.ChunkedArray) -> int:
        """Count the queries that the model's run was trained on, in whatever role; 0 for a model
        without its run.

        Raises:
            DataError: a file of the run that cannot be read.
        """
        trained = trained_on(run_of(Path(self.path)))
        return 0 if trained is None else int(among_trained(queries, trained).sum())

    @cached_property
    def similarity(self) -> Similarity:
        """The similarity that the model was saved with."""
        return similarity_of(self.folder)

    @cached_property
    def query(self) -> Encode:
        """The function from queries to vectors, [n, D]."""
        return read_by(self.folder, "query", self.half, self.device)

    @cached_property
    def doc(self) -> Encode:
        """The function from documents to vectors, [n, D]."""
        return read_by(self.folder, "doc", self.half, self.device)


def run_of(path: Path) -> Path:
    """Return the folder that tells what a model was trained on: the run around it or its index;
    else the folder itself.

    >>> run_of(Path("a/model/of/another/program"))
    PosixPath('a/model/of/another/program')
    """
    written = [path] if path.name.strip(".") else []  # the parent of ".." is another folder
    for place in (*written, path.resolve()):
        if (place / TRAINED).is_file():
            return path
        if (place.parent / TRAINED).is_file():
            return place.parent
    return path


def trained_on(folder: Path) -> Ids | None:
    """Return the ids of the texts that a run, or its evaluated model, was trained on, for
    `among_trained`; None if it does not say.

    Raises:
        DataError: a file that cannot be read.
    """
    path = folder / TRAINED
    refuse_damaged(path)
    if not path.is_file():
        return None
    try:
        trained: Ids = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return trained


def among_trained(texts: pa.ChunkedArray, trained: Ids) -> NDArray[np.bool_]:
    """Return which texts are among those that a run was trained on, [n], whatever their role, case,
    white space or Unicode form.

    Runs of earlier versions have written the contents of their queries alone, in which case counts:
    these are compared, too. A text in its form has one id for both, so that no other is taken for
    it.

    >>> known = form_ids(pa.array(["how do I pay?"]))
    >>> among_trained(pa.chunked_array([["How do  I pay?", "who pays?"]]), known)
    array([ True, False])
    """
    return np.isin(form_ids(texts), trained) | np.isin(content_ids(texts), trained)


def learned(models: Iterable[str | Path]) -> list[Ids]:
    """Return `trained_on` of the runs of some models, of those that say it.

    >>> learned(["a/model/of/another/program"])
    []
    """
    return [ids for each in models if (ids := trained_on(run_of(Path(each)))) is not None]


def in_half(wanted: Reading) -> bool:
    """Return whether texts are read in bf16, for which "auto" measures whether it pays.

    Raises:
        ConfigError: a precision in which no texts are read.
    """
    if wanted not in get_args(Reading):
        raise ConfigError(
            f"mixed_precision is {wanted!r}, in which no texts are read: give no, auto or bf16"
        )
    return wanted == "bf16" or (
        wanted == "auto" and settled(wanted, Group(device=named("auto"))) == "bf16"
    )


def rates(models: Mapping[str, str], texts: Sequence[str]) -> dict[str, float]:
    """Return how many queries of ten words each model encodes in a second of one core, one after
    the other.

    The queries are the beginnings of texts, whose words a model has read before, as one that has
    served for a while.
    """
    queries, speeds = [" ".join(text.split()[:10]) for text in texts], dict[str, float]()
    for name, folder in models.items():
        encode = Model(folder, device="cpu").query
        encode(queries)
        began = time.process_time()
        for query in queries:
            encode([query])
        speeds[name] = round(len(queries) / max(time.process_time() - began, 1e-6), 1)
    return speeds


def encode_all(encode: Encode, texts: pa.ChunkedArray, what: str) -> Vectors:
    """Return vectors of a column of texts, [n, D]."""
    parts = []
    with progress_bar(f"encoding {what}", len(texts), "text") as bar:
        for start in range(0, len(texts), _BLOCK):
            parts.append(encode(texts.slice(start, _BLOCK).to_pylist()))
            bar.update(len(parts[-1]))
    vectors = np.concatenate(parts)
    refuse_not_finite(vectors, what)
    return vectors
