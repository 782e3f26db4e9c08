"""A bit that changes in a file of a run: a command refuses, or it has not read that file and answers
as before; `check` names the file."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.integrity import check
from tempera.artifacts.run_folder import Run
from tempera.errors import DataError, TemperaError
from tempera.finished.calibrate import calibrate
from tempera.finished.held_out_set import evaluate_held_out
from tempera.finished.merge import merge
from tempera.io import checked, manifest
from tempera.io.atomic import adding, new_folder, write_manifest_again
from tempera.io.manifest import MANIFEST, Manifest, refuse_damaged
from tempera.ranking.nearest import top
from tempera.run.train import train
from tempera.tables.vector_files import read_vectors
from tempera.text.judge.evaluate import evaluate
from tempera.text.train.mine import mine

from ..conftest import small_options

Reader = Callable[[Path, Path], Any]  # of a run's folder and an empty one: an answer


@pytest.fixture(scope="module")
def texts(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned its test in the end, so that it has an evaluated model; calibrated,
    and exported."""
    options = small_options(pairs_file)
    options["train"]["refit"] = "auto"
    options["evaluation"]["bm25"] = True
    run = train(options, tmp_path_factory.mktemp("rot") / "texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tempera.finished.calibrate.draw_calibration", lambda *_: {"svg": b"", "png": b""}
        )
        calibrate(run.folder)
    run.export("parquet")
    return run.folder


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recommender with times, counts and titles."""
    folder = tmp_path_factory.mktemp("rot")
    events = [
        (f"u{u:02}", f"i{(3 * u + t) % 12:02}", 10 * t + u % 3) for u in range(20) for t in range(6)
    ]
    columns = {name: list(values) for name, values in zip(("user", "item", "time"), zip(*events))}
    parquet.write_table(pa.table(columns), folder / "events.parquet")
    titles = [f"thing {i % 4}" for i in range(12)]
    parquet.write_table(
        pa.table({"item": [f"i{i:02}" for i in range(12)], "title": titles}),
        folder / "items.parquet",
    )
    data = {
        "source": "interactions",
        "path": str(folder / "events.parquet"),
        "items": str(folder / "items.parquet"),
        "split": "leave_last_out",
    }
    tower = {"kind": "features", "dimensions": 4, "doc": ["id", {"text": {"column": "title"}}]}
    short = {"max_steps": 2, "evaluations": 0, "batch_size": 8}
    options: dict[str, Any] = {"data": data, "tower": tower, "train": short}
    later = {"user": ["u01", "u02"], "item": ["i07", "i00"], "time": [900, 901]}
    parquet.write_table(pa.table(later), folder / "later.parquet")
    options["evaluation"] = {"metrics": ["hit@3", "ndcg@10"], "baselines": True}
    return train(options, folder / "items").folder


def scores(finding: Any) -> Any:
    return {name: each.metrics for name, each in finding.systems.items()}


def mined(run: Path, pairs: Path, place: Path) -> Any:
    mine(run, pairs, place / "mined.parquet", cache=place / "cache")
    return parquet.read_table(place / "mined.parquet").to_pylist()


def exported(run: Path, place: Path) -> Any:
    Run(run).export("parquet", place / "out")
    return parquet.read_table(place / "out" / "vectors.parquet").to_pylist()


def readers_of_texts(pairs: Path) -> Mapping[str, Reader]:
    """Commands on a run of texts, each by its answer."""
    return {
        "search": lambda run, _: Run(run).search("kaban celdor", 5),
        "search by words": lambda run, _: Run(run).search("kaban celdor", 5, hybrid=True),
        "search an export": lambda run, _: Run(run).search(
            "kaban celdor", 5, run / "export" / "parquet"
        ),
        "metrics": lambda run, _: Run(run).metrics,
        "held out": lambda run, _: scores(evaluate_held_out(run, metrics=["ndcg@10"])),
        "evaluate": lambda run, _: [
            (scores(each), each.cautions()) for each in evaluate(run, pairs, metrics=["ndcg@10"])
        ],
        "calibrate": lambda run, _: {**calibrate(run).json(), "date": ""},
        "mine": lambda run, place: mined(run, pairs, place),
        "export": exported,
        "vectors": lambda run, _: np.asarray(read_vectors(run).vectors).tolist(),
    }


def read_events(run: Path, place: Path) -> Any:
    return Run(run).evaluate(run.parent / "later.parquet").json()


def recommended(run: Path, place: Path) -> Any:
    Run(run).recommend_all(place / "all.parquet", k=3)
    return parquet.read_table(place / "all.parquet").to_pylist()


READERS_OF_ITEMS: Mapping[str, Reader] = {
    "user": lambda run, _: Run(run).recommend("u03", k=4).hits,
    "history": lambda run, _: Run(run).recommend(history=["i01", "i02"], k=4).hits,
    "counts": lambda run, _: Run(run).recommend("u03", k=4, hybrid=True).hits,
    "all": recommended,
    "evaluate": read_events,
    "export": exported,
    "metrics": lambda run, _: Run(run).metrics,
}


def outcome(read: Reader, run: Path, place: Path) -> Any:
    """The answer of a command, or the line by which it refuses."""
    place.mkdir()
    try:
        return repr(read(run, place))
    except TemperaError as error:
        return error
    finally:
        shutil.rmtree(place)


def campaign(run: Path, readers: Mapping[str, Reader], flips: int, place: Path) -> Counter[str]:
    """Flip bits, each in the next file, and ask every command; count the outcomes."""
    chance, seen = Random(7), Counter[str]()
    whole = {name: outcome(read, run, place / "x") for name, read in readers.items()}
    assert not [each for each in whole.values() if isinstance(each, Exception)], whole
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.stat().st_size]
    for number in range(flips):
        path = files[number % len(files)]
        content = path.read_bytes()
        at = chance.randrange(len(content))
        path.write_bytes(
            content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]
        )
        named = [name for name in check(run).damaged if (run / name) == path]
        assert named, f"check does not name {path}"
        for name, read in readers.items():
            result = outcome(read, run, place / "x")
            if isinstance(result, DataError):
                seen["refused"] += 1
                assert path.name in str(result) and "\n" not in str(result), (name, path, result)
            else:
                seen["not read"] += 1
                assert result == whole[name], f"{name} answers otherwise in silence: {path}"
        path.write_bytes(content)
    assert check(run).is_whole
    return seen


@pytest.fixture
def writes_no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempera.finished.calibrate.draw_calibration", lambda *_: {})
    monkeypatch.setattr("tempera.finished.calibrate.write_calibration", lambda *_: None)


MANY = pytest.param(300, marks=pytest.mark.slow)


@pytest.mark.parametrize("flips", [pytest.param(25, marks=pytest.mark.long), MANY])
@pytest.mark.usefixtures("writes_no_calibration")
def test_no_flipped_bit_of_a_run_on_texts_is_silent(
    texts: Path, pairs_file: Path, tmp_path: Path, flips: int
) -> None:
    seen = campaign(texts, readers_of_texts(pairs_file), flips, tmp_path)
    print(dict(seen))
    assert seen["refused"] > flips


@pytest.mark.parametrize("flips", [25, MANY])
def test_no_flipped_bit_of_a_recommender_is_silent(items: Path, tmp_path: Path, flips: int) -> None:
    seen = campaign(items, READERS_OF_ITEMS, flips, tmp_path)
    print(dict(seen))
    assert seen["refused"] > flips


def test_a_file_that_was_removed_is_missed(texts: Path, tmp_path: Path) -> None:
    """Without its evaluated model a run would be judged by one that has learned the test."""
    run = Path(shutil.copytree(texts, tmp_path / "run"))
    shutil.rmtree(run / "evaluated")
    with pytest.raises(DataError, match=r"evaluated/.* is damaged \(it is missing\)"):
        evaluate_held_out(run)
    assert {name.split("/")[0] for name in check(run).damaged} == {"evaluated"}


def test_models_that_are_merged_are_compared(texts: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(texts, tmp_path / "run"))
    weights = run / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"model\.safetensors is damaged \(its checksum differs\)"):
        merge(run, texts / "evaluated", weights=0.5, output=tmp_path / "out")


def test_the_command_names_damaged_and_unknown_files(
    texts: Path, tmp_path: Path, tempera: Any
) -> None:
    run = Path(shutil.copytree(texts, tmp_path / "run"))
    assert tempera("check", run).out.endswith("files as written\n")
    (run / "notes.txt").write_text("mine")
    answer = tempera("check", run)
    assert answer.code == 0 and "unknown: notes.txt" in answer.out
    (run / "report.html").write_text("rewritten")
    answer = tempera("check", run, "--json")
    assert answer.code == 2 and answer.document["damaged"].keys() == {"report.html"}
    assert tempera("search", run, "kaban").code == 0  # which reads no report
    assert tempera("check", run, "--accept").code == 0
    assert tempera("check", run).code == 0
    assert "give that" in tempera("check", run / "model").err


def test_a_run_of_an_earlier_version_opens_as_it_did(
    texts: Path, tmp_path: Path, tempera: Any
) -> None:
    run = tmp_path / "run"
    shutil.copytree(texts, run, ignore=shutil.ignore_patterns(MANIFEST))
    assert repr(Run(run).search("kaban", 3)) == repr(Run(texts).search("kaban", 3))
    answer = tempera("check", run)
    assert answer.code == 2 and "it is a run of an earlier version" in answer.err
    assert tempera("check", run, "--accept").code == 0 and check(run).is_whole


def test_a_damaged_manifest_and_one_of_a_later_version_are_refused(
    texts: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(texts, tmp_path / "run"))
    path = run / MANIFEST
    text = path.read_text()
    for change in (text.replace("tempera", "temperb"), text.replace("\n", " \n", 1), text[:40], ""):
        path.write_text(change)
        with pytest.raises(DataError, match=rf"{MANIFEST} is damaged"):
            Run(run).search("kaban")
        assert check(run).damaged.keys() == {MANIFEST}
    path.write_text(json.dumps({**json.loads(text), "format": 99}))
    with pytest.raises(DataError, match="is of a later version of Tempera"):
        Run(run).search("kaban")


def test_what_is_added_is_recorded_and_a_failure_leaves_what_was(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with new_folder(folder) as stage:
        (stage / "a").write_text("1")
    with adding(folder, ["b"]):
        assert "b" not in Manifest.of_folder(folder).files
        (folder / "b").write_text("2")
    assert Manifest.of_folder(folder).files.keys() == {"a", "b"}
    (folder / "a").write_text("3")  # damaged
    with pytest.raises(KeyboardInterrupt), adding(folder, ["a"]):
        raise KeyboardInterrupt
    assert check(folder).damaged == {"a": "its checksum differs"}
    write_manifest_again(folder)
    assert check(folder).is_whole


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Vectors whose file counts as large, in blocks of 512 bytes: 8 rows each, the first with the
    header before it."""
    for module in (manifest, checked):
        monkeypatch.setattr(module, "WHOLE", 1000)
        monkeypatch.setattr(module, "BLOCK", 512)
    with new_folder(tmp_path / "index") as stage:
        rng = np.random.default_rng(0)
        np.save(stage / "vectors.npy", rng.normal(size=(100, 16)).astype(np.float32))
    return tmp_path / "index" / "vectors.npy"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def test_blocks_of_large_vectors_are_compared_when_they_are_read(large: Path) -> None:
    whole = np.load(large)
    rows = checked.mapped_rows(large)
    assert isinstance(rows, checked.CheckedRows) and sum(rows.blocks.right) == 1
    np.testing.assert_array_equal(rows[20:30], whole[20:30])
    assert sum(rows.blocks.right) == 3  # the header's, and two that hold these rows
    np.testing.assert_array_equal(rows[np.array([-1, 5])], whole[[-1, 5]])
    np.testing.assert_array_equal(rows[40], whole[40])
    np.testing.assert_array_equal(np.asarray(rows), whole)
    assert all(rows.blocks.right)
    found = top(whole[:3], rows, 4)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found[1], top(whole[:3], whole, 4)[1])


def test_a_file_that_was_found_whole_is_not_compared_again_unless_it_has_changed(
    large: Path,
) -> None:
    long_ago = 1_600_000_000
    os.utime(large, (long_ago, long_ago))
    refuse_damaged(large)
    rows: Any = checked.mapped_rows(large)
    assert all(rows.blocks.right) and rows.blocks.all_right
    start = 128 + 64 * 37
    flip(large, start)  # it has another time now
    with pytest.raises(DataError, match=rf"checksum of its block {start // 512} differs"):
        np.asarray(checked.mapped_rows(large))


@pytest.mark.parametrize("row", [0, 37, 99])
def test_a_damaged_block_is_refused_when_it_is_read_and_not_before(large: Path, row: int) -> None:
    start = 128 + 64 * row
    flip(large, start)
    if start < 512:
        with pytest.raises(DataError, match="block 0 differs"):
            checked.mapped_rows(large)
        return
    rows: Any = checked.mapped_rows(large)
    fine = 50 if row != 50 else 60
    rows[fine]
    for read in (
        lambda: rows[row],
        lambda: rows[row - 1 :],
        lambda: np.asarray(rows),
        lambda: rows[np.arange(100) == row],
    ):
        with pytest.raises(DataError, match=rf"checksum of its block {start // 512} differs"):
            read()


def test_a_large_table_is_read_by_its_parts(large: Path) -> None:
    place = large.with_name("table.parquet")
    numbers = pa.table({"x": np.random.default_rng(1).normal(size=40_000)})
    with adding(place.parent, [place.name]):
        parquet.write_table(numbers, place, row_group_size=2000)
    file = checked.checked_file(place)
    assert not isinstance(file, Path)
    with parquet.ParquetFile(file) as table:
        assert table.read_row_group(3).equals(numbers.slice(6000, 2000))
    flip(place, place.stat().st_size // 4)
    with pytest.raises(DataError, match=r"table\.parquet is damaged"):
        refuse_damaged(place)
    with parquet.ParquetFile(checked.checked_file(place)) as table:
        assert len(table.read_row_group(12)) == 2000  # of other blocks
        with pytest.raises(DataError, match=r"checksum of its block \d+ differs"):
            table.read()
