"""`make gpu` at toy sizes on the pretend accelerator, so that it works where it is needed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretend import Accelerator

import _harness
import gpu
from tempera.engine import fused
from tempera.towers.transformer import Transformer

pytestmark = pytest.mark.long

TOY = gpu.Sizes(24, 16, 8, Transformer(1, 16, 2, 100, 16), 6, 1, against=(), other_lengths=())


def test_make_gpu_measures_and_writes_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_harness, "RESULTS", tmp_path)
    with Accelerator() as used:
        gpu.main(TOY, check=lambda folder: [])
    record = json.loads((tmp_path / "gpu.json").read_text())
    names = list(record["figures"]["measured"])
    assert names[-1] == "whole step, mnr, bf16" and len(names) == 7 and used.total("launches") > 100
    assert all(aim.startswith("met") for aim in record["aims"]) and len(record["aims"]) == 3
    out = capsys.readouterr().out
    assert all(f"| {name} | 24 |" in out for name in names)


def test_kernels_are_compared_where_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(fused, "DEVICE", "cpu")
    monkeypatch.setattr(fused, "SHAPE", fused.Shape(16, 16, 16, 2))
    monkeypatch.setattr(gpu, "timed", lambda run, *_: run())
    figures, aims = gpu.kernel_stage(replace(TOY, widths=(8, 20)), torch.device("cpu"))
    ways = ["tiles", "kernels", "kernels in half precision"]
    assert [name.split(": ")[1] for name in figures] == 2 * [*ways, "linear_cross_entropy", *ways]
    assert len(aims) == 8 and all(aim.met for aim in aims)


def test_a_step_has_the_gradients_of_the_other_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "timed", lambda run, *_: run())
    torch.manual_seed(0)
    losses = gpu.against(TOY, 24, torch.device("cpu"))
    assert len(losses) == 5 and max(losses.values()) - min(losses.values()) < 0.1
    turns = list(gpu.against(TOY, 24, torch.device("cpu"), 2).values())[
        :4
    ]  # two of ours and two of theirs
    assert turns[:2] == pytest.approx(turns[2:], abs=0.02) and turns[0] != pytest.approx(
        turns[1], abs=0.02
    )
    assert gpu.same_gradients(TOY, torch.device("cpu")).met


def test_without_an_accelerator_it_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main(TOY)
    out = capsys.readouterr().out
    assert out.startswith("There is no accelerator") and out.count("\n") == 1
