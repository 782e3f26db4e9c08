"""Which model made the vectors of an index, so that another one is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import DataError
from ..io.documents import parsed

_KEY = b"tempera"


@dataclass(frozen=True)
class Stamp:
    """What a search has to know of the vectors it compares with."""

    model: str  # fingerprint
    dimensions: int
    metric: str = "cosine"
    normalised: bool = True

    @classmethod
    def read(cls, metadata: Mapping[bytes, bytes] | None) -> Stamp | None:
        """The stamp in an Arrow or Parquet schema's metadata; None if there is none."""
        text = (metadata or {}).get(_KEY)
        return None if text is None else cls(**parsed(text))

    def metadata(self) -> dict[bytes, bytes]:
        """For a schema."""
        return {_KEY: json.dumps(asdict(self)).encode()}

    def refuse_other(self, model: str, place: Path) -> None:
        """Raise DataError unless a model with this fingerprint made the vectors."""
        if model != self.model:
            raise DataError(
                f"{place} holds vectors of another model ({self.model[:12]}, and this one is {model[:12]}): "
                "make the index anew, or give the model it was made with"
            )
