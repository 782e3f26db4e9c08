"""Mining of hard negatives from a file of pairs into a file, block by block, resumed after an
interruption."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import xxhash
from numpy.typing import NDArray

from ...arguments import refuse_other_kinds
from ...errors import DataError, OutputError
from ...forms.roles import Roles
from ...io.atomic import as_output_error, new_file, refuse_replacing
from ...io.console import logger, progress_bar
from ...io.lock import alone
from ...mining.embed import StoredEmbeddings, embed_by
from ...mining.embedder import Reading, in_half
from ...mining.guide import CrossEncoder
from ...mining.hard_negatives import BLOCK, Cross, Mined, Mining, mine_blocks, sampled_queries
from ...mining.indexed_shards import QUERIES, SAMPLED, IndexedShards
from ...mining.search import Ints, Pairs, by_faiss
from ...mining.shard_search import ShardDocuments
from ...mining.shortfall import Report, cpu_time
from ...mining.unfinished import IndexSetting, read_block, with_report
from ...task.run_files import FAISS_FILE
from ...towers.saved import fingerprint, model_folder, similarity_of
from .mining_task import DistinctTexts, MiningTask

RECALL = 0.9  # of the nearest documents, that an index has to find
_TUNING = "search.json"  # among the finished blocks


def mine(
    model: str | Path,
    pairs: str | Path | MiningTask,
    output: str | Path,
    options: Mining | None = None,
    *,
    corpus: str | Path | None = None,
    split: str = "train",
    roles: Roles | None = None,
    cross_encoder: str | Path | None = None,
    faiss: str | None = None,
    recall: float = RECALL,
    cache: str | Path | None = None,
    mixed_precision: Reading = "no",
    overwrite: bool = False,
) -> Report:
    """Mine hard negatives and write a Parquet file in the layout of training data: a row a query,
    with lists.

    The same call resumes a killed call: vectors and scores of the cross-encoder are in the cache,
    finished blocks beside the output.

    Args:
        model: a model folder or a run folder.
        pairs: a table of pairs or a BEIR folder; or a task with a corpus.
        output: the Parquet file to write.
        options: number of negatives, ranks and margins; None is `Mining()`.
        corpus: a table or BEIR folder whose documents are candidates too; or an encoded corpus of
            the same model, whose vectors are read shard by shard.
        split: split to read from a BEIR folder.
        roles: roles of the table's columns; None goes by usual names.
        cross_encoder: folder of a cross-encoder that checks the documents of high rank.
        faiss: an index factory such as HNSW32; of an encoded corpus, the folder of the index that
            `tempera export` has made of it. None searches exactly.
        recall: least share of the nearest documents that the index of an encoded corpus finds: it
            visits more clusters until a sample of queries, compared exactly, shows this share.
        cache: folder of vectors; None is `vectors` beside the output.
        mixed_precision: "auto" reads texts in bf16 where the processor multiplies it fast; the
            search stays in float32.
        overwrite: replace the output.

    Raises:
        DataError: unreadable data, an unreadable model, or no pairs.
        OutputError: the output exists, is an input, lies in a run or model, is not called .parquet,
            is written by another process, or cannot be written.

    >>> report = mine("runs/first", "pairs.jsonl", "runs/mined.parquet", Mining(negatives=2, relative_margin=0.05))
    >>> report.queries
    100
    """
    refuse_other_kinds(mine, locals())
    model = model_folder(Path(model))
    output = Path(output)
    options = options or Mining()
    if isinstance(pairs, MiningTask):
        task = pairs
    else:
        task = MiningTask.read(Path(pairs), roles, None if corpus is None else Path(corpus), split)
    cross_encoder = None if cross_encoder is None else Path(cross_encoder)
    models = [model] if cross_encoder is None else [model, cross_encoder]
    refuse_replacing(output, overwrite, *task.read_from, models=models)
    if output.suffix.lower() != ".parquet":
        raise OutputError(
            f"cannot write hard negatives to {output}; give a name that ends in .parquet"
        )
    if not len(task.answers[0]):
        raise DataError("no pairs to mine negatives for")
    encoded = task.docs.encoded
    if encoded is not None:
        encoded.shards.stamp.refuse_other(fingerprint(model), Path(encoded.shards.place.address))
    cache = Path(cache or output.parent / "vectors")
    half = in_half(mixed_precision)
    plan: list[Any] = [fingerprint(model), task.key(), asdict(options), faiss, BLOCK, half]
    if similarity_of(model) != "cosine":
        plan.append("dot")
    if encoded is not None:
        plan.append(encoded.shards.options)
        if faiss is not None:
            plan += [recall, _state(Path(faiss) / FAISS_FILE)]
    plan.append(None if cross_encoder is None else fingerprint(cross_encoder))
    digest = xxhash.xxh3_64_hexdigest(json.dumps(plan).encode())
    parts = output.parent / f".{output.name}.{digest}"  # a folder of the finished blocks
    busy = f"{output}: another process is writing it; wait for it, or give another --output"
    with as_output_error(output), alone(output.with_name(f".{output.name}.lock"), busy):
        refuse_replacing(output, overwrite)  # another process may have finished in between
        total = -(-len(task.queries.ids) // BLOCK)
        first = 0  # block that is not written yet
        while first < total and _part(parts, first).exists():
            first += 1
        if first < total:
            index = None if faiss is None else ChosenIndex(faiss, recall, parts / _TUNING)
            mined = _mined(model, task, options, cross_encoder, index, cache, half, first)
            blocks = progress_bar("mining", total, "block", first, mined)
            began = time.process_time()
            for number, block in enumerate(blocks, first):
                table = _table(task, block, number * BLOCK)
                now = time.process_time()
                report = replace(block.report, cpu_seconds=now - began)
                began = now
                with new_file(_part(parts, number)) as partial:  # makes the folder with the first
                    parquet.write_table(with_report(table, report), partial)
        report = _joined(parts, output, total, _schema(task))
        if (parts / _TUNING).is_file():
            report = replace(report, recall=IndexSetting.read(parts / _TUNING).recall)
        shutil.rmtree(parts)
    return replace(report, left_out=dict(task.left_out))


def _state(path: Path) -> list[int]:
    """Return the size and the time of a file, which differ once it is written again; nothing
    without a file."""
    if not path.is_file():
        return []
    about = path.stat()
    return [about.st_size, about.st_mtime_ns]


@dataclass(frozen=True)
class ChosenIndex:
    """An index to search by.

    Args:
        name: an index factory, or the folder of an exported index.
        recall: that the exported index has to reach.
        tuning: file of the number of clusters that it visits, for a call that resumes.
    """

    name: str
    recall: float
    tuning: Path


def _mined(
    model: Path,
    task: MiningTask,
    options: Mining,
    cross_encoder: Path | None,
    index: ChosenIndex | None,
    cache: Path,
    half: bool,
    first: int,
) -> Iterator[Mined]:
    """Return an iterator over the mined blocks of queries, from block `first` on."""
    queries = embed_by(
        model, "query", task.queries.texts, cache, progress="reading queries", half=half
    )
    cross = None if cross_encoder is None else _cross(CrossEncoder.of(cross_encoder, cache), task)
    answers = task.answers
    itself = task.itself
    if task.docs.encoded is not None:
        shards = _encoded(model, task.docs, cache, half)
        documents: ShardDocuments | IndexedShards = shards
        if index is not None:
            documents = _indexed(shards, index, task, queries, options)
        return mine_blocks(queries, documents, answers, options, itself, cross, None, first)
    docs = embed_by(model, "doc", task.docs.texts, cache, progress="reading documents", half=half)
    # Rows of a store may lie in any order; documents are read again for every block of queries.
    in_order = np.array_equal(docs.rows, np.arange(len(docs)))
    vectors = docs.vectors[: len(docs)] if in_order else docs.vectors[docs.rows]
    search = None if index is None else by_faiss(np.asarray(vectors, np.float32), index.name)
    return mine_blocks(queries, vectors, answers, options, itself, cross, search, first)


def _encoded(model: Path, docs: DistinctTexts, cache: Path, half: bool) -> ShardDocuments:
    """Return the documents of an encoded corpus, and before them those of the pairs; of a text that
    the corpus has, too, the vector is read."""
    assert docs.encoded is not None
    shards = docs.encoded.shards
    near = np.empty((len(docs.texts), shards.width), np.float32)
    new = np.flatnonzero(docs.known < 0)
    if len(new):
        texts = [docs.texts[position] for position in new]
        read = embed_by(model, "doc", texts, cache, progress="reading documents", half=half)
        near[new] = read[:]
    rising = np.argsort(docs.known, kind="stable")
    rows = docs.known[rising]
    for here, vectors in shards.taken(rows):  # straight into place, since the answers may be many
        near[rising[here]] = vectors
    return ShardDocuments(near, shards, docs.rows)


def _indexed(
    documents: ShardDocuments,
    index: ChosenIndex,
    task: MiningTask,
    queries: StoredEmbeddings,
    options: Mining,
) -> IndexedShards:
    """Return documents with an index that visits as many clusters as its recall needs, and say the
    recall and the expected time."""
    indexed = IndexedShards.read(documents, task.docs.known, Path(index.name))
    if index.tuning.is_file():
        setting = IndexSetting.read(index.tuning)
        return replace(indexed, probes=min(setting.probes, indexed.index.nlist))
    sample, without = sampled_queries(queries, task.answers, task.itself, SAMPLED)
    indexed, recall = indexed.tuned(sample, options.depth, without, index.recall)
    seconds = indexed.cpu_seconds(sample, options.depth, without, len(queries), BLOCK * QUERIES)
    logger.info(
        f"the index visits {indexed.probes:,} of {indexed.index.nlist:,} clusters, and finds {recall:.1%} of the "
        f"{options.depth:,} nearest documents of {len(sample):,} queries; all {len(queries):,} are to take about "
        f"{cpu_time(seconds)} of a CPU"
    )
    IndexSetting(indexed.probes, recall).write(index.tuning)
    return indexed


def _cross(encoder: CrossEncoder, task: MiningTask) -> Cross:
    """Return a function from positions of queries and documents to scores of a cross-encoder."""

    def score(pairs: Pairs) -> NDArray[np.float32]:
        queries, docs = pairs
        texts = zip(task.queries.take(queries), task.docs.take(docs), strict=True)
        return encoder(list(texts))

    return score


def _table(task: MiningTask, block: Mined, start: int) -> pa.Table:
    """Return the rows of a block of queries that begins with query `start`."""
    count = len(block.positions)
    query_of, doc_of = task.answers
    low, high = np.searchsorted(query_of, (start, start + count))
    answers = doc_of[low:high]
    is_filled = block.positions >= 0
    negatives = block.positions[is_filled]
    positive_columns = {
        "positive_ids": task.docs.shown.take(pa.array(answers)),
        "positives": task.docs.take(answers),
        "positive_scores": block.answer_scores,
    }
    negative_columns = {
        "negative_ids": task.docs.shown.take(pa.array(negatives)),
        "negatives": task.docs.take(negatives),
        "negative_scores": block.scores[is_filled],
        "negative_ranks": block.ranks[is_filled],
    }
    positives_of = np.bincount(query_of[low:high] - start, minlength=count)
    queries = task.queries.texts[start : start + count]
    columns = {
        "query_id": task.queries.shown.slice(start, count),
        "query": pa.array(queries, pa.large_string()),
    }
    schema = _schema(task)
    for by_name, counts in (
        (positive_columns, positives_of),
        (negative_columns, is_filled.sum(1)),
    ):
        for name, values in by_name.items():
            array = pa.array(values, schema.field(name).type.value_type)
            columns[name] = pa.ListArray.from_arrays(_offsets(counts), array)
    return pa.table(columns, schema)


def _schema(task: MiningTask) -> pa.Schema:
    """Return the columns of the file, with the ids of the source if the source has ids."""
    text = pa.large_string()
    score = pa.float32()
    return pa.schema(
        [
            ("query_id", task.queries.shown.type),
            ("query", text),
            ("positive_ids", pa.list_(task.docs.shown.type)),
            ("positives", pa.list_(text)),
            ("positive_scores", pa.list_(score)),
            ("negative_ids", pa.list_(task.docs.shown.type)),
            ("negatives", pa.list_(text)),
            ("negative_scores", pa.list_(score)),
            ("negative_ranks", pa.list_(pa.int32())),
        ]
    )


def _offsets(counts: Ints) -> pa.Array:
    return pa.array(np.concatenate([[0], counts.cumsum()]), pa.int32())


def _joined(parts: Path, output: Path, total: int, schema: pa.Schema) -> Report:
    """Write all blocks as one file, and return the sum of their reports."""
    report = Report()
    with new_file(output) as partial, parquet.ParquetWriter(partial, schema) as writer:
        for number in range(total):
            block, of_block = read_block(_part(parts, number), schema)
            report += of_block
            writer.write_table(block)
    return report


def _part(parts: Path, number: int) -> Path:
    return parts / f"{number:06d}.parquet"
