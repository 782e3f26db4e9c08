"""The temperature: fixed, scheduled, learned, taken from the run; what it refuses, what is saved;
cautions."""

from __future__ import annotations

import io
import itertools
import math
from dataclasses import replace

import examples
import pytest
import torch
from safetensors.torch import load, save

from tempera.core import presets
from tempera.core.advice import cautions
from tempera.core.batch import Batch, Side
from tempera.core.definition import defined_losses
from tempera.core.diagnose import diagnose
from tempera.core.objective import Objective
from tempera.core.similarity import cosine, dot
from tempera.core.temperature import Temperature, starting_value
from tempera.errors import ConfigError


def at(value: float) -> object:
    return pytest.approx(value, rel=1e-12)


def test_a_fixed_temperature() -> None:
    dial = Temperature(0.07)
    assert dial.value == at(0.07) and float(dial.scale()) == at(1 / 0.07)
    assert not dial.learnable and not dial.scale().requires_grad
    for progress in (0.0, 0.5, 1.0):
        dial.advance(progress)
    dial.resolve(1024, True)
    assert dial.value == at(0.07)
    assert Temperature(3.0, floor=0.1, ceiling=1.0).value == at(3.0)  # bounds are for training only


@pytest.mark.parametrize("value", [0, -0.1, math.nan])
def test_values_that_are_refused(value: float) -> None:
    for given in ({"value": value}, {"value": 0.1, "final": value}):
        with pytest.raises(ConfigError, match=rf"must be above 0 and is {value}"):
            Temperature(**given)


def test_an_infinite_temperature_is_refused_with_its_reason() -> None:
    with pytest.raises(ConfigError, match="every loss log"):
        Temperature(math.inf)


@pytest.mark.parametrize("value", [1e-40, 1e-39, 1e39])
def test_what_float32_cannot_hold_is_refused_with_usual_values(value: float) -> None:
    with pytest.raises(
        ConfigError,
        match=r"float32 cannot hold the scale of a temperature of .* usual values lie between",
    ):
        Temperature(value)


@pytest.mark.parametrize("value", [1e-30, 1e-9, 1e9])
def test_what_is_far_from_usual_has_a_caution(value: float) -> None:
    (caution,) = cautions(Objective(temperature=value))
    assert "usual values are 0.01 to 0.2" in caution


def test_a_schedule_ends_at_a_number() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^temperature: final is a number, since auto is .* begin with, not 'auto'$",
    ):
        Temperature(0.1, final="auto")  # type: ignore[arg-type]


def test_choices_that_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="learned or follows a schedule, not both"):
        Temperature(0.1, learnable=True, final=0.05)
    for value, floor, ceiling in (
        (0.005, 0.01, 1),
        (2.0, 0.01, 1),
        (0.1, 0.5, 0.05),
        (0.1, 0, 1),
        (0.1, -1, 1),
    ):
        with pytest.raises(ConfigError, match=r"starts within \[floor, ceiling\]"):
            Temperature(value, learnable=True, floor=floor, ceiling=ceiling)
    assert (
        Temperature(0.01, learnable=True).learnable and Temperature(1.0, learnable=True).learnable
    )
    with pytest.raises(ConfigError, match=r"starts within \[floor, ceiling\]"):
        Temperature("auto", learnable=True, floor=2.0)


# Learned
# -----------------------------------------------------------------------------------------------------------


def step(dial: Temperature, slope: float) -> float:
    """One step of gradient descent down slope x scale; the temperature after it."""
    dial.log_scale.grad = None
    (slope * dial.scale()).backward()
    assert dial.log_scale.grad is not None and float(dial.log_scale.grad) != 0
    with torch.no_grad():
        dial.log_scale -= 0.3 * dial.log_scale.grad.sign()
    return 1 / float(dial.scale().detach())


def test_freezing_a_model_and_unfreezing_it_leaves_a_fixed_temperature_fixed() -> None:
    objective = presets.mnr(0.005)
    objective.requires_grad_(False).requires_grad_(True)
    assert (
        objective.temperature.value == pytest.approx(0.005) and not objective.temperature.learnable
    )
    assert not list(objective.parameters())
    learned = Temperature(0.05, learnable=True).requires_grad_(False)
    assert not learned.learnable and learned.requires_grad_(True).learnable


def test_a_learned_temperature_stays_within_its_bounds_and_returns() -> None:
    dial = Temperature(0.3, learnable=True, floor=0.1, ceiling=0.5)
    path = [step(dial, slope) for slope in [-1] * 8 + [1] * 10 + [-1] * 3]
    assert path[0] == at(0.3 * math.exp(-0.3))
    assert path[7] == at(0.1) and min(path) >= 0.1 * (1 - 1e-12)
    assert path[8] == at(0.1 * math.exp(0.3))  # one step brings it back from a bound
    assert path[17] == at(0.5) and max(path) <= 0.5 * (1 + 1e-12)
    assert path[18] == at(0.5 * math.exp(-0.3))
    assert dial.value == at(path[-1])
    for left, value in (
        (9.0, 0.1),
        (-9.0, 0.5),
    ):  # as an optimiser may leave it: what is reported is what will be used
        with torch.no_grad():
            dial.log_scale.fill_(left)
        assert dial.value == at(value) == at(1 / float(dial.scale().detach()))


def test_a_learned_temperature_follows_the_gradient_of_the_loss() -> None:
    """Pairs that are alike are served by a lower temperature, pairs that are not by a higher
    one."""
    for docs, lower in ((torch.eye(4), True), (torch.eye(4).roll(1, 0), False)):
        dial = Temperature(0.3, learnable=True)
        batch = Batch(Side(torch.eye(4)), Side(docs))
        objective = Objective(cosine, dial)
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            objective.propagate(batch, batch.shares())
            optimizer.step()
        assert (dial.value < 0.29) if lower else (dial.value > 0.31)


def test_the_parameter_is_float64_and_the_only_one() -> None:
    objective = presets.mnr(Temperature(0.05, learnable=True))
    assert [(name, p.dtype) for name, p in objective.named_parameters()] == [
        ("temperature.log_scale", torch.float64)
    ]
    assert not [p for p in presets.mnr().parameters() if p.requires_grad]


# Scheduled
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "quarter"), [("linear", 0.25), ("cosine", (1 - math.sqrt(0.5)) / 2)]
)
@pytest.mark.parametrize(("start", "final"), [(0.1, 0.02), (0.02, 0.1), (1.0, 1.0)])
def test_a_schedule_goes_from_one_end_to_the_other(
    start: float, final: float, schedule: str, quarter: float
) -> None:
    dial = Temperature(start, final=final, schedule=schedule)
    assert dial.value == at(start)
    places = {
        0.0: start,
        0.25: start * (final / start) ** quarter,
        0.5: math.sqrt(start * final),
        1.0: final,
    }
    for progress, value in places.items():
        dial.advance(progress)
        assert dial.value == at(value) and float(dial.scale()) == at(1 / value)
    path = []
    for k in range(11):
        dial.advance(k / 10)
        path.append(dial.value)
    assert path == sorted(path, reverse=final < start)


# Auto
# --------------------------------------------------------------------------------------------------------------


def test_the_rule_of_the_starting_value() -> None:
    for candidates in (8, 128, 1024, 65536):
        assert starting_value(candidates, True) == at(1 / math.log(candidates))
        assert starting_value(candidates, False) == 1.0
    assert starting_value(1, True) == starting_value(2, True) == 1.0  # kept within [0.01, 1]
    assert starting_value(10**50, True) == 0.01


def test_auto_takes_its_value_once() -> None:
    dial = Temperature("auto")
    with pytest.raises(ConfigError, match="auto and has no value yet"):
        dial.scale()
    dial.resolve(1024, True)
    assert dial.value == at(1 / math.log(1024))
    dial.resolve(8, True)
    assert dial.value == at(1 / math.log(1024))
    learned = Temperature("auto", learnable=True, floor=0.2, ceiling=0.3)
    learned.resolve(1024, True)
    assert learned.value == at(0.2) and learned.learnable
    learned = Temperature("auto", learnable=True, floor=0.01, ceiling=0.1)
    learned.resolve(1024, True)
    assert learned.value == at(0.1)


def test_auto_is_where_a_schedule_starts() -> None:
    dial = Temperature("auto", final=0.02)
    dial.advance(0.5)  # nothing to go on yet
    dial.resolve(1024, True)
    for progress, value in ((0.0, 1 / math.log(1024)), (1.0, 0.02)):
        dial.advance(progress)
        assert dial.value == at(value)


# Checkpoints
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learnable", [False, True])
def test_a_checkpoint_restores_the_temperature(learnable: bool) -> None:
    before = Temperature("auto", learnable=learnable)
    before.resolve(1000, True)
    if learnable:
        step(before, -1.0)
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    for state in (
        torch.load(io.BytesIO(file.getvalue()), weights_only=True),
        load(save(before.state_dict())),
    ):
        for after in (
            Temperature(0.5, learnable=learnable),
            Temperature("auto", learnable=learnable),
        ):
            after.load_state_dict(state)
            assert after.value == before.value and after.learnable == learnable
            after.resolve(7, True)  # is settled already
            assert after.value == before.value


def test_a_schedule_goes_on_after_a_checkpoint() -> None:
    before, after = Temperature(0.1, final=0.02), Temperature(0.1, final=0.02)
    before.advance(0.3)
    after.load_state_dict(before.state_dict())
    assert after.value == before.value
    for dial in (before, after):
        dial.advance(0.7)
    assert after.value == before.value == at(0.1**0.3 * 0.02**0.7)


def test_a_schedule_from_auto_goes_on_after_a_checkpoint() -> None:
    before, after = Temperature("auto", final=0.02), Temperature("auto", final=0.02)
    before.resolve(1024, True)
    before.advance(0.3)
    after.load_state_dict(before.state_dict())
    for dial in (before, after):
        dial.resolve(1024, True)
        dial.advance(0.7)
    assert after.value == before.value


# A batch's own
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dial", [0.07, Temperature(0.07, learnable=True), Temperature("auto")])
def test_a_batch_may_have_its_own(dial: float | Temperature) -> None:
    for parts, data in zip(
        examples.sampled(90, 6), itertools.cycle([examples.made(4), examples.made(5, shared=True)])
    ):
        objective, ordinary = examples.objective_of(parts, dial), examples.objective_of(parts)
        want = examples.defined(data, parts)
        batch, other = (examples.batch_of(data, grad=True) for _ in range(2))
        batch = replace(batch, temperature=examples.T)
        torch.testing.assert_close(objective(batch), want, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(
            defined_losses(objective, batch).detach(), want, rtol=1e-11, atol=1e-11
        )
        torch.testing.assert_close(
            objective.propagate(batch, batch.shares()), want, rtol=1e-11, atol=1e-11
        )
        ordinary.propagate(other, other.shares())
        (batch.shares() * objective(batch)).sum().backward()  # a second time, by autograd
        for role, side in other.sides().items():
            if side.rows.grad is not None:
                found = batch.sides()[role].rows.grad
                torch.testing.assert_close(found, 2 * side.rows.grad, rtol=1e-10, atol=1e-12)
        assert objective.temperature.log_scale.grad is None
        assert diagnose(objective, batch).temperature == examples.T


def test_what_a_batch_cannot_have() -> None:
    side = Side(torch.eye(2))
    for wrong, says in (
        (0.0, "must be above 0 and is 0.0"),
        (-1.0, "above 0"),
        (math.nan, "above 0"),
        (math.inf, "infinite"),
    ):
        with pytest.raises(ConfigError, match=says):
            Batch(side, side, temperature=wrong)


# Cautions
# ----------------------------------------------------------------------------------------------------------


def heads(objective: Objective, **given: object) -> list[str]:
    return [caution.split(":")[0] for caution in cautions(objective, **given)]


def test_cosine_with_a_high_temperature() -> None:
    assert heads(Objective(cosine, 1.0)) == ["cosine with temperature 1"]
    assert "logits stay within -1 and 1" in cautions(Objective(cosine, 1.0))[0]
    assert heads(Objective(dot, 1.0), normalised=True) == ["cosine with temperature 1"]
    assert heads(Objective(cosine, Temperature(0.5, final=0.4))) == ["cosine with temperature 0.4"]
    for silent in (0.2, 0.05, 0.01, Temperature(1.0, learnable=True), Temperature(0.5, final=0.02)):
        assert heads(Objective(cosine, silent)) == []
    assert heads(Objective(dot, 1.0)) == []


def test_dot_with_a_low_temperature() -> None:
    start = "dot with temperature 0.05 on embeddings that are not normalised"
    assert heads(Objective(dot, 0.05)) == [start]
    assert heads(Objective(dot, Temperature(1.0, final=0.05))) == [start]
    falls = start.replace(
        "temperature 0.05", "a temperature that may fall to 0.05 (temperature.floor)"
    )
    assert heads(Objective(dot, Temperature(1.0, learnable=True, floor=0.05))) == [falls]
    assert heads(Objective(dot, Temperature(0.05, learnable=True, floor=0.05))) == [start]
    for silent in (0.5, 1.0, 2.0, Temperature(1.0, learnable=True, floor=0.5)):
        assert heads(Objective(dot, silent)) == []
    assert heads(Objective(dot, 0.05), normalised=True) == []
    assert heads(Objective(cosine, 0.05)) == []


@pytest.mark.parametrize(
    ("dtype", "below", "above"),
    [(torch.bfloat16, 0.007, 0.01), (torch.float16, 0.0009, 0.002), (torch.float32, 1e-8, 1e-6)],
)
def test_a_temperature_below_what_the_precision_holds(
    dtype: torch.dtype, below: float, above: float
) -> None:
    name = str(dtype).removeprefix("torch.")
    head = f"temperature {below:g} is below what {name} embeddings hold"
    falls = head.replace(
        f"temperature {below:g}", f"a temperature that may fall to {below:g} (temperature.floor)"
    )
    for dial in (
        below,
        Temperature(0.1, final=below),
        Temperature(0.1, learnable=True, floor=below),
    ):
        assert heads(Objective(cosine, dial), dtype=dtype) == [
            falls if getattr(dial, "learnable", False) else head
        ]
    assert heads(Objective(cosine, above), dtype=dtype) == []
    assert heads(Objective(dot, below), dtype=dtype, normalised=True) == [head]
    assert heads(Objective(dot, 1.0), dtype=dtype) == []


def test_auto_is_judged_when_it_has_a_value() -> None:
    dial = Temperature("auto")
    assert heads(Objective(cosine, dial)) == []
    dial.resolve(2, True)
    assert heads(Objective(cosine, dial)) == ["cosine with temperature 1"]


@pytest.mark.parametrize("preset", presets.PRESETS, ids=lambda preset: preset.__name__)
def test_no_preset_needs_a_caution(preset: object) -> None:
    assert cautions(preset()) == []
