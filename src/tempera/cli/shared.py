"""Arguments and output shared by commands."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..errors import DataError, OutputError, TemperaError, one_line
from .options import described, lines, meant

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DATA|CONFIG.yaml|SECTION.OPTION=VALUE",
        help="Data, such as pairs.csv or a folder, or a configuration file; and options, such as data.query=question; "
        "`tempera train --help` lists them.",
    ),
]
Count = Annotated[int, typer.Option(min=1)]
Output = Annotated[Path, typer.Option("--output", "-o")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output instead of text.")
]

_ID = re.compile(r'\s*(?:"((?:[^"]|"")*)"\s*|([^,\n]*))(?:[,\n]|$)')  # in quotes, or plain


def split(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """Return the data or the configuration file, None without either, and the overrides."""
    files, overrides = sorted_out(arguments)
    if len(files) > 1:
        raise TemperaError(
            f"give data or one configuration file, not {len(files)} files: {', '.join(files)}"
        )
    return (Path(files[0]) if files else None), overrides


def sorted_out(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the paths and the overrides; an existing path with a = in the name is a path."""
    paths = []
    overrides = []
    for argument in arguments:
        if "=" not in argument or os.path.exists(argument):
            paths.append(argument)
        else:
            overrides.append(argument)
    return paths, overrides


def with_roles(arguments: list[str]) -> tuple[list[Path], Any]:
    """Return the paths, and the roles of the tables' columns by `data.ROLE=COLUMN`; None without
    any."""
    from ..options.build import build_roles
    from ..options.yaml_options import load

    overrides = sorted_out(arguments)[1]
    options = [override for override in overrides if override.startswith("data.")]
    paths = [Path(argument) for argument in arguments if argument not in options]
    if not paths:
        raise TemperaError(f"give a table of pairs or a BEIR folder with {options[0]}")
    return paths, build_roles(load(None, options))


def one_with_roles(arguments: list[str]) -> tuple[Path, Any]:
    """Return the path and the roles of the table's columns, for a command with a single path."""
    paths, roles = with_roles(arguments)
    if len(paths) != 1:
        raise TemperaError(f"give one table of pairs or BEIR folder, not {len(paths)}")
    return paths[0], roles


def refuse_split(split: str, usual: str, *paths: Path | None) -> None:
    """Raise TemperaError if an unusual split is given, and none of the paths is a BEIR folder."""
    from ..forms.set_files import is_beir

    if split == usual:
        return
    for path in paths:
        if path is not None and is_beir(path):
            return
    raise TemperaError("--split is of a BEIR folder: give one")


def refuse_absent(*models: Path | None) -> None:
    """Refuse missing folders of models and runs, before anything heavy is imported.

    Raises:
        DataError: the first missing folder.
    """
    for model in models:
        if model is not None and not model.exists():
            raise DataError(f"no such folder: {model}; give that of a run or of a saved model")


def ids_of(text: str) -> list[str]:
    """Return the ids between commas, without spaces around them; an id in double quotes keeps its
    spaces and commas.

    >>> ids_of('A, "B,1", " C ""D",')
    ['A', 'B,1', ' C "D']
    """
    names = []
    for quoted, plain in _ID.findall(text):
        name = quoted.replace('""', '"') or plain.strip()
        if name:
            names.append(name)
    return names


def say(text: str) -> None:
    """Print lines, with control characters escaped."""
    for line in text.split("\n"):
        print(one_line(line))


def with_picture(text: object, path: str) -> str:
    """Return a text and, if a picture was drawn, a line with the picture's path."""
    return f"{text}\npicture: {path}" if Path(path).is_file() else str(text)


def answer(document: Any, as_json: bool, show: Callable[[], Any]) -> None:
    """Print one JSON document, or call `show` to print the document for people.

    Raises:
        OutputError: standard output takes no more, as on a full disk; a reader's early end is no
            error.
    """
    try:
        if as_json:
            print(json.dumps(document, allow_nan=False))
        else:
            show()
        sys.stdout.flush()
    except OSError as error:
        # Python writes the rest once more when it exits.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(
                f"cannot write to standard output: {error.strerror or error}"
            ) from None


def _refuse_not_finite(option: Any, value: Any) -> None:
    """Raise TemperaError for NaN and infinity, not excluded by the limits of options."""
    numbers = value if isinstance(value, list | tuple) else [value]
    for number in numbers:
        if isinstance(number, float) and not math.isfinite(number):
            raise TemperaError(f"{option.opts[0]} is {number}; give a finite number")


class Command(TyperCommand):
    """A command with options named after the parameters of a function, and explained by the `Args:`
    of the function."""

    def __init__(self, *arguments: Any, help: str, params: list[Any], **options: Any) -> None:
        summary = help.partition("\n\nArgs:\n")[0]
        super().__init__(*arguments, help=summary, params=params, **options)
        texts = described(help)
        for parameter in params:
            text = texts.get(parameter.name, parameter.help)
            parameter.help = text[:1].upper() + text[1:]
            parameter.metavar = parameter.metavar or parameter.name.split("_")[-1].upper()
            if parameter.default is False:
                parameter.secondary_opts = []  # a switch that is off has no --no-...

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; the error about a wrong value of an option names the value.

        Raises:
            TemperaError: a switch and its opposite, a number that is not finite, or an option of a
                configuration written like an option of the command.
        """
        for parameter in self.params:
            on = [name for name in parameter.opts if name in args]
            off = [name for name in parameter.secondary_opts if name in args]
            if on and off:
                raise TemperaError(f"{on[0]} and {off[0]} contradict each other: give one of them")
        parts: list[str] = []  # --name=value becomes --name, value
        for argument in args:
            parts.extend(argument.split("=", 1))
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            names = error.param.opts if error.param else ()
            values = [after for name, after in pairwise(parts) if name in names]
            if values:
                error.message = f"{values[-1]} was given. {error.message}"
            raise
        except Exception as error:
            advice = self._advice(error, parts)
            if not advice:
                raise
            message = error.format_message()  # type: ignore[attr-defined]
            raise TemperaError(
                f"{message}; options of a configuration are written {advice}"
            ) from None
        for parameter in self.params:
            _refuse_not_finite(parameter, ctx.params.get(parameter.name))
        return rest

    def _advice(self, error: Exception, parts: list[str]) -> str:
        """Return advice on an unknown option: the probably meant options of a configuration, in the
        right spelling; empty without an unknown option, or without a configuration.

        Args:
            parts: arguments, with names and values apart.
        """
        takes_options = any("SECTION.OPTION" in (each.metavar or "") for each in self.params)
        known = getattr(error, "possibilities", None)  # only the error of an unknown option has it
        if not takes_options or known is None:
            return ""
        name = getattr(error, "option_name", "")
        if not name or any(option.startswith(name) for option in known):
            return ""  # an option of the command, cut short
        value = "VALUE"
        for part, after in pairwise([*parts, ""]):
            if part == name and not after.startswith("--"):
                value = after or value
                break
        return " or ".join(f"{option}={value}" for option in meant(name))


class Configured(Command):
    """A command with every option of a configuration at the end of the help."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the options below the help."""
        formatter.write(
            "\nOptions of a configuration (--print-config shows all of them with their values):\n"
        )
        formatter.write("\n".join([*lines(), ""]))
