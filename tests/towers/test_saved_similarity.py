"""The similarity that a model was saved with is the inner product of the vectors that are read of
it, as sentence-transformers computes it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tempera.core.batch import Role
from tempera.errors import DataError
from tempera.mining.embed import embed_by
from tempera.mining.guide import Guide
from tempera.towers.composed import write_copy, write_routed
from tempera.towers.exportable import exportable
from tempera.towers.merged import Merged
from tempera.towers.pretrained import Pretrained
from tempera.towers.saved import load, similarity_of
from tempera.towers.static import Static

st = pytest.importorskip("sentence_transformers")
parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

ASKED = ["cat gold mat", "straw of zürich", "the", "sat on gold"]
PROMPTS = {"query": "gold ", "document": ""}


def opened(folder: Path) -> Any:
    return st.SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.fixture(scope="module")
def looked_up(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a static embedding whose vectors have many lengths."""
    folder = tmp_path_factory.mktemp("looked up") / "model"
    tower = Static(dimensions=8, vocabulary=60, init="normal").build(texts)
    tower.embedding.weight.data *= torch.linspace(0.2, 8, len(tower.embedding.weight))[:, None]
    tower.save(folder)
    return folder


def saved(body: Path, folder: Path, *, unit: bool = False, **settings: Any) -> Path:
    """The modules of a model, with or without its normalisation, saved with other settings."""
    modules = [each for each in opened(body) if not isinstance(each, parts.Normalize)]
    modules += [parts.Normalize()] if unit else []
    st.SentenceTransformer(modules=modules, device="cpu", **settings).save(str(folder))
    return folder


def similarities(folder: Path, texts: list[str]) -> np.ndarray:
    """The similarities of queries and documents by sentence-transformers."""
    model = opened(folder)
    found = model.similarity(model.encode_query(ASKED), model.encode_document(texts))
    return np.asarray(found, np.float32)


@pytest.mark.parametrize(
    "settings",
    [
        {"similarity_fn_name": "dot", "prompts": PROMPTS},
        {"similarity_fn_name": "dot", "prompts": {"all": "gold "}, "default_prompt_name": "all"},
        {"similarity_fn_name": "dot", "truncate_dim": 5},
        {"similarity_fn_name": "dot", "truncate_dim": 5, "unit": True},
        {"similarity_fn_name": "dot", "unit": True},
        {"similarity_fn_name": "cosine", "truncate_dim": 5, "prompts": PROMPTS},
        {},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())) or "none",
)
@pytest.mark.parametrize("body", ["looked_up", "tiny"])
def test_inner_products_are_the_similarities_of_sentence_transformers(
    body: str, settings: dict[str, Any], texts: list[str], tmp_path: Path, request: Any
) -> None:
    folder = saved(request.getfixturevalue(body), tmp_path / "model", **settings)
    wanted = similarities(folder, texts)
    routed = tmp_path / "routed"
    write_routed(lambda to: write_copy(folder, to), lambda to: write_copy(folder, to), routed)
    guide = Guide.of(folder, ASKED, texts, tmp_path / "kept")
    tower = Pretrained(str(folder)).build([])

    def trained(role: Role, some: list[str]) -> np.ndarray:
        side: Any = tower.of(role)
        return np.asarray(side.encode(side.features(some, None, role), role))

    sides: tuple[tuple[Role, list[str]], ...] = (("query", ASKED), ("doc", texts))
    ways: dict[str, tuple[np.ndarray, ...]] = {
        "read": (load(folder, "query")(ASKED), load(folder, "doc")(texts)),
        "as a tower": (trained("query", ASKED), trained("doc", texts)),
        "with routes": (load(routed, "query")(ASKED), load(routed, "doc")(texts)),
        "kept": tuple(embed_by(folder, role, some, tmp_path / "kept")[:] for role, some in sides),
        "as a guide": (guide.query[:], guide.doc[:]),
    }
    for name, (queries, docs) in ways.items():
        scale = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(
            queries @ docs.T / scale, wanted / scale, rtol=0, atol=1e-5, err_msg=name
        )
    assert (similarity_of(folder) == "dot") == (
        settings.get("similarity_fn_name") == "dot"
        and not (settings.get("unit") and "truncate_dim" not in settings)
    )


@pytest.mark.parametrize("settings", [{}, {"truncate_dim": 5, "unit": True}, {"truncate_dim": 5}])
def test_what_other_runtimes_take_over_compares_by_inner_products_too(
    looked_up: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = saved(looked_up, tmp_path / "model", similarity_fn_name="dot", **settings)
    source = exportable(folder)
    text = "cat on straw"
    ids = torch.tensor([source_ids(source.tokenizer, text)])
    vectors = source.module(ids, torch.ones_like(ids)).detach().numpy()
    np.testing.assert_allclose(vectors, opened(folder).encode([text]), rtol=0, atol=1e-5)
    assert source.similarity == "dot"


def source_ids(tokenizer: str, text: str) -> list[int]:
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_str(tokenizer).encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("name", ["euclidean", "manhattan"])
def test_a_model_that_compares_by_a_distance_is_refused(
    looked_up: Path, name: str, tmp_path: Path
) -> None:
    folder = saved(looked_up, tmp_path / "model", similarity_fn_name=name)
    with pytest.raises(DataError, match=rf"model compares by {name} .*write one of these there"):
        load(folder)


def test_euclidean_distance_of_unit_vectors_ranks_as_cosine_does_which_is_said_once(
    looked_up: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved(looked_up, tmp_path / "model", unit=True, similarity_fn_name="euclidean")
    with caplog.at_level(logging.WARNING, "tempera"):
        ours = load(folder)(ASKED) @ load(folder, "doc")(ASKED).T
    assert (ours.argsort(1) == similarities(folder, ASKED).argsort(1)).all()
    (line,) = caplog.messages
    assert "its vectors have length 1, so cosine ranks the same" in line
    with pytest.raises(DataError, match="manhattan"):
        load(saved(looked_up, tmp_path / "other", unit=True, similarity_fn_name="manhattan"))


def test_a_distance_is_no_objective_which_is_said(
    looked_up: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved(looked_up, tmp_path / "model", similarity_fn_name="manhattan")
    with caplog.at_level(logging.WARNING, "tempera"):
        tower = Pretrained(str(folder)).build([])
    assert "compares by manhattan, by which nothing is trained" in caplog.text
    tower.save(tmp_path / "saved")
    assert opened(tmp_path / "saved").similarity_fn_name == "cosine"


def test_models_between_two_that_compare_otherwise_compare_as_the_trained_one(
    looked_up: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = saved(looked_up, tmp_path / "trained", similarity_fn_name="dot")
    model = opened(trained)
    model[0].embedding.weight.data += 0.1
    model.similarity_fn_name = "cosine"
    model.save(str(tmp_path / "base"))
    with caplog.at_level(logging.WARNING, "tempera"):
        merged = Merged(trained, tmp_path / "base")
    assert "base compares by cosine" in caplog.text and merged.similarity == "dot"
    merged.at(0.5)
    merged.save(tmp_path / "between")
    assert opened(tmp_path / "between").similarity_fn_name == "dot"
    np.testing.assert_allclose(
        merged.query(ASKED) @ merged.doc(ASKED).T,
        similarities(tmp_path / "between", ASKED),
        rtol=1e-5,
        atol=1e-5,
    )


def test_the_library_says_nothing_of_how_to_call_it(
    looked_up: Path, tmp_path: Path, cold: Any
) -> None:
    folder = saved(
        looked_up,
        tmp_path / "model",
        similarity_fn_name="dot",
        prompts={"all": "gold "},
        default_prompt_name="all",
    )
    code = (
        "from pathlib import Path\n"
        "from tempera.towers.saved import load\n"
        "from tempera.towers.composed import write_routed, write_copy\n"
        f"folder = Path({str(folder)!r})\n"
        "copied = lambda to: write_copy(folder, to)\n"
        "write_routed(copied, copied, folder.with_name('routed'))\n"
        "load(folder)(['gold'])\n"
    )
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_a_table_of_whole_numbers_is_a_tower_too(
    looked_up: Path, texts: list[str], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    folder = saved(looked_up, tmp_path / "int8", unit=True)
    file = next(folder.rglob("model.safetensors"))
    table = load_file(file)["embedding.weight"]
    scale = np.abs(table).max() / 127
    save_file({"embeddings": np.rint(table / scale).astype(np.int8)}, file)
    tower = Pretrained(str(folder)).build([])
    ours = tower.encode(tower.features(texts)).numpy()
    np.testing.assert_allclose(ours, load(folder)(texts), rtol=0, atol=1e-6)
    np.testing.assert_allclose(ours, load(looked_up)(texts), rtol=0, atol=0.1)
    tower(tower.features(texts[:3])).sum().backward()
    assert any(each.grad is not None for each in tower.parameters())
    tower.save(tmp_path / "saved")
    np.testing.assert_allclose(load(tmp_path / "saved")(texts), ours, rtol=0, atol=1e-6)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_are_read_as_they_are_trained_and_exported(
    tiny: Path, texts: list[str], half: torch.dtype, tmp_path: Path
) -> None:
    model = opened(tiny).to(half)
    model.save(str(tmp_path / "half"))
    assert opened(tmp_path / "half").dtype == half
    wanted = opened(tmp_path / "half").float().encode(texts, normalize_embeddings=True)
    tower = Pretrained(str(tmp_path / "half")).build([])
    np.testing.assert_allclose(load(tmp_path / "half")(texts), wanted, rtol=0, atol=1e-5)
    ours = tower.encode(tower.features(texts)).numpy()
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-5)
    source = exportable(tmp_path / "half")
    ids = torch.tensor([source_ids(source.tokenizer, "cat on straw")])
    bare = opened(tmp_path / "half").float()
    found = source.module(ids, torch.ones_like(ids)).detach().numpy()
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    np.testing.assert_allclose(
        found, bare(inputs)["sentence_embedding"].detach().numpy(), rtol=0, atol=1e-5
    )
