"""BM25 and a tower fused, in evaluation and in the search of a saved run.

Letters in shapes: q queries, c documents, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import DataError
from ...io.console import logger
from ...io.documents import read_json
from ...io.manifest import refuse_damaged
from ...ranking.fusion import USUAL
from ...ranking.nearest import blocks
from ...tables.tables import parquet_table
from ...task.run_files import BEGINNING, WORDS
from ...towers.saved import EVALUATED, MODEL
from ...towers.stamp import refuse_foreign
from .lexical import BM25, Floats, Lexical, OtherStems, stemming

_ROOM = 4  # arrays of scores that are in memory together


def scores_of_both(
    queries: Floats, docs: NDArray[np.floating], texts: Sequence[str], words: BM25
) -> Iterator[tuple[Floats, Floats]]:
    """Yield the inner products, and the scores of BM25, of some queries at a time with every
    document, [.., c] each.

    Args:
        queries: [q, D].
        docs: [c, D].
        texts: texts of the queries, [q].
        words: index of the same documents.
    """
    for part in blocks(len(texts), _ROOM * len(docs)):
        yield np.asarray(queries[part] @ docs.T, np.float32), words.scores(texts[part])


def weight_of(run: Path) -> float:
    """Return the weight of the vectors that a run has chosen, also for the model of a run; the
    usual weight where no run has chosen.

    Raises:
        DataError: metrics.json cannot be read, or holds an impossible weight.
    """
    path = run / "metrics.json"
    folder = run.resolve()
    if folder.name in (MODEL, EVALUATED) and not path.exists():
        path = folder.parent / "metrics.json"
    try:
        document: Any = read_json(path)
        weight = float((document.get("hybrid") or {}).get("weight", USUAL))
    except (FileNotFoundError, NotADirectoryError):
        return USUAL
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not 0 <= weight <= 1:
        raise DataError(f"{path}: hybrid.weight is {weight:g}; expected a number from 0 to 1")
    return weight


def open_words(run: Path, beginnings: pa.ChunkedArray, model: str) -> BM25:
    """Return a run's index of words; without one, an index of the documents' beginnings with the
    usual settings.

    Args:
        beginnings: the beginnings of the documents in the run's index.
        model: fingerprint of the run's model.

    Raises:
        DataError: the index is damaged, is of another run or of other documents, or has words not
            to be found by the present version of the stemmer.
    """
    path = run / WORDS
    refuse_damaged(path)
    if not path.is_file():
        logger.info(f"{run} has no {WORDS}: the beginning of each document is indexed instead")
        return Lexical(beginnings.to_pylist()).index()
    try:
        table = parquet_table(path)
        refuse_foreign(table.schema.metadata, model, path)
        words = BM25.read(table)
    except OtherStems as other:
        return _stemmed_again(path, other, beginnings)
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        raise DataError(
            f"{path} is damaged: {error}; without this file the documents' beginnings are indexed"
        ) from None
    if words.size != len(beginnings):
        raise DataError(
            f"{path} is damaged: it indexes {words.size:,} documents, and the run has {len(beginnings):,}"
        )
    return words


def _stemmed_again(path: Path, other: OtherStems, beginnings: pa.ChunkedArray) -> BM25:
    """Return a new index of words, if the beginnings of all documents are whole documents.

    Raises:
        DataError: a document is longer than its beginning, so that words would be lost.
    """
    now = stemming()["version"]
    cause = f"{path} has words that PyStemmer {other.version} has stemmed, and PyStemmer {now} stems otherwise"
    longest = pc.max(pc.utf8_length(beginnings)).as_py() or 0
    if longest >= BEGINNING:
        raise DataError(
            f"{cause}, so that some would not be found: install pystemmer=={other.version}, train again, or "
            "search by vectors alone"
        )
    logger.info(f"{cause}: they are indexed anew")
    return Lexical(beginnings.to_pylist()).index(other.settings)
