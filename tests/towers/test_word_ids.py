"""Reading words once gives the ids that the tokenizer gives."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from tempera.towers import word_ids
from tempera.towers.tokenizer import train_tokenizer, without_repeats
from tempera.towers.word_ids import Read
from tempera.towers.word_ids import reader as reader_of_rows

WORDS = [
    *[
        "the",
        "a",
        "of",
        "date",
        "parseDate",
        "HTTPServer",
        "foo_bar",
        "naïve",
        "ÉTÉ",
        "größe",
        "ΣΑΣ",
        "漢字",
        "12ab",
        "[UNK]",
        "[MASK]",
        "a[UNK]b",
        ",",
        "...",
        ".a",
    ],
    *(
        "x\u0301",
        "\u0301",
        "\x1c",
        "a\x1cb",
        "\x85",
        "\u3000",
        "\n",
        "\t",
        "ΑΣ.ΒΑ",
        "(the)date[0]",
        "a_b",
        "the|date.",
    ),
]
PIECES = [
    "[UNK]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz0123456789,.",
    "the",
    "date",
    *(f"##{c}" for c in "abcdehrst"),
]


def reader(tokenizer: Tokenizer) -> Callable[[Sequence[str]], list[list[int]]]:
    """What reads, with its rows as lists."""
    read: Read = reader_of_rows(tokenizer)

    def lists(texts: Sequence[str]) -> list[list[int]]:
        ids, lengths = read(texts)
        assert ids.dtype == lengths.dtype == np.int64 and lengths.sum() == len(ids)
        return [row.tolist() for row in np.split(ids, lengths.cumsum())[: len(texts)]]

    return lists


def _own() -> Tokenizer:
    return train_tokenizer(
        ["the a of date parseDate HTTPServer foo_bar naïve größe 漢字 12ab"] * 3, 80, 9
    )


def _sparse() -> Tokenizer:
    tokenizer = without_repeats(_own())
    tokenizer.enable_truncation(40)
    return tokenizer


def _bert() -> Tokenizer:
    tokenizer = Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]")
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    tokenizer.add_special_tokens(["[UNK]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[MASK] $A", special_tokens=[("[MASK]", 1)]
    )
    tokenizer.enable_truncation(9)
    return tokenizer


def _bytes() -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE({**{c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    return tokenizer


def _from_the_left() -> Tokenizer:
    tokenizer = _own()
    tokenizer.enable_truncation(9, direction="left")
    return tokenizer


def _with_a_phrase() -> Tokenizer:
    tokenizer = _own()
    tokenizer.add_tokens([AddedToken("the date")])
    return tokenizer


def _with_neighbours() -> Tokenizer:
    tokenizer = _own()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace("e d", "x"), tokenizer.normalizer]
    )
    return tokenizer


@pytest.mark.parametrize(
    "made", [_own, _sparse, _bert, _bytes, _from_the_left, _with_a_phrase, _with_neighbours]
)
def test_ids_of_words_are_those_of_texts(made: object, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, draw = made(), random.Random(0)  # type: ignore[operator]
    letters = [
        chr(draw.choice([*range(0x20, 0x2FF), *range(0x300, 0x3FF), 0x2003, 0xFB01]))
        for _ in range(400)
    ]
    words = [*WORDS, *("".join(draw.choices(letters, k=draw.randint(0, 5))) for _ in range(400))]
    texts = [" ".join(draw.choices(words, k=draw.randint(0, 12))) for _ in range(579)] + [
        "the date of the date"
    ]
    texts += [
        "\n".join(draw.choices(words, k=40)) + " the date" for _ in range(20)
    ]  # hardly a space
    expected = [each.ids for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    monkeypatch.setattr(word_ids, "_MOST_PARTS", 300)  # it forgets in between
    monkeypatch.setattr(word_ids, "_BLOCK", 130)
    read, start = reader(tokenizer), 0
    for size in (0, 1, 1, 40, 258, 300):
        assert read(texts[start : start + size]) == expected[start : start + size]
        start += size
    assert start == len(texts)


@pytest.mark.parametrize("made", [_sparse, _bert, _bytes])
def test_a_column_and_its_slices_are_read_like_lists(made: Any) -> None:
    draw = random.Random(1)
    texts = ["", *(" ".join(draw.choices(WORDS, k=draw.randint(0, 9))) for _ in range(90)), ""]
    tokenizer = made()
    expected = [each.ids for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    read: Any = reader_of_rows(tokenizer)
    column = pa.array(texts, pa.large_string())
    for start, stop in ((0, 92), (0, 0), (0, 1), (7, 60), (91, 92)):
        ids, lengths = read(column.slice(start, stop - start))
        rows = np.split(ids, lengths.cumsum())[: stop - start]
        assert [row.tolist() for row in rows] == expected[start:stop]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_ids, "_MOST_PARTS", 3)
    read: Any = reader_of_rows(_sparse())
    for text in ("the a of date", "foo bar", "naïve"):
        read([text])
    assert {*read.known.parts} == {"foo", "bar", "naïve"}


@pytest.mark.parametrize("made", [_own, _sparse, _bert])
def test_parts_that_are_long_are_read_and_not_remembered(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = made()
    long, short = "的日期" * 40, "的日期" * 30
    texts = [f"the {long} of", short, "the date", f"{long} {short}"]
    expected = [each.ids for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    read: Any = reader_of_rows(tokenizer)
    for few in (50, 1):  # texts that are split by their letters, and not by their bytes
        monkeypatch.setattr(word_ids, "_FEW_TEXTS", few)
        ids, lengths = read(texts)
        assert [row.tolist() for row in np.split(ids, lengths.cumsum()[:-1])] == expected
        assert short in read.known.parts
        assert long not in read.known.parts


def test_a_text_that_is_refused_leaves_nothing_behind() -> None:
    tokenizer = _sparse()
    read: Any = reader_of_rows(tokenizer)
    expected = [
        tokenizer.encode(text, add_special_tokens=False).ids
        for text in ("foo bar", "the date of foo")
    ]
    whole, read.read_whole = read.read_whole, lambda texts: [][0]
    with pytest.raises(IndexError):
        read(["foo bar"])
    read.read_whole = whole
    ids, lengths = read(["foo bar", "the date of foo"])
    assert [row.tolist() for row in np.split(ids, lengths.cumsum()[:-1])] == expected
    read(["bar, foo"])  # new parts of words that are known
    assert read.known.are_letters.dtype == np.bool_ and read.known.are_letters.sum() >= 5


def test_a_tokenizer_that_changes_no_letter_is_read_whole() -> None:
    tokenizer = _sparse()
    parts = json.loads(tokenizer.to_str())
    parts["normalizer"] = None
    bare = Tokenizer.from_str(json.dumps(parts))
    assert reader(bare)(["the date of the date"]) == [
        bare.encode("the date of the date", add_special_tokens=False).ids
    ]


@pytest.mark.parametrize("made", [_own, _sparse])
def test_threads_that_forget_read_alike(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_ids, "_MOST_PARTS", 20)
    tokenizer, draw = made(), random.Random(0)
    texts = [" ".join("".join(draw.choices("abdet", k=4)) for _ in range(9)) for _ in range(400)]
    expected = [each.ids for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    read = reader(tokenizer)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            rows = pool.map(
                lambda i: read(texts[i : i + 2]) == expected[i : i + 2], [*range(399)] * 4
            )
            assert all(rows)
    finally:
        sys.setswitchinterval(before)
