"""Photograph the page of `tempera serve` over two small runs on made-up data: `python
docs/_screens.py [FOLDER]`.

The runs are trained in FOLDER, or a temporary folder; what is there already is taken. It needs
Chromium and a few minutes.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).parents[1]
PICTURES = Path(__file__).with_name("pictures")
PORT = 8347
COLOURS = 128
SEARCH = f"#q={quote('my telly KV-822 is stuck')}&k=5"
RECOMMEND = "#run=shop&user=C0037&k=5"


@dataclass(frozen=True)
class Screen:
    """A picture of the page."""

    place: str  # behind the address of the page
    width: int
    height: int
    scheme: str  # light or dark
    reasons: tuple[int, ...] = ()  # columns of which the first hit is explained


SCREENS = {
    "page_search": Screen(SEARCH, 1200, 860, "light"),
    "page_why": Screen(SEARCH, 1200, 1120, "dark", (0, 1, 2)),
    "page_recommend": Screen(RECOMMEND, 1200, 820, "light", (0,)),
    "page_narrow": Screen(SEARCH, 400, 820, "light"),
    "page_narrow_why": Screen(SEARCH, 400, 820, "dark", (0,)),
    "page_narrow_recommend": Screen(RECOMMEND, 400, 820, "dark"),
}


def example(name: str) -> Any:
    """Return a script of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_questions(path: Path) -> None:
    """Write the questions and answers of the tutorial with a link, a product and a year."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["question", "answer", "link", "product", "year"])
        for question, answer in example("make_questions").pairs(1152, 0):
            (model,) = re.findall(r"\b[A-Z]{2}-\d{3}\b", answer)
            product = re.search(rf"(\w+ \w+) {model}", answer)
            assert product is not None
            link = f"https://help.example.org/{model}/{len(answer)}"
            table.writerow([question, answer, link, product[1], 2015 + int(model[3:]) % 10])


def tempera(folder: Path, *arguments: str) -> None:
    """Run a command of Tempera in a folder."""
    subprocess.run([sys.executable, "-m", "tempera", *arguments], cwd=folder, check=True)


def make_runs(folder: Path) -> None:
    """Train both runs, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "runs" / "faq").exists():
        write_questions(folder / "faq.csv")
        tempera(folder, "train", "faq.csv")
        tempera(folder, "calibrate", "runs/faq")
    if not (folder / "runs" / "shop").exists():
        script = ROOT / "examples" / "make_shop.py"
        subprocess.run([sys.executable, str(script), "shop"], cwd=folder, check=True)
        tempera(folder, "train", "shop")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve both runs; the address of the page."""
    command = [sys.executable, "-m", "tempera", "serve", "runs/faq", "runs/shop"]
    with subprocess.Popen([*command, "--port", str(PORT)], cwd=folder) as process:
        try:
            address = f"http://127.0.0.1:{PORT}/"
            latest = monotonic() + 120
            while not is_ready(address):
                assert process.poll() is None and monotonic() < latest, "the server does not start"
                sleep(0.2)
            yield address
        finally:
            process.terminate()


def is_ready(address: str) -> bool:
    """Return True if a server answers there."""
    try:
        with urllib.request.urlopen(f"{address}readyz", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def photographed(browser: Any, address: str, screen: Screen) -> bytes:
    """Return the picture of a screen as PNG with few colours."""
    from PIL import Image

    page = browser.new_page(
        viewport={"width": screen.width, "height": screen.height},
        color_scheme=screen.scheme,
        reduced_motion="reduce",
    )
    page.goto(f"{address}{screen.place}")
    page.locator(".hit").first.wait_for()
    page.wait_for_load_state("networkidle")
    # A second time, for the latency of a server that is warm.
    page.reload()
    page.wait_for_load_state("networkidle")
    for position in screen.reasons:
        hit = page.locator(".column:not(.past)").nth(position).locator(".hit").first
        hit.get_by_role("button", name="Why").click()
        hit.locator("table").first.wait_for()
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    picture = Image.open(io.BytesIO(page.screenshot()))
    page.close()
    small = io.BytesIO()
    picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(
        small, "PNG", optimize=True
    )
    return small.getvalue()


def draw(folder: Path) -> None:
    """Write all pictures."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)))
    make_runs(folder)
    with served(folder) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, screen in SCREENS.items():
            content = photographed(browser, address, screen)
            (PICTURES / f"{name}.png").write_bytes(content)
            print(f"{name}.png: {len(content) / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        draw(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            draw(Path(temporary))
