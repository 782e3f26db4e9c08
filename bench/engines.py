"""The exports of a run in other engines: the same answers as `run.search`, how fast and how large.

`python bench/engines.py` trains two static towers on the captions of the folder that TEMPERA_DATA
names, one that compares by cosine and one by inner products of vectors of many lengths, exports
both, and lets `bench/_engines.py` load the exports in an environment of its own: pinned engines
from the package index, without Tempera. Recall@10 is against the exact hits of the run over the
same query vectors (documents with equal scores are both right), and a difference of scores is a
share of the largest score of the query. Seconds and milliseconds are CPU time of all threads and of
the server, for one query after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from _engines import EXACT
from _harness import Aim, finish, parser_of, table
from tempera import Run, train
from tempera.towers.static import Static

DATA = Path(os.environ.get("TEMPERA_DATA", "data"))
PACKAGES = (
    "duckdb==2.0.1",
    "faiss-cpu==1.15.1",
    "lancedb==0.40.0",
    "numpy==2.4.6",
    "pgserver==0.1.4",
    "pgvector==0.5.1",
    "psycopg[binary]==3.3.9",
    "pyarrow==26.0.1",
    "pysqlite3-binary==0.5.4.post2",
    "qdrant-client==1.20.0",
    "sqlite-vec==0.1.9",
    "usearch==2.26.6",
)
COMMON: dict[str, Any] = {
    "train": {"num_train_epochs": 1, "evaluations": 0},
    "evaluation": {"queries": 200, "validation": 0, "bm25": False},
}


def captions(path: Path, count: int) -> list[str]:
    """Write pairs of two captions of an image; return a third caption of some images, to search
    for."""
    rows = parquet.read_table(DATA / "captions/captions_train.parquet").slice(0, count)
    pairs = {"query": rows["caption1"], "doc": rows["caption2"]}
    parquet.write_table(pa.table(pairs), path)
    every: list[str] = rows["caption3"].to_pylist()
    return every[:: max(1, len(every) // 100)][:100]


def by_cosine(pairs: Path, folder: Path) -> Run:
    """Return a run whose vectors have length 1."""
    return train({"data": {"source": "pairs", "path": str(pairs)}, **COMMON}, folder / "run")


def by_inner_product(pairs: Path, folder: Path) -> Run:
    """Return a run whose vectors have many lengths, by which its documents are ranked, too."""
    import sentence_transformers as st

    texts = parquet.read_table(pairs)["doc"].to_pylist()
    Static(dimensions=512).build(texts).save(folder / "unit")
    body = st.SentenceTransformer(str(folder / "unit"), device="cpu")[0]
    model = st.SentenceTransformer(modules=[body], device="cpu", similarity_fn_name="dot")
    model.save(str(folder / "model"))
    options = {
        "data": {"source": "pairs", "path": str(pairs)},
        "tower": {"kind": "pretrained", "model": str(folder / "model")},
        "objective": {"similarity": "dot", "temperature": 1.0},
        **COMMON,
    }
    return train(options, folder / "run")


def exported(run: Run, queries: list[str], folder: Path) -> None:
    """Write both exports of a run, the vectors of queries, and the scores of all documents."""
    run.export("parquet", folder / "parquet")
    run.export("faiss", folder / "faiss")
    vectors = run.encode(queries)
    np.save(folder / "queries.npy", vectors)
    np.save(folder / "scores.npy", run.index.scores(vectors))


def environment(folder: Path) -> Path:
    """Return the Python of an environment that holds the engines alone."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def main() -> None:
    """Train, export, load and search; print the table and keep the figures."""
    options = parser_of(__doc__, documents=29_000).parse_args()
    worker = Path(__file__).with_name("_engines.py")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # PostgreSQL runs as another user where this one is root, and has to reach its folder.
        folder.chmod(0o755)
        python = environment(folder / "environment")
        queries = captions(folder / "pairs.parquet", options.documents)
        for similarity, trained in (("cosine", by_cosine), ("dot", by_inner_product)):
            place = folder / similarity
            place.mkdir()
            run = trained(folder / "pairs.parquet", place)
            exported(run, queries, place)
            print(f"{similarity}: {len(run.index.documents):,} documents", file=sys.stderr)
            done = subprocess.run([python, worker, place], stdout=subprocess.PIPE, check=True)
            figures[similarity] = json.loads(done.stdout)
    aims = []
    for similarity, engines in figures.items():
        rows = []
        for engine, each in engines.items():
            rows.append(
                [
                    engine,
                    each["version"],
                    f"{each['recall@10']:.4f}",
                    f"{each['largest difference']:.1e}",
                    f"{each['load s']:.1f}",
                    f"{each['query ms']:.1f}",
                    f"{each['MB']:.0f}",
                ]
            )
        header = [
            "engine",
            "version",
            "recall@10",
            "difference",
            "load CPU s",
            "query CPU ms",
            "MB",
        ]
        print(f"\n{similarity}")
        table(header, rows)
        exact = [engines[name] for name in EXACT]
        aims += [
            Aim(
                f"{similarity}: least recall@10 of an exact search",
                min(each["recall@10"] for each in exact),
                1.0,
                at_least=True,
            ),
            Aim(
                f"{similarity}: largest difference of a score in float32",
                max(
                    each["largest difference"]
                    for engine, each in engines.items()
                    if engine != "usearch, its default"
                ),
                1e-5,
            ),
            Aim(
                f"{similarity}: recall@10 of the exported graph",
                engines["FAISS, exported HNSW"]["recall@10"],
                0.95,
                at_least=True,
            ),
        ]
    finish("engines", figures, aims, ["torch", "numpy", "pyarrow", "faiss-cpu", "duckdb"])


if __name__ == "__main__":
    main()
