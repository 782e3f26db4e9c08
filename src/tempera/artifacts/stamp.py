"""A stamp in an index: the model that made its vectors, so that another model is refused."""

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
    """Facts about the vectors of an index that a search needs."""

    model: str  # fingerprint
    dimensions: int
    metric: str = "cosine"
    normalised: bool = True

    @classmethod
    def read(cls, metadata: Mapping[bytes, bytes] | None) -> Stamp | None:
        """Return the stamp in the metadata of an Arrow or Parquet schema; None if there is none."""
        text = (metadata or {}).get(_KEY)
        return None if text is None else cls(**parsed(text))

    def metadata(self) -> dict[bytes, bytes]:
        """Return the stamp as metadata of a schema."""
        return {_KEY: json.dumps(asdict(self)).encode()}

    def refuse_other(self, model: str, place: Path) -> None:
        """Raise DataError unless a model with this fingerprint made the vectors."""
        if model != self.model:
            raise DataError(
                f"{place} holds vectors of another model ({self.model[:12]}; this model is {model[:12]}): "
                "build the index again, or give the model that made it"
            )
