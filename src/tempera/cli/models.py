"""Commands that put a model to work: search, judge, export, mine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ..errors import TemperaError, one_line
from .output import print_findings
from .shared import Json, answer, one_with_roles, say, with_roles


def search(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many to show.")] = 10,
    index: Annotated[
        Path | None, typer.Option("--index", metavar="DIR", help="An exported index to search instead.")
    ] = None,
    onnx: Annotated[Path | None, typer.Option("--onnx", metavar="DIR", help="An exported model to embed by.")] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", metavar="P", min=0, max=1, help="Least probability that is shown; see calibrate."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Search a run's corpus with its model."""
    from ..artifacts.run_folder import Run

    ranked = Run(run).search(query, k, index, onnx, None if threshold is None else 0.0)
    found = [hit for hit in ranked if threshold is None or (hit.probability or 0.0) >= threshold]
    document: dict[str, Any] = {"query": query, "hits": [hit.json() for hit in found]}
    names = [one_line(hit.name) for hit in found]
    width = max(map(len, names), default=0)
    lines = [
        f"{hit.rank:>2}  {hit.score:.3f}  {percent(hit.probability)}{name:<{width}}  {one_line(hit.place)}"
        for hit, name in zip(found, names)
    ]
    if threshold is not None:
        document |= {"threshold": threshold, "left_out": len(ranked) - len(found)}
        lines.append(f"left out: {len(ranked) - len(found)} of {len(ranked)} with a probability below {threshold:g}")
    answer(document, as_json, lambda: say("\n".join(lines)))


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder or a run folder.")],
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA ... [data.ROLE=COLUMN ...]",
            help="BEIR folders, tables of pairs, tables with sentence1, sentence2, score.",
        ),
    ],
    against: Annotated[
        Path | None, typer.Option("--against", metavar="MODEL", help="Another model, compared query by query.")
    ] = None,
    bm25: Annotated[bool, typer.Option("--bm25", help="BM25 beside it.")] = False,
    split: Annotated[str, typer.Option("--split", help="Of BEIR folders.")] = "test",
    metrics: Annotated[
        str, typer.Option("--metrics", help="Of ndcg, mrr, map, recall, precision, hit: ndcg@10,mrr or so.")
    ] = "",
    k: Annotated[str, typer.Option("-k", "--k", help="Depths for metrics without one: 1,10 or so.")] = "",
    exclude_self: Annotated[
        bool, typer.Option("--exclude-self", help="Leave a query's own text out of its ranking.")
    ] = False,
    per_query: Annotated[
        Path | None, typer.Option("--per-query", metavar="FILE", help="Write every score to a .parquet or .csv.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --per-query.")] = False,
    as_json: Json = False,
) -> None:
    """Judge a model on retrieval sets, pairs or graded pairs; say whether it differs from another one."""
    from ..text import evaluate as judge

    depths = [int(part) if part.isdecimal() else _wrong_depth(part) for part in k.split(",") if part]
    names = [name.strip() for name in metrics.split(",") if name.strip()]
    paths, roles = with_roles(data)
    if per_query is not None:
        judge.refuse_scores(per_query, overwrite, paths)
    findings = judge.evaluate(
        model,
        *paths,
        against=against,
        bm25=bm25,
        split=split,
        metrics=names,
        k=depths,
        exclude_self=exclude_self,
        roles=roles,
    )
    if per_query is not None:
        judge.write_per_query(per_query, findings, overwrite)
    documents = [finding.json() for finding in findings]
    document = {"model": str(model), "against": None if against is None else str(against), "tasks": documents}
    answer(document, as_json, lambda: print_findings(documents))


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder; for ONNX also a model folder.")],
    to: Annotated[str, typer.Option("--to", help="onnx, faiss or parquet.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="The folder to make; RUN/export/... if none.")
    ] = None,
    kind: Annotated[str, typer.Option("--kind", help="Of a FAISS index: hnsw or ivf_pq.")] = "hnsw",
    as_json: Json = False,
) -> None:
    """Write a run's model (of a recommender: its tower of users) as ONNX, or its corpus as a FAISS or Parquet index."""
    from ..artifacts.run_folder import Run

    facts = Run(run).export(to, output, kind)
    answer(facts, as_json, lambda: say("\n".join(f"{name}: {value}" for name, value in facts.items())))


def mine(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder, or a run folder.")],
    pairs: Annotated[
        list[str],
        typer.Argument(
            metavar="PAIRS [data.ROLE=COLUMN ...]", help="Queries and what answers them: a table, or a BEIR folder."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The Parquet file to write.")],
    corpus: Annotated[
        Path | None, typer.Option("--corpus", metavar="DOCS", help="A table or BEIR folder of more candidates.")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Of BEIR folders.")] = "train",
    negatives: Annotated[int, typer.Option("--negatives", "-n", min=1, help="How many a query gets.")] = 10,
    skip: Annotated[int, typer.Option("--skip", min=0, help="Best ranks that are left out.")] = 0,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Last rank that is looked at.")] = 100,
    absolute_margin: Annotated[
        float | None, typer.Option("--absolute-margin", help="How far below the answer's score a negative has to be.")
    ] = None,
    share: Annotated[
        float, typer.Option("--share", help="Of the answer's score a negative may have; 1 is a relative margin of 0.")
    ] = 0.95,
    cross_encoder: Annotated[
        Path | None, typer.Option("--cross-encoder", metavar="MODEL", help="Checks what the model has found.")
    ] = None,
    cross_margin: Annotated[float, typer.Option("--cross-margin", help="Relative, of its scores.")] = 0.0,
    faiss: Annotated[
        str | None, typer.Option("--faiss", metavar="INDEX", help="Search by an index, such as HNSW32; default exact.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="Vectors computed once; default vectors/ beside FILE.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.")] = False,
    as_json: Json = False,
) -> None:
    """Find hard negatives for pairs; what was dropped, and which queries fell short, is told."""
    from dataclasses import asdict

    from ..mining.hard_negatives import Mining
    from ..text.mine import mine_file
    from ..text.mining_task import Task
    from ..towers.saved import model_folder

    options = Mining(negatives, skip, depth, absolute_margin, round(1 - share, 12), cross_margin)
    task = Task.read(*one_with_roles(pairs), corpus, split)
    report = mine_file(
        model_folder(model),
        task,
        output,
        options,
        cross_encoder=cross_encoder,
        faiss=faiss,
        cache=cache,
        overwrite=overwrite,
    )
    document = {"output": str(output.absolute()), "left_out": dict(task.left_out), **asdict(report)}
    lines = [f"left out: {count:,} {reason}" for reason, count in task.left_out.items()]
    answer(document, as_json, lambda: say("\n".join([*lines, *report.lines()])))


def percent(probability: float | None) -> str:
    """A column of probabilities, where there are any."""
    return "" if probability is None else f"{probability:>5.0%}  "


def _wrong_depth(text: str) -> NoReturn:
    raise TemperaError(f"--k has {text!r}, and depths such as 1,10 are expected")
