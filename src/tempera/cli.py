"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from .errors import TemperaError, one_line

app = typer.Typer(
    help="Train retrieval models by contrast.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG.yaml] [KEY=VALUE ...]", help="A configuration, and dotted overrides."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else there.")
]


@app.command()
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
    from . import config as configuration

    file, overrides = _split(arguments or [])
    if print_config:
        from .build import build

        resolved = build(configuration.load(file, overrides)).resolved
        _answer(resolved, as_json, lambda: sys.stdout.write(configuration.dump(resolved)))
        return
    if dry_run:
        from .rehearsal import lines, rehearse

        found = rehearse(file, overrides)
        _answer(found, as_json, lambda: _say("\n".join(lines(found))))
        return
    from .engine.devices import is_main, stop
    from .training import train as run_training

    run = run_training(file, output, overrides, overwrite)
    if is_main():
        document = {"output": str(run.folder.absolute()), **run.document}
        _answer(document, as_json, lambda: _print_run(document))
    stop()


@app.command()
def verify(
    arguments: Arguments = None,
    as_json: Json = False,
) -> None:
    """Prove on your own data that the configuration computes what it says; exit code 1 if it does not."""
    from .verification import verify as run_verification

    proofs = run_verification(*_split(arguments or []))
    width = max(len(proof.name) for proof in proofs)
    lines = [
        f"{'ok' if proof.passed else 'FAIL':<5}{proof.name:<{width}}  {proof.found:>14}  {proof.bound}"
        for proof in proofs
    ]
    _answer([vars(proof) for proof in proofs], as_json, lambda: _say("\n".join(lines)))
    if not all(proof.passed for proof in proofs):
        raise typer.Exit(1)


@app.command()
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
    from .run import Run

    ranked = Run(run).search(query, k, index, onnx, None if threshold is None else 0.0)
    found = [hit for hit in ranked if threshold is None or (hit.probability or 0.0) >= threshold]
    document: dict[str, Any] = {"query": query, "hits": [hit.json() for hit in found]}
    names = [one_line(hit.name) for hit in found]
    width = max(map(len, names), default=0)
    lines = [
        f"{hit.rank:>2}  {hit.score:.3f}  {_percent(hit.probability)}{name:<{width}}  {one_line(hit.place)}"
        for hit, name in zip(found, names)
    ]
    if threshold is not None:
        document |= {"threshold": threshold, "left_out": len(ranked) - len(found)}
        lines.append(f"left out: {len(ranked) - len(found)} of {len(ranked)} with a probability below {threshold:g}")
    _answer(document, as_json, lambda: _say("\n".join(lines)))


@app.command()
def calibrate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A run folder or a model folder.")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAIRS] [data.ROLE=COLUMN ...]",
            help="A table with or without labels, or a BEIR folder; of a run, without any: what it held out.",
        ),
    ] = None,
    precision: Annotated[
        list[float] | None, typer.Option("--precision", metavar="P", help="To find a threshold for; may be repeated.")
    ] = None,
    recall: Annotated[
        list[float] | None, typer.Option("--recall", metavar="R", help="To find a threshold for; may be repeated.")
    ] = None,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Hits of a query that are looked at.")] = 10,
    split: Annotated[str, typer.Option("--split", help="Of BEIR folders.")] = "test",
    as_json: Json = False,
) -> None:
    """Make probabilities of a model's similarities, for search --threshold; written beside the model."""
    from .evaluation.model import Model
    from .tuning.calibrate import calibrate as run_calibration

    paths, roles = _with_roles(pairs) if pairs else ([None], None)
    if len(paths) != 1:
        raise TemperaError(f"one table of pairs or BEIR folder is expected, and {len(paths)} are given")
    stated = (precision, recall) if precision or recall else ([0.9], [0.9])
    found = run_calibration(model, paths[0], roles, stated[0] or (), stated[1] or (), depth, split)
    folder = Model(str(model)).folder
    document = {"output": str(folder.absolute()), **found.json()}
    _answer(document, as_json, lambda: _say(f"{found}\npicture: {folder}/calibration.svg"))


@app.command()
def recommend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, of a recommender.")],
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="Who is asked for.")] = None,
    history: Annotated[
        str | None, typer.Option("--history", metavar="A,B,C", help="Items taken before, the latest last.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many to show.")] = 10,
    include_seen: Annotated[bool, typer.Option("--include-seen", help="Show what was taken before, too.")] = False,
    index: Annotated[
        Path | None, typer.Option("--index", metavar="DIR", help="An exported index to search instead.")
    ] = None,
    elapsed: Annotated[
        float, typer.Option("--elapsed", min=0, help="Time since the latest event, in the data's unit, if towers ask.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Recommend items to a user of a run, or to anybody by what was taken before."""
    from .run import Run

    taken = None if history is None else [name.strip() for name in history.split(",") if name.strip()]
    answer = Run(run).recommend(user, taken, k=k, exclude_seen=not include_seen, index=index, elapsed=elapsed)
    hits = [{"rank": hit.rank, "score": hit.score, "id": hit.id, "name": hit.name} for hit in answer.found]
    document = {"user": user, "history": answer.history, "notes": list(answer.notes), "hits": hits}
    _answer(document, as_json, lambda: _say(str(answer)))


@app.command("eval")
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
    as_json: Json = False,
) -> None:
    """Judge a model on retrieval sets, pairs or graded pairs; say whether it differs from another one."""
    from .evaluation import judge

    depths = [int(part) if part.isdecimal() else _wrong_depth(part) for part in k.split(",") if part]
    names = [name.strip() for name in metrics.split(",") if name.strip()]
    paths, roles = _with_roles(data)
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
    _answer(document, as_json, lambda: _print_findings(documents))


@app.command()
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
    from .run import Run

    facts = Run(run).export(to, output, kind)
    _answer(facts, as_json, lambda: _say("\n".join(f"{name}: {value}" for name, value in facts.items())))


@app.command("add-items")
def add_items(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, of a recommender.")],
    items: Annotated[Path, typer.Argument(metavar="ITEMS", help="A table of items with the columns that towers read.")],
    as_json: Json = False,
) -> None:
    """Add items that came after training to a run; they are recommended by their features."""
    from . import arrivals

    facts = arrivals.add_items(run, items)
    lines = [f"{facts['added']:,} items added; the run has {facts['items']:,}"]
    lines += [f"left out: {count:,} {reason}" for reason, count in facts["left_out"].items()]
    lines += [f"left out: column {name!r}, which the run's items do not have" for name in facts["columns_left_out"]]
    _answer(facts, as_json, lambda: _say("\n".join(lines)))


@app.command()
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

    from .mining.files import mine_file
    from .mining.hard_negatives import Mining
    from .mining.task import Task

    options = Mining(negatives, skip, depth, absolute_margin, round(1 - share, 12), cross_margin)
    paths, roles = _with_roles(pairs)
    if len(paths) != 1:
        raise TemperaError(f"one table of pairs or BEIR folder is expected, and {len(paths)} are given")
    task = Task.read(paths[0], roles, corpus, split)
    folder = model / "model" if (model / "model" / "modules.json").is_file() else model
    report = mine_file(
        folder, task, output, options, cross_encoder=cross_encoder, faiss=faiss, cache=cache, overwrite=overwrite
    )
    document = {"output": str(output.absolute()), "left_out": dict(task.left_out), **asdict(report)}
    lines = [f"left out: {count:,} {reason}" for reason, count in task.left_out.items()]
    _answer(document, as_json, lambda: _say("\n".join([*lines, *report.lines()])))


@app.command()
def sweep(
    arguments: Arguments = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="FIELD=VALUES",
            help="low:high:log:count, low:high:linear:count or a,b,c; twice for a grid.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each point.")] = 3,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Goes on with what it holds.")] = Path(
        "runs/sweep"
    ),
    learned: Annotated[
        str, typer.Option("--learned", metavar="T,T,...", help="Starting values of temperatures that are learned.")
    ] = "",
    scheduled: Annotated[
        str,
        typer.Option("--scheduled", metavar="A:B,...", help="First and last values of temperatures on a schedule."),
    ] = "",
    metric: Annotated[
        str | None, typer.Option("--metric", help="By which points are compared; default ndcg@10.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs at once, on CPUs, one thread each.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Forget what --output holds.")] = False,
    as_json: Json = False,
) -> None:
    """Train at every value of an option, with several seeds: a table, a picture, and the best region."""
    from .tuning.sweep import sweep as run_sweep

    file, overrides = _split(arguments or [])
    if not over:
        raise TemperaError(
            "--over is needed: which option takes which values, objective.temperature=0.01:0.5:log:8 or so"
        )
    try:
        starts = [float(part) for part in learned.split(",") if part.strip()]
    except ValueError:
        raise TemperaError(f"--learned has {learned!r}, and temperatures such as 0.02,0.1,0.5 are expected") from None
    schedules = [_schedule(part) for part in scheduled.split(",") if part.strip()]
    found = run_sweep(file, over, seeds, output, overrides, starts, schedules, metric, overwrite, jobs)
    _answer(found.json(), as_json, lambda: _say(f"{found}\npicture: {found.folder}/sweep.svg"))


@app.command()
def tune(
    arguments: Arguments = None,
    space: Annotated[
        Path | None, typer.Option("--space", metavar="SPACE.yaml", help="Of each field a range or choices.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="How many are to end, of all workers.")] = 25,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Goes on with what it holds.")] = Path(
        "runs/tune"
    ),
    metric: Annotated[str | None, typer.Option("--metric", help="What is to be high; default ndcg@10.")] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Trials at once.")] = 1,
    keep: Annotated[int, typer.Option("--keep", min=0, help="The best so many keep their run folder.")] = 1,
    storage: Annotated[
        str | None, typer.Option("--storage", metavar="URL", help="Shared by workers on several machines.")
    ] = None,
    study: Annotated[str, typer.Option("--study", metavar="NAME", help="Its name in the storage.")] = "tempera",
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Give up bad trials on the way.")] = True,
    lost_after: Annotated[
        float, typer.Option("--lost-after", min=1, metavar="SECONDS", help="When a silent worker counts as gone.")
    ] = 60.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Forget what --output holds.")] = False,
    as_json: Json = False,
) -> None:
    """Look for the best configuration by Bayesian search, every trial in a process of its own."""
    from .tuning.tune import tune as run_tuning

    file, overrides = _split(arguments or [])
    if space is None:
        raise TemperaError("--space is needed: a YAML file of fields, such as objective.temperature: 0.01:0.5:log")
    found = run_tuning(
        file,
        space,
        trials,
        output,
        overrides,
        metric=metric,
        workers=workers,
        keep=keep,
        storage=storage,
        study=study,
        prune=prune,
        lost_after=lost_after,
        overwrite=overwrite,
    )
    end = f"picture: {found.folder}/tune.svg\ntrain it: tempera train {found.folder}/best.yaml"
    _answer(found.json(), as_json, lambda: _say(f"{found}\n{end}"))


def _schedule(text: str) -> tuple[float, float]:
    """The first and the last value of a schedule."""
    first, _, last = text.partition(":")
    try:
        return float(first), float(last)
    except ValueError:
        raise TemperaError(f"--scheduled has {text!r}, and two temperatures such as 0.2:0.02 are expected") from None


def _split(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """A configuration file, if one is given, and overrides."""
    files = [argument for argument in arguments if "=" not in argument]
    if len(files) > 1:
        raise TemperaError(f"one configuration is expected, and {len(files)} are given: {', '.join(files)}")
    return (Path(files[0]) if files else None), [argument for argument in arguments if "=" in argument]


def _with_roles(arguments: list[str]) -> tuple[list[Path], Any]:
    """Paths, and the roles of their columns as options of a `data:` section; None without any."""
    from .build import build_roles
    from .config import load

    given = [argument for argument in arguments if argument.startswith("data.") and "=" in argument]
    paths = [Path(argument) for argument in arguments if argument not in given]
    if not paths:
        raise TemperaError(f"a table of pairs or a BEIR folder is expected, and there is only {given[0]}")
    return paths, build_roles(load(None, given))


def _percent(probability: float | None) -> str:
    """A column of probabilities, where there are any."""
    return "" if probability is None else f"{probability:>5.0%}  "


def _say(text: str) -> None:
    """Print lines, with nothing that a terminal obeys."""
    print("\n".join(map(one_line, text.split("\n"))))


def _answer(document: Any, as_json: bool, show: Callable[[], Any]) -> None:
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        show()


def _print_run(document: dict[str, Any]) -> None:
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

    from .export.tables import tables

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
    print(f"report: {document['output']}/report.html\n{next_command.format(output=document['output'])}")


def _wrong_depth(text: str) -> NoReturn:
    raise TemperaError(f"--k has {text!r}, and depths such as 1,10 are expected")


def _print_findings(documents: list[dict[str, Any]]) -> None:
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
        _say("\n".join(document["verdicts"]))


def main() -> None:
    """Run a command; what the user got wrong is one line on standard error and exit code 2."""
    # Spinning threads slow a shared machine down by up to 20x; this has to be set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, _stop)
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except TemperaError as error:
        code = _fail(str(error))
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        code = _fail(error.format_message())
    sys.exit(code or 0)


def _stop(number: int, _: object) -> NoReturn:
    """End by way of every `finally`, so that no half-written folder stays; 130 for Ctrl-C, 143 for SIGTERM."""
    sys.exit(128 + number)


def _fail(message: str) -> int:
    line = " ".join(message.split())
    print(f"tempera: {line}", file=sys.stderr)
    if "--json" in sys.argv:
        print(json.dumps({"error": line}))
    return 2


if __name__ == "__main__":
    main()
