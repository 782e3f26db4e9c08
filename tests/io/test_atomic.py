"""An output folder is whole or not there, whatever goes wrong and when."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tempera.corpus.index import write_index
from tempera.errors import DataError, OutputError
from tempera.io import atomic
from tempera.io.atomic import MARK, new_file, renewed, staged, write_file
from tempera.io.documents import JsonLines, write_json
from tempera.io.manifest import MANIFEST, first_fault

NEW = {"metrics.json": '{"made_by": "tempera"}', "model/weights": "1 2 3", "empty": None}
OLD = {"metrics.json": '{"made_by": "tempera", "old": 1}', "model/old": "0", "notes.txt": "by hand"}
Content = dict[str, str | None]


def fill(folder: Path, content: Content) -> Path:
    """Files with their text; None makes a folder."""
    for name, text in content.items():
        path = folder / name
        (path.parent if text is not None else path).mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(text)
    assert holds(folder) == content
    return folder


def holds(folder: Path) -> Content:
    """All that a folder holds, apart from its manifest; of folders, only the empty ones."""
    assert folder.is_dir()
    found: Content = {}
    for path in folder.rglob("*"):
        if path.name == MANIFEST:
            continue
        if path.is_file() or not any(path.iterdir()):
            found[str(path.relative_to(folder))] = path.read_text() if path.is_file() else None
    return found


def write(output: Path, overwrite: bool = False) -> None:
    with staged(output, overwrite) as folder:
        fill(folder, NEW)


def refused(output: Path, overwrite: bool = False) -> str:
    """The message of a refusal before anything is written."""
    with pytest.raises(OutputError) as error, staged(output, overwrite):
        pytest.fail("the block was entered")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that is there."""
    return fill(tmp_path / "run", OLD)


# When all goes well.


def test_the_folder_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "run")
    assert holds(tmp_path / "a" / "b" / "run") == NEW
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["run"]


def test_nothing_is_there_until_all_is(run: Path) -> None:
    with staged(run.parent / "new") as folder, staged(run, overwrite=True) as other:
        fill(folder, NEW)
        fill(other, NEW)
        assert not (run.parent / "new").exists()
        assert holds(run) == OLD
    assert holds(run.parent / "new") == NEW == holds(run)


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write(tmp_path / "run")
    assert holds(tmp_path / "run") == NEW and len(list(tmp_path.iterdir())) == 1


def test_a_lock_of_another_program_stays(tmp_path: Path) -> None:
    (tmp_path / "poetry.lock").write_text("packages")
    write(tmp_path / "poetry")
    assert (
        holds(tmp_path / "poetry") == NEW and (tmp_path / "poetry.lock").read_text() == "packages"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["poetry", "poetry.lock"]


def test_a_run_is_replaced_whole(run: Path) -> None:
    write(run, overwrite=True)
    assert holds(run) == NEW and len(list(run.parent.iterdir())) == 1


@pytest.mark.parametrize("path", ["run", "./run", "a/b/../run", "../here/run"])
def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    here = tmp_path / "here"
    fill(here / "a", {"b": None})
    monkeypatch.chdir(here)
    with staged(Path(path)) as folder:
        fill(folder, NEW)
        monkeypatch.chdir(tmp_path)  # the folder is where it was asked for
    assert holds(here / ("a/run" if path.startswith("a") else "run")) == NEW


def test_what_a_link_stands_for_is_replaced(run: Path) -> None:
    link = run.parent / "latest"
    link.symlink_to(run)
    for _ in range(2):
        write(link, overwrite=True)
    assert link.is_symlink() and holds(run) == NEW
    assert sorted(path.name for path in run.parent.iterdir()) == ["latest", "run"]


@pytest.mark.parametrize("text", ["{}", '{"made_by": "hand"}', "[]", "no JSON"])
def test_a_folder_with_the_metrics_of_another_program_stays(tmp_path: Path, text: str) -> None:
    theirs = {"metrics.json": text, "config.yaml": "", "thesis.tex": "years of work"}
    assert "holds files that are not a run of Tempera" in refused(
        fill(tmp_path / "run", theirs), overwrite=True
    )
    fill(tmp_path / "new.replaced", theirs)
    assert f"{tmp_path / 'new.replaced'}, where an earlier result would wait, is none" in refused(
        tmp_path / "new"
    )
    assert (
        holds(tmp_path / "run") == theirs == holds(tmp_path / "new.replaced")
        and len(list(tmp_path.iterdir())) == 2
    )


def test_a_run_that_does_not_say_who_has_made_it_is_replaced(tmp_path: Path) -> None:
    run = fill(
        tmp_path / "run",
        dict.fromkeys(("config.yaml", "log.jsonl", "report.html"), "") | {"metrics.json": "{}"},
    )
    write(run, overwrite=True)
    assert holds(run) == NEW


@pytest.mark.parametrize("left", ["partial", "replaced"])
def test_what_a_killed_run_left_is_cleared(run: Path, left: str) -> None:
    fill(run.parent / f"run.{left}", {"model/half": "0", "metrics.json": '{"made_by": "tempera"}'})
    write(run, overwrite=True)
    assert holds(run) == NEW and len(list(run.parent.iterdir())) == 1


def test_a_run_that_was_whole_when_its_process_was_killed_takes_its_place(run: Path) -> None:
    """Between the two renames, when neither the old run nor the new one stands under its name."""
    fill(run.parent / "run.partial", NEW)
    run.rename(run.parent / "run.replaced")
    with pytest.raises(OutputError, match="holds an earlier result"):
        write(run)
    assert holds(run) == NEW and len(list(run.parent.iterdir())) == 1


def test_everything_is_on_disk_before_it_is_there(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and folder is synced under its first name, and the parent once the names are
    right."""
    synced: list[tuple[int, Content]] = []

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, holds(run)))

    monkeypatch.setattr(os, "fsync", fsync)
    write(run, overwrite=True)
    monkeypatch.undo()
    *before, last = synced
    assert {inode for inode, _ in before} == {path.stat().st_ino for path in (run, *run.rglob("*"))}
    assert all(content == OLD for _, content in before)
    assert last == (run.parent.stat().st_ino, NEW)


# What is refused.


def test_a_run_is_not_replaced_unasked(run: Path) -> None:
    assert (
        refused(run)
        == f"--output {run} holds an earlier result; give another folder, or --overwrite to replace it"
    )
    assert holds(run) == OLD and len(list(run.parent.iterdir())) == 1


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_no_run_is_never_replaced(run: Path, overwrite: bool) -> None:
    (run / MARK).unlink()
    before = holds(run)
    assert (
        refused(run, overwrite)
        == f"--output {run} holds files that are not a run of Tempera; give another folder"
    )
    assert holds(run) == before and len(before) == 2


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_never_replaced(run: Path, overwrite: bool) -> None:
    path = run / "notes.txt"
    assert refused(path, overwrite) == f"--output {path} is a file; give a folder"
    assert refused(path / "below", overwrite).startswith(
        f"cannot write {path}/below: Not a directory ("
    )
    assert holds(run) == OLD


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_mount_point_is_never_replaced(overwrite: bool) -> None:
    message = "--output / is a mount point, which cannot be replaced whole; give a folder inside it"
    assert refused(Path("/"), overwrite) == message


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    for name in ("x" * 250, "x" * 300):
        assert f"{name}: File name too long (" in refused(tmp_path / name)
    assert not list(tmp_path.iterdir())


# What goes wrong on the way.


@pytest.mark.parametrize(
    "error", [ValueError("wrong"), KeyboardInterrupt(), SystemExit(3), OutputError("inner")]
)
@pytest.mark.parametrize("there", [False, True])
def test_an_error_in_the_block_leaves_what_was_there(
    run: Path, error: BaseException, there: bool
) -> None:
    output = run if there else run.parent / "new"

    def write_and_raise() -> None:
        with staged(output, overwrite=True) as folder:
            fill(folder, NEW)
            raise error

    with pytest.raises(type(error)) as raised:
        write_and_raise()
    assert raised.value is error  # as it was
    assert holds(run) == OLD and [path.name for path in run.parent.iterdir()] == ["run"]


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, moment: str) -> Iterator[None]:
    """A disk that is full from one call of a function on: the first, or the one that `moment`
    counts."""
    name, _, after = moment.partition(" ")
    if name == "rename":  # as on a disk that cannot exchange folders
        monkeypatch.setattr(atomic, "exchange", lambda one, other: False)
    owner = {"rename": Path, "fsync": os, "mkdir": Path, "rmtree": shutil, "write_text": Path}[name]
    real, left = getattr(owner, name), [int(after or 0)]

    def call(*arguments: object, **options: object) -> object:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, call)
        yield
    assert left[0] < 0, f"{moment}: not called so often"


# NEW has two files, two folders and a manifest; the folder itself and then its parent are the sixth
# and seventh to be synced.
MOMENTS = [
    "mkdir",
    "write_text",
    "write_text 1",
    *(f"fsync {i}" for i in range(7)),
    "rename 0",
    "rename 1",
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_disk_that_is_full_at_any_moment_leaves_the_run_that_was_there(
    run: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with failing(monkeypatch, moment), pytest.raises(OutputError) as error:
        write(run, overwrite=True)
    message = (
        f"cannot write {run}: No space left on device ({run}.partial); what was in it is untouched"
    )
    assert str(error.value) == message
    assert holds(run) == OLD and [path.name for path in run.parent.iterdir()] == ["run"]
    write(run, overwrite=True)
    assert holds(run) == NEW


@pytest.mark.parametrize("moment", [moment for moment in MOMENTS if moment != "rename 1"])
def test_a_disk_that_is_full_at_any_moment_leaves_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with failing(monkeypatch, moment), pytest.raises(OutputError) as error:
        write(tmp_path / "run")
    path = tmp_path / "run"
    assert str(error.value) == f"cannot write {path}: No space left on device ({path}.partial)"
    assert not list(tmp_path.iterdir())


def test_an_old_run_that_cannot_be_removed_harms_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rmtree(path: Path, ignore_errors: bool = False) -> None:
        assert ignore_errors
        # As the real one when it may not remove anything.

    really = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "run.replaced":
            raise PermissionError(path)
        really(path, missing_ok)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    monkeypatch.setattr(Path, "unlink", unlink)
    write(run, overwrite=True)
    monkeypatch.undo()
    assert holds(run) == NEW and holds(run.parent / "run.replaced") == OLD
    fill(run, {**NEW, "notes.txt": "2"})
    write(run, overwrite=True)
    assert holds(run) == NEW and [path.name for path in run.parent.iterdir()] == ["run"]


# Folders that change while others read them.


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_name_always_leads_to_a_whole_run(
    run: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    """Before and after every call of the system that replaces a run; a disk without the exchange of
    two folders has one moment without the run."""
    if not exchanges:
        monkeypatch.setattr(atomic, "exchange", lambda one, other: False)
    seen: list[Content | None] = []

    def looking(real):
        def call(*arguments: object, **options: object) -> object:
            seen.append(holds(run) if run.is_dir() else None)
            result = real(*arguments, **options)
            seen.append(holds(run) if run.is_dir() else None)
            return result

        return call

    for owner, name in ((Path, "rename"), (shutil, "rmtree"), (os, "fsync"), (atomic, "exchange")):
        monkeypatch.setattr(owner, name, looking(getattr(owner, name)))
    write(run, overwrite=True)
    monkeypatch.undo()
    assert (None not in seen) == exchanges
    states = [state for state in seen if state is not None]
    changes = [a for a, b in pairwise(states) if a != b]
    assert states[0] == OLD and states[-1] == NEW and len(changes) == 1
    assert [path.name for path in run.parent.iterdir()] == ["run"]


@pytest.fixture
def whole(run: Path) -> Path:
    """A run with a manifest."""
    atomic.write_manifest(run)
    return run


def test_a_renewed_run_shares_what_did_not_change(whole: Path) -> None:
    inodes = {name: (whole / name).stat().st_ino for name in OLD}
    with renewed(whole, without=["model"]) as folder:
        assert sorted(holds(folder)) == ["metrics.json", "notes.txt"]
        fill(folder / "model", {"new": "1"})
        write_file(folder / "notes.txt", b"by machine")
        assert holds(whole) == OLD
    assert holds(whole) == {
        "metrics.json": OLD["metrics.json"],
        "notes.txt": "by machine",
        "model/new": "1",
    }
    assert (whole / "metrics.json").stat().st_ino == inodes["metrics.json"]
    assert (whole / "notes.txt").stat().st_ino != inodes["notes.txt"]
    assert first_fault(whole) is None
    assert [path.name for path in whole.parent.iterdir()] == ["run"]


@pytest.mark.skipif(os.name == "nt", reason="modes and links of POSIX")
def test_a_renewed_run_keeps_its_modes_and_inner_links(whole: Path) -> None:
    (whole / "inner").mkdir()
    (whole / "inner" / "file").write_text("a")
    (whole / "inner").chmod(0o750)
    (whole / "alias").symlink_to("inner")
    whole.chmod(0o700)
    with renewed(whole) as folder:
        (folder / "more").write_text("b")
    assert whole.stat().st_mode & 0o777 == 0o700
    assert (whole / "inner").stat().st_mode & 0o777 == 0o750
    assert os.readlink(whole / "alias") == "inner" and (whole / "alias" / "file").read_text() == "a"


def test_a_folder_of_somebody_else_is_not_removed_by_a_renewal(whole: Path) -> None:
    other = whole.with_name(f"{whole.name}.replaced")
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="is none of Tempera"), renewed(whole):
        pytest.fail("the block was entered")
    assert (other / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("links", [True, False])
def test_damage_of_a_shared_file_is_found_after_it_was_renewed(
    whole: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    (whole / "model" / "old").write_text("1")
    if not links:
        monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError(1, "no")))
        with pytest.raises(DataError, match="is damaged"), renewed(whole):
            pass
        assert first_fault(whole) is not None
        return
    with renewed(whole) as folder:
        write_file(folder / "notes.txt", b"2")
    assert first_fault(whole) == "model/old: its checksum differs"


@pytest.mark.parametrize("moment", ["mkdir", *(f"fsync {i}" for i in range(6)), "rename 0"])
def test_a_disk_that_is_full_while_a_run_is_renewed_leaves_it(
    whole: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def renew() -> None:
        with renewed(whole) as folder:
            (folder / "model" / "more").write_text("2")

    with failing(monkeypatch, moment), pytest.raises(OutputError) as error:
        renew()
    assert str(error.value).startswith(f"cannot write {whole}: No space left on device")
    assert holds(whole) == OLD and first_fault(whole) is None
    assert [path.name for path in whole.parent.iterdir()] == ["run"]
    renew()
    assert holds(whole) == {**OLD, "model/more": "2"}


def test_a_run_is_renewed_by_one_process_at_a_time(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_PATIENCE", 0.1)
    busy = pytest.raises(OutputError, match="another process is writing")
    with renewed(whole), busy, renewed(whole):
        pytest.fail("the block was entered")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    try:
        assert disk.is_mount() and shutil.disk_usage(disk).total == 2**20
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def weights(folder: Path) -> None:
    from tempera.towers.static import Static

    Static(dimensions=30_000, vocabulary=60).build(["a word and a word"] * 3).save(folder / "model")


def tokenizer(folder: Path) -> None:
    from tempera.towers.static import Static

    fill(folder, {"metrics.json": "x" * (2**20 - 65_000)})
    assert 8_000 < shutil.disk_usage(folder).free < 65_000
    Static(dimensions=1, vocabulary=4000).build([f"word{i:x}" * 2 for i in range(2000)]).save(
        folder / "model"
    )


def vectors(folder: Path) -> None:
    write_index(
        folder / "index",
        np.ones((500, 1000), np.float32),
        pa.table({"doc_id": [], "doc": [], "name": []}),
    )


def documents(folder: Path) -> None:
    texts = {name: pa.array(["long " * 100] * 3000) for name in ("name", "place", "doc")}
    write_index(
        folder / "index", np.ones((1, 1), np.float32), pa.table({"doc_id": range(3000), **texts})
    )


def log(folder: Path) -> None:
    with JsonLines(folder / "log.jsonl") as lines:
        for step in range(100):
            lines.write(step=step, text="long " * 10_000)


def text(folder: Path) -> None:
    write_json(folder / MARK, "long " * 10**6)


@pytest.mark.parametrize(
    "part", [weights, tokenizer, vectors, documents, log, text], ids=lambda part: part.__name__
)
def test_a_full_disk(small_disk: Path, part) -> None:
    run = fill(small_disk / "run", OLD)
    with pytest.raises(OutputError) as error, staged(run, overwrite=True) as folder:
        part(folder)
    assert str(error.value).startswith(f"cannot write {run}: ") and "\n" not in str(error.value)
    assert str(error.value).endswith("; what was in it is untouched")
    assert part is vectors or "No space left on device" in str(
        error.value
    )  # numpy keeps the reason to itself
    assert holds(run) == OLD and [path.name for path in small_disk.iterdir()] == ["run"]
    write(run, overwrite=True)
    assert holds(run) == NEW


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder of somebody else's, to whom root gives way for the test."""
    root = os.geteuid() == 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        fill(folder / "run", OLD)
        (folder / "closed").mkdir(mode=0o700)
        if root:
            os.seteuid(65534)
            stack.callback(os.seteuid, 0)
        else:
            (folder / "closed").chmod(0)
            folder.chmod(0o555)
            stack.callback(lambda: (folder.chmod(0o755), (folder / "closed").chmod(0o700)))
        assert not os.access(folder, os.W_OK, effective_ids=True)
        yield folder


@pytest.mark.parametrize(
    ("output", "kept"),
    [("new", False), ("a/b/new", False), ("run", True), ("closed", True), ("closed/new", False)],
)
def test_folders_that_may_not_be_written(nobody: Path, output: str, kept: bool) -> None:
    message = refused(nobody / output, overwrite=True)
    assert message.startswith(f"cannot write {nobody / output}: Permission denied (")
    assert message.endswith("; what was in it is untouched") == kept
    assert holds(nobody / "run") == OLD
    assert sorted(path.name for path in nobody.iterdir()) == ["closed", "run"]


# Files.


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "a" / "scores.csv"
    write_file(path, b"old")

    def stops() -> None:
        with new_file(path) as partial:
            partial.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OutputError) as error:
        stops()
    expected = f"cannot write {path}: No space left on device ({path}.partial); what was in it is untouched"
    assert str(error.value) == expected
    assert path.read_bytes() == b"old" and [each.name for each in path.parent.iterdir()] == [
        "scores.csv"
    ]


def test_a_file_is_on_disk_before_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "file", list[tuple[int, bool]]()
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append((os.fstat(descriptor).st_ino, path.exists()))
    )
    write_file(path, b"new")
    monkeypatch.undo()
    assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_only_files_are_replaced_by_files(tmp_path: Path) -> None:
    (link := tmp_path / "link").symlink_to(tmp_path / "file")
    write_file(link, b"1")
    assert link.is_symlink() and (tmp_path / "file").read_bytes() == b"1"
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", Path("/dev/null")):
        with pytest.raises(OutputError, match="it is not a regular file; give another name"):
            write_file(path, b"1")


# What is written.


def test_json_as_people_read_it(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [1, 0.1], "a": "Größe"})
    assert (
        tmp_path / "a.json"
    ).read_bytes().decode() == '{\n  "b": [\n    1,\n    0.1\n  ],\n  "a": "Größe"\n}\n'


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have(tmp_path: Path, number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": number})
    assert not (tmp_path / "a.json").exists()
    with (
        JsonLines(tmp_path / "log.jsonl") as log,
        pytest.raises(ValueError, match="not JSON compliant"),
    ):
        log.write(loss=number)
    assert (tmp_path / "log.jsonl").read_text() == ""


def test_each_line_is_on_its_way_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with JsonLines(path) as log:
        for step in range(3):
            log.write(event="step", step=step, text="a\nb ö")
            lines = path.read_text().splitlines()
            assert [json.loads(line) for line in lines] == log.records
            assert (
                log.records[-1] == {"event": "step", "step": step, "text": "a\nb ö"}
                and len(lines) == step + 1
            )
    assert log.file.closed
