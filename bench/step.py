"""One training step of a 6-layer, 384-wide transformer on pairs of a docstring and its code,
lengths as they come.

`python bench/step.py [--pairs 64]` prints CPU time (one thread, alternating) and added memory (a
process each) against sentence-transformers' plain and cached losses and the GradCache library; the
gradients are compared first, without dropout. `python bench/step.py --large` compares micro-batches
of one row with the unlimited step at 1,024 pairs. GradCache: pip install
git+https://github.com/luyug/GradCache@906f038 (left out, and said so, if it is not there).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import copy
import importlib.util
import sysconfig
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _harness import Aim, added_memory, alternate, finish, peak_bytes, table
from tempera import Batch, Ragged, Side, mnr
from tempera.engine.cache import Cache
from tempera.engine.step import step
from tempera.text.read.installed_python import InstalledPython
from tempera.towers.transformer import Transformer

SCALE = 20.0
PACKAGES = (
    "asyncio",
    "concurrent",
    "email",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "unittest",
    "xml",
)
Run = Callable[[], Any]


class Work:
    """A model, its texts, and the inputs of each program."""

    def __init__(self, pairs: int, dropout: float = 0.1) -> None:
        torch.manual_seed(0)
        texts = _texts()
        self.tower: Any = Transformer(6, 384, 12, 30_000, 256, dropout).build(
            [*texts[0], *texts[1]]
        )
        self.model: Any = self.tower.model
        chosen = [
            i for i, row in enumerate(self.tower.features(texts[1]).lengths.tolist()) if row >= 8
        ]
        chosen = [
            chosen[i]
            for i in torch.randperm(len(chosen), generator=torch.Generator().manual_seed(1))[:pairs]
        ]
        self.texts = [[column[i] for i in chosen] for column in texts]
        self.features = [self.tower.features(column) for column in self.texts]
        self.batch = Batch(*(Side(rows) for rows in self.features))
        self.tower.train()

    def read(self) -> list[dict[str, Tensor]]:
        """Return the output of sentence-transformers' collator for each column: padded to its
        longest text."""
        return [self.model.preprocess(column) for column in self.texts]

    @property
    def tokens(self) -> int:
        return sum(len(rows.values) for rows in self.features)


@cache
def _texts() -> tuple[list[str], list[str]]:
    standard = Path(sysconfig.get_paths()["stdlib"])
    pairs, _ = InstalledPython(roots=tuple(str(standard / name) for name in PACKAGES)).read()
    return pairs.texts("query"), pairs.texts("doc")


def tempera(
    mode: str, memory: float | None = None, tokens: int | None = None
) -> Callable[[Work], Run]:
    def of(work: Work) -> Run:
        cached = Cache(mode, memory, tokens)  # type: ignore[arg-type]
        objective = mnr(1 / SCALE)

        def run() -> None:
            work.model.zero_grad()
            step(work.tower, objective, work.batch, cached)

        cached.plan(work.tower, work.batch)  # the footprint is measured once a run
        return run

    return of


def by_hand(work: Work) -> Run:
    """Return the step without padding or cache: rows of one length at a time, one graph, the full
    score matrix."""
    rows = Ragged.cat(work.features)
    groups = [torch.nonzero(rows.lengths == width)[:, 0] for width in rows.lengths.unique()]

    def run() -> None:
        work.model.zero_grad()
        parts = [work.tower(rows[group]) for group in groups]
        q, d = F.normalize(torch.cat(parts)[torch.cat(groups).argsort()], dim=1).chunk(2)
        F.cross_entropy(SCALE * q @ d.T, torch.arange(len(q))).backward()

    return run


def sentence_transformers(cached: bool, **options: Any) -> Callable[[Work], Run]:
    def of(work: Work) -> Run:
        from sentence_transformers.sentence_transformer import losses

        kind = (
            losses.CachedMultipleNegativesRankingLoss
            if cached
            else losses.MultipleNegativesRankingLoss
        )
        loss, features = kind(work.model, scale=SCALE, **options), work.read()

        def run() -> None:
            work.model.zero_grad()
            loss([dict(each) for each in features], torch.arange(len(work.batch))).backward()

        return run

    return of


class Keywords(nn.Module):
    """A model that is called with its inputs by name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **read: Tensor) -> Any:
        return self.model(read)


def grad_cache(rows: int) -> Callable[[Work], Run]:
    def of(work: Work) -> Run:
        from grad_cache import GradCache

        def loss(q: Tensor, d: Tensor) -> Tensor:
            scores = SCALE * F.normalize(q, dim=1) @ F.normalize(d, dim=1).T
            return F.cross_entropy(scores, torch.arange(len(q)))

        model = Keywords(work.model)
        library = GradCache(
            [model, model], rows, loss, get_rep_fn=lambda found: found["sentence_embedding"]
        )
        features = [
            {k: v for k, v in each.items() if isinstance(v, Tensor)} for each in work.read()
        ]

        def run() -> None:
            work.model.zero_grad()
            library(*features)

        return run

    return of


def planning(work: Work) -> Run:
    """Plan the step twice, as two runs of one process do."""
    return lambda: [Cache().plan(work.tower, work.batch) for _ in range(2)]


MIB = 1 << 20
VARIANTS: dict[str, Callable[[Work], Run]] = {
    "tempera, all kept": tempera("never"),
    "tempera, 1 GiB": tempera("auto", float(1 << 30)),
    "tempera, none kept": tempera("always"),
    "tempera, rows one by one, none kept": tempera("always", tokens=1),
    "padding-free by hand": by_hand,
    "ST": sentence_transformers(False),
    "ST cached, 32 rows": sentence_transformers(True, mini_batch_size=32),
    "ST cached, 8 rows": sentence_transformers(True, mini_batch_size=8),
    "ST cached, 2,048 tokens": sentence_transformers(True, mini_batch_num_tokens=2048),
    "GradCache, 8 rows": grad_cache(8),
}


def names() -> list[str]:
    missing = importlib.util.find_spec("grad_cache") is None
    if missing:
        print("GradCache is not installed, so it is skipped")
    return [name for name in VARIANTS if not (missing and name.startswith("GradCache"))]


def check(chosen: Sequence[str]) -> None:
    """Check that all variants compute the same gradient without dropout."""
    work = Work(12, dropout=0.0)
    found = {}
    for name in chosen:
        VARIANTS[name](work)()
        found[name] = torch.cat(
            [p.grad.flatten() for p in work.model.parameters() if p.grad is not None]
        )
        off = float((found[name] - found[chosen[0]]).norm() / found[chosen[0]].norm())
        assert off < 1e-4, f"{name}: the gradient differs by {off:.1e}"


def main(pairs: int, rounds: int) -> None:
    """Measure time alternately, and memory in separate processes."""
    chosen = names()
    check(chosen)
    work = Work(pairs)
    print(f"{pairs} pairs, {work.tokens:,} tokens")
    works = {name: copy.copy(work) for name in chosen}
    runs = {name: VARIANTS[name](works[name]) for name in chosen}
    seconds = alternate(runs, rounds, limit=300)
    memory = {
        name: peak_bytes(__file__, "--memory", name, "--pairs", str(pairs)) for name in chosen
    }
    planned = {}
    for name, cached in {
        "tempera, all kept": Cache("never"),
        "tempera, 1 GiB": Cache("auto", float(1 << 30)),
    }.items():
        planned[name] = cached.plan(work.tower, work.batch).peak_bytes
    memory["planning"] = peak_bytes(__file__, "--memory", "planning", "--pairs", str(pairs))
    ours = seconds["tempera, all kept"]
    rows = [
        (name, f"{seconds[name]:.2f}", f"{seconds[name] / ours:.2f}", f"{memory[name] / MIB:.0f}",
         f"{planned[name] / MIB:.0f}" if name in planned else "")
        for name in chosen
    ]  # fmt: skip
    table((f"{pairs} pairs", "CPU s", "/ all kept", "MiB", "planned"), rows)
    figures = [
        {
            "variant": n,
            "pairs": pairs,
            "seconds": seconds[n],
            "bytes": memory[n],
            "planned": planned.get(n),
        }
        for n in chosen
    ]
    st_cached = [name for name in chosen if name.startswith("ST cached")]
    best = min(st_cached, key=lambda name: seconds[name])
    hand, none = seconds["padding-free by hand"], seconds["tempera, none kept"]
    aims = [
        Aim(f"all kept / {best}", ours / seconds[best], 0.45),
        Aim(f"none kept / {best}", none / seconds[best], 0.6),
        Aim(
            "memory, none kept / the leanest ST cached",
            memory["tempera, none kept"] / min(memory[n] for n in st_cached),
            1.0,
        ),
        Aim("all kept / padding-free by hand", ours / hand, 1.05),
        Aim("none kept / padding-free by hand", none / hand, 1.36),
        *(Aim(f"planned off used, {n}", abs(planned[n] / memory[n] - 1), 0.1) for n in planned),
        Aim(
            "memory, planning twice / announced",
            memory["planning"] / planned["tempera, all kept"],
            0.25,
        ),
    ]
    if "GradCache, 8 rows" in chosen:
        theirs = seconds["GradCache, 8 rows"]
        aims += [
            Aim("1 GiB / GradCache", seconds["tempera, 1 GiB"] / theirs, 0.35),
            Aim("none kept / GradCache", none / theirs, 0.35),
        ]
    finish("step", figures, aims, ["torch", "transformers", "sentence-transformers"])


def large(pairs: int = 1024, parts: int = 16) -> None:
    """Compare rows one by one with the unlimited step; all graphs at once would take about 30 GB,
    so its batch comes in parts."""
    work = Work(pairs)
    cut = [copy.copy(work) for _ in range(parts)]
    for i, part in enumerate(cut):
        rows = slice(i * pairs // parts, (i + 1) * pairs // parts)
        part.batch = Batch(work.batch.query[rows], work.batch.doc[rows])
    kept = Cache("never")
    objective, seconds = mnr(1 / SCALE), {"unlimited": 0.0}
    for part in cut:
        start = time.process_time()
        step(part.tower, objective, part.batch, kept)
        seconds["unlimited"] += time.process_time() - start
    longest = max(int(rows.lengths.max()) for rows in work.features)
    caches = {
        "one row at a time": Cache(tokens=1),
        "the tokens of the longest row at a time": Cache(tokens=longest),
        "the tokens of the longest row at a time, none kept": Cache("always", tokens=longest),
    }
    for name, cached in caches.items():
        start = time.process_time()
        step(work.tower, objective, work.batch, cached)
        seconds[name] = time.process_time() - start
    print(f"{pairs:,} pairs, {work.tokens:,} tokens, the longest row {longest}")
    table(
        ("", "CPU s", "/ unlimited"),
        [(n, f"{s:.1f}", f"{s / seconds['unlimited']:.2f}") for n, s in seconds.items()],
    )
    aims = [
        Aim(f"{name} / unlimited, {pairs:,} pairs", seconds[name] / seconds["unlimited"], 1.4)
        for name in caches
    ]
    finish("step_large", seconds, aims, ["torch", "transformers"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory")
    parser.add_argument("--large", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.memory:
        small, whole = Work(4), Work(given.pairs)
        variant = {**VARIANTS, "planning": planning}[given.memory]
        variant(small)()  # libraries allocate once
        run = variant(whole)
        for p in whole.model.parameters():
            p.grad = torch.zeros_like(p)
        print(added_memory(run))
    elif given.large:
        large()
    else:
        main(given.pairs, given.rounds)
