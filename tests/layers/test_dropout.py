"""Dropout on a CPU, drawn in words of 16 bits, and attention with it, against their definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from tempera import mnr
from tempera.arithmetic.ragged import Ragged
from tempera.core.batch import Batch, Role, Side
from tempera.engine.cache import Cache
from tempera.engine.step import step
from tempera.layers.dropout import Dropout, dropout_on


@pytest.mark.parametrize("p", [0.1, 1 / 3, 0.5, 0.97])
def test_dropout_is_as_frequent_as_asked_and_unbiased(p: float) -> None:
    torch.manual_seed(0)
    count = 1_000_003  # no multiple of the four features of a word
    with Dropout():
        out = F.dropout(torch.ones(count, dtype=torch.float64), p)
    kept = float((out > 0).double().mean())
    assert kept == pytest.approx(1 - p, abs=5 * (p * (1 - p) / count) ** 0.5)
    assert out.unique().tolist() == [0.0, pytest.approx(1 / (1 - p), rel=1e-3)]
    assert float(out.unique()[1]) * (1 - round(p * 2**16) / 2**16) == pytest.approx(1.0, rel=1e-12)
    lags = [float(((out[:-lag] > 0) == (out[lag:] > 0)).double().mean()) for lag in (1, 2, 4, 64)]
    assert lags == pytest.approx([p * p + (1 - p) ** 2] * 4, abs=0.005)


def test_dropout_goes_backward_through_what_it_kept() -> None:
    rows = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    with Dropout():
        out = F.dropout(rows, 0.4)
        again = torch.nn.Dropout(0.4).eval()(rows)
    torch.testing.assert_close(again, rows)
    weights = torch.randn(7, 5, dtype=torch.float64)
    (grad,) = torch.autograd.grad((out * weights).sum(), rows)
    scale = (out / rows).detach()
    assert 0 < int((scale == 0).sum()) < 35
    torch.testing.assert_close(grad, scale * weights)
    for seed, same in ((3, True), (4, False)):
        torch.manual_seed(seed)
        with Dropout():
            assert torch.equal(F.dropout(rows, 0.4), out) == same


def test_the_ends_of_dropout() -> None:
    rows = torch.ones(3, 4)
    with Dropout():
        assert F.dropout(rows, 0.0) is rows and F.dropout(rows, 0.5, training=False) is rows
        assert not F.dropout(rows, 1.0).any()
        assert F.dropout(rows, 0.5, inplace=True) is rows
    assert set(rows.unique().tolist()) <= {0.0, 2.0}


def test_what_is_computed_again_or_compiled_draws_by_torch() -> None:
    """The way back leaves the context, so what it computes again has to draw as it did before."""
    tower: Any = torch.nn.Sequential(torch.nn.Dropout(0.5))
    assert isinstance(dropout_on(torch.device("cpu"), list(tower.modules())), Dropout)
    assert not isinstance(dropout_on(torch.device("meta"), list(tower.modules())), Dropout)
    tower[0].gradient_checkpointing = True
    assert not isinstance(dropout_on(torch.device("cpu"), list(tower.modules())), Dropout)
    tower[0].gradient_checkpointing, tower[0]._compiled_call_impl = False, len
    assert not isinstance(dropout_on(torch.device("cpu"), list(tower.modules())), Dropout)


class Reads(torch.nn.Module):
    """A tower that draws, attends, or does neither, and notes in which context it is called."""

    padded = False

    def __init__(self, p: float = 0.0, attends: bool = False) -> None:
        super().__init__()
        self.table, self.drop, self.attends = torch.nn.Embedding(9, 4), torch.nn.Dropout(p), attends
        self.modes: list[bool] = []

    def of(self, role: Role) -> Reads:
        return self

    def forward(self, tokens: Ragged) -> Tensor:
        self.modes.append(any(type(mode) is Dropout for mode in _get_current_function_mode_stack()))
        vectors: Tensor = self.drop(self.table(tokens.values.long()))
        return F.scaled_dot_product_attention(*[vectors[None]] * 3)[0] if self.attends else vectors


@pytest.mark.parametrize(
    ("tower", "drops"),
    [(Reads(), False), (Reads(0.5), True), (Reads(attends=True), True)],
    ids=["plain", "drops", "attends"],
)
def test_a_tower_that_has_drawn_nothing_is_read_without_the_context(
    tower: Reads, drops: bool
) -> None:
    cache, batch = (
        Cache(),
        Batch(
            *(
                Side(Ragged.of([[token] for token in tokens]))
                for tokens in ([1, 2, 3, 4], [5, 6, 7, 8])
            )
        ),
    )
    for _ in range(2):
        step(tower, mnr(), batch, cache)
    (size,) = cache.footprints.values()
    assert size.drops == drops and tower.modes[-2:] == [drops] * 2 and tower.modes[0]
    resumed = Cache()
    resumed.resume(cache.sizes())
    step(tower, mnr(), batch, resumed)
    assert next(iter(resumed.footprints.values())).drops == drops and tower.modes[-1] == drops


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "keys": {"attn_mask": torch.tensor([[True, True, True, False, False]])},
    "added": {"attn_mask": torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)},
    "a row without keys": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril(-1)},
    "a row of minus infinity": {"attn_mask": torch.zeros(5, 5, dtype=torch.float64).index_fill(0, torch.tensor([2]), -torch.inf)},
    "a scale": {"scale": 0.3},
    "groups of heads": {"enable_gqa": True},
}  # fmt: skip


@pytest.mark.parametrize("kind", MASKS)
def test_attention_equals_that_of_torch(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    heads = [4, 2, 2] if kind == "groups of heads" else [4, 4, 4]
    drawn = [torch.randn(2, h, 5, 3, generator=generator, dtype=torch.float64) for h in heads]
    results = []
    for own in (False, True):
        query, key, value = (each.clone().requires_grad_() for each in drawn)
        if own:
            with Dropout():  # its chances have 16 bits, of which this one is 0
                out = F.scaled_dot_product_attention(
                    query, key, value, dropout_p=1e-9, **MASKS[kind]
                )
        else:
            out = F.scaled_dot_product_attention(query, key, value, **MASKS[kind])
        results.append([out, *torch.autograd.grad(out.sin().sum(), (query, key, value))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_dropout_in_attention_is_on_the_chances() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    torch.manual_seed(7)
    with Dropout() as dropout:
        out = F.scaled_dot_product_attention(query, key, value, dropout_p=0.3)
        torch.manual_seed(7)
        kept, scale = dropout.kept((2, 3, 5, 5), 0.3)
    chances = (query @ key.mT / 2).softmax(-1)
    torch.testing.assert_close(out, (chances * kept * scale) @ value)


def test_attention_in_half_precision_is_near_float32() -> None:
    """Without dropout, too: there torch's own goes backward at a tenth of the speed."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(3, 2, 9, 8, generator=generator) for _ in range(3)]
    results: list[list[Tensor]] = []
    for dtype in (torch.float32, torch.bfloat16):
        leaves = [each.clone().requires_grad_() for each in drawn]
        with Dropout():
            out = F.scaled_dot_product_attention(*(leaf.to(dtype) for leaf in leaves))
        results.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
    assert results[1][0].dtype == torch.bfloat16
    for exact, half in zip(*results, strict=True):
        assert float(((half - exact).norm() / exact.norm()).detach()) < 0.02


def test_a_mask_is_read_in_the_precision_of_the_scores() -> None:
    """The least number of float32 is minus infinity in bf16; a row of nothing else is masked, and
    not NaN."""
    rows = torch.randn(1, 2, 5, 8).bfloat16().requires_grad_()
    mask = torch.zeros(5, 5).index_fill(0, torch.tensor([2]), torch.finfo(torch.float32).min)
    with Dropout():
        out = F.scaled_dot_product_attention(rows, rows, rows, attn_mask=mask)
    (grad,) = torch.autograd.grad(out.float().sum(), rows)
    assert out.isfinite().all() and grad.isfinite().all()


def test_what_torch_refuses_is_refused() -> None:
    rows = torch.ones(1, 1, 2, 4)
    with Dropout(), pytest.raises(ValueError, match="give one of them"):
        F.scaled_dot_product_attention(
            rows, rows, rows, torch.ones(2, 2).bool(), dropout_p=0.5, is_causal=True
        )
    for p in (-0.5, 1.5):
        with Dropout(), pytest.raises(ValueError, match="which is no chance"):
            F.dropout(torch.ones(2), p)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_has_the_same_bits_with_and_without_a_graph(
    dropout: float, dtype: torch.dtype
) -> None:
    """What is replayed was embedded without one."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 2, 40, 32, generator=generator).to(dtype) for _ in range(3))
    outs = []
    for graph in (False, True):
        torch.manual_seed(5)
        with Dropout(), torch.set_grad_enabled(graph):
            leaves = [each.clone().requires_grad_(graph) for each in (query, key, value)]
            outs.append(F.scaled_dot_product_attention(*leaves, dropout_p=dropout).detach())
    assert torch.equal(*outs)
