"""Tables of runs and of findings, on the terminal."""

from __future__ import annotations

from shlex import quote
from typing import Any

from .shared import say


def print_run(document: dict[str, Any]) -> None:
    """What a run has come to."""
    from rich.console import Console
    from rich.table import Table

    if "protocols" in document:
        _print_tables(document)
        _print_end(document, "recommend: tempera recommend {output} --user <an id>")
        return
    systems: dict[str, dict[str, float]] = document["metrics"]
    table = Table(title=f"{document['data']['queries']:,} held-out queries, {document['data']['corpus']:,} documents")
    table.add_column("metric")
    for system in systems:
        table.add_column(system, justify="right")
    for metric in systems["trained"]:
        table.add_row(metric, *(f"{values[metric]:.3f}" for values in systems.values()))
    Console().print(table)
    _print_end(document, 'search: tempera search {output} "what you look for"')


def _print_tables(document: dict[str, Any]) -> None:
    """A recommender's."""
    from rich.console import Console
    from rich.table import Table

    from ..artifacts.report_tables import tables

    for found in tables(document):
        table = Table(title=found.title, title_justify="left")
        for name in found.head:
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        for heading, rows in found.sections.items():
            table.add_section()
            if heading:
                table.add_row(heading)
            for name, *cells in rows:
                table.add_row(f"  {name}" if heading else name, *cells)
        Console().print(table)


def _print_end(document: dict[str, Any], next_command: str) -> None:
    """Where time and memory went, and what to do next."""
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in document["seconds"].items())
    replaying = f"{document['replaying']:.0%} of training embedding again"
    print(f"{seconds} ({replaying}); peak memory {document['peak_memory_bytes'] / 2**20:,.0f} MiB")
    print(f"report: {document['output']}/report.html\n{next_command.format(output=quote(document['output']))}")


def print_findings(documents: list[dict[str, Any]]) -> None:
    """Each task of a judgement, with intervals."""
    from rich.console import Console
    from rich.table import Table

    for document in documents:
        counts = (f"{number:,} {what}" for what, number in document["counts"].items() if number)
        table = Table(title=", ".join([document["task"], *counts]))
        table.add_column("metric")
        for system in document["systems"]:
            table.add_column(system, justify="right")
        for metric in next(iter(document["systems"].values())):
            found = [system[metric] for system in document["systems"].values()]
            table.add_row(metric, *(f"{f['mean']:.4f} [{f['low']:.3f}, {f['high']:.3f}]" for f in found))
        Console().print(table)
        say("\n".join(document["verdicts"]))
