"""Candidates by bits and by words are the documents that an exact search finds, with its scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tempera.corpus import bits as bits_module
from tempera.corpus.bits import FILE, LARGE, Bits
from tempera.corpus.index import Found, Index, write_index
from tempera.errors import DataError
from tempera.ranking.fusion import fused
from tempera.ranking.nearest import top_of
from tempera.text.judge.lexical import BM25, Lexical
from tempera.towers.stamp import Stamp

pytest.importorskip("faiss")

COUNT, WIDTH, MODEL = LARGE + 7, 44, "a"


def unit(rows: Any) -> np.ndarray:
    found: np.ndarray = np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)
    return found


def drawn_vectors(count: int, seed: int) -> np.ndarray:
    """Unit vectors around 300 centres and a common direction."""
    centres = np.random.default_rng(0).standard_normal((300, WIDTH)) + 0.3
    rng = np.random.default_rng(seed)
    return unit(centres[rng.integers(0, 300, count)] + rng.standard_normal((count, WIDTH)))


def drawn_texts(count: int, seed: int) -> list[str]:
    """Texts of frequent and rare words."""
    rng = np.random.default_rng(seed)
    numbers = (rng.pareto(0.6, (count, 7)) * 3).astype(np.int64) % 900
    return [" ".join("w" + "abcdefghij"[n % 10] * (n // 10 + 1) for n in row) for row in numbers]


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return drawn_vectors(COUNT, 1)


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return drawn_vectors(40, 2)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return drawn_texts(COUNT, 3)


@pytest.fixture(scope="module")
def words(texts: list[str]) -> BM25:
    return Lexical(texts).index()


def table(texts: list[str]) -> pa.Table:
    numbers = list(range(len(texts)))
    none = [""] * len(texts)
    return pa.table({"doc_id": numbers, "name": none, "place": none, "doc": texts})


@pytest.fixture(scope="module")
def folder(vectors: np.ndarray, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "index"
    write_index(path, vectors, table(texts), Stamp(MODEL, WIDTH))
    return path


def ids(hits: list[Found]) -> list[str]:
    return [hit.id for hit in hits]


def recall(found: list[list[Found]], exact: list[list[Found]]) -> float:
    pairs = list(zip(found, exact, strict=True))
    assert len(pairs) == 40
    return float(np.mean([len({*ids(a)} & {*ids(b)}) / len(b) for a, b in pairs]))


def test_bits_and_moments_are_those_of_plain_loops(
    vectors: np.ndarray, queries: np.ndarray
) -> None:
    bits = Bits.of(vectors)
    levels = len(bits.thresholds)
    assert levels % 2 == 1 and levels * WIDTH >= 480
    columns = vectors.astype(np.float64)
    below = (columns[:, None] <= bits.thresholds).mean(0)  # as many numbers between any two
    assert below == pytest.approx(
        np.tile(np.arange(1, levels + 1)[:, None] / (levels + 1), WIDTH), abs=0.06
    )
    for row in (0, 4095, 4096, COUNT - 1):
        digits = ""
        for level in range(levels):
            for number, threshold in zip(vectors[row].tolist(), bits.thresholds[level].tolist()):
                digits += "1" if number > threshold else "0"
        digits += "0" * (-len(digits) % 8)
        code = [int(digits[start : start + 8], 2) for start in range(0, len(digits), 8)]
        assert bits.codes[row].tolist() == code
    mean, deviation = bits.moments(queries)
    products = queries.astype(np.float64) @ columns.T
    assert mean == pytest.approx(products.mean(1), abs=1e-7)
    assert deviation == pytest.approx(products.std(1), rel=1e-6)


def test_candidates_have_the_most_equal_bits(vectors: np.ndarray, queries: np.ndarray) -> None:
    bits = Bits.of(vectors)
    near = bits.near(queries[:5], 50)
    assert (np.diff(near, axis=1) > 0).all()
    for query, positions in zip(queries[:5], near, strict=True):
        different = np.zeros(COUNT, np.int64)
        for threshold in bits.thresholds:
            different += ((query > threshold) != (vectors > threshold)).sum(1)
        assert sorted(different[positions]) == sorted(different)[:50]


def test_a_large_index_holds_bits_and_finds_by_them_what_an_exact_search_finds(
    folder: Path, queries: np.ndarray
) -> None:
    assert (folder / FILE).is_file()
    index = Index(folder)
    exact = index.search_each(queries, 10, MODEL)
    found = index.search_each(queries, 10, MODEL, exact=False)
    assert recall(found, exact) >= 0.99
    for some, every in zip(found, exact, strict=True):
        scores = {hit.id: hit.score for hit in every}
        assert [hit.rank for hit in some] == list(range(1, 11))
        assert [hit.score for hit in some] == sorted((hit.score for hit in some), reverse=True)
        for hit in some:
            assert hit.score == pytest.approx(scores.get(hit.id, hit.score), abs=1e-6)
    with pytest.raises(DataError, match="another model"):
        index.search_each(queries, 10, "b", exact=False)
    with pytest.raises(DataError, match="not finite"):
        index.search_each(np.full((1, WIDTH), np.nan, np.float32), 10, MODEL, exact=False)


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.8, 1.0])
def test_fused_candidates_have_the_scores_of_all_documents(
    weight: float, folder: Path, vectors: np.ndarray, queries: np.ndarray, words: BM25
) -> None:
    asked = drawn_texts(40, 4)
    asked[7] = "nothing that any document holds"
    scores = fused(queries @ vectors.T, words.scores(asked), weight)
    best = Index(folder).fused_candidates(queries, asked, words, weight, 10, MODEL)
    assert best is not None
    found, positions = best
    exact = top_of(scores, 10)[1]
    shared = [len({*a} & {*b}) / 10 for a, b in zip(positions.tolist(), exact.tolist())]
    if weight:  # by words alone, equal scores stand in any order
        assert np.mean(shared) >= 0.99
    for row, some, places in zip(scores, found, positions, strict=True):
        assert some == pytest.approx(row[places], abs=1e-4)
        assert len(set(places.tolist())) == 10
    assert found[:, 0] == pytest.approx(scores.max(1), abs=0.02)


def test_a_document_that_words_alone_find_is_a_candidate(
    folder: Path, vectors: np.ndarray, texts: list[str], queries: np.ndarray
) -> None:
    far = int((vectors @ queries[0]).argmin())
    texts = list(texts)
    texts[far] = "unheard"
    words = Lexical(texts).index()
    best = Index(folder).fused_candidates(queries[:1], ["unheard"], words, 0.3, 10, MODEL)
    assert best is not None and best[1][0, 0] == far


def test_vectors_that_are_almost_equal_are_all_compared(
    tmp_path: Path, texts: list[str], words: BM25
) -> None:
    alike = unit(np.ones((COUNT, WIDTH)) + np.eye(COUNT, WIDTH) * 1e-6)
    write_index(tmp_path / "index", alike, table(texts), Stamp(MODEL, WIDTH))
    index = Index(tmp_path / "index")
    assert index.fused_candidates(alike[:1], ["wa"], words, 0.5, 10, MODEL) is None


@pytest.mark.parametrize("case", ["small", "dot", "no stamp", "deep"])
def test_other_indexes_stay_exact(
    case: str, tmp_path: Path, vectors: np.ndarray, texts: list[str], words: BM25
) -> None:
    count = 100 if case == "small" else COUNT
    stamp = None if case == "no stamp" else Stamp(MODEL, WIDTH, normalised=case != "dot")
    write_index(tmp_path / "index", vectors[:count], table(texts[:count]), stamp)
    assert (tmp_path / "index" / FILE).exists() == (case == "deep")
    index = Index(tmp_path / "index")
    k = COUNT // 4 if case == "deep" else 10
    assert not index.has_candidates(k)
    assert index.fused_candidates(vectors[:1], ["wa"], words, 0.5, k) is None
    found = index.search_each(vectors[:3], k, exact=False)
    assert [ids(hits) for hits in found] == [
        ids(hits) for hits in index.search_each(vectors[:3], k)
    ]


def test_without_faiss_a_search_is_exact(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(folder)
    assert index.has_candidates(10)
    monkeypatch.setattr(bits_module, "find_spec", lambda name: None)
    assert not index.has_candidates(10)


def test_bits_of_other_vectors_are_computed_again_and_damaged_ones_refused(
    tmp_path: Path, vectors: np.ndarray, texts: list[str], queries: np.ndarray
) -> None:
    folder = tmp_path / "index"
    write_index(folder, vectors, table(texts), Stamp(MODEL, WIDTH))
    wanted = Index(folder).bits
    other = Bits.of(-vectors)
    other.write(folder, "of other vectors")
    assert np.array_equal(Index(folder).bits.codes, wanted.codes)
    (folder / FILE).unlink()
    assert np.array_equal(Index(folder).bits.codes, wanted.codes)
    stamp = Index(folder).stamp
    assert stamp is not None and stamp.checksum is not None
    Bits.of(vectors[1:]).write(folder, stamp.checksum)
    with pytest.raises(DataError, match=r"bits.safetensors is damaged \(codes is"):
        assert Index(folder).bits
    (folder / FILE).write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(DataError, match=r"bits\.safetensors is damaged"):
        Index(folder).search_each(queries, 10, MODEL, exact=False)


def test_a_cut_index_has_the_bits_of_its_cut_vectors(folder: Path, queries: np.ndarray) -> None:
    index = Index(folder)
    assert index.bits.codes.shape == (COUNT, 61)
    index.narrow(16)
    assert index.bits.codes.shape == (COUNT, 66)
    found = index.search_each(queries, 10, MODEL, exact=False)
    assert found[0][0].score == pytest.approx(index.search_each(queries, 10, MODEL)[0][0].score)
