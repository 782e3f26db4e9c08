"""The users' tower as ONNX gives the vectors of the tower, for all histories alone and together;
what cannot is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tempera.artifacts.run_folder import Run
from tempera.errors import ConfigError, DataError, OutputError
from tempera.exports import onnx
from tempera.io.manifest import MANIFEST
from tempera.recommender.onnx_users import OnnxUsers
from tempera.run.train import train

for library in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(library)

ITEMS, USERS = 20, 30
POOLS = [
    *(
        {"max": {"last": 3}},
        {"ages": {"last": 4}},
        {"mean": {"last": 2}},
        {"attention": {"last": 5}},
    ),
    *({"mean": {"last": 6, "decay": 0.7}}, {"ages": {"last": 2}}),
]


def trained(
    folder: Path,
    pools: list[Any] | None,
    query: list[Any],
    similarity: str = "cosine",
    **options: Any,
) -> Run:
    draw = np.random.default_rng(2)
    rows = [
        (f"u{u}", f"i{i:02}", t)
        for u in range(USERS)
        for t, i in enumerate(draw.integers(0, ITEMS, 8).tolist())
    ]
    table = pa.table(
        {name: list(column) for name, column in zip(("user", "item", "time"), zip(*rows))}
    )
    folder.mkdir(exist_ok=True)
    parquet.write_table(table, folder / "events.parquet")
    users = {
        "user": [f"u{u}" for u in range(USERS)],
        "town": ["ab"[u % 2] for u in range(USERS)],
        "age": range(USERS),
    }
    parquet.write_table(pa.table({k: list(v) for k, v in users.items()}), folder / "users.parquet")
    data = {
        "source": "interactions",
        "path": str(folder / "events.parquet"),
        "users": str(folder / "users.parquet"),
    }
    tower = {
        "kind": "features",
        "dimensions": 8,
        "query_layers": [12],
        "doc": ["id"],
        "history": pools and {"pools": pools},
    }
    given = {
        "data": {**data, "split": "leave_last_out", **options},
        "tower": {**tower, "query": query},
        "objective": {"similarity": similarity, "temperature": 0.2},
        "train": {"batch_size": 30, "max_steps": 20, "evaluations": 0, "learning_rate": 0.02},
        "evaluation": {"metrics": ["hit@3"]},
    }
    return train(given, folder / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(
        tmp_path_factory.mktemp("runs"), POOLS, ["id", {"category": {"column": "town"}}], "dot"
    )


@pytest.fixture(scope="module")
def out(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of the run; look, do not touch."""
    folder = tmp_path_factory.mktemp("export") / "out"
    run.export("onnx", folder)
    return folder


def test_vectors_are_those_of_the_tower(run: Run, out: Path) -> None:
    facts = json.loads((out / "metrics.json").read_text())
    assert (
        0 <= facts["largest_difference"] < 1e-5
        and facts["items"] == ITEMS
        and facts["tried_on"] == USERS + 2
    )
    exported = OnnxUsers(out)
    assert exported.fingerprint == run.recommender.fingerprint
    draw = np.random.default_rng(4)
    histories = [draw.integers(0, ITEMS, n) for n in (0, 1, 2, 3, 5, 6, 9, 30)]
    users = [None, 3, 3, 4, None, 0, 29, 7]
    expected = run.recommender.vectors(users, histories)
    assert np.abs(expected).max() > 0.1 and len(np.unique(expected.round(4), axis=0)) == 8
    np.testing.assert_allclose(exported.encode(histories, users), expected, atol=1e-5)
    for history, user, vector in zip(histories, users, expected):
        np.testing.assert_allclose(exported.encode([history], [user])[0], vector, atol=1e-5)
    names = {"model.onnx", "tempera.json", "vectors.parquet", "metrics.json", MANIFEST}
    assert {path.name for path in out.iterdir()} == names


def test_users_and_items_of_the_export_score_as_the_run_does(run: Run, out: Path) -> None:
    items = parquet.read_table(out / "vectors.parquet")
    vectors = np.array(items["vector"].to_pylist(), np.float32)
    history = [2, 5, 11]
    user = OnnxUsers(out).encode([np.array(history)], [None])[0]
    found = run.recommend(
        "nobody", history=[items["id"][code].as_py() for code in history], k=4
    ).hits
    best = [
        code
        for code in np.argsort(-(vectors @ user), kind="stable").tolist()
        if code not in history
    ][:4]
    assert [hit.id for hit in found] == [items["id"][code].as_py() for code in best]
    np.testing.assert_allclose([hit.score for hit in found], (vectors @ user)[best], atol=1e-4)


@pytest.mark.parametrize(
    ("pool", "data"),
    [({"mean": {"last": 3}}, {}), ({"bag": {"power": 0.7}}, {"split": "random", "ordered": False})],
)
def test_without_features_of_users_there_is_one_input(pool: Any, data: Any, tmp_path: Path) -> None:
    run = trained(tmp_path, [pool], [], **data)
    run.export("onnx", tmp_path / "out")
    exported = OnnxUsers(tmp_path / "out")
    assert [given.name for given in exported.session.get_inputs()] == ["history"]
    histories = [np.array([1, 2, 3, 4]), np.array([], np.int64)]
    expected = run.recommender.vectors([None, None], histories)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(exported.encode(histories), expected, atol=1e-5)


def test_users_id_by_id_have_one_input(tmp_path: Path) -> None:
    run = trained(tmp_path, None, ["id"])
    assert run.export("onnx", tmp_path / "out")["largest_difference"] < 1e-5
    exported, users, none = OnnxUsers(tmp_path / "out"), [3, None, 0], [np.array([], np.int64)] * 3
    assert [given.name for given in exported.session.get_inputs()] == ["user"]
    expected = run.recommender.vectors(users, none)
    assert len(np.unique(expected.round(4), axis=0)) == 3
    np.testing.assert_allclose(exported.encode(none, users), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("pools", "query", "says"),
    [
        (
            [{"mean": {"last": 2}}, {"gru": {"last": 4}}],
            [],
            "a user tower with the pool gru cannot be exported",
        ),
        (
            [{"transformer": {"last": 4}}],
            [],
            "with the pool causal cannot be exported: pools may be mean, max, ages, attention, bag",
        ),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    pools: Any, query: Any, says: str, tmp_path: Path
) -> None:
    run = trained(tmp_path, pools, query)
    with pytest.raises(ConfigError, match=says):
        run.export("onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert run.recommend("u1", k=2).hits  # it serves all the same


def test_a_network_that_differs_is_not_kept(
    run: Run, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = OnnxUsers.encode
    monkeypatch.setattr(
        onnx, "write_module", lambda path, *_: shutil.copy(out / "model.onnx", path)
    )
    monkeypatch.setattr(OnnxUsers, "encode", lambda *given: encode(*given) + 0.01)
    with pytest.raises(
        OutputError, match=r"differs from the tower by 0\.01 in a coordinate, so it is not kept"
    ):
        run.export("onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_export(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"is not an exported user tower: .*tempera.json is missing"
    ):
        OnnxUsers(tmp_path)
