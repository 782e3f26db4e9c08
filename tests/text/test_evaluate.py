"""Models on tasks: scores against pytrec_eval with many ties, comparisons against enumeration,
faults in one line."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
import pytrec_eval
import torch
from scipy import stats

from tempera.errors import ConfigError, DataError, OutputError
from tempera.forms.roles import Roles
from tempera.io.ids import content_id
from tempera.mining.embedder import Model
from tempera.ranking.compare import Comparison, Difference, compare, sign_flip
from tempera.ranking.metrics import Relevant
from tempera.ranking.spread import ranks
from tempera.text.judge.evaluate import evaluate, resolved, write_per_query
from tempera.text.judge.sts import Agreement, pearson, spearman
from tempera.text.judge.tasks import Graded, RetrievalTask, read_task
from tempera.towers.static import StaticTower
from tempera.towers.tokenizer import train_tokenizer

# A copy whose files may be changed, as of an earlier version: without their checksums.
UNCOMPARED = shutil.ignore_patterns("tempera-manifest.json")

WORDS = ["apple", "berry", "cherry", "damson", "elder", "fig"]
METRICS = (
    "ndcg@3",
    "ndcg@10",
    "map@5",
    "map@100",
    "recall@2",
    "precision@4",
    "hit@1",
    "hit@3",
    "mrr@100",
)


def model_folder(folder: Path, seed: int) -> Path:
    """A static embedding of six words; equal bags of words have equal vectors."""
    tower = StaticTower(train_tokenizer([" ".join(WORDS)] * 3, 60, 16), 4)
    generator = np.random.default_rng(seed)
    tower.embedding.weight.data = torch.from_numpy(
        generator.normal(size=tower.embedding.weight.shape)
    ).float()
    tower.save(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return model_folder(folder / "a", 0), model_folder(folder / "b", 1)


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 documents of at most two words, so that most scores are ties; grades from 0 to 3; ids of
    several lengths."""
    folder = tmp_path_factory.mktemp("beir")
    generator = np.random.default_rng(3)
    docs = [f"{i if i % 3 else 'ä' + str(i)}" for i in generator.permutation(60)]
    rows = [
        {"_id": doc, "title": "", "text": " ".join(generator.choice(WORDS, 1 + i % 2))}
        for i, doc in enumerate(docs)
    ]
    queries = [{"_id": f"q{i}", "text": " ".join(generator.choice(WORDS, 2))} for i in range(12)]
    for name, content in (("corpus", rows), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    (folder / "qrels").mkdir()
    judged = "".join(
        f"q{i}\t{doc}\t{grade}\n"
        for i in range(10)
        for doc, grade in zip(generator.choice(docs, 9, replace=False), [0, 1, 2, 3, 1, 1, 0, 2, 1])
    )
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder


def by_trec_eval(task: RetrievalTask, model: Model, folder: Path) -> dict[str, list[float]]:
    """The same scores from the files themselves, ties being left to trec_eval."""
    ids = task.corpus["id"].to_pylist()
    scores = (
        model.query(task.queries["text"].to_pylist()) @ model.doc(task.corpus["text"].to_pylist()).T
    )
    tied = [len(set(row.tolist())) for row in scores]
    assert max(tied) < len(ids) / 2
    qrels: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, doc, grade = line.split("\t")
        qrels.setdefault(query, {})[doc] = int(grade)
    run = {q: dict(zip(ids, map(float, row))) for q, row in zip(task.ids, scores)}
    names = {
        "ndcg_cut_3": "ndcg@3", "ndcg_cut_10": "ndcg@10", "map_cut_5": "map@5", "map_cut_100": "map@100",
        "recall_2": "recall@2", "P_4": "precision@4", "success_1": "hit@1", "success_3": "hit@3", "recip_rank": "mrr@100",
    }  # fmt: skip
    found = pytrec_eval.RelevanceEvaluator(
        qrels, {"ndcg_cut.3,10", "map_cut.5,100", "recall.2", "P.4", "success.1,3", "recip_rank"}
    ).evaluate(run)
    assert set(found) == set(task.ids)
    return {ours: [found[query][theirs] for query in task.ids] for theirs, ours in names.items()}


def test_scores_are_those_of_trec_eval_with_many_ties(
    models: tuple[Path, Path], beir: Path
) -> None:
    (finding,) = evaluate(models[0], beir, metrics=METRICS)
    assert isinstance(finding.task, RetrievalTask)
    system = finding.systems[str(models[0])]
    expected = by_trec_eval(finding.task, Model(str(models[0])), beir)
    assert set(system.per_query) == set(METRICS) == set(expected)
    for name, values in system.per_query.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-12, err_msg=name)
    assert finding.task.counts["queries that the split does not name"] == 2


def test_pairs_are_a_task(models: tuple[Path, Path], tmp_path: Path) -> None:
    rows = [
        ("apple", "fig"),
        ("berry", "fig"),
        ("apple", "elder"),
        ("apple", "fig"),
        ("fig", "fig"),
    ]
    table = pa.table({"question": [row[0] for row in rows], "answer": [row[1] for row in rows]})
    parquet.write_table(table, tmp_path / "pairs.parquet")
    task = read_task(tmp_path / "pairs.parquet")
    assert isinstance(task, RetrievalTask)
    texts, docs = task.queries["text"].to_pylist(), task.corpus["text"].to_pylist()
    assert sorted(texts) == ["apple", "berry", "fig"] and sorted(docs) == ["elder", "fig"]
    judged = {(texts[q], docs[d]) for q, d in zip(task.relevant.query, task.relevant.doc)}
    assert judged == set(rows)
    (finding,) = evaluate(models[0], tmp_path / "pairs.parquet", metrics=["recall@2"])
    assert finding.systems[str(models[0])].per_query["recall@2"].tolist() == [1, 1, 1]


def test_roles_of_columns(
    models: tuple[Path, Path], beir: Path, tmp_path: Path, tempera: Callable[..., Any]
) -> None:
    rows = {
        "sentence1": ["apple", "apple"],
        "sentence2": ["fig", "fig"],
        "score": [4.0, 1.0],
        "year": [1, 2],
    }
    given = tmp_path / "pairs.parquet"
    parquet.write_table(pa.table(rows), given)
    assert isinstance(read_task(given), Graded)
    task = read_task(
        given, roles=Roles(query="sentence2", doc="sentence1", min_score=2, metadata=("year",))
    )
    assert isinstance(task, RetrievalTask) and task.queries["text"].to_pylist() == ["fig"]
    assert task.counts["rows below min_score"] == 1 and task.counts["judgements"] == 1
    with pytest.raises(ConfigError, match=r"remove the options data\.ROLE"):
        read_task(beir, roles=Roles())
    command = [
        "evaluate",
        models[0],
        given,
        "data.min_score=2",
        "--metrics",
        "hit",
        "-k",
        "1",
        "--json",
    ]
    answer = tempera(*command)
    assert answer.code == 0, answer.err
    assert answer.document["tasks"][0]["kind"] == "retrieval"


def test_a_query_is_left_out_of_its_own_ranking_unless_it_is_right(
    models: tuple[Path, Path],
) -> None:
    queries = pa.table({"id": ["1", "2"], "text": ["apple", "berry"]})
    corpus = pa.table({"id": ["b", "a", "c"], "text": ["apple", "fig", "berry"]})
    task = RetrievalTask.of("t", queries, corpus, Relevant.of([[1], [2]]), {})
    assert task.corpus["id"].to_pylist() == ["c", "b", "a"] and task.own.tolist() == [1]
    assert task.counts["queries that are a document"] == 1
    for excluded in (False, True):
        (finding,) = evaluate(models[0], task, metrics=["hit@1"], bm25=True, exclude_self=excluded)
        ranked = finding.systems[str(models[0])].ranked  # type: ignore[attr-defined]
        assert (ranked[0, 0] == 1) == (not excluded) and 1 in ranked[1] and ranked[1, 0] == 0
        assert sorted(ranked[0].tolist()) == ([0, 1, 2] if not excluded else [-1, 0, 2])
        assert (1 in finding.systems["bm25"].ranked[0]) == (not excluded)  # type: ignore[attr-defined]
        fused = finding.systems[f"{models[0]} + BM25"].ranked  # type: ignore[attr-defined]
        assert (
            (fused[0, 0] == 1) == (not excluded)
            and fused[1, 0] == 0
            and len(set(fused[0].tolist())) == 3
        )


def test_every_copy_of_a_query_is_left_out_and_makes_room(models: tuple[Path, Path]) -> None:
    queries = pa.table({"id": ["1", "2"], "text": ["apple", "berry"]})
    texts = ["apple"] * 4 + ["apple fig"] * 120
    corpus = pa.table({"id": [f"{place:03}" for place in range(124, 0, -1)], "text": texts})
    task = RetrievalTask.of(
        "t", queries, corpus, Relevant.of([[3], [9]]), {}
    )  # one copy is an answer
    assert task.counts["queries that are a document"] == 1
    (finding,) = evaluate(models[0], task, metrics=["hit@1"], bm25=True, exclude_self=True)
    for system in finding.systems.values():
        first, _ = system.ranked  # type: ignore[attr-defined]
        assert (
            3 in first
            and not {0, 1, 2} & set(first.tolist())
            and len(first) == 100
            and (first >= 0).all()
        )


def test_graded_pairs(models: tuple[Path, Path], tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    first, second = ([" ".join(generator.choice(WORDS, 2)) for _ in range(40)] for _ in "ab")
    grades = generator.integers(0, 6, 40)
    csv.write_csv(
        pa.table({"sentence1": first, "sentence2": second, "score": grades}), tmp_path / "sts.csv"
    )
    (finding,) = evaluate(models[0], tmp_path / "sts.csv", against=models[1], bm25=True)
    assert isinstance(finding.task, Graded) and list(finding.systems) == [str(m) for m in models]
    for model in models:
        encode = Model(str(model)).doc
        cosines = (encode(first).astype(np.float64) * encode(second)).sum(1)
        found = finding.systems[str(model)].intervals()
        assert found["spearman"].mean == pytest.approx(
            stats.spearmanr(cosines, grades).statistic, abs=1e-12
        )
        assert found["pearson"].mean == pytest.approx(
            stats.pearsonr(cosines, grades).statistic, abs=1e-12
        )
        assert all(f.low < f.mean < f.high for f in found.values())
    for idle in ({"metrics": ["ndcg@10"]}, {"k": [5]}, {"exclude_self": True}):
        with pytest.raises(
            ConfigError,
            match=f"^{next(iter(idle))} is for rankings, and .* holds graded pairs of sentences",
        ):
            evaluate(models[0], tmp_path / "sts.csv", **idle)  # type: ignore[arg-type]
    gap = finding.comparisons[str(models[1])]["spearman"].difference
    values = [system.intervals()["spearman"].mean for system in finding.systems.values()]
    assert gap.mean == pytest.approx(values[0] - values[1])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("score", "nan", "row 2: column 'score' has no number"),
        ("score", "", "row 2: column 'score' has no number"),
        ("score", "high", "row 2: column 'score' is 'high'; expected a number"),
        ("sentence2", " ", "row 2: column 'sentence2' has no text"),
    ],
)
def test_faults_in_graded_pairs(tmp_path: Path, column: str, value: str, message: str) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": "1"} for _ in range(3)]
    rows[1][column] = value
    path = tmp_path / "sts.csv"
    path.write_text(
        "sentence1,sentence2,score\n" + "".join(",".join(row.values()) + "\n" for row in rows)
    )
    with pytest.raises(DataError) as error:
        read_task(path)
    assert str(error.value) == f"{path}, {message}"


def test_graded_pairs_that_are_no_pairs(tmp_path: Path) -> None:
    parquet.write_table(
        pa.table({"sentence1": ["a"], "sentence2": ["b"], "score": [1.0]}), tmp_path / "one.parquet"
    )
    with pytest.raises(
        DataError, match=r"one.parquet holds 1 graded pairs; a correlation needs at least 2"
    ):
        read_task(tmp_path / "one.parquet")
    parquet.write_table(
        pa.table({"sentence1": [1, 2], "sentence2": ["b"] * 2, "score": [1, 2]}),
        tmp_path / "n.parquet",
    )
    with pytest.raises(
        DataError, match=r"n.parquet: column 'sentence1' holds int64; expected texts"
    ):
        read_task(tmp_path / "n.parquet")


def test_scores_that_do_not_differ_have_no_correlation(tmp_path: Path) -> None:
    rows = {"sentence1": ["a", "b", "c"], "sentence2": ["d", "e", "f"], "score": [0.5] * 3}
    parquet.write_table(pa.table(rows), tmp_path / "one_score.parquet")
    with pytest.raises(
        DataError,
        match=r"one_score.parquet: every score is 0.5, and a correlation needs scores that differ",
    ):
        read_task(tmp_path / "one_score.parquet")


def test_correlations_with_ties() -> None:
    generator = np.random.default_rng(0)
    for values in (2, 5, 1000):
        a, b = (generator.integers(0, values, 60).astype(float) for _ in "ab")
        assert ranks(a).tolist() == stats.rankdata(a).tolist()
        assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
        assert pearson(a, b) == pytest.approx(stats.pearsonr(a, b).statistic, abs=1e-12)
    assert pearson(np.ones(5), np.arange(5.0)) == 0


def enumerated(deltas: Sequence[float]) -> float:
    """The share of all sign patterns with a sum as large."""
    sums = [
        abs(sum(s * d for s, d in zip(signs, deltas)))
        for signs in itertools.product((-1, 1), repeat=len(deltas))
    ]
    return sum(total >= abs(sum(deltas)) - 1e-9 for total in sums) / len(sums)


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0])
def test_the_randomisation_test_is_that_of_all_sign_patterns(shift: float) -> None:
    deltas = np.random.default_rng(4).normal(shift, 1, 10)
    expected = enumerated(deltas.tolist())
    # Four standard errors of 10,000 draws.
    margin = 4 * math.sqrt(expected * (1 - expected) / 10_000) + 2e-4
    assert sign_flip(deltas, np.zeros(10)) == pytest.approx(expected, abs=margin)
    padded = np.concatenate([deltas, np.zeros(30)])  # queries on which both are equal say nothing
    assert sign_flip(padded, np.zeros(40)) == pytest.approx(expected, abs=margin)


def test_the_randomisation_test_rejects_chance_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    rejected = [
        sign_flip(generator.normal(size=40), generator.normal(size=40), 500) < 0.1
        for _ in range(300)
    ]
    assert 0.06 < np.mean(rejected) < 0.14


def test_swapping_graded_systems_rejects_chance_as_often_as_it_says() -> None:
    generator, rejected = np.random.default_rng(1), []
    for _ in range(60):
        grades = generator.normal(size=50)
        a, b = (Agreement(grades + generator.normal(size=50), grades) for _ in "ab")
        rejected.append(a.against(b, draws=100)["pearson"].p < 0.1)
    assert 0.02 <= np.mean(rejected) <= 0.19
    good, bad = Agreement(grades, grades), Agreement(generator.normal(size=50), grades)
    assert good.against(bad)["spearman"].real and not good.against(good)["spearman"].real


def test_verdicts() -> None:
    generator = np.random.default_rng(0)
    hard = generator.uniform(0.2, 0.7, 200)
    better = compare({"m": hard + generator.uniform(0, 0.1, 200)}, {"m": hard})["m"]
    assert better.real and better.p < 0.001
    assert better.sentence("A", "B", "m").startswith("A is better than B in m by 0.05")
    assert (
        compare({"m": hard}, {"m": hard + 0.1})["m"]
        .sentence("A", "B", "m")
        .startswith("A is worse than B in m by 0.1")
    )
    same = compare({"m": hard}, {"m": generator.permutation(hard)})["m"]
    assert not same.real and "are not shown to differ in m" in same.sentence("A", "B", "m")
    narrow = Comparison(Difference(1, 0.1, 2, 0.95), 0.06, 9)
    assert not narrow.real and narrow.sentence("A", "B", "m").endswith(
        "9 queries; a verdict also needs p < 0.05)"
    )
    assert "also needs" not in same.sentence("A", "B", "m")
    assert not Comparison(Difference(1, -0.1, 2, 0.95), 0.01, 9).real


def test_the_command(
    models: tuple[Path, Path], beir: Path, tmp_path: Path, tempera: Callable[..., Any]
) -> None:
    scores = tmp_path / "scores.parquet"
    answer = tempera(
        "evaluate", models[0], beir, "--against", models[1], "--bm25", "--metrics", "ndcg,mrr@5", "-k", "1,10",
        "--per-query", scores, "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    (task,) = answer.document["tasks"]
    a, b = (str(model) for model in models)
    assert list(task["systems"]) == [a, b, "bm25", f"{a} + BM25"] and list(task["systems"][a]) == [
        "ndcg@1",
        "ndcg@10",
        "mrr@5",
    ]
    assert list(task["comparisons"]) == [b, "bm25", f"{a} + BM25"] and len(task["verdicts"]) == 9
    table = parquet.read_table(scores).to_pydict()
    assert len(table["value"]) == 4 * 3 * 10 and list(table) == [
        "task",
        "query",
        "system",
        "metric",
        "value",
    ]
    for system, metrics in task["systems"].items():
        for metric, found in metrics.items():
            rows = [
                v
                for v, s, m in zip(table["value"], table["system"], table["metric"])
                if (s, m) == (system, metric)
            ]
            assert (
                np.mean(rows) == pytest.approx(found["mean"])
                and found["low"] <= found["mean"] <= found["high"]
            )
    assert task["bm25"] == {"k1": 1.5, "b": 0.75, "stem": False, "tuned": False}
    of_table = tempera("evaluate", models[0], beir).out.splitlines()[0]
    assert "queries, " in of_table and " judgements" in of_table and "not name" not in of_table
    told = "\nbm25: k1 1.5, b 0.75, words as they are, untuned; a run tunes its own\n"
    assert told in tempera("evaluate", models[0], beir, "--bm25").out
    alone = tempera("evaluate", models[0], beir, "--json").document["tasks"][0]
    assert alone["bm25"] is None and "bm25" not in tempera("evaluate", models[0], beir).out
    again = tempera("evaluate", models[0], beir, "--per-query", scores)
    assert again.code == 2 and f"{scores} exists; give another file, or --overwrite" in again.err
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("query,positive\na,b\n")
    itself = tempera("evaluate", models[0], pairs, "--per-query", pairs, "--overwrite")
    assert itself.code == 2 and "is read by this command and is never replaced by it" in itself.err
    assert pairs.read_text() == "query,positive\na,b\n"
    run = tmp_path / "run"  # a run is judged by the model it holds
    shutil.copytree(models[0], run / "model")
    shown = tempera("evaluate", run, beir, "--metrics", "hit", "-k", "1")
    assert shown.code == 0 and "hit@1" in shown.out


def test_a_run_is_not_compared_with_its_model(
    models: tuple[Path, Path], beir: Path, tmp_path: Path
) -> None:
    shutil.copytree(models[0], tmp_path / "around" / "model")
    with pytest.raises(ConfigError, match=r"cannot compare .* with itself"):
        evaluate(tmp_path / "around" / "model", beir, against=tmp_path / "around")


def test_what_is_wrong_is_one_line(models: tuple[Path, Path], beir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot compare .* with itself"):
        evaluate(models[0], beir, against=models[0] / ".." / "a")
    with pytest.raises(ConfigError, match="no metric 'ndcg10'; give one of"):
        evaluate(models[0], beir, metrics=["ndcg10"])
    with pytest.raises(ConfigError, match="evaluate: k is a list, each a whole number, not 5"):
        evaluate(models[0], beir, k=5)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"evaluate: metrics is a text or a list, each a text, not \[3\]"
    ):
        evaluate(models[0], beir, metrics=[3])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="no metric 'ndgc'"):
        evaluate(models[0], beir, metrics=["ndgc"])
    with pytest.raises(DataError, match="neither a saved model of texts nor a run"):
        evaluate(tmp_path, beir)
    with pytest.raises(DataError, match=r"holds no table: give tables"):
        evaluate(models[0], tmp_path)
    for rows in ([{"query": "list", "doc": "ls"}], []):
        with pytest.raises(
            DataError,
            match=r"^data 2 to evaluate on is a list; expected the path of a table .*: write rows",
        ):
            evaluate(models[0], beir, rows)  # type: ignore[arg-type]
    with pytest.raises(OutputError, match="ends in"):
        write_per_query(tmp_path / "scores.xls", [])
    assert not list(tmp_path.iterdir())
    assert resolved([], [5]) == ("ndcg@5", "mrr@5", "recall@5", "precision@5", "hit@5", "map@5")


def test_a_folder_of_tables_is_judged_as_one_table_and_a_run_is_none(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    rows = pa.table({"query": ["ka ban", "zu"], "doc": ["ban ka lo", "zu mi"]})
    (tmp_path / "shards").mkdir()
    for i in range(2):
        parquet.write_table(rows.slice(i, 1), tmp_path / "shards" / f"{i}.parquet")
    parquet.write_table(rows, tmp_path / "one.parquet")
    one, several = (
        evaluate(models[0], tmp_path / name)[0].json()["systems"]
        for name in ("one.parquet", "shards")
    )
    assert one == several
    for name in ("config.yaml", "metrics.json"):
        (tmp_path / "shards" / name).touch()
    with pytest.raises(DataError, match=r"shards is a run, not data: give a table"):
        evaluate(models[0], tmp_path / "shards")


def test_queries_that_a_run_was_trained_on_are_counted(
    tiny_run: Path, pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = [
        hashed
        for hashed in map(content_id, _queries(pairs_file))
        if hashed not in _trained(tiny_run)
    ]
    assert len(held_out) == 40
    (finding,) = evaluate(tiny_run, pairs_file, metrics=["ndcg@10"])
    (caution,) = finding.json()["cautions"]
    assert caution.startswith(
        f"{tiny_run} was trained on 260 of these 300 queries, so its scores here, and what compares them, are too good: give"
    )
    (finding,) = evaluate(tiny_run / "model", pairs_file, metrics=["ndcg@10"])
    assert "was trained on 260 of these 300 queries" in finding.json()["cautions"][0]
    task, titles, scores, said = repr(finding).splitlines()
    assert (task, titles.split()) == (finding.task.name, ["metric", str(tiny_run / "model")])
    assert scores.startswith("ndcg@10") and said == f"caution: {finding.cautions()[0]}"
    with monkeypatch.context() as patch:
        patch.chdir(tiny_run / "model")
        (finding,) = evaluate(".", pairs_file, metrics=["ndcg@10"])
    assert "was trained on 260 of these 300 queries" in finding.json()["cautions"][0]
    shutil.copytree(tiny_run / "model", tmp_path / "model")
    (finding,) = evaluate(
        tmp_path / "model", pairs_file, metrics=["ndcg@10"]
    )  # a model alone has no memory of it
    assert finding.json()["cautions"] == []
    other = tmp_path / "other.jsonl"
    other.write_text('{"query": "never seen", "doc": "a"}\n{"query": "nor this", "doc": "b"}\n')
    (finding,) = evaluate(tiny_run, other, metrics=["ndcg@10"])
    assert finding.json()["cautions"] == []


def test_documents_that_are_mostly_equal_are_cautioned_against(
    tiny_run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "equal.jsonl"
    rows = [{"query": f"ka {i}", "doc": "lo", "doc_id": f"d{i}"} for i in range(5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (by_content,) = evaluate(tiny_run, file, metrics=["ndcg@10"])
    assert by_content.cautions() == [] and len(by_content.task.corpus) == 1  # type: ignore[union-attr]
    (finding,) = evaluate(
        tiny_run, file, metrics=["ndcg@10"], roles=Roles(identical="keep", doc_id="doc_id")
    )
    assert finding.cautions() == [
        "5 of the 5 documents have the text of another (1 different text in all); equal ones are ranked by their ids, so "
        "that an answer may lose to its copy: leave copies out, or judge all of them"
    ]


@pytest.mark.parametrize(("copies", "cautioned"), [(2, False), (8, True)])
def test_some_equal_documents_are_cautioned_against(
    tiny_run: Path, tmp_path: Path, copies: int, cautioned: bool
) -> None:
    """More than one in twenty, and not only most of them."""
    file = tmp_path / "some.jsonl"
    docs = ["lo"] * copies + [f"lo {i}" for i in range(60 - copies)]
    rows = [{"query": f"ka {i}", "doc": doc, "doc_id": f"d{i}"} for i, doc in enumerate(docs)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    roles = Roles(identical="keep", doc_id="doc_id")
    (finding,) = evaluate(tiny_run, file, metrics=["ndcg@10"], roles=roles)
    said = finding.cautions()
    assert bool(said) == cautioned and all("8 of the 60 documents have" in text for text in said)


def test_a_damaged_list_of_training_queries_is_one_line(
    tiny_run: Path, pairs_file: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run, ignore=UNCOMPARED)
    (run / "trained.npy").write_bytes(b"\x93NUMPY, or not")
    with pytest.raises(DataError, match=r"trained\.npy cannot be read"):
        evaluate(run, pairs_file)


def _queries(path: Path) -> list[str]:
    return [json.loads(line)["query"] for line in path.read_text().splitlines()]


def _trained(run: Path) -> set[int]:
    return set(np.load(run / "trained.npy").tolist())


@pytest.mark.parametrize(
    ("wanted", "fast", "half"),
    [("no", True, False), ("auto", False, False), ("auto", True, True), ("bf16", False, True)],
)
def test_texts_are_read_in_bf16_where_that_is_asked_for_and_fast(
    wanted: Any,
    fast: bool,
    half: bool,
    models: tuple[Path, Path],
    beir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tempera.engine import devices
    from tempera.mining import embed

    asked, load = [], embed.load
    monkeypatch.setattr(devices, "bf16_gain", lambda device: devices.WORTH * (2 if fast else 0.5))
    monkeypatch.setattr(embed, "load", lambda *given: asked.append(given[2:]) or load(*given))
    evaluate(models[0], beir, against=models[1], mixed_precision=wanted)
    assert asked == [(half, "cpu")] * 4


def test_precisions_in_which_no_texts_are_read_are_refused(
    models: tuple[Path, Path], beir: Path
) -> None:
    with pytest.raises(
        ConfigError,
        match="mixed_precision is 'fp16', in which no texts are read: give no, auto or bf16",
    ):
        evaluate(models[0], beir, mixed_precision="fp16")  # type: ignore[arg-type]


def test_a_graded_pair_has_one_text_on_each_side(tmp_path: Path) -> None:
    rows = {"sentence1": [["a"], ["a", "b"]], "sentence2": [["b", "c"], ["a"]], "score": [1.0, 2.0]}
    parquet.write_table(pa.table(rows), tmp_path / "lists.parquet")
    with pytest.raises(
        DataError, match=r"lists.parquet, row 2: column 'sentence1' does not hold one text"
    ):
        read_task(tmp_path / "lists.parquet")
