"""A real accelerator in the place of the pretend one, for the tests marked `gpu`: numbers are
close, and nothing is counted.

TEMPERA_TESTS=gpu pytest -m gpu -o python_files='on_*.py' tests/devices
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import pytest
import torch
from torch import Tensor

GIB = 1 << 30


class Accelerator:
    """The accelerator that torch finds."""

    exact = False

    def __init__(self, *_: Any, **__: Any) -> None:
        kind = torch.accelerator.current_accelerator(check_available=True)
        if kind is None:
            pytest.skip("there is no accelerator")
        self.device = torch.device(kind.type, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        torch.accelerator.synchronize(self.device)

    def clear(self) -> None:
        """Do nothing."""

    def total(self, kind: str) -> int:
        """Return 0."""
        return 0

    def by_line(self, kind: str) -> Iterator[str]:
        """Yield nothing."""
        return iter(())


def assert_same(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    """Fail if numbers differ by more than rounding."""
    torch.testing.assert_close(list(got), list(want), rtol=1e-3, atol=1e-5)
