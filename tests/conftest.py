"""What several test files share: planted data, one tiny run, and the command line, inside the tests
and cold."""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

# Spinning threads slow a shared machine down by up to 20x; this has to be set before torch is
# loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side, one on each core
# No test needs the hub, and without a network each name of a model would be tried for seconds.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if os.environ.get("TEMPERA_TESTS") != "gpu":
    os.environ.setdefault(
        "TRITON_INTERPRET", "1"
    )  # kernels run without a device, if triton is loaded after this
# What a shell starts in the background ignores Ctrl-C, and so would all that is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Each query is three words of its document, so that training and searching have something to find.
WORDS = [
    a + b
    for a in ("ka", "lo", "mi", "nu", "ra", "to", "vi", "zu")
    for b in ("ban", "cel", "dor", "fin", "gar")
]


@dataclass(frozen=True)
class Answer:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output, which must be exactly one JSON document."""
        return json.loads(self.out)


Command = Callable[..., Answer]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Search what is loaded for garbage neither now nor later: modules and tests stay, and in a
    worker that has loaded all of them a search takes half a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries that count what is left at the end count nothing
        gc.enable()


@pytest.fixture(autouse=True)
def unsettled() -> Iterator[None]:
    """Forget which library a resumed run has multiplied by."""
    yield
    if "tempera.arithmetic.products" in sys.modules:
        sys.modules["tempera.arithmetic.products"]._choice.chosen = None  # type: ignore[attr-defined]


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Take oneDNN as the faster library on any machine, and note its products; torch makes them
    where it would round."""
    from tempera.arithmetic import products

    products_of, own = list[str](), products._switched if products.onednn_gain() else nullcontext

    @contextmanager
    def noted() -> Iterator[None]:
        products_of.append("oneDNN")
        with own():
            yield

    monkeypatch.setattr(products, "onednn_gain", lambda: 2.0)
    monkeypatch.setattr(products, "_switched", noted)
    return products_of


def planted(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Pairs that share three rare words, with two words of noise on either side."""
    generator = random.Random(seed)
    rows = []
    for _ in range(count):
        common = generator.sample(WORDS, 3)
        query, doc = (
            common + generator.sample(["the", "of", "and", "with", "from"], 2) for _ in "qd"
        )
        generator.shuffle(doc)
        rows.append({"query": " ".join(query), "doc": " ".join(doc)})
    return rows


def write_pairs(path: Path, rows: list[dict[str, str]]) -> Path:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def small_options(pairs: Path) -> dict[str, Any]:
    """A run of half a second: 300 pairs, 16 dimensions, without BM25, whose tuning takes longer
    than the training."""
    return {
        "data": {"source": "pairs", "path": str(pairs)},
        "tower": {"dimensions": 16, "vocabulary": 300, "init": "normal", "token_weights": False},
        "train": {"batch_size": 32, "learning_rate": 0.03, "num_train_epochs": 6, "evaluations": 1},
        "evaluation": {"queries": 40, "validation": 0, "bm25": False},
    }


Drawing = Callable[[bool], AbstractContextManager[None]]


@pytest.fixture(scope="session")
def drawing() -> Drawing:
    """A block in which reports hold pictures, or an empty element in place of each."""
    from tempera.artifacts import pictures

    draw = pictures._svg

    @contextmanager
    def block(drawn: bool) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pictures, "_svg", draw if drawn else lambda *_: "<svg></svg>")
            yield

    return block


@pytest.fixture(scope="session", autouse=True)
def without_pictures(drawing: Drawing) -> Iterator[None]:
    """Drawing takes longer than a tiny run, so reports hold no pictures but in files of tests that
    use `with_pictures`."""
    with drawing(False):
        yield


@pytest.fixture(scope="module")
def with_pictures(drawing: Drawing) -> Iterator[None]:
    """Reports that are written in this file hold their pictures."""
    with drawing(True):
        yield


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a path that one worker of pytest-xdist makes, and the others find."""
    base = factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"shared-{name}" / name
    path.parent.mkdir(exist_ok=True)
    with FileLock(f"{path.parent}.lock"):
        if not path.exists():
            make(path)
    return path


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "pairs.jsonl", lambda path: write_pairs(path, planted(300)))


@pytest.fixture
def options(pairs_file: Path) -> dict[str, Any]:
    """Options of a tiny run, to change as the test likes."""
    return small_options(pairs_file)


@pytest.fixture(scope="session")
def tiny(pairs_file: Path) -> list[str]:
    """The same as overrides of the command line."""
    sections = small_options(pairs_file)
    return [
        f"{section}.{key}={value}"
        for section, given in sections.items()
        for key, value in given.items()
    ]


@pytest.fixture
def tiny_run_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options that `tiny_run` was made by."""
    options["evaluation"]["bm25"] = True
    return options


@pytest.fixture(scope="session")
def tiny_run(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory, drawing: Drawing) -> Path:
    """The folder of a finished run with BM25 and pictures; look, do not touch."""
    from tempera.run.train import train

    options = small_options(pairs_file)
    options["evaluation"]["bm25"] = True
    with drawing(True):
        return made_once(tmp_path_factory, "tiny", lambda path: train(options, path))


@pytest.fixture(scope="module")
def inline() -> Iterator[None]:
    """Runs of experiments start no process, which takes longer than they do, and leave reports
    without pictures."""
    from tempera.experiments import runner
    from tempera.experiments.one_run import Trainings
    from tempera.experiments.record import Record
    from tempera.run import publish

    class Inline(runner.Worker):
        """Trains in the process of the test; what it is given and what it answers still passes
        through JSON."""

        def __init__(self) -> None:
            super().__init__()
            self.trainings = Trainings()

        def run(self, job: dict[str, Any], report: Any) -> Record:
            return Record(**json.loads(self.trainings(json.loads(json.dumps(job)), report).json()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "Worker", Inline)
        patch.setattr(publish, "render", lambda report: "")
        yield


@pytest.fixture
def tempera(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """The command line in the process of the test, which has torch loaded and where what is patched
    stays patched."""
    from tempera import cli
    from tempera.io.console import logger

    def command(*arguments: object) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", ["tempera", *map(str, arguments)])
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
            cli.main()
        return Answer(int(end.value.code or 0), out.getvalue(), err.getvalue())

    heard = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    monkeypatch.setattr(logger, "handlers", list(logger.handlers))
    monkeypatch.setenv("TQDM_DISABLE", "")
    monkeypatch.delenv("TQDM_DISABLE")  # what --quiet sets is gone after the test
    level = logger.level
    yield command
    logger.setLevel(level)
    for number, handler in heard.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def cold() -> Command:
    """The command line as it is called: `python -m tempera`."""

    def command(*arguments: str | bytes | Path, **options: Any) -> Answer:
        done = subprocess.run(
            [sys.executable, *options.pop("python", []), "-m", "tempera", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, **options.pop("env", {})},
            timeout=120,
            **options,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return command


@pytest.fixture
def recommender(tmp_path: Path) -> dict[str, Any]:
    """60 users who take items of one of three kinds in a random order: a recommender of a second."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as parquet

    draw = np.random.default_rng(5)
    rows = [
        (u, int(i), t)
        for u in range(60)
        for t, i in enumerate(draw.permutation(np.arange(u % 3, 30, 3))[:8])
    ]
    parquet.write_table(
        pa.table(dict(zip(("user", "item", "time"), zip(*rows)))), tmp_path / "taken.parquet"
    )
    return {
        "data": {
            "source": "interactions",
            "path": str(tmp_path / "taken.parquet"),
            "split": "leave_last_out",
        },
        "tower": {"kind": "features", "dimensions": 8, "query_layers": [16], "dropout": 0.1},
        "train": {"batch_size": 40, "max_steps": 6, "sampled": 5},
        "evaluation": {"metrics": ["hit@3"], "validation": 55},
    }


@pytest.fixture(scope="session")
def small(pairs_file: Path) -> dict[str, Any]:
    """A text retriever of less than a second."""
    return {
        "data": {"source": "pairs", "path": str(pairs_file)},
        "tower": {"dimensions": 16, "vocabulary": 300, "init": "normal", "token_weights": False},
        "train": {"batch_size": 32, "num_train_epochs": 4, "seed": 5},
        "evaluation": {"queries": 40, "validation": 60, "bm25": False},
    }


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take longer than the runs."""
    from tempera.experiments import sweep
    from tempera.tuning import tune

    monkeypatch.setattr(sweep, "draw_sweep", lambda _: {"svg": b"", "png": b""})
    monkeypatch.setattr(tune, "draw_tuning", lambda _: {"svg": b"", "png": b""})


@pytest.fixture
def validated() -> Callable[..., dict[str, float]]:
    """The metrics of a run's validation queries: after its last step, or at the step whose weights
    it saved."""

    def metrics(run: Any, saved: bool = False) -> dict[str, float]:
        records = map(json.loads, (run.folder / "log.jsonl").read_text().splitlines())
        looks = {
            record["step"]: record["metrics"]
            for record in records
            if record["event"] == "evaluation"
        }
        return looks[run.results.get("best", {}).get("step", max(looks)) if saved else max(looks)]

    return metrics
