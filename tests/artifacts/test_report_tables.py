"""A recommender's tables say what metrics.json says, and fit a terminal."""

from __future__ import annotations

from typing import Any

import numpy as np

from tempera.artifacts.report_tables import ReportTable, results, tables
from tempera.recommend.judge.full_catalogue import Histories
from tempera.recommend.judge.judgement import METRICS, Recommended
from tempera.recommend.judge.popularity import Popularity


def reached(seed: int, queries: int = 60, items: int = 40) -> Recommended:
    draw = np.random.default_rng(seed)
    scores = draw.normal(size=(queries, items)).astype(np.float32)
    offsets = np.concatenate([[0], draw.integers(0, 9, queries).cumsum()])
    seen = Histories.of(draw.integers(0, items, offsets[-1]), offsets)
    target = draw.integers(0, items, queries)
    return Recommended.of(
        lambda rows: scores[rows].copy(), target, seen, Popularity(draw.integers(0, 50, items))
    )


LEAD = {"metric": "ndcg@10", "mean": 0.0123, "low": -0.001, "high": 0.0251, "confidence": 0.95}


def document() -> dict[str, Any]:
    first, second = reached(0), reached(1)
    protocols = {
        "trained": {"next": first.json(), "rolling": second.json()},
        "EASE": {"next": {**second.json(), "lead": LEAD}},
    }
    half = {"hit@10": {"mean": 0.5, "low": 0.4, "high": 0.6, "confidence": 0.95}}
    flat = {"hit@10": {"mean": 0.25, "low": 0.25, "high": 0.25, "confidence": 0.95}}
    cold = {"queries": 12, "items": 4, "systems": {"trained": half, "random": flat}}
    return {"protocols": protocols, "cold": cold}


def cells(table: ReportTable, heading: str) -> dict[str, list[float]]:
    return {
        name: [float(cell.split("±")[0]) for cell in values]
        for name, *values in table.sections[heading]
    }


def test_tables_say_what_was_reached() -> None:
    found = tables(document())["protocols"]
    assert [table.title.split(":")[0].split(",")[0] for table in found] == ["next"] * 4 + [
        "rolling"
    ] * 3 + ["items never trained on"]
    ours, theirs = reached(0), reached(1)
    assert found[0].head == ("", *METRICS)
    for seen, heading in (
        ("", "seen items left out"),
        (", seen included", "seen items ranked too"),
    ):
        rows = cells(found[0], heading)
        assert list(rows) == ["EASE", "trained"]  # ours is the last
        for name, system in (("trained", ours), ("EASE", theirs)):
            np.testing.assert_allclose(
                rows[name], [system.metrics[metric + seen] for metric in METRICS], atol=5e-4
            )
    assert found[1].head == ("", "ndcg@10", "95 % interval")
    assert found[1].sections[""] == [("EASE", "+0.012", "-0.001 to +0.025")]
    parts = cells(found[2], "")
    for which, mask in ours.parts.items():
        if mask.any():
            which = which.replace("history", "past")
            assert parts[which][0] == mask.sum()
            means = [ours.per_query[metric][mask].mean() for metric in METRICS]
            np.testing.assert_allclose(parts[which][1:], means, atol=5e-4)
    np.testing.assert_allclose(cells(found[3], "")["trained"][4], ours.lists["coverage"], atol=5e-4)
    assert found[-1].sections[""] == [("random", "0.250"), ("trained", "0.500±0.100")]
    assert "12 queries" in found[-1].title and "4 such items" in found[-1].title


def test_rows_are_as_long_as_the_head_and_fit_a_terminal() -> None:
    for table in tables(document())["protocols"]:
        rows = [row for section in table.sections.values() for row in section]
        assert {len(row) for row in rows} == {len(table.head)}
        widths = [max(len(row[i]) for row in [table.head, *rows]) for i in range(len(table.head))]
        assert sum(widths) + 3 * len(widths) + 1 + 2 <= 84  # an interval in every cell


def test_the_result_is_the_first_table_of_each_protocol() -> None:
    whole, short = tables(document())["protocols"], results(document())
    assert [table.title for table in short] == [whole[0].title, whole[4].title]
    assert [dict(table.sections) for table in short] == [
        {"seen items left out": table.sections["seen items left out"]}
        for table in (whole[0], whole[4])
    ]
