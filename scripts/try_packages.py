"""Build the wheel and the sdist, and try both in empty environments: the core and each extra.

    python scripts/try_packages.py [--uv UV] [--python PYTHON] [--torch TORCH] [NAME ...]

Each environment is made by PYTHON (default: this one), installs the wheel with one
extra and TORCH (such as torch==2.13.0+cpu; default: what the index has), and runs what the extra
is for. The last environment has the extras that the README needs, and runs every
line of the README. Prints and writes to `dist/tried.json` the bytes of each environment and its
seconds. Needs the package `build`, and a package index for the dependencies.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import readme_lines

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
STEPS = "recipe=none train.max_steps=20 evaluation.queries=20"
SMALL = f"{STEPS} tower.dimensions=16"
TRAIN = f"tempera train pairs.csv {SMALL} --overwrite"
# What the core has to do, and what each extra has to do after a training.
CORE = (
    "tempera --version",
    'tempera search runs/pairs "how do I reset my password?"',
    "tempera evaluate runs/pairs pairs.csv",
    f"tempera train events.csv {SMALL} --overwrite",
    "tempera recommend runs/events --user 5",
    "tempera check runs/pairs",
)
TRIALS = {
    "core": CORE,
    "pictures": (
        "tempera calibrate runs/pairs pairs.csv",
        "test -f runs/pairs/model/calibration.svg",
    ),
    "text": (
        readme_lines.TRANSFORMER,
        f"tempera train pairs.csv {STEPS} tower.kind=pretrained tower.model=tiny/model "
        "--output tuned",
    ),
    "trainer": ("python -c 'from tempera import ContrastiveLoss'",),
    "faiss": ("tempera export runs/pairs --to faiss",),
    "onnx": (
        "tempera export runs/pairs --to onnx",
        "tempera search runs/pairs x --onnx runs/pairs/export/onnx",
    ),
    "lora": (
        readme_lines.TRANSFORMER,
        f"tempera train pairs.csv {STEPS} tower.kind=pretrained tower.model=tiny/model "
        "tower.lora.rank=2 --output adapted",
    ),
    "tune": (
        "echo 'objective.temperature: 0.02:0.2:log' > space.yaml",
        f"tempera tune pairs.csv {SMALL} --space space.yaml --trials 2 --output tuned",
    ),
    "duckdb": (
        "sed 's/$/,en/; 1s/en$/language/' pairs.csv > kept.csv",
        f"tempera train kept.csv {SMALL} --output kept",
        "tempera search kept password --where \"language = 'en'\"",
    ),
    "serve": ("tempera serve runs/pairs",),
    "mcp": ("python -m tempera mcp runs/pairs < /dev/null",),
    "ray": ("tempera encode runs/pairs pairs.csv --text answer --output vectors --engine ray",),
    "mteb": ("tempera evaluate runs/pairs --mteb pairs.csv --hybrid",),
}


@dataclass(frozen=True)
class Trial:
    """An environment that was tried.

    Args:
        name: of the extra, or `core`, `sdist`, `readme`.
        python: version of Python.
        bytes: of all files of the installed packages.
        packages: number of installed packages.
        install_seconds: of the installation.
        run_seconds: of all commands.
    """

    name: str
    python: str
    bytes: int
    packages: int
    install_seconds: float
    run_seconds: float


def build() -> tuple[Path, Path]:
    """Return the wheel and the sdist of this checkout, built anew."""
    shutil.rmtree(DIST, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--outdir", DIST, ROOT]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = DIST.glob("*.whl")
    (sdist,) = DIST.glob("*.tar.gz")
    return wheel, sdist


def environment(folder: Path, python: str, packages: list[str], uv: str | None) -> Path:
    """Return the interpreter of a new environment that holds packages, and nothing else."""
    if uv:
        subprocess.run([uv, "venv", "--quiet", "--python", python, folder], check=True)
    else:
        subprocess.run([python, "-m", "venv", folder], check=True)
    interpreter = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [uv, "pip", "install", "--python", interpreter] if uv else [interpreter, "-m", "pip"]
    if not uv:
        pip.append("install")
    links = os.environ.get("PIP_FIND_LINKS")
    if uv and links:
        pip += ["--find-links", links]
    subprocess.run([*pip, "--quiet", *packages], check=True)
    return interpreter


def installed(interpreter: Path) -> tuple[int, int]:
    """Return the bytes of an environment's packages, and their number; without pip's own."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    folder = Path(subprocess.check_output([interpreter, "-c", code], text=True).strip())
    size = 0
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).parts[0] != "pip":
            size += path.stat().st_size
    return size, len([path for path in folder.glob("*.dist-info") if path.stem[:4] != "pip-"])


def run(line: str, interpreter: Path, folder: Path) -> None:
    """Run a line of a trial in a folder, with the environment's interpreter."""
    if line.startswith("tempera "):
        readme_lines.run_line(line, interpreter, folder)
        return
    line = line.replace("python ", f"{interpreter} ", 1) if line.startswith("python ") else line
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(line, shell=True, cwd=folder, env=variables, check=True)


def tried(name: str, packages: list[str], python: str, uv: str | None) -> Trial:
    """Return the result of a trial; SystemExit if a command fails."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        interpreter = environment(Path(folder) / "environment", python, packages, uv)
        install_seconds = time.monotonic() - begin
        size, count = installed(interpreter)
        version = subprocess.check_output([interpreter, "--version"], text=True).split()[1]
        begin = time.monotonic()
        if name == "readme":
            for line, seconds, reason in readme_lines.run_all(interpreter):
                print(f"    {seconds:6.1f} s  {line}  {reason}", flush=True)
        else:
            work = Path(folder) / "work"
            work.mkdir()
            readme_lines.write_data(work)
            for line in (TRAIN, *TRIALS.get(name, CORE)):
                run(line, interpreter, work)
        run_seconds = time.monotonic() - begin
    return Trial(name, version, size, count, install_seconds, run_seconds)


def main() -> None:
    """Try the packages, and print a row for each environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uv", help="uv's command, which installs faster than pip")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--torch", help="what to install beside the wheel, e.g. torch==2.13.0+cpu")
    every = [*TRIALS, "sdist", "readme"]
    parser.add_argument("names", nargs="*", default=every, help="which to try; default all")
    given = parser.parse_args()
    wheel, sdist = build()
    packages = {name: f"{wheel}[{name}]" for name in TRIALS}
    packages |= {"core": str(wheel), "sdist": str(sdist), "readme": f"{wheel}[text,serve]"}
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes; {sdist.name}: {sdist.stat().st_size:,}")
    trials = []
    for name in given.names:
        both = [packages[name], given.torch] if given.torch else [packages[name]]
        trial = tried(name, both, given.python, given.uv)
        trials.append(asdict(trial))
        print(
            f"{name:10} Python {trial.python}: {trial.bytes / 1e6:,.0f} MB in {trial.packages} "
            f"packages, installed in {trial.install_seconds:.0f} s, ran in "
            f"{trial.run_seconds:.0f} s",
            flush=True,
        )
        (DIST / "tried.json").write_text(json.dumps(trials, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
