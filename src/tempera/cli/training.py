"""Commands to train a model and to verify training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .output import print_run
from .shared import Arguments, Json, answer, say, split


def train(
    arguments: Arguments = None,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    overwrite: bool = False,
    print_config: bool = False,
    dry_run: bool = False,
    as_json: Json = False,
) -> None:
    """Train a retriever or a recommender on your own data.

    Give a table, a folder or a configuration file; without any, a model is trained on the code of
    the installed Python. The same command resumes an interrupted run.

    Args:
        output: run folder to write (default: runs/ and the name of the file).
        overwrite: replace the run in --output; an interrupted run is resumed.
        print_config: print all options with values, as YAML, and exit.
        dry_run: read the data, show the plan of the training, and exit.
    """
    from ..options import yaml_options as configuration
    from ..run.recipe import opened, shown
    from ..run.recipe import train as train_by_recipe

    file, overrides = split(arguments or [])
    if print_config:
        from ..options.build import build

        options, free = opened(configuration.load(file, overrides))
        resolved = shown(build(options).resolved, free)
        answer(resolved, as_json, lambda: sys.stdout.write(configuration.dump(resolved)))
        return
    if dry_run:
        from ..run.dry_run import lines, rehearse

        options, free = opened(configuration.load(file, overrides))
        expected = {**rehearse(options), "open": free}
        answer(expected, as_json, lambda: say("\n".join(lines(expected))))
        return
    from ..engine.devices import start, stop

    run = train_by_recipe(file, output, overrides, overwrite)
    if start().group.main:
        document = {"output": str(run.folder.absolute()), **run.results}
        answer(document, as_json, lambda: print_run(document))
    stop()


def verify(arguments: Arguments = None, as_json: Json = False) -> None:
    """Check the computations of training on your data.

    Losses, gradients, caching, several processes and resuming are compared with the definitions.
    Exit code 1 if any check fails.
    """
    from ..options import yaml_options as configuration
    from ..run.recipe import opened
    from ..run.verify import verify as run_verification

    file, overrides = split(arguments or [])
    options, _ = opened(configuration.load(file, overrides))
    proofs = run_verification(options)
    width = max(len(proof.name) for proof in proofs)
    lines = []
    for proof in proofs:
        outcome = "ok" if proof.passed else "FAIL"
        lines.append(f"{outcome:<5}{proof.name:<{width}}  {proof.difference:>14}  {proof.bound}")
    answer([vars(proof) for proof in proofs], as_json, lambda: say("\n".join(lines)))
    if not all(proof.passed for proof in proofs):
        raise typer.Exit(1)
