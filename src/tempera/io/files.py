"""Output folders that are whole or not there."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import OutputError

MARK = "metrics.json"  # the file by which a folder is known as a finished run


@contextmanager
def staged(output: Path, overwrite: bool = False) -> Iterator[Path]:
    """A folder to write into that becomes `output` when the block ends well; otherwise it is removed.

    An `output` that is there keeps its content until the new one is complete and on disk.

    Raises:
        OutputError: `output` holds something and may not be replaced, or cannot be written (disk full, no permission).
    """
    output = Path(os.path.realpath(output))  # what a link stands for is replaced, the link stays
    stage = output.parent / f"{output.name}.partial"
    try:
        _refuse(output, overwrite)
        if stage.exists():
            with _owned(stage):  # of a run that was killed
                shutil.rmtree(stage)
        stage.mkdir(parents=True)
        with _owned(stage):
            try:
                began = stage.stat().st_ino
                yield stage
                if not stage.exists() or stage.stat().st_ino != began:
                    raise OutputError(
                        f"{stage} was removed while it was written; the same command again starts it anew"
                    )
                for path in (*stage.rglob("*"), stage):
                    _sync(path)
                _swap(stage, output)
            finally:
                shutil.rmtree(stage, ignore_errors=True)
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else str(stage)
        kept = "; what was in it is untouched" if os.path.exists(output) else ""
        why = error.strerror or f"{error}; is the disk full?"  # numpy counts what it has not written
        raise OutputError(f"cannot write {output}: {why} ({where}){kept}") from error


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """A folder that no other process owns at the same time; a process that ends, however it does, owns nothing any more."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(
                f"{folder}: another process is writing there; wait for it, or give another --output"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _refuse(output: Path, overwrite: bool) -> None:
    if not output.exists():
        return
    if not output.is_dir():
        raise OutputError(f"--output {output} is a file; give a folder")
    if output.is_mount():
        raise OutputError(
            f"--output {output} is a mount point, which cannot be replaced whole; give a folder inside it"
        )
    if not any(output.iterdir()):
        return
    if not (output / MARK).exists():
        raise OutputError(f"--output {output} holds files that are not a run of Tempera; give another folder")
    if not overwrite:
        raise OutputError(f"--output {output} holds another run; give another folder, or --overwrite to replace it")


def _swap(stage: Path, output: Path) -> None:
    old = output.with_name(f"{output.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)  # of a run that was killed here
    if output.exists():
        output.rename(old)
    try:
        stage.rename(output)
        _sync(output.parent)
    except BaseException:
        if output.exists():
            output.rename(stage)
        if old.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """JSON with two spaces of indent; a number that is not finite is an error."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


class JsonLines:
    """A log of one JSON object a line, flushed at every line.

    Args:
        tell: is given each record that is new.
    """

    def __init__(self, path: Path, tell: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self.records: list[dict[str, Any]] = []
        self.tell = tell
        self.file = path.open("w", encoding="utf-8")

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def go_on(self, records: list[dict[str, Any]]) -> None:
        """Take these in place of what has been written."""
        self.file.seek(0)
        self.file.truncate()
        self.records = []
        for record in records:
            self._append(record)

    def write(self, **record: Any) -> None:
        """Append one record."""
        self._append(record)
        if self.tell is not None:
            self.tell(record)

    def _append(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self.file.write(json.dumps(record, allow_nan=False) + "\n")
        self.file.flush()
