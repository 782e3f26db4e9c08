"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

import typer

from ..errors import TemperaError
from .laboratory import calibrate, sweep, tune
from .models import evaluate, export, mine, search
from .recommending import add_items, recommend
from .training import train, verify

app = typer.Typer(
    help="Train retrieval models by contrast.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "verify": verify,
    "search": search,
    "calibrate": calibrate,
    "recommend": recommend,
    "eval": evaluate,
    "export": export,
    "add-items": add_items,
    "mine": mine,
    "sweep": sweep,
    "tune": tune,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


def main() -> None:
    """Run a command; what the user got wrong is one line on standard error and exit code 2."""
    # Spinning threads slow a shared machine down by up to 20x; this has to be set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    asked: list[int] = []

    def stop(number: int, _: object) -> NoReturn:
        """End by way of every `finally`, so that no half-written folder stays; 130 for Ctrl-C, 143 for SIGTERM."""
        asked.append(number)
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, stop)
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except typer.Exit as end:
        code = end.exit_code
    except Exception as error:
        if asked:  # where a class is made, Python 3.11 turns the end into a RuntimeError
            code = 128 + asked[0]
        elif isinstance(error, TemperaError):
            code = _fail(str(error))
        elif hasattr(error, "format_message"):
            code = _fail(error.format_message())
        else:
            raise
    sys.exit(code or 0)


def _fail(message: str) -> int:
    line = " ".join(message.split())
    print(f"tempera: {line}", file=sys.stderr)
    if "--json" in sys.argv:
        print(json.dumps({"error": line}))
    return 2
