"""Token ids of texts word by word: a word is read once, and looked up from then on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..io.documents import parsed
from ..io.flat import Ints, places, spread

if TYPE_CHECKING:  # it takes time to load
    from tokenizers import Tokenizer, pre_tokenizers

Rows = tuple[
    Ints, Ints
]  # values of all rows, one row after the other, and the number of each row's
Read = Callable[[Sequence[str]], Rows]
UNKNOWN = "[UNK]"  # stands for what a tokenizer does not know
# Where the case of an identifier changes: parseDate and HTTPServer are two words each.
CASE_CHANGE = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
# A vowel sign of Hindi or Thai, or an accent of its own, is a mark in its word.
_LETTER, _OTHER = r"[\p{L}\p{M}]", r"[^\p{L}\p{M}]"
_LETTERS = f"{_LETTER}+"
_WORD = rf"{_LETTERS}|\p{{N}}+"
_SIGN = r"[!-/:-@\[-^`{-~]"  # of ASCII but the underscore, such as the pipe of a command
WORD = f"{_WORD}|{_SIGN}"
# A word that stands again close behind tells little (Church and Gale 1995: words come in bursts):
# it is left out if it stands again within so many words. Numbers and signs stay.
_NEAR = 10
SPARSE = (
    rf"(?<!{_LETTER})({_LETTER}++)(?!(?:{_OTHER}++{_LETTER}++){{0,{_NEAR - 1}}}?{_OTHER}++\1(?!{_LETTER}))"
    rf"|\p{{N}}+|{_SIGN}"
)
_FEW = 50  # words, such as a query's, of which a set soon tells whether one stands twice
_BY_ARROW = 50  # texts: more are split in two fifths of the time
_BLOCK = 2000  # texts whose words are in memory at once
_MOST = 200_000  # parts between spaces that are remembered
_LONGEST = (
    100  # characters of such a part: a longer one, as of a text without spaces, hardly stands again
)
# Where words are letters or numbers, signs part them as spaces do: without its brackets and commas,
# code has a tenth of the parts.
_SIGNS, _GAPS = (re.compile(f"({_SIGN})"), r" \1 "), (re.compile(r"[\n\r\t_]"), " ")
# Parts of a tokenizer that look at nothing beyond a space: a text then has the tokens of its words,
# one after the other.
_KINDS = {"BertNormalizer", "Lowercase", "BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
# The last two are of models of earlier versions.
_PATTERNS = ({"Regex": CASE_CHANGE}, {"Regex": SPARSE}, {"Regex": WORD}, {"Regex": _WORD})


def reader(tokenizer: Tokenizer) -> Read:
    """Return the function from texts to the token ids that `tokenizer` gives them, without special
    tokens.

    Where a word has the same tokens in every text, or none where it is left out, each word is read
    once. Texts without spaces, or with a long part between two, are read by the tokenizer itself.

    >>> from tempera.towers.tokenizer import train_tokenizer
    >>> tokenizer = train_tokenizer(["the HTTPServer and the date"] * 3, 60, 3)
    >>> ids, lengths = reader(tokenizer)(["the  date the server", "", "HTTP"])
    >>> [tokenizer.id_to_token(each) for each in ids], lengths.tolist()
    (['the', 'date', 'the', 'http'], [3, 0, 1])
    """

    def whole(texts: Sequence[str]) -> Rows:
        return _of_lists(
            [
                each.ids
                for each in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            ]
        )

    parts = parsed(tokenizer.to_str())
    if not _by_words(parts):
        return whole
    most = (parts["truncation"] or {"max_length": None})["max_length"]
    if parts["pre_tokenizer"].get("pattern") != {"Regex": SPARSE}:
        return _ByWords(whole, most)
    if not parts["normalizer"] or any(each["normalized"] for each in parts["added_tokens"]):
        return whole  # where an added token stands is known in the normalised text alone
    normalizer, split, spell = tokenizer.normalizer, splitter(WORD), splitter(_LETTERS)

    def words_of(part: str) -> list[str]:
        return [word for word, _ in split.pre_tokenize_str(normalizer.normalize_str(part))]

    def spelt(word: str) -> bool:
        return bool(spell.pre_tokenize_str(word))

    return _ByWords(
        whole, most, words_of, spelt, [each["content"] for each in parts["added_tokens"]]
    )


def splitter(pattern: str) -> pre_tokenizers.Split:
    """Return the part of a tokenizer that leaves of a text what matches a regular expression."""
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(pattern), "removed", invert=True)


def _of_lists(lists: Sequence[Sequence[int]]) -> Rows:
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    return np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum())), lengths


@dataclass(frozen=True)
class _Lists:
    """Hold a list of numbers for each number from 0 on.

    >>> lists = _Lists().extended(_of_lists([[7, 8], [], [9]]))
    >>> [each.tolist() for each in lists.read(np.array([2, 0, 1, 2]), np.array([0, 0, 1, 4]))]
    [[9, 7, 8, 9], [0, 0, 0, 4]]
    """

    values: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    starts: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    lengths: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def extended(self, rows: Rows) -> _Lists:
        """Return them with more lists."""
        values, lengths = rows
        starts = len(self.values) + lengths.cumsum() - lengths
        return _Lists(
            *map(np.append, (self.values, self.starts, self.lengths), (values, starts, lengths))
        )

    def read(self, numbers: Ints, row: Ints) -> tuple[Ints, Ints]:
        """Return what the lists of numbers hold, one after the other, and the row of each."""
        lengths = self.lengths[numbers]
        return self.values[spread(self.starts[numbers], lengths)], np.repeat(row, lengths)


@dataclass
class _Vocabulary:
    """Hold what was read; it only grows, so that threads share it."""

    parts: dict[str, int] = field(default_factory=dict)  # numbers of what stands between two spaces
    words: dict[str, int] = field(default_factory=dict)
    words_of: _Lists = _Lists()  # numbers of the words of each part
    ids_of: _Lists = _Lists()  # tokens of each word
    spelt: NDArray[np.bool_] = field(
        default_factory=lambda: np.zeros(0, np.bool_)
    )  # words of letters


@dataclass
class _ByWords:
    """Texts to the token ids of a tokenizer that looks at nothing beyond a space, unless at the
    next ones of a word.

    Args:
        whole: reads texts by the tokenizer.
        most: ids that a text keeps.
        words_of: the words of what stands between two spaces or signs, where words that stand again
            are left out; None if what stands between two spaces is one.
        spelt: True for a word of letters, which alone is left out.
        apart: added tokens, which split a text.
    """

    whole: Read
    most: int | None
    words_of: Callable[[str], list[str]] | None = None
    spelt: Callable[[str], bool] | None = None
    apart: Sequence[str] = ()
    known: _Vocabulary = field(default_factory=_Vocabulary, init=False)
    learning: Lock = field(default_factory=Lock, init=False)

    def __call__(self, texts: Sequence[str]) -> Rows:
        if len(texts) <= _BLOCK:
            return self._read(texts)
        blocks = [
            self._read(texts[start : start + _BLOCK]) for start in range(0, len(texts), _BLOCK)
        ]
        return np.concatenate([ids for ids, _ in blocks]), np.concatenate(
            [lengths for _, lengths in blocks]
        )

    def _read(self, texts: Sequence[str]) -> Rows:
        distinct, place, lengths = _split(texts, () if self.words_of is None else (_SIGNS, _GAPS))
        if len(self.known.parts) > _MOST:
            self.known = _Vocabulary()
        known = self.known  # which another thread may replace, and nobody empties
        if new := _unknown(distinct, known.parts):
            with self.learning:
                self._learn(known, new)
        parts = np.array([known.parts.get(part, -1) for part in distinct], np.int64)[place]
        row = np.repeat(np.arange(len(lengths)), lengths)
        apart = {i for i, text in enumerate(texts) if any(each in text for each in self.apart)}
        apart.update(row[parts < 0].tolist())  # long parts, too, are the tokenizer's
        if not apart:
            return self._ids(known, parts, row, len(texts))
        here = ~np.isin(row, [*apart])
        rest = self.whole([texts[i] for i in sorted(apart)])
        return _merged(self._ids(known, parts[here], row[here], len(texts)), rest, apart)

    def _ids(self, known: _Vocabulary, parts: Ints, row: Ints, many: int) -> Rows:
        words, row = known.words_of.read(parts, row)
        if self.spelt is not None:
            kept = _kept(words, row, known.spelt)
            words, row = words[kept], row[kept]
        ids, row = known.ids_of.read(words, row)
        lengths = np.bincount(row, minlength=many)
        if self.most is not None and lengths.max(initial=0) > self.most:
            return ids[places(lengths) < self.most], lengths.clip(max=self.most)
        return ids, lengths

    def _learn(self, known: _Vocabulary, parts: Collection[str]) -> None:
        parts = [
            part for part in parts if part not in known.parts
        ]  # another thread may have learned some
        rows = [[part] if self.words_of is None else self.words_of(part) for part in parts]
        new = list(set(chain.from_iterable(rows)).difference(known.words))
        spelt = np.array([self.spelt is not None and self.spelt(word) for word in new], np.bool_)
        ids = self.whole(new)  # what the tokenizer may refuse stands before what is remembered
        known.words.update(zip(new, count(len(known.words)), strict=False))
        known.spelt, known.ids_of = np.append(known.spelt, spelt), known.ids_of.extended(ids)
        known.words_of = known.words_of.extended(
            _of_lists([[known.words[word] for word in row] for row in rows])
        )
        known.parts.update(
            zip(parts, count(len(known.parts)), strict=False)
        )  # the last, since others look here first


def _unknown(parts: Iterable[str], known: Collection[str]) -> set[str]:
    """Return the parts to remember that are not known yet."""
    return {part for part in set(parts).difference(known) if len(part) <= _LONGEST}


def _split(
    texts: Sequence[str], spaced: Iterable[tuple[re.Pattern[str], str]] = ()
) -> tuple[list[str], Ints, Ints]:
    """Return the distinct parts between spaces, the number of each text's among them, and how many
    each text has.

    Args:
        spaced: patterns, and what replaces them before.

    >>> distinct, place, lengths = _split(["a b,a", "", "b"], [(re.compile(","), " ")])
    >>> distinct, place.tolist(), lengths.tolist()
    (['a', 'b', ''], [0, 1, 0, 2, 1], [3, 1, 1])
    """
    if len(texts) > _BY_ARROW:
        rows = pa.array(texts, pa.large_string())
        for pattern, by in spaced:
            rows = pc.replace_substring_regex(rows, pattern.pattern, by)
        of_texts = pc.split_pattern(rows, " ")
        coded = of_texts.flatten().dictionary_encode()
        return (
            coded.dictionary.to_pylist(),
            coded.indices.to_numpy(),
            pc.list_value_length(of_texts).to_numpy(),
        )
    for pattern, by in spaced:
        texts = [pattern.sub(by, text) for text in texts]
    parts, number = [text.split(" ") for text in texts], defaultdict[str, int](count().__next__)
    place = np.array([number[part] for row in parts for part in row], np.int64)
    return list(number), place, np.array([len(row) for row in parts], np.int64)


def _merged(rows: Rows, others: Rows, apart: Collection[int]) -> Rows:
    """Return rows of which those at some numbers, in order, are others."""
    merged, rest = (np.split(ids, lengths.cumsum()[:-1]) for ids, lengths in (rows, others))
    for number, row in zip(sorted(apart), rest, strict=True):
        merged[number] = row
    return np.concatenate(merged), np.array([len(row) for row in merged], np.int64)


def _kept(words: Ints, row: Ints, spelt: NDArray[np.bool_]) -> NDArray[np.bool_] | slice:
    """Return a mask of words without those of letters that stand again within the next `_NEAR` of
    these in their row.

    >>> words, row = np.array([5, 0, 5, 3, 3, 5]), np.array([0, 0, 0, 1, 1, 1])
    >>> _kept(words, row, np.array([False, True, True, False, True, True])).tolist()
    [False, True, True, True, True, True]
    """
    if len(words) < _FEW and len(set(words.tolist())) == len(words):
        return slice(None)
    letters = np.flatnonzero(spelt[words])
    here = words[letters] * (row[-1] + 1) + row[letters]
    kept = np.ones(len(words), np.bool_)
    for near in range(1, min(_NEAR, len(here) - 1) + 1):
        kept[letters[:-near][here[:-near] == here[near:]]] = False
    return kept


def _by_words(parts: dict[str, Any]) -> bool:
    """Return whether a text's tokens are those of its words, apart from where it is cut."""
    normalizer, split, cut = (
        parts["normalizer"] or {},
        parts["pre_tokenizer"] or {},
        parts["truncation"],
    )
    steps = [*normalizer.get("normalizers", [normalizer]), *split.get("pretokenizers", [split])]
    return (
        all(
            each.get("type") in _KINDS or each.get("pattern") in _PATTERNS for each in steps if each
        )
        and bool(split)
        and parts["padding"] is None
        and (cut is None or cut["direction"] == "Right")
        and not any(" " in each["content"] for each in parts["added_tokens"])
    )
