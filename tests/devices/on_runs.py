"""Runs on the pretend accelerator end with the CPU's bits: towers, presets and parts of both
worlds, chosen to meet in pairs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pretend import Accelerator
from torch import Tensor

from tempera import Temperature, mnr, train
from tempera.arithmetic import abilities
from tempera.core.batch import Side
from tempera.core.memory import Memory
from tempera.engine import cache, loop, micro_batches
from tempera.engine.devices import Devices, Precision, start
from tempera.engine.training_options import Training
from tempera.errors import ConfigError
from tempera.io.documents import JsonLines
from tempera.layers import lookup
from tempera.options.build import build
from tempera.options.yaml_options import of
from tempera.parallel.distributed import Group
from tempera.run.fit import fit
from tempera.run.judge import judge
from tempera.run.prepare import prepare
from tempera.towers import modules
from tempera.towers.static import Static
from tempera.towers.transformer import Transformer

Choice = dict[str, Any]  # options by their dotted names
LEARNED = {"value": 0.05, "learnable": True}
SMALL = {
    "kind": "transformer",
    "layers": 1,
    "width": 16,
    "heads": 2,
    "vocabulary": 200,
    "max_length": 16,
}
TEXT: dict[str, list[Choice]] = {
    "tower": [
        {"tower": {"kind": "static", "dimensions": 8, "vocabulary": 200, "init": "normal"}},
        {"tower": SMALL},
    ],
    "objective": [
        {"objective.preset": "mnr"},
        {"objective.preset": "symmetric"},
        {"objective.preset": "gte"},
        {"objective.preset": "simcse"},
        {"objective.preset": "hardness"},
        {"objective.preset": "mixed_negatives", "train.sampled": 8},
        {"objective.preset": "sampled_softmax"},
        {"objective.masks": ["same_id", {"guided": {"by": "self"}}]},
        {"objective.pools": ["docs", "memory"], "objective.memory": 32},
        {
            "objective.masks": ["known_positives"],
            "objective.numerator": "mean",
            "objective.hardest": 5,
        },
    ],
    "temperature": [{"objective.temperature": 0.05}, {"objective.temperature": LEARNED}],
    "widths": [{}, {"objective.matryoshka": [4, 8]}],
    "train": [
        {"train.max_grad_norm": 0.1},
        {"train.cache": "always", "train.micro_batch_tokens": 100},
        {"train.gradient_accumulation_steps": 2},
    ],
}
ITEMS: dict[str, list[Choice]] = {
    "doc": [
        {"tower.doc": ["id"]},
        {"tower.doc": ["id", {"categories": {"column": "genre"}}]},
        {"tower.doc": [{"text": {"column": "title"}}, {"number": {"column": "price"}}]},
    ],
    "history": [
        {},
        {"tower.history": {"pools": [{"mean": {"last": 5}}, {"max": {}}], "items": "own"}},
        {"tower.history": {"pools": [{"attention": {}}, {"ages": {}}]}},
        {"tower.history": {"pools": ["gru"]}},
        {"tower.history": {"pools": ["transformer"]}, "tower.dropout": 0.1},
        {"tower.history": {"pools": ["bag"]}, "data.ordered": False, "data.split": "random"},
    ],
    "objective": [
        {"objective.corrections": ["log_q"], "objective.masks": ["same_id", "known_positives"]},
        {"objective.preset": "sampled_softmax", "objective.similarity": "dot"},
        {
            "objective.preset": "mixed_negatives",
            "train.sampled": 8,
            "objective.temperature": LEARNED,
        },
    ],
    "tables": [{"train.table_optimizer": "adamw"}, {"train.table_optimizer": "rowwise_adagrad"}],
    "query": [{"tower.query_layers": []}, {"tower.query": ["id"], "tower.query_layers": [8]}],
}


def covering(factors: Mapping[str, list[Choice]], most: int) -> Iterator[Choice]:
    """Yield configurations of which each has as many new pairs of choices as possible, until all
    pairs are there."""
    draw, names = random.Random(0), list(factors)
    every = [
        dict(zip(names, chosen, strict=True))
        for chosen in product(*(range(len(factors[n])) for n in names))
    ]
    draw.shuffle(every)
    seen: set[tuple[tuple[str, int], tuple[str, int]]] = set()
    for _ in range(most):
        best = max(every, key=lambda each: len(set(combinations(each.items(), 2)) - seen))
        seen |= set(combinations(best.items(), 2))
        yield {key: value for name, i in best.items() for key, value in factors[name][i].items()}


def sections(choice: Choice) -> dict[str, Any]:
    """Return options by section."""
    values: dict[str, Any] = {}
    for path, value in choice.items():
        section, _, name = path.partition(".")
        values[section] = {**values.get(section, {}), **({name: value} if name else value)}
    return values


def pairs() -> pa.Table:
    draw, words = (
        random.Random(0),
        [a + b for a in ("ka", "lo", "mi") for b in ("ban", "cel", "dor", "fin")],
    )
    rows = [draw.sample(words, 4) for _ in range(60)]
    return pa.Table.from_pylist(
        [{"query": " ".join(row[:3]), "doc": " ".join(row[1:])} for row in rows]
    )


def events() -> tuple[pa.Table, pa.Table]:
    draw = random.Random(0)
    rows = [
        {"user": user, "item": draw.randrange(20), "time": 100 * user + i}
        for user in range(20)
        for i in range(draw.randrange(4, 9))
    ]
    items = [
        {
            "item": i,
            "title": f"the {draw.choice('abc')} {i}",
            "genre": draw.choice("xyz"),
            "price": draw.random(),
        }
        for i in range(20)
    ]
    return pa.Table.from_pylist(rows), pa.Table.from_pylist(items)


def config_of(choice: Choice) -> Any:
    options = sections(choice)
    options["train"] = {
        "batch_size": 16,
        "max_steps": 2,
        "evaluations": 0,
        "learning_rate": 0.01,
        **options.get("train", {}),
    }
    if "doc" in options["tower"]:
        table, items = events()
        options["data"] = {
            "source": "interactions",
            "split": "leave_last_out",
            **options.get("data", {}),
        }
        options["tower"] = {"kind": "features", "dimensions": 8, **options["tower"]}
        options["evaluation"] = {"metrics": ["hit@10"]}
        config = build(of(options))
        return replace(config, data=config.data.hand(table, items=items))
    options["evaluation"] = {"queries": 10, "validation": 0, "bm25": False}
    config = build(of({**options, "data": {"source": "given"}}))
    return replace(config, data=config.data.hand(pairs()))


Ended = tuple[list[Any], dict[str, Tensor], dict[str, float]]


def ended(choice: Choice, folder: Path, device: torch.device, precision: Precision = "no") -> Ended:
    """Return the steps of a run, the weights that it ends with, and its metrics."""
    taken: list[Any] = []
    take = loop.take

    def noted(*given: Any) -> Any:
        taken.append(take(*given))
        return taken[-1]

    folder.mkdir()
    config = config_of(choice)
    config = replace(config, train=replace(config.train, mixed_precision=precision))
    with JsonLines(folder / "log.jsonl") as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "take", noted)
        run = prepare(config, Devices(Group(device=device), precision), folder, log)
        for module in run.task.data.tower.modules():
            if not Accelerator.exact and isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # a device's draws are its own
        fit(run)
        verdict = judge(run)
    assert verdict is not None
    state = {**run.task.data.tower.state_dict(), **run.config.objective.state_dict()}
    steps = [replace(each, seconds=0.0) for each in taken]
    return steps, {name: value.cpu() for name, value in state.items()}, verdict.ranking.metrics


@pytest.fixture(autouse=True)
def cut_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches, and texts that are read, are cut as on a CPU; as on a device, autograd sums
    tables' gradients, torch draws."""
    monkeypatch.setattr(cache, "start_tokens", lambda device, tower, half: 32)
    monkeypatch.setattr(modules, "_ENCODED_ON_DEVICE", modules._ENCODED_AT_ONCE)
    monkeypatch.setattr(lookup, "_is_plain_table", lambda table: False)
    for module in (cache, micro_batches):
        monkeypatch.setattr(module, "dropout_on", lambda device, tower: nullcontext())


CHOICES = [*covering(TEXT, 12), *covering(ITEMS, 10)]


def name_of(choice: Choice) -> str:
    return " ".join(
        f"{path.rpartition('.')[2]}={value}" for path, value in choice.items() if path != "tower"
    )[:100]


EVERY = [
    pytest.param(each, marks=[pytest.mark.long] if i % 2 else [], id=name_of(each))
    for i, each in enumerate(CHOICES)
]


@pytest.mark.gpu
@pytest.mark.parametrize("choice", EVERY)
def test_a_run_ends_with_the_bits_of_the_cpu(choice: Choice, tmp_path: Path) -> None:
    want = ended(choice, tmp_path / "cpu", torch.device("cpu"))
    with Accelerator() as used:
        got = ended(choice, tmp_path / "device", used.device)
    assert got[1].keys() == want[1].keys() and (used.total("launches") > 100 or not used.exact)
    if (
        "gru" in name_of(choice) or not used.exact
    ):  # devices have kernels of their own, which round otherwise
        losses = [[step.loss for step in steps] for steps in (got[0], want[0])]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4 if used.exact else 1e-2)
        return
    assert got[0] == want[0] and got[2] == want[2]
    assert all(torch.equal(got[1][name], want[1][name]) for name in want[1])


def losses_are_those_of_the_cpu(choice: Choice, folder: Path) -> None:
    want = ended(choice, folder / "cpu", torch.device("cpu"))
    with Accelerator() as used:
        got = ended(choice, folder / "device", used.device)
    losses = [[step.loss for step in steps] for steps in (got[0], want[0])]
    assert losses[0] == (losses[1] if used.exact else pytest.approx(losses[1], rel=1e-2))


@pytest.mark.gpu
def test_sparse_gradients_of_several_batches_are_the_sums_of_the_cpu(tmp_path: Path) -> None:
    train = {"train.table_optimizer": "rowwise_adagrad", "train.gradient_accumulation_steps": 2}
    choice = {**ITEMS["doc"][0], **train, "train.max_grad_norm": 0.1}
    losses_are_those_of_the_cpu(choice, tmp_path)


@pytest.mark.gpu
def test_what_a_checkpoint_remembers_moves_to_the_device() -> None:
    memory = Memory(3)
    with Accelerator() as used:
        memory.push(Side(torch.eye(2)))
        memory.push(Side(torch.eye(2, device=used.device)))
        rows = memory.rows
        assert rows is not None and rows.device.type == used.device.type
        assert rows.cpu().tolist() == [[0, 1], [1, 0], [0, 1]]


@pytest.mark.gpu
@pytest.mark.parametrize("by", ["guide", "learnability"])
def test_a_guide_chooses_the_rows_that_it_chooses_on_the_cpu(by: str, tmp_path: Path) -> None:
    Static(dimensions=6, vocabulary=200, init="normal").build(pairs()["query"].to_pylist()).save(
        tmp_path / "guide"
    )
    train = {"train.guide": str(tmp_path / "guide"), "train.select": 0.6, "train.select_by": by}
    choice = {"tower": SMALL, "objective.preset": "symmetric", **train}
    losses_are_those_of_the_cpu(choice, tmp_path)


@pytest.mark.gpu
def test_a_run_in_half_precision_scales_its_gradients(tmp_path: Path) -> None:
    choice = {**TEXT["tower"][1], "objective.temperature": LEARNED}
    with Accelerator() as used:
        for precision in ("fp16", "bf16"):
            steps, _, _ = ended(choice, tmp_path / precision, used.device, precision)
            assert all(step.fault is None and step.grad_norm is not None for step in steps)


SOME = [
    pytest.param(each, marks=[pytest.mark.slow] if i % 3 else [], id=name_of(each))
    for i, each in enumerate(CHOICES)
]


@pytest.mark.parametrize("choice", SOME)
def test_a_device_with_less_runs_and_its_line_says_what_is_missing(
    choice: Choice, tmp_path: Path
) -> None:
    """MPS has no float64 and no query of its memory; the device of the runs above is as XPU,
    without timed events."""
    with Accelerator() as used:
        assert ["timed" in text for text in abilities.missing(used.device)] == [True]
    with Accelerator(float64=False, memory=None, sparse=False) as used:
        lacks = abilities.missing(used.device)
        steps, _, _ = ended(choice, tmp_path / "less", used.device)
    assert len(steps) == 2 and all(step.fault is None for step in steps)
    words = ("float64", "free memory", "sparse", "timed")
    assert len(lacks) == 4 and all(word in text for word, text in zip(words, lacks, strict=True))


# One step
# ------------------------------------------------------------------------------------------------------------


def warm(choice: Choice, folder: Path, used: Accelerator, precision: Precision = "no") -> None:
    """Take two steps of a run, and count what the second one needs."""
    folder.mkdir()
    config = config_of(choice)
    config = replace(config, train=replace(config.train, mixed_precision=precision))
    with JsonLines(folder / "log.jsonl") as log:
        devices = Devices(Group(device=used.device), precision)
        run = prepare(config, devices, folder, log)
    data, options = run.task.data, config.train
    state = loop.begin(
        data.tower.to(used.device), run.config.objective.to(used.device), options, devices
    )
    batches = [data.batch(rows, i) for i, rows in enumerate(data.sampler(0, 2))]
    steps = loop.train(state, batches, 3, options, devices)
    next(steps)
    used.clear()
    next(steps)


READ = {"engine/loop.py _loss_and_norm": 1}  # loss, norm and the temperature's gradient, together


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize(
    ("choice", "copies", "launches"),
    [
        (
            {**TEXT["tower"][0], "objective.temperature": LEARNED, "train.max_grad_norm": 0.01},
            10,
            90,
        ),
        (
            {**TEXT["tower"][0], "objective.temperature": LEARNED, "tower.token_weights": True},
            10,
            96,
        ),
        ({**TEXT["tower"][1], "objective.preset": "gte", "train.cache": "always"}, 16, 400),
        (
            {
                **ITEMS["doc"][0],
                **ITEMS["history"][0],
                **ITEMS["objective"][0],
                "tower.query_layers": [],
            },
            25,
            190,
        ),
    ],
    ids=["static", "weights of tokens", "transformer", "items"],
)
def test_a_warm_step_waits_once(
    choice: Choice, copies: int, launches: int, precision: Precision, tmp_path: Path
) -> None:
    with Accelerator() as used:
        warm(choice, tmp_path / "run", used, precision)
    used.within(
        waits=READ, copies={where.place: copies for _, where in used.counts}, launches=launches
    )
    assert used.total("copies") <= copies, list(used.by_line("copies"))


def test_a_warm_step_waits_twice_with_the_scaler_of_fp16(tmp_path: Path) -> None:
    with Accelerator() as used:
        warm({**TEXT["tower"][0], "objective.temperature": LEARNED}, tmp_path / "run", used, "fp16")
    assert used.total("waits") <= 2, list(used.by_line("waits"))


def test_what_is_planted_in_the_loop_fails_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm = loop.total_norm

    def planted(*given: Any) -> Tensor:
        found = norm(*given)
        found.item()  # planted in the loop
        return found

    monkeypatch.setattr(loop, "total_norm", planted)
    with Accelerator() as used:
        warm(TEXT["tower"][0], tmp_path / "run", used)
    with pytest.raises(
        AssertionError, match=r"1 waits, tests/devices/on_runs.py:\d+ .*# planted in the loop"
    ):
        used.within(waits=READ, copies={where.place: 9 for _, where in used.counts}, launches=999)


# A whole run
# ---------------------------------------------------------------------------------------------------------


def test_a_run_takes_the_accelerator_and_resumes_and_its_files_are_those_of_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = {**TEXT["tower"][0], "objective.temperature": LEARNED}
    options = {
        **sections(choice),
        "recipe": "none",
        "evaluation": {"queries": 10, "validation": 0, "bm25": False},
    }
    options["train"] = {
        "batch_size": 16,
        "max_steps": 4,
        "evaluations": 1,
        "learning_rate": 0.01,
        "save_steps": 1,
    }
    train(options, tmp_path / "cpu", ["train.device=cpu"], data=pairs())
    counted, add_gradients = iter(range(10**9)), loop.add_gradients

    def stopping(*given: Any) -> Any:
        if next(counted) == 2:
            raise KeyboardInterrupt
        return add_gradients(*given)

    with Accelerator() as used:
        with monkeypatch.context() as patch:
            patch.setattr(loop, "add_gradients", stopping)
            with pytest.raises(KeyboardInterrupt):
                train(options, tmp_path / "device", data=pairs())
        run = train(options, tmp_path / "device", data=pairs())
        assert used.total("launches") > 100
        assert len(run.search("kaban lofin", k=3)) == 3
    files = [
        path.relative_to(tmp_path / "cpu") for path in (tmp_path / "cpu").rglob("*.safetensors")
    ]
    assert len(files) >= 2
    for file in files:
        assert (tmp_path / "cpu" / file).read_bytes() == (
            tmp_path / "device" / file
        ).read_bytes(), file


def test_a_device_is_chosen_by_name() -> None:
    assert not Training().large_pays and Training(mixed_precision="bf16").large_pays
    with Accelerator() as used:
        assert Training().large_pays and not Training(device="cpu").large_pays
        assert start().group.device == start(device="pretend").group.device == used.device
        assert (
            start(device="cpu").group.device.type
            == start(device="cpu:0").group.device.type
            == "cpu"
        )
        for name, message in (
            ("cuda", "torch finds pretend and a CPU here"),
            ("pretend:7", "there are 1 of pretend"),
        ):
            with pytest.raises(ConfigError, match=message):
                start(device=name)
    assert start().group.device.type == "cpu"
    for name, message in (
        ("xpu", "torch finds a CPU only here"),
        ("nonsense", "which torch does not know"),
    ):
        with pytest.raises(ConfigError, match=message):
            start(device=name)


def through_contrastive_loss(device: torch.device) -> tuple[float, Tensor, list[Tensor]]:
    """Return loss and gradients of a model and its temperature, as the other library's trainer has
    them."""
    from tempera.integrations.sentence_transformers import ContrastiveLoss

    torch.manual_seed(0)
    texts = [pairs()[name].to_pylist()[:8] for name in ("query", "doc")]
    tower: Any = Transformer(layers=1, width=16, heads=2, vocabulary=100, max_length=16).build(
        [*texts[0], *texts[1]]
    )
    dial = Temperature(0.05, learnable=True)
    loss = ContrastiveLoss(tower.model, mnr(temperature=dial))
    tower.model.to(device)
    features = [tower.model.preprocess(column) for column in texts]
    value = loss(
        [
            {k: v.to(device) if isinstance(v, Tensor) else v for k, v in each.items()}
            for each in features
        ]
    )
    value.backward()
    assert dial.log_scale.grad is not None
    return (
        value.item(),
        dial.log_scale.grad,
        [p.grad.cpu() for p in tower.parameters() if p.grad is not None],
    )


def test_the_loss_of_another_librarys_trainer() -> None:
    want = through_contrastive_loss(torch.device("cpu"))
    with Accelerator() as used:
        got = through_contrastive_loss(used.device)
    assert got[0] == pytest.approx(want[0], rel=1e-5)
    torch.testing.assert_close(got[1:], want[1:], rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
def test_texts_are_attended_to_without_cudnn() -> None:
    tower: Any = Transformer(1, 16, 2, 200, 16).build(["a b", "c"])
    rows, allowed = tower.features(["a b", "c"]), []
    tower.model.register_forward_pre_hook(
        lambda *_: allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
    )
    with Accelerator() as used:
        for device in (torch.device("cpu"), used.device):
            tower.to(device)(rows.to(device))
        assert allowed == [True, used.device.type not in abilities._CUDA]
    assert torch.backends.cuda.cudnn_sdp_enabled()
