"""Tasks of MTEB (Muennighoff et al. 2023; Enevoldsen et al. 2025): by name, or made from a retrieval
set that is in memory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ...errors import ConfigError, DataError
from ...forms.roles import Roles
from ...forms.set_files import is_beir
from ...io.console import logger
from .tasks import Graded, RetrievalTask, read_task

SPLIT = "test"  # the only split of a task that is made here
_SUBSET = "default"  # MTEB's name of the only part of a task in one language
# MTEB asks every task for its language; these codes of ISO 639 and ISO 15924 leave it open.
_LANGUAGE = "und-Zyyy"


def named_task(name: str) -> Any:
    """Return a task of MTEB with its data, which MTEB takes from its cache or from the hub.

    Raises:
        ConfigError: MTEB has no task of the name, or the task has no texts, or is a group of tasks.
        DataError: the data cannot be loaded, as without a network.
    """
    import mteb
    from mteb.abstasks.aggregated_task import AbsTaskAggregate

    try:
        task = mteb.get_task(name)
    except KeyError as error:
        meant = re.search(r"Did you mean: '(.+)'", str(error))
        advice = f" Did you mean {meant[1]}?" if meant else ""
        raise ConfigError(
            f"no file, no folder and no task of MTEB is called {name}.{advice}"
        ) from None
    if isinstance(task, AbsTaskAggregate):
        parts = ", ".join(part.metadata.name for part in task.metadata.tasks)
        raise ConfigError(f"{name} is a group of tasks of MTEB: give one of {parts}")
    if list(task.metadata.modalities) != ["text"]:
        kinds = " and ".join(task.metadata.modalities)
        raise ConfigError(f"{name} is a task of {kinds}, and the model reads text")
    logger.info(f"{name}: loaded by MTEB from its cache, or else from the hub")
    try:
        task.load_data()
    except Exception as error:  # of the hub, of files, of the task's own code
        first = str(error).partition("\n")[0]
        raise DataError(f"MTEB cannot load {name}: {type(error).__name__}: {first}") from None
    return task


def made_task(task: RetrievalTask, path: Path, split: str = SPLIT) -> Any:
    """Return a retrieval set as a task of MTEB, with the data in memory.

    The split of the task is called `test` whichever split was read.

    Args:
        task: the queries, the corpus and the judgements.
        path: of the set.
        split: the split that was read.

    Raises:
        DataError: a grade is no whole number.
    """
    from datasets import Dataset
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    queries = task.queries.select(["id", "text"]).to_pydict()
    corpus = task.corpus.select(["id", "text"]).to_pydict()
    relevant = _relevant(task, path)
    metadata = TaskMetadata(
        name=task_name(path, split),
        description=f"{len(task.queries)} queries and {len(task.corpus)} documents of {path.name}",
        type="Retrieval",
        category="t2t",
        eval_splits=[SPLIT],
        eval_langs=[_LANGUAGE],
        main_score="ndcg_at_10",
        dataset={"path": str(path), "revision": _revision(queries, corpus, relevant)},
    )
    # MTEB then leaves the document of a query's id out of every ranking.
    attributes = {"metadata": metadata, "ignore_identical_ids": len(task.itself) > 0}
    made: Any = type("MadeRetrieval", (AbsTaskRetrieval,), attributes)()
    made.dataset = {
        _SUBSET: {
            SPLIT: {
                "corpus": Dataset.from_dict(corpus),
                "queries": Dataset.from_dict(queries),
                "relevant_docs": relevant,
                "top_ranked": None,
            }
        }
    }
    made.data_loaded = True
    return made


def read_retrieval(path: Path, split: str, roles: Roles | None) -> RetrievalTask:
    """Read a retrieval set, or a table of pairs, as `tempera evaluate` does.

    Raises:
        DataError: as `read_task`; graded pairs, or a split of a table.
        ConfigError: as `read_task`.
    """
    if split != SPLIT and not is_beir(path):
        raise DataError(f"the split {split!r} is of a BEIR folder, and {path} is none: drop it")
    task = read_task(path, split, roles)
    if isinstance(task, Graded):
        raise DataError(
            f"{path} holds graded pairs of sentences, and a task of MTEB is made of pairs or of a retrieval set"
        )
    return task


def task_name(path: Path, split: str = SPLIT) -> str:
    """Return the name of a task that is made from a file or folder: letters, digits, dots, dashes.

    >>> task_name(Path("data/my faq.jsonl")), task_name(Path("data/scifact"), "dev")
    ('my-faq', 'scifact-dev')
    """
    place = path.resolve()
    name = place.name
    if not place.is_dir():
        name = name.partition(".")[0]
    if split != SPLIT:
        name += f"-{split}"
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "task"


def _relevant(task: RetrievalTask, path: Path) -> dict[str, dict[str, int]]:
    """Return the grades of the relevant documents of each query, by ids."""
    gains = np.asarray(task.relevant.gain)
    if not (gains == np.round(gains)).all():
        raise DataError(
            f"{path}: a grade is no whole number, and MTEB takes whole numbers only: round the grades"
        )
    queries = task.queries["id"].to_pylist()
    docs = task.corpus["id"].to_pylist()
    relevant: dict[str, dict[str, int]] = {query: {} for query in queries}
    rows = zip(
        task.relevant.query.tolist(), task.relevant.doc.tolist(), gains.tolist(), strict=True
    )
    for query, doc, gain in rows:
        relevant[queries[query]][docs[doc]] = int(gain)
    return relevant


def _revision(queries: Any, corpus: Any, relevant: Any) -> str:
    """Return the hash of all ids, texts and grades, in hex digits."""
    content = json.dumps([queries, corpus, relevant])
    return xxhash.xxh3_128_hexdigest(content.encode())
