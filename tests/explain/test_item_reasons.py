"""Parts of recommended items: events, features and counts add up to the score, as loops say."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from safetensors.numpy import load_file

from tempera.artifacts.run_folder import Run
from tempera.errors import DataError
from tempera.explain.explanation import Explanation
from tempera.run.train import train

ITEMS, USERS, WIDTH = 30, 40, 8
WITHIN = 1e-6


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each user has taken 9 items of one colour, one of them twice, on a phone or a laptop."""
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(5)
    rows: list[dict[str, Any]] = []
    for user in range(USERS):
        own = [item for item in range(ITEMS) if item % 3 == user % 3]
        taken = draw.permutation(own)[:8].tolist()
        for when, item in enumerate([*taken, taken[3]]):
            device = ("phone", "laptop")[int(draw.integers(2))]
            rows.append(
                {
                    "user": f"u{user}",
                    "item": f"i{item:02}",
                    "time": 7 * user + 3 * when,
                    "device": device,
                }
            )
    events = pa.Table.from_pylist(rows)
    parquet.write_table(events, folder / "contexts.parquet")
    parquet.write_table(events.drop_columns(["device"]), folder / "events.parquet")
    kinds = ["red", "green", "blue"]
    items = {
        "item": [f"i{item:02}" for item in range(ITEMS)],
        "title": [f"{kinds[item % 3]} {item}" for item in range(ITEMS)],
        "kind": [kinds[item % 3] for item in range(ITEMS)],
    }
    parquet.write_table(pa.table(items), folder / "items.parquet")
    users = {
        "user": [f"u{user}" for user in range(USERS)],
        "land": [("de", "fr", None)[user % 3] for user in range(USERS)],
    }
    parquet.write_table(pa.table(users), folder / "users.parquet")
    return folder


WINDOWS = [{"mean": {"last": 2}}, {"mean": {"last": 5, "decay": 0.5}}]
TOWERS: dict[str, dict[str, Any]] = {
    "mean": {"history": {"pools": [{"mean": {"last": 6}}]}, "query_layers": []},
    "windows": {"history": {"pools": WINDOWS}, "query_layers": []},
    "windows, hidden": {"history": {"pools": WINDOWS}, "query_layers": [16]},
    "windows, two hidden": {
        "history": {"pools": WINDOWS},
        "query_layers": [16, 12],
        "dropout": 0.1,
    },
    "ages": {"history": {"pools": [{"ages": {"last": 4}}]}, "query_layers": []},
    "ages beside means": {
        "history": {"pools": [{"ages": {"last": 4}}, {"mean": {"last": 3, "decay": 0.7}}]},
        "query_layers": [16],
    },
    "own items": {"history": {"pools": WINDOWS, "items": "own"}, "query_layers": []},
    "bag": {"history": {"pools": [{"bag": {"power": 0.5}}]}, "query_layers": []},
    "features": {
        "doc": ["id", {"category": {"column": "kind"}}],
        "query": ["id", {"category": {"column": "land"}}, "elapsed"],
        "history": {"pools": WINDOWS},
        "query_layers": [16],
    },
    "no history": {"query": ["id", {"category": {"column": "land"}}], "history": None},
    "attention": {"history": {"pools": [{"attention": {"last": 4}}, {"mean": {"last": 2}}]}},
    "largest": {"history": {"pools": [{"max": {"last": 4}}]}, "query_layers": []},
    "gru": {"history": {"pools": ["gru"]}, "query_layers": []},
}
APPROXIMATE = {"attention", "largest", "gru"}


def trained(files: Path, folder: Path, tower: dict[str, Any], **others: Any) -> Path:
    source = {
        "source": "interactions",
        "path": str(files / "events.parquet"),
        "items": str(files / "items.parquet"),
        "users": str(files / "users.parquet"),
    }
    options: dict[str, Any] = {
        "data": {**source, "split": "leave_last_out"},
        "tower": {"kind": "features", "dimensions": WIDTH, **tower},
        "objective": {"temperature": 0.1},
        "train": {"batch_size": 40, "max_steps": 30, "evaluations": 0, "learning_rate": 0.01},
        "evaluation": {"metrics": ["hit@3"]},
    }
    for name, section in others.items():
        options[name] = options[name] | section
    return train(options, folder).folder


@pytest.fixture(scope="module", params=TOWERS)
def run(request: Any, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    others: dict[str, Any] = {}
    if request.param == "bag":
        others["data"] = {"ordered": False, "split": "random"}
    if request.param == "own items":
        others["objective"] = {"similarity": "dot", "temperature": 1.0}
    folder = tmp_path_factory.mktemp("runs") / "run"
    return request.param, trained(data, folder, TOWERS[request.param], **others)


def test_parts_add_up_to_the_score_of_every_user_and_item(run: tuple[str, Path]) -> None:
    name, folder = run
    opened = Run(folder)
    explained = 0
    for user in range(USERS):
        hits = opened.recommend(f"u{user}", k=ITEMS, exclude_seen=False).hits
        for hit, explanation in zip(hits, opened.explain_item(hits, f"u{user}"), strict=True):
            explained += 1
            total = sum(part.value for part in explanation.parts)
            assert explanation.score == pytest.approx(hit.score, rel=1e-6, abs=WITHIN)
            assert total + explanation.rest == pytest.approx(explanation.score, abs=1e-12)
            assert explanation.exact == (name not in APPROXIMATE)
            if explanation.exact:
                assert explanation.kind == "events"
                assert abs(total - hit.score) < WITHIN * max(1, abs(hit.score))
            else:
                assert explanation.kind == "leave_one_out"
    assert explained >= 1000


class Loops:
    """A user's vector and its terms from the files of a run, in loops and float64."""

    def __init__(self, run: Path, tower: dict[str, Any]) -> None:
        self.tower = tower
        weights = load_file(run / "model" / "model.safetensors")
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        items = parquet.read_table(run / "model" / "items.parquet").to_pydict()
        known = [name for name, count in zip(items["id"], items["count"]) if count]
        (table,) = [value for name, value in self.weights.items() if name.startswith("doc.")]
        self.vector = {name: table[1 + known.index(name)] for name in known}

    def of_pool(self, pool: dict[str, Any], age: int, count: int) -> float:
        """The weight of the event of an age among the events of a history."""
        (kind,) = pool
        if kind == "bag":
            return 1 / count ** pool["bag"]["power"]
        read = range(min(count, pool[kind]["last"]))
        if age not in read:
            return 0.0
        if kind == "mean":
            decay = pool["mean"].get("decay", 1.0)
            return float(decay**age / sum(decay**each for each in read))
        (learned,) = [value for name, value in self.weights.items() if name.endswith(".age")]
        masses = [math.exp(learned[each]) for each in read]
        return masses[age] / sum(masses)

    def terms(self, history: Sequence[str]) -> list[np.ndarray]:
        """The image of each event, oldest first, and of the bias, before the normalisation."""
        pools = sorted(self.tower["history"]["pools"], key=lambda pool: "mean" not in pool)
        inputs = []
        for place, item in enumerate(history):
            age = len(history) - 1 - place
            blocks = []
            for pool in pools:
                blocks.append(self.of_pool(pool, age, len(history)) * self.vector[item])
            inputs.append(np.concatenate(blocks))
        layers = sorted(
            name.removesuffix(".weight")
            for name in self.weights
            if name.startswith("query.network.") and name.endswith(".weight")
        )
        terms = [*inputs, np.zeros(len(inputs[0]))]
        for number, layer in enumerate(layers):
            if number:
                on = sum(terms) > 0
                terms = [term * on for term in terms]
            matrix, bias = self.weights[f"{layer}.weight"], self.weights[f"{layer}.bias"]
            terms = [matrix @ term for term in terms]
            terms[-1] = terms[-1] + bias
        return terms


BY_IDS = ["mean", "windows", "windows, hidden", "windows, two hidden", "ages", "bag"]


@pytest.mark.parametrize("run", [*BY_IDS, "ages beside means"], indirect=True)
@pytest.mark.parametrize("history", [["i03"], ["i00", "i03", "i06", "i00", "i12", "i15", "i18"]])
def test_the_value_of_an_event_is_what_loops_say(run: tuple[str, Path], history: list[str]) -> None:
    name, folder = run
    loops = Loops(folder, TOWERS[name])
    *events, bias = loops.terms(history)
    length = np.linalg.norm(sum(events) + bias)
    for item in ("i00", "i04", "i29"):
        other = loops.vector[item] / np.linalg.norm(loops.vector[item])
        explanation = Run(folder).explain_item(item, history=history)
        values = {}
        for part in explanation.parts:
            values[part.fields.get("place", "bias")] = part.value
        for place, term in enumerate(reversed(events), 1):
            wanted = float(term @ other) / length
            assert values.pop(place, 0.0) == pytest.approx(wanted, abs=WITHIN)
        assert values.pop("bias", 0.0) == pytest.approx(float(bias @ other) / length, abs=WITHIN)
        assert not values


@pytest.mark.parametrize("run", ["gru", "attention", "largest"], indirect=True)
def test_an_approximation_is_the_difference_that_an_event_makes(run: tuple[str, Path]) -> None:
    _, folder = run
    opened = Run(folder)
    history = ["i03", "i06", "i00", "i12"]

    def score(items: list[str]) -> float:
        hits = opened.recommend(history=items, k=ITEMS, exclude_seen=False).hits
        return next(hit.score for hit in hits if hit.id == "i04")

    explanation = opened.explain_item("i04", history=history)
    assert not explanation.exact and len(explanation.parts) == 4
    for part in explanation.parts:
        place = part.fields["place"]
        rest = history[: len(history) - place] + history[len(history) - place + 1 :]
        assert part.fields["event"] == history[-place]
        assert part.value == pytest.approx(score(history) - score(rest), abs=WITHIN)


@pytest.mark.parametrize("run", ["features"], indirect=True)
def test_features_of_users_and_the_pause_are_parts_of_their_own(run: tuple[str, Path]) -> None:
    _, folder = run
    opened = Run(folder)
    explanation = opened.explain_item("i04", "u7")
    features = {
        (part.fields["of"], part.fields["feature"])
        for part in explanation.parts
        if "feature" in part.fields
    }
    assert features == {
        ("user", "id"),
        ("user", "land"),
        ("question", "elapsed"),
        ("model", "bias"),
    }
    later = opened.explain_item("i04", "u7", now=10_000)
    changed = {part.label: part.value for part in later.parts}["question: elapsed"]
    assert changed != {part.label: part.value for part in explanation.parts}["question: elapsed"]


def test_contexts_are_parts_of_the_question_and_of_events(data: Path, tmp_path: Path) -> None:
    tower = {
        "query": [{"category": {"column": "device"}}],
        "history": {"pools": WINDOWS, "context": [{"category": {"column": "device"}}]},
        "query_layers": [16],
    }
    contexts = {"path": str(data / "contexts.parquet"), "context": ["device"]}
    folder = trained(data, tmp_path / "run", tower, data=contexts)
    opened = Run(folder)
    context = {"device": "phone"}
    hits = opened.recommend("u3", k=ITEMS, exclude_seen=False, context=context).hits
    explanations = opened.explain_item(hits, "u3", context=context)
    for hit, explanation in zip(hits, explanations, strict=True):
        assert explanation.exact
        assert abs(sum(part.value for part in explanation.parts) - hit.score) < WITHIN
        assert "context: device" in {part.label for part in explanation.parts}


@pytest.fixture(scope="module")
def counted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with counts beside its vectors."""
    tower = {"history": {"pools": WINDOWS}, "query_layers": [16]}
    folder = tmp_path_factory.mktemp("runs") / "counted"
    return trained(data, folder, tower, evaluation={"baselines": True})


def constant(explanation: Explanation) -> float:
    return -sum(half.factor * half.mean for half in explanation.halves)


@pytest.mark.parametrize(("last", "decay"), [(4, 0.7), (None, 1.0)])
def test_counts_and_vectors_add_up_to_the_fused_score(
    counted: Path, last: int | None, decay: float
) -> None:
    opened = Run(counted)
    counting = opened.recommender.counts
    assert counting is not None
    fitted = replace(counting.fitted, last=last, decay=decay)
    counting = replace(counting, fitted=fitted)
    opened.recommender.__dict__["counts"] = counting
    weights = counting.fitted.weights.toarray()
    codes = {name: code for code, name in enumerate(opened.recommender.item_ids.to_pylist())}
    users = opened.recommender.users.table["id"].to_pylist()
    explained = 0
    for user in range(USERS):
        hits = opened.recommend(f"u{user}", k=ITEMS, exclude_seen=False, hybrid=True).hits
        stored = opened.recommender.past(users.index(f"u{user}"))
        past = stored.items.items.tolist()[::-1]  # the latest first
        explanations = opened.explain_item(hits, f"u{user}", hybrid=True)
        for hit, explanation in zip(hits, explanations, strict=True):
            explained += 1
            assert explanation.kind == "fused" and explanation.exact
            total = sum(part.value for part in explanation.parts)
            assert explanation.score == pytest.approx(hit.score, abs=WITHIN)
            assert abs(total + constant(explanation) - hit.score) < 2 * WITHIN
            by_counts = explanation.halves[1].explanation
            counts = {}
            for place, code in enumerate(past[: last or 99], 1):
                counts[place] = decay ** (place - 1) * float(weights[code, codes[hit.id]])
            root = math.sqrt(sum(counts.values()))
            values = {part.fields["place"]: part.value for part in by_counts.parts}
            assert by_counts.score == pytest.approx(root, abs=WITHIN)
            for place, count in counts.items():
                assert values.pop(place, 0.0) == pytest.approx(count / root if root else 0.0)
            assert not values
    assert explained >= 1000


def test_a_history_without_counts_is_explained_by_the_vectors(counted: Path) -> None:
    opened = Run(counted)
    hits = opened.recommend(history=[], user="u1", k=3, hybrid=True).hits
    explanations = opened.explain_item(hits, "u1", [], hybrid=True)
    for hit, explanation in zip(hits, explanations, strict=True):
        assert explanation.score == pytest.approx(hit.score, abs=WITHIN)
        assert explanation.halves[0].weight == 1 and explanation.halves[1].weight == 0


@pytest.mark.parametrize("run", ["mean"], indirect=True)
def test_a_user_of_whom_nothing_is_known_gets_counts_of_events(run: tuple[str, Path]) -> None:
    _, folder = run
    opened = Run(folder)
    hits = opened.recommend("nobody", k=3).hits
    for hit, explanation in zip(hits, opened.explain_item(hits, "nobody"), strict=True):
        (part,) = explanation.parts
        assert part.value == hit.score == explanation.score
        assert "training events" in part.label and explanation.notes


@pytest.mark.parametrize("run", ["mean"], indirect=True)
def test_an_unknown_item_and_a_question_of_nobody_are_refused(run: tuple[str, Path]) -> None:
    _, folder = run
    opened = Run(folder)
    with pytest.raises(DataError, match="no such item in"):
        opened.explain_item("nothing", "u1")
    with pytest.raises(DataError, match="give a user, a history, or both"):
        opened.explain_item("i01")
    with pytest.raises(DataError, match="is a recommender"):
        opened.explain("kaban", "i01")


@pytest.mark.parametrize("run", ["windows, hidden"], indirect=True)
def test_events_that_are_not_read_are_counted(run: tuple[str, Path]) -> None:
    _, folder = run
    explanation = Run(folder).explain_item("i04", "u1")
    places = {part.fields["place"] for part in explanation.parts if "place" in part.fields}
    assert places == {1, 2, 3, 4, 5}
    assert any("4 earlier events" in note for note in explanation.notes)


@pytest.mark.parametrize("run", ["windows, hidden"], indirect=True)
def test_the_command_shows_the_largest_parts_under_each_item(
    run: tuple[str, Path], tempera: Any
) -> None:
    _, folder = run
    answer = tempera("recommend", folder, "--user", "u7", "-k", "2", "--explain")
    lines = answer.out.splitlines()
    assert len(lines) == 4 and " (latest)" in answer.out and "rest" in lines[1]
    document = tempera(
        "recommend", folder, "--user", "u7", "-k", "2", "--explain", "--json"
    ).document
    for hit in document["hits"]:
        explanation = hit["explanation"]
        assert explanation["kind"] == "events" and explanation["exact"]
        total = sum(part["value"] for part in explanation["parts"])
        assert total + explanation["rest"] == pytest.approx(hit["score"], abs=WITHIN)
    json.dumps(document)
