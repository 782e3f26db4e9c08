"""BM25 and a tower fused, in evaluation and in the search of a saved run.

Letters in shapes: q queries, c documents, D width, k documents a query, m candidates of a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import DataError
from ...io.console import logger, progress_bar
from ...io.documents import read_json
from ...io.manifest import refuse_damaged
from ...ranking.fusion import USUAL, Moments, best_fused, rank_by_weight, standardised_at, union
from ...ranking.nearest import SPARE, blocks, break_ties, scores_at, top_of
from ...tables.tables import parquet_table
from ...task.run_files import BEGINNING, WORDS
from ...towers.saved import EVALUATED, MODEL
from ...towers.stamp import refuse_foreign
from .lexical import BM25, Floats, Ints, Lexical, OtherStems, best, stemming

_ROOM = 4  # arrays of scores that are in memory together
_SMALL = 10_000  # documents up to which it takes no longer to compare all of them
CANDIDATES = 256  # documents nearest to a query, and the same number by words
_FLAT = 1e-4  # deviation of inner products below which their rounding would show
_NONE = np.zeros(0, np.int64)  # no documents are left out


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


@dataclass(frozen=True)
class RankedByBoth:
    """Rankings by BM25 alone, [q, k], and by the tower and BM25 together, [q, k] for each weight of
    the tower."""

    words: Ints
    fused: list[Ints]


def nearest_docs(queries: Floats, docs: Floats, k: int) -> Ints:
    """Return the documents nearest to each query, [q, min(k, c)], as `ranking.nearest.nearest` does
    and in less time."""
    from ...mining.search import exact  # needs torch, and a search does not

    scores, positions = exact(docs)(queries, k + SPARE, (_NONE, _NONE))
    return break_ties(scores, positions)[:, :k]


def rank_by_both(
    queries: Floats,
    docs: Floats,
    texts: Sequence[str],
    words: BM25,
    weights: Sequence[float],
    depth: int,
    near: Ints | None = None,
) -> RankedByBoth:
    """Rank all documents by BM25, and by the tower and BM25 fused with each weight.

    In a large corpus the documents nearest to a query and its best documents by words are
    candidates. Let a be the standardised inner product of the last of the nearest, b the
    standardised score of the last by words, and w the weight: no other document has a fused score
    above

        w a + (1 - w) b.

    Where the last candidate to be ranked is below this bound, the query is compared with every
    document (Fagin et al. 2003 prove rankings so).

    Args:
        queries: [q, D].
        docs: [c, D].
        texts: texts of the queries, [q].
        words: index of the same documents.
        weights: weights of the tower, from 0 to 1.
        depth: documents of each query.
        near: the documents nearest to each query, best first, [q, m]; None searches for them.
    """
    if len(docs) <= _SMALL:
        return _compared_with_all(queries, docs, texts, words, weights, depth)
    if near is None:
        near = nearest_docs(queries, docs, CANDIDATES)
    mean, deviation = Moments.of(docs)(queries)
    by_words = np.empty((len(texts), min(depth, len(docs))), np.int64)
    fused = np.empty((len(texts), len(weights), depth), np.int64)
    is_proven = deviation > _FLAT
    scores = np.empty(len(docs), np.float32)  # by words, of a query at a time
    with progress_bar("ranking by words and vectors", len(texts), "query") as bar:
        for i, text in enumerate(texts):
            scores.fill(0)
            words.add(scores, text)
            values, best_by_words = top_of(scores[None], near.shape[1])
            by_words[i] = np.where(values > 0, best_by_words, -1)[0, :depth]
            candidates = union(near[i], best_by_words[0])  # [m]
            products = scores_at(queries[i : i + 1], docs, candidates[None])[0]
            first = (products.astype(np.float64) - mean[i]) / max(deviation[i], _FLAT)
            second = standardised_at(scores, candidates)
            last = np.searchsorted(candidates, [near[i, -1], best_by_words[0, -1]])
            for j, weight in enumerate(weights):
                bound = weight * first[last[0]] + (1 - weight) * second[last[1]]
                both = weight * first + (1 - weight) * second
                fused[i, j], lowest = best_fused(both, candidates, depth)
                is_proven[i] &= lowest >= bound
            bar.update()
    rows = np.flatnonzero(~is_proven)
    if len(rows):
        chosen = [texts[i] for i in rows.tolist()]
        again = _compared_with_all(queries[rows], docs, chosen, words, weights, depth)
        for j, ranked in enumerate(again.fused):
            fused[rows, j] = ranked
    return RankedByBoth(by_words, [fused[:, j] for j in range(len(weights))])


def _compared_with_all(
    queries: Floats,
    docs: Floats,
    texts: Sequence[str],
    words: BM25,
    weights: Sequence[float],
    depth: int,
) -> RankedByBoth:
    """Rank all documents by the scores of every document, which are computed once for all
    rankings."""
    by_words = list[Ints]()

    def scores() -> Iterator[tuple[Floats, Floats]]:
        for of_vectors, of_words in scores_of_both(queries, docs, texts, words):
            by_words.append(best(of_words, depth))
            yield of_vectors, of_words

    fused = rank_by_weight(scores(), weights, depth)
    return RankedByBoth(np.concatenate(by_words), fused)


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
