"""Towers that a program brings along: what they may read, and what is said of those that cannot be
trained."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from tempera import mnr
from tempera.core.batch import Batch, Side
from tempera.engine.cache import Cache, Mode
from tempera.engine.step import step
from tempera.errors import ConfigError


class Dense(nn.Module):
    """A tower of one's own, from a tensor."""

    def __init__(self, inputs: int = 6) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 8).double()

    def forward(self, rows: Tensor) -> Any:
        return self.made(torch.tanh(self.layer(rows)))

    def made(self, rows: Tensor) -> Any:
        """Return what the tower returns."""
        return rows


def dense(rows: int = 12) -> Batch[Tensor]:
    torch.manual_seed(3)
    return Batch(*(Side(torch.randn(rows, 6, dtype=torch.float64)) for _ in range(2)))


def gradients(modules: nn.Module) -> list[Tensor]:
    """Return them, and leave none behind."""
    grads = [p.grad for p in modules.parameters() if p.grad is not None]
    modules.zero_grad()
    return grads


@pytest.mark.parametrize("mode", ["always", "auto", "never"])
def test_features_may_be_tensors_and_one_module_is_both_towers(mode: Mode) -> None:
    tower, objective, rows = Dense(), mnr(0.1), dense()
    loss = objective(tower(rows.query.rows), tower(rows.doc.rows)).mean()
    loss.backward()
    wants = gradients(tower)
    assert step(tower, objective, rows, Cache(mode, tokens=5)) == pytest.approx(
        loss.item(), abs=1e-12
    )
    for want, got in zip(wants, gradients(tower), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


WRONG: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a tuple": (lambda rows: (rows,), "a tuple"),
    "a dict": (lambda rows: {"embeddings": rows}, "a dict"),
    "one number a row": (lambda rows: rows[:, 0], r"float64 of shape \[12\]"),
    "a row too few": (lambda rows: rows[1:], r"float64 of shape \[11, 8\]"),
    "one row": (lambda rows: rows[:1], r"float64 of shape \[1, 8\]"),
    "integers": (lambda rows: rows.long(), r"int64 of shape \[12, 8\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_embedding_is_refused(name: str) -> None:
    tower = Dense()
    tower.made, said = WRONG[name]  # type: ignore[method-assign]
    with pytest.raises(
        ConfigError,
        match=f"^the tower Dense makes {said} of 12 rows: it has to return a tensor of floating",
    ):
        step(Two(tower, Dense()), mnr(), dense())


class Two(nn.Module):
    """Two towers."""

    def __init__(self, query: Any, doc: Any) -> None:
        super().__init__()
        self.query, self.doc = query, doc

    def of(self, role: str) -> Any:
        return self.query if role == "query" else self.doc


def test_a_tower_that_is_no_module_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^the tower of query is a function: give an nn\.Module, from features to",
    ):
        step(Two(lambda rows: rows, Dense()), mnr(), dense())


def test_embeddings_without_a_graph_are_refused() -> None:
    """If neither tower learns by them; a tower that is frozen, or both, may be on purpose."""
    tower, other = Dense(), Dense()
    tower.made = Tensor.detach  # type: ignore[method-assign, assignment]
    with pytest.raises(
        ConfigError,
        match=r"^no gradient reaches the weights of Dense: the embeddings have no graph",
    ):
        step(tower, mnr(), dense())
    step(Two(tower, other), mnr(), dense())
    assert tower.layer.weight.grad is None and other.layer.weight.grad is not None
    assert step(tower.requires_grad_(False), mnr(), dense()) > 0


class Words(nn.Module):
    """A tower of ids, in another way than by a call of its table."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(9, 4).double(), nn.Linear(4, 3).double()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.layer(self.looked_up(ids).mean(1)))


class Scaled(Words):
    def looked_up(self, ids: Tensor) -> Any:
        return functional_call(self.words, {"weight": self.words.weight * self.scale}, (ids,))


class Mapped(Words):
    def looked_up(self, ids: Tensor) -> Any:
        return torch.vmap(self.words)(ids) * self.scale


class Penalised(Words):
    """Goes backward within its forward pass."""

    def looked_up(self, ids: Tensor) -> Any:
        with torch.enable_grad():
            energy = torch.tanh(self.scale * self.layer.weight).square().sum()
            (slope,) = torch.autograd.grad(energy, self.layer.weight, create_graph=True)
        return self.words(ids) + slope.sum(0)


@pytest.mark.parametrize("mode", ["always", "never"])
@pytest.mark.parametrize("kind", [Scaled, Mapped, Penalised])
def test_gradients_are_those_of_autograd_however_a_tower_computes(
    kind: type[Words], mode: Mode
) -> None:
    torch.manual_seed(0)
    tower, objective = kind(), mnr(0.1)
    queries, docs = torch.randint(0, 9, (2, 6, 5))
    objective(tower(queries), tower(docs)).mean().backward()
    wants = gradients(tower)
    step(tower, objective, Batch(Side(queries), Side(docs)), Cache(mode, tokens=2))
    assert len(wants) == 4
    for want, got in zip(wants, gradients(tower), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_a_cache_forgets_towers_that_are_gone() -> None:
    """A tower at the place in memory of another one is measured, and looked at, for itself."""
    cache, refused = Cache(), 0
    for i in range(60):
        tower: Any = Dense()
        if i % 3 == 2:
            tower.layer = nn.Sequential(tower.layer, nn.BatchNorm1d(8).double())
            try:
                step(tower, mnr(), dense(), cache)
            except ConfigError:
                refused += 1
        else:
            step(tower, mnr(), dense(), cache)
        del tower
        gc.collect()
    assert refused == 20 and not cache.footprints


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"]
)
def test_a_copy_of_a_cache_knows_the_copies_of_its_towers(copied: Callable[[Any], Any]) -> None:
    tower, cache = Dense(), Cache()
    step(tower, mnr(), dense(), cache)
    other, same = copied((tower, cache))
    assert list(same.footprints) == [other] and list(cache.footprints) == [tower]
    assert (
        same.footprints[other] == cache.footprints[tower]
        and same.trained[other] == cache.trained[tower]
    )
    del other
    gc.collect()
    assert not same.footprints


def test_a_tower_is_measured_again_when_more_of_it_is_trained() -> None:
    """Else its graphs would take more memory than they may."""
    tower, cache = nn.Sequential(*(Dense(inputs) for inputs in (6, 8, 8, 8))), Cache()
    tower[:3].requires_grad_(False)
    few = cache.plan(tower, dense()).kept_bytes
    many = cache.plan(tower.requires_grad_(True), dense()).kept_bytes
    assert many > few and many == Cache().plan(tower, dense()).kept_bytes
