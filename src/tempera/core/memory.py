"""A queue of past documents, as more negatives than a batch holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError, is_whole, refuse_other
from .batch import Side

_FIELDS = ("rows", "ids", "logq", "guide", "teacher")


class Memory(nn.Module):
    """The last `size` document embeddings with their ids and logq, first in, first out (He et al.
    2020; Wang et al. 2020).

    The content is part of the state dict, so that a checkpoint restores it. Embeddings are as old
    as the batch they came with and carry no gradient.

    Args:
        size: number of documents to keep.

    Raises:
        ConfigError: a size below 1.
        DataError: documents with and without ids, logq, or vectors of a guide or teacher.

    >>> memory = Memory(3)
    >>> memory.push(Side(torch.eye(2), ids=torch.tensor([1, 2])))
    >>> memory.push(Side(torch.eye(2), ids=torch.tensor([3, 4])))
    >>> memory.side().ids.tolist()
    [2, 3, 4]
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        refuse_other("the size of a memory", size, is_whole(size), "a whole number")
        if size < 1:
            raise ConfigError(f"a memory keeps at least 1 document, and size is {size}")
        self.size = size
        for name in _FIELDS:
            self.register_buffer(name, None)

    def side(self) -> Side[Tensor] | None:
        """Return the remembered documents, oldest first; None before the first push."""
        if self.rows is None:
            return None
        fields: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        return Side(**fields)

    def hold(self, side: Side[Tensor] | None) -> None:
        """Hold the documents that `side` returned before, and forget later documents."""
        for name in _FIELDS:
            setattr(self, name, None if side is None else getattr(side, name))

    @torch.no_grad()
    def push(self, side: Side[Tensor]) -> None:
        """Remember documents and forget the oldest above `size`."""
        if self.rows is not None:
            self._refuse_other_fields(side)
        for name in _FIELDS:
            old = getattr(self, name)
            new = getattr(side, name)
            if new is None:
                continue
            joined = new.detach()
            if old is not None:
                # On the device of the new ones: a checkpoint has brought the old ones to the host.
                joined = torch.cat([old.to(new.device), joined.to(old.dtype)])
            setattr(self, name, joined[-self.size :].clone())

    def _refuse_other_fields(self, side: Side[Tensor]) -> None:
        """Raise DataError for documents with other fields than the remembered documents."""
        for name in _FIELDS:
            if (getattr(self, name) is None) != (getattr(side, name) is None):
                raise DataError(
                    f"memory: documents with and without {name} cannot be remembered together"
                )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # The buffers have the shapes of what was remembered when the state was saved.
        for name in _FIELDS:
            setattr(self, name, state_dict.pop(f"{prefix}{name}", None))
