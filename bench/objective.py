"""The loss stage alone: loss and all gradients of b pairs, against sentence-transformers, torch and
the full matrix.

`python bench/objective.py [largest b]` prints CPU time (one thread, alternating) and added memory
(a process each).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _chunked import chunked
from _harness import Aim, added_memory, alternate, arguments, finish, peak_bytes, table
from tempera import Batch, Side, Temperature, mnr
from tempera.core.corrections import Hardness, LogQ
from tempera.core.masks import Guided, SameId
from tempera.core.objective import Objective
from tempera.core.similarity import dot

GUIDE_WIDTH = 64
Run = Callable[[], list[Tensor]]


def tempera(objective: Objective, b: int, width: int, everything: bool) -> Run:
    """Return one pass of an objective, with the data of all parts if `everything`."""
    generator = torch.Generator().manual_seed(0)
    q, d = (torch.randn(b, width, generator=generator) for _ in range(2))
    extra = {}
    if everything:
        ids = torch.randint(0, 4 * b, (b,), generator=generator)
        guide = F.normalize(torch.randn(b, GUIDE_WIDTH, generator=generator), dim=1)
        extra = {"ids": ids, "logq": -torch.rand(b, generator=generator), "guide": guide}

    def run() -> list[Tensor]:
        leaves = [q.clone().requires_grad_(), d.clone().requires_grad_()]
        batch = Batch(Side(leaves[0], **extra), Side(leaves[1], **extra))
        objective.propagate(batch, batch.shares())
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    return run


def full_matrix(b: int, width: int, recommender: bool) -> Run:
    """Return plain cross entropy over the whole score matrix, by autograd; with logQ and an id mask
    for a recommender."""
    generator = torch.Generator().manual_seed(0)
    q, d = (torch.randn(b, width, generator=generator) for _ in range(2))
    ids = torch.randint(0, 4 * b, (b,), generator=generator)
    logq, labels = -torch.rand(b, generator=generator), torch.arange(b)

    def run() -> list[Tensor]:
        leaves = [q.clone().requires_grad_(), d.clone().requires_grad_()]
        if recommender:
            scores = leaves[0] @ leaves[1].T - logq
            hit = ids[:, None] == ids
            hit.fill_diagonal_(False)
            scores = scores.masked_fill(hit, -torch.inf)
        else:
            scores = 20 * F.normalize(leaves[0], dim=1) @ F.normalize(leaves[1], dim=1).T
        F.cross_entropy(scores, labels).backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    return run


def linear_cross_entropy(b: int, width: int) -> Run:
    """Return torch's cross entropy in chunks."""
    generator = torch.Generator().manual_seed(0)
    q, d = (torch.randn(b, width, generator=generator) for _ in range(2))
    return lambda: chunked(q, d)


def sentence_transformers(b: int, width: int, rows: int) -> Run:
    """Return the loss stage of CachedMultipleNegativesRankingLoss."""
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss as Cached,
    )

    generator = torch.Generator().manual_seed(0)
    q, d = (torch.randn(b, width, generator=generator) for _ in range(2))
    loss = Cached(nn.Sequential(nn.Identity()), mini_batch_size=rows)

    def run() -> list[Tensor]:
        leaves = [q.clone().requires_grad_(), d.clone().requires_grad_()]
        loss.calculate_loss([[leaf] for leaf in leaves], with_backward=True)
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    return run


ALL_PARTS = (LogQ(), Hardness(3.0)), (SameId(), Guided(0.1))
VARIANTS: dict[str, Callable[[int, int], Run]] = {
    "tempera": lambda b, d: tempera(mnr(), b, d, everything=False),
    "tempera, all parts": lambda b, d: tempera(
        mnr(Temperature(0.05, learnable=True), corrections=ALL_PARTS[0], masks=ALL_PARTS[1]),
        b,
        d,
        everything=True,
    ),
    "tempera, logQ + ids": lambda b, d: tempera(
        mnr(1.0, similarity=dot, corrections=(LogQ(),), masks=(SameId(),)), b, d, everything=True
    ),
    "ST 32 rows": lambda b, d: sentence_transformers(b, d, 32),
    "ST 256 rows": lambda b, d: sentence_transformers(b, d, 256),
    "linear_cross_entropy": linear_cross_entropy,
    "full matrix": lambda b, d: full_matrix(b, d, recommender=False),
    "full matrix, logQ + ids": lambda b, d: full_matrix(b, d, recommender=True),
}
LARGEST = {
    "ST 32 rows": 8192,
    "full matrix": 16384,
    "full matrix, logQ + ids": 16384,
}  # beyond: hours, or 24 GiB


def main(largest: int) -> None:
    """Measure both widths and all sizes."""
    torch.set_num_threads(1)
    figures = []
    for width in (384, 64):
        for b in (1024, 2048, 4096, 8192, 16384, 32768):
            if b > largest:
                continue
            names = [name for name in VARIANTS if b <= LARGEST.get(name, b)]
            runs = {name: VARIANTS[name](b, width) for name in names}
            for other in (
                set(names) & {"ST 256 rows", "linear_cross_entropy", "full matrix"}
                if b <= 4096
                else set()
            ):
                for ours, theirs in zip(runs["tempera"](), runs[other](), strict=True):
                    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
            seconds = alternate(runs, rounds=5 if b <= 4096 else 3, limit=20)
            memory = {
                name: peak_bytes(__file__, "--memory", name, str(b), str(width)) for name in names
            }
            figures += [
                {
                    "width": width,
                    "b": b,
                    "variant": name,
                    "seconds": seconds[name],
                    "bytes": memory[name],
                }
                for name in names
            ]
            rows = [
                (
                    name,
                    f"{seconds[name]:.3f}",
                    f"{seconds[name] / seconds['tempera']:.2f}",
                    f"{memory[name] / 2**20:.0f}",
                )
                for name in names
            ]
            table((f"D={width} b={b:,}", "CPU s", "/ tempera", "MiB"), rows)
            print()
    finish(
        "objective", figures, aims(figures, min(largest, 8192)), ["torch", "sentence-transformers"]
    )


def aims(figures: list[dict[str, object]], b: int) -> list[Aim]:
    """Return the aims at one size."""

    def of(name: str, width: int, what: str = "seconds") -> float:
        (found,) = (
            f[what] for f in figures if (f["variant"], f["width"], f["b"]) == (name, width, b)
        )
        return float(str(found))

    both = ("tempera, logQ + ids", "full matrix, logQ + ids")
    return [
        Aim(
            f"ST 32 rows / tempera, D=384 b={b}",
            of("ST 32 rows", 384) / of("tempera", 384),
            9,
            at_least=True,
        ),
        Aim(
            f"ST 256 rows / tempera, D=384 b={b}",
            of("ST 256 rows", 384) / of("tempera", 384),
            2.3,
            at_least=True,
        ),
        Aim(
            f"tempera / full matrix, D=384 b={b}", of("tempera", 384) / of("full matrix", 384), 1.0
        ),
        Aim(
            f"memory / full matrix, D=384 b={b}",
            of("tempera", 384, "bytes") / of("full matrix", 384, "bytes"),
            1 / 8,
        ),
        Aim(f"logQ + ids / full matrix, D=64 b={b}", of(both[0], 64) / of(both[1], 64), 0.51),
        Aim(
            f"memory, logQ + ids / full, D=64 b={b}",
            of(both[0], 64, "bytes") / of(both[1], 64, "bytes"),
            0.03,
        ),
        Aim(
            f"all parts / plain tile, D=384 b={b}",
            of("tempera, all parts", 384) / of("tempera", 384),
            1.3,
        ),
        Aim(
            f"all parts / plain tile, D=64 b={b}",
            of("tempera, all parts", 64) / of("tempera", 64),
            1.3,
        ),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        torch.set_num_threads(1)
        work = VARIANTS[sys.argv[2]](int(sys.argv[3]), int(sys.argv[4]))
        VARIANTS[sys.argv[2]](64, int(sys.argv[4]))()  # libraries allocate once
        print(added_memory(work))
    else:
        main(arguments(__doc__, largest=32768).largest)
