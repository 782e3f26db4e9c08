"""A split of pairs by query into training, validation and test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import DataError, quantity
from ..io.ids import falling, mixed
from ..ranking.ranking import LEAST_TO_CHOOSE, MOST, Evaluation, Part
from .pairs import RANKED, TEST, TRAIN, VALIDATION, Ids, Pairs, Rows

SHARES_QUERY = "pairs that share a query with validation or test"
SHARES_DOCUMENT = "pairs that share a document with validation or test"
NOT_ASKED = "pairs for validation or test beyond the number of queries"
HELD_OUT = "negatives that are documents of validation or test"
NOT_TRAINED = "training pairs beyond train.max_pairs"
NOT_FOUND = "generated queries whose document is not found (data.found_within)"
_Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Split:
    """Hold rows to train on, and the held-out rows for evaluation.

    No query is in two parts. No row of `train` has a document of a held-out row, as its own or as a
    negative, unless `shared_documents` is keep. Validation and test may share documents: neither is
    trained on, and both are answered from one corpus.
    """

    pairs: Pairs
    train: Rows
    validation: Rows  # to choose by, every pair of a query; may be empty
    test: Rows  # to report on, at least one pair unless `evaluation.queries` is 0
    corpus: Rows  # one row for every distinct document that evaluation ranks
    dropped: Mapping[str, int] = field(default_factory=dict)  # left out of training, by reason
    shared: int = 0  # training rows that share a document with a held-out row, and are kept
    fewer: tuple[
        str, ...
    ] = ()  # sentences about parts that have fewer queries than the options say
    # Of all negatives, those that nothing learns, [m]; empty where there are none.
    withheld: _Mask = field(default_factory=lambda: np.zeros(0, bool))

    @property
    def count(self) -> int:
        """Count the pairs; documents that are only ranked are none."""
        return int((self.pairs.part != RANKED).sum())

    @cached_property
    def digest(self) -> str:
        """Return what tells held-out pairs and the documents that are ranked from others, by their
        texts, in whatever order."""
        content, pairs = xxhash.xxh3_128(), self.pairs
        for rows in (self.validation, self.test):
            ids = mixed(pairs.contents("doc", rows), pairs.contents("query", rows))
            content.update(np.int64(len(rows)).tobytes() + np.sort(ids).tobytes())
        content.update(np.sort(pairs.contents("doc", self.corpus)).tobytes())
        return content.hexdigest()

    def queries(self, rows: Rows) -> int:
        """Count the distinct queries of some rows."""
        return len(np.unique(self.pairs.ids("query")[rows]))

    @property
    def held_out(self) -> str:
        """Return what is held out, in words: "300 validation and 300 test queries"."""
        return f"{self.queries(self.validation):,} validation and {quantity(self.queries(self.test), 'test queries')}"

    @property
    def chooses(self) -> bool:
        """Return True if validation has enough queries to choose a checkpoint, an option or a
        threshold by."""
        return self.queries(self.validation) >= LEAST_TO_CHOOSE

    def extended(self, part: Part, keeps: bool) -> Split:
        """Return a split that trains also on this part and what is before it: the same queries are
        asked of the same documents.

        Args:
            keeps: train on pairs that share a document with what is still held out.
        """
        held = np.zeros(len(self.pairs), bool)
        if part == "validation":
            held[self.test] = True
        taught = (TRAIN, VALIDATION) if part == "validation" else (TRAIN, VALIDATION, TEST)
        keeps = keeps or not self.pairs.paired
        train, dropped, shared = _left(self.pairs, held, taught, keeps)
        count = int((train & shared).sum()) if self.pairs.paired else 0
        split = replace(self, train=np.flatnonzero(train), dropped=dropped, shared=count)
        return split if keeps else _withheld(split, held)

    def lines(self) -> list[str]:
        """Return the first lines of a run: how the pairs are divided; what that has cost is in
        `dropped`."""
        first = (
            f"{quantity(self.count, 'pairs')}: {len(self.train):,} for training, {self.held_out} against "
            f"{quantity(len(self.corpus), 'documents')}"
        )
        if self.shared:
            first += f"; {self.shared:,} of the training pairs share a document with them (evaluation.shared_documents)"
        few = self.queries(self.validation)
        if self.chooses or not few:
            return [first, *self.fewer]
        least = f"at least {LEAST_TO_CHOOSE}"
        return [
            first,
            *self.fewer,
            f"{quantity(few, 'validation queries are too few to choose by')} ({least}): defaults are kept",
        ]


def hold_out(
    pairs: Pairs, candidates: _Mask, options: Evaluation, most: int | None = None
) -> Split:
    """Divide pairs by query.

    Rows that a source has named for validation or test (`Pairs.part`) are those parts. Else the
    queries are drawn, by `options.seed`, from the candidate rows: the test first, so that the size
    of validation does not move it. Of rows of any two texts none is drawn. The corpus is every
    distinct document of the candidate rows, in falling order of their ids.

    Args:
        pairs: rows of all parts.
        candidates: rows whose query may be asked and whose document may be ranked, [n].
        options: `queries`, `validation`, `seed` and `shared_documents`.
        most: number of training pairs to keep, drawn by `options.seed`: more of them hold all pairs
            of fewer; None keeps all.

    Raises:
        DataError: no row is left to train on or to ask.
    """
    query_ids, doc_ids, part = pairs.ids("query"), pairs.ids("doc"), pairs.part
    if not pairs.paired:
        options = _of_named(options, part)
    drawn = _draw(query_ids, candidates, part, options)
    test = _asked(query_ids, candidates, part, TEST, drawn[TEST])
    validation = _asked(
        query_ids, candidates, part, VALIDATION, np.setdiff1d(drawn[VALIDATION], query_ids[test])
    )
    keeps = options.shared_documents == "keep" or not pairs.paired
    train, lost, shared = _left(pairs, test | validation, (TRAIN,), keeps)
    left = np.flatnonzero(train)
    if most is not None and len(left) > most:
        lost = {**lost, NOT_TRAINED: len(left) - most}
        left = np.sort(np.random.default_rng(options.seed).permutation(left)[:most])
    ranked = np.flatnonzero(candidates)
    # Where scores are equal, answers come no sooner, and other programs rank the same documents
    # first.
    distinct = ranked[np.unique(doc_ids[ranked], return_index=True)[1]]
    split = Split(
        pairs,
        left,
        np.flatnonzero(validation),
        np.flatnonzero(test),
        distinct[falling(pairs.shown_ids("doc", distinct))],
        lost,
        int(shared[left].sum()) if pairs.paired else 0,
        _fewer(drawn, part, options),
    )
    split = split if keeps else _withheld(split, test | validation)
    _refuse_empty(
        split, len(np.unique(query_ids[candidates & (part != RANKED)])), options.queries != 0
    )
    return split


def _of_named(options: Evaluation, part: NDArray[np.uint8]) -> Evaluation:
    """Return options by which only queries are asked that a source has named: any two texts are no
    question and its answer."""
    return replace(
        options,
        queries=options.queries if (part == TEST).any() else 0,
        validation=options.validation if (part == VALIDATION).any() else 0,
    )


def _fewer(
    drawn: Mapping[int, Ids], part: NDArray[np.uint8], options: Evaluation
) -> tuple[str, ...]:
    """Return a sentence about each part that has fewer queries than the options say."""
    parts = (("queries", options.queries, TEST), ("validation", options.validation, VALIDATION))
    return tuple(
        f"evaluation.{name} is {wanted:,}, but "
        + (
            f"the data names {count}"
            if (part == code).any()
            else f"{count} are held out, at most half of those that are left"
        )
        for name, wanted, code in parts
        if wanted is not None and len(drawn[code]) < wanted
        for count in [quantity(len(drawn[code]), "queries")]
    )


def _left(
    pairs: Pairs, held: _Mask, parts: tuple[int, ...], keeps: bool
) -> tuple[_Mask, dict[str, int], _Mask]:
    """Return the rows of some parts that may be trained on, the others by reason, and those that
    share a document with `held`.

    Args:
        held: rows that are held out, [n].
        parts: what `Pairs.part` names rows that are not, if they share no text with them.
        keeps: train on rows that share a document with what is held out.
    """
    part, of_query = pairs.part, pairs.sharing("query", held)
    named = np.isin(part, parts)
    of_doc = ~of_query & named & pairs.sharing("doc", held)
    train = ~of_query & named & (keeps | ~of_doc) & pairs.trainable
    lost = {
        SHARES_QUERY: int((of_query & ~held).sum()),
        SHARES_DOCUMENT: 0 if keeps else int(of_doc.sum()),
        NOT_FOUND: int((~pairs.trainable & ~of_query & (keeps | ~of_doc)).sum()),
        NOT_ASKED: int((~named & (part != RANKED) & ~of_query).sum()),
    }
    return train, {reason: count for reason, count in lost.items() if count}, of_doc


def _withheld(split: Split, held: _Mask) -> Split:
    """Return a split of which nothing learns negatives that are documents of rows that are held
    out, [n].

    Training would push such documents away from queries, and bring them near to none.
    """
    offsets = split.pairs.negatives[1]
    if not offsets[-1]:
        return split
    withheld = split.pairs.negatives_among(held)
    trained = np.zeros(len(split.pairs), bool)
    trained[split.train] = True
    count = int((withheld & np.repeat(trained, np.diff(offsets))).sum())
    return replace(
        split, withheld=withheld, dropped={**split.dropped, **({HELD_OUT: count} if count else {})}
    )


def _draw(
    query_ids: Ids, candidates: _Mask, part: NDArray[np.uint8], options: Evaluation
) -> dict[int, Ids]:
    """Return the queries of test and of validation: those that are named, else drawn from those
    that are free."""
    free = np.setdiff1d(query_ids[candidates & (part == TRAIN)], query_ids[part != TRAIN])
    order = np.random.default_rng(options.seed).permutation(free)
    share = min(MOST, len(np.unique(query_ids[part != RANKED])) // 10, len(free) // 4)
    drawn: dict[int, Ids] = {}
    for code, wanted, default in (
        (TEST, options.queries, max(1, share)),
        (VALIDATION, options.validation, share),
    ):
        if (part == code).any():
            named = np.unique(query_ids[candidates & (part == code)])
            drawn[code] = np.random.default_rng(options.seed).permutation(named)[:wanted]
            continue
        count = min(default if wanted is None else wanted, len(order) // 2)
        drawn[code], order = order[:count], order[count:]
    return drawn


def _asked(
    query_ids: Ids, candidates: _Mask, part: NDArray[np.uint8], code: int, queries: Ids
) -> _Mask:
    """Return which rows are pairs of a part's queries, [n]: the part's own if a source has named
    some."""
    source = code if (part == code).any() else TRAIN
    rows: _Mask = candidates & (part == source) & np.isin(query_ids, queries)
    return rows


def _refuse_empty(split: Split, queries: int, tested: bool) -> None:
    """Raise DataError with the cause if a split has no rows for training or for test."""
    if tested and not len(split.test):
        raise DataError(
            f"{quantity(split.count, 'pairs hold')} {quantity(queries, 'distinct queries')} for evaluation, too few to hold out "
            "one for the test: give more data"
        )
    if not len(split.train):
        documents = len(np.unique(split.pairs.ids("doc")))
        lost = "".join(f", and {count:,} are {reason}" for reason, count in split.dropped.items())
        of = f"{quantity(split.count, 'pairs')} with {quantity(queries, 'distinct queries')}"
        raise DataError(
            f"no pairs are left to train on: of {of} and {quantity(documents, 'distinct documents')}, {split.held_out} are held "
            f"out{lost}: give more data, hold out fewer queries (evaluation.queries, evaluation.validation), or set "
            "evaluation.shared_documents=keep"
        )
