"""A split of pairs by query into training, validation and test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from ...errors import DataError, quantity
from ...io.ids import falling, form_ids, mixed
from ...ranking.ranking import LEAST_TO_CHOOSE
from ...task.evaluation import MOST, Evaluation, Part
from ..read.pairs import FORM, RANKED, TEST, TRAIN, VALIDATION, Ids, Pairs, Rows

SHARES_QUERY = "pairs that hold a query of validation or test"
SHARES_DOCUMENT = "pairs that hold a document of validation or test"
NOT_ASKED = "pairs for validation or test beyond the number of queries"
HELD_OUT = "negatives that are texts of validation or test"
NOT_TRAINED = "training pairs beyond train.max_pairs"
LABELS = 5  # distinct queries for each distinct document, from which documents count as known
_Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Split:
    """Hold rows to train on, and the held-out rows for evaluation.

    What is held out is a text: a query of a held-out row, or a document that answers one, unless
    that document counts as known. No row of `train` holds such a text, in whatever role, case,
    white space or Unicode form, and none of its negatives is one. Documents count as known where
    `shared_documents` is keep, where the rows are any two texts, and in a source with at least five
    distinct queries for each distinct document, as labels and canned replies have. Validation and
    test may share documents where they are named, or drawn one by one: neither is trained on, and
    both are answered from one corpus.
    """

    pairs: Pairs
    train: Rows
    validation: Rows  # to choose by, every pair of a query; may be empty
    test: Rows  # to report on, at least one pair unless `evaluation.queries` is 0
    corpus: Rows  # one row for every distinct document that evaluation ranks
    known: _Mask  # rows whose document counts as known, [n]
    dropped: Mapping[str, int] = field(default_factory=dict)  # left out of training, by reason
    shared: int = 0  # training rows with a document of a held-out row, which counts as known
    notes: tuple[str, ...] = ()  # sentences about what is held out, and what that costs
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

    @property
    def held_texts(self) -> Ids:
        """Return the ids of the forms of all texts that are held out, rising."""
        rows = np.concatenate([self.validation, self.test])
        return np.union1d(*_texts_of(self.pairs, rows, self.known))

    @property
    def trained_texts(self) -> Ids:
        """Return the ids of the forms of the texts that the training rows hold in any role, rising."""
        forms, offsets = self.pairs.forms, self.pairs.negatives[1]
        trained = np.zeros(len(self.pairs), bool)
        trained[self.train] = True
        learned = np.repeat(trained, np.diff(offsets))
        if len(self.withheld):
            learned &= ~self.withheld
        sides = [forms["query"][trained], forms["doc"][trained], forms["negatives"][learned]]
        prompted = {FORM["query"], FORM["doc"]} & {*self.pairs.table.column_names}
        if prompted:  # with their prompts, too
            rows = self.pairs.table.filter(pa.array(trained))
            sides += [form_ids(rows["query"]), form_ids(rows["doc"])]
        return np.unique(np.concatenate(sides))

    def extended(self, part: Part) -> Split:
        """Return a split that trains also on this part and what is before it: the same queries are
        asked of the same documents."""
        if part == "validation":
            return _taught(self, self.test, (TRAIN, VALIDATION))
        return _taught(self, self.test[:0], (TRAIN, VALIDATION, TEST))

    def lines(self) -> list[str]:
        """Return the first lines of a run: how the pairs are divided; what that has cost is in
        `dropped`."""
        first = (
            f"{quantity(self.count, 'pairs')}: {len(self.train):,} for training, {self.held_out} against "
            f"{quantity(len(self.corpus), 'documents')}"
        )
        if self.shared:
            first += f"; {self.shared:,} of the training pairs share a document with them"
        few = self.queries(self.validation)
        if self.chooses or not few:
            return [first, *self.notes]
        least = f"at least {LEAST_TO_CHOOSE}"
        return [
            first,
            *self.notes,
            f"{quantity(few, 'validation queries are too few to choose by')} ({least}): defaults are kept",
        ]


def hold_out(
    pairs: Pairs, candidates: _Mask, options: Evaluation, most: int | None = None
) -> Split:
    """Divide pairs by query.

    Rows that a source has named for validation or test (`Pairs.part`) are those parts, and rows to
    train on that hold a text of theirs are left out. Else the queries are drawn, by `options.seed`,
    from the candidate rows, group by group: a group are all rows that are connected by shared
    texts, so that nothing has to be left out. The test is drawn first, so that the size of
    validation does not move it. A group of more queries than a part is to have stays in training.
    Where whole groups give less than half of the queries that could be held out one by one, as
    where most rows form one group, queries are drawn one by one, and rows that hold a text of
    theirs are left out. The corpus is every distinct document of the candidate rows, in falling
    order of their ids. Of rows of any two texts none is drawn.

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
    keeps = options.shared_documents == "keep" or not pairs.paired
    known = np.ones(len(pairs), bool) if keeps else _labels(pairs)
    drawn = _draw(pairs, candidates, known, keeps, options)
    test = _asked(pairs, candidates, TEST, drawn[TEST].queries)
    validation = _asked(pairs, candidates, VALIDATION, drawn[VALIDATION].queries)
    validation &= ~np.isin(pairs.forms["query"], pairs.forms["query"][test])
    ranked = np.flatnonzero(candidates)
    # Where scores are equal, answers come no sooner, and other programs rank the same documents
    # first.
    distinct = ranked[np.unique(doc_ids[ranked], return_index=True)[1]]
    notes = [] if keeps or not known.any() else [_known_note(pairs, known)]
    split = Split(
        pairs,
        np.empty(0, np.int64),
        np.flatnonzero(validation),
        np.flatnonzero(test),
        distinct[falling(pairs.shown_ids("doc", distinct))],
        known,
        notes=(*notes, *_drawn_notes(drawn), *_fewer(drawn, pairs, options)),
    )
    held = np.concatenate([split.validation, split.test])
    split = _taught(split, held, (TRAIN,), most, options.seed)
    _refuse_empty(
        split, _count_distinct(query_ids[candidates & (part != RANKED)]), options.queries != 0
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


def _labels(pairs: Pairs) -> _Mask:
    """Return which rows have a document that counts as known, as labels do, [n]: one of a source
    with so many distinct queries for each distinct document."""
    query, doc, has_query = pairs.forms["query"], pairs.forms["doc"], pairs.part != RANKED
    source = np.zeros(len(pairs), np.int64)
    if "source" in pairs.table.column_names:
        source = pairs.table["source"].to_numpy()
    labels = [np.empty(0, np.int64)]
    for each in np.unique(source):
        rows = source == each
        docs = pc.unique(pa.array(doc[rows])).to_numpy()
        if _count_distinct(query[rows & has_query]) >= LABELS * len(docs):
            labels.append(docs)
    return np.isin(doc, np.concatenate(labels))


def _count_distinct(ids: Ids) -> int:
    """Count distinct ids, in a fifth of the time that sorting takes."""
    count: int = pc.count_distinct(pa.array(ids)).as_py()
    return count


def _known_note(pairs: Pairs, known: _Mask) -> str:
    rows = known & (pairs.part != RANKED)
    queries, docs = (_count_distinct(pairs.forms[role][rows]) for role in ("query", "doc"))
    return (
        f"{quantity(queries, 'queries')} ask for {quantity(docs, 'documents')}, at least {LABELS} for each on average: these "
        "documents count as known, and only queries are held out"
    )


def _texts_of(pairs: Pairs, rows: Rows, known: _Mask) -> tuple[Ids, Ids]:
    """Return the ids of the forms of what is held out by some rows: of their queries, and of their
    documents that are not known, with what these are made of."""
    unknown = rows[~known[rows]]
    docs = [pairs.forms[role][unknown] for role in ("doc", "whole")]
    return pairs.forms["query"][rows], np.concatenate(docs)


def _taught(
    split: Split, held: Rows, parts: tuple[int, ...], most: int | None = None, seed: int = 0
) -> Split:
    """Return a split that trains on the rows of some parts that hold no text of rows that are held
    out.

    Nothing learns such texts as negatives: training would push them away from queries, and bring
    them near to none.

    Args:
        held: rows that are held out.
        parts: what `Pairs.part` names rows that may be trained on.
        most: number of rows to keep, drawn by `seed`; None keeps all.
    """
    pairs, part = split.pairs, split.pairs.part
    queries, docs = _texts_of(pairs, held, split.known)
    of_query, of_doc = pairs.holding(queries), pairs.holding(docs)
    itself, named = np.zeros(len(pairs), bool), np.isin(part, parts)
    itself[held] = True
    of_doc &= ~of_query & named
    lost = {
        SHARES_QUERY: int((of_query & ~itself & (part != RANKED)).sum()),
        SHARES_DOCUMENT: int(of_doc.sum()),
        NOT_ASKED: int((~named & (part != RANKED) & ~of_query).sum()),
    }
    train = np.flatnonzero(~of_query & ~of_doc & named)
    if most is not None and len(train) > most:
        lost[NOT_TRAINED] = len(train) - most
        train = np.sort(np.random.default_rng(seed).permutation(train)[:most])
    offsets = pairs.negatives[1]
    withheld = np.zeros(0, bool)
    if offsets[-1]:
        withheld = np.isin(pairs.forms["negatives"], np.concatenate([queries, docs]))
        trained = np.zeros(len(pairs), bool)
        trained[train] = True
        lost[HELD_OUT] = int((withheld & np.repeat(trained, np.diff(offsets))).sum())
    shared = 0
    if pairs.paired:
        shared = int(np.isin(pairs.forms["doc"][train], pairs.forms["doc"][held]).sum())
    dropped = {reason: count for reason, count in lost.items() if count}
    return replace(split, train=train, dropped=dropped, shared=shared, withheld=withheld)


@dataclass(frozen=True)
class _Drawn:
    """Hold the queries of a part, as they were named or drawn."""

    queries: Ids
    most: int = 0  # queries that could be held out one by one
    alone: bool = False  # whole groups give too few of them, so that they were
    moved: int = 0  # rows whose group has other queries, too
    larger: int = 0  # rows of groups that are too large for the part


def _draw(
    pairs: Pairs, candidates: _Mask, known: _Mask, keeps: bool, options: Evaluation
) -> dict[int, _Drawn]:
    """Return the queries of test and of validation: those that are named, else drawn from those
    that are free.

    Args:
        keeps: documents count as known by `options`, or since rows are any two texts.
    """
    query_ids, query, part = pairs.ids("query"), pairs.forms["query"], pairs.part
    named = np.flatnonzero((part == VALIDATION) | (part == TEST))
    eligible = candidates & (part == TRAIN)
    eligible &= ~pairs.holding(np.concatenate(_texts_of(pairs, named, known)))
    if not keeps:  # a query that is a label, too, would take all rows of the label with it
        eligible &= ~np.isin(query, pairs.forms["doc"][known])
    rows = np.flatnonzero(eligible)
    free, first = np.unique(query_ids[rows], return_index=True)
    of_row = _groups(pairs, rows, known)
    groups, singly = of_row[first], np.unique(query[rows[first]], return_inverse=True)[1]
    share = min(MOST, _count_distinct(query_ids[part != RANKED]) // 10, len(free) // 4)
    order = np.random.default_rng(options.seed).permutation(len(free))
    drawn: dict[int, _Drawn] = {}
    for code, number, default in (
        (TEST, options.queries, max(1, share)),
        (VALIDATION, options.validation, share),
    ):
        if (part == code).any():
            own = np.unique(query_ids[candidates & (part == code)])
            drawn[code] = _Drawn(np.random.default_rng(options.seed).permutation(own)[:number])
            continue
        wanted = default if number is None else number
        if not wanted:
            drawn[code] = _Drawn(free[:0])
            continue
        sizes = np.bincount(groups[order], minlength=len(rows))  # queries of each group
        small = order[sizes[groups[order]] <= wanted]
        most, count = min(wanted, len(order) // 2), min(wanted, len(small) // 2)
        chosen = _whole(order, groups, count)
        alone = 2 * int(chosen.sum()) < most
        if alone:
            chosen = _whole(order, singly, most)
        queries, order = order[chosen], order[~chosen]
        of_several = np.isin(of_row, groups[queries]) & (sizes[of_row] > 1)
        drawn[code] = _Drawn(
            free[queries],
            most,
            alone,
            moved=0 if alone else int(of_several.sum()),
            larger=0 if alone else int((sizes[of_row] > wanted).sum()),
        )
    return drawn


def _groups(pairs: Pairs, rows: Rows, known: _Mask) -> Ids:
    """Return the group of each of some rows, [r]: rows of one group are connected by texts that they
    share, in whatever role.

    A document that counts as known connects no rows, unless it is a query of one of them.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components  # a quarter of a second

    query, doc, whole = (pairs.forms[role][rows] for role in ("query", "doc", "whole"))
    connects = ~known[rows] | np.isin(doc, query)
    others = [np.where(connects, side, query) for side in (doc, whole)]
    texts, at = np.unique(np.concatenate([query, *others]), return_inverse=True)
    start, *ends = np.split(at, 3)
    edges = (np.tile(start, 2), np.concatenate(ends))
    graph = coo_matrix((np.ones(2 * len(rows), np.int8), edges), (len(texts), len(texts)))
    group: Ids = connected_components(graph, directed=False)[1][start]
    return np.unique(group, return_inverse=True)[1]


def _whole(order: Rows, groups: Ids, count: int) -> _Mask:
    """Return which of some queries in random order, [q], are in the first groups that `count` has
    room for: a group that is too large for what is left of it is passed over.

    A group stands where its first query by id stands, so that a query of a large group is no more
    likely to be held out than any other.

    Args:
        groups: of all queries.
    """
    rising, sizes = np.sort(order), np.bincount(groups[order])
    firsts = rising[np.unique(groups[rising], return_index=True)[1]]
    taken = list[int]()
    for group in groups[order[np.isin(order, firsts)]].tolist():
        if sizes[group] <= count:
            taken.append(group)
            count -= int(sizes[group])
        if not count:
            break
    return np.isin(groups[order], taken)


def _asked(pairs: Pairs, candidates: _Mask, code: int, queries: Ids) -> _Mask:
    """Return which rows are pairs of a part's queries, [n]: the part's own if a source has named
    some."""
    part = pairs.part
    source = code if (part == code).any() else TRAIN
    rows: _Mask = candidates & (part == source) & np.isin(pairs.ids("query"), queries)
    return rows


def _drawn_notes(drawn: Mapping[int, _Drawn]) -> list[str]:
    """Return sentences about queries that are held out in groups, or one by one although they share
    texts."""
    notes = list[str]()
    if moved := sum(each.moved for each in drawn.values()):
        notes.append(
            f"{moved:,} of the held-out pairs share a text with a pair of another query: such pairs are held out together"
        )
    alone = [
        name for name, code in (("test", TEST), ("validation", VALIDATION)) if drawn[code].alone
    ]
    if alone:
        notes.append(
            f"most pairs share texts in groups that are too large to hold out: queries of {' and '.join(alone)} are drawn one by "
            "one, and pairs that hold a text of theirs leave training"
        )
    elif larger := max(each.larger for each in drawn.values()):
        notes.append(
            f"{larger:,} pairs share texts in groups that are too large to hold out, and stay in training"
        )
    return notes


def _fewer(drawn: Mapping[int, _Drawn], pairs: Pairs, options: Evaluation) -> list[str]:
    """Return a sentence about each part that has fewer queries than the options say."""
    sentences = list[str]()
    for name, wanted, code in (
        ("queries", options.queries, TEST),
        ("validation", options.validation, VALIDATION),
    ):
        part, count = drawn[code], quantity(len(drawn[code].queries), "queries")
        if wanted is None or len(part.queries) >= wanted:
            continue
        if (pairs.part == code).any():
            reason = f"the data names {count}"
        elif len(part.queries) < part.most:
            reason = f"{count} are held out, in whole groups of pairs that share texts"
        else:
            reason = f"{count} are held out, at most half of those that are left"
        sentences.append(f"evaluation.{name} is {wanted:,}, but {reason}")
    return sentences


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
