"""An encoding as a job of Ray Data: Ray schedules shards, and starts a lost one again on another
machine; everything else is as without Ray."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..errors import TemperaError
from ..io.require import require
from .corpus_worker import EncodedPart, Tell, clear
from .encoding_job import EncodingJob

# Ray would send figures on its use to its makers.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}


class RayEncoder:
    """A process of Ray that encodes one shard after the other, and opens the model once."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.job = EncodingJob.of(job)
        self.shards = {shard.name: shard for shard in self.job.shards}

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the work on one shard, and the line of an error that a second try would meet,
        too."""
        shard = self.shards[str(row["item"])]
        read = self.job.encoder.read
        before = (read.tokens, read.padded)
        rows = 0
        try:
            if self.job.record(shard) is None:
                rows = self.job.encode(shard).rows
        except TemperaError as error:
            return {**asdict(EncodedPart()), "error": str(error)}
        tokens = read.tokens - before[0]
        padded = read.padded - before[1]
        return {**asdict(EncodedPart(rows, shard.size, tokens, padded, 1)), "error": ""}


def work_by_ray(job: EncodingJob, workers: int | None, tell: Tell) -> dict[str, Any] | None:
    """Encode the shards that are not finished as a job of Ray Data; return the manifest.

    The job joins the cluster that RAY_ADDRESS names or that runs on this machine, or else starts
    Ray here. The model, the corpus and the output have to be where every machine finds them.

    Args:
        job: the encoding, begun.
        workers: most processes at once; None is one for each CPU of the cluster.
        tell: is called with each finished shard.

    Raises:
        MissingLibrary: Ray is not installed.
        TemperaError: a shard that cannot be encoded or written.
    """
    require("ray", "--engine ray")
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray
    import ray.data

    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    started = not ray.is_initialized()
    if started:
        _join(ray)
    try:
        names = job.unfinished()
        finished = len(job.shards) - len(names)
        tell(EncodedPart(shards=finished))
        if names:
            most = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
            most = min(most, len(names))
            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            rows = ray.data.from_items(names, override_num_blocks=len(names)).map(
                RayEncoder,
                fn_constructor_args=(job.absolute().json(),),
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=most),
                num_cpus=1,
            )
            errors = []
            for row in rows.iter_rows():
                error = row.pop("error")
                tell(EncodedPart(**row))
                if error:
                    errors.append(error)
            if errors:  # the other shards are finished
                raise TemperaError(errors[0])
    except ray.exceptions.RayError as error:
        raise TemperaError(_cause(error)) from None
    finally:
        if started:
            ray.shutdown()
    document = job.finish()
    if document is not None:
        clear(job)
    return document


def _join(ray: Any) -> None:
    """Join the cluster of the environment or of this machine, or else start Ray in this process."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), **options)
    except ConnectionError:
        if "RAY_ADDRESS" in os.environ:
            raise
        ray.init(include_dashboard=False, **options)


def _cause(error: Exception) -> str:
    """Return the last line of an error of Ray, which holds the traceback of a task."""
    lines = str(error).strip().splitlines()
    return f"Ray: {lines[-1]}" if lines else type(error).__name__
