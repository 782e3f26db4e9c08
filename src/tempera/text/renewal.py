"""Hard negatives and a guide from the model in training, computed again every k steps.

Letters in shapes: n training pairs, p distinct queries and u distinct documents of all pairs, q and
c those of them that are trained on, e pairs of a query and an answer, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from ..core.batch import Role
from ..core.ragged import Ragged, from_lengths
from ..engine.batches import Examples
from ..io.ids import places
from ..mining.embed import StoredEmbeddings
from ..mining.guide import CrossEncoder, Guide, SelfGuide, check_negatives
from ..mining.hard_negatives import Mining, mine
from ..mining.search import Ints, Pairs, by_faiss
from ..mining.shortfall import Report
from .catalogue import Catalogue

_NEVER_LATER = 1 << 40  # steps that no training takes

Read = Callable[
    [Role, Ints], NDArray[np.float32]
]  # positions of queries or documents to unit vectors, [.., D]


@dataclass(frozen=True)
class RepeatedMining(Mining):
    """Mine hard negatives during training with the model itself, and filter them by a
    cross-encoder.

    Args:
        every: steps after which the model in training mines among the training documents again,
            which replaces the former negatives. It mines before the first step only if the data has
            none. None keeps those of the data.
        again: negatives of a query that the model mines, in place of `negatives`, before it is
            trained again (`train.refit`); that training then goes on from the weights that
            validation has chosen. Where the data have negatives, `every` mines, something teaches,
            or the objective does not compare with negatives, nothing is mined; nor does 0 mine.
        cross_encoder: folder of one that judges all negatives, by `cross_margin`; its scores are
            kept by pair, in vectors/ beside the run.
        faiss: search by an index, such as HNSW32; None searches exactly.
    """

    every: Annotated[int, Field(gt=0)] | None = None
    again: Annotated[int, Field(ge=0)] = 0
    cross_encoder: str | None = None
    faiss: str | None = None

    def once(self) -> RepeatedMining:
        """Return the options by which `again` negatives are mined, before a first step.

        >>> RepeatedMining(negatives=1, again=3, skip=98).once().negatives
        2
        """
        return replace(self, every=_NEVER_LATER, negatives=min(self.again, self.depth - self.skip))


class Renewal:
    """Replace the guide and negatives of training pairs by those of the current model, every k
    steps.

    The pairs of a step depend on its number and on the vectors in `folder`, so a resumed run
    continues identically.

    Args:
        catalogue: all texts.
        rows: [n] the pairs that are trained on.
        options: of mining.
        guide_every: steps from one guide to the next; None has none.
        folder: where the vectors of the latest models are kept.
        cross: judges what is mined.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        rows: Ints,
        options: RepeatedMining,
        guide_every: int | None,
        folder: Path,
        cross: CrossEncoder | None,
    ) -> None:
        self.catalogue, self.options, self.guide_every = catalogue, options, guide_every
        self.folder, self.cross = folder, cross
        query, doc, own = catalogue.trained_on(rows)
        self.queries, self.query = np.unique(query, return_inverse=True)  # [q], [n]
        self.docs = np.unique(np.concatenate([doc, own.values.numpy()]))  # [c]
        doc = np.searchsorted(self.docs, doc)  # [n]
        self.answers: Pairs = np.divmod(
            np.unique(self.query * len(self.docs) + doc), len(self.docs)
        )  # [e] each
        self.made: dict[str, int] = {}  # the step of what the pairs have now

    def __call__(self, step: int, examples: Examples, read: Read) -> tuple[Examples, Report | None]:
        """Return the pairs for step `step`, counted from 0, and the report if negatives were mined
        before it.

        Args:
            read: the model as it is before the step.
        """
        if self._new("guide", self.guide_every, step):
            examples = replace(examples, guide=self.guide(step, read))
        kept = examples.negatives is not None and "negatives" not in self.made
        if kept and self.options.every is not None and step < self.options.every:
            return examples, None
        if not self._new("negatives", self.options.every, step):
            return examples, None
        negatives, report = self.mine(step, read)
        ids = torch.from_numpy(self.catalogue.doc_ids)
        return replace(examples, negatives=negatives, all_ids=ids), report

    def guide(self, step: int, read: Read) -> Guide:
        """Return the model before the step as a guide of all training texts."""
        assert self.guide_every is not None
        vectors = self._vectors(self.guide_every, step, read)
        counts = len(self.catalogue.query_rows), len(self.catalogue.doc_first)
        tables = []
        for table, chosen, count in zip(
            (vectors.query, vectors.doc), (self.queries, self.docs), counts, strict=True
        ):
            place = np.zeros(count, np.int64)
            place[chosen] = np.arange(len(chosen))
            tables.append(StoredEmbeddings(table.vectors, place))
        return Guide(*tables)

    def mine(self, step: int, read: Read) -> tuple[Ragged, Report]:
        """Return the negatives of every pair, n rows."""
        assert self.options.every is not None
        queries: StoredEmbeddings | NDArray[np.float32]
        docs: NDArray[np.float16] | NDArray[np.float32]
        if self.options.every == _NEVER_LATER:  # no run is resumed between this and the next time
            queries, docs = read("query", self.queries), read("doc", self.docs)
        else:
            vectors = self._vectors(self.options.every, step, read)
            queries, docs = vectors.query, vectors.doc.vectors
        factory = self.options.faiss
        cross = None if self.cross is None else self._judge
        search = None if factory is None else by_faiss(np.asarray(docs, np.float32), factory)
        mined = mine(queries, docs, self.answers, self.options, self.itself, cross, search)
        valid = mined.positions >= 0  # [q, negatives]
        lengths, chosen = (
            torch.from_numpy(valid.sum(1)),
            torch.from_numpy(self.docs[mined.positions[valid]]),
        )
        return Ragged(chosen, from_lengths(lengths))[torch.from_numpy(self.query)], mined.report

    @cached_property
    def itself(self) -> Ints:
        """Position of the document with the text of each query, or -1, [q]."""
        contents = self.catalogue.contents
        return places(contents["query"][self.queries], contents["doc"][self.docs])

    def _new(self, what: str, every: int | None, step: int) -> bool:
        """Return whether the version of this step differs from the current one of the pairs, and
        record it."""
        if every is None or self.made.get(what) == step - step % every:
            return False
        self.made[what] = step - step % every
        return True

    def _vectors(self, every: int, step: int, read: Read) -> Guide:
        kept = SelfGuide(self.folder / f"every-{every}", every)
        if not kept.due(step):
            return kept.at(step)
        return kept.refresh(
            step, self.queries, self.docs, partial(read, "query"), partial(read, "doc")
        )

    def _judge(self, pairs: Pairs) -> NDArray[np.float32]:
        assert self.cross is not None
        queries, docs = self.catalogue.queries, self.catalogue.docs
        return self.cross(
            list(
                zip(
                    queries.take(self.queries[pairs[0]]),
                    docs.take(self.docs[pairs[1]]),
                    strict=True,
                )
            )
        )


def checked(
    examples: Examples, catalogue: Catalogue, cross: CrossEncoder, margin: float
) -> tuple[Examples, int]:
    """Remove negatives that a cross-encoder scores above their answer less a relative margin;
    return pairs and count."""
    assert examples.negatives is not None
    own, docs = examples.negatives, catalogue.docs
    texts = docs.take(own.values.numpy())
    ends = own.offsets.tolist()
    check = check_negatives(
        catalogue.queries.take(examples.query.numpy()),
        [[text] for text in docs.take(examples.doc.numpy())],
        [texts[start:end] for start, end in pairwise(ends)],
        lambda pairs: cross(pairs, "scoring pairs by the cross-encoder"),
        margin,
        "relative",
    )
    kept = torch.tensor([good for row in check.kept for good in row], dtype=torch.bool)
    lengths = torch.tensor([sum(row) for row in check.kept])
    scores = None if examples.scores is None else (examples.scores[0], examples.scores[1][kept])
    negatives = Ragged(own.values[kept], from_lengths(lengths))
    return replace(examples, negatives=negatives, scores=scores), check.dropped
