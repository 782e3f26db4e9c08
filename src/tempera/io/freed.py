"""Memory that has been freed, given back to the system."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

import pyarrow as pa


def give_back() -> None:
    """Give freed memory back to the system: allocators keep it for later, and after the reading of
    much text it is most of the memory of a process.

    >>> give_back()
    """
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        with suppress(AttributeError):  # musl has no such function
            ctypes.CDLL(None).malloc_trim(0)
