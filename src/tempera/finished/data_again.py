"""The data of a finished run on texts, read and divided again into learned pairs and held-out
pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from ..artifacts.run_folder import Run
from ..corpus.index import Index
from ..errors import DataError
from ..io.manifest import refuse_damaged
from ..mining.embedder import among_trained, trained_on
from ..options.build import Config, config_of_run
from ..tables.vector_files import KEY
from ..text.judge.held_out import BY_TEXT, HELD_OUT, Questions
from ..text.judge.lexical import Settings
from ..text.judge.tasks import RetrievalTask
from ..text.read.pairs import Rows
from ..text.read.sources import Given
from ..text.shards.split_of_shards import is_in_shards, split_of_shards
from ..text.train.split import Split, hold_out
from ..towers.saved import EVALUATED, fingerprint, model_folder
from ..towers.stamp import Kept

_COUNTED = {"pairs": "pairs:", "corpus": "documents:", "train": "pairs to train on:"}


def refitted_parts(run: Path) -> list[str]:
    """Return the held-out parts learned by a run at the end (`train.refit`)."""
    return [refit["part"] for refit in Run(run).results.get("refit", [])]


def evaluated_model(run: Path) -> Path:
    """Return the folder of the model behind a run's figures.

    The folder is the run's own, or RUN/evaluated if the run was then trained on the test.

    Raises:
        DataError: the model is damaged, or was removed.
    """
    folder = run / EVALUATED
    refuse_damaged(folder)
    return folder if folder.is_dir() else run


def read_split_again(run: Path, instead: str) -> tuple[Split, Config]:
    """Return the pairs of a run, divided as for the evaluated model, and the run's configuration.

    Args:
        run: a run folder.
        instead: another way for the user, for messages.

    Raises:
        DataError: no run, data of an object of Python, or missing or changed data.
    """
    if not (run / "config.yaml").is_file():
        raise DataError(f"{run} is not a run, so there are no held-out queries: {instead}")
    config = config_of_run(run)
    if isinstance(config.data, Given):
        raise DataError(f"{run} was trained on an object of Python, which is gone: {instead}")
    try:
        if is_in_shards(config.data):
            split = split_of_shards(config.data, config.evaluation)
        else:
            pairs, candidates = config.data.read(None)
            split = hold_out(pairs, candidates, config.evaluation, config.train.max_pairs)
    except DataError as error:
        raise DataError(
            f"the data of {run} cannot be read again: {error}; call this where the run was trained, put the data back, or {instead}"
        ) from None
    if "validation" in refitted_parts(run):
        split = split.extended("validation")
    changed = _changes(run, split)
    if changed:
        if BY_TEXT not in Run(run).results:
            raise DataError(
                f"{run} is of an earlier version, which held out queries and documents apart and divided pairs that share texts "
                f"otherwise ({'; '.join(changed)}): train again, or {instead}"
            )
        raise DataError(
            f"the data of {run} have changed since ({'; '.join(changed)}), and what was held out is no longer known: {instead}"
        )
    return split, config


def _changes(run: Path, split: Split) -> list[str]:
    """Return the differences between the data of a run then and now, in words.

    Numbers are compared first. Texts are compared if all numbers are equal.
    """
    document = Run(run).results
    then = document["data"]
    now = {"pairs": split.count, "corpus": len(split.corpus), "train": split.trained_count}
    changed = []
    for name, count in now.items():
        if then[name] != count:
            changed.append(f"{_COUNTED[name]} {then[name]:,} then, {count:,} now")
    if changed:
        return changed
    known = trained_on(evaluated_model(run))
    first, which = split.pairs.distinct("query")  # of several texts with one id the first is read
    trained_rows = first[which[split.train]]
    queries = split.pairs.table["query"].take(pa.array(trained_rows))
    if known is not None and not among_trained(queries, known).all():
        return ["the queries to train on are others"]
    digest = document.get(HELD_OUT)  # None in a run of an earlier version
    if digest is not None and digest != split.digest:
        return ["held-out pairs or documents have other texts"]
    return []


def held_out_task(run: Path, name: str, split: Split, rows: Rows) -> RetrievalTask:
    """Return held-out queries of a run and the run's documents, with the ids of the run's index.

    If the run's model embeds queries alone, the documents have the vectors of the index.

    Args:
        run: a run folder.
        name: name of the task.
        split: the run's pairs.
        rows: rows of the held-out pairs.
    """
    pairs = split.pairs
    questions = Questions.of(split, pairs.distinct("query")[1], pairs.distinct("doc")[1], rows)
    queries = _table(pairs.shown_ids("query", questions.rows), questions.queries)
    docs = _table(pairs.shown_ids("doc", split.corpus), pairs.texts("doc", split.corpus))
    docs = docs.append_column(KEY, pairs.table["doc_id"].take(pa.array(split.corpus)))
    task = RetrievalTask.of(name, queries, docs, questions.relevant, {})
    tuned = Run(run).results.get("bm25")  # settings that were tuned on other queries
    if tuned:
        task = replace(task, words=Settings(**tuned))
    if Kept.read(model_folder(run)) is None:
        return task
    index, positions = find_in_index(run, model_folder(run), task.corpus[KEY])
    missing = int((positions < 0).sum())
    if missing:
        raise DataError(
            f"{index.folder} lacks {missing:,} of the {len(positions):,} documents of its run: "
            "copy the run's own index, or train again"
        )
    return replace(task, kept=index.vectors[positions])


def find_in_index(run: Path, model: Path, keys: pa.ChunkedArray | pa.Array) -> tuple[Index, Rows]:
    """Return the index of a run, and the positions of documents in it, [n]; -1 is missing.

    Args:
        run: a run folder.
        model: folder of the run's model.
        keys: keys of the documents, [n].

    Raises:
        DataError: no index, or an index made by another model.
    """
    index = Index(run / "index")
    if index.stamp is not None:
        index.stamp.refuse_other(fingerprint(model), index.folder)
    return index, index.find(keys)


def _table(ids: pa.ChunkedArray, texts: Sequence[str]) -> pa.Table:
    return pa.table({"id": ids, "text": pa.array(texts, pa.large_string())})
