"""An encoding that is killed, or meets a fault, loses nothing and says so in one line."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.encoded_corpus import EncodedCorpus, encode
from tempera.artifacts.integrity import check
from tempera.corpora import claims
from tempera.corpora.claims import ShardClaims
from tempera.corpora.encoding import encode_corpus
from tempera.corpora.encoding_job import EncodingJob
from tempera.errors import DataError, OutputError, TemperaError
from tempera.io.manifest import MANIFEST

from ..conftest import Command
from .conftest import ROWS, texts_of
from .test_encoding import shards_in


@pytest.fixture
def whole(tiny_run: Path, corpus: Path, tmp_path: Path) -> Path:
    """The corpus, encoded without an interruption."""
    encode(tiny_run, corpus, tmp_path / "whole")
    return tmp_path / "whole"


def refused(answer: object, *words: str) -> None:
    code, err = answer.code, answer.err  # type: ignore[attr-defined]
    lines = [line for line in err.splitlines() if line.startswith("tempera: ")]
    assert code == 2 and len(lines) == 1 and "Traceback" not in err, err
    for word in words:
        assert word in lines[0], lines[0]


# Interruptions


@pytest.mark.parametrize("moment", ["before the model", "shard", "record", "manifest"])
def test_an_encoding_that_ends_anywhere_is_resumed(
    moment: str,
    tiny_run: Path,
    corpus: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    names = {
        "before the model": "encoding.json",
        "shard": "shards/part-0.parquet",
        "record": "records/more/part-3.json",
        "manifest": "corpus.json",
    }
    with monkeypatch.context() as patch:
        replace = os.replace

        def killed(source: Path, target: Path) -> None:
            if str(target).endswith(names[moment]):
                raise KeyboardInterrupt
            replace(source, target)

        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            encode(tiny_run, corpus, out)
    if moment != "before the model":
        with pytest.raises(DataError, match=r"is not finished: \d of 4 shards are encoded"):
            EncodedCorpus(out)
    before = {name: (out / "shards" / name).stat().st_mtime_ns for name in shards_in(out)}
    encode(tiny_run, corpus, out)
    assert shards_in(out) == shards_in(whole)
    # A shard with a record is not written again.
    left = {"before the model": 0, "shard": 2, "record": 1, "manifest": 4}[moment]
    same = [name for name in before if (out / "shards" / name).stat().st_mtime_ns == before[name]]
    assert len(same) == left


def test_files_that_killed_processes_have_left_or_not_written_are_mended(
    tiny_run: Path, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    encode(tiny_run, corpus, out)
    (out / MANIFEST).unlink()  # killed between both manifests
    for name in ("corpus.json", "records/more/part-3.json", "shards/part-0.parquet"):
        (out / f"{name}.17-ab.partial").write_bytes(b"half")
    encode(tiny_run, corpus, out)
    assert not list(out.rglob("*.partial"))
    assert check(out).is_whole


ENCODE = "import sys; from tempera.artifacts.encoded_corpus import encode; encode(*sys.argv[1:4])"


def killed_after(seconds: float, *command: str) -> bool:
    """Start a process in a group of its own, and kill the process alone; return True if it was
    still at work."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


def slow(corpus: Path, rows: int = 3000) -> Path:
    """A corpus that takes a while."""
    for number in range(3):
        table = pa.table({"_id": list(range(rows)), "text": texts_of(rows, number)})
        parquet.write_table(table, corpus / f"slow-{number}.parquet", row_group_size=200)
    return corpus


def ids_in(folder: Path) -> list[str]:
    """Return the ids of a corpus with their shards, sorted."""
    ids = []
    for block in EncodedCorpus(folder).blocks(with_ids=True):
        assert block.ids is not None
        ids += [f"{block.shard} {name}" for name in block.ids.to_pylist()]
    return sorted(ids)


def kills(tiny_run: Path, corpus: Path, tmp_path: Path, count: int, seed: int) -> int:
    """Encode a corpus by processes that are killed at moments by chance, until one is left alone;
    compare the result with an encoding without a kill; return the number of kills."""
    corpus = slow(corpus)
    began = time.monotonic()
    encode(tiny_run, corpus, tmp_path / "expected")
    alone = time.monotonic() - began
    expected = shards_in(tmp_path / "expected")
    ids = ids_in(tmp_path / "expected")
    draw = random.Random(seed)
    done = 0
    while done < count:
        out = tmp_path / f"killed-{done}"
        places = [str(tiny_run), str(corpus)]
        command = [sys.executable, "-m", "tempera", "-q", "encode", *places, "-o", str(out)]
        commands = [
            [sys.executable, "-c", ENCODE, *places, str(out)],
            [*command, "--worker", "1/2"],
            [*command, "--workers", "2"],
        ]
        for _ in range(draw.randint(1, 4)):
            # A process needs a second to start.
            done += killed_after(0.5 + draw.random() * (alone + 1.5), *draw.choice(commands))
        encode(tiny_run, corpus, out, workers=draw.choice([None, None, 2]))
        assert shards_in(out) == expected
        assert ids_in(out) == ids
        assert not list(out.rglob("*.partial"))
        shutil.rmtree(out)
    return done


@pytest.mark.long
def test_a_few_kills(tiny_run: Path, corpus: Path, tmp_path: Path) -> None:
    assert kills(tiny_run, corpus, tmp_path, 4, seed=1) >= 4


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_hundred_kills(tiny_run: Path, corpus: Path, tmp_path: Path) -> None:
    assert kills(tiny_run, corpus, tmp_path, 200, seed=2) >= 200


def test_a_killed_process_is_resumed_at_once(
    tiny_run: Path, corpus: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    program = (
        "import os, sys; from tempera.corpora import encoding_job as job; from tempera.corpora import corpus_worker\n"
        "real = job.ShardWriter.write\n"
        "def write(self, path, of=None):\n"
        "    real(self, path, of)\n"
        "    self.name == 'part-0' and os.kill(os.getpid(), 9)\n"
        "    return self.counts\n"
        "job.ShardWriter.write = write\n" + ENCODE
    )
    command = [sys.executable, "-c", program, str(tiny_run), str(corpus), str(out)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert (out / "claims" / "part-0").exists() and list(out.rglob("*.partial"))
    # The claim is of a process that has ended, so that nobody waits for it to go stale.
    encode(tiny_run, corpus, out)
    assert shards_in(out) == shards_in(whole)
    assert not list(out.rglob("*.partial")) and not (out / "claims").exists()


def test_the_work_of_a_killed_worker_is_done_by_the_others(
    tiny_run: Path, corpus: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempera.corpora import worker_pool

    start = worker_pool._start
    started = []

    def start_and_kill(workers: int) -> subprocess.Popen[str]:
        process = start(workers)
        if not started:
            process.kill()
        started.append(process)
        return process

    monkeypatch.setattr(worker_pool, "_start", start_and_kill)
    encode(tiny_run, corpus, tmp_path / "out", workers=2)
    assert len(started) == 2 and started[0].returncode == -signal.SIGKILL
    assert shards_in(tmp_path / "out") == shards_in(whole)


# Claims


def test_a_claim_is_taken_over_when_its_worker_has_ended_or_is_silent(tmp_path: Path) -> None:
    one, other = ShardClaims(tmp_path), ShardClaims(tmp_path, stale=100)
    assert one.take("a/b") and not other.take("a/b")
    os.utime(tmp_path / "a/b", (time.time() - 99, time.time() - 99))
    assert not other.take("a/b")
    os.utime(tmp_path / "a/b", (time.time() - 101, time.time() - 101))
    assert other.take("a/b")
    one.release("a/b")  # it is no longer one's own
    assert (tmp_path / "a/b").exists()
    other.release("a/b")
    assert not (tmp_path / "a/b").exists()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = {**json.loads(one.worker), "process": ended.pid, "started": time.time()}
    (tmp_path / "c").write_text(json.dumps(dead))
    assert one.take("c")
    (tmp_path / "d").write_text(json.dumps({**dead, "machine": "another"}))
    assert not one.take("d")
    (tmp_path / "e").write_text("")  # killed between the creation and the writing
    assert not one.take("e")
    os.utime(tmp_path / "e", (time.time() - 6, time.time() - 6))
    assert one.take("e")


def test_a_living_worker_keeps_its_claims_fresh(tmp_path: Path) -> None:
    claim = ShardClaims(tmp_path, stale=0.0)
    claim.take("a")
    os.utime(tmp_path / "a", (1, 1))
    claim.sign("a")
    assert time.time() - (tmp_path / "a").stat().st_mtime < 60


def test_a_shard_that_another_machine_has_claimed_is_left_and_then_taken(
    tiny_run: Path,
    corpus: Path,
    whole: Path,
    tmp_path: Path,
    tempera: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tempera.corpora import corpus_worker

    out = tmp_path / "out"
    (out / "claims").mkdir(parents=True)
    job = EncodingJob(str(tiny_run), (str(corpus),), str(out))
    shutil.rmtree(out)
    job.begin()
    (out / "claims").mkdir()
    claim = {**json.loads(ShardClaims(out).worker), "machine": "another"}
    (out / "claims" / "part-0").write_text(json.dumps(claim))
    monkeypatch.setattr(corpus_worker, "_PATIENCE", 0.3)
    answer = tempera("encode", tiny_run, corpus, "-o", out)
    refused(answer, "1 shard of 4, part-0 for one, left to other workers", "10 minutes")
    worker = tempera("encode", tiny_run, corpus, "-o", out, "--worker", "0/2", "--json")
    assert worker.code == 0 and worker.document["complete"] is False
    os.utime(out / "claims" / "part-0", (1, 1))
    assert tempera("encode", tiny_run, corpus, "-o", out).code == 0
    assert shards_in(out) == shards_in(whole)


# Faults


def test_a_folder_of_other_vectors_is_refused(
    tiny_run: Path, transformer: Path, corpus: Path, whole: Path, tmp_path: Path, tempera: Command
) -> None:
    before = shards_in(whole)
    refused(tempera("encode", transformer, corpus, "-o", whole), "another model")
    refused(
        tempera("encode", tiny_run, corpus, "-o", whole, "--dtype", "float16"),
        "another dtype",
        "float32",
    )
    refused(
        tempera("encode", tiny_run, corpus, "-o", whole, "--columns", "year"), "another columns"
    )
    refused(tempera("encode", tiny_run, corpus / "more", "-o", whole), "another corpus")
    moved = tmp_path / "moved.parquet"
    (corpus / "part-1.parquet").rename(moved)
    refused(
        tempera("encode", tiny_run, corpus, "-o", whole), "part-1.parquet, which is missing now"
    )
    moved.rename(corpus / "part-1.parquet")
    assert tempera("encode", tiny_run, corpus, "-o", whole).code == 0
    assert shards_in(whole) == before


def test_a_changed_input_is_refused_and_a_touched_one_is_not(
    tiny_run: Path, corpus: Path, whole: Path, tempera: Command
) -> None:
    shard = corpus / "part-0.parquet"
    content = shard.read_bytes()
    os.utime(shard)
    assert tempera("encode", tiny_run, corpus, "-o", whole).code == 0
    shard.write_bytes(content[:-20] + bytes(8) + content[-12:])
    os.utime(shard, (2, 2))
    refused(
        tempera("encode", tiny_run, corpus, "-o", whole),
        f"{shard} has changed since it was encoded",
    )
    shard.write_bytes(content + b"more")
    refused(tempera("encode", tiny_run, corpus, "-o", whole), "another", "bytes; now")


def test_an_input_that_changes_while_it_is_read_is_refused(
    tiny_run: Path, corpus: Path, tmp_path: Path
) -> None:
    job = EncodingJob(str(tiny_run), (str(corpus),), str(tmp_path / "out"))
    job.begin()
    os.utime(corpus / "part-0.parquet", (3, 3))
    with pytest.raises(DataError, match="was changed while it was read"):
        encode_corpus(job)
    assert "part-0.parquet" not in shards_in(tmp_path / "out")


def test_a_missing_shard_is_named_and_encoded_again(
    tiny_run: Path, corpus: Path, whole: Path, tempera: Command
) -> None:
    before = shards_in(whole)
    (whole / "shards" / "part-0.parquet").unlink()
    refused(tempera("search", whole, "kaban"), "part-0.parquet is missing")
    assert tempera("encode", tiny_run, corpus, "-o", whole).code == 0
    assert shards_in(whole) == before and tempera("search", whole, "kaban").code == 0


def test_a_shard_of_another_model_and_a_damaged_one_are_named(
    tiny_run: Path, transformer: Path, corpus: Path, whole: Path, tmp_path: Path, tempera: Command
) -> None:
    encode(transformer, corpus, tmp_path / "other")
    shard = whole / "shards" / "part-0.parquet"
    content = shard.read_bytes()
    shutil.copy(tmp_path / "other" / "shards" / "part-0.parquet", shard)
    refused(tempera("search", whole, "kaban"), "part-0.parquet holds vectors of another model")
    middle = len(content) // 2
    shard.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    refused(tempera("search", whole, "kaban"), "part-0.parquet is damaged")
    assert tempera("check", whole).code == 2 or "part-0.parquet" in tempera("check", whole).out


def test_columns_that_are_missing_or_no_texts_are_named(
    tiny_run: Path, corpus: Path, tmp_path: Path, tempera: Command
) -> None:
    out = tmp_path / "out"
    refused(
        tempera("encode", tiny_run, corpus, "-o", out, "--text", "year"),
        "column 'year' holds int64; expected texts",
    )
    refused(
        tempera("encode", tiny_run, corpus, "-o", out / "a", "--text", "txt"),
        "no column 'txt'",
        "Did you mean text?",
    )
    refused(
        tempera("encode", tiny_run, corpus, "-o", out / "b", "--columns", "embedding"),
        "cannot be kept",
    )
    parquet.write_table(pa.table({"body": ["a"]}), corpus / "zzz.parquet")
    refused(
        tempera("encode", tiny_run, corpus, "-o", out / "c"),
        "zzz.parquet has no column 'text'; it has body",
    )
    assert sorted(shards_in(out / "c")) == sorted(
        f"{name}.parquet" for name in ("more/part-2", "more/part-3", "part-0", "part-1")
    )
    parquet.write_table(pa.table({"id": [1, None], "text": ["a", "b"]}), tmp_path / "null.parquet")
    refused(
        tempera("encode", tiny_run, tmp_path / "null.parquet", "-o", out / "d"),
        "row 2: column 'id' has no id",
    )


def test_outputs_that_are_inputs_and_names_that_meet_are_refused(
    tiny_run: Path, corpus: Path, tmp_path: Path, tempera: Command
) -> None:
    refused(tempera("encode", tiny_run, corpus, "-o", corpus), "reads")
    refused(tempera("encode", tiny_run, corpus, "-o", corpus / "vectors"), f"lies in {corpus}")
    refused(tempera("encode", tiny_run, corpus, "-o", tmp_path), "reads")
    refused(tempera("encode", tiny_run, corpus, "-o", tiny_run / "vectors"), "a finished run")
    (corpus / "part-0.jsonl").write_text('{"text": "a"}\n')
    refused(
        tempera("encode", tiny_run, corpus, "-o", tmp_path / "out"), "would both be part-0.parquet"
    )
    (corpus / "part-0.jsonl").unlink()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    refused(tempera("encode", tiny_run, corpus, "-o", tmp_path / "used"), "notes.txt")
    refused(tempera("encode", tiny_run, corpus, "-o", corpus / "part-0.parquet"), "is a file")
    refused(
        tempera("encode", tiny_run, tmp_path / "absent", "-o", tmp_path / "out"),
        "no such file or folder",
    )
    refused(
        tempera("encode", tmp_path / "absent", corpus, "-o", tmp_path / "out"), "no such folder"
    )
    refused(tempera("encode", tiny_run, corpus), "give --output FOLDER, or --dry-run")
    refused(
        tempera("encode", tiny_run, corpus, "-o", tmp_path / "out", "--price", 1),
        "--price is for --dry-run",
    )
    refused(
        tempera(
            "encode", tiny_run, corpus, "-o", tmp_path / "out", "--worker", "0/2", "--workers", 2
        ),
        "drop --workers",
    )
    assert not (tmp_path / "out").exists()


def test_a_file_that_cannot_grow_is_one_line_and_loses_nothing(
    tiny_run: Path, corpus: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9 << 10, 9 << 10))

    command = [
        sys.executable,
        "-m",
        "tempera",
        "encode",
        str(tiny_run),
        str(corpus),
        "-o",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    lines = [line for line in done.stderr.splitlines() if line.startswith("tempera: ")]
    assert done.returncode == 2 and len(lines) == 1, done.stderr
    assert (
        "cannot write" in lines[0] and "part-0.parquet" in lines[0] and "File too large" in lines[0]
    )
    assert len(shards_in(out)) == 2 and not list(out.rglob("*.partial"))
    encode(tiny_run, corpus, out)
    assert shards_in(out) == shards_in(whole)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that nobody may write, not even root."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a folder")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_read_only_folder_is_one_line(
    tiny_run: Path, corpus: Path, read_only: Path, tempera: Command
) -> None:
    refused(
        tempera("encode", tiny_run, corpus, "-o", read_only),
        "cannot write",
        "Read-only file system",
    )


def test_a_vector_that_is_not_finite_is_named(
    tiny_run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    from tempera.corpora import encoding_model

    monkeypatch.setattr(
        encoding_model,
        "load",
        lambda *_, **__: lambda texts: np.full((len(texts), 4), np.nan, np.float32),
    )
    with pytest.raises(TemperaError, match=r"part-2.parquet from row 1 on are not finite"):
        encode(tiny_run, corpus, tmp_path / "out")
    assert shards_in(tmp_path / "out") == {}


def test_a_remote_place_that_is_unknown_is_one_line(
    tiny_run: Path, tmp_path: Path, tempera: Command
) -> None:
    pytest.importorskip("fsspec")
    refused(tempera("encode", tiny_run, "nowhere://bucket/a", "-o", tmp_path / "out"), "nowhere")


def test_a_worker_that_comes_late_loses_nothing(
    tiny_run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker has taken its shard over, finished everything, and removed its file."""
    out = tmp_path / "out"
    job = EncodingJob(str(tiny_run), (str(corpus),), str(out))
    job.begin()
    from tempera.corpora import corpus_worker

    real = corpus_worker._encode
    late = []

    def slow_encode(job: EncodingJob, *arguments: object) -> None:
        if not late:
            late.append(True)
            os.utime(out / "claims" / "more/part-2", (1, 1))
            encode(tiny_run, corpus, out)
            raise OutputError("cannot write: the file under way is gone")
        real(job, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(corpus_worker, "_encode", slow_encode)
    document, _ = encode_corpus(job)
    assert document is not None and document["rows"] == sum(ROWS)


def test_two_workers_may_begin_at_once(
    tiny_run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempera.corpora.output_place import LocalFolder

    first, second = (
        EncodingJob(str(tiny_run), (str(corpus),), str(tmp_path / "out")) for _ in range(2)
    )
    names = LocalFolder.names

    def begin_meanwhile(self: LocalFolder, folder: str) -> set[str]:
        monkeypatch.setattr(LocalFolder, "names", names)
        second.begin()
        return names(self, folder)

    monkeypatch.setattr(LocalFolder, "names", begin_meanwhile)
    first.begin()
    assert (tmp_path / "out" / "encoding.json").is_file()


def test_stale_is_ten_minutes() -> None:
    assert claims.STALE == 600  # as the guide says
