"""Tables of runs and of evaluations, on the terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from ..errors import quantity
from .shared import say, with_picture

if TYPE_CHECKING:  # it takes time to load
    from rich.console import Console

    from ..artifacts.report_tables import ReportTable
    from ..ranking.fusion import Fusion

_WIDEST = 1000  # letters of a line of a table
_OF_TERMINALS = {"FORCE_COLOR", "TTY_COMPATIBLE"}  # variables that rich looks at
_LONG_PATH = 40  # letters of a path that heads a column
_USED = 3  # first counts of a task: its queries, documents and judgements


def print_run(document: dict[str, Any]) -> None:
    """Print the metrics of a run and the next command; with --quiet, the result and the cautions
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
        speeds = []
        for name, speed in document["queries_per_second"].items():
            speeds.append(f"{name} {speed:,.0f}")
        print(f"queries a second on one core, one after the other: {', '.join(speeds)}")
    if document.get("hybrid"):
        from ..ranking.fusion import Fusion

        fusion = Fusion(**document["hybrid"])
        megabytes = document["bytes"]["words.parquet"] / 1e6
        print(
            f"words and vectors together: {_hybrid_advice(systems, fusion)} ({fusion}; index of words {megabytes:.1f} MB)"
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
    say("\n".join(_cautions(document)))


def _cautions(document: dict[str, Any]) -> list[str]:
    """Return the cautions of a run or an evaluation as lines."""
    return [f"caution: {text}" for text in document["cautions"]]


def _hybrid_advice(systems: Mapping[str, Mapping[str, float]], fusion: Fusion) -> str:
    """Return the command for a search by words and vectors together, and the system that was better
    on the test."""
    from ..task.verdict import FUSED, main_metric

    if fusion.weight == 1:
        return "words add nothing on validation, so --hybrid ranks by the vectors alone"
    if not systems or FUSED not in systems:
        return "add --hybrid"
    metric = main_metric(systems["trained"])
    best = systems["trained"][metric]
    name = "the vectors"
    if "bm25" in systems and systems["bm25"][metric] > best:
        best = systems["bm25"][metric]
        name = "BM25"
    if systems[FUSED][metric] < best:
        return f"--hybrid, here below {name} alone"
    return "add --hybrid"


def _print_counting(document: dict[str, Any]) -> None:
    """Print the systems behind a recommender's answers, and the option to change the systems."""
    from ..ranking.fusion import Fusion

    counting = document["counting"]
    megabytes = document["bytes"]["counts.parquet"] / 1e6
    vectors = "the vectors alone recommend"
    hybrid = "both together recommend" if document["hybrid"]["weight"] else "counts alone recommend"
    advice = f"{vectors}; {hybrid} with --hybrid"
    if counting["served"]:
        advice = f"{hybrid}; {vectors} with --vectors"
    print(
        f"vectors and {counting['system']}: {Fusion(**document['hybrid'])}; table of counts {megabytes:.1f} MB; "
        f"{advice}"
    )


def _print_metrics(document: dict[str, Any], systems: dict[str, dict[str, float]]) -> None:
    """Print the metrics of each system."""
    from rich.table import Table

    queries = quantity(document["data"]["queries"], "held-out queries")
    documents = quantity(document["data"]["corpus"], "documents")
    table = Table(title=f"{queries}, {documents}")
    table.add_column("metric")
    for system in systems:
        table.add_column(system, justify="right")
    for metric in systems["trained"]:
        cells = [f"{values[metric]:.3f}" for values in systems.values()]
        table.add_row(metric, *cells)
    _show(table)


def _print_tables(
    document: dict[str, Any], sections: Sequence[str] = ("tried", "protocols")
) -> None:
    """Print the tables of some sections of a report."""
    from ..artifacts.report_tables import tables

    parts = tables(document)
    for section in sections:
        for table in parts.get(section, []):
            _print_table(table)


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
    """Print a table at its full width; a narrower terminal wraps the lines."""
    from rich.measure import Measurement

    plain = console()
    needed = Measurement.get(plain, plain.options.update(max_width=_WIDEST), table).maximum
    console(width=max(plain.width, needed)).print(table)


def has_styles() -> bool:
    """Return False if `console` would print plain text: standard output is no terminal, and no
    variable of the environment says otherwise."""
    return sys.stdout.isatty() or not _OF_TERMINALS.isdisjoint(os.environ)


def console(**options: Any) -> Console:
    """Return a console that prints brackets in names as they are, and leaves a broken pipe to
    `answer`."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Plain(**{"markup": False, "emoji": False, **options})


def _print_end(document: dict[str, Any], next_command: str) -> None:
    """Print the cautions, the time and the memory of a run, and the next command."""
    from ..engine.clock import age

    if document["cautions"]:
        say("\n".join(_cautions(document)))
    phases = []
    wall_of_phases = 0.0
    for name, seconds in document["seconds"].items():
        phases.append(f"{name} {seconds['cpu']:.1f}")
        wall_of_phases += seconds["wall"]
    cpu = ", ".join(phases)
    share = document["replaying"]
    if share >= 0.005:
        cpu += f" ({share:.0%} of training embedded texts a second time, to save memory)"
    # Imports are in no phase, but in the age of this process; the phases of a resumed run are also
    # of earlier processes.
    wall = max(wall_of_phases, age())
    memory = f"peak memory {document['peak_memory_bytes'] / 2**20:,.0f} MiB"
    print(
        f"CPU seconds: {cpu}; {wall:.0f} s of wall time, without the start of the program; {memory}"
    )
    print(f"report: {document['output']}/report.html")
    print(next_command.format(output=quote(document["output"])))


def print_findings(documents: list[dict[str, Any]]) -> None:
    """Print each task of an evaluation, with intervals."""
    for document in documents:
        counts = [quantity(number, name) for name, number in document["counts"].items() if number]
        used = len(counts) if "pairs" in document["counts"] else _USED
        print(f"{document['task']}: {', '.join(counts[:used])}")
        shorten = _shortener(list(document["systems"]))
        _print_systems(document["systems"], shorten)
        sentences = []
        if counts[used:]:
            sentences.append(f"also in the data: {', '.join(counts[used:])}")
        sentences += [shorten(verdict) for verdict in document["verdicts"]]
        settings = document.get("bm25")
        if settings:
            stem = "words by their stems" if settings["stem"] else "words as they are"
            source = "untuned; a run tunes its own"
            if settings["tuned"]:
                source = "as the run has tuned it on other queries"
            sentences.append(f"bm25: k1 {settings['k1']:g}, b {settings['b']:g}, {stem}, {source}")
        sentences += _cautions(document)
        say("\n".join(sentences))


def _print_systems(
    systems: dict[str, dict[str, dict[str, float]]], shorten: Callable[[str], str]
) -> None:
    """Print the metrics of each system with their intervals."""
    from rich.table import Table

    table = Table()
    table.add_column("metric")
    for system in systems:
        table.add_column(shorten(system), justify="right")
    for metric in next(iter(systems.values())):
        cells = []
        for metrics in systems.values():
            value = metrics[metric]
            cells.append(f"{value['mean']:.4f} [{value['low']:.3f}, {value['high']:.3f}]")
        table.add_row(metric, *cells)
    _show(table)


def _shortener(paths: Sequence[str]) -> Callable[[str], str]:
    """Return a function that cuts the beginnings of long paths in a text, unless two paths would
    become alike."""
    # The longest path is replaced first, since it may contain a shorter path.
    longest_first = sorted(set(paths), key=len, reverse=True)
    tails = {path: f".../{'/'.join(Path(path).parts[-2:])}" for path in longest_first}
    are_distinct = len(set(tails.values())) == len(tails)

    def shorten(text: str) -> str:
        for path, tail in tails.items():
            if are_distinct and len(path) > _LONG_PATH and len(tail) < len(path):
                text = text.replace(path, tail)
        return text

    return shorten


def print_merge(document: dict[str, Any], written: Sequence[str]) -> None:
    """Print the scores at each weight with the best weight marked, and the written files."""
    from rich.table import Table

    points = document.get("points")
    if points:
        table = Table(
            title="weight of the trained model, and the main metric of each set",
            title_justify="left",
        )
        for name in ("weight", *points[0]["scores"]):
            table.add_column(name, justify="right")
        for point in points:
            mark = "*" if point["weight"] == document["weight"] else ""
            scores = [f"{score:.4f}" for score in point["scores"].values()]
            table.add_row(f"{mark}{point['weight']:g}", *scores)
        _show(table)
        say(with_picture(document["sentence"], document["picture"] or ""))
    say("\n".join(written))


def print_events(document: dict[str, Any]) -> None:
    """Print the evaluation of a recommender on other interactions."""
    say("\n".join(document["notes"]))
    _print_tables(document)
    say("\n".join(_cautions(document) + document["winners"]))
    if "verdicts" in document:
        say("\n".join(document["verdicts"]))
