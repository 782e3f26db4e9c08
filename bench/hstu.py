"""Tempera's recipe beside HSTU of RecTools on each user's last item, both told the time of that
item, and both not.

    python bench/hstu.py --rectools PYTHON [--seeds 3] [--keep FOLDER]

PYTHON is that of an environment with `rectools[torch]` 0.17 or later; its settings are those of its
HSTU tutorial (two blocks; see _rectools.py), ours those of `tempera train` with
`data.split=leave_last_out` and no other option. Data: movielens-100k/ in the folder that
TEMPERA_DATA names. Both get the same events in the same order, those of one second in the order of
the file, and rank all items that a user has not taken. Differences are means over seeds, with 95 %
intervals paired by user. FOLDER keeps each run's ranks, so that a benchmark that was interrupted
goes on.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from numpy.typing import NDArray

import tempera
from _harness import Aim, finish, table
from _reached import judged
from _sets import DATA
from tempera.ranking.compare import bootstrap

Ints = NDArray[np.int64]
K, MODES = 10, ("time", "order")
NAMES = ("user", "item", "time")


def events() -> Ints:
    """Return users, items and times, [3, e], user after user, the latest last."""
    rows = parquet.read_table(DATA / "movielens-100k/interactions.parquet")
    user, item, time = (
        rows[name].to_numpy().astype(np.int64) for name in ("user_id", "item_id", "timestamp")
    )
    order = np.lexsort((np.arange(len(user)), time, user))
    return np.stack([user, item, time])[:, order]


def ours(rows: Ints, mode: str, seed: int, folder: Path) -> Ints:
    """Train Tempera's recipe; return the rank of each user's last item, [u]."""
    columns = {**dict(zip(NAMES, rows)), "position": np.arange(rows.shape[1])}
    path = folder / "events.parquet"
    parquet.write_table(
        pa.table({name: columns[name] for name in columns if name != "time" or mode == "time"}),
        path,
    )
    options = [
        "data.split=leave_last_out",
        f"train.seed={seed}",
        "evaluation.metrics=[ndcg@10,hit@10]",
    ]
    with judged() as runs:
        tempera.train(str(path), folder / "run", options)
    return next(iter(runs[-1].reached["trained"].values())).ranks.excluded


def theirs(python: str, rows: Ints, mode: str, seed: int, folder: Path) -> Ints:
    """Train RecTools' HSTU; return the same, with 0 below place 10."""
    np.save(folder / "events.npy", rows)
    script = Path(__file__).with_name("_rectools.py")
    out = folder / "ranks.npy"
    subprocess.run(
        [python, str(script), str(folder / "events.npy"), str(out), str(seed), mode], check=True
    )
    ranks: Ints = np.load(out)
    return ranks


def metrics(ranks: Ints) -> NDArray[np.float64]:
    """Return the hit rate and nDCG at 10 of each user, [2, u].

    >>> metrics(np.array([1, 3, 0, 11])).tolist()
    [[1.0, 1.0, 0.0, 0.0], [1.0, 0.5, 0.0, 0.0]]
    """
    inside = (ranks >= 1) & (ranks <= K)
    return np.stack([inside.astype(float), inside / np.log2(1 + np.maximum(ranks, 1))])


def measured(run: Callable[[Path], Ints], keep: Path) -> dict[str, Any]:
    """Return the ranks and CPU seconds of a run, which are kept in a file."""
    if not keep.is_file():
        before = os.times()
        with tempfile.TemporaryDirectory() as folder:
            ranks = run(Path(folder))
        after = os.times()
        seconds = sum(after[:4]) - sum(before[:4])
        keep.parent.mkdir(parents=True, exist_ok=True)
        np.savez(keep, ranks=ranks, seconds=seconds)
    kept = np.load(keep)
    return {"metrics": metrics(kept["ranks"]), "seconds": float(kept["seconds"])}


def compared(systems: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the means of each system and the difference of ours from theirs, by hit rate and
    nDCG."""
    means = {
        name: np.mean([run["metrics"] for run in runs], 0) for name, runs in systems.items()
    }  # [2, u] each
    gaps = [
        bootstrap(ours, theirs)
        for ours, theirs in zip(means["tempera"], means["HSTU"], strict=True)
    ]
    return {
        "hit@10, ndcg@10": {name: values.mean(1).tolist() for name, values in means.items()},
        "by seed": {
            name: [run["metrics"].mean(1).tolist() for run in runs]
            for name, runs in systems.items()
        },
        "CPU seconds": {name: [run["seconds"] for run in runs] for name, runs in systems.items()},
        "ours less theirs": [{"mean": gap.mean, "low": gap.low, "high": gap.high} for gap in gaps],
    }


def main() -> None:
    """Train both, and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rectools", default=os.environ.get("TEMPERA_RECTOOLS"), help="python with RecTools"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder of finished runs")
    options = parser.parse_args()
    if not options.rectools:
        parser.error("--rectools is missing: give the python of an environment with RecTools")
    torch.set_num_threads(1)
    rows = events()
    figures = {}
    with tempfile.TemporaryDirectory() as scratch:
        keep = options.keep or Path(scratch)
        for mode in MODES:
            runs: dict[str, list[dict[str, Any]]] = {"tempera": [], "HSTU": []}
            for seed in range(options.seeds):
                for system, run in (("tempera", ours), ("HSTU", partial(theirs, options.rectools))):
                    name = f"{system}-{mode}-{seed}.npz"
                    runs[system].append(measured(partial(run, rows, mode, seed), keep / name))
            figures[mode] = compared(runs)
    report(figures)


def report(figures: Mapping[str, Any]) -> None:
    """Print the tables and keep the figures."""
    names = {"time": "told the time", "order": "told the order alone"}
    lines = []
    for mode, found in figures.items():
        for system, values in found["hit@10, ndcg@10"].items():
            seconds = found["CPU seconds"][system]
            lines.append(
                [names[mode], system, *(f"{v:.3f}" for v in values), f"{np.mean(seconds):.0f}"]
            )
        gaps = [
            f"{d['mean']:+.3f} [{d['low']:+.3f}, {d['high']:+.3f}]"
            for d in found["ours less theirs"]
        ]
        lines.append([names[mode], "ours less theirs", *gaps, ""])
    table(["", "", "hit@10", "ndcg@10", "CPU s"], lines)
    aims = [
        Aim(
            f"{names[mode]}: metrics shown below theirs",
            sum(d["high"] < 0 for d in found["ours less theirs"]),
            0,
        )
        for mode, found in figures.items()
    ]
    finish("hstu", figures, aims, ["torch", "numpy", "tempera"])


if __name__ == "__main__":
    main()
