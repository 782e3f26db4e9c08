"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, NoReturn

import typer

from .. import __version__
from ..errors import TemperaError
from ..io.console import bar_class
from ..io.signals import heard_signals
from .adding import add_documents
from .distilling import distill
from .encoding_corpora import encode
from .laboratory import calibrate, learn, sweep, tune
from .models import check, evaluate, export, merge, mine
from .planning import plan
from .recommending import add_events, add_items, recommend
from .searching import search
from .serving import mcp, serve
from .shared import Command, Configured
from .training import train, verify

COMMANDS: tuple[Callable[..., None], ...] = (
    train,
    distill,
    search,
    add_documents,
    encode,
    evaluate,
    recommend,
    add_items,
    serve,
    mcp,
    add_events,
    mine,
    merge,
    calibrate,
    sweep,
    tune,
    learn,
    export,
    check,
    plan,
    verify,
)
# Former names of commands, and of their options, which are refused with the present one.
RENAMED = {
    "eval": "evaluate",
    "mine --share": "--relative-margin, which is 1 - share",
    "tune --workers": "--jobs",
}
# Commands that resume an interrupted run.
RESUMED = ("train", "distill", "encode", "sweep", "tune", "learn")
# Options of every command.
EVERYWHERE = ("--quiet", "-q", "--verbose", "-v", "--no-progress", "--version")


class Lines(logging.Handler):
    """Print messages as plain lines on standard error, above the progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        bar_class().write(self.format(record), file=sys.stderr)


def print_version(wanted: bool) -> None:
    """Print the version and exit, if --version is given."""
    if wanted:
        print(f"tempera {__version__}")
        raise typer.Exit


def common(
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show the result, warnings and errors only.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show details, and tracebacks of errors.")
    ] = False,
    no_progress: Annotated[
        bool, typer.Option("--no-progress", help="Show no progress bars.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Contrastive training of retrieval models (bi-encoders, two-towers), with first-class
    temperature tuning."""
    logger = logging.getLogger("tempera")
    logger.handlers = [Lines()]
    if quiet:
        logger.setLevel(logging.WARNING)
    elif verbose:
        logger.setLevel(logging.DEBUG)
    else:
        logger.setLevel(logging.INFO)
    if quiet or no_progress:
        os.environ["TQDM_DISABLE"] = "1"


def application(commands: Iterable[Callable[..., None]]) -> typer.Typer:
    """Return the command line with some commands."""
    whole = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    whole.callback()(common)
    for command in commands:
        kind = Configured if command is train else Command
        whole.command(_name(command), cls=kind)(command)
    return whole


def _name(command: Callable[..., None]) -> str:
    return command.__name__.replace("_", "-")


app = application(COMMANDS)


def main() -> None:
    """Run a command; a mistake of the user is one line on standard error and exit code 2."""
    # Spinning threads slow a shared machine down by up to 20x; this has to be set before torch is
    # loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signals: list[int] = []

    def stop(number: int, _: object) -> NoReturn:
        """Stop through every `finally`, so that no half-written folder stays.

        The exit code is 130 for Ctrl-C and 143 for SIGTERM.
        """
        signals.append(number)
        sys.exit(128 + number)

    for number in heard_signals():
        signal.signal(number, stop)
    try:
        arguments = _arguments(sys.argv[1:]) or ["--help"]
        # Reading the options of all commands takes longer than some searches.
        alone = [command for command in COMMANDS if _name(command) == _command(arguments)]
        whole = application(alone) if alone else app
        code = whole(arguments, standalone_mode=False)
    except typer.Exit as end:
        code = end.exit_code
    except (Exception, SystemExit) as error:
        # Python 3.11 turns a SystemExit into a RuntimeError while a class is made.
        if signals:
            print(f"tempera: {_stopped(signals[0], sys.argv[1:])}", file=sys.stderr)
            code = 128 + signals[0]
        elif isinstance(error, SystemExit):
            raise
        else:
            logging.getLogger("tempera").debug("traceback of the error", exc_info=error)
            code = _fail(error)
    sys.exit(code or 0)


def _stopped(number: int, arguments: list[str]) -> str:
    """Return the last line of a command that a signal has stopped, with the command to resume.

    >>> _stopped(15, ["train", "my pairs.jsonl", "--overwrite"])
    "stopped by SIGTERM; the same command resumes: tempera train 'my pairs.jsonl' --overwrite"
    >>> _stopped(15, ["search", "runs/a", "tables"])
    'stopped by SIGTERM'
    """
    line = f"stopped by {signal.Signals(number).name}"
    if _command(arguments) in RESUMED:
        line += f"; the same command resumes: {shlex.join(['tempera', *arguments])}"
    return line


def _command(arguments: list[str]) -> str:
    """Return the name of the command among the arguments, empty without a command."""
    for argument in arguments:
        if not argument.startswith("-"):
            return argument
    return ""


def _arguments(arguments: list[str]) -> list[str]:
    """Return the arguments with the options of every command first, where they are parsed.

    Nothing after `--` is an option.

    Raises:
        TemperaError: a former name of a command or an option.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    command = _command(arguments[:end])
    if command in RENAMED:
        raise TemperaError(f"{command} is now called {RENAMED[command]}")
    for argument in arguments[:end]:
        option = argument.partition("=")[0]
        new = RENAMED.get(f"{command} {option}")
        if new is not None:
            raise TemperaError(f"{option} is now called {new}")
    everywhere = [argument for argument in arguments[:end] if argument in EVERYWHERE]
    rest = [argument for argument in arguments[:end] if argument not in EVERYWHERE]
    return everywhere + rest + arguments[end:]


def _fail(error: Exception) -> int:
    """Print an error in one line, and return the exit code.

    The exit code is 2 for a mistake of the user, and 1 for a fault of Tempera.
    """
    format_message = getattr(error, "format_message", None)  # of an error of typer
    text = str(error) if format_message is None else format_message()
    if not text:
        text = "out of memory" if isinstance(error, MemoryError) else "no message"
    mistake = format_message is not None or isinstance(error, TemperaError | OSError | MemoryError)
    if not mistake:
        text = f"unexpected {type(error).__name__}: {text} (--verbose shows where)"
    line = " ".join(text.split())
    print(f"tempera: {line}", file=sys.stderr)
    if "--json" in sys.argv:
        print(json.dumps({"error": line}))
    return 2 if mistake else 1
