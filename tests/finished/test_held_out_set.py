"""The held-out queries of a run as a BEIR folder: judged there, its evaluated model has the figures
of the run."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tempera import evaluate, evaluate_held_out, export_held_out
from tempera.artifacts.run_folder import Run
from tempera.corpus.index import Index
from tempera.errors import ConfigError, DataError, OutputError
from tempera.finished.calibrate import calibrate
from tempera.forms.roles import Roles
from tempera.io.ids import content_id, content_ids
from tempera.mining.embedder import among_trained
from tempera.ranking.fusion import USUAL
from tempera.run.train import train
from tempera.text.judge.hybrid import weight_of
from tempera.text.read.beir import read_beir, write_beir
from tempera.towers.saved import TRAINED, fingerprint

from ..conftest import WORDS, small_options, write_pairs

# A copy whose files may be changed, as of an earlier version: without their checksums.
UNCOMPARED = shutil.ignore_patterns("tempera-manifest.json")


@pytest.fixture(scope="module")
def run(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 pairs with ids of their own, some documents with two queries; what is held out is learned
    at the end."""
    folder = tmp_path_factory.mktemp("held-out")
    rows = [json.loads(line) for line in pairs_file.read_text(encoding="utf-8").splitlines()]
    rows = [{**row, "doc": f"{row['doc']} Ω", "sku": f"{i:03}"} for i, row in enumerate(rows)]
    rows += [{**row, "query": f"{row['query']} bis"} for row in rows[:20]]
    given = small_options(pairs_file)
    given["data"] |= {"path": str(write_pairs(folder / "rows.jsonl", rows)), "doc_id": "sku"}
    given["evaluation"] |= {"validation": 60}
    given["train"]["refit"] = "auto"
    return train(given, folder / "run").folder


@pytest.fixture
def moved(run: Path, tmp_path: Path) -> Path:
    """The run and its rows in another folder."""
    shutil.copytree(run.parent, tmp_path / "moved", ignore=UNCOMPARED)
    config = tmp_path / "moved" / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(run.parent), str(tmp_path / "moved")))
    return tmp_path / "moved" / "run"


def test_another_program_judges_the_model_as_its_run_did(run: Path, tmp_path: Path) -> None:
    document = json.loads((run / "metrics.json").read_text())
    facts = export_held_out(run, tmp_path / "set")
    assert facts == {
        "to": "beir", "output": str(tmp_path / "set"), "documents": document["data"]["corpus"],
        "test_queries": document["data"]["queries"], "validation_queries": document["data"]["validation"],
    }  # fmt: skip
    (judged,) = evaluate(run / "evaluated", tmp_path / "set")
    for metric, value in document["metrics"]["trained"].items():
        assert judged.systems[str(run / "evaluated")].metrics[metric] == pytest.approx(
            value, abs=1e-9
        )
    assert judged.trained == {} and judged.cautions() == []
    test, dev = (read_beir(tmp_path / "set", split) for split in ("test", "dev"))
    assert (len(test.queries), len(dev.queries)) == (
        facts["test_queries"],
        facts["validation_queries"],
    )
    assert not {*test.queries["id"].to_pylist()} & {*dev.queries["id"].to_pylist()}
    known = Index(run / "index").documents.select(["id", "text"]).to_pylist()
    assert {row["id"]: row["text"] for row in known} == dict(
        zip(test.corpus["id"].to_pylist(), test.corpus["text"].to_pylist())
    )


def test_two_runs_are_compared_by_what_neither_has_learned(
    run: Path, options: dict[str, Any], tmp_path: Path, tempera: Any
) -> None:
    figures = json.loads((run / "metrics.json").read_text())["metrics"]["trained"]
    alone = evaluate_held_out(run)
    (here,) = alone.systems
    assert here == str(run / "evaluated") and alone.task.counts["queries"] == 40
    assert alone.systems[here].metrics == pytest.approx(figures, abs=1e-9)
    export_held_out(run, tmp_path / "set")
    assert sorted(alone.task.ids) == sorted(read_beir(tmp_path / "set").queries["id"].to_pylist())
    given = copy.deepcopy(options)
    given["data"] |= {"path": str(run.parent / "rows.jsonl"), "doc_id": "sku"}
    given["evaluation"] |= {"validation": 60}
    given["train"] |= {"seed": 3, "max_steps": 3}
    other = train(given, tmp_path / "other")
    both = evaluate_held_out(run, against=other.folder, metrics=["ndcg@10"])
    comparison = both.comparisons[str(other.folder)]["ndcg@10"]
    assert comparison.difference.mean == pytest.approx(
        figures["ndcg@10"] - other.metrics["trained"]["ndcg@10"], abs=1e-9
    )
    assert both.cautions() == []
    asked = tempera(
        "evaluate", other.folder, "--against", run, "--bm25", "--metrics", "ndcg@10", "--json"
    )
    told = f"{here} is judged, the model of {run} from before it learned what the run had held out"
    assert told in asked.err.splitlines() and "other is judged" not in asked.err
    (task,) = asked.document["tasks"]
    assert list(task["systems"]) == [str(other.folder), here, "bm25", f"{other.folder} + BM25"]
    assert task["comparisons"][here]["ndcg@10"]["mean"] == pytest.approx(
        -comparison.difference.mean
    )
    learned = evaluate_held_out(
        other.folder, against=run / "model"
    )  # named as a model, it is judged as it is
    assert learned.trained == {str(run / "model"): 40}
    with pytest.raises(ConfigError, match="cannot compare"):
        evaluate_held_out(run, against=run)
    with pytest.raises(ConfigError, match="no data to evaluate on: give a table of pairs"):
        evaluate(run)
    refused = tempera("evaluate", run, "--split", "dev")
    assert refused.code == 2 and "--split is of a BEIR folder: give one" in refused.err
    rows = shutil.copytree(run.parent, tmp_path / "copy", ignore=UNCOMPARED) / "rows.csv"
    config = tmp_path / "copy" / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(run.parent / "rows.jsonl"), str(rows)))
    rows.write_text("query,doc\n")
    kept = tempera("evaluate", tmp_path / "copy" / "run", "--per-query", rows, "--overwrite")
    assert kept.code == 2 and "is read by this command and is never replaced" in kept.err.replace(
        "\n", " "
    )
    assert rows.read_text() == "query,doc\n"
    model = tempera("evaluate", run / "model")
    assert (
        model.code == 2 and "is not a run, so there are no held-out queries: give data" in model.err
    )


def test_bm25_has_the_settings_that_the_run_has_tuned(pairs_file: Path, tmp_path: Path) -> None:
    given = small_options(pairs_file)
    given["evaluation"]["bm25"] = True
    run = train(given, tmp_path / "run", ["train.max_steps=1"])
    (finding,) = [evaluate_held_out(run.folder, bm25=True, metrics=["ndcg@10"])]
    assert finding.json()["bm25"] == {**run.results["bm25"], "tuned": True}
    mean = finding.json()["systems"]["bm25"]["ndcg@10"]["mean"]
    assert mean == pytest.approx(run.metrics["bm25"]["ndcg@10"], abs=1e-9)


def test_models_that_have_learned_the_queries_are_told(run: Path, tmp_path: Path) -> None:
    """The saved model has learned all, the evaluated one neither the test nor validation, and what
    it has it knows."""
    export_held_out(run, tmp_path / "set")
    (judged,) = evaluate(run, tmp_path / "set", against=run / "evaluated")
    assert judged.trained == {str(run): 40}
    rows = [json.loads(line) for line in (run.parent / "rows.jsonl").open(encoding="utf-8")]
    whole, part = (set(np.load(folder / TRAINED).tolist()) for folder in (run, run / "evaluated"))
    assert whole == {content_id(row[role].lower()) for row in rows for role in ("query", "doc")}
    assert part < whole
    for split in ("test", "dev"):
        asked = read_beir(tmp_path / "set", split).queries["text"].to_pylist()
        assert not {content_id(text) for text in asked} & part
    (judged,) = evaluate(run / "evaluated", write_pairs(tmp_path / "rows.jsonl", rows))
    queries, docs = (
        {content_id(row[role].lower()) for row in rows} & part for role in ("query", "doc")
    )
    assert judged.trained == {str(run / "evaluated"): len(queries)} and len(docs) > 200
    turned = [{"query": row["doc"].upper(), "doc": row["query"]} for row in rows]
    (judged,) = evaluate(run / "evaluated", write_pairs(tmp_path / "turned.jsonl", turned))
    assert judged.trained == {str(run / "evaluated"): len(docs)}  # whatever their role
    texts = [row["query"].title() for row in rows[:2]]
    known = content_ids(texts)  # as runs of earlier versions have it
    column = pa.chunked_array([[f" {texts[0]}\n", texts[1], "another"]])
    assert among_trained(column, known).tolist() == [True, True, False]
    assert "was trained on" in judged.cautions()[0]
    before = fingerprint(run / "evaluated")
    (run / "evaluated" / TRAINED).rename(tmp_path / "aside")
    assert fingerprint(run / "evaluated") == before  # decides no vector
    (tmp_path / "aside").rename(run / "evaluated" / TRAINED)


def test_the_command_writes_it_beside_the_run_as_a_folder_like_any_other(
    run: Path, tempera: Callable[..., Any]
) -> None:
    written = tempera("export", run, "--to", "beir")
    assert written.code == 0 and f"written: {run / 'export' / 'beir'}" in written.out
    assert "queries by which the run was judged, in qrels/test.tsv: 40" in written.out
    again = tempera("export", run, "--to", "beir")
    assert again.code == 2 and "holds an earlier result" in again.err
    assert (
        json.loads(tempera("export", run, "--to", "beir", "--overwrite", "--json").out)[
            "test_queries"
        ]
        == 40
    )
    kind = tempera("export", run, "--to", "beir", "--kind", "hnsw")
    assert (
        kind.code == 2
        and "--kind, --width and --now are for vectors: drop them for beir" in kind.err
    )
    judged = tempera("evaluate", run, run / "export" / "beir", "--against", run / "evaluated")
    assert (
        judged.code == 0
        and f"{run} was trained on 40 of these 40 queries" in judged.out + judged.err
    )


def test_what_has_no_held_out_queries(run: Path, options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a run, so there are no held-out queries"):
        export_held_out(run / "model", tmp_path / "set")
    with pytest.raises(DataError, match="is neither a saved model of texts nor a run with one"):
        export_held_out(tmp_path, tmp_path / "set")
    with pytest.raises(ConfigError, match=r"call tempera.export_held_out\(run\)"):
        Run(run).export("beir")
    bare = copy.deepcopy(options)
    bare["evaluation"] |= {"queries": 0, "validation": 0}
    bare["train"] |= {"max_steps": 1}
    with pytest.raises(DataError, match="has held out nothing"):
        export_held_out(train(bare, tmp_path / "bare").folder, tmp_path / "set")
    changed = tmp_path / "changed"
    shutil.copytree(run.parent, changed, ignore=UNCOMPARED)
    (tmp_path / "data").mkdir()
    data = (changed / "rows.jsonl").rename(tmp_path / "data" / "rows.jsonl")
    text = (changed / "run" / "config.yaml").read_text().replace(str(run.parent), str(data.parent))
    (changed / "run" / "config.yaml").write_text(text)
    (data.parent / "metrics.json").write_text("{}")
    with pytest.raises(OutputError, match=r"is, or holds, .*rows\.jsonl, which this command reads"):
        export_held_out(changed / "run", data.parent, overwrite=True)
    with data.open("a") as file:
        file.write(json.dumps({"query": "one", "doc": "more", "sku": "900"}) + "\n")
    with pytest.raises(DataError, match=r"the data of .* have changed since"):
        export_held_out(changed / "run", tmp_path / "set")
    document = json.loads((changed / "run" / "metrics.json").read_text())
    del document["held_out_by_text"]  # as runs of earlier versions are
    (changed / "run" / "metrics.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"is of an earlier version, .*\(pairs: 320 then, 321 now"):
        export_held_out(changed / "run", tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_the_evaluated_model_has_the_weight_beside_words_that_its_run_has_chosen(
    tmp_path: Path,
) -> None:
    for folder, weight in ((tmp_path / "run", 0.9), (tmp_path / "run" / "other", USUAL)):
        (folder / "evaluated").mkdir(parents=True)
        assert weight_of(folder / "evaluated") == USUAL
        if weight != USUAL:
            (folder / "metrics.json").write_text(json.dumps({"hybrid": {"weight": weight}}))
        assert [weight_of(each) for each in (folder, folder / "model", folder / "evaluated")] == [
            weight
        ] * 3
    (tmp_path / "run" / "model").mkdir()  # a run of that name has its own
    (tmp_path / "run" / "model" / "metrics.json").write_text(
        json.dumps({"hybrid": {"weight": 0.2}})
    )
    assert weight_of(tmp_path / "run" / "model") == 0.2


def test_of_several_texts_with_one_id_the_first_is_asked(
    options: dict[str, Any], pairs_file: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in pairs_file.read_text(encoding="utf-8").splitlines()]
    rows = [{**row, "asked": f"q{i // 2}"} for i, row in enumerate(rows)]
    options["data"] |= {
        "path": str(write_pairs(tmp_path / "rows.jsonl", rows)),
        "query_id": "asked",
    }
    options["train"]["max_steps"] = 5
    run = train(options, tmp_path / "run")
    export_held_out(run.folder, tmp_path / "set")
    (judged,) = evaluate(run.folder, tmp_path / "set", metrics=["ndcg@10"])
    assert judged.systems[str(run.folder)].metrics["ndcg@10"] == pytest.approx(
        run.results["metrics"]["trained"]["ndcg@10"]
    )
    assert {*read_beir(tmp_path / "set").queries["text"].to_pylist()} <= {
        row["query"] for row in rows[::2]
    }


def test_other_data_of_the_same_size_are_refused(moved: Path, tmp_path: Path) -> None:
    """One training query has another text, so that others may be held out than were."""
    export_held_out(moved, tmp_path / "set")
    rows = [json.loads(line) for line in (moved.parent / "rows.jsonl").open(encoding="utf-8")]
    trained = set(np.load(moved / "evaluated" / TRAINED).tolist())
    row = next(row for row in reversed(rows[:300]) if content_id(row["query"]) in trained)
    said = set[str]()
    for other in range(8):  # some of which would be held out themselves, so that the counts differ
        row["query"] = f"{row['query']} {other}"
        write_pairs(moved.parent / "rows.jsonl", rows)
        with pytest.raises(DataError, match=r"have changed since") as refused:
            export_held_out(moved, tmp_path / "again")
        said.add(str(refused.value).partition("changed since (")[2].partition(")")[0])
    assert "the queries to train on are others" in said


def test_documents_with_other_texts_are_refused(moved: Path, tmp_path: Path) -> None:
    """Their ids are given, so that the split does not know their texts; the order of the rows says
    nothing."""
    path = moved.parent / "rows.jsonl"
    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    write_pairs(path, rows[::-1])
    export_held_out(moved, tmp_path / "set")
    rows[25]["doc"] += " and more"
    write_pairs(path, rows)
    with pytest.raises(
        DataError,
        match=r"\(held-out pairs or documents have other texts\), .*: give data to evaluate it on",
    ):
        evaluate_held_out(moved)


def test_data_that_are_gone_are_said_to_be_those_of_the_run(moved: Path) -> None:
    (path := moved.parent / "rows.jsonl").unlink()
    says = (
        f"the data of {moved} cannot be read again: no such file: {path}; call this where the run was trained, put the data back, "
        "or give data to evaluate it on"
    )
    with pytest.raises(DataError) as refused:
        evaluate_held_out(moved)
    assert str(refused.value) == says


@pytest.mark.parametrize("refit", ["validation", "all"])
def test_what_a_run_has_learned_of_validation_is_known_where_pairs_share_documents(
    run: Path, tmp_path: Path, refit: str
) -> None:
    """Pairs left training since they share a document with validation, and come back with it."""
    given = small_options(run.parent / "rows.jsonl")
    given["data"] |= {"doc_id": "sku"}
    given["evaluation"] |= {"validation": 60}
    given["train"]["refit"] = refit
    again = train(given, tmp_path / "run")
    assert again.results["refit"][0]["part"] == "validation"
    finding = evaluate_held_out(again.folder)
    (scores,) = finding.systems.values()
    assert scores.metrics["ndcg@10"] == pytest.approx(again.metrics["trained"]["ndcg@10"])


@pytest.mark.parametrize("place", ["model/set", "index/set", "evaluated/set", "."])
def test_nothing_is_written_among_the_files_of_a_model(run: Path, place: str) -> None:
    with pytest.raises(
        OutputError, match=r"whose files tell it from others|which this command reads"
    ):
        export_held_out(run, run / place, overwrite=True)
    assert not (run / place / "corpus.jsonl").exists()


def test_the_evaluated_model_is_named_only_where_it_has_not_learned_the_queries(
    run: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in (run.parent / "rows.jsonl").open(encoding="utf-8")]
    (of_all,) = evaluate(run, write_pairs(tmp_path / "rows.jsonl", rows))
    assert "give queries that it has not seen" in of_all.cautions()[0]
    export_held_out(run, tmp_path / "set")
    (tmp_path / "link").symlink_to(run / "model")
    for model in (run, run / "model", tmp_path / "link"):
        (judged,) = evaluate(model, tmp_path / "set")
        assert judged.cautions()[0].endswith(
            f"judge {run / 'evaluated'}, which has not learned what the run held out"
        )


def test_documents_with_equal_texts_rank_as_in_the_run(run: Path, tmp_path: Path) -> None:
    """Of four ids with one text, all with one score, the same stands first, here and where the
    export is judged."""
    rows = [json.loads(line) for line in (run.parent / "rows.jsonl").open(encoding="utf-8")]
    given = small_options(run.parent / "rows.jsonl")
    for i, row in enumerate(rows):
        row["doc"] = rows[i - i % 4]["doc"]
    given["data"] |= {"path": str(write_pairs(tmp_path / "rows.jsonl", rows)), "doc_id": "sku"}
    given["train"]["max_steps"] = 20
    trained = train(given, tmp_path / "run")
    export_held_out(trained.folder, tmp_path / "set")
    corpus = [
        json.loads(line)["_id"]
        for line in (tmp_path / "set" / "corpus.jsonl").open(encoding="utf-8")
    ]
    assert (
        set(corpus) <= {str(row["sku"]) for row in rows}
        and corpus == trained.index.documents["id"].to_pylist()
    )
    for finding in (evaluate_held_out(trained.folder), *evaluate(trained.folder, tmp_path / "set")):
        (scores,) = finding.systems.values()
        assert scores.metrics["ndcg@10"] == pytest.approx(
            trained.metrics["trained"]["ndcg@10"], abs=1e-9
        )


def test_an_answer_with_several_negatives_counts_once(
    options: dict[str, Any], pairs_file: Path, tmp_path: Path
) -> None:
    """Triplets: a query and its answer stand in three rows, each with another negative."""
    rows = [json.loads(line) for line in pairs_file.read_text(encoding="utf-8").splitlines()]
    triplets = [
        {**row, "negative": rows[(i + far) % 300]["doc"]}
        for i, row in enumerate(rows)
        for far in (7, 70, 170)
    ]
    options["data"] |= {
        "path": str(write_pairs(tmp_path / "rows.jsonl", triplets)),
        "negatives": ["negative"],
    }
    options["evaluation"] |= {"metrics": ["ndcg@10", "recall@10", "hit@10", "map@10", "mrr@10"]}
    run = train(options, tmp_path / "run")
    export_held_out(run.folder, tmp_path / "set")
    metrics = tuple(options["evaluation"]["metrics"])
    of_table = evaluate(
        run.folder, tmp_path / "rows.jsonl", metrics=metrics, roles=Roles(negatives=["negative"])
    )
    for finding in (
        evaluate_held_out(run.folder, metrics=metrics),
        *evaluate(run.folder, tmp_path / "set", metrics=metrics),
        *of_table,
    ):
        (scores,) = finding.systems.values()
        assert scores.metrics["recall@10"] == scores.metrics["hit@10"] > 0.5
        assert scores.metrics["map@10"] == pytest.approx(scores.metrics["mrr@10"])
        assert finding.task.counts["judgements"] == finding.task.counts["queries"]
    for system in run.metrics.values():
        assert system["recall@10"] == system["hit@10"] and system["map@10"] == pytest.approx(
            system["mrr@10"]
        )
    assert calibrate(run.folder).about["found"] == pytest.approx(
        run.metrics["trained"]["recall@10"]
    )


def test_grades_of_a_folder_are_gains_of_every_figure(tmp_path: Path) -> None:
    """A run, its evaluation on the folder, the queries that it exports, and the definition of nDCG
    agree."""
    draw, folder = np.random.default_rng(0), tmp_path / "graded"
    docs = {f"d{i}": " ".join(draw.choice(WORDS, 4)) for i in range(80)}
    queries = {f"q{i}": " ".join(draw.choice(WORDS, 2)) for i in range(60)}
    folder.mkdir()
    judged = {}
    for split, asked in (("train", list(queries)[:30]), ("test", list(queries)[30:])):
        answers = [
            (query, doc) for query in asked for doc in draw.choice(list(docs), 4, replace=False)
        ]
        judged[split] = (
            *map(list, zip(*answers, strict=True)),
            [(1.0, 2.0, 3.0, 0.5)[i % 4] for i in range(len(answers))],
        )
    write_beir(folder, docs, queries, judged)
    options = {
        "data": {"path": str(folder), "test": "test"},
        "tower": {"dimensions": 16, "vocabulary": 200},
        "train": {"max_steps": 3, "batch_size": 16},
        "evaluation": {
            "shared_documents": "keep",
            "validation": 0,
            "metrics": ["ndcg@10", "recall@10"],
            "bm25": False,
        },
    }
    run = train(options, tmp_path / "run")
    (on_folder,) = evaluate(run.folder, folder, metrics=["ndcg@10", "recall@10"])
    scores = next(iter(on_folder.systems.values())).per_query
    for name, figure in run.metrics["trained"].items():
        assert scores[name].mean() == pytest.approx(figure, abs=1e-9)
    similar = (
        run.encode([queries[f"q{i}"] for i in range(30, 60)]) @ run.encode(list(docs.values())).T
    )
    gains = np.zeros(similar.shape)
    for query, doc, grade in zip(*judged["test"], strict=True):
        gains[int(query[1:]) - 30, int(doc[1:])] = grade
    discounts = 1 / np.log2(np.arange(2, 12))
    by_score = (
        np.take_along_axis(gains, np.argsort(-similar, axis=1, kind="stable"), 1)[:, :10]
        @ discounts
    )
    best = -np.sort(-gains, axis=1)[:, :10] @ discounts
    assert run.metrics["trained"]["ndcg@10"] == pytest.approx(
        (by_score / best).mean(), abs=0.01
    )  # but for ties
    export_held_out(run.folder, tmp_path / "exported")
    again = read_beir(tmp_path / "exported")
    assert sorted(again.grade.tolist()) == sorted(judged["test"][2])
    (on_export,) = evaluate(run.folder, tmp_path / "exported", metrics=["ndcg@10"])
    assert next(iter(on_export.systems.values())).per_query["ndcg@10"].mean() == pytest.approx(
        scores["ndcg@10"].mean()
    )
