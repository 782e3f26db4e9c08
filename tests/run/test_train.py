"""Small real runs, through `tempera.run.train.train`."""

from __future__ import annotations

import copy
import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
import yaml

from tempera.arithmetic.ragged import Ragged
from tempera.artifacts.run_folder import Run
from tempera.core.batch import Batch, Side
from tempera.core.objective import Objective
from tempera.core.temperature import Temperature
from tempera.engine import loop
from tempera.engine.optim import adam, schedule_factor
from tempera.engine.training_options import Training
from tempera.errors import ConfigError, DataError, OutputError, TemperaError
from tempera.options.build import build
from tempera.options.yaml_options import load
from tempera.ranking.fusion import standardised
from tempera.run.train import train
from tempera.text.judge.lexical import Lexical, Settings
from tempera.towers.pair import Towers
from tempera.towers.saved import load as load_model
from tempera.towers.stamp import beside
from tempera.towers.static import StaticTower

# A copy whose files may be changed, as of an earlier version: without their checksums.
UNCOMPARED = shutil.ignore_patterns("tempera-manifest.json")

STEPS = 54  # 6 epochs of 9 batches of at most 32 in 260 pairs


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def log_of(run: Run, event: str) -> list[dict[str, Any]]:
    """The log's records of one kind."""
    records = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    return [record for record in records if record["event"] == event]


def test_cautions_know_the_precision_of_a_run_and_whether_its_vectors_have_length_1(
    options: dict[str, Any], tiny_run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers")

    def said(name: str, *overrides: str) -> list[str]:
        run = train(options, tmp_path / name, ["train.max_steps=1", *overrides])
        return [
            record["text"] for record in log_of(run, "caution") if "temperature" in record["text"]
        ]

    low = "objective.temperature=0.005"
    assert said("whole", low) == []
    (caution,) = said("half", low, "train.mixed_precision=bf16")
    assert caution.startswith("temperature 0.005 is below what bfloat16 embeddings hold")
    (caution,) = said("unbounded", "objective.similarity=dot")
    assert "on embeddings that are not normalised" in caution
    options["tower"] = {
        "kind": "pretrained",
        "model": str(tiny_run / "model"),
    }  # which ends in a normalisation
    assert said("unit", "objective.similarity=dot") == []


def test_a_run_leaves_one_folder_and_nothing_beside_it(tiny_run: Path) -> None:
    names = {str(path.relative_to(tiny_run)) for path in tiny_run.rglob("*") if path.is_file()}
    top = {
        "config.yaml",
        "metrics.json",
        "log.jsonl",
        "report.html",
        "objective.safetensors",
        "trained.npy",
    }
    top |= {"words.parquet", "tempera-manifest.json"}
    model = {
        "model/modules.json",
        "model/model.safetensors",
        "model/tokenizer.json",
        "model/1_Normalize/config.json",
    }
    index = {"index/vectors.npy", "index/documents.arrow"}
    assert top | model | index <= names
    assert {path.name for path in tiny_run.iterdir()} == {*top, "model", "index"}
    assert [path.name for path in tiny_run.parent.iterdir()] == [tiny_run.name]


def test_the_configuration_of_a_run_is_whole_and_makes_it_again(
    tiny_run: Path, tiny_run_options: dict[str, Any]
) -> None:
    written = yaml.safe_load((tiny_run / "config.yaml").read_text())
    assert build(load(tiny_run / "config.yaml")).resolved == written
    for section, given in tiny_run_options.items():
        assert given.items() <= written[section].items()


def test_metrics_json(tiny_run: Path) -> None:
    document = json.loads((tiny_run / "metrics.json").read_text())
    assert list(document["metrics"]) == ["untrained", "bm25", "trained", "trained + BM25"]
    assert document["hybrid"] == {"weight": 0.3, "queries": 0}  # without validation the usual one
    assert document["bytes"]["words.parquet"] == (tiny_run / "words.parquet").stat().st_size
    for metrics in document["metrics"].values():
        assert list(metrics) == ["ndcg@10", "mrr@10", "recall@1", "recall@10", "recall@100"]
        assert all(0 <= value <= 1 for value in metrics.values())
        assert metrics["recall@1"] <= metrics["recall@10"] <= metrics["recall@100"]
    assert document["data"] == {
        "pairs": 300,
        "dropped": {},
        "train": 260,
        "validation": 0,
        "queries": 40,
        "corpus": 300,
    }
    assert set(document["seconds"]) == {"read", "tokenise", "train", "evaluate", "publish"}
    assert document["seconds"]["train"]["cpu"] > 0 and all(
        0 <= spent < 100 for each in document["seconds"].values() for spent in each.values()
    )
    assert 50 * 2**20 < document["peak_memory_bytes"] < 8 * 2**30
    pairs = [("trained", "untrained"), ("trained", "bm25")]
    pairs += [("trained + BM25", other) for other in ("bm25", "trained")]
    assert list(document["difference"]) == [f"{ours} - {theirs}" for ours, theirs in pairs]
    for ours, theirs in pairs:
        for metric, found in document["difference"][f"{ours} - {theirs}"].items():
            means = document["metrics"]
            assert found["mean"] == pytest.approx(
                means[ours][metric] - means[theirs][metric], abs=1e-9
            )
            assert found["low"] <= found["mean"] <= found["high"]
    assert Run(tiny_run).results == document
    assert Run(tiny_run).metrics == document["metrics"]


def test_log_jsonl(tiny_run: Path) -> None:
    run = Run(tiny_run)
    steps = log_of(run, "step")
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
    assert {record["steps"] for record in steps} == {STEPS}
    for record in steps:
        assert {"loss", "temperature", "learning_rate", "grad_norm", "seconds"} <= set(record)
        assert record["loss"] >= 0 and record["grad_norm"] >= 0 and record["seconds"] > 0
        assert record["temperature"] == pytest.approx(0.05)
    assert steps[0]["loss"] > 4 * steps[-1]["loss"]
    assert max(record["learning_rate"] for record in steps) == pytest.approx(0.03)
    evaluations = {record["step"]: record["metrics"] for record in log_of(run, "evaluation")}
    assert list(evaluations) == [0, STEPS // 2, STEPS]
    assert evaluations[0] == run.metrics["untrained"]
    assert evaluations[STEPS] == run.metrics["trained"]


def test_report_html(tiny_run: Path) -> None:
    text = (tiny_run / "report.html").read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html") and text.rstrip().endswith("</html>")
    assert "num_train_epochs" in text


def test_training_finds_what_was_planted(tiny_run: Path) -> None:
    """Three words of every query stand in its document, which an untrained sum of tokens finds half
    the time."""
    metrics = Run(tiny_run).metrics
    assert metrics["trained"]["ndcg@10"] > 0.9 > metrics["untrained"]["ndcg@10"] + 0.1
    document = Run(tiny_run).results
    assert document["difference"]["trained - untrained"]["ndcg@10"]["low"] > 0
    assert document["spread"]["trained"]["auc"] > document["spread"]["untrained"]["auc"]


def test_the_index_holds_every_document_with_its_place(tiny_run: Path, pairs_file: Path) -> None:
    rows = [json.loads(line) for line in pairs_file.read_text().splitlines()]
    index = Run(tiny_run).index
    assert index.vectors.shape == (300, 16)
    assert np.linalg.norm(index.vectors, axis=1) == pytest.approx(np.ones(300), abs=1e-6)
    for found in index.documents.to_pylist():
        row = rows[int(found["place"].rpartition(" ")[2]) - 1]
        assert row["doc"] == found["text"]
    assert len(set(index.documents["id"].to_pylist())) == 300


def test_search_finds_the_document_of_its_words_first(tiny_run: Path, pairs_file: Path) -> None:
    rows = [json.loads(line) for line in pairs_file.read_text().splitlines()]
    run = Run(tiny_run)
    for line in (0, 100, 299):
        found = run.search(rows[line]["doc"], k=3)
        assert [hit.rank for hit in found] == [1, 2, 3]
        assert found[0].place == f"{pairs_file} row {line + 1}"
        assert found[0].score == pytest.approx(1, abs=1e-6)
        assert found[0].score >= found[1].score >= found[2].score
    assert len(run.search("kaban", k=1000)) == 300


def test_sentence_transformers_opens_the_model_and_finds_the_same(tiny_run: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(tiny_run / "model"), device="cpu", local_files_only=True)
    run = Run(tiny_run)
    texts = ["kaban micel", "the NU_BAN of toFar", "", run.index.documents["text"][7].as_py()]
    theirs = model.encode(texts, show_progress_bar=False)
    assert np.abs(theirs - run.encode(texts)).max() < 1e-6
    assert int((theirs[3] @ run.index.vectors.T).argmax()) == 7


def test_the_same_seed_gives_the_same_run(
    tiny_run: Path, tiny_run_options: dict[str, Any], tmp_path: Path
) -> None:
    again = train(tiny_run_options, tmp_path / "again")
    assert again.metrics == Run(tiny_run).metrics
    assert tree(again.folder / "model") == tree(tiny_run / "model")
    assert tree(again.folder / "index") == tree(tiny_run / "index")
    mine, theirs = ([r["loss"] for r in log_of(run, "step")] for run in (again, Run(tiny_run)))
    assert mine == theirs


def test_another_seed_gives_another_run(
    tiny_run: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    other = train(options, tmp_path / "other", ["train.seed=1", "train.max_steps=5"])
    assert [r["loss"] for r in log_of(other, "step")] != [
        r["loss"] for r in log_of(Run(tiny_run), "step")[:5]
    ]


def test_a_learnable_temperature_moves_within_its_bounds(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """The planted pairs are easy, so the gradient lowers the temperature, down to the floor."""
    options["objective"] = {
        "temperature": {"value": 0.06, "learnable": True, "floor": 0.05, "ceiling": 0.07}
    }
    run = train(options, tmp_path / "run", ["train.temperature_learning_rate=0.05"])
    dial = [record["temperature"] for record in log_of(run, "step")]
    assert len(dial) == STEPS and len(set(dial)) > 5
    assert dial[0] != 0.06 and dial[-1] < 0.06
    slack = math.exp(
        0.05
    )  # what is logged is the value after the step, which the next step sets back to the bound
    assert all(0.05 / slack <= t <= 0.07 * slack for t in dial)
    resolved = yaml.safe_load((run.folder / "config.yaml").read_text())["objective"]["temperature"]
    assert resolved["learnable"] is True
    assert build(load(run.folder / "config.yaml")).resolved["objective"]["temperature"] == resolved


def test_the_configuration_of_a_learnable_run_starts_where_that_run_started(
    options, tmp_path: Path
) -> None:
    options["objective"] = {"temperature": {"value": 0.06, "learnable": True}}
    run = train(options, tmp_path / "run", ["train.max_steps=5"])
    assert log_of(run, "step")[-1]["temperature"] != 0.06
    assert (
        yaml.safe_load((run.folder / "config.yaml").read_text())["objective"]["temperature"][
            "value"
        ]
        == 0.06
    )


def test_the_card_says_what_it_is_told(options: dict[str, Any], tmp_path: Path) -> None:
    options["card"] = {
        "title": "Kaban",
        "license": "apache-2.0",
        "data_license": "cc-by-4.0",
        "language": "en",
    }
    options["train"]["max_steps"] = 1
    text = (train(options, tmp_path / "run").folder / "model" / "README.md").read_text()
    assert 'license: "apache-2.0"' in text and 'language: "en"' in text and "\n# Kaban\n" in text
    assert r"- training data: cc\-by\-4.0" in text


def test_every_document_is_read_once_when_training_is_over(
    options: dict[str, Any], pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [json.loads(line) for line in pairs_file.read_text().splitlines()]
    for i, row in enumerate(rows):
        row["negatives"] = [f"nothing {i % 50}"]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options["data"]["path"] = str(file)
    read: list[int] = []
    encode = StaticTower.encode

    def counted(self: StaticTower, features: Ragged, role: Any = "doc") -> torch.Tensor:
        read.append(len(features) if role == "doc" else 0)
        return encode(self, features, role)

    monkeypatch.setattr(StaticTower, "encode", counted)
    options["train"] |= {"max_steps": 2, "evaluations": 0}
    run = train(options, tmp_path / "run")
    before = 300 + 1  # ranked by the untrained tower; one for the width
    assert sum(read) == before + 350  # which the examples in the report are among
    texts = run.index.documents["text"].to_pylist()
    np.testing.assert_allclose(
        run.index.vectors, load_model(run.folder / "model", "doc")(texts), atol=1e-6
    )


def test_max_steps_and_no_bm25_and_fewer_metrics(options: dict[str, Any], tmp_path: Path) -> None:
    given = copy.deepcopy(options)
    overrides = [
        "train.max_steps=3",
        "train.evaluations=0",
        "evaluation.bm25=false",
        "evaluation.metrics=[mrr@5]",
    ]
    run = train(options, tmp_path / "run", overrides)
    assert options == given
    assert [record["step"] for record in log_of(run, "step")] == [1, 2, 3]
    assert [record["step"] for record in log_of(run, "evaluation")] == [0, 3]
    assert list(run.metrics) == ["untrained", "trained"]
    assert list(run.metrics["trained"]) == ["mrr@5"]
    assert (run.folder / "report.html").exists()


def test_max_steps_may_be_more_than_the_epochs(options: dict[str, Any], tmp_path: Path) -> None:
    run = train(options, tmp_path / "run", ["train.num_train_epochs=0.25", "train.max_steps=10"])
    assert len(log_of(run, "step")) == 10


def test_a_run_from_a_file_and_overrides_reads_python_files(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    subjects = [
        "date",
        "path",
        "color",
        "price",
        "matrix",
        "socket",
        "cookie",
        "header",
        "vector",
        "thread",
    ]
    for verb in ("parse", "format", "load", "merge", "check", "count"):
        functions = [
            f'def {verb}_{subject}(value):\n    """{verb} the {subject} of a value."""\n    return {verb}({subject}, value)\n'
            for subject in subjects
        ]
        (source / f"{verb}s.py").write_text("\n".join(functions))
    (source / "broken.py").write_text('def f(:\n    "not python"\n')
    (tmp_path / "run.yaml").write_text(
        f"data:\n  roots: [{source}]\ntower: {{dimensions: 16, vocabulary: 200}}\n"
        "train: {batch_size: 16, max_steps: 40}\nevaluation: {queries: 10, bm25: false}\n"
    )
    run = train(tmp_path / "run.yaml", tmp_path / "run", ["train.max_steps=50"])
    assert run.results["data"]["pairs"] == 60
    assert len(log_of(run, "step")) == 50
    best = run.search("parse the cookie")[0]
    assert best.name == "parses.parse_cookie"
    line = int(best.place.rpartition(":")[2])
    assert best.place == f"{source}/parses.py:{line}"
    assert (source / "parses.py").read_text().splitlines()[line - 1] == "def parse_cookie(value):"


@pytest.mark.parametrize(
    ("rate", "steps", "says"),
    [
        (
            "1e39",
            20,
            r"the loss of step \d+ is not finite: weights of .* from an earlier step: lower train\.learning_rate",
        ),
        ("1e39", 1, r"the embeddings of \w+ are not finite .* lower train\.learning_rate"),
    ],
)
def test_numbers_that_are_lost_end_the_run_in_one_line(
    options: dict[str, Any], tmp_path: Path, rate: str, steps: int, says: str
) -> None:
    overrides = [f"train.learning_rate={rate}", f"train.max_steps={steps}", "train.evaluations=0"]
    with pytest.raises(TemperaError, match=says) as caught:
        train(options, tmp_path / "run", overrides)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_larger_than_the_data(options: dict[str, Any], tmp_path: Path) -> None:
    says = r"^train\.batch_size is 261 and the data has 260 pairs to train on: give a batch_size of at most 260"
    with pytest.raises(ConfigError, match=says):
        train(options, tmp_path / "run", ["train.batch_size=261"])
    assert list(tmp_path.iterdir()) == []
    two = pa.table({"query": ["a a", "b b"], "doc": ["c c", "d d"]})
    with pytest.raises(
        ConfigError, match=r"the data has 1 pair to train on: in-batch negatives need at least 2"
    ):
        train({**options, "data": {}}, tmp_path / "run", data=two)
    full = train(options, tmp_path / "run", ["train.batch_size=260", "train.max_steps=1"])
    assert len(log_of(full, "step")) == 1


def test_wrong_options_leave_the_disk_alone(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.sed: no such option"):
        train(options, tmp_path / "deep" / "run", ["train.sed=1"])
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_replaced_only_when_asked_and_only_by_a_whole_one(
    options: dict[str, Any], tmp_path: Path
) -> None:
    quick = ["train.max_steps=1", "train.evaluations=0"]
    output = tmp_path / "run"
    output.mkdir()
    train(options, output, quick)  # an empty folder is no obstacle
    before = tree(output)
    with pytest.raises(
        OutputError,
        match=r"holds an earlier result; give another folder, or --overwrite to replace it",
    ):
        train(options, output, quick)
    with pytest.raises(DataError, match="no such file"):
        train(options, output, [*quick, "data.path=/nowhere.jsonl"], overwrite=True)
    with pytest.raises(TemperaError):
        train(options, output, [*quick, "train.learning_rate=1e39"], overwrite=True)
    assert tree(output) == before
    train(options, output, [*quick, "train.seed=5"], overwrite=True)
    after = tree(output)
    assert after["model/model.safetensors"] != before["model/model.safetensors"]
    assert set(after) == set(before)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_files_that_are_no_run_are_never_replaced(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="holds files that are not a run of Tempera"):
            train(options, tmp_path, overwrite=overwrite)
    assert tree(tmp_path) == {"thesis.txt": b"years of work"}


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^no such run: .*/none$"):
        Run(tmp_path / "none")
    with pytest.raises(DataError, match=r"is not a finished run: metrics\.json is missing"):
        _ = Run(tmp_path).results
    (tmp_path / "metrics.json").write_text("{")
    with pytest.raises(DataError, match=r"metrics\.json is not JSON"):
        _ = Run(tmp_path).results
    with pytest.raises(DataError, match=r"is not (an index|a saved model): .* is missing$"):
        Run(tmp_path).search("anything")


def test_a_hybrid_search_ranks_by_weighted_standard_scores_of_words_and_vectors(
    tiny_run: Path,
) -> None:
    run, query = Run(tiny_run), "kaban micel tofar"
    words = (
        Lexical(run.index.documents["text"].to_pylist())
        .index(Settings(**run.results["bm25"]))
        .scores([query])
    )
    vectors = np.asarray(run.index.vectors @ run.encode([query])[0])[None]
    scores = 0.3 * standardised(vectors)[0] + 0.7 * standardised(words)[0]
    order = np.argsort(-scores, kind="stable")
    ids = run.index.documents["id"].to_pylist()
    hits = run.search(query, k=1000, hybrid=True)
    assert [hit.id for hit in hits] == [ids[i] for i in order]
    assert [hit.score for hit in hits] == pytest.approx(scores[order].tolist())
    assert [hit.id for hit in run.search(query, k=7, hybrid=True)] == [hit.id for hit in hits[:7]]
    with pytest.raises(DataError, match="a threshold is for similarities"):
        run.search(query, threshold=0.5, hybrid=True)


def test_a_run_without_its_words_or_with_damaged_ones(
    tiny_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Path(shutil.copytree(tiny_run, tmp_path / "run", ignore=UNCOMPARED))
    words, document = place / "words.parquet", json.loads((place / "metrics.json").read_text())
    document["hybrid"]["weight"] = 0.0
    (place / "metrics.json").write_text(json.dumps(document))
    whole = [hit.id for hit in Run(place).search("kaban micel", k=3, hybrid=True)]
    content = bytearray(words.read_bytes())
    content[len(content) // 2] ^= 1
    words.write_bytes(content)
    with pytest.raises(DataError, match=r"words\.parquet is damaged"):
        Run(place).search("kaban", hybrid=True)
    parquet.write_table(parquet.read_table(tiny_run / "words.parquet"), words)
    assert [hit.id for hit in Run(place).search("kaban micel", k=3, hybrid=True)] == whole
    parquet.write_table(beside(parquet.read_table(words), "other"), words)
    with pytest.raises(
        DataError, match=r"words\.parquet is of another run: it belongs to the model other"
    ):
        Run(place).search("kaban", hybrid=True)
    words.unlink()
    with caplog.at_level("INFO", "tempera"):
        assert {hit.id for hit in Run(place).search("kaban micel", k=3, hybrid=True)} & set(whole)
    assert "the beginning of each document is indexed instead" in caplog.text
    for wrong in (7, "much"):
        document["hybrid"]["weight"] = wrong
        (place / "metrics.json").write_text(json.dumps(document))
        with pytest.raises(DataError, match=r"metrics\.json"):
            Run(place).search("kaban", hybrid=True)


def test_the_weight_is_chosen_on_validation_queries(
    options: dict[str, Any], tmp_path: Path
) -> None:
    options["evaluation"] |= {"bm25": True, "validation": 60}
    run = train(options, tmp_path / "run", ["train.max_steps=1", "train.evaluations=0"])
    chosen = run.results["hybrid"]
    assert (
        chosen["queries"] == 60 and chosen["weight"] <= 0.2
    )  # an untrained tower knows less than the words do
    assert run.metrics["trained + BM25"]["ndcg@10"] >= run.metrics["bm25"]["ndcg@10"] - 0.05


def test_searches_that_ask_nothing(tiny_run: Path) -> None:
    for query in ("", "  \n"):
        with pytest.raises(DataError, match="the query is empty"):
            Run(tiny_run).search(query)
    for k in (0, -1):
        with pytest.raises(DataError, match=f"k is {k}; expected at least 1"):
            Run(tiny_run).search("kaban", k)
    for other in ("3", None, 2.5, True):
        with pytest.raises(
            DataError, match=f"k is {other!r}; expected a whole number of at least 1"
        ):
            Run(tiny_run).search("kaban", other)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="search: query is a text or a list, not 5"):
        Run(tiny_run).search(5)  # type: ignore[arg-type]
    assert len(Run(tiny_run).search("\udcff kaban", 2)) == 2


def test_what_is_no_list_of_texts_is_not_embedded(tiny_run: Path) -> None:
    assert np.array_equal(
        Run(tiny_run).encode(text for text in ["kaban", "b"]), Run(tiny_run).encode(["kaban", "b"])
    )  # type: ignore[arg-type]
    with pytest.raises(DataError, match="None is no list of texts"):
        Run(tiny_run).encode(None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'kaban' is one text; expected a list of texts"):
        Run(tiny_run).encode("kaban")
    np.testing.assert_array_equal(
        Run(tiny_run).encode(["\ud800 kaban"]), Run(tiny_run).encode(["? kaban"])
    )
    with pytest.raises(DataError, match="text 2 is None; expected a str"):
        Run(tiny_run).encode(["kaban", None])  # type: ignore[list-item]


def test_the_temperature_has_its_own_rate_and_no_decay() -> None:
    modules = torch.nn.ModuleDict(
        {
            "tower": torch.nn.Linear(2, 2),
            "objective": Objective(temperature=Temperature(0.1, learnable=True)),
        }
    )
    groups = adam(modules, 0.5, 0.01, 0.3).param_groups
    assert [(group["lr"], group["weight_decay"], len(group["params"])) for group in groups] == [
        (0.5, 0.3, 2),
        (0.01, 0.0, 1),
    ]
    modules["objective"] = Objective(temperature=0.1)
    assert [len(group["params"]) for group in adam(modules, 0.5, 0.01, 0.3).param_groups] == [2]


class Bag(torch.nn.Module):
    """A tower of six token vectors."""

    padded, unit = False, False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag = torch.nn.EmbeddingBag(6, 4, mode="mean")

    def forward(self, features: Ragged) -> torch.Tensor:
        vectors: torch.Tensor = self.bag(features.values, features.offsets[:-1])
        return vectors


def moved(steps: int, **options: Any) -> tuple[list[float], list[float], list[loop.Progress]]:
    """The largest change of a weight and the change of log(1/t) in each step on one small batch,
    and the progress."""
    tower, objective = Bag(), Objective(temperature=Temperature(0.2, learnable=True))
    batch = Batch(Side(Ragged.of([[0, 1], [2], [1, 3]])), Side(Ragged.of([[1, 4], [3], [5]])))
    weight, dial = tower.bag.weight, objective.temperature.log_scale
    found, weights, dials = [], [weight.detach().clone()], [float(dial.detach())]
    state = loop.begin(Towers(tower), objective, Training(**options))
    for progress in loop.train(state, [batch] * steps, steps, Training(**options)):
        found.append(progress)
        weights.append(weight.detach().clone())
        dials.append(float(dial.detach()))
    changes = [float((b - a).abs().max()) for a, b in itertools.pairwise(weights)]
    return changes, [abs(b - a) for a, b in itertools.pairwise(dials)], found


def test_a_step_moves_weights_and_temperature_by_their_rates() -> None:
    """Adam's first step is the rate itself, whatever the size of the gradient."""
    weights, dials, progress = moved(
        4, learning_rate=0.02, temperature_learning_rate=0.003, warmup_ratio=0.5
    )
    assert (weights[0], dials[0]) == (
        pytest.approx(0.01, rel=1e-3),
        pytest.approx(0.0015, rel=1e-3),
    )
    assert [p.learning_rate for p in progress] == pytest.approx([0.01, 0.02, 0.02, 0.01])
    assert weights[3] < 0.75 * weights[2]
    assert progress[-1].loss < progress[0].loss
    assert progress[0].temperature != progress[1].temperature != 0.2


def test_no_gradient_is_left_for_the_next_step() -> None:
    norms = [p.grad_norm for p in moved(4, learning_rate=1e-9, temperature_learning_rate=1e-9)[2]]
    assert norms == pytest.approx(norms[:1] * 4, rel=1e-4)


def test_gradients_are_scaled_down_to_the_norm_asked_for() -> None:
    free, _, plain = moved(1, warmup_ratio=0.0)
    held, _, clipped = moved(1, warmup_ratio=0.0, max_grad_norm=1e-10)
    assert (
        clipped[0].grad_norm == plain[0].grad_norm > 1e-3
    )  # the norm that is reported is the one before
    assert held[0] < free[0] / 20  # Adam divides by the gradient's size plus 1e-8


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.25, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_the_rate_rises_then_falls_and_never_leaves_its_range(
    schedule: Any, warmup: float, steps: int
) -> None:
    shares = [schedule_factor(step, steps, warmup, schedule) for step in range(steps)]
    rising = math.ceil(steps * warmup)
    assert all(0 < share <= 1 for share in shares)
    assert shares[: rising + 1] == sorted(shares[: rising + 1])
    assert shares[rising:] == sorted(shares[rising:], reverse=True)
    assert max(shares) == pytest.approx(1)


def test_how_many_steps_a_run_takes() -> None:
    assert Training(num_train_epochs=3).steps(10) == 30
    assert Training(num_train_epochs=0.25).steps(10) == 2
    assert Training(num_train_epochs=0.001).steps(10) == 1
    assert Training(num_train_epochs=3, max_steps=7).steps(10) == 7
