"""The recipe: what a configuration leaves open follows the data, and what it says is left alone."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import yaml

from tempera.engine.batches import Shuffled
from tempera.engine.devices import Devices, start
from tempera.engine.faults import Fault, NotFinite
from tempera.errors import ConfigError, DataError
from tempera.experiments.sweep import sweep
from tempera.experiments.template import Template
from tempera.options import yaml_options as config
from tempera.options.build import build, with_options
from tempera.ranking.compare import Floats
from tempera.run import race as racing
from tempera.run import train as resolved_run
from tempera.run.prepare import Prepared
from tempera.run.recipe import opened, shown, train
from tempera.task.rounds import Setting
from tempera.towers import static
from tempera.towers.pretrained import Pretrained
from tempera.towers.static import Static

from ..conftest import planted, write_pairs

TEMPERATURE, RATE, DIMENSIONS = "objective.temperature", "train.learning_rate", "tower.dimensions"
WEIGHTS = "tower.token_weights"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Enough validation queries to choose by, in a run of a second."""
    pairs = write_pairs(tmp_path_factory.mktemp("recipe") / "pairs.jsonl", planted(400))
    return {
        "data": {"path": str(pairs)},
        "tower": {"dimensions": 16, "vocabulary": 300},
        "train": {"num_train_epochs": 4, "evaluations": 1, "save_steps": 5},
        "evaluation": {"queries": 60, "validation": 60, "bm25": False},
    }


@pytest.fixture(scope="module")
def raced(options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run of these options; look, do not touch."""
    return train(options, tmp_path_factory.mktemp("raced") / "run")


def tried(folder: Path) -> dict[str, Any]:
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    (record,) = [event for event in log if event["event"] == "recipe"]
    return dict(record)


def test_what_is_open_is_raced_and_written_down(raced: Any, tmp_path: Path) -> None:
    run = raced
    record, written = tried(run.folder), yaml.safe_load((run.folder / "config.yaml").read_text())
    assert len(record["tried"]) == 5  # three rates, then two temperatures at the best of them
    assert {tuple(each["values"]) for each in record["tried"]} == {(TEMPERATURE, RATE)}
    last = [each for each in record["tried"] if each["steps"] == record["tried"][-1]["steps"]]
    assert record["chosen"] == max(last, key=lambda each: each["score"])["values"]
    assert written["objective"]["temperature"]["value"] == record["chosen"][TEMPERATURE]
    assert written["train"]["learning_rate"] == record["chosen"][RATE]
    assert written["train"]["batch_size"] == 32 and run.results["seconds"]["race"]["cpu"] > 0
    # The run's own configuration leaves nothing open, so it makes the same run without a race.
    again = train(run.folder / "config.yaml", tmp_path / "again")
    assert again.results["metrics"] == run.results["metrics"]
    assert "race" not in again.results["seconds"]


def test_an_interrupted_run_keeps_its_winner(
    raced: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(BaseException):
        pass

    from tempera.run import fit as fitting

    take, steps = fitting.loop.take, []

    def stopping(state: Any, *rest: Any) -> Any:
        if (
            state.step == 12 and rest[1] > 30
        ):  # in the run itself, which is longer than what its candidates take
            raise Stopped
        steps.append(state.step)
        return take(state, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(fitting.loop, "take", stopping)
        with pytest.raises(Stopped):
            train(options, tmp_path / "run")
    monkeypatch.setattr(racing, "run_race", None)  # a second race would fail
    (log,) = (tmp_path / "run.checkpoints").glob("step-*/log.jsonl")
    whole_log = log.read_text()
    log.write_text(
        whole_log[: whole_log.rindex("\n", 0, len(whole_log) // 2) + 2]
    )  # and the first sign of a line
    with pytest.raises(DataError, match="is a damaged checkpoint"):
        train(options, tmp_path / "run")
    log.write_text(whole_log)
    run = train(options, tmp_path / "run")
    assert tried(run.folder)["chosen"] == tried(raced.folder)["chosen"]
    assert run.results["metrics"] == raced.results["metrics"]


def test_what_the_user_sets_is_left_alone(options: dict[str, Any], tmp_path: Path) -> None:
    own = {
        **options,
        "objective": {"temperature": 0.07},
        "train": {**options["train"], "batch_size": 48},
    }
    run = train(own, tmp_path / "run")
    written = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert (
        written["objective"]["temperature"]["value"] == 0.07
        and written["train"]["batch_size"] == 48
    )
    assert {tuple(each["values"]) for each in tried(run.folder)["tried"]} == {(RATE,)}


@pytest.mark.parametrize(
    "change", [{"recipe": "none"}, {"evaluation": {"queries": 60, "validation": 40, "bm25": False}}]
)
def test_nothing_is_chosen_by_too_few_queries_or_on_request(
    options: dict[str, Any], tmp_path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(racing, "run_race", None)
    run = train({**options, **change}, tmp_path / "run")
    written = yaml.safe_load((run.folder / "config.yaml").read_text())
    rate = 0.003 if "recipe" in change else 0.001  # few pairs take the lowest of the race's
    assert (
        written["objective"]["temperature"]["value"] == 0.05
        and written["train"]["learning_rate"] == rate
    )


def test_static_towers_learn_weights_of_tokens_unless_a_user_says_otherwise() -> None:
    def chosen(*given: str) -> Any:
        return build(opened(config.load(None, given))[0]).tower.token_weights  # type: ignore[union-attr]

    assert chosen() and not chosen("tower.token_weights=false")
    assert not chosen("recipe=none") and chosen("recipe=none", "tower.token_weights=true")
    assert (
        Static().race(20_001, 10).start[WEIGHTS] is False
        and WEIGHTS not in Static().race(20_000, 10).start
    )


def test_open_options() -> None:
    assert opened(config.load(None))[1] == [TEMPERATURE, RATE, DIMENSIONS, WEIGHTS]
    set_by_hand = ["train.learning_rate=1e-3", "tower.dimensions=8", "tower.token_weights=true"]
    assert opened(config.load(None, set_by_hand))[1] == [TEMPERATURE]
    options, free = opened(config.load(None, ["objective.temperature=auto", "recipe=auto"]))
    assert (
        free == [TEMPERATURE, RATE, DIMENSIONS, WEIGHTS]
        and "temperature" not in options.values["objective"]
    )
    assert opened(config.load(None, ["recipe=none"]))[1] == []
    options, free = opened(
        config.load(None, ["objective.temperature=auto", "tower.kind=transformer"])
    )
    assert (
        not free and options.values["objective"]["temperature"] == "auto"
    )  # 1 / log(candidates), as documented
    with pytest.raises(
        ConfigError, match=r"^recipe: is 'best'; expected auto or none \(command line\)$"
    ):
        build(config.load(None, ["recipe=best"]))


def test_runs_of_a_sweep_keep_one_default_of_what_is_open(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    left = {
        **options,
        "objective": {"temperature": "auto"},
        "train": {**options["train"], "learning_rate": "auto"},
    }
    with caplog.at_level("INFO", "tempera"):
        template = Template.of(left, [], None)
        template.log_kept_defaults()
    assert "objective.temperature=0.05, train.learning_rate=0.003" in caplog.text
    for made in (template.base, template.config({"train.batch_size": 16})):
        assert (
            made.base.temperature.value == pytest.approx(0.05) and made.train.learning_rate == 0.003
        )


def test_many_long_texts_are_raced_for_their_rate_alone(
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And the log tells what validation has chosen from what it has not."""
    monkeypatch.setattr(static, "SHORT", 1)
    monkeypatch.setattr(static, "_MANY_TOKENS", 1)
    with caplog.at_level("INFO"):
        record = tried(train(options, tmp_path / "run").folder)
    assert [each["values"] for each in record["tried"]] == [
        {TEMPERATURE: 0.04, RATE: r} for r in (0.003, 0.001)
    ]
    assert (
        f"chosen on validation: learning_rate={record['chosen'][RATE]:g}; by the data: temperature=0.04"
        in caplog.text
    )


def test_print_config_shows_what_will_be_chosen() -> None:
    resolved = build(config.load(None)).resolved
    assert shown(resolved, [TEMPERATURE, RATE])["objective"]["temperature"] == "auto"
    assert (
        shown(resolved, [RATE])["train"]["learning_rate"]
        == resolved["train"]["batch_size"]
        == "auto"
    )
    pretrained, free = opened(config.load(None, ["tower={kind: pretrained, model: m}"]))
    assert shown(build(pretrained).resolved, free)["train"]["learning_rate"] == 5e-5


def test_a_race_begins_with_the_default() -> None:
    made = build(config.load(None))
    many = Static().race(
        10_001, 100
    )  # more than a million tokens of long texts, whose temperature is known
    assert many.start == {TEMPERATURE: 0.04, RATE: 0.003}
    race = Static().race(20_000, 63)
    assert race.start == {TEMPERATURE: 0.05, RATE: 0.003, DIMENSIONS: 1024}
    assert Static().race(2_499, 100).start == race.start  # few long ones
    assert (
        Static().race(2_500, 100).start
        == Static().race(10_000, 100).start
        == {**many.start, DIMENSIONS: 1024}
    )
    for pairs, tokens in ((20_000, 63), (10_000, 100)):
        assert DIMENSIONS not in Static(teacher="runs/a").race(pairs, tokens).start
    assert DIMENSIONS not in Static().race(20_001, 40).start
    rates, temperatures = [[each.values for each in one.variations] for one in race.rounds]
    assert rates == [{RATE: 0.003}, {RATE: 0.01}, {RATE: 0.001}]
    assert temperatures == [{TEMPERATURE: 0.05}, {TEMPERATURE: 0.1}]
    (rate,) = many.rounds
    assert [each.values for each in rate.variations] == [{RATE: 0.003}, {RATE: 0.001}]
    assert [each.values for each in rate.beyond] == [{RATE: 0.01}]
    assert race.among([]).settings() == [Setting({})]
    other = with_options(made, {TEMPERATURE: 0.1, RATE: 0.01})
    assert (other.base.temperature.value, other.train.learning_rate) == (pytest.approx(0.1), 0.01)
    assert made.base.temperature.value == pytest.approx(0.05) and made.train.learning_rate == 0.003


def test_options_of_interactions_stay_theirs() -> None:
    made = build(
        config.of(
            {"data": {"source": "interactions", "path": "a.csv"}, "evaluation": {"baselines": True}}
        )
    )
    other = with_options(made, {RATE: 0.01})
    assert (
        other.evaluation.baselines and other.data is made.data and other.train.learning_rate == 0.01
    )


def test_an_automatic_temperature_that_learns_has_a_value_after_a_race(
    options: dict[str, Any], tmp_path: Path
) -> None:
    learned = {**options, "objective": {"temperature": {"value": "auto", "learnable": True}}}
    run = train(learned, tmp_path / "run")
    assert [set(each["values"]) for each in tried(run.folder)["tried"]] == [{RATE}] * 3
    written = yaml.safe_load((run.folder / "config.yaml").read_text())["objective"]["temperature"]
    assert written["learnable"] and run.metrics


def test_a_setting_that_diverges_loses_the_race(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, fault = racing.trained, Fault(1, "loss", (), "the rate is high")

    def diverging(prepared: Any, values: Any, steps: int) -> Any:
        if values[RATE] == pytest.approx(diverges):
            raise NotFinite(fault)
        return trained(prepared, values, steps)

    monkeypatch.setattr(racing, "trained", diverging)
    diverges = 0.001
    record = tried(train(options, tmp_path / "run").folder)
    scores = {
        each["values"][RATE]: each["score"]
        for each in record["tried"]
        if each["values"][TEMPERATURE] == 0.05
    }
    assert scores[diverges] == 0 < min(score for rate, score in scores.items() if rate != diverges)
    monkeypatch.setattr(racing, "trained", lambda *_: (_ for _ in ()).throw(NotFinite(fault)))
    with pytest.raises(NotFinite):  # as all of them do
        train(options, tmp_path / "none")


@dataclass
class OfDevices:
    """As much of a prepared run as a race of pretended scores needs."""

    devices: Devices


@pytest.mark.parametrize(
    ("maximum", "noise", "tried"),
    [
        (0.045, 0.0, [0.05, 0.1, 0.035]),
        (0.02, 0.0, [0.05, 0.1, 0.035]),  # no lower one is left
        (0.11, 0.0, [0.05, 0.1, 0.14]),
        (0.3, 0.0, [0.05, 0.1, 0.14]),
        (0.03, 1.0, [0.05, 0.1]),  # a lead that may be chance
    ],
)
def test_a_race_goes_beyond_the_temperature_that_is_shown_best(
    monkeypatch: pytest.MonkeyPatch, maximum: float, noise: float, tried: list[float]
) -> None:
    """And takes the best of what it has tried; the scores are a parabola of the logarithm, with its
    maximum there."""
    chance, draws = np.random.default_rng(0), list[float]()

    def trained(_: object, values: dict[str, float], steps: int) -> Floats:
        assert steps in (20, 40)
        draws.append(values[TEMPERATURE])
        rate, temperature = (
            math.log(values[name] / best) for name, best in ((RATE, 0.01), (TEMPERATURE, maximum))
        )
        return 0.8 - 0.01 * rate**2 - 0.05 * temperature**2 + noise * chance.normal(size=100)

    monkeypatch.setattr(racing, "trained", trained)
    texts = Static(dimensions=512).race(2_000, 100).among([TEMPERATURE, RATE])
    race = replace(texts, score=lambda scores: scores)
    record, winner = racing.run_race(cast(Prepared, OfDevices(start("no"))), race, 120)
    of_temperatures = record[3:]
    assert {each.steps for each in record} == {20}
    assert [each.values[TEMPERATURE] for each in of_temperatures] == tried
    # The best rate has been trained at the first temperature.
    assert len(draws) == 3 + len(tried) - 1
    assert winner == max(of_temperatures, key=lambda each: each.score).setting
    assert winner.values in [each.values for each in race.settings()]
    if not noise:
        assert winner.values[RATE] == 0.01 and winner.values[TEMPERATURE] == min(
            tried, key=lambda t: abs(math.log(t / maximum))
        )
    assert len(race.among([RATE, DIMENSIONS]).settings()) == 3


@pytest.mark.parametrize(
    ("tower", "rate", "width", "narrower", "faster"),
    [
        ({}, None, 1024, 512, 2**0.5),
        ({"dimensions": 24}, None, 24, 24, 1),
        ({}, 0.004, 1024, 1024, 1),
    ],
)
def test_short_texts_are_embedded_in_more_dimensions(
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tower: dict[str, Any],
    rate: float | None,
    width: int,
    narrower: int,
    faster: float,
) -> None:
    """In what is saved and in what is searched, unless the user has set a width; settings that race
    are tried at half of it."""
    monkeypatch.setattr("tempera.run.publish.render", lambda report: "")
    trials, inner = list[tuple[int, float]](), racing.trained

    def trained(prepared: Prepared, values: dict[str, Any], steps: int) -> Any:
        task = inner(prepared, values, steps)
        weights, table = task.data.tower.of("doc").parameters()
        assert table.shape[:1] == weights.shape and weights.any()  # what the recipe sets, learned
        trials.append((table.shape[1], values.get(RATE, rate)))
        return task

    monkeypatch.setattr(racing, "trained", trained)
    given = {} if rate is None else {"learning_rate": rate}
    options = {
        **options,
        "tower": {"vocabulary": 300, **tower},
        "train": {**options["train"], **given},
    }
    run = train(options, tmp_path / "run")
    # The best rate has been tried at the first temperature, too.
    distinct = {str(each["values"]): each["values"] for each in run.results["recipe"]["tried"]}
    rates = [values.get(RATE, rate) for values in distinct.values()]
    assert trials == [(narrower, pytest.approx(each * faster)) for each in rates]
    assert config.load(run.folder / "config.yaml").values["tower"]["dimensions"] == width
    assert run.index.vectors.shape == (400, width) and run.encode(["a"]).shape == (1, width)
    tried = [each["values"].get(DIMENSIONS) for each in run.results["recipe"]["tried"]]
    assert tried == [None if tower else 1024] * (5 if rate is None else 2)


def test_queries_for_an_index_keep_its_width() -> None:
    two = {"query": {"kind": "static"}, "doc": {"index": "a.npy"}}
    assert opened(config.load(None, [f"tower={json.dumps(two)}"]))[1] == [TEMPERATURE, RATE]


@pytest.mark.parametrize("pairs", [2, 20, 50, 200, 700, 3000, 12_000, 100_000, 10**7])
def test_a_schedule_fits_the_number_of_pairs(pairs: int) -> None:
    for tower in (Static(), Pretrained("m")):
        batch, epochs = tower.schedule(pairs)
        assert 2 <= batch <= max(2, pairs) and epochs >= 1
    batch, epochs = Static().schedule(pairs)
    if pairs >= 700:
        assert epochs * pairs / batch >= 50  # steps


def test_a_pretrained_tower_takes_many_steps_of_few_pairs() -> None:
    pretrained = Pretrained("m")
    assert [pretrained.schedule(n) for n in (50, 4_000, 6_000, 9_600)] == [
        (16, 3),
        (16, 3),
        (32, 3),
        (64, 3),
    ]
    assert [pretrained.schedule(n, large=True) for n in (50, 200, 600, 1_200)] == [
        (16, 3),
        (16, 3),
        (32, 3),
        (64, 3),
    ]
    for n in range(300, 6_000, 50):  # fewer steps than 50 are too few
        batch, epochs = pretrained.schedule(n, large=True)
        assert math.ceil(n / batch) * epochs >= 50


def test_every_row_is_trained_on_in_every_epoch() -> None:
    sampler = Shuffled(2257, 2048, seed=3)
    rows = list(sampler(0, sampler.batches_per_epoch))
    assert torch.cat(rows).sort().values.equal(torch.arange(2257))
    assert [len(each) for each in rows] == [1128, 1129]
    assert [each.tolist() for each in sampler(1, 2)] == [rows[1].tolist()]


def test_run_itself_does_not_choose(options: dict[str, Any], tmp_path: Path) -> None:
    run = resolved_run.train(
        {**options, "train": {**options["train"], "max_steps": 2}}, tmp_path / "run"
    )
    assert not any(
        json.loads(line)["event"] == "recipe" for line in (run.folder / "log.jsonl").open()
    )


def test_many_pairs_take_the_higher_rate_without_a_race(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(racing, "run_race", None)
    monkeypatch.setattr(static, "MOST_PAIRS", 200)
    run = train(options, tmp_path / "run")
    written = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert (
        written["objective"]["temperature"]["value"] == 0.05
        and written["train"]["learning_rate"] == 0.01
    )


def test_a_sweep_names_the_defaults_that_it_does_not_vary(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level("INFO", "tempera"):
        template = Template.of({}, [], None, ["objective.temperature"])
        with pytest.raises(ConfigError, match="more than 1,000"):
            sweep({}, {"objective.temperature": "0.01:1:linear:1001"}, output=tmp_path / "sweep")
        assert not caplog.records  # what is refused is the only line
        template.log_kept_defaults()
    (line,) = (record.message for record in caplog.records if record.message.startswith("no race"))
    assert "train.learning_rate=0.003" in line and "temperature" not in line


def test_an_interrupted_race_goes_on_after_its_last_setting(
    raced: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, many = racing.trained, list[Any]()

    def stopping(prepared: Any, values: Any, steps: int) -> Any:
        if len(many) == stops:
            raise KeyboardInterrupt
        many.append(values)
        return trained(prepared, values, steps)

    monkeypatch.setattr(racing, "trained", stopping)
    for stops in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            train(options, tmp_path / "run")
        assert len(many) == stops and not (tmp_path / "run").exists()
    stops = -1
    run = train(options, tmp_path / "run")
    assert len(many) == 4  # each setting once, over three starts
    ours, theirs = tried(run.folder), tried(raced.folder)
    for each in (*ours["tried"], *theirs["tried"]):
        each.pop("seconds")
    assert ours == theirs and run.results["metrics"] == raced.results["metrics"]
    assert not (tmp_path / "run.checkpoints").exists()


def test_a_race_on_other_data_begins_anew(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(options["data"]["path"])
    mine = Path(shutil.copy(path, tmp_path / "mine.jsonl"))
    options["data"]["path"] = str(mine)
    trained, many, stops = racing.trained, list[Any](), 2

    def stopping(prepared: Any, values: Any, steps: int) -> Any:
        if len(many) == stops:
            raise KeyboardInterrupt
        many.append(values)
        return trained(prepared, values, steps)

    monkeypatch.setattr(racing, "trained", stopping)
    with pytest.raises(KeyboardInterrupt):
        train(options, tmp_path / "run")
    rows = mine.read_text().splitlines(keepends=True)
    mine.write_text("".join([*rows[1:], rows[0]]))
    stops = -1
    train(options, tmp_path / "run")
    assert len(many) == 2 + 4
