"""What a vocabulary costs a step: the optimiser, the norm of gradients and clipping reach the
tokens that were read, or all.

`python bench/vocabulary.py [PAIRS]` takes steps of a 6-layer, 384-wide transformer on a CPU, one
thread, with a vocabulary of 30,522 tokens (BERT's) and one of 250,002 (that of multilingual
models). Tokens are drawn by Zipf's law, every batch anew, some 13 in a text. It alternates with
torch's AdamW and clipping behind the same gradients; weights are compared first.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from _harness import Aim, alternate, arguments, finish, table
from tempera import Batch, Ragged, Side, mnr
from tempera.engine.cache import Cache
from tempera.engine.optim import adam, clip, total_norm
from tempera.engine.step import step
from tempera.layers.lookup import clear
from tempera.parallel.distributed import ALONE
from tempera.towers.transformer import Transformer

VOCABULARIES, STEPS, ROUNDS, MOST = (30_522, 250_002), 4, 5, 0.5


def tower_of(vocabulary: int) -> Any:
    """Return a tower with a vocabulary; its tokenizer is not used."""
    tower: Any = Transformer(6, 384, 12, 100, 64).build(["a text of few words"])
    for module in tower.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.Embedding) and child.padding_idx is not None:
                setattr(module, name, nn.Embedding(vocabulary, 384, padding_idx=child.padding_idx))
    return tower.train()


def batches(vocabulary: int, pairs: int) -> Iterator[Batch[Any]]:
    """Yield batches of texts of 6 to 20 tokens, drawn by Zipf's law from 10 on."""
    draw = torch.Generator().manual_seed(0)
    while True:
        sides = []
        for _ in range(2):
            lengths = torch.randint(6, 21, (pairs,), generator=draw)
            uniform = torch.rand(int(lengths.sum()), generator=draw, dtype=torch.float64)
            tokens = (10 * (vocabulary / 10) ** uniform).long().clamp(max=vocabulary - 1)
            sides.append(
                Side(
                    Ragged(
                        tokens.int(),
                        torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
                    )
                )
            )
        yield Batch(*sides)


def steps(tower: Any, vocabulary: int, pairs: int, ours: bool) -> Callable[[], None]:
    """Return what takes a few steps by our optimiser or by torch's."""
    parameters = list(tower.parameters())
    optimizer: Any = (
        adam(tower, 1e-4, 0.0, 0.0)
        if ours
        else torch.optim.AdamW(parameters, 1e-4, weight_decay=0.0, fused=True)
    )
    cache, drawn = Cache(), batches(vocabulary, pairs)

    def run() -> None:
        for _ in range(STEPS):
            clear(parameters)
            step(tower, mnr(0.05), next(drawn), cache)
            if ours:
                clip(parameters, total_norm(parameters, ALONE), MOST)
            else:
                nn.utils.clip_grad_norm_(parameters, MOST)
            optimizer.step()

    return run


def measured(vocabulary: int, pairs: int) -> dict[str, float]:
    """Return CPU seconds of a step of each, and the largest difference of their weights after a
    few."""
    towers = {"torch": tower_of(vocabulary)}
    towers["tempera"] = copy.deepcopy(towers["torch"])
    runs = {
        name: steps(tower, vocabulary, pairs, name == "tempera") for name, tower in towers.items()
    }
    for run in runs.values():
        torch.manual_seed(0)
        run()
    with torch.no_grad():
        apart: list[Tensor] = [
            (a - b).abs().max()
            for a, b in zip(*(t.parameters() for t in towers.values()), strict=True)
        ]
    seconds = alternate(runs, ROUNDS)
    return {name: each / STEPS for name, each in seconds.items()} | {
        "apart": float(torch.stack(apart).max())
    }


def main(pairs: int) -> None:
    """Measure, print the table and keep the figures."""
    torch.set_num_threads(1)
    figures = {str(vocabulary): measured(vocabulary, pairs) for vocabulary in VOCABULARIES}
    shares = {name: each["tempera"] / each["torch"] for name, each in figures.items()}
    table(
        ["tokens", "torch, s", "Tempera, s", "share"],
        [
            [f"{int(n):,}", f"{each['torch']:.3f}", f"{each['tempera']:.3f}", f"{shares[n]:.2f}"]
            for n, each in figures.items()
        ],
    )
    aims = [
        *(
            Aim(f"share of torch's CPU seconds, {int(name):,} tokens", share, 1.0)
            for name, share in shares.items()
        ),
        Aim(
            "largest difference of a weight", max(each["apart"] for each in figures.values()), 1e-4
        ),
    ]
    finish("vocabulary", figures, aims, ["torch", "transformers", "sentence-transformers"])


if __name__ == "__main__":
    main(int(arguments(__doc__, pairs=16).pairs))
