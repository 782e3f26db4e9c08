"""The process of one worker: `python -m tempera.corpora.worker_process` takes a job and a share from
the first line of standard input.

It answers with a line of JSON for each part of the work, and last with the outcome. The process
ends at the end of standard input, so no worker outlives the program that started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict

from ..errors import TemperaError
from ..io.documents import parsed
from .corpus_worker import EncodedPart, WorkerShare, work
from .encoding_job import EncodingJob


def main() -> None:
    """Do the work of one order, and report it."""
    order = parsed(sys.stdin.readline())
    answers = os.fdopen(
        os.dup(1), "w", encoding="utf-8"
    )  # standard output is for what models print
    os.dup2(2, 1)
    threading.Thread(target=_end_with_input, daemon=True).start()

    def answer(**document: object) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    def tell(part: EncodedPart) -> None:
        answer(part=asdict(part))

    try:
        job = EncodingJob.of(order["job"])
        job.begin()
        work(job, WorkerShare(*order["share"]), tell, order["stale"])
    except (TemperaError, OSError, MemoryError) as error:
        answer(error=str(error) or type(error).__name__)
        sys.exit(2)
    answer(done=True)


def _end_with_input() -> None:
    while sys.stdin.readline():
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
