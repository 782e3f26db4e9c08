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
from tempera.artifacts.run_folder import Run
from tempera.errors import ConfigError
from tempera.mining.hard_negatives import Mining
from tempera.recommender.recommender import Recommender

COMMANDS = (
    "calibrate", "distill", "evaluate", "evaluate_held_out", "evaluate_mteb", "export_held_out", "learn", "merge", "mine", "sweep",
    "train", "tune", "verify",
)  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("wrong", [5, True, b"pairs.csv", object()])
def test_every_argument_of_every_command_is_checked_before_anything_is_read(
    name: str, wrong: object
) -> None:
    function = getattr(tempera, name)
    hints = inspect.get_annotations(function, eval_str=True)
    parameters = inspect.signature(function).parameters.values()
    needed = [
        each.name for each in parameters if each.default is each.empty
    ]  # of which one may stand for several
    refused = [
        each.name
        for each in parameters
        if hints[each.name] is not Any and not fits(hints[each.name], wrong)
    ]
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
        (bool, [True, np.bool_(False)], [0, "yes", None]),
        (Literal["no", "auto"], ["no"], ["yes", None, ["no"], np.ones(2)]),
        (
            Sequence[str],
            [["a"], (), {"a"}, pa.array(["a"]).to_pylist()],
            ["a", b"a", {"a": 1}, [1], 5, iter("a")],
        ),
        (Iterable[str], [["a"], iter("a")], ["a", 5]),
        (
            Sequence[float] | None,
            [[1, 2.5], (np.float32(1),), None],
            [0.9, ["all"], "x", np.ones(2), pa.array([1.0])],
        ),
        (Sequence[Any], [pa.array(["a"]), np.ones(2), [object()]], ["a", 5]),
        (tuple[float, float], [(1.0, 2.0), [1, 2.0]], [(1.0,), (1.0, None), 1.0]),
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


def test_what_asks_a_run_is_checked_too(tiny_run: Path, tmp_path: Path) -> None:
    run = Run(tiny_run)
    for call, says in (
        (lambda: run.search("a", onnx=5), "search: onnx is a text, a path or None, not 5"),  # type: ignore[arg-type]
        (lambda: run.search("a", hybrid="yes"), "search: hybrid is True or False, not 'yes'"),  # type: ignore[arg-type]
        (lambda: run.export(5), "export: to is a text, not 5"),  # type: ignore[arg-type]
        (
            lambda: run.add_documents([], remove=5),
            "add_documents: remove is a list, each a text, not 5",
        ),  # type: ignore[arg-type]
        (lambda: run.add_items(None), "add_items: path is a text or a path, not None"),  # type: ignore[arg-type]
        (lambda: run.recommend_all(7), "recommend_all: path is a text or a path, not 7"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=says):
            call()
    asked = dict.fromkeys(inspect.signature(Recommender.recommend).parameters) | {
        "k": 5,
        "exclude_seen": True,
        "diversity": 0.0,
    }
    refuse_other_kinds(Recommender.recommend, asked)
    with pytest.raises(ConfigError, match="recommend: index is a text, a path or None, not 5"):
        refuse_other_kinds(Recommender.recommend, {**asked, "index": 5})


def test_a_long_value_is_shown_by_its_beginning_in_one_line() -> None:
    with pytest.raises(ConfigError) as error:
        refuse_other_kinds(
            tempera.mine,
            {**dict.fromkeys(inspect.signature(tempera.mine).parameters), "model": np.eye(90)},
        )
    assert (
        "\n" not in str(error.value)
        and str(error.value).endswith("...")
        and len(str(error.value)) < 250
    )
