"""BM25, the baseline that every retriever has to beat (Robertson and Zaragoza 2009), and its index
of words.

Letters in shapes: q queries, c documents, v words, m postings: one for each distinct word of
each document.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from ...io.console import progress_bar
from ...io.documents import parsed
from ...io.texts import UNSPACED
from ...ranking.metrics import Relevant, evaluate
from ...ranking.nearest import top_above_zero, top_of
from ...towers.word_ids import CASE_CHANGE

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

# A table for `str.translate`: signs that are neither letters nor digits separate words.
_ASCII = "".join(chr(i) if chr(i).isalnum() else " " for i in range(128))
_SPACED = np.frombuffer(_ASCII.encode(), np.uint8)  # the same table for bytes
_CASE_CHANGE = re.compile(CASE_CHANGE)
_WORD = re.compile(r"[^\W\d_]+|\d+")
_GRID: dict[str, tuple[Any, ...]] = {
    "b": (0.4, 0.75, 0.9, 1.0),
    "k1": (0.9, 1.5, 2.5, 4.0),
    "stem": (False, True),
}
_BLOCK = 20_000  # documents whose words are in memory at once
_CELLS = 50_000_000  # scores of a setting; of more, the tuning ranks candidates
_BEST = 50  # candidates of a query
_KEY = b"tempera"
# Words of many endings: a version of Snowball is recognised by the stems of these words. Snowball 2
# and Snowball 3 stem the first twelve differently.
_ENDINGS = (
    "university universities organization organizations organizer emergency emergencies "
    "emerge geologist generously international internationally past paste skies dying news "
    "evening relational conditional rationally hopefulness goodness decisiveness formality "
    "sensitivity sensibility triplicate formative formalize electricity electrical hopeful "
    "revival allowance inference airliner gyroscopic adjustable defensible irritant "
    "replacement adjustment dependent adoption homologous communism activate angularity "
    "effective bowdlerize probate rate cease controlling rolling happy by say cries ties dies "
    "flies hopping hoping failing filing agreed feed plastered bled motoring sing conflated "
    "troubled sized tanned meetings singly early only gently idly ugly howe atlas cosmos bias "
    "andes inning outing canning herring exceed proceed succeed yes employ exploring "
    "exploitation addition additives reading's users' can't data"
)


@cache
def _marked() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the pattern of a run (letters and digits) and the pattern of a word (letters, or
    digits), both with combining marks, such as vowel signs of Hindi and separate accents."""
    # Only marks of the first plane, which a pattern finds by one look into a table.
    characters = map(chr, range(0x300, 0x10000))
    marks = [each for each in characters if unicodedata.category(each).startswith("M")]
    following = f"[{''.join(marks)}]*"
    return re.compile(rf"(?:[^\W_]+{following})+"), re.compile(rf"\d+|(?:[^\W\d_]+{following})+")


def _runs(text: str) -> list[str]:
    """Return the runs of letters, their marks, and digits."""
    if text.isascii():
        return text.translate(_ASCII).split()
    runs, _ = _marked()
    return runs.findall(text)


def words(text: str) -> list[str]:
    """Return lower-case words, with identifiers split at underscores, digits and changes of case.

    In scripts without spaces between words, such as Chinese, all pairs of neighbouring characters
    count as words, as in Lucene.

    >>> words("parseHTTPDate(raw_text2)")
    ['parse', 'http', 'date', 'raw', 'text', '2']
    >>> words("\u5317\u4eac\u5e02 map"), words("\u0939\u093f\u0928\u094d\u0926\u0940")
    (['\u5317\u4eac', '\u4eac\u5e02', 'map'], ['\u0939\u093f\u0928\u094d\u0926\u0940'])
    """
    every = list[str]()
    for run in _runs(text):
        every += _words(_CASE_CHANGE.sub(" ", run).lower())
    return every


def _words(run: str) -> list[str]:
    """Return the words of a run in lower case, with a space at each former change of case."""
    if run.isascii():
        return _WORD.findall(run)
    _, pattern = _marked()
    spaced = UNSPACED.sub(lambda part: f" {' '.join(_neighbours(part[0]))} ", run)
    every = list[str]()
    for part in spaced.split():
        every += pattern.findall(part)
    return every


def _neighbours(run: str) -> list[str]:
    """Return all pairs of neighbouring characters, or the only character."""
    return [run[i : i + 2] for i in range(max(1, len(run) - 1))]


@cache
def stemmer() -> Any:
    """Return Snowball's English stemmer."""
    import Stemmer

    return Stemmer.Stemmer("english")


@cache
def stemming() -> dict[str, str]:
    """Return the checksum of the stems of some words, and the version of the stemmer.

    An index of stemmed words stores both: other stems make the index unreadable, and the message
    names the version.

    >>> sorted(stemming())
    ['stems', 'version']
    """
    import Stemmer

    stems = " ".join(stemmer().stemWords(_ENDINGS.split())).encode()
    return {"stems": xxhash.xxh3_64_hexdigest(stems), "version": str(Stemmer.version())}


@dataclass(frozen=True)
class Settings:
    """Term saturation k1, length normalisation b, and whether words are stemmed (Snowball,
    English)."""

    k1: float = 1.5
    b: float = 0.75
    stem: bool = False


class OtherStems(Exception):
    """An index of words was stemmed by a version of PyStemmer with other stems.

    Args:
        version: the version of PyStemmer that stemmed the words.
        settings: settings of the index.
    """

    def __init__(self, version: str, settings: Settings) -> None:
        super().__init__(f"its words were stemmed by PyStemmer {version}")
        self.version, self.settings = version, settings


@dataclass(frozen=True)
class WordCounts:
    """Counts of each word in each document, sorted by word, and by document within a word."""

    words: list[str]  # [v]
    offsets: Ints  # [v + 1] of each word's postings
    docs: NDArray[np.int32]  # [m]
    counts: Floats  # [m]
    lengths: Ints  # [c] words of each document; an empty one counts 1
    part_of: tuple[WordCounts, Ints] | None = None  # the whole corpus, and documents of it, [c]

    @classmethod
    def of(cls, docs: Sequence[str]) -> WordCounts:
        """Count the words of documents, at least one.

        >>> counts = WordCounts.of(["a b_a", "b"])
        >>> counts.words, counts.offsets.tolist(), counts.docs.tolist(), counts.counts.tolist()
        (['a', 'b'], [0, 1, 3], [0, 0, 1], [2.0, 1.0, 1.0])
        """
        from scipy.sparse import csr_array, vstack

        # Runs of letters and digits are counted first, and each distinct run is split into words
        # once: a corpus has few distinct runs.
        number_of_run = defaultdict[str, int](
            count().__next__
        )  # numbers a run at its first look-up
        parts = []
        for start in range(0, len(docs), _BLOCK):
            parts.append(_count_runs(docs[start : start + _BLOCK], number_of_run))
        for part in parts:
            part.resize(part.shape[0], len(number_of_run))
        runs = vstack(parts, "csr")  # [c, runs]
        number_of_word = defaultdict[str, int](count().__next__)
        words_of_runs = array("i")
        offsets = array("i", [0])
        for text in number_of_run:
            words_of_runs.extend(number_of_word[word] for word in words(text))
            offsets.append(len(words_of_runs))
        shape = len(number_of_run), len(number_of_word)
        ones = np.ones(len(words_of_runs), np.float32)
        splits = csr_array((ones, words_of_runs, offsets), shape=shape)
        return cls._of_matrix(list(number_of_word), (runs @ splits).tocsc())

    @classmethod
    def _of_matrix(cls, names: list[str], matrix: Any, lengths: Ints | None = None) -> WordCounts:
        """Return the counts in a sparse matrix by columns, [c, v].

        Args:
            lengths: of the documents, [c]; None adds up the counts.
        """
        if lengths is None:
            lengths = np.maximum(1, matrix.sum(1, dtype=np.float64)).astype(np.int64)
        matrix.sort_indices()
        offsets, docs = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32, copy=False)
        return cls(names, offsets, docs, matrix.data, lengths)

    @property
    def whole(self) -> WordCounts:
        """The counts of the whole corpus."""
        return self if self.part_of is None else self.part_of[0]

    def among(self, docs: Ints) -> WordCounts:
        """Return the counts of some documents of a corpus; the scores of BM25 stay those of the
        corpus.

        >>> counts = WordCounts.of(["a b", "c", "b"])
        >>> scores = BM25.of(counts.among(np.array([0, 2])), Settings()).scores(["b"])
        >>> scores.astype(float).round(3).tolist()
        [[0.153, 0.212]]
        """
        rows = self._matrix.tocsr()[docs]
        part = self._of_matrix(self.words, rows.tocsc(), self.lengths[docs])
        return replace(part, part_of=(self, docs))

    @cached_property
    def _matrix(self) -> Any:
        """The counts as a sparse matrix by columns, [c, v]."""
        from scipy.sparse import csc_array

        shape = len(self.lengths), len(self.words)
        return csc_array((self.counts, self.docs, self.offsets), shape=shape)

    @cached_property
    def stemmed(self) -> WordCounts:
        """The counts of the words' stems."""
        from scipy.sparse import csc_array

        if self.part_of is not None:
            whole, docs = self.part_of
            return whole.stemmed.among(docs)
        stems = stemmer().stemWords(self.words)
        number = {stem: i for i, stem in enumerate(dict.fromkeys(stems))}
        stem_of_word = np.array([number[stem] for stem in stems], np.int32)
        word = np.arange(len(stems), dtype=np.int32)
        ones = np.ones(len(stems), np.float32)
        merges = csc_array((ones, (word, stem_of_word)), shape=(len(stems), len(number)))
        return self._of_matrix(list(number), self._matrix @ merges, self.lengths)


def _count_runs(docs: Sequence[str], number: Mapping[str, int]) -> Any:
    """Return the counts of the runs of letters and digits in documents as a sparse matrix by rows,
    [documents, runs]; a run without a number is added to `number`.

    Args:
        number: the number of each run; a look-up numbers a new run.
    """
    from scipy.sparse import csr_array

    is_ascii = np.array([text.isascii() for text in docs], bool)
    plain, sizes = _runs_of_ascii([text for text in docs if text.isascii()], number)
    lengths = np.zeros(len(docs), np.int64)
    lengths[is_ascii] = sizes
    others = array("i")
    for i in np.flatnonzero(~is_ascii).tolist():
        runs = _runs(docs[i])
        others.extend(map(number.__getitem__, runs))
        lengths[i] = len(runs)
    numbers = np.empty(int(lengths.sum()), np.int32)
    in_ascii = np.repeat(is_ascii, lengths)
    numbers[in_ascii] = plain
    numbers[~in_ascii] = np.frombuffer(others, np.int32)
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    ones = np.ones(len(numbers), np.float32)
    counts = csr_array((ones, numbers, offsets), shape=(len(docs), len(number)))
    counts.sum_duplicates()
    return counts


def _runs_of_ascii(
    texts: list[str], number: Mapping[str, int]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the numbers of the runs of letters and digits in texts of ASCII, text after text, and
    the number of runs of each text; Arrow splits ten texts in the time of Python's one."""
    letters = "".join(texts).encode()
    ends = np.cumsum([0, *map(len, texts)])
    spaced = _SPACED[np.frombuffer(letters, np.uint8)]
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(spaced)]
    column = pa.Array.from_buffers(pa.large_string(), len(texts), buffers)
    runs = pc.ascii_split_whitespace(column)
    encoded = runs.flatten().dictionary_encode()
    of_code = [number[run] if run else -1 for run in encoded.dictionary.to_pylist()]
    # A text with white space at an end has an empty run there.
    numbers = np.array(of_code, np.int32)[_numbers(encoded.indices)]
    is_run = numbers >= 0
    before = np.concatenate([[0], is_run.cumsum()])  # runs before each place
    return numbers[is_run], np.diff(before[_numbers(runs.offsets)])


@dataclass(frozen=True)
class BM25:
    """A corpus indexed for BM25: the documents of each word, and the score that the word adds to
    each of these documents.

    A document's score is the sum over the query's words of

        log(1 + (c - n + 0.5) / (n + 0.5)) * f / (f + k1 (1 - b + b l / mean l))

    for a word in n of c documents that stands f times in a document of l words, as in Lucene
    (Kamphuis et al. 2020). The bits equal those of bm25s (Lù 2024).
    """

    settings: Settings
    number: dict[str, int]  # of each word
    offsets: Ints  # [v + 1]
    docs: NDArray[np.int32] | Ints  # [m]
    parts: Floats  # [m]
    size: int  # documents

    @classmethod
    def of(cls, counts: WordCounts, settings: Settings) -> BM25:
        """Index a corpus by the counts of its words, not yet stemmed."""
        if settings.stem:
            counts = counts.stemmed
        whole = counts.whole
        c = len(whole.lengths)
        holding = np.diff(whole.offsets)  # [v] documents that hold each word
        idf = np.array(
            [math.log(1 + (c - n + 0.5) / (n + 0.5)) for n in holding.tolist()], np.float32
        )
        mean = whole.lengths.mean()
        saturation = settings.k1 * ((1 - settings.b) + settings.b * counts.lengths / mean)
        f = counts.counts
        parts = np.repeat(idf, np.diff(counts.offsets)) * (f / (saturation[counts.docs] + f))
        number = {word: i for i, word in enumerate(counts.words)}
        size = len(counts.lengths)
        return cls(settings, number, counts.offsets, counts.docs, parts.astype(np.float32), size)

    def ordered(self, places: Ints) -> BM25:
        """Return the index of the same documents in another order; document i moves to place
        `places[i]`, [c].

        >>> index = Lexical(["a b", "b", "c"]).index().ordered(np.array([2, 0, 1]))
        >>> index.rank(["a", "b", "c"], 1).tolist()
        [[2], [0], [1]]
        """
        if np.array_equal(places, np.arange(len(places))):
            return self
        from scipy.sparse import csr_array

        # Two conversions sort by counting.
        shape = self.size, len(self.number)
        docs = places.astype(np.int32)[self.docs]
        by_word = csr_array((self.parts, docs, self.offsets), shape=shape[::-1])
        ordered = by_word.tocsc().tocsr()
        return replace(self, docs=ordered.indices, parts=ordered.data)

    def scores(self, queries: Sequence[str]) -> Floats:
        """Return the score of every document, [q, c]; 0 for documents without a common word."""
        scores = np.zeros((len(queries), self.size), np.float32)
        for row, query in zip(scores, queries, strict=True):
            self.add(row, query)
        return scores

    def add(self, scores: Floats, query: str) -> None:
        """Add the scores of a query to numbers of all documents, [c]."""
        terms = words(query)
        if self.settings.stem:
            terms = stemmer().stemWords(terms)
        for term in terms:
            i = self.number.get(term)
            if i is not None:
                part = slice(self.offsets[i], self.offsets[i + 1])
                np.add.at(scores, self.docs[part], self.parts[part])

    def rank(self, queries: Sequence[str], k: int) -> Ints:
        """Return positions of the k best documents, best first, [q, k], or [q, c] if k is larger
        than c; documents without a common word are -1."""
        ranked = np.full((len(queries), min(k, self.size)), -1)
        scores = np.empty(self.size, np.float32)  # of a query at a time, in the cache
        for row, query in zip(ranked, queries, strict=True):
            scores.fill(0)
            self.add(scores, query)
            places = top_above_zero(scores, k)
            row[: len(places)] = places
        return ranked

    def table(self) -> pa.Table:
        """Return the index as a table with a row for each word, and the settings in its
        metadata."""
        offsets = pa.array(self.offsets, pa.int64())
        docs = pa.array(self.docs.astype(np.int32))
        columns = {
            "word": pa.array(self.number),
            "docs": pa.LargeListArray.from_arrays(offsets, docs),
            "scores": pa.LargeListArray.from_arrays(offsets, pa.array(self.parts)),
        }
        about = {"documents": self.size} | asdict(self.settings)
        if self.settings.stem:
            about["stemming"] = stemming()
        return pa.table(columns).replace_schema_metadata({_KEY: json.dumps(about).encode()})

    @classmethod
    def read(cls, table: pa.Table) -> BM25:
        """Return the index of a table that `BM25.table` returned.

        Raises:
            OtherStems: the words were stemmed otherwise than queries would be.
            ValueError, KeyError, TypeError, pyarrow.ArrowException: another or a damaged table.
        """
        about = parsed((table.schema.metadata or {})[_KEY])
        size = int(about.pop("documents"))
        made_by = about.pop("stemming", None)  # None: not stemmed, or of an earlier version
        if made_by is not None and made_by["stems"] != stemming()["stems"]:
            raise OtherStems(str(made_by["version"]), Settings(**about))
        table.validate(full=True)
        docs = table["docs"].combine_chunks()
        parts = table["scores"].combine_chunks()
        offsets = _numbers(docs.offsets).astype(np.int64)
        positions = _numbers(docs.values)
        values = _numbers(parts.values)
        if not np.array_equal(offsets, _numbers(parts.offsets)) or values.dtype != np.float32:
            raise ValueError("its documents and scores do not belong together")
        least, most = positions.min(initial=0), positions.max(initial=0)
        if not np.isfinite(values).all() or least < 0 or most > max(0, size - 1):
            raise ValueError("it names documents or scores that cannot be")
        number = {word: i for i, word in enumerate(table["word"].to_pylist())}
        return cls(Settings(**about), number, offsets, positions, values, size)


def _numbers(array: pa.Array) -> NDArray[Any]:
    """Return the numbers of an Arrow array without a copy; `to_numpy` and, before PyArrow 26,
    `to_pandas_dtype` would load pandas, which takes 0.2 s."""
    if array.null_count:
        raise ValueError("it has empty cells")
    if pa.types.is_floating(array.type):
        kind = "f"
    elif pa.types.is_signed_integer(array.type):
        kind = "i"
    else:
        raise ValueError(f"it holds {array.type} in place of numbers")
    every = np.frombuffer(array.buffers()[1], f"{kind}{array.type.bit_width // 8}")
    return every[array.offset : array.offset + len(array)]


def stored_settings(metadata: Mapping[bytes, bytes] | None) -> Settings:
    """Return the settings in the metadata of a table that `BM25.table` returned.

    Raises:
        ValueError, LookupError, TypeError: another or a damaged table.

    >>> stored_settings(Lexical(["a"]).index().table().schema.metadata)
    Settings(k1=1.5, b=0.75, stem=False)
    """
    about = parsed((metadata or {})[_KEY])
    return Settings(**{name: about[name] for name in ("k1", "b", "stem")})


def best(scores: Floats, k: int) -> Ints:
    """Return positions of the k highest scores, best first, [q, c] -> [q, k]; -1 in place of a
    document whose score is not above 0."""
    values, positions = top_of(scores, k)
    return np.where(values > 0, positions, -1)


class Lexical:
    """BM25 over a corpus, with settings that can be tuned one setting after the other, on queries
    apart from the queries of a comparison."""

    def __init__(self, docs: Sequence[str]) -> None:
        self.counts = WordCounts.of(docs)
        self.settings = Settings()

    def index(self, settings: Settings | None = None) -> BM25:
        """Return the index for some settings; for the tuned settings if none are given."""
        return BM25.of(self.counts, settings or self.settings)

    def rank(self, queries: Sequence[str], k: int, settings: Settings | None = None) -> Ints:
        """Return positions of the k best documents, best first, [q, k]; -1 for none."""
        return self.index(settings).rank(queries, k)

    def tune(self, queries: Sequence[str], relevant: Relevant) -> None:
        """Choose the b, then the k1, then the stemming with the highest nDCG@10 for these queries.

        A comparison with the tuned BM25 needs other queries. In a large corpus the settings rank
        the relevant documents, and the fifty best documents of each query by the settings so far,
        with and without stems: another setting hardly finds a document below these among its best
        ten.
        """

        def score(settings: Settings) -> float:
            bar.update()
            ranked = BM25.of(counts, settings).rank(queries, 10)
            return float(evaluate(ranked, relevant, ["ndcg@10"])["ndcg@10"].mean())

        counts = self.counts
        with progress_bar("tuning BM25", sum(map(len, _GRID.values())), "setting") as bar:
            if len(queries) * len(counts.lengths) > _CELLS:
                docs = self._candidates(queries, relevant)
                counts = counts.among(docs)
                relevant = replace(relevant, doc=np.searchsorted(docs, relevant.doc))
            for option, values in _GRID.items():
                choices = [replace(self.settings, **{option: value}) for value in values]
                self.settings = max(choices, key=score)

    def _candidates(self, queries: Sequence[str], relevant: Relevant) -> Ints:
        """Return the documents for a tuning in a large corpus, rising."""
        docs = [relevant.doc]
        for stem in _GRID["stem"]:
            ranked = self.rank(queries, _BEST, replace(self.settings, stem=stem))
            docs.append(ranked[ranked >= 0])
        return np.unique(np.concatenate(docs))
