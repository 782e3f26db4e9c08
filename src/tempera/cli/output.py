"""Tables of runs and of evaluations, on the terminal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from ..errors import quantity
from .shared import say

if TYPE_CHECKING:  # it takes time to load
    from rich.console import Console

    from ..artifacts.report_tables import ReportTable
    from ..ranking.fusion import Fusion

_WIDEST = 1000  # letters of a line of a table
_LONG_PATH = 40  # letters of a path that heads a column
_USED = 3  # counts of a task that are of what is judged: queries, documents and judgements


def print_run(document: dict[str, Any]) -> None:
    """Print the metrics of a run, and what to do next; with --quiet the result and cautions
    alone."""
    if logging.getLogger("tempera").level >= logging.WARNING:
        _print_result(document)
        return
    if "protocols" in document:
        _print_tables(document)
        if "winner" in document:
            say(document["winner"])
        _print_end(document, "recommend: tempera recommend {output} --user ID")
        if "counting" in document:
            _print_counting(document)
        if "moment" in document:
            say(document["moment"])
        return
    systems: dict[str, dict[str, float]] = document["metrics"]
    if systems:
        _print_metrics(document, systems)
        _print_tables(document, ["also"])
    _print_end(document, 'search: tempera search {output} "what you look for"')
    if "queries_per_second" in document:
        speeds = ", ".join(
            f"{name} {speed:,.0f}" for name, speed in document["queries_per_second"].items()
        )
        print(f"queries a second on one core, one after the other: {speeds}")
    if document.get("hybrid"):
        from ..ranking.fusion import Fusion

        fusion, size = Fusion(**document["hybrid"]), document["bytes"]["words.parquet"] / 1e6
        print(
            f"words and vectors together: {_advised(systems, fusion)} ({fusion}; index of words {size:.1f} MB)"
        )


def _print_result(document: dict[str, Any]) -> None:
    """Print the metrics of each system, and the cautions; the report has the rest."""
    if "protocols" in document:
        from ..artifacts.report_tables import results

        for table in results(document):
            _print_table(table)
        if "winner" in document:
            say(document["winner"])
    elif document["metrics"]:
        _print_metrics(document, document["metrics"])
    say("\n".join(f"caution: {text}" for text in document["cautions"]))


def _advised(systems: Mapping[str, Mapping[str, float]], fusion: Fusion) -> str:
    """Return how to ask words and vectors together, and what speaks against it on the test."""
    from ..task.verdict import FUSED, main_metric

    if fusion.weight == 1:
        return "words add nothing on validation, so --hybrid ranks by the vectors alone"
    value = (
        {name: means[main_metric(systems["trained"])] for name, means in systems.items()}
        if systems
        else {}
    )
    above = [
        (value[name], words)
        for name, words in (("trained", "the vectors"), ("bm25", "BM25"))
        if name in value
    ]
    best, words = max(above, default=(0.0, ""))
    return (
        f"--hybrid, here below {words} alone"
        if FUSED in value and value[FUSED] < best
        else "add --hybrid"
    )


def _print_counting(document: dict[str, Any]) -> None:
    """Print what a recommender serves where it can serve counts and vectors together."""
    from ..ranking.fusion import Fusion

    counting, size = document["counting"], document["bytes"]["counts.parquet"] / 1e6
    both = "both together recommend" if document["hybrid"]["weight"] else "counts alone recommend"
    vectors = "the vectors alone recommend"
    served, other = (
        (both, f"{vectors} with --vectors")
        if counting["served"]
        else (vectors, f"{both} with --hybrid")
    )
    print(
        f"vectors and {counting['system']}: {Fusion(**document['hybrid'])}; table of counts {size:.1f} MB; "
        f"{served}; {other}"
    )


def _print_metrics(document: dict[str, Any], systems: dict[str, dict[str, float]]) -> None:
    """Print the metrics of each system."""
    from rich.table import Table

    queries, documents = document["data"]["queries"], document["data"]["corpus"]
    table = Table(
        title=f"{quantity(queries, 'held-out queries')}, {quantity(documents, 'documents')}"
    )
    table.add_column("metric")
    for system in systems:
        table.add_column(system, justify="right")
    for metric in systems["trained"]:
        table.add_row(metric, *(f"{values[metric]:.3f}" for values in systems.values()))
    _show(table)


def _print_tables(
    document: dict[str, Any], sections: Sequence[str] = ("tried", "protocols")
) -> None:
    """Print the settings that were tried, and the tables of a recommender; or those of other
    sections."""
    from itertools import chain

    from ..artifacts.report_tables import tables

    parts = tables(document)
    for part in chain.from_iterable(parts[section] for section in sections if section in parts):
        _print_table(part)


def _print_table(part: ReportTable) -> None:
    from rich.table import Table

    table = Table(title=part.title, title_justify="left")
    for name in part.head:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for heading, rows in part.sections.items():
        table.add_section()
        if heading:
            table.add_row(heading)
        for name, *cells in rows:
            table.add_row(f"  {name}" if heading else name, *cells)
    _show(table)


def _show(table: Any) -> None:
    """Print a table, which is never cut: where it is wider than the terminal, the terminal wraps
    it."""
    from rich.measure import Measurement

    plain = console()
    needed = Measurement.get(plain, plain.options.update(max_width=_WIDEST), table).maximum
    console(width=max(plain.width, needed)).print(table)


def console(**options: Any) -> Console:
    """Return a console to which brackets in names are no markup, and which leaves a reader that has
    gone to `answer`."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Plain(**{"markup": False, "emoji": False, **options})


def _print_end(document: dict[str, Any], next_command: str) -> None:
    """Print where time and memory went, and what to do next."""
    from ..engine.clock import age

    if document["cautions"]:
        say("\n".join(f"caution: {text}" for text in document["cautions"]))
    seconds = ", ".join(f"{name} {each['cpu']:.1f}" for name, each in document["seconds"].items())
    phases = sum(each["wall"] for each in document["seconds"].values())
    wall = max(phases, age())  # imports are in no phase; of a resumed run earlier processes are
    share = document["replaying"]
    cached = (
        f" ({share:.0%} of training embedded texts a second time, to save memory)"
        if share >= 0.005
        else ""
    )
    memory = f"peak memory {document['peak_memory_bytes'] / 2**20:,.0f} MiB"
    print(
        f"CPU seconds: {seconds}{cached}; {wall:.0f} s of wall time, without the start of the program; {memory}"
    )
    print(
        f"report: {document['output']}/report.html\n{next_command.format(output=quote(document['output']))}"
    )


def print_findings(documents: list[dict[str, Any]]) -> None:
    """Print each task of an evaluation, with intervals."""
    from rich.table import Table

    for document in documents:
        counts = [quantity(number, name) for name, number in document["counts"].items() if number]
        used = len(counts) if "pairs" in document["counts"] else _USED
        print(f"{document['task']}: {', '.join(counts[:used])}")
        table = Table()
        table.add_column("metric")
        shorter = _shorter(list(document["systems"]))
        for system in document["systems"]:
            table.add_column(shorter(system), justify="right")
        for metric in next(iter(document["systems"].values())):
            values = [system[metric] for system in document["systems"].values()]
            table.add_row(
                metric, *(f"{v['mean']:.4f} [{v['low']:.3f}, {v['high']:.3f}]" for v in values)
            )
        _show(table)
        sentences = [f"also in the data: {', '.join(counts[used:])}"] if counts[used:] else []
        sentences += map(shorter, document["verdicts"])
        if settings := document.get("bm25"):
            stem = "words by their stems" if settings["stem"] else "words as they are"
            source = (
                "as the run has tuned it on other queries"
                if settings["tuned"]
                else "untuned; a run tunes its own"
            )
            sentences.append(
                "bm25: k1 {k1:g}, b {b:g}, {stem}, {source}".format(
                    **{**settings, "stem": stem, "source": source}
                )
            )
        say("\n".join([*sentences, *(f"caution: {text}" for text in document["cautions"])]))


def _shorter(paths: Sequence[str]) -> Callable[[str], str]:
    """Return a function that leaves the beginnings of long paths out of a text, unless two would
    then be alike."""
    tails = {
        path: f".../{'/'.join(Path(path).parts[-2:])}"
        for path in sorted(set(paths), key=len, reverse=True)
    }
    long = {
        path: tail
        for path, tail in tails.items()
        if len(path) > _LONG_PATH and len(tail) < len(path)
    }

    def shorter(text: str) -> str:
        for path, tail in long.items() if len(set(tails.values())) == len(tails) else ():
            text = text.replace(path, tail)
        return text

    return shorter


def print_merge(document: dict[str, Any], written: Sequence[str]) -> None:
    """Print the scores at each weight, the best of them, and what was written."""
    from rich.table import Table

    if points := document.get("points"):
        table = Table(
            title="weight of the trained model, and the main metric of each set",
            title_justify="left",
        )
        for name in ("weight", *points[0]["scores"]):
            table.add_column(name, justify="right")
        for point in points:
            mark = "*" if point["weight"] == document["weight"] else ""
            table.add_row(
                f"{mark}{point['weight']:g}",
                *(f"{value:.4f}" for value in point["scores"].values()),
            )
        _show(table)
        say(f"{document['sentence']}\npicture: {document['picture']}")
    say("\n".join(written))


def print_events(document: dict[str, Any]) -> None:
    """Print the evaluation of a recommender on other interactions."""
    say("\n".join(document["notes"]))
    _print_tables(document)
    say("\n".join([*(f"caution: {text}" for text in document["cautions"]), *document["winners"]]))
    if "verdicts" in document:
        say("\n".join(document["verdicts"]))
