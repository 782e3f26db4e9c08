"""Modules of Arrow that are loaded by their first use: a search of a finished run needs none of
them, and loading both takes as long as the search."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """Stand for a module until one of its names is used.

    Args:
        name: of the module.

    >>> decimal = Later("decimal")
    >>> decimal.Decimal("0.1") + decimal.Decimal("0.2")
    Decimal('0.3')
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._name), name)
        setattr(self, name, value)  # the next use finds it here
        return value


compute = Later("pyarrow.compute")
parquet = Later("pyarrow.parquet")
