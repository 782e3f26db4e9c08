"""Commands that train, and that prove what training computes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .output import print_run
from .shared import Arguments, Json, answer, say, split


def train(
    arguments: Arguments = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The run folder to make.")] = Path(
        "runs/first"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that --output holds.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every option, resolved, and stop.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be trained on, and for how long.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a retriever; without a configuration, one that searches the installed Python's code."""
    from .. import config as configuration

    file, overrides = split(arguments or [])
    if print_config:
        from ..build import build

        resolved = build(configuration.load(file, overrides)).resolved
        answer(resolved, as_json, lambda: sys.stdout.write(configuration.dump(resolved)))
        return
    if dry_run:
        from ..run.dry_run import lines, rehearse

        found = rehearse(file, overrides)
        answer(found, as_json, lambda: say("\n".join(lines(found))))
        return
    from ..engine.devices import start, stop
    from ..run.train import train as run_training

    run = run_training(file, output, overrides, overwrite)
    if start().group.main:
        document = {"output": str(run.folder.absolute()), **run.document}
        answer(document, as_json, lambda: print_run(document))
    stop()


def verify(
    arguments: Arguments = None,
    as_json: Json = False,
) -> None:
    """Prove on your own data that the configuration computes what it says; exit code 1 if it does not."""
    from ..run.verify import verify as run_verification

    proofs = run_verification(*split(arguments or []))
    width = max(len(proof.name) for proof in proofs)
    lines = [
        f"{'ok' if proof.passed else 'FAIL':<5}{proof.name:<{width}}  {proof.found:>14}  {proof.bound}"
        for proof in proofs
    ]
    answer([vars(proof) for proof in proofs], as_json, lambda: say("\n".join(lines)))
    if not all(proof.passed for proof in proofs):
        raise typer.Exit(1)
