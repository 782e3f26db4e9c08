"""What commands share: how they read what is given, and how they answer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import OutputError, TemperaError, one_line

Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG.yaml] [KEY=VALUE ...]", help="A configuration, and dotted overrides."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else there.")
]


def split(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """A configuration file, if one is given, and overrides."""
    files = [argument for argument in arguments if "=" not in argument]
    if len(files) > 1:
        raise TemperaError(f"one configuration is expected, and {len(files)} are given: {', '.join(files)}")
    return (Path(files[0]) if files else None), [argument for argument in arguments if "=" in argument]


def with_roles(arguments: list[str]) -> tuple[list[Path], Any]:
    """Paths, and the roles of their columns as options of a `data:` section; None without any."""
    from ..build import build_roles
    from ..config import load

    given = [argument for argument in arguments if argument.startswith("data.") and "=" in argument]
    paths = [Path(argument) for argument in arguments if argument not in given]
    if not paths:
        raise TemperaError(f"a table of pairs or a BEIR folder is expected, and there is only {given[0]}")
    return paths, build_roles(load(None, given))


def one_with_roles(arguments: list[str]) -> tuple[Path, Any]:
    """As `with_roles`, for a command that takes one path."""
    paths, roles = with_roles(arguments)
    if len(paths) != 1:
        raise TemperaError(f"one table of pairs or BEIR folder is expected, and {len(paths)} are given")
    return paths[0], roles


def say(text: str) -> None:
    """Print lines, with nothing that a terminal obeys."""
    print("\n".join(map(one_line, text.split("\n"))))


def answer(document: Any, as_json: bool, show: Callable[[], Any]) -> None:
    """Print one JSON document, or what `show` prints for people.

    Raises:
        OutputError: standard output takes no more, as on a full disk; a reader that has gone is no error.
    """
    try:
        if as_json:
            print(json.dumps(document, allow_nan=False))
        else:
            show()
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest once more at its end
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"cannot write to standard output: {error.strerror or error}") from None
