"""The users' tower of a recommender as ONNX, compared with the tower, and as a function of
histories.

Letters in shapes: n rows, w items of the longest history, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import OutputError
from ..exports.onnx_model import ABOUT, MODEL, open_session
from ..io.documents import write_json
from ..io.require import require
from ..recommend.train.exportable_users import UserModule

Vectors = NDArray[np.float32]
Codes = NDArray[np.int64]

TOLERANCE = 1e-4  # largest difference of a coordinate: runtimes add up in other orders


class OnnxUsers:
    """An exported user tower; needs onnxruntime only."""

    def __init__(self, folder: Path) -> None:
        with open_session(folder, "exported user tower") as (about, self.session):
            self.fingerprint: str = about["model"]
            self.unknown_user: int | None = about["unknown_user"]

    def encode(
        self,
        histories: Sequence[Codes],
        users: Sequence[int | None] | None = None,
        elapsed: Vectors | None = None,
    ) -> Vectors:
        """Embed users with their histories, [n, D].

        Args:
            histories: codes of items, the latest last.
            users: codes of users; None is an unknown user.
            elapsed: the time from the last event of each history to the question, [n], in the unit
                of the data, nan for an empty history; None is 0, an event of this moment.
        """
        unknown = self.unknown_user or 0
        if users is None:
            users = [unknown] * len(histories)
        codes = np.array([unknown if user is None else user for user in users], np.int64)
        if elapsed is None:
            elapsed = just_now(histories)
        inputs = {"history": padded(histories), "user": codes, "elapsed": elapsed}
        read = {each.name: inputs[each.name] for each in self.session.get_inputs()}
        vectors: Vectors = self.session.run(None, read)[0]
        return vectors


def just_now(histories: Sequence[NDArray[np.integer]]) -> Vectors:
    """Return the times since the last events of histories that end now, [n]: 0, or nan for an empty
    history.

    >>> just_now([np.array([4, 2]), np.array([], np.int64)]).tolist()
    [0.0, nan]
    """
    return np.array([0.0 if len(codes) else np.nan for codes in histories], np.float32)


def padded(histories: Sequence[Codes]) -> Codes:
    """Return rows of one length w, [n, w], with -1 in front of the shorter ones; w is at least 1.

    >>> padded([np.array([4, 2]), np.array([], np.int64)]).tolist()
    [[4, 2], [-1, -1]]
    """
    rows = np.full((len(histories), max([1, *map(len, histories)])), -1, np.int64)
    for row, codes in zip(rows, histories):
        row[len(row) - len(codes) :] = codes
    return rows


def write_users(
    folder: Path,
    module: UserModule,
    model: str,
    histories: Sequence[Codes],
    users: Sequence[int],
    elapsed: Vectors,
    expected: Vectors,
) -> float:
    """Write model.onnx and tempera.json; return the largest difference of a coordinate from the
    tower.

    The network maps history, [n, w] of any n and w, user, [n], and elapsed, [n], as far as the
    tower reads them, to user_embedding, [n, D].

    Args:
        model: the fingerprint of the model.
        histories: with `users` and `elapsed`, input for the comparison.
        expected: their embeddings by the tower, [n, D].

    Raises:
        MissingLibrary: onnx, onnxscript or onnxruntime is not installed.
        OutputError: the exported network gives other vectors.
    """
    require("onnx", "exporting to ONNX")
    from ..exports.onnx import write_module

    folder.mkdir(parents=True, exist_ok=True)
    examples = {"history": torch.tensor([[-1, 0, 0], [0, 0, 0]]), "user": torch.tensor([0, 0])}
    examples["elapsed"] = torch.tensor([0.0, 1.0])
    inputs = tuple(examples[name] for name in module.inputs)
    write_module(folder / MODEL, module.eval(), inputs, module.inputs, "user_embedding")
    unknown = len(module.users) - 1 if "user" in module.inputs else None
    about = {"model": model, "unknown_user": unknown, "history": _HISTORY}
    if "elapsed" in module.inputs:
        about["elapsed"] = _ELAPSED
    write_json(folder / ABOUT, about)
    worst = float(np.abs(OnnxUsers(folder).encode(histories, users, elapsed) - expected).max())
    if not worst <= TOLERANCE:
        raise OutputError(
            f"the ONNX user tower differs from the tower by {worst:.2g} in a coordinate, so it is not kept"
        )
    return worst


_HISTORY = "rows of vectors.parquet, the latest last, -1 in front of shorter ones"
_ELAPSED = (
    "time from the last event of the history to the question, in the data's unit; nan without"
)
