"""The process that trains: `python -m tempera.experiments.worker` loads everything once, and forks for each run.

So that every run has a process of its own at the price of a fork: its memory is freed, and if it crashes, it is one run that
failed. Nothing is computed before the fork, so neither threads nor a GPU are touched. Orders are lines on standard input: a job
as JSON starts a run, `stop` kills it; the answer, when the run has ended, is its exit code. Whoever gave the orders is
gone when the input ends, and so is then the run.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from ..build import build
from ..config import Options
from ..engine.devices import start
from ..engine.digest import digest
from ..errors import TemperaError
from ..io.atomic import write_file
from ..io.documents import JsonLines, parsed
from ..run.fit import fit
from ..run.judge import judge
from ..run.prepare import prepare
from ..run.publish import publish

STOP, OUTCOME, MESSAGES = b"stop", "outcome.json", "messages.txt"
_EVERY = 0.02  # seconds between two looks at a run


def serve(run: Callable[[dict[str, Any]], None]) -> None:
    """Take jobs until the input ends."""
    with open(0, "rb", buffering=0) as orders:  # nothing is read ahead that `select` could not see
        while line := orders.readline():
            if line.strip() == STOP:  # of a run that has just ended
                continue
            if not (process := os.fork()):
                _alone(run, parsed(line))
            print(_watched(process, orders), flush=True)


def _watched(process: int, orders: Any) -> int:
    """The exit code of a run, which is killed if that is asked for; minus a signal's number."""
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if select.select([orders], [], [], _EVERY)[0]:
            orders.readline()
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return -signal.SIGKILL


def _alone(run: Callable[[dict[str, Any]], None], job: dict[str, Any]) -> NoReturn:
    """Run in this process, which ends with it."""
    threading.Thread(target=follow, args=(os.getppid(),), daemon=True).start()
    messages = os.open(Path(job["folder"]) / MESSAGES, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDONLY) if stream == 0 else messages, stream)
    try:
        run(job)
    except BaseException:
        traceback.print_exc()
        code = 1
    else:
        code = 0
    sys.stderr.flush()
    os._exit(code)


def follow(parent: int) -> None:
    """End this process when its parent has ended, however that was."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def trial(job: Mapping[str, Any]) -> None:
    """One training: its outcome in a file of its folder, and a whole run folder if it reaches `bar`."""
    folder = Path(job["folder"])
    try:
        outcome = _trained(job, folder)
    except TemperaError as error:
        outcome = {"error": str(error)}
    except Exception as error:  # out of memory, and whatever else a setting may provoke
        traceback.print_exc()
        outcome = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    write_file(folder / OUTCOME, json.dumps(outcome, allow_nan=False).encode())


def _trained(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    began = time.perf_counter()
    if job["threads"] is not None:
        torch.set_num_threads(job["threads"])
    config = build(Options(job["options"]))
    devices = start(config.train.mixed_precision)
    config.train.check(devices)
    with JsonLines(folder / "log.jsonl") as log:
        prepared = prepare(config, devices, folder, log, Path(job["vectors"]))
        before, fitted, task = judge(prepared), fit(prepared), prepared.task
        after = judge(prepared)
        chosen = task.held_out.judge("validation")  # the test is for the configuration that validation chooses
        value = chosen.ranking.metrics[job["metric"]]
        temperature, data = config.objective.temperature.value, digest(task.data.content())
        if job["keep"] and (job["bar"] is None or value > job["bar"]):
            publish(prepared, fitted, before, after)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    return {
        "value": value,
        "metrics": chosen.ranking.metrics,
        "temperature": temperature,
        "data": f"{data:016x}",
        "seconds": round(time.perf_counter() - began, 3),
    }


def load() -> None:
    """Import what a training imports late, for seconds, so that no run has to repeat it."""
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])  # torch._dynamo
    importlib.import_module("matplotlib.figure")
    importlib.import_module("matplotlib.backends.backend_svg")


if __name__ == "__main__":
    load()
    serve(trial)
