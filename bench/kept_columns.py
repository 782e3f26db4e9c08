"""What kept columns cost: reading, the index on disk, and opening it.

`python bench/kept_columns.py [DOCUMENTS]` writes a CSV of queries, documents, links, tickets and
years, reads it with the three columns and without (`data.keep=[]`), and opens both indexes.
"""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from _harness import Aim, alternate, arguments, finish, table
from tempera.corpus.index import Index, write_index
from tempera.text.read.sources import PairsFile
from tempera.text.train.catalogue import Catalogue

WIDTH, ROUNDS = 16, 7
KEEP = {"without": (), "with three columns": ("url", "ticket", "year")}


def write(path: Path, documents: int) -> int:
    """Write a row for each document; return the bytes of the values of the three columns, with 8
    for an integer."""
    size = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["query", "doc", "url", "ticket", "year"])
        for i in range(documents):
            url = f"https://help.example.org/articles/{i}"
            ticket = f"T-{i // 2:07}"
            text = " ".join(f"word{(i * j) % 9973}" for j in range(1, 31))
            rows.writerow([f"question {i}", f"{text} {i}", url, ticket, 1990 + i % 35])
            size += len(url) + len(ticket) + 8
    return size


def read(path: Path, keep: tuple[str, ...]) -> Catalogue:
    """Return the texts of the file."""
    return Catalogue.of(PairsFile(str(path), metadata=("*",), keep=keep).read()[0])


def opened(folder: Path) -> None:
    """Open an index, and take ten hits."""
    index = Index(folder)
    index.hits([0.0] * 10, np.arange(10) * 7)


def main() -> None:
    count = arguments(__doc__, documents=100_000).documents
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "pairs.csv"
        values = write(path, count)
        reading = alternate({label: partial(read, path, keep) for label, keep in KEEP.items()}, 3)
        sizes = {}
        for label, keep in KEEP.items():
            write_index(folder / label, np.ones((count, WIDTH)), read(path, keep).table())
            sizes[label] = (folder / label / "documents.arrow").stat().st_size
        opening = alternate({label: partial(opened, folder / label) for label in KEEP}, ROUNDS)
    rows = []
    for label in KEEP:
        size = f"{sizes[label] / 1e6:.1f}"
        rows.append([label, f"{reading[label]:.2f}", size, f"{1000 * opening[label]:.0f}"])
    table(["columns", "CPU s to read", "MB of documents.arrow", "CPU ms to open"], rows)
    without, kept = KEEP
    added = sizes[kept] - sizes[without]
    aims = [
        Aim("share of the time to read", reading[kept] / reading[without], 1.2),
        Aim("bytes on disk for a byte of values", added / values, 1.5),
        Aim("milliseconds more to open", 1000 * (opening[kept] - opening[without]), 20),
    ]
    figures = {"documents": count, "read": reading, "bytes": sizes, "open": opening}
    finish("kept_columns", figures, aims, ["pyarrow", "numpy"])


if __name__ == "__main__":
    main()
