"""Mining of hard negatives from a file of pairs into a file, block by block, resumed after an
interruption."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import xxhash
from numpy.typing import NDArray

from ...arguments import refuse_other_kinds
from ...errors import DataError, OutputError
from ...io.atomic import as_output_error, new_file, refuse_replacing
from ...io.console import progress_bar
from ...io.documents import parsed
from ...io.lock import alone
from ...mining.embed import embed_by
from ...mining.embedder import Reading, in_half
from ...mining.guide import CrossEncoder
from ...mining.hard_negatives import BLOCK, Cross, Mined, Mining, mine_blocks
from ...mining.search import Ints, Pairs, by_faiss
from ...mining.shortfall import Report
from ...tables.tables import parquet_table
from ...towers.saved import fingerprint, model_folder, similarity_of
from ..read.roles import Roles
from .mining_task import MiningTask


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
    cache: str | Path | None = None,
    mixed_precision: Reading = "no",
    overwrite: bool = False,
) -> Report:
    """Mine hard negatives and write a Parquet file in the layout that training reads: a row a
    query, with lists.

    A call that was killed is resumed by the same call: vectors and scores of the cross-encoder are
    in the cache, finished blocks beside the output.

    Args:
        model: a model folder or a run folder.
        pairs: a table of pairs or a BEIR folder; or a task, which has its corpus.
        output: the Parquet file to write.
        options: number of negatives, ranks and margins; None is `Mining()`.
        corpus: a table or BEIR folder whose documents are candidates too.
        split: split to read from a BEIR folder.
        roles: roles of the table's columns; None goes by usual names.
        cross_encoder: folder of a cross-encoder that checks what the model has ranked high.
        faiss: an index factory such as HNSW32; None searches exactly.
        cache: folder of vectors; None is `vectors` beside the output.
        mixed_precision: "auto" reads texts in bf16 where the processor multiplies it fast; the
            search stays in float32.
        overwrite: replace the output.

    Raises:
        DataError: data or a model that cannot be read, or no pairs.
        OutputError: the output exists, is one of the files that were read, lies in a run or model,
            is not called .parquet, is written by another process, or cannot be written.

    >>> report = mine("runs/first", "pairs.jsonl", "runs/mined.parquet", Mining(negatives=2, relative_margin=0.05))
    >>> report.queries
    100
    """
    refuse_other_kinds(mine, locals())
    model, output, options = (
        model_folder(Path(model)),
        Path(output),
        Mining() if options is None else options,
    )
    more = None if corpus is None else Path(corpus)
    task = (
        pairs if isinstance(pairs, MiningTask) else MiningTask.read(Path(pairs), roles, more, split)
    )
    models = [model] if cross_encoder is None else [model, cross_encoder]
    refuse_replacing(output, overwrite, *task.read_from, models=models)
    if output.suffix.lower() != ".parquet":
        raise OutputError(
            f"cannot write hard negatives to {output}; give a name that ends in .parquet"
        )
    if not len(task.answers[0]):
        raise DataError("no pairs to mine negatives for")
    cross_encoder = None if cross_encoder is None else Path(cross_encoder)
    cache = Path(cache or output.parent / "vectors")
    half = in_half(mixed_precision)
    plan = [fingerprint(model), task.key(), asdict(options), faiss, BLOCK, half]
    plan += [] if similarity_of(model) == "cosine" else ["dot"]
    plan.append(None if cross_encoder is None else fingerprint(cross_encoder))
    parts = output.parent / f".{output.name}.{xxhash.xxh3_64_hexdigest(json.dumps(plan).encode())}"
    busy = f"{output}: another process is writing it; wait for it, or give another --output"
    with as_output_error(output), alone(output.with_name(f".{output.name}.lock"), busy):
        refuse_replacing(output, overwrite)  # another process may have finished in between
        for number, block in _blocks(
            model, task, options, cross_encoder, faiss, cache, half, parts
        ):
            table = _table(task, block, number * BLOCK)
            about = {"report": json.dumps(asdict(block.report))}
            with new_file(_part(parts, number)) as partial:  # makes the folder with the first
                parquet.write_table(table.replace_schema_metadata(about), partial)
        report = _joined(parts, output, -(-len(task.queries.ids) // BLOCK), _schema(task))
        shutil.rmtree(parts)
    return replace(report, left_out=dict(task.left_out))


def _blocks(
    model: Path,
    task: MiningTask,
    options: Mining,
    cross_encoder: Path | None,
    faiss: str | None,
    cache: Path,
    half: bool,
    parts: Path,
) -> Iterator[tuple[int, Mined]]:
    """Yield the blocks that are not written yet, with their numbers."""
    total = -(-len(task.queries.ids) // BLOCK)
    first = next((number for number in range(total) if not _part(parts, number).exists()), total)
    if first == total:
        return
    queries = embed_by(
        model, "query", task.queries.texts, cache, progress="reading queries", half=half
    )
    docs = embed_by(model, "doc", task.docs.texts, cache, progress="reading documents", half=half)
    # Rows of a store may lie in any order; documents are read again for every block of queries.
    in_order = np.array_equal(docs.rows, np.arange(len(docs)))
    vectors = docs.vectors[: len(docs)] if in_order else docs.vectors[docs.rows]
    search = None if faiss is None else by_faiss(np.asarray(vectors, np.float32), faiss)
    cross = None if cross_encoder is None else _cross(CrossEncoder.of(cross_encoder, cache), task)
    mined = mine_blocks(queries, vectors, task.answers, options, task.itself, cross, search, first)
    yield from enumerate(progress_bar("mining", total, "block", first, mined), first)


def _cross(encoder: CrossEncoder, task: MiningTask) -> Cross:
    def score(pairs: Pairs) -> NDArray[np.float32]:
        texts = [
            (task.queries.texts[q], task.docs.texts[d])
            for q, d in zip(*(side.tolist() for side in pairs))
        ]
        return encoder(texts)

    return score


def _table(task: MiningTask, block: Mined, start: int) -> pa.Table:
    """Return the rows of one block of queries, the first of which is query `start`."""
    count = len(block.positions)
    of_block = slice(*np.searchsorted(task.answers[0], (start, start + count)))
    rows, answers = task.answers[0][of_block] - start, task.answers[1][of_block]
    filled = block.positions >= 0
    positive = _offsets(np.bincount(rows, minlength=count))
    negative = _offsets(filled.sum(1))
    chosen = block.positions[filled]
    lists = [
        (positive, task.docs.shown.take(pa.array(answers))),
        (positive, [task.docs.texts[d] for d in answers]),
        (positive, block.answer_scores),
        (negative, task.docs.shown.take(pa.array(chosen))),
        (negative, [task.docs.texts[d] for d in chosen]),
        (negative, block.scores[filled]),
        (negative, block.ranks[filled]),
    ]
    schema = _schema(task)
    columns = [
        pa.ListArray.from_arrays(offsets, pa.array(values, field.type.value_type))
        for (offsets, values), field in zip(lists, list(schema)[2:], strict=True)
    ]
    queries = task.queries.texts[start : start + count]
    return pa.table(
        [task.queries.shown.slice(start, count), pa.array(queries, pa.large_string()), *columns],
        schema,
    )


def _schema(task: MiningTask) -> pa.Schema:
    """Return the columns of the file, whose ids are those of the source where it has any."""
    text, score = pa.large_string(), pa.float32()
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
    """Write all parts as one file, and return the sum of their reports."""
    report = Report()
    with new_file(output) as partial, parquet.ParquetWriter(partial, schema) as writer:
        for number in range(total):
            part = parquet_table(_part(parts, number))
            report += Report(**parsed(part.schema.metadata[b"report"]))
            writer.write_table(part.replace_schema_metadata(None))
    return report


def _part(parts: Path, number: int) -> Path:
    return parts / f"{number:06d}.parquet"
