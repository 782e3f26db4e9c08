"""`mixed_precision: auto`: bf16 where a measurement shows that it pays, beside the same run in
float32."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tempera.engine import devices
from tempera.engine.devices import Devices, choose_precision, start
from tempera.errors import OutputError
from tempera.experiments.distill import options_of
from tempera.mining.embed import embed_by
from tempera.options import yaml_options as configuration
from tempera.options.build import build
from tempera.paper.machines import MACHINES
from tempera.parallel.distributed import CPU
from tempera.run import on_paper
from tempera.run.fit import fit
from tempera.run.prepare import prepare
from tempera.run.resume import Checkpoints
from tempera.run.train import train
from tempera.towers.static import Static


@pytest.fixture
def gain(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that products in bf16 are so many times as fast."""

    def pretend(times: float) -> None:
        devices.bf16_gain.cache_clear()
        monkeypatch.setattr(
            devices,
            "_seconds_of_product",
            lambda device, dtype: 1 if dtype == torch.float32 else 1 / times,
        )

    yield pretend
    devices.bf16_gain.cache_clear()


def options(pairs: Path, precision: str) -> dict[str, Any]:
    return {
        "data": {"source": "pairs", "path": str(pairs)},
        "tower": {
            "kind": "transformer",
            "layers": 2,
            "width": 32,
            "heads": 2,
            "vocabulary": 200,
            "max_length": 24,
        },
        "train": {"mixed_precision": precision, "batch_size": 32, "max_steps": 3, "evaluations": 0},
        "evaluation": {"queries": 20, "validation": 20, "bm25": False},
    }


def test_auto_is_measured_once_and_in_little_time(gain: Any) -> None:
    devices.bf16_gain.cache_clear()
    began = time.perf_counter()
    assert devices.bf16_gain(CPU) > 0
    devices.bf16_gain(CPU)
    assert time.perf_counter() - began < 1 and devices.bf16_gain.cache_info().misses == 1
    for times, expected in ((7.0, "bf16"), (1.5, "bf16"), (1.49, "no"), (0.2, "no")):
        gain(times)
        assert choose_precision("auto") == start("auto", "cpu").mixed_precision == expected
        assert [choose_precision(each) for each in ("no", "bf16", "fp16")] == ["no", "bf16", "fp16"]


def test_a_run_in_bf16_by_measurement(
    gain: Any, pairs_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    losses = []
    caplog.set_level("INFO", "tempera")
    for precision, times in (("no", 7.0), ("auto", 0.2), ("auto", 7.0)):
        gain(times)
        made, log = build(configuration.of(options(pairs_file, precision))), _Log()
        made.train.check(devices := start(precision, "cpu"))  # type: ignore[arg-type]
        fit(prepare(made, devices, tmp_path / f"{len(losses)}", log), looks=False)  # type: ignore[arg-type]
        losses.append(np.array([each["loss"] for each in log.records if each["event"] == "step"]))
    exact, slow, fast = losses
    assert len(fast) == 3 and (slow == exact).all() and (fast != exact).any()
    np.testing.assert_allclose(fast, exact, rtol=0.002)
    text = caplog.text
    assert (
        "mixed_precision: no, because products in bf16 are 0.2 times as fast as in float32 here"
        in text
    )
    assert (
        "mixed_precision: bf16, because products in bf16 are 7 times as fast as in float32 here"
        in text
    )


def test_texts_are_read_in_bf16_and_the_weights_come_back(
    gain: Any, pairs_file: Path, tmp_path: Path
) -> None:
    gain(7.0)
    made = build(configuration.of(options(pairs_file, "auto")))
    data: Any = prepare(made, start("auto", "cpu"), tmp_path, _Log()).task.data
    weights = {name: value.clone() for name, value in data.tower.state_dict().items()}
    docs = data.texts.docs
    low = data.tower.encode(docs)
    data.tower.reads = torch.float32
    exact = data.tower.encode(docs)
    cosines = (low.double() * exact.double()).sum(1)
    assert (
        low.dtype == torch.float32 and cosines.min() >= 0.9999 and (low - exact).abs().max() > 1e-5
    )
    assert all(torch.equal(weights[name], value) for name, value in data.tower.state_dict().items())
    plain: Any = prepare(made, Devices(), tmp_path / "plain", _Log()).task.data  # as verify does
    assert plain.tower.reads == torch.float32


def test_guides_and_miners_read_in_bf16(pairs_file: Path, tmp_path: Path) -> None:
    data: Any = prepare(
        build(configuration.of(options(pairs_file, "no"))), Devices(), tmp_path, _Log()
    ).task.data
    data.tower.save(tmp_path / "model")
    texts = ["", *pairs_file.read_text(encoding="utf-8").split()[:40]]

    def read(half: bool) -> Any:
        return embed_by(tmp_path / "model", "doc", texts, tmp_path / "vectors", half=half)[:]

    exact, low = read(False), read(True)
    cosines = (exact * low).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(low, axis=1)
    assert cosines.min() > 0.9995 and (exact != low).any()
    np.testing.assert_allclose(np.linalg.norm(low, axis=1), 1.0, rtol=1e-5)
    assert len(list((tmp_path / "vectors").glob("*-bf16-*"))) == 1
    Static(dimensions=8, vocabulary=60).build(texts).save(tmp_path / "static")
    table = [
        embed_by(tmp_path / "static", "doc", texts, tmp_path / "other", half=each)[:]
        for each in (False, True)
    ]
    assert (table[0] == table[1]).all() and len(list((tmp_path / "other").iterdir())) == 1


@pytest.mark.parametrize(("times", "size"), [(7.0, 32), (0.2, 16)])
def test_batches_of_a_pretrained_tower_are_larger_in_bf16(
    gain: Any,
    pairs_file: Path,
    tmp_path: Path,
    times: float,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data: Any = prepare(
        build(configuration.of(options(pairs_file, "no"))), Devices(), tmp_path, _Log()
    ).task.data
    data.tower.save(tmp_path / "model")
    rows = [{"query": f"ka {i}", "doc": f"zu {i}"} for i in range(600)]
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = options(tmp_path / "more.jsonl", "auto") | {
        "tower": {"kind": "pretrained", "model": str(tmp_path / "model")}
    }
    del chosen["train"]["batch_size"]
    gain(times)
    prepared = prepare(
        build(configuration.of(chosen)), start("auto", "cpu"), tmp_path / "run", _Log()
    )
    sampler: Any = prepared.task.data.sampler
    assert (
        prepared.config.train.batch_size == prepared.config.resolved["train"]["batch_size"] == size
    )
    assert sampler.batches_per_epoch == math.ceil(
        prepared.task.showcase.facts().counts["train"] / size
    )
    monkeypatch.setattr(
        on_paper, "measured", lambda device: MACHINES["l4"]
    )  # measuring takes seconds
    here, there = (
        on_paper.planned(configuration.of(chosen), device=device) for device in ("cpu", "l4")
    )
    (rows,) = sampler(0, 1)
    assert (here["pairs"], here["precision"]) == (len(rows), "bf16" if size == 32 else "no")
    assert (
        there["pairs"] == 31 and there["precision"] == "bf16"
    )  # on an accelerator a step costs its launches, whatever it holds


def test_what_teaches_a_static_model_is_read_in_bf16_throughout(
    gain: Any, pairs_file: Path, tmp_path: Path
) -> None:
    gain(7.0)
    data: Any = prepare(
        build(configuration.of(options(pairs_file, "no"))), Devices(), tmp_path, _Log()
    ).task.data
    data.tower.save(tmp_path / "model")
    made = build(
        options_of(tmp_path / "model", pairs_file, ["tower.dimensions=8", "tower.vocabulary=200"])
    )
    assert made.train.mixed_precision == "auto"
    learning: Any = prepare(
        made, start("auto", "cpu"), tmp_path / "run", _Log(), tmp_path / "vectors"
    ).task.data
    assert learning.rows.teacher is not None
    assert [each.name.count("-bf16-") for each in (tmp_path / "vectors").iterdir()] == [
        1
    ]  # its tokens and its texts


def test_a_run_is_resumed_in_the_precision_it_began_with(
    gain: Any, pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Checkpoints.save

    def once(self: Checkpoints, *args: Any) -> None:
        save(self, *args)
        raise KeyboardInterrupt

    chosen, output = options(pairs_file, "auto"), tmp_path / "run"
    chosen["train"] |= {"save_steps": 1, "max_steps": 4, "evaluations": 4}
    gain(7.0)
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", once)
        with pytest.raises(KeyboardInterrupt):
            train(chosen, output)
    gain(0.2)
    with pytest.raises(OutputError, match=r"another configuration \(train.mixed_precision"):
        train(chosen, output)
    run = train(chosen, output, ["train.mixed_precision=bf16"])  # slower here, and the same bits
    gain(7.0)
    whole = train(chosen, tmp_path / "whole")
    assert run.results["mixed_precision"] == whole.results["mixed_precision"] == "bf16"
    logs = [
        [json.loads(line) for line in (one.folder / "log.jsonl").read_text().splitlines()]
        for one in (run, whole)
    ]
    looks = [[each for each in log if each["event"] == "evaluation"] for log in logs]
    assert looks[0] and [{**each, "seconds": 0} for each in looks[0]] == [
        {**each, "seconds": 0} for each in looks[1]
    ]
    saved = [load_file(each.folder / "model" / "model.safetensors") for each in (run, whole)]
    assert all(torch.equal(saved[0][name], weight) for name, weight in saved[1].items())


class _Log:
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def write(self, **event: Any) -> None:
        self.records.append(event)
