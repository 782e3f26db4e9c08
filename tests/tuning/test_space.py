"""A space is read as it was meant, or refused in one line that says where."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tempera.errors import ConfigError
from tempera.experiments.ranges import Range
from tempera.tuning.space import Choices, Space

WRITTEN = """
objective.temperature: 0.005:1:log
train.batch_size: 16:64:int:step 16
"objective.corrections":
  "[]":
  "[log_q]":
    train.sampled: [0, 64]
tower.kind:
  static:
    tower.dimensions: [64, 128]
  transformer:
    tower.dimensions: 32:128:int:log
    train.learning_rate: 1e-5:1e-3:log
"""


@pytest.fixture
def space(tmp_path: Path) -> Space:
    (tmp_path / "space.yaml").write_text(WRITTEN)
    return Space.of(tmp_path / "space.yaml")


def test_it_is_read_as_written(space: Space, tmp_path: Path) -> None:
    domains = {field.name: field.domain for field in space.fields}
    assert list(domains) == [
        "objective.temperature",
        "train.batch_size",
        "objective.corrections",
        "train.sampled",
        "tower.kind",
        "tower.dimensions (tower.kind=static)",
        "tower.dimensions (tower.kind=transformer)",
        "train.learning_rate",
    ]
    assert domains["objective.temperature"] == Range(0.005, 1, log=True)
    assert domains["train.batch_size"] == Range(16, 64, whole=True, step=16)
    assert domains["tower.dimensions (tower.kind=transformer)"] == Range(
        32, 128, log=True, whole=True
    )
    assert domains["train.learning_rate"] == Range(1e-5, 1e-3, log=True)
    corrections = domains["objective.corrections"]
    assert isinstance(corrections, Choices)
    assert corrections.values == ([], ["log_q"]) and corrections.labels == ("[]", "[log_q]")
    assert [field.place for field in space.fields][:2] == [
        f"{tmp_path}/space.yaml:{line}" for line in (2, 3)
    ]


def test_a_choice_opens_its_own_fields_only(space: Space) -> None:
    stored = {
        "objective.temperature": 0.1,
        "train.batch_size": 32,
        "objective.corrections": "[log_q]",
        "train.sampled": 64,
        "tower.kind": "static",
        "tower.dimensions (tower.kind=static)": 128,
        "tower.dimensions (tower.kind=transformer)": 50,
    }
    assert space.values(stored) == {
        "objective.temperature": 0.1,
        "train.batch_size": 32,
        "objective.corrections": ["log_q"],
        "train.sampled": 64,
        "tower.kind": "static",
        "tower.dimensions": 128,
    }


def test_corners_have_every_end_and_every_choice(space: Space) -> None:
    """The definition: walk the written space in loops."""
    found = space.corners()
    for field, values in {
        "objective.temperature": {0.005, 1},
        "train.batch_size": {16, 64},
        "train.sampled": {0, 64},
        "tower.kind": {"static", "transformer"},
        "tower.dimensions": {64, 128, 32},
        "train.learning_rate": {1e-5, 1e-3},
    }.items():
        assert {setting[field] for setting in found if field in setting} == values, field
    for setting in found:
        assert ("train.sampled" in setting) == (setting["objective.corrections"] == ["log_q"])
        assert ("train.learning_rate" in setting) == (setting["tower.kind"] == "transformer")
        names = list(setting)
        assert names.index("tower.kind") < names.index(
            "tower.dimensions"
        )  # what opens goes before what is opened


def test_what_a_study_tries_lies_in_the_space(space: Space) -> None:
    optuna = pytest.importorskip("optuna")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
    for _ in range(60):
        trial = study.ask()
        values = space.ask(lambda field, trial=trial: field.suggest(trial))
        assert space.values(trial.params) == values
        assert 0.005 <= values["objective.temperature"] <= 1
        assert values["train.batch_size"] in (16, 32, 48, 64)
        assert ("train.sampled" in values) == (values["objective.corrections"] == ["log_q"])
        inside = (64, 128) if values["tower.kind"] == "static" else range(32, 129)
        assert values["tower.dimensions"] in inside
        study.tell(trial, random.random())


def test_one_and_true_are_two_choices() -> None:
    space = Space.of({"a.b": [0.5, 1, True], "c.d": [1, True]})
    assert [space.values({"a.b": label, "c.d": label})["a.b"] for label in ("1", "true")] == [
        1,
        True,
    ]
    assert [type(setting["c.d"]) for setting in space.corners()] == [int, int, int, bool]
    with pytest.raises(ConfigError, match="has 1 twice"):
        Space.of({"a.b": [1, 1]})


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("objective.temperature: 3", "objective.temperature: cannot read 3; write low:high:log"),
        ("objective.temperature: 1:30", "cannot read '1:30'; write"),
        ("temperature: 0.1:1:log", "temperature: an option has a section"),
        ("objective.temperature: 0:1:log", "low must be lower than high, and above 0"),
        ("objective.temperature: 1:0.1:linear", "low must be lower than high"),
        ("objective.temperature: 0.1:1:lgo", "Did you mean log?"),
        ("objective.temperature: {low: 0.01, high: 0.2, log: true}", "write 0.01:0.2:log"),
        ("objective.temperature: a:1:log", "cannot read 'a:1:log': a range has finite numbers"),
        ("train.batch_size: 1:2.5:int", "a range of kind int has whole numbers"),
        ("train.batch_size: 1:10:int:step 4", "steps of 4 from 1 do not lead to 10"),
        ("train.batch_size: 1:10:int:log:step 3", "goes with linear or int only"),
        ("train.batch_size: [64]", "has 1 choice"),
        ("train.batch_size: [64, 64]", "has 64 twice"),
        ("train.seed: [1, 2]", "train.seed cannot be tuned"),
        ("train.refit: [none, all]", "leave train.refit to `tempera train`"),
        ("mining.again: [0, 3]", "leave mining.again to `tempera train`"),
        (
            "tower.kind: {static: 3, transformer: }",
            "the choice static opens 3; give a mapping of fields, or nothing",
        ),
        ("tower.kind: {static: {tower.kind: [a, b]}, transformer: }", "tower.kind: defined twice"),
        (
            "tower.kind: {static: {train.epochs: 3}, transformer: }",
            "train.epochs: cannot read 3; write",
        ),
        ("objective.temperature: 0.1:1:log\nobjective.temperature: 0.2:1:log", "written twice, at"),
        ("[1]", "holds list"),
        ("", "no field to choose"),
    ],
)
def test_what_cannot_be_meant_is_told(written: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(written)
    with pytest.raises(ConfigError) as caught:
        Space.of(path)
    assert says in str(caught.value) and str(path) in str(caught.value)


def test_a_space_of_python_needs_no_file() -> None:
    given: dict[str, Any] = {"objective.temperature": (0.1, 0.5)}
    (field,) = Space.of(given).fields
    assert field.domain == Choices((0.1, 0.5)) and field.place == ""


def test_a_range_with_a_count_is_a_list_of_choices() -> None:
    (field,) = Space.of({"objective.temperature": "0.01:1:log:3"}).fields
    assert field.domain == Choices((0.01, 0.1, 1))


@pytest.mark.parametrize("name", ["space.json", "pairs.csv", "folder"])
def test_a_space_is_yaml(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir() if name == "folder" else (tmp_path / name).write_text("{}")
    with pytest.raises(
        ConfigError, match=f"{name} is no space: give a YAML file, whose name ends in .yaml"
    ):
        Space.of(tmp_path / name)


def test_choices_within_choices_have_names_of_their_own(tmp_path: Path) -> None:
    inner = {
        "train.optimizer": {
            "adamw": {"train.made_rows": [0, 1]},
            "sgd": {"train.made_rows": [0, 2]},
        }
    }
    names = [
        field.name
        for field in Space.of({"tower.kind": {"static": inner, "transformer": inner}}).fields
    ]
    assert len(names) == len(set(names)) == 7
    assert "train.made_rows (train.optimizer (tower.kind=static)=sgd)" in names
