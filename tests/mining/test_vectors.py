"""The store of vectors: what a kill leaves, what a change of content finds, several processes at
once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tempera.errors import DataError
from tempera.mining import vectors as module
from tempera.mining.embed import StoredEmbeddings, embed
from tempera.mining.vectors import Store, keys_of, keys_of_pairs
from tempera.towers.saved import fingerprint

TEXTS = [f"text {i % 900}" for i in range(1000)]
WIDTH = 5


def vector(text: str) -> list[float]:
    return [float(len(text)), *(float(ord(c)) for c in text[-4:].rjust(4))]


def encode(texts: list[str]) -> np.ndarray:
    return np.array([vector(text) for text in texts], np.float32)


def right(embedded: StoredEmbeddings, texts: list[str]) -> bool:
    assert len(embedded) == len(texts)
    return embedded[:].tolist() == [vector(text) for text in texts]


def test_each_distinct_text_is_computed_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def counted(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return encode(texts)

    first = embed(Store(tmp_path, "s"), TEXTS[:500], counted)
    store = Store(tmp_path, "s")
    both = embed(store, TEXTS[::-1], counted)
    assert right(first, TEXTS[:500]) and right(both, TEXTS[::-1])
    assert sorted(asked) == sorted(set(TEXTS)) and store.computed == 400
    assert isinstance(store.vectors, np.memmap)
    assert embed(Store(tmp_path, "s"), [], counted)[:].shape == (0, WIDTH)


def test_content_is_found_as_it_is(tmp_path: Path) -> None:
    texts = ["a", "a ", "A", "a\0", "", "\ud800", "é"]
    keys = keys_of(texts)
    assert len(set(keys.tolist())) == len(texts) and (keys == keys_of(texts)).all()
    assert (
        len(
            set(
                keys_of_pairs(
                    [("a", "b"), ("ab", ""), ("", "ab"), ("a\0", "b"), ("a", "\0b")]
                ).tolist()
            )
        )
        == 5
    )
    assert right(embed(Store(tmp_path, "s"), texts[:3], encode), texts[:3])
    assert len(Store(tmp_path, "s")) == 3
    assert len(Store(tmp_path, "t")) == 0


def test_a_changed_model_or_prompt_has_another_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    for name, text in (
        ("model.safetensors", "weights"),
        ("config.json", '{"prompts": {}}'),
        ("1_Pooling/c", "x"),
    ):
        (tmp_path / name).write_text(text)
    seen = [fingerprint(tmp_path)]
    for name in ("README.md", ".lock"):
        (tmp_path / name).write_text("words")
    assert fingerprint(tmp_path) == seen[0]
    for name, text in (
        ("config.json", '{"prompts": {"q": "p"}}'),
        ("model.safetensors", "weighty"),
        ("1_Pooling/c", "y"),
    ):
        (tmp_path / name).write_text(text)
        seen.append(fingerprint(tmp_path))
    (tmp_path / "1_Pooling" / "c").rename(tmp_path / "1_Pooling" / "d")
    seen.append(fingerprint(tmp_path))
    assert len(set(seen)) == 5
    with pytest.raises(DataError, match="is not a saved model"):
        fingerprint(tmp_path / "none")


@pytest.mark.parametrize("file", ["keys", "vectors"])
@pytest.mark.parametrize("damage", ["cut", "longer", "wrong"])
def test_a_torn_tail_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, damage: str
) -> None:
    monkeypatch.setattr(module, "SHARD", 64)
    embed(Store(tmp_path, "s"), TEXTS[:300], encode)
    path = tmp_path / "s-float32" / file
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[:-7], "longer": whole + b"\1\2\3", "wrong": whole[:-3] + b"\7\7\7"}[damage]
    )
    left = len(Store(tmp_path, "s"))
    assert left == (300 if damage == "longer" else 299)
    store = Store(tmp_path, "s")
    assert right(embed(store, TEXTS, encode), TEXTS) and store.computed == 900 - left
    assert right(embed(Store(tmp_path, "s"), TEXTS, None), TEXTS)  # type: ignore[arg-type]


# Without the towers, so that it starts in a fraction of a second.
WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from tempera.mining import vectors
vectors.SHARD = 20
texts = [f"text {i % 900}" for i in range(1000)]
count = open(sys.argv[2], "a")
def slow(missing):
    time.sleep(0.002)
    asked = [texts[i] for i in missing]
    count.writelines(text + "\\n" for text in asked)
    count.flush()
    return np.array([[len(text), *(ord(c) for c in text[-4:].rjust(4))] for text in asked], np.float32)
print("ready", flush=True)
vectors.Store(Path(sys.argv[1]), "s").fill(vectors.keys_of(texts), slow)
"""


def writer(folder: Path, count: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, folder / "store", count], stdout=subprocess.PIPE
    )


def test_kills_at_any_moment_cost_one_shard_each(tmp_path: Path) -> None:
    count, kills, generator = tmp_path / "computed", 0, np.random.default_rng(0)
    for _ in range(20):
        process = writer(tmp_path, count)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(float(generator.uniform(0.005, 0.06)))
        process.send_signal(signal.SIGKILL)
        process.stdout.close()
        kills += process.wait() == -signal.SIGKILL
        if process.returncode == 0 or kills == 5:
            break
    assert kills
    store = Store(tmp_path / "store", "s")
    reader = len(store)
    rows = store.find(keys_of(TEXTS))
    assert all(
        store.vectors[row].tolist() == vector(text) for row, text in zip(rows, TEXTS) if row >= 0
    )
    assert right(embed(store, TEXTS, encode), TEXTS)
    computed = count.read_text().splitlines()
    assert store.computed == 900 - reader
    assert set(TEXTS) >= set(computed) and len(computed) - len(set(computed)) <= 20 * kills


def test_two_writers_take_turns(tmp_path: Path) -> None:
    count = tmp_path / "computed"
    processes = [writer(tmp_path, count) for _ in range(2)]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert sorted(count.read_text().splitlines()) == sorted(set(TEXTS))
    assert right(embed(Store(tmp_path / "store", "s"), TEXTS, encode), TEXTS)


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(
        DataError, match="file is no folder, in which vectors can be kept: give another"
    ):
        Store(tmp_path / "file", "s")
    store = Store(tmp_path, "s")
    with pytest.raises(DataError, match="texts as float32 are not finite"):
        embed(store, ["a"], lambda texts: np.full((len(texts), 2), np.nan, np.float32))
    with (
        pytest.raises(DataError, match="texts as float32 are not finite"),
        np.errstate(over="ignore"),
    ):
        embed(store, ["a"], lambda texts: np.full((len(texts), 2), 1e60))
    embed(store, ["a"], encode)
    with pytest.raises(DataError, match=r"vectors of shape \(1, 2\); expected \(1, 5\)"):
        embed(store, ["b"], lambda texts: np.ones((len(texts), 2), np.float32))
    (tmp_path / "s-float32" / "about.json").write_text("{")
    with pytest.raises(DataError, match="is not a store of vectors"):
        Store(tmp_path, "s")
