"""The proofs pass where all is well, and each fails where its subject is broken."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from tempera.cli import app
from tempera.core.objective import Objective
from tempera.core.presets import mnr
from tempera.core.temperature import Temperature
from tempera.engine import cache, checkpoint, micro_batches
from tempera.engine.curation import By
from tempera.engine.devices import Devices
from tempera.engine.micro_batches import Micro
from tempera.io.documents import JsonLines
from tempera.run import verify as verification
from tempera.run.prepare import prepare
from tempera.run.verify import Case, verify
from tempera.towers.static import StaticTower


def config(folder: Path) -> dict[str, Any]:
    words = [
        "red",
        "green",
        "blue",
        "round",
        "square",
        "small",
        "large",
        "old",
        "new",
        "fast",
        "slow",
        "loud",
    ]
    rows = [
        {"query": f"{a} {b}", "doc": f"a thing that is {b} and {a} or {c}"}
        for a in words
        for b in words
        for c in words[:2]
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "data": {"source": "pairs", "path": str(folder / "pairs.jsonl")},
        "tower": {"dimensions": 16, "vocabulary": 200},
        "objective": {"preset": "gte", "temperature": {"value": 0.1, "learnable": True}},
        "train": {"batch_size": 32, "max_steps": 4},
        "evaluation": {"queries": 10, "bm25": False},
    }


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    from tempera.options import yaml_options as configuration
    from tempera.options.build import build

    folder = tmp_path_factory.mktemp("case")
    with JsonLines(folder / "log.jsonl") as log:
        return Case.of(prepare(build(configuration.of(config(folder))), Devices(), folder, log))


class Dropping(nn.Module):
    """A static tower with dropout, so that replays have something to get wrong."""

    padded = False

    def __init__(self, tower: StaticTower) -> None:
        super().__init__()
        self.tower = tower

    def of(self, role: str) -> Dropping:
        return self

    def forward(self, features: Any) -> Tensor:
        return nn.functional.dropout(self.tower(features), 0.5, self.training)


def failed(proofs: Iterator[verification.Proof]) -> list[str]:
    return [proof.name for proof in proofs if not proof.passed]


# the example of `verify` tries a configuration of texts, and tests/recommend one of interactions
@pytest.mark.long
@pytest.mark.parametrize("tables", ["adamw", "rowwise_adagrad"])
def test_everything_holds(tmp_path: Path, tables: str) -> None:
    proofs = verify(config(tmp_path), [f"train.table_optimizer={tables}"])
    assert [proof for proof in proofs if not proof.passed] == []
    assert len(proofs) >= 10 and len({proof.name for proof in proofs}) == len(proofs)


def test_the_command_prints_a_table_and_tells_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import yaml

    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config(tmp_path)))
    monkeypatch.setattr(verification, "PROOFS", (verification._objective,))
    found = CliRunner().invoke(app, ["verify", str(tmp_path / "c.yaml"), "--json"])
    assert found.exit_code == 0 and all(
        proof["passed"] for proof in json.loads(found.stdout.splitlines()[-1])
    )
    monkeypatch.setattr(
        verification, "PROOFS", (lambda case: [verification.Proof("x", "1", "0", False)],)
    )
    found = CliRunner().invoke(app, ["verify", str(tmp_path / "c.yaml")])
    assert found.exit_code == 1 and "FAIL" in found.stdout


def test_a_wrong_loss_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Objective.propagate
    monkeypatch.setattr(
        Objective, "propagate", lambda self, batch, shares: right(self, batch, shares) * 1.0001
    )
    assert failed(verification._objective(case)) == ["objective = its definition: losses"]


@pytest.mark.parametrize("length", [0.01, 1.0, 100.0])
def test_a_wrong_gradient_is_found_and_a_right_one_passes(
    case: Case, monkeypatch: pytest.MonkeyPatch, length: float
) -> None:
    tower = copy.deepcopy(case.tower)
    rows = tower(case.batches[0].doc.rows)
    with torch.no_grad():
        tower.embedding.weight *= length / float(rows.norm(dim=1).mean())
    scaled = replace(case, tower=tower)
    assert failed(verification._objective(scaled)) == []
    right = Objective.propagate
    monkeypatch.setattr(
        Objective, "propagate", lambda self, batch, shares: right(self, batch, 1.001 * shares)
    )
    assert failed(verification._objective(scaled)) == ["objective = its definition: gradients"]
    assert len(failed(verification._cached(case))) == 2


def test_a_wrong_gradient_of_the_temperature_is_found(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = case.objective.loss_pass

    def loss_pass(*given: Any) -> Any:
        losses, gradients = right(*given)
        return losses, gradients and replace(gradients, scale=1.001 * gradients.scale)

    monkeypatch.setattr(case.objective, "loss_pass", loss_pass)
    assert failed(verification._objective(case)) == ["objective = its definition: gradients"]


def test_rows_that_come_back_in_another_order_are_found(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Micro.put
    monkeypatch.setattr(Micro, "put", lambda micro, rows: right(micro, rows.flip(0)))
    assert "cached = whole, kept and replayed" in failed(verification._cached(case))


@pytest.mark.parametrize("by", ["guide", "learnability"])
def test_wrong_scores_of_a_guide_are_found(
    case: Case, by: By, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not list(verification._chosen(case))  # which learns from all rows
    sides: Any = {
        role: replace(side, guide=nn.functional.normalize(torch.randn(len(side), 5), dim=1))
        for role, side in case.batches[0].sides().items()
    }
    options = replace(case.options, guide="a model", select=0.5, select_by=by)
    guided = replace(case, batches=[replace(case.batches[0], **sides)], options=options)
    assert failed(verification._chosen(guided)) == []
    right = Objective.contrastive_losses
    monkeypatch.setattr(
        Objective, "contrastive_losses", lambda self, batch: 1.001 * right(self, batch)
    )
    assert failed(verification._chosen(guided)) == [
        "scores of the guide's choice = their definition"
    ]


def test_dropout_that_is_not_replayed_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    dropping = Case(Dropping(case.tower), *list(vars(case).values())[1:])
    (proof,) = verification._replayed(dropping)
    assert proof.passed and "dropout on" in proof.name
    monkeypatch.setattr(micro_batches, "seeded", lambda seed, device: nullcontext())
    assert failed(verification._replayed(dropping)) != []


def test_a_model_that_is_saved_otherwise_is_found(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failed(verification._saved(case)) == []
    right = StaticTower.save

    def save(self: StaticTower, folder: Path) -> None:
        with torch.no_grad():
            self.embedding.weight[5:] += 0.01
        right(self, folder)
        with torch.no_grad():
            self.embedding.weight[5:] -= 0.01

    monkeypatch.setattr(StaticTower, "save", save)
    assert failed(verification._saved(case)) != []


def test_a_resume_that_forgets_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    right = checkpoint.State.load

    def load(self: checkpoint.State, folder: Path) -> None:
        right(self, folder)
        self.optimizer.state.clear()

    monkeypatch.setattr(checkpoint.State, "load", load)
    assert failed(verification._resumed(case)) == ["resumed = uninterrupted"]


def test_lost_precision_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StaticTower, "forward", _coarse(StaticTower.forward))
    assert failed(verification._precision(case)) == ["float32 against float64"]


def _coarse(forward: Any) -> Any:
    """A tower that loses digits unless it computes in double precision."""

    def coarser(self: StaticTower, features: Any) -> Tensor:
        rows: Tensor = forward(self, features)
        return rows if rows.dtype == torch.float64 else rows.bfloat16().to(rows.dtype)

    return coarser


def test_a_group_that_adds_up_wrongly_is_found(case: Case) -> None:
    """In this process: the gradient of a part is not the gradient of the whole."""
    from tempera.core.batch import divide

    part = Case(
        case.tower,
        case.objective,
        [divide(case.batches[0], 0, 2)],
        case.options,
        case.reopened,
        case.folder,
    )
    found = verification._stepped(part, torch.float64, cache.Cache())
    assert (
        verification._off(found, verification._stepped(case, torch.float64, cache.Cache())) > 1e-3
    )


def test_a_batch_that_is_solved_is_checked_where_it_has_a_loss(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = mnr(temperature=0.01)
    dial = objective.temperature
    easy = replace(
        case, objective=objective, batches=[replace(case.batches[0], query=case.batches[0].doc)]
    )
    assert verification._whole(easy, torch.float64)[0] < 1e-5
    assert failed(verification._precision(easy))
    easy.warm()
    assert (
        0.01 < dial.value <= 1
        and verification._whole(easy, torch.float64)[0] >= verification.LEAST_LOSS
    )
    assert failed(verification._precision(easy)) == failed(verification._objective(easy)) == []
    settled = dial.value
    easy.warm()
    assert dial.value == settled
    bound = mnr(temperature=Temperature(0.01, learnable=True, ceiling=0.02))
    replace(easy, objective=bound).warm()
    assert bound.temperature.value == pytest.approx(settled)
    monkeypatch.setattr(verification, "_whole", lambda case, dtype: (0.0, {}))
    replace(easy, objective=bound).warm()
    assert bound.temperature.value == pytest.approx(settled)
