"""The page of a run: what it says is right, what it shows is text, and it opens in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest

from tempera.evaluation.compare import Difference
from tempera.evaluation.spread import Spread
from tempera.export.report import Example, Hit, Report, headline, render

MARKUP = "<img src=x onerror=alert(1)> & \"quoted\" '$x_1$' </style></pre><h6>"
EMPTY = np.zeros(0, np.float32)


def spread(mean: float) -> Spread:
    noise = np.random.default_rng(0).normal(0, 0.1, (2, 50)).astype(np.float32)
    return Spread(noise[0] + np.float32(mean), noise[1])


def step(i: int) -> dict[str, object]:
    return {
        "event": "step",
        "step": i,
        "loss": 5 / i,
        "temperature": 0.05 + i / 1000,
        "learning_rate": 0.02,
        "grad_norm": 1.0,
    }


def evaluation(i: int) -> dict[str, object]:
    return {"event": "evaluation", "step": i, "metrics": {"ndcg@10": 0.4 + i / 1000, "recall@1": 0.3}}


HITS = (Hit("json.dumps", "json/__init__.py:183", 0.91, True), Hit("json.dump", "json/__init__.py:120", 0.83, False))
EXAMPLES = (
    Example("Serialize to a JSON string.", ("json.dumps",), HITS, 4, 1),
    Example("Nobody finds this.", ("lost",), HITS[1:], None, None),
    Example("BM25 is better here.", ("found",), HITS[1:], 1, None),
)
REPORT = Report(
    title="Docstrings to code",
    facts={"training pairs": "87,403"},
    systems={
        "untrained": {"ndcg@10": 0.145, "recall@1": 0.09},
        "bm25": {"ndcg@10": 0.364, "recall@1": 0.33},
        "trained": {"ndcg@10": 0.4513, "recall@1": 0.322},
    },
    difference=Difference(0.0873, 0.071, 0.098, 0.95),
    log=[step(1), step(2), evaluation(2), step(3), evaluation(3)],
    spreads={"untrained": spread(0.05), "trained": spread(0.4)},
    examples=EXAMPLES,
    config="train:\n  batch_size: 1024\n",
)


def trained(ndcg: float, bm25: float, difference: Difference | None = None) -> str:
    return headline(
        replace(REPORT, systems={"bm25": {"ndcg@10": bm25}, "trained": {"ndcg@10": ndcg}}, difference=difference)
    )


def test_headline() -> None:
    expected = "nDCG@10 .451: 24 % above BM25 (95 % interval of the difference .071 to .098), 3.1× the untrained model"
    assert headline(REPORT) == expected
    assert escape(expected) in render(REPORT)


@pytest.mark.parametrize(
    ("ndcg", "bm25", "expected"),
    [
        (0.3, 0.4, "nDCG@10 .300: 25 % below BM25"),
        (0.402, 0.4, "nDCG@10 .402: 0.5 % above BM25"),
        (0.4001, 0.4, "nDCG@10 .400: level with BM25"),
        (1.0, 0.4, "nDCG@10 1.000: 2.5× BM25"),
        (0.3, 0.0, "nDCG@10 .300: BM25 .000"),
    ],
)
def test_headline_states_ratios(ndcg: float, bm25: float, expected: str) -> None:
    assert trained(ndcg, bm25) == expected


def test_headline_doubts_an_interval_around_nothing() -> None:
    text = trained(0.408, 0.4, Difference(0.008, -0.01, 0.026, 0.9))
    assert text == "nDCG@10 .408: 2 % above BM25 (which may be chance: 90 % interval of the difference -.010 to .026)"


def test_headline_without_the_usual_metric_takes_the_first_and_no_interval() -> None:
    systems = {"bm25": {"map@5": 0.2}, "trained": {"map@5": 0.3}}
    assert headline(replace(REPORT, systems=systems)) == "MAP@5 .300: 50 % above BM25"


def test_table_marks_the_best_of_each_column() -> None:
    rows = re.findall(r'<th scope="row">(.*?)</tr>', render(REPORT), re.S)
    best = [(row.split("<")[0], re.findall("<strong>(.*?)</strong>", row)) for row in rows]
    assert best == [("untrained", []), ("BM25", [".330"]), ("trained", [".451"])]


def test_examples_say_what_was_right_and_which_rank() -> None:
    page = render(REPORT)
    cards = [" ".join(re.sub("<[^>]*>", " ", card).split()) for card in page.split("<article")[1:]]
    assert "✓ right json/__init__.py:183 .910" in cards[0] and cards[0].count("✓") == 1
    assert "BM25 rank 4 trained rank 1" in cards[0]
    assert "BM25 not in the first 100 trained not in the first 100" in cards[1]
    assert "higher than with BM25 in 1 of 3, lower in 1." in page


@pytest.mark.parametrize("field", ["title", "fact", "query", "answer", "name", "place", "config", "system", "metric"])
def test_markup_is_text(field: str) -> None:
    hit = Hit(MARKUP if field == "name" else "n", MARKUP if field == "place" else "p", 0.5, True)
    answers = (MARKUP,) if field == "answer" else ("a",)
    systems = dict(REPORT.systems)
    if field in ("system", "metric"):
        systems[MARKUP if field == "system" else "other"] = {MARKUP if field == "metric" else "ndcg@10": 0.2}
    page = render(
        replace(
            REPORT,
            title=MARKUP if field == "title" else "t",
            facts={MARKUP: MARKUP} if field == "fact" else {},
            systems=systems,
            examples=[Example(MARKUP if field == "query" else "q", answers, (hit,), 1, 1)],
            config=MARKUP if field == "config" else "",
        )
    )
    assert "<img" not in page and "<h6>" not in page
    assert page.count("</style>") == render(REPORT).count("</style>")
    assert "&lt;img src=x onerror=alert(1)&gt; &amp; " in page


def test_page_asks_nothing_of_the_network() -> None:
    page = render(REPORT)
    for found in re.findall(r"""(?:src|href|srcset|action|data)\s*=\s*["']?([^"'\s>]+)|url\(["']?([^"')]+)""", page):
        assert "".join(found).startswith("#"), found
    assert "@import" not in page and "<script" not in page and "<link" not in page
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"" in page


def test_pictures_have_names_and_ids_of_their_own() -> None:
    page = render(REPORT)
    assert len(re.findall('role="img" aria-label="[^"]+"', page)) == page.count("<svg") == 4
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids)) > 0
    assert set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", page)) <= set(ids)
    assert "temperature (right)" in page


def test_same_report_same_bytes() -> None:
    assert render(REPORT) == render(REPORT)


def test_a_temperature_that_stays_has_no_axis() -> None:
    assert "temperature (right)" not in render(replace(REPORT, log=[{**step(i), "temperature": 0.05} for i in (1, 2)]))


def test_a_long_run_stays_small() -> None:
    long = [step(i) for i in range(1, 20_001)]
    assert len(render(replace(REPORT, log=long))) < 400_000


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("changed", "pictures", "absent"),
    [
        ({"log": []}, 2, "Training, step by step"),
        ({"log": [step(1)]}, 3, "Held-out queries during training"),
        ({"log": [evaluation(0)]}, 3, "Training, step by step"),
        ({"systems": {"trained": {"ndcg@10": 0.4}}, "difference": None}, 4, "BM25"),
        ({"examples": []}, 4, "<article"),
        ({"examples": [Example("q", (), (), None, None)]}, 4, "<li>"),
        ({"spreads": {}}, 3, "AUC"),
        ({"spreads": {"untrained": Spread(EMPTY, EMPTY)}}, 3, "AUC"),
        ({"spreads": {"trained": Spread(EMPTY + 1, EMPTY)}}, 3, "AUC"),
        ({"spreads": {"trained": Spread(np.ones(3, np.float32), np.ones(3, np.float32))}}, 4, "untrained: AUC"),
        ({"facts": {}, "config": ""}, 4, "87,403"),
    ],
)
def test_what_is_missing_is_left_out(changed: dict[str, object], pictures: int, absent: str) -> None:
    page = render(replace(REPORT, **changed))  # type: ignore[arg-type]
    assert page.count("<svg") == pictures
    assert absent not in page


def test_opens_in_a_browser(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path")
    file = tmp_path / "report.html"
    example = Example("Parse <h6>markup</h6><script>document.title='run'</script>", ("a",), HITS, 1, 1)
    file.write_text(render(replace(REPORT, examples=[example])), encoding="utf-8")
    quiet = "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    options = [
        "--headless",
        "--no-sandbox",
        *quiet.split(),
        "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    command = [browser, *options, "--dump-dom", file.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert headline(REPORT) in dom
    assert dom.count("<svg") == 4 and dom.count("</svg>") == 4
    assert "Parse &lt;h6&gt;markup&lt;/h6&gt;&lt;script&gt;" in dom
    assert "<h6" not in dom and "<script" not in dom and "<title>Docstrings to code</title>" in dom
