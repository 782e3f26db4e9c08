"""Products of matrices, on a CPU by the faster library.

torch multiplies float32 by MKL, with 256 of the 512 bits of an AMD processor: on a Zen 5, oneDNN
takes less than half of the time. The only switch to oneDNN also allows oneDNN to round factors to
bf16, as happens where a processor has AMX. So a measurement shows whether oneDNN is faster and
exact, and only products of this module go to oneDNN: torch's attention would take six times as
long. All threads share the switch, so that the products of other threads go to oneDNN in the
meantime, too.

Letters in shapes: m rows, k inputs, o outputs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

WORTH = 1.5  # times as fast another way to multiply has to be, to be taken
# Products of two numbers that pay for oneDNN's later start, of some 10 microseconds.
_LARGE = 1 << 21
_ROUNDS = 9
_FEWEST = 32  # rows that are multiplied together
_HALF = (torch.bfloat16, torch.float16)


def mm(x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """Return x y, [m, k] and [k, o] to [m, o]; by oneDNN where oneDNN pays.

    >>> mm(torch.ones(1, 2), torch.ones(2, 3)).tolist()
    [[2.0, 2.0, 2.0]]
    """
    with by_onednn(x, y):
        return torch.mm(x, y, out=out)


def by_onednn(x: Tensor, y: Tensor) -> AbstractContextManager[None]:
    """Return a context in which x, [m, k], times y, [k, o], in float32 is multiplied by oneDNN,
    where oneDNN pays.

    >>> with by_onednn(x := torch.ones(1, 2), y := torch.ones(2, 1)):
    ...     torch.addmm(torch.ones(1, 1), x, y).tolist()
    [[3.0]]
    """
    return _switched() if onednn_takes(x, y.shape[1]) else nullcontext()


def filled(rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return rows in a precision, and zeros up to a recurring number of rows: [m, k] -> [r, k].

    oneDNN prepares for each new shape. The number is a multiple of 32, and of a sixteenth of the
    power of 2 below m: 32, 64, ... 512, 544, ... 1,024, 1,088, ...

    >>> [len(filled(torch.ones(rows, 1))) for rows in (1, 32, 500, 513, 1025)]
    [32, 32, 512, 544, 1088]
    """
    low = rows if dtype is None else rows.to(dtype)
    step = max(_FEWEST, 1 << max(0, len(rows).bit_length() - 5))
    more = -len(rows) % step
    if not more:
        return low.contiguous()
    return torch.cat([low, low.new_zeros(more, low.shape[1])])


def unfilled(products: Tensor, shape: torch.Size) -> Tensor:
    """Return the products of rows, [r, o], without the products of filling zeros, laid out as the
    rows, [..., k].

    >>> unfilled(torch.ones(32, 5), torch.Size([2, 3, 4])).shape
    torch.Size([2, 3, 5])
    """
    return products[: shape[:-1].numel()].view(*shape[:-1], products.shape[1])


def onednn_takes(x: Tensor, columns: int) -> bool:
    """Return True if oneDNN multiplies rows of float32 by so many columns in less time than torch.

    >>> onednn_takes(torch.ones(2, 3), 4), onednn_takes(torch.ones(512, 512, dtype=torch.float64), 512)
    (False, False)
    """
    is_large = x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() * columns >= _LARGE
    return is_large and onednn_pays()


def onednn_pays() -> bool:
    """Return True if oneDNN multiplies float32 in less time than torch here, as exactly; or the
    choice of `choose_onednn`."""
    if _choice.chosen is not None:
        return _choice.chosen
    return onednn_gain() >= WORTH


def choose_onednn(choice: bool) -> None:
    """Multiply by the library that a run began with, elsewhere or in a busier moment, so that the
    run ends with the same bits. oneDNN has to be exact here."""
    _choice.chosen = choice and onednn_gain() > 0


@cache
def onednn_gain() -> float:
    """Return torch's time over oneDNN's for a product in float32; 0 if oneDNN is not as exact.
    Measured once, in about 0.05 s."""
    if not torch.backends.mkldnn.is_available() or _choice.matmul is None:  # type: ignore[no-untyped-call]
        return 0.0  # without oneDNN, or before torch 2.9
    # Whoever asks first may be counting what is computed, computing on paper or in half precision,
    # or in another thread.
    with (
        _choice.measuring,
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch.autocast("cpu", enabled=False),
    ):
        if _choice.matmul.fp32_precision != "none":  # the user's choice
            return 0.0
        try:
            with _switched():
                exact = all(map(_is_exact, _SHAPES))
        except RuntimeError:  # as where torch's switches are locked
            return 0.0
        x = torch.ones(256, 512, dtype=torch.float32, device="cpu")
        y = torch.ones(512, 1024, dtype=torch.float32, device="cpu")
        by_torch = []
        by_onednn = []
        for _ in range(_ROUNDS):  # in turns, so that a busy moment meets both
            by_torch.append(_seconds(x, y))
            with _switched():
                by_onednn.append(_seconds(x, y))
    return min(by_torch) / min(by_onednn) if exact else 0.0


_SHAPES = ((64, 64, 64), (100, 33, 65), (256, 512, 256), (1024, 64, 1024))


def _is_exact(shape: tuple[int, int, int]) -> bool:
    """Return True if a product of integers that float32 holds and bf16 does not is right, in any
    layout of the factors."""
    m, k, o = shape
    x = torch.arange(m * k, device="cpu").view(m, k) % 1999 - 999
    y = torch.arange(k * o, device="cpu").view(k, o) % 29 - 14  # so that sums are below 2^24
    want = (x.double() @ y.double()).float()
    for a in (x.float(), x.T.float().contiguous().T):
        for b in (y.float(), y.T.float().contiguous().T):
            if not torch.equal(a @ b, want):
                return False
    return True


def _seconds(x: Tensor, y: Tensor) -> float:
    """Return the CPU seconds of a product in this thread, since other programs change CPU seconds
    less; wall seconds where the clock of CPU seconds is coarse."""
    clock = time.perf_counter
    if time.get_clock_info("thread_time").resolution < 1e-5:
        clock = time.thread_time
    start = clock()
    torch.mm(x, y)
    return clock() - start


class _Choice:
    """The library of a run's beginning, and the switch of all threads: the first thread sets the
    switch, the last thread restores the switch."""

    def __init__(self) -> None:
        self.chosen: bool | None = None
        self.measuring = threading.Lock()
        self.entering = threading.Lock()
        self.inside = 0
        self.earlier = "none"
        self.matmul: Any = getattr(torch.backends.mkldnn, "matmul", None)

    def __enter__(self) -> None:
        with self.entering:
            if not self.inside:
                self.earlier = self.matmul.fp32_precision
                self.matmul.fp32_precision = "bf16"
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.entering:
            self.inside -= 1
            if not self.inside:
                self.matmul.fp32_precision = self.earlier


_choice = _Choice()


def _switched() -> AbstractContextManager[None]:
    return _choice


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows times weights, and a bias: [m, k], [o, k] and [o] to [m, o].

    On a CPU oneDNN adds the bias within a product in half precision. torch copies the bias to every
    row first, and a layer of MiniLM takes 1.1 to 1.2 times as long.

    >>> linear(torch.ones(1, 2), torch.ones(3, 2), torch.ones(3)).tolist()
    [[3.0, 3.0, 3.0]]
    """
    if bias is not None and rows.dtype in _HALF and rows.device.type == "cpu":
        return _adding(rows.dtype)(rows, weight, bias)
    with by_onednn(rows, weight.T):
        return F.linear(rows, weight, bias)


@lru_cache
def _adding(dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return oneDNN's linear layer, also known to torch's compiler; or torch's, where oneDNN has
    none in the precision."""
    try:
        adding: Any = torch.ops.mkldnn._linear_pointwise
        one = torch.ones(1, 1, dtype=dtype)
        if adding(one, one, one[0], "none", [], "").item() == 2:
            return lambda rows, weight, bias: adding(rows, weight, bias, "none", [], "")
    except (
        AttributeError,
        RuntimeError,
    ):  # another version of torch, a build without oneDNN, a processor without fp16
        pass
    return F.linear


class LastRows:
    """Keeps a function's result for the last rows, for the next layer that reads the same rows:
    queries, keys and values do.

    Torch does not count writes to `rows.data`: the kept result stays.

    >>> last, rows = LastRows(lambda rows: rows + 1), torch.zeros(2)
    >>> last.of(rows) is last.of(rows)
    True
    >>> _ = rows.add_(1)
    >>> last.of(rows).tolist()
    [2.0, 2.0]
    """

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        self.make = make
        self.rows: Tensor | None = None
        self.made: Tensor | None = None
        self.version = -1

    def of(self, rows: Tensor) -> Tensor:
        """Return the function's result for rows."""
        if rows.is_inference():  # whose changes are not counted
            return self.make(rows)
        if self.made is None or rows is not self.rows or rows._version != self.version:
            self.rows = rows
            self.version = rows._version
            self.made = self.make(rows)
        return self.made
