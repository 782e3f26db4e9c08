"""The page of a run: what it says is right, what it shows is text, and it opens in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tempera.artifacts import pictures
from tempera.artifacts.report import RunReport, headline, render
from tempera.artifacts.report_tables import tables
from tempera.ranking.compare import Difference
from tempera.ranking.spread import Spread
from tempera.task.showcase import Example, Hit
from tempera.text.judge.text_showcase import TEXTS

EMPTY, ONES = np.zeros(0, np.float32), np.ones(3, np.float32)

pytestmark = pytest.mark.usefixtures("with_pictures")


def spread(mean: float) -> Spread:
    noise = np.random.default_rng(0).normal(0, 0.1, (2, 50)).astype(np.float32)
    return Spread(noise[0] + np.float32(mean), noise[1])


def step(i: int) -> dict[str, Any]:
    return {
        "event": "step",
        "step": i,
        "loss": 5 / i,
        "temperature": 0.05 + i / 1000,
        "learning_rate": 0.02,
        "grad_norm": 1.0,
    }


def evaluation(i: int) -> dict[str, Any]:
    return {
        "event": "evaluation",
        "step": i,
        "metrics": {"ndcg@10": 0.4 + i / 1000, "recall@1": 0.3},
    }


HITS = (
    Hit("json.dumps", "json/__init__.py:183", 0.91, True),
    Hit("json.dump", "json/__init__.py:120", 0.83, False),
)
EXAMPLES = (
    Example("Serialize to a JSON string.", ("json.dumps",), HITS, 4, 1),
    Example("Nobody finds this.", ("lost",), HITS[1:], None, None),
    Example("BM25 is better here.", ("found",), HITS[1:], 1, None),
)
REPORT = RunReport(
    subject=replace(TEXTS, report_title="Docstrings to code"),
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
        replace(
            REPORT,
            systems={"bm25": {"ndcg@10": bm25}, "trained": {"ndcg@10": ndcg}},
            difference=difference,
        )
    )


@pytest.fixture(scope="module")
def page() -> str:
    return render(REPORT)


def test_headline(page: str) -> None:
    expected = "nDCG@10 0.451: 24 % above BM25 (95 % interval of the difference 0.071 to 0.098), 3.1× the untrained model"
    assert headline(REPORT) == expected
    assert escape(expected) in page


@pytest.mark.parametrize(
    ("ndcg", "bm25", "expected"),
    [
        (0.3, 0.4, "nDCG@10 0.300: 25 % below BM25"),
        (0.402, 0.4, "nDCG@10 0.402: 0.5 % above BM25"),
        (0.4001, 0.4, "nDCG@10 0.400: level with BM25"),
        (1.0, 0.4, "nDCG@10 1.000: 2.5× BM25"),
        (0.3, 0.0, "nDCG@10 0.300: BM25 0.000"),
    ],
)
def test_headline_states_ratios(ndcg: float, bm25: float, expected: str) -> None:
    assert trained(ndcg, bm25) == expected


def test_headline_multiplies_nothing_small_and_says_if_pairs_are_as_random() -> None:
    systems = {"untrained": {"ndcg@10": 0.01}, "trained": {"ndcg@10": 0.046}}
    poor = replace(REPORT, systems=systems, spreads={"trained": spread(-0.02)})
    auc = poor.spreads["trained"].auc
    assert auc < 0.5
    said = f"nDCG@10 0.046: the untrained model 0.010; but its pairs are no more alike than random pairs (AUC {auc:.3f})"
    assert headline(poor) == said


def test_names_of_settings_wrap_before_scores_are_pushed_off_a_screen(page: str) -> None:
    assert "tbody th { min-width: 8em; white-space: normal; overflow-wrap: anywhere; }" in page
    assert ".pictures > * { min-width: 0; }" in page  # else a table widens its half


def test_headline_doubts_an_interval_around_nothing() -> None:
    text = trained(0.408, 0.4, Difference(0.008, -0.01, 0.026, 0.9))
    assert (
        text
        == "nDCG@10 0.408: 2 % above BM25 (which may be chance: 90 % interval of the difference -0.010 to 0.026)"
    )


def test_headline_without_the_usual_metric_takes_the_first_and_no_interval() -> None:
    systems = {"bm25": {"map@5": 0.2}, "trained": {"map@5": 0.3}}
    assert headline(replace(REPORT, systems=systems)) == "MAP@5 0.300: 50 % above BM25"


def test_table_marks_the_best_of_each_column(page: str) -> None:
    rows = re.findall(r'<th scope="row">(.*?)</tr>', page, re.S)
    best = [(row.split("<")[0], re.findall("<strong>(.*?)</strong>", row)) for row in rows]
    assert best == [("untrained", []), ("BM25", ["0.330"]), ("trained", ["0.451"])]


def test_examples_say_what_was_right_and_which_rank(page: str) -> None:
    cards = [" ".join(re.sub("<[^>]*>", " ", card).split()) for card in page.split("<article")[1:]]
    assert "✓ relevant json/__init__.py:183 0.910" in cards[0]
    assert cards[0].count("✓") == 1
    assert "BM25 rank 4 trained rank 1" in cards[0]
    assert "BM25 not in the first 100 trained not in the first 100" in cards[1]
    assert "higher than with BM25 in 1 of 3, lower in 1." in page


def test_markup_is_text() -> None:
    def markup(field: str) -> str:
        return f"<img id={field}>$x_1$</pre></style>"

    hit = Hit(markup("name"), markup("place"), 0.5, True)
    report = replace(
        REPORT,
        subject=replace(TEXTS, report_title=markup("title")),
        facts={markup("fact"): markup("value")},
        systems={"trained": {markup("metric"): 0.4}, markup("system"): {markup("metric"): 0.2}},
        difference=None,
        log=[{"event": "evaluation", "step": 1, "metrics": {markup("logged"): 0.1}}],
        spreads={markup("spread"): spread(0.4)},
        examples=[Example(markup("query"), (markup("answer"),), (hit,), 1, 1)],
        config=markup("config"),
    )
    page = render(report)
    fields = [
        "title",
        "fact",
        "value",
        "system",
        "metric",
        "logged",
        "spread",
        "query",
        "answer",
        "name",
        "place",
        "config",
    ]
    assert [
        field for field in fields if f"&lt;img id={field}&gt;$x_1$&lt;/pre&gt;" not in page
    ] == []
    assert "<img" not in page
    assert page.count("</pre>") == 1
    drawn = re.findall(
        r">&lt;img id=(\w+)&gt;\$x_1\$", "".join(re.findall("<svg.*?</svg>", page, re.S))
    )
    assert set(drawn) == {"system", "metric", "logged", "spread"}


def test_page_asks_nothing_of_the_network(page: str) -> None:
    for found in re.findall(
        r"""(?:src|href|srcset|action|data)\s*=\s*["']?([^"'\s>]+)|url\(["']?([^"')]+)""", page
    ):
        assert "".join(found).startswith("#"), found
    assert "@import" not in page
    assert "<script" not in page
    assert "<link" not in page
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"" in page


def test_pictures_have_names_and_ids_of_their_own(page: str) -> None:
    assert len(re.findall('role="img" aria-label="[^"]+"', page)) == page.count("<svg") == 4
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids)) > 0
    assert set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", page)) <= set(ids)
    assert "temperature (right)" in page


def test_the_legend_of_many_systems_has_room() -> None:
    """As many as a recommender's report has."""
    names = ("untrained", "popularity", "item-kNN", "EASE", "transitions", "trained")
    with pictures.canvas("systems", *pictures.SIZE) as figure:
        pictures._bars(figure, {name: {"hit@10": 0.2, "ndcg@10": 0.1} for name in names})
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert [text.get_text() for text in legend.get_texts()] == list(names)
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


def test_same_report_same_bytes(page: str) -> None:
    assert render(REPORT) == page


def test_a_temperature_that_stays_has_no_axis() -> None:
    assert "temperature (right)" not in render(
        replace(REPORT, log=[{**step(i), "temperature": 0.05} for i in (1, 2)])
    )


def test_a_long_run_stays_small() -> None:
    long = [{**step(i), "loss": i % 7} for i in range(1, 20_001)]
    assert len(render(replace(REPORT, log=long))) < 150_000


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("added", "pictures", "absent"),
    [
        ({}, 1, "Held-out queries and their results"),
        (
            {
                "systems": {"trained": {"ndcg@10": 0.4}},
                "difference": None,
                "examples": EXAMPLES[:1],
            },
            1,
            "BM25",
        ),
        ({"log": [step(1)]}, 2, "Held-out queries during training"),
        ({"log": [evaluation(0)]}, 2, "Training, step by step"),
        ({"examples": [Example("q", (), (), None, None)]}, 1, "<li>"),
        ({"spreads": {"untrained": Spread(EMPTY, EMPTY)}}, 1, "AUC"),
        ({"spreads": {"trained": Spread(ONES, EMPTY)}}, 1, "AUC"),
        ({"spreads": {"trained": Spread(ONES, ONES)}}, 2, "untrained: AUC"),
    ],
)
def test_what_is_missing_is_left_out(added: dict[str, Any], pictures: int, absent: str) -> None:
    bare = replace(REPORT, facts={}, log=[], spreads={}, examples=[], config="")
    page = render(replace(bare, **added))
    assert page.count("<svg") == pictures
    assert absent not in page


def test_without_matplotlib_the_page_says_how_to_get_charts(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = "pip install &#39;tempera[pictures]&#39;"
    assert way not in page
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    bare = render(REPORT)
    assert "<svg" not in bare and way in bare
    assert headline(REPORT) in bare


def test_a_race_is_shown_as_a_table_and_a_picture() -> None:
    tried = [
        {
            "values": {"train.learning_rate": rate},
            "steps": steps,
            "score": score,
            "low": -0.02 * worse,
            "high": 0.01 * worse,
        }
        for steps, rate, score, worse in (
            (20, 0.003, 0.5, 0),
            (20, 0.01, 0.49, 1),
            (40, 0.003, 0.51, 1),
            (40, 0.01, 0.52, 0),
        )
    ]
    recipe = {"metric": "ndcg@10", "tried": tried, "chosen": tried[-1]["values"]}
    bare = replace(REPORT, systems={}, difference=None, log=[], spreads={}, examples=[])
    page = render(
        replace(bare, log=[{"event": "recipe", **recipe}], tables=tables({"recipe": recipe}))
    )
    assert "<h2>What was tried</h2>" in page and "By protocol" not in page
    (svg,) = re.findall("<svg.*?</svg>", page, re.S)
    assert all(
        f">{text}</text>" in svg
        for text in ("after 20 steps", "after 40 steps", "learning_rate=0.01", "nDCG@10")
    )
    assert page.count('<th scope="row">learning_rate=0.01, chosen</th>') == 2


def test_opens_in_a_browser(tmp_path: Path) -> None:
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if browser is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path")
    file = tmp_path / "report.html"
    example = Example(
        "Parse <h6>markup</h6><script>document.title='run'</script>", ("a",), HITS, 1, 1
    )
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
    assert dom.count("<svg") == 4
    assert dom.count("</svg>") == 4
    assert "Parse &lt;h6&gt;markup&lt;/h6&gt;&lt;script&gt;" in dom
    assert "<h6" not in dom
    assert "<script" not in dom
    assert "<title>Docstrings to code</title>" in dom
