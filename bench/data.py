"""Memory and time of the data path alone: generated pairs, from Parquet shards to batches.

The measured memory is private (RssAnon), since the system reclaims pages of mapped files when
others need them. The model, its optimiser and the embeddings of a batch are not included.

    python bench/data.py [PAIRS]
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch

from _harness import Aim, Meter, arguments, by_line, finish, own_bytes
from tempera.engine.batches import Draws, Shuffled
from tempera.task.evaluation import Evaluation
from tempera.text.read.sources import PairsFile
from tempera.text.train.catalogue import Catalogue, stored
from tempera.text.train.split import hold_out
from tempera.towers.tokenizer import tokenize, train_tokenizer

SHARD, BATCH, STEPS = 250_000, 2048, 50
GOAL = 10_000_000
WORDS = np.array([f"word{i}" for i in range(20_000)])


def write(folder: Path, pairs: int) -> None:
    """Write queries of 8 words, and a tenth as many documents of 30 words."""
    generator = np.random.default_rng(0)
    docs = [" ".join(WORDS[generator.integers(0, len(WORDS), 30)]) for _ in range(pairs // 10)]
    for start in range(0, pairs, SHARD):
        rows = min(SHARD, pairs - start)
        chosen = WORDS[generator.integers(0, len(WORDS), (rows, 8))]
        columns = {
            "query": [" ".join(row) for row in chosen],
            "doc": [docs[i] for i in generator.integers(0, len(docs), rows)],
        }
        parquet.write_table(pa.table(columns), folder / f"{start:09}.parquet")


def measure(pairs: int) -> dict[str, dict[str, float]]:
    meter = Meter()
    with TemporaryDirectory() as name:
        folder, cache = Path(name) / "pairs", Path(name) / "cache"
        folder.mkdir()
        write(folder, pairs)
        tokenizer = train_tokenizer(WORDS.tolist() * 2, 32_000, 256)
        tokenize(tokenizer, ["to start its threads"])
        pa.default_memory_pool().release_unused()
        before = own_bytes()
        with meter("read"):
            rows, asked = PairsFile(str(folder)).read(cache)
        with meter("divide"):
            split, catalogue = (
                hold_out(rows, asked, Evaluation(queries=1000, validation=0)),
                Catalogue.of(rows),
            )
        with meter("tokens"):
            queries, docs = (
                stored(lambda part: tokenize(tokenizer, part), texts, cache / f"tokens.{i}")
                for i, texts in enumerate((catalogue.queries, catalogue.docs))
            )
        with meter("batches"):
            examples = catalogue.examples(split.train, queries, docs, Draws())
            for step, chosen in enumerate(Shuffled(len(examples), BATCH, 0)(0, STEPS)):
                tokens = len(examples.batch(torch.as_tensor(chosen), step).doc.rows.values)
        assert tokens > BATCH * 29
    return {
        name: {**phase, "bytes": phase["bytes"] - before} for name, phase in meter.phases.items()
    }


def main() -> None:
    chosen = arguments(__doc__, pairs=1_000_000)
    if chosen.one:
        print(json.dumps(measure(chosen.pairs)))
        return
    found, _, most = by_line(__file__, chosen.pairs, GOAL, "pair")
    aims = [Aim(f"GiB at {GOAL:,} pairs, by proportion", most, 2.0)]
    finish("data", found, aims, ["pyarrow", "numpy", "torch"])


if __name__ == "__main__":
    main()
