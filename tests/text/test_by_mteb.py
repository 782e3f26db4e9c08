"""Evaluations by MTEB's own package: its figures beside Tempera's, on the same sets, without a
network."""

from __future__ import annotations

import json
import random
import socket
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tempera as package
from tempera.artifacts.integrity import check
from tempera.errors import ConfigError, DataError, MissingLibrary, OutputError
from tempera.forms.roles import Roles
from tempera.io import require
from tempera.io.atomic import write_manifest
from tempera.mining.embedder import Model
from tempera.text.judge.by_mteb import evaluate_mteb
from tempera.text.judge.evaluate import evaluate
from tempera.text.judge.lexical import Lexical
from tempera.text.judge.mteb_models import MtebEncoder, MtebHybrid
from tempera.text.judge.mteb_tasks import made_task, read_retrieval, task_name
from tempera.towers.static import StaticTower
from tempera.towers.tokenizer import train_tokenizer

WORDS = [a + b for a in ("ba", "co", "du", "fi", "ge", "ho") for b in ("lam", "nor", "pit", "sun")]
DOCS = 80
QUERIES = 25
WEIGHT = 0.6  # of the vectors, as if the run had chosen it
# Names of Tempera's metrics, and of MTEB's scores.
SAME = {
    "ndcg@10": "ndcg_at_10",
    "ndcg@3": "ndcg_at_3",
    "mrr@10": "mrr_at_10",
    "map@100": "map_at_100",
    "recall@10": "recall_at_10",
    "precision@5": "precision_at_5",
    "hit@1": "hit_rate_at_1",
}
ROUNDED = 0.5e-5 + 1e-9  # MTEB rounds means to five digits


@pytest.fixture
def mteb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """MTEB's package, while nothing can be reached."""
    module = pytest.importorskip("mteb", reason="pip install 'tempera[mteb]'")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a network was looked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return module


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a run that are looked at: a static model, its marks, a weight."""
    folder = tmp_path_factory.mktemp("runs") / "words"
    tower = StaticTower(train_tokenizer([" ".join(WORDS)] * 3, 120, 16), 16)
    generator = np.random.default_rng(0)
    weight = generator.normal(size=tower.embedding.weight.shape)
    tower.embedding.weight.data = torch.from_numpy(weight).float()
    tower.save(folder / "model")
    (folder / "config.yaml").write_text("{}")
    (folder / "metrics.json").write_text(json.dumps({"hybrid": {"weight": WEIGHT}}))
    write_manifest(folder)
    return folder


def text(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))


def write_set(folder: Path, title: str = "a title", first: str = "doc") -> Path:
    """A retrieval set: documents of 9 to 14 words, titles on some, and grades from 0 to 3."""
    draw = random.Random(1)
    (folder / "qrels").mkdir(parents=True)
    docs = []
    for i in range(DOCS):
        row = {"_id": f"{first}{i}", "title": "", "text": text(draw, draw.randint(9, 14))}
        if i % 3 == 0:
            row["title"] = f"{title} {text(draw, 2)}"
        docs.append(row)
    queries = []
    judged = ["query-id\tcorpus-id\tscore"]
    for i in range(QUERIES):
        words = docs[i]["text"].split()[:3] + text(draw, 2).split()
        queries.append({"_id": f"query{i}", "text": " ".join(words)})
        for doc in draw.sample(range(DOCS), 6):
            judged.append(f"query{i}\t{first}{doc}\t{draw.randint(0, 3)}")
        judged.append(f"query{i}\t{first}{i}\t1")
    for name, rows in (("corpus", docs), ("queries", queries)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    (folder / "qrels" / "test.tsv").write_text("\n".join(dict.fromkeys(judged)) + "\n")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("sets") / "made")


def refuse_other_figures(judged: Any, own: Any) -> None:
    """Raise AssertionError unless MTEB's scores are the means of Tempera's."""
    scores = judged.scores["test"]["default"]
    for ours, theirs in SAME.items():
        mean = statistics.fmean(own.per_query[ours])
        assert 0 < mean < 1, ours
        assert abs(scores[theirs] - mean) < ROUNDED, (ours, scores[theirs], mean)
    assert scores["main_score"] == scores["ndcg_at_10"]


def systems_of(run: Path, data: Path, roles: Roles | None = None) -> list[Any]:
    """The scores by vectors, by words, and by both."""
    (finding,) = evaluate(run, data, bm25=True, metrics=list(SAME), roles=roles)
    return list(finding.systems.values())


@pytest.mark.usefixtures("mteb")
@pytest.mark.parametrize("hybrid", [False, True])
def test_figures_are_those_of_tempera(run: Path, made: Path, hybrid: bool, tmp_path: Path) -> None:
    by_vectors, _, by_both = systems_of(run, made)
    judged = evaluate_mteb(run, made, hybrid=hybrid, output=tmp_path)
    refuse_other_figures(judged, by_both if hybrid else by_vectors)
    assert by_both.per_query["ndcg@10"].tolist() != by_vectors.per_query["ndcg@10"].tolist()


@pytest.mark.usefixtures("mteb")
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_query_that_is_a_document_does_not_find_itself(
    run: Path, hybrid: bool, tmp_path: Path
) -> None:
    folder = write_set(tmp_path / "same", first="query")
    lines = (folder / "corpus.jsonl").read_text().splitlines()[:QUERIES]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")
    qrels = (folder / "qrels" / "test.tsv").read_text().splitlines()
    others = [line for line in qrels if len(set(line.split("\t")[:2])) == 2]
    (folder / "qrels" / "test.tsv").write_text("\n".join(others) + "\n")
    assert len(read_retrieval(folder, "test", None).itself) == QUERIES
    by_vectors, _, by_both = systems_of(run, folder)
    judged = evaluate_mteb(run, folder, hybrid=hybrid, output=tmp_path)
    refuse_other_figures(judged, by_both if hybrid else by_vectors)


@pytest.mark.usefixtures("mteb")
def test_a_table_of_pairs_with_roles(run: Path, tmp_path: Path) -> None:
    """Queries and documents are both numbered from 1: equal numbers are not the same text."""
    draw = random.Random(4)
    lines = ["asked,answered"]
    for _ in range(40):
        answer = text(draw, 8)
        lines.append(f"{' '.join(answer.split()[:2])} {text(draw, 3)},{answer}")
    path = tmp_path / "my faq.csv"
    path.write_text("\n".join(lines) + "\n")
    roles = Roles(query="asked", doc="answered")
    by_vectors, *_ = systems_of(run, path, roles)
    judged = evaluate_mteb(run, path, roles=roles, output=tmp_path / "results")
    refuse_other_figures(judged, by_vectors)
    assert judged.file.name == "my-faq.json"


@pytest.mark.usefixtures("mteb")
def test_the_layout_of_a_task(made: Path) -> None:
    rows = read_retrieval(made, "test", None)
    task = made_task(rows, made)
    assert task.metadata.name == "made" and task.metadata.main_score == "ndcg_at_10"
    assert list(task.dataset) == ["default"] and list(task.dataset["default"]) == ["test"]
    part = task.dataset["default"]["test"]
    texts = dict(zip(part["corpus"]["id"], part["corpus"]["text"]))
    grades: dict[str, dict[str, int]] = {}
    for line in (made / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, doc, grade = line.split("\t")
        if int(grade):
            known = grades.setdefault(query, {})
            known[doc] = max(int(grade), known.get(doc, 0))
    assert part["relevant_docs"] == grades
    for line in (made / "corpus.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert texts[row["_id"]] == f"{row['title']} {row['text']}".strip()
    assert sorted(part["queries"]["id"]) == sorted(f"query{i}" for i in range(QUERIES))


@pytest.mark.usefixtures("mteb")
def test_the_revision_of_a_task_is_that_of_its_content(made: Path, tmp_path: Path) -> None:
    def revision(folder: Path) -> str:
        return made_task(read_retrieval(folder, "test", None), folder).metadata.revision

    other = write_set(tmp_path / "other")
    assert revision(other) == revision(made)
    regraded = other / "qrels" / "test.tsv"
    regraded.write_text(regraded.read_text() + "query0\tdoc70\t2\n")
    assert revision(other) != revision(made)
    assert revision(write_set(tmp_path / "titled", title="another title")) != revision(made)


def test_a_result_is_where_mteb_looks_for_it(mteb: Any, run: Path, made: Path) -> None:
    judged = evaluate_mteb(run, made)
    place = run / "evaluations" / "mteb"
    assert judged.file.is_relative_to(place / "results" / "tempera__words")
    assert check(run).is_whole and not check(run).unknown
    with pytest.raises(OutputError, match="exists: give --overwrite"):
        evaluate_mteb(run, made)
    evaluate_mteb(run, made, overwrite=True)
    evaluate_mteb(run, made, hybrid=True)
    assert check(run).is_whole and not check(run).unknown
    results = mteb.ResultCache(place).load_results()
    scores = {}
    for each in results.model_results:
        (result,) = each.task_results
        scores[each.model_name] = result.get_score()
    assert scores.keys() == {"tempera/words", "tempera/words+bm25"}
    assert scores["tempera/words"] == judged.scores["test"]["default"]["main_score"]
    stored = json.loads(judged.file.read_text())
    assert stored["task_name"] == "made" and stored["mteb_version"] == mteb.__version__


def test_a_task_by_name(
    mteb: Any, run: Path, made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = made_task(read_retrieval(made, "test", None), made)
    asked = []

    def loaded(name: str) -> Any:
        asked.append(name)
        return task

    monkeypatch.setattr(mteb, "get_task", loaded)
    judged = evaluate_mteb(run, "SciFact", output=tmp_path)
    refuse_other_figures(judged, systems_of(run, made)[0])
    assert asked == ["SciFact"]

    def fail() -> None:
        raise OSError("Couldn't reach the hub\nwith a second line")

    monkeypatch.setattr(task, "load_data", fail)
    with pytest.raises(DataError) as error:
        evaluate_mteb(run, "SciFact", output=tmp_path, overwrite=True)
    assert str(error.value) == "MTEB cannot load SciFact: OSError: Couldn't reach the hub"


@pytest.mark.usefixtures("mteb")
@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        ("SciFat", {}, "no task of MTEB is called SciFat. Did you mean SciFact?"),
        ("none.csv", {}, "no file, no folder and no task of MTEB is called none.csv."),
        ("SciFact", {"split": "dev"}, "a split and roles are for a retrieval set or a table"),
        ("BIRCO-ArguAna", {"roles": Roles()}, "a split and roles are for a retrieval set"),
        ("CIFAR10", {}, "is a task of image"),
        ("CQADupstackRetrieval", {}, "is a group of tasks of MTEB: give one of CQADupstackAndroid"),
    ],
)
def test_names_that_cannot_be_evaluated(
    run: Path, task: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        evaluate_mteb(run, task, **options)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.usefixtures("mteb")
def test_data_that_make_no_task(run: Path, made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run with a place for results: say where"):
        evaluate_mteb(write_model(tmp_path / "model"), made)
    graded = tmp_path / "graded.csv"
    graded.write_text("sentence1,sentence2,score\nbalam,conor,0.5\ndupit,fisun,0.25\n")
    with pytest.raises(DataError, match="holds graded pairs of sentences"):
        evaluate_mteb(run, graded)
    halves = write_set(tmp_path / "halves")
    judged = halves / "qrels" / "test.tsv"
    judged.write_text(judged.read_text() + "query0\tdoc70\t1.5\n")
    with pytest.raises(DataError, match="a grade is no whole number"):
        evaluate_mteb(run, halves)


def write_model(folder: Path) -> Path:
    StaticTower(train_tokenizer([" ".join(WORDS)] * 3, 120, 16), 4).save(folder)
    return folder


class Sides:
    """Queries and documents have vectors of their own: the number of letters, plus 1 for documents;
    as if the sides had prefixes."""

    similarity = "dot"

    def query(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[len(text), 1.0] for text in texts], np.float32)

    def doc(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[len(text) + 1, 1.0] for text in texts], np.float32)


@pytest.mark.usefixtures("mteb")
def test_queries_and_documents_are_read_by_their_sides() -> None:
    from mteb.types import PromptType

    encoder = MtebEncoder(Sides(), None)
    batches = [{"text": ["a", "bcd"]}, {"text": ["ef"]}]
    queries = encoder.encode(batches, prompt_type=PromptType.query)
    assert queries[:, 0].tolist() == [1, 3, 2]
    docs = encoder.encode(batches, prompt_type=PromptType.document)
    assert docs[:, 0].tolist() == [2, 4, 3]
    assert encoder.encode(batches)[:, 0].tolist() == [2, 4, 3]
    assert encoder.similarity(queries, docs).tolist()[1] == [7, 13, 10]
    assert encoder.similarity_pairwise(queries, docs).tolist() == [3, 13, 7]


@pytest.mark.usefixtures("mteb")
@pytest.mark.parametrize("among", [None, ["doc3", "doc1", "doc40", "doc7"]])
def test_fused_scores_are_their_definition(run: Path, made: Path, among: list[str] | None) -> None:
    from mteb.abstasks.task_metadata import TaskMetadata

    task = made_task(read_retrieval(made, "test", None), made)
    about: TaskMetadata = task.metadata
    part = task.dataset["default"]["test"]
    model = Model(str(run))
    system = MtebHybrid(MtebEncoder(model, None), WEIGHT, None)
    system.index(part["corpus"], task_metadata=about)
    top_ranked = None if among is None else dict.fromkeys(part["queries"]["id"], among)
    found = system.search(part["queries"], task_metadata=about, top_k=5, top_ranked=top_ranked)
    texts = list(part["corpus"]["text"])
    docs = model.doc(texts).astype(np.float64)
    words = Lexical(texts).index()
    for query, asked in zip(part["queries"]["id"], part["queries"]["text"]):
        vector = model.query([asked])[0].astype(np.float64)
        both = np.zeros(len(texts))
        for scores, share in (
            (docs @ vector, WEIGHT),
            (words.scores([asked])[0].astype(np.float64), 1 - WEIGHT),
        ):
            both += share * (scores - scores.mean()) / scores.std()
        expected = dict(zip(part["corpus"]["id"], both.tolist()))
        ranked = sorted(among or expected, key=lambda name: -expected[name])[:5]
        assert list(found[query]) == ranked
        for name in ranked:
            assert found[query][name] == pytest.approx(expected[name], abs=1e-4)


@pytest.mark.parametrize(
    ("path", "split", "name"),
    [("a/b c (1).jsonl.gz", "test", "b-c-1"), ("x.csv", "dev", "x-dev"), ("a/..", "test", "")],
)
def test_the_name_of_a_made_task(path: str, split: str, name: str) -> None:
    assert task_name(Path(path), split) == (name or task_name(Path.cwd()))


def test_without_the_package_one_line_says_how_to_install_it(
    tempera: Any, run: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(require, "find_spec", lambda module: None if module == "mteb" else module)
    line = "an evaluation by MTEB needs mteb: pip install 'tempera[mteb]'"
    with pytest.raises(MissingLibrary) as error:
        package.evaluate_mteb(run, made)
    assert str(error.value) == line
    answer = tempera("evaluate", run, "--mteb", made)
    assert answer.code == 2 and answer.err == f"tempera: {line}\n"


@pytest.mark.usefixtures("mteb")
def test_the_command_line(tempera: Any, run: Path, made: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    asked = ("evaluate", run, "--mteb", made, "--hybrid", "--output", results)
    document = tempera(*asked, "--json").document
    assert document.keys() == {
        "model", "hybrid", "task", "mteb", "main_score", "scores", "output", "cautions",
    }  # fmt: skip
    assert document["hybrid"] is True and document["task"] == "made"
    assert Path(document["output"]).is_relative_to(results)
    score = document["scores"]["test"]["default"]["ndcg_at_10"]
    again = tempera(*asked, "--overwrite")
    assert f"{score:.4f}" in again.out and f"written: {document['output']}" in again.out
    refused = tempera(*asked)
    assert refused.code == 2 and "exists" in refused.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--mteb", "SciFact", "--bm25"], "--bm25 is for evaluations without --mteb"),
        (["--mteb", "SciFact", "-k", "3"], "--k is for evaluations without --mteb"),
        (["--mteb", "SciFact", "pairs.csv"], "give either pairs.csv or --mteb SciFact"),
        (["--hybrid"], "--hybrid is for evaluations by MTEB: add --mteb TASK"),
        (["--output", "x"], "--output is for evaluations by MTEB: add --mteb TASK"),
    ],
)
def test_flags_that_do_not_go_together(
    tempera: Any, run: Path, flags: list[str], says: str
) -> None:
    answer = tempera("evaluate", run, *flags)
    assert answer.code == 2 and says in answer.err
