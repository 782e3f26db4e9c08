"""Without matplotlib everything works but pictures, and one line says how to get them."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from tempera.artifacts.calibrated import draw_calibration
from tempera.artifacts.pictures import draw_merge, pictures

POINTS = [
    {"weight": 0.0, "scores": {"validation": 0.3}},
    {"weight": 1.0, "scores": {"validation": 0.4}},
]
SYSTEMS = {"trained": {"ndcg@10": 0.4}}


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that does not find matplotlib."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_pictures_are_drawn_with_matplotlib(caplog: pytest.LogCaptureFixture) -> None:
    assert draw_merge(POINTS, 1.0).keys() == {"svg", "png"}
    assert caplog.text == ""


@pytest.mark.usefixtures("without_matplotlib")
def test_a_picture_that_is_asked_for_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert draw_merge(POINTS, 1.0) == {}
    (record,) = caplog.records
    assert record.message == ("drawing merge.svg needs matplotlib: pip install 'tempera[pictures]'")


@pytest.mark.usefixtures("without_matplotlib")
def test_no_kind_of_picture_needs_matplotlib(caplog: pytest.LogCaptureFixture) -> None:
    from tempera.experiments.sweep_pictures import draw_sweep
    from tempera.tuning.learning_picture import draw_learning_curve
    from tempera.tuning.tune_pictures import draw_tuning

    nothing: Any = None
    assert draw_calibration(nothing, nothing) == {}
    assert draw_sweep(nothing) == {}
    assert draw_tuning(nothing) == {}
    assert draw_learning_curve(nothing) == {}
    assert pictures(SYSTEMS, {}, []) == {}
    named = [record.message.split()[1] for record in caplog.records]
    assert named == ["calibration.svg", "sweep.svg", "tune.svg", "learn.svg"]
