#!/usr/bin/env bash
# DuckDB 2.0.1 (seen on 2026-11-30): array_cosine_similarity and list_cosine_similarity of a zero
# vector are NaN, and DuckDB orders NaN above every number. ORDER BY similarity DESC LIMIT k answers
# every query with the rows of zero vectors first. NULLS LAST does not help, since NaN is no NULL;
# array_cosine_distance, ascending, has them last.
#
# Expected: NULL, or 0. Texts without a known word have zero vectors in many models of embeddings,
# and k of them hide the whole table.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb

print("duckdb", duckdb.__version__)
duckdb.execute("CREATE TABLE texts (name TEXT, vector FLOAT[2])")
rows = [("the same", [1, 0]), ("near", [0.8, 0.6]), ("opposite", [-1, 0]), ("empty", [0, 0])]
duckdb.executemany("INSERT INTO texts VALUES (?, ?)", rows)


def first(score, order):
    """Return the names of the rows, the first as DuckDB orders them."""
    query = f"SELECT name, {score} AS score FROM texts ORDER BY score {order}"
    answer = duckdb.execute(query).fetchall()
    print(f"{score.partition('(')[0]} {order}:", ", ".join(f"{n} {s:.1f}" for n, s in answer))
    return [name for name, _ in answer]


of_arrays = "array_cosine_similarity(vector, [1, 0]::FLOAT[2])"
of_lists = "list_cosine_similarity(vector::FLOAT[], [1, 0]::FLOAT[])"
assert first(of_arrays, "DESC")[0] == "empty", "array_cosine_similarity has changed"
assert first(of_arrays, "DESC NULLS LAST")[0] == "empty", "NULLS LAST helps now"
assert first(of_lists, "DESC")[0] == "empty", "list_cosine_similarity has changed"
distance = "array_cosine_distance(vector, [1, 0]::FLOAT[2])"
assert first(distance, "ASC") == ["the same", "near", "opposite", "empty"]
product = "array_inner_product(vector, [1, 0]::FLOAT[2])"
assert first(product, "DESC") == ["the same", "near", "empty", "opposite"]
PYTHON
