"""An index of txtai, in an environment of its own.

`python bench/_txtai.py build MODEL DOCUMENTS.json FOLDER` indexes texts for words and vectors
(`hybrid`), with the texts in its database (`content`) and all else as it comes: inverted lists of
FAISS, of which it visits one in sixteen, and BM25. `exact FOLDER QUERIES.json IDS.json` writes the
ids of the 10 best texts of each query where all lists are visited, which `words and vectors` and
`vectors` rank.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from txtai import Embeddings

LISTS = 1_000_000  # more than there are


def build(model: str, documents: str, folder: str) -> None:
    """Index texts."""
    ids, texts = json.loads(Path(documents).read_text(encoding="utf-8"))
    embeddings = Embeddings(
        {"path": model, "method": "sentence-transformers", "content": True, "hybrid": True}
    )
    embeddings.index((name, text, None) for name, text in zip(ids, texts))
    embeddings.save(folder)


def exact(folder: str, queries: str, target: str) -> None:
    """Write the ids of the best texts of each query, of words and vectors, and of vectors alone."""
    texts = json.loads(Path(queries).read_text(encoding="utf-8"))
    embeddings = Embeddings()
    embeddings.load(folder)
    embeddings.config["faiss"] = {"nprobe": LISTS}
    best = {}
    for name, weight in (("words and vectors", 0.5), ("vectors", 1.0)):
        every = embeddings.batchsearch(texts, 10, weights=weight)
        best[name] = [[hit["id"] for hit in hits] for hits in every]
    Path(target).write_text(json.dumps(best), encoding="utf-8")


if __name__ == "__main__":
    {"build": build, "exact": exact}[sys.argv[1]](*sys.argv[2:])
