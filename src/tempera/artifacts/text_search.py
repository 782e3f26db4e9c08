"""The search of a run on texts: by vectors, or by vectors and words together.

Letters in shapes: q queries, c documents, D width, p documents that pass a filter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..corpus.index import Found, Index
from ..corpus.layout import RunFolder, refuse_depth
from ..errors import DataError
from ..io.console import logger
from ..io.texts import encodable
from ..ranking.filtered import best_among
from ..ranking.nearest import blocks, top_of
from ..task.run_files import CALIBRATION
from ..towers.saved import Encode, is_static, load
from ..towers.stamp import Kept
from ..towers.word_ids import UNKNOWN

if TYPE_CHECKING:  # a run on texts imports nothing of recommenders, and the other way round
    from ..core.batch import Role
    from ..text.judge.lexical import BM25
    from .calibrated import Calibration

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]


def encoder(model: Path, role: Role) -> Encode:
    """Return the function of a saved model from n texts of a role to vectors, [n, D]; a transformer
    runs on the accelerator found by torch."""
    if is_static(model):
        return load(model, role)
    from ..engine.devices import named  # with torch, which a static model does not need

    return load(model, role, device=named("auto"))


class TextSearch(RunFolder):
    """Open a run folder for searches in its texts; the parts of a search are opened once."""

    @cached_property
    def encode(self) -> Encode:
        """The function from n texts to embeddings of queries, [n, D], in single precision.

        The inner product of the vector of a query and the vector of a document is the score of the
        document. A transformer runs on the accelerator found by torch.

        >>> from tempera import Run
        >>> Run("runs/first").encode(["where is ada of bob", "ada"]).shape
        (2, 16)
        """
        self._refuse_recommender()
        return self.opened(lambda: encoder(self.folder / "model", "query"))

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration of the model, written by `tempera calibrate`.

        Raises:
            DataError: the model has no calibration, or a damaged calibration.
        """
        from .calibrated import read_calibration

        return self.opened(lambda: read_calibration(self.folder / "model"))

    def search_each(
        self,
        queries: Sequence[str],
        k: int = 10,
        index: str | Path | None = None,
        onnx: str | Path | None = None,
        threshold: float | None = None,
        hybrid: bool = False,
        where: str | None = None,
        exact: bool = True,
    ) -> list[list[Found]]:
        """Return the k documents nearest to each query, best first; see `Run.search`."""
        return self.of_one_state(
            lambda: self._search_each(queries, k, index, onnx, threshold, hybrid, where, exact)
        )

    def _search_each(
        self,
        queries: Sequence[str],
        k: int,
        index: str | Path | None,
        onnx: str | Path | None,
        threshold: float | None,
        hybrid: bool,
        where: str | None,
        exact: bool,
    ) -> list[list[Found]]:
        self._refuse_queries(queries)
        refuse_depth(k)
        if hybrid and threshold is not None:
            raise DataError(
                "a threshold is for similarities, and a hybrid search has none: leave one of the two out"
            )
        searched = self._searched(index)
        among = None if where is None else searched.passing(where)
        texts = [encodable(query) for query in queries]  # a terminal may pass on no text
        if onnx is None:
            vectors = self._embed(texts)
            model = self.fingerprint
        else:
            from ..exports.onnx_model import OnnxModel

            exported = self._once(OnnxModel, Path(onnx))
            vectors = exported.encode(texts)
            model = exported.fingerprint
        maker = self._maker(searched) or model
        is_cut = searched.vectors.shape[1] < vectors.shape[1]
        if is_cut and threshold is not None:
            raise DataError(
                "a threshold is for similarities of whole vectors, and this index has cut ones: leave one out"
            )
        if hybrid:
            return self._by_both(searched, texts, vectors, k, maker, among, exact)
        every = searched.search_each(vectors, k, maker, among, exact)
        if is_cut:
            return every
        return [self._calibrated(hits, model, threshold) for hits in every]

    def passing(self, where: str, index: str | Path | None = None) -> Positions:
        """Return the positions of the documents that pass a filter, ascending, [p]; see
        `Run.search`."""
        return self._searched(index).passing(where)

    def _searched(self, index: str | Path | None) -> Index:
        """Return an exported index, or the run's own."""
        if index is None:
            return self.index
        searched: Index = self._once(Index, Path(index))
        self._once(self._note_older, searched)
        return searched

    def _note_older(self, index: Index) -> None:
        """Log a note on an export of the run that holds other documents than the run does now."""
        own = self.index.stamp
        other = index.stamp
        if own is None or other is None or own.model != other.model or other.checksum is None:
            return
        if other.checksum != own.checksum:
            logger.warning(
                f"{index.folder} holds other documents than {self.folder} does now: export again to find all of them"
            )

    def _refuse_queries(self, queries: Sequence[str]) -> None:
        """Raise DataError for a recommender, or for queries without words."""
        self._refuse_recommender()
        for query in queries:
            if not isinstance(query, str):
                raise DataError(f"the query is {query!r}; expected a str")
            if not query.strip():
                raise DataError("the query is empty; give words to search for")

    def _refuse_recommender(self) -> None:
        """Raise DataError for a recommender."""
        if self.recommends:
            raise DataError(
                f"{self.folder} is a recommender and has no texts to search in: "
                f"tempera recommend {quote(str(self.folder))} --user ID"
            )

    def _by_both(
        self,
        index: Index,
        texts: Sequence[str],
        vectors: Vectors,
        k: int,
        maker: str,
        among: Positions | None,
        exact: bool,
    ) -> list[list[Found]]:
        """Return the k best documents of each query by words and vectors together.

        A filter changes no score: scores are standardised over all documents.
        """
        from ..ranking.fusion import fused
        from ..text.judge.hybrid import weight_of

        words: BM25 = self._once(self._words, index)
        weight: float = self._once(weight_of, self.folder)
        every: list[list[Found]] = []
        for part in blocks(len(texts), len(index.documents)):
            best = None
            if not exact and among is None:
                best = index.fused_candidates(vectors[part], texts[part], words, weight, k, maker)
            if best is None:
                by_vectors = index.scores(vectors[part], maker)
                scores = fused(by_vectors, words.scores(texts[part]), weight)
                best = top_of(scores, k) if among is None else best_among(scores, k, among)
            for ranked, positions in zip(*best, strict=True):
                every.append(index.hits(ranked, positions))
        return every

    def search_words(
        self, queries: Sequence[str], k: int = 10, where: str | None = None
    ) -> list[list[Found]]:
        """Return the k documents nearest to each query by words alone (BM25), best first; documents
        without a common word are left out.

        Raises:
            DataError: an empty query, or a recommender.
            ConfigError: `where` is no filter of the kept columns.

        >>> from tempera import Run
        >>> (hits,) = Run("runs/first").search_words(["keeps"], k=1)
        >>> "keeps" in hits[0].text
        True
        """
        return self.of_one_state(lambda: self._by_words(queries, k, where))

    def _by_words(self, queries: Sequence[str], k: int, where: str | None) -> list[list[Found]]:
        self._refuse_queries(queries)
        refuse_depth(k)
        index = self.index
        among = None if where is None else index.passing(where)
        words: BM25 = self._once(self._words, index)
        texts = [encodable(query) for query in queries]
        every: list[list[Found]] = []
        for part in blocks(len(texts), len(index.documents)):
            scores = words.scores(texts[part])
            best = top_of(scores, k) if among is None else best_among(scores, k, among)
            for ranked, positions in zip(*best, strict=True):
                holding = ranked > 0
                every.append(index.hits(ranked[holding], positions[holding]))
        return every

    def is_unknown(self, query: str) -> bool:
        """Return True if the model is static and knows no word of a query.

        The vector of the query is then the vector of an unknown word.
        """
        if not is_static(self.folder / "model"):
            return False
        difference = self._embed([encodable(query)])[0] - self._unknown_word
        return bool(abs(difference).max() < 1e-6)

    @cached_property
    def _unknown_word(self) -> Vectors:
        """Vector of an unknown word, [D]."""
        vectors = self.encode([UNKNOWN])
        vector: Vectors = vectors[0]
        return vector

    _latest: tuple[list[str], Vectors] | None = None  # the latest queries and their vectors

    def _embed(self, texts: list[str]) -> Vectors:
        """Return the vectors of queries by the run's own model, [q, D]; the latest are kept."""
        latest = self._latest
        if latest is None or latest[0] != texts:
            latest = (texts, self.encode(texts))
            self._latest = latest
        return latest[1]

    def _maker(self, index: Index) -> str | None:
        """Return the fingerprint of the model that made an index, if the run's queries were trained
        for the vectors of the index; else None."""
        kept: Kept | None = self._once(Kept.read, self.folder / "model")
        if kept is None or index.stamp is None or index.stamp.model != kept.model:
            return None
        return kept.model

    def _words(self, index: Index) -> BM25:
        """Return the index of the words of an index's documents.

        The run's index of words is taken, in the order of the documents, if all documents are in
        the index.
        """
        from ..text.judge.hybrid import open_words
        from ..text.judge.lexical import Lexical

        own = self.index
        is_exported = any(index is each for each in self._results.values())
        if index is not own and not is_exported:
            raise DataError(f"{self.folder} was replaced during a search; search again")
        words = open_words(self.folder, own.documents["text"], self.fingerprint)
        if index is own:
            return words
        places = index.find(own.keys)
        if len(own.documents) == len(index.documents) and (places >= 0).all():
            return words.ordered(places)
        logger.info(
            f"{index.folder} holds other documents than {self.folder}: its documents are indexed for their words"
        )
        return Lexical(index.documents["text"].to_pylist()).index(words.settings)

    @cached_property
    def _results(self) -> dict[tuple[Any, Any], Any]:
        """Results that `_once` keeps, by function and argument."""
        return {}

    def _once(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Return the result of a function, called by the first search in need of the result and
        kept for later searches."""
        key = (function, argument)
        results = self._results  # another thread may forget them meanwhile
        if key not in results:
            results[key] = self.opened(lambda: function(argument))
        return results[key]

    def _forget(self) -> None:
        super()._forget()
        self._latest = None

    def _calibrated(self, hits: list[Found], model: str, threshold: float | None) -> list[Found]:
        """Add probabilities, and leave out results below the threshold."""
        if threshold is None and not (self.folder / "model" / CALIBRATION).is_file():
            return hits
        if threshold is not None and not 0 <= threshold <= 1:
            raise DataError(f"the threshold is {threshold:g}; expected a probability from 0 to 1")
        if threshold is None and self.calibration.model != model:
            return hits
        self.calibration.refuse_other(model, self.folder / "model")
        probabilities = self.calibration.probability([hit.score for hit in hits]).tolist()
        calibrated = []
        for hit, probability in zip(hits, probabilities, strict=True):
            if threshold is None or probability >= threshold:
                calibrated.append(replace(hit, probability=probability))
        return calibrated
