"""Run tests on the lowest version of every dependency, or on the highest: `python
scripts/run_lowest.py --uv UV [--python 3.11] [--highest] [PYTEST ARGUMENT ...]`.

uv resolves the versions (`--resolution lowest-direct`: the bounds of pyproject.toml, and the newest
of what these need) and installs them into `.venv-lowest` or `.venv-highest`; then pytest runs there.
A whole suite that is green shows that the bounds are true.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Resolve, install, and run the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uv", default="uv")
    parser.add_argument("--python", default="3.11")
    parser.add_argument("--highest", action="store_true")
    parser.add_argument("--extra", action="append", help="default: dev, which has every extra")
    given, arguments = parser.parse_known_args()
    name = "highest" if given.highest else "lowest"
    folder = ROOT / f".venv-{name}"
    versions = folder / "versions.txt"
    links = ["--find-links", os.environ["PIP_FIND_LINKS"]] if "PIP_FIND_LINKS" in os.environ else []
    create = [given.uv, "venv", "--quiet", "--allow-existing", "--python", given.python, folder]
    subprocess.run(create, check=True)
    resolution = "highest" if given.highest else "lowest-direct"
    extras = [f"--extra={extra}" for extra in given.extra or ["dev"]]
    compiling = [given.uv, "pip", "compile", "--quiet", "--only-binary", ":all:", *links, *extras]
    compiling += ["--resolution", resolution, "--python-version", given.python]
    subprocess.run([*compiling, "--output-file", versions, ROOT / "pyproject.toml"], check=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = [given.uv, "pip", "install", "--quiet", "--python", python, *links]
    tests = ["pytest>=8.2", "pytest-timeout>=2.4", "pytest-xdist>=3.7", "hypothesis>=6.120"]
    subprocess.run([*install, "--requirement", versions, *tests], check=True)
    subprocess.run([*install, "--no-deps", "--editable", ROOT], check=True)
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    sys.exit(subprocess.run(command, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
