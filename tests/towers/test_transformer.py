"""A transformer from scratch, what the sides of it share, and its adapters: trained a little,
saved, and opened elsewhere."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tempera.core.batch import Batch, Side
from tempera.core.presets import mnr
from tempera.engine.cache import Cache, Mode
from tempera.engine.step import step
from tempera.errors import ConfigError, MissingLibrary
from tempera.layers.linear_layers import LinearLayers
from tempera.layers.lookup import computing_by
from tempera.options.build import build
from tempera.options.yaml_options import of
from tempera.towers.lora import Lora
from tempera.towers.pair import Tower, Towers
from tempera.towers.pretrained import Pretrained
from tempera.towers.saved import load
from tempera.towers.sides import divided
from tempera.towers.transformer import Transformer

st = pytest.importorskip("sentence_transformers")
SMALL = {"layers": 1, "width": 16, "heads": 2, "vocabulary": 80, "max_length": 12}


def batch_of(tower: Tower, texts: list[str], count: int = 12) -> Batch[Any]:
    queries = tower.features([text[: len(text) // 2] for text in texts[:count]], role="query")
    return Batch(query=Side(queries), doc=Side(tower.features(texts[:count])))


def trained(tower: Tower, texts: list[str], rate: float = 1.0) -> list[str]:
    """Take two steps; names of the parameters that have moved."""
    before = {name: p.detach().clone() for name, p in tower.named_parameters()}
    optimizer = torch.optim.SGD([p for p in tower.parameters() if p.requires_grad], rate)
    tower.train()
    for _ in range(2):
        optimizer.zero_grad()
        assert np.isfinite(step(tower, mnr(temperature=1.0), batch_of(tower, texts)))
        optimizer.step()
    return [name for name, p in tower.named_parameters() if not torch.equal(p, before[name])]


def vectors(tower: Tower, texts: list[str]) -> list[np.ndarray]:
    return [
        tower.encode(tower.features(texts, role=role), role).numpy() for role in ("query", "doc")
    ]


def agree(tower: Tower, folder: Path, texts: list[str]) -> Any:
    """Tower, saved model and search say the same of queries and of documents; the model."""
    tower.save(folder)
    model = st.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    queries, docs = vectors(tower, texts)
    np.testing.assert_allclose(queries, model.encode_query(texts), rtol=0, atol=2e-6)
    np.testing.assert_allclose(docs, model.encode_document(texts), rtol=0, atol=2e-6)
    np.testing.assert_allclose(
        docs, model.encode(texts), rtol=0, atol=2e-6
    )  # unless told, a text is a document
    np.testing.assert_allclose(queries, load(folder)(texts), rtol=0, atol=2e-6)
    np.testing.assert_allclose(docs, load(folder, "doc")(texts), rtol=0, atol=2e-6)
    return model


def test_seeds_make_transformers(texts: list[str]) -> None:
    made = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        made.append(Transformer(**SMALL).build(texts))
    first, again, other = ([p.detach() for p in tower.parameters()] for tower in made)
    assert all(map(torch.equal, first, again)) and not all(map(torch.equal, first, other))
    widths = {p.shape for p in first}
    assert (64, 16) in widths and made[0].of("doc").width == 16


def test_every_text_has_a_first_token(texts: list[str]) -> None:
    tower = Transformer(**SMALL).build(texts)
    features = tower.features(["", "\u2014", "cat " * 90])
    assert features.lengths.tolist() == [1, 1, 12]
    assert len({int(features[[i]].values[0]) for i in range(3)}) == 1


def test_trained_a_little_it_opens_without_tempera(texts: list[str], tmp_path: Path) -> None:
    tower = Transformer(**SMALL).build(texts)
    assert len(trained(tower, texts)) > 15
    agree(tower, tmp_path / "model", texts)
    modules = json.loads((tmp_path / "model" / "modules.json").read_text())
    assert len(modules) == 3 and all(
        module["type"].startswith("sentence_transformers.") for module in modules
    )


@pytest.mark.parametrize("sides", ["one", "heads", "two"])
def test_sides_begin_alike_and_part(
    tiny: Path, texts: list[str], tmp_path: Path, sides: Any
) -> None:
    tower = Pretrained(str(tiny), sides=sides).build([])
    plain = Pretrained(str(tiny)).build([])
    for ours, theirs in zip(vectors(tower, texts), vectors(plain, texts), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    bodies = {id(p): p.numel() for p in tower.parameters()}
    one = sum(p.numel() for p in plain.parameters())
    assert sum(bodies.values()) == {"one": one, "heads": one + 2 * 32 * 32, "two": 2 * one}[sides]
    assert isinstance(tower, Towers) == (sides != "one")
    trained(tower, texts, rate=10.0)
    queries, docs = vectors(tower, texts)
    assert (np.abs(queries - docs).max() > 1e-3) == (sides != "one")
    model = agree(tower, tmp_path / "model", texts)
    assert sum(p.numel() for p in model.parameters()) == sum(
        bodies.values()
    )  # what is shared is saved once
    again = Pretrained(str(tmp_path / "model")).build([])
    for ours, theirs in zip(vectors(again, texts), (queries, docs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)


def test_sides_with_prompts_and_from_scratch(tiny: Path, texts: list[str], tmp_path: Path) -> None:
    tower = Pretrained(str(tiny), sides="heads", query_prompt="gold ").build([])
    agree(tower, tmp_path / "prompts", texts)
    tower = Transformer(**SMALL, sides="two").build(texts)
    trained(tower, texts)
    model = agree(tower, tmp_path / "scratch", texts)
    with pytest.raises(ConfigError, match=r"^tower.sides is two, and the model already has routes"):
        divided(model, "two")


def gradients(tower: Tower, texts: list[str], cache: Cache) -> dict[str, Tensor]:
    tower.zero_grad()
    torch.manual_seed(5)
    step(tower, mnr(temperature=0.1), batch_of(tower, texts), cache)
    return {name: p.grad.clone() for name, p in tower.named_parameters() if p.grad is not None}


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN multiplies no bf16 on this processor",
)
def test_frozen_weights_are_cast_once_and_nothing_else_changes(
    tiny: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    torch.manual_seed(0)
    tower = Pretrained(str(tiny), lora=Lora(2)).build([]).train()
    layers, in_half = (
        LinearLayers(list(tower.modules())),
        partial(torch.autocast, "cpu", torch.bfloat16),
    )
    layer = next(each for each in layers.layers if not each.weight.requires_grad)

    def passed(mode: Mode) -> tuple[list[Tensor], float]:
        """Losses and gradients of several micro-batches, and the bytes of a graph."""
        tower.zero_grad()
        torch.manual_seed(0)
        cache, batch = Cache(mode, tokens=40, autocast=in_half), batch_of(tower, texts)
        loss = step(tower, mnr(temperature=1.0), batch, cache)
        grads = [p.grad.clone() for p in tower.parameters() if p.grad is not None]
        return [torch.tensor(loss), *grads], sum(
            micro.bytes for micro in cache.plan(tower, batch).micros
        )

    def double() -> None:
        layer.weight.data = 2 * layer.weight.data

    before = None
    for change in (lambda: None, partial(layer.weight.mul_, 3), double):
        change()
        for mode in ("never", "always"):
            got, size = passed(mode)
            with monkeypatch.context() as patch:
                patch.setattr(LinearLayers, "cast_once", lambda self, device: computing_by({}))
                want, larger = passed(mode)
            assert all(map(torch.equal, got, want)) and len(got) > 4 and size < larger
        assert before is None or not all(map(torch.equal, got, before))
        before = got
    with in_half(), layers.cast_once(torch.device("cpu")):
        rows = torch.randn(3, layer.in_features)
        assert layer(rows).dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(
                layer(rows), torch.nn.functional.linear(rows, layer.weight, layer.bias)
            )
    assert "forward" not in vars(layer)


@pytest.mark.parametrize(
    "options", [{}, {"sides": "heads"}, {"lora": Lora(2, dropout=0.3)}], ids=repr
)
def test_replayed_micro_batches_have_the_gradients_of_kept_ones(
    tiny: Path, texts: list[str], options: dict[str, Any]
) -> None:
    """Dropout included, that of adapters too."""
    tower = Pretrained(str(tiny), **options).build([]).train()
    for parameter in tower.parameters():
        if parameter.requires_grad and not parameter.any():
            torch.nn.init.normal_(
                parameter, std=0.1
            )  # an adapter's second matrix, through which the first learns
    kept = gradients(tower, texts, Cache("never", tokens=60))
    replayed = gradients(tower, texts, Cache("always", tokens=60))
    again = gradients(tower, texts, Cache("never", tokens=61))
    assert kept.keys() == replayed.keys() and len(kept) > 10
    for name, grad in kept.items():
        torch.testing.assert_close(replayed[name], grad, rtol=1e-4, atol=1e-6)
    tower.eval()
    still = gradients(tower, texts, Cache("never", tokens=60))
    assert any((still[name] - grad).abs().max() > 1e-4 for name, grad in kept.items()) and again


@pytest.mark.parametrize(
    "options", [{}, {"sides": "two"}, {"layers": ("query", "value")}], ids=repr
)
def test_adapters_are_trained_alone_and_merged_when_saved(
    tiny: Path, texts: list[str], tmp_path: Path, options: dict[str, Any]
) -> None:
    pytest.importorskip("peft")
    options = dict(options)
    sides = options.pop("sides", "one")
    tower = Pretrained(str(tiny), lora=Lora(rank=2, **options), sides=sides).build([])
    plain = Pretrained(str(tiny)).build([])
    np.testing.assert_allclose(vectors(tower, texts), vectors(plain, texts), rtol=0, atol=1e-6)
    moved = trained(tower, texts, rate=10.0)
    assert moved and all("lora_" in name for name in moved)
    if "layers" in options:
        assert all(".query." in name or ".value." in name for name in moved)
    assert np.abs(vectors(tower, texts)[1] - vectors(plain, texts)[1]).max() > 1e-3
    model = agree(tower, tmp_path / "model", texts)
    assert not [name for name, _ in model.named_parameters() if "lora" in name]
    assert not list((tmp_path / "model").rglob("adapter*"))
    assert trained(tower, texts, rate=10.0) == moved  # saving has not changed what is trained


def test_an_adapter_alone(tiny: Path, texts: list[str], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    tower = Pretrained(str(tiny), lora=Lora(2, merge=False)).build([])
    trained(tower, texts, rate=10.0)
    agree(tower, tmp_path / "model", texts)
    assert (tmp_path / "model" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "model" / "model.safetensors").exists()


def test_an_adapter_alone_is_opened_from_anywhere(
    tiny: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    monkeypatch.chdir(tiny.parent)
    tower = Pretrained(tiny.name, lora=Lora(2, merge=False)).build([])
    monkeypatch.chdir(tmp_path)
    agree(tower, tmp_path / "model", texts)


def test_an_adapter_alone_of_two_routes_could_not_be_opened(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    alone = Lora(2, merge=False)
    Pretrained(str(tiny), sides="two").build([]).save(tmp_path / "routes")
    for options in ({"sides": "two"}, {"sides": "heads"}, {"model": str(tmp_path / "routes")}):
        with pytest.raises(
            ConfigError,
            match=r"^tower.lora.merge is false, and .* routes .*: give true, or leave out",
        ):
            Pretrained(**{"model": str(tiny), "lora": alone, **options}).build([])  # type: ignore[arg-type]


def test_a_lone_surrogate_is_read_as_a_question_mark(tiny: Path) -> None:
    encode = load(tiny)
    np.testing.assert_array_equal(encode(["a\ud800b"]), encode(["a?b"]))


def test_a_rank_scales_what_is_learned(tiny: Path) -> None:
    lora = pytest.importorskip("peft.tuners.lora")
    for alpha, scale in ((None, 2.0), (1, 0.25)):
        tower = Pretrained(str(tiny), lora=Lora(4, alpha)).build([])
        scales = [
            module.scaling["default"]
            for module in tower.modules()
            if isinstance(module, lora.LoraLayer)
        ]
        assert len(scales) > 10 and set(scales) == {scale}


def test_adapters_that_cannot_be(
    tiny: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempera.towers.static import Static

    pytest.importorskip("peft")
    with pytest.raises(
        ConfigError, match=r"^tower.lora.layers: Target modules .*nix.* not found"
    ) as error:
        Pretrained(str(tiny), lora=Lora(layers=("nix",))).build([])
    assert "\n" not in str(error.value)
    Static(4, 50).build(texts).save(tmp_path)
    for options in ({"lora": Lora()}, {"torch_compile": True}, {"max_length": 3}):
        with pytest.raises(
            ConfigError, match=r"^tower\.\w+ is for transformers, and this model has none: drop it$"
        ):
            Pretrained(str(tmp_path), **options).build([])
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingLibrary, match=r"pip install 'tempera\[lora\]'$"):
        Pretrained(str(tiny), lora=Lora()).build([])


def test_options_of_a_configuration() -> None:
    given = {
        "kind": "pretrained",
        "model": "m",
        "sides": "two",
        "lora": {"rank": 4, "layers": ["query"]},
    }
    config = build(of({"tower": given}))
    assert config.tower == Pretrained("m", sides="two", lora=Lora(4, layers=("query",)))
    assert build(of(config.resolved)).tower == config.tower
    assert build(of({"tower": {**given, "lora": 8}})).tower.lora == Lora(8)  # type: ignore[attr-defined]
    assert build(of({"tower": {"kind": "transformer"}})).tower == Transformer()
    for tower, message in (
        ({"kind": "pretrained"}, "tower.model: is required"),
        ({**given, "lora": {"rnk": 4}}, "tower.lora.rnk: no such option. Did you mean rank?"),
        ({**given, "sides": "three"}, "tower.sides: "),
        ({"kind": "transformer", "heads": 3}, "tower: 3 heads do not divide a width of 256"),
    ):
        with pytest.raises(ConfigError) as error:
            build(of({"tower": tower}))
        assert str(error.value).startswith(message)


def test_fewer_texts_are_read_at_once_where_memory_is_short(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tower: Any = Transformer(**SMALL).build(texts)
    want, sizes, forward = tower.encode(tower.features(texts)), list[int](), type(tower).forward

    def short(self: Any, features: Any) -> Tensor:
        if len(features) > 2:
            raise torch.OutOfMemoryError("there is no more")
        sizes.append(len(features))
        return forward(self, features)

    monkeypatch.setattr(type(tower), "forward", short)
    torch.testing.assert_close(tower.encode(tower.features(texts)), want)
    assert set(sizes) <= {1, 2} and sum(sizes) == len(texts) > 2
    monkeypatch.setattr(
        type(tower),
        "forward",
        lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("not for one")),
    )
    with pytest.raises(torch.OutOfMemoryError, match="not for one"):
        tower.encode(tower.features(texts))
