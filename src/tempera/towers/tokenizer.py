"""A tokenizer for names and prose, trained on the corpus to read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, trainers

from ..arithmetic.ragged import Ragged, from_lengths
from ..errors import ConfigError
from ..io.console import progress_bar
from ..io.texts import Texts
from .word_ids import CASE_CHANGE, SPARSE, UNKNOWN, WORD, Read, Rows, reader, splitter

_BLOCK = 4000  # texts of a thread at once
_THREADS = min(4, os.cpu_count() or 1)
# Vocabularies of a third of 87,000 code pairs and of all 87,000 retrieve alike; the third takes a
# quarter of the time.
_SAMPLED_TEXTS = 60_000
_SAMPLED_CHARACTERS = 10_000_000
_MEASURED = 1000  # texts that tell the mean length


def sample(texts: Sequence[str], most: int | None = None) -> Sequence[str]:
    """Return an even sample of at most `most` texts; None is enough texts to train a tokenizer on.

    >>> len(sample(["word"] * 90_000)), len(sample(["a word in a long text"] * 90_000)), len(sample(["a" * 2_000] * 90_000))
    (45000, 45000, 5000)
    """
    if most is None:
        measured = sample(texts, _MEASURED)
        characters = max(1, sum(map(len, measured)))
        most = min(_SAMPLED_TEXTS, _SAMPLED_CHARACTERS * len(measured) // characters)
    step = max(1, math.ceil(len(texts) / max(1, most)))
    return texts[::step]


def train_tokenizer(texts: Iterable[str], vocabulary: int, max_length: int) -> Tokenizer:
    """Train a lower-case byte-pair tokenizer (Sennrich et al. 2016). Identifiers are split at
    underscores, digits and changes of case.

    Each other sign is a token of its own.

    Args:
        vocabulary: number of pieces; frequent words are one piece.
        max_length: longer texts are cut to `max_length` tokens; stored in the tokenizer.

    >>> tokenizer = train_tokenizer(["parse the HTTPServer date"] * 3, 60, 16)
    >>> tokenizer.encode("parseDate").tokens
    ['parse', 'date']
    >>> train_tokenizer(["ls | wc"] * 3, 60, 16).encode("ls|wc").tokens
    ['ls', '|', 'wc']
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(CASE_CHANGE), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = splitter(WORD)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=["[PAD]", UNKNOWN],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() <= 2:
        raise ConfigError(
            "no word occurs twice in the texts, so no tokenizer can be trained on them, nor on emoji alone: give more data"
        )
    tokenizer.enable_truncation(max_length)
    return tokenizer


def without_repeats(tokenizer: Tokenizer) -> Tokenizer:
    """Let a tokenizer of `train_tokenizer` leave out words repeated within the next ten words, and
    return the tokenizer.

    >>> tokenizer = without_repeats(train_tokenizer(["a cell", "the cell"] * 3, 60, 16))
    >>> tokenizer.encode("a cell, the cell").tokens
    ['a', '[UNK]', 'the', 'cell']
    """
    tokenizer.pre_tokenizer = splitter(SPARSE)
    return tokenizer


def vocabulary_of(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens in the order of their numbers."""
    numbers: dict[str, int] = tokenizer.get_vocab()
    return sorted(numbers, key=numbers.__getitem__)


def tokenize(tokenizer: Tokenizer, texts: Sequence[str], progress: str | None = None) -> Ragged:
    """Return the token ids of texts, without special tokens.

    A progress bar named `progress` is shown if a name is given.
    """
    read = _reader(tokenizer.to_str())

    def read_block(start: int) -> Rows:
        stop = min(len(texts), start + _BLOCK)
        if isinstance(texts, Texts):
            rows = read(texts.column(np.arange(start, stop)))
        else:
            rows = read(texts[start:stop])
        bar.update(stop - start)
        return rows

    values = []
    lengths = []
    with (
        progress_bar(progress, len(texts), "text") as bar,
        ThreadPoolExecutor(_THREADS) as pool,
    ):
        for ids, counts in pool.map(read_block, range(0, len(texts), _BLOCK)):
            values.append(ids.astype(np.int32))
            lengths.append(counts)
    if not lengths:
        return Ragged.of([])
    offsets = from_lengths(torch.from_numpy(np.concatenate(lengths)))
    return Ragged(torch.from_numpy(np.concatenate(values)), offsets)


@lru_cache(maxsize=2)
def _reader(tokenizer: str) -> Read:
    """Return the function from texts to token ids by a serialised tokenizer; the function remembers
    known words."""
    return reader(Tokenizer.from_str(tokenizer))
