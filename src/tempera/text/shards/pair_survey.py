"""One pass over pairs in shards, which divides them: held-out queries by the hash of the query, a
sample of the training rows, and the training rows of each part.

The result is the same for any number or order of shards and processes. In memory are hashes of the
held-out texts, the rows of the held-out queries and of the sample, and a bit for each pair.

Letters in shapes: n pairs of a part.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from ...errors import ConfigError, DataError
from ...io.console import progress_bar
from ...io.ids import Ids, mixed
from ...parallel.distributed import ALONE, Group
from ...task.evaluation import MOST, Evaluation
from ..read.pairs import TEST, TRAIN, VALIDATION, Pairs
from ..read.parts import joined
from ..read.sources import PairsFile
from ..train.split import LABELS, SHARES_DOCUMENT, SHARES_QUERY
from .pair_shards import PairShards
from .smallest_keys import SmallestKeys, distinct_count, merged_keys
from .training_shards import TrainingShards

SAMPLE = 1 << 17  # training rows in memory, for the vocabulary and as documents to rank
MOST_HELD = 10_000  # queries of the test, and of validation
_COUNTED = 4096  # smallest hashes from which distinct texts are counted
_OPTIONS = {TEST: "queries", VALIDATION: "validation"}


@dataclass(frozen=True)
class PairSurvey:
    """The division of pairs in shards.

    Args:
        pairs: the held-out rows, with their parts, and a sample of the training rows.
        shards: the training rows.
        known: True if documents count as known, so that only queries are held out.
    """

    pairs: Pairs
    shards: TrainingShards
    known: bool


def survey(
    source: PairsFile,
    options: Evaluation,
    group: Group = ALONE,
    sample: int = SAMPLE,
    folder: Path | None = None,
) -> PairSurvey:
    """Read all pairs once, each process its part of them, and return the division; all processes
    call, and all have the same result.

    Args:
        source: the shards.
        options: `queries`, `validation`, `seed` and `shared_documents`.
        group: the processes.
        sample: number of distinct training rows to keep.
        folder: for a file of 16 bytes a pair during the pass; None is that of temporary files.

    Raises:
        ConfigError: more than `MOST_HELD` queries to hold out.
        DataError: unreadable shards, or nothing left to train on.
    """
    wanted = _wanted(options)
    shards = PairShards(source)
    named = _named_parts(source)
    drawn = {part: number for part, number in wanted.items() if part not in named}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as hashes:
        scan = _Scan(shards, drawn, options.seed, sample, hashes)
        scan.read(group)
        scan.share(group)
        known = options.shared_documents == "keep" or scan.are_labels
        held = named | scan.held_out(options)
        queries, docs = _held_texts(held, known)
        training = scan.divided(queries, docs, group)
    parts = {TRAIN: scan.sampled(queries), **held}
    pairs = joined({part: each for part, each in parts.items() if len(each)})
    pairs = replace(pairs, dropped={}, about=shards.about, source=shards.source)
    return PairSurvey(pairs, training, known)


def _wanted(options: Evaluation) -> dict[int, int]:
    """Return the largest number of queries of each part to hold out."""
    wanted = {}
    for part, name in _OPTIONS.items():
        number = getattr(options, name)
        if number is not None and number > MOST_HELD:
            raise ConfigError(
                f"evaluation.{name} is {number:,}, and of pairs in shards at most {MOST_HELD:,} queries are held out"
            )
        wanted[part] = MOST if number is None else number
    return wanted


def _named_parts(source: PairsFile) -> dict[int, Pairs]:
    """Return the rows of files that the user has named for validation and test, read whole."""
    parts = {}
    for part, path in ((VALIDATION, source.validation), (TEST, source.test)):
        if path is None:
            continue
        alone = replace(source, path=path, validation=None, test=None, keep=(), in_shards=False)
        pairs, _ = alone.read()
        if len(np.unique(pairs.ids("query"))) > MOST_HELD:
            raise DataError(
                f"{path} has {len(np.unique(pairs.ids('query'))):,} queries, and beside pairs in shards at most {MOST_HELD:,} "
                "are held out: give fewer"
            )
        parts[part] = pairs
    return parts


def _held_texts(held: dict[int, Pairs], known: bool) -> tuple[Ids, Ids]:
    """Return the ids of the forms of the held-out queries and documents, rising."""
    queries = [np.empty(0, np.int64)]
    docs = [np.empty(0, np.int64)]
    for pairs in held.values():
        queries.append(pairs.own_forms("query"))
        if not known:
            docs.append(pairs.own_forms("doc"))
    return np.unique(np.concatenate(queries)), np.unique(np.concatenate(docs))


class _Scan:
    """The pass of a process over its parts."""

    def __init__(
        self,
        shards: PairShards,
        drawn: dict[int, int],
        seed: int,
        sample: int,
        hashes: Any,
    ) -> None:
        self.shards = shards
        self.drawn = drawn
        self.seed = seed
        self.hashes = hashes  # a file: of each pair those of its query and its document
        self.queries = SmallestKeys(sum(drawn.values()))
        self.sample = SmallestKeys(sample, once=True)
        self.query_keys = np.empty(0, np.int64)
        self.doc_keys = np.empty(0, np.int64)
        self.counts: dict[int, int] = {}  # pairs of each part that this process has read
        self.digests: dict[int, int] = {}
        self.text_bytes = 0
        self.dropped: Counter[str] = Counter()

    def read(self, group: Group) -> None:
        """Read the parts of this process: each `group.size`-th."""
        parts = self.shards.parts
        mine = range(group.rank, len(parts), group.size)
        with progress_bar("reading shards", len(mine), "part") as bar:
            for number in mine:
                self._read_part(number)
                bar.update()

    def _read_part(self, number: int) -> None:
        digest = xxhash.xxh3_64()
        count = 0
        for table in self.shards.tables(self.shards.parts[number], self.dropped):
            pairs = Pairs(table)
            forms = np.stack([pairs.own_forms("query"), pairs.own_forms("doc")])  # [2, n]
            self.hashes.write(np.ascontiguousarray(forms.T).tobytes())
            for content in _contents(pairs):
                digest.update(content)
            count += len(table)
            self.text_bytes += table["query"].nbytes + table["doc"].nbytes
            query_keys = mixed(forms[0], self.seed)
            self.queries.add(query_keys, table)
            self.sample.add(mixed(mixed(forms[1], forms[0]), self.seed), table)
            self.query_keys = merged_keys([self.query_keys, query_keys], _COUNTED)
            self.doc_keys = merged_keys([self.doc_keys, mixed(forms[1], self.seed)], _COUNTED)
        self.counts[number] = count
        self.digests[number] = digest.intdigest()

    def share(self, group: Group) -> None:
        """Take over what the other processes have found; each has the same afterwards."""
        if group.size == 1:
            return
        self.queries = _smallest_of_all(self.queries, group)
        self.sample = _smallest_of_all(self.sample, group)
        keys = pa.table({"query": [self.query_keys], "doc": [self.doc_keys]})
        for each in _of_all(keys, group):
            query = each["query"][0].values.to_numpy()
            doc = each["doc"][0].values.to_numpy()
            self.query_keys = merged_keys([self.query_keys, query], _COUNTED)
            self.doc_keys = merged_keys([self.doc_keys, doc], _COUNTED)
        self.text_bytes = int(group.all_reduce_sum(self.text_bytes))

    @property
    def distinct(self) -> dict[str, int]:
        """The numbers of distinct queries and documents, estimated."""
        return {
            "query": distinct_count(self.query_keys, _COUNTED),
            "doc": distinct_count(self.doc_keys, _COUNTED),
        }

    @property
    def are_labels(self) -> bool:
        """True if documents are like labels: many queries ask for each."""
        return self.distinct["query"] >= LABELS * self.distinct["doc"]

    def held_out(self, options: Evaluation) -> dict[int, Pairs]:
        """Return the rows of the drawn queries of each part: the test has the smallest hashes, and
        validation the next."""
        keys, table = self.queries.rows()
        distinct = np.unique(keys)
        number = self.distinct["query"]
        parts: dict[int, Pairs] = {}
        taken = 0
        for part, most in self.drawn.items():
            wanted = min(most, (number - taken) // 2)
            if getattr(options, _OPTIONS[part]) is None:
                wanted = min(wanted, max(int(part == TEST), number // 10))
            if not wanted or table is None:
                continue
            chosen = distinct[taken : taken + wanted]
            taken += wanted
            rows = table.filter(pa.array(np.isin(keys, chosen)))
            parts[part] = Pairs.distinct_of([_in_order(rows)])
        return parts

    def sampled(self, queries: Ids) -> Pairs:
        """Return the sample without the rows of held-out queries."""
        _, table = self.sample.rows()
        if table is None:
            raise DataError(f"{self.shards.options.path} holds no pairs")
        pairs = Pairs(table)
        is_held = np.isin(pairs.own_forms("query"), queries)
        return Pairs.distinct_of([table.filter(pa.array(~is_held))])

    def divided(self, queries: Ids, docs: Ids, group: Group) -> TrainingShards:
        """Return the training rows: all that hold no held-out text."""
        held = np.union1d(queries, docs)
        self.hashes.seek(0)
        records: list[dict[str, Any]] = []
        dropped = Counter(self.dropped)
        for number, count in self.counts.items():
            forms = np.frombuffer(self.hashes.read(16 * count), np.int64).reshape(-1, 2)
            asks = np.isin(forms[:, 0], queries)
            shares_query = np.isin(forms, queries).any(1) & ~asks
            shares_doc = np.isin(forms, docs).any(1) & ~asks & ~shares_query
            dropped[SHARES_QUERY] += int(shares_query.sum())
            dropped[SHARES_DOCUMENT] += int(shares_doc.sum())
            is_trained = ~(asks | shares_query | shares_doc)
            record = {"part": number, "pairs": count, "digest": _signed(self.digests[number])}
            records.append({**record, "bits": np.packbits(is_trained).tobytes()})
        schema = pa.schema(
            {"part": pa.int64(), "pairs": pa.int64(), "digest": pa.int64(), "bits": pa.binary()}
        )
        every = pa.concat_tables(_of_all(pa.Table.from_pylist(records, schema), group))
        every = every.sort_by("part")
        pairs = every["pairs"].to_numpy()
        digest = xxhash.xxh3_64_intdigest(every["digest"].to_numpy().tobytes())
        training = TrainingShards(
            self.shards,
            pairs,
            [np.frombuffer(each.as_py(), np.uint8) for each in every["bits"]],
            held,
            digest,
            self.text_bytes / max(1, int(pairs.sum())),
            self.distinct,
            _total(dropped, group),
        )
        if not training.count:
            raise DataError(
                f"{self.shards.options.path}: no pairs are left to train on: every pair holds a held-out text; give more data, "
                "hold out fewer queries (evaluation.queries, evaluation.validation), or set evaluation.shared_documents=keep"
            )
        return training


def _smallest_of_all(mine: SmallestKeys, group: Group) -> SmallestKeys:
    """Return the rows with the smallest keys of all processes; all processes call."""
    keys, table = mine.rows()
    if table is None:
        table = pa.table({})
    smallest = SmallestKeys(mine.most, mine.once)
    for each in _of_all(table.append_column("key", pa.array(keys)), group):
        if len(each):
            smallest.add(each["key"].to_numpy(), each.drop_columns(["key"]))
    return smallest


def _total(dropped: Counter[str], group: Group) -> dict[str, int]:
    """Return the counts of all processes by reason; all processes call."""
    records = [{"reason": reason, "count": count} for reason, count in dropped.items()]
    schema = pa.schema({"reason": pa.string(), "count": pa.int64()})
    total: Counter[str] = Counter()
    for each in _of_all(pa.Table.from_pylist(records, schema), group):
        for record in each.to_pylist():
            total[record["reason"]] += record["count"]
    return dict(+total)


def _contents(pairs: Pairs) -> Iterator[Any]:
    """Yield the bytes of all that is trained on: the letters of the texts, their lengths, the
    number of negatives of each row, and the weights."""
    for texts in (pairs.table["query"], pairs.table["doc"], pairs.negative_texts):
        for chunk in texts.chunks:
            if not len(chunk):
                continue
            column = chunk.cast(pa.large_string())
            _, offsets, letters = column.buffers()
            ends = np.frombuffer(offsets, np.int64)[column.offset :][: len(column) + 1]
            yield np.diff(ends).tobytes()
            if letters is not None:
                yield memoryview(letters)[ends[0] : ends[-1]]
    yield pairs.negatives[1].tobytes()
    if "weight" in pairs.table.column_names:
        yield pairs.table["weight"].to_numpy().tobytes()


def _in_order(table: pa.Table) -> pa.Table:
    """Return rows in an order that depends on their texts alone."""
    keys = pa.table({"doc": table["doc_id"], "query": table["query_id"]})
    order = np.lexsort((keys["doc"].to_numpy(), keys["query"].to_numpy()))
    return table.take(pa.array(order))


def _signed(number: int) -> int:
    """Return an unsigned number of 64 bits as a signed one."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _of_all(table: pa.Table, group: Group) -> list[pa.Table]:
    """Return the tables of all processes, in their order; all processes call."""
    if group.size == 1:
        return [table]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content = np.frombuffer(sink.getvalue(), np.uint8)
    sizes = group.all_gather_array(np.array([len(content)]))
    everyone = group.all_gather_array(content)
    tables = []
    for part in np.split(everyone, sizes.cumsum()[:-1]):
        with pa.ipc.open_stream(pa.py_buffer(part)) as reader:
            tables.append(reader.read_all())
    return tables
