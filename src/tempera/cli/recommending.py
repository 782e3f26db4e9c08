"""Commands of recommenders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import TemperaError, quantity
from .shared import Json, answer, ids_of, say

_WRITTEN = "written: {output}: {rows:,} recommendations for {users:,} users, ranked by {ranked_by}"


def recommend(
    run: Path,
    user: str | None = None,
    history: str | None = None,
    k: Annotated[int, typer.Option("-k", min=1)] = 10,
    include_seen: bool = False,
    index: Path | None = None,
    now: Annotated[str | None, typer.Option(metavar="TIME")] = None,
    before: Annotated[str | None, typer.Option(metavar="TIME")] = None,
    context: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE")] = None,
    hybrid: Annotated[bool | None, typer.Option("--hybrid/--vectors")] = None,
    candidates: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    exclude: Annotated[str | None, typer.Option(metavar="IDS")] = None,
    where: Annotated[str | None, typer.Option(metavar="CONDITION")] = None,
    similar: Annotated[str | None, typer.Option(metavar="ITEM")] = None,
    diversity: Annotated[float, typer.Option(min=0, max=1)] = 0.0,
    every: Annotated[bool, typer.Option("--all")] = False,
    users: Path | None = None,
    histories: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    overwrite: bool = False,
    explain: bool = False,
    elapsed: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_json: Json = False,
) -> None:
    """Recommend items to a user, to all users, or by a history.

    With --similar, the items nearest to an item are shown instead.

    With --all, --users or --histories, recommendations are written to --output, with columns user,
    rank, item and score.

    Args:
        run: run folder of a recommender.
        user: id of a user.
        history: items taken by the user before, the latest last, e.g. A,B,C; an id with a comma or
            outer spaces in double quotes.
        k: number of items to show.
        include_seen: recommend items of the history, too.
        index: exported index to search instead of the run's own.
        now: moment of the question, as the data have times; later events are not known, and a model
            with an `elapsed` feature reads the time since each user's last event (default: the
            latest time of the data).
        before: answer as at this time, by the events before the time.
        context: circumstances of the question, e.g. device=phone; may be repeated (only for models
            with features of data.context).
        hybrid: rank by counts and vectors together, or by the vectors alone [default: as validation
            has shown].
        candidates: rank only the items of this table, with a column of ids.
        exclude: items to leave out, written as --history.
        where: rank only items whose columns pass this condition, e.g. "genre = 'Drama'".
        similar: show the items with the vectors nearest to the item's, in place of --user and
            --history.
        diversity: from 0, the best items, to 1, the items least alike (maximal marginal relevance).
        every: recommend to every known user of the run.
        users: recommend to the users of this table, with a column of ids.
        histories: recommend to the users of this table of interactions, by their histories in it;
            the run need not know them.
        output: .parquet, .csv or .jsonl file to write.
        overwrite: replace the file of --output.
        explain: show under each item the largest parts of its score; with --json, all parts.
        elapsed: the former name of --now.
    """
    if elapsed is not None:
        raise TemperaError(
            "--elapsed was one pause for all users; give --now TIME, the moment of the question, "
            "from which each user's own pause is counted"
        )
    from ..artifacts.run_folder import Run

    options: dict[str, Any] = {
        "k": k,
        "exclude_seen": not include_seen,
        "now": now,
        "before": before,
        "hybrid": hybrid,
        "context": _context(context or []),
        "candidates": candidates,
        "exclude": None if exclude is None else ids_of(exclude),
        "where": where,
        "diversity": diversity,
    }
    many = [every, users is not None, histories is not None]
    if explain and (any(many) or similar is not None):
        raise TemperaError("--explain is for --user or --history: leave it out")
    if any(many) or output is not None:
        for_one = [user, history, similar, index]
        if output is None or sum(many) != 1 or for_one != [None] * len(for_one):
            raise TemperaError(
                "give --all, --users FILE or --histories FILE, with --output FILE.parquet (or .csv, "
                ".jsonl) and without --user, --history, --similar and --index"
            )
        facts = Run(run).recommend_all(
            output, users, histories=histories, overwrite=overwrite, **options
        )
        lines = [_WRITTEN.format(**facts)]
        lines += [f"note: {note}" for note in facts["notes"]]
        answer(facts, as_json, lambda: say("\n".join(lines)))
        return
    items = None if history is None else ids_of(history)
    if items == [] and user is None and similar is None:
        raise TemperaError(
            f"--history {history!r} names no item; give ids such as --history A,B, or --user ID"
        )
    opened = Run(run)
    result = opened.recommend(user, items, index=index, similar=similar, **options)
    explanations = []
    if explain:
        question = {name: options[name] for name in ("now", "before", "hybrid", "context")}
        explanations = opened.explain_item(result.hits, user, items, index=index, **question)
    hits: list[dict[str, Any]] = [
        {"rank": hit.rank, "score": hit.score, "id": hit.id, "name": hit.name}
        for hit in result.hits
    ]
    for hit, explanation in zip(hits, explanations):
        hit["explanation"] = explanation.json()
    document = {
        "user": user,
        "similar": similar,
        "history": result.history,
        "now": result.now,
        "notes": list(result.notes),
        "hits": hits,
    }
    lines = str(result).splitlines()
    for number, explanation in enumerate(explanations):
        lines[len(result.notes) + number] += f"\n     {explanation.line()}"
    answer(document, as_json, lambda: say("\n".join(lines)))


def _context(pairs: list[str]) -> dict[str, str]:
    """Return the context of a question from texts like device=phone."""
    context = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if name and not equals:
            raise TemperaError(
                f"--context {name!r} has no value; give it as NAME=VALUE, such as device=phone"
            )
        context[name] = value
    return context


def add_items(run: Path, items: Path, as_json: Json = False) -> None:
    """Add new items to a trained recommender.

    New items are recommended by features.

    Args:
        run: run folder of a recommender.
        items: table of items, with the columns of the items trained on.
    """
    from ..recommender.new_items import add_items as run_adding

    facts = run_adding(run, items)
    lines = [f"{facts['added']:,} items added; the run has {facts['items']:,}"]
    for reason, count in facts["left_out"].items():
        lines.append(f"left out: {quantity(count, reason)}")
    absent = facts["columns_left_out"]
    lines += [f"left out: column {name!r}, which the run's items do not have" for name in absent]
    answer(facts, as_json, lambda: say("\n".join(lines)))


def add_events(run: Path, events: Path, as_json: Json = False) -> None:
    """Add new events to a trained recommender, without training.

    Users go on from their new events, what they have met is left out, and new users are known by
    their histories.

    Args:
        run: run folder of a recommender.
        events: table of interactions, with the columns of the interactions trained on.
    """
    from ..recommender.new_events import add_events as run_adding

    facts = run_adding(run, events)
    lines = [
        f"{quantity(facts['events'], 'events')} added, of {quantity(facts['users'], 'users')} "
        f"({facts['new_users']:,} new)"
    ]
    if facts["latest"] is not None:
        lines[0] += f"; the latest is at {facts['latest']}"
    if facts["seen_only"]:
        lines.append(
            f"{facts['seen_only']:,} of them are rated low or disliked, and only count as seen"
        )
    for reason, count in facts["left_out"].items():
        lines.append(f"left out: {quantity(count, reason)}")
    if facts["recounted"]:
        lines.append("the table of counts is counted again, over old and new events")
    lines += [f"note: {note}" for note in facts["notes"]]
    answer(facts, as_json, lambda: say("\n".join(lines)))
