"""Commands of recommenders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import TemperaError
from .shared import Json, answer, say


def recommend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a recommender.")],
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="User to recommend to.")] = None,
    history: Annotated[
        str | None, typer.Option("--history", metavar="A,B,C", help="Items that the user took before, the latest last.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of items to show.")] = 10,
    include_seen: Annotated[bool, typer.Option("--include-seen", help="Recommend items of the history, too.")] = False,
    index: Annotated[
        Path | None, typer.Option("--index", metavar="DIR", help="Exported index to search instead of the run's own.")
    ] = None,
    elapsed: Annotated[
        float,
        typer.Option(
            "--elapsed", min=0, help="Time since the user's last event (for models with an `elapsed` feature)."
        ),
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Recommend items to a user, or by a history of items."""
    from ..artifacts.run_folder import Run

    items = None if history is None else [name.strip() for name in history.split(",") if name.strip()]
    if items == [] and user is None:
        raise TemperaError(f"--history is {history!r} and names no item; give ids such as --history A,B, or --user ID")
    result = Run(run).recommend(user, items, k=k, exclude_seen=not include_seen, index=index, elapsed=elapsed)
    hits = [{"rank": hit.rank, "score": hit.score, "id": hit.id, "name": hit.name} for hit in result.found]
    document = {"user": user, "history": result.history, "notes": list(result.notes), "hits": hits}
    answer(document, as_json, lambda: say(str(result)))


def add_items(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a recommender.")],
    items: Annotated[
        Path, typer.Argument(metavar="ITEMS", help="Table of items, with the columns of the items trained on.")
    ],
    as_json: Json = False,
) -> None:
    """Add new items to a trained recommender.

    They are recommended by their features.
    """
    from ..artifacts.new_items import add_items as run_adding

    facts = run_adding(run, items)
    lines = [f"{facts['added']:,} items added; the run has {facts['items']:,}"]
    lines += [f"left out: {count:,} {reason}" for reason, count in facts["left_out"].items()]
    lines += [f"left out: column {name!r}, which the run's items do not have" for name in facts["columns_left_out"]]
    answer(facts, as_json, lambda: say("\n".join(lines)))
