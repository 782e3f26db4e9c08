"""Token ids of texts word by word: a word is read once, and looked up from then on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from ..io.documents import parsed

if TYPE_CHECKING:  # it takes time to load
    from tokenizers import Tokenizer, pre_tokenizers

T = TypeVar("T")
Read = Callable[[Sequence[str]], list[list[int]]]
# Where the case of an identifier changes: parseDate and HTTPServer are two words each.
CASE_CHANGE = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
# A vowel sign of Hindi or Thai, or an accent of its own, is a mark in its word.
_LETTER, _OTHER = r"[\p{L}\p{M}]", r"[^\p{L}\p{M}]"
_LETTERS = f"{_LETTER}+"
_WORD = rf"{_LETTERS}|\p{{N}}+"
_SIGN = r"[!-/:-@\[-^`{-~]"  # of ASCII but the underscore, such as the pipe of a command
WORD = f"{_WORD}|{_SIGN}"
# A word that stands again close behind tells little (Church and Gale 1995: words come in bursts): it is left out if it stands
# again within so many words. Numbers and signs stay.
_NEAR = 10
SPARSE = (
    rf"(?<!{_LETTER})({_LETTER}++)(?!(?:{_OTHER}++{_LETTER}++){{0,{_NEAR - 1}}}?{_OTHER}++\1(?!{_LETTER}))"
    rf"|\p{{N}}+|{_SIGN}"
)
_MOST = 200_000  # parts between spaces that are remembered
_LONGEST = 100  # characters of such a part: a longer one, as of a text without spaces, hardly stands again
# Parts of a tokenizer that look at nothing beyond a space: a text then has the tokens of its words, one after the other.
_KINDS = {"BertNormalizer", "Lowercase", "BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
# The last two are of models of earlier versions.
_PATTERNS = ({"Regex": CASE_CHANGE}, {"Regex": SPARSE}, {"Regex": WORD}, {"Regex": _WORD})


def reader(tokenizer: Tokenizer) -> Read:
    """Return the function from texts to the token ids that `tokenizer` gives them, without special tokens.

    Where a word has the same tokens in every text, or none where it is left out, each word is read once. Texts without spaces, or
    with a long part between two, are read by the tokenizer itself.

    >>> from tempera.towers.tokenizer import train_tokenizer
    >>> tokenizer = train_tokenizer(["the HTTPServer and the date"] * 3, 60, 3)
    >>> rows = reader(tokenizer)(["the  date the server", "", "HTTP"])
    >>> [[tokenizer.id_to_token(each) for each in row] for row in rows]
    [['the', 'date', 'the'], [], ['http']]
    """

    def whole(texts: Sequence[str]) -> list[list[int]]:
        return [each.ids for each in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    parts = parsed(tokenizer.to_str())
    if not _by_words(parts):
        return whole
    most = (parts["truncation"] or {"max_length": None})["max_length"]
    if parts["pre_tokenizer"].get("pattern") == {"Regex": SPARSE}:
        if not parts["normalizer"] or any(each["normalized"] for each in parts["added_tokens"]):
            return whole  # where an added token stands is known in the normalised text alone
        return _Sparse(tokenizer, whole, most, [each["content"] for each in parts["added_tokens"]])
    known: dict[str, list[int]] = {}

    def by_words(texts: Sequence[str]) -> list[list[int]]:
        nonlocal known
        words, rows = known, [text.split(" ") for text in texts]  # which another thread may replace, and nobody empties
        try:
            return [_joined(words, row)[:most] for row in rows]
        except KeyError:
            if len(words) > _MOST:
                known = words = {}
            new = list(_unknown(rows, words))
            words.update(zip(new, whole(new), strict=True))
            ids = [_joined(words, row)[:most] if _short(row) else None for row in rows]
            return _completed(ids, texts, whole)

    return by_words


def splitter(pattern: str) -> pre_tokenizers.Split:
    """Return the part of a tokenizer that leaves of a text what matches a regular expression."""
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(pattern), "removed", invert=True)


@dataclass(frozen=True)
class _Vocabulary:
    """Hold words and their ids, by the texts that were read; it only grows, so that threads share it."""

    words: dict[str, list[str]] = field(default_factory=dict)  # of what stands between two spaces
    ids: dict[str, list[int]] = field(default_factory=dict)  # of a word's tokens
    spelt: set[str] = field(default_factory=set)  # words of letters


class _Sparse:
    """Texts to the token ids of a tokenizer with the pattern `SPARSE`, which looks from a word to the next ones."""

    def __init__(self, tokenizer: Tokenizer, whole: Read, most: int | None, apart: Sequence[str]) -> None:
        self.normalizer, self.whole, self.most, self.known = tokenizer.normalizer, whole, most, _Vocabulary()
        self.split, self.spell = splitter(WORD), splitter(_LETTERS)
        self.apart = apart  # added tokens, which split a text

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        rows = [text.split(" ") for text in texts]
        if len(self.known.words) > _MOST:
            self.known = _Vocabulary()
        known = self.known
        if new := _unknown(rows, known.words):
            self._learn(known, new)
        ids = [
            None if any(each in text for each in self.apart) or not _short(row) else self._ids(known, row)
            for text, row in zip(texts, rows, strict=True)
        ]
        return _completed(ids, texts, self.whole)

    def _ids(self, known: _Vocabulary, row: list[str]) -> list[int]:
        return _joined(known.ids, _thinned(_joined(known.words, row), known.spelt))[: self.most]

    def _learn(self, known: _Vocabulary, parts: set[str]) -> None:
        words = {
            part: [word for word, _ in self.split.pre_tokenize_str(self.normalizer.normalize_str(part))]
            for part in parts
        }
        new = list(set(chain.from_iterable(words.values())).difference(known.ids))
        # In this order, since other threads look for words first, and then for ids.
        known.spelt.update(word for word in new if self.spell.pre_tokenize_str(word))
        known.ids.update(zip(new, self.whole(new), strict=True))
        known.words.update(words)


def _joined(known: Mapping[str, list[T]], row: Sequence[str]) -> list[T]:
    """Return what is known of each part of a text, one after the other."""
    return list(chain.from_iterable(map(known.__getitem__, row)))


def _short(row: Sequence[str]) -> bool:
    """Return whether every part of a text is one to remember."""
    return max(map(len, row)) <= _LONGEST


def _unknown(rows: Sequence[Sequence[str]], known: Collection[str]) -> set[str]:
    """Return the parts to remember that are not known yet."""
    return {part for part in set(chain.from_iterable(rows)).difference(known) if len(part) <= _LONGEST}


def _completed(ids: Sequence[list[int] | None], texts: Sequence[str], whole: Read) -> list[list[int]]:
    """Return the ids of all texts, of which those that have none yet are read whole."""
    rest = iter(whole([text for row, text in zip(ids, texts, strict=True) if row is None]))
    return [next(rest) if row is None else row for row in ids]


def _thinned(row: list[str], spelt: set[str]) -> list[str]:
    """Return the words of a text without those of letters that stand again within the next `_NEAR` of these."""
    if len(set(row)) == len(row):
        return row
    rest, places, place = [], dict[str, int](), 0
    for word in reversed(row):
        if word in spelt:
            place += 1
            near = place - places.get(word, -_NEAR) <= _NEAR
            places[word] = place
            if near:
                continue
        rest.append(word)
    return rest[::-1]


def _by_words(parts: dict[str, Any]) -> bool:
    """Return whether a text's tokens are those of its words, apart from where it is cut."""
    normalizer, split, cut = parts["normalizer"] or {}, parts["pre_tokenizer"] or {}, parts["truncation"]
    steps = [*normalizer.get("normalizers", [normalizer]), *split.get("pretokenizers", [split])]
    return (
        all(each.get("type") in _KINDS or each.get("pattern") in _PATTERNS for each in steps if each)
        and bool(split)
        and parts["padding"] is None
        and (cut is None or cut["direction"] == "Right")
        and not any(" " in each["content"] for each in parts["added_tokens"])
    )
