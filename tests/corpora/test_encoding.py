"""A corpus is encoded to the same bytes by any number of workers, in any order."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import tempera
from tempera.artifacts.encoded_corpus import EncodedCorpus, encode
from tempera.corpora.corpus_worker import WorkerShare
from tempera.errors import ConfigError
from tempera.towers.saved import load

from ..conftest import Command
from .conftest import GROUP, ROWS, texts_of

NAMES = ["more/part-2", "more/part-3", "part-0", "part-1"]  # of the shards, in order


def shards_in(folder: Path) -> dict[str, bytes]:
    files = sorted((folder / "shards").rglob("*.parquet"))
    return {file.relative_to(folder / "shards").as_posix(): file.read_bytes() for file in files}


def vectors_in(file: Path) -> np.ndarray:
    column = parquet.read_table(file)["embedding"]
    return np.array(column.to_pylist())


@pytest.fixture
def whole(tiny_run: Path, corpus: Path, tmp_path: Path) -> Path:
    """The corpus, encoded by one process."""
    encode(tiny_run, corpus, tmp_path / "whole")
    return tmp_path / "whole"


def test_a_shard_has_the_rows_the_order_and_the_row_groups_of_its_input(
    tiny_run: Path, corpus: Path, tmp_path: Path
) -> None:
    encoded = encode(tiny_run, corpus, tmp_path / "out", columns=["year", "text"])
    assert encoded.names == NAMES and len(encoded) == sum(ROWS)
    expected = tempera.Run(tiny_run).encode
    for name in NAMES:
        given = parquet.ParquetFile(corpus / f"{name}.parquet")
        made = parquet.ParquetFile(tmp_path / "out" / "shards" / f"{name}.parquet")
        groups = [
            [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            for file in (given, made)
        ]
        assert groups[0] == groups[1] and max(groups[0]) <= GROUP
        rows, texts = made.read(), given.read()
        assert rows.column_names == ["id", "embedding", "year", "text"]
        assert rows["id"].to_pylist() == texts["_id"].to_pylist()
        assert rows["year"].to_pylist() == texts["year"].to_pylist()
        kind = rows.schema.field("embedding").type
        assert pa.types.is_fixed_size_list(kind) and kind.value_type == pa.float32()
        vectors = vectors_in(tmp_path / "out" / "shards" / f"{name}.parquet").astype(np.float32)
        # One text after the other, so that no batch is like that of the command.
        alone = np.concatenate([expected([text]) for text in texts["text"].to_pylist()])
        assert vectors.tobytes() == alone.tobytes()


def test_a_kept_text_that_was_no_column_is_read_by_no_other(tiny_run: Path, corpus: Path) -> None:
    encoded = encode(tiny_run, corpus, corpus.parent / "out")
    table = parquet.read_table(corpus.parent / "out" / "shards" / "part-0.parquet")
    assert table.column_names == ["id", "embedding"]
    assert encoded.options["text"] == ["text"] and encoded.options["id"] == "_id"


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_vectors_are_stored_in_fewer_bits(
    dtype: str, tiny_run: Path, corpus: Path, whole: Path, tmp_path: Path
) -> None:
    encoded = encode(tiny_run, corpus, tmp_path / dtype, dtype=dtype)  # type: ignore[arg-type]
    for name in NAMES:
        exact = vectors_in(whole / "shards" / f"{name}.parquet").astype(np.float32)
        made = vectors_in(tmp_path / dtype / "shards" / f"{name}.parquet")
        expected = []
        for row in exact.tolist():
            if dtype == "float16":
                expected.append([float(np.float16(number)) for number in row])
            else:
                step = max(map(abs, row)) / 127
                expected.append([round(number / step) if step else 0 for number in row])
        assert np.abs(made - np.array(expected)).max() <= (0 if dtype == "float16" else 1)
        assert np.mean(made == np.array(expected)) > 0.999
    hits = encoded.search("kaban lodor", k=5)
    best = EncodedCorpus(whole).search("kaban lodor", k=5)
    assert [round(hit.score, 2) for hit in hits] == pytest.approx(
        [hit.score for hit in best], abs=0.02
    )


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.long)])
def test_several_workers_write_the_bytes_of_one(
    workers: int, tiny_run: Path, corpus: Path, whole: Path, tmp_path: Path
) -> None:
    encode(tiny_run, corpus, tmp_path / "several", workers=workers)
    assert shards_in(tmp_path / "several") == shards_in(whole)
    one, several = (
        (folder / "corpus.json").read_bytes() for folder in (whole, tmp_path / "several")
    )
    assert one == several
    assert not (tmp_path / "several" / "claims").exists()


@pytest.mark.parametrize("seed", range(3))
def test_workers_that_are_started_one_by_one_write_the_bytes_of_one_in_any_order(
    seed: int, tiny_run: Path, corpus: Path, whole: Path, tmp_path: Path, tempera: Command
) -> None:
    order = list(range(3))
    random.Random(seed).shuffle(order)
    complete = []
    for number in order:
        answer = tempera(
            "encode", tiny_run, corpus, "-o", tmp_path / "out", "--worker", f"{number}/3", "--json"
        )
        assert answer.code == 0, answer.err
        complete.append(answer.document["complete"])
    # The first finds nobody else, and takes the shards of the others, too.
    assert complete == [True, True, True]
    assert shards_in(tmp_path / "out") == shards_in(whole)


def test_a_process_of_a_launcher_takes_its_share(
    tiny_run: Path,
    corpus: Path,
    whole: Path,
    tmp_path: Path,
    tempera: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tempera.corpora import corpus_worker

    monkeypatch.setattr(corpus_worker.WorkerShare, "order", _only_own)
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        answer = tempera("encode", tiny_run, corpus, "-o", tmp_path / "out", "--json")
        # The processes of a launcher share a terminal.
        assert answer.code == 0 and (answer.out == "") == (rank == 1)
        records = sorted(path.stem for path in (tmp_path / "out" / "records").rglob("*.json"))
        assert records == (["part-1", "part-3"] if rank else [f"part-{i}" for i in range(4)])
    assert shards_in(tmp_path / "out") == shards_in(whole)


@pytest.mark.long
def test_torchrun_starts_a_worker_for_each_process(
    tiny_run: Path, corpus: Path, whole: Path, tmp_path: Path
) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "tempera"]
    command = ["encode", str(tiny_run), str(corpus), "-o", str(tmp_path / "out"), "--json"]
    done = subprocess.run(
        [sys.executable, *launcher, *command], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert shards_in(tmp_path / "out") == shards_in(whole)


def _only_own(share: WorkerShare, shards: Any) -> Any:
    return shards[share.number :: share.workers], []


def test_a_share_is_every_nth_shard_and_then_those_of_the_next_worker() -> None:
    shards: Any = list("abcdefg")
    own, others = WorkerShare(1, 3).order(shards)
    assert (own, others) == (["b", "e"], ["c", "f", "a", "d", "g"])
    for text in ("3/3", "a/2", "1", "-1/2", "0/0"):
        with pytest.raises(ConfigError, match="worker"):
            WorkerShare.of(text)


@pytest.mark.parametrize("workers", [None, pytest.param(2, marks=pytest.mark.long)])
def test_a_transformer_gives_the_vectors_of_one_text_after_the_other(
    workers: int | None, transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    encoded = encode(transformer, corpus, tmp_path / "out")
    encode(transformer, corpus, tmp_path / "again", workers=workers)
    read = load(transformer, "doc")
    for block in encoded.blocks():
        texts = parquet.read_table(corpus / f"{block.shard}.parquet")["text"].to_pylist()
        alone = np.concatenate([read([text]) for text in texts])
        # Its weights are large, and so are its rounding errors.
        assert np.abs(block.vectors - alone).max() < 3e-6
        again = vectors_in(tmp_path / "again" / "shards" / f"{block.shard}.parquet")
        assert np.abs(block.vectors - again).max() < 1e-6


def test_tokens_and_padding_are_counted(
    transformer: Path, corpus: Path, tmp_path: Path, tempera: Command
) -> None:
    answer = tempera("encode", transformer, corpus, "-o", tmp_path / "out", "--json")
    texts = [t for n, count in enumerate(ROWS) for t in texts_of(count, n)]
    from tempera.towers.modules import TextTower
    from tempera.towers.saved import open_with_library

    tower = TextTower(open_with_library(transformer), "doc")
    tokens = sum(int(tower.features([text]).lengths[0]) for text in texts)
    assert answer.document["tokens"] == tokens and answer.document["rows"] == sum(ROWS)
    # Half would be padding if rows of any length stood together.
    assert 0 < answer.document["padding"] < 0.35


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "csv", "arrow", "glob", "datasets"])
def test_every_form_of_a_corpus_gives_the_same_vectors(
    form: str, tiny_run: Path, tmp_path: Path
) -> None:
    texts = texts_of(40, 3)
    texts = [text or "empty" for text in texts]
    rows = [{"id": f"a{i}", "text": text} for i, text in enumerate(texts)]
    folder = tmp_path / "corpus"
    folder.mkdir()
    given = folder
    if form.startswith("jsonl"):
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        packed = gzip.compress(content) if form.endswith("gz") else content
        (folder / f"a.{form}").write_bytes(packed)
    elif form == "csv":
        lines = ["id,text", *(f"{row['id']},{row['text']}" for row in rows)]
        (folder / "a.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif form == "arrow":
        table = pa.Table.from_pylist(rows)
        with (
            pa.OSFile(str(folder / "a.arrow"), "wb") as file,
            pa.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table, max_chunksize=15)
    elif form == "glob":
        for part in (0, 1):
            parquet.write_table(pa.Table.from_pylist(rows[part::2]), folder / f"p{part}.parquet")
        given = folder / "*.parquet"
    else:
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_list(rows).save_to_disk(str(folder / "set"), num_shards=3)
        given = folder / "set"
    encoded = encode(tiny_run, given, tmp_path / "out")
    expected = {row["id"]: vector for row, vector in zip(rows, tempera.Run(tiny_run).encode(texts))}
    count = 0
    for block in encoded.blocks(with_ids=True):
        assert block.ids is not None
        for name, vector in zip(block.ids.to_pylist(), block.vectors):
            assert np.array_equal(vector, expected[name])
            count += 1
    assert count == 40
    if form == "arrow":
        made = parquet.ParquetFile(tmp_path / "out" / "shards" / "a.parquet")
        assert [made.metadata.row_group(i).num_rows for i in range(made.num_row_groups)] == [
            15,
            15,
            10,
        ]


def test_titles_stand_before_their_texts_and_rows_without_ids_are_numbered(
    tiny_run: Path, tmp_path: Path
) -> None:
    rows = [
        {"title": " kaban ", "text": "lodor"},
        {"title": None, "text": "mifin"},
        {"title": "x", "text": None},
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    encoded = encode(tiny_run, tmp_path / "a.parquet", tmp_path / "out")
    (block,) = encoded.blocks(with_ids=True)
    assert block.ids is not None and block.ids.to_pylist() == ["a:0", "a:1", "a:2"]
    expected = tempera.Run(tiny_run).encode(["kaban lodor", "mifin", "x"])
    assert np.array_equal(block.vectors, expected)
    alone = encode(tiny_run, tmp_path / "a.parquet", tmp_path / "alone", text="text")
    (block,) = alone.blocks()
    assert np.array_equal(block.vectors[:1], tempera.Run(tiny_run).encode(["lodor"]))


def test_a_shard_without_rows_stays_a_shard(tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    table = pa.table({"id": ["a"], "text": ["kaban"]})
    parquet.write_table(table, folder / "a.parquet")
    parquet.write_table(table.slice(0, 0), folder / "b.parquet")
    encoded = encode(tiny_run, folder, tmp_path / "out")
    assert encoded.names == ["a", "b"] and len(encoded) == 1
    made = parquet.read_table(tmp_path / "out" / "shards" / "b.parquet")
    assert len(made) == 0 and made.schema.field("embedding").type.list_size == 16
    assert [hit.id for hit in encoded.search("kaban")] == ["a"]


def test_a_long_row_group_is_read_in_parts_and_stays_one(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempera.corpora import encoded_shard, shard_tables

    monkeypatch.setattr(
        encoded_shard, "pieces", lambda path, columns: shard_tables.pieces(path, columns, rows=30)
    )
    texts = texts_of(100, 1)
    parquet.write_table(pa.table({"id": list(range(100)), "text": texts}), tmp_path / "a.parquet")
    encoded = encode(tiny_run, tmp_path / "a.parquet", tmp_path / "out")
    made = parquet.ParquetFile(tmp_path / "out" / "shards" / "a.parquet")
    assert made.num_row_groups == 1
    (block,) = encoded.blocks()
    assert np.array_equal(block.vectors, tempera.Run(tiny_run).encode(texts))


def test_an_object_store_gives_and_takes_shards(tiny_run: Path, corpus: Path, whole: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.put(str(corpus), "/bucket/corpus", recursive=True)
    try:
        encoded = encode(tiny_run, "memory://bucket/corpus", "memory://bucket/out")
        made = {
            str(path).removeprefix("/bucket/out/shards/"): system.cat_file(path)
            for path in system.find("/bucket/out/shards")
        }
        assert made == shards_in(whole)
        hits = encoded.search("kaban lodor", k=3)
        assert hits == EncodedCorpus(whole).search("kaban lodor", k=3)
        encode(tiny_run, "memory://bucket/corpus/**/*.parquet", "memory://bucket/out")
    finally:
        system.rm("/bucket", recursive=True)


def test_a_dry_run_measures_and_writes_nothing(
    tiny_run: Path, corpus: Path, whole: Path, tempera: Command
) -> None:
    before = sorted(corpus.parent.rglob("*"))
    answer = tempera(
        "encode", tiny_run, corpus, "--dry-run", "--price", 3.6, "--workers", 2, "--json"
    )
    assert answer.code == 0, answer.err
    about = answer.document
    assert about["shards"] == 4 and about["rows"] == about["sampled_rows"] == sum(ROWS)
    assert about["seconds"] == pytest.approx(about["worker_hours"] * 1800, abs=0.3)
    assert about["cost"] == pytest.approx(3.6 * about["worker_hours"], abs=0.01)
    made = sum(map(len, shards_in(whole).values()))
    assert 0.5 * made < about["bytes"] < 2 * made
    assert sorted(corpus.parent.rglob("*")) == before
    shown = tempera("encode", tiny_run, corpus, "--dry-run")
    assert "4 shards with about 266 rows" in shown.out


def test_the_command_says_what_it_has_written(
    tiny_run: Path, corpus: Path, tmp_path: Path, tempera: Command
) -> None:
    out = tmp_path / "out"
    answer = tempera("encode", tiny_run, corpus, "-o", out, "--columns", "year, text")
    assert answer.code == 0, answer.err
    assert answer.out == f"{out}: 266 rows of 16 numbers in 4 shards\n"
    assert "encoded 266 rows in" in answer.err and "without a text" in answer.err
    again = tempera("encode", tiny_run, corpus, "-o", out, "--columns", "year, text", "--json")
    assert again.document["rows"] == 0 and again.document["complete"]
    checked = tempera("check", out)
    assert checked.code == 0 and "is whole" in checked.out


def test_the_folder_of_a_run_and_the_name_of_the_hub_are_models(
    tiny_run: Path, corpus: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(
        hub, "snapshot_download", lambda name, local_files_only=False: str(tiny_run / "model")
    )
    monkeypatch.chdir(tmp_path)
    encode("owner/name", corpus, tmp_path / "out")
    assert shards_in(tmp_path / "out") == shards_in(whole)


@pytest.mark.long
def test_memory_does_not_grow_with_the_rows(tiny_run: Path, tmp_path: Path) -> None:
    """The peak of a process that encodes 8 shards is that of one that encodes 2."""
    program = (
        "import resource, sys; from tempera.artifacts.encoded_corpus import encode;"
        "encode(*sys.argv[1:4]); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for shards in (2, 8):
        folder = tmp_path / f"corpus-{shards}"
        folder.mkdir()
        for number in range(shards):
            table = pa.table({"id": list(range(20_000)), "text": texts_of(20_000, number)})
            parquet.write_table(table, folder / f"{number}.parquet", row_group_size=10_000)
        command = [
            sys.executable,
            "-c",
            program,
            str(tiny_run),
            str(folder),
            str(tmp_path / f"out-{shards}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.1 * peaks[0]
