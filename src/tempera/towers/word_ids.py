"""Token ids of texts word by word: a word is read once, and looked up from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..io.documents import parsed

if TYPE_CHECKING:  # it takes time to load
    from tokenizers import Tokenizer, pre_tokenizers

Read = Callable[[Sequence[str]], list[list[int]]]
# Where the case of an identifier changes: parseDate and HTTPServer are two words each.
CASE_CHANGE = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
_LETTERS = r"\p{L}+"
_WORD = rf"{_LETTERS}|\p{{N}}+"
_SIGN = r"[!-/:-@\[-^`{-~]"  # of ASCII but the underscore, such as the pipe of a command
WORD = f"{_WORD}|{_SIGN}"
# A word that stands again close behind tells little (Church and Gale 1995: words come in bursts): it is left out if it stands
# again within so many words. Numbers and signs stay.
_NEAR = 10
SPARSE = rf"(?<!\p{{L}})(\p{{L}}++)(?!(?:\P{{L}}++\p{{L}}++){{0,{_NEAR - 1}}}?\P{{L}}++\1(?!\p{{L}}))|\p{{N}}+|{_SIGN}"
_MOST = 200_000  # words that are remembered
# Parts of a tokenizer that look at nothing beyond a space: a text then has the tokens of its words, one after the other.
_KINDS = {"BertNormalizer", "Lowercase", "BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
# The last two are of models of earlier versions.
_PATTERNS = ({"Regex": CASE_CHANGE}, {"Regex": SPARSE}, {"Regex": WORD}, {"Regex": _WORD})


def reader(tokenizer: Tokenizer) -> Read:
    """Return the function from texts to the token ids that `tokenizer` gives them, without special tokens.

    Where a word has the same tokens in every text, or none where it is left out, each word is read once.

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
        if any(each["normalized"] for each in parts["added_tokens"]):
            return whole  # where one stands is known in the normalised text alone
        return _Sparse(tokenizer, whole, most, [each["content"] for each in parts["added_tokens"]])
    known: dict[str, list[int]] = {}

    def by_words(texts: Sequence[str]) -> list[list[int]]:
        rows = [text.split(" ") for text in texts]
        try:
            return [list(chain.from_iterable(map(known.__getitem__, row)))[:most] for row in rows]
        except KeyError:
            if len(known) > _MOST:
                known.clear()
            new = list(set(chain.from_iterable(rows)).difference(known))
            known.update(zip(new, whole(new), strict=True))
            return by_words(texts)

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
        if new := set(chain.from_iterable(rows)).difference(known.words):
            self._learn(known, new)
        split = [list(chain.from_iterable(map(known.words.__getitem__, row))) for row in rows]
        ids = [list(chain.from_iterable(map(known.ids.__getitem__, _thinned(row, known.spelt)))) for row in split]
        return [
            self.whole([text])[0] if any(each in text for each in self.apart) else row[: self.most]
            for text, row in zip(texts, ids, strict=True)
        ]

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
