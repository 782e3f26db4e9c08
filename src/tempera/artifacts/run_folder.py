"""A finished run: metrics, and the model as a search engine or a recommender."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..arguments import refuse_other_kinds
from ..errors import ConfigError, DataError
from ..io.console import logger
from ..io.documents import parsed
from ..io.manifest import refuse_damaged
from ..io.texts import encodable
from ..ranking.fusion import fused
from ..ranking.nearest import top_of
from ..towers.saved import Encode, is_static, load
from ..towers.stamp import Kept
from ..towers.word_ids import UNKNOWN
from .calibrated import FILE as CALIBRATION
from .calibrated import Calibration, read_calibration
from .index import Found, Index
from .layout import RunFolder, refuse_depth
from .onnx_model import OnnxModel

if TYPE_CHECKING:  # a run on texts imports nothing of recommenders, and the other way round
    from ..text.judge.lexical import BM25
    from .recommender import Recommendations, Recommender


class Run(RunFolder):
    """Open the folder that `tempera train` writes.

    Args:
        folder: the `output` of the run.
        must_exist: raise an error if the folder is missing; processes on further machines may not
            see the folder.

    Raises:
        DataError: the folder is missing.

    >>> run = Run("runs/first")
    >>> 0 < run.metrics["trained"]["ndcg@10"] <= 1
    True
    >>> hits = run.search("where is ada of bob", k=2)
    >>> sorted(hits[0].preview.split())
    ['ada', 'bob', 'keeps']
    """

    _latest_query: tuple[str, NDArray[np.float32]] | None = None  # its text and its vector

    @cached_property
    def document(self) -> dict[str, Any]:
        """Content of metrics.json: metrics, differences, seconds, memory."""
        refuse_damaged(self.folder / "metrics.json")
        try:
            document: Any = parsed((self.folder / "metrics.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(
                f"{self.folder} is not a finished run: metrics.json is missing"
            ) from None
        except (OSError, ValueError) as error:
            raise DataError(f"{self.folder}/metrics.json is not JSON: {error}") from None
        if not isinstance(document, dict) or not isinstance(document.get("metrics"), dict):
            raise DataError(
                f"{self.folder}/metrics.json is not that of a run: it has no metrics of systems"
            )
        return document

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of each system: untrained, bm25, trained, trained + BM25."""
        metrics: dict[str, dict[str, float]] = self.document["metrics"]
        return metrics

    @property
    def cautions(self) -> list[str]:
        """Cautions about the run at the end of training, each with advice."""
        return list(self.document.get("cautions", []))

    def __repr__(self) -> str:
        name = f"Run({str(self.folder)!r})"
        if not (self.folder / "metrics.json").is_file():
            return name
        trained = self.metrics.get("trained")
        if not trained:
            return name
        metric = next(iter(trained))
        values = []
        for system, metrics in self.metrics.items():
            if metric in metrics:
                values.append(f"{system} {metrics[metric]:.3f}")
        return f"{name}: {metric} {', '.join(values)}"

    @cached_property
    def encode(self) -> Encode:
        """The function from n texts to embeddings, [n, D].

        A transformer runs on the accelerator found by torch.
        """
        folder = self.folder / "model"
        if is_static(folder):
            return load(folder)
        from ..engine.devices import named  # with torch, which a static model does not need

        return load(folder, device=named("auto"))

    def search(
        self,
        query: str,
        k: int = 10,
        index: str | Path | None = None,
        onnx: str | Path | None = None,
        threshold: float | None = None,
        hybrid: bool = False,
    ) -> list[Found]:
        """Return the k documents nearest to a query, best first, with probabilities if the model is
        calibrated.

        Args:
            index: search an exported index instead of the run's own.
            onnx: embed by an exported model instead of the run's own.
            threshold: leave out hits with a lower probability of being an answer.
            hybrid: rank by words (BM25) and vectors together, with the run's chosen weight. Scores
                are then weighted standard deviations above the mean of the corpus, and have no
                probabilities.

        Raises:
            DataError: an empty query, an index made by another model, a recommender, a threshold
                without a calibration of the model, or a threshold or an approximate index in a
                hybrid search.
        """
        if self.recommends:
            raise DataError(
                f"{self.folder} is a recommender and has no texts to search in: "
                f"tempera recommend {quote(str(self.folder))} --user ID"
            )
        if not isinstance(query, str):
            raise DataError(f"the query is {query!r}; expected a str")
        if not query.strip():
            raise DataError("the query is empty; give words to search for")
        refuse_depth(k)
        refuse_other_kinds(Run.search, locals())
        searched: Index = self.index if index is None else self._once(Index, Path(index))
        if onnx is None:
            vector = self._embed_query(query)
            model = self.fingerprint
        else:
            exported = self._once(OnnxModel, Path(onnx))
            vector = exported.encode([encodable(query)])[0]
            model = exported.fingerprint
        maker = self._maker(searched) or model
        is_cut = searched.vectors.shape[1] < len(vector)
        if is_cut and threshold is not None:
            raise DataError(
                "a threshold is for similarities of whole vectors, and this index has cut ones: leave one out"
            )
        if not hybrid:
            hits = searched.search(vector, k, maker)
            return hits if is_cut else self._calibrated(hits, model, threshold)
        if threshold is not None:
            raise DataError(
                "a threshold is for similarities, and a hybrid search has none: leave one of the two out"
            )
        from ..text.judge.hybrid import weight_of

        words: BM25 = self._once(self._words, searched)
        by_vectors = searched.scores(vector, maker)[None]
        by_words = words.scores([encodable(query)])
        scores = fused(by_vectors, by_words, self._once(weight_of, self.folder))
        ranked, positions = top_of(scores, k)
        return searched.hits(ranked[0], positions[0])

    def is_unknown(self, query: str) -> bool:
        """Return True if the model is static and knows no word of a query.

        The vector of the query is then the vector of an unknown word.
        """
        if not is_static(self.folder / "model"):
            return False
        difference = self._embed_query(query) - self._unknown_word
        return bool(abs(difference).max() < 1e-6)

    @cached_property
    def _unknown_word(self) -> NDArray[np.float32]:
        """Vector of an unknown word, [D]."""
        vectors = self.encode([UNKNOWN])
        vector: NDArray[np.float32] = vectors[0]
        return vector

    def _embed_query(self, query: str) -> NDArray[np.float32]:
        """Return the vector of a query by the run's own model, [D]; the latest vector is kept."""
        text = encodable(query)  # a terminal may pass on bytes that are no text
        latest = self._latest_query
        if latest is None or latest[0] != text:
            latest = (text, self.encode([text])[0])
            self._latest_query = latest
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
        words = open_words(self.folder, own.documents["preview"], self.fingerprint)
        if index is own:
            return words
        places = index.find(own.keys)
        if len(own.documents) == len(index.documents) and (places >= 0).all():
            return words.ordered(places)
        logger.info(
            f"{index.folder} holds other documents than {self.folder}: the beginning of each is indexed for its words"
        )
        return Lexical(index.documents["preview"].to_pylist()).index(words.settings)

    @cached_property
    def _results(self) -> dict[tuple[Any, Any], Any]:
        """Results that `_once` keeps, by function and argument."""
        return {}

    def _once(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Return the result of a function, called by the first search in need of the result and
        kept for later searches."""
        key = (function, argument)
        if key not in self._results:
            self._results[key] = function(argument)
        return self._results[key]

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration of the model, written by `tempera calibrate`.

        Raises:
            DataError: the model has no calibration, or a damaged calibration.
        """
        return read_calibration(self.folder / "model")

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

    @cached_property
    def recommender(self) -> Recommender:
        """The towers of a run on interactions."""
        from .recommender import Recommender

        return Recommender(self.folder)

    def recommend(
        self, user: Any = None, history: Sequence[Any] | None = None, **options: Any
    ) -> Recommendations:
        """Return the best items for a user or for a history; see `Recommender.recommend`."""
        from ..recommend.judge.moments import refuse_elapsed

        refuse_elapsed(options)
        return self.recommender.recommend(user, history, **options)

    def recommend_all(self, path: str | Path, users: Any = None, **options: Any) -> dict[str, Any]:
        """Write the best items of all users, or of some users.

        See `tempera.artifacts.many_users.write_recommendations`.
        """
        refuse_other_kinds(Run.recommend_all, locals())
        from ..recommend.judge.moments import refuse_elapsed

        refuse_elapsed(options)
        from .many_users import write_recommendations

        return write_recommendations(self.recommender, Path(path), users, **options)

    def evaluate(self, data: Any, **options: Any) -> Any:
        """Evaluate the run on other data: a recommender on interactions, a model of texts on pairs
        or a BEIR folder.

        See `tempera.artifacts.other_events.evaluate_events` and `tempera.evaluate`.
        """
        if self.recommends:
            from .other_events import evaluate_events

            against = options.pop("against", None)
            other = None if against is None else Run(Path(against)).recommender
            return evaluate_events(self.recommender, data, against=other, **options)
        from ..text.judge.evaluate import evaluate

        return evaluate(self.folder, data, **options)

    def add_items(self, path: str | Path) -> Run:
        """Add the new items of a table by their features, and return the run.

        See `tempera.artifacts.new_items.add_items`.
        """
        refuse_other_kinds(Run.add_items, locals())
        from .new_items import add_items

        add_items(self.folder, Path(path))
        return Run(self.folder)

    def export(
        self,
        to: str,
        output: str | Path | None = None,
        kind: str | None = None,
        overwrite: bool = False,
        width: int | None = None,
        now: Any = None,
    ) -> dict[str, Any]:
        """Export the model as ONNX (a recommender's user tower), or the documents or items as an
        index or a table of vectors; a recommender has a second table of its users.

        Args:
            now: moment up to which the events of users count in the table of users; see
                `Recommender.recommend`.

        See `tempera.artifacts.export.export`.
        """
        refuse_other_kinds(Run.export, locals())
        from .export import Users, export

        users: Users | None = None
        if now is not None and (to != "parquet" or not self.recommends):
            raise ConfigError(
                "now is for the table of a recommender's users: drop it, or use parquet"
            )
        if self.recommends and to == "onnx":
            users = self.recommender.export_users
        elif self.recommends:
            from .many_users import write_user_vectors

            users = partial(write_user_vectors, self.recommender, width=width, now=now)
        folder = None if output is None else Path(output)
        return export(self.folder, to, folder, kind, users, overwrite, width)
