"""Data facts, searchable documents and example queries of a run on texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.batch import Role
from ...errors import quantity
from ...io.freed import give_back
from ...ranking.ranking import Ranking
from ...task.run_files import WORDS
from ...task.showcase import DataFacts, Example, Hit, Searched, Subject
from ...task.verdict import SystemScores
from ...towers.saved import TRAINED, load
from ...towers.stamp import Kept
from ..read.pairs import RANKED, Rows
from ..train.frozen import IndexSide
from ..train.preview import summary
from ..train.training_pairs import TrainingPairs
from .held_out import HeldOutQueries

TEXTS = Subject(
    "A retrieval model",
    "A text embedding model, trained with Tempera by contrastive learning. It opens with sentence-transformers alone.",
    """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
queries = model.encode_query(["a question"])
docs = model.encode_document(["a possible answer"])
print(model.similarity(queries, docs))""",
    {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction", "tempera"],
    },
    report_title="Tempera run",
    facts={
        "pairs": "pairs",
        "train": "training pairs",
        "validation": "validation queries",
        "queries": "test queries",
        "corpus": "documents ranked",
    },
    examples="Held-out queries and their results",
    right="Answer",
    random="a query with a random document, blue a query with its own",
    more="on more data, for more epochs, or from a pretrained model",
    finer="raise evaluation.queries to tell smaller differences",
)


def _for_index(kept: Kept, normalised: bool) -> Subject:
    """Return the words for a model of queries beside the vectors of an index."""
    as_compared = ", normalize_embeddings=True" if normalised else ""
    maker = f", which the model {kept.model} has made" if kept.model else ""
    return replace(
        TEXTS,
        sentence=f"A model of queries, trained with Tempera for one index: {kept.documents:,} vectors of {kept.dimensions} "
        f"dimensions with the checksum {kept.checksum}{maker}. It embeds no documents, and opens with sentence-transformers alone.",
        use=f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
queries = model.encode_query(["a question"]{as_compared})  # search the index with these""",
    )


class TextShowcase:
    """Show a run on texts."""

    def __init__(self, data: TrainingPairs, held_out: HeldOutQueries) -> None:
        self.data, self.held_out, self.texts = data, held_out, data.texts
        doc = data.tower.of("doc")
        self.subject = TEXTS
        if isinstance(doc, IndexSide):
            self.subject = _for_index(doc.kept, data.tower.normalised)

    def facts(self) -> DataFacts:
        """Return the counts and notes of the data, and the source with the roles of its columns."""
        split, made = self.texts.split, self.data.made
        counts: dict[str, Any] = {
            "pairs": split.count,
            "dropped": self.data.dropped,
            "train": split.trained_count,
            "validation": split.queries(split.validation),
            "queries": split.queries(split.test),
            "corpus": len(split.corpus),
        }
        if split.shared:
            counts["shared_documents"] = split.shared
        if self.data.window:
            counts["window"] = self.data.window
        if split.notes:
            counts["held_out"] = list(split.notes)
        first, *notes = split.lines()
        kept = self.texts.catalogue.kept()
        if kept is not None:
            counts["kept"] = kept.sizes()
            notes += kept.lines()
        notes += [self.data.note, made.note(), self._unread(), self._unranked()]
        notes = [note for note in notes if note]
        return DataFacts(
            split.pairs.source,
            first,
            counts,
            self.subject,
            split.chooses,
            self.held_out.looks,
            tuple(notes),
            split.pairs.about,
            made.beside if made.count else 0,
        )

    def _unread(self) -> str:
        """Return a sentence about texts without a token; "" if every text has tokens."""
        has_query = self.texts.split.pairs.part != RANKED
        is_empty = (self.texts.queries.lengths == 0).numpy()
        is_asked = np.zeros(len(is_empty), bool)
        is_asked[self.texts.catalogue.query_of[has_query]] = True
        empty_queries = int((is_empty & is_asked).sum())
        empty_docs = int((self.texts.docs.lengths == 0).sum())
        texts = list[str]()
        if empty_queries:
            texts.append(quantity(empty_queries, "queries"))
        if empty_docs:
            texts.append(quantity(empty_docs, "documents"))
        if not texts:
            return ""
        return f"the tower reads no word of {' and '.join(texts)}: nothing is learned from them, and what they find is chance"

    def _unranked(self) -> str:
        """Return a sentence about documents that are only negatives; "" if there are none."""
        count = int((self.texts.catalogue.doc_first >= len(self.texts.split.pairs)).sum())
        if not count:
            return ""
        return f"{count:,} of the documents are negatives alone: they are searched, but no evaluation ranks them"

    def preview(self) -> dict[str, Any]:
        """Return three rows, lengths, repeats, and negatives of a query."""
        texts = self.texts
        return summary(texts.catalogue, texts.split.train, texts.queries, texts.docs)

    def searched(self) -> Searched:
        """Return the searched documents with their vectors and the index of their words."""
        words = self.held_out.words_of_all()
        tables = {} if words is None else {WORDS: words.table()}
        del words
        give_back()  # counting words takes as much memory as the vectors
        vectors = self.held_out.vectors()
        documents = self.texts.catalogue.table()
        return Searched(vectors, documents, self.data.tower.normalised, tables)

    def trained_on(self) -> dict[str, NDArray[np.int64]]:
        """Return the ids of the forms of all texts of the training rows, in whatever role."""
        return {TRAINED: self.texts.split.trained_texts}

    def reopened(self, folder: Path) -> float:
        """Save the tower, open it as a user would, and return the largest difference in any number
        of the vectors."""
        tower, catalogue = self.data.tower, self.texts.catalogue
        role: Role = "doc"
        every = catalogue.docs
        if tower.guarded:  # an index has no model of documents
            role, every = "query", catalogue.queries
        texts = every[: min(8, len(every))]
        tower.save(folder)
        here = tower.encode(tower.features(texts, None, role), role).numpy()
        return float(np.abs(load(folder, role)(texts) - here).max())

    def examples(
        self, systems: Mapping[str, SystemScores], count: int = 10, shown: int = 5
    ) -> list[Example]:
        """Return held-out queries at random, with the documents that the trained model returns."""
        questions = self.held_out.questions["test"]
        pairs, corpus = self.texts.split.pairs, self.texts.split.corpus
        relevant = questions.relevant
        trained, bm25 = systems["trained"], systems.get("bm25")
        assert isinstance(trained, Ranking) and isinstance(bm25, Ranking | None)
        rank = trained.first_right(relevant)  # 0 for none
        baseline_rank = np.zeros_like(rank) if bm25 is None else bm25.first_right(relevant)
        is_right = relevant.gains(trained.ranked) > 0
        queries = np.random.default_rng(self.held_out.seed).permutation(len(questions.rows))[:count]
        scores = self._scores(queries, trained.ranked[queries, :shown])
        examples = list[Example]()
        for i, query in enumerate(queries):
            top = corpus[trained.ranked[query, :shown]]
            labels = pairs.labels(top)
            places = pairs.texts("place", top)
            hits = list[Hit]()
            for j, (label, place) in enumerate(zip(labels, places, strict=True)):
                hits.append(Hit(label, place, float(scores[i, j]), bool(is_right[query, j])))
            answers = corpus[relevant.doc[relevant.query == query]]
            examples.append(
                Example(
                    query=questions.queries[query],
                    answers=tuple(pairs.labels(answers)),
                    hits=tuple(hits),
                    baseline_rank=int(baseline_rank[query]) or None,
                    rank=int(rank[query]) or None,
                )
            )
        return examples

    def _scores(self, queries: Rows, ranked: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return similarities of queries and their ranked documents, [q, k]."""
        questions = self.held_out.questions["test"]
        a = self.data.remembered(questions.query_of[questions.rows[queries]], "query")
        b = self.data.remembered(self.texts.ranked[ranked.ravel()]).reshape(*ranked.shape, -1)
        similarities: NDArray[np.float32] = np.einsum("qd,qkd->qk", a, b)
        return similarities
