"""Every reader tried with many inputs: python tests/fuzz/soak.py [--inputs 100000] [--seconds 600]
[READER ...].

Each reader has a process of its own with a limit of memory. Input i is made of the seed "reader/i",
so that one that fails is made again by `--input i`. What dies or hangs is noted, and the next
process goes on behind it. Figures go to bench/results/soak.json.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"
for path in (Path(__file__).parent, Path(__file__).parents[1]):
    sys.path.insert(0, str(path))

RESULT = Path(__file__).parents[2] / "bench" / "results" / "soak.json"
MEMORY = 2 << 30  # bytes that a reader's process may take beside what its libraries take
STALL = 60.0  # seconds without an input done, after which a process is ended
REPORT = 500  # inputs between two reports


def samples(folder: Path) -> None:
    """Small runs, whose files are damaged."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    import tempera.options.yaml_options
    import tempera.run.publish
    import tempera.run.train

    tempera.run.publish.render = lambda report: ""
    words = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"]
    rows = [
        {"query": f"{a} {b}", "doc": f"{b} {a} {c}"}
        for a in words
        for b in words[:4]
        for c in words[:1]
        if a != b
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    short: dict[str, Any] = {"train": {"max_steps": 2, "evaluations": 0, "batch_size": 8}}
    texts = {
        "data": {"source": "pairs", "path": str(folder / "pairs.jsonl")},
        "tower": {"dimensions": 4, "vocabulary": 60},
    }
    tempera.run.train.train({**texts, **short, "evaluation": {"queries": 5}}, folder / "texts")
    events = [(f"u{u}", f"i{(u + t) % 6:02}", t) for u in range(8) for t in range(4)]
    columns = {name: list(values) for name, values in zip(("user", "item", "time"), zip(*events))}
    parquet.write_table(pa.table(columns), folder / "events.parquet")
    items = pa.table(
        {"item": [f"i{i:02}" for i in range(6)], "title": [f"{word} thing" for word in words[:6]]}
    )
    parquet.write_table(items, folder / "items.parquet")
    data = {
        "source": "interactions",
        "path": str(folder / "events.parquet"),
        "items": str(folder / "items.parquet"),
    }
    towers = {
        "kind": "features",
        "dimensions": 4,
        "query_layers": [4],
        "doc": ["id", {"text": {"column": "title"}}],
    }
    more = {"evaluation": {"metrics": ["hit@3"], "baselines": False}}
    tempera.run.train.train(
        {"data": {**data, "split": "leave_last_out"}, "tower": towers, **short, **more},
        folder / "items",
    )
    whole = (folder / "items" / "config.yaml").read_bytes()
    (folder / "items.yaml").write_bytes(whole)  # for readers of the data, too
    # What is read of it, lest most of the time goes into YAML of other sections.
    (folder / "items" / "config.yaml").write_text(
        tempera.options.yaml_options.dump({"tower": towers})
    )


def work(name: str, sample: Path, first: int, inputs: int, seconds: float, only: bool) -> None:
    """Try inputs in this process; figures are printed as lines of JSON."""
    import torch
    from inputs import Place, accepts, readers

    torch.set_num_threads(1)
    counter = mmap.mmap(os.open(sample / f"{name}.at", os.O_RDWR), 8)
    with tempfile.TemporaryDirectory(dir=sample) as scratch:
        reader = readers(sample / "texts", sample / "items", Path(scratch, "s"))[name]
        place = Place(Path(scratch, "in put"))
        place.folder.mkdir()
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY,) * 2)
        accepted, done, end, slowest = 0, 0, time.monotonic() + seconds, 0.0
        kinds: Counter[str] = Counter()
        for i in range(first, inputs):
            counter[:] = i.to_bytes(8, "little")
            began = time.process_time()
            try:
                accepted += accepts(reader, Random(f"{name}/{i}"), place)
            except BaseException as error:
                kind = kind_of(error)
                kinds[kind] += 1
                if kinds[kind] == 1 or only:
                    print(
                        json.dumps(
                            {"fault": kind, "input": i, "says": " ".join(str(error).split())[:400]}
                        ),
                        flush=True,
                    )
                if only:
                    traceback.print_exc()
            done, slowest = done + 1, max(slowest, time.process_time() - began)
            if only:
                print(
                    {name: content[:600] for name, content in place.now.items()}
                    if len(place.now) < 4
                    else list(place.now)
                )
            over = time.monotonic() > end
            if done == REPORT or over or i == inputs - 1:
                figures = {
                    "tried": done,
                    "accepted": accepted,
                    "faults": dict(kinds),
                    "slowest": slowest,
                    "at": i,
                }
                print(json.dumps(figures), flush=True)
                accepted = done = 0
                kinds.clear()
            if over:
                break


def kind_of(error: BaseException) -> str:
    """What a fault is counted under: where in the package it was raised, or what was done that no
    reader does."""
    from inputs import Fault

    if isinstance(error, Fault):
        return f"Fault: {str(error)[:60]}"
    frames = traceback.extract_tb(error.__traceback__)
    own = next((f for f in reversed(frames) if "/src/tempera/" in f.filename), frames[-1])
    return f"{type(error).__name__} at {Path(own.filename).name}:{own.lineno}"


def record(path: Path, section: str, name: str, found: dict[str, Any]) -> None:
    """Put the figures of a reader among those of others."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    found |= {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "commit": commit}
    print(section, name, found, flush=True)
    figures = json.loads(path.read_text()) if path.exists() else {}
    figures.setdefault(section, {})[name] = found
    path.write_text(json.dumps(figures, indent=2) + "\n")


def campaign(name: str, sample: Path, first: int, inputs: int, seconds: float) -> dict[str, Any]:
    """Try a reader until the inputs or the seconds are spent, whatever becomes of its processes."""
    at, said, began = sample / f"{name}.at", sample / f"{name}.said", time.monotonic()
    total: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    slowest, start = 0.0, first
    while first < inputs and (left := seconds - (time.monotonic() - began)) > 0:
        at.write_bytes(first.to_bytes(8, "little"))
        code = _forked(partial(work, name, sample, first, inputs, left, False), at, said)
        reached = first - 1
        for line in map(json.loads, said.read_text().splitlines()):
            if "fault" in line:
                print(name, json.dumps(line), flush=True)
                continue
            total.update(tried=line["tried"], accepted=line["accepted"])
            faults.update(line["faults"])
            slowest, reached = max(slowest, line["slowest"]), line["at"]
        if code == 0:
            break
        latest = int.from_bytes(at.read_bytes(), "little")
        faults[f"its process ended with {code}"] += 1
        print(name, json.dumps({"fault": f"exit {code}", "input": latest}), flush=True)
        total["tried"] += latest - reached  # since the last report, and none of them had a fault
        first = latest + 1
    return {
        "first": start,
        "inputs": total["tried"],
        "accepted": total["accepted"],
        "refused": total["tried"] - total["accepted"] - sum(faults.values()),
        "faults": dict(faults),
        "slowest_cpu_seconds": round(slowest, 3),
        "seconds": round(time.monotonic() - began, 1),
    }


def _forked(run: Callable[[], None], at: Path, said: Path) -> int:
    """Run in a process of its own, which has every library loaded and is ended when it stalls: how
    it ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with said.open("w") as out:
                os.dup2(out.fileno(), 1)
                run()
            code = 0
        finally:
            os._exit(code)
    latest, since = -1, time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if (now := int.from_bytes(at.read_bytes(), "little")) != latest:
            latest, since = now, time.monotonic()
        if time.monotonic() - since > STALL:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.2)


def main() -> None:
    """Run the campaign and record it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600, help="of each reader, at most")
    parser.add_argument("--input", type=int, help="show one input and what becomes of it")
    parser.add_argument("--record", type=Path, default=RESULT)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        sample = Path(folder)
        samples(sample)
        if given.input is not None:
            (sample / f"{given.readers[0]}.at").write_bytes(bytes(8))
            work(given.readers[0], sample, given.input, given.input + 1, 60, True)
            return
        from inputs import readers

        names = given.readers or list(readers(sample / "texts", sample / "items", sample / "names"))
        for name in names:
            found = campaign(name, sample, given.first, given.first + given.inputs, given.seconds)
            record(given.record, "readers", name, found)


if __name__ == "__main__":
    main()
