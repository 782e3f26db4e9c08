"""Mining, exact search and the guided step, without encoding: against sentence-transformers on
precomputed vectors.

`python bench/mining.py [documents [queries]]` prints CPU time, one thread, alternating both
libraries; FAISS is not involved. Candidates in int8 do not pay: at 384 dimensions the product takes
a sixth of the time, but a proven bound of the rounding (the norms of its residuals, 0.014, where
the errors are 0.0004) leaves 0.6 % of all pairs, which take longer to score again. Where a
processor multiplies bf16 fast, mining takes candidates in bf16 from 256 dimensions and 250,000
numbers of the corpus for each document that is asked for. Random vectors are the easy case: among
100,000 of 384 dimensions with a mean cosine of 0.5, two queries of three had to be searched again,
for 1.3 times the time of a search without rounding, which mining then goes on with.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from datasets import Dataset, disable_progress_bars
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.util import cos_sim, mine_hard_negatives, pairwise_cos_sim

from _harness import Aim, alternate, arguments, finish, table
from tempera.io.ids import content_id
from tempera.mining.embed import StoredEmbeddings
from tempera.mining.guide import Guide
from tempera.mining.hard_negatives import Mining, mine
from tempera.ranking.metrics import DEFAULT_METRICS, Relevant
from tempera.ranking.ranking import Ranking
from tempera.text.train.mining_task import MiningTask

NEGATIVES, DEPTH = 10, 101  # the peer's own depth for ten negatives with a margin


class StandIn:
    """A model for sentence-transformers that returns computed vectors."""

    device = torch.device("cpu")
    similarity_fn_name = "cosine"
    model_card_data = SimpleNamespace(set_evaluation_metrics=lambda *_: None)
    similarity = staticmethod(cos_sim)
    similarity_pairwise = staticmethod(pairwise_cos_sim)

    def __init__(self, queries: np.ndarray, docs: np.ndarray) -> None:
        self.queries, self.docs, self.seconds = queries, docs, 0.0

    def get_embedding_dimension(self) -> int:
        return self.docs.shape[1]

    def _rows(
        self, vectors: np.ndarray, texts: Sequence[str], convert_to_tensor: bool = False
    ) -> Any:
        rows = vectors[int(texts[0].split()[1]) :][: len(texts)]
        return torch.from_numpy(rows) if convert_to_tensor else rows

    def encode_query(self, texts: Sequence[str], convert_to_tensor: bool = False, **_: Any) -> Any:
        return self._rows(self.queries, texts, convert_to_tensor)

    def encode_document(
        self, texts: Sequence[str], convert_to_tensor: bool = False, **_: Any
    ) -> Any:
        return self._rows(self.docs, texts, convert_to_tensor)


def vectors(count: int, width: int, generator: np.random.Generator) -> np.ndarray:
    found = generator.normal(size=(count, width)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def variants(q: int, c: int, width: int) -> dict[str, Callable[[], Any]]:
    """Return mining and evaluation by both libraries on the same vectors, from texts and vectors to
    texts and metrics."""
    generator = np.random.default_rng(0)
    docs = vectors(c, width, generator)
    queries = docs[:q] + vectors(q, width, generator)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    asked, corpus = [f"query {i}" for i in range(q)], [f"document {i}" for i in range(c)]
    model = StandIn(queries, docs)
    pairs = Dataset.from_dict({"query": asked, "positive": corpus[:q]})
    evaluator = InformationRetrievalEvaluator(
        {str(i): text for i, text in enumerate(asked)},
        {str(i): text for i, text in enumerate(corpus)},
        {str(i): {str(i)} for i in range(q)},
        mrr_at_k=[10], ndcg_at_k=[10], accuracy_at_k=[1], precision_recall_at_k=[1, 10, 100], map_at_k=[100],
        score_functions={"cosine": cos_sim}, write_csv=False,
    )  # fmt: skip
    relevant = Relevant.of([[i] for i in range(q)])

    def st_mine() -> list[list[str]]:
        mined = mine_hard_negatives(
            pairs, model, corpus=corpus, relative_margin=0.05, num_negatives=NEGATIVES, output_format="n-tuple",
            output_scores=True, verbose=False,
        )  # fmt: skip
        return [[row[f"negative_{i + 1}"] for i in range(NEGATIVES)] for row in mined]

    def ours_mine() -> list[list[str]]:
        task = MiningTask.of(asked, corpus[:q], corpus)
        mined = mine(queries, docs, task.answers, Mining(NEGATIVES, depth=DEPTH), task.itself)
        return [[task.docs.texts[d] for d in row] for row in mined.positions.tolist()]

    def ours_eval() -> dict[str, float]:
        return Ranking.by_vectors(queries, docs, relevant, DEFAULT_METRICS).metrics

    return {
        "ST mine": st_mine,
        "tempera mine": ours_mine,
        "ST evaluate": lambda: evaluator(model),
        "tempera evaluate": ours_eval,
    }


def guided(rows: int = 2048, width: int = 384, texts: int = 200_000) -> float:
    """Return the seconds to look up the guide's vectors of a batch in a memory-mapped file."""
    with tempfile.TemporaryDirectory() as folder:
        whole = np.lib.format.open_memmap(
            Path(folder) / "guide.npy", "w+", np.float32, (texts, width)
        )
        whole[:] = np.random.default_rng(0).normal(size=(texts, width))
        guide = Guide(
            StoredEmbeddings(whole, np.arange(texts)), StoredEmbeddings(whole, np.arange(texts))
        )
        seconds = []
        for _ in range(20):
            chosen = torch.randint(0, texts, (rows,))
            start = time.process_time()
            guide("query", chosen), guide("doc", chosen)
            seconds.append(time.process_time() - start)
    return float(np.median(seconds))


def main(c: int, q: int) -> None:
    """Measure three widths."""
    torch.set_num_threads(1)
    disable_progress_bars()
    assert content_id("query 0") != content_id("document 0")
    figures, aims = [], []
    for width in (64, 128, 384):
        runs = variants(q, c, width)
        assert runs["ST mine"]() == runs["tempera mine"](), "both find the same negatives"
        ndcg = next(
            value for name, value in runs["ST evaluate"]().items() if name.endswith("ndcg@10")
        )
        assert abs(ndcg - runs["tempera evaluate"]()["ndcg@10"]) < 1e-9
        seconds = alternate(runs, rounds=3)
        floor = alternate({"product": lambda runs=runs, width=width: product(q, c, width)}, 3)[
            "product"
        ]
        for what in ("mine", "evaluate"):
            ours, theirs = seconds[f"tempera {what}"], seconds[f"ST {what}"]
            figures.append(
                {
                    "width": width,
                    "what": what,
                    "tempera": ours,
                    "sentence_transformers": theirs,
                    "product alone": floor,
                }
            )
            aims.append(Aim(f"{what}, D={width}: tempera / ST", ours / theirs, 0.5))
    table(
        ("D", "what", "tempera s", "ST s", "ratio", "product alone s"),
        [
            (f["width"], f["what"], f"{f['tempera']:.2f}", f"{f['sentence_transformers']:.2f}",
             f"{f['tempera'] / f['sentence_transformers']:.2f}", f"{f['product alone']:.2f}")
            for f in figures
        ],
    )  # fmt: skip
    figures.append({"what": "guide lookup, 2048 pairs, 384 wide", "seconds": guided()})
    print(f"guide lookup of 2,048 pairs: {figures[-1]['seconds'] * 1000:.1f} ms")
    finish("mining", figures, aims, ["torch", "numpy", "sentence-transformers"])


def product(q: int, c: int, width: int) -> None:
    """Compute the inner products alone, in float32 and in blocks: the least time of a search
    without rounding."""
    docs, queries = np.ones((4096, width), np.float32), np.ones((q, width), np.float32)
    out = np.empty((q, 4096), np.float32)
    for _ in range(-(-c // 4096)):
        np.matmul(queries, docs.T, out=out)


if __name__ == "__main__":
    sizes = arguments(__doc__, documents=100_000, queries=1000)
    main(sizes.documents, sizes.queries)
