"""Run every line of the README that a reader could type: `python scripts/readme_lines.py PYTHON`.

PYTHON is the interpreter of an environment with the package and its extras `text` and `serve`. A
line runs in a folder of its own data, as it stands but for names in capitals. A line of a kind
that this script does not know fails, so that no line of the README is left untried unseen.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
# What a reader types, by its first words, and the reason not to run it here.
LEFT_OUT = {
    "git clone": "the checkout is here",
    "pip install": "scripts/try_packages.py installs the wheel",
    "python bench/": "a benchmark: make bench",
    "make": "the tests, the demo and the benchmarks have their own jobs",
}
PLACEHOLDERS = {  # names in capitals, and files of the folder in their place
    "PATH_OR_NAME": "tiny/model",
    "MODEL": "runs/faq/model",
    "INDEX": "runs/faq/index",
}
# A sweep of 60 runs would take longer than all other lines together.
SHORTER = {"0.005:1:log:20 --seeds 3": "0.02:0.2:log:2 --seeds 1"}
TRANSFORMER = (  # a model of a few seconds, in place of the one that a reader fine-tunes
    "tempera train pairs.csv recipe=none tower.kind=transformer tower.layers=1 tower.width=32 "
    "tower.heads=2 tower.vocabulary=200 tower.max_length=32 train.max_steps=4 --output tiny"
)


def typed_lines(page: str) -> Iterator[str]:
    """Yield the commands of a page in order: indented lines, and commands between backticks.

    >>> list(typed_lines("    pip install .  # all\\n| x | `tempera train a.csv`, then `b` |\\n"))
    ['pip install .', 'tempera train a.csv']
    """
    page = re.sub(r"```.*?```", "", page, flags=re.S)
    for line in page.splitlines():
        if line.startswith("    "):
            yield line.split("  #")[0].strip()
        else:
            for code in re.findall(r"`([^`]+)`", line):
                if re.match(r"(tempera \S+|make|pip|python|git) ", code):
                    yield code


def python_examples(page: str) -> list[str]:
    """Return the Python examples of a page."""
    return re.findall(r"```python\n(.*?)```", page, re.S)


def write_data(folder: Path) -> None:
    """Write what the README's reader has: pairs, a FAQ, a folder of texts, and events."""
    actions = "reset change find cancel download renew delete share print explain check move"
    topics = "password invoice delivery refund address subscription language warranty"
    (folder / "texts").mkdir()
    rows = []
    for action in actions.split():
        for topic in topics.split():
            answer = f"To {action} the {topic}, open {topic} and choose {action}."
            rows.append([f"how do I {action} my {topic}?", answer])
            text = f"{action.title()} the {topic}\n\n{answer} Then confirm the {action}."
            (folder / "texts" / f"{action}_{topic}.txt").write_text(text, encoding="utf-8")
    for name in ("pairs.csv", "faq.csv"):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([["question", "answer"], *rows])
    with (folder / "events.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["user", "item", "time"])
        for user in range(60):
            for step in range(8):
                table.writerow([user, (user * 7 + step * (1 + user % 3)) % 40, 86400 * step + user])


def run_server(line: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Start the server, ask it until it answers, and stop it."""
    command = [word for word in line if word != "--open"]
    server = subprocess.Popen([*command, "--port", "8765"], cwd=folder, env=environment)
    try:
        for _ in range(120):
            time.sleep(0.5)
            try:
                with urllib.request.urlopen("http://127.0.0.1:8765/readyz", timeout=5) as answer:
                    json.load(answer)
                return
            except OSError:
                if server.poll() is not None:
                    raise SystemExit(f"{shlex.join(command)} has ended") from None
        raise SystemExit(f"{shlex.join(command)}: did not answer within a minute")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


def run_line(line: str, python: Path, folder: Path) -> str:
    """Run a line, and return the reason if it was left out; else an empty text."""
    for beginning, reason in LEFT_OUT.items():
        if line.startswith(beginning):
            return reason
    for long, short in SHORTER.items():
        line = line.replace(long, short)
    for name, path in PLACEHOLDERS.items():
        line = re.sub(rf"=\b{name}\b", f"={path}", line)
    words = shlex.split(line)
    if words[0] != "tempera":
        raise SystemExit(f"{line}: not a line that {Path(__file__).name} knows how to run")
    command = [str(python), "-m", *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["HF_HUB_OFFLINE"] = "1"
    if words[1] == "serve":
        run_server(command, folder, environment)
        return ""
    if words[1] in ("train", "sweep") and "--output" not in words:
        command.append("--overwrite")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{line}\n{done.stdout}{done.stderr}")
    return ""


def run_all(python: Path) -> list[tuple[str, float, str]]:
    """Run the README, and return each line with its seconds and the reason if it was left out."""
    page = README.read_text(encoding="utf-8")
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        run_line(TRANSFORMER, python, folder)
        for line in typed_lines(page):
            begin = time.monotonic()
            reason = run_line(line, python, folder)
            results.append((line, time.monotonic() - begin, reason))
        for example in python_examples(page):
            begin = time.monotonic()
            subprocess.run([python, "-c", example], cwd=folder, check=True, capture_output=True)
            first = example.strip().splitlines()[0]
            results.append((f"python: {first} ...", time.monotonic() - begin, ""))
    return results


def main() -> None:
    """Print the lines of the README, each with its seconds or the reason to leave it out."""
    for line, seconds, reason in run_all(Path(sys.argv[1]).absolute()):
        print(
            f"{'-' if reason else f'{seconds:.1f} s':>8}  {line}{f'  ({reason})' if reason else ''}"
        )


if __name__ == "__main__":
    main()
