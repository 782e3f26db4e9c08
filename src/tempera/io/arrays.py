"""Arrays and Arrow tables in files that are mapped into memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


def reserved(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap[Any, np.dtype[Any]]:
    """Make a mapped .npy file whose room on disk is taken: a full disk is an OSError here, and no crash later."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if sys.platform == "linux":
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def mapped(path: Path) -> pa.Table:
    """Map an Arrow file into memory."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
