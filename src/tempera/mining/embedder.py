"""A saved model, for the evaluation of embeddings.

Letters in shapes: n texts, D width.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..corpora.corpus_manifest import is_corpus
from ..corpora.many_shards import EncodedShards
from ..engine.devices import choose_precision, named
from ..errors import ConfigError, DataError
from ..io.checked import read_array
from ..io.console import progress_bar
from ..io.ids import Ids, content_ids, form_ids
from ..io.manifest import refuse_damaged
from ..parallel.distributed import ALONE, Group
from ..ranking.nearest import refuse_not_finite
from ..towers.saved import TRAINED, Encode, model_folder, similarity_of
from ..towers.similarities import Similarity
from .embed import read_by

Vectors = NDArray[np.float32]
Reading = Literal["auto", "no", "bf16"]  # precisions in which texts are read

_BLOCK = 10_000  # texts that are encoded at once


class Embedder(Protocol):
    """Functions from texts to vectors, [n, D], for each role; their inner products are the model's
    similarity."""

    @property
    def similarity(self) -> Similarity:
        """The similarity of the model."""

    @property
    def query(self) -> Encode:
        """The function from queries to vectors, [n, D]."""

    @property
    def doc(self) -> Encode:
        """The function from documents to vectors, [n, D]."""


@dataclass(frozen=True)
class Model:
    """A saved model, by the folder of the model or of the run; loaded at first use.

    Args:
        path: the folder.
        half: a transformer computes in bf16.
        device: of a transformer, by name; "auto" is the accelerator if torch finds any, or else the
            CPU.

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
        """Count the queries among the training texts of the model's run, in any role; 0 for a model
        without a run.

        Raises:
            DataError: an unreadable file of the run.
        """
        trained = trained_on(run_of(Path(self.path)))
        if trained is None:
            return 0
        return int(among_trained(queries, trained).sum())

    @cached_property
    def similarity(self) -> Similarity:
        """The similarity of the saved model."""
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
    """Return the folder with the training texts of a model: the run around the model or its index,
    or else the folder itself; of an encoded corpus, those of its model.

    >>> run_of(Path("a/model/of/another/program"))
    PosixPath('a/model/of/another/program')
    """
    if is_corpus(path):
        path = Path(str(EncodedShards(str(path)).model["name"]))
    written = [path] if path.name.strip(".") else []  # the parent of ".." is another folder
    for place in (*written, path.resolve()):
        if (place / TRAINED).is_file():
            return path
        if (place.parent / TRAINED).is_file():
            return place.parent
    return path


def trained_on(folder: Path) -> Ids | None:
    """Return the ids of the training texts of a run, or of the evaluated model, for
    `among_trained`; None if the folder has no ids.

    Raises:
        DataError: an unreadable file.
    """
    path = folder / TRAINED
    refuse_damaged(path)
    if not path.is_file():
        return None
    try:
        trained: Ids = read_array(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if trained.dtype != np.int64 or trained.ndim != 1:
        raise DataError(
            f"{path} is damaged: it holds {trained.dtype} {trained.shape}; expected ids"
        )
    return trained


def among_trained(texts: pa.ChunkedArray, trained: Ids) -> NDArray[np.bool_]:
    """Return True for each training text of a run, [n], in any role, case, white space or Unicode
    form.

    Earlier versions wrote only a run's queries, with case-sensitive ids: both forms of an id are
    compared. A text in normal form has the same id in both ways, so different texts are not
    confused.

    >>> known = form_ids(pa.array(["how do I pay?"]))
    >>> among_trained(pa.chunked_array([["How do  I pay?", "who pays?"]]), known)
    array([ True, False])
    """
    return np.isin(form_ids(texts), trained) | np.isin(content_ids(texts), trained)


def learned(models: Iterable[str | Path]) -> list[Ids]:
    """Return the ids of the training texts of each model with a record.

    >>> learned(["a/model/of/another/program"])
    []
    """
    known = [trained_on(run_of(Path(model))) for model in models]
    return [ids for ids in known if ids is not None]


def in_half(wanted: Reading, group: Group = ALONE) -> bool:
    """Return True if texts are read in bf16: "auto" measures if bf16 pays, on all processes.

    Raises:
        ConfigError: a precision in which no texts are read.
    """
    if wanted not in get_args(Reading):
        raise ConfigError(
            f"mixed_precision is {wanted!r}, in which no texts are read: give no, auto or bf16"
        )
    if wanted == "auto":
        return choose_precision(wanted, replace(group, device=named("auto"))) == "bf16"
    return wanted == "bf16"


def rates(models: Mapping[str, str], texts: Sequence[str]) -> dict[str, float]:
    """Return the number of queries of ten words that each model encodes one by one in a second of
    one core.

    The queries are the beginnings of texts. A model has read the words before, as after a while of
    service.
    """
    queries = [" ".join(text.split()[:10]) for text in texts]
    speeds = {}
    for name, folder in models.items():
        encode = Model(folder, device="cpu").query
        encode(queries)
        began = time.process_time()
        for query in queries:
            encode([query])
        seconds = time.process_time() - began
        speeds[name] = round(len(queries) / max(seconds, 1e-6), 1)
    return speeds


def encode_part(encode: Encode, texts: pa.ChunkedArray, what: str, part: slice) -> Vectors:
    """Return vectors of a part of a column of texts, [n, D]; where the part is empty, the first
    text is read for the width."""
    count = part.stop - part.start
    if not count:
        return encode_all(encode, texts.slice(0, 1), what)[:0]
    return encode_all(encode, texts.slice(part.start, count), what)


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
