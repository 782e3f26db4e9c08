"""Towers of features in the step: however a batch of users and items is cut, kept, replayed or
divided, it is the whole."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from tempera.core import presets
from tempera.core.batch import Batch
from tempera.core.corrections import LogQ
from tempera.core.frame import Frame
from tempera.core.masks import KnownPositives, SameId
from tempera.core.temperature import Temperature
from tempera.engine.batches import Draws
from tempera.engine.cache import Cache
from tempera.engine.optim import set_sparse
from tempera.engine.step import step
from tempera.errors import ConfigError
from tempera.recommend.read.division import LeaveLastOut
from tempera.recommend.read.timeline import Timeline
from tempera.recommend.train.encoders import (
    Categories,
    Category,
    Elapsed,
    Entities,
    Id,
    Number,
    Text,
)
from tempera.recommend.train.entity_tables import entities, with_counts
from tempera.recommend.train.features import Features, FeatureTowers
from tempera.recommend.train.history import History
from tempera.recommend.train.pooling import Attention, Causal, Gru, Max, Mean
from tempera.recommend.train.segments import Contexts
from tempera.recommend.train.visits import Visits

USERS, ITEMS, WIDTH = 9, 14, 4
OPTIONS = {
    "shared": Features(dimensions=WIDTH, query_layers=(6,)),
    "every pool": Features(
        history=History(
            (Mean(2), Mean(5, 0.7), Max(3), Attention(3), Gru(3), Causal(4, 1, 2, 0.0)), targets=3
        ),
        dimensions=WIDTH,
        query_layers=(6,),
        doc_layers=(5,),
    ),
    "every feature": Features(
        doc=(
            Id(),
            Category("kind"),
            Categories("tags"),
            Number("price"),
            Number("price", buckets=3),
            Text("title"),
        ),
        query=(Id(buckets=4), Category("kind", table="kinds"), Number("age"), Elapsed()),
        history=History(items="own"),
        dimensions=WIDTH,
    ),
    "no history": Features(
        doc=(Id(), Categories("tags")), query=(Id(),), history=None, dimensions=WIDTH
    ),
}


def world(seed: int = 0) -> tuple[Visits, Entities, Entities, list[int]]:
    """Interactions with features beside them, and the events of a batch."""
    draw = random.Random(seed)
    rows = [
        (user, draw.randrange(ITEMS), at * at)
        for user in range(USERS)
        for at in range(draw.randint(3, 14))
    ]
    line = Timeline.of(*zip(*rows), weight=[1 + k % 3 for k in range(len(rows))])
    train = LeaveLastOut()(line).train
    made = Visits(line, train, Contexts(line, 4, 3), Draws(6, 0.5, 1))
    words = ["red", "blue", "shoe", "hat"]
    ages: dict[str, Any] = {"age": [20.0 + k if k % 3 else None for k in range(USERS)]}
    kinds = [["u", "v", None][k % 3] for k in range(ITEMS)]
    items = {
        "kind": kinds,
        "tags": ["|".join(draw.choices("xyz", k=k % 3)) for k in range(ITEMS)],
        "price": [float(k) if k % 4 else None for k in range(ITEMS)],
        "title": [" ".join(draw.choices(words, k=k % 5)) for k in range(ITEMS)],
    }
    counts = np.add.reduceat(train, line.offsets[:-1], dtype=np.int64)
    users = Entities(pa.table({"id": line.user_ids, "kind": kinds[:USERS], **ages}), counts)
    events = draw.sample(np.flatnonzero(train).tolist(), 8)
    first = int(line.offsets[3])  # and a run that begins with an empty history
    return (
        made,
        users,
        Entities(pa.table({"id": line.item_ids, **items}), made.counts),
        [*events, first, first + 1],
    )


OPTIONS["dropout within"] = Features(
    history=History((Causal(4, 2, 2, 0.5), Mean(3))), dimensions=WIDTH
)


def objective() -> Any:
    """What a recommender trains with."""
    masks = (SameId(), KnownPositives())
    return presets.mixed_negatives(
        Temperature(0.3, learnable=True), masks=masks, corrections=(LogQ(),)
    )


def towers(
    name: str, dropout: float = 0.0, unknown: float = 0.0, dtype: torch.dtype = torch.float64
) -> Any:
    _, users, items, _ = world()
    torch.manual_seed(1)
    options = OPTIONS[name]
    if unknown:
        options = replace(options, doc=(Id(unknown=unknown), *options.doc[1:]))
    return replace(options, dropout=dropout).build(users, items).to(dtype).train()


def batch(dtype: torch.dtype = torch.float64) -> Batch[Frame]:
    made, _, _, events = world()
    return made.batch(torch.tensor(events), step=3)


def gradients(*modules: nn.Module) -> dict[str, Tensor]:
    named = [pair for module in modules for pair in module.named_parameters()]
    return {name: p.grad.to_dense().clone() for name, p in named if p.grad is not None}


def off(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    assert got.keys() == want.keys() and len(want) > 2
    largest = max(float(w.abs().max()) for w in want.values())
    assert largest > 1e-3
    return max(float((got[name] - want[name]).abs().max()) for name in want) / largest


def row_by_row(
    modules: FeatureTowers, parts: Any, given: Batch[Frame]
) -> tuple[float, dict[str, Tensor]]:
    """Every row embedded by itself, and autograd through everything at once."""
    rows = {
        role: torch.cat([modules.of(role)(side.rows[torch.tensor([i])]) for i in range(len(side))])
        for role, side in given.sides().items()
    }
    embedded = given.of(rows)
    loss = (embedded.shares() * parts(embedded)).sum()
    loss.backward()
    return float(loss.detach()), gradients(modules, parts)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "dropout within"])
def test_every_micro_batch_size_gives_the_gradient_of_the_whole(name: str, sparse: bool) -> None:
    modules, parts = towers(name), objective()
    loss, want = row_by_row(modules, parts, batch())
    for tokens in (1, 5, 10**6):
        for mode in ("always", "auto", "never"):
            modules, parts = towers(name), objective()
            assert set_sparse(modules, sparse)
            found = step(modules, parts, batch(), Cache(mode, memory=3000.0, tokens=tokens))  # type: ignore[arg-type]
            assert abs(found - loss) <= 1e-12 * max(1, abs(loss)), (tokens, mode)
            assert off(gradients(modules, parts), want) <= 1e-12, (tokens, mode)


@pytest.mark.parametrize("tokens", [1, 9, None])
@pytest.mark.parametrize("name", ["shared", "every pool", "dropout within"])
def test_dropout_and_unknown_items_are_replayed(name: str, tokens: int | None) -> None:
    def stepped(mode: str, seed: int = 5) -> dict[str, Tensor]:
        modules, parts = towers(name, dropout=0.3, unknown=0.3, dtype=torch.float32), objective()
        torch.manual_seed(seed)
        step(modules, parts, batch(), Cache(mode, memory=3000.0, tokens=tokens))  # type: ignore[arg-type]
        return gradients(modules, parts)

    kept, again = stepped("never"), stepped("always")
    assert kept.keys() == again.keys() and all(torch.equal(kept[key], again[key]) for key in kept)
    assert off(stepped("auto"), kept) <= 1e-6 and off(stepped("always", seed=6), kept) > 0.01


def test_a_micro_batch_reads_the_items_of_its_own_rows_only() -> None:
    modules, read = towers("shared"), list[int]()
    modules.query.past.items.register_forward_pre_hook(lambda _, given: read.append(len(given[0])))
    frame = batch().query.rows
    modules.query(frame)
    assert read[0] == len(set(frame.columns["history"].items.tolist()))  # type: ignore[union-attr]
    modules.query(frame[torch.tensor([8])])
    assert read[1] == 0  # of an empty history


def test_the_item_that_is_asked_for_has_no_influence_on_its_query() -> None:
    """Nor has what comes later: every event of the timeline is moved in turn, all rows of a run
    look back at once."""
    made, *_ = world()
    line = made.timeline
    events = torch.from_numpy(np.flatnonzero(made.train))
    for name in ("every pool", "every feature"):
        modules = towers(name).eval()
        found = modules.of("query")(made.frame(events))
        for event in range(0, len(line), 7):
            item = line.item.copy()
            item[event] = (item[event] + 1) % ITEMS
            moved = Visits(
                replace(line, item=item), made.train, Contexts(replace(line, item=item), 4, 3)
            )
            changed = modules.of("query")(moved.frame(events))
            same = (changed == found).all(1)
            assert same[events <= event].all() and (
                name == "every feature" or not same.all() or event + 1 not in events
            )


def test_judging_turns_every_layer_off_and_on_again() -> None:
    modules = towers("dropout within", dropout=0.5, unknown=0.5, dtype=torch.float32)
    frame = batch().query.rows
    seen: list[bool] = []
    for module in modules.modules():
        module.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    one, two = (modules.encode(frame, "query") for _ in range(2))
    assert torch.equal(one, two) and len(seen) > 20 and not any(seen)
    assert all(module.training for module in modules.modules())
    with torch.no_grad():
        assert not torch.equal(modules.of("query")(frame), modules.of("query")(frame))


def test_vectors_are_unit_vectors_where_the_cosine_compares_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modules = towers("every feature", dtype=torch.float32).eval()
    frame = Frame({"item": torch.arange(ITEMS)})
    with torch.no_grad():
        raw = modules.of("doc")(frame)
    assert torch.allclose(modules.encode(frame), F.normalize(raw))
    modules.normalised = False
    assert torch.equal(modules.encode(frame), raw)
    monkeypatch.setattr("tempera.recommend.train.features._BLOCK", 3)
    assert torch.allclose(modules.encode(frame), raw) and modules.encode(frame[:0]).shape == (
        0,
        WIDTH,
    )
    queries = batch().query.rows
    with torch.no_grad():
        assert torch.allclose(
            modules.encode(queries, "query"), modules.of("query")(queries), atol=1e-6
        )


def test_items_of_histories_are_those_of_the_item_tower_or_their_own() -> None:
    for name, shared in (("shared", True), ("every feature", False)):
        modules = towers(name)
        of_items = {id(p) for p in modules.doc.parameters()}
        past = {id(p) for p in modules.query.past.parameters()}
        assert bool(past & of_items) == shared


@pytest.mark.parametrize("name", OPTIONS)
def test_weights_are_written_and_read(name: str, tmp_path: Path) -> None:
    modules = towers(name, dtype=torch.float32)
    modules.save(tmp_path / "model")
    torch.manual_seed(9)
    _, users, items, _ = world()
    other = OPTIONS[name].build(users, items)
    other.load_state_dict(load_file(tmp_path / "model" / "model.safetensors"))
    frame = Frame({"item": torch.arange(ITEMS)})
    assert torch.equal(other.encode(frame), modules.encode(frame))
    assert torch.equal(
        other.encode(batch().query.rows, "query"), modules.encode(batch().query.rows, "query")
    )


def test_the_learning_rate_is_that_of_the_most_delicate_part() -> None:
    from tempera.towers.pretrained import Pretrained
    from tempera.towers.static import Static

    assert Features().learning_rate == 4e-3
    static = Features(doc=(Id(), Text("title", Static())))
    assert static.learning_rate == min(4e-3, Static().learning_rate)
    assert (
        Features(doc=(Id(), Text("title", Pretrained("m")))).learning_rate
        == Pretrained("m").learning_rate
        < 1e-3
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"doc": ()}, "doc is empty; give at least one feature"),
        ({"query": (), "history": None}, "users have neither features nor a history"),
        (
            {"dimensions": 6, "history": History((Causal(5, heads=4),))},
            "dimensions is 6, which 4 heads",
        ),
        ({"doc": (Text("title", Features()),)}, "features is not a text tower"),
        (
            {"doc": (Category("id"),)},
            "reads the column 'id', .*: give the feature id, or rename the column",
        ),
    ],
)
def test_what_cannot_be_built_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Features(**options)
    with pytest.raises(ConfigError, match="pools is empty"):
        History(pools=())


def test_batches_are_larger_where_users_are_bags() -> None:
    assert Features().schedule(10**6) == (1024, 6.0) and Features().suited(False).schedule(
        10**6
    ) == (2048, 6.0)
    assert Features().suited(False).schedule(9_000) == Features().schedule(9_000) == (64, 6.0)


def test_a_feature_may_be_called_as_the_count_of_training_events(tmp_path: Path) -> None:
    for names in (("size",), ("count",), ("count", "training count")):
        made = Entities(
            pa.table({"id": ["a", "b"], **{name: [5, 6] for name in names}}), np.array([3, 0])
        )
        parquet.write_table(with_counts(made), tmp_path / "items.parquet")
        read = entities(tmp_path / "items.parquet")
        assert read.table.equals(made.table) and read.count.tolist() == [3, 0]
