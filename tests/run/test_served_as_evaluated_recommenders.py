"""What a recommender serves is what was evaluated: the same users, asked in every way that there is
to an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from numpy.typing import NDArray

from tempera.artifacts.run_folder import Run
from tempera.finished.held_out_events import evaluate_held_out_events
from tempera.recommender.other_events import EventsFinding
from tempera.run.train import train
from tempera.task.verdict import COUNTED

ITEMS, USERS, EACH, K = 40, 36, 14, 10
DEVICES = ("phone", "desk")
TIE = 1e-5

Row = dict[str, Any]


def interactions() -> list[Row]:
    """Users go round in circles of items with pauses of very different lengths; two in seven rows
    have a low rating, and no user has an item twice."""
    draw, rows = np.random.default_rng(3), list[Row]()
    for user in range(USERS):
        now = int(draw.integers(1000, 3000))
        start, step = int(draw.integers(ITEMS)), int(draw.choice([1, 3, 7]))
        for place in range(EACH):
            now += int(draw.choice([1, 40, 900, 20_000]))
            rows.append(
                {
                    "user": f"u{user:02}",
                    "item": f"i{(start + step * place) % ITEMS:02}",
                    "time": now,
                    "rating": int(draw.choice([1, 2, 4, 4, 5, 5, 5])),
                    "device": DEVICES[int(draw.integers(2))],
                }
            )
    return rows


ROWS = interactions()
TABLE = pa.Table.from_pylist(ROWS)


@dataclass(frozen=True)
class Kind:
    """A kind of run, and the ways to an answer that it has."""

    tower: dict[str, Any]
    data: dict[str, Any]
    objective: dict[str, Any]
    onnx: bool = True
    columns: tuple[str, ...] = ("user", "item", "time", "rating")


def kind(
    *pools: Any, query: Any = (), onnx: bool = True, device: bool = False, **given: Any
) -> Kind:
    tower = {"history": {"pools": list(pools)} if pools else None, "query": list(query)}
    tower |= given.pop("tower", {})
    objective = given.pop("objective", {})
    columns = ("user", "item", "time", "rating", *(["device"] if device else []))
    return Kind(tower, {"min_rating": 4, **given}, objective, onnx, columns)


WINDOWS = [{"mean": {"last": 1}}, {"mean": {"last": 4, "decay": 0.9}}, {"mean": {"last": 20}}]
DEVICE = {"category": {"column": "device"}}
KINDS = {
    "mean": kind({"mean": {"last": 3}}, query=["id"]),
    "windows": kind(*WINDOWS, query=["elapsed"]),
    "ages": kind({"ages": {"last": 5}}, query=["elapsed", "id"]),
    "attention, dot product": kind(
        {"attention": {"last": 6}},
        {"max": {"last": 3}},
        query=["elapsed"],
        objective={"similarity": "dot", "temperature": 1.0},
    ),
    "transformer": kind(
        {"transformer": {"last": 4, "layers": 1, "heads": 2}}, query=["elapsed"], onnx=False
    ),
    "gru": kind({"gru": {"last": 4}}, onnx=False),
    "no history": kind(query=["id", "elapsed"]),
    "context": kind(
        {"mean": {"last": 4}},
        query=["elapsed", DEVICE],
        context=["device"],
        device=True,
        onnx=False,
    ),
    "context of histories": kind(
        {"ages": {"last": 4}},
        tower={"history": {"pools": [{"ages": {"last": 4}}], "context": [DEVICE]}},
        context=["device"],
        device=True,
        onnx=False,
    ),
    "dislikes": kind({"mean": {"last": 3}}, dislikes=1),
    "low ratings forgotten": kind({"mean": {"last": 3}}, below_min_rating="forget"),
    "strict times": kind({"mean": {"last": 3}}, query=["elapsed"], strict_time=True),
}
ONE_AFTER_THE_OTHER = {
    "bag": kind({"bag": {}}, ordered=False, split="random", tower={"query_layers": []}),
    "last one out": kind({"ages": {"last": 5}}, split="leave_last_out"),
}


def trained(folder: Path, one: Kind, **evaluation: Any) -> Run:
    folder.mkdir(exist_ok=True)
    path = folder / "events.parquet"
    parquet.write_table(TABLE.select(list(one.columns)), path)
    options = {
        "data": {"source": "interactions", "path": str(path), **one.data},
        "tower": {"kind": "features", "dimensions": 8, "query_layers": [12], **one.tower},
        "objective": {"temperature": 0.1, "corrections": ["log_q"], **one.objective},
        "train": {"batch_size": 32, "max_steps": 30, "evaluations": 0, "learning_rate": 0.02},
        "evaluation": {"metrics": ["ndcg@10", "hit@3"], "baselines": True, **evaluation},
    }
    return train(options, folder / "run", ["train.refit=none"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run of each kind, trained when it is first asked for; look, do not touch."""
    base, made = tmp_path_factory.mktemp("runs"), dict[str, Run]()

    def run(name: str) -> Run:
        if name not in made:
            one = {**KINDS, **ONE_AFTER_THE_OTHER}[name]
            made[name] = trained(base / name.replace(" ", "_"), one)
        return made[name]

    return run


@dataclass(frozen=True)
class Questions:
    """The questions of an evaluation, each with the list that it has ranked."""

    finding: EventsFinding
    system: str
    protocol: str

    @cached_property
    def events(self) -> NDArray[np.int64]:
        return self.finding.events.test[self.protocol]

    @property
    def lists(self) -> list[list[str]]:
        names = self.finding.events.timeline.item_ids.to_pylist()
        top = self.finding.reached[self.system][self.protocol].ranks.top
        return [[names[item] for item in row if item >= 0] for row in top.tolist()]

    @property
    def users(self) -> list[str]:
        line = self.finding.events.timeline
        return line.user_ids.take(pa.array(line.user_of(self.events))).to_pylist()

    @property
    def times(self) -> list[int]:
        line = self.finding.events.timeline
        assert line.time is not None
        return line.time[self.events].tolist()

    @property
    def contexts(self) -> list[dict[str, str] | None]:
        line = self.finding.events.timeline
        if line.contexts is None or line.context is None:
            return [None] * len(self.events)
        happened = line.contexts.to_pylist()
        return [happened[row] for row in line.context[self.events].tolist()]

    @property
    def histories(self) -> list[list[str]]:
        line = self.finding.events.timeline
        names = line.item_ids.to_pylist()
        return [
            [names[item] for item in line.item[start:stop]]
            for start, stop in zip(*(each.tolist() for each in line.histories(self.events)))
        ]


def assert_equal_up_to_ties(evaluated: list[str], served: dict[str, float], what: Any) -> None:
    """Each place of both lists holds items of one score, as far as scores are told apart."""
    best = list(served)[: len(evaluated)]
    assert len(best) == len(evaluated), what
    assert set(evaluated) <= set(served), what
    scale = max(1.0, max(map(abs, served.values())))
    here, there = ([served[item] for item in items] for items in (evaluated, best))
    np.testing.assert_allclose(here, there, atol=TIE * scale, err_msg=str(what))


def scores_of(answer: Any) -> dict[str, float]:
    return {hit.id: hit.score for hit in answer.hits}


def seen_by(user: str, one: Kind) -> set[str]:
    """Items that a user has met in the data: taken, disliked or rated low."""
    forgets = one.data.get("below_min_rating") == "forget"
    return {
        row["item"] for row in ROWS if row["user"] == user and (row["rating"] >= 4 or not forgets)
    }


@pytest.mark.parametrize("system", ["trained", COUNTED])
@pytest.mark.parametrize("name", KINDS)
def test_each_question_is_answered_as_it_was_evaluated(runs: Any, name: str, system: str) -> None:
    run = runs(name)
    finding = evaluate_held_out_events(run.folder)
    for protocol, metrics in finding.metrics[system].items():
        told = run.results["protocols"][system][protocol]["rows"][0]["metrics"]
        assert metrics["ndcg@10"] == pytest.approx(told["ndcg@10"]["mean"], abs=1e-9)
    asked = Questions(finding, system, "rolling")
    assert len(asked.events) > 40
    for user, time, context, evaluated in zip(
        asked.users, asked.times, asked.contexts, asked.lists
    ):
        answer = run.recommend(
            user, before=time, context=context, k=ITEMS, hybrid=system == COUNTED
        )
        assert_equal_up_to_ties(evaluated, scores_of(answer), (name, user, time))


@pytest.mark.parametrize("name", ONE_AFTER_THE_OTHER)
def test_data_without_times_are_answered_by_histories(runs: Any, name: str) -> None:
    run, one = runs(name), ONE_AFTER_THE_OTHER[name]
    for system in ("trained", COUNTED):
        finding = evaluate_held_out_events(run.folder)
        (protocol,) = finding.events.test
        asked = Questions(finding, system, protocol)
        line = finding.events.timeline
        rows = line.aside_of(asked.events)
        assert rows is not None
        names = line.item_ids.to_pylist()
        for i, (history, evaluated) in enumerate(zip(asked.histories, asked.lists)):
            aside = {names[code] for code in rows[0][rows[1][i] : rows[2][i]]}
            assert aside <= seen_by(asked.users[i], one)
            served = scores_of(run.recommend(history=history, k=ITEMS, hybrid=system == COUNTED))
            left = {item: score for item, score in served.items() if item not in aside}
            assert_equal_up_to_ties(evaluated, left, (name, asked.users[i]))


@pytest.mark.parametrize("name", ["ages", "context", "dislikes", "transformer", "bag"])
def test_all_users_are_answered_as_each_of_them(runs: Any, name: str, tmp_path: Path) -> None:
    run, one = runs(name), {**KINDS, **ONE_AFTER_THE_OTHER}[name]
    timed = one.data.get("ordered", True)
    moments = [{}, {"now": 90_000}, {"before": 50_000}] if timed else [{}]
    for number, moment in enumerate(moments):
        path = tmp_path / f"{number}.parquet"
        facts = run.recommend_all(path, k=K, **moment)
        rows = parquet.read_table(path).to_pylist()
        assert facts["users"] == USERS
        for user in sorted({row["user"] for row in rows}):
            own = [row["item"] for row in rows if row["user"] == user]
            answer = run.recommend(user, k=ITEMS, **moment)
            assert_equal_up_to_ties(own, scores_of(answer), (name, user, moment))
            if not moment:
                assert not seen_by(user, one) & set(own)


@pytest.mark.parametrize("name", [*KINDS, *ONE_AFTER_THE_OTHER])
def test_exported_tables_answer_as_the_run(runs: Any, name: str, tmp_path: Path) -> None:
    run, one = runs(name), {**KINDS, **ONE_AFTER_THE_OTHER}[name]
    moment = {"now": 10_000_000} if "elapsed" in one.tower["query"] else {}
    run.export("parquet", tmp_path / "out", **moment)
    items, users = (
        parquet.read_table(tmp_path / "out" / f"{table}.parquet") for table in ("vectors", "users")
    )
    of_items, of_users = (
        np.array(table["vector"].to_pylist(), np.float32) for table in (items, users)
    )
    ids = items["id"].to_pylist()
    for user, scores in zip(users["id"].to_pylist(), of_users @ of_items.T):
        seen = seen_by(user, one)
        order = [ids[code] for code in np.argsort(-scores, kind="stable") if ids[code] not in seen]
        answer = run.recommend(user, k=ITEMS, hybrid=False, **moment)
        assert_equal_up_to_ties(order, scores_of(answer), (name, user))
        by_hand = dict(zip(ids, scores.tolist()))
        for item, score in scores_of(answer).items():
            assert score == pytest.approx(by_hand[item], abs=TIE * max(1, abs(score)))


@pytest.mark.parametrize("index_kind", ["hnsw", "int8"])
def test_an_index_on_disk_is_searched_by_its_own_library(
    runs: Any, index_kind: str, tmp_path: Path
) -> None:
    """The share of the right items is that of the file, and the run finds what the file finds."""
    faiss = pytest.importorskip("faiss")
    run = runs("ages")
    facts = run.export("faiss", tmp_path / "index", kind=index_kind)
    run.export("parquet", tmp_path / "out")
    users = parquet.read_table(tmp_path / "out" / "users.parquet")
    vectors = np.array(users["vector"].to_pylist(), np.float32)
    ids = parquet.read_table(tmp_path / "out" / "vectors.parquet")["id"].to_pylist()
    (file,) = (path for path in (tmp_path / "index").iterdir() if path.suffix == ".faiss")
    index = faiss.read_index(str(file))
    found = []
    for user, vector in zip(users["id"].to_pylist(), vectors):
        best = list(scores_of(run.recommend(user, k=K, hybrid=False, exclude_seen=False)))
        _, places = index.search(vector[None], K)
        found.append(len({ids[place] for place in places[0]} & set(best)) / K)
        by_run = scores_of(run.recommend(user, k=K, exclude_seen=False, index=tmp_path / "index"))
        assert set(by_run) == {ids[place] for place in places[0]}
    assert np.mean(found) >= facts["overlap@10"] - 0.1
    if index_kind == "hnsw":
        assert np.mean(found) == 1.0


EXPORTED = [name for name, one in {**KINDS, **ONE_AFTER_THE_OTHER}.items() if one.onnx]


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("ages", "bag") else pytest.param(name, marks=pytest.mark.long)
        for name in EXPORTED
    ],
)
def test_an_exported_tower_answers_as_the_run(runs: Any, name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run, one = runs(name), {**KINDS, **ONE_AFTER_THE_OTHER}[name]
    run.export("onnx", tmp_path / "out")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    about = json.loads((tmp_path / "out" / "tempera.json").read_text())
    items = parquet.read_table(tmp_path / "out" / "vectors.parquet")
    ids, vectors = items["id"].to_pylist(), np.array(items["vector"].to_pylist(), np.float32)
    known = sorted({row["user"] for row in ROWS})
    latest = max(row["time"] for row in ROWS)
    for number, user in enumerate(known):
        rows = [row for row in ROWS if row["user"] == user and row["rating"] >= 4]
        history = [ids.index(row["item"]) for row in rows]
        given = {
            "history": np.array([history], np.int64),
            "user": np.array([number], np.int64),
            "elapsed": np.array([latest - rows[-1]["time"]], np.float32),
        }
        names = [each.name for each in session.get_inputs()]
        assert ("elapsed" in names) == ("elapsed" in one.tower["query"]) == ("elapsed" in about)
        (vector,) = session.run(None, {name: given[name] for name in names})[0]
        scores = vectors @ vector
        seen = seen_by(user, one)
        order = [ids[code] for code in np.argsort(-scores, kind="stable") if ids[code] not in seen]
        answer = run.recommend(user, k=ITEMS, hybrid=False)
        assert_equal_up_to_ties(order, scores_of(answer), (name, user))
