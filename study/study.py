"""Run the study of docs/study.md: the sweeps of parts.yaml, their records, and the page.

    python study/study.py                      everything, overnight on two cores
    python study/study.py --quick              a small study, under ten minutes on two cores; needs no data
    python study/study.py code_batch ...       some parts
    python study/study.py --seeds 1            the first seed of every point; later seeds are added by the same command
    python study/study.py --page               write the page and pictures from the records, without running anything

Each part is a `tempera sweep` in a separate process with one thread, as many at once as there are
cores. If the study is interrupted, the same command resumes it: finished runs stay in runs/study.
Parts without their data are skipped and listed; TEMPERA_DATA is the folder of the data. The study
writes study/results/*.json, docs/study/*.svg and the tables of docs/study.md, which come from the
records alone; the small study writes the same page to runs/study/quick/study.md.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import string
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any

import _page
import _record
import yaml

from tempera.core.similarity import cosine
from tempera.options import yaml_options as configuration
from tempera.options.build import build

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
RUNS = HERE.parent / "runs" / "study"
SEEDS = 3


@dataclass(frozen=True)
class Part:
    """One sweep of the study."""

    name: str
    size: str  # full or quick
    title: str
    config: str
    set: Sequence[str]
    over: Sequence[str]
    seeds: int = SEEDS
    learned: Sequence[float] = ()
    scheduled: Sequence[Sequence[float]] = ()

    @property
    def folder(self) -> Path:
        """Return the folder of its runs."""
        return RUNS / self.size / self.name

    @property
    def absent(self) -> list[str]:
        """Return its missing data."""
        if "TEMPERA_DATA" not in os.environ:
            return [text for text in self.set if "$TEMPERA_DATA" in text]
        paths = [
            placed(text.partition("=")[2]) for text in self.set if text.startswith("data.path=")
        ]
        return [path for path in paths if not Path(path).exists()]

    @property
    def about(self) -> dict[str, Any]:
        """Return facts for its record: the title, the size, the batch size, and whether vectors are
        normalised."""
        path = HERE / "configs" / f"{self.config}.yaml"
        built = build(configuration.of(path, [placed(text) for text in self.set]))
        return {
            "title": self.title,
            "size": self.size,
            "batch": built.train.batch_size,
            "cosine": built.similarity is cosine,
        }

    def command(self, seeds: int) -> list[str]:
        """Return the command, without the paths of this machine."""
        arguments = [f"study/configs/{self.config}.yaml", *self.set]
        arguments += [text for option in self.over for text in ("--over", option)]
        if self.learned:
            arguments += ["--learned", ",".join(f"{value:g}" for value in self.learned)]
        if self.scheduled:
            arguments += [
                "--scheduled",
                ",".join(f"{first:g}:{last:g}" for first, last in self.scheduled),
            ]
        output = f"runs/study/{self.size}/{self.name}"
        return [
            "tempera",
            "sweep",
            *arguments,
            "--seeds",
            str(min(seeds, self.seeds)),
            "--output",
            output,
        ]


@dataclass(frozen=True)
class Places:
    """The output paths of a study."""

    records: Path
    page: Path
    figures: Path

    @classmethod
    def of(cls, quick: bool) -> Places:
        """Return the documentation's paths, or those of the small study among the runs."""
        if quick:
            return cls(
                RUNS / "quick" / "results", RUNS / "quick" / "study.md", RUNS / "quick" / "study"
            )
        return cls(HERE / "results", DOCS / "study.md", DOCS / "study")


def parts(quick: bool) -> list[Part]:
    """Return all parts, full or quick."""
    planned: dict[str, dict[str, Any]] = yaml.safe_load(
        (HERE / "parts.yaml").read_text(encoding="utf-8")
    )
    made = []
    for name, options in planned.items():
        small = options.pop("quick", None)
        if not quick:
            made.append(Part(name, "full", **options))
        elif small is not None:
            made.append(Part(name, "quick", **{**options, **small}))
    return made


def placed(text: str) -> str:
    """Return the text with the paths of this machine."""
    return string.Template(text).safe_substitute(os.environ, STDLIB=sysconfig.get_path("stdlib"))


def run(part: Part, seeds: int, places: Places) -> None:
    """Run a part's sweep, or the missing rest of it, and write its record and picture."""
    command = part.command(seeds)
    print(f"{part.name}: {shlex.join(command)}", flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    log = part.folder.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # held by a sweep whose study was killed; wait for it
        done = subprocess.run(
            [sys.executable, "-m", *map(placed, command)],
            cwd=HERE.parent,
            env=environment,
            stdout=file,
            stderr=file,
        )
    if done.returncode:
        raise SystemExit(f"{part.name} ended with {done.returncode}: see {log}")
    about = {**part.about, "command": shlex.join(command)}
    _record.write(
        places.records / f"{part.name}.json", _record.record(part.folder, part.over, about)
    )
    places.figures.mkdir(parents=True, exist_ok=True)
    copyfile(part.folder / "sweep.svg", places.figures / f"{part.name}.svg")
    print(f"{part.name}: done", flush=True)


def write_page(places: Places, planned: Sequence[Part]) -> None:
    """Write the page and its picture from the existing records."""
    titles = {part.name: part.title for part in planned}
    paths = [places.records / f"{name}.json" for name in titles]
    records = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()
    }
    _page.write(places.page, DOCS / "study.md", places.figures, records, titles)
    print(f"page: {places.page}, of {len(records)} of {len(titles)} parts")


def main() -> None:
    """Run the study and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="PART")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    places, planned = Places.of(arguments.quick), parts(arguments.quick)
    if unknown := set(arguments.names) - {part.name for part in planned}:
        parser.error(
            f"no part {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in planned)}"
        )
    chosen = [part for part in planned if not arguments.names or part.name in arguments.names]
    for part in chosen:
        if part.absent and not arguments.page:
            print(f"SKIPPED {part.name}: no {', '.join(part.absent)}", flush=True)
    if not arguments.page:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(
                pool.map(
                    lambda part: run(part, arguments.seeds, places),
                    [part for part in chosen if not part.absent],
                )
            )
    write_page(places, planned)


if __name__ == "__main__":
    main()
