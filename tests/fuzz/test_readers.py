"""Every reader with inputs that nobody means to give: a result or one line. `make soak` tries many
more.

What the long runs have found stands below as tests of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import inputs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import soak
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inputs import CALIBRATION, Fault, Place, Reader, accepts, readers

from tempera.artifacts.calibrated import read_calibration
from tempera.artifacts.encoded_corpus import EncodedCorpus, encode
from tempera.artifacts.run_folder import Run
from tempera.corpora.corpus_manifest import CorpusPlan, ShardRecord
from tempera.corpora.output_place import place_of
from tempera.corpus.approximate import KINDS
from tempera.corpus.approximate import write as write_faiss
from tempera.corpus.bits import Bits
from tempera.corpus.index import Index, write_index
from tempera.errors import DataError, TemperaError, one_line
from tempera.experiments.grid import axes_of
from tempera.experiments.record import Record, read_records, write_records
from tempera.experiments.result import Point, Sweep
from tempera.io.faiss_files import read_faiss
from tempera.io.manifest import MANIFEST
from tempera.mining.embedder import trained_on
from tempera.mining.shortfall import Report
from tempera.mining.unfinished import IndexSetting, read_block, with_report
from tempera.mining.vectors import Store
from tempera.options.yaml_options import load as load_config
from tempera.recommend.read.interactions import Interactions
from tempera.recommender.new_events import add_events
from tempera.tables.vector_files import read_vectors
from tempera.task.evaluation import Evaluation
from tempera.text.read.beir import read_beir
from tempera.text.read.sources import PairsFile
from tempera.text.read.text_files import TextFiles
from tempera.text.shards.pair_survey import survey
from tempera.towers.saved import load

NAMES = (
    *("config", "space", "roles", "jsonl", "csv", "parquet", "documents", "beir", "interactions"),
    *("index", "vectors", "run", "recommender", "model", "calibration", "checkpoint", "where"),
    *("profile", "manifest", "request", "corpus", "encoding", "candidates", "mining"),
    *("pair shards", "growing texts", "growing items", "approximate", "given vectors", "bits"),
    *("trained", "points", "texts", "saved set"),
)
COUNTS = {
    **{"recommender": 5, "run": 25, "model": 25, "where": 50, "corpus": 40, "encoding": 20},
    **{"candidates": 40, "mining": 10, "pair shards": 10, "growing texts": 20, "growing items": 3},
    **{"texts": 40},
}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Reader], Path]:
    importlib.import_module(
        "optuna"
    )  # read by the first good space, in more time than an input may take
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempera.run.publish.render", lambda report: "")
        sample = tmp_path_factory.mktemp("samples")
        soak.samples(sample)
    return readers(sample / "texts", sample / "items", tmp_path_factory.mktemp("scratch")), sample


@pytest.mark.parametrize("name", NAMES)
def test_a_result_or_one_line(every: Any, name: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    for i in range(COUNTS.get(name, 100)):
        try:
            accepts(every[0][name], Random(f"test/{name}/{i}"), place)
        except Exception as error:
            raise AssertionError(f"input {i}: {type(error).__name__}: {error}") from error


def test_every_reader_is_tried(every: Any) -> None:
    assert set(every[0]) == set(NAMES)


@pytest.mark.parametrize("name", ["config", "jsonl", "csv", "interactions", "calibration"])
@settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(chance=st.randoms(use_true_random=False))
def test_hypothesis_finds_no_fault(
    every: Any, name: str, tmp_path_factory: pytest.TempPathFactory, chance: Any
) -> None:
    accepts(every[0][name], chance, Place(tmp_path_factory.mktemp("place")))


def test_the_oracle_fails_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SECONDS", 0.2)

    def reader(read: Any, named: bool = True) -> Reader:
        return Reader("x", lambda chance: ({}, None), read, named)

    def unpickles(folder: Path, _: Any) -> None:
        import pickle

        pickle.loads(b"cos\ngetcwd\n.")

    def endless(folder: Path, _: Any) -> None:
        while True:
            pass

    def says(text: str) -> Any:
        def read(folder: Path, _: Any) -> None:
            raise DataError(text)

        return read

    place = Place(tmp_path)
    with pytest.raises(Fault, match="pickle"):
        accepts(reader(unpickles), Random(0), place)
    with pytest.raises(Fault, match=r"more than 0\.2 s"):
        accepts(reader(endless), Random(0), place)
    with pytest.raises(Fault, match="names no file"):
        accepts(reader(says("wrong")), Random(0), place)
    with pytest.raises(Fault, match="writes"):
        accepts(
            reader(lambda folder, _: (tmp_path.parent / "outside").write_text("")), Random(0), place
        )
    with pytest.raises(ZeroDivisionError):
        accepts(reader(lambda folder, _: 1 / 0), Random(0), place)
    assert not accepts(reader(says("wrong"), named=False), Random(0), place)
    assert accepts(reader(lambda folder, _: None), Random(0), place)


# ---- what was found


def refused(run: Any, *says: str) -> str:
    with pytest.raises(TemperaError) as caught:
        run()
    line = str(caught.value)
    assert line.isprintable() and len(line) <= 1000, line
    for text in says:
        assert text in line, line
    return line


def test_a_message_is_one_line_that_a_terminal_does_not_obey() -> None:
    assert str(DataError("a\x1b[31m\nb\u202e\0")) == "a\\x1b[31m b\\u202e\\x00"
    assert (
        str(DataError("Größe 漢字 \U0001f468\u200d\U0001f469"))
        == "Größe 漢字 \U0001f468\u200d\U0001f469"
    )
    long = str(DataError("begin " + "x" * 10_000 + " end"))
    assert len(long) <= 1000 and long.startswith("begin") and long.endswith("end")
    assert one_line("\ud800") == "\\ud800"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"null", "row 1: expected an object of columns, not null"),
        (
            b'{"query": "a", "doc": "b"}\n\n null\n',
            "row 2: expected an object of columns, not null",
        ),
        (
            b'{"query": "a", "doc": ' + b"[" * 100_000 + b"}",
            "row 1: more than 64 lists and objects",
        ),
        (
            b'{"query": "a", "doc": "b", "x": ' + b'{"a":' * 70 + b"1" + b"}" * 71,
            "row 1: more than 64 lists and objects",
        ),
        (b"NaN", "row 1: expected an object of columns, not null"),
        (b'{"query": "a", "doc": "b", "score": "inf"}', "give data.min_score=LEAST"),
        (b"{}", "has no column that is usual for a query"),
        (b'{"query": "a", "doc": "b", "query_id": {"x": 1}}', "column 'query_id' holds struct"),
        (b'{"query": "a", "doc": "b", "prompt": [["x"]]}', "column 'prompt' holds list"),
        (
            b'{"query": "a", "doc": "b", "weight": 1e300}',
            "row 1: column 'weight' is more than 3.4e38",
        ),
    ],
)
def test_rows_of_json(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    refused(PairsFile(path=str(path)).read, str(path), says)


def test_brackets_in_a_text_are_no_nesting(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"query": "[" * 500, "doc": '"{[' * 300}) + "\n")
    assert len(PairsFile(path=str(path)).read()[0]) == 1


def test_names_of_columns_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"query,doc\xff\na,b\n")
    refused(
        PairsFile(path=str(tmp_path / "rows.csv")).read, "the names of its columns are not UTF-8"
    )
    parquet.write_table(
        pa.table({"query": ["a"], "docx": ["b"]}), tmp_path / "rows.parquet", compression="none"
    )
    content = (tmp_path / "rows.parquet").read_bytes().replace(b"docx", b"do\xffx")
    (tmp_path / "rows.parquet").write_bytes(content)
    refused(PairsFile(path=str(tmp_path / "rows.parquet")).read, str(tmp_path))


def test_features_with_one_name_twice(tmp_path: Path) -> None:
    parquet.write_table(
        pa.table({"user": ["a"], "item": ["x"], "time": [1]}), tmp_path / "events.parquet"
    )
    parquet.write_table(
        pa.table([["x"], ["t"], ["u"]], ["item", "t", "t"]), tmp_path / "items.parquet"
    )
    source = Interactions(
        path=str(tmp_path / "events.parquet"), items=str(tmp_path / "items.parquet")
    )
    refused(source.read, str(tmp_path / "items.parquet"), "2 columns named 't'")


def test_features_of_ids_alone(tmp_path: Path) -> None:
    parquet.write_table(
        pa.table({"user": ["a", "a"], "item": ["x", "y"], "time": [1, 2]}),
        tmp_path / "events.parquet",
    )
    parquet.write_table(pa.table({"item": ["x", "y"]}), tmp_path / "items.parquet")
    source = Interactions(
        path=str(tmp_path / "events.parquet"), items=str(tmp_path / "items.parquet")
    )
    assert len(source.read()) == 2


@pytest.mark.parametrize("content", ["{}", "[]", '{"metrics": 1}', "[" * 100_000])
def test_metrics_that_are_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "metrics.json").write_text(content)
    refused(lambda: Run(tmp_path).metrics, f"{tmp_path}/metrics.json")


@pytest.mark.parametrize("width", ["1e999", "-1", "0", "1.5", "true", "9999999999999", "[]"])
def test_widths_that_are_none(tmp_path: Path, width: str) -> None:
    (tmp_path / "space-float32").mkdir()
    (tmp_path / "space-float32" / "about.json").write_text(f'{{"width": {width}}}')
    refused(lambda: Store(tmp_path, "space"), "is not a store of vectors")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "logistic", "map": {"slope": "a", "intercept": 1}},
        {"map": {"scores": [[1]], "probabilities": [0.5]}},
        {"map": {"scores": [0.1], "probabilities": [7]}},
        {"about": {}},
        {"model": None},
    ],
)
def test_calibrations_that_are_none(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(CALIBRATION))
    assert read_calibration(tmp_path).depth is None
    path.write_text(json.dumps({**CALIBRATION, **change}))
    refused(lambda: read_calibration(tmp_path), f"{path} is not a readable calibration")


def small_index(folder: Path) -> Path:
    texts = ["a", "b", "c"]
    write_index(
        folder,
        np.eye(3, dtype=np.float32),
        pa.table({"doc_id": texts, "name": texts, "place": texts, "doc": texts}),
    )
    return folder


@pytest.mark.parametrize("kind", ["object", "f8", "c8", "U3"])
def test_vectors_of_other_types(tmp_path: Path, kind: str) -> None:
    folder = small_index(tmp_path / "index")
    np.save(folder / "vectors.npy", np.eye(3).astype(kind), allow_pickle=True)
    refused(lambda: Index(folder), str(folder), "is not a readable index")


def test_vectors_that_are_not_finite_are_of_a_file(tmp_path: Path) -> None:
    folder = small_index(tmp_path / "index")
    np.save(folder / "vectors.npy", np.full((3, 3), np.nan, np.float32))
    refused(lambda: Index(folder).search(np.ones(3, np.float32)), str(folder), "not finite")


def test_documents_that_point_outside_of_their_file(tmp_path: Path) -> None:
    folder = small_index(tmp_path / "index")
    path = folder / "documents.arrow"
    offsets = np.array([0, 1, 2, 3], np.int32).tobytes()
    content = path.read_bytes()
    assert offsets in content
    path.write_bytes(content.replace(offsets, np.array([0, 1, 2, 1 << 30], np.int32).tobytes()))
    refused(lambda: Index(folder), str(folder), "is not a readable index")


@pytest.mark.parametrize("repeat", ["{{<<: [{0}]}}", "[{0}]"])
def test_aliases_of_aliases_do_not_grow_without_bound(tmp_path: Path, repeat: str) -> None:
    lines = ["a0: &a0 {k: 1}"]
    lines += [f"a{i}: &a{i} " + repeat.format(", ".join([f"*a{i - 1}"] * 9)) for i in range(1, 10)]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    refused(lambda: load_config(tmp_path / "config.yaml"), "values by its aliases", str(tmp_path))


@pytest.mark.parametrize("name", ["a.html", "a.md"])
def test_comments_without_an_end_take_no_longer_than_others(tmp_path: Path, name: str) -> None:
    heads = {
        "a.html": "<h1>Tea</h1><p>Steep <!-- no --> it.</p>",
        "a.md": "# Tea\n\nSteep <!-- no --> it.\n",
    }
    (tmp_path / name).write_text(heads[name] + "<!--" * 60_000)
    began = time.process_time()
    pairs, _ = TextFiles(str(tmp_path), max_characters=1 << 20).read()
    assert time.process_time() - began < 2
    assert pairs.table["query"].to_pylist() == ["Tea"]
    (text,) = pairs.table["doc"].to_pylist()
    assert text.split()[:2] == ["Steep", "it."] and "no" not in text


# ---- what is left on a disk


@pytest.fixture(scope="module")
def encoded(every: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoded corpus of two shards."""
    folder = tmp_path_factory.mktemp("encoded")
    rows = [{"id": f"d{i}", "text": f"ant {i}"} for i in range(6)]
    for name, part in (("a", rows[:4]), ("b", rows[4:])):
        parquet.write_table(pa.Table.from_pylist(part), folder / f"{name}.parquet")
    corpus = [folder / "a.parquet", folder / "b.parquet"]
    encode(every[1] / "texts", corpus, folder / "out", text="text", columns=["text"])
    (folder / "out" / MANIFEST).unlink()
    return folder / "out"


@pytest.fixture
def corpus(encoded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(encoded, tmp_path / "out"))


def changed(path: Path, **values: Any) -> None:
    """Change values of a JSON file, by their path with __ in it."""
    document = json.loads(path.read_text())
    for name, new in values.items():
        *outer, last = name.split("__")
        inner = document
        for each in outer:
            inner = inner[each]
        inner[last] = new
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "change",
    [
        {"model__dimensions": 1 << 40},
        {"model__dimensions": True},
        {"model__similarity": []},
        {"model__name": "\ud800"},
        {"model__fingerprint": None},
        {"options__text": ["text", 1]},
        {"options__text": []},
        {"options": 1},
        {"shards": {}},
        {"shards": [{"name": "../../b", "rows": 2}]},
        {"shards": [{"name": "/etc/passwd", "rows": 2}]},
        {"shards": [{"name": "a", "rows": -2}]},
        {"shards": [{"name": "a", "rows": 2.5}]},
    ],
)
def test_manifests_of_corpora_that_are_none(corpus: Path, change: dict[str, Any]) -> None:
    changed(corpus / "corpus.json", **change)
    refused(lambda: EncodedCorpus(corpus), f"{corpus}/corpus.json is damaged")


@pytest.mark.parametrize(
    "change",
    [{"inputs": []}, {"inputs": {"a": {"size": "x"}}}, {"model": 3}, {"options__half": None}],
)
def test_plans_of_corpora_that_are_none(corpus: Path, change: dict[str, Any]) -> None:
    (corpus / "corpus.json").unlink()
    changed(corpus / "encoding.json", **change)
    refused(lambda: EncodedCorpus(corpus), f"{corpus}/encoding.json is damaged")
    plan = CorpusPlan({"fingerprint": "x"}, {}, {})
    refused(lambda: plan.settle(place_of(str(corpus))), f"{corpus}/encoding.json is damaged")


@pytest.mark.parametrize(
    "change",
    [{"rows": "4"}, {"output__xxh3": [1]}, {"input__state": 1}, {"name": "b"}, {"width": -1}],
)
def test_records_of_shards_that_are_none(corpus: Path, change: dict[str, Any]) -> None:
    changed(corpus / "records" / "a.json", **change)
    refused(
        lambda: ShardRecord.read(place_of(str(corpus)), "a"),
        f"{corpus}/records/a.json",
        "remove it",
    )


def shard_with(corpus: Path, name: str, values: Any) -> None:
    path = corpus / "shards" / "a.parquet"
    table = parquet.read_table(path)
    at = table.column_names.index(name)
    table = table.remove_column(at) if values is None else table.set_column(at, name, values)
    parquet.write_table(table, path, write_page_checksum=True)


def lists(*numbers: float | None, width: int = 4, kind: Any = pa.float32) -> pa.Array:
    flat = pa.array([numbers[i % len(numbers)] for i in range(4 * width)], kind())
    return pa.FixedSizeListArray.from_arrays(flat, width)


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("id", None, "column 'id' does not hold texts"),
        ("id", pa.array([[1]] * 4), "column 'id' does not hold texts"),
        ("text", pa.array([1] * 4), "column 'text' does not hold texts"),
        ("embedding", None, "vectors of 4 numbers"),
        ("embedding", pa.array(["a"] * 4), "vectors of 4 numbers"),
        ("embedding", lists(0.5, width=2), "vectors of 4 numbers"),
        ("embedding", lists(0.5, kind=pa.float64), "vectors of 4 numbers"),
        ("embedding", lists(0.5, float("nan")), "not finite"),
        ("embedding", lists(0.5, None), "not finite"),
        # PyArrow 25 says it by itself.
        ("embedding", pa.array([[0.5] * 4, None] * 2, pa.list_(pa.float32(), 4)), "a.parquet"),
    ],
)
def test_shards_that_hold_something_else(corpus: Path, name: str, values: Any, says: str) -> None:
    shard_with(corpus, name, values)
    vector = np.full((1, 4), 0.5, np.float32)
    refused(lambda: EncodedCorpus(corpus).nearest(vector, 3), f"{corpus}/shards/a.parquet", says)


def test_a_shard_whose_names_are_not_utf_8(corpus: Path, every: Any, tmp_path: Path) -> None:
    path = corpus / "shards" / "a.parquet"
    table = parquet.read_table(path).drop_columns(["text"])
    table = table.append_column("textx", pa.array(["a"] * 4))
    parquet.write_table(table, path, compression="none", store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"textx", b"te\xedtx"))
    vector = np.full((1, 4), 0.5, np.float32)
    refused(lambda: EncodedCorpus(corpus).nearest(vector, 3), f"{path} is damaged")
    refused(lambda: encode(every[1] / "texts", path, tmp_path / "new", text="id"), str(path))


def test_a_shard_with_two_columns_of_one_name(every: Any, tmp_path: Path) -> None:
    (tmp_path / "pairs").mkdir()
    rows = pa.table({"query": list("abcdef"), "doc": list("uvwxyz")})
    parquet.write_table(rows, tmp_path / "pairs" / "a.parquet")
    twice = pa.table([rows["query"], rows["doc"], rows["doc"]], ["query", "doc", "doc"])
    parquet.write_table(twice, tmp_path / "pairs" / "b.parquet")
    source = PairsFile(path=str(tmp_path / "pairs"), in_shards=True)
    says = f"{tmp_path}/pairs/b.parquet has 2 columns named 'doc'"
    refused(lambda: survey(source, Evaluation(queries=1), folder=tmp_path), says)
    texts = [tmp_path / "pairs" / name for name in ("a.parquet", "b.parquet")]
    refused(lambda: encode(every[1] / "texts", texts, tmp_path / "out", text="doc"), says)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"probes": 1}', '{"probes": "a", "recall": 1}', '{"probes": 0, "recall": 1}']
    + ['{"probes": 1, "recall": "a"}', '{"probes": 1, "recall": 1, "x": 1}', "9" * 5000],
)
def test_settings_of_an_index_that_are_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "search.json"
    IndexSetting(3, 0.5).write(path)
    assert IndexSetting.read(path) == IndexSetting(3, 0.5)
    path.write_text(content)
    refused(lambda: IndexSetting.read(path), f"{path} is damaged")


def test_blocks_of_a_mining_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "000000.parquet"
    table = pa.table({"query": ["a"]})
    report = Report(queries=1, dropped={"margin": 2}, recall=0.5)
    parquet.write_table(with_report(table, report), path)
    assert read_block(path, table.schema) == (table, report)
    for reports in ("[]", "{", '{"queries": "a"}', '{"dropped": {"a": {}}}', '{"x": 1}'):
        parquet.write_table(table.replace_schema_metadata({"report": reports}), path)
        refused(lambda: read_block(path, table.schema), f"{path} is damaged")
    parquet.write_table(table, path)
    refused(lambda: read_block(path, table.schema), f"{path} is damaged")
    parquet.write_table(with_report(pa.table({"query": [1]}), report), path)
    refused(lambda: read_block(path, table.schema), f"{path} is damaged")
    path.write_bytes(b"PAR1")
    refused(lambda: read_block(path, table.schema), f"{path} is damaged")


def test_trained_texts_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "trained.npy"
    for array in (np.array(["a"]), np.array([0.5]), np.zeros((2, 2), np.int64), np.array([{}])):
        np.save(path, array, allow_pickle=True)
        refused(lambda: trained_on(tmp_path), str(path))
    np.save(path, np.arange(3))
    assert trained_on(tmp_path).tolist() == [0, 1, 2]
    path.write_bytes(path.read_bytes().replace(b"}", b"("))  # read as Python by numpy
    refused(lambda: trained_on(tmp_path), str(path))


def test_bits_with_moments_that_are_not_finite(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    bits = Bits.of(vectors)
    bits.write(tmp_path, "made of")
    assert Bits.read(tmp_path, "made of", vectors.shape) is not None
    bits.covariance[3, 4] = np.nan
    bits.write(tmp_path, "made of")
    says = f"{tmp_path}/bits.safetensors is damaged (covariance is not finite)"
    refused(lambda: Bits.read(tmp_path, "made of", vectors.shape), says)


@pytest.mark.parametrize(
    "change",
    [
        {"params": []},
        {"params": {}},
        {"metrics": {"ndcg@10": "a"}},
        {"per_query": "true"},
        {"spread": {"positive_50%": []}},
        {"loss": "a"},
        {"cautions": 1},
        {"cautions": ["\ud800"]},
        {"x": 1},
    ],
)
def test_records_of_sweeps_that_are_none(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "points.jsonl"
    record = Record({"train.seed": 1}, metrics={"ndcg@10": 0.5}, per_query=[0.5], on_the_way=[None])
    write_records(path, [record])
    assert [each.json() for each in read_records(path)] == [record.json()]
    path.write_text(json.dumps({**json.loads(record.json()), **change}) + "\n")
    refused(lambda: read_records(path), f"{path} was not written by a sweep")


def test_runs_of_a_sweep_with_other_numbers_of_queries(tmp_path: Path) -> None:
    params = {"objective.temperature": 0.1}
    record = Record(params, metrics={"ndcg@10": 0.5}, per_query=[0.5, 0.5])
    points = [Point((record,)), Point((replace(record, per_query=[0.5]),))]
    axes = axes_of({"objective.temperature": [0.1, 0.5]})
    says = f"{tmp_path} is damaged: its record of objective.temperature=0.1, seed 0 has 1 queries"
    refused(lambda: Sweep.of(tmp_path, axes, "ndcg@10", (0,), points), says)
    other = [points[0], replace(points[1], queries="others")]
    assert len(Sweep.of(tmp_path, axes, "ndcg@10", (0,), other).points) == 2


def test_a_recommender_without_the_options_of_its_data(every: Any, tmp_path: Path) -> None:
    run = Path(shutil.copytree(every[1] / "items", tmp_path / "run"))
    (run / MANIFEST).unlink()
    events = pa.table({"user": ["u1"], "item": ["i01"], "time": [90]})
    refused(lambda: add_events(run, events), f"{run}/config.yaml does not describe interactions")


def test_events_for_a_run_with_a_damaged_index(every: Any, tmp_path: Path) -> None:
    run = Path(shutil.copytree(every[1] / "items", tmp_path / "run"))
    (run / "config.yaml").write_bytes((every[1] / "items.yaml").read_bytes())
    (run / MANIFEST).unlink()
    (run / "index" / "documents.arrow").write_bytes(b"ARROW1")
    events = pa.table({"user": ["new"], "item": ["i01"], "time": [90]})
    refused(lambda: add_events(run, events), f"{run}/index is not a readable index")


# ---- indexes of FAISS


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each kind of an approximate index."""
    folder = tmp_path_factory.mktemp("faiss")
    vectors = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    np.save(folder / "vectors.npy", vectors)
    for kind in KINDS:
        write_faiss(folder / kind, vectors, kind)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_an_index_are_near_those_that_it_was_made_of(indexes: Path, kind: str) -> None:
    """FAISS ends the process over ivf_fast, unless a part that it leaves out is set."""
    vectors = np.load(indexes / "vectors.npy")
    shutil.copy(indexes / kind, indexes / f"{kind}.faiss")
    if kind == "binary":  # signs first, and whole numbers behind them
        assert read_faiss(indexes / kind).ntotal == 300
        return
    near = np.asarray(read_vectors(indexes / f"{kind}.faiss").vectors)
    assert np.corrcoef(near.ravel(), vectors.ravel())[0, 1] > 0.9


def test_an_index_visits_no_more_clusters_than_it_has(indexes: Path, tmp_path: Path) -> None:
    import faiss

    index = faiss.read_index(str(indexes / "ivf_fast"))
    index.nprobe = 1 << 30  # for which FAISS would take memory
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    assert read_faiss(tmp_path / "index.faiss").nprobe == index.nlist


def test_an_index_without_its_inner_index(indexes: Path, tmp_path: Path) -> None:
    content = (indexes / "binary").read_bytes()
    assert content.count(b"IxHe") == 1  # the signs
    path = tmp_path / "index.faiss"
    path.write_bytes(content.replace(b"IxHe", b"null"))
    refused(lambda: read_faiss(path), f"{path} is not a readable FAISS index")


@pytest.mark.parametrize(
    ("kind", "harm"),
    [
        ("hnsw", lambda index: index.hnsw.neighbors.__setitem__(0, 300)),
        ("hnsw", lambda index: setattr(index.hnsw, "entry_point", 300)),
        ("hnsw", lambda index: setattr(index.hnsw, "entry_point", -1)),
        ("ivf_pq", lambda index: setattr(index, "ntotal", 301)),
        ("ivf_pq", lambda index: setattr(index, "nprobe", 0)),
        ("ivf_fast", lambda index: setattr(index, "implem", 7)),
        ("ivf_fast", lambda index: setattr(index, "qbs2", 1 << 31)),
        ("int8", lambda index: setattr(index, "ntotal", 299)),
        ("binary", lambda index: setattr(index, "k_factor", 0.0)),
    ],
)
def test_indexes_whose_parts_do_not_fit(
    indexes: Path, tmp_path: Path, kind: str, harm: Any
) -> None:
    import faiss

    index = faiss.read_index(str(indexes / kind))
    if kind == "hnsw" and harm.__code__.co_names[-1:] == ("__setitem__",):
        edges = faiss.vector_to_array(index.hnsw.neighbors)
        edges[0] = 300
        faiss.copy_array_to_vector(edges, index.hnsw.neighbors)
    else:
        harm(index)
    path = tmp_path / "index.faiss"
    faiss.write_index(index, str(path))
    refused(lambda: read_faiss(path), f"{path} is not a readable FAISS index")


# ---- names and links that lead out


@pytest.mark.parametrize("name", ["../../etc", "/etc", "a/../../b", ".."])
def test_modules_that_lie_outside_of_a_model(tmp_path: Path, name: str) -> None:
    (tmp_path / "modules.json").write_text(
        json.dumps([{"idx": 0, "type": "x.StaticEmbedding", "path": name}])
    )
    refused(lambda: load(tmp_path), f"{name!r} leads out of the folder")


@pytest.mark.parametrize("name", ["a" * 256, "b/" + "é" * 128, "\ud800"])
def test_names_that_no_file_has(tmp_path: Path, name: str) -> None:
    about = {"_data_files": [{"filename": name}]}
    (tmp_path / "state.json").write_text(json.dumps(about))
    refused(PairsFile(path=str(tmp_path)).read, str(tmp_path), "is no name of a file")
    about = {"_data_files": [{"filename": name[:1] * 255}]} if name != "\ud800" else about
    (tmp_path / "state.json").write_text(json.dumps(about))
    refused(PairsFile(path=str(tmp_path)).read, str(tmp_path))


@pytest.mark.parametrize("split", ["../../secret", "/etc/passwd", "a\0b"])
def test_a_split_that_lies_outside_of_its_folder(tmp_path: Path, split: str) -> None:
    for name in ("corpus", "queries"):
        (tmp_path / f"{name}.jsonl").write_text('{"_id": "a", "text": "b"}\n')
    refused(lambda: read_beir(tmp_path, split), "leads out of the folder")


@pytest.mark.parametrize(
    "name", ["model/model.safetensors", "index/vectors.npy", "metrics.json", "export"]
)
def test_links_out_of_a_run(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    path = run / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "secret").write_text("secret")
    path.symlink_to(tmp_path / "secret")
    refused(lambda: Run(run), f"{path} is a link that leads out of {run}")
    refused(lambda: Index(path.parent), "is a link that leads out of")
    refused(lambda: load(path.parent), "is a link that leads out of")


def test_links_inside_a_run_and_to_a_run_stay(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a").write_text("")
    (tmp_path / "run" / "b").symlink_to("a")
    (tmp_path / "link").symlink_to("run")
    assert Run(tmp_path / "link").folder == tmp_path / "link"


def test_snapshots_of_the_hub_link_to_their_repository(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--x" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--x" / "blobs").mkdir()
    (tmp_path / "models--x" / "blobs" / "1").write_text("[]")
    (snapshot / "modules.json").symlink_to("../../blobs/1")
    assert "leads out" not in refused(lambda: load(snapshot), str(snapshot))
    os.symlink("/etc/hostname", snapshot / "other")
    refused(lambda: load(snapshot), "leads out of")
