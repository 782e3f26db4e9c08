"""Claims on shards under way: a file that is created exclusively, and goes stale.

A claim saves time and guards nothing: a shard that two workers write has the same bytes twice.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any

from ..io.atomic import as_output_error, new_file
from ..io.documents import parsed

STALE = 600.0  # seconds without a sign of the worker, after which its claim is taken over
_SIGN = 10.0  # seconds between signs
_EMPTY = 5.0  # seconds after which a claim without a worker's name is stale
_SAME = 1.0  # seconds within which two starts of a process are the same start


@dataclass
class ShardClaims:
    """The claims of one worker in a folder.

    Args:
        folder: of all claims; None claims everything, as in an object store, where each worker has
            a fixed share.
        stale: seconds after which a claim without a sign is taken over.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> one, other = ShardClaims(folder), ShardClaims(folder)
    >>> one.take("a"), other.take("a"), one.release("a"), other.take("a")
    (True, False, None, True)
    """

    folder: Path | None
    stale: float = STALE
    worker: str = field(default_factory=lambda: json.dumps({**_process(), "token": token_hex(8)}))
    _signed: float = 0.0

    def take(self, name: str) -> bool:
        """Claim a shard; return False if another living worker has it.

        Raises:
            OutputError: the folder cannot be written.
        """
        if self.folder is None:
            return True
        path = self.folder / name
        with as_output_error(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                if not self._is_stale(path):
                    return False
                return self._take_over(path)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(self.worker)
        return True

    def sign(self, name: str) -> None:
        """Say that this worker is alive."""
        now = time.monotonic()
        if self.folder is None or now - self._signed < min(_SIGN, self.stale / 4):
            return
        self._signed = now
        with suppress(OSError):
            os.utime(self.folder / name)

    def release(self, name: str) -> None:
        """Give a shard back, unless another worker has taken it over."""
        if self.folder is None:
            return
        path = self.folder / name
        with suppress(OSError):
            if path.read_text(encoding="utf-8") == self.worker:
                path.unlink()

    def _take_over(self, path: Path) -> bool:
        """Put a claim of one's own in the place of a stale one."""
        with new_file(path, f".{token_hex(4)}") as partial:
            partial.write_text(self.worker, encoding="utf-8")
        return True

    def _is_stale(self, path: Path) -> bool:
        """Return True for a claim whose worker has ended on this machine, or has given no sign for
        long."""
        try:
            age = time.time() - path.stat().st_mtime
            holder: Any = parsed(path.read_text(encoding="utf-8"))
            machine, process, started = holder["machine"], holder["process"], holder["started"]
        except FileNotFoundError:
            return True
        except (OSError, ValueError, LookupError, TypeError):
            return age > min(self.stale, _EMPTY)  # killed while it was claimed
        if age > self.stale:
            return True
        return bool(machine == _machine() and not _is_alive(process, started))


def _process() -> dict[str, Any]:
    """Return the machine, the number and the start of this process."""
    import psutil

    own = psutil.Process()
    return {"machine": _machine(), "process": own.pid, "started": own.create_time()}


@cache
def _machine() -> str:
    """Return a name of this machine or container, unlike those of others with the same folder."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _is_alive(process: int, started: float) -> bool:
    import psutil

    try:
        return bool(abs(psutil.Process(process).create_time() - started) < _SAME)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
