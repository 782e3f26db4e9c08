"""A model that guides or teaches: a saved model, or that of an encoded corpus, which has vectors of
texts already.

Letters in shapes: n texts, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core.batch import Role
from ..corpora.corpus_manifest import is_corpus
from ..corpora.encoding_model import folder_of_model
from ..corpora.kept_texts import kept_texts
from ..corpora.many_shards import EncodedShards
from ..errors import quantity
from ..io.console import logger
from ..io.ids import content_ids, places
from ..towers.saved import fingerprint, model_folder, reads_alike
from .embed import StoredEmbeddings, embed_by, store_of
from .vectors import Store, keys_of


@dataclass(frozen=True)
class GuideSource:
    """A saved model, and a corpus that it has encoded.

    Args:
        folder: of the model.
        encoded: None computes all vectors.
    """

    folder: Path
    encoded: EncodedShards | None = None

    @classmethod
    def of(cls, path: Path) -> GuideSource:
        """Return the model in a folder: a saved model, the model of a run, or the model of an
        encoded corpus.

        Raises:
            DataError: no such model, an unfinished corpus, or another model than that of the
                corpus.
        """
        if not is_corpus(path):
            return cls(model_folder(path))
        encoded = EncodedShards(str(path))
        folder = folder_of_model(str(encoded.model["name"]))
        encoded.stamp.refuse_other(fingerprint(folder), path)
        return cls(folder, encoded)

    def embed(
        self,
        role: Role,
        texts: Sequence[str],
        folder: Path,
        progress: str | None = None,
        half: bool = False,
        device: str = "auto",
    ) -> StoredEmbeddings:
        """Return vectors of texts, as `embed_by` does; those of the encoded corpus are taken from
        there, and the others are read in the precision in which it was encoded.

        Args:
            folder: of the store, into which the vectors of the encoded corpus are copied.
        """
        if self.encoded is None:
            return embed_by(self.folder, role, texts, folder, progress, half, device)
        half = bool(self.encoded.options.get("half"))
        dtype = str(self.encoded.options["dtype"])
        kind = "" if dtype == "float32" else f"-{dtype}"
        if reads_alike(self.folder) or self.encoded.options["role"] == role:
            self._copy(store_of(self.folder, role, folder, half, kind), texts)
        return embed_by(self.folder, role, texts, folder, progress, half, device, kind)

    def _copy(self, store: Store, texts: Sequence[str]) -> None:
        """Copy the vectors of texts that the store lacks from the encoded corpus, in two passes
        over its shards; a text is found by the hash of its content."""
        assert self.encoded is not None
        keys = keys_of(texts)
        distinct = np.unique(keys, return_index=True)[1]
        missing = distinct[store.find(keys[distinct]) < 0]
        if not len(missing):
            return
        contents, which = np.unique(
            content_ids(texts[i] for i in missing.tolist()), return_inverse=True
        )
        row_of = np.full(len(contents), -1)  # of the corpus
        rising = np.arange(len(contents))
        for here, hashes, _ in kept_texts(self.encoded):
            at = places(hashes, contents, rising)
            row_of[at[at >= 0]] = here[at >= 0]
        rows = row_of[which]  # of each missing text
        order = np.argsort(rows, kind="stable")
        order = order[rows[order] >= 0]
        known = missing[order]
        rows = rows[order]
        for part, vectors in self.encoded.taken(rows):
            store.fill(keys[known[part]], vectors.__getitem__)
        logger.info(
            f"{quantity(len(known), 'vectors')} taken from {self.encoded.place.address}, and "
            f"{quantity(len(missing) - len(known), 'texts')} that it lacks"
        )
