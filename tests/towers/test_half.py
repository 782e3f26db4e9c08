"""Reading in bf16: attention against its definition in float64, what is cast and comes back, and
how near the vectors are."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tempera.arithmetic import products
from tempera.layers.half import attention, lowered, multiplied_in
from tempera.towers.modules import read_in
from tempera.towers.transformer import Transformer

TEXTS = ["ka", "ka bo", "lo ma ne", "ti ka bo lo ma ne", "ka " * 40, "zu bo " * 7, "", "ne"]


def defined(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Attention row by row and head by head, in float64."""
    out = torch.zeros_like(query, dtype=torch.float64)
    shape = (*query.shape[:-1], key.shape[-2])
    mask = None if mask is None else mask.expand(shape)
    for n, h, q in torch.cartesian_prod(*map(torch.arange, query.shape[:-1])).tolist():
        scores = key[n, h].double() @ query[n, h, q].double() / math.sqrt(query.shape[-1])
        if mask is not None:
            row = mask[n, h, q]
            scores = (
                scores.where(row, -torch.inf) if row.dtype == torch.bool else scores + row.double()
            )
        if causal:
            scores[q + 1 :] = -torch.inf
        out[n, h, q] = scores.softmax(0) @ value[n, h].double()
    return out


def masks(n: int, h: int, q: int, k: int, dtype: torch.dtype) -> dict[str, Tensor | None]:
    seen = torch.rand(n, 1, q, k) < 0.6
    seen[..., 0] = True
    return {
        "none": None,
        "of rows": seen[:, :, :1].expand(n, 1, q, k),
        "of all": seen.expand(n, h, q, k),
        "of keys": seen[0, 0],
        "one for all keys": torch.ones(n, 1, q, 1, dtype=torch.bool),
        "added": torch.where(seen, torch.randn(n, 1, q, k), -torch.inf).to(dtype),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keys", [1, 3, 5, 15, 16, 17, 24, 127, 128])
def test_attention_equals_its_definition(keys: int, dtype: torch.dtype) -> None:
    torch.manual_seed(keys)
    n, h, q, d = 3, 2, 5 if keys != 15 else 15, 8
    query, key, value = (
        torch.randn(n, rows, h, d).to(dtype).transpose(1, 2) for rows in (q, keys, keys)
    )
    for name, mask in masks(n, h, q, keys, dtype).items():
        found = attention(query, key, value, mask)
        assert found.dtype == dtype and found.shape == query.shape
        close = (
            {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 1e-2}
        )
        torch.testing.assert_close(
            found.double(), defined(query, key, value, mask, False), **close, msg=name
        )
    query = torch.randn(n, h, keys, d).to(dtype)
    causal = attention(query, key, value, is_causal=True)
    torch.testing.assert_close(causal.double(), defined(query, key, value, None, True), **close)
    fewer = attention(query, key[:, :1], value[:, :1], scale=0.5 * d**-0.5, enable_gqa=True)
    one = [each[:, :1].expand(n, h, keys, d) for each in (key, value)]
    torch.testing.assert_close(fewer.double(), defined(query / 2, *one, None, False), **close)


def test_attention_elsewhere_is_that_of_the_device() -> None:
    x = torch.randn(2, 2, 4, 8, device="meta")
    assert attention(x, x, x).device.type == "meta"


class Seen(TorchFunctionMode):
    """What torch is asked to attend to, by precision and number of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[torch.dtype, int]] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is F.scaled_dot_product_attention:
            self.taken.append((args[1].dtype, args[1].shape[-2]))
        return function(*args, **(kwargs or {}))


def test_only_few_keys_are_attended_to_in_float32() -> None:
    with Seen() as seen:
        for keys in (4, 5, 16, 40, 127, 128):
            x = torch.randn(2, 2, keys, 8).bfloat16()
            with multiplied_in(torch.bfloat16):
                F.scaled_dot_product_attention(x, x, x)
        F.scaled_dot_product_attention(
            x, x[:, :, :4], x[:, :, :4]
        )  # outside of the context torch's own
    low = [(torch.bfloat16, 128), (torch.bfloat16, 4)]
    assert seen.taken == [(torch.float32, keys) for keys in (4, 16, 16, 48, 128)] + low


class Small(nn.Module):
    """A table, a norm and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.first, self.norm, self.last = (
            nn.Embedding(9, 8),
            nn.Linear(8, 8),
            nn.LayerNorm(8),
            nn.Linear(8, 4),
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        return self.last(self.norm(x + self.first(x)))


def test_linear_layers_alone_are_cast_and_come_back_whatever_happens() -> None:
    small = Small()
    before = copy.deepcopy(small.state_dict())
    with lowered(small, torch.bfloat16):
        low = {name for name, each in small.named_parameters() if each.dtype == torch.bfloat16}
        assert low == {"first.weight", "first.bias", "last.weight", "last.bias"}
        assert small(torch.arange(9)).dtype == torch.bfloat16
    with pytest.raises(IndexError), lowered(small, torch.bfloat16):
        small(torch.arange(10))
    assert all(torch.equal(value, before[name]) for name, value in small.state_dict().items())
    assert small(torch.arange(9)).dtype == torch.float32
    with lowered(small, torch.float32):
        assert torch.equal(
            small.last.weight, before["last.weight"]
        ) and not torch.is_autocast_enabled("cpu")


def test_weights_that_a_table_has_too_and_those_of_other_precisions_stay() -> None:
    tied, double = Small(), Small().double()
    tied.table, tied.first = nn.Embedding(8, 8), nn.Linear(8, 8)
    tied.first.weight = tied.table.weight
    with lowered(tied, torch.bfloat16), lowered(double, torch.bfloat16):
        assert tied.table.weight.dtype == torch.float32 and tied.last.weight.dtype == torch.bfloat16
        assert (
            tied.norm(tied.table(torch.arange(8)) + tied.first(torch.ones(8))).dtype
            == torch.float32
        )
        assert {each.dtype for each in double.parameters()} == {torch.float64}


def test_linear_layers_multiply_what_their_rows_hold_now_with_and_without_a_bias() -> None:
    torch.manual_seed(0)
    first, second, bare = nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(64, 32, bias=False)
    both = nn.ModuleList([first, second, bare])
    rows = torch.randn(3, 5, 64)
    want = [layer(rows).detach() for layer in (first, second, bare)]
    with torch.no_grad(), lowered(both, torch.bfloat16):
        found = [layer(rows) for layer in (first, second, bare)]
        rows += 1  # in place: the same tensor, other numbers
        later = first(rows)
    with torch.inference_mode(), lowered(both, torch.bfloat16):
        inferred = rows - 1
        found += [layer(inferred) for layer in (first, second, bare)]
    for got, exact in zip(found, want * 2, strict=True):
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.float(), exact, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(later.float(), first(rows), rtol=2e-2, atol=2e-2)
    assert not torch.allclose(later.float(), want[0], atol=0.1)


def test_a_cpu_reads_in_float32_by_the_faster_library(
    onednn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    tower: Any = Transformer(layers=1, width=64, heads=2, vocabulary=40, max_length=64).build(
        TEXTS * 3
    )
    rows, found = tower.features(TEXTS * 90), []
    for gain in (1.4, 2.0):
        monkeypatch.setattr(products, "onednn_gain", lambda gain=gain: gain)
        found.append((tower.encode(rows), len(onednn)))
    assert found[0][1] == 0 < found[1][1]
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-6)


def test_without_onednn_a_linear_layer_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        """Operators that this build lacks."""

    monkeypatch.setattr(torch.ops, "mkldnn", Absent())
    products._adding.cache_clear()
    assert products._adding(torch.bfloat16) is F.linear
    products._adding.cache_clear()


def test_vectors_are_nearer_to_float32_than_those_of_a_model_that_is_cast_as_a_whole() -> None:
    torch.manual_seed(0)
    tower: Any = Transformer(layers=4, width=32, heads=2, vocabulary=40, max_length=64).build(
        TEXTS * 3
    )
    for layer in tower.modules():
        if isinstance(layer, nn.Linear):  # as after training: at first a layer adds next to nothing
            layer.weight.data *= 8
    rows = tower.features(TEXTS)
    exact = tower.encode(rows).double()
    read_in(tower, torch.bfloat16)
    low = tower.encode(rows).double()
    whole = copy.deepcopy(tower).bfloat16()
    read_in(whole, torch.float32)
    cast = whole.encode(rows).double()
    away, further = (1 - (exact * each).sum(1) / each.norm(dim=1) for each in (low, cast))
    assert 0 < away.mean() < further.mean() / 2 and away.max() < 1e-4
