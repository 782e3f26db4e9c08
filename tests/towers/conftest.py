"""A tiny transformer in a folder, and texts of every length."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from tempera.towers.transformer import Transformer

WORDS = ["the", "cat", "sat", "on", "a", "mat", "of", "straw", "and", "gold", "Zürich", "parseDate"]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Of 0 to 30 words; one is cut, one is empty, one has no word."""
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(40)] + [
        "",
        "cat " * 90,
        "?!",
        "жж",
    ]


@pytest.fixture(scope="session")
def tiny(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a transformer of two layers, which is as random as it was born."""
    pytest.importorskip("sentence_transformers")
    torch.manual_seed(0)
    tower = Transformer(layers=2, width=32, heads=2, vocabulary=120, max_length=24).build(texts)
    for parameter in tower.parameters():
        if parameter.ndim > 1:  # so that texts are as far apart as after training
            torch.nn.init.normal_(parameter, std=0.5)
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tower.save(folder)
    return folder
