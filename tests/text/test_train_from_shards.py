"""Training from shards: the split by hashes, each row once a pass, and windows of rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import tempera
from tempera.engine.batches import Draws
from tempera.errors import ConfigError, DataError
from tempera.io.ids import content_id, form, mixed
from tempera.run.train import train
from tempera.task.evaluation import Evaluation
from tempera.text.read.sources import PairsFile
from tempera.text.shards import pair_survey
from tempera.text.shards.shard_sampler import ShardSampler
from tempera.text.shards.smallest_keys import SmallestKeys, distinct_count
from tempera.text.shards.split_of_shards import split_of_shards
from tempera.text.shards.streamed_pairs import PartStream, WindowReader
from tempera.text.train.split import Split
from tempera.towers.static import Static

from ..conftest import WORDS

Row = tuple[str, str]


def made_rows(count: int = 600) -> list[Row]:
    """Rows of which some share a query, some a document, and some a query with another's document."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(count):
        words = draw.choice(WORDS, 4).tolist()
        query = f"{' '.join(words[:2])} {number}"
        doc = f"{' '.join(words)} answer {number}"
        if number % 10 == 9:
            doc = rows[-1][1]
        elif number % 7 == 3:
            query = rows[-1][0]
        elif number % 11 == 5:
            query = rows[-3][1]  # a query that is a document
        rows.append((query, doc))
    rows[71] = (rows[51][0].upper() + " ", rows[71][1])  # a query in another form
    return rows


def write(folder: Path, rows: Sequence[Row], shard: int, group: int = 20) -> Path:
    """Write rows in shards of Parquet."""
    folder.mkdir(parents=True)
    for number, start in enumerate(range(0, len(rows), shard)):
        part = rows[start : start + shard]
        table = pa.table({"query": [row[0] for row in part], "doc": [row[1] for row in part]})
        parquet.write_table(table, folder / f"part-{number:03d}.parquet", row_group_size=group)
    return folder


def split_at(path: Path | str, **options: Any) -> Split:
    return split_of_shards(PairsFile(str(path), in_shards=True), Evaluation(**options))


def form_id(text: str) -> int:
    return content_id(form(text))


def expected(rows: Iterable[Row], test: int, validation: int, seed: int) -> dict[str, set[Any]]:
    """The split as it is defined, text by text."""
    keys = {}
    for query, _ in rows:
        hashed = np.array([form_id(query)])
        keys[form_id(query)] = int(mixed(hashed, seed)[0])
    ranked = sorted(keys, key=lambda query: keys[query])
    tested = set(ranked[:test])
    validated = set(ranked[test : test + validation])
    held = tested | validated
    for query, doc in rows:
        if form_id(query) in tested | validated:
            held = held | {form_id(doc)}
    train_rows = set()
    for query, doc in rows:
        if form_id(query) not in held and form_id(doc) not in held:
            train_rows.add((query, doc))
    return {
        "test": {row for row in rows if form_id(row[0]) in tested},
        "validation": {row for row in rows if form_id(row[0]) in validated},
        "train": train_rows,
    }


def rows_of(split: Split, rows: np.ndarray) -> set[Row]:
    pairs = split.pairs
    return set(zip(pairs.texts("query", rows), pairs.texts("doc", rows), strict=True))


def trained_rows(split: Split) -> Counter[Row]:
    """Every row of every part that is trained on."""
    assert split.shards is not None
    counted: Counter[Row] = Counter()
    for part in range(len(split.shards.pairs)):
        for table in split.shards.tables(part):
            counted.update(zip(table["query"].to_pylist(), table["doc"].to_pylist(), strict=True))
    return counted


@pytest.mark.parametrize("shard", [600, 130, 47])
@pytest.mark.parametrize("seed", [0, 5])
def test_the_split_is_by_the_hashes_of_queries_whatever_the_shards(
    shard: int, seed: int, tmp_path: Path
) -> None:
    rows = made_rows()
    oracle = expected(rows, 40, 25, seed)
    mixed_up = [rows[at] for at in np.random.default_rng(shard).permutation(len(rows))]
    split = split_at(
        write(tmp_path / "pairs", mixed_up, shard), queries=40, validation=25, seed=seed
    )
    assert rows_of(split, split.test) == oracle["test"]
    assert rows_of(split, split.validation) == oracle["validation"]
    trained = trained_rows(split)
    assert set(trained) == oracle["train"] and set(trained.values()) == {1}
    assert rows_of(split, split.train) == oracle["train"]  # a sample, here of all
    assert split.count == len(rows) and split.trained_count == len(oracle["train"])
    dropped = sum(split.dropped.values())
    held = len(oracle["test"]) + len(oracle["validation"])
    assert dropped + held + split.trained_count == len(rows)


def test_the_sample_is_by_the_hashes_of_rows_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = made_rows()
    source = PairsFile(str(write(tmp_path / "a", rows, 47)), in_shards=True)
    other = PairsFile(str(write(tmp_path / "b", rows[::-1], 600)), in_shards=True)
    options = Evaluation(queries=10, validation=10)
    found = []
    for each in (source, other):
        pairs = pair_survey.survey(each, options, sample=50).pairs
        found.append(sorted(zip(pairs.texts("query"), pairs.texts("doc"), strict=True)))
    assert found[0] == found[1]
    keys = {}
    for query, doc in rows:
        one = mixed(np.array([form_id(doc)]), np.array([form_id(query)]))
        keys[query, doc] = int(mixed(one, 0)[0])
    smallest = sorted(keys, key=lambda row: keys[row])[:50]
    oracle = expected(rows, 10, 10, 0)
    assert set(found[0]) == {*smallest, *oracle["test"], *oracle["validation"]}


def test_another_letter_weight_or_negative_is_another_digest(tmp_path: Path) -> None:
    def digest(name: str, **changed: list[Any]) -> int:
        table = {
            "query": ["one thing", "two things", "three things"],
            "doc": ["an answer", "another", "a third"],
            "negative": ["no", "not", "none"],
            "weight": [1.0, 1.0, 1.0],
        }
        (tmp_path / name).mkdir()
        parquet.write_table(pa.table({**table, **changed}), tmp_path / name / "rows.parquet")
        source = PairsFile(str(tmp_path / name), weight="weight", in_shards=True)
        options = Evaluation(queries=0, validation=0)
        return pair_survey.survey(source, options).shards.digest

    digests = [
        digest("same"),
        digest("letter", query=["One thing", "two things", "three things"]),
        digest("moved", query=["one thin", "gtwo things", "three things"]),
        digest("weight", weight=[1.0, 2.0, 1.0]),
        digest("negative", negative=["no", "not", "nothing"]),
    ]
    assert len(set(digests)) == 5 and digest("again") == digests[0]


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("window", [40, 100, 10_000])
def test_the_processes_together_see_each_row_once_a_pass(
    processes: int, window: int, tmp_path: Path
) -> None:
    split = split_at(write(tmp_path / "pairs", made_rows(), 130), queries=20, validation=20)
    shards = split.shards
    assert shards is not None
    whole = trained_rows(split)
    orders = []
    for epoch in (0, 1):
        seen: Counter[Row] = Counter()
        sizes: dict[int, int] = {}
        for rank in range(processes):
            sampler = ShardSampler(shards, 64, 3, rank, processes, most=window)
            batches = sampler.batches_per_epoch
            assert batches == -(-shards.count // 64)
            dealt = sampler.dealt(epoch)
            table = PartStream(shards, dealt, 0).take(dealt.rows)
            numbers = []
            for step, rows in enumerate(sampler(epoch * batches, (epoch + 1) * batches)):
                sizes[step] = sizes.get(step, 0) + len(rows)
                places = rows.numpy() - epoch * shards.count
                held = sampler.window_of(int(rows[0]))
                assert ((held.first <= places) & (places < held.last)).all()
                assert len(held) <= window or window < 64
                numbers += places.tolist()
            assert sorted(numbers) == list(range(dealt.rows))
            assert numbers != sorted(numbers)
            orders.append(numbers)
            taken = table.take(pa.array(numbers))
            seen.update(zip(taken["query"].to_pylist(), taken["doc"].to_pylist(), strict=True))
        assert seen == whole
        assert max(sizes.values()) <= 64 + processes
        assert min(sizes.values()) >= shards.count // batches - processes
    assert orders[0] != orders[processes]  # the next pass has another order


def test_a_stream_begins_anywhere_without_the_parts_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = split_at(write(tmp_path / "pairs", made_rows(), 130), queries=20, validation=20)
    shards = split.shards
    assert shards is not None
    dealt = ShardSampler(shards, 64, 3).dealt(0)
    whole = PartStream(shards, dealt, 0).take(dealt.rows)
    read: list[int] = []
    tables = type(shards).tables
    monkeypatch.setattr(
        type(shards), "tables", lambda self, part: read.append(part) or tables(self, part)
    )
    for first in (0, 1, 19, 250, dealt.rows - 1):
        read.clear()
        stream = PartStream(shards, dealt, first)
        count = min(30, dealt.rows - first)
        assert stream.take(count).to_pylist() == whole.slice(first, count).to_pylist()
        begun = int(np.searchsorted(dealt.ends, first, side="right")) - 1
        assert set(read) <= set(dealt.parts[begun:].tolist()) and len(set(read)) <= 4


def options_of(path: Path, **train_options: Any) -> dict[str, Any]:
    return {
        "data": {"source": "pairs", "path": str(path), "in_shards": True},
        "tower": {"dimensions": 16, "vocabulary": 300},
        "objective": {"temperature": 0.1},
        "train": {"batch_size": 64, "num_train_epochs": 2, "evaluations": 1, **train_options},
        "evaluation": {"queries": 60, "validation": 60},
    }


def test_a_run_from_shards_is_evaluated_and_searched_as_any_other(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs", made_rows(), 130)
    run = train(options_of(path), tmp_path / "run")
    data = run.results["data"]
    assert data["pairs"] == 600 and data["queries"] in (60, 61) and data["window"] > 600
    assert data["train"] + 120 <= 600
    assert run.search(made_rows()[3][0], 5)
    finding = tempera.evaluate_held_out(tmp_path / "run")
    (figures,) = finding.systems.values()
    trained = run.metrics["trained"]
    assert figures.metrics["ndcg@10"] == pytest.approx(trained["ndcg@10"], abs=1e-6)


@pytest.mark.parametrize(
    ("section", "option", "value", "line"),
    [
        ("train", "max_pairs", 100, "draws among all pairs"),
        ("train", "batch_sampler", "no_duplicates", "plans with all rows"),
        ("train", "refit", "all", "adds held-out pairs"),
        ("train", "guide", "x", "needs its vectors of all texts"),
        ("train", "teacher", "x", "needs its vectors of all texts"),
        ("mining", "cross_encoder", "x", "judges the negatives of all pairs"),
        ("data", "keep", ["url"], "keeps columns of all documents"),
    ],
)
def test_what_needs_all_pairs_in_memory_is_refused(
    section: str, option: str, value: Any, line: str, tmp_path: Path
) -> None:
    options = options_of(write(tmp_path / "pairs", made_rows(), 130))
    options[section] = {**options.get(section, {}), option: value}
    with pytest.raises(ConfigError, match=line) as error:
        train(options, tmp_path / "run")
    assert "\n" not in str(error.value) and option in str(error.value)


def test_too_many_queries_and_too_few_parts_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs", made_rows(), 600, group=600)
    with pytest.raises(ConfigError, match="at most 10,000 queries are held out"):
        split_at(path, queries=10_001)
    shards = split_at(path, queries=10, validation=10).shards
    assert shards is not None
    with pytest.raises(ConfigError, match="cannot be dealt out to 2 processes"):
        ShardSampler(shards, 64, 0, 0, 2).dealt(0)
    with pytest.raises(ConfigError, match="only a training on this one source does"):
        PairsFile(str(path), in_shards=True).read()
    parquet.write_table(pa.table({"other": ["x"]}), path / "part-999.parquet")
    with pytest.raises(DataError, match=r"part-999.parquet has no column 'query' of the query"):
        split_at(path)


def test_json_lines_labels_and_named_parts(tmp_path: Path) -> None:
    folder = tmp_path / "pairs"
    folder.mkdir()
    labelled = [(f"how does thing {i} work", f"label {i % 7}") for i in range(300)]
    for number in range(3):
        lines = [
            json.dumps({"query": query, "doc": doc})
            for query, doc in labelled[100 * number : 100 * number + 100]
        ]
        (folder / f"part-{number}.jsonl").write_text("\n".join(lines) + "\n")
    named = tmp_path / "test.jsonl"
    named.write_text(json.dumps({"query": labelled[5][0], "doc": labelled[5][1]}) + "\n")
    source = PairsFile(str(folder / "part-*.jsonl"), test=str(named), in_shards=True)
    split = split_of_shards(source, Evaluation(validation=20))
    assert rows_of(split, split.test) == {labelled[5]}
    assert split.queries(split.validation) == 20
    # Labels count as known: only the queries are held out.
    assert split.trained_count == 300 - 20 - 1
    assert labelled[5] not in trained_rows(split)


def test_rows_with_the_smallest_keys_are_those_of_all_rows_sorted() -> None:
    draw = np.random.default_rng(1)
    keys = draw.integers(-50, 50, 400)
    for most, once in [(7, False), (7, True), (60, False), (500, True), (0, False)]:
        smallest = SmallestKeys(most, once)
        for start in range(0, 400, 13):
            part = keys[start : start + 13]
            smallest.add(part, pa.table({"row": np.arange(start, start + len(part))}))
        wanted = sorted(set(keys.tolist()))[:most]
        rows = [row for key in wanted for row in range(400) if keys[row] == key]
        if once:
            rows = [min(row for row in range(400) if keys[row] == key) for key in wanted]
        kept, table = smallest.rows()
        if table is None:
            assert not rows
        else:
            assert table["row"].to_pylist() == rows and kept.tolist() == keys[rows].tolist()


def test_distinct_texts_are_counted_from_the_smallest_hashes() -> None:
    for count in (100, 4096, 50_000):
        hashes = np.sort(mixed(np.arange(count), 3))
        assert distinct_count(hashes[:4096], 4096) == pytest.approx(count, rel=0.05)


def test_held_out_texts_are_no_negatives_and_columns_of_ids_and_weights_are_read(
    tmp_path: Path,
) -> None:
    rows = made_rows()
    queries = [query for query, _ in rows]
    docs = [doc for _, doc in rows]
    table = pa.table(
        {
            "query": queries,
            "doc": docs,
            "negative": [docs[(at + 7) % 600] for at in range(600)],
            "weight": np.linspace(0.5, 1.5, 600),
        }
    )
    (tmp_path / "pairs").mkdir()
    parquet.write_table(table, tmp_path / "pairs" / "all.parquet", row_group_size=50)
    source = PairsFile(str(tmp_path / "pairs"), weight="weight", in_shards=True)
    split = split_of_shards(source, Evaluation(queries=60, validation=60))
    shards = split.shards
    assert shards is not None
    oracle = expected(rows, 60, 60, 0)
    held = {
        form_id(text) for part in ("test", "validation") for row in oracle[part] for text in row
    }
    tower = Static(dimensions=8, vocabulary=200).build(docs)
    sampler = ShardSampler(shards, 64, 3, most=200)
    reader = WindowReader(sampler, tower, Draws(), sampler.batches_per_epoch)
    withheld = trained = 0
    weight_of = dict(zip(zip(queries, docs), table["weight"].to_pylist(), strict=True))
    for rows_of_batch in sampler(0, sampler.batches_per_epoch):
        window = reader(int(rows_of_batch[0]))
        examples = window.examples
        assert examples.negatives is not None and examples.weight is not None
        batch = examples.batch(rows_of_batch - window.of.first)
        assert batch.negatives is not None and batch.weight is not None
        assert batch.negatives.ids is not None and batch.doc.ids is not None
        ids = {content_id(doc): at for at, doc in enumerate(docs)}
        negatives: dict[int, list[int]] = {}
        for owner, negative in zip(batch.negatives.owner, batch.negatives.ids, strict=True):
            negatives.setdefault(int(owner), []).append(ids[int(negative)])
        for number, doc in enumerate(batch.doc.ids.tolist()):
            at = [row for row in range(600) if content_id(docs[row]) == doc]
            given = {(row + 7) % 600 for row in at}
            kept = {docs[row] for row in given if form_id(docs[row]) not in held}
            taken = {docs[row] for row in negatives.get(number, [])}
            assert taken <= kept
            withheld += not kept
            trained += len(taken)
            assert any(
                float(batch.weight[number]) == pytest.approx(weight_of[queries[row], docs[row]])
                for row in at
            )
    assert trained > 200 and withheld > 10


def test_shards_of_an_object_store_are_fetched_once_a_pass(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    rows = made_rows()
    write(tmp_path / "pairs", rows, 130)
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path / "pairs"), "/shards-of-pairs", recursive=True)
    try:
        remote = split_at("memory://shards-of-pairs", queries=30, validation=30)
    finally:
        store.rm("/shards-of-pairs", recursive=True)
    local = split_at(tmp_path / "pairs", queries=30, validation=30)
    assert remote.digest == local.digest and remote.trained_count == local.trained_count
    assert remote.shards is not None and len(remote.shards.pairs) == 5


def test_parts_without_a_pair_or_a_negative_are_read(tmp_path: Path) -> None:
    rows = made_rows()[:200]
    table = pa.table(
        {
            "query": [query for query, _ in rows],
            # The rows of the second row group have no document, and are left out.
            "doc": [None if 20 <= at < 40 else doc for at, (_, doc) in enumerate(rows)],
            "negative": [None if at < 100 else f"wrong {at}" for at in range(200)],
        }
    )
    (tmp_path / "pairs").mkdir()
    parquet.write_table(table, tmp_path / "pairs" / "rows.parquet", row_group_size=20)
    split = split_at(tmp_path / "pairs", queries=10, validation=0)
    assert split.shards is not None and split.shards.pairs[1] == 0
    assert split.dropped["rows without a text"] == 20 and split.count == 180
    options = options_of(tmp_path / "pairs", batch_size=32)
    options["evaluation"] = {"queries": 10, "validation": 0, "bm25": False}
    assert train(options, tmp_path / "run").results["data"]["pairs"] == 180


def test_a_transformer_trains_from_shards(tmp_path: Path) -> None:
    options = options_of(write(tmp_path / "pairs", made_rows(), 130), max_steps=3)
    options["tower"] = {
        **{"kind": "transformer", "layers": 1, "width": 16, "heads": 2},
        **{"vocabulary": 300, "max_length": 16},
    }
    run = train(options, tmp_path / "run")
    assert run.results["data"]["window"] > 0


def test_events_are_read_whole(tmp_path: Path) -> None:
    table = pa.table({"user_id": ["a", "b"], "item_id": ["x", "y"]})
    parquet.write_table(table, tmp_path / "events.parquet")
    with pytest.raises(DataError, match="only pairs of texts are trained from shards"):
        tempera.train(str(tmp_path / "events.parquet"), tmp_path / "run", ["data.in_shards=true"])


LAUNCHED = """
import json, os
from pathlib import Path
from tempera.cli import main
from tempera.engine import loop
from tempera.text.shards.streamed_pairs import StreamedPairs
from tempera.text.shards.training_shards import TrainingShards

record = open(Path(os.environ["SEEN"]) / f"rank-{os.environ['RANK']}.jsonl", "a")
batches, tables = StreamedPairs.batches, TrainingShards.tables
step, steps = loop.add_gradients, []

def noted(self, rows, number, progress=1.0):
    window, places = self._found(rows)
    names = window.names.take(places.numpy())["query"].to_pylist()
    record.write(json.dumps({"number": number, "batch": names}) + "\\n")
    record.flush()
    return batches(self, rows, number, progress)

def counted(self, part):
    for table in tables(self, part):
        record.write(json.dumps({"read": len(table)}) + "\\n")
        yield table

def breaking(*given):
    steps.append(1)
    if len(steps) == int(os.environ["STOP"]):
        raise SystemExit(3)
    return step(*given)

StreamedPairs.batches = noted
TrainingShards.tables = counted
loop.add_gradients = breaking
main()
"""


def launched(
    path: Path, output: Path, seen: Path, stop: int = 0
) -> subprocess.CompletedProcess[str]:
    """Train by two processes, which write what they read and train."""
    seen.mkdir(exist_ok=True)
    script = seen / "launched.py"
    script.write_text(LAUNCHED)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    options = [
        *("data.in_shards=true", "evaluation.queries=30", "evaluation.validation=30"),
        *("tower.dimensions=16", "train.batch_size=64", "train.num_train_epochs=2"),
        *("train.learning_rate=0.01", "objective.temperature=0.1", "train.made_rows=0"),
        *("recipe=none", "evaluation.bm25=false", "train.save_steps=4"),
    ]
    environment = {"SEEN": str(seen), "STOP": str(stop), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *launcher, str(script), "train", str(path), *options]
    return subprocess.run(
        [*command, "--output", str(output)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def numbered_rows(folder: Path) -> Path:
    """Write shards of rows whose queries all differ."""
    rows = [(f"{query} {number}", doc) for number, (query, doc) in enumerate(made_rows())]
    return write(folder, rows, 130)


def test_two_processes_of_torchrun_read_and_train_each_row_once_a_pass(tmp_path: Path) -> None:
    path = numbered_rows(tmp_path / "pairs")
    split = split_at(path, queries=30, validation=30)
    done = launched(path, tmp_path / "run", tmp_path / "seen")
    assert done.returncode == 0, done.stderr
    batches = -(-split.trained_count // 64)
    whole = Counter(query for query, _ in trained_rows(split))
    for epoch in range(2):
        seen: Counter[str] = Counter()
        for rank in range(2):
            batch_of = {}  # the plan looks at the first batch before it is trained on
            for line in (tmp_path / "seen" / f"rank-{rank}.jsonl").read_text().splitlines():
                record = json.loads(line)
                if "number" in record:
                    batch_of[record["number"]] = record["batch"]
            assert sorted(batch_of) == list(range(2 * batches))
            for number in range(epoch * batches, (epoch + 1) * batches):
                seen.update(batch_of[number])
        assert seen == whole
    read = [0, 0]
    for rank in range(2):
        for line in (tmp_path / "seen" / f"rank-{rank}.jsonl").read_text().splitlines():
            read[rank] += json.loads(line).get("read", 0)
    assert sum(read) == 2 * split.trained_count and min(read) > 0.7 * split.trained_count


@pytest.mark.long
def test_two_processes_go_on_to_the_bits_of_two_that_were_never_stopped(tmp_path: Path) -> None:
    path = numbered_rows(tmp_path / "pairs")
    assert launched(path, tmp_path / "whole", tmp_path / "seen").returncode == 0
    for stop in (7, 6):
        assert launched(path, tmp_path / "run", tmp_path / "stopped", stop).returncode != 0
    assert launched(path, tmp_path / "run", tmp_path / "stopped").returncode == 0
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").rglob("*.safetensors")}
    again = {path.name: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")}
    assert whole == again and len(whole) == 2
