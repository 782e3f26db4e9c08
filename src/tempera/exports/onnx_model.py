"""An exported ONNX model as a function of texts, by onnxruntime and tokenizers only.

Letters in shapes: n texts, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..io.documents import read_json
from ..io.manifest import refuse_damaged
from ..io.require import require
from ..io.texts import encodable
from ..io.untrusted import refuse_unsafe, without_panics
from ..towers.saved import said

Vectors = NDArray[np.float32]

MODEL, TOKENIZER, ABOUT = "model.onnx", "tokenizer.json", "tempera.json"
INPUTS = ("input_ids", "attention_mask")


@contextmanager
def open_session(folder: Path, kind: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Open an exported model: the facts about the model, and the session to run the model.

    Args:
        kind: name of the model in messages, "exported model" for example.

    Raises:
        DataError: the folder holds no exported model, or an unreadable model, also by the
            statements of the `with` block.
        MissingLibrary: onnxruntime is not installed.
    """
    require("onnx", f"opening {folder}", "onnxruntime")
    import onnxruntime

    refuse_unsafe(folder)
    refuse_damaged(folder)
    try:
        about = read_json(folder / ABOUT)
        path = str(folder / MODEL)
        yield about, onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except FileNotFoundError as error:
        raise DataError(f"{folder} is not an {kind}: {error.filename} is missing") from None
    except Exception as error:  # onnxruntime raises no narrower one
        raise DataError(f"{folder} is not a readable ONNX model: {said(error)}") from None


class OnnxModel:
    """A model written by `write_onnx`; needs onnxruntime and tokenizers only."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        with open_session(folder, "exported model") as (about, self.session):
            self.fingerprint: str = about["model"]
            self.prompts: dict[str, str] = about["prompts"]
            self.special_tokens: bool = about["special_tokens"]
            with without_panics():
                self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        if about["max_length"] is not None:
            self.tokenizer.enable_truncation(about["max_length"])
        self.tokenizer.enable_padding(pad_id=about["pad"])

    def encode(self, texts: Sequence[str], role: str = "query") -> Vectors:
        """Embed texts, each after the prompt of a role, in the form for comparison, [n, D]."""
        prompt = self.prompts.get(role, "")
        prompted = [encodable(prompt + text) for text in texts]
        rows = self.tokenizer.encode_batch(prompted, add_special_tokens=self.special_tokens)
        ids = np.array([row.ids for row in rows], np.int64).reshape(len(rows), -1)
        mask = np.array([row.attention_mask for row in rows], np.int64).reshape(len(rows), -1)
        if not ids.shape[1]:  # texts without tokens get a masked token
            ids = np.zeros((len(rows), 1), np.int64)
            mask = np.zeros((len(rows), 1), np.int64)
        inputs = dict(zip(INPUTS, (ids, mask), strict=True))
        vectors: Vectors = self.session.run(None, inputs)[0]
        return vectors
