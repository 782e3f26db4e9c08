"""Documents keep their vectors, queries are trained for them, and nothing gets worse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from tempera import evaluate_held_out
from tempera.artifacts.run_folder import Run
from tempera.corpus.index import Index, write_index
from tempera.errors import ConfigError, DataError
from tempera.finished.calibrate import calibrate
from tempera.io.ids import content_ids, given_ids
from tempera.mining import embed
from tempera.options import yaml_options as config
from tempera.options.build import build, kind_of_tower
from tempera.options.yaml_options import Options
from tempera.ranking.fusion import fused
from tempera.run.dry_run import rehearse
from tempera.run.train import train
from tempera.tables.vector_files import read_vectors
from tempera.text.judge.lexical import Lexical
from tempera.text.read.sources import read_table
from tempera.text.train.frozen import HeadTower, IndexSide
from tempera.text.train.two_towers import FrozenModel, Head, KeptIndex, TwoTowers
from tempera.towers.saved import fingerprint, load, model_folder
from tempera.towers.stamp import Kept, Stamp, checksum
from tempera.towers.static import Static, StaticTower
from tempera.towers.tokenizer import train_tokenizer

# A copy whose files may be changed, as of an earlier version: without their checksums.
UNCOMPARED = shutil.ignore_patterns("tempera-manifest.json")

WIDTH = 6


def kept(folder: Path) -> Any:
    """A function that embeds texts by a saved model, and keeps the vectors in a folder."""
    return lambda model, role, texts, _=None: embed.embed_by(
        model_folder(model), role, texts, folder
    )


@pytest.fixture
def vectors() -> np.ndarray:
    drawn = np.random.default_rng(0).normal(size=(9, WIDTH)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def ids(count: int = 9) -> list[str]:
    return [f"d{i}" for i in range(count)]


def write(path: Path, vectors: np.ndarray, names: list[str]) -> Path:
    lists = pa.FixedSizeListArray.from_arrays(
        pa.array(np.ascontiguousarray(vectors).ravel()), vectors.shape[1]
    )
    parquet.write_table(pa.table({"id": names, "embedding": lists}), path)
    return path


@pytest.mark.parametrize(
    "form", ["parquet", "npy", "npy with ids.npy", "faiss", "faiss with ids inside"]
)
def test_vectors_are_found_by_id_in_files_of_every_form(
    form: str, vectors: np.ndarray, tmp_path: Path
) -> None:
    path, names, own = tmp_path / f"vectors.{form.split()[0]}", None, ids()
    if form == "parquet":
        write(path, vectors, own)
    elif form.startswith("npy"):
        np.save(path, vectors)
        names = tmp_path / ("ids.npy" if "ids" in form else "ids.txt")
        np.save(names, np.array(own)) if "ids" in form else names.write_text("\n".join(own) + "\n")
    else:
        faiss = pytest.importorskip("faiss")
        index = faiss.IndexFlatIP(WIDTH)
        own = [str(i) for i in range(9)]
        if "inside" in form:
            index, own = faiss.IndexIDMap(index), [str(7 * i) for i in range(9)]
            index.add_with_ids(vectors, np.arange(9) * 7)
        else:
            index.add(vectors)
        faiss.write_index(index, str(path))
    side = IndexSide(path, names)
    chosen = np.array([4, 0, 4, 8])
    rows = side.named(given_ids(pa.array([own[i] for i in chosen])), ["x"] * 4)
    assert torch.equal(side(rows), torch.from_numpy(vectors[chosen]))
    assert side.notes() == []


def test_a_column_of_the_user_that_is_called_key_replaces_no_id(
    vectors: np.ndarray, tmp_path: Path
) -> None:
    path = write(tmp_path / "vectors.parquet", vectors, ids())
    parquet.write_table(
        parquet.read_table(path).append_column("key", pa.array(range(100, 109))), path
    )
    assert read_vectors(path).keys is None
    assert IndexSide(path).find(given_ids(pa.array(ids()))).tolist() == list(range(9))


def test_what_is_unusual_of_an_index_is_said(vectors: np.ndarray, tmp_path: Path) -> None:
    half = IndexSide(write(tmp_path / "half.parquet", vectors.astype(np.float16), ids()))
    assert [note.split(": ")[1] for note in half.notes()] == ["they are compared in float32"]
    (note,) = IndexSide(
        write(
            tmp_path / "long.parquet", vectors * np.arange(1, 10)[:, None].astype(np.float32), ids()
        )
    ).notes()
    assert "lengths from 1 to 9" in note and "cosine" in note
    (note,) = IndexSide(write(tmp_path / "double.parquet", 2 * vectors, ids())).notes()
    assert "lengths from 2 to 2" in note


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("twice", r"holds the id 'd3' twice, in rows 4 and 6"),
        ("missing", r"2 of 3 documents are not in .*, the first of them 'what is lost'"),
        ("not finite", r"not finite .*the first is row 2\): embed these documents again"),
        ("fewer ids", r"shape \(9, 6\) for 8 ids"),
        ("text", "no readable file of vectors"),
        ("none", r"no such file or folder of vectors: \S+vectors\.npy"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(
    change: str, message: str, vectors: np.ndarray, tmp_path: Path
) -> None:
    path, own, names = tmp_path / "vectors.npy", ids(), tmp_path / "ids.txt"
    if change == "twice":
        own[5] = own[3]
    if change == "not finite":
        vectors[2, 2] = np.nan
    np.save(path, vectors)
    names.write_text("\n".join(own[: 8 if change == "fewer ids" else 9]))
    if change == "text":
        path.write_text("no array")
    if change == "none":
        path.unlink()
    with pytest.raises(DataError, match=message):
        IndexSide(path, names).named(
            given_ids(pa.array(["d0", "lost", "lost too"])), ["a", "what is lost", "b"]
        )


@pytest.mark.parametrize("width", [WIDTH, 4, 9])
def test_a_head_is_the_identity_before_training_and_its_definition_after_it(
    width: int, tiny_run: Path, tmp_path: Path
) -> None:
    """W and b against a loop over rows; vectors of another width are cut or filled up with
    zeros."""
    texts = ["kaban lodor", "mifin", "nugar zucel the"]
    head = HeadTower(tiny_run / "model", kept(tmp_path), texts, width)
    rows = head.features(texts, None, "query")
    x = load(tiny_run / "model", "query")(texts)
    cut = [[float(row[j]) if j < len(row) else 0.0 for j in range(width)] for row in x]
    assert np.array_equal(head(rows).detach().numpy(), np.array(cut, np.float32))
    torch.manual_seed(0)
    for parameter in head.residual.parameters():
        torch.nn.init.normal_(parameter)
    weight, bias = (
        p.detach().numpy().astype(np.float64) for p in (head.residual.weight, head.residual.bias)
    )
    for i, row in enumerate(x.astype(np.float64)):
        expected = [
            cut[i][j] + sum(weight[j, k] * row[k] for k in range(len(row))) + bias[j]
            for j in range(width)
        ]
        assert np.allclose(head(rows)[i].detach().numpy(), expected, atol=1e-5)
    head.save(tmp_path / "saved")
    assert np.allclose(load(tmp_path / "saved")(texts), head.encode(rows).numpy(), atol=1e-6)


def options(pairs: Path, run: Path, **evaluation: Any) -> dict[str, Any]:
    return {
        "data": {"source": "pairs", "path": str(pairs)},
        "tower": {"query": {"kind": "head", "model": str(run)}, "doc": {"index": str(run)}},
        "train": {"batch_size": 64, "num_train_epochs": 30, "learning_rate": 0.02},
        "evaluation": {"queries": 60, "validation": 60, "bm25": False, **evaluation},
    }


def test_a_run_finds_the_users_ids_again_in_its_index_and_in_that_of_another_run(
    pairs_file: Path, tiny_run: Path, tmp_path: Path
) -> None:
    rows = read_table(pairs_file)
    texts = list(dict.fromkeys(rows["doc"].to_pylist()))
    names = [f"https://example.org/{texts.index(text)}" for text in rows["doc"].to_pylist()]
    parquet.write_table(rows.append_column("url", pa.array(names)), tmp_path / "pairs.parquet")
    chosen = options(tmp_path / "pairs.parquet", tiny_run)
    chosen["data"] |= {"doc_id": "url", "metadata": ["*"]}
    chosen["tower"] = {"kind": "static", "dimensions": 8}
    first = train(chosen, tmp_path / "first")
    named = dict(zip(texts, dict.fromkeys(names), strict=True))
    hits = first.search("kaban lodor", k=10, hybrid=True)
    assert [hit.id for hit in hits] == [
        next(n for t, n in named.items() if t.startswith(hit.preview)) for hit in hits
    ]
    assert all(hit.place.endswith(f", {hit.id}") for hit in hits)
    assert calibrate(first.folder).about["queries"] == first.results["data"]["queries"]
    # Queries of another run are trained for this index, and its documents found by the same ids.
    chosen["tower"] = options(pairs_file, tmp_path / "first")["tower"]
    run = train(chosen, tmp_path / "second")
    assert sorted(run.index.documents["id"].to_pylist()) == sorted(
        first.index.documents["id"].to_pylist()
    )
    judged = evaluate_held_out(run.folder).systems
    assert judged[str(run.folder)].metrics["ndcg@10"] == pytest.approx(
        run.metrics["trained"]["ndcg@10"]
    )


def test_integer_ids_of_a_stamped_index_are_found(vectors: np.ndarray, tmp_path: Path) -> None:
    """As a recommender has them, and as a user names them for the vectors of a run."""
    numbers = pa.array(range(9), pa.int64())
    names = pa.table({"doc_id": numbers, **dict.fromkeys(("name", "place", "doc"), [""] * 9)})
    write_index(tmp_path / "index", vectors, names, Stamp("0" * 32, WIDTH))
    side = IndexSide(tmp_path / "index")
    for ids in (
        given_ids(pa.array(["4", "0"])),
        np.array([4, 0]),
    ):  # given by a user, and as hashes are
        assert torch.equal(side(side.named(ids, ["a", "b"])), torch.from_numpy(vectors[[4, 0]]))
    (tmp_path / "ids.txt").write_text(
        "\n".join(f"{i}{'0' * 20}" for i in range(9))
    )  # longer than a hash
    side = IndexSide(tmp_path / "index", tmp_path / "ids.txt")
    assert torch.equal(
        side(side.named(given_ids(pa.array([f"4{'0' * 20}"])), ["a"])),
        torch.from_numpy(vectors[[4]]),
    )


def test_words_belong_to_their_documents_in_an_index_of_another_order(
    tiny_run: Path, tmp_path: Path
) -> None:
    run = Run(tiny_run)
    index, order = run.index, np.random.default_rng(0).permutation(len(run.index.documents))
    named = index.documents.rename_columns(["doc_id", "name", "place", "doc"])
    for folder, rows in (("turned", order), ("fewer", order[:50])):
        write_index(tmp_path / folder, index.vectors[rows], named.take(pa.array(rows)), index.stamp)
    own = run.search("kaban lodor", 20, hybrid=True)
    turned = run.search("kaban lodor", 20, index=str(tmp_path / "turned"), hybrid=True)
    assert {hit.id: round(hit.score, 4) for hit in turned} == {
        hit.id: round(hit.score, 4) for hit in own
    }
    fewer = run.search("kaban lodor", 5, index=tmp_path / "fewer", hybrid=True)
    words = Lexical(named["doc"].take(pa.array(order[:50])).to_pylist()).index(
        run._once(run._words, index).settings
    )
    wanted = fused(
        (index.vectors[order[:50]] @ run.encode(["kaban lodor"])[0])[None],
        words.scores(["kaban lodor"]),
        run.results["hybrid"]["weight"],
    )
    assert fewer[0].score == pytest.approx(wanted.max(), abs=1e-5)


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The role of every text that a model embeds."""
    roles: list[str] = []

    def counting(folder: Path, role: Any = "query", half: bool = False, device: Any = "cpu") -> Any:
        encode = load(folder, role, half, device)
        return lambda texts: roles.extend([role] * len(texts)) or encode(texts)

    monkeypatch.setattr(embed, "load", counting)
    return roles


@pytest.fixture
def turned(tiny_run: Path, tmp_path: Path) -> Path:
    """An index with the documents of a run, whose vectors are turned, so that a head has something
    to learn."""
    index, turn = (
        Run(tiny_run).index,
        np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0],
    )
    named = index.documents
    table = pa.table(
        {
            "doc_id": named["id"],
            "name": named["name"],
            "place": named["place"],
            "doc": named["text"],
        }
    )
    stamp = Stamp(fingerprint(tiny_run / "model"), 16)
    write_index(tmp_path / "old" / "index", (index.vectors @ turn).astype(np.float32), table, stamp)
    return tmp_path / "old"


def test_queries_are_trained_for_an_index_and_no_document_is_embedded(
    pairs_file: Path, tiny_run: Path, turned: Path, tmp_path: Path, embedded: list[str]
) -> None:
    chosen = options(pairs_file, tiny_run)
    chosen["tower"]["doc"] = {"index": str(turned)}
    run = train(chosen, tmp_path / "run")
    assert set(embedded) == {"query"}  # zero documents
    old, new = Index(turned / "index"), run.index
    table = dict(zip(old.documents["id"].to_pylist(), old.vectors, strict=True))
    assert np.allclose(
        [table[name] for name in new.documents["id"].to_pylist()], new.vectors, atol=1e-6
    )
    assert run.results["best"]["step"] > 0
    assert run.metrics["trained"]["ndcg@10"] > run.metrics["untrained"]["ndcg@10"] + 0.2
    # The saved model is one for queries, which searches the old index and names it.
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    assert np.allclose(model.encode_query(["kaban lodor"]), run.encode(["kaban lodor"]), atol=1e-6)
    note = Kept.read(tmp_path / "run" / "model")
    assert note == Kept(
        checksum(old.vectors), fingerprint(tiny_run / "model"), len(old.documents), 16
    )
    assert note.checksum in (tmp_path / "run" / "model" / "README.md").read_text()
    hits = run.search("kaban lodor", index=turned / "index")
    assert np.isclose(
        hits[0].score, (old.vectors @ run.encode(["kaban lodor"])[0]).max(), atol=1e-6
    )
    assert run.search("kaban lodor")[0].preview == hits[0].preview
    with pytest.raises(DataError, match=r"embeds queries alone.*: tempera evaluate RUN"):
        load(tmp_path / "run" / "model", "doc")
    # It is judged by what its run has held out, beside other queries for the same index, and still
    # no document is embedded.
    embedded.clear()
    judged = evaluate_held_out(run.folder, against=tiny_run).systems
    assert judged[str(run.folder)].metrics["ndcg@10"] == pytest.approx(
        run.metrics["trained"]["ndcg@10"]
    )
    assert judged[str(tiny_run)].metrics["ndcg@10"] == pytest.approx(
        run.metrics["untrained"]["ndcg@10"]
    )
    assert "doc" not in embedded
    # After training again, calibration follows the model of before, and the same vectors.
    chosen["train"]["refit"] = "all"
    again = train(chosen, tmp_path / "again").folder
    assert (again / "evaluated").is_dir()
    assert calibrate(again).about["queries"] == run.results["data"]["queries"]
    StaticTower(train_tokenizer(["kaban"], 300, 16), 8).save(tmp_path / "narrow")
    with pytest.raises(DataError, match=r"queries of .*narrow are not for the index of .*run"):
        evaluate_held_out(run.folder, against=tmp_path / "narrow")
    # Of the same width, in another space.
    StaticTower(train_tokenizer(["kaban"], 300, 16), 16).save(tmp_path / "foreign")
    with pytest.raises(
        DataError,
        match=r"queries of .*foreign are not for the index of .*run: compare with the model",
    ):
        evaluate_held_out(run.folder, against=tmp_path / "foreign")
    assert len(evaluate_held_out(run.folder, against=again).systems) == 2
    shutil.copytree(tmp_path / "run", tmp_path / "damaged", ignore=UNCOMPARED)
    shutil.rmtree(tmp_path / "damaged" / "index")
    write_index(
        tmp_path / "damaged" / "index",
        new.vectors[:3],
        pa.table(
            {"doc_id": ["1", "2", "3"], "name": [""] * 3, "place": [""] * 3, "doc": ["a", "b", "c"]}
        ),
    )
    with pytest.raises(DataError, match=r"index lacks [\d,]+ of the [\d,]+ documents of its run"):
        evaluate_held_out(tmp_path / "damaged")
    shutil.rmtree(tmp_path / "damaged" / "index")
    shutil.copytree(tiny_run / "index", tmp_path / "damaged" / "index")
    with pytest.raises(DataError, match="holds vectors of another model"):
        evaluate_held_out(tmp_path / "damaged")
    (tmp_path / "run" / "tempera-manifest.json").unlink()
    for damage in ("{", "[]", '{"checksum": "x"}'):
        (tmp_path / "run" / "model" / "kept_index.json").write_text(damage)
        with pytest.raises(
            DataError,
            match=r"kept_index\.json is damaged: .*; copy it from the model that was trained",
        ):
            Run(tmp_path / "run").search("kaban lodor")


def test_an_index_that_does_not_name_its_model_is_that_of_the_queries(
    pairs_file: Path, tiny_run: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in pairs_file.read_text().splitlines()]
    table = [{**row, "key": f"k{number}"} for number, row in enumerate(rows)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    vectors = Run(tiny_run).encode([row["doc"] for row in rows])
    chosen = options(tmp_path / "pairs.jsonl", tiny_run)
    chosen["data"]["doc_id"] = "key"
    chosen["tower"]["doc"] = {
        "index": str(write(tmp_path / "v.parquet", vectors, [row["key"] for row in table]))
    }
    run = train(chosen, tmp_path / "run")
    judged = evaluate_held_out(run.folder, against=tiny_run).systems
    assert judged[str(tiny_run)].metrics["ndcg@10"] == pytest.approx(
        run.metrics["untrained"]["ndcg@10"]
    )
    StaticTower(train_tokenizer(["kaban"], 300, 16), 16).save(tmp_path / "foreign")
    with pytest.raises(DataError, match=r"queries of .*foreign are not for the index of .*run"):
        evaluate_held_out(run.folder, against=tmp_path / "foreign")


def test_an_index_of_another_model_is_still_refused(
    pairs_file: Path, tiny_run: Path, tmp_path: Path
) -> None:
    run = train(options(pairs_file, tiny_run, validation=0), tmp_path / "run")
    old = Run(tiny_run)
    with pytest.raises(DataError, match="vectors of another model"):
        old.search("kaban", index=run.folder / "index")


def test_too_few_validation_queries_keep_the_untrained_queries(
    pairs_file: Path, tiny_run: Path, tmp_path: Path, embedded: list[str]
) -> None:
    run = train(options(pairs_file, tiny_run, validation=20), tmp_path / "run")
    assert run.results["steps"] == 0 and run.metrics["trained"] == run.metrics["untrained"]
    assert "nothing is trained" in json.dumps(run.results["cautions"])
    assert np.allclose(
        run.encode(["kaban lodor"]), Run(tiny_run).encode(["kaban lodor"]), atol=1e-6
    )
    asked = train(
        {
            **options(pairs_file, tiny_run, validation=20),
            "train": {"max_steps": 3, "keep_best": False},
        },
        tmp_path / "b",
    )
    assert asked.results["steps"] == 3


def test_training_that_does_not_help_keeps_the_untrained_queries(
    pairs_file: Path, tiny_run: Path, tmp_path: Path
) -> None:
    wild = options(pairs_file, tiny_run)
    wild["train"]["learning_rate"] = 30.0
    run = train(wild, tmp_path / "run")
    assert run.results["best"]["step"] == 0 and run.metrics["trained"] == run.metrics["untrained"]
    assert "training did not help" in json.dumps(run.results["cautions"])


def test_documents_of_a_frozen_model_are_embedded_once_and_saved_as_a_route(
    pairs_file: Path, tiny_run: Path, tmp_path: Path, embedded: list[str]
) -> None:
    frozen = options(pairs_file, tiny_run)
    frozen["tower"] = {
        "query": {"kind": "static", "dimensions": 16, "vocabulary": 300},
        "doc": {"kind": "pretrained", "model": str(tiny_run), "frozen": True},
    }
    run = train(frozen, tmp_path / "run")
    documents = len(Run(tiny_run).index.documents)
    assert embedded == ["doc"] * documents
    train(frozen, tmp_path / "again")
    assert len(embedded) == documents
    texts = ["kaban lodor", "mifin"]
    assert np.allclose(
        load(run.folder / "model", "doc")(texts), load(tiny_run / "model", "doc")(texts), atol=1e-6
    )
    assert not np.allclose(
        load(run.folder / "model", "query")(texts),
        load(tiny_run / "model", "query")(texts),
        atol=0.1,
    )


def test_options_of_two_towers(tmp_path: Path) -> None:
    short = build(
        config.of({}, ["tower.query.kind=head", "tower.query.model=m", "tower.doc.index=i"])
    )
    assert short.tower == TwoTowers(Head("m"), KeptIndex("i"))
    assert build(Options({"tower": short.resolved["tower"]})).tower == short.tower
    long = {"query": {"head": {"model": "m"}}, "doc": {"index": "i", "ids": "ids.txt"}}
    assert build(Options({"tower": long})).tower == TwoTowers(Head("m"), KeptIndex("i", "ids.txt"))
    other = {
        "query": {"kind": "static", "dimensions": 8},
        "doc": {"kind": "pretrained", "model": "m", "frozen": True},
    }
    assert build(Options({"tower": other})).tower == TwoTowers(Static(8), FrozenModel("m", True))
    assert (
        kind_of_tower(Options({"tower": other})) is Static
        and kind_of_tower(Options({"tower": long})) is Head
    )


@pytest.mark.parametrize(
    ("tower", "message"),
    [
        ({"query": {"kind": "head", "model": "m"}}, "tower.doc: is required"),
        ({"query": {"kind": "hat"}, "doc": {"index": "i"}}, "tower.query: no 'hat'"),
        (
            {"query": {"kind": "static"}, "doc": {"kind": "pretrained", "model": "m"}},
            "tower.doc.pretrained.frozen: is required",
        ),
        (
            {
                "query": {"kind": "static"},
                "doc": {"kind": "pretrained", "model": "m", "frozen": False},
            },
            "tower.doc.pretrained: frozen is false, and both towers would train",
        ),
    ],
)
def test_options_that_make_no_two_towers(tower: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(Options({"tower": tower}))


def test_two_widths_and_two_models_are_told(
    vectors: np.ndarray, tiny_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(write(tmp_path / "vectors.parquet", vectors, ids()))
    with pytest.raises(ConfigError, match="embeds in 8 dimensions, but the documents have 6"):
        TwoTowers(Static(8, 300), KeptIndex(path)).build(["kaban"], kept(tmp_path))
    (tmp_path / "other").mkdir()
    Static(16, 300).build(["kaban lodor"]).save(tmp_path / "other" / "model")
    TwoTowers(Head(str(tmp_path / "other")), KeptIndex(str(tiny_run))).build(
        ["kaban"], kept(tmp_path)
    )
    assert "vectors of another model" in caplog.text


def test_an_index_of_a_run_is_read_by_content(tiny_run: Path) -> None:
    index = Run(tiny_run).index
    side = IndexSide(tiny_run)
    texts = index.documents["text"].to_pylist()
    assert np.array_equal(side.find(content_ids(pa.array(texts))), np.arange(len(texts)))
    assert np.array_equal(read_vectors(tiny_run / "index").vectors, index.vectors)


def test_ids_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", np.ones((2, 3), np.float32))
    np.save(tmp_path / "objects.npy", np.array(["a", None], object))
    np.save(tmp_path / "square.npy", np.ones((2, 2), np.int64))
    (tmp_path / "latin.txt").write_bytes("gr\u00fc\u00df\nb".encode("latin-1"))
    (tmp_path / "bom.txt").write_bytes("\ufeffa\nb\u2028c\n".encode())
    for name, says in (
        ("objects.npy", "no ids that can be read"),
        ("square.npy", "no ids that can be read"),
        ("latin.txt", "is not UTF-8"),
    ):
        with pytest.raises(DataError, match=says):
            read_vectors(tmp_path / "vectors.npy", tmp_path / name)
    assert read_vectors(tmp_path / "vectors.npy", tmp_path / "bom.txt").ids.to_pylist() == [
        "a",
        "b\u2028c",
    ]


def test_a_dry_run_leaves_no_vectors(
    pairs_file: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head has the vectors of its model computed, and they go with the temporary folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rehearse(config.of(options(pairs_file, tiny_run)))
    assert [*tmp_path.iterdir()] == []
