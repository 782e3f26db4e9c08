"""The command that adds documents to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import quantity
from .shared import Json, answer, ids_of, say


def add_documents(
    run: Path,
    documents: Annotated[Path | None, typer.Argument(metavar="[FILE]")] = None,
    remove: Annotated[str | None, typer.Option(metavar="IDS")] = None,
    remove_file: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    as_json: Json = False,
) -> None:
    """Add documents to a run on texts, without training.

    A document with the id of another one replaces it. Searches go on meanwhile.

    Args:
        run: run folder.
        documents: table with columns id and text; further columns are kept as the run's are.
        remove: ids of documents to remove, e.g. A,B,C; an id with a comma or outer spaces in double
            quotes.
        remove_file: text file with the id of a document to remove on each line.
    """
    from ..artifacts.new_documents import add_documents as run_adding
    from ..io.documents import read_lines

    leaving = [] if remove is None else ids_of(remove)
    if remove_file is not None:
        leaving += [line for line in read_lines(remove_file) if line.strip()]
    facts = run_adding(run, documents, leaving)
    counts = [f"{facts[name]:,} {name}" for name in ("added", "replaced", "removed")]
    lines = [f"{', '.join(counts)}; the run has {quantity(facts['documents'], 'documents')}"]
    for name in facts["columns_left_out"]:
        lines.append(f"left out: column {name!r}, which the run does not keep")
    lines += [f"not learned: {sentence}" for sentence in facts["not_learned"]]
    answer(facts, as_json, lambda: say("\n".join(lines)))
