"""An exported ONNX model as a function of texts; it needs onnxruntime and tokenizers only.

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
def opened(folder: Path, what: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Open an exported model: its facts, and the session that runs it.

    Raises:
        DataError: the folder holds no `what`, or one that cannot be read; in the block, too.
        MissingLibrary: onnxruntime is not installed.
    """
    require("onnx", f"opening {folder}", "onnxruntime")
    import onnxruntime

    refuse_unsafe(folder)
    refuse_damaged(folder)
    try:
        about = read_json(folder / ABOUT)
        yield (
            about,
            onnxruntime.InferenceSession(str(folder / MODEL), providers=["CPUExecutionProvider"]),
        )
    except FileNotFoundError as error:
        raise DataError(f"{folder} is not an {what}: {error.filename} is missing") from None
    except Exception as error:  # onnxruntime raises no narrower one
        raise DataError(f"{folder} is not a readable ONNX model: {said(error)}") from None


class OnnxModel:
    """A model that `write_onnx` wrote; it needs onnxruntime and tokenizers only."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        with opened(folder, "exported model") as (about, self.session):
            self.fingerprint: str = about["model"]
            self.prompts: dict[str, str] = about["prompts"]
            self.special_tokens: bool = about["special_tokens"]
            with without_panics():
                self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        if about["max_length"] is not None:
            self.tokenizer.enable_truncation(about["max_length"])
        self.tokenizer.enable_padding(pad_id=about["pad"])

    def encode(self, texts: Sequence[str], role: str = "query") -> Vectors:
        """Embed texts, each after the prompt of its role, as the model compares them, [n, D]."""
        prompt = self.prompts.get(role, "")
        rows = self.tokenizer.encode_batch(
            [encodable(prompt + text) for text in texts], add_special_tokens=self.special_tokens
        )
        values = ([row.ids for row in rows], [row.attention_mask for row in rows])
        inputs = {
            name: np.array(value, np.int64).reshape(len(rows), -1)
            for name, value in zip(INPUTS, values)
        }
        if not inputs["input_ids"].shape[1]:  # no text has a token: one that is masked
            inputs = {name: np.zeros((len(rows), 1), np.int64) for name in INPUTS}
        vectors: Vectors = self.session.run(None, inputs)[0]
        return vectors
