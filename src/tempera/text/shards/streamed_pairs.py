"""Training batches of pairs in shards: a window of rows at a time is read, tokenised and trained
on, while the next is read.

Letters in shapes: n rows of a window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ...arithmetic.ragged import Ragged
from ...core.batch import Batch
from ...engine.batches import Draws, Examples, Sampler
from ...task.config import Config
from ...towers.pair import Tower
from ..read.pairs import Pairs, Text, with_shared_ids
from ..train.catalogue import Catalogue
from ..train.training_pairs import TextData, TrainingPairs, named_rows
from .shard_sampler import DealtParts, RowWindow, ShardSampler
from .training_shards import TrainingShards

_BLOCK = 1 << 16  # texts that are tokenised at once
_SHOWN = ("query", "place")  # columns that name a row


@dataclass(frozen=True)
class TokenWindow:
    """The rows of a window, tokenised.

    Args:
        of: the window.
        examples: its rows, [n].
        names: queries and places of its rows, [n].
    """

    of: RowWindow
    examples: Examples
    names: pa.Table


class PartStream:
    """The training rows of one process in one pass, in order."""

    def __init__(self, shards: TrainingShards, dealt: DealtParts, first: int) -> None:
        """Begin with row `first`; the parts before it are not read."""
        self.shards = shards
        self.at = first
        part = int(np.searchsorted(dealt.ends, first, side="right")) - 1
        self.unread = first - int(dealt.ends[part])  # rows of the first part to pass over
        self.tables = self._tables(dealt.parts[part:].tolist())
        self.rest: list[pa.Table] = []

    def _tables(self, parts: list[int]) -> Iterator[pa.Table]:
        for part in parts:
            for table in self.shards.tables(part):
                passed = min(self.unread, len(table))
                self.unread -= passed
                if passed < len(table):
                    yield table.slice(passed)

    def take(self, count: int) -> pa.Table:
        """Return the next rows, [count]."""
        held = sum(map(len, self.rest))
        while held < count:
            table = next(self.tables)
            self.rest.append(table)
            held += len(table)
        rows = pa.concat_tables(self.rest, promote_options="default")
        self.rest = [rows.slice(count)] if held > count else []
        self.at += count
        return rows.slice(0, count)


class WindowReader:
    """Read the windows of a process, the next beside the training by the present one.

    Args:
        sampler: of the process.
        tower: tokenises texts.
        draws: of documents apart from the pairs, for this process.
        batches: number of the batches of the run; a window behind them is not read.
    """

    def __init__(self, sampler: ShardSampler, tower: Tower, draws: Draws, batches: int) -> None:
        self.sampler = sampler
        self.tower = tower
        self.draws = draws
        self.batches = batches
        self.stream: PartStream | None = None
        self.epoch = -1  # of the stream
        self.present: TokenWindow | None = None
        self.next: tuple[RowWindow, Future[TokenWindow]] | None = None
        self.beside = ThreadPoolExecutor(1, "tempera-window")

    def __call__(self, row: int) -> TokenWindow:
        """Return the window that holds a row."""
        wanted = self.sampler.window_of(row)
        if self.present is None or self.present.of != wanted:
            self.present = None  # its memory is free for the next one
            self.present = self._read(wanted)
            following = self.sampler.after(wanted)
            if following.step < self.batches:
                dealt = self.sampler.dealt(following.epoch)
                self.next = following, self.beside.submit(self.read, dealt, following)
        return self.present

    def _read(self, wanted: RowWindow) -> TokenWindow:
        """Return a window that has been read meanwhile, or read it now."""
        if self.next is not None:
            window, future = self.next
            self.next = None
            tokens = future.result()
            if window == wanted:
                return tokens
        return self.read(self.sampler.dealt(wanted.epoch), wanted)

    def read(self, dealt: DealtParts, window: RowWindow) -> TokenWindow:
        """Read and tokenise a window."""
        stream = self.stream
        if stream is None or self.epoch != window.epoch or stream.at != window.first:
            stream = PartStream(self.sampler.shards, dealt, window.first)
        self.stream, self.epoch = stream, window.epoch
        table = with_shared_ids(stream.take(len(window)))
        pairs = Pairs(table)
        withheld = None
        if "negatives" in table.column_names:
            withheld = np.isin(pairs.own_forms("negatives"), self.sampler.shards.held)
        catalogue = Catalogue.of(pairs, withheld)
        queries = tokens_of(self.tower, catalogue, "query")
        docs = tokens_of(self.tower, catalogue, "doc")
        examples = catalogue.examples(np.arange(len(pairs)), queries, docs, self.draws)
        examples = replace(examples, processes=self.sampler.processes)
        return TokenWindow(window, examples, table.select(_SHOWN))


def tokens_of(tower: Tower, catalogue: Catalogue, role: Text) -> Ragged:
    """Return the tokens of the distinct texts of a role, as int32."""
    _, texts = catalogue.distinct(role)
    parts = []
    for start in range(0, len(texts), _BLOCK):
        rows = np.arange(start, min(len(texts), start + _BLOCK))
        tokens = tower.features(texts.chosen(rows), None, role)
        parts.append(Ragged(tokens.values.int(), tokens.offsets))
    return Ragged.cat(parts)


class StreamedPairs(TrainingPairs):
    """Make the batches of a run from shards; `texts` are those of held-out rows and of a sample."""

    def __init__(
        self, config: Config, texts: TextData, sampler: Sampler, tower: Tower, store: Path
    ) -> None:
        super().__init__(config, texts, sampler, tower, store)
        assert isinstance(sampler, ShardSampler)
        self.options = config.train
        self.reader: WindowReader | None = None
        self.window = sampler.window_rows
        self.note = (
            f"each process of the training reads its own parts of the shards, and shuffles windows of up to "
            f"{self.window:,} rows; no negatives are mined, and nothing is trained again on held-out pairs"
        )

    @property
    def of_process(self) -> ShardSampler:
        """The sampler of this process."""
        assert isinstance(self.sampler, ShardSampler)
        return self.sampler

    def _reader_of(self, sampler: ShardSampler) -> WindowReader:
        """Return the reader of a process."""
        if self.reader is None or self.reader.sampler is not sampler:
            options = self.options
            steps = options.steps(sampler.batches_per_epoch)
            # Every process draws its share of the documents from its own window.
            last = options.sampled * (sampler.rank + 1) // sampler.processes
            count = last - options.sampled * sampler.rank // sampler.processes
            draws = Draws(count, options.sampled_power, options.seed + (sampler.rank << 64))
            batches = steps * options.gradient_accumulation_steps
            self.reader = WindowReader(sampler, self.tower, draws, batches)
        return self.reader

    def batch(self, rows: Tensor, number: int) -> Batch[Ragged]:
        """Return the tokens of chosen rows of one window."""
        self.known.forget()
        window, places = self._found(rows)
        if self.reader is not None and number + 1 >= self.reader.batches:
            self.reader = None  # nothing follows: free the window
        return window.examples.batch(places, number)

    def _found(self, rows: Tensor) -> tuple[TokenWindow, Tensor]:
        """Return the window of some rows, and their places in it."""
        sampler = self.of_process
        window = self._reader_of(sampler)(int(rows[0]))
        return window, rows % sampler.shards.count - window.of.first

    def called(self, rows: Tensor) -> list[str]:
        """Return the place of each pair, with the beginning of its query."""
        window, places = self._found(rows)
        chosen = window.names.take(pa.array(places.numpy()))
        return named_rows(chosen["place"].to_pylist(), chosen["query"].to_pylist())

    def content(self) -> Iterable[Tensor]:
        """Yield the tokens of the sample, the digest of all texts, and the training rows."""
        yield from super().content()
        sampler = self.of_process
        shards = sampler.shards
        # The number of processes decides who reads which row, so that no other number resumes.
        yield torch.tensor([shards.digest >> 1, sampler.window_rows, sampler.processes])
        for bits in shards.bits:
            yield torch.from_numpy(bits.copy())
