"""The command to distil a model into a static model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import TemperaError
from .output import print_run
from .shared import Json, answer, refuse_absent, sorted_out

_TRIED = 200  # queries by which the speed is measured


def distill(
    model: Path,
    arguments: Annotated[list[str], typer.Argument(metavar="TEXTS|SECTION.OPTION=VALUE")],
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    overwrite: bool = False,
    as_json: Json = False,
) -> None:
    """Distil a model into a static model, by texts alone.

    The texts are a folder of texts, a table with a column of texts, or a BEIR folder. Options are
    as for `tempera train`, e.g. data.queries=LOG, data.test=PAIRS, tower.dimensions=128 and
    train.max_steps=600.

    Args:
        model: model folder or run folder of the teacher, or a folder of vectors that it has
            encoded.
        arguments: texts, and options of a configuration.
        output: run folder to write (default: runs/ and the name of the texts).
        overwrite: replace the run in --output; an interrupted run is resumed.
    """
    refuse_absent(model)
    from ..engine.devices import start, stop
    from ..experiments.distill import distill as run_distillation
    from ..mining.embedder import rates
    from ..mining.guide_source import GuideSource

    paths, overrides = sorted_out(arguments)
    if len(paths) != 1:
        raise TemperaError(f"give one folder or table of texts, not {len(paths)}")
    run = run_distillation(model, paths[0], output, overrides, overwrite)
    if start().group.main:
        queries = run.index.documents["text"][:_TRIED].to_pylist()
        teacher = str(GuideSource.of(model).folder)
        speeds = rates({"teacher": teacher, "trained": str(run.folder)}, queries)
        document = {"output": str(run.folder.absolute()), **run.results}
        document["queries_per_second"] = speeds
        answer(document, as_json, lambda: print_run(document))
    stop()
