"""Recommendations over HTTP are those of the run in Python, also while its folder is replaced."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from tests.server.test_replacement import count, swap, wait_for

from tempera import Run


@pytest.fixture
def shop(recommender: dict[str, Any], tmp_path: Path) -> Path:
    from tempera.run.train import train

    train(copy.deepcopy(recommender), tmp_path / "shop")
    return tmp_path / "shop"


def test_recommendations(shop: Path, tiny_run: Path, start: Any, tmp_path: Path) -> None:
    run = Run(shop)
    with start(tiny_run, shop) as server:
        kinds = {each["id"]: each["kind"] for each in server.get("/v1/models").json()["data"]}
        assert kinds == {"tiny": "texts", "shop": "recommender"}

        answer = server.post("/v1/recommend", {"user": "7", "k": 4})
        assert answer.status_code == 200
        expected = run.recommend("7", k=4)
        document = answer.json()
        assert document["model"] == "shop"  # the first recommender
        assert document["notes"] == list(expected.notes)
        ids = [(hit["id"], pytest.approx(hit["score"], rel=1e-5)) for hit in document["results"]]
        assert ids == [(hit.id, hit.score) for hit in expected.hits]
        assert set(document["results"][0]) == {"id", "score", "name", "text", "columns"}
        past = run.recommender.past(run.recommender.users.table["id"].to_pylist().index("7"))
        codes = past.items.each[0]
        names = run.recommender.item_ids.take(codes).to_pylist()
        assert [each["id"] for each in document["history"]] == names and len(names) > 3

        # Ids may be numbers, and a history takes the place of the known one.
        assert server.post("/v1/recommend", {"user": 7, "k": 4}).json() == document
        document = server.post("/v1/recommend", {"history": ["3", 6], "k": 4}).json()
        expected = run.recommend(history=["3", "6"], k=4)
        assert [hit["id"] for hit in document["results"]] == [hit.id for hit in expected.hits]
        assert [each["id"] for each in document["history"]] == ["3", "6"]
        document = server.post("/v1/recommend", {"user": "nobody", "k": 4}).json()
        assert document["history"] == [] and "unknown" in " ".join(document["notes"])

        for options in (
            {"exclude": ["3", "6"]},
            {"candidates": ["1", "4", 10]},
            {"diversity": 0.5},
        ):
            document = server.post("/v1/recommend", {"user": "7", "k": 4, **options}).json()
            expected = run.recommend("7", k=4, **options)
            assert [hit["id"] for hit in document["results"]] == [hit.id for hit in expected.hits]
        body = {"user": "7", "k": 4, "explain": True}
        document = server.post("/v1/recommend", body).json()
        expected = run.explain_item([hit["id"] for hit in document["results"]], "7")
        for hit, explanation in zip(document["results"], expected, strict=True):
            assert hit["explanation"] == explanation.json()
        document = server.post("/v1/recommend", {"similar": "3", "k": 4}).json()
        expected = run.recommend(similar="3", k=4)
        assert [hit["id"] for hit in document["results"]] == [hit.id for hit in expected.hits]
        assert document["history"] == []

        users = server.get("/v1/users?prefix=1&limit=3").json()
        assert users == {"model": "shop", "users": ["1", "10", "11"]}
        assert len(server.get("/v1/users").json()["users"]) == 20
        for query in ("limit=0", "limit=x", "limit=101", "limit=1e3", "limit=" + "1" * 5000):
            assert server.get(f"/v1/users?{query}").status_code == 422

        for body, says in (
            ({}, "user: missing"),
            ({"user": ""}, "user: "),
            ({"user": True}, "user: "),
            ({"user": 1.5}, "user: "),
            ({"history": "3"}, "history: "),
            ({"history": [["3"]]}, "history[0]: "),
            ({"history": ["no such"]}, "no such item in shop: no such"),
            ({"user": "7", "k": 0}, "k: "),
            ({"user": "7", "now": "never"}, ""),
            ({"user": "7", "similar": "3"}, "similar"),
            ({"user": "7", "diversity": 2}, "diversity: "),
            ({"user": "7", "k": 101, "explain": True}, "explain: "),
            ({"similar": "3", "explain": True}, "explain: "),
            ({"user": "7", "candidates": []}, "candidates: "),
            ({"user": "7", "candidates": ["no such"]}, "no such"),
            ({"user": "7", "where": "1 = 1 or (select 1)"}, ""),
            ({"user": "7", "model": "tiny"}, "is a run on texts"),
        ):
            refused = server.post("/v1/recommend", body)
            assert refused.status_code == 422, (body, refused.text)
            message = refused.json()["error"]["message"]
            assert says in message and str(tmp_path) not in message, message
        refused = server.post("/v1/search", {"query": "kaban", "model": "shop"})
        assert refused.status_code == 422 and "is a recommender" in refused.text
        assert server.post("/v1/search", {"query": "kaban"}).json()["model"] == "tiny"


def test_a_recommender_is_replaced(
    shop: Path, recommender: dict[str, Any], start: Any, tmp_path: Path
) -> None:
    from tempera.run.train import train

    options = copy.deepcopy(recommender)
    options["train"]["seed"] = 9
    train(options, tmp_path / "other")
    body = {"user": "7", "k": 4}
    with start(shop, every=0.3) as server:
        before = server.post("/v1/recommend", body).json()
        swap(shop, tmp_path / "other")
        # The file of histories is another run's already, and the old run still answers.
        assert server.post("/v1/recommend", body).json() == before
        wait_for(lambda: count(server, "tempera_run_replaced_total") == 1)
        after = server.post("/v1/recommend", body).json()
        assert [hit["score"] for hit in after["results"]] != [
            hit["score"] for hit in before["results"]
        ]
