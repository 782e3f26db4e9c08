"""A model as ONNX, pooling and normalisation inside, proved against the model it was made of.

Letters in shapes: n texts, w tokens of the longest of them, D width.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.batch import Role
from ..errors import ConfigError, DataError, OutputError
from ..towers.exportable import example, exportable
from ..towers.saved import load
from .save import write_json
from .stamp import fingerprint

Vectors = NDArray[np.float32]

MODEL, TOKENIZER, ABOUT = "model.onnx", "tokenizer.json", "tempera.json"
TOLERANCE = 1e-4  # of a coordinate; runtimes sum in other orders
_INPUTS = ("input_ids", "attention_mask")
# Short and long, empty, and of several scripts: what the written model is tried on.
PROBES = ("a", "parse the date of a mail", "", "Größe, 漢字 and ΣΊΣΥΦΟΣ", "of many words that go on " * 40)


def write_onnx(folder: Path, model: Path, probes: Sequence[str] = PROBES) -> float:
    """Write model.onnx, tokenizer.json and tempera.json from a saved model; the largest difference of a coordinate.

    The network takes input_ids and attention_mask, [n, w] of any n and w, and gives sentence_embedding, unit vectors
    [n, D]. It is run on `probes` before anything is reported.

    Raises:
        DataError: onnx, onnxscript or onnxruntime is not installed.
        ConfigError: a model that cannot be exported.
        OutputError: the written model gives other vectors than the saved one.
    """
    _runtime()
    found = exportable(model)
    size = next(p.shape[0] for p in found.module.parameters() if p.ndim == 2)
    folder.mkdir(parents=True, exist_ok=True)
    write_module(folder / MODEL, found.module, example(size))
    (folder / TOKENIZER).write_text(found.tokenizer, encoding="utf-8")
    about = {
        "model": fingerprint(model),
        "max_length": found.max_length,
        "special_tokens": found.special_tokens,
        "pad": found.pad,
        "prompts": found.prompts,
    }
    write_json(folder / ABOUT, about)
    worst = 0.0
    roles: tuple[Role, ...] = ("query", "doc")
    for role in roles:
        ours = OnnxModel(folder).encode(probes, role)
        worst = max(worst, float(np.abs(ours - load(model, role)(list(probes))).max()))
    if not worst <= TOLERANCE:
        raise OutputError(f"the ONNX model of {model} differs from it by {worst:.2g} in a coordinate and is not kept")
    return worst


def write_module(path: Path, module: nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
    """A module over padded token ids as ONNX, with any number of rows and tokens."""
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of a torchvision that nobody needs
    noise = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                module,
                inputs,
                dynamo=True,
                input_names=_INPUTS,
                output_names=["sentence_embedding"],
                dynamic_shapes=(free, free),
                verbose=False,
            )
    except Exception as error:  # whatever the model's modules and the exporter raise
        raise ConfigError(f"the model cannot be exported to ONNX: {str(error).strip().splitlines()[0]}") from None
    program.save(str(path), external_data=None)


class OnnxModel:
    """A model that `write_onnx` has left; needs onnxruntime and tokenizers only."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        runtime = _runtime()
        try:
            about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            self.model: str = about["model"]
            self.prompts: dict[str, str] = about["prompts"]
            self.special_tokens: bool = about["special_tokens"]
            self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
            self.session = runtime.InferenceSession(str(folder / MODEL), providers=["CPUExecutionProvider"])
        except FileNotFoundError as error:
            raise DataError(f"{folder} is no exported model: {error.filename} is missing") from None
        except Exception as error:  # neither library raises a narrower one
            raise DataError(f"{folder} is not a readable ONNX model: {str(error).splitlines()[0]}") from None
        if about["max_length"] is not None:
            self.tokenizer.enable_truncation(about["max_length"])
        self.tokenizer.enable_padding(pad_id=about["pad"])

    def encode(self, texts: Sequence[str], role: str = "query") -> Vectors:
        """Texts to unit vectors, [n, D], behind the prompt of their role."""
        prompt = self.prompts.get(role, "")
        rows = self.tokenizer.encode_batch([prompt + text for text in texts], add_special_tokens=self.special_tokens)
        values = ([row.ids for row in rows], [row.attention_mask for row in rows])
        inputs = {name: np.array(value, np.int64).reshape(len(rows), -1) for name, value in zip(_INPUTS, values)}
        if not inputs["input_ids"].shape[1]:  # only texts without tokens: one that is masked
            inputs = {name: np.zeros((len(rows), 1), np.int64) for name in _INPUTS}
        vectors: Vectors = self.session.run(None, inputs)[0]
        return vectors


def _runtime() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise DataError(f"ONNX needs {error.name}: pip install 'tempera[onnx]'") from None
    return onnxruntime
