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

TOY = gpu.Sizes(24, 16, 8, Transformer(1, 16, 2, 100, 16), 6, 1)


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
    monkeypatch.setattr(fused, "precision", lambda vectors: "ieee")  # the interpreter multiplies no bf16
    monkeypatch.setattr(gpu, "timed", lambda run, *_: run())
    figures, aims = gpu.kernel_stage(replace(TOY, widths=(8, 200)), torch.device("cpu"))
    names = ["tiles", "kernels", "linear_cross_entropy"]
    assert [name.split(": ")[1] for name in figures] == 3 * [*names, "tiles", "kernels"]  # float32 at 200 is too wide
    assert len(aims) == 6 and all(aim.met for aim in aims)


def test_without_an_accelerator_it_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main(TOY)
    out = capsys.readouterr().out
    assert out.startswith("There is no accelerator") and out.count("\n") == 1
