"""The data of a finished run on texts, read again and divided as they were: what it has learned,
and what it has held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from ..artifacts.index import Index
from ..artifacts.run_folder import Run
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
from ..text.train.split import Split, hold_out
from ..towers.saved import EVALUATED, fingerprint, model_folder
from ..towers.stamp import Kept

_COUNTED = {"pairs": "pairs:", "corpus": "documents:", "train": "pairs to train on:"}


def learned(run: Path) -> list[str]:
    """Return the parts of its data that a run has been trained on again (`train.refit`), after they
    were held out."""
    return [each["part"] for each in Run(run).document.get("refit", [])]


def evaluated(run: Path) -> Path:
    """Return the folder of the model whose figures a run has: its own, unless it was trained on the
    test after that.

    Raises:
        DataError: that model is damaged, or was removed.
    """
    refuse_damaged(run / EVALUATED)
    return folder if (folder := run / EVALUATED).is_dir() else run


def divided_again(run: Path, instead: str) -> tuple[Split, Config]:
    """Return the pairs of a run, divided as they were for the model that was evaluated, and the
    run's configuration.

    Args:
        instead: what else a user can do, for the messages.

    Raises:
        DataError: no run, data of an object of Python, or data that cannot be read again or have
            changed since.
    """
    if not (run / "config.yaml").is_file():
        raise DataError(f"{run} is not a run, so there are no held-out queries: {instead}")
    config = config_of_run(run)
    if isinstance(config.data, Given):
        raise DataError(f"{run} was trained on an object of Python, which is gone: {instead}")
    try:
        pairs, candidates = config.data.read(None)
        split = hold_out(pairs, candidates, config.evaluation, config.train.max_pairs)
    except DataError as error:
        raise DataError(
            f"the data of {run} cannot be read again: {error}; call this where the run was trained, put the data back, or {instead}"
        ) from None
    if "validation" in learned(run):
        split = split.extended("validation")
    if changed := _changes(run, split):
        if BY_TEXT not in Run(run).document:
            raise DataError(
                f"{run} is of an earlier version, which held out queries and documents apart and divided pairs that share texts "
                f"otherwise ({'; '.join(changed)}): train again, or {instead}"
            )
        raise DataError(
            f"the data of {run} have changed since ({'; '.join(changed)}), and what was held out is no longer known: {instead}"
        )
    return split, config


def _changes(run: Path, split: Split) -> list[str]:
    """Return in what the data of a run are others than they were: in numbers, or else in texts."""
    document = Run(run).document
    then, now = (
        document["data"],
        {"pairs": split.count, "corpus": len(split.corpus), "train": len(split.train)},
    )
    changed = [
        f"{_COUNTED[what]} {then[what]:,} then, {count:,} now"
        for what, count in now.items()
        if then[what] != count
    ]
    if changed:
        return changed
    known = trained_on(evaluated(run))
    first, which = split.pairs.distinct("query")  # of several texts with one id the first is read
    queries = split.pairs.table["query"].take(pa.array(first[which[split.train]]))
    if known is not None and not among_trained(queries, known).all():
        return ["the queries to train on are others"]
    digest = document.get(HELD_OUT)  # None: a run of an earlier version
    if digest is not None and digest != split.digest:
        return ["held-out pairs or documents have other texts"]
    return []


def asked(run: Path, name: str, split: Split, rows: Rows) -> RetrievalTask:
    """Return held-out queries of a run and the documents that it ranks, with the ids that its index
    has.

    Where the run's model embeds queries alone, the documents have the vectors of that index.
    """
    pairs = split.pairs
    questions = Questions.of(split, pairs.distinct("query")[1], pairs.distinct("doc")[1], rows)
    queries = _table(pairs.shown_ids("query", questions.rows), questions.queries)
    docs = _table(pairs.shown_ids("doc", split.corpus), pairs.texts("doc", split.corpus))
    docs = docs.append_column(KEY, pairs.table["doc_id"].take(pa.array(split.corpus)))
    task = RetrievalTask.of(name, queries, docs, questions.relevant, {})
    if tuned := Run(run).document.get("bm25"):  # on other queries
        task = replace(task, words=Settings(**tuned))
    if Kept.read(model_folder(run)) is None:
        return task
    index, places = indexed(run, model_folder(run), task.corpus[KEY])
    if lost := int((places < 0).sum()):
        raise DataError(
            f"{index.folder} lacks {lost:,} of the {len(places):,} documents of its run: copy the run's own index, or train again"
        )
    return replace(task, kept=index.vectors[places])


def indexed(run: Path, model: Path, keys: pa.ChunkedArray | pa.Array) -> tuple[Index, Rows]:
    """Return the index of a run, and where it holds the documents with some keys, [n]; -1 for one
    that it lacks.

    Raises:
        DataError: no index, or one that another model has made.
    """
    index = Index(run / "index")
    if index.stamp is not None:
        index.stamp.refuse_other(fingerprint(model), index.folder)
    return index, index.find(keys)


def _table(ids: pa.ChunkedArray, texts: Sequence[str]) -> pa.Table:
    return pa.table({"id": ids, "text": pa.array(texts, pa.large_string())})
