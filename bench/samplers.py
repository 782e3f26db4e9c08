"""Batches without duplicates: CPU seconds, alternating with sentence-transformers' sampler.

Rows of (anchor, positive, negative), passages drawn from a third as many. Both sides get what they
need once before the clock starts: sentence-transformers its data set, Tempera its ids; one epoch is
then drawn, of which every batch is checked.

    python bench/samplers.py [ROWS [PEER_ROWS]]

PEER_ROWS of 0 is as many as ROWS.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import torch
from datasets import Dataset

from _harness import Aim, alternate, arguments, finish, table
from tempera.arithmetic.ragged import Ragged
from tempera.io.ids import content_ids
from tempera.text.train.samplers import NoDuplicates

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sentence_transformers.base.sampler import NoDuplicatesBatchSampler

BATCH = 2048


def main() -> None:
    chosen = arguments(__doc__, rows=1_000_000, peer_rows=0)
    rows, peer_rows = chosen.rows, chosen.peer_rows or chosen.rows
    passages = np.random.default_rng(0).integers(0, rows // 6, (rows, 2)) * 2 + [
        0,
        1,
    ]  # no row has a passage twice
    texts = {
        "anchor": [f"what is said of number {i}" for i in range(rows)],
        "positive": [f"a passage about {i} and more" for i in passages[:, 0]],
        "negative": [f"a passage about {i} and more" for i in passages[:, 1]],
    }
    data = Dataset.from_dict({name: column[:peer_rows] for name, column in texts.items()})
    start = time.process_time()
    ids = np.stack(
        [content_ids(data.from_dict({"t": column}).data["t"]) for column in texts.values()], 1
    )
    hashing = time.process_time() - start
    keys = Ragged(torch.from_numpy(ids.ravel()), torch.arange(rows + 1) * 3)
    dropped: dict[str, int] = {}
    drawn: list[torch.Tensor] = []

    def ours() -> None:
        sampler = NoDuplicates(keys, BATCH, 0)
        drawn[:] = sampler(0, sampler.batches_per_epoch)

    def peer(hashed: bool) -> None:
        generator = torch.Generator()
        sampler = NoDuplicatesBatchSampler(data, BATCH, True, [], generator, 0, hashed, 1)
        dropped["sentence-transformers" + ", hashed" * hashed] = peer_rows - len(
            {row for batch in sampler for row in batch}
        )

    variants = {
        "tempera": ours,
        "sentence-transformers": lambda: peer(False),
        "sentence-transformers, hashed": lambda: peer(True),
    }
    seconds = alternate(variants, 3, limit=10)
    dropped["tempera"] = rows - len(torch.cat(drawn).unique())
    assert all(len(np.unique(ids[batch])) == 3 * len(batch) for batch in drawn)
    counts = {name: rows if name == "tempera" else peer_rows for name in variants}
    rate = {name: counts[name] / value for name, value in seconds.items()}
    ratio = {name: rate["tempera"] / rate[name] for name in variants}
    lines = [
        [n, f"{counts[n]:,}", f"{seconds[n]:.2f}", f"{dropped[n]:,}", f"{ratio[n]:.1f}"]
        for n in variants
    ]
    table(
        ["sampler", "rows", "CPU s per epoch", "rows left over", "speed of tempera / theirs"], lines
    )
    print(f"content ids, once per run: {hashing:.2f} s")
    figures = {
        "rows": counts,
        "batch": BATCH,
        "seconds": seconds,
        "left_over": dropped,
        "hashing_seconds": hashing,
    }
    aims = [
        Aim(
            "rows per second, times sentence-transformers'",
            ratio["sentence-transformers"],
            20,
            at_least=True,
        ),
        Aim("rows left over beyond a last batch", dropped["tempera"] - rows % BATCH, 0),
    ]
    finish("samplers", figures, aims, ["sentence-transformers", "datasets", "numpy"])


if __name__ == "__main__":
    main()
