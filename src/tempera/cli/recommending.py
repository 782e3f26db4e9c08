"""Commands of recommenders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared import Json, answer, say


def recommend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, of a recommender.")],
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="Who is asked for.")] = None,
    history: Annotated[
        str | None, typer.Option("--history", metavar="A,B,C", help="Items taken before, the latest last.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many to show.")] = 10,
    include_seen: Annotated[bool, typer.Option("--include-seen", help="Show what was taken before, too.")] = False,
    index: Annotated[
        Path | None, typer.Option("--index", metavar="DIR", help="An exported index to search instead.")
    ] = None,
    elapsed: Annotated[
        float, typer.Option("--elapsed", min=0, help="Time since the latest event, in the data's unit, if towers ask.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Recommend items to a user of a run, or to anybody by what was taken before."""
    from ..artifacts.run_folder import Run

    taken = None if history is None else [name.strip() for name in history.split(",") if name.strip()]
    given = Run(run).recommend(user, taken, k=k, exclude_seen=not include_seen, index=index, elapsed=elapsed)
    hits = [{"rank": hit.rank, "score": hit.score, "id": hit.id, "name": hit.name} for hit in given.found]
    document = {"user": user, "history": given.history, "notes": list(given.notes), "hits": hits}
    answer(document, as_json, lambda: say(str(given)))


def add_items(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, of a recommender.")],
    items: Annotated[Path, typer.Argument(metavar="ITEMS", help="A table of items with the columns that towers read.")],
    as_json: Json = False,
) -> None:
    """Add items that came after training to a run; they are recommended by their features."""
    from ..artifacts import new_items as arrivals

    facts = arrivals.add_items(run, items)
    lines = [f"{facts['added']:,} items added; the run has {facts['items']:,}"]
    lines += [f"left out: {count:,} {reason}" for reason, count in facts["left_out"].items()]
    lines += [f"left out: column {name!r}, which the run's items do not have" for name in facts["columns_left_out"]]
    answer(facts, as_json, lambda: say("\n".join(lines)))
