"""The held-out queries of a run as a retrieval set of their own, in the layout that other programs read, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import config as configuration
from ..artifacts.export import BEIR, place_of
from ..build import build
from ..errors import DataError
from ..io.atomic import MARK, staged
from ..io.documents import write_json
from ..text.beir import write_beir
from ..text.pairs import Pairs, Rows, Text, distinct
from ..towers.saved import model_folder
from .known_pairs import divided_again

_SPLITS = {"test": "test", "validation": "dev"}  # by the names that BEIR has for them


def export_held_out(run: str | Path, output: str | Path | None = None, overwrite: bool = False) -> dict[str, Any]:
    """Write a run's held-out queries, their answers and all documents that it ranks as a BEIR folder.

    qrels/test.tsv has the queries by which the run was judged, and qrels/dev.tsv those of validation. Any model is judged on them
    by `tempera.evaluate(model, output)`, so that two runs are compared query by query on what neither has learned. Ids are
    those that `search` and the other exports give, and every grade is 1.

    Args:
        run: a run folder, of texts.
        output: the folder to write; None is RUN/export/beir.
        overwrite: replace an earlier export.

    Returns:
        Facts: the output, and numbers of documents, test_queries and validation_queries.

    Raises:
        DataError: no run on texts, data that have changed since or are gone, or nothing held out.
        OutputError: the output cannot be written.

    >>> facts = export_held_out("runs/first", "runs/held-out")
    >>> facts["test_queries"] > 0
    True
    """
    run = Path(run)
    model_folder(run)  # of texts
    if not (run / "config.yaml").is_file():
        raise DataError(f"{run} is not a run, so there are no held-out queries")
    made = build(configuration.load(run / "config.yaml"))
    split = divided_again(run, made)
    parts = {name: rows for name, rows in (("test", split.test), ("validation", split.validation)) if len(rows)}
    if not parts:
        raise DataError(f"{run} has held out nothing")
    place = place_of(run, BEIR, None if output is None else Path(output))
    with staged(place, overwrite, [run, *made.read]) as folder:
        pairs = split.pairs
        judged = {_SPLITS[part]: (_ids(pairs, "query", rows), _ids(pairs, "doc", rows)) for part, rows in parts.items()}
        queries = _texts(pairs, "query", np.concatenate(list(parts.values())))
        write_beir(folder, _texts(pairs, "doc", split.corpus), queries, judged)
        counts = {f"{part}_queries": split.queries(rows) for part, rows in parts.items()}
        facts = {"to": BEIR, "output": str(place), "documents": len(split.corpus), **counts}
        write_json(folder / MARK, facts)
    return facts


def _ids(pairs: Pairs, role: Text, rows: Rows) -> list[str]:
    """Return the ids of queries or documents as the index of a run has them."""
    return [str(name) for name in pairs.ids(role)[rows].tolist()]


def _texts(pairs: Pairs, role: Text, rows: Rows) -> dict[str, str]:
    """Return texts by their ids: of several texts with one id the first, which alone is read."""
    first = rows[distinct(pairs.ids(role)[rows])[0]]
    return dict(zip(_ids(pairs, role, first), pairs.texts(role, first), strict=True))
