"""Export of a model to ONNX, with pooling and normalisation inside, compared with the model itself.

Letters in shapes: n texts, w tokens of the longest of them, D width.
"""

from __future__ import annotations

import contextlib
import io
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
from ..errors import ConfigError, OutputError
from ..io.documents import write_json
from ..io.require import require
from ..towers.exportable import example, exportable
from ..towers.saved import fingerprint, load
from ..towers.stamp import Kept
from .onnx_model import ABOUT, INPUTS, MODEL, TOKENIZER, OnnxModel

Vectors = NDArray[np.float32]

TOLERANCE = 1e-4  # largest difference of a coordinate: runtimes add up in other orders
AXES = ("batch", "sequence")  # of an input
# Texts that both models embed: short, long, empty, and of several scripts.
PROBES = (
    "a",
    "parse the date of a mail",
    "",
    "Größe, 漢字 and ΣΊΣΥΦΟΣ",
    "of many words that go on " * 40,
)


def write_onnx(folder: Path, model: Path, probes: Sequence[str] = PROBES) -> float:
    """Write model.onnx, tokenizer.json and tempera.json; return the largest difference of a
    coordinate from the saved model.

    The network maps input_ids and attention_mask, [n, w] of any n and w, to sentence_embedding,
    vectors [n, D] whose inner products are the model's similarity. Both models embed `probes` for
    the comparison.

    Raises:
        MissingLibrary: onnx, onnxscript or onnxruntime is not installed.
        ConfigError: the model cannot be exported.
        OutputError: the exported model gives other vectors than the saved one.
    """
    require("onnx", "exporting to ONNX")
    source = exportable(model)
    size = next(p.shape[0] for p in source.module.parameters() if p.ndim == 2)
    folder.mkdir(parents=True, exist_ok=True)
    write_module(folder / MODEL, source.module, example(size))
    (folder / TOKENIZER).write_text(source.tokenizer, encoding="utf-8")
    about = {
        "model": fingerprint(model),
        "max_length": source.max_length,
        "special_tokens": source.special_tokens,
        "pad": source.pad,
        "prompts": source.prompts,
        "similarity": source.similarity,
    }
    write_json(folder / ABOUT, about)
    worst = 0.0
    roles: tuple[Role, ...] = ("query",) if Kept.read(model) is not None else ("query", "doc")
    for role in roles:
        exported = OnnxModel(folder).encode(probes, role)
        expected = load(model, role)(list(probes))
        worst = max(worst, float(np.abs(exported - expected).max()))
    if not worst <= TOLERANCE:
        raise OutputError(
            f"the ONNX model of {model} differs from it by {worst:.2g} in a coordinate, so it is not kept"
        )
    return worst


def write_module(
    path: Path,
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    names: Sequence[str] = INPUTS,
    output: str = "sentence_embedding",
) -> None:
    """Write a module over tables of codes as ONNX, for any number of rows and columns, whose axes
    are called `AXES`."""
    free = tuple(dict(enumerate(AXES[: tensor.ndim])) for tensor in inputs)
    # It warns of a missing torchvision, which is not needed.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    noise = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(noise),
            contextlib.redirect_stderr(noise),
        ):
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                module,
                inputs,
                dynamo=True,
                input_names=list(names),
                output_names=[output],
                dynamic_shapes=free,
                verbose=False,
            )
    except Exception as error:  # modules and the exporter raise anything
        raise ConfigError(
            f"the model cannot be exported to ONNX: {str(error).strip().splitlines()[0]}"
        ) from None
    program.save(str(path), external_data=None)
