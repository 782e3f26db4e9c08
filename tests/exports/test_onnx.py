"""An ONNX model gives the vectors of the saved one, and one that does not is not kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tempera.errors import DataError, OutputError
from tempera.exports import onnx
from tempera.exports.export import export
from tempera.exports.onnx_model import OnnxModel
from tempera.io.manifest import MANIFEST
from tempera.towers.saved import load
from tempera.towers.stamp import Kept
from tempera.towers.static import StaticTower
from tempera.towers.tokenizer import train_tokenizer

for library in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(library)

WORDS = ["apple", "berry", "cherry", "damson", "elder", "fig"]
TEXTS = [" ".join(WORDS[: i % 7]) for i in range(15)] + ["fig " * 200]


def static(folder: Path) -> Path:
    torch.manual_seed(0)
    StaticTower(train_tokenizer([" ".join(WORDS)] * 3, 60, 16), 8).save(folder)
    return folder


def transformer(folder: Path) -> Path:
    """A BERT of two layers with prompts, pooling and a length of its own, and without a
    normalisation module."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    base = folder / "base"
    base.mkdir(parents=True)
    (base / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ask", ":", *WORDS])
    )
    size = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
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


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a static model, and the model beside it; look, do not touch."""
    folder = tmp_path_factory.mktemp("network")
    export(static(folder / "saved"), "onnx", folder / "out")
    return folder


def agrees(model: Path, out: Path, prompted: bool) -> None:
    """Check that both give the same vectors, of texts alone as in company."""
    exported = OnnxModel(out)
    seen = {}
    for role in ("query", "doc"):
        expected = seen[role] = load(model, role)(TEXTS)  # type: ignore[arg-type]
        np.testing.assert_allclose(exported.encode(TEXTS, role), expected, atol=1e-5)
        for text, vector in zip(TEXTS, expected):
            np.testing.assert_allclose(exported.encode([text], role)[0], vector, atol=1e-5)
        norms = np.linalg.norm(exported.encode(TEXTS, role), axis=1)
        assert np.allclose(norms[norms > 0], 1, atol=1e-5) and (norms > 0).sum() >= 13
    assert np.allclose(seen["query"], seen["doc"]) != prompted
    assert 0 <= json.loads((out / "metrics.json").read_text())["largest_difference"] < 1e-5
    names = {"model.onnx", "tokenizer.json", "tempera.json", "metrics.json", MANIFEST}
    assert {path.name for path in out.iterdir()} == names


def test_vectors_are_those_of_the_saved_model(network: Path) -> None:
    agrees(network / "saved", network / "out", prompted=False)


@pytest.mark.long
def test_vectors_of_a_transformer_are_those_of_the_saved_model(tmp_path: Path) -> None:
    model = transformer(tmp_path / "saved")
    export(model, "onnx", tmp_path / "out")
    agrees(model, tmp_path / "out", prompted=True)


def test_surrogates_are_replaced_as_the_saved_model_does(network: Path) -> None:
    model = OnnxModel(network / "out")
    np.testing.assert_array_equal(model.encode(["a\udcffb"]), model.encode(["a?b"]))


def test_a_network_of_another_model_is_not_kept(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    static(other)
    weights = load_file(other / "model.safetensors")
    (name,) = weights
    weights[name][3:] += 0.01
    save_file(weights, other / "model.safetensors")
    monkeypatch.setattr(
        onnx, "write_module", lambda path, *_: shutil.copy(network / "out" / "model.onnx", path)
    )
    with pytest.raises(
        OutputError, match=r"differs from it by 0.\d+ in a coordinate, so it is not kept"
    ):
        export(other, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_of_queries_alone_is_compared_by_them(tmp_path: Path) -> None:
    model = static(tmp_path / "model")
    Kept("0" * 16, None, 5, 8).write(model)
    assert onnx.write_onnx(tmp_path / "onnx", model) < 1e-5
    assert np.allclose(
        OnnxModel(tmp_path / "onnx").encode(["the date"]), load(model)(["the date"]), atol=1e-5
    )


def test_a_folder_that_is_no_export(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not an exported model: .*tempera.json is missing"):
        OnnxModel(tmp_path)
