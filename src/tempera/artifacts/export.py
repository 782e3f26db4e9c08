"""A run's model and corpus in the formats of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DataError, did_you_mean
from ..io.atomic import MARK, staged
from ..io.documents import write_json
from .index import Index, write_approximate, write_parquet

TARGETS = ("onnx", "faiss", "parquet")


Users = Callable[[Path], dict[str, Any]]  # writes a tower of users into a folder


def export(
    run: Path,
    to: str,
    output: Path | None = None,
    kind: str = "hnsw",
    users: Users | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a folder beside what a run or a model folder holds; the facts of it, which its metrics.json holds too.

    onnx: the model with pooling and normalisation inside, tried against the saved one. faiss: the corpus as an
    approximate index, with the share of exact neighbours it finds. parquet: ids and vectors for a vector database.

    Args:
        run: a run folder; for ONNX also a model folder.
        output: the folder to make; RUN/export/onnx and so on if None.
        kind: of a FAISS index, hnsw or ivf_pq.
        users: what writes a recommender's ONNX: the tower of its users, and its items with their vectors.
        overwrite: replace an earlier export.

    Raises:
        ConfigError: an unknown target or kind.
        DataError: no run, or a library that is not installed.
        OutputError: an output that cannot be written, or that gives other vectors than the model.
    """
    if to not in TARGETS:
        raise ConfigError(f"cannot export to {to!r}; there is {', '.join(TARGETS)}.{did_you_mean(to, TARGETS)}")
    if not run.is_dir():
        raise DataError(f"no such run: {run}")
    place = run / "export" / to if output is None else output
    with staged(place, overwrite) as folder:
        facts = {"to": to, "output": str(place), **_written(run, to, folder, kind, users)}
        write_json(folder / MARK, facts)
    return facts


def _written(run: Path, to: str, folder: Path, kind: str, users: Users | None) -> dict[str, Any]:
    if to == "onnx" and users is not None:
        return users(folder)
    if to == "onnx":
        from .onnx import write_onnx

        inside = run / "model"
        return {"largest_difference": write_onnx(folder, inside if inside.is_dir() else run)}
    index = Index(run / "index")
    facts = {"documents": len(index.documents), "dimensions": index.vectors.shape[1]}
    if to == "faiss":
        return {**facts, "kind": kind, "overlap@10": write_approximate(folder, index, kind)}
    write_parquet(folder, index)
    return facts
