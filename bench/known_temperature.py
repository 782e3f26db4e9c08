"""Test whether a tuning recovers a temperature that is known to be the best.

The task is made so that both ends lose, for reasons that can be stated. A document has a topic, a
theme and two words of no meaning; its query has the same topic, two other such words, and in 25 %
of the pairs the same theme: the rest are wrong pairs. At a low temperature, the gradient is that of
the hardest negatives, which here are mostly documents that suit the query as well as its own or
better, so wrong pairs are learned by heart. At a high one the loss is alignment alone: themes, on
which pairs disagree, are given up for topics, on which all agree.

What is best is known from a scan in plain PyTorch, without Tempera, of 15 temperatures on 10 data
sets. Which temperatures count as found is defined before any tuning: those whose mean loss against
the best one is within what one run cannot tell, Student's one-sided 95 % bound for a single new
difference. Then a tuning of 25 trials on each data set is to end there, in 9 of 10.

    python bench/known_temperature.py [SEEDS]
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import tempera
from _harness import Aim, arguments, finish, table

TOPICS, THEMES, OTHERS, RIGHT = 4, 20, 40, 0.25
TRAIN, ASKED, WIDTH, BATCH, STEPS, RATE, DEPTH = 2000, 400, 16, 128, 100, 0.03, 50
LOW, HIGH, TRIALS = 0.01, 10.0, 25
SCANNED = np.geomspace(LOW, HIGH, 15)
STUDENT = {10: 1.833}  # one-sided 95 %, 9 degrees of freedom


def made(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return words of queries and of documents, as numbers, [n, 4] each; no word is in both."""
    draw, n = np.random.default_rng(seed), TRAIN + ASKED
    topic, theme = draw.integers(TOPICS, size=n), draw.integers(THEMES, size=n)
    asked = np.where(draw.random(n) < RIGHT, theme, draw.integers(THEMES, size=n))
    words = TOPICS + THEMES + OTHERS

    def text(of: np.ndarray) -> np.ndarray:
        others = TOPICS + THEMES + draw.integers(OTHERS, size=(n, 2))
        return np.column_stack([topic, TOPICS + of, others])

    return text(asked) + words, text(theme)


def scan(seed: int) -> np.ndarray:
    """Return the recall of each temperature, trained side by side in plain PyTorch."""
    queries, docs = map(torch.from_numpy, made(seed))
    draw = torch.Generator().manual_seed(seed)
    count = 2 * (TOPICS + THEMES + OTHERS)
    start = torch.randn(count, WIDTH, generator=draw) / math.sqrt(WIDTH)
    weight = start.expand(len(SCANNED), -1, -1).clone().requires_grad_()
    heat = torch.tensor(SCANNED, dtype=torch.float32)[:, None, None]
    adam = torch.optim.Adam([weight], lr=RATE)

    def embed(words: torch.Tensor) -> torch.Tensor:
        return F.normalize(weight[:, words].mean(2), dim=-1)  # [temperatures, rows, WIDTH]

    for step in range(STEPS):
        adam.param_groups[0]["lr"] = RATE * min(
            (step + 1) / (0.1 * STEPS), (STEPS - step) / (0.9 * STEPS), 1
        )
        rows = torch.randperm(TRAIN, generator=draw)[:BATCH]
        logits = embed(queries[rows]) @ embed(docs[rows]).mT / heat
        loss = (logits.logsumexp(2) - logits.diagonal(dim1=1, dim2=2)).mean(1).sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
    with torch.no_grad():
        scores = embed(queries[TRAIN:]) @ embed(docs).mT
        right = torch.arange(TRAIN, TRAIN + ASKED).expand(len(SCANNED), -1)[..., None]
        rank = (scores > scores.gather(2, right)).sum(2)
    return (rank < DEPTH).double().mean(1).numpy()


def known(scores: np.ndarray) -> tuple[float, float, float]:
    """Return the best temperature of a scan, and the range that one run cannot tell from it; scores
    are [seeds, points]."""
    best = int(scores.mean(0).argmax())
    worse = scores[:, [best]] - scores  # [seeds, points]
    n = len(scores)
    bound = STUDENT[n] * worse.std(0, ddof=1) * math.sqrt(1 + 1 / n)
    inside = np.flatnonzero(worse.mean(0) <= bound)
    return float(SCANNED[best]), float(SCANNED[inside[0]]), float(SCANNED[inside[-1]])


def options(seed: int, folder: Path) -> dict[str, Any]:
    """Return the options of the same task for Tempera."""
    queries, docs = made(seed)
    path = folder / f"pairs{seed}.jsonl"

    def text(words: np.ndarray) -> str:
        return " ".join(f"{chr(97 + word // 26)}{chr(97 + word % 26)}" for word in words)

    rows = ({"query": text(q), "doc": text(d)} for q, d in zip(queries, docs, strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = {"batch_size": BATCH, "max_steps": STEPS, "learning_rate": RATE, "seed": seed}
    return {
        "data": {"source": "pairs", "path": str(path)},
        "tower": {"dimensions": WIDTH, "vocabulary": 2000},
        "train": train,
        "evaluation": {
            "queries": ASKED,
            "validation": 0,
            "metrics": [f"recall@{DEPTH}"],
            "bm25": False,
        },
    }


def main(seeds: int) -> None:
    torch.set_num_threads(1)
    scores = np.stack([scan(seed) for seed in range(10)])
    best, low, high = known(scores)
    table(
        ["temperature", "recall"],
        [[f"{t:.3g}", f"{m:.3f}"] for t, m in zip(SCANNED, scores.mean(0), strict=True)],
    )
    print(f"best {best:.3g}; one run cannot tell it from {low:.3g} to {high:.3g}", flush=True)
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        over = {"objective.temperature": f"{LOW}:{HIGH}:log:7"}
        swept = tempera.sweep(options(0, folder), over, 3, folder / "sweep")
        region = [point.over["objective.temperature"] for point in swept.region]
        for seed in range(seeds):
            space = {"objective.temperature": f"{LOW}:{HIGH}:log"}
            tuned = tempera.tune(
                options(seed, folder), space, TRIALS, folder / f"tune{seed}", keep=0
            )
            assert tuned.best is not None
            found[seed] = tuned.best.params["objective.temperature"]
            print(f"seed {seed}: {found[seed]:.3g} ({tuned.best.value:.3f})", flush=True)
    hits = sum(low <= value <= high for value in found.values())
    inside = min(region) <= best <= max(region)
    figures = {
        "scan": dict(zip(SCANNED.round(4).tolist(), scores.mean(0).round(4).tolist(), strict=True)),
        "known": {
            "best": best,
            "from": low,
            "to": high,
            "share of the range": math.log(high / low) / math.log(HIGH / LOW),
        },
        "sweep's best region": region,
        "found by seed": found,
    }
    aims = [
        Aim(f"share of {seeds} seeds that find it", hits / seeds, 0.9, at_least=True),
        Aim("sweep's region holds it", float(inside), 1, at_least=True),
    ]
    finish("known_temperature", figures, aims, ["tempera", "torch", "optuna"])


if __name__ == "__main__":
    main(arguments(__doc__, seeds=10).seeds)
