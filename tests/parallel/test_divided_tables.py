"""Tables divided by rows among processes: the loss, gradients, steps and checkpoints of whole ones,
in half of the memory."""

from __future__ import annotations

from collections.abc import Iterator

import dividing
import pytest
import table_towers
import torch
import worlds
from dividing import CASES, END, RUNS
from table_towers import UNREAD
from worlds import WORDS

from tempera.engine.devices import Devices
from tempera.engine.step import step
from tempera.engine.training_options import Training
from tempera.errors import ConfigError
from tempera.parallel.distributed import ALONE, Group
from tempera.parallel.divided_tables import divided


def test_the_gradients_are_those_of_whole_tables() -> None:
    """Of two batches whose rows the processes share unevenly; micro-batches kept, replayed or
    both."""
    for case in CASES:
        towers, objective = table_towers.made(case[1])
        losses = [step(towers, objective, table_towers.batch(seed)) for seed in range(2)]
        want = table_towers.gradients(towers, objective)
        for got in (process["steps"][str(case)] for process in dividing.processes()):
            assert got["losses"] == pytest.approx(losses, rel=1e-12)
            assert got["gradients"].keys() == want.keys()
            assert (
                max(
                    float((got["gradients"][name] - grad).abs().max())
                    for name, grad in want.items()
                )
                <= 1e-12
            )


@pytest.mark.parametrize("name", RUNS)
def test_training_is_that_of_one_process(name: str) -> None:
    """Norm, clipping and accumulators; resumed is uninterrupted, and goes on with whole tables in
    one process."""
    alone = dividing.begun(ALONE, RUNS[name])
    norms = table_towers.taken(alone, END, ALONE, RUNS[name], torch.float64)
    for process in dividing.processes():
        run = process["runs"][name]
        assert run["norms"] == pytest.approx(norms, rel=1e-9)
        for key, value in dividing.weights(alone).items():
            assert torch.equal(run["resumed"][key], run["through"][key]), key
            for other in ("through", "alone"):
                torch.testing.assert_close(run[other][key], value, rtol=0, atol=1e-9)


def test_every_process_holds_half() -> None:
    """Of tables and accumulators; the main process alone gets the whole of what has been
    released."""
    rows = WORDS + UNREAD
    first, second = (process["held"] for process in dividing.processes())
    assert [a + b for a, b in zip(first["tables"], second["tables"], strict=True)] == [
        rows * 5 * 8
    ] * 2
    assert [a + b for a, b in zip(first["sums"], second["sums"], strict=True)] == [rows * 8] * 2
    assert max(*first["tables"], *second["tables"]) <= -(-rows // 2) * 5 * 8
    assert first["released"] == second["released"] == [0, 0]
    assert all(
        torch.equal(value, first["trained"][f"towers.{name}"])
        for name, value in first["back"].items()
    )
    assert [len(second["back"][f"query.{name}.weight"]) for name in ("first", "words")] == [0, 0]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in the processes: vectors that begin by co-occurrence depend on the order of its sums,
    which threads divide."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_a_recommender_is_that_of_one_process() -> None:
    """The main process has the whole tower at the end; the others have let go of the tables that
    were divided."""
    alone = dividing.recommender(ALONE)
    first, second = (process["recommender"] for process in dividing.processes())
    assert (
        first["losses"] == pytest.approx(alone["losses"], rel=1e-6)
        and len(alone["losses"]) == dividing.END
    )
    for name, value in alone["weights"].items():
        torch.testing.assert_close(first["weights"][name], value, rtol=0, atol=2e-6)
    assert {len(value) for value in second["weights"].values() if value.shape[1:] == (16,)} == {
        0,
        8,
    }


def test_out_of_memory_within_divided_tables_halves_on_all_processes() -> None:
    for process in dividing.processes():
        assert len(process["out of memory"]) >= 4
        for name, got in process["out of memory"].items():
            assert got["off"] <= 1e-12 and got["halved"] in (1, 2), name


def test_what_does_not_go_together_is_refused() -> None:
    pair = Devices(Group(0, 2))
    Training(divide_tables=True, table_optimizer="rowwise_adagrad").check(pair)
    with pytest.raises(
        ConfigError,
        match=r"^train\.divide_tables divides towers over processes, but there is only one",
    ):
        Training(divide_tables=True).check(Devices())
    with pytest.raises(ConfigError, match=r"^train\.divide_tables has no gradient scaler"):
        Training(divide_tables=True, mixed_precision="fp16").check(pair)
    with pytest.raises(
        ConfigError, match=r"^train\.fsdp divides tables, too: drop it or train\.divide_tables$"
    ):
        Training(divide_tables=True, fsdp=True).check(pair)
    with pytest.raises(
        ConfigError, match=r"^train\.divide_tables: the towers train no table of 1,024 rows or more"
    ):
        divided(worlds.Pair(), Group())
