"""A tokenizer for identifiers and prose, the same on every run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tempera.errors import ConfigError
from tempera.towers import tokenizer as reading
from tempera.towers import word_ids
from tempera.towers.tokenizer import tokenize, train_tokenizer, without_repeats

# Every letter and pair of letters is about as frequent as any other, so that many merges are ties.
_TRAIN = """
import random
from tempera.towers.tokenizer import train_tokenizer

generator = random.Random(0)
words = ["".join(generator.choices("abcdefghij", k=5)) for _ in range(300)]
texts = [" ".join(generator.sample(words, 20)) for _ in range(60)]
tokenizer = train_tokenizer(iter(texts), 200, 16)
print(tokenizer.to_str(pretty=True))
"""
TEXTS = [
    "the cat sat on the mat",
    "The CAT",
    "parseHTTPDate(raw_text2)",
    "Größe 漢字 größe",
    "the mat",
] * 3


def small(vocabulary: int = 400, max_length: int = 64) -> Tokenizer:
    return train_tokenizer(TEXTS, vocabulary, max_length)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("the cat, the mat", "cat [UNK] the mat"),  # signs stay, and do not count
        ("the cats the", "cat s the"),  # "cat" and "cats" are two words
        ("cat catCat", "cat"),  # an identifier's words are words
        ("2 2 2", "2 2 2"),
        ("the 2 " + "cat 2 sat " * 4 + "mat the", "2 2 2 2 cat 2 sat mat the"),  # the tenth word
        ("the 2 " + "cat 2 sat " * 5 + "the", "the 2 2 2 2 2 cat 2 sat the"),  # the eleventh
    ],
)
def test_a_word_that_stands_again_near_by_is_left_out(text: str, tokens: str) -> None:
    tokenizer = without_repeats(small())
    assert tokenizer.encode(text, add_special_tokens=False).tokens == tokens.split()
    assert [
        tokenizer.id_to_token(each) for each in tokenize(tokenizer, [text]).values.tolist()
    ] == tokens.split()


def test_the_same_tokenizer_in_every_process() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "2", "RAYON_NUM_THREADS": "4"}
    command = [sys.executable, "-c", _TRAIN]
    other = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=environment, timeout=60, check=True
    ).stdout
    here: dict[str, Tokenizer] = {}
    exec(_TRAIN, here)
    assert here["tokenizer"].get_vocab_size() == 200
    assert other == here["tokenizer"].to_str(pretty=True) + "\n"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("parseHTTPDate(raw_text2)", "parse http date ( raw text 2 )"),
        ("the-cat.SAT\n\ton__the mat!", "the [UNK] cat [UNK] sat on the mat [UNK]"),
        ("catSat CATSat catSAT", "cat sat cat sat cat sat"),
        ("GRÖßE größe 漢字", "größe größe 漢字"),
        ("date2text", "date 2 text"),
        ("?!_ ", "[UNK] [UNK]"),
        ("\u2014 \u00ab_\u00bb", ""),
        ("", ""),
    ],
)
def test_identifiers_are_split(text: str, tokens: str) -> None:
    assert small().encode(text, add_special_tokens=False).tokens == tokens.split()


def test_a_mark_stands_in_its_word() -> None:
    tokenizer = train_tokenizer(["हिन्दी भाषा cafe\u0301"] * 3, 90, 9)
    assert tokenizer.encode("भाषा हिन्दी cafe\u0301").tokens == ["भाषा", "हिन्दी", "cafe\u0301"]
    assert without_repeats(tokenizer).encode("हिन्दी भाषा हिन्दी").tokens == ["भाषा", "हिन्दी"]


def test_unknown_letters_are_known_to_be_unknown() -> None:
    assert small().encode("the жq", add_special_tokens=False).tokens == ["the", "[UNK]", "[UNK]"]


def test_long_texts_are_cut_also_by_the_saved_tokenizer(tmp_path: Path) -> None:
    tokenizer = small(max_length=4)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for each in (tokenizer, Tokenizer.from_file(str(tmp_path / "tokenizer.json"))):
        assert each.encode("the cat sat on the mat", add_special_tokens=False).tokens == [
            "the",
            "cat",
            "sat",
            "on",
        ]
    assert tokenize(tokenizer, ["the cat sat on the mat", "the"]).lengths.tolist() == [4, 1]


def test_the_vocabulary_is_no_larger_than_asked_for_and_starts_with_the_special_tokens() -> None:
    tokenizer = small(vocabulary=40)
    assert tokenizer.get_vocab_size() == 40
    assert [tokenizer.id_to_token(i) for i in range(2)] == ["[PAD]", "[UNK]"]
    assert small(vocabulary=10**6).get_vocab_size() < 200


@pytest.mark.parametrize("count", [0, 1, 1999, 2000, 2001, 4001])
def test_tokens_of_many_texts_in_blocks(count: int) -> None:
    tokenizer = small()
    texts = [TEXTS[i % 5] if i % 7 else "" for i in range(count)]
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    found = tokenize(tokenizer, texts)
    assert len(found) == count and found.values.tolist() == [
        token for row in expected for token in row
    ]
    assert found.lengths.tolist() == [len(row) for row in expected]


def test_progress_is_shown_only_if_it_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    tokenize(small(), TEXTS)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("texts", [[], [""], ["_", "\u2014 _"]])
def test_texts_without_words(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^no word occurs twice in the texts") as error:
        train_tokenizer(texts, 100, 16)
    assert "\n" not in str(error.value)


def test_words_are_known_from_one_reading_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the tokenizers that are equal, and by no other."""
    learned: list[list[str]] = []
    learn = word_ids._ByWords._learn

    def noted(self: Any, known: Any, parts: Any) -> None:
        learned.append(sorted(parts))
        learn(self, known, parts)

    monkeypatch.setattr(word_ids._ByWords, "_learn", noted)
    reading._reader.cache_clear()
    first, other = small(), small(max_length=9)
    for tokenizer in (first, Tokenizer.from_str(first.to_str()), other):
        for _ in range(2):
            ids = tokenize(tokenizer, ["the cat", "a mat"]).values.tolist()
            assert ids == [i for text in ("the cat", "a mat") for i in tokenizer.encode(text).ids]
    first.enable_truncation(1)
    assert tokenize(first, ["the cat"]).values.tolist() == first.encode("the cat").ids
    assert learned == [["a", "cat", "mat", "the"]] * 2 + [["cat", "the"]]
