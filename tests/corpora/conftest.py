"""A corpus of texts in shards, and a transformer in a folder."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from ..conftest import WORDS

ROWS = [130, 60, 1, 75]  # of each shard
GROUP = 50  # rows of a row group


def texts_of(count: int, seed: int) -> list[str]:
    """Texts of 0 to 30 words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(0, 30))) for _ in range(count)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Four Parquet files in two folders, with row groups of 50 rows."""
    folder = tmp_path / "corpus"
    (folder / "more").mkdir(parents=True)
    for number, count in enumerate(ROWS):
        name = f"more/part-{number}.parquet" if number > 1 else f"part-{number}.parquet"
        columns = {
            "_id": [f"{number}-{row}" for row in range(count)],
            "text": texts_of(count, number),
            "year": list(range(count)),
        }
        parquet.write_table(pa.table(columns), folder / name, row_group_size=GROUP)
    return folder


@pytest.fixture(scope="session")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a transformer of two layers, which is as random as it was born."""
    pytest.importorskip("sentence_transformers")
    import torch

    from tempera.towers.transformer import Transformer

    torch.manual_seed(0)
    tower = Transformer(layers=2, width=32, heads=2, vocabulary=120, max_length=24).build(
        texts_of(200, 9)
    )
    for parameter in tower.parameters():
        if parameter.ndim > 1:  # so that texts are as far apart as after training
            torch.nn.init.normal_(parameter, std=0.5)
    folder = tmp_path_factory.mktemp("transformer") / "model"
    tower.save(folder)
    return folder
