"""Arguments of other kinds than public functions take end in one line that names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

import tempera
from tempera.arguments import fits, kind, refuse_other_kinds
from tempera.artifacts.recommender import Recommender
from tempera.artifacts.run_folder import Run
from tempera.errors import ConfigError
from tempera.mining.hard_negatives import Mining

COMMANDS = (
    "calibrate", "distill", "evaluate", "evaluate_held_out", "export_held_out", "learn", "merge", "mine", "sweep", "train",
    "tune", "verify",
)  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("wrong", [5, True, b"pairs.csv", object()])
def test_every_argument_of_every_command_is_checked_before_anything_is_read(name: str, wrong: object) -> None:
    function = getattr(tempera, name)
    hints = inspect.get_annotations(function, eval_str=True)
    parameters = inspect.signature(function).parameters.values()
    needed = [each.name for each in parameters if each.default is each.empty]  # of which one may stand for several
    refused = [each.name for each in parameters if hints[each.name] is not Any and not fits(hints[each.name], wrong)]
    assert refused
    for argument in refused:
        if name == "evaluate" and argument == "data":
            continue  # tests/text/test_evaluate.py
        others = {} if argument in needed else {argument: wrong}
        with pytest.raises(ConfigError) as error:
            function(*(wrong if each == argument else "nowhere" for each in needed), **others)
        assert f"{argument} is" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (str | Path | None, ["a", Path("a"), None], [5, b"a", ["a"], True]),
        (int, [3, np.int64(3)], [True, 2.5, "3", None]),
        (float, [3, 2.5, np.float32(1)], [True, "3", None]),
        (bool, [True], [0, "yes", None]),
        (Literal["no", "auto"], ["no"], ["yes", None, ["no"]]),
        (Sequence[str], [["a"], (), {"a"}, pa.array(["a"]).to_pylist()], ["a", b"a", {"a": 1}, [1], 5, iter("a")]),
        (Iterable[str], [["a"], iter("a")], ["a", 5]),
        (Sequence[float] | None, [np.ones(2), [1, 2.5], None], [0.9, ["all"], "x"]),
        (Sequence[Any], [pa.array(["a"]), [object()]], ["a", 5]),
        (tuple[float, float], [(1.0, 2.0)], [[1.0, 2.0]]),
        (Mapping[str, Any] | str, [{}, "a"], [[("a", 1)], None]),
        (Mining | None, [Mining(), None], [{"negatives": 3}]),
        (Callable[[int], int], [abs], [5]),
        (Any, [5, None], []),
    ],
)
def test_values_fit_their_annotations(hint: Any, good: list[Any], bad: list[Any]) -> None:
    assert [fits(hint, value) for value in good] == [True] * len(good)
    assert [fits(hint, value) for value in bad] == [False] * len(bad)


def test_annotations_are_said_in_words() -> None:
    assert kind(Mapping[str, Any] | str | Path | None) == "a mapping, a text, a path or None"
    assert kind(Sequence[int] | Literal["all"]) == "a list, each a whole number or all"
    assert (kind(Mining), kind(Sequence[Any])) == ("a Mining", "a list")


def test_any_number_of_arguments_are_each_checked() -> None:
    def read(*paths: str, width: int = 8, **options: Any) -> None:
        refuse_other_kinds(read, locals())

    read("a", "b", width=2, other=object())
    with pytest.raises(ConfigError, match="read: paths is a text, not 5"):
        read("a", 5)  # type: ignore[arg-type]


def test_what_opens_a_run_is_checked_too() -> None:
    for function in (Run.search, Run.export, Run.add_items, Run.recommend_all, Recommender.recommend):
        refuse_other_kinds(function, dict.fromkeys(_optional(function)))
    with pytest.raises(ConfigError, match="search: onnx is a text, a path or None, not 5"):
        refuse_other_kinds(
            Run.search, {"query": "a", "k": 5, "index": None, "onnx": 5, "threshold": None, "hybrid": True}
        )


def _optional(function: Callable[..., Any]) -> list[str]:
    return [each for each in inspect.signature(function).parameters if each != "self"]
