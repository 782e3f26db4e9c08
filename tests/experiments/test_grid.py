from __future__ import annotations

import math

import numpy as np
import pytest

from tempera.errors import ConfigError
from tempera.experiments.grid import Axis, axes_of, grid


def test_a_logarithmic_range_has_equal_ratios_and_its_ends() -> None:
    values = Axis.parse("objective.temperature=0.005:1:log:20").values
    assert len(values) == 20 and values[0] == 0.005 and values[-1] == 1
    for i, value in enumerate(values):
        assert math.isclose(
            value, 0.005 * 200 ** (i / 19), rel_tol=1e-3
        )  # written with four digits


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=1:4:linear:4", (1, 2, 3, 4)),
        ("a.b=0:1:linear:5", (0, 0.25, 0.5, 0.75, 1)),
        ("a.b=1024:65536:log:3", (1024, 8192, 65536)),
        ("a.b=64,256", (64, 256)),
        ("a.b=1e-3, 0.5", (0.001, 0.5)),
        ("a.b=mean,max", ("mean", "max")),
        ("a.b=true,false", (True, False)),
        ("a.b=0,1,true,false", (0, 1, True, False)),
        ("a.b=null,3", (None, 3)),
        ("a.b=[],[log_q]", ([], ["log_q"])),
        ("a.b={value: 0.1, final: 0.02},0.05", ({"value": 0.1, "final": 0.02}, 0.05)),
        ('a.b="x:y",z', ("x:y", "z")),
    ],
)
def test_values_are_read_as_they_are_written(text: str, values: tuple[object, ...]) -> None:
    found = Axis.parse(text)
    assert found.field == "a.b"
    assert found.values == values and [type(value) for value in found.values] == [
        type(value) for value in values
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("objective.temperature", "low:high:log"),
        ("=1,2", "low:high:log"),
        ("a.b=", "low:high:log"),
        ("a.b=1:30", "low:high:log"),
        ("a.b=0.1:1:lg:5", "low:high:log"),
        ("a.b=[1,2", "low:high:log"),
        ("a.b=0:1:log:5", "low must be lower than high, and above 0"),
        ("a.b=1:0.1:log:5", "low must be lower than high"),
        ("a.b=1:1:linear:5", "low must be lower than high"),
        ("a.b=0:1:linear:1", "at least 2"),
        ("a.b=0:inf:linear:3", "finite numbers"),
        ("a.b=low:1:log:5", "finite numbers"),
        ("a.b=0:1:linear:2.5", "the count must be a whole number"),
        ("a.b=0.1", "has 1 value; a sweep needs at least 2"),
        ("a.b=0.1,0.2,0.1", "0.1 twice"),
        ("temperature=0.1,0.2", "an option has a section"),
        ("a.=0.1,0.2", "an option has a section"),
        ("train.seed=1,2", "--seeds"),
        ("train.refit=none,all", "leave train.refit to `tempera train`"),
        ("mining.again=0,3", "--over mining.again: runs are compared by what is held out"),
        ("a.b=0.1:1:log", "a sweep needs a count; write 0.1:1:log:8"),
        ("a.b={low: 0.01, high: 0.2, log: true}", "write 0.01:0.2:log"),
    ],
)
def test_what_is_no_axis_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        assert Axis.parse(text).values
    assert says in str(caught.value)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(
        f"--over {text.split('=')[0]}"
    )


def test_numbers_of_numpy_are_numbers() -> None:
    (axis,) = axes_of({"objective.temperature": np.array([0.1, 1.0])})
    assert axis.values == (0.1, 1) and [type(value) for value in axis.values] == [float, int]
    (axis,) = axes_of({"train.batch_size": [np.int64(8), np.int64(16)]})
    assert [type(value) for value in axis.values] == [int, int]


def test_axes_are_texts_or_values() -> None:
    a = axes_of(["a.b=1,2", "c.d=0.1:1:log:2"])
    b = axes_of({"a.b": [1, 2], "c.d": "0.1:1:log:2"})
    assert a == b and [axis.values for axis in a] == [(1, 2), (0.1, 1)]
    assert grid(a) == [{"a.b": x, "c.d": y} for x in (1, 2) for y in (0.1, 1)]
    assert axes_of("a.b=1,2") == a[:1], "a text is one option"


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ([], "for 0 options"),
        (["a.b=1,2", "a.c=1,2", "a.d=1,2"], "for 3 options"),
        (["a.b=1,2", "a.b=3,4"], "twice"),
    ],
)
def test_no_axis_too_many_and_one_twice_are_refused(over: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        axes_of(over)


def test_only_numbers_are_numeric() -> None:
    assert Axis("a.b", (1, 2.5)).numeric
    assert not Axis("a.b", (1, "x")).numeric and not Axis("a.b", (True, False)).numeric


def test_one_value_is_no_list() -> None:
    with pytest.raises(
        ConfigError, match=r"--over train.batch_size: 64 is one value: give a list, \[64\]"
    ):
        Axis.of("train.batch_size", 64)
