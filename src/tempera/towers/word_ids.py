"""Token ids of texts word by word: a word is read once, and looked up from then on."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..io.documents import parsed
from ..io.flat import Ints, places
from ..io.later import compute as pc

if TYPE_CHECKING:  # it takes time to load
    from tokenizers import Tokenizer, pre_tokenizers

_Numbers = NDArray[np.int32]
# The values of all rows, one row after the other, and the number of values of each row.
Rows = tuple[Ints, Ints]
Read = Callable[[Sequence[str] | pa.LargeStringArray], Rows]
UNKNOWN = "[UNK]"  # stands for a word that a tokenizer does not know
# Where the case of an identifier changes: parseDate and HTTPServer are two words each.
CASE_CHANGE = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
# A vowel sign of Hindi or Thai, or an accent of its own, is a mark in its word.
_LETTER = r"[\p{L}\p{M}]"
_OTHER = r"[^\p{L}\p{M}]"
_LETTERS = f"{_LETTER}+"
_WORD = rf"{_LETTERS}|\p{{N}}+"
_SIGN = r"[!-/:-@\[-^`{-~]"  # of ASCII but the underscore, such as the pipe of a command
WORD = f"{_WORD}|{_SIGN}"
# A word that stands again soon tells little (Church and Gale 1995: words come in bursts): the word
# is left out if it stands again within _NEAR words. Numbers and signs stay.
_NEAR = 10
SPARSE = (
    rf"(?<!{_LETTER})({_LETTER}++)(?!(?:{_OTHER}++{_LETTER}++){{0,{_NEAR - 1}}}?{_OTHER}++\1(?!{_LETTER}))"
    rf"|\p{{N}}+|{_SIGN}"
)
# In a row of fewer words, such as a query, a set of the words tells soon if a word stands twice.
_FEW_WORDS = 50
_FEW_TEXTS = 50  # more texts are split by their bytes
_BLOCK = 4000  # texts whose words are in memory at once
_MOST_PARTS = 300_000  # parts between spaces that are remembered
# Characters of a remembered part: a longer part, as of a text without spaces, hardly stands again.
_LONGEST_PART = 100
# Where words are letters or numbers, signs part words as spaces do: without its brackets and
# commas, code has a tenth of the parts.
_SIGNS = re.compile(f"({_SIGN})")
# The normalizer of a tokenizer that Tempera trains.
_OUR_NORMALIZER = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Replace", "pattern": {"Regex": CASE_CHANGE}, "content": " "},
        {"type": "Lowercase"},
    ],
}
_CASE_CHANGE = re.compile(CASE_CHANGE)
_ASCII_WORD = re.compile("[a-z]+|[0-9]+")
_GAPS = re.compile(r"[\n\r\t_]")
# Kinds of bytes of UTF-8: between two parts, a part alone, or inside of a part.
_GAP, _ALONE, _INSIDE = 0, 1, 2
_KIND = np.full(256, _INSIDE, np.uint8)
_KIND[ord(" ")] = _GAP
_KIND_WITH_SIGNS = _KIND.copy()
for _code in range(128):
    if _SIGNS.match(chr(_code)):
        _KIND_WITH_SIGNS[_code] = _ALONE
    if _GAPS.match(chr(_code)):
        _KIND_WITH_SIGNS[_code] = _GAP
# Parts of a tokenizer that look at nothing beyond a space: a text then has the tokens of its words,
# one after the other.
_KINDS = {"BertNormalizer", "Lowercase", "BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
# The last two patterns are of models of earlier versions.
_PATTERNS = ({"Regex": CASE_CHANGE}, {"Regex": SPARSE}, {"Regex": WORD}, {"Regex": _WORD})


def reader(tokenizer: Tokenizer) -> Read:
    """Return the function from texts to the token ids of `tokenizer`, without special tokens.

    Where a word has the same tokens in every text, or none in place of a repeat, each word is read
    once. Texts without spaces, or with a long part between two spaces, are read by the tokenizer
    itself.

    >>> from tempera.towers.tokenizer import train_tokenizer
    >>> tokenizer = train_tokenizer(["the HTTPServer and the date"] * 3, 60, 3)
    >>> ids, lengths = reader(tokenizer)(["the  date the server", "", "HTTP"])
    >>> [tokenizer.id_to_token(each) for each in ids], lengths.tolist()
    (['the', 'date', 'the', 'http'], [3, 0, 1])
    """

    def read_whole(texts: Sequence[str] | pa.LargeStringArray) -> Rows:
        texts = texts.to_pylist() if isinstance(texts, pa.LargeStringArray) else list(texts)
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return _rows_of_lists([encoding.ids for encoding in encodings])

    settings = _settings(tokenizer)
    if not _reads_by_words(settings):
        return read_whole
    most = None
    if settings["truncation"]:
        most = settings["truncation"]["max_length"]
    if settings["pre_tokenizer"].get("pattern") != {"Regex": SPARSE}:
        return _ByWords(read_whole, most)
    added = settings["added_tokens"]
    if not settings["normalizer"] or any(token["normalized"] for token in added):
        return read_whole  # only the normalised text tells where an added token stands
    normalizer = tokenizer.normalizer
    words = splitter(WORD)
    letters = splitter(_LETTERS)

    is_ours = settings["normalizer"] == _OUR_NORMALIZER

    def words_of(part: str) -> list[str]:
        if is_ours and part.isascii() and not _SIGNS.match(part):
            # Python's expressions read ASCII alike, in a fifth of the time.
            if not part.islower():
                part = _CASE_CHANGE.sub(" ", part).lower()
            return _ASCII_WORD.findall(part)
        return [word for word, _ in words.pre_tokenize_str(normalizer.normalize_str(part))]

    def has_letters(word: str) -> bool:
        return word.isalpha() if word.isascii() else bool(letters.pre_tokenize_str(word))

    tokens = [token["content"] for token in added]
    return _ByWords(read_whole, most, words_of, has_letters, tokens)


def _settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the settings of a tokenizer for reading texts, without its large vocabulary."""
    added = tokenizer.get_added_tokens_decoder().values()
    return {
        "normalizer": _settings_of(tokenizer.normalizer),
        "pre_tokenizer": _settings_of(tokenizer.pre_tokenizer),
        "truncation": tokenizer.truncation,
        "padding": tokenizer.padding,
        "added_tokens": [
            {"content": token.content, "normalized": token.normalized} for token in added
        ],
    }


def _settings_of(part: Any) -> dict[str, Any] | None:
    """Return the settings of a part of a tokenizer."""
    if part is None:
        return None
    settings: dict[str, Any] = parsed(part.__getstate__())
    return settings


def splitter(pattern: str) -> pre_tokenizers.Split:
    """Return the part of a tokenizer for the matches of a regular expression in a text."""
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(pattern), "removed", invert=True)


def _rows_of_lists(lists: Sequence[Sequence[int]]) -> Rows:
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    values = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
    return values, lengths


@dataclass(frozen=True)
class _Lists:
    """Hold a list of numbers for each number from 0 on; of 32 bits, for half of the time.

    >>> lists = _Lists().extended(_rows_of_lists([[7, 8], [], [9]]))
    >>> [each.tolist() for each in lists.read(np.array([2, 0, 1, 2]), np.array([0, 0, 1, 4]))]
    [[9, 7, 8, 9], [0, 0, 0, 4]]
    """

    values: _Numbers = field(default_factory=lambda: np.zeros(0, np.int32))
    starts: _Numbers = field(default_factory=lambda: np.zeros(0, np.int32))
    lengths: _Numbers = field(default_factory=lambda: np.zeros(0, np.int32))

    def extended(self, rows: Rows) -> _Lists:
        """Return the lists, and after them a list for each row of `rows`."""
        values, lengths = rows
        starts = len(self.values) + lengths.cumsum() - lengths
        return _Lists(
            np.append(self.values, values.astype(np.int32)),
            np.append(self.starts, starts.astype(np.int32)),
            np.append(self.lengths, lengths.astype(np.int32)),
        )

    def read(self, numbers: _Numbers, row: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Return the values of the lists of some numbers, list after list, and the row of each
        value; `row` has the row of each list."""
        lengths = self.lengths[numbers]
        before = lengths.cumsum(dtype=np.int32) - lengths
        at = np.repeat(self.starts[numbers] - before, lengths)
        at += np.arange(len(at), dtype=np.int32)
        return self.values[at], np.repeat(row, lengths)


@dataclass
class _Vocabulary:
    """Hold the known parts between spaces, and the known words; threads may share the vocabulary,
    because a vocabulary only grows."""

    parts: dict[str, int] = field(default_factory=dict)  # number of each part
    words: dict[str, int] = field(default_factory=dict)  # number of each word
    words_of: _Lists = _Lists()  # numbers of the words of each part
    ids_of: _Lists = _Lists()  # token ids of each word
    # True for a word of letters, [words]
    are_letters: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))


@dataclass
class _ByWords:
    """Texts to the token ids of a tokenizer without context beyond a space, apart from leaving out
    repeated words.

    Args:
        read_whole: reads texts by the tokenizer itself.
        most: token ids kept of a text.
        words_of: the words of a part between two spaces or signs, for a tokenizer without repeated
            words; None if a part between two spaces is a word.
        has_letters: True for a word of letters; only words of letters are left out.
        added: tokens added to the tokenizer; an added token splits a text.
    """

    read_whole: Read
    most: int | None
    words_of: Callable[[str], list[str]] | None = None
    has_letters: Callable[[str], bool] | None = None
    added: Sequence[str] = ()
    known: _Vocabulary = field(default_factory=_Vocabulary, init=False)
    learning: Lock = field(default_factory=Lock, init=False)

    def __call__(self, texts: Sequence[str] | pa.LargeStringArray) -> Rows:
        if len(texts) <= _BLOCK:
            return self._read(texts)
        ids = []
        lengths = []
        for start in range(0, len(texts), _BLOCK):
            block_ids, block_lengths = self._read(texts[start : start + _BLOCK])
            ids.append(block_ids)
            lengths.append(block_lengths)
        return np.concatenate(ids), np.concatenate(lengths)

    def _read(self, texts: Sequence[str] | pa.LargeStringArray) -> Rows:
        distinct, number, lengths = _split(texts, has_signs=self.words_of is not None)
        if len(self.known.parts) > _MOST_PARTS:
            self.known = _Vocabulary()
        known = self.known  # another thread may replace the vocabulary, and nobody empties it
        number_of_part = [known.parts.get(part, -1) for part in distinct]
        new = [i for i, at in enumerate(number_of_part) if at < 0 and _is_kept(distinct[i])]
        if new:
            with self.learning:
                self._learn(known, [distinct[i] for i in new])
            for i in new:
                number_of_part[i] = known.parts[distinct[i]]
        parts = np.array(number_of_part, np.int32)[number]
        row = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)

        # Texts with added tokens or with long parts are read by the tokenizer itself.
        whole = set(row[parts < 0].tolist())
        for token in self.added:
            whole.update(_holding(texts, token))
        if not whole:
            return self._ids(known, parts, row, len(texts))
        by_words = ~np.isin(row, list(whole))
        rows = self._ids(known, parts[by_words], row[by_words], len(texts))
        numbers = sorted(whole)
        return _with_rows(rows, numbers, self.read_whole([str(texts[i]) for i in numbers]))

    def _ids(self, known: _Vocabulary, parts: _Numbers, row: _Numbers, n: int) -> Rows:
        """Return the token ids of n texts from the numbers of their parts and the row of each
        part."""
        words, row = known.words_of.read(parts, row)
        if self.has_letters is not None:
            kept = _without_repeats(words, row, known.are_letters)
            words = words[kept]
            row = row[kept]
        ids, row = known.ids_of.read(words, row)
        lengths = np.bincount(row, minlength=n)
        if self.most is not None and lengths.max(initial=0) > self.most:
            ids = ids[places(lengths) < self.most]
            lengths = lengths.clip(max=self.most)
        return ids.astype(np.int64), lengths

    def _learn(self, known: _Vocabulary, parts: Collection[str]) -> None:
        # Another thread may have learned some.
        parts = [part for part in parts if part not in known.parts]
        words_of_parts = [[part] for part in parts]
        if self.words_of is not None:
            words_of_parts = [self.words_of(part) for part in parts]
        new = list(set(chain.from_iterable(words_of_parts)).difference(known.words))
        are_letters = np.zeros(len(new), np.bool_)
        if self.has_letters is not None:
            are_letters[:] = [self.has_letters(word) for word in new]
        ids = self.read_whole(new)  # before the first change, since the tokenizer may refuse a word
        for word in new:
            known.words[word] = len(known.words)
        known.are_letters = np.append(known.are_letters, are_letters)
        known.ids_of = known.ids_of.extended(ids)
        numbers = [[known.words[word] for word in words] for words in words_of_parts]
        known.words_of = known.words_of.extended(_rows_of_lists(numbers))
        # The parts come last, since other threads look here first.
        for part in parts:
            known.parts[part] = len(known.parts)


def _holding(texts: Sequence[str] | pa.LargeStringArray, token: str) -> list[int]:
    """Return the numbers of the texts that hold a token."""
    if not isinstance(texts, pa.LargeStringArray):
        return [i for i, text in enumerate(texts) if token in text]
    letters, _ = _letters_of(texts)
    if token.encode() not in letters.tobytes():  # as good as always
        return []
    holding = pc.match_substring(texts, token).to_numpy(zero_copy_only=False)
    numbers: list[int] = np.flatnonzero(holding).tolist()
    return numbers


def _is_kept(part: str) -> bool:
    """Return True for a part to remember."""
    return len(part) <= _LONGEST_PART


def _split(
    texts: Sequence[str] | pa.LargeStringArray, has_signs: bool
) -> tuple[list[str], _Numbers, Ints]:
    """Return the distinct parts of texts, the number of each part among the distinct parts, and the
    number of parts of each text.

    Args:
        has_signs: True if a sign is a part of its own, and new lines part words, too; else only
            spaces do.

    >>> distinct, number, lengths = _split(["a b,a", "", "b"], True)
    >>> distinct, number.tolist(), lengths.tolist()
    (['a', 'b', ','], [0, 1, 2, 0, 1], [4, 0, 1])
    """
    if isinstance(texts, pa.LargeStringArray):
        return _split_column(texts, has_signs)
    if len(texts) > _FEW_TEXTS:
        return _split_column(pa.array(texts, pa.large_string()), has_signs)
    numbers: dict[str, int] = {}
    number = list[int]()
    lengths = list[int]()
    for text in texts:
        if has_signs:
            text = _GAPS.sub(" ", _SIGNS.sub(r" \1 ", text))
        parts = [part for part in text.split(" ") if part]
        number += [numbers.setdefault(part, len(numbers)) for part in parts]
        lengths.append(len(parts))
    return list(numbers), np.array(number, np.int32), np.array(lengths, np.int64)


def _split_column(column: pa.LargeStringArray, has_signs: bool) -> tuple[list[str], _Numbers, Ints]:
    """Return the parts as `_split` does, in a sixth of the time."""
    kinds = _KIND_WITH_SIGNS if has_signs else _KIND
    letters, ends = _letters_of(column)
    kind = kinds[letters]
    # The places of the first and the last letter of longer parts, which no text shares.
    inside = kind == _INSIDE
    is_first = inside.copy()
    is_first[1:] &= ~inside[:-1]
    is_last = inside.copy()
    is_last[:-1] &= ~inside[1:]
    texts_with_letters = np.flatnonzero(np.diff(ends))
    first_letters = ends[texts_with_letters]
    is_first[first_letters] = inside[first_letters]
    last_letters = ends[texts_with_letters + 1] - 1
    is_last[last_letters] = inside[last_letters]
    sizes = np.flatnonzero(is_last) - np.flatnonzero(is_first) + 1
    longer = _strings(letters[inside], sizes).dictionary_encode()

    is_sign = kind == _ALONE
    is_first |= is_sign
    starts = np.flatnonzero(is_first)
    is_sign = is_sign[starts]
    signs = letters[starts[is_sign]]
    stands = np.bincount(signs, minlength=256) > 0
    number_of_sign = stands.cumsum() - 1
    number = np.empty(len(starts), np.int32)
    number[is_sign] = number_of_sign[signs]
    number[~is_sign] = stands.sum() + longer.indices.to_numpy()
    distinct = list(map(chr, np.flatnonzero(stands).tolist())) + longer.dictionary.to_pylist()
    lengths = np.diff(np.searchsorted(starts, ends))
    return distinct, number, lengths


def _letters_of(column: pa.LargeStringArray) -> tuple[NDArray[np.uint8], Ints]:
    """Return the bytes of all texts, one text after the other, and where each text begins, with the
    end of the last."""
    _, ends, letters = column.buffers()
    ends = np.frombuffer(ends, np.int64)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(letters or b"", np.uint8)[ends[0] : ends[-1]], ends - ends[0]


def _strings(letters: NDArray[np.uint8], sizes: Ints) -> pa.LargeStringArray:
    """Return strings of some sizes, one after the other in `letters`."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    buffers = pa.py_buffer(offsets), pa.py_buffer(letters)
    return pa.LargeStringArray.from_buffers(len(sizes), *buffers)


def _with_rows(rows: Rows, numbers: Sequence[int], others: Rows) -> Rows:
    """Return `rows` with `others` in place of the rows at some numbers."""
    ids, lengths = rows
    other_ids, other_lengths = others
    lists = np.split(ids, lengths.cumsum()[:-1])
    other_lists = np.split(other_ids, other_lengths.cumsum()[:-1])
    for number, other in zip(numbers, other_lists, strict=True):
        lists[number] = other
    return np.concatenate(lists), np.array([len(each) for each in lists], np.int64)


def _without_repeats(
    words: _Numbers, row: _Numbers, are_letters: NDArray[np.bool_]
) -> NDArray[np.bool_] | slice:
    """Return a mask of words, False for a word of letters with a repeat within the next `_NEAR`
    words of letters of the row.

    >>> words, row = np.array([5, 0, 5, 3, 3, 5]), np.array([0, 0, 0, 1, 1, 1])
    >>> _without_repeats(words, row, np.array([False, True, True, False, True, True])).tolist()
    [False, True, True, True, True, True]
    """
    if len(words) < _FEW_WORDS and len(set(words.tolist())) == len(words):
        return slice(None)
    letters = np.flatnonzero(are_letters[words])
    word_in_row = words[letters] * np.int64(row[-1] + 1) + row[letters]
    stands_again = np.zeros(len(letters), np.bool_)
    for near in range(1, min(_NEAR, len(letters) - 1) + 1):
        stands_again[:-near] |= word_in_row[:-near] == word_in_row[near:]
    kept = np.ones(len(words), np.bool_)
    kept[letters[stands_again]] = False
    return kept


def _reads_by_words(settings: dict[str, Any]) -> bool:
    """Return True if a text has the tokens of its words, up to the last kept token, by the settings
    of a tokenizer."""
    split = settings["pre_tokenizer"]
    if not split or settings["padding"] is not None:
        return False
    cut = settings["truncation"]
    if cut is not None and cut["direction"] != "right":
        return False
    if any(" " in token["content"] for token in settings["added_tokens"]):
        return False
    normalizer = settings["normalizer"] or {}
    steps = list(normalizer.get("normalizers", [normalizer]))
    steps.extend(split.get("pretokenizers", [split]))
    return all(_stops_at_spaces(step) for step in steps if step)


def _stops_at_spaces(step: dict[str, Any]) -> bool:
    return step.get("type") in _KINDS or step.get("pattern") in _PATTERNS
