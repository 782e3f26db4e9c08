"""The exchange of two folders in one step of the file system."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

_HERE = -100  # AT_FDCWD: relative paths begin in the working folder
_LINUX_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_MACOS_SWAP = 2  # RENAME_SWAP of renamex_np(2)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders, and return True; False where the system or the disk has no such step.

    At every moment, each of the two names leads to one of the folders.

    >>> import tempfile
    >>> parent = Path(tempfile.mkdtemp())
    >>> for name in ("a", "b"):
    ...     (parent / name).mkdir()
    ...     size = (parent / name / "file").write_text(name)
    >>> exchange(parent / "a", parent / "b") in (True, False)
    True
    """
    rename = _rename()
    if rename is None:
        return False
    # A disk without this step, such as some network disks, refuses it and changes nothing.
    return bool(rename(os.fsencode(one), os.fsencode(other)) == 0)


@cache
def _rename() -> Any:
    """Return a function that exchanges two paths, and returns 0 on success; None without one."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "linux":
            linux = library.renameat2  # since glibc 2.28
            return lambda one, other: linux(_HERE, one, _HERE, other, _LINUX_EXCHANGE)
        if sys.platform == "darwin":
            macos = library.renamex_np
            return lambda one, other: macos(one, other, _MACOS_SWAP)
    except (OSError, AttributeError, TypeError):
        return None
    return None
