"""Token ids of texts word by word: a word is read once, and looked up from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ..io.documents import parsed

if TYPE_CHECKING:  # it takes time to load
    from tokenizers import Tokenizer

Read = Callable[[Sequence[str]], list[list[int]]]
# Where the case of an identifier changes: parseDate and HTTPServer are two words each.
CASE_CHANGE = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
_WORD = r"\p{L}+|\p{N}+"
WORD = _WORD + r"|[!-/:-@\[-^`{-~]"  # or a sign of ASCII but the underscore, such as the pipe of a command
_MOST = 200_000  # words that are remembered
# Parts of a tokenizer that look at nothing beyond a space: a text then has the tokens of its words, one after the other.
_KINDS = {"BertNormalizer", "Lowercase", "BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_PATTERNS = ({"Regex": CASE_CHANGE}, {"Regex": WORD}, {"Regex": _WORD})  # the last one of models of earlier versions


def reader(tokenizer: Tokenizer) -> Read:
    """Return the function from texts to the token ids that `tokenizer` gives them, without special tokens.

    Where a word has the same tokens in every text, each word is read once.

    >>> from tempera.towers.tokenizer import train_tokenizer
    >>> tokenizer = train_tokenizer(["the HTTPServer and the date"] * 3, 60, 3)
    >>> rows = reader(tokenizer)(["the  date the server", "", "HTTP"])
    >>> [[tokenizer.id_to_token(each) for each in row] for row in rows]
    [['the', 'date', 'the'], [], ['http']]
    """

    def whole(texts: Sequence[str]) -> list[list[int]]:
        return [each.ids for each in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    if not _by_words(tokenizer):
        return whole
    known: dict[str, list[int]] = {}
    most = (tokenizer.truncation or {"max_length": None})["max_length"]

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
