"""Examples in the documentation run, and print what it says they print."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def test_the_diagnosis_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "objective.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(compile(example, "objective.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    for line in printed:
        assert f"    {line}\n" in page


def test_every_preset_is_on_the_page() -> None:
    from tempera.core.presets import PRESETS

    page = (DOCS / "objective.md").read_text(encoding="utf-8")
    for preset in PRESETS:
        assert f"`{preset.__name__}`" in page
