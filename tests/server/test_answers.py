"""The answers of a server are those of the runs in Python, in the promised form."""

from __future__ import annotations

import base64
import concurrent.futures
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tempera import Run


@pytest.fixture(scope="module")
def run(tiny_run: Path) -> Run:
    return Run(tiny_run)


def expected(hits: Any) -> list[dict[str, Any]]:
    """The JSON of hits, written by hand."""
    return [
        {
            "id": hit.id,
            "score": hit.score,
            "probability": hit.probability,
            "text": hit.text,
            "name": hit.name,
            "place": hit.place,
            "columns": dict(hit.columns),
        }
        for hit in hits
    ]


@pytest.mark.parametrize("hybrid", [False, True, None])
def test_a_search_answers_as_the_run_does(served: Any, run: Run, hybrid: bool | None) -> None:
    queries = ["kaban locel", "zugar"]
    answer = served.post("/v1/search", {"query": queries, "k": 3, "hybrid": hybrid})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["server-timing"].startswith("app;dur=")
    hits = run.search(queries, 3, hybrid=bool(hybrid))  # as one product, as the server does
    assert answer.json() == {
        "model": run.folder.name,
        "results": [expected(each) for each in hits],
        "notes": [],
    }


def test_a_search_by_words_alone_is_bm25(served: Any, run: Run) -> None:
    from tempera.text.judge.hybrid import open_words

    words = open_words(run.folder, run.index.documents["text"], run.fingerprint)
    scores = words.scores(["kaban locel"])[0]
    best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:4]
    body = {"query": ["kaban locel", "@@@"], "k": 4, "hybrid": "words"}
    hits, none = served.post("/v1/search", body).json()["results"]
    texts = run.index.documents["text"].take(best).to_pylist()
    assert [hit["text"] for hit in hits] == texts
    assert [hit["score"] for hit in hits] == pytest.approx([float(scores[i]) for i in best])
    assert none == []


@pytest.mark.parametrize("hybrid", [False, True, "words"])
def test_explanations_are_those_of_the_run(served: Any, run: Run, hybrid: Any) -> None:
    query = "kaban locel"
    body = {"query": [query, "zugar"], "k": 3, "hybrid": hybrid, "explain": True}
    hits, others = served.post("/v1/search", body).json()["results"]
    assert len(others) == 3
    for hit in hits:
        explanation = hit["explanation"]
        assert explanation["score"] == pytest.approx(hit["score"], abs=1e-5)
        values = [part["value"] for part in explanation["parts"]]
        assert sum(values) + explanation["rest"] == pytest.approx(explanation["score"], abs=1e-6)
        if hybrid != "words":
            expected = run.explain(query, hit["id"], hybrid=hybrid).json()
            assert explanation == json.loads(json.dumps(expected))
        else:
            assert explanation["kind"] == "words"
            assert {part["word"] for part in explanation["parts"]} == {"kaban", "locel"}
    for wrong in ({"k": 51}, {"query": "k" * 2001}):
        refused = served.post("/v1/search", body | wrong)
        assert refused.status_code == 422 and "explain: " in refused.text


def test_an_explanation_has_its_largest_parts_alone(
    served: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempera.server import works

    monkeypatch.setattr(works, "PARTS", 5)
    query = "kaban locel zugar"
    body = {"query": query, "k": 1, "hybrid": True, "explain": True}
    ((hit,),) = served.post("/v1/search", body).json()["results"]
    explanation = hit["explanation"]
    whole = run.explain(query, hit["id"], hybrid=True)
    assert len(explanation["parts"]) == 5 < len(whole.parts)
    assert explanation == json.loads(json.dumps(whole.largest(5).json()))
    assert all(len(half["explanation"]["parts"]) <= 5 for half in explanation["explanations"])


def test_long_queries_leave_the_loop(run: Run, served: Any) -> None:
    from tempera.server.works import Search

    opened = served.app.shelf.get(None)
    search = Search(opened, 1, None, None, False)
    assert search.is_light(["kaban"] * 16)
    assert not search.is_light(["k" * 21_000])


def test_one_query_is_answered_by_one_list_and_ten_hits(served: Any) -> None:
    results = served.post("/v1/search", {"query": "kaban"}).json()["results"]
    assert [len(hits) for hits in results] == [10]


def test_a_query_of_unknown_words_is_noted(served: Any) -> None:
    body = {"query": ["kaban", "@@@"], "k": 1}
    notes = served.post("/v1/search", body).json()["notes"]
    assert len(notes) == 1 and "query 2" in notes[0]


def test_embeddings_are_those_of_the_run(served: Any, run: Run) -> None:
    texts = ["kaban locel", "zugar", "kaban locel"]
    answer = served.post("/v1/embeddings", {"input": texts, "model": run.folder.name}).json()
    vectors = run.encode(texts)
    assert answer["object"] == "list" and answer["model"] == run.folder.name
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    assert {each["object"] for each in answer["data"]} == {"embedding"}
    floats = np.array([each["embedding"] for each in answer["data"]], np.float32)
    assert np.array_equal(floats, vectors)
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5}

    answer = served.post("/v1/embeddings", {"input": texts, "encoding_format": "base64"}).json()
    coded = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in answer["data"]]
    assert np.array_equal(np.stack(coded), vectors)


def test_fewer_dimensions_have_length_one(served: Any, run: Run) -> None:
    answer = served.post("/v1/embeddings", {"input": "kaban locel", "dimensions": 5}).json()
    first = run.encode(["kaban locel"])[0, :5].astype(np.float64)
    np.testing.assert_allclose(
        answer["data"][0]["embedding"], first / np.linalg.norm(first), rtol=1e-6
    )
    refused = served.post("/v1/embeddings", {"input": "kaban", "dimensions": 17})
    assert refused.status_code == 422 and "have 16" in refused.json()["error"]["message"]


def test_the_models_are_listed(served: Any, run: Run) -> None:
    answer = served.get("/v1/models").json()
    assert answer["object"] == "list"
    (model,) = answer["data"]
    assert model == {
        "id": run.folder.name,
        "object": "model",
        "created": model["created"],
        "owned_by": "tempera",
        "kind": "texts",
        "documents": len(run.index.documents),
        "calibrated": False,
        "hybrid": True,
        "columns": [],
    }


def test_many_clients_at_once_get_their_own_answers(served: Any, run: Run) -> None:
    from tests.conftest import WORDS

    queries = [f"{a} {b}" for a in WORDS[:12] for b in WORDS[12:20]]
    vectors = run.encode(queries)
    hits = run.search(queries, 2, hybrid=True)

    def ask(number: int) -> None:
        answer = served.post("/v1/embeddings", {"input": queries[number]}).json()
        assert np.array_equal(np.array(answer["data"][0]["embedding"], np.float32), vectors[number])
        body = {"query": queries[number], "k": 2, "hybrid": True}
        answer = served.post("/v1/search", body).json()
        assert [hit["id"] for hit in answer["results"][0]] == [hit.id for hit in hits[number]]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(len(queries))))


def test_openai_s_package_gets_embeddings(served: Any, run: Run) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none") as client:
        answer = client.embeddings.create(model=run.folder.name, input=["kaban", "zugar"])
        vectors = np.array([each.embedding for each in answer.data], np.float32)
        assert np.array_equal(vectors, run.encode(["kaban", "zugar"]))
        assert [each.id for each in client.models.list()] == [run.folder.name]
        with pytest.raises(openai.NotFoundError, match="the models are"):
            client.embeddings.create(model="text-embedding-3-small", input="kaban")


def test_health_metrics_and_documentation(served: Any) -> None:
    assert served.get("/healthz").json() == {"status": "ok"}
    assert served.get("/readyz").json() == {"status": "ready"}
    served.post("/v1/search", {"query": "kaban"})
    lines = served.get("/metrics").text.splitlines()
    assert any(
        line.startswith('tempera_request_seconds_bucket{endpoint="/v1/search",le=')
        for line in lines
    )
    for name in ("tempera_queue ", "tempera_errors_total{", "process_resident_memory_bytes "):
        assert any(line.startswith(name) for line in lines), name
    documented = served.get("/openapi.json").json()
    paths = set(served.app.endpoints) - {"/", "/page.js", "/page.css", "/metrics", "/openapi.json"}
    assert set(documented["paths"]) == paths


def test_examples_of_the_documentation_are_answered(served: Any) -> None:
    documented = served.get("/openapi.json").json()
    for path in ("/v1/search", "/v1/embeddings"):
        content = documented["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert content["examples"]
        for example in content["examples"].values():
            assert served.post(path, example["value"]).status_code == 200


def test_head_has_no_body(served: Any) -> None:
    answer = served.client.head("/healthz")
    assert answer.status_code == 200 and answer.content == b""


def test_requests_on_one_connection_may_follow_each_other(served: Any) -> None:
    with httpx.Client(base_url=served.address) as client:
        for _ in range(20):
            assert client.post("/v1/embeddings", json={"input": "kaban"}).status_code == 200


def test_the_script_of_the_guide_runs(served: Any, run: Run, capsys: Any) -> None:
    pytest.importorskip("openai")
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    script = page.partition("```py\n")[2].partition("```")[0]
    assert len(script.splitlines()) <= 12
    script = script.replace("http://127.0.0.1:8000", served.address)
    script = script.replace('"faq"', repr(run.folder.name))
    exec(compile(script, "serve.md", "exec"), {})
    first, *hits = capsys.readouterr().out.splitlines()
    assert first == "2 vectors of 16 numbers"
    assert len(hits) == 2


def test_columns_filters_and_probabilities(kept_run: Path, start: Any) -> None:
    run = Run(kept_run)
    with start(kept_run) as server:
        (model,) = server.get("/v1/models").json()["data"]
        assert model["columns"] == ["lang", "year"] and model["calibrated"]
        where = "lang = 'de' and year >= 2020"
        body = {"query": ["kaban locel"], "k": 5, "where": where}
        (hits,) = server.post("/v1/search", body).json()["results"]
        assert hits == expected(run.search(["kaban locel"], 5, where=where)[0])
        assert len(hits) == 5
        for hit in hits:
            assert hit["columns"]["lang"] == "de" and hit["columns"]["year"] >= 2020
            assert 0 <= hit["probability"] <= 1
        for hybrid in (True, "words"):
            (hits,) = server.post("/v1/search", body | {"hybrid": hybrid}).json()["results"]
            assert hits and {hit["columns"]["lang"] for hit in hits} == {"de"}
        threshold = 0.5
        (every,) = server.post("/v1/search", {"query": ["kaban locel"]}).json()["results"]
        (hits,) = server.post(
            "/v1/search", {"query": ["kaban locel"], "threshold": threshold}
        ).json()["results"]
        assert hits == [hit for hit in every if hit["probability"] >= threshold]
        for wrong in (
            {"where": "lang = "},
            {"where": "langs = 'de'"},
            {"where": "(select count(*) from documents) > 0"},
            {"where": "read_text('/etc/passwd') = ''"},
            {"where": "lang == '/docs/x' and and"},
            {"where": ""},
            {"where": "x" * 5000},
            {"threshold": 0.5, "hybrid": True},
            {"threshold": 0.5, "hybrid": "words"},
        ):
            refused = server.post("/v1/search", {"query": "kaban", **wrong})
            assert refused.status_code == 422, refused.text
            message = refused.json()["error"]["message"]
            assert "\n" not in message and str(kept_run.parent) not in message
            assert "Traceback" not in message and "root:" not in message
