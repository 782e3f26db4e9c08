"""Evaluation of a model by MTEB's own package, on MTEB's tasks or on a retrieval set of one's own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...arguments import refuse_other_kinds
from ...errors import ConfigError, OutputError
from ...forms.roles import Roles
from ...io.atomic import adding, is_run, new_file, refuse_replacing, write_file
from ...io.console import aligned
from ...io.require import require
from ...mining.embedder import Model, Reading, in_half, run_of
from ...towers.saved import fingerprint
from .evaluate import Finding
from .hybrid import weight_of
from .mteb_models import MtebEncoder, MtebHybrid
from .mteb_tasks import made_task, named_task, read_retrieval

FOLDER = "evaluations/mteb"  # in the folder of a run
_BATCH = 1024  # texts in a batch of MTEB
# Scores of a retrieval that are printed, behind the main score of the task.
_SHOWN = ("ndcg_at_10", "mrr_at_10", "map_at_100", "recall_at_10", "recall_at_100")
Scores = dict[str, dict[str, dict[str, float]]]


@dataclass(repr=False, frozen=True)
class JudgedByMteb:
    """The result of MTEB's package on a task.

    Args:
        model: path of the evaluated model.
        hybrid: True for a search by words and vectors together.
        result: MTEB's `TaskResult`.
        main: name of the main score of the task.
        file: the file with MTEB's result.
        cautions: reasons why scores mislead.
    """

    model: str
    hybrid: bool
    result: Any
    main: str
    file: Path
    cautions: tuple[str, ...] = ()

    @property
    def scores(self) -> Scores:
        """The scores of MTEB by split, by subset and by name, without its scores of abstention."""
        scores: Scores = {}
        for split, subsets in self.result.scores.items():
            scores[split] = {}
            for subset in subsets:
                numbers = {}
                for name, value in subset.items():
                    is_number = isinstance(value, int | float) and math.isfinite(value)
                    if is_number and not name.startswith("nauc"):
                        numbers[name] = float(value)
                scores[split][subset["hf_subset"]] = numbers
        return scores

    def json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "model": self.model,
            "hybrid": self.hybrid,
            "task": self.result.task_name,
            "mteb": self.result.mteb_version,
            "main_score": self.main,
            "scores": self.scores,
            "output": str(self.file),
            "cautions": list(self.cautions),
        }

    def __repr__(self) -> str:
        """Return the table of the scores, the cautions, and the place of the file."""
        system = "words and vectors together" if self.hybrid else "vectors"
        lines = [f"{self.result.task_name}, by MTEB {self.result.mteb_version}: {system}"]
        every = [subset for split in self.scores.values() for subset in split.values()]
        names = dict.fromkeys([self.main, *_SHOWN])
        shown = [name for name in names if all(name in scores for scores in every)]
        rows = [["split", "subset", *shown]]
        for split, subsets in self.scores.items():
            for subset, scores in subsets.items():
                rows.append([split, subset, *[f"{scores[name]:.4f}" for name in shown]])
        lines.append(aligned(rows, str.ljust))
        lines += [f"caution: {text}" for text in self.cautions]
        lines.append(f"written: {self.file}")
        return "\n".join(lines)


def evaluate_mteb(
    model: str | Path,
    task: str | Path,
    hybrid: bool = False,
    split: str = "test",
    roles: Roles | None = None,
    mixed_precision: Reading = "no",
    output: str | Path | None = None,
    overwrite: bool = False,
) -> JudgedByMteb:
    """Evaluate a model by MTEB's own package.

    A path becomes a retrieval task of MTEB with its data in memory, for which nothing is
    downloaded. A name is a task of MTEB, which MTEB loads from its cache or from the hub.

    Args:
        model: a model folder or a run folder.
        task: a retrieval set or a table of pairs; or the name of a task of MTEB, such as SciFact.
        hybrid: rank by words (BM25, with its usual settings) and vectors together, with the run's
            chosen weight.
        split: of a BEIR folder.
        roles: roles of a table's columns.
        mixed_precision: "auto" reads texts in bf16 where the processor multiplies it fast.
        output: a folder of results as MTEB keeps them (`mteb.ResultCache`); None is
            RUN/evaluations/mteb.
        overwrite: replace an earlier result of the model on the task.

    Raises:
        MissingLibrary: mteb is not installed.
        ConfigError: no such task, or a task that the model cannot do; a model outside of a run
            without `output`.
        DataError: a model or data that cannot be read.
        OutputError: the result exists, or cannot be written.

    >>> judged = evaluate_mteb("runs/first", "pairs.jsonl")  # doctest: +SKIP
    >>> judged.scores["test"]["default"]["ndcg_at_10"]  # doctest: +SKIP
    0.87042
    """
    refuse_other_kinds(evaluate_mteb, locals())
    require("mteb", "an evaluation by MTEB")
    import mteb
    from mteb.abstasks import AbsTaskRetrieval

    half = in_half(mixed_precision)
    encoded = Model(str(model), half)
    place = _place(Path(model), output)
    cautions: tuple[str, ...] = ()
    path = Path(task)
    if path.exists():
        rows = read_retrieval(path, split, roles)
        judged = made_task(rows, path, split)
        learned = encoded.trained_on(rows.queries["text"])
        trained = {encoded.path: learned} if learned else {}
        cautions = tuple(Finding(rows, {}, trained).cautions())
    else:
        judged = _named(str(task), split, roles)
    if hybrid and not isinstance(judged, AbsTaskRetrieval):
        raise ConfigError(
            f"{judged.metadata.name} is a task of {judged.metadata.type}, in which nothing is searched: leave out hybrid"
        )
    meta = _meta(encoded, hybrid)
    file = _result_file(place, meta, judged.metadata.name)
    if output is None and file.exists() and not overwrite:
        raise OutputError(f"{file} exists: give --overwrite to replace it, or another --output")
    if output is not None:
        refuse_replacing(file, overwrite, task, models=[model])
    encoder = MtebEncoder(encoded, meta)
    system: Any = encoder
    if hybrid:
        system = MtebHybrid(encoder, weight_of(Path(model)), meta)
    with _without_bars():
        results = mteb.evaluate(
            system,
            judged,
            cache=None,
            co2_tracker=False,
            encode_kwargs={"batch_size": _BATCH, "show_progress_bar": False},
            show_progress_bar=False,
        )
    (result,) = results.task_results
    _write(file, result, meta)
    return JudgedByMteb(str(model), hybrid, result, judged.metadata.main_score, file, cautions)


def _place(model: Path, output: str | Path | None) -> Path:
    """Return the folder of results.

    Raises:
        ConfigError: no folder is given, and the model is no run.
    """
    if output is not None:
        return Path(output)
    run = run_of(model)
    if not is_run(run):
        raise ConfigError(
            f"{model} is no run with a place for results: say where to write, by --output FOLDER"
        )
    return run / FOLDER


def _named(name: str, split: str, roles: Roles | None) -> Any:
    """Return a task of MTEB by its name.

    Raises:
        ConfigError: as `named_task`, or a split or roles, which are for a set of one's own.
    """
    if split != "test" or roles is not None:
        raise ConfigError(
            f"there is no {name} to read; a split and roles are for a retrieval set or a table"
        )
    return named_task(name)


def _meta(model: Model, hybrid: bool) -> Any:
    """Return MTEB's description of a model: the name of its run, and the hash of its files."""
    from mteb.models import ModelMeta

    name = f"tempera/{run_of(Path(model.path)).resolve().name}"
    if hybrid:
        name += "+bm25"
    return ModelMeta.create_empty({"name": name, "revision": fingerprint(model.folder)})


def _result_file(place: Path, meta: Any, task: str) -> Path:
    """Return the place where MTEB's `ResultCache` looks for the result of a model on a task."""
    model: str = meta.model_name_as_path()
    revision: str = meta.revision
    return place / "results" / model / revision / f"{task}.json"


@contextmanager
def _without_bars() -> Iterator[None]:
    """Hide the bars of `datasets` in a block: texts are encoded under a bar of their own."""
    import datasets

    were_hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_hidden:
            datasets.enable_progress_bars()


def _write(file: Path, result: Any, meta: Any) -> None:
    """Write MTEB's result and its description of the model, and record both in the manifest of a
    run."""
    about = file.with_name("model_meta.json")
    with adding(file.parent, [file.name, about.name]):
        with new_file(file) as partial:
            result.to_disk(partial)
        content = json.dumps(meta.to_dict(), indent=2, default=str)
        write_file(about, content.encode())
