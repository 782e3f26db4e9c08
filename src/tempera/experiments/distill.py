"""Distillation without labels: a static model that compares texts as a larger model does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..arguments import refuse_other_kinds
from ..artifacts.run_folder import Run
from ..corpora.corpus_manifest import is_corpus
from ..mining.guide_source import GuideSource
from ..options import yaml_options as configuration
from ..options.yaml_options import Options
from ..run.recipe import train
from ..run.train import default_output


def options_of(
    model: str | Path, texts: str | Path, overrides: str | Iterable[str] = ()
) -> Options:
    """Return the options of a run in which a model teaches a static tower on texts."""
    folder = GuideSource.of(Path(model)).folder if is_corpus(model) else model
    own = {
        "recipe": "none",
        "data": {"source": "documents", "path": str(texts)},
        # The vectors of tokens need the model itself.
        "tower": {"kind": "static", "teacher": str(folder), "dimensions": 256},
        # The precision in which the teacher reads on a CPU.
        "train": {"teacher": str(model), "mixed_precision": "auto"},
    }
    return configuration.of(own, overrides)


def distill(
    model: str | Path,
    texts: str | Path,
    output: str | Path | None = None,
    overrides: str | Iterable[str] = (),
    overwrite: bool = False,
) -> Run:
    """Teach a static model on texts, without pairs, to compare them as `model` does, and leave a
    run folder.

    Args:
        model: folder of a saved model, of a run, or of an encoded corpus, whose model teaches by
            the vectors that are there already.
        texts: what `data.source: documents` reads: a folder of texts, a table with a column of
            texts, or a BEIR folder.
        output: the folder to make; None is runs/ and the name of the texts.
        overrides: dotted.key=value, as of `train`: data.queries=LOG, data.test=PAIRS,
            tower.dimensions=128.
        overwrite: replace a run that `output` holds, once the new one is complete.

    Raises:
        TemperaError: wrong options, no texts, or an output that cannot be written.

    >>> run = distill("runs/first", "pairs.jsonl", "runs/small", ["tower.dimensions=4", "train.max_steps=20"])
    >>> [name for name in run.metrics if name != "bm25"]
    ['untrained', 'teacher', 'trained', 'trained + BM25']
    """
    refuse_other_kinds(distill, locals())
    GuideSource.of(Path(model))  # raises before anything is read if there is no model
    options = options_of(model, texts, overrides)
    return train(options, output or default_output(texts), overwrite=overwrite)
