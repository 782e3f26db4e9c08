"""A recommender opened from its run: it answers as the weights say, leaves out what was seen, and
takes what comes later."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
import torch
from safetensors.numpy import load_file

from tempera.artifacts.run_folder import Run
from tempera.core.frame import Events, Frame
from tempera.corpus.index import Index
from tempera.errors import DataError, OutputError
from tempera.io import atomic
from tempera.io.atomic import staged
from tempera.options import yaml_options as configuration
from tempera.options.build import build
from tempera.recommend.judge import baselines, full_catalogue
from tempera.recommend.judge.baselines import Transitions
from tempera.recommend.judge.counts import COUNTS
from tempera.recommend.judge.full_catalogue import Histories
from tempera.recommend.recommendation import InteractionTask
from tempera.recommend.train.encoders import buckets_of
from tempera.recommender import written_lists
from tempera.recommender.recommender import Recommender
from tempera.run.train import train
from tempera.towers.stamp import Stamp

# A copy whose files may be changed, as of an earlier version: without their checksums.
UNCOMPARED = shutil.ignore_patterns("tempera-manifest.json")

ITEMS, USERS, WIDTH = 30, 40, 8
KINDS = ("red", "green", "blue")
WORDS = {"red": "ruby rose", "green": "leaf moss", "blue": "sea sky"}


def kind(item: int) -> str:
    return KINDS[item % 3]


def title(item: int) -> str:
    return f"{WORDS[kind(item)]} n{item}"


def interactions() -> pa.Table:
    """Each user has taken 8 items of one colour, in an order of their own."""
    draw = np.random.default_rng(5)
    rows = []
    for user in range(USERS):
        own = [item for item in range(ITEMS) if item % 3 == user % 3]
        rows += [
            (f"u{user}", f"i{item:02}", when)
            for when, item in enumerate(draw.permutation(own)[:8].tolist())
        ]
    return pa.table(
        {name: list(column) for name, column in zip(("user", "item", "time"), zip(*rows))}
    )


def written(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    parquet.write_table(interactions(), folder / "events.parquet")
    items = {
        "item": [f"i{item:02}" for item in range(ITEMS)],
        "title": [title(item) for item in range(ITEMS)],
    }
    parquet.write_table(
        pa.table({**items, "kind": [kind(item) for item in range(ITEMS)]}), folder / "items.parquet"
    )
    return folder


def options(folder: Path, **tower: Any) -> dict[str, Any]:
    """A run of a second."""
    data = {
        "source": "interactions",
        "path": str(folder / "events.parquet"),
        "items": str(folder / "items.parquet"),
    }
    return {
        "data": {**data, "split": "leave_last_out"},
        "tower": {"kind": "features", "dimensions": WIDTH, "query_layers": [16], **tower},
        "objective": {"temperature": 0.1, "masks": ["same_id", "known_positives"]},
        "train": {"batch_size": 40, "max_steps": 80, "evaluations": 0, "learning_rate": 0.01},
        "evaluation": {"metrics": ["hit@3", "ndcg@3"]},
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By ids alone, with two means of the history; look, do not touch."""
    pools = [{"mean": {"last": 2}}, {"mean": {"last": 5, "decay": 0.5}}]
    return train(
        options(data, history={"pools": pools}), tmp_path_factory.mktemp("runs") / "ids"
    ).folder


@pytest.fixture(scope="module")
def titled(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By titles and kinds, with an id that is mostly unknown; compared by inner products."""
    text = {"static": {"dimensions": WIDTH, "vocabulary": 200, "max_length": 8}}
    doc = [
        {"id": {"unknown": 0.9}},
        {"text": {"column": "title", "tower": text}},
        {"category": {"column": "kind"}},
    ]
    given = options(data, doc=doc, history={"pools": [{"mean": {"last": 4}}, {"max": {"last": 3}}]})
    given["objective"] = {"temperature": 1.0, "similarity": "dot"}
    given["evaluation"] = {"metrics": ["hit@3"], "baselines": True}
    return train(given, tmp_path_factory.mktemp("runs") / "titled").folder


def test_a_configuration_is_read_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Run(run)
    opened.recommend("u1")
    read = Mock(side_effect=AssertionError("read again"))
    monkeypatch.setattr("tempera.recommender.recommender.options_of_run", read)
    assert opened.recommend("u2").hits
    assert opened.recommend(history=["i03"], exclude=["i00"]).hits


def by_hand(run: Path, history: list[str]) -> dict[str, float]:
    """Scores of all items for a history, oldest first, in numpy and loops, in float64."""
    weights = {
        name: value.astype(np.float64)
        for name, value in load_file(run / "model" / "model.safetensors").items()
    }
    items = parquet.read_table(run / "model" / "items.parquet").to_pydict()
    table = next(
        value
        for name, value in weights.items()
        if name.startswith("doc.") and value.shape[1] == WIDTH
    )
    known = [name for name, count in zip(items["id"], items["count"]) if count]
    vector = {name: table[1 + known.index(name)] for name in known}
    pools = []
    for last, decay in ((2, 1.0), (5, 0.5)):
        latest = history[-last:][::-1]
        mass = sum(decay**age for age in range(len(latest))) or 1
        pools.append(
            sum((decay**age * vector[name] for age, name in enumerate(latest)), np.zeros(WIDTH))
            / mass
        )
    layer = [weights[f"query.network.{i}.{part}"] for i in (0, 2) for part in ("weight", "bias")]
    user = layer[2] @ np.maximum(layer[0] @ np.concatenate(pools) + layer[1], 0) + layer[3]
    return {
        name: float(user @ v / np.linalg.norm(user) / np.linalg.norm(v))
        for name, v in vector.items()
    }


@pytest.mark.parametrize("history", [["i03"], ["i00", "i03", "i06", "i09", "i12", "i15"], []])
def test_an_answer_is_what_the_weights_say(run: Path, history: list[str]) -> None:
    scores = by_hand(run, history)
    best = sorted((name for name in scores if name not in history), key=lambda name: -scores[name])[
        :4
    ]
    found = Run(run).recommend(history=history, k=4)
    assert [hit.id for hit in found.hits] == best
    assert [hit.rank for hit in found.hits] == [1, 2, 3, 4]
    np.testing.assert_allclose(
        [hit.score for hit in found.hits], [scores[name] for name in best], atol=1e-5
    )
    assert found.history == len(history) and not found.notes


def test_a_user_is_answered_by_all_that_the_user_has_taken(run: Path) -> None:
    events = interactions().to_pydict()
    own = [
        item for user, item in zip(events["user"], events["item"]) if user == "u7"
    ]  # in the order of their times
    opened = Run(run)
    assert opened.recommend("u7", k=5).hits == opened.recommend(history=own, k=5).hits
    assert not {hit.id for hit in opened.recommend("u7", k=99).hits} & set(own)
    everything = opened.recommend("u7", k=99, exclude_seen=False).hits
    assert len(everything) == ITEMS and {hit.id for hit in everything} >= set(own)
    assert {hit.name for hit in everything} == {title(item) for item in range(ITEMS)}


def test_a_history_in_place_of_a_users_own_forgets_nothing_that_was_taken(
    run: Path, tempera: Any
) -> None:
    events = interactions().to_pydict()
    own = {item for user, item in zip(events["user"], events["item"]) if user == "u7"}
    opened, given = Run(run), ["i00", "i02"]
    assert not own & set(given)
    both, alone = opened.recommend("u7", given, k=99), opened.recommend(history=given, k=99)
    assert {hit.id for hit in both.hits} == {hit.id for hit in alone.hits} - own
    scores = {hit.id: hit.score for hit in alone.hits}  # this tower reads the history alone
    assert all(hit.score == pytest.approx(scores[hit.id], abs=1e-6) for hit in both.hits)
    says = (
        "takes the place of the 8 events that the run knows of user 'u7'; what the user has taken"
    )
    assert both.history == 2 and says in both.notes[0] and not alone.notes
    everything = opened.recommend("u7", given, k=99, exclude_seen=False)
    assert len(everything.hits) == ITEMS and "nothing is left out" in everything.notes[0]
    answer = tempera("recommend", run, "--user", "u7", "--history", "i00,i02", "-k", 99)
    assert answer.out.splitlines() == str(both).splitlines()


def test_what_is_planted_is_found(run: Path) -> None:
    opened = Run(run)
    right = [
        int(hit.id[1:]) % 3 == user % 3
        for user in range(USERS)
        for hit in opened.recommend(f"u{user}", k=2).hits
    ]
    assert len(right) == 2 * USERS and np.mean(right) > 0.35  # by chance 0.09


def test_without_a_history_and_a_vector_items_come_by_their_counts(
    data: Path, tmp_path: Path
) -> None:
    own = options(data, history={"pools": [{"ages": {"last": 3}}]}, query_layers=[])
    own["train"]["max_steps"] = 2
    opened = Run(train(own, tmp_path / "run").folder)
    answer, counts = (
        opened.recommend("nobody", k=ITEMS),
        Counter(interactions()["item"].to_pylist()),
    )
    assert (
        answer.notes[-1].endswith("items by their number of training events")
        and len(answer.hits) == ITEMS
    )
    opened.recommend_all(tmp_path / "all.parquet", ["nobody", "u1"], k=ITEMS)
    batch = parquet.read_table(tmp_path / "all.parquet").to_pylist()
    assert [row["item"] for row in batch if row["user"] == "nobody"] == [
        hit.id for hit in answer.hits
    ]
    scores = [hit.score for hit in answer.hits]
    assert scores == sorted(scores, reverse=True) and all(
        hit.score <= counts[hit.id] for hit in answer.hits
    )
    opened.export("parquet", tmp_path / "vectors")
    assert opened.recommend("nobody", k=ITEMS, index=str(tmp_path / "vectors")) == answer


def test_an_unknown_user_is_told_and_answered(run: Path) -> None:
    opened = Run(run)
    found = opened.recommend("nobody", k=3)
    assert found.notes == ("user 'nobody' is unknown; recommended by no history",)
    assert found.hits == opened.recommend(history=[], k=3).hits
    assert str(found).startswith("note: user 'nobody' is unknown")
    assert (
        opened.recommend("nobody", ["i03"], k=3).hits == opened.recommend(history=["i03"], k=3).hits
    )


def test_what_cannot_be_answered_is_one_line(run: Path, tiny_run: Path, tmp_path: Path) -> None:
    opened = Run(run)
    for given, says in (
        ({}, "give a user, a history, or both"),
        ({"user": "u1", "k": 0}, "k is 0"),
        ({"user": "u1", "k": 2.5}, "k is 2.5; expected a whole number"),
        ({"user": "u1", "elapsed": 5}, "give now=TIME instead"),
        ({"user": "u1", "now": float("nan")}, "now is nan, but the times .* are numbers, 0 to 7"),
        ({"history": "i03,i06"}, "history is 'i03,i06'; expected a list of ids"),
        ({"history": 3}, "history is 3; expected a list of ids"),
        ({"user": "u1", "k": True}, "k is True; expected a whole number"),
        ({"user": "u1", "now": "soon"}, "now is 'soon', but the times .* are numbers, 0 to 7"),
        ({"user": "u1", "now": "2026-11-30"}, "now is '2026-11-30', but the times .* are numbers"),
        ({"user": "u1", "now": True}, "now is True, but the times .* are numbers, 0 to 7"),
        ({"user": "u1", "before": datetime(2026, 11, 30)}, "before is datetime.*: give a number"),
        ({"user": "u1", "now": 3, "before": 5}, "before is 5, which is later than now, 3"),
        ({"history": b"50"}, "history is b'50'; expected a list of ids"),
        ({"history": {"i03": 1}}, "history is {'i03': 1}; expected a list of ids"),
        ({"history": {"i03"}}, "history is {'i03'}; expected a list of ids"),
        ({"history": np.array("i03")}, "history is array.*; expected a list of ids"),
        ({"history": pd.DataFrame({"i03": ["i06"]})}, "history is .*; expected a list of ids"),
        ({"history": ["i03", None]}, "item None is no id: ids are texts or whole numbers"),
        ({"history": [["i03"]]}, r"item \['i03'\] is no id"),
        ({"user": [5]}, r"user \[5\] is no id: ids are texts or whole numbers"),
        ({"user": float("nan")}, "user nan is no id"),
        ({"user": 2.5}, "user 2.5 is no id"),
        ({"user": True}, "user True is no id"),
        ({"user": b"u1"}, "user b'u1' is no id"),
        ({"history": ["i03", "i033", "j"]}, r"no such item in .*: i033, j\. Did you mean i03"),
        ({"history": ["leaf moss n1"]}, r"Did you mean i01 \(leaf moss n1\)\?"),
    ):
        with pytest.raises(DataError, match=says):
            opened.recommend(**given)
    with pytest.raises(
        DataError, match="is a recommender and has no texts to search in: tempera recommend"
    ):
        opened.search("ruby")
    with pytest.raises(DataError, match="is a run on texts, not a recommender: tempera search"):
        Run(tiny_run).recommend("u1")
    with pytest.raises(DataError, match=r"histories\.parquet is missing"):
        Run(tmp_path).recommend("u1")


def test_parts_of_several_runs_are_refused(run: Path, titled: Path, tmp_path: Path) -> None:
    for part, says in (
        ("config.yaml", r"model\.safetensors does not fit the run's config\.yaml"),
        ("model/model.safetensors", r"model\.safetensors does not fit"),
        ("index", "holds vectors of another model"),
    ):
        folder = tmp_path / part.replace("/", "-")
        shutil.copytree(run, folder, ignore=UNCOMPARED)
        if (folder / part).is_dir():
            shutil.rmtree(folder / part)
            shutil.copytree(titled / part, folder / part)
        else:
            shutil.copy(titled / part, folder / part)
        with pytest.raises(DataError, match=says):
            Run(folder).recommend("u1")
    for part in ("config.yaml", "model/users.parquet", "model/model.safetensors"):
        folder = tmp_path / f"without-{part.replace('/', '-')}"
        shutil.copytree(run, folder, ignore=UNCOMPARED)
        (folder / part).unlink()
        with pytest.raises(DataError, match=r"is missing: the run is incomplete"):
            Run(folder).recommend("u1")


@pytest.mark.parametrize("history", [{"pools": [{"mean": {"last": 2}}]}, None])
def test_who_has_no_history_has_no_time_since_it(data: Path, tmp_path: Path, history: Any) -> None:
    """As in training, where that time is unknown, and not 0; who has one has it though no pool
    reads the history."""
    given = options(data, query=["elapsed"], history=history)
    folder = train(given, tmp_path / "run", ["train.max_steps=20"]).folder
    recommender = Recommender(folder)
    nothing, one = np.empty(0, np.int64), np.zeros(1, np.int64)
    found = recommender.vectors([None, 0], [nothing, one])
    long = np.array([1e6], np.float32)
    assert not np.allclose(found[1], recommender.vectors([0], [one], long)[0], atol=1e-4)
    events = Events(torch.zeros(1, dtype=torch.int64), torch.tensor([0, 0]), torch.tensor([0, 1]))
    users = torch.tensor([len(recommender.users.table) - 1, 0])
    frame = Frame({"user": users, "history": events, "elapsed": torch.tensor([math.nan, 0.0])})
    assert np.allclose(found, recommender.tower.encode(frame, "query").numpy(), atol=1e-6)
    frame.columns["elapsed"] = torch.tensor([0.0, 0.0])
    assert not np.allclose(found[0], recommender.tower.encode(frame, "query").numpy()[0], atol=1e-4)


def test_who_is_new_has_the_vector_of_a_bucket(data: Path, tmp_path: Path) -> None:
    """Wherever users are asked for: one by one, many at once, and in an evaluation."""
    given = options(
        data, query=[{"id": {"buckets": 5}}], history={"pools": [{"mean": {"last": 2}}]}
    )
    opened = Run(train(given, tmp_path / "run", ["train.max_steps=20"]).folder)
    old, new = (
        parquet.read_table(opened.folder / "model" / "users.parquet")["id"].to_pylist(),
        ["x", "y", "z", "w"],
    )
    buckets = buckets_of(pa.chunked_array([[*old, *new]]), 5).tolist()
    many = opened.recommend_all(tmp_path / "x.parquet", new, k=4)
    assert many["unknown"] == 4
    rows = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    for name, bucket in zip(new, buckets[len(old) :]):
        alike, one = old[buckets.index(bucket)], opened.recommend(name, k=4)
        assert one.notes == (f"user {name!r} is unknown; recommended by no history",)
        assert one.hits == opened.recommend(alike, [], k=4, exclude_seen=False).hits
        assert [row["item"] for row in rows if row["user"] == name] == [hit.id for hit in one.hits]
    later = [
        {"user": user, "item": f"i0{at}", "time": 10**3 + at}
        for user in (old[0], "x")
        for at in range(3)
    ]
    assert opened.evaluate(pa.Table.from_pylist(later)).counts["known_users"] == 1
    recommender = Recommender(opened.folder).with_users(pa.array(["x"]))
    bucket, nobody = recommender.vectors([len(old), None], [np.zeros(1, np.int64)] * 2)
    assert not np.allclose(bucket, nobody, atol=1e-4)


def test_a_baseline_of_too_many_items_is_left_out_with_a_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(baselines, "DENSE", 29)
    given = build(configuration.of(options(data), ["evaluation.baselines=true"]))
    task = InteractionTask.read(given, tmp_path)
    with caplog.at_level("INFO"):
        systems = task.held_out.baselines()
    assert [*systems] == ["popularity", "item-kNN", "transitions", "trained + counting"]
    assert "EASE is left out: 30 items are more than its 29" in caplog.text


def test_titles_that_are_lists_are_refused_before_training(data: Path, tmp_path: Path) -> None:
    named = tmp_path / "named"
    table = parquet.read_table(written(named) / "items.parquet")
    lists = pa.array([[text] for text in table["title"].to_pylist()])
    parquet.write_table(table.set_column(1, "title", lists), named / "items.parquet")
    with pytest.raises(
        DataError, match=r"column title holds the items' names, but is list<.*>: rename it"
    ):
        InteractionTask.read(build(configuration.of(options(named))), tmp_path / "cache")


def test_tables_of_a_run_that_its_towers_cannot_read_are_named(
    titled: Path, tmp_path: Path
) -> None:
    whole = parquet.read_table(titled / "model" / "items.parquet")
    for i, (change, says) in enumerate(
        (
            (
                lambda names: [name.upper() if name == "title" else name for name in names],
                r"model do not fit .*'title'",
            ),
            (
                lambda names: ["number" if name == "id" else name for name in names],
                r"items\.parquet .* no column id",
            ),
            (
                lambda names: [b"\x9f" if name == "title" else name for name in names],
                r"items\.parquet is not readable",
            ),
        )
    ):
        folder = tmp_path / str(i)
        shutil.copytree(titled, folder, ignore=UNCOMPARED)
        parquet.write_table(
            whole.rename_columns(change(whole.column_names)), folder / "model" / "items.parquet"
        )
        with pytest.raises(DataError, match=says):
            Run(folder).recommend("u1")
    bytes_ = pa.array([b"\xbc"] * len(whole)).view(pa.string())
    place = whole.column_names.index("title")
    parquet.write_table(
        whole.set_column(place, "title", bytes_), folder / "model" / "items.parquet"
    )
    with pytest.raises(DataError, match=r"items\.parquet, row 1: column 'title' is not UTF-8"):
        Run(folder).recommend("u1")


def test_the_command_answers_as_the_function(tempera: Any, run: Path) -> None:
    found = Run(run).recommend("u3", k=3)
    answer = tempera("recommend", run, "--user", "u3", "-k", 3)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == str(found).splitlines()
    assert answer.out.splitlines()[0].split()[:1] == ["1"] and found.hits[0].name in answer.out
    document = tempera("recommend", run, "--history", 'i03, "i06"', "-k", 2, "--json").document
    assert [hit["id"] for hit in document["hits"]] == [
        hit.id for hit in Run(run).recommend(history=["i03", "i06"], k=2).hits
    ]
    assert document["history"] == 2 and document["notes"] == []
    unread = tempera("recommend", run, "--user", "u3", "--now", 9, "--json").document["notes"]
    assert unread == ["the model has no feature that reads the time since the last event (elapsed)"]
    old = tempera("recommend", run, "--user", "u3", "--elapsed", 5)
    assert old.code == 2 and "give --now TIME" in old.err and old.err.count("\n") == 1
    comma = tempera("recommend", run, "--history", '"i03,i06"')
    assert comma.code == 2 and f"no such item in {run}: i03,i06." in comma.err
    assert (
        len(
            tempera(
                "recommend", run, "--user", "u3", "--include-seen", "-k", 99, "--json"
            ).document["hits"]
        )
        == 30
    )
    refused = tempera("recommend", run, "--history", "nothing", "--json")
    assert refused.code == 2 and "no such item" in json.loads(refused.out)["error"]


def test_ids_of_any_kind_of_number_and_text_are_read_and_spaces_are_kept(
    tempera: Any, tmp_path: Path
) -> None:
    table, spaced = interactions(), {"i03": " sp ace ", "i06": 'a "b"'}
    users = [int(name[1:]) for name in table["user"].to_pylist()]
    items = [spaced.get(name, name) for name in table["item"].to_pylist()]
    named = {"user": users, "item": items, "time": table["time"]}
    parquet.write_table(pa.table(named), written(tmp_path) / "events.parquet")
    own = options(tmp_path, history={"pools": [{"mean": {"last": 2}}]})
    del own["data"]["items"]
    opened = Run(train(own, tmp_path / "run", ["train.max_steps=2"]).folder)
    for user in (5.0, "5", "05", np.int32(5), np.float32(5), pa.scalar(5), np.str_("5")):
        assert opened.recommend(user, k=3) == opened.recommend(5, k=3)
    history = [" sp ace ", 'a "b"', "i09"]
    expected = opened.recommend(history=history, k=3)
    assert expected.history == 3 and opened.recommend(history=pa.array(history), k=3) == expected
    document = tempera(
        "recommend", opened.folder, "--history", '" sp ace ", "a ""b""" , i09 ,', "-k", 3, "--json"
    ).document
    assert [hit["id"] for hit in document["hits"]] == [
        hit.id for hit in expected.hits
    ] and document["history"] == 3


def test_items_that_are_withheld_are_asked_for(data: Path, tmp_path: Path) -> None:
    """Titles tell colours, so items that were never trained on are found by them."""
    doc = [{"text": {"column": "title", "tower": {"static": {"dimensions": 8, "vocabulary": 200}}}}]
    given = options(data, doc=doc)
    given["evaluation"] |= {"cold_items": 0.4}
    document = train(given, tmp_path / "run").results
    cold = document["cold"]
    assert cold["items"] == 12 and cold["queries"] > 5
    assert (
        cold["withheld"]
        == document["data"]["dropped"]["interactions with items that are withheld"]
        > 50
    )
    assert document["data"]["train"] == USERS * 6 - cold["withheld"]
    assert set(cold["systems"]) == {"untrained", "trained", "random", "popularity as if known"}
    means = {system: found["hit@3"]["mean"] for system, found in cold["systems"].items()}
    assert means["trained"] > 2 * means["random"]
    kept = parquet.read_table(tmp_path / "run" / "histories.parquet").to_pydict()
    assert [len(items) for items in kept["items"]] == [
        8
    ] * USERS  # all that users have taken, so that none of it is shown
    items = parquet.read_table(tmp_path / "run" / "model" / "items.parquet").to_pydict()
    unseen = [name for name, count in zip(items["id"], items["count"]) if not count]
    assert len(unseen) >= 12
    hits = Run(tmp_path / "run").recommend(history=["i00", "i03", "i06"], k=8).hits
    assert set(unseen) & {hit.id for hit in hits}


def arrived(folder: Path, **columns: Any) -> Path:
    """Three new items: two red ones that are told by title and kind, a green one by a kind
    alone."""
    table = {"title": ["rose ruby x", "ruby", None], "kind": ["red", "red", "green"], **columns}
    parquet.write_table(
        pa.table({"item": ["i01", "j1", "j2", "j3"], **{k: [None, *v] for k, v in table.items()}}),
        folder,
    )
    return folder


def test_new_items_are_recommended_by_their_features(
    titled: Path, tmp_path: Path, tempera: Any
) -> None:
    run = tmp_path / "run"
    shutil.copytree(titled, run)
    before = Run(run).recommend("u3", k=99, exclude_seen=False).hits
    facts = tempera(
        "add-items", run, arrived(tmp_path / "new.parquet", year=[1, 2, 3]), "--json"
    ).document
    assert (facts["added"], facts["items"]) == (3, ITEMS + 3)
    assert facts["left_out"] == {"already in the run": 1} and facts["columns_left_out"] == ["year"]
    opened = Run(run)
    after = opened.recommend("u3", k=99, exclude_seen=False).hits
    scores = {hit.id: hit.score for hit in after}
    known = {k: v for k, v in scores.items() if not k.startswith("j")}
    assert {hit.id: hit.score for hit in before} == pytest.approx(known, rel=1e-6)
    assert set(scores) - {hit.id for hit in before} == {"j1", "j2", "j3"}
    assert {hit.id: hit.name for hit in after}["j3"] == "j3"  # by its id: it has no title
    assert (
        opened.recommend(history=["j1", "i03"], k=3).history == 2
    )  # and they may stand in histories
    reds, others = (
        [np.mean([scores[f"i{i:02}"] for i in range(ITEMS) if i % 3 == colour])]
        for colour in (0, 1)
    )
    assert min(scores["j1"], scores["j2"]) > others[0] and reds[0] > others[0]
    counts = parquet.read_table(run / "model" / "items.parquet")["count"].to_pylist()
    assert counts[-3:] == [0, 0, 0] and sum(counts) == USERS * 6
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("run")] == ["run"]


@pytest.mark.parametrize("part", ["histories.parquet", COUNTS])
def test_parts_of_another_run_are_refused(titled: Path, tmp_path: Path, part: str) -> None:
    """Also by a run of the same shape on the same interactions, and after new items have made it
    another model."""
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(titled, run)
    shutil.copytree(titled, other)
    Run(other).add_items(arrived(tmp_path / "new.parquet"))
    own = Run(other).recommend("u3", k=3, hybrid=True)
    assert own.history == 8
    shutil.copy(run / part, other / part)
    (other / "tempera-manifest.json").unlink()
    with pytest.raises(
        DataError,
        match=rf"{part} is of another run: it belongs to the model \w+, and the model beside",
    ):
        Run(other).recommend("u3", k=3, hybrid=True)
    before = {path.name for path in other.iterdir()}
    parquet.write_table(
        pa.table({"item": ["k1"], "title": ["ruby"], "kind": ["red"]}), tmp_path / "newer.parquet"
    )
    with pytest.raises(DataError, match=rf"{part} is of another run"):
        Run(other).add_items(tmp_path / "newer.parquet")
    assert {path.name for path in other.iterdir()} == before


def test_new_vectors_are_the_sum_of_what_is_known(titled: Path, tmp_path: Path) -> None:
    """The unknown id, the mean of the title's tokens, the kind: by the saved weights, in
    float64."""
    run = tmp_path / "run"
    shutil.copytree(titled, run)
    Run(run).add_items(arrived(tmp_path / "new.parquet"))
    weights = {
        k: v.astype(np.float64) for k, v in load_file(run / "model" / "model.safetensors").items()
    }
    ids, tokens, kinds = (
        weights[name] for name in sorted(n for n in weights if n.startswith("doc.features"))
    )
    assert len(ids) == ITEMS + 1 and len(kinds) == 4
    vectors = np.load(run / "index" / "vectors.npy").astype(np.float64)
    kind_row = {kind: 1 + ["red", "green", "blue"].index(kind) for kind in KINDS}
    np.testing.assert_allclose(vectors[-1], ids[0] + kinds[kind_row["green"]], atol=1e-5)
    rest = vectors[-3] - ids[0] - kinds[kind_row["red"]]
    solution = np.linalg.lstsq(tokens.T, rest, rcond=None)[1]
    assert np.abs(rest).max() > 0.01 and (solution.size == 0 or solution[0] < 1e-9)
    assert not np.allclose(vectors[-3], vectors[-2])


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            {"item": ["j1", "j1"], "title": ["a", "b"], "kind": ["red", "red"]},
            "two rows for item 'j1'",
        ),
        (
            {"item": ["j1"], "kind": ["red"]},
            "has no column 'title', which the towers read; it has kind",
        ),
        ({"name": ["j1"], "title": ["a"], "kind": ["red"]}, "has no column of item ids"),
        (
            {"item": ["i01"], "title": ["a"], "kind": ["red"]},
            "has no item that .* does not have already",
        ),
        ({"item": ["j1"]}, "has no column 'title', which the towers read; it has ids alone"),
        (
            {"item": ["j1", None], "title": ["a", "b"], "kind": ["red", "red"]},
            "row 2: column 'item' has no id",
        ),
        (
            {"item": ["j1"], "title": [["a"]], "kind": ["red"]},
            "column 'title' is list.*; expected large_string as in the run",
        ),
    ],
)
def test_tables_of_new_items_that_do_not_fit(
    titled: Path, tmp_path: Path, columns: Any, says: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(titled, run)
    parquet.write_table(pa.table(columns), tmp_path / "new.parquet")
    with pytest.raises(DataError, match=says):
        Run(run).add_items(tmp_path / "new.parquet")
    assert (run / "index" / "vectors.npy").read_bytes() == (
        titled / "index" / "vectors.npy"
    ).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.parquet", "run"]


def renamed(data: Path, folder: Path, name: Callable[[pa.ChunkedArray], Any]) -> dict[str, Any]:
    """Options of a run on the same data, in which items have other ids."""
    for file in ("events", "items"):
        table = parquet.read_table(data / f"{file}.parquet")
        table = table.set_column(table.column_names.index("item"), "item", name(table["item"]))
        parquet.write_table(table, folder / f"{file}.parquet")
    return options(folder, doc=["id", {"category": {"column": "kind"}}])


def test_ids_of_new_items_are_numbers_where_those_of_the_run_are(
    data: Path, tmp_path: Path
) -> None:
    given = renamed(data, tmp_path, lambda ids: pc.utf8_slice_codeunits(ids, 1).cast(pa.int64()))
    run = train(given, tmp_path / "run", ["train.max_steps=2"])
    (tmp_path / "new.csv").write_text("item,kind\n9001,red\nx9,red\n")
    with pytest.raises(
        DataError, match=r"new\.csv: the item id 'x9' is not int64, as the ids of the run are"
    ):
        run.add_items(tmp_path / "new.csv")


def test_an_id_is_suggested_as_a_history_needs_it(data: Path, tmp_path: Path) -> None:
    given = renamed(data, tmp_path, lambda ids: pc.binary_join_element_wise(" ", ids, ", new", ""))
    run = train(given, tmp_path / "run", ["train.max_steps=2"])
    with pytest.raises(DataError, match='Did you mean " i03, new"'):
        run.recommend(history=["i03, new"])


def test_times_of_new_items_are_read_as_the_run_has_them(data: Path, tmp_path: Path) -> None:
    """Texts of a CSV file in the run, and whatever a table has beside it."""
    items = {
        "item": [f"i{at:02}" for at in range(ITEMS)],
        "out": [f"2020-{1 + at % 9:02}-01" for at in range(ITEMS)],
    }
    csv.write_csv(pa.table(items), tmp_path / "items.csv")
    given = options(data, doc=["id", {"time": {"column": "out", "parts": ["month"]}}])
    given["data"]["items"] = str(tmp_path / "items.csv")
    folder = train(given, tmp_path / "run", ["train.max_steps=2"]).folder
    new, vectors = tmp_path / "new.parquet", []
    times = pa.array([datetime(2021, 3, 1, 5, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    for number, out in enumerate(
        (times, times.cast(pa.timestamp("ns")), times.cast(pa.date32()), ["2021-03-01"])
    ):
        parquet.write_table(pa.table({"item": [f"n{number}"], "out": out}), new)
        Run(folder).add_items(new)
        vectors.append(np.load(folder / "index" / "vectors.npy")[-1])
    np.testing.assert_allclose(vectors, np.stack([vectors[-1]] * 4))
    parquet.write_table(pa.table({"item": ["x"], "out": ["soon"]}), new)
    says = r"new\.parquet does not fit the run: .*cannot read the column 'out', which is 'soon' for 'x': expected a date"
    with pytest.raises(DataError, match=says):
        Run(folder).add_items(new)


def test_texts_that_are_integers_of_the_run_are_no_new_items(data: Path, tmp_path: Path) -> None:
    """007 is 7 where the run has integers."""
    events = interactions()
    for name in ("user", "item"):
        codes = pa.array([int(each[1:]) for each in events[name].to_pylist()])
        events = events.set_column(events.column_names.index(name), name, codes)
    parquet.write_table(events, tmp_path / "events.parquet")
    items = {"item": range(ITEMS), "title": [title(item) for item in range(ITEMS)]}
    parquet.write_table(
        pa.table({name: list(values) for name, values in items.items()}), tmp_path / "items.parquet"
    )
    given = options(tmp_path, doc=["id", {"category": {"column": "title"}}])
    given["train"] = {**given["train"], "max_steps": 2}
    opened = Run(train(given, tmp_path / "run").folder)
    for name in ("03", 3.0, np.int64(3)):
        assert opened.recommend(name, [7]) == opened.recommend(3, ["007"])
    for name in ("0_3", "٣"):
        assert opened.recommend(name).notes == (
            f"user {name!r} is unknown; recommended by no history",
        )
    assert opened.recommend("3.5").notes == ("user '3.5' is unknown; recommended by no history",)
    assert opened.recommend_all(tmp_path / "all.parquet", ["03", 3, "3", "x"], k=1)["users"] == 2
    parquet.write_table(pa.table({"user": ["03", "3"]}), tmp_path / "few.parquet")
    assert (
        opened.recommend_all(tmp_path / "few_all.parquet", tmp_path / "few.parquet", k=1)["users"]
        == 1
    )
    (tmp_path / "some.csv").write_text("user\n003\n+4\nnobody\n")  # one of whom is no integer
    facts = opened.recommend_all(tmp_path / "some.parquet", tmp_path / "some.csv", k=1)
    assert (facts["users"], facts["unknown"]) == (3, 1)
    assert parquet.read_table(tmp_path / "some.parquet")["user"].to_pylist() == ["3", "4", "nobody"]
    assert opened.recommend("9" * 5000).notes == (
        f"user {'9' * 5000!r} is unknown; recommended by no history",
    )
    later = {"user": [3, 3, 40, 40], "item": [7, 8, 7, 9], "time": [20 + at for at in range(4)]}
    texts = {
        **later,
        **{
            name: [f"{'x' * (each > 39)}00{each}" for each in later[name]]
            for name in ("user", "item")
        },
    }
    found = [opened.evaluate(pa.table(each)) for each in (later, texts)]
    assert found[0].counts == found[1].counts and found[0].counts["known_users"] == 1
    assert found[0].metrics == found[1].metrics
    new = {"item": ["007", "31", "0031"], "title": ["a", "b", "c"]}
    parquet.write_table(pa.table(new), tmp_path / "new.parquet")
    with pytest.raises(DataError, match="has two rows for the item 31: keep one"):
        Run(tmp_path / "run").add_items(tmp_path / "new.parquet")
    parquet.write_table(pa.table(new).slice(0, 2), tmp_path / "new.parquet")
    Run(tmp_path / "run").add_items(tmp_path / "new.parquet")
    assert parquet.read_table(tmp_path / "run" / "model" / "items.parquet")["id"].to_pylist() == [
        *range(ITEMS),
        31,
    ]


def test_items_are_read_by_one_process_at_a_time(
    titled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_PATIENCE", 0.1)
    run = tmp_path / "run"
    shutil.copytree(titled, run)
    with staged(run, overwrite=True) as folder:
        with pytest.raises(OutputError, match="another process is writing to"):
            Run(run).add_items(tmp_path / "nothing.parquet")  # is not read yet
        shutil.copytree(run, folder, dirs_exist_ok=True)
    before = len(Recommender(run).items.table)
    Run(run).add_items(arrived(tmp_path / "new.parquet"))
    assert len(Recommender(run).items.table) > before


def test_a_run_of_ids_takes_no_new_items(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="knows items only by their ids"):
        Run(run).add_items(arrived(tmp_path / "new.parquet"))


@pytest.mark.parametrize("kind", ["hnsw", "parquet"])
def test_exported_indexes_answer_as_the_run_until_it_has_new_items(
    titled: Path, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("faiss")
    run = tmp_path / "run"
    shutil.copytree(titled, run)
    facts = Run(run).export("faiss" if kind == "hnsw" else kind, tmp_path / "index")
    assert facts["documents"] == ITEMS
    own, other = (
        Run(run).recommend("u4", k=5, index=index).hits for index in (None, tmp_path / "index")
    )
    assert [hit.id for hit in own] == [hit.id for hit in other]
    np.testing.assert_allclose(
        [hit.score for hit in own], [hit.score for hit in other], atol=1e-4
    )  # inner products
    assert own[0].score != pytest.approx(1, abs=0.2) or own[1].score != pytest.approx(1, abs=0.2)
    Run(run).add_items(arrived(tmp_path / "new.parquet"))
    with pytest.raises(DataError, match="holds vectors of another model"):
        Run(run).recommend("u4", index=tmp_path / "index")
    Run(run).export("faiss" if kind == "hnsw" else kind, run / "export" / "again")
    found = Run(run).recommend("u4", k=33, index=run / "export" / "again", exclude_seen=False).hits
    assert "j1" in {hit.id for hit in found}


def test_titles_read_by_a_pretrained_tower(data: Path, tmp_path: Path) -> None:
    """Any text tower inside the items' tower: trained with the rest, opened again, and it reads the
    titles of new items."""
    pytest.importorskip("sentence_transformers")
    from tempera.towers.transformer import Transformer

    texts = [title(item) for item in range(ITEMS)] * 3
    Transformer(layers=1, width=16, heads=2, vocabulary=200, max_length=16, dropout=0.0).build(
        texts
    ).save(tmp_path / "tiny")
    doc = [
        {"text": {"column": "title", "tower": {"pretrained": {"model": str(tmp_path / "tiny")}}}}
    ]
    given = options(data, doc=doc, history={"pools": [{"mean": {"last": 4}}]})
    given["evaluation"] |= {"cold_items": 0.3}
    given["train"] |= {"max_steps": 40}
    trained = train(given, tmp_path / "run")
    before = load_file(tmp_path / "tiny" / "model.safetensors")
    after = load_file(trained.folder / "model" / "model.safetensors")
    name = next(name for name in before if name.endswith("word_embeddings.weight"))
    other = next(value for key, value in after.items() if key.endswith(name))
    assert other.shape == before[name].shape and np.abs(other - before[name]).max() > 1e-3
    items = Index(trained.folder / "index")
    found = trained.recommender.tower.encode(Frame({"item": torch.arange(ITEMS)})).numpy()
    np.testing.assert_allclose(found, items.vectors, atol=1e-5)
    more = trained.add_items(arrived(tmp_path / "new.parquet"))
    hits = {hit.id: hit for hit in more.recommend("u3", k=99, exclude_seen=False).hits}
    assert len(hits) == ITEMS + 3
    first = [hits[name].score for name in ("j1", "j2", "j3")]
    assert len({round(score, 6) for score in first}) == 3


def test_the_page_and_the_card_speak_of_a_recommender(run: Path, titled: Path) -> None:
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert (
        "# A recommender" in card and 'library_name: "tempera"' in card and "run.recommend(" in card
    )
    assert "sentence" not in card.split("## Training data")[0]
    for text in (
        "Tempera run: a recommender",
        "Held out",
        "seen items ranked too",
        "interactions",
        "items ranked",
    ):
        assert text in page
    words, _, options = page.partition("<summary>Resolved configuration")
    assert "shared_documents" in options
    for text in ("BM25", "document", "pairs trained on"):
        assert text not in words, text


@pytest.fixture(scope="module")
def counted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside baselines; look, do not touch."""
    given = options(data)
    given["evaluation"] = {"metrics": ["hit@3", "ndcg@10"], "baselines": True}
    given["train"] |= {"max_steps": 4}
    return train(given, tmp_path_factory.mktemp("runs") / "counted").folder


def test_the_best_baseline_is_the_rival(counted: Path) -> None:
    found = Run(counted)
    systems = {name: values["ndcg@10"] for name, values in found.metrics.items()}
    best = max(("popularity", "item-kNN", "EASE", "transitions"), key=lambda name: systems[name])
    page = (found.folder / "report.html").read_text(encoding="utf-8")
    assert f"over {best}" in page and f"higher than with {best} in" in page and "BM25" not in page
    assert "hit@3, seen included" not in page and "hit@3, seen included" in found.metrics["trained"]


def test_what_won_is_said(counted: Path) -> None:
    document = Run(counted).results
    systems = {
        name: each["ndcg@10"] for name, each in document["metrics"].items() if name != "untrained"
    }
    first, second = sorted(systems, key=lambda name: -systems[name])[:2]
    said = document["winner"]
    assert said.startswith(
        (f"{first} is the best on the test: ndcg@10", f"{first} is not shown to be the best on the")
    )
    assert f"over {second}" in said and said in (counted / "report.html").read_text(
        encoding="utf-8"
    )
    assert "until then, recommend with --hybrid" in " ".join(document["cautions"])
    assert document["baselines"]["transitions"] == asdict(
        Transitions()
    )  # too few validation events to choose by
    assert (
        document["hybrid"] == {"weight": 0.3, "queries": 0}
        and document["counting"]["served"] is False
    )


def test_the_lead_over_each_system_is_that_of_the_metrics(counted: Path) -> None:
    document = Run(counted).results
    (protocol,) = document["protocols"]["trained"]
    for name, metrics in document["metrics"].items():
        lead = document["protocols"][name][protocol].get("lead")
        if name == "trained":
            assert lead is None
        else:
            assert lead["mean"] == pytest.approx(
                document["metrics"]["trained"]["ndcg@10"] - metrics["ndcg@10"]
            )
            assert lead["low"] <= lead["mean"] <= lead["high"] and lead["metric"] == "ndcg@10"


def test_counts_and_vectors_recommend_together(counted: Path, tmp_path: Path) -> None:
    opened = Run(counted).recommender
    history = [f"i{item:02}" for item in (4, 7, 10)]
    counting, codes = opened.counts, opened.codes(history)
    assert counting is not None
    vectors = opened.vectors([None], [codes]) @ np.asarray(opened.index.vectors).T
    scores = counting.fused(vectors, Histories.of(codes, np.array([0, 3])))[0]
    best = [code for code in np.argsort(-scores, kind="stable").tolist() if code not in codes][:5]
    together = opened.recommend(history=history, k=5, hybrid=True).hits
    assert [hit.id for hit in together] == opened.item_ids.take(pa.array(best)).to_pylist()
    np.testing.assert_allclose([hit.score for hit in together], scores[best], atol=1e-5)
    assert (
        len(opened.recommend(history=history, k=99, hybrid=True, exclude_seen=False).hits) == ITEMS
    )
    alone = opened.recommend(history=history, k=5, hybrid=False).hits
    assert (
        opened.recommend(history=history, k=5).hits == alone != together
    )  # as nothing has shown which is better
    shutil.copytree(counted, tmp_path / "run", ignore=UNCOMPARED)
    parquet.write_table(replace(counting, served=True).table(), tmp_path / "run" / COUNTS)
    better = Run(tmp_path / "run")
    assert (
        better.recommend(history=history, k=5).hits
        == together
        != better.recommend(history=history, hybrid=False).hits
    )
    (tmp_path / "run" / COUNTS).unlink()
    with pytest.raises(DataError, match=r"has no counts: a hybrid needs evaluation.baselines=true"):
        Run(tmp_path / "run").recommend(history=history, hybrid=True)


def test_training_ends_with_tables_that_fit_and_the_next_command(
    tempera: Any, data: Path, tmp_path: Path
) -> None:
    given = [f"data.{key}={value}" for key, value in options(data)["data"].items()]
    small = [
        "tower.kind=features",
        "train.batch_size=40",
        "train.max_steps=3",
        "train.evaluations=0",
    ]
    answer = tempera(
        "train", *given, *small, "evaluation.metrics=[hit@3,ndcg@3]", "--output", tmp_path / "run"
    )
    assert answer.code == 0
    for text in (
        "last: 40 queries, 30 items",
        "seen items left out",
        "seen items ranked too",
        "head",
        "tail",
        "coverage",
    ):
        assert text in answer.out
    assert (
        f"\nreport: {tmp_path}/run/report.html\nrecommend: tempera recommend {tmp_path}/run --user "
        in answer.out
    )
    assert "seen included" not in answer.out and "tempera search" not in answer.out
    assert "…" not in answer.out  # tables are as wide as their content
    refused = tempera("search", tmp_path / "run", "words")
    assert refused.code == 2 and "tempera recommend" in refused.err and refused.err.count("\n") == 1
    exported = tempera("export", tmp_path / "run", "--to", "parquet", "--json").document
    assert exported["documents"] == ITEMS


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("exclude_seen", [True, False])
def test_many_users_are_answered_as_each_of_them(
    counted: Path, tmp_path: Path, hybrid: bool, exclude_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_catalogue, "_ROWS", (4, 7))  # users at once
    monkeypatch.setattr(written_lists, "_ROWS", 100)
    opened, file, k = (
        Run(counted),
        tmp_path / "all.parquet",
        25,
    )  # more than are left of those that a user has seen
    options: dict[str, Any] = {"hybrid": hybrid, "exclude_seen": exclude_seen, "k": k}
    facts = opened.recommend_all(file, **options)
    with parquet.ParquetFile(file) as written:
        assert 2 < written.num_row_groups < USERS / 4
    rows = parquet.read_table(file).to_pylist()
    users = sorted(f"u{user}" for user in range(USERS))
    expected = [(user, hit) for user in users for hit in opened.recommend(user, **options).hits]
    assert [(row["user"], row["rank"], row["item"]) for row in rows] == [
        (u, hit.rank, hit.id) for u, hit in expected
    ]
    np.testing.assert_allclose(
        [row["score"] for row in rows], [hit.score for _, hit in expected], atol=1e-5
    )
    assert (facts["users"], facts["unknown"], facts["rows"]) == (
        USERS,
        0,
        USERS * (22 if exclude_seen else 25),
    )
    assert len(rows) == facts["rows"]


def test_some_users_known_or_not(run: Path, tmp_path: Path, tempera: Any) -> None:
    (tmp_path / "users.csv").write_text("user_id,town\nu7,a\nnobody,b\nu7,c\n")
    file = tmp_path / "some.parquet"
    answer = tempera("recommend", run, "--users", tmp_path / "users.csv", "-o", file, "-k", 2)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        f"written: {file}: 4 recommendations for 2 users, ranked by the vectors",
        "note: the run does not know 1 of these users, who are recommended to by no history",
    ]
    expected = [
        (user, hit.id) for user in ("u7", "nobody") for hit in Run(run).recommend(user, k=2).hits
    ]
    assert [(row["user"], row["item"]) for row in parquet.read_table(file).to_pylist()] == expected
    for table in (
        pd.DataFrame({"user_id": ["u7", "nobody"]}),
        pa.table({"user": ["u7", "nobody"], "town": ["a", "b"]}),
    ):
        Run(run).recommend_all(file, table, k=2, overwrite=True)
        assert [
            (row["user"], row["item"]) for row in parquet.read_table(file).to_pylist()
        ] == expected
    for users, says in (
        (pd.DataFrame({"town": ["a"]}), "data has no column of user ids"),
        ({}, "no user to recommend"),
    ):
        with pytest.raises(DataError, match=says):
            Run(run).recommend_all(file, users, overwrite=True)
    for users, says in (
        (
            {"user_id": [6, 7]},
            r"there is no user to recommend to in {'user_id': \[6, 7\]}: give a table, its path, or a list",
        ),
        (b"u7", "there is no user to recommend to in b'u7'"),
        (7, "there is no user to recommend to in 7"),
        (["u7", None], "user None is no id: ids are texts or whole numbers"),
        (pd.Series(["u7", None]), "user nan is no id|user None is no id"),
        (["u7", pd.NA], "user <NA> is no id"),
    ):
        with pytest.raises(DataError, match=says):
            Run(run).recommend_all(tmp_path / "x.parquet", users)
    for users in (
        ["u7", "nobody"],
        pa.array(["u7", "nobody"]),
        np.array(["u7", "nobody"]),
        pd.Series(["u7", "nobody"]),
    ):
        Run(run).recommend_all(file, users, k=2, overwrite=True)
        assert [
            (row["user"], row["item"]) for row in parquet.read_table(file).to_pylist()
        ] == expected
    for arguments, says in (
        (["--all", "-o", file], "exists; give another file, or --overwrite"),
        (["--all", "-o", tmp_path / "some.xls"], "give a name that ends in .parquet, .csv, .jsonl"),
        (["--all"], "give --all, --users FILE or --histories FILE, with --output"),
        (
            ["--all", "-o", tmp_path / "x.parquet", "--user", "u7"],
            "without --user, --history, --similar and --index",
        ),
        (["--all", "-o", tmp_path / "x.parquet", "--hybrid"], "has no counts"),
        (["--users", tmp_path / "none.csv", "-o", tmp_path / "x.parquet"], "no such file"),
    ):
        refused = tempera("recommend", run, *arguments)
        assert refused.code == 2 and says in refused.err and refused.err.count("\n") == 1
    own = shutil.copytree(run, tmp_path / "run")
    for name in ("model/x.parquet", "model/items.parquet", "histories.parquet"):
        refused = tempera("recommend", own, "--all", "-o", own / name, "--overwrite")
        assert refused.code == 2 and f"is in {own}" in refused.err and refused.err.count("\n") == 1
        refused = tempera(
            "evaluate", own, tmp_path / "users.csv", "--per-query", own / name, "--overwrite"
        )
        assert refused.code == 2 and f"is in {own}" in refused.err
    with pytest.raises(DataError, match="there is no user to recommend to"):
        Run(run).recommend_all(tmp_path / "x.parquet", users=[])
    assert not (tmp_path / "x.parquet").exists() and not [*tmp_path.glob("*.partial")]


def test_vectors_of_all_users_are_exported(counted: Path, tmp_path: Path) -> None:
    opened = Run(counted)
    assert opened.export("parquet", tmp_path / "out")["users"] == USERS
    table, recommender = parquet.read_table(tmp_path / "out" / "users.parquet"), opened.recommender
    assert table["id"].to_pylist() == sorted(f"u{user}" for user in range(USERS))
    expected = recommender.vectors(
        range(USERS), [recommender.past(user).items.each[0] for user in range(USERS)]
    )
    np.testing.assert_allclose(np.array(table["vector"].to_pylist()), expected, atol=1e-6)
    assert len(Index(tmp_path / "out").documents) == ITEMS


def test_users_are_cut_to_the_width_of_the_items(counted: Path, tmp_path: Path) -> None:
    opened, width = Run(counted), WIDTH // 2
    opened.export("parquet", tmp_path / "whole")
    opened.export("parquet", tmp_path / "cut", width=width)
    whole, cut = (
        parquet.read_table(tmp_path / name / "users.parquet") for name in ("whole", "cut")
    )
    first = np.array(whole["vector"].to_pylist())[:, :width]
    vectors = np.array(cut["vector"].to_pylist(), np.float32)
    np.testing.assert_allclose(
        vectors, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6
    )
    stamps = [Stamp.read(table.schema.metadata, tmp_path) for table in (whole, cut)]
    assert [stamp and (stamp.dimensions, stamp.checksum) for stamp in stamps] == [
        (WIDTH, None),
        (width, None),
    ]
    assert Index(tmp_path / "cut").scores(vectors).shape == (USERS, ITEMS)
