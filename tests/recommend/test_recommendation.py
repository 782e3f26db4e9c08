"""A recommender from interactions to a verdict: a planted pattern is found, and what its peers get
wrong is right."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from tempera.arithmetic.ragged import Ragged
from tempera.core import pools, presets
from tempera.core.batch import Batch, Side
from tempera.core.corrections import LogQ
from tempera.core.frame import Events
from tempera.core.masks import KnownPositives, SameId
from tempera.engine.cache import Cache
from tempera.engine.devices import Devices
from tempera.engine.step import step
from tempera.errors import ConfigError
from tempera.io.documents import JsonLines
from tempera.options import yaml_options as configuration
from tempera.options.build import build
from tempera.options.yaml_options import inline
from tempera.recommend import recommendation
from tempera.recommend.judge.baselines import Observed, Transitions
from tempera.recommend.judge.counts import Counting
from tempera.recommend.judge.full_catalogue import inner
from tempera.recommend.judge.judgement import Recommended
from tempera.recommend.judge.popularity import Popularity
from tempera.recommend.recommendation import InteractionTask
from tempera.run.dry_run import lines, rehearse
from tempera.run.fit import fit
from tempera.run.on_paper import planned
from tempera.run.prepare import prepare
from tempera.run.race import scores_of
from tempera.run.task import RunTask
from tempera.run.train import train
from tempera.run.verify import verify

ITEMS, USERS = 30, 80


def follows(item: int) -> int:
    """What is taken after an item, four times of five."""
    return (item * 7 + 3) % ITEMS


def interactions(users: int = USERS, seed: int = 0, start: float = 0.0) -> list[dict[str, Any]]:
    """Users begin anywhere and go from item to item; a user's events are of a time of their own."""
    draw, rows = random.Random(seed), []
    for user in range(users):
        item, begin = draw.randrange(ITEMS), start + draw.random() * 1000
        for at in range(draw.randint(6, 16)):
            rows.append({"user": f"u{seed}-{user}", "item": f"i{item}", "time": begin + at})
            item = follows(item) if draw.random() < 0.8 else draw.randrange(ITEMS)
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("interactions")
    parquet.write_table(pa.Table.from_pylist(interactions()), path / "events.parquet")
    items = [
        {"item": f"i{item}", "title": f"thing number {item}", "kind": f"k{item % 3}"}
        for item in range(ITEMS)
    ]
    parquet.write_table(pa.Table.from_pylist(items), path / "items.parquet")
    return path


@pytest.fixture
def options(folder: Path) -> dict[str, Any]:
    """A run of a second or two, to change as the test likes."""
    return {
        "data": {
            "source": "interactions",
            "path": str(folder / "events.parquet"),
            "split": "leave_last_out",
        },
        "tower": {
            "kind": "features",
            "dimensions": 16,
            "query_layers": [32],
            "history": {"pools": [{"mean": {"last": 1}}, {"mean": {"last": 5}}], "targets": 4},
        },
        "objective": {
            "preset": "mixed_negatives",
            "temperature": 0.1,
            "masks": ["same_id", "known_positives"],
        },
        "train": {
            "batch_size": 64,
            "max_steps": 120,
            "learning_rate": 0.02,
            "evaluations": 1,
            "seed": 1,
        },
        "evaluation": {
            "metrics": ["hit@1", "hit@10", "ndcg@10"],
            "baselines": True,
            "validation": 20,
        },
    }


def metrics(found: Path) -> Any:
    return json.loads((found / "metrics.json").read_text())


def reached(options: dict[str, Any], folder: Path) -> tuple[RunTask, dict[str, float]]:
    """A run without its folder, which takes most of the time."""
    options["evaluation"]["baselines"], options["train"]["evaluations"] = False, 0
    with JsonLines(folder / "log.jsonl") as log:
        run = prepare(build(configuration.of(options)), Devices(), folder, log)
        fit(run)
    return run.task, run.task.held_out.judge().ranking.metrics


# From a file to a verdict
# --------------------------------------------------------------------------------------------


def test_a_planted_pattern_is_found(options: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    """With negatives besides, ids and metrics at once; TFRS stops there. The next item is known
    four times of five."""
    options["train"] |= {"sampled": 20, "sampled_power": 0.5}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(options))
    run = train(tmp_path / "c.yaml", tmp_path / "run")
    found = metrics(run.folder)["metrics"]
    assert (
        found["trained"]["hit@1, seen included"]
        > 0.5
        > 0.2
        > found["untrained"]["hit@1, seen included"]
    )
    assert (
        found["trained"]["hit@1, seen included"] > 3 * found["popularity"]["hit@1, seen included"]
    )
    assert found["transitions"]["hit@1, seen included"] > 0.5  # which is what the pattern is
    task, again = reached(options, tmp_path)
    assert again == found["trained"]
    saved = load_file(run.folder / "model" / "model.safetensors")
    assert all(
        torch.equal(value, saved[name]) for name, value in task.data.tower.state_dict().items()
    )


def test_what_is_served_has_learned_everything_and_the_figures_are_those_before(
    options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    options["train"] |= {"max_steps": 30, "seed": 3}
    options["evaluation"] |= {"baselines": False, "cold_items": 0.1}
    runs = {}
    for refit in ("none", "all"):
        options["train"]["refit"] = refit
        runs[refit] = train(options, tmp_path / refit).folder
    before, after = (metrics(run) for run in runs.values())
    assert before["metrics"] == after["metrics"] and "refit" not in before
    steps, (again,) = after["best"]["step"], after["refit"]
    trained, every = before["data"]["train"], len(interactions())
    counts = {
        run: parquet.read_table(run / "model" / "items.parquet")["count"].to_pylist()
        for run in runs.values()
    }
    cold = after["cold"]["items"]
    taken = Counter(row["item"] for row in interactions())
    ids = parquet.read_table(runs["all"] / "model" / "items.parquet")["id"].to_pylist()
    zero = [name for name, count in zip(ids, counts[runs["all"]]) if not count]
    assert len(zero) == cold and sum(counts[runs["none"]]) == trained
    assert (
        sum(counts[runs["all"]])
        == again["pairs"]
        == every - sum(taken[name] for name in zero)
        > trained
    )
    assert again["part"] == "test" and again["steps"] == round(steps * again["pairs"] / trained)
    weights = [load_file(run / "model" / "model.safetensors") for run in runs.values()]
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    card = (runs["all"] / "model" / "README.md").read_text()
    assert (
        "trained again" in card and "the metrics are those of the model that was evaluated" in card
    )
    assert "trained again" not in (runs["none"] / "model" / "README.md").read_text()
    histories = [parquet.read_table(run / "histories.parquet") for run in runs.values()]
    assert histories[0].equals(histories[1])


def test_another_run_of_the_same_data_reads_histories_as_its_own_options_say(
    options: dict[str, Any], tmp_path: Path
) -> None:
    given = build(configuration.of(options, ["train.max_steps=2"]))
    task = InteractionTask.read(given, tmp_path / "cache")
    longer = {
        "tower.history": {"pools": [{"mean": {"last": 9}}], "targets": 2},
        "train.batch_size": 32,
    }
    other = build(
        configuration.of(options, [f"{key}={json.dumps(value)}" for key, value in longer.items()])
    )
    again, anew = (
        task.again(other),
        InteractionTask.read(other, tmp_path / "again"),
    )
    assert (again.data.visits.contexts.last, again.data.visits.contexts.targets) == (9, 2) != (5, 4)
    for (mine,), (wanted,) in zip(
        (again.data.sampler(k, k + 1) for k in range(3)),
        (anew.data.sampler(k, k + 1) for k in range(3)),
    ):
        assert torch.equal(mine, wanted) and len(mine) in (31, 32)
        own, right = (
            each.data.batch(mine, 0).query.rows.columns["history"] for each in (again, anew)
        )
        assert (
            isinstance(own, Events)
            and isinstance(right, Events)
            and torch.equal(own.items, right.items)
        )
    assert task.data.visits.contexts.last == 5 and 32 < len(next(task.data.sampler(0, 1))) <= 64


def test_what_users_have_taken_is_told_to_objectives_that_ask(
    options: dict[str, Any], tmp_path: Path
) -> None:
    asked = {
        "objective.masks=[same_id]": False,
        "objective.masks=[known_positives]": True,
        "objective.numerator=mean": True,
    }
    options["objective"].pop("masks")
    task = InteractionTask.read(build(configuration.of(options)), tmp_path)
    assert task.data.visits.batch(next(task.data.sampler(0, 1))).known is None
    for override, told in asked.items():
        other = task.again(build(configuration.of(options, [override])))
        assert (
            other.data.visits.batch(next(other.data.sampler(0, 1))).known is not None
        ) == told, override


POOLS: dict[str, Any] = {
    "max": {"max": {"last": 1}},
    "attention": {"attention": {"last": 4}},
    "gru": {"gru": {"last": 4}},
    "transformer": {"transformer": {"last": 4, "layers": 1, "dropout": 0.0}},
}


@pytest.mark.parametrize(
    "pool",
    [
        "max",
        *(
            pytest.param(pool, marks=pytest.mark.long)
            for pool in ("attention", "gru", "transformer")
        ),
    ],
)
def test_every_pool_learns_the_pattern(options: dict[str, Any], tmp_path: Path, pool: str) -> None:
    options["tower"]["history"]["pools"] = [POOLS[pool]]
    options["train"]["max_steps"] = 200
    assert reached(options, tmp_path)[1]["hit@1, seen included"] > 0.35


@pytest.mark.parametrize(
    "split", ["leave_last_out", pytest.param("global_time", marks=pytest.mark.long)]
)
def test_nothing_is_learnt_where_there_is_nothing(
    options: dict[str, Any], tmp_path: Path, split: str
) -> None:
    """Items at random: what is found beyond chance would be the future, or the answer itself."""
    draw = random.Random(3)
    rows = [
        {"user": u, "item": draw.randrange(ITEMS), "time": t} for u in range(200) for t in range(12)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "noise.parquet")
    options["data"]["path"] = str(tmp_path / "noise.parquet")
    options["data"]["split"] = split
    _, found = reached(options, tmp_path)
    assert found["hit@1, seen included"] < 1 / ITEMS + 4.5 * (1 / ITEMS / 200) ** 0.5


def test_by_time_new_users_and_new_items_are_asked_too(
    options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What training has not seen has the unknown vector, which stands for all of them."""
    caplog.set_level("INFO", "tempera")
    late = interactions(users=30, seed=1, start=2000.0)
    for k, row in enumerate(late):
        row["item"] = f"new{k % 4}" if k % 5 == 0 else row["item"]
    parquet.write_table(pa.Table.from_pylist(interactions() + late), tmp_path / "events.parquet")
    options["data"] |= {
        "path": str(tmp_path / "events.parquet"),
        "split": {"global_time": {"test_share": 0.25}},
    }
    options["tower"] |= {"doc": [{"id": {"unknown": 0.1}}], "query": [{"id": {"unknown": 0.2}}]}
    task, found = reached(options, tmp_path)
    assert isinstance(task, InteractionTask) and set(task.data.events.division.test) == {
        "rolling"
    }  # nobody from before comes back
    assert "the protocol next has no test events" in caplog.text
    assert (
        len(task.data.events.division.test["rolling"]) > 200 and found["hit@1, seen included"] > 0.3
    )
    ids, vectors = task.data.events.timeline.item_ids.to_pylist(), task.data.item_vectors
    new = np.stack([vectors[ids.index(f"new{k}")] for k in range(4)])
    assert (new == new[0]).all() and np.isclose(np.linalg.norm(new[0]), 1, atol=1e-5)
    assert not any((vectors[ids.index(f"i{k}")] == new[0]).all() for k in range(ITEMS))


# Proofs on the user's configuration
# ----------------------------------------------------------------------------------

RICH = {
    "dimensions": 8,
    "query_layers": [12],
    "dropout": 0.1,
    "doc": [
        {"id": {"unknown": 0.1}},
        {"category": {"column": "kind"}},
        {"text": {"column": "title"}},
    ],
    "query": ["elapsed", {"id": {"buckets": 5}}],
    "history": {
        "pools": [
            {"mean": {"last": 1}},
            "gru",
            {"max": {"last": 3}},
            {"transformer": {"last": 5, "dropout": 0.1}},
        ],
        "targets": 3,
    },
}


BAG = {"history": {"pools": [{"bag": {"dropout": 0.3}}]}, "query": ["id"]}


@pytest.mark.long
@pytest.mark.parametrize("ordered", [True, False])
def test_all_proofs_hold_for_interactions(
    options: dict[str, Any], folder: Path, ordered: bool
) -> None:
    options["data"] |= {"items": str(folder / "items.parquet"), "ordered": ordered}
    options["data"]["split"] = "leave_last_out" if ordered else "random"
    options["tower"] |= RICH if ordered else BAG
    options["train"]["sampled"] = 10
    options["objective"]["temperature"] = {"value": 0.1, "learnable": True}
    proofs = verify(options)
    assert [proof for proof in proofs if not proof.passed] == []
    assert len(proofs) >= 10 and any("dropout on" in proof.name for proof in proofs)
    assert sum("2 processes = one" in proof.name for proof in proofs) == 2


@pytest.mark.parametrize("pool", ["mean", "max", "ages", "attention", "gru", "transformer"])
def test_every_pool_gives_the_same_bits_kept_and_replayed(
    options: dict[str, Any], tmp_path: Path, pool: str
) -> None:
    options["tower"] = {
        "kind": "features",
        "dimensions": 16,
        "doc": ["id"],
        "history": {"pools": [{pool: {"last": 5}}]},
    }
    rows = [
        {"user": f"u{at // 12}", "item": f"i{follows(at * at)}", "time": at}
        for at in range(12 * USERS)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "equally_long.parquet")
    options["data"]["path"] = str(tmp_path / "equally_long.parquet")
    made = build(configuration.of(options))
    data, found = InteractionTask.read(made, tmp_path).data, []
    chosen = next(iter(data.sampler(0, 1)))
    for mode in ("always", "never"):
        torch.manual_seed(0)
        data.tower.zero_grad()
        loss = step(data.tower, made.objective, data.batch(chosen, 0), Cache(mode, memory=1.0))  # type: ignore[arg-type]
        found.append(
            (loss, [each.grad.clone() for each in data.tower.parameters() if each.grad is not None])
        )
    (loss, kept), (other, replayed) = found
    assert loss == other and len(kept) == len(replayed) > 3
    assert all(torch.equal(*each) for each in zip(kept, replayed, strict=True))


@pytest.mark.parametrize("device", ["cpu", "h100"])
def test_a_plan_counts_towers_whose_rows_follow_from_the_features_of_items(
    options: dict[str, Any], folder: Path, device: str
) -> None:
    options["data"]["items"] = str(folder / "items.parquet")
    options["train"]["batch_size"] = 16
    flops = []
    for doc in ([{"categories": {"column": "kind"}}], [{"text": {"column": "title"}}]):
        options["tower"] |= {"doc": ["id", *doc], "doc_layers": [8]}
        plan = planned(configuration.of(options), device=device)
        assert plan["seconds"] > 0
        flops.append(plan["stages"][0]["flops"])
    assert min(flops) > 0


def test_much_data_is_judged_by_some_of_its_queries(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = "last asks {} of 80 test queries, drawn at random; evaluation.queries sets their number"
    for queries, expected in ((7, 7), (None, 60), (79, 79), (90, USERS)):
        monkeypatch.setattr(recommendation, "_SCORES", 60 * ITEMS)  # and no fewer than 50
        options["evaluation"]["queries"] = queries
        task = InteractionTask.read(build(configuration.of(options)), tmp_path)
        events = task.data.events.division.test["last"]
        assert len(events) == len(np.unique(events)) == expected
        notes = task.showcase.facts().notes
        assert any(note.format(expected) in each for each in notes) == (expected < USERS)
    monkeypatch.setattr(recommendation, "_SCORES", ITEMS)
    options["evaluation"]["queries"] = None
    assert (
        len(
            InteractionTask.read(
                build(configuration.of(options)), tmp_path
            ).data.events.division.test["last"]
        )
        == 50
    )


def test_a_dry_run_with_the_default_objective(options: dict[str, Any]) -> None:
    """Without a mask of known positives, every other item of the batch is a negative."""
    del options["objective"]
    overrides = [f"{section}={inline(values)}" for section, values in options.items()]
    negatives = rehearse(None, overrides)["negatives"]
    assert 0 < negatives["least"] == negatives["most"] <= ITEMS


def test_a_dry_run_shows_what_would_be_trained_on(
    options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    options["data"]["items"] = str(folder / "items.parquet")
    options["train"]["sampled"] = 10
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(options))
    found = rehearse(tmp_path / "c.yaml")
    rows: dict[str, list[str]] = {}
    for row in interactions():
        rows.setdefault(row["user"], []).append(row["item"])
    assert len(found["rows"]) == 3
    for row in found["rows"]:
        user, place = row["place"].removeprefix("user ").split(", event ")
        at, of = map(int, place.split(" of "))
        names = [f"thing number {item[1:]}" for item in rows[user]]
        assert of == len(names) and row["doc"]["text"] == names[at - 1]
        assert row["query"]["text"] == " | ".join(names[max(0, at - 6) : at - 1])
        assert row["query"]["events"] == min(5, at - 1) and at <= len(names) - 2
    trained = sum(len(items) - 2 for items in rows.values())
    lengths = [min(5, k) for items in rows.values() for k in range(len(items) - 2)]
    assert (
        found["pairs"] == trained
        and found["events"]["history"]["50%"] == sorted(lengths)[(trained - 1) // 2]
    )
    assert (
        found["events"]["history"]["at_limit"] == sum(length == 5 for length in lengths) / trained
    )
    assert (
        found["repeated"]["item"] == 1 - ITEMS / trained
        and found["repeated"]["user"] == 1 - USERS / trained
    )
    assert (
        10
        < found["negatives"]["least"]
        <= found["negatives"]["mean"]
        <= found["negatives"]["most"]
        <= ITEMS
    )
    shown = "\n".join(lines(found))
    assert "events of history: 0% 0, 50% " in shown and "negatives per row, in one batch: " in shown
    assert "0 users of fewer" not in shown and "thing number" in shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tower": {"kind": "static"}}, "need kind: features"),
        ({"tower": {"query": ["elapsed"]}}, "elapsed"),
        (
            {"tower": {"dimensions": 6, "history": {"pools": [{"transformer": {"heads": 4}}]}}},
            "do not divide",
        ),
        ({"tower": {"history": {"pools": []}}}, "pools is empty"),
    ],
)
def test_what_cannot_be_trained_is_told(
    options: dict[str, Any], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    table = pa.Table.from_pylist(interactions()).drop_columns("time")
    parquet.write_table(table, tmp_path / "ordered.parquet")  # rows in the order of the file
    options["data"]["path"] = str(tmp_path / "ordered.parquet")
    options["tower"] = {"kind": "features", **change["tower"]}
    with pytest.raises(ConfigError, match=message):
        train(options, tmp_path / "run")


def test_without_an_order_there_is_no_time_since_the_last_event(
    options: dict[str, Any], tmp_path: Path
) -> None:
    options["data"] |= {"ordered": False, "split": "random"}
    options["tower"] = {"kind": "features", "query": ["id", "elapsed"]}
    with pytest.raises(ConfigError, match=r"elapsed needs times, but data\.ordered is false"):
        train(options, tmp_path / "run")


# What peers get wrong
# ------------------------------------------------------------------------------------------------

WIDTH = 5


def batch(**changes: Any) -> Batch[Tensor]:
    """Six rows of three users and four items; user 1 has taken items 10 and 11, users 2 and 3 items
    12 and 13."""
    draw = torch.Generator().manual_seed(0)

    def vectors(count: int) -> Tensor:
        return torch.randn(count, WIDTH, generator=draw, dtype=torch.float64).requires_grad_()

    items = torch.tensor([10, 11, 12, 13])
    made = Batch(
        query=Side(vectors(6), ids=torch.tensor([1, 1, 2, 3, 3, 2])),
        doc=Side(
            vectors(4),
            ids=items,
            logq=torch.tensor([0.6, 0.5, 0.7, 0.1], dtype=torch.float64).log(),
        ),
        sampled=Side(
            vectors(3),
            ids=torch.tensor([14, 15, 16]),
            logq=torch.full((3,), 0.05, dtype=torch.float64).log(),
        ),
        known=Ragged.of([[10, 11], [10, 11], [12, 13], [12, 13], [12, 13], [12, 13]]),
        answer=torch.tensor([10, 11, 12, 12, 13, 12]),
    )
    return replace(made, **changes)


def objective(**parts: Any) -> Any:
    return presets.mixed_negatives(0.5, **{"masks": (SameId(), KnownPositives()), **parts})


def influence(made: Any, given: Batch[Tensor]) -> Tensor:
    """Whether each document of the batch, then each sampled one, has influence on each row's loss,
    [6, 7]."""
    losses = made(given)
    assert given.sampled is not None
    found = []
    for loss in losses:
        grads = torch.autograd.grad(loss, [given.doc.rows, given.sampled.rows], retain_graph=True)
        found.append(torch.cat(grads).abs().sum(1) > 0)
    return torch.stack(found)


def test_items_of_one_user_are_no_negatives_of_that_user_and_negatives_of_the_others() -> None:
    """Each row sees its answer, what its user has not taken, and what is drawn; the other users'
    items stay in."""
    seen = influence(objective(), batch())
    answers, known = [0, 1, 2, 2, 3, 2], [{0, 1}, {0, 1}, {2, 3}, {2, 3}, {2, 3}, {2, 3}]
    for row in range(6):
        wanted = [
            place >= 4 or place == answers[row] or place not in known[row] for place in range(7)
        ]
        assert seen[row].tolist() == wanted


def test_accidental_hits_are_removed_and_not_shifted_by_nothing() -> None:
    """keras-rs adds 1e-40 to them: a drawn copy of the answer has to leave the loss as if it had
    not been drawn."""
    plain = batch()
    assert plain.sampled is not None
    hit = replace(plain, sampled=replace(plain.sampled, ids=torch.tensor([14, 12, 16])))
    without = plain.sampled[torch.tensor([0, 2])]
    made = objective(masks=(SameId(),))
    rows = torch.tensor([2, 3, 5])  # answered by 12
    assert torch.allclose(
        made(hit)[rows], made(replace(plain, sampled=without))[rows], rtol=0, atol=1e-15
    )
    others = torch.tensor([0, 1, 4])
    assert torch.allclose(made(hit)[others], made(plain)[others], rtol=0, atol=1e-15)
    assert (objective(masks=())(hit)[rows] - made(hit)[rows] > 1e-3).all()


def test_logq_lowers_the_logits_of_popular_items() -> None:
    """With equal similarities the softmax is that of 1 / q: a popular negative is pushed away less,
    not more."""
    given = batch()
    assert given.sampled is not None
    same = torch.ones(1, WIDTH, dtype=torch.float64)
    equal = replace(
        given,
        query=replace(given.query, rows=same.expand(6, -1)),
        doc=replace(given.doc, rows=same.expand(4, -1)),
        sampled=replace(given.sampled, rows=same.expand(3, -1)),
    )
    chance = [0.6, 0.5, 0.7, 0.1, 0.05, 0.05, 0.05]
    found = objective(masks=(), corrections=(LogQ(),))(equal)
    mass = sum(1 / q for q in chance)
    wanted = [-np.log(1 / chance[answer] / mass) for answer in (0, 1, 2, 2, 3, 2)]
    assert found.tolist() == pytest.approx(wanted, rel=1e-12)
    assert objective(masks=(), corrections=())(equal).tolist() == pytest.approx(
        [np.log(7)] * 6, rel=1e-12
    )


def test_sampled_negatives_are_taken_as_ids_in_the_batch_are() -> None:
    """Drawn items go through masks and corrections as the rows' items do: where an item came from
    changes nothing."""
    given = batch()
    assert (
        given.sampled is not None and given.sampled.logq is not None and given.doc.logq is not None
    )
    assert given.doc.ids is not None and given.sampled.ids is not None
    known = Ragged.of([[10, 11, 15], [10, 11, 15], [12, 13], [12, 13], [12, 13], [12, 13]])
    apart = replace(given, known=known)
    together = replace(
        apart,
        doc=Side(
            torch.cat([given.doc.rows, given.sampled.rows]),
            torch.cat([given.doc.ids, given.sampled.ids]),
            torch.cat([given.doc.logq, given.sampled.logq]),
        ),
        sampled=None,
    )
    assert torch.allclose(objective()(apart), objective()(together), rtol=0, atol=1e-14)
    assert not influence(objective(), apart)[0, 5] and influence(objective(), apart)[2, 5]
    without = presets.mnr(0.5, pools=(pools.docs,), masks=(SameId(), KnownPositives()))
    assert (objective(corrections=())(apart) > without(apart)).all()


def test_a_race_compares_towers_by_what_would_be_served(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """Beside counts, towers differ whose vectors are as good alone."""
    scores = {}
    for baselines in (False, True):
        options["evaluation"] |= {"baselines": baselines, "cold_items": 0.0}
        given = build(configuration.of(options, []))
        torch.manual_seed(0)
        task = InteractionTask.read(given, tmp_path / "cache")
        scores[baselines] = scores_of(task.race(given), task)
    held_out = task.held_out
    vectors = held_out.judge("validation").ranking.per_query["ndcg@10"]
    np.testing.assert_array_equal(scores[False], vectors)

    timeline, division = held_out.events.timeline, held_out.events.division
    observed = Observed(timeline.item, timeline.offsets, len(timeline.item_ids), division.train)
    counts = Transitions().fit(observed)
    events = np.unique(np.concatenate(list(division.validation.values())))
    seen = held_out.events.histories(events)
    by_vectors = inner(task.data.user_vectors(events), task.data.item_vectors)
    target = timeline.item[events].astype(np.int64)
    found = []
    for weight in (0.4, 0.6, 0.8, 1.0):
        both = Counting("transitions", counts).by_history(by_vectors, seen, weight)
        popularity = Popularity(observed.counts)
        judged = Recommended.of(both, target, seen, popularity, ["ndcg@10"])
        found.append(judged.per_query["ndcg@10"])
    best = max(found, key=lambda each: float(each.mean()))
    np.testing.assert_allclose(scores[True], best)
    assert scores[True].mean() > scores[False].mean()
