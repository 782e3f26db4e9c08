"""The card of a model: a head that is YAML, tables that hold, and nothing of the data taken for
markup."""

from __future__ import annotations

from pathlib import Path

import yaml

from tempera.artifacts.card import Card, render_card
from tempera.ranking.compare import Difference
from tempera.text.judge.text_showcase import TEXTS

NASTY = "a|b\n# c <script>x</script> `d` [e](f) *g* \"h\": 'i' ---\\"
CARD = Card(
    title=NASTY,
    data={"source": NASTY, "pairs": "1,000"},
    recipe="data:\n  path: '````'\n",
    metrics={
        "untrained": {"ndcg@10": Difference(0.25, 0.2, 0.3, 0.95)},
        "trained": {
            "ndcg@10": Difference(0.5, 0.45, 0.55, 0.95),
            "mrr@10": Difference(0.4, 0.3, 0.5, 0.95),
        },
    },
    subject=TEXTS,
    license="mit",
    base_model=NASTY,
)


def head(text: str) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load(text.split("---\n")[1])
    return found


def test_the_head_is_yaml_whatever_it_holds() -> None:
    found = head(render_card(CARD))
    assert found["license"] == "mit" and found["base_model"] == NASTY and "language" not in found
    assert found["library_name"] == "sentence-transformers"
    assert head(render_card(Card("t", {}, "", {}, TEXTS)))["license"] == "unknown"


def test_nothing_shown_is_markup() -> None:
    text = render_card(CARD)
    body = text.split("---\n", 2)[2]
    assert "<script" not in body and "&lt;script&gt;" in body
    assert body.count("\n# ") == 1 and r"\[e\]\(f\)" in body and r"\`d\`" in body
    assert r"a\|b \# c" in body


def test_the_recipe_cannot_leave_its_fence() -> None:
    text = render_card(CARD)
    assert "`````yaml\ndata:\n  path: '````'\n`````" in text


def test_metrics_with_intervals_and_licences() -> None:
    text = render_card(CARD)
    assert "| metric | untrained | trained |" in text
    assert r"| ndcg@10 | 0.2500 \[0.2000, 0.3000\] | 0.5000 \[0.4500, 0.5500\] |" in text
    assert r"| mrr@10 |  | 0.4000 \[0.3000, 0.5000\] |" in text
    assert "95 %" in text and "- model: mit" in text and "- training data: not stated" in text
    assert "## Metrics" not in render_card(Card("t", {}, "", {}, TEXTS))


def test_a_run_has_a_card(tiny_run: Path) -> None:
    text = (tiny_run / "model" / "README.md").read_text(encoding="utf-8")
    assert head(text)["license"] == "unknown"
    assert (
        "| trained |" in text.replace("| metric | untrained | bm25 ", "") and "preset: mnr" in text
    )
