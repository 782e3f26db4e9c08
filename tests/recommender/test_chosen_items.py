"""Lists of chosen items: candidates, exclusions and conditions against a plain loop over all items,
similar items and diversity against their definitions in float64."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
from numpy.typing import NDArray

from tempera.artifacts.run_folder import Run
from tempera.errors import DataError, OutputError
from tempera.recommender.diversity import diverse
from tempera.run.train import train

ITEMS, USERS = 24, 30
KINDS = ("red", "green", "blue")
IDS = [f"i{item:02}" for item in range(ITEMS)]


def interactions() -> pa.Table:
    """Each user has taken 6 items of one colour, in an order of their own."""
    draw = np.random.default_rng(8)
    columns: dict[str, list[Any]] = {"user": [], "item": [], "time": []}
    for user in range(USERS):
        own = [item for item in range(ITEMS) if item % 3 == user % 3]
        for when, item in enumerate(draw.permutation(own)[:6].tolist()):
            columns["user"].append(f"u{user:02}")
            columns["item"].append(IDS[item])
            columns["time"].append(1000 + 10 * when + user)
    return pa.table(columns)


def trained(folder: Path, **objective: Any) -> Path:
    folder.mkdir(exist_ok=True)
    parquet.write_table(interactions(), folder / "events.parquet")
    items = pa.table(
        {
            "item": IDS,
            "title": [f"{KINDS[item % 3]} {item}" for item in range(ITEMS)],
            "kind": [KINDS[item % 3] for item in range(ITEMS)],
            "year": [2000 + item for item in range(ITEMS)],
        }
    )
    parquet.write_table(items, folder / "items.parquet")
    options = {
        "data": {
            "source": "interactions",
            "path": str(folder / "events.parquet"),
            "items": str(folder / "items.parquet"),
            "split": "leave_last_out",
        },
        "tower": {
            "kind": "features",
            "dimensions": 8,
            "query_layers": [12],
            "history": {"pools": [{"mean": {"last": 4}}]},
        },
        "objective": {"temperature": 0.1, **objective},
        "train": {"batch_size": 30, "max_steps": 40, "evaluations": 0, "learning_rate": 0.02},
        "evaluation": {"metrics": ["hit@3"], "baselines": True},
    }
    return train(options, folder / "run").folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Look, do not touch."""
    return trained(tmp_path_factory.mktemp("chosen"))


@pytest.fixture(scope="module")
def dotted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compared by inner products; look, do not touch."""
    return trained(tmp_path_factory.mktemp("dotted"), similarity="dot", temperature=1.0)


@pytest.fixture
def conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition that is a column, a space and a value, where DuckDB is not installed."""
    try:
        import tempera.corpus.where  # noqa: F401
    except ImportError:
        module = ModuleType("tempera.corpus.where")

        def passing(columns: pa.Table, expression: str) -> NDArray[np.int64]:
            name, _, value = expression.partition(" = ")
            assert "count" not in columns.column_names
            rows = [str(each) == value.strip("'") for each in columns[name].to_pylist()]
            return np.flatnonzero(rows)

        module.passing = passing  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "tempera.corpus.where", module)


WAYS: list[dict[str, Any]] = [
    {"user": "u03"},
    {"user": "u03", "exclude_seen": False},
    {"history": ["i00", "i03"]},
    {"user": "u04", "history": ["i01"]},
    {"user": "u03", "hybrid": True},
    {"user": "u05", "before": 1030},
    {"history": []},
    {"user": "nobody"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_choice_is_the_whole_list_without_the_rest(run: Path, way: Any, conditions: None) -> None:
    opened = Run(run)
    whole = opened.recommend(**way, k=ITEMS).hits
    candidates, exclude = IDS[3:20], IDS[5:9]
    blue = [hit.id for hit in whole if int(hit.id[1:]) % 3 == 2]
    for choice, allowed in (
        ({"candidates": candidates}, set(candidates)),
        ({"exclude": exclude}, set(IDS) - set(exclude)),
        ({"where": "kind = 'blue'"}, set(blue)),
        (
            {"candidates": candidates, "exclude": exclude, "where": "kind = 'blue'"},
            set(candidates) & set(blue) - set(exclude),
        ),
        ({"exclude": []}, set(IDS)),
    ):
        for k in (3, ITEMS):
            answer = opened.recommend(**way, **choice, k=k)
            expected = [hit for hit in whole if hit.id in allowed][:k]
            assert [hit.id for hit in answer.hits] == [hit.id for hit in expected]
            assert [hit.rank for hit in answer.hits] == list(range(1, len(expected) + 1))
            np.testing.assert_allclose(
                [hit.score for hit in answer.hits], [hit.score for hit in expected], atol=1e-6
            )


def test_a_file_of_candidates_may_have_newer_items(run: Path, tmp_path: Path, tempera: Any) -> None:
    path = tmp_path / "stock.csv"
    path.write_text("sku,item\n1,i04\n2,i99\n3,i07\n4,i04\n5,new\n")
    answer = Run(run).recommend(history=["i01"], candidates=path, k=5)
    assert {hit.id for hit in answer.hits} == {"i04", "i07"}
    assert answer.notes == ("2 of 4 candidates are unknown to the run and left out, such as 'i99'",)
    table = pa.table({"item": ["i04", "i07"]})
    assert Run(run).recommend(history=["i01"], candidates=table, k=5).hits == answer.hits
    printed = tempera(
        "recommend", run, "--history", "i01", "--candidates", path, "--exclude", "i04", "--json"
    )
    assert [hit["id"] for hit in printed.document["hits"]] == ["i07"]
    assert printed.document["notes"] == list(answer.notes)


def test_what_cannot_be_chosen_is_one_line(run: Path, tmp_path: Path, tempera: Any) -> None:
    opened = Run(run)
    (tmp_path / "none.csv").write_text("item\nx1\nx2\n")
    for choice, says in (
        ({"candidates": ["i04", "i4"]}, "no such item in .*: i4. Did you mean i14"),
        ({"exclude": ["i4"]}, "no such item in .*: i4. Did you mean i14"),
        ({"candidates": []}, "candidates is an empty list"),
        ({"candidates": 7}, "candidates is 7; expected a list of ids"),
        ({"exclude": "i04"}, "exclude is 'i04'; expected a list of ids"),
        (
            {"candidates": tmp_path / "none.csv"},
            "none.csv has no item of .*: its ids are like 'x1'",
        ),
        ({"diversity": 2}, "diversity is 2; expected 0 .* to 1"),
        ({"diversity": "much"}, "diversity is 'much'"),
        ({"similar": "i04"}, "similar and user are given"),
    ):
        with pytest.raises(DataError, match=says):
            opened.recommend("u03", **choice)
    for options in ({"history": ["i01"]}, {"hybrid": True}, {"before": 1030}, {"now": 9}):
        with pytest.raises(DataError, match=f"similar and {next(iter(options))} are given"):
            opened.recommend(similar="i04", **options)
    with pytest.raises(DataError, match=r"no such item in .*: i4. Did you mean i14"):
        opened.recommend(similar="i4")
    refused = tempera("recommend", run, "--user", "u03", "--exclude", "i4")
    assert refused.code == 2 and refused.err.count("\n") == 1 and "Did you mean i14" in refused.err
    nothing = opened.recommend("u03", candidates=["i04"], exclude=["i04"])
    assert not nothing.hits and "no item is left" in nothing.notes[0]


def test_an_approximate_index_chooses_nothing(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    opened = Run(run)
    opened.export("faiss", tmp_path / "hnsw", kind="hnsw")
    opened.export("parquet", tmp_path / "exact")
    for choice in ({"candidates": IDS[:4]}, {"exclude": ["i01"]}, {"diversity": 0.5}):
        with pytest.raises(DataError, match="is approximate; give the exact index"):
            opened.recommend("u03", index=tmp_path / "hnsw", **choice)
        here = opened.recommend("u03", hybrid=False, **choice)
        there = opened.recommend("u03", index=tmp_path / "exact", **choice)
        assert [hit.id for hit in here.hits] == [hit.id for hit in there.hits]


def by_definition(
    scores: list[float], vectors: NDArray[np.float64], k: int, diversity: float
) -> list[int]:
    """Maximal marginal relevance in plain loops, by Carbonell and Goldstein (1998)."""
    low, high = min(scores), max(scores)
    relevance = [(score - low) / (high - low) if high > low else 0.0 for score in scores]
    chosen: list[int] = []
    while len(chosen) < min(k, len(scores)):
        best, best_worth = -1, -np.inf
        for i in range(len(scores)):
            if i in chosen:
                continue
            nearest = 0.0
            if chosen:
                nearest = max(
                    float(vectors[i] @ vectors[j])
                    / float(np.linalg.norm(vectors[i]) * np.linalg.norm(vectors[j]))
                    for j in chosen
                )
            worth = (1 - diversity) * relevance[i] - diversity * nearest
            if worth > best_worth:
                best, best_worth = i, worth
        chosen.append(best)
    return chosen


@pytest.mark.parametrize("diversity", [0.1, 0.5, 0.9, 1.0])
def test_diversity_is_maximal_marginal_relevance(diversity: float) -> None:
    draw = np.random.default_rng(2)
    vectors = draw.normal(size=(60, 5)).astype(np.float32)
    scores = -np.sort(-draw.normal(size=(7, 40)).astype(np.float32))
    codes = np.stack([draw.permutation(60)[:40] for _ in range(7)])
    scores[3, 4:] = -np.inf  # four candidates
    scores[4] = 1.5  # all alike
    of_list, items = diverse(scores, codes, vectors, 9, diversity)
    assert items.shape == of_list.shape == (7, 9)
    for row in range(7):
        left = np.isfinite(scores[row])
        own = vectors[codes[row][left]].astype(np.float64)
        order = by_definition(scores[row][left].tolist(), own, 9, diversity)
        assert items[row][: len(order)].tolist() == codes[row][order].tolist()
        np.testing.assert_array_equal(of_list[row][: len(order)], scores[row][order])
        assert np.isneginf(of_list[row][len(order) :]).all()


@pytest.mark.parametrize("way", [*WAYS, {"similar": "i04"}], ids=str)
def test_a_diverse_list_is_chosen_from_the_best(dotted: Path, way: Any) -> None:
    opened = Run(dotted)
    whole = opened.recommend(**way, k=100).hits
    assert opened.recommend(**way, k=5, diversity=0.0).hits == whole[:5]
    vectors = np.array(opened.index.vectors, np.float64)
    own = np.stack([vectors[int(hit.id[1:])] for hit in whole])
    expected = by_definition([hit.score for hit in whole], own, 5, 0.6)
    answer = opened.recommend(**way, k=5, diversity=0.6)
    assert [hit.id for hit in answer.hits] == [whole[place].id for place in expected]
    assert [hit.rank for hit in answer.hits] == [1, 2, 3, 4, 5]


def test_similar_items_are_the_nearest_by_cosine(dotted: Path, run: Path, tempera: Any) -> None:
    for folder in (dotted, run):
        opened = Run(folder)
        vectors = np.array(opened.index.vectors, np.float64)
        cosines = {}
        for item in range(ITEMS):
            lengths = np.linalg.norm(vectors[item]) * np.linalg.norm(vectors[4])
            cosines[IDS[item]] = float(vectors[item] @ vectors[4] / lengths)
        del cosines["i04"]
        best = sorted(cosines, key=lambda item: -cosines[item])
        answer = opened.recommend(similar="i04", k=ITEMS)
        assert [hit.id for hit in answer.hits] == best
        np.testing.assert_allclose(
            [hit.score for hit in answer.hits], [cosines[item] for item in best], atol=1e-6
        )
        some = opened.recommend(similar="i04", candidates=IDS[:9], exclude=["i01"], k=ITEMS)
        assert [hit.id for hit in some.hits] == [
            item for item in best if item in IDS[:9] and item != "i01"
        ]
        printed = tempera("recommend", folder, "--similar", "i04", "-k", "3", "--json").document
        assert [hit["id"] for hit in printed["hits"]] == best[:3]
        assert printed["similar"] == "i04" and printed["user"] is None


@pytest.mark.parametrize("hybrid", [True, False])
def test_all_users_have_lists_of_the_choice(
    run: Path, tmp_path: Path, hybrid: bool, conditions: None
) -> None:
    opened = Run(run)
    choice: dict[str, Any] = {"candidates": IDS[2:22], "exclude": ["i05"], "hybrid": hybrid}
    choices = [choice, {**choice, "diversity": 0.4}, {**choice, "where": "kind = 'red'"}]
    for number, options in enumerate(choices):
        path = tmp_path / f"{number}.parquet"
        opened.recommend_all(path, k=4, **options)
        rows = parquet.read_table(path).to_pylist()
        assert {row["user"] for row in rows} == {f"u{user:02}" for user in range(USERS)}
        for user in ("u00", "u07", "u29"):
            own = [(row["item"], row["score"]) for row in rows if row["user"] == user]
            hits = opened.recommend(user, k=4, **options).hits
            assert [item for item, _ in own] == [hit.id for hit in hits]
            np.testing.assert_allclose(
                [score for _, score in own], [hit.score for hit in hits], atol=1e-5
            )


def test_lists_are_written_by_the_ending_of_the_file(
    run: Path, tmp_path: Path, tempera: Any
) -> None:
    written = {}
    for ending in ("parquet", "csv", "jsonl"):
        path = tmp_path / f"lists.{ending}"
        answer = tempera("recommend", run, "--all", "-o", path, "-k", "3", "--vectors")
        assert answer.code == 0 and "90 recommendations for 30 users" in answer.out
        if ending == "parquet":
            written[ending] = parquet.read_table(path).to_pylist()
        elif ending == "csv":
            written[ending] = csv.read_csv(path).to_pylist()
        else:
            written[ending] = [json.loads(line) for line in path.read_text().splitlines()]
    assert [*written["csv"][0]] == ["user", "rank", "item", "score"]
    assert len(written["csv"]) == 90
    for ending in ("csv", "jsonl"):
        for row, exact in zip(written[ending], written["parquet"], strict=True):
            assert np.float32(row.pop("score")) == np.float32(exact["score"])
            assert row == {name: exact[name] for name in ("user", "rank", "item")}
    with pytest.raises(OutputError, match=r"ends in .parquet, .csv, .jsonl"):
        Run(run).recommend_all(tmp_path / "lists.xlsx")
    assert not list(tmp_path.glob("*.partial"))
