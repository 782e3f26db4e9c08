"""Token ids of texts word by word: a word is read once, and looked up from then on."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..io.documents import parsed
from ..io.flat import Ints, places, spread
from ..io.later import compute as pc

if TYPE_CHECKING:  # it takes time to load
    from tokenizers import Tokenizer, pre_tokenizers

# The values of all rows, one row after the other, and the number of values of each row.
Rows = tuple[Ints, Ints]
Read = Callable[[Sequence[str]], Rows]
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
_FEW_TEXTS = 50  # Arrow splits more texts in two fifths of the time
_BLOCK = 2000  # texts whose words are in memory at once
_MOST_PARTS = 200_000  # parts between spaces that are remembered
# Characters of a remembered part: a longer part, as of a text without spaces, hardly stands again.
_LONGEST_PART = 100
# Patterns and their replacements. Where words are letters or numbers, signs part words as spaces
# do: without its brackets and commas, code has a tenth of the parts.
_SIGNS = (re.compile(f"({_SIGN})"), r" \1 ")
_GAPS = (re.compile(r"[\n\r\t_]"), " ")
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

    def read_whole(texts: Sequence[str]) -> Rows:
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
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

    def words_of(part: str) -> list[str]:
        return [word for word, _ in words.pre_tokenize_str(normalizer.normalize_str(part))]

    def has_letters(word: str) -> bool:
        return bool(letters.pre_tokenize_str(word))

    return _ByWords(read_whole, most, words_of, has_letters, [token["content"] for token in added])


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
    """Hold a list of numbers for each number from 0 on.

    >>> lists = _Lists().extended(_rows_of_lists([[7, 8], [], [9]]))
    >>> [each.tolist() for each in lists.read(np.array([2, 0, 1, 2]), np.array([0, 0, 1, 4]))]
    [[9, 7, 8, 9], [0, 0, 0, 4]]
    """

    values: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    starts: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    lengths: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def extended(self, rows: Rows) -> _Lists:
        """Return the lists, and after them a list for each row of `rows`."""
        values, lengths = rows
        starts = len(self.values) + lengths.cumsum() - lengths
        return _Lists(
            np.append(self.values, values),
            np.append(self.starts, starts),
            np.append(self.lengths, lengths),
        )

    def read(self, numbers: Ints, row: Ints) -> tuple[Ints, Ints]:
        """Return the values of the lists of some numbers, list after list, and the row of each
        value; `row` has the row of each list."""
        lengths = self.lengths[numbers]
        values = self.values[spread(self.starts[numbers], lengths)]
        return values, np.repeat(row, lengths)


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

    def __call__(self, texts: Sequence[str]) -> Rows:
        if len(texts) <= _BLOCK:
            return self._read(texts)
        ids = []
        lengths = []
        for start in range(0, len(texts), _BLOCK):
            block_ids, block_lengths = self._read(texts[start : start + _BLOCK])
            ids.append(block_ids)
            lengths.append(block_lengths)
        return np.concatenate(ids), np.concatenate(lengths)

    def _read(self, texts: Sequence[str]) -> Rows:
        replacements = () if self.words_of is None else (_SIGNS, _GAPS)
        distinct, number, lengths = _split(texts, replacements)
        if len(self.known.parts) > _MOST_PARTS:
            self.known = _Vocabulary()
        known = self.known  # another thread may replace the vocabulary, and nobody empties it
        new = _unknown(distinct, known.parts)
        if new:
            with self.learning:
                self._learn(known, new)
        part_numbers = np.array([known.parts.get(part, -1) for part in distinct], np.int64)
        parts = part_numbers[number]
        row = np.repeat(np.arange(len(lengths)), lengths)

        # Texts with added tokens or with long parts are read by the tokenizer itself.
        whole = set(row[parts < 0].tolist())
        for i, text in enumerate(texts):
            if any(token in text for token in self.added):
                whole.add(i)
        if not whole:
            return self._ids(known, parts, row, len(texts))
        by_words = ~np.isin(row, list(whole))
        rows = self._ids(known, parts[by_words], row[by_words], len(texts))
        numbers = sorted(whole)
        return _with_rows(rows, numbers, self.read_whole([texts[i] for i in numbers]))

    def _ids(self, known: _Vocabulary, parts: Ints, row: Ints, n: int) -> Rows:
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
        return ids, lengths

    def _learn(self, known: _Vocabulary, parts: Collection[str]) -> None:
        # Another thread may have learned some.
        parts = [part for part in parts if part not in known.parts]
        words_of = self.words_of or _as_word
        words_of_parts = [words_of(part) for part in parts]
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


def _as_word(part: str) -> list[str]:
    return [part]


def _unknown(parts: Iterable[str], known: Collection[str]) -> set[str]:
    """Return the unknown parts to remember."""
    return {part for part in set(parts).difference(known) if len(part) <= _LONGEST_PART}


def _split(
    texts: Sequence[str], replacements: Iterable[tuple[re.Pattern[str], str]] = ()
) -> tuple[list[str], Ints, Ints]:
    """Return the distinct parts between spaces, the number of each part of the texts among the
    distinct parts, and the number of parts of each text.

    Args:
        replacements: patterns to replace first, with the replacements.

    >>> distinct, number, lengths = _split(["a b,a", "", "b"], [(re.compile(","), " ")])
    >>> distinct, number.tolist(), lengths.tolist()
    (['a', 'b', ''], [0, 1, 0, 2, 1], [3, 1, 1])
    """
    if len(texts) > _FEW_TEXTS:
        column = pa.array(texts, pa.large_string())
        for pattern, replacement in replacements:
            column = pc.replace_substring_regex(column, pattern.pattern, replacement)
        lists = pc.split_pattern(column, " ")
        coded = lists.flatten().dictionary_encode()
        lengths = pc.list_value_length(lists).to_numpy()
        return coded.dictionary.to_pylist(), coded.indices.to_numpy(), lengths
    for pattern, replacement in replacements:
        texts = [pattern.sub(replacement, text) for text in texts]
    rows = [text.split(" ") for text in texts]
    numbers: dict[str, int] = {}
    number = [numbers.setdefault(part, len(numbers)) for row in rows for part in row]
    lengths = [len(row) for row in rows]
    return list(numbers), np.array(number, np.int64), np.array(lengths, np.int64)


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
    words: Ints, row: Ints, are_letters: NDArray[np.bool_]
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
    word_in_row = words[letters] * (row[-1] + 1) + row[letters]
    kept = np.ones(len(words), np.bool_)
    for near in range(1, min(_NEAR, len(letters) - 1) + 1):
        stands_again = word_in_row[:-near] == word_in_row[near:]
        kept[letters[:-near][stands_again]] = False
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
