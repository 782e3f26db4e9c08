"""A corpus encoded in shards, and its search by words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from ..arguments import refuse_other_kinds
from ..corpora.encoding import Engine, encode_corpus
from ..corpora.encoding_job import EncodingJob, EncodingOptions
from ..corpora.encoding_model import EncodingModel
from ..corpora.manifest_form import Stored
from ..corpora.many_shards import EncodedShards
from ..corpus.index import Found
from ..corpus.layout import refuse_depth
from ..errors import DataError, TemperaError
from ..exports.shards_to_faiss import KIND, export_shards
from ..io.texts import encodable

Paths = str | Path | Sequence[str | Path]


class EncodedCorpus(EncodedShards):
    """Open a folder that `tempera encode` has finished, for searches in its vectors.

    Args:
        folder: path, or address in an object store.
        model: folder or name of the model, where it is no longer where it was; by its fingerprint
            it has to be the same.

    Raises:
        DataError: no such folder, an unfinished one, or a damaged manifest.

    >>> corpus = encode("runs/first", "pairs.jsonl", "vectors", text="doc")
    >>> hits = EncodedCorpus("vectors").search("where is ada of bob", k=2)
    >>> len(hits), hits[0].id.startswith("pairs:")
    (2, True)
    """

    def __init__(self, folder: str | Path, model: str | Path | None = None) -> None:
        super().__init__(str(folder))
        self._model = str(model or self.model["name"])

    def __repr__(self) -> str:
        return f"EncodedCorpus({self.place.address!r}): {len(self):,} rows in {len(self.names):,} shards"

    @cached_property
    def queries(self) -> EncodingModel:
        """The model of the vectors, for queries.

        Raises:
            DataError: there is no such model, or it is another one.
        """
        model = EncodingModel(self._model, "query", bool(self.options.get("half")))
        self.stamp.refuse_other(model.fingerprint, Path(self.place.address))
        return model

    @overload
    def search(self, query: str, k: int = ...) -> list[Found]: ...
    @overload
    def search(self, query: list[str], k: int = ...) -> list[list[Found]]: ...
    def search(self, query: str | list[str], k: int = 10) -> list[Found] | list[list[Found]]:
        """Return the k rows nearest to a query, best first; for a list of queries, the rows of each,
        in one pass over the shards.

        Every vector is compared, shard by shard, in memory that does not grow with the rows.

        Args:
            query: a text, or a list of texts.
            k: number of rows for each query.

        Raises:
            DataError: an empty query, no model, or a shard that is missing, damaged or of another
                model.
        """
        refuse_depth(k)
        refuse_other_kinds(EncodedCorpus.search, locals())
        texts = [query] if isinstance(query, str) else list(query)
        if not all(text.strip() for text in texts):
            raise DataError("the query is empty; give words to search for")
        scores, positions = self.nearest(self.queries([encodable(text) for text in texts]), k)
        every = self._hits(scores, positions)
        return every[0] if isinstance(query, str) else every

    def export(
        self,
        to: str = "faiss",
        output: str | Path | None = None,
        kind: str = KIND,
        overwrite: bool = False,
    ) -> dict[str, Any]:
        """Write the vectors as an approximate index of FAISS, shard by shard; return facts about
        the index, with the share of exact neighbours among its hits.

        See `tempera.exports.shards_to_faiss.export_shards`.
        """
        refuse_other_kinds(EncodedCorpus.export, locals())
        folder = None if output is None else Path(output)
        return export_shards(self, to, folder, kind, overwrite)

    def _hits(self, scores: NDArray[np.float32], positions: NDArray[np.int64]) -> list[list[Found]]:
        """Return the rows at some positions, with scores, [q, k] each."""
        distinct = np.unique(positions)
        rows = dict(zip(distinct.tolist(), self.rows(distinct), strict=True))
        texts = self.options["text"]
        every = []
        for of_query, places in zip(scores.tolist(), positions.tolist(), strict=True):
            hits = []
            for rank, (score, position) in enumerate(zip(of_query, places, strict=True), 1):
                row = rows[position]
                parts = [row["columns"].get(name) or "" for name in texts]
                text = " ".join(str(part) for part in parts if part)
                place = f"{row['shard']} row {row['row'] + 1}"
                name = "" if text else row["id"]
                hits.append(Found(row["id"], name, place, text, row["columns"], rank, score))
            every.append(hits)
        return every


def encode(
    model: str | Path,
    corpus: Paths,
    output: str | Path,
    text: str | Sequence[str] = (),
    id: str | None = None,
    columns: Sequence[str] = (),
    dtype: Stored = "float32",
    role: Literal["doc", "query"] = "doc",
    mixed_precision: Literal["no", "bf16"] = "no",
    workers: int | None = None,
    engine: Engine = "own",
) -> EncodedCorpus:
    """Write the vectors of a corpus of texts, shard by shard, and return the corpus of vectors.

    Each shard of texts becomes a Parquet file with the same rows, in the same order and row groups,
    and the columns `id` and `embedding`. In memory is one row group. A shard appears whole or not
    at all, so that the same call resumes after an interruption.

    Args:
        model: folder of a saved model or of a run, or a name of the Hugging Face hub.
        corpus: a table, a folder of tables, a pattern with *, a data set of `save_to_disk`, an
            address of fsspec such as s3://bucket/corpus, or a list of these.
        output: folder, or address in an object store.
        text: column of the texts, or several, joined by a space; without it, a column with a usual
            name, behind a column of titles if there is one.
        id: column of the ids; without it, a column with a usual name, or else the name of the shard
            and the number of the row.
        columns: to keep beside the vectors.
        dtype: of the stored numbers: float32, float16, or int8 as multiples of a 127th of a row's
            largest number.
        role: of the texts, for a model that reads queries otherwise than documents.
        mixed_precision: bf16 has a transformer compute in bf16.
        workers: number of processes; of Ray, most at once.
        engine: "ray" has Ray Data schedule the shards on a cluster.

    Raises:
        TemperaError: no model, no corpus, a column that is missing or holds no texts, an output
            that holds something else, or vectors of another model, option or input.

    >>> corpus = encode("runs/first", "pairs.jsonl", "vectors", text="doc")
    >>> len(corpus), corpus.width
    (100, 16)
    """
    refuse_other_kinds(encode, locals())
    several = [corpus] if isinstance(corpus, str | Path) else list(corpus)
    options = EncodingOptions(
        (text,) if isinstance(text, str) else tuple(text),
        id,
        tuple(columns),
        dtype,
        role,
        mixed_precision == "bf16",
    )
    job = EncodingJob(str(model), tuple(str(each) for each in several), str(output), options)
    document, _ = encode_corpus(job, workers, engine=engine)
    if document is None:
        raise TemperaError(f"{output} is not finished: other workers have shards in work")
    return EncodedCorpus(output)
