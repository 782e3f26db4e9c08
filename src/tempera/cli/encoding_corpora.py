"""The command that encodes a corpus in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import TemperaError
from .shared import Json, answer, say

_MINUTE = 60.0


def encode(
    model: str,
    corpus: Annotated[list[str], typer.Argument(metavar="CORPUS...")],
    output: Annotated[str | None, typer.Option("--output", "-o")] = None,
    text: Annotated[list[str] | None, typer.Option(metavar="COLUMN")] = None,
    id: Annotated[str | None, typer.Option(metavar="COLUMN")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B")] = None,
    dtype: Literal["float32", "float16", "int8"] = "float32",
    role: Literal["doc", "query"] = "doc",
    mixed_precision: Literal["no", "bf16"] = "no",
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    worker: Annotated[str | None, typer.Option(metavar="I/N")] = None,
    engine: Literal["own", "ray"] = "own",
    dry_run: bool = False,
    price: Annotated[float | None, typer.Option(min=0)] = None,
    as_json: Json = False,
) -> None:
    """Encode a corpus of texts in shards into shards of vectors.

    Each shard becomes a Parquet file with the same rows and row groups, and the columns id and
    embedding. The same command resumes an interrupted encoding.

    Args:
        model: folder of a saved model or of a run, or a name of the Hugging Face hub.
        corpus: tables (Parquet, Arrow, JSON lines, CSV), folders of tables, patterns with *, data
            sets of save_to_disk, or addresses such as s3://bucket/corpus.
        output: folder of the vectors, or address in an object store.
        text: column of the texts; several are joined by a space (default: usual names).
        id: column of the ids (default: usual names, or else shard and row).
        columns: columns to keep beside the vectors.
        dtype: type of the stored numbers.
        role: texts are documents, or queries.
        mixed_precision: bf16 computes a transformer in bf16.
        workers: number of processes on this machine; with --engine ray, most at once.
        worker: this process is number I, from 0, of N workers, as in an array of jobs.
        engine: ray schedules the shards as a job of Ray Data.
        dry_run: measure a minute, and show the seconds and bytes of all; write nothing.
        price: price of an hour of a worker, for --dry-run.
    """
    from ..corpora.encoding import encode_corpus, launched_share
    from ..corpora.encoding_job import EncodingJob, EncodingOptions

    if price is not None and not dry_run:
        raise TemperaError("--price is for --dry-run: give both")
    if output is None and not dry_run:
        raise TemperaError("give --output FOLDER, or --dry-run")
    kept = [] if columns is None else [name.strip() for name in columns.split(",") if name.strip()]
    options = EncodingOptions(
        tuple(text or ()), id, tuple(kept), dtype, role, mixed_precision == "bf16"
    )
    job = EncodingJob(model, tuple(corpus), output or "", options)
    if dry_run:
        from ..corpora.encoding_plan import estimate

        expected = estimate(job, workers or 1, price)
        answer(expected.json(), as_json, lambda: say(str(expected)))
        return
    document, totals = encode_corpus(job, workers, worker, engine)
    about: dict[str, Any] = {"output": _absolute(output or ""), **totals.json()}
    about["complete"] = document is not None
    if document is not None:
        about["shards"] = len(document["shards"])
        about["rows_in_all"] = document["rows"]
        about["dimensions"] = document["model"]["dimensions"]
    launched = launched_share()
    if worker is not None or launched is None or launched.number == 0:
        answer(about, as_json, lambda: say(_line(about)))


def _absolute(output: str) -> str:
    return output if "://" in output else str(Path(output).absolute())


def _line(about: dict[str, Any]) -> str:
    """Return the outcome in a line."""
    if not about["complete"]:
        return f"{about['output']}: this worker is done, and others are not"
    return (
        f"{about['output']}: {about['rows_in_all']:,} rows of {about['dimensions']} numbers in "
        f"{about['shards']:,} shards"
    )
