"""Files and folders that appear whole or not at all.

New output lies beside its place as NAME.partial, is written to disk (every file, every folder, and
the folder around the output), and only then takes its place. After an error on the way, the partial
output is removed and old output stays.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import OutputError
from .documents import parsed, write_json
from .lock import alone
from .manifest import MANIFEST, FileSum, Manifest, names_in, refuse_damaged
from .swapped import exchange

_PATIENCE = 30.0  # seconds that a process waits to add files, while another process adds files
EXPORTS = "export"  # the folder for other programs, in the folder of a run or a model
MARK = "metrics.json"  # the file that tells a finished run from other folders
_MADE_BY = {"made_by": "tempera"}  # an entry of `MARK`, since other programs use the name, too
# Files of a run whose `MARK` has no such entry.
_RUN = ("config.yaml", MARK, "log.jsonl", "report.html")


def is_run(folder: Path) -> bool:
    """Return True if a run has written a folder; the tables in it are no data to train on."""
    return all((folder / name).is_file() for name in ("config.yaml", MARK))


def write_mark(folder: Path, document: Mapping[str, Any]) -> None:
    """Write the metrics of a result into its folder. The folder may be replaced from then on."""
    write_json(folder / MARK, {**_MADE_BY, **document})


@contextmanager
def new_file(path: Path, mark: str = "") -> Iterator[Path]:
    """Give a file to write that replaces `path` when the block ends without an error; after an
    error, the file is removed.

    Args:
        path: the later name of the file.
        mark: a part of the unfinished file's name, for a file that several processes may write.

    Raises:
        OutputError: the file cannot be written (disk full, no permission), or `path` is no file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "scores.csv"
    >>> with new_file(path) as partial:
    ...     size = partial.write_text("1,2")
    >>> path.read_text(), partial.exists()
    ('1,2', False)
    """
    path, partial = _places(path, mark)
    with as_output_error(path, partial):
        if path.exists() and not path.is_file():
            raise OutputError(f"cannot write {path}: it is not a regular file; give another name")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            _to_disk(partial)
            os.replace(partial, path)
            _to_disk(path.parent)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Replace the content of a file at once; raises OutputError as `new_file` does."""
    with new_file(path) as partial:
        partial.write_bytes(content)


@contextmanager
def new_folder(folder: Path, known: Mapping[str, FileSum] | None = None) -> Iterator[Path]:
    """Give a folder to fill that replaces `folder` when the block ends without an error; after an
    error, the folder is removed.

    A manifest of all files is written last.

    Args:
        folder: the later name of the folder.
        known: checksums of files of `folder`, for those that the block links into the new one.

    Raises:
        OutputError: the folder cannot be written (disk full, no permission), or somebody removed it
            meanwhile.
    """
    folder, partial = _places(folder)
    with as_output_error(folder, partial):
        try:
            _finish(partial, folder)
            shutil.rmtree(partial, ignore_errors=True)  # a killed process left it
            partial.mkdir(parents=True)
            inode = partial.stat().st_ino
            yield partial
            if not partial.exists() or partial.stat().st_ino != inode:
                raise OutputError(
                    f"{partial} was removed while it was written; run the same command again"
                )
            content = _manifest(partial, folder, known or {}).content()
            (partial / MANIFEST).unlink(missing_ok=True)  # it may be a link to an earlier manifest
            (partial / MANIFEST).write_bytes(content)
            for path in (*partial.rglob("*"), partial):
                _to_disk(path)
            _swap(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _manifest(partial: Path, folder: Path, known: Mapping[str, FileSum]) -> Manifest:
    """Return the manifest of a new folder; a file shared with the old folder keeps its known
    checksum, by which a fault that the file had before is still found."""
    files = {}
    for name in names_in(partial):
        is_shared = name in known and (folder / name).exists()
        if is_shared and os.path.samefile(partial / name, folder / name):
            files[name] = known[name]
        else:
            files[name] = FileSum.of(partial / name)
    return Manifest(partial, files)


@contextmanager
def renewed(folder: Path, without: Sequence[str] = ()) -> Iterator[Path]:
    """Give a copy of a finished folder to change, which takes the folder's place when the block
    ends without an error; processes take turns.

    The copy shares the files of the folder by hard links, where the disk has these, so that it
    costs as much as the files that the block writes. The block may add, replace and remove files,
    and never writes into an existing one.

    Args:
        folder: of a run.
        without: names of files and folders that the copy leaves out, to be written by the block.

    Raises:
        OutputError: another process is writing there, or the copy cannot be written.
        DataError: the manifest is damaged, or on a disk without links, a file.
    """
    folder = Path(os.path.realpath(folder))
    with as_output_error(folder), _only_writer(folder):
        if folder.is_mount():
            raise OutputError(
                f"{folder} is a mount point, which cannot be replaced whole; move the run into a folder inside it"
            )
        _refuse_foreign(folder)
        has_manifest = (folder / MANIFEST).is_file()
        known = dict(Manifest.of_folder(folder).files) if has_manifest else {}
        with new_folder(folder, known) as partial:
            _link_files(folder, partial, without)
            yield partial


def _link_files(folder: Path, partial: Path, without: Sequence[str]) -> None:
    """Fill a folder with the files of another one, apart from its manifest and from `without`."""
    left_out = {MANIFEST, *without}
    for here, folders, files in os.walk(folder):
        inner = Path(here).relative_to(folder)
        folders[:] = [each for each in folders if (inner / each).as_posix() not in left_out]
        (partial / inner).mkdir(exist_ok=True)
        shutil.copymode(here, partial / inner)
        links = [each for each in folders if os.path.islink(os.path.join(here, each))]
        for each in (*files, *links):
            name = inner / each
            if name.as_posix() not in left_out and not each.endswith(".partial"):
                _link(folder / name, partial / name)


def _link(path: Path, place: Path) -> None:
    """Link a file to a second place; where the disk has no links, copy it, once its checksum is
    compared."""
    try:
        os.link(path, place, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        refuse_damaged(path)
        shutil.copy2(path, place, follow_symlinks=False)


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files of a folder not made by `new_folder`."""
    write_file(folder / MANIFEST, Manifest.of(folder).content())


@contextmanager
def adding(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Let the block write files into a finished folder, and record the files in the manifest;
    processes take turns.

    Args:
        folder: of a run or a model, or an inner folder; without a manifest nothing is recorded.
        names: of the files to write, each whole or not at all.

    Raises:
        OutputError: another process writes there, or the manifest cannot be written.
    """
    manifest = Manifest.around(folder)
    if manifest is None:
        yield
        return
    place = manifest.folder
    with _only_writer(place):
        manifest = Manifest.of_folder(place)  # read again, now that no other process writes
        own = [manifest.name_of(folder / name) for name in names]
        # A process that is killed meanwhile leaves files without a checksum, and no file with a
        # wrong checksum.
        write_file(place / MANIFEST, manifest.without_files(own).content())
        try:
            yield
        except BaseException:
            write_file(place / MANIFEST, manifest.content())
            raise
        write_file(place / MANIFEST, manifest.with_files(own).content())


def write_manifest_again(folder: Path) -> None:
    """Write the manifest of a finished folder again, from its present files.

    Raises:
        OutputError: another process writes there, or the manifest cannot be written.
    """
    with _only_writer(Path(os.path.realpath(folder))):
        write_manifest(folder)


@contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a finished folder."""
    busy = f"another process is writing to {folder}; run the command again when it has ended"
    with as_output_error(folder), alone(_lock(folder), busy, _PATIENCE):
        yield


@contextmanager
def staged(
    output: Path,
    overwrite: bool = False,
    read: Sequence[str | Path] = (),
    unfinished: Path | None = None,
) -> Iterator[Path]:
    """Give a folder to fill, the later run folder `output`, to a single process at a time.

    Args:
        output: the folder of the run.
        overwrite: replace an earlier run in `output`.
        read: files and folders of the block's data; `output` may neither be nor hold any of these.
        unfinished: the checkpoints of an interrupted run to resume, for the message.

    Raises:
        OutputError: `output` holds something and may not be replaced, lies in a finished run,
            cannot be written, or another process writes there.
    """
    output, partial = _places(output)
    busy = f"{partial}: another process is writing there; wait for it, or give another --output"
    with as_output_error(output, partial):
        refuse_inside_run(output)
        _refuse(output, overwrite, read, unfinished)
        with alone(_lock(output), busy):
            _refuse_foreign(output)
            _finish(partial, output)
            # Another process may have finished in between.
            _refuse(output, overwrite, read, unfinished)
            with new_folder(output) as folder:
                yield folder


def refuse_replacing(
    output: Path, overwrite: bool, *read: str | Path, models: Sequence[str | Path] = ()
) -> None:
    """Raise OutputError for a file in the folder of a run or a model, and for an existing file of
    the data, or not to be replaced.

    Args:
        output: the file to write.
        overwrite: replace an existing file.
        read: files and folders of data; all files of a folder are read, and a file may be added.
        models: folders of models or runs in use; further runs are known by their files.
    """
    place = output.resolve()
    used = [Path(model).resolve() for model in models]
    for folder in place.parents:
        if folder in used or is_run(folder):
            raise OutputError(
                f"{output} is in {folder}, whose files belong together; give a file outside it"
            )
    if not output.exists():
        return
    if any(place.is_relative_to(Path(path).resolve()) for path in read):
        raise OutputError(
            f"{output} is read by this command and is never replaced by it; give another file to write"
        )
    if not overwrite:
        raise OutputError(f"{output} exists; give another file, or --overwrite to replace it")


def refuse_read(output: Path, read: Sequence[str | Path]) -> None:
    """Raise OutputError if a folder is, or holds, a file or folder of the data."""
    for each in read:
        if not each or not os.path.exists(each):
            continue
        # A link may lie in the folder and lead elsewhere.
        lies_inside = Path(os.path.abspath(each)).is_relative_to(os.path.abspath(output))
        leads_inside = Path(os.path.realpath(each)).is_relative_to(os.path.realpath(output))
        if lies_inside or leads_inside:
            raise OutputError(
                f"--output {output} is, or holds, {each}, which this command reads; give another folder"
            )


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file, and wait until the disk has the text."""
    new = not path.exists()
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if new:
        _to_disk(path.parent)


def _places(path: Path, mark: str = "") -> tuple[Path, Path]:
    """Return the final and the partial path of a file or folder; a link stays, and its target is
    replaced."""
    path = Path(os.path.realpath(path))
    return path, path.parent / f"{path.name}{mark}.partial"


@contextmanager
def as_output_error(path: Path, partial: Path | None = None) -> Iterator[None]:
    """Raise OutputError, in a line, where the block meets a full disk or a read-only folder.

    Args:
        path: the output, for the message.
        partial: the path of the unfinished output, for errors without the name of a file.
    """
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else str(partial or path)
        kept = "; what was in it is untouched" if os.path.exists(path) else ""
        # An error of numpy has no `strerror`; its text counts the items that were not written.
        why = error.strerror or f"{error}; is the disk full?"
        raise OutputError(f"cannot write {path}: {why} ({where}){kept}") from error


def refuse_inside_run(output: Path) -> None:
    """Raise OutputError for an output in the folder of a finished run: the files of a run belong
    together, and only exports have a place there."""
    place = Path(os.path.realpath(output))
    for folder in place.parents:
        if is_run(folder) and EXPORTS not in place.relative_to(folder).parts[:-1]:
            raise OutputError(
                f"--output {output} is in {folder}, a finished run, whose files belong together; give a place "
                "outside it"
            )


def _refuse(
    output: Path, overwrite: bool, read: Sequence[str | Path], unfinished: Path | None = None
) -> None:
    try:
        os.stat(output)  # `exists` would hide from Python 3.14 on that a name is too long
    except FileNotFoundError:
        return
    if not output.is_dir():
        raise OutputError(f"--output {output} is a file; give a folder")
    if output.is_mount():
        raise OutputError(
            f"--output {output} is a mount point, which cannot be replaced whole; give a folder inside it"
        )
    if not any(output.iterdir()):
        return
    refuse_read(output, read)
    if not _is_ours(output):
        raise OutputError(
            f"--output {output} holds files that are not a run of Tempera; give another folder"
        )
    if not overwrite and unfinished is not None:
        raise OutputError(
            f"--output {output} holds an earlier result, and {unfinished} an interrupted run that was to replace it: "
            "the same command with --overwrite resumes that run"
        )
    if not overwrite:
        raise OutputError(
            f"--output {output} holds an earlier result; give another folder, or --overwrite to replace it"
        )


def _is_ours(folder: Path) -> bool:
    """Return True if Tempera has written a folder."""
    try:
        document = parsed((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(document, dict):
        return False
    return _MADE_BY.items() <= document.items() or all((folder / name).is_file() for name in _RUN)


def _lock(place: Path) -> Path:
    return place.with_name(f".{place.name}.lock")


def _replaced(place: Path) -> Path:
    return place.with_name(f"{place.name}.replaced")


def _refuse_foreign(place: Path) -> None:
    """Raise OutputError for a folder of somebody else where an earlier result would wait, which
    would be removed."""
    old = _replaced(place)
    is_empty = old.is_dir() and not any(old.iterdir())  # a killed process has removed the rest
    if old.exists() and not is_empty and not _is_ours(old):
        raise OutputError(
            f"{old}, where an earlier result would wait, is none of Tempera: move it, or give another folder"
        )


def is_between(folder: Path) -> bool:
    """Return True at the moment in which a folder is replaced and its name leads to no folder, on a
    disk that cannot exchange folders."""
    place = Path(os.path.realpath(folder))
    return not place.exists() and _replaced(place).exists()


def _remove(old: Path) -> None:
    """Remove an earlier result, its mark last, so that a process killed on the way leaves a folder
    that is still known as Tempera's."""
    with suppress(OSError):  # the next writer clears what stays
        for path in old.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != MARK:
                path.unlink()
    shutil.rmtree(old, ignore_errors=True)


def _finish(new: Path, place: Path) -> None:
    """Complete the work of a process killed while replacing an old folder: put the new folder in
    its place, and remove the old folder."""
    old = _replaced(place)
    # The old folder was moved away only after the new folder was whole.
    if old.exists() and new.exists() and not place.exists():
        new.rename(place)
        _to_disk(place.parent)
    _remove(old)


def _swap(new: Path, place: Path) -> None:
    """Put a new folder in the place of an old one, and remove the old one.

    Where the disk can exchange folders, a reader finds one of them at every moment.
    """
    old = _replaced(place)
    if place.exists():
        if _exchanged(new, place):
            with suppress(OSError):  # the next writer clears what stays
                new.rename(old)
            _remove(old)
            return
        place.rename(old)
    try:
        new.rename(place)
        _to_disk(place.parent)
    except BaseException:
        if place.exists():
            place.rename(new)
        if old.exists():
            old.rename(place)
        raise
    _remove(old)


def _exchanged(new: Path, place: Path) -> bool:
    """Exchange two folders for good; False, with all as before, where the disk has no exchange.

    Raises:
        OSError: the exchange did not reach the disk, and was taken back.
    """
    if not exchange(new, place):
        return False
    try:
        _to_disk(place.parent)
    except BaseException:
        exchange(new, place)
        raise
    return True


def _to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no folders, and keeps their names itself
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
