"""The same training however it is launched: one run folder, one voice, the losses of one process;
and how processes end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from ..conftest import WORDS, write_pairs

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "tempera"]
ACCELERATE = [
    "-m",
    "accelerate.commands.launch",
    "--num_processes",
    "2",
    "--main_process_port",
    "0",
    "-m",
    "tempera",
]
SPOKEN = "300 pairs: 260 for training, 0 validation and 40 test queries against 300 documents"
LOST = "of 2 lost the other ranks during"
# `tempera` whose process of rank 1 comes to something in its third step.
FAILING = """
import os, signal, sys, time
from tempera.cli import main
from tempera.engine import loop
from tempera.errors import TemperaError

step, steps = loop.add_gradients, []

def failing(*given):
    steps.append(1)
    if os.environ["RANK"] == "1" and len(steps) == 3:
        {happens}
    return step(*given)

loop.add_gradients = failing
main()
"""
# `tempera` that breaks off in a step, counted from 1 and from where the run goes on.
BROKEN_OFF = """
from tempera.cli import main
from tempera.engine import loop

step, steps = loop.add_gradients, []

def breaking(*given):
    steps.append(1)
    if len(steps) == {step}:
        raise SystemExit(3)
    return step(*given)

loop.add_gradients = breaking
main()
"""
# `tempera`, and whether threads of the others' are left, which would abort a process while Python
# is being torn down.
LEAVING = """
import os
from pathlib import Path
from tempera.cli import main
from tempera.engine.devices import stop
from tempera.parallel.divided_tables import divided

divided.__defaults__ = (2,)  # rows of a table that is worth dividing

try:
    main()
finally:
    stop()
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert not any("gloo" in thread for thread in threads), threads
"""
# `tempera` whose process of rank 1 is killed in an exchange of what is divided.
KILLED_IN = """
import os, signal
import torch.distributed as dist
from tempera.cli import main
from tempera.parallel.divided_tables import divided

exchange, calls = dist.{exchange}, []

def killing(*given, **named):
    calls.append(1)
    if os.environ["RANK"] == "1" and len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return exchange(*given, **named)

dist.{exchange} = killing
divided.__defaults__ = (2,)  # rows of a table that is worth dividing
main()
"""
KILLED, HANGING = "os.kill(os.getpid(), signal.SIGKILL)", "time.sleep(600)"
REFUSING, BROKEN = "raise TemperaError('the disk is full')", "raise ZeroDivisionError('a bug')"


@dataclass
class Launched:
    """Processes that train together, and where."""

    folder: Path
    processes: list[subprocess.Popen[str]]

    def ended(self, seconds: float = 60) -> list[tuple[int, str, str]]:
        """Exit code, standard output and standard error of each."""
        end = time.monotonic() + seconds
        try:
            streams = [each.communicate(timeout=end - time.monotonic()) for each in self.processes]
        finally:
            for each in self.processes:
                each.kill()
        return [
            (each.returncode, out, err)
            for each, (out, err) in zip(self.processes, streams, strict=True)
        ]

    def steps(self) -> list[dict[str, Any]]:
        log = (self.folder / "run" / "log.jsonl").read_text().splitlines()
        return [record for line in log if (record := json.loads(line))["event"] == "step"]

    def evaluations(self) -> list[dict[str, float]]:
        log = (self.folder / "run" / "log.jsonl").read_text().splitlines()
        return [
            record["metrics"]
            for line in log
            if (record := json.loads(line))["event"] == "evaluation"
        ]

    def metrics(self) -> Any:
        return json.loads((self.folder / "run" / "metrics.json").read_text())["metrics"]


def launch(
    folder: Path,
    tiny: list[str],
    *launchers: list[str],
    more: Sequence[str] = (),
    **environment: str,
) -> Launched:
    """The tiny run by one launcher, or by several at once; 33 rows do not divide by two. {rank} is
    which of them."""
    job = [
        "train",
        *tiny,
        "train.batch_size=33",
        "train.max_steps=12",
        *more,
        "--output",
        "run",
        "--json",
    ]
    started, pipe = [], subprocess.PIPE
    for rank, launcher in enumerate(launchers):
        env = {
            **os.environ,
            **ENVIRONMENT,
            **{name: value.format(rank=rank) for name, value in environment.items()},
        }
        command = [part.replace("{rank}", str(rank)) for part in [*launcher, *job]]
        place = Path(str(folder).format(rank=rank))
        place.mkdir(parents=True, exist_ok=True)
        started.append(
            subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, cwd=place)
        )
    return Launched(folder, started)


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


def pair(
    folder: Path, tiny: list[str], *command: str, prefix: str = "", more: Sequence[str] = ()
) -> Launched:
    """Two processes that a scheduler has started: nobody watches over them. `prefix` is of the
    names of MPI."""
    names = {
        "RANK": "{rank}",
        "LOCAL_RANK": "{rank}",
        "SIZE" if prefix else "WORLD_SIZE": "2",
        "LOCAL_SIZE": "2",
    }
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": free_port()}
    ranks = {f"{prefix}{name}": value for name, value in names.items()}
    return launch(folder, tiny, python(*command), python(*command), more=more, **ranks, **place)


def same(several: Launched, one: Launched) -> None:
    """Losses, temperatures and metrics, and nothing but the run folder."""
    assert len(one.steps()) == 12 and one.steps()[-1]["loss"] < 0.9 * one.steps()[0]["loss"]
    for name in ("loss", "temperature", "grad_norm"):
        assert [s[name] for s in several.steps()] == pytest.approx(
            [s[name] for s in one.steps()], rel=1e-5, abs=1e-6
        ), name
    for system, metrics in one.metrics().items():
        assert several.metrics()[system] == pytest.approx(metrics, abs=1e-6), system
    assert [path.name for path in several.folder.iterdir()] == ["run"]
    ours, theirs = (sorted(p.name for p in each.folder.rglob("*")) for each in (several, one))
    assert ours == theirs


def apart(several: Launched, one: Launched, most: float) -> None:
    """How far the saved weights may be from each other."""
    theirs, ours = (
        load_file(each.folder / "run" / "model" / "model.safetensors") for each in (several, one)
    )
    assert (
        theirs.keys() == ours.keys()
        and max(float(weight.abs().max()) for weight in ours.values()) > 0.1
    )
    assert max(float((theirs[name] - weight).abs().max()) for name, weight in ours.items()) <= most


@pytest.fixture(scope="module")
def alone(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Launched:
    run = launch(tmp_path_factory.mktemp("alone") / "here", tiny, python("-m", "tempera"))
    ((code, out, err),) = run.ended()
    assert code == 0 and SPOKEN in err and json.loads(out)["metrics"] == run.metrics()
    return run


LAUNCHERS = [
    pytest.param(TORCHRUN, id="torchrun"),
    pytest.param(
        [*ACCELERATE[:2], "--multi_gpu", *ACCELERATE[2:]], id="accelerate", marks=pytest.mark.slow
    ),
]


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launched_processes_train_as_one(
    launcher: list[str], alone: Launched, tiny: list[str], tmp_path: Path
) -> None:
    several = launch(tmp_path / "here", tiny, python(*launcher))
    ((code, out, err),) = several.ended()
    assert code == 0, err
    assert json.loads(out)["metrics"] == several.metrics()  # one document, not one a process
    assert (
        err.count(SPOKEN) == 1 and "32 pairs a batch on 2 processes" in err
    )  # 260 rows in 8 batches of 32 and 33
    same(several, alone)


@pytest.mark.long
def test_two_processes_choose_as_one_does(tiny: list[str], tmp_path: Path) -> None:
    """One process races for all; the others wait for its choice."""
    more = ["evaluation.queries=60", "evaluation.validation=60", "train.max_steps=20"]
    recipes, tiny = (
        [],
        [each for each in tiny if not each.startswith("train.learning_rate=")],
    )  # which the race tries
    for name, launcher in (("one", ["-m", "tempera"]), ("two", TORCHRUN)):
        run = launch(tmp_path / name, tiny, python(*launcher), more=more)
        ((code, _, err),) = run.ended()
        assert code == 0, err
        log = [
            json.loads(line) for line in (run.folder / "run" / "log.jsonl").read_text().splitlines()
        ]
        recipes += [record for record in log if record["event"] == "recipe"]
    for each in [each for record in recipes for each in record["tried"]]:
        each.pop("seconds")  # of the CPU, which differ
    one, two = recipes
    assert one == two and len(one["tried"]) > 4


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        # The memory has another length on each process.
        ["train.made_rows=1", "objective.pools=[docs, memory]", "objective.memory=4096"],
        ["train.made_rows=0", "mining.again=3"],
    ],
)
def test_all_processes_go_on_from_the_chosen_weights(
    options: list[str], tiny: list[str], tmp_path: Path
) -> None:
    """The first process alone has those of the best validation; then all train on what was held
    out."""
    draw = random.Random(0)
    docs = [" ".join(draw.choice(WORDS) for _ in range(60)) for _ in range(300)]
    path = write_pairs(
        tmp_path / "long.jsonl",
        [{"query": " ".join(doc.split()[::20]), "doc": doc} for doc in docs],
    )
    more = [f"data.path={path}", "train.refit=auto", "train.learning_rate=0.3", *options]
    more += ["evaluation.validation=60", "train.evaluations=6", "train.max_steps=48"]
    runs = []
    for name, launcher in (("one", ["-m", "tempera"]), ("two", TORCHRUN)):
        runs.append(launch(tmp_path / name, tiny, python(*launcher), more=more))
        ((code, out, err),) = runs[-1].ended()
        assert code == 0, err
        best = json.loads(out)["best"]
        assert (
            0 < best["step"] < best["taken"]
            and "training goes on, also on all that was held out" in err
        )
    one, two = runs
    assert two.metrics() == one.metrics()
    apart(two, one, 1e-4)


@pytest.mark.long
def test_divided_towers_train_as_one(alone: Launched, tiny: list[str], tmp_path: Path) -> None:
    """Judged on the way and at the end, and saved, by the first process."""
    several = launch(tmp_path / "here", [*tiny, "train.fsdp=true"], python(*TORCHRUN))
    ((code, out, err),) = several.ended()
    assert code == 0, err
    assert (
        json.loads(out)["metrics"] == several.metrics()
        and several.evaluations() == alone.evaluations()
    )
    same(several, alone)
    apart(several, alone, 1e-5)


LINUX = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="threads are counted where Linux shows them"
)


@LINUX
@pytest.mark.long
@pytest.mark.parametrize("option", ["fsdp", "divide_tables"])
def test_processes_with_divided_towers_leave_no_thread_behind(
    option: str, tiny: list[str], tmp_path: Path
) -> None:
    for code, _, err in pair(tmp_path, [*tiny, f"train.{option}=true"], "-c", LEAVING).ended():
        assert code == 0, err


@LINUX
@pytest.mark.slow
def test_processes_of_mpi_train_as_one(alone: Launched, tiny: list[str], tmp_path: Path) -> None:
    several = pair(tmp_path / "here", tiny, "-c", LEAVING, prefix="OMPI_COMM_WORLD_")
    (main, other) = several.ended()
    assert main[0] == other[0] == 0, (main[2], other[2])
    assert SPOKEN in main[2] and json.loads(main[1])
    assert other[1] == "" and SPOKEN not in other[2]
    same(several, alone)


@pytest.mark.parametrize(
    ("happens", "code", "line"),
    [
        pytest.param(KILLED, -signal.SIGKILL, "", id="killed", marks=pytest.mark.long),
        pytest.param(
            REFUSING, 2, "tempera: the disk is full", id="refusing", marks=pytest.mark.slow
        ),
        pytest.param(HANGING, 128 + signal.SIGTERM, "", id="hanging", marks=pytest.mark.slow),
    ],
)
def test_the_others_leave_a_process_that_is_lost(
    happens: str, code: int, line: str, tiny: list[str], tmp_path: Path
) -> None:
    """With one line, long before the launcher's patience ends, and nothing half-written."""
    given = [*tiny, "train.ddp_timeout=8"]
    running = pair(tmp_path / "here", given, "-c", FAILING.format(happens=happens))
    main, lost = running.processes
    try:
        main.wait(60)
        if happens == HANGING:
            os.kill(lost.pid, signal.SIGTERM)
    finally:
        main.kill()
    (ours, out, err), (theirs, _, why) = running.ended(10)
    assert ours == 2 and theirs == code
    assert f"rank 0 {LOST}" in json.loads(out)["error"]
    said = [text for text in err.splitlines() if "tempera:" in text]
    assert len(said) == 1 and LOST in said[0] and "Traceback" not in err
    assert line in why and "Traceback" not in why
    assert list(running.folder.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "exchange"),
    [
        ("divide_tables", "all_to_all_single"),
        ("divide_tables", "send"),
        ("fsdp", "all_gather_single"),
        ("fsdp", "reduce_scatter_single"),
    ],
)
def test_a_process_that_is_lost_in_an_exchange_is_told(
    option: str, exchange: str, tiny: list[str], tmp_path: Path
) -> None:
    more = [f"train.{option}=true", "train.save_steps=1", "train.ddp_timeout=30"]
    running = pair(tmp_path / "here", tiny, "-c", KILLED_IN.format(exchange=exchange), more=more)
    (ours, out, _), (theirs, *_) = running.ended()
    assert ours == 2 and theirs == -signal.SIGKILL and LOST in json.loads(out)["error"]


@pytest.mark.long
def test_one_process_refuses_a_finished_output_for_all(tiny: list[str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.json").write_text("{}")
    (ours, _, err), (theirs, *silent) = pair(tmp_path, tiny, "-m", "tempera").ended()
    assert ours == theirs == 2 and silent == ["", ""]
    assert (
        [line.startswith("tempera: ") for line in err.splitlines()] == [True]
        and "run" in err
        and LOST not in err
    )


@contextmanager
def two_hosts() -> Iterator[list[list[str]]]:
    """What runs a command on each of two hosts: network namespaces, joined by a cable, with
    addresses of their own."""
    names, ends = [[f"{kind}{os.getpid()}{i}" for i in range(2)] for kind in ("tempera", "veth")]

    def ip(*arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"network namespaces are not permitted here: {done.stderr.strip()}")

    if shutil.which("ip") is None:
        pytest.skip("network namespaces need ip of iproute2")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for i, (name, end) in enumerate(zip(names, ends, strict=True)):
            ip("link", "set", end, "netns", name, "name", "cable")
            ip("-n", name, "address", "add", f"10.213.0.{i + 1}/24", "dev", "cable")
            for device in ("cable", "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield [["ip", "netns", "exec", name, sys.executable] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.mark.slow
def test_two_hosts_train_as_one_process(alone: Launched, tiny: list[str], tmp_path: Path) -> None:
    """Two processes a host. The second host does not see the first one's files, so its own folder
    stays empty."""
    place = [
        "--master_addr",
        "10.213.0.1",
        "--master_port",
        "29411",
        "--nnodes",
        "2",
        "--nproc_per_node",
        "2",
    ]
    torchrun = ["-m", "torch.distributed.run", *place, "--node_rank", "{rank}", "-m", "tempera"]
    with two_hosts() as hosts:
        several = launch(
            tmp_path / "{rank}",
            tiny,
            *([*host, *torchrun] for host in hosts),
            GLOO_SOCKET_IFNAME="cable",
        )
        (first, out, err), (second, silent, other) = several.ended(120)
    assert first == second == 0, (err, other)
    assert (
        json.loads(out)
        and silent == ""
        and "33 pairs a batch on 4 processes" in err
        and SPOKEN not in other
    )
    assert list((tmp_path / "1").iterdir()) == []
    same(Launched(tmp_path / "0", []), alone)


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", ["false", "true"])
def test_transformers_train_as_one(tiny: list[str], tmp_path: Path, fsdp: str) -> None:
    pytest.importorskip("sentence_transformers")
    shape = {"layers": 1, "width": 16, "heads": 2, "vocabulary": 300, "dropout": 0.0}
    tower = [f"tower.{name}={value}" for name, value in {"kind": "transformer", **shape}.items()]
    given = [option for option in tiny if not option.startswith("tower.")] + tower
    one = launch(tmp_path / "one", given, python("-m", "tempera"))
    assert one.ended()[0][0] == 0
    several = launch(tmp_path / "several", [*given, f"train.fsdp={fsdp}"], python(*TORCHRUN))
    ((code, _, err),) = several.ended()
    assert code == 0, err
    same(several, one)
    apart(several, one, 1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "option", ["train.learning_rate=0.{rank}1", "objective.temperature=0.{rank}1"]
)
def test_processes_of_different_options_are_refused(
    option: str, tiny: list[str], tmp_path: Path
) -> None:
    """But each may have what fits its machine."""
    more = [option, "train.micro_batch_tokens=1{rank}00"]
    running = pair(tmp_path, tiny, "-m", "tempera", more=more)
    (first, _, err), (second, _, other) = running.ended()
    said = f"the processes start with different options of {option.split('.')[0]}: give all of them the same"
    assert first == second == 2 and said in err and said in other
    assert list(tmp_path.iterdir()) == []
    (first, _, err), (second, *_) = pair(tmp_path, tiny, "-m", "tempera", more=more[1:]).ended()
    assert first == second == 0, err


@pytest.mark.long
def test_a_process_that_waits_for_others_hears_a_signal(tiny: list[str], tmp_path: Path) -> None:
    """The other one ended before they met."""
    absent = (
        "import os; os.environ['RANK'] == '1' and os._exit(2); from tempera.cli import main; main()"
    )
    running = pair(tmp_path, tiny, "-c", absent)
    (waiting, gone) = running.processes
    assert gone.wait(60) == 2
    time.sleep(10)
    assert waiting.poll() is None
    waiting.terminate()
    assert waiting.wait(10) == -signal.SIGTERM


@pytest.mark.slow
def test_processes_that_do_not_begin_alike_are_refused(
    tiny: list[str], pairs_file: Path, tmp_path: Path
) -> None:
    """Two machines whose files of one name differ in one row."""
    rows = pairs_file.read_text().splitlines()
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "own.jsonl").write_text("\n".join(rows[: len(rows) - rank]))
    running = pair(tmp_path / "{rank}", [*tiny, "data.path=own.jsonl"], "-m", "tempera")
    for code, _, err in running.ended():
        assert code == 2 and err.splitlines()[-1].startswith(
            "tempera: the processes start with different data or weights"
        )
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == [
        "0",
        "own.jsonl",
        "1",
        "own.jsonl",
    ]
