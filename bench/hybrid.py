"""Words and vectors together: which fusion, which weight, and what it gains over BM25 and over the
tower alone.

`python bench/hybrid.py` trains a static tower from scratch on each set of the folder that
TEMPERA_DATA names (128 pairs a batch, 12 epochs, symmetric, temperature 0.1), tunes BM25 on
training queries, chooses each fusion's weight on validation queries and compares on the test, with
paired bootstrap intervals over queries. With fewer than 50 validation queries the weight is the
usual one, which was taken from curves of nDCG@10 over the weight on these same sets: its gains
there are flattered.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from _harness import Aim, finish, table
from tempera.engine.devices import start
from tempera.io.documents import JsonLines
from tempera.options import yaml_options as config
from tempera.options.build import build
from tempera.ranking.compare import bootstrap
from tempera.ranking.fusion import (
    USUAL,
    WEIGHTS,
    Fusion,
    Scores,
    rank_by_weight,
    reciprocal_ranks,
    standardised,
)
from tempera.ranking.metrics import evaluate
from tempera.ranking.ranking import LEAST_TO_CHOOSE
from tempera.run.fit import fit
from tempera.run.prepare import prepare
from tempera.text.judge.hybrid import scores_of_both
from tempera.text.retrieval import TextTask

DATA = Path(os.environ.get("TEMPERA_DATA", "data"))
METRIC, MOST = "ndcg@10", 6000  # pairs of a set


def columns(path: str, query: str = "anchor", doc: str = "positive") -> pa.Table:
    """Return pairs of two columns, a sample of many."""
    rows = parquet.read_table(DATA / path).select([query, doc]).rename_columns(["query", "doc"])
    rows = rows.filter(pc.not_equal(rows["query"], rows["doc"]))
    return rows.take(pa.array(np.random.default_rng(0).permutation(len(rows))[:MOST]))


def judged(name: str, *splits: str) -> pa.Table:
    """Return the judged pairs of a set in BEIR's layout."""
    texts = {}
    for part in ("corpus", "queries"):
        with gzip.open(DATA / "ir" / name / f"{part}.jsonl.gz", "rt", encoding="utf-8") as file:
            texts[part] = {
                row["_id"]: f"{row.get('title') or ''} {row['text']}".strip()
                for row in map(json.loads, file)
            }
    lines = [
        line
        for split in splits
        for line in (DATA / f"ir/{name}/qrels/{split}.tsv").read_text().splitlines()[1:]
    ]
    rows = [
        (texts["queries"][q], texts["corpus"][d])
        for q, d, grade in map(str.split, lines)
        if float(grade) > 0
    ]
    rows = [row for row in rows if row[1]]
    return pa.table({"query": [q for q, _ in rows], "doc": [d for _, d in rows]})


SETS: dict[str, Callable[[], pa.Table]] = {
    "nl2bash": lambda: columns("code/nl2bash/pairs.parquet"),
    "medquad": lambda: columns("medquad/pairs.parquet"),
    "scifact": lambda: judged("scifact", "train", "test"),
    "duplicates": lambda: columns("duplicates/qqp_pairs.parquet"),
    "captions": lambda: columns("captions/captions_train.parquet", "caption1", "caption2"),
    "parasci": lambda: columns("parasci/train.parquet"),
    "vaswani": lambda: judged("vaswani", "test"),
    "cacm": lambda: judged("cacm", "test"),
}


def between_extremes(scores: Scores) -> Scores:
    """Return scores, [q, c], of which each row runs from 0 to 1."""
    low, high = scores.min(1, keepdims=True), scores.max(1, keepdims=True)
    return (scores - low) / np.maximum(high - low, 1e-12)


FUSIONS = {
    "standardised": standardised,
    "from 0 to 1": between_extremes,
    "reciprocal ranks": reciprocal_ranks,
}


def trained(pairs: pa.Table, folder: Path) -> TextTask:
    """Return the task of a trained tower; a fifth of the queries is held out for validation, and
    one for the test."""
    share = pc.count_distinct(pairs["query"]).as_py() // 5
    options = {
        "data": {"source": "given", "identical": "drop"},
        "objective": {"preset": "symmetric", "temperature": 0.1},
        "train": {
            "batch_size": 128 if len(pairs) > 1500 else 32,
            "num_train_epochs": 12,
            "evaluations": 0,
        },
        "evaluation": {
            "queries": min(500, share),
            "validation": min(500, share),
            "metrics": [METRIC],
        },
    }
    given = build(config.of(options, ["train.learning_rate=0.03"]))
    with JsonLines(folder / "log.jsonl") as log:
        prepared = prepare(
            replace(given, data=given.data.hand(pairs)),
            start(given.train.mixed_precision),
            folder,
            log,
        )
        fit(prepared)
    assert isinstance(prepared.task, TextTask)
    return prepared.task


def measured(name: str) -> dict[str, Any]:
    """Return nDCG@10 of each system on a set, differences, and the CPU seconds of the
    evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        task = trained(SETS[name](), Path(folder))
        held_out, began = task.held_out, time.process_time()
        vectors, systems = held_out.judge("test").ranking.per_query[METRIC], {}
        judging, began = time.process_time() - began, time.process_time()
        words = held_out.baselines()["bm25"].per_query[METRIC]
        seconds = {"tower": judging, "BM25 and hybrid": time.process_time() - began}
        assert held_out.words is not None
        curves = {}
        for fusion, normalise in FUSIONS.items():
            for part in ("validation", "test"):
                questions, began = held_out.questions[part], time.process_time()
                queries = task.data.remembered(questions.query_of[questions.rows], "query")
                scores = scores_of_both(
                    queries, task.data.corpus, questions.queries, held_out.words
                )
                ranked = rank_by_weight(scores, WEIGHTS, 10, normalise)
                curves[fusion, part] = {
                    w: evaluate(each, questions.relevant, [METRIC])[METRIC]
                    for w, each in zip(WEIGHTS, ranked, strict=True)
                }
                seconds[f"{fusion}, {part}"] = time.process_time() - began
            enough = len(held_out.questions["validation"].rows) >= LEAST_TO_CHOOSE
            weight = Fusion.chosen(curves[fusion, "validation"]).weight if enough else USUAL
            systems[fusion] = {
                "weight": weight,
                **against(curves[fusion, "test"][weight], words, vectors),
            }
        return {
            "pairs": len(task.data.texts.split.train),
            "queries": {
                part: len(held_out.questions[part].rows) for part in ("validation", "test")
            },
            "documents": len(task.data.texts.ranked),
            "bm25": words.mean(),
            "trained": vectors.mean(),
            "fused": systems,
            "test by weight": {str(w): v.mean() for w, v in curves["standardised", "test"].items()},
            "CPU seconds": seconds,
        }


def against(fused: np.ndarray, words: np.ndarray, vectors: np.ndarray) -> dict[str, Any]:
    """Return the mean of a fused system, and its differences with their 95 % intervals."""
    return {
        "mean": fused.mean(),
        **{k: vars(bootstrap(fused, v)) for k, v in (("bm25", words), ("trained", vectors))},
    }


def main() -> None:
    figures = {name: measured(name) for name in SETS if not sys.argv[1:] or name in sys.argv[1:]}
    rows = []
    for name, found in figures.items():
        ours = found["fused"]["standardised"]
        gains = [
            f"{ours[k]['mean']:+.3f} [{ours[k]['low']:.3f}, {ours[k]['high']:.3f}]"
            for k in ("bm25", "trained")
        ]
        means = [
            f"{value:.3f}"
            for value in (
                found["bm25"],
                found["trained"],
                *(f["mean"] for f in found["fused"].values()),
            )
        ]
        rows.append(
            [name, found["pairs"], *found["queries"].values(), *means, ours["weight"], *gains]
        )
    table(
        [
            "set",
            "pairs",
            "val",
            "test",
            "bm25",
            "tower",
            *FUSIONS,
            "weight",
            "over bm25",
            "over tower",
        ],
        rows,
    )
    gains = [found["fused"]["standardised"]["bm25"] for found in figures.values()]
    plain = {
        fusion: np.mean([found["fused"][fusion]["mean"] for found in figures.values()])
        for fusion in FUSIONS
    }
    aims = [
        Aim(
            "sets on which hybrid is shown above BM25",
            sum(g["low"] > 0 for g in gains),
            len(gains) / 2,
            at_least=True,
        ),
        Aim("sets on which hybrid is shown below BM25", sum(g["high"] < 0 for g in gains), 0),
        Aim(
            "mean nDCG@10 less that of reciprocal ranks",
            plain["standardised"] - plain["reciprocal ranks"],
            0,
            at_least=True,
        ),
    ]
    finish("hybrid", figures, aims, ["torch", "numpy"])


if __name__ == "__main__":
    main()
