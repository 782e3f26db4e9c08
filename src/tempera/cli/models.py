"""Commands that use a model: search, evaluate, export, mine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ..errors import TemperaError, one_line
from .output import print_findings
from .shared import Json, answer, one_with_roles, say, with_roles

_PREVIEW = 100  # letters of a document beside its place
_FACTS = {  # of an export, in words
    "largest_difference": "largest difference of a coordinate from the saved model",
    "overlap@10": "share of the 10 exact nearest neighbours that the index finds",
    "tried_on": "users that it was tried on",
}


def search(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Text to search for.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Number of hits to show.")] = 10,
    index: Annotated[
        Path | None, typer.Option("--index", metavar="DIR", help="Exported index to search instead of the run's own.")
    ] = None,
    onnx: Annotated[
        Path | None, typer.Option("--onnx", metavar="DIR", help="Exported ONNX model to embed the query with.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", metavar="P", min=0, max=1, help="Lowest probability to show; see calibrate."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Search the documents of a run."""
    from ..artifacts.run_folder import Run

    ranked = Run(run).search(query, k, index, onnx, None if threshold is None else 0.0)
    hits = [hit for hit in ranked if threshold is None or (hit.probability or 0.0) >= threshold]
    document: dict[str, Any] = {"query": query, "hits": [hit.json() for hit in hits]}
    texts = [one_line(hit.name or " ".join(hit.preview.split()))[:_PREVIEW] for hit in hits]
    width = max(map(len, texts), default=0)
    lines = [
        f"{hit.rank:>2}  {hit.score:.3f}  {percent(hit.probability)}{text:<{width}}  {one_line(hit.place)}"
        for hit, text in zip(hits, texts)
    ]
    if threshold is not None:
        document |= {"threshold": threshold, "left_out": len(ranked) - len(hits)}
        lines.append(f"left out: {len(ranked) - len(hits)} of {len(ranked)} with a probability below {threshold:g}")
    answer(document, as_json, lambda: say("\n".join(lines)))


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder or run folder.")],
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA|data.ROLE=COLUMN",
            help="BEIR folders, tables of pairs, or tables with columns sentence1, sentence2 and score.",
        ),
    ],
    against: Annotated[
        Path | None, typer.Option("--against", metavar="MODEL", help="Another model, compared query by query.")
    ] = None,
    bm25: Annotated[bool, typer.Option("--bm25", help="Compare with BM25, too.")] = False,
    split: Annotated[str, typer.Option("--split", help="Split to read from a BEIR folder.")] = "test",
    metrics: Annotated[
        str, typer.Option("--metrics", help="Any of ndcg, mrr, map, recall, precision, hit, e.g. ndcg@10,mrr.")
    ] = "",
    k: Annotated[str, typer.Option("-k", "--k", help="Depths of metrics that name none, e.g. 1,10.")] = "",
    exclude_self: Annotated[
        bool, typer.Option("--exclude-self", help="Leave a query's own text out of its ranking.")
    ] = False,
    per_query: Annotated[
        Path | None, typer.Option("--per-query", metavar="FILE", help="Write every score to a .parquet or .csv file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model, also against another one or BM25.

    Differences are reported with confidence intervals.
    """
    from ..text import evaluate as judge

    depths = [int(part) if part.isdecimal() else _wrong_depth(part) for part in k.split(",") if part]
    names = [name.strip() for name in metrics.split(",") if name.strip()]
    paths, roles = with_roles(data)
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
        judge.write_per_query(per_query, findings)
    documents = [finding.json() for finding in findings]
    document = {"model": str(model), "against": None if against is None else str(against), "tasks": documents}
    answer(document, as_json, lambda: print_findings(documents))


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder; for ONNX also a model folder.")],
    to: Annotated[str, typer.Option("--to", help="onnx, faiss or parquet.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder to write (default: RUN/export/FORMAT).")
    ] = None,
    kind: Annotated[str, typer.Option("--kind", help="Kind of FAISS index: hnsw or ivf_pq.")] = "hnsw",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export in --output.")] = False,
    as_json: Json = False,
) -> None:
    """Export a model to ONNX, or its vectors to FAISS or Parquet.

    Of a recommender, the ONNX model is its tower of users.
    """
    from ..artifacts.run_folder import Run

    facts = Run(run).export(to, output, kind, overwrite)
    numbers = {name: value for name, value in facts.items() if isinstance(value, int | float)}
    lines = [
        f"{_FACTS.get(name, name)}: {value:{',' if isinstance(value, int) else '.3g'}}"
        for name, value in numbers.items()
    ]
    answer(facts, as_json, lambda: say("\n".join([f"written: {facts['output']}", *lines])))


def mine(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder or run folder.")],
    pairs: Annotated[
        list[str],
        typer.Argument(
            metavar="PAIRS|data.ROLE=COLUMN", help="A table of queries and their answers, or a BEIR folder."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Parquet file to write.")],
    corpus: Annotated[
        Path | None, typer.Option("--corpus", metavar="DOCS", help="Table or BEIR folder of more candidates.")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Split to read from a BEIR folder.")] = "train",
    negatives: Annotated[int, typer.Option("--negatives", "-n", min=1, help="Number of negatives a query.")] = 10,
    skip: Annotated[int, typer.Option("--skip", min=0, help="Number of best ranks to leave out.")] = 0,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Last rank to consider.")] = 100,
    absolute_margin: Annotated[
        float | None,
        typer.Option("--absolute-margin", help="Lowest distance of a negative's score from the positive's."),
    ] = None,
    relative_margin: Annotated[
        float,
        typer.Option(
            "--relative-margin", help="The same as a fraction of the positive's score; 0.05 keeps up to 95 %."
        ),
    ] = 0.05,
    cross_encoder: Annotated[
        Path | None, typer.Option("--cross-encoder", metavar="MODEL", help="Cross-encoder that checks the negatives.")
    ] = None,
    cross_margin: Annotated[
        float, typer.Option("--cross-margin", help="Relative margin of the cross-encoder's scores.")
    ] = 0.0,
    faiss: Annotated[
        str | None, typer.Option("--faiss", metavar="INDEX", help="Search by an index such as HNSW32 (default: exact).")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="Folder of vectors (default: vectors/ beside FILE).")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.")] = False,
    as_json: Json = False,
) -> None:
    """Mine hard negatives for a table of pairs.

    Reports what was dropped and which queries got too few.
    """
    from dataclasses import asdict

    from ..mining.hard_negatives import Mining
    from ..text.mine import mine as run_mining

    options = Mining(negatives, skip, depth, absolute_margin, relative_margin, cross_margin)
    path, roles = one_with_roles(pairs)
    report = run_mining(
        model,
        path,
        output,
        options,
        corpus=corpus,
        split=split,
        roles=roles,
        cross_encoder=cross_encoder,
        faiss=faiss,
        cache=cache,
        overwrite=overwrite,
    )
    document = {"output": str(output.absolute()), **asdict(report)}
    answer(document, as_json, lambda: say("\n".join(report.lines())))


def percent(probability: float | None) -> str:
    """Return a column of probabilities; empty for a model without calibration."""
    return "" if probability is None else f"{probability:>5.0%}  "


def _wrong_depth(text: str) -> NoReturn:
    raise TemperaError(f"--k has {text!r}; give depths such as 1,10")
