"""Token ids of texts word by word: a word is read once, and looked up from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..io.documents import parsed

if TYPE_CHECKING:  # it takes time to load
    from tokenizers import Tokenizer

Numbers = NDArray[np.int64]
Read = Callable[[Sequence[str]], tuple[Numbers, Numbers]]
# Where the case of an identifier changes: parseDate and HTTPServer are two words each.
CASE_CHANGE = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
WORD = r"\p{L}+|\p{N}+"
_MOST = 200_000  # words that are remembered
# Parts of a tokenizer that look at nothing beyond a space: a text then has the tokens of its words, one after the other.
_KINDS = {"BertNormalizer", "Lowercase", "BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_PATTERNS = ({"Regex": CASE_CHANGE}, {"Regex": WORD})


def reader(tokenizer: Tokenizer) -> Read:
    """Return the function from n texts to the token ids that `tokenizer` gives them, and to how many each has, [n].

    Special tokens are left out. Where a word has the same tokens in every text, it is read once.

    >>> from tempera.towers.tokenizer import train_tokenizer
    >>> tokenizer = train_tokenizer(["the HTTPServer and the date"] * 3, 60, 3)
    >>> ids, lengths = reader(tokenizer)(["the  date, the server", "", "HTTP"])
    >>> [tokenizer.id_to_token(each) for each in ids], lengths.tolist()
    (['the', 'date', 'the', 'http'], [3, 0, 1])
    """

    def whole(texts: Sequence[str]) -> tuple[Numbers, Numbers]:
        rows = [each.ids for each in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum())), lengths

    if not _by_words(tokenizer):
        return whole
    words, most = _Words(whole), (tokenizer.truncation or {"max_length": None})["max_length"]

    def by_words(texts: Sequence[str]) -> tuple[Numbers, Numbers]:
        ids, lengths = words.read(texts)
        if most is None or lengths.max(initial=0) <= most:
            return ids, lengths
        place = np.arange(len(ids)) - np.repeat(lengths.cumsum() - lengths, lengths)
        return ids[place < most], lengths.clip(max=most)

    return by_words


class _Words:
    """Words that have been read, and their ids: those of word i are ids[bounds[i] : bounds[i + 1]]."""

    def __init__(self, whole: Read) -> None:
        self.whole, self.lock = whole, Lock()
        self._forget()

    def _forget(self) -> None:
        self.numbers: dict[str, int] = {}
        self.ids, self.bounds = np.zeros(1 << 12, np.int64), np.zeros(1 << 12, np.int64)

    def read(self, texts: Sequence[str]) -> tuple[Numbers, Numbers]:
        """Return the ids of all texts, and how many each has."""
        rows = [text.split(" ") for text in texts]
        count = np.fromiter(map(len, rows), np.int64, len(rows))
        with self.lock:
            words = self._numbers(rows, int(count.sum()))
            first = self.bounds[words]
            lengths = self.bounds[words + 1] - first
            ends = lengths.cumsum()
            ids = self.ids[np.arange(lengths.sum()) + np.repeat(first - ends + lengths, lengths)]
        return ids, np.add.reduceat(lengths, count.cumsum() - count) if rows else lengths

    def _numbers(self, rows: Sequence[Sequence[str]], count: int) -> Numbers:
        """Return the numbers of all words, and read those that are new."""
        try:
            return np.fromiter(map(self.numbers.__getitem__, chain.from_iterable(rows)), np.int64, count)
        except KeyError:
            if len(self.numbers) > _MOST:
                self._forget()
        new = list(set(chain.from_iterable(rows)).difference(self.numbers))
        known, (ids, lengths) = len(self.numbers), self.whole(new)
        end = self.bounds[known]
        self.ids = _written(self.ids, end, ids)
        self.bounds = _written(self.bounds, known + 1, end + lengths.cumsum())
        self.numbers.update(zip(new, range(known, known + len(new)), strict=True))
        return self._numbers(rows, count)


def _written(values: Numbers, start: int, more: Numbers) -> Numbers:
    """Return an array with more values from a place on: the same one, or one twice as long where it is full."""
    if start + len(more) > len(values):
        values = np.resize(values, 2 * (start + len(more)))
    values[start : start + len(more)] = more
    return values


def _by_words(tokenizer: Tokenizer) -> bool:
    """Return whether a text's tokens are those of its words, apart from where it is cut."""
    parts = parsed(tokenizer.to_str())
    normalizer, splitter, cut = parts["normalizer"] or {}, parts["pre_tokenizer"] or {}, parts["truncation"]
    steps = [*normalizer.get("normalizers", [normalizer]), *splitter.get("pretokenizers", [splitter])]
    return (
        all(each.get("type") in _KINDS or each.get("pattern") in _PATTERNS for each in steps if each)
        and bool(splitter)
        and parts["padding"] is None
        and (cut is None or cut["direction"] == "Right")
        and not any(" " in each["content"] for each in parts["added_tokens"])
    )
