"""The face of the package: everything that a user's script can name. `python docs/_face.py` adds
what is new to `tests/frozen/face.json`; with `--remove` it also drops what is gone."""

from __future__ import annotations

import inspect
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

import tempera
from tempera import errors
from tempera.cli import app
from tempera.options import known
from tempera.server import openapi

FILE = Path(__file__).parents[1] / "tests" / "frozen" / "face.json"
Face = dict[str, list[str]]
Ask = Callable[..., Any]  # the words of a command to its JSON document
NUMBERED = 12  # items of the shop
TOOLS = ("kettle", "toaster", "lamp", "radio", "clock", "heater", "mixer", "fan", "scale", "drill")
ACTIONS = {"clean": "wipe", "repair": "open", "move": "lift", "store": "pack", "start": "press"}
SMALL = ("recipe=none", "tower.dimensions=8", "train.batch_size=16", "train.max_steps=12")


def face(folder: Path, ask: Ask) -> Face:
    """Return all names of the package, by kind; each list is sorted.

    Args:
        folder: an empty folder, for two small runs.
        ask: runs a command of `tempera` in any way, and returns the JSON document on its output.
    """
    answers = answers_of_small_runs(folder, ask)
    run_files = []
    for name in ("text", "shop"):
        for path in (folder / name).rglob("*"):
            if path.is_file():
                run_files.append(f"{name}/{path.relative_to(folder / name).as_posix()}")
    json_keys = set()
    for name, answer in answers.items():
        for key in keys(answer):
            json_keys.add(f"{name} {key}")
    names: dict[str, Iterator[str] | list[str] | set[str]] = {
        "commands": commands(),
        "options": options(),
        "python": python_names(),
        "http": http_names(),
        "run folder": run_files,
        "json": json_keys,
    }
    return {kind: sorted(set(entries)) for kind, entries in names.items()}


def commands() -> Iterator[str]:
    """Yield every command, with each of its arguments and flags."""
    every: Any = vars(typer.main.get_command(app))["commands"]
    for name, command in every.items():
        yield name
        for field in command.params:
            if field.param_type_name == "argument":
                yield f"{name} {field.name.upper()}"
            else:
                for flag in (*field.opts, *field.secondary_opts):
                    yield f"{name} {flag}"


def options() -> Iterator[str]:
    """Yield every option of a configuration, behind the title of its group."""
    for group in known.groups():
        for option in group.options:
            yield f"{group.title}: {option.name}"


def python_names() -> Iterator[str]:
    """Yield every public name of the package and of its classes, and each parameter in its place.

    An entry such as `Run.search 1 query` is the first parameter, which has no default;
    `Run.search 2 k=` has one, and `*` stands in place of the number of a parameter that is given by
    name alone.
    """
    homes: dict[str, Any] = {}
    for name in tempera.__all__:
        homes[name] = getattr(tempera, name)
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.TemperaError):
            homes[f"errors.{name}"] = value
    for name, value in vars(tempera.pools).items():
        if getattr(value, "__module__", "") == tempera.pools.__name__ and not name.startswith("_"):
            homes[f"pools.{name}"] = value
    for name, value in homes.items():
        yield name
        if inspect.isclass(value):
            yield from _members(name, value)
        if callable(value):
            yield from _parameters(name, value)


def http_names() -> Iterator[str]:
    """Yield every path of the server with its methods, and every field of its bodies."""
    document = openapi.document()
    for path, methods in document["paths"].items():
        for method in methods:
            yield f"{method.upper()} {path}"
    for name, schema in document["components"]["schemas"].items():
        for field in schema.get("properties", {}):
            yield f"{name}.{field}"


def _members(name: str, kind: type) -> Iterator[str]:
    """Yield the public attributes, properties and methods that a class has from this package."""
    for home in kind.__mro__:
        if not home.__module__.startswith("tempera"):
            continue
        for attribute in inspect.get_annotations(home):
            if not attribute.startswith("_"):
                yield f"{name}.{attribute}"
        for attribute, value in vars(home).items():
            if attribute.startswith("_"):
                continue
            yield f"{name}.{attribute}"
            if isinstance(value, staticmethod | classmethod) or inspect.isfunction(value):
                yield from _parameters(f"{name}.{attribute}", getattr(kind, attribute))


def _parameters(name: str, value: Callable[..., Any]) -> Iterator[str]:
    """Yield the parameters of a function, in their places."""
    place = 0
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name == "self":
            continue
        default = "" if parameter.default is parameter.empty else "="
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield f"{name} *{parameter.name}"
        elif parameter.kind is parameter.VAR_KEYWORD:
            yield f"{name} **{parameter.name}"
        elif parameter.kind is parameter.KEYWORD_ONLY:
            yield f"{name} * {parameter.name}{default}"
        else:
            place += 1
            yield f"{name} {place} {parameter.name}{default}"


def keys(document: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every key of a JSON document; [] is an element of a list."""
    if isinstance(document, list):
        for element in document:
            yield from keys(element, f"{path}[]")
    elif isinstance(document, dict):
        for key, value in document.items():
            # Names of metrics are listed once, and stand for each other elsewhere.
            name = "METRIC" if "@" in key and "metrics." not in f".{path}." else key
            if Path(key).is_absolute():
                name = "MODEL"
            inner = f"{path}.{name}" if path else name
            yield inner
            # The options are frozen in their own list, and other keys of these are of the data.
            if key not in ("config", "options", "kept"):
                yield from keys(value, inner)


def answers_of_small_runs(folder: Path, ask: Ask) -> dict[str, Any]:
    """Train a small static model and a small recommender in a folder, and return the answers of
    each command."""
    questions, visits = write_data(folder)
    text, shop = folder / "text", folder / "shop"
    held_out = ("evaluation.queries=12", "evaluation.validation=0")
    last = ("data.split=leave_last_out",)
    query = "how do I clean the kettle?"
    return {
        "train text": ask("train", questions, *SMALL, *held_out, "--output", text),
        "train recommender": ask("train", visits, *SMALL, *last, "--output", shop),
        "search": ask("search", text, query, "-k", 3),
        "search --hybrid": ask("search", text, query, "-k", 3, "--hybrid"),
        "search --explain": ask("search", text, query, "-k", 3, "--explain"),
        "evaluate text": ask("evaluate", text, questions),
        "recommend": ask("recommend", shop, "--user", "u1", "-k", 3),
        "recommend --explain": ask("recommend", shop, "--user", "u1", "-k", 3, "--explain"),
        "metrics.json text": json.loads((text / "metrics.json").read_text(encoding="utf-8")),
        "metrics.json recommender": json.loads((shop / "metrics.json").read_text("utf-8")),
    }


def write_data(folder: Path) -> tuple[Path, Path]:
    """Write 50 questions with answers, and 144 visits of 24 users to 12 items."""
    rows = []
    for tool in TOOLS:
        for action, way in ACTIONS.items():
            question = f"how do I {action} the {tool}?"
            rows.append({"query": question, "doc": f"To {action} the {tool}, {way} it gently."})
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    draw = random.Random(1)
    lines = ["user,item,time"]
    for user in range(24):
        start = draw.randrange(NUMBERED)
        for step in range(6):
            lines.append(f"u{user},i{(start + step) % NUMBERED},{step}")
    visits = folder / "visits.csv"
    visits.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return questions, visits


def asked(*words: object) -> Any:
    """Run a command in a process of its own, and return its JSON document."""
    command = [sys.executable, "-m", "tempera", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def differences(frozen: Face, current: Face) -> tuple[list[str], list[str]]:
    """Return the entries that are gone and the entries that are new, each behind its kind.

    >>> differences({"commands": ["train", "go"]}, {"commands": ["run", "train"]})
    (['commands: go'], ['commands: run'])
    """
    gone, new = [], []
    for kind in {**frozen, **current}:
        old_names, names = frozen.get(kind, []), current.get(kind, [])
        gone += [f"{kind}: {name}" for name in old_names if name not in names]
        new += [f"{kind}: {name}" for name in names if name not in old_names]
    return gone, new


def main() -> None:
    """Write the list again, and print what was added and what is gone."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        current = face(Path(folder), asked)
    frozen = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    gone, new = differences(frozen, current)
    for name in gone:
        print("gone ", name)
    for name in new:
        print("new  ", name)
    if gone and "--remove" not in sys.argv:
        raise SystemExit(
            "nothing was written: old names are answered for two releases (docs/stability.md); "
            "after these, python docs/_face.py --remove drops them"
        )
    FILE.write_text(json.dumps(current, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
