"""`tempera plan` counts a step without taking one, names the bottleneck of each stage, and refuses
what it cannot plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tempera import Batch, Side, mnr
from tempera.core import tiles
from tempera.engine import fused, training_options
from tempera.engine.fused import Fused
from tempera.errors import ConfigError
from tempera.options.yaml_options import Options, of
from tempera.paper.cost import META, Ledger, Operation, Stage
from tempera.paper.machines import MACHINES, Machine
from tempera.paper.stages import LOSS, counting, loss_on_paper, objective_on_paper
from tempera.run.on_paper import lines, planned
from tempera.towers.static import Static
from tempera.towers.transformer import Transformer

STATIC = [
    "tower.kind=static",
    "tower.dimensions=8",
    "tower.vocabulary=200",
    "train.batch_size=16",
    "evaluation.bm25=false",
]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rows = [f"query {i},document {i} of {i % 7} words {'more ' * (i % 5)}" for i in range(60)]
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(["query,doc", *rows]), encoding="utf-8")
    return path


def test_a_plan_counts_every_stage_and_grows_with_the_devices(pairs: Path) -> None:
    options = of({"data": {"path": str(pairs)}}, STATIC)
    one, two = (planned(options, device="h100", devices=count) for count in (1, 2))
    assert [each["stage"] for each in one["stages"]] == [
        "towers, first pass",
        "loss",
        "towers, backward",
        "optimiser",
    ]
    assert two["stages"][-1]["stage"] == "exchange" and two["stages"][-1]["sent"] > 0
    assert one["stages"][1]["flops"] == pytest.approx(2 * two["stages"][1]["flops"])
    assert all(each["bottleneck"] == "launches" for each in one["stages"]) and one["seconds"] > 0
    assert [each["memory"]["scores"] for each in (one, two)] == [
        2 * 4 * 16 * 16,
        2 * 4 * 8 * 16,
    ]  # and no whole tile
    shown = "\n".join(lines(two))
    assert (
        "16 pairs a step on 2 x h100" in shown and "exchange" in shown and "pairs a second" in shown
    )


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """750 pairs, and a saved model of one layer to begin with."""
    folder = tmp_path_factory.mktemp("pretrained")
    rows = [f"query {i},document {i} of {i % 7} words" for i in range(750)]
    (folder / "pairs.csv").write_text("\n".join(["query,doc", *rows]), encoding="utf-8")
    Transformer(layers=1, width=16, heads=2, vocabulary=80, max_length=12).build(rows).save(
        folder / "model"
    )
    tower = {"kind": "pretrained", "model": str(folder / "model")}
    return of({"data": {"path": str(folder / "pairs.csv")}, "tower": tower})


def test_a_pretrained_tower_has_a_larger_batch_on_an_accelerator(pretrained: Options) -> None:
    options = of(pretrained.values, ["train.mixed_precision=no"])
    assert [planned(options, device=name)["pairs"] for name in ("cpu", "h100")] == [15, 31]
    assert planned(of(options.values, ["train.batch_size=16"]), device="h100")["pairs"] == 15


@pytest.mark.parametrize(
    ("device", "half"),
    [
        ("cpu", "no"),
        ("h100", "bf16"),
        pytest.param("cpu", "bf16", marks=pytest.mark.long),
        pytest.param("h100", "no", marks=pytest.mark.long),
    ],
)
def test_adapters_have_few_weights_to_optimise(pretrained: Options, device: str, half: str) -> None:
    pytest.importorskip("peft")
    held = "weights and optimiser"
    settings = ["train.batch_size=16", f"train.mixed_precision={half}"]
    whole, adapters = (
        planned(of(pretrained.values, [*settings, *more]), device=device)["memory"]
        for more in ([], ["tower.lora={rank: 1}"])
    )
    assert whole[held] / 4 < adapters[held] < whole[held] / 2


@pytest.mark.parametrize(
    ("device", "least", "chosen", "kernel"),
    [
        ("h100", 1, [], "triton"),
        ("h100", 1000, [], "torch"),
        ("l4", 1, [], "torch"),
        ("l4", 1000, ["train.kernel=triton"], "triton"),
        ("m3", 1, ["train.kernel=triton"], "torch"),
        ("h100", 1, ["train.kernel=torch"], "torch"),
        ("h100", 1, ["train.kernel=triton", "objective.hardest=4"], "torch"),
    ],
)
def test_a_plan_counts_the_kernels_where_a_run_takes_them(
    pairs: Path,
    device: str,
    least: int,
    chosen: list[str],
    kernel: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_options, "MANY", least)
    plan = planned(of({"data": {"path": str(pairs)}}, [*STATIC, *chosen]), device=device)
    assert plan["kernel"] == kernel and ("loss: by fused kernels" in lines(plan)) == (
        kernel == "triton"
    )


@pytest.mark.parametrize(("precision", "times"), [("no", 2), ("bf16", 4)])
def test_kernels_hold_a_gradient_in_fp16_parts_where_torch_holds_scores(
    pairs: Path, precision: str, times: int
) -> None:
    settings = [*STATIC, f"train.mixed_precision={precision}"]
    torchs, kernels = (
        planned(
            of({"data": {"path": str(pairs)}}, [*settings, f"train.kernel={kernel}"]), device="h100"
        )["memory"]
        for kernel in ("torch", "triton")
    )
    assert torchs.pop("scores") == times * kernels.pop("scores") > 0
    assert torchs == kernels


def test_a_plan_says_why_the_loss_stage_stays_with_torch(
    pairs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = ["train.kernel=triton", "objective.hardest=4"]
    with caplog.at_level("INFO", logger="tempera"):
        planned(of({"data": {"path": str(pairs)}}, [*STATIC, *chosen]), device="h100")
    assert "stays with torch, since only the 4 hardest negatives count" in caplog.text


def test_a_plan_counts_the_choice_of_rows_and_the_step_of_those_that_are_chosen(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(device: torch.device) -> int:
        raise ValueError(f"{device} is not the accelerator of this machine")

    monkeypatch.setattr(tiles, "free_bytes", refused)  # a device on paper is not asked
    Static(dimensions=8, vocabulary=100).build(pairs.read_text().split()).save(tmp_path / "guide")
    guide = ["train.guide=" + str(tmp_path / "guide")]
    options = [
        of({"data": {"path": str(pairs)}}, [*STATIC, *guide, *more])
        for more in ([], ["train.select=0.5"])
    ]
    whole, half = (planned(each, device="h100") for each in options)
    assert [each["stage"] for each in half["stages"]] == [
        "choice, losses",
        *(each["stage"] for each in whole["stages"]),
    ]
    assert half["stages"][2]["flops"] == pytest.approx(whole["stages"][1]["flops"] / 4)
    assert lines(half)[0].startswith("16 pairs a step, of which a guide chooses 8, on h100")
    assert "chooses" not in lines(whole)[0]
    by = of(
        {"data": {"path": str(pairs)}},
        [*STATIC, *guide, "train.select=0.5", "train.select_by=learnability"],
    )
    first, second = planned(by, device="h100")["stages"][:2]
    assert {first["stage"], second["stage"]} == {"choice, losses", "choice, towers"}
    losses = next(each for each in (first, second) if each["stage"] == "choice, losses")
    assert losses["launches"] == 2 * half["stages"][0]["launches"]


@pytest.mark.slow
def test_a_machine_is_measured_where_no_device_is_named(pairs: Path) -> None:
    plan = planned(of({"data": {"path": str(pairs)}}, STATIC), device="cpu")
    assert plan["measured"] and plan["device"] == "this machine" and plan["capacity"] is None
    assert 1e8 < plan["rates"]["flops"]["float32"] < 1e14 and 1e-7 < plan["rates"]["launch"] < 1e-2


@pytest.mark.parametrize(
    ("device", "devices", "error"),
    [("tpu", 1, "--device is tpu: give one of h100"), ("l4", 99, "--devices is 99")],
)
def test_what_cannot_be_planned_is_refused(
    pairs: Path, device: str, devices: int, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        planned(of({"data": {"path": str(pairs)}}, STATIC), device=device, devices=devices)


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["train.fsdp=true"], "there is only one"),
        (["train.divide_tables=true"], "there is only one"),
        (["train.fsdp=true", "train.divide_tables=true"], "divides tables, too"),
    ],
)
def test_what_would_stop_the_run_stops_its_plan(
    pairs: Path, overrides: list[str], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        planned(of({"data": {"path": str(pairs)}}, [*STATIC, *overrides]), device="h100")


@pytest.mark.parametrize("device", ["m3", "cpu", None])
def test_several_devices_need_a_network(pairs: Path, device: str | None) -> None:
    with pytest.raises(
        ConfigError, match=f"how fast {device or 'this machine'} sends to another is not known"
    ):
        planned(of({"data": {"path": str(pairs)}}, STATIC), device=device, devices=2)


def sent(plan: dict[str, Any]) -> dict[str, int]:
    return {each["stage"]: each["sent"] for each in plan["stages"]}


def test_divided_towers_keep_and_send_their_parts(tmp_path: Path) -> None:
    """Weights are gathered for every call of a tower in the precision of the towers, and their
    gradients are reduced in float32."""
    rows = [f"query {i},document {i} of {i % 7} words" for i in range(200)]
    (tmp_path / "pairs.csv").write_text("\n".join(["query,doc", *rows]), encoding="utf-8")
    transformer = [
        "tower.kind=transformer",
        "tower.layers=1",
        "tower.width=16",
        "tower.heads=2",
        "tower.vocabulary=80",
    ]
    options = [
        "train.batch_size=80",
        "train.micro_batch_tokens=4",
        "train.cache=always",
        "train.made_rows=0",
    ]
    made: dict[str, dict[str, Any]] = {}
    for name, own in {
        "whole": [],
        "float32": ["train.fsdp=true"],
        "bf16": ["train.fsdp=true", "train.mixed_precision=bf16"],
    }.items():
        made[name] = planned(
            of(
                {"data": {"path": str(tmp_path / "pairs.csv")}},
                [*STATIC[4:], *transformer, *options, *own],
            ),
            device="h100",
            devices=2,
        )
    kept = [made[name]["memory"]["weights and optimiser"] for name in made]
    assert kept[1] == kept[2] == kept[0] / 2
    weights = kept[0] / 4  # a gradient and two moments beside them
    micros = int(made["float32"]["towers"].split()[0])
    rows = [each["stages"][-1] for each in made.values()]
    assert micros > 64 and rows[1]["launches"] == rows[2]["launches"] == 2 + 4 * micros
    of_rows = rows[0]["sent"] - weights  # an all-reduce of two devices sends as much as there is
    assert rows[1]["sent"] - of_rows == pytest.approx(4 * micros * weights / 2, rel=1e-3)
    assert rows[2]["sent"] - of_rows == pytest.approx((3 / 2 + 1) * micros * weights / 2, rel=1e-3)


def test_rows_of_tables_travel_where_tables_are_divided_or_gradients_sparse(tmp_path: Path) -> None:
    users, items, width = 40, 3000, 16
    rows = [f"{i % users},{(i * 37) % items},{i}" for i in range(users * 300)]
    (tmp_path / "events.csv").write_text(
        "\n".join(["user_id,item_id,timestamp", *rows]), encoding="utf-8"
    )
    own = {
        "": [],
        "sparse": ["train.table_optimizer=rowwise_adagrad"],
        "divided": ["train.divide_tables=true"],
    }
    plans = {}
    for name, more in own.items():
        settings = [
            f"tower.dimensions={width}",
            "tower.query_layers=[8]",
            "train.batch_size=64",
            *more,
        ]
        plans[name] = planned(
            of({"data": {"path": str(tmp_path / "events.csv")}}, settings), device="h100", devices=4
        )
    table, whole = 4 * items * width, plans[""]["memory"]["weights and optimiser"]
    assert whole > 4 * table
    assert plans["sparse"]["memory"]["weights and optimiser"] == pytest.approx(
        whole - 3 * table, rel=0.02
    )
    assert plans["divided"]["memory"]["weights and optimiser"] == pytest.approx(
        whole - 4 * table * 3 / 4, rel=0.02
    )
    assert sent(plans[""])["exchange"] > 2 * table * 3 / 4
    assert all(0 < sent(plans[name])["exchange"] < table for name in ("sparse", "divided"))
    moved = {
        name: {each["stage"]: each["bytes"] for each in plan["stages"]}
        for name, plan in plans.items()
    }
    assert moved[""]["towers, backward"] > table > 1.5 * moved["sparse"]["towers, backward"]
    assert moved["divided"]["optimiser"] < 0.3 * moved[""]["optimiser"]


@pytest.mark.parametrize("optimizer", ["adamw", "rowwise_adagrad"])
def test_rows_of_bags_travel_where_tables_are_divided(tmp_path: Path, optimizer: str) -> None:
    """A static tower reads each word of a batch once, by number, as a vector, and as its
    gradient."""
    rows = [
        f"{' '.join(f'w{(7 * i + j) % 1500}' for j in range(9))},{' '.join(f'w{(11 * i + j) % 1500}' for j in range(9))}"
        for i in range(900)
    ]
    (tmp_path / "pairs.csv").write_text("\n".join(["query,doc", *rows]), encoding="utf-8")
    settings = [
        "tower.kind=static",
        "tower.dimensions=8",
        "tower.vocabulary=3000",
        "train.batch_size=64",
        "train.made_rows=0",
    ]
    divided = [
        "evaluation.bm25=false",
        "train.divide_tables=true",
        f"train.table_optimizer={optimizer}",
    ]
    options = of({"data": {"path": str(tmp_path / "pairs.csv")}}, [*settings, *divided])
    sending = planned(options, device="h100", devices=2)["stages"][-1]
    least = 300 * (8 + 2 * 4 * 8) / 2  # of some 500 distinct words on a device
    assert (
        sending["stage"] == "exchange" and sending["launches"] == 2 + 3 and sending["sent"] > least
    )
    with pytest.raises(ConfigError, match="the towers train no table of 1,024 rows or more"):
        planned(
            of(
                {"data": {"path": str(tmp_path / "pairs.csv")}},
                [*settings, *divided, "tower.vocabulary=900"],
            ),
            device="h100",
            devices=2,
        )


def test_the_device_with_the_most_rows_is_counted(pairs: Path) -> None:
    """The others wait for it: of 16 pairs on 3 devices it has 6."""
    plan = planned(of({"data": {"path": str(pairs)}}, STATIC), device="h100", devices=3)
    assert plan["stages"][1]["flops"] == 3 * 2 * 6 * 16 * 8


def test_the_products_of_a_loss_stage_are_three_for_each_tile() -> None:
    """6 n^2 D FLOPs for n pairs of width D: the scores, and the gradients of queries and of
    documents."""
    ledger, rows = (
        Ledger(META),
        (torch.empty(512, 32, device=META, requires_grad=True) for _ in range(2)),
    )
    loss_on_paper(ledger, objective_on_paper(mnr(), META), Batch(*map(Side, rows)), 80e9)
    assert ledger.stages[LOSS].total("flops") == 6 * 512**2 * 32


@pytest.mark.parametrize(("parts", "kernels", "products"), [(1, 4, 4), (2, 12, 12)])
def test_the_products_of_kernels_are_those_that_they_run(
    parts: int, kernels: int, products: int
) -> None:
    """2 n^2 D FLOPs for each product of one part: two passes, and the gradients of both sides. Two
    parts are three products."""
    ledger, rows = (
        Ledger(META),
        (torch.empty(512, 64, device=META, requires_grad=True) for _ in range(2)),
    )
    objective = mnr()
    objective.loss_pass = counting(ledger, Fused(parts))
    loss_on_paper(ledger, objective_on_paper(objective, META), Batch(*map(Side, rows)), 80e9)
    assert ledger.stages[LOSS].total("flops") == (kernels + products) * 512**2 * 64
    own = [
        each
        for each in ledger.stages[LOSS].operations
        if each.name in ("log_sums", "logit_gradients")
    ]
    assert sum(each.flops for each in own) == kernels * 512**2 * 64
    stored = next(each.bytes for each in own if each.name == "logit_gradients")
    read = (
        next(each.bytes for each in own if each.name == "log_sums") - 4 * 512 * 512 // fused.SHAPE.N
    )
    assert (
        stored - read == 2 * parts * 512**2 + 4 * 512
    )  # what is stored, and the sums that it reads


def test_an_operation_takes_what_its_slowest_part_takes() -> None:
    machine = Machine("a", {torch.float32: 1e12}, bandwidth=1e9, launch=1e-3, network=1e9)
    stage = Stage()
    stage.operations.update(
        {
            Operation("mm", torch.float32, 10**12, 10**6): 2,
            Operation("add", torch.float32, 0, 10**8): 1,
            Operation("add", torch.float32, 0, 8): 5,
            Operation("all-reduce", torch.uint8, 0, 0, 10**9): 1,
        }
    )
    assert machine.seconds(stage) == pytest.approx(
        {"compute": 2.0, "bandwidth": 0.1, "launches": 0.005, "network": 1.0}
    )
    assert set(MACHINES) == {"h100", "h200", "l4", "a10g", "m3"}
