"""What several test files share: planted data, one tiny run, and the command line, warm and cold."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Spinning threads slow a shared machine down by up to 20x; this has to be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side, one on each core
# What a shell starts in the background ignores Ctrl-C, and so would all that is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Each query is three words of its document, so that training and searching have something to find.
WORDS = [a + b for a in ("ka", "lo", "mi", "nu", "ra", "to", "vi", "zu") for b in ("ban", "cel", "dor", "fin", "gar")]


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


def planted(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Pairs that share three rare words, with two words of noise on either side."""
    generator = random.Random(seed)
    rows = []
    for _ in range(count):
        common = generator.sample(WORDS, 3)
        query, doc = (common + generator.sample(["the", "of", "and", "with", "from"], 2) for _ in "qd")
        generator.shuffle(doc)
        rows.append({"query": " ".join(query), "doc": " ".join(doc)})
    return rows


def write_pairs(path: Path, rows: list[dict[str, str]]) -> Path:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def small_options(pairs: Path) -> dict[str, Any]:
    """A run of half a second: 300 pairs, 16 dimensions, without BM25, whose tuning takes longer than the training."""
    return {
        "data": {"source": "pairs", "path": str(pairs)},
        "tower": {"dimensions": 16, "vocabulary": 300, "init": "normal"},
        "train": {"batch_size": 32, "num_train_epochs": 6, "evaluations": 1},
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
    """Drawing takes longer than a tiny run, so reports hold no pictures but in files of tests that use `with_pictures`."""
    with drawing(False):
        yield


@pytest.fixture(scope="module")
def with_pictures(drawing: Drawing) -> Iterator[None]:
    """Reports that are written in this file hold their pictures."""
    with drawing(True):
        yield


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.jsonl", planted(300))


@pytest.fixture
def options(pairs_file: Path) -> dict[str, Any]:
    """Options of a tiny run, to change as the test likes."""
    return small_options(pairs_file)


@pytest.fixture(scope="session")
def tiny(pairs_file: Path) -> list[str]:
    """The same as overrides of the command line."""
    sections = small_options(pairs_file)
    return [f"{section}.{key}={value}" for section, given in sections.items() for key, value in given.items()]


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
        return train(options, tmp_path_factory.mktemp("runs") / "tiny").folder


# A command line that has torch loaded: it answers a list of arguments a line. Loading takes most of a short command's time.
_WARM = """
import contextlib, io, json, sys, traceback
import tempera.run.train
from tempera.artifacts import pictures
from tempera.cli import main

pictures._svg = lambda *_: "<svg></svg>"  # drawing takes longer than a tiny run
for line in sys.stdin:
    sys.argv = ["tempera", *json.loads(line)]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            traceback.print_exc()
            code = 1
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


@pytest.fixture(scope="session")
def tempera(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The command line in a process that answers one command after another."""
    folder = tmp_path_factory.mktemp("warm")
    with (folder / "stderr").open("w") as noise:
        process = subprocess.Popen(
            [sys.executable, "-c", _WARM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=noise, cwd=folder
        )
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def command(*arguments: object) -> Answer:
            stdin.write(json.dumps([str(argument) for argument in arguments]).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
            assert line, (folder / "stderr").read_text()
            return Answer(*json.loads(line))

        yield command
        stdin.close()
        process.wait(timeout=30)
    assert (folder / "stderr").read_text() == ""  # nothing went past sys.stderr


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """The command line in the process of the test, where what is patched stays patched."""
    from tempera.cli import main
    from tempera.io.console import logger

    def command(*arguments: object) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", ["tempera", *map(str, arguments)])
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
            main()
        return Answer(int(end.value.code or 0), out.getvalue(), err.getvalue())

    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(logger, "handlers", list(logger.handlers))
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
