"""A saved model as a model of MTEB: as an encoder, or as a search by words and vectors together.

Letters in shapes: n texts, q queries, c documents, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...mining.embedder import Embedder, Vectors, encode_all
from ...ranking.filtered import best_among
from ...ranking.fusion import fused
from ...ranking.nearest import top_of
from .hybrid import scores_of_both
from .lexical import BM25, Lexical

_BATCH = 1024  # texts that MTEB hands over at once; all of a call are encoded together


class MtebEncoder:
    """Encode the texts of MTEB's tasks by a model, which is what `EncoderProtocol` asks for.

    Queries get the side of queries, with its prefix and its length; documents, and the texts of
    tasks without queries, get the side of documents.

    Args:
        model: the model.
        meta: MTEB's description of the model.
    """

    def __init__(self, model: Embedder, meta: Any) -> None:
        self.model = model
        self.mteb_model_meta = meta

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: Any = None, **_: Any
    ) -> Vectors:
        """Return the vectors of all texts of MTEB's batches, [n, D]."""
        texts = list[str]()
        for batch in inputs:
            texts += batch["text"]
        return self.vectors(texts, prompt_type)

    def vectors(self, texts: Sequence[str], prompt_type: Any) -> Vectors:
        """Return the vectors of texts, [n, D]; see `encode`."""
        from mteb.types import PromptType

        column = pa.chunked_array([pa.array(texts, pa.large_string())])
        if prompt_type == PromptType.query:
            return encode_all(self.model.query, column, "queries")
        return encode_all(self.model.doc, column, "documents")

    def similarity(self, first: Any, second: Any) -> Any:
        """Return all inner products of two arrays of vectors, which are the model's similarity, as
        a tensor, [q, c]."""
        import torch

        return torch.as_tensor(first) @ torch.as_tensor(second).T

    def similarity_pairwise(self, first: Any, second: Any) -> Any:
        """Return the inner products of vectors of equal rows, as a tensor, [n]."""
        import torch

        return (torch.as_tensor(first) * torch.as_tensor(second)).sum(-1)


class MtebHybrid:
    """Search the corpora of MTEB's tasks by words (BM25) and vectors together, which is what
    `SearchProtocol` asks for.

    Scores are those of `tempera search --hybrid`: weighted standard deviations above the mean of
    the corpus.

    Args:
        encoder: the model's encoder.
        weight: of the vectors, from 0 to 1.
        meta: MTEB's description of the model.
    """

    def __init__(self, encoder: MtebEncoder, weight: float, meta: Any) -> None:
        self.encoder = encoder
        self.weight = weight
        self.mteb_model_meta = meta
        self.ids: list[str] = []
        self.docs: Vectors = np.empty((0, 0), np.float32)  # [c, D]
        self.words: BM25 | None = None

    def index(self, corpus: Any, *, task_metadata: Any, **_: Any) -> None:
        """Embed the documents of a task, and index their words."""
        from mteb.types import PromptType

        texts = _texts(corpus, task_metadata, PromptType.document)
        self.ids = list(corpus["id"])
        self.docs = self.encoder.vectors(texts, PromptType.document)
        self.words = Lexical(texts).index()

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Return the scores of the best documents of each query, by ids.

        Args:
            queries: rows with id and text.
            task_metadata: of the task.
            top_k: number of documents for each query.
            top_ranked: ids of the only documents that a query ranks, by the query's id; None ranks
                the corpus.
        """
        from mteb.types import PromptType

        assert self.words is not None, "MTEB indexes a corpus before it searches it"
        texts = _texts(queries, task_metadata, PromptType.query)
        vectors = self.encoder.vectors(texts, PromptType.query)
        scores = _each_query(vectors, self.docs, texts, self.words, self.weight)
        places = {name: place for place, name in enumerate(self.ids)}
        every: dict[str, dict[str, float]] = {}
        for query, row in zip(queries["id"], scores, strict=True):
            if top_ranked is None:
                best, positions = top_of(row[None], top_k)
            else:
                among = np.array(sorted(places[name] for name in top_ranked[query]), np.int64)
                best, positions = best_among(row[None], top_k, among)
            names = [self.ids[position] for position in positions[0].tolist()]
            every[query] = dict(zip(names, best[0].tolist(), strict=True))
        return every


def _each_query(
    queries: Vectors, docs: Vectors, texts: Sequence[str], words: BM25, weight: float
) -> Iterable[NDArray[np.float64]]:
    """Yield the fused scores of all documents, [c], of one query after the other."""
    for by_vectors, by_words in scores_of_both(queries, docs, texts, words):
        yield from fused(by_vectors, by_words, weight)


def _texts(rows: Any, task_metadata: Any, prompt_type: Any) -> list[str]:
    """Return the texts of a task as MTEB hands them to encoders: documents with their titles,
    queries with their instructions."""
    from mteb._create_dataloaders import create_dataloader

    loader = create_dataloader(
        rows, task_metadata=task_metadata, prompt_type=prompt_type, batch_size=_BATCH
    )
    texts = list[str]()
    for batch in loader:
        texts += batch["text"]
    return texts
