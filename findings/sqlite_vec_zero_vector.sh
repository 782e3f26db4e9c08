#!/usr/bin/env bash
# sqlite-vec 0.1.9 (seen on 2026-11-30): a table vec0 with distance_metric=cosine answers searches
# with wrong rows, without an error, if its first vector is all zeros. Of 5,000 vectors by chance,
# one zero loses a fifth of the 10 nearest neighbours. The distance to a zero vector is NaN, and
# every comparison with NaN is false, which presumably misleads the selection of the k smallest.
# With the zeros in the second row, all neighbours are found.
#
# Expected: no effect on other rows, NULL as the distance of the zero vector and its row last, or an
# error when it is inserted. Texts without a known word have zero vectors in many models of
# embeddings.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6 pysqlite3-binary==0.5.4.post2 sqlite-vec==0.1.9
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import pysqlite3
import sqlite_vec


def recall(zero):
    """Return the share of the 10 nearest rows by cosine that are found, over 50 queries."""
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(5000, 16)).astype(np.float32)
    if zero is not None:
        vectors[zero] = 0
    database = pysqlite3.connect(":memory:")
    database.enable_load_extension(True)
    sqlite_vec.load(database)
    database.execute("CREATE VIRTUAL TABLE rows USING vec0(vector FLOAT[16] distance_metric=cosine)")
    database.executemany("INSERT INTO rows (rowid, vector) VALUES (?, ?)", enumerate(vectors))
    lengths = np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
    shares = []
    for query in draw.normal(size=(50, 16)).astype(np.float32):
        nearest = np.argsort(-(vectors @ query) / lengths)[:10]
        found = database.execute("SELECT rowid FROM rows WHERE vector MATCH ? AND k = 10", [query])
        shares.append(len({row for (row,) in found} & set(nearest.tolist())) / 10)
    return float(np.mean(shares))


print("sqlite-vec", sqlite_vec.__version__)
without, second, first = recall(None), recall(1), recall(0)
print(f"share of the 10 nearest found: {without:.3f} without a zero vector")
print(f"share of the 10 nearest found: {second:.3f} with a zero vector as the second row")
print(f"share of the 10 nearest found: {first:.3f} with a zero vector as the first row")
assert without == second == 1, (without, second)
assert first < 0.9, "the neighbours are found now, too"
PYTHON
