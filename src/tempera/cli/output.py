"""Tables of runs and of evaluations, on the terminal."""

from __future__ import annotations

from shlex import quote
from typing import Any

from .shared import say


def print_run(document: dict[str, Any]) -> None:
    """Print the metrics of a run, and what to do next."""
    from rich.console import Console
    from rich.table import Table

    if "protocols" in document:
        _print_tables(document)
        _print_end(document, "recommend: tempera recommend {output} --user ID")
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
    if document.get("hybrid"):
        from ..ranking.fusion import Fusion

        size = document["bytes"]["words.parquet"] / 1e6
        print(
            f"words and vectors together: add --hybrid ({Fusion(**document['hybrid'])}; index of words {size:.1f} MB)"
        )


def _print_tables(document: dict[str, Any]) -> None:
    """Print the tables of a recommender."""
    from rich.console import Console
    from rich.table import Table

    from ..artifacts.report_tables import tables

    for part in tables(document):
        table = Table(title=part.title, title_justify="left")
        for name in part.head:
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        for heading, rows in part.sections.items():
            table.add_section()
            if heading:
                table.add_row(heading)
            for name, *cells in rows:
                table.add_row(f"  {name}" if heading else name, *cells)
        Console().print(table)


def _print_end(document: dict[str, Any], next_command: str) -> None:
    """Print where time and memory went, and what to do next."""
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in document["seconds"].items())
    share = document["replaying"]
    cached = f" ({share:.0%} of training embedded texts a second time, to save memory)" if share >= 0.005 else ""
    print(f"{seconds}{cached}; peak memory {document['peak_memory_bytes'] / 2**20:,.0f} MiB")
    print(f"report: {document['output']}/report.html\n{next_command.format(output=quote(document['output']))}")


def print_findings(documents: list[dict[str, Any]]) -> None:
    """Print each task of an evaluation, with intervals."""
    from rich.console import Console
    from rich.table import Table

    for document in documents:
        counts = (f"{number:,} {name}" for name, number in document["counts"].items() if number)
        table = Table(title=", ".join([document["task"], *counts]))
        table.add_column("metric")
        for system in document["systems"]:
            table.add_column(system, justify="right")
        for metric in next(iter(document["systems"].values())):
            values = [system[metric] for system in document["systems"].values()]
            table.add_row(metric, *(f"{v['mean']:.4f} [{v['low']:.3f}, {v['high']:.3f}]" for v in values))
        Console().print(table)
        say("\n".join(document["verdicts"]))
