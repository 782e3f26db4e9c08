"""An index gives back what was written, finds what is nearest, and says what is wrong with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tempera.corpus.index import Found, Index, write_approximate, write_index, write_parquet
from tempera.errors import DataError
from tempera.tables.vector_files import read_vectors
from tempera.text.read.pairs import Pairs
from tempera.towers.stamp import Stamp

COUNT, WIDTH = 12, 5
DOCS = [f"def f{i}():\n    return {i}" for i in range(COUNT - 2)] + [
    "ä" * 399 + "ßx",
    "漢字 " * 300,
]


def documents() -> pa.Table:
    """A table as a run writes it, with more columns than are kept."""
    pairs = Pairs.of(
        [f"q{i}" for i in range(COUNT)],
        DOCS,
        [f"m.f{i}" for i in range(COUNT)],
        list("abcdefghijkl"),
    )
    assert pairs.table.num_columns > 4
    return pairs.table


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Small whole numbers, so that products are exact; documents 3 and 8 are alike."""
    found = np.random.default_rng(0).integers(-3, 4, (COUNT, WIDTH)).astype(np.float32)
    found[8] = found[3]
    return found


@pytest.fixture(scope="module")
def written(vectors: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "deep" / "index"
    write_index(folder, vectors, documents())
    return folder


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    """An index to damage."""
    return Path(shutil.copytree(written, tmp_path / "index"))


def test_what_was_written_is_there(written: Path, vectors: np.ndarray) -> None:
    index = Index(written)
    assert np.array_equal(index.vectors, vectors) and index.vectors.dtype == np.float32
    table = documents()
    assert index.documents.to_pydict() == {
        "id": [str(i) for i in table["doc_id"].to_pylist()],
        "name": table["name"].to_pylist(),
        "place": table["place"].to_pylist(),
        "text": DOCS,
    }
    assert sorted(path.name for path in written.iterdir()) == ["documents.arrow", "vectors.npy"]


@pytest.mark.parametrize("to", ["exact", "parquet", "hnsw"])
def test_hits_have_the_users_ids_and_documents_are_found_by_keys(
    to: str, vectors: np.ndarray, tmp_path: Path
) -> None:
    if to == "hnsw":
        pytest.importorskip("faiss")
    table = documents()
    given = [
        f"url{i}" if i % 3 else None for i in range(COUNT)
    ]  # as in a mixture, where one source has ids
    write_index(
        tmp_path / "index",
        vectors,
        table.append_column("given_doc_id", pa.array(given, pa.large_string())),
    )
    folder = tmp_path / "index"
    if to == "parquet":
        write_parquet(folder := tmp_path / to, Index(tmp_path / "index"))
    elif to == "hnsw":
        write_approximate(folder := tmp_path / to, Index(tmp_path / "index"), to)
    index, keys = Index(folder), table["doc_id"].to_pylist()
    expected = [name or str(key) for name, key in zip(given, keys, strict=True)]
    assert index.documents["id"].to_pylist() == expected
    assert index.keys.to_pylist() == [str(key) for key in keys]
    (hit,) = index.search(vectors[4], 1)
    assert hit.json() == {
        "rank": 1,
        "score": hit.score,
        "id": "url4",
        "name": "m.f4",
        "place": "e",
        "text": DOCS[4],
        "columns": {},
    }
    file = read_vectors(folder)
    assert file.ids.to_pylist() == expected and file.keys is not None and file.keys.tolist() == keys
    # Ids that the user gives to the vectors replace both.
    (tmp_path / "ids.txt").write_text("\n".join(map(str, range(COUNT))))
    file = read_vectors(folder, tmp_path / "ids.txt")
    assert file.ids.to_pylist() == [str(i) for i in range(COUNT)] and file.keys is None


def test_an_index_is_not_read_before_it_is_asked_and_never_changed(written: Path) -> None:
    index = Index(written)
    assert isinstance(index.vectors, np.memmap) and not index.vectors.flags.writeable
    before = [path.read_bytes() for path in sorted(written.iterdir())]
    index.search(np.ones(WIDTH, np.float32))
    assert [path.read_bytes() for path in sorted(written.iterdir())] == before


def test_an_index_is_not_written_over(written: Path, vectors: np.ndarray) -> None:
    with pytest.raises(FileExistsError):
        write_index(written, vectors, documents())


def test_vectors_of_another_layout_are_stored_as_floats(
    tmp_path: Path, vectors: np.ndarray
) -> None:
    write_index(tmp_path / "index", np.asfortranarray(vectors, np.float64), documents())
    found = Index(tmp_path / "index").vectors
    assert found.dtype == np.float32 and found.flags.c_contiguous and np.array_equal(found, vectors)


@pytest.mark.parametrize("k", [1, 3, COUNT, COUNT + 1, 1000])
def test_the_nearest_documents_are_found_in_their_order(
    written: Path, vectors: np.ndarray, k: int
) -> None:
    index = Index(written)
    rows = index.documents.to_pylist()
    for seed in range(10):
        query = np.random.default_rng(seed).integers(-3, 4, WIDTH).astype(np.float32)
        scores = [sum(float(a) * float(b) for a, b in zip(query, vector)) for vector in vectors]
        order = sorted(range(COUNT), key=lambda i: (-scores[i], i))[:k]
        assert index.search(query, k) == [
            Found(rank=r, score=scores[i], columns={}, **rows[i]) for r, i in enumerate(order, 1)
        ]
    assert len(index.search(query)) == 10  # unless another number is asked for


def test_a_document_as_json(written: Path, vectors: np.ndarray) -> None:
    (found,) = Index(written).search(vectors[0] * 9, 1)
    doc_id = documents()["doc_id"][0].as_py()
    score = 9 * float(vectors[0] @ vectors[0])
    text = "def f0():\n    return 0"
    expected = {
        "rank": 1,
        "score": score,
        "id": str(doc_id),
        "name": "m.f0",
        "place": "a",
        "text": text,
        "columns": {},
    }
    assert found.json() == expected
    assert [type(value) for value in found.json().values()] == [
        str,
        str,
        str,
        str,
        dict,
        int,
        float,
    ]


@pytest.mark.parametrize("width", [1, WIDTH - 1, WIDTH + 1])
def test_a_model_of_another_width(written: Path, width: int) -> None:
    with pytest.raises(DataError) as error:
        Index(written).search(np.ones(width, np.float32))
    assert (
        str(error.value)
        == f"{written}: the model has {width} dimensions, but the index has {WIDTH}"
    )


@pytest.mark.parametrize(
    "change", [lambda v: v[::-1], lambda v: np.where(v == v[0, 0], v + 1e-6, v)]
)
def test_vectors_that_were_changed_are_refused(
    vectors: np.ndarray, tmp_path: Path, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    write_index(tmp_path / "index", vectors, documents(), Stamp("0" * 32, WIDTH))
    assert np.array_equal(Index(tmp_path / "index").vectors, vectors)
    np.save(tmp_path / "index" / VECTORS, change(vectors).astype(np.float32))
    with pytest.raises(DataError, match="its vectors are not as they were written"):
        Index(tmp_path / "index")


@pytest.mark.parametrize("stamp", [b"{}", b"no JSON", b'["a"]'])
def test_a_damaged_stamp_is_named(vectors: np.ndarray, tmp_path: Path, stamp: bytes) -> None:
    write_index(tmp_path / "index", vectors, documents())
    path = tmp_path / "index" / DOCUMENTS
    table = (
        pa.ipc.open_file(path.read_bytes()).read_all().replace_schema_metadata({b"tempera": stamp})
    )
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(
        DataError, match="index is damaged: what it says of its vectors is not readable"
    ):
        Index(tmp_path / "index")


VECTORS, DOCUMENTS = "vectors.npy", "documents.arrow"


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def other_vectors(*shape: int) -> Callable[[Path], object]:
    return lambda folder: np.save(folder / VECTORS, np.ones(shape, np.float32))


def other_columns(folder: Path) -> None:
    table = pa.table({"id": ["1"] * COUNT, "text": ["2"] * COUNT})
    with (
        pa.OSFile(str(folder / DOCUMENTS), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)


def archive(folder: Path) -> None:
    with (folder / VECTORS).open("wb") as file:
        np.savez(file, np.ones((COUNT, WIDTH), np.float32))


UNREADABLE = "{0} is not a readable index: "


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "{0} is not an index: {0}/vectors.npy is missing"),
        (
            lambda folder: (folder / VECTORS).unlink(),
            "{0} is not an index: {0}/vectors.npy is missing",
        ),
        (lambda folder: (folder / DOCUMENTS).unlink(), "{0} is not an index: "),
        (lambda folder: (shutil.rmtree(folder), folder.write_text("")), UNREADABLE),
        (lambda folder: ((folder / DOCUMENTS).unlink(), (folder / DOCUMENTS).mkdir()), UNREADABLE),
        (edit(VECTORS, lambda data: b""), UNREADABLE),
        (edit(VECTORS, lambda data: data[:4]), UNREADABLE),
        (edit(VECTORS, lambda data: data[:60]), UNREADABLE),
        (edit(VECTORS, lambda data: data[:-1]), UNREADABLE),
        (edit(VECTORS, lambda data: b"garbage" * 50), UNREADABLE),
        (edit(VECTORS, lambda data: data.replace(b"'shape'", b"'shade'")), UNREADABLE),
        (archive, UNREADABLE),
        (edit(DOCUMENTS, lambda data: b""), UNREADABLE),
        (edit(DOCUMENTS, lambda data: data[: len(data) // 2]), UNREADABLE),
        (edit(DOCUMENTS, lambda data: data[:-1]), UNREADABLE),
        (edit(DOCUMENTS, lambda data: b"garbage" * 50), UNREADABLE),
        (other_columns, UNREADABLE),
        (other_vectors(COUNT - 1, WIDTH), "{0} is damaged: (11, 5) vectors for 12 documents"),
        (other_vectors(COUNT, WIDTH, 1), "{0} is damaged: (12, 5, 1) vectors for 12 documents"),
        (other_vectors(COUNT), "{0} is damaged: (12,) vectors for 12 documents"),
    ],
)
def test_damaged_indices(copy: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(copy)
    with pytest.raises(DataError) as error:
        Index(copy)
    assert str(error.value).startswith(message.format(copy)) and "\n" not in str(error.value)


class Trap:
    """Pickled, it makes a folder when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def test_an_index_that_would_run_code_is_not_loaded(copy: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    np.save(copy / VECTORS, np.array([[Trap(str(marker))]] * COUNT, object), allow_pickle=True)
    with pytest.raises(DataError) as error:
        Index(copy)
    assert str(error.value).startswith(UNREADABLE.format(copy))
    assert not marker.exists()
    np.load(copy / VECTORS, allow_pickle=True)
    assert marker.is_dir()  # so it would have


def test_the_module_needs_no_other_to_be_imported_first(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
from tempera.corpus.index import Index, write_index
table = pa.table({"doc_id": [1], "name": ["n"], "place": ["p"], "doc": ["d"]})
write_index(Path(sys.argv[1]), np.ones((1, 2)), table)
print(Index(Path(sys.argv[1])).search(np.ones(2))[0].preview)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "index")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "d\n"
