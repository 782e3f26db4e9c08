"""BM25 against its formula, and the settings that are chosen for it."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.errors import DataError
from tempera.ranking.metrics import Relevant, evaluate
from tempera.text.judge import lexical
from tempera.text.judge.hybrid import open_words
from tempera.text.judge.lexical import _GRID, BM25, Lexical, Settings, WordCounts, stemmer, words

CORPUS = [
    "parse the date of a mail",
    "parse parse parse a header",
    "the quick date of the the the season with many more words than the others have of it",
    "mail server and mail client and mail box",
    "nothing in common",
    "date",
]
VOCABULARY = ["parse", "parsed", "parsing", "date", "dates", "Mail", "naïve", "x1", "sortedBy"]
QUERIES = [
    "parse date",
    "mail",
    "the date the mail",
    "unknown words here",
    "zzz",
    "",
    "date parse nothing date",
]


def lucene(docs: list[list[str]], query: list[str], k1: float, b: float) -> list[float]:
    """BM25 as Lucene computes it, a word of the query at a time (Kamphuis et al. 2020, table 1)."""
    mean = sum(map(len, docs)) / len(docs)
    scores = [0.0] * len(docs)
    for word in query:
        holding = sum(word in doc for doc in docs)
        idf = math.log(1 + (len(docs) - holding + 0.5) / (holding + 0.5))
        for i, doc in enumerate(docs):
            count = doc.count(word)
            scores[i] += idf * count / (count + k1 * (1 - b + b * len(doc) / mean))
    return scores


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4), (4.0, 1.0), (2.5, 0.0)])
def test_ranks_are_those_of_the_formula(k1: float, b: float) -> None:
    docs = [doc.split() for doc in CORPUS]
    ranked = BM25.of(WordCounts.of(CORPUS), Settings(k1, b)).rank(QUERIES, 10)
    assert ranked.shape == (len(QUERIES), 6) and ranked.dtype == np.int64
    for query, row in zip(QUERIES, ranked.tolist()):
        scores = lucene(docs, query.split(), k1, b)
        expected = sorted((i for i in range(6) if scores[i] > 0), key=lambda i: (-scores[i], i))
        assert row == expected + [-1] * (6 - len(expected)), query


@pytest.mark.parametrize("settings", [Settings(), Settings(0.9, 0.4, True), Settings(4.0, 1.0)])
def test_scores_have_the_bits_of_bm25s(settings: Settings) -> None:
    bm25s = pytest.importorskip("bm25s")
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(VOCABULARY, generator.integers(0, 40))) for _ in range(200)]
    queries = [" ".join(generator.choice([*VOCABULARY, "unknown"], 5)) for _ in range(50)]

    def terms(text: str) -> list[str]:
        return stemmer().stemWords(words(text)) if settings.stem else words(text)

    peer = bm25s.BM25(k1=settings.k1, b=settings.b)
    peer.index([terms(text) or [""] for text in texts], show_progress=False)
    known = [[word for word in terms(query) if word in peer.vocab_dict] for query in queries]
    expected = np.stack([peer.get_scores(query) for query in known])
    assert np.array_equal(BM25.of(WordCounts.of(texts), settings).scores(queries), expected)


def test_an_index_that_was_written_gives_the_same_bits(tmp_path: Path) -> None:
    index = BM25.of(WordCounts.of([*CORPUS, ""]), Settings(0.9, 0.4, True))
    parquet.write_table(index.table(), tmp_path / "words.parquet")
    again = BM25.read(parquet.read_table(tmp_path / "words.parquet"))
    assert again.settings == index.settings and again.size == 7
    assert np.array_equal(again.scores(QUERIES), index.scores(QUERIES))


@pytest.mark.parametrize("settings", [Settings(), Settings(0.9, 0.4, True)])
def test_an_index_in_another_order_is_that_of_the_documents_in_it(settings: Settings) -> None:
    docs = [*CORPUS, ""]
    places = np.random.default_rng(1).permutation(len(docs))
    moved = [docs[i] for i in places.argsort()]
    index, expected = (BM25.of(WordCounts.of(texts), settings) for texts in (docs, moved))
    ordered = index.ordered(places)
    assert np.array_equal(ordered.scores(QUERIES), expected.scores(QUERIES))
    assert ordered.scores(QUERIES).any() and not np.array_equal(
        ordered.scores(QUERIES), index.scores(QUERIES)
    )
    rows = zip(*(ordered.table()[name].to_pylist() for name in ("word", "docs")), strict=True)
    assert dict(rows) == dict(
        zip(*(expected.table()[name].to_pylist() for name in ("word", "docs")), strict=True)
    )


@pytest.mark.parametrize("damage", ["docs", "scores", "metadata"])
def test_a_damaged_index_is_refused(damage: str) -> None:
    table = BM25.of(WordCounts.of(CORPUS), Settings()).table()
    if damage == "metadata":
        table = table.replace_schema_metadata(None)
    else:
        values = table[damage].to_pylist()
        values[2][0] = {"docs": 6, "scores": math.inf}[damage]
        column = pa.array(values, table.schema.field(damage).type)
        table = table.set_column(table.column_names.index(damage), damage, column)
    with pytest.raises((ValueError, LookupError, TypeError)):
        BM25.read(table)


def test_settings_matter_to_the_formula_and_to_the_ranking() -> None:
    docs = [doc.split() for doc in CORPUS]
    queries = [
        list(pair)
        for pair in itertools.combinations(sorted({word for doc in docs for word in doc}), 2)
    ]
    rankings = {}
    for k1, b in itertools.product((0.9, 4.0), (0.0, 1.0)):
        ranked = BM25.of(WordCounts.of(CORPUS), Settings(k1, b)).rank(
            [" ".join(query) for query in queries], 6
        )
        for query, row in zip(queries, ranked.tolist()):
            scores = lucene(docs, query, k1, b)
            assert all(
                scores[x] > scores[y] or math.isclose(scores[x], scores[y], rel_tol=1e-6)
                for x, y in itertools.pairwise(i for i in row if i >= 0)
            )
            assert set(row) - {-1} == {i for i in range(6) if scores[i] > 0}
        rankings[k1, b] = ranked.tobytes()
    assert len(set(rankings.values())) == 4


def test_the_k_best_and_no_documents_without_a_common_word() -> None:
    lexical = Lexical(CORPUS)
    assert lexical.rank(["mail"], 1).tolist() == [[3]]
    assert lexical.rank(["mail"], 4).tolist() == [[3, 0, -1, -1]]
    assert lexical.rank(["", "zzz", "??"], 2).tolist() == [[-1, -1]] * 3
    assert lexical.rank([], 2).shape == (0, 2)


def test_documents_without_words_are_never_found() -> None:
    lexical = Lexical(["", "?!", "date", " "])
    assert lexical.rank(["date", ""], 4).tolist() == [[2, -1, -1, -1], [-1] * 4]


def test_texts_without_spaces_and_with_vowel_signs_are_found() -> None:
    chinese = Lexical(["今天天气很好", "银行账户余额", "账单已付"])
    assert chinese.rank(["我的账户"], 3).tolist() == [[1, -1, -1]]
    hindi = Lexical(["हिन्दी भाषा", "हिमालय पर्वत"])
    assert hindi.rank(["हिन्दी", "हि"], 2).tolist() == [[0, -1], [-1, -1]]


def test_equal_documents_come_in_their_order() -> None:
    assert Lexical(["b", "a", "b", "a", "b"]).rank(["b"], 2).tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("parseHTTPDate(raw_text2)", "parse http date raw text 2"),
        ("__init__ XMLHttpRequest", "init xml http request"),
        ("utf8Decode IPAddress6", "utf 8 decode ip address 6"),
        ("Größe naïveCafé 漢字 ΣΊΣΥΦΟΣ", "größe naïve café 漢字 σίσυφοσ"),
        ("don't stop-me.now\n\tx1y22", "don t stop me now x 1 y 22"),
        ("ABC aBC AbC", "abc a bc ab c"),
        ("cafe\u0301 \u0301x", "cafe\u0301 x"),
        ("東京タワー2号", "東京 京タ タワ ワー 2 号"),
        ("한국어 문서", "한국어 문서"),
        (" ?!_ ", ""),
        ("", ""),
    ],
)
def test_words(text: str, expected: str) -> None:
    assert [word.replace("ς", "σ") for word in words(text)] == expected.split()


def test_stemming_finds_other_forms() -> None:
    lexical = Lexical(["parsing dates", "a mail"])
    assert lexical.rank(["parse date"], 1).tolist() == [[-1]]
    assert lexical.rank(["parse date"], 1, Settings(stem=True)).tolist() == [[0]]


def planted(option: str) -> tuple[list[str], list[str], list[list[int]]]:
    """A corpus that one setting ranks better than all others of its option, given what is chosen
    before it."""
    if option == "stem":
        return ["parsing dates", "sending mails"], ["parsed date", "sends mail"], [[0], [1]]
    generator = np.random.default_rng(4)
    vocabulary = [a + b for a in "bcdfg" for b in "aeiou"]
    docs = [
        " ".join(generator.choice(vocabulary, int(generator.integers(2, 40)))) for _ in range(60)
    ]
    queries = [" ".join(generator.choice(vocabulary, 3)) for _ in range(40)]
    best = Settings(**{"b": {"b": 0.4}, "k1": {"b": 0.4, "k1": 4.0}}[option])
    return docs, queries, [[int(row[0])] for row in Lexical(docs).rank(queries, 1, best)]


@pytest.mark.parametrize(("option", "expected"), [("b", 0.4), ("k1", 4.0), ("stem", True)])
def test_tuning_finds_the_planted_best(option: str, expected: float) -> None:
    docs, queries, answers = planted(option)
    lexical, relevant = Lexical(docs), Relevant.of(answers)
    assert lexical.settings == Settings()
    lexical.tune(queries, relevant)
    assert getattr(lexical.settings, option) == expected

    def score(settings: Settings) -> float:
        return float(
            evaluate(Lexical(docs).rank(queries, 10, settings), relevant, ["ndcg@10"])[
                "ndcg@10"
            ].mean()
        )

    # One option after the other, each time the first of the best.
    chosen = Settings()
    for name, values in _GRID.items():
        tried = [Settings(**{**vars(chosen), name: value}) for value in values]
        chosen = tried[int(np.argmax([score(settings) for settings in tried]))]
    assert lexical.settings == chosen
    assert score(chosen) >= score(Settings())
    assert np.array_equal(lexical.rank(queries, 10), lexical.rank(queries, 10, chosen))


class OtherStemmer:
    """As an earlier Snowball, which leaves university and universal one stem."""

    def stemWords(self, words: list[str]) -> list[str]:  # PyStemmer's name
        return [word[:7] for word in words]


@pytest.mark.parametrize("long", [False, True])
def test_an_index_of_words_that_were_stemmed_otherwise_is_made_again_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, long: bool
) -> None:
    docs = ["the university of organizations", "an emergency", "a map" + " of roads" * 60 * long]
    settings = lexical.Settings(stem=True)
    with monkeypatch.context() as patch:
        patch.setattr(lexical, "stemmer", OtherStemmer)
        lexical.stemming.cache_clear()
        table = lexical.Lexical(docs).index(settings).table()
        assert lexical.BM25.read(table).scores(["university"]).any()
    lexical.stemming.cache_clear()
    parquet.write_table(table, tmp_path / "words.parquet")
    beginnings = pa.chunked_array([pa.array([doc[:400] for doc in docs], pa.large_string())])
    caplog.set_level("INFO", "tempera")
    if long:
        with pytest.raises(DataError, match=r"stems otherwise, so that some would not be found"):
            open_words(tmp_path, beginnings, "model")
        return
    words = open_words(tmp_path, beginnings, "model")
    assert "and PyStemmer" in caplog.text and "they are indexed anew" in caplog.text
    assert words.settings == settings
    expected = lexical.Lexical(docs).index(settings).scores(["universities", "organization"])
    np.testing.assert_array_equal(words.scores(["universities", "organization"]), expected)
    assert expected.any(1).all()


def test_unstemmed_words_and_indexes_of_earlier_versions_need_no_stemmer() -> None:
    docs = ["the university", "an emergency"]
    assert lexical.BM25.read(lexical.Lexical(docs).index().table()).size == 2
    stemmed = lexical.Lexical(docs).index(lexical.Settings(stem=True)).table()
    about = json.loads(stemmed.schema.metadata[b"tempera"])
    assert about.pop("stemming") == lexical.stemming()
    old = stemmed.replace_schema_metadata({b"tempera": json.dumps(about)})
    assert lexical.BM25.read(old).scores(["university"]).any()
