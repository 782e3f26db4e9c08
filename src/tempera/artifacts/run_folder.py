"""A finished run: metrics, and the model as a search engine or a recommender."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ..arguments import refuse_other_kinds
from ..corpus.index import Found, IndexedDocument
from ..corpus.layout import refuse_depth
from ..errors import ConfigError, DataError
from ..explain.explanation import Explanation
from ..io.documents import parsed
from ..io.manifest import refuse_damaged
from .text_reasons import PASSAGES, TextReasons

if TYPE_CHECKING:  # a run on texts imports nothing of recommenders, and the other way round
    from ..recommender.recommender import Recommendations, Recommender


class Run(TextReasons):
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

    @cached_property
    def results(self) -> dict[str, Any]:
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
        metrics: dict[str, dict[str, float]] = self.results["metrics"]
        return metrics

    @property
    def cautions(self) -> list[str]:
        """Cautions about the run at the end of training, each with advice."""
        return list(self.results.get("cautions", []))

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

    @overload
    def search(
        self,
        query: str,
        k: int = ...,
        index: str | Path | None = ...,
        onnx: str | Path | None = ...,
        threshold: float | None = ...,
        hybrid: bool = ...,
        where: str | None = ...,
        exact: bool = ...,
    ) -> list[Found]: ...

    @overload
    def search(
        self,
        query: list[str],
        k: int = ...,
        index: str | Path | None = ...,
        onnx: str | Path | None = ...,
        threshold: float | None = ...,
        hybrid: bool = ...,
        where: str | None = ...,
        exact: bool = ...,
    ) -> list[list[Found]]: ...

    def search(
        self,
        query: str | list[str],
        k: int = 10,
        index: str | Path | None = None,
        onnx: str | Path | None = None,
        threshold: float | None = None,
        hybrid: bool = False,
        where: str | None = None,
        exact: bool = True,
    ) -> list[Found] | list[list[Found]]:
        """Return the k documents nearest to a query, best first, with probabilities if the model is
        calibrated; for a list of queries, the documents of each, by one product.

        Args:
            query: a text, or a list of texts.
            k: number of documents for each query.
            index: search an exported index instead of the run's own.
            onnx: embed by an exported model instead of the run's own.
            threshold: leave out hits with a lower probability of being an answer.
            hybrid: rank by words (BM25) and vectors together, with the run's chosen weight. Scores
                are then weighted standard deviations above the mean of the corpus, and have no
                probabilities.
            where: find only documents for which an expression of DuckDB over the kept columns is
                true, such as "lang = 'de' and year >= 2024". The search stays exact; fewer than k
                hits are found where fewer documents pass.
            exact: compare every document. False is the way of `tempera serve`: of 20,000 documents
                and more, only the 800 (or 8 k) nearest by the bits of their vectors, and by
                words, are ranked; it needs FAISS. The scores are the same.

        Raises:
            DataError: an empty query, an index made by another model, a recommender, a threshold
                without a calibration of the model, a threshold or an approximate index in a
                hybrid search, or an approximate index with a filter.
            ConfigError: `where` is no filter of the kept columns.
            MissingLibrary: `where` needs DuckDB.

        >>> first, second = Run("runs/first").search(["ada", "where is bob"], k=1)
        >>> second[0].score <= 1.001
        True
        """
        refuse_depth(k)
        refuse_other_kinds(Run.search, locals())
        queries = [query] if isinstance(query, str) else query
        every = self.search_each(queries, k, index, onnx, threshold, hybrid, where, exact)
        return every[0] if isinstance(query, str) else every

    def document(self, name: str) -> IndexedDocument:
        """Return a document of the run by its id, with its whole text and kept columns.

        Raises:
            DataError: no document has the id.

        >>> run = Run("runs/first")
        >>> hit = run.search("where is ada of bob", k=1)[0]
        >>> run.document(hit.id).text == hit.text
        True
        """
        refuse_other_kinds(Run.document, locals())
        return self.index.document(name)

    @overload
    def explain(
        self,
        query: str,
        document: str | IndexedDocument,
        hybrid: bool = ...,
        index: str | Path | None = ...,
        passages: int = ...,
    ) -> Explanation: ...

    @overload
    def explain(
        self,
        query: str,
        document: list[str] | list[Found] | list[IndexedDocument],
        hybrid: bool = ...,
        index: str | Path | None = ...,
        passages: int = ...,
    ) -> list[Explanation]: ...

    def explain(
        self,
        query: str,
        document: str | IndexedDocument | list[str] | list[Found] | list[IndexedDocument],
        hybrid: bool = False,
        index: str | Path | None = None,
        passages: int = PASSAGES,
    ) -> Explanation | list[Explanation]:
        """Return the parts of a document's score for a query, which add up to the score; for a list
        of documents, the parts of each.

        A static model is explained by pairs of words, exactly, and a hybrid search by the pairs and
        the words of BM25. Every other model is explained by leaving out one word at a time, an
        approximation.

        Args:
            query: text of the query.
            document: a hit of `search`, or the id of a document, or a list of them.
            hybrid: explain the score by words and vectors together.
            index: the exported index of the document instead of the run's own.
            passages: where words are left out, the number of passages that a longer document is
                divided into; 0 leaves out words of the query alone, and embeds no document.

        Raises:
            DataError: an empty query, an unknown id, a recommender, or an approximate index without
                the vectors that the explanation needs.

        >>> run = Run("runs/first")
        >>> hit = run.search("where is ada of bob", k=1)[0]
        >>> explanation = run.explain("where is ada of bob", hit)
        >>> explanation.exact, abs(explanation.rest) < 1e-6
        (True, True)
        >>> sorted(part.label for part in explanation.largest(2).parts)
        ['ada ~ ada', 'bob ~ bob']
        """
        refuse_other_kinds(Run.explain, locals())
        if isinstance(document, str | IndexedDocument):
            return self.explain_each(query, [document], hybrid, index, passages)[0]
        return self.explain_each(query, document, hybrid, index, passages)

    @cached_property
    def recommender(self) -> Recommender:
        """The towers of a run on interactions."""
        from ..recommender.recommender import Recommender

        return Recommender(self.folder)

    def recommend(
        self, user: Any = None, history: Sequence[Any] | None = None, **options: Any
    ) -> Recommendations:
        """Return the best items for a user or for a history; see `Recommender.recommend`."""
        from ..recommend.judge.moments import refuse_elapsed

        refuse_elapsed(options)
        return self.recommender.recommend(user, history, **options)

    def explain_item(
        self,
        item: Any,
        user: Any = None,
        history: Sequence[Any] | None = None,
        **options: Any,
    ) -> Any:
        """Return the parts of an item's score for a user or for a history: what each past event
        and each feature gave; for a list of items, an explanation of each.

        Args:
            item: a hit of `recommend`, or the id of an item, or a list of them.
            user: as for `recommend`.
            history: as for `recommend`.
            options: now, before, hybrid, context and index, as for `recommend`.

        See `tempera.explain.item_reasons.explain_items`.
        """
        from ..explain.item_reasons import explain_items

        if isinstance(item, list | tuple):
            return explain_items(self.recommender, item, user, history, **options)
        return explain_items(self.recommender, [item], user, history, **options)[0]

    def recommend_all(self, path: str | Path, users: Any = None, **options: Any) -> dict[str, Any]:
        """Write the best items of all users, or of some users.

        See `tempera.recommender.many_users.write_recommendations`.
        """
        refuse_other_kinds(Run.recommend_all, locals())
        from ..recommend.judge.moments import refuse_elapsed

        refuse_elapsed(options)
        from ..recommender.many_users import write_recommendations

        return write_recommendations(self.recommender, Path(path), users, **options)

    def evaluate(self, data: Any, **options: Any) -> Any:
        """Evaluate the run on other data: a recommender on interactions, a model of texts on pairs
        or a BEIR folder.

        See `tempera.recommender.other_events.evaluate_events` and `tempera.evaluate`.
        """
        if self.recommends:
            from ..recommender.other_events import evaluate_events

            against = options.pop("against", None)
            other = None if against is None else Run(Path(against)).recommender
            return evaluate_events(self.recommender, data, against=other, **options)
        from ..text.judge.evaluate import evaluate

        return evaluate(self.folder, data, **options)

    def add_documents(self, data: Any = None, remove: Sequence[str] = ()) -> Run:
        """Add documents, replace those with the same id, and remove others, without training;
        return the run, which finds them, too.

        Args:
            data: a table with columns id and text, its path, or a list of dicts.
            remove: ids of documents to remove.

        See `tempera.artifacts.new_documents.add_documents`.
        """
        refuse_other_kinds(Run.add_documents, locals())
        from .new_documents import add_documents

        add_documents(self.folder, data, remove)
        self._forget()
        return self

    def add_items(self, path: str | Path) -> Run:
        """Add the new items of a table by their features, and return the run.

        See `tempera.recommender.new_items.add_items`.
        """
        refuse_other_kinds(Run.add_items, locals())
        from ..recommender.new_items import add_items

        add_items(self.folder, Path(path))
        return Run(self.folder)

    def add_events(self, data: Any) -> Run:
        """Add new events of known and unknown users without training, and return the run.

        See `tempera.recommender.new_events.add_events`.
        """
        from ..recommender.new_events import add_events

        add_events(self.folder, Path(data) if isinstance(data, str) else data)
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

        See `tempera.exports.export.export`.
        """
        refuse_other_kinds(Run.export, locals())
        from ..exports.export import Users, export

        users: Users | None = None
        if now is not None and (to != "parquet" or not self.recommends):
            raise ConfigError(
                "now is for the table of a recommender's users: drop it, or use parquet"
            )
        if self.recommends and to == "onnx":
            users = self.recommender.export_users
        elif self.recommends:
            from ..recommender.many_users import write_user_vectors

            users = partial(write_user_vectors, self.recommender, width=width, now=now)
        folder = None if output is None else Path(output)
        return export(self.folder, to, folder, kind, users, overwrite, width)
