#!/usr/bin/env bash
# faiss-cpu 1.15.1 (seen on 2026-11-30): faiss.contrib.big_batch_search searches an IVF-PQ index of
# inner products with queries from which the centroid of each list is subtracted, as the residual
# codes of distances need it. It returns other neighbours than index.search, without an error: here
# 1 of 100. With distances (L2), or without codes of residuals (IVF-Flat), both agree.
#
# Expected: the neighbours of index.search, as with distances; by_residual is on by default, also for
# inner products. The function is meant for batches too large for index.search, where nobody compares.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet faiss-cpu==1.15.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import contextlib
import io

import faiss
import numpy
from faiss.contrib.big_batch_search import big_batch_search

print("faiss", faiss.__version__)
draw = numpy.random.default_rng(0)
centres = draw.standard_normal((50, 32))
vectors = centres[draw.integers(0, 50, 20_000)] + 0.5 * draw.standard_normal((20_000, 32))
vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
vectors = vectors.astype("float32")
queries = vectors[:500]
shares = {}
for name, metric in (("L2", faiss.METRIC_L2), ("inner product", faiss.METRIC_INNER_PRODUCT)):
    for kind in ("IVF64,PQ16", "IVF64,Flat"):
        index = faiss.index_factory(32, kind, metric)
        index.train(vectors)
        index.add(vectors)
        index.nprobe = 8
        _, expected = index.search(queries, 10)
        with contextlib.redirect_stdout(io.StringIO()):  # a line for each list
            _, found = big_batch_search(index, queries, 10, method="index", verbose=0)
        shared = [len(set(a) & set(b)) / 10 for a, b in zip(expected, found)]
        shares[name, kind] = float(numpy.mean(shared))
        print(f"{name}, {kind}: {shares[name, kind]:.2f} of the neighbours of index.search")
assert shares.pop(("inner product", "IVF64,PQ16")) < 0.1
assert all(share > 0.99 for share in shares.values()), shares
PYTHON
