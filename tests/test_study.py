"""The study: its parts can be run, go on after a kill, and its page says what was found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tempera.experiments.grid import axes_of
from tempera.experiments.points import SweepPlan
from tempera.experiments.template import Template
from tempera.options import yaml_options as configuration

ROOT = Path(__file__).parents[1]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "study"))
    monkeypatch.setenv("TEMPERA_DATA", str(tmp_path))
    import study

    return study


@pytest.fixture
def page(study: Any) -> Any:
    import _page

    return _page


def points(**means: float) -> list[dict[str, Any]]:
    seen = dict.fromkeys(("hardest", "random", "share", "uniformity"), 0.5) | {
        "positive": 0.9,
        "effective": 7.0,
    }
    return [
        {"temperature": float(t), "mean": mean, "low": mean - 0.01, "high": mean + 0.01, **seen}
        for t, mean in ((name[1:].replace("_", "."), mean) for name, mean in means.items())
    ]


def a_record(lines: list[dict[str, Any]], cosine: bool = True) -> dict[str, Any]:
    about = {
        "title": "A part",
        "size": "full",
        "batch": 512,
        "cosine": cosine,
        "models": 6,
        "seeds": 3,
        "queries": 40,
        "minutes": 2.0,
    }
    return {
        **about,
        "date": "2026-01-01",
        "commit": "abc",
        "machine": "m",
        "versions": {"python": "3"},
        "lines": lines,
    }


def test_every_part_can_be_built(study: Any) -> None:
    for quick in (False, True):
        for part in study.parts(quick):
            path = ROOT / "study" / "configs" / f"{part.config}.yaml"
            overrides = [study.placed(text) for text in part.set]
            schedules = [(first, last) for first, last in part.scheduled]
            axes = axes_of(part.over)
            template = Template.of(configuration.of(path).values, overrides, None)
            SweepPlan.of(template, axes, part.seeds, part.learned, schedules)
            assert template.metric == "ndcg@10" and axes[0].field == "objective.temperature", (
                part.name
            )
    assert (
        sum("TEMPERA_DATA" not in " ".join(part.set) for part in study.parts(True)) >= 3
    )  # they need nothing


@pytest.mark.slow  # two sweeps in processes of their own, with their pictures
def test_a_part_is_run_once_and_recorded(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(study.Part, "folder", property(lambda part: tmp_path / "runs" / part.name))
    small = [
        f"data.roots=[{ROOT / 'src' / 'tempera' / 'core'}]",
        "tower.dimensions=8",
        "tower.vocabulary=300",
    ]
    over = ["objective.temperature=0.1,1", "train.batch_size=16,32"]
    shrunk = [*small, "train.max_steps=2", "evaluation.queries=20"]
    part = study.Part("tiny", "full", "Tiny", "code", shrunk, over)
    inner = study.Part.command
    monkeypatch.setattr(
        study.Part, "command", lambda part, seeds: [*inner(part, seeds)[:-1], str(part.folder)]
    )
    places = study.Places(tmp_path / "results", tmp_path / "study.md", tmp_path / "figures")
    study.run(part, 1, places)
    done = (part.folder / "points.jsonl").read_text()
    assert len(done.splitlines()) == 4
    study.run(part, 2, places)  # goes on: the second seed
    assert (part.folder / "points.jsonl").read_text().startswith(done)
    found = json.loads((places.records / "tiny.json").read_text())
    assert (found["models"], found["seeds"], found["batch"], found["queries"]) == (8, 2, 512, 20)
    assert [line["value"] for line in found["lines"]] == [16, 32]
    runs = [json.loads(line) for line in (part.folder / "points.jsonl").read_text().splitlines()]
    want = [
        run["metrics"]["ndcg@10"]
        for run in runs
        if run["over"] == dict(zip(("objective.temperature", "train.batch_size"), (1, 32)))
    ]
    assert len(want) == 2 and found["lines"][1]["points"][1]["mean"] == pytest.approx(
        sum(want) / 2, abs=1e-6
    )
    assert str(tmp_path) not in json.dumps({**found, "command": ""})
    assert (places.figures / "tiny.svg").is_file()


def test_what_is_lost_is_a_share_of_the_best(page: Any) -> None:
    line = {
        "option": None,
        "value": None,
        "best": 0.1,
        "region": [0.1, 1.0],
        "points": points(t0_05=0.3, t0_1=0.4, t1=0.39),
    }
    curve = page.Curve("p", "A part", line, 512, True)
    assert (
        curve.lost(0.05) == pytest.approx(0.25)
        and curve.lost(0.11) == 0
        and curve.holds(0.9)
        and not curve.holds(0.04)
    )
    text = page.filled(
        "<!-- study: answers -->\nold\n<!-- /study -->", {"p": a_record([line])}, {"p": "A part"}
    )
    assert (
        "old" not in text
        and "scale 20, is in the best region of 0 of them. It loses 25.0 %" in text
    )
    assert "top of 1 of 1 curves" in text
    assert "loses least over all of them is 0.1 (scale 10): 0.0 % on average" in text


def test_missing_the_best_costs_on_both_sides(page: Any) -> None:
    means = points(t0_02=0.1, t0_1=0.4, t0_5=0.3)
    line = {"option": None, "value": None, "best": 0.1, "region": [0.1], "points": means}
    text = page.filled(
        "<!-- study: answers -->\n<!-- /study -->", {"p": a_record([line])}, {"p": "A part"}
    )
    assert (
        "a fifth of the best loses 75.0 % on average, one of 5 times the best 25.0 % (over the 1 curves"
        in text
    )


def test_one_temperature_for_all(page: Any) -> None:
    means = points(t0_05=0.3, t0_1=0.4, t1=0.39)
    line = {"option": None, "value": None, "best": 0.1, "region": [0.1, 1.0], "points": means}
    table = page.filled(
        "<!-- study: fixed -->\n<!-- /study -->", {"p": a_record([line])}, {"p": "A part"}
    )
    assert "| 0.1 (scale 10) | 0.0 % | 0.0 % | A part | 1 of 1 |" in table
    assert "| 1 / ln(batch) | 0.0 % |" in table  # 1 / ln 512 is 0.16, next to 0.1


def test_untrained_towers_are_left_out_and_inner_products_apart(page: Any) -> None:
    line = {
        "option": "a.rate",
        "value": 0.1,
        "best": 0.1,
        "region": [0.1],
        "points": points(t0_05=0.3, t0_1=0.4),
    }
    curves = page.Curve.all_of({"p": a_record([line, {**line, "value": 1e-9}])})
    assert [curve.option for curve in curves] == ["rate 0.1"]
    text = page.filled(
        "<!-- study: answers -->\n<!-- /study -->",
        {"p": a_record([line]), "q": a_record([line], cosine=False)},
        {},
    )
    assert "Over 1 curves with cosines, the best temperature tried is always 0.1 (scale 10)" in text


def test_what_was_not_run_is_said(page: Any) -> None:
    text = page.filled("<!-- study: moving p -->\n<!-- /study -->", {}, {"p": "A part"})
    assert "Not run yet" in text
    line = {"option": None, "value": None, "best": 0.1, "region": [0.1], "points": points(t0_1=0.4)}
    text = page.filled(
        "<!-- study: parts -->\n<!-- /study -->",
        {"p": a_record([line])},
        {"p": "A part", "q": "Other"},
    )
    assert (
        "| Other | not run yet |" in text
        and "| A part | 6 | 3 | 40 | 2 | 2026-01-01, abc |" in text
    )


def test_the_page_is_what_the_records_say(study: Any, page: Any) -> None:
    written = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    paths = sorted((ROOT / "study" / "results").glob("*.json"))
    order = [part.name for part in study.parts(False)]
    records = {
        p.stem: json.loads(p.read_text())
        for p in sorted(paths, key=lambda path: order.index(path.stem))
    }
    assert (
        page.filled(written, records, {part.name: part.title for part in study.parts(False)})
        == written
    )
    assert len(records) > 3 and sum(record["models"] for record in records.values()) >= 40
    for figure in re.findall(r"\]\((study/[^)]+)\)", written):
        assert (ROOT / "docs" / figure).is_file(), figure
