"""MovieLens-1M: the quality of a recipe, the gain of each of its parts, and a test on the future.

    python bench/movielens.py recipe      examples/movielens.yaml: leave-last-out, the canonical order, three seeds
    python bench/movielens.py parts       the parts of the recipe one after the other, three seeds
    python bench/movielens.py time        the global cut in time, beside popularity, item-kNN, EASE and transition counts

Data: movielens-1m/ in the folder that TEMPERA_DATA names, with interactions_canonical.parquet
(user_id, item_id, position), the order of the published sequential recommenders;
interactions.parquet with the times of a part of the users; and items.parquet. Equal scores are
ranked by item code; items that a user has seen are left out. Hyper-parameters were chosen on the
validation item, the one before the last. Each run is a process of its own; its CPU seconds count
reading and evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as parquet
import yaml
from scipy.stats import t as student

from _harness import Aim, finish, table

PACKAGES = ("tempera", "torch", "numpy")
EXAMPLES = Path(__file__).parents[1] / "examples"
SEEDS = (0, 1, 2)
TIERS = ("all", "head", "middle", "tail")
METRICS = ["hit@10", "ndcg@10"]

# Each adds to those before it; the first is the two-tower that people begin with.
MEANS: tuple[dict[str, Any], ...] = (
    {"last": 1},
    {"last": 3, "decay": 0.8},
    {"last": 10, "decay": 0.9},
    {"last": 50},
)
WINDOWS = [{"mean": mean} for mean in MEANS]
PARTS: dict[str, dict[str, Any]] = {
    "dot product, own tables, no correction": {
        "tower.history": {"pools": [{"mean": {"last": 50}}], "items": "own"},
        "objective": {"similarity": "dot", "temperature": 1.0, "masks": ["same_id"]},
    },
    "+ length 1 and temperature 0.05": {"objective": {"temperature": 0.05, "masks": ["same_id"]}},
    "+ mixed negatives, 1,024 a batch": {"train.sampled": 1024},
    "+ one table for histories and items": {"tower.history": {"pools": [{"mean": {"last": 50}}]}},
    "+ logQ of both sources": {
        "objective": {"temperature": 0.05, "masks": ["same_id"], "corrections": ["log_q"]}
    },
    "+ several windows of the history": {"tower.history": {"pools": WINDOWS}},
    "+ the user's own items masked": {
        "objective": {
            "temperature": 0.05,
            "masks": ["same_id", "known_positives"],
            "corrections": ["log_q"],
        }
    },
}
PLAIN = {
    "tower": {"kind": "features", "dimensions": 64, "doc": ["id"]},
    "train": {"batch_size": 1024, "num_train_epochs": 2, "learning_rate": 0.002, "evaluations": 0},
    "evaluation": {"metrics": METRICS},
}


def run(config: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Train a configuration in a separate process; return metrics.json and the CPU seconds."""
    train = {**config["train"], "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump({**config, "train": train}), encoding="utf-8")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        command = [
            sys.executable,
            "-m",
            "tempera",
            "train",
            str(path),
            "--output",
            str(Path(folder) / "run"),
        ]
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, used = os.wait4(child.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
        document: dict[str, Any] = json.loads(
            (Path(folder) / "run" / "metrics.json").read_text(encoding="utf-8")
        )
    return {
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "protocols": document["protocols"],
        "seconds": document["seconds"],
    }


def runs_of(configs: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Run every configuration with every seed, one thread each, as many at once as there are
    cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [[pool.submit(run, config, seed) for seed in SEEDS] for config in configs]
        return [[job.result() for job in several] for several in jobs]


def reached(found: Mapping[str, Any], system: str, protocol: str, which: str, metric: str) -> float:
    """Return a figure of a run, with seen items left out."""
    rows = found["protocols"][system][protocol]["rows"]
    row = next(row for row in rows if row["seen"] == "excluded" and row["which"] == which)
    value: float = row["metrics"][metric]["mean"]
    return value


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and Student's 95 % interval over seeds."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    half = student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def shown(values: Sequence[float], sign: str = "") -> str:
    """Return a mean with its interval as text."""
    return "{:{s}.4f} [{:{s}.4f}, {:{s}.4f}]".format(*interval(values), s=sign)


def with_parts(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with dotted keys replaced."""
    changed = json.loads(json.dumps(config))
    for key, value in changes.items():
        *path, last = key.split(".")
        place = changed
        for name in path:
            place = place.setdefault(name, {})
        place[last] = value
    return changed


def canonical(folder: Path) -> dict[str, Any]:
    """Return the data in the published order."""
    path = folder / "movielens-1m"
    found = {
        "path": str(path / "interactions_canonical.parquet"),
        "items": str(path / "items.parquet"),
    }
    return {"source": "interactions", **found, "split": "leave_last_out"}


def below(folder: Path, figures: Any) -> Any:
    """Return figures with paths relative to `folder`, which differs between machines."""
    return json.loads(json.dumps(figures).replace(f"{folder}/", ""))


def recipe(folder: Path) -> None:
    """Measure the example as it stands, on the published split."""
    config = yaml.safe_load((EXAMPLES / "movielens.yaml").read_text(encoding="utf-8"))
    config = {**config, "data": canonical(folder)}
    config["evaluation"] = {
        **config.get("evaluation", {}),
        "metrics": [*METRICS, "hit@100"],
        "baselines": False,
    }
    (runs,) = runs_of([config])
    for seed, found in zip(SEEDS, runs, strict=True):
        figures = [reached(found, "trained", "last", "all", metric) for metric in METRICS]
        print(f"seed {seed}: {figures}, {found['cpu_seconds']:.0f} CPU-s", flush=True)
    rows = [
        (
            which,
            *(
                shown([reached(found, "trained", "last", which, metric) for found in runs])
                for metric in METRICS
            ),
        )
        for which in TIERS
    ]
    table(("leave-last-out, seen excluded", *METRICS), rows)
    hit, ndcg = (
        interval([reached(found, "trained", "last", "all", metric) for found in runs])[0]
        for metric in METRICS
    )
    aims = [
        Aim("hit@10", hit, 0.33, at_least=True),
        Aim("ndcg@10", ndcg, 0.20, at_least=True),
        Aim("CPU minutes of a run", max(found["cpu_seconds"] for found in runs) / 60, 15),
    ]
    finish("movielens_recipe", below(folder, {"config": config, "runs": runs}), aims, PACKAGES)


def parts(folder: Path) -> None:
    """Measure the gain of each part."""
    configs: list[dict[str, Any]] = [{**PLAIN, "data": canonical(folder)}]
    for changes in PARTS.values():
        configs.append(with_parts(configs[-1], changes))
    found = dict(zip(PARTS, runs_of(configs[1:]), strict=True))
    before, rows = None, []
    for name in PARTS:
        values = {
            w: [reached(each, "trained", "last", w, "hit@10") for each in found[name]]
            for w in TIERS
        }
        brings = (
            "" if before is None else shown([a - b for a, b in zip(values["all"], before)], "+")
        )
        rows.append((name, *(f"{statistics.mean(values[w]):.4f}" for w in TIERS), brings))
        before = values["all"]
        print(name, {w: [round(v, 4) for v in values[w]] for w in TIERS}, flush=True)
    table(("hit@10, seen excluded, 2 epochs", *TIERS, "gain (95 % over seeds)"), rows)
    finish(
        "movielens_parts",
        below(folder, {"config": PLAIN, "parts": PARTS, "runs": found}),
        [],
        PACKAGES,
    )


def by_time(folder: Path) -> None:
    """Measure the global cut in time: a user's first item after it, and the next items one by
    one."""
    config = yaml.safe_load((EXAMPLES / "movielens_time.yaml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as place:
        whole = parquet.read_table(folder / "movielens-1m" / "interactions.parquet")
        timed = whole.filter(pc.is_valid(whole["timestamp"])).drop_columns(["rating"])
        path = Path(place) / "interactions.parquet"
        parquet.write_table(timed, path)
        data = {
            **config["data"],
            "path": str(path),
            "items": str(folder / "movielens-1m" / "items.parquet"),
        }
        config = {**config, "data": {**data, "metadata": []}}
        config["evaluation"] = {
            **config.get("evaluation", {}),
            "metrics": [*METRICS, "hit@100"],
            "baselines": True,
        }
        (runs,) = runs_of([config])
        config = below(Path(place), config)
    rows = []
    for system in runs[0]["protocols"]:
        cells = [
            shown([reached(found, system, protocol, "all", metric) for found in runs])
            for protocol in ("next", "rolling")
            for metric in METRICS
        ]
        rows.append((system, *cells))
    table(
        ("global time, seen excluded", *(f"{p} {m}" for p in ("next", "rolling") for m in METRICS)),
        rows,
    )
    ours, ease = (
        [reached(found, system, "next", "all", "hit@10") for found in runs]
        for system in ("trained", "EASE")
    )
    rolling = [reached(found, "trained", "rolling", "all", "hit@10") for found in runs]
    aims = [
        Aim(
            "next, hit@10, less EASE's",
            statistics.mean(ours) - statistics.mean(ease),
            0.0,
            at_least=True,
        ),
        Aim("rolling, hit@10", statistics.mean(rolling), 0.24, at_least=True),
    ]
    finish("movielens_time", below(folder, {"config": config, "runs": runs}), aims, PACKAGES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["recipe", "parts", "time"], default="recipe")
    chosen = {"recipe": recipe, "parts": parts, "time": by_time}[parser.parse_args().what]
    if "TEMPERA_DATA" not in os.environ:
        parser.error("TEMPERA_DATA is not set: set it to the folder that holds movielens-1m/")
    chosen(Path(os.environ["TEMPERA_DATA"]))
