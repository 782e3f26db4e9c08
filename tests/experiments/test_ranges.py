"""One grammar of values, for sweeps and tunings."""

from __future__ import annotations

import pytest

from tempera.errors import ConfigError
from tempera.experiments.ranges import Range, parse


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("0.005:1:log", Range(0.005, 1, log=True)),
        ("0:1:linear", Range(0, 1)),
        ("1:4:int", Range(1, 4, whole=True)),
        ("32:128:int:log", Range(32, 128, log=True, whole=True)),
        ("64:512:int:step 64", Range(64, 512, whole=True, step=64)),
        ("0:1:linear:step 0.25", Range(0, 1, step=0.25)),
        ("0.01:1:log:3", Range(0.01, 1, log=True, count=3)),
        ("32:128:int:log:3", Range(32, 128, log=True, whole=True, count=3)),
        (" 1e-5 : 1e-3 :log", Range(1e-5, 1e-3, log=True)),
        ("1:2:log:100000000", Range(1, 2, log=True, count=100_000_000)),
    ],
)
def test_ranges(text: str, domain: Range) -> None:
    assert parse(text) == domain


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1:4:int", (1, 2, 3, 4)),
        ("64:256:int:step 64", (64, 128, 192, 256)),
        ("0:1:linear:step 0.25", (0, 0.25, 0.5, 0.75, 1)),
        ("32:128:int:log:3", (32, 64, 128)),
    ],
)
def test_values_of_ranges_with_an_end(text: str, values: tuple[float, ...]) -> None:
    domain = parse(text)
    assert isinstance(domain, Range) and domain.size == len(values)
    assert domain.values == values and [type(value) for value in domain.values] == [
        type(value) for value in values
    ]


@pytest.mark.parametrize("text", ["0.1:1:log", "0:1:linear", "32:128:int:log"])
def test_ranges_without_an_end(text: str) -> None:
    domain = parse(text)
    assert isinstance(domain, Range) and domain.size is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1:30", "cannot read '1:30'; write low:high:log"),
        ("0.1:1:lgo", "Did you mean log?"),
        ("0:1:log", "low must be lower than high, and above 0"),
        ("1:0.1:linear", "low must be lower than high; write 0.1:1:linear"),
        ("0.2:0.02:log", "low must be lower than high, and above 0; write 0.02:0.2:log"),
        ("0.02..0.2", "cannot read '0.02..0.2'; write 0.02:0.2:log or 0.02:0.2:linear"),
        ("a:1:log", "a range has finite numbers"),
        ("0:inf:linear:3", "a range has finite numbers"),
        ("0:1:linear:2.5", "the count must be a whole number"),
        ("0:1:linear:1", "at least 2"),
        ("1:2.5:int", "a range of kind int has whole numbers"),
        ("1:10:int:step 4", "steps of 4 from 1 do not lead to 10"),
        (
            "1:10:int:log:step 3",
            "a step fits between low and high, and goes with linear or int only",
        ),
        ("{low: 0.01, high: 0.2, log: true}", "write 0.01:0.2:log"),
        ("[1,2", "write low:high:log"),
        ("", "write low:high:log"),
    ],
)
def test_a_mistake_shows_the_right_spelling(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert says in str(caught.value) and "\n" not in str(caught.value)
