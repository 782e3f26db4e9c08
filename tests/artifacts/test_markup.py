"""What users write is text on every page: titles, queries and ids with markup, scripts and escapes
in them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from tempera.artifacts.card import Card, render_card
from tempera.artifacts.report import RunReport, render
from tempera.ranking.compare import Difference
from tempera.ranking.spread import Spread
from tempera.recommender.recommender import Found, Recommendations
from tempera.task.showcase import Example, Hit
from tempera.text.judge.text_showcase import TEXTS

# A copy whose files may be changed, as of an earlier version: without their checksums.
UNCOMPARED = shutil.ignore_patterns("tempera-manifest.json")

MARKUP = (
    "<script>document.title='taken'</script>",
    '"><img src=x onerror="document.title=\'taken\'">',
    "'><svg/onload=document.title='taken'>",
    "</pre></code></title></style><iframe src=javascript:alert(1)></iframe><h1>",
    "{{ 7 * 7 }}{% for x in y %}{# c #}",
    "<!-- a --><![CDATA[ b ]]>&lt;b&gt;&amp;",
    "a|b `c` [d](javascript:e) *f* # g\n---\nlicense: h\n```\n<i>",
    "\x1b[31mred\x1b]0;title\x07\x08\x7f\u202e\u2028\0",
)
NASTY = " ".join(MARKUP)


def report(text: str) -> RunReport:
    """A page with one text wherever users' texts stand."""
    noise = np.random.default_rng(0).normal(0, 0.1, (2, 20)).astype(np.float32)
    hits = (Hit(text, text, 0.9, True), Hit(text, text, 0.8, False))
    log: list[dict[str, Any]] = [
        {
            "event": "step",
            "step": i,
            "loss": 1.0,
            "temperature": 0.1,
            "learning_rate": 0.1,
            "grad_norm": 1.0,
        }
        for i in (1, 2)
    ]
    return RunReport(
        facts={"source": text, "pairs": text},
        systems={"bm25": {"ndcg@10": 0.3}, "trained": {"ndcg@10": 0.4}},
        difference=Difference(0.1, 0.05, 0.2, 0.95),
        log=log,
        spreads={"trained": Spread(noise[0] + np.float32(0.5), noise[1])},
        examples=(Example(text, (text, text), hits, 4, 1),),
        config=f"data:\n  path: {text}\n",
        subject=replace(TEXTS, report_title=text),
    )


class Elements(HTMLParser):
    """Every element with the names of its attributes, and all comments and declarations."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[Any] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, sorted(name for name, _ in attrs)))

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", data))

    def handle_decl(self, decl: str) -> None:
        self.found.append(("declaration", decl))

    def unknown_decl(self, data: str) -> None:
        self.found.append(("declaration", data))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", [*MARKUP, NASTY[:290]])
def test_a_page_has_the_elements_of_its_template_only(text: str) -> None:
    plain, nasty = Elements(render(report("plain"))), Elements(render(report(text)))
    assert nasty.found == plain.found
    assert "49" not in nasty.text.replace("{{ 7 * 7 }}", "") or "49" in plain.text


def test_a_browser_runs_nothing_of_what_is_shown(tmp_path: Path) -> None:
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if browser is None:
        pytest.skip("there is no browser")
    doms = []
    for name, text in (("plain", "plain"), ("nasty", NASTY[:290])):
        page = render(report(text)).replace(
            "default-src 'none'; ", ""
        )  # the text has to be harmless without the policy too
        (tmp_path / f"{name}.html").write_text(page, encoding="utf-8")
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path}/{name}",
            "--dump-dom",
        ]
        shown = subprocess.run(
            [browser, *options, f"file://{tmp_path}/{name}.html"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert shown.returncode == 0, shown.stderr[-500:]
        doms.append(Elements(shown.stdout))
    assert "<title>taken" not in shown.stdout
    assert [tag for tag, _ in doms[0].found] == [tag for tag, _ in doms[1].found]


@pytest.mark.parametrize("text", [*MARKUP, "😀 漢字", NASTY])
def test_a_card_has_a_head_that_is_yaml_and_no_html(text: str) -> None:
    interval = Difference(0.5, 0.4, 0.6, 0.95)
    given = Card(
        text,
        {text: text},
        f"path: {text}",
        {"trained": {text: interval}},
        TEXTS,
        license=text,
        base_model=text,
        data_license=text,
    )
    page = render_card(given)
    _, head, body = page.split("---\n", 2)
    found = yaml.safe_load(head)
    assert found["license"] == text and found["base_model"] == text
    outside = body.split("## Recipe")[0] + body.split("## Licence")[-1]
    assert not Elements(outside).found, outside
    assert page.count("\n# ") == 1 and "\nlicense: h" not in outside


def test_a_terminal_is_shown_no_control_characters(
    tempera: Any, tiny_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run, ignore=UNCOMPARED)
    path = run / "index" / "documents.arrow"
    with pa.ipc.open_file(str(path)) as file:
        table = file.read_all()
    for name in ("name", "place"):
        at = table.column_names.index(name)
        table = table.set_column(
            at, name, pa.array([NASTY] * len(table), table.schema.field(name).type)
        )
    path.unlink()
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    answer = tempera("search", run, "kaban lodor", "-k", "3")
    assert answer.code == 0, answer
    lines = answer.out.splitlines()
    assert len(lines) == 3 and all(line.isprintable() for line in lines), lines
    assert all(r"\x1b[31mred" in line for line in lines)
    wrong = tempera("search", tmp_path / "a\x1b[31mb", "x")
    assert wrong.code == 2 and wrong.err.strip().isprintable()


def test_recommendations_are_shown_without_control_characters() -> None:
    shown = str(Recommendations([Found(NASTY, NASTY, "", "", {}, 1, 0.5)], 1, (NASTY,)))
    assert len(shown.split("\n")) == 2 and all(line.isprintable() for line in shown.split("\n"))
