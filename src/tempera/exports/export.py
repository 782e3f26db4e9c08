"""Export of a run's model and corpus to the formats of further programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..corpus.index import Index, write_approximate, write_parquet
from ..errors import ConfigError, DataError, OutputError, did_you_mean, is_whole, refuse_other
from ..io.atomic import EXPORTS, staged, write_mark
from ..towers.saved import EVALUATED, MODEL, model_folder

BEIR = "beir"
TARGETS = ("onnx", "faiss", "parquet", BEIR)


# Writes the users' part of an export into a folder and returns facts about it.
Users = Callable[[Path], dict[str, Any]]


def export(
    run: Path,
    to: str,
    output: Path | None = None,
    kind: str | None = None,
    users: Users | None = None,
    overwrite: bool = False,
    width: int | None = None,
) -> dict[str, Any]:
    """Write an export into a folder; return facts about the export, as in the export's
    metrics.json.

    onnx: the model with pooling and normalisation inside, compared with the saved model. faiss: the
    corpus as an approximate index, with the share of exact neighbours among the hits. parquet: ids,
    kept columns and vectors for databases, of a recommender's items and users.

    Args:
        run: a run folder; for ONNX also a model folder.
        output: the folder to write; None is RUN/export/onnx and so on.
        kind: kind of FAISS index: hnsw (None), ivf_pq, ivf_fast, int8, or binary.
        users: writes a recommender's ONNX, the user tower and the items with vectors; or the users'
            vectors as Parquet.
        overwrite: replace an earlier export.
        width: keep the first numbers of each vector, for FAISS and Parquet; a search cuts queries
            in the same way.

    Raises:
        ConfigError: an unknown target or kind, or an option of another target.
        DataError: there is no run in the folder.
        MissingLibrary: a library is not installed.
        OutputError: the output cannot be written, or differs from the model in a vector.
    """
    if to not in TARGETS:
        raise ConfigError(
            f"cannot export to {to!r}; choose one of {', '.join(TARGETS)}.{did_you_mean(str(to), TARGETS)}"
        )
    if to == BEIR:
        raise ConfigError("for beir a run's data are read again: call tempera.export_held_out(run)")
    if not run.is_dir():
        raise DataError(f"no such run: {run}")
    if kind is not None and to != "faiss":
        raise ConfigError(f"a kind is for FAISS: drop {kind} for {to}")
    refuse_other("width", width, width is None or is_whole(width), "a number of dimensions or None")
    place = place_of(run, to, output)
    with staged(place, overwrite, [run]) as folder:
        facts = {"to": to, "output": str(place)}
        facts.update(_write(run, to, folder, kind, users, width))
        write_mark(folder, facts)
    return facts


def place_of(run: Path, to: str, output: Path | None) -> Path:
    """Return the folder of an export.

    Raises:
        OutputError: the folder would be in the folder of a model or an index, and change the
            fingerprint.
    """
    place = run / EXPORTS / to if output is None else output
    identified = [run / MODEL if (run / MODEL).is_dir() else run]
    others = [run / EVALUATED, run / "index"]
    identified += [folder for folder in others if folder.is_dir()]
    resolved = place.resolve()
    for folder in identified:
        is_inside = resolved.is_relative_to(folder.resolve())
        if is_inside and not resolved.is_relative_to((folder / EXPORTS).resolve()):
            raise OutputError(
                f"--output {place} is in {folder}, whose files tell it from others; give another folder"
            )
    return place


def _write(
    run: Path, to: str, folder: Path, kind: str | None, users: Users | None, width: int | None
) -> dict[str, Any]:
    """Write the files of an export into a folder; return the facts about the target."""
    if to == "onnx" and width is not None:
        raise ConfigError("a width is for vectors, FAISS and Parquet: drop it for ONNX")
    if to == "onnx" and users is not None:
        return users(folder)
    if to == "onnx":
        from .onnx import write_onnx

        return {"largest_difference": write_onnx(folder, model_folder(run))}
    index = Index(run / "index")
    if width is not None:
        index.narrow(width)
    facts: dict[str, Any] = {
        "documents": len(index.documents),
        "dimensions": index.vectors.shape[1],
    }
    if to == "faiss":
        facts["kind"] = kind or "hnsw"
        facts["overlap@10"] = write_approximate(folder, index, facts["kind"])
        return facts
    write_parquet(folder, index)
    if users is not None:
        facts.update(users(folder))
    return facts
