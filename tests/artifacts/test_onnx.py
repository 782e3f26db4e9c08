"""An ONNX model gives the vectors of the saved one, and one that does not is not kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tempera.artifacts import onnx
from tempera.artifacts.export import export
from tempera.artifacts.onnx_model import OnnxModel
from tempera.errors import DataError, OutputError
from tempera.towers.saved import load
from tempera.towers.static import StaticTower
from tempera.towers.tokenizer import train_tokenizer

for library in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(library)

WORDS = ["apple", "berry", "cherry", "damson", "elder", "fig"]
TEXTS = [" ".join(WORDS[: i % 7]) for i in range(15)] + ["fig " * 200]


def static(folder: Path) -> Path:
    StaticTower(train_tokenizer([" ".join(WORDS)] * 3, 60, 16), 8).save(folder)
    return folder


def transformer(folder: Path) -> Path:
    """A BERT of two layers with prompts, pooling and a length of its own, and without a normalisation module."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    base = folder / "base"
    base.mkdir(parents=True)
    (base / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ask", ":", *WORDS]))
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=13, max_position_embeddings=24, **size)).save_pretrained(base)
    words = BertWordPieceTokenizer(str(base / "vocab.txt"))
    words.save(str(base / "tokenizer.json"))
    BertTokenizerFast(tokenizer_file=str(base / "tokenizer.json")).save_pretrained(base)
    body = Transformer(str(base), max_seq_length=12)
    pooling = Pooling(32, "mean")
    prompts = {"query": "ask: ", "document": ""}
    model = SentenceTransformer(modules=[body, pooling], device="cpu", prompts=prompts)
    model.save(str(folder / "model"))
    return folder / "model"


@pytest.mark.parametrize("make", [static, pytest.param(transformer, marks=pytest.mark.long)])
def test_vectors_are_those_of_the_saved_model(make: Any, tmp_path: Path) -> None:
    model = make(tmp_path / "saved")
    facts = export(model, "onnx", tmp_path / "out")
    assert 0 <= facts["largest_difference"] < 1e-5
    exported = OnnxModel(tmp_path / "out")
    seen = {}
    for role in ("query", "doc"):
        expected = seen[role] = load(model, role)(TEXTS)  # type: ignore[arg-type]
        np.testing.assert_allclose(exported.encode(TEXTS, role), expected, atol=1e-5)
        for text, vector in zip(TEXTS, expected):  # alone as in company
            np.testing.assert_allclose(exported.encode([text], role)[0], vector, atol=1e-5)
        norms = np.linalg.norm(exported.encode(TEXTS, role), axis=1)
        assert np.allclose(norms[norms > 0], 1, atol=1e-5) and (norms > 0).sum() >= 13
    assert np.allclose(seen["query"], seen["doc"]) == (make is static)  # a prompt changes vectors
    names = {"model.onnx", "tokenizer.json", "tempera.json", "metrics.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names


def test_a_model_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = static(tmp_path / "saved")
    write = onnx.write_module

    def altered(path: Path, module: torch.nn.Module, inputs: Any) -> None:
        with torch.no_grad():
            next(module.parameters())[3:] += 0.01
        write(path, module, inputs)

    monkeypatch.setattr(onnx, "write_module", altered)
    with pytest.raises(OutputError, match=r"differs from it by 0.\d+ in a coordinate, so it is not kept"):
        export(model, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_export(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not an exported model: .*tempera.json is missing"):
        OnnxModel(tmp_path)
