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
from ..shards.training_shards import TrainingShards

SHARES_QUERY = "pairs that hold a query of validation or test"
SHARES_DOCUMENT = "pairs that hold a document of validation or test"
NOT_ASKED = "pairs for validation or test beyond the number of queries"
HELD_OUT = "negatives that are texts of validation or test"
NOT_TRAINED = "training pairs beyond train.max_pairs"
LABELS = 5  # distinct queries for each distinct document, from which documents count as known
_Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Split:
    """Hold the rows of training, and the held-out rows of validation and test.

    Texts are held out: the query of each held-out row, and the document unless known. No training
    row has a held-out text as query, document or negative, whatever its case, white space or
    Unicode form. Documents count as known where `shared_documents` is keep, where the rows are any
    two texts, and in a source with at least five distinct queries for each distinct document, as
    with labels and canned replies. Validation and test may share documents where their queries are
    named, or drawn singly: neither part is trained on, and both are answered from the same corpus.
    """

    pairs: Pairs
    train: Rows
    validation: Rows  # to choose by, every pair of a query; may be empty
    test: Rows  # to report on, at least one pair unless `evaluation.queries` is 0
    corpus: Rows  # one row for every distinct document that evaluation ranks
    known: _Mask  # rows whose document counts as known, [n]
    dropped: Mapping[str, int] = field(default_factory=dict)  # left out of training, by reason
    shared: int = 0  # training rows with a document of a held-out row, which counts as known
    notes: tuple[str, ...] = ()  # sentences about the held-out queries
    # Negatives that are held-out texts, which nothing learns, [m]; empty without negatives.
    withheld: _Mask = field(default_factory=lambda: np.zeros(0, bool))
    # The rows to train on, of pairs in shards; `train` is then a sample of them.
    shards: TrainingShards | None = None

    @property
    def count(self) -> int:
        """Number of pairs, without the documents only for ranking."""
        if self.shards is not None:
            return int(self.shards.pairs.sum())
        return int((self.pairs.part != RANKED).sum())

    @property
    def trained_count(self) -> int:
        """Number of pairs to train on."""
        if self.shards is not None:
            return self.shards.count
        return len(self.train)

    @cached_property
    def digest(self) -> str:
        """Checksum of the texts of the held-out pairs and of the ranked documents, in any order."""
        checksum = xxhash.xxh3_128()
        for rows in (self.validation, self.test):
            docs = self.pairs.contents("doc", rows)
            ids = mixed(docs, self.pairs.contents("query", rows))
            checksum.update(np.int64(len(rows)).tobytes())
            checksum.update(np.sort(ids).tobytes())
        checksum.update(np.sort(self.pairs.contents("doc", self.corpus)).tobytes())
        return checksum.hexdigest()

    def queries(self, rows: Rows) -> int:
        """Count the distinct queries of some rows."""
        return len(np.unique(self.pairs.ids("query")[rows]))

    @property
    def held_out(self) -> str:
        """The numbers of held-out queries in words: "300 validation and 300 test queries"."""
        test = quantity(self.queries(self.test), "test queries")
        return f"{self.queries(self.validation):,} validation and {test}"

    @property
    def chooses(self) -> bool:
        """True if validation has enough queries to choose a checkpoint, an option or a threshold
        by."""
        return self.queries(self.validation) >= LEAST_TO_CHOOSE

    @property
    def held_texts(self) -> Ids:
        """The ids of the forms of all held-out texts, rising."""
        rows = np.concatenate([self.validation, self.test])
        queries, docs = _texts_of(self.pairs, rows, self.known)
        return np.union1d(queries, docs)

    @property
    def trained_texts(self) -> Ids:
        """The ids of the forms of the texts of training rows in any role, rising."""
        forms, table = self.pairs.forms, self.pairs.table
        is_trained = np.zeros(len(self.pairs), bool)
        is_trained[self.train] = True
        offsets = self.pairs.negatives[1]
        is_learned = np.repeat(is_trained, np.diff(offsets))  # of the negatives
        if len(self.withheld):
            is_learned &= ~self.withheld
        sides = [
            forms["query"][is_trained],
            forms["doc"][is_trained],
            forms["negatives"][is_learned],
        ]
        if FORM["query"] in table.column_names or FORM["doc"] in table.column_names:
            # The forms are of texts without prompts; the model reads texts with their prompts.
            rows = table.filter(pa.array(is_trained))
            sides += [form_ids(rows["query"]), form_ids(rows["doc"])]
        return np.unique(np.concatenate(sides))

    def extended(self, part: Part) -> Split:
        """Return a split with a part, and validation before the test, added to training; queries
        and documents of evaluation stay."""
        if part == "validation":
            return _with_training(self, self.test, (TRAIN, VALIDATION))
        return _with_training(self, self.test[:0], (TRAIN, VALIDATION, TEST))

    def lines(self) -> list[str]:
        """Return the first lines of a run, about the division of the pairs; `dropped` counts the
        lost pairs."""
        first = (
            f"{quantity(self.count, 'pairs')}: {self.trained_count:,} for training, {self.held_out} against "
            f"{quantity(len(self.corpus), 'documents')}"
        )
        if self.shared:
            first += f"; {self.shared:,} of the training pairs share a document with them"
        lines = [first, *self.notes]
        count = self.queries(self.validation)
        if count and not self.chooses:
            few = quantity(count, "validation queries are too few to choose by")
            lines.append(f"{few} (at least {LEAST_TO_CHOOSE}): defaults are kept")
        return lines


def hold_out(
    pairs: Pairs, candidates: _Mask, options: Evaluation, most: int | None = None
) -> Split:
    """Divide pairs by query.

    A source may name rows for validation or test (`Pairs.part`): training rows with a text of named
    rows are left out. Otherwise the queries are drawn, by `options.seed`, from the candidate rows,
    group by group. A group is all rows connected by shared texts: drawing whole groups leaves
    nothing out. The test is drawn first, because the size of validation is not to move the test. A
    group of more queries than a part wants stays in training. Where whole groups give less than
    half of the queries to be held out singly, as where most rows form a single group, queries are
    drawn singly, and rows with a drawn text are left out. The corpus is every distinct document of
    the candidate rows, in falling order of their ids. Of rows of any two texts none is drawn.

    Args:
        pairs: rows of all parts.
        candidates: rows whose query may be asked and whose document may be ranked, [n].
        options: `queries`, `validation`, `seed` and `shared_documents`.
        most: number of training pairs to keep, drawn by `options.seed`; a larger draw contains
            every smaller draw. None keeps all.

    Raises:
        DataError: no row is left to train on or to ask.
    """
    part = pairs.part
    if not pairs.paired:  # only named queries are asked: any two texts are no question and answer
        if not (part == TEST).any():
            options = replace(options, queries=0)
        if not (part == VALIDATION).any():
            options = replace(options, validation=0)
    all_known = options.shared_documents == "keep" or not pairs.paired
    notes = list[str]()
    if all_known:
        known = np.ones(len(pairs), bool)
    else:
        known = _is_label(pairs)
        if known.any():
            notes.append(_known_note(pairs, known))
    drawn = _draw(pairs, candidates, known, all_known, options)
    notes += _drawn_notes(drawn)
    notes += _fewer(drawn, pairs, options)
    test = _is_of_part(pairs, candidates, TEST, drawn[TEST].queries)
    validation = _is_of_part(pairs, candidates, VALIDATION, drawn[VALIDATION].queries)
    validation &= ~np.isin(pairs.forms["query"], pairs.forms["query"][test])
    ranked = np.flatnonzero(candidates)
    distinct = ranked[np.unique(pairs.ids("doc")[ranked], return_index=True)[1]]
    # In this order answers do not win ties, and other programs break ties the same way.
    corpus = distinct[falling(pairs.shown_ids("doc", distinct))]
    split = Split(
        pairs,
        train=np.empty(0, np.int64),
        validation=np.flatnonzero(validation),
        test=np.flatnonzero(test),
        corpus=corpus,
        known=known,
        notes=tuple(notes),
    )
    held = np.concatenate([split.validation, split.test])
    split = _with_training(split, held, (TRAIN,), most, options.seed)
    queries = _count_distinct(pairs.ids("query")[candidates & (part != RANKED)])
    _refuse_empty(split, queries, options.queries != 0)
    return split


def _is_label(pairs: Pairs) -> _Mask:
    """Return True for each row with a document like a label, [n], in a source with at least
    `LABELS` distinct queries for each distinct document."""
    query, doc = pairs.forms["query"], pairs.forms["doc"]
    has_query = pairs.part != RANKED
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
    """Count distinct ids, in a fifth of the time of sorting."""
    count: int = pc.count_distinct(pa.array(ids)).as_py()
    return count


def _known_note(pairs: Pairs, known: _Mask) -> str:
    """Return a sentence about documents known because they are like labels."""
    rows = known & (pairs.part != RANKED)
    queries = _count_distinct(pairs.forms["query"][rows])
    docs = _count_distinct(pairs.forms["doc"][rows])
    return (
        f"{quantity(queries, 'queries')} ask for {quantity(docs, 'documents')}, at least {LABELS} for each on average: these "
        "documents count as known, and only queries are held out"
    )


def _texts_of(pairs: Pairs, rows: Rows, known: _Mask) -> tuple[Ids, Ids]:
    """Return the ids of the forms of the held-out texts of some rows: of the queries, and of the
    unknown documents, with the whole documents of ranked parts."""
    unknown = rows[~known[rows]]
    docs = np.concatenate([pairs.forms["doc"][unknown], pairs.forms["whole"][unknown]])
    return pairs.forms["query"][rows], docs


def _with_training(
    split: Split, held: Rows, parts: tuple[int, ...], most: int | None = None, seed: int = 0
) -> Split:
    """Return a split with the training rows of some parts, without rows with a held-out text.

    Held-out texts are no negatives either: training would push the texts away from all queries.

    Args:
        held: the held-out rows.
        parts: values of `Pairs.part` whose rows may be trained on.
        most: number of rows to keep, drawn by `seed`; None keeps all.
    """
    pairs = split.pairs
    has_query = pairs.part != RANKED
    may_train = np.isin(pairs.part, parts)
    is_held = np.zeros(len(pairs), bool)
    is_held[held] = True
    queries, docs = _texts_of(pairs, held, split.known)
    shares_query = pairs.holding(queries)
    shares_doc = pairs.holding(docs) & ~shares_query & may_train
    lost = {
        SHARES_QUERY: int((shares_query & ~is_held & has_query).sum()),
        SHARES_DOCUMENT: int(shares_doc.sum()),
        NOT_ASKED: int((~may_train & has_query & ~shares_query).sum()),
    }
    train = np.flatnonzero(may_train & ~shares_query & ~shares_doc)
    if most is not None and len(train) > most:
        lost[NOT_TRAINED] = len(train) - most
        train = np.sort(np.random.default_rng(seed).permutation(train)[:most])
    offsets = pairs.negatives[1]
    withheld = np.zeros(0, bool)
    if offsets[-1]:
        withheld = np.isin(pairs.forms["negatives"], np.concatenate([queries, docs]))
        is_trained = np.zeros(len(pairs), bool)
        is_trained[train] = True
        is_learned = np.repeat(is_trained, np.diff(offsets))  # of the negatives
        lost[HELD_OUT] = int((withheld & is_learned).sum())
    shared = 0
    if pairs.paired:
        shared = int(np.isin(pairs.forms["doc"][train], pairs.forms["doc"][held]).sum())
    dropped = {reason: count for reason, count in lost.items() if count}
    return replace(split, train=train, dropped=dropped, shared=shared, withheld=withheld)


@dataclass(frozen=True)
class _Drawn:
    """Hold the named or drawn queries of a part."""

    queries: Ids
    most: int = 0  # queries that could be held out one by one
    alone: bool = False  # True if they were drawn one by one: whole groups give too few
    moved: int = 0  # rows whose group has other queries, too
    larger: int = 0  # rows of groups that are too large for the part


def _draw(
    pairs: Pairs, candidates: _Mask, known: _Mask, all_known: bool, options: Evaluation
) -> dict[int, _Drawn]:
    """Return the queries of test and of validation: the named queries, else drawn queries.

    Args:
        all_known: True if documents count as known by `options`, or since rows are any two texts.
    """
    query_ids = pairs.ids("query")
    part = pairs.part
    pool = _Pool.of(pairs, candidates, known, all_known, options.seed)
    distinct = _count_distinct(query_ids[part != RANKED])
    share = min(MOST, distinct // 10, len(pool.queries) // 4)
    drawn: dict[int, _Drawn] = {}
    for code, number, default in (
        (TEST, options.queries, max(1, share)),
        (VALIDATION, options.validation, share),
    ):
        if (part == code).any():
            named = np.unique(query_ids[candidates & (part == code)])
            drawn[code] = _Drawn(np.random.default_rng(options.seed).permutation(named)[:number])
        else:
            drawn[code] = pool.draw(default if number is None else number)
    return drawn


@dataclass
class _Pool:
    """Hold the candidate queries; a drawn query leaves the pool."""

    queries: Ids  # [q] distinct ids, rising
    groups: Ids  # [q] the group of each query
    texts: Ids  # [q] the number of each query's text
    row_groups: Ids  # [r] the group of each row that may be held out
    order: Rows  # the queries that are left, by position, in random order

    @classmethod
    def of(cls, pairs: Pairs, candidates: _Mask, known: _Mask, all_known: bool, seed: int) -> _Pool:
        """Return the queries of candidate rows without a text of a named row."""
        part, query = pairs.part, pairs.forms["query"]
        named = np.flatnonzero((part == VALIDATION) | (part == TEST))
        named_queries, named_docs = _texts_of(pairs, named, known)
        eligible = candidates & (part == TRAIN)
        eligible &= ~pairs.holding(np.concatenate([named_queries, named_docs]))
        if not all_known:  # a query that is also a label would take all rows of the label with it
            eligible &= ~np.isin(query, pairs.forms["doc"][known])
        rows = np.flatnonzero(eligible)
        queries, first = np.unique(pairs.ids("query")[rows], return_index=True)
        row_groups = _groups(pairs, rows, known)
        texts = np.unique(query[rows[first]], return_inverse=True)[1]
        order = np.random.default_rng(seed).permutation(len(queries))
        return cls(queries, row_groups[first], texts, row_groups, order)

    def draw(self, wanted: int) -> _Drawn:
        """Take queries out of the pool, in whole groups if whole groups give at least half of the
        queries of single draws."""
        if not wanted:
            return _Drawn(self.queries[:0])
        groups = self.groups[self.order]
        sizes = np.bincount(groups, minlength=len(self.row_groups))  # queries of each group
        in_small = int((sizes[groups] <= wanted).sum())
        most = min(wanted, len(self.order) // 2)
        chosen = _whole(self.order, self.groups, min(wanted, in_small // 2))
        alone = 2 * int(chosen.sum()) < most
        if alone:
            chosen = _whole(self.order, self.texts, most)
        drawn = self.order[chosen]
        self.order = self.order[~chosen]
        if alone:
            return _Drawn(self.queries[drawn], most, alone)
        row_sizes = sizes[self.row_groups]
        moved = np.isin(self.row_groups, self.groups[drawn]) & (row_sizes > 1)
        larger = row_sizes > wanted
        return _Drawn(self.queries[drawn], most, alone, int(moved.sum()), int(larger.sum()))


def _groups(pairs: Pairs, rows: Rows, known: _Mask) -> Ids:
    """Return the group of each row, [r]: shared texts, in any role, connect rows to a group.

    A known document connects no rows, unless the document is also a query.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components  # a quarter of a second

    query = pairs.forms["query"][rows]
    doc = pairs.forms["doc"][rows]
    connects = ~known[rows] | np.isin(doc, query)
    doc = np.where(connects, doc, query)
    whole = np.where(connects, pairs.forms["whole"][rows], query)
    # Texts are nodes of a graph, and each row has two edges, from its query to its documents.
    texts, node = np.unique(np.concatenate([query, doc, whole]), return_inverse=True)
    starts = node[: len(rows)]
    ends = node[len(rows) :]
    edges = (np.tile(starts, 2), ends)
    graph = coo_matrix((np.ones(len(ends), np.int8), edges), (len(texts), len(texts)))
    group: Ids = connected_components(graph, directed=False)[1][starts]
    return np.unique(group, return_inverse=True)[1]


def _whole(order: Rows, groups: Ids, count: int) -> _Mask:
    """Return True for each query, in random order, [q], of the first groups with room in `count`; a
    group too large for the rest of the room is passed over.

    The first query by id is the place of a group: a query of a large group is as likely to be held
    out as a query of a small group.

    Args:
        groups: the group of each query, by position.
    """
    sizes = np.bincount(groups[order])
    rising = np.sort(order)
    firsts = rising[np.unique(groups[rising], return_index=True)[1]]
    taken = list[int]()
    for group in groups[order[np.isin(order, firsts)]].tolist():
        if sizes[group] <= count:
            taken.append(group)
            count -= int(sizes[group])
        if not count:
            break
    return np.isin(groups[order], taken)


def _is_of_part(pairs: Pairs, candidates: _Mask, code: int, queries: Ids) -> _Mask:
    """Return True for each row that is a pair of a part's queries, [n]; only the part's own rows
    count if a source has named some."""
    source = TRAIN
    if (pairs.part == code).any():
        source = code
    is_asked: _Mask = candidates & (pairs.part == source) & np.isin(pairs.ids("query"), queries)
    return is_asked


def _drawn_notes(drawn: Mapping[int, _Drawn]) -> list[str]:
    """Return sentences about queries held out in groups, or singly in spite of shared texts."""
    notes = list[str]()
    moved = sum(each.moved for each in drawn.values())
    if moved:
        notes.append(
            f"{moved:,} of the held-out pairs share a text with a pair of another query: such pairs are held out together"
        )
    alone = list[str]()
    if drawn[TEST].alone:
        alone.append("test")
    if drawn[VALIDATION].alone:
        alone.append("validation")
    larger = max(each.larger for each in drawn.values())
    if alone:
        notes.append(
            f"most pairs share texts in groups that are too large to hold out: queries of {' and '.join(alone)} are drawn one by "
            "one, and pairs that hold a text of theirs leave training"
        )
    elif larger:
        notes.append(
            f"{larger:,} pairs share texts in groups that are too large to hold out, and stay in training"
        )
    return notes


def _fewer(drawn: Mapping[int, _Drawn], pairs: Pairs, options: Evaluation) -> list[str]:
    """Return a sentence about each part with fewer queries than the options ask for."""
    sentences = list[str]()
    for name, wanted, code in (
        ("queries", options.queries, TEST),
        ("validation", options.validation, VALIDATION),
    ):
        held = len(drawn[code].queries)
        if wanted is None or held >= wanted:
            continue
        count = quantity(held, "queries")
        if (pairs.part == code).any():
            reason = f"the data names {count}"
        elif held < drawn[code].most:
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
