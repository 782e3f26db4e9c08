"""Calibrating a run: what is judged, what is written, what a search does with it, and what is
refused."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest

import tempera
from tempera.artifacts.calibrated import Calibration, read_calibration, write_calibration
from tempera.artifacts.run_folder import Run
from tempera.corpus.index import write_index
from tempera.errors import ConfigError, DataError, OutputError
from tempera.finished.calibrate import calibrate
from tempera.finished.known_pairs import held_out, known_pairs
from tempera.forms.roles import Roles
from tempera.io.ids import content_ids, given_ids
from tempera.mining.embedder import Model
from tempera.ranking.probability import Isotonic
from tempera.towers.saved import TRAINED, load

# A copy whose files may be changed, as of an earlier version: without their checksums.
UNCOMPARED = shutil.ignore_patterns("tempera-manifest.json")


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of one's own, without pictures, which take most of the time."""
    monkeypatch.setattr(
        "tempera.finished.calibrate.draw_calibration", lambda *_: {"svg": b"", "png": b""}
    )
    return Path(shutil.copytree(tiny_run, tmp_path / "run", ignore=UNCOMPARED))


@pytest.fixture(scope="module")
def calibrated(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is calibrated by what it held out; look, do not touch."""
    folder = Path(shutil.copytree(tiny_run, tmp_path_factory.mktemp("runs") / "calibrated"))
    calibrate(folder, precision=[0.5, 0.999], recall=[0.9])
    return folder


def table(path: Path, run: Path, labels: bool = True) -> Path:
    """Held-out pairs, each query also with three documents of others."""
    pairs = held_out(run)
    queries, docs = pairs.texts("query"), pairs.texts("doc")
    rows = [
        (queries[i], docs[(i + far) % len(docs)], far == 0)
        for far in range(4)
        for i in range(len(docs))
    ]
    columns = {
        "query": [q for q, _, _ in rows],
        "doc": [d for _, d, _ in rows],
        "label": [int(x) for _, _, x in rows],
    }
    if not labels:
        columns = {
            name: values[: len(queries)] for name, values in columns.items() if name != "label"
        }
    parquet.write_table(pa.table(columns), path)
    return path


# ---- what is judged


def test_the_hits_of_what_a_run_held_out_are_those_of_its_search(calibrated: Path) -> None:
    found = read_calibration(calibrated / "model")
    run, pairs = Run(calibrated), held_out(calibrated)
    assert len(pairs) == run.results["data"]["queries"] == 40
    hits = [hit for query in pairs.texts("query") for hit in run.search(query)]
    answers = dict(zip(pairs.texts("query"), pairs.texts("doc")))
    right = sum(hit.preview == answers[q] for q in answers for hit in run.search(q))
    assert found.about == {
        "pairs": len(hits),
        "queries": 40,
        "relevant": right,
        "base_rate": right / len(hits),
        "depth": 10,
        "documents": 300,
        "found": right / 40,
        "left_out": {},
        "trained": 0,
    }


def test_pairs_in_a_table_are_asked_as_what_was_held_out_is(run: Path, tmp_path: Path) -> None:
    own = calibrate(run)
    given = calibrate(run, table(tmp_path / "pairs.parquet", run, labels=False))
    assert given.map == own.map and given.about == own.about and given.judged == own.judged
    deeper = calibrate(run, depth=20)
    assert deeper.about["pairs"] == 800 and deeper.about["base_rate"] < own.about["base_rate"]


def test_labelled_pairs_are_judged_by_their_own_similarity(run: Path, tmp_path: Path) -> None:
    path = table(tmp_path / "pairs.parquet", run)
    found = calibrate(run, path)
    assert (found.about["pairs"], found.about["relevant"], found.depth) == (160, 40, None)
    rows = parquet.read_table(path).to_pylist()
    encode = load(run / "model")
    scores = [float(encode([row["query"]])[0] @ encode([row["doc"]])[0]) for row in rows]
    judged = known_pairs(Model(str(run)), path, None, 10, "test").pairs
    assert judged.scores == pytest.approx(scores, abs=1e-6)
    p = found.probability(scores)
    right = np.array([row["label"] == 1 for row in rows])
    assert p[right].mean() > 0.5 > p[~right].mean()
    assert p.mean() == pytest.approx(0.25, abs=0.02)  # Platt's targets draw to the middle


@pytest.mark.parametrize("labels", [True, False])
def test_queries_that_the_run_was_trained_on_are_said(
    run: Path, tmp_path: Path, labels: bool
) -> None:
    path = table(tmp_path / "pairs.parquet", run, labels)
    assert "caution" not in str(calibrate(run, path))
    queries = parquet.read_table(path)["query"].unique()
    np.save(run / TRAINED, np.sort(content_ids(queries.slice(0, 7))))
    found = calibrate(run, path)
    assert found.about["trained"] == 7 and found.about["queries"] == 40
    assert "caution: the run was trained on 7 of these 40 queries" in str(found)


def test_grades_need_the_least_that_is_relevant(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "graded.parquet"
    rows = parquet.read_table(table(path, run))
    grades = [5 if label else i % 3 for i, label in enumerate(rows["label"].to_pylist())]
    parquet.write_table(rows.set_column(2, "score", pa.array(grades)), path)
    with pytest.raises(
        DataError, match=r"column 'score' holds grades from 0 to 5: give data\.min_score"
    ):
        calibrate(run, path)
    assert calibrate(run, path, Roles(identical="keep", min_score=3)).about["relevant"] == 40
    assert calibrate(run, path, Roles(identical="keep", min_score=2)).about["relevant"] > 40


def test_labels_may_be_words_of_a_column_of_any_name(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "judged.parquet"
    rows = parquet.read_table(table(path, run))
    words = ["relevant" if label else "irrelevant" for label in rows["label"].to_pylist()]
    parquet.write_table(rows.set_column(2, "verdict", pa.array(words)), path)
    roles = Roles(identical="keep", metadata=("*",))
    with pytest.raises(
        DataError, match=r"'verdict' holds .*: give data\.positive_labels=\[relevant\]"
    ):
        calibrate(run, path, roles)
    chosen = replace(roles, positive_labels=("relevant",))
    assert calibrate(run, path, chosen).about["relevant"] == 40


def test_a_model_alone_searches_the_documents_of_the_pairs(run: Path, tmp_path: Path) -> None:
    path = table(tmp_path / "pairs.parquet", run, labels=False)
    found = calibrate(run / "model", path)
    assert found.about["documents"] == 40 and (run / "model" / "calibration.json").is_file()


def test_a_beir_folder_is_searched_in_its_own_corpus(run: Path, tmp_path: Path) -> None:
    pairs, folder = held_out(run), tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    for name, role in (("queries", "query"), ("corpus", "doc")):
        rows = [{"_id": f"{name}{i}", "text": text} for i, text in enumerate(pairs.texts(role))]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judgements = [f"queries{i}\tcorpus{i}\t1" for i in range(40)]
    (folder / "qrels" / "test.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *judgements]) + "\n"
    )
    assert calibrate(run, folder).about["documents"] == 40
    with pytest.raises(ConfigError, match="is a BEIR folder"):
        calibrate(run, folder, Roles(query="title"))


def test_what_is_not_in_the_corpus_is_counted_and_without_any_the_pairs_are_searched(
    run: Path, tmp_path: Path
) -> None:
    path = table(tmp_path / "pairs.parquet", run, labels=False)
    rows = parquet.read_table(path).to_pylist()
    for row in rows[:5]:
        row["doc"] = f"{row['doc']} and more"
    rows.append({"query": rows[6]["query"], "doc": "known to nobody"})
    parquet.write_table(pa.Table.from_pylist(rows), path)
    found = calibrate(run, path)
    assert found.about["queries"] == 35 and found.about["left_out"] == {
        "answers that are not in the corpus": 6,
        "queries without an answer in the corpus": 5,
    }
    for row in rows:
        row["doc"] = f"{row['doc']} and more"
    parquet.write_table(pa.Table.from_pylist(rows), path)
    assert calibrate(run, path).about == calibrate(run / "model", path).about


def test_a_table_without_answers_of_the_corpus_is_told_what_they_are_found_by(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tempera")
    path, index = table(tmp_path / "pairs.parquet", run, labels=False), Run(run).index
    says = f"no answer of {path} is in the corpus of {run} by"
    docs = index.documents.rename_columns(["doc_id", "name", "place", "doc"])
    keys, urls = (
        docs["doc_id"].cast(pa.int64()),
        pa.array([f"url{i}" for i in range(len(docs))], pa.large_string()),
    )
    shutil.rmtree(run / "index")
    docs = docs.set_column(0, "doc_id", pa.array(given_ids(urls))).append_column(
        "given_doc_id", urls
    )
    write_index(run / "index", index.vectors, docs, index.stamp)
    known_pairs(Model(str(run)), path, None, 10, "test")
    assert (
        f"{says} ids such as 'url0' (name their column as data.doc_id): the documents of {path} are searched"
        in caplog.text
    )
    shutil.rmtree(run / "index")
    docs = docs.set_column(0, "doc_id", pc.add(keys, 1)).drop(["given_doc_id"])
    write_index(run / "index", index.vectors, docs, index.stamp)
    known_pairs(Model(str(run)), path, None, 10, "test")
    assert f"{says} content: the documents of {path} are searched instead" in caplog.text


def test_ids_that_the_corpus_has_not_give_way_to_content_as_the_message_says(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tempera")
    path = table(tmp_path / "pairs.parquet", run, labels=False)
    rows = parquet.read_table(path)
    parquet.write_table(
        rows.append_column("doc_id", pa.array([f"url{i}" for i in range(len(rows))])), path
    )
    assert known_pairs(Model(str(run)), path, None, 10, "test").about["documents"] == 40
    assert (
        f"{run} by data.doc_id, though the data of the run had no ids (to look for content, name the column of ids in data.metadata"
        in caplog.text
    )
    roles = Roles(identical="keep", metadata=("doc_id",))
    assert known_pairs(Model(str(run)), path, roles, 10, "test").about["documents"] == 300


def test_data_that_have_changed_do_not_say_what_was_held_out(
    run: Path, pairs_file: Path, tmp_path: Path
) -> None:
    fewer = tmp_path / "pairs.jsonl"
    fewer.write_text("".join(pairs_file.read_text().splitlines(keepends=True)[:-1]))
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(pairs_file), str(fewer)))
    with pytest.raises(DataError, match=r"have changed since \(pairs: 300 then, 299 now"):
        calibrate(run)
    with pytest.raises(DataError, match="is not a run, so there are no held-out queries"):
        calibrate(run / "model")


# ---- what is written, and read by a search


def test_a_calibration_is_read_as_it_was_found(run: Path, tmp_path: Path) -> None:
    for pairs in (None, table(tmp_path / "pairs.parquet", run)):
        found = tempera.calibrate(run, pairs, precision=[0.5, 0.9999], recall=[0.9])
        assert read_calibration(run / "model") == found
        assert not list((run / "model").glob("*.partial"))
    found = replace(found, kind="isotonic", map=Isotonic((0.1, 0.4, 0.9), (0.2, 0.2, 0.7)))
    write_calibration(run / "model", found, {})
    assert read_calibration(run / "model") == found
    assert Run(run).calibration.probability([0.0, 0.65, 1.0]) == pytest.approx([0.2, 0.45, 0.7])


def test_pictures_lie_beside_the_model(calibrated: Path) -> None:
    svg = (calibrated / "model" / "calibration.svg").read_text()
    assert svg.startswith("<?xml") and "predicted probability" in svg and "logistic, taken" in svg
    assert (calibrated / "model" / "calibration.png").read_bytes().startswith(b"\x89PNG")


def test_the_model_stays_the_one_of_its_index(run: Path) -> None:
    before = Run(run).fingerprint
    calibrate(run)
    assert Run(run).fingerprint == before and Run(run).search("kaban")


def test_a_search_tells_probabilities_and_leaves_out_what_is_below_the_threshold(
    calibrated: Path,
) -> None:
    run = Run(calibrated)
    query = held_out(calibrated).texts("query")[0]
    hits = run.search(query)
    found = read_calibration(calibrated / "model")
    assert [hit.probability for hit in hits] == found.probability(
        [hit.score for hit in hits]
    ).tolist()
    middle = hits[4].probability
    assert middle is not None
    assert run.search(query, threshold=middle) == [
        h for h in hits if h.probability and h.probability >= middle
    ]
    assert run.search(query, threshold=0.0) == hits and run.search(query, threshold=1.0) == []
    with pytest.raises(DataError, match=r"the threshold is 1\.5"):
        run.search(query, threshold=1.5)


def test_the_command_line(
    tempera: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = tempera("search", run, "kaban", "--threshold", "0.5")
    assert (
        answer.code == 2
        and "is not calibrated; run:" in answer.err
        and answer.err.endswith(f"tempera calibrate {run}\n")
    )
    assert "probability" not in tempera("search", run, "kaban", "--json").document["hits"][0]
    few = "40 queries are too few to choose by; give at least 50"
    assert f"\nno threshold is advised: {few}\npicture" in tempera("calibrate", run).out
    answer = tempera("calibrate", run, "--json")
    assert answer.document["thresholds"] == [] and answer.document["doubt"] == few
    monkeypatch.setattr("tempera.ranking.calibration.LEAST_TO_CHOOSE", 40)
    answer = tempera(
        "calibrate", run, "--precision", "0.5", "--precision", "0.9999", "--recall", "0.9"
    )
    assert answer.code == 0, answer
    lines = answer.out.splitlines()
    assert lines[0].startswith("400 pairs of 40 queries, ") and "among 300 documents" in lines[1]
    assert [line.split()[0] for line in lines[3:5]] == ["base", "logistic"]
    assert (
        lines[-2].startswith("recall 0.9: threshold ")
        and lines[-1] == f"picture: {run}/model/calibration.svg"
    )
    answer = tempera("search", run, "kaban cel", "--threshold", "0.2", "--json")
    shown = [hit["probability"] for hit in answer.document["hits"]]
    assert all(p >= 0.2 for p in shown) and answer.document["left_out"] == 10 - len(shown)
    answer = tempera("search", run, "kaban cel", "--threshold", "1")
    assert answer.out == "left out: 10 of 10 with a probability below 1\n"
    assert "%  " in tempera("search", run, "kaban cel").out
    path = table(tmp_path / "pairs.parquet", run)
    renamed = parquet.read_table(path).rename_columns(["query", "doc", "verdict"])
    parquet.write_table(renamed, path)
    answer = tempera("calibrate", run, path, "data.score=verdict", "--recall", "0.8", "--json")
    assert answer.document["about"]["pairs"] == 160 and len(answer.document["thresholds"]) == 1
    assert tempera("calibrate", run, path, path).code == 2


# ---- what is refused


def test_a_calibration_of_another_model_is_refused(run: Path) -> None:
    calibrate(run)
    path = run / "model" / "calibration.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "model": "0" * 32}))
    with pytest.raises(
        DataError, match=r"calibration\.json is of another model \(000000000000; this one is "
    ):
        Run(run).search("kaban", threshold=0.5)
    assert Run(run).search("kaban")[0].probability is None  # not asked for, and not wrong


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"kind": "logistic", "map": {"slope": 1}}', '{"kind": "cubic"}']
)
def test_a_damaged_calibration_is_refused(run: Path, text: str) -> None:
    (run / "model" / "calibration.json").write_text(text)
    with pytest.raises(DataError, match="is not a readable calibration"):
        Run(run).search("kaban", threshold=0.5)


def test_shares_depths_and_models_that_are_none_are_refused(run: Path, tmp_path: Path) -> None:
    for options, says in (
        ({"precision": [0.0]}, "precision is 0"),
        ({"recall": [1.5]}, r"recall is 1\.5"),
        ({"depth": 0}, "depth is 0"),
        ({"precision": 0.9}, "calibrate: precision is a list, each a number, not 0.9"),
        ({"recall": ["all"]}, r"calibrate: recall is a list, each a number, not \['all'\]"),
        ({"depth": 2.5}, "depth is a whole number, not 2.5"),
    ):
        with pytest.raises(ConfigError, match=says):
            calibrate(run, **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="neither a saved model of texts nor a run with one"):
        calibrate(tmp_path)
    other = np.load(run / "index" / "vectors.npy")
    assert len(other) == 300
    weights = run / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(DataError, match="holds vectors of another model"):
        calibrate(run)


def test_a_disk_that_is_full_leaves_the_calibration_before(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate(run)
    before = {path: path.read_bytes() for path in (run / "model").glob("calibration.*")}
    assert len(before) == 3

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        calibrate(run, depth=20)
    assert {path: path.read_bytes() for path in (run / "model").glob("calibration.*")} == before


def test_a_calibration_shows_what_it_found(calibrated: Path) -> None:
    found = read_calibration(calibrated / "model")
    assert isinstance(found, Calibration)
    text = str(found)
    assert "taken: logistic; isotonic needs more pairs" in text
    assert f"(base rate {found.about['base_rate']:.3f})" in text and "Brier score" in text
