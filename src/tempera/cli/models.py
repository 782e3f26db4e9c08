"""Commands that use a model: evaluate, export, mine, merge."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import typer

from ..errors import TemperaError
from .evaluating_mteb import evaluate_by_mteb
from .output import print_events, print_findings, print_merge
from .shared import (
    Count,
    Json,
    Output,
    answer,
    one_with_roles,
    refuse_absent,
    refuse_split,
    say,
    with_roles,
)
from .shared import split as split_arguments

_FACTS = {  # numbers of an export, in words
    "largest_difference": "largest difference of a coordinate from the saved model",
    "overlap@10": "share of the 10 exact nearest neighbours that the index finds",
    "tried_on": "users in the comparison",
    "test_queries": "queries by which the run was judged, in qrels/test.tsv",
    "validation_queries": "queries of its validation, in qrels/dev.tsv",
}


def evaluate(
    model: Path,
    data: Annotated[list[str] | None, typer.Argument(metavar="DATA|data.ROLE=COLUMN")] = None,
    against: Path | None = None,
    bm25: bool = False,
    split: str = "test",
    metrics: str = "",
    k: Annotated[str, typer.Option("-k", "--k")] = "",
    exclude_self: bool = False,
    queries: Annotated[int | None, typer.Option(min=1)] = None,
    per_query: Path | None = None,
    mixed_precision: Literal["no", "auto"] = "no",
    index: Path | None = None,
    mteb: Annotated[str | None, typer.Option(metavar="TASK")] = None,
    hybrid: bool = False,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    overwrite: bool = False,
    as_json: Json = False,
) -> None:
    """Evaluate a model, also against another model or BM25.

    Differences are reported with confidence intervals. Processes of torchrun divide the work.
    With --mteb, MTEB's own package evaluates the model.

    Args:
        model: model folder or run folder.
        data: BEIR folders, tables of pairs, or tables with columns sentence1, sentence2 and score;
            of a recommender a table of later interactions; of a run nothing, for the run's held-out
            queries.
        against: another model, compared query by query.
        bm25: compare with BM25, too.
        split: split to read from a BEIR folder.
        metrics: any of ndcg, mrr, map, recall, precision, hit, e.g. ndcg@10,mrr.
        k: depths of metrics without a depth, e.g. 1,10.
        exclude_self: leave a query's own text out of the ranking.
        queries: of a recommender, the largest number of queries of each protocol, drawn at random
            (default: all).
        per_query: write every score to this .parquet or .csv file.
        mixed_precision: auto reads texts in bf16 where the processor multiplies bf16 fast.
        index: folder of vectors of the model, to take by the documents' ids.
        mteb: evaluate by MTEB's package, on a BEIR folder or a table of pairs, or on the task of
            MTEB with this name, which MTEB loads from its cache or from the hub.
        hybrid: with --mteb, rank by words (BM25) and vectors together.
        output: with --mteb, folder of results (default: RUN/evaluations/mteb).
        overwrite: replace the file of --per-query, or an earlier result of --mteb.
    """
    refuse_absent(model, against)
    from ..engine.devices import joint_work
    from ..finished.held_out_set import evaluate_held_out, inputs_of
    from ..task.run_files import HISTORIES
    from ..text.judge import evaluate as judge

    depths = [_depth(part) for part in k.split(",") if part.strip()]
    names = [name.strip() for name in metrics.split(",") if name.strip()]
    if (model / HISTORIES).is_file():
        own = {
            "bm25": bm25,
            "exclude_self": exclude_self,
            "split": split != "test",
            "mixed_precision": mixed_precision != "no",
            "index": index is not None,
            "mteb": mteb is not None,
            "hybrid": hybrid,
            "output": output is not None,
        }
        for name, is_given in own.items():
            if is_given:
                raise TemperaError(
                    f"--{name.replace('_', '-')} is for models of texts, and {model} is a recommender"
                )
        judged = {
            "metrics": judge.resolved(names, depths) if names or depths else (),
            "queries": queries,
            "against": against,
        }
        _evaluate_events(model, data or [], judged, per_query, overwrite, as_json)
        return
    if queries is not None:
        raise TemperaError(f"--queries is for recommenders, and {model} is none")
    if mteb is not None:
        others = {
            "against": against is not None,
            "bm25": bm25,
            "metrics": bool(metrics),
            "k": bool(k),
            "exclude_self": exclude_self,
            "per_query": per_query is not None,
            "index": index is not None,
        }
        options = {
            "hybrid": hybrid,
            "split": split,
            "mixed_precision": mixed_precision,
            "output": output,
            "overwrite": overwrite,
        }
        evaluate_by_mteb(model, mteb, data or [], others, options, as_json)
        return
    if hybrid or output is not None:
        name = "--hybrid" if hybrid else "--output"
        raise TemperaError(f"{name} is for evaluations by MTEB: add --mteb TASK, or drop it")
    paths, roles = with_roles(data) if data else ([], None)
    if per_query is not None:
        models = [model] if against is None else [model, against]
        judge.refuse_scores(per_query, overwrite, paths or inputs_of(model), models)
    how: dict[str, Any] = {
        "metrics": names,
        "k": depths,
        "mixed_precision": mixed_precision,
        "against": against,
        "bm25": bm25,
        "exclude_self": exclude_self,
    }
    findings: list[Any]
    if not paths:
        refuse_split(split, "test")
        if index is not None:
            raise TemperaError("--index has the documents of DATA: give DATA")
    with joint_work() as group:
        how["group"] = group
        if paths:
            findings = judge.evaluate(model, *paths, split=split, roles=roles, index=index, **how)
        else:
            findings = [evaluate_held_out(model, **how)]
    if not group.main:
        return
    if per_query is not None:
        judge.write_per_query(per_query, findings, overwrite)
    documents = [finding.json() for finding in findings]
    document = {
        "model": str(model),
        "against": None if against is None else str(against),
        "tasks": documents,
    }
    answer(document, as_json, lambda: print_findings(documents))


def _evaluate_events(
    run: Path,
    data: list[str],
    judged: dict[str, Any],
    per_query: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Evaluate a recommender on later interactions, or on the held-out interactions."""
    from ..artifacts.run_folder import Run
    from ..engine.devices import joint_work
    from ..finished.held_out_events import evaluate_held_out_events, refuse_other_kind
    from ..finished.held_out_set import inputs_of
    from ..text.judge.evaluate import refuse_scores, write_per_query

    file, options = split_arguments(data)
    against = judged["against"]
    if file is None and options:
        raise TemperaError(f"give a table of later interactions to evaluate on, with {options[0]}")
    if per_query is not None:
        inputs = inputs_of(run) if file is None else [file]
        models = [run] if against is None else [run, against]
        refuse_scores(per_query, overwrite, inputs, models)
    if file is not None and against is not None:
        refuse_other_kind(run, against)
    with joint_work() as group:
        judged["group"] = group
        if file is None:
            finding = evaluate_held_out_events(run, **judged)
        else:
            finding = Run(run).evaluate(file, options=options, **judged)
    if not group.main:
        return
    if per_query is not None:
        write_per_query(per_query, [finding], overwrite)
    document = {"model": str(run), **finding.json()}
    answer(document, as_json, lambda: print_events(document))


def export(
    run: Path,
    to: Annotated[str, typer.Option()],
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    kind: str | None = None,
    width: Annotated[int | None, typer.Option(min=1)] = None,
    now: Annotated[str | None, typer.Option(metavar="TIME")] = None,
    overwrite: bool = False,
    as_json: Json = False,
) -> None:
    """Export a model, its vectors, or the held-out queries.

    A model goes to ONNX (of a recommender, the tower of users), vectors to FAISS or Parquet, and
    queries to a BEIR folder.

    Args:
        run: run folder; for ONNX also a model folder; for FAISS also a folder of vectors.
        to: format: onnx, faiss, parquet, or beir: the held-out queries of a run with the answers,
            to judge further models by.
        output: folder to write (default: RUN/export/FORMAT).
        kind: kind of FAISS index: hnsw (default), ivf_pq (default of a folder of vectors),
            ivf_fast (for mining in one), int8, or binary (signs, and int8 to rank the nearest
            again).
        width: first numbers of each vector to keep (default: all).
        now: moment that ends the pauses of a recommender's users, in the form of the data's times
            (default: the latest time of the data).
        overwrite: replace an earlier export in --output.
    """
    from ..corpora.corpus_manifest import is_corpus
    from ..exports.export import BEIR

    if is_corpus(run):
        from ..artifacts.encoded_corpus import EncodedCorpus

        if width is not None or now is not None:
            raise TemperaError("--width and --now are for runs: drop them for a folder of vectors")
        facts = EncodedCorpus(run).export(to, output, kind or "ivf_pq", overwrite)
    elif to == BEIR:
        from ..finished.held_out_set import export_held_out

        if kind is not None or width is not None or now is not None:
            raise TemperaError("--kind, --width and --now are for vectors: drop them for beir")
        facts = export_held_out(run, output, overwrite)
    else:
        from ..artifacts.run_folder import Run

        facts = Run(run).export(to, output, kind, overwrite, width, now)
    lines = [f"written: {facts['output']}"]
    for name, value in facts.items():
        if isinstance(value, int):
            lines.append(f"{_FACTS.get(name, name)}: {value:,}")
        elif isinstance(value, float):
            lines.append(f"{_FACTS.get(name, name)}: {value:.3g}")
    lines += [f"note: {note}" for note in facts.get("notes", ())]
    answer(facts, as_json, lambda: say("\n".join(lines)))


def mine(
    model: Path,
    pairs: Annotated[list[str], typer.Argument(metavar="PAIRS|data.ROLE=COLUMN")],
    output: Output,
    corpus: Path | None = None,
    split: str = "train",
    negatives: Annotated[int, typer.Option("--negatives", "-n", min=1)] = 10,
    skip: Annotated[int, typer.Option(min=0)] = 0,
    depth: Count = 100,
    absolute_margin: float | None = None,
    relative_margin: float = 0.05,
    cross_encoder: Path | None = None,
    cross_margin: float = 0.0,
    faiss: str | None = None,
    recall: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    cache: Path | None = None,
    mixed_precision: Literal["no", "auto"] = "no",
    overwrite: bool = False,
    as_json: Json = False,
) -> None:
    """Mine hard negatives for a table of pairs.

    Reports dropped candidates, and queries with too few negatives.

    Args:
        model: model folder or run folder.
        pairs: table of queries and answers, or a BEIR folder.
        output: Parquet file to write.
        corpus: table, BEIR folder or folder of vectors of more candidates.
        split: split to read from a BEIR folder.
        negatives: number of negatives for each query.
        skip: number of best ranks to leave out.
        depth: last rank to consider.
        absolute_margin: how far a negative's score is at least below the positive's.
        relative_margin: the same as a fraction of the positive's score; 0.05 keeps negatives up to
            95 % of the score.
        cross_encoder: cross-encoder to check the negatives.
        cross_margin: relative margin of the cross-encoder's scores.
        faiss: search by an index, e.g. HNSW32; of a folder of vectors, the folder that export has
            written (default: exactly).
        recall: least share of the nearest documents that the index of a folder of vectors finds
            (default: 0.9).
        cache: folder of vectors (default: vectors/ beside the output).
        mixed_precision: auto reads texts in bf16 where the processor multiplies bf16 fast.
        overwrite: replace the output.
    """
    refuse_absent(model)
    from dataclasses import asdict

    from ..mining.hard_negatives import Mining
    from ..text.train.mine import RECALL
    from ..text.train.mine import mine as run_mining

    options = Mining(negatives, skip, depth, absolute_margin, relative_margin, cross_margin)
    path, roles = one_with_roles(pairs)
    refuse_split(split, "train", path, corpus)
    if cross_encoder is None and cross_margin != Mining.cross_margin:
        raise TemperaError("--cross-margin is of a cross-encoder: give one as --cross-encoder")
    if recall is not None and (faiss is None or corpus is None):
        raise TemperaError(
            "--recall is of an index of a folder of vectors: give --corpus and --faiss"
        )
    report = run_mining(
        model,
        path,
        output,
        options,
        split=split,
        roles=roles,
        faiss=faiss,
        recall=RECALL if recall is None else recall,
        mixed_precision=mixed_precision,
        corpus=corpus,
        cross_encoder=cross_encoder,
        cache=cache,
        overwrite=overwrite,
    )
    document = {"output": str(output.absolute()), **asdict(report)}
    lines = report.lines()
    if report.kept:
        lines.append(
            f"train on them: tempera train {quote(str(output))}; compare with a run without them, since some may be answers"
        )
    else:
        lines.append(
            "no query has a hard negative to train on: lower --skip or the margins, or raise --depth"
        )
    answer(document, as_json, lambda: say("\n".join(lines)))


def merge(
    run: Path,
    base: Path,
    also: Annotated[list[str] | None, typer.Argument(metavar="DATA")] = None,
    weights: Annotated[list[str] | None, typer.Option(metavar="WEIGHT|WEIGHT,WEIGHT")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    overwrite: bool = False,
    as_json: Json = False,
) -> None:
    """Merge a trained model with the model it began with.

    The merged model keeps most of what training has gained, and loses less elsewhere.

    Without --weights, models between both are evaluated on the run's validation and on other data,
    and the best is saved if --output is given.

    Args:
        run: run folder; with --weights also a model folder.
        base: model folder or run folder of the same shape and tokenizer.
        also: other data, read as by evaluate (default: the run's evaluation.also).
        weights: weight of the run's weights, from 0 to 1, the base's have the rest; or both, e.g.
            0.7,0.3.
        output: model folder to write.
        overwrite: replace an earlier result in --output.
    """
    refuse_absent(run, base)
    from ..finished.merge import merge as run_merge

    document = run_merge(run, base, also or (), _weight(weights), output, overwrite)
    written = [] if output is None else [f"written: {output}, with weight {document['weight']:g}"]
    answer(document, as_json, lambda: print_merge(document, written))


def _weight(parts: list[str] | None) -> float | None:
    """Return the weight of the run, from a single weight or from the weights of both models.

    >>> _weight(None), _weight(["0.7"]), _weight(["0.7, 0.3"]), _weight(["0.7", "0.3"])
    (None, 0.7, 0.7, 0.7)
    """
    if not parts:
        return None
    text = ",".join(parts)
    wanted = (
        "give that of the run, from 0 to 1, or those of the run and of the base, such as 0.7,0.3"
    )
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        raise TemperaError(f"--weights is {text}: {wanted}") from None
    if len(weights) > 2:
        raise TemperaError(f"--weights has {len(weights)} weights for two models: {wanted}")
    if not all(0 <= weight <= 1 for weight in weights):
        raise TemperaError(f"--weights is {text}: {wanted}")
    if len(weights) == 2 and abs(sum(weights) - 1) > 1e-9:
        raise TemperaError(
            f"--weights is {text}, whose sum is {sum(weights):g} and not 1: {wanted}"
        )
    return weights[0]


def check(run: Path, accept: bool = False, as_json: Json = False) -> None:
    """Compare every file of a run with the recorded checksum.

    Names each damaged, missing or unknown file; exit code 2 if any is damaged or missing.

    Args:
        run: run folder, export, merged model, or folder of checkpoints.
        accept: record the present files, after a change of your own.
    """
    from ..artifacts.integrity import check as run_check

    result = run_check(run, accept)
    answer(result.json(), as_json, lambda: say(str(result)))
    if not result.is_whole:
        raise typer.Exit(2)


def _depth(text: str) -> int:
    """Return the depth of a metric, from a text."""
    if not text.strip().isdecimal() or not int(text):
        raise TemperaError(f"--k has {text!r}; give depths such as 1,10")
    return int(text)
